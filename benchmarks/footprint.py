"""How long an import takes, and how large an installation is."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path

from attnpy._measure import quartiles

from . import children, measure

MODULES = {"attnpy": "attnpy", "torch": "torch", "onnxruntime": "onnxruntime"}


def measure_footprint(systems, n_rounds):
    """Two rows: milliseconds of an import beyond NumPy's, and installed size."""
    modules = {name: module for name, module in MODULES.items() if name in systems}
    times = {name: [] for name in modules}
    for _ in range(n_rounds):
        for name, module in modules.items():
            times[name].append(children.output(__name__, module)["seconds"])
    milliseconds = {name: [1e3 * t for t in quartiles(x)] for name, x in times.items()}
    sizes = {name: package_bytes(module) / 1e6 for name, module in modules.items()}
    extension = extension_bytes() / 1e6
    time_target = measure.at_most("ms", 15, milliseconds["attnpy"][1])
    size_target = measure.at_most("MB", 1, extension)
    return [
        row("import over NumPy's, ms", milliseconds, [[time_target]]),
        row("installed, MB", {name: [x] * 3 for name, x in sizes.items()}, []),
        row("extension, MB", {"attnpy": [extension] * 3}, [[size_target]]),
    ]


def row(name, values, targets):
    return {
        "group": "footprint",
        "name": name,
        "values": values,
        "targets": targets,
    }


def package_bytes(module):
    """The size of a package's files, without what Python caches."""
    folder = Path(importlib.util.find_spec(module).origin).parent
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(x.stat().st_size for x in files if "__pycache__" not in x.parts)


def extension_bytes():
    """The size of attnpy's compiled extension."""
    return Path(importlib.util.find_spec("attnpy._attnpy").origin).stat().st_size


def main(arguments):
    """In a fresh process: seconds to import a module after NumPy."""
    import numpy  # noqa: F401

    begin = time.perf_counter()
    __import__(arguments[0])
    print(json.dumps({"seconds": time.perf_counter() - begin}))
