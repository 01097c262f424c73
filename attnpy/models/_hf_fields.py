"""The fields of Hugging Face configurations: what becomes of each, family by family.

Data: a field is read, has to have a neutral value, or does not change what a model
here computes, for the reason beside it. Any other is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

REQUIRED = object()


class Field(NamedTuple):
    """A field that is read.

    Attributes
    ----------
    kind : str
        What its value has to be, a key of `_hf_config.KINDS`.
    default : object
        Where it is not there: that of the configuration's class. `REQUIRED` where a
        file always has it.
    null : bool
        Null is a value, None. Elsewhere null is like a field that is not there.
    """

    kind: str
    default: Any = REQUIRED
    null: bool = False


class Family(NamedTuple):
    """What becomes of the fields of a family's configurations.

    Attributes
    ----------
    read : mapping of str to Field
    neutral : mapping of str to tuple
        The values, besides null, that do not change the arithmetic.
    harmless : mapping of str to tuple of str
        A reason not to look at fields, and their names.
    """

    read: Mapping[str, Field]
    neutral: Mapping[str, tuple[object, ...]]
    harmless: Mapping[str, tuple[str, ...]]


# Of all families.
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
HARMLESS = {
    "where the file comes from": (
        "_commit_hash",
        "_name_or_path",
        "name_or_path",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
    ),
    "which class reads it: the weights' names say what comes after the layers": (
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
    "the dtype of the weights, which they say themselves": ("dtype", "torch_dtype"),
    "how it is computed, not what: kernels, cuts, caches": (
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
    "what a call returns besides": (
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "output_scores",
        "return_dict",
        "return_dict_in_generate",
        "tie_last_hidden_states",
        "use_return_dict",
    ),
    "numbers of tokens: text is not here": (
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
    "settings of generation, which generate() is told": (
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

_BERT_READ = {
    "num_hidden_layers": Field("layers"),
    "hidden_size": Field("size"),
    "num_attention_heads": Field("size"),
    "intermediate_size": Field("size"),
    "vocab_size": Field("size"),
    "max_position_embeddings": Field("size", 512),
    "hidden_act": Field("name", "gelu"),
    "layer_norm_eps": Field("number", 1e-12),
}
_BERT_NEUTRAL: dict[str, tuple[object, ...]] = NEUTRAL | {
    "position_embedding_type": ("absolute",),
    "is_causal": (False,),
    "is_decoder": (False,),
}
_NO_END: dict[str, tuple[str, ...]] = {
    "of the token that ends a text, which nothing generates here": ("eos_token_id",)
}
_BERT_HARMLESS = (
    HARMLESS
    | _NO_END
    | {
        "dropout, for training": (
            "attention_probs_dropout_prob",
            "classifier_dropout",
            "hidden_dropout_prob",
        ),
        "of heads, which are not here": ("tie_word_embeddings",),
    }
)

BERT = Family(
    _BERT_READ | {"type_vocab_size": Field("size", 2)},
    _BERT_NEUTRAL | {"model_type": ("bert",), "directionality": ("bidi",)},
    _BERT_HARMLESS
    | {
        "of the pooler and the heads, which the classes do not read": (
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
        ),
    },
)

# The token whose number is pad_token_id has no position of its own; the others' begin
# after it.
_NUMBERS = "numbers of tokens: text is not here"
_WITHOUT_PAD = {
    _NUMBERS: tuple(name for name in HARMLESS[_NUMBERS] if name != "pad_token_id")
}
_ROBERTA_READ = _BERT_READ | {
    "type_vocab_size": Field("size", 2),
    "pad_token_id": Field("count", 1),
}

ROBERTA = Family(
    _ROBERTA_READ,
    _BERT_NEUTRAL | {"model_type": ("roberta",)},
    _BERT_HARMLESS | _WITHOUT_PAD,
)

XLM_ROBERTA = Family(
    _ROBERTA_READ,
    _BERT_NEUTRAL | {"model_type": ("xlm-roberta",)},
    _BERT_HARMLESS | _WITHOUT_PAD,
)

# Its class has 1 for the token without a position, and 32 buckets, whatever a file
# says.
MPNET = Family(
    _BERT_READ,
    _BERT_NEUTRAL | {"model_type": ("mpnet",), "relative_attention_num_buckets": (32,)},
    _BERT_HARMLESS,
)

DISTILBERT = Family(
    {
        "n_layers": Field("layers"),
        "dim": Field("size"),
        "n_heads": Field("size"),
        "hidden_dim": Field("size"),
        "vocab_size": Field("size"),
        "max_position_embeddings": Field("size", 512),
        "activation": Field("name", "gelu"),
    },
    _BERT_NEUTRAL | {"model_type": ("distilbert",)},
    HARMLESS
    | _NO_END
    | {
        "dropout, for training": ("dropout", "qa_dropout", "seq_classif_dropout"),
        "how the table of positions began: the files have it": (
            "sinusoidal_pos_embds",
        ),
        "of heads, which are not here": ("tie_weights_", "tie_word_embeddings"),
    },
)

GPT2 = Family(
    {
        "n_layer": Field("layers"),
        "n_embd": Field("size"),
        "n_head": Field("size"),
        "vocab_size": Field("size"),
        "n_positions": Field("size"),
        "n_inner": Field("size", None),
        "tie_word_embeddings": Field("flag", True),
        "activation_function": Field("name", "gelu_new"),
        "layer_norm_epsilon": Field("number", 1e-5),
        "is_causal": Field("flag", True),
        "scale_attn_weights": Field("flag", True),
        "scale_attn_by_inverse_layer_idx": Field("flag", False),
        "eos_token_id": Field("tokens", 50256, null=True),
    },
    NEUTRAL | {"model_type": ("gpt2",)},
    HARMLESS
    | {
        "dropout, for training": ("attn_pdrop", "embd_pdrop", "resid_pdrop"),
        "the softmax is in float32 at least": ("reorder_and_upcast_attn",),
        "a language model is causal with it and without": ("is_decoder",),
        "of old versions, which the new ones do not read": (
            "n_ctx",
            "n_special",
            "predict_special_tokens",
        ),
        "of a head that sums up a sequence, which is not here": (
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
        ),
    },
)

# Of Llama and what is built as it. Whole heads are turned: their classes pass over
# partial_rotary_factor, or fail with it.
_LLAMA_READ = {
    "num_hidden_layers": Field("layers"),
    "hidden_size": Field("size"),
    "num_attention_heads": Field("size"),
    "intermediate_size": Field("size"),
    "vocab_size": Field("size"),
    "head_dim": Field("size", None),
    "num_key_value_heads": Field("size", None),
    "max_position_embeddings": Field("size", None),
    "original_max_position_embeddings": Field("size", None),
    "rope_parameters": Field("mapping", None),
    "rope_scaling": Field("mapping", None),
    "rope_theta": Field("number", None),
    "tie_word_embeddings": Field("flag", False),
    "hidden_act": Field("name", "silu"),
    "rms_norm_eps": Field("number", 1e-6),
    "is_causal": Field("flag", True),
    "eos_token_id": Field("tokens", None),
}
_LLAMA_NEUTRAL = NEUTRAL | {
    "partial_rotary_factor": (1.0,),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
}
_NO_BIASES: dict[str, tuple[object, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
}
_LLAMA_HARMLESS = HARMLESS | {
    "a language model is causal with it and without": ("is_decoder",),
    "of tools that made the file": ("is_llama_config", "max_sequence_length"),
}

LLAMA = Family(
    _LLAMA_READ
    | {
        "eos_token_id": Field("tokens", 2, null=True),
        "attention_bias": Field("flag", False),
        "mlp_bias": Field("flag", False),
        "sliding_window": Field("size", None),
        "layer_types": Field("names", None),
    },
    _LLAMA_NEUTRAL | {"model_type": ("llama",)},
    _LLAMA_HARMLESS,
)

MISTRAL = Family(
    _LLAMA_READ
    | {
        "eos_token_id": Field("tokens", 2, null=True),
        "num_key_value_heads": Field("size", 8, null=True),
        "sliding_window": Field("size", 4096, null=True),
        "layer_types": Field("names", None),
    },
    _LLAMA_NEUTRAL | _NO_BIASES | {"model_type": ("mistral",)},
    _LLAMA_HARMLESS,
)

_QWEN_READ = _LLAMA_READ | {
    "num_key_value_heads": Field("size", 32, null=True),
    "use_sliding_window": Field("flag", False),
    "sliding_window": Field("size", 4096, null=True),
    "max_window_layers": Field("count", 28),
    "layer_types": Field("names", None),
}

QWEN2 = Family(
    _QWEN_READ,
    _LLAMA_NEUTRAL | _NO_BIASES | {"model_type": ("qwen2",)},
    _LLAMA_HARMLESS,
)

QWEN3 = Family(
    _QWEN_READ
    | {
        "head_dim": Field("size", 128, null=True),
        "attention_bias": Field("flag", False),
    },
    _LLAMA_NEUTRAL | {"model_type": ("qwen3",), "mlp_bias": (False,)},
    _LLAMA_HARMLESS,
)

PHI3 = Family(
    _LLAMA_READ
    | {
        "eos_token_id": Field("tokens", 32000, null=True),
        "rms_norm_eps": Field("number", 1e-5),
        "max_position_embeddings": Field("size", 4096),
        "original_max_position_embeddings": Field("size", 4096),
        "partial_rotary_factor": Field("number", None),
        "sliding_window": Field("size", None),
    },
    {
        name: values
        for name, values in _LLAMA_NEUTRAL.items()
        if name != "partial_rotary_factor"
    }
    | _NO_BIASES
    | {"model_type": ("phi3",)},
    _LLAMA_HARMLESS | {"dropout, for training": ("embd_pdrop", "resid_pdrop")},
)

_GEMMA_READ = {
    name: field
    for name, field in _LLAMA_READ.items()
    if name not in ("hidden_act", "is_causal")
} | {
    "eos_token_id": Field("tokens", 1, null=True),
    "num_key_value_heads": Field("size", 4, null=True),
    "head_dim": Field("size", 256),
    "tie_word_embeddings": Field("flag", True),
    "hidden_activation": Field("name", "gelu_pytorch_tanh"),
    "attention_bias": Field("flag", False),
    "query_pre_attn_scalar": Field("number", 256),
    "sliding_window": Field("size", 4096, null=True),
    "layer_types": Field("names", None),
}
_GEMMA_NEUTRAL = _LLAMA_NEUTRAL | {
    "is_causal": (True,),
    "mlp_bias": (False,),
}
_GEMMA_HARMLESS = _LLAMA_HARMLESS | {
    "of old versions, which read hidden_activation": ("hidden_act",),
    "how keys and values are kept": ("cache_implementation",),
    "what their class writes beside layer_types": ("_sliding_window_pattern",),
}

GEMMA2 = Family(
    _GEMMA_READ
    | {
        "final_logit_softcapping": Field("number", 30.0, null=True),
        "attn_logit_softcapping": Field("number", 50.0, null=True),
    },
    _GEMMA_NEUTRAL
    | {"model_type": ("gemma2",), "use_bidirectional_attention": (False,)},
    _GEMMA_HARMLESS,
)

# Their class passes over attn_logit_softcapping.
GEMMA3 = Family(
    _GEMMA_READ
    | {
        "final_logit_softcapping": Field("number", None),
        "sliding_window_pattern": Field("size", 6),
        "use_bidirectional_attention": Field("flag", False),
        "rope_local_base_freq": Field("number", None),
    },
    _GEMMA_NEUTRAL | {"model_type": ("gemma3_text",), "attn_logit_softcapping": ()},
    _GEMMA_HARMLESS,
)

FAMILIES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": XLM_ROBERTA,
    "distilbert": DISTILBERT,
    "mpnet": MPNET,
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "phi3": PHI3,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
}
