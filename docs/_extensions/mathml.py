"""Formulas as MathML, which browsers show by themselves: no script, no network."""

import re

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.util import logging

logger = logging.getLogger(__name__)


def visit(writer, node):
    """Write a formula, in a line or of its own."""
    block = isinstance(node, nodes.math_block)
    tex = re.sub(r"\\dots\b", r"\\ldots", node.astext())  # those that it does not know
    tex = re.sub(r"\\Big\b", "", tex)  # brackets grow by themselves
    try:
        math = latex2mathml.tex2mathml(tex, as_block=block)
    except MathError as error:
        logger.warning("%s: %s", error, node.astext(), location=node)
        raise nodes.SkipNode from None
    writer.body.append(f'<div class="math">{math}</div>' if block else math)
    raise nodes.SkipNode


def setup(app):
    """Register it as Sphinx's way to show formulas."""
    app.add_html_math_renderer("mathml", (visit, None), (visit, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
