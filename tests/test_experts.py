"""Mixtures of experts: the layer against float64, the same bits, gradients, files."""

import copy
import itertools
import json

import numpy as np
import pytest
from support import families, gguf_files
from support.comparisons import assert_same_bits, assert_same_parameters
from support.errors import refused
from support.formulas import silu
from support.quotients import assert_gradients

from attnpy import _attnpy, checkpoints
from attnpy._quantized import QuantizedWeight
from attnpy.blocks import DecoderLayer, FeedForward, MixtureOfExperts
from attnpy.blocks.experts import mixture_arguments
from attnpy.models import CausalDecoder

pytestmark = pytest.mark.quick

E, F, N, K = 24, 40, 6, 2
RNG = np.random.default_rng(7)
X = RNG.standard_normal((3, 11, E), dtype=np.float32)
IDS = RNG.integers(0, 30, 12)
MIXTURES = list(families.EXPERTS_NAMES)
RUN = [*MIXTURES, "gpt_oss"]


def layer(seed=0, k=K, **options):
    rng = np.random.default_rng(seed)
    made = MixtureOfExperts(E, F, N, k, rng=rng, **options)
    for name, array in made.parameters().items():
        if ".b_" in name or name == "router_bias":
            array[...] = rng.standard_normal(array.shape)
    return made


def model(kind, dtype=np.float32, **changes):
    config = {**families.DECODERS[kind], **changes}
    made = CausalDecoder.from_config(config, dtype=dtype)
    checkpoints.load(made, families.tensors(config), families.NAMES[kind])
    return made


def by_hand(mixture, x):
    """One token's output in float64, and the experts it takes."""
    w = {name: array.astype(float) for name, array in mixture.parameters().items()}

    def network(name):
        bias = {n: w.get(f"{name}.b_{n}", 0) for n in ("gate", "1", "2")}
        hidden = silu(x @ w[f"{name}.W_gate"] + bias["gate"])
        hidden = hidden * (x @ w[f"{name}.W_1"] + bias["1"])
        return hidden @ w[f"{name}.W_2"] + bias["2"]

    p = np.exp(x @ w["router"] + w.get("router_bias", 0))
    p /= p.sum()
    best = sorted(range(N), key=lambda j: (-p[j], j))[: mixture.num_experts_per_token]
    whole = sum(p[best]) if mixture.renormalize else 1
    result = sum(p[j] / whole * network(f"experts.{j}") for j in best)
    if mixture.shared is not None:
        share = 1 / (1 + np.exp(-x @ w["shared_gate"]))
        result = result + share * network("shared")
    return result, best


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "options",
    [
        {"bias": False},
        {"renormalize": False},
        {"shared_dim": 8, "k": 3},
        {"k": 1, "bias": False},
        {"router_bias": True},
        {"k": N, "renormalize": False, "shared_dim": 50},
    ],
)
def test_a_mixture_is_its_arithmetic(options, dtype):
    mixture = layer(dtype=dtype, **options)
    x = X.astype(dtype)
    actual, (chosen, weights) = mixture(x), mixture.route(x)
    assert actual.dtype == weights.dtype == dtype
    for place in np.ndindex(x.shape[:2]):
        expected, best = by_hand(mixture, x[place].astype(float))
        limit = 1e-5 if dtype == np.float32 else 1e-13
        np.testing.assert_allclose(actual[place], expected, rtol=limit, atol=limit)
        assert chosen[place].tolist() == best
    if mixture.renormalize:
        np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)


@pytest.mark.parametrize("kind", ["plain", "packed", "int8", "int4", "bfloat16"])
def test_a_token_has_the_same_bits_alone_and_in_every_call(kind):
    options = {"dtype": kind} if kind == "bfloat16" else {}
    if options:
        pytest.importorskip("ml_dtypes")
    mixture = layer(shared_dim=8, **options)
    if kind == "packed":
        mixture.pack()
    if kind.startswith("int"):
        mixture.quantize(bits=int(kind[3:]), activations="int8")
    rows = np.tile(X.reshape(-1, E), (5, 1))
    mixed = kind == "bfloat16"
    whole = mixture(rows, mixed=mixed, num_threads=2)
    for row, expected in zip(rows[:33], whole, strict=False):
        assert_same_bits(mixture(row, mixed=mixed), expected)
    order = RNG.permutation(len(rows))
    assert_same_bits(mixture(rows[order], mixed=mixed, num_threads=3), whole[order])
    assert_same_bits(mixture(rows[7:20], mixed=mixed), whole[7:20])
    together = mixture(X, residual=X, mixed=mixed)
    assert_same_bits(together[1, 4], mixture(X[1, 4], residual=X[1, 4], mixed=mixed))
    assert mixture(rows[:0]).shape == (0, E)


@pytest.mark.parametrize("kind", ["plain", "packed", "int8", "int4", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [
        {"shared_dim": 8},
        {"renormalize": False, "router_bias": True},
        {"activation": "relu"},
        {"activation": "swiglu_oai"},
    ],
)
def test_experts_together_have_the_bits_of_one_by_one(kind, options):
    """Of so many tokens that not all of their experts are computed at once."""
    if kind == "bfloat16":
        pytest.importorskip("ml_dtypes")
        options = {**options, "dtype": kind}
    mixture = layer(k=4, **options)
    if kind == "packed":
        mixture.pack()
    if kind.startswith("int"):
        mixture.quantize(bits=int(kind[3:]), activations="int8")
    rows = np.tile(X.reshape(-1, E), (20, 1))
    rows *= np.linspace(0.5, 2, len(rows), dtype=np.float32)[:, np.newaxis]
    rows[3, 2], rows[40] = np.inf, np.nan
    for x in (rows, rows[0], rows[:1], rows[::-1, ::-1], rows[:30].reshape(5, 6, E)):
        expected = mixture._one_by_one(x, 1).reshape(x.shape)
        assert expected.dtype == np.float32
        for num_threads in (1, 2):
            found = _attnpy.experts(x, mixture_arguments(mixture), num_threads)
            assert found is not None
            np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
            assert_same_bits(np.nan_to_num(found), np.nan_to_num(expected))


@pytest.mark.parametrize("n_tokens", [1, 7, 300])
@pytest.mark.parametrize(
    "of_gate",
    [
        {},
        {"group": 32},
        {"bits": 4},
        {"bits": 4, "zero": 3},
        {"activations": "float"},
        {"with_minimum": True},
    ],
)
def test_a_gate_rounds_its_rows_itself_where_its_codes_are_of_another_kind(
    of_gate, n_tokens
):
    rng = np.random.default_rng(3)

    def codes(group=16, with_minimum=False, **options):
        n_groups = -(-E // group)
        return QuantizedWeight.from_blocks(
            rng.integers(0, 16, (E, F)),
            rng.standard_normal((n_groups, F), dtype=np.float32),
            rng.standard_normal((n_groups, F), dtype=np.float32)
            if with_minimum
            else None,
            group=group,
            **{"activations": "int8", **options},
        )

    mixture = layer()
    for network in mixture.experts:
        network.W_1, network.W_gate = codes(), codes(**of_gate)
    x = rng.standard_normal((n_tokens, E), dtype=np.float32)
    expected = mixture._one_by_one(x, None)
    assert_same_bits(_attnpy.experts(x, mixture_arguments(mixture), 2), expected)


def test_experts_of_other_kinds_are_left_to_python():
    plain, gated = layer(activation="relu"), layer()
    for mixture in (layer(dtype=np.float64), plain):
        plain.experts[2] = gated.experts[2]
        assert _attnpy.experts(X, mixture_arguments(mixture), 1) is None
        assert mixture(X).dtype == mixture.router.dtype

    class Own(FeedForward):
        pass

    for expert in gated.experts:
        expert.__class__ = Own
    assert _attnpy.experts(X, mixture_arguments(gated), 1) is None
    assert_same_bits(gated(X), layer()(X))


def test_of_equal_experts_those_with_the_lowest_numbers_are_taken():
    mixture = layer(k=3)
    mixture.router[...] = 0
    chosen, weights = mixture.route(X)
    assert (chosen == [0, 1, 2]).all()
    np.testing.assert_allclose(weights, 1 / 3, rtol=1e-6)
    mixture.router[:, 4] = 1e-3 * X[0, 0]
    assert mixture.route(X[0, 0])[0].tolist() == [4, 0, 1]


def test_a_call_runs_each_expert_once_and_only_those_that_are_chosen(monkeypatch):
    mixture, ran = layer(), []
    call = FeedForward.__call__

    def counted(self, *arguments, **options):
        ran.append(next(i for i, x in enumerate(mixture.experts) if x is self))
        return call(self, *arguments, **options)

    monkeypatch.setattr(FeedForward, "__call__", counted)
    mixture(X)
    assert ran == sorted(set(mixture.route(X)[0].ravel().tolist()))
    ran.clear()
    mixture(X[0, 0])
    assert ran == sorted(mixture.route(X[0, 0])[0].tolist())


def test_tokens_without_a_meaning_spoil_no_other_token():
    mixture = layer(shared_dim=8)
    rows = X[0].copy()
    rows[3], rows[5, 0] = np.nan, np.inf
    result, expected = mixture(rows), mixture(X[0])
    others = [i for i in range(len(rows)) if i not in (3, 5)]
    assert_same_bits(result[others], expected[others])
    assert np.isnan(result[3]).all()


@pytest.mark.parametrize(
    "options",
    [
        {"router_bias": True},
        {"renormalize": False, "bias": False},
        {"shared_dim": 5, "k": 3},
        {"k": 1},
        {"activation": "swiglu_oai"},
    ],
)
def test_mixtures_have_the_gradients_of_difference_quotients(options):
    mixture = layer(dtype=np.float64, **options)
    x = X[:1, :5].astype(float)
    assert_gradients(mixture, (x.copy(),), {})
    again = {"residual": x[..., ::-1].copy(), "checkpoint": True}
    assert_gradients(mixture, (x.copy(),), again)


def test_experts_without_tokens_have_gradients_of_0():
    mixture = layer(shared_dim=5)
    output, pullback = mixture.vjp(X[0, 0])
    assert_same_bits(output, mixture(X[0, 0]))
    found = pullback(output).parameters
    assert found.keys() == mixture.parameters().keys()
    taken = mixture.route(X[0, 0])[0]
    for j in range(N):
        assert bool(found[f"experts.{j}.W_1"].any()) == (j in taken)
    packed = layer()
    packed.pack()
    with refused(ValueError, "W_1"):
        packed.vjp(X)


@pytest.mark.parametrize("kind", RUN)
def test_models_have_gradients_and_train(kind):
    """A step against the gradient lessens the loss by its square."""
    mixture = model(kind, np.float64)
    states, pullback = mixture.vjp(IDS)
    weights = np.random.default_rng(1).standard_normal(states.shape)
    gradients = pullback(weights)
    own = mixture.parameters()
    assert {name for name in own if "router" in name} <= set(gradients)
    square = sum((g**2).sum() for g in gradients.values())
    before, step = (states * weights).sum(), 1e-7
    for name, gradient in gradients.items():
        own[name] -= step * gradient
    change = (mixture(IDS) * weights).sum() - before
    np.testing.assert_allclose(change, -step * square, rtol=1e-3)


def test_the_router_stays_as_it_is_where_matrices_are_packed_or_quantised():
    mixture = layer(shared_dim=8)
    router, gate = mixture.router, mixture.shared_gate
    expected = mixture(X)
    packed = copy.deepcopy(mixture)
    packed.pack()
    assert_same_bits(packed(X), expected)
    for bits, limit in ((8, 0.02), (4, 0.2)):
        small = copy.deepcopy(mixture)
        small.quantize(bits=bits)
        assert_same_bits(small.router, router)
        assert_same_bits(small.shared_gate, gate)
        networks = [*small.experts, small.shared]
        names = ("W_1", "W_2", "W_gate")
        for network, name in itertools.product(networks, names):
            assert isinstance(getattr(network, name), QuantizedWeight)
        error = small(X) - expected
        assert 0 < np.sqrt((error**2).mean() / (expected**2).mean()) < limit
        state = small.state_dict()
        other = copy.deepcopy(small)
        other.load_state_dict(state)
        assert_same_bits(other(X), small(X))


@pytest.mark.parametrize("kind", RUN)
@pytest.mark.parametrize("weights", [None, "int8", "int4"])
def test_tokens_one_by_one_have_the_bits_of_a_prompt(tmp_path, kind, weights):
    pytest.importorskip("safetensors")
    model(kind).save_pretrained(tmp_path)
    read = CausalDecoder.from_pretrained(tmp_path, weights=weights)
    expected = read(IDS)
    caches = read.new_caches(1, len(IDS))
    parts = [IDS[:3], *np.split(IDS[3:], 9)]
    states = [read(part, caches=caches, num_threads=2) for part in parts]
    assert_same_bits(np.concatenate(states), expected)
    layers = read.decoder.layers
    mixtures = [x.feed_forward for x in layers if hasattr(x.feed_forward, "router")]
    assert mixtures
    for mixture in mixtures:
        assert isinstance(mixture.router, np.ndarray)
        is_small = isinstance(mixture.experts[-1].W_2, QuantizedWeight)
        assert is_small == (weights is not None)


# ---- Files ---------------------------------------------------------------------------


def fused(tensors):
    """The arrays of a checkpoint as today's classes have them in memory."""
    result, experts = {}, {}
    for name, array in tensors.items():
        place, is_expert, rest = name.partition(".experts.")
        if not is_expert:
            result[name.replace("block_sparse_moe", "mlp")] = array
            continue
        number, part, _ = rest.split(".")
        place = place.replace("block_sparse_moe", "mlp")
        experts.setdefault(place, {})[int(number), part] = array
    for place, found in experts.items():
        parts = list(dict.fromkeys(part for _, part in found))  # gate, up, down
        gate, up, down = (
            np.stack([found[j, part] for j in range(1 + max(j for j, _ in found))])
            for part in parts
        )
        result[f"{place}.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        result[f"{place}.experts.down_proj"] = down
    return result


@pytest.mark.parametrize("kind", MIXTURES)
def test_arrays_of_all_experts_together_are_those_of_each(tmp_path, kind):
    numpy_files = pytest.importorskip("safetensors.numpy")
    config, expected = families.DECODERS[kind], model(kind)
    together = fused(families.tensors(config))
    made = CausalDecoder.from_config(config)
    checkpoints.load(made, together, families.NAMES[kind])
    assert_same_parameters(made, expected)
    numpy_files.save_file(together, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_same_parameters(CausalDecoder.from_pretrained(tmp_path), expected)
    small = CausalDecoder.from_pretrained(tmp_path, weights="int8")
    expected.quantize()
    assert_same_bits(small(IDS), expected(IDS))


def test_what_transformers_writes_of_experts_together_is_read(tmp_path):
    """`pip install torch transformers`."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    given = {k: x for k, x in families.QWEN3_MOE.items() if k != "model_type"}
    config = transformers.Qwen3MoeConfig(**given, pad_token_id=0)
    torch.manual_seed(0)
    theirs = transformers.Qwen3MoeForCausalLM(config).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor(IDS[np.newaxis])).logits[0].numpy()
    for form in (False, True):
        theirs.save_pretrained(tmp_path, save_original_format=form)
        ours = CausalDecoder.from_pretrained(tmp_path)
        np.testing.assert_allclose(ours.logits(ours(IDS)), expected, atol=2e-6)
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    ours = CausalDecoder.from_pretrained(tmp_path)
    np.testing.assert_allclose(ours.logits(ours(IDS)), expected, atol=2e-6)


def test_arrays_of_experts_that_are_wrong_are_refused_by_name():
    config = families.QWEN3_MOE
    together = fused(families.tensors(config))
    name = "model.layers.0.mlp.experts.down_proj"
    array = together[name]
    for wrong, words in (
        (array[:-1], r"missing layers\.0\.mlp\.experts\.4\."),
        (np.concatenate([array, array[:1]]), rf"unexpected {name}\.5"),
        (array[0], rf"unexpected {name}"),
        (array[:, :-1], rf"{name}\.0: expected shape \(16, 12\), got \(15, 12\)"),
        (array[:, 0], rf"unexpected {name}"),
        (np.zeros((0, 16, 12)), rf"unexpected {name}"),
        (np.zeros((1025, 16, 12)), rf"unexpected {name}"),
    ):
        made = CausalDecoder.from_config(config)
        before = copy.deepcopy(made)
        with pytest.raises(ValueError, match=f"^checkpoint: .*{words}"):
            checkpoints.load(made, {**together, name: wrong}, "qwen_moe")
        assert_same_parameters(made, before)


TYPES = {"gate": "Q4_K", "up": "Q8_0", "down": "Q6_K"}
LARGE = {"hidden_size": 256, "num_experts": 3, "num_experts_per_tok": 2}
LARGE |= {"num_local_experts": 3, "moe_intermediate_size": 256}
LARGE |= {"intermediate_size": 256, "sliding_window": None}


@pytest.mark.parametrize("kind", ["mixtral", "olmoe", "qwen3_moe", "gpt_oss"])
def test_experts_keep_the_integers_of_a_gguf_file(tmp_path, kind):
    gguf_files.require()
    base = families.DECODERS[kind]
    config = {**base, **{k: x for k, x in LARGE.items() if k in base}}
    if kind == "gpt_oss":
        config["sliding_window"] = 3
    metadata, arrays = gguf_files.model(config)
    for i, (name, array) in enumerate(arrays.items()):
        for part, type_name in TYPES.items():
            if f"ffn_{part}_exps.weight" in name:
                arrays[name] = gguf_files.random_blocks(type_name, array.shape, i)
    path = gguf_files.write(tmp_path / "m.gguf", metadata, arrays)
    small = CausalDecoder.from_gguf(path, weights="file")
    expected = CausalDecoder.from_gguf(path)
    assert_same_parameters(small, expected)  # that they stand for
    for each in small.decoder.layers:
        for expert in each.feed_forward.experts:
            bits = expert.W_gate.bits, expert.W_1.bits, expert.W_2.bits
            assert bits == (4, 8, 6)
    exact = expected(IDS)
    np.testing.assert_allclose(small(IDS), exact, atol=1e-4 * abs(exact).max())
    file = checkpoints.load_gguf(path)
    whole = file["blk.1.ffn_down_exps.weight"]
    for j, expert in enumerate(expected.decoder.layers[1].feed_forward.experts):
        assert_same_bits(np.ascontiguousarray(np.asarray(expert.W_2).T), whole[j])


def test_gate_and_up_of_a_gguf_file_may_be_together(tmp_path):
    gguf_files.require()
    metadata, arrays = gguf_files.model(families.QWEN3_MOE)
    expected = CausalDecoder.from_gguf(
        gguf_files.write(tmp_path / "a.gguf", metadata, arrays)
    )
    for i in range(2):
        both = [arrays.pop(f"blk.{i}.ffn_{x}_exps.weight") for x in ("gate", "up")]
        arrays[f"blk.{i}.ffn_gate_up_exps.weight"] = np.concatenate(both, axis=1)
    path = gguf_files.write(tmp_path / "b.gguf", metadata, arrays)
    assert_same_parameters(CausalDecoder.from_gguf(path), expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"expert_count": 6}, "blk.0.ffn_down_exps.weight of (6, 16, 12)"),
        ({"expert_count": 2**31}, "expert_count to be an integer from 1 to 1024"),
        ({"expert_count": 1024}, "blk.1.ffn_down_exps.weight of (1024, 16, 12)"),
        ({"expert_count": 0}, "expert_count to be an integer from 1 to 1024"),
        ({"expert_count": True}, "expert_count to be an integer from 1 to 1024"),
        ({"expert_count": None}, "expert_count to be there"),
        ({"expert_used_count": 6}, "expert_used_count to be at most 5"),
        ({"expert_used_count": None}, "expert_used_count to be there"),
        ({"expert_feed_forward_length": 2**31 - 1}, "(5, 16, 2147483647)"),
        ({"expert_feed_forward_length": None}, "expert_feed_forward_length to be"),
        ({"expert_gating_func": 2}, "expert_gating_func = 1"),
        ({"expert_weights_norm": False}, "expert_weights_norm = True"),
        ({"expert_weights_scale": 2.5}, "no qwen3moe.expert_weights_scale"),
        ({"expert_shared_count": 1}, "no qwen3moe.expert_shared_count"),
    ],
)
def test_counts_of_experts_that_are_wrong_are_refused(tmp_path, changes, words):
    gguf_files.require()
    metadata, arrays = gguf_files.model(families.QWEN3_MOE)
    metadata |= {f"qwen3moe.{key}": value for key, value in changes.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    path = gguf_files.write(tmp_path / "m.gguf", metadata, arrays)
    with refused(ValueError, r".*m\.gguf") as caught:
        CausalDecoder.from_gguf(path)
    assert words in str(caught.value)


def test_a_gguf_file_without_experts_it_speaks_of_is_refused(tmp_path):
    gguf_files.require()
    metadata, arrays = gguf_files.model({**families.MIXTRAL, "sliding_window": None})
    del arrays["blk.1.ffn_down_exps.weight"]
    path = gguf_files.write(tmp_path / "m.gguf", metadata, arrays)
    with refused(ValueError, r".*m\.gguf") as caught:
        CausalDecoder.from_gguf(path)
    assert "ffn_down_exps.weight of (4, 16, 20)" in str(caught.value)


@pytest.mark.quick
def test_a_mixture_that_lost_its_experts_is_refused_in_a_step_too():
    model = CausalDecoder.from_config(families.QWEN3_MOE)
    caches = model.new_caches(1, 4)
    model([[1, 2]], caches=caches)
    model.decoder.layers[1].feed_forward.experts.clear()
    with refused(ValueError, "router"):
        model([[3]], caches=caches)
    assert [cache.lengths.tolist() for cache in caches] == [[2]] * len(caches)


# ---- Arguments -----------------------------------------------------------------------

SIZES = {"num_experts": 4, "num_experts_per_token": 2}


def small(**options):
    return CausalDecoder(2, 8, 2, 16, vocab_size=9, max_length=9, **options)


def test_layers_of_a_model_may_be_without_experts():
    mixed = small(**SIZES, dense_layers=[-1], expert_dim=6, activation="swiglu")
    first, last = (each.feed_forward for each in mixed.decoder.layers)
    assert isinstance(first, MixtureOfExperts)
    assert isinstance(last, FeedForward)
    assert first.experts[0].W_1.shape == (8, 6)
    assert last.W_1.shape == (8, 16)
    for words in (
        "hidden_dim=16",
        "num_experts=4",
        "expert_dim=6",
        "dense_layers=[1]",
    ):
        assert words in repr(mixed)
    assert "num_experts=4" in repr(mixed.decoder.layers[0])
    plain = small(**SIZES)
    assert plain.decoder.layers[1].feed_forward.experts[0].W_1.shape == (8, 16)
    assert "expert_dim" not in repr(plain)


@pytest.mark.parametrize(
    ("error", "name", "options"),
    [
        (ValueError, "num_experts_per_token", {"num_experts": 4}),
        (ValueError, "num_experts_per_token", {"num_experts_per_token": 2}),
        (ValueError, "num_experts_per_token", {**SIZES, "num_experts_per_token": 5}),
        (ValueError, "num_experts_per_token", {**SIZES, "num_experts_per_token": 0}),
        (TypeError, "num_experts", {**SIZES, "num_experts": 2.5}),
        (ValueError, "num_experts", {**SIZES, "num_experts": 0}),
        (MemoryError, "num_experts", {**SIZES, "num_experts": 10**12}),
        (MemoryError, "MixtureOfExperts", {**SIZES, "expert_dim": 10**13}),
        (ValueError, "expert_dim", {"expert_dim": 3}),
        (ValueError, "hidden_dim", {**SIZES, "expert_dim": 0}),
        (ValueError, "shared_dim", {"shared_dim": 3}),
        (ValueError, "shared_dim", {**SIZES, "shared_dim": 0}),
        (ValueError, "renormalize", {"renormalize": False}),
        (ValueError, "router_bias", {"router_bias": True}),
        (TypeError, "router_bias", {**SIZES, "router_bias": 1}),
        (TypeError, "renormalize", {**SIZES, "renormalize": 1}),
        (ValueError, "dense_layers", {"dense_layers": [0]}),
        (ValueError, "dense_layers", {**SIZES, "dense_layers": [2]}),
        (ValueError, "dense_layers", {**SIZES, "dense_layers": [0, 0]}),
        (TypeError, "dense_layers", {**SIZES, "dense_layers": 1}),
        (TypeError, "dense_layers", {**SIZES, "dense_layers": ["a"]}),
    ],
)
def test_options_of_experts_that_are_wrong_are_refused(error, name, options):
    with refused(error, name):
        small(**options)


def test_tokens_that_do_not_fit_are_refused():
    mixture = layer()
    for call in (mixture, mixture.route, mixture.vjp):
        for wrong in (X[..., :5], np.float32(3)):
            with refused(ValueError, "x"):
                call(wrong)
        with refused(TypeError, "x"):
            call(X.astype(complex))
    with refused(ValueError, "residual"):
        mixture(X, residual=X[0])
    with refused(TypeError, "residual"):
        mixture(X, residual=X.astype(complex))
    with refused(TypeError, "mixed"):
        mixture(X, mixed=1)


def test_attributes_that_do_not_fit_together_are_refused():
    for error, name, value in (
        (ValueError, "num_experts_per_token", 0),
        (ValueError, "num_experts_per_token", N + 1),
        (TypeError, "num_experts_per_token", 1.5),
        (ValueError, "router", np.zeros((E, N - 1), np.float32)),
        (ValueError, "router", np.zeros(E, np.float32)),
        (ValueError, "router_bias", np.zeros(N + 1, np.float32)),
        (ValueError, "shared_gate", None),
    ):
        mixture = layer(shared_dim=8)
        setattr(mixture, name, value)
        for call in (mixture, mixture.route, mixture.vjp):
            with refused(error, name):
                call(X)
    mixture = layer()
    mixture.experts.pop()
    with refused(ValueError, "router"):
        mixture(X)


def test_a_layer_may_be_given_experts():
    rng = np.random.default_rng(0)
    own = DecoderLayer(E, 2, F, cross_attention=False, norm_first=True, rng=rng)
    own.feed_forward = layer()
    x = X[0]
    cache = own.new_cache(1, len(x))
    parts = [own(x[i : i + 1], cache=cache) for i in range(len(x))]
    assert_same_bits(np.concatenate(parts), own(x))
