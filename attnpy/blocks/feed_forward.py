"""The feed-forward network of encoder and decoder layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnpy import _checks, _dtypes, _parameters
from attnpy._linear import linear

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from attnpy._typing import Activation, Array, Precision

# What is done to the gate, of those that have one.
GATED: dict[str, Activation] = {
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "reglu": "relu",
}
PLAIN = ("relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "relu2", "tanh")
ACTIVATIONS = (*PLAIN, *GATED)


class FeedForward:
    r"""The same small network for each token.

    Parameters
    ----------
    embed_dim : int
        `E`.
    hidden_dim : int
        `F`, the size of the layer inside.
    activation : str, optional
        "relu" is the paper's, "gelu" BERT's, "gelu_tanh" GPT-2's; the others are
        "silu", "quick_gelu", "relu2" and "tanh". With a third matrix: "swiglu" is
        Llama's, "geglu_tanh" Gemma's, and there are "geglu" and "reglu".
    bias : bool, optional
        Add biases.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.
    rng : numpy.random.Generator, optional
        Where the first values come from; by default ``numpy.random.default_rng()``,
        other values in every run.

    Attributes
    ----------
    W_1 : ndarray, shape (E, F)
    W_2 : ndarray, shape (F, E)
    W_gate : ndarray, shape (E, F), or None
        Uniform numbers at first, from Glorot and Bengio (2010), as in
        `attnpy.layers.MultiHeadAttention`. There is a `W_gate` where the activation
        has a third matrix.
    b_1, b_2, b_gate : ndarray, shape (F,) or (E,), or None
        0 at first.
    activation : str
        As given.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the parameters; nothing has been allocated then.

    Notes
    -----
    With the activation f,

    .. math:: f(x W_1 + b_1) W_2 + b_2

    from Vaswani et al. (2017), section 3.3, and with "swiglu"

    .. math:: (\operatorname{silu}(x W_{gate} + b_{gate}) \cdot (x W_1 + b_1)) W_2 + b_2

    from Shazeer, "GLU Variants Improve Transformer" (2020). Llama's gate_proj, up_proj
    and down_proj are the transposes of `W_gate`, `W_1` and `W_2`. The others of that
    paper have `gelu`, `gelu_tanh` or `relu` in the place of `silu`.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.blocks import FeedForward
    >>> rng = np.random.default_rng(0)
    >>> feed_forward = FeedForward(6, 24, rng=rng)
    >>> x = rng.standard_normal((5, 6), dtype=np.float32)
    >>> feed_forward(x).shape
    (5, 6)
    """

    activation: str
    W_1: Array
    W_2: Array
    W_gate: Array | None
    b_1: Array | None
    b_2: Array | None
    b_gate: Array | None

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        *,
        activation: Activation = "relu",
        bias: bool = True,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        outer = _checks.count(embed_dim, "embed_dim")
        inner = _checks.count(hidden_dim, "hidden_dim")
        self.activation = _checks.one_of(activation, "activation", ACTIVATIONS)
        bias, dtype = _checks.flag(bias, "bias"), _dtypes.floating(dtype)
        rng, gated = _checks.generator(rng), activation in GATED
        matrices = [(outer, inner)] * (3 if gated else 2)
        _checks.memory("FeedForward", dtype, *matrices)
        uniform, zeros = _parameters.xavier_uniform, _parameters.zeros
        self.W_1 = uniform(rng, (outer, inner), dtype)
        self.W_2 = uniform(rng, (inner, outer), dtype)
        self.W_gate = None
        if gated:
            self.W_gate = uniform(rng, (outer, inner), dtype)
        self.b_1 = zeros(bias, inner, dtype)
        self.b_2 = zeros(bias, outer, dtype)
        self.b_gate = zeros(bias and gated, inner, dtype)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict
    pack = _parameters.pack
    __setattr__ = _parameters.set_attribute

    def __call__(
        self,
        x: ArrayLike,
        *,
        residual: ArrayLike | None = None,
        mixed: bool = False,
        num_threads: int | None = None,
    ) -> Array:
        """Run the network.

        Parameters
        ----------
        x : array_like, shape (..., E)
            Tokens, with any axes before.
        residual : array_like, shape of x, optional
            Added to the result, in its dtype.
        mixed : bool, optional
            For 16-bit parameters: what is inside has their dtype, but the result is in
            float32, as `x` may be.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`.

        Returns
        -------
        ndarray, shape (..., E)
            In the promoted dtype of x and the parameters; integers become float64. See
            `mixed`.

        Raises
        ------
        TypeError, ValueError
            If x has another dtype or size.
        """
        mixed = _checks.flag(mixed, "mixed")
        inside: Precision = "narrow" if mixed else "promoted"
        outside: Precision = "wide" if mixed else "promoted"
        gated = self.W_gate is not None
        x = _checks.array(x, "x")
        hidden = linear(
            x,
            self.W_1,
            self.b_1,
            activation=None if gated else self.activation,
            precision=inside,
            num_threads=num_threads,
        )
        if self.W_gate is not None:
            hidden = linear(
                x,
                self.W_gate,
                self.b_gate,
                activation=GATED[self.activation],
                times=hidden,
                precision=inside,
                num_threads=num_threads,
            )
        return linear(
            hidden,
            self.W_2,
            self.b_2,
            residual=residual,
            precision=outside,
            num_threads=num_threads,
        )
