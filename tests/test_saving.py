"""The way back: models into folders of Transformers, layers into PyTorch's names."""

import json
import os

import numpy as np
import pytest
from support import families
from support.comparisons import assert_same_bits, assert_same_parameters
from support.errors import refused

from attnpy import blocks, checkpoints, layers
from attnpy.blocks import Decoder, DecoderLayer, Encoder, EncoderLayer
from attnpy.layers import MultiHeadAttention
from attnpy.models import BertEncoder, CausalDecoder

numpy_files = pytest.importorskip("safetensors.numpy")

IDS = np.array([7, 1, 29, 4, 4, 0, 18, 11, 2])
# Those of the code beside the files are saved in today's names: test_encoders.py.
ENCODERS = families.CLASSED
KINDS = [*ENCODERS, *families.DECODERS]


def write(folder, kind, n_labels=None, **changes):
    """A folder of a family, with a head of so many labels."""
    config = {**families.ENCODERS, **families.DECODERS}[kind] | changes
    tensors = families.tensors(config)
    if n_labels is not None:
        config["num_labels"] = n_labels
        tensors |= families.head(config, n_labels)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    numpy_files.save_file(tensors, folder / "model.safetensors")
    return tensors


def reads(kind, n_labels=None):
    """What reads a folder."""
    if kind in families.DECODERS:
        return CausalDecoder.from_pretrained, {}
    return BertEncoder.from_pretrained, {"classifier": n_labels is not None}


CASES = [*((kind, None) for kind in KINDS), *((kind, 3) for kind in ENCODERS)]
CASES = pytest.mark.parametrize(("kind", "n_labels"), CASES)


@pytest.mark.quick
@CASES
@pytest.mark.parametrize("packed", [True, False])
def test_what_is_saved_is_read_again(tmp_path, kind, n_labels, packed):
    tensors = write(tmp_path / "a", kind, n_labels)
    read, options = reads(kind, n_labels)
    model = read(tmp_path / "a", packed=packed, **options)
    model.save_pretrained(tmp_path / "b")
    again = read(tmp_path / "b", **options)
    assert_same_parameters(again, model)
    assert again.config["architectures"]
    assert_same_bits(again(IDS), model(IDS))
    names = {name.split(".", 1)[-1]: x for name, x in tensors.items()}
    for name, array in checkpoints.read(tmp_path / "b").items():
        short = name.split(".", 1)[-1]
        expected = tensors.get(name, tensors.get(short))
        expected = names[short] if expected is None else expected  # another prefix
        np.testing.assert_allclose(array, expected, atol=1e-6)
    assert len(checkpoints.read(tmp_path / "b")) == len(tensors)


@pytest.mark.quick
@pytest.mark.parametrize("kind", families.DECODERS)
def test_decoders_are_saved_with_where_texts_end_and_without_scores(tmp_path, kind):
    write(tmp_path / "a", kind, eos_token_id=7, bos_token_id=2)
    model = CausalDecoder.from_pretrained(tmp_path / "a")
    for stop in ((7,), (3, 9), ()):
        model.stop = stop
        model.save_pretrained(tmp_path / "b")
        assert CausalDecoder.from_pretrained(tmp_path / "b").stop == stop
    bare = CausalDecoder.from_pretrained(tmp_path / "a", logits=False)
    bare.save_pretrained(tmp_path / "b")
    again = CausalDecoder.from_pretrained(tmp_path / "b", logits=False)
    assert_same_parameters(again, bare)
    architectures = json.loads((tmp_path / "b/config.json").read_text())
    assert architectures["architectures"][0].endswith("Model")


@pytest.mark.parametrize("kind", ["bert", "gpt2", "gemma2"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_a_model_is_saved_in_its_dtype(tmp_path, kind, dtype):
    pytest.importorskip("ml_dtypes")
    write(tmp_path / "a", kind)
    read, options = reads(kind)
    model = read(tmp_path / "a", dtype=dtype, **options)
    model.save_pretrained(tmp_path / "b")
    found = checkpoints.read(tmp_path / "b")
    assert {array.dtype.name for array in found.values()} == {dtype}
    again = read(tmp_path / "b", dtype="auto", **options)
    if kind != "gemma2":  # whose norms of 16 bits are kept in float32, and rounded now
        assert_same_bits(again(IDS), model(IDS))
    again.save_pretrained(tmp_path / "c")
    twice = read(tmp_path / "c", dtype="auto", **options)
    assert_same_bits(twice(IDS), again(IDS))


@pytest.mark.quick
def test_a_trained_model_is_saved_as_it_is(tmp_path):
    model = BertEncoder.from_config(
        {**families.BERT, "num_labels": np.int64(2)}, classifier=True
    )
    model.token_embedding += 1
    model.save_pretrained(tmp_path / "new" / "folder")
    again = BertEncoder.from_pretrained(tmp_path / "new" / "folder", classifier=True)
    assert_same_parameters(again, model)
    before = os.listdir(tmp_path / "new" / "folder")
    model.save_pretrained(tmp_path / "new" / "folder")
    assert os.listdir(tmp_path / "new" / "folder") == before


@pytest.mark.quick
def test_what_cannot_be_saved_is_refused(tmp_path):
    by_hand = BertEncoder(1, 4, 1, 4, vocab_size=9)
    with refused(ValueError, "config"):
        by_hand.save_pretrained(tmp_path)
    model = BertEncoder.from_config(families.BERT)
    with refused(TypeError, "folder"):
        model.save_pretrained(3)
    model.encoder.layers.pop()
    with pytest.raises(ValueError, match=r"model: expected num_layers = 2 as "):
        model.save_pretrained(tmp_path)
    model = CausalDecoder.from_config(families.LLAMA)
    model.softcap = 3.0
    with pytest.raises(ValueError, match=r"model: expected softcap = None as "):
        model.save_pretrained(tmp_path)
    model = BertEncoder.from_config({**families.BERT, "id2label": {"0": {1, 2}}})
    with pytest.raises(TypeError, match="config: expected values of JSON, got set"):
        model.save_pretrained(tmp_path)


# ---- Layers --------------------------------------------------------------------------

OPTIONS = {"bias": True, "dtype": np.float64}
TORCH = {
    "torch_attention": lambda: MultiHeadAttention(12, 3, **OPTIONS),
    "other keys": lambda: MultiHeadAttention(12, 3, context_dim=5, **OPTIONS),
    "no biases": lambda: MultiHeadAttention(12, 3, bias=False, dtype=np.float64),
    "torch_encoder_layer": lambda: EncoderLayer(12, 3, 20, **OPTIONS),
    "torch_decoder_layer": lambda: DecoderLayer(12, 3, 20, **OPTIONS),
    "torch_encoder": lambda: Encoder(2, 12, 3, 20, norm_first=True, **OPTIONS),
    "torch_decoder": lambda: Decoder(2, 12, 3, 20, norm_first=True, **OPTIONS),
    "torch_linear": lambda: blocks.Linear(12, 5, dtype=np.float64),
    "torch_embedding": lambda: blocks.Embedding(9, 12, dtype=np.float64),
    "torch_norm": lambda: blocks.LayerNorm(12, dtype=np.float64),
}


@pytest.mark.quick
@pytest.mark.parametrize("kind", TORCH)
def test_layers_come_back_from_pytorchs_names(kind):
    layer, other = TORCH[kind](), TORCH[kind]()
    rng = np.random.default_rng(0)
    for array in layer.parameters().values():
        array[...] = rng.standard_normal(array.shape)
    state = checkpoints.to_torch(layer)
    family = kind if kind.startswith("torch") else "torch_attention"
    checkpoints.load(other, state, family)
    assert_same_parameters(other, layer)
    for array in state.values():
        assert array.flags.c_contiguous
        array[...] = 0  # a copy
    assert_same_parameters(other, layer)
    layer.pack() if hasattr(layer, "pack") else None
    for name, array in checkpoints.to_torch(layer).items():
        assert array.shape == state[name].shape


def test_shared_layers_have_all_of_pytorchs_names():
    state = checkpoints.to_torch(Encoder(3, 12, 3, 20, shared=True))
    for name in [name for name in state if name.startswith("layers.0.")]:
        for i in "12":
            assert_same_bits(state[name.replace("0", i, 1)], state[name])


def test_layers_that_pytorch_does_not_have_are_refused():
    for layer, words in (
        (
            MultiHeadAttention(12, 4, num_kv_heads=2),
            "layer: expected heads that have 12",
        ),
        (MultiHeadAttention(12, 4, 5), "layer: expected heads that have 12 columns"),
        (MultiHeadAttention(12, 4, qkv_bias=False), "all biases or none.*got only b_o"),
        (EncoderLayer(12, 4, 8, num_kv_heads=2), "self_attention: expected heads that"),
        (EncoderLayer(12, 4, 8, activation="swiglu"), "without a name.*W_gate"),
    ):
        with pytest.raises(ValueError, match=words):
            checkpoints.to_torch(layer)
    for other in (None, layers.SelfAttention(6, 3), blocks.FeedForward(4, 8)):
        with refused(TypeError, "layer"):
            checkpoints.to_torch(other)


# ---- Theirs --------------------------------------------------------------------------


@CASES
def test_transformers_loads_what_is_saved(tmp_path, kind, n_labels):
    """`pip install torch transformers`."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    # Elsewhere it is beyond the tokens.
    padded = kind in ("phi3", "modernbert", "eurobert", "smollm3", "glm", "glm4")
    padding = {"pad_token_id": 0} if padded else {}
    write(tmp_path / "a", kind, n_labels, **padding)
    read, options = reads(kind, n_labels)
    model = read(tmp_path / "a", dtype=np.float64, **options)
    model.save_pretrained(tmp_path / "b")
    make = transformers.AutoModel
    if n_labels is not None:
        make = transformers.AutoModelForSequenceClassification
    elif kind in families.DECODERS:
        make = transformers.AutoModelForCausalLM
    how = {"attn_implementation": "eager"}
    if "num_experts_per_tok" in families.DECODERS.get(
        kind, ()
    ):  # their faster one has no float64
        how["experts_implementation"] = "eager"
    theirs, info = make.from_pretrained(tmp_path / "b", output_loading_info=True, **how)
    assert not info["unexpected_keys"]
    # Of ESM: its head of contacts, and frequencies that the class computes.
    known = "pooler", "contact_head", "inv_freq"
    missing = [x for x in info["missing_keys"] if not any(part in x for part in known)]
    assert not missing
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert [type(theirs).__name__] == config["architectures"]
    assert theirs.dtype == torch.float64
    with torch.no_grad():
        found = theirs.eval()(torch.tensor(IDS[np.newaxis]))
    if n_labels is not None:
        ours, expected = model.classify(model(IDS)), found.logits
    elif kind in families.DECODERS:
        ours, expected = model.logits(model(IDS)), found.logits
    else:
        ours, expected = model(IDS), found.last_hidden_state
    assert np.abs(ours).max() > 0.1
    np.testing.assert_allclose(ours, expected[0].numpy(), rtol=1e-5, atol=2e-5)


def test_a_state_of_pytorchs_linear_is_not_taken_for_its_transpose():
    state = {"weight": np.eye(3), "bias": np.zeros(3)}
    with pytest.raises(ValueError, match=r"unexpected weight, .* 'torch_linear'"):
        blocks.Linear(3, 3).load_state_dict(state)


MADE = {
    "torch_attention": ("MultiheadAttention", (12, 3), {}),
    "other keys": ("MultiheadAttention", (12, 3), {"kdim": 5, "vdim": 5}),
    "no biases": ("MultiheadAttention", (12, 3), {"bias": False}),
    "torch_encoder_layer": ("TransformerEncoderLayer", (12, 3, 20), {}),
    "torch_decoder_layer": ("TransformerDecoderLayer", (12, 3, 20), {}),
    "torch_linear": ("Linear", (12, 5), {}),
    "torch_embedding": ("Embedding", (9, 12), {}),
}


@pytest.mark.parametrize("kind", MADE)
def test_pytorchs_layers_load_ours(kind):
    torch = pytest.importorskip("torch")
    name, sizes, options = MADE[kind]
    if name[0] in "MT":
        options = {**options, "batch_first": True}
    theirs = getattr(torch.nn, name)(*sizes, **options)
    theirs, ours = theirs.double().eval(), TORCH[kind]()
    state = checkpoints.to_torch(ours)
    theirs.load_state_dict({key: torch.from_numpy(x) for key, x in state.items()})
    rng = np.random.default_rng(0)
    x, context = rng.standard_normal((2, 5, 12)), rng.standard_normal((2, 7, 12))
    if "key" in kind:
        context = context[..., :5]
    given = [torch.from_numpy(array) for array in (x, context)]
    with torch.no_grad():
        if name == "MultiheadAttention":
            narrow = kind == "other keys"
            second = given[1] if narrow else given[0]
            expected = theirs(given[0], second, second)[0]
            result = ours(x, context) if narrow else ours(x)
        elif name == "Embedding":
            ids = np.array([[7, 0], [3, 3]])
            expected, result = theirs(torch.from_numpy(ids)), ours(ids)
        elif name in ("TransformerEncoderLayer", "Linear"):
            expected, result = theirs(given[0]), ours(x)
        else:
            mask = torch.nn.Transformer.generate_square_subsequent_mask(5).double()
            expected = theirs(*given, tgt_mask=mask)
            result = ours(x, context)
    np.testing.assert_allclose(result, expected.numpy(), rtol=1e-10, atol=1e-12)
