"""Calls of every public function, with arguments that are right and that are not.

A case is a right call, whose result is compared with float64; in half of the cases some
of its arguments are then replaced: what it gives is not looked at, but it must be a
result or a clear error.
"""

import functools
import itertools
from dataclasses import dataclass, field

import numpy as np
from support import reference
from support.arrays import lay_out
from support.backward import kept_by_dropout
from support.calls import TIERS
from support.comparisons import (
    assert_right,
    assert_right_gradients,
    assert_same_bits,
)
from support.formulas import ACTIVATIONS, layer_norm, linear, rms_norm, rotated
from support.statistics import in_steps, positions_of

import attnpy
from attnpy import blocks
from attnpy._linear import linear as attnpy_linear
from attnpy._packed_weight import PackedWeight
from attnpy.cache import KVCache, hadamard
from attnpy.layers import MultiHeadAttention, SelfAttention
from attnpy.pages import PagedKVCache, PagePool
from attnpy.positions import Rotary
from attnpy.positions.rotary import by_length, frequencies_for
from fuzz.findings import Finding, call, trace
from fuzz.values import (
    FLOATS,
    dtypes,
    maybe,
    mix,
    numbers,
    one_of,
    size,
    stored,
    wrong,
)

TIER = attnpy.show_config(mode="dicts")["tier"]
GRADIENTS = attnpy.AttentionGradients._fields
SINGLE = tuple(kind for kind in FLOATS if kind.itemsize <= 4)
# Of a layer's result: several products and a softmax, of numbers near 1.
LIMITS = {"float64": 1e-9, "float32": 2e-3, "float16": 0.1, "bfloat16": 0.6}


@dataclass
class Call:
    """A right call: what to call, with what, and what the result is compared with."""

    name: str
    function: object
    arguments: list
    options: dict = field(default_factory=dict)
    check: object = None
    parts: list = field(default_factory=list)  # (object, attribute): arrays of a layer
    right: bool = True
    judge: object = None  # looks at an error

    def run(self):
        return self.function(*self.arguments, **self.options)


def run(rng, verbose=False):
    """Run a case and return what came of it."""
    made = one_of(rng, MAKERS)(rng)
    if maybe(rng):
        spoil(rng, made)
    if verbose:
        print(describe(made))
    good, result = call(made.run)
    if not good:
        if made.right:
            raise Finding(f"{made.name}: a right call is an error", trace(result))
        if made.judge is not None:
            made.judge(result)
        return "errors"
    if made.right and made.check is not None:
        compare(made, result)
        return "compared"
    return "results"


def compare(made, result):
    try:
        made.check(result)
    except AssertionError as error:
        raise Finding(f"{made.name}: not what float64 gives", trace(error)) from error


def describe(made):
    """The call in words."""

    def text(value):
        if isinstance(value, np.ndarray):
            return f"{value.dtype}{value.shape} strides {value.strides}"
        return f"{value!r:.100}"

    lines = [made.name, f"right: {made.right}"]
    lines += [f"  {text(value)}" for value in made.arguments]
    lines += [f"  {name}: {text(value)}" for name, value in made.options.items()]
    lines += [f"  .{name}: {text(getattr(o, name, None))}" for o, name in made.parts]
    return "\n".join(lines)


def spoil(rng, made):
    """Replace, add or leave out arguments."""
    made.right = False
    places = [(made.arguments, i) for i in range(len(made.arguments))]
    places += [(made.options, name) for name in (*made.options, *OPTIONS[made.name])]
    places += made.parts
    for _ in range(1 + int(rng.integers(2))):
        where, at = one_of(rng, places)
        if isinstance(where, (list, dict)):
            old = where[at] if isinstance(where, list) else where.get(at)
            if made.name == "merge":  # which goes through an array, however long
                old = None
            where[at] = wrong(rng, old)
        else:
            setattr(where, at, wrong(rng, getattr(where, at)))
    if maybe(rng, 0.03):
        made.options["unknown"] = 1
    if maybe(rng, 0.03):
        made.arguments.pop()


# ---- attention, and Plan


def shortened(rng, shape):
    """A shape that broadcasts to this one."""
    shape = tuple(n if maybe(rng, 0.7) else 1 for n in shape)
    while shape and shape[0] == 1 and maybe(rng):
        shape = shape[1:]
    return shape


def problem(rng, kinds=None):
    """query, key, value and the options that have a meaning for the oracle."""
    batch = tuple(int(n) for n in rng.integers(0, 4, rng.integers(3)))
    n_kv_heads, group = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    n_heads, n_queries, n_keys = n_kv_heads * group, size(rng, 9), size(rng)
    dim, value_dim = size(rng), size(rng)
    if maybe(rng, 0.05):
        n_keys = 129 + size(rng)
    kinds = dtypes(rng, 3) if kinds is None else kinds
    leads = [shortened(rng, batch) for _ in range(3)]
    batch = np.broadcast_shapes(*leads)
    query = numbers(rng, (*leads[0], n_heads, n_queries, dim), kinds[0])
    key = numbers(rng, (*leads[1], n_kv_heads, n_keys, dim), kinds[1])
    value = numbers(rng, (*leads[2], n_kv_heads, n_keys, value_dim), kinds[2])
    logits = (*batch, n_heads, n_queries, n_keys)
    options = {}
    if maybe(rng, 0.3):
        drawn = rng.random(shortened(rng, logits))
        options["mask"] = np.asarray(drawn < one_of(rng, (0.5, 0.1)))
    if maybe(rng, 0.3):
        options["bias"] = numbers(rng, shortened(rng, logits), one_of(rng, FLOATS))
        options["bias"][rng.random(options["bias"].shape) < 0.2] = -np.inf
    if maybe(rng, 0.3):
        options["causal"] = one_of(rng, (True, False, "bottom_right", "top_left"))
    if maybe(rng, 0.2):
        options["window"] = tuple(one_of(rng, (None, 0, 1, 3, 40)) for _ in range(2))
    if maybe(rng, 0.2):
        options["q_offset"] = rng.integers(-20, 40, shortened(rng, batch))
    if maybe(rng, 0.2):
        shape = shortened(rng, batch)
        options["kv_lengths"] = rng.integers(0, n_keys, shape, endpoint=True)
    if maybe(rng, 0.2):
        options["scale"] = one_of(rng, (1.0, 0.0, -0.5, 2))
    if maybe(rng, 0.2):
        options["softcap"] = one_of(rng, (1.0, 0.3, 20))
    if maybe(rng, 0.2):
        options["sinks"] = rng.standard_normal(n_heads)
    return [query, key, value], options, not mix(kinds)


def scaled(rng, arrays, options):
    """Make keys, values or both integers, with scales that broadcast to their rows."""
    for i, name in ((1, "key_scale"), (2, "value_scale")):
        shape = arrays[i].shape
        if maybe(rng, 0.7):
            arrays[i] = rng.integers(-127, 128, shape).astype(np.int8)
            scales = numbers(rng, shortened(rng, shape[:-1]), one_of(rng, FLOATS))
            options[name] = np.asarray(scales / scales.dtype.type(64))


def plain(value):
    """What a stored array holds, in rows one after another."""
    if isinstance(value, (list, np.ndarray)) or hasattr(value, "__array__"):
        array = np.array(value)
        return array.astype(array.dtype.newbyteorder("="))
    return value


def check_attention(function, arrays, options, extra, result):
    """A result, and all others with it, is within the bound of what is exact."""
    meaning = {name: plain(value) for name, value in options.items()}

    def given(tier, *_, **more):
        more = {n: more[n] for n in ("return_weights", "return_lse")}
        return function(*arrays, **options, **more, num_threads=extra["num_threads"])

    plains = [plain(x) for x in arrays]
    everything = assert_right(functools.partial(given, TIER), *plains, **meaning)
    names = ("return_weights", "return_lse")
    wanted = [True, *(extra.get(name, False) for name in names)]
    expected = tuple(x for x, want in zip(everything, wanted, strict=True) if want)
    actual = result if isinstance(result, tuple) else (result,)
    actual = tuple(np.asarray(x).astype(x.dtype.newbyteorder("=")) for x in actual)
    assert_same_bits(actual, expected)


def make_attention(rng):
    arrays, options, right = problem(rng)
    if maybe(rng, 0.25):
        scaled(rng, arrays, options)
    arrays = [stored(rng, x) for x in arrays]
    for name in {"mask", "bias", "q_offset", "kv_lengths", "sinks"} & options.keys():
        if maybe(rng):
            options[name] = stored(rng, options[name])
    extra = {"num_threads": one_of(rng, (None, 1, 2, 5))}
    for name in ("return_weights", "return_lse"):
        if maybe(rng, 0.3):
            extra[name] = True
    check = functools.partial(check_attention, attnpy.attention, arrays, options, extra)
    made = Call("attention", attnpy.attention, arrays, {**options, **extra}, check)
    made.right = right
    if right and maybe(rng, 0.2):
        try:
            output = attnpy.attention(*arrays, **options)
        except ValueError as error:
            raise Finding(
                "attention: a right call is an error", trace(error)
            ) from error
        out = numbers(rng, output.shape, output.dtype)
        inputs = [x for x in arrays if isinstance(x, np.ndarray)]
        same = [x for x in inputs if x.shape == out.shape and x.dtype == out.dtype]
        if same and maybe(rng):  # over an input, which the oracle must see as it was
            fresh = [np.array(x) if x is same[0] else x for x in arrays]
            out = same[0] if same[0].flags.writeable else out
            made.check = functools.partial(
                check_attention, attnpy.attention, fresh, options, extra
            )
        steps = [one_of(rng, (1, 2, -1)) for _ in range(out.ndim)]
        if out.size and maybe(rng, 0.3) and not any(out is x for x in inputs):
            out = lay_out(out, None, steps)
        if all(step for step, n in zip(out.strides, out.shape, strict=True) if n > 1):
            made.options["out"] = out
    return made


def stored_equal(rng, array):
    """As `stored`, but never all those of one row."""
    other = stored(rng, array)
    return other if np.array_equal(plain(other), array, equal_nan=True) else array


def make_gradients(rng):
    """attention_vjp, with all or some of what the forward call gave, or without."""
    arrays, options, right = problem(rng)
    arrays = [stored(rng, x) for x in arrays]
    for name in {"mask", "bias", "q_offset", "kv_lengths", "sinks"} & options.keys():
        if maybe(rng):
            options[name] = stored(rng, options[name])
    plains = [plain(x) for x in arrays]
    meaning = {name: plain(value) for name, value in options.items()}
    extra = {"num_threads": one_of(rng, (None, 1, 2, 5))}
    if not right:
        grad_output = np.zeros(1)
        return Call("attention_vjp", attnpy.attention_vjp, [grad_output, *arrays],
                    {**options, **extra}, right=False)  # fmt: skip
    if maybe(rng, 0.2):
        extra["dropout"] = one_of(rng, (0.1, 0.5, 0.9))
        extra["dropout_seed"] = int(rng.integers(2**63))
    output, weights, lse = attnpy.attention(
        *plains, **meaning, **extra, return_weights=True, return_lse=True
    )
    kept = 1.0
    if "dropout" in extra:
        kept = kept_by_dropout(weights.shape, **meaning, **extra)
    given = {"output": output, "lse": lse}
    extra |= {n: stored_equal(rng, x) for n, x in given.items() if maybe(rng)}
    if maybe(rng):
        extra["grad_lse"] = stored(rng, numbers(rng, lse.shape, lse.dtype))
    names = (*GRADIENTS[:3], *(name for name in GRADIENTS[3:] if name in options))
    if maybe(rng):
        extra["wanted"] = [name for name in names if maybe(rng, 0.7)]
    grad_output = stored(rng, numbers(rng, output.shape, output.dtype))

    def check(result):
        grads = plain(grad_output).astype(output.dtype), plain(extra.get("grad_lse", 0))
        there = [n for n, x in zip(GRADIENTS, result, strict=True) if x is not None]
        assert there == [n for n in GRADIENTS if n in extra.get("wanted", names[:3])]
        assert_right_gradients(result, plains, *grads, kept, **meaning)

    arguments, options = [grad_output, *arrays], {**options, **extra}
    made = Call("attention_vjp", attnpy.attention_vjp, arguments, options, check)
    own = {name: options.get(name) for name in OWN}
    made.judge = functools.partial(judge_gradients, made, grad_output, own)
    return made


OWN = ("output", "lse", "grad_lse", "wanted")


def judge_gradients(made, grad_output, own, error):
    """What is wrong in the forward call has the forward call's error, too."""
    if len(made.arguments) < 4 or made.arguments[0] is not grad_output:
        return
    if any(made.options.get(name) is not value for name, value in own.items()):
        return
    options = {n: x for n, x in made.options.items() if n not in OWN}
    good, other = call(attnpy.attention, *made.arguments[1:], **options)
    too_big = isinstance(other, MemoryError) or "too big" in str(other)
    if good or too_big or str(error).startswith("wanted:"):
        return
    text = str(error).replace("attention_vjp()", "attention()")
    if (type(error), text) != (type(other), str(other)):
        raise Finding("attention_vjp: another error than attention()'s",
                      f"{error!r}\n{other!r}")  # fmt: skip


def make_packed(rng):
    """Sequences end to end, against a call for each."""
    n = int(rng.integers(0, 5))
    n_queries = [size(rng) if maybe(rng, 0.9) else 0 for _ in range(n)]
    n_keys = [129 + size(rng) if maybe(rng, 0.1) else size(rng) for _ in range(n)]
    if together := maybe(rng):
        n_keys = n_queries
    n_kv_heads, kind = int(rng.integers(1, 3)), one_of(rng, FLOATS)
    n_heads, dim = n_kv_heads * int(rng.integers(1, 4)), size(rng)
    arrays = [
        numbers(rng, (n_heads, sum(n_queries), dim), kind),
        numbers(rng, (n_kv_heads, sum(n_keys), dim), kind),
        numbers(rng, (n_kv_heads, sum(n_keys), size(rng)), kind),
    ]
    arrays = [stored(rng, x) for x in arrays]
    ends = [np.cumsum([0, *x]).astype(np.int64) for x in (n_queries, n_keys)]
    options = {"causal": one_of(rng, (True, False, "top_left"))}
    if maybe(rng, 0.3):
        options["sinks"] = rng.standard_normal(n_heads)

    def check(result):
        for (a, b), (c, d) in zip(*map(itertools.pairwise, ends), strict=True):
            query, key, value = (plain(x) for x in arrays)
            alone = attnpy.attention(
                query[:, a:b], key[:, c:d], value[:, c:d], **options
            )
            assert_same_bits(np.array(result[:, a:b]), alone)

    given = [x if maybe(rng) else x.tolist() for x in ends]
    offsets = given[0] if together else tuple(given)
    extra = {"seq_offsets": offsets, "num_threads": one_of(rng, (None, 1, 2, 5))}
    return Call("packed", attnpy.attention, arrays, {**options, **extra}, check)


def make_paged(rng):
    """Keys and values in pages, against the same in one piece."""
    batch, n_kv_heads = int(rng.integers(0, 4)), int(rng.integers(1, 3))
    n, kind, dim = int(rng.integers(0, 4)), one_of(rng, FLOATS), size(rng)
    n_pages = n + int(rng.integers(0, 3))
    shape = batch, n_kv_heads * int(rng.integers(1, 4)), size(rng, 9), dim
    query = stored(rng, numbers(rng, shape, kind))
    pages = [
        stored(rng, numbers(rng, (n_pages, n_kv_heads, 128, d), kind))
        for d in (dim, size(rng))
    ]
    shape = one_of(rng, ((n,), (batch, n), (1, n)))
    table = rng.integers(0, max(n_pages, 1), shape)
    options = {"causal": one_of(rng, (True, False, "top_left"))}
    if maybe(rng, 0.7):
        options["kv_lengths"] = rng.integers(0, 128 * n, batch, endpoint=True)
    if maybe(rng, 0.3):
        options["window"] = tuple(one_of(rng, (None, 0, 3, 200)) for _ in range(2))
    meaning = {name: plain(value) for name, value in options.items()}
    extra = {"num_threads": one_of(rng, (None, 1, 2, 5))}
    given = one_of(rng, (table, np.asfortranarray(table), table.astype(np.int32)))

    def check(result):
        whole = []
        for x in map(plain, pages):
            rows = x[table].swapaxes(-4, -3)  # (..., Hk, n, 128, D)
            whole.append(rows.reshape(*rows.shape[:-3], 128 * n, x.shape[-1]))
        assert_same_bits(result, attnpy.attention(plain(query), *whole, **meaning))

    options |= extra | {"page_table": given}
    return Call("paged", attnpy.attention, [query, *pages], options, check)


def run_plan(query, key, value, **options):
    """A plan's results, twice, and its numbers after."""
    plan = attnpy.Plan(query, key, value, **options)
    first = plan()
    copies = (
        tuple(np.array(x) for x in first) if isinstance(first, tuple) else first.copy()
    )
    if query.flags.writeable:
        query[...] = query
    return copies if plan() is not None else None


def make_plan(rng):
    arrays, options, _ = problem(rng, [one_of(rng, FLOATS)] * 3)
    if maybe(rng, 0.25):
        scaled(rng, arrays, options)
    for name in ("bias",):
        if name in options:
            options[name] = options[name].astype(arrays[0].dtype)
    extra = {"num_threads": one_of(rng, (None, 1, 2))}
    for name in ("return_weights", "return_lse"):
        if maybe(rng, 0.3):
            extra[name] = True
    check = functools.partial(check_attention, attnpy.attention, arrays, options, extra)
    return Call("Plan", run_plan, arrays, {**options, **extra}, check)


def make_statistics(rng):
    """Sums over the weights, against the same sums of all of them."""
    arrays, options, right = problem(rng, [one_of(rng, FLOATS[:2])] * 3)
    if maybe(rng, 0.25):
        scaled(rng, arrays, options)
    arrays = [stored(rng, x) for x in arrays]
    extra = {"num_threads": one_of(rng, (None, 1, 2, 5)), "top_k": size(rng) + 1}

    def check(result):
        plains = [plain(x) for x in arrays]
        meaning = {name: plain(value) for name, value in options.items()}
        output, weights = attnpy.attention(*plains, **meaning, return_weights=True)
        expected = in_steps(weights, positions_of(weights, **meaning), extra["top_k"])
        assert_same_bits(tuple(result), (*expected, output))

    made = Call("statistics", attnpy.statistics, arrays, {**options, **extra}, check)
    made.right = right
    return made


COUNTS = ("scores", "scores_visible", "blocks", "blocks_skipped", "blocks_masked")


def explained(*arrays, **options):
    """What a call would do, in numbers."""
    found = attnpy.explain(*arrays, **options)
    return np.array([getattr(found, name) for name in COUNTS])


def make_explain(rng):
    """The scores that masks leave, against those that have a weight."""
    arrays, options, right = problem(rng)
    arrays = [stored(rng, x) for x in arrays]
    hides = ("mask", "causal", "window", "q_offset", "kv_lengths")
    meaning = {name: plain(options[name]) for name in hides if name in options}

    def check(result):
        query, key, value = map(plain, arrays)
        visible = reference.attention(0 * query, key, value, **meaning)[1] > 0
        n_scores, n_visible, n_blocks, n_skipped, n_masked = result
        assert n_visible == visible.sum()
        assert n_scores >= n_visible
        assert n_skipped + n_masked <= n_blocks

    extra = {"num_threads": one_of(rng, (None, 1, 2, 5))}
    made = Call("explain", explained, arrays, {**options, **extra}, check)
    made.right = right
    return made


def make_merge(rng):
    arrays, options, _ = problem(rng, [one_of(rng, FLOATS[:3])] * 3)
    options = {n: x for n, x in options.items() if n in ("scale", "softcap")}
    query, key, value = arrays
    n_keys = key.shape[-2]
    cuts = [0, *sorted(rng.integers(0, n_keys, rng.integers(3), endpoint=True)), n_keys]
    parts = [
        attnpy.attention(
            query, key[..., a:b, :], value[..., a:b, :], return_lse=True, **options
        )
        for a, b in itertools.pairwise(cuts)
    ]
    outputs, lses = (list(x) for x in zip(*parts, strict=True))

    def check(result):
        exact, _, lse = reference.attention(*arrays, **options)
        near(result[0], exact.reshape(result[0].shape))
        near(result[1], lse.reshape(result[1].shape))

    outputs, lses = ([stored(rng, x) for x in xs] for xs in (outputs, lses))
    made = Call("merge", attnpy.merge, [outputs, lses], check=check)
    if any(isinstance(x, np.ndarray) and 0 in x.strides for x in (*outputs, *lses)):
        made.check = None  # repeated rows are not the results
    if maybe(rng, 0.2):
        made.right = False
        wrong_list = one_of(rng, (outputs, lses))
        at = int(rng.integers(len(wrong_list)))
        wrong_list[at] = wrong(rng, wrong_list[at])
    return made


# ---- what rows are multiplied by, norms, activations


def near(actual, expected, scale=1.0, kinds=()):
    """Within a limit for the coarsest dtype, relative to the largest number."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    limit = max(LIMITS.get(kind.name, 0) for kind in (actual.dtype, *kinds))
    finite = np.abs(expected[np.isfinite(expected)])
    bound = limit * (scale + finite.max(initial=0))
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(actual.astype(float) - expected) <= bound)
    wrong &= actual.astype(float) != expected
    wrong &= ~(np.isnan(expected) & np.isnan(actual.astype(float)))
    assert not wrong.any(), (actual[wrong][:5], expected[wrong][:5], bound)


def rows_of(rng, n_columns, dtype):
    """Rows with any axes before."""
    lead = tuple(size(rng, 9) for _ in range(rng.integers(1, 4)))
    return numbers(rng, (*lead, n_columns), dtype)


def packs(kinds, dtype):
    """May a matrix of this dtype be packed for rows of those?"""
    double = np.dtype(float)
    return dtype == double or all(k in FLOATS and k != double for k in kinds)


def quantised(rng, weight):
    """Integers in place of a matrix, which stand for numbers near to it."""
    bits = one_of(rng, (8, 6, 5, 4))
    if bits == 4 and maybe(rng, 0.3):
        codes = rng.integers(0, 16, weight.shape)
        scale = rng.integers(119, 122, (-(-len(weight) // 32), weight.shape[1]))
        return attnpy.QuantizedWeight.from_blocks(
            codes, scale.astype(np.uint8), bits=4, values=rng.integers(-128, 128, 16)
        )
    if bits in (6, 5):
        zero, group = 1 << bits - 1, 32 * int(rng.integers(1, 5))
        codes = rng.integers(0, 2 * zero, weight.shape)
        scale = np.ones((-(-len(weight) // group), weight.shape[1]), np.float16) / zero
        return attnpy.QuantizedWeight.from_blocks(
            codes, scale, bits=bits, group=group, zero=zero
        )
    groups = (None, 32, 64, 128, *((256, 512, "column") if bits == 8 else ()))
    return attnpy.quantize(weight, bits=bits, group=one_of(rng, groups))


def quantised_numbers(W, **options):
    """The numbers that the integers of a matrix stand for."""
    return attnpy.quantize(W, **options).dequantize()


def make_quantize(rng):
    """A matrix as integers, whose error is less than a step of its group's."""
    n, m, kind = size(rng), size(rng), one_of(rng, SINGLE)
    if maybe(rng, 0.2):
        n += 128
    W, bits = numbers(rng, (n, m), kind), one_of(rng, (8, 4))
    whole = (256, 512, "column") if bits == 8 else ()
    options = {"bits": bits, "group": one_of(rng, (None, 32, 64, 128, *whole))}
    if maybe(rng):
        options["activations"] = one_of(rng, ("float", "int8"))
    group = options["group"] or {8: 128, 4: 32}[bits]
    group = max(n, 1) if group == "column" else group
    W = stored(rng, W)
    exact = plain(W).astype(np.float32)
    kind = plain(W).dtype  # that of a list of numbers is another

    def check(result):
        assert (result.dtype, result.shape) == (kind, exact.shape)
        for start in range(0, n, group):
            rows = exact[start : start + group]
            error = np.abs(result[start : start + group].astype(np.float32) - rows)
            step = np.abs(rows).max(0, initial=0) / {8: 60, 4: 4}[bits]
            assert (error <= step).all(), (error.max(), step)

    return Call("quantize", quantised_numbers, [W], options, check)


def numbers_of_blocks(codes, scale, minimum=None, **options):
    """The numbers that codes and scales stand for."""
    weight = attnpy.QuantizedWeight.from_blocks(codes, scale, minimum, **options)
    return weight.dequantize()


def make_blocks(rng):
    """Codes with scales, and their coarse ones, against the formula."""
    n, m, bits = size(rng), size(rng), one_of(rng, (8, 6, 5, 4))
    groups = (32, 128) if bits == 5 else (16, 32, 48, 128)
    group, levels = one_of(rng, groups), one_of(rng, (1, 2, 8))
    n_groups = -(-n // group)
    n_blocks = -(-n_groups // levels)
    low, high = (-128, 128) if bits == 8 else (0, 1 << bits)
    kind = one_of(rng, (np.int8, np.int64) if bits == 8 else (np.uint8, np.int64))
    codes = rng.integers(low, high, (n, m)).astype(kind)
    options = {"bits": bits, "group": group}
    if bits == 4 and maybe(rng, 0.4):
        options["values"] = rng.integers(-128, 128, 16)
    elif bits < 8 and maybe(rng):
        options["zero"] = int(rng.integers(high))
    names = ("scale", "minimum") if maybe(rng) else ("scale",)
    fine, exact = [], []
    for name in names:
        if coarse := maybe(rng, 0.4):
            of_groups = rng.integers(-32, 64, (n_groups, m)).astype(np.int8)
            of_blocks = numbers(rng, (n_blocks, m), np.dtype(np.float16))
            options |= {f"coarse_{name}": of_blocks, "groups_per_block": levels}
        elif maybe(rng, 0.3):
            of_groups = rng.integers(0, 255, (n_groups, m)).astype(np.uint8)
        else:
            of_groups = numbers(rng, (n_groups, m), one_of(rng, SINGLE[:2]))
        each = of_groups.astype(np.float32)
        if of_groups.dtype == np.uint8:
            each = np.ldexp(np.float32(1), of_groups.astype(int) - 128)
        if coarse:
            each *= of_blocks.astype(np.float32).repeat(levels, 0)[:n_groups]
        fine.append(of_groups)
        exact.append(each.repeat(group, 0)[:n])
    integers = codes.astype(np.float32) - options.get("zero", 0)
    if "values" in options:
        integers = options["values"][codes].astype(np.float32)
    with np.errstate(over="ignore"):
        expected = exact[0] * integers
    expected = expected + (exact[1] if len(exact) > 1 else 0)

    def check(result):
        assert_same_bits(result + np.float32(0), expected + np.float32(0))

    return Call("from_blocks", numbers_of_blocks, [codes, *fine], options, check)


def make_hadamard(rng):
    """Vectors, against the product with the matrix."""
    n, kind = one_of(rng, (0, 1, 2, 3, 4, 6, 8, 12, 16, 64)), dtypes(rng, 1)[0]
    x = stored(rng, rows_of(rng, n, kind))

    def check(result):
        block = n & -n
        matrix = np.ones((1, 1))
        while len(matrix) < block:
            matrix = np.block([[matrix, matrix], [matrix, -matrix]])
        matrix = np.kron(np.eye(n // max(block, 1)), matrix / np.sqrt(max(block, 1)))
        near(result, plain(x).astype(float) @ matrix)

    return Call("hadamard", hadamard, [x], check=check)


def make_linear(rng):
    n, m, kinds = size(rng), size(rng), dtypes(rng, 3)
    x, weight = rows_of(rng, n, kinds[0]), numbers(rng, (n, m), kinds[1])
    packed = kinds[1] in FLOATS and packs(kinds[:1], kinds[1]) and maybe(rng, 0.3)
    single = all(kind == np.float32 for kind in kinds[:2])
    if single and maybe(rng, 0.3):
        weight = quantised(rng, weight)
    else:
        weight = PackedWeight(weight) if packed else stored(rng, weight)
    arguments = [stored(rng, x), weight]
    if maybe(rng):
        arguments.append(stored(rng, numbers(rng, (m,), kinds[2])))
    options = {"num_threads": one_of(rng, (None, 1, 3))}
    name = one_of(rng, (None, *ACTIVATIONS))
    if name is not None or maybe(rng):
        options["activation"] = name
    plains = [plain(x) for x in arguments]

    def check(result):
        exact = linear(*plains)
        near(result, exact if name is None else ACTIVATIONS[name](exact), 1 + n)

    made = Call("linear", attnpy_linear, arguments, options, check)
    made.right = not mix(kinds[:2])
    if mix(kinds):
        made.right = False
    return made


def make_norm(rng):
    n, dtype = max(1, size(rng)), one_of(rng, FLOATS)
    kind = one_of(rng, (blocks.LayerNorm, blocks.RMSNorm))
    norm = kind(n, eps=one_of(rng, (1e-5, 1e-12, 0.5)), dtype=dtype)
    norm.weight = stored_array(rng, numbers(rng, (n,), dtype))
    if kind is blocks.LayerNorm:
        norm.bias = stored_array(rng, numbers(rng, (n,), dtype))
    kinds = [dtype] * 2 if maybe(rng, 0.8) else dtypes(rng, 2)
    x = rows_of(rng, n, kinds[0])
    arguments = [stored(rng, x)]
    if maybe(rng):
        arguments.append(stored(rng, numbers(rng, x.shape, kinds[1])))
    plains = [plain(x) for x in arguments]

    def check(result):
        total = sum(x.astype(float) for x in plains)
        weight = np.asarray(norm.weight, float)
        if kind is blocks.RMSNorm:
            exact = rms_norm(total, weight, norm.eps)
        else:
            exact = layer_norm(total, weight, np.asarray(norm.bias, float), norm.eps)
        # Where a row's numbers are all but equal, nothing is left but rounding.
        spread = (
            total.std(axis=-1) if kind is blocks.LayerNorm else 1 + 0 * total[..., 0]
        )
        clear = spread > 0.1
        near(result[clear], exact[clear])

    made = Call("norm", norm, arguments, check=check)
    made.parts = [(norm, "weight"), (norm, "eps")]
    made.parts += [(norm, "bias")] * (kind is blocks.LayerNorm)
    made.right = not mix([*kinds, dtype])
    return made


def stored_array(rng, array):
    """As `stored`, but an array, and with its own numbers."""
    other = stored(rng, array)
    return other if isinstance(other, np.ndarray) else array


def make_activation(rng):
    name = one_of(rng, tuple(ACTIVATIONS))
    x = stored(rng, rows_of(rng, size(rng), dtypes(rng, 1)[0]))

    def check(result):
        near(result, ACTIVATIONS[name](plain(x).astype(float)))

    return Call("activation", getattr(blocks, name), [x], check=check)


DYNAMIC = {"type": "dynamic", "factor": 2.5, "original_max_position_embeddings": 9}


def make_rotary_object(rng, head_dim):
    scalings = [None, None, {"rope_type": "linear", "factor": 4.0}]
    if head_dim > 7:
        scalings.append(DYNAMIC)
    return Rotary(
        head_dim,
        rotary_dim=one_of(rng, (None, head_dim // 2 // 2 * 2)),
        base=one_of(rng, (10000.0, 500.0)),
        interleaved=bool(maybe(rng)),
        scaling=one_of(rng, scalings),
    )


def turns_at(rotary, positions):
    """The frequencies for sequences with these positions, (..., 1, n) or (n,)."""
    if not by_length(rotary) or positions.size == 0:
        return rotary.frequencies
    n, lengths = rotary.frequencies.size, 1 + positions
    if positions.ndim:
        lengths = lengths.max(axis=-1, keepdims=True)
    growth = 2.5 * np.maximum(lengths, 9) / 9 - 1.5
    base = rotary.frequencies[1] ** -n * growth ** (n / (n - 1))
    return base[..., np.newaxis] ** (-np.arange(n) / n)


def make_rotary(rng):
    dim = 2 * int(rng.integers(1, 9))
    rotary = make_rotary_object(rng, dim)
    x = rows_of(rng, dim, dtypes(rng, 1)[0])
    n_rows = x.shape[-2] if x.ndim > 1 else 1
    first = int(rng.integers(-50, 50))
    positions = one_of(rng, (None, first, first + rng.integers(0, 9, x.shape[:-1])))
    x = stored(rng, x)
    before = plain(x)

    def check(result):
        at = 0 if positions is None else np.asarray(positions)
        if np.ndim(at) == 0 and before.ndim > 1:
            at = at + np.arange(n_rows)
        angles = np.asarray(at)[..., np.newaxis] * turns_at(rotary, np.asarray(at))
        factor = rotary.attention_factor
        exact = rotated(
            before.astype(float),
            factor * np.cos(angles),
            factor * np.sin(angles),
            rotary.interleaved,
        )
        near(result, exact)

    options = {} if positions is None else {"positions": positions}
    if maybe(rng, 0.2) and isinstance(x, np.ndarray) and before.dtype in FLOATS:
        options["out"] = numbers(rng, before.shape, before.dtype)
    return Call("Rotary", rotary, [x], options, check)


def make_append(rng):
    batch, heads, n = int(rng.integers(0, 4)), int(rng.integers(1, 3)), size(rng, 5)
    dim, value_dim, dtype = size(rng, 9), size(rng, 9), one_of(rng, FLOATS)
    growable = bool(maybe(rng))
    room = n if growable else 2 * n
    if maybe(rng, 0.3):
        dtype = np.dtype(np.int8)
    if maybe(rng, 0.3):
        cache = PagedKVCache(PagePool(3, heads, dim, value_dim, dtype=dtype), batch)
    else:
        cache = KVCache(
            batch, heads, room, dim, value_dim, dtype=dtype, growable=growable
        )
    kinds = dtypes(rng, 2)
    key = numbers(rng, (batch, heads, n, dim), kinds[0])
    value = numbers(rng, (batch, heads, n, value_dim), kinds[1])
    cache.append(key, value)
    key, value = stored(rng, key), stored(rng, value)
    options = {}
    counts = np.full(batch, n)
    if maybe(rng):
        counts = options["lengths"] = rng.integers(0, n, batch, endpoint=True)
    keys, values = plain(key), plain(value)

    def check(result):
        assert result is None
        assert (cache.lengths == n + counts).all()
        for b, count in enumerate(counts):
            for kept, scales, given in (
                (cache.key, cache.key_scale, keys),
                (cache.value, cache.value_scale, values),
            ):
                some = slice(n, n + count)
                scales = None if scales is None else scales[b, :, some]
                compare_tokens(kept[b, :, some], scales, given[b, :, :count])

    def compare_tokens(kept, scales, given):
        if scales is None:
            with np.errstate(all="ignore"):
                assert_same_bits(np.array(kept), given.astype(dtype))
            return
        error = np.abs(kept * scales[..., None] - hadamard(given.astype(float)))
        assert (error <= 0.51 * scales[..., None]).all(), error.max(initial=0)

    return Call("append", cache.append, [key, value], options, check)


# ---- layers


def layer_check(layer, sources, options, rotary, past, kinds, chosen, result):
    """The layer's formula in float64, with the tokens that came before.

    The weights are those of the chosen heads.
    """
    x, context, value = sources
    x, past = (None if a is None else plain(a).astype(float) for a in (x, past))
    tokens = x if past is None else np.concatenate([past, x], axis=-2)
    context = tokens if context is None else plain(context).astype(float)
    values = context if value is None else plain(value).astype(float)
    heads = getattr(layer, "num_heads", 1)
    kv_heads = getattr(layer, "num_kv_heads", 1)

    n_past = 0 if past is None else past.shape[-2]

    def projected(rows, letter, n_heads):
        weight, bias = getattr(layer, f"W_{letter}"), getattr(layer, f"b_{letter}")
        rows = linear(rows, weight, bias)
        rows = rows.reshape(*rows.shape[:-1], n_heads, rows.shape[-1] // n_heads)
        rows = rows.swapaxes(-2, -3)
        norm = getattr(layer, f"{letter}_norm", None)
        if norm is not None and isinstance(norm, blocks.RMSNorm):
            rows = rms_norm(rows, np.asarray(norm.weight, float), norm.eps)
        elif norm is not None:
            weights = (np.asarray(a, float) for a in (norm.weight, norm.bias))
            rows = layer_norm(rows, *weights, norm.eps)
        if rotary is not None and letter != "v":
            positions = np.arange(rows.shape[-2])[:, np.newaxis]
            # Keys keep the frequencies of the call that they came with.
            ends = np.where(positions < n_past, n_past, rows.shape[-2])
            frequencies = frequencies_for(rotary, ends[:, 0])
            if frequencies.ndim > 1:  # they differ from row to row
                frequencies = frequencies[:, 0]
            angles = positions * frequencies
            factor = rotary.attention_factor
            tables = factor * np.cos(angles), factor * np.sin(angles)
            rows = rotated(rows, *tables, rotary.interleaved)
        return rows

    query = projected(tokens, "q", heads)[..., n_past:, :]
    key, value = projected(context, "k", kv_heads), projected(values, "v", kv_heads)
    options = {name: plain(value) for name, value in options.items()}
    if context is tokens:
        options["q_offset"] = n_past
    output, weights, _ = reference.attention(query, key, value, **options)
    output = output.swapaxes(-2, -3).reshape(*x.shape[:-1], heads * output.shape[-1])
    if hasattr(layer, "W_o"):
        output = linear(output, layer.W_o, layer.b_o)
    actual = result if isinstance(result, tuple) else (result,)
    if isinstance(layer, SelfAttention):
        weights = weights[..., 0, :, :]
    elif chosen is not None:
        weights = weights[..., chosen, :, :]
    largest = max(np.abs(query).max(initial=1), np.abs(key).max(initial=1))
    near(actual[0], output, 1 + largest**2, kinds)
    if len(actual) > 1:
        near(actual[1], weights, 1 + largest**2, kinds)


def fill(rng, layer, dtype):
    """Give a layer random parameters, of other layouts too."""
    for name, array in vars(layer).items():
        if isinstance(array, np.ndarray):
            new = numbers(rng, array.shape, np.dtype(float)) / max(1, len(array)) ** 0.5
            new = stored_array(rng, new.astype(dtype))
            setattr(layer, name, new)


def layer_options(rng, shape):
    options = {"num_threads": one_of(rng, (None, 1, 3))}
    if maybe(rng, 0.5):
        options["causal"] = one_of(rng, (True, "top_left", "bottom_right"))
    if maybe(rng, 0.2):
        options["window"] = (one_of(rng, (None, 0, 2)), one_of(rng, (None, 0, 2)))
    if maybe(rng, 0.2):
        options["mask"] = rng.random(shape[-2:]) < 0.7
    if maybe(rng, 0.2):
        options["bias"] = rng.standard_normal(shape[-2:])
    if maybe(rng, 0.2):
        options["softcap"] = 3.0
    if maybe(rng, 0.2):
        options["scale"] = 0.5
    return options


def make_head(rng):
    dim, dtype = max(1, size(rng, 9)), one_of(rng, FLOATS)
    layer = SelfAttention(
        dim, max(1, size(rng, 9)), value_head_dim=max(1, size(rng, 9)), dtype=dtype,
        bias=bool(maybe(rng)), rng=rng,
    )  # fmt: skip
    fill(rng, layer, dtype)
    return make_layer_call(rng, "SelfAttention", layer, dim, dtype)


def make_layer(rng):
    dim, heads, group = max(1, size(rng, 9)), int(rng.integers(1, 3)), 1
    group, head_dim = int(rng.integers(1, 3)), 2 * int(rng.integers(1, 5))
    sizes = one_of(
        rng, ({}, {}, {"context_dim": 3}, {"context_dim": 3, "value_dim": 4})
    )
    dtype = one_of(rng, FLOATS)
    layer = MultiHeadAttention(
        dim, heads * group, head_dim, value_head_dim=max(1, size(rng, 9)),
        num_kv_heads=heads, qkv_bias=bool(maybe(rng)), out_bias=bool(maybe(rng)),
        dtype=dtype, rng=rng, **sizes,
    )  # fmt: skip
    fill(rng, layer, dtype)
    for name in ("q_norm", "k_norm"):
        if maybe(rng, 0.3):
            norm = one_of(rng, (blocks.LayerNorm, blocks.RMSNorm))(
                head_dim, dtype=dtype
            )
            fill(rng, norm, dtype)
            setattr(layer, name, norm)
    return make_layer_call(
        rng, "MultiHeadAttention", layer, dim, dtype, cross=bool(sizes)
    )


def make_layer_call(rng, name, layer, dim, dtype, cross=False):
    batch = tuple(int(n) for n in rng.integers(0, 3, rng.integers(2)))
    n_tokens, n_keys = size(rng, 9), size(rng, 9)
    kinds = [dtype] * 2 if maybe(rng, 0.8) else dtypes(rng, 2)
    if packs(kinds, dtype) and maybe(rng, 0.3):
        layer.pack()
    x = stored(rng, numbers(rng, (*batch, n_tokens, dim), kinds[0]))
    context = value = past = rotary = chosen = None
    arguments, extra = [x], {}
    many = isinstance(layer, MultiHeadAttention)
    cross = cross or maybe(rng, 0.3)
    if cross:
        of_keys, of_values = len(layer.W_k), len(layer.W_v)
        context = stored(rng, numbers(rng, (*batch, n_keys, of_keys), kinds[1]))
        arguments.append(context)
        if of_keys != of_values or maybe(rng, 0.3):
            value = stored(rng, numbers(rng, (*batch, n_keys, of_values), kinds[1]))
            arguments.append(value)
        if many and 0 not in batch and not mix([kinds[1], dtype]) and maybe(rng, 0.3):
            arguments[1:] = [layer.project_context(context, value)]
    else:
        n_keys = n_tokens
        if many and maybe(rng, 0.4):
            rotary = extra["rotary"] = make_rotary_object(rng, layer.head_dim)
        # The longest length of no sequences is 0, not that of the tokens.
        empty = 0 in batch or mix([kinds[0], dtype])
        if many and maybe(rng, 0.5) and not empty:
            n_past = size(rng, 4)
            wide = np.result_type(kinds[0], dtype)
            extra["cache"] = KVCache(
                batch[0] if batch else 1,
                layer.num_kv_heads,
                n_past + n_tokens,
                layer.head_dim,
                layer.value_head_dim,
                dtype=wide if wide in FLOATS else np.float64,
            )
            if n_past or maybe(rng):
                past = numbers(rng, (*batch, n_past, dim), kinds[0])
                layer(past, **extra)
                n_keys += n_past
    options = layer_options(rng, (n_tokens, n_keys))
    kept = "cache" in extra or isinstance(arguments[-1], KVCache)
    if not kept and maybe(rng, 0.2):
        options["kv_lengths"] = rng.integers(0, n_keys, batch, endpoint=True)
    if context is None and options.get("causal") == "bottom_right":
        options["causal"] = True
    if context is None and options.get("causal") == "top_left":
        options["causal"] = True
    if maybe(rng, 0.4):
        extra["return_weights"] = True
        if many and maybe(rng, 0.4):
            n_heads = layer.num_heads
            chosen = rng.permutation(n_heads)[: rng.integers(n_heads) + 1]
            extra["heads"] = chosen - n_heads * maybe(rng, 0.3)
    extra["num_threads"] = options.pop("num_threads")
    check = functools.partial(
        layer_check, layer, tuple(map(plain, (x, context, value))), options, rotary,
        past, (*kinds, dtype), chosen,
    )  # fmt: skip
    made = Call(name, layer, arguments, {**options, **extra}, check)
    made.parts = [(layer, n) for n in vars(layer) if not n.startswith("num_")]
    used = kinds if cross else kinds[:1]
    made.right = not mix([*used, dtype])
    if mix(kinds):
        made.right = False
    return made


MAKERS = (
    make_attention,
    make_attention,
    make_gradients,
    make_gradients,
    make_packed,
    make_paged,
    make_plan,
    make_statistics,
    make_explain,
    make_merge,
    make_quantize,
    make_blocks,
    make_hadamard,
    make_linear,
    make_norm,
    make_activation,
    make_rotary,
    make_append,
    make_head,
    make_layer,
    make_layer,
)
SCALES = ("key_scale", "value_scale")
ATTENTION = (
    "mask", "bias", "causal", "window", "q_offset", "kv_lengths", "seq_offsets",
    *SCALES, "page_table", "scale", "softcap", "sinks", "dropout", "dropout_seed",
    "return_weights", "return_lse", "out", "num_threads",
)  # fmt: skip
HEAD = tuple(
    n for n in ATTENTION if n not in (*SCALES, "page_table", "return_lse", "out")
)
VJP = (
    *(n for n in HEAD if n != "return_weights"),
    "output", "lse", "grad_lse", "wanted",
)  # fmt: skip
OPTIONS = {
    "attention": ATTENTION,
    "attention_vjp": VJP,
    "packed": ATTENTION,
    "paged": ATTENTION,
    "Plan": ATTENTION,
    "statistics": (*ATTENTION, "wanted", "top_k"),
    "explain": ATTENTION,
    "merge": (),
    "quantize": ("bits", "group", "activations"),
    "from_blocks": (
        "bits",
        "group",
        "zero",
        "values",
        "coarse_scale",
        "coarse_minimum",
        "groups_per_block",
        "activations",
        "dtype",
    ),
    "hadamard": (),
    "linear": ("bias", "activation", "num_threads"),
    "norm": ("residual", "num_threads"),
    "activation": ("num_threads",),
    "Rotary": ("positions", "out", "num_threads"),
    "append": ("lengths",),
    "SelfAttention": ("context", "value", *HEAD),
    "MultiHeadAttention": (
        "context",
        "value",
        *HEAD,
        "heads",
        "cache",
        "rotary",
        "average_weights",
        "residual",
        "mixed",
    ),
}
# The best tier is the one that attention() takes.
assert TIER in TIERS
