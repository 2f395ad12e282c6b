"""Which kernel a feature map approximates, with which length scale, by which kind of features."""

from __future__ import annotations

from rff_dist.errors import InvalidParameterError
from rff_dist.features.feature_map import FeatureMap
from rff_dist.features.nystrom import NystromFeatureMap
from rff_dist.features.principal import PrincipalFeatureMap
from rff_dist.kernels.base import Kernel, LengthScale
from rff_dist.kernels.stationary import own_length_scale


def kernel_of(feature_map: FeatureMap) -> Kernel | None:
    """Return the kernel that a feature map approximates; None if its frequencies were given."""
    if isinstance(feature_map, PrincipalFeatureMap):
        return kernel_of(feature_map.base)
    if isinstance(feature_map, NystromFeatureMap):
        return feature_map.kernel
    return None if feature_map.spec is None else feature_map.spec.kernel


def kind_of(feature_map: FeatureMap) -> str:
    """Return the kind of features as parameters name it: "nystrom" or "fourier"."""
    inner = feature_map.base if isinstance(feature_map, PrincipalFeatureMap) else feature_map
    return "nystrom" if isinstance(inner, NystromFeatureMap) else "fourier"


def length_scale_of(feature_map: FeatureMap) -> LengthScale | None:
    """Return the length scale of a feature map's kernel; None if it has no single one.

    Raises InvalidParameterError if the frequencies were given rather than drawn.
    """
    kernel = kernel_of(feature_map)
    if kernel is None:
        raise InvalidParameterError(
            "this feature map was made of given frequencies; it knows no length scale"
        )
    return own_length_scale(kernel)
