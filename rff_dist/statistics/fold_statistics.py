"""The statistics of each fold, summed separately in one pass over the rows.

The sums of each fold go in; the sums of any set of folds come out. Statistics add and
subtract exactly. So in every split of a cross-validation, the sums of the training rows
are the sums of all rows minus the held-out fold's: k folds cost one pass instead of k.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.data import folding
from rff_dist.errors import StatisticsError
from rff_dist.features import maps
from rff_dist.numerics import exact_sums
from rff_dist.statistics import reading, ridge_statistics, specs
from rff_dist.typing import frozen

type FoldSum = ridge_statistics.RidgeStatistics | None  # None for a fold without rows
type FoldSums = tuple[FoldSum, ...]
type MapSums = tuple[FoldSums, ...]  # of several feature maps


@frozen
class FoldStatistics:
    """Exact statistics of each fold of some rows."""

    folds: folding.Folds
    #: The sums of each fold; None for a fold without rows, so that a block of
    #: contiguous folds takes memory for its own folds only.
    parts: FoldSums

    @property
    def n_samples(self) -> int:
        return sum(part.n_samples for part in self.parts if part is not None)

    def fold(self, index: int) -> ridge_statistics.RidgeStatistics:
        """Return the statistics of one fold; StatisticsError if it has no rows."""
        part = self.parts[index]
        if part is None:
            n_filled = sum(other is not None for other in self.parts)
            raise StatisticsError(
                f"fold {index} of {self.folds} has no rows ({n_filled} of"
                f" {len(self.parts)} folds have any); use fewer folds, or more groups"
            )
        return part

    @property
    def splits(self) -> list[tuple[tuple[int, ...], int]]:
        """The splits of `folds`, without those whose validation rows all have weight 0.

        Raises StatisticsError if a held-out fold has no rows, or no split remains.
        """
        splits = [split for split in self.folds.splits if self._validates(split[1])]
        if not splits:
            raise StatisticsError(
                f"no row held out by {self.folds} has a weight above 0; use fewer folds"
            )
        return splits

    def _validates(self, held_out: int) -> bool:
        if self.parts[held_out] is None and self.folds.may_lack_rows:
            return False
        return self.fold(held_out).n_observations > 0

    def total(self) -> ridge_statistics.RidgeStatistics:
        """Return the statistics of all rows; StatisticsError if there are none."""
        return self.sum(range(len(self.parts)))

    def sum(self, indices: Sequence[int]) -> ridge_statistics.RidgeStatistics:
        """Return the statistics of several folds; StatisticsError if all are empty."""
        total = reduce(plus, (self.parts[index] for index in indices))
        # `fold` raises the error
        return self.fold(indices[0]) if total is None else total

    @property
    def targets(self) -> exact_sums.ExactSum:
        """Sums and squares of the targets of all rows; see `RidgeStatistics`."""
        sums = (part.targets for part in self.parts if part is not None)
        return reduce(operator.add, sums)

    def leading(self, feature_map: maps.FeatureMap) -> Self:
        """Return the statistics of the leading components; see
        `RidgeStatistics.leading`.
        """
        return self._with_each(lambda part: part.leading(feature_map))

    def check_complete(self, n_samples: int, feature_map: maps.FeatureMap) -> None:
        """Raise StatisticsError unless every row was counted once."""
        specs.check_counted(self.n_samples, n_samples)
        for part in self.parts:
            if part is not None:
                part.check_complete(part.n_samples, feature_map)

    def with_whitener(self, whitener: NDArray[np.float64] | None) -> Self:
        """Return the same sums, to be read with a feature map's `whitener`."""
        shared = None if whitener is None else reading.Whitener(whitener)
        return self._with_each(lambda part: part.with_whitener(shared))

    def _with_each(
        self,
        change: Callable[
            [ridge_statistics.RidgeStatistics], ridge_statistics.RidgeStatistics
        ],
    ) -> Self:
        parts = [None if part is None else change(part) for part in self.parts]
        return replace(self, parts=tuple(parts))


def plus(left: FoldSum, right: FoldSum) -> FoldSum:
    """Add the sums of two sets of rows of one fold."""
    if left is None or right is None:
        return right if left is None else left
    return left + right
