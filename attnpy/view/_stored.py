"""Weights as a page stores them; the more there are, the fewer bytes each.

If they fit, all of them at four decimals; or else at two; or else without small ones;
or else of every 2nd, 4th ... layer and head. The page says in words what is left out.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

DATA_BYTES = 1_600_000  # of weights in a page, which stays below 2 MB in all
UNIT = 10_000  # 16-bit codes are whole numbers of 1 / UNIT ...
ROOT_UNIT = 254  # ... and 8-bit codes are of the weight's square root
THRESHOLDS = (0.005, 0.01, 0.02, 0.05, 0.1)  # below one of them weights are left out
MAX_KEYS = 65_535  # an index takes 16 bits


class Stored(NamedTuple):
    """The weights that a page contains."""

    data: dict[str, Any]  # as the page's script expects it
    layers: list[int]
    heads: list[int]
    note: str  # what was left out, "" for nothing


class Form(NamedTuple):
    """How weights are stored: "dense16", "dense8", or "sparse8" from a threshold on."""

    name: str
    least: float


def stored(
    name: str,
    weights: NDArray[np.float64],
    *,
    layer: int = 0,
    head: int = 0,
    extra_bytes: int = 0,
) -> Stored:
    """Return weights from (layers, H, Lq, Lk), including this layer and head.

    Each head takes `extra_bytes` more in the page. A head that is too large is an error
    that names the argument.
    """
    n_layers, n_heads, n_queries, n_keys = weights.shape
    kept = _Kept(weights, extra_bytes)
    for layers, heads in _selections(n_layers, n_heads, layer, head):
        form = _form(kept, layers, heads)
        if form is not None:
            everything = len(layers) == n_layers and len(heads) == n_heads
            chosen = weights if everything else weights[np.ix_(layers, heads)]
            data = {
                "layers": layers,
                "heads": heads,
                "queries": n_queries,
                "keys": n_keys,
                "form": form.name,
                "least": form.least,
                **_encoded(chosen, form),
            }
            note = _note(form, layers, heads, weights.shape)
            return Stored(data, layers, heads, note)
    raise ValueError(
        f"{name}: expected a head that fits into a page of 2 MB, got {n_queries} "
        f"queries and {n_keys} keys"
    )


def _selections(
    n_layers: int, n_heads: int, layer: int, head: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield fewer and fewer layers and heads, evenly spread, including these."""
    layer_step = head_step = 1
    while True:
        layers = list(range(layer % layer_step, n_layers, layer_step))
        heads = list(range(head % head_step, n_heads, head_step))
        yield layers, heads
        if len(layers) == len(heads) == 1:
            return
        if len(layers) > 1 and (layer_step <= head_step or len(heads) == 1):
            layer_step *= 2
        else:
            head_step *= 2


def text64(array: NDArray[Any]) -> str:
    """Return an array's bytes, the low ones first, as base64."""
    ordered = array.astype(array.dtype.newbyteorder("<"))
    return base64.b64encode(ordered.tobytes()).decode("ascii")


class _Kept:
    """How many weights of each layer and head are not below a threshold."""

    def __init__(self, weights: NDArray[np.float64], extra_bytes: int) -> None:
        self.weights = weights
        self.extra_bytes = extra_bytes  # of a head
        self.counts: dict[float, NDArray[np.int64]] = {}

    def count(self, least: float, layers: list[int], heads: list[int]) -> int:
        if least not in self.counts:
            # One head at a time, because heads may be large.
            self.counts[least] = np.array(
                [
                    [_is_kept(head, least).sum() for head in each]
                    for each in self.weights
                ]
            )
        return int(self.counts[least][np.ix_(layers, heads)].sum())


def _is_kept(weights: NDArray[np.float64], least: float) -> NDArray[np.bool_]:
    return ~(weights < least)  # NaN is kept


def _form(kept: _Kept, layers: list[int], heads: list[int]) -> Form | None:
    """Return the most exact form that fits."""
    n_queries, n_keys = kept.weights.shape[2:]
    n_heads = len(layers) * len(heads)
    n_rows = n_heads * n_queries
    # base64 makes four bytes of three.
    room = DATA_BYTES * 3 // 4 - n_heads * kept.extra_bytes
    if 2 * n_rows * n_keys <= room:
        return Form("dense16", 0)
    if n_rows * n_keys <= room:
        return Form("dense8", 0)
    # If vectors are stored too, heads are left out before weights are.
    few = n_heads == 1 or not kept.extra_bytes
    if few and 2 * n_rows <= room and n_keys <= MAX_KEYS:
        for least in THRESHOLDS:
            if 2 * n_rows + 3 * kept.count(least, layers, heads) <= room:
                return Form("sparse8", least)
    return None


def _encoded(weights: NDArray[np.float64], form: Form) -> dict[str, str]:
    if form.name == "dense16":
        codes = np.where(np.isnan(weights), 65_535, np.rint(weights * UNIT))
        return {"codes": text64(codes.astype(np.uint16))}
    if form.name == "dense8":
        return {"codes": text64(_roots(weights))}
    counts, indices, codes8 = [], [], []
    for head in weights.reshape(-1, *weights.shape[2:]):
        kept = _is_kept(head, form.least)
        counts.append(kept.sum(axis=1).astype(np.uint16))
        indices.append(np.nonzero(kept)[1].astype(np.uint16))
        codes8.append(_roots(head[kept]))
    return {
        "counts": text64(np.concatenate(counts)),
        "indices": text64(np.concatenate(indices)),
        "codes": text64(np.concatenate(codes8)),
    }


def _roots(weights: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return 8-bit codes, finer for small weights: within 0.004 of each."""
    codes = np.minimum(np.rint(np.sqrt(weights) * ROOT_UNIT), ROOT_UNIT)
    return np.where(np.isnan(weights), 255, codes).astype(np.uint8)


def _note(
    form: Form, layers: list[int], heads: list[int], shape: tuple[int, ...]
) -> str:
    parts = [] if form.name == "dense16" else ["weights have two decimals"]
    if form.least:
        parts.append(f"those below {form.least:g} are left out")
    for what, left, count in (("layer", layers, shape[0]), ("head", heads, shape[1])):
        if len(left) == 1 < count:
            parts.append(f"only {what} {left[0]} of {count} is here")
        elif len(left) < count:
            step = left[1] - left[0]
            parts.append(
                f"only every {step}{'nd' if step == 2 else 'th'} {what} is here"
            )
    return f"To keep this page below 2 MB, {'; '.join(parts)}." if parts else ""
