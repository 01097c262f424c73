"""
The weights of one head
=======================

A row for each query, a column for each key: which word looks at which. In causal
attention no word sees what comes after it; those cells are grey, which is not the
same as 0.
"""

import numpy as np

import attnpy
from attnpy import masks
from attnpy.plot import heat_map

words = "The cat sat on the mat because the cat was tired".split()
vectors = {
    word: np.random.default_rng(sum(word.encode())).standard_normal(8)
    for word in {word.lower() for word in words}
}
x = np.array([vectors[word.lower()] for word in words])  # (L, E)
mask = masks.causal(len(words))
_, weights = attnpy.attention(x, x, x, mask=mask, return_weights=True)
heat_map(weights, words, mask=mask, title="Words look at similar words")

# %%
# Numbers are written into the cells if they fit, or as ``annotate`` says.
heat_map(weights[:4, :4], words[:4], words[:4], annotate=True)
