"""
Scores or biases of many heads
==============================

ALiBi lowers a score in proportion to the key's distance, in each head with a different
slope.
"""

from attnpy.plot import score_grid
from attnpy.positions import alibi_bias

score_grid(alibi_bias(4, 12, 12), label="bias", title="ALiBi, four heads")
