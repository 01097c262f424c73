"""The formulas of layers in plain NumPy, as their papers write them.

They are oracles: they compute in the precision of their arguments, float64 or wider.
"""

import math

import numpy as np


def softmax(scores):
    """Each row's softmax."""
    terms = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return terms / terms.sum(axis=-1, keepdims=True)


def linear(x, weight, bias=None):
    """X W + b in float64, whatever they are."""
    product = np.asarray(x, float) @ np.asarray(weight, float)
    return product if bias is None else product + np.asarray(bias, float)


def layer_norm(x, weight, bias, eps):
    """Layer normalization of each row."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return rms_norm(centred, weight, eps) + bias


def rms_norm(x, weight, eps):
    """Root mean square normalization of each row."""
    return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + eps) * weight


def relu(x):
    """max(x, 0)."""
    return np.maximum(x, 0)


def gelu(x):
    """x times the normal distribution function."""
    return x * np.vectorize(math.erfc, otypes=[float])(-x * math.sqrt(0.5)) / 2


def gelu_tanh(x):
    """Its approximation x (1 + tanh y) / 2, which is x / (1 + exp(-2 y))."""
    y = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x / (1 + np.exp(-2 * y))


def silu(x):
    """x times the logistic function."""
    return x / (1 + np.exp(-x))


def quick_gelu(x):
    """x times the logistic function of 1.702 x."""
    return x / (1 + np.exp(-1.702 * x))


def relu2(x):
    """The square of max(x, 0)."""
    return np.square(relu(x))


ACTIVATIONS = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "quick_gelu": quick_gelu,
    "relu2": relu2,
    "tanh": np.tanh,
}


def logistic_grad(x, v, rise):
    """The derivative of x times the logistic function of v, and what it is a sum of."""
    part, rest = 1 / (1 + np.exp(-v)), 1 / (1 + np.exp(v))
    return part + x * part * rest * rise, part + np.abs(x * part * rest * rise)


def gelu_grad(x):
    """The same of gelu."""
    part = np.vectorize(math.erfc, otypes=[float])(-x * math.sqrt(0.5)) / 2
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return part + x * density, part + np.abs(x) * density


def gelu_tanh_grad(x):
    """The same of gelu_tanh."""
    rate = 2 * math.sqrt(2 / math.pi)
    v = rate * (x + 0.044715 * x**3)
    return logistic_grad(x, v, rate * (1 + 3 * 0.044715 * x**2))


# Derivatives, and the sizes of what they are sums of.
ACTIVATION_GRADS = {
    "relu": lambda x: (np.where(x > 0, 1.0, 0.0),) * 2,
    "gelu": gelu_grad,
    "gelu_tanh": gelu_tanh_grad,
    "silu": lambda x: logistic_grad(x, x, 1),
    "quick_gelu": lambda x: logistic_grad(x, 1.702 * x, 1.702),
    "relu2": lambda x: (2 * relu(x),) * 2,
    "tanh": lambda x: (1 / np.cosh(x) ** 2,) * 2,
}
GATED = {"swiglu": silu, "geglu": gelu, "geglu_tanh": gelu_tanh, "reglu": relu}


def clamped(gate, hidden):
    """gpt-oss's product of a gate and hidden numbers."""
    return quick_gelu(np.minimum(gate, 7)) * (np.clip(hidden, -7, 7) + 1)


def rotated(x, cos, sin, interleaved):
    """Rotary's formula: the first numbers of each row, pair by pair turned.

    cos and sin have a column for each pair. A pair is two neighbours if interleaved,
    and else a number of the first half with one of the second.
    """
    n_pairs, result = cos.shape[-1], x.copy()
    ones, twos = slice(0, n_pairs), slice(n_pairs, 2 * n_pairs)
    if interleaved:
        ones, twos = slice(0, 2 * n_pairs, 2), slice(1, 2 * n_pairs, 2)
    one, two = x[..., ones], x[..., twos]
    result[..., ones] = one * cos - two * sin
    result[..., twos] = two * cos + one * sin
    return result


def multi_head_attention(mha, x, context=None, allowed=True, turn=None, value=None):
    """(output, weights) of MultiHead(X) = Concat(Z_1 ... Z_H) W_o + b_o in float64."""
    context = x if context is None else context
    queries = linear(x, mha.W_q, mha.b_q)
    value = context if value is None else value
    keys, values = linear(context, mha.W_k, mha.b_k), linear(value, mha.W_v, mha.b_v)
    d = mha.W_q.shape[1] // mha.num_heads
    dv = mha.W_v.shape[1] // mha.num_kv_heads
    heads, weights = [], []
    for h in range(mha.num_heads):
        g = h // (mha.num_heads // mha.num_kv_heads)
        query, key = queries[..., h * d : h * d + d], keys[..., g * d : g * d + d]
        if turn is not None:
            query, key = turn(query), turn(key)
        scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(d)
        weights.append(softmax(np.where(allowed, scores, -np.inf)))
        heads.append(weights[-1] @ values[..., g * dv : g * dv + dv])
    output = linear(np.concatenate(heads, axis=-1), mha.W_o, mha.b_o)
    return output, np.stack(weights, axis=-3)
