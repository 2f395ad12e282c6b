"""Draws features for a dataset: length scales, ranges and centres come from its rows.

Rows and a kernel's options go in; a feature map comes out, or a kernel with tuned
length scales. Without this a kernel without a length scale would get 1, which once gave
an error of 0.876 where the median distance gives 0.394.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace

import numpy as np

from rff_dist.data import blocks, folding, samples
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.features import (
    column_maps,
    evidence,
    length_scales,
    maps,
    median_distances,
    nystrom,
)
from rff_dist.features.draw import draw_feature_map
from rff_dist.features.feature_options import KernelFeatures, find_nystrom
from rff_dist.features.levels import Levels
from rff_dist.kernels import base, stationary
from rff_dist.typing import AnyArray, FloatArray, frozen


@frozen
class RowSource:
    """The rows of a dataset, and what turns them into inputs of features."""

    dataset: blocks.Dataset
    #: Applied to the rows first.
    standardizer: maps.Standardizer | None = None
    #: Seed of all samples of rows, and of the features.
    seed: int = 0
    #: Min and max of each column, for kernels that need them; shapes (n_features,).
    ranges: tuple[FloatArray, FloatArray] | None = None
    #: Whether weights repeat rows.
    frequency_weights: bool = False
    #: The levels of each column of categories.
    levels: Levels = field(default_factory=dict)

    def prepare(self, X: AnyArray) -> AnyArray:
        """Return rows standardised.

        Overflows are left to the passes, whose errors give the rows' numbers.
        """
        if self.standardizer is None:
            return X
        with np.errstate(over="ignore"):
            return self.standardizer(X)


def tune(
    source: RowSource,
    kernel: base.Kernel,
    search: length_scales.EvidenceSearch = length_scales.EvidenceSearch(),
    *,
    folds: folding.TuningFolds | None = None,
    report: Callable[[int, int], None] | None = None,
) -> length_scales.TunedKernel:
    """Choose a kernel's length scales by the evidence of a seeded sample of rows.

    Takes seconds to a minute in this process: O(n_samples · n_components²) for each of
    a few hundred evaluations. The kernel's own length scale is replaced. With folds,
    only their tuning rows are sampled. `report` is called from several
    threads with the number of steps taken, and how many there may be.

    Raises InvalidParameterError if the kernel is not one with a length scale; DataError
    if the dataset has no targets, a sampled value is not finite, or the sample says
    nothing about length scales.
    """
    tunable = length_scales.check_tunable(kernel)
    tunable = tunable.with_categories(sorted(source.levels))
    X, y, weights = _tuning_rows(source, search, folds)
    rows = np.asarray(source.prepare(X), np.float64)
    return length_scales.maximize_evidence(
        tunable,
        rows,
        y,
        weights,
        search=search,
        seed=source.seed,
        report=report,
    )


def tune_maps(
    source: RowSource,
    kernel: stationary.Stationary,
    search: length_scales.EvidenceSearch,
    *,
    folds: folding.TuningFolds | None = None,
    report: Callable[[int, int], None] | None = None,
) -> tuple[base.Kernel, maps.Standardizer]:
    """Choose maps of the columns together with the length scales, as `tune` does.

    Columns are mapped by `column_maps`.

    Returns the kernel, with its length scales for mapped columns, and the standardizer
    that maps them.
    """
    assert source.standardizer is not None
    X, y, weights = _tuning_rows(source, search, folds)
    rows = np.asarray(X, np.float64)
    bases = column_maps.Bases(rows, source.standardizer, source.levels)
    search = replace(search, n_starts=search.count_starts(X.shape[1]))
    tuned = length_scales.maximize_evidence(
        bases.kernel(kernel),
        bases.values(),
        y,
        weights,
        search=search,
        seed=source.seed,
        report=report,
    )
    standardizer, scales = bases.summed(np.asarray(tuned.length_scale))
    assert isinstance(tuned.kernel, column_maps.SumsOfColumnsKernel)
    return bases.tuned(tuned.kernel).with_length_scale(scales), standardizer


def _tuning_rows(
    source: RowSource,
    search: length_scales.EvidenceSearch,
    folds: folding.TuningFolds | None,
) -> tuple[AnyArray, FloatArray, FloatArray | None]:
    """Return X, y and weights in the likelihood of the rows that `tune` samples."""
    dataset = source.dataset
    if dataset.n_targets < 1:
        raise DataError(
            "the data have no y: the evidence of length scales needs targets"
        )
    if folds is None:
        X, y, weights = samples.sample_rows(
            dataset, source.seed, n_rows=search.n_samples
        )
    else:
        # at most half of the rows are tuning rows, so twice as many are sampled
        sample = samples.sample_folds(dataset, folds, n_rows=2 * search.n_samples)
        X, y, weights = sample.tuning_rows(search.n_samples)
    assert y is not None  # there are targets
    if weights is not None:
        weights = evidence.likelihood_weights(
            weights, repeated=source.frequency_weights
        )
    return X, y, weights


def resolve_kernel(
    source: RowSource, kernel: base.Kernel, length_scale: str | base.LengthScale | None
) -> base.Kernel:
    """Return a kernel with everything filled in that depends on the data.

    `KernelFeatures` explains the length scale.

    Raises InvalidParameterError if the length scale is neither "auto", "median" nor
    numbers above 0, or no part of the kernel takes it.
    """
    kernel.check_columns(source.dataset.n_features)
    if source.levels:
        kernel = kernel.with_categories(sorted(source.levels))
    if length_scale == "median" and isinstance(kernel, stationary.Stationary):
        kernel = kernel.with_length_scale(None)
    if length_scale is None:
        length_scale = "auto"
    if isinstance(length_scale, str) and length_scale in ("auto", "median"):
        medians = median_distances.MedianDistances(
            source.dataset, source.standardizer, seed=source.seed
        )
        kernel = kernel.with_default_length_scales(medians)
    elif isinstance(length_scale, str):
        raise InvalidParameterError(
            f"`length_scale` is {length_scale!r}; expected 'auto', 'median' or numbers"
            " above 0"
        )
    else:
        kernel = stationary.with_length_scale(kernel, length_scale)
    if source.ranges is None:
        return kernel
    return kernel.bind(*source.ranges)


def draw(source: RowSource, described: KernelFeatures) -> maps.FeatureMap:
    """Draw the feature map of a kernel for a dataset.

    Raises InvalidParameterError if the kernel does not suit the columns or the design.
    """
    kernel = resolve_kernel(source, described.kernel, described.length_scale)
    n_components = described.n_components
    nystrom_options = find_nystrom(described.features)
    if nystrom_options is not None:
        n_rows = nystrom_options.rows_to_sample(n_components)
        sample = samples.sample_inputs(source.dataset, source.seed, n_rows=n_rows)
        return nystrom.draw_nystrom(
            kernel,
            np.asarray(source.prepare(sample), np.float32),
            n_components=n_components,
            nystrom=nystrom_options,
            seed=source.seed,
            standardizer=source.standardizer,
            levels=source.levels,
        )
    return draw_feature_map(
        kernel,
        n_features=source.dataset.n_features,
        n_components=n_components,
        design=described.design,
        map=described.map,
        precision=described.precision,
        random_state=source.seed,
        standardizer=source.standardizer,
        levels=source.levels,
    )
