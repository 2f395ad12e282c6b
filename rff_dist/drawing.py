"""What is drawn for a dataset: a sample of its rows, a length scale, a map, and the features themselves."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.blocks import Dataset
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


def resolve_kernel(
    dataset: Dataset,
    kernel: Kernel,
    *,
    length_scale: str | LengthScale | None,
    standardizer: Standardizer | None,
    ranges: tuple[FloatArray, FloatArray] | None,
    seed: int,
    frequency_weights: bool = False,
) -> Kernel:
    """Return a kernel with all that depends on the data filled in; parameters as for `draw`.

    Raises
    ------
    InvalidParameterError
        If the length scale is neither a name nor numbers above 0, or the kernel has none.
    """
    if isinstance(length_scale, str):
        if length_scale not in ("auto", "evidence"):
            raise InvalidParameterError(
                f"`length_scale` is {length_scale!r}; expected 'auto', 'evidence' or numbers above 0"
            )
        if length_scale == "evidence":
            length_scale = tune(
                dataset, kernel, standardizer=standardizer, seed=seed, frequency_weights=frequency_weights
            ).length_scale
        elif not isinstance(kernel, Stationary):
            length_scale = None  # it has no width to choose, or several
        else:
            length_scale = median_length_scale(dataset, kernel, standardizer=standardizer, seed=seed)
    if length_scale is not None:
        kernel = with_length_scale(kernel, length_scale)
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
    frequency_weights: bool = False,
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
