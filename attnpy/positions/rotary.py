"""Rotation of queries and keys by their positions, and scalings for long contexts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _attnpy, _checks, _dtypes, _keywords, _parameters, _pickles, _repr
from attnpy._quoting import quoted
from attnpy.positions.absolute import query_positions

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from attnpy._typing import Array

# The size of the largest tables that are kept for later calls, 4 of them.
KEPT_ANGLES = 1 << 18
ROWS = 64  # that are made when a single one is asked for

# The keys of a model's configuration: what each kind of scaling requires and allows.
SCALINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor", "original_max_position_embeddings"), ()),
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
    "longrope": (
        ("short_factor", "long_factor", "original_max_position_embeddings"),
        ("factor", "attention_factor"),
    ),
}


@_keywords.answering
class Rotary:
    r"""Rotary position embeddings: rotate pairs of a vector's numbers by the position.

    The dot product of a rotated query and a rotated key depends only on the difference
    of their positions.

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
        How many of the first numbers to rotate; even, by default all. GPT-J, GPT-NeoX
        and Phi rotate only some.
    scaling : mapping, optional
        A model's ``rope_scaling`` or ``rope_parameters``, with the keys of the Hugging
        Face configuration. ``rope_type`` (or ``type``) is

        - ``"default"``: no scaling;
        - ``"linear"``, with ``factor``;
        - ``"llama3"``, with ``factor``, ``low_freq_factor``, ``high_freq_factor``,
          ``original_max_position_embeddings``;
        - ``"yarn"``, with ``factor``, ``original_max_position_embeddings`` and,
          optionally, ``attention_factor``, ``beta_fast`` (32), ``beta_slow`` (1),
          ``mscale`` and ``mscale_all_dim``, ``truncate`` (True);
        - ``"dynamic"``, with ``factor``, ``original_max_position_embeddings``;
        - ``"longrope"``, with ``short_factor`` and ``long_factor``, lists of
          ``rotary_dim / 2`` numbers, ``original_max_position_embeddings``, and
          ``factor`` or ``attention_factor``.

        It may also contain ``rope_theta`` and ``partial_rotary_factor``, which must
        agree with `base` and `rotary_dim`. An unknown key is an error.

    Attributes
    ----------
    head_dim, rotary_dim : int
        As given.
    interleaved : bool
        As given.
    frequencies : ndarray of float64, shape (rotary_dim / 2,)
        The angle of each pair from one position to the next, in radians; with
        ``"dynamic"`` and ``"longrope"`` for sequences of at most the original length.
    attention_factor : float
        The factor of the tables: 1, except for ``"yarn"`` and ``"longrope"``. The
        scores grow by its square.

    Raises
    ------
    TypeError
        If an argument has the wrong kind.
    ValueError
        If a number is out of its range, or `scaling` is not one of the above.

    Notes
    -----
    Pair i at position p is rotated by the angle :math:`p\,\theta_i`, with
    :math:`\theta_i = base^{-2i / rotary\_dim}`:

    .. math::

        x_1' = x_1 \cos p\theta_i - x_2 \sin p\theta_i, \quad
        x_2' = x_2 \cos p\theta_i + x_1 \sin p\theta_i

    from Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding"
    (2021), section 3.2.

    ``"linear"`` divides all frequencies by the factor (Chen et al., "Extending Context
    Window of Large Language Models via Positional Interpolation", 2023). ``"llama3"``
    keeps wavelengths below ``original / high_freq_factor``, divides the frequencies of
    wavelengths above ``original / low_freq_factor``, and between the two blends
    linearly in ``original / wavelength`` (Llama 3.1). ``"yarn"`` blends linearly in i
    between the pairs that make ``beta_fast`` and ``beta_slow`` turns over the original
    length, as the code of Peng et al., "YaRN: Efficient Context Window Extension of
    Large Language Models" (2023) and the models do; its attention factor is by default
    ``0.1 * ln(factor) + 1``.

    The frequencies of ``"dynamic"`` and ``"longrope"`` depend on the length L of a
    sequence at the time of the call: here its largest position plus 1 (positions with
    several axes have a sequence in each row), in layers the number of its tokens after
    the call. Beyond the original length ``"dynamic"`` uses another base, ``base *
    (factor * L / original - factor + 1) ** (dim / (dim - 2))`` with ``dim =
    rotary_dim``, and ``"longrope"`` (Ding et al., "LongRoPE: Extending LLM Context
    Window Beyond 2 Million Tokens", 2024) divides by ``long_factor`` instead of
    ``short_factor``; its attention factor is by default ``sqrt(1 + ln(factor) /
    ln(original))`` at any length. A cache keeps keys as they were rotated when they
    were appended, as in Hugging Face's models: a sequence that grows beyond the
    original length has different bits in several calls than in one.

    Frameworks that compute angles in float32 differ by about 1e-7 times the position.

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

    head_dim: int
    rotary_dim: int
    interleaved: bool
    frequencies: NDArray[np.float64]
    attention_factor: float
    _base: float
    _scaling: str | None
    _beyond: Callable[[NDArray[np.int64]], NDArray[np.float64]] | None
    _original_length: float
    _changes_once: bool

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle or a copy, if it can rotate vectors."""
        _pickles.set_state(self, state)
        with _pickles.judged(self):
            self._check_sizes("rotary_dim")
            expected, found = (self.rotary_dim // 2,), np.shape(self.frequencies)
            if found != expected:
                raise ValueError(f"frequencies: expected shape {expected}, got {found}")

    def _shown(self) -> dict[str, Any]:
        part = self.rotary_dim if self.rotary_dim != self.head_dim else None
        return {
            "head_dim": self.head_dim,
            "base": self._base,
            "interleaved": self.interleaved,
            "rotary_dim": part,
            "scaling": self._scaling,
        }

    __repr__ = _repr.shows(_shown)

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
        self._check_sizes(name)
        _checks.memory(name, np.float64, (self.rotary_dim // 2,))
        self.interleaved = _checks.flag(interleaved, "interleaved")
        self._base = base = _checks.above(base, "base", 1)
        exponents = _exponents(self.rotary_dim)
        self.frequencies = 1 / base**exponents
        self.attention_factor = 1.0
        self._beyond = None
        self._original_length = 0.0
        self._changes_once = False
        kind, options = _parse_scaling(scaling, base, self.rotary_dim, self.head_dim)
        self._scaling = None if kind == "default" else kind
        with np.errstate(over="ignore"):
            self._scale(kind, options, exponents)
        if not np.isfinite(self.frequencies).all():
            raise ValueError(
                "scaling['factor']: expected one that leaves the frequencies finite, "
                f"got {options.get('factor')}"
            )
        self.frequencies.flags.writeable = False

    def _scale(
        self, kind: str, options: dict[str, Any], exponents: NDArray[np.float64]
    ) -> None:
        """Scale the frequencies, which are base ** -exponents so far."""
        if kind == "linear":
            self.frequencies = self.frequencies / options["factor"]
        elif kind == "llama3":
            self.frequencies = _llama3(self.frequencies, **options)
        elif kind == "yarn":
            self.frequencies = _yarn(self.frequencies, self._base, **options)
            self.attention_factor = _yarn_attention_factor(**options)
        elif kind == "dynamic":
            self._beyond = _dynamic(self._base, exponents, **options)
        elif kind == "longrope":
            self._beyond = _longrope(self.frequencies, **options)
            self.frequencies = self.frequencies / options["short_factor"]
            self.attention_factor = _longrope_attention_factor(**options)
            self._changes_once = True
        if self._beyond is not None:
            self._original_length = options["original_max_position_embeddings"]

    def _check_sizes(self, name: str) -> None:
        if self.rotary_dim % 2 or not 0 <= self.rotary_dim <= self.head_dim:
            limit = "" if name == "head_dim" else f" of at most {self.head_dim}"
            raise ValueError(
                f"{name}: expected an even number{limit}, got {self.rotary_dim}"
            )

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
            If `positions` are not integers, or `dtype` is not one of these.
        ValueError
            If a position is out of its range.
        MemoryError
            If memory cannot hold the result.
        """
        shape = _checks.array(positions, "positions").shape
        _checks.memory("positions", np.float64, (*shape, self.rotary_dim // 2))
        positions = _checks.integers(positions, "positions")
        frequencies = frequencies_for(self, _lengths(self, positions))
        return _tables(
            positions, frequencies, self.attention_factor, _dtypes.floating(dtype)
        )

    def __call__(
        self,
        x: ArrayLike,
        positions: ArrayLike | None = None,
        out: Array | None = None,
        *,
        num_threads: int | None = None,
    ) -> Array:
        """Rotate queries or keys.

        Parameters
        ----------
        x : array_like, shape (..., L, D)
            Queries or keys with any leading axes. One axis is a single vector.
        positions : int or array_like of int, optional
            An int is the position of the first row; the others follow it. An array
            broadcasts to ``x.shape[:-1]``: ``(L,)``, or ``(B, 1, L)`` for x of shape
            ``(B, H, L, D)``. By default the rows are at 0 to ``L - 1``.
        out : ndarray, shape (..., L, D), optional
            Array for the result, in its dtype, with any strides. It may be x.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (..., L, D)
            In x's dtype (float64 for integers); `out` itself if it is given.

        Raises
        ------
        TypeError
            If a dtype is not one of `attention`, or `positions` are not integers.
        ValueError
            If shapes do not fit together, or a position is out of its range.

        Notes
        -----
        16-bit numbers are computed in float32 and rounded once. A row's bits depend
        only on the row and its position, and on the length of its sequence if
        frequencies depend on that.
        """
        x = _checks.array(x, "x")
        positions = 0 if positions is None else positions
        positions = _checks.integers(positions, "positions")  # may run others' code
        if x.ndim == 0 or x.shape[-1] != self.head_dim:
            raise ValueError(f"x: expected (..., L, {self.head_dim}), got {x.shape}")
        if positions.ndim == 0 and x.ndim > 1:
            positions = positions + np.arange(x.shape[-2])
        if not _checks.broadcasts(positions.shape, x.shape[:-1]):
            raise ValueError(
                "positions: expected an integer, or integers that broadcast to "
                f"{x.shape[:-1]}, x's axes before the last, got shape {positions.shape}"
            )
        lengths = _lengths(self, positions)
        tables = cos_sin(self, positions, _dtypes.arithmetic(x.dtype), lengths=lengths)
        return _attnpy.rotate(x, tables, self.interleaved, out, num_threads)


def _exponents(rotary_dim: int) -> NDArray[np.float64]:
    return np.arange(0, rotary_dim, 2) / max(1, rotary_dim)


def usual(rotary: Rotary) -> NDArray[np.float64]:
    """Return the frequencies of the base, without a scaling."""
    frequencies: NDArray[np.float64] = 1 / rotary._base ** _exponents(rotary.rotary_dim)
    return frequencies


def cos_sin(
    rotary: Rotary,
    positions: ArrayLike,
    dtype: np.dtype[Any],
    n_rows: int | None = None,
    lengths: NDArray[np.int64] | None = None,
) -> Array:
    """Return the tables side by side, (..., L, rotary_dim): cosines, then sines.

    With `n_rows`, `positions` are those of the first of this many rows, `q_offset` of
    `query_positions`. If `by_length` is true, `lengths` are those of the sequences, and
    broadcast to the axes before the tables' last two. The result is read-only, because
    the tables of the last calls are kept.
    """
    array = _checks.array(positions, "q_offset")
    if array.dtype.kind not in "iu":
        array = _checks.integers(positions, "q_offset")
    frequencies = frequencies_for(rotary, lengths)
    if n_rows == 1 and array.size == 1 and 0 <= array.item() < 2**52:
        return _row(rotary, array, frequencies, dtype)
    n_angles = array.size * (1 if n_rows is None else n_rows) * frequencies.size
    make = _cos_sin if n_angles <= KEPT_ANGLES else _cos_sin.__wrapped__
    return make(
        array.tobytes(),
        array.dtype,
        array.shape,
        n_rows,
        frequencies.tobytes(),
        frequencies.shape,
        rotary.attention_factor,
        dtype,
    )


def _row(
    rotary: Rotary,
    position: NDArray[np.int64],
    frequencies: NDArray[np.float64],
    dtype: np.dtype[Any],
) -> Array:
    """Return the tables of one row, from those of several, as more will be needed."""
    number = position.item()
    start = np.int64(number // ROWS * ROWS)
    make = _cos_sin if ROWS * frequencies.size <= KEPT_ANGLES else _cos_sin.__wrapped__
    rows = make(
        start.tobytes(),
        start.dtype,
        (),
        ROWS,
        frequencies.tobytes(),
        frequencies.shape,
        rotary.attention_factor,
        dtype,
    )
    row: Array = rows[number % ROWS]
    shape = (*position.shape, 1, 1) if position.ndim else (1,)
    return row.reshape(*shape, len(row))


def by_length(rotary: Rotary) -> bool:
    """Tell whether the frequencies depend on the length of a sequence."""
    return rotary._beyond is not None


def changes_once(
    rotary: Rotary, before: NDArray[np.int64], after: NDArray[np.int64]
) -> bool:
    """Tell whether the frequencies change when a sequence grows to these lengths.

    False if they change with every length.
    """
    original = rotary._original_length
    grown = (before <= original) & (after > original)
    return rotary._changes_once and bool(grown.any())


def frequencies_for(
    rotary: Rotary, lengths: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """Return the frequencies for these lengths: (n,), or (..., 1, n) if they differ.

    If they differ, there is an axis for positions.
    """
    short = np.asarray(rotary.frequencies, np.float64)
    if rotary._beyond is None or lengths is None:
        return short
    is_long = lengths > rotary._original_length
    if not is_long.any():
        return short
    if (lengths == lengths.flat[0]).all():
        same: NDArray[np.float64] = rotary._beyond(lengths.reshape(-1)[:1])[0]
        return same
    each = np.where(is_long[..., np.newaxis], rotary._beyond(lengths), short)
    return each[..., np.newaxis, :]


def _lengths(rotary: Rotary, positions: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the lengths of sequences from their positions, if they matter."""
    if rotary._beyond is None:
        return None
    if positions.ndim == 0:
        return positions + 1
    last: NDArray[np.int64] = positions.max(axis=-1, initial=-1)
    return last + 1


def _tables(
    positions: NDArray[np.int64],
    frequencies: NDArray[np.float64],
    attention_factor: float,
    dtype: np.dtype[Any],
) -> tuple[Array, Array]:
    angles = positions[..., np.newaxis] * frequencies  # (..., L, rotary_dim / 2)
    return (
        _dtypes.rounded(attention_factor * np.cos(angles), dtype),
        _dtypes.rounded(attention_factor * np.sin(angles), dtype),
    )


@functools.lru_cache(maxsize=4)
def _cos_sin(
    positions: bytes,
    kind: np.dtype[Any],
    shape: tuple[int, ...],
    n_rows: int | None,
    frequencies: bytes,
    frequencies_shape: tuple[int, ...],
    attention_factor: float,
    dtype: np.dtype[Any],
) -> Array:
    """See `cos_sin`. The result depends only on the arguments."""
    array = np.frombuffer(positions, kind).reshape(shape)
    if n_rows is not None:
        array = query_positions(n_rows, n_rows, q_offset=array)
    tables = _tables(
        _checks.integers(array, "positions"),
        np.frombuffer(frequencies).reshape(frequencies_shape),
        attention_factor,
        dtype,
    )
    beside = np.concatenate(tables, axis=-1)
    beside.flags.writeable = False
    return beside


def _parse_scaling(
    scaling: Mapping[str, Any] | None, base: float, rotary_dim: int, head_dim: int
) -> tuple[str, dict[str, Any]]:
    """Return the kind of scaling and its given options."""
    if scaling is None:
        return "default", {}
    if not isinstance(scaling, Mapping):
        raise TypeError(f"scaling: expected a mapping, got {type(scaling).__name__}")
    given = {key: value for key, value in scaling.items() if value is not None}
    kind = str(given.pop("rope_type", given.get("type")))
    if kind not in SCALINGS or given.pop("type", kind) != kind:
        raise ValueError(
            f"scaling: expected one 'rope_type' of {', '.join(SCALINGS)}, got "
            f"{quoted(scaling, 200)}"
        )
    if (theta := given.pop("rope_theta", base)) != base:
        raise ValueError(
            f"scaling: expected 'rope_theta' = base = {base}, got {quoted(theta)}"
        )
    share = given.pop("partial_rotary_factor", None)
    if share is not None:
        share = _checks.above(share, "scaling['partial_rotary_factor']", 0)
    if share is not None and int(head_dim * min(share, 2.0)) != rotary_dim:
        raise ValueError(
            "scaling: expected 'partial_rotary_factor' to agree with rotary_dim = "
            f"{rotary_dim}, got {share}"
        )
    required, optional = SCALINGS[kind]
    wrong = set(given) - {*required, *optional} or set(required) - set(given)
    if wrong:
        raise ValueError(
            f"scaling: expected {kind!r} with {', '.join(required) or 'nothing'}"
            f"{' and maybe ' if optional else ''}{', '.join(optional)}, got "
            f"{quoted(scaling, 200)}"
        )
    for key, value in given.items():
        name, low = f"scaling[{key!r}]", -math.inf if key.startswith("mscale") else 0
        if key == "truncate":
            given[key] = _checks.flag(value, name)
        elif key in ("short_factor", "long_factor"):
            given[key] = _factors(value, name, rotary_dim // 2)
        else:
            given[key] = _checks.above(value, name, low)
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
    rotations = original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = (rotations - low_freq_factor) / (high_freq_factor - low_freq_factor)
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
        n * math.log(_length(original_max_position_embeddings, name, rotations), base)
        for name, rotations in (("beta_fast", beta_fast), ("beta_slow", beta_slow))
    )
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * n - 1)
    kept = 1 - (np.arange(n) - low) / max(high - low, 0.001)
    return _blend(frequencies, np.clip(kept, 0, 1), factor)


def _length(original: float, name: str, rotations: float) -> float:
    """Return the part of the original length that one turn takes, over 2 pi."""
    turn = 2 * math.pi * rotations
    length = original / turn if turn > 0 else math.inf
    if not 0 < length < math.inf:
        raise ValueError(
            f"scaling[{name!r}]: expected a number of turns over "
            f"original_max_position_embeddings = {original}, got {rotations}"
        )
    return length


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
        divisor = mscale_all_dim * growth + 1
        if divisor == 0:
            raise ValueError(
                "scaling['mscale_all_dim']: expected one that leaves attention_factor "
                f"finite, got {mscale_all_dim}"
            )
        return (mscale * growth + 1) / divisor
    return growth + 1


def _factors(value: object, name: str, n_pairs: int) -> NDArray[np.float64]:
    """Return the divisors of the pairs' frequencies."""
    if not isinstance(value, (list, tuple, np.ndarray)) or len(value) != n_pairs:
        raise ValueError(
            f"{name}: expected a list of rotary_dim / 2 = {n_pairs} numbers, "
            f"got {quoted(value)}"
        )
    return np.array([_checks.above(number, name, 0) for number in value])


def _dynamic(
    base: float,
    exponents: NDArray[np.float64],
    factor: float,
    original_max_position_embeddings: float,
) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
    n_numbers = 2 * len(exponents)
    if n_numbers < 4:
        raise ValueError(
            f"rotary_dim: expected at least 4 with 'dynamic', got {n_numbers}"
        )
    power = n_numbers / (n_numbers - 2)
    return functools.partial(
        _dynamic_beyond,
        base,
        exponents,
        factor,
        original_max_position_embeddings,
        power,
    )


def _dynamic_beyond(
    base: float,
    exponents: NDArray[np.float64],
    factor: float,
    original: float,
    power: float,
    lengths: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the frequencies (..., n) beyond the original length."""
    stretch = factor * (np.maximum(lengths, original) / original - 1) + 1
    bases: NDArray[np.float64] = (base * stretch**power)[..., np.newaxis]
    return 1 / bases**exponents


def _longrope(
    frequencies: NDArray[np.float64], long_factor: NDArray[np.float64], **_: Any
) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
    return functools.partial(_longrope_beyond, frequencies / long_factor)


def _longrope_beyond(
    frequencies: NDArray[np.float64], lengths: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the frequencies (..., n) beyond the original length."""
    return np.broadcast_to(frequencies, (*lengths.shape, len(frequencies)))


def _longrope_attention_factor(
    original_max_position_embeddings: float,
    factor: float | None = None,
    attention_factor: float | None = None,
    **_: Any,
) -> float:
    if attention_factor is not None:
        return attention_factor
    if factor is None:
        raise ValueError(
            "scaling: expected 'longrope' with factor or attention_factor, got neither"
        )
    if factor <= 1:
        return 1.0
    if original_max_position_embeddings <= 1:
        raise ValueError(
            "scaling['original_max_position_embeddings']: expected more than 1, got "
            f"{original_max_position_embeddings}"
        )
    growth = math.log(factor) / math.log(original_max_position_embeddings)
    return math.sqrt(1 + growth)


def _blend(
    frequencies: NDArray[np.float64], kept: NDArray[np.float64], factor: float
) -> NDArray[np.float64]:
    """Divide the frequencies by the factor, except for these shares of them."""
    return (1 - kept) * frequencies / factor + kept * frequencies
