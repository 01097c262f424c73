"""Fields of Hugging Face configurations: kinds of values, and those of all families."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

# More of anything is a mistake in the file, which would take long to be noticed.
MOST_LAYERS = 10_000
MOST_EXPERTS = 1024
LARGEST_SIZE = 2**31 - 1

REQUIRED = object()


class Field(NamedTuple):
    """A field that is read.

    Attributes
    ----------
    kind : str
        What its value has to be, a key of `KINDS`.
    default : object
        Where it is not there: that of the configuration's class. `REQUIRED` where a
        file always has it.
    null : bool
        Null is a value, None. Elsewhere null is like a field that is not there.
    """

    kind: str
    default: Any = REQUIRED
    null: bool = False


def _is_integer(value: object, low: int, high: int) -> bool:
    """Tell whether a value is an integer of this range; booleans are none."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        return False
    return bool(low <= value <= high)


def is_number(value: object) -> bool:
    kinds = int, float, np.integer, np.floating
    if not isinstance(value, kinds) or isinstance(value, bool):
        return False
    return bool(0 < value <= sys.float_info.max)


def _is_tokens(value: object) -> bool:
    tokens = value if isinstance(value, (list, tuple)) else [value]
    return all(_is_integer(token, -(2**63), 2**63 - 1) for token in tokens)


def _is_names(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(x, str) for x in value)


def _is_sizes(value: object) -> bool:
    sizes = value if isinstance(value, (list, tuple)) else [value, value]
    return len(sizes) == 2 and all(_is_integer(x, 1, LARGEST_SIZE) for x in sizes)


# What values have to be: a test, and how an error says it.
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "layers": (
        lambda value: _is_integer(value, 1, MOST_LAYERS),
        f"an integer from 1 to {MOST_LAYERS}",
    ),
    "experts": (
        lambda value: _is_integer(value, 1, MOST_EXPERTS),
        f"an integer from 1 to {MOST_EXPERTS}",
    ),
    "layer numbers": (
        lambda value: (
            isinstance(value, (list, tuple))
            and all(_is_integer(number, 0, LARGEST_SIZE) for number in value)
        ),
        "a list of the numbers of layers",
    ),
    "size": (
        lambda value: _is_integer(value, 1, LARGEST_SIZE),
        f"an integer from 1 to {LARGEST_SIZE}",
    ),
    "sizes": (
        _is_sizes,
        f"an integer from 1 to {LARGEST_SIZE}, or a list of two of them",
    ),
    "count": (
        lambda value: _is_integer(value, 0, LARGEST_SIZE),
        f"an integer from 0 to {LARGEST_SIZE}",
    ),
    "integer": (
        lambda value: _is_integer(value, -LARGEST_SIZE, LARGEST_SIZE),
        f"an integer from -{LARGEST_SIZE} to {LARGEST_SIZE}",
    ),
    "pattern": (
        lambda value: isinstance(value, str) or _is_integer(value, 0, LARGEST_SIZE),
        "an integer, or letters",
    ),
    "number": (is_number, "a finite number above 0"),
    "flag": (lambda value: isinstance(value, (bool, np.bool_)), "true or false"),
    "name": (lambda value: isinstance(value, str), "a name"),
    "names": (_is_names, "a list of names"),
    "switches": (
        lambda value: (
            isinstance(value, (list, tuple))
            and all(_is_integer(number, 0, 1) for number in value)
        ),
        "a list of 0 and 1",
    ),
    "tokens": (_is_tokens, "an integer, or a list of integers"),
    "mapping": (lambda value: isinstance(value, Mapping), "a mapping"),
}

# Of all families: what is refused, but for these values; and what does not matter.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "auto_map": (),  # code of the checkpoint's own
    "cross_attention_hidden_size": (),
    "is_encoder_decoder": (False,),
    "per_layer_config": (),
    "pruned_heads": ({},),
    "quantization_config": (),
    "tie_encoder_decoder": (False,),
}
HARMLESS: dict[str, tuple[str, ...]] = {
    "where the file comes from": (
        "_commit_hash",
        "_name_or_path",
        "name_or_path",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
    ),
    "the class that reads it: the weights' names say which head there is": (
        "architectures",
        "tokenizer_class",
    ),
    "what a head says: the only one here, BERT's classifier, reads its labels": (
        "_num_labels",
        "finetuning_task",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "sbert_ce_default_activation_function",
        "sentence_transformers",
    ),
    "for training": (
        "attention_dropout",
        "gradient_checkpointing",
        "initializer_range",
    ),
    "the dtype of the weights: the files say it themselves": ("dtype", "torch_dtype"),
    "how it is computed, not what: kernels, chunks, caches": (
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_attn_implementation_internal",
        "_experts_implementation_internal",
        "attn_implementation",
        "chunk_size_feed_forward",
        "experts_implementation",
        "pretraining_tp",
        "tf_legacy_loss",
        "torchscript",
        "use_bfloat16",
        "use_cache",
    ),
    "what else a call returns": (
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "output_scores",
        "return_dict",
        "return_dict_in_generate",
        "tie_last_hidden_states",
        "use_return_dict",
    ),
    "token ids that only tokenizers need": (
        "begin_suppress_tokens",
        "bos_token_id",
        "cls_token_id",
        "decoder_start_token_id",
        "eos_token_ids",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "mask_token_id",
        "pad_token_id",
        "prefix",
        "sep_token_id",
        "suppress_tokens",
        "unk_token_id",
    ),
    "settings of generation: arguments of generate()": (
        "assistant_confidence_threshold",
        "assistant_lookbehind",
        "bad_words_ids",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "encoder_repetition_penalty",
        "epsilon_cutoff",
        "eta_cutoff",
        "exponential_decay_length_penalty",
        "length_penalty",
        "max_length",
        "min_length",
        "no_repeat_ngram_size",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "remove_invalid_values",
        "repetition_penalty",
        "target_lookbehind",
        "task_specific_params",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
    ),
}

NO_END: dict[str, tuple[str, ...]] = {
    "the token that ends a text: encoders write none": ("eos_token_id",)
}

ENCODER_DECODER_NEUTRAL: dict[str, tuple[object, ...]] = NEUTRAL | {
    "is_decoder": (False,),
    "is_encoder_decoder": (True,),
}


def without(
    harmless: Mapping[str, tuple[str, ...]], names: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Return harmless fields without those that a family reads."""
    return {
        reason: tuple(name for name in fields if name not in names)
        for reason, fields in harmless.items()
    }
