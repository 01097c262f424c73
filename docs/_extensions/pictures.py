"""Diagrams, views and thumbnails of the gallery, which knows matplotlib's figures."""

import base64
import textwrap
from pathlib import Path

from PIL import Image

from attnpy.diagrams import Diagram
from attnpy.view import View

HTML = """
.. raw:: html

{}
"""
WIDE = 1.6  # a picture of more, width by height, begins its thumbnail and does not fit
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


def fill_thumbnails(app):
    """Let the left part of wide pictures fill their thumbnails."""
    config = app.config.sphinx_gallery_conf
    width, height = config["thumbnail_size"]
    gallery = Path(app.srcdir, config["gallery_dirs"])
    for thumbnail in gallery.rglob("images/thumb/*_thumb.png"):
        name = thumbnail.name.replace("_thumb", "_001")
        with Image.open(thumbnail.parents[1] / name) as picture:
            if picture.width > WIDE * picture.height and "views" not in thumbnail.parts:
                part = (0, 0, picture.height * width // height, picture.height)
                picture.convert("RGB").crop(part).resize((width, height)).save(
                    thumbnail
                )


def _get_sg_image_scraper():
    """Return the function, for the gallery knows this file by its name."""
    return scrape
