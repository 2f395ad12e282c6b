"""Passes that accumulate a dataset's statistics, for all rows or for each fold.

A dataset, feature maps and an engine come in; exact sums of Z'Z and Z'y go out. Z is
the matrix of features. `accumulate.py` sums a block. Here the *grid*, the unit that
sums are whole multiples of, is fixed before, parts of Z'Z are joined after, and each
row must have been counted once.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from rff_dist.checks import check_name
from rff_dist.data import blocks, folding
from rff_dist.engines import events, protocol, serial
from rff_dist.errors import DataError, InvalidParameterError, StatisticsError, warn
from rff_dist.features import maps, nystrom
from rff_dist.numerics import exact_sums
from rff_dist.statistics import accumulate as block_sums
from rff_dist.statistics import (
    fold_statistics,
    inspection,
    layouts,
    ridge_statistics,
    row_passes,
    specs,
)
from rff_dist.statistics.moments import Moments
from rff_dist.typing import frozen

#: Z'Z and Z'y of all rows, or of each fold.
type Sums = ridge_statistics.RidgeStatistics | fold_statistics.FoldStatistics

MAX_WEIGHT_EXPONENT = 400
MOST_REPETITIONS = 2**53  # float64 holds all whole numbers up to this
# Bits of the smallest weight that the sums' grid should keep at least: three digits.
WEIGHT_BITS = 10
# Users choose the kind by name, since whole numbers may also be precisions. With
# precisions a factor on all weights changes nothing.
WEIGHT_KINDS = ("precision", "frequency")


def fraction_bits_for(n_samples: int) -> int:
    """Return the fraction bits of the sums' grid: more for few rows.

    Products of few rows have finer bits. If many rows are added on the fine grid later,
    the sums stay exact and take twice the memory.
    """
    return specs.FINE_FRACTION_BITS if n_samples <= 2**13 else specs.FRACTION_BITS


def check_weight_kind(sample_weight_kind: object) -> None:
    """Check that the option is "precision" or "frequency"."""
    check_name(sample_weight_kind, WEIGHT_KINDS, "sample_weight_kind")


@frozen
class WeightGrid:
    """The members of a `StatisticsSpec` that depend on weights."""

    #: No weight is above 2**exponent.
    exponent: int = 0
    #: Whether weights are whole numbers that repeat their rows.
    frequency_weights: bool = False


def weight_grid(moments: Moments, sample_weight_kind: str = "precision") -> WeightGrid:
    """Return the grid for the weights of the rows that `moments` measured.

    The exponent is the smallest for which no weight is above 2**exponent. Warns if the
    sums hold fewer than three digits of some weights: those below 2e-12 of the largest
    in up to 8,192 rows, below 2e-9 in more. Raises DataError if weights are so large or
    small that float64 would overflow or lose them. `fit` explains `sample_weight_kind`.
    """
    check_weight_kind(sample_weight_kind)
    frequency_weights = sample_weight_kind == "frequency"
    if frequency_weights and moments.weight.value() > MOST_REPETITIONS:
        raise DataError(
            f"sample weights say that there are {moments.weight.value():.3g} rows, more"
            f" than {MOST_REPETITIONS:.3g}, which are all that can be counted; give"
            ' smaller whole numbers, or sample_weight_kind="precision"'
        )
    mantissa, exponent = math.frexp(moments.largest_weight)
    exponent -= mantissa == 0.5  # the largest weight is a power of two
    if abs(exponent) > MAX_WEIGHT_EXPONENT:
        raise DataError(
            f"sample weights are up to {moments.largest_weight:g}; scale them to lie"
            f" between {2.0**-MAX_WEIGHT_EXPONENT:.0e} and"
            f" {2.0**MAX_WEIGHT_EXPONENT:.0e}"
        )
    resolved = 2.0 ** (exponent - fraction_bits_for(moments.n_samples) + WEIGHT_BITS)
    if moments.smallest_weight < resolved:
        warn(
            f"sample weights go from {moments.smallest_weight:.3g} to"
            f" {moments.largest_weight:.3g}: the sums hold fewer than three digits of"
            f" weights below {resolved:.3g}. Give weight 0 to rows that should not"
            " count, and bring the other weights nearer to each other",
        )
    return WeightGrid(exponent, frequency_weights)


def statistics_spec(
    dataset: blocks.Dataset,
    feature_map: maps.FeatureMap,
    *,
    target_offset: tuple[float, ...] = (),
    weights: WeightGrid = WeightGrid(),
    fraction_bits: int = specs.FRACTION_BITS,
    with_targets: bool = True,
    engine: protocol.Engine | None = None,
) -> specs.StatisticsSpec:
    """Return the spec of statistics of a dataset in a feature map.

    For features without a bound, such as linear ones, a first pass on `engine` measures
    the maxima, and the grid has room for twice as much; see
    `statistics.accumulate.measure_features`. Fixed-point features of rows without
    weights are not rounded: their products are on the grid. Without targets the
    statistics are Z'Z, Z'1 and the counts only, and y is ignored.

    Raises DataError if targets are wanted and the dataset has none.
    """
    if with_targets and dataset.n_targets < 1:
        raise DataError("the data have no y: training needs targets")
    exponents: tuple[tuple[int, int], ...] = ()
    if not feature_map.bounded:
        largest = row_passes.sum_rows(
            dataset,
            block_sums.measure_features,
            feature_map,
            combine=np.maximum,
            engine=serial.SerialEngine() if engine is None else engine,
            label="measure",
        )
        if not (largest <= maps.LARGEST_FEATURE).all():
            raise maps.overflow()
        # + 1: rows that are added later may have features twice as large
        powers = np.where(largest > 0, np.frexp(largest)[1] + 1, 0)
        runs = exact_sums.as_runs(powers)
        exponents = tuple((count, int(exponent)) for count, exponent in runs)
    fixed_point = feature_map.fixed_point and not dataset.weighted
    return specs.StatisticsSpec(
        n_components=feature_map.n_components,
        n_targets=dataset.n_targets if with_targets else 0,
        feature_digest=feature_map.digest(),
        scales=feature_map.scales,
        whitened=isinstance(feature_map, nystrom.NystromFeatureMap),
        exponents=exponents,
        weight_exponent=weights.exponent,
        target_offset=target_offset,
        one_dimensional=with_targets and dataset.one_dimensional,
        frequency_weights=weights.frequency_weights,
        fraction_bits=specs.FIXED_FRACTION_BITS if fixed_point else fraction_bits,
        fixed_point=fixed_point,
    )


def accumulate(
    dataset: blocks.Dataset,
    feature_map: maps.FeatureMap,
    *,
    engine: protocol.Engine | None = None,
    spec: specs.StatisticsSpec | None = None,
    n_parts: int = 1,
) -> ridge_statistics.RidgeStatistics:
    """Accumulate the exact statistics of a dataset, O(n_samples · n_components²).

    The result has the same bits on every engine, on one type of machine.

    Parameters
    ----------
    dataset : Dataset
        Without targets, the statistics are Z'Z, Z'1 and the counts only.
    feature_map : FeatureMap
        See `draw_feature_map`.
    engine : Engine, optional
        A `SerialEngine` with all threads by default.
    spec : StatisticsSpec, optional
        Offsets and grids to sum with. By default targets are summed as they are, and
        weights, if there are any, take their grid from a first pass.
    n_parts : int, default=1
        Number of passes. Each sums a part of Z'Z, for workers whose memory cannot hold
        the whole.

    Raises
    ------
    DataError
        If values are not finite, or the spec has targets and the dataset has none.
    StatisticsError
        If a row is missing or was counted twice.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import accumulate, draw_feature_map
    >>> from rff_dist.data.memory import ArrayDataset
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((1000, 3))
    >>> dataset = ArrayDataset(X, X.sum(axis=1))
    >>> feature_map = draw_feature_map("gaussian", n_features=3, n_components=64)
    >>> statistics = accumulate(dataset, feature_map)
    >>> statistics.n_samples, statistics.ZtZ().shape
    (1000, (64, 64))
    """
    if not isinstance(dataset, blocks.Dataset):
        raise InvalidParameterError(
            f"`dataset` is a {type(dataset).__name__}; expected a dataset, which"
            " open_dataset(url) and write_dataset(url, X, y) return"
        )
    engine = serial.SerialEngine() if engine is None else engine
    if spec is None:
        spec = statistics_spec(
            dataset, feature_map, with_targets=dataset.n_targets > 0, engine=engine
        )
        if dataset.weighted:
            grid = weight_grid(inspection.inspect(dataset, engine=engine))
            spec = replace(
                spec,
                weight_exponent=grid.exponent,
                frequency_weights=grid.frequency_weights,
            )
    accumulation = block_sums.Accumulation(feature_map, spec)
    state = block_sums.Accumulations((accumulation,), None, dataset.n_samples).of_part(
        0, n_parts
    )
    (statistics,) = accumulate_shared(dataset, engine.broadcast(state), engine=engine)
    return cast("ridge_statistics.RidgeStatistics", statistics)


def accumulate_folds(
    dataset: blocks.Dataset,
    members: Sequence[block_sums.Accumulation],
    *,
    folds: folding.Folds,
    engine: protocol.Engine,
) -> tuple[fold_statistics.FoldStatistics, ...]:
    """Accumulate each fold's exact statistics for several feature maps in one pass.

    Takes O(n_samples · n_components²) for each map, for any number of folds, and memory
    for the statistics of every fold and map. Raises DataError if values are not finite,
    or targets or groups are missing.
    """
    state = block_sums.Accumulations(tuple(members), folds, dataset.n_samples)
    summed = accumulate_shared(dataset, engine.broadcast(state), engine=engine)
    return cast("tuple[fold_statistics.FoldStatistics, ...]", summed)


def accumulate_shared(
    dataset: blocks.Dataset,
    shared: protocol.Broadcast[block_sums.Accumulations],
    *,
    engine: protocol.Engine,
) -> tuple[Sums, ...]:
    """Accumulate exact statistics of each feature map in a state that workers have.

    If a worker's memory cannot hold the whole of Z'Z, each pass sums a part: some of
    the output tiles. It reads all rows and makes their features again, which is a small
    share of the work if D is large, and computes products for its own tiles only. The
    joined parts have the same bits as the sums of one pass.

    `shared` is the state of the first part of Z'Z, with the number of parts and passes.
    Raises StatisticsError if the rows changed between passes.
    """
    state = shared.state
    folds = state.folds
    member_specs = [member.spec for member in state.members]
    n_parts = member_specs[0].part.n_parts
    _tell_work(member_specs, dataset.n_samples, engine)
    if n_parts > 1:
        engine.tell(events.Rounds("accumulate", n_parts))

    task = blocks.BlockTask(dataset, block_sums.accumulate_fold_rows, adds=True)
    row_blocks = row_passes.blocks_of(
        dataset,
        # a block's sums must fit in one limb
        max_rows=min(spec.int64_rows for spec in member_specs),
        n_folds=1 if folds is None else folds.n_folds,
    )
    sums: fold_statistics.MapSums = ()
    for index in range(n_parts):
        if index:
            shared = engine.broadcast(state.of_part(index, n_parts))
        part = engine.map_reduce(
            task,
            row_blocks,
            shared,
            combine=block_sums.add_fold_rows,
            label="accumulate",
        )
        sums = part if n_parts == 1 else _join(sums, part)

    whole: list[Sums] = []
    for member, fold_sums in zip(state.members, sums, strict=True):
        statistics: Sums | None = fold_sums[0]
        if folds is not None:
            statistics = fold_statistics.FoldStatistics(folds, fold_sums)
        assert statistics is not None  # there are rows
        statistics.check_complete(dataset.n_samples, member.feature_map)
        whole.append(statistics.with_whitener(member.feature_map.whitener))
    return tuple(whole)


def _tell_work(
    member_specs: Sequence[specs.StatisticsSpec],
    n_samples: int,
    engine: protocol.Engine,
) -> None:
    """Tell observers how many operations the sums of each feature map take."""
    for spec in member_specs:
        work = events.Work(
            "accumulate",
            operations=float(n_samples) * spec.n_components**2,
            n_components=spec.n_components,
            fixed_point=spec.fixed_point,
            # at least 1, as workers may still be starting
            n_workers=max(1, engine.n_workers),
            n_threads=engine.n_threads,
        )
        engine.tell(work)


def _join(
    wholes: fold_statistics.MapSums, parts: fold_statistics.MapSums
) -> fold_statistics.MapSums:
    """Copy a pass's output tiles to the whole sums; `wholes` is empty at first."""
    wholes = wholes or tuple(
        tuple(map(_with_all_tiles, map_sums)) for map_sums in parts
    )
    for whole, part in zip(
        itertools.chain(*wholes), itertools.chain(*parts), strict=True
    ):
        if _sums_of_each_pass(whole) != _sums_of_each_pass(part):
            raise StatisticsError(
                "two passes over the same rows found different sums: the data changed"
                " between them; run it again on data that do not change"
            )
        if whole is not None and part is not None:
            for into, limb in ((whole.low, part.low), (whole.high, part.high)):
                if into is not None and limb is not None:
                    part.spec.layout.copy(limb, whole.spec.layout, into)
    return wholes


def _sums_of_each_pass(sums: fold_statistics.FoldSum) -> tuple[object, ...] | None:
    """Return sums that every pass makes, and that differ if it read other rows."""
    if sums is None:
        return None
    return sums.n_samples, sums.n_observations, sums.cross, sums.targets


def _with_all_tiles(part: fold_statistics.FoldSum) -> fold_statistics.FoldSum:
    if part is None:
        return None
    spec = replace(part.spec, part=layouts.WHOLE)
    low = np.zeros(spec.layout.size, np.int64)
    high = None if part.high is None else low.copy()
    return replace(part, spec=spec, low=low, high=high)
