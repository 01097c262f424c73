"""CLIP and SigLIP: pictures and texts as vectors of one space."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnpy import _checks, _dtypes, _keywords, _parameters, _pickles, _repr
from attnpy._linear import linear
from attnpy.models import _embedding, _hf_config, _pretrained, _saving
from attnpy.models._similarity import unit_vectors
from attnpy.models.decoder import CausalDecoder
from attnpy.models.vision import ImageEncoder

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from attnpy._typing import Array

    EndToken = int | Literal["largest", "last"]


@_keywords.answering
class ImageTextModel:
    """CLIP and SigLIP: a model for pictures and one for texts, whose vectors meet.

    Parameters
    ----------
    image_model : ImageEncoder
        With a pooler.
    text_model : CausalDecoder
        Without scores (``tied=None``).
    projection_dim : int, optional
        `P`, the size of the vectors that are compared. None: those of the pooler are,
        as in SigLIP, and the texts' get its size.
    end_token : int, "largest" or "last", optional
        Which token's vector is the text's: the first one with this id; the first one
        with the largest id, as in CLIP's old files; or the last one.
    logit_bias : bool, optional
        Add a number to the scores, and biases to the texts' vectors: SigLIP.
    rng : numpy.random.Generator, optional
        Draws the initial values; by default ``numpy.random.default_rng()``, with
        different values in every run.

    Attributes
    ----------
    image_model, text_model, end_token
        As given.
    image_projection : ndarray, shape (E, P), or None
    text_projection : ndarray, shape (E, P)
    text_bias : ndarray, shape (P,), or None
    logit_scale : ndarray, shape (1,)
        The logarithm of what similarities are multiplied by.
    logit_bias : ndarray, shape (1,), or None
        Added to them after that.
    config : dict or None
        The configuration of `from_config`, which `save_pretrained` writes.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range.

    See Also
    --------
    ImageTextEncoder : the same with a tokenizer, for pictures of any size.

    Notes
    -----
    From Radford et al., "Learning Transferable Visual Models From Natural Language
    Supervision" (2021), CLIP, and Zhai et al., "Sigmoid Loss for Language Image
    Pre-Training" (2023), SigLIP.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import CausalDecoder, ImageEncoder, ImageTextModel
    >>> rng = np.random.default_rng(0)
    >>> pictures = ImageEncoder(
    ...     2, 16, 4, 64, image_size=32, patch_size=8, pooler="norm", rng=rng
    ... )
    >>> texts = CausalDecoder(
    ...     2, 12, 3, 48, vocab_size=20, max_length=9, tied=None, rng=rng
    ... )
    >>> model = ImageTextModel(pictures, texts, 8, end_token=19, rng=rng)
    >>> pixels = rng.standard_normal((2, 32, 32, 3), dtype=np.float32)
    >>> images, words = model.encode_images(pixels), model.encode_texts([[3, 5, 19]])
    >>> images.shape, words.shape, model.logits(images, words).shape
    ((2, 8), (1, 8), (2, 1))
    """

    image_model: ImageEncoder
    text_model: CausalDecoder
    image_projection: Array | None
    text_projection: Array
    text_bias: Array | None
    logit_scale: Array
    logit_bias: Array | None
    end_token: int | str
    config: dict[str, Any] | None

    def __init__(
        self,
        image_model: ImageEncoder,
        text_model: CausalDecoder,
        projection_dim: int | None = None,
        *,
        end_token: EndToken = "last",
        logit_bias: bool = False,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.image_model, self.text_model = image_model, text_model
        self._check_parts()
        self.end_token = end_token
        if not isinstance(end_token, str):
            self.end_token = _checks.size(end_token, "end_token")
        elif end_token not in ("largest", "last"):
            raise ValueError(
                'end_token: expected an integer, "largest" or "last", got '
                f"{end_token!r}"
            )
        rng, kind = _checks.generator(rng), text_model.token_embedding.dtype
        sizes = image_model.embed_dim, text_model.token_embedding.shape[1]
        dim = sizes[0] if projection_dim is None else projection_dim
        self.image_projection = None
        if projection_dim is not None:
            self.image_projection = _embedding.table(
                rng, sizes[0], "embed_dim", _checks.count(dim, "projection_dim"), kind
            )
        self.text_projection = _embedding.table(rng, sizes[1], "embed_dim", dim, kind)
        has_bias = _checks.flag(logit_bias, "logit_bias")
        self.text_bias = _parameters.zeros(has_bias, dim, kind)
        # CLIP's paper begins with 1 / 0.07.
        self.logit_scale = np.full(1, math.log(1 / 0.07), kind)
        self.logit_bias = _parameters.zeros(has_bias, 1, kind)
        self.config = None

    def _check_parts(self) -> None:
        """Require a model of pictures that pools, and one of texts without scores."""
        for name, part, kind in (
            ("image_model", self.image_model, ImageEncoder),
            ("text_model", self.text_model, CausalDecoder),
        ):
            if not isinstance(part, kind):
                raise TypeError(
                    f"{name}: expected {kind.__name__}, got {type(part).__name__}"
                )
        if self.image_model.pooled_norm is None:
            raise ValueError(
                'image_model: expected one with pooler="norm" or "attention", got '
                "one without"
            )
        if self.text_model.tied is not None:
            raise ValueError(
                "text_model: expected one without scores (tied=None), got one with"
            )
        if self.text_model.position_embedding is None:
            raise ValueError(
                "text_model: expected one with max_length, got one without"
            )

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict
    pack = _parameters.pack
    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what a pickle or a copy has, if its parts fit together."""
        _pickles.set_state(self, state)
        with _pickles.judged(self):
            self._check_parts()

    def _shown(self) -> dict[str, Any]:
        return {
            "image_model": self.image_model,
            "text_model": self.text_model,
            "projection_dim": self.projection_dim,
            "end_token": self.end_token,
            "logit_bias": self.logit_bias is not None,
        }

    __repr__ = _repr.shows(_shown)

    @property
    def projection_dim(self) -> int:
        """`P`, the size of the vectors that are compared."""
        dim: int = self.text_projection.shape[1]
        return dim

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of a text: those with positions."""
        assert self.text_model.position_embedding is not None
        return len(self.text_model.position_embedding)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> ImageTextModel:
        """Return a model of the sizes of a configuration.

        Parameters
        ----------
        config : mapping
            With the keys of the Hugging Face configuration, whose ``model_type`` is
            clip or siglip, and those of its ``vision_config`` and ``text_config``. Keys
            that do not change the computation are ignored, and all others are refused,
            unless null.
        dtype : dtype, optional
            float64, float32, float16 or bfloat16.
        rng
            As in `ImageTextModel`.

        Returns
        -------
        ImageTextModel

        Raises
        ------
        TypeError
            If `config` is not a mapping.
        ValueError
            If keys are missing or unknown, have values of a wrong kind, or ask for a
            different model; the message lists all of them.
        """
        family = _hf_config.image_and_text(_checks.mapping(config, "config"))
        made = _hf_config.arguments(config, family)
        rng = _checks.generator(rng)
        options: dict[str, Any] = {"dtype": dtype, "rng": rng}
        towers: list[dict[str, Any]] = []
        for name, kind in zip(("vision", "text"), made["towers"], strict=True):
            given = {"model_type": kind, **made[name]}
            with _checks.renamed(config=f"{name}_config"):
                if given["model_type"] not in (kind, family.model_type):
                    raise ValueError(
                        f"config: expected model_type = {kind}, got "
                        f"{given['model_type']!r}"
                    )
                given["model_type"] = kind
                judge = _hf_config.image if name == "vision" else _hf_config.text_tower
                towers.append(_hf_config.arguments(given, judge(given)))
        vision, text = towers
        if vision["pooler"] is None:
            raise ValueError(
                "vision_config: expected vision_use_head = true, got false"
            )
        end, dim = text.pop("end_token"), text.pop("projection_dim", None)
        own_dim = made.get("projection_dim")
        if own_dim is None and dim != vision["embed_dim"]:
            raise ValueError(
                f"text_config: expected projection_size = {vision['embed_dim']}, the "
                f"size of pictures' vectors, got {dim}"
            )
        model = cls(
            ImageEncoder(**vision, **options),
            CausalDecoder(**text, **options),
            own_dim,
            end_token=end,
            logit_bias=own_dim is None,
            rng=rng,
        )
        model.config = copy.deepcopy(dict(config))
        return model

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["int8", "int4"] | None = None,
        activations: Literal["float", "int8"] = "float",
        progress: bool | None = None,
    ) -> ImageTextModel:
        """Read a model from a folder.

        Parameters
        ----------
        folder : str or path
            With ``config.json``, and weights: ``model.safetensors``,
            ``pytorch_model.bin``, or the index of several of one kind.
        dtype, packed, weights, activations, progress
            As in `BertEncoder.from_pretrained`.

        Returns
        -------
        ImageTextModel

        Raises
        ------
        ImportError, FileNotFoundError
            If the safetensors package is not installed, or ml_dtypes for bfloat16, or
            tqdm for `progress`; if a file is missing.
        ValueError
            As `from_config`; if weights are missing, unexpected or of wrong shapes.
        """
        return _pretrained.read(
            *(cls.from_config, folder, dtype, packed, False, progress),
            *(weights, activations),
        )

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that Transformers reads, and `from_pretrained`.

        Parameters
        ----------
        folder : str or path
            Created if it does not exist. Files of these names are replaced together:
            ``config.json``, that of which the model was made, and
            ``model.safetensors``, in the model's dtype.

        Raises
        ------
        TypeError
            If `folder` is no path.
        ValueError
            If the model was not made by `from_config` or `from_pretrained`, or has
            other sizes or options since.

        Notes
        -----
        Copy ``tokenizer.json`` and ``preprocessor_config.json`` beside them.
        """

        def again(config: dict[str, Any]) -> ImageTextModel:
            dtype = self.text_projection.dtype
            return ImageTextModel.from_config(
                config, dtype=dtype, rng=_parameters.Unset()
            )

        _saving.save(self, folder, again, None)

    def encode_images(
        self, pixels: ArrayLike, *, num_threads: int | None = None
    ) -> Array:
        """Return the vectors of pictures.

        Parameters
        ----------
        pixels : array_like, shape (H, W, C) or (B, H, W, C)
            As in `ImageEncoder.__call__`.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (P,) or (B, P)
            Of length 1. A picture's vector has the same bits in any batch.

        Raises
        ------
        TypeError, ValueError
            If the argument has the wrong kind, dtype or shape.
        """
        states = self.image_model(pixels, num_threads=num_threads)
        vectors = self.image_model.pool(_wide(states), num_threads=num_threads)
        if self.image_projection is not None:
            vectors = linear(
                vectors,
                self.image_projection,
                precision="wide",
                num_threads=num_threads,
            )
        return unit_vectors(vectors)

    def encode_texts(
        self, token_ids: ArrayLike, *, num_threads: int | None = None
    ) -> Array:
        """Return the vectors of texts.

        Parameters
        ----------
        token_ids : array_like of int, shape (L,) or (B, L)
            As the tokenizer makes them, with the end token in each. In CLIP, tokens
            after it do not matter. SigLIP was trained with texts that are padded to
            its `max_tokens` tokens, and looks at the padding.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (P,) or (B, P)
            Of length 1. A text's vector has the same bits in any batch.

        Raises
        ------
        TypeError, ValueError
            If the argument has the wrong kind, dtype or shape, or lacks the end token.
        """
        ids = _embedding.checked_ids(token_ids, self.text_model.vocab_size)
        ends = self._ends(ids)
        is_causal = self.text_model.decoder.layers[0].causal
        states = self.text_model(
            ids, lengths=ends + 1 if is_causal else None, num_threads=num_threads
        )
        chosen = np.take_along_axis(states, ends[..., np.newaxis, np.newaxis], -2)
        vectors = linear(
            _wide(chosen[..., 0, :]),
            self.text_projection,
            self.text_bias,
            precision="wide",
            num_threads=num_threads,
        )
        return unit_vectors(vectors)

    def _ends(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of the token whose vector is the text's, () or (B,)."""
        if ids.shape[-1] == 0:
            raise ValueError(
                "token_ids: expected at least one token in a text, got none"
            )
        if self.end_token == "last":
            return np.full(ids.shape[:-1], ids.shape[-1] - 1)
        if self.end_token == "largest":
            return np.asarray(ids.argmax(axis=-1))
        is_end = ids == self.end_token
        if not is_end.any(axis=-1).all():
            raise ValueError(
                f"token_ids: expected the end token {self.end_token} in each text, got "
                "one without"
            )
        return np.asarray(is_end.argmax(axis=-1))

    def logits(
        self,
        images: ArrayLike,
        texts: ArrayLike,
        *,
        num_threads: int | None = None,
    ) -> Array:
        """Return how well pictures and texts fit, before a softmax or sigmoid.

        Parameters
        ----------
        images : array_like, shape (n, P)
            From `encode_images`.
        texts : array_like, shape (m, P)
            From `encode_texts`.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (n, m)
            ``exp(logit_scale)`` times the products, plus the `logit_bias`: what
            Transformers calls ``logits_per_image``.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape.
        """
        one, other = (
            _checks.array(x, name) for x, name in ((images, "images"), (texts, "texts"))
        )
        for array, name in ((one, "images"), (other, "texts")):
            _dtypes.operand(array, name)
            if array.ndim != 2 or array.shape[1] != self.projection_dim:
                raise ValueError(
                    f"{name}: expected (n, {self.projection_dim}), got {array.shape}"
                )
        scores = linear(one, other.T, num_threads=num_threads)
        scores *= _exp(self.logit_scale[0], scores.dtype)
        if self.logit_bias is not None:
            scores += scores.dtype.type(self.logit_bias[0])
        return scores


def _exp(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return exp(x), rounded once; infinite where the dtype ends, as PyTorch's is."""
    try:
        result = math.exp(float(x))
    except OverflowError:
        result = math.inf
    return np.asarray(result).astype(dtype)


def _wide(states: Array) -> Array:
    """Return states in the dtype of sums: float32 for 16 bits."""
    return states.astype(_dtypes.arithmetic(states.dtype), copy=False)
