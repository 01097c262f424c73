"""Signals and kills at random moments while files are written and read.

The file is the old one or the new one, complete. Nothing else is left, or what a killed
process has left is in nobody's way. A model's folder has files of two models at most,
each of them complete. A load that is interrupted leaves one run or the other. The
command line ends with the signal's status and without a word. Folders are read while
another process saves into them.
"""

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
from support import encoder_decoders, families, pictures, readers

from attnpy import QuantizedWeight, blocks, diagrams, models, training
from attnpy import __main__ as command_line
from attnpy.view import head_view
from fuzz.findings import Finding
from fuzz.runs import KINDS, Run
from fuzz.signals import Disturbance
from fuzz.values import maybe, one_of

N_CALLS = 8  # of a case, each disturbed at another moment
KEYS = ("float32", "float64", "bfloat16")
MODELS = (
    (models.BertEncoder, families.BERT),
    (models.CausalDecoder, families.LLAMA),
    (models.EncoderDecoder, encoder_decoders.T5),
    (models.ImageEncoder, pictures.VIT),
    (models.ImageTextModel, pictures.CLIP),
)


def run(rng, verbose=False):
    """Run a case and return what came of it."""
    kinds = run_disturbed, run_disturbed, run_load, run_state, run_killed, run_folder
    kind = one_of(rng, (*kinds, run_read, run_command))
    if verbose:
        print(kind.__name__, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        return kind(rng, Path(folder))


# ---- What writes files: functions of a path, for an old and a new content ------------


def writers_of_runs(rng):
    size = one_of(rng, (3, 1000, 100_000, 1_000_000))
    for step in (1, 2):
        weight, own = rng.standard_normal(size, np.float32), np.random.default_rng(step)
        yield lambda path, step=step, weight=weight, own=own: training.save(
            path, {"W": weight}, step=step, rng=own
        )


def writers_of_views(rng):
    n = one_of(rng, (2, 20))
    for _ in range(2):
        weights = rng.dirichlet(np.ones(n), (2, n)).astype(np.float32)
        yield head_view(weights, ["word"] * n).save


def writers_of_diagrams(rng):
    yield diagrams.encoder_decoder().save
    yield diagrams.multi_head_attention().save


def writers_of_prefixes(rng):
    model = models.CausalDecoder(
        2, 16, 2, 16, vocab_size=9, max_length=1000, dtype=one_of(rng, KEYS), rng=rng
    )
    for _ in range(2):
        yield model.prefill(rng.integers(0, 9, one_of(rng, (1, 900)))).save


def quantised(rng):
    """A layer of codes of any bits."""
    layer, bits = blocks.Linear(200, 60), one_of(rng, (8, 6, 5, 4))
    low, high = (-128, 128) if bits == 8 else (0, 1 << bits)
    layer.W = QuantizedWeight.from_blocks(
        rng.integers(low, high, (200, 60)), np.ones((7, 60), np.float32), bits=bits
    )
    return layer


def writers_of_states(rng):
    for _ in range(2):
        state = quantised(rng).state_dict()
        yield lambda path, state=state: training.save(path, state)


def pair(rng, folder):
    """Two writers, and what they write."""
    makers = (writers_of_runs, writers_of_runs, writers_of_views, writers_of_diagrams,
              writers_of_prefixes, writers_of_states)  # fmt: skip
    writers = list(one_of(rng, makers)(rng))
    contents = []
    for write in writers:
        write(folder / "content")
        contents.append((folder / "content").read_bytes())
    (folder / "content").unlink()
    return writers, contents


def check(folder, allowed, left=()):
    """The folder has a file with one of these contents, and what may be left."""
    names = set(os.listdir(folder))
    path = folder / "file"
    content = path.read_bytes() if path.exists() else None
    if content not in allowed:
        raise Finding("saves: a file that nobody wrote", f"{content!r:.300}")
    if more := names - {"file", *left}:
        raise Finding("saves: files left", f"{more}")
    return content


# ---- Handlers that raise, return or call, in this process ----------------------------


@contextlib.contextmanager
def disturbed(rng):
    """Within this, signals do something at random moments of calls."""
    disturbance = Disturbance(rng)
    previous = signal.signal(signal.SIGALRM, disturbance)
    try:
        yield disturbance
    finally:
        signal.signal(signal.SIGALRM, previous)


def run_disturbed(rng, folder):
    (write_old, write), (old, new) = pair(rng, folder)
    path, n_raised = folder / "file", 0
    start = time.perf_counter()
    write(path)
    seconds = time.perf_counter() - start
    with disturbed(rng) as disturbance:
        for _ in range(N_CALLS):
            write_old(path)
            delay = max(1e-6, seconds * rng.uniform(0, 1.1))
            _, error = disturbance.during(lambda: write(path), delay)
            n_raised += error is not None
            check(folder, (old, new) if error else (new,))
    return "raised" if n_raised else "completed"


def run_load(rng, folder):
    """A load: the run is the one before it, or the one of the file."""
    kind = one_of(rng, KINDS)
    shapes = {f"W{i}": ((one_of(rng, (1, 2000)),), "float32") for i in range(4)}
    first, second, path = Run(rng, kind, shapes), Run(rng, kind, shapes), folder / "run"
    other = folder / "other"
    for which, where in ((first, path), (second, other)):
        training.save(where, which.parameters, which.optimizer, rng=which.rng)
    old, new, n_raised = second.bits(), first.bits(), 0

    def load(where=path):
        training.load(where, second.parameters, second.optimizer, rng=second.rng)

    start = time.perf_counter()
    load(other)
    seconds = time.perf_counter() - start
    with disturbed(rng) as disturbance:
        for _ in range(N_CALLS):
            delay = max(1e-6, seconds * rng.uniform(0, 1.1))
            _, error = disturbance.during(load, delay)
            n_raised += error is not None
            if second.bits() not in ((old, new) if error else (new,)):
                raise Finding(
                    "load: parts of two runs after an interrupt", f"{error!r}"
                )
            load(other)
            if second.bits() != old:
                raise Finding("load: another run after an interrupted load")
    return "raised" if n_raised else "completed"


def run_state(rng, folder):
    """A state of quantised matrices: all of them are those before it, or its own."""
    bits, both = one_of(rng, (8, 4)), []
    for _ in range(2):
        layer = blocks.DecoderLayer(48, 4, 96, rng=rng)
        layer.quantize(bits=bits)
        both.append(layer)
    layer = both[0]
    states = [
        {name: array.copy() for name, array in other.state_dict().items()}
        for other in both
    ]
    contents = [bits_of(state) for state in states]
    start, n_raised = time.perf_counter(), 0
    layer.load_state_dict(states[1])
    seconds = time.perf_counter() - start
    with disturbed(rng) as disturbance:
        for _ in range(N_CALLS):
            layer.load_state_dict(states[0])
            delay = max(1e-6, seconds * rng.uniform(0, 1.1))
            _, error = disturbance.during(
                lambda: layer.load_state_dict(states[1]), delay
            )
            n_raised += error is not None
            if bits_of(layer.state_dict()) not in (contents if error else contents[1:]):
                raise Finding("load_state_dict: parts of two states", f"{error!r}")
    return "raised" if n_raised else "completed"


def bits_of(state):
    return [(name, array.tobytes()) for name, array in state.items()]


# ---- Processes that are killed -------------------------------------------------------


def forked(work):
    """Start a process that does this and tells when it begins; its number."""
    begun, begins = os.pipe()
    number = os.fork()
    if number == 0:
        status = 1
        try:
            os.write(begins, b"!")
            status = work()
        finally:
            os._exit(status)
    os.close(begins)
    os.read(begun, 1)
    os.close(begun)
    return number


def run_killed(rng, folder):
    """Saves without an end, and a kill: the next save is as if nothing had been."""
    (write_old, write), contents = pair(rng, folder)
    path = folder / "file"

    def work():
        while True:
            write(path)
            write_old(path)

    left = set()
    for _ in range(N_CALLS):
        number = forked(work)
        time.sleep(rng.uniform(0, 0.01))
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        new = {name for name in os.listdir(folder) if name.endswith(".tmp")} - left
        if len(new) > 1:
            raise Finding("saves: several files of one killed process", f"{new}")
        left |= new
        check(folder, (None, *contents), left)
        write(path)
        check(folder, contents[1:], left)
        path.unlink()
    return "left some" if left else "left none"


def run_folder(rng, folder):
    """A model into a folder that has another one, disturbed and killed."""
    kind, config = one_of(rng, MODELS)
    both = [kind.from_config(config, rng=np.random.default_rng(i)) for i in range(2)]
    contents = []
    for i, model in enumerate(both):
        place = folder / f"{i}"
        start = time.perf_counter()
        model.save_pretrained(place)
        seconds = time.perf_counter() - start
        contents.append({file.name: file.read_bytes() for file in place.iterdir()})
    names, place, left = set(contents[0]), folder / "model", set()

    def judge(allowed):
        there = {file.name for file in place.iterdir()} if place.exists() else set()
        if more := there - names - left:
            raise Finding("saves: files left in a folder", f"{more}")
        for name in there - left:
            if (place / name).read_bytes() not in [each[name] for each in allowed]:
                raise Finding("saves: a model's file that nobody wrote", name)
        return there

    def work():
        both[1].save_pretrained(place)
        return 0

    with disturbed(rng) as disturbance:
        for _ in range(N_CALLS):
            both[0].save_pretrained(place)
            judge(contents[:1])
            delay = max(1e-6, seconds * rng.uniform(0, 1.1))
            if maybe(rng):
                child = forked(work)
                time.sleep(delay)
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                left |= {n for n in os.listdir(place) if n.endswith(".tmp")}
                judge(contents)
                continue
            _, error = disturbance.during(work, delay)
            judge(contents if error else contents[1:])
    return f"folder {kind.__name__}"


WRAPPERS = (
    "CrossEncoder", "FillMask", "ImageClassifier", "ImageTextEncoder",
    "MultiVectorEncoder", "SentenceEncoder", "TextClassifier", "TokenClassifier",
)  # fmt: skip


def run_read(rng, folder):
    """A folder is read while a process saves one model and another one into it."""
    name, place = one_of(rng, WRAPPERS), folder / "model"
    place.mkdir()
    readers.WRITE[name](place)
    first, second = (readers.read(name, place, packed=False) for _ in range(2))
    for array in second.model.parameters().values():
        array *= np.float32(0.5)

    def results():
        result = readers.CALLS[name](readers.read(name, place))
        return result.tobytes() if isinstance(result, np.ndarray) else repr(result)

    expected = []
    for encoder in (first, second):
        encoder.model.save_pretrained(place)
        expected.append(results())

    def work():
        while True:
            first.model.save_pretrained(place)
            second.model.save_pretrained(place)

    child = forked(work)
    try:
        for _ in range(N_CALLS):
            if results() not in expected:
                raise Finding(f"{name}: a model that nobody saved")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return f"read {name}"


def run_command(rng, folder):
    """The command line, which is told to end."""
    n = one_of(rng, (3, 300))
    arrays = rng.standard_normal((3, 2, n, 8)).astype(np.float32)
    query, key, value = arrays
    np.savez(folder / "in.npz", query=query, key=key, value=value)
    arguments = ["run", str(folder / "in.npz"), "-o", str(folder / "file")]
    said = folder / "said"

    def work():
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(file, 2)
        os.dup2(null, 1)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        return command_line.main(arguments)

    for _ in range(N_CALLS):
        number = one_of(rng, (signal.SIGTERM, signal.SIGHUP))
        child = forked(work)
        time.sleep(rng.uniform(0, 0.006))
        os.kill(child, number)
        status = os.waitpid(child, 0)[1]
        # Before and after the command, the signal ends the process.
        code = os.waitstatus_to_exitcode(status)
        words = said.read_text() if said.exists() else ""
        if code not in (0, 128 + number, -number) or words:
            raise Finding(f"run: exit status {code} after signal {number}", words)
        more = set(os.listdir(folder)) - {"in.npz", "file", "said"}
        if more:
            raise Finding("run: files left", f"{more}")
        if (folder / "file").exists():
            with np.load(folder / "file") as results:
                results["output"]
            (folder / "file").unlink()
        elif code == 0:
            raise Finding("run: no file")
    return "ended"
