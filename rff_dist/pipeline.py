"""The main job as plain functions: inspect → draw → broadcast → accumulate → solve → evaluate → publish.

Estimators, the command line and the Prefect flows are thin faces of these. Each pass goes through
an engine; everything else is arithmetic on what the passes return.
"""

from __future__ import annotations

import logging
import math
import operator
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rff_dist.blocks import (
    Accumulation,
    Block,
    BlockTask,
    Dataset,
    Errors,
    LinearModel,
    Moments,
    Rows,
    accumulate_rows,
    check_finite,
    evaluate_rows,
    measure_features,
    measure_moments,
    predict_rows,
)
from rff_dist.bounds import better_map
from rff_dist.engines import Broadcast, Engine
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.evidence import TunedKernel, check_tunable, maximize_evidence, median_distance
from rff_dist.feature_map import (
    FeatureMap,
    Nystrom,
    NystromFeatureMap,
    Standardizer,
    check_n_components,
    draw_feature_map,
    draw_nystrom,
)
from rff_dist.frequencies import Design
from rff_dist.kernels import Kernel, LengthScale, Stationary, with_length_scale
from rff_dist.kernels.base import check_count
from rff_dist.model import RidgeModel
from rff_dist.plan import MAX_BLOCK_ROWS, Plan, available_memory, plan_blocks, plan_fit
from rff_dist.runs import as_runs
from rff_dist.selection import Selection, select_alpha
from rff_dist.solvers import RidgeSolution, decompose, solve_cholesky
from rff_dist.statistics import FINE_FRACTION_BITS, FRACTION_BITS, RidgeStatistics, StatisticsSpec
from rff_dist.storage import create_output

logger = logging.getLogger(__name__)

type Alpha = float | str | Sequence[float] | NDArray[Any]
type FloatArray = NDArray[np.float64]

MAX_WEIGHT_EXPONENT = 400
ALPHA_NAMES = ("auto", "gcv", "evidence")
HEURISTIC_ROWS = 1000  # rows of the seeded sample whose distances give the median heuristic
TUNING_ROWS = 4000  # rows of the seeded sample whose evidence gives the length scales
SAMPLED_CHUNKS = 256  # that a larger sample is read from where single rows would touch more
FEATURES = ("fourier", "nystrom")


def blocks_of(dataset: Dataset, *, max_rows: int = MAX_BLOCK_ROWS) -> list[Block]:
    """Return the blocks that passes over the dataset use, of at most `max_rows` rows.

    Raises
    ------
    DataError
        If the dataset has no rows.
    """
    if dataset.n_samples < 1:
        raise DataError("Found array with 0 sample(s): the data have no rows; at least 1 is needed")
    return plan_blocks(
        dataset.n_samples, dataset.n_features, dataset.dtype.itemsize, dataset.chunk_rows, max_rows=max_rows
    )


def find_features(features: str | Nystrom) -> Nystrom | None:
    """Return how Nyström features are made, or None for random Fourier features.

    Raises
    ------
    InvalidParameterError
        If `features` is neither a name nor a `Nystrom`.
    """
    if isinstance(features, Nystrom):
        return features
    if features not in FEATURES:
        raise InvalidParameterError(
            f"unknown `features` {features!r}; expected one of {sorted(FEATURES)}, or Nystrom(…)"
        )
    return Nystrom() if features == "nystrom" else None


def check_width(n_components: object, map: str, features: str | Nystrom) -> int:
    """Return `n_components` as an int, if there can be as many features of that kind.

    Raises
    ------
    InvalidParameterError
        If it is no integer of at least 1, or odd for Fourier features in pairs.
    """
    return check_n_components(n_components, map if find_features(features) is None else "centres")


def check_plan(
    dataset: Dataset,
    n_components: int,
    *,
    engine: Engine,
    alpha: Alpha = "auto",
    features: str | Nystrom = "fourier",
) -> Plan:
    """Plan a fit on an engine, and refuse it where this machine's memory would not do.

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
        memory_limit=getattr(engine, "worker_memory", None) or here,
        client_memory_limit=here,
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


# -- draw ------------------------------------------------------------------------------------------


def median_length_scale(
    dataset: Dataset, kernel: Stationary, *, standardizer: Standardizer | None, seed: int
) -> float:
    """Return the median distance, in the kernel's metric, between distinct rows of a seeded sample.

    A first guess that is right within a factor of a few for smooth targets; selection by GCV or
    evidence is better and dearer.

    Parameters
    ----------
    dataset : Dataset
    kernel : Stationary
        Whose metric counts.
    standardizer : Standardizer, optional
        Applied to the rows first.
    seed : int
        Of the sample of up to 1,000 rows.

    Returns
    -------
    length_scale : float
        In units of the (standardised) inputs; 1 where all sampled rows are equal.
    """
    sample = sample_inputs(dataset, seed)
    points = np.asarray(sample, np.float64) if standardizer is None else standardizer(sample)
    median = median_distance(points, kernel)
    if median is None:
        logger.warning("all sampled rows are equal, so the median heuristic gives a length scale of 1")
        return 1.0
    return median


def tune(
    dataset: Dataset,
    kernel: Kernel,
    *,
    standardizer: Standardizer | None,
    seed: int,
    per_feature: bool = True,
    n_samples: int = TUNING_ROWS,
    n_components: int = 256,
    n_starts: int = 4,
) -> TunedKernel:
    """Choose a kernel's length scales by the evidence of a seeded sample of rows, in this process.

    Takes seconds to a minute; O(n_samples · n_components²) for each of some hundred evaluations.

    Parameters
    ----------
    dataset : Dataset
        With targets; rows without weight do not count.
    kernel : Stationary
        Its own length scale is replaced.
    standardizer : Standardizer, optional
        Applied to the rows first.
    seed : int
        Of the sample, the frequencies and the starts.
    per_feature : bool
        Whether each input column has a length scale of its own.
    n_samples : int
        Rows of the sample, at most.
    n_components, n_starts : int
        See `rff_dist.evidence.maximize_evidence`.

    Raises
    ------
    InvalidParameterError
        If the kernel has no width, or several, or a number is out of range.
    DataError
        If the dataset has no targets, a sampled value is not finite, or the sample says nothing of a width.
    """
    found, n_rows = check_tunable(kernel), check_count(n_samples, "n_samples")
    if dataset.n_targets < 1:
        raise DataError("the data have no y: the evidence of length scales needs targets")
    X, y, weights = sample_rows(dataset, seed, n_rows=n_rows)
    assert y is not None  # there are targets
    with np.errstate(over="ignore"):
        inputs = np.asarray(X, np.float64) if standardizer is None else standardizer(X)
    return maximize_evidence(
        found,
        inputs,
        y,
        weights,
        per_feature=per_feature,
        n_components=n_components,
        n_starts=n_starts,
        seed=seed,
    )


def sample_inputs(dataset: Dataset, seed: int, *, n_rows: int = HEURISTIC_ROWS) -> NDArray[Any]:
    """Return the inputs of `sample_rows`."""
    return sample_rows(dataset, seed, n_rows=n_rows)[0]


def sample_rows(
    dataset: Dataset, seed: int, *, n_rows: int
) -> tuple[NDArray[Any], FloatArray | None, FloatArray | None]:
    """Return X, y and weights of up to `n_rows` rows that have weight.

    They are drawn without replacement, and come in the data's order. Rows without weight change nothing as
    long as the dataset is not larger than the sample; of a larger one, up to 64 times as many rows are
    looked at to find those that count.

    Raises
    ------
    DataError
        If no row has a weight, or a sampled one holds NaN or infinity.
    """
    rng = np.random.Generator(np.random.Philox(seed))
    n_drawn = min(n_rows, dataset.n_samples)
    while True:
        indices = _sample_indices(dataset, rng, n_drawn)
        sample, y, weights = dataset.take(indices)
        counts = np.arange(len(sample)) if weights is None else np.flatnonzero(weights > 0)
        if len(counts) >= n_rows or n_drawn >= min(dataset.n_samples, 64 * n_rows):
            break
        n_drawn = min(dataset.n_samples, 4 * n_drawn)
    if not len(counts):
        raise DataError(
            f"none of {n_drawn:_} sampled rows has a weight above 0; give rows that "
            "count, or numbers and names in the place of 'auto'"
        )
    if len(counts) > n_rows:
        counts = np.sort(rng.choice(counts, n_rows, replace=False))
    sample = sample[counts]
    y, weights = (None if part is None else part[counts] for part in (y, weights))
    for name, values in (("X", sample), ("y", y)):
        finite = np.ones(1) if values is None else np.isfinite(values).reshape(len(counts), -1).all(axis=1)
        if not finite.all():
            row = indices[counts[np.argmin(finite)]]
            raise DataError(
                f"Input {name} contains NaN or infinity: row {row:_}; fill or drop such rows first"
            )
    return sample, y, weights


def _sample_indices(dataset: Dataset, rng: np.random.Generator, n_rows: int) -> NDArray[np.intp]:
    """Return distinct row numbers in order; many rows of many chunks come from chunks drawn first."""
    n_chunks = -(-dataset.n_samples // dataset.chunk_rows)
    wanted = max(SAMPLED_CHUNKS, -(-2 * n_rows // dataset.chunk_rows))
    if n_rows <= HEURISTIC_ROWS or n_chunks <= wanted:
        return np.sort(rng.choice(dataset.n_samples, n_rows, replace=False))
    starts = np.sort(rng.choice(n_chunks, wanted, replace=False)) * dataset.chunk_rows
    rows = (starts[:, np.newaxis] + np.arange(dataset.chunk_rows)).ravel()
    rows = rows[rows < dataset.n_samples]
    return np.sort(rng.choice(rows, min(n_rows, len(rows)), replace=False))


def choose_map(
    dataset: Dataset, kernel: Kernel, n_components: int, *, standardizer: Standardizer | None, seed: int
) -> str:
    """Return "pairs" or "phases": the real map with the lower closed-form variance on a seeded sample.

    Parameters
    ----------
    dataset : Dataset
    kernel : Kernel
        With its length scale.
    n_components : int
        An odd number leaves only phases.
    standardizer : Standardizer, optional
        Applied to the rows first.
    seed : int
        Of the sample of up to 1,000 rows.

    See Also
    --------
    rff_dist.bounds.better_map : The comparison itself.
    """
    if n_components % 2:
        return "phases"
    sample = sample_inputs(dataset, seed)
    if len(sample) < 2:
        return "pairs"
    variances = better_map(kernel, sample if standardizer is None else standardizer(sample))
    logger.info(
        "map=%r: mean variance times D is %.4g for pairs and %.4g for phases",
        variances.better,
        variances.pairs,
        variances.phases,
    )
    return variances.better


def draw(
    dataset: Dataset,
    kernel: Kernel,
    *,
    length_scale: str | LengthScale | None,
    n_components: int,
    design: str | Design,
    map: str,
    seed: int,
    standardizer: Standardizer | None,
    ranges: tuple[FloatArray, FloatArray] | None = None,
    features: str | Nystrom = "fourier",
) -> FeatureMap:
    """Draw the feature map of a kernel for a dataset.

    Parameters
    ----------
    length_scale : "auto", "evidence", number(s) or None
        "auto" is the median heuristic, "evidence" is `tune`; None keeps the kernel's own.
    map : {"auto", "pairs", "phases", "complex"}
        "auto" is `choose_map`; the map's spec says what it chose.
    ranges : pair of float64 arrays of shape (n_features,), optional
        From `input_range`: they fill in what a kernel wants to know of the inputs.
    features : "fourier", "nystrom" or Nystrom
        Random Fourier features, to which `design` and `map` belong; or Nyström features, whose centres
        are chosen among the distinct rows of a seeded sample.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range.
    """
    nystrom = find_features(features)
    if isinstance(length_scale, str):
        if length_scale not in ("auto", "evidence"):
            raise InvalidParameterError(
                f"`length_scale` is {length_scale!r}; expected 'auto', 'evidence' or numbers above 0"
            )
        if length_scale == "evidence":
            length_scale = tune(dataset, kernel, standardizer=standardizer, seed=seed).length_scale
        elif not isinstance(kernel, Stationary):
            length_scale = None  # it has no width to choose, or several
        else:
            length_scale = median_length_scale(dataset, kernel, standardizer=standardizer, seed=seed)
    if length_scale is not None:
        kernel = with_length_scale(kernel, length_scale)
    if ranges is not None:
        kernel = kernel.bind(*ranges)
    if nystrom is not None:
        sample = sample_inputs(dataset, seed, n_rows=nystrom.rows_to_sample(n_components))
        with np.errstate(over="ignore"):  # passes refuse such rows by their number
            prepared = np.asarray(sample if standardizer is None else standardizer(sample), np.float32)
        return draw_nystrom(
            kernel, prepared, n_components=n_components, nystrom=nystrom, seed=seed, standardizer=standardizer
        )
    if map == "auto":
        map = choose_map(dataset, kernel, n_components, standardizer=standardizer, seed=seed)
    return draw_feature_map(
        kernel,
        n_features=dataset.n_features,
        n_components=n_components,
        design=design,
        map=map,
        random_state=seed,
        standardizer=standardizer,
    )


# -- accumulate ------------------------------------------------------------------------------------


def statistics_spec(
    dataset: Dataset,
    feature_map: FeatureMap,
    *,
    target_offset: tuple[float, ...] = (),
    weight_exponent: int = 0,
    frequency_weights: bool = False,
    fraction_bits: int = FRACTION_BITS,
    engine: Engine | None = None,
) -> StatisticsSpec:
    """Return what statistics of a dataset in a feature map are about.

    Features without a bound, such as linear ones, take their grid from a first pass of maxima on
    `engine`, with head-room for twice as much; see `blocks.measure_features`.

    Raises
    ------
    DataError
        If the dataset has no targets.
    """
    if dataset.n_targets < 1:
        raise DataError("the data have no y: training needs targets")
    return StatisticsSpec(
        n_components=feature_map.n_components,
        n_targets=dataset.n_targets,
        feature_digest=feature_map.digest(),
        scales=feature_map.scales,
        whitened=isinstance(feature_map, NystromFeatureMap),
        exponents=() if feature_map.bounded else _feature_grid(dataset, feature_map, engine=engine),
        weight_exponent=weight_exponent,
        target_offset=target_offset,
        one_dimensional=dataset.one_dimensional,
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
        With targets.
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
        If values are not finite or there are no targets.
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
        spec = statistics_spec(dataset, feature_map, engine=engine)
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


# -- solve -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Solved:
    """Coefficients, and the path of alpha they were chosen from where there was one."""

    solution: RidgeSolution
    selection: Selection | None


def solve(statistics: RidgeStatistics, *, alpha: Alpha = "auto", fit_intercept: bool = True) -> Solved:
    """Solve ridge regression from its statistics alone, O(n_components³).

    Parameters
    ----------
    statistics : RidgeStatistics
    alpha : "auto", "gcv", "evidence", float or sequence of float
        The penalty; of a sequence the one with the least GCV; "gcv" and "evidence" search from the
        rounding floor to the largest eigenvalue, and "auto" is "gcv".
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
    equations = statistics.normal_equations(fit_intercept=fit_intercept)
    if is_one_alpha(alpha):
        return Solved(solve_cholesky(equations, np.asarray(alpha), overwrite_gram=True), None)
    spectrum = decompose(equations)
    selection = select_alpha(
        spectrum,
        None if isinstance(alpha, str) else np.asarray(alpha, np.float64),
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
            f"`alpha` is {alpha!r}; expected 'auto', 'gcv', 'evidence', a finite number of at least 0, or "
            "a list of such numbers above 0"
        )


def refit(
    model: RidgeModel, statistics: RidgeStatistics, *, alpha: Alpha = "auto", fit_intercept: bool = True
) -> RidgeModel:
    """Solve a model again from changed statistics of the same features."""
    solved = solve(statistics, alpha=alpha, fit_intercept=fit_intercept)
    kept = {name: model.card[name] for name in ("feature_names", "target_names") if name in model.card}
    return RidgeModel.from_solution(
        model.feature_map,
        statistics,
        solved.solution,
        solved.selection,
        {**kept, **describe_choices(alpha, fit_intercept)},
    )


# -- evaluate, predict -----------------------------------------------------------------------------


def evaluate(dataset: Dataset, model: RidgeModel, *, engine: Engine) -> Errors:
    """Measure a model's errors on a dataset in one pass, O(n_samples · n_components · n_features).

    Raises
    ------
    DataError
        If the dataset does not fit the model, or has no targets.
    """
    check_dataset(dataset, model)
    if dataset.n_targets != model.n_targets:
        raise DataError(f"y has {dataset.n_targets} targets, but the model predicts {model.n_targets}")
    errors: Errors = engine.map_reduce(
        BlockTask(dataset, evaluate_rows),
        blocks_of(dataset),
        model.linear,
        combine=operator.add,
        label="evaluate",
    )
    return errors


def predict(
    dataset: Dataset,
    model: RidgeModel,
    url: str | os.PathLike[str],
    *,
    engine: Engine,
    column_names: Sequence[str] | None = None,
    overwrite: bool = False,
) -> int:
    """Write predictions of every row to a new Zarr group, as the array `predictions`.

    The pass is idempotent: a block written twice holds the same numbers, and the output appears at
    `url` when it is complete.

    Returns
    -------
    n_samples : int
        Rows written.

    Raises
    ------
    DataError
        If the dataset does not fit the model.
    StorageError
        If the output exists and `overwrite` is False, or cannot be written.
    """
    check_dataset(dataset, model)
    blocks = blocks_of(dataset)
    # the output's chunks follow the blocks, so that no two tasks write to one chunk
    chunk_rows = blocks[0].n_samples
    output = create_output(
        url,
        n_samples=dataset.n_samples,
        n_columns=None if model.one_dimensional else model.n_targets,
        dtype=np.float64,
        chunk_rows=chunk_rows,
        column_names=column_names,
        inputs=[] if dataset.url is None else [dataset.url],
        overwrite=overwrite,
    )
    try:
        compute = partial(predict_block, one_dimensional=model.one_dimensional)
        written = engine.map_write(BlockTask(dataset, compute), blocks, model.linear, output, label="predict")
        output.finish({"model_digest": model.digest()})
    except BaseException:
        output.discard()
        raise
    return written


def predict_block(rows: Rows, model: LinearModel, *, one_dimensional: bool) -> FloatArray:
    """Return predictions of a block, without the target axis where the targets were a vector."""
    predictions = predict_rows(rows, model)
    return predictions[:, 0] if one_dimensional else predictions


def predict_in_memory(dataset: Dataset, model: RidgeModel, *, engine: Engine) -> FloatArray:
    """Return predictions of shape (n_samples,) or (n_samples, n_targets) as one array."""
    check_dataset(dataset, model)
    parts: list[FloatArray] = engine.map_reduce(
        BlockTask(dataset, partial(_predict_part, one_dimensional=model.one_dimensional)),
        blocks_of(dataset),
        model.linear,
        combine=operator.add,
        label="predict",
    )
    return np.concatenate(parts)


def _predict_part(rows: Rows, model: LinearModel, *, one_dimensional: bool) -> list[FloatArray]:
    return [predict_block(rows, model, one_dimensional=one_dimensional)]


def check_dataset(dataset: Dataset, model: RidgeModel) -> None:
    """Check that a dataset has the columns that a model was trained on.

    Raises
    ------
    DataError
        If it has another number of columns, or other names.
    """
    if dataset.n_features != model.n_features:
        raise DataError(
            f"X has {dataset.n_features} features, but the model is expecting {model.n_features} features"
        )
    expected = model.card.get("feature_names")
    names = getattr(dataset, "feature_names", None)
    if expected and names and list(names) != list(expected):
        raise DataError(
            f"the columns of X are {list(names)}, but the model was trained on {list(expected)}; "
            "give the same columns in the same order"
        )


# -- the whole job ---------------------------------------------------------------------------------


def fit(
    dataset: Dataset,
    kernel: Kernel,
    *,
    engine: Engine,
    length_scale: str | LengthScale | None = "auto",
    n_components: int = 2048,
    alpha: Alpha = "auto",
    design: str | Design = "orthogonal",
    map: str = "pairs",
    standardize: bool = True,
    fit_intercept: bool = True,
    seed: int = 0,
    features: str | Nystrom = "fourier",
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
    n_components : int
        D: cost grows with its square, error falls as 1/√D.
    alpha : "auto", "gcv", "evidence", float or sequence of float
        See `solve`; "auto" is "evidence" where the length scale is, see `resolve_alpha`.
    design, map : str
        See `draw_feature_map`; map="auto" takes the real map of lower variance, see `choose_map`.
    standardize : bool
        Whether the inputs' means and standard deviations are taken out first.
    fit_intercept : bool
        Whether to fit an intercept.
    seed : int
        Of frequencies and samples.
    features : "fourier", "nystrom" or Nystrom
        See `draw`.

    Returns
    -------
    model : RidgeModel
    solved : Solved
        Solver status and the path of alpha.
    """
    n_components = check_width(n_components, map, features)
    check_plan(dataset, n_components, engine=engine, alpha=alpha, features=features)
    moments = inspect(dataset, engine=engine)
    if not standardize:
        warn_of_lost_digits(moments)
    standardizer = standardizer_from(moments) if standardize else None
    feature_map = draw(
        dataset,
        kernel,
        length_scale=length_scale,
        n_components=n_components,
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
    statistics = accumulate(dataset, feature_map, engine=engine, spec=spec)
    chosen_by = resolve_alpha(alpha, length_scale)
    solved = solve(statistics, alpha=chosen_by, fit_intercept=fit_intercept)
    model = RidgeModel.from_solution(
        feature_map,
        statistics,
        solved.solution,
        solved.selection,
        {**describe_dataset(dataset), **describe_choices(chosen_by, fit_intercept)},
    )
    return model, solved


def describe_dataset(dataset: Dataset) -> Mapping[str, Any]:
    """Return the facts of a dataset that a model's card keeps."""
    facts: dict[str, Any] = {"data_fingerprint": dataset.fingerprint()}
    for name in ("feature_names", "target_names"):
        names = getattr(dataset, name, None)
        if names is not None:
            facts[name] = list(names)
    return facts


def describe_choices(alpha: Alpha, fit_intercept: bool) -> Mapping[str, Any]:
    """Return the facts of a model's card by which later fits choose as this one did."""
    given = alpha if isinstance(alpha, str) else np.asarray(alpha, np.float64).tolist()
    return {"alpha_given": given, "fit_intercept": bool(fit_intercept)}


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
    if isinstance(feature_map, NystromFeatureMap):
        return feature_map.kernel
    return None if feature_map.spec is None else feature_map.spec.kernel


def transform_in_memory(dataset: Dataset, feature_map: FeatureMap, *, dtype: DTypeLike) -> NDArray[Any]:
    """Return Z of shape (n_samples, n_components) as one array.

    Raises
    ------
    DataError
        If values are not finite.
    """
    Z = np.empty((dataset.n_samples, feature_map.n_components), dtype)
    for block in blocks_of(dataset):
        X = dataset.read(block).X
        check_finite(Rows(block, X), feature_map.prepare(X))
        Z[block.start : block.stop] = feature_map.transform(X, dtype=dtype)
    return Z
