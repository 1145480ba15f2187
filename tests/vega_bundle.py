"""Vega's runtime as pages carry it, packed from the Vega inside of vl-convert.

`python tests/vega_bundle.py` writes `templates/vega.js` of `randquant.reports` again. Pages hold
only the compiled form of a chart, so Vega-Lite is not needed, and Vega's interpreter takes the
place of `eval`, which a page's policy forbids.
"""

import re

from randquant.reports import pages

SNIPPET = """
import { View, parse } from "https://cdn.jsdelivr.net/npm/vega@%s/+esm";
import { expressionInterpreter as expr }
  from "https://cdn.jsdelivr.net/npm/vega-interpreter@2.0.0/+esm";
globalThis.randquantVega = { View, parse, expr };
"""
"""Modules inside of vl-convert, which knows them by their addresses; nothing is downloaded."""


def notice(version: str) -> str:
    """The licences that the script begins with, as they stand there, for this version of Vega."""
    kept = (pages.TEMPLATES / "vega.js").read_text(encoding="utf-8").partition("*/\n")[0]
    assert kept.count("Copyright") == kept.count("NO EVENT SHALL") == 2
    return re.sub(r"(?<=^/\*! Vega )[\d.]+", version, kept) + "*/\n"


def packed() -> str:
    """Vega's runtime with its interpreter, as one script that leaves one name behind.

    Raises:
        ImportError: vl-convert is not installed.
    """
    import vl_convert

    version = vl_convert.get_vega_version()
    bundle = vl_convert.javascript_bundle(SNIPPET % version).strip()
    text = f"{notice(version)}(() => {{\n{bundle}\n}})();\n"
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


if __name__ == "__main__":
    (pages.TEMPLATES / "vega.js").write_text(packed(), encoding="utf-8")
