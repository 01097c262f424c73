"""Products with quantised matrices by plain NumPy, as csrc/core/quantized.h says.

`least_errors` is of caches, as csrc/core/rotary.h says. Products are right bit for bit:
a fused multiply-add of float32 numbers is computed in float64, where the product is
exact, and rounded to odd there, so that the second rounding is the only one.
"""

import numpy as np

BLOCK = 128
RADIX = 65024


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


def split_rows(x):
    """Numbers of a part (n, k) as two integers each, and their scales (n,)."""
    largest = np.abs(x.astype(np.float64)).max(-1, initial=0)
    finite = np.isfinite(x).all(-1)
    fraction, exponent = np.frexp(np.where(finite, largest, 0) / (127 * RADIX))
    exponent = np.maximum(exponent - (fraction == 0.5), -126)
    scale = np.ldexp(1.0, exponent)
    x = np.where(finite[:, None], x, 0) / scale[:, None]
    by = np.float32(1) / np.float32(RADIX)
    upper = np.rint(x.astype(np.float32) * by).astype(np.int64)
    lower = np.rint(x - RADIX * upper).astype(np.int64)
    return upper, lower, np.where(finite, scale, np.nan).astype(np.float32)


def product(x, codes, scale, minimum=None, *, group, rounds):
    """x (n, K) float32 times codes (K, M), less zero, of scales (groups, M)."""
    n_rows, n_columns = codes.shape
    sums = np.zeros((len(x), n_columns), np.float32)
    for g, start in enumerate(range(0, n_rows, group)):
        stop = min(start + group, n_rows)
        step = group if rounds else min(group, BLOCK)
        for first in range(start, stop, step):
            rows = slice(first, min(first + step, stop))
            sums = add(sums, x[:, rows], codes[rows], scale[g], minimum, g, rounds)
    return sums


def add(sums, x, codes, scale, minimum, g, rounds):
    """What one group, or a part of one, adds to the sums."""
    codes = codes.astype(np.int64)
    if rounds:
        numbers, row_scale = rounded_rows(x)
        dots = (numbers @ codes).astype(np.float32)
        sums = fma(row_scale[:, None] * scale, dots, sums)
    else:
        upper, lower, row_scale = split_rows(x)
        numbers = RADIX * upper + lower
        lowers = (lower @ codes).astype(np.float32).astype(np.int64)
        dots = (RADIX * (upper @ codes) + lowers).astype(np.float32)
        sums = fma(scale, row_scale[:, None] * dots, sums)
    if minimum is None:
        return sums
    total = row_scale * numbers.sum(1).astype(np.float32)
    return fma(minimum[g], total[:, None], sums)


FACTORS = 1 + 1 / 256 - np.arange(16) / 256


def least_errors(x):
    """The least squared error of each row of x (n, size), as integers times a scale.

    The scale is one of 16 beside the largest number over 127, the integers are nearest.
    """
    scale = np.abs(x).max(-1)[:, None, None] / 127 / FACTORS[:, None]
    error = ((np.rint(x[:, None] / scale) * scale - x[:, None]) ** 2).sum(-1)
    return error.min(-1)
