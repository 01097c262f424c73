"""The extension module, built from csrc/. Private: use the functions of attnpy.

The groups of arguments are those of attnpy._options; plain tuples will do.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnpy._options import (
    VJP,
    Cache,
    Heads,
    Norm,
    Norms,
    Projections,
    Rotary,
    Wanted,
)
from attnpy._typing import Array, OptionsTuple

def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, options: OptionsTuple, /
) -> Any: ...
def attention_vjp(
    grad_output: ArrayLike,
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    options: OptionsTuple,
    vjp: VJP,
    /,
) -> tuple[Array | None, Array | None, Array | None, Array | None, Array | None]: ...
def statistics(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    options: OptionsTuple,
    wanted: Wanted,
    /,
) -> tuple[Array | None, ...]: ...
def attend_partial(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    options: OptionsTuple,
    state: Array | None,
    ends: bool,
    /,
) -> Any: ...
def layer(
    x: ArrayLike,
    context: ArrayLike | None,
    heads: Heads,
    projections: Projections,
    norms: Norms | None,
    rotary: Rotary | None,
    cache: Cache | None,
    options: OptionsTuple,
    /,
) -> Any: ...
def linear(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None,
    activation: str | None,
    times: ArrayLike | None,
    residual: ArrayLike | None,
    precision: str,
    num_threads: int | None,
    tier: str | None = None,
    /,
) -> Array: ...
def normalize(
    x: ArrayLike,
    residual: ArrayLike | None,
    norm: Norm,
    num_threads: int | None,
    tier: str | None = None,
    /,
) -> Array: ...
def normalize_vjp(
    grad_output: ArrayLike,
    x: ArrayLike,
    norm: Norm,
    num_threads: int | None = None,
    tier: str | None = None,
    /,
) -> tuple[Array, Array, Array | None]: ...
def rotate(
    x: ArrayLike,
    cos_sin: Array,
    interleaved: bool,
    out: Array | None,
    num_threads: int | None,
    /,
) -> Array: ...
def activate(
    x: ArrayLike,
    activation: str | None,
    times: ArrayLike | None = None,
    num_threads: int | None = None,
    tier: str | None = None,
    /,
) -> Array: ...
def activate_vjp(
    grad_output: ArrayLike,
    x: ArrayLike,
    activation: str | None,
    times: ArrayLike | None = None,
    num_threads: int | None = None,
    tier: str | None = None,
    /,
) -> Array: ...
def answer_xla(function: Callable[[int], object], /) -> int: ...
def groups() -> dict[str, list[str]]: ...

class Plan:
    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any]
    mask: NDArray[Any] | None
    bias: NDArray[Any] | None
    q_offset: NDArray[Any] | None
    kv_lengths: NDArray[Any] | None
    output: NDArray[Any]
    weights: NDArray[Any] | None
    lse: NDArray[Any] | None
    def __new__(
        cls, query: Array, key: Array, value: Array, options: OptionsTuple, /
    ) -> Any: ...
    def __call__(self) -> Any: ...

def set_num_threads(num_threads: int, /) -> None: ...
def get_num_threads() -> int: ...
def set_portable(portable: bool, /) -> None: ...
def get_portable() -> bool: ...
def set_work_per_thread(work: float, /) -> float: ...
def set_wide_tiles(wide: bool, /) -> bool: ...
def watch_tasks(call: Callable[[], object], notes: NDArray[np.int64], /) -> int: ...
def config() -> dict[str, Any]: ...
