"""The kinds of feature maps, by the names under which they are stored, and how a stored map is read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from rff_dist.errors import IntegrityError, RFFDistError
from rff_dist.features.complex import ComplexFeatureMap
from rff_dist.features.concatenated import ConcatenatedFeatureMap
from rff_dist.features.draw import draw_feature_map
from rff_dist.features.explicit import (
    LinearFeatureMap,
    MonomialFeatureMap,
    PolynomialFeatureMap,
    ThresholdFeatureMap,
)
from rff_dist.features.feature_map import FeatureMap, Standardizer
from rff_dist.features.fourier import FourierFeatureMap
from rff_dist.features.nystrom import NystromFeatureMap
from rff_dist.features.principal import PrincipalFeatureMap
from rff_dist.features.structured import StructuredFeatureMap
from rff_dist.kernels.find import kernel_from_dict
from rff_dist.typing import Arrays, Facts

logger = logging.getLogger(__name__)

_KINDS: dict[str, type[FeatureMap]] = {
    kind.kind: kind
    for kind in (
        FourierFeatureMap, StructuredFeatureMap, ConcatenatedFeatureMap, LinearFeatureMap,
        ThresholdFeatureMap, MonomialFeatureMap, PolynomialFeatureMap, ComplexFeatureMap, NystromFeatureMap,
        PrincipalFeatureMap,
    )
}  # fmt: skip


def read_map(facts: Facts, arrays: Arrays, standardizer: Standardizer | None = None) -> FeatureMap:
    """Rebuild a feature map from its record, and before it the maps that it is made of.

    `facts`: those of `FeatureMap.record`, and the map's `kind`.
    Raises IntegrityError if the kind is unknown.
    """
    kind, inner = facts["kind"], dict(facts)
    if kind not in _KINDS:
        raise IntegrityError(
            f"the stored feature map is of the unknown kind {kind!r}; expected {sorted(_KINDS)}"
        )
    if kind == ConcatenatedFeatureMap.kind:
        inner["parts"] = [_part(part, arrays, f"part{i}_") for i, part in enumerate(facts["parts"])]
    elif kind == PrincipalFeatureMap.kind:
        base = _part(facts["base"], arrays, "base_")
        inner["base"] = drawn_again(base, facts["base"].get("spec"), base.digest())
    return _KINDS[kind].from_record(inner, arrays, standardizer)


def _part(facts: Facts, arrays: Arrays, prefix: str) -> FeatureMap:
    """Rebuild a map that another one is made of; the names of its arrays have the prefix."""
    own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    return read_map(facts, own)


def drawn_again(stored: FeatureMap, spec: Mapping[str, Any] | None, digest: str) -> FeatureMap:
    """Return the map that a stored spec draws, which pickles as the spec; the stored one if it is another.

    A map of given frequencies pickles as all of them.

    `digest`: of the map that was stored.
    """
    if spec is None:
        return stored
    try:
        drawn = draw_feature_map(
            kernel_from_dict(spec["kernel"]),
            n_features=stored.n_features,
            n_components=spec["n_components"],
            design=spec["design"],
            map=spec["map"],
            precision=spec["precision"],
            random_state=spec["seed"],
            standardizer=stored.standardizer,
        )
    except RFFDistError as error:
        logger.warning("using the stored features, since their spec cannot be drawn here: %s", error)
        return stored
    if drawn.digest() != digest:
        logger.warning("using the stored features: this machine draws others from the same seed")
        return stored
    return drawn
