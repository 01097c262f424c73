"""The pages of docs/: examples print what they say, and links lead somewhere.

The pages about other libraries are run beside the tests of their adapters.
"""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from support import (
    adapters,
    encoder_decoders,
    families,
    gguf_files,
    minilm,
    multi_vectors,
    pages,
    sentences,
    smollm2,
    torch_files,
)

ROOT = pages.DOCS.parent
RUN = [
    *sorted(pages.DOCS.glob("guide/*.md")),
    *sorted(pages.DOCS.glob("how_it_works/*.md")),
    pages.DOCS / "faq.md",
]
ALL = [
    *sorted(pages.DOCS.rglob("*.md")),
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("benchmarks/*.md")),
]

NEEDS = {
    "coming_from_jax_keras_onnx": ("jax", "onnx"),
    "coming_from_pytorch": ("torch",),
    "dtypes": ("ml_dtypes",),
    "language_models": ("gguf", "jinja2", "tokenizers"),
    "one_prompt_many_questions": ("safetensors",),
    "quantised_weights": ("safetensors",),
    "threads": ("threadpoolctl",),
    "training": ("safetensors",),
}


def name_of(page):
    return str(page.relative_to(ROOT).with_suffix(""))


def kinds(page):
    """What the blocks of code on a page are: "python", "{toctree}", "text"."""
    return re.findall(r"^```(.*)\n(?:.*\n)*?```$", page.read_text("utf-8"), re.M)


@pytest.mark.quick
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_examples_print_what_their_comments_say(page):
    for library in NEEDS.get(page.stem, ()):
        pytest.importorskip(library)
    if page.stem == "fine_tuning":
        minilm.require()
    if page.stem == "language_models":
        smollm2.require()
    if "python" in kinds(page):
        pages.assert_examples_print_what_their_comments_say(page)


def write_models(folder):
    """Write small models where docs/models.md has those that it names."""
    from safetensors.numpy import save_file

    names = *("SmolLM2-135M", "flan-t5-small", "all-MiniLM-L6-v2"), "bert-base-NER"
    names = *names, "ms-marco-MiniLM-L6-v2", "bert-base-uncased"
    writer, translator, encoder, tagger, judge, words = (folder / x for x in names)
    for place in (writer, translator, encoder, tagger, judge, words):
        place.mkdir()
    sentences.write(writer, "llama")
    write_gpt_oss(folder / "gpt-oss-20b")
    config = encoder_decoders.ENCODER_DECODERS["t5"]
    sentences.put(translator / "config.json", config)
    tensors = encoder_decoders.tensors(config)
    save_file(tensors, translator / "model.safetensors")
    sentences.write_with_head(encoder, pooler=True)
    sentences.write_scorer(judge)
    sentences.write_with_head(tagger, token_classifier=True)
    sentences.write_with_head(words, masked_words=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (words / name).read_text("utf-8")
        assert f'"{sentences.MASK}"' in text
        text = text.replace(f'"{sentences.MASK}"', '"[MASK]"')
        (words / name).write_text(text, "utf-8")


def write_gpt_oss(folder):
    from safetensors.numpy import save_file

    folder.mkdir()
    sentences.put(folder / "config.json", families.GPT_OSS)
    save_file(families.tensors(families.GPT_OSS), folder / "model.safetensors")


@pytest.mark.quick
def test_the_page_about_models_prints_what_it_says(tmp_path, monkeypatch):
    sentences.require()
    write_models(tmp_path)
    monkeypatch.chdir(tmp_path)
    pages.assert_examples_print_what_their_comments_say("models.md")


@pytest.mark.quick
def test_the_error_on_the_page_about_models_is_that_of_the_code(tmp_path):
    sentences.require()
    from attnpy.models import BertEncoder

    write_models(tmp_path)
    text = (pages.DOCS / "models.md").read_text("utf-8")
    told = re.search(r"^```text\nValueError: (.*?)^```$", text, re.M | re.S)[1]
    begin, end = " ".join(told.split()).split("... ")
    with pytest.raises(ValueError, match=re.escape(begin)) as error:
        BertEncoder.from_pretrained(tmp_path / "bert-base-uncased")
    assert str(error.value).endswith(end)


def write_embedders(folder):
    """Write small models where docs/sentences.md has those that it names."""
    rng = np.random.default_rng(0)
    qwen, m3 = folder / "Qwen3-Embedding-0.6B", folder / "bge-m3"
    qwen.mkdir()
    m3.mkdir()
    pooling = {"word_embedding_dimension": 16, "pooling_mode": "lasttoken"}
    config = {"prompts": {"query": "find : "}}
    sentences.write(qwen, "qwen3", pooling, config=config)
    sentences.write(m3, "xlm-roberta", {"pooling_mode": "cls"})
    for name, n in (("sparse", 1), ("colbert", 7)):
        arrays = {"weight": rng.random((n, 12), "f"), "bias": rng.random(n, "f")}
        torch_files.save(m3 / f"{name}_linear.pt", arrays)
    for name, markers in (
        ("colbertv2.0", ()),
        ("jina-colbert-v2", ("[QueryMarker]", "[DocumentMarker]")),
    ):
        (folder / name).mkdir()
        multi_vectors.write(folder / name, "colbert", config_changes={"vocab_size": 33})
        tokenizer = sentences.tokenizer()
        tokenizer.add_special_tokens([*markers])
        tokenizer.save(str(folder / name / "tokenizer.json"))
    (folder / "jina-embeddings-v3").mkdir()
    adapters.of_tasks(folder / "jina-embeddings-v3")
    nomic = {**families.ENCODERS["nomic_bert"], "vocab_size": len(sentences.WORDS)}
    found = gguf_files.encoder(nomic, sentences.WORDS)
    gguf_files.write(folder / "nomic-embed-text-v1.5.Q8_0.gguf", *found)


def test_the_page_about_sentences_prints_what_it_says(tmp_path, monkeypatch):
    minilm.require()
    gguf_files.require()
    write_embedders(tmp_path)
    monkeypatch.chdir(tmp_path)
    pages.assert_examples_print_what_their_comments_say("sentences.md")


OF_MODELS = [pages.DOCS / f"{name}.md" for name in ("models", "sentences", "reranking")]


@pytest.mark.quick
@pytest.mark.parametrize("page", OF_MODELS, ids=name_of)
def test_only_commands_of_a_shell_are_not_run(page):
    """Commands: one that installs, and one of an example with tests of its own."""
    assert set(kinds(page)) <= {"python", "sh", "text"}


@pytest.mark.quick
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_there_is_no_code_that_is_not_run(page):
    assert set(kinds(page)) <= {"python", "{toctree}", "text"}


def prose(page):
    """A page without its blocks of code, in which nothing is a link."""
    return re.sub(r"^```.*\n(?:.*\n)*?```$", "", page.read_text("utf-8"), flags=re.M)


def anchors(page):
    """Where links into a page may lead: its headings, as code-hosting sites do it."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.M)
    words = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {word.strip().replace(" ", "-") for word in words}


def links(page):
    """The targets of a page's links and pictures, but for those of other sites."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [target for target in targets if "://" not in target]


def leads_somewhere(page, target):
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return file.exists() and (not anchor or anchor in anchors(file))


@pytest.mark.quick
@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_links_lead_somewhere(page):
    assert [to for to in links(page) if not leads_somewhere(page, to)] == []


@pytest.mark.quick
@pytest.mark.parametrize("folder", ["guide", "how_it_works"])
def test_an_index_has_every_page(folder):
    index = pages.DOCS / folder / "index.md"
    text = index.read_text("utf-8")
    listed = re.search(r"^```{toctree}\n(.*?)^```$", text, re.M | re.S)[1]
    names = {line for line in listed.splitlines() if line and line[0] != ":"}
    there = {page.stem for page in index.parent.glob("*.md")} - {"index"}
    assert names == there
    assert {f"{name}.md" for name in there} <= set(links(index))


@pytest.mark.quick
def test_a_link_that_leads_nowhere_is_found():
    # Shows that the test of links can fail.
    page = pages.DOCS / "models.md"
    assert leads_somewhere(page, "sentences.md#search")
    assert not leads_somewhere(page, "sentences.md#nothing")
    assert not leads_somewhere(page, "nothing.md")


def comments(text):
    """The lines that the site leaves out: MyST takes a percent sign for a comment."""
    return re.findall(r"^ *%.*$", text, re.M)


@pytest.mark.quick
@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_no_line_is_a_comment_by_chance(page):
    assert comments(prose(page)) == []


@pytest.mark.quick
def test_a_line_that_is_a_comment_is_found():
    assert comments("It reaches 79 to 86\n% of the peak.\n50 %\n") == ["% of the peak."]


DRAWINGS = sorted(pages.DOCS.glob("*/*.svg"))


@pytest.mark.quick
@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.stem)
def test_drawings_are_for_light_and_dark_pages_and_have_words(drawing):
    text = drawing.read_text("utf-8")
    root = ElementTree.fromstring(text)
    for name in ("title", "desc"):
        assert root.find(f"{{http://www.w3.org/2000/svg}}{name}").text
    assert "prefers-color-scheme: dark" in text


@pytest.mark.quick
def test_who_encodes_by_hand_turns_the_tokenizers_padding_off():
    more = (ROOT / "notebooks").glob("*.ipynb"), (ROOT / "examples").glob("*.py")
    texts = {
        name_of(page): page.read_text("utf-8") for page in (*ALL, *more[0], *more[1])
    }
    by_hand = [name for name, text in texts.items() if "tokenizer.encode(" in text]
    known = {"README", "docs/models", "docs/sentences", "notebooks/05_real_model"}
    assert known <= {*by_hand}
    assert [name for name in by_hand if "no_padding()" not in texts[name]] == []
