"""Attention with a norm of values that has no weight: Gemma 4's and its relatives'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _attnpy
from attnpy._attention import attention
from attnpy._layer_vjp import Side
from attnpy._linear import cut_into_heads, linear, normalized_heads
from attnpy.layers import MultiHeadAttention
from attnpy.norms import RMSNorm

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from attnpy._options import Cache, Heads, Norms, Place, Projections
    from attnpy._typing import Array, Precision
    from attnpy._vjp import Pullback


class ValueNormedAttention(MultiHeadAttention):
    """Self-attention whose values are divided by their root mean squares, head by head.

    A layer of this class is none that the C module runs together with others, so that
    those of a stack run one after the other.

    Attributes
    ----------
    value_eps : float
        Added to the mean squares.
    """

    value_eps: float

    @classmethod
    def of(cls, attention: MultiHeadAttention, eps: float) -> ValueNormedAttention:
        """Return a layer with the parameters of another one."""
        made = object.__new__(cls)
        vars(made).update(vars(attention))
        made.value_eps = eps
        return made

    def __call__(
        self, x: Any, context: Any = None, value: Any = None, **options: Any
    ) -> Any:
        """Run the layer, as `MultiHeadAttention` does, without a context."""
        relative = options.pop("relative", None)
        _refuse(context=context, value=value, relative=relative)
        return super().__call__(x, **options)

    def vjp(
        self, x: Any, context: Any = None, value: Any = None, **options: Any
    ) -> tuple[Array, Pullback]:
        """Return the result of a call, and the pullback of its gradients."""
        _refuse(context=context, value=value)
        return super().vjp(x, **options)

    def project_context(self, context: Any, *value: Any, **options: Any) -> Any:
        """Refuse a context, as a call does."""
        raise ValueError("context: expected none in a layer that normalizes values")

    def _computed(
        self,
        x: Array,
        context: ArrayLike | None,
        heads: Heads,
        projections: Projections,
        norms: Norms | None,
        place: Place,
    ) -> Any:
        """Do what the C module does for other layers, step by step."""
        told = place.options._asdict()
        page_table, cache = told.pop("page_table"), place.cache
        if page_table is not None or (
            cache is not None and cache.key_scale is not None
        ):
            raise ValueError(
                "cache: expected a KVCache of floats in a layer that normalizes "
                "values, got one of int8 or of pages"
            )
        del told["tier"]  # which is for tests of the C module
        starts: Any = None
        if place.options.seq_offsets is not None:
            starts = next(iter(place.options.seq_offsets))  # type: ignore[arg-type]
        if starts is None:
            told["seq_offsets"] = None
        num_threads = told["num_threads"]
        mixed, weight = projections.mixed, projections.W_q
        precision: Precision = "wide" if mixed else "promoted"
        made = []
        tables = place.rotary
        for matrix, bias, n_heads, norm, cos_sin in (
            (
                *(weight, projections.b_q, heads.num_heads, self.q_norm),
                None if tables is None else tables.q_cos_sin,
            ),
            (
                *(projections.W_k, projections.b_k, heads.num_kv_heads, self.k_norm),
                None if tables is None else tables.k_cos_sin,
            ),
            (
                *(projections.W_v, projections.b_v, heads.num_kv_heads),
                *(self._value_norm(), None),
            ),
        ):
            assert matrix is not None
            columns = linear(
                *(x, matrix, bias), precision=precision, num_threads=num_threads
            )
            part = cut_into_heads(columns, n_heads)
            part = normalized_heads(norm, part, num_threads)
            if cos_sin is not None and tables is not None:
                swapped = tables.interleaved
                part = _attnpy.rotate(part, cos_sin, swapped, part, num_threads)
            if mixed and weight.dtype.itemsize == 2:
                narrow = np.empty((), weight.dtype)
                part = _attnpy.cast(np.ascontiguousarray(part), narrow, num_threads)
            made.append(part)
        query, key, value = made
        if cache is not None:
            key, value = _in_cache(cache, key, value, place, starts)
        shape = *x.shape[:-1], heads.num_heads * value.shape[-1]
        joined = np.empty(shape, np.result_type(query, key, value))
        told["out"] = cut_into_heads(joined, heads.num_heads)
        found = attention(query, key, value, **told)
        output = linear(
            joined,
            self.W_o,
            self.b_o,
            residual=projections.residual,
            precision=precision,
            num_threads=num_threads,
        )
        if not told["return_weights"]:
            return output
        weights = found[1]
        if heads.weight_groups is not None:
            places = heads.weight_groups.tolist()
            groups = [places.index(i) for i in range(max(places) + 1)]
            size = heads.num_heads // heads.num_kv_heads
            chosen = [group * size + i for group in groups for i in range(size)]
            weights = weights[..., chosen, :, :]
        return output, weights

    def _value_norm(self) -> RMSNorm:
        """Return the norm, whose weight of 1 changes no bit."""
        dtype = np.float64 if self.W_v.dtype == np.float64 else np.float32
        return RMSNorm(self.value_head_dim, eps=self.value_eps, dtype=dtype)

    def _value_side(self) -> Side:
        side = super()._value_side()
        return side._replace(norm=self._value_norm(), norm_is_learned=False)


def _in_cache(
    cache: Cache, key: Array, value: Array, place: Place, starts: Any
) -> tuple[Array, Array]:
    """Write new keys and values (..., Hk, L, D) where they go; return all of them."""
    assert place.past is not None and place.reserved is not None
    for i, (first, end) in enumerate(zip(place.past, place.reserved, strict=True)):
        for new, rows in ((key, cache.key), (value, cache.value)):
            if starts is None:
                own = new[i, :, : end - first]
            else:
                own = new[:, starts[i] : starts[i] + end - first]
            rows[i, :, first:end] = own
    return cache.key, cache.value


def _refuse(**given: Any) -> None:
    """Refuse arguments that a layer with a norm of values does not have."""
    for name, argument in given.items():
        if argument is not None:
            raise ValueError(
                f"{name}: expected None in a layer that normalizes values, got one"
            )
