"""Arrays with a row for each row of the data, joined from the arrays of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.data.blocks import Block


@dataclass(frozen=True, slots=True, eq=False)
class RowParts:
    """The arrays of some blocks; `+` joins two sets of blocks, in any order.

    `parts`: arrays of shape (block.n_samples, ...), by the block's first row.
    """

    parts: Mapping[int, NDArray[Any]]

    @classmethod
    def of(cls, block: Block, array: NDArray[Any]) -> Self:
        """Return the array of one block."""
        return cls({block.start: array})

    def __add__(self, other: RowParts) -> RowParts:
        return RowParts({**self.parts, **other.parts})

    def joined(self) -> NDArray[Any]:
        """Return all rows as one array, in the order of the data."""
        return np.concatenate([self.parts[start] for start in sorted(self.parts)])
