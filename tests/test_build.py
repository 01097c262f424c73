"""setup.py compiles what changed, and that only: in a copy with a core of two files."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from support.tiny import SOURCES

ROOT = Path(__file__).parent.parent
SETUP = ROOT / "setup.py"
EVERYTHING = {"csrc/answer.c", "csrc/python/module.c"}


class Tree:
    """A copy of setup.py with sources of its own."""

    def __init__(self, root):
        self.root = root

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def run(self, *where, **environment):
        """The finished process of `python setup.py build_ext`, in place by default."""
        return subprocess.run(
            [sys.executable, "setup.py", "build_ext", *(where or ["--inplace"])],
            cwd=self.root,
            env={**os.environ, "ATTNPY_WERROR": "0", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def build(self, **environment):
        """The files that a build compiles."""
        process = self.run(**environment)
        assert process.returncode == 0, process.stdout
        compiled = re.findall(r"^\[(\d+)/(\d+)\] (.*)$", process.stdout, re.MULTILINE)
        assert [int(i) for i, _, _ in compiled] == [*range(1, len(compiled) + 1)]
        assert all(int(n) == len(compiled) for _, n, _ in compiled)
        return {name for _, _, name in compiled}

    def answer(self):
        """What the extension says, once it is built."""
        return self.says("_attnpy.answer")

    def says(self, expression, folder="attnpy"):
        """The integer that an expression is where the extension in a folder is."""
        command = [sys.executable, "-c", f"import _attnpy; print(int({expression}))"]
        return int(subprocess.check_output(command, cwd=self.root / folder))


README = """\
# answer

![A picture](docs/answer.png)

[LICENSE](LICENSE) of [the page](docs/answer.md#why),
[another](https://example.org/a.md), [below](#below).
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A tree whose every file was compiled."""
    pytest.importorskip("setuptools", minversion="77")
    if not SETUP.exists():
        pytest.skip("no setup.py beside the tests")
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(compiler.split()[0]) is None:
        pytest.skip("no C compiler")
    tree = Tree(tmp_path_factory.mktemp("built"))
    (tree.root / "attnpy").mkdir()
    shutil.copy(SETUP, tree.root)
    tree.write("README.md", README)
    for path, text in SOURCES.items():
        tree.write(path, text)
    assert tree.build() == EVERYTHING
    assert tree.answer() == 42
    return tree


@pytest.fixture
def tree(built, tmp_path):
    """A copy of that tree, with its objects."""
    shutil.copytree(built.root, tmp_path / "tree")
    return Tree(tmp_path / "tree")


@pytest.mark.quick
def test_a_second_build_of_unchanged_sources_compiles_nothing(tree):
    os.utime(tree.root / "csrc/answer.h")
    assert tree.build() == set()


def test_numpy_in_another_directory_compiles_nothing(tree, tmp_path):
    real = Path(np.__file__).parent
    for directory in real.parent.glob("numpy*"):
        (tmp_path / directory.name).symlink_to(directory)
    assert tree.build(PYTHONPATH=str(tmp_path)) == set()


def test_a_changed_header_recompiles_what_includes_it_and_nothing_else(tree):
    tree.write("csrc/python/names.h", '#define NAME ("answer")\n')
    assert tree.build() == {"csrc/python/module.c"}
    tree.write("csrc/answer.h", SOURCES["csrc/answer.h"].replace("42", "43"))
    assert tree.build() == EVERYTHING
    assert tree.answer() == 43


def test_a_changed_source_recompiles_it_alone_whatever_its_date(tree):
    tree.write("csrc/answer.c", SOURCES["csrc/answer.c"].replace("ANSWER;", "7;"))
    os.utime(tree.root / "csrc/answer.c", (0, 0))
    assert tree.build() == {"csrc/answer.c"}
    assert tree.answer() == 7


def test_other_flags_get_other_objects_and_the_first_stay(tree):
    flags = os.environ.get("CFLAGS", "")
    assert tree.build(CFLAGS=f"{flags} -DANOTHER") == EVERYTHING
    assert tree.build(ATTNPY_WERROR="1") == EVERYTHING
    assert tree.build() == set()


def test_an_extension_built_in_place_is_for_tests_and_that_of_a_wheel_is_not(tree):
    assert tree.run("--build-lib", "wheel").returncode == 0
    assert tree.says("hasattr(_attnpy, 'testing')") == 1
    assert tree.says("hasattr(_attnpy, 'testing')", "wheel/attnpy") == 0


def test_a_compiler_error_fails_with_the_compilers_message_and_leaves_no_object(tree):
    broken = SOURCES["csrc/answer.c"] + "#error not today\n"
    tree.write("csrc/answer.c", broken)
    for _ in range(2):
        process = tree.run()
        assert process.returncode != 0
        assert "not today" in process.stdout
    tree.write("csrc/answer.c", broken.replace("#error", "#warning"))
    process = tree.run()
    assert process.returncode == 0
    assert "not today" in process.stdout
    assert not list(tree.root.glob("build/objects/tmp*"))


def test_without_a_compiler_one_sentence_says_what_to_do(tree):
    process = tree.run(CC="no-such-compiler")
    assert process.returncode != 0
    assert "install gcc or clang, or set CC" in process.stdout
    assert "Traceback" not in process.stdout


def test_without_headers_one_sentence_says_what_to_do_and_nothing_is_compiled(tree):
    script = """
import runpy, sys, sysconfig
import setuptools.command.build_ext
sysconfig.get_path = lambda name: "/nowhere"
sys.argv = ["setup.py", "build_ext", "--inplace"]
runpy.run_path("setup.py", run_name="__main__")
"""
    command = [sys.executable, "-c", script]
    process = subprocess.run(command, cwd=tree.root, capture_output=True, text=True)
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1] == (
        "attnpy needs Python's headers, and there is no /nowhere/Python.h: please "
        "install python3-dev, or python3-devel on Fedora and RHEL."
    )


# setup.py as Windows' Python runs it, up to its compiler.
ON_WINDOWS = """
import importlib.util, runpy, sys, sysconfig
import setuptools.command.build_ext
platform, ziglang = sys.argv[1:]
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    (ziglang or None) if name == "ziglang" else find_spec(name, package)
)
sysconfig.get_platform = lambda: platform
sys.platform = "win32"
sys.argv = ["setup.py", "build_ext", "--inplace"]
runpy.run_path("setup.py", run_name="__main__")
"""


def build_on_windows(tree, platform="win-amd64", ziglang="", **environment):
    """The finished process of a build on Windows, with the package ziglang or not."""
    shutil.rmtree(tree.root / "build")
    kept = {name: value for name, value in os.environ.items() if name != "CC"}
    return subprocess.run(
        [sys.executable, "-c", ON_WINDOWS, platform, ziglang],
        cwd=tree.root,
        env={**kept, "ATTNPY_WERROR": "0", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("platform", "sentence"),
    [
        ("win-amd64", "attnpy needs a compiler of GNU C on Windows: please `pip"),
        ("win-arm64", "attnpy needs a compiler of GNU C on Windows: please `pip"),
        ("win32", "attnpy needs a 64-bit Python on Windows, and this is one for win32"),
    ],
)
def test_on_windows_one_sentence_says_what_is_missing(tree, platform, sentence):
    process = build_on_windows(tree, platform)
    assert process.returncode == 1
    assert process.stdout.splitlines()[-1].startswith(sentence)
    assert "Traceback" not in process.stdout
    assert not (tree.root / "build" / "objects").exists()


@pytest.mark.parametrize(
    ("platform", "target"),
    [
        ("win-amd64", "x86_64-windows-gnu"),
        ("win-arm64", "aarch64-windows-gnu"),
    ],
)
def test_on_windows_the_package_ziglang_compiles(tree, platform, target):
    tree.write(  # which fails, and shows the command
        "ziglang.py",
        "import sys\nif '--version' not in sys.argv: sys.exit(str(sys.argv))",
    )
    process = build_on_windows(tree, platform, "there", PYTHONPATH=str(tree.root))
    assert process.returncode != 0
    assert f"'cc', '-target', '{target}'" in process.stdout
    assert "'-DMS_WIN64'" in process.stdout


def test_on_windows_cc_compiles_with_the_flags_of_the_environment(tree):
    cc = tree.root / "a compiler"  # of no version, which fails
    cc.write_text('#!/bin/sh\ncase "$*" in *--version) ;; *) echo "$*"; exit 1 ;; esac')
    cc.chmod(0o755)
    process = build_on_windows(tree, CC=str(cc), CFLAGS="-g -DMINE")
    assert process.returncode != 0
    moves = "-Wa,-muse-unaligned-vector-move"
    assert f"-g -DMINE {moves}" in process.stdout, process.stdout


def test_the_readme_of_a_package_has_paths_where_links_would_lead_nowhere(tree):
    command = [sys.executable, "setup.py", "--quiet", "--long-description"]
    printed = subprocess.check_output(command, cwd=tree.root, text=True)
    assert printed == (
        "# answer\n\n"
        "A picture (`docs/answer.png`)\n\n"
        "LICENSE of the page (`docs/answer.md`),\n"
        "[another](https://example.org/a.md), below.\n\n"
    )


def test_every_link_of_the_readme_is_there():
    text = (ROOT / "README.md").read_text("utf-8")
    links = re.findall(r"\]\((?!https?:|#)([^)#]*)", text)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_what_is_cited_is_this_version():
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    version = (ROOT / "attnpy" / "_version.py").read_text("utf-8")
    assert re.findall(r"^version: (.*)$", text, re.M) == re.findall('"(.*)"$', version)
