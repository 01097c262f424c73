"""
Multi-head attention
====================

Several attentions side by side, each with projections of its own, as in
`attnpy.MultiHeadAttention`.
"""

from attnpy import diagrams

diagram = diagrams.multi_head_attention()
