"""Small models in the names of their checkpoints, and their arithmetic in float64.

Written from the papers, without attnpy, with matrices as checkpoints store them: the
oracle of test_models.py, test_checkpoints.py and test_minilm.py.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from attnpy import _families
from support.formulas import (
    clamped,
    gelu,
    gelu_tanh,
    layer_norm,
    relu2,
    rms_norm,
    silu,
    softmax,
)

BERT = {
    "model_type": "bert",
    "num_hidden_layers": 2,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "vocab_size": 30,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
ROBERTA = {
    **BERT,
    "model_type": "roberta",
    "max_position_embeddings": 18,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "layer_norm_eps": 1e-5,
}
XLM_ROBERTA = {**ROBERTA, "model_type": "xlm-roberta", "pad_token_id": 3}
XLM_ROBERTA_XL = {**ROBERTA, "model_type": "xlm-roberta-xl"}
ROBERTA_PRELAYERNORM = {**ROBERTA, "model_type": "roberta-prelayernorm"}
CAMEMBERT = {**ROBERTA, "model_type": "camembert"}
DATA2VEC_TEXT = {**ROBERTA, "model_type": "data2vec-text"}
MPNET = {
    **{name: value for name, value in BERT.items() if name != "type_vocab_size"},
    "model_type": "mpnet",
    "max_position_embeddings": 18,
    "layer_norm_eps": 1e-5,
}
DISTILBERT = {
    "model_type": "distilbert",
    "n_layers": 2,
    "dim": 12,
    "n_heads": 3,
    "hidden_dim": 20,
    "vocab_size": 30,
    "max_position_embeddings": 16,
    "activation": "gelu",
}
ELECTRA = {**BERT, "model_type": "electra", "embedding_size": 6}
ALBERT = {
    **BERT,
    "model_type": "albert",
    "embedding_size": 6,
    "num_hidden_layers": 3,
    "hidden_act": "gelu_new",
}
MODERNBERT = {
    **{name: value for name, value in MPNET.items() if name != "hidden_act"},
    "model_type": "modernbert",
    "num_hidden_layers": 4,
    "max_position_embeddings": 16,
    "norm_eps": 1e-5,
    "local_attention": 5,
    "global_rope_theta": 700.0,
    "local_rope_theta": 50.0,
}
del MODERNBERT["layer_norm_eps"]
EUROBERT = {
    "model_type": "eurobert",
    "num_hidden_layers": 2,
    "hidden_size": 12,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 20,
    "vocab_size": 30,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "tie_word_embeddings": False,
}
NOMIC_BERT = {
    **BERT,
    "model_type": "nomic_bert",
    "hidden_act": "silu",
    "rope_theta": 500.0,
}
GTE = {**NOMIC_BERT, "model_type": "gte", "type_vocab_size": 1, "hidden_act": "gelu"}
NEW = {
    **GTE,
    "model_type": "new",
    "type_vocab_size": 0,
    "rope_scaling": {"type": "ntk", "factor": 8.0},
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
}
JINA_V3 = {
    **GTE,
    "model_type": "jina_embeddings_v3",
    "layer_norm_eps": 1e-5,
}
# As the folder of jina-embeddings-v2 has them, but for "bert" as its model_type.
JINA_BERT = {
    **BERT,
    "model_type": "jina-bert-v2",
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
}
# As the folders of ESM-2 have them; 9 is the token that masks others.
ESM = {
    **{name: x for name, x in BERT.items() if name != "type_vocab_size"},
    "model_type": "esm",
    "position_embedding_type": "rotary",
    "emb_layer_norm_before": False,
    "token_dropout": True,
    "mask_token_id": 9,
    "pad_token_id": 1,
    "esmfold_config": None,
    "is_folding_model": False,
    "vocab_list": None,
}
JINA_BERT_CODE = {**JINA_BERT, "model_type": "jina-bert-v2-code"}
JINA_BERTS = {config["model_type"]: config for config in (JINA_BERT, JINA_BERT_CODE)}
DEBERTA = {
    **BERT,
    "model_type": "deberta",
    "layer_norm_eps": 1e-7,
    "type_vocab_size": 0,
    "position_biased_input": False,
    "relative_attention": True,
    "pos_att_type": "c2p|p2c",
    "max_relative_positions": 5,
}
DEBERTA_V2 = {
    **DEBERTA,
    "model_type": "deberta-v2",
    "max_relative_positions": -1,
    "position_buckets": 8,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}
# Whose scores have embeddings of distances in them.
DISENTANGLED = {config["model_type"]: config for config in (DEBERTA, DEBERTA_V2)}
# With rotary positions, and all but the last with a gate in their networks.
GATED = {
    config["model_type"]: config
    for config in (MODERNBERT, EUROBERT, NOMIC_BERT, GTE, NEW, JINA_V3)
}
KIN = {
    config["model_type"]: config
    for config in (
        *(
            BERT,
            ROBERTA,
            XLM_ROBERTA,
            XLM_ROBERTA_XL,
            ROBERTA_PRELAYERNORM,
            CAMEMBERT,
            DATA2VEC_TEXT,
            DISTILBERT,
            MPNET,
            ELECTRA,
            ALBERT,
        ),
    )
}
ENCODERS = {**KIN, **GATED, **DISENTANGLED, "esm": ESM, **JINA_BERTS}
# Those for which Transformers has classes of their own.
CLASSED = [kind for kind in ENCODERS if kind not in ("new", *JINA_BERTS)]
GPT2 = {
    "model_type": "gpt2",
    "eos_token_id": None,
    "n_layer": 2,
    "n_embd": 12,
    "n_head": 3,
    "vocab_size": 30,
    "n_positions": 16,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
}
GPT_NEO = {
    "model_type": "gpt_neo",
    "eos_token_id": None,
    "num_layers": 2,
    "hidden_size": 12,
    "num_heads": 3,
    "vocab_size": 30,
    "max_position_embeddings": 64,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 3,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
}
GPT_BIGCODE = {
    **GPT2,
    "model_type": "gpt_bigcode",
    "n_positions": 64,
    "activation_function": "gelu_pytorch_tanh",
}
OPT = {
    "model_type": "opt",
    "eos_token_id": None,
    "num_hidden_layers": 2,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "ffn_dim": 20,
    "vocab_size": 30,
    "max_position_embeddings": 64,
}
GPTJ = {
    **GPT2,
    "model_type": "gptj",
    "n_positions": 64,
    "n_embd": 24,
    "rotary_dim": 4,
    "tie_word_embeddings": False,
}
LLAMA = {
    "model_type": "llama",
    "eos_token_id": None,
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "vocab_size": 30,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "max_position_embeddings": 64,
}
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": 3}
QWEN2 = {
    **LLAMA,
    "model_type": "qwen2",
    "tie_word_embeddings": True,
    "sliding_window": 3,
    "use_sliding_window": False,
    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 6}
PHI3 = {
    **LLAMA,
    "model_type": "phi3",
    "hidden_size": 32,
    "max_position_embeddings": 64,
    "original_max_position_embeddings": 6,
    "partial_rotary_factor": 0.5,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0, 1.5],
        "long_factor": [2.0, 5.0],
    },
}
GEMMA2 = {
    "model_type": "gemma2",
    "eos_token_id": None,
    "num_hidden_layers": 3,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 20,
    "vocab_size": 30,
    "max_position_embeddings": 64,
    "rope_theta": 500.0,
    "query_pre_attn_scalar": 9,
    "sliding_window": 3,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
}
GEMMA3 = {
    **GEMMA2,
    "model_type": "gemma3_text",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "sliding_window_pattern": 3,
    "rope_local_base_freq": 50.0,
    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
}
GEMMA = {
    **{name: GEMMA2[name] for name in ("eos_token_id", "hidden_size", "vocab_size")},
    "model_type": "gemma",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 20,
    "max_position_embeddings": 64,
    "rope_theta": 500.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
}
SMOLLM3 = {
    **LLAMA,
    "model_type": "smollm3",
    "num_hidden_layers": 3,
    "no_rope_layer_interval": 3,
    "tie_word_embeddings": True,
}
GRANITE = {
    **LLAMA,
    "model_type": "granite",
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.0,
}
PHI = {
    **{
        name: x
        for name, x in LLAMA.items()
        if name not in ("rms_norm_eps", "hidden_act")
    },
    "model_type": "phi",
    "hidden_size": 32,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu_new",
    "partial_rotary_factor": 0.5,
}
GPT_NEOX = {
    **{
        name: PHI[name]
        for name in PHI
        if name not in ("num_key_value_heads", "partial_rotary_factor", "rope_theta")
    },
    "model_type": "gpt_neox",
    "hidden_act": "gelu",
    "rotary_pct": 0.5,
    "rotary_emb_base": 500.0,
}
OLMO2 = {**LLAMA, "model_type": "olmo2", "rms_norm_eps": 1e-5}
OLMO3 = {
    **OLMO2,
    "model_type": "olmo3",
    "num_hidden_layers": 4,
    "sliding_window": 3,
    "rope_theta": 500_000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
}
EXAONE = {**LLAMA, "model_type": "exaone"}
FALCON = {
    "model_type": "falcon",
    "eos_token_id": None,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_kv_heads": 2,
    "vocab_size": 30,
    "max_position_embeddings": 64,
    "rope_theta": 500.0,
    "new_decoder_architecture": True,
    "num_ln_in_parallel_attn": 1,
    "bias": True,
}
BLOOM = {
    "model_type": "bloom",
    "eos_token_id": None,
    "n_layer": 2,
    "hidden_size": 24,
    "n_head": 3,
    "vocab_size": 30,
    "layer_norm_epsilon": 1e-5,
}
MPT = {
    "model_type": "mpt",
    "n_layers": 2,
    "d_model": 32,
    "n_heads": 4,
    "vocab_size": 30,
    "max_seq_len": 64,
    "attn_config": {"alibi": True, "attn_impl": "torch", "softmax_scale": 0.4},
}
EXAONE4 = {
    **OLMO2,
    "model_type": "exaone4",
    "num_hidden_layers": 4,
    "sliding_window": 3,
    "sliding_window_pattern": 2,
}
ERNIE4_5 = {**LLAMA, "model_type": "ernie4_5", "head_dim": 6, "rms_norm_eps": 1e-5}
EXPERTS = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
}
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "sliding_window": 3,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
OLMOE = {
    **LLAMA,
    "model_type": "olmoe",
    "rms_norm_eps": 1e-5,
    "num_experts": 4,
    "num_experts_per_tok": 3,
}
QWEN2_MOE = {
    **LLAMA,
    **EXPERTS,
    "model_type": "qwen2_moe",
    "num_hidden_layers": 3,
    "shared_expert_intermediate_size": 8,
    "mlp_only_layers": [1],
}
QWEN3_MOE = {
    **QWEN3,
    **EXPERTS,
    "model_type": "qwen3_moe",
    "norm_topk_prob": True,
}
GPT_OSS = {
    **LLAMA,
    "model_type": "gpt_oss",
    "num_hidden_layers": 3,
    "head_dim": 6,
    "sliding_window": 3,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
}
STARCODER2 = {
    **{
        name: x
        for name, x in LLAMA.items()
        if name not in ("rms_norm_eps", "hidden_act")
    },
    "model_type": "starcoder2",
    "hidden_act": "gelu_pytorch_tanh",
    "norm_epsilon": 1e-5,
    "sliding_window": 3,
}
STABLELM = {
    **{name: x for name, x in LLAMA.items() if name != "rms_norm_eps"},
    "model_type": "stablelm",
    "hidden_size": 32,
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
}
NEMOTRON = {
    **{
        name: x
        for name, x in LLAMA.items()
        if name not in ("rms_norm_eps", "hidden_act")
    },
    "model_type": "nemotron",
    "hidden_size": 32,
    "hidden_act": "relu2",
    "norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
}
COHERE = {
    **{name: x for name, x in LLAMA.items() if name != "rms_norm_eps"},
    "model_type": "cohere",
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.5,
    "tie_word_embeddings": True,
}
COHERE2 = {
    **COHERE,
    "model_type": "cohere2",
    "num_hidden_layers": 4,
    "sliding_window": 3,
}
GLM = {**LLAMA, "model_type": "glm", "head_dim": 8, "partial_rotary_factor": 0.5}
GLM4 = {**GLM, "model_type": "glm4"}
ARCEE = {**LLAMA, "model_type": "arcee", "hidden_act": "relu2", "rms_norm_eps": 1e-5}
SEED_OSS = {**LLAMA, "model_type": "seed_oss", "head_dim": 6}
GRANITE4 = {
    **{name: x for name, x in GRANITE.items() if name != "intermediate_size"},
    "model_type": "granitemoehybrid",
    "shared_intermediate_size": 20,
    "position_embedding_type": "rope",
    "layer_types": ["attention", "attention"],
    "num_local_experts": 0,
    "mamba_n_heads": 16,
}
GRANITEMOE = {
    **GRANITE,
    "model_type": "granitemoe",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
# Those whose norms are of results.
AFTER_ALONE = "olmo2", "olmo3", "exaone4"
# Where experts are in a checkpoint: the router, gate, up and down.
EXPERTS_NAMES = {
    **dict.fromkeys(
        ("olmoe", "qwen2_moe", "qwen3_moe"),
        ("mlp", "gate_proj", "up_proj", "down_proj"),
    ),
    "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
}
DECODERS = {
    config["model_type"]: config
    for config in (
        GPT2,
        LLAMA,
        MISTRAL,
        QWEN2,
        QWEN3,
        PHI3,
        GEMMA,
        GEMMA2,
        GEMMA3,
        SMOLLM3,
        GRANITE,
        PHI,
        GPT_NEOX,
        OLMO2,
        OLMO3,
        EXAONE,
        EXAONE4,
        ERNIE4_5,
        GRANITE4,
        GPT_NEO,
        GPT_BIGCODE,
        OPT,
        GPTJ,
        FALCON,
        BLOOM,
        MPT,
        STARCODER2,
        STABLELM,
        NEMOTRON,
        COHERE,
        COHERE2,
        GLM,
        GLM4,
        ARCEE,
        SEED_OSS,
        MIXTRAL,
        OLMOE,
        QWEN2_MOE,
        QWEN3_MOE,
        GRANITEMOE,
        GPT_OSS,
    )
}
# The family of names of a model's checkpoint.
NAMES = {kind: family.checkpoint for kind, family in _families.FAMILIES.items()}

# A sequence of tokens, and the lengths of three in a batch.
IDS = np.array([7, 1, 29, 4, 4, 0, 18, 11, 2])
LENGTHS = [4, 9, 1]


def batch():
    """Three sequences of LENGTHS, with another token after their ends."""
    rows = np.full((3, 9), 13)
    for row, n in zip(rows, LENGTHS, strict=True):
        row[:n] = (IDS[:n] + n) % 30
    return rows


# The names of a head that scores texts: its two matrices, and what is between them.
HEADS = {
    "bert": ("pooler.dense", "classifier", np.tanh),
    "distilbert": ("pre_classifier", "classifier", lambda x: np.maximum(x, 0)),
}
HEADS |= {
    "albert": ("pooler", "classifier", np.tanh),
    "electra": ("classifier.dense", "classifier.out_proj", gelu),
}
HEADS |= dict.fromkeys(DISENTANGLED, ("pooler.dense", "classifier", gelu))
HEADS |= {"modernbert": ("head.dense", "classifier", gelu)}
HEADS |= {"eurobert": ("dense", "classifier", gelu)}
HEADS |= dict.fromkeys(("nomic_bert", "gte", "new", *JINA_BERTS), HEADS["bert"])
HEADS |= dict.fromkeys(
    (
        *("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet"),
        *("roberta-prelayernorm", "data2vec-text"),
        *("jina_embeddings_v3", "esm"),
    ),
    ("classifier.dense", "classifier.out_proj", np.tanh),
)


def head(config, n_labels, seed=5):
    """Random float32 arrays of a head by name."""
    rng, size = np.random.default_rng(seed), _bert_size(config, "hidden_size")
    dense, scores, _ = HEADS[config["model_type"]]
    shapes = {dense: (size, size), scores: (n_labels, size)}
    if config["model_type"] == "modernbert":
        shapes[f"{dense}.weight"] = shapes.pop(dense)
        shapes["head.norm.weight"] = (size,)
    return {
        name: rng.standard_normal(shape, dtype=np.float32) / np.float32(size**0.5)
        for name, shape in _with_biases(shapes, 0).items()
    }


def text_scores(weights, config, ids, types=0):
    """What the head says of one text, (labels,)."""
    w = {name: np.asarray(array, float) for name, array in weights.items()}
    dense, scores, activation = HEADS[config["model_type"]]
    states = bert_states(weights, config, np.asarray(ids), types)
    first = states[:1]
    usual = "late" if config["model_type"] == "eurobert" else "cls"
    pooling = config.get("classifier_pooling", usual)
    if pooling == "mean":
        first = states.mean(axis=0, keepdims=True)
    first = activation(torch_linear(states if pooling == "late" else first, w, dense))
    if "head.norm.weight" in w:
        first = named_norm(first, w, "head.norm", config["norm_eps"])
    return torch_linear(first, w, scores).mean(axis=0)


def tensors(config, seed=0):
    """Random float32 arrays by name."""
    rng = np.random.default_rng(seed)
    makers = {**dict.fromkeys(KIN, _bert_shapes), "gpt2": _gpt2_shapes}
    makers |= {"phi": _phi_shapes, "gpt_neox": _neox_shapes}
    makers |= {"gpt_neo": _gpt_kin_shapes, "gpt_bigcode": _gpt_kin_shapes}
    makers |= {"opt": _opt_shapes, "gptj": _gptj_shapes, "falcon": _falcon_shapes}
    makers |= {"bloom": _bloom_shapes, "mpt": _mpt_shapes}
    makers |= dict.fromkeys(FORMS, _formed_shapes)
    makers |= dict.fromkeys(DISENTANGLED, _disentangled_shapes)
    makers |= dict.fromkeys(JINA_BERTS, _jina_shapes) | {"esm": _esm_shapes}
    makers |= dict.fromkeys(GATED, _gated_shapes) | {"modernbert": _modernbert_shapes}
    makers |= {"eurobert": _eurobert_shapes}
    shapes = makers.get(config["model_type"], _llama_shapes)(config)
    return {
        name: rng.standard_normal(shape, dtype=np.float32) * np.float32(_spread(shape))
        for name, shape in shapes.items()
    }


def _spread(shape):
    """How large numbers are; those of gpt-oss's experts so that some are clamped."""
    if len(shape) == 3:
        return 3 * shape[1] ** -0.5
    return shape[-1] ** -0.5 if len(shape) == 2 else 1


# What BERT's kin call its arrays, and DistilBERT its sizes.
_BERT_WORDS = {
    "distilbert": {
        "encoder.layer.": "transformer.layer.",
        "attention.self.query": "attention.q_lin",
        "attention.self.key": "attention.k_lin",
        "attention.self.value": "attention.v_lin",
        "attention.output.dense": "attention.out_lin",
        "attention.output.LayerNorm": "sa_layer_norm",
        "intermediate.dense": "ffn.lin1",
        "output.dense": "ffn.lin2",
        "output.LayerNorm": "output_layer_norm",
    },
    "albert": {
        "encoder.layer.": "encoder.albert_layer_groups.0.albert_layers.",
        "attention.self.": "attention.",
        "attention.output.dense": "attention.dense",
        "attention.output.LayerNorm": "attention.LayerNorm",
        "intermediate.dense": "ffn",
        "output.dense": "ffn_output",
        "output.LayerNorm": "full_layer_layer_norm",
    },
    "xlm-roberta-xl": {
        "embeddings.LayerNorm": "encoder.LayerNorm",
        "attention.output.LayerNorm": "attention.self_attn_layer_norm",
        "output.LayerNorm": "LayerNorm",
    },
    "roberta-prelayernorm": {
        "attention.output.LayerNorm": "attention.LayerNorm",
        "output.LayerNorm": "intermediate.LayerNorm",
    },
    "mpnet": {
        "attention.self.query": "attention.attn.q",
        "attention.self.key": "attention.attn.k",
        "attention.self.value": "attention.attn.v",
        "attention.output.dense": "attention.attn.o",
        "attention.output.LayerNorm": "attention.LayerNorm",
    },
}
_BERT_SIZES = {
    "num_hidden_layers": "n_layers",
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
}


def _bert_size(config, name):
    return config[name] if name in config else config[_BERT_SIZES[name]]


def _kin_name(config, name):
    """A name of BERT as its kin has it."""
    for berts, theirs in _BERT_WORDS.get(config["model_type"], {}).items():
        name = name.replace(berts, theirs)
    return name


def _layer_name(config, i, part):
    return _kin_name(config, f"encoder.layer.{i}.{part}")


# What takes embeddings of another size to that of the layers.
PROJECTIONS = {
    "electra": "embeddings_project",
    "albert": "encoder.embedding_hidden_mapping_in",
}


def _bert_shapes(config):
    n, e, heads, f = (_bert_size(config, name) for name in _BERT_SIZES)
    d = config.get("embedding_size", e)
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], d),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], d),
        "embeddings.LayerNorm": (d,),
    }
    if config["model_type"] in PROJECTIONS:
        shapes[PROJECTIONS[config["model_type"]]] = (e, d)
    n = 1 if config["model_type"] == "albert" else n
    if "type_vocab_size" in config:
        types = (config["type_vocab_size"], d)
        shapes["embeddings.token_type_embeddings.weight"] = types
    if config["model_type"] == "roberta-prelayernorm":
        shapes["LayerNorm"] = (e,)
    if config["model_type"] == "mpnet":
        shapes["encoder.relative_attention_bias.weight"] = (32, heads)
    for i in range(n):
        layer = f"encoder.layer.{i}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{layer}.attention.{part}"] = (e, e)
        shapes[f"{layer}.attention.output.LayerNorm"] = (e,)
        shapes[f"{layer}.intermediate.dense"] = (f, e)
        shapes[f"{layer}.output.dense"] = (e, f)
        shapes[f"{layer}.output.LayerNorm"] = (e,)
    shapes = _with_biases(shapes, 0)
    return {_kin_name(config, name): shape for name, shape in shapes.items()}


def _gated_shapes(config):
    """Those of NomicBERT, GTE and jina, in today's names; or Alibaba-NLP's."""
    n, e, _, f = (_bert_size(config, name) for name in _BERT_SIZES)
    kind, biased = config["model_type"], config["model_type"] != "nomic_bert"
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], e),
        "embeddings.LayerNorm": (e,),
    }
    if config["type_vocab_size"]:
        types = (config["type_vocab_size"], e)
        shapes["embeddings.token_type_embeddings.weight"] = types
    for i in range(n):
        layer = f"encoder.layer.{i}" if kind == "new" else f"layers.{i}"
        end = "" if biased else ".weight"
        if kind == "new":
            shapes[f"{layer}.attention.qkv_proj"] = (3 * e, e)
            shapes[f"{layer}.attention.o_proj"] = (e, e)
            shapes[f"{layer}.mlp.up_gate_proj.weight"] = (2 * f, e)
            shapes[f"{layer}.attn_ln"] = shapes[f"{layer}.mlp_ln"] = (e,)
        else:
            for letter in "qkvo":
                shapes[f"{layer}.self_attn.{letter}_proj{end}"] = (e, e)
            for part in ("attention", "mlp"):
                shapes[f"{layer}.post_{part}_layernorm"] = (e,)
        if kind == "jina_embeddings_v3":
            shapes |= {f"{layer}.mlp.fc1": (f, e), f"{layer}.mlp.fc2": (e, f)}
            continue
        if kind != "new":
            for part in ("gate", "up"):
                shapes[f"{layer}.mlp.{part}_proj.weight"] = (f, e)
        shapes[f"{layer}.mlp.down_proj{end}"] = (e, f)
    return _with_biases(shapes, 0)


def _jina_shapes(config):
    """Those of jina-embeddings-v2: BERT's, without positions, and other networks."""
    _, e, _, f = (_bert_size(config, name) for name in _BERT_SIZES)
    shapes = {}
    for name, shape in _bert_shapes(config).items():
        layer, _, rest = name.partition(".intermediate.dense.")
        if rest == "weight":
            shapes[f"{layer}.mlp.gated_layers.weight"] = (2 * f, e)
        elif "position" not in name and not rest:
            name = name.replace(".output.dense", ".mlp.wo")
            name = name.replace(".output.LayerNorm", ".mlp.layernorm")
            name = name.replace("attention.mlp.wo", "attention.output.dense")
            name = name.replace("attention.mlp.layernorm", "attention.output.LayerNorm")
            shapes[name] = shape
    if config["model_type"] == "jina-bert-v2":
        return shapes
    new = {}
    for name, shape in shapes.items():
        for old, its in _OF_JINAS_CODE.items():
            name = name.replace(old, its)
        new[name] = shape
    for name in [name for name in new if "layer_norm_2" in name]:
        for other in ("layer_norm_1", *_NORMS_OF_JINAS_CODE):
            new[name.replace("layer_norm_2", other)] = (e,)
    return new


def _esm_shapes(config):
    """Those of ESM-2, or with a table of positions of ESM-1b."""
    e, shapes = config["hidden_size"], {}
    for name, shape in _bert_shapes(config).items():
        if "position_embeddings" in name and config["position_embedding_type"] != (
            "absolute"
        ):
            continue
        if "embeddings.LayerNorm" in name:
            if not config["emb_layer_norm_before"]:
                continue
            name = name.replace("LayerNorm", "layer_norm")
        name = name.replace("attention.output.LayerNorm", "attention.LayerNorm")
        shapes[name.replace(".output.LayerNorm", ".LayerNorm")] = shape
    return shapes | _with_biases({"encoder.emb_layer_norm_after": (e,)}, 0)


def _esm_states(w, config, ids):
    """The vectors of ESM: embeddings of masked tokens are left out."""
    n_heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    is_rotary = config["position_embedding_type"] == "rotary"
    x = w["embeddings.word_embeddings.weight"][ids]
    if config["token_dropout"]:
        masked = ids == config["mask_token_id"]
        x = np.where(masked[:, None], 0, x) * (1 - 0.15 * 0.8) / (1 - masked.mean())
    if not is_rotary:
        x = x + w["embeddings.position_embeddings.weight"][_places(config, ids)]
    if config["emb_layer_norm_before"]:
        x = named_norm(x, w, "embeddings.layer_norm", eps)
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        y = named_norm(x, w, f"{layer}.attention.LayerNorm", eps)
        query, key, value = (
            torch_linear(y, w, f"{layer}.attention.self.{part}")
            for part in ("query", "key", "value")
        )
        if is_rotary:
            theta = config.get("rope_theta", 10_000.0)
            query, key = (_turned(z, n_heads, theta) for z in (query, key))
        z = attend(query, key, value, n_heads)
        x = x + torch_linear(z, w, f"{layer}.attention.output.dense")
        y = named_norm(x, w, f"{layer}.LayerNorm", eps)
        hidden = gelu(torch_linear(y, w, f"{layer}.intermediate.dense"))
        x = x + torch_linear(hidden, w, f"{layer}.output.dense")
    return named_norm(x, w, "encoder.emb_layer_norm_after", eps)


# What jina's code for code calls it; its norms of queries and keys.
_OF_JINAS_CODE = {
    "mlp.gated_layers": "mlp.up_gated_layer",
    "mlp.wo": "mlp.down_layer",
    "mlp.layernorm": "layer_norm_2",
}
_NORMS_OF_JINAS_CODE = "attention.self.layer_norm_q", "attention.self.layer_norm_k"


def _distances(config):
    """How many distances on either side have an embedding of their own, or share it."""
    most = config["max_relative_positions"]
    most = config["max_position_embeddings"] if most < 1 else most
    return config.get("position_buckets", most), most


def _disentangled_shapes(config):
    n, e, _, f = (_bert_size(config, name) for name in _BERT_SIZES)
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], e),
        "embeddings.LayerNorm": (e,),
        "encoder.rel_embeddings.weight": (2 * _distances(config)[0], e),
    }
    if config.get("norm_rel_ebd") == "layer_norm":
        shapes["encoder.LayerNorm"] = (e,)
    for i in range(n):
        layer = f"encoder.layer.{i}"
        if config["model_type"] == "deberta":
            shapes[f"{layer}.attention.self.in_proj.weight"] = (3 * e, e)
            shapes[f"{layer}.attention.self.pos_proj.weight"] = (e, e)
            shapes[f"{layer}.attention.self.pos_q_proj"] = (e, e)
        else:
            for part in ("query", "key", "value"):
                shapes[f"{layer}.attention.self.{part}_proj"] = (e, e)
        shapes[f"{layer}.attention.output.dense"] = (e, e)
        shapes[f"{layer}.attention.output.LayerNorm"] = (e,)
        shapes[f"{layer}.intermediate.dense"] = (f, e)
        shapes[f"{layer}.output.dense"] = (e, f)
        shapes[f"{layer}.output.LayerNorm"] = (e,)
    shapes = _with_biases(shapes, 0)
    if config["model_type"] == "deberta":
        for i in range(n):
            for letter in "qv":
                shapes[f"encoder.layer.{i}.attention.self.{letter}_bias"] = (e,)
    return shapes


def _modernbert_shapes(config):
    n, e, _, f = (_bert_size(config, name) for name in _BERT_SIZES)
    names = ["embeddings.norm", "final_norm"]
    shapes = {"embeddings.tok_embeddings.weight": (config["vocab_size"], e)}
    for i in range(n):
        layer = f"layers.{i}"
        shapes[f"{layer}.attn.Wqkv.weight"] = (3 * e, e)
        shapes[f"{layer}.attn.Wo.weight"] = (e, e)
        shapes[f"{layer}.mlp.Wi.weight"] = (2 * f, e)
        shapes[f"{layer}.mlp.Wo.weight"] = (e, f)
        names += [f"{layer}.attn_norm"] * (i > 0) + [f"{layer}.mlp_norm"]
    return shapes | {f"{name}.weight": (e,) for name in names}


def _eurobert_shapes(config):
    shapes = _llama_shapes(config)
    del shapes["lm_head.weight"]
    return {name.removeprefix("model."): shape for name, shape in shapes.items()}


def _gpt2_shapes(config):
    n, e = config["n_layer"], config["n_embd"]
    shapes = {
        "wte.weight": (config["vocab_size"], e),
        "wpe.weight": (config["n_positions"], e),
        "ln_f": (e,),
    }
    for i in range(n):
        shapes[f"h.{i}.ln_1"] = shapes[f"h.{i}.ln_2"] = (e,)
        shapes[f"h.{i}.attn.c_attn"] = (e, 3 * e)
        shapes[f"h.{i}.attn.c_proj"] = (e, e)
        shapes[f"h.{i}.mlp.c_fc"] = (e, 4 * e)
        shapes[f"h.{i}.mlp.c_proj"] = (4 * e, e)
    return _with_biases(shapes, 1)


def _gpt_sizes(config):
    """The numbers of layers, of a token and of heads of GPT-2's kin."""
    if config["model_type"] == "gpt_neo":
        return config["num_layers"], config["hidden_size"], config["num_heads"]
    return config["n_layer"], config["n_embd"], config["n_head"]


def _gpt_kin_shapes(config):
    """Those of GPT-Neo and GPT-BigCode, whose matrices are (out, in)."""
    n, e, heads = _gpt_sizes(config)
    longest = config.get("max_position_embeddings", config.get("n_positions"))
    shapes = {"wte.weight": (config["vocab_size"], e), "wpe.weight": (longest, e)}
    shapes["ln_f"] = (e,)
    for i in range(n):
        shapes[f"h.{i}.ln_1"] = shapes[f"h.{i}.ln_2"] = (e,)
        if config["model_type"] == "gpt_neo":
            for letter in "qkv":
                shapes[f"h.{i}.attn.attention.{letter}_proj.weight"] = (e, e)
            shapes[f"h.{i}.attn.attention.out_proj"] = (e, e)
        else:
            shapes[f"h.{i}.attn.c_attn"] = (e + 2 * e // heads, e)
            shapes[f"h.{i}.attn.c_proj"] = (e, e)
        shapes[f"h.{i}.mlp.c_fc"] = (4 * e, e)
        shapes[f"h.{i}.mlp.c_proj"] = (e, 4 * e)
    full = _with_biases(shapes, 0)
    return {f"transformer.{name}": shape for name, shape in full.items()}


def _opt_shapes(config):
    e, f, biased = config["hidden_size"], config["ffn_dim"], config.get("enable_bias")
    shapes = {
        "embed_tokens.weight": (config["vocab_size"], e),
        "embed_positions.weight": (config["max_position_embeddings"] + 2, e),
        "final_layer_norm": (e,),
    }
    end = ".weight" if biased is False else ""
    for i in range(config["num_hidden_layers"]):
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes[f"layers.{i}.self_attn.{part}{end}"] = (e, e)
        shapes[f"layers.{i}.fc1{end}"], shapes[f"layers.{i}.fc2{end}"] = (f, e), (e, f)
        for part in ("self_attn_layer_norm", "final_layer_norm"):
            shapes[f"layers.{i}.{part}"] = (e,)
    full = _with_biases(shapes, 0)
    return {f"model.decoder.{name}": shape for name, shape in full.items()}


def _opt_logits(w, config, ids):
    w, eps = {name.removeprefix("model.decoder."): x for name, x in w.items()}, 1e-5
    x = w["embed_tokens.weight"][ids] + w["embed_positions.weight"][2 : len(ids) + 2]
    for i in range(config["num_hidden_layers"]):
        layer = f"layers.{i}"
        y = named_norm(x, w, f"{layer}.self_attn_layer_norm", eps)
        parts = (torch_linear(y, w, f"{layer}.self_attn.{c}_proj") for c in "qkv")
        z = attend(*parts, config["num_attention_heads"], causal=True)
        x = x + torch_linear(z, w, f"{layer}.self_attn.out_proj")
        y = named_norm(x, w, f"{layer}.final_layer_norm", eps)
        hidden = np.maximum(torch_linear(y, w, f"{layer}.fc1"), 0)
        x = x + torch_linear(hidden, w, f"{layer}.fc2")
    return named_norm(x, w, "final_layer_norm", eps) @ w["embed_tokens.weight"].T


def _gptj_shapes(config):
    e = config["n_embd"]
    shapes = {"transformer.wte.weight": (config["vocab_size"], e)}
    shapes |= {"transformer.ln_f": (e,), "lm_head": (config["vocab_size"], e)}
    for i in range(config["n_layer"]):
        h = f"transformer.h.{i}"
        shapes[f"{h}.ln_1"] = (e,)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes[f"{h}.attn.{part}.weight"] = (e, e)
        shapes[f"{h}.mlp.fc_in"], shapes[f"{h}.mlp.fc_out"] = (4 * e, e), (e, 4 * e)
    return _with_biases(shapes, 0)


def _gptj_logits(w, config, ids):
    eps, n_heads, n = config["layer_norm_epsilon"], config["n_head"], len(ids)
    x = w["transformer.wte.weight"][ids]
    angles = np.arange(n)[:, np.newaxis] / 10_000 ** (
        np.arange(0, config["rotary_dim"], 2) / config["rotary_dim"]
    )

    def turned(y):
        y = y.reshape(n, n_heads, -1).copy()
        for j, angle in enumerate(angles.T[..., np.newaxis]):
            a, b = y[..., 2 * j].copy(), y[..., 2 * j + 1].copy()
            y[..., 2 * j] = a * np.cos(angle) - b * np.sin(angle)
            y[..., 2 * j + 1] = b * np.cos(angle) + a * np.sin(angle)
        return y.reshape(n, -1)

    for i in range(config["n_layer"]):
        h = f"transformer.h.{i}"
        y = named_norm(x, w, f"{h}.ln_1", eps)
        query, key, value = (torch_linear(y, w, f"{h}.attn.{c}_proj") for c in "qkv")
        z = attend(turned(query), turned(key), value, n_heads, causal=True)
        hidden = gelu_tanh(torch_linear(y, w, f"{h}.mlp.fc_in"))
        x = x + torch_linear(z, w, f"{h}.attn.out_proj")
        x = x + torch_linear(hidden, w, f"{h}.mlp.fc_out")
    return torch_linear(named_norm(x, w, "transformer.ln_f", eps), w, "lm_head")


def _falcon_shapes(config):
    e, n_kv_heads = config["hidden_size"], config["num_kv_heads"]
    head_dim = e // config["num_attention_heads"]
    shapes = {"word_embeddings.weight": (config["vocab_size"], e), "ln_f": (e,)}
    for i in range(config["num_hidden_layers"]):
        shapes[f"h.{i}.input_layernorm"] = (e,)
        rows = e + 2 * n_kv_heads * head_dim
        shapes[f"h.{i}.self_attention.query_key_value"] = (rows, e)
        shapes[f"h.{i}.self_attention.dense"] = (e, e)
        shapes[f"h.{i}.mlp.dense_h_to_4h"] = (4 * e, e)
        shapes[f"h.{i}.mlp.dense_4h_to_h"] = (e, 4 * e)
    full = _with_biases(shapes, 0)
    return {f"transformer.{name}": shape for name, shape in full.items()}


def _falcon_logits(w, config, ids):
    w = {name.removeprefix("transformer."): array for name, array in w.items()}
    n, n_heads, n_kv_heads = len(ids), config["num_attention_heads"], 2
    x, eps = w["word_embeddings.weight"][ids], 1e-5
    for i in range(config["num_hidden_layers"]):
        y = named_norm(x, w, f"h.{i}.input_layernorm", eps)
        parts = torch_linear(y, w, f"h.{i}.self_attention.query_key_value")
        parts = parts.reshape(n, n_kv_heads, n_heads // n_kv_heads + 2, -1)
        query, key = (
            rotated(part.reshape(n, heads, -1), config).reshape(n, -1)
            for part, heads in ((parts[:, :, :-2], 4), (parts[:, :, -2], 2))
        )
        value = parts[:, :, -1].reshape(n, -1)
        z = attend(query, key, value, n_heads, n_kv_heads, causal=True)
        hidden = gelu(torch_linear(y, w, f"h.{i}.mlp.dense_h_to_4h"))
        x = x + torch_linear(z, w, f"h.{i}.self_attention.dense")
        x = x + torch_linear(hidden, w, f"h.{i}.mlp.dense_4h_to_h")
    return named_norm(x, w, "ln_f", eps) @ w["word_embeddings.weight"].T


def _bloom_shapes(config):
    e = config["hidden_size"]
    shapes = {
        "word_embeddings.weight": (config["vocab_size"], e),
        "word_embeddings_layernorm": (e,),
        "ln_f": (e,),
    }
    for i in range(config["n_layer"]):
        for name in ("input", "post_attention"):
            shapes[f"h.{i}.{name}_layernorm"] = (e,)
        shapes[f"h.{i}.self_attention.query_key_value"] = (3 * e, e)
        shapes[f"h.{i}.self_attention.dense"] = (e, e)
        shapes[f"h.{i}.mlp.dense_h_to_4h"] = (4 * e, e)
        shapes[f"h.{i}.mlp.dense_4h_to_h"] = (e, 4 * e)
    full = _with_biases(shapes, 0)
    return {f"transformer.{name}": shape for name, shape in full.items()}


def _bloom_logits(w, config, ids):
    w = {name.removeprefix("transformer."): array for name, array in w.items()}
    n, n_heads, eps = len(ids), config["n_head"], config["layer_norm_epsilon"]
    bias = [slope * np.arange(n) for slope in _slopes(n_heads)]  # of their class
    x = w["word_embeddings.weight"][ids]
    x = named_norm(x, w, "word_embeddings_layernorm", eps)
    for i in range(config["n_layer"]):
        y = named_norm(x, w, f"h.{i}.input_layernorm", eps)
        parts = torch_linear(y, w, f"h.{i}.self_attention.query_key_value")
        parts = np.moveaxis(parts.reshape(n, n_heads, 3, -1), 2, 0).reshape(3, n, -1)
        z = attend(*parts, n_heads, causal=True, bias=bias)
        x = x + torch_linear(z, w, f"h.{i}.self_attention.dense")
        y = named_norm(x, w, f"h.{i}.post_attention_layernorm", eps)
        y = gelu_tanh(torch_linear(y, w, f"h.{i}.mlp.dense_h_to_4h"))
        x = x + torch_linear(y, w, f"h.{i}.mlp.dense_4h_to_h")
    return named_norm(x, w, "ln_f", eps) @ w["word_embeddings.weight"].T


def _mpt_shapes(config):
    e = config["d_model"]
    shapes = {"wte.weight": (config["vocab_size"], e), "norm_f.weight": (e,)}
    for i in range(config["n_layers"]):
        shapes[f"blocks.{i}.norm_1.weight"] = shapes[f"blocks.{i}.norm_2.weight"] = (e,)
        shapes[f"blocks.{i}.attn.Wqkv.weight"] = (3 * e, e)
        shapes[f"blocks.{i}.attn.out_proj.weight"] = (e, e)
        shapes[f"blocks.{i}.ffn.up_proj.weight"] = (4 * e, e)
        shapes[f"blocks.{i}.ffn.down_proj.weight"] = (e, 4 * e)
    return {f"transformer.{name}": shape for name, shape in shapes.items()}


def _mpt_logits(w, config, ids):
    w = {name.removeprefix("transformer."): array for name, array in w.items()}
    n_heads, eps, n = config["n_heads"], 1e-5, len(ids)
    scale = config["attn_config"].get("softmax_scale")
    times = 1 if scale is None else scale * math.sqrt(config["d_model"] // n_heads)
    bias = [slope * np.arange(1 - n, 1) for slope in _slopes(n_heads)]
    x = w["wte.weight"][ids]
    for i in range(config["n_layers"]):
        block = f"blocks.{i}"
        y = named_norm(x, w, f"{block}.norm_1", eps)
        query, key, value = np.split(y @ w[f"{block}.attn.Wqkv.weight"].T, 3, axis=-1)
        z = attend(query * times, key, value, n_heads, causal=True, bias=bias)
        x = x + z @ w[f"{block}.attn.out_proj.weight"].T
        y = named_norm(x, w, f"{block}.norm_2", eps)
        y = gelu(y @ w[f"{block}.ffn.up_proj.weight"].T)
        x = x + y @ w[f"{block}.ffn.down_proj.weight"].T
    return named_norm(x, w, "norm_f", eps) @ w["wte.weight"].T


def _gpt_kin_logits(w, config, ids):
    """Of GPT-Neo and GPT-BigCode."""
    eps, (n_layers, e, n_heads) = config["layer_norm_epsilon"], _gpt_sizes(config)
    w = {name.removeprefix("transformer."): array for name, array in w.items()}
    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
    for i in range(n_layers):
        y = named_norm(x, w, f"h.{i}.ln_1", eps)
        if config["model_type"] == "gpt_neo":
            name = f"h.{i}.attn.attention"
            query, key, value = (
                torch_linear(y, w, f"{name}.{letter}_proj") for letter in "qkv"
            )
            query, n_kv = query * math.sqrt(e // n_heads), n_heads
            window, out = config["window_size"] if i % 2 else None, f"{name}.out_proj"
        else:
            parts = torch_linear(y, w, f"h.{i}.attn.c_attn")
            query, key, value = np.split(parts, [e, e + e // n_heads], axis=1)
            n_kv, window, out = 1, None, f"h.{i}.attn.c_proj"
        z = attend(query, key, value, n_heads, n_kv, causal=True, window=window)
        x = x + torch_linear(z, w, out)
        y = named_norm(x, w, f"h.{i}.ln_2", eps)
        y = gelu_tanh(torch_linear(y, w, f"h.{i}.mlp.c_fc"))
        x = x + torch_linear(y, w, f"h.{i}.mlp.c_proj")
    return named_norm(x, w, "ln_f", eps) @ w["wte.weight"].T


def _phi_shapes(config):
    e, f = config["hidden_size"], config["intermediate_size"]
    kv = e // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], e),
        "model.final_layernorm": (e,),
        "lm_head": (config["vocab_size"], e),
    }
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        shapes[f"{layer}.input_layernorm"] = (e,)
        for letter, size in zip("qkv", (e, kv, kv), strict=True):
            shapes[f"{layer}.self_attn.{letter}_proj"] = (size, e)
        shapes[f"{layer}.self_attn.dense"] = (e, e)
        shapes[f"{layer}.mlp.fc1"] = (f, e)
        shapes[f"{layer}.mlp.fc2"] = (e, f)
    return _with_biases(shapes, 0)


def _neox_shapes(config):
    e, f = config["hidden_size"], config["intermediate_size"]
    shapes = {
        "gpt_neox.embed_in.weight": (config["vocab_size"], e),
        "gpt_neox.final_layer_norm": (e,),
        "lm_head.weight": (config["vocab_size"], e),
    }
    for i in range(config["num_hidden_layers"]):
        layer = f"gpt_neox.layers.{i}"
        for name in ("input", "post_attention"):
            shapes[f"{layer}.{name}_layernorm"] = (e,)
        shapes[f"{layer}.attention.query_key_value"] = (3 * e, e)
        shapes[f"{layer}.attention.dense"] = (e, e)
        shapes[f"{layer}.mlp.dense_h_to_4h"] = (f, e)
        shapes[f"{layer}.mlp.dense_4h_to_h"] = (e, f)
    return _with_biases(shapes, 0)


class Form(NamedTuple):
    """What a layer of a decoder is made of, in the words of its checkpoint.

    The norms before and after attention, and before and after the network; the matrices
    of the network, the last of which goes back; and those with biases.
    """

    norms: tuple = ("input_layernorm", None, "post_attention_layernorm", None)
    network: tuple = ("gate_proj", "up_proj", "down_proj")
    activation: Callable = silu
    biased: str = ""
    has_means: bool = True
    plus: int = 0
    neighbours: bool = False


_GLM = {"network": ("gate_up_proj", "down_proj"), "biased": "qkv", "neighbours": True}
_GLM |= {"has_means": False}
_ONE = "input_layernorm", None, None, None
_FOUR = (
    *("input_layernorm", "post_self_attn_layernorm"),
    *("post_attention_layernorm", "post_mlp_layernorm"),
)
FORMS = {
    "starcoder2": Form(
        network=("c_fc", "c_proj"), activation=gelu_tanh, biased="qkvo mlp"
    ),
    "stablelm": Form(),
    "nemotron": Form(network=("up_proj", "down_proj"), activation=relu2, plus=1),
    "cohere": Form(norms=_ONE, neighbours=True),
    "cohere2": Form(norms=_ONE, neighbours=True),
    "glm": Form(**_GLM),
    "glm4": Form(**_GLM, norms=_FOUR),
    "arcee": Form(network=("up_proj", "down_proj"), activation=relu2, has_means=False),
    "seed_oss": Form(biased="qkv", has_means=False),
}


def _form(config):
    """That of a configuration."""
    form = FORMS[config["model_type"]]
    if config.get("use_parallel_residual"):
        form = form._replace(norms=_ONE)
    if config.get("use_qkv_bias"):
        form = form._replace(biased="qkv")
    return form


def _formed_shapes(config):
    """Those of the decoders in FORMS."""
    form, e, f = _form(config), config["hidden_size"], config["intermediate_size"]
    d = config.get("head_dim", e // config["num_attention_heads"])
    hd, kd = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    has_biases = form.has_means and not config["model_type"].startswith("cohere")
    shapes, norms = {"model.embed_tokens.weight": (config["vocab_size"], e)}, ["norm"]
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], e)
    for i in range(config["num_hidden_layers"]):
        layer = f"layers.{i}"
        norms += [f"{layer}.{name}" for name in form.norms if name]
        for letter, size in zip("qkvo", (hd, kd, kd, e), strict=True):
            name = f"model.{layer}.self_attn.{letter}_proj"
            shapes[f"{name}.weight"] = (size, hd if letter == "o" else e)
            if letter in form.biased:
                shapes[f"{name}.bias"] = (size,)
        for part in form.network:
            name, size = f"model.{layer}.mlp.{part}", 2 * f if "gate_up" in part else f
            shape = (e, f) if part == form.network[-1] else (size, e)
            shapes[f"{name}.weight"] = shape
            if "mlp" in form.biased:
                shapes[f"{name}.bias"] = shape[:1]
    shapes |= {f"model.{name}.weight": (e,) for name in norms}
    return shapes | {f"model.{name}.bias": (e,) for name in norms if has_biases}


def _formed_logits(w, config, ids):
    """Of the decoders in FORMS."""
    form, n, kind = _form(config), len(ids), config["model_type"]
    n_heads, n_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    eps = next(config[name] for name in config if name.endswith(("_eps", "epsilon")))

    def norm(x, name):
        weight, bias = w[f"{name}.weight"] + form.plus, w.get(f"{name}.bias", 0)
        if form.has_means:
            return layer_norm(x, weight, bias, eps)
        return rms_norm(x, weight, eps)

    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        first, after, second, last = (name and f"{layer}.{name}" for name in form.norms)
        sees_all = kind == "cohere2" and (i + 1) % 4 == 0
        y = norm(x, first)
        query, key, value = (
            torch_linear(y, w, f"{layer}.self_attn.{letter}_proj") for letter in "qkv"
        )
        query, key = query.reshape(n, n_heads, -1), key.reshape(n, n_kv_heads, -1)
        if form.neighbours:  # the same order of both changes no score
            query, key = (_halves(z, config) for z in (query, key))
        if not sees_all:
            query, key = (rotated(z, config) for z in (query, key))
        z = attend(
            *(query.reshape(n, -1), key.reshape(n, -1), value, n_heads, n_kv_heads),
            causal=config.get("is_causal", True),
            window=None if sees_all else config.get("sliding_window"),
        )
        z = torch_linear(z, w, f"{layer}.self_attn.o_proj")
        z = norm(z, after) if after else z
        x, y = x + z, norm(x + z, second) if second else y
        *parts, down = (f"{layer}.mlp.{part}" for part in form.network)
        parts = [torch_linear(y, w, part) for part in parts]
        if "gate_up_proj" in form.network:
            parts = np.split(parts[0], 2, axis=-1)
        y = torch_linear(form.activation(parts[0]) * math.prod(parts[1:]), w, down)
        x = x + (norm(y, last) if last else y)
    table = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, "model.norm") @ table.T * config.get("logit_scale", 1)


def _halves(y, config):
    """Heads whose numbers that are turned together are in two halves."""
    d = int(y.shape[-1] * config.get("partial_rotary_factor", 1))
    return np.concatenate([y[..., :d:2], y[..., 1:d:2], y[..., d:]], axis=-1)


def _with_biases(shapes, axis):
    """Shapes of weights, and of biases along an axis where only the module is named."""
    full = {}
    for name, shape in shapes.items():
        if name.endswith(".weight"):
            full[name] = shape
        else:
            full[f"{name}.weight"] = shape
            full[f"{name}.bias"] = (shape[axis] if len(shape) == 2 else shape[0],)
    return full


def _llama_shapes(config):
    e = config["hidden_size"]
    f = config.get("shared_intermediate_size", config.get("intermediate_size"))
    d = config.get("head_dim", e // config["num_attention_heads"])
    hd, kd = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], e),
        "model.norm.weight": (e,),
    }
    kind, gemma = config["model_type"], config["model_type"].startswith("gemma")
    if not config.get("tie_word_embeddings", gemma):
        shapes["lm_head.weight"] = (config["vocab_size"], e)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        for letter, size in zip("qkv", (hd, kd, kd), strict=True):
            shapes[f"{layer}.self_attn.{letter}_proj.weight"] = (size, e)
            biased = kind in ("qwen2", "qwen2_moe", "gpt_oss")
            if biased or config.get("attention_bias"):
                shapes[f"{layer}.self_attn.{letter}_proj.bias"] = (size,)
        if kind in ("qwen3", "qwen3_moe", "gemma3_text", "exaone4"):
            for letter in "qk":
                shapes[f"{layer}.self_attn.{letter}_norm.weight"] = (d,)
        if kind in ("olmo2", "olmo3", "olmoe"):
            shapes[f"{layer}.self_attn.q_norm.weight"] = (hd,)
            shapes[f"{layer}.self_attn.k_norm.weight"] = (kd,)
        shapes[f"{layer}.self_attn.o_proj.weight"] = (e, hd)
        if kind == "gpt_oss" or config.get("attention_bias"):
            shapes[f"{layer}.self_attn.o_proj.bias"] = (e,)
        if kind in AFTER_ALONE:
            shapes[f"{layer}.post_feedforward_layernorm.weight"] = (e,)
        else:
            shapes[f"{layer}.input_layernorm.weight"] = (e,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (e,)
        if gemma and kind != "gemma":
            shapes[f"{layer}.pre_feedforward_layernorm.weight"] = (e,)
            shapes[f"{layer}.post_feedforward_layernorm.weight"] = (e,)
        if kind in STACKED:
            shapes |= STACKED[kind](config, layer)
            continue
        if kind in EXPERTS_NAMES and i not in config.get("mlp_only_layers", ()):
            shapes |= _experts_shapes(config, layer)
            continue
        for part in ("gate", "up"):
            shapes[f"{layer}.mlp.{part}_proj.weight"] = (f, e)
        shapes[f"{layer}.mlp.down_proj.weight"] = (e, f)
        if config.get("mlp_bias"):
            for part, size in (("gate", f), ("up", f), ("down", e)):
                shapes[f"{layer}.mlp.{part}_proj.bias"] = (size,)
        if kind == "granitemoehybrid":
            _side_by_side(shapes, f"{layer}.mlp", "input", "gate", "up")
            for theirs, ours in (("input", "input"), ("down", "output")):
                shape = shapes.pop(f"{layer}.mlp.{theirs}_proj.weight")
                shapes[f"{layer}.shared_mlp.{ours}_linear.weight"] = shape
        if kind == "phi3":
            _side_by_side(shapes, f"{layer}.self_attn", "qkv", "q", "k", "v")
            _side_by_side(shapes, f"{layer}.mlp", "gate_up", "gate", "up")
    return shapes


def num_experts(config):
    """How many experts a layer has."""
    return config.get("num_experts", config.get("num_local_experts"))


def _experts_shapes(config, layer):
    """Those of a layer's router and experts."""
    place, gate, up, down = EXPERTS_NAMES[config["model_type"]]
    e, n = config["hidden_size"], num_experts(config)
    f = config.get("moe_intermediate_size", config["intermediate_size"])
    shapes = {f"{layer}.{place}.gate.weight": (n, e)}
    for j in range(n):
        expert = f"{layer}.{place}.experts.{j}"
        shapes[f"{expert}.{gate}.weight"] = shapes[f"{expert}.{up}.weight"] = (f, e)
        shapes[f"{expert}.{down}.weight"] = (e, f)
    if (f := config.get("shared_expert_intermediate_size")) is not None:
        shared = f"{layer}.{place}.shared_expert"
        shapes[f"{shared}.{gate}.weight"] = shapes[f"{shared}.{up}.weight"] = (f, e)
        shapes[f"{shared}.{down}.weight"] = (e, f)
        shapes[f"{shared}_gate.weight"] = (1, e)
    return shapes


def _clamped_shapes(config, layer):
    """Those of the sinks and experts of a layer of gpt-oss."""
    e, f, n = config["hidden_size"], config["intermediate_size"], num_experts(config)
    experts = f"{layer}.mlp.experts"
    return {
        f"{layer}.self_attn.sinks": (config["num_attention_heads"],),
        f"{layer}.mlp.router.weight": (n, e),
        f"{layer}.mlp.router.bias": (n,),
        f"{experts}.gate_up_proj": (n, e, 2 * f),
        f"{experts}.gate_up_proj_bias": (n, 2 * f),
        f"{experts}.down_proj": (n, f, e),
        f"{experts}.down_proj_bias": (n, e),
    }


def _granite_shapes(config, layer):
    """Those of a layer's router and experts, all in one array."""
    e, f, n = config["hidden_size"], config["intermediate_size"], num_experts(config)
    place = f"{layer}.block_sparse_moe"
    return {
        f"{place}.router.layer.weight": (n, e),
        f"{place}.input_linear.weight": (n, 2 * f, e),
        f"{place}.output_linear.weight": (n, e, f),
    }


# What makes the shapes of experts in one array.
STACKED = {"gpt_oss": _clamped_shapes, "granitemoe": _granite_shapes}


def _granite_experts(w, config, layer, y):
    """What the experts of a layer of Granite make of tokens (L, E)."""
    result, place = np.zeros_like(y), f"{layer}.block_sparse_moe"
    for i, x in enumerate(y):
        scores = torch_linear(x, w, f"{place}.router.layer")
        best = sorted(range(len(scores)), key=lambda j: (-scores[j], j))
        best = best[: config["num_experts_per_tok"]]
        for j, p in zip(best, softmax(scores[best]), strict=True):
            gate, up = np.split(w[f"{place}.input_linear.weight"][j] @ x, 2)
            result[i] += p * (w[f"{place}.output_linear.weight"][j] @ (silu(gate) * up))
    return result


def _clamped_experts(w, config, layer, y):
    """What the experts of a layer of gpt-oss make of tokens (L, E)."""
    result = np.zeros_like(y)
    for i, x in enumerate(y):
        scores = torch_linear(x, w, f"{layer}.mlp.router")
        best = sorted(range(len(scores)), key=lambda j: (-scores[j], j))
        best = best[: config["num_experts_per_tok"]]
        for j, p in zip(best, softmax(scores[best]), strict=True):
            own = {
                name: w[f"{layer}.mlp.experts.{name}"][j]
                for name in ("gate_up_proj", "gate_up_proj_bias")
            }
            both = x @ own["gate_up_proj"] + own["gate_up_proj_bias"]
            hidden = clamped(both[::2], both[1::2])
            down = w[f"{layer}.mlp.experts.down_proj"][j]
            bias = w[f"{layer}.mlp.experts.down_proj_bias"][j]
            result[i] += p * (hidden @ down + bias)
    return result


def _experts(w, config, layer, y):
    """What a layer's experts make of tokens (L, E), token after token."""
    place, gate, up, down = EXPERTS_NAMES[config["model_type"]]

    def network(name, x):
        hidden = silu(torch_linear(x, w, f"{name}.{gate}"))
        return torch_linear(
            hidden * torch_linear(x, w, f"{name}.{up}"), w, f"{name}.{down}"
        )

    result = np.empty_like(y)
    for i, x in enumerate(y):
        p = np.exp(torch_linear(x, w, f"{layer}.{place}.gate"))
        p = p / p.sum()
        best = sorted(range(len(p)), key=lambda j: (-p[j], j))
        best = best[: config["num_experts_per_tok"]]
        usual = config["model_type"] == "mixtral"
        whole = sum(p[best]) if config.get("norm_topk_prob", usual) else 1
        result[i] = sum(
            p[j] / whole * network(f"{layer}.{place}.experts.{j}", x) for j in best
        )
        if "shared_expert_intermediate_size" in config:
            shared = f"{layer}.{place}.shared_expert"
            share = 1 / (1 + np.exp(-torch_linear(x, w, f"{shared}_gate")))
            result[i] += share * network(shared, x)
    return result


def _side_by_side(shapes, layer, name, *parts):
    """Put the shapes of matrices together."""
    several = [shapes.pop(f"{layer}.{part}_proj.weight") for part in parts]
    n_rows = sum(shape[0] for shape in several)
    shapes[f"{layer}.{name}_proj.weight"] = (n_rows, several[0][1])


def bert_states(weights, config, ids, types=0, seen=None):
    """The vectors (L, E) of one sequence after the last layer, of BERT or its kin.

    Of those with plain attention all may attend only to the first `seen` tokens.
    """
    w = {name: np.asarray(array, float) for name, array in weights.items()}
    kind, eps = config["model_type"], config.get("layer_norm_eps", 1e-12)
    if kind == "modernbert":
        return _modernbert_states(w, config, ids)
    if kind == "eurobert":
        return _eurobert_states(w, config, ids)
    if kind in GATED:
        return _gated_states(w, config, ids, types)
    if kind in DISENTANGLED:
        return _disentangled_states(w, config, ids)
    if kind == "esm":
        return _esm_states(w, config, ids)
    if kind in JINA_BERTS:
        return _jina_states(w, config, ids, types)
    x = (
        w["embeddings.word_embeddings.weight"][ids]
        + w["embeddings.position_embeddings.weight"][_places(config, ids)]
    )
    if "type_vocab_size" in config:
        x = x + w["embeddings.token_type_embeddings.weight"][types]
    # The norm after the last layer, of those with norms before attention and network.
    last = {"xlm-roberta-xl": "encoder.LayerNorm", "roberta-prelayernorm": "LayerNorm"}
    is_first = kind in last
    if kind != "xlm-roberta-xl":
        x = named_norm(x, w, "embeddings.LayerNorm", eps)
    if kind in PROJECTIONS:
        x = torch_linear(x, w, PROJECTIONS[kind])
    bias = _distance_bias(w, len(ids)) if kind == "mpnet" else None
    n_layers, _, n_heads, _ = (_bert_size(config, name) for name in _BERT_SIZES)
    if seen is not None:
        hidden = np.where(np.arange(len(ids)) < seen, 0, -np.inf)
        bias = np.broadcast_to(hidden, (n_heads, len(ids), len(ids)))

    for i in range(n_layers):
        name = functools.partial(_layer_name, config, 0 if kind == "albert" else i)
        y = x
        if is_first:
            y = named_norm(x, w, name("attention.output.LayerNorm"), eps)
        query, key, value = (
            torch_linear(y, w, name(f"attention.self.{part}"))
            for part in ("query", "key", "value")
        )
        z = attend(query, key, value, n_heads, bias=bias)
        z = torch_linear(z, w, name("attention.output.dense"))
        if is_first:
            x = x + z
            y = named_norm(x, w, name("output.LayerNorm"), eps)
            hidden = gelu(torch_linear(y, w, name("intermediate.dense")))
            x = x + torch_linear(hidden, w, name("output.dense"))
            continue
        x = named_norm(x + z, w, name("attention.output.LayerNorm"), eps)
        activation = gelu_tanh if kind == "albert" else gelu
        hidden = activation(torch_linear(x, w, name("intermediate.dense")))
        z = torch_linear(hidden, w, name("output.dense"))
        x = named_norm(x + z, w, name("output.LayerNorm"), eps)
    return named_norm(x, w, last[kind], eps) if is_first else x


def _disentangled_states(w, config, ids):
    """The vectors of DeBERTa, whose scores are sums over three products."""
    n_layers, n_heads, eps = (
        config[name]
        for name in ("num_hidden_layers", "num_attention_heads", "layer_norm_eps")
    )
    x = named_norm(
        w["embeddings.word_embeddings.weight"][ids], w, "embeddings.LayerNorm", eps
    )
    table = w["encoder.rel_embeddings.weight"]
    if config.get("norm_rel_ebd") == "layer_norm":
        table = named_norm(table, w, "encoder.LayerNorm", eps)
    n = len(ids)
    rows = np.array(
        [[_distance_row(config, i - j) for j in range(n)] for i in range(n)]
    )

    def heads(x):
        return x.reshape(len(x), n_heads, -1).swapaxes(0, 1)

    for i in range(n_layers):
        layer = f"encoder.layer.{i}"
        own = f"{layer}.attention.self"
        if config["model_type"] == "deberta":
            parts = w[f"{own}.in_proj.weight"].reshape(n_heads, 3, -1, x.shape[-1])
            query, key, value = (
                x @ parts[:, j].reshape(-1, x.shape[-1]).T for j in range(3)
            )
            query, value = query + w[f"{own}.q_bias"], value + w[f"{own}.v_bias"]
            as_key = table @ w[f"{own}.pos_proj.weight"].T
            as_query = torch_linear(table, w, f"{own}.pos_q_proj")
        else:
            query, key, value = (
                torch_linear(x, w, f"{own}.{part}_proj")
                for part in ("query", "key", "value")
            )
            as_key = torch_linear(table, w, f"{own}.key_proj")
            as_query = torch_linear(table, w, f"{own}.query_proj")
        scores = heads(query) @ heads(key).swapaxes(-1, -2)
        scores += np.einsum("hid,hijd->hij", heads(query), heads(as_key)[:, rows])
        scores += np.einsum("hjd,hijd->hij", heads(key), heads(as_query)[:, rows])
        p = softmax(scores / np.sqrt(3 * heads(query).shape[-1]))
        z = (p @ heads(value)).swapaxes(0, 1).reshape(n, -1)
        z = torch_linear(z, w, f"{layer}.attention.output.dense")
        x = named_norm(x + z, w, f"{layer}.attention.output.LayerNorm", eps)
        hidden = gelu(torch_linear(x, w, f"{layer}.intermediate.dense"))
        z = torch_linear(hidden, w, f"{layer}.output.dense")
        x = named_norm(x + z, w, f"{layer}.output.LayerNorm", eps)
    return x


def _distance_row(config, distance):
    """The row of DeBERTa's table for the position of a query minus that of a key."""
    n, most = _distances(config)
    half, far = n // 2, abs(distance)
    if "position_buckets" in config and far > half:
        steps = math.log(far / half) / math.log((most - 1) / half) * (half - 1)
        far = half + math.ceil(steps - 1e-9)
    bucket = far if distance > 0 else -far
    return min(max(bucket + n, 0), 2 * n - 1)


def _turned(x, n_heads, theta, divisor=1.0):
    """Queries or keys (L, E) turned by their positions."""
    scaling = {"type": "linear", "factor": divisor}
    turn = {"rope_theta": theta, "rope_scaling": scaling}
    return rotated(x.reshape(len(x), n_heads, -1), turn).reshape(x.shape)


def _modernbert_states(w, config, ids):
    """The vectors of ModernBERT, whose first layer has no norm before attention."""
    n_heads, eps = config["num_attention_heads"], config["norm_eps"]
    x = named_norm(
        w["embeddings.tok_embeddings.weight"][ids], w, "embeddings.norm", eps
    )
    for i in range(config["num_hidden_layers"]):
        y = x if i == 0 else named_norm(x, w, f"layers.{i}.attn_norm", eps)
        parts = np.split(y @ w[f"layers.{i}.attn.Wqkv.weight"].T, 3, axis=-1)
        is_full = i % 3 == 0
        theta = config["global_rope_theta" if is_full else "local_rope_theta"]
        query, key = (_turned(part, n_heads, theta) for part in parts[:2])
        window = None if is_full else config["local_attention"] // 2 + 1
        z = attend(query, key, parts[2], n_heads, window=window)
        x = x + torch_linear(z, w, f"layers.{i}.attn.Wo")
        y = named_norm(x, w, f"layers.{i}.mlp_norm", eps)
        gate, up = np.split(y @ w[f"layers.{i}.mlp.Wi.weight"].T, 2, axis=-1)
        x = x + torch_linear(gelu(gate) * up, w, f"layers.{i}.mlp.Wo")
    return named_norm(x, w, "final_norm", eps)


def _eurobert_states(w, config, ids):
    """The vectors of EuroBERT: Llama's layers, with every token seen by all."""
    n_heads, n_kv = config["num_attention_heads"], config["num_key_value_heads"]
    eps, theta = config["rms_norm_eps"], config["rope_theta"]
    x = w["embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        layer = f"layers.{i}"
        y = rms_norm(x, w[f"{layer}.input_layernorm.weight"], eps)
        query, key, value = (
            torch_linear(y, w, f"{layer}.self_attn.{c}_proj") for c in "qkv"
        )
        query, key = _turned(query, n_heads, theta), _turned(key, n_kv, theta)
        z = attend(query, key, value, n_heads, n_kv)
        x = x + torch_linear(z, w, f"{layer}.self_attn.o_proj")
        y = rms_norm(x, w[f"{layer}.post_attention_layernorm.weight"], eps)
        gate, up = (torch_linear(y, w, f"{layer}.mlp.{p}_proj") for p in ("gate", "up"))
        x = x + torch_linear(silu(gate) * up, w, f"{layer}.mlp.down_proj")
    return rms_norm(x, w["norm.weight"], eps)


def _gated_states(w, config, ids, types):
    """The vectors of NomicBERT, GTE and jina-embeddings-v3."""
    n_heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    kind, scaling = config["model_type"], config.get("rope_scaling")
    activation = {"silu": silu, "gelu": gelu}[config["hidden_act"]]
    theta, divisor = config["rope_theta"], 1.0
    if scaling:
        head_dim = config["hidden_size"] // n_heads
        theta *= scaling["factor"]
        divisor = scaling["factor"] ** (2 / head_dim)
    x = w["embeddings.word_embeddings.weight"][ids]
    if config["type_vocab_size"]:
        x = x + w["embeddings.token_type_embeddings.weight"][types]
    x = named_norm(x, w, "embeddings.LayerNorm", eps)
    for i in range(config["num_hidden_layers"]):
        if kind == "new":
            layer = f"encoder.layer.{i}"
            qkv = torch_linear(x, w, f"{layer}.attention.qkv_proj")
            parts = np.split(qkv, 3, axis=-1)
            attn, out = f"{layer}.attn_ln", f"{layer}.attention.o_proj"
            norm = f"{layer}.mlp_ln"
        else:
            layer = f"layers.{i}"
            parts = [torch_linear(x, w, f"{layer}.self_attn.{c}_proj") for c in "qkv"]
            attn, out = f"{layer}.post_attention_layernorm", f"{layer}.self_attn.o_proj"
            norm = f"{layer}.post_mlp_layernorm"
        query, key = (_turned(part, n_heads, theta, divisor) for part in parts[:2])
        z = torch_linear(attend(query, key, parts[2], n_heads), w, out)
        x = named_norm(x + z, w, attn, eps)
        if kind == "jina_embeddings_v3":
            z = activation(torch_linear(x, w, f"{layer}.mlp.fc1"))
            x = named_norm(x + torch_linear(z, w, f"{layer}.mlp.fc2"), w, norm, eps)
            continue
        if kind == "new":
            both = x @ w[f"{layer}.mlp.up_gate_proj.weight"].T
            up, gate = np.split(both, 2, axis=-1)
        else:
            up, gate = (
                torch_linear(x, w, f"{layer}.mlp.{p}_proj") for p in ("up", "gate")
            )
        z = torch_linear(activation(gate) * up, w, f"{layer}.mlp.down_proj")
        x = named_norm(x + z, w, norm, eps)
    return x


def _slopes(n_heads):
    """ALiBi's, by the rule of its authors."""
    power = 2 ** int(math.log2(n_heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    if power < n_heads:
        slopes += _slopes(2 * power)[::2][: n_heads - power]
    return slopes


def _jina_states(w, config, ids, types):
    """The vectors of jina-embeddings-v2: scores fall with distance, either way."""
    n_heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    activation = {"geglu": gelu, "reglu": lambda x: np.maximum(x, 0)}
    activation = activation[config["feed_forward_type"]]
    distance = abs(np.arange(len(ids))[:, None] - np.arange(len(ids)))
    bias = [-slope * distance for slope in _slopes(n_heads)]
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.token_type_embeddings.weight"][types]
    x = named_norm(x, w, "embeddings.LayerNorm", eps)
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        parts = [
            torch_linear(x, w, f"{layer}.attention.self.{part}")
            for part in ("query", "key", "value")
        ]
        is_code = config["model_type"] == "jina-bert-v2-code"
        if is_code:
            for j, name in enumerate(_NORMS_OF_JINAS_CODE):
                parts[j] = named_norm(parts[j], w, f"{layer}.{name}", eps)
        z = attend(*parts, n_heads, bias=bias)
        z = torch_linear(z, w, f"{layer}.attention.output.dense")
        z = named_norm(x + z, w, f"{layer}.attention.output.LayerNorm", eps)
        if is_code:
            x = named_norm(x + z, w, f"{layer}.layer_norm_1", eps)
            both = x @ w[f"{layer}.mlp.up_gated_layer.weight"].T
            up, gate = np.split(both, 2, axis=-1)
            z = torch_linear(up * activation(gate), w, f"{layer}.mlp.down_layer")
            x = named_norm(x + z, w, f"{layer}.layer_norm_2", eps)
            continue
        x = z
        both = x @ w[f"{layer}.mlp.gated_layers.weight"].T
        gate, up = np.split(both, 2, axis=-1)
        z = torch_linear(activation(gate) * up, w, f"{layer}.mlp.wo")
        x = named_norm(x + z, w, f"{layer}.mlp.layernorm", eps)
    return x


def _places(config, ids):
    """The positions, one by one: RoBERTa's and MPNet's pass over padding."""
    kinds = "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "data2vec-text"
    kinds += "roberta-prelayernorm", "esm"
    given = dict.fromkeys(kinds, config.get("pad_token_id"))
    padding = {"mpnet": 1, **given}.get(config["model_type"])
    if padding is None:
        return np.arange(len(ids))
    places, following = [], padding + 1
    for token in ids:
        places.append(padding if token == padding else following)
        following += token != padding
    return np.array(places, int)


def _distance_bias(w, n):
    """MPNet's numbers (H, L, L) for the distance of key and query."""
    bias = np.empty((w["encoder.relative_attention_bias.weight"].shape[1], n, n))
    for i in range(n):
        for j in range(n):
            distance = abs(j - i)
            if distance >= 8:  # to 128, in eight buckets
                far = math.log(distance / 8) / math.log(128 / 8) * 8
                distance = min(8 + int(far), 15)
            bucket = distance + (16 if j > i else 0)
            bias[:, i, j] = w["encoder.relative_attention_bias.weight"][bucket]
    return bias


def logits(weights, config, ids):
    """The scores (L, V) of one sequence."""
    w = {name: np.asarray(array, float) for name, array in weights.items()}
    if config["model_type"] == "gpt2":
        return _gpt2_logits(w, config, ids)
    if config["model_type"] in ("phi", "gpt_neox"):
        return _parallel_logits(w, config, ids)
    if config["model_type"] in ("gpt_neo", "gpt_bigcode"):
        return _gpt_kin_logits(w, config, ids)
    if config["model_type"] == "opt":
        return _opt_logits(w, config, ids)
    if config["model_type"] == "gptj":
        return _gptj_logits(w, config, ids)
    if config["model_type"] == "falcon":
        return _falcon_logits(w, config, ids)
    if config["model_type"] == "bloom":
        return _bloom_logits(w, config, ids)
    if config["model_type"] == "mpt":
        return _mpt_logits(w, config, ids)
    if config["model_type"] in FORMS:
        return _formed_logits(w, config, ids)
    return _llama_logits(w, config, ids)


def _gpt2_logits(w, config, ids):
    eps = config["layer_norm_epsilon"]
    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
    for i in range(config["n_layer"]):
        h = f"h.{i}"
        y = named_norm(x, w, f"{h}.ln_1", eps)
        y = y @ w[f"{h}.attn.c_attn.weight"] + w[f"{h}.attn.c_attn.bias"]
        query, key, value = np.split(y, 3, axis=-1)
        if not config.get("scale_attn_weights", True):
            query = query * math.sqrt(config["n_embd"] // config["n_head"])
        if config.get("scale_attn_by_inverse_layer_idx"):
            query = query / (i + 1)
        causal = config.get("is_causal", True)
        z = attend(query, key, value, config["n_head"], causal=causal)
        x = x + z @ w[f"{h}.attn.c_proj.weight"] + w[f"{h}.attn.c_proj.bias"]
        y = named_norm(x, w, f"{h}.ln_2", eps)
        y = gelu_tanh(y @ w[f"{h}.mlp.c_fc.weight"] + w[f"{h}.mlp.c_fc.bias"])
        x = x + y @ w[f"{h}.mlp.c_proj.weight"] + w[f"{h}.mlp.c_proj.bias"]
    return named_norm(x, w, "ln_f", eps) @ w["wte.weight"].T


def _parallel_logits(w, config, ids):
    """Of layers whose attention and network read the same tokens: Phi and GPT-NeoX."""
    eps, n_heads, n = config["layer_norm_eps"], config["num_attention_heads"], len(ids)
    is_phi = config["model_type"] == "phi"
    start, dense, first, second, embedding, last = (
        ("model", "self_attn.dense", "fc1", "fc2", "embed_tokens", "final_layernorm")
        if is_phi
        else (
            *("gpt_neox", "attention.dense", "dense_h_to_4h", "dense_4h_to_h"),
            *("embed_in", "final_layer_norm"),
        )
    )
    share = config.get("rotary_pct", config.get("partial_rotary_factor"))
    base = config.get("rotary_emb_base", config.get("rope_theta"))
    turn = {"partial_rotary_factor": share, "rope_theta": base}
    x = w[f"{start}.{embedding}.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        layer = f"{start}.layers.{i}"
        y = z = named_norm(x, w, f"{layer}.input_layernorm", eps)
        if is_phi:
            parts = [torch_linear(y, w, f"{layer}.self_attn.{c}_proj") for c in "qkv"]
            n_kv_heads = config["num_key_value_heads"]
        else:
            parts = torch_linear(y, w, f"{layer}.attention.query_key_value")
            parts = parts.reshape(n, n_heads, 3, -1).swapaxes(0, 2).swapaxes(1, 2)
            parts, n_kv_heads = parts.reshape(3, n, -1), n_heads
        query, key = (
            rotated(part.reshape(n, heads, -1), turn).reshape(n, -1)
            for part, heads in zip(parts[:2], (n_heads, n_kv_heads), strict=True)
        )
        causal = config.get("is_causal", True)
        y = attend(query, key, parts[2], n_heads, n_kv_heads, causal=causal)
        y = x + torch_linear(y, w, f"{layer}.{dense}")
        if not is_phi:
            read = x if config.get("use_parallel_residual", True) else y
            z = named_norm(read, w, f"{layer}.post_attention_layernorm", eps)
        activation = gelu_tanh if is_phi else gelu
        hidden = activation(torch_linear(z, w, f"{layer}.mlp.{first}"))
        x = y + torch_linear(hidden, w, f"{layer}.mlp.{second}")
    x = named_norm(x, w, f"{start}.{last}", eps)
    return torch_linear(x, w, "lm_head")


def _llama_logits(w, config, ids):
    eps, n_heads = config["rms_norm_eps"], config["num_attention_heads"]
    n_kv_heads, kind = config["num_key_value_heads"], config["model_type"]
    x = w["model.embed_tokens.weight"][ids]
    if kind in ("gemma2", "gemma3_text"):
        return _gemma_logits(w, config, x)
    if kind in AFTER_ALONE:
        return _olmo_logits(w, config, x)
    if kind == "gemma":
        x = x * math.sqrt(config["hidden_size"])
        w = {name: v + name.endswith("norm.weight") for name, v in w.items()}
    x = x * config.get("embedding_multiplier", 1)
    times = config.get("residual_multiplier", 1)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        y = rms_norm(x, w[f"{layer}.input_layernorm.weight"], eps)
        if kind == "phi3":
            _cut(w, layer, n_heads, n_kv_heads)
        query, key, value = (
            torch_linear(y, w, f"{layer}.self_attn.{letter}_proj") for letter in "qkv"
        )
        query = query.reshape(len(ids), n_heads, -1)
        key = key.reshape(len(ids), n_kv_heads, -1)
        if kind == "olmoe":
            query, key = (
                rms_norm(
                    y.reshape(len(ids), -1),
                    w[f"{layer}.self_attn.{c}_norm.weight"],
                    eps,
                ).reshape(y.shape)
                for c, y in (("q", query), ("k", key))
            )
        if kind in ("qwen3", "qwen3_moe"):
            query = rms_norm(query, w[f"{layer}.self_attn.q_norm.weight"], eps)
            key = rms_norm(key, w[f"{layer}.self_attn.k_norm.weight"], eps)
        if kind == "ernie4_5":  # the same order of both changes no score
            query, key = (
                np.concatenate([y[..., ::2], y[..., 1::2]], axis=-1)
                for y in (query, key)
            )
        if (i + 1) % config.get("no_rope_layer_interval", 99):
            query, key = (rotated(y, config) for y in (query, key))
        if kind.startswith("granite"):
            query = query * config["attention_multiplier"] * query.shape[-1] ** 0.5
        query, key = query.reshape(len(ids), -1), key.reshape(len(ids), -1)
        how = {"causal": config.get("is_causal", True), "window": _window(config, i)}
        if kind == "gpt_oss":
            how["sinks"] = w[f"{layer}.self_attn.sinks"]
        z = attend(query, key, value, n_heads, n_kv_heads, **how)
        x = x + times * torch_linear(z, w, f"{layer}.self_attn.o_proj")
        y = rms_norm(x, w[f"{layer}.post_attention_layernorm.weight"], eps)
        if kind == "gpt_oss":
            x = x + _clamped_experts(w, config, layer, y)
            continue
        if kind == "granitemoe":
            x = x + times * _granite_experts(w, config, layer, y)
            continue
        if kind in EXPERTS_NAMES and f"{layer}.mlp.gate_proj.weight" not in w:
            x = x + _experts(w, config, layer, y)
            continue
        if kind == "granitemoehybrid":
            both = torch_linear(y, w, f"{layer}.shared_mlp.input_linear")
            gate, up = np.split(both, 2, axis=1)
            z = torch_linear(silu(gate) * up, w, f"{layer}.shared_mlp.output_linear")
            x = x + times * z
            continue
        gate = torch_linear(y, w, f"{layer}.mlp.gate_proj")
        up = torch_linear(y, w, f"{layer}.mlp.up_proj")
        activation = gelu_tanh if kind == "gemma" else silu
        z = torch_linear(activation(gate) * up, w, f"{layer}.mlp.down_proj")
        x = x + times * z
    x = rms_norm(x, w["model.norm.weight"], eps) / config.get("logits_scaling", 1)
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def _cut(w, layer, n_heads, n_kv_heads):
    """Give the parts of Phi-3's matrices names of their own."""
    qkv = w[f"{layer}.self_attn.qkv_proj.weight"]
    d = len(qkv) // (n_heads + 2 * n_kv_heads)
    parts = np.split(qkv, [n_heads * d, (n_heads + n_kv_heads) * d])
    for letter, part in zip("qkv", parts, strict=True):
        w[f"{layer}.self_attn.{letter}_proj.weight"] = part
    gate, up = np.split(w[f"{layer}.mlp.gate_up_proj.weight"], 2)
    w[f"{layer}.mlp.gate_proj.weight"], w[f"{layer}.mlp.up_proj.weight"] = gate, up


def _gemma_logits(w, config, x):
    eps, n_heads = config["rms_norm_eps"], config["num_attention_heads"]
    n_kv_heads, n = config["num_key_value_heads"], len(x)
    is_third = config["model_type"] == "gemma3_text"

    def norm(x, name):
        return rms_norm(x, 1 + w[f"{name}.weight"], eps)

    x = x * math.sqrt(config["hidden_size"])
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        window = config["sliding_window"]
        both_ways = config.get("use_bidirectional_attention", False)
        if both_ways:
            window = window // 2 + 1
        if (i + 1) % config.get("sliding_window_pattern", 2) == 0:
            window = None
        turn = {"rope_theta": config["rope_theta"]}
        if is_third:
            turn["rope_scaling"] = config["rope_scaling"]
            if window is not None:
                turn = {"rope_theta": config["rope_local_base_freq"]}
        y = norm(x, f"{layer}.input_layernorm")
        query, key, value = (
            torch_linear(y, w, f"{layer}.self_attn.{letter}_proj") for letter in "qkv"
        )
        query, key = query.reshape(n, n_heads, -1), key.reshape(n, n_kv_heads, -1)
        if is_third:
            query = norm(query, f"{layer}.self_attn.q_norm")
            key = norm(key, f"{layer}.self_attn.k_norm")
        query = query * math.sqrt(query.shape[-1] / config["query_pre_attn_scalar"])
        query, key = (rotated(y, turn).reshape(n, -1) for y in (query, key))
        how = {"causal": not both_ways, "window": window}
        how["softcap"] = config["attn_logit_softcapping"]
        z = attend(query, key, value, n_heads, n_kv_heads, **how)
        z = torch_linear(z, w, f"{layer}.self_attn.o_proj")
        x = x + norm(z, f"{layer}.post_attention_layernorm")
        y = norm(x, f"{layer}.pre_feedforward_layernorm")
        gate = gelu_tanh(torch_linear(y, w, f"{layer}.mlp.gate_proj"))
        y = gate * torch_linear(y, w, f"{layer}.mlp.up_proj")
        y = torch_linear(y, w, f"{layer}.mlp.down_proj")
        x = x + norm(y, f"{layer}.post_feedforward_layernorm")
    scores = norm(x, "model.norm") @ w["model.embed_tokens.weight"].T
    cap = config["final_logit_softcapping"]
    return scores if cap is None else cap * np.tanh(scores / cap)


def _olmo_logits(w, config, x):
    """Of norms of results, and of the queries and the keys of all heads."""
    eps, n_heads = config["rms_norm_eps"], config["num_attention_heads"]
    n_kv_heads, n = config["num_key_value_heads"], len(x)

    def norm(x, name):
        return rms_norm(x, w[f"{name}.weight"], eps)

    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        every = {"olmo2": 1, "olmo3": 4}.get(config["model_type"], 2)
        is_local, each = (i + 1) % every != 0, config["model_type"] == "exaone4"
        how = {"window": config["sliding_window"] if is_local else None}
        how["causal"] = config.get("is_causal", True)
        turn = {**config, "rope_scaling": None} if is_local else config
        query, key, value = (
            torch_linear(x, w, f"{layer}.self_attn.{letter}_proj") for letter in "qkv"
        )
        if each:  # head by head
            query, key = query.reshape(n, n_heads, -1), key.reshape(n, n_kv_heads, -1)
        query = norm(query, f"{layer}.self_attn.q_norm").reshape(n, n_heads, -1)
        key = norm(key, f"{layer}.self_attn.k_norm").reshape(n, n_kv_heads, -1)
        if not each or is_local:
            query, key = (rotated(y, turn) for y in (query, key))
        query, key = query.reshape(n, -1), key.reshape(n, -1)
        z = attend(query, key, value, n_heads, n_kv_heads, **how)
        z = torch_linear(z, w, f"{layer}.self_attn.o_proj")
        x = x + norm(z, f"{layer}.post_attention_layernorm")
        y = silu(torch_linear(x, w, f"{layer}.mlp.gate_proj"))
        y = y * torch_linear(x, w, f"{layer}.mlp.up_proj")
        y = torch_linear(y, w, f"{layer}.mlp.down_proj")
        x = x + norm(y, f"{layer}.post_feedforward_layernorm")
    return torch_linear(norm(x, "model.norm"), w, "lm_head")


def _window(config, i):
    """How many tokens one sees in layer i, None for all before it."""
    if not config.get("use_sliding_window", True):
        return None
    first = config.get("max_window_layers", 0)
    kind = "sliding_attention" if i >= first else "full_attention"
    if config["model_type"] == "gpt_oss" and i % 2:
        kind = "full_attention"
    kind = config.get("layer_types", {i: kind})[i]
    return config.get("sliding_window") if kind == "sliding_attention" else None


def torch_linear(x, w, name):
    """X W^T + b, with the bias left out where there is none."""
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)


def named_norm(x, w, name, eps):
    """Layer normalization by the arrays of this name."""
    return layer_norm(x, w[f"{name}.weight"], w.get(f"{name}.bias", 0), eps)


def attend(
    query,
    key,
    value,
    n_heads,
    n_kv_heads=None,
    causal=False,
    window=None,
    softcap=None,
    bias=None,
    sinks=None,
):
    """Attention of one sequence, head by head."""
    n, group = len(query), n_heads // (n_kv_heads or n_heads)
    d = query.shape[1] // n_heads
    distance = np.arange(n)[:, None] - np.arange(n)
    allowed = (distance >= 0) | (not causal)
    if window is not None:
        allowed &= np.abs(distance) < window
    heads = []
    for h in range(n_heads):
        own, shared = (
            slice(h * d, h * d + d),
            slice(h // group * d, (h // group + 1) * d),
        )
        scores = query[:, own] @ key[:, shared].T / math.sqrt(d)
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        if bias is not None:
            scores = scores + bias[h]
        scores = np.where(allowed, scores, -np.inf)
        if sinks is not None:
            scores = np.concatenate([scores, np.full((n, 1), sinks[h])], axis=1)
        heads.append(softmax(scores)[:, :n] @ value[:, shared])
    return np.concatenate(heads, axis=1)


def rotated(x, config):
    """X (L, H, D) turned by its positions, the halves of a vector being the pairs."""
    n, _, whole = x.shape
    d = int(whole * config.get("partial_rotary_factor", 1))
    x, rest = x[..., :d], x[..., d:]
    scaling, base = config.get("rope_scaling") or {}, config["rope_theta"]
    original, times = config.get("original_max_position_embeddings"), 1
    kind, factor = scaling.get("type"), scaling.get("factor", 1)
    if kind == "dynamic":
        longest, factor = config["max_position_embeddings"], 1
        growth = scaling["factor"] * max(n, longest) / longest - scaling["factor"] + 1
        base = base * growth ** (d / (d - 2))
    if kind == "longrope":
        factor = np.array(scaling["long_factor" if n > original else "short_factor"])
        growth = math.log(config["max_position_embeddings"] / original)
        times = math.sqrt(1 + growth / math.log(original))
    frequencies = base ** (-np.arange(0, d, 2) / d) / factor
    angles = np.arange(n)[:, None, None] * np.concatenate([frequencies, frequencies])
    half = np.concatenate([-x[..., d // 2 :], x[..., : d // 2]], axis=-1)
    turned = times * (x * np.cos(angles) + half * np.sin(angles))
    return np.concatenate([turned, rest], axis=-1)
