"""The settings of a folder with late interaction, honoured or refused by name.

Three libraries write such folders: colbert-ai, the code of ColBERT's authors, has a
projection among the weights and ``artifact.metadata``; PyLate has modules, and its
settings beside the prompts; sentence-transformers has them in its modules.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import checkpoints
from attnpy._files import folder_at
from attnpy._quoting import listed, named, quoted
from attnpy.models import _sentence_folder
from attnpy.models._pooling import Dense, Normalize
from attnpy.models._sentence_folder import TEXTS, TOKENS, Fields

if TYPE_CHECKING:
    import os

    from attnpy.models._sentence_folder import Step

PACKAGES = ("sentence_transformers.", "pylate.models.")
# The class of colbert-ai, and where its folders have what texts become.
COLBERT, METADATA, PROJECTION = "HF_ColBERT", "artifact.metadata", "linear.weight"
PUNCTUATION = tuple(string.punctuation)
SIMILARITIES = ("maxsim", "meanmaxsim")


class Recipe(NamedTuple):
    """The settings of a folder, apart from the model's weights.

    Attributes
    ----------
    model_folder : Path
        Where the model and its tokenizer are.
    lower_case : bool
        Texts are turned into lower case before anything else.
    max_length : int or None
        The longest text, in tokens, where no length of queries or documents is given;
        `is_explicit` if it is a setting of the encoder.
    steps : tuple of callable
        What follows the model.
    settings : dict of str to object
        Arguments of `MultiVectorEncoder`. A length may be None.
    """

    model_folder: Path
    lower_case: bool
    max_length: int | None
    is_explicit: bool
    steps: tuple[Step, ...]
    settings: dict[str, Any]


def read(folder: str | os.PathLike[str]) -> Recipe:
    """Read all files but the tokenizer's and the weights of the model."""
    folder = folder_at(folder)
    modules = _sentence_folder.modules(folder, PACKAGES)
    if modules is None:
        return _of_colbert(folder)
    kinds = [kind for kind, _ in modules]
    known = {"Dense", "MultiVectorMask", "Normalize"}
    if kinds[:1] != ["Transformer"] or not known >= {*kinds[1:]}:
        raise ValueError(
            f"{named(folder / 'modules.json')}: expected Transformer, and then any of "
            f"{', '.join(sorted(known))}, got {listed(kinds) or 'none'}"
        )
    if "MultiVectorMask" in kinds:
        return _of_modules(folder, modules)
    return _of_pylate(folder, modules)


def _of_colbert(folder: Path) -> Recipe:
    """Read the settings of a folder that colbert-ai has written."""
    config = checkpoints.read_config(folder)
    if config.get("architectures") != [COLBERT]:
        raise ValueError(
            f"folder: expected one with modules.json, or of the class {COLBERT}, got "
            f"{named(folder)} of {quoted(config.get('architectures'))}"
        )
    fields = Fields(folder / METADATA)  # whose other fields are of training and search
    fields.require("interaction", "colbert")
    dim = fields.count("dim")
    module = _sentence_folder.sentence_config(folder, _sentence_folder.EMBEDDING)
    punctuation = fields.take("mask_punctuation", bool, "true or false", True)
    settings = {
        "query_prefix": fields.take("query_token_id", str, "a token", "[unused0]"),
        "document_prefix": fields.take("doc_token_id", str, "a token", "[unused1]"),
        "query_length": fields.count("query_maxlen") or 32,
        "document_length": fields.count("doc_maxlen") or 220,
        "expansion_token": _expansion_token(folder),
        "attend_to_expansion_tokens": fields.take(
            "attend_to_mask_tokens", bool, "true or false", False
        ),
        "skiplist_words": PUNCTUATION if punctuation else (),
    }
    return Recipe(
        folder,
        module.lower_case,
        *(module.max_length, module.is_explicit),
        (_projection(folder, dim), Normalize()),
        settings,
    )


def _projection(folder: Path, dim: int | None) -> Dense:
    """Read the projection that stands among the weights."""
    tensors = checkpoints.read(folder)
    if PROJECTION not in tensors:
        raise ValueError(
            f"{named(folder)}: expected {PROJECTION} among the weights of {COLBERT}, "
            "got none"
        )
    matrix = np.asarray(tensors[PROJECTION])
    if matrix.ndim != 2 or dim not in (None, len(matrix)):
        size = "dim" if dim is None else dim
        raise ValueError(
            f"{named(folder)}: expected {PROJECTION} of ({size}, hidden size), got "
            f"{matrix.shape}"
        )
    return Dense(np.ascontiguousarray(matrix.T), None, None)


def _of_pylate(folder: Path, modules: list[tuple[str, Path]]) -> Recipe:
    """Read the settings of a folder that PyLate has written."""
    place = modules[0][1]
    steps: list[Step] = [
        _sentence_folder.dense(path, (TOKENS, TEXTS))
        for kind, path in modules[1:]
        if kind == "Dense"
    ]
    if len(steps) != len(modules) - 1 or not steps:
        raise ValueError(
            f"{named(folder / 'modules.json')}: expected Transformer and then Dense, "
            "as PyLate has them, or MultiVectorMask as well, as sentence-transformers, "
            f"got {listed([kind for kind, _ in modules])}"
        )
    fields = Fields(folder / "config_sentence_transformers.json")
    settings = {
        "query_prefix": fields.take("query_prefix", str, "a token", "[Q] "),
        "document_prefix": fields.take("document_prefix", str, "a token", "[D] "),
        "query_length": fields.count("query_length") or 32,
        "document_length": fields.count("document_length") or 180,
        "attend_to_expansion_tokens": fields.take(
            "attend_to_expansion_tokens", bool, "true or false", False
        ),
        "skiplist_words": _words(fields, PUNCTUATION),
    }
    if fields.take("do_query_expansion", bool, "true or false", True):
        settings["expansion_token"] = _expansion_token(place)
    settings |= _common(fields, "ColBERT", "SentenceTransformer")
    module = _sentence_folder.sentence_config(place, _sentence_folder.EMBEDDING)
    limits = module.max_length, module.is_explicit
    return Recipe(place, module.lower_case, *limits, (*steps, Normalize()), settings)


def _of_modules(folder: Path, modules: list[tuple[str, Path]]) -> Recipe:
    """Read the settings of a folder that sentence-transformers has written."""
    place = modules[0][1]
    module = _sentence_folder.sentence_config(
        place,
        _sentence_folder.EMBEDDING,
        more=lambda fields: _of_transformer(fields, place),
    )
    settings = {} if module.more is None else dict(module.more)
    steps: list[Step] = []
    for kind, path in modules[1:]:
        if kind == "MultiVectorMask":
            fields = Fields(path / "config.json")
            settings["skiplist_words"] = _words(fields, ())
            fields.require("skiplist_tasks", ["document"])
            fields.require("keep_only_token_ids")
            fields.end()
        else:
            steps.append(
                _sentence_folder.normalize(path, (TOKENS,))
                if kind == "Normalize"
                else _sentence_folder.dense(path, (TOKENS,))
            )
    fields = Fields(folder / "config_sentence_transformers.json")
    settings |= _common(fields, "MultiVectorEncoder")
    limits = module.max_length, module.is_explicit
    return Recipe(place, module.lower_case, *limits, tuple(steps), settings)


def _of_transformer(fields: Fields, folder: Path) -> dict[str, Any]:
    """Return what the first module says of queries and documents."""
    settings: dict[str, Any] = {
        "query_length": fields.count("query_length"),
        "document_length": fields.count("document_length"),
    }
    expansion = fields.take("query_expansion", Mapping, "a mapping")
    if expansion is None:
        return settings
    rest = {"strategy": "fixed", "attend": False, "token": None, **expansion}
    length, token = rest.pop("length", None), rest["token"]
    if (
        {**rest, "attend": None, "token": None}
        != {"strategy": "fixed", "attend": None, "token": None}
        or not isinstance(rest["attend"], bool)
        or not isinstance(token, str | None)
        or not isinstance(length, int)
        or isinstance(length, bool)
        or length < 1
    ):
        raise fields.fault(
            'query_expansion with the strategy "fixed" and a length', expansion
        )
    settings["query_length"] = length  # whatever query_length is
    settings["attend_to_expansion_tokens"] = rest["attend"]
    settings["expansion_token"] = _expansion_token(folder) if token is None else token
    return settings


def _common(fields: Fields, *kinds: str) -> dict[str, Any]:
    """Return what folders of modules say beside them; no other fields are left."""
    fields.rest.pop("__version__", None)
    fields.require("model_type", *kinds)
    prompts, default = _sentence_folder.take_prompts(fields)
    if default is not None:
        raise fields.fault("no default_prompt_name", default)
    similarity = fields.take("similarity_fn_name", str, "a name", SIMILARITIES[0])
    fields.end()
    if similarity.lower() not in SIMILARITIES:
        raise fields.fault(
            f"similarity_fn_name to be of {', '.join(SIMILARITIES)}", similarity
        )
    return {"prompts": prompts, "similarity_fn_name": similarity.lower()}


def _words(fields: Fields, usual: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words that documents are scored without."""
    words = fields.take("skiplist_words", list, "a list of words", usual)
    if not all(isinstance(word, str) for word in words):
        raise fields.fault("skiplist_words to be a list of words", words)
    return tuple(words)


def _expansion_token(folder: Path) -> str:
    """Return the token that fills queries: [MASK], or the end of a text without it."""
    special: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        special |= _sentence_folder.special_tokens(folder, file)
    for name in ("mask_token", "eos_token"):
        if name in special:
            return special[name]
    raise ValueError(
        f"{named(folder / 'tokenizer_config.json')}: expected mask_token, which fills "
        "queries, got none"
    )
