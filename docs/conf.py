"""Settings of the documentation site: `make docs` builds it, offline, with warnings as errors.

Pages are the Markdown files of this folder, which read as well without a build. What a build adds is in
`extensions/`: the contents, the reference, pages of files outside docs/, and what tutorials print.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.ext.autodoc.mock import mock

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE / "extensions"), str(_HERE.parent)]

import torchyoga  # noqa: E402 - found by the line above

# TensorFlow and Keras take seconds to load, and their names are not shown. For the whole build, since the
# pages of sources load modules as well; they come back when the name is gone.
_without_frameworks = mock(["tensorflow", "keras"])
_without_frameworks.__enter__()

project = "torchyoga"
author = "the authors of torchyoga"
copyright = author
version = release = torchyoga.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "contents",
    "outside",
    "reference",
    "commands",
    "notebooks",
]
exclude_patterns = ["_build", "extensions", "images", "static"]

# Anchors are made as GitHub makes them, so that a link to a heading works on both.
myst_heading_anchors = 4
myst_links_external_new_tab = False
# Of several entries of one name, such as `rows`, a type in a signature leads to the first.
suppress_warnings = ["config.cache", "ref.python"]

default_role = "name"  # single backticks in docstrings; see extensions/reference.py
# Signatures name types of NumPy and torch, and private ones, to which nothing here can lead. Links between
# pages are still checked.
nitpick_ignore_regex = [("py:.*", ".*")]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
napoleon_use_rtype = False
napoleon_numpy_docstring = False
add_module_names = False
highlight_language = "python"

html_theme = "furo"
html_title = f"torchyoga {release}"
html_show_copyright = False
html_show_sphinx = False
html_static_path = ["images", "static"]  # pictures for the README, where they may be in HTML
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_copy_source = False
html_show_search_summary = False  # without a server no page can be fetched for a summary
html_theme_options = {"top_of_page_buttons": []}
