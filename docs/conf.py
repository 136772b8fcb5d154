"""Sphinx configuration: ``sphinx-build -W docs build/docs``."""

import re
from typing import Any

from skysieve import __version__

project = "skysieve"
author = "the skysieve developers"
copyright = author
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["build"]
html_theme = "furo"
html_title = f"skysieve {release}"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
# Names of parameters that several classes have as attributes; references that the text above them does not number.
suppress_warnings = ["ref.python", "ref.footnote"]


def make_reference_labels_unique(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """The references of a docstring are its own: all stand on one page, and each begins with [1]."""
    own = f"{what}-{name}".replace(".", "-")  # labels do not tell capital letters from small ones
    for pattern, there in ((r"\[(\d+)\]_", rf"[#{own}-\1]_"), (r"^(\s*\.\. )\[(\d+)\]", rf"\1[#{own}-\2]")):
        lines[:] = [re.sub(pattern, there, line) for line in lines]


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", make_reference_labels_unique)
