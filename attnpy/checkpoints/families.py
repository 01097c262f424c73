"""The names of each family's checkpoints, and the parameters that they hold.

Data: a new family is another table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from attnpy import _repr


class Family(NamedTuple):
    """The names in the checkpoints of a family of models.

    Attributes
    ----------
    names : mapping of str to tuple of str
        A name in the checkpoint and the parameter it holds, or several parameters,
        packed side by side along the axis of the outputs. ``{i}`` is the number of a
        layer. ``.T`` after a parameter: the checkpoint has its transpose. Where
        parameters have several names, a checkpoint has one of them.
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

    def __repr__(self) -> str:
        """Return the dtype and shape of each array."""
        return _repr.of_fields(self)


def _names(
    block: str, layer: dict[str, str], rest: dict[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return all names of a model: those of each layer, and the rest."""
    theirs, ours = block.split()
    names = {
        f"{theirs}.{name}": tuple(f"{ours}.{own}" for own in parameters.split())
        for name, parameters in layer.items()
    }
    return {name: tuple(own.split()) for name, own in rest.items()} | names


# torch.nn.MultiheadAttention, for MultiHeadAttention.
TORCH_ATTENTION = Family(
    {
        "in_proj_weight": ("W_q.T", "W_k.T", "W_v.T"),
        "q_proj_weight": ("W_q.T",),
        "k_proj_weight": ("W_k.T",),
        "v_proj_weight": ("W_v.T",),
        "in_proj_bias": ("b_q", "b_k", "b_v"),
        "out_proj.weight": ("W_o.T",),
        "out_proj.bias": ("b_o",),
    },
    refused={
        "bias_k": "expected none, as MultiHeadAttention has no learned key (in PyTorch "
        "add_bias_kv=True)",
        "bias_v": "expected none, as MultiHeadAttention has no learned value (in "
        "PyTorch add_bias_kv=True)",
    },
)

# BERT and what is built as it, MiniLM among them, for BertEncoder. Where the model has
# no pooler or classifier, these are left alone.
_BERT_LAYER = {
    "attention.self.query.weight": "self_attention.W_q.T",
    "attention.self.query.bias": "self_attention.b_q",
    "attention.self.key.weight": "self_attention.W_k.T",
    "attention.self.key.bias": "self_attention.b_k",
    "attention.self.value.weight": "self_attention.W_v.T",
    "attention.self.value.bias": "self_attention.b_v",
    "attention.output.dense.weight": "self_attention.W_o.T",
    "attention.output.dense.bias": "self_attention.b_o",
    "attention.output.LayerNorm.weight": "norm_1.weight",
    "attention.output.LayerNorm.bias": "norm_1.bias",
    "intermediate.dense.weight": "feed_forward.W_1.T",
    "intermediate.dense.bias": "feed_forward.b_1",
    "output.dense.weight": "feed_forward.W_2.T",
    "output.dense.bias": "feed_forward.b_2",
    "output.LayerNorm.weight": "norm_2.weight",
    "output.LayerNorm.bias": "norm_2.bias",
}
_EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "token_embedding",
    "embeddings.position_embeddings.weight": "position_embedding",
    "embeddings.LayerNorm.weight": "norm.weight",
    "embeddings.LayerNorm.bias": "norm.bias",
}
_TYPES = {"embeddings.token_type_embeddings.weight": "segment_embedding"}
_POOLER = {
    "pooler.dense.weight": "pooler_weight.T",
    "pooler.dense.bias": "pooler_bias",
}
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")

BERT = Family(
    _names(
        "encoder.layer.{i} encoder.layers.{i}",
        _BERT_LAYER,
        {
            **_EMBEDDINGS,
            **_TYPES,
            **_POOLER,
            "classifier.weight": "classifier_weight.T",
            "classifier.bias": "classifier_bias",
        },
    ),
    prefixes=("bert.", "model."),
    renamed=(
        ("LayerNorm.gamma", "LayerNorm.weight"),
        ("LayerNorm.beta", "LayerNorm.bias"),
    ),
    ignored=_BUFFERS,
    heads=("cls.*", "qa_outputs.*"),
    optional=("pooler.dense.*", "classifier.*"),
)

# RoBERTa and XLM-RoBERTa. All that is called a classifier is another than BERT's.
_HEADS = ("classifier.*", "lm_head.*", "qa_outputs.*")
ROBERTA = Family(
    _names(
        "encoder.layer.{i} encoder.layers.{i}",
        _BERT_LAYER,
        {**_EMBEDDINGS, **_TYPES, **_POOLER},
    ),
    prefixes=("roberta.", "model."),
    ignored=_BUFFERS,
    heads=_HEADS,
    optional=("pooler.dense.*",),
)

DISTILBERT = Family(
    _names(
        "transformer.layer.{i} encoder.layers.{i}",
        {
            "attention.q_lin.weight": "self_attention.W_q.T",
            "attention.q_lin.bias": "self_attention.b_q",
            "attention.k_lin.weight": "self_attention.W_k.T",
            "attention.k_lin.bias": "self_attention.b_k",
            "attention.v_lin.weight": "self_attention.W_v.T",
            "attention.v_lin.bias": "self_attention.b_v",
            "attention.out_lin.weight": "self_attention.W_o.T",
            "attention.out_lin.bias": "self_attention.b_o",
            "sa_layer_norm.weight": "norm_1.weight",
            "sa_layer_norm.bias": "norm_1.bias",
            "ffn.lin1.weight": "feed_forward.W_1.T",
            "ffn.lin1.bias": "feed_forward.b_1",
            "ffn.lin2.weight": "feed_forward.W_2.T",
            "ffn.lin2.bias": "feed_forward.b_2",
            "output_layer_norm.weight": "norm_2.weight",
            "output_layer_norm.bias": "norm_2.bias",
        },
        _EMBEDDINGS,
    ),
    prefixes=("distilbert.", "model."),
    ignored=_BUFFERS,
    heads=("classifier.*", "pre_classifier.*", "qa_outputs.*", "vocab_*"),
)

MPNET = Family(
    _names(
        "encoder.layer.{i} encoder.layers.{i}",
        {
            "attention.attn.q.weight": "self_attention.W_q.T",
            "attention.attn.q.bias": "self_attention.b_q",
            "attention.attn.k.weight": "self_attention.W_k.T",
            "attention.attn.k.bias": "self_attention.b_k",
            "attention.attn.v.weight": "self_attention.W_v.T",
            "attention.attn.v.bias": "self_attention.b_v",
            "attention.attn.o.weight": "self_attention.W_o.T",
            "attention.attn.o.bias": "self_attention.b_o",
            "attention.LayerNorm.weight": "norm_1.weight",
            "attention.LayerNorm.bias": "norm_1.bias",
            "intermediate.dense.weight": "feed_forward.W_1.T",
            "intermediate.dense.bias": "feed_forward.b_1",
            "output.dense.weight": "feed_forward.W_2.T",
            "output.dense.bias": "feed_forward.b_2",
            "output.LayerNorm.weight": "norm_2.weight",
            "output.LayerNorm.bias": "norm_2.bias",
        },
        {
            **_EMBEDDINGS,
            **_POOLER,
            "encoder.relative_attention_bias.weight": "relative_bias",
        },
    ),
    prefixes=("mpnet.", "model."),
    ignored=_BUFFERS,
    heads=_HEADS,
    optional=("pooler.dense.*",),
)

_DECODER_HEADS = ("classifier.*", "multiple_choice_head.*", "qa_outputs.*", "score.*")
# GPT-2, for CausalDecoder. Its Conv1D has our orientation. The ignored ones are masks.
GPT2 = Family(
    _names(
        "h.{i} decoder.layers.{i}",
        {
            "ln_1.weight": "norm_1.weight",
            "ln_1.bias": "norm_1.bias",
            "attn.c_attn.weight": "self_attention.W_q self_attention.W_k "
            "self_attention.W_v",
            "attn.c_attn.bias": "self_attention.b_q self_attention.b_k "
            "self_attention.b_v",
            "attn.c_proj.weight": "self_attention.W_o",
            "attn.c_proj.bias": "self_attention.b_o",
            "ln_2.weight": "norm_3.weight",
            "ln_2.bias": "norm_3.bias",
            "mlp.c_fc.weight": "feed_forward.W_1",
            "mlp.c_fc.bias": "feed_forward.b_1",
            "mlp.c_proj.weight": "feed_forward.W_2",
            "mlp.c_proj.bias": "feed_forward.b_2",
        },
        {
            "wte.weight": "token_embedding",
            "wpe.weight": "position_embedding",
            "ln_f.weight": "decoder.norm.weight",
            "ln_f.bias": "decoder.norm.bias",
            "lm_head.weight": "output.T",
        },
    ),
    prefixes=("transformer.",),
    ignored=("h.*.attn.bias", "h.*.attn.masked_bias"),
    heads=_DECODER_HEADS,
    tied={"lm_head.weight": "wte.weight"},
)

# Llama, Mistral, Qwen2 (biases of queries, keys and values) and Qwen3 (norms of queries
# and keys), for CausalDecoder. The ignored ones are rotary frequencies.
LLAMA = Family(
    _names(
        "layers.{i} decoder.layers.{i}",
        {
            "input_layernorm.weight": "norm_1.weight",
            "self_attn.q_proj.weight": "self_attention.W_q.T",
            "self_attn.q_proj.bias": "self_attention.b_q",
            "self_attn.k_proj.weight": "self_attention.W_k.T",
            "self_attn.k_proj.bias": "self_attention.b_k",
            "self_attn.v_proj.weight": "self_attention.W_v.T",
            "self_attn.v_proj.bias": "self_attention.b_v",
            "self_attn.o_proj.weight": "self_attention.W_o.T",
            "self_attn.o_proj.bias": "self_attention.b_o",
            "self_attn.q_norm.weight": "self_attention.q_norm.weight",
            "self_attn.k_norm.weight": "self_attention.k_norm.weight",
            "post_attention_layernorm.weight": "norm_3.weight",
            "mlp.gate_proj.weight": "feed_forward.W_gate.T",
            "mlp.gate_proj.bias": "feed_forward.b_gate",
            "mlp.up_proj.weight": "feed_forward.W_1.T",
            "mlp.up_proj.bias": "feed_forward.b_1",
            "mlp.down_proj.weight": "feed_forward.W_2.T",
            "mlp.down_proj.bias": "feed_forward.b_2",
        },
        {
            "embed_tokens.weight": "token_embedding",
            "norm.weight": "decoder.norm.weight",
            "lm_head.weight": "output.T",
        },
    ),
    prefixes=("model.",),
    ignored=("layers.*.self_attn.rotary_emb.inv_freq",),
    heads=_DECODER_HEADS,
    tied={"lm_head.weight": "embed_tokens.weight"},
)

# Phi-3, whose matrices are side by side.
_APART = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
PHI3 = Family(
    {
        name: own
        for name, own in LLAMA.names.items()
        if not any(part in name for part in _APART)
    }
    | _names(
        "layers.{i} decoder.layers.{i}",
        {
            "self_attn.qkv_proj.weight": "self_attention.W_q.T self_attention.W_k.T "
            "self_attention.W_v.T",
            "mlp.gate_up_proj.weight": "feed_forward.W_gate.T feed_forward.W_1.T",
        },
        {},
    ),
    prefixes=LLAMA.prefixes,
    ignored=LLAMA.ignored,
    heads=LLAMA.heads,
    tied=LLAMA.tied,
)

# Gemma 2 and 3, whose norms multiply by 1 + weight.
GEMMA = Family(
    {
        **LLAMA.names,
        **_names(
            "layers.{i} decoder.layers.{i}",
            {
                "post_attention_layernorm.weight": "after_1.weight",
                "pre_feedforward_layernorm.weight": "norm_3.weight",
                "post_feedforward_layernorm.weight": "after_3.weight",
            },
            {},
        ),
    },
    prefixes=LLAMA.prefixes,
    ignored=LLAMA.ignored,
    heads=LLAMA.heads,
    tied=LLAMA.tied,
    one_less=(
        "norm.weight",
        "norm_1.weight",
        "norm_3.weight",
        "after_1.weight",
        "after_3.weight",
    ),
)

FAMILIES: dict[str, Family] = {
    "torch_attention": TORCH_ATTENTION,
    "bert": BERT,
    "roberta": ROBERTA,
    "distilbert": DISTILBERT,
    "mpnet": MPNET,
    "gpt2": GPT2,
    "llama": LLAMA,
    "phi3": PHI3,
    "gemma": GEMMA,
}
