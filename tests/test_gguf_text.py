"""Text of GGUF files: tokenizers, end tokens, templates of conversations."""

import sys

import numpy as np
import pytest
from support import families, gguf_files
from support.errors import refused

from attnpy import checkpoints
from attnpy.checkpoints.gguf_tokenizer import CUTS
from attnpy.models import CausalDecoder

pytestmark = pytest.mark.quick

gguf_files.require("tokenizers", "jinja2")

TEXTS = (
    *(
        "",
        "the cat",
        "Hello, world!",
        "It's 12345 o'clock, we'LL see",
        "  a  b\n\n\nc\t",
    ),
    *(
        "ünïcödé 中文字符 العربية",
        "👩‍👩‍👧 🎉",
        "x" * 100,
        "\r\n ",
        "½ ² Ⅷ 一",
        "camelCaseText",
    ),
)


@pytest.fixture
def opened(tmp_path):
    """Open a file with this metadata, where None leaves a key out."""

    def load(metadata, **changes):
        merged = metadata | {
            f"tokenizer.{key.replace('__', '.')}": content
            for key, content in changes.items()
        }
        merged = {
            key: content for key, content in merged.items() if content is not None
        }
        return checkpoints.load_gguf(gguf_files.write(tmp_path / "m.gguf", merged, {}))

    return load


BYTES = gguf_files.bytes_tokenizer() if gguf_files.is_there("tokenizers") else {}


def pieces(**changes):
    """The metadata of a tokenizer of pieces, with a piece for each byte."""
    words = ("▁", "t", "h", "e", "c", "a", "▁t", "he", "▁the", "at", "▁c", "▁cat")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *words]
    types = [2, 3, 3] + [6] * 256 + [1] * len(words)
    scores = [0.0] * 259 + [-1e6] * 6 + [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, "i4"),
        "tokenizer.ggml.scores": np.array(scores, "f4"),
        **changes,
    }


# ---- Bytes ---------------------------------------------------------------------------


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_from_its_tokens(opened, cut, text):
    tokenizer = opened(BYTES, ggml__pre=cut, ggml__add_bos_token=False).tokenizer()
    ids = tokenizer.encode(text).ids
    composed = __import__("unicodedata").normalize("NFC", text)
    assert tokenizer.decode(ids) == (composed if CUTS[cut].nfc else text)


# How a text is cut, by the tokenizers that the names stand for.
PARTS = {
    "gpt-2": ("It's 123  ok\n\n", ["It", "'s", " 123", " ", " ok", "\n\n"]),
    "smollm": (
        "It's 123  ok\n\n",
        ["It", "'s", " ", "1", "2", "3", " ", " ok", "\n\n"],
    ),
    "llama-bpe": ("IT'S 12345(ok\n", ["IT", "'S", " ", "123", "45", "(ok", "\n"]),
    "dbrx": ("IT'S 12345(ok\n", ["IT", "'S", " ", "123", "45", "(ok", "\n"]),
    "qwen2": ("It's 12 ok\n", ["It", "'s", " ", "1", "2", " ok", "\n"]),
    "command-r": ("It's 12 ok\n", ["It", "'s", " ", "1", "2", " ok", "\n"]),
    "stablelm2": ("IT'S 12 ok\n", ["IT", "'S", " ", "1", "2", " ok", "\n"]),
    "glm4": ("IT'S 12345(ok\n", ["IT", "'S", " ", "123", "45", "(ok", "\n"]),
    "exaone4": ("It's 123  ok\n\n", ["It", "'s", " 123", " ", " ok", "\n\n"]),
    "seed-coder": ("IT'S 12/\nok", ["IT", "'S", " ", "1", "2", "/", "\n", "ok"]),
    "tekken": ("camelCase 12/\n", ["camel", "Case", " ", "1", "2", "/\n"]),
    "gpt-4o": ("camelCase's 1234/", ["camel", "Case's", " ", "123", "4", "/"]),
}


@pytest.mark.parametrize("name", PARTS)
def test_texts_are_cut_as_the_name_says(opened, name):
    tokenizer = opened(BYTES, ggml__pre=name).tokenizer()
    text, parts = PARTS[name]
    found = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in found] == parts


def test_parts_are_merged_by_the_first_pair(opened):
    tokenizer = opened(BYTES).tokenizer()
    assert tokenizer.encode("the then").tokens == ["t", "he", "Ġthe", "n"]


def test_a_part_that_is_a_token_is_not_merged_where_the_name_says_so(opened):
    tokens = [*BYTES["tokenizer.ggml.tokens"], "nab"]
    types = np.append(BYTES["tokenizer.ggml.token_type"], 1).astype("i4")
    changes = {"ggml__tokens": tokens, "ggml__token_type": types}
    whole = opened(BYTES, **changes, ggml__pre="llama-bpe", ggml__add_bos_token=False)
    assert whole.tokenizer().encode("nab").tokens == ["nab"]
    assert opened(BYTES, **changes).tokenizer().encode("nab").tokens == ["n", "a", "b"]


def test_tokens_of_control_are_found_in_texts(opened):
    tokenizer = opened(BYTES).tokenizer()
    encoded = tokenizer.encode("<|begin|>x<|im_end|>")
    assert encoded.tokens == ["<|begin|>", "x", "<|im_end|>"]
    assert encoded.ids[0] == 0
    assert encoded.ids[2] == 1
    assert tokenizer.decode(encoded.ids) == "x"
    whole = tokenizer.decode(encoded.ids, skip_special_tokens=False)
    assert whole == "<|begin|>x<|im_end|>"


@pytest.mark.parametrize("add_end", [None, False, True])
@pytest.mark.parametrize("add_begin", [None, False, True])
@pytest.mark.parametrize("name", ["smollm", "llama-bpe"])
def test_what_texts_begin_and_end_with(opened, name, add_begin, add_end):
    file = opened(
        BYTES,
        ggml__pre=name,
        ggml__add_bos_token=add_begin,
        ggml__add_eos_token=add_end,
    )
    tokens = file.tokenizer().encode("x").tokens
    begins = name == "llama-bpe" if add_begin is None else add_begin
    assert tokens == ["<|begin|>"] * begins + ["x"] + ["<|im_end|>"] * bool(add_end)
    plain = file.tokenizer().encode("x", add_special_tokens=False).tokens
    assert plain == ["x"]


# ---- Pieces --------------------------------------------------------------------------


def test_pieces_are_merged_by_their_scores(opened):
    tokenizer = opened(pieces()).tokenizer()
    assert tokenizer.encode("the cat").tokens == ["<s>", "▁the", "▁cat"]
    assert tokenizer.decode(tokenizer.encode("the cat").ids) == "the cat"
    without = opened(pieces(), ggml__add_space_prefix=False).tokenizer()
    assert without.encode("the cat").tokens == ["<s>", "t", "he", "▁cat"]
    assert without.decode(without.encode(" the").ids) == " the"


@pytest.mark.parametrize("text", TEXTS)
def test_what_has_no_piece_is_bytes(opened, text):
    tokenizer = opened(pieces()).tokenizer()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_pieces_are_those_of_the_library(tmp_path, opened):
    library = pytest.importorskip("sentencepiece")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{text}\n" for text in (__doc__ or "", *TEXTS) if text))
    library.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "p"), vocab_size=330,
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    theirs = library.SentencePieceProcessor(model_file=str(tmp_path / "p.model"))
    numbers = range(theirs.vocab_size())
    kinds = {"is_unknown": 2, "is_control": 3, "is_unused": 5, "is_byte": 6}
    types = [
        next((n for kind, n in kinds.items() if getattr(theirs, kind)(i)), 1)
        for i in numbers
    ]
    file = opened(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [theirs.id_to_piece(i) for i in numbers],
            "tokenizer.ggml.scores": np.array(
                [theirs.get_score(i) for i in numbers], "f4"
            ),
            "tokenizer.ggml.token_type": np.array(types, "i4"),
        }
    )
    tokenizer = file.tokenizer()
    for text in TEXTS:
        assert tokenizer.encode(text).ids == [1, *theirs.encode(text)]


# ---- Ends ----------------------------------------------------------------------------


def test_the_end_tokens_are_those_that_the_file_numbers_and_those_of_known_names(
    opened,
):
    assert opened(BYTES).stop == (1,)
    assert opened(BYTES, ggml__eos_token_id=7).stop == (1, 7)  # <|im_end|> besides
    assert opened(BYTES, ggml__eot_token_id=5, ggml__eom_token_id=9).stop == (1, 5, 9)
    plain = BYTES["tokenizer.ggml.token_type"].copy()
    plain[1] = 1  # a text like any other
    file = opened(BYTES, ggml__token_type=plain, ggml__eos_token_id=None)
    assert file.stop == ()
    assert opened(pieces()).stop == (2,)
    assert opened({"general.architecture": "llama"}).stop == ()
    with refused(ValueError, ".*m.gguf"):
        opened(BYTES, ggml__model=np.ones(2, "i4")).stop  # noqa: B018


def test_a_model_stops_where_its_file_says(tmp_path):
    metadata, arrays = gguf_files.talking()
    path = gguf_files.write(tmp_path / "m.gguf", metadata, arrays)
    model = CausalDecoder.from_gguf(path)
    assert model.stop == (1,)
    new = model.generate([5, 7, 11], 40, stop=()).tolist()
    end = new[3]
    metadata["tokenizer.ggml.eos_token_id"] = end
    path = gguf_files.write(tmp_path / "m.gguf", metadata, arrays)
    model = CausalDecoder.from_gguf(path)
    first = new.index(end)
    assert [*model.stream([5, 7, 11], 40)] == new[: first + 1]
    assert model.generate([5, 7, 11], 40, stop=()).tolist() == new


# ---- Templates -----------------------------------------------------------------------

SAID = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]


def test_a_conversation_is_written_as_the_template_says(opened):
    file = opened(BYTES)
    text = "<|begin|>user\nHi<|im_end|>\n<|begin|>assistant\nYes.<|im_end|>\n"
    assert file.apply_chat_template(SAID, add_generation_prompt=False) == text
    begun = "<|begin|>assistant\n"
    assert file.apply_chat_template(SAID) == text + begun
    assert file.chat_template == gguf_files.TEMPLATE


def test_a_template_has_what_templates_of_transformers_have(opened):
    template = (
        "{{ bos_token }}{{ eos_token }}\n{% for m in messages %}\n"
        "    {% if loop.index > 1 %}{% break %}{% endif %}\n{{ m.content }}\n"
        "{% endfor %}{{ messages[0] | tojson }}{{ tools is defined }}"
    )
    text = opened(BYTES, chat_template=template).apply_chat_template(SAID)
    expected = "<|begin|><|im_end|>\nHi\n"
    assert text == expected + '{"role": "user", "content": "Hi"}False'


TEMPLATES = {
    "syntax": ("{% for", "a template that can be used"),
    "undefined": ("{{ nothing.at.all }}", "a template that can be used"),
    "a filter": ("{{ messages | nothing }}", "a template that can be used"),
    "division": ("{{ 1 / 0 }}", "a template that can be used"),
    "its own": ("{{ raise_exception('no\\nsystem') }}", "messages that its template"),
    "classes": (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "a template that can",
    ),
    "changes": ("{{ messages.append(1) }}", "a template that can be used"),
    "files": ("{% include '/etc/passwd' %}", "a template that can be used"),
    "recursion": (
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "a template that can be used",
    ),
    "a large range": ("{% for i in range(10**9) %}{% endfor %}", "a template that can"),
    "a long template": ("{{a}}" * 14_000, "got 70,000 characters, more than 65,536"),
    "loops": (
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "more than 1,000,000 passes of loops",
    ),
    "macros": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
        "{% endmacro %}{{ m(60) }}",
        "more than 1,000,000 passes of loops",
    ),
    "much text": (
        "{% for i in range(99999) %}{{ 'a long text' }}{% endfor %}",
        "a text of more than 1,04",
    ),
    "a product": ("{{ 'a' * 10**11 }}", "a text of more than 1,04"),
    "sums": (
        "{% set n = namespace(x='a') %}{% for i in range(99) %}"
        "{% set n.x = n.x + n.x %}{% endfor %}",
        "a text of more than 1,04",
    ),
    "joined texts": (
        "{% set n = namespace(x='a') %}{% for i in range(99) %}"
        "{% set n.x = n.x ~ n.x %}{% endfor %}",
        "a text of more than 1,04",
    ),
    "blocks": (
        "{% set x %}a{% endset %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 99,
        "a text of more than 1,04",
    ),
    "large numbers": ("{{ (7**999) ** 999 }}", "a number of more than 4096 bits"),
    "larger numbers": (
        "{% set n = namespace(x=7) %}{% for i in range(99) %}"
        "{% set n.x = n.x * n.x %}{% endfor %}",
        "a number of more than 4096 bits",
    ),
}


# What loops, calls and operators may do, which a budget counts.
PLAIN = """{% for m in messages %}{{ loop.length }}{{ loop.last }}{{ loop.revindex }}
{{ m.role ~ 1 ~ loop.previtem }}{{ [1] + [2] }}{{ 2 * 3 + 2**4 }}{{ 'ab' * 2 }}
{% else %}none{% endfor %}{% for k, v in messages[0].items() if k == 'role' %}{{ k }}
{% endfor %}{% set y %}a{{ messages | length }}{% endset %}{{ y }}
{% set z | upper %}q{{ y }}{% endset %}{{ z }}
{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}{{ loop(x) }}
{% else %}{{ x }}{% endif %}{% endfor %}{% for q in nothing %}{% else %}E{% endfor %}
{% for m in messages[::-1] %}{% if loop.index0 == 1 %}{% break %}{% endif %}
{{ loop.cycle('a', 'b') }}{% endfor %}
{% macro f(n) %}{{ n }}{{ caller() }}{% endmacro %}
{% call f(3) %}inside{% endcall %}{{ range(3) | list }}{{ "%d" % 3 }}"""


def test_bounds_change_nothing_that_a_template_writes(opened):
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    plain = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    said = opened(BYTES, chat_template=PLAIN).apply_chat_template(SAID)
    assert said == plain.from_string(PLAIN).render(messages=SAID)


def test_long_messages_may_be_written_several_times(opened):
    said = [{"role": "user", "content": "a" * 2_000_000}]
    file = opened(BYTES, chat_template="{{ messages[0].content * 9 }}")
    assert file.apply_chat_template(said) == "a" * 18_000_000


@pytest.mark.parametrize("what", TEMPLATES)
def test_a_template_that_cannot_be_used_is_one_sentence(opened, what):
    template, said = TEMPLATES[what]
    with refused(ValueError, ".*m.gguf") as caught:
        opened(BYTES, chat_template=template).apply_chat_template(SAID)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_template_reaches_nothing_of_python(opened):
    for name in (
        "raise_exception.__globals__",
        "messages.__class__",
        "lipsum.__code__",
    ):
        file = opened(BYTES, chat_template=f"{{{{ {name} }}}}")
        assert file.apply_chat_template(SAID) == ""


def test_messages_are_checked(opened):
    file = opened(BYTES)
    for wrong in ("Hi", {"role": "user", "content": "Hi"}, 3):
        with refused(TypeError, "messages"):
            file.apply_chat_template(wrong)
    with refused(TypeError, r"messages\[1\]"):
        file.apply_chat_template([SAID[0], "Hi"])
    with refused(ValueError, r"messages\[0\]"):
        file.apply_chat_template([{"role": "user"}])
    with refused(ValueError, ".*m.gguf"):
        opened(BYTES, chat_template=None).apply_chat_template(SAID)


# ---- What is refused -----------------------------------------------------------------

FAULTS = {
    "no tokenizer": ({"ggml__model": None}, "tokenizer.ggml.model to be gpt2, llama"),
    "another": ({"ggml__model": "wpm"}, "'wpm'"),
    "no cut": ({"ggml__pre": None}, "tokenizer.ggml.pre to be one of gpt-2"),
    "unknown cut": ({"ggml__pre": "viking"}, "'viking'"),
    "no tokens": ({"ggml__tokens": None}, "tokenizer.ggml.tokens to be"),
    "tokens": ({"ggml__tokens": "x"}, "tokenizer.ggml.tokens to be"),
    "empty": ({"ggml__tokens": []}, "tokenizer.ggml.tokens to be"),
    "twice": ({"ggml__tokens": ["a", "a"]}, "tokenizer.ggml.tokens to be different"),
    "no merges": ({"ggml__merges": None}, "tokenizer.ggml.merges to be"),
    "merges": ({"ggml__merges": ["ab"]}, "tokenizer.ggml.merges to be pairs"),
    "merges of others": (
        {"ggml__merges": ["a b"]},
        "tokenizer.ggml.merges to be pairs",
    ),
    "types": (
        {"ggml__token_type": np.ones(3, "i4")},
        "tokenizer.ggml.token_type to be",
    ),
    "kinds": ({"ggml__token_type": np.ones(261, "f4")}, "token_type to be 261 numbers"),
    "far": ({"ggml__bos_token_id": 999, "ggml__add_bos_token": True}, "from 0 to 260"),
    "flag": ({"ggml__add_bos_token": 1}, "add_bos_token to be true or false"),
    "no begin": (
        {"ggml__bos_token_id": None, "ggml__add_bos_token": True},
        "bos_token_id to be a token, as texts begin with it",
    ),
    "no end": (
        {"ggml__eos_token_id": None, "ggml__add_eos_token": True},
        "eos_token_id to be a token, as texts end with it",
    ),
    "unknown key": ({"ggml__new": 1}, "no tokenizer.ggml.new"),
    "spaces": (
        {"ggml__remove_extra_whitespaces": True},
        "tokenizer.ggml.remove_extra_whitespaces = False",
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_is_not_honoured_is_refused_by_name(opened, what):
    changes, said = FAULTS[what]
    with refused(ValueError, ".*m.gguf") as caught:
        opened(BYTES, **changes).tokenizer()
    assert said in str(caught.value)


PIECES = {
    "no scores": ({"ggml__scores": None}, "tokenizer.ggml.scores to be"),
    "NaN": (
        {"ggml__scores": np.full(271, np.nan, "f4")},
        "tokenizer.ggml.scores to be",
    ),
    "long": ({"ggml__tokens": ["x" * 600, *map(str, range(270))]}, "at most 512"),
    "unknown": ({"ggml__unknown_token_id": 271}, "an integer from 0 to 270"),
}


@pytest.mark.parametrize("what", PIECES)
def test_wrong_pieces_are_refused_by_name(opened, what):
    changes, said = PIECES[what]
    with refused(ValueError, ".*m.gguf") as caught:
        opened(pieces(), **changes).tokenizer()
    assert said in str(caught.value)


def test_a_wrong_end_token_is_refused_with_the_model(tmp_path):
    metadata, arrays = gguf_files.talking(families.LLAMA)
    metadata["tokenizer.ggml.eos_token_id"] = 10_000
    path = gguf_files.write(tmp_path / "m.gguf", metadata, arrays)
    with refused(ValueError, ".*m.gguf") as caught:
        CausalDecoder.from_gguf(path)
    assert "tokenizer.ggml.eos_token_id" in str(caught.value)


def test_without_the_packages_errors_say_what_to_install(opened, monkeypatch):
    file = opened(BYTES)
    for package, function in (
        ("tokenizers", file.tokenizer),
        ("jinja2", lambda: file.apply_chat_template(SAID)),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(ImportError, match=r"pip install 'attnpy\[gguf\]'"):
                function()
