"""A folder of a model that scores texts: what it says, honoured or refused by name.

Cross-encoders of sentence-transformers, and folders as Transformers writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from attnpy import checkpoints
from attnpy._files import folder_at
from attnpy._quoting import listed, quoted
from attnpy.models import _hf_config, _sentence_folder
from attnpy.models._pair_template import FORMATS
from attnpy.models._sentence_folder import Fields, Module, Task

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
# Of a language model whose scores of one or two tokens are those of a pair.
TOKENS = Task("text-generation", "causal_logits", "logits")
# Those of a folder that says nothing, as sentence-transformers has it.
USUAL_TOKENS = "yes", "no"
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
    **dict.fromkeys(("Bert", "Electra", "Deberta", "DebertaV2"), True),
    **dict.fromkeys(("DistilBert", "MPNet", "Roberta", "XLMRoberta"), False),
    **dict.fromkeys(("Camembert", "TokenizersBackend"), False),
}
CLASSES = {"distilbert": "DistilBert", "mpnet": "MPNet", "electra": "Electra"}
CLASSES |= {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}
CLASSES |= {"camembert": "Camembert", "jina_embeddings_v3": "XLMRoberta"}
CLASSES |= {"xlm-roberta-xl": "XLMRoberta"}
CLASSES |= dict.fromkeys(("data2vec-text", "roberta-prelayernorm"), "Roberta")
CLASSES |= {"nomic_bert": "Bert", "deberta": "Deberta", "deberta-v2": "DebertaV2"}


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
    tokens : tuple of int or str, or None
        Of a language model: the token whose score a pair has, and the one whose score
        is subtracted, if there is one.
    chat_template, chat_template_kwargs, message_format
        As in `CrossEncoder`. With `is_needed` there has to be one that writes pairs.
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
    tokens: tuple[int | str, int | str | None] | None = None
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    message_format: str | None = None
    is_needed: bool = False


def read(folder: str | os.PathLike[str], head: str, of_pairs: bool = False) -> Recipe:
    """Read all files but the tokenizer's and the weights; `head` is wanted.

    With `of_pairs`, pairs of texts may be messages of a chat, and a language model may
    have no head but its scores of tokens.
    """
    folder = folder_at(folder)
    model_folder = folder
    if (found := _sentence_folder.modules(folder)) is not None:
        kinds = [kind for kind, _ in found]
        if kinds != ["Transformer"] and not (of_pairs and kinds == OF_TOKENS):
            ending = ": SentenceEncoder reads it" if "Pooling" in kinds else ""
            raise ValueError(
                f"{folder / 'modules.json'}: expected a Transformer alone, got "
                f"{listed(kinds) or 'none'}{ending}"
            )
        model_folder = found[0][1]
    config = checkpoints.read_config(model_folder)
    tokens: tuple[int | str, int | str | None] | None = None
    if found is not None and len(found) > 1:
        tokens = _tokens(found[1][1])
    elif of_pairs and _owner(config).endswith(("ForCausalLM", "LMHeadModel")):
        tokens = USUAL_TOKENS
    else:
        _check_head(model_folder / "config.json", config, head)
    activation, prompts, default = _model_config(
        folder / "config_sentence_transformers.json"
    )
    if activation is None:
        activation = _older_activation(model_folder / "config.json", config)
    module = _sentence_folder.sentence_config(
        model_folder, SCORES if tokens is None else TOKENS, of_pairs
    )
    recipe = Recipe(
        model_folder,
        module.max_length,
        module.is_explicit,
        module.lower_case,
        _token_types(model_folder, config),
        config,
        activation,
        prompts,
        default,
        tokens,
    )
    return _with_template(recipe, module) if of_pairs else recipe


OF_TOKENS = ["Transformer", "LogitScore"]


def _tokens(folder: Path) -> tuple[int, int | None]:
    """Return the tokens of a module that takes their scores."""
    fields = Fields(folder / "config.json")
    wanted = fields.take("true_token_id", int, "an integer")
    other: int | None = fields.take("false_token_id", int, "an integer")
    fields.require("module_input_name", TOKENS.output)
    fields.end()
    if wanted is None:
        raise fields.fault("true_token_id", None)
    return wanted, other


def _with_template(recipe: Recipe, module: Module) -> Recipe:
    """Return a recipe with the folder's template of chats, if pairs go through it.

    Where no file says whether they do, a language model's pairs do, and those of a
    classifier if the template writes both texts of a pair. One whose folder does not
    say that it is a reranker needs a template: texts side by side ask it nothing.
    """
    folder, said = recipe.model_folder, module.message_format
    text = None if said == "text" else _sentence_folder.chat_template(folder)
    variables = {
        **_sentence_folder.special_tokens(folder),
        **module.template_variables,
    }
    is_told = said not in (None, "text") or bool(module.template_variables)
    return recipe._replace(
        chat_template=text,
        chat_template_kwargs=variables,
        message_format=said if said in FORMATS else None,
        is_needed=is_told
        or recipe.tokens == USUAL_TOKENS
        or (text is not None and recipe.tokens is not None),
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
    owner = _owner(config)
    for other, reader in READERS.items():
        if other != head and owner.endswith(f"For{other}"):
            raise ValueError(
                f"{path}: expected architectures of a For{head}, got {quoted(owner)}: "
                f"{reader} reads it"
            )


def _owner(config: Mapping[str, Any]) -> str:
    """Return the class of a model, as far as its configuration names it."""
    owners = config.get("architectures")
    return str(owners[0]) if isinstance(owners, list) and owners else ""


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
        family = _hf_config.kind_of({"model_type": "bert", **config})
        return TELLS_TYPES.get(CLASSES.get(str(family), ""))
    return TELLS_TYPES.get(kind.removesuffix("Fast").removesuffix("Tokenizer"))
