"""Whole models, small enough to read: BERT's encoder, and decoders as GPT-2's, Llama's.

They are embeddings around the stacks of `attnpy.blocks`, and their weights come from
the checkpoints of `attnpy.checkpoints`. What turns text into numbers is not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _parameters, checkpoints
from attnpy._attention import attention
from attnpy._linear import linear
from attnpy.blocks import Decoder, Encoder, LayerNorm, RMSNorm, _cache_list
from attnpy.positions import Rotary, _above, _flag, _floating, _integers, _rounded

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray
    from typing_extensions import Unpack

    from attnpy.blocks import Activation, DecoderOptions, EncoderLayer, Window
    from attnpy.cache import KVCache

    Array = NDArray[Any]

__all__ = ["BertEncoder", "CausalDecoder", "sample"]

# What configurations call the activations of `attnpy.blocks`.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


class BertEncoder:
    r"""BERT without what comes after its layers: a vector for each token of a text.

    Parameters
    ----------
    n_layers, embed_dim, num_heads, hidden_dim : int
        As in `attnpy.blocks.Encoder`.
    vocab_size : int
        `V`, the number of different tokens.
    max_length : int, optional
        The number of positions.
    n_types : int, optional
        The number of token types, to tell two texts in one sequence apart.
    activation : {"gelu", "gelu_tanh", "relu", "silu"}, optional
        Of the feed-forward networks.
    eps : float, optional
        Of the norms.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.
    rng : numpy.random.Generator, optional
        Where the first values come from; by default ``numpy.random.default_rng()``,
        other values in every run.

    Attributes
    ----------
    words : ndarray, shape (V, E)
    places : ndarray, shape (max_length, E)
    types : ndarray, shape (n_types, E)
        Normal numbers with standard deviation 0.02 at first.
    norm : attnpy.blocks.LayerNorm
        Of the sum of the three.
    encoder : attnpy.blocks.Encoder

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.

    Notes
    -----
    From Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for
    Language Understanding" (2019); the layers are those of Vaswani et al. (2017) with
    `gelu`. With the weights of MiniLM (Wang et al., 2020) the mean of a sentence's
    vectors says what it is about (Reimers and Gurevych, "Sentence-BERT", 2019).

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import BertEncoder
    >>> rng = np.random.default_rng(0)
    >>> model = BertEncoder(2, 16, 4, 64, vocab_size=100, rng=rng)
    >>> model([2, 71, 82, 3]).shape
    (4, 16)

    Two texts in one batch, the second one shorter:

    >>> states = model([[2, 71, 82, 3], [2, 71, 3, 0]], lengths=[4, 3])
    >>> bool((states[1, :3] == model([2, 71, 3])).all())
    True
    """

    def __init__(
        self,
        n_layers: int,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        vocab_size: int,
        max_length: int = 512,
        n_types: int = 2,
        activation: Activation = "gelu",
        eps: float = 1e-12,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        rng = _parameters.generator(rng)
        self.words = _table(rng, vocab_size, "vocab_size", embed_dim, dtype)
        self.places = _table(rng, max_length, "max_length", embed_dim, dtype)
        self.types = _table(rng, n_types, "n_types", embed_dim, dtype)
        self.norm = LayerNorm(embed_dim, eps=eps, dtype=dtype)
        self.encoder = Encoder(
            n_layers,
            embed_dim,
            num_heads,
            hidden_dim,
            activation=activation,
            bias=True,
            eps=eps,
            dtype=dtype,
            rng=rng,
        )

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> BertEncoder:
        """Return a model of the sizes of a configuration.

        Parameters
        ----------
        config : mapping
            With the keys of the Hugging Face configuration.
        dtype, rng
            As in `BertEncoder`.

        Returns
        -------
        BertEncoder

        Raises
        ------
        ValueError
            If a key is missing, or asks for something else than BERT.
        """
        _check(config, model_type="bert", position_embedding_type="absolute")
        _check(config, is_decoder=False, add_cross_attention=False)
        return cls(
            *_sizes(
                config,
                "num_hidden_layers",
                "hidden_size",
                "num_attention_heads",
                "intermediate_size",
            ),
            vocab_size=_sizes(config, "vocab_size")[0],
            max_length=config.get("max_position_embeddings", 512),
            n_types=config.get("type_vocab_size", 2),
            activation=_activation(config.get("hidden_act", "gelu")),
            eps=config.get("layer_norm_eps", 1e-12),
            dtype=dtype,
            rng=rng,
        )

    @classmethod
    def from_pretrained(
        cls, folder: str | os.PathLike[str], *, dtype: DTypeLike = np.float32
    ) -> BertEncoder:
        """Read a model from a folder.

        Parameters
        ----------
        folder : str or path
            With ``config.json``, and ``model.safetensors`` or the index of several.
        dtype : dtype, optional
            Of the model, to which the weights are converted.

        Returns
        -------
        BertEncoder

        Raises
        ------
        ImportError
            If the safetensors package is not installed.
        FileNotFoundError
            If a file is not there.
        ValueError
            If the configuration is not BERT's, or weights are missing, unexpected or of
            wrong shapes.
        """
        model = cls.from_config(
            checkpoints.read_config(folder), dtype=dtype, rng=_Zeros()
        )
        checkpoints.load(model, checkpoints.read(folder), "bert")
        return model

    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        token_types: ArrayLike | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Return the tokens' vectors after the last layer.

        Parameters
        ----------
        token_ids : array_like of int, shape (L,) or (B, L)
            0 to ``V - 1``.
        lengths : int or array_like of int, shape (B,), optional
            How many of the tokens exist, at the start of each sequence. The others are
            padding: they cost next to nothing, and their own vectors mean nothing.
            Those of a sequence's tokens have the same bits as without padding.
        mask : array_like of bool, shape (L,) or (B, L), optional
            True for tokens that exist: for padding elsewhere.
        token_types : array_like of int, broadcast to token_ids' shape, optional
            By default 0.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`.

        Returns
        -------
        ndarray, shape (L, E) or (B, L, E)

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape, or is out of its range.
        """
        ids = _token_ids(token_ids, len(self.words))
        n_tokens = ids.shape[-1]
        if n_tokens > len(self.places):
            raise ValueError(
                f"token_ids: expected at most max_length = {len(self.places)} tokens, "
                f"got {n_tokens}"
            )
        types = _integers(
            0 if token_types is None else token_types,
            "token_types",
            0,
            len(self.types) - 1,
        )
        if mask is not None:
            mask = np.asarray(mask)[..., np.newaxis, np.newaxis, :]  # (..., 1, 1, L)
        tokens = self.words[ids] + self.types[types] + self.places[:n_tokens]
        tokens = self.norm(tokens)
        if lengths is None or mask is not None or ids.ndim == 1:
            return self.encoder(
                tokens, mask=mask, kv_lengths=lengths, num_threads=num_threads
            )
        ends = _lengths(lengths, ids, 0)
        exists = np.arange(n_tokens) < ends[:, np.newaxis]  # (B, L)
        packed = tokens[exists]  # (N, E)
        for layer in self.encoder.layers:
            packed = _packed_layer(layer, packed, exists, ends, num_threads)
        states = np.zeros_like(tokens)
        states[exists] = packed
        return states


class CausalDecoder:
    r"""A language model: the tokens so far give the scores of the next one.

    Parameters
    ----------
    n_layers, embed_dim, num_heads, hidden_dim : int
        As in `attnpy.blocks.Decoder`.
    vocab_size : int
        `V`, the number of different tokens.
    max_length : int, optional
        With it the model has a learned table of so many positions.
    rotary : attnpy.positions.Rotary, optional
        The other way to tell positions.
    window : tuple of (int or None, int or None), optional
        As in `attnpy.attention`, for all layers.
    tied : bool, optional
        The scores are products with the embeddings, not with a matrix of their own.
    qkv_bias : bool, optional
        Add biases to queries, keys and values; by default with `bias`.
    qk_norm : bool, optional
        Normalize each head's queries and keys with an `attnpy.blocks.RMSNorm`.
    **options
        As in `attnpy.blocks.DecoderLayer`: `head_dim`, `num_kv_heads`, `norm_first`
        (here True by default), `norm`, `eps`, `activation`, `bias`, `dtype`, `rng`.

    Attributes
    ----------
    words : ndarray, shape (V, E)
        With `tied` the transpose of an array in C order, as products read that best.
    places : ndarray, shape (max_length, E), or None
    output : ndarray, shape (E, V), or None
        None with `tied`.
    decoder : attnpy.blocks.Decoder
    rotary, window
        As given.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.

    Notes
    -----
    With learned positions, `LayerNorm`, "gelu_tanh" and biases this is the model of
    Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), GPT-2;
    with rotary positions, `RMSNorm`, "swiglu" and no biases that of Touvron et al.,
    "LLaMA: Open and Efficient Foundation Language Models" (2023).

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import CausalDecoder
    >>> from attnpy.positions import Rotary
    >>> rng = np.random.default_rng(0)
    >>> gpt = CausalDecoder(
    ...     2, 16, 4, 64, vocab_size=100, max_length=32, activation="gelu_tanh", rng=rng
    ... )
    >>> llama = CausalDecoder(
    ...     2, 16, 4, 64, vocab_size=100, rotary=Rotary(4), tied=False, num_kv_heads=2,
    ...     norm="rms", activation="swiglu", bias=False, rng=rng,
    ... )
    >>> states = llama([5, 17, 3])
    >>> llama.logits(states).shape
    (3, 100)
    >>> new = gpt.generate([5, 17, 3], 4)
    >>> scores = gpt.logits(gpt([5, 17, 3, *new[:3]]))
    >>> bool((new == scores[2:].argmax(axis=-1)).all())
    True
    """

    def __init__(
        self,
        n_layers: int,
        embed_dim: int,
        num_heads: int,
        hidden_dim: int,
        *,
        vocab_size: int,
        max_length: int | None = None,
        rotary: Rotary | None = None,
        window: Window | None = None,
        tied: bool = True,
        qkv_bias: bool | None = None,
        qk_norm: bool = False,
        **options: Unpack[DecoderOptions],
    ) -> None:
        options = {"norm_first": True, **options, "cross_attention": False}
        dtype, rng = options.get("dtype", np.float32), options.get("rng")
        options["rng"] = rng = _parameters.generator(rng)
        self.decoder = Decoder(n_layers, embed_dim, num_heads, hidden_dim, **options)
        for layer in self.decoder.layers:
            mha = layer.self_attention
            if qkv_bias is not None:
                for letter in "qkv":
                    size = getattr(mha, f"W_{letter}").shape[1]
                    bias = _parameters.zeros(qkv_bias, size, _floating(dtype))
                    setattr(mha, f"b_{letter}", bias)
            if _flag(qk_norm, "qk_norm"):
                eps = options.get("eps", 1e-5)
                mha.q_norm = RMSNorm(mha.head_dim, eps=eps, dtype=dtype)
                mha.k_norm = RMSNorm(mha.head_dim, eps=eps, dtype=dtype)
        self.words = _table(rng, vocab_size, "vocab_size", embed_dim, dtype)
        self.output: Array | None = None
        if _flag(tied, "tied"):
            self.words = np.ascontiguousarray(self.words.T).T
        else:
            self.output = _table(rng, embed_dim, "embed_dim", vocab_size, dtype)
        self.places: Array | None = None
        if max_length is not None:
            self.places = _table(rng, max_length, "max_length", embed_dim, dtype)
        self.rotary, self.window = rotary, window

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        *,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> CausalDecoder:
        """Return a model of the sizes of a configuration.

        Parameters
        ----------
        config : mapping
            With the keys of the Hugging Face configuration; its ``model_type`` is
            "gpt2", "llama", "mistral", "qwen2" or "qwen3".
        dtype, rng
            As in `attnpy.blocks.DecoderLayer`.

        Returns
        -------
        CausalDecoder

        Raises
        ------
        ValueError
            If a key is missing, or asks for what this model does not have.

        Notes
        -----
        A ``sliding_window`` of W lets a token see W tokens, with itself. It must be
        that of all layers.
        """
        if config.get("model_type") == "gpt2":
            return _gpt2(cls, config, dtype=dtype, rng=rng)
        return _llama(cls, config, dtype=dtype, rng=rng)

    @classmethod
    def from_pretrained(
        cls, folder: str | os.PathLike[str], *, dtype: DTypeLike = np.float32
    ) -> CausalDecoder:
        """Read a model from a folder.

        Parameters
        ----------
        folder : str or path
            With ``config.json``, and ``model.safetensors`` or the index of several.
        dtype : dtype, optional
            Of the model, to which the weights are converted.

        Returns
        -------
        CausalDecoder

        Raises
        ------
        ImportError
            If the safetensors package is not installed.
        FileNotFoundError
            If a file is not there.
        ValueError
            If the configuration is of another kind, or weights are missing, unexpected
            or of wrong shapes.
        """
        config = checkpoints.read_config(folder)
        model = cls.from_config(config, dtype=dtype, rng=_Zeros())
        family = "gpt2" if config["model_type"] == "gpt2" else "llama"
        checkpoints.load(model, checkpoints.read(folder), family)
        return model

    def __call__(
        self,
        token_ids: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        caches: Sequence[KVCache] | None = None,
        num_threads: int | None = None,
    ) -> Array:
        """Return the tokens' vectors after the last layer.

        Parameters
        ----------
        token_ids : array_like of int, shape (L,) or (B, L)
            0 to ``V - 1``; with `caches` those that are new.
        lengths : int or array_like of int, shape (B,), optional
            How many of the tokens exist, at the start of each sequence. The others are
            padding, and their own vectors mean nothing.
        caches : list of KVCache, optional
            From ``decoder.new_caches``; the tokens are appended. A sequence gives the
            same bits in one call, in chunks, and token by token.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`.

        Returns
        -------
        ndarray, shape (L, E) or (B, L, E)

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape, or is out of its range.
            The caches have not changed after an error.
        """
        ids = _token_ids(token_ids, len(self.words))
        tokens = np.ascontiguousarray(self.words[ids])
        if self.places is not None:
            tokens += self.places[self._positions(ids, caches)]
        return self.decoder(
            tokens,
            caches=caches,
            kv_lengths=lengths,
            rotary=self.rotary,
            window=self.window,
            num_threads=num_threads,
        )

    def logits(self, states: ArrayLike, *, num_threads: int | None = None) -> Array:
        """Return the scores of all tokens to be the next.

        Parameters
        ----------
        states : array_like, shape (..., E)
            Vectors from a call.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`.

        Returns
        -------
        ndarray, shape (..., V)
        """
        weight = self.words.T if self.output is None else self.output
        return linear(states, weight, num_threads=num_threads)

    def generate(
        self,
        token_ids: ArrayLike,
        n_tokens: int,
        *,
        lengths: ArrayLike | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        rng: np.random.Generator | None = None,
        stop: int | None = None,
        num_threads: int | None = None,
    ) -> NDArray[np.int64]:
        """Continue sequences, with their keys and values kept from token to token.

        Parameters
        ----------
        token_ids : array_like of int, shape (L,) or (B, L)
            What to continue; at least one token.
        n_tokens : int
            How many tokens to add.
        lengths : int or array_like of int, shape (B,), optional
            How many of the tokens of each sequence exist, at its start: at least 1.
        temperature, top_k, top_p, rng
            As in `sample`; by default always the token with the highest score.
        stop : int, optional
            A token after which a sequence has ended: the rest of it is `stop` as well.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`.

        Returns
        -------
        ndarray of int64, shape (n_tokens,) or (B, n_tokens)
            The new tokens.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong kind, dtype or shape, or is out of its range.
        """
        ids = _token_ids(token_ids, len(self.words))
        n_tokens = _parameters.count(n_tokens, "n_tokens")
        batch = np.atleast_2d(ids)  # (B, L)
        ends = _lengths(batch.shape[1] if lengths is None else lengths, batch, 1)
        if self.places is not None:
            _check_length(int(ends.max(initial=0)) + n_tokens - 1, self.places)
        caches = self.decoder.new_caches(len(batch), batch.shape[1] + n_tokens - 1)
        states = self(
            batch,
            lengths=None if lengths is None else ends,
            caches=caches,
            num_threads=num_threads,
        )
        last = states[np.arange(len(batch)), ends - 1]  # (B, E)
        new = np.zeros((len(batch), n_tokens), np.int64)
        ended = np.zeros(len(batch), bool)
        for i in range(n_tokens):
            new[:, i] = sample(
                self.logits(last, num_threads=num_threads),
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                rng=rng,
            )
            if stop is not None:
                new[ended, i] = stop
                ended |= new[:, i] == stop
                if ended.all():
                    new[:, i:] = stop
                    break
            if i + 1 < n_tokens:
                column = new[:, i : i + 1]
                last = self(column, caches=caches, num_threads=num_threads)[:, 0]
        return new if ids.ndim == 2 else new[0]

    def _positions(
        self, ids: NDArray[np.int64], caches: Sequence[KVCache] | None
    ) -> NDArray[np.int64]:
        """Return the tokens' positions, (L,) or (B, L)."""
        assert self.places is not None
        places = np.arange(ids.shape[-1])
        if caches is not None:
            n_layers = len(self.decoder.layers)
            first = _cache_list(caches, "caches", n_layers)[0].lengths
            if len(first) != len(np.atleast_2d(ids)):
                raise ValueError(
                    f"caches: expected B = {len(np.atleast_2d(ids))} as token_ids, "
                    f"got {len(first)}"
                )
            places = (first[:, np.newaxis] + places).reshape(ids.shape)
        _check_length(int(places.max(initial=-1)) + 1, self.places)
        return places


def sample(
    logits: ArrayLike,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    rng: np.random.Generator | None = None,
) -> NDArray[np.int64]:
    """Draw a token from each row of scores.

    Parameters
    ----------
    logits : array_like, shape (..., V)
        Logarithms of the probabilities, up to a constant for each row.
    temperature : float, optional
        The scores are divided by it. 0 takes the highest score, the first of equal
        ones, and draws nothing.
    top_k : int, optional
        Draw from so many tokens with the highest scores.
    top_p : float, optional
        Draw from the fewest tokens that together have at least this probability, those
        with the highest scores (after `top_k`); above 0, at most 1.
    rng : numpy.random.Generator, optional
        Gives one number for each row; needed where temperature is not 0.

    Returns
    -------
    ndarray of int64, shape (...)

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range.

    Notes
    -----
    The fewest tokens with a probability are from Holtzman et al., "The Curious Case of
    Neural Text Degeneration" (2020). Probabilities are computed in float64.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.models import sample
    >>> logits = np.log([[0.5, 0.3, 0.15, 0.05]] * 1000)
    >>> sample(logits[0], temperature=0)
    array(0)
    >>> tokens = sample(logits, top_p=0.9, rng=np.random.default_rng(0))
    >>> np.unique(tokens)
    array([0, 1, 2])
    """
    scores = np.asarray(logits).astype(np.float64)  # (..., V)
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise ValueError(f"logits: expected (..., V) with V >= 1, got {scores.shape}")
    if temperature != 0:
        temperature = _above(temperature, "temperature", 0)
    n_kept = scores.shape[-1] if top_k is None else _parameters.count(top_k, "top_k")
    share = 1.0 if top_p is None else _above(top_p, "top_p", 0)
    if share > 1:
        raise ValueError(f"top_p: expected at most 1, got {top_p}")
    if temperature == 0:
        return np.asarray(scores.argmax(axis=-1), np.int64)
    if rng is None:
        raise ValueError(
            "rng: expected a numpy.random.Generator where temperature is not 0, "
            "got None"
        )
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :n_kept]
    scores = np.take_along_axis(scores, order, axis=-1)
    terms = np.exp((scores - scores[..., :1]) / temperature)
    before = np.cumsum(terms, axis=-1) - terms
    terms[before >= share * terms.sum(axis=-1, keepdims=True)] = 0
    totals = np.cumsum(terms, axis=-1)
    draws = _parameters.generator(rng).random(scores.shape[:-1])[..., np.newaxis]
    ranks = np.sum(totals <= draws * totals[..., -1:], axis=-1, keepdims=True)
    # Rounding may bring a draw up to the total.
    ranks = np.minimum(ranks, np.count_nonzero(terms, axis=-1, keepdims=True) - 1)
    return np.take_along_axis(order, ranks, axis=-1)[..., 0]


def _packed_layer(
    layer: EncoderLayer,
    tokens: Array,
    exists: NDArray[np.bool_],
    lengths: NDArray[np.int64],
    num_threads: int | None,
) -> Array:
    """Run a layer that normalizes sums on the tokens that exist, (N, E).

    The same numbers as with padding, without the work: only attention itself sees the
    sequences side by side. `exists`: (B, L), where the N tokens stand.
    """
    mha = layer.self_attention

    def heads(weight: Array, bias: Array | None, n_heads: int) -> Array:
        rows = linear(tokens, weight, bias, num_threads=num_threads)  # (N, H * D)
        padded = np.zeros((*exists.shape, rows.shape[1]), rows.dtype)
        padded[exists] = rows
        size = rows.shape[1] // n_heads
        return padded.reshape(*exists.shape, n_heads, size).swapaxes(1, 2)

    attended = attention(
        heads(mha.W_q, mha.b_q, mha.num_heads),
        heads(mha.W_k, mha.b_k, mha.num_kv_heads),
        heads(mha.W_v, mha.b_v, mha.num_kv_heads),
        kv_lengths=lengths,
        num_threads=num_threads,
    )
    joined = attended.swapaxes(1, 2)[exists]  # (N, H, Dv)
    joined = joined.reshape(len(tokens), len(mha.W_o))
    output = linear(joined, mha.W_o, mha.b_o, num_threads=num_threads)
    tokens = layer.norm_1(output, tokens)
    return layer.norm_2(layer.feed_forward(tokens, num_threads=num_threads), tokens)


class _Zeros(np.random.Generator):
    """First values for weights that are about to be read."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def uniform(self, low: Any = 0, high: Any = 1, size: Any = None) -> Any:
        return np.zeros(size)

    def standard_normal(self, size: Any = None) -> Any:  # type: ignore[override]
        return np.zeros(size)


def _gpt2(
    cls: type[CausalDecoder], config: Mapping[str, Any], **more: Any
) -> CausalDecoder:
    _check(config, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    _check(config, add_cross_attention=False)
    n_layers, dim, n_heads, vocab_size, max_length = _sizes(
        config, "n_layer", "n_embd", "n_head", "vocab_size", "n_positions"
    )
    return cls(
        n_layers,
        dim,
        n_heads,
        config.get("n_inner") or 4 * dim,
        vocab_size=vocab_size,
        max_length=max_length,
        tied=config.get("tie_word_embeddings", True),
        activation=_activation(config.get("activation_function", "gelu_new")),
        eps=config.get("layer_norm_epsilon", 1e-5),
        **more,
    )


def _llama(
    cls: type[CausalDecoder], config: Mapping[str, Any], **more: Any
) -> CausalDecoder:
    kind = config.get("model_type")
    if kind not in ("llama", "mistral", "qwen2", "qwen3"):
        raise ValueError(
            "config['model_type']: expected gpt2, llama, mistral, qwen2 or qwen3, "
            f"got {kind!r}"
        )
    _check(config, hidden_act="silu", attention_bias=False, mlp_bias=False)
    n_layers, dim, n_heads, hidden_dim, vocab_size = _sizes(
        config,
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
    )
    head_dim = config.get("head_dim") or dim // n_heads
    return cls(
        n_layers,
        dim,
        n_heads,
        hidden_dim,
        vocab_size=vocab_size,
        rotary=_rotary(config, head_dim),
        window=_window(config, n_layers),
        tied=config.get("tie_word_embeddings", False),
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        head_dim=head_dim,
        num_kv_heads=config.get("num_key_value_heads"),
        norm="rms",
        eps=config.get("rms_norm_eps", 1e-6),
        activation="swiglu",
        bias=False,
        **more,
    )


def _rotary(config: Mapping[str, Any], head_dim: int) -> Rotary:
    """Return the positions; older configurations have the base beside the scaling."""
    scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = scaling.pop("rope_theta", config.get("rope_theta", 10000.0))
    if scaling.get("rope_type", scaling.get("type")) == "yarn":
        longest = config.get("max_position_embeddings")
        scaling.setdefault("original_max_position_embeddings", longest)
    return Rotary(head_dim, base=base, scaling=scaling or None)


def _window(config: Mapping[str, Any], n_layers: int) -> Window | None:
    """Return the window of all layers, None where they see everything."""
    kinds = ["full_attention"]
    if config["model_type"] == "mistral":
        kinds = ["sliding_attention"]
    elif config["model_type"] != "llama" and config.get("use_sliding_window"):
        kinds = config.get("layer_types") or [
            "sliding_attention" if i >= config["max_window_layers"] else kinds[0]
            for i in range(n_layers)
        ]
    if len(set(kinds)) > 1:
        raise ValueError(
            "config['sliding_window']: expected the same window for all layers, "
            f"got {', '.join(kinds)}"
        )
    size = config.get("sliding_window")
    if size is None or kinds[0] == "full_attention":
        return None
    return size - 1, 0


def _sizes(config: Mapping[str, Any], *keys: str) -> list[int]:
    """Return the values of keys that must be there."""
    if missing := [key for key in keys if key not in config]:
        raise ValueError(
            f"config: expected {', '.join(keys)}, missing {', '.join(missing)}"
        )
    return [config[key] for key in keys]


def _check(config: Mapping[str, Any], **expected: object) -> None:
    """Raise an error for keys that ask for another arithmetic."""
    for key, value in expected.items():
        if config.get(key, value) not in (value, None):
            raise ValueError(
                f"config[{key!r}]: expected {value!r}, got {config[key]!r}"
            )


def _activation(name: str) -> Activation:
    if name not in ACTIVATIONS:
        raise ValueError(
            f"config: expected an activation of {', '.join(ACTIVATIONS)}, got {name!r}"
        )
    return ACTIVATIONS[name]


def _table(
    rng: np.random.Generator, n_rows: int, name: str, dim: int, dtype: DTypeLike
) -> Array:
    """Return a table of embeddings, (n_rows, dim)."""
    shape = _parameters.count(n_rows, name), _parameters.count(dim, "embed_dim")
    return _rounded(0.02 * rng.standard_normal(shape), _floating(dtype))


def _token_ids(token_ids: ArrayLike, vocab_size: int) -> NDArray[np.int64]:
    ids = _integers(token_ids, "token_ids", 0, vocab_size - 1)
    if ids.ndim not in (1, 2):
        raise ValueError(f"token_ids: expected (L,) or (B, L), got {ids.shape}")
    return ids


def _lengths(lengths: ArrayLike, ids: NDArray[np.int64], low: int) -> NDArray[np.int64]:
    """Return how many tokens each sequence of ids (B, L) has, (B,)."""
    batch, n_tokens = ids.shape
    ends = _integers(lengths, "lengths", low, n_tokens)
    if ends.shape not in ((), (batch,)):
        raise ValueError(
            f"lengths: expected an integer, or ({batch},) to match token_ids, "
            f"got {ends.shape}"
        )
    return np.broadcast_to(ends, batch)


def _check_length(n_tokens: int, places: Array) -> None:
    if n_tokens > len(places):
        raise ValueError(
            f"token_ids: expected at most max_length = {len(places)} tokens in a "
            f"sequence, with those before and after, got {n_tokens}"
        )
