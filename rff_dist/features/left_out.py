"""The log loss of classes if rows are left out one by one, for tuning length scales.

Solutions of ridge on targets of −1 and +1 go in; the log loss of the rows' left-out
scores comes out, with its derivative by the covariance. The evidence misjudges classes.
Labels have no noise, so a model that fits all of them, with a few columns and no
penalty, is the most likely Gaussian one, however badly it classifies new rows.
"""

import math

import numpy as np
import scipy

from rff_dist.numerics import softmax
from rff_dist.typing import FloatArray, IndexArray, frozen

# Bounds of the logarithm of the slope, the factor that turns scores into log odds.
SLOPES = (-3.0, 5.0)


@frozen(eq=False)
class Labels:
    """Classes of rows, and how ridge's targets are made from them."""

    #: −1 and +1, shape (n_samples, n_targets).
    signs: FloatArray
    #: Ridge's targets are (signs − their mean) / units; shape (n_targets,).
    units: FloatArray
    #: How much rows count, shape (n_samples,).
    weights: FloatArray
    #: The log loss of the shares of the classes in all rows.
    entropy: float

    @classmethod
    def of(
        cls, signs: FloatArray, units: FloatArray, weights: FloatArray | None
    ) -> "Labels":
        if weights is None:
            weights = np.ones(len(signs))
        shares = weights @ softmax.shares_of_classes(signs) / weights.sum()
        entropy = float(scipy.special.entr(shares).sum())
        return cls(signs, units, weights, entropy)

    def some(self, rows: IndexArray | slice) -> "Labels":
        return Labels(self.signs[rows], self.units, self.weights[rows], self.entropy)

    def left_out_loss(
        self, solved: FloatArray, inverse: FloatArray
    ) -> tuple[float, FloatArray]:
        """Return the log loss as a share of the entropy, and its gradient.

        `solved` is C⁻¹y and `inverse` is C⁻¹, where C = K + alpha·I for rows times the
        roots of their weights. The gradient is by C, shape (n_samples, n_samples).
        Probabilities are the softmax of the best multiple of the scores.

        Source: Rasmussen & Williams (2006), eq. 5.12, for the left-out scores.
        """
        diagonal = np.diag(inverse)[:, np.newaxis]
        roots = np.sqrt(self.weights)[:, np.newaxis]
        scores = self.signs - self.units / roots * solved / diagonal
        loss, by_scores = self._log_loss(scores)

        by_errors = -self.units / roots * by_scores
        by_solved = by_errors / diagonal
        by_diagonal = -(by_solved * solved).sum(axis=1) / diagonal[:, 0]
        # ∂C⁻¹ = −C⁻¹·∂C·C⁻¹
        gradient = (inverse @ by_solved) @ solved.T
        gradient += (inverse * by_diagonal) @ inverse
        return loss, -0.5 * (gradient + gradient.T)

    def _log_loss(self, scores: FloatArray) -> tuple[float, FloatArray]:
        """Return the loss of the best multiple of the scores, and its gradient."""
        shares = softmax.shares_of_classes(self.signs)
        logits = softmax.one_column_per_class(scores)
        counts = self.weights / (self.weights.sum() * self.entropy)

        def loss_of(log_slope: float) -> float:
            losses, _ = softmax.log_loss(math.exp(log_slope) * logits, shares)
            return float(counts @ losses)

        best = scipy.optimize.minimize_scalar(
            loss_of, bounds=SLOPES, method="bounded", options={"xatol": 1e-4}
        )
        slope = math.exp(best.x)
        _, gradient = softmax.log_loss(slope * logits, shares)
        gradient *= slope * counts[:, np.newaxis]
        # the scores of a single column are those of the second class
        return float(best.fun), gradient[:, -scores.shape[1] :]
