"""The command line: `python -m attnpy generate`."""

import io
import os
import pty
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from support import families, gguf_files
from support.processes import HANGS, assert_fails

from attnpy import _generate, checkpoints
from attnpy.__main__ import main
from attnpy.cache import KVCache
from attnpy.models import CausalDecoder

gguf_files.require("tokenizers", "jinja2")

COMMAND = [sys.executable, "-m", "attnpy", "generate"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("generate") / "m.gguf"
    return gguf_files.write(path, *gguf_files.talking())


@pytest.fixture
def call(monkeypatch, capsys):
    """The command in this process, with something on standard input."""

    def call_main(*arguments, said=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(said))
        status = main(["generate", *map(str, arguments)])
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, status, *printed)

    return call_main


def expected(file, prompt, n, **options):
    """The text that a model's own calls give."""
    opened = checkpoints.load_gguf(file)
    tokenizer, model = opened.tokenizer(), CausalDecoder.from_gguf(opened)
    ids = tokenizer.encode(prompt).ids
    new = [*model.stream(ids, n, **options)]
    return tokenizer.decode([*ids, *new])


@pytest.mark.quick
def test_it_writes_the_text_and_what_follows_it(call, file):
    done = call(file, "the cat", "--max-tokens", 40)
    assert done.returncode == 0
    assert done.stdout == expected(file, "the cat", 40) + "\n"
    assert done.stderr.count("\n") == 1
    assert_says(done.stderr, 6, "40 tokens written, all but the first", 39)


def assert_says(line, n_read, what, n_timed):
    """How many tokens a second is what it says of how many, and of their time."""
    found = re.fullmatch(
        rf"{n_read} tokens? read in ([\d.]+) s \(([\d.]+) a second\); {what}"
        r"( in ([\d.]+) s \(([\d.]+) a second\))?\n",
        line,
    )
    assert found, line
    times = [(n_read, *found.groups()[:2])]
    assert bool(found[3]) == (n_timed > 0)
    times += [(n_timed, *found.groups()[3:])] if n_timed else []
    for n, seconds, rate in times:
        seconds, rate = float(seconds), float(rate)
        assert n / (seconds + 0.006) < rate + 0.06
        assert seconds < 0.006 or n / (seconds - 0.006) > rate - 0.06


@pytest.mark.quick
@pytest.mark.parametrize(
    ("n", "what"),
    [
        (1, "1 token written"),
        (2, "2 tokens written, all but the first"),
        (20, "20 tokens written, all but the first"),
    ],
)
def test_it_counts_all_tokens_that_it_writes(call, file, n, what):
    done = call(file, "the cat", "--max-tokens", n)
    assert_says(done.stderr, 6, what, n - 1)


@pytest.mark.quick
def test_the_prompt_may_come_after_options(call, file):
    plain = call(file, "the cat", "--max-tokens", 4).stdout
    assert call(file, "--max-tokens", 4, "the cat").stdout == plain
    assert call("--max-tokens", 4, file, "the cat").stdout == plain
    for prompt in ("-1", "- a point"):
        plain = call(file, prompt, "--max-tokens", 4).stdout
        assert plain.startswith(prompt)
    assert call(file, "--max-tokens", 4, "- a point").stdout == plain
    chat = call(file, "--chat", "--max-tokens", 4, "the cat", said="x\n")
    assert (
        chat.stdout
        == call(file, "the cat", "--chat", "--max-tokens", 4, said="x\n").stdout
    )
    assert_fails(call(file, "--max-tokens", 4, "the", "cat"), "arguments: the cat")
    assert_fails(call(file, "--max-tokens", 4, "--zork"), "arguments: --zork")


@pytest.mark.quick
def test_it_stops_at_the_files_end_token(call, file, tmp_path):
    model = CausalDecoder.from_gguf(file)
    ids = checkpoints.load_gguf(file).tokenizer().encode("x").ids
    new = model.generate(ids, 20, stop=()).tolist()
    metadata, arrays = gguf_files.talking()
    metadata["tokenizer.ggml.eos_token_id"] = new[4]
    path = gguf_files.write(tmp_path / "m.gguf", metadata, arrays)
    n = new.index(new[4]) + 1
    done = call(path, "x", "--max-tokens", 20)
    assert done.stdout == expected(path, "x", 20) + "\n"
    assert f"{n} tokens written" in done.stderr


@pytest.mark.quick
def test_options_are_those_of_generate(call, file):
    flags = ["--temperature", 2, "--top-k", 50, "--top-p", 0.9, "--seed", 3]
    done = call(file, "x", "--max-tokens", 30, *flags, "--num-threads", 1)
    text = expected(
        *(file, "x", 30),
        temperature=2.0,
        top_k=50,
        top_p=0.9,
        rng=np.random.default_rng(3),
    )
    assert done.stdout == text + "\n"
    assert done.stdout != call(file, "x", "--max-tokens", 30).stdout
    other = call(file, "x", "--max-tokens", 30, *flags[:-1], 4)
    assert done.stdout != other.stdout


@pytest.mark.quick
def test_the_model_is_of_the_dtype(call, file, monkeypatch):
    given = []

    def from_gguf(file, **options):
        given.append(options)
        return CausalDecoder.from_gguf(file, **options)

    monkeypatch.setattr(_generate, "CausalDecoder", from_gguf)
    from_gguf.from_gguf = from_gguf
    assert call(file, "x", "--max-tokens", 2, "--dtype", "float16").returncode == 0
    assert call(file, "x", "--max-tokens", 2).returncode == 0
    assert given == [{"dtype": "float16"}, {"weights": "file"}]


def test_text_comes_as_it_is_written(file):
    command = [*COMMAND, str(file), "the cat", "--max-tokens", "100000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.read(20).startswith("the cat")
            assert_ends_when_interrupted(process)
        finally:
            process.kill()


def assert_ends_when_interrupted(process):
    """Ctrl-C ends the command at the end of a line, and it says how fast it was."""
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=HANGS)
    assert process.returncode == 130
    assert rest.endswith("\n")
    assert re.fullmatch(r"\d+ tokens? read in .* written.*\n", errors), errors


class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8."""

    def decode(self, ids):
        return bytes(ids).decode("utf-8", "replace")


@pytest.mark.quick
@pytest.mark.parametrize("text", ["abc", "äöü", "中文", "a👩‍👩‍👧b", "\ufffdx"])
def test_a_character_comes_when_all_of_its_bytes_have(text):
    before, data = "grün".encode(), text.encode()
    written = _generate._Text(Bytes(), [*before])
    parts = [written.add(byte) for byte in data]
    assert "".join(parts) + written.rest() == text
    if "\ufffd" not in text:
        assert parts[-1]
        assert "\ufffd" not in "".join(parts)
    assert written.rest() == ("" if parts[-1] else written.rest())


@pytest.mark.quick
def test_bytes_that_never_become_a_character_come_last():
    written = _generate._Text(Bytes(), [*b"x"])
    assert written.add(0xE4) == ""
    assert written.rest() == "\ufffd"


# ---- Turns ---------------------------------------------------------------------------


def conversation(file, said, n):
    """What a model answers, with all of the conversation read anew for each turn."""
    opened = checkpoints.load_gguf(file)
    tokenizer, model = opened.tokenizer(), CausalDecoder.from_gguf(opened)
    messages, answers = [], []
    for text in said:
        messages.append({"role": "user", "content": text})
        text = opened.apply_chat_template(messages)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        new = [*model.stream(ids, n)]
        answers.append(tokenizer.decode(new))
        messages.append({"role": "assistant", "content": answers[-1]})
    return answers


@pytest.mark.quick
def test_turns_are_those_of_the_whole_conversation(call, file):
    said = ["the cat", "äh?", "the then"]
    text = "the cat\n\n  \näh?\nthe then\n"  # empty lines say nothing
    done = call(file, "--chat", "--max-tokens", 12, said=text)
    assert (done.returncode, done.stdout.endswith("\n")) == (0, True)
    assert done.stdout == "".join(f"{text}\n" for text in conversation(file, said, 12))
    n_read = int(done.stderr.split()[0])
    assert_says(
        *(done.stderr, n_read, "36 tokens written, all but the first of each answer"),
        33,
    )


@pytest.mark.quick
def test_the_prompt_is_said_first(call, file):
    done = call(file, "the cat", "--chat", "--max-tokens", 5, said="x\n")
    expected = conversation(file, ["the cat", "x"], 5)
    assert done.stdout == "".join(f"{text}\n" for text in expected)


@pytest.mark.quick
def test_what_was_read_is_not_read_again(call, file, monkeypatch):
    read = []
    plain = CausalDecoder.__call__

    def counted(self, ids, **options):
        read.append(np.shape(ids)[1])
        return plain(self, ids, **options)

    monkeypatch.setattr(CausalDecoder, "__call__", counted)
    call(file, "--chat", "--max-tokens", 4, said="the cat\nx\n")
    turns = [n for n in read if n > 1]
    assert len(turns) == 2
    # The end of the answer and the second turn, which are shorter than the whole.
    assert turns[1] < turns[0] + 10


@pytest.mark.quick
def test_keys_that_depend_on_the_length_are_computed_anew(call, tmp_path):
    metadata, arrays = gguf_files.talking(families.PHI3)
    path = gguf_files.write(tmp_path / "m.gguf", metadata, arrays)
    said = ["a", "the cat"]
    done = call(path, "--chat", "--max-tokens", 4, said="a\nthe cat\n")
    expected = conversation(path, said, 4)
    assert done.stdout == "".join(f"{text}\n" for text in expected)


@pytest.mark.quick
def test_a_conversation_begins_as_texts_do(call, tmp_path):
    metadata, arrays = gguf_files.talking()
    metadata["tokenizer.ggml.add_bos_token"] = True
    path = gguf_files.write(tmp_path / "m.gguf", metadata, arrays)
    plain = call(path, "--chat", "--max-tokens", 5, said="a\n")  # in the template
    assert plain.stdout == conversation(path, ["a"], 5)[0] + "\n"
    metadata["tokenizer.chat_template"] = "{{ messages[0].content }}"
    path = gguf_files.write(tmp_path / "m.gguf", metadata, arrays)
    done = call(path, "--chat", "--max-tokens", 5, said="a\n")
    assert f"a{done.stdout}" == expected(path, "a", 5) + "\n"


@pytest.mark.quick
def test_nothing_said_is_no_error(call, file):
    done = call(file, "--chat")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_interrupt_ends_a_conversation(file):
    command = [*COMMAND, str(file), "--chat", "--max-tokens", "1000000"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            process.stdin.write("the cat\n")
            process.stdin.flush()
            assert process.stdout.read(5)
            assert_ends_when_interrupted(process)
        finally:
            process.kill()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.quick
@pytest.mark.parametrize("n_written", [0, 1, 7])
def test_an_interrupt_ends_an_answer_in_a_terminal(
    call, file, monkeypatch, capsys, n_written
):
    opened = checkpoints.load_gguf(file)
    tokenizer, model = opened.tokenizer(), CausalDecoder.from_gguf(opened)
    counts = {"steps": 0}
    plain = _generate._Text.add, CausalDecoder.stream

    def add(self, token):
        counts["steps"] += 1
        if counts["steps"] == n_written:
            signal.raise_signal(signal.SIGINT)
        return plain[0](self, token)

    def stream(self, ids, *arguments, **options):
        counts["calls"] = counts.get("calls", 0) + 1
        if counts["calls"] == 1 and n_written == 0:
            signal.raise_signal(signal.SIGINT)
        return plain[1](self, ids, *arguments, **options)

    monkeypatch.setattr(_generate._Text, "add", add)
    monkeypatch.setattr(CausalDecoder, "stream", stream)
    monkeypatch.setattr(sys, "stdin", Terminal("the cat\nx\n"))
    assert main(["generate", str(file), "--chat", "--max-tokens", "12"]) == 0
    printed = capsys.readouterr().out
    monkeypatch.undo()
    messages = []
    if n_written:
        said = [{"role": "user", "content": "the cat"}]
        ids = tokenizer.encode(
            opened.apply_chat_template(said), add_special_tokens=False
        ).ids
        part = tokenizer.decode([*model.stream(ids, n_written)])
        messages = [*said, {"role": "assistant", "content": part}]
    messages.append({"role": "user", "content": "x"})
    text = opened.apply_chat_template(messages)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    answer = tokenizer.decode([*model.stream(ids, 12)])
    assert printed.endswith(f"> {answer}\n> \n")


def n_layers(file):
    number = len(CausalDecoder.from_gguf(file).decoder.layers)
    assert number > 1
    return number


@pytest.mark.quick
@pytest.mark.parametrize("where", ["template", "tokens", "caches"])
def test_an_interrupt_before_an_answer_forgets_the_message(
    call, file, monkeypatch, capsys, where
):
    owner, name, once = {
        "template": (checkpoints.GgufFile, "apply_chat_template", 2),
        "tokens": (_generate._Writer, "encode", 2),
        "caches": (
            KVCache,
            "truncate",
            n_layers(file) + 2,
        ),  # one is shortened, one not
    }[where]
    plain, calls = getattr(owner, name), []

    def interrupted(self, *arguments):
        calls.append(arguments)
        if len(calls) == once:
            signal.raise_signal(signal.SIGINT)
        return plain(self, *arguments)

    monkeypatch.setattr(owner, name, interrupted)
    monkeypatch.setattr(sys, "stdin", Terminal("the cat\nno\nx\n"))
    assert main(["generate", str(file), "--chat", "--max-tokens", "6"]) == 0
    monkeypatch.undo()
    first, second = conversation(file, ["the cat", "x"], 6)
    assert capsys.readouterr().out == f"> {first}\n> \n> {second}\n> \n"


@pytest.mark.quick
def test_an_interrupt_at_the_prompt_ends_a_conversation(
    call, file, monkeypatch, capsys
):
    class Impatient(Terminal):
        def readline(self, *_):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(sys, "stdin", Impatient())
    assert main(["generate", str(file), "--chat"]) == 128 + signal.SIGINT
    assert capsys.readouterr().out == "> \n"


def test_a_terminal_is_asked_and_not_commanded(file, tmp_path):
    # Tokens that a terminal would obey are shown instead.
    metadata, arrays = gguf_files.talking()
    escape = metadata["tokenizer.ggml.tokens"].index("ě")  # byte 27
    arrays["token_embd.weight"] = np.zeros_like(arrays["token_embd.weight"])
    arrays["output.weight"] = np.zeros_like(arrays["output.weight"])
    path = gguf_files.write(tmp_path / "m.gguf", metadata, arrays)
    opened = checkpoints.load_gguf(path)
    assert opened.tokenizer().decode([escape]) == "\x1b"
    own, theirs = pty.openpty()
    command = [*COMMAND, str(path), "\x1b[31m", "--max-tokens", "2"]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        assert process.wait(timeout=HANGS) == 0
    shown = os.read(own, 1000)
    os.close(own)
    assert shown.startswith(rb"\x1b[31m")
    assert b"\x1b" not in shown


# ---- Files and packages --------------------------------------------------------------


@pytest.mark.quick
def test_a_package_with_a_file_may_be_named(call, file, tmp_path, monkeypatch):
    package = tmp_path / "some_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('not to be run')")
    (package / "m.gguf").write_bytes(file.read_bytes())
    monkeypatch.syspath_prepend(tmp_path)
    text = call(file, "x", "--max-tokens", 3).stdout
    for name in ("some_model", "some-model"):
        assert call(name, "x", "--max-tokens", 3).stdout == text
    (package / "n.gguf").write_bytes(file.read_bytes())
    assert_fails(call("some-model", "x"), "expected a file, or a package with one")


FAULTS = {
    "no file": (["none.gguf", "x"], "none.gguf: expected a file, got none"),
    "no package": (["none_at_all", "x"], "none_at_all: No such file or directory"),
    "a package without": (["numpy", "x"], "a package with one GGUF file, got a"),
    "main": (["__main__", "x"], "__main__: No such file or directory"),
    "another file": ([__file__, "x"], "expected a GGUF file"),
    "no prompt": (["FILE"], "required: prompt"),
    "no text": (["FILE", "\udcff"], ": prompt: expected a text in Unicode"),
    "no tokens": (["FILE", ""], ": prompt: expected at least one token"),
    "no model": ([], "required: model.gguf"),
    "top_k": (["FILE", "x", "--top-k", 3], "--top-k: expected --temperature above 0"),
    "seed": (["FILE", "x", "--seed", 3], "--seed: expected --temperature above 0"),
    "a word": (["FILE", "x", "--max-tokens", "many"], "--max-tokens"),
    "none": (["FILE", "x", "--max-tokens", -1], "--max-tokens: expected"),
    "temperature": (["FILE", "x", "--temperature", -1], ": --temperature: expected at"),
    "top_p": (["FILE", "x", "--temperature", 1, "--top-p", 2], ": --top-p: expected"),
    "negative seed": (
        ["FILE", "x", "--temperature", 1, "--seed", -1],
        "--seed: expected",
    ),
    "dtype": (["FILE", "x", "--dtype", "int8"], "dtype: expected"),
    "threads": (["FILE", "x", "--num-threads", 0], "--num-threads: expected"),
}


@pytest.mark.quick
@pytest.mark.parametrize("what", FAULTS)
def test_an_error_is_one_line(call, file, what):
    arguments, said = FAULTS[what]
    done = call(*(file if a == "FILE" else a for a in arguments))
    assert_fails(done, said)


@pytest.mark.quick
def test_turns_need_a_template(call, tmp_path):
    metadata, arrays = gguf_files.talking()
    del metadata["tokenizer.chat_template"]
    path = gguf_files.write(tmp_path / "m.gguf", metadata, arrays)
    assert_fails(call(path, "--chat", said="x\n"), "a template of conversations")


@pytest.mark.quick
def test_a_package_that_is_missing_is_one_line(call, file, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert_fails(call(file, "x"), "pip install 'attnpy[gguf]'")


def test_a_reader_that_has_gone_is_no_error(file):
    command = [*COMMAND, str(file), "the cat", "--max-tokens", "100000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(timeout=HANGS) == 141
        assert process.stderr.read() == b""


@pytest.mark.quick
def test_help_says_what_there_is(capsys):
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    text = capsys.readouterr().out
    for flag in (
        *("--chat", "--max-tokens", "--temperature", "--top-k", "--top-p", "--seed"),
        *("--dtype", "--num-threads"),
    ):
        assert flag in text
