"""Probabilities of classes from scores: Platt's sigmoid, and its like for several classes.

Ridge on targets of −1 and +1 ranks rows well, but its scores are no probabilities. p = σ(a·f + b) for two
classes, and softmax(a·f_k + b_k) for more, is fitted by maximum likelihood, on scores that did not see their
own row: those of ridge are known without refitting,

    f₋ᵢ(xᵢ) = yᵢ − (yᵢ − f(xᵢ)) / (1 − hᵢ),  hᵢ = wᵢ·(1/Σw + (zᵢ − z̄)'(A + alpha·I)⁻¹(zᵢ − z̄)).

Rows count by their full weights over the mean of these, those of their classes included, as they do for
ridge: probabilities, and the classes that are decided by them, are of the reweighted rows, and a factor on
all weights changes nothing.

One observation beside the n of the sample keeps probabilities off 0 and 1: a row of class k counts
(n·[j = k] + π_j)/(n + 1) for class j, π the classes' shares. Offsets b_k less their mean have a normal prior
of deviation 1, for classes of which the sample has few rows or none: of 100 classes, 300 rows then give a log
loss of 0.47 for 1.01, and 10,000 the same 0.46. Platt's rule, one observation of each class beside the rows
of each class, is for two: at 100 rows of each of 100 classes it halves all probabilities.

Platt (1999), Probabilistic outputs for support vector machines; Lin, Lin & Weng (2007), A note on Platt's
probabilistic outputs, Machine Learning 68; Golub & Van Loan, section 2.1.4 (removing one row).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import scipy

from rff_dist.data.blocks import Rows
from rff_dist.ridge.uncertainty import PredictiveModel, predict_rows_with_std
from rff_dist.typing import FloatArray

logger = logging.getLogger(__name__)


# scores of no worth have a slope of 0 or less, as each row pulls the mean of the others from itself: this
# leaves the decision to the classes' weights, and rows in the order of their scores
SMALLEST_SLOPE = 1e-3
SMALLEST_REMAINDER = 1e-6  # of 1 − h: a row that alone decides its prediction says nothing of new rows


@dataclass(frozen=True, slots=True)
class ScoreCalibration:
    """Turns scores into probabilities of classes; `ScoreCalibration(1.0, (0.0, …))` is logistic's own.

    `slope`: a, shared by all classes.
    `intercepts`: tuple of float of length n_columns. b, one for each column of the scores.
    """

    slope: float
    intercepts: tuple[float, ...]

    def logits(self, scores: FloatArray) -> FloatArray:
        """Return a·f + b: log odds for two classes, else log probabilities up to a shift of each row.

        `scores`: float64 array of shape (n_samples, n_columns). One column for two classes.
        Returns float64 array of shape (n_samples, n_columns).
        """
        return np.asarray(self.slope * scores + np.array(self.intercepts))

    def log_probabilities(self, scores: FloatArray) -> FloatArray:
        """Return the log probability of each class, shape (n_samples, n_classes).

        `scores`: float64 array of shape (n_samples, n_columns). One column for two classes.
        """
        return np.asarray(scipy.special.log_softmax(_two_sided(self.logits(scores)), axis=1))


def _two_sided(columns: FloatArray) -> FloatArray:
    """Return one column per class: of a single column, 0 for the first class."""
    return np.hstack([np.zeros_like(columns), columns]) if columns.shape[1] == 1 else columns


def leave_one_out_scores(rows: Rows, model: PredictiveModel, left_out: FloatArray) -> FloatArray:
    """Return the scores that ridge would give each row had it been fitted without it.

    O(n_samples · n_components²). Where a row decides its own prediction up to rounding, 1 − h is taken as
    1e-6, and this is logged.

    `rows`: training rows, with their targets.
    `model`: fitted on these rows and others.
    `left_out`: float64 array of shape (n_samples,). The weight to leave out: a row's own, or less to leave
      out one of several equal rows.
    Returns float64 array of shape (n_samples, n_targets).
    """
    assert rows.y is not None
    predictions, deviations = predict_rows_with_std(rows, model)
    target = int(np.argmax(model.noise_variance))
    # the variance of a prediction is (1 + h·mean weight/w) times that of the noise
    spread = np.square(deviations[:, target]) / model.noise_variance[target] - 1.0
    remainder = 1.0 - left_out / model.mean_weight * spread
    if (decided := remainder < SMALLEST_REMAINDER).any():
        logger.warning("%d of %d rows decide their own prediction", int(decided.sum()), len(decided))
    shrunk = np.maximum(remainder, SMALLEST_REMAINDER)[:, np.newaxis]
    return np.asarray(rows.y - (rows.y - predictions) / shrunk)


def fit_calibration(
    scores: FloatArray,
    targets: FloatArray,
    sample_weight: FloatArray | None = None,
    n_observations: float | None = None,
) -> ScoreCalibration:
    """Fit a slope and intercepts of greatest posterior: a convex problem, solved by Newton's method.

    A slope below 1e-3 is taken as that, and this is logged: the scores say nothing of the classes.

    `scores`: float64 array of shape (n_samples, n_columns). Of rows that the scores were not fitted on, or
      leave-one-out ones.
    `targets`: float64 array of shape (n_samples, n_columns). −1 and +1: one column for two classes, else a +1
      in the column of the row's class.
    `sample_weight`: float64 array of shape (n_samples,). Not negative, not all 0; a factor on all of them
      changes nothing.
    `n_observations`: what smoothing and prior are weighed against; by default the rows of a weight above 0.
    Returns: the intercepts of several classes have mean 0.
    """
    weights = np.ones(len(scores)) if sample_weight is None else sample_weight
    n = float(np.count_nonzero(weights)) if n_observations is None else n_observations
    likelihood = _Posterior(_two_sided(scores), _smoothed_targets(targets, weights, n), weights, n)
    n_columns = scores.shape[1]
    # without the shift that softmax does not see: the first intercept is 0
    slope, *intercepts = _maximize(likelihood, np.append(2.0, np.zeros(max(1, n_columns - 1))), fixed=0)
    if slope < SMALLEST_SLOPE:
        logger.warning("scores say nothing of the classes: slope %.3g, taken as %g", slope, SMALLEST_SLOPE)
        slope, *intercepts = _maximize(likelihood, np.append(SMALLEST_SLOPE, intercepts), fixed=1)
    logger.info("calibrated on %d rows: slope %.3g", len(scores), slope)
    if n_columns == 1:
        return ScoreCalibration(slope, tuple(intercepts))
    centred = np.append(0.0, intercepts)
    return ScoreCalibration(slope, tuple((centred - centred.mean()).tolist()))


def _maximize(likelihood: _Posterior, start: FloatArray, *, fixed: int) -> list[float]:
    """Return the best parameters, the first `fixed` of which stay as they are."""

    def of(rest: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = likelihood(np.append(start[:fixed], rest))
        return value, gradient[fixed:]

    def hessian(rest: FloatArray) -> FloatArray:
        return likelihood.hessian(np.append(start[:fixed], rest))[fixed:, fixed:]

    options = {"gtol": 1e-10}
    found = scipy.optimize.minimize(
        of, start[fixed:], jac=True, hess=hessian, method="trust-exact", options=options
    )
    return [*start[:fixed].tolist(), *found.x.tolist()]


def _smoothed_targets(targets: FloatArray, weights: FloatArray, n_observations: float) -> FloatArray:
    """Return what each row counts for each class, shape (n_samples, n_classes); rows add up to 1."""
    member = 0.5 * (np.hstack([-targets, targets]) if targets.shape[1] == 1 else targets) + 0.5
    shares = np.average(member, axis=0, weights=weights)
    return np.asarray((n_observations * member + shares) / (n_observations + 1.0))


class _Posterior:
    """Negative log posterior of (slope, intercepts but the first) over n, with gradient and Hessian."""

    def __init__(
        self, scores: FloatArray, targets: FloatArray, weights: FloatArray, n_observations: float
    ) -> None:
        self._scores, self._targets = scores, targets
        self._weights = weights / weights.sum()
        n_classes = targets.shape[1]
        self._prior = (np.eye(n_classes) - 1.0 / n_classes)[1:, 1:] / n_observations  # takes the mean out

    def _log_probabilities(self, parameters: FloatArray) -> FloatArray:
        logits = parameters[0] * self._scores + np.append(0.0, parameters[1:])
        return np.asarray(scipy.special.log_softmax(logits, axis=1))

    def __call__(self, parameters: FloatArray) -> tuple[float, FloatArray]:
        logs = self._log_probabilities(parameters)
        slope = (np.exp(logs) - self._targets) * self._weights[:, np.newaxis]
        gradient = np.append((slope * self._scores).sum(), slope[:, 1:].sum(axis=0))
        pull = self._prior @ parameters[1:]
        gradient[1:] += pull
        value = 0.5 * parameters[1:] @ pull - self._weights @ (self._targets * logs).sum(axis=1)
        return float(value), gradient

    def hessian(self, parameters: FloatArray) -> FloatArray:
        p = np.exp(self._log_probabilities(parameters))
        mean = (p * self._scores).sum(axis=1, keepdims=True)
        weighted = p * self._weights[:, np.newaxis]
        hessian = np.empty((p.shape[1], p.shape[1]))  # the slope in the place of the first intercept
        hessian[1:, 1:] = (np.diag(weighted.sum(axis=0)) - weighted.T @ p)[1:, 1:]
        hessian[1:, 1:] += self._prior
        hessian[0, 0] = (weighted * (self._scores - mean) ** 2).sum()
        hessian[0, 1:] = hessian[1:, 0] = (weighted * (self._scores - mean)).sum(axis=0)[1:]
        return hessian
