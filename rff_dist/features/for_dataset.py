"""Features for a dataset: its length scale, the better map, and the features drawn."""

from __future__ import annotations

import logging

import numpy as np

from rff_dist.checks import check_count
from rff_dist.data.blocks import Dataset
from rff_dist.data.folds import HeldInFolds
from rff_dist.data.samples import sample_folds, sample_inputs, sample_rows
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.features.bounds import better_map
from rff_dist.features.draw import check_n_components, draw_feature_map
from rff_dist.features.evidence import TunedKernel, check_tunable, maximize_evidence
from rff_dist.features.feature_map import FeatureMap, Standardizer
from rff_dist.features.median_heuristic import MedianDistances
from rff_dist.features.nystrom import Nystrom, draw_nystrom
from rff_dist.frequencies.designs import Design
from rff_dist.kernels.base import Kernel, LengthScale, Stationary, with_length_scale
from rff_dist.typing import FloatArray

logger = logging.getLogger(__name__)


TUNING_ROWS = 4000  # rows of the seeded sample whose evidence gives the length scales
FEATURES = ("fourier", "nystrom")


def find_features(features: str | Nystrom) -> Nystrom | None:
    """Return how Nyström features are made, or None for random Fourier features.

    Raises InvalidParameterError if `features` is neither a name nor a `Nystrom`.
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

    Raises InvalidParameterError if it is no integer of at least 1, or odd for Fourier features in pairs.
    """
    return check_n_components(n_components, map if find_features(features) is None else "centres")


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

    `dataset`: with targets; rows without weight do not count.
    `kernel`: its own length scale is replaced.
    `seed`: of the sample, the frequencies and the starts.
    `per_feature`: whether each input column has a length scale of its own.
    `n_components`, `n_starts`, `frequency_weights`: see `rff_dist.features.evidence.maximize_evidence`.
    `folds`: only rows that these folds never validate on are sampled.
    Raises InvalidParameterError if the kernel has no length scale, or several, or a number is out of range;
      DataError if the dataset has no targets, a sampled value is not finite, or the sample says nothing of a
      length scale.
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


def choose_map(
    dataset: Dataset, kernel: Kernel, n_components: int, *, standardizer: Standardizer | None, seed: int
) -> str:
    """Return "pairs" or "phases": the real map with the lower closed-form variance on a seeded sample.

    `n_components`: an odd number leaves only phases.
    `seed`: of the sample of up to 1,000 rows.
    See also `rff_dist.features.bounds.better_map`: the comparison itself.
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

    Raises InvalidParameterError if the length scale is neither a name nor numbers above 0, or the kernel
      takes none.
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

    `length_scale`: "auto", "median", "evidence", number(s) or None. "auto" and None give each part of the
      kernel that has no length scale the median distance between rows, in its own columns and metric;
      "median" replaces the length scale of a kernel that has one. Numbers replace a kernel's length scale; of
      a sum or product they are that of the parts without one. "evidence" is `tune`, which replaces the length
      scale.
    `map`: {"auto", "pairs", "phases", "complex"}. "auto" is `choose_map`; the map's spec says what it chose.
    `ranges`: pair of float64 arrays of shape (n_features,). From `input_range`: they fill in what a kernel
      wants to know of the inputs.
    `features`: "fourier", "nystrom" or Nystrom. Random Fourier features, to which `design` and `map` belong;
      or Nyström features, whose centres are chosen among the distinct rows of a seeded sample.
    `tuned_on`: folds on whose held-in rows "evidence" tunes; all rows by default.
    `frequency_weights`: for "evidence": whether weights repeat rows.
    Raises InvalidParameterError if a parameter is out of range.
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
