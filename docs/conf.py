"""Sphinx's settings. ``sphinx-build -W docs docs/_build/html`` builds the site and runs its gallery."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

import lavps  # noqa: E402
import made_pages  # noqa: E402

# The tutorials load models by name; the folder of the repository takes the place of the package lavps-zoo.
ZOO = DOCS.parent / "zoo"
spec = spec_from_file_location("lavps_zoo", ZOO / "__init__.py", submodule_search_locations=[str(ZOO)])
assert spec is not None
sys.modules.setdefault("lavps_zoo", module_from_spec(spec))

project = "lavps"
author = "The lavps developers"
copyright = f"2026, {author}"
version = release = lavps.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
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
# Inventories of the few names that signatures use, made from docs/intersphinx.txt: no network is needed.
intersphinx_mapping = {
    name: (address, str(made_pages.MADE / f"{name}.inv")) for name, address in made_pages.LIBRARIES.items()
}
copybutton_selector = "div:not(.output_area) > div.highlight > pre"
suppress_warnings = ["config.cache", "myst.header"]  # a benchmark's page may begin with small headings

html_theme = "furo"
highlight_language = "text"  # of blocks without a language: commands
html_title = "lavps"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_show_sourcelink = False
html_theme_options: dict[str, Any] = {}
if repository := os.environ.get("GITHUB_REPOSITORY"):  # set where the site is published
    html_theme_options |= {
        "source_repository": f"https://github.com/{repository}/",
        "source_branch": "main",
        "source_directory": "docs/",
    }

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


def without_aliases(app: Any, what: str, name: str, thing: object, skip: bool, options: Any) -> bool | None:
    """Leave out the fields of named tuples, which the docstrings of the classes state."""
    return True if (getattr(thing, "__doc__", "") or "").startswith("Alias for field number") else None


def without_back_links(app: Any, page: str, template: str, context: dict[str, Any], tree: object) -> None:
    """Remove the links from sources to the reference: those of names that a package re-exports are wrong."""
    if page.startswith("_modules/"):
        context["body"] = re.sub(r'<a class="viewcode-back".*?</a>', "", context["body"])


def with_benchmarks(app: Any, page: str, source: list[str]) -> None:
    """Link to the site's copies of the benchmarks' pages; in the repository they are outside of it."""
    source[0] = source[0].replace("](../../benchmarks/", "](/benchmarks/")


def setup(app: Any) -> None:
    """Make the pages that are not written by hand, before Sphinx looks for pages."""
    app.connect("autodoc-process-docstring", escape)
    app.connect("autodoc-skip-member", without_aliases)
    app.connect("source-read", with_benchmarks)
    app.connect("html-page-context", without_back_links)
    made_pages.make_all()
