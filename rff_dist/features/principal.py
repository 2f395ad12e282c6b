"""Scores on principal components of another map's features, as features of their own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from rff_dist.features.feature_map import FeatureMap, FeatureSpec, Record, Standardizer, arrays_digest
from rff_dist.frequencies.designs import DESIGNS
from rff_dist.kernels.find import kernel_from_dict
from rff_dist.numerics.runs import Runs
from rff_dist.numerics.threads import tile_pool
from rff_dist.typing import Float32Array, FloatArray

logger = logging.getLogger(__name__)

_PANEL_ROWS = 64  # whose scores are made by one product, always of the same shape
_WORK_BYTES = 2**22  # of the other map's features, filled at once


@dataclass(frozen=True, eq=False)
class PrincipalFeatureMap(FeatureMap):
    """Z·A + a of another map's Z: its leading principal components, made anew for each tile.

    Rows cost O(D · (n_features + n_kept)), D the other map's width, and D numbers of them exist at a time.

    `base`: without a standardizer of its own.
    `coefficients`: float64 array of shape (D, n_kept) or (D, n_kept + 1). Of the other map's unnormalised
      features; the last column gives degrees where `floor` is given.
    `intercept`: float64 array of as many columns. Added to the products.
    `offset`: float64 array of shape (n_kept,). Subtracted after the scores are divided by the degree.
    `floor`: of the degrees; None where features are not normalised.
    """

    kind = "principal"

    base: FeatureMap
    coefficients: FloatArray
    intercept: FloatArray
    offset: FloatArray
    floor: float | None = None
    standardizer: Standardizer | None = None
    spec: FeatureSpec | None = None

    @property
    def n_features(self) -> int:
        return self.base.n_features

    @property
    def n_components(self) -> int:
        return len(self.offset)

    @property
    def scales(self) -> Runs:
        return ((self.n_components, 1.0),)

    @property
    def bounded(self) -> bool:
        return False

    @property
    def stripes(self) -> list[tuple[int, int]]:
        return [(0, self.n_components)]

    def fill(self, inputs: Float32Array, out: FloatArray, start: int, stop: int) -> None:
        D, panel = self.base.n_components, np.zeros((self.base.n_components, _PANEL_ROWS))
        rows = max(1, _WORK_BYTES // (8 * D * _PANEL_ROWS)) * _PANEL_ROWS
        features = np.empty((D, min(rows, len(inputs))))
        for first in range(0, len(inputs), rows):
            tile = features[:, : len(inputs[first : first + rows])]
            for a, b in self.base.stripes:
                self.base.fill(inputs[first : first + rows], tile[a:b], a, b)
            for i in range(0, tile.shape[1], _PANEL_ROWS):
                part = tile[:, i : i + _PANEL_ROWS]
                panel[:, : part.shape[1]] = part
                scores = self._scores(panel)[start:stop, : part.shape[1]]
                out[:, first + i : first + i + part.shape[1]] = scores

    def _scores(self, features: FloatArray) -> FloatArray:
        found: FloatArray = self.coefficients.T @ features + self.intercept[:, np.newaxis]
        if self.floor is None:
            return found
        scores: FloatArray = found[:-1] / np.maximum(found[-1], self.floor)
        return scores - self.offset[:, np.newaxis]

    def transform(self, X: ArrayLike, *, dtype: DTypeLike = np.float64) -> NDArray[Any]:
        with tile_pool():  # one BLAS thread, as in a pass: the same bits
            return super().transform(X, dtype=dtype)

    def digest(self) -> str:
        label = f"{self.kind} {self.base.digest()} {self.coefficients.shape} {self.floor!r}"
        return arrays_digest(label, [self.coefficients, self.intercept, self.offset], self.standardizer)

    def record(self) -> Record:
        facts, arrays = self.base.record()
        stored = {"coefficients": self.coefficients, "intercept": self.intercept, "offset": self.offset}
        stored |= {f"base_{name}": array for name, array in arrays.items()}
        base = {"kind": self.base.kind, **facts}
        spec = self.base.spec
        if spec is not None and DESIGNS.get(spec.design.name) == spec.design:
            base["spec"] = {
                "kernel": spec.kernel.to_dict(),
                "design": spec.design.name,
                "map": spec.map,
                "seed": spec.seed,
                "precision": spec.precision,
            }
        return {"base": base, "floor": self.floor}, stored

    @classmethod
    def from_record(
        cls, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], standardizer: Standardizer | None
    ) -> PrincipalFeatureMap:
        from rff_dist.features.draw import draw_from_spec
        from rff_dist.features.kinds import feature_map_class

        own = {name.removeprefix("base_"): a for name, a in arrays.items() if name.startswith("base_")}
        base = feature_map_class(facts["base"]["kind"]).from_record(facts["base"], own, None)
        if (spec := facts["base"].get("spec")) is not None:
            sizes = base.n_features, base.n_components
            kernel, design = kernel_from_dict(spec["kernel"]), DESIGNS[spec["design"]]
            asked = spec["map"], spec["seed"], spec.get("precision", "high")
            drawn = draw_from_spec(FeatureSpec(kernel, design, *sizes, *asked), None)
            if drawn.digest() == base.digest():
                base = drawn
            else:
                logger.warning("using the stored features: this machine draws others from the same seed")
        return cls(
            base,
            np.asarray(arrays["coefficients"], np.float64),
            np.asarray(arrays["intercept"], np.float64),
            np.asarray(arrays["offset"], np.float64),
            facts["floor"],
            standardizer,
        )
