"""Whole models, small enough to read: BERT, and decoders as GPT-2's, Llama's, Gemma's.

They are embeddings around the stacks of `attnpy.blocks`, and their weights come from
the checkpoints of `attnpy.checkpoints`. What turns text into numbers is not here.
"""

from attnpy.models.bert import BertEncoder
from attnpy.models.decoder import CausalDecoder
from attnpy.models.sampling import sample

__all__ = ["BertEncoder", "CausalDecoder", "sample"]
