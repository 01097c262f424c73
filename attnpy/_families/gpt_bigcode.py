"""GPT-BigCode, as StarCoder: GPT-2 with one head of keys and values for all."""

from __future__ import annotations

from attnpy._families import gpt2, rules
from attnpy._families.declaration import Declaration
from attnpy._families.fields import NEUTRAL, Field

# Their matrices are transposed, unlike GPT-2's.
NAMES = gpt2.NAMES._replace(
    names={
        name: tuple(f"{part}.T" for part in own) if ".W_" in own[0] else own
        for name, own in gpt2.NAMES.names.items()
    }
)

GPT_BIGCODE = Declaration(
    model_type="gpt_bigcode",
    title="GPT-BigCode, StarCoder, SantaCoder",
    model="decoder",
    classes=("GPTBigCodeModel", "GPTBigCodeForCausalLM"),
    checkpoint="gpt_bigcode",
    names=NAMES,
    read={
        name: field
        for name, field in gpt2.GPT2.read.items()
        if not name.startswith(("scale_attn", "is_causal"))
    }
    | {
        "n_positions": Field("size", 1024),
        "activation_function": Field("name", "gelu_pytorch_tanh"),
    },
    neutral=NEUTRAL
    | {
        "is_causal": (True,),
        "multi_query": (True,),
        "num_key_value_heads": (1,),
        "scale_attn_weights": (True,),
    },
    harmless=gpt2.HEAD_HARMLESS
    | {
        "dropout, for training": ("attn_pdrop", "embd_pdrop", "resid_pdrop"),
        "the softmax is always in float32 or wider": (
            "attention_softmax_in_fp32",
            "scale_attention_softmax_in_fp32",
        ),
        "how older code kept keys and values": (
            *("inference_runner", "max_batch_size", "max_sequence_length"),
            *("pad_key_length", "pre_allocate_kv_cache", "validate_runner_input"),
        ),
    },
    copied={
        argument: field
        for argument, field in gpt2.GPT2.copied.items()
        if argument != "causal"
    },
    fixed={"causal": True, "num_kv_heads": 1},
    computed={
        "hidden_dim": gpt2.GPT2.computed["hidden_dim"],
        "activation": rules.activation("activation_function"),
        "stop": rules.stop,
    },
)
