"""`python -m attnpy generate`: text of a language model in a GGUF file, as it comes."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks
from attnpy._quoting import named
from attnpy.checkpoints import load_gguf
from attnpy.checkpoints.gguf_tokenizer import begins
from attnpy.models import CausalDecoder, _texts
from attnpy.positions.rotary import changes_once

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from attnpy.cache import KVCache
    from attnpy.checkpoints import GgufFile

# What a terminal would obey, and not show.
CONTROL = {
    i: f"\\x{i:02x}" for i in (*range(32), *range(127, 160)) if chr(i) not in "\n\t"
}
# How many tokens before a new one are decoded with it: a space may depend on them.
CONTEXT = 4


def run(options: argparse.Namespace) -> None:
    """Continue a text, or take turns."""
    for name in ("top_k", "top_p", "seed"):
        value = getattr(options, name)
        if value is not None and options.temperature == 0:
            raise ValueError(
                f"{name}: expected --temperature above 0, as the best token is taken "
                f"without it, got {value} alone"
            )
    if options.seed is not None:
        _checks.size(options.seed, "seed")
    if options.num_threads is not None:
        _checks.count(options.num_threads, "num_threads")
    if options.prompt is None and not options.chat:
        raise ValueError("the following arguments are required: prompt")
    if options.prompt is not None:
        _texts.text(options.prompt, "prompt")
    writer = _Writer(options)
    try:
        if options.chat:
            writer.talk(options.prompt)
        else:
            writer.go_on(options.prompt)
    except KeyboardInterrupt:
        print(flush=True)  # what comes next begins a line
        writer.report()
        raise


class _Writer:
    """A model that writes its text to standard output, and how fast to the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.file: GgufFile = load_gguf(_path(options.model))
        self.tokenizer = self.file.tokenizer()
        if options.dtype is None:
            self.model = CausalDecoder.from_gguf(self.file, weights="file")
        else:
            self.model = CausalDecoder.from_gguf(self.file, dtype=options.dtype)
        self.rng = np.random.default_rng(options.seed)
        self.n_read, self.n_written, self.n_answers = 0, 0, 0
        self.seconds = [0.0, 0.0]  # until the first token of an answer, and after it

    def go_on(self, prompt: str) -> None:
        """Write a text and what follows it."""
        ids = self.tokenizer.encode(prompt).ids
        if not ids:
            raise ValueError("prompt: expected at least one token, got none")
        for _ in self.shown(ids, None, prompt):
            pass
        print(flush=True)
        self.report()

    def talk(self, prompt: str | None) -> None:
        """Answer each line of standard input, until it ends.

        In a terminal, Ctrl-C ends an answer: the part of it that is written stays in
        the conversation. If nothing is, the message is forgotten.
        """
        if self.file.chat_template is None:
            raise ValueError(
                f"{named(self.file.path)}: expected a template of conversations for "
                "--chat, got none"
            )
        caches = self.model.new_caches(1, 512, growable=True)
        known: list[int] = []  # of what the caches have the keys
        messages: list[dict[str, str]] = []
        for text in _lines(prompt):
            messages.append({"role": "user", "content": text})
            new: list[int] = []
            try:
                ids = self.encode(self.file.apply_chat_template(messages))
                self.keep(caches, known, ids)
                known = ids
                for token in self.shown(ids, caches):
                    new.append(token)
            except KeyboardInterrupt:
                if not sys.stdin.isatty():
                    raise
            print(flush=True)
            # After an interrupt, too, the caches have all of some of these tokens.
            known = [*known, *new][: int(caches[0].lengths[0])]
            if new:
                said = self.tokenizer.decode(new)
                messages.append({"role": "assistant", "content": said})
            else:
                messages.pop()
        self.report()

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a conversation, which begins as texts do."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        first = begins(self.file.metadata, self.file.path)
        return ids if first is None or ids[:1] == [first] else [first, *ids]

    def keep(
        self, caches: Sequence[KVCache], known: Sequence[int], ids: Sequence[int]
    ) -> None:
        """Shorten the caches to the tokens with which a conversation still begins."""
        pairs = enumerate(zip(known, ids[:-1], strict=False))
        most = min(len(known), len(ids) - 1)
        same = next((i for i, (old, new) in pairs if old != new), most)
        before, after = np.array([same]), np.array([len(known)])
        rotary = self.model.rotary
        for turns in rotary if isinstance(rotary, list) else [rotary]:
            if turns is not None and changes_once(turns, before, after):
                before[:] = 0
        for cache in caches:
            cache.truncate(before)

    def shown(
        self, ids: Sequence[int], caches: Sequence[KVCache] | None, prompt: str = ""
    ) -> Iterator[int]:
        """Write the prompt, and yield the tokens that follow, written afterwards."""
        options, text = self.options, _Text(self.tokenizer, ids)
        cached = 0 if caches is None else int(caches[0].lengths[0])
        begun = time.perf_counter()
        tokens = self.model.stream(
            ids,
            options.max_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            rng=self.rng,
            caches=caches,
            num_threads=options.num_threads,
        )
        _write(prompt)
        for i, token in enumerate(tokens):
            now = time.perf_counter()
            self.seconds[i > 0] += now - begun
            if i == 0:
                self.n_read += len(ids) - cached
                self.n_answers += 1
            self.n_written += 1
            begun = now
            yield int(token)  # first, so that no token is written and not kept
            _write(text.add(int(token)))
        _write(text.rest())

    def report(self) -> None:
        """Say how fast the tokens of texts were read, and how fast others came.

        Reading gives the first token of an answer: only the others have a time.
        """
        if not self.n_written:
            return
        reading, writing = self.seconds
        text = f"{_tokens(self.n_read)} read in {_rate(self.n_read, reading)}"
        text += f"; {_tokens(self.n_written)} written"
        later = self.n_written - self.n_answers
        if later:
            each = " of each answer" if self.n_answers > 1 else ""
            text += f", all but the first{each} in {_rate(later, writing)}"
        print(text, file=sys.stderr)


def _tokens(n: int) -> str:
    return f"{n} token{'' if n == 1 else 's'}"


def _rate(n: int, seconds: float) -> str:
    return f"{seconds:.2f} s ({n / seconds:.1f} a second)"


class _Text:
    """Tokens as text: a character comes when all of its bytes have."""

    def __init__(self, tokenizer: Any, before: Sequence[int]) -> None:
        self.tokenizer, self.ids = tokenizer, [*before[-CONTEXT:]]
        self.first, self.n_shown = 0, len(self.ids)

    def add(self, token: int) -> str:
        """Take a token, and return the text that is complete with it."""
        self.ids.append(token)
        text = self._new()
        if text.endswith("\ufffd"):  # of a part of a character
            return ""
        self.first, self.n_shown = max(self.n_shown - CONTEXT, 0), len(self.ids)
        return text

    def rest(self) -> str:
        """Return the text that is not complete, and never will be."""
        return self._new()

    def _new(self) -> str:
        shown = self.tokenizer.decode(self.ids[self.first : self.n_shown])
        whole: str = self.tokenizer.decode(self.ids[self.first :])
        return whole[len(shown) :]


def _path(name: str) -> str:
    """Return the file of this name, or that in an installed package."""
    package = name.replace("-", "_")
    if os.path.lexists(name) or not package.isidentifier():
        return name
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        missing = f"{os.strerror(errno.ENOENT)}, and no installed package"
        raise FileNotFoundError(errno.ENOENT, missing, name)
    folders = map(Path, spec.submodule_search_locations)
    found = sorted(path for folder in folders for path in folder.glob("*.gguf"))
    if len(found) != 1:
        raise ValueError(
            f"{named(name)}: expected a file, or a package with one GGUF file, got a "
            f"package with {len(found)}"
        )
    return str(found[0])


def _lines(first: str | None) -> Iterator[str]:
    """Yield what somebody says, line after line, but for empty ones."""
    if first is not None:
        yield first
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # input() lets lines be edited with it
    while True:
        try:
            line = input("> ") if is_terminal else sys.stdin.readline()
        except EOFError:
            print()
            return
        if not line and not is_terminal:
            return
        if line.strip():
            yield _texts.text(line.rstrip("\n"), "message")


def _write(text: str) -> None:
    """Write text at once; what a terminal would obey is shown instead."""
    sys.stdout.write(text.translate(CONTROL) if sys.stdout.isatty() else text)
    sys.stdout.flush()
