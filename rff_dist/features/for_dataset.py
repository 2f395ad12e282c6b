"""Features for a dataset: choose its length scales and the better map, and draw the features."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.data.blocks import Dataset
from rff_dist.data.folds import HeldInFolds
from rff_dist.data.samples import sample_folds, sample_inputs, sample_rows
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.features.bounds import better_map
from rff_dist.features.draw import draw_feature_map
from rff_dist.features.evidence import (
    EvidenceSearch,
    TunedKernel,
    check_tunable,
    likelihood_weights,
    maximize_evidence,
)
from rff_dist.features.feature_map import FeatureMap, Standardizer
from rff_dist.features.median_heuristic import MedianDistances
from rff_dist.features.nystrom import draw_nystrom
from rff_dist.features.options import KernelFeatures, find_features
from rff_dist.kernels.base import Kernel, LengthScale
from rff_dist.kernels.stationary import Stationary, with_length_scale
from rff_dist.typing import FloatArray

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The rows of a dataset as features see them.

    `standardizer`: applied to the rows first.
    `seed`: of all samples of rows, and of the features.
    `ranges`: float64 arrays of shape (n_features,), from `input_range`, for kernels that need them.
    `frequency_weights`: whether weights repeat rows.
    """

    dataset: Dataset
    standardizer: Standardizer | None = None
    seed: int = 0
    ranges: tuple[FloatArray, FloatArray] | None = None
    frequency_weights: bool = False

    def prepare(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return rows standardised. Overflows are left to the passes, whose errors give the rows' numbers."""
        with np.errstate(over="ignore"):
            return X if self.standardizer is None else self.standardizer(X)


def tune(
    inputs: Inputs,
    kernel: Kernel,
    search: EvidenceSearch = EvidenceSearch(),
    *,
    folds: HeldInFolds | None = None,
    told: Callable[[int, int], None] | None = None,
) -> TunedKernel:
    """Choose a kernel's length scales by the evidence of a seeded sample of rows, in this process.

    Takes seconds to a minute: O(n_samples · n_components²) for each of a few hundred evaluations.

    `inputs`: with targets; rows without weight are left out.
    `kernel`: its own length scale is replaced.
    `folds`: only the rows that these folds hold in are sampled.
    `told`: called from several threads with the number of steps taken, and how many there may be.
    Raises InvalidParameterError if the kernel is not one with a length scale; DataError if the dataset has no
      targets, a sampled value is not finite, or the sample says nothing about length scales.
    """
    found, dataset = check_tunable(kernel), inputs.dataset
    if dataset.n_targets < 1:
        raise DataError("the data have no y: the evidence of length scales needs targets")
    if folds is None:
        X, y, weights = sample_rows(dataset, inputs.seed, n_rows=search.n_samples)
    else:
        # half of the rows are held in at most, so twice as many are sampled
        X, y, weights = sample_folds(dataset, folds, n_rows=2 * search.n_samples).held_in(search.n_samples)
    assert y is not None  # there are targets
    if weights is not None:
        weights = likelihood_weights(weights, repeated=inputs.frequency_weights)
    rows = np.asarray(inputs.prepare(X), np.float64)
    return maximize_evidence(found, rows, y, weights, search=search, seed=inputs.seed, told=told)


def choose_map(inputs: Inputs, kernel: Kernel, n_components: int) -> str:
    """Return "pairs" or "phases": the map with the lower closed-form variance on up to 1,000 rows.

    If `n_components` is odd, only phases will do. The kernel must have its length scale. See `better_map`.
    """
    if n_components % 2:
        return "phases"
    sample = sample_inputs(inputs.dataset, inputs.seed)
    if len(sample) < 2:
        return "pairs"
    found = better_map(kernel, inputs.prepare(sample))
    message = "map=%r: mean variance times D is %.4g for pairs and %.4g for phases"
    logger.debug(message, found.better, found.pairs, found.phases)
    return found.better


def resolve_kernel(inputs: Inputs, kernel: Kernel, length_scale: str | LengthScale | None) -> Kernel:
    """Return a kernel with all that depends on the data filled in; see `KernelFeatures` for the length scale.

    Raises InvalidParameterError if the length scale is neither "auto", "median" nor numbers above 0, or no
      part of the kernel takes it.
    """
    kernel.check_columns(inputs.dataset.n_features)
    if length_scale == "median" and isinstance(kernel, Stationary):
        kernel = kernel.with_length_scale(None)
    if length_scale is None or (isinstance(length_scale, str) and length_scale in ("auto", "median")):
        # a length scale of 1, used in silence, once gave an error of 0.876 where the median gives 0.394
        medians = MedianDistances(inputs.dataset, standardizer=inputs.standardizer, seed=inputs.seed)
        kernel = kernel.with_default_length_scales(medians)
    elif not isinstance(length_scale, str):
        kernel = with_length_scale(kernel, length_scale)
    else:
        raise InvalidParameterError(
            f"`length_scale` is {length_scale!r}; expected 'auto', 'median' or numbers above 0"
        )
    return kernel if inputs.ranges is None else kernel.bind(*inputs.ranges)


def draw(inputs: Inputs, described: KernelFeatures) -> FeatureMap:
    """Draw the feature map of a kernel for a dataset.

    Raises InvalidParameterError if the kernel does not suit the columns or the design.
    """
    nystrom, dataset, seed = find_features(described.features), inputs.dataset, inputs.seed
    kernel = resolve_kernel(inputs, described.kernel, described.length_scale)
    if nystrom is not None:
        sample = sample_inputs(dataset, seed, n_rows=nystrom.rows_to_sample(described.n_components))
        return draw_nystrom(
            kernel,
            np.asarray(inputs.prepare(sample), np.float32),
            n_components=described.n_components,
            nystrom=nystrom,
            seed=seed,
            standardizer=inputs.standardizer,
        )
    chosen = choose_map(inputs, kernel, described.n_components) if described.map == "auto" else described.map
    return draw_feature_map(
        kernel,
        n_features=dataset.n_features,
        n_components=described.n_components,
        design=described.design,
        map=chosen,
        precision=described.precision,
        random_state=seed,
        standardizer=inputs.standardizer,
    )
