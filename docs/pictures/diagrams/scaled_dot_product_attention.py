"""
Scaled dot-product attention
============================

What `attnpy.attention` computes.
"""

from attnpy import diagrams

diagram = diagrams.scaled_dot_product_attention()
