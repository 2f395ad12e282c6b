"""Feature maps as they are stored, and which kernel a map approximates.

A record, JSON facts and arrays by name, goes in; a feature map comes out. The map's
class alone could not rebuild it: maps consist of maps, and a map that was drawn from a
spec (kernel, design, seed and sizes) is drawn again.
"""

import logging

from rff_dist.errors import IntegrityError, InvalidParameterError, RFFDistError
from rff_dist.features import composed, draw, explicit, fourier, maps, nystrom
from rff_dist.kernels import names, stationary
from rff_dist.kernels.base import Kernel, LengthScale
from rff_dist.typing import AnyArray, Arrays, Facts

logger = logging.getLogger(__name__)

#: The classes of maps, by their kind as it is stored.
_CLASSES: dict[str, type[maps.FeatureMap]] = {
    map_class.kind: map_class
    for map_class in (
        fourier.FourierFeatureMap,
        explicit.LinearFeatureMap,
        explicit.ThresholdFeatureMap,
        explicit.MonomialFeatureMap,
        composed.ConcatenatedFeatureMap,
        composed.PrincipalFeatureMap,
        nystrom.NystromFeatureMap,
    )
}


def read_map(
    facts: Facts, arrays: Arrays, standardizer: maps.Standardizer | None = None
) -> maps.FeatureMap:
    """Rebuild a feature map from its record, after the maps that it consists of.

    `facts` are those of `FeatureMap.record`, and the map's `kind`. Raises
    IntegrityError if the kind is unknown.
    """
    kind = facts["kind"]
    inner = dict(facts)
    if kind not in _CLASSES:
        raise IntegrityError(
            f"the stored feature map is of the kind {kind!r}; expected"
            f" {sorted(_CLASSES)}"
        )
    if kind == composed.ConcatenatedFeatureMap.kind:
        # parts get no standardizer: the whole map standardises their inputs
        inner["parts"] = [
            read_map(part, with_prefix(arrays, f"part{i}_"))
            for i, part in enumerate(facts["parts"])
        ]
    elif kind == composed.PrincipalFeatureMap.kind:
        # The caller draws the outermost map again from its spec. A principal map has no
        # spec, so its base is drawn again here.
        base = read_map(facts["base"], with_prefix(arrays, "base_"))
        inner["base"] = drawn_again(base, facts["base"].get("spec"), base.digest())
    return _CLASSES[kind].from_record(inner, arrays, standardizer)


def with_prefix(arrays: Arrays, prefix: str) -> dict[str, AnyArray]:
    """Return the arrays whose names begin with `prefix`, named by what follows it."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def drawn_again(
    stored: maps.FeatureMap, spec: Facts | None, digest: str
) -> maps.FeatureMap:
    """Return the map that a stored spec draws here.

    It is the stored map itself if there is no spec, or if this machine draws another
    one. A drawn map is pickled as its spec, a stored one with all of its frequencies.
    `digest` is the stored map's.
    """
    if spec is None:
        return stored
    try:
        drawn = draw.draw_feature_map(
            names.kernel_from_dict(spec["kernel"]),
            n_features=stored.n_features,
            n_components=spec["n_components"],
            design=spec["design"],
            map=spec["map"],
            precision=spec["precision"],
            random_state=spec["seed"],
            standardizer=stored.standardizer,
            levels=stored.drawn_levels,
        ).with_levels(stored.levels)
    except RFFDistError as error:
        logger.warning(
            "using the stored features, since their spec cannot be drawn here: %s",
            error,
        )
        return stored
    if drawn.digest() != digest:
        logger.warning(
            "using the stored features: this machine draws others from the same seed"
        )
        return stored
    return drawn


# -- which kernel a map approximates


def kernel_of(feature_map: maps.FeatureMap) -> Kernel | None:
    """Return the kernel of a feature map; None if its frequencies were given."""
    if isinstance(feature_map, composed.PrincipalFeatureMap):
        return kernel_of(feature_map.base)
    if isinstance(feature_map, nystrom.NystromFeatureMap):
        return feature_map.kernel
    return None if feature_map.spec is None else feature_map.spec.kernel


def marked_levels(feature_map: maps.FeatureMap) -> dict[int, list[str]]:
    """Return the levels to which linear kernels give a component each, by column."""
    marked: dict[int, list[str]] = {}
    for part in getattr(feature_map, "parts", (feature_map,)):
        if isinstance(part, explicit.LinearFeatureMap):
            marked |= part.marked_levels
    return marked


def kind_of(feature_map: maps.FeatureMap) -> str:
    """Return what the parameter `features` calls a map: "nystrom" or "fourier".

    This is coarser than `FeatureMap.kind`, the class by which it is stored.
    """
    if isinstance(feature_map, composed.PrincipalFeatureMap):
        return kind_of(feature_map.base)
    if isinstance(feature_map, nystrom.NystromFeatureMap):
        return "nystrom"
    return "fourier"


def length_scale_of(feature_map: maps.FeatureMap) -> LengthScale | None:
    """Return the length scale of a feature map's kernel; None if it has no single one.

    Raises InvalidParameterError if the frequencies were given rather than drawn.
    """
    kernel = kernel_of(feature_map)
    if kernel is None:
        raise InvalidParameterError(
            "the feature map was made of given frequencies; it knows no length scale"
        )
    return stationary.own_length_scale(kernel)
