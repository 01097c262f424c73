"""
The transformer
===============

Encoder and decoder, as in `attnpy.blocks`. `save` writes a diagram to a file.
"""

from attnpy import diagrams

diagram = diagrams.encoder_decoder()
