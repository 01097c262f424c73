"""A query and its passages to scores: tokenizer, encoder and classifier.

The sizes are those of ms-marco-MiniLM-L6-v2, with random weights and words. DeBERTa has
as many numbers, and a language model scores a token after both texts, as
Qwen3-Reranker. Every system reads the same folder; graphs get the tokens of pairs that
are sorted by length.
"""

import functools
import json
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

import attnpy

from ..lazily import safetensors_numpy, torch, transformers
from ..onnx_ways import session
from ..peers import Way
from . import encoders, exported, folders, openvino_ways, sentences

OWNERS = {"bert": "Bert", "deberta-v2": "DebertaV2", "qwen3": "Qwen3"}
TEMPLATE = "{% for m in messages %}{{ m.content }} [SEP] {% endfor %}[CLS]"
SCORED = {"true_token_id": 10, "false_token_id": 11}
BATCHES = (32, 100)  # pairs at a time, of which a peer's users choose


@dataclass(frozen=True)
class Pairs:
    """A query of 8 words with so many passages of 30 to 120."""

    n: int
    model: str = encoders.NAME
    dtype: str = "float32"

    def arrays(self):
        rng = np.random.default_rng(6)
        query = " ".join(rng.choice(sentences.words(), 8))
        counts = rng.integers(30, 121, self.n)
        return [(query, " ".join(rng.choice(sentences.words(), n))) for n in counts]

    def n_tokens(self):
        """How many tokens the pairs have, what is cut off left out."""
        return sum(len(code.ids) for code in codes(self))

    def flops(self):
        lengths = np.array([len(code.ids) for code in codes(self)])
        return encoders.flops(folders.CONFIGS[self.model], lengths)

    def expected(self):
        """The scores in float64, (n,), by attnpy: the yardstick."""
        return encoder(self.model, "float64").predict(self.arrays())

    def facts(self):
        return {**asdict(self), "tokens": self.n_tokens()}


def folder(name):
    """The folder of a model with all that scores pairs of texts, written once."""
    path = folders.root() / f"{name.replace(' ', '-')}-pairs"
    return folders.made(path, partial(write, name))


def writes_tokens(name):
    """Is it a language model?"""
    return folders.CONFIGS[name]["model_type"] == "qwen3"


def write(name, path):
    sentences.write(name, path)
    config = folders.CONFIGS[name]
    owner = OWNERS[config["model_type"]]
    if writes_tokens(name):
        config = {**config, "architectures": [f"{owner}ForCausalLM"]}
        write_judge(path)
    else:
        config = {
            **config,
            "architectures": [f"{owner}ForSequenceClassification"],
            "num_labels": 1,
            "id2label": {"0": "LABEL_0"},
        }
        (path / "modules.json").unlink()
        write_classifier(config, path)
    (path / "config.json").write_text(json.dumps(config))


def write_classifier(config, path):
    """The weights of an encoder, and of a classifier that scores its first token."""
    stem, size = config["model_type"].partition("-")[0], config["hidden_size"]
    beside = stem == "deberta"  # is what pools beside the encoder, not in it?
    arrays = {
        key if beside and key.startswith("pooler") else f"{stem}.{key}": x
        for key, x in folders.weights(config, "float32").items()
    }
    rng = np.random.default_rng(7)
    weight = rng.standard_normal((1, size), dtype=np.float32) / np.float32(size**0.5)
    arrays |= {"classifier.weight": weight, "classifier.bias": np.zeros(1, np.float32)}
    file = path / "model.safetensors"
    safetensors_numpy.save_file(arrays, file, {"format": "pt"})


def write_judge(path):
    """What sentence-transformers has beside a language model that scores pairs."""
    (path / "chat_template.jinja").write_text(TEMPLATE)
    place = path / "tokenizer_config.json"
    place.write_text(
        json.dumps({**json.loads(place.read_text()), "padding_side": "left"})
    )
    by_text = {"method": "forward", "method_output_name": "logits"}
    message = {**by_text, "format": "flat"}
    module = {
        "transformer_task": "text-generation",
        "module_output_name": "causal_logits",
        "modality_config": {"text": by_text, "message": message},
    }
    (path / "sentence_bert_config.json").write_text(json.dumps(module))
    kinds = {
        "": "base.modules.transformer.Transformer",
        "1_LogitScore": "cross_encoder.modules.logit_score.LogitScore",
    }
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": place,
            "type": f"sentence_transformers.{kind}",
        }
        for i, (place, kind) in enumerate(kinds.items())
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_LogitScore").mkdir()
    (path / "1_LogitScore" / "config.json").write_text(json.dumps(SCORED))


@functools.cache
def encoder(name, dtype):
    return attnpy.models.CrossEncoder.from_pretrained(folder(name), dtype=dtype)


def codes(case):
    """The tokens of each pair."""
    tokenizer = encoder(case.model, "float64").tokenizer
    if writes_tokens(case.model):
        texts = [f"{query} [SEP] {text} [SEP] [CLS]" for query, text in case.arrays()]
        return tokenizer.encode_batch(texts, add_special_tokens=False)
    return tokenizer.encode_batch(case.arrays())


def attnpy_ways(case, pairs, n_threads):
    predict = encoder(case.model, case.dtype).predict
    call = partial(predict, pairs, progress=False, num_threads=n_threads)
    yield Way("CrossEncoder", call)


def sentence_transformers_ways(case, pairs, n_threads):
    """On PyTorch, whose threads the process has been told."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder import modules

    place, more = str(folder(case.model)), {"device": "cpu"}
    if writes_tokens(case.model):
        decoder = modules.Transformer(place, transformer_task="text-generation")
        more["modules"] = [decoder, modules.LogitScore(**SCORED)]
        place = None
    model = CrossEncoder(place, **more)
    for batch_size in BATCHES:
        call = partial(model.predict, pairs, batch_size=batch_size)
        yield Way(f"batches of {batch_size}", call)


def graph(name):
    """The path of the graph from tokens to a score."""
    place = folder(name)

    def read():
        return transformers.AutoModelForSequenceClassification.from_pretrained(
            place, attn_implementation="eager", dtype=torch.float32
        )

    return folders.made(
        place / "scores.onnx", lambda path: exported.write(read(), "logits", path)
    )


def scored(run, tokenizer, pairs, batch_size):
    """The scores (n,) of pairs, those of similar lengths together."""
    found = tokenizer.encode_batch(pairs)
    order = np.argsort([-len(code.ids) for code in found], kind="stable")
    scores = np.empty(len(pairs), np.float32)
    for begin in range(0, len(pairs), batch_size):
        chosen = order[begin : begin + batch_size]
        shape = len(chosen), len(found[chosen[0]].ids)
        inputs = {name: np.zeros(shape, np.int64) for name in exported.INPUTS}
        for row, i in enumerate(chosen):
            for array, numbers in zip(
                inputs.values(),
                (found[i].ids, found[i].attention_mask, found[i].type_ids),
                strict=True,
            ):
                array[row, : len(numbers)] = numbers
        scores[chosen] = np.asarray(run(inputs))[:, 0]
    return 1 / (1 + np.exp(-scores))


def graph_ways(run, case, pairs):
    tokenizer = encoder(case.model, "float64").tokenizer
    for batch_size in BATCHES:
        call = partial(scored, run, tokenizer, pairs, batch_size)
        yield Way(f"sorted, batches of {batch_size}", call)


def onnxruntime_ways(case, pairs, n_threads):
    path = graph(case.model)
    for name, file in (("exported", path), ("optimized", exported.optimized(path))):
        run = session(file, n_threads).run
        for way in graph_ways(
            lambda inputs, run=run: run(None, inputs)[0], case, pairs
        ):
            yield replace(way, name=f"{name}, {way.name}")


def openvino_ways_of_pairs(case, pairs, n_threads):
    model = openvino_ways.core().read_model(graph(case.model))
    request = openvino_ways.compiled(
        model, case.dtype, n_threads
    ).create_infer_request()
    yield from graph_ways(
        lambda inputs: request.infer(inputs, share_inputs=True)[0], case, pairs
    )


WAYS = {
    "attnpy": attnpy_ways,
    "sentence_transformers": sentence_transformers_ways,
    "onnxruntime": onnxruntime_ways,
    "openvino": openvino_ways_of_pairs,
}
