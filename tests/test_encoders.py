"""Encoders whose files have the fields and names of the code beside them."""

import json

import numpy as np
import pytest
from support import families
from support.comparisons import assert_same_bits, assert_same_parameters

from attnpy import checkpoints
from attnpy.models import BertEncoder
from attnpy.positions import Rotary

numpy_files = pytest.importorskip("safetensors.numpy")

pytestmark = pytest.mark.quick

IDS = np.array([7, 1, 29, 4, 4, 0, 18, 11, 2])
NOMIC = {
    "model_type": "nomic_bert",
    "activation_function": "swiglu",
    "auto_map": {
        "AutoConfig": "nomic-ai/x--configuration_hf_nomic_bert.NomicBertConfig",
        "AutoModel": "nomic-ai/x--modeling_hf_nomic_bert.NomicBertModel",
    },
    "causal": False,
    "fused_bias_fc": True,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 12,
    "n_head": 3,
    "n_inner": 20,
    "n_layer": 2,
    "n_positions": 16,
    "pad_vocab_size_multiple": 64,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 500,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_weights": True,
    "type_vocab_size": 2,
    "use_flash_attn": True,
    "vocab_size": 30,
}


def write(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    numpy_files.save_file(tensors, folder / "model.safetensors")


def older(tensors):
    """NomicBERT's arrays in the names of the code beside the files."""
    names = (
        ("layers.", "encoder.layers."),
        ("embeddings.LayerNorm", "emb_ln"),
        ("self_attn.o_proj", "attn.out_proj"),
        ("up_proj", "fc11"),
        ("gate_proj", "fc12"),
        ("down_proj", "fc2"),
        ("post_attention_layernorm", "norm1"),
        ("post_mlp_layernorm", "norm2"),
    )
    new = {}
    for name, array in tensors.items():
        for theirs, old in names:
            name = name.replace(theirs, old)
        new[name] = array
    for i in range(2):
        start = f"encoder.layers.{i}."
        parts = [new.pop(f"{start}self_attn.{c}_proj.weight") for c in "qkv"]
        new[f"{start}attn.Wqkv.weight"] = np.concatenate(parts)
    return new


def test_nomic_bert_of_its_own_code_is_that_of_transformers(tmp_path):
    tensors = families.tensors(families.NOMIC_BERT)
    write(tmp_path / "new", families.NOMIC_BERT, tensors)
    write(tmp_path / "old", NOMIC, older(tensors))
    new, old = (BertEncoder.from_pretrained(tmp_path / name) for name in ("new", "old"))
    assert_same_parameters(old, new)
    assert_same_bits(old(IDS), new(IDS))
    old.save_pretrained(tmp_path / "saved")
    assert sorted(checkpoints.read(tmp_path / "saved")) == sorted(tensors)
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["hidden_size"] == 12
    assert config["hidden_act"] == "silu"
    assert "auto_map" not in config
    assert "n_embd" not in config
    assert_same_bits(BertEncoder.from_pretrained(tmp_path / "saved")(IDS), new(IDS))


def test_what_their_code_has_without_a_field_is_refused_where_it_is_not_here():
    for name, words in (
        ("activation_function", "activation_function = 'swiglu', got 'gelu_new'"),
        ("mlp_fc1_bias", "mlp_fc1_bias = False, got True"),
        ("qkv_proj_bias", "qkv_proj_bias = False, got True"),
        ("rotary_emb_fraction", "rotary_emb_fraction = 1.0, got 0.0"),
    ):
        config = {key: value for key, value in NOMIC.items() if key != name}
        with pytest.raises(ValueError, match=words):
            BertEncoder.from_config(config)
    for name, value in (
        ("num_experts", 8),
        ("rotary_scaling_factor", 2.0),
        ("activation_function", "gelu"),
        ("hidden_size", 24),
        ("auto_map", {"AutoModel": "someone/else--modeling.NomicBertModel"}),
        ("auto_map", {"AutoModel": ["modeling_hf_nomic_bert.NomicBertModel"]}),
    ):
        with pytest.raises(ValueError, match=rf"config: expected .*{name}"):
            BertEncoder.from_config({**NOMIC, name: value})


@pytest.mark.parametrize("scaling", [None, {"type": "ntk", "factor": 8.0}])
@pytest.mark.parametrize("n_labels", [None, 3])
def test_gte_of_its_own_code_is_saved_as_that_of_transformers(
    tmp_path, scaling, n_labels
):
    config = {**families.NEW, "rope_scaling": scaling, "num_labels": 3}
    tensors = families.tensors(config)
    if n_labels is not None:
        tensors = {f"new.{name}": array for name, array in tensors.items()}
        tensors |= families.head({**config, "model_type": "gte"}, 3)
        tensors["new.pooler.dense.weight"] = tensors.pop("pooler.dense.weight")
        tensors["new.pooler.dense.bias"] = tensors.pop("pooler.dense.bias")
    write(tmp_path / "a", config, tensors)
    options = {"classifier": n_labels is not None, "dtype": np.float64}
    model = BertEncoder.from_pretrained(tmp_path / "a", **options)
    model.save_pretrained(tmp_path / "b")
    written = json.loads((tmp_path / "b" / "config.json").read_text())
    assert written["model_type"] == "gte"
    again = BertEncoder.from_pretrained(tmp_path / "b", **options)
    assert_same_bits(again(IDS), model(IDS))
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    make = transformers.AutoModel
    if n_labels is not None:
        make = transformers.AutoModelForSequenceClassification
    theirs = make.from_pretrained(tmp_path / "b", attn_implementation="eager").eval()
    with torch.no_grad():
        result = theirs(torch.tensor(IDS[np.newaxis]))
    if n_labels is None:
        expected, ours = result.last_hidden_state, model(IDS[np.newaxis])
    else:
        expected, ours = result.logits, model.classify(model(IDS[np.newaxis]))
    np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-5, atol=2e-5)


def test_scalings_of_gte_that_are_not_here_are_refused():
    for scaling in (
        {"type": "ntk"},
        {"type": "ntk", "factor": "8"},
        {"type": "ntk", "factor": 8.0, "mixed_b": 0.6},
        {"type": "linear", "factor": 8.0},
    ):
        with pytest.raises(ValueError, match=r'rope_scaling with the type "ntk"'):
            BertEncoder.from_config({**families.NEW, "rope_scaling": scaling})


def test_options_of_rotary_encoders_are_checked():
    sizes = {"vocab_size": 9}
    for options, words in (
        ({"first_norm": False}, "first_norm: expected True without norm_first"),
        (
            {"first_norm": False, "norm_first": True, "shared": True},
            "first_norm: expected True",
        ),
        ({"rotary": Rotary(4), "padding_id": 1}, "padding_id: expected None with rot"),
        ({"rotary": [Rotary(4)]}, "rotary: expected one for each of the 2 layers"),
        ({"window": [(1, 1)] * 3}, "window: expected one for each of the 2 layers"),
        ({"pooling": "max"}, "pooling: expected"),
        ({"masked_words": 1}, "masked_words: expected a bool"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            BertEncoder(2, 8, 2, 8, **sizes, **options)
    model = BertEncoder(2, 8, 2, 8, **sizes)
    with pytest.raises(ValueError, match="token_classifier: expected a model with num"):
        model.classify_tokens(model([1, 2]))
    with pytest.raises(ValueError, match="masked_words: expected a model with masked"):
        model.logits(model([1, 2]))
    both = BertEncoder.from_config(families.BERT, classifier=True, masked_words=True)
    with pytest.raises(ValueError, match="model: expected one head at most, got those"):
        both.save_pretrained("unused")
