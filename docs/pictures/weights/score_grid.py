"""
Scores or biases of many heads
==============================

ALiBi takes from a score what a key's distance costs, in each head at a price of its
own.
"""

from attnpy.plot import score_grid
from attnpy.positions import alibi_bias

score_grid(alibi_bias(4, 12, 12), label="bias", title="ALiBi, four heads")
