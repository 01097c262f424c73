"""GPT-J: attention and network side by side, behind one norm, with rotary positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnpy._families import gpt2, rules
from attnpy._families.declaration import Declaration, names_of
from attnpy._families.fields import NEUTRAL, Field
from attnpy.positions import Rotary

if TYPE_CHECKING:
    from attnpy._families.declaration import Values

_LAYER = {
    **{f"ln_1.{part}": f"norm_1.{part}" for part in ("weight", "bias")},
    **{f"attn.{x}_proj.weight": f"self_attention.W_{x}.T" for x in "qkv"},
    "attn.out_proj.weight": "self_attention.W_o.T",
    "mlp.fc_in.weight": "feed_forward.W_1.T",
    "mlp.fc_in.bias": "feed_forward.b_1",
    "mlp.fc_out.weight": "feed_forward.W_2.T",
    "mlp.fc_out.bias": "feed_forward.b_2",
}
# The ignored ones are masks, and tables of positions that are computed here.
NAMES = gpt2.NAMES._replace(
    names={
        **{x: own for x, own in gpt2.NAMES.names.items() if x[:2] not in ("h.", "wp")},
        **names_of("h.{i} decoder.layers.{i}", _LAYER, {"lm_head.bias": "output_bias"}),
    },
    ignored=(*gpt2.NAMES.ignored, "h.*.attn.embed_positions"),
    optional=("lm_head.bias",),
    beside=("lm_head.bias",),
)


def _rotary(values: Values) -> Rotary:
    """Return the positions, which turn the first numbers of a head by neighbours."""
    size, turned = values["n_embd"] // values["n_head"], values["rotary_dim"]
    if values["n_embd"] % values["n_head"] or turned > size or turned % 2:
        raise ValueError(
            "config: expected n_embd to be a multiple of n_head, and rotary_dim an "
            f"even number up to the size of a head, got n_embd = {values['n_embd']}, "
            f"n_head = {values['n_head']} and rotary_dim = {turned}"
        )
    return Rotary(size, rotary_dim=turned, interleaved=True)


GPTJ = Declaration(
    model_type="gptj",
    title="GPT-J",
    model="decoder",
    classes=("GPTJModel", "GPTJForCausalLM"),
    checkpoint="gptj",
    names=NAMES,
    read={
        name: x
        for name, x in gpt2.GPT2.read.items()
        if not name.startswith(("scale_attn", "is_causal", "n_positions"))
    }
    | {
        "rotary_dim": Field("size", 64),
        "tie_word_embeddings": Field("flag", False),
    },
    neutral=NEUTRAL
    | {"is_causal": (True,), "rotary": (True,), "scale_attn_weights": (True,)},
    harmless={
        **gpt2.GPT2.harmless,
        "the length of texts in training: positions are no table": ("n_positions",),
    },
    copied={
        argument: field
        for argument, field in gpt2.GPT2.copied.items()
        if argument not in ("causal", "max_length")
    },
    fixed={
        "causal": True,
        "parallel": "one norm",
        "qkv_bias": False,
        "out_bias": False,
        "output_bias": True,
    },
    computed={
        "hidden_dim": gpt2.GPT2.computed["hidden_dim"],
        "rotary": _rotary,
        "activation": rules.activation("activation_function"),
        "stop": rules.stop,
    },
)
