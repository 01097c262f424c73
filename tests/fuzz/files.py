"""Configurations, weights, arrays in files and folders of models, damaged.

What reads them must say what is wrong, or read what a plain reader reads.
"""

import contextlib
import copy
import functools
import io
import json
import operator
import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from support import (
    compressed,
    families,
    gguf_files,
    multi_vectors,
    readers,
    sentences,
    torch_files,
)
from support.arrays import dtype_of
from support.families import BERT, DECODERS, NOMIC_BERT, tensors

import attnpy
from attnpy import __main__ as command_line
from attnpy import checkpoints, models
from attnpy.checkpoints import FAMILIES
from attnpy.models import (
    BertEncoder,
    CausalDecoder,
    CrossEncoder,
    MultiVectorEncoder,
    SentenceEncoder,
)
from fuzz.findings import Finding, call, trace
from fuzz.values import maybe, numbers, odd_array, one_of, wrong_array

CONFIGS = (BERT, *DECODERS.values())
OF_GGUF = [
    config
    for config in DECODERS.values()
    if config["model_type"] in gguf_files.ARCHITECTURES
]
# No number that is large and yet fits: a model would be made of it.
JSON = (
    None, True, False, 0, 1, -1, 2, 3, 7, 0.5, -1.0, 1e308, float("nan"), float("inf"),
    2**70, "", "gelu", "linear", "ä", [], [1], ["full_attention"], {}, {"type": "yarn"},
    {"rope_type": "yarn", "factor": 4.0}, {"rope_type": "llama3"}, {"rope_type": []},
    {"rope_type": "linear", "factor": None}, {"rope_type": "linear", "factor": "4"},
    {"rope_type": "dynamic", "factor": 4.0}, {"type": "longrope", "short_factor": 2},
    {"type": "longrope", "short_factor": [1, 2], "long_factor": [2.0, 0.5]},
    {"full_attention": {"rope_type": "dynamic"}}, {"partial_rotary_factor": 0.5},
)  # fmt: skip
EXTRA = (
    "rope_scaling", "rope_parameters", "layer_types", "max_window_layers", "head_dim",
    "sliding_window", "use_sliding_window", "n_inner", "hidden_act", "attention_bias",
    "position_embedding_type", "is_decoder", "tie_word_embeddings", "rope_theta",
    "partial_rotary_factor", "original_max_position_embeddings", "hidden_activation",
    "max_position_embeddings", "final_logit_softcapping", "attn_logit_softcapping",
    "query_pre_attn_scalar", "sliding_window_pattern", "rope_local_base_freq",
)  # fmt: skip
# Endless, if they are large.
COUNTS = ("num_hidden_layers", "n_layer")


def run(rng, verbose=False):
    """Run a case and return what came of it."""
    kinds = run_config, run_config, run_weights, run_weights, run_torch, run_torch
    more = run_arrays, run_sentences, run_sentences, run_scores, run_decoder, run_late
    more += (
        run_gguf,
        run_gguf,
        run_gguf_encoder,
        run_compressed,
        run_compressed,
        run_reader,
    )
    kind = one_of(rng, (*kinds, *more))
    with tempfile.TemporaryDirectory() as folder:
        return kind(rng, Path(folder), verbose)


def raised(function, *arguments):
    """As `findings.call`; what the system says of a file is an error as well."""
    try:
        return call(function, *arguments)
    except Finding as finding:
        if isinstance(finding.__cause__, (OSError, ImportError)):
            return False, finding.__cause__
        raise


def model_of(config):
    """A model with weights that nothing else gives."""
    kind = BertEncoder if config.get("model_type", "bert") == "bert" else CausalDecoder
    return kind.from_config(config, rng=np.random.default_rng(0))


def changed_config(rng, config):
    config = copy.deepcopy(config)
    for _ in range(1 + int(rng.integers(2))):
        name = one_of(rng, (*config, *EXTRA))
        if maybe(rng, 0.15):
            config.pop(name, None)
            continue
        value = one_of(rng, JSON)
        if not (name in COUNTS and isinstance(value, (int, float)) and value > 9):
            config[name] = value
    return config


def run_config(rng, folder, verbose):
    """A configuration with other fields."""
    config = changed_config(rng, one_of(rng, CONFIGS))
    if verbose:
        print(config, flush=True)
    text = json.dumps(config)
    if maybe(rng, 0.1):
        text = damaged(rng, text.encode()).decode("utf-8", "replace")
    (folder / "config.json").write_text(text, encoding="utf-8")
    good, config = raised(checkpoints.read_config, folder)
    if not good:
        return "errors"
    good, model = raised(model_of, config)
    if not good:
        return "errors"
    if isinstance(model, BertEncoder):
        good, _ = raised(model, np.zeros((1, 1), int))
    else:
        good, _ = raised(model, np.zeros((1, 1), int))
    return "results" if good else "errors"


def damaged(rng, data):
    """The bytes with some of them changed, moved, or cut off."""
    data = bytearray(data)
    for _ in range(1 + int(rng.integers(3))):
        way, at = int(rng.integers(6)), int(rng.integers(max(1, len(data))))
        if rng.random() < 0.5:  # what says what the rest is comes first
            at = min(at, int(rng.integers(400)))
        if way == 0 and data:
            data[at] ^= 1 << int(rng.integers(8))
        elif way == 1 and data:
            data[at] = one_of(rng, (0, 1, 255, 127, *b'"{}[]:,0129-e'))
        elif way == 2:
            del data[at:]
        elif way == 3:
            del data[at : at + 1 + int(rng.integers(9))]
        elif way == 4:
            data[at:at] = bytes(rng.integers(0, 256, 1 + rng.integers(9), np.uint8))
        else:
            other = int(rng.integers(max(1, len(data))))
            data[at : at + 8] = data[other : other + 8]
    return bytes(data)


@functools.cache
def weights_of(i):
    """A family's weights in the file format."""
    from safetensors.numpy import save

    return save(tensors(CONFIGS[i]))


DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
CODES = {"I8": "i1", "I32": "<i4", "I64": "<i8", "BF16": dtype_of("bfloat16")}


def read_plainly(data, dtypes=DTYPES):
    """The arrays of a safetensors file by name, as the format says.

    But for those of a shape that no array has, as (0, 2**63), which nothing else has
    either.
    """
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in dtypes:
            first, end = entry["data_offsets"]
            values = np.frombuffer(
                data[8 + size + first : 8 + size + end], dtypes[entry["dtype"]]
            )
            with contextlib.suppress(ValueError):
                arrays[name] = values.reshape(entry["shape"])
    return arrays


def run_weights(rng, folder, verbose):
    """A file of weights with other bytes: what is loaded is what it has."""
    i = int(rng.integers(len(CONFIGS)))
    config, data = CONFIGS[i], damaged(rng, weights_of(i))
    path = folder / "model.safetensors"
    path.write_bytes(data)
    if verbose:
        print(config["model_type"], len(data), data[:600], flush=True)
    kind = config["model_type"]
    family = kind if kind in FAMILIES else "llama"
    model, other = model_of(config), model_of(config)
    before = {name: x.copy() for name, x in model.parameters().items()}

    def load():
        checkpoints.load(model, checkpoints.read(path), family)

    good, _ = raised(load)
    if not good:
        for name, array in model.parameters().items():
            if array.tobytes() != before[name].tobytes():
                raise Finding("load: an error, and other weights", name)
        return "errors"
    checkpoints.load(other, read_plainly(data), family)
    for name, array in other.parameters().items():
        if array.tobytes() != model.parameters()[name].tobytes():
            raise Finding("load: not what the file has", name)
    return "compared"


@functools.cache
def torch_weights_of(i):
    """A family's weights as PyTorch saves them: the file, and the pickle in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pytorch_model.bin"
        torch_files.save(path, tensors(CONFIGS[i]))
        with zipfile.ZipFile(path) as file:
            return path.read_bytes(), file.read("model/data.pkl")


def run_torch(rng, folder, verbose):
    """A file of PyTorch with other bytes: arrays, or an error and no change."""
    i = int(rng.integers(len(CONFIGS)))
    config, (data, program) = CONFIGS[i], torch_weights_of(i)
    if maybe(rng, 0.6):  # the rest of the file stays right
        other = damaged(rng, program)
        if len(other) == len(program):
            data = data.replace(program, other)
        else:
            storages = [array.tobytes() for array in tensors(config).values()]
            torch_files.write(folder / "x.bin", other, storages)
            data = (folder / "x.bin").read_bytes()
    else:
        end = len(data) - int(rng.integers(4000)) if maybe(rng) else 0
        data = data[:end] + damaged(rng, data[end:])
    path = folder / "pytorch_model.bin"
    path.write_bytes(data)
    if verbose:
        print(config["model_type"], len(data), data[:1500], flush=True)
    kind = config["model_type"]
    model = model_of(config)
    before = {name: x.copy() for name, x in model.parameters().items()}

    def load():
        family = kind if kind in FAMILIES else "llama"
        checkpoints.load(model, checkpoints.read(path), family)

    good, error = raised(load)
    if good:
        return "results"
    if not str(error).isprintable() or len(str(error)) > 20_000:
        raise Finding("load: an error that is no line", str(error)[:2000])
    for name, array in model.parameters().items():
        if array.tobytes() != before[name].tobytes():
            raise Finding("load: an error, and other weights", name)
    return "errors"


# What a file of a folder may be instead of a file.
PLACES = ("/dev/zero", "/dev/null", "/dev/full", "/nowhere", ".", "config.json")


def replaced(rng, path):
    """Put something else in the place of a file: its name says what."""
    path.unlink()
    kind = one_of(rng, ("pipe", "folder", "nothing", "large", *PLACES))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        path.touch()
        os.truncate(path, 1 << 40)
    elif kind != "nothing":
        path.symlink_to(kind)
    return kind


def places(content, place=()):
    """The places in a JSON document."""
    parts = content.items() if isinstance(content, dict) else enumerate(content)
    for key, inner in parts:
        yield (*place, key)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*place, key))


NAMES = (
    "\x1b[31m", "x" * 100_000, "\ud800", "\ufffe", "\0", "..", "/", "type", "Sequence",
    "eos_token_id", "kwargs", "path", "direction", "normalizers",
)  # fmt: skip


def changed_document(rng, content):
    """A JSON document with other values, or other names, somewhere in it."""
    content = copy.deepcopy(content)
    for _ in range(1 + int(rng.integers(2))):
        found = list(places(content))
        if not found:
            return copy.deepcopy(one_of(rng, JSON))
        *way, last = one_of(rng, found)
        part = functools.reduce(operator.getitem, way, content)
        if maybe(rng, 0.2):
            del part[last]
        elif maybe(rng, 0.2) and isinstance(part, dict):
            part[one_of(rng, NAMES)] = part.pop(last)
        elif last not in COUNTS:
            part[last] = copy.deepcopy(one_of(rng, (*JSON, *NAMES)))
    return content


def spoil(rng, folder, verbose):
    """Change a file or two of a folder, or what they are."""
    for _ in range(1 + int(rng.integers(2))):
        files = [path for path in sorted(folder.rglob("*.*")) if path.is_file()]
        path = one_of(rng, [path for path in files if path.stat().st_size < 1 << 30])
        way = int(rng.integers(4))
        if way == 0:
            what = replaced(rng, path)
        elif way == 1 or path.suffix != ".json":
            what = damaged(rng, path.read_bytes())
            path.write_bytes(what)
        else:
            try:
                what = changed_document(rng, json.loads(path.read_text("utf-8")))
            except (ValueError, TypeError, AttributeError):  # spoiled already
                continue
            path.write_text(json.dumps(what))
        if verbose:
            print(path.name, str(what)[:3000], flush=True)


def read_folder(kind, folder, **options):
    """A model of a folder, or None after an error that a terminal can show."""
    good, model = raised(functools.partial(kind.from_pretrained, folder, **options))
    if good:
        return model
    text = str(model)
    if not text.isprintable() or len(text) > 20_000:
        raise Finding("from_pretrained: an error that is no line", text[:2000])
    return None


def run_sentences(rng, folder, verbose):
    """A folder of sentence-transformers, spoiled."""
    kind = one_of(rng, (*families.ENCODERS,))
    sentences.write(folder, kind, steps=("Dense", "Normalize"))
    sentences.write_dense(folder / "2_Dense", 12, 5)
    sentences.put(folder / "3_Normalize" / "config.json", {})
    spoil(rng, folder, verbose)
    encoder = read_folder(SentenceEncoder, folder)
    if encoder is None:
        return "errors"
    good, vectors = raised(encoder.encode, sentences.TEXTS)
    if not good:
        return "errors"
    if vectors.shape != (len(sentences.TEXTS), encoder.embed_dim):
        raise Finding("encode: vectors of another shape", f"{vectors.shape}")
    return "results"


def run_late(rng, folder, verbose):
    """A folder with late interaction, of any library that writes one, spoiled."""
    multi_vectors.write(folder, one_of(rng, multi_vectors.LIBRARIES))
    spoil(rng, folder, verbose)
    encoder = read_folder(MultiVectorEncoder, folder)
    if encoder is None:
        return "errors"
    for encode in (encoder.encode_queries, encoder.encode_documents):
        good, found = raised(encode, sentences.TEXTS)
        if not good:
            return "errors"
        shapes = {rows.shape[1:] for rows in found}
        if shapes != {(encoder.embed_dim,)} or len(found) != len(sentences.TEXTS):
            raise Finding("encode: vectors of other shapes", f"{shapes}")
    return "results"


def run_scores(rng, folder, verbose):
    """The folder of a cross-encoder, spoiled."""
    kind, n_labels = one_of(rng, (*families.ENCODERS,)), 1 + int(rng.integers(3))
    sentences.write_scorer(folder, kind, n_labels)
    own = {"model_type": "CrossEncoder", "prompts": {"a": "b"}}
    sentences.put(folder / "config_sentence_transformers.json", own)
    path = folder / "sentence_bert_config.json"
    sentences.put(path, {"transformer_task": "sequence-classification"})
    spoil(rng, folder, verbose)
    encoder = read_folder(CrossEncoder, folder)
    if encoder is None:
        return "errors"
    good, scores = raised(encoder.predict, sentences.PAIRS)
    if not good:
        return "errors"
    n, labels = len(sentences.PAIRS), encoder.num_labels
    if scores.shape != ((n,) if labels == 1 else (n, labels)):
        raise Finding("predict: scores of another shape", f"{scores.shape}")
    return "results"


def run_decoder(rng, folder, verbose):
    """A folder of a language model, spoiled."""
    config = one_of(rng, OF_GGUF)
    sentences.put(folder / "config.json", {**config, "eos_token_id": 7})
    sentences.put(folder / "generation_config.json", {"eos_token_id": [2, 7]})
    data = weights_of(CONFIGS.index(config))
    (folder / "model.safetensors").write_bytes(data)
    spoil(rng, folder, verbose)
    model = read_folder(CausalDecoder, folder)
    if model is None:
        return "errors"
    good, tokens = raised(lambda: [int(token) for token in model.stream([1], 3)])
    if not good:  # as where a weight is NaN
        return "errors"
    if any(token in model.stop for token in tokens[:-1]):
        raise Finding("stream: tokens after the end", f"{tokens} {model.stop}")
    return "results"


def run_reader(rng, folder, verbose):
    """The folder of any class that reads one, spoiled."""
    name = one_of(rng, (*readers.WRITABLE,))
    readers.WRITE[name](folder)
    spoil(rng, folder, verbose)
    options = {**readers.OPTIONS.get(name, {})}
    if maybe(rng):
        options["weights"] = one_of(rng, ("int8", "int4"))
    model = read_folder(getattr(models, name), folder, **options)
    if model is None:
        return "errors"
    good, _ = raised(readers.CALLS[name], model)
    return "results" if good else "errors"


def run_compressed(rng, folder, verbose):
    """A folder of compressed-tensors, spoiled: integers are those of its files."""
    form, weights, options = one_of(rng, (*compressed.KINDS.values(),))
    quantized = compressed.quantization(form, weights)
    compressed.write(folder, quantized, **options)
    if maybe(rng):
        quantized = changed_document(rng, quantized)
        config = {**compressed.LLAMA, "quantization_config": quantized}
        sentences.put(folder / "config.json", config)
        if verbose:
            print(quantized, flush=True)
    else:
        spoil(rng, folder, verbose)
    activations = one_of(rng, ("float", "int8"))
    model = read_folder(CausalDecoder, folder, activations=activations)
    if model is None:
        return "errors"
    config = json.loads((folder / "config.json").read_text("utf-8"))
    data = (folder / "model.safetensors").read_bytes()
    arrays = read_plainly(data, DTYPES | CODES)
    numbers = compressed.decoded(arrays, config["quantization_config"])
    for name, matrix in compressed.matrices(model).items():
        if matrix.dequantize().tobytes() != numbers[name].T.tobytes():
            raise Finding("from_pretrained: not the integers of the files", name)
    raised(lambda: model.logits(model([1, 2, 3])))
    return "compared"


# Values of GGUF files besides those that are there: no size that is large and fits.
GGUF_VALUES = (
    True, False, 0, 1, 2, 3, 4, 7, 32, 999, 2**31 - 1, 0.0, 0.5, 1e-5, 1e30,
    float("nan"), float("inf"), "", "llama", "gpt2", "qwen2", "none", "linear", "yarn",
    "smollm", "ä", "{{ messages }}", "{% for", "\x1b[31m", "x" * 1000, [],
    ["a"], ["a", "a"], ["a b"], np.int32(-1), np.uint64(2**64 - 1),
    np.zeros(0, "i4"), np.ones(2, "i4"),
    np.array([True, False]), np.zeros(261, "i4"), np.full(261, 3, "i4"),
    np.zeros(261, "f4"), np.full(261, np.nan, "f4"),
)  # fmt: skip
GGUF_KEYS = (
    "general.type", "general.alignment", "split.count", "llama.attention.key_length",
    "llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.expert_count",
    "llama.attention.sliding_window", "gemma3.attention.sliding_window_pattern",
    "tokenizer.ggml.scores", "tokenizer.ggml.add_bos_token", "a.key",
    "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.unknown_token_id",
    "tokenizer.ggml.eot_token_id", "bert.pooling_type", "bert.attention.causal",
    "tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.add_sep_token",
    "tokenizer.ggml.remove_extra_whitespaces", "tokenizer.ggml.seperator_token_id",
)  # fmt: skip


def changed_gguf(rng, metadata, arrays):
    """Other values and other arrays of a GGUF file."""
    metadata, arrays = {**metadata}, {**arrays}
    for _ in range(int(rng.integers(3))):
        key = one_of(rng, (*metadata, *GGUF_KEYS))
        if maybe(rng, 0.2):
            metadata.pop(key, None)
        else:
            metadata[key] = one_of(rng, GGUF_VALUES)
    for _ in range(int(rng.integers(3))):
        name = one_of(rng, (*arrays, "rope_freqs.weight", "blk.0.attn_q.bias"))
        shape = np.shape(arrays.get(name, ()))
        way = int(rng.integers(4))
        if way == 0:
            arrays.pop(name, None)
        elif way == 1:
            arrays[name] = rng.standard_normal(1 + int(rng.integers(4)))
        elif way == 2 and shape:
            arrays[name] = gguf_files.random_blocks("F16", shape)
        else:
            kind = one_of(rng, (*gguf_files.BLOCKS,))
            width = gguf_files.BLOCKS[kind][0]
            arrays[name] = gguf_files.random_blocks(kind, (2, width))
    return gguf_files.file(metadata, arrays, int(2 ** rng.integers(7)))


def compare_gguf(path, file):
    """Require the arrays and the values that the gguf package reads."""
    import gguf

    theirs = gguf.GGUFReader(path)
    arrays = {tensor.name: tensor for tensor in theirs.tensors}
    if file.keys() != arrays.keys():
        raise Finding("load_gguf: other arrays", f"{[*file]} {[*arrays]}")
    for name, tensor in arrays.items():
        if file.describe(name)[1] != "float32":
            continue
        with np.errstate(all="ignore"):
            expected = gguf.dequantize(np.array(tensor.data), tensor.tensor_type)
        if file[name].tobytes() != expected.tobytes():
            raise Finding("load_gguf: not what the file has", name)
        good, kept = raised(file.quantized, name)
        if good and kept.dequantize().T.tobytes() != expected.tobytes():
            raise Finding("quantized: not what the file has", name)


def other_gguf(rng, folder, metadata, arrays, verbose):
    """Write a GGUF file with other values and arrays, or other bytes; its path."""
    if maybe(rng):
        data = changed_gguf(rng, metadata, arrays)
    else:
        data = damaged(rng, gguf_files.file(metadata, arrays))
    path = folder / "m.gguf"
    path.write_bytes(data)
    if verbose:
        print(len(data), data[:600], flush=True)
    return path


def one_line(error):
    """Require an error of one line that can be printed."""
    text = str(error)
    if not text.isprintable() or len(text) > 20_000:
        raise Finding("from_gguf: an error that is no line", text[:2000])
    return "errors"


def run_gguf(rng, folder, verbose):
    """A GGUF file with other bytes, values or arrays: what is read is what it has."""
    metadata, arrays = gguf_files.talking(one_of(rng, OF_GGUF))
    path = other_gguf(rng, folder, metadata, arrays, verbose)
    good, file = raised(checkpoints.load_gguf, path)
    if not good:
        return "errors"
    compare_gguf(path, file)
    good, tokenizer = raised(file.tokenizer)
    if good:
        raised(lambda: tokenizer.decode(tokenizer.encode("the cat's 12\n").ids))
    raised(file.apply_chat_template, [{"role": "user", "content": "Hi"}])
    weights = one_of(rng, (None, "file"))
    good, model = raised(lambda: CausalDecoder.from_gguf(file, weights=weights))
    if not good:
        return one_line(model)
    good, tokens = raised(lambda: [int(token) for token in model.stream([1], 3)])
    if good and any(token in model.stop for token in tokens[:-1]):
        raise Finding("stream: tokens after the end", f"{tokens} {model.stop}")
    return "compared" if good else "errors"


def run_gguf_encoder(rng, folder, verbose):
    """The same of an encoder's file: its vectors and scores, or errors of one line."""
    config = {**one_of(rng, (BERT, NOMIC_BERT)), "vocab_size": len(sentences.WORDS)}
    number = int(rng.integers(1, 5))
    metadata, arrays = gguf_files.encoder(config, sentences.WORDS, pooling_type=number)
    if maybe(rng, 0.3):
        metadata |= gguf_files.unigrams()
    if number == 4:
        arrays |= {
            f"{name}.weight": np.ones((12, 12)) for name in ("cls", "cls.output")
        }
        arrays |= {f"{name}.bias": np.ones(12) for name in ("cls", "cls.output")}
    path = other_gguf(rng, folder, metadata, arrays, verbose)
    reader, texts = SentenceEncoder, ["the cat's 12\n", "", "a \u6771\uff21 dog"]
    if number == 4:
        reader, texts = CrossEncoder, [(text, "the sun") for text in texts]
    weights = one_of(rng, (None, "file"))
    good, model = raised(lambda: reader.from_gguf(path, weights=weights))
    if not good:
        return one_line(model)
    run = model.encode if reader is SentenceEncoder else model.predict
    good, found = raised(run, texts)
    if good:
        for text, one in zip(texts, found, strict=True):
            if np.asarray(run(text)).tobytes() != np.asarray(one).tobytes():
                raise Finding("from_gguf: other bits alone", f"{text!r}")
    return "compared" if good else "errors"


def run_arrays(rng, folder, verbose):
    """An .npz file with other arrays, other bytes in one of them, or in all."""
    names = ("query", "key", "value", "mask", "bias", "sinks", "kv_lengths", "q_offset")
    shapes = ((2, 3, 4), (2, 5, 4), (2, 5, 6), (3, 5), (3, 5), (2,), (), ())
    path, out = folder / "in.npz", folder / "out.npz"
    with zipfile.ZipFile(path, "w") as file:
        for name, shape in zip(names, shapes, strict=True):
            if name not in names[:3] and maybe(rng):
                continue
            dtype = {"mask": "?", "kv_lengths": "i8", "q_offset": "i8"}.get(name, "f4")
            array = np.asarray(numbers(rng, shape, np.dtype(dtype)))
            if maybe(rng, 0.15):
                array = wrong_array(rng, array) if maybe(rng) else odd_array(rng, shape)
            if array.size > 2**20:
                continue
            content = io.BytesIO()
            np.lib.format.write_array(content, array, allow_pickle=True)
            data = content.getvalue()
            if maybe(rng, 0.2):
                data = damaged(rng, data)
            file.writestr(f"{name}.npy", data)
    if maybe(rng, 0.3):
        path.write_bytes(damaged(rng, path.read_bytes()))
    arguments = ["run", str(path), "-o", str(out)]
    if maybe(rng, 0.3):
        arguments += ["--causal"]
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
        try:
            status = command_line.main(arguments)
        except BaseException as error:
            raise Finding(f"run: {type(error).__name__}", trace(error)) from error
    said = written.getvalue()
    if verbose:
        print(arguments, said, flush=True)
    left = sorted(set(os.listdir(folder)) - {"in.npz", "out.npz"})
    if left or (status != 0 and out.exists()):
        raise Finding("run: files left", f"{left}")
    if status != 0:
        if said.count("\n") != 1 or not said.startswith("attnpy: "):
            raise Finding("run: an error in several lines", said)
        return "errors"
    with np.load(path) as arrays, np.load(out) as results:
        causal = {"causal": True} if "--causal" in arguments else {}
        expected = attnpy.attention(**arrays, **causal)
        if not np.array_equal(results["output"], expected, equal_nan=True):
            raise Finding("run: another output", said)
    return "compared"
