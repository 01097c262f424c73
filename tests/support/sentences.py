"""Small folders of sentence-transformers, with random weights and a tokenizer.

And examples/semantic_search.py, as a module.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from support import encoder_decoders, families

WORDS = [
    *("[UNK]", "[PAD]", "[CLS]", "[SEP]", "cat", "dog", "sun", "moon", "red", "blue"),
    *("the", "a", "is", "under", "sea", "##s", "##ing", "sleep", "shine", "bark"),
    *("query", "find", ":", ".", "sad", "old", "tree", "leaf", "##y", "not"),
]
TEXTS = [
    "the cat is sleeping",
    "a dog barks",
    "",
    "the old moon shines.",
    "red sun under the blue sea is not a sad sun",
    "leafy trees",
    "xylophone cats",
]
LONG = "the cat is sleeping under the old red tree " * 3
POOLING = {"word_embedding_dimension": 12, "pooling_mode_mean_tokens": True}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_input_names": ["input_ids", "attention_mask"],
    "unk_token": "[UNK]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
}


EXAMPLE = Path(__file__).parents[2] / "examples" / "semantic_search.py"


def example():
    """The command as a module."""
    spec = importlib.util.spec_from_file_location("semantic_search", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def require():
    """Skip the test, or the file, without the packages that read a folder."""
    for package in ("tokenizers", "safetensors"):
        pytest.importorskip(package)


def tokenizer():
    """A WordPiece tokenizer of WORDS, with its own truncation and padding turned on."""
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers, processors

    vocab = {word: i for i, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    made.add_special_tokens(["[UNK]", "[PAD]", "[CLS]", "[SEP]"])
    made.enable_truncation(5)
    made.enable_padding(length=9, pad_id=1, pad_token="[PAD]")
    return made


def write(
    folder,
    kind="bert",
    pooling=POOLING,
    steps=("Normalize",),
    config=None,
    sentence=None,
    modules=None,
    changes=None,
    **tokenizer_config,
):
    """Write a folder; returns the model's tensors and its configuration."""
    from safetensors.numpy import save_file

    model = {**{**families.ENCODERS, **families.DECODERS}[kind], "pad_token_id": 1}
    model |= changes or {}
    tensors = families.tensors(model)
    save_file(tensors, folder / "model.safetensors")
    tokenizer().save(str(folder / "tokenizer.json"))
    put(folder / "tokenizer_config.json", {**TOKENIZER_CONFIG, **tokenizer_config})
    put(folder / "config.json", model)
    put(folder / "config_sentence_transformers.json", config or {})
    put(folder / "sentence_bert_config.json", sentence or {})
    names = ["Transformer", "Pooling", *steps]
    places = ["", "1_Pooling", *(f"{i + 2}_{name}" for i, name in enumerate(steps))]
    listed = [
        {
            "idx": i,
            "name": str(i),
            "path": place,
            "type": f"sentence_transformers.models.{name}",
        }
        for i, (name, place) in enumerate(zip(names, places, strict=True))
    ]
    put(folder / "modules.json", listed if modules is None else modules)
    for place in places[1:]:
        (folder / place).mkdir(exist_ok=True)
    put(folder / "1_Pooling" / "config.json", pooling)
    return tensors, model


PAIRS = [
    ("the cat is sleeping", "a dog barks"),
    ("find the moon", "the old moon shines. red sun under the blue sea"),
    ("", "leafy trees"),
    ("a cat", ""),
    ("red sun under the blue sea is not a sad sun", "cat"),
    ("xylophone cats", "the cat is sleeping"),
    (LONG, "a dog"),
    ("a dog", LONG),
    (LONG, LONG),
]
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
MASK = "moon"


def write_with_head(folder, kind="bert", seed=0, **head):
    """Write the folder of a model with a head that scores tokens; returns the model."""
    from attnpy.models import BertEncoder

    labels = {str(i): name for i, name in enumerate(LABELS)}
    config = {**families.ENCODERS[kind], "pad_token_id": 1, "id2label": labels}
    rng = np.random.default_rng(seed)
    model = BertEncoder.from_config(config, rng=rng, **head)
    for array in model.parameters().values():
        array += rng.standard_normal(array.shape, dtype=np.float32) / 3
    model.save_pretrained(folder)
    made = tokenizer()
    made.add_special_tokens([MASK])
    made.save(str(folder / "tokenizer.json"))
    names = {"model_input_names": [INPUTS[0], INPUTS[2]], "mask_token": MASK}
    put(folder / "tokenizer_config.json", {**TOKENIZER_CONFIG, **names})
    return model


INPUTS = ["input_ids", "token_type_ids", "attention_mask"]


def write_scorer(folder, kind="bert", n_labels=1, config=None, **tokenizer_config):
    """Write the folder of a model that scores texts; returns tensors and config."""
    from safetensors.numpy import save_file

    labels = {str(i): f"LABEL_{i}" for i in range(n_labels)}
    owner = {"architectures": ["AnyForSequenceClassification"], "id2label": labels}
    model = {**families.ENCODERS[kind], "pad_token_id": 1, **owner, **(config or {})}
    tensors = {**families.tensors(model), **families.head(model, n_labels)}
    save_file(tensors, folder / "model.safetensors")
    tokenizer().save(str(folder / "tokenizer.json"))
    names = INPUTS if "type_vocab_size" in model else [INPUTS[0], INPUTS[2]]
    if model.get("type_vocab_size") == 1:
        names = [INPUTS[0], INPUTS[2]]
    names = {"model_input_names": names}
    settings = {**TOKENIZER_CONFIG, **names, **tokenizer_config}
    put(folder / "tokenizer_config.json", settings)
    put(folder / "config.json", model)
    return tensors, model


def write_bart(folder, n_labels=3, **config):
    """Write the folder of a BART that scores texts; returns tensors and config."""
    from safetensors.numpy import save_file

    names = {str(i): f"LABEL_{i}" for i in range(n_labels)}
    ends = {"decoder_start_token_id": 3, "eos_token_id": 3, "pad_token_id": 1}
    owner = {"architectures": ["BartForSequenceClassification"], "id2label": names}
    model = {**encoder_decoders.BART, **ends, **owner, **config}
    tensors = encoder_decoders.classifier(model, n_labels)
    save_file(tensors, folder / "model.safetensors")
    tokenizer().save(str(folder / "tokenizer.json"))
    put(folder / "tokenizer_config.json", TOKENIZER_CONFIG)
    put(folder / "config.json", model)
    return tensors, model


def put(path, content):
    """Write a JSON file."""
    path.write_text(json.dumps(content), "utf-8")


def write_dense(folder, n_in, n_out, bias=True, activation="activation.Tanh", **more):
    """Write the folder of a Dense module; returns its arrays."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(7)
    arrays = {"linear.weight": rng.standard_normal((n_out, n_in), dtype=np.float32)}
    if bias:
        arrays["linear.bias"] = rng.standard_normal(n_out, dtype=np.float32)
    if more.get("use_residual") and n_in != n_out:
        residual = rng.standard_normal((n_out, n_in), dtype=np.float32)
        arrays["residual.weight"] = residual
    folder.mkdir(exist_ok=True)
    save_file(arrays, folder / "model.safetensors")
    config = {"in_features": n_in, "out_features": n_out, "bias": bias, **more}
    config["activation_function"] = f"torch.nn.modules.{activation}"
    put(folder / "config.json", config)
    return arrays
