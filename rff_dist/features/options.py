"""Which features are drawn for a dataset: one noun for all that is said of them, checked once."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from rff_dist.errors import InvalidParameterError
from rff_dist.features.draw import check_map, check_precision
from rff_dist.features.for_dataset import check_width
from rff_dist.features.nystrom import Nystrom
from rff_dist.frequencies.designs import Design
from rff_dist.kernels.base import Kernel, LengthScale, find_design


@dataclass(frozen=True)
class FeatureOptions:
    """Features of a kernel, and what is done to the inputs first.

    `length_scale`: see `features.for_dataset.draw`; None keeps the kernel's own.
    `n_components`: D, the number of features: even for pairs.
    `features`: their kind.
    `design`: how frequencies are arranged.
    `map`: {"auto", "pairs", "phases"}. See `features.for_dataset.draw`.
    `precision`: {"standard", "high"}. See `draw_feature_map`.
    `standardize`: {"auto", "rank"} or bool. What is done to the input columns first, see
      `statistics.inspection.standardizer_for`.
    `seed`: of frequencies and samples.
    Raises InvalidParameterError if a value is out of range.
    """

    kernel: Kernel
    _: KW_ONLY
    length_scale: str | LengthScale | None = "auto"
    n_components: int = 1024
    features: str | Nystrom = "fourier"
    design: str | Design = "orthogonal"
    map: str = "pairs"
    precision: str = "standard"
    standardize: bool | str = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_map(self.map)
        check_precision(self.precision)
        check_width(self.n_components, self.map, self.features)
        find_design(self.design)

    @property
    def drawing(self) -> dict[str, Any]:
        """What `features.for_dataset.draw` takes beside the kernel."""
        names = ("length_scale", "n_components", "features", "design", "map", "precision", "seed")
        return {name: getattr(self, name) for name in names}


def check_without_targets(length_scale: object) -> None:
    """Refuse length scales that only targets give."""
    if isinstance(length_scale, str) and length_scale == "evidence":
        raise InvalidParameterError(
            "`length_scale` is 'evidence', which needs targets, and there are none here; expected 'auto' or "
            "numbers above 0"
        )
