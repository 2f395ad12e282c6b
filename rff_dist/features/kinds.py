"""The kinds of feature maps, by the names under which they are stored."""

from __future__ import annotations

from rff_dist.errors import IntegrityError
from rff_dist.features.complex import ComplexFeatureMap
from rff_dist.features.concatenated import ConcatenatedFeatureMap
from rff_dist.features.explicit import (
    LinearFeatureMap,
    MonomialFeatureMap,
    PolynomialFeatureMap,
    ThresholdFeatureMap,
)
from rff_dist.features.feature_map import FeatureMap
from rff_dist.features.fourier import FourierFeatureMap
from rff_dist.features.nystrom import NystromFeatureMap
from rff_dist.features.principal import PrincipalFeatureMap
from rff_dist.features.structured import StructuredFeatureMap
from rff_dist.typing import Arrays, Facts

_KINDS: dict[str, type[FeatureMap]] = {
    kind.kind: kind
    for kind in (
        FourierFeatureMap, StructuredFeatureMap, ConcatenatedFeatureMap, LinearFeatureMap,
        ThresholdFeatureMap, MonomialFeatureMap, PolynomialFeatureMap, ComplexFeatureMap, NystromFeatureMap,
        PrincipalFeatureMap,
    )
}  # fmt: skip


def feature_map_class(kind: str) -> type[FeatureMap]:
    """Return the class of a stored feature map; raises IntegrityError if the kind is unknown."""
    if kind not in _KINDS:
        raise IntegrityError(
            f"the stored feature map is of the unknown kind {kind!r}; expected {sorted(_KINDS)}"
        )
    return _KINDS[kind]


def part_from_record(facts: Facts, arrays: Arrays, prefix: str) -> FeatureMap:
    """Rebuild a part of a feature map from its facts and the arrays whose names have its prefix."""
    own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    return feature_map_class(facts["kind"]).from_record(facts, own, None)
