"""Texts to texts: tokenizers of folders, batches, and what is refused."""

import copy
import io
import json
import pickle
import random
import sys

import numpy as np
import pytest
from support import encoder_decoders as oracle
from support.errors import refused

from attnpy.models import EncoderDecoder, TextToText

numpy_files = pytest.importorskip("safetensors.numpy")
tokenizers = pytest.importorskip("tokenizers")

WORDS = "the cat sleeps under old tree and a dog barks at red moon while sun shines on"
TEXTS = ["the cat sleeps", "a dog", "the old moon shines on a red tree", "sun", "moon"]


def word_tokenizer():
    """A token for each word, and an end."""
    vocab = {"<s>": 0, "</s>": 1, "[UNK]": 2}
    for word in WORDS.split():
        vocab.setdefault(word, len(vocab))
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["<s>", "</s>"])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return made


def write(folder, kind="t5", generation=None, **changes):
    """A folder of a family, with a tokenizer that pads and truncates by itself."""
    config = {**oracle.ENCODER_DECODERS[kind], **changes}
    (folder / "config.json").write_text(json.dumps(config))
    numpy_files.save_file(oracle.tensors(config), folder / "model.safetensors")
    said = {"eos_token_id": 1, "decoder_start_token_id": 0, **(generation or {})}
    (folder / "generation_config.json").write_text(json.dumps(said))
    made = word_tokenizer()
    made.enable_padding(length=12)
    made.enable_truncation(2)
    made.save(str(folder / "tokenizer.json"))
    return made


def expected(model, text, *arguments, **options):
    """The text by hand."""
    tokenizer = word_tokenizer()
    new = model.generate(tokenizer.encode(text).ids, *arguments, **options).tolist()
    ends = [i for i, token in enumerate(new) if token in model.stop]
    return tokenizer.decode(new[: ends[0]] if ends else new)


def test_weights_may_be_integers(tmp_path):
    write(tmp_path, "t5")
    options = {"weights": "int4", "activations": "int8"}
    writer = TextToText.from_pretrained(tmp_path, **options)
    model = EncoderDecoder.from_pretrained(tmp_path, **options)
    ids = [3, 4, 5]
    assert (writer.model.encode(ids) == model.encode(ids)).all()
    rows_as_they_are = EncoderDecoder.from_pretrained(tmp_path, weights="int4")
    assert (rows_as_they_are.encode(ids) != model.encode(ids)).any()


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["t5", "bart"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}])
@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_texts_are_those_of_the_model(tmp_path, kind, options, batch_size):
    write(tmp_path, kind)
    writer = TextToText.from_pretrained(tmp_path)
    found = writer.generate(iter(TEXTS), 6, batch_size=batch_size, **options)
    assert found == [expected(writer.model, text, 6, **options) for text in TEXTS]
    assert any(found)
    assert writer.generate(TEXTS[0], 6, **options) == found[0]
    assert writer.generate([], 6) == []
    for same in (copy.deepcopy(writer), pickle.loads(pickle.dumps(writer))):
        assert same.generate(TEXTS, 6, **options) == found
    assert repr(writer).startswith("TextToText(model=EncoderDecoder(")


@pytest.mark.quick
def test_settings_of_the_folder_and_of_the_call_are_honoured(tmp_path):
    write(tmp_path, generation={"max_length": 5, "num_beams": 3})
    writer = TextToText.from_pretrained(tmp_path)
    assert writer.generate(TEXTS[0]) == expected(writer.model, TEXTS[0], 4, num_beams=3)
    several = writer.generate(TEXTS, num_return_sequences=2)
    assert [len(texts) for texts in several] == [2] * 5
    assert [texts[0] for texts in several] == writer.generate(TEXTS)
    drawn = writer.generate(
        TEXTS[0],
        num_beams=1,
        temperature=2.0,
        num_return_sequences=4,
        rng=np.random.default_rng(0),
    )
    assert len(set(drawn)) > 1


@pytest.mark.quick
def test_a_task_has_a_prefix_and_settings(tmp_path):
    tasks = {"summarization": {"prefix": "the cat ", "max_length": 4, "num_beams": 2}}
    tasks["other"] = {"x_y": 1}
    write(tmp_path, generation={"max_length": 9}, task_specific_params=tasks)
    writer = TextToText.from_pretrained(tmp_path, task="summarization")
    assert (writer.prefix, writer.model.generation["num_tokens"]) == ("the cat ", 3)
    again = expected(writer.model, "the cat sun", 3, num_beams=2)
    assert writer.generate("sun") == again
    plain = TextToText.from_pretrained(tmp_path, prefix="the cat ")
    assert plain.generate("sun", 3, num_beams=2) == again
    own = TextToText.from_pretrained(tmp_path, task="summarization", prefix="a ")
    assert own.prefix == "a "
    with refused(ValueError, "task"):
        TextToText.from_pretrained(tmp_path, task="translation")
    with pytest.raises(ValueError, match=r"params\['other'\]: expected no x_y, got 1"):
        TextToText.from_pretrained(tmp_path, task="other")


LANGUAGES = {"nllb": ["eng_Latn", "fra_Latn"], "m2m": ["__en__", "__fr__"]}


def tell_languages(folder, template, codes):
    """Give a folder's tokenizer tokens of languages; the first one is usual."""
    made = word_tokenizer()
    made.add_special_tokens([*codes])
    used = {"</s>": 1, codes[0]: made.token_to_id(codes[0])}
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single=template.format(codes[0]), special_tokens=[*used.items()]
    )
    made.save(str(folder / "tokenizer.json"))
    return [made.token_to_id(code) for code in codes]


@pytest.mark.quick
@pytest.mark.parametrize("codes", LANGUAGES.values(), ids=LANGUAGES)
@pytest.mark.parametrize("template", ["{} $A </s>", "$A </s> {}"])
@pytest.mark.parametrize("starts_with_language", [False, True])
def test_languages_stand_where_models_of_many_have_them(
    tmp_path, codes, template, starts_with_language
):
    write(tmp_path, "bart", vocab_size=40)
    english, french = tell_languages(tmp_path, template, codes)
    start = english if starts_with_language else 1
    said = {"eos_token_id": 1, "decoder_start_token_id": start}
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    one, other = (code.strip("_") for code in codes)
    writer = TextToText.from_pretrained(
        tmp_path, source_language=other, target_language=one
    )
    plain = TextToText.from_pretrained(tmp_path)
    ids = writer.tokenizer.encode(TEXTS[0]).ids
    usual = plain.tokenizer.encode(TEXTS[0]).ids
    assert ids == [french if token == english else token for token in usual]
    assert french in ids
    place = {"start": [english]} if starts_with_language else {"forced_bos": english}
    for options in ({}, {"num_beams": 3}):
        new = plain.model.generate(ids, 6, **place, **options).tolist()
        ends = new.index(1) if 1 in new else len(new)
        expected = plain.tokenizer.decode(new[:ends])
        assert writer.generate(TEXTS[0], 6, **options) == expected
        for same in (copy.deepcopy(writer), pickle.loads(pickle.dumps(writer))):
            assert same.generate(TEXTS[0], 6, **options) == expected
    assert f"source_language={other!r}, target_language={one!r}" in repr(writer)
    with refused(ValueError, "forced_bos"):
        writer.generate(TEXTS[0], 6, forced_bos=3)


@pytest.mark.quick
def test_languages_that_a_tokenizer_does_not_have_are_refused(tmp_path):
    write(tmp_path, "bart", vocab_size=40)
    for name in ("source_language", "target_language"):
        with pytest.raises(ValueError, match=rf"{name}: expected .*token, of none"):
            TextToText.from_pretrained(tmp_path, **{name: "fra_Latn"})
    tell_languages(tmp_path, "$A </s>", LANGUAGES["nllb"])
    for name in ("source_language", "target_language"):
        for wrong, error in (("cat", ValueError), ("</s>", ValueError), (3, TypeError)):
            with refused(error, name):
                TextToText.from_pretrained(tmp_path, **{name: wrong})
    with pytest.raises(ValueError, match=r"source_language: .* with 0 in .*Sequence"):
        TextToText.from_pretrained(tmp_path, source_language="fra_Latn")


@pytest.mark.quick
def test_long_texts_are_refused_or_truncated_if_that_is_asked(tmp_path):
    write(tmp_path, "bart")
    writer = TextToText.from_pretrained(tmp_path)
    long = "sun " * 16
    with pytest.raises(ValueError, match=r"texts\[1\]: expected at most 16 tokens.*17"):
        writer.generate(["sun", long], 3)
    short = TextToText.from_pretrained(tmp_path, max_length=16)
    assert short.generate(long, 3) == expected(short.model, "sun " * 15, 3)
    for wrong in (1, 17, 0):
        with refused(ValueError, "max_length"):
            TextToText.from_pretrained(tmp_path, max_length=wrong)
    free = TextToText(EncoderDecoder.from_config(oracle.T5), word_tokenizer())
    free.generate(long * 9, 3)


@pytest.mark.quick
def test_wrong_arguments_are_refused(tmp_path):
    write(tmp_path)
    writer = TextToText.from_pretrained(tmp_path)
    for wrong in (3, None, b"sun", [3], ["sun", None]):
        with pytest.raises(TypeError, match=r"texts.*: expected"):
            writer.generate(wrong, 3)
    with refused(ValueError, "num_tokens"):
        writer.generate("sun")
    with refused(ValueError, "batch_size"):
        writer.generate("sun", 3, batch_size=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_beam'"):
        writer.generate("sun", 3, num_beam=2)
    with refused(TypeError, "model"):
        TextToText(3, word_tokenizer())
    with refused(TypeError, "tokenizer"):
        TextToText(writer.model, 3)
    with refused(TypeError, "prefix"):
        TextToText(writer.model, word_tokenizer(), prefix=3)
    with pytest.raises(TypeError, match="TextToText: expected model of EncoderDecoder"):
        state = {**vars(writer), "model": 3}
        TextToText.__new__(TextToText).__setstate__(state)


# ---- Marian --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    """A folder with models of SentencePiece, trained on a few words."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder, draw = tmp_path_factory.mktemp("marian"), random.Random(0)
    lines = [" ".join(draw.choices(WORDS.split(), k=8)) for _ in range(200)]
    pieces = ["</s>", "<unk>", ">>fra<<"]
    for side in ("source", "target"):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*map(str.upper, lines)] if pieces[3:] else lines),
            model_writer=model,
            vocab_size=60,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{side}.spm").write_bytes(model.getvalue())
        found = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        own = [found.id_to_piece(i) for i in range(3, found.vocab_size())]
        pieces += [piece for piece in own if piece not in pieces]
    pieces.append("<pad>")
    vocab = {piece: i for i, piece in enumerate(pieces)}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    config = {**oracle.MARIAN, "vocab_size": len(pieces)}
    config["decoder_start_token_id"] = vocab["<pad>"]
    config |= {"bad_words_ids": [[vocab["<pad>"]]], "max_length": 9, "num_beams": 2}
    (folder / "config.json").write_text(json.dumps(config))
    numpy_files.save_file(oracle.tensors(config), folder / "model.safetensors")
    return folder


MARIAN_TEXTS = [*TEXTS, ">>fra<< a dog barks", "The Sun! zzz", ""]


@pytest.mark.quick
def test_texts_become_pieces_and_pieces_texts(marian):
    writer = TextToText.from_pretrained(marian)
    found = writer.generate(MARIAN_TEXTS)
    assert found == [writer.generate(text) for text in MARIAN_TEXTS]
    assert found == writer.generate(MARIAN_TEXTS, num_threads=1)
    tokens = writer.tokenizer
    assert tokens.encode("").ids == [0]
    ids = tokens.encode(">>fra<< a dog barks").ids
    assert (ids[0], ids[-1]) == (2, 0)
    assert tokens.encode(">>fra a dog").ids[0] != 2
    assert 1 in tokens.encode("zzz").ids  # no such piece
    upper = [tokens.vocab.get(p) for p in tokens.target.encode("OLD SUN", out_type=str)]
    assert tokens.decode([*upper, 0, 0]) == "OLD SUN"
    short = TextToText.from_pretrained(marian, max_length=3)
    assert short.tokenizer.encode(TEXTS[2]).ids == [*tokens.encode(TEXTS[2]).ids[:2], 0]
    assert pickle.loads(pickle.dumps(writer)).generate(TEXTS) == found[:5]


def test_pieces_are_those_of_transformers(marian):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.MarianTokenizer.from_pretrained(marian)
    ours = TextToText.from_pretrained(marian).tokenizer
    for text in MARIAN_TEXTS:
        ids = ours.encode(text).ids
        assert ids == theirs(text).input_ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("vocab.json", '{"</s>": 0}', "expected unk_token among the pieces, got"),
        ("vocab.json", '{"</s>": 0, "<unk>": 0}', "expected a different number for"),
        ("vocab.json", '{"</s>": "x"}', "expected a different number for each piece"),
        ("vocab.json", "[]", "expected a JSON object"),
        ("source.spm", "nothing", "expected a model of SentencePiece"),
        ("tokenizer_config.json", '{"separate_vocabs": true}', "separate_vocabs = fal"),
        ("tokenizer_config.json", '{"eos_token": "<e>"}', "expected eos_token among"),
    ],
)
def test_broken_folders_of_marian_are_refused(marian, tmp_path, name, text, words):
    for path in marian.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words):
        TextToText.from_pretrained(tmp_path)


def test_what_is_not_installed_is_named(marian, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ImportError, match="pip install sentencepiece"):
        TextToText.from_pretrained(marian)
