"""Small models of pictures in the names of their checkpoints, and their arithmetic.

Written from the papers, in float64 and without attnpy: the oracle of test_vision.py.
And folders with processors and tokenizers.
"""

import json
import math

import numpy as np
import pytest

from support.families import torch_linear
from support.formulas import gelu, gelu_tanh, layer_norm, quick_gelu, softmax

VIT = {
    "model_type": "vit",
    "num_hidden_layers": 2,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "image_size": [13, 17],
    "patch_size": 4,
    "num_channels": 3,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
DEIT = {**VIT, "model_type": "deit", "image_size": 13}
CLIP_VISION = {
    **VIT,
    "model_type": "clip_vision_model",
    "image_size": 13,
    "layer_norm_eps": 1e-5,
    "hidden_act": "quick_gelu",
}
SIGLIP_VISION = {
    **CLIP_VISION,
    "model_type": "siglip_vision_model",
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
}
CLIP_TEXT = {
    "model_type": "clip_text_model",
    "num_hidden_layers": 2,
    "hidden_size": 10,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "vocab_size": 30,
    "max_position_embeddings": 9,
    "layer_norm_eps": 1e-5,
    "hidden_act": "quick_gelu",
    "bos_token_id": 28,
    "eos_token_id": 29,
}
SIGLIP_TEXT = {
    **CLIP_TEXT,
    "model_type": "siglip_text_model",
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
    "projection_size": 12,
}
CLIP = {
    "model_type": "clip",
    "text_config": CLIP_TEXT,
    "vision_config": CLIP_VISION,
    "projection_dim": 6,
}
SIGLIP = {
    "model_type": "siglip",
    "text_config": SIGLIP_TEXT,
    "vision_config": SIGLIP_VISION,
}
IMAGES = {
    config["model_type"]: config for config in (VIT, DEIT, CLIP_VISION, SIGLIP_VISION)
}
PAIRS = {config["model_type"]: config for config in (CLIP, SIGLIP)}
TEXTS = {config["model_type"]: config for config in (CLIP_TEXT, SIGLIP_TEXT)}
ALL = {**IMAGES, **PAIRS, **TEXTS}

# Texts of CLIP, with tokens after the end, and of SigLIP, where every token counts.
IDS = np.array(
    [[28, 5, 8, 29, 29, 0, 0, 0, 0], [28, 3, 3, 29, 7, 8, 9, 29, 4], [28, 29, *[2] * 7]]
)


def pixels(config, n=2, seed=0):
    """Pictures as a model takes them, (n, H, W, 3)."""
    height, width = sides(config, "image_size")
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, height, width, config["num_channels"]))


def sides(config, name):
    size = config[name]
    return size if isinstance(size, list) else [size, size]


# ---- Tensors -------------------------------------------------------------------------

LAYERS = {
    "vit": (
        "encoder.layer",
        "attention.attention.query attention.attention.key attention.attention.value "
        "attention.output.dense layernorm_before layernorm_after intermediate.dense "
        "output.dense",
    ),
    "clip": (
        "encoder.layers",
        "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.out_proj "
        "layer_norm1 layer_norm2 mlp.fc1 mlp.fc2",
    ),
}


def layer_names(config, i):
    """Names of queries, keys, values, output, two norms, and two matrices."""
    kind = "vit" if config["model_type"] in ("vit", "deit") else "clip"
    prefix, names = LAYERS[kind]
    return [f"{prefix}.{i}.{name}" for name in names.split()]


def layer_shapes(config):
    e, f = config["hidden_size"], config["intermediate_size"]
    shapes = {}
    for i in range(config["num_hidden_layers"]):
        *four, one, two, up, down = layer_names(config, i)
        shapes |= dict.fromkeys(four, (e, e)) | {one: (e,), two: (e,)}
        shapes |= {up: (f, e), down: (e, f)}
    return shapes


def image_shapes(config, head=None):
    """Shapes of a model of pictures; a name without ending is a weight and a bias."""
    kind, e = config["model_type"], config["hidden_size"]
    f = config["intermediate_size"]
    patch, size = sides(config, "patch_size"), sides(config, "image_size")
    n = math.prod(whole // part for whole, part in zip(size, patch, strict=True))
    kernel = e, config["num_channels"], *patch
    shapes = layer_shapes(config)
    if kind in ("vit", "deit"):
        first = {"vit": ["cls_token"], "deit": ["cls_token", "distillation_token"]}[
            kind
        ]
        shapes |= {f"embeddings.{name}.": (1, 1, e) for name in first}
        shapes |= {
            "embeddings.position_embeddings.": (1, len(first) + n, e),
            "embeddings.patch_embeddings.projection.weight.": kernel,
            "embeddings.patch_embeddings.projection.bias.": (e,),
            "layernorm": (e,),
            "pooler.dense": (config.get("pooler_output_size", e), e),
        }
    elif kind == "clip_vision_model":
        shapes |= {
            "embeddings.class_embedding.": (e,),
            "embeddings.patch_embedding.weight.": kernel,
            "embeddings.position_embedding.weight.": (1 + n, e),
            "pre_layrnorm": (e,),
            "post_layernorm": (e,),
        }
    else:
        shapes |= {
            "embeddings.patch_embedding.weight.": kernel,
            "embeddings.patch_embedding.bias.": (e,),
            "embeddings.position_embedding.weight.": (n, e),
            "post_layernorm": (e,),
            "head.probe.": (1, 1, e),
            "head.attention.in_proj_weight.": (3 * e, e),
            "head.attention.in_proj_bias.": (3 * e,),
            "head.attention.out_proj": (e, e),
            "head.layernorm": (e,),
            "head.mlp.fc1": (f, e),
            "head.mlp.fc2": (e, f),
        }
    return shapes


def text_shapes(config):
    e = config["hidden_size"]
    return layer_shapes(config) | {
        "embeddings.token_embedding.weight.": (config["vocab_size"], e),
        "embeddings.position_embedding.weight.": (config["max_position_embeddings"], e),
        "final_layer_norm": (e,),
    }


def pair_shapes(config):
    vision, text = config["vision_config"], config["text_config"]
    shapes = {f"vision_model.{k}": x for k, x in image_shapes(vision).items()}
    shapes |= {f"text_model.{k}": x for k, x in text_shapes(text).items()}
    if config["model_type"] == "clip":
        p = config["projection_dim"]
        shapes["visual_projection.weight."] = (p, vision["hidden_size"])
        shapes["text_projection.weight."] = (p, text["hidden_size"])
        return shapes | {"logit_scale.": ()}
    shapes["text_model.head"] = (vision["hidden_size"], text["hidden_size"])
    return shapes | {"logit_scale.": (1,), "logit_bias.": (1,)}


def tensors(config, n_labels=None, seed=0):
    """Random float32 arrays by name, with a classifier for so many labels."""
    kind = config["model_type"]
    shapes = pair_shapes(config) if kind in PAIRS else image_shapes(config)
    if n_labels is not None:
        prefix = f"{kind}."
        shapes = {prefix + name: shape for name, shape in shapes.items()}
        shapes = {name: x for name, x in shapes.items() if "pooler" not in name}
        heads = {
            "vit": ["classifier"],
            "deit": ["cls_classifier", *("distillation_classifier",)],
        }
        shapes |= dict.fromkeys(heads[kind], (n_labels, config["hidden_size"]))
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes.items():
        if name.endswith("."):
            found[name[:-1]] = shape
        else:
            found[f"{name}.weight"], found[f"{name}.bias"] = shape, shape[:1]
    return {name: drawn(rng, shape) for name, shape in found.items()}


def drawn(rng, shape):
    scale = math.prod(shape[1:]) ** -0.5 if len(shape) in (2, 4) else 1
    return np.asarray(scale * rng.standard_normal(shape), np.float32)


# ---- Arithmetic ----------------------------------------------------------------------

ACTIVATIONS = {
    "gelu": gelu,
    "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
}


def weights(arrays, prefix=""):
    return {
        name.removeprefix(prefix): np.asarray(array, float)
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def norm(x, w, name, config):
    eps = config["layer_norm_eps"]
    return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], eps)


def attend(q, k, v, n_heads, causal=False):
    """Attention of heads, (Lq, E)."""
    heads = [np.split(x, n_heads, axis=-1) for x in (q, k, v)]
    results = []
    for query, key, value in zip(*heads, strict=True):
        scores = query @ key.T / query.shape[-1] ** 0.5
        if causal:
            scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
        results.append(softmax(scores) @ value)
    return np.concatenate(results, axis=-1)


def run_layers(x, w, config, causal=False):
    act = ACTIVATIONS[config["hidden_act"]]
    for i in range(config["num_hidden_layers"]):
        q, k, v, out, one, two, up, down = layer_names(config, i)
        n = norm(x, w, one, config)
        found = attend(
            *(torch_linear(n, w, name) for name in (q, k, v)),
            config["num_attention_heads"],
            causal,
        )
        x = x + torch_linear(found, w, out)
        n = norm(x, w, two, config)
        x = x + torch_linear(act(torch_linear(n, w, up)), w, down)
    return x


def image_states(arrays, config, picture, prefix=""):
    """The vectors of a picture's tokens, (L, E)."""
    w, kind = weights(arrays, prefix), config["model_type"]
    patch, size = sides(config, "patch_size"), sides(config, "image_size")
    new = kind in ("vit", "deit")
    name = "embeddings.patch_embedding" + ("s.projection" if new else "")
    kernel, bias = w[f"{name}.weight"], w.get(f"{name}.bias", 0)
    tokens = []
    for y in range(size[0] // patch[0]):
        for x in range(size[1] // patch[1]):
            rows = slice(y * patch[0], (y + 1) * patch[0])
            columns = slice(x * patch[1], (x + 1) * patch[1])
            part = picture[rows, columns]
            tokens.append(np.einsum("ecyx,yxc->e", kernel, part) + bias)
    first = {
        "vit": ["cls_token"],
        "deit": ["cls_token", "distillation_token"],
        "clip_vision_model": ["class_embedding"],
    }.get(kind, [])
    tokens = [w[f"embeddings.{name}"].reshape(-1) for name in first] + tokens
    name = "embeddings.position_embedding" + ("s" if new else ".weight")
    x = np.stack(tokens) + w[name].reshape(len(tokens), -1)
    if kind == "clip_vision_model":
        return run_layers(norm(x, w, "pre_layrnorm", config), w, config)
    x = run_layers(x, w, config)
    return norm(x, w, "layernorm" if new else "post_layernorm", config)


def image_vector(arrays, config, picture, prefix=""):
    """What the pooler makes of a picture, (E,)."""
    states = image_states(arrays, config, picture, prefix)
    w, kind = weights(arrays, prefix), config["model_type"]
    if kind in ("vit", "deit"):
        return np.tanh(torch_linear(states[:1], w, "pooler.dense"))[0]
    if kind == "clip_vision_model":
        return norm(states[:1], w, "post_layernorm", config)[0]
    matrices = np.split(w["head.attention.in_proj_weight"], 3)
    biases = np.split(w["head.attention.in_proj_bias"], 3)
    given = w["head.probe"][0], states, states
    q, k, v = (x @ m.T + b for x, m, b in zip(given, matrices, biases, strict=True))
    found = attend(q, k, v, config["num_attention_heads"])
    found = torch_linear(found, w, "head.attention.out_proj")
    act = ACTIVATIONS[config["hidden_act"]]
    hidden = act(
        torch_linear(norm(found, w, "head.layernorm", config), w, "head.mlp.fc1")
    )
    return (found + torch_linear(hidden, w, "head.mlp.fc2"))[0]


def image_scores(arrays, config, picture):
    """What the classifier says of a picture, (labels,)."""
    kind = config["model_type"]
    states, w = image_states(arrays, config, picture, f"{kind}."), weights(arrays)
    if kind == "vit":
        return torch_linear(states[:1], w, "classifier")[0]
    one = torch_linear(states[:1], w, "cls_classifier")[0]
    return (one + torch_linear(states[1:2], w, "distillation_classifier")[0]) / 2


def unit(x):
    return x / np.linalg.norm(x)


def pair_image(arrays, config, picture):
    """The vector of a picture in the space of texts, (P,)."""
    vector = image_vector(arrays, config["vision_config"], picture, "vision_model.")
    if config["model_type"] == "clip":
        vector = np.asarray(arrays["visual_projection.weight"], float) @ vector
    return unit(vector)


def pair_text(arrays, config, ids):
    """The vector of a text in the space of pictures, (P,)."""
    text, is_clip = config["text_config"], config["model_type"] == "clip"
    w = weights(arrays, "text_model.")
    x = w["embeddings.token_embedding.weight"][ids]
    x = x + w["embeddings.position_embedding.weight"][: len(ids)]
    x = norm(run_layers(x, w, text, is_clip), w, "final_layer_norm", text)
    if is_clip:
        end = list(ids).index(text["eos_token_id"])
        return unit(np.asarray(arrays["text_projection.weight"], float) @ x[end])
    return unit(torch_linear(x[-1:], w, "head")[0])


# ---- Folders -------------------------------------------------------------------------

PROCESSOR = {"image_processor_type": "ViTImageProcessor", "size": [13, 17]}
CLIP_PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 13},
    "crop_size": {"height": 13, "width": 13},
}
SIGLIP_PROCESSOR = {"image_processor_type": "SiglipImageProcessor", "size": [13, 13]}
PROCESSORS = {"vit": PROCESSOR, "clip": CLIP_PROCESSOR, "siglip": SIGLIP_PROCESSOR}
WORDS = [
    *("[UNK]", "[PAD]", "this", "is", "a", "photo", "of"),
    *("cat", "dog", "red", "blue", "sky", "."),
]


def require():
    for package in ("safetensors", "tokenizers", "PIL"):
        pytest.importorskip(package)


def write(folder, config, n_labels=None, processor=None, **more):
    """A folder of a model; returns its tensors."""
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True, parents=True)
    arrays = tensors(config, n_labels)
    config = {**config, **more}
    if n_labels is not None:
        config = {"num_labels": n_labels, **config}
    (folder / "config.json").write_text(json.dumps(config))
    kind = config["model_type"]
    if kind == "deit" and processor is None:
        processor = {**PROCESSOR, "size": 13}
    processor = PROCESSORS.get(kind) if processor is None else processor
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    save_file(arrays, folder / "model.safetensors")
    if kind in PAIRS:
        tokenizer().save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"pad_token": "[PAD]"})
        )
    return arrays


def tokenizer():
    """One of WORDS, with the tokens 28 and 29 around a text."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocab = {word: i for i, word in enumerate(WORDS)} | {"<s>": 28, "</s>": 29}
    made = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 28), ("</s>", 29)]
    )
    return made


def pictures(seed=0):
    """Pictures of several sizes."""
    rng = np.random.default_rng(seed)
    sizes = (20, 31), (13, 17), (40, 13), (9, 50)
    return [rng.integers(0, 256, (*size, 3), np.uint8) for size in sizes]
