"""A first look at a dataset: its columns' moments, and how they are standardised."""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rff_dist.data.blocks import Block, BlockTask, Dataset, Rows, cut_blocks
from rff_dist.data.cut import MAX_BLOCK_ROWS, block_rows
from rff_dist.engines.protocol import Broadcast, Engine
from rff_dist.errors import ConflictError, DataError, InvalidParameterError, StatisticsError
from rff_dist.features.feature_map import Standardizer
from rff_dist.numerics.exact_sums import ExactSum
from rff_dist.statistics.moments import ColumnMoments, Moments, measure_moments, name_column
from rff_dist.statistics.quantiles import RowSample, rank_map, sample_columns
from rff_dist.statistics.spec import StatisticsSpec
from rff_dist.typing import FloatArray

logger = logging.getLogger(__name__)


# With `standardize="auto"` a column whose kurtosis is above the larger number is mapped by ranks; of few
# rows, whose kurtosis cannot be large, above an eighth of their number, but not below the smaller one.
# Ranks of all columns against means and deviations, R² on generated problems of 5,000 rows, one seed:
# above a kurtosis of 170 (Student t₁.₅, log-normal of sigma 2) 0.02 to 0.36 better, -0.01 to 0.02 with
# tuned widths. Below 60 no threshold is right: skew laws (exponential, log-normal of sigma 1) are up to
# 0.08 worse, symmetric ones (Laplace, t₃ to t₅) up to 0.16 better for one target and 0.01 worse for
# another; tuned widths leave -0.04 to 0.01. On two real sets 100 changed no error by more than 1 %, and
# 20 made one 22 % larger. The eighth was chosen on 100 to 1,000 generated rows: t₁.₅ columns have n/5 and
# were 0.17 to 0.23 better, exponential n/18.
HEAVY_KURTOSIS = (12.0, 100.0)


# Of the sum of absolute values: two sums of the same numbers, of up to 65,536 at a time in float64, agree
# to 2 * 65,536 * 2^-53 = 1.5e-11 of it.
REGROUPED = 1e-10

MIN_RANKED_VALUES = 16  # of a column, with "auto": ranks only shift and scale columns of two values


def blocks_of(dataset: Dataset, *, max_rows: int = MAX_BLOCK_ROWS, n_folds: int = 1) -> list[Block]:
    """Return the blocks that passes over the dataset use, of at most `max_rows` rows.

    Blocks whose folds are summed apart are larger, see `block_rows`.

    Raises DataError if the dataset has no rows.
    """
    if dataset.n_samples < 1:
        raise DataError("Found array with 0 sample(s): the data have no rows; at least 1 is needed")
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
    state: S | Broadcast[S],
    *,
    blocks: Sequence[Block] | None = None,
    combine: Callable[[T, T], T] = operator.add,
    engine: Engine,
    label: str,
) -> T:
    """Return the sum of what a function makes of each block's rows, by default of those of `blocks_of`."""
    task = BlockTask(dataset, function)
    given = blocks_of(dataset) if blocks is None else blocks
    return engine.map_reduce(task, given, state, combine=combine, label=label)


def inspect(dataset: Dataset, *, engine: Engine) -> Moments:
    """Check all values and measure means, standard deviations and weights, in one cheap pass.

    Raises DataError if a value is NaN or infinite, a weight negative, or all weights are zero; names row and
      column.
    """
    blocks = blocks_of(dataset)
    pivot = _first_row_that_counts(dataset, blocks)
    moments: Moments = engine.map_reduce(BlockTask(dataset, measure_moments), blocks, pivot, label="inspect")
    if moments.n_samples != dataset.n_samples:
        raise StatisticsError(
            f"{moments.n_samples:_} rows were measured but the data have {dataset.n_samples:_}; a block is "
            "missing or was counted twice: run the pass again and report this"
        )
    if not moments.weight.value() > 0:
        raise DataError("all sample weights are zero; at least one row must count")
    lost = (moments.squares.value() == 0) & (moments.sums.value() != 0)
    if lost.any():
        name = name_column(int(np.argmax(lost)), dataset.n_features)
        raise DataError(f"Input {name} varies by less than float64 can square; multiply it by a large number")
    return moments


def check_same_rows(moments: Moments, targets: ExactSum, spec: StatisticsSpec) -> None:
    """Check that a pass saw the weights and targets that were measured before it.

    `targets`: ExactSum of shape (n_targets + 1, n_targets + 1). [Y - offset, 1]'W[Y - offset, 1] of the pass.
    `spec`: has the offset.
    Raises ConflictError if their sums differ: the rows were changed between the two passes.
    """
    weight, measured = float(moments.weight.value()), slice(len(moments.pivot) - spec.n_targets, None)
    offset = spec.offsets
    sums = moments.sums.value()[measured] + weight * (moments.pivot[measured] - offset)
    # of absolute values about the pivot, by Cauchy and Schwarz; about the offset they add up to twice that
    reach = 2.0 * np.sqrt(weight * moments.squares.value()[measured])
    found = targets.value()[-1]
    differing = ["weights"] if abs(found[-1] - weight) > REGROUPED * weight else []
    if (np.abs(found[:-1] - sums) > REGROUPED * reach).any():
        differing.append("targets")
    if differing:
        raise ConflictError(
            f"the {' and '.join(differing)} of the {moments.n_samples:_} rows do not add up to what they did "
            "in the pass before: the data were changed between the two, and nothing was made of them. Repeat "
            "this when nobody writes there; versioned data can be changed meanwhile"
        )


def _first_row_that_counts(dataset: Dataset, blocks: Sequence[Block]) -> FloatArray:
    """Return the columns [X, y] of the first row with a weight, 0 where they are not finite."""
    for block in blocks if dataset.weighted else [Block(0, 0, 1)]:
        rows = dataset.read(block)
        counts = np.flatnonzero(np.ones(1) if rows.sample_weight is None else rows.sample_weight > 0)
        if len(counts):
            row = rows.X[counts[0]]
            row = row if rows.y is None else np.concatenate([row, rows.y[counts[0]]])
            return np.where(np.isfinite(row), row, 0.0).astype(np.float64)
    return np.zeros(dataset.n_features + dataset.n_targets)  # the pass says what is wrong with the weights


def warn_of_lost_digits(moments: Moments) -> None:
    """Warn where a column's mean is so large beside its spread that float32 inputs lose most of it."""
    n_features = moments.n_features
    means, deviations = np.abs(moments.means[:n_features]), moments.standard_deviations[:n_features]
    lost = (deviations > 0) & (means * np.finfo(np.float32).eps > 0.01 * deviations)
    if lost.any():
        column = int(np.argmax(lost))
        warnings.warn(
            f"column {column} of X has mean {means[column]:.3g} and standard deviation "
            f"{deviations[column]:.3g}: float32 features lose its digits; standardise the inputs",
            UserWarning,
            stacklevel=4,
        )


def standardizer_from(moments: Moments) -> Standardizer:
    """Return what makes the input columns' means 0 and standard deviations 1; constant columns stay."""
    deviations = moments.standard_deviations[: moments.n_features]
    return Standardizer(moments.means[: moments.n_features], np.where(deviations > 0, deviations, 1.0))


def check_standardize(standardize: object) -> bool | str:
    """Return what is done to the input columns: True, False, "rank" or "auto"."""
    if isinstance(standardize, bool | np.bool_):
        return bool(standardize)
    if isinstance(standardize, str) and standardize in ("rank", "auto"):
        return standardize
    raise InvalidParameterError(f"`standardize` is {standardize!r}; expected True, False, 'rank' or 'auto'")


def standardizer_for(
    dataset: Dataset, moments: Moments, standardize: bool | str, *, engine: Engine
) -> Standardizer | None:
    """Return what is done to the input columns before features are made of them; it never looks at y.

    `moments`: from `inspect`.
    `standardize`: True takes means and standard deviations out, False nothing. "rank" maps each column to a
      normal law by the ranks of its values, see `rff_dist.statistics.quantiles`: another cheap pass. "auto"
      is True, but "rank" for columns with heavy tails, see `HEAVY_KURTOSIS`; it takes the pass only where
      there are some.
    Raises InvalidParameterError if `standardize` is none of these.
    """
    standardize = check_standardize(standardize)
    if standardize is False:
        return None
    standardizer = standardizer_from(moments)
    if standardize is True:
        return standardizer
    columns = np.arange(dataset.n_features)
    if standardize == "auto":
        central = ColumnMoments.of(moments)
        limit = np.clip(central.n_samples / 8, *HEAVY_KURTOSIS)
        columns = np.flatnonzero(np.sqrt(central.fourth) > np.sqrt(limit) * central.second)
    if not len(columns):
        return standardizer
    sample: RowSample = engine.map_reduce(
        BlockTask(dataset, sample_columns), blocks_of(dataset), columns, label="ranks"
    )
    ranks = tuple(rank_map(int(one), values) for one, values in zip(columns, sample.values.T, strict=True))
    if standardize == "auto":
        ranks = tuple(rank for rank in ranks if len(rank.inputs) >= MIN_RANKED_VALUES)
    standardizer = replace(standardizer, ranks=ranks)
    logger.info("columns mapped to a normal law by their ranks: %s", list(standardizer.ranked_columns))
    return standardizer


def input_range(moments: Moments, standardizer: Standardizer | None) -> tuple[FloatArray, FloatArray]:
    """Return the least and the largest value of each (standardised) input column."""
    lower, upper = (one[: moments.n_features] for one in (moments.minimum, moments.maximum))
    return (lower, upper) if standardizer is None else (standardizer(lower), standardizer(upper))


def target_offset_from(moments: Moments) -> tuple[float, ...]:
    """Return the targets' means, to subtract before summing."""
    return tuple(moments.means[moments.n_features :].tolist())
