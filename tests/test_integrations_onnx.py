"""ONNX's operator Attention: its own tests, its reference, what is refused."""

import importlib
import warnings
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("onnx", minversion="1.23")

import onnx
from onnx import helper
from onnx.backend.test.case import node as node_tests
from onnx.backend.test.runner import Runner
from onnx.reference import ReferenceEvaluator
from support import pages, processes
from support.arrays import normal
from support.comparisons import assert_same_bits

import attnpy
from attnpy.integrations import onnx as integration
from attnpy.integrations.onnx import Attention

INPUTS = (
    "Q",
    "K",
    "V",
    "attn_mask",
    "past_key",
    "past_value",
    "nonpad_kv_seqlen",
)
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")
# The function computes its scale in float32, and with 16 bits all.
TOLERANCE = {"float64": 3e-7, "float32": 3e-6, "float16": 4e-3, "bfloat16": 3e-2}


def info(name, x):
    """What a graph says about an array; None: of a type that it finds out itself."""
    if x is None:
        return helper.make_value_info(name, onnx.TypeProto())
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    return helper.make_tensor_value_info(name, kind, x.shape)


def node_of(inputs, n_outputs, attributes):
    """The node, with a name for each input that is there, up to the last one."""
    names = [name if inputs.get(name) is not None else "" for name in INPUTS]
    while not names[-1]:
        names.pop()
    return helper.make_node(
        "Attention", names, outputs_of(inputs, n_outputs), **attributes
    )


def outputs_of(inputs, n_outputs):
    """The outputs' names: with lengths there is no cache, and none to return."""
    lengths = inputs.get("nonpad_kv_seqlen") is not None
    return [
        "" if lengths and name.startswith("present") else name
        for name in OUTPUTS[:n_outputs]
    ]


def session_of(nodes, inputs, n_outputs, opsets, **more):
    """An evaluator of the model with these nodes."""
    graph = helper.make_graph(
        nodes,
        "attention",
        [info(name, x) for name, x in inputs.items() if x is not None],
        [info(name, None) for name in outputs_of(inputs, n_outputs) if name],
    )
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets), **more)


def run(inputs, n_outputs=1, opset=25, **attributes):
    """The node's outputs, computed by attnpy."""
    node = node_of(inputs, n_outputs, attributes)
    opsets = [helper.make_opsetid("", opset)]
    session = session_of([node], inputs, n_outputs, opsets, new_ops=[Attention])
    return session.run(None, given(inputs))


def given(inputs):
    return {name: x for name, x in inputs.items() if x is not None}


def defined(inputs, n_outputs=1, opset=25, **attributes):
    """The node's outputs, as the function that defines the operator has them."""
    node = node_of(inputs, n_outputs, attributes)
    types = [info(name, inputs.get(name)).type for name in node.input]
    opsets = [helper.make_opsetid("", opset)]
    bodies, _ = node_tests.function_testcase_helper(node, types, "body", opsets)
    session = session_of(bodies[-1][0], inputs, n_outputs, bodies[-1][1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return session.run(None, given(inputs))


def arrays(dtype="float32", heads=4, kv_heads=2, n_queries=3, n_keys=7):
    """Q, K and V with four axes."""
    return {
        "Q": normal(2, heads, n_queries, 8, dtype=dtype, seed=1),
        "K": normal(2, kv_heads, n_keys, 8, dtype=dtype, seed=2),
        "V": normal(2, kv_heads, n_keys, 5, dtype=dtype, seed=3),
    }


def flat(inputs):
    """The same with three axes, and the attributes to say so."""
    heads = {
        "q_num_heads": inputs["Q"].shape[1],
        "kv_num_heads": inputs["K"].shape[1],
    }
    return {
        name: x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)
        for name, x in inputs.items()
    }, heads


def node_cases():
    """ONNX's own tests of nodes of this operator."""

    def import_one(package):
        importlib.import_module(f"{package.__name__}.attention")

    with (
        mock.patch.object(node_tests, "import_recursive", import_one),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        cases = node_tests.collect_testcases("Attention")
    return [
        case
        for case in cases
        if any(node.op_type == "Attention" for node in case.model.graph.node)
    ]


def test_a_node_shows_its_inputs_and_outputs():
    inputs = arrays()
    node = node_of(inputs, 1, {"q_num_heads": 4, "kv_num_heads": 2})
    opsets = [helper.make_opsetid("", 25)]
    session = session_of([node], inputs, 1, opsets, new_ops=[Attention])
    shown = repr(session.rt_nodes_[0])
    assert shown == "Attention(inputs=['Q', 'K', 'V'], outputs=['Y'])"


@pytest.mark.quick
def test_all_of_onnx_s_own_tests_of_the_node_pass(monkeypatch):
    calls = mock.Mock(wraps=attnpy.attention)
    monkeypatch.setattr(integration, "attention", calls)
    cases = node_cases()
    assert len(cases) >= 93
    for case in cases:
        session = ReferenceEvaluator(case.model, new_ops=[Attention])
        names = [value.name for value in case.model.graph.input]
        for inputs, expected in case.data_sets:
            actual = session.run(None, dict(zip(names, inputs, strict=True)))
            Runner.assert_similar_outputs(
                expected, actual, case.rtol, case.atol, model_dir=case.name
            )
    assert calls.call_count >= len(cases)


BOOLEAN = np.random.default_rng(0).random((2, 1, 3, 7)) < 0.6
CASES = {
    "plain": ({}, {}),
    "scale": ({}, {"scale": 0.4, "softcap": 1.5}),
    "causal": ({}, {"is_causal": 1}),
    "boolean mask": ({"attn_mask": BOOLEAN}, {}),
    "boolean mask, causal": ({"attn_mask": BOOLEAN}, {"is_causal": 1}),
    "numbers": ({"attn_mask": normal(4, 3, 7)}, {"is_causal": 1, "softcap": 2.0}),
    "a mask for keys": ({"attn_mask": BOOLEAN[0, 0, 0]}, {}),
    "a short mask": ({"attn_mask": BOOLEAN[..., :5]}, {"softcap": 2.0}),
    "a mask of one key": ({"attn_mask": BOOLEAN[..., :1]}, {}),
    "lengths": ({"nonpad_kv_seqlen": np.array([7, 4])}, {}),
    "lengths, causal": ({"nonpad_kv_seqlen": np.array([7, 2])}, {"is_causal": 1}),
    "window": ({}, {"left_window_size": 1}),
    "two-sided window": ({}, {"left_window_size": 1, "right_window_size": 2}),
    "window, lengths": (
        {"nonpad_kv_seqlen": np.array([7, 0]), "attn_mask": BOOLEAN},
        {"right_window_size": 0, "left_window_size": 2, "is_causal": 1},
    ),
}


def compare(inputs, n_outputs, **attributes):
    actual = run(inputs, n_outputs, **attributes)
    expected = defined(inputs, n_outputs, **attributes)
    for one, right in zip(actual, expected, strict=True):
        assert one.dtype == right.dtype
        assert one.shape == right.shape
        bound = TOLERANCE[one.dtype.name]
        one, right = one.astype(np.float64), right.astype(np.float64)
        np.testing.assert_allclose(one, right, rtol=bound, atol=bound)


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("name", CASES)
def test_every_output_is_that_of_the_operator_s_function(name, mode):
    more, attributes = CASES[name]
    compare({**arrays(), **more}, 4, qk_matmul_output_mode=mode, **attributes)


@pytest.mark.parametrize("name", CASES)
def test_every_dtype_and_layout_is_that_of_the_operator_s_function(name, dtype):
    more, attributes = CASES[name]
    more = {
        key: x.astype(dtype) if x.dtype == np.float32 else x for key, x in more.items()
    }
    inputs = arrays(dtype)
    compare({**inputs, **more}, 1, **attributes)
    inputs, heads = flat(inputs)
    compare({**inputs, **more}, 4, **heads, **attributes)


@pytest.mark.parametrize("causal", [0, 1])
def test_the_cache_inside_is_that_of_the_operator_s_function(causal):
    past = {
        "past_key": normal(2, 2, 5, 8, seed=8),
        "past_value": normal(2, 2, 5, 5, seed=9),
    }
    compare({**arrays(), **past}, 4, is_causal=causal, left_window_size=6)
    inputs, heads = flat(arrays())
    compare({**inputs, **past}, 4, is_causal=causal, **heads)


@pytest.mark.quick
def test_tokens_one_by_one_have_the_bits_of_all_at_once():
    inputs = arrays(n_queries=7)
    whole, *_ = run(inputs, is_causal=1)
    key, value = inputs["K"][:, :, :0], inputs["V"][:, :, :0]
    for i in range(7):
        new = {name: x[:, :, i : i + 1] for name, x in inputs.items()}
        past = {"past_key": key, "past_value": value}
        one, key, value = run({**new, **past}, 3, is_causal=1)
        assert_same_bits(one, whole[:, :, i : i + 1])
    assert_same_bits((key, value), (inputs["K"], inputs["V"]))


@pytest.mark.quick
def test_the_output_has_the_bits_of_attention():
    inputs = arrays("float64")
    expected = attnpy.attention(*inputs.values(), causal="top_left")
    assert_same_bits(run(inputs, is_causal=1)[0], expected)


def test_in_opset_23_masks_broadcast_and_later_they_are_filled_up():
    mask = normal(2, 1, 3, 1, seed=7)
    inputs = {**arrays(), "attn_mask": mask}
    for opset in (23, 24, 25):
        actual = run(inputs, opset=opset)[0]
        expected = defined(inputs, opset=opset)[0]
        np.testing.assert_allclose(actual, expected, atol=3e-6)
    same = run(inputs, opset=23)[0]  # for all keys
    np.testing.assert_allclose(same, run(arrays())[0], atol=3e-6)
    first = np.repeat(inputs["V"][:, :, :1], 2, axis=1)  # of the keys, for each head
    assert_same_bits(actual, np.repeat(first, 3, axis=2))


@pytest.mark.parametrize("precision", integration.PRECISIONS)
def test_the_softmax_has_at_least_the_precision_that_is_asked_for(precision):
    inputs = {name: 3 * x for name, x in arrays().items()}
    wide = {name: x.astype(np.float64) for name, x in inputs.items()}
    exact = attnpy.attention(*wide.values()).astype(np.float32)
    actual = run(inputs, softmax_precision=precision)[0]
    if precision == onnx.TensorProto.DOUBLE:
        assert_same_bits(actual, exact)
    else:
        np.testing.assert_allclose(actual, exact, atol=1e-5)


@pytest.mark.parametrize("mode", [0, 2, 3])
def test_what_is_hidden_does_not_leak(mode):
    inputs = {**arrays(), "nonpad_kv_seqlen": np.array([4, 0])}
    clean = run(inputs, 4, qk_matmul_output_mode=mode)
    inputs["K"], inputs["V"] = inputs["K"].copy(), inputs["V"].copy()
    for name in ("K", "V"):
        inputs[name][0, :, 4:] = np.nan
        inputs[name][1] = np.inf
    spoilt = run(inputs, 4, qk_matmul_output_mode=mode)
    assert_same_bits(spoilt[0], clean[0])
    if mode != 0:  # the products alone know nothing of masks
        assert_same_bits(spoilt[1], clean[1])


@pytest.mark.parametrize("sizes", [(0, 3, 7), (2, 0, 7), (2, 3, 0)])
def test_zero_sizes(sizes):
    batch, n_queries, n_keys = sizes
    inputs = {
        "Q": np.ones((batch, 4, n_queries, 8), np.float32),
        "K": np.ones((batch, 2, n_keys, 8), np.float32),
        "V": np.ones((batch, 2, n_keys, 5), np.float32),
    }
    output, _, _, scores = run(inputs, 4, qk_matmul_output_mode=2)
    assert output.shape == (batch, 4, n_queries, 5)
    assert scores.shape == (batch, 4, n_queries, n_keys)
    np.testing.assert_array_equal(output, 1 if n_keys else 0)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("other", ["float64", "float32", "float16", "bfloat16"])
def test_values_may_have_a_dtype_of_their_own(dtype, other):
    """As the operator's types say; keys have that of the queries."""
    inputs = {**arrays(dtype), "V": arrays(other)["V"]}
    output, _, value, _ = run(inputs, 4)
    wide = [x.astype("f8" if other == "float64" else "f4") for x in inputs.values()]
    assert value.dtype == other
    assert_same_bits(output, attnpy.attention(*wide).astype(dtype))


def test_attributes_of_a_function_reach_the_node():
    node = helper.make_node("Attention", ["x", "x", "x"], ["y"])
    attribute = node.attribute.add(name="is_causal", type=onnx.AttributeProto.INT)
    attribute.ref_attr_name = "causal"
    opsets = [helper.make_opsetid("", 24)]
    function = helper.make_function(
        "own", "attend", ["x"], ["y"], [node], opsets, ["causal"]
    )
    session = ReferenceEvaluator(function, new_ops=[Attention])
    x = normal(1, 2, 5, 8)
    for causal in (0, 1):
        (actual,) = session.run(None, {"x": x}, attributes={"causal": causal})
        assert_same_bits(actual, attnpy.attention(x, x, x, causal=bool(causal)))


FLAT, HEADS = flat(arrays())
PAST = {"past_key": normal(2, 2, 5, 8), "past_value": normal(2, 2, 5, 5)}
REFUSED = {
    "q_num_heads: expected a number of heads for Q with three axes, got none": (
        FLAT,
        {},
    ),
    "K: expected (B, L, E) with E a multiple of kv_num_heads, 3, got (2, 7, 16)": (
        FLAT,
        {**HEADS, "kv_num_heads": 3},
    ),
    "q_num_heads: expected the 4 heads of Q, got 2": (arrays(), {"q_num_heads": 2}),
    "Q: expected three or four axes, got shape (4, 3)": (
        {**arrays(), "Q": normal(4, 3)},
        {},
    ),
    "V: expected float64, float32, float16 or bfloat16, got int8": (
        {**arrays(), "V": np.ones((2, 2, 7, 5), np.int8)},
        {},
    ),
    "past_value: expected an array beside its counterpart, got None": (
        {**arrays(), **PAST, "past_value": None},
        {},
    ),
    "past_key: expected (2, 2, L, 8), got (2, 2, 5, 5)": (
        {**arrays(), **PAST, "past_key": PAST["past_value"]},
        {},
    ),
    "nonpad_kv_seqlen: expected None beside past_key and past_value, got an array": (
        {**arrays(), **PAST, "nonpad_kv_seqlen": np.array([1, 2])},
        {},
    ),
    "attn_mask: expected bool or a floating dtype, got int32": (
        {**arrays(), "attn_mask": np.ones((3, 7), np.int32)},
        {},
    ),
    "attn_mask: expected bool or a floating dtype, got complex64": (
        {**arrays(), "attn_mask": np.ones((3, 7), np.complex64)},
        {},
    ),
    "past_key: expected the dtype of what follows, float32, got float64": (
        {**arrays(), **PAST, "past_key": PAST["past_key"].astype(np.float64)},
        {},
    ),
    "nonpad_kv_seqlen: expected integers, got dtype float32": (
        {**arrays(), "nonpad_kv_seqlen": np.ones(2, np.float32)},
        {},
    ),
    "nonpad_kv_seqlen: expected (2,), got shape (3,)": (
        {**arrays(), "nonpad_kv_seqlen": np.array([1, 2, 3])},
        {},
    ),
    "qk_matmul_output_mode: expected 0 to 3, got 4": (
        arrays(),
        {"qk_matmul_output_mode": 4},
    ),
    "left_window_size: expected at least -1, got -2": (
        arrays(),
        {"left_window_size": -2},
    ),
    "softmax_precision: expected one of 1 (FLOAT), 10 (FLOAT16), 11 (DOUBLE), 16 "
    "(BFLOAT16), got 7": (arrays(), {"softmax_precision": 7}),
    "K: expected the dtype of Q, float32, got float64": (
        {**arrays(), "K": arrays("float64")["K"]},
        {},
    ),
    "is_causal: expected 0 or 1, got 2": (arrays(), {"is_causal": 2}),
    "is_causal: expected 0 or 1, got -1": (arrays(), {"is_causal": -1}),
    "is_causal: expected an integer, got float32": (arrays(), {"is_causal": 1.0}),
    "q_num_heads: expected an integer, got float32": (FLAT, {"q_num_heads": 4.0}),
    "scale: expected a number, got str": (arrays(), {"scale": "1"}),
    "do_rotary: expected no such attribute, got 1": (arrays(), {"do_rotary": 1}),
}


@pytest.mark.quick
@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused_by_name(message):
    inputs, attributes = REFUSED[message]
    with pytest.raises(ValueError) as caught:
        run(inputs, **attributes)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "name, more",
    [
        ("attn_mask", {"attn_mask": np.ones((3, 9), np.float32)}),
        ("attn_mask", {"attn_mask": np.ones((2, 7), bool)}),
        ("nonpad_kv_seqlen", {"nonpad_kv_seqlen": np.array([8, 1])}),
        ("K", {"K": normal(2, 2, 7, 9)}),
        ("V", {"V": normal(2, 2, 6, 5)}),
    ],
)
def test_attention_s_own_errors_have_the_operator_s_names(name, more):
    with pytest.raises(ValueError, match=rf"^{name}: expected"):
        run({**arrays(), **more})


def test_without_onnx_the_error_says_what_to_install():
    script = (
        "import sys\n"
        "sys.modules['onnx'] = None\n"
        "try:\n"
        "    import attnpy.integrations.onnx\n"
        "except ImportError as error:\n"
        "    print(error)"
    )
    assert processes.assert_runs(script) == (
        "attnpy.integrations.onnx needs the onnx package: pip install onnx\n"
    )


def test_the_examples_run():
    pages.assert_examples_print_what_their_comments_say("integrations/onnx.md")
