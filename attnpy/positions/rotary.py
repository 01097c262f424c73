"""Ways to tell attention the order of its tokens.

Added to the embeddings: `sinusoidal`, `Learned`. Turning queries and keys: `Rotary`.
Added to the scores, as attention's `bias`: `alibi_bias`, `relative_bias`.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _attnpy, _checks, _dtypes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from attnpy._typing import Array

# The size of the largest tables that are kept for later calls, 4 of them.
KEPT_ANGLES = 1 << 18

# The keys of a model's configuration: what each kind of scaling needs and may have.
SCALINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "llama3": (
        (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        ),
        (),
    ),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        (
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ),
    ),
}


def query_positions(
    n_queries: int, n_keys: int, *, q_offset: ArrayLike | None = None
) -> NDArray[np.int64]:
    """Return the absolute positions of the queries, as `attention` counts them.

    Parameters
    ----------
    n_queries : int
        `Lq`.
    n_keys : int
        `Lk`: key j stands at position j.
    q_offset : int or array_like of int, shape (...), optional
        The position of query 0, -2**53 to 2**53. By default ``Lk - Lq``: the last query
        stands where the last key does.

    Returns
    -------
    ndarray of int64, shape (Lq,) or (..., 1, Lq)
        ``q_offset + i`` for query i. Where `q_offset` is an array there is an axis for
        the heads.

    Raises
    ------
    TypeError, ValueError
        If a number is not an integer, or out of its range.

    Examples
    --------
    >>> from attnpy import positions
    >>> positions.query_positions(2, 5)
    array([3, 4])
    >>> positions.query_positions(2, 5, q_offset=[3, 0])[:, 0]
    array([[3, 4],
           [0, 1]])
    """
    n_queries = _checks.size(n_queries, "n_queries")
    n_keys = _checks.size(n_keys, "n_keys")
    if q_offset is None:
        q_offset = n_keys - n_queries
    first = _checks.integers(q_offset, "q_offset")
    if first.ndim:
        first = first[..., np.newaxis, np.newaxis]
    return first + np.arange(n_queries)


def sinusoidal(
    length: int,
    dim: int,
    *,
    base: float = 10000.0,
    offset: int = 0,
    dtype: DTypeLike = np.float32,
) -> Array:
    r"""Return the sinusoidal encodings of consecutive positions.

    Parameters
    ----------
    length : int
        The number of positions, `L`.
    dim : int
        The size of an encoding, that of the embeddings that it is added to. With an odd
        size the last column is a sine without its cosine.
    base : float, optional
        Wavelengths go from 2 pi to almost ``2 pi * base``.
    offset : int, optional
        The first position.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.

    Returns
    -------
    ndarray, shape (L, dim)
        Computed in float64 and rounded once.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.

    Notes
    -----
    .. math::

        PE_{(pos, 2i)} = \sin(pos / base^{2i/dim}), \quad
        PE_{(pos, 2i+1)} = \cos(pos / base^{2i/dim})

    from Vaswani et al., "Attention Is All You Need" (2017), section 3.5, as in
    "Lecture 10: Attention Mechanisms and Transformers" by Martins, Melo and Figueiredo.
    Some code keeps all the sines before all the cosines; here they alternate, as in the
    formula.

    Examples
    --------
    >>> from attnpy import positions
    >>> positions.sinusoidal(3, 4).round(4)
    array([[ 0.    ,  1.    ,  0.    ,  1.    ],
           [ 0.8415,  0.5403,  0.01  ,  1.    ],
           [ 0.9093, -0.4161,  0.02  ,  0.9998]], dtype=float32)
    """
    length, dim = _checks.size(length, "length"), _checks.size(dim, "dim")
    first = _checks.integers(offset, "offset")
    if first.ndim:
        raise TypeError(f"offset: expected an integer, got {type(offset).__name__}")
    places = first + np.arange(length)
    halves = np.arange(0, dim, 2) / max(1, dim)
    angles = places[:, np.newaxis] / _checks.above(base, "base", 0) ** halves
    encodings = np.empty((length, dim))
    encodings[:, 0::2] = np.sin(angles)
    encodings[:, 1::2] = np.cos(angles[:, : dim // 2])
    return _dtypes.rounded(encodings, _dtypes.floating(dtype))


class Learned:
    """A table with one vector for each position, to be learned or loaded.

    Parameters
    ----------
    max_length : int
        The number of positions.
    dim : int
        The size of a vector, that of the embeddings that it is added to.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.
    rng : numpy.random.Generator, optional
        Where the table's first values come from; by default
        ``numpy.random.default_rng()``, other values in every run.

    Attributes
    ----------
    weight : ndarray, shape (max_length, dim)
        Normal numbers with standard deviation 0.02 at first. Assign a trained table to
        it, of any length and size.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.

    Notes
    -----
    Learned positions are those of Gehring et al., "Convolutional Sequence to Sequence
    Learning" (2017); the deviation is that of BERT (Devlin et al., 2019) and GPT-2.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy import positions
    >>> learned = positions.Learned(512, 64, rng=np.random.default_rng(0))
    >>> learned(10).shape  # positions 0 to 9
    (10, 64)
    >>> bool((learned([3, 4]) == learned.weight[3:5]).all())
    True
    """

    def __init__(
        self,
        max_length: int,
        dim: int,
        *,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        shape = _checks.size(max_length, "max_length"), _checks.size(dim, "dim")
        numbers = 0.02 * _checks.generator(rng).standard_normal(shape)
        self.weight: Array = _dtypes.rounded(numbers, _dtypes.floating(dtype))

    def __call__(self, positions: ArrayLike) -> Array:
        """Return the rows of these positions.

        Parameters
        ----------
        positions : int or array_like of int, shape (...)
            An int is a length: the positions 0 to ``positions - 1``.

        Returns
        -------
        ndarray, shape (positions, dim) or (..., dim)
            A copy, in the dtype of `weight`.

        Raises
        ------
        TypeError
            If `positions` are not integers.
        ValueError
            If a position is negative or not in the table.
        """
        max_length = len(self.weight)
        if np.ndim(positions) == 0:
            length = _checks.integers(positions, "positions", 0, max_length)
            positions = np.arange(int(length))
        return self.weight[_checks.integers(positions, "positions", 0, max_length - 1)]


class Rotary:
    r"""Rotary position embeddings: turn pairs of a vector's numbers by the position.

    The dot product of a turned query and a turned key depends on the difference of
    their positions only.

    Parameters
    ----------
    head_dim : int
        `D`, the size of a query or key.
    base : float, optional
        More than 1; a model's ``rope_theta``.
    interleaved : bool, optional
        How numbers are paired. False: i with ``i + rotary_dim / 2``, as Llama, Mistral,
        Qwen and GPT-NeoX do in the Hugging Face layout. True: 2i with ``2i + 1``, as
        RoFormer, GPT-J and Meta's own Llama files do.
    rotary_dim : int, optional
        Turn only so many numbers, the first; even, by default all. GPT-J, GPT-NeoX and
        Phi do so.
    scaling : mapping, optional
        A model's ``rope_scaling`` or ``rope_parameters``, with the keys of the Hugging
        Face configuration. ``rope_type`` (or ``type``) is

        - ``"default"``: no scaling;
        - ``"linear"``, with ``factor``;
        - ``"llama3"``, with ``factor``, ``low_freq_factor``, ``high_freq_factor``,
          ``original_max_position_embeddings``;
        - ``"yarn"``, with ``factor``, ``original_max_position_embeddings`` and, where
          wanted, ``attention_factor``, ``beta_fast`` (32), ``beta_slow`` (1),
          ``mscale`` and ``mscale_all_dim``, ``truncate`` (True).

        ``rope_theta`` and ``partial_rotary_factor`` may be there too, and must agree
        with `base` and `rotary_dim`. An unknown key is an error.

    Attributes
    ----------
    head_dim, rotary_dim : int
        As given.
    interleaved : bool
        As given.
    frequencies : ndarray of float64, shape (rotary_dim / 2,)
        The angle by which each pair turns from one position to the next, in radians.
    attention_factor : float
        What the tables are multiplied by: 1, but for ``"yarn"``. The scores grow by its
        square.

    Raises
    ------
    TypeError
        If an argument has the wrong kind.
    ValueError
        If a number is out of its range, or `scaling` is not one of the above.

    Notes
    -----
    Pair i at position p is turned by the angle :math:`p\,\theta_i`, with
    :math:`\theta_i = base^{-2i / rotary\_dim}`:

    .. math::

        x_1' = x_1 \cos p\theta_i - x_2 \sin p\theta_i, \quad
        x_2' = x_2 \cos p\theta_i + x_1 \sin p\theta_i

    from Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding"
    (2021), section 3.2.

    ``"linear"`` divides all frequencies by the factor (Chen et al., "Extending Context
    Window of Large Language Models via Positional Interpolation", 2023). ``"llama3"``
    leaves wavelengths below ``original / high_freq_factor`` alone, divides the
    frequencies of those above ``original / low_freq_factor``, and between the two
    blends linearly in ``original / wavelength`` (Llama 3.1). ``"yarn"`` blends
    linearly in i, between the pairs that turn ``beta_fast`` and ``beta_slow`` times
    over the original length, as the code of Peng et al., "YaRN: Efficient Context
    Window Extension of Large Language Models" (2023) and the models do; its attention
    factor is by default ``0.1 * ln(factor) + 1``.

    ``"dynamic"`` is refused: its frequencies change as a sequence grows, so that keys
    turned before no longer fit. For a known length L compute its base,
    ``base * (factor * L / original - factor + 1) ** (D / (D - 2))``, and pass that.

    Frameworks that compute angles in float32 differ from these, by about 1e-7 times the
    position.

    Examples
    --------
    >>> import numpy as np
    >>> import attnpy
    >>> from attnpy import positions
    >>> rotary = positions.Rotary(64, base=500000.0)
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 8, 100, 64))  # (H, L, D)
    >>> output = attnpy.attention(rotary(query), rotary(key), value, causal=True)

    Only differences of positions matter:

    >>> moved = attnpy.attention(
    ...     rotary(query, 1000), rotary(key, 1000), value, causal=True
    ... )
    >>> np.allclose(output, moved)
    True

    One more query, after 99 keys of a cache:

    >>> last = attnpy.attention(rotary(query[:, 99:], 99), rotary(key), value)
    >>> np.allclose(last, output[:, 99:])
    True
    """

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        interleaved: bool = False,
        rotary_dim: int | None = None,
        scaling: Mapping[str, Any] | None = None,
    ) -> None:
        self.head_dim = _checks.size(head_dim, "head_dim")
        name = "head_dim" if rotary_dim is None else "rotary_dim"
        self.rotary_dim = self.head_dim
        if rotary_dim is not None:
            self.rotary_dim = _checks.size(rotary_dim, "rotary_dim")
        if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise ValueError(
                f"{name}: expected an even number of at most head_dim = "
                f"{self.head_dim}, got {self.rotary_dim}"
            )
        self.interleaved = _checks.flag(interleaved, "interleaved")
        base = _checks.above(base, "base", 1)
        exponents = np.arange(0, self.rotary_dim, 2) / max(1, self.rotary_dim)
        self.frequencies: NDArray[np.float64] = 1 / base**exponents
        self.attention_factor = 1.0
        kind, options = _parse_scaling(scaling, base, self.rotary_dim, self.head_dim)
        if kind == "linear":
            self.frequencies = self.frequencies / options["factor"]
        elif kind == "llama3":
            self.frequencies = _llama3(self.frequencies, **options)
        elif kind == "yarn":
            self.frequencies = _yarn(self.frequencies, base, **options)
            self.attention_factor = _yarn_attention_factor(**options)
        self.frequencies.flags.writeable = False

    def tables(
        self, positions: ArrayLike, dtype: DTypeLike = np.float32
    ) -> tuple[Array, Array]:
        """Return the cosines and sines of the angles at these positions.

        Parameters
        ----------
        positions : array_like of int, shape (..., L)
            -2**53 to 2**53.
        dtype : dtype, optional
            float64, float32, float16 or bfloat16.

        Returns
        -------
        cos, sin : ndarray, shape (..., L, rotary_dim / 2)
            Times `attention_factor`; computed in float64 and rounded once.

        Raises
        ------
        TypeError
            If `positions` are not integers, or `dtype` is another one.
        ValueError
            If a position is out of its range.
        """
        places = _checks.integers(positions, "positions")
        return _tables(
            places, self.frequencies, self.attention_factor, _dtypes.floating(dtype)
        )

    def __call__(
        self, x: ArrayLike, positions: ArrayLike | None = None, out: Array | None = None
    ) -> Array:
        """Turn queries or keys.

        Parameters
        ----------
        x : array_like, shape (..., L, D)
            Queries or keys with any axes before. One axis is a single vector.
        positions : int or array_like of int, optional
            An int is the position of the first row; the others follow it. An array
            broadcasts to ``x.shape[:-1]``: ``(L,)``, or ``(B, 1, L)`` for x of shape
            ``(B, H, L, D)``. By default the rows stand at 0 to ``L - 1``.
        out : ndarray, shape (..., L, D), optional
            Where to write, in the dtype of the result, with any strides. It may be x.

        Returns
        -------
        ndarray, shape (..., L, D)
            In x's dtype (float64 for integers). It is `out` where that is given.

        Raises
        ------
        TypeError
            If a dtype is not one of `attention`, or `positions` are not integers.
        ValueError
            If shapes do not fit together, or a position is out of its range.

        Notes
        -----
        16-bit numbers are computed in float32 and rounded once. A row's bits depend on
        the row and its position only.
        """
        x = np.asarray(x)
        if x.ndim == 0 or x.shape[-1] != self.head_dim:
            raise ValueError(f"x: expected (..., L, {self.head_dim}), got {x.shape}")
        dtype = _dtypes.operand(x, "x")
        places = _checks.integers(0 if positions is None else positions, "positions")
        if places.ndim == 0 and x.ndim > 1:
            places = places + np.arange(x.shape[-2])
        if not _checks.broadcasts(places.shape, x.shape[:-1]):
            raise ValueError(
                "positions: expected an integer, or integers that broadcast to "
                f"{x.shape[:-1]}, x's axes before the last, got shape {places.shape}"
            )
        if out is None:
            out = np.empty(x.shape, dtype)
        _checks.check_out(out, x.shape, dtype)

        turns = self._turns(places, _dtypes.arithmetic(dtype))
        _attnpy.rotate(x, turns, self.interleaved, out)
        return out

    def _turns(
        self, places: ArrayLike, dtype: np.dtype[Any], n_rows: int | None = None
    ) -> Array:
        """Return the tables side by side, (..., L, rotary_dim): cosines, then sines.

        With `n_rows`, `places` are those of the first of so many rows, `q_offset` of
        `query_positions`. Read-only, for the tables of the last calls are kept.
        """
        array = np.asarray(places)
        if array.dtype.kind not in "iu":
            array = _checks.integers(places, "q_offset")
        frequencies = np.asarray(self.frequencies, np.float64)
        n_angles = array.size * (1 if n_rows is None else n_rows) * frequencies.size
        make = _turns if n_angles <= KEPT_ANGLES else _turns.__wrapped__
        return make(
            array.tobytes(),
            array.dtype,
            array.shape,
            n_rows,
            frequencies.tobytes(),
            self.attention_factor,
            dtype,
        )


def _tables(
    places: NDArray[np.int64],
    frequencies: NDArray[np.float64],
    attention_factor: float,
    dtype: np.dtype[Any],
) -> tuple[Array, Array]:
    angles = places[..., np.newaxis] * frequencies  # (..., L, rotary_dim / 2)
    return (
        _dtypes.rounded(attention_factor * np.cos(angles), dtype),
        _dtypes.rounded(attention_factor * np.sin(angles), dtype),
    )


@functools.lru_cache(maxsize=4)
def _turns(
    places: bytes,
    kind: np.dtype[Any],
    shape: tuple[int, ...],
    n_rows: int | None,
    frequencies: bytes,
    attention_factor: float,
    dtype: np.dtype[Any],
) -> Array:
    """See `Rotary._turns`. Everything that the result depends on is an argument."""
    array = np.frombuffer(places, kind).reshape(shape)
    if n_rows is not None:
        array = query_positions(n_rows, n_rows, q_offset=array)
    tables = _tables(
        _checks.integers(array, "positions"),
        np.frombuffer(frequencies),
        attention_factor,
        dtype,
    )
    turns = np.concatenate(tables, axis=-1)
    turns.flags.writeable = False
    return turns


def alibi_slopes(num_heads: int, dtype: DTypeLike = np.float32) -> Array:
    r"""Return the slopes of attention with linear biases (ALiBi).

    Parameters
    ----------
    num_heads : int
        `H`.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.

    Returns
    -------
    ndarray, shape (H,)
        Positive. For a power of two they fall, from :math:`2^{-8/H}` to
        :math:`2^{-8}`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is negative.

    Notes
    -----
    :math:`m_h = 2^{-8h/H}` for h = 1 to H, where H is a power of two, from Press et
    al., "Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation" (2022), section 3. For other numbers of heads the authors' code,
    which trained models follow, takes the slopes of the next smaller power of two P,
    and after them the first, third, fifth ... of those of 2P.

    Examples
    --------
    >>> from attnpy import positions
    >>> positions.alibi_slopes(4)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625], dtype=float32)
    >>> positions.alibi_slopes(6).round(4)
    array([0.25  , 0.0625, 0.0156, 0.0039, 0.5   , 0.125 ], dtype=float32)
    """
    num_heads = _checks.size(num_heads, "num_heads")
    power = 1 << max(0, num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    slopes += [2.0 ** (-4 * h / power) for h in range(1, 2 * (num_heads - power), 2)]
    return _dtypes.rounded(np.array(slopes[:num_heads]), _dtypes.floating(dtype))


def alibi_bias(
    num_heads: int,
    n_queries: int,
    n_keys: int,
    *,
    q_offset: ArrayLike | None = None,
    dtype: DTypeLike = np.float32,
) -> Array:
    r"""Return the biases of attention with linear biases (ALiBi).

    Parameters
    ----------
    num_heads, n_queries, n_keys : int
        `H`, `Lq`, `Lk`.
    q_offset : int or array_like of int, shape (...), optional
        The position of query 0, as in `attention`; by default ``Lk - Lq``.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.

    Returns
    -------
    ndarray, shape (H, Lq, Lk), or (..., H, Lq, Lk) where `q_offset` is an array
        For the argument `bias` of `attention`. Computed in float64 and rounded once.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.

    See Also
    --------
    alibi_slopes : the slopes, and where they come from.

    Notes
    -----
    The bias of the query at position p and key j in head h is

    .. math:: b_{hpj} = -m_h |p - j|

    It masks nothing. With ``causal=True`` in `attention` only keys with j <= p count,
    and it is the bias of the paper; without, keys after the query count by their
    distance too, as in FlashAttention and in encoders. Code that leaves p out
    (:math:`m_h j`) has the same weights with a causal mask, as a softmax does not
    change when a row's scores all move, and other ones without.

    Examples
    --------
    >>> from attnpy import positions
    >>> positions.alibi_bias(2, 2, 4)[0]
    array([[-0.125 , -0.0625,  0.    , -0.0625],
           [-0.1875, -0.125 , -0.0625,  0.    ]], dtype=float32)
    """
    slopes = alibi_slopes(num_heads, np.float64)
    places = query_positions(n_queries, n_keys, q_offset=q_offset)  # (..., 1, Lq)
    nearness = -np.abs(places[..., np.newaxis] - np.arange(n_keys))
    nearness = nearness.astype(np.float64)  # (..., 1, Lq, Lk)
    dtype = _dtypes.floating(dtype)
    lead = nearness.shape[:-3]
    bias = np.empty((*lead, len(slopes), n_queries, n_keys), dtype)
    for h, slope in enumerate(slopes):
        head = _dtypes.rounded(slope * nearness, dtype)
        bias[..., h, :, :] = head.reshape(*lead, n_queries, n_keys)
    return bias


def relative_buckets(
    n_queries: int,
    n_keys: int,
    *,
    num_buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
    q_offset: ArrayLike | None = None,
) -> NDArray[np.int64]:
    r"""Return the buckets into which T5 sorts the distances of queries and keys.

    Parameters
    ----------
    n_queries, n_keys : int
        `Lq` and `Lk`.
    num_buckets : int, optional
        At least 1; with `bidirectional` an even number.
    max_distance : int, optional
        From this distance on everything is in the last bucket. More than the number of
        distances that have a bucket of their own.
    bidirectional : bool, optional
        True, for encoders: keys after the query have the second half of the buckets.
        False, for decoders: they are all in bucket 0, that of the query's own
        position.
    q_offset : int or array_like of int, shape (...), optional
        The position of query 0, as in `attention`; by default ``Lk - Lq``.

    Returns
    -------
    ndarray of int64, shape (Lq, Lk), or (..., 1, Lq, Lk) where `q_offset` is an array
        0 to ``num_buckets - 1``.

    Raises
    ------
    TypeError, ValueError
        If a number is not an integer, or out of its range.

    See Also
    --------
    relative_bias : the biases of the buckets.

    Notes
    -----
    Of n buckets (half of `num_buckets` with `bidirectional`) the first
    :math:`e = \lfloor n/2 \rfloor` hold one distance each, and distance d from e on is
    in bucket

    .. math::

        \min\left(n - 1, \; e + \left\lfloor (n - e)
        \frac{\log(d / e)}{\log(max\_distance / e)} \right\rfloor\right)

    from Raffel et al., "Exploring the Limits of Transfer Learning with a Unified
    Text-to-Text Transformer" (2020), section 2.1, and its code. Where the buckets begin
    is found in integers, so that no rounding of the logarithms moves one.

    Examples
    --------
    >>> from attnpy import positions
    >>> positions.relative_buckets(3, 5, num_buckets=8, max_distance=4)
    array([[2, 1, 0, 5, 6],
           [3, 2, 1, 0, 5],
           [3, 3, 2, 1, 0]])
    """
    places = query_positions(n_queries, n_keys, q_offset=q_offset)  # (..., 1, Lq)
    n_buckets = _checks.size(num_buckets, "num_buckets")
    bidirectional = _checks.flag(bidirectional, "bidirectional")
    if n_buckets == 0 or (bidirectional and n_buckets % 2):
        even = "an even number of at least 2" if bidirectional else "at least 1"
        raise ValueError(f"num_buckets: expected {even}, got {n_buckets}")
    if bidirectional:
        n_buckets //= 2
    n_exact = n_buckets // 2
    n_log = n_buckets - n_exact
    max_distance = _checks.size(max_distance, "max_distance")
    if max_distance <= n_exact:
        raise ValueError(
            f"max_distance: expected more than {n_exact}, the number of distances "
            f"with a bucket of their own, got {max_distance}"
        )
    # Bucket n_exact + k begins where d / n_exact = (max_distance / n_exact)^(k / n_log)
    starts = [
        bisect.bisect_left(
            range(max_distance),
            max_distance**k * n_exact ** (n_log - k),
            key=lambda distance: distance**n_log,
        )
        for k in range(1, n_log)
    ]
    relative = np.arange(n_keys) - places[..., np.newaxis]  # (..., 1, Lq, Lk)
    distance = np.abs(relative) if bidirectional else np.maximum(-relative, 0)
    edges = [*range(1, n_exact + 1), *starts] if n_exact else starts
    buckets: NDArray[np.int64] = np.searchsorted(
        np.array(edges, np.int64), distance, side="right"
    ).astype(np.int64, copy=False)
    if bidirectional:
        buckets += n_buckets * (relative > 0)
    return buckets


def relative_bias(
    table: ArrayLike,
    n_queries: int,
    n_keys: int,
    *,
    max_distance: int = 128,
    bidirectional: bool = True,
    q_offset: ArrayLike | None = None,
) -> Array:
    """Return T5's relative position biases.

    Parameters
    ----------
    table : array_like of float, shape (num_buckets, H)
        A learned number for each bucket and head.
    n_queries, n_keys : int
        `Lq` and `Lk`.
    max_distance, bidirectional, q_offset
        As in `relative_buckets`.

    Returns
    -------
    ndarray, shape (H, Lq, Lk), or (..., H, Lq, Lk) where `q_offset` is an array
        For the argument `bias` of `attention`, in table's dtype (float64 for
        integers). T5 itself does not scale its scores: ``scale=1``.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, dtype or shape, or is out of its range.

    See Also
    --------
    relative_buckets : the buckets, and where they come from.

    Examples
    --------
    >>> import numpy as np
    >>> import attnpy
    >>> from attnpy import positions
    >>> rng = np.random.default_rng(0)
    >>> table = rng.standard_normal((32, 8))
    >>> bias = positions.relative_bias(table, 10, 10)
    >>> bias.shape
    (8, 10, 10)
    >>> query, key, value = rng.standard_normal((3, 8, 10, 64))
    >>> output = attnpy.attention(query, key, value, bias=bias, scale=1)
    """
    table = np.asarray(table)
    if table.ndim != 2:
        raise ValueError(f"table: expected (num_buckets, H), got {table.shape}")
    table = table.astype(_dtypes.operand(table, "table"), copy=False)
    buckets = relative_buckets(
        n_queries,
        n_keys,
        num_buckets=len(table),
        max_distance=max_distance,
        bidirectional=bidirectional,
        q_offset=q_offset,
    )
    if buckets.ndim > 2:
        buckets = buckets[..., 0, :, :]
    bias = np.take(table.T, buckets, axis=1)  # (H, ..., Lq, Lk)
    return np.moveaxis(bias, 0, -3)


def _parse_scaling(
    scaling: Mapping[str, Any] | None, base: float, rotary_dim: int, head_dim: int
) -> tuple[str, dict[str, Any]]:
    """Return the kind of scaling and those of its options that are given."""
    if scaling is None:
        return "default", {}
    if not isinstance(scaling, Mapping):
        raise TypeError(f"scaling: expected a mapping, got {type(scaling).__name__}")
    given = {key: value for key, value in scaling.items() if value is not None}
    kind = str(given.pop("rope_type", given.get("type")))
    if kind == "dynamic":
        raise ValueError(
            "scaling: expected a kind whose frequencies do not change as the sequence "
            "grows, got 'dynamic'; see the notes of Rotary"
        )
    if kind not in SCALINGS or given.pop("type", kind) != kind:
        raise ValueError(
            f"scaling: expected one 'rope_type' of {', '.join(SCALINGS)}, got {scaling}"
        )
    if (theta := given.pop("rope_theta", base)) != base:
        raise ValueError(f"scaling: expected 'rope_theta' = base = {base}, got {theta}")
    share = given.pop("partial_rotary_factor", None)
    if share is not None and int(head_dim * share) != rotary_dim:
        raise ValueError(
            "scaling: expected 'partial_rotary_factor' to agree with rotary_dim = "
            f"{rotary_dim}, got {share}"
        )
    required, optional = SCALINGS[kind]
    wrong = set(given) - {*required, *optional} or set(required) - set(given)
    if wrong:
        raise ValueError(
            f"scaling: expected {kind!r} with {', '.join(required) or 'nothing'}"
            f"{' and maybe ' if optional else ''}{', '.join(optional)}, got {scaling}"
        )
    for key in given.keys() - {"truncate"}:
        low = -math.inf if key.startswith("mscale") else 0
        given[key] = _checks.above(given[key], f"scaling[{key!r}]", low)
    return kind, given


def _llama3(
    frequencies: NDArray[np.float64],
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: float,
) -> NDArray[np.float64]:
    if high_freq_factor <= low_freq_factor:
        raise ValueError(
            "scaling['high_freq_factor']: expected more than low_freq_factor = "
            f"{low_freq_factor}, got {high_freq_factor}"
        )
    turns = original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
    return _blend(frequencies, np.clip(kept, 0, 1), factor)


def _yarn(
    frequencies: NDArray[np.float64],
    base: float,
    factor: float,
    original_max_position_embeddings: float,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    **_: float,
) -> NDArray[np.float64]:
    n = len(frequencies)
    # Pair i turns original / (2 pi base^(i / n)) times; solved for i.
    low, high = (
        n * math.log(original_max_position_embeddings / (2 * math.pi * turns), base)
        for turns in (beta_fast, beta_slow)
    )
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * n - 1)
    kept = 1 - (np.arange(n) - low) / max(high - low, 0.001)
    return _blend(frequencies, np.clip(kept, 0, 1), factor)


def _yarn_attention_factor(
    factor: float,
    attention_factor: float | None = None,
    mscale: float = 0,
    mscale_all_dim: float = 0,
    **_: float,
) -> float:
    if attention_factor is not None:
        return attention_factor
    growth = 0.1 * math.log(max(1.0, factor))
    if mscale and mscale_all_dim:
        return (mscale * growth + 1) / (mscale_all_dim * growth + 1)
    return growth + 1


def _blend(
    frequencies: NDArray[np.float64], kept: NDArray[np.float64], factor: float
) -> NDArray[np.float64]:
    """Divide the frequencies by the factor, but for these shares of them."""
    return (1 - kept) * frequencies / factor + kept * frequencies
