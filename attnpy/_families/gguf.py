"""Families in GGUF files: what their keys and the names of their arrays mean here.

A key becomes a field of the family's configuration, as the converters of llama.cpp made
it of one (`conversion/` there), and the family's declaration does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attnpy._families.arcee import ARCEE
from attnpy._families.cohere import COHERE, COHERE2
from attnpy._families.declaration import Declaration, Family, names_of
from attnpy._families.ernie import ERNIE4_5
from attnpy._families.exaone import EXAONE4
from attnpy._families.gemma import GEMMA, GEMMA2, GEMMA3
from attnpy._families.glm import GLM4
from attnpy._families.gpt2 import GPT2
from attnpy._families.gpt_bigcode import GPT_BIGCODE
from attnpy._families.gpt_oss import GPT_OSS
from attnpy._families.granite import GRANITE, GRANITEMOE
from attnpy._families.llama import LLAMA
from attnpy._families.mixtral import MIXTRAL
from attnpy._families.nemotron import NEMOTRON
from attnpy._families.olmo import OLMO2, OLMO3
from attnpy._families.olmoe import OLMOE
from attnpy._families.phi import PHI
from attnpy._families.phi3 import PHI3
from attnpy._families.qwen import QWEN2, QWEN3
from attnpy._families.qwen_moe import QWEN3_MOE
from attnpy._families.seed_oss import SEED_OSS
from attnpy._families.smollm3 import SMOLLM3
from attnpy._families.stablelm import STABLELM
from attnpy._families.starcoder import STARCODER2


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A family as GGUF files have it.

    Attributes
    ----------
    name : str
        The file's ``general.architecture``, with which the family's keys begin.
    family : Declaration
    names : Family
        The names of arrays.
    read : mapping of str to str
        Keys, without their beginning, and the fields that have their values.
    neutral : mapping of str to tuple
        Keys that are refused, but for these values.
    harmless : tuple of str
        Keys that do not matter, besides those of all.
    alternating : bool
        The rows of queries and keys are in an order of their own: see
        `attnpy.checkpoints.gguf.GgufFile.split_halves`.
    large : int or None
        With this many layers the scale of scores is that of ``hidden_size / num_heads``
        and not of ``head_dim``: files do not say it.
    needed : tuple of str
        Keys that have to be there, besides those that every file has.
    fixed : mapping of str to object
        Fields and their values, where a file says nothing else.
    yarn : mapping of str to object
        What a scaling of positions by YaRN has besides, as files do not say it.
    """

    name: str
    family: Declaration
    names: Family
    read: Mapping[str, str]
    neutral: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()
    alternating: bool = False
    large: int | None = None
    needed: tuple[str, ...] = ()
    fixed: Mapping[str, object] = field(default_factory=dict)
    yarn: Mapping[str, object] = field(default_factory=dict)


LAYER = {
    "attn_norm.weight": "norm_1.weight",
    "attn_q.weight": "self_attention.W_q.T",
    "attn_q.bias": "self_attention.b_q",
    "attn_k.weight": "self_attention.W_k.T",
    "attn_k.bias": "self_attention.b_k",
    "attn_v.weight": "self_attention.W_v.T",
    "attn_v.bias": "self_attention.b_v",
    "attn_output.weight": "self_attention.W_o.T",
    "attn_output.bias": "self_attention.b_o",
    "attn_q_norm.weight": "self_attention.q_norm.weight",
    "attn_k_norm.weight": "self_attention.k_norm.weight",
    "ffn_norm.weight": "norm_3.weight",
    "ffn_gate.weight": "feed_forward.W_gate.T",
    "ffn_gate.bias": "feed_forward.b_gate",
    "ffn_up.weight": "feed_forward.W_1.T",
    "ffn_up.bias": "feed_forward.b_1",
    "ffn_down.weight": "feed_forward.W_2.T",
    "ffn_down.bias": "feed_forward.b_2",
}
# With an RMSNorm after attention and network as well.
NORMS_AFTER = {
    "post_attention_norm.weight": "after_1.weight",
    "post_ffw_norm.weight": "after_3.weight",
}
# Of LayerNorms, which have biases.
NORM_BIASES = {"attn_norm.bias": "norm_1.bias", "ffn_norm.bias": "norm_3.bias"}
QKV = "self_attention.W_q.T self_attention.W_k.T self_attention.W_v.T"
QKV_BIASES = "self_attention.b_q self_attention.b_k self_attention.b_v"
MODEL = {
    "token_embd.weight": "token_embedding",
    "output_norm.weight": "decoder.norm.weight",
    "output.weight": "output.T",
}
BLOCK = "blk.{i} decoder.layers.{i}"
# What the frequencies of positions are divided by: Llama 3's, and those of Phi-3 for
# short and for long texts. The model's positions are made of them.
FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"


def _without(*parts: str) -> dict[str, str]:
    return {name: own for name, own in LAYER.items() if not name.startswith(parts)}


NAMES = Family(names_of(BLOCK, LAYER, MODEL), ignored=(FACTORS,))
LAST_NORM_BIAS = {"output_norm.bias": "decoder.norm.bias"}
LAYER_NORM_NAMES = NAMES._replace(
    names=names_of(BLOCK, LAYER | NORM_BIASES, MODEL | LAST_NORM_BIAS)
)
GATE_AND_FACTOR = "feed_forward.W_gate.T feed_forward.W_1.T"
PHI3_NAMES = Family(
    names_of(
        BLOCK,
        {
            **_without("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"),
            "attn_qkv.weight": QKV,
            "ffn_up.weight": GATE_AND_FACTOR,
        },
        MODEL,
    ),
    ignored=(SHORT_FACTORS, LONG_FACTORS),
)
# Whose norm before the network has the name of one after attention elsewhere.
SEED_OSS_NAMES = NAMES._replace(
    names=names_of(
        BLOCK,
        {**_without("ffn_norm"), "post_attention_norm.weight": "norm_3.weight"},
        MODEL,
    )
)
# Whose queries, keys and values may be in one matrix.
PHI2_NAMES = NAMES._replace(
    names=names_of(
        BLOCK,
        {
            **LAYER,
            **NORM_BIASES,
            "attn_qkv.weight": QKV,
            "attn_qkv.bias": QKV_BIASES,
        },
        {**MODEL, **LAST_NORM_BIAS, "output.bias": "output_bias"},
    )
)
GPT2_NAMES = Family(
    names_of(
        BLOCK,
        {
            **_without("attn_q", "attn_k", "attn_v", "ffn_gate"),
            **NORM_BIASES,
            "attn_qkv.weight": QKV,
            "attn_qkv.bias": QKV_BIASES,
        },
        {
            **MODEL,
            **LAST_NORM_BIAS,
            "position_embd.weight": "position_embedding",
        },
    )
)

# Of all experts in one array.
EXPERTS = {
    "ffn_gate_inp.weight": "feed_forward.router.T",
    "ffn_gate_exps.weight.{j}": "feed_forward.experts.{j}.W_gate.T",
    "ffn_up_exps.weight.{j}": "feed_forward.experts.{j}.W_1.T",
    "ffn_gate_up_exps.weight.{j}": (
        "feed_forward.experts.{j}.W_gate.T feed_forward.experts.{j}.W_1.T"
    ),
    "ffn_down_exps.weight.{j}": "feed_forward.experts.{j}.W_2.T",
}
STACKED = tuple(f".{name.removesuffix('.{j}')}" for name in EXPERTS if "{j}" in name)
EXPERTS_NAMES = Family(
    names_of(BLOCK, LAYER | EXPERTS, MODEL), ignored=(FACTORS,), stacked=STACKED
)

# With sinks, and with biases of the router and of all experts.
GPT_OSS_LAYER = {
    **_without("ffn_"),
    **EXPERTS,
    "post_attention_norm.weight": "norm_3.weight",
    "attn_sinks.weight": "self_attention.sinks",
    "ffn_gate_inp.bias": "feed_forward.router_bias",
    "ffn_gate_exps.bias.{j}": "feed_forward.experts.{j}.b_gate",
    "ffn_up_exps.bias.{j}": "feed_forward.experts.{j}.b_1",
    "ffn_down_exps.bias.{j}": "feed_forward.experts.{j}.b_2",
}
GPT_OSS_NAMES = Family(
    names_of(BLOCK, GPT_OSS_LAYER, MODEL),
    stacked=tuple(
        f".{name.removesuffix('.{j}')}" for name in GPT_OSS_LAYER if "{j}" in name
    ),
)

# Their norms have 1 added to the weights, as a norm's weights are here.
GEMMA_NAMES = Family(names_of(BLOCK, LAYER | NORMS_AFTER, MODEL))
AFTER_NAMES = GEMMA_NAMES._replace(ignored=(FACTORS,))
GLM4_NAMES = NAMES._replace(
    names=names_of(
        BLOCK,
        {
            **_without("ffn_gate", "ffn_up"),
            **NORMS_AFTER,
            "ffn_up.weight": GATE_AND_FACTOR,
        },
        MODEL,
    )
)

SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "feed_forward_length": "intermediate_size",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}


def _with_means(eps: str) -> dict[str, str]:
    """Return the sizes of a family of LayerNorms, whose field for epsilon this is."""
    sizes = {key: name for key, name in SIZES.items() if "epsilon" not in key}
    return sizes | {"attention.layer_norm_epsilon": eps}


SIZES_OF_GPT2 = {
    "block_count": "n_layer",
    "embedding_length": "n_embd",
    "attention.head_count": "n_head",
    "feed_forward_length": "n_inner",
    "context_length": "n_positions",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
# What the number of experts is in a file, and how many each token takes.
EXPERT_COUNT, EXPERT_USED_COUNT = "expert_count", "expert_used_count"
SPARSE = SIZES | {
    EXPERT_COUNT: "num_experts",
    EXPERT_USED_COUNT: "num_experts_per_tok",
}
SOFTMAX: dict[str, tuple[object, ...]] = {"expert_gating_func": (1,)}
WINDOW = {"attention.sliding_window": "sliding_window"}
PATTERN = "attention.sliding_window_pattern"
FULL_ATTENTION = {"attention.sliding_window": (0,)}
SCALES = {
    "embedding_scale": "embedding_multiplier",
    "attention.scale": "attention_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
# Of layers and networks that Granite 4 may have, of which there is no array.
NO_MAMBA = (
    *("ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.inner_size"),
    *("ssm.time_step_rank", "expert_shared_feed_forward_length"),
)
# Here false means that there are no positions at all.
GRANITE_NEUTRAL = FULL_ATTENTION | {"rope.scaling.finetuned": (True,)}
SOFTCAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}

# Of all: what is refused, but for these values; and what does not matter.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "pooling_type": (0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_beta_fast": (32.0,),
    "rope.scaling.yarn_beta_slow": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "tensor_data_layout": ("Meta AI original pth",),
    "use_parallel_residual": (False,),
}
HARMLESS: dict[str, tuple[str, ...]] = {
    "how many rows token_embd.weight has, which it says itself": ("vocab_size",),
    "how the scaling of positions came to be": ("rope.scaling.finetuned",),
}
# Keys that do not begin with the architecture: patterns, after those that are read.
GENERAL_NEUTRAL: dict[str, tuple[object, ...]] = {
    "general.quantization_version": (2,),
    "general.type": ("model",),
    "split.count": (0, 1),
}
# The head of a model that scores texts, and the key of what its scores are.
CLASSIFIER = {"cls.output.weight": ("classifier_weight.T",)}
LABELS = "classifier.output_labels"
# What to do about a key that is refused.
ADVICE = {"split.count": " (llama-gguf-split --merge joins the parts of a model)"}
GENERAL_HARMLESS: dict[str, tuple[str, ...]] = {
    "about the file and where it comes from": ("general.*", "mradermacher.*"),
    "how the numbers were chosen": ("quantize.*",),
    "of a file that is whole": ("split.*",),
}

# Of the name "llama", too.
MIXTRAL_ARCHITECTURE = Architecture(
    name="llama",
    family=MIXTRAL,
    names=EXPERTS_NAMES,
    read=SPARSE | {EXPERT_COUNT: "num_local_experts"},
    neutral=FULL_ATTENTION | SOFTMAX | {"expert_weights_norm": (True,)},
    alternating=True,
)
# Of the name "olmo2", too. Their class scales no positions of layers with a window.
OLMO3_ARCHITECTURE = Architecture(
    name="olmo2",
    family=OLMO3,
    names=AFTER_NAMES,
    read=SIZES | WINDOW | {PATTERN: "layer_types"},
)
ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        Architecture(
            name="llama",
            family=LLAMA,
            names=NAMES,
            read=SIZES,
            neutral=FULL_ATTENTION,
            alternating=True,
        ),
        Architecture(
            name="qwen2",
            family=QWEN2,
            names=NAMES,
            read=SIZES,
            neutral=FULL_ATTENTION,
        ),
        Architecture(
            name="qwen3",
            family=QWEN3,
            names=NAMES,
            read=SIZES,
            neutral=FULL_ATTENTION,
        ),
        Architecture(
            name="phi3",
            family=PHI3,
            names=PHI3_NAMES,
            read=SIZES
            | WINDOW
            | {
                "rope.scaling.original_context_length": (
                    "original_max_position_embeddings"
                )
            },
        ),
        Architecture(
            name="gemma",
            family=GEMMA,
            names=NAMES,
            read=SIZES,
            neutral=FULL_ATTENTION,
        ),
        Architecture(
            name="gemma2",
            family=GEMMA2,
            names=GEMMA_NAMES,
            read=SIZES | WINDOW | SOFTCAPS,
            neutral={PATTERN: (2,)},
            large=46,
        ),
        Architecture(
            name="gemma3",
            family=GEMMA3,
            names=GEMMA_NAMES,
            read=SIZES
            | WINDOW
            | {
                "final_logit_softcapping": "final_logit_softcapping",
                PATTERN: "sliding_window_pattern",
                "rope.freq_base_swa": "rope_local_base_freq",
            },
            large=62,
        ),
        Architecture(
            name="olmo2",
            family=OLMO2,
            names=AFTER_NAMES,
            read=SIZES,
            neutral=FULL_ATTENTION,
        ),
        Architecture(
            name="exaone4",
            family=EXAONE4,
            names=AFTER_NAMES,
            read=SIZES | WINDOW | {PATTERN: "sliding_window_pattern"},
        ),
        Architecture(
            name="ernie4_5",
            family=ERNIE4_5,
            names=NAMES,
            read=SIZES,
            neutral=FULL_ATTENTION,
        ),
        Architecture(
            name="smollm3",
            family=SMOLLM3,
            names=NAMES,
            read=SIZES,
            neutral=FULL_ATTENTION,
            alternating=True,
        ),
        Architecture(
            name="granite",
            family=GRANITE,
            names=NAMES,
            read=SIZES | SCALES,
            neutral=GRANITE_NEUTRAL,
            harmless=NO_MAMBA,
            alternating=True,
            needed=tuple(SCALES),
        ),
        Architecture(
            name="granitemoe",
            family=GRANITEMOE,
            names=EXPERTS_NAMES,
            read=SPARSE | SCALES | {EXPERT_COUNT: "num_local_experts"},
            neutral=GRANITE_NEUTRAL | SOFTMAX,
            alternating=True,
            needed=tuple(SCALES),
        ),
        Architecture(
            name="phi2",
            family=PHI,
            names=PHI2_NAMES,
            read=_with_means("layer_norm_eps"),
            neutral=FULL_ATTENTION,
        ),
        # The key is true where a configuration has no such field, unlike the class: a
        # second norm says that attention and network are not side by side.
        Architecture(
            name="stablelm",
            family=STABLELM,
            names=LAYER_NORM_NAMES,
            read={
                key: name
                for key, name in _with_means("layer_norm_eps").items()
                if name != "head_dim"
            },
            neutral=FULL_ATTENTION | {"use_parallel_residual": (False, True)},
        ),
        Architecture(
            name="starcoder2",
            family=STARCODER2,
            names=LAYER_NORM_NAMES,
            read=_with_means("norm_epsilon"),
            neutral=FULL_ATTENTION,
        ),
        Architecture(
            name="nemotron",
            family=NEMOTRON,
            names=LAYER_NORM_NAMES,
            read=_with_means("norm_eps"),
            neutral=FULL_ATTENTION,
        ),
        Architecture(
            name="command-r",
            family=COHERE,
            names=NAMES,
            read=_with_means("layer_norm_eps") | {"logit_scale": "logit_scale"},
            neutral=FULL_ATTENTION,
            needed=("logit_scale",),
        ),
        Architecture(
            name="cohere2",
            family=COHERE2,
            names=NAMES,
            read=_with_means("layer_norm_eps")
            | WINDOW
            | {"logit_scale": "logit_scale", PATTERN: "sliding_window_pattern"},
            needed=("logit_scale", "attention.sliding_window"),
        ),
        Architecture(
            name="glm4",
            family=GLM4,
            names=GLM4_NAMES,
            read=SIZES,
            neutral=FULL_ATTENTION,
        ),
        Architecture(
            name="arcee",
            family=ARCEE,
            names=NAMES,
            read=SIZES,
            neutral=FULL_ATTENTION,
            alternating=True,
        ),
        Architecture(
            name="seed_oss",
            family=SEED_OSS,
            names=SEED_OSS_NAMES,
            read=SIZES,
            neutral=FULL_ATTENTION,
        ),
        Architecture(
            name="olmoe",
            family=OLMOE,
            names=EXPERTS_NAMES,
            read={key: x for key, x in SPARSE.items() if x != "head_dim"},
            neutral=FULL_ATTENTION | SOFTMAX | {"expert_weights_norm": (False,)},
            fixed={"norm_topk_prob": False},
        ),
        Architecture(
            name="qwen3moe",
            family=QWEN3_MOE,
            names=EXPERTS_NAMES,
            read=SPARSE | {"expert_feed_forward_length": "moe_intermediate_size"},
            neutral=FULL_ATTENTION | SOFTMAX | {"expert_weights_norm": (True,)},
            fixed={"norm_topk_prob": True},
        ),
        Architecture(
            name="gpt-oss",
            family=GPT_OSS,
            names=GPT_OSS_NAMES,
            read=SPARSE
            | WINDOW
            | {
                EXPERT_COUNT: "num_local_experts",
                "expert_feed_forward_length": "intermediate_size",
            },
            neutral={"expert_gating_func": (3,)},
            # Not those that its class has where a file says nothing.
            fixed={
                "sliding_window": None,
                "rope_parameters": {"rope_type": "default"},
            },
            yarn={"truncate": False},
        ),
        Architecture(
            name="gpt2",
            family=GPT2,
            names=GPT2_NAMES,
            read=SIZES_OF_GPT2,
        ),
        Architecture(
            name="starcoder",
            family=GPT_BIGCODE,
            names=GPT2_NAMES,
            read=SIZES_OF_GPT2,
            neutral={"attention.head_count_kv": (1,)},
        ),
    )
}
