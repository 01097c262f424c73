"""A sentence-transformers folder: its settings, honoured or refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _checks, checkpoints
from attnpy._files import folder_at
from attnpy._quoting import listed, named, quoted
from attnpy.checkpoints.reading import is_name, is_there, judged_elsewhere, read_json
from attnpy.models import _hf_config
from attnpy.models._pair_template import FORMATS
from attnpy.models._pooling import MODES, Dense, Normalize
from attnpy.models._similarity import FUNCTIONS

if TYPE_CHECKING:
    from attnpy._typing import Array

    Config = dict[str, Any]

# The file of the first module, which used to have a name for each kind of model.
SENTENCE_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "xlm-roberta", "camembert", "albert")
)
# Of Dense: activations by the names of their classes.
ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": None,
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
}
# The flags by which older files give the modes.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

# The first module of jina-embeddings-v3: a Transformer that is told a task.
TASKS_MODULE = "custom_st.Transformer"


class Task(NamedTuple):
    """What the first module does, in the words of its file."""

    name: str
    output: str
    method_output: str


class Module(NamedTuple):
    """What the first module's file says.

    Attributes
    ----------
    max_length : int or None
        The longest text, in tokens; what the tokenizer could do, where nothing else
        says it, and `is_explicit` is False.
    lower_case : bool
        Texts are turned into lower case before anything else.
    message_format : str or None
        "flat" or "structured" where texts become messages of a chat, "auto" where its
        template tells which; "text" where they do not. None: nobody says it.
    template_variables : mapping of str to object
        What the template of chats is given.
    more : object
        What else the caller has taken of the file's fields.
    """

    max_length: int | None = None
    is_explicit: bool = False
    lower_case: bool = False
    message_format: str | None = None
    template_variables: Mapping[str, Any] = MappingProxyType({})
    more: Any = None


# What is no text, in the words of the file.
NO_TEXT = {"image", "audio", "video"}
EMBEDDING = Task("feature-extraction", "token_embeddings", "last_hidden_state")

Step = Callable[["Array", "int | None"], "Array"]


class Recipe(NamedTuple):
    """The settings of a folder, apart from the model's weights.

    Attributes
    ----------
    model_folder : Path
        Where the model and its tokenizer are.
    max_length : int or None
        The longest text, in tokens, if the folder says so; `is_explicit` if it is a
        setting of the encoder, and not only the tokenizer's limit.
    lower_case : bool
        Texts are turned into lower case before anything else.
    pooling : tuple of str, or None
        Keys of `_pooling.MODES`; None without a ``modules.json``.
    embed_dim : int or None
        The size of the vectors that are pooled.
    """

    model_folder: Path
    max_length: int | None
    is_explicit: bool
    lower_case: bool
    pooling: tuple[str, ...] | None
    include_prompt: bool
    embed_dim: int | None
    steps: tuple[Step, ...]
    prompts: dict[str, str]
    default_prompt_name: str | None
    similarity_fn_name: str
    truncate_dim: int | None


def read(folder: str | os.PathLike[str]) -> Recipe:
    """Read all files but the tokenizer's and the weights of the first module."""
    folder = folder_at(folder)
    modules = _embedding_modules(folder)
    model_folder, pooling, include_prompt, embed_dim = folder, None, True, None
    steps: list[Step] = []
    if modules is not None:
        model_folder = modules[0][1]
        pooling, include_prompt, embed_dim = _pooling(modules[1][1] / "config.json")
        steps = [STEPS[kind](path) for kind, path in modules[2:]]
    module = sentence_config(model_folder, EMBEDDING)
    return Recipe(
        model_folder,
        module.max_length,
        module.is_explicit,
        module.lower_case,
        pooling,
        include_prompt,
        embed_dim,
        tuple(steps),
        *_model_config(folder / "config_sentence_transformers.json"),
    )


class Fields:
    """The fields of a file; each must be taken, and others are refused."""

    def __init__(self, path: Path) -> None:
        """Read a file; a missing one has no fields."""
        self.path = path
        config = read_json(path) if is_there(path) else {}
        self.rest = {name: x for name, x in config.items() if x is not None}

    def take(self, name: str, kind: type, words: str, default: Any = None) -> Any:
        """Return the value of a field, which is of this type."""
        value = self.rest.pop(name, default)
        right = isinstance(value, kind) and (
            kind is bool or not isinstance(value, bool)
        )
        if value is not default and not right:
            raise self.fault(f"{name} to be {words}", value)
        return value

    def count(self, name: str) -> int | None:
        """Return an integer of at least 1, or None."""
        value: int | None = self.take(name, int, "an integer")
        if value is not None and value < 1:
            raise self.fault(f"{name} to be at least 1", value)
        return value

    def require(self, name: str, *values: object) -> None:
        """Refuse a field that is present and has none of these values."""
        if name in self.rest and (value := self.rest.pop(name)) not in values:
            wanted = f"{name} = {json.dumps(values[0])}" if values else f"no {name}"
            raise self.fault(wanted, value)

    def end(self) -> None:
        """Refuse fields that were not taken."""
        for name, value in self.rest.items():
            raise self.fault(f"no {named(name)}", value)

    def fault(self, expected: str, value: object) -> ValueError:
        """Return the error of a field."""
        return ValueError(
            f"{named(self.path)}: expected {expected}, got {quoted(value)}"
        )


def modules(
    folder: Path, packages: tuple[str, ...] = ("sentence_transformers.",)
) -> list[tuple[str, Path]] | None:
    """Return the kinds of the modules and their folders, or None without the file.

    `packages` are how the names of their classes may begin.
    """
    path = folder / "modules.json"
    if not is_there(path):
        return None
    entries = read_json(path, list, "a list of modules")
    if not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path}: expected a list of modules, got {quoted(entries)}")
    return [_module(path, entry, packages) for entry in entries]


def _embedding_modules(folder: Path) -> list[tuple[str, Path]] | None:
    """Return the modules of what turns texts into vectors."""
    found = modules(folder)
    kinds = [kind for kind, _ in found or []]
    if found is not None and (
        kinds[:2] != ["Transformer", "Pooling"] or not STEPS.keys() >= set(kinds[2:])
    ):
        raise ValueError(
            f"{folder / 'modules.json'}: expected Transformer, Pooling, and then any "
            f"of Dense and Normalize, got {listed(kinds) or 'none'}"
        )
    return found


def _module(path: Path, entry: Config, packages: tuple[str, ...]) -> tuple[str, Path]:
    """Return the kind of a module and its folder."""
    kind, place = entry.get("type"), entry.get("path", "")
    is_known = isinstance(kind, str) and kind.startswith(packages)
    if not is_known and kind != TASKS_MODULE:
        raise ValueError(
            f"{path}: expected modules of sentence_transformers, got type "
            f"{quoted(kind)}"
        )
    inside = Path(place) if isinstance(place, str) else Path("..")
    if inside.is_absolute() or not all(map(is_name, inside.parts)):
        raise ValueError(
            f"{path}: expected folders inside this one, got {quoted(place)}"
        )
    folder, kwargs = path.parent / inside, entry.get("kwargs")
    if kind == TASKS_MODULE:
        config = checkpoints.read_config(folder)
        if _hf_config.kind_of(config) != "jina_embeddings_v3":
            raise ValueError(
                f"{path}: expected {kind} of jina-embeddings-v3 alone, got that of "
                f"{quoted(_hf_config.kind_of(config))}"
            )
        kwargs = kwargs if kwargs not in (["task"], ["task_type"]) else None
    if kwargs:
        raise ValueError(f"{path}: expected no kwargs, got {quoted(kwargs)}")
    return str(kind).rpartition(".")[2], folder


def _pooling(path: Path) -> tuple[tuple[str, ...], bool, int | None]:
    """Return the modes, whether the prompt counts, and the size of pooled vectors."""
    if not is_there(path):
        raise FileNotFoundError(f"{named(path)}: expected this file, got none")
    fields = Fields(path)
    embed_dim = fields.count("word_embedding_dimension")
    newer = fields.count("embedding_dimension")
    include_prompt = fields.take("include_prompt", bool, "true or false", True)
    flags = {
        mode: fields.take(name, bool, "true or false", False)
        for name, mode in FLAGS.items()
    }
    modes = fields.rest.pop("pooling_mode", None)
    fields.end()
    if modes is None:
        modes = [mode for mode, wanted in flags.items() if wanted] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if (
        not isinstance(modes, list)
        or not modes
        or not all(isinstance(mode, str) and mode in MODES for mode in modes)
    ):
        raise fields.fault(f"pooling_mode to be of {', '.join(MODES)}", modes)
    return tuple(modes), include_prompt, embed_dim or newer


# What a step takes and returns: the vector of a text, or those of its tokens.
TEXTS, TOKENS = "sentence_embedding", "token_embeddings"


def normalize(folder: Path, of: tuple[str, ...] = (TEXTS,)) -> Normalize:
    """Return a step to length 1, which takes and returns one of these."""
    fields = Fields(folder / "config.json")
    fields.require("module_input_name", *of)
    fields.require("module_output_name", *of)
    fields.end()
    return Normalize()


def dense(folder: Path, of: tuple[str, ...] = (TEXTS,)) -> Dense:
    """Read a linear step, which takes and returns one of these."""
    fields = Fields(folder / "config.json")
    shape = fields.count("in_features"), fields.count("out_features")
    has_bias = fields.take("bias", bool, "true or false", True)
    name = fields.take("activation_function", str, "a name", list(ACTIVATIONS)[1])
    fields.require("module_input_name", *of)
    fields.require("module_output_name", *of)
    use_residual = fields.take("use_residual", bool, "true or false", False)
    fields.end()
    if name not in ACTIVATIONS:
        raise fields.fault(f"activation_function of {', '.join(ACTIVATIONS)}", name)
    n_in, n_out = shape
    shapes: dict[str, tuple[int | None, ...]] = {"linear.weight": (n_out, n_in)}
    if has_bias:
        shapes["linear.bias"] = (n_out,)
    if use_residual and n_in != n_out:
        shapes["residual.weight"] = (n_out, n_in)
    tensors = checkpoints.read(folder)
    if tensors.keys() != shapes.keys():
        raise ValueError(
            f"{named(folder)}: expected the arrays {', '.join(shapes)}, got "
            f"{listed(sorted(tensors))}"
        )
    arrays = {name: tensors[name] for name in shapes}
    for array_name, expected in shapes.items():
        if arrays[array_name].shape != expected:
            raise ValueError(
                f"{named(folder)}: expected {array_name} of {expected}, got "
                f"{arrays[array_name].shape}"
            )
    residual = arrays.get("residual.weight")
    return Dense(
        np.ascontiguousarray(arrays["linear.weight"].T),
        arrays.get("linear.bias"),
        ACTIVATIONS[name],
        use_residual,
        None if residual is None else np.ascontiguousarray(residual.T),
    )


STEPS: dict[str, Callable[[Path], Step]] = {"Dense": dense, "Normalize": normalize}


def sentence_config(
    folder: Path,
    task: Task,
    takes_messages: bool = False,
    more: Callable[[Fields], object] | None = None,
) -> Module:
    """Return what the first module's file says of texts.

    Without `takes_messages` texts that become messages of a chat are refused. `more`
    takes further fields.
    """
    paths = [folder / name for name in SENTENCE_CONFIGS if is_there(folder / name)]
    found = _of_module(paths[0], task, takes_messages, more) if paths else Module()
    if found.max_length is None:
        return found._replace(max_length=_tokenizers_length(folder))
    return found._replace(is_explicit=True)


def _of_module(
    path: Path,
    task: Task,
    takes_messages: bool,
    more: Callable[[Fields], object] | None,
) -> Module:
    """Return what a file says."""
    fields = Fields(path)
    max_length = fields.count("max_seq_length")
    lower_case = fields.take("do_lower_case", bool, "true or false", False)
    fields.require("transformer_task", task.name)
    fields.require("module_output_name", task.output)
    by_text = {"method": "forward", "method_output_name": task.method_output}
    message_format: str | None = None
    variables: Config = {}
    if takes_messages:
        message_format = _message_format(fields, by_text)
        variables = _template_variables(fields)
    else:
        _leave_pictures_and_sound(fields)
    fields.require("modality_config", {"text": by_text})
    for name in ("model_args", "tokenizer_args", "config_args", "processing_kwargs"):
        fields.require(name, {})
    fields.take("unpad_inputs", bool, "true or false")  # how, not what
    rest = None if more is None else more(fields)
    fields.end()
    return Module(max_length, False, lower_case, message_format, variables, rest)


def _leave_pictures_and_sound(fields: Fields) -> None:
    """Take out how inputs that are no texts are computed, which are none here."""
    kinds = fields.rest.get("modality_config")
    if isinstance(kinds, dict):
        fields.rest["modality_config"] = {
            name: x for name, x in kinds.items() if NO_TEXT.isdisjoint(name.split("+"))
        }


def _message_format(fields: Fields, by_text: Config) -> str | None:
    """Return how texts become messages, and leave the rest of what the field says."""
    kinds = fields.rest.get("modality_config")
    if not isinstance(kinds, dict):
        return None
    message = kinds.get("message")
    if not isinstance(message, dict):
        return "text"
    how = message.get("format", "auto")
    if how not in (*FORMATS, "auto") or {**by_text, "format": how} != {
        "format": how,
        **message,
    }:
        raise fields.fault("modality_config with messages that go forward", message)
    fields.rest["modality_config"] = {"text": by_text, **kinds}
    del fields.rest["modality_config"]["message"]
    return str(how)


def _template_variables(fields: Fields) -> Config:
    """Return what the template of chats is given, and leave the rest."""
    options = fields.rest.get("processing_kwargs")
    if not isinstance(options, dict) or not isinstance(
        options.get("chat_template", {}), dict
    ):
        return {}
    fields.rest["processing_kwargs"] = rest = dict(options)
    variables = dict(rest.pop("chat_template", {}))
    if variables.pop("restore_suffix", True) is not True:
        raise fields.fault("processing_kwargs with restore_suffix = true", options)
    if sizes := SIZES & variables.keys():
        raise fields.fault(
            f"processing_kwargs without {listed(sorted(sizes))} of chats", options
        )
    return variables


# Settings of a tokenizer, not variables of a template.
SIZES = {"padding", "padding_side", "truncation", "max_length", "return_tensors"}
SIZES |= {"tokenize", "return_dict", "tokenizer_kwargs", "chat_template"}
SPECIAL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def chat_template(folder: Path) -> str | None:
    """Return the template of chats that a tokenizer has, or None."""
    path = folder / "chat_template.jinja"
    if is_there(path):
        return path.read_text("utf-8")
    fields = Fields(folder / "tokenizer_config.json")
    found = fields.rest.get("chat_template")
    if isinstance(found, list):
        by_name = {
            entry.get("name"): entry.get("template")
            for entry in found
            if isinstance(entry, dict)
        }
        found = by_name.get("default", found)
    if found is not None and not isinstance(found, str):
        raise fields.fault("chat_template to be a text, or to have a default", found)
    return found


def special_tokens(folder: Path, file: str = "tokenizer_config.json") -> dict[str, str]:
    """Return the special tokens by the names that templates have for them."""
    fields, found = Fields(folder / file), {}
    for name in (f"{kind}_token" for kind in SPECIAL):
        token = fields.rest.get(name)
        token = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(token, str):
            found[name] = token
    return found


def _tokenizers_length(folder: Path) -> int | None:
    """Return the longest text that the tokenizer's own configuration has, if any."""
    length = Fields(folder / "tokenizer_config.json").rest.get("model_max_length")
    return int(length) if isinstance(length, int) and length < 10**9 else None


def _model_config(
    path: Path,
) -> tuple[dict[str, str], str | None, str, int | None]:
    """Return the prompts, the default one, the similarity, and the truncated size."""
    fields = Fields(path)
    fields.rest.pop("__version__", None)
    fields.require("model_type", "SentenceTransformer")
    texts, default = take_prompts(fields)
    similarity = fields.take("similarity_fn_name", str, "a name", "cosine")
    truncate_dim = fields.count("truncate_dim")
    fields.end()
    if similarity not in FUNCTIONS:
        raise fields.fault(
            f"similarity_fn_name to be of {', '.join(FUNCTIONS)}", similarity
        )
    return texts, default, similarity, truncate_dim


def take_prompts(fields: Fields) -> tuple[dict[str, str], str | None]:
    """Return the prompts by name, and which is the usual one."""
    prompts = fields.take("prompts", Mapping, "a mapping", {})
    default = fields.take("default_prompt_name", str, "a name")
    texts = {name: "" if text is None else text for name, text in prompts.items()}
    if not all(isinstance(text, str) for text in texts.values()):
        raise fields.fault("prompts to be texts", prompts)
    if default is not None and default not in texts:
        raise fields.fault("default_prompt_name to be one of the prompts", default)
    return texts, default


# ---- The tokenizer -------------------------------------------------------------------


def tokenizer(folder: Path, lower_case: bool) -> Any:
    """Return the tokenizer, without truncation and padding, and its direction."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError(
            "attnpy.models: turning text into tokens needs the tokenizers package: "
            "pip install tokenizers"
        ) from error
    path = folder / "tokenizer.json"
    content = read_json(path)
    plain = {**content, "truncation": None, "padding": None}
    with judged_elsewhere(path, "a tokenizer"):
        made = Tokenizer.from_str(json.dumps(plain))
    side = _side(folder, content)
    normalizer = content.get("normalizer")
    if lower_case and not _lowers(normalizer):
        first = {"type": "Lowercase"}
        rest = [] if normalizer is None else [normalizer]
        plain["normalizer"] = {"type": "Sequence", "normalizers": [first, *rest]}
        made = Tokenizer.from_str(json.dumps(plain))
    with judged_elsewhere(path, "a tokenizer"):
        code = made.encode("a")
    _check_ends(Fields(folder / "tokenizer_config.json"), made, code.ids)
    if any(code.type_ids):
        raise ValueError(f"{path}: expected token types 0 for a text alone, got others")
    return made, side


def _side(folder: Path, content: Config) -> str:
    """Return where long texts are cut; check settings that would change tokens."""
    fields = Fields(folder / "tokenizer_config.json")
    cut = _direction(folder, content, "truncation")
    side: str = fields.rest.get("truncation_side", cut)
    if side not in ("left", "right"):
        raise fields.fault("truncation_side to be left or right", side)
    padded = _direction(folder, content, "padding")
    padded = fields.rest.get("padding_side", padded)
    is_free = padded == "left" and _hf_config.pads_anywhere(
        checkpoints.read_config(folder)
    )
    if padded != "right" and not is_free:
        raise fields.fault('padding_side = "right"', padded)
    _check_same(fields, content.get("normalizer"), "BertNormalizer", BERT_NORMALIZER)
    _check_same(fields, content.get("pre_tokenizer"), "ByteLevel", BYTE_LEVEL)
    return side


def _direction(folder: Path, content: Config, name: str) -> str:
    """Return the side on which a tokenizer cuts or pads by default."""
    part = content.get(name)
    side = part.get("direction", "Right") if isinstance(part, dict) else "Right"
    if not isinstance(part, dict | None) or side not in ("Left", "Right"):
        raise ValueError(
            f"{named(folder / 'tokenizer.json')}: expected {name} to be a mapping with "
            f"the direction Left or Right, got {quoted(part)}"
        )
    return str(side).lower()


# The names of settings of tokenizer.json in a tokenizer's configuration, which would
# override them.
BERT_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
BYTE_LEVEL = {"add_prefix_space": "add_prefix_space"}


def _check_same(
    fields: Fields, part: object, kind: str, names: Mapping[str, str]
) -> None:
    """Refuse settings of the tokenizer that differ between two files."""
    if not isinstance(part, dict) or part.get("type") != kind:
        return
    for theirs, ours in names.items():
        wanted, got = part.get(ours), fields.rest.get(theirs)
        if theirs in fields.rest and got != wanted:
            wanted = named(json.dumps(wanted))
            raise fields.fault(f"{theirs} = {wanted} as tokenizer.json has it", got)


def _check_ends(fields: Fields, tokenizer: Any, ids: list[int]) -> None:
    """Refuse settings of tokens that begin and end texts, where tokenizer.json differs.

    Tokenizers of Transformers that know these settings follow them.
    """
    for place, flag, name in (
        (0, "add_bos_token", "bos_token"),
        (-1, "add_eos_token", "eos_token"),
    ):
        wanted, token = fields.rest.get(flag), fields.rest.get(name)
        token = token.get("content") if isinstance(token, Mapping) else token
        number = tokenizer.token_to_id(token) if isinstance(token, str) else None
        if not isinstance(wanted, bool) or number is None:
            continue
        adds = bool(ids) and ids[place] == number
        if adds != wanted:
            word = json.dumps(adds)
            raise fields.fault(f"{flag} = {word} as tokenizer.json has it", wanted)


def _lowers(normalizer: object) -> bool:
    """Tell whether a normalizer turns texts into lower case."""
    if not isinstance(normalizer, dict):
        return False
    if any(map(_lowers, normalizer.get("normalizers", []))):
        return True
    kind = normalizer.get("type")
    return kind == "Lowercase" or (
        kind == "BertNormalizer" and normalizer.get("lowercase") is True
    )


def check_length(length: int, name: str, longest: int, n_special: int) -> int:
    """Return the largest number of tokens of a text, at most the model's positions."""
    if not n_special < _checks.count(length, name) <= longest:
        raise ValueError(
            f"{name}: expected {n_special + 1} to {longest}, for which the model has "
            f"positions, got {length}"
        )
    return length


def longest(
    said: int | None, is_explicit: bool, asked: int | None, n_positions: int
) -> int:
    """Return the most tokens of a text: as asked, or as the folder has said."""
    if asked is not None:
        return asked
    if said is None:
        return n_positions
    if not is_explicit:  # what the tokenizer could do
        return min(said, n_positions)
    if said > n_positions:
        raise ValueError(
            f"max_seq_length: expected at most {n_positions}, for which the model has "
            f"positions, got {said}; from_pretrained(max_length=) wins"
        )
    return said


def check_size(recipe: Recipe, embed_dim: int, inner_dim: int) -> None:
    """Require that the model's vectors have the size of the pooled ones.

    Of a model whose last step makes another size, files may have the one before.
    """
    if recipe.embed_dim not in (None, embed_dim, inner_dim):
        raise ValueError(
            f"word_embedding_dimension: expected {embed_dim}, as the model has, got "
            f"{recipe.embed_dim}"
        )
