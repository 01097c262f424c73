"""Train a small language model on Python's documentation, character by character.

    pip install -e '.[weights]' tqdm
    python examples/train_characters.py
    python examples/train_characters.py --resume

The text is that of help() about the language, which comes with Python; --text reads
another file. Ctrl-C finishes the step and saves the run in --file. --resume continues
it, with the same numbers as a run that was not stopped. Without tqdm or a terminal
there is no progress bar; nothing else changes.
"""

import argparse
import signal
import sys
import time
from pathlib import Path

import numpy as np

from attnpy import training
from attnpy.models import CausalDecoder
from attnpy.positions import Rotary

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

REPORT = 250  # steps between reports, and between checkpoints
HELD_OUT = 0.1  # of the text, its end


class Text:
    """A text as a number for each character."""

    def __init__(self, text):
        """Give each character a number, in the order of their codes."""
        self.alphabet = np.array(sorted(set(text)))
        numbers = self.encode(text)
        border = int(len(numbers) * (1 - HELD_OUT))
        self.seen, self.held_out = numbers[:border], numbers[border:]

    def encode(self, text):
        """Return the numbers of characters, (L,)."""
        return np.searchsorted(self.alphabet, np.array(list(text)))

    def decode(self, numbers):
        """Return the characters as a string."""
        return "".join(self.alphabet[numbers])


def read_text(path):
    """Return the text of a file, or that of Python's help."""
    if path is not None:
        return path.read_text(encoding="utf-8")
    from pydoc_data.topics import topics

    return "\n\n".join(topics.values())


def draw(numbers, batch, context, rng):
    """Return random pieces of a text, and each character's successor, (B, L)."""
    starts = rng.integers(0, len(numbers) - context, batch)
    stretches = numbers[starts[:, np.newaxis] + np.arange(context + 1)]
    return stretches[:, :-1], stretches[:, 1:]


class Run:
    """A model, and everything that its next step depends on."""

    def __init__(self, text, options):
        """Begin with random weights, and the parts of Llama."""
        self.text, self.options, self.n_steps = text, options, 0
        self.rng = np.random.default_rng(options.seed)
        size = options.embed_dim
        self.model = CausalDecoder(
            options.layers,
            size,
            options.heads,
            3 * size,
            vocab_size=len(text.alphabet),
            rotary=Rotary(size // options.heads),
            norm="rms",
            activation="swiglu",
            bias=False,
            rng=self.rng,
        )
        self.parameters = self.model.parameters()
        self.optimizer = training.AdamW(
            self.parameters,
            betas=(0.9, 0.95),
            weight_decay=0.1,
            no_decay=[name for name, a in self.parameters.items() if a.ndim < 2],
        )

    def step(self):
        """Learn from random pieces of the text; return the loss."""
        options = self.options
        ids, targets = draw(self.text.seen, options.batch, options.context, self.rng)
        logits, pullback = self.model.vjp(ids, logits=True)
        loss, grad_logits = training.cross_entropy(logits, targets)
        gradients = pullback(grad_logits)
        training.clip_norm(gradients, 1.0)
        rate = training.warmup_cosine(
            self.n_steps,
            lr=options.lr,
            warmup_steps=options.steps // 20,
            total_steps=options.steps,
            min_lr=options.lr / 10,
        )
        self.optimizer.step(gradients, rate)
        self.n_steps += 1
        return loss

    def held_out_loss(self):
        """Return the loss on text that the model has not seen, always the same."""
        rng, losses = np.random.default_rng(0), []
        for _ in range(4):
            ids, targets = draw(self.text.held_out, 16, self.options.context, rng)
            logits = self.model.logits(self.model(ids))
            losses.append(training.cross_entropy(logits, targets)[0])
        return sum(losses) / len(losses)

    def save(self):
        """Write a checkpoint, completely or not at all."""
        training.save(
            self.options.file,
            self.parameters,
            self.optimizer,
            step=self.n_steps,
            rng=self.rng,
        )

    def load(self):
        """Continue from a checkpoint."""
        self.n_steps = training.load(
            self.options.file, self.parameters, self.optimizer, rng=self.rng
        )

    def sample(self, prompt, seed):
        """Continue a prompt up to the length of the model's context."""
        ids = self.text.encode(prompt)
        n_new = self.options.context - len(ids)
        rng = np.random.default_rng(seed)
        new = self.model.generate(ids, n_new, temperature=0.8, rng=rng)
        return prompt + self.text.decode(new)


class Interrupts:
    """Make the first Ctrl-C only ask for the end; a second one works as usual."""

    def __enter__(self):
        """Replace the handler."""
        self.asked = False
        self.before = signal.signal(signal.SIGINT, self.ask)
        return self

    def ask(self, number, frame):
        """Note the first Ctrl-C, and restore the handler."""
        self.asked = True
        signal.signal(signal.SIGINT, self.before)

    def __exit__(self, *error):
        """Restore the handler."""
        signal.signal(signal.SIGINT, self.before)


def train(run, interrupts):
    """Train until all steps are done, time is up, or Ctrl-C."""
    options, losses = run.options, []
    end = time.monotonic() + 60 * options.minutes
    bar, say = None, print
    if tqdm is not None:
        bar = tqdm(total=options.steps, initial=run.n_steps, unit="step", disable=None)
        say = bar.write
    while run.n_steps < options.steps:
        losses.append(run.step())
        if bar is not None:
            bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
            bar.update()
        last = run.n_steps == options.steps
        stopped = not last and (interrupts.asked or time.monotonic() >= end)
        if run.n_steps % REPORT == 0 or last or stopped:
            say(
                f"step {run.n_steps:5}  loss {sum(losses) / len(losses):.3f}  "
                f"on other text {run.held_out_loss():.3f}"
            )
            losses.clear()
            run.save()
        if stopped:
            break
    if bar is not None:
        bar.close()


def parse(arguments):
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--text", type=Path, help="a file to learn from")
    add("--file", type=Path, default="characters.safetensors", help="the checkpoint")
    add("--resume", action="store_true", help="continue from the checkpoint")
    add("--steps", type=int, default=1500, help="in total (default: %(default)s)")
    add("--minutes", type=float, default=np.inf, help="stop after this time")
    add("--layers", type=int, default=4)
    add("--heads", type=int, default=4)
    add("--embed-dim", type=int, default=128)
    add("--context", type=int, default=128, help="characters that it can look back on")
    add("--batch", type=int, default=16)
    add("--lr", type=float, default=2e-3)
    add("--seed", type=int, default=0)
    add("--prompt", default="The ", help="what the samples begin with")
    add("--samples", type=int, default=3)
    return parser.parse_args(arguments)


def main(arguments=None):
    """Train, and print what the model writes."""
    options = parse(arguments)
    try:
        run = Run(Text(read_text(options.text)), options)
        if options.resume:
            run.load()
            print(f"{options.file}: going on after step {run.n_steps}")
        n_numbers = sum(array.size for array in run.parameters.values())
        with Interrupts() as interrupts:
            print(f"{n_numbers:,} numbers learn from {len(run.text.seen):,} characters")
            train(run, interrupts)
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(f"train_characters: {error}") from None
    if run.n_steps < options.steps:
        given = sys.argv[1:] if arguments is None else arguments
        again = [*given, *([] if options.resume else ["--resume"])]
        print(f"stopped; {options.file} has the run. To go on with it:")
        print(f"    python examples/train_characters.py {' '.join(again)}")
    for seed in range(options.samples):
        print(f"--- sample {seed + 1}")
        print(run.sample(options.prompt, seed))


if __name__ == "__main__":
    main()
