"""Tables are marked by what they hold, so that they look as site.css says."""

from docutils import nodes

MANY = 6  # columns, of which each row is a line
SEVERAL, LONG = 4, 40  # columns of sentences, which a narrow screen would squeeze


def mark(app, doctree):
    """Give a class to tables of many columns, and to those of several long ones."""
    for table in doctree.findall(nodes.table):
        n_columns = len(list(table.findall(nodes.colspec)))
        longest = max(len(cell.astext()) for cell in table.findall(nodes.entry))
        if n_columns >= MANY:
            table["classes"].append("wide")
        elif n_columns >= SEVERAL and longest > LONG:
            table["classes"].append("long")


def setup(app):
    """Mark the tables of each page."""
    app.connect("doctree-read", mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
