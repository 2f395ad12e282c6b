"""How often rows of each class are predicted as each class: exact counts, which add up over blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rff_dist.errors import DataError
from rff_dist.numerics.exact_sums import ExactSum, add_fields
from rff_dist.typing import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Confusion:
    """Confusion matrix of a classifier; `+` joins two sets of rows and does not round.

    `counts`: int64 array of shape (n_classes, n_classes). Entry (i, j): rows of class i predicted as class j.
    `weights`: ExactSum of shape (n_classes, n_classes). Sums of the weights of these rows. Accuracy and all
      other measures are computed from them.
    `surprise`: ExactSum of shape (), or None. Sum of -weight · log p, where p is the probability of the row's
      own class; None without probabilities.
    """

    counts: IntArray
    weights: ExactSum
    surprise: ExactSum | None

    def __add__(self, other: Confusion) -> Confusion:
        given = {"surprise": None} if self.surprise is None or other.surprise is None else {}
        return add_fields(self, other, **given)

    @property
    def n_samples(self) -> int:
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        """Share of rows whose class is predicted correctly; raises DataError if all weights are zero."""
        return float(np.diag(self.weights.value()).sum() / self._total())

    @property
    def recall(self) -> FloatArray:
        """Share of each class predicted correctly, shape (n_classes,); NaN for a class without rows."""
        weights = self.weights.value()
        return _shares(np.diag(weights), weights.sum(axis=1))

    @property
    def precision(self) -> FloatArray:
        """Share of correct predictions of each class, shape (n_classes,); NaN for a class never predicted."""
        weights = self.weights.value()
        return _shares(np.diag(weights), weights.sum(axis=0))

    @property
    def balanced_accuracy(self) -> float:
        """Mean of `recall` over the classes that have rows."""
        self._total()  # refuses rows without any weight
        return float(np.nanmean(self.recall))

    @property
    def log_loss(self) -> float | None:
        """Mean of -log p of the rows' own classes, in nats; None without probabilities."""
        return None if self.surprise is None else float(self.surprise.value() / self._total())

    def _total(self) -> float:
        total = float(self.weights.value().sum())
        if not total > 0:
            raise DataError("all sample weights are zero; at least one row must count")
        return total


def count_classes(
    codes: IntArray,
    predicted: IntArray,
    n_classes: int,
    *,
    sample_weight: FloatArray | None = None,
    log_probabilities: FloatArray | None = None,
) -> Confusion:
    """Count one block of rows.

    `codes`, `predicted`: int64 arrays of shape (n_samples,). Index of each row's own and predicted class.
    `sample_weight`: float64 array of shape (n_samples,). Finite and not negative; 1 by default.
    `log_probabilities`: float64 array of shape (n_samples, n_classes).
    """
    weights = np.ones(len(codes)) if sample_weight is None else sample_weight
    shape = (n_classes, n_classes)
    pairs = codes * n_classes + predicted
    sums = ExactSum.by_group(weights, pairs, n_classes**2)
    surprise = None
    if log_probabilities is not None:
        own = log_probabilities[np.arange(len(codes)), codes]
        # p may be 0 in a row of weight 0, and 0 · ∞ is not a number
        surprise = ExactSum.of(np.asarray(-(weights @ np.where(weights > 0, own, 0.0))))
    return Confusion(
        np.bincount(pairs, minlength=n_classes**2).reshape(shape).astype(np.int64),
        ExactSum(sums.lowest, sums.digits.reshape(-1, *shape)),
        surprise,
    )


def _shares(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.asarray(np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0))
