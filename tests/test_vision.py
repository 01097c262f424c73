"""Models of pictures: their arithmetic, bits, folders, processors, labels and search.

Comparisons with their libraries need `pip install torch transformers`.
"""

import copy
import functools
import json
import os
import pickle
import sys

import numpy as np
import pytest
from support import pages, pictures
from support.comparisons import assert_same_bits, assert_same_parameters
from support.errors import refused

from attnpy import checkpoints
from attnpy.models import (
    CausalDecoder,
    ImageClassifier,
    ImageEncoder,
    ImageProcessor,
    ImageTextEncoder,
    ImageTextModel,
)

pictures.require()

IMAGES = pytest.mark.parametrize("kind", pictures.IMAGES)
PAIRS = pytest.mark.parametrize("kind", pictures.PAIRS)
LABELS = pytest.mark.parametrize("kind", ["vit", "deit"])


@functools.cache
def pair(kind, folder, **options):
    return ImageTextModel.from_pretrained(folder, dtype=np.float64, **options)


# ---- Arithmetic ----------------------------------------------------------------------


@pytest.mark.quick
@IMAGES
def test_vectors_of_tokens_and_pictures_are_their_arithmetic(kind, tmp_path):
    config = pictures.IMAGES[kind]
    tensors = pictures.write(tmp_path, config)
    model = ImageEncoder.from_pretrained(tmp_path, pooler=True, dtype=np.float64)
    pixels = pictures.pixels(config)
    states = model(pixels)
    vectors = model.pool(states)
    for picture, own, vector in zip(pixels, states, vectors, strict=True):
        expected = pictures.image_states(tensors, config, picture)
        np.testing.assert_allclose(own, expected, 1e-10, 1e-10)
        expected = pictures.image_vector(tensors, config, picture)
        np.testing.assert_allclose(vector, expected, 1e-10, 1e-10)
        assert_same_bits(model(picture), own)
        assert_same_bits(model.pool(own), vector)
    plain = ImageEncoder.from_pretrained(tmp_path, dtype=np.float64)
    assert_same_bits(plain(pixels), states)
    with pytest.raises(ValueError, match="pooler: expected a model with a pooler"):
        plain.pool(states)


@pytest.mark.quick
@LABELS
def test_scores_of_labels_are_their_arithmetic(kind, tmp_path):
    config = pictures.IMAGES[kind]
    tensors = pictures.write(tmp_path, config, n_labels=5)
    model = ImageEncoder.from_pretrained(tmp_path, classifier=True, dtype=np.float64)
    pixels = pictures.pixels(config)
    scores = model.classify(model(pixels))
    for picture, own in zip(pixels, scores, strict=True):
        expected = pictures.image_scores(tensors, config, picture)
        np.testing.assert_allclose(own, expected, 1e-10, 1e-10)


@pytest.mark.quick
@PAIRS
def test_vectors_of_pairs_and_their_scores_are_their_arithmetic(kind, tmp_path):
    config = pictures.PAIRS[kind]
    tensors = pictures.write(tmp_path, config)
    model = pair(kind, tmp_path)
    pixels = pictures.pixels(config["vision_config"])
    images, texts = model.encode_images(pixels), model.encode_texts(pictures.IDS)
    for picture, vector in zip(pixels, images, strict=True):
        expected = pictures.pair_image(tensors, config, picture)
        np.testing.assert_allclose(vector, expected, 1e-10, 1e-10)
        assert_same_bits(model.encode_images(picture), vector)
    for ids, vector in zip(pictures.IDS, texts, strict=True):
        expected = pictures.pair_text(tensors, config, ids)
        np.testing.assert_allclose(vector, expected, 1e-10, 1e-10)
        assert_same_bits(model.encode_texts(ids), vector)
    scale = np.exp(float(tensors["logit_scale"].reshape(-1)[0]))
    bias = float(tensors.get("logit_bias", np.zeros(1))[0])
    found = model.logits(images, texts)
    np.testing.assert_allclose(found, scale * images @ texts.T + bias, 1e-12)


@pytest.mark.quick
@PAIRS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_scores_are_infinite_where_their_scale_is_too_large(kind, dtype):
    model = ImageTextModel.from_config(
        pictures.PAIRS[kind], dtype=dtype, rng=np.random.default_rng(0)
    )
    vectors = np.eye(2, model.projection_dim, dtype=dtype) + np.asarray(1, dtype)
    products = -vectors @ vectors.T
    for scale in (80.0, 100.0, 1000.0):
        model.logit_scale[:] = scale
        found = model.logits(vectors, -vectors) - (model.logit_bias or 0)
        expected = np.exp(np.float64(scale)).astype(dtype) * products
        np.testing.assert_allclose(found, expected, 1e-6)


@pytest.mark.quick
@IMAGES
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pictures_have_the_same_bits_alone_in_batches_and_on_threads(kind, dtype):
    config = {**pictures.IMAGES[kind], "image_size": 64}
    model = ImageEncoder.from_config(
        config, pooler=True, dtype=dtype, rng=np.random.default_rng(0)
    )
    pixels = pictures.pixels(config, 9).astype(np.float32)
    expected = model(pixels, num_threads=1)
    vectors = model.pool(expected, num_threads=1)
    for n in (1, 2, 3):
        assert_same_bits(model(pixels, num_threads=n), expected)
        assert_same_bits(model.pool(expected, num_threads=n), vectors)
    for i in (0, 4, 8):
        assert_same_bits(model(pixels[i]), expected[i])
        assert_same_bits(model(pixels[i : i + 2])[0], expected[i])
        assert_same_bits(model.pool(expected[i]), vectors[i])
    model.pack()
    assert_same_bits(model(pixels), expected)
    strided = np.asfortranarray(pixels)
    assert_same_bits(model(strided), expected)


@pytest.mark.quick
@IMAGES
def test_weights_and_states_are_returned_and_change_no_bit(kind):
    config = pictures.IMAGES[kind]
    model = ImageEncoder.from_config(config, rng=np.random.default_rng(0))
    pixels = pictures.pixels(config).astype(np.float32)
    result = model(pixels, return_weights=True, return_hidden_states=True)
    assert_same_bits(result.output, model(pixels))
    n = len(model.position_embedding)
    assert result.weights.shape == (2, 2, 3, n, n)
    np.testing.assert_allclose(result.weights.sum(axis=-1), 1, 1e-5)
    assert_same_bits(result.hidden_states[-1], result.output)
    one = model(pixels[0], return_weights=True, layers=-1, heads=[0])
    assert_same_bits(one.weights[0], result.weights[-1, 0, :1])


@pytest.mark.quick
@PAIRS
def test_what_comes_after_the_end_of_a_text_matters_to_siglip_only(kind, tmp_path):
    pictures.write(tmp_path, pictures.PAIRS[kind])
    model = pair(kind, tmp_path)
    whole = model.encode_texts([28, 5, 29, 1, 1])
    if kind == "clip":
        assert_same_bits(model.encode_texts([28, 5, 29]), whole)
        assert_same_bits(model.encode_texts([28, 5, 29, 7, 8]), whole)
        with pytest.raises(ValueError, match="token_ids: expected the end token 29 in"):
            model.encode_texts([[28, 5, 29], [28, 5, 6]])
    else:
        assert not np.allclose(model.encode_texts([28, 5, 29]), whole)
    for wrong in ([], [[]], [30], [-1]):
        with refused(ValueError, "token_ids"):
            model.encode_texts(wrong)


def test_old_files_of_clip_mean_the_largest_token(tmp_path):
    config = copy.deepcopy(pictures.CLIP)
    pictures.write(tmp_path / "a", config)
    config["text_config"]["eos_token_id"] = 2
    pictures.write(tmp_path / "b", config)
    new, old = (ImageTextModel.from_pretrained(tmp_path / x) for x in "ab")
    assert old.end_token == "largest"
    assert_same_bits(old.encode_texts(pictures.IDS), new.encode_texts(pictures.IDS))
    assert_same_bits(old.encode_texts([3, 9, 4]), old.encode_texts([3, 9]))


# ---- Folders -------------------------------------------------------------------------

SAVED = [
    *((kind, None) for kind in pictures.IMAGES),
    ("vit", 3),
    ("deit", 3),
    *((kind, None) for kind in pictures.PAIRS),
]
SAVED = pytest.mark.parametrize(("kind", "n_labels"), SAVED)


def reads(kind, n_labels):
    """What reads a folder of this kind."""
    if kind in pictures.PAIRS:
        return ImageTextModel.from_pretrained
    options = {"classifier": True} if n_labels else {"pooler": True}
    return functools.partial(ImageEncoder.from_pretrained, **options)


@pytest.mark.quick
@SAVED
@pytest.mark.parametrize("packed", [True, False])
def test_what_is_saved_is_read_again(tmp_path, kind, n_labels, packed):
    config = {**pictures.IMAGES, **pictures.PAIRS}[kind]
    tensors = pictures.write(tmp_path / "a", config, n_labels)
    read = reads(kind, n_labels)
    model = read(tmp_path / "a", packed=packed)
    model.save_pretrained(tmp_path / "b")
    again = read(tmp_path / "b")
    assert_same_parameters(again, model)
    found = checkpoints.read(tmp_path / "b")
    for name, array in tensors.items():
        own = found[name] if name in found else found[f"vision_model.{name}"]
        assert own.shape == array.shape
        np.testing.assert_allclose(own, array, atol=1e-6)
    assert len(found) == len(tensors)
    before = os.listdir(tmp_path / "b")
    again.save_pretrained(tmp_path / "b")
    assert os.listdir(tmp_path / "b") == before


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["vit", "clip", "siglip"])
@pytest.mark.parametrize("activations", ["float", "int8"])
def test_weights_may_be_integers(tmp_path, kind, activations):
    config = pictures.ALL[kind]
    pictures.write(tmp_path, config)
    read = reads(kind, None)
    model = read(tmp_path, weights="int8", activations=activations)
    expected = read(tmp_path, packed=False)
    expected.quantize(activations=activations)
    for own, other in zip(
        states_of(model, config), states_of(expected, config), strict=True
    ):
        assert_same_bits(own, other)
    plain = states_of(read(tmp_path), config)[0]
    assert 0 < np.abs(states_of(model, config)[0] - plain).max() < 0.3
    with pytest.raises(ValueError, match=r"^activations: expected 'float' without"):
        read(tmp_path, activations="int8")


def states_of(model, config):
    """Vectors of pictures, and of texts if the model has them."""
    if isinstance(model, ImageEncoder):
        return [model(pictures.pixels(config))]
    return [
        model.encode_images(pictures.pixels(config["vision_config"])),
        model.encode_texts(pictures.IDS),
    ]


@pytest.mark.quick
def test_deit_with_one_classifier_is_read_and_saved(tmp_path):
    config = {**pictures.DEIT, "architectures": ["DeiTForImageClassification"]}
    tensors = pictures.tensors(config, n_labels=3)
    plain = {
        name.replace("cls_classifier", "classifier"): array
        for name, array in tensors.items()
        if "distillation_classifier" not in name
    }
    pictures.write(tmp_path, config, 3)
    from safetensors.numpy import save_file

    save_file(plain, tmp_path / "model.safetensors")
    model = ImageEncoder.from_pretrained(tmp_path, classifier=True)
    assert model.distillation_weight is None
    pixels = pictures.pixels(config)
    states = model(pixels)
    expected = states[:, 0] @ plain["classifier.weight"].T + plain["classifier.bias"]
    np.testing.assert_allclose(model.classify(states), expected, 1e-4, 1e-5)
    model.save_pretrained(tmp_path / "b")
    assert set(checkpoints.read(tmp_path / "b")) == set(plain)
    written = json.loads((tmp_path / "b" / "config.json").read_text())
    assert written["architectures"] == config["architectures"]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("clip_vision_model", {"classifier": True}, "classifier: expected False, as"),
        ("siglip_vision_model", {"classifier": True}, "classifier: expected False, as"),
        ("clip", {}, "expected model_type = vit, deit, clip_vision_model or siglip_v"),
        ("vit", {"classifier": True}, "missing classifier.weight, classifier.bias"),
    ],
)
def test_what_a_family_does_not_have_is_refused(tmp_path, kind, options, words):
    pictures.write(tmp_path, {**pictures.ALL}[kind])
    with pytest.raises(ValueError, match=words):
        ImageEncoder.from_pretrained(tmp_path, **options)


@pytest.mark.quick
def test_heads_that_are_not_asked_for_are_refused_or_left_alone(tmp_path):
    pictures.write(tmp_path, pictures.VIT, n_labels=3)
    with pytest.raises(ValueError, match="the model is without unless classifier"):
        ImageEncoder.from_pretrained(tmp_path)
    ImageEncoder.from_pretrained(tmp_path, ignore_head=True)
    config = {**pictures.SIGLIP_VISION, "vision_use_head": False}
    with pytest.raises(ValueError, match="pooler: expected False, as vision_use_head"):
        ImageEncoder.from_config(config, pooler=True)
    with pytest.raises(ValueError, match="vision_config: expected vision_use_head"):
        ImageTextModel.from_config({**pictures.SIGLIP, "vision_config": config})


@pytest.mark.quick
def test_arrays_of_other_axes_are_refused(tmp_path):
    from safetensors.numpy import save_file

    tensors = pictures.write(tmp_path, pictures.VIT)
    name = "embeddings.cls_token"
    for wrong in (np.zeros((1, 2, 12)), np.zeros((2, 1, 6)), np.zeros((1, 1, 1, 12))):
        save_file({**tensors, name: wrong}, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=rf"{name}: expected shape \(12,\), got"):
            ImageEncoder.from_pretrained(tmp_path)


@pytest.mark.quick
def test_nested_configurations_are_judged_by_name():
    make = ImageTextModel.from_config
    for name in ("text_config", "vision_config"):
        for changes, words in (
            ({"hidden_size": "8"}, "expected hidden_size to be an integer"),
            ({"x_y": 3}, "expected no x_y, got 3"),
            ({"model_type": "bert"}, "expected model_type = clip_"),
        ):
            config = {**pictures.CLIP, name: {**pictures.CLIP[name], **changes}}
            with pytest.raises(ValueError, match=f"^{name}: {words}"):
                make(config)
    with pytest.raises(ValueError, match="text_config: expected one eos_token_id"):
        text = {**pictures.CLIP_TEXT, "eos_token_id": [1, 2]}
        make({**pictures.CLIP, "text_config": text})
    text = {**pictures.SIGLIP_TEXT, "projection_size": None}
    for wrong in (text, {**text, "projection_size": 7}):
        with pytest.raises(ValueError, match="text_config: expected projection_size"):
            make({**pictures.SIGLIP, "text_config": wrong})
    old = {**pictures.CLIP, "text_config_dict": pictures.CLIP_TEXT, "text_config": {}}
    assert repr(make(old)) == repr(make(pictures.CLIP))


@pytest.mark.quick
def test_defaults_of_towers_are_those_of_their_classes():
    with pytest.MonkeyPatch.context() as patch:
        seen = []

        def stop(*arguments, **options):
            seen.append(options)
            raise ZeroDivisionError

        patch.setattr(ImageEncoder, "__init__", stop)
        with pytest.raises(ZeroDivisionError):
            ImageTextModel.from_config({"model_type": "clip"})
        with pytest.raises(ZeroDivisionError):
            ImageTextModel.from_config({"model_type": "siglip", "text_config": {}})
    clip, siglip = seen
    assert (clip["embed_dim"], clip["patch_size"]) == (768, 32)
    assert (siglip["embed_dim"], siglip["patch_size"]) == (768, 16)


@SAVED
def test_transformers_gives_the_same_numbers_and_loads_what_is_saved(
    tmp_path, kind, n_labels
):
    torch, transformers = theirs()
    config = {**pictures.IMAGES, **pictures.PAIRS}[kind]
    if kind == "vit":
        config = {**config, "image_size": 13}  # with which it can also be traced
    pictures.write(tmp_path / "a", config, n_labels)
    model = reads(kind, n_labels)(tmp_path / "a", dtype=np.float64)
    model.save_pretrained(tmp_path / "b")
    written = json.loads((tmp_path / "b" / "config.json").read_text())
    cls = getattr(transformers, written["architectures"][0])
    other, info = cls.from_pretrained(tmp_path / "b", output_loading_info=True)
    assert not info["unexpected_keys"]
    assert not info["missing_keys"]
    assert other.dtype == torch.float64
    vision = config.get("vision_config", config)
    pixels = pictures.pixels(vision)
    given = {"pixel_values": torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())}
    if kind in pictures.PAIRS:
        given["input_ids"] = torch.from_numpy(pictures.IDS)
    with torch.no_grad():
        found = other.eval()(**given)
    if kind in pictures.PAIRS:
        images, texts = model.encode_images(pixels), model.encode_texts(pictures.IDS)
        ours = [images, texts, model.logits(images, texts)]
        expected = [found.image_embeds, found.text_embeds, found.logits_per_image]
    elif n_labels is not None:
        ours, expected = [model.classify(model(pixels))], [found.logits]
    else:
        ours = [model(pixels), model.pool(model(pixels))]
        expected = [found.last_hidden_state, found.pooler_output]
    for one, array in zip(ours, expected, strict=True):
        assert np.abs(one).max() > 0.01
        np.testing.assert_allclose(one, array.numpy(), 1e-9, 1e-9)


def theirs():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    return torch, transformers


# ---- Made by hand --------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"image_size": 0}, ValueError, "image_size"),
        ({"image_size": [8, 8, 8]}, ValueError, "image_size"),
        ({"image_size": 8.0}, TypeError, "image_size"),
        ({"patch_size": 33}, ValueError, "patch_size"),
        ({"num_class_tokens": 2}, ValueError, "num_class_tokens"),
        ({"num_class_tokens": 0, "distilled": True}, ValueError, "distilled"),
        ({"pooler": "first"}, ValueError, "pooler"),
        ({"pooler": "norm", "num_class_tokens": 0}, ValueError, "pooler"),
        ({"pooler_dim": 3}, ValueError, "pooler_dim"),
        ({"activation": "swiglu"}, ValueError, "activation"),
        ({"pooler_activation": "swish"}, ValueError, "pooler_activation"),
        ({"num_labels": 2, "num_class_tokens": 0}, ValueError, "num_labels"),
        ({"num_labels": 0}, ValueError, "num_labels"),
        ({"qkv_bias": 1}, TypeError, "qkv_bias"),
        ({"num_channels": 0}, ValueError, "num_channels"),
        ({"rng": 3}, TypeError, "rng"),
    ],
)
def test_models_that_make_no_sense_are_refused(options, error, name):
    with pytest.raises(error, match=f"^{name}: expected"):
        ImageEncoder(1, 8, 2, 8, **{"image_size": 32, **options})


@pytest.mark.quick
def test_pictures_of_other_sizes_are_refused():
    model = ImageEncoder(1, 8, 2, 8, image_size=(8, 12), patch_size=4, num_labels=2)
    for wrong in (np.zeros((12, 8, 3)), np.zeros((8, 12)), np.zeros((1, 1, 8, 12, 3))):
        with refused(ValueError, "pixels"):
            model(wrong)
    with refused(TypeError, "pixels"):
        model(np.zeros((8, 12, 3), np.uint8))
    with refused(TypeError, "pixels"):
        model(np.zeros((8, 12, 3), complex))
    for call in (model.classify, model.pool):
        with refused(ValueError, "states"):
            call(np.zeros((3, 8)))
    assert model(np.zeros((0, 8, 12, 3))).shape == (0, 7, 8)


@pytest.mark.quick
def test_parts_that_do_not_fit_are_refused():
    image = ImageEncoder(1, 8, 2, 8, image_size=8, patch_size=4, pooler="norm")
    text = CausalDecoder(1, 8, 2, 8, vocab_size=9, max_length=5, tied=None)
    ImageTextModel(image, text, 4)
    plain = ImageEncoder(1, 8, 2, 8, image_size=8, patch_size=4)
    scored = CausalDecoder(1, 8, 2, 8, vocab_size=9, max_length=5)
    free = CausalDecoder(1, 8, 2, 8, vocab_size=9, tied=None)
    for arguments, options, error, name in (
        ((plain, text), {}, ValueError, "image_model"),
        ((text, text), {}, TypeError, "image_model"),
        ((image, scored), {}, ValueError, "text_model"),
        ((image, free), {}, ValueError, "text_model"),
        ((image, text, 0), {}, ValueError, "projection_dim"),
        ((image, text), {"end_token": "first"}, ValueError, "end_token"),
        ((image, text), {"end_token": -1}, ValueError, "end_token"),
        ((image, text), {"logit_bias": 1}, TypeError, "logit_bias"),
    ):
        with refused(error, name):
            ImageTextModel(*arguments, **options)


@pytest.mark.quick
@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_models_are_near(bits, tmp_path):
    config = {**pictures.SIGLIP_VISION, "hidden_size": 96, "intermediate_size": 192}
    model = ImageEncoder.from_config(config, pooler=True, rng=np.random.default_rng(0))
    pixels = pictures.pixels(config).astype(np.float32)
    expected = model(pixels)
    model.quantize(bits=bits)
    found = model(pixels)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert 0 < error < {8: 0.02, 4: 0.2}[bits]


# ---- Processors ----------------------------------------------------------------------


def their_processor(folder):
    """The one that uses Pillow."""
    _, transformers = theirs()
    config = json.loads((folder / "preprocessor_config.json").read_text())
    name = config["image_processor_type"].removesuffix("Fast") + "Pil"
    if not hasattr(transformers, name):
        pytest.skip("needs a version of transformers with processors for Pillow")
    return getattr(transformers, name).from_pretrained(folder)


CROP = {"do_center_crop": True}
CHANGES = {
    "plain": {},
    "fast": {"image_processor_type": "{}ImageProcessorFast"},
    "one size": {"size": 20},
    "two sizes": {"size": {"height": 9, "width": 21}},
    "not square": {"size": 20, "default_to_square": False},
    "shortest": {
        "size": {"shortest_edge": 17},
        "crop_size": 15,
        "do_center_crop": True,
    },
    "crop": {"do_center_crop": True, "crop_size": {"height": 9, "width": 8}},
    "odd crop": {"do_center_crop": True, "crop_size": {"height": 12, "width": 11}},
    "borders": {"do_center_crop": True, "crop_size": 30},
    "odd borders": {"do_center_crop": True, "crop_size": [23, 36]},
    "no resizing": {"do_resize": False, "do_center_crop": True, "crop_size": 12},
    "no rescaling": {"do_rescale": False},
    "rescaling": {"rescale_factor": 0.0123},
    "no normalising": {"do_normalize": False},
    "mean": {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
    "one mean": {"image_mean": 0.1, "image_std": 0.7},
    "rgb": {"do_convert_rgb": True},
    **{f"filter {i}": {"resample": i} for i in range(6)},
}


@pytest.mark.parametrize("family", ["ViT", "DeiT", "CLIP", "Siglip"])
@pytest.mark.parametrize("change", CHANGES)
def test_processors_give_the_bits_of_those_of_transformers(tmp_path, family, change):
    config = {"image_processor_type": "{}ImageProcessor", **CHANGES[change]}
    config["image_processor_type"] = config["image_processor_type"].format(family)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    other = their_processor(tmp_path)
    processor = ImageProcessor.from_pretrained(tmp_path)
    for picture in pictures.pictures():
        expected = other(picture, return_tensors="np")["pixel_values"][0]
        assert_same_bits(processor(picture), np.moveaxis(expected, 0, -1).copy())


@pytest.mark.quick
def test_a_file_that_names_no_processor_is_for_the_model_beside_it(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text("{}")
    with pytest.raises(ValueError, match="expected image_processor_type, which says"):
        ImageProcessor.from_pretrained(tmp_path)
    for kind, size in (("vit", (224, 224)), ("clip", 224), ("deit", (256, 256))):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        assert ImageProcessor.from_pretrained(tmp_path).size == size
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match="expected image_processor_type, which says"):
        ImageProcessor.from_pretrained(tmp_path)
    older = {"feature_extractor_type": "CLIPFeatureExtractor", "resample": 2}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(older))
    processor = ImageProcessor.from_pretrained(tmp_path)
    assert (processor.crop_size, processor.resample) == ((224, 224), "bilinear")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"image_processor_type": "BlipImageProcessor"},
            "image_processor_type to be of",
        ),
        ({"image_processor_type": "ViT"}, "image_processor_type to be of ViTImage"),
        ({"image_processor_type": 3}, "image_processor_type to be a name"),
        ({"size": {"longest_edge": 30}}, "size to be an integer, two, or a mapping"),
        ({"size": {"shortest_edge": 3, "longest_edge": 30}}, "size to be an integer"),
        ({"size": {"height": 3}}, "size to be an integer"),
        ({"size": {"height": 3, "width": "3"}}, "size to be an integer"),
        ({"size": 0}, "size to be an integer"),
        ({"size": True}, "size to be an integer"),
        ({"size": 2**15}, "size to be an integer"),
        ({"size": "224"}, "size to be an integer"),
        ({"crop_size": [3]}, "crop_size to be an integer"),
        (
            {"crop_size": {"shortest_edge": 3}, "do_center_crop": True},
            "crop_size with height and width",
        ),
        ({"do_center_crop": True}, "crop_size where do_center_crop is true"),
        ({"resample": 6}, "resample to be one of Pillow's filters"),
        ({"resample": "bilinear"}, "resample to be one of Pillow's filters"),
        ({"do_resize": 1}, "do_resize to be true or false"),
        ({"rescale_factor": "x"}, "rescale_factor to be a finite number above 0"),
        ({"image_mean": [0.5, 0.5]}, "image_mean to be a number, or 3"),
        ({"image_mean": [0.5, 0.5, None]}, "image_mean to be a number, or 3"),
        ({"image_std": 0}, "image_std to be a number, or 3"),
        ({"image_std": [1, 1, True]}, "image_std to be a number, or 3"),
        ({"do_pad": True}, "do_pad = false"),
        ({"do_reduce_labels": True}, "do_reduce_labels = false"),
        ({"do_convert_rgb": 3}, "do_convert_rgb = true"),
        ({"size_divisor": 32}, "no size_divisor"),
    ],
)
def test_what_files_of_processors_ask_for_is_honoured_or_refused(
    tmp_path, changes, words
):
    config = {**pictures.PROCESSOR, **changes}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"preprocessor_config.json: expected {words}"):
        ImageProcessor.from_pretrained(tmp_path)


@pytest.mark.quick
def test_pictures_come_alone_in_arrays_lists_and_generators():
    processor = ImageProcessor((13, 17))
    several = pictures.pictures()
    expected = processor(several)
    assert expected.shape == (4, 13, 17, 3)
    assert expected.dtype == np.float32
    for one, own in zip(several, expected, strict=True):
        assert_same_bits(processor(one), own)
        assert_same_bits(processor(one[np.newaxis])[0], own)
        assert_same_bits(processor(np.asfortranarray(one)), own)
    assert_same_bits(processor(iter(several)), expected)
    assert processor([]).shape == (0, 13, 17, 3)
    from PIL import Image

    assert_same_bits(processor(Image.fromarray(several[0])), expected[0])
    assert_same_bits(processor([Image.fromarray(x) for x in several]), expected)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("image", "error", "name"),
    [
        (np.zeros((4, 4, 3)), TypeError, "images"),
        (np.zeros((4, 4, 4), np.uint8), ValueError, "images"),
        (np.zeros((4, 0, 3), np.uint8), ValueError, "images"),
        ([np.zeros((4, 4), np.uint8)], ValueError, r"images\[0\]"),
        (np.zeros((4, 4), np.uint8), ValueError, r"images\[0\]"),
        ("cat.png", TypeError, "images"),
        (3, TypeError, "images"),
        (None, TypeError, "images"),
    ],
)
def test_what_is_no_picture_is_refused(image, error, name):
    with refused(error, name):
        ImageProcessor((4, 4))(image)


@pytest.mark.quick
def test_pictures_of_gray_or_with_transparency_are_refused():
    from PIL import Image

    for mode in ("L", "RGBA", "P"):
        with refused(ValueError, "images"):
            ImageProcessor((4, 4))(Image.new(mode, (4, 4)))
    with pytest.raises(ValueError, match="images: expected results of one size"):
        ImageProcessor(9)(pictures.pictures())


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"size": [3]}, ValueError, "size"),
        ({"size": 0}, ValueError, "size"),
        ({"size": "3"}, (TypeError, ValueError), "size"),
        ({"crop_size": 3}, TypeError, "crop_size"),
        ({"resample": "cubic"}, ValueError, "resample"),
        ({"rescale_factor": "x"}, TypeError, "rescale_factor"),
        ({"image_mean": None}, ValueError, "image_std"),
        ({"image_std": 0}, ValueError, "image_std"),
        ({"image_mean": [1, 2]}, ValueError, "image_mean"),
    ],
)
def test_processors_that_make_no_sense_are_refused(options, error, name):
    with pytest.raises(error, match=f"^{name}"):
        ImageProcessor(**options)


@pytest.mark.quick
def test_pillow_is_named_where_it_is_missing_and_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    processor = ImageProcessor((20, 31))
    processor(pictures.pictures()[0])  # which has this size
    words = "resizing a picture of 13 x 17 to 20 x 31 needs Pillow: pip install pillow"
    with pytest.raises(ImportError, match=words):
        processor(pictures.pictures()[1])


# ---- Labels --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("pictures")
    names = {"id2label": {"0": "cat", "1": "dog", "2": "sky"}}
    for kind in ("vit", "deit"):
        pictures.write(place / kind, pictures.IMAGES[kind], 3, **names)
    for kind in pictures.PAIRS:
        pictures.write(place / kind, pictures.PAIRS[kind])
    return place


@pytest.mark.quick
@LABELS
def test_pictures_get_the_labels_of_the_models_arithmetic(folders, kind):
    classifier = ImageClassifier.from_pretrained(folders / kind, dtype=np.float64)
    tensors = checkpoints.read(folders / kind)
    several = pictures.pictures()
    scores = classifier.scores(several)
    for picture, own in zip(several, scores, strict=True):
        pixels = classifier.processor(picture)
        logits = pictures.image_scores(tensors, pictures.IMAGES[kind], pixels)
        expected = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(own, expected, 1e-9)
        best = classifier.predict(picture)
        assert best["label"] == ["cat", "dog", "sky"][expected.argmax()]
        assert best["score"] == own.max()
    for batch_size in (1, 3, 8):
        found = classifier.scores(iter(several), batch_size=batch_size)
        assert_same_bits(found, scores)
    assert [x["score"] for x in classifier.predict(several)] == list(scores.max(axis=1))
    assert classifier.scores([]).shape == (0, 3)


@pytest.mark.quick
def test_functions_of_scores_are_those_of_the_folder(folders, tmp_path):
    plain = ImageClassifier.from_pretrained(folders / "vit", function="none")
    picture = pictures.pictures()[0]
    scores = plain.scores(picture)
    sigmoid = ImageClassifier.from_pretrained(folders / "vit", function="sigmoid")
    np.testing.assert_allclose(sigmoid.scores(picture), 1 / (1 + np.exp(-scores)), 1e-5)
    kinds = {"regression": "none", "multi_label_classification": "sigmoid"}
    for kind, function in kinds.items():
        pictures.write(tmp_path, pictures.VIT, 3, problem_type=kind)
        assert ImageClassifier.from_pretrained(tmp_path).function == function


@LABELS
def test_labels_are_those_of_a_pipeline_of_transformers(folders, kind):
    torch, transformers = theirs()
    processor = their_processor(folders / kind)
    names = {"vit": "ViTForImageClassification"}
    cls = names.get(kind, "DeiTForImageClassificationWithTeacher")
    model = getattr(transformers, cls).from_pretrained(
        folders / kind, dtype=torch.float64
    )
    classifier = ImageClassifier.from_pretrained(folders / kind, dtype=np.float64)
    for picture in pictures.pictures():
        pixels = processor(picture, return_tensors="np")["pixel_values"]
        pixels = torch.from_numpy(pixels)
        with torch.no_grad():
            expected = model.eval()(pixels.double()).logits.softmax(-1)[0].numpy()
        np.testing.assert_allclose(classifier.scores(picture), expected, 1e-6)


@pytest.mark.quick
def test_classifiers_of_parts_that_do_not_fit_are_refused(folders):
    classifier = ImageClassifier.from_pretrained(folders / "vit")
    model, processor = classifier.model, classifier.processor
    plain = ImageEncoder(1, 8, 2, 8, image_size=(13, 17), patch_size=4)
    for arguments, options, error, name in (
        ((plain, processor), {}, ValueError, "model"),
        ((None, processor), {}, TypeError, "model"),
        ((model, None), {}, TypeError, "processor"),
        ((model, ImageProcessor((13, 16))), {}, ValueError, "processor"),
        ((model, processor), {"label_names": ["x"]}, ValueError, "label_names"),
        ((model, processor), {"function": "exp"}, ValueError, "function"),
    ):
        with refused(error, name):
            ImageClassifier(*arguments, **options)
    with refused(ValueError, "batch_size"):
        classifier.scores([], batch_size=0)
    twin = pickle.loads(pickle.dumps(classifier))
    assert_same_bits(
        twin.scores(pictures.pictures()), classifier.scores(pictures.pictures())
    )


# ---- Pictures and texts --------------------------------------------------------------

TEXTS = ["a photo of a cat", "blue sky", "", "this is a photo of a red dog . " * 3]


@pytest.mark.quick
@PAIRS
def test_texts_and_pictures_have_the_same_bits_in_any_batch(folders, kind):
    encoder = ImageTextEncoder.from_pretrained(folders / kind)
    texts, images = (
        encoder.encode_texts(TEXTS),
        encoder.encode_images(pictures.pictures()),
    )
    assert texts.shape == images.shape == (4, encoder.embed_dim)
    np.testing.assert_allclose(np.linalg.norm(images, axis=1), 1, 1e-5)
    for batch_size in (1, 3):
        assert_same_bits(encoder.encode_texts(TEXTS, batch_size=batch_size), texts)
        found = encoder.encode_images(iter(pictures.pictures()), batch_size=batch_size)
        assert_same_bits(found, images)
    assert_same_bits(encoder.encode_texts(TEXTS[3]), texts[3])
    assert_same_bits(encoder.encode_images(pictures.pictures()[1]), images[1])
    ids = encoder.tokenizer.encode(TEXTS[0]).ids
    if kind == "siglip":
        ids = [*ids, *[1] * (9 - len(ids))]
    assert_same_bits(encoder.model.encode_texts(ids), texts[0])
    twin = pickle.loads(pickle.dumps(encoder))
    assert_same_bits(twin.encode_texts(TEXTS), texts)
    options = {"weights": "int8", "activations": "int8"}
    rounding = ImageTextEncoder.from_pretrained(folders / kind, **options)
    assert 0 < np.abs(rounding.encode_texts(TEXTS) - texts).max() < 0.1
    model = ImageTextModel.from_pretrained(folders / kind, **options)
    assert_same_bits(rounding.model.encode_texts(ids), model.encode_texts(ids))


@pytest.mark.quick
@PAIRS
def test_labels_without_training_are_scores_of_their_sentences(folders, kind):
    encoder = ImageTextEncoder.from_pretrained(folders / kind, dtype=np.float64)
    several, labels = pictures.pictures(), ["cat", "dog", "blue sky"]
    found = encoder.classify(several, labels, template="a photo of {} .")
    texts = encoder.encode_texts([f"a photo of {label} ." for label in labels])
    logits = encoder.model.logits(encoder.encode_images(several), texts)
    if kind == "clip":
        expected = np.exp(logits - logits.max(axis=1, keepdims=True))
        expected /= expected.sum(axis=1, keepdims=True)
    else:
        expected = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(found, expected, 1e-9)
    usual = encoder.encode_texts([f"This is a photo of {label}." for label in labels])
    logits = encoder.model.logits(encoder.encode_images(several), usual)
    same = encoder.classify(several[0], labels)
    assert same.shape == (3,)
    assert same.argmax() == logits[0].argmax()
    for wrong, error, name in (
        (("cat",), TypeError, "label_names"),
        (([],), ValueError, "label_names"),
        (([3],), TypeError, r"label_names\[0\]"),
    ):
        with refused(error, name):
            encoder.classify(several, "cat" if wrong == ("cat",) else wrong[0])
    with refused(ValueError, "template"):
        encoder.classify(several, labels, template="a photo")


@pytest.mark.quick
@PAIRS
def test_pictures_are_found_by_texts_and_by_pictures(folders, kind, tmp_path):
    encoder = ImageTextEncoder.from_pretrained(folders / kind)
    vectors = encoder.encode_images(pictures.pictures())
    cosines = encoder.similarity(encoder.encode_texts(TEXTS[:2]), vectors)
    found = encoder.search(TEXTS[:2], vectors, top_k=3)
    np.testing.assert_array_equal(found.indices, np.argsort(-cosines)[:, :3])
    assert_same_bits(encoder.search(TEXTS[0], vectors, 3).scores, found.scores[0])
    assert encoder.search(vectors[2], vectors, top_k=1).indices == [2]
    path = tmp_path / "vectors.npy"
    np.save(path, vectors)
    mapped = encoder.search(TEXTS[0], np.load(path, "r"), 3)
    assert_same_bits(mapped.indices, found.indices[0])
    for arguments, error, name in (
        ((TEXTS[0], vectors, 0), ValueError, "top_k"),
        ((TEXTS[0], vectors[:, :3]), ValueError, "corpus"),
        ((TEXTS[0], TEXTS), TypeError, "corpus"),
        ((vectors[:, :3], vectors), ValueError, "query"),
        (([3], vectors), TypeError, r"texts\[0\]"),
    ):
        with refused(error, name):
            encoder.search(*arguments)


@PAIRS
def test_vectors_are_those_of_transformers_from_texts_and_pictures(folders, kind):
    torch, transformers = theirs()
    processor = their_processor(folders / kind)
    model = transformers.AutoModel.from_pretrained(folders / kind, dtype=torch.float64)
    encoder = ImageTextEncoder.from_pretrained(folders / kind, dtype=np.float64)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folders / kind / "tokenizer.json"), pad_token="[PAD]"
    )
    how = {"padding": "max_length", "max_length": 9} if kind == "siglip" else {}
    texts = tokenizer(
        TEXTS, **{"padding": True, "truncation": True, "max_length": 9, **how}
    )
    pixels = processor(pictures.pictures(), return_tensors="np")["pixel_values"]
    with torch.no_grad():
        found = model.eval()(
            input_ids=torch.tensor(texts["input_ids"]),
            pixel_values=torch.from_numpy(pixels).double(),
        )
    images = encoder.encode_images(pictures.pictures())
    np.testing.assert_allclose(images, found.image_embeds.numpy(), 1e-6, 1e-7)
    vectors = encoder.encode_texts(TEXTS)
    np.testing.assert_allclose(vectors, found.text_embeds.numpy(), 1e-6, 1e-7)


@pytest.mark.quick
def test_encoders_of_parts_that_do_not_fit_are_refused(folders, tmp_path):
    encoder = ImageTextEncoder.from_pretrained(folders / "clip")
    other = ImageTextEncoder.from_pretrained(folders / "siglip")
    assert (encoder.padding_id, other.padding_id) == (None, 1)
    parts = encoder.model, encoder.tokenizer, encoder.processor
    for arguments, options, error, name in (
        ((None, *parts[1:]), {}, TypeError, "model"),
        ((parts[0], None, parts[2]), {}, TypeError, "tokenizer"),
        ((*parts[:2], ImageProcessor((9, 9))), {}, ValueError, "processor"),
        (parts, {"padding_id": 1}, ValueError, "padding_id"),
        ((other.model, *parts[1:]), {}, ValueError, "padding_id"),
        ((other.model, *parts[1:]), {"padding_id": 30}, ValueError, "padding_id"),
    ):
        with refused(error, name):
            ImageTextEncoder(*arguments, **options)
    for token in (None, "<none>", 3):
        pictures.write(tmp_path, pictures.SIGLIP)
        content = json.dumps({"pad_token": token})
        (tmp_path / "tokenizer_config.json").write_text(content)
        with pytest.raises(ValueError, match="expected pad_token to be a token of"):
            ImageTextEncoder.from_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"truncation_side": "left"}')
    with pytest.raises(ValueError, match="expected truncation_side = right, got left"):
        ImageTextEncoder.from_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"preprocessor_config\.json"):
        ImageProcessor.from_pretrained(tmp_path)


def test_the_page_prints_what_it_says(folders, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    names = {"vit-base-patch16-224": "vit", "clip-vit-base-patch32": "clip"}
    for name, kind in names.items():
        (tmp_path / name).symlink_to(folders / kind)
    monkeypatch.chdir(tmp_path)
    pages.assert_examples_print_what_their_comments_say("images.md")
