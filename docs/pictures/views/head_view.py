"""
Heads, token by token
=====================

Lines join queries, on the left, with the keys that they look at. Point at a token to
see its weights as numbers; choose layer and heads above.
"""

# sphinx_gallery_thumbnail_path = "docs/pictures/views/head_view.png"

import numpy as np

import attnpy
from attnpy.view import head_view

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
view = head_view(weights, words)
