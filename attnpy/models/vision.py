"""Vision transformers: pictures as sequences of patches."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np

from attnpy import _checks, _dtypes, _keywords, _parameters, _pickles, _repr
from attnpy._linear import linear
from attnpy.blocks import Encoder, FeedForward, LayerNorm, ModelOutput, _stack
from attnpy.layers import MultiHeadAttention
from attnpy.models import _embedding, _hf_config, _pretrained, _saving

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping
    from types import EllipsisType

    from numpy.typing import ArrayLike, DTypeLike
    from typing_extensions import Unpack

    from attnpy._typing import Array, PlainActivation
    from attnpy.blocks._stack import Choice

    Pooler = Literal["dense", "norm", "attention"]

    class ImageCall(TypedDict, total=False):
        """The options of a call."""

        num_threads: int | None

    class ImageChosenCall(ImageCall, Choice, total=False):
        """The options of a call that returns more than the vectors."""


POOLERS = "dense", "norm", "attention"
ACTIVATIONS = "relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "relu2", "tanh"


@_keywords.answering
class ImageEncoder:
    """A vision transformer: a vector for each patch of a picture, and of all of it.

    Parameters
    ----------
    num_layers, embed_dim, num_heads, hidden_dim : int
        As in `attnpy.blocks.Encoder`.
    image_size, patch_size : int or (int, int), optional
        Height and width of pictures, and of the patches into which they are cut, in
        pixels. What is left over on the right and at the bottom is not looked at.
    num_channels : int, optional
        `C`, the numbers of a pixel.
    num_class_tokens : int, optional
        How many tokens stand before those of the patches: 1, or 0 as in SigLIP.
    distilled : bool, optional
        Add DeiT's second token after the class token, which has a classifier of its
        own.
    activation : str, optional
        Of the feed-forward networks, as in `attnpy.blocks.FeedForward`.
    eps : float, optional
        Of the norms.
    qkv_bias, patch_bias : bool, optional
        Add biases to queries, keys and values; to the patches' vectors.
    input_norm : bool, optional
        Add a norm before the first layer, as in CLIP.
    final_norm : bool, optional
        Add a norm after the last layer.
    pooler : {"dense", "norm", "attention"}, optional
        How `pool` makes the vector of a picture: a matrix and `pooler_activation` for
        the first token, as in ViT; a norm of the first token, as in CLIP; attention of
        a learned query to all tokens, and a network, as in SigLIP.
    pooler_dim : int, optional
        The size of the result of "dense"; by default `E`.
    pooler_activation : str, optional
        Of "dense".
    num_labels : int, optional
        Add a matrix for this many scores of a picture: `classify`.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.
    rng : numpy.random.Generator, optional
        Draws the initial values; by default ``numpy.random.default_rng()``, with
        different values in every run.

    Attributes
    ----------
    patch_kernel : ndarray, shape (E, C, patch height, patch width)
        What makes vectors of patches, as a convolution has it.
    patch_bias : ndarray, shape (E,), or None
    class_token, distillation_token : ndarray, shape (E,), or None
    position_embedding : ndarray, shape (L, E)
        With a vector for each token. Initially these are normal random numbers with
        standard deviation 0.02.
    norm : attnpy.blocks.LayerNorm or None
        With `input_norm`.
    encoder : attnpy.blocks.Encoder
    pooler_weight, pooler_bias : ndarray, or None
        With "dense": shape (E, pooler_dim) and (pooler_dim,).
    pooler_activation : str
        As given.
    probe : ndarray, shape (1, E), or None
    pool_attention : attnpy.layers.MultiHeadAttention or None
    pool_network : attnpy.blocks.FeedForward or None
        With "attention".
    pooled_norm : attnpy.blocks.LayerNorm or None
        With "attention" and "norm".
    classifier_weight, classifier_bias : ndarray, or None
        Of shape (E, num_labels) and (num_labels,).
    distillation_weight, distillation_bias : ndarray, or None
        The same, with `distilled`.
    image_size : (int, int)
        As given.
    patch_size : (int, int)
        From `patch_kernel`.
    grid : (int, int)
        How many patches there are above and beside each other.
    embed_dim : int
        `E`.
    config : dict or None
        The configuration of `from_config`, which `save_pretrained` writes.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the parameters.

    See Also
    --------
    ImageClassifier : pictures of any size to labels.
    ImageTextEncoder : CLIP and SigLIP, whose vectors of pictures and texts meet.
    attnpy.plot.patch_map : attention over the patches of a picture.

    Notes
    -----
    From Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image
    Recognition at Scale" (2021). The others: Touvron et al., "Training data-efficient
    image transformers & distillation through attention" (2021), DeiT; Radford et al.,
    "Learning Transferable Visual Models From Natural Language Supervision" (2021),
    CLIP; Zhai et al., "Sigmoid Loss for Language Image Pre-Training" (2023), SigLIP.

    A picture has the same bits alone and in any batch.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import ImageEncoder
    >>> rng = np.random.default_rng(0)
    >>> model = ImageEncoder(2, 16, 4, 64, image_size=32, patch_size=8, rng=rng)
    >>> pixels = rng.standard_normal((2, 32, 32, 3), dtype=np.float32)
    >>> states = model(pixels)  # a class token, and 4 x 4 patches
    >>> states.shape
    (2, 17, 16)
    >>> bool((model(pixels[1]) == states[1]).all())
    True
    """

    patch_kernel: Array
    patch_bias: Array | None
    class_token: Array | None
    distillation_token: Array | None
    position_embedding: Array
    norm: LayerNorm | None
    encoder: Encoder
    pooler_weight: Array | None
    pooler_bias: Array | None
    pooler_activation: str
    probe: Array | None
    pool_attention: MultiHeadAttention | None
    pooled_norm: LayerNorm | None
    pool_network: FeedForward | None
    classifier_weight: Array | None
    classifier_bias: Array | None
    distillation_weight: Array | None
    distillation_bias: Array | None
    image_size: tuple[int, int]
    config: dict[str, Any] | None

    def __init__(
        self,
        num_layers: int,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        image_size: int | Iterable[int] = 224,
        patch_size: int | Iterable[int] = 16,
        num_channels: int = 3,
        num_class_tokens: int = 1,
        distilled: bool = False,
        activation: PlainActivation = "gelu",
        eps: float = 1e-12,
        qkv_bias: bool = True,
        patch_bias: bool = True,
        input_norm: bool = False,
        final_norm: bool = True,
        pooler: Pooler | None = None,
        pooler_dim: int | None = None,
        pooler_activation: PlainActivation = "tanh",
        num_labels: int | None = None,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        rng, kind = _checks.generator(rng), _dtypes.floating(dtype)
        self.image_size = _height_and_width(image_size, "image_size")
        patch = _height_and_width(patch_size, "patch_size")
        if patch[0] > self.image_size[0] or patch[1] > self.image_size[1]:
            raise ValueError(
                f"patch_size: expected at most the image_size {self.image_size}, got "
                f"{patch}"
            )
        if _checks.size(num_class_tokens, "num_class_tokens") > 1:
            raise ValueError(
                f"num_class_tokens: expected 0 or 1, got {num_class_tokens}"
            )
        n_first = num_class_tokens + _checks.flag(distilled, "distilled")
        if distilled and not num_class_tokens:
            raise ValueError("distilled: expected False without a class token")
        _checks.one_of(activation, "activation", ACTIVATIONS)
        self.pooler_activation = _checks.one_of(
            pooler_activation, "pooler_activation", ACTIVATIONS
        )

        def table(n_rows: int, name: str, dim: int = embed_dim) -> Array:
            return _embedding.table(rng, n_rows, name, dim, kind)

        def layer_norm(wanted: bool) -> LayerNorm | None:
            return LayerNorm(embed_dim, eps=eps, dtype=kind) if wanted else None

        size = _checks.count(num_channels, "num_channels") * patch[0] * patch[1]
        kernel = table(size, "patch_size").T
        self.patch_kernel = np.ascontiguousarray(kernel).reshape(
            -1, num_channels, *patch
        )
        wanted = _checks.flag(patch_bias, "patch_bias")
        self.patch_bias = _parameters.zeros(wanted, embed_dim, kind)
        self.class_token = table(1, "embed_dim")[0] if n_first else None
        self.distillation_token = table(1, "embed_dim")[0] if n_first > 1 else None
        rows, columns = self.grid
        self.position_embedding = table(n_first + rows * columns, "image_size")
        self.norm = layer_norm(_checks.flag(input_norm, "input_norm"))
        self.encoder = Encoder(
            num_layers,
            embed_dim,
            num_heads,
            hidden_dim,
            norm_first=True,
            final_norm=final_norm,
            activation=activation,
            eps=eps,
            dtype=kind,
            rng=rng,
        )
        if not _checks.flag(qkv_bias, "qkv_bias"):
            for layer in self.encoder.layers:
                mha = layer.self_attention
                mha.b_q = mha.b_k = mha.b_v = None
        self.pooler_weight = self.pooler_bias = self.probe = None
        self.pool_attention = self.pool_network = self.pooled_norm = None
        self._set_pooler(pooler, pooler_dim, table, bool(n_first))
        self.pooled_norm = layer_norm(pooler in ("norm", "attention"))
        if pooler == "attention":
            self.probe = table(1, "embed_dim")
            self.pool_attention = MultiHeadAttention(
                embed_dim, num_heads, bias=True, dtype=kind, rng=rng
            )
            self.pool_network = FeedForward(
                embed_dim, hidden_dim, activation=activation, dtype=kind, rng=rng
            )
        self._set_classifiers(num_labels, table, n_first)
        self.config = None

    def _set_pooler(
        self,
        pooler: Pooler | None,
        pooler_dim: int | None,
        table: Callable[..., Array],
        has_token: bool,
    ) -> None:
        """Make the dense pooler, if it is wanted, and check options of all poolers."""
        if pooler is not None:
            _checks.one_of(pooler, "pooler", POOLERS)
            if pooler != "attention" and not has_token:
                raise ValueError(
                    'pooler: expected "attention", as there is no class token, got '
                    f"{pooler!r}"
                )
        if pooler == "dense":
            embed_dim = len(self.patch_kernel)
            pooler_dim = embed_dim if pooler_dim is None else pooler_dim
            dim = _checks.count(pooler_dim, "pooler_dim")
            self.pooler_weight = table(embed_dim, "embed_dim", dim)
            self.pooler_bias = np.zeros(dim, self.patch_kernel.dtype)
        elif pooler_dim is not None:
            raise ValueError('pooler_dim: expected None without pooler="dense"')

    def _set_classifiers(
        self, num_labels: int | None, table: Callable[..., Array], n_first: int
    ) -> None:
        """Make what scores the class token, and the distillation token, if any."""
        self.classifier_weight = self.classifier_bias = None
        self.distillation_weight = self.distillation_bias = None
        if num_labels is None:
            return
        n, embed_dim = _checks.count(num_labels, "num_labels"), len(self.patch_kernel)
        if not n_first:
            raise ValueError("num_labels: expected None without a class token")
        kind = self.patch_kernel.dtype
        self.classifier_weight = table(embed_dim, "embed_dim", n)
        self.classifier_bias = np.zeros(n, kind)
        if n_first > 1:
            self.distillation_weight = table(embed_dim, "embed_dim", n)
            self.distillation_bias = np.zeros(n, kind)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict
    pack = _parameters.pack
    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        first, classes = self.encoder.layers[0], self.classifier_bias
        dense = self.pooler_bias
        assert first.norm_1 is not None
        return {
            **_stack.stack_fields(self.encoder),
            "norm_first": None,
            "activation": first.feed_forward.activation,
            "eps": first.norm_1.eps,
            "image_size": self.image_size,
            "patch_size": self.patch_size,
            "num_channels": self.patch_kernel.shape[1],
            "num_class_tokens": int(self.class_token is not None),
            "distilled": self.distillation_token is not None,
            "patch_bias": self.patch_bias is not None,
            "input_norm": self.norm is not None,
            "final_norm": self.encoder.norm is not None,
            "pooler": self._pooler(),
            "pooler_dim": None if dense is None else len(dense),
            "pooler_activation": None if dense is None else self.pooler_activation,
            "num_labels": None if classes is None else len(classes),
        }

    __repr__ = _repr.shows(_shown)

    def _pooler(self) -> Pooler | None:
        if self.pooler_weight is not None:
            return "dense"
        if self.pooled_norm is None:
            return None
        return "norm" if self.probe is None else "attention"

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a patch."""
        height, width = self.patch_kernel.shape[2:]
        return height, width

    @property
    def grid(self) -> tuple[int, int]:
        """How many patches there are above and beside each other."""
        height, width = self.image_size
        return height // self.patch_size[0], width // self.patch_size[1]

    @property
    def embed_dim(self) -> int:
        """The size `E` of the vectors that come out."""
        return len(self.patch_kernel)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        pooler: bool = False,
        classifier: bool = False,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> ImageEncoder:
        """Return a model of the sizes of a configuration.

        Parameters
        ----------
        config : mapping
            With the keys of the Hugging Face configuration, whose ``model_type`` is
            vit, deit, clip_vision_model or siglip_vision_model. Keys that do not change
            the computation are ignored, and all others are refused, unless null.
        pooler : bool, optional
            Add the family's pooler.
        classifier : bool, optional
            Add a classifier of ViT or DeiT, with as many scores as ``id2label`` or
            ``num_labels`` says, by default 2. DeiT's has two matrices, unless
            ``architectures`` says ``DeiTForImageClassification``.
        dtype, rng
            As in `ImageEncoder`.

        Returns
        -------
        ImageEncoder

        Raises
        ------
        TypeError
            If `config` is not a mapping.
        ValueError
            If keys are missing or unknown, have values of a wrong kind, or ask for a
            different model; the message lists all of them. If the family does not have
            the pooler or classifier that is asked for.
        """
        family = _hf_config.image(_checks.mapping(config, "config"))
        options = _hf_config.arguments(config, family)
        if not _checks.flag(pooler, "pooler"):
            options["pooler"] = None
            options.pop("pooler_dim", None)
        elif options["pooler"] is None:
            raise ValueError(
                "pooler: expected False, as vision_use_head is false, got True"
            )
        if _checks.flag(classifier, "classifier"):
            if not family.names.classifier:
                raise ValueError(
                    f"classifier: expected False, as {family.model_type} has none, got "
                    "True"
                )
            options["num_labels"] = _hf_config.num_labels(config)
        model = cls(**options, dtype=dtype, rng=rng)
        if config.get("architectures") == ["DeiTForImageClassification"]:
            model.distillation_weight = model.distillation_bias = None
        model.config = copy.deepcopy(dict(config))
        return model

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        pooler: bool = False,
        classifier: bool = False,
        dtype: DTypeLike = np.float32,
        packed: bool = True,
        weights: Literal["int8", "int4"] | None = None,
        activations: Literal["float", "int8"] = "float",
        ignore_head: bool = False,
        progress: bool | None = None,
    ) -> ImageEncoder:
        """Read a model from a folder.

        Parameters
        ----------
        folder : str or path
            With ``config.json``, and weights: ``model.safetensors``,
            ``pytorch_model.bin``, or the index of several of one kind.
        pooler, classifier : bool, optional
            As in `from_config`. A pooler that is not asked for is left alone.
        dtype, packed, weights, activations, ignore_head, progress
            As in `BertEncoder.from_pretrained`.

        Returns
        -------
        ImageEncoder

        Raises
        ------
        ImportError, FileNotFoundError
            If the safetensors package is not installed, or ml_dtypes for bfloat16, or
            tqdm for `progress`; if a file is missing.
        ValueError
            As `from_config`; if weights are missing, unexpected or of wrong shapes.
        """
        make = functools.partial(cls.from_config, pooler=pooler, classifier=classifier)
        return _pretrained.read(
            *(make, folder, dtype, packed, ignore_head, progress),
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
        With a classifier it is a ``ForImageClassification``. What the pictures need is
        not written: copy ``preprocessor_config.json`` beside it.
        """
        has_classifier = self.classifier_weight is not None

        def again(config: dict[str, Any]) -> ImageEncoder:
            return ImageEncoder.from_config(
                config,
                pooler=self._pooler() is not None,
                classifier=has_classifier,
                dtype=self.patch_kernel.dtype,
                rng=_parameters.Unset(),
            )

        head: str | None = None
        preferred: tuple[str, ...] = ()
        if has_classifier and self.distillation_bias is not None:
            head = "ForImageClassificationWithTeacher"
        elif has_classifier:
            head, preferred = "ForImageClassification", ONE_CLASSIFIER
        elif self._pooler() in ("norm", "attention") or self.class_token is None:
            head = ""  # the class's own names have its prefix
        _saving.save(self, folder, again, head, preferred=preferred)

    @overload
    def __call__(
        self,
        pixels: ArrayLike,
        *,
        return_weights: Literal[False] = ...,
        return_hidden_states: Literal[False] = ...,
        **options: Unpack[ImageCall],
    ) -> Array: ...
    @overload
    def __call__(
        self,
        pixels: ArrayLike,
        *,
        return_weights: Literal[True],
        return_hidden_states: bool = ...,
        **options: Unpack[ImageChosenCall],
    ) -> ModelOutput: ...
    @overload
    def __call__(
        self,
        pixels: ArrayLike,
        *,
        return_weights: bool = ...,
        return_hidden_states: Literal[True],
        **options: Unpack[ImageChosenCall],
    ) -> ModelOutput: ...
    @overload
    def __call__(
        self,
        pixels: ArrayLike,
        *,
        return_weights: bool,
        return_hidden_states: bool = ...,
        **options: Unpack[ImageChosenCall],
    ) -> Array | ModelOutput: ...
    @overload
    def __call__(
        self,
        pixels: ArrayLike,
        *,
        return_weights: bool = ...,
        return_hidden_states: bool,
        **options: Unpack[ImageChosenCall],
    ) -> Array | ModelOutput: ...
    def __call__(
        self,
        pixels: ArrayLike,
        *,
        return_weights: bool = False,
        return_hidden_states: bool = False,
        layers: ArrayLike | None = None,
        heads: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> Array | ModelOutput:
        """Return the tokens' vectors after the last layer.

        Parameters
        ----------
        pixels : array_like, shape (H, W, C) or (B, H, W, C)
            Pictures of `image_size` as `ImageProcessor` makes them: floating numbers,
            channels last. They are converted to the dtype of the model's sums.
        return_weights : bool, optional
            Return the weights of the layers' attention as well, in an
            `attnpy.blocks.ModelOutput`. No bit of the output depends on it.
        return_hidden_states : bool, optional
            Return the input of the first layer and the result of each layer as well, in
            an `attnpy.blocks.ModelOutput`. The name is Hugging Face's.
        layers, heads : int or sequence of int, optional
            Which layers and heads, as in `attnpy.blocks.Encoder.__call__`.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (L, E) or (B, L, E)
            The class token, if there is one, DeiT's second token, and the patches, row
            after row. With `return_weights` or `return_hidden_states` an
            `attnpy.blocks.ModelOutput`, whose weights are (layers, H, L, L) or
            (layers, B, H, L, L).

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape, or is out of its range.
        """
        pictures = self._checked(pixels)
        table = self.position_embedding

        def run(part: slice | EllipsisType) -> Array | ModelOutput:
            """Return the encoder's result for a part of the batch."""
            tokens = self._embed(pictures[part], num_threads)
            return _embedding.run_existing(tokens, None, encode, table, num_threads)

        def encode(tokens: Array, _: object) -> Array | ModelOutput:
            return self.encoder(
                tokens,
                mixed=_embedding.is_mixed(table),
                return_weights=return_weights,
                return_hidden_states=return_hidden_states,
                layers=layers,
                heads=heads,
                num_threads=num_threads,
            )

        if return_weights or return_hidden_states:
            return run(...)
        places = np.broadcast_to(np.int64(0), (*pictures.shape[:-3], len(table)))
        return _embedding.run_parts(places, None, run, num_threads)

    def _checked(self, pixels: ArrayLike) -> Array:
        """Return pictures as floating numbers."""
        pictures = _checks.array(pixels, "pixels")
        if pictures.dtype.kind in "biu":
            raise TypeError(
                "pixels: expected floating numbers, as ImageProcessor makes them, got "
                f"dtype {pictures.dtype}"
            )
        _dtypes.operand(pictures, "pixels")
        shape = *self.image_size, self.patch_kernel.shape[1]
        if pictures.ndim not in (3, 4) or pictures.shape[-3:] != shape:
            raise ValueError(
                f"pixels: expected {shape} or (B, {', '.join(map(str, shape))}), got "
                f"{pictures.shape}"
            )
        return pictures

    def _embed(self, pictures: Array, num_threads: int | None) -> Array:
        """Return the tokens that go into the first layer, (L, E) or (B, L, E)."""
        (rows, columns), (height, width) = self.grid, self.patch_size
        *batch, _, _, n_channels = pictures.shape
        inner = pictures[..., : rows * height, : columns * width, :]
        cut = inner.reshape(*batch, rows, height, columns, width, n_channels)
        n = len(batch)
        order = [n, n + 2, n + 4, n + 1, n + 3]  # patches; channels, rows, columns
        patches = np.ascontiguousarray(
            cut.transpose(*range(n), *order),
            _dtypes.arithmetic(self.patch_kernel.dtype),
        ).reshape(*batch, rows * columns, n_channels * height * width)
        kernel = self.patch_kernel.reshape(self.embed_dim, -1)
        table = self.position_embedding
        tokens = linear(
            patches,
            kernel.T,
            self.patch_bias,
            precision="wide" if _embedding.is_mixed(table) else "promoted",
            num_threads=num_threads,
        )
        parts = [
            np.broadcast_to(token.astype(tokens.dtype), (*batch, 1, self.embed_dim))
            for token in (self.class_token, self.distillation_token)
            if token is not None
        ]
        tokens = np.concatenate([*parts, tokens], axis=-2)
        tokens += table.astype(tokens.dtype)
        return (
            tokens if self.norm is None else self.norm(tokens, num_threads=num_threads)
        )

    def pool(self, states: ArrayLike, *, num_threads: int | None = None) -> Array:
        """Return the vector of each picture, as the family's pooler makes it.

        Parameters
        ----------
        states : array_like, shape (L, E) or (B, L, E)
            Vectors from a call.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (E,) or (B, E)
            `pooler_dim` numbers instead of `E` with "dense".

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape. If the model has no
            pooler.
        """
        tokens = self._states(states)
        kind = self._pooler()
        if kind == "dense":
            assert self.pooler_weight is not None
            return linear(
                tokens[..., 0, :],
                self.pooler_weight,
                self.pooler_bias,
                activation=self.pooler_activation,
                num_threads=num_threads,
            )
        if kind is None:
            raise ValueError(
                "pooler: expected a model with a pooler, or read with pooler=True, got "
                "one without"
            )
        assert self.pooled_norm is not None
        if kind == "norm":
            return self.pooled_norm(tokens[..., 0, :], num_threads=num_threads)
        assert self.probe is not None
        assert self.pool_attention is not None
        assert self.pool_network is not None
        found = self.pool_attention(
            self.probe.astype(tokens.dtype), tokens, num_threads=num_threads
        )  # (1, E) or (B, 1, E)
        normed = self.pooled_norm(found, num_threads=num_threads)
        vectors = self.pool_network(normed, residual=found, num_threads=num_threads)
        return vectors[..., 0, :]

    def classify(self, states: ArrayLike, *, num_threads: int | None = None) -> Array:
        """Return the scores of the labels for each picture, before a softmax.

        Parameters
        ----------
        states : array_like, shape (L, E) or (B, L, E)
            Vectors from a call.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (num_labels,) or (B, num_labels)
            Those of the class token; of a distilled model the mean of its scores and
            those of the second token.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape. If the model has no
            classifier.
        """
        tokens = self._states(states)
        if self.classifier_weight is None:
            raise ValueError(
                "classifier: expected a model with num_labels, or read with "
                "classifier=True, got one without"
            )
        scores = linear(
            tokens[..., 0, :],
            self.classifier_weight,
            self.classifier_bias,
            num_threads=num_threads,
        )
        if self.distillation_weight is None:
            return scores
        others = linear(
            tokens[..., 1, :],
            self.distillation_weight,
            self.distillation_bias,
            num_threads=num_threads,
        )
        mean: Array = (scores + others) / 2
        return mean

    def _states(self, states: ArrayLike) -> Array:
        """Return vectors of a call."""
        tokens = _checks.array(states, "states")
        shape = self.position_embedding.shape
        if tokens.ndim not in (2, 3) or tokens.shape[-2:] != shape:
            raise ValueError(
                f"states: expected {shape} or (B, {', '.join(map(str, shape))}), got "
                f"{tokens.shape}"
            )
        return tokens


# The names of a single classifier, which DeiT can also have.
ONE_CLASSIFIER = "classifier.weight", "classifier.bias"


def _height_and_width(size: int | Iterable[int], name: str) -> tuple[int, int]:
    """Return height and width, the same where there is one number."""
    if not isinstance(size, (list, tuple)):
        side = _checks.count(size, name)  # type: ignore[arg-type]
        return side, side
    if len(size) != 2:
        raise ValueError(f"{name}: expected height and width, got {len(size)} numbers")
    height, width = (_checks.count(n, name) for n in size)
    return height, width
