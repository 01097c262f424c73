"""The oracle: attention in float64, one query row at a time, as its definition."""

import numpy as np


def attention(query, key, value, *, mask=True, bias=0.0, causal=False,
              window=(None, None), q_offset=None, kv_lengths=None, scale=None,
              softcap=None, sinks=None, real=np.float64):  # fmt: skip
    """Return output (..., H, Lq, Dv), weights (..., H, Lq, Lk) and lse (..., H, Lq)."""
    q, k, v = (np.array(x, real, ndmin=3) for x in (query, key, value))
    batch = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    q, k, v = (np.broadcast_to(x, batch + x.shape[-3:]) for x in (q, k, v))
    rows, n_keys = q.shape[:-1], k.shape[-2]  # rows: (..., H, Lq)
    bias = np.broadcast_to(np.array(bias, real), (*rows, n_keys))
    allowed = mask & (bias != -np.inf)
    lengths = np.array(n_keys if kv_lengths is None else kv_lengths, np.int64)
    lengths = np.broadcast_to(lengths, batch)
    first_position = 0 if causal == "top_left" else lengths - rows[-1]
    offsets = np.broadcast_to(first_position if q_offset is None else q_offset, batch)
    left, right = (window[0], 0) if causal else window
    scale = real(1) / np.sqrt(real(max(1, q.shape[-1]))) if scale is None else scale
    output, weights = np.zeros((*rows, v.shape[-1]), real), np.zeros(bias.shape, real)
    lse = np.full(rows, -np.inf, real)
    for *b, h, i in np.ndindex(rows):
        row, kv_head = (*b, h, i), (*b, h // (rows[-2] // k.shape[-3]))
        position, stop = int(offsets[tuple(b)]) + i, int(lengths[tuple(b)])
        first = 0 if left is None else max(0, position - left)
        stop = stop if right is None else min(stop, position + right + 1)
        seen = [j for j in range(first, stop) if allowed[row][j]]
        logits = scale * (k[kv_head][seen] @ q[row])
        logits = logits if softcap is None else softcap * np.tanh(logits / softcap)
        logits = logits + bias[row][seen]
        everything = logits if sinks is None else np.append(logits, real(sinks[h]))
        if (top := everything.max(initial=-np.inf)) != -np.inf:
            total = np.exp(everything - top).sum()
            weights[row][seen] = np.exp(logits - top) / total
            output[row] = weights[row][seen] @ v[kv_head][seen]
            lse[row] = top + np.log(total)
    return output, weights, lse
