"""A first look at a dataset: moments of columns, labels, a sample for quantiles.

From it comes what a fit needs before its pass: the standardisation of inputs, by means
or by ranks, and errors and warnings on data for which no fit can be good.
"""

import logging
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.data import array_checks, labelled
from rff_dist.data.blocks import (
    MAX_BLOCK_ROWS,
    Block,
    BlockTask,
    Dataset,
    Rows,
    block_rows,
    cut_blocks,
    cut_pieces,
)
from rff_dist.data.columns import Column
from rff_dist.engines import protocol
from rff_dist.errors import ConflictError, DataError, InvalidParameterError, warn
from rff_dist.features import column_maps, maps
from rff_dist.features.levels import NO_LEVELS, Levels
from rff_dist.frequencies import uniforms
from rff_dist.numerics import exact_sums
from rff_dist.statistics import specs
from rff_dist.statistics.moments import (
    FOURTH_RANGE,
    SQUARED_RANGE,
    ColumnMoments,
    Moments,
    measure_moments,
    name_column,
)
from rff_dist.typing import FloatArray, IntArray, frozen

logger = logging.getLogger(__name__)

# With `standardize="auto"` a column is mapped by ranks if its kurtosis is above an
# eighth of the number of rows, kept between these two limits: few rows cannot have a
# large kurtosis. Measured: R² with ranks in all columns
# less R² with means and deviations, on generated problems of 5,000 rows, one seed. With
# a kurtosis above 170 (Student t₁.₅, log-normal of sigma 2) ranks gain 0.02 to 0.36,
# and -0.01 to 0.02 with tuned widths. Below 60 no threshold is right: with skew
# distributions (exponential, log-normal of sigma 1) ranks lose up to 0.08, with
# symmetric ones (Laplace, t₃ to t₅) they gain up to 0.16 for one target and lose 0.01
# for another; with tuned widths they gain -0.04 to 0.01. On two real sets a limit of
# 100 changed no error by more than 1 %, and one of 20 made an error 22 % larger. The
# eighth was chosen on 100 to 1,000 generated rows: t₁.₅ columns have a kurtosis of n/5
# and gain 0.17 to 0.23, exponential ones n/18.
HEAVY_KURTOSIS = (12.0, 100.0)

#: None if there are too many groups.
type _Counts = labelled.LabelCounts | None


# Tolerance of two sums of the same numbers in different groups, relative to the sum of
# absolute values. Float64 sums of up to 65,536 numbers at a time agree to
# 2 * 65,536 * 2^-53 = 1.5e-11 of it.
REGROUPED = 1e-10

# With "auto", columns with fewer distinct values are not mapped by ranks: ranks of two
# values only shift and scale them.
MIN_RANKED_VALUES = 16

# The share of repeated rows, and the number of effective rows, beyond which errors of
# folds mislead. Of 100 difficult generated datasets, 17 have more repeated rows, and 10
# are weighted to fewer effective ones. On two of those, errors were 1.2 and 1.7 times
# those of a linear model or of the mean, and folds did not show it.
MOST_REPEATED = 0.1
LEAST_EFFECTIVE = 20
# Repeated rows are copies if distinct rows have more distinct targets than this share
# of their number: rows of few values may agree without being copies.
_DISTINCT_TARGETS = 0.9


def blocks_of(
    dataset: Dataset, *, max_rows: int = MAX_BLOCK_ROWS, n_folds: int = 1
) -> list[Block]:
    """Return the blocks of passes over a dataset, of at most `max_rows` rows.

    With several folds blocks are larger, see `block_rows`. Raises DataError if the
    dataset has no rows.
    """
    if dataset.n_samples < 1:
        raise DataError(
            "Found array with 0 sample(s): the data have no rows; at least 1 is needed"
        )
    if dataset.edges is not None:
        return cut_pieces(dataset.edges, max_rows)
    rows = block_rows(
        dataset.n_samples,
        dataset.n_features,
        dataset.dtype.itemsize,
        dataset.chunk_rows,
        max_rows=max_rows,
        n_folds=n_folds,
    )
    return cut_blocks(dataset.n_samples, rows, rows_per_block=rows)


def sum_rows[S, T](
    dataset: Dataset,
    function: Callable[[Rows, S], T],
    state: S | protocol.Broadcast[S],
    *,
    blocks: Sequence[Block] | None = None,
    combine: Callable[[T, T], T] = operator.add,
    engine: protocol.Engine,
    label: str,
) -> T:
    """Sum a function of the rows over all blocks, by default those of `blocks_of`."""
    if blocks is None:
        blocks = blocks_of(dataset)
    task = BlockTask(dataset, function)
    return engine.map_reduce(task, blocks, state, combine=combine, label=label)


def inspect(
    dataset: Dataset, *, levels: Levels = NO_LEVELS, engine: protocol.Engine
) -> Moments:
    """Check all values, and measure means, standard deviations and weights; count the
    `levels` of columns of categories.

    Takes one cheap pass. Raises DataError, with row and column, if a value is NaN or
    infinite, a weight is negative, or all weights are zero.
    """
    blocks = blocks_of(dataset)

    def measure(pivot: FloatArray) -> Moments:
        return sum_rows(
            dataset,
            partial(measure_moments, levels=levels),
            pivot,
            blocks=blocks,
            engine=engine,
            label="inspect",
        )

    moments = measure(_first_row_that_counts(dataset, blocks))
    specs.check_counted(moments.n_samples, dataset.n_samples)
    if not moments.weight.value() > 0:
        raise DataError("all sample weights are zero; at least one row must count")
    if moments.cancels:
        # the first row lies far from all others, and weighs next to nothing
        moments = measure(moments.means)
    reach = moments.reach
    is_lost = (reach > 0) & (reach < SQUARED_RANGE[0])
    if is_lost.any():
        name = name_column(int(np.argmax(is_lost)), dataset.n_features)
        raise DataError(
            f"Input {name} varies so little that float64 loses digits of squares of its"
            " differences; multiply it by a large number"
        )
    return moments


def check_same_rows(
    moments: Moments, targets: exact_sums.ExactSum, spec: specs.StatisticsSpec
) -> None:
    """Raise ConflictError if the rows changed after the pass that measured `moments`.

    `targets` are a later pass's sums of [Y - offset, 1] and of squares, with the spec's
    offset. They are compared with those of `moments`.
    """
    weight = float(moments.weight.value())
    measured = slice(len(moments.pivot) - spec.n_targets, None)
    offset = spec.offsets
    sums = moments.sums.value()[measured] + weight * (moments.pivot[measured] - offset)
    # Bounds the sum of absolute values about the pivot, by Cauchy and Schwarz; the 2 is
    # for those about the offset.
    reach = 2.0 * np.sqrt(weight) * np.sqrt(moments.squares.value()[measured])
    sums_of_pass, _ = targets.value()
    differing = []
    if abs(sums_of_pass[-1] - weight) > REGROUPED * weight:
        differing.append("weights")
    if (np.abs(sums_of_pass[:-1] - sums) > REGROUPED * reach).any():
        differing.append("targets")
    if differing:
        raise ConflictError(
            f"the {' and '.join(differing)} of the {moments.n_samples:_} rows do not"
            " add up to what they did in the pass before: the data were changed"
            " between the two passes, and no result was made. Repeat this when no one"
            " writes to the data; versioned data may be changed during a job"
        )


def _first_row_that_counts(dataset: Dataset, blocks: Sequence[Block]) -> FloatArray:
    """Return [X, y] of the first row with a weight above 0, with 0 if not finite."""
    if not dataset.weighted:
        blocks = [Block(0, 0, 1)]
    # Rows of weight 0 must not change anything, so none of them is the pivot.
    for block in blocks:
        rows = dataset.read(block)
        numbers = np.flatnonzero(rows.weights > 0)
        if len(numbers):
            row = rows.X[numbers[0]]
            if rows.y is not None:
                row = np.concatenate([row, rows.y[numbers[0]]])
            return np.where(np.isfinite(row), row, 0.0).astype(np.float64)
    # the pass will refuse the weights
    return np.zeros(dataset.n_features + dataset.n_targets)


def check_float32(moments: Moments) -> None:
    """Check that float32 can represent the inputs as they are.

    Warns of a column whose mean is so large that float32 loses the digits in which rows
    differ. Raises DataError if float32 loses all of them, or a column that varies is so
    small that float32 makes it 0.
    """
    n_features = moments.n_features
    largest = np.maximum(np.abs(moments.minimum), np.abs(moments.maximum))[:n_features]
    is_vanishing = (moments.reach[:n_features] > 0) & (
        largest < np.finfo(np.float32).tiny
    )
    if is_vanishing.any():
        column = int(np.argmax(is_vanishing))
        raise DataError(
            f"column {column} of X reaches {largest[column]:.3g} at most, below"
            f" float32's smallest number, {np.finfo(np.float32).tiny:.3g}: standardise"
            " the inputs, or multiply it by a large number"
        )
    means = np.abs(moments.means[:n_features])
    deviations = moments.standard_deviations[:n_features]
    steps = means * np.finfo(np.float32).eps  # between neighbours in float32
    loses_digits = (deviations > 0) & (steps > 0.01 * deviations)
    if (loses_digits & (steps > deviations)).any():
        column = int(np.argmax(steps * loses_digits - deviations))
        raise DataError(
            f"column {column} of X has mean {means[column]:.3g} and standard deviation"
            f" {deviations[column]:.3g}: float32 features cannot tell its rows apart;"
            " standardise the inputs"
        )
    if loses_digits.any():
        column = int(np.argmax(loses_digits))
        warn(
            f"column {column} of X has mean {means[column]:.3g} and standard deviation"
            f" {deviations[column]:.3g}: float32 features lose its digits; standardise"
            " the inputs",
        )


def warn_of_few_rows(dataset: Dataset, *, copies: bool) -> None:
    """Warn if errors of folds mislead: rows repeat others, or few have most weight.

    Pass `copies=False` if the folds hold out groups, in which copies may be together.
    """
    rows = dataset.read(Block(0, 0, dataset.n_samples))
    assert rows.y is not None  # which folds validate
    weights = rows.weights
    exponents = np.frexp(np.abs(rows.X).max(axis=0))[1]
    # compared in float32: differences that float32 loses do not make two rows distinct
    inputs = np.ldexp(rows.X.astype(np.float64), -exponents).astype(np.float32)
    weighted_rows = np.column_stack([inputs, rows.y])[weights > 0]
    n_rows = len(weighted_rows)
    n_distinct = len(np.unique(weighted_rows, axis=0))
    n_targets = len(np.unique(rows.y[weights > 0], axis=0))
    n_repeated = n_rows - n_distinct
    has_repeated = n_repeated > MOST_REPEATED * n_rows
    has_distinct_targets = n_targets > _DISTINCT_TARGETS * n_distinct
    if copies and has_repeated and has_distinct_targets:
        warn(
            f"{n_repeated} of {n_rows} rows repeat the inputs and targets of"
            " others: folds validate on copies of rows that they train on, and errors"
            " come out too small. Leave copies out, or give rows of one origin the"
            " same `groups`",
        )
    # Kish (1965), Survey Sampling
    effective = weights.sum() ** 2 / np.square(weights).sum()
    if effective < min(LEAST_EFFECTIVE, n_rows / 2):
        warn(
            f"by their weights {n_rows} rows count as {effective:.0f}: folds"
            " choose by so few that the choice and its errors may be chance. Look at"
            " errors on test rows, or give weights that differ less",
        )


def standardizer_from(
    moments: Moments, categories: Sequence[int] = ()
) -> maps.Standardizer:
    """Return what subtracts means and divides by standard deviations, as sklearn's.

    Constant columns are not scaled; categories stay as they are.
    """
    means = moments.means[: moments.n_features].copy()
    deviations = moments.standard_deviations[: moments.n_features]
    scales = np.where(deviations > 0, deviations, 1.0)
    means[list(categories)] = 0.0
    scales[list(categories)] = 1.0
    return maps.Standardizer(means, scales)


def check_standardize(standardize: object) -> bool | str:
    """Return the option if it is True, False, "rank" or "auto"."""
    if isinstance(standardize, bool | np.bool_):
        return bool(standardize)
    if isinstance(standardize, str) and standardize in ("rank", "auto"):
        return standardize
    raise InvalidParameterError(
        f"`standardize` is {standardize!r}; expected True, False, 'rank' or 'auto'"
    )


def standardizer_for(
    dataset: Dataset,
    moments: Moments,
    standardize: bool | str,
    *,
    frequency_weights: bool = False,
    categories: Sequence[int] = (),
    engine: protocol.Engine,
) -> maps.Standardizer | None:
    """Return what transforms the input columns before features are made of them.

    Parameters
    ----------
    moments : Moments
        From `inspect`.
    standardize : {True, False, "rank", "auto"}
        True subtracts means and divides by standard deviations; False does nothing.
        "rank" maps each column to a normal distribution by the ranks of its values,
        with another cheap pass. "auto" does so for columns with heavy tails only, see
        `HEAVY_KURTOSIS`, and treats the others as True does.
    frequency_weights : bool
        Whether weights repeat rows.
    categories : sequence of int
        Columns that stay as they are.
    """
    standardize = check_standardize(standardize)
    if standardize is False:
        return None
    standardizer = standardizer_from(moments, categories)
    if standardize is True:
        return standardizer
    if standardize == "auto":
        central = ColumnMoments.of(moments, frequency_weights=frequency_weights)
        ranks = _ranks_of_heavy_tails(
            dataset, moments, central, categories, engine=engine
        )
    else:
        columns = np.setdiff1d(np.arange(dataset.n_features), categories)
        ranks = [rank for rank, _, _ in _rank_columns(dataset, columns, engine)]
    if not ranks:
        return standardizer
    standardizer = replace(standardizer, maps=tuple(ranks))
    logger.info(
        "columns mapped to a normal distribution by their ranks: %s",
        list(standardizer.mapped_columns),
    )
    return standardizer


def _ranks_of_heavy_tails(
    dataset: Dataset,
    moments: Moments,
    central: ColumnMoments,
    categories: Sequence[int],
    *,
    engine: protocol.Engine,
) -> list[maps.ColumnMap]:
    """Return maps by ranks of the columns with heavy tails, see `HEAVY_KURTOSIS`."""
    limit = np.clip(central.n_samples / 8, *HEAVY_KURTOSIS)
    # kurtosis above the limit, by roots, since the square of a large column's variance
    # may overflow
    fourth = moments.fourth_central[: dataset.n_features]
    is_heavy = np.sqrt(fourth) > np.sqrt(limit) * central.second
    # float64 lacks the fourth powers of these columns: their samples' kurtosis decides
    smallest, largest = FOURTH_RANGE
    reach = moments.reach[: dataset.n_features]
    is_unknown = (reach > 0) & ((reach < smallest) | (reach > largest))
    columns = np.setdiff1d(np.flatnonzero(is_heavy | is_unknown), categories)
    ranks = []
    for rank, values, weights in _rank_columns(dataset, columns, engine):
        if len(rank.inputs) < MIN_RANKED_VALUES:
            continue
        if is_unknown[rank.column] and _kurtosis(values, weights) <= limit:
            continue
        ranks.append(rank)
    return ranks


def _rank_columns(
    dataset: Dataset, columns: IntArray, engine: protocol.Engine
) -> Iterator[tuple[maps.ColumnMap, FloatArray, FloatArray]]:
    """Yield each column's map by ranks, its sampled values and the rows' weights."""
    if not len(columns):
        return
    sample = sum_rows(dataset, sample_columns, columns, engine=engine, label="ranks")
    for column, values in zip(columns.tolist(), sample.values.T, strict=True):
        rank = column_maps.rank_map(column, values, sample.weights)
        yield rank, values, sample.weights


def _kurtosis(values: FloatArray, weights: FloatArray) -> float:
    """Return E(x − μ)⁴ / σ⁴ of values of any scale that are not all equal."""
    centred = values - np.average(values, weights=weights)
    powers = np.square(centred / np.abs(centred).max())
    return float(
        np.average(np.square(powers), weights=weights)
        / np.average(powers, weights=weights) ** 2
    )


def input_range(
    moments: Moments, standardizer: maps.Standardizer | None
) -> tuple[FloatArray, FloatArray]:
    """Return the min and max of each input column, standardised if that is wanted."""
    lower = moments.minimum[: moments.n_features]
    upper = moments.maximum[: moments.n_features]
    if standardizer is None:
        return lower, upper
    return standardizer(lower), standardizer(upper)


def target_offset_from(moments: Moments) -> tuple[float, ...]:
    """Return the targets' means, to subtract before summing."""
    return tuple(moments.means[moments.n_features :].tolist())


# -- a first pass over labels or groups, without X


ROWS_PER_BLOCK = 2**20


def count_labels(
    labels: Column, *, source: Dataset | None = None, engine: protocol.Engine
) -> labelled.LabelCounts:
    """Count the rows and the weight of each label, in one pass over labels and weights.

    Labels in memory, or of rows of a Dask collection, are counted in this process. The
    counts are exact, and do not depend on the blocks. `source` is the dataset with the
    weights; by default each row has weight 1. Raises DataError if there are no labels,
    or not one for each row; a label is missing or not valid; or a weight is negative or
    not finite.
    """
    if not labels.n_samples:
        raise DataError(
            "the data have 0 rows; a classifier needs labels of at least 2 classes"
        )
    if source is not None:
        array_checks.require_rows({"X": source.n_samples, "y": labels.n_samples})
    is_weighted = source is not None and source.weighted
    count = labelled.LabelReader(labels, source if is_weighted else None)
    counts: labelled.LabelCounts = _count(
        count, labels, source, operator.add, label="labels", engine=engine
    )
    return counts


def count_groups(
    dataset: Dataset, *, at_most: int, engine: protocol.Engine
) -> labelled.LabelCounts | None:
    """Count the rows and the weight of each group, as `count_labels` does.

    Groups that are stored as floats become integers. The result is None if there are
    more than `at_most` groups. Raises DataError if a weight is negative or not finite.
    """
    grouped = dataset
    while not isinstance(grouped, labelled.GroupedDataset):
        # folds were checked to find groups
        assert isinstance(grouped, labelled.ExtendedDataset)
        grouped = grouped.source
    reader = labelled.LabelReader(grouped.groups, dataset if dataset.weighted else None)
    count = partial(_count_up_to, at_most, reader)
    add = partial(_add_up_to, at_most)
    counts: _Counts = _count(
        count, grouped.groups, dataset, add, label="groups", engine=engine
    )
    if counts is None or counts.labels.dtype.kind != "f":
        return counts
    return replace(counts, labels=counts.labels.astype(np.int64))


def _count_up_to(
    at_most: int, count: labelled.LabelReader, block: Block, _: None
) -> _Counts:
    counts = count(block, None)
    return counts if len(counts.labels) <= at_most else None


def _add_up_to(at_most: int, left: _Counts, right: _Counts) -> _Counts:
    if left is None or right is None:
        return None
    counts = left + right
    return counts if len(counts.labels) <= at_most else None


def _count[T](
    count: Callable[[Block, None], T],
    values: Column,
    source: Dataset | None,
    add: Callable[[T, T], T],
    *,
    label: str,
    engine: protocol.Engine,
) -> T:
    blocks = cut_blocks(
        values.n_samples, values.chunk_rows, rows_per_block=ROWS_PER_BLOCK
    )
    # its weights are computed once, as the values were
    if source is not None and source.is_lazy:
        return count(Block(0, 0, values.n_samples), None)
    if values.in_memory:
        return reduce(add, (count(block, None) for block in blocks))
    return engine.map_reduce(count, blocks, None, combine=add, label=label)


# -- quantiles
#
# Each row has a key: a random number that depends on the row's number only. The sample
# consists of the rows with the smallest keys. So the samples of two sets of rows can be
# merged, in any order, into the sample of both. If the data have no more rows than the
# sample holds, it has all of them and quantiles are exact. Otherwise the standard error
# of a quantile's rank is at most 1/(2√n_rows), 0.8 % for 4,096 rows.
#
# References
# ----------
# Cohen & Kaplan (2007), Summarizing data using bottom-k sketches, PODC. Salmon et al.
# (2011), Random123, on the keys.


# A sample's rows, at most and at least: the latter with many columns. Bins by a float's
# bits, in place of a sample, would lose the bulk of a column that lies far from 0.
MAX_ROWS = 4096
MIN_ROWS = 512
# numbers in a sample, 32 MiB: with more than 1,024 columns it has fewer rows
MAX_VALUES = 2**22
_KEY_SEED = 0x726F7773  # of the keys, far from seeds that users give


@frozen(eq=False)
class RowSample:
    """The rows with the smallest keys so far; `+` joins two sets of rows."""

    #: The most rows.
    size: int
    #: Ascending, of shape (n_rows,).
    keys: NDArray[np.uint64]
    #: Of shape (n_rows, n_columns).
    values: FloatArray
    #: Above 0, of shape (n_rows,).
    weights: FloatArray

    @classmethod
    def empty(cls, size: int, n_columns: int) -> Self:
        return cls(size, np.zeros(0, np.uint64), np.empty((0, n_columns)), np.empty(0))

    def __add__(self, other: Self) -> Self:
        keys = np.concatenate([self.keys, other.keys])
        order = np.argsort(keys, kind="stable")[: self.size]
        values = np.concatenate([self.values, other.values])
        weights = np.concatenate([self.weights, other.weights])
        return type(self)(self.size, keys[order], values[order], weights[order])


def sample_size(n_columns: int) -> int:
    """Return how many rows a sample of `n_columns` columns has."""
    return max(MIN_ROWS, min(MAX_ROWS, MAX_VALUES // n_columns))


def sample_columns(rows: Rows, columns: IntArray) -> RowSample:
    """Return the sample of some columns of a block's rows, without rows of weight 0."""
    size = sample_size(len(columns))
    keys = uniforms.row_words(
        _KEY_SEED, 0, rows.block.start, rows.block.start + len(rows.X)
    )
    weights = rows.weights
    numbers = np.flatnonzero(weights > 0)
    numbers = numbers[np.argsort(keys[numbers], kind="stable")[:size]]
    values = rows.X[numbers[:, np.newaxis], columns].astype(np.float64)
    return RowSample(size, keys[numbers], values, weights[numbers])
