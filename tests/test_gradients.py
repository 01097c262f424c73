"""attention_vjp(): right by the oracle and by difference quotients; the same bits."""

import functools
import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import backward, plain, reference
from support.arrays import dtype_of, lay_out, normal
from support.arrays import problem as float_problem
from support.backward import kept_by_dropout
from support.calls import TIERS, is_native, on_tier, threads_for_any_work, vjp_on
from support.comparisons import assert_right_gradients, assert_same_bits
from support.drawn import problems

import attnpy
from attnpy import AttentionGradients, attention_vjp, random
from attnpy.random import dropout_mask

NAMES = AttentionGradients._fields
N_ROWS = (1, 2, 3, 4, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
N_KEYS = (1, 2, 7, 15, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512, 513)
DROPOUT = {"dropout": 0.3, "dropout_seed": 2**63 + 12345}
DIMS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 130)


@pytest.fixture(autouse=True, scope="module")
def use_threads():
    """Calls use the threads that they are given, however little there is to do."""
    with threads_for_any_work():
        yield


def wanted_of(options):
    """Every input that a call with these options has."""
    return (*NAMES[:3], *(n for n in NAMES[3:] if options.get(n) is not None))


def gradients_of_results(arrays, options, seed=5):
    """Numbers for grad_output and grad_lse, in the dtypes of output and lse."""
    output, lse = attnpy.attention(*arrays, return_lse=True, **options)
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal(output.shape).astype(output.dtype),
        rng.standard_normal(lse.shape).astype(lse.dtype),
    )


def every_gradient(tier, arrays, options, seed=5, **more):
    """All that attention_vjp can compute of a call."""
    grad_output, grad_lse = gradients_of_results(arrays, options, seed)
    return vjp_on(
        tier,
        grad_output,
        *arrays,
        **{"grad_lse": grad_lse, "wanted": wanted_of(options), **options, **more},
    )


def assert_right(tier, arrays, options):
    """Compare every gradient of one call with the oracle."""
    grad_output, grad_lse = gradients_of_results(arrays, options)
    actual = every_gradient(tier, arrays, options)
    assert_right_gradients(actual, arrays, grad_output, grad_lse, **options)


# ---- Right ---------------------------------------------------------------------------


@pytest.mark.quick
@given(data=problems())
def test_any_gradient_agrees_with_the_oracle(tier, data):
    arrays, options = data
    assert_right(tier, arrays, options)


@pytest.mark.floats
@pytest.mark.parametrize("n_rows", N_ROWS)
@pytest.mark.parametrize("group", [1, 3])
def test_any_number_of_queries_agrees_with_the_oracle(tier, n_rows, group):
    arrays = float_problem(2 * group, n_rows, 70, 9, 17, "float64", n_kv_heads=2)
    assert_right(tier, arrays, {"causal": True})
    assert_right(tier, arrays, {"window": (9, 4), "softcap": 1.5})


@pytest.mark.floats
@pytest.mark.parametrize("n_keys", N_KEYS)
def test_any_number_of_keys_agrees_with_the_oracle(tier, n_keys):
    arrays = float_problem(2, 9, n_keys, 8, 5, "float64")
    assert_right(tier, arrays, {})
    bias = normal(2, 9, n_keys, dtype="float64")
    assert_right(tier, arrays, {"bias": bias, "mask": normal(n_keys) < 1})


@pytest.mark.floats
@pytest.mark.parametrize("dim", DIMS)
def test_any_head_dimension_agrees_with_the_oracle(tier, dim):
    for dtype in ("float64", "float32"):
        assert_right(tier, float_problem(1, 17, 20, dim, 3, dtype), {})
        assert_right(tier, float_problem(1, 17, 20, 5, dim, dtype), {"causal": True})


@pytest.mark.parametrize("dim", [1, 2, 3, 17, 65, 129])
def test_odd_head_dimensions_of_groups_and_batches_agree_with_the_oracle(
    tier, dtype, dim
):
    # The last columns of a gradient are no whole vector, and the next row is another's.
    query = normal(2, 4, 70, dim, seed=1).astype(dtype)
    key, value = (normal(2, 140, n, seed=n).astype(dtype) for n in (dim, dim + 1))
    sinks = normal(4, seed=4).astype(dtype)
    for options in ({"window": (20, 9)}, {"window": (90, 0)}):
        assert_right(tier, (query, key, value), {"sinks": sinks, **options})
    assert_right(tier, (query[0], np.stack([key, key]), value), {"causal": True})


@pytest.mark.floats
@pytest.mark.quick
@pytest.mark.parametrize("axes", ["bhqk", "hqk", "bqk", "qk", "hk", "k", "hq", "q", ""])
def test_a_shared_bias_gets_the_sum_of_its_scores(tier, axes):
    sizes = {"b": 2, "h": 6, "q": 70, "k": 140}
    shape = [sizes[a] if a in axes else 1 for a in "bhqk"]
    while shape and shape[0] == 1:
        shape = shape[1:]
    bias = normal(*shape, dtype="float64", seed=3)
    bias[bias < -1.5] = -np.inf
    query = normal(2, 6, 70, 8, dtype="float64", seed=1)
    key, value = normal(2, 2, 2, 140, 8, dtype="float64", seed=2)
    for n_threads in (1, 3):
        options = {"bias": bias, "causal": True, "num_threads": n_threads}
        got = every_gradient(tier, (query, key, value), options).bias
        del options["num_threads"]
        grad, grad_lse = gradients_of_results((query, key, value), options)
        exact = backward.attention_vjp(
            grad, query, key, value, grad_lse=grad_lse, **options
        )[3]
        np.testing.assert_allclose(got, exact, rtol=1e-11, atol=1e-11)


def change_along(arrays, options, name, direction, size, grads):
    """The central difference quotient of <grad_output, output> + <grad_lse, lse>."""
    values = []
    for sign in (1, -1):
        inputs = dict(zip(NAMES[:3], arrays, strict=True), **options)
        inputs[name] = inputs[name] + sign * size * direction
        output, lse = attnpy.attention(**inputs, return_lse=True)
        finite = np.where(np.isfinite(lse), lse, 0)
        values.append(np.sum(output * grads[0]) + np.sum(finite * grads[1]))
    return (values[0] - values[1]) / (2 * size)


@pytest.mark.quick
@given(data=problems(dtypes=("float64",)), seed=st.integers(0, 99))
def test_every_gradient_is_a_limit_of_difference_quotients(data, seed):
    arrays, options = data
    grads = gradients_of_results(arrays, options)
    gradients = every_gradient(None, arrays, options)
    rng = np.random.default_rng(seed)
    for name in wanted_of(options):
        gradient = getattr(gradients, name)
        direction = rng.standard_normal(gradient.shape)
        quotient = change_along(arrays, options, name, direction, 1e-5, grads)
        slope = np.sum(gradient * direction)
        terms = np.sum(np.abs(grads[0])) + np.sum(np.abs(grads[1]))
        np.testing.assert_allclose(quotient, slope, rtol=1e-5, atol=2e-7 * (1 + terms))


def test_gradients_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    query = normal(2, 4, 33, 16, dtype="float64", seed=1)
    key, value = normal(2, 2, 4, 50, 16, dtype="float64", seed=2)
    bias = normal(4, 33, 50, dtype="float64", seed=3)
    grad_output = normal(2, 4, 33, 16, dtype="float64", seed=4)
    inputs = [torch.tensor(x, requires_grad=True) for x in (query, key, value, bias)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        output = torch.nn.functional.scaled_dot_product_attention(
            *inputs[:3], attn_mask=inputs[3]
        )
    output.backward(torch.tensor(grad_output))
    gradients = attention_vjp(
        grad_output, query, key, value, bias=bias, wanted=NAMES[:4]
    )
    for mine, theirs in zip(gradients[:4], inputs, strict=True):
        np.testing.assert_allclose(mine, theirs.grad.numpy(), rtol=1e-11, atol=1e-12)


# ---- The same bits -------------------------------------------------------------------


@pytest.mark.quick
@given(data=problems())
def test_all_instruction_sets_give_gradients_the_same_bits(data):
    arrays, options = data
    expected = every_gradient("scalar", arrays, options)
    for tier in TIERS:
        actual = every_gradient(tier, arrays, options)
        assert_same_bits(actual, expected)


@given(data=problems(), threads=st.integers(1, 9))
def test_any_layout_and_number_of_threads_gives_the_same_bits(tier, data, threads):
    arrays, options = data
    expected = every_gradient(tier, arrays, {**options, "num_threads": 1})
    arrays = [np.ascontiguousarray(x) for x in arrays]
    for name in {"mask", "bias"} & set(options):
        options[name] = options[name].copy()  # contiguous, with its number of axes
    actual = every_gradient(tier, arrays, {**options, "num_threads": threads})
    assert_same_bits(actual, expected)


@pytest.mark.quick
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_a_gradient_alone_has_the_bits_it_has_with_others(tier, dtype, threads):
    arrays = float_problem(4, 140, 300, 20, 24, dtype, n_kv_heads=2)
    options = {"bias": normal(4, 140, 300), "causal": True, "sinks": normal(4)}
    together = every_gradient(tier, arrays, options)
    for name in NAMES:
        alone = every_gradient(
            tier, arrays, {**options, "num_threads": threads}, wanted=(name,)
        )
        assert [n for n in NAMES if getattr(alone, n) is not None] == [name]
        assert_same_bits(getattr(alone, name), getattr(together, name))


@pytest.mark.quick
def test_a_batch_has_the_bits_of_each_of_its_members(tier, dtype):
    query = normal(3, 4, 70, 20, seed=1).astype(dtype)
    key, value = normal(2, 3, 2, 90, 20, seed=2).astype(dtype)
    grad = normal(3, 4, 70, 20, seed=3).astype(dtype)
    together = vjp_on(tier, grad, query, key, value, causal=True)
    for b in range(3):
        alone = vjp_on(tier, grad[b], query[b], key[b], value[b], causal=True)
        for name in NAMES[:3]:
            assert_same_bits(getattr(alone, name), getattr(together, name)[b])


@given(data=problems(), at=st.integers(0, 999))
def test_a_head_of_a_batch_alone_has_its_bits_of_any_call(tier, data, at):
    arrays, options = data
    grads = gradients_of_results(arrays, options)
    batch, n_heads = grads[1].shape[:-2], grads[1].shape[-2]
    query, key, value = (np.broadcast_to(x, batch + x.shape[-3:]) for x in arrays)
    logits = (*grads[1].shape, key.shape[-2])
    for name, shape in (("mask", logits), ("bias", logits), ("q_offset", batch),
                        ("kv_lengths", batch)):  # fmt: skip
        if name in options:
            options[name] = np.broadcast_to(options[name], shape)
    whole = vjp_on(
        tier, grads[0], query, key, value, grad_lse=grads[1],
        wanted=wanted_of(options), **options,
    )  # fmt: skip
    n_kv_heads = key.shape[-3]
    b, h = (
        np.unravel_index(at % max(1, np.prod(batch, dtype=int)), batch),
        at % n_kv_heads,
    )
    b = tuple(int(i) for i in b)
    group = n_heads // n_kv_heads
    part, kv_part = (*b, slice(h * group, (h + 1) * group)), (*b, slice(h, h + 1))
    for name in options.keys() & {"mask", "bias"}:
        options[name] = options[name][part]
    for name in options.keys() & {"q_offset", "kv_lengths"}:
        options[name] = options[name][b]
    if "sinks" in options:
        options["sinks"] = options["sinks"][part[-1]]
    alone = vjp_on(
        tier, grads[0][part], query[part], key[kv_part], value[kv_part],
        grad_lse=grads[1][part], wanted=wanted_of(options), num_threads=1 + at % 7,
        **options,
    )  # fmt: skip
    for name, cut in zip(NAMES[:4], (part, kv_part, kv_part, part), strict=True):
        if (one := getattr(alone, name)) is not None:
            assert_same_bits(one, np.ascontiguousarray(getattr(whole, name)[cut]))


def test_padding_changes_no_bit(tier, dtype):
    query, key, value = float_problem(4, 70, 90, 20, 9, dtype, n_kv_heads=2)
    grad = normal(4, 70, 9, seed=3).astype(dtype)
    expected = vjp_on(tier, grad, query, key, value, causal=True, q_offset=20)

    def pad(x, n):
        return np.concatenate([x, np.ones_like(x[:, :n])], axis=1)

    more = np.concatenate([grad, np.zeros_like(grad[:, :30])], axis=1)
    arrays = pad(query, 30), pad(key, 45), pad(value, 45)
    options = {"causal": True, "q_offset": 20, "kv_lengths": 90}
    padded = vjp_on(tier, more, *arrays, **options)
    for one, other in zip(padded[:3], expected[:3], strict=True):
        assert_same_bits(np.ascontiguousarray(one[:, : other.shape[1]]), other)
        assert not np.any(one[:, other.shape[1] :])


@pytest.mark.floats
@pytest.mark.parametrize(
    "options",
    [
        {"window": (0, 0)},
        {"window": (70, 3), "q_offset": [-100, 700]},
        {"window": (5, 600), "kv_lengths": [700, 0]},
        {"window": (None, 0), "q_offset": [-600, 1300]},
        {"window": (130, None), "q_offset": [0, 2**62]},
        {"causal": True, "window": (200, None), "kv_lengths": [1290, 30]},
    ],
    ids=str,
)
@pytest.mark.parametrize("n_rows", [40, 700])
def test_a_window_has_the_bits_of_the_mask_that_says_the_same(tier, n_rows, options):
    # Of many chunks of keys, with tiles of queries that see none of a chunk.
    query = normal(2, 4, n_rows, 5, seed=1)
    key, value = normal(2, 2, 2, 1290, 5, seed=2)
    bias, sinks = normal(2, 1, 1, 1290, seed=3), normal(4, seed=4)
    grad = normal(2, 4, n_rows, 5, seed=6)
    arrays, given = (query, key, value), {"bias": bias, "sinks": sinks, "wanted": NAMES}
    lengths = np.reshape(options.get("kv_lengths", [1290, 1290]), (2, 1, 1, 1))
    first = np.reshape(options.get("q_offset", lengths.ravel() - n_rows), (2, 1, 1, 1))
    left, right = options["window"]
    right = 0 if "causal" in options else right
    key_at, query_at = np.arange(1290), np.arange(n_rows)[:, None] + first
    mask = key_at < lengths
    mask = mask & (True if left is None else key_at >= query_at - left)
    mask = mask & (True if right is None else key_at <= query_at + right)
    expected = vjp_on(tier, grad, *arrays, mask=mask, num_threads=1, **given)
    for n_threads in (1, 5):
        got = vjp_on(tier, grad, *arrays, num_threads=n_threads, **options, **given)
        assert_same_bits(got, expected)
    for name in (*NAMES[:2], "bias"):  # alone, so that tasks are others
        one = vjp_on(tier, grad, *arrays, **options, **{**given, "wanted": name})
        assert_same_bits(getattr(one, name), getattr(expected, name))


@pytest.mark.quick
def test_packed_sequences_have_the_bits_of_each_alone(tier, dtype):
    ends = np.array([0, 3, 3, 73, 160])
    query = normal(4, 160, 20, seed=1).astype(dtype)
    key, value = normal(2, 2, 160, 20, seed=2).astype(dtype)
    grad = normal(4, 160, 20, seed=3).astype(dtype)
    sinks = normal(4)
    for n_threads in (1, 3):
        packed = vjp_on(
            tier, grad, query, key, value, causal=True, sinks=sinks,
            seq_offsets=ends, num_threads=n_threads,
        )  # fmt: skip
        for first, end in itertools.pairwise(ends):
            part = np.s_[:, first:end]
            alone = vjp_on(
                tier, grad[part], query[part], key[part], value[part],
                causal=True, sinks=sinks,
            )  # fmt: skip
            for name in NAMES[:3]:
                one = np.ascontiguousarray(getattr(packed, name)[part])
                assert_same_bits(one, getattr(alone, name))


@pytest.mark.quick
def test_results_of_the_forward_call_change_no_bit(tier, dtype):
    arrays = float_problem(4, 70, 90, 20, 9, dtype, n_kv_heads=2)
    options = {"causal": True, "sinks": normal(4), "softcap": 3.0}
    output, lse = on_tier(tier)(*arrays, return_lse=True, **options)
    grad = normal(*output.shape, seed=3).astype(dtype)
    expected = vjp_on(tier, grad, *arrays, **options)
    for known in ({"output": output, "lse": lse}, {"output": output}, {"lse": lse}):
        assert_same_bits(vjp_on(tier, grad, *arrays, **options, **known), expected)


def test_a_broadcast_input_gets_the_sum_in_the_order_of_batches(tier):
    query = normal(3, 2, 4, 70, 20, seed=1)
    key, value = normal(2, 2, 90, 20, seed=2)  # (Hk, Lk, D) each
    grad = normal(3, 2, 4, 70, 20, seed=3)
    value = value[None]  # one axis is missing, one has length 1
    for threads in (1, 3):
        got = vjp_on(tier, grad, query, key, value, num_threads=threads)
        assert (got.key.shape, got.value.shape) == (key.shape, value.shape)
        exact = backward.attention_vjp(grad, query, key, value)
        for one, right in zip(got, exact, strict=True):
            if one is not None:
                np.testing.assert_allclose(one, right, rtol=1e-4, atol=1e-4)
        # With a single tile of queries for each, the order of additions is plain.
        few = vjp_on(
            tier, grad[..., :9, :], query[..., :9, :], key, value, num_threads=threads
        )
        total = np.zeros_like(key)
        for b in np.ndindex(3, 2):
            for h in range(4):
                part = np.s_[(*b, slice(h, h + 1), slice(0, 9))]
                alone = vjp_on(
                    tier, grad[part], query[part], key[h // 2], value[0, h // 2]
                )
                total[h // 2] += alone.key
        assert_same_bits(few.key, total)


# ---- What must not come through ------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("n_rows", [3, 70])
def test_nan_in_hidden_keys_and_rows_reaches_no_gradient(tier, dtype, n_rows):
    query, key, value = float_problem(4, n_rows, 150, 20, 9, dtype, n_kv_heads=2)
    grad = normal(4, n_rows, 9, seed=3).astype(dtype)
    mask = normal(n_rows, 150, seed=4) < 0.7
    mask[:, [0, 77, 149]] = False
    mask[1] = False
    mask[2, 5] = False
    expected = vjp_on(tier, grad, query, key, value, mask=mask)
    assert not np.any(expected.query[:, 1])
    assert not np.any(expected.key[:, 77]) and not np.any(expected.value[:, 77])
    for poison in (np.nan, np.inf, -np.inf):
        for array in (key, value):
            array[:, [0, 77, 149]] = poison
        query[:, 1] = poison
        grad[:, 1] = poison
        assert_same_bits(vjp_on(tier, grad, query, key, value, mask=mask), expected)


@pytest.mark.floats
@pytest.mark.quick
@pytest.mark.parametrize("what", ["query", "key", "value", "grad_output"])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, DROPOUT], ids=str)
def test_a_visible_nan_reaches_what_depends_on_it_and_nothing_else(tier, what, options):
    n_rows, n_keys, row, key_at = 70, 140, 30, 90
    query, key, value = float_problem(1, n_rows, n_keys, 16, 16, "float32")
    grad = normal(1, n_rows, 16, seed=3)
    mask = normal(n_rows, n_keys, seed=4) < 0.7
    mask[row, key_at] = True
    expected = vjp_on(tier, grad, query, key, value, mask=mask, **options)
    array = {"query": query, "key": key, "value": value, "grad_output": grad}[what]
    array[0, row if what in ("query", "grad_output") else key_at, 3] = np.nan
    got = vjp_on(tier, grad, query, key, value, mask=mask, **options)
    if what in ("query", "grad_output"):
        rows = np.arange(n_rows) == row
        keys = mask[row]
    else:
        rows = mask[:, key_at]
        keys = mask[rows].any(axis=0)
    assert np.isnan(got.query[0, rows]).any(axis=-1).all()
    assert_same_bits(got.query[0, ~rows], expected.query[0, ~rows])
    touched = np.isnan(got.key[0]).any(axis=-1) | np.isnan(got.value[0]).any(axis=-1)
    np.testing.assert_array_equal(touched, keys)
    assert_same_bits(got.key[0, ~keys], expected.key[0, ~keys])


@pytest.mark.quick
def test_rows_without_keys_have_gradient_zero(tier, dtype):
    query, key, value = float_problem(2, 20, 30, 8, 8, dtype)
    grad = normal(2, 20, 8).astype(dtype)
    for options in ({"kv_lengths": 0}, {"mask": False}, {"bias": -np.inf}):
        got = vjp_on(tier, grad, query, key, value, **options)
        assert not any(np.any(x) for x in got[:3])
    sunk = vjp_on(
        tier, grad, query, key, value, kv_lengths=0, sinks=normal(2),
        grad_lse=normal(2, 20).astype("f8" if dtype == np.float64 else "f4"),
        wanted=("query", "sinks"),
    )  # fmt: skip
    assert not np.any(sunk.query)  # the LSE is the sink:
    np.testing.assert_allclose(sunk.sinks, normal(2, 20).sum(axis=-1), rtol=1e-5)


@pytest.mark.quick
@pytest.mark.parametrize("n_rows", [2, 70])
def test_a_sink_of_minus_infinity_is_none_and_has_gradient_zero(tier, dtype, n_rows):
    # Such a row's LSE is -inf if it sees nothing: -inf - -inf must not become NaN.
    query, key, value = float_problem(2, n_rows, 30, 8, 8, dtype)
    grad = normal(2, n_rows, 8).astype(dtype)
    mask = np.ones((n_rows, 30), bool)
    mask[1::2] = False
    sinks = np.array([-np.inf, 0.5]).astype(dtype)
    given = {"mask": mask, "sinks": sinks, "wanted": (*NAMES[:3], "sinks")}
    got = vjp_on(tier, grad, query, key, value, **given)
    assert got.sinks[0] == 0 and np.isfinite(got.sinks[1]) and got.sinks[1] != 0
    plain_call = vjp_on(tier, grad, query, key, value, mask=mask)
    for one, other in zip(got[:3], plain_call[:3], strict=True):
        assert np.array_equal(one[0], other[0])  # head 0 has no sink
    grad[0] = np.nan  # 0 times NaN must not, either
    assert vjp_on(tier, grad, query, key, value, **given).sinks[0] == 0


@pytest.mark.parametrize(
    "shapes",
    [
        [(0, 3, 4, 5), (3, 6, 5), (3, 6, 2)],
        [(0, 4, 5), (0, 6, 5), (0, 6, 2)],
        [(3, 0, 5), (3, 6, 5), (3, 6, 2)],
        [(3, 4, 5), (3, 0, 5), (3, 0, 2)],
        [(3, 4, 0), (3, 6, 0), (3, 6, 2)],
        [(3, 4, 5), (3, 6, 5), (3, 6, 0)],
    ],
)
@pytest.mark.quick
def test_zero_sizes_have_gradients(tier, shapes):
    arrays = [normal(*shape, dtype="float64") for shape in shapes]
    assert_right(tier, arrays, {"sinks": normal(shapes[0][-3], dtype="float64")})
    assert_right(tier, arrays, {})


@given(
    data=problems(dtypes=("float32", "float64")),
    poison=st.sampled_from([np.nan, np.inf, -np.inf]),
)
def test_nan_that_nobody_sees_reaches_no_gradient_of_any_call(tier, data, poison):
    arrays, options = data
    grad_output, grad_lse = gradients_of_results(arrays, options)
    _, weights, lse = attnpy.attention(
        *arrays, return_weights=True, return_lse=True, **options
    )
    given = {"wanted": wanted_of(options), **options}
    expected = vjp_on(tier, grad_output, *arrays, grad_lse=grad_lse, **given)
    visible = weights != 0
    n_groups = arrays[1].shape[-3]
    rows = lse.shape[-2] * lse.shape[-1] // n_groups
    groups = visible.reshape(*lse.shape[:-2], n_groups, rows, weights.shape[-1])
    of_rows, of_keys = visible.any(axis=-1), groups.any(axis=-2)
    poisoned = [
        np.where(is_seen(seen, x.shape[:-1])[..., None], x, x.dtype.type(poison))
        for seen, x in zip((of_rows, of_keys, of_keys), arrays, strict=True)
    ]
    if "bias" in options:
        bias = options["bias"]
        stays = is_seen(visible, bias.shape) | (bias == -np.inf)
        given["bias"] = np.where(stays, bias, bias.dtype.type(poison))
    grad_output[~of_rows] = poison
    grad_lse[lse == -np.inf] = poison
    assert_same_bits(
        vjp_on(tier, grad_output, *poisoned, grad_lse=grad_lse, **given), expected
    )


def is_seen(seen, shape):
    """Which elements of an array that was broadcast are seen anywhere."""
    padded = (1,) * (seen.ndim - len(shape)) + shape
    axes = tuple(i for i, n in enumerate(padded) if n != seen.shape[i])
    return seen.any(axis=axes, keepdims=True).reshape(shape)


# ---- Identities ----------------------------------------------------------------------


@pytest.mark.quick
@given(data=problems(dtypes=("float64",)))
def test_gradients_of_a_rows_logits_sum_to_that_of_its_lse(data):
    # One number added to all of a row's logits changes its LSE by it, and no weight.
    arrays, options = data
    grad_output, grad_lse = gradients_of_results(arrays, options)
    bias = np.broadcast_to(
        options.pop("bias", 0.0), (*grad_lse.shape, arrays[1].shape[-2])
    )
    options["bias"] = np.array(bias)
    names = [name for name in ("bias", "sinks") if name in options]
    for lse_slope in (0.0 * grad_lse, grad_lse):
        got = attention_vjp(
            grad_output, *arrays, grad_lse=lse_slope, wanted=names, **options
        )
        total, finite = got.bias.sum(axis=-1), exists(arrays, options)
        right = np.where(finite, lse_slope, 0)
        if "sinks" in options:  # of which only the sum over rows is known
            axes = (*range(total.ndim - 2), -1)
            total, right = total.sum(axis=axes) + got.sinks, right.sum(axis=axes)
        terms = 1 + np.abs(grad_output).sum() + np.abs(grad_lse).sum()
        np.testing.assert_allclose(total, right, atol=1e-13 * terms)


def exists(arrays, options):
    """Which rows have a finite LSE."""
    return np.isfinite(attnpy.attention(*arrays, return_lse=True, **options)[1])


@pytest.mark.quick
@given(seed=st.integers(0, 99), group=st.sampled_from([1, 3]), masked=st.booleans())
def test_gradients_follow_permutations_of_queries_and_keys(seed, group, masked):
    rng = np.random.default_rng(seed)
    query, key, value = float_problem(2 * group, 70, 150, 8, 8, "float64", n_kv_heads=2)
    grad, grad_lse = (
        rng.standard_normal(query.shape),
        rng.standard_normal((2 * group, 70)),
    )
    rows, keys = rng.permutation(70), rng.permutation(150)
    bias, mask = rng.standard_normal((70, 150)), rng.random((70, 150)) < 0.5
    more = {"bias": bias, "softcap": 2.0, "sinks": rng.standard_normal(2 * group)}
    turned = {**more, "bias": bias[rows][:, keys]}
    if masked:
        more["mask"], turned["mask"] = mask, mask[rows][:, keys]
    one = attention_vjp(
        grad, query, key, value, grad_lse=grad_lse, wanted=NAMES, **more
    )
    other = attention_vjp(
        grad[:, rows], query[:, rows], key[:, keys], value[:, keys],
        grad_lse=grad_lse[:, rows], wanted=NAMES, **turned,
    )  # fmt: skip
    right = (
        one.query[:, rows], one.key[:, keys], one.value[:, keys],
        one.bias[rows][:, keys], one.sinks,
    )  # fmt: skip
    for name, x, y in zip(NAMES, other, right, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12, err_msg=name)


@given(data=problems(dtypes=("float32", "float64")), power=st.integers(-9, 9))
def test_gradients_are_as_large_as_those_of_the_results(tier, data, power):
    # Numbers times a power of two are rounded as they are without it.
    arrays, options = data
    factor = -(2.0**power)
    grads = gradients_of_results(arrays, options)
    given = {**options, "wanted": wanted_of(options)}
    one = vjp_on(tier, grads[0], *arrays, grad_lse=grads[1], **given)
    grads = [x * x.dtype.type(factor) for x in grads]
    other = vjp_on(tier, grads[0], *arrays, grad_lse=grads[1], **given)
    for x, y in zip(one, other, strict=True):
        if x is not None:
            np.testing.assert_array_equal(x * x.dtype.type(factor), y)


# ---- Accuracy ------------------------------------------------------------------------


def plain_vjp(grad_output, query, key, value, **options):
    """The plain NumPy formula in the arrays' own precision."""
    output, weights, _ = plain.attention(query, key, value, **options)
    scale = query.dtype.type(1 / np.sqrt(query.shape[-1]))
    delta = np.sum(grad_output * output, axis=-1, keepdims=True)
    grad_scores = weights * (grad_output @ np.swapaxes(value, -1, -2) - delta) * scale
    turned = np.swapaxes(grad_scores, -1, -2)
    return (
        grad_scores @ key,
        turned @ query,
        np.swapaxes(weights, -1, -2) @ grad_output,
    )


@functools.cache
def accuracy_case(n_rows, n_keys, dim, causal, real):
    """Arrays, the plain formula's results on them, and the exact ones."""
    arrays = float_problem(2, n_rows, n_keys, dim, dim, real)
    grad = normal(2, n_rows, dim, dtype=real, seed=7)
    options = {"causal": True} if causal else {}
    wider = np.float64 if real == "float32" else np.longdouble
    exact = backward.attention_vjp(grad, *arrays, real=wider, **options)[:3]
    return grad, arrays, options, plain_vjp(grad, *arrays, **options), exact


@pytest.mark.quick
@pytest.mark.parametrize("real", ["float32", "float64"])
def test_the_mean_error_is_at_most_twice_that_of_the_plain_formula(tier, real):
    mine, theirs = [], []
    for sizes in [(64, 64, 32), (130, 200, 16), (9, 300, 64), (200, 40, 128)]:
        for causal in (False, True):
            if causal and sizes[0] > sizes[1]:
                continue  # the plain formula gives NaN for rows that see nothing
            case = accuracy_case(*sizes, causal, real)
            grad, arrays, options, formula, exact = case
            got = vjp_on(tier, grad, *arrays, **options)[:3]
            for one, other, right in zip(got, formula, exact, strict=True):
                mine.append(np.abs(one - right).mean() / np.abs(right).mean())
                theirs.append(np.abs(other - right).mean() / np.abs(right).mean())
    assert np.mean(mine) <= 2 * np.mean(theirs)
    assert np.mean(mine) > 0  # the exact results are not the same ones


# ---- Arguments -----------------------------------------------------------------------


@pytest.mark.quick
def test_gradients_have_the_dtypes_and_shapes_of_their_inputs():
    query = normal(20, dtype="float32")
    key, value = normal(6, 20, dtype="float64"), np.arange(18).reshape(6, 3)
    sinks, bias = np.array([1]), normal(6).astype("float16")
    got = attention_vjp(
        normal(3), query, key, value, sinks=sinks, bias=bias, wanted=NAMES
    )
    kinds = [(x.shape, str(x.dtype)) for x in got]
    assert kinds == [
        ((20,), "float32"),
        ((6, 20), "float64"),
        ((6, 3), "float64"),
        ((6,), "float16"),
        ((1,), "float64"),
    ]
    assert attention_vjp(normal(3), query, key, value, wanted=()) == (None,) * 5


GOOD = dict(
    zip(("grad_output", "query", "key", "value"), normal(4, 2, 5, 3), strict=True)
)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"grad_output": normal(5, 3)}, ValueError, "grad_output: expected shape"),
        ({"grad_output": np.ones((2, 5, 3), complex)}, TypeError, "grad_output: exp"),
        ({"output": normal(2, 5, 4)}, ValueError, "output: expected shape"),
        ({"output": normal(2, 5, 3), "lse": normal(2, 4)}, ValueError, "lse: expected"),
        ({"grad_lse": normal(5)}, ValueError, "grad_lse: expected shape"),
        ({"wanted": "values"}, ValueError, "wanted: expected names out of"),
        ({"wanted": 1}, TypeError, "wanted: expected names out of .*, got int"),
        ({"wanted": [["key"]]}, TypeError, "wanted: expected names out of"),
        ({"wanted": ("bias",)}, ValueError, "'bias' without bias"),
        ({"wanted": ["query", "sinks"]}, ValueError, "'sinks' without sinks"),
        ({"mask": np.ones((5, 5), int)}, TypeError, "mask: expected booleans"),
        ({"key": normal(2, 5, 4)}, ValueError, "key: expected"),
        ({"return_lse": True}, TypeError, "return_lse"),
        ({"out": normal(2, 5, 3)}, TypeError, "out"),
    ],
)
def test_wrong_arguments_are_refused_by_name(changes, error, message):
    with pytest.raises(error, match=message):
        attention_vjp(**{**GOOD, **changes})


@pytest.mark.quick
@pytest.mark.parametrize("dim", [16, 5])
def test_gradients_lie_in_memory_as_their_inputs(dim):
    rng = np.random.default_rng(0)
    columns = rng.standard_normal((4, 2, 70, 3 * dim), np.float32)
    grad, query, key, value = columns.reshape(4, 2, 70, 3, dim).swapaxes(2, 3)
    found = attnpy.attention_vjp(grad, query, key, value)
    expected = attnpy.attention_vjp(*np.ascontiguousarray([grad, query, key, value]))
    for one, other in zip(found[:3], expected[:3], strict=True):
        np.testing.assert_array_equal(one, other)
    assert found.key.strides == key.strides  # nothing is copied


def peak_memory(function, *arguments, **options):
    """Return what the call returns, and the most memory that NumPy had meanwhile."""
    tracemalloc.start()
    result = function(*arguments, **options)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return result, most


@pytest.mark.quick
@pytest.mark.parametrize("dim", [1, 2, 7, 16, 17, 65])
def test_gradients_take_no_memory_beside_themselves(dim):
    query, grad = normal(2, 2, 30, 64, dim, seed=1)
    key, value = normal(2, 30, 64, dim, seed=2)
    for dtype in ("float32", "float64", "float16"):
        arrays = [x.astype(dtype) for x in (query, key, value)]
        output, lse = attnpy.attention(*arrays, return_lse=True)
        got, most = peak_memory(
            attention_vjp, grad.astype(dtype), *arrays, output=output, lse=lse
        )
        sizes = [x.nbytes for x in got[:3]]
        if dtype == "float16":  # all sums in float32, and one result at a time
            sizes = [2 * sum(sizes), max(sizes)]
        assert most < sum(sizes) + 20_000


def test_inputs_of_any_layout_may_be_one_array():
    x = lay_out(normal(2, 9, 8), (2, 0, 1), (1, -2, 3))
    got = attention_vjp(x, x, x, x)
    copies = [np.ascontiguousarray(x) for _ in range(4)]
    assert_same_bits(got[:3], attention_vjp(*copies)[:3])


@pytest.mark.quick
def test_the_oracle_agrees_with_difference_quotients():
    # Of the oracle itself, so that it is not only compared with what it judges.
    arrays = [normal(1, 3, 2, dtype="float64", seed=n) for n in range(3)]
    options = {"softcap": 1.0, "sinks": np.array([0.5]), "scale": 0.8}
    grad = normal(1, 3, 2, dtype="float64", seed=9)
    gradients = backward.attention_vjp(grad, *arrays, **options)[:3]
    for n, gradient in enumerate(gradients):
        for at in np.ndindex(gradient.shape):
            sums = []
            for step in (1e-6, -1e-6):
                moved = [x.copy() for x in arrays]
                moved[n][at] += step
                sums.append(np.sum(reference.attention(*moved, **options)[0] * grad))
            assert np.isclose((sums[0] - sums[1]) / 2e-6, gradient[at], atol=1e-8)


@pytest.mark.quick
def test_bfloat16_has_gradients_of_its_own_dtype():
    dtype = dtype_of("bfloat16")
    arrays = float_problem(2, 9, 20, 16, 16, dtype)
    got = attention_vjp(normal(2, 9, 16).astype(dtype), *arrays)
    assert {x.dtype for x in got[:3]} == {dtype}


@pytest.mark.quick
@pytest.mark.parametrize("options", [{}, {"causal": True}], ids=str)
def test_bfloat16_gradients_are_closer_than_those_of_pytorch(tier, options):
    # PyTorch 2.13: 2.7e-3 for queries, 3.1e-3 for keys and values.
    dtype = dtype_of("bfloat16")
    arrays = float_problem(2, 1024, 1024, 64, 64, dtype)
    grad = normal(2, 1024, 64, seed=9).astype(dtype)
    wide = [x.astype("float64") for x in (grad, *arrays)]
    got = vjp_on(tier, grad, *arrays, **options)[:3]
    exact = attention_vjp(*wide, **options)[:3]
    for one, right in zip(got, exact, strict=True):
        error = np.linalg.norm(one.astype("float64") - right) / np.linalg.norm(right)
        assert error < 2.7e-3


# ---- Dropout -------------------------------------------------------------------------


def masked_weights(dtype, n_rows, options):
    """A call's arrays, and its weights without dropout and the mask of dropout."""
    arrays = float_problem(4, n_rows, 300, 20, 9, dtype, n_kv_heads=2)
    weights = attnpy.attention(*arrays, return_weights=True, **options)[1]
    offset = {"q_offset": options["q_offset"]} if "q_offset" in options else {}
    mask = dropout_mask(weights.shape, *DROPOUT.values(), **offset)
    return arrays, weights, mask


@pytest.mark.quick
def test_the_generator_gives_the_published_numbers():
    # Known answers of Random123, the authors' library: kat_vectors, philox4x32 10.
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    for counter, seed, words in (
        ((0,) * 4, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((2**32 - 1,) * 4, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (pi, 0x299F31D0A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ):
        got = random._philox(tuple(map(np.array, counter)), seed)
        assert " ".join(f"{int(word):08x}" for word in got) == words


@pytest.mark.floats
@pytest.mark.quick
@pytest.mark.parametrize("n_rows", [1, 2, 9, 70])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"q_offset": -7}], ids=str)
def test_dropout_drops_the_weights_of_its_mask(tier, n_rows, options):
    arrays, weights, mask = masked_weights("float64", n_rows, options)
    assert abs(mask.mean() - 0.7) < 0.03
    output, dropped, lse = on_tier(tier)(
        *arrays, return_weights=True, return_lse=True, **DROPOUT, **options
    )
    np.testing.assert_allclose(dropped, weights * mask / 0.7, rtol=1e-13)
    values = np.repeat(arrays[2], 2, axis=0)
    np.testing.assert_allclose(output, dropped @ values, rtol=1e-10, atol=1e-13)
    assert_same_bits(lse, on_tier(tier)(*arrays, return_lse=True, **options)[1])


@pytest.mark.quick
@pytest.mark.parametrize("n_rows", [1, 3, 70])
def test_dropout_has_the_same_bits_everywhere(tier, dtype, n_rows):
    arrays = [
        np.stack([x, x[::-1]]) for x in float_problem(4, n_rows, 1100, 20, 9, dtype)
    ]
    calls = {"return_weights": True, "return_lse": True, "causal": True, **DROPOUT}
    reference_tier = tier if is_native(tier, dtype) else "scalar"
    expected = on_tier(reference_tier)(*arrays, num_threads=1, **calls)
    assert_same_bits(on_tier(tier)(*arrays, num_threads=3, **calls), expected)
    part = np.s_[..., n_rows - 1 :, :]  # the last query, where it is
    last = on_tier(tier)(arrays[0][part], *arrays[1:], **calls)
    assert_same_bits(last[0], np.ascontiguousarray(expected[0][part]))
    assert_same_bits(last[1], np.ascontiguousarray(expected[1][part]))


@pytest.mark.quick
def test_a_plan_drops_the_same_weights_in_each_call(dtype):
    arrays = float_problem(4, 9, 300, 20, 9, dtype)
    plan = attnpy.Plan(*arrays, return_weights=True, **DROPOUT)
    for _ in range(2):
        expected = attnpy.attention(*arrays, return_weights=True, **DROPOUT)
        assert_same_bits(plan(), expected)


@pytest.mark.quick
@given(data=problems(dtypes=("float64",)), p=st.sampled_from([0.1, 0.5, 0.9]))
def test_gradients_with_dropout_are_limits_of_difference_quotients(data, p):
    arrays, options = data
    options = {**options, "dropout": p, "dropout_seed": 99}
    grads = gradients_of_results(arrays, options)
    gradients = every_gradient(None, arrays, options)
    for name in wanted_of(options):
        gradient = getattr(gradients, name)
        direction = np.random.default_rng(3).standard_normal(gradient.shape)
        quotient = change_along(arrays, options, name, direction, 1e-5, grads)
        slope = np.sum(gradient * direction)
        terms = np.sum(np.abs(grads[0])) + np.sum(np.abs(grads[1]))
        limit = 4e-6 * (1 + terms) / (1 - p)
        np.testing.assert_allclose(quotient, slope, rtol=1e-4, atol=limit)


@given(data=problems(), p=st.sampled_from([0.1, 0.5, 0.9]))
def test_gradients_with_dropout_agree_with_the_oracle(tier, data, p):
    arrays, options = data
    grads = gradients_of_results(arrays, options)
    dropout = {"dropout": p, "dropout_seed": 7}
    actual = every_gradient(tier, arrays, {**options, **dropout})
    shape = (*grads[1].shape, arrays[1].shape[-2])
    kept = kept_by_dropout(shape, **dropout, **options)
    assert_right_gradients(actual, arrays, *grads, kept, **options)


@pytest.mark.quick
@given(data=problems())
def test_gradients_with_dropout_have_the_same_bits_everywhere(data):
    arrays, options = data
    options |= DROPOUT
    expected = every_gradient("scalar", arrays, options)
    for tier in TIERS:
        assert_same_bits(every_gradient(tier, arrays, options), expected)
        actual = every_gradient(tier, arrays, {**options, "num_threads": 3})
        assert_same_bits(actual, expected)


@pytest.mark.quick
def test_dropout_of_packed_sequences_is_that_of_a_batch(tier):
    query = normal(2, 4, 70, 20, seed=1)
    key, value = normal(2, 2, 4, 70, 20, seed=2)
    expected = on_tier(tier)(query, key, value, causal=True, **DROPOUT)
    packed = [np.concatenate(list(x), axis=1) for x in (query, key, value)]
    got = on_tier(tier)(*packed, causal=True, seq_offsets=[0, 70, 140], **DROPOUT)
    assert_same_bits(got, np.concatenate(list(expected), axis=1))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dropout": 1.0, "dropout_seed": 1}, ValueError, "dropout: expected"),
        ({"dropout": -0.1, "dropout_seed": 1}, ValueError, "dropout: expected"),
        ({"dropout": "a", "dropout_seed": 1}, TypeError, "dropout: expected"),
        ({"dropout": 0.1}, ValueError, "dropout_seed: expected an integer where"),
        ({"dropout": 0.1, "dropout_seed": -1}, ValueError, "dropout_seed: expected"),
        ({"dropout": 0.1, "dropout_seed": 2**64}, ValueError, "dropout_seed: expected"),
        ({"dropout": 0.1, "dropout_seed": 0.5}, TypeError, "dropout_seed: expected"),
    ],
)
def test_wrong_dropout_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        attnpy.attention(*normal(3, 2, 5, 3), **options)
    if len(options) == 2:
        with pytest.raises(error, match=message.split(":")[0]):
            dropout_mask((5, 5), **options)


@pytest.mark.quick
def test_dropout_zero_changes_no_bit():
    arrays = float_problem(2, 20, 30, 8, 8)
    expected = attnpy.attention(*arrays)
    assert_same_bits(attnpy.attention(*arrays, dropout=0, dropout_seed=3), expected)


@pytest.mark.quick
def test_masks_of_dropout_take_the_shapes_of_weights():
    mask = dropout_mask((2, 3, 4, 50), 0.5, 7)
    assert mask.shape == (2, 3, 4, 50) and mask.dtype == bool
    np.testing.assert_array_equal(dropout_mask((4, 50), 0.5, 7), mask[0, 0])
    later = dropout_mask((2, 3, 3, 50), 0.5, 7, q_offset=[47, 46])
    np.testing.assert_array_equal(later[0], mask[0, :, 1:])
    np.testing.assert_array_equal(later[1], mask[1, :, :3])
    assert not np.array_equal(mask, dropout_mask((2, 3, 4, 50), 0.5, 8))
    for shape, offset in (((3,), None), ((2, 3, 4, 5), [1, 2, 3])):
        with pytest.raises(ValueError, match="expected"):
            dropout_mask(shape, 0.5, 7, q_offset=offset)
