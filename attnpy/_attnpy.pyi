"""The extension module, built from csrc/. Private: use the functions of attnpy."""

from typing import Any

from numpy.typing import ArrayLike, NDArray

def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None,
    bias: ArrayLike | None,
    causal: bool | str,
    window: tuple[int | None, int | None] | None,
    q_offset: ArrayLike | None,
    kv_lengths: ArrayLike | None,
    scale: float | None,
    softcap: float | None,
    sinks: ArrayLike | None,
    return_weights: bool,
    return_lse: bool,
    out: NDArray[Any] | None,
    num_threads: int | None,
    tier: str | None = None,
    /,
) -> Any: ...
def linear(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None,
    activation: str | None,
    num_threads: int | None,
    tier: str | None = None,
    /,
) -> NDArray[Any]: ...
def normalize(
    x: NDArray[Any],
    residual: NDArray[Any] | None,
    weight: NDArray[Any],
    bias: NDArray[Any] | None,
    eps: float,
    centre: bool,
    num_threads: int | None,
    tier: str | None = None,
    /,
) -> NDArray[Any]: ...
def rotate(
    x: NDArray[Any], turns: NDArray[Any], interleaved: bool, out: NDArray[Any], /
) -> None: ...
def layer(*arguments: Any) -> Any: ...
def activate(
    x: NDArray[Any], activation: str, tier: str | None = None, /
) -> NDArray[Any]: ...

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
    def __new__(cls, *arguments: Any) -> Any: ...
    def __call__(self) -> Any: ...

def set_num_threads(num_threads: int, /) -> None: ...
def get_num_threads() -> int: ...
def set_portable(portable: bool, /) -> bool: ...
def set_work_per_thread(work: float, /) -> float: ...
def config() -> dict[str, Any]: ...
