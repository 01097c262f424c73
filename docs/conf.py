"""The documentation site: `python docs/serve.py` builds and shows it.

The source directory is the repository's root, not this folder, so that a relative link
between the pages, the notebooks and the other files is the same on the site and where
the repository is shown. Nothing is fetched, neither here nor by the pages.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

import attnpy

project = "attnpy"
author = "The attnpy developers"
version = release = attnpy.__version__

root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "notebooks/*.ipynb",
    "benchmarks/*.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "RELEASING.md",
    "SECURITY.md",
]
# Not to be walked through, and what the gallery's code is made into has its own pages.
exclude_patterns = [
    ".*",
    "attnpy",
    "build",
    "csrc",
    "dist",
    "tests",
    "docs/_*",
    "docs/pictures",
    "docs/gallery/**.[!r]*",
]
extensions = [
    "every_name",
    "links",
    "mathml",
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "synonyms",
    "tables",
]
nitpicky = True
templates_path = [str(Path(__file__).parent / "_templates")]

# ---- The API -------------------------------------------------------------------------

# What the adapters import; no page needs to have it installed.
autodoc_mock_imports = [
    "autograd",
    "dask",
    "jax",
    "onnx",
    "sklearn",
    "torch",
    "transformers",
]
autodoc_preserve_defaults = True
autodoc_typehints = "none"  # the types of docstrings say more
autosummary_generate = True
autosummary_mock_imports = autodoc_mock_imports
default_role = "name"
maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False  # the template has them
# All but what this package does otherwise: options in groups and as **options, results
# with a name or no more than a type, no section for its own sake.
numpydoc_validation_checks = {
    "all",
    *("ES01", "EX01", "SA01", "SA03", "SA04"),
    *("PR01", "PR02", "PR03", "PR04", "PR07", "PR08", "PR09", "RT02", "RT03"),
}
# Classes of libraries that are not there cannot be looked into.
numpydoc_validation_exclude = {r"attnpy\.integrations\."}

# ---- Pages and notebooks -------------------------------------------------------------

copybutton_exclude = ".linenos, .gp, .go"  # prompts, and what is printed
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are stored with outputs, and run by the tests

# ---- The gallery ---------------------------------------------------------------------

sphinx_gallery_conf = {
    "examples_dirs": "docs/pictures",
    "gallery_dirs": "docs/gallery",
    "subsection_order": [
        f"docs/pictures/{folder}"
        for folder in ("weights", "sequences", "views", "diagrams")
    ],
    "filename_pattern": r"\.py$",
    "image_scrapers": ("matplotlib", "pictures"),
    "capture_repr": (),
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "remove_config_comments": True,
}

# ---- How it looks --------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "attnpy"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_extra_path = ["_root"]  # an index.html that leads to that of docs/
# Pages without others below them have no list of those beside them.
html_sidebars = {f"docs/{page}": [] for page in ("faq", "install", "performance")}
html_favicon = "_static/logo.svg"
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {
        "text": "attnpy",
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo.svg",
    },
    "search_as_you_type": True,
    "navbar_persistent": ["search-button"],
    "header_links_before_dropdown": 5,
    "show_prev_next": True,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
}


def setup(app):
    """Leave out what fields of named tuples say of themselves."""
    app.connect(
        "autodoc-skip-member",
        lambda app, what, name, member, skip, options: (
            skip or str(member.__doc__).startswith("Alias for field number") or None
        ),
    )
