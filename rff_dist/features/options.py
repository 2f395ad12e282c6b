"""Which features are drawn for a dataset: options that check themselves."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from rff_dist.checks import check_name
from rff_dist.errors import InvalidParameterError
from rff_dist.features.draw import PRECISIONS, check_n_components
from rff_dist.features.nystrom import Nystrom
from rff_dist.frequencies.designs import Design
from rff_dist.kernels.base import Kernel, LengthScale, design_for

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

    kernel: Kernel
    _: KW_ONLY
    length_scale: str | LengthScale | None = "auto"
    n_components: int = 1024
    features: str | Nystrom = "fourier"
    design: str | Design = "auto"
    map: str = "pairs"
    precision: str = "standard"

    def __post_init__(self) -> None:
        check_name(self.map, DATASET_MAPS, "map")
        check_name(self.precision, PRECISIONS, "precision")
        check_width(self.n_components, self.map, self.features)
        design_for(self.kernel, self.design)


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
