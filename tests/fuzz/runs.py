"""Files of training runs, damaged: headers, states of generators, steps, arrays.

`load` must say what is wrong and change nothing, or load what a plain reader reads.
Whatever it has loaded can be drawn from, trained, saved and loaded again.
"""

import copy
import json
import tempfile
from pathlib import Path

import numpy as np

from attnpy import training
from fuzz.files import damaged, raised, read_plainly
from fuzz.findings import Finding
from fuzz.values import maybe, numbers, one_of

KINDS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
POSITIONS = (-(2**31), -1, 0, 4, 5, 624, 625, 700, 10**8, 2**31 - 1)
DTYPES = ("float32", "float64", "bfloat16")
SHAPES = ((), (3,), (4, 5), (0, 2))
# In the place of any part of a state, a header or a step.
WRONG = (
    None, True, False, 0, 1, -1, 4, 5, 624, 625, 10**8, -(2**31), 2**31, 2**32, 2**63,
    2**64, 2**128, 10**40, 0.0, 1.5, float("nan"), float("inf"), "", "1", "PCG64", [],
    [0], [-1], [2**64] * 4, [1] * 624, [[1, 2]], {}, {"state": 1}, {"state": {}},
    {"state": {"state": 1, "inc": 1}},
)  # fmt: skip
TEXTS = (
    "", "-1", "0", "1e3", "9" * 20, "9" * 5000, "\u0663", "null", "[" * 5000, "{}",
    '{"a":' * 5000, "[" * 900 + "]" * 900,
)  # fmt: skip


class Run:
    """Parameters, an optimizer of them, and a generator."""

    def __init__(self, rng, kind, shapes):
        self.parameters = {
            name: np.asarray(numbers(rng, shape, np.dtype(dtype)))
            for name, (shape, dtype) in shapes.items()
        }
        self.optimizer = training.AdamW(self.parameters)
        seed = int(rng.integers(2**32))
        self.rng = np.random.Generator(getattr(np.random, kind)(seed))
        self.rng.random(int(rng.integers(9)), np.float32)

    def bits(self):
        arrays = self.parameters | self.optimizer.state_dict()
        content = [(name, array.tobytes()) for name, array in sorted(arrays.items())]
        return content, repr(self.rng.bit_generator.state)

    def go_on(self):
        """What may be done after a load: with wrong numbers, but never a crash."""
        for dtype in (np.float32, np.float64):
            self.rng.random(1500, dtype)
        self.rng.integers(0, 2**32, 1500, np.uint32)
        self.rng.bytes(9)
        with np.errstate(all="ignore"):
            self.optimizer.step({n: x.copy() for n, x in self.parameters.items()})


def run(rng, verbose=False):
    """Run a case and return what came of it."""
    shapes = {name: (one_of(rng, SHAPES), one_of(rng, DTYPES)) for name in "Wb"}
    kind = one_of(rng, KINDS)
    first, second = Run(rng, kind, shapes), Run(rng, kind, shapes)
    asked = {"optimizer": bool(maybe(rng, 0.8)), "rng": bool(maybe(rng, 0.8))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        training.save(path, first.parameters, first.optimizer, step=7, rng=first.rng)
        data = changed(rng, path.read_bytes())
        path.write_bytes(data)
        if verbose:
            print(kind, shapes, asked, len(data), data[:3000], flush=True)
        return judged(second, path, data, asked)


def judged(second, path, data, asked):
    """Load a file and look at what has become of the run."""
    before = second.bits()
    more = {name: getattr(second, name) for name, wanted in asked.items() if wanted}

    def load():
        return training.load(path, second.parameters, **more)

    good, step = raised(load)
    if not good:
        if second.bits() != before:
            raise Finding("load: an error, and another run", f"{step!r}")
        if len(str(step)) > 2000:
            raise Finding("load: a message that nobody reads", f"{step!r:.3000}")
        return "errors"
    if type(step) is not int or not 0 <= step <= 2**53:
        raise Finding("load: another step", f"{step!r:.300}")
    compare(second, read_plainly(data))
    check_positions(second.rng.bit_generator.state)
    again = copy.deepcopy(second)
    training.save(path, second.parameters, step=step, rng=second.rng)
    training.load(path, again.parameters, rng=again.rng)
    if again.bits() != second.bits():
        raise Finding("save: another run than the one that was loaded")
    again.go_on()
    return "compared"


def compare(second, arrays):
    """The run has what the file has."""
    for name, array in second.parameters.items():
        read = arrays.get(name)  # of dtypes that are read plainly
        if read is None or read.dtype != array.dtype:
            continue
        if read.tobytes() != array.tobytes():
            raise Finding("load: not what the file has", name)


def check_positions(state):
    """NumPy reads its buffers from here on, and checks nothing."""
    inner = state["state"]
    if not 0 <= state.get("buffer_pos", 0) <= 4 or not 0 <= inner.get("pos", 0) <= 624:
        raise Finding("load: a generator that reads outside of its buffer", f"{state}")


def changed(rng, data):
    """The bytes of a file with other ones, or with another header."""
    if maybe(rng, 0.3):
        return damaged(rng, data)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    metadata = header["__metadata__"]
    way = int(rng.integers(6))
    if way == 0:
        metadata["rng"] = json.dumps(mutated(rng, json.loads(metadata["rng"])))
    elif way == 5:
        state = json.loads(metadata["rng"])
        for part, name in ((state, "buffer_pos"), (state["state"], "pos")):
            if name in part:
                part[name] = one_of(rng, POSITIONS)
        metadata["rng"] = json.dumps(state)
    elif way == 1:
        text = damaged(rng, metadata["rng"].encode())
        metadata["rng"] = text.decode("utf-8", "replace")
    elif way == 2:
        metadata[one_of(rng, ("rng", "step"))] = one_of(rng, TEXTS)
    elif way == 3:
        header = mutated(rng, header)
    else:
        names = [name for name in header if name != "__metadata__"]
        one, other = one_of(rng, names), one_of(rng, names)
        header[one], header[other] = header[other], header[one]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def mutated(rng, value):
    """The value with one part of it replaced, left out, or with another one beside."""
    if not isinstance(value, (dict, list)) or not value or maybe(rng, 0.1):
        return one_of(rng, WRONG)
    value = copy.copy(value)
    places = list(value) if isinstance(value, dict) else range(len(value))
    at = one_of(rng, places)
    way = rng.random()
    if way < 0.1:
        del value[at]
    elif way < 0.2 and isinstance(value, dict):
        value["more"] = value[at]
    elif way < 0.2:
        value.append(value[at])
    else:
        value[at] = mutated(rng, value[at])
    return value
