"""Statistics from the full weights: the formulas, and attnpy's steps in NumPy."""

import numpy as np


def positions_of(weights, causal=False, q_offset=None, kv_lengths=None, **_):
    """The position of each query; weights (..., H, Lq, Lk)."""
    n_queries, n_keys = weights.shape[-2:]
    lengths = np.array(n_keys if kv_lengths is None else kv_lengths)
    start = np.array(0) if causal == "top_left" else lengths - n_queries
    start = start if q_offset is None else np.array(q_offset)
    start = start.astype(float)[..., np.newaxis, np.newaxis]
    return np.broadcast_to(start + np.arange(n_queries), weights.shape[:-1])


def plain(weights, positions, top_k):
    """The formulas, in float64: weights (..., Lq, Lk), positions (..., Lq)."""
    w = np.asarray(weights, np.float64)
    away = np.abs(positions[..., np.newaxis] - np.arange(w.shape[-1], dtype=float))
    logs = np.log(np.where(w == 0, 1, w))
    more = np.concatenate([w, np.zeros((*w.shape[:-1], top_k))], axis=-1)
    order = np.argsort(-more, axis=-1, kind="stable")[..., :top_k]
    top = np.take_along_axis(more, order, -1)
    return (
        w.sum(axis=-2),
        0 - (w * logs).sum(axis=-1),
        (w * away).sum(axis=-1),
        top,
        np.where(top > 0, order, -1),
    )


def in_steps(weights, positions, top_k):
    """The bits that attnpy.statistics returns; weights in the arithmetic's dtype."""
    w = np.asarray(weights)
    real, n_queries, n_keys = w.dtype.type, w.shape[-2], w.shape[-1]
    rows = w.shape[:-1]
    received = np.zeros((*w.shape[:-2], n_keys))
    for first in range(0, n_queries, 64):
        block = np.zeros((*w.shape[:-2], 64, n_keys), real)
        block[..., : min(64, n_queries - first), :] = w[..., first : first + 64, :]
        while block.shape[-2] > 1:
            half = block.shape[-2] // 2
            block = block[..., :half, :] + block[..., half:, :]
        received += block[..., 0, :]
    entropy, distance = np.zeros(rows), np.zeros(rows)
    logs = np.where(w < np.finfo(real).tiny, real(0), w * log(w))
    for first in range(0, n_keys, 128):
        start = (positions - float(first)).astype(real)
        log_sum, distance_sum = np.zeros(rows, real), np.zeros(rows, real)
        for j in range(first, min(first + 128, n_keys)):
            log_sum += logs[..., j]
            distance_sum += w[..., j] * np.abs(start - real(j - first))
        entropy -= log_sum
        distance += distance_sum
    top_weights, top_keys = plain(np.where(np.isnan(w), 0, w), positions, top_k)[3:]
    spoilt = np.isnan(w).any(axis=-1)
    entropy[spoilt] = distance[spoilt] = top_weights[spoilt] = np.nan
    top_keys[spoilt] = -1
    results = [x.astype(real) for x in (received, entropy, distance, top_weights)]
    return (*results, top_keys)


def log(x):
    """log_lanes of csrc/kernel/math/log.h."""
    real = x.dtype.type
    n_terms, high, low = (5, "0x1.62e4p-1", "0x1.7f7d1cp-20")
    if real is np.float64:
        n_terms, high, low = (11, "0x1.62e42feep-1", "0x1.a39ef35793c76p-33")
    x = np.where(x < np.finfo(real).tiny, real(1), x)
    n = (np.frexp(x * real(2**0.5))[1] - 1).astype(real)
    f = x * np.ldexp(real(1), -n.astype(int))
    s = (f - real(1)) / (f + real(1))
    z = s * s
    total = np.full_like(x, real(1) / real(2 * n_terms - 1))
    for k in range(2 * n_terms - 3, 0, -2):
        total = total * z + real(1) / real(k)
    return n * real(float.fromhex(high)) + (
        (s + s) * total + n * real(float.fromhex(low))
    )
