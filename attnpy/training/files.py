"""Files of training runs, which continue from them with the same bits."""

from __future__ import annotations

import itertools
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnpy import _checks, _keywords, _parameters
from attnpy.checkpoints import Checkpoint, writing
from attnpy.training import _generators
from attnpy.training import optimizer as optimizers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np

    from attnpy._typing import Array
    from attnpy.training.optimizer import AdamW

PREFIX = "optimizer."  # of the optimizer's arrays in a file


@_keywords.answering
def save(
    path: str | os.PathLike[str],
    parameters: Mapping[str, Array],
    optimizer: AdamW | None = None,
    *,
    step: int = 0,
    rng: np.random.Generator | None = None,
) -> None:
    """Write parameters, and what a run needs to continue, to a safetensors file.

    Parameters
    ----------
    path : str or path
        The file. An existing file is replaced when the new one is complete, and does
        not change after an error or Ctrl-C. Several threads may save to one path: the
        last one wins.
    parameters : mapping of str to ndarray
        `parameters()` of a layer or a model.
    optimizer : AdamW, optional
        Its `state_dict` is saved as well.
    step : int, optional
        How many steps were made; at least 0.
    rng : numpy.random.Generator, optional
        Its state is saved as well. It must use one of NumPy's own bit generators.

    Raises
    ------
    OSError
        If the file cannot be written.
    TypeError, ValueError
        If an argument has the wrong kind, or an array a dtype that the format lacks; if
        a name begins with "optimizer.".

    See Also
    --------
    load : reads it.

    Notes
    -----
    Parameters have their own names in the file, as `attnpy.checkpoints.read` finds
    them; the optimizer's arrays begin with "optimizer."; the step and the state of the
    generator (JSON) are the file's metadata.

    Until it is complete, the new file has a temporary name in the same folder,
    ``.attnpy-*.tmp``. Only a process that is killed leaves it there; it is harmless and
    may be deleted.
    """
    tensors = dict(_checks.mapping(parameters, "parameters"))
    if taken := [name for name in tensors if str(name).startswith(PREFIX)]:
        raise ValueError(
            f"parameters: expected no name that begins with {PREFIX!r}, got {taken[0]}"
        )
    if optimizer is not None:
        tensors |= _prefixed(optimizer)
    metadata = {"step": str(_checked_step(step))}
    if rng is not None:
        metadata["rng"] = _generators.to_text(rng)
    writing.write(path, tensors, metadata)


@_keywords.answering
def load(
    path: str | os.PathLike[str],
    parameters: Mapping[str, Array],
    optimizer: AdamW | None = None,
    *,
    rng: np.random.Generator | None = None,
) -> int:
    """Copy a file from `save` into parameters, optimizer and generator.

    Parameters
    ----------
    path : str or path
        The file.
    parameters : mapping of str to ndarray
        `parameters()` of a layer or a model like the one that was saved.
    optimizer : AdamW, optional
        An optimizer of the same parameters. By default the file's state of it is
        ignored.
    rng : numpy.random.Generator, optional
        Gets the saved generator's state. By default that state is ignored.

    Returns
    -------
    step : int
        How many steps had been made.

    Raises
    ------
    ImportError
        If the safetensors package is not installed.
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not a file from `save`, lacks the state of the optimizer or generator,
        or has arrays of other names or shapes; the message lists all of them.
    TypeError
        If an argument has the wrong kind, or an array of the file is not of numbers.

    See Also
    --------
    save : describes the file's format.

    Notes
    -----
    After an error or an interrupt (Ctrl-C) either nothing or everything is loaded. The
    file may come from anybody: its whole content is checked before it is used.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from attnpy import training
    >>> from attnpy.layers import SelfAttention
    >>> layer, rng = SelfAttention(6, 3), np.random.default_rng(0)
    >>> optimizer = training.AdamW(layer.parameters())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "run.safetensors")
    ...     training.save(path, layer.parameters(), optimizer, step=50, rng=rng)
    ...     training.load(path, layer.parameters(), optimizer, rng=rng)
    50
    """
    own = dict(_checks.mapping(parameters, "parameters"))
    if optimizer is not None:
        own |= _prefixed(optimizer)
    if rng is not None:
        _generators.check(rng)
    tensors = Checkpoint(path)
    with _about(path):
        step, state = _judged(tensors.metadata, rng)
        names = [
            name
            for name in tensors
            if optimizer is not None or not name.startswith(PREFIX)
        ]
        # Shapes first: then no more is read than fits into the parameters.
        shapes = {name: tensors.describe(name)[0] for name in names}
        _parameters.check_shapes(own, shapes)
        given = {name: tensors[name] for name in names}
        optimizers.check_step(given.get(f"{PREFIX}step", 0))
        new = _parameters.converted(own, given)
    setting = [] if rng is None else [(rng.bit_generator, "state", state)]
    _parameters.put(own, new, setting)
    return step


def _prefixed(optimizer: AdamW) -> dict[str, Array]:
    if not isinstance(optimizer, optimizers.AdamW):
        kind = type(optimizer).__name__
        raise TypeError(f"optimizer: expected an AdamW, got {kind}")
    return {PREFIX + name: array for name, array in optimizer.state_dict().items()}


@contextmanager
def _about(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file in the errors of the checks of its contents."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        text = str(error).removeprefix("state: ")
        raise kind(f"{os.fspath(path)}: {text}") from error


def _checked_step(step: int) -> int:
    """Return a number of steps, which the optimizer must have, too."""
    number = _checks.size(step, "step")
    if number > _checks.LARGEST_POSITION:
        raise ValueError(
            f"step: expected at most {_checks.LARGEST_POSITION}, got a larger one"
        )
    return number


def _judged(
    metadata: Mapping[str, str], rng: np.random.Generator | None
) -> tuple[int, dict[str, Any] | None]:
    """Return the step of a file, and the state for a generator of this kind."""
    wanted = "a step" if rng is None else "a step and the state of a generator"
    step = metadata.get("step", "")
    if (
        re.fullmatch("[0-9]{1,16}", step) is None
        or int(step) > _checks.LARGEST_POSITION
        or (rng is not None and "rng" not in metadata)
    ):
        some = itertools.islice(metadata.items(), 3)
        got = {name[:20]: text[:40] for name, text in some}
        raise ValueError(
            f"expected a file of attnpy.training.save with {wanted}, got metadata "
            f"{got!r:.80}"
        )
    if rng is None:
        return int(step), None
    return int(step), _generators.from_text(metadata["rng"], rng)
