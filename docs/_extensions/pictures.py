"""Diagrams and views of the gallery, which knows matplotlib's figures."""

import base64
import textwrap
from pathlib import Path

from attnpy.diagrams import Diagram
from attnpy.view import View

HTML = """
.. raw:: html

{}
"""
IMAGE = """
.. image:: /{}
   :alt: {}
   :class: sphx-glr-single-img
"""


def scrape(block, block_vars, gallery_conf):
    """Return what shows the diagrams and views that a block has made."""
    shown = ""
    seen = block_vars.setdefault("shown", set())
    for name, value in block_vars["example_globals"].items():
        if isinstance(value, Diagram | View) and id(value) not in seen:
            seen.add(id(value))
            path = Path(next(block_vars["image_path_iterator"]))
            shown += _show(value, path, name, gallery_conf)
    return shown


def _show(value, path, name, gallery_conf):
    """Write the picture, which is the gallery's thumbnail, and return what shows it."""
    if isinstance(value, Diagram):
        path = path.with_suffix(".svg")
        value.save(path)
        return IMAGE.format(path.relative_to(gallery_conf["src_dir"]).as_posix(), name)
    bundle = value._repr_mimebundle_()
    path.write_bytes(base64.b64decode(bundle["image/png"]))
    return HTML.format(textwrap.indent(bundle["text/html"], "   "))


def _get_sg_image_scraper():
    """Return the function, for the gallery knows this file by its name."""
    return scrape
