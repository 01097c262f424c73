"""Products with quantised matrices by plain NumPy, as csrc/core/quantized.h says.

Bit for bit: a fused multiply-add of float32 numbers is computed in float64, where the
product is exact, and rounded to odd there, so that the second rounding is the only one.
"""

import numpy as np

CHAIN = 128


def fma(a, b, c):
    """a * b + c of float32 numbers, rounded once."""
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    total = product + c
    virtual = total - product
    error = (product - (total - virtual)) + (c - virtual)
    bits = np.ascontiguousarray(total).view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & (bits % 2 == 0)
    away = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where(inexact, bits + np.where(total == 0, 0, away), bits)
    return odd.view(np.float64).astype(np.float32)


def rounded_rows(x):
    """Numbers of a group (n, k) as integers, and their scales (n,)."""
    largest = np.abs(x).max(-1, initial=0).astype(np.float32)
    scale = largest / np.float32(127)
    scale[~np.isfinite(x).all(-1)] = np.nan
    with np.errstate(all="ignore"):
        codes = np.clip(np.rint(x / scale[:, None]), -127, 127)
    codes[~(scale > 0)] = 0
    return codes.astype(np.int64), scale


def product(x, codes, scale, minimum=None, *, group, rounds):
    """x (n, K) float32 times codes (K, M), less zero, of scales (groups, M)."""
    n_rows, n_columns = codes.shape
    sums = np.zeros((len(x), n_columns), np.float32)
    for g, start in enumerate(range(0, n_rows, group)):
        stop = min(start + group, n_rows)
        step = group if rounds else min(group, CHAIN)
        for first in range(start, stop, step):
            rows = slice(first, min(first + step, stop))
            sums = add(sums, x[:, rows], codes[rows], scale[g], minimum, g, rounds)
    return sums


def add(sums, x, codes, scale, minimum, g, rounds):
    """What one chain, or one group that is rounded, adds to the sums."""
    if rounds:
        numbers, row_scale = rounded_rows(x)
        dots = (numbers @ codes.astype(np.int64)).astype(np.float32)
        total = row_scale * numbers.sum(1).astype(np.float32)
        by = row_scale[:, None] * scale
    else:
        dots = np.zeros_like(sums)
        total = np.zeros(len(x), np.float32)
        for k in range(x.shape[1]):
            dots = fma(codes[k].astype(np.float32), x[:, k, None], dots)
            total = total + x[:, k]
        by = np.broadcast_to(scale, sums.shape)
    sums = fma(by, dots, sums)
    return sums if minimum is None else fma(minimum[g], total[:, None], sums)
