"""Z for one tile of rows: what maps an input to features, and how it is drawn from a kernel.

Features are computed unnormalised (entries in [-1, 1] where a bound exists) and transposed, one
component per line, because that is how the products want them; scales make Z of them.
"""

from __future__ import annotations

from rff_dist.errors import IntegrityError
from rff_dist.feature_map.complex import ComplexFeatureMap
from rff_dist.feature_map.concatenated import ConcatenatedFeatureMap
from rff_dist.feature_map.draw import (
    MAPS,
    check_map,
    check_n_components,
    draw_feature_map,
    draw_from_spec,
    seed_from_random_state,
    shortened,
)
from rff_dist.feature_map.explicit import (
    LinearFeatureMap,
    MonomialFeatureMap,
    PolynomialFeatureMap,
    ThresholdFeatureMap,
)
from rff_dist.feature_map.fourier import FourierFeatureMap
from rff_dist.feature_map.nystrom import Nystrom, NystromFeatureMap, draw_nystrom
from rff_dist.feature_map.principal import PrincipalFeatureMap
from rff_dist.feature_map.protocol import STRIPE, FeatureMap, FeatureSpec, RankMap, Standardizer
from rff_dist.feature_map.structured import StructuredFeatureMap

__all__ = [
    "MAPS",
    "STRIPE",
    "ComplexFeatureMap",
    "ConcatenatedFeatureMap",
    "FeatureMap",
    "FeatureSpec",
    "FourierFeatureMap",
    "LinearFeatureMap",
    "MonomialFeatureMap",
    "Nystrom",
    "NystromFeatureMap",
    "PolynomialFeatureMap",
    "PrincipalFeatureMap",
    "RankMap",
    "Standardizer",
    "StructuredFeatureMap",
    "ThresholdFeatureMap",
    "check_map",
    "check_n_components",
    "draw_feature_map",
    "draw_from_spec",
    "draw_nystrom",
    "feature_map_class",
    "seed_from_random_state",
    "shortened",
]

_KINDS: dict[str, type[FeatureMap]] = {
    kind.kind: kind
    for kind in (
        FourierFeatureMap, StructuredFeatureMap, ConcatenatedFeatureMap, LinearFeatureMap,
        ThresholdFeatureMap, MonomialFeatureMap, PolynomialFeatureMap, ComplexFeatureMap, NystromFeatureMap,
        PrincipalFeatureMap,
    )
}  # fmt: skip


def feature_map_class(kind: str) -> type[FeatureMap]:
    """Return the class of a stored feature map.

    Raises
    ------
    IntegrityError
        If there is no such kind here.
    """
    if kind not in _KINDS:
        raise IntegrityError(
            f"the stored feature map is of the unknown kind {kind!r}; expected {sorted(_KINDS)}"
        )
    return _KINDS[kind]
