"""What a family of models declares: fields, how the model is built, names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from attnpy import _repr

if TYPE_CHECKING:
    from attnpy._families.fields import Field
    from attnpy._typing import PoolerActivation

    Values = Mapping[str, Any]


class Family(NamedTuple):
    """The names in the checkpoints of a family of models.

    Attributes
    ----------
    names : mapping of str to tuple of str
        A name in the checkpoint and the parameter it holds, or several parameters,
        packed side by side along the axis of the outputs. ``{i}`` is the number of a
        layer, ``{j}`` that of an expert in it; in a parameter alone ``{i}`` stands for
        all layers, side by side. ``.T`` after a parameter: the checkpoint has its
        transpose. Where parameters have several names, a checkpoint has one of them.
    prefixes : tuple of str
        A name may begin with one of these.
    renamed : tuple of (str, str)
        Endings of names, old and new.
    ignored : tuple of str
        Patterns of names that are left alone.
    heads : tuple of str
        Patterns of the names of heads that no model here has: refused, unless they are
        to be left alone.
    refused : mapping of str to str
        Names that cannot be loaded, and why.
    tied : mapping of str to str
        Names that may be there, equal to another, where a model has no parameter of
        its own for them. One without scores leaves them alone.
    optional : tuple of str
        Patterns of names that a model leaves alone if it has no parameter for them.
    one_less : tuple of str
        Endings of parameters from which the checkpoint has 1 subtracted.
    classifier : mapping of str to tuple of str
        The names of the head that scores texts, for a model that has one. They stand
        in place of the names of the pooler where the head has a matrix of its own.
    token_classifier, masked_words : mapping of str to tuple of str
        Those of the heads that score the labels of tokens, and words in their place.
    gated : mapping of str to tuple of str
        The names of layers whose feed-forward networks have a gate, where they are not
        those of layers without.
    instead : mapping of str to str
        Names that may be missing, and those that have the same array then.
    zero : tuple of str
        Names that may be missing: the parameters are 0 then.
    beside : tuple of str
        Names that stand beside the model with a prefix, not in it.
    axes : mapping of str to int
        Names of arrays that have more axes than their parameters, or fewer, and how
        many. Those beyond have length 1 and are the first.
    by_head : tuple of str
        Endings of names of several parameters whose heads alternate: those of the first
        head of each, then those of the second.
    stacked : tuple of str
        Endings of names of arrays (N, ...) that are N arrays here: the name of each is
        that of all with a dot and its number after it.
    interleaved : tuple of str
        Those of arrays of `stacked` with several parameters whose columns alternate:
        the first one of each, then the second.
    frequencies : str
        A pattern of names of the frequencies of rotary positions, equal ones, which
        then are those of the model.
    """

    names: Mapping[str, tuple[str, ...]]
    prefixes: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    refused: Mapping[str, str] = MappingProxyType({})
    tied: Mapping[str, str] = MappingProxyType({})
    optional: tuple[str, ...] = ()
    one_less: tuple[str, ...] = ()
    classifier: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    token_classifier: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    masked_words: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    gated: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    instead: Mapping[str, str] = MappingProxyType({})
    zero: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    axes: Mapping[str, int] = MappingProxyType({})
    by_head: tuple[str, ...] = ()
    stacked: tuple[str, ...] = ()
    interleaved: tuple[str, ...] = ()
    frequencies: str = ""

    def __repr__(self) -> str:
        """Return the number of names, and the other fields that are set."""
        return _repr.of_fields(self)


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A family of models.

    Attributes
    ----------
    model_type, title : str
        What configurations call it, and what pages do.
    model : str
        "encoder", "decoder" and "encoder-decoder" are `BertEncoder`, `CausalDecoder`
        and `EncoderDecoder`; "image" is `ImageEncoder`; "image and text" is
        `ImageTextModel`, whose texts go through a "text tower".
    classes : tuple of str
        The classes in Transformers: of the model, and of the one with a head that is
        here.
    checkpoint : str
        Its names' key in `checkpoints.FAMILIES`.
    names : Family
        The names in its checkpoints. Families with the same key have the same names.
    read : mapping of str to Field
        The fields that are honoured.
    neutral : mapping of str to tuple
        Fields that are refused, but for null and these values, which do not change the
        arithmetic.
    harmless : mapping of str to tuple of str
        A reason not to look at fields, and their names. All other fields are refused.
    copied : mapping of str to str
        Arguments of the model, and the fields that have their values.
    fixed : mapping of str to object
        Arguments that are the same whatever a file says.
    head_activation : str
        Of the vector of a text that the classifier scores.
    usual_labels : int
        How many scores a classifier has, where a configuration does not say it.
    heads : mapping of str to mapping
        Arguments of the model that only heads need, by "text", "token" and "word":
        values, or rules that make them.
    computed : mapping of str to callable
        Arguments that are made of the values of all fields that are read, often by one
        of `rules`. Arguments that are nowhere have their defaults.
    older : mapping of str to str
        Fields of files for older classes, and the fields of today that they are.
    code : str
        What an ``auto_map`` has that says so, whatever `model_type` is beside it.
    has_code : callable
        Whether that code computes what this family does, by a configuration's fields,
        where it computes others, too.
    owner : str
        The class in `architectures` that says so, whatever `model_type` is beside it.
    within : str
        The model_type of models that have one of this family as their ``text_config``.
    modern : callable
        Makes the fields that are read of those of a file, where more than names is
        different.
    saved : callable
        Makes those of today's class of these.
    """

    model_type: str
    title: str
    model: Literal[
        "encoder",
        "decoder",
        "encoder-decoder",
        "image",
        "image and text",
        "text tower",
    ]
    classes: tuple[str, str]
    checkpoint: str
    names: Family
    read: Mapping[str, Field]
    neutral: Mapping[str, tuple[object, ...]]
    harmless: Mapping[str, tuple[str, ...]]
    copied: Mapping[str, str]
    fixed: Mapping[str, object]
    computed: Mapping[str, Callable[[Values], Any]]
    head_activation: PoolerActivation = "tanh"
    usual_labels: int = 2
    heads: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    older: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    has_code: Callable[[Mapping[str, Any]], bool] = bool
    owner: str = ""
    within: str = ""
    modern: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    saved: Callable[[Mapping[str, Any]], dict[str, Any]] = dict


def names_of(
    block: str, layer: dict[str, str], rest: dict[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return all names of a model: those of each layer, and the rest."""
    theirs, ours = block.split()
    names = {
        f"{theirs}.{name}": tuple(f"{ours}.{own}" for own in parameters.split())
        for name, parameters in layer.items()
    }
    return {name: tuple(own.split()) for name, own in rest.items()} | names


# The head that has a parameter, by its name or the beginning of it.
HEADS = {
    "classifier_weight": "classifier",
    "token_head.": "token_classifier",
    "word_head.": "masked_words",
}


def names_for(
    family: Family, parameters: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Return the names for a model with these parameters."""
    names = dict(family.names)
    tables = [
        getattr(family, attribute)
        for start, attribute in HEADS.items()
        if any(name.startswith(start) for name in parameters)
    ]
    if any(name.endswith("W_gate") for name in parameters):
        tables.append(family.gated)
    for table in tables:
        taken = {own for parts in table.values() for own in parts}
        names = {theirs: own for theirs, own in names.items() if taken.isdisjoint(own)}
        names |= table
    return names


def head_of(dense: str, scores: str) -> dict[str, tuple[str, ...]]:
    """Return the names of a head of texts: those of its two matrices."""
    return {
        f"{dense}.weight": ("pooler_weight.T",),
        f"{dense}.bias": ("pooler_bias",),
        f"{scores}.weight": ("classifier_weight.T",),
        f"{scores}.bias": ("classifier_bias",),
    }


def tokens_of(
    scores: str, dense: str = "", norm: str = ""
) -> dict[str, tuple[str, ...]]:
    """Return the names of a head that scores labels of tokens."""
    names = {
        f"{scores}.weight": ("token_head.classifier_weight.T",),
        f"{scores}.bias": ("token_head.bias",),
    }
    return names | (_dense("token_head", dense, norm) if dense else {})


def words_of(dense: str, norm: str, *biases: str) -> dict[str, tuple[str, ...]]:
    """Return the names of a head for masked words; its bias may have several."""
    names = dict.fromkeys(biases, ("word_head.bias",))
    return names | _dense("word_head", dense, norm)


def _dense(head: str, dense: str, norm: str) -> dict[str, tuple[str, ...]]:
    return {
        f"{dense}.weight": (f"{head}.dense_weight.T",),
        f"{dense}.bias": (f"{head}.dense_bias",),
        f"{norm}.weight": (f"{head}.norm.weight",),
        f"{norm}.bias": (f"{head}.norm.bias",),
    }


# The classifier of texts that decoders may have in place of the scores of tokens.
DECODER_CLASSIFIER = {"score.weight": ("classifier_weight.T",)}
# Patterns of the names of heads that decoders have besides the scores of tokens.
DECODER_HEADS = ("classifier.*", "multiple_choice_head.*", "qa_outputs.*", "score.*")
