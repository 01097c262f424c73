"""The plain NumPy formula in the arrays' own precision, and the error bound it sets.

attnpy must be about as accurate as code that a careful user would write by hand. So
the formula below runs in attnpy's precision, both are compared with the oracle, and
`bound` says how far from the oracle attnpy may be, element by element.
"""

import numpy as np

from support import reference


def attention(query, key, value, *, mask=True, bias=0.0, causal=False, scale=None,
              softcap=None, sinks=None):  # fmt: skip
    """Return (output, weights, lse); query, key, value (H, L, D) in one dtype."""
    real = query.dtype.type
    if scale is None:
        scale = 1 / np.sqrt(query.shape[-1])
    scores = query @ np.swapaxes(key, -1, -2) * real(scale)  # (H, Lq, Lk)
    if softcap is not None:
        scores = real(softcap) * np.tanh(scores / real(softcap))
    scores = scores + np.asarray(bias, real)
    n_queries, n_keys = scores.shape[-2:]
    if causal:
        mask = mask & np.tri(n_queries, n_keys, n_keys - n_queries, dtype=bool)
    scores = np.where(mask, scores, -np.inf).astype(real)
    top = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        sinks = np.asarray(sinks, real)[:, None, None]
        top = np.maximum(top, sinks)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - top)
    weights = weights / total
    return weights @ value, weights, (top + np.log(total))[..., 0]


def bound(plain, exact, terms, unit):
    """How far a result may be from `exact`.

    Twice the plain formula's largest error on this case, plus 4 rounding units times
    `terms`, the sum of the magnitudes that were added up to make each element.
    """
    return 2 * np.abs(plain - exact).max(initial=0) + 4 * unit * terms


def magnitudes(query, key, value, **options):
    """The sum of |terms| of each element of the output, weights and lse.

    A weight is the exponential of a score, itself a sum: a rounding unit of each of the
    score's terms changes the weight by that part of it.
    """
    output, weights, lse = reference.attention(query, key, np.abs(value), **options)
    scale = options.get("scale", 1 / np.sqrt(query.shape[-1]))
    score_terms = abs(scale) * np.abs(query) @ np.swapaxes(np.abs(key), -1, -2)
    return output, weights * (1 + score_terms), 1 + np.abs(lse)
