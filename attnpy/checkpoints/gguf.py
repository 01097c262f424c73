"""Arrays in a GGUF file, each read when it is asked for, and its metadata."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnpy import _checks, _parameters, _pickles, _repr
from attnpy._files import path_at
from attnpy._quoting import named
from attnpy.checkpoints import (
    gguf_blocks,
    gguf_chat,
    gguf_header,
    gguf_tokenizer,
    reading,
)
from attnpy.checkpoints.gguf_header import Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from attnpy._quantized import QuantizedWeight
    from attnpy._typing import Array

# The forms of numbers that are read.
TYPES = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"),
)
MISSING = (
    "attnpy.checkpoints: reading GGUF files needs the gguf package: pip install "
    "'attnpy[gguf]'"
)


class GgufFile(Mapping[str, "Array"]):
    """The arrays of a GGUF file by name, each read when it is asked for.

    Parameters
    ----------
    path : str or path
        The file, which has to be a whole one: one that is split is refused by
        `attnpy.models.CausalDecoder.from_gguf`.

    Attributes
    ----------
    path : str
        As given.
    metadata : dict of str to object
        What the file says beside its arrays: numbers, texts, lists of texts, and
        arrays of numbers.

    Raises
    ------
    ImportError
        If the gguf package is not installed.
    TypeError
        If `path` is something else.
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is not in the format, or not complete; if an array that is asked for
        is of a type that is not read. The types are F32, F16, BF16, Q8_0, Q4_0, Q4_1,
        Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS and MXFP4.

    See Also
    --------
    attnpy.models.CausalDecoder.from_gguf : makes a model of it.

    Notes
    -----
    Arrays are float32, the numbers that ``gguf.dequantize`` gives, bit for bit. Nothing
    large is allocated before all that the file says of its arrays is found right.

    Examples
    --------
    >>> import os, tempfile
    >>> import gguf
    >>> import numpy as np
    >>> from attnpy import checkpoints
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.gguf")
    ...     writer = gguf.GGUFWriter(path, "llama")
    ...     writer.add_tensor("output_norm.weight", np.ones(3, np.float32))
    ...     writer.write_header_to_file()
    ...     writer.write_kv_data_to_file()
    ...     writer.write_tensors_to_file()
    ...     writer.close()
    ...     file = checkpoints.load_gguf(path)
    ...     file.metadata, file["output_norm.weight"]
    ({'general.architecture': 'llama'}, array([1., 1., 1.], dtype=float32))
    """

    metadata: dict[str, Any]
    path: str
    _places: dict[str, Place]

    if not TYPE_CHECKING:
        __setattr__ = _parameters.set_attribute
        __setstate__ = _pickles.set_state

    def _shown(self) -> dict[str, Any]:
        places = self._places.values()
        return {
            "architecture": self.metadata.get("general.architecture"),
            "arrays": len(places),
            "types": _repr.Plain(
                " and ".join(dict.fromkeys(place.type_name for place in places))
            ),
            "numbers": _repr.Plain(
                f"{sum(math.prod(place.shape) for place in places):_}"
            ),
        }

    __repr__ = _repr.shows(_shown)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path_at(path, "file")
        file = reading.opened(path)  # what is not there needs no package
        try:
            import gguf  # noqa: F401
        except ImportError as error:
            raise ImportError(MISSING) from error
        if sys.byteorder != "little":
            raise ValueError(
                f"{named(path)}: expected a machine that is little-endian, as GGUF "
                "files are, got one that is not"
            )
        self.path = str(path)
        self.metadata, self._places = gguf_header.read(file, path)

    def __getitem__(self, name: str) -> Array:
        """Read an array into memory."""
        shape = self._places[name].shape
        return self.rows(name, 0, shape[0]).reshape(shape)

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Read some rows of an array into memory, and no more than these.

        Parameters
        ----------
        name : str
        start, stop : int
            The rows, ``0 <= start <= stop <= shape[0]``.

        Returns
        -------
        ndarray of float32, shape (stop - start, ...)

        Raises
        ------
        KeyError, ValueError
            As when the whole array is asked for; if there are no such rows.
        """
        from gguf import GGMLQuantizationType, dequantize

        place = self._places[name]
        if place.type_name not in TYPES:
            raise ValueError(
                f"{named(name)}: expected an array of one of the types "
                f"{', '.join(TYPES)}, got {place.type_name}"
            )
        if not 0 <= start <= stop <= place.shape[0]:
            raise ValueError(
                f"{named(name)}: expected rows of {place.shape[0]}, got {start} to "
                f"{stop}"
            )
        kind, order = GGMLQuantizationType[place.type_name], None
        if place.head_dim:
            order = _in_file(np.arange(start, stop), place.head_dim)
            start, stop = int(order.min(initial=0)), int(order.max(initial=-1)) + 1
        with np.errstate(all="ignore"):  # scales may be anything
            if len(place.shape) == 1:
                found = dequantize(self._blocks(name, 0, 1), kind)[0, start:stop]
            else:
                found = dequantize(self._blocks(name, start, stop), kind)
        values: Array = found.reshape(stop - start, *place.shape[1:])
        return values if order is None else values[order - start]

    def quantized(
        self,
        name: str,
        *,
        start: int = 0,
        stop: int | None = None,
        activations: Literal["float", "int8"] = "float",
    ) -> QuantizedWeight:
        """Read a matrix into memory, and keep its integers as they are in the file.

        Parameters
        ----------
        name : str
            Of an array (M, K) of a type of integers: one of those that `GgufFile` lists
            but F32, F16 and BF16. Codes of Q3_K and Q2_K become codes of 4 bits.
        start, stop : int, optional
            Only these of the M rows, ``0 <= start <= stop <= M``: one matrix of several
            that the file has one below the other.
        activations : {"float", "int8"}, optional
            As in `attnpy.quantize`.

        Returns
        -------
        attnpy.QuantizedWeight
            The transpose, (K, M), which layers take. Its `dequantize` gives the numbers
            of ``self[name].T``, bit for bit. With `start` and `stop` it is (K, stop -
            start), of ``self[name][start:stop]``.

        Raises
        ------
        KeyError
            If there is no such name.
        ValueError
            If it is not a matrix of integers, has no such rows, or its scales are not
            finite.
        """
        from attnpy._quantized import of_columns
        from attnpy._quantized_parts import ACTIVATIONS

        rounds = _checks.one_of(activations, "activations", ACTIVATIONS) == "int8"
        place = self._places[name]
        if place.type_name not in gguf_blocks.FORMS or len(place.shape) != 2:
            raise ValueError(
                f"{named(name)}: expected a matrix of one of the types "
                f"{', '.join(gguf_blocks.FORMS)}, got {place.type_name} of shape "
                f"{place.shape}"
            )
        form = gguf_blocks.FORMS[place.type_name]
        n, n_inner = place.shape
        first = _checks.size(start, "start")
        last = n if stop is None else _checks.size(stop, "stop")
        if not first <= last <= n:
            raise ValueError(
                f"{named(name)}: expected rows of {n}, got {start} to {stop}"
            )
        some = self._some_rows(name, first, last)
        blocks = (gguf_blocks.arrays(form, rows) for rows in some)
        try:
            return of_columns(n_inner, last - first, blocks, rounds, **form.options)
        except ValueError:  # the rest is as it must be
            raise ValueError(
                f"{named(name)}: expected blocks whose scales are finite, got NaN or "
                "infinity"
            ) from None

    def _blocks(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the bytes of rows along the first axis, (n, bytes of a last row)."""
        place = self._places[name]
        n_inner = math.prod(place.shape[1:-1])
        blocks = np.empty(((stop - start) * n_inner, place.row_bytes), np.uint8)
        at = place.begin + start * n_inner * place.row_bytes
        reading.fill(place.file, at, blocks.reshape(-1).data, name)
        return blocks

    def _some_rows(
        self, name: str, start: int, stop: int
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of rows, some at a time, in the order that they have here."""
        from attnpy._code_layout import column_blocks

        place = self._places[name]
        n, n_inner = place.shape
        whole = None
        if place.head_dim:
            whole = self._blocks(name, 0, n)[_in_file(np.arange(n), place.head_dim)]
        for rows in column_blocks(n_inner, stop - start):
            first, last = start + rows.start, start + rows.stop
            if whole is None:
                yield self._blocks(name, first, last)
            else:
                yield whole[first:last]

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        return iter(self._places)

    def __contains__(self, name: object) -> bool:
        """Whether there is such a name; the array is not read."""
        return name in self._places

    def __len__(self) -> int:
        """Count the names."""
        return len(self._places)

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Return an array's shape and the name of its dtype, without reading it.

        Parameters
        ----------
        name : str

        Returns
        -------
        shape : tuple of int
        dtype : str
            "float32", or the name of the type where it is not read.

        Raises
        ------
        KeyError
            If there is no such name.
        """
        place = self._places[name]
        is_read = place.type_name in TYPES
        return place.shape, "float32" if is_read else place.type_name

    def type_of(self, name: str) -> str:
        """Return what ggml calls the form of an array's numbers, such as "Q4_K".

        Parameters
        ----------
        name : str

        Returns
        -------
        str

        Raises
        ------
        KeyError
            If there is no such name.
        """
        return self._places[name].type_name

    def split_halves(self, head_dims: Mapping[str, int]) -> GgufFile:
        """Return the same file with the rows of some matrices in another order.

        llama.cpp turns neighbouring numbers of a head by its position, and so has the
        rows of Llama's queries and keys in an order of its own: 0, half, 1, half + 1,
        and so on. This gives them back the order in which Hugging Face has them.

        Parameters
        ----------
        head_dims : mapping of str to int
            The names of the matrices and vectors, and the size of a head, even.

        Returns
        -------
        GgufFile

        Raises
        ------
        KeyError
            If there is no array of a name.
        TypeError, ValueError
            If a size is not an even number, or the rows are not those of whole heads.
        """
        for name, size in head_dims.items():
            n_rows, head_dim = self._places[name].shape[0], _checks.count(size, name)
            if head_dim % 2 or n_rows % head_dim:
                raise ValueError(
                    f"{named(self.path)}: expected an even size of heads that divides "
                    f"the {n_rows} rows of {named(name)}, got {head_dim}"
                )
        other = object.__new__(GgufFile)
        other.metadata, other.path = self.metadata, self.path
        other._places = {
            name: Place(*place[:-1], head_dims.get(name, 0))
            for name, place in self._places.items()
        }
        return other

    # ---- Text ------------------------------------------------------------------------

    @property
    def stop(self) -> tuple[int, ...]:
        """The tokens that end a text: by their numbers in the file, and their names."""
        return gguf_tokenizer.stop(self.metadata, self.path)

    def tokenizer(self) -> Any:
        """Make the tokenizer of the file.

        Returns
        -------
        tokenizers.Tokenizer
            Its ``encode`` adds the token that begins a text, where the file says so;
            with ``add_special_tokens=False`` it does not.

        Raises
        ------
        ImportError
            If the tokenizers package is not installed.
        ValueError
            If the file has none, or one of a kind that is not known: known are "gpt2",
            with the ways to cut a text that "gpt-2", "smollm", "llama-bpe", "qwen2",
            "tekken", "gpt-4o" and their kin name, "llama", "bert" and "t5".
        """
        return gguf_tokenizer.make(self.metadata, self.path)

    @property
    def chat_template(self) -> str | None:
        """The Jinja template of conversations, or None."""
        return gguf_chat.template(self.metadata, self.path)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Write a conversation as the model was trained to read it.

        Parameters
        ----------
        messages : sequence of mapping
            Each with a ``"role"``, such as "system", "user" or "assistant", and a
            ``"content"``.
        add_generation_prompt : bool, optional
            End with what comes before an answer.

        Returns
        -------
        str
            Its tokens are those of ``encode(text, add_special_tokens=False)``.

        Raises
        ------
        ImportError
            If the jinja2 package is not installed.
        ValueError
            If the file has no template, or it cannot be used, or refuses the messages.

        Notes
        -----
        The template is a program in the file, run in Jinja's sandbox: it reaches
        nothing but the messages, but nothing bounds its time and memory.
        """
        return gguf_chat.render(
            self.metadata, self.path, messages, add_generation_prompt
        )


def load_gguf(file: str | os.PathLike[str]) -> GgufFile:
    """Open a GGUF file: its metadata, its arrays, its tokenizer.

    Parameters
    ----------
    file : str or path

    Returns
    -------
    GgufFile
        A mapping of names to arrays in float32.

    Raises
    ------
    ImportError, FileNotFoundError, ValueError
        As `GgufFile`.

    See Also
    --------
    attnpy.models.CausalDecoder.from_gguf : makes a model of it.

    Examples
    --------
    >>> from attnpy import checkpoints
    >>> file = checkpoints.load_gguf("model.gguf")  # doctest: +SKIP
    >>> file.metadata["general.architecture"]  # doctest: +SKIP
    'llama'
    >>> file.tokenizer().encode("Hello, world!").ids  # doctest: +SKIP
    [19556, 28, 905, 17]
    """
    return GgufFile(file)


def unstacked(file: GgufFile, names: Collection[str]) -> GgufFile:
    """Return the same file, but each of these arrays (N, ...) as N with numbers."""
    other = object.__new__(GgufFile)
    vars(other).update(vars(file))
    other._places = {}
    for name, place in file._places.items():
        if name not in names:
            other._places[name] = place
            continue
        step = math.prod(place.shape[1:-1]) * place.row_bytes
        for i in range(place.shape[0]):
            begin, shape = place.begin + i * step, place.shape[1:]
            other._places[f"{name}.{i}"] = place._replace(begin=begin, shape=shape)
    return other


def _in_file(rows: NDArray[np.int64], head_dim: int) -> NDArray[np.int64]:
    """Return where in a file the rows are that `split_halves` gives."""
    head, i = np.divmod(rows, head_dim)
    second, pair = np.divmod(i, head_dim // 2)
    order: NDArray[np.int64] = head * head_dim + 2 * pair + second
    return order
