"""What is drawn for a dataset: a sample of its rows, a length scale, a map, and the features themselves."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.blocks import Block, Dataset
from rff_dist.bounds import better_map
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.evidence import TunedKernel, check_tunable, maximize_evidence, median_distance
from rff_dist.feature_map import (
    FeatureMap,
    Nystrom,
    Standardizer,
    check_n_components,
    draw_feature_map,
    draw_nystrom,
)
from rff_dist.folds import MANY_ROWS, STRETCHES, Folds, HeldInFolds
from rff_dist.frequencies import Design
from rff_dist.kernels import Kernel, LengthScale, Stationary, with_length_scale
from rff_dist.kernels.base import check_count

logger = logging.getLogger(__name__)

type FloatArray = NDArray[np.float64]

HEURISTIC_ROWS = 1000  # rows of the seeded sample whose distances give the median heuristic
TUNING_ROWS = 4000  # rows of the seeded sample whose evidence gives the length scales
SAMPLED_CHUNKS = 256  # that a larger sample is read from where single rows would touch more
FEATURES = ("fourier", "nystrom")


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


def median_length_scale(
    dataset: Dataset, kernel: Stationary, *, standardizer: Standardizer | None, seed: int
) -> float:
    """Return the median distance, in the kernel's metric, between distinct rows; see `MedianDistances`."""
    return MedianDistances(dataset, standardizer=standardizer, seed=seed)(kernel)


class MedianDistances:
    """Length scales: the median distance between distinct rows of a seeded sample, in a kernel's metric.

    A first guess that is right within a factor of a few for smooth targets; cross-validation or the
    evidence are better and dearer. The sample is read once, where it is first needed.

    Parameters
    ----------
    dataset : Dataset
    standardizer : Standardizer, optional
        Applied to the rows first.
    seed : int
        Of the sample of up to 1,000 rows.
    """

    def __init__(self, dataset: Dataset, *, standardizer: Standardizer | None, seed: int) -> None:
        self._dataset, self._standardizer, self._seed = dataset, standardizer, seed
        self._medians: dict[tuple[str, tuple[int, ...] | None], float] = {}

    @cached_property
    def _points(self) -> FloatArray:
        sample = sample_inputs(self._dataset, self._seed)
        return np.asarray(sample, np.float64) if self._standardizer is None else self._standardizer(sample)

    def __call__(self, kernel: Stationary, columns: tuple[int, ...] | None = None) -> float:
        """Return the length scale of a kernel that looks at these input columns; all by default.

        It is in units of the (standardised) inputs, and 1 where all sampled rows are equal.
        """
        key = kernel.metric, columns
        if key not in self._medians:
            points = self._points if columns is None else self._points[:, list(columns)]
            median = median_distance(points, kernel)
            if median is None:
                logger.warning(
                    "all sampled rows are equal, so the median heuristic gives a length scale of 1"
                )
            self._medians[key] = 1.0 if median is None else median
        return self._medians[key]


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
    folds: HeldInFolds | None = None,
    frequency_weights: bool = False,
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
    n_components, n_starts, frequency_weights
        See `rff_dist.evidence.maximize_evidence`.
    folds : HeldInFolds, optional
        Only rows that these folds never validate on are sampled.

    Raises
    ------
    InvalidParameterError
        If the kernel has no length scale, or several, or a number is out of range.
    DataError
        If the dataset has no targets, a sampled value is not finite, or the sample says nothing of a length
        scale.
    """
    found, n_rows = check_tunable(kernel), check_count(n_samples, "n_samples")
    if dataset.n_targets < 1:
        raise DataError("the data have no y: the evidence of length scales needs targets")
    if folds is None:
        X, y, weights = sample_rows(dataset, seed, n_rows=n_rows)
    else:
        X, y, weights = sample_folds(dataset, folds, n_rows=2 * n_rows).held_in(n_rows)
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
        frequency_weights=frequency_weights,
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
    _check_sampled(indices[counts], sample, y)
    return sample, y, weights


def _check_sampled(indices: NDArray[Any], X: NDArray[Any], y: FloatArray | None) -> None:
    for name, values in (("X", X), ("y", y)):
        finite = np.ones(1) if values is None else np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if not finite.all():
            row = indices[np.argmin(finite)]
            raise DataError(
                f"Input {name} contains NaN or infinity: row {row:_}; fill or drop such rows first"
            )


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


@dataclass(frozen=True, slots=True, eq=False)
class FoldSample:
    """Rows of a dataset that have weight, and the fold of each.

    Attributes
    ----------
    folds : Folds
    fold_of_row : int64 array of shape (n_sampled,)
    X : array of shape (n_sampled, n_features)
    y : float64 array of shape (n_sampled, n_targets)
    weights : float64 array of shape (n_sampled,), or None
    """

    folds: Folds
    fold_of_row: NDArray[np.int64]
    X: NDArray[Any]
    y: FloatArray
    weights: FloatArray | None

    def held_in(self, n_rows: int) -> tuple[NDArray[Any], FloatArray, FloatArray | None]:
        """Return X, y and weights of up to `n_rows` rows that the folds never validate on."""
        assert isinstance(self.folds, HeldInFolds)
        rows = np.flatnonzero(self.folds.is_held_in(self.fold_of_row))
        rows = rows[:: max(1, -(-len(rows) // n_rows))]
        if not len(rows):
            raise DataError(
                "none of the sampled rows that folds are not validated on has a weight above 0, so there is "
                "nothing to tune length scales by; give rows that count, or a `length_scale`"
            )
        return self.X[rows], self.y[rows], None if self.weights is None else self.weights[rows]


def sample_folds(dataset: Dataset, folds: Folds, *, n_rows: int) -> FoldSample:
    """Return about `n_rows` rows with their folds, those that are held in among them; all of few rows.

    Rows without weight are left out.

    Raises
    ------
    DataError
        If a sampled value is NaN or infinite, or folds are of groups and there are none.
    """
    n_samples = dataset.n_samples
    whole = n_samples <= MANY_ROWS
    if n_samples <= n_rows:
        starts, width = np.zeros(1, np.int64), n_samples
    elif isinstance(folds, HeldInFolds) and folds.n_stretches:
        starts = folds.stretch_starts(np.arange(folds.n_stretches))
        width = max(folds.width, n_rows // folds.n_stretches)
    else:
        n_stretches = n_rows if whole else STRETCHES
        starts, width = np.arange(n_stretches) * n_samples // n_stretches, n_rows // n_stretches
    indices = np.unique(np.minimum(starts[:, np.newaxis] + np.arange(width), n_samples - 1))
    # the folds of runs of consecutive rows, each read at once
    cuts = [0] if whole else [0, *(np.flatnonzero(np.diff(indices) > 1) + 1)]
    fold_of_row = np.empty(len(indices), np.int64)
    for run in np.split(np.arange(len(indices)), cuts[1:]):
        first, stop = int(indices[run[0]]), int(indices[run[-1]]) + 1
        groups = dataset.read_groups(Block(0, first, stop))
        assigned = folds.assign(first, stop, n_samples=n_samples, groups=groups)
        fold_of_row[run] = assigned[indices[run] - first]
    X, y, weights = dataset.take(indices)
    assert y is not None  # folds are of rows with targets
    counts = np.arange(len(X)) if weights is None else np.flatnonzero(weights > 0)
    _check_sampled(indices[counts], X[counts], y[counts])
    return FoldSample(
        folds,
        fold_of_row[counts],
        X[counts],
        y[counts],
        None if weights is None else weights[counts],
    )


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


def resolve_kernel(
    dataset: Dataset,
    kernel: Kernel,
    *,
    length_scale: str | LengthScale | None,
    standardizer: Standardizer | None,
    ranges: tuple[FloatArray, FloatArray] | None,
    seed: int,
    tuned_on: HeldInFolds | None = None,
    frequency_weights: bool = False,
) -> Kernel:
    """Return a kernel with all that depends on the data filled in; parameters as for `draw`.

    Raises
    ------
    InvalidParameterError
        If the length scale is neither a name nor numbers above 0, or the kernel takes none.
    """
    kernel.check_columns(dataset.n_features)
    if length_scale == "median" and isinstance(kernel, Stationary):
        kernel = kernel.with_length_scale(None)
    if length_scale is None or (isinstance(length_scale, str) and length_scale in ("auto", "median")):
        medians = MedianDistances(dataset, standardizer=standardizer, seed=seed)
        kernel = kernel.with_default_length_scales(medians)
    elif not isinstance(length_scale, str):
        kernel = with_length_scale(kernel, length_scale)
    elif length_scale == "evidence":
        kernel = tune(
            dataset,
            kernel,
            standardizer=standardizer,
            seed=seed,
            folds=tuned_on,
            frequency_weights=frequency_weights,
        ).kernel
    else:
        raise InvalidParameterError(
            f"`length_scale` is {length_scale!r}; expected 'auto', 'median', 'evidence' or numbers above 0"
        )
    return kernel if ranges is None else kernel.bind(*ranges)


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
    tuned_on: HeldInFolds | None = None,
    frequency_weights: bool = False,
) -> FeatureMap:
    """Draw the feature map of a kernel for a dataset.

    Parameters
    ----------
    length_scale : "auto", "median", "evidence", number(s) or None
        "auto" and None give each part of the kernel that has no length scale the median distance between
        rows, in its own columns and metric; "median" replaces the length scale of a kernel that has one.
        Numbers replace a kernel's length scale; of a sum or product they are that of the parts without one.
        "evidence" is `tune`, which replaces the length scale.
    map : {"auto", "pairs", "phases", "complex"}
        "auto" is `choose_map`; the map's spec says what it chose.
    ranges : pair of float64 arrays of shape (n_features,), optional
        From `input_range`: they fill in what a kernel wants to know of the inputs.
    features : "fourier", "nystrom" or Nystrom
        Random Fourier features, to which `design` and `map` belong; or Nyström features, whose centres
        are chosen among the distinct rows of a seeded sample.
    tuned_on : HeldInFolds, optional
        Folds on whose held-in rows "evidence" tunes; all rows by default.
    frequency_weights : bool
        For "evidence": whether weights repeat rows.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range.
    """
    nystrom = find_features(features)
    kernel = resolve_kernel(
        dataset,
        kernel,
        length_scale=length_scale,
        standardizer=standardizer,
        ranges=ranges,
        seed=seed,
        tuned_on=tuned_on,
        frequency_weights=frequency_weights,
    )
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
