"""
How widely each query looks
===========================

The entropy of each query's weights, along the sequence. With causality it grows with
the number of visible keys; a window stops that.
"""

import numpy as np

import attnpy
from attnpy.plot import statistics

query, key = np.random.default_rng(0).standard_normal((2, 2000, 16), dtype=np.float32)
causal = attnpy.statistics(query, key, causal=True).entropy  # (L,)
window = attnpy.statistics(query, key, causal=True, window=(100, 0)).entropy
statistics.entropy([causal, window], title="causal, and a window of 100 keys")
