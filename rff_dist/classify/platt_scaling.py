"""Class probabilities from scores: Platt's sigmoid, and its softmax for more classes.

Scores of rows and their classes go in; a slope a and intercepts b_k come out that turn
scores into probabilities.

Ridge on targets of −1 and +1 ranks rows well, but its scores are not probabilities. So
p = σ(a·f + b) for two classes, or softmax(a·f_k + b_k) for more, is fitted to
leave-one-out scores by maximum likelihood. For ridge these scores follow without
refitting (`ridge.uncertainty.leave_one_out`):

    f₋ᵢ(xᵢ) = yᵢ − (yᵢ − f(xᵢ)) / (1 − hᵢ),
    hᵢ = wᵢ·(1/Σw + (zᵢ − z̄)'(A + alpha·I)⁻¹(zᵢ − z̄)).

As in ridge, rows count by their full weights, including class weights, divided by the
mean weight. So probabilities, and the classes decided by them, describe the reweighted
rows. A factor on all weights changes nothing.

For class j, the target of a row of class k is (n·[j = k] + π_j)/(n + 1), and not 1 or
0: as if one more observation, with the classes' shares π, joined the n rows. That keeps
probabilities away from 0 and 1.

The intercepts minus their mean have a normal prior of standard deviation 1, for classes
with few or no rows in the sample: with 100 classes, 300 rows then give a log loss of
0.47 in place of 1.01 without it, and 10,000 rows give 0.46 either way.
Platt's rule adds one observation of each class to the rows of each class, which suits
two classes: with 100 rows in each of 100 classes it would halve all probabilities.

Platt (1999), Probabilistic outputs for support vector machines; Lin, Lin & Weng (2007),
A note on Platt's probabilistic outputs, Machine Learning 68; Golub & Van Loan, section
2.1.4 (removing one row).
"""

import logging

import numpy as np
import scipy

from rff_dist.numerics import softmax
from rff_dist.typing import FloatArray, frozen

logger = logging.getLogger(__name__)


# With this slope the intercepts decide: all rows get about the classes' shares as
# probabilities, and keep their order. Leave-one-out scores without information have a
# slope of 0 or less, since leaving a row out moves the mean of the others away from it.
SMALLEST_SLOPE = 1e-3


@frozen
class ScoreCalibration:
    """Class probabilities from scores f: the sigmoid of a·f + b, or its softmax.

    Two classes have one column of scores, more classes one each. The logistic loss has
    its own probabilities: a = 1 and b = 0.
    """

    #: a, shared by all classes.
    slope: float
    #: b of each column of the scores.
    intercepts: tuple[float, ...]

    def logits(self, scores: FloatArray) -> FloatArray:
        """Return a·f + b, shape (n_samples, n_columns).

        These are log odds for two classes, else log probabilities up to a constant for
        each row.
        """
        return np.asarray(self.slope * scores + np.array(self.intercepts))

    def log_probabilities(self, scores: FloatArray) -> FloatArray:
        """Return the log probability of each class, shape (n_samples, n_classes)."""
        logits = softmax.one_column_per_class(self.logits(scores))
        return np.asarray(scipy.special.log_softmax(logits, axis=1))


class _Posterior:
    """Negative log posterior of slope and intercepts, over n; and its gradient.

    Parameters are the slope, then all intercepts but the first, which is 0. Targets
    are smoothed, of shape (n_samples, n_classes).
    """

    def __init__(
        self,
        scores: FloatArray,
        targets: FloatArray,
        weights: FloatArray,
        n_observations: float,
    ) -> None:
        self._scores = scores
        self._targets = targets
        self._weights = weights / weights.sum()
        self._n_observations = n_observations

    def __call__(self, parameters: FloatArray) -> tuple[float, FloatArray]:
        logits = parameters[0] * self._scores + np.append(0.0, parameters[1:])
        losses, derivatives = softmax.log_loss(logits, self._targets)
        derivatives *= self._weights[:, np.newaxis]
        # by the chain rule, as a logit is slope·score + intercept
        slope_derivative = (derivatives * self._scores).sum()
        gradient = np.append(slope_derivative, derivatives[:, 1:].sum(axis=0))
        # the prior is on all intercepts minus their mean; the first one is 0
        mean = parameters[1:].sum() / logits.shape[1]
        prior_gradient = (parameters[1:] - mean) / self._n_observations
        gradient[1:] += prior_gradient
        # Σ(b_k − mean)² = Σ b_k·(b_k − mean), in which the first term is 0
        prior_loss = 0.5 * parameters[1:] @ prior_gradient
        return float(prior_loss + self._weights @ losses), gradient


def fit_calibration(
    scores: FloatArray,
    targets: FloatArray,
    sample_weight: FloatArray | None = None,
    n_observations: float | None = None,
) -> ScoreCalibration:
    """Fit the slope and intercepts of largest posterior.

    A slope below 1e-3 is replaced by 1e-3, with a warning: the scores do not tell the
    classes apart. The intercepts of several classes have mean 0.

    Scores, shape (n_samples, n_columns), are of rows that were not trained on, or
    leave-one-out scores. Targets have that shape too: +1 in the column of a row's
    class, else −1; a single column is for the second of two classes. A factor on all
    weights changes nothing. `n_observations` is the n of smoothing and prior, by
    default the number of rows with a weight above 0.
    """
    weights = np.ones(len(scores)) if sample_weight is None else sample_weight
    n = float(np.count_nonzero(weights)) if n_observations is None else n_observations
    posterior = _Posterior(
        softmax.one_column_per_class(scores),
        _smoothed_targets(targets, weights, n),
        weights,
        n,
    )
    n_columns = scores.shape[1]
    # Softmax does not change if all logits shift, so the first intercept is fixed at 0.
    # Any slope may start, since the problem is convex; 2 turns f = 2p − 1 near 0 into
    # the log odds of p if there are two classes.
    start = np.append(2.0, np.zeros(max(1, n_columns - 1)))
    slope, *intercepts = _minimize(posterior, start, n_fixed=0)
    if slope < SMALLEST_SLOPE:
        logger.warning(
            "the scores do not separate the classes of %d left-out rows: each row gets"
            " about the classes' shares as its probabilities. The columns may hold no"
            " signal, or the rows are too few",
            len(scores),
        )
        logger.debug("slope of the scores: %.3g, taken as %g", slope, SMALLEST_SLOPE)
        slope, *intercepts = _minimize(
            posterior, np.append(SMALLEST_SLOPE, intercepts), n_fixed=1
        )
    logger.debug("calibrated on %d rows: slope %.3g", len(scores), slope)
    if n_columns == 1:
        return ScoreCalibration(slope, tuple(intercepts))
    centred = np.append(0.0, intercepts)
    return ScoreCalibration(slope, tuple((centred - centred.mean()).tolist()))


def _minimize(posterior: _Posterior, start: FloatArray, *, n_fixed: int) -> list[float]:
    """Return the parameters of the smallest negative log posterior; the first
    `n_fixed` of them stay at their start.
    """

    def objective(rest: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = posterior(np.append(start[:n_fixed], rest))
        return value, gradient[n_fixed:]

    options = {"gtol": 1e-9, "ftol": 1e-15, "maxcor": 20, "maxiter": 1000}
    # `success` is not read, since the problem is convex and smooth: with 60 to 20,000
    # rows of 2 to 100 classes gradients fell below 1e-7 in at most 36 iterations.
    optimum = scipy.optimize.minimize(
        objective, start[n_fixed:], jac=True, method="L-BFGS-B", options=options
    )
    return [*start[:n_fixed].tolist(), *optimum.x.tolist()]


def _smoothed_targets(
    targets: FloatArray, weights: FloatArray, n_observations: float
) -> FloatArray:
    """Return each row's target for each class, shape (n_samples, n_classes)."""
    one_hot = softmax.shares_of_classes(targets)
    shares = np.average(one_hot, axis=0, weights=weights)
    return (n_observations * one_hot + shares) / (n_observations + 1.0)
