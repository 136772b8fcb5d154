"""Sphinx configuration: ``sphinx-build -W docs build/docs``."""

from importlib import metadata

project = "skysieve"
author = "the skysieve developers"
copyright = author
release = metadata.version("skysieve")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["build"]
html_theme = "furo"
html_title = f"skysieve {release}"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
