"""Small encoder-decoders in the names of their checkpoints, and their arithmetic.

Written from the papers, without attnpy, in float64: the oracle of
test_encoder_decoder.py. `search` is a beam search, one text after the other.
"""

import math

import numpy as np

from support.families import named_norm, torch_linear
from support.formulas import gelu, gelu_tanh, relu, rms_norm, silu, softmax

T5 = {
    "model_type": "t5",
    "num_layers": 2,
    "num_decoder_layers": 3,
    "d_model": 12,
    "d_kv": 5,
    "d_ff": 20,
    "num_heads": 3,
    "vocab_size": 30,
    "relative_attention_num_buckets": 6,
    "relative_attention_max_distance": 7,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
# The fields of a folder of the encoder alone, such as sentence-t5.
T5_ENCODER = {
    **T5,
    "model_type": "t5_encoder",
    "relative_attention_max_distance": 128,
    "is_encoder_decoder": True,
    "n_positions": 512,
    "pad_token_id": 0,
}
MT5 = {**T5, "model_type": "mt5", "feed_forward_proj": "gated-gelu"}
BART = {
    "model_type": "bart",
    "encoder_layers": 2,
    "decoder_layers": 3,
    "d_model": 12,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 16,
    "vocab_size": 30,
    "max_position_embeddings": 16,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
MBART = {**BART, "model_type": "mbart", "scale_embedding": True}
MARIAN = {
    **BART,
    "model_type": "marian",
    "activation_function": "swish",
    "scale_embedding": True,
    "decoder_start_token_id": 29,
    "eos_token_id": 0,
}
PEGASUS = {**BART, "model_type": "pegasus", "activation_function": "relu"}
M2M100 = {**BART, "model_type": "m2m_100"}
ENCODER_DECODERS = {
    config["model_type"]: config
    for config in (T5, MT5, BART, MBART, MARIAN, PEGASUS, M2M100)
}
# Those whose norms come first, and after the last layer.
NORM_FIRST = "mbart", "pegasus", "m2m_100"
ACTIVATIONS = {"gelu": gelu, "swish": silu, "relu": relu}


def tensors(config, seed=0):
    """Random float32 arrays by name."""
    rng = np.random.default_rng(seed)
    is_t5 = config["model_type"] in ("t5", "mt5")
    shapes = _t5_shapes(config) if is_t5 else _bart_shapes(config)
    return {
        name: rng.standard_normal(shape, dtype=np.float32)
        * np.float32(shape[-1] ** -0.5 if len(shape) == 2 else 1)
        for name, shape in shapes.items()
    }


def is_gated(config):
    return config.get("feed_forward_proj", "relu").startswith("gated")


def is_tied(config):
    """Whether the scores of a T5 are products with the embeddings."""
    return config["model_type"] == "t5" and config.get("tie_word_embeddings", True)


def _t5_shapes(config):
    e, f, vocabulary = config["d_model"], config["d_ff"], config["vocab_size"]
    heads, buckets = config["num_heads"], config["relative_attention_num_buckets"]
    inner = heads * config["d_kv"]
    shapes = {"shared.weight": (vocabulary, e)}
    if not is_tied(config):
        shapes["lm_head.weight"] = (vocabulary, e)
    sizes = {"encoder": config["num_layers"], "decoder": config["num_decoder_layers"]}
    for side, n in sizes.items():
        for i in range(n):
            layer = f"{side}.block.{i}.layer"
            parts = ["SelfAttention"] + ["EncDecAttention"] * (side == "decoder")
            for j, part in enumerate(parts):
                for x in "qkv":
                    shapes[f"{layer}.{j}.{part}.{x}.weight"] = (inner, e)
                shapes[f"{layer}.{j}.{part}.o.weight"] = (e, inner)
                shapes[f"{layer}.{j}.layer_norm.weight"] = (e,)
            last = f"{layer}.{len(parts)}"
            for name in ("wi_0", "wi_1") if is_gated(config) else ("wi",):
                shapes[f"{last}.DenseReluDense.{name}.weight"] = (f, e)
            shapes[f"{last}.DenseReluDense.wo.weight"] = (e, f)
            shapes[f"{last}.layer_norm.weight"] = (e,)
        bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        shapes[f"{side}.{bias}"] = (buckets, heads)
        shapes[f"{side}.final_layer_norm.weight"] = (e,)
    return shapes


def _bart_shapes(config):
    e, vocabulary, kind = config["d_model"], config["vocab_size"], config["model_type"]
    shapes = {"model.shared.weight": (vocabulary, e)}
    if kind != "m2m_100":
        shapes["final_logits_bias"] = (1, vocabulary)
    modules = {}
    for side in ("encoder", "decoder"):
        if kind in ("bart", "mbart"):
            rows = config["max_position_embeddings"] + 2
            shapes[f"model.{side}.embed_positions.weight"] = (rows, e)
            modules[f"model.{side}.layernorm_embedding"] = (e,)
        if kind in NORM_FIRST:
            modules[f"model.{side}.layer_norm"] = (e,)
        f = config[f"{side}_ffn_dim"]
        for i in range(config[f"{side}_layers"]):
            layer = f"model.{side}.layers.{i}"
            parts = ["self_attn"] + ["encoder_attn"] * (side == "decoder")
            for part in parts:
                for x in ("q", "k", "v", "out"):
                    modules[f"{layer}.{part}.{x}_proj"] = (e, e)
                modules[f"{layer}.{part}_layer_norm"] = (e,)
            modules |= {f"{layer}.fc1": (f, e), f"{layer}.fc2": (e, f)}
            modules[f"{layer}.final_layer_norm"] = (e,)
    for name, shape in modules.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def scores(weights, config, source, target):
    """The scores (L, V) of what follows each token of a target, given the source."""
    w = {name: np.asarray(array, float) for name, array in weights.items()}
    if config["model_type"] in ("t5", "mt5"):
        return _t5_scores(w, config, source, target)
    return _bart_scores(w, config, source, target)


def attend(query, key, value, n_heads, scale, allowed=True, bias=None):
    """Attention of one sequence to keys, head by head."""
    heads = []
    for h, (q, k, v) in enumerate(
        zip(*(np.split(x, n_heads, axis=1) for x in (query, key, value)), strict=True)
    ):
        numbers = scale * q @ k.T + (0 if bias is None else bias[h])
        heads.append(softmax(np.where(allowed, numbers, -np.inf)) @ v)
    return np.concatenate(heads, axis=1)


def distance_bias(table, n, both_ways, longest):
    """Numbers (H, L, L) for the distance of key and query."""
    bias = np.empty((table.shape[1], n, n))
    buckets = len(table) // 2 if both_ways else len(table)
    exact = buckets // 2
    for i in range(n):
        for j in range(n):
            distance = abs(i - j) if both_ways else max(i - j, 0)
            if distance >= exact:
                far = math.log(distance / exact) / math.log(longest / exact)
                distance = min(exact + int(far * (buckets - exact)), buckets - 1)
            bias[:, i, j] = table[distance + buckets * (both_ways and j > i)]
    return bias


def encoder_tensors(config):
    """The arrays of T5's encoder alone."""
    whole = tensors({**config, "model_type": "t5"})
    return {
        name: array
        for name, array in whole.items()
        if name.startswith(("shared.", "encoder."))
    }


def encoder_states(weights, config, ids):
    """The vectors of a text after T5's encoder."""
    w = {name: np.asarray(array, float) for name, array in weights.items()}
    return _t5_stack(w, config)("encoder", np.asarray(ids), None)


def _t5_scores(w, config, source, target):
    stack = _t5_stack(w, config)
    x = stack("decoder", target, stack("encoder", source, None))
    if is_tied(config):
        return x * config["d_model"] ** -0.5 @ w["shared.weight"].T
    return x @ w["lm_head.weight"].T


def _t5_stack(w, config):
    """What gives the vectors of a side."""
    eps, n_heads = 1e-6, config["num_heads"]

    def stack(side, ids, states):
        x, n = w["shared.weight"][ids], len(ids)
        table = w[
            f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        ]
        longest = config["relative_attention_max_distance"]
        bias = distance_bias(table, n, states is None, longest)
        causal = np.arange(n)[:, None] >= np.arange(n)
        i = 0
        while f"{side}.block.{i}.layer.0.layer_norm.weight" in w:
            parts = [("SelfAttention", None)]
            if states is not None:
                parts.append(("EncDecAttention", states))
            for j, (part, context) in enumerate(parts):
                layer = f"{side}.block.{i}.layer.{j}"
                y = rms_norm(x, w[f"{layer}.layer_norm.weight"], eps)
                of = y if context is None else context
                q = torch_linear(y, w, f"{layer}.{part}.q")
                k, v = (torch_linear(of, w, f"{layer}.{part}.{z}") for z in "kv")
                own = {}
                if context is None:
                    allowed = causal if side == "decoder" else True
                    own = {"bias": bias, "allowed": allowed}
                z = attend(q, k, v, n_heads, 1, **own)
                x = x + torch_linear(z, w, f"{layer}.{part}.o")
            layer = f"{side}.block.{i}.layer.{len(parts)}"
            y = rms_norm(x, w[f"{layer}.layer_norm.weight"], eps)
            dense = f"{layer}.DenseReluDense"
            if is_gated(config):
                is_silu = config["feed_forward_proj"] == "gated-silu"
                gate = torch_linear(y, w, f"{dense}.wi_0")
                gate = silu(gate) if is_silu else gelu_tanh(gate)
                y = gate * torch_linear(y, w, f"{dense}.wi_1")
            else:
                y = relu(torch_linear(y, w, f"{dense}.wi"))
            x = x + torch_linear(y, w, f"{dense}.wo")
            i += 1
        return rms_norm(x, w[f"{side}.final_layer_norm.weight"], eps)

    return stack


def places(config, ids):
    """The vectors that tell positions, of those families that compute them."""
    e, table = config["d_model"], []
    if config["model_type"] == "m2m_100":
        half = e // 2
        frequencies = np.exp(np.arange(half) * -math.log(10000) / (half - 1))
        number = 2
        for token in ids:
            angles = number * frequencies
            row = np.concatenate([np.sin(angles), np.cos(angles)])
            table.append(np.zeros(e) if token == 1 else row)
            number += token != 1
    else:
        for number in range(len(ids)):
            angles = number / 10000 ** (np.arange(0, e, 2) / e)
            table.append(np.concatenate([np.sin(angles), np.cos(angles)]))
    return np.array(table)


def _bart_scores(w, config, source, target):
    x = _bart_states(w, config, source, target)
    return x @ w["model.shared.weight"].T + w.get("final_logits_bias", 0)


def classifier(config, n_labels, seed=3):
    """The arrays of BART with a head that scores texts."""
    rng = np.random.default_rng(seed)
    sizes = {"dense": config["d_model"], "out_proj": n_labels}
    arrays = {**tensors(config)}
    del arrays["final_logits_bias"]
    for name, n in sizes.items():
        head = f"classification_head.{name}"
        shapes = {"weight": (n, config["d_model"]), "bias": (n,)}
        for kind, shape in shapes.items():
            numbers = rng.standard_normal(shape, dtype=np.float32)
            arrays[f"{head}.{kind}"] = numbers
    return arrays


def text_scores(weights, config, ids):
    """The scores of a text, by the decoder's vector of its last end."""
    w = {name: np.asarray(array, float) for name, array in weights.items()}
    ids = np.asarray(ids)
    target = np.array([config["decoder_start_token_id"], *ids[:-1]])
    last = max(i for i, token in enumerate(ids) if token == config["eos_token_id"])
    x = _bart_states(w, config, ids, target)[last]
    hidden = np.tanh(torch_linear(x, w, "classification_head.dense"))
    return torch_linear(hidden, w, "classification_head.out_proj")


def _bart_states(w, config, source, target):
    """The decoder's vectors of a target's tokens."""
    kind, eps, first = config["model_type"], 1e-5, config["model_type"] in NORM_FIRST
    default = "relu" if kind == "m2m_100" else "gelu"
    activation = ACTIVATIONS[config.get("activation_function", default)]

    def stack(side, ids, states):
        x, n = w["model.shared.weight"][ids], len(ids)
        if config.get("scale_embedding", kind == "m2m_100"):
            x = x * math.sqrt(config["d_model"])
        if kind in ("bart", "mbart"):
            x = x + w[f"model.{side}.embed_positions.weight"][2 : 2 + n]
            x = named_norm(x, w, f"model.{side}.layernorm_embedding", eps)
        else:
            x = x + places(config, ids)
        causal = np.arange(n)[:, None] >= np.arange(n)
        n_heads = config[f"{side}_attention_heads"]
        scale = (config["d_model"] // n_heads) ** -0.5

        def residual(x, part, norm):
            if first:
                return x + part(named_norm(x, w, norm, eps))
            return named_norm(x + part(x), w, norm, eps)

        for i in range(config[f"{side}_layers"]):
            layer = f"model.{side}.layers.{i}"

            def attention(y, name, context, allowed, layer=layer):
                of = y if context is None else context
                q = torch_linear(y, w, f"{layer}.{name}.q_proj")
                k, v = (torch_linear(of, w, f"{layer}.{name}.{z}_proj") for z in "kv")
                z = attend(q, k, v, n_heads, scale, allowed)
                return torch_linear(z, w, f"{layer}.{name}.out_proj")

            allowed = causal if side == "decoder" else True
            x = residual(
                x,
                lambda y, a=allowed, f=attention: f(y, "self_attn", None, a),
                f"{layer}.self_attn_layer_norm",
            )
            if side == "decoder":
                x = residual(
                    x,
                    lambda y, f=attention: f(y, "encoder_attn", states, True),
                    f"{layer}.encoder_attn_layer_norm",
                )

            def network(y, layer=layer):
                hidden = activation(torch_linear(y, w, f"{layer}.fc1"))
                return torch_linear(hidden, w, f"{layer}.fc2")

            x = residual(x, network, f"{layer}.final_layer_norm")
        return named_norm(x, w, f"model.{side}.layer_norm", eps) if first else x

    return stack("decoder", target, stack("encoder", source, None))


def search(logs, start, n_most, n_beams, stops, penalty=1.0, early=False):
    """The best texts and their scores, by `logs`, which has those of all tokens.

    `logs` takes a text and returns logarithms of probabilities of what follows it.
    """
    running, finished = [(0.0, [*start])], []
    for n in range(1, n_most + 1):
        found = [
            (score + log, [*text, token])
            for score, text in running
            for token, log in enumerate(logs(text))
        ]
        found.sort(key=lambda one: -one[0])
        found = found[: n_beams * max(2, 1 + len(stops))]
        for score, text in found[:n_beams]:
            if text[-1] in stops or n == n_most:
                finished.append((score / n**penalty, text[len(start) :]))
        finished.sort(key=lambda one: -one[0])
        finished = finished[:n_beams]
        running = [one for one in found if one[1][-1] not in stops][:n_beams]
        if len(finished) == n_beams:
            length = n_most if early == "never" and penalty > 0 else n
            if early is True or running[0][0] / length**penalty <= finished[-1][0]:
                break
    return finished
