"""Attention whose result has a norm together with its tokens: jina's code model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnpy._vjp import LayerGradients
from attnpy.layers import MultiHeadAttention

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from attnpy._typing import Array
    from attnpy._vjp import Pullback
    from attnpy.blocks import LayerNorm
    from attnpy.norms import RMSNorm


class NormedAttention(MultiHeadAttention):
    """Attention A(x) that returns N(x + A(x)).

    A layer of this class is none that the C module runs together with others, so that
    those of a stack run one after the other.

    Attributes
    ----------
    sum_norm : attnpy.blocks.LayerNorm or attnpy.norms.RMSNorm
    """

    sum_norm: LayerNorm | RMSNorm

    @classmethod
    def of(
        cls, attention: MultiHeadAttention, sum_norm: LayerNorm | RMSNorm
    ) -> NormedAttention:
        """Return a layer with the parameters of another one, and this norm."""
        made = object.__new__(cls)
        vars(made).update(vars(attention))
        made.sum_norm = sum_norm
        return made

    def __call__(self, x: Any, *context: Any, **options: Any) -> Any:
        """Run the layer, as `MultiHeadAttention` does; `residual` is added last."""
        residual = options.pop("residual", None)
        found = super().__call__(x, *context, **options)
        result, *more = found if isinstance(found, tuple) else (found,)
        num_threads = options.get("num_threads")
        result = self.sum_norm(result, x, num_threads=num_threads)
        if residual is not None:
            result = residual + result
        return (result, *more) if more else result

    def vjp(self, x: Any, *context: Any, **options: Any) -> tuple[Array, Pullback]:
        """Return the result of a call, and the pullback of its gradients."""
        residual = options.pop("residual", None)
        result, of_attention = super().vjp(x, *context, **options)
        num_threads = options.get("num_threads")
        result, of_norm = self.sum_norm.vjp(result, x, num_threads=num_threads)
        if residual is not None:
            result = residual + result

        def pullback(grad_output: ArrayLike) -> LayerGradients:
            of_sum = of_norm(grad_output)
            found = of_attention(of_sum.x)
            norms = {f"sum_norm.{name}": x for name, x in of_sum.parameters.items()}
            return found._replace(
                x=found.x + of_sum.x, parameters={**found.parameters, **norms}
            )

        return result, pullback
