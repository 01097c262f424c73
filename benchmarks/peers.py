"""Ways to compute a case: attnpy's, and each peer's own, all imported when needed.

A way is one call that can be timed. Every system offers all the ways that its users
have; measure.py keeps the fastest whose result is right.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import attnpy
from attnpy._measure import unfused

from . import cases, onnx_ways
from .lazily import threadpoolctl, torch

FOREVER = contextlib.ExitStack()  # a mode ends when nobody holds it


@dataclass(frozen=True)
class Way:
    """A call without arguments, and how to read its result as (B, H, Lq, D)."""

    name: str
    call: Callable[[], Any]
    read: Callable[[Any], np.ndarray] = np.asarray


def attnpy_ways(case, arrays, n_threads, tier=None, plan=False):
    from attnpy._options import Options

    more = {**cases.options(case), "num_threads": n_threads}
    if plan:
        yield Way("Plan", attnpy.Plan(*arrays, **more))
    elif tier is None:
        yield Way("attention", partial(attnpy.attention, *arrays, **more))
    else:
        options = Options(**more, tier=tier)
        yield Way(tier, partial(attnpy._attnpy.attention, *arrays, options))


def unfused_by_head(query, key, value, scale, added, pool=None, n_threads=1):
    """The same with the scores of one key head at a time, which may fit the cache.

    pool: n_threads threads that take the heads, each with OpenBLAS on itself alone.
    """
    result = np.empty_like(query)

    if added is not None:
        added = np.broadcast_to(added, (*query.shape[:2], *added.shape[2:]))

    def one_head(index):
        part = None if added is None else added[index]
        result[index] = unfused(query[index], key[index], value[index], scale, part)

    heads = np.ndindex(*query.shape[:2])
    if pool is None:
        list(map(one_head, heads))
    else:
        limit_blas(1)
        list(pool.map(one_head, heads))
        limit_blas(n_threads)
    return result


def numpy_attends(n_threads):
    """(name, function) of each way to attend in NumPy."""
    yield "all heads at once", unfused
    yield "head by head", unfused_by_head
    if n_threads > 1:
        more = {"pool": ThreadPoolExecutor(n_threads), "n_threads": n_threads}
        yield "heads over Python's threads", partial(unfused_by_head, **more)


@functools.cache
def blas_libraries():
    controller = threadpoolctl.ThreadpoolController().select(user_api="blas")
    return controller.lib_controllers


def limit_blas(n_threads):
    for library in blas_libraries():
        library.set_num_threads(n_threads)


def numpy_mask(case):
    """What is added to the scores of queries in case.grouped_shape, or None."""
    added, group = cases.additive(case, case.dtype), case.heads // case.kv_heads
    if added is None or group == 1:
        return added
    return np.tile(added[:, :1], (1, 1, group, 1))  # one mask for all heads


def numpy_ways(case, arrays, n_threads):
    if case.dtype not in ("float32", "float64"):
        return
    query, key, value = arrays
    scale, added = query.dtype.type(case.dim**-0.5), numpy_mask(case)
    arguments = (query.reshape(case.grouped_shape), key, value, scale, added)
    for name, attend in numpy_attends(n_threads):
        call = partial(attend, *arguments)
        yield Way(name, call, lambda result: result.reshape(case.query_shape))


def to_torch(array):
    """A tensor; bfloat16 goes through float32, which NumPy knows."""
    if array.dtype == bool or array.dtype.kind == "f":
        return torch.from_numpy(array)
    return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)


def from_torch(tensor, shape):
    wide = tensor if tensor.dtype == torch.float64 else tensor.float()
    return wide.numpy().reshape(shape)


def repeated(query, key, value, group, **more):
    """What was written before enable_gqa: a copy of each key head for its group."""
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, key, value, **more)


def torch_masks(case):
    """The keyword arguments that say what is visible: one or two ways."""
    if case.only_causal():
        yield "is_causal", {"is_causal": True}
    elif case.window or case.mask or case.padded or case.bias:
        if not case.bias:
            seen = np.ascontiguousarray(cases.visible(case)[:, None])
            yield "boolean mask", {"attn_mask": to_torch(seen)}
        added = cases.additive(case, cases.dtype_of(case.dtype))
        yield "float mask", {"attn_mask": to_torch(added)}
    else:
        yield "plain", {}


def torch_ways(case, arrays, n_threads):
    attend = torch.nn.functional.scaled_dot_product_attention
    query, key, value = (to_torch(x) for x in arrays)
    group = case.heads // case.kv_heads
    read = partial(from_torch, shape=case.query_shape)
    for name, more in torch_masks(case):
        if group == 1:
            yield Way(name, partial(attend, query, key, value, **more), read)
            continue
        call = partial(attend, query, key, value, enable_gqa=True, **more)
        yield Way(f"{name}, enable_gqa", call, read)
        if case.n_queries > 1:  # to decode so takes a hundred times as long
            call = partial(repeated, query, key, value, group, **more)
            yield Way(f"{name}, repeated heads", call, read)
        if not more:
            call = partial(attend, query.reshape(case.grouped_shape), key, value)
            yield Way("heads as queries", call, read)


def torch_fast_paths(call):
    """(name, call) of a call of torch.nn's attention with and without its fast path."""

    def without():
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            return call()
        finally:
            torch.backends.mha.set_fastpath_enabled(True)

    yield "fast path", call
    yield "no fast path", without


def onnxruntime_ways(case, arrays, n_threads):
    if case.dtype not in ("float32", "float16"):
        return
    for name, make in onnx_ways.choices(case):
        # A way that this version does not have fails here or in its first call.
        try:
            call, read = make(case, arrays, n_threads)
        except Exception as error:
            yield Way(name, partial(fail, error))
            continue
        yield Way(name, call, read)


def fail(error):
    raise error


WAYS = {
    "attnpy": attnpy_ways,
    "torch": torch_ways,
    "onnxruntime": onnxruntime_ways,
    "numpy": numpy_ways,
}


class System(NamedTuple):
    """Who is compared: its name in full and in a table's head, its packages."""

    title: str
    short: str
    needs: tuple[str, ...]


ON_TORCH = ("transformers", "torch", "safetensors")
SYSTEMS = {
    "attnpy": System("attnpy", "attnpy", ("attnpy",)),
    "torch": System("PyTorch", "torch", ("torch",)),
    "transformers": System("Hugging Face transformers", "HF", ON_TORCH),
    "onnxruntime": System("ONNX Runtime", "ORT", ("onnxruntime", "onnx")),
    "openvino": System("OpenVINO", "OpenVINO", ("openvino", *ON_TORCH)),
    "ctranslate2": System("CTranslate2", "CT2", ("ctranslate2", *ON_TORCH)),
    "llamacpp": System(
        "llama.cpp", "llama.cpp", ("llama_cpp_python", "gguf", "safetensors")
    ),
    "sentence_transformers": System(
        "sentence-transformers", "ST", ("sentence-transformers", "torch")
    ),
    "fastembed": System("fastembed", "fastembed", ("fastembed", "torch", "onnx")),
    "fastembed_sorted": System(
        "fastembed, of sorted texts", "fastembed sorted", ("fastembed", "torch", "onnx")
    ),
    "numpy": System("NumPy, unfused", "NumPy", ("numpy", "threadpoolctl")),
}


def version(package):
    """The installed version, or None."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    with contextlib.suppress(ImportError):
        return importlib.import_module(package).__version__
    return None


def versions(systems):
    """{system: {package: version or None}} of what each system needs."""
    return {
        system: {package: version(package) for package in SYSTEMS[system].needs}
        for system in systems
    }


def installed(system):
    return all(version(package) for package in SYSTEMS[system].needs)


def has_needs_of(row):
    """Whether the packages are there that attnpy's own way of a row takes."""
    needs = [*row.needs]
    needs += ["ml_dtypes"] if row.case.dtype == "bfloat16" else []
    needs += ["safetensors"] if hasattr(row.case, "expected") else []
    return all(map(version, needs))


def uses_torch(systems):
    on_torch = {"torch", "transformers", "sentence_transformers"}
    return not on_torch.isdisjoint(systems)


def set_threads(systems, n_threads):
    """Limit the libraries whose number of threads belongs to the process."""
    attnpy.set_num_threads(n_threads)  # for attnpy within other libraries
    # Of tokenizers, which otherwise take every CPU.
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if n_threads > 1 else "false"
    if uses_torch(systems):
        torch.set_num_threads(n_threads)
    if "numpy" in systems:
        limit_blas(n_threads)


def without_gradients(systems):
    """Let PyTorch forget about gradients, in the whole process: small calls gain."""
    if uses_torch(systems):
        FOREVER.enter_context(torch.inference_mode())


def alone(system, n_threads):
    """Prepare a process for one system."""
    set_threads([system], n_threads)
    without_gradients([system])
