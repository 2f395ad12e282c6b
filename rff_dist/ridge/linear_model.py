"""Predictions for a block of rows: f(x) = z(x)'·coefficients + intercept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from rff_dist.data.blocks import Rows
from rff_dist.data.checks import check_finite
from rff_dist.errors import DataError
from rff_dist.features.feature_map import FeatureMap
from rff_dist.numerics.threads import share_out
from rff_dist.statistics.spec import tile_rows
from rff_dist.text import short_repr
from rff_dist.typing import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class LinearModel:
    """The state of a predicting pass: f(x) = z(x)'·coefficients + intercept.

    `feature_map`: z.
    `coefficients`: float64 array of shape (n_components, n_targets). Weights of Z's columns.
    `intercept`: float64 array of shape (n_targets,). Added to all rows.
    `raw_coefficients`: float64 array of shape (n_components, n_targets). The same weights for unnormalised
      features.
    """

    feature_map: FeatureMap
    coefficients: FloatArray
    intercept: FloatArray
    raw_coefficients: FloatArray = field(init=False)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        # once, and sent to workers: a whitened map takes D³ operations, which each of them would repeat
        object.__setattr__(self, "raw_coefficients", self.feature_map.raw_coefficients(self.coefficients))


def predict_rows(rows: Rows, model: LinearModel) -> FloatArray:
    """Return predictions of shape (n_samples, n_targets), O(n_samples · n_components · n_features).

    Z is never held: each stripe of features is used and overwritten.

    Raises DataError if X has another number of columns, holds NaN or infinity, or is so large that features
      overflow.
    """
    feature_map = model.feature_map
    inputs = feature_map.prepare(rows.X)
    check_finite(replace(rows, y=None, sample_weight=None), inputs)
    weights = model.raw_coefficients.T
    stripes = feature_map.stripes
    predictions = np.empty((len(inputs), weights.shape[0]))
    height = min(tile_rows(feature_map.n_components), max(1, len(inputs)))

    def predict(start: int) -> None:
        tile = inputs[start : start + height]
        stripe = np.empty((max(stop - first for first, stop in stripes), len(tile)))
        total = np.zeros((weights.shape[0], len(tile)))
        for first, stop in stripes:
            with np.errstate(over="ignore", invalid="ignore"):  # reported below
                feature_map.fill(tile, stripe[: stop - first], first, stop)
                total += weights[:, first:stop] @ stripe[: stop - first]
        predictions[start : start + height] = total.T + model.intercept

    share_out(predict, range(0, len(inputs), height))
    if not np.isfinite(predictions).all():
        row = rows.block.start + int(np.argwhere(~np.isfinite(predictions))[0, 0])
        raise DataError(
            f"the prediction of row {row:_} is not finite: its inputs times the frequencies, or the model's "
            "coefficients, overflow; standardise the inputs"
        )
    return predictions
