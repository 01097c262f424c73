"""Checkpoints in each family's names: where arrays go, and what is refused."""

import copy
import gc
import json
import math
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
from support import families
from support.arrays import normal
from support.comparisons import assert_same_bits, assert_same_parameters
from support.errors import refused
from support.processes import assert_runs

from attnpy import checkpoints
from attnpy._families import FAMILIES
from attnpy.checkpoints import files
from attnpy.layers import MultiHeadAttention
from attnpy.models import BertEncoder, CausalDecoder

pytestmark = pytest.mark.quick

numpy_files = pytest.importorskip("safetensors.numpy")


def bert(tensors=None):
    model = BertEncoder.from_config(families.BERT)
    if tensors is not None:
        checkpoints.load(model, tensors, "bert")
    return model


def decoder(kind, tensors=None, **changes):
    config = {**families.DECODERS[kind], **changes}
    model = CausalDecoder.from_config(config)
    if tensors is not None:
        checkpoints.load(model, tensors, families.NAMES[kind])
    return model


def torch_layer(separate=False, **sizes):
    """Arrays of a torch.nn.MultiheadAttention with two heads of three."""
    e, names = 6, {"q": 6, "k": 6, "v": 6, **sizes}
    tensors = {
        "in_proj_bias": normal(3 * e, seed=1),
        "out_proj.weight": normal(e, e, seed=2),
        "out_proj.bias": normal(e, seed=3),
    }
    matrices = {f"{n}_proj_weight": normal(e, s, seed=4) for n, s in names.items()}
    if separate:
        return {**matrices, **tensors}
    return {"in_proj_weight": np.concatenate(list(matrices.values())), **tensors}


@pytest.mark.parametrize("separate", [False, True])
def test_torch_attention_computes_what_its_arrays_say(separate):
    tensors = torch_layer(separate, **({"k": 5, "v": 4} if separate else {}))
    sizes = {"context_dim": 5, "value_dim": 4} if separate else {}
    mha = MultiHeadAttention(6, 2, bias=True, **sizes)
    checkpoints.load(mha, tensors, "torch_attention")
    w = {name: array.astype(float) for name, array in tensors.items()}
    if separate:
        matrices = [w[f"{n}_proj_weight"] for n in "qkv"]
    else:
        matrices = np.split(w["in_proj_weight"], 3)
    x, key, value = normal(4, 6), normal(7, len(mha.W_k)), normal(7, len(mha.W_v))
    given = x, key, value
    query, key, value = (
        (y @ matrix.T + bias).reshape(-1, 2, 3).swapaxes(0, 1)
        for y, matrix, bias in zip(
            given, matrices, np.split(w["in_proj_bias"], 3), strict=True
        )
    )
    terms = np.exp(query @ key.swapaxes(1, 2) / math.sqrt(3))
    z = terms / terms.sum(axis=-1, keepdims=True) @ value
    z = z.swapaxes(0, 1).reshape(4, 6)
    expected = z @ w["out_proj.weight"].T + w["out_proj.bias"]
    np.testing.assert_allclose(mha(*given), expected, atol=1e-5)


def test_torch_attention_without_biases_and_under_a_prefix():
    arrays = torch_layer()
    model = {
        "layers.0.self_attn.in_proj_weight": arrays["in_proj_weight"],
        "layers.0.self_attn.out_proj.weight": arrays["out_proj.weight"],
        "layers.0.norm1.weight": np.ones(6),
    }
    mha = MultiHeadAttention(6, 2, bias=False)
    checkpoints.load(mha, model, "torch_attention", prefix="layers.0.self_attn.")
    assert_same_bits(mha.W_q, np.ascontiguousarray(arrays["in_proj_weight"][:6].T))
    assert_same_bits(mha.W_o, np.ascontiguousarray(arrays["out_proj.weight"].T))
    with pytest.raises(ValueError, match=r"missing a.in_proj_weight, a.out_proj.w"):
        checkpoints.load(mha, model, "torch_attention", prefix="a.")


def test_torch_attention_with_learned_keys_is_refused():
    mha = MultiHeadAttention(6, 2, bias=True)
    tensors = {**torch_layer(), "bias_k": np.ones((1, 1, 6))}
    with pytest.raises(ValueError, match=r"bias_k: expected none, .*add_bias_kv=True"):
        checkpoints.load(mha, tensors, "torch_attention")


def test_torch_attention_in_both_forms_or_of_other_sizes_is_refused():
    both = {**torch_layer(), **torch_layer(separate=True)}
    mha = MultiHeadAttention(6, 2, bias=True)
    text = r"checkpoint: unexpected k_proj_weight, q_proj_weight, v_proj_weight$"
    with pytest.raises(ValueError, match=text):
        checkpoints.load(mha, both, "torch_attention")
    other = MultiHeadAttention(6, 2, bias=True, context_dim=5)
    with pytest.raises(ValueError, match="in_proj_weight: expected several arrays"):
        checkpoints.load(other, torch_layer(), "torch_attention")


def test_bert_has_several_names():
    tensors = families.tensors(families.BERT)
    expected = bert(tensors)
    for prefix in ("bert.", "model."):
        named = {prefix + name: array for name, array in tensors.items()}
        assert_same_parameters(bert(named), expected)


OLDER = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
WITH_NORMS = {
    kind: config
    for kind, config in families.ENCODERS.items()
    if any(name.endswith("LayerNorm.weight") for name in families.tensors(config))
}


@pytest.mark.quick
@pytest.mark.parametrize("kind", WITH_NORMS)
def test_norms_may_have_their_names_of_tensorflow(kind):
    """Transformers 5.3 writes them, whatever names it has read."""
    config = WITH_NORMS[kind]
    tensors = families.tensors(config)
    renamed = dict(tensors)
    for name in tensors:
        for new, old in OLDER.items():
            if name.endswith(new):
                renamed[name.removesuffix(new) + old] = renamed.pop(name)
    assert renamed.keys() != tensors.keys()
    expected, found = (BertEncoder.from_config(config) for _ in range(2))
    for model, arrays in ((expected, tensors), (found, renamed)):
        checkpoints.load(model, arrays, FAMILIES[kind].checkpoint)
    assert_same_parameters(found, expected)


def test_buffers_pooler_and_classifier_of_bert_are_left_alone():
    tensors = families.tensors(families.BERT)
    more = {
        "bert.embeddings.position_ids": np.arange(16)[None],
        "bert.pooler.dense.weight": np.ones((12, 12)),
        "classifier.weight": np.ones((2, 12)),
    }
    named = {f"bert.{name}": array for name, array in tensors.items()}
    assert_same_parameters(bert({**named, **more}), bert(tensors))


# Names of heads that are not here, by the family of names.
HEADS = {
    "bert": ("cls.predictions.bias", "cls.seq_relationship.weight", "qa_outputs.bias"),
    "esm": ("lm_head.dense.weight", "classifier.dense.weight"),
    **dict.fromkeys(
        families.JINA_BERTS,
        ("cls.predictions.bias", "classifier.weight", "qa_outputs.bias"),
    ),
    **dict.fromkeys(
        ("roberta", "xlm-roberta-xl", "roberta-prelayernorm", "data2vec-text"),
        ("lm_head.dense.weight", "classifier.out_proj.bias", "qa_outputs.bias"),
    ),
    "distilbert": ("pre_classifier.weight", "classifier.bias", "vocab_projector.bias"),
    "electra": (
        "discriminator_predictions.dense.weight",
        "generator_lm_head.bias",
        "classifier.out_proj.bias",
    ),
    "albert": ("predictions.dense.weight", "sop_classifier.classifier.bias"),
    "modernbert": ("head.dense.weight", "decoder.bias", "classifier.weight"),
    "eurobert": (
        "lm_head.weight",
        "dense.weight",
        "classifier.bias",
        "qa_outputs.bias",
    ),
    "nomic_bert": ("cls.predictions.bias", "classifier.weight"),
    "jina_embeddings_v3": ("lm_head.dense.bias", "qa_outputs.bias"),
    "gte": ("lm_head.dense.bias", "classifier.bias", "qa_outputs.bias"),
    **dict.fromkeys(
        ("deberta", "deberta-v2"),
        (
            "cls.predictions.bias",
            "lm_predictions.lm_head.bias",
            "mask_predictions.dense.weight",
            "pooler.dense.bias",
            "classifier.bias",
            "qa_outputs.bias",
        ),
    ),
    "mpnet": ("lm_head.bias", "classifier.dense.weight", "qa_outputs.weight"),
    "gpt2": ("score.weight", "classifier.bias", "multiple_choice_head.summary.bias"),
    "llama": ("score.weight",),
    "phi3": ("score.weight",),
    "gemma": ("score.weight",),
    "gemma1": ("score.weight",),
    "olmo2": ("score.weight",),
    "phi": ("score.weight", "classifier.weight", "classifier.bias"),
    "mixtral": ("score.weight",),
    "gpt_oss": ("score.weight",),
    "qwen_moe": ("score.weight", "qa_outputs.bias"),
    "gpt_neox": ("score.weight", "qa_outputs.weight", "qa_outputs.bias"),
    **dict.fromkeys(
        (
            *("starcoder2", "stablelm", "nemotron", "glm", "glm4"),
            *("granitemoe", "granitemoehybrid", "gpt_neo", "gpt_bigcode"),
            *("opt", "gptj", "falcon", "exaone", "bloom", "mpt"),
        ),
        ("score.weight", "score.bias"),
    ),
}


@pytest.mark.parametrize("kind", [*families.ENCODERS, *families.DECODERS])
def test_heads_that_are_not_here_are_refused_or_left_alone_as_asked(kind):
    family = families.NAMES[kind]
    config = {**families.ENCODERS, **families.DECODERS}[kind]
    make = BertEncoder if kind in families.ENCODERS else CausalDecoder
    tensors = families.tensors(config)
    expected = make.from_config(config)
    checkpoints.load(expected, tensors, family)
    for prefix in ("", checkpoints.FAMILIES[family].prefixes[0]):
        heads = {prefix + name: np.ones(3, np.float32) for name in HEADS[family]}
        model = make.from_config(config)
        before = copy.deepcopy(model)
        for name, array in heads.items():
            text = rf"no head of another task, .*got {name} \(ignore_head=True reads th"
            with pytest.raises(ValueError, match=text):
                checkpoints.load(model, {**tensors, name: array}, family)
            assert_same_parameters(model, before)
        checkpoints.load(model, {**tensors, **heads}, family, ignore_head=True)
        assert_same_parameters(model, expected)


@pytest.mark.parametrize("kind", families.DECODERS)
def test_decoders_with_and_without_their_prefix(kind):
    tensors = families.tensors(families.DECODERS[kind])
    expected = decoder(kind, tensors)
    if kind == "gpt2":
        other = {f"transformer.{name}": array for name, array in tensors.items()}
    else:
        prefix = {"gpt_neox": "gpt_neox."}.get(kind, "model.")
        of_gpt = "gpt_neo", "gpt_bigcode", "gptj", "falcon", "bloom", "mpt"
        prefix = "transformer." if kind in of_gpt else prefix
        other = {name.removeprefix(prefix): array for name, array in tensors.items()}
    assert other.keys() != tensors.keys()
    assert_same_parameters(decoder(kind, other), expected)


def test_buffers_of_decoders_are_left_alone():
    tensors = families.tensors(families.GPT2)
    more = {
        "h.0.attn.bias": np.ones((1, 1, 16, 16), bool),
        "transformer.h.1.attn.masked_bias": np.float32(-1e4),
    }
    assert_same_parameters(
        decoder("gpt2", {**tensors, **more}), decoder("gpt2", tensors)
    )
    tensors = families.tensors(families.LLAMA)
    more = {"model.layers.1.self_attn.rotary_emb.inv_freq": np.ones(2)}
    loaded = decoder("llama", {**tensors, **more})
    assert_same_parameters(loaded, decoder("llama", tensors))


@pytest.mark.parametrize(
    ("kind", "words"), [("gpt2", "wte.weight"), ("qwen2", "model.embed_tokens.weight")]
)
def test_tied_scores_may_be_there_if_they_are_equal(kind, words):
    tensors = families.tensors(families.DECODERS[kind])
    expected = decoder(kind, tensors)
    twice = {**tensors, "lm_head.weight": tensors[words].copy()}
    assert_same_parameters(decoder(kind, twice), expected)
    twice["lm_head.weight"][3, 4] += 1
    with pytest.raises(ValueError, match=r"lm_head.weight: expected .* tied$"):
        decoder(kind, twice)
    untied = decoder(kind, twice, tie_word_embeddings=False)
    assert_same_bits(untied.output, np.ascontiguousarray(twice["lm_head.weight"].T))
    with pytest.raises(ValueError, match=r"checkpoint: missing lm_head.weight$"):
        decoder(kind, tensors, tie_word_embeddings=False)


def test_all_that_is_wrong_is_in_one_error_and_nothing_changes():
    model = bert()
    before = copy.deepcopy(model)
    tensors = {f"bert.{n}": a for n, a in families.tensors(families.BERT).items()}
    del tensors["bert.encoder.layer.1.intermediate.dense.bias"]
    del tensors["bert.embeddings.LayerNorm.weight"]
    tensors |= {
        "bert.encoder.layer.2.output.dense.bias": np.ones(12),
        "bert.x": np.ones(1),
        "bert.embeddings.LayerNorm.beta": np.ones(12),
        "bert.encoder.layer.0.output.dense.weight": np.ones((20, 12)),
        "bert.encoder.layer.0.output.dense.bias": np.ones(12, np.int8),
    }
    text = (
        "checkpoint: missing embeddings.LayerNorm.weight, "
        "encoder.layer.1.intermediate.dense.bias; "
        "unexpected bert.embeddings.LayerNorm.beta, "
        "bert.encoder.layer.2.output.dense.bias, bert.x; "
        "bert.encoder.layer.0.output.dense.weight: expected shape (12, 20), got "
        "(20, 12); "
        "bert.encoder.layer.0.output.dense.bias: expected floating numbers, got dtype "
        "int8"
    )
    with pytest.raises(ValueError, match=r"^checkpoint: missing") as caught:
        checkpoints.load(model, tensors, "bert")
    assert str(caught.value) == text
    assert_same_parameters(model, before)


def test_a_bias_that_the_model_has_not_is_unexpected():
    tensors = families.tensors(families.QWEN2)
    text = "unexpected model.layers.0.self_attn.k_proj.bias, model.layers.0.self_attn"
    with pytest.raises(ValueError, match=text):
        decoder("llama", tensors, tie_word_embeddings=True)


def test_models_of_another_family_are_refused():
    with pytest.raises(ValueError, match=r"^family: expected one of .*got 'gpt3'"):
        checkpoints.load(bert(), {}, "gpt3")
    with pytest.raises(ValueError, match=r"^model: expected one of the family.*W_k"):
        checkpoints.load(MultiHeadAttention(6, 2), {}, "bert")


def test_values_are_converted_to_the_models_dtype(dtype):
    model = BertEncoder.from_config(families.BERT, dtype=dtype)
    tensors = families.tensors(families.BERT)
    wide = {name: array.astype(np.float64) for name, array in tensors.items()}
    for given in (tensors, wide):
        checkpoints.load(model, given, "bert")
        expected = tensors["encoder.layer.1.output.dense.weight"].T.astype(dtype)
        assert_same_bits(
            model.encoder.layers[1].feed_forward.W_2, np.ascontiguousarray(expected)
        )


def test_large_matrices_are_turned_in_strips(dtype):
    sizes = {"vocab_size": 150, "intermediate_size": 130}
    config = {**families.QWEN2, **sizes}
    for given in (dtype, np.float64, np.float32):
        tensors = {n: a.astype(given) for n, a in families.tensors(config).items()}
        model = CausalDecoder.from_config(config, dtype=dtype)
        checkpoints.load(model, tensors, "llama")
        words = tensors["model.embed_tokens.weight"].astype(dtype)
        assert_same_bits(np.ascontiguousarray(model.token_embedding), words)
        down = tensors["model.layers.1.mlp.down_proj.weight"].T
        gate = tensors["model.layers.1.mlp.gate_proj.weight"].T
        network = model.decoder.layers[1].feed_forward
        for array, right in ((network.W_2, down), (network.W_gate, gate)):
            assert_same_bits(array, np.ascontiguousarray(right).astype(dtype))


def test_files_of_every_dtype(tmp_path, dtype):
    tensors = {
        name: array.astype(dtype)
        for name, array in families.tensors(families.BERT).items()
    }
    path = tmp_path / "model.safetensors"
    numpy_files.save_file(tensors, path)
    read = checkpoints.read(path)
    assert sorted(read) == sorted(tensors)
    assert len(read) == len(tensors)
    name = "encoder.layer.0.output.dense.weight"
    assert read.describe(name) == ((12, 20), dtype.name)
    assert_same_bits(read[name], tensors[name])
    assert_same_parameters(bert(read), bert(tensors))
    with pytest.raises(KeyError):
        read["x"]


def test_rows_of_an_array_are_read_alone(tmp_path):
    arrays = {
        "matrix": normal(7, 5),
        "numbers": np.arange(6, dtype=np.int64),
        "flags": np.array([[True], [False]]),
        "scalar": np.float64(3),
        "nothing": np.zeros((0, 4), np.float16),
        "deep": normal(3, 0, 2),
    }
    path = tmp_path / "x.safetensors"
    numpy_files.save_file({n: np.asarray(a) for n, a in arrays.items()}, path)
    tensors = checkpoints.read(path)
    for name, array in arrays.items():
        assert_same_bits(tensors[name], np.asarray(array))
        first = np.atleast_1d(array)
        n_rows = len(first)
        for start, stop in ((0, n_rows), (n_rows // 2, n_rows), (n_rows, n_rows)):
            assert_same_bits(tensors.rows(name, start, stop), first[start:stop])
        for start, stop in ((-1, 0), (n_rows, 0), (0, n_rows + 1)):
            if start != stop:
                with pytest.raises(ValueError, match=f"{name}: expected rows of"):
                    tensors.rows(name, start, stop)


def test_whether_there_is_a_name_is_told_without_reading(tmp_path, monkeypatch):
    numpy_files.save_file({"a": normal(3, 4)}, tmp_path / "m.safetensors")
    tensors = checkpoints.read(tmp_path / "m.safetensors")

    def read(*_):
        raise AssertionError("an array is read")

    monkeypatch.setattr(files.reading, "fill", read)
    with pytest.raises(AssertionError, match="an array is read"):
        tensors["a"]
    assert "a" in tensors
    assert "a" in tensors.keys()  # noqa: SIM118
    assert "b" not in tensors
    assert 3 not in tensors


def test_a_file_that_is_cut_off_when_it_is_open_is_an_error(tmp_path):
    path = tmp_path / "model.safetensors"
    numpy_files.save_file({"a": np.ones((9, 9)), "b": np.ones(500)}, path)
    tensors = checkpoints.read(path)
    os.truncate(path, 1000)
    with pytest.raises(ValueError, match=r"^[ab]: expected \d+ more bytes, got none"):
        [tensors[name] for name in tensors]


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
def test_files_are_closed_when_nobody_needs_them(tmp_path):
    path = tmp_path / "model.safetensors"
    numpy_files.save_file({"a": np.ones(2)}, path)

    def is_open():
        links = (
            os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")
        )
        return str(path) in {os.path.realpath(link) for link in links}

    tensors = checkpoints.read(path)
    other = copy.copy(tensors)
    del tensors
    gc.collect()
    assert is_open()
    assert other["a"].sum() == 2
    del other
    gc.collect()
    assert not is_open()


PEAK = """
import sys
from attnpy.models import CausalDecoder

def peak():
    # Not ru_maxrss, in which the process that started this one counts as well.
    with open("/proc/self/status") as lines:
        return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM")) * 1024

small, large, dtype = sys.argv[1:]
CausalDecoder.from_pretrained(small, dtype=dtype)
before = peak()
model = CausalDecoder.from_pretrained(large, dtype=dtype)
loaded = peak() - before
weights = sum(array.nbytes for array in model.parameters().values())  # copies
print(loaded / weights)
"""


@pytest.mark.quick(name=("bfloat16",))
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/status")
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_loading_takes_no_more_memory_than_the_weights(tmp_path, name):
    pytest.importorskip("ml_dtypes")
    sizes = {"hidden_size": 64, "vocab_size": 200_000, "intermediate_size": 30_000}
    folders = {}
    for size, config in (("small", {}), ("large", sizes)):  # 4 KB and 100 MB
        config = {**families.QWEN2, **config}
        folders[size] = tmp_path / size
        folders[size].mkdir()
        (folders[size] / "config.json").write_text(json.dumps(config))
        tensors = families.tensors(config)
        tensors = {key: array.astype(name) for key, array in tensors.items()}
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]  # once more
        numpy_files.save_file(tensors, folders[size] / "model.safetensors")
    for dtype in ("float32", "bfloat16"):
        times = assert_runs(PEAK, folders["small"], folders["large"], dtype)
        assert 0.9 < float(times) < 1.2, dtype


def test_no_array_changes_where_a_dtype_is_missing(tmp_path, monkeypatch):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensors = families.tensors(families.BERT)
    last = list(tensors)[-1]
    tensors[last] = tensors[last].astype(ml_dtypes.bfloat16)
    numpy_files.save_file(tensors, tmp_path / "model.safetensors")
    model = bert()
    before = copy.deepcopy(model)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match=r"ml_dtypes.*'attnpy\[weights\]'"):
        checkpoints.load(model, checkpoints.read(tmp_path), "bert")
    assert_same_parameters(model, before)


def write_shards(folder, tensors, n_shards=3):
    """Write a checkpoint in several files, and return the index."""
    shards = {
        name: f"model-{i % n_shards}.safetensors" for i, name in enumerate(tensors)
    }
    for shard in set(shards.values()):
        part = {name: tensors[name] for name in tensors if shards[name] == shard}
        numpy_files.save_file(part, folder / shard)
    index = {"metadata": {"total_size": 1}, "weight_map": shards}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


def test_sharded_checkpoints(tmp_path):
    tensors = families.tensors(families.LLAMA)
    index = write_shards(tmp_path, tensors)
    for path in (tmp_path, str(tmp_path / "model.safetensors.index.json")):
        loaded = decoder("llama", checkpoints.read(path))
        assert_same_parameters(loaded, decoder("llama", tensors))
    shards = index["weight_map"]
    del shards["model.norm.weight"]
    shards["model.extra"] = "model-0.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    text = "in the files missing model.extra; unexpected model.norm.weight$"
    with pytest.raises(ValueError, match=text):
        checkpoints.read(tmp_path)
    numpy_files.save_file({"lm_head.weight": np.ones(1)}, tmp_path / "a.safetensors")
    index["weight_map"] = {**shards, "model.extra": "a.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"expected no lm_head.weight, which another"):
        checkpoints.read(tmp_path)


@pytest.mark.parametrize("shards", [None, [], {"a": 1}, {"a": "../x.safetensors"}])
def test_an_index_names_files_in_its_folder(tmp_path, shards):
    (tmp_path / "x.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(ValueError, match=r"x.json: expected a 'weight_map' of names"):
        checkpoints.read(tmp_path / "x.json")


def test_files_that_are_missing_or_of_another_kind(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected model.safetensors, "):
        checkpoints.read(tmp_path)
    with pytest.raises(FileNotFoundError):
        checkpoints.read(tmp_path / "x.safetensors")
    with pytest.raises(FileNotFoundError):
        checkpoints.read_config(tmp_path)
    (tmp_path / "x.safetensors").write_bytes(b"no such thing")
    with pytest.raises(ValueError, match=r"x.safetensors: expected a safetensors file"):
        checkpoints.read(tmp_path / "x.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"no such thing")
    with pytest.raises(ValueError, match=r"\.bin: expected .*, or one of PyTorch, got"):
        checkpoints.read(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    for text in ("{", "[]", '"x"'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match=r"config.json: expected a JSON object"):
            checkpoints.read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert checkpoints.read_config(str(tmp_path)) == {"a": 1}


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "F4"])
def test_arrays_of_dtypes_that_numpy_lacks_are_value_errors(tmp_path, dtype):
    n_bytes = 2 if dtype == "F4" else 4
    entry = {"dtype": dtype, "shape": [4], "data_offsets": [0, n_bytes]}
    header = json.dumps({"embeddings.LayerNorm.bias": entry}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(n_bytes))
    tensors = checkpoints.read(path)
    assert tensors.describe("embeddings.LayerNorm.bias") == ((4,), dtype)
    with pytest.raises(ValueError, match=f"Norm.bias: .* that NumPy has, got {dtype}"):
        tensors["embeddings.LayerNorm.bias"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes")
def test_pipes_are_refused_and_not_waited_for(tmp_path):
    for name in ("config.json", "x.json", "x.safetensors"):
        os.mkfifo(tmp_path / name)
        text = f"{name}: expected a file, got something else"
        with pytest.raises(ValueError, match=text):
            checkpoints.read(tmp_path / name)
    with pytest.raises(ValueError, match=r"config.json: expected a file"):
        checkpoints.read_config(tmp_path)
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model.safetensors: expected a file"):
        checkpoints.read(tmp_path)
    shards = {"weight_map": {"a": "x.safetensors"}}
    (tmp_path / "y.json").write_text(json.dumps(shards))
    with pytest.raises(ValueError, match=r"x.safetensors: expected a file"):
        checkpoints.read(tmp_path / "y.json")


def test_files_that_are_too_large_are_refused_unread(tmp_path):
    for name in ("config.json", "x.json"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(1 << 40)  # of zeros, which the disk does not hold
        with pytest.raises(ValueError, match=f"{name}: expected at most 128 MiB, got"):
            checkpoints.read_config(tmp_path / name)
        with pytest.raises(ValueError, match=f"{name}: expected at most 128 MiB, got"):
            checkpoints.read(tmp_path / name)


def header_of(path, header):
    """Write a safetensors file with this header, and 4 MiB of zeros."""
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4 << 20))


RIGHT = {"x": {"dtype": "F32", "shape": [1 << 20], "data_offsets": [0, 4 << 20]}}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"x": ["F32", [1 << 20], [0, 4 << 20]]}, r"got \['F32', \[1048576\].* for x$"),
        ([RIGHT], "got "),
        ({"x": {**RIGHT["x"], "dtype": "\x1b[31m"}}, r"got .*\\x1b\[31m"),
        ({"x": {**RIGHT["x"], "dtype": "y" * 10**6}}, r"got .*yyy"),
        ({"x" * 10**6: 1}, "got "),
    ],
)
def test_headers_of_another_form_are_refused_in_a_sentence(tmp_path, header, words):
    path = tmp_path / "model.safetensors"
    header_of(path, RIGHT)
    assert checkpoints.read(path)["x"].shape == (1 << 20,)
    header_of(path, header)
    with pytest.raises(ValueError, match=rf"safetensors file, {words}") as caught:
        checkpoints.read(path)
    assert_one_line(caught.value)


def assert_one_line(error):
    """A message is a line that a terminal can show."""
    text = str(error)
    assert text.isprintable()
    assert len(text) < 5000


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"y": RIGHT["x"]}, "that does not change, got one that has changed"),
        ({"x": {**RIGHT["x"], "shape": [1 << 40]}}, r"got \{.* for x"),
        ({"x": {**RIGHT["x"], "shape": None}}, r"got \{.* for x"),
        ({"x": {**RIGHT["x"], "data_offsets": [0, True]}}, r"got \{.* for x"),
        ({"x": {**RIGHT["x"], "dtype": 3}}, r"got \{.* for x"),
        ({"x": 1}, "got 1 for x"),
        (1, "got the header 1"),
    ],
)
def test_a_header_that_changes_while_it_is_read_is_refused(
    tmp_path, monkeypatch, header, words
):
    path = tmp_path / "model.safetensors"
    header_of(path, RIGHT)
    own = files._places
    monkeypatch.setattr(
        files, "_places", lambda *given: (header_of(path, header), own(*given))[1]
    )
    with pytest.raises(ValueError, match=f"expected a safetensors file.* {words}"):
        checkpoints.read(path)


@pytest.mark.parametrize("name", ["\x1b[2J", "x" * 10**6, "\u202e"])
def test_names_in_messages_are_escaped_and_cut(tmp_path, name):
    entry = {"dtype": "F32", "shape": [1 << 20], "data_offsets": [0, 4 << 20]}
    header_of(tmp_path / "model.safetensors", {name: entry})
    tensors = checkpoints.read(tmp_path)
    with pytest.raises(ValueError, match="unexpected") as caught:
        checkpoints.load(bert(), tensors, "bert")
    assert_one_line(caught.value)
    with pytest.raises(ValueError, match="expected rows") as caught:
        tensors.rows(name, 0, 2**40)
    assert_one_line(caught.value)
    with pytest.raises(ValueError, match="which another file has") as caught:
        checkpoints.Checkpoint(*[tmp_path / "model.safetensors"] * 2)
    assert_one_line(caught.value)
    for shard in ("model.safetensors", name):
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"y": shard}}))
        with pytest.raises(ValueError, match=r"index.json: ") as caught:
            checkpoints.read(index)
        assert_one_line(caught.value)
    for changes in ({name: 1}, {"hidden_act": name}, {"rope_scaling": {name: name}}):
        for own in (families.BERT, families.LLAMA):
            with pytest.raises(ValueError, match="expected") as caught:
                kind = BertEncoder if own is families.BERT else CausalDecoder
                kind.from_config({**own, **changes})
            assert_one_line(caught.value)


def test_of_very_many_names_some_are_listed():
    tensors = {f"x.{i}": np.ones(1) for i in range(10_000)}
    with pytest.raises(
        ValueError, match=r"unexpected x.0, x.1, .* and \d+ more$"
    ) as no:
        checkpoints.load(bert(families.tensors(families.BERT)), tensors, "bert")
    assert len(str(no.value)) < 15_000
    config = {**families.BERT, **{f"x{i}": i for i in range(10_000)}}
    with pytest.raises(ValueError, match=r"no x0, got 0; .* and \d+ more$") as no:
        BertEncoder.from_config(config)
    assert len(str(no.value)) < 15_000


def test_json_of_too_many_levels_is_a_value_error(tmp_path):
    for name in ("config.json", "x.json"):
        (tmp_path / name).write_text('{"a": ' * 200_000)
        with pytest.raises(ValueError, match=f"{name}: expected a JSON object, got"):
            checkpoints.read_config(tmp_path / name)


FAULTS = """
import numpy as np
from attnpy import checkpoints, positions
from attnpy.layers import MultiHeadAttention
from attnpy.models import CausalDecoder

mha = MultiHeadAttention(6, 2, bias=True)
wrong = {name: np.ones(1) for name in ("bias_v", "bias_k", "x", "w", "a")}
try:
    checkpoints.load(mha, wrong, "torch_attention")
except ValueError as error:
    print(error)
keys = ("factor", "low_freq_factor", "high_freq_factor")
keys += ("original_max_position_embeddings",)
try:
    positions.Rotary(4, scaling={"type": "llama3", **dict.fromkeys(keys, "2")})
except TypeError as error:
    print(error)
try:
    CausalDecoder.from_config({"model_type": "llama", "x": 1, "y": 2, "a": 3})
except ValueError as error:
    print(error)
sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
sizes = dict.fromkeys((*sizes, "intermediate_size"), 4)
positions = {"x": 1, "full_attention": {}, "y": 2}
for config in (
    {"model_type": "gemma3_text", "rope_parameters": positions},
    {"model_type": "gemma2", "x": 1, "y": 2, "hidden_activation": 3},
    {"model_type": "phi3", "hidden_act": "tanh"},
    {"model_type": "mistral", "layer_types": ["b", "a", "c"]},
    {"model_type": "gemma"},
):
    try:
        CausalDecoder.from_config({**sizes, **config})
    except ValueError as error:
        print(error)
"""


def test_errors_are_the_same_in_every_run():
    texts = {
        subprocess.run(
            [sys.executable, "-c", FAULTS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(texts) == 1
    text = texts.pop()
    assert "bias_v: expected none" in text
    assert len(text.splitlines()) == 8


def test_packages_that_are_missing_are_named(tmp_path, monkeypatch):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    path = tmp_path / "model.safetensors"
    numpy_files.save_file({"a": np.ones(2, ml_dtypes.bfloat16)}, path)
    tensors = checkpoints.read(path)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ml_dtypes", None)
        with pytest.raises(ImportError, match=r"ml_dtypes.*'attnpy\[weights\]'"):
            tensors["a"]
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install 'attnpy\[weights\]'"):
        checkpoints.read(path)


def test_everything_public_is_listed():
    expected = ["FAMILIES", "Checkpoint", "Family", "GgufFile", "load", "load_gguf"]
    assert checkpoints.__all__ == [*expected, "read", "read_config", "to_torch"]


@pytest.mark.quick
def test_arguments_of_load_are_judged():
    mha = MultiHeadAttention(6, 2, bias=False)
    names = {"in_proj_weight": (18, 6), "out_proj.weight": (6, 6)}
    tensors = {name: normal(*shape) for name, shape in names.items()}
    checkpoints.load(mha, tensors, "torch_attention")
    before = copy.deepcopy(mha)
    masked = {**tensors, "out_proj.weight": np.ma.masked_array(normal(6, 6))}
    for name, arguments in {
        "model": (None, tensors, "torch_attention"),
        "tensors": (mha, None, "torch_attention"),
        "family": (mha, tensors, ["torch_attention"]),
        r"tensors\['out_proj.weight'\]": (mha, masked, "torch_attention"),
    }.items():
        with refused(TypeError, name):
            checkpoints.load(*arguments)
    with refused(TypeError, "prefix"):
        checkpoints.load(mha, tensors, "torch_attention", prefix=None)
    assert_same_parameters(mha, before)
