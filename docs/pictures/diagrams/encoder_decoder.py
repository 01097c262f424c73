"""
The transformer
===============

Encoder and decoder, as `attnpy.blocks` has them. `save` writes a diagram to a file.
"""

from attnpy import diagrams

diagram = diagrams.encoder_decoder()
