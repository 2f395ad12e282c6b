"""Which features are drawn for a dataset: the options, the length scales, and the better map."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.checks import check_name
from rff_dist.data import blocks, folding, samples
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.features import bounds, length_scales, maps
from rff_dist.features.draw import PRECISIONS, check_n_components, draw_feature_map
from rff_dist.features.nystrom import Nystrom, draw_nystrom
from rff_dist.frequencies import designs
from rff_dist.kernels import base, stationary
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

    dataset: blocks.Dataset
    standardizer: maps.Standardizer | None = None
    seed: int = 0
    ranges: tuple[FloatArray, FloatArray] | None = None
    frequency_weights: bool = False

    def prepare(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return rows standardised. Overflows are left to the passes, whose errors give the rows' numbers."""
        with np.errstate(over="ignore"):
            return X if self.standardizer is None else self.standardizer(X)


def tune(
    inputs: Inputs,
    kernel: base.Kernel,
    search: length_scales.EvidenceSearch = length_scales.EvidenceSearch(),
    *,
    folds: folding.HeldInFolds | None = None,
    told: Callable[[int, int], None] | None = None,
) -> length_scales.TunedKernel:
    """Choose a kernel's length scales by the evidence of a seeded sample of rows, in this process.

    Takes seconds to a minute: O(n_samples · n_components²) for each of a few hundred evaluations.

    `inputs`: with targets; rows without weight are left out.
    `kernel`: its own length scale is replaced.
    `folds`: only the rows that these folds hold in are sampled.
    `told`: called from several threads with the number of steps taken, and how many there may be.
    Raises InvalidParameterError if the kernel is not one with a length scale; DataError if the dataset has no
      targets, a sampled value is not finite, or the sample says nothing about length scales.
    """
    found, dataset = length_scales.check_tunable(kernel), inputs.dataset
    if dataset.n_targets < 1:
        raise DataError("the data have no y: the evidence of length scales needs targets")
    if folds is None:
        X, y, weights = samples.sample_rows(dataset, inputs.seed, n_rows=search.n_samples)
    else:
        # half of the rows are held in at most, so twice as many are sampled
        X, y, weights = samples.sample_folds(dataset, folds, n_rows=2 * search.n_samples).held_in(
            search.n_samples
        )
    assert y is not None  # there are targets
    if weights is not None:
        weights = length_scales.likelihood_weights(weights, repeated=inputs.frequency_weights)
    rows = np.asarray(inputs.prepare(X), np.float64)
    return length_scales.maximize_evidence(
        found, rows, y, weights, search=search, seed=inputs.seed, told=told
    )


def choose_map(inputs: Inputs, kernel: base.Kernel, n_components: int) -> str:
    """Return "pairs" or "phases": the map with the lower closed-form variance on up to 1,000 rows.

    If `n_components` is odd, only phases will do. The kernel must have its length scale. See `better_map`.
    """
    if n_components % 2:
        return "phases"
    sample = samples.sample_inputs(inputs.dataset, inputs.seed)
    if len(sample) < 2:
        return "pairs"
    found = bounds.better_map(kernel, inputs.prepare(sample))
    message = "map=%r: mean variance times D is %.4g for pairs and %.4g for phases"
    logger.debug(message, found.better, found.pairs, found.phases)
    return found.better


def resolve_kernel(
    inputs: Inputs, kernel: base.Kernel, length_scale: str | base.LengthScale | None
) -> base.Kernel:
    """Return a kernel with all that depends on the data filled in; see `KernelFeatures` for the length scale.

    Raises InvalidParameterError if the length scale is neither "auto", "median" nor numbers above 0, or no
      part of the kernel takes it.
    """
    kernel.check_columns(inputs.dataset.n_features)
    if length_scale == "median" and isinstance(kernel, stationary.Stationary):
        kernel = kernel.with_length_scale(None)
    if length_scale is None or (isinstance(length_scale, str) and length_scale in ("auto", "median")):
        # a length scale of 1, used in silence, once gave an error of 0.876 where the median gives 0.394
        medians = length_scales.MedianDistances(
            inputs.dataset, standardizer=inputs.standardizer, seed=inputs.seed
        )
        kernel = kernel.with_default_length_scales(medians)
    elif not isinstance(length_scale, str):
        kernel = stationary.with_length_scale(kernel, length_scale)
    else:
        raise InvalidParameterError(
            f"`length_scale` is {length_scale!r}; expected 'auto', 'median' or numbers above 0"
        )
    return kernel if inputs.ranges is None else kernel.bind(*inputs.ranges)


def draw(inputs: Inputs, described: KernelFeatures) -> maps.FeatureMap:
    """Draw the feature map of a kernel for a dataset.

    Raises InvalidParameterError if the kernel does not suit the columns or the design.
    """
    nystrom, dataset, seed = find_features(described.features), inputs.dataset, inputs.seed
    kernel = resolve_kernel(inputs, described.kernel, described.length_scale)
    if nystrom is not None:
        sample = samples.sample_inputs(dataset, seed, n_rows=nystrom.rows_to_sample(described.n_components))
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


# -- which features are drawn for a dataset --------------------------------------------------------


FEATURES = ("fourier", "nystrom")
DATASET_MAPS = ("auto", "pairs", "phases")


@dataclass(frozen=True)
class KernelFeatures:
    """Features of a kernel.

    `length_scale`: with "auto" or None, each part of the kernel without a length scale takes the median
      distance between rows, in its own columns and metric. "median" also replaces the length scale of a
      single kernel that has one. So do numbers; in sums and products they go to the parts without one.
    `n_components`: D, the number of features; even for pairs.
    `features`: {"fourier", "nystrom"} or Nystrom. Random Fourier features, for which `design`, `map` and
      `precision` are; or Nyström features, with centres among the distinct rows of a seeded sample.
    `design`: how frequencies are arranged; see `design_for`.
    `map`: {"auto", "pairs", "phases"}. "auto" lets `choose_map` choose; the map's spec has its choice.
    `precision`: {"standard", "high"}. See `draw_feature_map`.
    Raises InvalidParameterError if a value is out of range.
    """

    kernel: base.Kernel
    _: KW_ONLY
    length_scale: str | base.LengthScale | None = "auto"
    n_components: int = 1024
    features: str | Nystrom = "fourier"
    design: str | designs.Design = "auto"
    map: str = "pairs"
    precision: str = "standard"

    def __post_init__(self) -> None:
        check_name(self.map, DATASET_MAPS, "map")
        check_name(self.precision, PRECISIONS, "precision")
        check_width(self.n_components, self.map, self.features)
        base.design_for(self.kernel, self.design)


@dataclass(frozen=True, kw_only=True)
class FeatureOptions(KernelFeatures):
    """Features of a kernel, and what is done to the inputs first.

    `standardize`: {"auto", "rank"} or bool. See `statistics.inspection.standardizer_for`.
    `seed`: of frequencies and samples.
    """

    standardize: bool | str = False
    seed: int = 0


def find_features(features: str | Nystrom) -> Nystrom | None:
    """Return how Nyström features are made, or None for random Fourier features.

    Raises InvalidParameterError if `features` is neither a name nor a `Nystrom`.
    """
    if isinstance(features, Nystrom):
        return features
    check_name(features, FEATURES, "features", also=", or Nystrom(…)")
    return Nystrom() if features == "nystrom" else None


def check_width(n_components: object, map: str, features: str | Nystrom) -> int:
    """Return `n_components` as an int; raises InvalidParameterError if such features cannot have as many."""
    return check_n_components(n_components, map if find_features(features) is None else "centres")


def check_without_targets(length_scale: object) -> None:
    """Raise InvalidParameterError for length scales that need targets."""
    if isinstance(length_scale, str) and length_scale == "evidence":
        raise InvalidParameterError(
            "`length_scale` is 'evidence', which needs targets, and there are none here; expected 'auto' or "
            "numbers above 0"
        )
