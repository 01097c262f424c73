"""Every error: its type, and that its message names what was expected and what came."""

import inspect
import re

import numpy as np
import pytest
from support.arrays import dtype_of, normal, problem, read_only
from support.comparisons import assert_same_bits
from support.errors import refused
from support.processes import assert_runs

import attnpy
from attnpy import attention

F32 = np.float32


def zeros(*shape, dtype=F32):
    """An argument of this shape."""
    return np.zeros(shape, dtype)


class Several:
    """Several numbers, which a float would lose, as a tensor of PyTorch says."""

    shape = (2,)

    def __float__(self):
        """Refuse."""
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")


def raises(error, name, *said, query=None, key=None, value=None, **options):
    """Assert that a call fails with this message: the argument, expected and got."""
    query = zeros(2, 3, 4) if query is None else query
    key = zeros(2, 5, 4) if key is None else key
    value = zeros(2, 5, 6) if value is None else value
    with refused(error, name) as caught:
        attention(query, key, value, **options)
    for text in said:
        assert text in str(caught.value), str(caught.value)


SHAPES = {
    "0-d query": ("query", {"query": zeros()}, "()"),
    "0-d key": ("key", {"key": zeros()}, "()"),
    "1-d key": ("key", {"key": zeros(4)}, "(4,)"),
    "1-d value": ("value", {"value": zeros(6)}, "(6,)"),
    "D": ("key", {"key": zeros(2, 5, 3)}, "4", "(2, 5, 3)"),
    "Lk": ("value", {"value": zeros(2, 7, 6)}, "5", "(2, 7, 6)"),
    "Hk": ("query", {"key": zeros(3, 5, 4), "value": zeros(3, 5, 6)}, "3", "(2, 3, 4)"),
    "Hk is 0": ("query", {"key": zeros(0, 5, 4), "value": zeros(0, 5, 6)}, "0"),
    "one head": ("query", {"query": zeros(3, 4)}, "2", "(3, 4)"),
    "batch of key": (
        "key",
        {"query": zeros(2, 2, 3, 4), "key": zeros(3, 2, 5, 4)},
        "(3, 2, 5, 4)",
    ),
    "batch of value": (
        "value",
        {"query": zeros(2, 2, 3, 4), "value": zeros(3, 2, 5, 6)},
        "(3, 2, 5, 6)",
    ),
    "mask": ("mask", {"mask": zeros(3, 6, dtype=bool)}, "(3, 6)"),
    "mask with heads": ("mask", {"mask": zeros(4, 3, 5, dtype=bool)}, "(4, 3, 5)"),
    "mask adds axes": ("mask", {"mask": zeros(1, 2, 3, 5, dtype=bool)}, "(1, 2, 3, 5)"),
    "mask of 0 keys": ("mask", {"mask": zeros(3, 0, dtype=bool)}, "(3, 0)"),
    "bias": ("bias", {"bias": zeros(2, 4, 5)}, "(2, 4, 5)"),
    "bias adds axes": ("bias", {"bias": zeros(1, 2, 3, 5)}, "(1, 2, 3, 5)"),
    "sinks": ("sinks", {"sinks": zeros(3)}, "2", "(3,)"),
    "0-d sinks": ("sinks", {"sinks": 1.0}, "()"),
    "2-d sinks": ("sinks", {"sinks": zeros(1, 2)}, "(1, 2)"),
    "lengths": ("kv_lengths", {"kv_lengths": [1, 2]}, "(2,)"),
    "lengths of a batch": (
        "kv_lengths",
        {"query": zeros(2, 2, 3, 4), "kv_lengths": [1, 2, 3]},
        "(3,)",
    ),
    "offsets": ("q_offset", {"q_offset": [1, 2]}, "(2,)"),
    "offsets of a batch": (
        "q_offset",
        {"query": zeros(2, 2, 3, 4), "q_offset": [[1], [2]]},
        "(2, 1)",
    ),
    "out": ("out", {"out": zeros(2, 3, 5)}, "(2, 3, 6)", "(2, 3, 5)"),
    "out adds axes": ("out", {"out": zeros(1, 2, 3, 6)}, "(1, 2, 3, 6)"),
    "out lacks axes": ("out", {"out": zeros(3, 6)}, "(3, 6)"),
    "out to be broadcast": ("out", {"out": zeros(2, 1, 6)}, "(2, 1, 6)"),
}


@pytest.mark.quick
@pytest.mark.parametrize("case", SHAPES)
def test_wrong_shape_is_a_value_error(case):
    name, arguments, *said = SHAPES[case]
    raises(ValueError, name, *said, **arguments)


RANGES = {
    "length below 0": ("kv_lengths", {"kv_lengths": -1}, "0", "5", "-1"),
    "length above Lk": ("kv_lengths", {"kv_lengths": 6}, "5", "6"),
    "huge length": ("kv_lengths", {"kv_lengths": 2**63 - 1}, "5"),
    "huge unsigned length": ("kv_lengths", {"kv_lengths": np.uint64(2**64 - 1)}, "5"),
    "one length of many": (
        "kv_lengths",
        {"query": zeros(3, 2, 3, 4), "kv_lengths": [5, 9, 0]},
        "9",
    ),
    "huge offset": ("q_offset", {"q_offset": np.uint64(2**63)}, str(2**63)),
    "left": ("window", {"window": (-1, 0)}, "-1"),
    "right": ("window", {"window": (0, -2)}, "-2"),
    "window of one": ("window", {"window": (1,)}),
    "window of three": ("window", {"window": (1, 2, 3)}),
    "NaN scale": ("scale", {"scale": np.nan}, "finite", "nan"),
    "infinite scale": ("scale", {"scale": np.inf}, "finite", "inf"),
    "zero softcap": ("softcap", {"softcap": 0}, "0"),
    "negative softcap": ("softcap", {"softcap": -1.5}, "-1.5"),
    "NaN softcap": ("softcap", {"softcap": np.nan}, "nan"),
    "infinite softcap": ("softcap", {"softcap": np.inf}, "inf"),
    "causal": ("causal", {"causal": "bottom_left"}, "top_left", "bottom_left"),
    "empty causal": ("causal", {"causal": ""}, "top_left"),
    "zero threads": ("num_threads", {"num_threads": 0}, "1", "0"),
    "negative threads": ("num_threads", {"num_threads": -3}, "-3"),
    "read-only out": ("out", {"out": read_only(zeros(2, 3, 6))}, "writ", "read-only"),
}


@pytest.mark.quick
@pytest.mark.parametrize("case", RANGES)
def test_number_out_of_range_is_a_value_error(case):
    name, arguments, *said = RANGES[case]
    raises(ValueError, name, *said, **arguments)


KINDS = {
    "complex query": ("query", {"query": zeros(2, 3, 4, dtype="complex64")}),
    "longdouble query": ("query", {"query": zeros(2, 3, 4, dtype="longdouble")}),
    "string query": ("query", {"query": zeros(2, 3, 4, dtype="U1")}, "<U1"),
    "bytes key": ("key", {"key": zeros(2, 5, 4, dtype="S1")}, "S1"),
    "object value": ("value", {"value": zeros(2, 5, 6, dtype=object)}, "object"),
    "date value": ("value", {"value": zeros(2, 5, 6, dtype="M8[s]")}, "datetime64"),
    "record query": ("query", {"query": zeros(2, 3, 4, dtype="f4,f4")}),
    "None as key": ("key", {"key": np.array(None)}, "got None"),
    "integer mask": ("mask", {"mask": zeros(3, 5, dtype=int)}, "bool", "int64"),
    "float mask": ("mask", {"mask": zeros(3, 5)}, "bool", "float32"),
    "object mask": ("mask", {"mask": zeros(3, 5, dtype=object)}, "bool", "object"),
    "mask is a string": ("mask", {"mask": "causal"}, "bool"),
    "integer bias": ("bias", {"bias": zeros(3, 5, dtype=int)}, "float", "int64"),
    "boolean bias": ("bias", {"bias": zeros(3, 5, dtype=bool)}, "float", "bool"),
    "complex bias": ("bias", {"bias": zeros(3, 5, dtype=complex)}, "complex128"),
    "complex sinks": ("sinks", {"sinks": zeros(2, dtype=complex)}, "complex128"),
    "object sinks": ("sinks", {"sinks": zeros(2, dtype=object)}, "object"),
    "string sinks": ("sinks", {"sinks": ["a", "b"]}, "<U1"),
    "boolean length": ("kv_lengths", {"kv_lengths": True}, "int", "bool"),
    "float length": ("kv_lengths", {"kv_lengths": 3.0}, "int", "float"),
    "float lengths": ("kv_lengths", {"kv_lengths": zeros()}, "int", "float32"),
    "string length": ("kv_lengths", {"kv_lengths": "3"}, "int"),
    "boolean lengths": ("kv_lengths", {"kv_lengths": np.True_}, "int", "bool"),
    "boolean offset": ("q_offset", {"q_offset": np.array(True)}, "int", "bool"),
    "float offset": ("q_offset", {"q_offset": 1.5}, "int", "float"),
    "complex offset": ("q_offset", {"q_offset": 1j}, "int"),
    "window is a number": ("window", {"window": 3}, "(left, right)", "int"),
    "window is a set": ("window", {"window": {1, 2}}, "(left, right)", "set"),
    "window is bytes": ("window", {"window": b"ab"}, "(left, right)", "bytes"),
    "window is a string": ("window", {"window": "ab"}),
    "float left": ("window", {"window": (1.0, 2)}, "int", "float"),
    "string right": ("window", {"window": (1, "2")}, "int", "str"),
    "boolean left": ("window", {"window": (True, 0)}, "int", "bool"),
    "boolean right": ("window", {"window": (None, np.True_)}, "int", "bool"),
    "string scale": ("scale", {"scale": "1"}),
    "complex scale": ("scale", {"scale": 1j}),
    "boolean scale": ("scale", {"scale": True}, "number", "bool"),
    "NumPy's boolean scale": ("scale", {"scale": np.True_}, "number", "bool"),
    "array as scale": ("scale", {"scale": np.array(True)}, "an array of booleans"),
    "list scale": ("scale", {"scale": [1.0, 2.0]}),
    "several as scale": ("scale", {"scale": Several()}, "number", "Several of", "(2,)"),
    "array as softcap": ("softcap", {"softcap": zeros(2)}, "ndarray of shape (2,)"),
    "array as dropout": ("dropout", {"dropout": zeros(3)}, "ndarray of shape (3,)"),
    "array as seed": ("dropout_seed", {"dropout_seed": np.ones(2, int)}, "(2,)"),
    "float seed": ("dropout_seed", {"dropout_seed": 2.0}, "an integer", "float"),
    "boolean seed": ("dropout_seed", {"dropout_seed": True}, "an integer", "bool"),
    "array as threads": ("num_threads", {"num_threads": np.ones(2, int)}, "(2,)"),
    "string softcap": ("softcap", {"softcap": "30"}),
    "boolean softcap": ("softcap", {"softcap": True}, "number", "bool"),
    "NumPy's boolean softcap": ("softcap", {"softcap": np.True_}, "number", "bool"),
    "causal is 1": ("causal", {"causal": 1}, "top_left", "int"),
    "causal is None": ("causal", {"causal": None}, "None"),
    "causal is a mask": ("causal", {"causal": zeros(3, 5, dtype=bool)}),
    "causal is bytes": ("causal", {"causal": b"top_left"}),
    "float threads": ("num_threads", {"num_threads": 2.0}, "int", "float"),
    "string threads": ("num_threads", {"num_threads": "2"}, "int", "str"),
    "boolean threads": ("num_threads", {"num_threads": True}, "int", "bool"),
    "NumPy's boolean threads": ("num_threads", {"num_threads": np.True_}, "bool"),
    "masked out": ("out", {"out": np.ma.zeros((2, 3, 6), F32)}, "MaskedArray", "data"),
    "out is a list": ("out", {"out": [[0.0]]}, "list"),
    "out is True": ("out", {"out": True}, "bool"),
    "wider out": ("out", {"out": zeros(2, 3, 6, dtype="f8")}, "float32", "float64"),
    "narrower out": ("out", {"out": zeros(2, 3, 6, dtype="f2")}, "float32", "float16"),
    "integer out": ("out", {"out": zeros(2, 3, 6, dtype="i4")}, "float32", "int32"),
}


@pytest.mark.quick
@pytest.mark.parametrize("case", KINDS)
def test_wrong_kind_is_a_type_error(case):
    name, arguments, *said = KINDS[case]
    raises(TypeError, name, *said, **arguments)


@pytest.mark.quick
def test_what_a_number_of_the_user_raises_is_raised():
    class Number:
        def __float__(self):
            raise ValueError("no number yet")

    with pytest.raises(ValueError, match=r"^no number yet$"):
        attention(zeros(3, 4), zeros(5, 4), zeros(5, 4), scale=Number())


@pytest.mark.quick
def test_integer_mask_says_how_to_write_it():
    with pytest.raises(TypeError, match=r"mask.*(!= 0|astype\(bool\)|== 1)"):
        attention(zeros(3, 4), zeros(5, 4), zeros(5, 4), mask=np.ones((3, 5), int))


@pytest.mark.quick
def test_dtypes_without_a_common_one_are_a_type_error():
    bfloat16, arrays = dtype_of("bfloat16"), problem(2, 3, 5, 4, 4)
    with pytest.raises(TypeError, match=r"float16.*bfloat16|bfloat16.*float16"):
        attention(arrays[0].astype("f2"), *(x.astype(bfloat16) for x in arrays[1:]))


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "int4", "float8_e5m2"])
def test_other_dtypes_of_ml_dtypes_are_a_type_error(kind):
    dtype = getattr(pytest.importorskip("ml_dtypes"), kind)
    x = np.zeros((2, 3), dtype)
    with pytest.raises(TypeError, match=kind):
        attention(x, x, x)


@pytest.mark.quick
def test_message_of_a_shape_is_that_of_the_example():
    with pytest.raises(ValueError) as caught:
        attention(zeros(2, 8, 1, 64), zeros(2, 8, 128, 32), zeros(2, 8, 128, 64))
    assert str(caught.value) == (
        "key: expected (..., Hk, Lk, 64) to match query's D, got (2, 8, 128, 32)"
    )


@pytest.mark.quick
def test_unknown_and_missing_arguments_are_type_errors():
    x = zeros(3, 4)
    for call in (
        lambda: attention(),
        lambda: attention(x),
        lambda: attention(x, x),
        lambda: attention(x, x, x, None),
        lambda: attention(x, x, x, drop=0.1),
    ):
        with pytest.raises(TypeError):
            call()


def test_ragged_lists_are_named():
    with pytest.raises(ValueError, match=r"query: .*lists of equal lengths"):
        attention([[1.0, 2.0], [3.0]], zeros(5, 2), zeros(5, 2))


@pytest.mark.quick
def test_failed_call_leaves_out_alone():
    out = np.full((2, 3, 6), 7, F32)
    arrays = zeros(2, 3, 4), zeros(2, 5, 4), zeros(2, 5, 6)
    for options in ({"mask": zeros(9, 9, dtype=bool)}, {"scale": np.nan}):
        with pytest.raises(ValueError):
            attention(*arrays, out=out, **options)
        assert (out == 7).all()


@pytest.mark.quick
def test_array_likes_are_converted():
    query, key, value = problem(2, 3, 5, 4, 6, "float64")
    expected = attention(query, key, value, bias=np.zeros((3, 5)), sinks=[1.0, 2.0])
    actual = attention(
        query.tolist(),
        key.tolist(),
        tuple(value.tolist()),
        bias=[[0.0] * 5] * 3,
        sinks=(1, 2),
    )
    assert_same_bits(actual, expected)
    expected = attention(query, key, value, mask=np.arange(5) > 1)
    actual = attention(query, key, value, mask=[False, False, True, True, True])
    assert_same_bits(actual, expected)
    assert attention([[1, 2]], [[1, 2]], [[3, 4]]).tolist() == [[3.0, 4.0]]


class Like:
    """An array-like whose conversion runs any code."""

    def __init__(self, convert):
        self.convert = convert

    def __array__(self, dtype=None, copy=None):
        return self.convert()


ARRAYS = ("query", "key", "value", "mask", "bias", "sinks", "kv_lengths", "q_offset")


def every_array():
    """A value for each argument that is an array."""
    query, key, value = problem(2, 3, 5, 4, 6)
    return {
        "query": query,
        "key": key,
        "value": value,
        "mask": np.ones((3, 5), bool),
        "bias": normal(3, 5),
        "sinks": normal(2),
        "kv_lengths": np.array(4),
        "q_offset": np.array(1),
    }


@pytest.mark.quick
@pytest.mark.parametrize("name", ARRAYS)
def test_objects_with_array_protocol_are_converted(name):
    arrays = every_array()
    expected = attention(**arrays, causal=True)
    array = arrays[name]
    arrays[name] = Like(lambda: array)
    assert_same_bits(attention(**arrays, causal=True), expected)


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, ZeroDivisionError])
def test_exception_of_a_conversion_passes_through(name, error):
    def convert():
        raise error("mine")

    arrays = every_array()
    arrays[name] = Like(convert)
    with pytest.raises(error, match="mine"):
        attention(**arrays)


@pytest.mark.parametrize("name", ARRAYS)
def test_conversion_to_something_else_is_an_error(name):
    arrays = every_array()
    arrays[name] = Like(lambda: "not an array")
    with pytest.raises((TypeError, ValueError)):
        attention(**arrays)


@pytest.mark.quick
def test_exception_of_an_index_passes_through():
    class Index:
        def __index__(self):
            raise RuntimeError("mine")

    x = zeros(3, 4)
    for options in ({"num_threads": Index()}, {"window": (Index(), 0)}):
        with pytest.raises(RuntimeError, match="mine"):
            attention(x, x, x, **options)


@pytest.mark.quick
def test_exception_of_a_float_passes_through():
    class Float:
        def __float__(self):
            raise RuntimeError("mine")

    x = zeros(3, 4)
    for name in ("scale", "softcap"):
        with pytest.raises(RuntimeError, match="mine"):
            attention(x, x, x, **{name: Float()})


@pytest.mark.quick
@pytest.mark.parametrize("name", ["scale", "num_threads"])
@pytest.mark.parametrize("property_", ["shape", "dtype"])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, MemoryError, SystemExit, OSError, None]
)
def test_interrupts_stay_while_a_wrong_number_is_explained(name, property_, error):
    """An error of the object's own properties is none of the caller's."""

    def raise_it(_):
        if error is not None:
            raise error("mine")

    wrong, x = type("Wrong", (), {property_: property(raise_it)})(), zeros(3, 4)
    stays = error not in (OSError, None)
    with pytest.raises(error if stays else TypeError) as caught:
        attention(x, x, x, **{name: wrong})
    if stays:
        assert str(caught.value) == "mine"
    else:
        assert re.fullmatch(rf"{name}: expected an? .*, got Wrong", str(caught.value))


class Truth:
    """A boolean tensor of another library, which converts to the number 1."""

    dtype = "torch.bool"

    def __float__(self):
        return 1.0

    def __index__(self):
        return 1


@pytest.mark.quick
def test_booleans_of_other_libraries_are_no_numbers():
    x = zeros(3, 4)
    for name, kind in (
        ("scale", "a number"),
        ("softcap", "a number"),
        ("num_threads", "an integer"),
    ):
        said = rf"^{name}: expected {kind}, got an array of booleans$"
        with pytest.raises(TypeError, match=said):
            attention(x, x, x, **{name: Truth()})
    with pytest.raises(TypeError, match=r"^window: expected an integer, got an array"):
        attention(x, x, x, window=(Truth(), 0))
    with pytest.raises(TypeError, match=r"^num_pages: expected an integer, got Truth$"):
        attnpy.pages.PagePool(Truth(), 2, 4)


MUTATION = """
import itertools
import numpy as np
from attnpy import attention
from test_errors import ARRAYS, Like, every_array

# While one argument is converted, another one changes its shape, its memory or its
# numbers. Any result and any ordinary error will do: no crash, no stray read.
def shrink(array):
    array.resize((1,) * array.ndim, refcheck=False)

def grow(array):
    array.resize(tuple(3 * n for n in array.shape), refcheck=False)

def reshape(array):
    array.shape = array.shape[::-1]

def spoil(array):
    array[...] = 100

def widen(array):
    array.dtype = np.uint8

def thaw(array):
    array.flags.writeable = False

changes = (shrink, grow, reshape, spoil, widen, thaw)
for name, victim, change in itertools.product(ARRAYS, (*ARRAYS, "out"), changes):
    arrays = every_array()
    arrays["out"] = np.zeros((2, 3, 6), np.float32)
    original = arrays[name]
    def convert():
        change(arrays[victim] if victim != name else original)
        return original
    # attention() must not see the list: it holds its own references.
    call = dict(arrays)
    call[name] = Like(convert)
    try:
        attention(**call, causal=True, return_weights=True, return_lse=True)
    except (TypeError, ValueError):
        pass
print("alive")
"""


@pytest.mark.filterwarnings("ignore")
def test_conversion_that_changes_other_arguments_is_safe():
    assert "alive" in assert_runs(MUTATION, PYTHONWARNINGS="ignore")


@pytest.mark.quick
def test_thread_setting_rejects_what_is_no_count():
    before = attnpy.get_num_threads()
    for bad in (0, -1):
        with pytest.raises(ValueError, match=r"expected .*got"):
            attnpy.set_num_threads(bad)
    for bad in (2.0, "2"):
        with pytest.raises(TypeError, match=r"expected .*got"):
            attnpy.set_num_threads(bad)
    assert attnpy.get_num_threads() == before


def test_public_functions_have_docstrings_with_examples():
    for function in (attnpy.attention, attnpy.merge):
        text = inspect.getdoc(function)
        for part in ("Parameters", "Returns", "Raises", "Examples", ">>>"):
            assert part in text, (function.__name__, part)
