"""Packed weights: the bits of the matrices, and nothing that can be written to."""

import copy
import pickle
import weakref

import numpy as np
import pytest
from support.arrays import dtype_of
from support.calls import TIERS, linear_on
from support.comparisons import assert_same_bits

from attnpy import _memory, checkpoints
from attnpy._memory import CACHE_LINE
from attnpy._packed_weight import (
    BLOCK,
    PANEL_COLUMNS,
    PackedTable,
    PackedWeight,
    PanelWriter,
)
from attnpy.blocks import Encoder, FeedForward, Linear
from attnpy.layers import MultiHeadAttention, SelfAttention
from attnpy.models import CausalDecoder
from attnpy.positions import Rotary

ROWS = [1, 3, 8, 9, 13, 16, 17, 33, 70]  # row form, of packed ones too, tiles, tasks
SIZES = [
    (1, 1),
    (2, PANEL_COLUMNS),
    (BLOCK - 1, PANEL_COLUMNS + 1),
    (BLOCK, 2 * PANEL_COLUMNS),
    (BLOCK + 1, 385),
    (2 * BLOCK + 3, 800),
]


def multiply(x, weight, tier, num_threads=1):
    return linear_on(tier, x, weight, activation="gelu", num_threads=num_threads)


def random(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype_of(dtype))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.quick(size=SIZES[3:5], tier=TIERS[:1])
def test_products_have_the_bits_of_the_matrix(tier, dtype, size):
    weight = random(size, dtype)
    packed = PackedWeight(weight)
    for n_rows in ROWS:
        x = random((n_rows, size[0]), dtype, n_rows)
        expected = multiply(x, weight, tier)
        for num_threads in (1, 2):
            assert_same_bits(multiply(x, packed, tier, num_threads), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.quick
def test_wider_rows_take_16_bit_weights(dtype):
    weight, x = random((130, 50), dtype), random((20, 130), "float32")
    expected = multiply(x, weight, None)
    assert expected.dtype == np.float32
    assert_same_bits(multiply(x, PackedWeight(weight), None), expected)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [(0, 5), (5, 0), *SIZES])
@pytest.mark.quick
def test_the_matrix_comes_back(dtype, size):
    weight = random(size, dtype)
    packed = PackedWeight(weight)
    assert_same_bits(np.asarray(packed), weight)
    assert (packed.shape, packed.dtype) == (weight.shape, weight.dtype)
    assert len(packed) == size[0]
    for twin in (copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert_same_bits(np.asarray(twin), weight)


@pytest.mark.quick
def test_strided_matrices_are_packed_as_they_are():
    weight = random((300, 200), "float32").T[::-1, ::2]
    assert_same_bits(np.asarray(PackedWeight(weight)), weight)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.quick(size=SIZES[3:])
def test_rows_of_a_packed_table_are_looked_up(dtype, size):
    table = random(size[::-1], dtype)
    packed = PackedTable(table)
    assert (packed.shape, packed.dtype, len(packed)) == (
        table.shape,
        table.dtype,
        len(table),
    )
    rows = np.random.default_rng(1).integers(-len(table), len(table), (7, 5))
    for some in (rows, rows[0].astype(np.int32), 0, -1, [0], slice(None), slice(3, 1)):
        assert_same_bits(packed[some], table[some])
    assert packed[rows].flags.owndata or packed[rows].base.base is None  # a copy
    assert_same_bits(np.asarray(packed), table)
    assert_same_bits(np.asarray(packed.T), table.T)
    for twin in (copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert_same_bits(twin[rows], table[rows])
        assert_same_bits(twin.matrix(), table)


@pytest.mark.quick
def test_what_is_no_row_of_a_packed_table_is_refused():
    packed = PackedTable(random((100, 6), "float32"))
    for wrong in (100, -101, [0, 100]):
        with pytest.raises(IndexError, match="rows: expected -100 to 99, got"):
            packed[wrong]
    with pytest.raises(TypeError, match="rows: expected integers or a slice of rows"):
        packed[1, 2]
    for wrong in (1.5, [True], np.ones(100, bool)):
        with pytest.raises(TypeError, match="rows: expected integers, got dtype"):
            packed[wrong]
    assert len(list(packed)) == 100
    with pytest.raises(TypeError, match="item assignment"):
        packed[0] = 0
    with pytest.raises(AttributeError, match="PackedTable: expected no change"):
        packed.T = None
    with pytest.raises(ValueError, match="read-only"):
        packed.matrix()[0] = 0
    with pytest.raises(ValueError, match="copy: expected True or None"):
        packed.__array__(copy=False)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.quick(size=SIZES[4:5], step=[3])
def test_panels_are_written_some_columns_at_a_time(dtype, size, step):
    weight = random(size, dtype)
    for is_table in (False, True):
        writer = PanelWriter(weight.T if is_table else weight, is_table)
        for first in range(0, size[1], step * PANEL_COLUMNS):
            writer.write(first, weight.T[first : first + step * PANEL_COLUMNS])
        packed = writer.packed()
        assert isinstance(packed, PackedTable if is_table else PackedWeight)
        packed = packed.T if is_table else packed
        for mine, other in zip(packed._parts, PackedWeight(weight)._parts, strict=True):
            assert_same_bits(np.asarray(mine), np.asarray(other))


LAYERS = {
    "one head": lambda rng: SelfAttention(24, 8, rng=rng),
    "attention": lambda rng: MultiHeadAttention(24, 4, num_kv_heads=2, rng=rng),
    "feed-forward": lambda rng: FeedForward(24, 50, activation="swiglu", rng=rng),
    "linear": lambda rng: Linear(24, 50, rng=rng),
    "encoder": lambda rng: Encoder(2, 24, 4, 50, rng=rng),
    "decoder": lambda rng: CausalDecoder(
        2, 24, 4, 50, vocab_size=30, max_length=20, rng=rng
    ),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.quick
def test_layers_have_the_same_bits_packed(name):
    layer = LAYERS[name](np.random.default_rng(0))
    ids = name == "decoder"
    x = np.arange(15) if ids else random((2, 15, 24), "float32")
    expected, parameters = layer(x), layer.parameters()
    layer.pack()
    layer.pack()  # again changes nothing
    assert_same_bits(layer(x), expected)
    now = layer.parameters()
    assert now.keys() == parameters.keys()
    for key in now:
        assert_same_bits(now[key], parameters[key])


@pytest.mark.quick
def test_heads_of_a_packed_layer_have_its_numbers():
    mha = MultiHeadAttention(24, 4, num_kv_heads=2)
    expected = mha.heads
    mha.pack()
    for one, other in zip(mha.heads, expected, strict=True):
        for name, array in other.parameters().items():
            assert_same_bits(one.parameters()[name], array)


@pytest.mark.quick
def test_generated_tokens_are_the_same():
    model = LAYERS["decoder"](np.random.default_rng(0))
    expected = model.generate([1, 2, 3], 10)
    model.pack()
    assert (model.generate([1, 2, 3], 10) == expected).all()


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_panels_begin_with_a_cache_line(dtype):
    for size in ((3, 5), (200, 100), (1000, 1100)):
        panels = PackedWeight(random(size, dtype))._parts[0]
        assert panels.ctypes.data % CACHE_LINE == 0
        assert panels.dtype == dtype_of(dtype) and not panels.flags.writeable


@pytest.mark.quick
def test_matrices_lie_side_by_side_and_apart():
    sizes = (_memory.LEAST, 100_001, 3 << 20, _memory.MOST, 1, _memory.MOST + 1) * 3
    pieces = [_memory.allocate(n_bytes) for n_bytes in sizes]
    for i, piece in enumerate(pieces):
        piece[...] = i
    for i, (n_bytes, piece) in enumerate(zip(sizes, pieces, strict=True)):
        assert len(piece) == n_bytes and piece.ctypes.data % CACHE_LINE == 0
        assert (piece == i).all()
    a, b = (_memory.allocate(1 << 20) for _ in range(2))
    assert b.ctypes.data - a.ctypes.data == 1 << 20


@pytest.mark.quick
def test_memory_of_matrices_is_freed_with_the_last_of_them():
    former = _memory.allocate(1 << 20)
    slab = weakref.ref(former.base)
    later = _memory.allocate(1 << 20)
    del former
    assert slab() is later.base
    n_pieces = 2 * _memory.SLAB // _memory.MOST
    pieces = [_memory.allocate(_memory.MOST) for _ in range(n_pieces)]
    slabs = {id(piece.base): weakref.ref(piece.base) for piece in pieces}
    del pieces
    assert len(slabs) == 3 and [x() for x in slabs.values()][1:] == [None, None]


@pytest.mark.quick
def test_a_signal_s_handler_takes_no_part_of_the_piece_it_interrupts(monkeypatch):
    next_piece, handlers = _memory._next_piece, []

    def interrupted(n_bytes):
        piece = next_piece(n_bytes)
        handlers.append(_memory.allocate(n_bytes))
        return piece

    monkeypatch.setattr(_memory, "_next_piece", interrupted)
    piece = _memory.allocate(1 << 20)
    assert len(handlers) == 1 and len(handlers[0]) == 1 << 20
    assert handlers[0].base is not piece.base


def llama(rng):
    return CausalDecoder(
        2,
        24,
        4,
        50,
        vocab_size=30,
        rotary=Rotary(6),
        qk_norm=True,
        norm="rms",
        activation="swiglu",
        tied=False,
        num_kv_heads=2,
        rng=rng,
    )


@pytest.mark.parametrize("name", [*LAYERS, "llama"])
@pytest.mark.quick
def test_no_call_unpacks(name, monkeypatch):
    layer = {**LAYERS, "llama": llama}[name](np.random.default_rng(0))
    generates = isinstance(layer, CausalDecoder)
    layer.pack()

    def refuse(self):
        raise AssertionError(f"{self!r} was unpacked")

    monkeypatch.setattr(PackedWeight, "matrix", refuse)
    with pytest.raises(AssertionError, match="was unpacked"):
        np.asarray(PackedWeight(np.eye(2)))
    layer(np.arange(15) if generates else random((2, 15, 24), "float32"))
    if generates:
        layer.generate([1, 2, 3], 5)


@pytest.mark.parametrize("tied", [True, False, None])
@pytest.mark.quick
def test_models_pack_the_matrix_of_scores(tied):
    model = CausalDecoder(2, 24, 4, 50, vocab_size=70, max_length=20, tied=tied)
    model.token_embedding[...] *= 50
    ids, states = np.arange(60, 70), random((3, 24), "float32")
    vectors = model(ids)
    scores = model.logits(states) if tied is not None else None
    table, output = model.token_embedding, model.output
    model.pack()
    assert_same_bits(model(ids), vectors)
    assert_same_bits(np.asarray(model.token_embedding), table)
    assert isinstance(model.token_embedding, PackedTable if tied else np.ndarray)
    if tied is not None:
        assert_same_bits(model.logits(states), scores)
        assert_same_bits(model.logits(states[0]), scores[0])
    if tied is False:
        assert isinstance(model.output, PackedWeight)
        assert_same_bits(np.asarray(model.output), output)
    with pytest.raises(ValueError, match="expected an array, got a packed one"):
        model.vjp(ids)


@pytest.mark.quick
def test_scores_that_cannot_be_packed_leave_the_model_as_it_was():
    model = LAYERS["decoder"](np.random.default_rng(0))
    model.token_embedding = np.zeros((30, 24), int)
    with pytest.raises(TypeError, match="token_embedding: expected a floating matrix"):
        model.pack()
    assert isinstance(model.decoder.layers[0].self_attention.W_q, np.ndarray)


@pytest.mark.quick
def test_layers_that_share_a_matrix_share_the_packed_one():
    encoder = LAYERS["encoder"](np.random.default_rng(0))
    first, second = encoder.layers
    second.feed_forward = first.feed_forward
    names = set(encoder.parameters())
    encoder.pack()
    assert first.feed_forward.W_1 is second.feed_forward.W_1
    assert set(encoder.parameters()) == names


@pytest.mark.quick
def test_packed_parameters_cannot_be_written_to():
    mha = MultiHeadAttention(6, 2)
    state = {name: array.copy() for name, array in mha.state_dict().items()}
    mha.pack()
    with pytest.raises(ValueError, match="W_q: expected a parameter that can be"):
        mha.load_state_dict(state)
    with pytest.raises(ValueError, match="model: expected parameters that can be"):
        checkpoints.load(mha, {}, "torch_attention")
    with pytest.raises(ValueError, match="read-only"):
        mha.heads[0].W_q[...] = 0
    with pytest.raises(ValueError, match="read-only"):
        mha.parameters()["W_q"][...] = 0
    with pytest.raises(TypeError, match="item assignment"):
        mha.W_q[0, 0] = 0
    with pytest.raises(AttributeError, match="PackedWeight: expected no change"):
        mha.W_q.shape = 3, 12


@pytest.mark.quick
def test_matrices_of_the_other_byte_order_are_packed_as_ours():
    weight = random((130, 50), "float32")
    packed = PackedWeight(weight.astype(">f4"))
    assert_same_bits(np.asarray(packed), weight)
    x = random((9, 130), "float32")
    assert_same_bits(multiply(x, packed, None), multiply(x, weight, None))


@pytest.mark.parametrize("wrong", [np.zeros((6, 6), int), np.zeros(6, np.float32)])
@pytest.mark.quick
def test_what_cannot_be_packed_leaves_the_layer_as_it_was(wrong):
    mha = MultiHeadAttention(6, 2)
    mha.W_o = wrong
    with pytest.raises(TypeError, match="W_o: expected a floating matrix to pack, got"):
        mha.pack()
    assert isinstance(mha.W_q, np.ndarray)
    with pytest.raises(TypeError, match="weight: expected a floating matrix"):
        PackedWeight(wrong)


@pytest.mark.quick
def test_float64_rows_are_refused_where_the_weights_are_narrower():
    packed = PackedWeight(random((6, 5), "float32"))
    with pytest.raises(TypeError, match="weight: expected float64 or an array"):
        multiply(random((2, 6), "float64"), packed, None)


@pytest.mark.quick
def test_wrong_shapes_are_refused():
    packed = PackedWeight(random((6, 5), "float32"))
    with pytest.raises(ValueError, match=r"x: expected \(..., 6\)"):
        multiply(random((2, 7), "float32"), packed, None)


class Fake:
    """What says that it is packed."""

    def __init__(self, *parts):
        self._parts = parts


@pytest.mark.parametrize(
    "parts",
    [
        (np.zeros(48 * 6 - 1, np.float32), 6, 5),
        (np.zeros((6, 48), np.float32), 6, 5),
        (np.zeros(48 * 12, np.float32)[::2], 6, 5),
        (np.zeros(48 * 6, np.float32), 6, 49),
        (np.zeros(48 * 6, np.float32), -6, -5),
        (np.zeros(48 * 6, np.float32), 2**62, 5),
        (np.zeros(48 * 6, object), 6, 5),
    ],
)
@pytest.mark.quick
def test_panels_of_other_sizes_are_refused(parts):
    with pytest.raises((ValueError, TypeError), match="weight: expected"):
        multiply(random((2, 6), "float32"), Fake(*parts), None)
