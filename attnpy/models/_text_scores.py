"""What classes have in common that score texts by a model with a classifier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from attnpy import _checks, _dtypes, _progress
from attnpy._quoting import quoted
from attnpy._softmax import softmax
from attnpy.blocks import gelu, relu, silu, tanh
from attnpy.checkpoints.reading import judged_elsewhere
from attnpy.models import _classifier_folder, _hf_config, _sentence_folder, _texts
from attnpy.models._beginning import Beginning
from attnpy.models._texts import WINDOW
from attnpy.models.bert import BertEncoder
from attnpy.models.decoder import CausalDecoder
from attnpy.models.encoder_decoder import EncoderDecoder

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from attnpy._typing import Array
    from attnpy.models._classifier_folder import Recipe

# Beyond it a sigmoid is 0 or 1 in every dtype.
FARTHEST = 1000


class Reader(Protocol):
    """What has a model and a tokenizer."""

    model: Any
    tokenizer: Any


class Scorer(Reader, Protocol):
    """What has a classifier, too."""

    model: BertEncoder | CausalDecoder | EncoderDecoder
    token_types: bool

    @property
    def num_labels(self) -> int:
        """How many scores a text has."""


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)): the softmax of x and 0, with the same bits everywhere.

    Nothing cancels on either side.
    """
    near = np.clip(x, -FARTHEST, FARTHEST)
    both = np.stack([near, np.zeros_like(near)], axis=-1)
    return np.ascontiguousarray(softmax(both, 1)[0][..., 0])


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "relu": relu,
    "gelu": gelu,
    "silu": silu,
}


# ---- Folders -------------------------------------------------------------------------

# Options of `BertEncoder` that read a head, by the end of its class's name.
OPTIONS = {
    "SequenceClassification": "classifier",
    "TokenClassification": "token_classifier",
    "MaskedLM": "masked_words",
}


class Read(NamedTuple):
    """What a folder has; `cut` are the arguments that say where texts are cut."""

    recipe: Recipe
    model: Any
    tokenizer: Any
    cut: dict[str, Any]


def read(
    folder: str | os.PathLike[str],
    head: str,
    max_length: int | None,
    *,
    of_pairs: bool = False,
    **options: Any,
) -> Read:
    """Read the folder of a model with this head; options are those of the model.

    `of_pairs` is as in `_classifier_folder.read`.
    """
    recipe = _classifier_folder.read(folder, head, of_pairs)
    if recipe.tokens is None and head != "MaskedLM":
        _check_labels(recipe)
    tokenizer, side = _sentence_folder.tokenizer(recipe.model_folder, recipe.lower_case)
    kind: Any = BertEncoder
    if head == "SequenceClassification" and _hf_config.is_decoder(recipe.config):
        kind = CausalDecoder
    elif head == "SequenceClassification" and _hf_config.is_encoder_decoder(
        recipe.config
    ):
        kind = EncoderDecoder
    if recipe.tokens is None:
        options[OPTIONS[head]] = True
    elif kind is not CausalDecoder:
        raise ValueError(
            f"{recipe.model_folder}: expected a model of `CausalDecoder` for scores of "
            f"tokens, got model_type = {recipe.config.get('model_type')!r}"
        )
    model = kind.from_pretrained(recipe.model_folder, **options)
    longest = _sentence_folder.longest(
        recipe.max_length, recipe.is_explicit, max_length, model.max_tokens
    )
    cut = {"max_length": longest, "truncation_side": side}
    return Read(recipe, model, tokenizer, cut)


def _check_labels(recipe: Recipe) -> None:
    """Refuse a folder with one name for two scores."""
    said = recipe.config.get("id2label")
    labels = said.values() if isinstance(said, Mapping) else ()
    name = _hf_config.repeated(x for x in labels if isinstance(x, str))
    if name is not None:
        raise ValueError(
            f"{recipe.model_folder / 'config.json'}: expected id2label with another "
            f"name for each score, got {quoted(name)} twice"
        )


# ---- Parts ---------------------------------------------------------------------------


def label_names(names: Iterable[str] | None, n_labels: int) -> tuple[str, ...]:
    """Return a name for each of this many scores; without `names` the usual ones."""
    if names is None:
        return tuple(f"LABEL_{i}" for i in range(n_labels))
    found = _texts.names(names, "label_names")
    if len(found) != n_labels:
        raise ValueError(
            f"label_names: expected {n_labels}, as many as scores, got {len(found)}"
        )
    if (twice := _hf_config.repeated(found)) is not None:
        raise ValueError(
            f"label_names: expected another name for each score, got {quoted(twice)} "
            "twice"
        )
    return found


def check_parts(self: Scorer) -> None:
    """Require a model that scores texts, and a tokenizer whose types it has."""
    if not isinstance(self.model, BertEncoder | CausalDecoder | EncoderDecoder):
        raise TypeError(
            "model: expected a BertEncoder, CausalDecoder or EncoderDecoder, got "
            f"{type(self.model).__name__}"
        )
    if (
        getattr(self, "true_token_id", None) is None
        and self.model.classifier_weight is None
    ):
        raise ValueError(
            "model: expected one with num_labels, or read with classifier=True, got "
            "one without"
        )
    _texts.check_tokenizer(self.tokenizer)
    table = getattr(self.model, "segment_embedding", None)
    num_types, most = 0 if table is None else len(table), types_of(self.tokenizer)
    if _checks.flag(self.token_types, "token_types") and most >= num_types:
        raise ValueError(
            f"token_types: expected False, or types below num_types = {num_types} of "
            f"the model, got True and {most} for the second text of a pair"
        )


def types_of(tokenizer: Any) -> int:
    """Return the largest type that a tokenizer gives to tokens of a pair."""
    with judged_elsewhere("tokenizer", "one that makes tokens of a pair"):
        return max(tokenizer.encode("a", "a").type_ids, default=0)


def usual_types(model: BertEncoder | CausalDecoder | EncoderDecoder) -> bool:
    """Tell whether types matter to a model."""
    types = getattr(model, "segment_embedding", None)
    return types is not None and len(types) > 1


def read_types(
    recipe: Recipe,
    tokenizer: Any,
    model: BertEncoder | CausalDecoder | EncoderDecoder,
) -> bool:
    """Tell whether a folder's tokenizer tells the types, where it matters."""
    if not usual_types(model) or types_of(tokenizer) == 0:
        return False
    if recipe.token_types is None:
        raise ValueError(
            f"{recipe.model_folder / 'tokenizer_config.json'}: expected "
            "model_input_names, or a tokenizer_class of the model's family, which say "
            "whether the model is told the types of tokens; token_types= wins"
        )
    return recipe.token_types


def set_length(
    self: Reader, max_length: int | None, side: str, *, is_pair: bool
) -> int:
    """Let the tokenizer cut texts, the longer one of a pair first; return where."""
    tokenizer, most = self.tokenizer, self.model.max_tokens
    n_special = tokenizer.num_special_tokens_to_add(is_pair=is_pair)
    length = most if max_length is None else max_length
    _sentence_folder.check_length(length, "max_length", most, n_special)
    side = _checks.one_of(side, "truncation_side", ("right", "left"))
    tokenizer.enable_truncation(length, strategy="longest_first", direction=side)
    tokenizer.no_padding()
    return length


# ---- Scores --------------------------------------------------------------------------


def logits(
    self: Scorer,
    items: Iterable[object],
    name: str,
    check: Callable[[object, str], Any],
    *,
    encoded: Callable[[Any, list[Any], int | None], list[Any]] = _texts.encoded,
    batch_size: int,
    progress: bool | None,
    num_threads: int | None,
) -> Array:
    """Return what the classifier says of texts or pairs, (n, num_labels).

    `encoded` makes tokens of them, with their types.
    """
    batch_size = _checks.count(batch_size, "batch_size")
    dtype = _dtypes.arithmetic(self.model.token_embedding.dtype)
    parts = [np.empty((0, self.num_labels), dtype)]
    beginning = None
    if isinstance(self.model, CausalDecoder):
        beginning = Beginning(self.model)
    n_items, size = _progress.total(items), WINDOW
    with _progress.bar(progress, n_items, "text") as done:
        for window in _texts.windows(items, size * batch_size, name, check):
            codes = encoded(self.tokenizer, window, num_threads)
            scores = np.empty((len(window), parts[0].shape[1]), dtype)
            for chosen in _texts.batches([*map(len, codes)], batch_size):
                batch = [codes[i] for i in chosen]
                scores[chosen] = _of_batch(self, batch, name, num_threads, beginning)
                done(len(chosen))
            parts.append(scores)
    return np.concatenate(parts)


def _of_batch(
    self: Scorer,
    codes: list[Any],
    name: str,
    num_threads: int | None,
    beginning: Beginning | None,
) -> Array:
    """Return what the classifier says of texts, (B, num_labels), of their tokens."""
    lengths = [*map(len, codes)]
    if min(lengths) == 0:
        raise ValueError(f"{name}: expected at least one token in each, got none")
    if beginning is not None:
        ids = [code.ids for code in codes]
        return _of_decoder(beginning, _tokens(self), ids, num_threads)
    types = None
    if self.token_types:
        types = _texts.padded([code.type_ids for code in codes])
    tokens = _texts.padded([code.ids for code in codes])
    if isinstance(self.model, EncoderDecoder):
        with judged_elsewhere("tokenizer", "one that ends texts as the model needs"):
            return self.model.classify(tokens, lengths=lengths, num_threads=num_threads)
    assert isinstance(self.model, BertEncoder)
    states = self.model(
        tokens,
        lengths=lengths,
        token_types=types,
        num_threads=num_threads,
    )
    # 16-bit models, too, score in float32: only their products are of 16 bits.
    if self.model.pooling == "cls":
        states, lengths = states[:, :1], [1] * len(lengths)
    states = states.astype(_dtypes.arithmetic(states.dtype), copy=False)
    return self.model.classify(states, lengths=lengths, num_threads=num_threads)


def _of_decoder(
    beginning: Beginning,
    tokens: Sequence[int] | None,
    ids: list[list[int]],
    num_threads: int | None,
) -> Array:
    """Return the scores of texts, (B, num_labels): of their last tokens.

    With one or two `tokens` they are the first one's score of being the next, less that
    of the other.
    """
    model = beginning.model
    ends = [_end(row, model) for row in ids]
    last = beginning.last_states(ids, ends, num_threads)
    last = last.astype(_dtypes.arithmetic(last.dtype), copy=False)
    if tokens is None:
        return model.classify(last[:, np.newaxis], num_threads=num_threads)
    scores = model.logits(last, num_threads=num_threads)[:, tokens]
    return scores[:, :1] if len(tokens) == 1 else scores[:, :1] - scores[:, 1:]


def _tokens(self: Scorer) -> list[int] | None:
    """Return the tokens whose scores are those of a pair, if it is so."""
    both = (getattr(self, f"{name}_token_id", None) for name in ("true", "false"))
    return [token for token in both if token is not None] or None


def _end(row: list[int], model: CausalDecoder) -> int:
    """Return how many tokens there are up to the one that a classifier scores.

    It is the last one that is not padding: what Transformers takes where a text itself
    ends in such tokens.
    """
    end, padding = len(row), (model.config or {}).get("pad_token_id")
    if model.classifier_weight is not None:
        while end > 1 and row[end - 1] == padding:
            end -= 1
    return end
