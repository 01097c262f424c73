"""The directive `every-name`: all that is public, each name with its first sentence.

It takes the names from the other pages of its folder, so that they stand there only.
"""

import re
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

BLOCK = re.compile(
    r"^\.\. (?:currentmodule:: (\S+)|autosummary::\n((?:   .*\n|\n)*))", re.M
)


def names_on(page):
    """Return pairs of a module and the names of it on a page, in the page's order."""
    module, found = "", []
    for current, listed in BLOCK.findall(page.read_text("utf-8") + "\n"):
        module = current or module
        names = re.findall(r"^   ([A-Za-z]\w*)$", listed, re.M)
        if names:
            found.append((module, names))
    return found


class EveryName(SphinxDirective):
    """A list for each page that is named: its title, and the names on it."""

    has_content = True

    def run(self):
        """Return the lists."""
        folder = Path(self.env.doc2path(self.env.docname)).parent
        made = []
        for stem in self.content:
            page = folder / f"{stem}.rst"
            self.env.note_dependency(str(page))
            title = page.read_text("utf-8").splitlines()[0]
            lines = []
            for module, names in names_on(page):
                lines += [f".. currentmodule:: {module}", "", ".. autosummary::"]
                lines += ["   :nosignatures:", ""]
                lines += [f"   {name}" for name in names] + [""]
            section = nodes.section(ids=[nodes.make_id(f"every-{stem}")])
            section += nodes.title(text=title)
            self.state.nested_parse(
                StringList(lines, source=str(page)), self.content_offset, section
            )
            made.append(section)
        return made


def setup(app):
    """Add the directive."""
    app.add_directive("every-name", EveryName)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
