"""Calls with caches run layers in fewer steps, with the bits of the parts."""

import contextlib
import copy
import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
from support.arrays import normal
from support.comparisons import assert_same_bits

from attnpy import _attnpy, _parameters
from attnpy.blocks import Decoder, FeedForward, RMSNorm, decoder
from attnpy.layers import MultiHeadAttention
from attnpy.models import CausalDecoder
from attnpy.pages import PagedKVCache
from attnpy.positions import Rotary

IDS = np.random.default_rng(0).integers(0, 50, (2, 9))

LLAMA = {"norm": "rms", "activation": "swiglu", "bias": False, "rotary": Rotary(8)}
GEMMA = {**LLAMA, "activation": "geglu_tanh"}
DYNAMIC = {
    "rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4
}  # fmt: skip
MODELS = {
    "Llama": LLAMA,
    "Qwen 2": {**LLAMA, "qkv_bias": True},
    "Qwen 3": {**LLAMA, "qk_norm": True},
    "Gemma 2": {
        **GEMMA, "norm_after": True, "softcap": 5.0, "logit_softcap": 3.0,
        "window": [(3, 0), None], "scale": 0.3, "embedding_scale": 5.0,
    },
    "Gemma 3": {
        **GEMMA, "norm_after": True, "qk_norm": True, "window": [None, (2, 0)],
        "rotary": [Rotary(8), Rotary(8, base=100)],
    },
    "OLMo 2": {**LLAMA, "norm_after": "only", "qk_norm": "all heads"},
    "Granite": {**LLAMA, "residual_scale": 0.2, "scale": [0.1, 0.2]},
    "GPT-2": {"activation": "gelu_tanh", "max_length": 20},
    "GPT-NeoX": {"parallel": True, "rotary": Rotary(8, rotary_dim=4)},
    "Phi": {"parallel": "one norm", "rotary": Rotary(8, interleaved=True)},
    "post-norm": {"norm_first": False, "max_length": 20},
    "dynamic": {**LLAMA, "rotary": Rotary(8, scaling=DYNAMIC)},
    "float64": {**LLAMA, "dtype": np.float64},
    "bfloat16": {**LLAMA, "dtype": "bfloat16"},
    "float16": {**LLAMA, "dtype": np.float16},
}  # fmt: skip
FORMS = {
    "packed": lambda model: model.pack(),
    "8 bits": lambda model: model.quantize(bits=8),
    "4 bits": lambda model: model.quantize(bits=4, group=32, activations="int8"),
}


def make(**options):
    options = {"num_kv_heads": 2, **options}
    model = CausalDecoder(
        2, 32, 4, 64, vocab_size=50, rng=np.random.default_rng(1), **options
    )
    for i, array in enumerate(model.parameters().values()):
        if array.ndim == 1:  # norms and biases
            array[...] = 1 + normal(*array.shape, seed=i) / 4
    return model


@contextlib.contextmanager
def in_parts():
    """Within this, stacks call their layers one by one, and these their parts."""
    with (
        mock.patch.object(Decoder, "_together", lambda *_: None),
        mock.patch.object(decoder, "_is_plain", lambda layer: False),
    ):
        yield


def answer(model, caches, sizes=(4, 1, 1, 1, 2)):
    """The states of so many tokens after each other, and what the caches have then."""
    states, first = [], 0
    for n in sizes:
        states.append(model(IDS[:, first : first + n], caches=caches))
        first += n
    kept = [(x.key, x.value, x.key_scale, x.value_scale) for x in caches]
    return np.concatenate(states, axis=1), kept


def assert_as_in_parts(model, make_caches, run=answer):
    actual, kept = run(model, make_caches())
    with in_parts():
        expected, as_parts = run(model, make_caches())
    assert_same_bits(actual, expected)
    for one, other in zip(kept, as_parts, strict=True):
        for array, its in zip(one, other, strict=True):
            assert (array is None) == (its is None)
            if array is not None:
                assert_same_bits(np.array(array), np.array(its))


@pytest.mark.quick
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_the_bits_are_those_of_the_parts(options):
    model = make(**options)
    assert all(map(decoder._is_plain, model.decoder.layers))
    assert_as_in_parts(model, lambda: model.new_caches(2, 9))


@pytest.mark.quick
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_all_layers_are_one_call_of_c(options):
    model, calls = make(**options), []
    stack = _attnpy.stack

    def counted(*arguments):
        calls.append(result := stack(*arguments))
        return result

    with (
        mock.patch.object(_attnpy, "stack", counted),
        mock.patch.object(_attnpy, "layer", None),
        mock.patch.object(_attnpy, "feed_forward", None),
    ):
        answer(model, model.new_caches(2, 9))
    assert len(calls) == 5
    assert all(type(result) is np.ndarray for result in calls)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("dtype", [np.float32, "bfloat16"])
def test_frozen_matrices_have_the_bits_of_the_parts(form, dtype):
    for options in (LLAMA, MODELS["GPT-2"]):
        model = make(**options, dtype=dtype)
        form(model)
        assert_as_in_parts(model, lambda model=model: model.new_caches(2, 9))


@pytest.mark.quick
def test_caches_of_any_kind():
    model = make(**LLAMA)
    for options in ({"dtype": np.int8}, {"dtype": np.float16}, {"dtype": np.float64}):
        assert_as_in_parts(
            model, lambda options=options: model.new_caches(2, 9, **options)
        )
    assert_as_in_parts(model, lambda: model.new_caches(2, 1, growable=True))
    assert_as_in_parts(
        model,
        lambda: [PagedKVCache(pool, 2) for pool in model.new_page_pools(4)],
    )

    def of_two_lengths(model, caches):
        model(IDS[:, :4], lengths=[4, 2], caches=caches)
        return answer(model, caches)

    assert_as_in_parts(model, lambda: model.new_caches(2, 13), of_two_lengths)


def test_caches_that_differ_between_layers():
    model = make(**LLAMA)

    def of_two_lengths(model, caches):
        model.decoder.layers[1](normal(2, 3, 32), cache=caches[1])
        return answer(model, caches)

    assert_as_in_parts(model, lambda: model.new_caches(2, 12), of_two_lengths)


@pytest.mark.quick
def test_options_of_a_stack():
    stack = Decoder(2, 32, 4, 64, cross_attention=False, rng=np.random.default_rng(2))
    x = normal(1, 5, 32)
    for options in (
        {},
        {"mask": np.tri(5, dtype=bool)},
        {"bias": normal(4, 5, 5), "sinks": normal(4)},
        {"window": (2, 0), "scale": 0.3, "softcap": 2.0, "rotary": Rotary(8)},
        {"kv_lengths": 3},
        {"q_offset": 7},
        {"num_threads": 2},
    ):

        def run(tokens, options=options):
            caches = stack.new_caches(1, 5)
            return stack(tokens, caches=caches, **options), caches[1].key

        for tokens in (x, x[0], x.astype(np.float16), (8 * x).astype(int)):
            found = run(tokens)
            with in_parts():
                expected = run(tokens)
            assert_same_bits(found[0], expected[0])
            assert_same_bits(np.array(found[1]), np.array(expected[1]))


def test_numbers_of_several_dtypes_in_a_stack():
    stack = Decoder(
        3, 32, 4, 64, cross_attention=False, norm_first=True,
        rng=np.random.default_rng(2),
    )  # fmt: skip
    first, second, _ = stack.layers
    second.self_attention.W_q = second.self_attention.W_q.astype(np.float64)
    first.norm_1.weight = first.norm_1.weight.astype(np.float64)
    second.norm_3.weight = second.norm_3.weight.tolist()

    def run():
        caches, x = stack.new_caches(1, 5), normal(1, 5, 32)
        rotary = Rotary(8)
        steps = [stack(x[:, [i]], caches=caches, rotary=rotary) for i in range(5)]
        return np.concatenate(steps, axis=1)

    found = run()
    with in_parts():
        assert_same_bits(found, run())


def parts_of(model):
    """All that has parameters in the layers of a model."""
    for layer in model.decoder.layers:
        mha = layer.self_attention
        norms = layer.norm_1, layer.norm_3, layer.after_1, layer.after_3
        yield from (mha, mha.q_norm, mha.k_norm, layer.feed_forward, *norms)
    yield model.decoder.norm


@pytest.mark.parametrize("form", [None, *FORMS.values()], ids=[None, *FORMS])
def test_parameters_that_are_replaced_between_tokens(form):
    """Nothing of a token is kept for the next one but its keys and values."""
    model = make(**MODELS["Gemma 3"], qkv_bias=True)
    if form is not None:
        form(model)
    caches = model.new_caches(2, 40, dtype=np.float32)
    model(IDS[:, :4], caches=caches)
    places = [
        (owner, name)
        for owner in parts_of(model)
        for name, value in vars(owner).items()
        if isinstance(value, (np.ndarray, *_parameters.FROZEN))
    ]
    assert len(places) > 30
    for owner, name in places:
        before = [cache.copy() for cache in caches]
        plain = model(IDS[:, 4:5], caches=[cache.copy() for cache in caches])
        value = _parameters.as_array(getattr(owner, name))
        old = getattr(owner, name)
        setattr(owner, name, value + 0.25 * (1 + abs(value)))
        found = model(IDS[:, 4:5], caches=caches)
        other = copy.deepcopy(model)
        with in_parts():
            assert_same_bits(found, other(IDS[:, 4:5], caches=before))
        assert (found != plain).any(), name
        setattr(owner, name, old)
        for cache in caches:
            cache.truncate(4)
        assert_same_bits(
            model(IDS[:, 4:5], caches=[cache.copy() for cache in caches]), plain
        )


def exchange_parts(layer, one, other):
    """Give a packed matrix the parts of another one of its shape, but nothing else."""
    parts = getattr(layer, other)._parts
    object.__setattr__(getattr(layer, one), "_parts", parts)


def test_numbers_that_change_in_place_and_settings():
    model = make(**MODELS["Gemma 3"])
    layer = model.decoder.layers[0]
    changes = (
        lambda: layer.self_attention.W_q.__imul__(1.5),
        lambda: vars(layer.self_attention).update(W_k=-layer.self_attention.W_k),
        lambda: model.decoder.layers.reverse(),
        lambda: layer.norm_1.weight.__imul__(1.5),
        lambda: setattr(layer.norm_3, "eps", 0.5),
        lambda: setattr(layer, "window", (1, 0)),
        lambda: setattr(layer, "scale", 0.1),
        lambda: setattr(layer, "rotary", Rotary(8, base=7)),
        lambda: setattr(layer, "after_1", None),
        lambda: setattr(layer, "residual_scale", 0.5),
        lambda: setattr(layer.self_attention, "q_norm", None),
        lambda: setattr(layer.feed_forward, "activation", "swiglu"),
        lambda: setattr(layer, "norm_1", RMSNorm(32, eps=0.3)),
        lambda: setattr(layer, "feed_forward", FeedForward(32, 8, activation="relu")),
        lambda: model.load_state_dict(
            {name: x + 0.125 for name, x in model.state_dict().items()}
        ),
        lambda: model.pack(),
        lambda: exchange_parts(layer.self_attention, "W_k", "W_v"),
        lambda: model.quantize(bits=4, group=32),
        lambda: exchange_parts(layer.self_attention, "W_v", "W_k"),
    )
    caches = model.new_caches(2, 9)
    model(IDS[:, :4], caches=caches)
    for change in changes:
        change()
        copies = [cache.copy() for cache in caches]
        found = model(IDS[:, 4:5], caches=[cache.copy() for cache in caches])
        with in_parts():
            assert_same_bits(found, model(IDS[:, 4:5], caches=copies))


@pytest.mark.quick
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_cache_of_another_dtype_than_the_scale_of_results(norm_first):
    options = {"cross_attention": False, "norm_first": norm_first}
    rng = np.random.default_rng(0)
    stack = Decoder(2, 16, 2, 24, dtype=np.float16, rng=rng, **options)
    for layer in stack.layers:
        layer.residual_scale = 0.3
    x = rng.standard_normal((2, 3, 16)).astype(np.float16)
    caches, others = (stack.new_caches(2, 3, dtype=np.float32) for _ in range(2))
    found = stack(x, caches=caches)
    with in_parts():
        assert_same_bits(found, stack(x, caches=others))


@pytest.mark.quick
@pytest.mark.parametrize("i", [0, 1])
def test_norms_of_another_kind_are_refused_by_name(i):
    model = make(**MODELS["Qwen 3"])
    model.decoder.layers[i].self_attention.k_norm = 3
    for options in ({}, {"caches": model.new_caches(2, 9)}):
        with pytest.raises(TypeError, match=r"^k_norm: expected an attnpy\.blocks"):
            model(IDS[:, :1], **options)


@pytest.mark.quick
def test_parts_of_ones_own_are_called():
    calls = []

    class Counting(FeedForward):
        def __call__(self, x, **options):
            calls.append("feed")
            return super().__call__(x, **options)

    class Norm(RMSNorm):
        def __call__(self, x, residual=None, **options):
            calls.append("norm")
            return 2 * super().__call__(x, residual, **options)

    model = make(**LLAMA)
    layer = model.decoder.layers[0]
    expected, _ = answer(model, model.new_caches(2, 9))
    network = Counting(32, 64, activation="swiglu", bias=False)
    network.load_state_dict(layer.feed_forward.state_dict())
    layer.feed_forward = network
    assert_same_bits(answer(model, model.new_caches(2, 9))[0], expected)
    assert calls == ["feed"] * 5
    layer.norm_1 = Norm(32)
    assert (answer(model, model.new_caches(2, 9))[0] != expected).any()
    assert calls.count("norm") == 5

    called = MultiHeadAttention.__call__

    def watched(self, *arguments, **options):
        calls.append("attend")
        return called(self, *arguments, **options)

    model = make(**LLAMA)
    with mock.patch.object(MultiHeadAttention, "__call__", watched):
        assert_same_bits(answer(model, model.new_caches(2, 9))[0], expected)
    assert calls.count("attend") == 10


@pytest.mark.quick
def test_errors_are_those_of_the_parts():
    model = make(**LLAMA)
    other = make(**LLAMA, head_dim=16)
    full = model.new_caches(2, 3)
    model(IDS[:, :3], caches=full)
    mixed = [full[0], model.new_caches(2, 9)[1]]
    layer = model.decoder.layers[1]

    def spoilt():
        layer.feed_forward.W_gate = None
        try:
            model(IDS[:, :1], caches=model.new_caches(2, 3))
        finally:
            layer.feed_forward.W_gate = gate

    gate = layer.feed_forward.W_gate
    for call in (
        lambda: model(IDS[:, :1], caches=full),
        lambda: model(IDS[:, :1], caches=mixed),
        lambda: model(IDS[:, :1], caches=other.new_caches(2, 3)),
        lambda: model(IDS[:, :1], caches=model.new_caches(2, 3), num_threads=0),
        lambda: model.decoder(normal(2, 1, 31), caches=model.new_caches(2, 3)),
        lambda: model.decoder(
            normal(2, 1, 32), caches=model.new_caches(2, 3), rotary=Rotary(4)
        ),
        spoilt,
    ):
        with pytest.raises((TypeError, ValueError)) as found:
            call()
        with in_parts(), pytest.raises((TypeError, ValueError)) as expected:
            call()
        assert str(found.value) == str(expected.value)
    assert [len(cache.key[0, 0]) for cache in full] == [3, 3]
    assert mixed[1].lengths.tolist() == [0, 0]


@pytest.mark.quick
def test_an_interrupt_leaves_the_caches_as_they_were():
    model = make(**LLAMA)
    caches = model.new_caches(2, 9)
    answer(model, caches, (4,))
    with (
        mock.patch.object(_attnpy, "stack", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        model(IDS[:, 4:5], caches=caches)
    assert [cache.lengths.tolist() for cache in caches] == [[4, 4], [4, 4]]


@pytest.mark.quick
def test_caches_of_other_sizes_have_the_bits_and_errors_of_the_parts():
    model, other = make(**LLAMA), make(**LLAMA, head_dim=16)
    sizes = (9, 12), (12, 9)
    for n, dtypes in itertools.product(sizes, ((np.int8, None), (None, np.float16))):

        def new(n=n, dtypes=dtypes):
            kinds = [model.new_caches(2, n[i], dtype=dtypes[i])[i] for i in range(2)]
            return [kinds[0], kinds[1]]

        assert_as_in_parts(model, new)
    wrong = [model.new_caches(2, 9)[0], other.new_caches(2, 9)[1]]
    with pytest.raises(ValueError, match="cache: expected"):
        model(IDS[:, :1], caches=wrong)
    assert [cache.lengths.tolist() for cache in wrong] == [[0, 0], [0, 0]]


@pytest.mark.quick
def test_an_error_of_other_code_is_raised_though_the_parts_have_none():
    model = make(**LLAMA)
    caches = model.new_caches(2, 9)
    with (
        mock.patch.object(_attnpy, "stack", side_effect=ValueError("a handler's")),
        pytest.raises(ValueError, match="a handler's"),
    ):
        model(IDS[:, :3], caches=caches)
    assert [cache.lengths.tolist() for cache in caches] == [[0, 0], [0, 0]]
    assert_as_in_parts(model, lambda: [cache.copy() for cache in caches])


@pytest.mark.quick
def test_copies_pickles_and_threads():
    model = make(**LLAMA)
    expected, _ = answer(model, model.new_caches(2, 9))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same_bits(answer(other, other.new_caches(2, 9))[0], expected)
    caches = model.new_caches(2, 9)
    answer(model, caches)
    again = pickle.loads(pickle.dumps(caches))
    assert all(cache.lengths.tolist() == [9, 9] for cache in again)
    caches[0].truncate(2)
    assert [cache.lengths.tolist() for cache in caches] == [[2, 2], [9, 9]]
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(answer, model, model.new_caches(2, 9)) for _ in range(20)]
        for run in runs:
            assert_same_bits(run.result()[0], expected)


@pytest.mark.quick
def test_sinks_are_those_of_each_layer():
    model = make(**LLAMA)
    for i, layer in enumerate(model.decoder.layers):
        layer.self_attention.sinks = normal(4, seed=i)
    assert_as_in_parts(model, lambda: model.new_caches(2, 9))
    model.decoder.layers[0].self_attention.sinks = None
    assert_as_in_parts(model, lambda: model.new_caches(2, 9))
