"""Sphinx's settings. ``sphinx-build -W docs docs/_build/html`` builds the site and runs its gallery."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

import lavps  # noqa: E402
import made_pages  # noqa: E402

project = "lavps"
author = "The lavps developers"
copyright = f"2026, {author}"
version = release = lavps.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = [
    "_build",
    "_static",
    "tutorials",
    "auto_tutorials/**/*.ipynb",
    "auto_tutorials/**/*.md5",
    "*.txt",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
napoleon_use_ivar = True
napoleon_use_rtype = False
add_module_names = False
python_use_unqualified_type_names = True
suppress_warnings = ["config.cache", "myst.header"]  # a benchmark's page may begin with small headings

html_theme = "furo"
html_title = "lavps"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_show_sourcelink = False

sphinx_gallery_conf: dict[str, Any] = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "auto_tutorials",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "matplotlib_animations": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_signature": False,
    "plot_gallery": "True",
    "min_reported_time": 10**6,
    "write_computation_times": False,
    "copyfile_regex": r".*\.rst",
}


def escape(app: Any, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Docstrings write shapes as (B, C, *spatial) and sizes as |noise|, which are markup to Sphinx."""
    for number, line in enumerate(lines):
        if line.lstrip().startswith(".. math"):
            continue
        parts = re.split(r"(:\w+:`[^`]*`|``[^`]*``)", line)  # roles and literals stay as they are
        for place in range(0, len(parts), 2):
            text = re.sub(r"(?<![\w*\\])\*(?=[a-z]\w*[),\]])", r"\\*", parts[place])
            parts[place] = re.sub(r"\|(?=\S)|(?<=\S)\|", r"\|", text)
        lines[number] = "".join(parts)


def setup(app: Any) -> None:
    """Make the pages that are not written by hand, before Sphinx looks for pages."""
    app.connect("autodoc-process-docstring", escape)
    made_pages.make_all()
