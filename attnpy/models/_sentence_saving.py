"""Encoders of texts into folders that sentence-transformers reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from attnpy._files import Folder, write_folder
from attnpy._quoting import listed, quoted
from attnpy.checkpoints.writing import write
from attnpy.models import _classifier_folder, _sentence_folder
from attnpy.models._pooling import Dense, Normalize
from attnpy.models._saving import PYTORCH, write_json, write_text
from attnpy.models._text_saving import Reader, save_parts

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from attnpy._typing import Array

# Names of modules that all versions of sentence-transformers know, and of one that is
# there since 6.0.
MODULES = "sentence_transformers.models."
SCORES = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
# That of vectors of tokens, by PyLate, which sentence-transformers knows, too.
PYLATE_DENSE = "pylate.models.Dense.Dense"


class Encoder(Reader, Protocol):
    """What `SentenceEncoder` and `CrossEncoder` have in common."""

    prompts: dict[str, str]
    default_prompt_name: str | None


class Embedder(Encoder, Protocol):
    """A `SentenceEncoder`."""

    pooling: tuple[str, ...]
    include_prompt: bool
    steps: tuple[Any, ...]
    similarity_fn_name: str
    truncate_dim: int | None
    tasks: dict[str, Any]


class MultiVector(Reader, Protocol):
    """A `MultiVectorEncoder`."""

    steps: tuple[Any, ...]
    query_prefix: str
    document_prefix: str
    query_length: int
    document_length: int
    expansion_token: str | None
    attend_to_expansion_tokens: bool
    skiplist_words: tuple[str, ...]
    prompts: dict[str, str]
    similarity_fn_name: str


class Scorer(Encoder, Protocol):
    """A `CrossEncoder`."""

    activation_fn: Any
    truncation_side: str
    token_types: bool
    true_token_id: int | None
    false_token_id: int | None
    chat_template: str | None
    chat_template_kwargs: dict[str, Any]
    message_format: str | None


def save(encoder: Embedder, folder: str | os.PathLike[str]) -> None:
    """Write what turns texts into vectors."""
    for step in encoder.steps:
        if not isinstance(step, Dense | Normalize):
            raise ValueError(
                "steps: expected those of a folder, Dense and Normalize, got "
                f"{type(step).__name__}"
            )
    if len(encoder.tasks) > 1:
        raise ValueError(
            "tasks: expected one, as a folder that is written has one model, got "
            f"{listed([*encoder.tasks])}"
        )
    write_folder(folder, lambda place: _write(encoder, place))


def _write(encoder: Embedder, place: Folder) -> None:
    save_parts(encoder, place, ["input_ids", "attention_mask"])
    names = ["Pooling", *(type(step).__name__ for step in encoder.steps)]
    places = [f"{i}_{name}" for i, name in enumerate(names, 1)]
    kinds = [MODULES + name for name in ("Transformer", *names)]
    _write_modules(place, dict(zip(("", *places), kinds, strict=True)))
    write_json(place, f"{places[0]}/config.json", _pooling(encoder))
    for name, step in zip(places[1:], encoder.steps, strict=True):
        if isinstance(step, Dense):
            _write_dense(place, name, step)
    write_json(
        place,
        "sentence_bert_config.json",
        {"max_seq_length": encoder.max_length, "do_lower_case": False},
    )
    write_json(
        place,
        "config_sentence_transformers.json",
        {
            "model_type": "SentenceTransformer",
            **_prompts(encoder),
            "similarity_fn_name": encoder.similarity_fn_name,
            "truncate_dim": encoder.truncate_dim,
        },
    )


def save_multi_vector(encoder: MultiVector, folder: str | os.PathLike[str]) -> None:
    """Write what turns texts into vectors of tokens, as PyLate does."""
    *dense, last = encoder.steps or (None,)
    if (
        not dense
        or not isinstance(last, Normalize)
        or not all(isinstance(step, Dense) for step in dense)
    ):
        kinds = [type(step).__name__ for step in encoder.steps]
        raise ValueError(
            "steps: expected those of a folder of PyLate, some Dense and then "
            f"Normalize, got {listed(kinds) or 'none'}"
        )
    write_folder(folder, lambda place: _write_multi_vector(encoder, place, dense))


def _write_multi_vector(encoder: MultiVector, place: Folder, dense: list[Any]) -> None:
    filler = encoder.expansion_token
    special = {} if filler is None else {"mask_token": filler}
    save_parts(encoder, place, ["input_ids", "attention_mask"], special)
    names = [f"{i}_Dense" for i in range(1, len(dense) + 1)]
    kinds = {"": f"{MODULES}Transformer"} | dict.fromkeys(names, PYLATE_DENSE)
    _write_modules(place, kinds)
    for name, step in zip(names, dense, strict=True):
        _write_dense(place, name, step)
    write_json(
        place,
        "sentence_bert_config.json",
        {"max_seq_length": encoder.max_length, "do_lower_case": False},
    )
    is_sum = encoder.similarity_fn_name == "maxsim"
    number = encoder.tokenizer.token_to_id
    # For PyLate other words would be the unknown token.
    words = [word for word in encoder.skiplist_words if number(word) is not None]
    write_json(
        place,
        "config_sentence_transformers.json",
        {
            "model_type": "ColBERT",
            "prompts": encoder.prompts,
            "default_prompt_name": None,
            "similarity_fn_name": "MaxSim" if is_sum else encoder.similarity_fn_name,
            "query_prefix": encoder.query_prefix,
            "document_prefix": encoder.document_prefix,
            "query_length": encoder.query_length,
            "document_length": encoder.document_length,
            "attend_to_expansion_tokens": encoder.attend_to_expansion_tokens,
            "skiplist_words": words,
            "do_query_expansion": filler is not None,
        },
    )


def save_scorer(encoder: Scorer, folder: str | os.PathLike[str]) -> None:
    """Write what turns pairs of texts into scores."""
    activations = {
        ours: theirs
        for theirs, ours in _classifier_folder.ACTIVATIONS.items()
        if theirs.startswith("torch.nn.modules.")
    }
    if encoder.activation_fn not in activations:
        raise ValueError(
            f"activation_fn: expected one of {', '.join(activations)}, got "
            f"{quoted(encoder.activation_fn)}"
        )
    name = activations[encoder.activation_fn]
    write_folder(folder, lambda place: _write_scorer(encoder, place, name))


def _write_scorer(encoder: Scorer, place: Folder, activation: str) -> None:
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    if not encoder.token_types:
        inputs.remove("token_type_ids")
    variables = dict(encoder.chat_template_kwargs)
    special = {
        name: variables.pop(name)
        for name in (f"{kind}_token" for kind in _sentence_folder.SPECIAL)
        if name in variables
    }
    save_parts(encoder, place, inputs, special)
    task, modules = _classifier_folder.SCORES, {"": f"{MODULES}Transformer"}
    if encoder.true_token_id is not None:
        task, modules["1_LogitScore"] = _classifier_folder.TOKENS, SCORES
    _write_modules(place, modules)
    if encoder.true_token_id is not None:
        names = "true_token_id", "false_token_id"
        tokens = {name: getattr(encoder, name) for name in names}
        write_json(place, "1_LogitScore/config.json", tokens)
    by_text = {"method": "forward", "method_output_name": task.method_output}
    said: dict[str, Any] = {
        "transformer_task": task.name,
        "module_output_name": task.output,
        "modality_config": {"text": by_text},
        "max_seq_length": encoder.max_length,
    }
    template = "chat_template.jinja"
    if encoder.chat_template is not None:
        message = {**by_text, "format": encoder.message_format}
        said["modality_config"]["message"] = message
        said["processing_kwargs"] = {"chat_template": variables}
        write_text(place, template, encoder.chat_template)
    else:
        place.remove(template)
    write_json(place, "sentence_bert_config.json", said)
    write_json(
        place,
        "config_sentence_transformers.json",
        {
            "model_type": "CrossEncoder",
            "activation_fn": activation,
            **_prompts(encoder),
        },
    )


# ---- What both have ------------------------------------------------------------------


def _prompts(encoder: Encoder) -> dict[str, Any]:
    return {
        "prompts": encoder.prompts,
        "default_prompt_name": encoder.default_prompt_name,
    }


def _pooling(encoder: Embedder) -> dict[str, Any]:
    """Return what says how vectors are pooled, in the words of all versions."""
    names = _sentence_folder.FLAGS
    flags = {name: mode in encoder.pooling for name, mode in names.items()}
    modes = [mode for name, mode in names.items() if flags[name]]
    found = {
        "word_embedding_dimension": encoder.model.embed_dim,
        "include_prompt": encoder.include_prompt,
    }
    if modes == [*encoder.pooling]:
        return {**found, **flags}
    # In another order, which only later versions have.
    return {**found, "pooling_mode": [*encoder.pooling]}


def _write_modules(place: Folder, modules: Mapping[str, str]) -> None:
    """Write which modules there are, by their folders, and make these."""
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (path, kind) in enumerate(modules.items())
    ]
    for path in modules:
        (place.path / path).mkdir(exist_ok=True)
    write_json(place, "modules.json", listed)


def _write_dense(place: Folder, folder: str, step: Dense) -> None:
    """Write a linear step."""
    names = {ours: theirs for theirs, ours in _sentence_folder.ACTIVATIONS.items()}
    n_in, n_out = step.weight.shape
    config = {
        "in_features": n_in,
        "out_features": n_out,
        "bias": step.bias is not None,
        "activation_function": names[step.activation],
    }
    if step.use_residual:  # which earlier versions do not know
        config["use_residual"] = True
    write_json(place, f"{folder}/config.json", config)
    tensors: dict[str, Array] = {"linear.weight": step.weight.T}
    if step.bias is not None:
        tensors["linear.bias"] = step.bias
    if step.residual is not None:
        tensors["residual.weight"] = step.residual.T
    write(f"{folder}/model.safetensors", tensors, PYTORCH, place.write)
