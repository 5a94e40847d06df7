"""Sphinx: docs/ and the root's pages as one site, built by ``nox -s static -- docs``.

The source folder is the repository, so links between pages, and to files such as examples, are the
same in the site as where the repository is read.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx

project = "disteval-harness"
root_doc = "docs/index"
include_patterns = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/*.md",
    "docs/*.rst",
    "examples/README.md",
    "examples/*/README.md",
    "findings/*.md",
]
exclude_patterns = [".*"]  # else it looks at every file of nox's environments
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]

default_role = "py:obj"
myst_heading_anchors = 3
autodoc_mock_imports = ["torch"]
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autosummary_generate = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = project
html_copy_source = False
html_show_copyright = False
html_extra_path = ["site"]
html_static_path = ["static"]
html_css_files = ["site.css"]


def setup(app: Sphinx) -> None:
    """Let the lists of docs/index.md be the site's navigation."""
    app.connect("source-read", add_navigation)


def add_navigation(_app: Sphinx, name: str, source: list[str]) -> None:
    """Follow each list of links under a heading with a table of contents of the same pages.

    The pages of findings are in the list of their index alone. In the navigation of every page they
    would take most of the time of building the site. Their front matter stands at the end.
    """
    if source[0].startswith("+++\n"):
        _, front, page = source[0].split("+++\n", 2)
        source[0] = f"---\norphan: true\n---\n\n{page}\n```toml\n{front}```\n"
    if name != root_doc:
        return
    trees = []
    for heading, body in re.findall(r"^## (.*)\n((?:(?!^## ).*\n?)*)", source[0], flags=re.M):
        pages = re.findall(r"^- \[(.*?)\]\((\S+?)\)", body, flags=re.M)
        listed = "\n".join(f"{title} <{page}>" for title, page in pages)
        if pages:
            trees.append(f"```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{listed}\n```")
    source[0] += "\n\n" + "\n\n".join(trees)
