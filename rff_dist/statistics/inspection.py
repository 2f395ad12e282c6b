"""A first look at a dataset: moments of its columns, and whether a fit can be good.

A dataset goes in; `Moments` of all columns come out, or an error or a warning about
data for which no fit can be good. NumPy's means and variances would lose digits of
columns far from 0, and give other bits for other blocks. Values are shifted by a
*pivot*, the first row, before they are summed.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from rff_dist.data.blocks import Block, Dataset
from rff_dist.engines import protocol
from rff_dist.errors import ConflictError, DataError, warn
from rff_dist.features import maps
from rff_dist.features.levels import NO_LEVELS, Levels
from rff_dist.numerics import exact_sums
from rff_dist.statistics import row_passes, specs
from rff_dist.statistics.moments import (
    SQUARED_RANGE,
    Moments,
    measure_moments,
    name_column,
)
from rff_dist.typing import FloatArray

# Tolerance of two sums of the same numbers in different groups, relative to the sum of
# absolute values. Float64 sums of up to 65,536 numbers at a time agree to
# 2 * 65,536 * 2^-53 = 1.5e-11 of it.
REGROUPED = 1e-10
# With a larger share of repeated rows, or fewer effective rows, errors of folds
# mislead. Of 100 difficult generated datasets, 17 have more repeated rows, and 10 have
# fewer effective rows by their weights. On two of the 10, errors were 1.2 and 1.7 times
# those of a linear model or of the mean, and folds did not show it.
MOST_REPEATED = 0.1
LEAST_EFFECTIVE = 20
# Repeated rows count as copies if the distinct rows have more distinct targets than
# this share of their number. Otherwise rows may agree because columns have few values.
_DISTINCT_TARGETS = 0.9


def inspect(
    dataset: Dataset, *, levels: Levels = NO_LEVELS, engine: protocol.Engine
) -> Moments:
    """Check all values, measure moments and weights, and count `levels` of categories.

    Takes one cheap pass. Raises DataError, with row and column, if a value is NaN or
    infinite, a weight is negative, or all weights are zero.
    """
    blocks = row_passes.blocks_of(dataset)

    def measure(pivot: FloatArray) -> Moments:
        return row_passes.sum_rows(
            dataset,
            partial(measure_moments, levels=levels, names=dataset.feature_names),
            pivot,
            blocks=blocks,
            engine=engine,
            label="inspect",
        )

    moments = measure(_first_weighted_row(dataset, blocks))
    specs.check_counted(moments.n_samples, dataset.n_samples)
    if not moments.weight.value() > 0:
        raise DataError("all sample weights are zero; at least one row must count")
    if moments.cancels:
        # The pivot is far from all other rows: measure again with the means as pivot.
        moments = measure(moments.means)
    distances = moments.reach  # the largest from the pivot, for each column
    is_lost = (distances > 0) & (distances < SQUARED_RANGE[0])
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
    offset. They are compared with the sums in `moments`.
    """
    weight = float(moments.weight.value())
    # the moments are of [X, y], about the pivot instead of the offset
    y = slice(len(moments.pivot) - spec.n_targets, None)
    sums = moments.sums.value()[y] + weight * (moments.pivot[y] - spec.offsets)
    # A bound on the sum of absolute values about the pivot, by Cauchy and Schwarz; the
    # factor 2 makes it one for values about the offset.
    bounds = 2.0 * np.sqrt(weight) * np.sqrt(moments.squares.value()[y])
    sums_of_pass, _ = targets.value()
    differing = []
    if abs(sums_of_pass[-1] - weight) > REGROUPED * weight:
        differing.append("weights")
    if (np.abs(sums_of_pass[:-1] - sums) > REGROUPED * bounds).any():
        differing.append("targets")
    if differing:
        raise ConflictError(
            f"the {' and '.join(differing)} of the {moments.n_samples:_} rows do not"
            f" add up to the sums of the pass before: the data were changed between the"
            f" two passes, and there is no result. Repeat this when no one"
            " writes to the data; versioned data may be changed during a job"
        )


def _first_weighted_row(dataset: Dataset, blocks: Sequence[Block]) -> FloatArray:
    """Return [X, y] of the first row with a weight above 0; 0 for values that are not
    finite.
    """
    if not dataset.weighted:
        blocks = [Block(0, 0, 1)]
    # A row of weight 0 must not change anything, so it cannot be the pivot.
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
    loses_all = loses_digits & (steps > deviations)
    if loses_all.any():
        column = int(np.argmax(np.where(loses_all, steps - deviations, 0.0)))
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


def warn_of_few_rows(dataset: Dataset, *, checks_copies: bool) -> None:
    """Warn if errors of folds mislead: rows repeat others, or few have most weight.

    Pass `checks_copies=False` if folds hold out groups: copies may be in one group.
    """
    rows = dataset.read(Block(0, 0, dataset.n_samples))
    assert rows.y is not None  # folds are of rows with targets
    is_counted = rows.weights > 0
    weights = rows.weights[is_counted]
    y = rows.y[is_counted]
    inputs = rows.X[is_counted].astype(np.float64)
    # Features are made of standardised columns in float32, so rows that only differ in
    # further digits are not distinct. Columns from 0 to 1 have digits like standardised
    # ones, and powers of two do not round.
    inputs -= inputs.min(axis=0)
    exponents = np.frexp(inputs.max(axis=0))[1]
    inputs = np.ldexp(inputs, -exponents).astype(np.float32)
    n_rows = len(y)
    n_distinct = len(np.unique(np.column_stack([inputs, y]), axis=0))
    n_distinct_targets = len(np.unique(y, axis=0))
    n_repeated = n_rows - n_distinct
    has_repeated = n_repeated > MOST_REPEATED * n_rows
    has_distinct_targets = n_distinct_targets > _DISTINCT_TARGETS * n_distinct
    if checks_copies and has_repeated and has_distinct_targets:
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
            f"by their weights {n_rows} rows count as {effective:.0f}: with so few,"
            f" what folds choose and their errors may be chance. Look at"
            " errors on test rows, or give weights that differ less",
        )


def input_range(
    moments: Moments, standardizer: maps.Standardizer | None
) -> tuple[FloatArray, FloatArray]:
    """Return the min and max of each input column, standardised if there is a
    standardizer.
    """
    lower = moments.minimum[: moments.n_features]
    upper = moments.maximum[: moments.n_features]
    if standardizer is None:
        return lower, upper
    return standardizer(lower), standardizer(upper)
