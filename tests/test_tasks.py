"""Adapters of tasks, which folders of jina-embeddings-v3 have beside the weights."""

import json

import numpy as np
import pytest
from support import families
from support.adapters import JINA, LORA, PARTS, TASKS, of_tasks, with_adapters, write
from support.comparisons import assert_same_bits
from support.sentences import TEXTS, put

from attnpy import checkpoints
from attnpy.models import BertEncoder, SentenceEncoder
from attnpy.positions import Rotary

numpy_files = pytest.importorskip("safetensors.numpy")

pytestmark = pytest.mark.quick

IDS = np.array([7, 1, 29, 4, 4, 0, 18, 11, 2])


def adapted(tensors, found, task):
    """Today's arrays with the products of a task's two matrices, in float64."""
    scale, i = LORA["lora_alpha"] / LORA["lora_rank"], TASKS.index(task)
    plain = {name: np.asarray(array, float) for name, array in tensors.items()}
    for name in found:
        if not name.endswith("lora_A"):
            continue
        stem = name.removesuffix(f"{PARTS}.0.lora_A").removeprefix("roberta.")
        a, b = (np.asarray(found[f"{name[:-1]}{c}"][i], float) for c in "AB")
        more = scale * (a @ b if "embeddings" in stem else b @ a)
        stem = stem.removeprefix("encoder.").replace(
            "mixer.out_proj", "self_attn.o_proj"
        )
        if not stem.endswith("mixer.Wqkv"):
            plain[f"{stem}.weight"] = plain[f"{stem}.weight"] + more
            continue
        for letter, part in zip("qkv", np.split(more, 3), strict=True):
            own = f"{stem.replace('mixer.Wqkv', 'self_attn')}.{letter}_proj.weight"
            plain[own] = plain[own] + part
    return plain


def jina(folder, config=JINA, change=lambda found: found):
    tensors = families.tensors(families.JINA_V3)
    found = with_adapters(tensors)
    write(folder, config, change(dict(found)))
    return tensors, found


@pytest.mark.parametrize("task", [None, *TASKS])
def test_an_adapter_is_added_to_the_weights_of_jinas_code(tmp_path, task):
    tensors, found = jina(tmp_path / "old")
    model = BertEncoder.from_pretrained(tmp_path / "old", task=task, dtype="float64")
    plain = tensors if task is None else adapted(tensors, found, task)
    expected = families.bert_states(plain, families.JINA_V3, IDS)
    # With an adapter the sums are float32, as the files' numbers.
    bound = 1e-11 if task is None else 1e-5
    assert np.abs(model(IDS) - expected).max() < bound
    other = BertEncoder.from_pretrained(tmp_path / "old", dtype="float64")
    assert (task is None) == bool((other(IDS) == model(IDS)).all())
    model.save_pretrained(tmp_path / "new")
    assert sorted(checkpoints.read(tmp_path / "new")) == sorted(tensors)
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert config["model_type"] == "jina_embeddings_v3"
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 500.0}
    assert not {"auto_map", "position_embedding_type", "use_flash_attn", *LORA} & {
        *config
    }
    again = BertEncoder.from_pretrained(tmp_path / "new", dtype="float64")
    assert_same_bits(again(IDS), model(IDS))
    with pytest.raises(ValueError, match="task: expected None, as the folder has no a"):
        BertEncoder.from_pretrained(tmp_path / "new", task="separation")


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_with_an_adapter_are_quantised_as_those_that_are_saved(
    tmp_path, weights
):
    jina(tmp_path / "old")
    options = {"task": "separation", "weights": weights}
    model = BertEncoder.from_pretrained(tmp_path / "old", **options)
    BertEncoder.from_pretrained(tmp_path / "old", task="separation").save_pretrained(
        tmp_path / "new"
    )
    again = BertEncoder.from_pretrained(tmp_path / "new", weights=weights)
    assert_same_bits(again(IDS), model(IDS))


def test_jinas_code_has_another_base_of_positions_without_the_field():
    config = {name: x for name, x in JINA.items() if name != "rotary_emb_base"}
    for given, base in ((config, 10_000.0), (JINA, 500.0)):
        turns = BertEncoder.from_config(given).rotary
        assert_same_bits(turns.frequencies, Rotary(4, base=base).frequencies)


def _without(end):
    return lambda found: {name: x for name, x in found.items() if end not in name}


def _cut(found):
    return {name: x[:2] if name.endswith("lora_B") else x for name, x in found.items()}


@pytest.mark.parametrize(
    ("change", "task", "config", "words"),
    [
        (dict, "query", {}, "task: expected one of .'retrieval.query', 'ret.*got 'que"),
        (dict, TASKS[0], {"lora_adaptations": None}, "task: expected None, as the fol"),
        (dict, TASKS[0], {"lora_adaptations": "x"}, "lora_adaptations to be a list of"),
        (
            dict,
            TASKS[0],
            {"lora_rank": 0},
            "config: expected lora_rank to be an integer",
        ),
        (dict, TASKS[0], {"lora_alpha": -1}, "config: expected lora_alpha to be a fin"),
        (
            dict,
            TASKS[0],
            {"lora_rank": 3},
            r"lora_A: expected fl.*\(3, 30, 3\), got 'fl",
        ),
        (
            dict,
            None,
            {"position_embedding_type": "alibi"},
            "position_embedding_type = 'r",
        ),
        (
            dict,
            None,
            {"emb_pooler": "mean"},
            "config: expected no emb_pooler, got 'mean'",
        ),
        (dict, None, {"auto_map": {"AutoConfig": "x.y"}}, "no auto_map"),
        (_without("lora_B"), TASKS[0], {}, r"checkpoint: missing roberta.*lora_B"),
        (_without("lora"), TASKS[0], {}, r"checkpoint: missing roberta.*lora_A"),
        (
            _cut,
            TASKS[0],
            {},
            r"lora_B: expected floating numbers of shape \(3, 2, 12\)",
        ),
    ],
)
def test_adapters_that_are_not_as_they_should_be_are_refused(
    tmp_path, change, task, config, words
):
    jina(tmp_path / "old", {**JINA, **config}, change)
    with pytest.raises(ValueError, match=words):
        BertEncoder.from_pretrained(tmp_path / "old", task=task)


def test_texts_are_encoded_with_the_adapter_of_a_task(tmp_path):
    of_tasks(tmp_path)
    plain = SentenceEncoder.from_pretrained(tmp_path)
    both = SentenceEncoder.from_pretrained(tmp_path, tasks=TASKS[:2])
    assert [*both.tasks] == TASKS[:2]
    found = [plain.encode(TEXTS)]
    for task in TASKS[:2]:
        alone = SentenceEncoder.from_pretrained(tmp_path, tasks=[task])
        found.append(both.encode(TEXTS, task=task))
        assert_same_bits(alone.encode(TEXTS), found[-1])
        assert_same_bits(alone.encode(TEXTS, task=task), found[-1])
        model = BertEncoder.from_pretrained(tmp_path, task=task)
        assert_same_bits(model(IDS), both.tasks[task](IDS))
        trained = SentenceEncoder.from_pretrained(
            tmp_path, tasks=TASKS[:2], packed=False
        )
        assert_same_bits(trained.vjp(TEXTS, task=task)[0], found[-1])
        asked = {"prompt_name": "retrieval.query", "task": task}
        query, vectors = both.encode("a dog", **asked), found[-1]
        assert_same_bits(
            both.search("a dog", vectors, 2, **asked).scores,
            both.search(query, vectors, 2).scores,
        )
        alone.save_pretrained(tmp_path / task)
        assert_same_bits(
            SentenceEncoder.from_pretrained(tmp_path / task).encode(TEXTS), found[-1]
        )
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(found[one] - found[other]).max() > 0.01


def test_models_of_all_tasks_are_quantised(tmp_path):
    of_tasks(tmp_path)
    both = SentenceEncoder.from_pretrained(tmp_path, tasks=TASKS[:2])
    both.quantize()
    other = SentenceEncoder.from_pretrained(tmp_path, tasks=TASKS[:2], weights="int8")
    for task in TASKS[:2]:
        expected = other.encode(TEXTS, task=task)
        assert_same_bits(both.encode(TEXTS, task=task), expected)


def test_tasks_are_judged(tmp_path):
    modules = of_tasks(tmp_path)
    both = SentenceEncoder.from_pretrained(tmp_path, tasks=TASKS[:2])
    known = "task: expected 'retrieval.query' or 'retrieval.passage', got"
    vectors = both.encode(TEXTS, task=TASKS[1])
    for call, words in (
        (lambda: both.encode("a"), f"{known} None"),
        (lambda: both.encode("a", task="separation"), f"{known} 'separation'"),
        (lambda: both.vjp(["a"]), f"{known} None"),
        (lambda: both.search("a", vectors), f"{known} None"),
        (
            lambda: both.search(vectors, vectors, task=TASKS[1]),
            "task: expected none for a query of vectors, got one",
        ),
        (
            lambda: both.search("a", TEXTS, task=TASKS[1]),
            "corpus: expected vectors, from encode with a task, as the encoder has .*",
        ),
        (
            lambda: both.save_pretrained(tmp_path / "both"),
            "tasks: expected one, as a folder that is written has one model, got re.*",
        ),
        (
            lambda: SentenceEncoder.from_pretrained(tmp_path).encode("a", task="x"),
            r"task: expected None, as from_pretrained\(tasks=...\) read .*, got 'x'",
        ),
        (
            lambda: SentenceEncoder.from_pretrained(tmp_path, tasks=[]),
            r"tasks: expected the names of some, got \[\]",
        ),
        (
            lambda: SentenceEncoder.from_pretrained(tmp_path, tasks=["x"]),
            "task: expected one of .*, got 'x'",
        ),
        (
            lambda: SentenceEncoder(
                both.model, both.tokenizer, tasks={"x": both.tasks[TASKS[1]]}
            ),
            "tasks: expected models of the sizes and the dtype of model, which is .*",
        ),
    ):
        with pytest.raises(ValueError, match=f"^{words}$"):
            call()
    for wrong in (3, {TASKS[0]}):
        with pytest.raises(TypeError, match=r"^tasks: expected a sequence of names"):
            SentenceEncoder.from_pretrained(tmp_path, tasks=wrong)
    put(tmp_path / "modules.json", [{**modules[0], "kwargs": ["x"]}, *modules[1:]])
    with pytest.raises(ValueError, match=r"modules.json: expected no kwargs, got"):
        SentenceEncoder.from_pretrained(tmp_path)
    put(tmp_path / "modules.json", modules)
    put(tmp_path / "config.json", families.BERT)
    with pytest.raises(ValueError, match=r"of jina-embeddings-v3 alone, got .*'bert'"):
        SentenceEncoder.from_pretrained(tmp_path)
