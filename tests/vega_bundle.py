"""Vega's runtime as pages carry it, packed from the Vega inside of vl-convert.

`python tests/vega_bundle.py` writes `templates/vega.js` of `randquant.reports` again. Pages hold
only the compiled form of a chart, so Vega-Lite is not needed, and Vega's interpreter takes the
place of `eval`, which a page's policy forbids.
"""

from randquant.reports import runtime

SNIPPET = """
import { View, parse } from "https://cdn.jsdelivr.net/npm/vega@%s/+esm";
import { expressionInterpreter as expr }
  from "https://cdn.jsdelivr.net/npm/vega-interpreter@2.0.0/+esm";
globalThis.randquantVega = { View, parse, expr };
"""
"""Modules inside of vl-convert, which knows them by their addresses; nothing is downloaded."""

NOTICE = """/*! Vega %s, https://vega.github.io
Copyright (c) 2015-2023, University of Washington Interactive Data Lab. All rights reserved.
Redistribution and use in source and binary forms, with or without modification, are permitted
provided that the following conditions are met: 1. Redistributions of source code must retain the
above copyright notice, this list of conditions and the following disclaimer. 2. Redistributions in
binary form must reproduce the above copyright notice, this list of conditions and the following
disclaimer in the documentation and/or other materials provided with the distribution. 3. Neither
the name of the copyright holder nor the names of its contributors may be used to endorse or promote
products derived from this software without specific prior written permission.
THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND ANY EXPRESS OR
IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND
FITNESS FOR A PARTICULAR PURPOSE ARE DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR
CONTRIBUTORS BE LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL
DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES; LOSS OF USE,
DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER
IN CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF
THE USE OF THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
It contains d3 (https://d3js.org), Copyright 2010-2023 Mike Bostock. Permission to use, copy,
modify, and/or distribute this software for any purpose with or without fee is hereby granted,
provided that the above copyright notice and this permission notice appear in all copies. THE
SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS SOFTWARE
INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE
LIABLE FOR ANY SPECIAL, DIRECT, INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER
RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER
TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE. */
"""


def packed() -> str:
    """Vega's runtime with its interpreter, as one script that leaves one name behind.

    Raises:
        ImportError: vl-convert is not installed.
    """
    import vl_convert

    version = vl_convert.get_vega_version()
    bundle = vl_convert.javascript_bundle(SNIPPET % version).strip()
    text = f"{NOTICE % version}(() => {{\n{bundle}\n}})();\n"
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


if __name__ == "__main__":
    (runtime.TEMPLATES / "vega.js").write_text(packed(), encoding="utf-8")
