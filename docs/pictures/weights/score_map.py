"""
Scores, before the softmax
==========================

Scores have both signs: white is 0, red above it, blue below.
"""

import numpy as np

from attnpy.plot import score_map

words = "I am a robot".split()
rng = np.random.default_rng(1)
query, key = rng.standard_normal((2, 4, 16))  # (Lq, D), (Lk, D)
score_map(query @ key.T / np.sqrt(16), words, annotate=True, title="scaled scores")
