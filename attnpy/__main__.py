"""The command line: a first example, attention for a file, the machine, benchmarks."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

import attnpy
from attnpy import _checks
from attnpy._example import EMBEDDINGS, WORDS
from attnpy._files import path_at, unfinished, write_whole

if TYPE_CHECKING:
    from typing import BinaryIO

    from numpy.typing import NDArray

PROGRAM = "python -m attnpy"
POSITIONAL = ("command", "input", "model", "prompt")
REQUIRED = ("query", "key", "value")
ALIGNMENTS = ("bottom_right", "top_left")
OPTIONAL = (
    *("mask", "bias", "sinks", "kv_lengths", "q_offset", "seq_offsets"),
    "page_table",
)


# What the user can do something about.
ERRORS = (OSError, TypeError, ValueError, MemoryError, ImportError)


class InputError(Exception):
    """A wrong request; its message is all that the user needs."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are a single line."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and exiting."""
        raise InputError(f"{message} (see {self.prog} --help)")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    before = {}
    try:
        try:
            names = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP
            for number in [getattr(signal, n) for n in names if hasattr(signal, n)]:
                # Ignored signals stay ignored: nohup ignores SIGHUP.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, terminate)
            return command(arguments)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def command(arguments: list[str] | None) -> int:
    """Run the requested command and return its exit status."""
    try:
        options = parsed(arguments)
        with _checks.renamed(**given_as(options)):
            obey(options)
        print(end="", flush=True)  # so that a full disk is seen here
    except BrokenPipeError:
        # The reader of our output has gone. Python flushes once more on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (*ERRORS, InputError) as error:
        if was_interrupted(error):  # zipfile's, as its file is not complete
            return 128 + signal.SIGINT
        print("attnpy:", one_line(error), file=sys.stderr)
        return 2
    return 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line.

    A prompt may come after options: argparse looks for it beside the model only.
    """
    main_parser = parser()
    options, others = main_parser.parse_known_args(arguments)
    texts = [text for text in others if " " in text or not text.startswith("-")]
    if getattr(options, "prompt", "") is None and texts == others and len(texts) == 1:
        options.prompt = others.pop()
    if others:
        main_parser.error(f"unrecognized arguments: {' '.join(others)}")
    return options


def given_as(options: argparse.Namespace) -> dict[str, str]:
    """Return the names of options, by those of the arguments that they become."""
    others = {"num_tokens": "--max-tokens", "path": "--output"}
    return others | {
        name: f"--{name.replace('_', '-')}"
        for name, value in vars(options).items()
        if name not in POSITIONAL and value is not None
    }


def obey(options: argparse.Namespace) -> None:
    """Run the requested command."""
    if options.command == "run":
        run(options)
    elif options.command == "info":
        attnpy.show_config()
    elif options.command == "bench":
        from attnpy import _bench

        _bench.run(options.num_threads, options.seconds)
    elif options.command == "generate":
        from attnpy import _generate

        _generate.run(options)
    else:
        show_example()


def terminate(number: int, _: object) -> NoReturn:
    """End the process without leaving temporary files.

    An exception would be lost in a finalizer, or replaced by one of zipfile.
    """
    for name in tuple(unfinished):
        with suppress(OSError):
            os.unlink(name)
    os._exit(128 + number)


def was_interrupted(error: BaseException | None) -> bool:
    """Tell whether an error came while an interrupt was pending."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def one_line(error: BaseException) -> str:
    """Return the error's message without line breaks."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def parser() -> Parser:
    """Return the parser of the command line."""
    main_parser = Parser(
        prog=PROGRAM,
        description="Fast, exact attention for NumPy arrays. Without a command, show "
        "a first example.",
    )
    main_parser.add_argument(
        "--version", action="version", version=f"attnpy {attnpy.__version__}"
    )
    commands = main_parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("info", help="show the instruction set, threads and versions")
    add_bench(commands)
    add_run(commands)
    add_generate(commands)
    return main_parser


def add_bench(commands: Any) -> None:
    """Add the command that compares libraries."""
    command = commands.add_parser(
        "bench",
        help="compare the speed of attention with that of other installed libraries",
        description="Compare the speed of attention on this machine with the formula "
        "in NumPy and, if installed, with PyTorch, ONNX Runtime (with onnx) "
        "and JAX. This takes about twenty seconds; Ctrl-C stops it.",
    )
    command.add_argument(
        "--num-threads",
        type=int,
        metavar="N",
        help="number of threads of every library (default: attnpy's)",
    )
    command.add_argument(
        "--seconds",
        type=float,
        default=12.0,
        metavar="S",
        help="how long to measure, not counting imports (default: 12)",
    )


def add_run(commands: Any) -> None:
    """Add the command that reads arrays from a file."""
    command = commands.add_parser(
        "run",
        help="compute attention for the arrays in a file",
        description="Compute attention for the arrays in an .npz file. It must hold "
        f"{', '.join(REQUIRED)}, and may hold {', '.join(OPTIONAL)}. The result holds "
        "output, and weights and lse if requested.",
    )
    # Optional here, as --causal may have taken it: see `sort_out`.
    command.add_argument(
        "input", metavar="in.npz", nargs="?", help="the file with the arrays"
    )
    command.add_argument(
        "-o", "--output", metavar="out.npz", required=True, help="the file to write"
    )
    command.add_argument(
        "--causal",
        nargs="?",
        const=ALIGNMENTS[0],
        default=False,
        metavar="|".join(ALIGNMENTS),
        help="hide the keys after each query's position; by itself, bottom_right",
    )
    command.add_argument(
        "--window",
        nargs=2,
        type=window_side,
        metavar=("LEFT", "RIGHT"),
        help="keys visible before and after the position; none for no limit",
    )
    command.add_argument(
        "--q-offset", type=int, metavar="N", help="position of the first query"
    )
    command.add_argument(
        "--scale",
        type=float,
        metavar="X",
        help="factor of the scores (default: 1/sqrt(D))",
    )
    command.add_argument(
        "--softcap", type=float, metavar="X", help="cap the scores by X * tanh(s / X)"
    )
    command.add_argument(
        "--dropout",
        type=float,
        default=0.0,
        metavar="P",
        help="drop weights with probability P",
    )
    command.add_argument(
        "--dropout-seed", type=int, metavar="N", help="seed of the dropout"
    )
    command.add_argument(
        "--return-weights", action="store_true", help="write the weights as well"
    )
    command.add_argument(
        "--return-lse", action="store_true", help="write the LSE as well"
    )
    add_num_threads(command)


def add_generate(commands: Any) -> None:
    """Add the command that writes text."""
    command = commands.add_parser(
        "generate",
        help="continue a text, or chat, with a language model in a GGUF file",
        description="Continue a text with a language model in a GGUF file, or chat "
        "with it. The last line, on standard error, says how fast it was.",
    )
    command.add_argument(
        "model",
        metavar="model.gguf",
        help="a file, or the name of an installed package that contains one",
    )
    command.add_argument(
        "prompt",
        nargs="?",
        help="the text to continue; with --chat the first message",
    )
    command.add_argument(
        "--chat",
        action="store_true",
        help="hold a conversation, one line for each message, until Ctrl-D; Ctrl-C "
        "ends an answer early",
    )
    command.add_argument(
        "--max-tokens",
        type=int,
        default=256,
        metavar="N",
        help="the most tokens to write (default: 256)",
    )
    command.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="X",
        help="draw tokens at random, from scores divided by X; by default (0) take the "
        "most probable token",
    )
    command.add_argument(
        "--top-k", type=int, metavar="N", help="draw from the N most probable tokens"
    )
    command.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="draw from the fewest tokens whose probabilities sum to at least P",
    )
    command.add_argument(
        "--seed", type=int, metavar="N", help="draw the same tokens each time"
    )
    command.add_argument(
        "--dtype",
        metavar="NAME",
        help="convert the weights to float32, bfloat16, float16 or float64; by default "
        "they stay quantised as in the file",
    )
    add_num_threads(command)


def add_num_threads(command: argparse.ArgumentParser) -> None:
    """Add the option for the number of threads of a command's calls."""
    command.add_argument(
        "--num-threads",
        type=int,
        metavar="N",
        help="number of threads (default: attnpy.get_num_threads())",
    )


def window_side(text: str) -> int | None:
    """Return one side of a window: a number, or None for "none"."""
    try:
        return None if text == "none" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected an integer or none, got {text!r}"
        ) from None


def sort_out(options: argparse.Namespace) -> None:
    """Tell the input from the value that --causal may have."""
    if options.causal not in (False, *ALIGNMENTS):
        if options.input is not None:
            raise InputError(
                f"--causal: expected {' or '.join(ALIGNMENTS)}, got {options.causal!r}"
            )
        options.input, options.causal = options.causal, ALIGNMENTS[0]
    if options.input is None:
        raise InputError("the following arguments are required: in.npz")


def run(options: argparse.Namespace) -> None:
    """Compute attention for the arrays in a file and write the results to another."""
    sort_out(options)
    if os.path.exists(options.output) and os.path.samefile(
        options.input, options.output
    ):
        raise InputError(
            f"--output: expected another file than the input, got {options.output!r}"
        )
    arrays = read_arrays(options.input)
    if options.q_offset is not None:
        if "q_offset" in arrays:
            raise InputError(f"--q-offset: {options.input} holds a q_offset as well")
        arrays["q_offset"] = np.asarray(options.q_offset)
    names = ["output"]
    names += ["weights"] * options.return_weights
    names += ["lse"] * options.return_lse
    named: dict[str, Any] = {}

    def write(file: BinaryIO) -> None:
        results = attnpy.attention(
            **arrays,
            causal=options.causal,
            window=None if options.window is None else tuple(options.window),
            scale=options.scale,
            softcap=options.softcap,
            dropout=options.dropout,
            dropout_seed=options.dropout_seed,
            return_weights=options.return_weights,
            return_lse=options.return_lse,
            num_threads=options.num_threads,
        )
        if len(names) == 1:
            results = (results,)
        named.update(zip(names, results, strict=True))
        np.savez(file, **named)

    write_whole(options.output, write)
    summary = ", ".join(f"{n} {a.dtype} {a.shape}" for n, a in named.items())
    print(f"{options.output}: {summary}")


def read_arrays(path: str) -> dict[str, Any]:
    """Return the arrays of an .npz file, after checking their names."""
    with open(path_at(path, "in.npz"), "rb") as file:
        try:
            content = np.load(file, allow_pickle=False)
        except Exception as error:  # a damaged file may raise anything
            raise InputError(f"{path}: expected an .npz file") from error
        if not isinstance(content, np.lib.npyio.NpzFile):
            raise InputError(f"{path}: expected an .npz file, got a single array")
        unknown = sorted(set(content.files).difference(REQUIRED, OPTIONAL))
        if unknown:
            raise InputError(
                f"{path}: unknown array {unknown[0]!r} (known: "
                f"{', '.join(REQUIRED + OPTIONAL)})"
            )
        missing = [name for name in REQUIRED if name not in content.files]
        if missing:
            raise InputError(f"{path}: no array named {', '.join(missing)}")
        return {name: read_array(content, path, name) for name in content.files}


def read_array(content: Any, path: str, name: str) -> NDArray[Any]:
    """Return one array of an .npz file."""
    try:
        array = content[name]
    except MemoryError:
        raise
    except Exception as error:  # a damaged file may raise anything
        raise InputError(f"{path}: cannot read {name}: {one_line(error)}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path}: {name} is not an array")
    return array


def show_example() -> None:
    """Print a worked example: five words, each number of which can be followed."""
    embeddings = np.array(EMBEDDINGS)  # (L, E)
    scores = embeddings @ embeddings.T  # (L, L)
    context, weights = attnpy.attention(
        embeddings, embeddings, embeddings, scale=1.0, return_weights=True
    )
    axes = [f"x{i}" for i in range(embeddings.shape[1])]
    print(f'"{" ".join(WORDS)}": every word attends to every word.\n')
    print_table("Embeddings X (made up)", axes, embeddings)
    print_table("Scores X @ X.T, by NumPy: attnpy never builds them", WORDS, scores)
    print_table("Attention weights, softmax of each row of scores", WORDS, weights)
    print_table("Context vectors, weights @ X", axes, context)
    j = int(weights[0].argmax())
    print(
        f'How to read it: "{WORDS[0]}" listens most to "{WORDS[j]}", with a weight of '
        f"{weights[0, j]:.2f}.\nThe weights of a row sum to 1, and its context vector "
        "is the mean of the embeddings\nwith these weights. All of it is one call:\n"
    )
    call = "context, weights = attnpy.attention(X, X, X, scale=1, return_weights=True)"
    print(f"    {call}\n")
    config = attnpy.show_config(mode="dicts")
    threads = "1 thread" if config["threads"] == 1 else f"{config['threads']} threads"
    print(
        f"attnpy {attnpy.__version__} works: instruction set {config['tier']}, "
        f"{threads}. What next:\n\n"
        "    notebooks/01_first_attention.ipynb    these numbers, step by step\n"
        f"    {PROGRAM} bench                how fast it is on this machine\n"
        f"    {PROGRAM} run --help           attention for the arrays in a file\n"
        f"    {PROGRAM} generate --help      text from a GGUF file\n"
        "    help(attnpy.attention)                in Python: every option"
    )


def print_table(
    title: str, columns: tuple[str, ...] | list[str], rows: NDArray[Any]
) -> None:
    """Print a matrix with one row for each word, to four decimals."""
    label_width = max(map(len, WORDS))
    width = max(7, *(len(column) + 2 for column in columns))
    print(title)
    print(" " * label_width + "".join(f"{column:>{width}}" for column in columns))
    for word, row in zip(WORDS, rows, strict=True):
        print(f"{word:<{label_width}}" + "".join(f"{x:{width}.4f}" for x in row))
    print()


if __name__ == "__main__":
    sys.exit(main())
