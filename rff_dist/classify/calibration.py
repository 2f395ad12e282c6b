"""Calibrate a classifier's probabilities on leave-one-out scores of training rows.

A model and its training rows go in; a `ScoreCalibration`, which turns scores into
probabilities, comes out. A model's scores of its own training rows are too certain.
Leave-one-out scores are not, and have a closed form, so no second fit is needed.
"""

import logging
from typing import Self

import numpy as np

from rff_dist.classify import platt_scaling, predict
from rff_dist.data import blocks, samples
from rff_dist.errors import SolveError
from rff_dist.frequencies import uniforms
from rff_dist.numerics import machine
from rff_dist.ridge import models, uncertainty
from rff_dist.text import short_repr
from rff_dist.typing import AnyArray, FloatArray, frozen

logger = logging.getLogger(__name__)

# Limits of the sample whose leave-one-out scores are calibrated: the number of rows,
# and of scores, one per row and target (2**24 float64 take 128 MiB).
CALIBRATION_ROWS = 10_000
CALIBRATION_SCORES = 2**24


@frozen(eq=False)
class CalibrationRows:
    """A sample of all rows so far, kept for calibration while more rows come."""

    #: The number of rows so far.
    n_seen: int
    #: Each row has a random number in (0, 1) that depends on its place alone. The rows
    #: with the smallest numbers are sampled, so the sample does not depend on how rows
    #: were divided among calls.
    keys: FloatArray
    X: AnyArray
    #: −1 and +1, shape (n_sampled, n_targets).
    targets: FloatArray
    weights: FloatArray

    __repr__ = short_repr

    @classmethod
    def of(cls, dataset: blocks.Dataset, before: Self | None = None) -> Self:
        """Return a sample of up to 10,000 rows of a dataset and the rows before it."""
        n_before = 0 if before is None else before.n_seen
        n_seen = n_before + dataset.n_samples
        # not by `sample_rows`, which needs all rows at once
        keys = uniforms.row_uniforms(seed=0, stream=0, start=n_before, stop=n_seen)
        if before is not None:
            keys = np.concatenate([before.keys, keys])
        smallest = np.argsort(keys, kind="stable")[: _max_calibrated(dataset)]
        sampled = np.sort(smallest)
        n_old = len(keys) - dataset.n_samples
        new = sampled[sampled >= n_old] - n_old
        X, targets, weights = dataset.take(new)
        assert targets is not None
        if weights is None:
            weights = np.ones(len(new))
        if before is not None:
            old = sampled[sampled < n_old]
            X = np.concatenate([before.X[old], X])
            targets = np.concatenate([before.targets[old], targets])
            weights = np.concatenate([before.weights[old], weights])
        return cls(n_seen, keys[sampled], X, targets, weights)


def _max_calibrated(dataset: blocks.Dataset) -> int:
    """Return the most rows that calibration takes."""
    return min(CALIBRATION_ROWS, CALIBRATION_SCORES // dataset.n_targets)


def calibrate(
    dataset: blocks.Dataset,
    model: models.RidgeModel,
    *,
    class_weight: FloatArray | None,
    seed: int,
) -> platt_scaling.ScoreCalibration | None:
    """Fit probabilities to leave-one-out scores of a seeded sample of training rows.

    O(n_components³ / 3), and O(n_components²) for each of up to 10,000 rows, in this
    process. Rows count by their full weights, including class weights, so that class
    weights move probabilities and the decisions based on them. If weights repeat rows,
    one repetition is left out. `class_weight` has one factor per class; the weights of
    the class's rows include it.

    Returns None, with the reason in the log, if alpha is so small that Z'Z + alpha·I is
    singular.
    """
    X, targets, weights = samples.sample_rows(
        dataset, seed, n_rows=_max_calibrated(dataset)
    )
    assert targets is not None
    if weights is None:
        weights = np.ones(len(targets))
    return calibrate_rows(X, targets, weights, model, class_weight=class_weight)


def calibrate_rows(
    X: AnyArray,
    targets: FloatArray,
    weights: FloatArray,
    model: models.RidgeModel,
    *,
    class_weight: FloatArray | None,
) -> platt_scaling.ScoreCalibration | None:
    """Fit probabilities to the leave-one-out scores of rows; see `calibrate`."""
    factors = np.ones(len(targets))
    if class_weight is not None:
        factors = class_weight[predict.class_of(targets)]
    left_out_weights = weights
    n_observations = None
    if model.summed.spec.frequency_weights:
        # one repetition of each row; class weights do not count as repetitions
        left_out_weights = factors
        repetitions = np.zeros(len(targets))
        np.divide(weights, factors, out=repetitions, where=factors > 0)
        n_observations = float(repetitions.sum())
    try:
        predictive = model.with_variances()
    except SolveError as error:
        logger.warning("no probabilities: %s", error)
        return None
    rows = blocks.Rows.in_memory(X, targets)
    with machine.using_threads(machine.available_cores()):
        scores = uncertainty.leave_one_out(rows, predictive, left_out_weights)
    return platt_scaling.fit_calibration(scores, targets, weights, n_observations)
