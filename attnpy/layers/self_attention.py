"""One head of attention with its projections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from attnpy import (
    _attnpy,
    _checks,
    _dtypes,
    _keywords,
    _parameters,
    _pickles,
    _repr,
    _vjp,
)
from attnpy._layer_vjp import Side, Sources, checked_wanted, layer_vjp
from attnpy._options import DIFFERENTIABLE, PASSED_ON, Heads, Options, Projections
from attnpy._vjp import LayerGradients
from attnpy.layers._tokens import PROJECTIONS, check_value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, DTypeLike
    from typing_extensions import Unpack

    from attnpy._typing import Array, HeadOptions
    from attnpy._vjp import Pullback

    class HeadVJPOptions(HeadOptions, total=False):
        """The options of a head's vjp."""

        dropout: float
        dropout_seed: int | None


@_keywords.answering
class SelfAttention:
    r"""One head of attention: queries, keys and values are projections of the tokens.

    Parameters
    ----------
    embed_dim : int
        `E`, the size of a token's embedding.
    head_dim : int
        `D`, the size of a query and a key.
    value_head_dim : int, optional
        `Dv`, the size of a value and of the result; by default `D`.
    bias : bool, optional
        Add a bias to queries, keys and values.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.
    rng : numpy.random.Generator, optional
        Draws the initial values; by default ``numpy.random.default_rng()``, with
        different values in every run.

    Attributes
    ----------
    W_q, W_k : ndarray, shape (E, D)
    W_v : ndarray, shape (E, Dv)
        Initially uniform random numbers, see the notes. Write to them, or assign
        trained arrays.
    b_q, b_k, b_v : ndarray, shape (D,) or (Dv,), or None
        0 at first; None without `bias`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the parameters; nothing has been allocated then.

    See Also
    --------
    MultiHeadAttention : many heads in one call, and everything else.

    Notes
    -----
    .. math::

        Q = X W_q, \quad K = X W_k, \quad V = X W_v, \quad
        Z = \operatorname{softmax}(Q K^T / \sqrt{D}) V

    as in "Attention please!", a tutorial notebook, and "Lecture 10: Attention
    Mechanisms and Transformers" by Martins, Melo and Figueiredo, which have no biases.
    Biases begin at 0, so that a new layer computes the formula without them. The result
    is not projected.

    The initial values of a matrix are between -a and a with ``a = sqrt(6 / (E + D))``,
    from Glorot and Bengio, "Understanding the difficulty of training deep feedforward
    neural networks" (2010).

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.layers import SelfAttention
    >>> rng = np.random.default_rng(0)
    >>> layer = SelfAttention(6, 3, rng=rng)
    >>> x = rng.standard_normal((5, 6), dtype=np.float32)  # five words
    >>> layer(x).shape
    (5, 3)
    >>> output, weights = layer(x, causal=True, return_weights=True)
    >>> np.count_nonzero(weights, axis=1)
    array([1, 2, 3, 4, 5])
    """

    W_q: Array
    W_k: Array
    W_v: Array
    b_q: Array | None
    b_k: Array | None
    b_v: Array | None

    def __init__(
        self,
        embed_dim: int,
        head_dim: int,
        *,
        value_head_dim: int | None = None,
        bias: bool = True,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        n_rows = _checks.count(embed_dim, "embed_dim")
        size = value_size = _checks.count(head_dim, "head_dim")
        if value_head_dim is not None:
            value_size = _checks.count(value_head_dim, "value_head_dim")
        dtype, bias = _dtypes.floating(dtype), _checks.flag(bias, "bias")
        rng = _checks.generator(rng)
        _checks.memory(
            "SelfAttention", dtype, (n_rows, size), (n_rows, size), (n_rows, value_size)
        )
        self.W_q = _parameters.xavier_uniform(rng, (n_rows, size), dtype)
        self.W_k = _parameters.xavier_uniform(rng, (n_rows, size), dtype)
        self.W_v = _parameters.xavier_uniform(rng, (n_rows, value_size), dtype)
        self.b_q = _parameters.zeros(bias, size, dtype)
        self.b_k = _parameters.zeros(bias, size, dtype)
        self.b_v = _parameters.zeros(bias, value_size, dtype)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict
    pack = _parameters.pack
    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        (embed_dim, size), value_size = self.W_q.shape, self.W_v.shape[1]
        return {
            "embed_dim": embed_dim,
            "head_dim": size,
            "value_head_dim": value_size if value_size != size else None,
            "bias": self.b_q is not None,
        }

    __repr__ = _repr.shows(_shown)

    @overload
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | None = ...,
        value: ArrayLike | None = ...,
        *,
        return_weights: Literal[False] = ...,
        **options: Unpack[HeadOptions],
    ) -> Array: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | None = ...,
        value: ArrayLike | None = ...,
        *,
        return_weights: Literal[True],
        **options: Unpack[HeadOptions],
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | None = ...,
        value: ArrayLike | None = ...,
        *,
        return_weights: bool = ...,
        **options: Unpack[HeadOptions],
    ) -> Array | tuple[Array, Array]: ...
    def __call__(
        self,
        x: ArrayLike,
        context: ArrayLike | None = None,
        value: ArrayLike | None = None,
        *,
        mask: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        q_offset: ArrayLike | None = None,
        return_weights: bool = False,
        **options: Any,
    ) -> Array | tuple[Array, Array]:
        """Return the context vectors of the tokens.

        Parameters
        ----------
        x : array_like, shape (L, E) or (B, L, E)
            The tokens.
        context : array_like, shape (Lc, Ec) or (B, Lc, Ec), optional
            The source of keys and values, for a head of cross-attention; by default
            `x`.
        value : array_like, shape (Lc, Ev) or (B, Lc, Ev), optional
            The source of the values, if it is not `context`.
        mask, bias : array_like, broadcast to (L, Lk) or (B, L, Lk), optional
            As in `attnpy.attention`, without an axis for heads.
        q_offset : int or array_like of int, shape (B,), optional
            As in `MultiHeadAttention.__call__`.
        return_weights : bool, optional
            Return the weights as well.
        **options
            As in `MultiHeadAttention.__call__`: `causal`, `window`, `kv_lengths`,
            `seq_offsets`, `scale`, `softcap`, `num_threads`.

        Returns
        -------
        output : ndarray, shape (L, Dv) or (B, L, Dv)
        weights : ndarray, shape (L, Lk) or (B, L, Lk)
            With `return_weights`.

        Raises
        ------
        TypeError, ValueError
            As `attnpy.attention`, and for parameters that do not fit.
        """
        _keywords.refuse(options, PASSED_ON - {"sinks"}, "SelfAttention()")
        check_value(value, context, self.W_k, self.W_v)
        if context is None and q_offset is None:
            q_offset = 0
        matrices = self.W_q, self.b_q, self.W_k, self.b_k, self.W_v, self.b_v
        result = _attnpy.layer(
            x,
            context,
            Heads(1, 1),
            Projections(*matrices, value_context=value),
            None,
            None,
            None,
            Options(
                mask=_with_head_axis(mask, "mask"),
                bias=_with_head_axis(bias, "bias"),
                q_offset=q_offset,
                return_weights=return_weights,
                **options,
            ),
        )
        if return_weights:
            output, weights = result
            return output, weights[..., 0, :, :]
        return result

    def vjp(
        self,
        x: ArrayLike,
        context: ArrayLike | None = None,
        value: ArrayLike | None = None,
        *,
        wanted: Iterable[str] = (),
        checkpoint: bool = False,
        **options: Unpack[HeadVJPOptions],
    ) -> tuple[Array, Pullback]:
        """Return the output of a call, and the pullback of its gradients.

        Parameters
        ----------
        x, context, value
            As in a call.
        wanted, checkpoint
            As in `MultiHeadAttention.vjp`.
        **options
            As in a call, except `return_weights`; and `dropout` and `dropout_seed`, as
            in `attnpy.attention`.

        Returns
        -------
        output : ndarray, shape (L, Dv) or (B, L, Dv)
            With the same bits as a call.
        pullback : callable
            As that of `MultiHeadAttention.vjp`.

        Raises
        ------
        TypeError, ValueError
            As a call; if the parameters are not float32 or float64.
        """
        _keywords.refuse(options, DIFFERENTIABLE - {"sinks"}, "SelfAttention.vjp()")
        _vjp.check_trainable(self, PROJECTIONS)
        check_value(value, context, self.W_k, self.W_v)
        chosen: dict[str, Any] = dict(options)
        bias = chosen.get("bias")
        shape = () if bias is None else np.shape(bias)
        for name in ("mask", "bias"):
            chosen[name] = _with_head_axis(chosen.get(name), name)
        if context is None and chosen.get("q_offset") is None:
            chosen["q_offset"] = 0
        sides = (
            Side(self.W_q, self.b_q, 1),
            Side(self.W_k, self.b_k, 1),
            Side(self.W_v, self.b_v, 1),
        )
        output, pull = layer_vjp(
            self,
            Sources.of(x, context, value),
            sides,
            None,
            chosen,
            checked_wanted(wanted, options),
            checkpoint,
        )

        def pullback(grad_output: ArrayLike) -> LayerGradients:
            found = pull(grad_output)
            if found.bias is None:
                return found
            bias = found.bias.reshape(shape)
            return LayerGradients(
                found.x, found.parameters, found.context, found.value, bias
            )

        return output, pullback


def _with_head_axis(given: ArrayLike | None, name: str) -> Array | None:
    """Return (..., 1, Lq, Lk) for an array that broadcasts to (..., Lq, Lk)."""
    if given is None:
        return None
    array = _checks.array(given, name)
    return array if array.ndim < 3 else array[..., np.newaxis, :, :]
