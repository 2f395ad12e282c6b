"""Probabilities of classes by the softmax, and their log loss.

Scores of rows and the classes of these rows go in; losses and their gradient come out.
The largest score of a row is subtracted first; otherwise exponentials would overflow.
"""

import numpy as np
import scipy

from rff_dist.typing import FloatArray


def one_column_per_class(scores: FloatArray) -> FloatArray:
    """Return scores of each class: a single column gets zeros for the first class."""
    if scores.shape[1] > 1:
        return scores
    return np.hstack([np.zeros_like(scores), scores])


def shares_of_classes(targets: FloatArray) -> FloatArray:
    """Return 1 for the class of each row and 0 for others, from targets of −1 and +1.

    A single column is for the second of two classes.
    """
    shares = 0.5 * (targets + 1.0)
    if targets.shape[1] > 1:
        return shares
    return np.hstack([1.0 - shares, shares])


def log_loss(scores: FloatArray, shares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return −Σ shares·log softmax(scores) of each row, and its gradient.

    Both have a column per class; the shares of a row add up to 1.
    """
    logs = scipy.special.log_softmax(scores, axis=1)
    return -(shares * logs).sum(axis=1), np.exp(logs) - shares
