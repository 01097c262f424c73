"""ONNX Runtime's ways to attend: models of one operator.

MultiHeadAttention and GroupQueryAttention are ONNX Runtime's own operators, whose
arrays are (B, L, H D); Attention is the one of ONNX, with (B, H, L, D).
"""

from __future__ import annotations

import numpy as np

from . import cases
from .onnx_graph import OWN, bound, make_node


def flat(array):
    """(B, H, L, D) as (B, L, H D)."""
    batch, heads, length, dim = array.shape
    return np.ascontiguousarray(array.swapaxes(1, 2)).reshape(
        batch, length, heads * dim
    )


def unflat(value, case):
    """(B, Lq, H D) as (B, H, Lq, D)."""
    result = value.numpy().reshape(case.batch, case.n_queries, case.heads, case.dim)
    return result.swapaxes(1, 2)


def named(arrays):
    return dict(zip(("query", "key", "value"), arrays, strict=True))


# ---- MultiHeadAttention --------------------------------------------------------------


def multi_head(case, arrays, n_threads):
    """The operator as it is meant: (B, L, H D)."""
    query, key, value = arrays
    inputs = named((flat(query), flat(key), flat(value)))
    node, inputs = multi_head_node(case, inputs, case.heads)
    outputs = {"output": np.empty_like(inputs["query"])}
    call = bound([node], inputs, outputs, n_threads)
    return call, lambda value: unflat(value, case)


def heads_as_batch(case, arrays, n_threads):
    """(B, H, L, D) as it lies, each key head a sequence of one head."""
    query, key, value = arrays
    group = case.heads // case.kv_heads
    inputs = named(
        (
            query.reshape(-1, group * case.n_queries, case.dim),
            key.reshape(-1, case.n_keys, case.dim),
            value.reshape(-1, case.n_keys, case.dim),
        )
    )
    node, inputs = multi_head_node(case, inputs, 1)
    outputs = {"output": np.empty_like(inputs["query"])}
    call = bound([node], inputs, outputs, n_threads)
    return call, lambda value: value.numpy().reshape(case.query_shape)


def multi_head_node(case, inputs, heads):
    """The node, and its inputs with what says which keys are visible."""
    names = ["query", "key", "value", "", "", ""]
    masked = plain(case) if only_causal(case) else case
    added = cases.additive(masked, case.dtype, cases.LOWEST)
    if case.padded and not (case.mask or case.bias or case.window or case.causal):
        copies = inputs["query"].shape[0] // case.batch
        counts = cases.lengths(case).repeat(copies).astype(np.int32)
        inputs, names[4] = {**inputs, "lengths": counts}, "lengths"
    elif added is not None:
        added = np.maximum(added, np.finfo(added.dtype).min)
        inputs, names[5] = {**inputs, "added": added}, "added"
    node = make_node(
        "MultiHeadAttention",
        trimmed(names),
        ["output"],
        domain=OWN,
        num_heads=heads,
        unidirectional=int(only_causal(case)),
    )
    return node, inputs


def only_causal(case):
    return case.causal and not (case.mask or case.window or case.padded or case.bias)


def plain(case):
    """The case without its options."""
    return cases.Case(
        case.batch,
        case.heads,
        case.kv_heads,
        case.n_queries,
        case.n_keys,
        case.dim,
        case.dtype,
    )


def trimmed(names):
    while not names[-1]:
        names = names[:-1]
    return names


# ---- Attention -----------------------------------------------------------------------


def standard(case, arrays, n_threads, how="causal or boolean mask"):
    """ONNX's operator, with one of its ways to say what is visible."""
    inputs = named(arrays)
    names, more = ["query", "key", "value", "", "", "", ""], {}
    if how == "lengths":
        inputs["lengths"], names[6] = cases.lengths(case), "lengths"
    elif how == "window":
        more = {"left_window_size": case.window - 1, "is_causal": 1}
    elif only_causal(case):
        more = {"is_causal": 1}
    elif how == "float mask" or case.bias:
        inputs["mask"], names[3] = cases.additive(case, case.dtype), "mask"
    elif case.mask or case.window or case.padded:
        seen = cases.visible(case)  # (B or 1, Lq, Lk)
        seen = seen[0] if len(seen) == 1 else seen[:, None]
        inputs["mask"], names[3] = np.ascontiguousarray(seen), "mask"
    node = make_node("Attention", trimmed(names), ["output"], **more)
    outputs = {"output": np.empty_like(inputs["query"])}
    return bound([node], inputs, outputs, n_threads), lambda value: value.numpy()


# ---- GroupQueryAttention -------------------------------------------------------------


def group_query(case, arrays, n_threads):
    """Prefill: the keys are new, and are written to a cache as well."""
    query, key, value = arrays
    counts = cases.lengths(case)
    if counts is None:
        counts = np.full(case.batch, case.n_keys)
    inputs = {
        **named((flat(query), flat(key), flat(value))),
        "last": (counts - 1).astype(np.int32),
        "total": np.array([case.n_keys], np.int32),
    }
    names = ["query", "key", "value", "", "", "last", "total", "", "", "", ""]
    if case.bias or case.mask:
        inputs["added"] = cases.additive(case, case.dtype, cases.LOWEST)
        names[10] = "added"
    causal = case.causal or case.window is not None
    node = group_query_node(case, trimmed(names), int(causal))
    outputs = {
        "output": np.empty_like(inputs["query"]),
        "present_key": np.empty_like(key),
        "present_value": np.empty_like(value),
    }
    call = bound([node], inputs, outputs, n_threads)
    return call, lambda value: unflat(value, case)


def group_query_decode(case, arrays, n_threads):
    """Decoding: all keys but the last are in the cache, which the call extends."""
    query, key, value = arrays
    inputs = {
        **named((flat(query), flat(key[:, :, -1:]), flat(value[:, :, -1:]))),
        "past_key": key,
        "past_value": value,
        "last": np.full(case.batch, case.n_keys - 1, np.int32),
        "total": np.array([case.n_keys], np.int32),
    }
    names = ["query", "key", "value", "past_key", "past_value", "last", "total"]
    node = group_query_node(case, names, 1)
    outputs = {
        "output": np.empty_like(inputs["query"]),
        "present_key": key,
        "present_value": value,
    }
    one_buffer = (("past_key", "present_key"), ("past_value", "present_value"))
    call = bound([node], inputs, outputs, n_threads, shared=one_buffer)
    return call, lambda value: unflat(value, case)


def group_query_node(case, names, causal):
    window = {} if case.window is None else {"local_window_size": case.window}
    return make_node(
        "GroupQueryAttention",
        names,
        ["output", "present_key", "present_value"],
        domain=OWN,
        num_heads=case.heads,
        kv_num_heads=case.kv_heads,
        causal=causal,
        **window,
    )


# ---- Which of them fit a case --------------------------------------------------------


def choices(case):
    """(name, function, further arguments) of each way that can say what the case is."""
    one_group = case.heads == case.kv_heads
    nothing_hidden = plain(case) == case
    if one_group:
        yield "MultiHeadAttention", multi_head, {}
    if nothing_hidden or (one_group and not case.bias):
        yield "MultiHeadAttention, heads as batch", heads_as_batch, {}
    yield "Attention", standard, {}
    if case.padded:
        yield "Attention, lengths", standard, {"how": "lengths"}
    if case.window is not None:
        yield "Attention, window", standard, {"how": "window"}
    if case.mask or case.window or case.padded:
        yield "Attention, float mask", standard, {"how": "float mask"}
    if case.n_queries == 1 and nothing_hidden and case.n_keys > 1:
        yield "GroupQueryAttention", group_query_decode, {}
    elif case.n_queries == case.n_keys:
        yield "GroupQueryAttention", group_query, {}


def builders(case, arrays):
    """(name, function of the number of threads) of each way."""
    for name, function, more in choices(case):

        def build(n_threads, function=function, more=more):
            return function(case, arrays, n_threads, **more)

        yield name, build
