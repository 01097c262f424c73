"""What gpt-oss has: learned sinks, clamped factors, matrices in MXFP4."""

import copy
import json
import pickle

import numpy as np
import pytest
from support import families, gguf_files
from support.comparisons import assert_same_bits, assert_same_parameters
from support.errors import refused
from support.formulas import clamped, linear
from support.quotients import assert_gradients

from attnpy import QuantizedWeight, _attnpy, attention, checkpoints
from attnpy._linear import linear as product
from attnpy.blocks import FeedForward, activation_vjp
from attnpy.layers import MultiHeadAttention
from attnpy.models import CausalDecoder

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(11)
X = RNG.standard_normal((2, 9, 12), dtype=np.float32)
IDS = RNG.integers(0, 30, 14)
CONFIG = families.GPT_OSS


def with_sinks(dtype=np.float32):
    mha = MultiHeadAttention(12, 4, 3, num_kv_heads=2, dtype=dtype, rng=RNG)
    mha.sinks = np.array([1.5, -2, 0, 4], dtype)
    return mha


# ---- Learned sinks -------------------------------------------------------------------


def test_learned_sinks_are_those_of_a_call():
    mha, plain = with_sinks(), MultiHeadAttention(12, 4, 3, num_kv_heads=2)
    own = mha.parameters()
    sinks = own.pop("sinks")
    plain.load_state_dict(own)
    expected = plain(X, causal=True, sinks=sinks, return_weights=True)
    for found, each in zip(
        mha(X, causal=True, return_weights=True), expected, strict=True
    ):
        assert_same_bits(found, each)
    assert (expected[1].sum(axis=-1) < 1).all()
    states = X[:, ::2]
    assert_same_bits(mha(X, states), plain(X, states, sinks=sinks))
    memory = mha.project_context(states)
    assert_same_bits(mha(X, memory), mha(X, states))


def test_learned_sinks_scale_the_results_of_heads():
    query, key = (RNG.standard_normal((4, n, 8)) for n in (5, 7))
    sinks = np.array([1.5, -2, 0, 4])
    output, lse = attention(query, key, key, return_lse=True)
    share = 1 / (1 + np.exp(sinks[:, np.newaxis] - lse))
    found = attention(query, key, key, sinks=sinks)
    np.testing.assert_allclose(found, output * share[..., np.newaxis], rtol=1e-12)


def test_learned_sinks_are_parameters():
    mha = with_sinks()
    assert "sinks=True" in repr(mha)
    assert "sinks" not in repr(MultiHeadAttention(12, 4))
    again = pickle.loads(pickle.dumps(mha))
    assert_same_bits(again(X), mha(X))
    state = mha.state_dict()
    again.sinks[...] = 0
    again.load_state_dict(state)
    assert_same_bits(again(X), mha(X))
    whole = MultiHeadAttention(12, 4)
    whole.sinks = mha.sinks
    with pytest.raises(ValueError, match="sinks"):
        checkpoints.to_torch(whole)


def test_a_layer_with_sinks_takes_no_others():
    mha = with_sinks()
    for call in (mha, mha.vjp):
        with refused(ValueError, "sinks"):
            call(X, sinks=np.zeros(4))
    with refused(ValueError, "wanted"):
        mha.vjp(X, wanted=["sinks"])
    mha.sinks = np.zeros(3, np.float32)
    with refused(ValueError, "sinks"):
        mha(X)
    mha.sinks = np.zeros(4, np.float16)
    with refused(TypeError, "sinks"):
        mha.vjp(X)


def test_learned_sinks_have_the_gradients_of_difference_quotients():
    mha, x = with_sinks(np.float64), X[:, :5].astype(float)
    assert_gradients(mha, (x.copy(),), {"causal": True})
    bias = RNG.standard_normal((5, 5))
    assert_gradients(
        mha, (x.copy(),), {"bias": bias, "wanted": ["bias"], "checkpoint": True}
    )
    found = mha.vjp(x)[1](x)
    assert found.sinks is None
    assert found.parameters["sinks"].shape == (4,)


@pytest.mark.parametrize("activation", ["swiglu", "swiglu_oai"])
@pytest.mark.parametrize("bits", [None, 8])
def test_layers_with_sinks_of_their_own_have_the_bits_of_a_prompt(activation, bits):
    model = CausalDecoder(
        *(3, 12, 4, 20),
        vocab_size=30,
        max_length=20,
        sinks=True,
        activation=activation,
        rng=RNG,
    )
    assert "sinks=True" in repr(model)
    assert repr(model).count(activation) == 1
    for layer in model.decoder.layers:
        layer.self_attention.sinks[...] = RNG.standard_normal(4) * 2
    if bits is not None:
        model.quantize(bits=bits, activations="int8")
    expected = model(IDS)
    caches = model.new_caches(1, len(IDS))
    parts = [IDS[:5], *np.split(IDS[5:], 9)]
    assert_same_bits(np.concatenate([model(x, caches=caches) for x in parts]), expected)
    caches = model.new_caches(2, 4)
    several = model(np.stack([IDS[:4], IDS[4:8]]), caches=caches)
    assert_same_bits(several[0], expected[:4])
    before = model.decoder.layers[1].self_attention.sinks
    for layer in model.decoder.layers[1:]:
        layer.self_attention.sinks = model.decoder.layers[0].self_attention.sinks
    assert (model(IDS) != expected).any()
    model.decoder.layers[1].self_attention.sinks = None
    without = model(IDS)
    caches = model.new_caches(1, len(IDS))
    assert_same_bits(np.concatenate([model(x, caches=caches) for x in parts]), without)
    assert before.shape == (4,)


# ---- Clamped factors -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_factors_are_clamped(dtype):
    network = FeedForward(12, 40, activation="swiglu_oai", dtype=dtype, rng=RNG)
    x = X.astype(dtype) * 20
    gate, hidden = (
        linear(x.astype(float), np.asarray(w, float), b)
        for w, b in ((network.W_gate, network.b_gate), (network.W_1, network.b_1))
    )
    assert 0.1 < (gate > 7).mean() < 0.9
    assert 0.1 < (abs(hidden) > 7).mean() < 0.9
    expected = linear(clamped(gate, hidden), np.asarray(network.W_2, float))
    limit = 1e-5 if dtype == np.float32 else 1e-13
    np.testing.assert_allclose(network(x), expected, rtol=limit, atol=200 * limit)
    output = network(x)
    assert_same_bits(network.vjp(x)[0], output)
    if dtype == np.float64:
        assert_gradients(network, (x[:1, :3].copy(),), {})
    rows = x.reshape(-1, 12)
    rows[4, 2] = np.nan
    found = network(rows)
    assert np.isnan(found[4]).all()
    others = np.arange(len(rows)) != 4
    assert_same_bits(found[others], output.reshape(-1, 12)[others])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_clamped_factors_of_16_bits_are_rounded_once(dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    network = FeedForward(12, 40, activation="swiglu_oai", dtype=dtype, rng=RNG)
    wide = FeedForward(12, 40, activation="swiglu_oai")
    wide.load_state_dict(network.state_dict())
    eps = {"float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
    for x, mixed, expected in (
        (X.astype(dtype), False, dtype),
        (X.astype(dtype), True, "float32"),
        (X, False, "float32"),
        (X, True, "float32"),
    ):
        found = network(x, mixed=mixed)
        assert found.dtype == expected
        exact = wide(x.astype(np.float32))
        error = np.abs(found.astype(np.float32) - exact).max() / np.abs(exact).max()
        assert error < eps
        for row, whole in zip(x[0], found[0], strict=True):
            assert_same_bits(network(row, mixed=mixed), whole)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("mixed", [False, True])
def test_clamped_factors_have_the_bits_of_their_steps(dtype, mixed):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    network = FeedForward(12, 40, activation="swiglu_oai", dtype=dtype, rng=RNG)
    x = (X * 20).astype(dtype)
    precision = "wide" if x.dtype.itemsize == 2 else "promoted"
    gate, hidden = (
        product(x, w, b, precision=precision)
        for w, b in ((network.W_gate, network.b_gate), (network.W_1, network.b_1))
    )
    gate, hidden = np.minimum(gate, 7), np.clip(hidden, -7, 7) + 1
    active = _attnpy.activate(gate, "quick_gelu", hidden).astype(x.dtype)
    precision = "wide" if mixed else "promoted"
    expected = product(active, network.W_2, network.b_2, precision=precision)
    for num_threads in (1, 2):
        found = network(x, mixed=mixed, num_threads=num_threads)
        assert_same_bits(found, expected)
    assert_same_bits(network(x[0, 0], mixed=mixed), expected[0, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_the_gate_of_a_clamped_network_is_a_number_up_to_its_limit(dtype):
    x = np.array([-np.inf, -8, -0.0, 0.5, 7, 7.5, np.inf, np.nan], dtype)
    times = np.linspace(0.5, 2, 8).astype(dtype)
    ones = np.ones(8, dtype)
    expected = _attnpy.activate(np.minimum(x, 7), "quick_gelu", times)
    assert_same_bits(_attnpy.activate(x, "swiglu_oai", times), expected)
    slope = _attnpy.activate_vjp(ones, np.minimum(x, 7), "quick_gelu", times)
    slope[5:7] = 0
    found = _attnpy.activate_vjp(ones, x, "swiglu_oai", times)
    assert_same_bits(found, slope)
    for call in (_attnpy.activate, activation_vjp):
        arguments = (x,) if call is _attnpy.activate else (ones, x)
        with refused(ValueError, "activation"):
            call(*arguments, "swiglu_oai")


def test_a_network_without_a_gate_is_not_clamped():
    network = FeedForward(12, 40)
    network.activation = "swiglu_oai"
    with refused(ValueError, "activation"):
        network(X)


# ---- Files ---------------------------------------------------------------------------

LARGE = {**CONFIG, "hidden_size": 64, "intermediate_size": 32}
CODES = [0.0, 0.5, 1, 1.5, 2, 3, 4, 6]
CODES += [0.0 - number for number in CODES]  # no negative 0


def write(folder, config, tensors):
    numpy_files = pytest.importorskip("safetensors.numpy")
    numpy_files.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def in_mxfp4(tensors):
    """The matrices of experts as random codes, and what these stand for."""
    result, plain = dict(tensors), dict(tensors)
    for name in [x for x in tensors if x.endswith(("gate_up_proj", "down_proj"))]:
        n, n_in, n_out = result.pop(name).shape
        codes = RNG.integers(0, 256, (n, n_out, n_in // 32, 16), np.uint8)
        scales = RNG.integers(122, 128, (n, n_out, n_in // 32), np.uint8)
        result[f"{name}_blocks"], result[f"{name}_scales"] = codes, scales
        whole = np.empty((n, n_out, n_in), np.float32)
        for j, m, k in np.ndindex(whole.shape):
            byte = int(codes[j, m, k // 32, k % 32 // 2])
            code = byte >> 4 if k % 2 else byte & 15
            whole[j, m, k] = CODES[code] * 2.0 ** (int(scales[j, m, k // 32]) - 127)
        plain[name] = np.ascontiguousarray(whole.swapaxes(1, 2))
    return result, plain


QUANTIZED = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
}


def test_matrices_in_mxfp4_are_kept_and_what_they_stand_for(tmp_path):
    pytest.importorskip("ml_dtypes")
    packed, plain = in_mxfp4(families.tensors(LARGE))
    write(tmp_path, {**LARGE, "quantization_config": QUANTIZED}, packed)
    expected = CausalDecoder.from_config(LARGE)
    checkpoints.load(expected, plain, "gpt_oss")
    read = CausalDecoder.from_pretrained(tmp_path)
    assert_same_parameters(read, expected)
    for layer in read.decoder.layers:
        for expert in layer.feed_forward.experts:
            for weight in (expert.W_gate, expert.W_1, expert.W_2):
                assert isinstance(weight, QuantizedWeight)
                assert weight.bits == 4
        assert not isinstance(layer.self_attention.W_q, QuantizedWeight)
    exact = expected(IDS)
    np.testing.assert_allclose(read(IDS), exact, atol=1e-4 * abs(exact).max())
    assert_same_bits(read(IDS[:5]), read(IDS)[:5])
    half = CausalDecoder.from_pretrained(tmp_path, dtype="auto", packed=False)
    assert half.decoder.layers[1].feed_forward.experts[2].W_1.dtype == np.float32
    rounded = CausalDecoder.from_pretrained(tmp_path, activations="int8")
    experts = rounded.decoder.layers[0].feed_forward.experts
    assert experts[1].W_1.activations == "int8"
    error = np.sqrt(((rounded(IDS) - exact) ** 2).mean() / (exact**2).mean())
    assert 0 < error < 0.2
    with refused(ValueError, "weights"):
        CausalDecoder.from_pretrained(tmp_path, weights="int8")
    read.save_pretrained(tmp_path / "plain")
    again = CausalDecoder.from_pretrained(tmp_path / "plain", packed=False)
    assert_same_parameters(again, read)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("down_proj_scales"), "missing .*down_proj_scales"),
        (lambda w: w.pop("down_proj_blocks"), "missing .*down_proj"),
        (
            lambda w: w.update(down_proj_blocks=w["down_proj_blocks"][..., :8]),
            "down_proj_blocks: expected U8 of shape",
        ),
        (
            lambda w: w.update(down_proj_blocks=np.zeros((1025, 1, 1, 16), np.uint8)),
            "down_proj_blocks: expected U8 .* with N up to 1024",
        ),
        (
            lambda w: w.update(down_proj_blocks=w["down_proj_blocks"][:, :0]),
            "down_proj_blocks: expected U8 of shape",
        ),
        (
            lambda w: w.update(down_proj_scales=w["down_proj_scales"][:1]),
            "down_proj_scales: expected U8 of shape",
        ),
        (
            lambda w: w.update(
                down_proj_blocks=w["down_proj_blocks"][:, :5],
                down_proj_scales=w["down_proj_scales"][:, :5],
            ),
            r"down_proj_blocks\.0: expected shape \(64, 32\), got \(5, 32\)",
        ),
    ],
)
def test_damaged_matrices_in_mxfp4_are_refused(tmp_path, change, words):
    pytest.importorskip("ml_dtypes")
    packed, _ = in_mxfp4(families.tensors(LARGE))
    place = "model.layers.1.mlp.experts."
    own = {x[len(place) :]: packed.pop(x) for x in [*packed] if x.startswith(place)}
    change(own)
    packed |= {f"{place}{x}": np.ascontiguousarray(y) for x, y in own.items()}
    write(tmp_path, {**LARGE, "quantization_config": QUANTIZED}, packed)
    with pytest.raises(ValueError, match=f"^checkpoint: .*{words}"):
        CausalDecoder.from_pretrained(tmp_path)


def test_a_scale_that_is_no_number_is_refused(tmp_path):
    pytest.importorskip("ml_dtypes")
    packed, _ = in_mxfp4(families.tensors(LARGE))
    packed["model.layers.0.mlp.experts.gate_up_proj_scales"][1, 2, 0] = 255
    write(tmp_path, {**LARGE, "quantization_config": QUANTIZED}, packed)
    with pytest.raises(ValueError, match=r"gate_proj_blocks\.1: expected scales that"):
        CausalDecoder.from_pretrained(tmp_path)


def test_configurations_of_mxfp4_are_honoured_or_refused(tmp_path):
    tensors = families.tensors(LARGE)
    write(tmp_path, {**LARGE, "quantization_config": QUANTIZED}, tensors)
    with pytest.raises(ValueError, match="expected matrices in MXFP4"):
        CausalDecoder.from_pretrained(tmp_path)
    other = {**QUANTIZED, "group_size": 16}
    write(tmp_path, {**LARGE, "quantization_config": other}, tensors)
    with pytest.raises(ValueError, match="quantization_config: expected no group_size"):
        CausalDecoder.from_pretrained(tmp_path)


def test_the_fields_of_the_released_files_are_read():
    released = {
        "initial_context_length": 4096,
        "experts_per_token": 2,
        "swiglu_limit": 7.0,
        "router_aux_loss_coef": 0.9,
        "output_router_logits": False,
        "attention_bias": True,
        "attention_dropout": 0.0,
    }
    made = CausalDecoder.from_config({**CONFIG, **released})
    assert made.window == [(2, 0), None, (2, 0)]
    assert repr(made) == repr(CausalDecoder.from_config(CONFIG))
    for wrong in ({"experts_per_token": 3}, {"swiglu_limit": 5.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            CausalDecoder.from_config({**CONFIG, **wrong})


def test_transformers_gives_the_scores_of_its_folders(tmp_path):
    """`pip install torch transformers`."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    given = {k: x for k, x in CONFIG.items() if k not in ("model_type", "rope_scaling")}
    config = transformers.GptOssConfig(**given, pad_token_id=0)
    torch.manual_seed(0)
    theirs = transformers.GptOssForCausalLM(config).eval()
    for name, parameter in theirs.named_parameters():
        if "norm" not in name:
            parameter.data.normal_(std=2.0 if "experts" in name else 0.5)
    ids = torch.tensor(IDS[np.newaxis])
    with torch.no_grad():
        expected = theirs(ids).logits[0].numpy()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = CausalDecoder.from_pretrained(tmp_path / "theirs")
    scores = ours.logits(ours(IDS))
    limit = 1e-4 * np.abs(expected).max()
    np.testing.assert_allclose(scores, expected, atol=limit)
    ours.save_pretrained(tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    with torch.no_grad():
        np.testing.assert_allclose(again(ids).logits[0], expected, atol=limit)
    assert copy.deepcopy(ours).decoder.layers[0].self_attention.sinks.any()


def test_a_gguf_file_keeps_mxfp4(tmp_path):
    gguf_files.require()
    metadata, arrays = gguf_files.model(LARGE)
    for i, (name, array) in enumerate(arrays.items()):
        if name.endswith("_exps.weight"):
            arrays[name] = gguf_files.random_blocks("MXFP4", array.shape, i)
    path = gguf_files.write(tmp_path / "m.gguf", metadata, arrays)
    expected = CausalDecoder.from_gguf(path)
    small = CausalDecoder.from_gguf(path, weights="file")
    assert_same_parameters(small, expected)
    for expert in small.decoder.layers[1].feed_forward.experts:
        assert isinstance(expert.W_gate, QuantizedWeight)
    exact = expected(IDS)
    np.testing.assert_allclose(small(IDS), exact, atol=1e-4 * abs(exact).max())


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("attention.sliding_window", None, "expected a sliding_window, got none"),
        ("attention.sliding_window", 0, "expected a sliding_window, got none"),
        ("expert_feed_forward_length", 12, "to be 20, as another key says, got 12"),
        ("expert_gating_func", 2, "expert_gating_func = 3"),
        ("expert_weights_scale", 2.0, "expected no gpt-oss.expert_weights_scale"),
    ],
)
def test_what_a_gguf_file_says_is_honoured_or_refused(tmp_path, key, value, words):
    gguf_files.require()
    metadata, arrays = gguf_files.model(CONFIG)
    metadata[f"gpt-oss.{key}"] = value
    metadata = {name: x for name, x in metadata.items() if x is not None}
    path = gguf_files.write(tmp_path / "m.gguf", metadata, arrays)
    with pytest.raises(ValueError, match=f"m\\.gguf: .*{words}"):
        CausalDecoder.from_gguf(path)
