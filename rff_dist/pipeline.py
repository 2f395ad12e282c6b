"""The main job as plain functions: inspect → draw → broadcast → accumulate → choose → solve.

`prediction` goes on with the trained model: evaluate, predict, write.

Estimators, the command line and the Prefect flows are thin faces of these. Each pass goes through
an engine; everything else is arithmetic on what the passes return.
"""

from __future__ import annotations

import logging
import math
import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rff_dist.blocks import (
    Accumulation,
    Accumulations,
    Block,
    BlockTask,
    Dataset,
    Moments,
    accumulate_fold_rows,
    accumulate_rows,
    add_each,
    measure_features,
    measure_moments,
)
from rff_dist.conformal import HeldOutScores, fold_models, score_rows
from rff_dist.cross_validation import Choice, CrossValidation, cross_validate
from rff_dist.drawing import check_width, draw, find_features
from rff_dist.drift import ColumnMoments
from rff_dist.engines import Broadcast, Engine
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import DataError, InvalidParameterError, PlanError, StatisticsError
from rff_dist.feature_map import (
    FeatureMap,
    Nystrom,
    NystromFeatureMap,
    PrincipalFeatureMap,
    Standardizer,
    shortened,
)
from rff_dist.folds import Folds, FoldStatistics, HashFolds, find_folds, folds_to_dict
from rff_dist.frequencies import Design
from rff_dist.kernels import Kernel, LengthScale
from rff_dist.leave_one_out import LeaveOneOut, hat_matrix, leave_out_rows, select_by_press
from rff_dist.model import RidgeModel
from rff_dist.plan import (
    MAX_BLOCK_ROWS,
    Plan,
    available_memory,
    human_bytes,
    plan_blocks,
    plan_fit,
    plan_matrix_pass,
)
from rff_dist.quantiles import RowSample, rank_map, sample_columns
from rff_dist.runs import as_runs
from rff_dist.selection import Selection, select_alpha
from rff_dist.solvers import RidgeSolution, decompose, solve_cholesky
from rff_dist.statistics import FINE_FRACTION_BITS, FRACTION_BITS, RidgeStatistics, StatisticsSpec
from rff_dist.storage.labelled import ExtendedDataset

logger = logging.getLogger(__name__)

type Alpha = float | str | Sequence[float] | NDArray[Any]
type Components = int | str | Sequence[int]
type FloatArray = NDArray[np.float64]

MAX_WEIGHT_EXPONENT = 400
MAX_DEFAULT_ALPHAS = 48  # three a decade, over the sixteen of float64
ALPHA_NAMES = ("auto", "gcv", "evidence", "cv", "cv-1se", "press")
CV_NAMES = ("auto", "cv", "cv-1se")  # of those, what k-fold cross-validation can stand for
DEFAULT_FOLDS = HashFolds(5)
AUTO_COMPONENTS = 2048  # the widest that `n_components="auto"` looks at
MIN_AUTO_COMPONENTS = 32
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
MIN_RANKED_VALUES = 16  # of a column, with "auto": ranks only shift and scale columns of two values


def blocks_of(dataset: Dataset, *, max_rows: int = MAX_BLOCK_ROWS, n_folds: int = 1) -> list[Block]:
    """Return the blocks that passes over the dataset use, of at most `max_rows` rows.

    Blocks whose folds are summed apart are larger, see `plan_blocks`.

    Raises
    ------
    DataError
        If the dataset has no rows.
    """
    if dataset.n_samples < 1:
        raise DataError("Found array with 0 sample(s): the data have no rows; at least 1 is needed")
    return plan_blocks(
        dataset.n_samples,
        dataset.n_features,
        dataset.dtype.itemsize,
        dataset.chunk_rows,
        max_rows=max_rows,
        n_folds=n_folds,
    )


def check_plan(
    dataset: Dataset,
    n_components: int,
    *,
    engine: Engine,
    alpha: Alpha = "auto",
    features: str | Nystrom = "fourier",
    n_folds: int = 1,
    n_maps: int = 1,
) -> Plan:
    """Plan a fit on an engine, and refuse it where this machine's memory would not do.

    With `n_folds` above 1 each fold is summed apart, for each of `n_maps` feature maps in one reading.

    Raises
    ------
    PlanError
        With the memory needed and the memory there is.
    """
    blocks_of(dataset)  # refuses a dataset without rows
    serial = isinstance(engine, SerialEngine)
    here = available_memory()
    return plan_fit(
        n_samples=dataset.n_samples,
        n_features=dataset.n_features,
        n_targets=max(1, dataset.n_targets),
        n_components=n_components,
        chunk_rows=dataset.chunk_rows,
        itemsize=dataset.dtype.itemsize,
        n_workers=max(1, engine.n_workers),  # a cluster may still wait for its first worker
        n_threads=engine.n_threads,
        separate_client=not serial,
        alpha_path=not is_one_alpha(alpha),
        whitened=find_features(features) is not None,
        n_folds=n_folds,
        n_maps=n_maps,
        memory_limit=getattr(engine, "worker_memory", None) or here,
        client_memory_limit=here,
    )


def check_matrix_pass(
    dataset: Dataset,
    feature_map: FeatureMap,
    *,
    engine: Engine,
    n_targets: int,
    n_columns: int = 0,
    spectral: bool = False,
) -> None:
    """Refuse a pass that carries a D x D matrix where memory would not do; see `plan_matrix_pass`.

    Raises
    ------
    PlanError
        With the memory needed and the memory there is.
    """
    blocks_of(dataset)  # refuses a dataset without rows
    here = available_memory()
    needed = plan_matrix_pass(
        n_samples=dataset.n_samples,
        n_features=dataset.n_features,
        n_targets=n_targets,
        n_components=feature_map.n_components,
        chunk_rows=dataset.chunk_rows,
        itemsize=dataset.dtype.itemsize,
        n_threads=engine.n_threads,
        n_columns=n_columns,
        spectral=spectral,
        whitened=feature_map.whitener is not None,
        separate_client=not isinstance(engine, SerialEngine),
    )
    limits = (getattr(engine, "worker_memory", None) or here, here)
    for who, wanted, limit in zip(("a worker", "this process"), needed, limits, strict=True):
        if wanted > limit:
            raise PlanError(
                f"{who} needs {human_bytes(wanted)} for a pass that carries a matrix of n_components="
                f"{feature_map.n_components:_} squared, but has {human_bytes(limit)}; give it more "
                "memory, or fit fewer components"
            )


def is_one_alpha(alpha: Alpha) -> bool:
    """Return whether `alpha` is one number, so that one Cholesky factorisation solves the job."""
    return not isinstance(alpha, str) and np.ndim(alpha) == 0


# -- inspect ---------------------------------------------------------------------------------------


def inspect(dataset: Dataset, *, engine: Engine) -> Moments:
    """Check all values and measure means, standard deviations and weights, in one cheap pass.

    Raises
    ------
    DataError
        If a value is NaN or infinite, a weight negative, or all weights are zero; names row and column.
    """
    blocks = blocks_of(dataset)
    pivot = _first_row_that_counts(dataset, blocks)
    moments: Moments = engine.map_reduce(
        BlockTask(dataset, measure_moments), blocks, pivot, combine=operator.add, label="inspect"
    )
    if not moments.weight.value() > 0:
        raise DataError("all sample weights are zero; at least one row must count")
    lost = (moments.squares.value() == 0) & (moments.sums.value() != 0)
    if lost.any():
        column = int(np.argmax(lost))
        n_features = len(pivot) - moments.n_targets
        name = f"X, column {column}" if column < n_features else f"y, column {column - n_features}"
        raise DataError(f"Input {name} varies by less than float64 can square; multiply it by a large number")
    return moments


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
    n_features = len(moments.pivot) - moments.n_targets
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
    n_features = len(moments.pivot) - moments.n_targets
    deviations = moments.standard_deviations[:n_features]
    return Standardizer(moments.means[:n_features], np.where(deviations > 0, deviations, 1.0))


def check_standardize(standardize: object) -> bool | str:
    """Return what is done to the input columns: True, False, "rank" or "auto".

    Raises
    ------
    InvalidParameterError
        If it is none of these.
    """
    if isinstance(standardize, bool | np.bool_):
        return bool(standardize)
    if isinstance(standardize, str) and standardize in ("rank", "auto"):
        return standardize
    raise InvalidParameterError(f"`standardize` is {standardize!r}; expected True, False, 'rank' or 'auto'")


def standardizer_for(
    dataset: Dataset, moments: Moments, standardize: bool | str, *, engine: Engine
) -> Standardizer | None:
    """Return what is done to the input columns before features are made of them; it never looks at y.

    Parameters
    ----------
    dataset : Dataset
    moments : Moments
        From `inspect`.
    standardize : True, False, "rank" or "auto"
        True takes means and standard deviations out, False nothing. "rank" maps each column to a normal law
        by the ranks of its values, see `rff_dist.quantiles`: another cheap pass. "auto" is True, but "rank"
        for columns with heavy tails, see `HEAVY_KURTOSIS`; it takes the pass only where there are some.
    engine : Engine

    Raises
    ------
    InvalidParameterError
        If `standardize` is none of these.
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
        BlockTask(dataset, sample_columns),
        blocks_of(dataset),
        columns,
        combine=operator.add,
        label="ranks",
    )
    ranks = tuple(rank_map(int(one), values) for one, values in zip(columns, sample.values.T, strict=True))
    if standardize == "auto":
        ranks = tuple(rank for rank in ranks if len(rank.inputs) >= MIN_RANKED_VALUES)
    standardizer = replace(standardizer, ranks=ranks)
    logger.info("columns mapped to a normal law by their ranks: %s", list(standardizer.ranked_columns))
    return standardizer


def input_range(moments: Moments, standardizer: Standardizer | None) -> tuple[FloatArray, FloatArray]:
    """Return the least and the largest value of each (standardised) input column."""
    n_features = len(moments.pivot) - moments.n_targets
    lower, upper = moments.minimum[:n_features], moments.maximum[:n_features]
    return (lower, upper) if standardizer is None else (standardizer(lower), standardizer(upper))


def target_offset_from(moments: Moments) -> tuple[float, ...]:
    """Return the targets' means, to subtract before summing."""
    return tuple(float(mean) for mean in moments.means[len(moments.pivot) - moments.n_targets :])


def fraction_bits_for(n_samples: int) -> int:
    """Return the fineness of the sums' grid: finer for few rows, whose products have finer bits.

    More rows may be added on the fine grid later: the sums are as exact, and take twice the memory.
    """
    return FINE_FRACTION_BITS if n_samples <= 2**13 else FRACTION_BITS


def weight_grid(moments: Moments) -> dict[str, Any]:
    """Return the parts of a `StatisticsSpec` that the weights decide.

    The grid's exponent is the smallest whose power of two no weight exceeds.

    Raises
    ------
    DataError
        If the weights are so large or small that float64 would overflow or lose them.
    """
    mantissa, exponent = math.frexp(moments.largest_weight)
    exponent -= mantissa == 0.5  # a power of two itself
    if abs(exponent) > MAX_WEIGHT_EXPONENT:
        raise DataError(
            f"sample weights are up to {moments.largest_weight:g}; scale them to lie between "
            f"{2.0**-MAX_WEIGHT_EXPONENT:.0e} and {2.0**MAX_WEIGHT_EXPONENT:.0e}"
        )
    return {"weight_exponent": exponent, "frequency_weights": moments.frequency_weights}


# -- accumulate ------------------------------------------------------------------------------------


def statistics_spec(
    dataset: Dataset,
    feature_map: FeatureMap,
    *,
    target_offset: tuple[float, ...] = (),
    weight_exponent: int = 0,
    frequency_weights: bool = False,
    fraction_bits: int = FRACTION_BITS,
    with_targets: bool = True,
    engine: Engine | None = None,
) -> StatisticsSpec:
    """Return what statistics of a dataset in a feature map are about.

    Features without a bound, such as linear ones, take their grid from a first pass of maxima on
    `engine`, with head-room for twice as much; see `blocks.measure_features`. Without targets the statistics
    are Z'Z, Z'1 and the counts alone, and y is not looked at.

    Raises
    ------
    DataError
        If the dataset has no targets, unless it is to be summed without.
    """
    if with_targets and dataset.n_targets < 1:
        raise DataError("the data have no y: training needs targets")
    return StatisticsSpec(
        n_components=feature_map.n_components,
        n_targets=dataset.n_targets if with_targets else 0,
        feature_digest=feature_map.digest(),
        scales=feature_map.scales,
        whitened=isinstance(feature_map, NystromFeatureMap),
        exponents=() if feature_map.bounded else _feature_grid(dataset, feature_map, engine=engine),
        weight_exponent=weight_exponent,
        target_offset=target_offset,
        one_dimensional=with_targets and dataset.one_dimensional,
        frequency_weights=frequency_weights,
        fraction_bits=fraction_bits,
    )


def _feature_grid(
    dataset: Dataset, feature_map: FeatureMap, *, engine: Engine | None
) -> tuple[tuple[int, int], ...]:
    largest: FloatArray = (SerialEngine() if engine is None else engine).map_reduce(
        BlockTask(dataset, measure_features),
        blocks_of(dataset),
        feature_map,
        combine=np.maximum,
        label="measure",
    )
    exponents = np.where(largest > 0, np.frexp(largest)[1] + 1, 0)  # a bit of head-room
    return tuple((count, int(exponent)) for count, exponent in as_runs(exponents))


def broadcast(feature_map: FeatureMap, spec: StatisticsSpec, *, engine: Engine) -> Broadcast[Accumulation]:
    """Give the feature map to every worker and check that each holds the same frequencies.

    Raises
    ------
    BroadcastError
        If a worker's differ; names the worker and both digests.
    """
    return engine.broadcast(Accumulation(feature_map, spec))


def accumulate(
    dataset: Dataset,
    feature_map: FeatureMap,
    *,
    engine: Engine | None = None,
    spec: StatisticsSpec | None = None,
) -> RidgeStatistics:
    """Accumulate the exact statistics of a dataset in one pass, O(n_samples · n_components²).

    The result has the same bits on every engine, on one type of machine.

    Parameters
    ----------
    dataset : Dataset
        With targets, or without: then the statistics are Z'Z, Z'1 and the counts alone.
    feature_map : FeatureMap
        See `draw_feature_map`.
    engine : Engine, optional
        A `SerialEngine` with all threads by default.
    spec : StatisticsSpec, optional
        Offsets and grids to sum with. By default targets are summed as they are, and the grid of
        the weights, where there are any, comes from a first pass.

    Returns
    -------
    statistics : RidgeStatistics

    Raises
    ------
    DataError
        If values are not finite, or the spec is of targets and there are none.
    StatisticsError
        If a row is missing or was counted twice.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import accumulate, draw_feature_map, open_dataset, write_dataset
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((1000, 3))
    >>> dataset = write_dataset("memory://accumulate-example", X, X.sum(axis=1))
    >>> feature_map = draw_feature_map("gaussian", n_features=3, n_components=64)
    >>> statistics = accumulate(dataset, feature_map)
    >>> statistics.n_samples, statistics.ZtZ().shape
    (1000, (64, 64))
    """
    if not hasattr(dataset, "read"):
        raise InvalidParameterError(
            f"`dataset` is a {type(dataset).__name__}; open it first: open_dataset(…)"
        )
    engine = SerialEngine() if engine is None else engine
    if spec is None:
        spec = statistics_spec(dataset, feature_map, with_targets=dataset.n_targets > 0, engine=engine)
        if dataset.weighted:
            spec = replace(spec, **weight_grid(inspect(dataset, engine=engine)))
    return accumulate_broadcast(dataset, broadcast(feature_map, spec, engine=engine), engine=engine)


def accumulate_broadcast(
    dataset: Dataset, state: Broadcast[Accumulation], *, engine: Engine
) -> RidgeStatistics:
    """Accumulate with a state that the workers have already."""
    statistics: RidgeStatistics = engine.map_reduce(
        BlockTask(dataset, accumulate_rows),
        blocks_of(dataset, max_rows=state.state.spec.limb_rows),
        state,
        combine=operator.add,
        label="accumulate",
    )
    feature_map = state.state.feature_map
    statistics.check_complete(dataset.n_samples, feature_map.squared_norm)
    return statistics.with_whitener(feature_map.whitener)


def accumulate_folds(
    dataset: Dataset, members: Sequence[Accumulation], *, folds: Folds, engine: Engine
) -> tuple[FoldStatistics, ...]:
    """Accumulate each fold's exact statistics for several feature maps in one reading of a dataset.

    O(n_samples · n_components²) for each map, whatever the number of folds; every fold and map takes memory
    of its own.

    Parameters
    ----------
    dataset : Dataset
        With targets, and with groups where the folds are of groups.
    members : sequence of Accumulation
        The feature maps, and what each one's statistics are about.
    folds : Folds
    engine : Engine

    Returns
    -------
    statistics : tuple of FoldStatistics
        One for each member.

    Raises
    ------
    DataError
        If values are not finite, or targets or groups are missing.
    StatisticsError
        If a row is missing or was counted twice.
    BroadcastError
        If a worker's features differ.
    """
    state = engine.broadcast(Accumulations(tuple(members), folds, dataset.n_samples))
    found: tuple[FoldStatistics, ...] = engine.map_reduce(
        BlockTask(dataset, accumulate_fold_rows),
        blocks_of(
            dataset,
            max_rows=min(member.spec.limb_rows for member in members),
            n_folds=folds.n_folds,
        ),
        state,
        combine=add_each,
        label="accumulate",
    )
    for statistics, member in zip(found, members, strict=True):
        statistics.check_complete(dataset.n_samples, member.feature_map.squared_norm)
    return tuple(
        statistics.with_whitener(member.feature_map.whitener)
        for statistics, member in zip(found, members, strict=True)
    )


# -- solve -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Solved:
    """Coefficients, and what alpha was chosen from where it was chosen.

    Attributes
    ----------
    solution : RidgeSolution
    selection : Selection or None
        The path of alpha on all rows, by GCV or the evidence.
    cross_validation : CrossValidation or None
        The table of k-fold errors.
    choice : Choice or None
        The place of that table that was taken.
    leave_one_out : LeaveOneOut or None
        The path of alpha by PRESS.
    """

    solution: RidgeSolution
    selection: Selection | None
    cross_validation: CrossValidation | None = None
    choice: Choice | None = None
    leave_one_out: LeaveOneOut | None = None

    def path(self) -> dict[str, NDArray[Any]]:
        """Return what alpha was chosen from as named arrays: the table of folds, or the path on all rows."""
        if self.cross_validation is not None:
            return self.cross_validation.to_arrays()
        if self.leave_one_out is not None:
            return self.leave_one_out.to_arrays()
        return {} if self.selection is None else self.selection.to_arrays()

    @property
    def chosen_by(self) -> str:
        """What alpha was chosen by: "cv", "press", "gcv", "evidence" or "given"."""
        if self.cross_validation is not None:
            return "cv" if len(self.cross_validation.alphas) > 1 else "given"
        if self.leave_one_out is not None:
            return "press"
        return "given" if self.selection is None else self.selection.criterion


def solve_folds(
    statistics: FoldStatistics,
    feature_map: FeatureMap,
    *,
    alpha: Alpha = "cv",
    alphas: Sequence[float] | None = None,
    n_components: Sequence[int] = (),
    fit_intercept: bool = True,
) -> tuple[FeatureMap, RidgeStatistics, Solved]:
    """Choose alpha and the number of components by k-fold cross-validation, and solve on all rows.

    O(n_splits · n_components³) for the table of all folds, alphas, widths and targets; no data are read.

    Parameters
    ----------
    statistics : FoldStatistics
        In `feature_map`.
    feature_map : FeatureMap
    alpha : "cv", "cv-1se", float or sequence of float
        "cv" searches from the rounding floor to the largest eigenvalue for the least error; "cv-1se" takes
        the largest alpha within one standard error of it.
    alphas : sequence of float, optional
        What "cv" and "cv-1se" search instead.
    n_components : sequence of int
        Widths to look at, at most the map's own, which they are completed by. Of several, the smallest is
        taken whose least error lies within one standard error of the least of all.
    fit_intercept : bool

    Returns
    -------
    feature_map : FeatureMap
        Of the width that was chosen.
    statistics : RidgeStatistics
        Of all rows, in it.
    solved : Solved

    Raises
    ------
    InvalidParameterError
        If alpha is not above 0, or the map has no smaller draws.
    StatisticsError
        If a fold has no rows.
    """
    whole = feature_map.n_components
    widths = sorted({*(n for n in n_components if n < whole), whole})
    maps = [shortened(feature_map, width) for width in widths]
    grid = alphas if isinstance(alpha, str) else alpha
    table = cross_validate(
        statistics,
        alphas=None if grid is None else np.atleast_1d(np.asarray(grid, np.float64)),
        feature_maps=maps,
        fit_intercept=fit_intercept,
    )
    choice = table.smallest_width() if len(widths) > 1 else table.best
    if isinstance(alpha, str) and alpha == "cv-1se":
        choice = table.one_standard_error(choice.n_components)
    chosen = maps[widths.index(choice.n_components)]
    total = statistics.total()
    if chosen is not feature_map:
        total = total.leading(chosen.n_components, feature_digest=chosen.digest(), scales=chosen.scales)
    equations = total.normal_equations(fit_intercept=fit_intercept)
    solution = solve_cholesky(equations, np.asarray(choice.alpha), overwrite_gram=True)
    return chosen, total, Solved(solution, None, table, choice)


def solve(
    statistics: RidgeStatistics,
    *,
    alpha: Alpha = "auto",
    alphas: Sequence[float] | None = None,
    fit_intercept: bool = True,
) -> Solved:
    """Solve ridge regression from its statistics alone, O(n_components³).

    Parameters
    ----------
    statistics : RidgeStatistics
    alpha : "auto", "gcv", "evidence", float or sequence of float
        The penalty; of a sequence the one with the least GCV; "gcv" and "evidence" search from the
        rounding floor to the largest eigenvalue, and "auto" is "gcv".
    alphas : sequence of float, optional
        What "gcv" and "evidence" search instead.
    fit_intercept : bool
        Whether to fit an intercept, which is not penalised.

    Raises
    ------
    InvalidParameterError
        If alpha is negative or not a number.
    SolveError
        If the statistics are not finite.
    """
    check_alpha(alpha)
    if isinstance(alpha, str) and alpha not in ("auto", "gcv", "evidence"):
        raise InvalidParameterError(
            f"`alpha` is {alpha!r}, which needs more than the sums of all rows: those of each fold, see "
            "`solve_folds`, or another pass, see `leave_one_out`"
        )
    equations = statistics.normal_equations(fit_intercept=fit_intercept)
    if is_one_alpha(alpha):
        return Solved(solve_cholesky(equations, np.asarray(alpha), overwrite_gram=True), None)
    spectrum = decompose(equations)
    grid = alphas if isinstance(alpha, str) else alpha
    selection = select_alpha(
        spectrum,
        None if grid is None else np.asarray(grid, np.float64),
        criterion="evidence" if isinstance(alpha, str) and alpha == "evidence" else "gcv",
    )
    return Solved(spectrum.solve(selection.alpha), selection)


def resolve_alpha(alpha: Alpha, length_scale: object) -> Alpha:
    """Return "evidence" for "auto" where the evidence chose the length scales too, else `alpha` itself.

    GCV is wrong for length scales that were tuned on some of the same rows: it took an error of 0.23 for
    0.15 on one low-noise data set.
    """
    by_evidence = isinstance(length_scale, str) and length_scale == "evidence"
    return "evidence" if by_evidence and isinstance(alpha, str) and alpha == "auto" else alpha


def check_alpha(alpha: Any) -> None:
    """Check that alpha is "auto", "gcv", "evidence", a finite number of at least 0, or several.

    Raises
    ------
    InvalidParameterError
        Otherwise.
    """
    if isinstance(alpha, str) and alpha in ALPHA_NAMES:
        return
    values = np.asarray(alpha)
    numbers = values.dtype.kind in "iuf" and values.ndim <= 1 and values.size > 0
    if not numbers or not ((values >= 0) & (values < math.inf)).all() or (values.ndim and not values.all()):
        raise InvalidParameterError(
            f"`alpha` is {alpha!r}; expected 'auto', 'gcv', 'evidence', 'cv', 'cv-1se', 'press', a finite "
            "number of at least 0, or a list of such numbers above 0"
        )


def folds_for(cv: int | Folds | None, *, alpha: Alpha, n_components: Components) -> Folds | None:
    """Return the folds that a fit sums apart; None where nothing is chosen by cross-validation.

    Parameters
    ----------
    cv : int, Folds or None
        None is 5 folds by hash where `alpha` or `n_components` ask for some.
    alpha : Alpha
        "cv" and "cv-1se" do.
    n_components : int, "auto" or sequence of int
        "auto" and several do.

    Raises
    ------
    InvalidParameterError
        If `cv` is no number of folds, or `alpha` is chosen by something else, or 0.
    """
    named = isinstance(alpha, str)
    several = not is_one_width(n_components)
    if cv is None and not several and not (named and str(alpha).startswith("cv")):
        return None
    if named and alpha not in CV_NAMES:
        asked = f"`cv` is {cv!r}" if cv is not None else f"`n_components` is {n_components!r}"
        raise InvalidParameterError(
            f"{asked}, which chooses by k-fold cross-validation, and `alpha` is {alpha!r}; expected "
            f"one of {list(CV_NAMES)} or numbers. Leave one of them out"
        )
    if not named and not np.all(np.asarray(alpha) > 0):
        raise InvalidParameterError(f"`alpha` is {alpha!r}; cross-validation needs numbers above 0")
    folds = DEFAULT_FOLDS if cv is None else find_folds(cv)
    if len(folds.splits) < 2 and (several or (named and alpha == "cv-1se")):
        raise InvalidParameterError(
            f"{folds} give one split, whose error has no standard error; use more folds"
        )
    return folds


def check_folds(dataset: Dataset, folds: Folds) -> None:
    """Check that a dataset's rows know what the folds go by, before a pass over them.

    Raises
    ------
    DataError
        If the folds are of groups and there are none.
    """
    first = Block(0, 0, min(1, dataset.n_samples))
    folds.assign(0, first.stop, n_samples=dataset.n_samples, groups=dataset.read(first).groups)


def is_one_width(n_components: Components) -> bool:
    """Return whether `n_components` is one number rather than "auto" or several."""
    return not isinstance(n_components, str) and np.ndim(n_components) == 0


def read_widths(n_components: Components, map: str, features: str | Nystrom) -> list[int]:
    """Return the widths that a fit looks at, ascending: one, unless several or "auto" are given.

    "auto" is 2,048 and its halves down to 32.

    Raises
    ------
    InvalidParameterError
        If there is none, or one is no integer of at least 1, or odd for Fourier features in pairs.
    """
    if isinstance(n_components, str):
        if n_components != "auto":
            raise InvalidParameterError(
                f"`n_components` is {n_components!r}; expected 'auto', an integer, or several"
            )
        halvings = int(math.log2(AUTO_COMPONENTS // MIN_AUTO_COMPONENTS))
        return [MIN_AUTO_COMPONENTS << i for i in range(halvings + 1)]
    given = [n_components] if np.ndim(n_components) == 0 else list(cast("Sequence[int]", n_components))
    if not given:
        raise InvalidParameterError("`n_components` is empty; expected at least one width")
    return sorted({check_width(width, map, features) for width in given})


def refit(
    model: RidgeModel,
    statistics: RidgeStatistics,
    *,
    alpha: Alpha = "auto",
    alphas: Sequence[float] | None = None,
    fit_intercept: bool = True,
) -> RidgeModel:
    """Solve a model again from changed statistics of the same features; see `solve`.

    Held-out scores stay: they are of fits of fewer rows, and so err on the wide side.
    """
    solved = solve(statistics, alpha=alpha, alphas=alphas, fit_intercept=fit_intercept)
    names = ("feature_names", "target_names", "folds", "standardize", "chosen_by")
    kept = {name: model.card[name] for name in names if name in model.card}
    again = RidgeModel.from_solution(
        model.feature_map,
        statistics,
        solved.solution,
        solved.path() or model.selection,
        {**kept, **describe_choices(alpha, fit_intercept)},
    )
    return replace(again, held_out=model.held_out)


# -- errors of rows that were held out -------------------------------------------------------------


def leave_one_out(
    dataset: Dataset,
    statistics: RidgeStatistics,
    feature_map: FeatureMap,
    *,
    alphas: ArrayLike | None = None,
    fit_intercept: bool = True,
    engine: Engine,
) -> LeaveOneOut:
    """Measure the leave-one-out errors (PRESS) of every alpha in one more pass over the training rows.

    2 · n_samples · n_components² operations, twice those of the statistics, and O(n_components³) before
    them. Each worker holds 8 · n_components² bytes; see `rff_dist.leave_one_out` for the formula, and
    `select_by_press` for the best alpha.

    Parameters
    ----------
    dataset : Dataset
        The rows that `statistics` count, no others.
    statistics : RidgeStatistics
    feature_map : FeatureMap
        They were accumulated with.
    alphas : float64 array of shape (n_alphas,), optional
        Penalties above 0; three a decade by default, see `default_alphas`.
    fit_intercept : bool
        Whether an intercept is fitted.
    engine : Engine

    Raises
    ------
    InvalidParameterError
        If an alpha is not positive and finite, or there is none.
    DataError
        If values are not finite.
    StatisticsError
        If the statistics are of other rows.
    PlanError
        If the matrix does not fit into the memory there is.
    """
    if statistics.n_samples != dataset.n_samples or statistics.spec.n_targets != dataset.n_targets:
        raise StatisticsError(
            f"the statistics count {statistics.n_samples:_} rows of {statistics.spec.n_targets} targets, the "
            f"data have {dataset.n_samples:_} of {dataset.n_targets}; rows are left out of those that were "
            "trained on: give the same data"
        )
    n_alphas = MAX_DEFAULT_ALPHAS if alphas is None else np.size(alphas)
    check_matrix_pass(
        dataset,
        feature_map,
        engine=engine,
        n_targets=dataset.n_targets,
        n_columns=n_alphas * (dataset.n_targets + 1),
        spectral=True,
    )
    state = hat_matrix(statistics, feature_map, alphas=alphas, fit_intercept=fit_intercept)
    found: LeaveOneOut = engine.map_reduce(
        BlockTask(dataset, leave_out_rows),
        blocks_of(dataset),
        state,
        combine=operator.add,
        label="leave one out",
    )
    trained_on, seen = statistics.sum_of_weights, float(found.weight.value())
    if not math.isclose(seen, trained_on, rel_tol=1e-9):  # the same weights, added in other groups
        raise StatisticsError(
            f"the statistics' weights add up to {trained_on:g}, those of the data to {seen:g}; rows are left "
            "out of those that were trained on: give the same data"
        )
    return found


def hold_out_scores(
    dataset: Dataset,
    statistics: FoldStatistics,
    feature_map: FeatureMap,
    *,
    alpha: ArrayLike,
    fit_intercept: bool = True,
    engine: Engine,
) -> HeldOutScores:
    """Count how far off each row is from the model that was trained without its fold, in one more pass.

    A pass of predictions, after n_splits Cholesky factorisations; see `rff_dist.conformal` for the intervals
    that `quantile` of the scores gives.

    Parameters
    ----------
    dataset : Dataset
        The rows that `statistics` count, in the same order.
    statistics : FoldStatistics
    feature_map : FeatureMap
        They were accumulated with.
    alpha : float or array of shape (n_targets,)
        The penalty of the model of all rows.
    fit_intercept : bool
        Whether it has an intercept.
    engine : Engine

    Raises
    ------
    DataError
        If values are not finite, or targets or groups are missing.
    StatisticsError
        If the statistics are of other rows, or no fold that is held out has any.
    """
    if statistics.n_samples != dataset.n_samples:
        raise StatisticsError(
            f"the folds' statistics count {statistics.n_samples:_} rows, the data have "
            f"{dataset.n_samples:_}; scores are of the rows cut into folds: give the same data"
        )
    scores: HeldOutScores = engine.map_reduce(
        BlockTask(dataset, score_rows),
        blocks_of(dataset),
        fold_models(statistics, feature_map, alpha=alpha, fit_intercept=fit_intercept),
        combine=operator.add,
        label="hold out",
    )
    return scores


# -- the whole job ---------------------------------------------------------------------------------


def fit(
    dataset: Dataset,
    kernel: Kernel,
    *,
    engine: Engine,
    length_scale: str | LengthScale | None = "auto",
    n_components: Components = 2048,
    alpha: Alpha = "auto",
    design: str | Design = "orthogonal",
    map: str = "pairs",
    standardize: bool | str = "auto",
    fit_intercept: bool = True,
    seed: int = 0,
    features: str | Nystrom = "fourier",
    cv: int | Folds | None = None,
    alphas: Sequence[float] | None = None,
    conformal: bool = False,
) -> tuple[RidgeModel, Solved]:
    """Train a ridge regression on random or Nyström features: two passes over the data and one solve.

    Parameters
    ----------
    dataset : Dataset
        With targets.
    kernel : Kernel
    engine : Engine
    length_scale : "auto", "evidence", number(s) or None
        "auto" is the median heuristic, "evidence" is `tune`; None keeps the kernel's own.
    n_components : int, "auto" or sequence of int
        D: cost grows with its square, error falls as 1/√D. Of several, cross-validation takes the smallest
        within one standard error of the best, from the same pass; see `solve_folds` and `read_widths`.
    alpha : "auto", "gcv", "evidence", "cv", "cv-1se", "press", float or sequence of float
        See `solve` and, for the cross-validated, `solve_folds`; "press" is the least leave-one-out error at
        the cost of another pass, see `leave_one_out`. "auto" is "cv" where `cv` or several widths
        are given, else "evidence" where the length scale is, see `resolve_alpha`, else "gcv".
    design, map : str
        See `draw_feature_map`; map="auto" takes the real map of lower variance, see `choose_map`.
    standardize : {"auto", "rank"} or bool
        What is done to the input columns first, see `standardizer_for`.
    fit_intercept : bool
        Whether to fit an intercept.
    seed : int
        Of frequencies and samples.
    features : "fourier", "nystrom" or Nystrom
        See `draw`.
    cv : int, Folds or None
        Folds to choose by; see `folds_for`. Each fold is summed apart in the same pass.
    alphas : sequence of float, optional
        What a named `alpha` searches, in the place of the whole range.
    conformal : bool
        Whether a third pass counts how far off held-out rows are, for intervals; see `hold_out_scores`. It
        needs folds, 5 by hash unless `cv` says otherwise.

    Returns
    -------
    model : RidgeModel
    solved : Solved
        Solver status, and what alpha was chosen from.
    """
    widths = read_widths(n_components, map, features)
    standardize = check_standardize(standardize)
    check_alpha(alpha)
    if alphas is not None:
        check_alpha(alphas)
        if not isinstance(alpha, str):
            raise InvalidParameterError(f"`alpha` is {alpha!r} beside `alphas`; give one of them")
    folds = folds_for(
        DEFAULT_FOLDS if cv is None and conformal else cv, alpha=alpha, n_components=n_components
    )
    if folds is not None:
        check_folds(dataset, folds)
    check_plan(
        dataset,
        widths[-1],
        engine=engine,
        alpha=alpha,
        features=features,
        n_folds=1 if folds is None else folds.n_folds,
    )
    moments = inspect(dataset, engine=engine)
    if not standardize:
        warn_of_lost_digits(moments)
    standardizer = standardizer_for(dataset, moments, standardize, engine=engine)
    feature_map = draw(
        dataset,
        kernel,
        length_scale=length_scale,
        n_components=widths[-1],
        design=design,
        map=map,
        seed=seed,
        standardizer=standardizer,
        ranges=input_range(moments, standardizer),
        features=features,
    )
    spec = statistics_spec(
        dataset,
        feature_map,
        target_offset=target_offset_from(moments),
        fraction_bits=fraction_bits_for(dataset.n_samples),
        engine=engine,
        **weight_grid(moments),
    )
    held_out = None
    if folds is None:
        chosen_by = resolve_alpha(alpha, length_scale)
        statistics = accumulate(dataset, feature_map, engine=engine, spec=spec)
        if isinstance(chosen_by, str) and chosen_by == "press":
            solved = _solve_by_press(
                dataset, statistics, feature_map, alphas=alphas, fit_intercept=fit_intercept, engine=engine
            )
        else:
            solved = solve(statistics, alpha=chosen_by, alphas=alphas, fit_intercept=fit_intercept)
    else:
        chosen_by = "cv" if isinstance(alpha, str) and alpha == "auto" else alpha
        member = Accumulation(feature_map, spec)
        (parts,) = accumulate_folds(dataset, [member], folds=folds, engine=engine)
        feature_map, statistics, solved = solve_folds(
            parts,
            feature_map,
            alpha=chosen_by,
            alphas=alphas,
            n_components=widths,
            fit_intercept=fit_intercept,
        )
        if conformal:
            held_out = hold_out_scores(
                dataset,
                parts.leading(
                    feature_map.n_components, feature_digest=feature_map.digest(), scales=feature_map.scales
                ),
                feature_map,
                alpha=solved.solution.alpha,
                fit_intercept=fit_intercept,
                engine=engine,
            )
    model = RidgeModel.from_solution(
        feature_map,
        statistics,
        solved.solution,
        solved.path(),
        {
            **describe_dataset(dataset),
            **describe_choices(chosen_by, fit_intercept, folds),
            **(describe_cut(dataset, statistics) if folds is None else {}),
            **({} if alphas is None else {"alphas": [float(one) for one in alphas]}),
            "standardize": standardize,
            "chosen_by": solved.chosen_by,
        },
    )
    return replace(model, held_out=held_out, columns=ColumnMoments.of(moments)), solved


def _solve_by_press(
    dataset: Dataset,
    statistics: RidgeStatistics,
    feature_map: FeatureMap,
    *,
    alphas: Sequence[float] | None,
    fit_intercept: bool,
    engine: Engine,
) -> Solved:
    path = leave_one_out(
        dataset, statistics, feature_map, alphas=alphas, fit_intercept=fit_intercept, engine=engine
    )
    solved = solve(statistics, alpha=select_by_press(path), fit_intercept=fit_intercept)
    return replace(solved, leave_one_out=path)


def describe_dataset(dataset: Dataset) -> Mapping[str, Any]:
    """Return the facts of a dataset that a model's card keeps."""
    facts: dict[str, Any] = {"data_fingerprint": dataset.fingerprint()}
    rows: Any = dataset
    while isinstance(rows, ExtendedDataset):
        rows = rows.source
    if hasattr(rows, "prefix_fingerprint"):  # rows that are lazy, a Dask collection, have none
        # Of all rows now, of the first ones when more were appended: what an update compares.
        facts["prefix_fingerprint"] = cast("Any", dataset).prefix_fingerprint(dataset.n_samples)
    for name in ("feature_names", "target_names"):
        names = getattr(dataset, name, None)
        if names is not None:
            facts[name] = list(names)
    return facts


def describe_cut(dataset: Dataset, statistics: RidgeStatistics) -> Mapping[str, Any]:
    """Return what a model's card keeps of the blocks that `accumulate` cut: only the last one is shorter."""
    blocks = blocks_of(dataset, max_rows=statistics.spec.limb_rows)
    return {"rows_per_block": blocks[0].n_samples}


def describe_choices(alpha: Alpha, fit_intercept: bool, folds: Folds | None = None) -> Mapping[str, Any]:
    """Return the facts of a model's card by which later fits choose as this one did."""
    given = alpha if isinstance(alpha, str) else np.asarray(alpha, np.float64).tolist()
    cut = {} if folds is None else {"folds": folds_to_dict(folds)}
    return {"alpha_given": given, "fit_intercept": bool(fit_intercept), **cut}


def length_scale_of(feature_map: FeatureMap) -> LengthScale | None:
    """Return the kernel's length scale that a feature map was drawn with; None where it has no single one.

    Raises
    ------
    InvalidParameterError
        If its frequencies were given rather than drawn.
    """
    kernel = kernel_of(feature_map)
    if kernel is None:
        raise InvalidParameterError(
            "this feature map was made of given frequencies; it knows no length scale"
        )
    return cast("LengthScale | None", getattr(kernel, "length_scale", None))


def kernel_of(feature_map: FeatureMap) -> Kernel | None:
    """Return the kernel that a feature map stands for; None where its frequencies were given."""
    if isinstance(feature_map, PrincipalFeatureMap):
        return kernel_of(feature_map.base)
    if isinstance(feature_map, NystromFeatureMap):
        return feature_map.kernel
    return None if feature_map.spec is None else feature_map.spec.kernel
