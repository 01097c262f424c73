"""Rows near the kernel: which case, against which peers, and what it should reach."""

from dataclasses import dataclass, replace
from typing import Any

from attnpy._measure import BATCH, DECODE_SHAPES, LONG, SHAPES, SHORT

from .backward import Backward, LayerStep
from .cases import Case, prefill
from .layers import Layer
from .tensors import Tensors

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
    limit: str | None = "fma"  # or "int8", products of bytes; or "bandwidth"
    unit: str = "GFLOP/s"  # or "GB/s", "tokens/s"
    tier: str | None = None
    plan: bool = False  # attnpy.Plan instead of attention()
    native: bool = False  # computed with products of 16-bit numbers
    waiting: str = "passive"  # idle threads of peers sleep, or do as by "default"
    thread_counts: tuple[int, ...] | None = None  # all that were asked for
    needs: tuple[str, ...] = ()  # packages that attnpy's own way takes
    quick: bool = False


def in_float32(case):
    """A row's own comparison, with the same case in float32."""
    return "float32", Own(replace(case, dtype="float32"))


def name_of(case):
    """Such as 4x12on3x512x64 causal: B, H (on Hk), Lk, D."""
    grouped = case.heads != case.kv_heads or case.n_queries < case.n_keys
    heads = f"{case.heads}on{case.kv_heads}" if grouped else case.heads
    sizes = "x".join(map(str, (case.batch, heads, case.n_keys, case.dim)))
    return sizes + (" causal" if case.causal else "")


def full_and_causal(*shape, **more):
    """The two cases of a shape (B, H, L, D)."""
    return (prefill(*shape, causal=causal, **more) for causal in (False, True))


def full_rows():
    for shape in SHAPES:
        case, length = prefill(*shape), min(shape[2], 1024)
        share = ("peak", 62 if case.dim == 32 else PEAK_SHARE[length])
        targets = ((("torch", 2.0), share), (("onnxruntime", 1.2), share))
        yield Row("full", name_of(case), case, targets, quick=shape in (BATCH, LONG))


def causal_rows():
    for shape in SHAPES:
        full, case = full_and_causal(*shape)
        share = CAUSAL_SHARE.get(min(case.n_keys, 1024))
        targets = (("torch", 2.1), ("onnxruntime", 1.4))
        targets += (("own", share),) if share else ()
        more = {"own": ("full", Own(full)), "quick": shape == LONG}
        yield Row("causal", name_of(full), case, targets, **more)


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
        for shape in (BATCH, *SHAPES[3:6]):
            for case in full_and_causal(*shape, dtype=dtype):
                yield Row(
                    *("half", f"{dtype} {name_of(case)}", case),
                    half_targets(dtype, case.causal, native),
                    peers=("torch", "onnxruntime"),
                    own=in_float32(case),
                    native=native,
                    quick=shape == BATCH and not case.causal,
                )


MASKS = {
    "half padded": ({"padded": True}, ("onnxruntime", 1.8)),
    "random mask": ({"mask": "random"}, ("onnxruntime", 1.3)),
    "block-sparse mask": ({"mask": "blocks"},),
    "window 128": ({"window": 128},),
    "bias": ({"bias": True},),
}


def mask_rows():
    for shape in ((4, 12, 512, 64), (1, 12, 2048, 64)):
        for kind, (options, *targets) in MASKS.items():
            case, plain = prefill(*shape, **options), prefill(*shape)
            yield Row(
                *("masks", f"{kind} {name_of(case)}", case, (("torch", 2.0), *targets)),
                own=("plain", Own(plain)),
                quick=shape[0] == 4 and kind == "half padded",
            )


GROUPED = ((4, 12, 3, 512, 64), (1, 32, 8, 1024, 128))


def gqa_rows():
    targets = (("torch", 2.0), ("onnxruntime", 1.12))
    for batch, heads, kv_heads, length, dim in (*GROUPED, (1, 16, 1, 1024, 64)):
        for case in full_and_causal(batch, heads, length, dim, kv_heads=kv_heads):
            quick = batch == 4 and not case.causal
            yield Row("gqa", name_of(case), case, targets, quick=quick)


def decode_rows(cache_bytes):
    """Keys out of the cache, with groups of 1, 4 and 16; and in the cache."""
    for dtype in ("float32", "bfloat16", "float16"):
        for batch, heads, kv_heads, n_keys, dim in DECODE_SHAPES:
            case = Case(batch, heads, kv_heads, 1, n_keys, dim, dtype)
            yield Row(
                *("decode", f"{dtype} {name_of(case)}", case),
                decode_targets(case, cache_bytes),
                limit="bandwidth",
                unit="GB/s",
                quick=dtype == "float32" and (batch, heads, n_keys) == (1, 12, 512),
            )


def int8_rows():
    """Caches of int8 against those of bfloat16, out of the CPU's cache."""
    for batch, heads, kv_heads, n_keys, dim in DECODE_SHAPES:
        if n_keys < 4096:
            continue
        case = Case(batch, heads, kv_heads, 1, n_keys, dim, "int8")
        yield Row(
            *("decode", f"int8 {name_of(case)}", case),
            ((("own", 1.7), ("bandwidth", 80)),),
            peers=(),
            own=("bfloat16", Own(replace(case, dtype="bfloat16"))),
            limit="bandwidth",
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
    return (*targets, ("bandwidth", 80)) if n_bytes >= 2 * cache_bytes else targets


def small_rows():
    tiny, decode = prefill(1, 1, 16, 16), Case(1, 8, 2, 1, 256, 64)
    yield Row("small", name_of(tiny), tiny, (("torch", 2.0),), quick=True)
    for case in (prefill(1, 1, 1, 64), prefill(1, 4, 8, 32), prefill(1, 8, 32, 64)):
        yield Row("small", name_of(case), case)
    for case in (Case(1, 8, 8, 1, 64, 64), decode):
        yield Row("small", f"decode {name_of(case)}", case)
    more = {"own": ("attention()", Own()), "plan": True}
    yield Row("small", f"Plan {name_of(tiny)}", tiny, quick=True, **more)
    yield Row("small", f"Plan decode {name_of(decode)}", decode, **more)


THREADED = (
    *((1, 1, length, 64) for length in (1, 16, 64, 128, 256, 512, 1024, 4096)),
    *((1, 8, length, 64) for length in (16, 32, 64, 128, 256, 1024)),
    *((8, 12, length, 64) for length in (16, 64, 128, 512)),
)


def thread_rows():
    """Two threads against one. The targets depend on the time: see measure.py."""
    own = ("1 thread", Own(n_threads=1))
    more = {"peers": (), "own": own, "limit": None, "thread_counts": (2,)}
    for shape in THREADED:
        for case in full_and_causal(*shape):
            quick = shape in (SHORT, BATCH) and not case.causal
            yield Row("threads", name_of(case), case, quick=quick, **more)
    for kv_heads, n_keys in ((8, 64), (8, 512), (8, 4096), (1, 4096), (1, 65536)):
        case = Case(1, 8, kv_heads, 1, n_keys, 128)
        yield Row("threads", f"decode {name_of(case)}", case, **more)


def float64_rows():
    for shape in SHAPES[2:6]:
        case = prefill(*shape, dtype="float64")
        targets = (("peak", 80),) if case.n_keys >= 1024 else ()
        yield Row("float64", name_of(case), case, targets, quick=shape == LONG)


def tier_rows(tiers):
    shares = {"avx2": (("peak", 75),), "avx512": (("peak", 84),)}
    for tier in tiers:
        if tier.endswith(("_bf16", "_vnni", "_dotprod")):  # the same as the next one
            continue
        for shape in SHAPES[2:5]:
            case = prefill(*shape)
            targets = shares.get(tier, ()) if case.n_keys >= 1024 else ()
            quick = tier != "scalar" and shape == LONG
            more = {"peers": (), "tier": tier, "quick": quick}
            yield Row("tiers", f"{tier} {name_of(case)}", case, targets, **more)


def layer_rows():
    """torch.nn.MultiheadAttention and its like: prefills, and one token alone."""
    for batch, length in ((8, 128), (1, 512), (1, 1)):
        name = f"{batch}x{length}x768, 12 heads"
        targets = (("torch", 2.0),) if length > 1 else ()
        case = Layer(batch, length, 768, 12)
        yield Row("layers", name, case, targets, quick=length == 1)


BACKWARD_SHAPES = (
    *(BATCH, (4, 12, 512, 64), LONG, (1, 16, 2048, 64)),
    *((8, 8, 128, 128), (4, 8, 512, 128), (1, 8, 1024, 128), (1, 8, 2048, 128)),
)


def backward_targets(case):
    """Of float32, by the length: full ones, and causal ones from 512 tokens on."""
    if case.causal:
        return () if case.n_keys < 512 else ((("torch", 2.3), ("own", 0.85)),)
    torch, share = (1.7, 55) if case.n_keys < 512 else (1.9, 70)
    return ((("torch", torch), ("peak", share)),)


def backward_row(name, case, targets=(), quick=False):
    """The gradients of a call: causal against full ones, bfloat16 against float32."""
    own = ("full", Own(Backward(replace(case, causal=False)))) if case.causal else None
    if case.dtype == "bfloat16":
        own = ("float32", Own(Backward(replace(case, dtype="float32"))))
    more = {"peers": ("torch", "numpy"), "own": own, "quick": quick}
    return Row("backward", name, Backward(case), targets, **more)


def backward_rows():
    """Gradients of attention, and a layer forward and backward."""
    for shape in BACKWARD_SHAPES:
        for case in full_and_causal(*shape):
            quick = shape == BATCH
            yield backward_row(name_of(case), case, backward_targets(case), quick)
    for batch, heads, kv_heads, length, dim in GROUPED:
        for case in full_and_causal(batch, heads, length, dim, kv_heads=kv_heads):
            yield backward_row(name_of(case), case, backward_targets(case))
    for n_queries in (1, 8):  # few queries, many keys
        case = Case(8, 12, 12, n_queries, 1024, 64)
        yield backward_row(f"8x12x{n_queries}:1024x64", case)
    for dtype, targets in (("bfloat16", (("own", 1.6),)), ("float64", ())):
        for shape in (BATCH, LONG):
            for case in full_and_causal(*shape, dtype=dtype):
                yield backward_row(f"{dtype} {name_of(case)}", case, targets)
    for batch, length in ((8, 128), (1, 512)):
        yield Row(
            *("backward", f"layer {batch}x{length}x768, 12 heads, forward too"),
            LayerStep(Layer(batch, length, 768, 12)),
            ((("torch", 1.7), ("peak", 75)),),
            peers=("torch",),
        )


def tensor_rows():
    """PyTorch's tensors, against PyTorch's own attention and against arrays."""
    for shape in (SHORT, BATCH, LONG):
        for call in full_and_causal(*shape):
            for gradients in (False, True):
                case = Tensors(call, gradients)
                end = " backward" if gradients else ""
                yield Row(
                    *("integrations", f"tensors {name_of(call)}{end}", case),
                    (("own", 0.9), ("torch", 1.0)),
                    peers=("torch",),
                    own=("arrays", Own(case.alone)),
                    needs=("torch",),
                    quick=shape == BATCH and not call.causal,
                )
