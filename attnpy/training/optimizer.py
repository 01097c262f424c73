"""AdamW."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _attnpy, _checks, _dtypes, _keywords, _parameters, _pickles, _repr
from attnpy._dtypes import is_bfloat16
from attnpy.training import _arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import ArrayLike

    from attnpy._typing import Array

GRADIENT = 3  # its place among the arrays of a step


@_keywords.answering
class AdamW:
    r"""Adam with decoupled weight decay.

    Parameters
    ----------
    parameters : mapping of str to ndarray
        The arrays to train, in float32, float64 or bfloat16: `parameters()` of a layer
        or a model, or some of them. Each step changes the arrays in place. An array
        that a layer uses in several places is one parameter, whose gradient is the sum.
    lr : float, optional
        The learning rate, at least 0.
    betas : tuple of float, optional
        The decay of the running means of gradients and of their squares; at least 0 and
        below 1.
    eps : float, optional
        Above 0.
    weight_decay : float, optional
        At least 0.
    no_decay : iterable of str, optional
        The parameters that do not decay; by default all do, as in PyTorch. It is usual
        to exempt biases and the weights of norms: ``[name for name, array in
        parameters.items() if array.ndim < 2]``.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind or dtype, or is out of its range; if an array
        is read-only, such as a packed matrix; if two arrays, or two numbers of one,
        share memory; if `no_decay` has a name that `parameters` does not have.

    See Also
    --------
    warmup_cosine : a learning rate for each step.
    clip_norm : limits the length of gradients.

    Notes
    -----
    With the gradient g, step t counted from 1 and decay w,

    .. math::

        m \leftarrow \beta_1 m + (1 - \beta_1) g, \quad
        v \leftarrow \beta_2 v + (1 - \beta_2) g^2

        \theta \leftarrow (1 - \eta w) \, \theta - \eta \,
        \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    from Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019),
    algorithm 2, with learning rate and defaults as in PyTorch's ``AdamW``. m and v are
    in the dtype of their parameter.

    A bfloat16 number has 8 significant bits, so most steps would be rounded away. For
    such a parameter the optimizer keeps a float32 copy, makes its steps there, with m
    and v in float32, and rounds the result to the parameter, as mixed precision does
    (Micikevicius et al., "Mixed Precision Training" (2018), section 3.1). PyTorch's
    optimizers change the parameter itself. Elements that other code has written to
    since the last step are copied first.

    Examples
    --------
    Weights that turn x into its first half:

    >>> import numpy as np
    >>> from attnpy.training import AdamW
    >>> rng = np.random.default_rng(0)
    >>> parameters = {"W": np.zeros((4, 2))}
    >>> optimizer = AdamW(parameters, lr=0.1, weight_decay=0.0)
    >>> for step in range(200):
    ...     x = rng.standard_normal((8, 4))
    ...     error = x @ parameters["W"] - x[:, :2]
    ...     optimizer.step({"W": x.T @ error / 8})
    >>> np.abs(parameters["W"].round(2))
    array([[1., 0.],
           [0., 1.],
           [0., 0.],
           [0., 0.]])
    """

    parameters: dict[str, Array]
    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    no_decay: frozenset[str]
    _state: dict[str, Array]

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle or a copy, if steps can be made with it."""
        _pickles.set_state(self, state)
        with _pickles.judged(self):
            judged = AdamW(
                self.parameters,
                betas=self.betas,
                eps=self.eps,
                no_decay=self.no_decay,
            )
            given = _parameters.checked(judged._state, self._state)
            check_step(given["step"])
            for name, array in judged._state.items():
                if self._state[name].dtype != array.dtype:
                    raise TypeError(
                        f"state[{name!r}]: expected {array.dtype}, "
                        f"got {self._state[name].dtype}"
                    )

    def _shown(self) -> dict[str, Any]:
        no_decay = _repr.Plain(f"{len(self.no_decay)} names")
        return {
            "parameters": self.parameters,
            "lr": _repr.Plain(self.lr),
            "betas": self.betas,
            "eps": self.eps,
            "weight_decay": self.weight_decay,
            "no_decay": no_decay if self.no_decay else None,
            "step": int(self._state["step"]),
        }

    __repr__ = _repr.shows(_shown)

    def __init__(
        self,
        parameters: Mapping[str, Array],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        no_decay: Iterable[str] = (),
    ) -> None:
        self.parameters = _arrays.trainable(parameters, "parameters")
        self.lr = _not_negative(lr, "lr")
        self.betas = _checked_betas(betas)
        self.eps = _checks.above(eps, "eps", 0)
        self.weight_decay = _not_negative(weight_decay, "weight_decay")
        if isinstance(no_decay, str):
            raise TypeError("no_decay: expected a sequence of names, got str")
        names = _checks.items(no_decay, "no_decay", "names")
        for name in names:
            if not isinstance(name, str):
                kind = type(name).__name__
                raise TypeError(f"no_decay: expected a sequence of names, got a {kind}")
        self.no_decay = frozenset(names)
        if unknown := self.no_decay - self.parameters.keys():
            raise ValueError(
                f"no_decay: expected names of parameters, got {sorted(unknown)}"
            )
        self._state = {"step": np.zeros((), np.int64)}
        for kind in ("exp_avg", "exp_avg_sq"):
            for name, array in self.parameters.items():
                self._state[f"{kind}.{name}"] = np.zeros_like(
                    array, np.float32 if is_bfloat16(array.dtype) else None, subok=False
                )
        for name, array in self.parameters.items():
            if is_bfloat16(array.dtype):
                self._state[f"master.{name}"] = array.astype(np.float32, subok=False)

    def step(
        self,
        gradients: Mapping[str, Array],
        lr: float | None = None,
        *,
        num_threads: int | None = None,
    ) -> None:
        """Change the parameters once.

        Parameters
        ----------
        gradients : mapping of str to ndarray
            Exactly one for each parameter, of its shape and dtype; those of bfloat16
            parameters may also be in float32. They are not written to. A gradient in
            the memory of a parameter is copied before the step.
        lr : float, optional
            The learning rate of this step, as `warmup_cosine` gives it; by default that
            of the optimizer.
        num_threads : int, optional
            At least 1; by default `attnpy.get_num_threads`. Changes no bit of the
            result.

        Raises
        ------
        TypeError, ValueError
            If gradients are missing, unexpected, or of another shape or dtype, whose
            names the message lists; or if a number is out of its range. Nothing has
            changed then.

        Notes
        -----
        Gradients are not searched for NaN and infinity, which would spread to the
        parameters; the norm that `clip_norm` returns shows them. Only an interrupt
        (Ctrl-C) in the middle of a step leaves some parameters changed: let it wait for
        the end of the step.
        """
        rate = self.lr if lr is None else _not_negative(lr, "lr")
        if num_threads is not None:
            num_threads = _checks.count(num_threads, "num_threads")
        self._check(gradients)
        written = (*self.parameters.values(), *self._state.values())
        given = _arrays.apart(gradients, written)
        step = self._state["step"]
        step += 1
        factors = _factors(rate, self.betas, self.eps, int(step))
        for name, array in self.parameters.items():
            decay = 0.0 if name in self.no_decay else self.weight_decay
            numbers = [
                self._state.get(f"master.{name}", array),
                self._state[f"exp_avg.{name}"],
                self._state[f"exp_avg_sq.{name}"],
                given[name],
            ]
            if numbers[0] is not array:
                numbers.append(array)
            own = (*factors, 1 - rate * decay)
            for one, mean, square, gradient, *more in _arrays.blocks(numbers, GRADIENT):
                stored = more[0] if more else None
                _attnpy.adamw(one, mean, square, gradient, stored, own, num_threads)

    def state_dict(self) -> dict[str, Array]:
        """Return the state that the next step needs besides parameters and options.

        Returns
        -------
        dict of str to ndarray
            "step", the number of steps made; for each parameter "exp_avg.<name>" and
            "exp_avg_sq.<name>", the running means; for bfloat16 parameters
            "master.<name>", the float32 copies. These are the arrays themselves, as in
            PyTorch: copy them to keep the current values.
        """
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Copy a state into this optimizer.

        Parameters
        ----------
        state : mapping of str to array_like
            From `state_dict` of an optimizer of the same parameters.

        Raises
        ------
        TypeError, ValueError
            If names are missing or unexpected, or shapes are wrong; the message has all
            of them. Nothing has changed then.
        """
        if "step" in _checks.mapping(state, "state"):
            check_step(state["step"])
        _parameters.assign(self._state, state)

    def _check(self, gradients: Mapping[str, Array]) -> None:
        """Require a gradient for each parameter."""
        given = _checks.mapping(gradients, "gradients")
        faults = []
        if missing := [name for name in self.parameters if name not in given]:
            faults.append(f"missing {', '.join(missing)}")
        if unknown := [str(name) for name in given if name not in self.parameters]:
            faults.append(f"unexpected {', '.join(unknown)}")
        for name, array in self.parameters.items():
            if name in given:
                place = f"gradients[{name!r}]"
                _arrays.check_floating(given[name], place, _arrays.TRAINED)
                kinds, theirs = _gradient_dtypes(array), given[name].dtype
                is_one = _dtypes.name(theirs) in kinds
                if not is_one or given[name].shape != array.shape:
                    faults.append(
                        f"{name}: expected {' or '.join(kinds)} {array.shape}, got "
                        f"{theirs} {given[name].shape}"
                    )
        if faults:
            raise ValueError(f"gradients: {'; '.join(faults)}")


def check_step(step: ArrayLike) -> None:
    """Require a number of steps in a state."""
    _checks.integers(step, "state['step']", 0)


def _factors(
    lr: float, betas: tuple[float, float], eps: float, step: int
) -> tuple[float, ...]:
    """Return the factors of a step, in the order of the C module."""
    mean, square = betas
    return (
        *(1 - mean, square, 1 - square),
        *(1 / math.sqrt(1 - _power(square, step)), eps),
        lr / (1 - _power(mean, step)),
    )


def _power(base: float, exponent: int) -> float:
    """Return a power by multiplications only: the same bits everywhere."""
    result = 1.0
    while exponent:
        if exponent % 2:
            result *= base
        base, exponent = base * base, exponent // 2
    return result


def _gradient_dtypes(parameter: Array) -> tuple[str, ...]:
    """Return the dtypes that a parameter's gradient may have."""
    name = _dtypes.name(parameter.dtype)
    return (name, "float32") if name == "bfloat16" else (name,)


def _not_negative(value: float, name: str) -> float:
    number = _checks.above(value, name, -math.inf)
    if number < 0:
        raise ValueError(f"{name}: expected at least 0, got {number}")
    return number


def _checked_betas(betas: tuple[float, float]) -> tuple[float, float]:
    pair = [
        _checks.above(b, "betas", -math.inf)
        for b in _checks.items(betas, "betas", "numbers")
    ]
    if len(pair) != 2 or not all(0 <= beta < 1 for beta in pair):
        raise ValueError(f"betas: expected two numbers from 0 to below 1, got {betas}")
    return pair[0], pair[1]
