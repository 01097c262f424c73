"""A mixture of experts: many feed-forward networks, of which each token takes a few."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

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
from attnpy._options import ExpertKinds, Experts, Options
from attnpy._softmax import softmax
from attnpy._vjp import LayerGradients
from attnpy.blocks.feed_forward import GATED, FeedForward

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from attnpy._typing import Activation, Array, Precision
    from attnpy._vjp import Pullback

# What an expert takes beside its numbers, about: objects of Python.
EXPERT_BYTES = 4096
KINDS = ExpertKinds(
    FeedForward, dict[str, str](GATED), Options(return_weights=True, return_lse=True)
)
CALL = FeedForward.__call__  # unless someone has replaced it


@_keywords.answering
class MixtureOfExperts:
    r"""Feed-forward networks, of which a router chooses a few for each token.

    Parameters
    ----------
    embed_dim : int
        `E`.
    hidden_dim : int
        `F`, the size of each expert's hidden layer.
    num_experts : int
        `N`, how many there are.
    num_experts_per_token : int
        How many of them each token goes through, at most `N`.
    renormalize : bool, optional
        Divide the weights of a token's experts by their sum, so that they add up to 1.
    shared_dim : int, optional
        Add an expert for all tokens, with a hidden layer of this size and a gate.
    activation : str, optional
        As in `FeedForward`.
    bias : bool, optional
        Add biases to the experts' networks.
    router_bias : bool, optional
        Add a bias to the experts' scores.
    dtype, rng
        As in `FeedForward`.

    Attributes
    ----------
    router : ndarray, shape (E, N)
        Its products with tokens are the experts' scores. `pack` and `quantize` leave it
        as it is.
    router_bias : ndarray, shape (N,), or None
        Added to the scores; 0 at first.
    experts : list of FeedForward
        The `N` networks.
    shared : FeedForward or None
        The expert for all tokens.
    shared_gate : ndarray, shape (E, 1), or None
        Its products with tokens are the arguments of the shared expert's gate.
    num_experts_per_token, renormalize
        As given.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range.
    MemoryError
        If memory cannot hold the parameters; nothing has been allocated then.

    Notes
    -----
    With the router :math:`R`, its bias :math:`b` and the networks :math:`f_j` a token
    :math:`x` becomes

    .. math::

        \sum_{j \in T} w_j f_j(x), \quad w_j = \frac{p_j}{\sum_{i \in T} p_i}, \quad
        p = \operatorname{softmax}(x R + b)

    where :math:`T` are the experts with the largest :math:`p_j`, of equal ones those
    with the lowest numbers; without `renormalize` :math:`w_j = p_j`. This is from
    Jiang et al., "Mixtral of Experts" (2024), section 2.1. A shared expert :math:`s`
    with the gate :math:`g` adds :math:`\sigma(x g) s(x)`, as in Qwen2-MoE.

    Tokens are grouped by expert, so that a call reads each matrix once, and only those
    of experts that some token takes. Threads share the products of all experts. The sum
    over a token's experts goes from the lowest number to the highest, in float32, or
    float64 for such parameters. The bits of a token depend neither on the other tokens
    of a call nor on the number of threads.

    Examples
    --------
    >>> import numpy as np
    >>> from attnpy.blocks import MixtureOfExperts
    >>> rng = np.random.default_rng(0)
    >>> layer = MixtureOfExperts(6, 24, 8, 2, rng=rng)
    >>> x = rng.standard_normal((5, 6), dtype=np.float32)
    >>> layer(x).shape
    (5, 6)

    Which experts each token takes, the one with the largest weight first:

    >>> chosen, weights = layer.route(x)
    >>> chosen.shape, bool(np.allclose(weights.sum(axis=-1), 1))
    ((5, 2), True)
    """

    router: Array
    router_bias: Array | None
    experts: list[FeedForward]
    shared: FeedForward | None
    shared_gate: Array | None
    num_experts_per_token: int
    renormalize: bool

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        num_experts: int,
        num_experts_per_token: int,
        *,
        renormalize: bool = True,
        shared_dim: int | None = None,
        activation: Activation = "swiglu",
        bias: bool = True,
        router_bias: bool = False,
        dtype: DTypeLike = np.float32,
        rng: np.random.Generator | None = None,
    ) -> None:
        outer = _checks.count(embed_dim, "embed_dim")
        inner = _checks.count(hidden_dim, "hidden_dim")
        n = _checks.count(num_experts, "num_experts")
        chosen = _checks.count(num_experts_per_token, "num_experts_per_token")
        if chosen > n:
            raise ValueError(
                f"num_experts_per_token: expected at most num_experts = {n}, got "
                f"{chosen}"
            )
        self.num_experts_per_token = chosen
        self.renormalize = _checks.flag(renormalize, "renormalize")
        kind, rng = _dtypes.floating(dtype), _checks.generator(rng)
        _checks.memory("MixtureOfExperts", kind, (n, 3, outer, inner))
        _checks.memory("MixtureOfExperts", np.uint8, (n, EXPERT_BYTES))

        def network(size: int) -> FeedForward:
            return FeedForward(
                outer, size, activation=activation, bias=bias, dtype=kind, rng=rng
            )

        self.router = _parameters.xavier_uniform(rng, (outer, n), kind)
        biased = _checks.flag(router_bias, "router_bias")
        self.router_bias = _parameters.zeros(biased, n, kind)
        self.experts = [network(inner) for _ in range(n)]
        self.shared = self.shared_gate = None
        if shared_dim is not None:
            self.shared = network(_checks.count(shared_dim, "shared_dim"))
            self.shared_gate = _parameters.xavier_uniform(rng, (outer, 1), kind)

    parameters = _parameters.parameters
    state_dict = _parameters.state_dict
    load_state_dict = _parameters.load_state_dict
    pack = _parameters.pack
    quantize = _parameters.quantize

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        first = self.experts[0]
        embed_dim, hidden_dim = first.W_1.shape
        return {
            "embed_dim": embed_dim,
            "hidden_dim": hidden_dim,
            "num_experts": len(self.experts),
            "num_experts_per_token": self.num_experts_per_token,
            "renormalize": self.renormalize,
            "shared_dim": None if self.shared is None else self.shared.W_1.shape[1],
            "activation": first.activation,
            "bias": first.b_1 is not None,
            "router_bias": self.router_bias is not None,
        }

    __repr__ = _repr.shows(_shown)

    def route(
        self, x: ArrayLike, *, num_threads: int | None = None
    ) -> tuple[NDArray[np.int64], Array]:
        """Choose the experts of tokens.

        Parameters
        ----------
        x : array_like, shape (..., E)
            Tokens, with any leading axes.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Returns
        -------
        experts : ndarray of int64, shape (..., num_experts_per_token)
            The numbers of each token's experts, from the largest weight to the
            smallest.
        weights : ndarray, shape (..., num_experts_per_token)
            What their results are multiplied by: float32, or float64 if x or the
            parameters are.

        Raises
        ------
        TypeError, ValueError
            If x has another dtype or size.
        """
        tokens = _checks.array(x, "x")
        self._check()
        probabilities = self._probabilities(tokens, num_threads)
        chosen, weights = self._chosen(probabilities)
        shape = *tokens.shape[:-1], self.num_experts_per_token
        return chosen.reshape(shape), weights.reshape(shape)

    def __call__(
        self,
        x: ArrayLike,
        *,
        residual: ArrayLike | None = None,
        mixed: bool = False,
        num_threads: int | None = None,
    ) -> Array:
        """Run the experts that the router chooses.

        Parameters
        ----------
        x, residual, mixed, num_threads
            As in `FeedForward.__call__`.

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
        tokens = _checks.array(x, "x")
        self._check()
        total: Array | None = None
        arguments = mixture_arguments(self)
        if arguments is not None:  # in float32, with the bits of one by one
            total = _attnpy.experts(tokens, arguments, num_threads)
        if total is None:
            total = self._one_by_one(tokens, num_threads)
        return self._result(tokens, total, residual, mixed)

    def _one_by_one(self, x: Array, num_threads: int | None) -> Array:
        """Return the sum (T, E) over experts, whatever kinds they are of."""
        probabilities = self._probabilities(x, num_threads)
        rows = x.reshape(len(probabilities), x.shape[-1])
        total: Array = np.zeros(rows.shape, probabilities.dtype)
        chosen, weights = self._chosen(probabilities)
        for expert, which, ranks in _groups(chosen, len(self.experts)):
            found = self.experts[expert](
                rows[which], mixed=True, num_threads=num_threads
            )
            total[which] += found * weights[which, ranks, np.newaxis]
        if self.shared is not None:
            found = self.shared(rows, mixed=True, num_threads=num_threads)
            total += found * self._share(rows, num_threads)
        return total

    def _check(self) -> None:
        """Refuse attributes that were set to what does not fit together."""
        n, columns = len(self.experts), np.shape(self.router)[1:]
        if columns != (n,):
            raise ValueError(
                f"router: expected (E, {n}), a column for each expert, got "
                f"{np.shape(self.router)}"
            )
        if self.router_bias is not None and np.shape(self.router_bias) != (n,):
            raise ValueError(
                f"router_bias: expected ({n},), a number for each expert, got "
                f"{np.shape(self.router_bias)}"
            )
        chosen = _checks.count(self.num_experts_per_token, "num_experts_per_token")
        if chosen > n:
            raise ValueError(
                f"num_experts_per_token: expected at most {n} experts, got {chosen}"
            )
        if self.shared is not None and self.shared_gate is None:
            raise ValueError("shared_gate: expected one for the expert, got None")

    def _probabilities(self, x: Array, num_threads: int | None) -> Array:
        """Return the experts' probabilities (T, N), float32 or float64.

        `_check` comes before it.
        """
        scores = _wide(x, self.router, num_threads, self.router_bias)
        return softmax(scores.reshape(-1, scores.shape[-1]), num_threads)[0]

    def _chosen(self, probabilities: Array) -> tuple[NDArray[np.int64], Array]:
        """Return the best experts of each token, and their weights, both (T, k)."""
        # A stable order has the lowest of equal ones first.
        order = np.argsort(-probabilities, axis=-1, kind="stable")
        chosen = order[:, : self.num_experts_per_token]
        weights = probabilities[np.arange(len(chosen))[:, np.newaxis], chosen]
        if self.renormalize:
            weights /= _sum(weights)
        return chosen, weights

    def _share(self, rows: Array, num_threads: int | None) -> Array:
        """Return the weight of the shared expert for each token, (T, 1)."""
        assert self.shared_gate is not None
        scores = _wide(rows, self.shared_gate, num_threads)
        # The logistic function is the softmax of a number and 0.
        both = np.concatenate([scores, np.zeros_like(scores)], axis=-1)
        return softmax(both, num_threads)[0][:, :1]

    def _result(
        self, x: Array, total: Array, residual: ArrayLike | None, mixed: bool
    ) -> Array:
        """Return a sum (T, E) in the shape and dtype of a call's result."""
        own = self.experts[0].W_1.dtype
        dtype = total.dtype if mixed else _dtypes.of_result(x.dtype, own)
        total = total.reshape(x.shape)
        if residual is not None:
            given = _checks.array(residual, "residual")
            _dtypes.operand(given, "residual")
            if given.shape != x.shape:
                raise ValueError(
                    f"residual: expected the shape of x, {x.shape}, got {given.shape}"
                )
            total += given.astype(dtype).astype(total.dtype, copy=False)
        return total.astype(dtype, copy=False)

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
        x, residual, checkpoint, num_threads
            As in `FeedForward.vjp`.

        Returns
        -------
        output : ndarray, shape (..., E)
        pullback : callable
            As those of `FeedForward.vjp`. Experts that no token takes have gradients of
            0.

        Raises
        ------
        TypeError, ValueError
            As there.

        Notes
        -----
        The choice of experts has no gradient: it is constant between the tokens where
        it changes. With the gradient :math:`G` of a token's output that of an expert's
        result is :math:`w_j G`, and that of its weight
        :math:`dw_j = G \cdot f_j(x)`. With `renormalize`
        :math:`dp_j = (dw_j - \sum_{i \in T} w_i dw_i) / \sum_{i \in T} p_i`, else
        :math:`dp_j = dw_j`; it is 0 for all other experts, and the gradient of the
        router's products is :math:`p_j (dp_j - \sum_i p_i dp_i)`. A loss that balances
        the use of experts is not part of it.
        """
        _vjp.check_trainable(self, ("router", "router_bias", "shared_gate"))
        tokens = _vjp.floating(x, "x")

        def run() -> tuple[Array, Pullback]:
            return self._run_vjp(tokens, residual, num_threads)

        return _vjp.run(run, checkpoint)

    def _run_vjp(
        self, x: Array, residual: ArrayLike | None, num_threads: int | None
    ) -> tuple[Array, Pullback]:
        self._check()
        probabilities = self._probabilities(x, num_threads)
        rows = x.reshape(len(probabilities), x.shape[-1])
        chosen, weights = self._chosen(probabilities)
        total = np.zeros(rows.shape, probabilities.dtype)
        runs = self._run_experts(rows, chosen, num_threads)
        for run in runs:
            total[run.which] += run.found * run.of(weights)
        common: _Common | None = None
        if self.shared is not None:
            found, pull = self.shared.vjp(rows, num_threads=num_threads)
            common = _Common(found, self._share(rows, num_threads), pull)
            total += found * common.share
        output = self._result(x, total, residual, mixed=False)
        checked = _vjp.of_output(output)

        def pullback(grad_output: ArrayLike) -> LayerGradients:
            grad = checked(grad_output).reshape(rows.shape)
            collected = _vjp.Collector(self)
            of_rows = np.zeros(rows.shape, total.dtype)
            of_weights = _pull_experts(runs, grad, weights, of_rows, collected)
            if common is not None:
                of_rows = self._pull_shared(
                    common, grad, rows, of_rows, collected, num_threads
                )
            of_scores = self._scores_gradient(
                probabilities, chosen, weights, of_weights
            )
            of_rows, of_router, of_bias = linear_vjp(
                *(of_scores, rows, self.router, self.router_bias),
                add_to=of_rows,
                num_threads=num_threads,
            )
            collected.add({"router": of_router, "router_bias": of_bias})
            for name, array in self.parameters().items():
                collected.found.setdefault(name, np.zeros_like(array))
            of_x = of_rows.reshape(x.shape).astype(x.dtype, copy=False)
            return LayerGradients(of_x, collected.parameters())

        return output, pullback

    def _run_experts(
        self, rows: Array, chosen: NDArray[np.int64], num_threads: int | None
    ) -> list[_Run]:
        """Run each expert that is chosen on its tokens."""
        runs = []
        for j, which, ranks in _groups(chosen, len(self.experts)):
            found, pull = self.experts[j].vjp(rows[which], num_threads=num_threads)
            runs.append(_Run(j, which, ranks, found, pull))
        return runs

    def _pull_shared(
        self,
        common: _Common,
        grad: Array,
        rows: Array,
        of_rows: Array,
        collected: _vjp.Collector,
        num_threads: int | None,
    ) -> Array:
        """Collect the shared expert's gradients; add those of tokens to of_rows."""
        found, share, pull = common
        back = pull(grad * share)
        of_rows += back.x
        collected.add(back.parameters, "shared.")
        of_share = (grad * found).sum(axis=-1, keepdims=True)
        of_scores = of_share * share * (1 - share)
        assert self.shared_gate is not None
        of_rows, of_gate, _ = linear_vjp(
            *(of_scores, rows, self.shared_gate, None),
            add_to=of_rows,
            num_threads=num_threads,
        )
        collected.add({"shared_gate": of_gate})
        return of_rows

    def _scores_gradient(
        self, probabilities: Array, chosen: Array, weights: Array, of_weights: Array
    ) -> Array:
        """Return the gradient (T, N) of the router's products."""
        own = np.take_along_axis(probabilities, chosen, axis=-1)
        if self.renormalize:
            of_weights = (of_weights - _sum(weights * of_weights)) / _sum(own)
        inside = np.zeros_like(probabilities)
        np.put_along_axis(inside, chosen, of_weights, axis=-1)
        found: Array = probabilities * (inside - _sum(own * of_weights))
        return found


def mixture_arguments(mixture: MixtureOfExperts) -> Experts | None:
    """Return the arguments for the C module; None if it lacks what a call does."""
    if FeedForward.__call__ is not CALL:
        return None
    return Experts(
        mixture.router,
        mixture.router_bias,
        mixture.experts,
        mixture.shared,
        mixture.shared_gate,
        mixture.num_experts_per_token,
        mixture.renormalize,
        KINDS,
    )


def _wide(
    x: Array, weight: Array, num_threads: int | None, bias: Array | None = None
) -> Array:
    """Return products that are not rounded to 16 bits."""
    precision: Precision = "wide" if weight.dtype.itemsize == 2 else "promoted"
    return linear(x, weight, bias, precision=precision, num_threads=num_threads)


def _sum(columns: Array) -> Array:
    """Return the sums (T, 1) over columns, always from the first to the last."""
    total: Array = np.add.accumulate(columns, axis=-1)[:, -1:]
    return total


Which = Any  # an index of arrays


class _Run(NamedTuple):
    """What an expert made of its tokens, and their ranks of it."""

    expert: int
    which: Which
    ranks: Which
    found: Array
    pull: Pullback

    def of(self, weights: Array) -> Array:
        """Return the weights of its results, as a column."""
        column: Array = weights[self.which, self.ranks, np.newaxis]
        return column


class _Common(NamedTuple):
    """What the shared expert made of all tokens."""

    found: Array
    share: Array  # its weights, a column
    pull: Pullback


def _pull_experts(
    runs: list[_Run],
    grad: Array,
    weights: Array,
    of_rows: Array,
    collected: _vjp.Collector,
) -> Array:
    """Collect the experts' gradients, and return those of their weights (T, k).

    Those of the tokens are added to `of_rows`.
    """
    of_weights: Array = np.zeros(weights.shape, of_rows.dtype)
    for run in runs:
        own = grad[run.which]
        of_weights[run.which, run.ranks] = np.einsum("te,te->t", own, run.found)
        back = run.pull(own * run.of(weights))
        of_rows[run.which] += back.x
        collected.add(back.parameters, f"experts.{run.expert}.")
    return of_weights


def _groups(
    chosen: NDArray[np.int64], num_experts: int
) -> Iterator[tuple[int, Which, Which]]:
    """Yield each expert that is chosen, its tokens, and its rank for each of them."""
    n_tokens, n_ranks = chosen.shape
    if n_tokens == 1:  # in less time
        experts = chosen[0].tolist()
        for rank in sorted(range(n_ranks), key=experts.__getitem__):
            yield experts[rank], slice(1), rank
        return
    order = np.argsort(chosen, axis=None, kind="stable")
    counts = np.bincount(chosen.reshape(-1), minlength=num_experts)
    stop = 0
    for expert in counts.nonzero()[0].tolist():
        start, stop = stop, stop + int(counts[expert])
        which, ranks = np.divmod(order[start:stop], n_ranks)
        yield expert, which, ranks
