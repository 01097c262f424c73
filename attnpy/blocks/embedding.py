"""A table with a vector for each token or class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _dtypes, _keywords, _parameters, _pickles, _repr, _vjp

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, DTypeLike

    from attnpy._typing import Array


@_keywords.answering
class Embedding:
    """A table of vectors; a call returns those whose numbers it is given.

    Parameters
    ----------
    num_embeddings : int
        `V`, the number of vectors.
    embedding_dim : int
        `E`, the size of a vector.
    dtype : dtype, optional
        float64, float32, float16 or bfloat16.
    rng : numpy.random.Generator, optional
        Draws the initial values; by default ``numpy.random.default_rng()``, with
        different values in every run.

    Attributes
    ----------
    weight : ndarray, shape (V, E)
        Initially normal random numbers with standard deviation 0.02, as in
        `attnpy.models.BertEncoder`; those of `torch.nn.Embedding` have 1. It is in
        PyTorch's orientation.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the table; nothing has been allocated then.

    See Also
    --------
    attnpy.positions.Learned : the same for positions.
    attnpy.checkpoints.load : reads `torch.nn.Embedding` as "torch_embedding".

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.blocks import Embedding
    >>> layer = Embedding(10, 4, rng=np.random.default_rng(0))
    >>> layer([[7, 1, 1]]).shape
    (1, 3, 4)
    """

    weight: Array

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        shape = (
            _checks.count(num_embeddings, "num_embeddings"),
            _checks.count(embedding_dim, "embedding_dim"),
        )
        kind, rng = _dtypes.floating(dtype), _checks.generator(rng)
        _checks.memory("Embedding", kind, shape)
        self.weight = _dtypes.rounded(0.02 * rng.standard_normal(shape), kind)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        num_embeddings, embedding_dim = self.weight.shape
        return {"num_embeddings": num_embeddings, "embedding_dim": embedding_dim}

    __repr__ = _repr.shows(_shown)

    def __call__(self, token_ids: ArrayLike) -> Array:
        """Return the vectors of these numbers.

        Parameters
        ----------
        token_ids : array_like of int, shape (...)
            0 to ``V - 1``.

        Returns
        -------
        ndarray, shape (..., E)
            A copy, in the dtype of `weight`.

        Raises
        ------
        TypeError
            If `token_ids` are not integers.
        ValueError
            If a number is not in the table.
        MemoryError
            If memory cannot hold the result.
        """
        n_rows, size = self.weight.shape
        ids = _checks.integers(token_ids, "token_ids", 0, n_rows - 1)
        _checks.memory("token_ids", self.weight.dtype, (*ids.shape, size))
        return np.array(self.weight[ids])

    def vjp(
        self, token_ids: ArrayLike
    ) -> tuple[Array, Callable[[ArrayLike], dict[str, Array]]]:
        """Return the output of a call, and the pullback of its gradients.

        Parameters
        ----------
        token_ids
            As in a call.

        Returns
        -------
        output : ndarray, shape (..., E)
            With the same bits as a call.
        pullback : callable
            Takes the gradient with respect to the output, and returns that of the
            table, a dict with the names of `parameters`. Gradients of a vector that was
            returned several times are added in the order of `token_ids`.

        Raises
        ------
        TypeError, ValueError
            As a call; if the table is not float32 or float64.

        Examples
        --------
        >>> import numpy as np
        >>> from attnpy.blocks import Embedding
        >>> layer = Embedding(3, 2, rng=np.random.default_rng(0))
        >>> output, pullback = layer.vjp([0, 2, 2])
        >>> pullback(np.ones_like(output))["weight"]
        array([[1., 1.],
               [0., 0.],
               [2., 2.]], dtype=float32)
        """
        _vjp.check_trainable(self, ("weight",))
        ids = np.array(
            _checks.integers(token_ids, "token_ids", 0, len(self.weight) - 1)
        )
        output = self(ids)
        checked = _vjp.of_output(output)

        def pullback(grad_output: ArrayLike) -> dict[str, Array]:
            table = _vjp.look_up_vjp(self.weight, ids, checked(grad_output))
            return _vjp.of_parameters(self, {"weight": table})

        return output, pullback
