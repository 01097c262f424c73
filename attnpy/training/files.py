"""A training run in a file, from which it goes on with the same bits."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from attnpy import _checks, _parameters
from attnpy._files import replacing
from attnpy.checkpoints import Checkpoint
from attnpy.training import optimizer as optimizers

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        as it is after an error or Ctrl-C.
    parameters : mapping of str to ndarray
        `parameters()` of a layer or a model.
    optimizer : AdamW, optional
        Its `state_dict` is saved as well.
    step : int, optional
        How many steps have been made; at least 0.
    rng : numpy.random.Generator, optional
        Its state is saved as well.

    Raises
    ------
    ImportError
        If the safetensors package is not installed.
    OSError
        If the file cannot be written.
    TypeError, ValueError
        If an argument has the wrong kind; if a name begins with "optimizer.".

    See Also
    --------
    load : reads it.

    Notes
    -----
    Parameters have their own names in the file, as `attnpy.checkpoints.read` finds
    them; the optimizer's arrays begin with "optimizer."; the step and the state of the
    generator (JSON) are the file's metadata.
    """
    tensors = dict(_checks.mapping(parameters, "parameters"))
    if taken := [name for name in tensors if name.startswith(PREFIX)]:
        raise ValueError(
            f"parameters: expected no name that begins with {PREFIX!r}, got {taken[0]}"
        )
    if optimizer is not None:
        tensors |= _prefixed(optimizer)
    metadata = {"step": str(_checks.size(step, "step"))}
    if rng is not None:
        state = _checks.generator(rng).bit_generator.state
        metadata["rng"] = json.dumps(state, default=_jsonable)
    _write(path, tensors, metadata)


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
        of other names or shapes; the message has all of them. Nothing has changed then.

    See Also
    --------
    save : has the file's format.

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
    tensors = Checkpoint(path)
    step, state = _judged(path, tensors.metadata, rng)
    own = dict(_checks.mapping(parameters, "parameters"))
    names = [name for name in tensors if not name.startswith(PREFIX)]
    if optimizer is not None:
        own |= _prefixed(optimizer)
        names = list(tensors)
    given = {name: tensors[name] for name in names}
    with _checks.renamed(state=os.fspath(path)):
        optimizers.check_step(given.get(f"{PREFIX}step", 0))
        _parameters.assign(own, given)
    if rng is not None:
        rng.bit_generator.state = state
    return step


def _prefixed(optimizer: AdamW) -> dict[str, Array]:
    return {PREFIX + name: array for name, array in optimizer.state_dict().items()}


def _jsonable(value: Any) -> Any:
    """Return what JSON has in place of an array or a number of NumPy."""
    return value.tolist()


def _write(
    path: str | os.PathLike[str], tensors: dict[str, Array], metadata: dict[str, str]
) -> None:
    """Write a file, whole or not at all."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    except ImportError as error:
        raise ImportError(
            "attnpy.training: writing safetensors files needs the safetensors package: "
            "pip install 'attnpy[weights]'"
        ) from error
    rows = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    with replacing(path) as file:
        try:
            save_file(rows, file.name, metadata)
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error), os.fspath(path)) from error


def _judged(
    path: str | os.PathLike[str],
    metadata: Mapping[str, str],
    rng: np.random.Generator | None,
) -> tuple[int, Any]:
    """Return the step of a file, and the state that a generator like this one had."""
    state: Any
    try:
        step = int(metadata["step"])
        state = json.loads(metadata["rng"]) if rng is not None else None
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{path}: expected a file of attnpy.training.save with "
            f"{'a step' if rng is None else 'a step and the state of a generator'}, "
            f"got metadata {dict(metadata)!r:.80}"
        ) from error
    if rng is not None:
        kind = type(_checks.generator(rng).bit_generator)
        try:
            kind().state = state
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(
                f"{path}: expected the state of a {kind.__name__}, as rng is, got "
                f"{state!r:.80}"
            ) from error
    return step, state
