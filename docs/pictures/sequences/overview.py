"""
A long sequence at a glance
===========================

For 4,000 tokens each head has 16 million weights. `attnpy.statistics` never stores
them: it returns what each key receives, how widely each query looks, and how far.
"""

import numpy as np

import attnpy
from attnpy.plot import statistics

rng = np.random.default_rng(0)
query, key = rng.standard_normal((2, 3, 4000, 16), dtype=np.float32)  # (H, L, D)
key[1, ::500] += query[1].mean(axis=0) + 2  # what head 1 looks at
query[2] *= 4  # head 2 is sharper than the others
found = attnpy.statistics(query, key, causal=True)
statistics.overview(found, title="three heads of 4,000 tokens")
