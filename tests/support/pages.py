"""Run the examples on a page of the documentation."""

import contextlib
import io
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def assert_examples_print_what_their_comments_say(page):
    """Run a page's Python in one namespace; `print(...)  # what it prints`."""
    code = "\n".join(
        re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)
    )
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.M)
    assert promised
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue().splitlines() == promised
