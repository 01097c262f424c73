"""Rows near the kernel: which case, against which peers, and what it should reach."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from attnpy._measure import BATCH, DECODE_SHAPES, LONG, SHAPES, SHORT

from .backward import Backward, LayerStep
from .cases import Case, prefill
from .layers import Layer
from .tensors import Tensors

HALF_SHAPES = SHAPES[1:2] + SHAPES[3:6]
# Of the peak, in percent, by L; longer ones as 1024.
PEAK_SHARE = {64: 62, 128: 72, 197: 66, 512: 82, 1024: 86}
CAUSAL_SHARE = {512: 0.70, 1024: 0.85}  # of the full rate, by L
PEERS = ("torch", "onnxruntime", "numpy")


@dataclass(frozen=True)
class Own:
    """attention() to compare with: all that differs."""

    case: Case | None = None
    n_threads: int | None = None


@dataclass(frozen=True)
class Row:
    """One line of a table for each number of threads.

    targets: (what, at least): a system's name for how many times faster than it, or
    "fastest" for the fastest peer; "peak" or "bandwidth" for a share in percent. "own"
    is the row's own comparison, "error/SYSTEM" attnpy's mean error over that system's,
    at most. Several such pairs together are met where any of them is.
    """

    group: str
    name: str
    case: Any  # a Case, or of another kind that ways.WAYS has
    targets: tuple[tuple, ...] = ()
    peers: tuple[str, ...] = PEERS
    own: tuple[str, Own] | None = None  # its title, and what it is
    limit: str | None = "fma"  # or "bandwidth"
    unit: str = "GFLOP/s"  # or "GB/s", "tokens/s"
    tier: str | None = None
    plan: bool = False  # attnpy.Plan instead of attention()
    native: bool = False  # computed with products of 16-bit numbers
    waiting: str = "passive"  # idle threads of peers sleep, or do as by "default"
    thread_counts: tuple[int, ...] | None = None  # all that were asked for
    needs: tuple[str, ...] = ()  # packages that attnpy's own way takes
    quick: bool = False


def shape_name(shape):
    return "x".join(map(str, shape))


def full_rows():
    for shape in SHAPES:
        length = shape[2]
        share = ("peak", 62 if shape[3] == 32 else PEAK_SHARE[min(length, 1024)])
        targets = ((("torch", 2.0), share), (("onnxruntime", 1.2), share))
        case = prefill(*shape)
        quick = shape in (BATCH, LONG)
        yield Row("full", shape_name(shape), case, targets, quick=quick)


def causal_rows():
    for shape in SHAPES:
        targets = (("torch", 2.1), ("onnxruntime", 1.4))
        share = CAUSAL_SHARE.get(min(shape[2], 1024))
        if share:
            targets += (("own", share),)
        case = prefill(*shape, causal=True)
        own = ("full", Own(prefill(*shape)))
        quick = shape == LONG
        yield Row("causal", shape_name(shape), case, targets, own=own, quick=quick)


def half_targets(dtype, causal, native):
    """The 16-bit targets; they differ where the CPU multiplies bfloat16."""
    if native:
        return ("own", 1.6), ("torch", 3.5)
    targets = (("own", 0.95),)
    if dtype == "float16":
        targets += (("torch", 3.3), ("onnxruntime", 1.5 if causal else 1.05))
    return targets


def half_rows(native_bf16):
    for dtype in ("bfloat16", "float16"):
        native = native_bf16 and dtype == "bfloat16"
        for shape in HALF_SHAPES:
            for causal in (False, True):
                case = prefill(*shape, dtype=dtype, causal=causal)
                yield Row(
                    "half",
                    f"{dtype} {shape_name(shape)}{' causal' if causal else ''}",
                    case,
                    half_targets(dtype, causal, native),
                    peers=("torch", "onnxruntime"),
                    own=("float32", Own(replace(case, dtype="float32"))),
                    native=native,
                    quick=shape == BATCH and not causal,
                )


def mask_rows():
    torch = ("torch", 2.0)
    kinds = {
        "half padded": ({"padded": True}, (torch, ("onnxruntime", 1.8))),
        "random mask": ({"mask": "random"}, (torch, ("onnxruntime", 1.3))),
        "block-sparse mask": ({"mask": "blocks"}, (torch,)),
        "window 128": ({"window": 128}, (torch,)),
        "bias": ({"bias": True}, (torch,)),
    }
    for shape in ((4, 12, 512, 64), (1, 12, 2048, 64)):
        for kind, (options, targets) in kinds.items():
            yield Row(
                "masks",
                f"{kind} {shape_name(shape)}",
                prefill(*shape, **options),
                targets,
                own=("plain", Own(prefill(*shape))),
                quick=shape[0] == 4 and kind == "half padded",
            )


def gqa_rows():
    targets = (("torch", 2.0), ("onnxruntime", 1.12))
    for batch, heads, kv_heads, length, dim in (
        (4, 12, 3, 512, 64),
        (1, 32, 8, 1024, 128),
        (1, 16, 1, 1024, 64),
    ):
        for causal in (False, True):
            shape = (batch, f"{heads}on{kv_heads}", length, dim)
            yield Row(
                "gqa",
                shape_name(shape) + (" causal" if causal else ""),
                prefill(batch, heads, length, dim, kv_heads=kv_heads, causal=causal),
                targets,
                quick=batch == 4 and not causal,
            )


def decode_rows(cache_bytes):
    """Keys out of the cache, with groups of 1, 4 and 16; and in the cache."""
    for dtype in ("float32", "bfloat16", "float16"):
        for batch, heads, kv_heads, n_keys, dim in DECODE_SHAPES:
            case = Case(batch, heads, kv_heads, 1, n_keys, dim, dtype)
            shape = (batch, f"{heads}on{kv_heads}", n_keys, dim)
            yield Row(
                "decode",
                f"{dtype} {shape_name(shape)}",
                case,
                decode_targets(case, cache_bytes),
                limit="bandwidth",
                unit="GB/s",
                quick=dtype == "float32" and (batch, heads, n_keys) == (1, 12, 512),
            )


def decode_targets(case, cache_bytes):
    n_bytes = case.n_bytes()
    if n_bytes <= cache_bytes // 2:
        return ((("fastest", 1.15), ("bandwidth", 85)),)
    targets = {
        "float32": (("torch", 1.6), ("onnxruntime", 1.6)),
        "bfloat16": (("torch", 4.0),),
        "float16": (),
    }[case.dtype]
    if n_bytes >= 2 * cache_bytes:
        targets += (("bandwidth", 80),)
    return targets


def small_rows():
    for shape in ((1, 1, 16, 16), (1, 1, 1, 64), (1, 4, 8, 32), (1, 8, 32, 64)):
        targets = (("torch", 2.0),) if shape == (1, 1, 16, 16) else ()
        yield Row(
            "small", shape_name(shape), prefill(*shape), targets, quick=shape[3] == 16
        )
    for heads, kv_heads, n_keys in ((8, 8, 64), (8, 2, 256)):
        shape = (1, f"{heads}on{kv_heads}", n_keys, 64)
        case = Case(1, heads, kv_heads, 1, n_keys, 64)
        yield Row("small", f"decode {shape_name(shape)}", case)
    yield plan_row("1x1x16x16", prefill(1, 1, 16, 16), quick=True)
    yield plan_row("decode 1x8on2x256x64", Case(1, 8, 2, 1, 256, 64))


def plan_row(name, case, quick=False):
    own = ("attention()", Own())
    return Row("small", f"Plan {name}", case, own=own, plan=True, quick=quick)


THREADED = (
    *((1, 1, length, 64) for length in (1, 16, 64, 128, 256, 512, 1024, 4096)),
    *((1, 8, length, 64) for length in (16, 32, 64, 128, 256, 1024)),
    *((8, 12, length, 64) for length in (16, 64, 128, 512)),
)


def thread_rows():
    """Two threads against one. The targets depend on the time: see measure.py."""
    for shape in THREADED:
        quick = shape in (SHORT, BATCH)
        for causal in (False, True):
            case = prefill(*shape, causal=causal)
            name = shape_name(shape) + (" causal" if causal else "")
            yield thread_row(name, case, quick and not causal)
    for kv_heads, n_keys in ((8, 64), (8, 512), (8, 4096), (1, 4096), (1, 65536)):
        case = Case(1, 8, kv_heads, 1, n_keys, 128)
        yield thread_row(f"decode 1x8on{kv_heads}x{n_keys}x128", case)


def thread_row(name, case, quick=False):
    own = ("1 thread", Own(n_threads=1))
    return Row(
        "threads",
        name,
        case,
        peers=(),
        own=own,
        limit=None,
        thread_counts=(2,),
        quick=quick,
    )


def float64_rows():
    for shape in SHAPES[2:6]:
        targets = (("peak", 80),) if shape[2] >= 1024 else ()
        case = prefill(*shape, dtype="float64")
        quick = shape == LONG
        yield Row("float64", shape_name(shape), case, targets, quick=quick)


def tier_rows(tiers):
    targets = {"avx2": (("peak", 75),), "avx512": (("peak", 84),)}
    for tier in tiers:
        if tier.endswith("_bf16"):  # in float32 the same as the next one
            continue
        for shape in SHAPES[2:5]:
            yield Row(
                "tiers",
                f"{tier} {shape_name(shape)}",
                prefill(*shape),
                targets.get(tier, ()) if shape[2] >= 1024 else (),
                peers=(),
                tier=tier,
                quick=tier != "scalar" and shape == LONG,
            )


def layer_rows():
    """torch.nn.MultiheadAttention and its like: prefills, and one token alone."""
    for batch, length in ((8, 128), (1, 512), (1, 1)):
        case = Layer(batch, length, 768, 12)
        name = f"{batch}x{length}x768, 12 heads"
        targets = (("torch", 2.0),) if length > 1 else ()
        yield Row("layers", name, case, targets, quick=length == 1)


BACKWARD_SHAPES = (
    *(BATCH, (4, 12, 512, 64), LONG, (1, 16, 2048, 64)),
    *((8, 8, 128, 128), (4, 8, 512, 128), (1, 8, 1024, 128), (1, 8, 2048, 128)),
)
GROUPED = ((4, 12, 3, 512, 64), (1, 32, 8, 1024, 128))


def backward_targets(case):
    """Of float32, by the length: full ones, and causal ones from 512 tokens on."""
    if case.causal:
        return () if case.n_keys < 512 else ((("torch", 2.3), ("own", 0.85)),)
    if case.n_keys < 512:
        return ((("torch", 1.7), ("peak", 55)),)
    return ((("torch", 1.9), ("peak", 70)),)


def backward_row(name, case, targets=(), quick=False):
    """The gradients of a call, full or causal; causal ones against full ones too."""
    full = replace(case, causal=False)
    if case.dtype == "bfloat16":
        own = ("float32", Own(Backward(replace(case, dtype="float32"))))
    else:
        own = ("full", Own(Backward(full))) if case.causal else None
    return Row(
        "backward",
        f"{name} causal" if case.causal else name,
        Backward(case),
        targets,
        peers=("torch", "numpy"),
        own=own,
        quick=quick,
    )


def backward_rows():
    """Gradients of attention, and a layer forward and backward."""
    for shape in BACKWARD_SHAPES:
        for causal in (False, True):
            case = prefill(*shape, causal=causal)
            quick = shape == BATCH
            yield backward_row(shape_name(shape), case, backward_targets(case), quick)
    for batch, heads, kv_heads, length, dim in GROUPED:
        name = shape_name((batch, f"{heads}on{kv_heads}", length, dim))
        for causal in (False, True):
            case = prefill(batch, heads, length, dim, kv_heads=kv_heads, causal=causal)
            yield backward_row(name, case, backward_targets(case))
    for n_queries in (1, 8):  # few queries, many keys
        case = Case(8, 12, 12, n_queries, 1024, 64)
        yield backward_row(f"8x12x{n_queries}:1024x64", case)
    for dtype in ("bfloat16", "float64"):
        for shape in (BATCH, LONG):
            for causal in (False, True):
                case = prefill(*shape, dtype=dtype, causal=causal)
                yield backward_row(f"{dtype} {shape_name(shape)}", case)
    for batch, length in ((8, 128), (1, 512)):
        yield Row(
            "backward",
            f"layer {batch}x{length}x768, 12 heads, forward too",
            LayerStep(Layer(batch, length, 768, 12)),
            ((("torch", 1.7), ("peak", 75)),),
            peers=("torch",),
        )


def tensor_rows():
    """PyTorch's tensors, against PyTorch's own attention and against arrays."""
    for shape in (SHORT, BATCH, LONG):
        for causal in (False, True):
            for gradients in (False, True):
                case = Tensors(prefill(*shape, causal=causal), gradients)
                name = f"tensors {shape_name(shape)}{' causal' if causal else ''}"
                yield Row(
                    "integrations",
                    name + (" backward" if gradients else ""),
                    case,
                    (("own", 0.9), ("torch", 1.0)),
                    peers=("torch",),
                    own=("arrays", Own(case.alone)),
                    needs=("torch",),
                    quick=shape[2] == 128 and not causal,
                )
