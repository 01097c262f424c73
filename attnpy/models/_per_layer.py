"""Stacks whose layers read the embeddings, too: EmbeddingGemma 2 and Gemma 4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _attnpy, _dtypes, _parameters, _vjp
from attnpy._linear import linear, linear_vjp
from attnpy._vjp import LayerGradients
from attnpy.blocks import Decoder, DecoderLayer, ModelOutput, RMSNorm, _stack
from attnpy.blocks.feed_forward import GATED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, DTypeLike

    from attnpy._typing import Array, Precision
    from attnpy._vjp import Pullback


class Beside:
    r"""The last part of a layer: it multiplies what tokens give by its own inputs.

    Attributes
    ----------
    W_input : ndarray, shape (E, P)
        Makes the inputs of the embeddings, with `InputDecoder.input_norm`.
    W_1, W_2 : ndarray, shape (E, P) and (P, E)
    norm : attnpy.blocks.RMSNorm
    activation : str

    Notes
    -----
    :math:`y = x + N(f(x W_1) \cdot input W_2)`
    """

    W_input: Array
    W_1: Array
    W_2: Array
    norm: RMSNorm
    activation: str

    def __init__(
        self,
        embed_dim: int,
        dim: int,
        activation: str,
        eps: float,
        dtype: DTypeLike,
        rng: np.random.Generator,
    ) -> None:
        uniform, dtype = _parameters.xavier_uniform, _dtypes.floating(dtype)
        self.W_input = uniform(rng, (embed_dim, dim), dtype)
        self.W_1 = uniform(rng, (embed_dim, dim), dtype)
        self.W_2 = uniform(rng, (dim, embed_dim), dtype)
        self.norm = RMSNorm(embed_dim, eps=eps, dtype=dtype)
        self.activation = activation

    parameters = _parameters.parameters
    load_state_dict = _parameters.load_state_dict
    pack = _parameters.pack

    def __call__(
        self, x: Array, given: Array, precision: Precision, num_threads: int | None
    ) -> Array:
        """Return tokens (..., E) after the part, for inputs (..., P)."""
        hidden = linear(
            *(x, self.W_1),
            activation=self.activation,
            times=given,
            precision=precision,
            num_threads=num_threads,
        )
        result = linear(hidden, self.W_2, precision=precision, num_threads=num_threads)
        return x + self.norm(result, num_threads=num_threads)

    def vjp(
        self, x: Array, given: Array, num_threads: int | None
    ) -> tuple[Array, Pullback]:
        """Return the result of a call, and its pullback; `context` are the inputs."""
        _vjp.check_trainable(self, ("W_input", "W_1", "W_2"))
        name, gate = self.activation, linear(x, self.W_1, num_threads=num_threads)

        def active() -> Array:
            return _attnpy.activate(gate, name, given, num_threads)

        result = linear(active(), self.W_2, num_threads=num_threads)
        result, of_norm = self.norm.vjp(result, num_threads=num_threads)

        def pullback(grad_output: ArrayLike) -> LayerGradients:
            grad = np.asarray(grad_output)
            of_result = of_norm(grad)
            of_active, of_2, _ = linear_vjp(
                of_result.x, active(), self.W_2, None, num_threads=num_threads
            )
            of_gate = _attnpy.activate_vjp(of_active, gate, name, given, num_threads)
            of_x, of_1, _ = linear_vjp(
                of_gate, x, self.W_1, None, add_to=grad, num_threads=num_threads
            )
            of_given = _attnpy.activate(gate, name, of_active, num_threads)
            norm = {f"norm.{key}": own for key, own in of_result.parameters.items()}
            found = {"W_1": of_1, "W_2": of_2, **norm}
            return LayerGradients(of_x, found, context=of_given)

        return x + result, pullback


class InputDecoderLayer(DecoderLayer):
    """A layer with a `Beside` after its network, or a factor of its result, or both.

    A layer of this class is none that the C module runs together with others.

    Attributes
    ----------
    beside : Beside or None
    layer_scalar : ndarray, shape (1,), or None
        The factor.
    """

    beside: Beside | None
    layer_scalar: Array | None

    @classmethod
    def of(
        cls, layer: DecoderLayer, beside: Beside | None, layer_scalar: Array | None
    ) -> InputDecoderLayer:
        """Return a layer with the parts of another one."""
        made = object.__new__(cls)
        vars(made).update(vars(layer))
        made.beside, made.layer_scalar = beside, layer_scalar
        return made

    def __call__(self, x: Any, *context: Any, **options: Any) -> Any:
        """Run the layer as `DecoderLayer` does, with its inputs as `given`."""
        given = self._checked(options.pop("given", None))
        found = super().__call__(x, *context, **options)
        tokens: Any = found.output if isinstance(found, ModelOutput) else found
        if self.beside is not None:
            precision: Precision = "wide" if options.get("mixed") else "promoted"
            tokens = self.beside(tokens, given, precision, options.get("num_threads"))
        if self.layer_scalar is not None:
            tokens = tokens * self.layer_scalar.astype(tokens.dtype, copy=False)
        if isinstance(found, ModelOutput):
            return found._replace(output=tokens)
        return tokens

    def vjp(self, x: Any, *context: Any, **options: Any) -> tuple[Array, Pullback]:
        """Return the result of a call, and its pullback; `context` are the inputs."""
        given = self._checked(options.pop("given", None))
        checkpoint = options.pop("checkpoint", False)

        def run() -> tuple[Array, Pullback]:
            return self._run_vjp(x, given, *context, **options)

        return _vjp.run(run, checkpoint)

    def _checked(self, given: Any) -> Any:
        """Return the inputs, which there are where something reads them."""
        if (given is None) != (self.beside is None):
            expected = "None" if self.beside is None else "(..., P)"
            got = "None" if given is None else type(given).__name__
            raise ValueError(f"given: expected {expected}, got {got}")
        return given

    def _run_vjp(
        self, x: Any, given: Any, *context: Any, **options: Any
    ) -> tuple[Array, Pullback]:
        _vjp.check_trainable(self, ("layer_scalar",))
        tokens, of_layer = super().vjp(x, *context, **options)
        of_beside: Pullback | None = None
        if self.beside is not None:
            num_threads = options.get("num_threads")
            tokens, of_beside = self.beside.vjp(tokens, given, num_threads)
        output, factor = tokens, self.layer_scalar
        if factor is not None:
            output = tokens * factor
        checked = _vjp.of_output(output)

        def pullback(grad_output: ArrayLike) -> LayerGradients:
            grad, of_given = checked(grad_output), None
            collected = _vjp.Collector(self)
            if factor is not None:
                collected.add({"layer_scalar": np.sum(grad * tokens).reshape(1)})
                grad = grad * factor
            if of_beside is not None:
                found = of_beside(grad)
                collected.add(found.parameters, "beside.")
                grad, of_given = found.x, found.context
            found = of_layer(grad)
            collected.add(found.parameters)
            return found._replace(parameters=collected.parameters(), context=of_given)

        return output, pullback


class InputDecoder(Decoder):
    """A stack of such layers, whose inputs are products with the embeddings.

    Attributes
    ----------
    input_norm : attnpy.blocks.RMSNorm, or None
        Of all layers' inputs.
    """

    input_norm: RMSNorm | None

    @classmethod
    def of(
        cls,
        decoder: Decoder,
        dim: int | None,
        has_scalars: bool,
        eps: float,
        dtype: DTypeLike,
        rng: np.random.Generator,
    ) -> InputDecoder:
        """Return a stack with the parts of another one."""
        made = object.__new__(cls)
        vars(made).update(vars(decoder))
        made.input_norm, dtype = None, _dtypes.floating(dtype)
        made.layers = []
        for layer in decoder.layers:
            embed_dim, beside = len(layer.self_attention.W_q), None
            if dim is not None:
                own: Any = layer.feed_forward
                name = GATED.get(own.activation, own.activation)
                beside = Beside(embed_dim, dim, name, eps, dtype, rng)
                # Their products have a factor of embed_dim ** -0.5 before the norm.
                made.input_norm = RMSNorm(dim, eps=eps * embed_dim, dtype=dtype)
            scalar = np.ones(1, dtype) if has_scalars else None
            made.layers.append(InputDecoderLayer.of(layer, beside, scalar))
        return made

    def _beside(
        self, layer: DecoderLayer, x: Array, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        assert isinstance(layer, InputDecoderLayer)
        if layer.beside is None or self.input_norm is None:
            return {}
        num_threads = options.get("num_threads")
        made = linear(
            *(x, layer.beside.W_input),
            precision="wide" if options.get("mixed") else "promoted",
            num_threads=num_threads,
        )
        return {"given": self.input_norm(made, num_threads=num_threads)}

    def vjp(self, x: Any, *context: Any, **options: Any) -> tuple[Array, Pullback]:
        """Return the result of a call, and the pullback of its gradients."""
        embeddings = _vjp.floating(x, "x")
        num_threads = options.get("num_threads")
        sums: dict[str, Array | None] = {}

        def run(layer: InputDecoderLayer, tokens: Array) -> tuple[Array, Pullback]:
            if layer.beside is None or self.input_norm is None:
                return layer.vjp(tokens, *context, **options)
            weight = layer.beside.W_input
            made = linear(embeddings, weight, num_threads=num_threads)
            given, of_norm = self.input_norm.vjp(made, num_threads=num_threads)
            output, of_layer = layer.vjp(tokens, *context, given=given, **options)

            def pullback(grad_output: ArrayLike) -> LayerGradients:
                found = of_layer(grad_output)
                assert found.context is not None
                of_made = of_norm(found.context)
                sums["x"], of_weight, _ = linear_vjp(
                    *(of_made.x, embeddings, weight, None),
                    add_to=sums.get("x"),
                    num_threads=num_threads,
                )
                for name, own in of_made.parameters.items():
                    sums[name] = _vjp.added(sums.get(name), own)
                parameters = {**found.parameters, "beside.W_input": of_weight}
                return found._replace(parameters=parameters, context=None)

            return output, pullback

        output, of_stack = _stack.stack_vjp(self, embeddings, run, num_threads)

        def pullback(grad_output: ArrayLike) -> LayerGradients:
            sums.clear()
            found = of_stack(grad_output)
            of_x = _vjp.added(found.x, sums.pop("x", None))
            assert of_x is not None
            collected = _vjp.Collector(self)
            collected.add(found.parameters)
            collected.add(sums, "input_norm.")
            return found._replace(x=of_x, parameters=collected.parameters())

        return output, pullback


def input_fields(decoder: Decoder) -> dict[str, Any]:
    """Return the options that made a stack, for a model's repr."""
    first: Any = decoder.layers[0]
    beside = getattr(first, "beside", None)
    return {
        "input_dim": None if beside is None else beside.W_input.shape[1],
        "layer_scalars": getattr(first, "layer_scalar", None) is not None,
    }
