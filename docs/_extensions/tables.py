"""Tables of many columns are marked, so that they look as site.css says."""

from docutils import nodes

MANY = 6


def mark(app, doctree):
    """Give a class to tables of many columns."""
    for table in doctree.findall(nodes.table):
        if len(list(table.findall(nodes.colspec))) >= MANY:
            table["classes"].append("wide")


def setup(app):
    """Mark the tables of each page."""
    app.connect("doctree-read", mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
