"""Names of the package, where pages and docstrings have them as code, link to the API.

`attnpy.masks.causal` does so everywhere, with or without brackets, and under each of a
class's names; a class does by its name alone, and in docstrings the class's methods do,
and the names of the module and of the package.

And the gallery is linked to by its code's, for it is made when the site is built.
"""

import re
from collections import Counter

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

logger = logging.getLogger(__name__)
NAME = re.compile(r"[A-Za-z_][\w.]*")


class Links(SphinxPostTransform):
    """Make code that names something in the API a link to it, which there must be."""

    default_priority = 20  # after references that are written as such
    formats = ("html",)

    def run(self, **options):
        """Look at each piece of code that is not in a link or a heading."""
        objects = self.env.domains.python_domain.objects
        names = [name for name, entry in objects.items() if not entry.aliased]
        ends = Counter(name.rpartition(".")[2] for name in names)
        alone = {name.rpartition(".")[2]: name for name in names}
        alone = {end: name for end, name in alone.items() if ends[end] == 1}
        for code in list(self.document.findall(nodes.literal)):
            name = code.astext().removesuffix("()")
            if not NAME.fullmatch(name) or self._is_inside(code):
                continue
            target = self._target(code, name, objects, alone)
            if target is None and name.startswith("attnpy."):
                logger.warning("not on any page of the API: %s", name, location=code)
            elif target is not None and objects[target].docname != self.env.docname:
                self._link(code, target, objects[target])

    def _is_inside(self, code):
        parent = code.parent
        while parent and not isinstance(parent, nodes.reference | nodes.title):
            parent = parent.parent
        return parent is not None

    def _target(self, code, name, objects, alone):
        """Return which object a piece of code names, or None."""
        if name in objects:
            return name
        if name.startswith("attnpy.") or re.match("[A-Z][A-Z0-9]*[a-z]", name):
            *_, owner, end = f".{name}".split(".")
            member = f"{alone.get(owner)}.{end}"  # of a class
            return alone.get(end, member if member in objects else None)
        for place in code.get("near", ()):
            full = f"{place}.{name}"
            if full in objects and objects[full].objtype != "module":
                return full
        return None

    def _link(self, code, target, entry):
        link = make_refnode(
            self.app.builder,
            self.env.docname,
            entry.docname,
            entry.node_id,
            code.deepcopy(),
            target,
        )
        code.replace_self(link)


def name(role, rawtext, text, lineno, inliner, options=None, content=None):
    """Single backticks: code that knows which class and module it is in."""
    around = inliner.document.settings.env.ref_context
    module, own = around.get("py:module"), around.get("py:class")
    near = [own and f"{module}.{own}", module, "attnpy"] if module else []
    return [nodes.literal(rawtext, text, near=near)], []


def lead_to_gallery(app, doctree):
    """Make links to the head of the gallery's code links to the gallery."""
    for node in doctree.findall(addnodes.pending_xref):
        if node.get("reftarget") == "docs/pictures/GALLERY_HEADER":
            node["reftarget"] = "docs/gallery/index"


def setup(app):
    """Register all of this, and single backticks as code."""
    app.add_post_transform(Links)
    app.connect("doctree-read", lead_to_gallery)
    app.add_role("name", name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
