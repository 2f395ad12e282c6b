"""Seeded samples of a dataset's rows, and of its folds.

Length scales and kernels are chosen on a few thousand rows in memory. Rows without
weight are never among them, and of large data only some chunks are read.
"""

from __future__ import annotations  # an evaluated annotation would load numpy.random

import numpy as np
from numpy.typing import NDArray

from rff_dist.data import blocks, folding
from rff_dist.errors import DataError, NotFiniteError
from rff_dist.typing import AnyArray, FloatArray, IndexArray, frozen

# rows of the seeded sample whose distances give the median heuristic
HEURISTIC_ROWS = 1000
# rows among which rows with weight are looked for, however few are wanted
LEAST_SEARCHED = 2**16
# chunks that a larger sample is read from, if single rows would touch more
SAMPLED_CHUNKS = 256


def sample_inputs(
    dataset: blocks.Dataset, seed: int, *, n_rows: int = HEURISTIC_ROWS
) -> AnyArray:
    """Return the X of `sample_rows`."""
    return sample_rows(dataset, seed, n_rows=n_rows)[0]


def sample_rows(dataset: blocks.Dataset, seed: int, *, n_rows: int) -> blocks.Sample:
    """Return X, y and weights of up to `n_rows` rows that have weight.

    They are drawn without replacement and keep the data's order. In a dataset of up to
    `n_rows` rows, rows without weight change nothing. Of a larger one, up to 64 ·
    n_rows rows (at least 65,536) are read to find those with weight; if none of these
    has any, the weights of all rows are read, and the first ones count.

    Raises DataError if no row has weight, or a sampled row holds NaN or infinity.
    """
    rng = np.random.Generator(np.random.Philox(seed))
    n_drawn = min(n_rows, dataset.n_samples)
    most = min(dataset.n_samples, max(64 * n_rows, LEAST_SEARCHED))
    while True:
        indices = sample_indices(dataset, rng, n_drawn)
        sample, y, weights = dataset.take(indices)
        weighted_rows = (
            np.arange(len(sample)) if weights is None else np.flatnonzero(weights > 0)
        )
        if len(weighted_rows) >= n_rows or n_drawn >= most:
            break
        # too few of these have weight; drawn again, all of them, so that rows of one
        # draw are equally likely
        n_drawn = min(dataset.n_samples, 4 * n_drawn)
    if not len(weighted_rows):
        indices = _first_with_weight(dataset, n_rows)
        sample, y, weights = dataset.take(indices)
        weighted_rows = np.arange(len(indices))
    if len(weighted_rows) > n_rows:
        # at random: the first ones would leave out the end of the data
        weighted_rows = np.sort(rng.choice(weighted_rows, n_rows, replace=False))
    sample = sample[weighted_rows]
    y, weights = (
        None if part is None else part[weighted_rows] for part in (y, weights)
    )
    _check_sampled(indices[weighted_rows], sample, y)
    return blocks.Sample(sample, y, weights)


def _first_with_weight(dataset: blocks.Dataset, n_rows: int) -> IndexArray:
    """Return the numbers of the first rows with weight; raise DataError without any."""
    found: list[IndexArray] = []
    for block in blocks.cut_blocks(
        dataset.n_samples, dataset.chunk_rows, rows_per_block=LEAST_SEARCHED
    ):
        weights = dataset.read_weight(block)
        assert weights is not None  # else every row has weight
        found.append(block.start + np.flatnonzero(weights > 0))
        if sum(map(len, found)) >= n_rows:
            break
    rows = np.concatenate(found)[:n_rows]
    if not len(rows):
        raise DataError(
            f"none of {dataset.n_samples:_} rows has a weight above 0; give rows with"
            " weight"
        )
    return rows


def _check_sampled(indices: AnyArray, X: AnyArray, y: FloatArray | None) -> None:
    for name, values in (("X", X), ("y", y)):
        finite = (
            np.ones(1)
            if values is None
            else np.isfinite(values).reshape(len(values), -1).all(axis=1)
        )
        if not finite.all():
            row = indices[np.argmin(finite)]
            raise NotFiniteError(
                f"Input {name} contains NaN or infinity: row {row:_}; fill or drop such"
                " rows"
            )


def sample_indices(
    dataset: blocks.Dataset, rng: np.random.Generator, n_rows: int
) -> IndexArray:
    """Return distinct row numbers, ascending.

    For many rows of many chunks, some chunks are drawn first.
    """
    n_chunks = -(-dataset.n_samples // dataset.chunk_rows)
    # chunks with at least twice as many rows as are drawn, so that no chunk enters the
    # sample whole
    wanted = max(SAMPLED_CHUNKS, -(-2 * n_rows // dataset.chunk_rows))
    if n_rows <= HEURISTIC_ROWS or n_chunks <= wanted:
        return np.sort(rng.choice(dataset.n_samples, n_rows, replace=False))
    starts = np.sort(rng.choice(n_chunks, wanted, replace=False)) * dataset.chunk_rows
    rows = (starts[:, np.newaxis] + np.arange(dataset.chunk_rows)).ravel()
    rows = rows[rows < dataset.n_samples]
    return np.sort(rng.choice(rows, min(n_rows, len(rows)), replace=False))


@frozen(eq=False)
class FoldSample:
    """Sampled rows that have weight, and the fold of each."""

    folds: folding.Folds
    #: Shape (n_sampled,).
    fold_of_row: NDArray[np.int64]
    #: Array of shape (n_sampled, n_features).
    X: AnyArray
    #: Shape (n_sampled, n_targets).
    y: FloatArray
    #: Shape (n_sampled,).
    weights: FloatArray | None
    #: The rows' numbers in the dataset; shape (n_sampled,).
    indices: NDArray[np.int64]

    def held_in(self, n_rows: int) -> tuple[AnyArray, FloatArray, FloatArray | None]:
        """Return X, y and weights of up to `n_rows` rows that are held in.

        Raises DataError if none has a weight.
        """
        assert isinstance(self.folds, folding.HeldInFolds)
        rows = np.flatnonzero(self.folds.is_held_in(self.fold_of_row))
        # spread evenly over all stretches
        rows = rows[:: max(1, -(-len(rows) // n_rows))]
        if not len(rows):
            raise DataError(
                "none of the sampled rows that are held in to tune length scales has a"
                " weight above 0; give rows with weight, or a `length_scale`"
            )
        return (
            self.X[rows],
            self.y[rows],
            None if self.weights is None else self.weights[rows],
        )


def sample_folds(
    dataset: blocks.Dataset, folds: folding.Folds, *, n_rows: int
) -> FoldSample:
    """Return about `n_rows` rows with weight and their folds, or all of fewer.

    Rows are spread evenly, and those that the folds hold in are among them. Raises
    DataError if a sampled value is NaN or infinite, too few rows have weight, or the
    folds need groups and there are none.
    """
    n_samples = dataset.n_samples
    whole = n_samples <= folding.MANY_ROWS
    if n_samples <= n_rows:
        starts = np.zeros(1, np.int64)
        width = n_samples
    elif isinstance(folds, folding.HeldInFolds) and folds.n_stretches:
        starts = folds.stretch_starts(np.arange(folds.n_stretches))
        width = max(folds.width, n_rows // folds.n_stretches)
    else:
        n_stretches = n_rows if whole else folding.STRETCHES
        starts = np.arange(n_stretches) * n_samples // n_stretches
        width = n_rows // n_stretches
    indices = np.unique(
        np.minimum(starts[:, np.newaxis] + np.arange(width), n_samples - 1)
    )
    # groups are read once for each stretch of consecutive rows; of few rows, once for
    # all
    places = np.arange(len(indices))
    runs = (
        [places]
        if whole
        else np.split(places, np.flatnonzero(np.diff(indices) > 1) + 1)
    )
    fold_of_row = np.empty(len(indices), np.int64)
    for run in runs:
        first = int(indices[run[0]])
        stop = int(indices[run[-1]]) + 1
        groups = dataset.read_groups(blocks.Block(0, first, stop))
        assigned = folds.assign(first, stop, n_samples=n_samples, groups=groups)
        fold_of_row[run] = assigned[indices[run] - first]
    X, y, weights = dataset.take(indices)
    assert y is not None  # folds are of rows with targets
    weighted_rows = (
        np.arange(len(X)) if weights is None else np.flatnonzero(weights > 0)
    )
    if len(weighted_rows) < min(len(X), folds.n_folds):
        raise DataError(
            f"{len(weighted_rows)} of {len(X):_} sampled rows have a weight above 0,"
            f" too few for {folds.n_folds} folds; leave rows without weight out of the"
            " data"
        )
    _check_sampled(indices[weighted_rows], X[weighted_rows], y[weighted_rows])
    kept = None if weights is None else weights[weighted_rows]
    return FoldSample(
        folds,
        fold_of_row[weighted_rows],
        X[weighted_rows],
        y[weighted_rows],
        kept,
        indices[weighted_rows],
    )
