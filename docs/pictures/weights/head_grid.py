"""
Many heads at once
==================

A grid of heads, or of layers and heads, with one colour scale. These heads look at the
same word, at the word before, at the first word, and at all words.
"""

import numpy as np

import attnpy
from attnpy.plot import head_grid

words = "the cat sat on the mat because the cat was tired".split()
L = len(words)
same = np.array([[a == b for b in words] for a in words])  # (L, L)
before = np.eye(L, k=-1, dtype=bool)
first = np.zeros((L, L), bool)
first[:, 0] = True
habits = np.stack([same, before, first, np.zeros((L, L), bool)])  # (H, L, L)
rng = np.random.default_rng(0)
query, key = rng.standard_normal((2, 2, 4, L, 8)) / 2  # (layers, H, L, D)
_, weights = attnpy.attention(query, key, key, bias=4.0 * habits, return_weights=True)
head_grid(weights, words, title="two layers of four heads")
