"""How fast a model is read from a warm file cache, and how much memory that takes.

Each time in a fresh process: what an earlier one freed would hide what is taken.
"""

import contextlib
import importlib
import tempfile
import time
from pathlib import Path

import attnpy
from attnpy._measure import quartiles

from .. import children, measure, memory
from . import folders, gguf_files

# What --quick makes of Qwen2-0.5B: as wide, with less of everything.
QUICK = {"num_hidden_layers": 2, "vocab_size": 10000}
LEAST_RATE, MOST_MEMORY = 1.0, 1.15  # GB/s of weights; times the weights
# Of a file whose integers are kept: the model over the file, and the peak of reading.
MOST_KEPT, MOST_PEAK = 1.15, 1.2


def rows(quick):
    """(name, configuration, dtype) for each dtype of the files."""
    config = {**folders.CONFIGS["Qwen2-0.5B"], **(QUICK if quick else {})}
    for dtype in ("float32", "bfloat16"):
        name = "Qwen2-0.5B" + (", 2 layers" if quick else "")
        yield f"{name}, {dtype}", config, dtype


def measure_loading(name, config, dtype, n_rounds):
    """One row: seconds, GB/s of weights, and memory over the weights."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory, "model")
        children.once(folders.write, folder, config, dtype)
        children.once(load, folder)  # the file is in the cache now
        found = [children.once(load, folder) for _ in range(n_rounds)]
    values = {what: quartiles([one[what] for one in found]) for what in found[0]}
    return {
        "group": "loading",
        "name": name,
        "values": values,
        "targets": [
            [measure.at_least("GB/s", LEAST_RATE, values["GB/s"][1])],
            [measure.at_most("peak over weights", MOST_MEMORY, values["peak"][1])],
        ],
    }


def measure_integers(name, dtype, n_rounds):
    """One row of a GGUF file whose integers are kept: memory over the file."""
    path = gguf_files.path(name, dtype)
    found = [children.once(load_integers, path) for _ in range(n_rounds)]
    values = {what: quartiles([one[what] for one in found]) for what in found[0]}
    model, peak = values["model"][1], values["peak"][1]
    return {
        "group": "gguf",
        "name": f"{name} {dtype}, memory over the file",
        "values": values,
        "targets": [
            [measure.at_most("model over file", MOST_KEPT, model)],
            [measure.at_most("peak over file", MOST_PEAK, peak)],
        ],
    }


# ---- In the process that is measured -------------------------------------------------


def load(folder):
    """Read the model; what is imported for it does not count."""
    read = attnpy.models.CausalDecoder.from_pretrained
    for package in ("safetensors", "ml_dtypes"):
        with contextlib.suppress(ImportError):
            importlib.import_module(package)
    before, anonymous = memory.forget_highest(), memory.status("RssAnon")
    begin, cpu_begin = time.perf_counter(), time.process_time()
    model = read(folder, dtype="auto")
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
    peak, anonymous = memory.highest(), memory.status("RssAnon") - anonymous
    n_bytes = sum(array.nbytes for array in model.parameters().values())
    return {
        "s": seconds,
        "CPU s": cpu,  # which other programs change less
        "GB/s": n_bytes / 1e9 / seconds,
        "peak": (peak - before) / n_bytes,
        "anonymous": anonymous / n_bytes,
    }


def load_integers(path):
    """Read the model as `load` does."""
    read = attnpy.models.CausalDecoder.from_gguf
    importlib.import_module("gguf")
    before, anonymous = memory.forget_highest(), memory.status("RssAnon")
    begin = time.perf_counter()
    model = read(path, weights="file")
    seconds, peak = time.perf_counter() - begin, memory.highest()
    resident = memory.status("RssAnon") - anonymous
    del model
    n_bytes = path.stat().st_size
    return {
        "s": seconds,
        "model": resident / n_bytes,
        "peak": (peak - before) / n_bytes,
    }
