"""Packed sequences: end to end in one array, each as if it were alone."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.arrays import lay_out, normal
from support.calls import everything, layers_on, on_tier, threads_for_any_work
from support.comparisons import assert_same_bits
from support.errors import refused

import attnpy
from attnpy.blocks import Decoder, DecoderLayer, Encoder
from attnpy.cache import KVCache
from attnpy.layers import MultiHeadAttention, SelfAttention
from attnpy.models import BertEncoder, CausalDecoder
from attnpy.positions import Rotary

# Of queries: the row form, one tile and several, nothing; of keys: blocks and chunks.
N_QUERIES = (3, 0, 64, 1, 130, 17)
N_KEYS = (129, 4, 0, 1100, 130, 17)
H, HK, D, DV, E = 4, 2, 9, 7, 24


def starts_of(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(int)


def pieces(array, lengths, axis=-2):
    """The sequences of a packed array."""
    return np.split(array, np.cumsum(lengths)[:-1].astype(int), axis)


def packed(n_queries=N_QUERIES, n_keys=N_KEYS, dtype="float32"):
    """query, key and value of sequences of these lengths."""
    return (
        normal(H, sum(n_queries), D, dtype=dtype, seed=1),
        normal(HK, sum(n_keys), D, dtype=dtype, seed=2),
        normal(HK, sum(n_keys), DV, dtype=dtype, seed=3),
    )


def alone(attend, arrays, n_queries, n_keys, options, per_sequence):
    """(output, weights, lse) of each sequence in a call of its own."""
    query, key, value = arrays
    sequences = zip(
        pieces(query, n_queries),
        pieces(key, n_keys),
        pieces(value, n_keys),
        strict=True,
    )
    for i, sequence in enumerate(sequences):
        own = {
            name: array[i, ..., : n_queries[i], : n_keys[i]]
            if name in ("mask", "bias")
            else array[i]
            for name, array in per_sequence.items()
        }
        yield everything(attend, *sequence, **options, **own)


def assert_as_alone(attend, arrays, n_queries, n_keys, options, **per_sequence):
    offsets = starts_of(n_queries), starts_of(n_keys)
    output, weights, lse = everything(
        attend, *arrays, seq_offsets=offsets, **options, **per_sequence
    )
    n, longest, most = len(n_queries), max(n_queries), max(n_keys)
    assert weights.shape == (n, H, longest, most)
    expected = list(alone(attend, arrays, n_queries, n_keys, options, per_sequence))
    for i, (one, each) in enumerate(
        zip(pieces(output, n_queries), pieces(lse, n_queries, -1), strict=True)
    ):
        own = weights[i, :, : n_queries[i], : n_keys[i]]
        assert_same_bits((one, own.copy(), each), expected[i])
        assert np.count_nonzero(weights[i]) == np.count_nonzero(own)


SETTINGS = {
    "plain": {},
    "causal": {"causal": True},
    "top_left": {"causal": "top_left", "window": (40, None)},
    "window": {"window": (30, 3), "softcap": 2.0, "scale": 0.7},
    "sinks": {"causal": True, "sinks": np.array([0.5, -1, 2, 0])},
}


@pytest.mark.quick(setting=("causal",))
@pytest.mark.parametrize("setting", SETTINGS)
def test_each_sequence_is_as_if_alone(attend, dtype, setting):
    assert_as_alone(attend, packed(dtype=dtype), N_QUERIES, N_KEYS, SETTINGS[setting])


@pytest.mark.quick
def test_what_belongs_to_a_batch_belongs_to_a_sequence(attend):
    n, longest, most = len(N_QUERIES), max(N_QUERIES), max(N_KEYS)
    assert_as_alone(
        attend,
        packed(),
        N_QUERIES,
        N_KEYS,
        {"causal": True},
        mask=np.random.default_rng(0).random((n, 1, longest, most)) < 0.8,
        bias=normal(n, H, longest, most),
        kv_lengths=np.array([100, 0, 0, 1100, 1, 16]),
        q_offset=np.array([50, -3, 7, 600, 0, 2]),
    )


@pytest.mark.quick
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_any_number_of_threads(tier, n_threads):
    query, key, value = packed()
    offsets = starts_of(N_QUERIES), starts_of(N_KEYS)
    expected = everything(on_tier(tier), query, key, value, seq_offsets=offsets)
    with threads_for_any_work():
        actual = everything(
            on_tier(tier), query, key, value, seq_offsets=offsets, num_threads=n_threads
        )
        assert_same_bits(actual, expected)
        one = [x[:, : 3 if i == 0 else 1100] for i, x in enumerate((query, key, value))]
        long = [np.tile(x, (1, 2, 1))[:, :1100] for x in one[1:]]
        actual = attnpy.attention(
            one[0], *long, seq_offsets=([0, 3], [0, 1100]), num_threads=n_threads
        )
        assert_same_bits(actual, attnpy.attention(one[0], *long, num_threads=1))


@pytest.mark.quick
def test_one_array_of_offsets_is_for_queries_and_keys():
    query, key, value = packed(N_QUERIES, N_QUERIES)
    offsets = starts_of(N_QUERIES)
    expected = attnpy.attention(query, key, value, seq_offsets=(offsets, offsets))
    for given_ in (offsets, list(offsets), tuple(offsets), offsets.astype(np.uint8)):
        if max(offsets) <= np.iinfo(np.asarray(given_).dtype).max:
            actual = attnpy.attention(query, key, value, seq_offsets=given_)
            assert_same_bits(actual, expected)
    whole = attnpy.attention(query, key, value, seq_offsets=(0, sum(N_QUERIES)))
    assert_same_bits(whole, attnpy.attention(query, key, value))


@pytest.mark.quick
def test_an_array_that_is_not_packed_has_an_axis_of_sequences(attend):
    n, n_keys = len(N_QUERIES), 40
    lengths = np.array([40, 3, 0, 17, 39, 1])
    key, value = normal(n, HK, n_keys, D), normal(n, HK, n_keys, DV)
    query = normal(H, sum(N_QUERIES), D)
    offsets = starts_of(N_QUERIES)
    output = attend(
        query, key, value, seq_offsets=(offsets, None), kv_lengths=lengths, causal=True
    )
    for i, one in enumerate(pieces(query, N_QUERIES)):
        expected = attend(one, key[i], value[i], kv_lengths=lengths[i], causal=True)
        assert_same_bits(output[:, offsets[i] : offsets[i + 1]].copy(), expected)
    shared = attend(query, key[0], value[0], seq_offsets=(offsets, None))
    assert_same_bits(shared, attend(query, key[0], value[0]))

    queries, keys, values = normal(n, H, 5, D), *packed()[1:]
    offsets = starts_of(N_KEYS)
    output, lse = attend(
        queries, keys, values, seq_offsets=(None, offsets), return_lse=True
    )
    assert lse.shape == (n, H, 5)
    for i, (k, v) in enumerate(
        zip(pieces(keys, N_KEYS), pieces(values, N_KEYS), strict=True)
    ):
        assert_same_bits(output[i].copy(), attend(queries[i], k, v))
    assert attend(
        queries[0, 0, 0], keys[:1], values[:1], seq_offsets=(None, offsets)
    ).shape == (n, 1, DV)


@pytest.mark.quick
def test_nothing_of_other_sequences_is_looked_at(attend):
    lengths = (20, 70, 3)
    query, key, value = packed(lengths, lengths)
    offsets = starts_of(lengths)
    expected = attend(query, key, value, seq_offsets=offsets)
    own = slice(offsets[1], offsets[2])
    for array in (key, value):
        others = np.full_like(array, np.nan)
        others[:, own] = array[:, own]
        array[...] = others
    output = attend(query, key, value, seq_offsets=offsets)
    assert_same_bits(output[:, own].copy(), expected[:, own].copy())


def test_strides_and_results_that_are_given(attend):
    query, key, value = packed()
    offsets = starts_of(N_QUERIES), starts_of(N_KEYS)
    expected = attend(query, key, value, seq_offsets=offsets)
    arrays = [lay_out(x, (1, 2, 0), (-1, 2, 1)) for x in (query, key, value)]
    out = lay_out(np.zeros_like(expected), (1, 0, 2), (1, 2, -1))
    assert attend(*arrays, seq_offsets=offsets, out=out) is out
    assert_same_bits(out.copy(), expected)
    same = np.array(query[..., :DV])
    expected = attend(same, key[..., :DV], value, seq_offsets=offsets)
    assert_same_bits(
        attend(same, key[..., :DV], value, seq_offsets=offsets, out=same), expected
    )


@pytest.mark.quick
def test_a_plan_of_packed_sequences():
    query, key, value = packed()
    offsets = starts_of(N_QUERIES), starts_of(N_KEYS)
    lengths = np.array(N_KEYS)
    plan = attnpy.Plan(query, key, value, seq_offsets=offsets, kv_lengths=lengths)
    for _ in range(2):
        assert_same_bits(
            plan(),
            attnpy.attention(
                query, key, value, seq_offsets=offsets, kv_lengths=plan.kv_lengths
            ),
        )
        offsets[0][1:] = 0  # a plan has its own
        offsets = starts_of(N_QUERIES), starts_of(N_KEYS)
        plan.kv_lengths[:] = [7, 4, 0, 600, 2, 3]
    plan.kv_lengths[1] = 5  # within the longest, not within its own
    with refused(ValueError, "kv_lengths"):
        plan()


@pytest.mark.quick
def test_no_sequences_and_empty_ones():
    none = np.zeros((3, 0, 5))
    output, weights, lse = everything(
        attnpy.attention, none, none, none, seq_offsets=[0]
    )
    assert (output.shape, weights.shape, lse.shape) == ((3, 0, 5), (0, 3, 0, 0), (3, 0))
    output, weights, lse = everything(
        attnpy.attention, none, none, none, seq_offsets=[0, 0, 0]
    )
    assert (output.shape, weights.shape, lse.shape) == ((3, 0, 5), (2, 3, 0, 0), (3, 0))
    query = np.ones((1, 2, 5))
    output, lse = attnpy.attention(
        query, none[:1], none[:1], seq_offsets=([0, 2], [0, 0]), return_lse=True
    )
    assert not output.any()
    assert (lse == -np.inf).all()


@pytest.mark.quick
@pytest.mark.parametrize(
    "offsets",
    [
        [0, 3],
        [1, 5],
        [0, 4, 3, 5],
        [0, -1, 5],
        [0, 2**62, 5],
        [],
        5,
        [[0, 5]],
        ([0, 5], [0, 5], [0, 5]),
        ([0, 5], [0, 4]),
        ([0, 5], [0, 2, 5]),
        (None, [[0], [5]]),
    ],
    ids=str,
)
def test_offsets_that_are_none(offsets):
    x = np.ones((2, 5, 4))
    with refused(ValueError, "seq_offsets"):
        attnpy.attention(x, x, x, seq_offsets=offsets)


@pytest.mark.quick
def test_arguments_that_do_not_fit_packed_sequences():
    x = np.ones((2, 5, 4))
    for offsets in ([0.0, 5.0], "05", (object(), None)):
        with refused(TypeError, "seq_offsets"):
            attnpy.attention(x, x, x, seq_offsets=offsets)
    with refused(ValueError, "query"):
        attnpy.attention(x[np.newaxis], x, x, seq_offsets=[0, 5])
    with refused(ValueError, "value"):
        attnpy.attention(x, x, x[0], seq_offsets=[0, 5])
    with refused(ValueError, "key"):
        attnpy.attention(x, x[[[0, 1]] * 3], x, seq_offsets=([0, 5], None))
    with refused(ValueError, "kv_lengths"):
        attnpy.attention(x, x, x, seq_offsets=[0, 2, 5], kv_lengths=3)
    with refused(ValueError, "kv_lengths"):
        attnpy.attention(x, x, x, seq_offsets=[0, 2, 5], kv_lengths=[1, 1, 1])
    with refused(ValueError, "mask"):
        attnpy.attention(x, x, x, seq_offsets=[0, 2, 5], mask=np.ones((5, 5), bool))


@given(st.data())
def test_random_sequences(data):
    n_queries = data.draw(st.lists(st.integers(0, 80), min_size=1, max_size=6))
    n_keys = [data.draw(st.integers(0, 150)) for _ in n_queries]
    options = SETTINGS[data.draw(st.sampled_from(list(SETTINGS)))]
    assert_as_alone(
        attnpy.attention, packed(n_queries, n_keys), n_queries, n_keys, options
    )


# ---- Layers --------------------------------------------------------------------------

LENGTHS = (5, 0, 70, 1)
OFFSETS = starts_of(LENGTHS)


def tokens(seed=0, lengths=LENGTHS, dtype="float32"):
    return normal(sum(lengths), E, seed=seed, dtype=dtype)


def layer(dtype="float32", **options):
    rng = np.random.default_rng(0)
    return MultiHeadAttention(
        E, H, num_kv_heads=HK, dtype=dtype, rng=rng, bias=True, **options
    )


def assert_rows(actual, lengths, expected):
    """Rows of packed sequences are those of each one alone."""
    assert len(actual) == sum(lengths)
    for one, other in zip(pieces(actual, lengths), expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.quick
@pytest.mark.parametrize("rotary", [None, Rotary(6)])
def test_a_layer_takes_packed_sequences(tier, dtype, rotary):
    mha, x = layer(dtype), tokens(dtype=dtype)
    options = {"rotary": rotary, "causal": True}
    with layers_on(tier):
        output, weights = mha(x, seq_offsets=OFFSETS, return_weights=True, **options)
        alone = [mha(one, return_weights=True, **options) for one in pieces(x, LENGTHS)]
    assert_rows(output, LENGTHS, [one for one, _ in alone])
    for i, (n, (_, own)) in enumerate(zip(LENGTHS, alone, strict=True)):
        assert_same_bits(weights[i, :, :n, :n].copy(), own)
    one_head = SelfAttention(E, 5, rng=np.random.default_rng(0))
    x = tokens()
    assert_rows(
        one_head(x, seq_offsets=OFFSETS, causal=True),
        LENGTHS,
        [one_head(one, causal=True) for one in pieces(x, LENGTHS)],
    )


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["float32", "float16", "float64"])
@pytest.mark.parametrize("rotary", [None, Rotary(6)])
def test_packed_chunks_into_a_cache(kind, rotary):
    mha, x = layer(), tokens()
    options = {"rotary": rotary, "causal": True}
    cuts = (2, 0, 33, 1)
    first, second = [], []
    for one, cut in zip(pieces(x, LENGTHS), cuts, strict=True):
        first.append(one[:cut])
        second.append(one[cut:])
    cache = KVCache(4, HK, 80, 6, dtype=kind)
    done = []
    for chunk in (first, second):
        lengths = [len(one) for one in chunk]
        output = mha(
            np.concatenate(chunk),
            cache=cache,
            seq_offsets=starts_of(lengths),
            **options,
        )
        done.append(pieces(output, lengths))
    assert cache.lengths.tolist() == list(LENGTHS)
    for i, one in enumerate(pieces(x, LENGTHS)):
        own = KVCache(1, HK, 80, 6, dtype=kind)
        expected = mha(one, cache=own, **options)
        assert_same_bits(np.concatenate([done[0][i], done[1][i]]), expected)
        assert_same_bits(cache._key[i], own._key[0])
        assert_same_bits(cache._value[i], own._value[0])


@pytest.mark.quick
def test_packed_cross_attention():
    mha, x = layer(), tokens()
    n_context = (9, 3, 1, 130)
    context = tokens(1, n_context)
    offsets = OFFSETS, starts_of(n_context)
    alone = [
        mha(one, other)
        for one, other in zip(
            pieces(x, LENGTHS), pieces(context, n_context), strict=True
        )
    ]
    assert_rows(mha(x, context, seq_offsets=offsets), LENGTHS, alone)
    padded = np.full((4, 130, E), np.nan, np.float32)
    for row, one in zip(padded, pieces(context, n_context), strict=True):
        row[: len(one)] = one
    output = mha(x, padded, seq_offsets=(OFFSETS, None), kv_lengths=n_context)
    assert_rows(output, LENGTHS, alone)
    memory = mha.project_context(padded, kv_lengths=n_context)
    for offsets in (OFFSETS, (OFFSETS, None)):
        assert_rows(mha(x, memory, seq_offsets=offsets), LENGTHS, alone)
    with refused(ValueError, "seq_offsets"):
        mha(x, memory, seq_offsets=(OFFSETS, starts_of(n_context)))
    one = mha(x, context, seq_offsets=((0, len(x)), (0, len(context))))
    assert_same_bits(one, mha(x, context))
    assert_same_bits(mha(x, x, seq_offsets=(0, len(x))), mha(x, x))


@pytest.mark.quick
def test_stacks_take_packed_sequences():
    rng = np.random.default_rng(0)
    x, n_context = tokens(), (9, 3, 1, 130)
    context = tokens(1, n_context)
    encoder = Encoder(2, E, H, 30, norm_first=True, rng=rng)
    states = encoder(x, seq_offsets=OFFSETS)
    assert_rows(states, LENGTHS, [encoder(one) for one in pieces(x, LENGTHS)])
    decoder = Decoder(2, E, H, 30, rng=rng)
    output = decoder(
        x, context, seq_offsets=OFFSETS, context_offsets=starts_of(n_context)
    )
    alone = [
        decoder(one, other)
        for one, other in zip(
            pieces(x, LENGTHS), pieces(context, n_context), strict=True
        )
    ]
    assert_rows(output, LENGTHS, alone)
    with pytest.raises(ValueError, match=r"^context_offsets: expected None"):
        DecoderLayer(E, H, 30, cross_attention=False)(x, context_offsets=[0, 1])
    memory = decoder.project_context(context[np.newaxis])
    for layer_, states in ((decoder, memory), (decoder.layers[0], memory[0])):
        with pytest.raises(ValueError, match=r"^context_offsets: expected None"):
            layer_(x[np.newaxis], states, context_offsets=starts_of(n_context))


@pytest.mark.quick
def test_layers_refuse_offsets_that_are_none():
    mha, x = layer(), tokens()
    for offsets in ([0, 4], (OFFSETS, OFFSETS), [0, 80, 76], []):
        with refused(ValueError, "seq_offsets"):
            mha(x, seq_offsets=offsets)
    with refused(ValueError, "x"):
        mha(x[np.newaxis], seq_offsets=OFFSETS)
    cache = KVCache(2, HK, 80, 6)
    with refused(ValueError, "cache"):
        mha(x, seq_offsets=OFFSETS, cache=cache)
    cache = KVCache(4, HK, 69, 6)
    with refused(ValueError, "cache"):
        mha(x, seq_offsets=OFFSETS, cache=cache)
    assert cache.lengths.tolist() == [0] * 4


# ---- Models --------------------------------------------------------------------------

IDS = np.random.default_rng(0).integers(0, 50, (4, 70))


def bert():
    return BertEncoder(2, E, H, 30, vocab_size=50, rng=np.random.default_rng(0))


def decoder_model(**options):
    return CausalDecoder(
        2, E, H, 30, vocab_size=50, rng=np.random.default_rng(0), **options
    )


@pytest.mark.quick
def test_padding_of_a_model_is_not_computed():
    """What is not there is neither projected nor looked up by attention."""
    model = bert()
    sizes = []
    encoder = model.encoder.__class__.__call__

    def recorded(self, x, **options):
        sizes.append(len(x))
        return encoder(self, x, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.encoder.__class__, "__call__", recorded)
        states = model(IDS, lengths=LENGTHS)
        mask = np.arange(70) < np.array(LENGTHS)[:, np.newaxis]
        assert_same_bits(model(IDS, token_mask=mask), states)
    assert sizes == [sum(LENGTHS)] * 2
    for i, n in enumerate(LENGTHS):
        assert_same_bits(states[i, :n].copy(), model(IDS[i, :n]))
        assert not states[i, n:].any()
    one = model(IDS[0], lengths=7)
    assert_same_bits(one[:7].copy(), model(IDS[0, :7]))


@pytest.mark.quick
@pytest.mark.parametrize("cached", [False, True])
def test_decoders_pack_too(cached):
    model = decoder_model()
    caches = model.decoder.new_caches(4, 100) if cached else None
    states = model(IDS, lengths=LENGTHS, caches=caches)
    for i, n in enumerate(LENGTHS):
        assert_same_bits(states[i, :n].copy(), model(IDS[i, :n]))
    if cached:
        more = model(IDS[:, :3], lengths=[1, 2, 0, 3], caches=caches)
        for i, n in enumerate([1, 2, 0, 3]):
            whole = np.concatenate([IDS[i, : LENGTHS[i]], IDS[i, :n]])
            expected = model(whole)[LENGTHS[i] :]
            assert_same_bits(more[i, :n].copy(), expected)


def test_lengths_of_all_combinations_are_as_alone():
    model = bert()
    expected = [[model(row[:n]) for n in range(4)] for row in IDS[:3]]
    for lengths in itertools.product(range(4), repeat=3):
        states = model(IDS[:3, :3], lengths=lengths)
        for i, n in enumerate(lengths):
            assert_same_bits(states[i, :n].copy(), expected[i][n])
