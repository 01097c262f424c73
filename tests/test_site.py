"""The documentation site: what has to be on its pages is there, without building it.

`python docs/serve.py` builds it, which looks at every link and every docstring.
"""

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from support import pages

import attnpy

ROOT = Path(attnpy.__file__).parent
API = pages.DOCS / "api"
GALLERY = sorted(pages.DOCS.glob("pictures/*/*.py"))


def module_of(path):
    name = str(path.relative_to(ROOT.parent).with_suffix("")).replace("/", ".")
    return name.removesuffix(".__init__")


def names_in(path):
    """What a file says is public, whether or not it can be imported here."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets) == "__all__":
            return ast.literal_eval(node.value)
    return []


PUBLIC = {
    module_of(path): names_in(path)
    for path in sorted(ROOT.rglob("*.py"))
    if not re.search(r"/_[a-z]", str(path.relative_to(ROOT.parent)))
}


@cache
def listed():
    """The pairs of a module and a name that the pages of the API have."""
    found = []
    for path in sorted(API.glob("*.rst")):
        module = None
        for line in path.read_text("utf-8").splitlines():
            if line.startswith(".. currentmodule:: "):
                module = line.split(":: ")[1]
            elif match := re.fullmatch(r"(?:   |\.\. data:: )(\w+)", line):
                found.append((module, match[1]))
    return [(module, name) for module, name in found if module]


def is_listed(module, name):
    """Whether a name, or what it is a name of, has a page."""
    if (module, name) in listed():
        return True
    thing = getattr(importlib.import_module(module), name)
    others = [other for other, same in listed() if same == name]
    return any(
        getattr(importlib.import_module(other), name) is thing for other in others
    )


@pytest.mark.quick
@pytest.mark.parametrize("module", [name for name in PUBLIC if PUBLIC[name]])
def test_every_public_name_is_on_a_page_of_the_api(module):
    assert [name for name in PUBLIC[module] if not is_listed(module, name)] == []


@pytest.mark.quick
def test_a_name_that_is_on_no_page_is_found():
    # Shows that the test above can fail.
    assert not is_listed("attnpy.masks", "np")


@pytest.mark.quick
def test_every_name_on_a_page_is_public_and_there_once():
    assert [pair for pair in listed() if pair[1] not in PUBLIC[pair[0]]] == []
    assert len(set(listed())) == len(listed())


@pytest.mark.quick
def test_every_public_module_has_its_own_words_on_a_page():
    text = "\n".join(path.read_text("utf-8") for path in API.glob("*.rst"))
    told = set(re.findall(r"^\.\. automodule:: (.*)$", text, re.M))
    assert told >= {f"attnpy.{name}" for name in attnpy._MODULES}


@pytest.mark.quick
def test_every_page_of_the_api_is_in_its_table():
    index = (API / "index.rst").read_text("utf-8")
    there = {path.stem for path in API.glob("*.rst")} - {"index"}
    assert set(re.findall(r"^   (\w+)$", index, re.M)) == {"attnpy", *there}


# ---- The gallery ---------------------------------------------------------------------


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_the_code_of_a_picture_runs(path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    exec(path.read_text("utf-8"), {})
    pyplot.close("all")


@pytest.mark.quick
@pytest.mark.parametrize("module", ["plot", "plot.statistics", "view", "diagrams"])
def test_every_kind_of_picture_is_in_the_gallery(module):
    code = "\n".join(path.read_text("utf-8") for path in GALLERY)
    package, _, own = f"attnpy.{module}".rpartition(".")
    if f"from {package} import {own}\n" in code:
        drawn = re.findall(rf"\b{own}\.(\w+)\(", code)
    else:
        imported = re.findall(rf"^from attnpy\.{module} import (.*)$", code, re.M)
        drawn = ", ".join(imported).split(", ")
    functions = {name for name in PUBLIC[f"attnpy.{module}"] if name.islower()}
    assert functions <= set(drawn)


# ---- Pages ---------------------------------------------------------------------------


VIEWS = [path for path in GALLERY if path.parent.name == "views"]


@pytest.mark.quick
@pytest.mark.parametrize("path", VIEWS, ids=lambda path: path.stem)
def test_a_view_names_its_small_picture(path):
    named = re.findall(
        r'^# sphinx_gallery_thumbnail_path = "(.*)"$', path.read_text(), re.M
    )
    assert named == [f"docs/pictures/views/{path.stem}.png"]
    assert (ROOT.parent / named[0]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.quick
def test_the_first_page_prints_what_its_comments_say():
    pytest.importorskip("matplotlib").use("Agg")
    pages.assert_examples_print_what_their_comments_say("index.md")


@pytest.mark.quick
def test_every_notebook_and_adapter_is_in_a_table():
    tutorials = (pages.DOCS / "tutorials" / "index.md").read_text("utf-8")
    notebooks = sorted((ROOT.parent / "notebooks").glob("*.ipynb"))
    assert re.findall(r"/notebooks/(.*?)\)", tutorials) == [
        path.name for path in notebooks
    ]
    index = pages.DOCS / "integrations" / "index.md"
    adapters = {path.name for path in index.parent.glob("*.md")} - {"index.md"}
    assert set(re.findall(r"\]\((\w+\.md)\)", index.read_text("utf-8"))) == adapters


# ---- Drawings ------------------------------------------------------------------------


@pytest.mark.quick
def test_the_logo_and_the_bars_are_what_their_tool_draws():
    done = subprocess.run(
        [sys.executable, pages.DOCS.parent / "tools" / "drawings.py", "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.quick
def test_synonyms_are_of_pages_that_are_there():
    text = (pages.DOCS / "_extensions" / "synonyms.py").read_text("utf-8")
    found = re.findall(r'^    "(docs/[\w/]+)": ', text, re.M)
    assert len(found) > 20
    made = {"docs/gallery/index"}  # by the site
    there = [name for name in found if (pages.DOCS.parent / f"{name}.md").exists()]
    assert set(found) - set(there) <= made
