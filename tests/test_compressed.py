"""Folders of compressed-tensors: matrices of integers, and what is refused of them."""

import json

import numpy as np
import pytest
from support import families, sentences
from support.comparisons import assert_same_bits
from support.compressed import (
    INT,
    KINDS,
    LLAMA,
    PACK,
    ROUNDED,
    matrices,
    packed,
    quantization,
    write,
)
from support.errors import refused

from attnpy import QuantizedWeight
from attnpy.models import BertEncoder, CausalDecoder, SentenceEncoder

numpy_files = pytest.importorskip("safetensors.numpy")

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def assert_near(found, expected, bound):
    """As a relative root mean square."""
    error = np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean())
    assert 0 < error < bound


@pytest.mark.quick
@pytest.mark.parametrize("kind", KINDS)
def test_matrices_keep_the_integers_of_the_files(tmp_path, kind):
    form, weights, options = KINDS[kind]
    if options.get("scale_dtype") == "bfloat16":
        pytest.importorskip("ml_dtypes")
    quantized = quantization(form, weights)
    numbers = write(tmp_path, quantized, **options)
    model = CausalDecoder.from_pretrained(tmp_path)
    found = matrices(model)
    assert found.keys() == {name for name in numbers if name.endswith("_proj.weight")}
    for name, matrix in found.items():
        assert isinstance(matrix, QuantizedWeight)
        assert matrix.bits == weights.get("num_bits", 8)
        assert_same_bits(matrix.dequantize(), numbers[name].T)
    expected = families.logits(numbers, LLAMA, np.array(IDS))
    assert_near(model.logits(model(IDS)), expected, 2e-6)
    assert_same_bits(model([IDS[:5], IDS[5:]])[1], model(IDS[5:]))
    rounded = CausalDecoder.from_pretrained(tmp_path, activations="int8")
    assert all(matrix.activations == "int8" for matrix in matrices(rounded).values())
    assert_near(rounded.logits(rounded(IDS)), expected, 0.1)


def by_token(x, w):
    """Rows rounded as here, then multiplied."""
    scale = np.abs(x).max(-1, keepdims=True) / 127
    return np.rint(x / scale) * scale @ w


@pytest.mark.quick
def test_rows_are_rounded_token_by_token_where_the_folder_says_so(tmp_path):
    numbers = write(tmp_path, quantization(INT, {}, ROUNDED))
    with pytest.raises(ValueError, match=r"^activations: expected 'int8' for a folder"):
        CausalDecoder.from_pretrained(tmp_path)
    model = CausalDecoder.from_pretrained(tmp_path, activations="int8")
    expected = families.logits(numbers, LLAMA, np.array(IDS))
    assert_near(model.logits(model(IDS)), expected, 0.1)
    network = model.decoder.layers[0].feed_forward
    x = np.random.default_rng(1).standard_normal((3, 64))
    up = by_token(x, numbers["model.layers.0.mlp.up_proj.weight"].T)
    gate = by_token(x, numbers["model.layers.0.mlp.gate_proj.weight"].T)
    down = numbers["model.layers.0.mlp.down_proj.weight"].T
    result = by_token(gate / (1 + np.exp(-gate)) * up, down)
    # A number next to a tie may round the other way.
    assert_near(network(x.astype(np.float32)), result, 2e-3)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["float16", "auto"])
def test_numbers_beside_the_integers_have_the_models_dtype(tmp_path, dtype):
    numbers = write(tmp_path, quantization(INT, {}), scale_dtype="float16")
    model = CausalDecoder.from_pretrained(tmp_path, dtype=dtype)
    kind = "float16" if dtype == "float16" else "float32"  # of norms and embeddings
    assert model.token_embedding.dtype == kind
    assert {str(matrix.dtype) for matrix in matrices(model).values()} == {kind}
    expected = families.logits(numbers, LLAMA, np.array(IDS))
    assert_near(model.logits(model(IDS)).astype(float), expected, 1e-2)


@pytest.mark.quick
def test_older_configurations_say_less_of_the_same(tmp_path):
    quantized = quantization(INT, {})
    numbers = write(tmp_path, quantized)
    (group,) = quantized["config_groups"].values()
    group["weights"] = {"num_bits": 8, "strategy": "channel", "group_size": -1}
    sparsity = {"format": "dense", "global_sparsity": 0.14, "targets": []}
    quantized |= {"quantization_status": "frozen", "sparsity_config": sparsity}
    del quantized["transform_config"], quantized["version"]
    config = {**LLAMA, "quantization_config": quantized}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name, matrix in matrices(CausalDecoder.from_pretrained(tmp_path)).items():
        assert_same_bits(matrix.dequantize(), numbers[name].T)


@pytest.mark.quick
def test_encoders_read_such_folders_too(tmp_path):
    sentences.require()
    sentences.write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    numbers = write(tmp_path, quantization(PACK, {"num_bits": 4}), config)
    model = BertEncoder.from_pretrained(tmp_path)
    assert isinstance(model.encoder.layers[0].self_attention.W_q, QuantizedWeight)
    expected = families.bert_states(numbers, config, np.array(IDS))
    assert_near(model(IDS), expected, 2e-6)
    encoder = SentenceEncoder.from_pretrained(tmp_path, activations="int8")
    assert encoder.encode("the cat").shape == (12,)
    assert encoder.model.encoder.layers[1].feed_forward.W_2.activations == "int8"


@pytest.mark.quick
def test_a_saved_model_has_the_numbers(tmp_path):
    numbers = write(tmp_path, quantization(INT, {}))
    model = CausalDecoder.from_pretrained(tmp_path)
    model.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert "quantization_config" not in config
    again = CausalDecoder.from_pretrained(tmp_path / "saved", packed=False)
    own = again.decoder.layers[1].feed_forward.W_2
    assert_same_bits(own, numbers["model.layers.1.mlp.down_proj.weight"].T)


# ---- What is refused -----------------------------------------------------------------


def changed(**parts):
    """A configuration with other values of fields: of its own, or of a part of it."""
    whole = quantization(INT, {}, ROUNDED)
    group = whole["config_groups"]["group_0"]
    for name, value in parts.items():
        part, _, field = name.rpartition("__")
        {"": whole, "group": group, **group}[part][field] = value
    return whole


REFUSED = {
    "another method": (changed(quant_method="gptq"), "compressed-tensors, got 'gptq'"),
    "no mapping": ({"bits": 4}, "expected no quantization_config but that of"),
    "another format": (changed(format="float-quantized"), "format = int-quantized or"),
    "a format of a group": (changed(group__format="nvfp4-pack-quantized"), "'nvfp4-"),
    "not compressed": (
        changed(quantization_status="calibration"),
        "quantization_status = compressed or frozen, got 'calibration'",
    ),
    "a long text": (changed(config_groups={"a": "x" * 100_000}), "config_groups, got"),
    "quantised caches": (changed(kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme ="),
    "sparse": (changed(sparsity_config={"format": "sparse-24"}), "sparsity_config = "),
    "transforms": (changed(transform_config={"a": 1}), "transform_config = "),
    "no groups": (changed(config_groups={}), "expected one of config_groups, got 0"),
    "a list": (changed(config_groups=[1]), "expected one of config_groups, got [1]"),
    "a number": (changed(config_groups={"a": 1}), "a mapping in config_groups, got 1"),
    "outputs": (changed(group__output_activations=ROUNDED), "output_activations = "),
    "no weights": (changed(group__weights=None), "expected weights in it, got None"),
    "two bits": (changed(weights__num_bits=2), "weights.num_bits = 8 or 4, got 2"),
    "floats": (changed(weights__type="float"), "weights.type = int, got 'float'"),
    "zeros": (changed(weights__symmetric=False), "weights.symmetric = True, got False"),
    "blocks": (changed(weights__strategy="block"), "weights.strategy = tensor or chan"),
    "an order": (changed(weights__actorder="group"), "weights.actorder = static or we"),
    "dynamic weights": (changed(weights__dynamic=True), "weights.dynamic = False, got"),
    "unknown": (changed(weights__x=1), "expected no weights.x, got 1"),
    "static inputs": (changed(input_activations__dynamic=False), "dynamic = True, got"),
    "tensors of inputs": (changed(input_activations__strategy="tensor"), "= token, go"),
    "4 bits of inputs": (changed(input_activations__num_bits=4), "num_bits = 8, got 4"),
    "no field of it": (changed(group__x=1), "expected no x, got 1"),
    "4 bits, not packed": (changed(weights__num_bits=4), "pack-quantized with 4 bits"),
    "groups with inputs": (
        changed(weights__strategy="group", weights__group_size=32),
        "strategy = channel or tensor with input_activations, got group",
    ),
    **{
        f"groups of {size}": (
            quantization(INT, {"strategy": "group", "group_size": size}),
            "weights.group_size to be a multiple of 16 up to 128, or of 128, got",
        )
        for size in (8, 40, 136, True, None, "32", -128)
    },
    "a size without groups": (
        changed(weights__group_size=128),
        "expected weights.strategy = group with weights.group_size = 128, got channel",
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("case", REFUSED)
def test_other_configurations_are_refused_by_name(tmp_path, case):
    config, text = REFUSED[case]
    whole = json.dumps({**LLAMA, "quantization_config": config})
    (tmp_path / "config.json").write_text(whole)
    with pytest.raises(ValueError) as caught:
        CausalDecoder.from_pretrained(tmp_path, activations="int8")
    assert str(caught.value).startswith("config: ")
    assert text in str(caught.value)


DOWN = "model.layers.1.mlp.down_proj.weight"
ARRAYS = {
    "no scale": (PACK, {f"{DOWN}_scale": None}, f"missing {DOWN}_scale"),
    "no shape": (PACK, {f"{DOWN}_shape": None}, f"missing {DOWN}_shape"),
    "another shape": (
        *(PACK, {f"{DOWN}_shape": np.array([64, 155])}),
        f"{DOWN}_shape: expected a shape of which 4 columns are one of",
    ),
    "a shape of numbers": (
        *(PACK, {f"{DOWN}_shape": np.ones(2)}),
        f"{DOWN}_shape: expected two integers, got float64 of shape",
    ),
    "codes and numbers": (
        *(PACK, {DOWN: np.ones((64, 160), np.float32)}),
        f"expected {DOWN}_packed or {DOWN}, got both",
    ),
    "codes of another dtype": (
        *(PACK, {f"{DOWN}_packed": np.zeros((64, 40), np.int64)}),
        f"{DOWN}_packed: expected a matrix of I32, got I64",
    ),
    "scales of another shape": (
        *(INT, {f"{DOWN}_scale": np.ones((64, 2), np.float32)}),
        f"{DOWN}_scale: expected shape (64, 1), got (64, 2)",
    ),
    "scales of another dtype": (
        *(INT, {f"{DOWN}_scale": np.ones((64, 1))}),
        f"{DOWN}_scale: expected float32 or float16 or bfloat16, got float64",
    ),
    "scales that are not finite": (
        *(INT, {f"{DOWN}_scale": np.full((64, 1), np.nan, np.float32)}),
        f"{DOWN}: expected scales that are finite",
    ),
    "zeros of codes": (
        *(INT, {f"{DOWN}_zero_point": np.zeros((64, 1), np.int8)}),
        f"unexpected {DOWN}_zero_point",
    ),
    "a matrix of another size": (
        *(INT, {DOWN: np.zeros((64, 159), np.int8)}),
        f"{DOWN}: expected shape (64, 160), got (64, 159)",
    ),
    "integers without scales": (
        *(INT, {f"{DOWN}_scale": None}),
        f"{DOWN}: expected floating numbers, got dtype I8",
    ),
    "integers of a norm": (
        INT,
        {
            "model.norm.weight": np.zeros((64, 1), np.int8),
            "model.norm.weight_scale": np.ones((64, 1), np.float32),
        },
        "model.norm.weight: expected shape (64,), got (64, 1)",
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_do_not_fit_are_refused_by_name(tmp_path, case):
    form, changes, text = ARRAYS[case]
    write(tmp_path, quantization(form, {}), changes=changes)
    with pytest.raises(ValueError) as caught:
        CausalDecoder.from_pretrained(tmp_path)
    assert text in str(caught.value)


@pytest.mark.quick
def test_options_that_do_not_fit_are_refused(tmp_path):
    write(tmp_path, quantization(INT, {}))
    with pytest.raises(ValueError, match=r"^weights: expected None for a folder whose"):
        CausalDecoder.from_pretrained(tmp_path, weights="int8")
    with refused(TypeError, "dtype"):
        CausalDecoder.from_pretrained(tmp_path, dtype="float64")
    with refused(ValueError, "activations"):
        CausalDecoder.from_pretrained(tmp_path, activations="int4")
    model = CausalDecoder.from_pretrained(tmp_path)
    with refused(ValueError, "W_q"):
        model.quantize()
    with pytest.raises(ValueError, match="expected matrices of integers, as the conf"):
        numpy_files.save_file(families.tensors(LLAMA), tmp_path / "model.safetensors")
        CausalDecoder.from_pretrained(tmp_path)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("config", "name", "shape"),
    [
        (
            {**families.GPT_NEOX, "hidden_size": 32},
            "gpt_neox.layers.0.attention.query_key_value.weight",
            (96, 32),
        ),
        (families.GPT2, "h.0.attn.c_proj.weight", (12, 12)),
    ],
)
def test_matrices_of_alternating_heads_or_not_transposed_are_refused(
    tmp_path, config, name, shape
):
    changes = {
        name: np.zeros(shape, np.int8),
        f"{name}_scale": np.ones((shape[0], 1), np.float32),
    }
    write(tmp_path, quantization(INT, {}), config, changes)
    with pytest.raises(ValueError, match=f"{name}: expected numbers, as the model"):
        CausalDecoder.from_pretrained(tmp_path)


def test_codes_are_packed_as_by_their_package():
    helpers = pytest.importorskip("compressed_tensors.compressors")
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for bits in (4, 8):
        codes = rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), (5, 48), np.int8)
        theirs = helpers.pack_to_int32(torch.tensor(codes), bits)
        assert_same_bits(packed(codes, bits), theirs.numpy())
