"""Pickles and copies: what they give back, and the errors of broken ones."""

import copy
import pickle

import numpy as np
import pytest
from support.arrays import normal
from support.comparisons import assert_same_bits
from support.errors import refused
from support.objects import EXAMPLES, RETURNED

import attnpy
from attnpy import PartialAttention, blocks, cache, layers, positions, training
from attnpy._packed_weight import PackedTable, PackedWeight

# These refer to memory, files or functions: Python refuses to pickle them.
REFUSED = {
    "Plan",
    "checkpoints.Checkpoint",
    "checkpoints.Family",
    "checkpoints.GgufFile",
    "models.ContinuousBatch",
    "models.Prefix",
    "pages.PagePool",
    "pages.PagedKVCache",
}
NAMED_TUPLES = {
    "AttentionGradients",
    "Explanation",
    "PartialAttention",
    "SearchResult",
    "Statistics",
    "blocks.ModelOutput",
    "models.M3Vectors",
    "layers.LayerGradients",
}
PACKED = {"PackedTable", "PackedWeight", "QuantizedTable", "QuantizedWeight"}
STATELESS = {"Normalize"}
OBJECTS = {**EXAMPLES, **RETURNED}
WITH_ATTRIBUTES = sorted(OBJECTS.keys() - REFUSED - NAMED_TUPLES - PACKED - STATELESS)
NONSENSE = (
    *(None, -1, 2**70, 1.5, "x", b"x", (), [], {}),
    *(np.ones((2, 3, 4)), np.ones((), "i8"), np.array([None])),
)


class Forged:
    """Is read from a pickle as an object of a kind that has a state."""

    def __init__(self, kind, state):
        self.kind, self.state = kind, state

    def __reduce__(self):
        return object.__new__, (self.kind,), self.state


def read(kind, state):
    """What a pickle with this state gives."""
    return pickle.loads(pickle.dumps(Forged(kind, state)))


def assert_read_or_refused(kind, state):
    """There is an object, or an error that names the class and what it expected."""
    try:
        assert isinstance(read(kind, state), kind)
    except (TypeError, ValueError) as error:
        told, _, text = str(error).partition(": ")
        assert told == kind.__name__
        assert any(word in text for word in ("expected", "missing", "unexpected"))
        return 1
    return 0


@pytest.mark.quick
@pytest.mark.parametrize("name", sorted(OBJECTS.keys() - REFUSED))
def test_objects_come_back(name, tmp_path):
    thing = OBJECTS[name](tmp_path)
    for twin in (pickle.loads(pickle.dumps(thing)), copy.copy(thing)):
        assert type(twin) is type(thing)
        assert repr(twin) == repr(thing)
    assert repr(copy.deepcopy(thing)) == repr(thing)


@pytest.mark.quick
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_pickled_is_refused_by_python(name, tmp_path):
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(OBJECTS[name](tmp_path))


@pytest.mark.quick
@pytest.mark.parametrize("name", WITH_ATTRIBUTES)
def test_a_state_has_the_attributes_of_the_class(name, tmp_path):
    thing = OBJECTS[name](tmp_path)
    kind, state = type(thing), vars(thing)
    for missing in state:
        rest = {key: value for key, value in state.items() if key != missing}
        with refused(ValueError, kind.__name__) as caught:
            read(kind, rest)
        assert repr(missing) in str(caught.value)
    with refused(ValueError, kind.__name__):
        read(kind, {**state, "nonsense": 1})
    for wrong in (3, "x", [], (state, {})):
        with refused(TypeError, kind.__name__):
            read(kind, wrong)
    derived = type("Derived", (kind,), {})  # may have others
    twin = derived.__new__(derived)
    twin.__setstate__({**state, "own": 1})
    assert twin.own == 1


@pytest.mark.quick
@pytest.mark.parametrize("name", WITH_ATTRIBUTES)
def test_attributes_of_another_kind_are_refused(name, tmp_path):
    thing = OBJECTS[name](tmp_path)
    kind, state = type(thing), vars(thing)
    for key in state:
        found = [
            assert_read_or_refused(kind, {**state, key: value}) for value in NONSENSE
        ]
        if key not in ("tokenizer", "window"):  # are judged in calls
            assert sum(found) > 2, key


@pytest.mark.quick
def test_a_derived_class_may_have_slots():
    class Slotted(layers.SelfAttention):
        __slots__ = ("own",)

    layer = Slotted(4, 2)
    layer.own = 3
    assert copy.copy(layer).own == 3
    with refused(TypeError, "Slotted"):
        copy.copy(layer).__setstate__((vars(layer), 3))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("thing", "attributes", "message"),
    [
        (cache.KVCache(2, 3, 9, 5), {"_key": np.ones((2, 3, 9, 4))}, "key: expected"),
        (cache.KVCache(2, 3, 9, 5), {"_key": np.ones((9, 5))}, "key: expected"),
        (cache.KVCache(2, 3, 9, 5), {"_value": np.ones(3)}, "value: expected"),
        (cache.KVCache(2, 3, 9, 5), {"_lengths": np.array([3, 10])}, "lengths: expec"),
        (cache.KVCache(2, 3, 9, 5), {"_lengths": np.array([[3]])}, "lengths: expected"),
        (cache.KVCache(2, 3, 9, 5), {"batch_size": 3}, "key: expected"),
        (positions.Rotary(8), {"frequencies": np.ones(3)}, "frequencies: expected"),
        (positions.Rotary(8), {"rotary_dim": 7}, "rotary_dim: expected"),
        (positions.Rotary(8), {"rotary_dim": -8}, "rotary_dim: expected"),
        (
            training.AdamW(blocks.LayerNorm(8).parameters()),
            {"_state": {"step": np.zeros((), int)}},
            "state: missing exp_avg.weight",
        ),
        (
            training.AdamW({"w": np.ones(2)}),
            {
                "_state": {
                    "step": np.zeros((), int),
                    "exp_avg.w": np.ones(2),
                    "exp_avg_sq.w": np.ones(2, int),
                }
            },
            r"state\['exp_avg_sq.w'\]: expected float64",
        ),
    ],
)
def test_states_that_do_not_fit_together_are_refused(thing, attributes, message):
    kind = type(thing)
    with pytest.raises((TypeError, ValueError), match=f"^{kind.__name__}: {message}"):
        read(kind, {**vars(thing), **attributes})


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_packed_weights_have_panels_of_their_size(dtype):
    weight = PackedWeight(normal(5, 7, dtype=dtype))
    panels, *sizes = weight.__getstate__()
    swapped = panels.astype(panels.dtype.newbyteorder())
    strided = np.repeat(panels, 2)[::2]
    for other in (swapped, strided):
        twin = read(PackedWeight, (other, *sizes))
        assert_same_bits(twin.matrix(), weight.matrix())
    for wrong in (3, "x", [], (panels, 5), (panels, 5, 7, 7)):
        with refused(TypeError, "PackedWeight"):
            read(PackedWeight, wrong)
    refusals = 0
    for place in range(3):
        for value in NONSENSE:
            parts = [panels, *sizes]
            parts[place] = value
            refusals += assert_read_or_refused(PackedWeight, tuple(parts))
    assert refusals == 3 * len(NONSENSE) - 1  # 1 column takes the room of 7
    for parts in ((panels[1:], 5, 7), (panels, 7, 49), (panels[:0], 2**50, 0)):
        with refused(ValueError, "PackedWeight"):
            read(PackedWeight, parts)
    for wrong in (3, panels, object.__new__(PackedWeight)):
        with refused(TypeError, "PackedTable"):
            PackedTable.__new__(PackedTable).__setstate__(wrong)


def partial():
    query = normal(2, 3, 4)
    return query, attnpy.attend_partial(query, query, query)


@pytest.mark.quick
@pytest.mark.parametrize("field", PartialAttention._fields)
def test_broken_partial_results_are_refused_where_they_are_used(field):
    query, state = partial()
    found = 0
    for value in (*NONSENSE, np.float32, "float32", 3):
        broken = pickle.loads(pickle.dumps(state._replace(**{field: value})))
        for use in (
            broken.finish,
            lambda broken=broken: attnpy.attend_partial(query, query, query, broken),
        ):
            try:
                use()
            except (TypeError, ValueError) as error:
                assert str(error).startswith(
                    (
                        "PartialAttention: expected ",
                        f"PartialAttention: {field}: expected ",
                    )
                )
                found += 1
    assert found >= 2 * (len(NONSENSE) - 2)


@pytest.mark.quick
def test_partial_results_of_another_dtype_than_their_sums_are_refused():
    query, state = partial()
    with refused(ValueError, "PartialAttention"):
        state._replace(dtype=np.dtype("float64")).finish()
    big = state.totals.astype(state.totals.dtype.newbyteorder())
    assert_same_bits(state._replace(totals=big).finish(), state.finish())
    for first_key in (2**53 + 1, 2**70):
        with refused(ValueError, "first_key"):
            attnpy.attend_partial(
                query, query, query, first_key=first_key, causal=True, q_offset=0
            )
