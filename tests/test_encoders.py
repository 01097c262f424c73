"""Encoders whose files have the fields and names of the code beside them."""

import json
import pickle

import numpy as np
import pytest
from support import families, sentences
from support.comparisons import assert_same_bits, assert_same_parameters
from support.sentences import PAIRS, put, write_scorer

from attnpy import checkpoints
from attnpy.models import BertEncoder, CrossEncoder
from attnpy.positions import Rotary, alibi_bias, relative_bias

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


# As the folder of jina-reranker-v2 has them, where nothing says the model_type.
JINA = {
    **{name: x for name, x in families.XLM_ROBERTA.items() if name != "model_type"},
    "_name_or_path": "jina-reranker-v2-base-multilingual",
    "architectures": ["XLMRobertaForSequenceClassification"],
    "auto_map": {
        "AutoConfig": "configuration_xlm_roberta.XLMRobertaFlashConfig",
        "AutoModel": "modeling_xlm_roberta.XLMRobertaModel",
        "AutoModelForSequenceClassification": (
            "modeling_xlm_roberta.XLMRobertaForSequenceClassification"
        ),
    },
    "classifier_dropout": None,
    "emb_pooler": None,
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
    "layer_norm_eps": 1e-5,
    "num_labels": 1,
    "output_past": True,
    "pad_token_id": 1,
    "position_embedding_type": "absolute",
    "torch_dtype": "bfloat16",
    "use_cache": False,
    "use_flash_attn": True,
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


def write_jina(folder, **changes):
    """A reranker in the names of jinaai's code; the same in XLM-RoBERTa's."""
    config = {name: x for name, x in {**JINA, **changes}.items() if x != ()}
    for name in "old", "new":
        (folder / name).mkdir()
        tensors, _ = write_scorer(folder / name, "xlm-roberta")
    put(folder / "old" / "config.json", config)
    names = (
        ("embeddings.LayerNorm", "emb_ln"),
        ("encoder.layer.", "encoder.layers."),
        ("attention.output.dense", "mixer.out_proj"),
        ("attention.output.LayerNorm", "norm1"),
        ("intermediate.dense", "mlp.fc1"),
        ("output.dense", "mlp.fc2"),
        ("output.LayerNorm", "norm2"),
    )
    new = {}
    for name, array in tensors.items():
        old = name
        for theirs, code in names:
            old = old.replace(theirs, code)
        new[old if name.startswith("classifier") else f"roberta.{old}"] = array
    for i in range(2):
        for kind in ("weight", "bias"):
            start = f"roberta.encoder.layers.{i}"
            parts = [
                new.pop(f"{start}.attention.self.{part}.{kind}")
                for part in ("query", "key", "value")
            ]
            new[f"{start}.mixer.Wqkv.{kind}"] = np.concatenate(parts)
    numpy_files.save_file(new, folder / "old" / "model.safetensors")


def test_jinas_reranker_is_xlm_roberta(tmp_path):
    sentences.require()
    write_jina(tmp_path)
    old, new = (
        CrossEncoder.from_pretrained(tmp_path / name) for name in ("old", "new")
    )
    assert_same_parameters(old.model, new.model)
    scores = new.predict(PAIRS)
    assert_same_bits(old.predict(PAIRS), scores)
    documents = [second for _, second in PAIRS]
    assert old.rank("the cat", documents) == new.rank("the cat", documents)
    assert old.token_types is False
    for weights in ("int8", "int4"):
        assert_same_bits(
            *(
                CrossEncoder.from_pretrained(tmp_path / name, weights=weights).predict(
                    PAIRS
                )
                for name in ("old", "new")
            )
        )
    old.save_pretrained(tmp_path / "saved")
    assert {*checkpoints.read(tmp_path / "saved")} == {
        name if name.startswith("classifier") else f"roberta.{name}"
        for name in checkpoints.read(tmp_path / "new")
    }
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["model_type"] == "xlm-roberta"
    assert config["architectures"] == ["XLMRobertaForSequenceClassification"]
    assert not {"auto_map", "emb_pooler", "use_flash_attn"} & {*config}
    assert_same_bits(
        CrossEncoder.from_pretrained(tmp_path / "saved").predict(PAIRS), scores
    )
    theirs = pytest.importorskip("sentence_transformers")
    np.testing.assert_allclose(
        theirs.CrossEncoder(str(tmp_path / "saved"), device="cpu").predict(PAIRS),
        scores,
        rtol=1e-5,
    )


SHARED = "jinaai/xlm-roberta-flash-implementation--configuration_xlm_roberta"
TURNED = r"checkpoint: .*embeddings.position_embeddings"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position_embedding_type": ()}, None),
        ({"model_type": "xlm-roberta"}, None),
        ({"lora_adaptations": None, "lora_rank": 4, "truncate_dim": None}, None),
        (
            {
                "position_embedding_type": (),
                "auto_map": {"AutoConfig": f"{SHARED}.XLMRobertaFlashConfig"},
            },
            TURNED,
        ),
        ({"position_embedding_type": "rotary"}, TURNED),
        ({"position_embedding_type": "alibi"}, "position_embedding_type = 'rotary', "),
        ({"lora_adaptations": ["a"]}, r"expected no lora_adaptations, got \['a'\]"),
        ({"emb_pooler": "cls"}, "expected no emb_pooler, got 'cls'"),
        (
            {"auto_map": {**JINA["auto_map"], "AutoModel": "x.y"}},
            "expected no auto_map",
        ),
    ],
)
def test_what_jinas_code_says_is_honoured_or_refused(tmp_path, changes, words):
    sentences.require()
    write_jina(tmp_path, **changes)
    if words is None:
        read = BertEncoder.from_pretrained(tmp_path / "old", classifier=True)
        new = BertEncoder.from_pretrained(tmp_path / "new", classifier=True)
        assert_same_bits(read.classify(read(IDS)), new.classify(new(IDS)))
        return
    with pytest.raises(ValueError, match=words):
        CrossEncoder.from_pretrained(tmp_path / "old")


# As the folder of snowflake-arctic-embed-m-v2.0 has them.
ARCTIC = {
    **{name: x for name, x in families.NEW.items() if name != "rope_scaling"},
    "model_type": "gte",
    "architectures": ["GteModel"],
    "auto_map": {
        "AutoConfig": "configuration_hf_alibaba_nlp_gte.GteConfig",
        "AutoModel": "modeling_hf_alibaba_nlp_gte.GteModel",
        "AutoModelForMaskedLM": "modeling_hf_alibaba_nlp_gte.GteForMaskedLM",
    },
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "matryoshka_dimensions": [256],
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_scaling": None,
    "type_vocab_size": 1,
    "unpad_inputs": "true",
    "use_memory_efficient_attention": "true",
}


def test_gte_beside_a_copy_of_its_code_is_read_as_that_of_alibaba(tmp_path):
    plain = {**families.NEW, "rope_scaling": None, "type_vocab_size": 1}
    tensors = families.tensors(plain)
    write(tmp_path / "a", plain, tensors)
    write(tmp_path / "b", ARCTIC, tensors)
    one, other = (BertEncoder.from_pretrained(tmp_path / name) for name in "ab")
    assert_same_bits(other(IDS), one(IDS))
    other.save_pretrained(tmp_path / "c")
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("gte", ["GteModel"])
    assert "auto_map" not in config
    assert_same_bits(BertEncoder.from_pretrained(tmp_path / "c")(IDS), one(IDS))
    for name, value in (
        ("logn_attention_scale", True),
        ("pack_qkv", False),
        ("auto_map", {**ARCTIC["auto_map"], "AutoModel": "x.y"}),
    ):
        with pytest.raises(ValueError, match=rf"config: expected .*{name}"):
            BertEncoder.from_config({**ARCTIC, name: value})


IMPLEMENTATION = "jinaai/jina-bert-implementation--"
# As the folder of jina-embeddings-v2-base-en has them, in small.
JINA_2 = {
    **families.JINA_BERT,
    "model_type": "bert",
    "_name_or_path": "jinaai/jina-bert-implementation",
    "architectures": ["JinaBertForMaskedLM"],
    "attention_probs_dropout_prob": 0.0,
    "attn_implementation": "torch",
    "auto_map": {
        "AutoConfig": f"{IMPLEMENTATION}configuration_bert.JinaBertConfig",
        "AutoModel": f"{IMPLEMENTATION}modeling_bert.JinaBertModel",
        "AutoModelForMaskedLM": f"{IMPLEMENTATION}modeling_bert.JinaBertForMaskedLM",
    },
    "classifier_dropout": None,
    "emb_pooler": "mean",
    "gradient_checkpointing": False,
    "model_max_length": 8192,
    "pad_token_id": 0,
}


POST_NORM = "jinaai/jina-bert-v2-qk-post-norm--"
# The same of jina-embeddings-v2-base-code.
JINA_CODE = {
    **JINA_2,
    "_name_or_path": "jinaai/jina-bert-v2-qk-post-norm",
    "auto_map": {
        name: place.replace(IMPLEMENTATION, POST_NORM)
        for name, place in JINA_2["auto_map"].items()
    },
}
JINAS = pytest.mark.parametrize(
    ("folder", "base"),
    [(JINA_2, families.JINA_BERT), (JINA_CODE, families.JINA_BERT_CODE)],
    ids=families.JINA_BERTS,
)


@pytest.mark.quick
@JINAS
@pytest.mark.parametrize("network", ["geglu", "reglu"])
@pytest.mark.parametrize("n_heads", [1, 3, 4, 6])
def test_jinas_scores_fall_with_the_distance(tmp_path, folder, base, network, n_heads):
    heads = {"num_attention_heads": n_heads, "feed_forward_type": network}
    config = {**folder, **heads}
    tensors = families.tensors(base | heads)
    write(tmp_path / "old", config, tensors)
    model = BertEncoder.from_pretrained(tmp_path / "old", dtype=np.float64)
    ids = np.tile(IDS, 5)  # more than max_position_embeddings
    expected = families.bert_states(tensors, base | heads, ids)
    np.testing.assert_allclose(model(ids), expected, rtol=1e-9, atol=1e-11)
    padded = np.array([ids, np.where(np.arange(45) < 7, ids, 0)])
    states = model(padded, lengths=[45, 7])
    assert_same_bits(states[0], model(ids))
    assert_same_bits(states[1, :7], model(ids[:7]))
    shifted = model(np.roll(padded[1], 3), token_mask=np.roll(np.arange(45) < 7, 3))
    np.testing.assert_allclose(shifted[3:10], states[1, :7], rtol=1e-12, atol=1e-13)
    model.save_pretrained(tmp_path / "new")
    saved = json.loads((tmp_path / "new" / "config.json").read_text())
    assert saved["model_type"] == "bert"
    assert saved["architectures"] == ["JinaBertModel"]
    assert saved["auto_map"].items() >= folder["auto_map"].items()
    assert {*checkpoints.read(tmp_path / "new")} == {*tensors}
    again = BertEncoder.from_pretrained(tmp_path / "new", dtype=np.float64)
    assert_same_bits(again(ids), model(ids))


@pytest.mark.quick
def test_jinas_long_texts_need_no_matrix_of_biases():
    model = BertEncoder.from_config(JINA_2)
    for longest in (0, 1, 2, 7):
        assert_same_bits(model._bias(longest), alibi_bias(3, longest, longest))
    bias = model._bias(100_000)  # 120 GB as a matrix
    assert bias.shape == (3, 100_000, 100_000)
    assert_same_bits(bias[:, -7:, -7:], alibi_bias(3, 7, 7))
    assert_same_bits(bias[:, :1, -1], alibi_bias(3, 1, 100_000, q_offset=0)[:, :, -1])


@pytest.mark.quick
def test_mpnets_long_texts_need_no_matrix_of_biases():
    model = BertEncoder.from_config(families.MPNET)
    table = model.relative_bias
    table[:] = np.random.default_rng(0).standard_normal(table.shape)
    for longest in (0, 1, 2, 7, 300):
        expected = relative_bias(table, longest, longest)
        assert_same_bits(model._bias(longest), expected)
    bias = model._bias(100_000)
    assert bias.shape == (table.shape[1], 100_000, 100_000)
    assert_same_bits(bias[:, -300:, -300:], relative_bias(table, 300, 300))


@pytest.mark.quick
@JINAS
def test_gradients_of_jinas_model_are_those_of_differences(folder, base):
    config = {**folder, "num_hidden_layers": 1}
    model = BertEncoder.from_config(
        config, dtype=np.float64, rng=np.random.default_rng(0)
    )
    rng = np.random.default_rng(1)
    for array in model.parameters().values():
        array += rng.standard_normal(array.shape) / 4
    batch = families.batch()
    states, pullback = model.vjp(batch, lengths=families.LENGTHS)
    exists = np.arange(9) < np.array(families.LENGTHS)[:, np.newaxis]
    grad = rng.standard_normal(states.shape) * exists[..., np.newaxis]
    found = pullback(grad)
    assert found.keys() == model.parameters().keys()

    def loss():
        return float((model(batch, lengths=families.LENGTHS) * grad)[exists].sum())

    for name, array in model.parameters().items():
        step = rng.standard_normal(array.shape) * 1e-5
        array += step
        above = loss()
        array -= 2 * step
        below = loss()
        array += step
        slope = (above - below) / 2
        np.testing.assert_allclose(
            slope, (found[name] * step).sum(), rtol=1e-4, atol=1e-9, err_msg=name
        )


@pytest.mark.quick
@JINAS
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("activations", ["float", "int8"])
def test_jinas_model_of_integers_has_the_bits_of_each_text_alone(
    tmp_path, folder, base, weights, activations
):
    write(tmp_path, folder, families.tensors(base))
    model = BertEncoder.from_pretrained(
        tmp_path, weights=weights, activations=activations
    )
    batch = families.batch()
    states = model(batch, lengths=families.LENGTHS)
    for text, n, own in zip(batch, families.LENGTHS, states, strict=True):
        assert_same_bits(own[:n], model(text[:n]))


@pytest.mark.quick
def test_norms_of_queries_and_of_sums_are_options_of_every_model():
    sizes, ids = (2, 12, 3, 16), [[3, 1, 4, 1], [5, 9, 2, 6]]
    for options, n in (
        ({"qk_norm": True, "attention_norm": True}, 4),
        ({"qk_norm": "all heads", "norm": "rms"}, 12),
        ({"qk_norm": "all heads", "shared": True, "attention_norm": True}, 12),
        ({"norm_first": True, "attention_norm": True, "norm_bias": False}, None),
    ):
        rng = np.random.default_rng(0)
        model = BertEncoder(*sizes, vocab_size=10, dtype=np.float64, rng=rng, **options)
        mha = model.encoder.layers[1].self_attention
        assert (mha.q_norm is None) == (n is None)
        if n is not None:
            assert len(mha.q_norm.weight) == n
        for name, value in options.items():
            assert f"{name}={value!r}" in repr(model)
        states = model(ids)
        result = model(ids, return_weights=True, return_hidden_states=True)
        assert_same_bits(result.output, states)
        assert result.weights.shape == (2, 2, 3, 4, 4)
        assert_same_bits(model.vjp(ids)[0], states)
        assert_same_bits(pickle.loads(pickle.dumps(model))(ids), states)
        model.pack()
        assert_same_bits(model(ids), states)
    with pytest.raises(TypeError, match="attention_norm: expected a bool"):
        BertEncoder(*sizes, vocab_size=10, attention_norm="yes")
    with pytest.raises(TypeError, match="qk_norm: expected a bool"):
        BertEncoder(*sizes, vocab_size=10, qk_norm="each")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"auto_map": {**JINA_2["auto_map"], "AutoTokenizer": "x.y"}},
            "expected no auto_map",
        ),
        ({"position_embedding_type": "absolute"}, "type = 'alibi', got 'absolute'"),
        ({"position_embedding_type": None}, "type = 'alibi', got 'absolute'"),
        ({"feed_forward_type": "original"}, "to be geglu or reglu, got 'original'"),
        ({"feed_forward_type": None}, "missing feed_forward_type"),
        ({"emb_pooler": "cls"}, "expected emb_pooler = 'mean', got 'cls'"),
    ],
)
def test_what_else_jinas_older_code_has_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        BertEncoder.from_config({**JINA_2, **changes})


@pytest.mark.quick
def test_alibi_is_instead_of_other_positions():
    sizes = (1, 8, 2, 8)
    for other in ({"num_buckets": 4}, {"rotary": Rotary(4)}):
        with pytest.raises(ValueError, match="alibi: expected False with rotary or nu"):
            BertEncoder(*sizes, vocab_size=9, alibi=True, **other)
    with pytest.raises(ValueError, match=r"padding_id: expected None with .* alibi"):
        BertEncoder(*sizes, vocab_size=9, alibi=True, padding_id=1)
    model = BertEncoder(*sizes, vocab_size=9, alibi=True)
    assert model.position_embedding is None
    assert "alibi=True" in repr(model)
    assert "position_table" not in repr(model)


def test_jinas_first_reranker_has_berts_head(tmp_path):
    sentences.require()
    local = {name: place.split("--")[1] for name, place in JINA_2["auto_map"].items()}
    _, config = write_scorer(tmp_path, "jina-bert-v2")
    of_files = {"model_type": "bert", "emb_pooler": "mean", "auto_map": local}
    expected = CrossEncoder.from_pretrained(tmp_path).predict(PAIRS)
    put(tmp_path / "config.json", {**config, **of_files})
    model = CrossEncoder.from_pretrained(tmp_path)
    assert_same_bits(model.predict(PAIRS), expected)
    model.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["architectures"] == ["JinaBertForSequenceClassification"]
    names = {*checkpoints.read(tmp_path / "saved")}
    assert {"bert.encoder.layer.0.mlp.gated_layers.weight", "classifier.bias"} < names
    again = CrossEncoder.from_pretrained(tmp_path / "saved")
    assert_same_bits(again.predict(PAIRS), expected)


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
