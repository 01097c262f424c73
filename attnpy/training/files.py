"""A training run in a file, from which it goes on with the same bits."""

from __future__ import annotations

import itertools
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnpy import _checks, _parameters
from attnpy.checkpoints import Checkpoint, writing
from attnpy.training import _generators
from attnpy.training import optimizer as optimizers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np

    from attnpy._typing import Array
    from attnpy.training.optimizer import AdamW

PREFIX = "optimizer."  # of the optimizer's arrays in a file


def save(
    path: str | os.PathLike[str],
    parameters: Mapping[str, Array],
    optimizer: AdamW | None = None,
    *,
    step: int = 0,
    rng: np.random.Generator | None = None,
) -> None:
    """Write parameters, and what a run needs to go on, into a safetensors file.

    Parameters
    ----------
    path : str or path
        The file. One that is there is replaced when the new one is complete, and stays
        as it is after an error or Ctrl-C. Several threads may save to one path: the
        last one counts.
    parameters : mapping of str to ndarray
        `parameters()` of a layer or a model.
    optimizer : AdamW, optional
        Its `state_dict` is saved as well.
    step : int, optional
        How many steps have been made; at least 0.
    rng : numpy.random.Generator, optional
        Its state is saved as well. It draws from one of NumPy's own bit generators.

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

    Until it is complete the new file has a name of its own in the same folder,
    ``.attnpy-*.tmp``. Only a process that is killed leaves it there; it is in nobody's
    way and may be deleted.
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


def load(
    path: str | os.PathLike[str],
    parameters: Mapping[str, Array],
    optimizer: AdamW | None = None,
    *,
    rng: np.random.Generator | None = None,
) -> int:
    """Copy what `save` has written into parameters, optimizer and generator.

    Parameters
    ----------
    path : str or path
        The file.
    parameters : mapping of str to ndarray
        `parameters()` of a layer or a model like the one that was saved.
    optimizer : AdamW, optional
        One of the same parameters. Without it the file's is left alone.
    rng : numpy.random.Generator, optional
        Gets the state of the one that was saved. Without it that is left alone.

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
        If it is not one that `save` has written, lacks what is asked for, or has arrays
        of other names or shapes; the message has all of them.
    TypeError
        If an argument has the wrong kind, or an array of the file is not of numbers.

    See Also
    --------
    save : has the file's format.

    Notes
    -----
    After an error or an interrupt (Ctrl-C) either nothing has changed or all of it is
    loaded. The file may come from anybody: all that it holds is checked before it is
    used.

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
        # Shapes first: what is read then is no larger than what there is.
        shapes = {name: tensors.describe(name)[0] for name in names}
        _parameters.check_shapes(own, shapes)
        given = {name: tensors[name] for name in names}
        optimizers.check_step(given.get(f"{PREFIX}step", 0))
        new = _parameters.converted(own, given)
    setting = [] if rng is None else [(rng.bit_generator, "state", state)]
    _parameters.put(own, new, setting)
    return step


def _prefixed(optimizer: AdamW) -> dict[str, Array]:
    return {PREFIX + name: array for name, array in optimizer.state_dict().items()}


@contextmanager
def _about(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say which file is wrong, in the errors of what judges its contents."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        text = str(error).removeprefix("state: ")
        raise kind(f"{os.fspath(path)}: {text}") from error


def _checked_step(step: int) -> int:
    """Return a number of steps, one that the optimizer counts as well."""
    number = _checks.size(step, "step")
    if number > _checks.LARGEST_POSITION:
        raise ValueError(
            f"step: expected at most {_checks.LARGEST_POSITION}, got a larger one"
        )
    return number


def _judged(
    metadata: Mapping[str, str], rng: np.random.Generator | None
) -> tuple[int, dict[str, Any] | None]:
    """Return the step of a file, and the state that a generator like this one had."""
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
