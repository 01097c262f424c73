"""A matrix and a bias: the projection at the end of most models, and most heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _dtypes, _keywords, _parameters, _pickles, _repr, _vjp
from attnpy._linear import linear, linear_vjp
from attnpy._vjp import LayerGradients

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from attnpy._typing import Array
    from attnpy._vjp import Pullback


@_keywords.answering
class Linear:
    r"""The product of each token with a matrix, plus a bias.

    Parameters
    ----------
    in_features, out_features : int
        `K` and `M`, the sizes of a token before and after.
    bias : bool, optional
        Add a bias.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.
    rng : numpy.random.Generator, optional
        Draws the initial values; by default ``numpy.random.default_rng()``, with
        different values in every run.

    Attributes
    ----------
    W : ndarray, shape (K, M)
        Initially uniform random numbers, from Glorot and Bengio (2010), as in
        `attnpy.layers.MultiHeadAttention`.
    b : ndarray, shape (M,), or None
        0 at first; None without a bias.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the parameters; nothing has been allocated then.

    See Also
    --------
    attnpy.checkpoints.load : reads `torch.nn.Linear` as the family "torch_linear".
    attnpy.checkpoints.to_torch : the way back.

    Notes
    -----
    .. math:: x W + b

    `torch.nn.Linear` has the transpose of `W`, (out, in), as its ``weight``. The names
    differ so that neither is taken for the other, even where they are square.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.blocks import Linear
    >>> layer = Linear(6, 3, rng=np.random.default_rng(0))
    >>> layer(np.ones((5, 6), np.float32)).shape
    (5, 3)
    """

    W: Array
    b: Array | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        shape = (
            _checks.count(in_features, "in_features"),
            _checks.count(out_features, "out_features"),
        )
        bias, dtype = _checks.flag(bias, "bias"), _dtypes.floating(dtype)
        _checks.memory("Linear", dtype, shape)
        self.W = _parameters.xavier_uniform(_checks.generator(rng), shape, dtype)
        self.b = _parameters.zeros(bias, shape[1], dtype)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict
    pack = _parameters.pack
    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        in_features, out_features = self.W.shape
        return {
            "in_features": in_features,
            "out_features": out_features,
            "bias": self.b is not None,
        }

    __repr__ = _repr.shows(_shown)

    def __call__(self, x: ArrayLike, *, num_threads: int | None = None) -> Array:
        """Run the layer.

        Parameters
        ----------
        x : array_like, shape (..., K)
            Tokens, with any leading axes.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        ndarray, shape (..., M)
            In the promoted dtype of x and the parameters; integers become float64.

        Raises
        ------
        TypeError, ValueError
            If x has another dtype or size.
        """
        return linear(x, self.W, self.b, num_threads=num_threads)

    def vjp(
        self, x: ArrayLike, *, num_threads: int | None = None
    ) -> tuple[Array, Pullback]:
        """Return the output of a call, and the pullback of its gradients.

        Parameters
        ----------
        x, num_threads
            As in a call.

        Returns
        -------
        output : ndarray, shape (..., M)
            With the same bits as a call.
        pullback : callable
            Takes the gradient with respect to the output, and returns an
            `attnpy.layers.LayerGradients`. It keeps x.

        Raises
        ------
        TypeError, ValueError
            As a call; if the parameters are packed, or not float32 or float64.

        Examples
        --------
        >>> import numpy as np
        >>> from attnpy.blocks import Linear
        >>> layer = Linear(6, 3, rng=np.random.default_rng(0))
        >>> output, pullback = layer.vjp(np.ones((5, 6), np.float32))
        >>> gradients = pullback(np.ones_like(output))
        >>> gradients.x.shape, gradients.parameters["b"]
        ((5, 6), array([5., 5., 5.], dtype=float32))
        """
        _vjp.check_trainable(self, ("W", "b"))
        tokens = _vjp.floating(x, "x")
        output = self(tokens, num_threads=num_threads)
        checked = _vjp.of_output(output)

        def pullback(grad_output: ArrayLike) -> LayerGradients:
            of_x, of_weight, of_bias = linear_vjp(
                checked(grad_output), tokens, self.W, self.b, num_threads=num_threads
            )
            found = {"W": of_weight, "b": of_bias}
            return LayerGradients(of_x, _vjp.of_parameters(self, found))

        return output, pullback
