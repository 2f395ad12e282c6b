"""A feature map whose components have weights of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.feature_map.protocol import (
    FeatureMap,
    FeatureSpec,
    Float32Array,
    FloatArray,
    Record,
    Standardizer,
    arrays_digest,
)
from rff_dist.runs import Runs, as_runs, expand


@dataclass(frozen=True, eq=False)
class ReweightedFeatureMap(FeatureMap):
    """Each component of another map times a factor: importance-weighted features.

    Attributes
    ----------
    base : FeatureMap
        Without a standardizer of its own.
    factors : float64 array of shape (n_components,)
    """

    kind = "reweighted"

    base: FeatureMap
    factors: FloatArray
    standardizer: Standardizer | None = None
    spec: FeatureSpec | None = None

    @property
    def n_features(self) -> int:
        """Columns of the inputs."""
        return self.base.n_features

    @property
    def n_components(self) -> int:
        """D, the width of Z."""
        return self.base.n_components

    @property
    def scales(self) -> Runs:
        """The other map's scales times the factors."""
        return as_runs(expand(self.base.scales) * self.factors)

    @property
    def squared_norm(self) -> float | None:
        """That of the other map: unnormalised features are the same."""
        return self.base.squared_norm

    @property
    def bounded(self) -> bool:
        """Whether the features of the other map are."""
        return self.base.bounded

    @property
    def stripes(self) -> list[tuple[int, int]]:
        """Those of the other map."""
        return self.base.stripes

    def with_standardizer(self, standardizer: Standardizer | None) -> Self:
        """Return the same features of inputs that are standardised first."""
        return replace(self, standardizer=standardizer)

    def fill(self, inputs: Float32Array, out: FloatArray, start: int, stop: int) -> None:
        """Write unnormalised components `start:stop` to `out`."""
        self.base.fill(inputs, out, start, stop)

    def digest(self) -> str:
        """Return the SHA-256 of the other map, the factors and the standardizer."""
        return arrays_digest(f"{self.kind} {self.base.digest()}", [self.factors], self.standardizer)

    def record(self) -> Record:
        """Return what the map is stored as: the other's record, and the factors."""
        facts, arrays = self.base.record()
        renamed = {f"base_{name}": array for name, array in arrays.items()}
        return {"base": {"kind": self.base.kind, **facts}}, {"factors": self.factors, **renamed}

    @classmethod
    def from_record(
        cls, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], standardizer: Standardizer | None
    ) -> ReweightedFeatureMap:
        """Rebuild the map from what `record` returned."""
        from rff_dist.feature_map import feature_map_class

        own = {name.removeprefix("base_"): a for name, a in arrays.items() if name.startswith("base_")}
        base = feature_map_class(facts["base"]["kind"]).from_record(facts["base"], own, None)
        return cls(base, np.asarray(arrays["factors"], np.float64), standardizer)
