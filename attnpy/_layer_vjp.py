"""The backward pass of attention with projections: common code of both layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnpy import _attnpy, _checks, _vjp
from attnpy._attention import attention
from attnpy._gradients import attention_vjp
from attnpy._linear import (
    cut_into_heads,
    is_together,
    joined_heads,
    linear,
    linear_vjp,
    project_heads,
)
from attnpy._vjp import LayerGradients

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from attnpy._typing import Array
    from attnpy._vjp import Pullback
    from attnpy.norms import LayerNorm, RMSNorm


class Sources(NamedTuple):
    """The inputs of a layer, as arrays with gradients.

    They are tokens, and the sources of keys and values if these differ.
    """

    tokens: Array
    context: Array | None
    value: Array | None

    @classmethod
    def of(
        cls, x: ArrayLike, context: ArrayLike | None, value: ArrayLike | None
    ) -> Sources:
        """Check the arguments of a call."""
        return cls(
            _tokens(x, "x"),
            None if context is None else _tokens(context, "context"),
            None if value is None else _tokens(value, "value"),
        )

    def of_sides(self) -> tuple[Array, Array, Array]:
        """Return the sources of queries, keys and values."""
        key = self.tokens if self.context is None else self.context
        return self.tokens, key, key if self.value is None else self.value


class Heads(NamedTuple):
    """Queries, keys or values (..., H, L, D), and the pullback of their gradients.

    It adds the gradient of their source to those by the ids of arrays, and returns
    those of the parameters.
    """

    heads: Array
    back: Callable[[Array, dict[int, Array]], dict[str, Array | None]]


class Side(NamedTuple):
    """The projection of tokens to queries, keys or values."""

    weight: Array
    bias: Array | None
    n_heads: int
    norm: LayerNorm | RMSNorm | None = None
    cos_sin: Array | None = None
    interleaved: bool = False
    norm_is_learned: bool = True

    def heads(self, letter: str, tokens: Array, num_threads: int | None) -> Heads:
        """Make heads of tokens; the letter is that of the parameters' names."""
        heads = project_heads(tokens, self.weight, self.bias, self.n_heads, num_threads)
        of_norm: Pullback | None = None
        together = is_together(self.norm, heads)
        if self.norm is not None:
            heads = joined_heads(heads) if together else heads
            with _checks.renamed(x=f"{letter}_norm"):
                heads, of_norm = self.norm.vjp(heads, num_threads=num_threads)
            heads = cut_into_heads(heads, self.n_heads) if together else heads
        if self.cos_sin is not None:
            heads = _attnpy.rotate(
                heads, self.cos_sin, self.interleaved, heads, num_threads
            )

        def back(
            gradient: Array, of_sources: dict[int, Array]
        ) -> dict[str, Array | None]:
            found: dict[str, Array | None] = {}
            if self.cos_sin is not None:
                tables = _turned_back(self.cos_sin)
                gradient = _attnpy.rotate(
                    gradient, tables, self.interleaved, gradient, num_threads
                )
            if of_norm is not None:
                of_heads = of_norm(joined_heads(gradient) if together else gradient)
                gradient = of_heads.x
                if together:
                    gradient = cut_into_heads(gradient, self.n_heads)
                learned = of_heads.parameters if self.norm_is_learned else {}
                for name, array in learned.items():
                    found[f"{letter}_norm.{name}"] = array
            of_tokens, found[f"W_{letter}"], found[f"b_{letter}"] = linear_vjp(
                joined_heads(gradient),
                tokens,
                self.weight,
                self.bias,
                add_to=of_sources.get(id(tokens)),
                num_threads=num_threads,
            )
            of_sources[id(tokens)] = of_tokens
            return found

        return Heads(heads, back)


class OutputSide(NamedTuple):
    """The output projection of all heads' results side by side."""

    weight: Array
    bias: Array | None
    residual: ArrayLike | None

    def project(
        self, concat: Array, num_threads: int | None
    ) -> tuple[Array, Callable[[Array], tuple[Array, Array, Array | None]]]:
        """Return the output, and the function from its gradient to the inputs'."""
        weight, bias, residual = self
        output = linear(
            concat, weight, bias, residual=residual, num_threads=num_threads
        )

        def back(grad: Array) -> tuple[Array, Array, Array | None]:
            return linear_vjp(grad, concat, weight, bias, num_threads=num_threads)

        return output, back


def layer_vjp(
    layer: object,
    sources: Sources,
    sides: tuple[Side, Side, Side],
    output_side: OutputSide | None,
    options: dict[str, Any],
    wanted: frozenset[str],
    checkpoint: bool,
) -> tuple[Array, Pullback]:
    """Run a layer, and return its pullback beside the output.

    The sides are those of queries, keys and values; the layer has their arrays as W_q,
    b_q, W_k and so on. The options are those of attention.
    """

    def run() -> tuple[Array, Pullback]:
        return _run(layer, sources, sides, output_side, options, wanted)

    return _vjp.run(run, checkpoint)


def _run(
    layer: object,
    sources: Sources,
    sides: tuple[Side, Side, Side],
    output_side: OutputSide | None,
    options: dict[str, Any],
    wanted: frozenset[str],
) -> tuple[Array, Pullback]:
    n_heads, num_threads = sides[0].n_heads, options.get("num_threads")
    learned = () if getattr(layer, "sinks", None) is None else ("sinks",)
    parts = _all_heads(sources, sides, num_threads)
    query, key, value = (part.heads for part in parts)
    batch = np.broadcast_shapes(*(part.heads.shape[:-3] for part in parts))
    shape = *batch, query.shape[-2], n_heads * value.shape[-1]
    concat = np.empty(shape, np.result_type(query, key, value))
    attended = cut_into_heads(concat, n_heads)
    _, lse = attention(query, key, value, out=attended, return_lse=True, **options)
    if output_side is not None:
        output, of_concat = output_side.project(concat, num_threads)
    else:  # a copy: the pullback reads the heads' results
        output, of_concat = concat.copy(), None
    checked = _vjp.of_output(output)

    def pullback(grad_output: ArrayLike) -> LayerGradients:
        grad = checked(grad_output)
        parameters: dict[str, Array | None] = {}
        if of_concat is not None:
            grad, parameters["W_o"], parameters["b_o"] = of_concat(grad)
        found = attention_vjp(
            cut_into_heads(grad, n_heads),
            query,
            key,
            value,
            output=attended,
            lse=lse,
            wanted=("query", "key", "value", *wanted, *learned),
            **options,
        )
        of_sources: dict[int, Array] = {}
        for part, gradient in zip(parts, found[:3], strict=True):
            assert gradient is not None  # it is wanted
            parameters |= part.back(gradient, of_sources)
        if learned:
            parameters["sinks"] = found.sinks
        return LayerGradients(
            of_sources[id(sources.tokens)],
            _vjp.of_parameters(layer, parameters),
            of_sources.get(id(sources.context)),
            of_sources.get(id(sources.value)),
            found.bias,
            None if learned else found.sinks,
        )

    return output, pullback


def _all_heads(
    sources: Sources, sides: tuple[Side, Side, Side], num_threads: int | None
) -> list[Heads]:
    """Make queries, keys and values."""
    of_keys = "x" if sources.context is None else "context"
    of_values = of_keys if sources.value is None else "value"
    parts = []
    for letter, name, source, side in zip(
        "qkv", ("x", of_keys, of_values), sources.of_sides(), sides, strict=True
    ):
        with _checks.renamed(x=name):
            parts.append(side.heads(letter, source, num_threads))
    return parts


def checked_wanted(wanted: Iterable[str], options: Mapping[str, Any]) -> frozenset[str]:
    """Return the options whose gradients are wanted."""
    names = _vjp.wanted_names(wanted)
    for name in names:
        _checks.one_of(name, "wanted", ("bias", "sinks"))
        if options.get(name) is None:
            raise ValueError(
                f"wanted: expected options that are given, got {name!r} without {name}"
            )
    return frozenset(names)


def _tokens(given: ArrayLike, name: str) -> Array:
    tokens = _vjp.floating(given, name)
    if tokens.ndim < 2:
        raise ValueError(f"{name}: expected (L, E) or (B, L, E), got {tokens.shape}")
    return tokens[...]  # an object of its own, where x is the context, too


def _turned_back(cos_sin: Array) -> Array:
    """Return the tables of the transposed rotations: those by the negative angles."""
    back = cos_sin.copy()
    back[..., back.shape[-1] // 2 :] *= -1
    return back
