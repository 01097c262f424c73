"""What folders with matrices of codes that models keep as they are have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from attnpy._quantized import of_columns
from attnpy._quoting import named
from attnpy.checkpoints.files import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np

    from attnpy._quantized import QuantizedWeight
    from attnpy._typing import Array


class KeptCheckpoint(Checkpoint):
    """Arrays by their usual names, some of them matrices (M, K) of codes.

    A kind of folder sets what is below, and yields the blocks of a matrix.
    """

    _codes: Mapping[str, Any]  # by the names of matrices: where their parts are
    _options: Mapping[str, Any]  # of `of_columns`
    _called: str  # the codes, in errors: "integers"
    _kind: str  # of them: "4 bits"
    _not_finite: str  # scales that are refused: "NaN or infinity"

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Read some rows of an array of numbers; those of codes are refused."""
        if name in self._codes:
            raise ValueError(
                f"{named(name)}: expected numbers, as the model keeps no "
                f"{self._called} there, got {self._kind}"
            )
        return super().rows(name, start, stop)

    def keeps(self, name: str) -> bool:
        """Tell whether an array is a matrix of codes."""
        return name in self._codes

    def quantized(
        self,
        name: str,
        dtype: np.dtype[Any],
        *,
        start: int,
        stop: int,
        activations: Literal["float", "int8"],
    ) -> QuantizedWeight:
        """Return rows of a matrix (M, K) as columns of one for layers."""
        n_rows, rounds = self.describe(name)[0][1], activations == "int8"
        blocks = self._blocks(name, start, stop, n_rows)
        try:
            return of_columns(
                n_rows, stop - start, blocks, rounds, dtype, **self._options
            )
        except ValueError:  # the rest is as it must be
            raise ValueError(
                f"{named(name)}: expected scales that are finite, got "
                f"{self._not_finite}"
            ) from None

    def _blocks(
        self, name: str, start: int, stop: int, n_rows: int
    ) -> Iterator[dict[str, Array]]:
        """Yield codes and scales of some columns (K, n) after others."""
        raise NotImplementedError
