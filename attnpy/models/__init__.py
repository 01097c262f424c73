"""Whole models of texts and pictures, small enough to read: encoders and decoders.

They are embeddings around the stacks of `attnpy.blocks`, and their weights come from
the checkpoints of `attnpy.checkpoints`. `SentenceEncoder` turns text into vectors,
`MultiVectorEncoder` into one for each token, and `CrossEncoder` pairs of texts into
scores, with a tokenizer of the tokenizers package.
`TextToText` turns texts into other texts, and `ImageClassifier` and `ImageTextEncoder`
take pictures.
"""

from attnpy.models.bert import BertEncoder
from attnpy.models.classify import TextClassifier
from attnpy.models.continuous import ContinuousBatch
from attnpy.models.decoder import CausalDecoder
from attnpy.models.encoder_decoder import EncoderDecoder
from attnpy.models.image_classify import ImageClassifier
from attnpy.models.image_processor import ImageProcessor
from attnpy.models.image_search import ImageTextEncoder
from attnpy.models.image_text import ImageTextModel
from attnpy.models.m3 import M3Encoder, M3Vectors, lexical_score
from attnpy.models.multi_vector import MultiVectorEncoder, maxsim
from attnpy.models.prefix import Prefix
from attnpy.models.rerank import CrossEncoder
from attnpy.models.sampling import sample
from attnpy.models.sentences import SentenceEncoder
from attnpy.models.text_to_text import TextToText
from attnpy.models.tokens import FillMask, TokenClassifier
from attnpy.models.vision import ImageEncoder

__all__ = [
    "BertEncoder",
    "CausalDecoder",
    "ContinuousBatch",
    "CrossEncoder",
    "EncoderDecoder",
    "FillMask",
    "ImageClassifier",
    "ImageEncoder",
    "ImageProcessor",
    "ImageTextEncoder",
    "ImageTextModel",
    "M3Encoder",
    "M3Vectors",
    "MultiVectorEncoder",
    "Prefix",
    "SentenceEncoder",
    "TextClassifier",
    "TextToText",
    "TokenClassifier",
    "lexical_score",
    "maxsim",
    "sample",
]


def __dir__() -> list[str]:
    return __all__
