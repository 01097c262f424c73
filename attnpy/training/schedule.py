"""Schedules of the learning rate."""

from __future__ import annotations

import math

from attnpy import _checks, _keywords


@_keywords.answering
def warmup_cosine(
    step: int, *, lr: float, warmup_steps: int, total_steps: int, min_lr: float = 0.0
) -> float:
    r"""Return the learning rate of a step: a linear rise, then a cosine decay.

    Parameters
    ----------
    step : int
        Counted from 0.
    lr : float
        The highest rate, at step `warmup_steps`.
    warmup_steps : int
        How many steps the rate rises; with 0 it begins at `lr`.
    total_steps : int
        From this step on the rate is `min_lr`; at least `warmup_steps`.
    min_lr : float, optional
        From 0 to `lr`.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong kind, or is out of its range.

    Notes
    -----
    With n steps, w of them for the warm-up,

    .. math::

        lr \, \frac{t + 1}{w + 1} \;\text{ for } t < w, \qquad
        lr_{min} + \frac{lr - lr_{min}}{2} \left(1 + \cos \frac{\pi (t - w)}{n - w}
        \right) \;\text{ for } w \le t \le n

    The cosine is from Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with
    Warm Restarts" (2017), equation 5, without restarts; the linear warm-up is from
    Goyal et al., "Accurate, Large Minibatch SGD" (2017), section 2.2.

    Examples
    --------
    >>> from attnpy.training import warmup_cosine
    >>> rates = {"lr": 0.1, "warmup_steps": 4, "total_steps": 12}
    >>> [round(warmup_cosine(t, **rates), 3) for t in (0, 1, 3, 4, 8, 12, 20)]
    [0.02, 0.04, 0.08, 0.1, 0.05, 0.0, 0.0]
    """
    step = _checks.size(step, "step")
    n_warm = _checks.size(warmup_steps, "warmup_steps")
    n_steps = _checks.size(total_steps, "total_steps")
    highest = _checks.above(lr, "lr", 0)
    lowest = _checks.above(min_lr, "min_lr", -math.inf)
    if n_steps < n_warm:
        raise ValueError(
            f"total_steps: expected at least warmup_steps = {n_warm}, got {n_steps}"
        )
    if not 0 <= lowest <= highest:
        raise ValueError(f"min_lr: expected 0 to lr = {highest}, got {lowest}")
    if step < n_warm:
        return highest * ((step + 1) / (n_warm + 1))
    if step >= n_steps:
        return lowest
    # (1 + cos(2x)) / 2 is the square of cos(x).
    share = _cosine(math.pi / 2 * ((step - n_warm) / (n_steps - n_warm))) ** 2
    return lowest + (highest - lowest) * share


def _cosine(x: float) -> float:
    """Return the cosine of 0 to pi / 2, with the same bits everywhere."""
    term = total = 1.0
    for n in range(2, 26, 2):  # (pi / 2)**26 / 26! is below rounding
        term *= -x * x / ((n - 1) * n)
        total += term
    return total
