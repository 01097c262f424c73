"""
How far each query looks
========================

The mean distance of a query from the keys, weighted by its attention to them.
"""

import numpy as np

import attnpy
from attnpy.plot import statistics

L = 1000
query, key = np.random.default_rng(0).standard_normal((2, 2, L, 16))  # (H, L, D)
distance = np.arange(L)[:, np.newaxis] - np.arange(L)  # (Lq, Lk)
bias = np.stack([0 * distance, -0.01 * distance])  # (H, Lq, Lk)
found = attnpy.statistics(query, key, causal=True, bias=bias)
statistics.distance(
    found.distance, title="a head without preference, and one for near keys"
)
