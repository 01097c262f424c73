"""
Multi-head attention
====================

Several attentions side by side, each with its own projections, as in
`attnpy.MultiHeadAttention`.
"""

from attnpy import diagrams

diagram = diagrams.multi_head_attention()
