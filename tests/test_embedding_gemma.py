"""EmbeddingGemma 2: its arithmetic, its folders, and what it does not do."""

import copy
import functools
import json
import pickle

import numpy as np
import pytest
from support import embedding_gemma, sentences
from support.comparisons import assert_near, assert_same_bits
from support.embedding_gemma import CONFIG, FULL, SLIDING
from support.quotients import assert_model_gradients, with_values

from attnpy import QuantizedWeight, checkpoints
from attnpy.models import CausalDecoder, SentenceEncoder
from attnpy.pages import PagedKVCache
from attnpy.positions import Rotary

numpy_files = pytest.importorskip("safetensors.numpy")

IDS = np.random.default_rng(3).integers(0, 30, (3, 12))
LENGTHS = [7, 12, 1]
TEXT = np.array([1, 5, 2, 2, 0])
SIZES = {"head_dim": 10, "num_key_value_heads": 1}


def read(dtype=np.float64, **changes):
    """A model, and its weights and configuration."""
    config = {**CONFIG, **changes}
    tensors = embedding_gemma.tensors(config)
    model = CausalDecoder.from_config(config, dtype=dtype)
    checkpoints.load(model, tensors, "embedding_gemma2")
    return model, tensors, config


def write(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    numpy_files.save_file(tensors, folder / "model.safetensors")


@pytest.mark.quick
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_bias": True},
        {"layer_types": [SLIDING] * 3 + [FULL], "per_layer_config": {}},
        {"layer_types": [FULL] * 4, "per_layer_config": {}},
        {"hidden_size_per_layer_input": 24, "embedding_dim": 16},
    ],
)
def test_vectors_are_those_of_the_formulas(changes):
    model, tensors, config = read(**changes)
    for ids in (IDS[0], IDS[1, :1]):
        expected = embedding_gemma.states(tensors, config, ids)
        assert_near(model(ids), expected, 1e-11)
    assert model.embed_dim == config["embedding_dim"]
    single = read(np.float32, **changes)[0](IDS[0])
    expected = embedding_gemma.states(tensors, config, IDS[0])
    assert_near(single, expected, 1e-4)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("packed", [False, True])
def test_texts_have_the_same_bits_in_any_company(dtype, packed):
    model, _, _ = read(dtype)
    if packed:
        model.pack()
    states = model(IDS, lengths=LENGTHS)
    assert states.dtype == dtype
    for own, text, n in zip(states, IDS, LENGTHS, strict=True):
        assert_same_bits(own[:n], model(text[:n]))
        assert_same_bits(own[:n], model(text[np.newaxis, :n], num_threads=1)[0])
        assert not own[n:].any()


@pytest.mark.quick
def test_weights_and_states_are_those_of_each_layer():
    model, _, _ = read()
    found = model(IDS, return_weights=True, return_hidden_states=True, lengths=LENGTHS)
    assert_same_bits(found.output, model(IDS, lengths=LENGTHS))
    assert found.hidden_states.shape == (5, 3, 12, 16)
    assert_near(found.hidden_states[-1] @ model.W_out, found.output)
    assert found.weights.shape == (4, 3, 4, 12, 12)
    assert_near(found.weights[:, 1].sum(axis=-1), np.ones((4, 4, 12)))
    far = np.abs(np.arange(12)[:, None] - np.arange(12)) > 2
    assert not found.weights[::2, 1][:, :, far].any()
    assert (found.weights[1::2, 1] > 0).all()
    some = model(IDS, return_weights=True, lengths=LENGTHS, heads=[3, 0], layers=[1])
    assert_same_bits(some.weights, found.weights[1:2, :, [3, 0]])


@pytest.mark.quick
def test_models_have_the_gradients_of_difference_quotients():
    model, _, _ = read(
        num_hidden_layers=2, layer_types=[SLIDING, FULL], per_layer_config={"1": SIZES}
    )
    with_values(model)

    def run():
        return model(IDS, lengths=LENGTHS)

    def vjp():
        return model.vjp(IDS, lengths=LENGTHS)

    assert_model_gradients(model, run, vjp)
    output, pullback = model.vjp(IDS[0])
    again, of_checkpoint = model.vjp(IDS[0], checkpoint=True)
    assert_same_bits(again, output)
    grad = np.cos(np.arange(output.size)).reshape(output.shape)
    found, other = pullback(grad), of_checkpoint(grad)
    assert list(found) == list(other) == list(model.parameters())
    for name, array in pullback(grad).items():
        assert_same_bits(array, found[name])
        assert_same_bits(array, other[name])


@pytest.mark.quick
def test_copies_and_pickles_compute_the_same():
    model, _, _ = read(np.float32)
    expected = model(IDS)
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert repr(same) == repr(model)
        assert_same_bits(same(IDS), expected)
    words = "head_sizes=[(6, 2), (10, 1), (6, 2), (10, 1)], qk_norm=True, value_norm=Tr"
    assert words in repr(model)
    assert "input_dim=5, layer_scalars=True, output_dim=7" in repr(model)


@pytest.mark.quick
@pytest.mark.parametrize("start", ["", "language_model.", "model.language_model."])
def test_the_text_model_is_read_of_one_with_pictures_and_sound(tmp_path, start):
    expected, tensors, config = read(np.float32)
    front = "model." if start.startswith("model.") else ""
    there = {f"{start}{name}": array for name, array in tensors.items()}
    for name in ("vision_tower.x", "embed_vision.x", "audio_tower.x", "embed_audio.x"):
        there[f"{front}{name}.weight"] = np.ones(3, np.float32)
    inner = {name: x for name, x in config.items() if name != "eos_token_id"}
    around = {name: {"hidden_size": 8} for name in ("vision_config", "audio_config")}
    around |= {"boa_token_id": 3, "eoa_token_index": 4, "audio_token_id": 5}
    around |= {"image_token_id": 6, "video_token_id": 7, "initializer_range": 0.02}
    whole = {"model_type": "embedding_gemma2", "text_config": inner, **around}
    if not start:
        whole = config
    write(tmp_path / "a", {**whole, "eos_token_id": 1}, there)
    for packed in (True, False):
        model = CausalDecoder.from_pretrained(tmp_path / "a", packed=packed)
        assert_same_bits(model(IDS), expected(IDS))
    assert (model.stop, model.max_tokens) == ((1,), 64)
    model.save_pretrained(tmp_path / "b")
    saved = json.loads((tmp_path / "b" / "config.json").read_text())
    assert saved["architectures"] == ["EmbeddingGemma2TextModel"]
    again = CausalDecoder.from_pretrained(tmp_path / "b")
    assert_same_bits(again(IDS), expected(IDS))
    arrays = numpy_files.load_file(tmp_path / "b" / "model.safetensors")
    assert arrays.keys() == tensors.keys()
    for name, array in tensors.items():
        assert_same_bits(arrays[name], array)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_models_may_have_integers(tmp_path, weights):
    _, tensors, config = read(np.float32)
    write(tmp_path / "a", config, tensors)
    model = CausalDecoder.from_pretrained(tmp_path / "a", weights=weights)
    states = model(IDS, lengths=LENGTHS)
    for own, text, n in zip(states, IDS, LENGTHS, strict=True):
        assert_same_bits(own[:n], model(text[:n]))
    for layer in model.decoder.layers:
        for name in ("W_input", "W_1", "W_2"):
            assert isinstance(getattr(layer.beside, name), QuantizedWeight)
    assert isinstance(model.W_out, QuantizedWeight)
    # Saved are the numbers that the integers stand for.
    model.save_pretrained(tmp_path / "b")
    same = CausalDecoder.from_pretrained(tmp_path / "b")
    assert_near(states[1], same(IDS[1]), 1e-4)


@pytest.mark.quick
@pytest.mark.parametrize("size", [7, 16])
def test_vectors_of_texts_are_means_of_those_of_tokens(tmp_path, size):
    sentences.require()
    by_text = {"method": "forward", "method_output_name": "last_hidden_state"}
    said = {"text": by_text, "image": by_text, "audio": by_text, "image+text": by_text}
    sentences.write(
        tmp_path,
        pooling={"embedding_dimension": size, "pooling_mode": "mean"},
        sentence={
            "transformer_task": "feature-extraction",
            "modality_config": said,
            "module_output_name": "token_embeddings",
        },
    )
    model, tensors, config = read(np.float32)
    write(tmp_path, config, tensors)
    encoder = SentenceEncoder.from_pretrained(tmp_path, packed=False)
    vectors = encoder.encode(sentences.TEXTS)
    assert vectors.shape == (len(sentences.TEXTS), encoder.embed_dim) == (7, 7)
    for text, vector in zip(sentences.TEXTS, vectors, strict=True):
        ids = encoder.tokenizer.encode(text).ids
        mean = model(ids).mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)
        assert_same_bits(encoder.encode(text), vector)
    encoder.save_pretrained(tmp_path / "again")
    again = SentenceEncoder.from_pretrained(tmp_path / "again")
    assert_same_bits(again.encode(sentences.TEXTS), vectors)
    output, pullback = encoder.vjp(sentences.TEXTS[:2])
    assert pullback(output).keys() == encoder.model.parameters().keys()
    said["message"] = {**by_text, "format": "structured"}
    path = tmp_path / "sentence_bert_config.json"
    path.write_text(json.dumps({"modality_config": said}))
    with pytest.raises(ValueError, match="expected modality_config = "):
        SentenceEncoder.from_pretrained(tmp_path)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"per_layer_config": {"4": SIZES}}, "numbers of layers below 4, got '4'"),
        ({"per_layer_config": {"x": SIZES}}, "numbers of layers below 4, got 'x'"),
        ({"per_layer_config": {"1": {"head_dim": 0}}}, "with head_dim and num_key_v"),
        ({"per_layer_config": {"1": {"sliding_window": 3}}}, "with head_dim and num_k"),
        ({"per_layer_config": {"1": SIZES}}, "with one size for all layers of full_at"),
        ({"layer_types": [FULL, SLIDING] * 2}, "layer_types that end with full_attent"),
        ({"is_causal": True}, "expected is_causal = False, got True"),
        ({"hidden_activation": "relu2"}, "hidden_activation to be one of gelu, "),
        (
            {"rope_parameters": {FULL: {"rope_type": "proportional"}}},
            "expected one 'rope_type' of default, ",
        ),
    ],
)
def test_configurations_that_are_not_here_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        CausalDecoder.from_config({**CONFIG, **changes})


@pytest.mark.quick
def test_sizes_that_a_file_does_not_say_are_those_of_the_class():
    config = {k: x for k, x in CONFIG.items() if not k.startswith(("layer_t", "per_l"))}
    config |= {"num_hidden_layers": 7, "head_dim": 6}
    model = CausalDecoder.from_config(config)
    sizes = [
        (x.self_attention.head_dim, x.self_attention.num_kv_heads)
        for x in model.decoder.layers
    ]
    assert sizes == [(6, 2)] * 5 + [(512, 1)] * 2
    assert model.window == [(2, 2)] * 5 + [None] * 2
    # As their class writes them for ten layers and more.
    padded = {f"0{i}": x for i, x in CONFIG["per_layer_config"].items()}
    model = CausalDecoder.from_config({**CONFIG, "per_layer_config": padded})
    assert model.decoder.layers[3].self_attention.head_dim == 10
    config |= {"sliding_window_pattern": 2, "global_head_dim": 4}
    config["num_global_key_value_heads"] = 4
    model = CausalDecoder.from_config(config)
    assert model.window == [(2, 2), None] * 3 + [None]
    assert model.decoder.layers[1].self_attention.W_k.shape == (16, 16)


@pytest.mark.quick
def test_what_such_models_lack_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="classifier: expected False, as embedding_g"):
        CausalDecoder.from_config(CONFIG, classifier=True)
    model, _, _ = read(np.float32)
    with pytest.raises(ValueError, match="tied: expected True or False to generate"):
        model.generate(IDS[0], 3)
    with pytest.raises(ValueError, match="cache: expected None with causal=False"):
        model(IDS, caches=model.new_caches(3, 20))
    mha = model.decoder.layers[0].self_attention
    x = np.ones((4, 16), np.float32)
    for name in ("context", "relative"):
        with pytest.raises(ValueError, match=f"{name}: expected None in a layer that"):
            mha(x, **{name: x})
    values = CausalDecoder(1, 4, 1, 4, vocab_size=9, value_norm=True)
    pools = values.new_page_pools(2)
    for caches in (
        values.new_caches(1, 9, dtype="int8"),
        [PagedKVCache(pool, 1) for pool in pools],
    ):
        with pytest.raises(ValueError, match="cache: expected a KVCache of floats in"):
            values(TEXT, caches=caches)
        assert caches[0].lengths.tolist() == [0]
    for given in ({"context": x}, {"context": x, "value": x}):
        with pytest.raises(ValueError, match="context: expected None in a layer that"):
            mha.vjp(x, **given)
    with pytest.raises(ValueError, match="context: expected none in a layer that"):
        mha.project_context(x)
    for call in (mha, mha.vjp):  # more arguments than these layers have
        with pytest.raises(TypeError, match="positional arguments"):
            call(x, None, None, x)
        with pytest.raises(TypeError, match="context"):
            call(x, None, context=x)
    layer, plain = model.decoder.layers[0], values.decoder.layers[0]
    scaled = CausalDecoder(1, 4, 1, 4, vocab_size=9, layer_scalars=True)
    for call in (layer, layer.vjp):
        with pytest.raises(ValueError, match=r"given: expected \(..., P\), got None"):
            call(x)
    for call in (scaled.decoder.layers[0], scaled.decoder.layers[0].vjp):
        with pytest.raises(ValueError, match="given: expected None, got ndarray"):
            call(x[:, :4], given=x)
    with pytest.raises(TypeError, match="given"):
        plain(x[:, :4], given=x)
    with pytest.raises(ValueError, match="rotary: expected head_dim = 6"):
        mha(x, rotary=Rotary(8))
    with pytest.raises(TypeError, match="x_y"):
        mha(x, x_y=3)
    sizes = {"vocab_size": 9, "output_dim": 3}
    for more in ({}, {"tied": False}, {"tied": None, "num_labels": 2}):
        with pytest.raises(ValueError, match="output_dim: expected None in a model wi"):
            CausalDecoder(1, 4, 1, 4, **sizes, **more)
    for wrong, words in (
        ([(4, 1)], "head_sizes: expected one for each of the 2 layers, got 1"),
        ([(4, 1), (4, 1, 1)], r"expected \(head_dim, num_kv_heads\), got \(4, 1, 1\)"),
        ([(4, 1), (0, 1)], "head_dim: expected "),
    ):
        with pytest.raises(ValueError, match=words):
            CausalDecoder(2, 4, 1, 4, vocab_size=9, head_sizes=wrong)
    with pytest.raises(TypeError, match="head_sizes: expected a sequence of"):
        CausalDecoder(2, 4, 1, 4, vocab_size=9, head_sizes=3)


@pytest.mark.quick
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("norm_after", [False, True])
def test_each_option_works_alone(causal, norm_after):
    shared = {"vocab_size": 9, "causal": causal, "norm_after": norm_after}
    shared |= {"norm": "rms", "dtype": np.float64, "bias": False}
    for options in (
        {"value_norm": True},
        {"input_dim": 3, "activation": "silu"},
        {"layer_scalars": True, "activation": "swiglu"},
        {"output_dim": 3, "tied": None},
        {"head_sizes": [(4, 1), (6, 2)]},
    ):
        model = with_values(CausalDecoder(2, 8, 2, 5, **shared, **options))
        run, vjp = (functools.partial(call, TEXT) for call in (model, model.vjp))
        assert_model_gradients(model, run, vjp)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_layers_with_such_parts_decode_with_caches_in_the_same_bits(dtype):
    model = CausalDecoder(
        *(3, 16, 4, 20),
        vocab_size=30,
        head_sizes=[(6, 2), (10, 1), (6, 2)],
        rotary=[Rotary(6), Rotary(10), None],
        window=[None, (3, 0), None],
        qk_norm=True,
        value_norm=True,
        sinks=True,
        norm_after=True,
        input_dim=5,
        layer_scalars=True,
        norm="rms",
        bias=False,
        activation="geglu_tanh",
        dtype=dtype,
        rng=np.random.default_rng(0),
    )
    full = model(IDS)
    for chunks in ([12], [5, 7], [1] * 12):
        caches, start = model.new_caches(3, 12), 0
        for n in chunks:
            part = slice(start, start + n)
            states = model(IDS[:, part], caches=caches)
            assert_same_bits(states, np.ascontiguousarray(full[:, part]))
            start += n
    caches = model.new_caches(3, 12)
    first = model(IDS[:, :6], lengths=[2, 6, 1], caches=caches)
    second = model(IDS[:, 6:], lengths=[6, 6, 6], caches=caches)
    for i, n in enumerate([2, 6, 1]):
        text = np.concatenate([IDS[i, :n], IDS[i, 6:]])
        assert_same_bits(np.concatenate([first[i, :n], second[i]]), model(text))
    new = model.generate(IDS[0, :4], 5)
    scores = model.logits(model([*IDS[0, :4], *new[:-1]]))[3:]
    assert (new == scores.argmax(axis=-1)).all()
    assert (model.generate(IDS[:2, :4], 5)[0] == new).all()


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_vectors_are_those_of_transformers(tmp_path, whole, implementation):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    if "embedding_gemma2" not in transformers.CONFIG_MAPPING:
        pytest.skip("a class of later versions")
    config = transformers.CONFIG_MAPPING["embedding_gemma2_text"](**CONFIG)
    if whole:
        config = transformers.CONFIG_MAPPING["embedding_gemma2"](text_config=config)
    torch.manual_seed(0)
    config._attn_implementation = implementation
    model = transformers.AutoModel.from_config(config).double().eval()
    inner = model.language_model if whole else model
    for name, array in embedding_gemma.tensors().items():
        target = inner.state_dict()[name]  # on the same memory
        target.copy_(torch.tensor(array))
    model.save_pretrained(tmp_path / "a")
    ours = CausalDecoder.from_pretrained(tmp_path / "a", dtype="auto")
    assert ours.token_embedding.dtype == np.float64
    exists = np.arange(12) < np.array(LENGTHS)[:, np.newaxis]
    states = ours(IDS, lengths=LENGTHS)
    with torch.no_grad():
        for own, text, n in zip(states, IDS, LENGTHS, strict=True):
            alone = model(torch.tensor(text[np.newaxis, :n])).last_hidden_state[0]
            # Their norms and angles are of float32.
            np.testing.assert_allclose(own[:n], alone, rtol=1e-4, atol=1e-5)
        if implementation == "sdpa":  # the other one makes NaN of padding
            mask = torch.tensor(exists.astype(int))
            batch = model(torch.tensor(IDS), attention_mask=mask).last_hidden_state
            np.testing.assert_allclose(
                states[exists], batch.numpy()[exists], rtol=1e-4, atol=1e-5
            )
