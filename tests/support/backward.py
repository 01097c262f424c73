"""The oracle for gradients: the chain rule in float64, one query row at a time."""

import numpy as np

from attnpy.random import dropout_mask
from support import reference


def attention_vjp(
    grad_output, query, key, value, *, grad_lse=0.0, kept=1.0, real=np.float64,
    **options
):  # fmt: skip
    """Return the gradients of query, key, value, bias and sinks, each as its input.

    kept: what each weight is multiplied by, in the shape of weights: dropout's mask.
    """
    _, weights, lse = reference.attention(query, key, value, real=real, **options)
    rows = lse.shape  # (..., H, Lq)
    arrays = [np.array(x, real, ndmin=3) for x in (query, key, value)]
    q, k, v = (np.broadcast_to(x, rows[:-2] + x.shape[-3:]) for x in arrays)
    kept = np.broadcast_to(np.array(kept, real), weights.shape)
    grad_output = np.reshape(np.array(grad_output, real), (*rows, v.shape[-1]))
    grad_lse = np.broadcast_to(np.reshape(grad_lse, (-1,) if np.ndim(grad_lse) == 0
                                          else rows), rows)  # fmt: skip
    scale, softcap = options.get("scale"), options.get("softcap")
    scale = real(1) / np.sqrt(real(max(1, q.shape[-1]))) if scale is None else scale
    sinks = options.get("sinks")
    dq, dk, dv = (np.zeros(x.shape, real) for x in (q, k, v))
    dbias = np.zeros(weights.shape, real)
    dsinks = None if sinks is None else np.zeros(len(sinks), real)
    for *b, h, i in np.ndindex(rows):
        row, kv_head = (*b, h, i), (*b, h // (rows[-2] // k.shape[-3]))
        seen = np.flatnonzero(weights[row])  # NaN included
        p, keep = weights[row][seen], kept[row][seen]
        grad_weights = keep * (v[kv_head][seen] @ grad_output[row])
        delta = p @ grad_weights - grad_lse[row]
        ds = p * (grad_weights - delta)
        dbias[row][seen] = ds
        if dsinks is not None and -np.inf not in (sinks[h], lse[row]):
            dsinks[h] -= np.exp(sinks[h] - lse[row]) * delta
        if softcap is not None:
            ds = ds * (1 - np.tanh(scale * (k[kv_head][seen] @ q[row]) / softcap) ** 2)
        dq[row] += scale * (ds @ k[kv_head][seen])
        dk[kv_head][seen] += scale * np.outer(ds, q[row])
        dv[kv_head][seen] += np.outer(p * keep, grad_output[row])
    bias = options.get("bias")
    return (
        _summed(dq, query),
        _summed(dk, key),
        _summed(dv, value),
        None if bias is None else _summed(dbias, bias),
        dsinks,
    )


def _summed(gradient, array):
    """The sum over the axes that an array was broadcast along, in its shape."""
    shape = np.shape(array)
    padded = (1,) * (gradient.ndim - len(shape)) + shape
    axes = tuple(
        axis for axis, n in enumerate(padded) if n == 1 and gradient.shape[axis] != 1
    )
    return gradient.sum(axis=axes, keepdims=True).reshape(shape)


def kept_by_dropout(shape, *, dropout, dropout_seed, causal=False, q_offset=None,
                    kv_lengths=None, **_):  # fmt: skip
    """What dropout multiplies weights of this shape by, with a call's options."""
    n_queries, n_keys = shape[-2:]
    offset = np.asarray(n_keys if kv_lengths is None else kv_lengths) - n_queries
    offset = 0 if causal == "top_left" else offset
    offset = offset if q_offset is None else q_offset
    mask = dropout_mask(shape, dropout, dropout_seed, q_offset=offset)
    return mask / (1 - dropout)
