"""Every row: which case, against whom, and what it should reach."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .cases import Case, prefill
from .encoders import Sentences
from .generation import Generation
from .layers import Layer

# (B, H, L, D)
SHAPES = (
    (1, 8, 64, 64),
    (8, 12, 128, 64),
    (8, 12, 512, 64),
    (1, 12, 1024, 64),
    (1, 16, 2048, 64),
    (1, 8, 2048, 128),
    (1, 2, 8192, 64),
    (32, 12, 128, 32),
    (4, 12, 197, 64),
)
HALF_SHAPES = SHAPES[1:2] + SHAPES[3:6]
QUICK_SHAPES = (SHAPES[1], SHAPES[3])
# Of the peak, in percent, by L; longer ones as 1024.
PEAK_SHARE = {64: 62, 128: 75, 197: 66, 512: 80, 1024: 84}
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

    targets: (what, at least): a system's name for how many times faster than it, "peak"
    or "bandwidth" for a share in percent. "own" is the row's own comparison.
    """

    group: str
    name: str
    case: Case | Layer | Sentences | Generation
    targets: tuple[tuple[str, float], ...] = ()
    peers: tuple[str, ...] = PEERS
    own: tuple[str, Own] | None = None  # its title, and what it is
    limit: str | None = "fma"  # or "bandwidth"
    unit: str = "GFLOP/s"  # or "GB/s", "tokens/s"
    tier: str | None = None
    plan: bool = False  # attnpy.Plan instead of attention()
    native: bool = False  # computed with 16-bit dot products
    thread_counts: tuple[int, ...] | None = None  # all that were asked for
    quick: bool = False


def shape_name(shape):
    return "x".join(map(str, shape))


def full_rows():
    for shape in SHAPES:
        length = shape[2]
        share = ("peak", PEAK_SHARE[min(length, 1024)])
        targets = (share, ("torch", 2.2), ("onnxruntime", 1.15))
        case = prefill(*shape)
        quick = shape in QUICK_SHAPES
        yield Row("full", shape_name(shape), case, targets, quick=quick)


def causal_rows():
    for shape in SHAPES:
        targets = (("torch", 2.1), ("onnxruntime", 1.4))
        share = CAUSAL_SHARE.get(min(shape[2], 1024))
        if share:
            targets += (("own", share),)
        case = prefill(*shape, causal=True)
        own = ("full", Own(prefill(*shape)))
        quick = shape == QUICK_SHAPES[1]
        yield Row("causal", shape_name(shape), case, targets, own=own, quick=quick)


def half_targets(dtype, causal, native):
    """The 16-bit targets; they differ where the CPU has dot products for bfloat16."""
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
                    quick=shape == QUICK_SHAPES[0] and not causal,
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
    shapes = [
        (batch, group * kv_heads, kv_heads, 4096, 128)
        for batch, kv_heads in ((8, 8), (1, 8))
        for group in (1, 4, 16)
    ]
    shapes += [(1, 16, 1, 65536, 128), (1, 12, 12, 512, 64), (8, 12, 12, 512, 64)]
    for dtype in ("float32", "bfloat16", "float16"):
        for batch, heads, kv_heads, n_keys, dim in shapes:
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
        return tuple((peer, 1.15) for peer in PEERS)
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
        quick = shape in ((1, 8, 64, 64), (8, 12, 128, 64))
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
        quick = shape == QUICK_SHAPES[1]
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
                quick=tier != "scalar" and shape == QUICK_SHAPES[1],
            )


def layer_rows():
    """torch.nn.MultiheadAttention and its like: prefills, and one token alone."""
    for batch, length in ((8, 128), (1, 512), (1, 1)):
        case = Layer(batch, length, 768, 12)
        name = f"{batch}x{length}x768, 12 heads"
        targets = (("torch", 2.0),) if length > 1 else ()
        yield Row("layers", name, case, targets, quick=length == 1)


def model_rows():
    """all-MiniLM-L6-v2: one sentence, and many, some of which are padded."""
    for name, case, quick in (
        ("MiniLM, 1 sentence of 32 tokens", Sentences(1, 32), True),
        ("MiniLM, 32 sentences of 32 tokens", Sentences(32, 32), False),
        ("MiniLM, 32 sentences of 5 to 60 tokens", Sentences(32, 60, True), False),
    ):
        yield Row("models", name, case, (("torch", 1.8),), quick=quick)


def generation_rows():
    for model, n_prompt, n_new in (
        ("GPT-2 small", 64, 32),
        ("Llama-like", 64, 32),
        ("Llama-like", 8, 8),
    ):
        yield Row(
            "generation",
            f"{model}, {n_new} tokens after {n_prompt}",
            Generation(model, n_prompt, n_new),
            peers=("torch",),
            limit=None,
            unit="tokens/s",
            quick=n_new == 8,
        )


TIMED = (
    "full",
    "causal",
    "half",
    "masks",
    "gqa",
    "decode",
    "small",
    "threads",
    "float64",
    "tiers",
    "layers",
    "models",
    "generation",
)
GROUPS = (*TIMED, "memory", "loading", "footprint")


def timed_rows(groups, tiers=(), native_bf16=False, cache_bytes=32 << 20):
    """The rows of these groups, in the order of TIMED."""
    makers = {
        "full": full_rows,
        "causal": causal_rows,
        "half": lambda: half_rows(native_bf16),
        "masks": mask_rows,
        "gqa": gqa_rows,
        "decode": lambda: decode_rows(cache_bytes),
        "small": small_rows,
        "threads": thread_rows,
        "float64": float64_rows,
        "tiers": lambda: tier_rows(tiers),
        "layers": layer_rows,
        "models": model_rows,
        "generation": generation_rows,
    }
    return [row for group in TIMED if group in groups for row in makers[group]()]
