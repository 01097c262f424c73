"""What all modules say of the same wrong arguments, in the terms of the call."""

import copy
import inspect
import operator
import pathlib
import pickle
import re

import numpy as np
import pytest
from support import families, public
from support.comparisons import assert_same_parameters
from support.errors import refused
from test_names import from_types

import attnpy
from attnpy import (
    _checks,
    _keywords,
    blocks,
    checkpoints,
    classic,
    masks,
    models,
    norms,
    plot,
    positions,
    training,
)
from attnpy.cache import KVCache
from attnpy.layers import MultiHeadAttention, SelfAttention
from attnpy.pages import PagedKVCache, PagePool
from attnpy.random import dropout_mask
from attnpy.view import head_view

pytestmark = pytest.mark.quick

X = np.ones((2, 4))
EYE = np.eye(4)
ROWS = np.ones((1, 1, 2, 4))


def view(*shape, dtype=np.float32):
    """Ones of any shape in a few bytes."""
    return np.broadcast_to(np.ones((), dtype), shape)


ONES = view(10**9, 10**6, dtype=np.int64)


def masked(array):
    """The same numbers, the first of which are to be left alone."""
    return np.ma.masked_array(array, np.arange(np.size(array)).reshape(array.shape) < 1)


def encoder():
    return models.BertEncoder(1, 4, 1, 4, vocab_size=9)


MASKED = {
    "x": [
        lambda a: MultiHeadAttention(4, 2)(a),
        lambda a: blocks.EncoderLayer(4, 2, 4)(a),
        lambda a: blocks.Encoder(1, 4, 2, 4)(a),
        lambda a: blocks.DecoderLayer(4, 2, 4, cross_attention=False)(a),
        lambda a: blocks.Decoder(1, 4, 2, 4, cross_attention=False)(a),
        lambda a: blocks.FeedForward(4, 4)(a),
        lambda a: positions.Rotary(4)(a),
    ],
    "context": [
        lambda a: MultiHeadAttention(4, 2).project_context(a),
        lambda a: blocks.DecoderLayer(4, 2, 4)(X, a),
    ],
    "query": [
        lambda a: classic.additive_attention(a, X, X, EYE, EYE, np.ones(4)),
        lambda a: classic.multiplicative_attention(a, X, X, EYE),
    ],
    "W": [lambda a: classic.multiplicative_attention(X[:, :2], X, X, a)],
    "bias": [lambda a: SelfAttention(4, 2)(X, bias=a[:, :2])],
    "table": [lambda a: positions.relative_bias(a, 2, 2)],
    "logits": [lambda a: models.sample(a, temperature=0)],
    "weights": [
        lambda a: plot.heat_map(a),
        lambda a: plot.entropy_bits(a),
        lambda a: head_view(a, ["a", "b"], list("abcd")),
    ],
    "encoding": [lambda a: plot.position_image(a)],
    r"outputs\[0\]": [lambda a: attnpy.merge([a], [np.ones(2)])],
    r"lses\[1\]": [lambda a: attnpy.merge([ROWS[0]] * 2, [X[:1, :2], a[:1, :2]])],
    r"state\['weight'\]": [
        lambda a: norms.RMSNorm(4).load_state_dict({"weight": a[0]})
    ],
    "key": [
        lambda a: KVCache(1, 1, 2, 4).append(a[None, None], ROWS),
        lambda a: KVCache(1, 1, 2, 4, key=a[None, None]),
    ],
}

MASKED_INTEGERS = {
    "token_ids": [lambda a: encoder()(a)],
    "token_types": [lambda a: encoder()([1, 2], token_types=a)],
    "lengths": [
        lambda a: encoder()([[1], [2]], lengths=a),
        lambda a: KVCache(2, 1, 3, 4, lengths=a),
    ],
    "kv_lengths": [lambda a: masks.padding(a, 3)],
    "positions": [
        lambda a: positions.Learned(3, 4)(a),
        lambda a: positions.Rotary(4)(X, a),
    ],
    "q_offset": [
        lambda a: masks.causal(2, q_offset=a),
        lambda a: MultiHeadAttention(4, 2)(
            np.ones((2, 2, 4)), q_offset=a, rotary=positions.Rotary(2)
        ),
    ],
    "stop": [
        lambda a: models.CausalDecoder(1, 4, 1, 4, vocab_size=9).generate(
            [1], 1, stop=a
        )
    ],
}

MASKED_BOOLEANS = {
    "token_mask": [lambda a: encoder()([1, 2], token_mask=a[0])],
    "mask": [
        lambda a: masks.show(a),
        lambda a: plot.mask_image(a),
        lambda a: SelfAttention(4, 2)(X, mask=a),
        lambda a: classic.multiplicative_attention(X, X, X, EYE, mask=a),
    ],
}


def grown_cache(n_tokens):
    cache = KVCache(1, 1, 0, 4, growable=True)
    cache.append(view(1, 1, n_tokens, 4), view(1, 1, n_tokens, 4))


@pytest.mark.parametrize(
    ("name", "array", "calls"),
    [(name, masked(X), calls) for name, calls in MASKED.items()]
    + [(name, masked(np.array([1, 1])), c) for name, c in MASKED_INTEGERS.items()]
    + [(name, masked(np.eye(2) > 0), c) for name, c in MASKED_BOOLEANS.items()],
    ids=[*MASKED, *MASKED_INTEGERS, *MASKED_BOOLEANS],
)
def test_an_array_with_a_mask_of_its_own_is_refused(name, array, calls):
    for call in calls:
        call(np.asarray(array))
        with refused(TypeError, name) as caught:
            call(array)
        assert "MaskedArray" in str(caught.value)


def test_so_are_lists_of_such_arrays():
    with refused(TypeError, "x"):
        MultiHeadAttention(4, 2)(list(masked(X)))
    with refused(TypeError, "kv_lengths"):
        masks.padding([1, np.ma.masked], 3)


NO_ARRAYS = {
    "layer": ("x", "an array", attnpy.MultiHeadAttention(6, 2)),
    "gradients": ("x", "an array", attnpy.MultiHeadAttention(6, 2).vjp),
    "stack": ("x", "an array", attnpy.blocks.Encoder(1, 6, 2, 6)),
    "context": ("context", "an array", attnpy.MultiHeadAttention(6, 2).project_context),
    "logits": ("logits", "an array", lambda x: attnpy.training.cross_entropy(x, [0])),
    "tokens": ("token_ids", "integers", attnpy.blocks.Embedding(3, 2)),
}


@pytest.mark.parametrize(
    "given", [None, "abc", {"x": 1}, object()], ids=lambda x: type(x).__name__
)
@pytest.mark.parametrize("name", NO_ARRAYS)
def test_what_is_no_array_is_named_by_its_type(name, given):
    argument, kind, call = NO_ARRAYS[name]
    got = "None" if given is None else type(given).__name__
    with pytest.raises(TypeError, match=rf"^{argument}: expected {kind}, got {got}$"):
        call(given)


@pytest.mark.parametrize(
    "given", ["abc", b"abc", {"x": 1}, object()], ids=lambda x: type(x).__name__
)
def test_so_does_the_module_in_c(given):
    got = rf"got {type(given).__name__}$"
    with pytest.raises(TypeError, match=rf"^kv_lengths: expected integers, {got}"):
        attnpy.attention(ROWS, ROWS, ROWS, kv_lengths=given)
    with pytest.raises(TypeError, match=rf"^query: expected float64, .*, {got}"):
        attnpy.attention(given, ROWS, ROWS)


def test_an_integer_of_many_digits_is_no_other_kind():
    with pytest.raises(ValueError, match=r"^kv_lengths: .*64-bit integers, got 1000"):
        attnpy.attention(ROWS, ROWS, ROWS, kv_lengths=10**30)


def test_ragged_lists_name_the_argument():
    ragged = [[1.0, 2.0, 3.0, 4.0], [1.0]]
    with refused(ValueError, "x"):
        MultiHeadAttention(4, 2)(ragged)
    with refused(ValueError, "query"):
        classic.multiplicative_attention(ragged, X, X, EYE)
    with refused(ValueError, "positions"):
        positions.Learned(3, 4)([[0], [1, 2]])


HUGE = 10**12


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("SelfAttention", lambda: SelfAttention(HUGE, HUGE)),
        ("MultiHeadAttention", lambda: MultiHeadAttention(10**9, 8)),
        ("MultiHeadAttention", lambda: MultiHeadAttention(4, 2, context_dim=10**15)),
        ("LayerNorm", lambda: norms.LayerNorm(10**15)),
        ("RMSNorm", lambda: norms.RMSNorm(10**30)),
        ("FeedForward", lambda: blocks.FeedForward(4, 10**15)),
        ("num_layers", lambda: blocks.Encoder(HUGE, 8, 2, 8)),
        ("num_layers", lambda: blocks.Decoder(10**15, 8, 2, 8, shared=True)),
        ("KVCache", lambda: KVCache(1, 1, 10**18, 64)),
        ("KVCache", lambda: KVCache(1, 1, 10, HUGE, 10**30)),
        (
            "vocab_size, embed_dim",
            lambda: models.BertEncoder(1, 4, 1, 4, vocab_size=10**15),
        ),
        (
            "max_length, embed_dim",
            lambda: models.CausalDecoder(1, 4, 1, 4, vocab_size=9, max_length=10**15),
        ),
        (
            "KVCache",
            lambda: models.CausalDecoder(1, 4, 1, 4, vocab_size=9).generate(
                [1], 10**18
            ),
        ),
        (
            "num_samples, num_tokens",
            lambda: models.CausalDecoder(1, 4, 1, 4, vocab_size=9).generate(
                [1], 2, temperature=1, rng=np.random.default_rng(0), num_samples=10**30
            ),
        ),
        ("num_queries", lambda: positions.query_positions(10**15, 3)),
        ("length, embed_dim", lambda: positions.sinusoidal(HUGE, HUGE)),
        ("max_length, embed_dim", lambda: positions.Learned(HUGE, 10**6)),
        ("num_heads", lambda: positions.alibi_slopes(10**15)),
        ("num_queries, num_keys", lambda: positions.alibi_bias(2, HUGE, HUGE)),
        ("num_queries, num_keys", lambda: positions.relative_buckets(10**9, 10**9)),
        ("num_queries, num_keys", lambda: positions.relative_bias(EYE, 10**9, 10**9)),
        ("head_dim", lambda: positions.Rotary(10**15)),
        ("num_queries, num_keys", lambda: masks.causal(10**9)),
        ("num_queries, num_keys", lambda: masks.window(10**9, 10**9, (1, 1))),
        ("num_queries, num_keys", lambda: masks.prefix_lm(10**9, 1)),
        ("num_keys", lambda: masks.padding(1, 10**15)),
        ("KVCache", lambda: KVCache(10**30, 1, 0, 64)),
        ("max_length, embed_dim", lambda: positions.Learned(0, 10**30)),
        ("total", lambda: masks.document_ids([1], 10**15)),
        ("batch_size", lambda: PagedKVCache(PagePool(1, 1, 1), 2**40)),
        ("batch_size", lambda: PagedKVCache(PagePool(1, 1, 1), 10**30)),
        ("num_keys", lambda: masks.causal(0, _checks._memory_size() // 4)),
        ("ids", lambda: masks.document(ONES)),
        ("q_offset, num_queries, num_keys", lambda: masks.causal(8, q_offset=ONES)),
        (
            "q_offset, num_queries, num_keys",
            lambda: masks.window(8, 8, (1, 1), q_offset=ONES),
        ),
        ("kv_lengths, num_keys", lambda: masks.padding(ONES, 8)),
        ("prefix_length, length", lambda: masks.prefix_lm(8, ONES)),
        ("shape", lambda: dropout_mask((HUGE, HUGE), 0.1, 0)),
        ("shape", lambda: dropout_mask((1, HUGE, 1, 10**9, 0), 0.1, 0)),
        ("positions", lambda: positions.Rotary(4).tables(ONES)),
        ("positions", lambda: positions.Learned(4, 4)(ONES)),
        (
            "query, key, value",
            lambda: classic.additive_attention(
                view(10**6, 1, 4, dtype=np.float64),
                view(10**6, 1, 4, dtype=np.float64),
                view(10**6, 1, 10**12, dtype=np.float64),
                EYE,
                EYE,
                np.ones(4),
            ),
        ),
        (
            "value",
            lambda: classic.additive_attention(
                np.ones((1, 4), np.float64),
                np.ones((1, 4), np.float64),
                view(1, 2**60),
                EYE,
                EYE,
                np.ones(4),
            ),
        ),
        ("cache", lambda: grown_cache(2**50)),
    ],
)
def test_what_no_memory_can_hold_is_refused_at_once(name, call):
    with refused(MemoryError, name) as caught:
        call()
    assert re.search(r"need \d+ bytes$", str(caught.value))


def test_results_whose_bytes_overflow_are_refused_by_name():
    rows, wide, none = view(1, 2**40, 4), view(1, 1, 2**40), view(1, 2**40, 0)
    for name, call in (
        ("result", lambda: attnpy.attention(rows, view(1, 1, 4), wide)),
        ("result", lambda: attnpy.attend_partial(rows, view(1, 1, 4), wide)),
        (
            "weights",
            lambda: attnpy.attention(rows, rows, none, return_weights=True),
        ),
        ("result", lambda: blocks.FeedForward(4, 2**22)(view(2**40, 4))),
        ("x", lambda: MultiHeadAttention(4, 2)(view(2**40, 2**18, 4))),
    ):
        with refused(MemoryError, name):
            call()


def test_a_mask_of_no_weights_is_there_at_once():
    assert dropout_mask((1, 10**9, 1, 0), 0.1, 0).shape == (1, 10**9, 1, 0)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("outputs", lambda bad: attnpy.merge(bad, [])),
        ("lses", lambda bad: attnpy.merge([X], bad)),
        ("query_labels", lambda bad: plot.heat_map(EYE, bad)),
        ("query_labels", lambda bad: masks.show(EYE > 0, bad)),
        ("query_labels", lambda bad: head_view(EYE, bad)),
    ],
)
def test_what_is_no_sequence_is_named(name, call):
    with refused(TypeError, name):
        call(5)


@pytest.mark.parametrize("window", ["10", {1, 2}, np.array(1), 3])
def test_a_window_has_a_left_and_a_right(window):
    with refused(TypeError, "window"):
        masks.window(3, 3, window)


@pytest.mark.parametrize(("mode", "error"), [("table", ValueError), (X, TypeError)])
def test_a_configuration_is_printed_or_returned(mode, error):
    with refused(error, "mode"):
        attnpy.show_config(mode=mode)


BERT = {"vocab_size": 9, "max_length": 8}
WRONG = {
    "pooler_norm": lambda: models.BertEncoder(1, 4, 1, 4, **BERT, pooler_norm="x"),
    "token_dense": lambda: models.BertEncoder(1, 4, 1, 4, **BERT, token_dense=1),
    "word_dense": lambda: models.BertEncoder(1, 4, 1, 4, **BERT, word_dense=None),
    "word_tied": lambda: models.BertEncoder(1, 4, 1, 4, **BERT, word_tied=[]),
    "word_bias": lambda: models.BertEncoder(1, 4, 1, 4, **BERT, word_bias=X),
    "return_weights": lambda: models.BertEncoder(1, 4, 1, 4, **BERT)(
        [1], return_weights=X
    ),
    "return_hidden_states": lambda: models.BertEncoder(1, 4, 1, 4, **BERT)(
        [1], return_hidden_states=X
    ),
    "softcap": lambda: models.CausalDecoder(1, 4, 1, 4, vocab_size=9, softcap="30"),
    "qk_norm": lambda: models.CausalDecoder(1, 4, 1, 4, vocab_size=9, qk_norm=X),
    "norm_after": lambda: models.CausalDecoder(1, 4, 1, 4, vocab_size=9, norm_after=X),
    "parallel": lambda: models.CausalDecoder(1, 4, 1, 4, vocab_size=9, parallel=X),
    "temperature": lambda: models.CausalDecoder(1, 4, 1, 4, vocab_size=9).generate(
        [1], 2, temperature=[[1, 2], [3]]
    ),
    "documents": lambda: models.maxsim(X, None),
    "image_mean": lambda: models.ImageProcessor(image_mean=np.array(0.5)),
    "images": lambda: models.ImageProcessor()(np.array(1.0)),
    "no_decay": lambda: training.AdamW({"x": np.ones(2)}, no_decay=[["x"]]),
    "optimizer": lambda: training.save("run", {"x": np.ones(2)}, {}),
    "num_class_tokens": lambda: models.ImageEncoder(1, 4, 1, 4, num_class_tokens=X),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_models_wrong_argument_is_named(name):
    with refused(TypeError, name):
        WRONG[name]()


def test_an_option_of_what_a_model_lacks_is_checked_too():
    with refused(ValueError, "softcap"):
        models.CausalDecoder(1, 4, 1, 4, vocab_size=9, softcap=-1)
    with refused(ValueError, "expert_dim"):
        models.CausalDecoder(1, 4, 1, 4, vocab_size=9, expert_dim=X)


def layers():
    return [
        SelfAttention(4, 2),
        MultiHeadAttention(4, 2),
        norms.LayerNorm(4),
        norms.RMSNorm(4),
        blocks.FeedForward(4, 4),
        blocks.EncoderLayer(4, 2, 4),
        blocks.Encoder(1, 4, 2, 4),
        blocks.DecoderLayer(4, 2, 4),
        blocks.Decoder(1, 4, 2, 4),
        encoder(),
        models.CausalDecoder(1, 4, 1, 4, vocab_size=9, max_length=3),
    ]


@pytest.mark.parametrize(
    "made",
    [
        positions.Learned(3, 4),
        positions.Rotary(4),
        positions.Disentangled(np.ones((4, 3))),
        KVCache(1, 1, 2, 4),
        head_view([[1.0]], ["a"]),
    ],
)
def test_tables_and_caches_have_no_other_attributes_either(made):
    with pytest.raises(AttributeError, match=r"^\w+: expected .*, got 'length'$"):
        made.length = 2
    assert set(vars(copy.deepcopy(made))) == set(type(made).__annotations__)


def test_plans_and_checkpoints_have_no_other_attributes_either():
    from attnpy.checkpoints import Checkpoint

    pytest.importorskip("safetensors")
    for made in (attnpy.Plan(X, X, X), Checkpoint()):
        with pytest.raises(AttributeError, match="'length'"):
            made.length = 2


@pytest.mark.parametrize("layer", layers(), ids=lambda layer: type(layer).__name__)
def test_a_layer_has_its_attributes_and_no_others(layer):
    with pytest.raises(AttributeError, match=r"^\w+: expected .*, got 'Wq'$"):
        layer.Wq = EYE
    assert not hasattr(layer, "Wq")
    for name, value in vars(layer).items():
        setattr(layer, name, value)
    assert set(vars(layer)) == set(type(layer).__annotations__)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_same_parameters(layer, other)
        with pytest.raises(AttributeError, match="expected"):
            other.Wq = EYE


def test_what_a_layer_computes_cannot_be_assigned():
    with pytest.raises(AttributeError, match="head_dim"):
        MultiHeadAttention(4, 2).head_dim = 3


def test_a_derived_layer_may_have_attributes_of_its_own():
    class Named(MultiHeadAttention):
        def __init__(self, name):
            super().__init__(4, 2)
            self.name = name

    assert Named("first").name == "first"


TORCH = (
    "is_causal",
    "attn_mask",
    "key_padding_mask",
    "need_weights",
    "average_attn_weights",
    "dropout_p",
    "enable_gqa",
)


@pytest.mark.parametrize("name", TORCH)
def test_keywords_of_pytorch_are_told_how_to_say_it_here(name):
    for call in (
        SelfAttention(4, 2),
        MultiHeadAttention(4, 2),
        blocks.EncoderLayer(4, 2, 4),
        blocks.Decoder(1, 4, 2, 4, cross_attention=False),
        lambda x, **options: attnpy.Plan(x, x, x, **options),
    ):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}': "):
            call(X, **{name: None})


RESULTS = (  # which functions return: nobody writes their fields
    "AttentionGradients",
    "blocks.ModelOutput",
    "layers.LayerGradients",
    "checkpoints.Family",
    "PartialAttention",
    "view.View",
)
# Only functions with other keywords have these, for which they call `refuse`.
OPTIONS = {
    "average_weights",
    "cache",
    "context_mask",
    "num_tokens",
    "return_scores",
    "rotary",
    "start",
}


def callables_with(own):
    """Public functions and methods with these parameters, which take no others."""
    for name, thing in public.callables().items():
        try:
            parameters = inspect.signature(thing).parameters
        except (TypeError, ValueError):
            continue
        kinds = {p.kind for p in parameters.values()}
        if set(own) <= set(parameters) and inspect.Parameter.VAR_KEYWORD not in kinds:
            yield name, thing, parameters


@pytest.mark.parametrize("line", _keywords.LINES, ids=lambda line: line[1])
def test_every_function_tells_keywords_of_others_what_to_write_here(line):
    own, elsewhere, said = line
    found = 0
    for name, thing, parameters in callables_with(own.split()):
        if not own or name.split(".index")[0].split(".count")[0] in RESULTS:
            continue
        for keyword in set(elsewhere.split()) - set(parameters):
            expected = _keywords.hint(keyword, parameters)
            with pytest.raises(TypeError) as caught:
                thing(*((X,) * 3 if name == "attention" else ()), **{keyword: None})
            assert str(caught.value).endswith(
                f"got an unexpected keyword argument {keyword!r}: {expected}"
            ), f"{name}: expected the decorator @_keywords.answering"
            found += 1
    sentence = said or f"write {own}="
    hints = {_keywords.hint(keyword, own.split()) for keyword in elsewhere.split()}
    assert hints == {sentence}
    typed = {name for _, name in from_types()}
    assert found or set(own.split()) <= OPTIONS | typed


def test_what_others_call_attention_is_told_its_name_here():
    for name, here in _keywords.NAMES.items():
        with pytest.raises(AttributeError, match=f"there is attnpy.{re.escape(here)}"):
            getattr(attnpy, name)
        assert not hasattr(attnpy, name)
        where = here.split(",")[0].split(" ")[0]
        assert callable(operator.attrgetter(where)(attnpy))


READERS = sorted(
    name
    for name in models.__all__
    if hasattr(getattr(models, name), "from_pretrained")
    and name != "ImageProcessor"  # made from sizes
)


@pytest.mark.parametrize("name", READERS)
def test_a_model_of_a_folders_name_tells_how_to_read_it(name):
    with pytest.raises(TypeError, match=f": {name}.from_pretrained.folder. reads"):
        getattr(models, name)("folder")


def test_what_has_a_way_of_its_own_says_so():
    layer = MultiHeadAttention(4, 2)
    with pytest.raises(TypeError, match=r"got a MultiHeadAttention: call its quantize"):
        attnpy.quantize(layer)
    with pytest.raises(TypeError, match=r"MultiHeadAttention: pass its state_dict\(\)"):
        checkpoints.load(layer, layer, "torch_attention")


def test_the_signature_of_attention_shows_its_own_keywords_only():
    parameters = inspect.signature(attnpy.attention).parameters
    assert "others" not in parameters
    assert list(parameters)[:4] == ["query", "key", "value", "mask"]


def test_an_error_inside_a_function_is_not_taken_for_a_keyword():
    with pytest.raises(TypeError, match=r"^mask: expected bool"):
        masks.show(np.ones((2, 2)))
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        masks.show()
    with pytest.raises(TypeError, match=r"'nonsense'$"):
        masks.show(np.ones((2, 2), bool), nonsense=1)


class Tensor:
    """As PyTorch's, of which NumPy can make no array."""

    def __init__(self, requires_grad):
        self.requires_grad = requires_grad
        self.dtype = "torch.bfloat16"

    def __array__(self, *_, **__):
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        raise TypeError("Got unsupported ScalarType BFloat16")


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_tensor_that_is_no_array_is_told_what_takes_it(requires_grad, monkeypatch):
    monkeypatch.setattr(Tensor, "__module__", "torch")
    tensor = Tensor(requires_grad)
    said = "requires a gradient" if requires_grad else "of torch.bfloat16"
    for call, name in (
        (lambda: attnpy.attention(tensor, X, X), "query"),
        (lambda: attnpy.attention(X, X, X, bias=[tensor]), "bias"),
        (lambda: SelfAttention(4, 2)(tensor), "x"),
        (lambda: masks.document(tensor), "ids"),
    ):
        with pytest.raises(TypeError, match=rf"^{name}: .*{said}: .*\.torch"):
            call()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("module", "device", "said"),
    [
        ("torch", "cuda:0", "torch.Tensor on device 'cuda:0', which x.cpu() copies"),
        ("torch", "meta", "torch.Tensor on device 'meta'$"),
        ("cupy", None, "cupy.ndarray, which x.get() copies there$"),
    ],
)
def test_an_array_on_a_gpu_is_told_how_it_comes_to_the_cpu(
    module, device, said, monkeypatch
):
    tensor = Tensor(requires_grad=False)
    tensor.device = device
    monkeypatch.setattr(Tensor, "__module__", module)
    said = "in the CPU's memory, got a " + re.escape(said).replace(r"\$", "$")
    for call, name in (
        (lambda: attnpy.attention(X, tensor, X), "key"),
        (lambda: attnpy.attention(X, X, X, bias=[tensor]), "bias"),
        (lambda: SelfAttention(4, 2)(tensor), "x"),
        (lambda: masks.document(tensor), "ids"),
    ):
        with pytest.raises(TypeError, match=rf"^{name}: expected an array {said}"):
            call()


def test_other_errors_of_an_object_stay_as_they_are():
    class Broken:
        def __array__(self, *_, **__):
            raise TypeError("broken")

    with pytest.raises(TypeError, match=r"^broken$"):
        attnpy.attention(Broken(), X, X)


def test_wrong_shapes_are_told_what_makes_them_right():
    q = np.ones((2, 6, 4, 8))  # (B, L, H, D)
    k = np.ones((2, 9, 4, 8))
    with pytest.raises(ValueError, match=r"np\.swapaxes\(x, -3, -2\)"):
        attnpy.attention(q, k, k)
    q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)
    mask = np.ones((2, 9), bool)
    with pytest.raises(ValueError, match=r"write it as \[:, None, None, :\]"):
        attnpy.attention(q, k, k, mask=mask)
    assert attnpy.attention(q, k, k, mask=mask[:, None, None, :]).shape == q.shape
    with pytest.raises(TypeError, match=r"^key: expected an array, got None$"):
        attnpy.attention(q, None, k)
    with pytest.raises(ValueError, match=r"^query: expected an array, or lists of"):
        attnpy.attention([[1.0, 2.0], [3.0]], k, k)


FROM_FOLDERS = [
    kind for kind in public.classes().values() if hasattr(kind, "from_pretrained")
]


@pytest.mark.parametrize("kind", FROM_FOLDERS)
def test_what_is_no_models_folder_is_refused_in_its_own_words(kind, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"^folder: .* with a (preprocessor_)?config\.json"
    ):
        kind.from_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text("{}")
    with pytest.raises(NotADirectoryError, match=r"^folder: .* got a file, "):
        kind.from_pretrained(file)
    file = file.rename(tmp_path / "model.gguf")
    with pytest.raises(NotADirectoryError, match=r"from_gguf reads GGUF files$"):
        kind.from_pretrained(file)
    with pytest.raises(ValueError, match=r"^folder: expected a path, got 'a\\x00b'$"):
        kind.from_pretrained("a\0b")


READERS = [
    checkpoints.read,
    checkpoints.read_config,
    checkpoints.load_gguf,
    checkpoints.Checkpoint,
    models.Prefix.load,
    lambda path: training.load(path, {"W": np.ones(3)}),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("path", [b"model", 3, None, "", "a\0b", "\ud800"])
def test_what_is_no_path_is_refused_in_its_own_words(read, path):
    error = ValueError if isinstance(path, str) else TypeError
    with pytest.raises(error, match=r"^(path|file): expected a path, got "):
        read(path)


USERS = [
    *READERS,
    models.BertEncoder.from_pretrained,
    lambda path: training.save(path, {"W": np.ones(3)}),
    lambda path: models.BertEncoder.from_config(families.BERT).save_pretrained(path),
]


@pytest.mark.parametrize("use", USERS)
@pytest.mark.parametrize("path", ["~/model", "~", pathlib.Path("~/model")])
def test_a_home_is_not_expanded_and_the_error_says_so(use, path, tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    wanted = f"expected a path, got '{path}', whose ~ is not expanded: write os.path"
    with pytest.raises(FileNotFoundError, match=f": {re.escape(wanted)}"):
        use(path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_named_as_a_home_is_is_a_folder(tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~").mkdir()
    training.save("~/run", {"W": np.ones(3)})
    assert (tmp_path / "~" / "run").is_file()
    training.save("~run", {"W": np.ones(3)})  # of nobody of this name
    assert (tmp_path / "~run").is_file()


def test_the_shape_of_a_mask_is_a_sequence():
    with pytest.raises(
        TypeError, match=r"^shape: expected a sequence of int, got int$"
    ):
        dropout_mask(5, 0.5, 0)


def test_no_folder_is_made_below_a_file(tmp_path):
    file = tmp_path / "file"
    file.write_text("{}")
    model = models.BertEncoder.from_config(families.BERT)
    for path in (file / "a", file / "a" / "b"):
        with pytest.raises(NotADirectoryError, match=r"^folder: .* is below the file "):
            model.save_pretrained(path)
    assert file.read_text() == "{}"


def test_the_state_of_pytorchs_layer_is_told_how_to_be_loaded():
    for layer, prefix in (
        (MultiHeadAttention(4, 2), ""),
        (blocks.EncoderLayer(4, 2, 4), "self_attn."),
    ):
        for name in ("in_proj_weight", "in_proj_bias", "out_proj.weight"):
            state = {**layer.state_dict(), prefix + name: EYE}
            with pytest.raises(
                ValueError, match=r"\.load\(.*'torch_attention'"
            ) as caught:
                layer.load_state_dict(state)
            assert f"unexpected {prefix}{name}; " in str(caught.value)
