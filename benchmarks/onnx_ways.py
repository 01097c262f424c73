"""ONNX Runtime: models built in memory, their arrays bound; and its ways to attend.

MultiHeadAttention and GroupQueryAttention are ONNX Runtime's own operators, whose
arrays are (B, L, H D); Attention is the one of ONNX, with (B, H, L, D). The packages
are imported where they are used.
"""

from functools import partial

import numpy as np

from . import cases, children
from .lazily import onnx, onnxruntime

OWN = "com.microsoft"  # the domain of ONNX Runtime's own operators
QUERY = 0  # its place among the arguments of all three operators; then key and value


def session(model, n_threads):
    """A session for a model: its bytes, or a path."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    if children.quiet():
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4  # what fails is reported by who asked
    return onnxruntime.InferenceSession(
        model, options, providers=["CPUExecutionProvider"]
    )


def bound(run, inputs, outputs, shared=()):
    """A call that runs a session on these arrays, {name: array}; it gives the first.

    shared: pairs of an input and an output that are one buffer.
    """
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    values = {name: value(array) for name, array in {**inputs, **outputs}.items()}
    for source, target in shared:
        values[target] = values[source]
    binding = run.io_binding()
    for name in inputs:
        binding.bind_ortvalue_input(name, values[name])
    for name in outputs:
        binding.bind_ortvalue_output(name, values[name])
    result = next(iter(outputs.values()))  # whose memory ONNX Runtime shares

    def call():
        run.run_with_iobinding(binding)
        return result

    return call


def model_of(nodes, inputs, outputs, weights=()):
    """The bytes of a model: nodes in order, and {name: array} of all that is named."""
    helper, to_tensor = onnx.helper, onnx.numpy_helper.from_array

    def described(arrays):
        return [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape
            )
            for name, x in arrays.items()
        ]

    constants = [to_tensor(x, name) for name, x in dict(weights).items()]
    graph = helper.make_graph(
        nodes, "benchmark", described(inputs), described(outputs), constants
    )
    # 25 is the first opset whose Attention has windows.
    attributes = {attribute.name for node in nodes for attribute in node.attribute}
    opset = 25 if "left_window_size" in attributes else 24
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(OWN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    return model.SerializeToString()


def operator(kind, given, outputs, n_threads, shared=(), **attributes):
    """A call of one operator: {place among its arguments: array}, and its results.

    shared: pairs of an argument and a result, by their places, that are one buffer.
    """
    inputs = {f"input_{i}": array for i, array in given.items()}
    results = {f"output_{i}": array for i, array in enumerate(outputs)}
    names = [f"input_{i}" if i in given else "" for i in range(max(given) + 1)]
    node = onnx.helper.make_node(kind, names, list(results), **attributes)
    run = session(model_of([node], inputs, results), n_threads)
    pairs = [(f"input_{i}", f"output_{j}") for i, j in shared]
    return bound(run, inputs, results, pairs)


def flat(array):
    """(B, H, L, D) as (B, L, H D)."""
    batch, heads, length, dim = array.shape
    joined = np.ascontiguousarray(array.swapaxes(1, 2))
    return joined.reshape(batch, length, heads * dim)


def unflat(case, result):
    """(B, Lq, H D) as (B, H, Lq, D)."""
    shape = case.batch, case.n_queries, case.heads, case.dim
    return result.reshape(shape).swapaxes(1, 2)


def multi_head(case, arrays, n_threads, as_batch=False):
    """As the operator is meant; or as_batch, each key head a sequence of one head."""
    if as_batch:
        arrays = [arrays[QUERY].reshape(case.grouped_shape), *arrays[1:]]
        given = [x.reshape(-1, *x.shape[2:]) for x in arrays]  # (B Hk, L, D)
    else:
        given = map(flat, arrays)
    given = dict(enumerate(given))
    hidden = cases.plain(case) if case.only_causal() else case
    added = cases.additive(hidden, case.dtype, cases.LOWEST)
    if case.padded and not (case.mask or case.bias or case.window or case.causal):
        copies = len(given[QUERY]) // case.batch
        given[4] = cases.lengths(case).repeat(copies).astype(np.int32)
    elif added is not None:
        given[5] = np.maximum(added, np.finfo(added.dtype).min)
    call = operator(
        *("MultiHeadAttention", given, [np.empty_like(given[QUERY])], n_threads),
        domain=OWN,
        num_heads=1 if as_batch else case.heads,
        unidirectional=int(case.only_causal()),
    )
    if as_batch:
        return call, lambda result: result.reshape(case.query_shape)
    return call, partial(unflat, case)


def standard(case, arrays, n_threads, how="causal or boolean mask"):
    """ONNX's operator, with one of its ways to say what is visible."""
    given, more = dict(enumerate(arrays)), {}
    if how == "lengths":
        given[6] = cases.lengths(case)
    elif how == "window":
        more = {"left_window_size": case.window - 1, "is_causal": 1}
    elif case.only_causal():
        more = {"is_causal": 1}
    elif how == "float mask" or case.bias:
        given[3] = cases.additive(case, case.dtype)
    elif case.mask or case.window or case.padded:
        seen = cases.visible(case)  # (B or 1, Lq, Lk)
        given[3] = np.ascontiguousarray(seen[0] if len(seen) == 1 else seen[:, None])
    output = np.empty_like(given[QUERY])
    return operator("Attention", given, [output], n_threads, **more), np.asarray


def group_query(case, arrays, n_threads):
    """Prefill writes its keys to a cache; decoding extends one with the last key."""
    query, *caches = arrays
    counts, more = cases.lengths(case), {"causal": 1}
    if counts is None:
        counts = np.full(case.batch, case.n_keys)
    if case.n_queries < case.n_keys:
        new = [x[:, :, -1:] for x in caches]
        given = dict(enumerate([*map(flat, (query, *new)), *caches]))
        more["shared"] = (3, 1), (4, 2)  # each cache is one buffer
    else:
        given = dict(enumerate(map(flat, arrays)))
        caches = [np.empty_like(x) for x in caches]
        more["causal"] = int(case.causal or case.window is not None)
        if case.bias or case.mask:
            given[10] = cases.additive(case, case.dtype, cases.LOWEST)
    if case.window is not None:
        more["local_window_size"] = case.window
    given[5] = (counts - 1).astype(np.int32)
    given[6] = np.array([case.n_keys], np.int32)
    call = operator(
        *("GroupQueryAttention", given, [np.empty_like(given[QUERY]), *caches]),
        n_threads,
        domain=OWN,
        num_heads=case.heads,
        kv_num_heads=case.kv_heads,
        **more,
    )
    return call, partial(unflat, case)


def choices(case):
    """(name, function) of each way that can say what the case is.

    A function takes the case, its arrays and the number of threads, and returns a call
    and how its result is read.
    """
    one_group = case.heads == case.kv_heads
    nothing_hidden = cases.plain(case) == case
    if one_group:
        yield "MultiHeadAttention", multi_head
    if nothing_hidden or (one_group and not case.bias):
        yield "MultiHeadAttention, heads as batch", partial(multi_head, as_batch=True)
    yield "Attention", standard
    if case.padded:
        yield "Attention, lengths", partial(standard, how="lengths")
    if case.window is not None:
        yield "Attention, window", partial(standard, how="window")
    if case.mask or case.window or case.padded:
        yield "Attention, float mask", partial(standard, how="float mask")
    one_query = case.n_queries == 1 and nothing_hidden
    if one_query or case.n_queries == case.n_keys:
        yield "GroupQueryAttention", group_query
