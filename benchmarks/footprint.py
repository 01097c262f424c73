"""How long an import takes, and how large an installation is."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from attnpy._measure import quartiles

from .measure import at_most

MODULES = ("attnpy", "torch", "onnxruntime")
# Without anything of benchmarks/, which imports attnpy.
IMPORT = """
import sys, time
sys.path[:] = {path!r}
import numpy
begin = time.perf_counter()
import {module}
print(time.perf_counter() - begin)
"""


def measure_footprint(systems, n_rounds):
    """Three rows: milliseconds of an import beyond NumPy's, and installed sizes."""
    modules = [module for module in MODULES if module in systems]
    rounds = [[import_seconds(module) for module in modules] for _ in range(n_rounds)]
    seconds = zip(modules, zip(*rounds, strict=True), strict=True)
    times = {name: [1e3 * t for t in quartiles(x)] for name, x in seconds}
    sizes = {module: [package_bytes(module) / 1e6] * 3 for module in modules}
    extension = Path(importlib.util.find_spec("attnpy._attnpy").origin)
    size = extension.stat().st_size / 1e6
    return [
        row("import over NumPy's, ms", times, [at_most("ms", 15, times["attnpy"][1])]),
        row("installed, MB", sizes),
        row("extension, MB", {"attnpy": [size] * 3}, [at_most("MB", 1.6, size)]),
    ]


def row(name, values, *targets):
    return {"group": "footprint", "name": name, "values": values, "targets": targets}


def import_seconds(module):
    """How long a fresh process imports a module after NumPy."""
    code = IMPORT.format(path=sys.path, module=module)
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)


def package_bytes(module):
    """The size of a package's files, without what Python caches."""
    folder = Path(importlib.util.find_spec(module).origin).parent
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(x.stat().st_size for x in files if "__pycache__" not in x.parts)
