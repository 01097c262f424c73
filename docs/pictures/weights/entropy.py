"""
How widely heads look
=====================

The mean entropy of a head's weights, in bits: 0 where each query looks at a single key,
3 where it looks at eight keys equally.
"""

import numpy as np

import attnpy
from attnpy.plot import entropy, entropy_bits

rng = np.random.default_rng(0)
query, key = rng.standard_normal((2, 6, 32, 16))  # (H, L, D)
sharpness = np.array([0.1, 0.5, 1, 2, 4, 8]).reshape(6, 1, 1)  # of each head
_, weights = attnpy.attention(sharpness * query, key, key, return_weights=True)
entropy(weights, title="six heads, ever sharper")

# %%
# The numbers themselves, one for each query:
print(entropy_bits(weights).round(1)[:, :6])
