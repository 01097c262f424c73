"""Train a transformer to write words backwards, in less than a minute.

    python examples/train_reverse.py
    python examples/train_reverse.py --pictures pictures

An encoder and a decoder as in Vaswani et al., "Attention Is All You Need" (2017), learn
from random words of 3 to 12 letters, and are tested on words that they have not seen.
--pictures saves what the decoder attends to in the source, before and after training,
in a folder (needs matplotlib): it learns the anti-diagonal.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np

from attnpy import positions, training
from attnpy.blocks import Decoder, Encoder

LETTERS = "abcdefghijklmnopqrstuvwxyz"
START, STOP = len(LETTERS), len(LETTERS) + 1
N_TOKENS = len(LETTERS) + 2
SHORTEST, LONGEST = 3, 12
IGNORED = -100  # a target that does not count


class Reverser:
    """An encoder-decoder. Its scores are products with the tokens' embeddings."""

    def __init__(self, rng, n_layers=2, embed_dim=64, num_heads=4, hidden_dim=128):
        """Begin with random weights."""
        sizes = n_layers, embed_dim, num_heads, hidden_dim
        self.encoder = Encoder(*sizes, rng=rng)
        self.decoder = Decoder(*sizes, rng=rng)
        self.scale = np.float32(math.sqrt(embed_dim))
        table = rng.standard_normal((N_TOKENS, embed_dim), np.float32)
        self.embedding = table / self.scale  # (V, E)
        self.positions = positions.sinusoidal(LONGEST + 1, embed_dim)

    def parameters(self):
        """Return all arrays that learn, by name."""
        return _joined(
            self.embedding, self.encoder.parameters(), self.decoder.parameters()
        )

    def embed(self, tokens, offset=0):
        """Return vectors of tokens and their places, (B, L, E)."""
        places = self.positions[offset : offset + tokens.shape[1]]
        return self.embedding[tokens] * self.scale + places

    def vjp(self, source, lengths, target):
        """Return the scores of the token after each of the target, and a pullback.

        The pullback turns the gradient of the scores (B, L, V) into those of the
        parameters.
        """
        memory, encoder_pullback = self.encoder.vjp(
            self.embed(source), kv_lengths=lengths
        )
        states, decoder_pullback = self.decoder.vjp(
            self.embed(target), memory, context_lengths=lengths
        )
        # einsum has the same bits for any number of threads; @ does not.
        logits = np.einsum("ble,ve->blv", states, self.embedding)

        def pullback(grad_logits):
            grad_states = np.einsum("blv,ve->ble", grad_logits, self.embedding)
            decoder = decoder_pullback(grad_states)
            encoder = encoder_pullback(decoder.context)
            # The table is used three times: its gradient is a sum of three.
            grad = np.einsum("blv,ble->ve", grad_logits, states)
            np.add.at(grad, target, decoder.x * self.scale)
            np.add.at(grad, source, encoder.x * self.scale)
            return _joined(grad, encoder.parameters, decoder.parameters)

        return logits, pullback

    def write(self, source, lengths):
        """Return the most likely tokens one after the other, (B, LONGEST + 1)."""
        states = self.encoder(self.embed(source), kv_lengths=lengths)
        memory = self.decoder.project_context(states, context_lengths=lengths)
        caches = self.decoder.new_caches(len(source), LONGEST + 1)
        written = np.full((len(source), LONGEST + 2), START)
        for i in range(LONGEST + 1):
            last = self.embed(written[:, i : i + 1], offset=i)
            states = self.decoder(last, memory, caches=caches)  # (B, 1, E)
            logits = np.einsum("be,ve->bv", states[:, 0], self.embedding)
            written[:, i + 1] = logits.argmax(axis=-1)
        return written[:, 1:]

    def looks(self, word):
        """Return the weights of a word's cross-attention, (layers, H, L, L)."""
        source, lengths, target, _ = as_arrays([encode(word)])
        states = self.encoder(self.embed(source), kv_lengths=lengths)
        result = self.decoder(
            self.embed(target), states, context_lengths=lengths, return_weights=True
        )
        n = len(word)
        return result.cross_weights[:, 0, :, :n, :n]


def _joined(embedding, encoder, decoder):
    """Return one dict of the arrays of all parts."""
    joined = {"embedding": embedding}
    joined |= {f"encoder.{name}": array for name, array in encoder.items()}
    return joined | {f"decoder.{name}": array for name, array in decoder.items()}


def encode(word):
    """Return the letters' numbers."""
    return np.array([LETTERS.index(letter) for letter in word])


def decode(tokens):
    """Return the letters before the end."""
    n = list(tokens).index(STOP) if STOP in tokens else len(tokens)
    return "".join(LETTERS[i] if i < len(LETTERS) else "?" for i in tokens[:n])


def random_words(rng, n):
    """Return words as lists of numbers."""
    sizes = rng.integers(SHORTEST, LONGEST + 1, n)
    return [rng.integers(0, len(LETTERS), size) for size in sizes]


def as_arrays(words):
    """Return the source (B, L), its lengths, the decoder's input, and its targets.

    It reads START and the reversed word, and should write the reversed word and STOP.
    """
    source = np.zeros((len(words), LONGEST), np.int64)
    target = np.zeros((len(words), LONGEST + 1), np.int64)
    wanted = np.full((len(words), LONGEST + 1), IGNORED)
    target[:, 0] = START
    for i, word in enumerate(words):
        n = len(word)
        source[i, :n] = word
        target[i, 1 : n + 1] = wanted[i, :n] = word[::-1]
        wanted[i, n] = STOP
    return source, np.array([len(word) for word in words]), target, wanted


def share_reversed(model, words):
    """Return the share of words that the model reverses without a mistake."""
    source, lengths, _, wanted = as_arrays(words)
    written = model.write(source, lengths)
    right = (written == wanted) | (wanted == IGNORED)
    return right.all(axis=1).mean()


def train(model, rng, n_steps, batch=32, lr=5e-3, report=None):
    """Train with new words in each step; return the losses."""
    parameters = model.parameters()
    optimizer = training.AdamW(parameters, betas=(0.9, 0.98))
    losses = []
    for step in range(n_steps):
        source, lengths, target, wanted = as_arrays(random_words(rng, batch))
        logits, pullback = model.vjp(source, lengths, target)
        loss, grad_logits = training.cross_entropy(logits, wanted, ignore_index=IGNORED)
        gradients = pullback(grad_logits)
        training.clip_norm(gradients, 1.0)
        rate = training.warmup_cosine(
            step, lr=lr, warmup_steps=n_steps // 10, total_steps=n_steps
        )
        optimizer.step(gradients, rate)
        losses.append(loss)
        if report is not None:
            report(step + 1, loss)
    return losses


def draw(model, word, path):
    """Save a picture of what each head attends to."""
    try:
        import matplotlib.pyplot as plt

        from attnpy import plot
    except ImportError:
        raise SystemExit(
            "train_reverse: pictures need matplotlib: pip install matplotlib"
        ) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = plot.head_grid(model.looks(word), list(word[::-1]), list(word))
    figure.savefig(path, dpi=100)
    plt.close(figure)
    print(path)


def main(arguments=None):
    """Train, test, and show some words."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pictures", type=Path, help="a folder for pictures")
    parser.add_argument("--save", type=Path, help="a file for the parameters")
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(options.seed)
    model = Reverser(rng)
    word = "transformers"
    if options.pictures is not None:
        draw(model, word, options.pictures / "before.png")

    def report(step, loss):
        if step % 100 == 0 or step == options.steps:
            print(f"step {step:4}  loss {loss:.4f}  {time.monotonic() - begin:.0f} s")

    begin = time.monotonic()
    train(model, rng, options.steps, report=report)
    share = share_reversed(model, random_words(rng, 1000))
    print(f"{share:.1%} of 1000 new words without a mistake")
    for each in (word, "attention", "numpy"):
        source, lengths, _, _ = as_arrays([encode(each)])
        print(f"{each} -> {decode(model.write(source, lengths)[0])}")
    if options.pictures is not None:
        draw(model, word, options.pictures / "after.png")
    if options.save is not None:
        training.save(options.save, model.parameters(), step=options.steps)


if __name__ == "__main__":
    main()
