"""Samples of a dataset's rows: random ones by a seed, and evenly spread ones with
their folds.

A dataset goes in; a few thousand rows in memory come out, on which length scales and
kernels are chosen. Plain random rows would include rows without weight, and in large
data they would lie in all chunks.
"""

from __future__ import annotations  # an evaluated annotation would load numpy.random

import numpy as np
from numpy.typing import NDArray

from rff_dist.data import blocks, columns, folding, labelled, memory
from rff_dist.errors import DataError, NotFiniteError
from rff_dist.typing import AnyArray, FloatArray, IndexArray, IntArray, frozen

# Rows of a random sample whose median distance is a length scale (median heuristic).
HEURISTIC_ROWS = 1000
# The fewest rows among which rows with weight are looked for.
LEAST_SEARCHED = 2**16
# Chunks from which a larger sample is read, if its rows would lie in more.
SAMPLED_CHUNKS = 256


def sample_inputs(
    dataset: blocks.Dataset, seed: int, *, n_rows: int = HEURISTIC_ROWS
) -> AnyArray:
    """Return the X of `sample_rows`."""
    return sample_rows(dataset, seed, n_rows=n_rows).X


def sample_rows(dataset: blocks.Dataset, seed: int, *, n_rows: int) -> blocks.Sample:
    """Return X, y and weights of up to `n_rows` rows that have weight.

    They are drawn without replacement and keep the data's order. A dataset of up to
    `n_rows` rows gives all its rows with weight. In a larger one, up to 64 · n_rows
    rows (at least 65,536) are read to find rows with weight. If none has, the weights
    of all rows are read, and the first rows with weight are the sample.

    Raises DataError if no row has weight, or a sampled row holds NaN or infinity.
    """
    rng = np.random.Generator(np.random.Philox(seed))
    n_drawn = min(n_rows, dataset.n_samples)
    most = min(dataset.n_samples, max(64 * n_rows, LEAST_SEARCHED))
    while True:
        indices = sample_indices(dataset, rng, n_drawn)
        sample = dataset.take(indices)
        rows = sample.weighted_rows()
        if len(rows) >= n_rows or n_drawn >= most:
            break
        # Too few of these have weight. All are drawn again: in one draw each row is
        # equally likely.
        n_drawn = min(dataset.n_samples, 4 * n_drawn)
    if not len(rows):
        indices = _first_with_weight(dataset, n_rows)
        sample = dataset.take(indices)
        rows = np.arange(len(indices))
    if len(rows) > n_rows:
        # chosen at random, as the first ones would leave out the end of the data
        rows = np.sort(rng.choice(rows, n_rows, replace=False))
    sample = sample.select(rows)
    _check_finite(sample, indices[rows])
    return sample


def _first_with_weight(dataset: blocks.Dataset, n_rows: int) -> IndexArray:
    """Return the numbers of the first rows with weight; DataError if there are none."""
    numbers: list[int] = []
    for block in blocks.cut_blocks(
        dataset.n_samples, dataset.chunk_rows, rows_per_block=LEAST_SEARCHED
    ):
        weights = dataset.read_weight(block)
        assert weights is not None  # without weights, every row has weight 1
        numbers += (block.start + np.flatnonzero(weights > 0)).tolist()
        if len(numbers) >= n_rows:
            break
    if not numbers:
        raise DataError(
            f"none of {dataset.n_samples:_} rows has a weight above 0; give rows with"
            " weight"
        )
    return np.array(numbers[:n_rows])


def _check_finite(sample: blocks.Sample, indices: IndexArray) -> None:
    """Raise NotFiniteError with the number of the first row that is not finite."""
    for name, values in (("X", sample.X), ("y", sample.y)):
        if values is None or np.isfinite(values).all():
            continue
        is_finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        row = indices[np.argmin(is_finite)]
        raise NotFiniteError(
            f"Input {name} contains NaN or infinity: row {row:_}; fill or drop such"
            " rows"
        )


def sample_indices(
    dataset: blocks.Dataset, rng: np.random.Generator, n_rows: int
) -> IndexArray:
    """Return distinct random row numbers, ascending.

    For many rows from many chunks, some chunks are drawn first.
    """
    n_chunks = -(-dataset.n_samples // dataset.chunk_rows)
    # The chunks have at least twice as many rows as are drawn: no chunk enters the
    # sample whole.
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

    def dataset(self) -> tuple[labelled.GroupedDataset, folding.Folds]:
        """Return the rows as a dataset, and the folds that each of them is in."""
        rows = memory.ArrayDataset(self.X, self.y, self.weights)
        fold_of_row = columns.MemoryColumn(self.fold_of_row)
        folds = folding.SampledFolds(self.folds.n_folds, self.folds)
        return labelled.GroupedDataset(rows, fold_of_row), folds

    def tuning_rows(self, n_rows: int) -> blocks.Sample:
        """Return up to `n_rows` rows on which length scales are tuned: those that no
        split of the folds validates on.

        Raises DataError if none has a weight.
        """
        assert isinstance(self.folds, folding.TuningFolds)
        rows = np.flatnonzero(self.folds.is_tuning(self.fold_of_row))
        # evenly spaced, so that they come from all parts of the data
        rows = rows[:: max(1, -(-len(rows) // n_rows))]
        if not len(rows):
            raise DataError(
                "none of the sampled rows to tune length scales on has a weight above"
                " 0; give rows with weight, or a `length_scale`"
            )
        return blocks.Sample(self.X, self.y, self.weights).select(rows)


def sample_folds(
    dataset: blocks.Dataset, folds: folding.Folds, *, n_rows: int
) -> FoldSample:
    """Return about `n_rows` rows with weight and their folds; all if there are fewer.

    Rows are spread evenly, and the folds' tuning rows are among them. Raises
    DataError if a sampled value is NaN or infinite, too few rows have weight, or the
    folds need groups and there are none.
    """
    indices = _spread_rows(folds, dataset.n_samples, n_rows)
    fold_of_row = _folds_of(dataset, folds, indices)
    sample = dataset.take(indices)
    rows = sample.weighted_rows()
    if len(rows) < min(len(indices), folds.n_folds):
        raise DataError(
            f"{len(rows)} of {len(indices):_} sampled rows have a weight above 0,"
            f" too few for {folds.n_folds} folds; leave rows without weight out of the"
            " data"
        )
    X, y, weights = sample = sample.select(rows)
    _check_finite(sample, indices[rows])
    assert y is not None  # folds are of rows with targets
    return FoldSample(folds, fold_of_row[rows], X, y, weights, indices[rows])


def _spread_rows(folds: folding.Folds, n_samples: int, n_rows: int) -> IntArray:
    """Return the numbers of about `n_rows` rows, spread evenly.

    In large data they are stretches of consecutive rows, since single rows may all lie
    in different chunks.
    """
    if n_samples <= n_rows:
        return np.arange(n_samples)
    if isinstance(folds, folding.TuningFolds) and folds.n_stretches:
        # at the tuning rows
        starts = folds.stretch_starts(np.arange(folds.n_stretches))
        width = max(folds.width, n_rows // folds.n_stretches)
    else:
        n_starts = n_rows if n_samples <= folding.MANY_ROWS else folding.STRETCHES
        starts = np.arange(n_starts) * n_samples // n_starts
        width = n_rows // n_starts
    rows = starts[:, np.newaxis] + np.arange(width)
    return np.unique(np.minimum(rows, n_samples - 1))


def _folds_of(
    dataset: blocks.Dataset, folds: folding.Folds, indices: IntArray
) -> IntArray:
    """Return the fold of some rows, whose numbers ascend."""
    n_samples = dataset.n_samples
    # Groups are read once for each run of consecutive rows; in small data once for all.
    runs = [indices]
    if n_samples > folding.MANY_ROWS:
        runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    fold_of_row = []
    for run in runs:
        first = int(run[0])
        stop = int(run[-1]) + 1
        groups = dataset.read_groups(blocks.Block(0, first, stop))
        assigned = folds.assign(first, stop, n_samples=n_samples, groups=groups)
        fold_of_row.append(assigned[run - first])
    return np.concatenate(fold_of_row)
