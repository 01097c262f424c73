"""The feed-forward network of encoder and decoder layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from attnpy._linear import linear, linear_vjp
from attnpy._options import Network, Norm
from attnpy._vjp import LayerGradients

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from attnpy._typing import Activation, Array
    from attnpy._vjp import Pullback

# The function of the gate, for activations that have one.
GATED: dict[str, Activation] = {
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "reglu": "relu",
    "swiglu_oai": "swiglu_oai",  # what it is multiplied by is limited, too
}
LIMIT = 7.0  # of "swiglu_oai"
PLAIN = ("relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "relu2", "tanh")
ACTIVATIONS = (*PLAIN, *GATED)


@_keywords.answering
class FeedForward:
    r"""The same small network for each token.

    Parameters
    ----------
    embed_dim : int
        `E`.
    hidden_dim : int
        `F`, the size of the hidden layer.
    activation : str, optional
        "relu" is the paper's, "gelu" BERT's, "gelu_tanh" GPT-2's; the others are
        "silu", "quick_gelu", "relu2" and "tanh". With a gate, which is a third matrix:
        "swiglu" is Llama's, "geglu_tanh" Gemma's, "swiglu_oai" gpt-oss's; the others
        are "geglu" and "reglu".
    bias : bool, optional
        Add biases.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.
    rng : numpy.random.Generator, optional
        Draws the initial values; by default ``numpy.random.default_rng()``, with
        different values in every run.

    Attributes
    ----------
    W_1 : ndarray, shape (E, F)
    W_2 : ndarray, shape (F, E)
    W_gate : ndarray, shape (E, F), or None
        Initially uniform random numbers, from Glorot and Bengio (2010), as in
        `attnpy.layers.MultiHeadAttention`. Only activations with a gate have a
        `W_gate`.
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
    and down_proj are the transposes of `W_gate`, `W_1` and `W_2`. The other activations
    with a gate have `gelu`, `gelu_tanh` or `relu` instead of `silu`. "swiglu_oai" is
    from OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025): with the gate
    :math:`g = \min(x W_{gate} + b_{gate}, 7)` and :math:`h = x W_1 + b_1`, limited to
    -7 and 7, the hidden numbers are :math:`g \, \sigma(1.702 g) \cdot (h + 1)`.

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
        rng = _checks.generator(rng)
        gated = activation in GATED
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
    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        embed_dim, hidden_dim = self.W_1.shape
        return {
            "embed_dim": embed_dim,
            "hidden_dim": hidden_dim,
            "activation": self.activation,
            "bias": self.b_1 is not None,
        }

    __repr__ = _repr.shows(_shown)

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
            Tokens, with any leading axes.
        residual : array_like, shape of x, optional
            Added to the result, in its dtype.
        mixed : bool, optional
            For 16-bit parameters: hidden numbers have their dtype, but the result is in
            float32, and `x` may be.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

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
        x = _checks.array(x, "x")
        return run(self, x, None, residual, mixed, num_threads)

    def _of_gate(self) -> Activation:
        """Return the function of the gate."""
        if self.activation not in GATED:
            raise ValueError(
                f"W_gate: expected None with the activation {self.activation!r}, "
                "got an array"
            )
        return GATED[self.activation]

    def vjp(
        self,
        x: ArrayLike,
        *,
        residual: ArrayLike | None = None,
        checkpoint: bool = False,
        num_threads: int | None = None,
    ) -> tuple[Array, Pullback]:
        r"""Return the output of a call, and the pullback of its gradients.

        Parameters
        ----------
        x, residual, num_threads
            As in a call.
        checkpoint : bool, optional
            As in `attnpy.layers.MultiHeadAttention.vjp`.

        Returns
        -------
        output : ndarray, shape (..., E)
            With the same bits as a call.
        pullback : callable
            Takes the gradient with respect to the output, and returns an
            `attnpy.layers.LayerGradients`. The gradient with respect to `residual` is
            that of the output. The pullback keeps x, the activation's argument and,
            with a gate, the numbers that it multiplies.

        Raises
        ------
        TypeError, ValueError
            As a call; if the parameters are packed, or not float32 or float64.

        Notes
        -----
        With the hidden numbers :math:`h = x W_1 + b_1` and the gradient :math:`G` of
        the output, the gradient of the hidden numbers is :math:`dh = G W_2^T \cdot
        f'(h)`. With a gate :math:`g`, :math:`dh = G W_2^T \cdot f(g)` and :math:`dg = G
        W_2^T \cdot h \cdot f'(g)`; with "swiglu_oai" each is 0 beyond its limits. For
        the products see `attnpy.layers.MultiHeadAttention.vjp`, for :math:`f'`
        `attnpy.blocks.activation_vjp`.
        """
        _vjp.check_trainable(self, ("W_1", "W_2", "W_gate", "b_1", "b_2", "b_gate"))
        tokens = _vjp.floating(x, "x")

        def run() -> tuple[Array, Pullback]:
            return self._run_vjp(tokens, residual, num_threads)

        return _vjp.run(run, checkpoint)

    def _run_vjp(
        self, x: Array, residual: ArrayLike | None, num_threads: int | None
    ) -> tuple[Array, Pullback]:
        hidden = linear(x, self.W_1, self.b_1, num_threads=num_threads)
        name: str = self.activation
        times: Array | None = None
        gate = hidden
        if self.W_gate is not None:
            name, times = self._of_gate(), hidden
            gate = linear(x, self.W_gate, self.b_gate, num_threads=num_threads)
        if name == "swiglu_oai":
            times = np.clip(hidden, -LIMIT, LIMIT) + 1

        def active() -> Array:
            return _attnpy.activate(gate, name, times, num_threads)

        output = linear(
            active(), self.W_2, self.b_2, residual=residual, num_threads=num_threads
        )
        checked = _vjp.of_output(output)

        def pullback(grad_output: ArrayLike) -> LayerGradients:
            grad = checked(grad_output)
            of_active, of_2, of_b_2 = linear_vjp(
                grad, active(), self.W_2, self.b_2, num_threads=num_threads
            )
            of_gate = _attnpy.activate_vjp(of_active, gate, name, times, num_threads)
            of_x: Array | None = None
            found: dict[str, Array | None] = {"W_2": of_2, "b_2": of_b_2}
            if self.W_gate is not None:
                of_x, found["W_gate"], found["b_gate"] = linear_vjp(
                    of_gate, x, self.W_gate, self.b_gate, num_threads=num_threads
                )
                of_gate = _attnpy.activate(gate, name, of_active, num_threads)
                if name == "swiglu_oai":
                    of_gate *= abs(hidden) <= LIMIT
            of_x, found["W_1"], found["b_1"] = linear_vjp(
                of_gate, x, self.W_1, self.b_1, add_to=of_x, num_threads=num_threads
            )
            return LayerGradients(of_x, _vjp.of_parameters(self, found))

        return output, pullback


def run(
    network: FeedForward,
    x: Array,
    norm: Norm | None,
    residual: ArrayLike | None,
    mixed: bool,
    num_threads: int | None,
) -> Array:
    """Run a network on tokens after a norm."""
    arguments = _arguments(network)
    return _attnpy.feed_forward(x, norm, arguments, residual, mixed, num_threads)


def _arguments(network: FeedForward) -> Network:
    """Return a network's arguments for the C module."""
    return Network(
        network.W_1,
        network.b_1,
        network.W_gate,
        network.b_gate,
        network.W_2,
        network.b_2,
        network.activation if network.W_gate is None else network._of_gate(),
    )
