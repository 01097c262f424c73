"""
Positional encodings
====================

The sines and cosines that tell a transformer where a token stands: each pair of columns
turns at its own speed.
"""

from attnpy.plot import position_image
from attnpy.positions import sinusoidal

position_image(sinusoidal(100, 64), title="100 positions of 64 numbers")
