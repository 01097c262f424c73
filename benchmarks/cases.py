"""One attention problem: its shape, options and arrays, and how much work it is."""

import functools
from dataclasses import dataclass, replace

import numpy as np

from .lazily import ml_dtypes

# Tiers of attnpy in which numbers of bfloat16 are multiplied as they are.
NATIVE_BF16 = ("avx512_bf16", "amx_bf16")
BLOCK = 64  # of the block-sparse mask, in queries and in keys
LOWEST = -1e30  # for peers whose additive masks may not be -inf
SCALE = 4.5 / 127  # of normal numbers as int8
PERIOD = 999_983  # a prime: no two heads hold the same numbers


@dataclass(frozen=True)
class Case:
    """Arguments of one call. The letters are those of the README."""

    batch: int
    heads: int
    kv_heads: int
    n_queries: int
    n_keys: int
    dim: int
    dtype: str = "float32"  # of "int8" are keys and values, beside float32 queries
    causal: bool = False
    window: int | None = None  # how many keys a query sees, its own the last
    mask: str | None = None  # "random": half of the pairs; "blocks": a quarter
    padded: bool = False  # lengths from Lk/4 to 3Lk/4, on average Lk/2
    bias: bool = False  # one for each head

    def only_causal(self):
        """Whether causality alone says what a query may see."""
        more = self.mask or self.window or self.padded or self.bias
        return self.causal and not more

    @property
    def query_shape(self):
        return self.batch, self.heads, self.n_queries, self.dim

    @property
    def grouped_shape(self):
        """The query's, with the heads of a group as more queries of their key head."""
        group = self.heads // self.kv_heads
        return self.batch, self.kv_heads, group * self.n_queries, self.dim

    @property
    def key_shape(self):
        return self.batch, self.kv_heads, self.n_keys, self.dim

    def arrays(self):
        """Query (B, H, Lq, D), key and value (B, Hk, Lk, D)."""
        shapes = self.query_shape, self.key_shape, self.key_shape
        if self.dtype == "int8":
            query, *rows = replace(self, dtype="float32").arrays()
            rows = [np.clip(np.rint(x / SCALE), -127, 127) for x in rows]
            return query, *(x.astype(np.int8) for x in rows)
        return tuple(normal(x, seed, self.dtype) for seed, x in enumerate(shapes, 1))

    def memory(self):
        """The two arrays whose reading bounds a call with one query."""
        return self.arrays()[1:]

    def flops(self):
        """2 (D + Dv) for each visible pair: a product with key, and with value."""
        return 2 * (self.dim + self.dim) * visible_pairs(self)

    def n_bytes(self):
        scales = 4 * int(np.prod(self.key_shape[:3])) if self.dtype == "int8" else 0
        size = int(np.prod(self.key_shape)) * dtype_of(self.dtype).itemsize
        return 2 * (size + scales)

    def facts(self):
        return {
            "dtype": self.dtype,
            "shape": [*self.query_shape],
            "n_keys": self.n_keys,
            "kv_heads": self.kv_heads,
            "visible_pairs": visible_pairs(self),
        }


def prefill(batch, heads, length, dim, **more):
    """A case with as many queries as keys, and a key head for each query head."""
    more = {"kv_heads": heads, **more}
    return Case(batch, heads, n_queries=length, n_keys=length, dim=dim, **more)


def plain(case):
    nothing = {"causal": False, "window": None, "mask": None}
    return replace(case, **nothing, padded=False, bias=False)


def dtype_of(name):
    """The NumPy dtype; bfloat16 is that of ml_dtypes."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def normal(shape, seed, dtype="float32"):
    """Normal numbers, quickly: they repeat after PERIOD."""
    numbers = np.random.default_rng(seed).standard_normal(PERIOD, dtype=np.float32)
    return np.resize(numbers.astype(dtype_of(dtype)), shape)


def lengths(case):
    """How many keys each sequence has, (B,); None where all have n_keys."""
    if not case.padded:
        return None
    share = np.linspace(0.25, 0.75, case.batch) if case.batch > 1 else 0.5
    return np.atleast_1d(np.asarray(case.n_keys * share, np.int64))


@functools.lru_cache(maxsize=4)
def mask(case):
    """The boolean mask, (Lq, Lk), or None."""
    rng = np.random.default_rng(7)
    if case.mask == "random":
        return rng.random((case.n_queries, case.n_keys)) < 0.5
    if case.mask == "blocks":
        n_rows = -(-case.n_queries // BLOCK)
        n_columns = -(-case.n_keys // BLOCK)
        blocks = rng.random((n_rows, n_columns)) < 0.25
        np.fill_diagonal(blocks, True)
        whole = blocks.repeat(BLOCK, axis=0).repeat(BLOCK, axis=1)
        return np.ascontiguousarray(whole[: case.n_queries, : case.n_keys])
    return None


def bias(case):
    """The bias, (H, Lq, Lk) in float32, or None."""
    if not case.bias:
        return None
    return normal((case.heads, case.n_queries, case.n_keys), 4)


def scales(case):
    """The scales of keys or values of int8, (B, Hk, Lk) in float32, or None."""
    if case.dtype != "int8":
        return None
    return np.full(case.key_shape[:3], SCALE, np.float32)


def additive(case, dtype, lowest=-np.inf):
    """Mask, causality, window, lengths and bias as one array to add, or None.

    (B or 1, H or 1, Lq, Lk)
    """
    added = None
    if case.causal or case.window or case.mask or case.padded:
        seen = visible(case)[:, None]  # (B or 1, 1, Lq, Lk)
        added = np.where(seen, 0, lowest).astype(dtype)
    if case.bias:
        more = bias(case)[None].astype(dtype)
        added = more if added is None else added + more
    return added


def options(case):
    chosen = {
        "mask": mask(case),
        "bias": bias(case),
        "kv_lengths": lengths(case),
        "causal": case.causal or None,
        "key_scale": scales(case),
        "value_scale": scales(case),
        "window": None if case.window is None else (case.window - 1, 0),
    }
    return {name: value for name, value in chosen.items() if value is not None}


def visible(case):
    """What each query may see by mask, lengths, window and causality.

    Boolean, (B or 1, Lq, Lk): for the peers that have no other way to say it.
    """
    first, end = visible_range(case)  # (B or 1, Lq)
    j = np.arange(case.n_keys)
    seen = (j >= first[..., None]) & (j < end[..., None])
    return seen if case.mask is None else seen & mask(case)


def visible_range(case):
    """The first key each query may see and the end, without the mask: (B or 1, Lq)."""
    count = np.full(1, case.n_keys) if lengths(case) is None else lengths(case)
    position = count[:, None] - case.n_queries + np.arange(case.n_queries)
    end = np.broadcast_to(count[:, None], position.shape)
    first = np.zeros_like(position)
    if case.causal or case.window is not None:
        end = np.clip(position + 1, 0, end)
    if case.window is not None:
        first = np.clip(position - case.window + 1, 0, end)
    return first, end


def visible_pairs(case):
    """How many (query, key) pairs there are to compute, over batch and heads."""
    if case.mask is None:
        first, end = visible_range(case)
        counts = end - first  # (B or 1, Lq)
    else:
        counts = np.count_nonzero(visible(case), axis=-1)
    return int(counts.sum()) * case.heads * (case.batch // len(counts))


def output_bytes(case):
    return int(np.prod(case.query_shape)) * dtype_of(case.dtype).itemsize
