"""A folder of a model that scores texts: what it says, honoured or refused by name.

Cross-encoders of sentence-transformers, and folders as Transformers writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from attnpy import checkpoints
from attnpy._files import folder_at
from attnpy._quoting import listed, quoted
from attnpy.models import _sentence_folder
from attnpy.models._sentence_folder import Fields, Task

if TYPE_CHECKING:
    import os
    from pathlib import Path

# What reads folders of these heads, by the ends of their classes' names.
READERS = {
    "SequenceClassification": "TextClassifier or CrossEncoder",
    "TokenClassification": "TokenClassifier",
    "MaskedLM": "FillMask",
}
SCORES = Task("sequence-classification", "scores", "logits")
# Activations by the names of their classes.
ACTIVATIONS = {
    path: ours
    for name, module, ours in (
        ("Identity", "linear", "identity"),
        ("Sigmoid", "activation", "sigmoid"),
        ("Tanh", "activation", "tanh"),
        ("ReLU", "activation", "relu"),
        ("GELU", "activation", "gelu"),
        ("SiLU", "activation", "silu"),
    )
    for path in (f"torch.nn.modules.{module}.{name}", f"torch.nn.{name}")
}
# Whether the tokenizer tells the model the types of tokens: by its class, or where it
# says none by the family of the model.
TELLS_TYPES = {
    **dict.fromkeys(("Bert", "Electra"), True),
    **dict.fromkeys(("DistilBert", "MPNet", "Roberta", "XLMRoberta"), False),
    **dict.fromkeys(("Camembert", "TokenizersBackend"), False),
}
CLASSES = {"distilbert": "DistilBert", "mpnet": "MPNet", "electra": "Electra"}
CLASSES |= {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}
CLASSES |= {"nomic_bert": "Bert"}


class Recipe(NamedTuple):
    """What a folder says, apart from the model's weights.

    Attributes
    ----------
    model_folder : Path
        Where the model and its tokenizer are.
    max_length : int or None
        Of a text in tokens, where the folder says it; `is_explicit` if as such, and not
        as what the tokenizer could do.
    lower_case : bool
        Texts are turned into lower case before anything else.
    token_types : bool or None
        The tokenizer tells the types of tokens. None: nobody says it.
    config : dict
        Of the model.
    activation : object
        The class of what a cross-encoder does to its scores, where the folder says it.
    """

    model_folder: Path
    max_length: int | None
    is_explicit: bool
    lower_case: bool
    token_types: bool | None
    config: dict[str, Any]
    activation: object
    prompts: dict[str, str]
    default_prompt_name: str | None


def read(folder: str | os.PathLike[str], head: str) -> Recipe:
    """Read all files but the tokenizer's and the weights; `head` is wanted."""
    folder = folder_at(folder)
    model_folder = folder
    if (found := _sentence_folder.modules(folder)) is not None:
        kinds = [kind for kind, _ in found]
        if kinds != ["Transformer"]:
            ending = ": SentenceEncoder reads it" if "Pooling" in kinds else ""
            raise ValueError(
                f"{folder / 'modules.json'}: expected a Transformer alone, got "
                f"{listed(kinds) or 'none'}{ending}"
            )
        model_folder = found[0][1]
    config = checkpoints.read_config(model_folder)
    _check_head(model_folder / "config.json", config, head)
    activation, prompts, default = _model_config(
        folder / "config_sentence_transformers.json"
    )
    if activation is None:
        activation = _older_activation(model_folder / "config.json", config)
    max_length, is_explicit, lower_case = _sentence_folder.sentence_config(
        model_folder, SCORES
    )
    return Recipe(
        model_folder,
        max_length,
        is_explicit,
        lower_case,
        _token_types(model_folder, config),
        config,
        activation,
        prompts,
        default,
    )


def activation(recipe: Recipe) -> str | None:
    """Return what the folder says that is done to scores, by our name."""
    name = recipe.activation
    if name is None:
        return None
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(
            f"{recipe.model_folder}: expected an activation of "
            f"{', '.join(ACTIVATIONS)}, got {quoted(name)}; activation_fn= wins"
        )
    return ACTIVATIONS[name]


def _check_head(path: Path, config: Mapping[str, Any], head: str) -> None:
    """Refuse a model that has one of the other heads."""
    owners = config.get("architectures")
    owner = str(owners[0]) if isinstance(owners, list) and owners else ""
    for other, reader in READERS.items():
        if other != head and owner.endswith(f"For{other}"):
            raise ValueError(
                f"{path}: expected architectures of a For{head}, got {quoted(owner)}: "
                f"{reader} reads it"
            )


def _model_config(path: Path) -> tuple[object, dict[str, str], str | None]:
    """Return the activation's class, the prompts, and which is the usual one."""
    fields = Fields(path)
    fields.rest.pop("__version__", None)
    fields.require("model_type", "CrossEncoder")
    name = fields.take("activation_fn", str, "a name")
    prompts, default = _sentence_folder.take_prompts(fields)
    fields.require("keep_in_fp32_modules", [])
    fields.end()
    return name, prompts, default


def _older_activation(path: Path, config: Mapping[str, Any]) -> object:
    """Return the activation's class in the model's configuration, if it is there."""
    inside = config.get("sentence_transformers") or {}
    if not isinstance(inside, Mapping) or not {"activation_fn", "version"} >= set(
        inside
    ):
        raise ValueError(
            f"{path}: expected sentence_transformers to be a mapping of activation_fn "
            f"and version, got {quoted(inside)}"
        )
    older = config.get("sbert_ce_default_activation_function")
    return inside.get("activation_fn", older)


def _token_types(folder: Path, config: Mapping[str, Any]) -> bool | None:
    """Tell whether the tokenizer tells the types of tokens, if anybody knows."""
    fields = Fields(folder / "tokenizer_config.json")
    names = fields.take("model_input_names", list, "a list of names")
    if names is not None:
        return "token_type_ids" in names
    kind = fields.take("tokenizer_class", str, "a name")
    if kind is None:
        return TELLS_TYPES.get(CLASSES.get(str(config.get("model_type", "bert")), ""))
    return TELLS_TYPES.get(kind.removesuffix("Fast").removesuffix("Tokenizer"))
