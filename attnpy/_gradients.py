"""The keyword interface of `attention_vjp`. The C module computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attnpy import _attnpy, _keywords, _repr
from attnpy._options import DIFFERENTIABLE, SCALES, VJP, Options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

    from attnpy._typing import Array, GradientOptions


class AttentionGradients(NamedTuple):
    """The result of `attention_vjp`: arrays, or None for what was not wanted.

    Attributes
    ----------
    query, key, value, bias, sinks : ndarray or None
        The gradient with respect to the input of this name, in its shape.
    """

    query: Array | None
    key: Array | None
    value: Array | None
    bias: Array | None
    sinks: Array | None

    def __repr__(self) -> str:
        """Return the dtype and shape of each array."""
        return _repr.of_fields(self)


NAMES = ("query", "key", "value", "bias", "sinks")


def attention_vjp(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    output: ArrayLike | None = None,
    lse: ArrayLike | None = None,
    grad_lse: ArrayLike | None = None,
    wanted: Iterable[str] = ("query", "key", "value"),
    **options: Unpack[GradientOptions],
) -> AttentionGradients:
    r"""Compute the gradients of `attention`: its vector-Jacobian product.

    Given the gradient of a number with respect to attention's output, return the
    gradient of that number with respect to attention's inputs. Every combination of
    options runs through the same fused path, which never builds the matrix of scores.

    Parameters
    ----------
    grad_output : array_like, shape (..., H, Lq, Dv)
        The gradient with respect to the output, in the output's shape.
    query, key, value : array_like
        As in the call of `attention`.
    output : array_like, shape (..., H, Lq, Dv), optional
        The output of `attention`. If it or `lse` is not given, a forward call computes
        both again.
    lse : array_like, shape (..., H, Lq), optional
        The LSE of the same call, from ``return_lse=True``.
    grad_lse : array_like, shape (..., H, Lq), optional
        The gradient with respect to `lse`; by default 0.
    wanted : iterable of {"query", "key", "value", "bias", "sinks"}, optional
        Which gradients to compute.
    **options
        The options of the call of `attention`: mask, bias, causal, window, q_offset,
        kv_lengths, seq_offsets, scale, softcap, sinks, dropout, dropout_seed; and
        `num_threads`, which changes no bit of a result.

    Returns
    -------
    gradients : AttentionGradients
        A named tuple (query, key, value, bias, sinks). Each gradient has its input's
        shape, summed over the axes that the input was broadcast along, and its dtype
        (the output's, for integers); it is None where it is not wanted.

    Raises
    ------
    TypeError
        If an argument has the wrong kind or dtype; with `key_scale` or `value_scale`,
        because integers have no gradients; with `page_table`, because sequences share
        pages.
    ValueError
        If shapes do not fit together, a number is out of its range, or a wanted
        gradient is that of an input that is not given.
    MemoryError
        If the results or the scratch memory cannot be allocated.

    See Also
    --------
    attention : explains the options.

    Notes
    -----
    With the weights :math:`P_{ij} = e^{s_{ij} - lse_i}` and
    :math:`\delta_i = dO_i \cdot O_i - dlse_i`,

    .. math::

        dV_j = \sum_i P_{ij} \, dO_i, \quad
        dS_{ij} = P_{ij} \, (dO_i \cdot V_j - \delta_i)

        dQ_i = scale \sum_j dS_{ij} \, c_{ij} \, K_j, \quad
        dK_j = scale \sum_i dS_{ij} \, c_{ij} \, Q_i, \quad
        dbias = dS, \quad dsink = -\sum_i e^{sink - lse_i} \, \delta_i

    where :math:`c = 1 - \tanh^2` of the soft cap, or 1 without one. The algorithm is
    that of Dao, "FlashAttention-2" (2023), section 3.1.2: five products for each tile
    of queries and block of keys; the first is that of the forward pass.

    With dropout, :math:`P` in :math:`dV`, and :math:`dO_i \cdot V_j`, are multiplied by
    the mask divided by ``1 - dropout``; the mask is that of the call of `attention`.

    A query that may see nothing has gradient 0, and contributes none to keys and
    values. NaN and infinity in a key or value do not reach the gradients of queries
    that may not see them, nor the other way round.

    float64 is computed in float64; everything else in float32, and rounded once to a
    16-bit dtype. If query, key, value and `grad_output` are bfloat16, CPUs with
    AVX512-BF16 or AMX round :math:`P` and :math:`dS` to bfloat16 as factors of
    products, unless `set_portable` says otherwise; sums are in float32. Memory besides
    the results grows only with `Lq`.

    Gradients have the same bits for any number of threads, memory layout and
    instruction set (with that exception), and for a member of a batch the same bits as
    alone. They are sums in a fixed order: over keys in blocks of 128, over queries in
    blocks of 64 from the first query of each head; then over the heads of a group, and
    over batches where an input is broadcast, in the order of indices. Passing `output`
    and `lse` of `attention` for the same arguments changes no bit.

    Examples
    --------
    >>> import numpy as np
    >>> import attnpy
    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 4, 10, 16))  # (H, L, D) each
    >>> output, lse = attnpy.attention(query, key, value, causal=True, return_lse=True)
    >>> grad_output = rng.standard_normal(output.shape)
    >>> gradients = attnpy.attention_vjp(
    ...     grad_output, query, key, value, causal=True, output=output, lse=lse
    ... )
    >>> gradients.query.shape
    (4, 10, 16)

    The difference quotient along a direction agrees:

    >>> step = 1e-6 * rng.standard_normal(key.shape)
    >>> moved = attnpy.attention(query, key + step, value, causal=True)
    >>> change = np.sum((moved - output) * grad_output)
    >>> bool(np.isclose(np.sum(gradients.key * step), change, rtol=1e-4))
    True
    """
    for name in SCALES & options.keys():
        raise TypeError(
            f"{name}: expected none, because int8 keys and values have no gradients, "
            "got scales"
        )
    if options.get("page_table") is not None:
        raise TypeError(
            "page_table: expected None for gradients, as sequences share pages, got an "
            "array"
        )
    _keywords.refuse(options, DIFFERENTIABLE, "attention_vjp()")
    names = _names(wanted)
    for name in ("bias", "sinks"):
        if name in names and options.get(name) is None:
            raise ValueError(
                f"wanted: expected inputs that are given, got {name!r} without {name}"
            )
    flags = tuple(name in names for name in NAMES)
    gradients = _attnpy.attention_vjp(
        grad_output,
        query,
        key,
        value,
        Options(**options),
        VJP(output, lse, grad_lse, flags),
    )
    return AttentionGradients(*gradients)


def _names(wanted: Iterable[str]) -> frozenset[str]:
    """Check the names of the wanted gradients."""
    try:
        names = frozenset((wanted,) if isinstance(wanted, str) else wanted)
    except TypeError as error:
        raise TypeError(
            f"wanted: expected names out of {NAMES}, got {type(wanted).__name__}"
        ) from error
    if unknown := names - set(NAMES):
        raise ValueError(
            f"wanted: expected names out of {NAMES}, got {sorted(unknown, key=str)}"
        )
    return names
