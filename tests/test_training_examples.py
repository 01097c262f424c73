"""The examples that train: they learn, with the same bits however they are run."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.comparisons import assert_same_bits
from support.processes import HANGS

from attnpy import checkpoints, models, training

pytest.importorskip("safetensors")

EXAMPLES = Path(__file__).parents[1] / "examples"
CHARACTERS = EXAMPLES / "train_characters.py"
REVERSE = EXAMPLES / "train_reverse.py"
TRANSLATE = EXAMPLES / "translate.py"
SIZES = {"layers": 2, "heads": 2, "embed-dim": 32, "context": 32, "batch": 8}
TINY = [f"--{name}={n}" for name, n in {**SIZES, "steps": 50, "samples": 1}.items()]


def imported(path):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reverse, characters = imported(REVERSE), imported(CHARACTERS)


def run(path, *arguments, n_threads=1):
    """Run an example as a command; return what it prints."""
    done = subprocess.run(
        [sys.executable, path, *map(str, arguments)],
        env={**os.environ, "ATTNPY_NUM_THREADS": str(n_threads)},
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_same_files(one, other):
    """Checkpoints with the same arrays, bit for bit, step and generator."""
    one, other = checkpoints.read(one), checkpoints.read(other)
    assert one.metadata == other.metadata
    assert set(one) == set(other)
    for name in one:
        assert_same_bits(one[name], other[name])


# ---- Numbers in two languages --------------------------------------------------------


def test_a_little_training_translates_numbers(tmp_path, capsys):
    pytest.importorskip("tokenizers")
    translate = imported(TRANSLATE)
    assert translate.german(321_001) == ("drei hundert ein und zwanzig tausend eins")
    assert translate.german(101_000) == "ein hundert ein tausend"
    translate.main(["--steps", "150", "--save", str(tmp_path / "numbers")])
    lines = capsys.readouterr().out.splitlines()
    assert float(lines[-4].split("%")[0]) > 90
    assert lines[-3] == "twenty one -> ein und zwanzig"
    translator = models.TextToText.from_pretrained(tmp_path / "numbers")
    assert translator.generate("Twenty-One") == "ein und zwanzig"
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "numbers")
    texts = [translate.english(n) for n in (7, 765_432)]
    for text in texts:
        ids = translator.tokenizer.encode(text).ids
        new = theirs.generate(torch.tensor([ids]))[0].tolist()
        assert translator.tokenizer.decode(new) == translator.generate(text)


def test_numbers_are_learned_with_the_same_bits_with_one_thread_and_two(tmp_path):
    pytest.importorskip("tokenizers")
    for n in (1, 2):
        run(TRANSLATE, "--steps", 30, "--save", tmp_path / f"{n}", n_threads=n)
    one, two = (checkpoints.read(tmp_path / n) for n in "12")
    for name in one:
        assert_same_bits(one[name], two[name])


# ---- Words backwards -----------------------------------------------------------------


@pytest.mark.quick
def test_the_gradient_of_a_table_that_is_used_three_times():
    rng = np.random.default_rng(0)
    model = reverse.Reverser(rng, 1, 16, 2, 24)
    model.embedding = model.embedding.astype(np.float64)
    source, lengths, target, wanted = reverse.as_arrays(reverse.random_words(rng, 4))

    def loss_of(embedding):
        model.embedding = embedding
        logits, pullback = model.vjp(source, lengths, target)
        loss, grad_logits = training.cross_entropy(logits, wanted)
        return loss, pullback(grad_logits)["embedding"]

    start, step = model.embedding, 1e-5 * rng.standard_normal(model.embedding.shape)
    _, gradient = loss_of(start)
    change = loss_of(start + step)[0] - loss_of(start - step)[0]
    assert change == pytest.approx(2 * np.sum(gradient * step), rel=1e-4)


@pytest.mark.quick
def test_words_are_reversed_token_by_token_as_all_at_once():
    rng = np.random.default_rng(0)
    model = reverse.Reverser(rng)
    source, lengths, _, _ = reverse.as_arrays(reverse.random_words(rng, 5))
    written = model.write(source, lengths)
    target = np.concatenate([np.full((5, 1), reverse.START), written[:, :-1]], axis=1)
    logits, _ = model.vjp(source, lengths, target)
    np.testing.assert_array_equal(logits.argmax(axis=-1), written)


def test_a_little_training_reverses_short_words(monkeypatch):
    monkeypatch.setattr(reverse, "LONGEST", 4)
    rng = np.random.default_rng(0)
    model = reverse.Reverser(rng)
    losses = reverse.train(model, rng, 250)
    assert losses[0] > 3
    assert reverse.share_reversed(model, reverse.random_words(rng, 300)) > 0.95
    looks = model.looks("abcd")[-1].mean(axis=0)  # (L, L)
    np.testing.assert_array_equal(looks.argmax(axis=1), [3, 2, 1, 0])


def test_the_defaults_reverse_words_of_up_to_twelve_letters(capsys):
    reverse.main([])
    lines = capsys.readouterr().out.splitlines()
    share = float(lines[-4].split("%")[0])
    assert share >= 99
    assert lines[-3:] == [
        "transformers -> sremrofsnart",
        "attention -> noitnetta",
        "numpy -> ypmun",
    ]


def test_words_backwards_has_the_same_bits_with_one_thread_and_two(tmp_path):
    for n in (1, 2):
        run(REVERSE, "--steps", 50, "--save", tmp_path / f"{n}", n_threads=n)
    assert_same_files(tmp_path / "1", tmp_path / "2")


def test_the_command_shows_words_and_draws(capsys, tmp_path):
    pytest.importorskip("matplotlib").use("Agg")
    reverse.main(["--steps", "2", "--pictures", str(tmp_path / "pictures")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("step    2  loss 3.")
    assert lines[2].endswith("% of 1000 new words without a mistake")
    assert [line.split(" -> ")[0] for line in lines[3:6]] == [
        "transformers", "attention", "numpy",
    ]  # fmt: skip
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert names == {"before.png", "after.png"}


# ---- Characters ----------------------------------------------------------------------


@pytest.mark.quick
def test_the_text_and_its_numbers_are_the_same():
    text = characters.read_text(None)
    assert len(text) > 200_000
    numbered = characters.Text(text)
    numbers = np.concatenate([numbered.seen, numbered.held_out])
    assert numbered.decode(numbers) == text
    ids, targets = characters.draw(numbers, 4, 20, np.random.default_rng(0))
    assert (ids[:, 1:] == targets[:, :-1]).all()


def test_characters_have_the_same_bits_with_one_thread_and_two(tmp_path):
    for n in (1, 2):
        printed = run(CHARACTERS, *TINY, "--file", tmp_path / f"{n}", n_threads=n)
    assert_same_files(tmp_path / "1", tmp_path / "2")
    lines = printed.splitlines()
    first, last = 4.5, float(lines[1].split("other text ")[1])
    assert last < first - 1, "nothing was learned"
    assert lines[2:4] == ["--- sample 1", next(x for x in lines[3:] if x[:4] == "The ")]


def test_a_run_that_is_stopped_and_resumed_has_the_same_bits(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(CHARACTERS, *TINY, "--file", whole)
    printed = run(CHARACTERS, *TINY, "--file", parts, "--minutes", 0)
    assert f"stopped; {parts} has the run" in printed
    assert "--resume" in printed
    assert training.load(parts, checkpoint_arrays(parts)) == 1
    printed = run(CHARACTERS, *TINY, "--file", parts, "--resume")
    assert "going on after step 1" in printed
    assert_same_files(whole, parts)


def test_ctrl_c_saves_the_run_after_a_whole_step(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(CHARACTERS, *TINY, "--file", whole)
    command = [sys.executable, "-u", CHARACTERS, *TINY, "--file", parts]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert "numbers learn" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        printed = process.communicate(timeout=HANGS)[0]
    assert process.returncode == 0
    assert "stopped" in printed
    run(CHARACTERS, *TINY, "--file", parts, "--resume")
    assert_same_files(whole, parts)


def test_without_tqdm_lines_are_printed_all_the_same(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(characters, "tqdm", None)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog.\n" * 40)
    before = signal.getsignal(signal.SIGINT)
    characters.main([*TINY, "--text", str(path), "--file", "run", "--steps", "3"])
    assert signal.getsignal(signal.SIGINT) is before
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("step     3  loss ")
    assert "stopped" not in "".join(lines)
    assert os.path.exists("run")


@pytest.mark.quick
def test_the_commands_say_what_is_wrong(tmp_path):
    with pytest.raises(
        SystemExit, match=r"train_characters: .*none: expected a file, got none$"
    ):
        characters.main(["--file", str(tmp_path / "none"), "--resume"])
    other = tmp_path / "other"
    training.save(other, {"W": np.zeros(2)})
    with pytest.raises(SystemExit, match=r"train_characters: .*other: "):
        characters.main([*TINY, "--file", str(other), "--resume"])


def checkpoint_arrays(path):
    """Arrays of the names and shapes of a checkpoint's parameters."""
    tensors = checkpoints.read(path)
    return {
        name: np.zeros_like(tensors[name])
        for name in tensors
        if "optimizer." not in name
    }
