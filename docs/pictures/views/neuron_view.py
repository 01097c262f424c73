"""
From query and keys to weights
==============================

Each step of a head: a query's numbers times those of each key, their scaled sum, which
is the score, and the weight from the softmax.
"""

# sphinx_gallery_thumbnail_path = "docs/pictures/views/neuron_view.png"

import numpy as np

from attnpy.view import neuron_view

words = "the cat sat on the mat".split()
query, key = np.random.default_rng(0).standard_normal((2, 6, 12))  # (L, D)
view = neuron_view(query, key, words, causal=True)
