"""Encoders in GGUF files: what their keys and the names of their arrays mean here."""

from __future__ import annotations

from dataclasses import replace

from attnpy._families.bert import BERT
from attnpy._families.declaration import Family, head_of, names_of
from attnpy._families.gguf import ARCHITECTURES as DECODERS
from attnpy._families.gguf import LAYER, QKV, Architecture
from attnpy._families.nomic_bert import NOMIC_BERT

BLOCK = "blk.{i} encoder.layers.{i}"
MODEL = {
    "token_embd.weight": "token_embedding",
    "token_types.weight": "segment_embedding",
    "token_embd_norm.weight": "norm.weight",
    "token_embd_norm.bias": "norm.bias",
}
NORMS = {
    "attn_output_norm.weight": "norm_1.weight",
    "attn_output_norm.bias": "norm_1.bias",
    "layer_output_norm.weight": "norm_2.weight",
    "layer_output_norm.bias": "norm_2.bias",
}
WITHOUT = ("attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm")
PLAIN = {name: own for name, own in LAYER.items() if not name.startswith(WITHOUT)}
BERT_LAYER = {name: x for name, x in PLAIN.items() if not name.startswith("ffn_gate")}
NOMIC_LAYER = {
    "attn_qkv.weight": QKV,
    **{
        name: own
        for name, own in PLAIN.items()
        if name.endswith(".weight")
        and not name.startswith(("attn_q.", "attn_k.", "attn_v."))
    },
}

# How a text's vector is made of those of its tokens, by ``pooling_type``.
POOLING_TYPE = "pooling_type"
POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken"}
# Or scores, by a head of these arrays.
SCORES = 4
HEAD = head_of("cls", "cls.output")

SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_epsilon": "layer_norm_eps",
}
NEUTRAL: dict[str, tuple[object, ...]] = {
    "attention.causal": (False,),
    POOLING_TYPE: (0, *POOLINGS),
}

ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        Architecture(
            name="bert",
            family=BERT,
            names=Family(
                names_of(
                    BLOCK,
                    BERT_LAYER | NORMS,
                    MODEL | {"position_embd.weight": "position_embedding"},
                ),
                classifier=HEAD,
            ),
            read=SIZES,
            neutral=NEUTRAL,
        ),
        Architecture(
            name="nomic-bert",
            family=NOMIC_BERT,
            names=Family(names_of(BLOCK, NOMIC_LAYER | NORMS, MODEL)),
            read=SIZES | {"rope.freq_base": "rope_theta"},
            neutral=NEUTRAL,
        ),
    )
}

# Steps of EmbeddingGemma after pooling: matrices, and keys that have their sizes.
DENSE = "dense_2.weight", "dense_3.weight"
DENSE_SIZES = tuple(f"dense_{i}_feat_{end}" for i in (2, 3) for end in ("in", "out"))
_GEMMA3 = DECODERS["gemma3"]
# Decoders that only make vectors of texts.
POOLED: dict[str, Architecture] = {
    "gemma-embedding": replace(
        _GEMMA3,
        name="gemma-embedding",
        names=_GEMMA3.names._replace(ignored=(*_GEMMA3.names.ignored, *DENSE)),
        neutral={"attention.causal": (False,)},
        harmless=DENSE_SIZES,
        fixed={"use_bidirectional_attention": True},
    )
}
