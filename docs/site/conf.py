"""How the documentation site is built: `make docs`. Its pages are the Markdown files themselves."""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "src")]

project = "randquant"
author = "The randquant developers"
version = release = importlib.import_module("randquant").__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "site_pages",
]

# The source is the root of the repository, so that a relative link means the same in the site.
root_doc = "docs/README"
include_patterns = [
    "README.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md",
    "SUPPORT.md", "docs/**",
    "examples/**/README.md", "papers/README.md", "papers/text_app/README.md", "papers/docs/**",
    "verify/README.md",
]  # fmt: skip
exclude_patterns = [
    ".venv", ".git", ".ci", "build", "dist", "runs", "src", "tests", "benchmarks", "docs/site",
    "papers/src", "papers/tests", "papers/docs/gallery", "verify/src", "verify/tests",
]  # fmt: skip

myst_heading_anchors = 3
nb_execution_mode = "cache"
# The data of this one do not come with the package; its output is stored.
nb_execution_excludepatterns = ["*.ipynb"]
nb_execution_cache_path = str(ROOT / "build" / "notebooks")
nb_execution_timeout = 1800  # they take a minute on a quiet machine
nb_execution_raise_on_error = True
nb_execution_in_temp = True  # what a notebook writes does not end up among the pages
nb_ipywidgets_js = {}

default_role = "code_or_name"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "inherited-members": False}
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Guarantees", "Guarantees")]
add_module_names = False
python_maximum_signature_line_length = 90

smartquotes = False  # the prime of x' is no quotation mark
html_theme = "furo"
html_title = f"randquant {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path = ["templates"]
html_additional_pages = {"index": "to_the_front.html"}
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_show_search_summary = False  # it would be fetched, which a page opened from a file may not
html_show_sourcelink = False
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
suppress_warnings = ["myst.header"]  # propositions are headings of level 3 everywhere
