"""GGUF files: what their arrays and metadata are, and models made of them."""

import struct
from pathlib import Path

import numpy as np
import pytest
from support import families, gguf_files
from support.comparisons import assert_same_bits, assert_same_parameters
from support.errors import refused
from support.processes import assert_runs

from attnpy import checkpoints
from attnpy._families.gguf import ARCHITECTURES
from attnpy._linear import linear
from attnpy._parameters import walk
from attnpy._quantized import QuantizedTable, QuantizedWeight
from attnpy.models import CausalDecoder

pytestmark = pytest.mark.quick

gguf = pytest.importorskip("gguf")

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}
# Their kind is not read from files.
OF_FOLDERS_ALONE = (
    *("mistral", "gpt_neo", "gpt_neox", "glm", "starcoder2"),
    *("opt", "gptj", "falcon", "exaone", "bloom", "mpt"),
    *("mixtral", "qwen2_moe"),  # of which there are no windows in files
)
CONFIGS = {
    **{k: c for k, c in families.DECODERS.items() if k not in OF_FOLDERS_ALONE},
    "llama with biases": {**families.LLAMA, "attention_bias": True, "mlp_bias": True},
    "llama with yarn": {**families.LLAMA, "rope_scaling": YARN},
    "mixtral": {**families.MIXTRAL, "sliding_window": None},
    # Of which the windows are in folders alone, and layers without positions 1 of 4.
    "starcoder2": {**families.STARCODER2, "sliding_window": None},
    "smollm3": {
        **{k: x for k, x in families.SMOLLM3.items() if k != "no_rope_layer_interval"},
        "num_hidden_layers": 4,
    },
    "exaone4 without windows": {**families.EXAONE4, "sliding_window": None},
    "stablelm side by side": {
        **families.STABLELM,
        "use_parallel_residual": True,
        "use_qkv_bias": True,
    },
    "gpt_oss with yarn": {
        **families.GPT_OSS,
        "rope_scaling": {
            **YARN,
            "original_max_position_embeddings": 64,
            "truncate": False,
        },
    },
    "gpt_oss without scaling": {
        **families.GPT_OSS,
        "rope_scaling": {"rope_type": "default"},
    },
    "llama, tied": {**families.LLAMA, "tie_word_embeddings": True},
    "qwen2 without scaling": {**families.QWEN2, "rope_scaling": None},
    "gemma2 with all layers alike": {**families.GEMMA2, "sliding_window": 2},
    "phi3 for short texts": {
        **families.PHI3,
        "rope_scaling": None,
        "sliding_window": 3,
        "partial_rotary_factor": 1.0,
    },
}
# What files do not say, as converters do not write it.
UNSAID = {"query_pre_attn_scalar": 6}
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


@pytest.fixture
def save(tmp_path):
    """Write a file, and return its path."""

    def write(metadata, arrays=None, **options):
        arrays = {} if arrays is None else arrays
        return gguf_files.write(tmp_path / "m.gguf", metadata, arrays, **options)

    return write


def in_folders_words(config):
    """The model that a folder with the same configuration and weights gives."""
    if "query_pre_attn_scalar" in config:
        config = {**config, **UNSAID}
    model = CausalDecoder.from_config(config)
    weights = families.tensors(config)
    checkpoints.load(model, weights, families.NAMES[config["model_type"]])
    return model


# ---- Arrays --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", checkpoints.gguf.TYPES)
def test_an_array_is_what_the_package_makes_of_its_blocks(save, kind):
    array = gguf_files.random_blocks(kind, (5, 512))
    file = checkpoints.load_gguf(save({}, {"before": np.ones(3), "w": array}))
    data = np.frombuffer(array.data, np.uint8).reshape(5, -1)
    expected = gguf.dequantize(data, gguf.GGMLQuantizationType[kind])
    assert np.isfinite(expected).all()
    assert_same_bits(file["w"], expected)
    assert_same_bits(file.rows("w", 2, 4), expected[2:4])
    assert file.describe("w") == ((5, 512), "float32")
    assert file.type_of("w") == kind


# Bits for each number as it is kept. Those of Q4_K and Q5_K take 1/8 less in the file,
# those of IQ4_XS 1/16.
KEPT = {
    "Q8_0": 8.5,
    "Q4_0": 4.5,
    "Q4_1": 5,
    "Q5_0": 5.5,
    "Q5_1": 6,
    "Q4_K": 4.625,
    "Q5_K": 5.625,
    "Q6_K": 6.5625,
    "IQ4_NL": 4.5,
    "IQ4_XS": 4.3125,
    "MXFP4": 4.25,
}
# In more bits than there: 3.4375 and 2.625.
WIDENED = {"Q3_K": 4.5625, "Q2_K": 5.125}


@pytest.mark.parametrize("kind", KEPT | WIDENED)
def test_integers_stay_what_they_are_in_the_file(save, kind):
    array = gguf_files.random_blocks(kind, (50, 512))
    file = checkpoints.load_gguf(save({}, {"w": array}))
    weight = file.quantized("w", activations="int8")
    assert weight.shape == (512, 50) and weight.activations == "int8"
    assert_same_bits(weight.dequantize(), file["w"].T)
    values = 16 * (kind in ("IQ4_NL", "IQ4_XS", "MXFP4"))
    expected = (KEPT | WIDENED)[kind] * 512 * 96  # columns in whole panels
    assert (weight.nbytes - values) * 8 == expected
    halves = file.split_halves({"w": 10})
    assert_same_bits(halves.quantized("w").dequantize(), halves["w"].T)
    part = halves.quantized("w", start=3, stop=40)
    assert_same_bits(part.dequantize(), halves["w"][3:40].T)
    assert file.quantized("w", start=50).shape == (512, 0)
    for start, stop in ((0, 51), (-1, 1), (2, 1), (51, None)):
        with pytest.raises(ValueError, match=r"^(w|start): expected "):
            file.quantized("w", start=start, stop=stop)
    x = np.random.default_rng(0).standard_normal((3, 512), np.float32)
    exact = x.astype(np.float64) @ file["w"].T.astype(np.float64)
    error = linear(x, file.quantized("w")) - exact
    assert np.sqrt((error**2).mean() / (exact**2).mean()) < 1e-6


def test_rows_that_are_not_those_of_whole_heads_are_refused(save):
    file = checkpoints.load_gguf(save({}, {"w": np.ones((12, 32), np.float32)}))
    for size in (3, 8, 24):
        with refused(ValueError, ".*"):
            file.split_halves({"w": size})
    with refused(ValueError, "w"):
        file.split_halves({"w": 0})
    with pytest.raises(KeyError, match="v"):
        file.split_halves({"v": 2})
    for wrong in (None, 3, b"m.gguf"):
        with refused(TypeError, "file"):
            checkpoints.load_gguf(wrong)


def test_what_cannot_be_kept_as_integers_is_refused(save):
    infinite = struct.pack("<e", np.inf) + bytes(32)
    arrays = {
        "e": gguf_files.Blocks("MXFP4", (1, 32), bytes([255] * 17)),
        "f": gguf_files.random_blocks("F16", (4, 32)),
        "v": gguf_files.random_blocks("Q8_0", (64,)),
        "w": gguf_files.Blocks("Q8_0", (1, 32), infinite),
    }
    file = checkpoints.load_gguf(save({}, arrays))
    for name in arrays:
        with refused(ValueError, name):
            file.quantized(name)
    with pytest.raises(KeyError):
        file.quantized("x")


def test_arrays_of_one_and_three_axes(save):
    rng = np.random.default_rng(0)
    deep = rng.standard_normal((2, 3, 4), dtype=np.float32)
    file = checkpoints.load_gguf(save({}, {"v": deep[0, 0], "w": deep}))
    assert_same_bits(file["v"], deep[0, 0])
    assert_same_bits(file.rows("v", 1, 3), deep[0, 0, 1:3])
    assert_same_bits(file["w"], deep)
    assert_same_bits(file.rows("w", 1, 2), deep[1:])


def test_a_row_that_is_not_there_is_refused(save):
    file = checkpoints.load_gguf(save({}, {"w": np.ones((3, 2))}))
    for start, stop in ((0, 4), (-1, 1), (2, 1)):
        with refused(ValueError, "w"):
            file.rows("w", start, stop)
    with pytest.raises(KeyError):
        file["v"]


def test_a_type_that_is_not_read_is_named(save):
    file = checkpoints.load_gguf(
        save({}, {"w": gguf_files.random_blocks("IQ3_S", (2, 256))})
    )
    assert file.describe("w") == ((2, 256), "IQ3_S")
    with refused(ValueError, "w") as caught:
        file["w"]
    assert "IQ3_S" in str(caught.value)


def test_blocks_with_any_scale_are_read_without_a_warning(save, recwarn):
    data = struct.pack("<e", np.inf) + bytes(32) + struct.pack("<e", np.nan) + bytes(32)
    array = gguf_files.Blocks("Q8_0", (2, 32), data)
    assert np.isnan(checkpoints.load_gguf(save({}, {"w": array}))["w"]).all()
    assert not recwarn.list


# ---- Metadata ------------------------------------------------------------------------

VALUES = {
    "a.text": "grün",
    "a.flag": True,
    "a.number": 7,
    "a.float": 0.5,
    "a.double": np.float64(1 / 3),
    "a.negative": np.int64(-(2**40)),
    "a.byte": np.uint8(200),
    "a.texts": ["", "x", "ä"],
    "a.numbers": np.array([1, -2, 3], "i4"),
    "a.floats": np.array([1, 0.1], "f4"),
    "a.flags": np.array([True, False]),
    "a.none": [],
}


def test_metadata_are_what_the_package_reads(save):
    path = save(VALUES, {"w": np.ones((2, 3))})
    ours, theirs = checkpoints.load_gguf(path), gguf.GGUFReader(path)
    assert ours.metadata.keys() == VALUES.keys()
    for key, content in VALUES.items():
        found = ours.metadata[key]
        assert type(found) is type(content if isinstance(content, list) else found)
        np.testing.assert_array_equal(found, content)
        if key != "a.none":
            np.testing.assert_array_equal(found, theirs.fields[key].contents())
    (tensor,) = theirs.tensors
    assert tensor.name == "w"
    assert_same_bits(ours["w"], tensor.data)


def test_a_float_is_the_number_that_was_written(save):
    metadata = checkpoints.load_gguf(save({"a.eps": 1e-5, "a.nan": np.nan})).metadata
    assert metadata["a.eps"] == 1e-5
    assert np.isnan(metadata["a.nan"])


def test_what_the_package_writes_is_read(tmp_path):
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_token_list(["a", "b"])
    writer.add_custom_alignment(64)
    weights = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
    kind = gguf.GGMLQuantizationType.Q8_0
    quantised = gguf.quantize(weights, kind)
    writer.add_tensor("blk.0.attn_q.weight", quantised, raw_dtype=kind)
    writer.add_tensor("output_norm.weight", weights[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = checkpoints.load_gguf(path)
    assert file.metadata["llama.block_count"] == 3
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "b"]
    assert_same_bits(file["output_norm.weight"], weights[0])
    assert_same_bits(file["blk.0.attn_q.weight"], gguf.dequantize(quantised, kind))


def test_a_file_is_shown_by_what_it_has(save):
    arrays = {"v": np.ones(3), "w": gguf_files.random_blocks("Q8_0", (2, 32))}
    file = checkpoints.load_gguf(save({"general.architecture": "llama"}, arrays))
    assert repr(file) == (
        "GgufFile(architecture='llama', arrays=2, types=F32 and Q8_0, numbers=67)"
    )


def test_without_the_package_an_error_says_what_to_install(save, monkeypatch):
    path = save({})
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(ImportError, match=r"pip install 'attnpy\[gguf\]'"):
        checkpoints.load_gguf(path)
    for missing in (f"{path}s", f"{path}/a"):  # whatever is installed
        with pytest.raises(FileNotFoundError, match=r": expected a file, got none$"):
            checkpoints.load_gguf(missing)


# ---- Models --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_model_is_that_of_a_folder_with_the_same_weights(save, kind):
    config = CONFIGS[kind]
    path = save(*gguf_files.model(config))
    model, expected = CausalDecoder.from_gguf(path), in_folders_words(config)
    assert_same_parameters(model, expected)
    assert model.stop == ()
    states = expected(IDS)
    if config["model_type"] in ("phi3", "llama with yarn"):
        # The file has the factor of attention in float32.
        np.testing.assert_allclose(model(IDS), states, rtol=0, atol=1e-5)
    else:
        assert_same_bits(model(IDS), states)
    np.testing.assert_allclose(
        model.logits(model(IDS)), expected.logits(states), rtol=0, atol=1e-5
    )


def test_the_page_names_what_is_read():
    page = (Path(__file__).parents[1] / "docs" / "models.md").read_text("utf-8")
    section = page[page.index("## GGUF files") :]
    names = *checkpoints.gguf.TYPES, *checkpoints.gguf_tokenizer.CUTS
    assert [name for name in names if name not in section] == []
    assert [name for name in ARCHITECTURES if f"`{name}`" not in section] == []


def test_every_architecture_is_compared():
    compared = {gguf_files.ARCHITECTURES[c["model_type"]] for c in CONFIGS.values()}
    assert compared == set(ARCHITECTURES)


def test_the_divisors_of_llama_3s_frequencies_are_honoured(save):
    config = {**families.LLAMA, "hidden_size": 64, "rope_scaling": LLAMA3}
    expected = in_folders_words(config)
    metadata, arrays = gguf_files.model({**config, "rope_scaling": None})
    plain = config["rope_theta"] ** -(np.arange(0, 16, 2) / 16)
    factors = (plain / expected.rotary.frequencies).astype(np.float32)
    assert factors.min() == 1
    assert factors.max() == 8
    assert len(set(factors.tolist())) > 2
    model = CausalDecoder.from_gguf(
        save(metadata, {**arrays, "rope_freqs.weight": factors})
    )
    frequencies = model.rotary.frequencies
    np.testing.assert_allclose(frequencies, expected.rotary.frequencies, rtol=1e-7)
    ids = np.arange(200) % 30
    np.testing.assert_allclose(model(ids), expected(ids), rtol=0, atol=1e-4)
    without = CausalDecoder.from_gguf(save(metadata, arrays))
    assert np.abs(without(ids) - expected(ids)).max() > 1e-2
    some = expected.generate(IDS, 5)
    assert (model.generate(IDS, 5) == some).all()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_model_in_another_dtype_is_rounded_once(save, dtype, packed):
    path = save(*gguf_files.model(families.LLAMA))
    exact = CausalDecoder.from_gguf(path, dtype=np.float64).parameters()
    model = CausalDecoder.from_gguf(path, dtype=dtype, packed=packed)
    for name, array in model.parameters().items():
        assert_same_bits(array, exact[name].astype(dtype))
    assert ("packed=True" in repr(model)) == packed


def test_a_model_is_made_of_an_open_file(save):
    file = checkpoints.load_gguf(save(*gguf_files.model(families.LLAMA)))
    model = CausalDecoder.from_gguf(file)
    assert_same_parameters(model, in_folders_words(families.LLAMA))
    # The file itself still has its own order of rows.
    assert not np.array_equal(
        file["blk.0.attn_q.weight"].T,
        model.parameters()["decoder.layers.0.self_attention.W_q"],
    )


def in_blocks(save):
    """A file whose matrices are of all types of integers."""
    config = {
        **families.LLAMA,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
    }
    metadata, arrays = gguf_files.model(config)
    kinds = [kind for kind in checkpoints.gguf.TYPES if kind[0] == "Q"]
    matrices = [name for name, array in arrays.items() if array.ndim == 2]
    for i, name in enumerate(matrices):
        kind, shape = kinds[i % len(kinds)], arrays[name].shape
        arrays[name] = gguf_files.random_blocks(kind, shape, seed=i)
    return save(metadata, arrays)


def test_quantised_matrices_become_the_numbers_they_stand_for(save):
    path = in_blocks(save)
    file, model = checkpoints.load_gguf(path), CausalDecoder.from_gguf(path)
    own = model.parameters()
    assert_same_bits(own["token_embedding"], file["token_embd.weight"])
    assert_same_bits(own["output"], file["output.weight"].T)
    for i in range(2):
        layer, theirs = f"decoder.layers.{i}", f"blk.{i}"
        down = file[f"{theirs}.ffn_down.weight"].T
        assert_same_bits(own[f"{layer}.feed_forward.W_2"], down)
        keys = file[f"{theirs}.attn_k.weight"]
        halves = keys.reshape(2, 32, 2, 256).swapaxes(1, 2).reshape(128, 256)
        assert_same_bits(own[f"{layer}.self_attention.W_k"], halves.T)


@pytest.mark.quick
def test_matrices_may_keep_the_integers_of_the_file(save):
    path = in_blocks(save)
    small = CausalDecoder.from_gguf(path, weights="file")
    expected = CausalDecoder.from_gguf(path)
    assert "weights=int4, int5, int6 and int8" in repr(small)
    attention = small.decoder.layers[0].self_attention
    assert isinstance(attention.W_k, QuantizedWeight)
    assert isinstance(small.token_embedding, QuantizedTable)
    assert isinstance(small.output, QuantizedWeight)
    assert_same_parameters(small, expected)  # that they stand for
    states, exact = small(IDS), expected(IDS)
    np.testing.assert_allclose(states, exact, rtol=0, atol=1e-4 * abs(exact).max())
    assert_same_bits(small([IDS, IDS[::-1]])[0], states)
    assert (small.generate(IDS, 5, num_threads=3) == small.generate(IDS, 5)).all()


TOGETHER = {
    "phi3": {
        **families.PHI3,
        "hidden_size": 256,
        "intermediate_size": 512,
        "partial_rotary_factor": 1.0,
        "rope_scaling": None,
    },
    "gpt2": {**families.GPT2, "n_embd": 256, "n_head": 4},
}


@pytest.mark.quick
@pytest.mark.parametrize("kind", TOGETHER)
@pytest.mark.parametrize(
    "type_name", ["Q8_0", "Q4_1", "Q5_K", "Q6_K", "IQ4_XS", "MXFP4"]
)
def test_matrices_that_a_file_has_together_keep_their_integers(save, kind, type_name):
    metadata, arrays = gguf_files.model(TOGETHER[kind])
    for i, (name, array) in enumerate(arrays.items()):
        if name.startswith("blk.") and array.ndim == 2:
            arrays[name] = gguf_files.random_blocks(type_name, array.shape, seed=i)
    path = save(metadata, arrays)
    small = CausalDecoder.from_gguf(path, weights="file")
    exact = CausalDecoder.from_gguf(path, dtype=np.float64)
    for layer in small.decoder.layers:
        mha, network = layer.self_attention, layer.feed_forward
        matrices = [mha.W_q, mha.W_k, mha.W_v, mha.W_o, network.W_1, network.W_2]
        if kind == "phi3":
            matrices.append(network.W_gate)
        for matrix in matrices:
            assert isinstance(matrix, QuantizedWeight)
    assert_same_parameters(small, CausalDecoder.from_gguf(path))  # they stand for these
    states, expected = small(IDS), exact(IDS)
    assert_near(states, expected, 2e-6)
    assert_same_bits(small([IDS[:4], IDS[4:8]])[0], small(IDS[:4]))
    rounded = CausalDecoder.from_gguf(path, weights="file", activations="int8")
    assert rounded.decoder.layers[1].self_attention.W_v.activations == "int8"


def assert_near(found, expected, bound):
    """As a relative root mean square."""
    error = np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean())
    assert 0 < error < bound


@pytest.mark.quick
def test_tied_tables_keep_the_integers_of_the_file_once(save):
    config = {**families.LLAMA, "hidden_size": 64, "tie_word_embeddings": True}
    metadata, arrays = gguf_files.model(config)
    arrays["token_embd.weight"] = gguf_files.random_blocks(
        "Q8_0", arrays["token_embd.weight"].shape
    )
    path = save(metadata, arrays)
    small, expected = (
        CausalDecoder.from_gguf(path, weights=weights) for weights in ("file", None)
    )
    assert isinstance(small.token_embedding, QuantizedTable)
    scores = small.logits(small(IDS))
    exact = expected.logits(expected(IDS))
    np.testing.assert_allclose(scores, exact, rtol=0, atol=1e-4 * abs(exact).max())


@pytest.mark.quick
def test_rows_may_be_rounded_to_8_bits(save):
    path = in_blocks(save)
    small = CausalDecoder.from_gguf(path, weights="file", activations="int8")
    expected = CausalDecoder.from_gguf(path, weights="file")
    assert small.output.activations == "int8"
    assert expected.output.activations == "float"
    assert small.decoder.layers[1].feed_forward.W_2.activations == "int8"
    states, exact = small(IDS), expected(IDS)
    error = np.sqrt(((states - exact) ** 2).mean() / (exact**2).mean())
    assert 1e-3 < error < 0.1
    assert_same_bits(small([IDS, IDS[::-1]])[0], states)


def test_what_cannot_keep_the_integers_is_refused(save):
    path = in_blocks(save)
    with refused(ValueError, "activations"):
        CausalDecoder.from_gguf(path, weights="file", activations="int4")
    with refused(ValueError, "activations"):
        CausalDecoder.from_gguf(path, activations="int8")
    with refused(TypeError, "dtype"):
        CausalDecoder.from_gguf(path, weights="file", dtype="float16")
    with refused(ValueError, "weights"):
        CausalDecoder.from_gguf(path, weights="int8")


def test_names_are_looked_up_without_reading_arrays(save, monkeypatch):
    file = checkpoints.load_gguf(in_blocks(save))
    monkeypatch.setattr(checkpoints.GgufFile, "__getitem__", None)
    assert "output.weight" in file and "nothing" not in file and 3 not in file


PEAK = """
import sys
from pathlib import Path
from attnpy.models import CausalDecoder

def peak():
    with open("/proc/self/status") as lines:
        return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM")) * 1024

small, large, weights = sys.argv[1:]
CausalDecoder.from_gguf(small, weights=weights or None)
before = peak()
model = CausalDecoder.from_gguf(large, weights=weights or None)
loaded = peak() - before
size = sum(array.nbytes for array in model.parameters().values())  # copies
print(loaded / (Path(large).stat().st_size if weights else size))
"""


def test_reading_takes_no_more_memory_than_the_model(tmp_path):
    paths = []
    sizes = {"vocab_size": 200_000, "intermediate_size": 30_000}
    for changes in ({}, sizes):  # 150 MB
        config = {**families.LLAMA, "hidden_size": 64, **changes}
        metadata, arrays = gguf_files.model(config)
        for name in ("token_embd.weight", "output.weight"):
            arrays[name] = gguf_files.random_blocks("Q8_0", arrays[name].shape)
        path = tmp_path / f"{len(paths)}.gguf"
        paths.append(gguf_files.write(path, metadata, arrays))
    # The matrix of the scores is packed as it is read.
    assert 0.9 < float(assert_runs(PEAK, *paths, "")) < 1.2


@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K"])
def test_reading_integers_takes_little_more_memory_than_the_file(kind, tmp_path):
    paths = []
    for n_words, size in ((100, 64), (40_000, 1024)):  # 70 MB
        config = {**families.LLAMA, "hidden_size": size, "vocab_size": n_words}
        metadata, arrays = gguf_files.model(config)
        for name, array in arrays.items():
            if array.ndim == 2 and array.shape[1] % gguf_files.BLOCKS[kind][0] == 0:
                arrays[name] = gguf_files.random_blocks(kind, array.shape)
        path = tmp_path / f"{len(paths)}.gguf"
        paths.append(gguf_files.write(path, metadata, arrays))
    assert 0.9 < float(assert_runs(PEAK, *paths, "file")) < 1.25


@pytest.mark.parametrize("kind", KEPT)
def test_models_take_little_more_memory_than_their_files(save, kind):
    changes = {"hidden_size": 512, "intermediate_size": 1024, "vocab_size": 2000}
    metadata, arrays = gguf_files.model({**families.LLAMA, **changes})
    for name, array in arrays.items():
        if array.ndim == 2:
            arrays[name] = gguf_files.random_blocks(kind, array.shape)
    path = Path(save(metadata, arrays))
    model = CausalDecoder.from_gguf(path, weights="file")
    kept = {id(array): array.nbytes for _, array in walk(model)}
    assert 0.95 < sum(kept.values()) / path.stat().st_size < 1.1


def test_the_largest_models_have_another_scale(save):
    config = {**families.GEMMA2, "num_hidden_layers": 46}
    model = CausalDecoder.from_gguf(save(*gguf_files.model(config)))
    assert model.scale == (16 // 4) ** -0.5
    config["num_hidden_layers"] = 45
    model = CausalDecoder.from_gguf(save(*gguf_files.model(config)))
    assert model.scale == 6**-0.5


@pytest.mark.parametrize("flags", [None, [True, False, True]])
def test_layers_of_gemma_3_have_the_windows_that_the_file_says(save, flags):
    metadata, arrays = gguf_files.model(families.GEMMA3)
    if flags is None:
        del metadata["gemma3.attention.sliding_window"]
        assert CausalDecoder.from_gguf(save(metadata, arrays)).window is None
    else:
        metadata["gemma3.attention.sliding_window_pattern"] = np.array(flags)
        window = CausalDecoder.from_gguf(save(metadata, arrays)).window
        assert window == [(2, 0) if flag else None for flag in flags]


# ---- What is refused -----------------------------------------------------------------

# Changes of a file for Llama, and what the error says.
FAULTS = {
    "general.architecture": ({"general.architecture": "mamba"}, "'mamba'"),
    "no architecture": ({"general.architecture": None}, "general.architecture"),
    "type": ({"general.type": "adapter"}, "general.type = 'model'"),
    "split": ({"split.count": np.uint16(2)}, "got 2 (llama-gguf-split --merge"),
    "quantization": ({"general.quantization_version": 1}, "quantization_version = 2"),
    "unknown key": ({"llama.attention.new": 1}, "no llama.attention.new"),
    "elsewhere": ({"other.key": 1}, "no other.key"),
    "a long array": ({"split.count": np.zeros(261, "f4")}, "split.count = 0"),
    "experts": ({"llama.expert_count": 8}, "llama.expert_used_count to be there"),
    "window": ({"llama.attention.sliding_window": 4096}, "sliding_window = 0"),
    "scaling": ({"llama.rope.scaling.type": "longrope"}, "llama.rope.scaling.type"),
    "experts of several kinds": (
        {"llama.expert_count": np.array([8, 4], "i4")},
        "llama.expert_count = 0",
    ),
    "no factor": ({"llama.rope.scaling.type": "linear"}, "rope.scaling.factor"),
    "factor": ({"llama.rope.scaling.factor": -1.0}, "a finite number above 0"),
    "yarn": (
        {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0},
        "rope.scaling.original_context_length to be there",
    ),
    "attention factor": ({"llama.rope.scaling.attn_factor": 2.0}, "attn_factor"),
    "yarn beta": ({"llama.rope.scaling.yarn_beta_fast": 1.0}, "yarn_beta_fast = 32.0"),
    "partial": ({"llama.rope.dimension_count": 2}, "rope.dimension_count to be 4"),
    "values": ({"llama.attention.value_length": 5}, "value_length to be 4"),
    "no layers": ({"llama.block_count": None}, "llama.block_count to be there"),
    "layers": ({"llama.block_count": 3}, "llama.block_count to be 2"),
    "zero layers": ({"llama.block_count": 0}, "an integer from 1"),
    "many layers": ({"llama.block_count": 2**31}, "an integer from 1 to 10000"),
    "text": ({"llama.embedding_length": "16"}, "llama.embedding_length to be"),
    "flag": ({"llama.embedding_length": True}, "llama.embedding_length to be"),
    "width": ({"llama.embedding_length": 12}, "embedding_length to be 16"),
    "heads": ({"llama.attention.head_count": 3}, "a multiple of 3 heads"),
    "more heads": ({"llama.attention.head_count": 16}, "dimension_count to be 1"),
    "wider heads": ({"llama.attention.key_length": 5}, "blk.0.attn_output.weight"),
    "fewer keys": ({"llama.attention.head_count_kv": 1}, "blk.0.attn_k.weight"),
    "network": ({"llama.feed_forward_length": 2**31 - 1}, "blk.0.ffn_down.weight"),
    "layers differ": (
        {"llama.feed_forward_length": np.array([20, 21], "i4")},
        "llama.feed_forward_length to be",
    ),
    "no eps": ({"llama.attention.layer_norm_rms_epsilon": None}, "epsilon to be there"),
    "eps": ({"llama.attention.layer_norm_rms_epsilon": np.nan}, "a finite number"),
    "base": ({"llama.rope.freq_base": 0.0}, "llama.rope.freq_base to be"),
    "tokenizer": ({"tokenizer.ggml.precompiled_charsmap": "x"}, "precompiled_charsmap"),
    "many tokens": ({"tokenizer.ggml.tokens": [*map(str, range(31))]}, "at most 30"),
}


# Those of other families: a key, its value, and what the error says.
OTHER_FAULTS = [
    ("granite", "granite.attention.scale", None, "attention.scale to be there"),
    ("granite", "granite.rope.scaling.finetuned", False, "finetuned = True, got False"),
    ("granitemoe", "granitemoe.expert_shared_feed_forward_length", 8, "no granitemoe"),
    ("granitemoe", "granitemoe.expert_gating_func", 2, "gating_func = 1, got 2"),
    ("cohere", "command-r.logit_scale", None, "command-r.logit_scale to be there"),
    ("cohere2", "cohere2.attention.sliding_window", None, "window to be there"),
    ("starcoder2", "starcoder2.attention.sliding_window", 3, "sliding_window = 0"),
    ("olmo3", "olmo2.attention.sliding_window_pattern", 4, "a list of names, got 4"),
    ("stablelm", "stablelm.attention.key_length", 8, "no stablelm.attention.key_le"),
    ("nemotron", "nemotron.rope.scaling.type", "longrope", "none, linear or yarn"),
]


@pytest.mark.parametrize(("kind", "key", "value", "said"), OTHER_FAULTS)
def test_keys_of_other_families_are_refused_by_name(save, kind, key, value, said):
    metadata, arrays = gguf_files.model(CONFIGS[kind])
    path = save(changed(metadata, {key: value}), arrays)
    with pytest.raises(ValueError, match=rf"m\.gguf: expected .*{said}"):
        CausalDecoder.from_gguf(path)


def test_heads_of_keys_are_as_many_as_those_of_queries_where_a_file_says_nothing(save):
    config = {**families.STABLELM, "num_key_value_heads": 4}
    metadata, arrays = gguf_files.model(config)
    del metadata["stablelm.attention.head_count_kv"]
    model = CausalDecoder.from_gguf(save(metadata, arrays))
    assert_same_parameters(model, in_folders_words(config))


def test_the_norm_of_stablelm_says_what_is_side_by_side(save):
    metadata, arrays = gguf_files.model(families.STABLELM)
    assert metadata["stablelm.use_parallel_residual"] is True
    layer = CausalDecoder.from_gguf(save(metadata, arrays)).decoder.layers[0]
    assert layer.parallel is False


def changed(content, changes):
    """A mapping with other values, and without those that are None."""
    merged = {**content, **changes}
    return {key: value for key, value in merged.items() if value is not None}


@pytest.mark.parametrize("what", FAULTS)
def test_a_key_that_is_not_honoured_is_refused_by_name(save, what):
    changes, said = FAULTS[what]
    metadata, arrays = gguf_files.model(families.LLAMA)
    path = save(changed(metadata, changes), arrays)
    start = r"(.*m\.gguf|checkpoint: blk.0.attn_k.weight)"
    with refused(ValueError, start) as caught:
        CausalDecoder.from_gguf(path)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


def test_values_of_all_layers_that_are_equal_are_one(save):
    metadata, arrays = gguf_files.model(families.LLAMA)
    metadata["llama.feed_forward_length"] = np.array([20, 20], "i4")
    CausalDecoder.from_gguf(save(metadata, arrays))


def test_what_does_not_matter_is_passed_over(save):
    metadata, arrays = gguf_files.model(families.LLAMA)
    metadata |= {
        "general.name": "x",
        "general.file_type": 3,
        "general.quantization_version": 2,
        "general.sampling.temp": 0.5,
        "quantize.imatrix.file": "x",
        "llama.rope.scaling.finetuned": False,
        "llama.rope.scaling.type": "none",
        "llama.expert_count": 0,
        "split.count": np.uint16(1),
        "split.no": np.uint16(0),
        "tokenizer.ggml.padding_token_id": 0,
    }
    model = CausalDecoder.from_gguf(save(metadata, arrays))
    assert_same_parameters(model, in_folders_words(families.LLAMA))


ARRAYS = {
    "missing": ({"blk.1.attn_norm.weight": None}, "missing blk.1.attn_norm.weight"),
    "no embeddings": ({"token_embd.weight": None}, "token_embd.weight"),
    "unexpected": ({"blk.0.attn_sinks.weight": np.ones(4)}, "blk.0.attn_sinks.weight"),
    "bias": ({"blk.1.attn_q.bias": np.ones(16)}, "unexpected blk.1.attn_q.bias"),
    "shape": ({"blk.0.ffn_up.weight": np.ones((20, 15))}, "blk.0.ffn_up.weight"),
    "vector": ({"token_embd.weight": np.ones(16)}, "token_embd.weight"),
    "type": (
        {"blk.0.ffn_up.weight": gguf_files.random_blocks("IQ3_S", (20, 256))},
        "got IQ3_S of blk.0.ffn_up.weight",
    ),
    "factors": ({"rope_freqs.weight": np.ones((2, 2))}, "rope_freqs.weight"),
    "factors of another size": ({"rope_freqs.weight": np.ones(3)}, "2 numbers"),
    "negative factors": ({"rope_freqs.weight": -np.ones(2)}, "factor"),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_an_array_that_is_not_honoured_is_refused_by_name(save, what):
    changes, said = ARRAYS[what]
    metadata, arrays = gguf_files.model(families.LLAMA)
    path = save(metadata, changed(arrays, changes))
    with pytest.raises(ValueError, match=r"expected|missing") as caught:
        CausalDecoder.from_gguf(path)
    assert said in str(caught.value)


def test_types_that_are_not_read_are_one_sentence(save):
    metadata, arrays = gguf_files.model({**families.LLAMA, "hidden_size": 256})
    for name in list(arrays):
        if arrays[name].ndim == 2 and arrays[name].shape[1] == 256:
            arrays[name] = gguf_files.random_blocks("IQ3_S", arrays[name].shape)
    with refused(ValueError, ".*") as caught:
        CausalDecoder.from_gguf(save(metadata, arrays))
    assert str(caught.value).count("IQ3_S") == 1
    assert "and 13 more" in str(caught.value)


def test_options_are_checked_as_elsewhere(save):
    path = save(*gguf_files.model(families.LLAMA))
    with refused(TypeError, "dtype"):
        CausalDecoder.from_gguf(path, dtype="int8")
    with refused(TypeError, "packed"):
        CausalDecoder.from_gguf(path, packed=2)
    with pytest.raises(FileNotFoundError):
        CausalDecoder.from_gguf(path.with_name("none.gguf"))
