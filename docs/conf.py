"""Sphinx configuration: ``sphinx-build -W docs build/docs``."""

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
