"""
What each key receives
======================

The sum of a key's weights over all queries. Keys that take much of it, often the first
one, are known as sinks.
"""

import numpy as np

import attnpy
from attnpy.plot import statistics

rng = np.random.default_rng(0)
query, key = rng.standard_normal((2, 2, 2000, 16), dtype=np.float32)  # (H, L, D)
query[1, :, 0] += 4
key[1, 0, 0] += 3  # the second head has a sink
found = attnpy.statistics(query, key, causal=True, top_k=1)
statistics.received(found.received, title="without a sink, and with one")
