"""The extension module, built from csrc/. Private: use the functions of attnpy.

The groups of arguments are those of attnpy._options; plain tuples will do.
"""

from collections.abc import Callable, Set
from types import GenericAlias
from typing import Any, Generic, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self, disjoint_base

from attnpy._options import (
    VJP,
    Cache,
    DecoderLayer,
    Experts,
    Heads,
    Kinds,
    Network,
    Norm,
    Norms,
    Place,
    Projections,
    Rotary,
    Wanted,
)
from attnpy._quantized import QuantizedWeight
from attnpy._typing import Array, OptionsTuple, PlanResult
from attnpy.cache import KVCache

def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, options: OptionsTuple, /
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]: ...
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
def explain(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, options: OptionsTuple, /
) -> tuple[Any, ...]: ...
@overload
def attend_partial(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    options: OptionsTuple,
    state: Array | None,
    ends: Literal[False],
    /,
) -> Array: ...
@overload
def attend_partial(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    options: OptionsTuple,
    state: Array | None,
    ends: Literal[True],
    /,
) -> Array | tuple[Array, Array]: ...
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
) -> Array | tuple[Array, Array]: ...
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
def feed_forward(
    x: ArrayLike,
    norm: Norm | None,
    network: Network,
    residual: ArrayLike | None,
    mixed: bool,
    num_threads: int | None,
    /,
) -> Array: ...
def experts(x: Array, experts: Experts, num_threads: int | None, /) -> Array | None: ...
def stack(
    x: Array,
    layers: tuple[DecoderLayer, ...],
    norm: Norm | None,
    mixed: bool,
    num_threads: int | None,
    /,
) -> Array | None: ...
def read_layers(
    x: Array,
    layers: tuple[object, ...],
    caches: tuple[KVCache | None, ...],
    places: tuple[Place, ...],
    kinds: Kinds,
    mixed: bool,
    /,
) -> tuple[DecoderLayer, ...] | None: ...
def embed(
    tables: tuple[Array | QuantizedWeight, ...],
    numbers: tuple[NDArray[np.int64], ...],
    factor: float,
    num_threads: int | None,
    /,
) -> Array: ...
def adamw(
    parameter: Array,
    mean: Array,
    square: Array,
    gradient: Array,
    stored: Array | None,
    factors: tuple[float, ...],
    num_threads: int | None,
    /,
) -> None: ...
def sum_of_squares(numbers: Array, num_threads: int | None, /) -> float: ...
def scale(numbers: Array, factor: float, num_threads: int | None, /) -> None: ...
def prepare(parts: tuple[Any, ...], /) -> object: ...
def distance_scores(
    of_queries: ArrayLike,
    of_keys: ArrayLike,
    columns: NDArray[np.int64],
    num_threads: int | None,
    /,
) -> Array: ...
def products(x: ArrayLike, weights: ArrayLike, num_threads: int | None, /) -> Array: ...
def normalize(
    x: ArrayLike,
    residual: ArrayLike | None,
    norm: Norm,
    num_threads: int | None,
    tier: str | None = None,
    moments: Array | None = None,
    /,
) -> Array: ...
def normalize_vjp(
    grad_output: ArrayLike,
    x: ArrayLike,
    norm: Norm,
    num_threads: int | None = None,
    tier: str | None = None,
    moments: Array | None = None,
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
def quantize_heads(
    x: Array,
    out: NDArray[np.int8],
    scale: NDArray[np.float32],
    num_threads: int | None,
    /,
) -> None: ...
def activate(
    x: ArrayLike,
    activation: str | None,
    times: ArrayLike | None = None,
    num_threads: int | None = None,
    tier: str | None = None,
    /,
) -> Array: ...
def cast(x: Array, like: Array, num_threads: int | None, /) -> Array: ...
def activate_vjp(
    grad_output: ArrayLike,
    x: ArrayLike,
    activation: str | None,
    times: ArrayLike | None = None,
    num_threads: int | None = None,
    tier: str | None = None,
    /,
) -> Array: ...
def array_at(
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dtype: np.dtype[Any],
    owner: object,
    /,
) -> Array: ...
def gate(
    theirs: Callable[..., Any],
    first: object,
    ours: Callable[..., Any],
    thread: object,
    process: list[Any],
    dtypes: Set[Any],
    /,
) -> Callable[..., Any]: ...
def answer_xla(function: Callable[[int], object], /) -> int: ...
def groups() -> dict[str, list[str]]: ...

@disjoint_base
class Plan(Generic[PlanResult]):
    @property
    def query(self) -> Array: ...
    @property
    def key(self) -> Array: ...
    @property
    def value(self) -> Array: ...
    @property
    def mask(self) -> NDArray[np.bool_] | None: ...
    @property
    def bias(self) -> Array | None: ...
    @property
    def key_scale(self) -> Array | None: ...
    @property
    def value_scale(self) -> Array | None: ...
    @property
    def q_offset(self) -> NDArray[np.int64] | None: ...
    @property
    def kv_lengths(self) -> NDArray[np.int64] | None: ...
    @property
    def page_table(self) -> NDArray[np.int64] | None: ...
    @property
    def output(self) -> Array: ...
    @property
    def weights(self) -> Array | None: ...
    @property
    def lse(self) -> Array | None: ...
    def __new__(
        cls, query: Array, key: Array, value: Array, options: OptionsTuple, /
    ) -> Self: ...
    def __call__(self) -> PlanResult: ...
    def _explain(self, /) -> tuple[Any, ...]: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...

def set_num_threads(num_threads: int, /) -> None: ...
def get_num_threads() -> int: ...
def spin_time(microseconds: int | None, /) -> int: ...
def set_portable(portable: bool, /) -> None: ...
def get_portable() -> bool: ...
def config() -> dict[str, Any]: ...

# Of csrc/python/testing.c, for tests and experiments: a wheel has none of these.
def set_work_per_thread(work: float, /) -> float: ...
def set_tuning(name: Literal["many_rows", "read_once"], value: bool, /) -> bool: ...
def watch_tasks(call: Callable[[], object], notes: NDArray[np.int64], /) -> int: ...
