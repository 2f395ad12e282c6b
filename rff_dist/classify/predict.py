"""Predict labels and probabilities with a trained classifier, and count its errors.

A dataset and a classifier go in. Its scores, one per class or one for two classes,
become labels and probabilities in one pass, or a confusion matrix as exact sums, which
do not depend on how rows were divided among workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rff_dist.classify.platt_scaling import ScoreCalibration
from rff_dist.data import blocks, grids, labelled
from rff_dist.engines import protocol
from rff_dist.errors import DataError, IntegrityError, SolveError
from rff_dist.fitting import evaluation, predicting
from rff_dist.numerics import exact_sums
from rff_dist.recipes import model_rows
from rff_dist.ridge import models
from rff_dist.statistics import row_passes
from rff_dist.typing import (
    AnyArray,
    AnyDType,
    FloatArray,
    IndexArray,
    IntArray,
    Summary,
    frozen,
)

SQUARED = "squared"


def calibration_of(model: models.RidgeModel) -> ScoreCalibration | None:
    """Return the calibration of a classifier; None if it has no probabilities."""
    facts = model.card["classifier"]["calibration"]
    if facts is None:
        return None
    return ScoreCalibration(facts["slope"], tuple(facts["intercepts"]))


def evaluate(
    dataset: blocks.Dataset, model: models.RidgeModel, *, engine: protocol.Engine
) -> Confusion:
    """Count which classes a classifier predicts for the rows of each class."""
    return evaluate_by_group(dataset, model, engine=engine).whole


def evaluate_by_group(
    dataset: blocks.Dataset, model: models.RidgeModel, *, engine: protocol.Engine
) -> evaluation.GroupErrors[Confusion]:
    """Count which classes a classifier predicts for rows of each class, and by group.

    The dataset is a `LabelledDataset` of the model's classes, with targets of −1 and
    +1. If the classifier has probabilities, the log loss is measured too.

    Raises DataError if the dataset does not fit the model, or a label is not among the
    classes.
    """
    dataset = model_rows.rows_for(dataset, model)
    judge = partial(judge_rows, calibration=calibration_of(model))
    return row_passes.sum_rows(
        dataset, judge, model.linear, engine=engine, label="evaluate"
    )


def judge_rows(
    rows: blocks.Rows,
    model: predicting.LinearModel,
    *,
    calibration: ScoreCalibration | None,
) -> evaluation.GroupErrors[Confusion]:
    """Count one block of rows, whose targets are −1 and +1, and each of its groups."""
    y, weights = evaluation.evaluated_targets(rows)
    count = counter(y, predicting.predict_rows(rows, model), weights, calibration)
    return evaluation.by_group(count, rows.groups, weights)


def counter(
    y: FloatArray,
    scores: FloatArray,
    weights: FloatArray,
    calibration: ScoreCalibration | None,
) -> Callable[[Any], Confusion]:
    """Return a function that counts some rows, given as a slice, a mask or numbers.

    `y` are targets of −1 and +1, with the shape (n_samples, n_columns) of `scores`.
    """
    codes = class_of(y)
    predicted = decide(scores, calibration)
    n_classes = max(2, y.shape[1])
    logs = None if calibration is None else calibration.log_probabilities(scores)

    def count(at: Any) -> Confusion:
        return count_classes(
            codes[at],
            predicted[at],
            n_classes,
            sample_weight=weights[at],
            log_probabilities=None if logs is None else logs[at],
        )

    return count


def class_of(scores: FloatArray) -> IndexArray:
    """Return the index of each row's class, from scores or targets.

    With one column and two classes it is the second class for numbers above 0. With
    several columns it is the class of the largest number, the first if some are equal.
    """
    if scores.shape[1] == 1:
        return (scores[:, 0] > 0).astype(np.intp)
    return np.argmax(scores, axis=1)


def decisions(scores: FloatArray, calibration: ScoreCalibration | None) -> FloatArray:
    """Return what `class_of` compares to decide, of shape (n_samples, n_columns).

    Log odds for two classes, else log probabilities up to a constant for each row.
    Without calibration, the scores themselves.
    """
    return scores if calibration is None else calibration.logits(scores)


def decide(scores: FloatArray, calibration: ScoreCalibration | None) -> IndexArray:
    """Return the index of each row's predicted class."""
    return class_of(decisions(scores, calibration))


def predict(
    dataset: blocks.Dataset,
    model: models.RidgeModel,
    url: str | os.PathLike[str],
    *,
    engine: protocol.Engine,
    probabilities: bool = False,
    overwrite: bool = False,
) -> int:
    """Write the class of every row to a new Zarr group, and return how many.

    The array `labels` has the labels' own type. On a grid text labels become numbers,
    and CF's attribute `flag_meanings` has their texts. With `probabilities`, an array
    of that name has the probability of each class, shape (n_samples, n_classes), and
    the group's attribute `feature_names` lists the classes. A block that is written
    twice contains the same values, and the output appears at `url` when it is complete.

    Raises DataError if the dataset does not fit the model; SolveError if there are no
    probabilities; StorageError if the output exists and `overwrite` is False, or cannot
    be written.
    """
    dataset = model_rows.rows_for(dataset, model)
    calibration = calibration_of(model)
    if probabilities and calibration is None:
        raise no_probabilities(model)
    classes = read_classes(model)
    names = [str(label) for label in classes.tolist()]
    meanings: dict[int, str] = {}  # of integers that are written, for CF's flags
    if classes.dtype.kind in "OU":
        if isinstance(labelled.source_of(dataset), grids.GridDataset):
            stored = np.arange(len(classes))
            meanings = dict(enumerate(names))
        else:
            stored = classes.astype(str)
    else:
        stored = classes
        if classes.dtype.kind != "f":
            meanings = {int(label): f"class_{label}" for label in classes}

    fields: list[tuple[Any, ...]] = [("labels", stored.dtype)]
    if probabilities:
        fields.append(("probabilities", np.float64, (len(classes),)))
    dtype = np.dtype(fields)
    layout = predicting.layout_of(
        dataset,
        dtype=dtype,
        column_names=names if probabilities else None,
        meanings=meanings,
    )
    output = predicting.write_output(
        dataset,
        partial(_predict_block, classes=stored, calibration=calibration, dtype=dtype),
        model.linear,
        layout,
        url,
        engine=engine,
        attributes={"model_digest": model.digest()},
        overwrite=overwrite,
    )
    return output.n_samples


def _predict_block(
    rows: blocks.Rows,
    model: predicting.LinearModel,
    *,
    classes: AnyArray,
    calibration: ScoreCalibration | None,
    dtype: AnyDType,
) -> AnyArray:
    """Return labels and, if `dtype` has that field, probabilities."""
    scores = predicting.predict_rows(rows, model)
    values = np.empty(len(scores), dtype)
    values["labels"] = classes[decide(scores, calibration)]
    if calibration is not None and "probabilities" in (dtype.names or ()):
        values["probabilities"] = np.exp(calibration.log_probabilities(scores))
    return values


def no_probabilities(model: models.RidgeModel) -> SolveError:
    """Return an error that says why a classifier has no probabilities."""
    if model.card["classifier"]["loss"] == SQUARED:
        return SolveError(
            f"no probabilities: with alpha={model.alpha:.3g} the leave-one-out scores"
            " of the training rows cannot be computed; fit with a larger alpha, or"
            " loss='logistic'"
        )
    return SolveError(
        "no probabilities: the squared hinge has none; fit with loss='logistic' or"
        " loss='squared'"
    )


def read_classes(model: models.RidgeModel) -> AnyArray:
    """Return a classifier's labels in their own type.

    Raises IntegrityError if the stored dtype cannot be a label's.
    """
    facts = model.card["classifier"]
    dtype = np.dtype(facts["dtype"])
    if dtype.kind not in "biufUO":
        raise IntegrityError(
            f"the model's classes have dtype {dtype}; expected numbers, booleans or"
            " text"
        )
    classes = np.empty(len(facts["classes"]), dtype)
    classes[:] = facts["classes"]
    return classes


def class_names(model: models.RidgeModel) -> list[str]:
    """Return a classifier's labels as texts for people: "0" for the number 0.0."""
    labels = read_classes(model).tolist()
    return [
        str(label).removesuffix(".0") if isinstance(label, float) else str(label)
        for label in labels
    ]


# -- how many rows of each class are predicted as each class


@frozen(eq=False)
class Confusion:
    """`sklearn.metrics.confusion_matrix` as exact sums; `+` joins two sets of rows."""

    #: Entry (i, j): rows of class i predicted as class j, shape (n_classes, n_classes).
    counts: IntArray
    #: Sums of these rows' weights; accuracy and all other measures use them.
    weights: exact_sums.ExactSum
    #: Sum of the rows' squared weights.
    squared_weight: exact_sums.ExactSum
    #: Sum of −weight · log p, where p is the probability of the row's own class; None
    #: without probabilities.
    log_loss_sum: exact_sums.ExactSum | None

    def __add__(self, other: Confusion) -> Confusion:
        if self.log_loss_sum is None or other.log_loss_sum is None:
            return exact_sums.add_fields(self, other, log_loss_sum=None)
        return exact_sums.add_fields(self, other)

    @property
    def n_samples(self) -> int:
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        """`sklearn.metrics.accuracy_score`; raises DataError if all weights are 0."""
        return float(np.diag(self.weights.value()).sum() / self._total())

    @property
    def accuracy_standard_error(self) -> float:
        """Standard error of the accuracy, as if rows were independent."""
        accuracy = self.accuracy
        variance = accuracy * (1 - accuracy) * self.squared_weight.value()
        return float(np.sqrt(variance) / self._total())

    def to_dict(self) -> Summary:
        """Return the figures as JSON-able values."""
        names = (
            "n_samples",
            "accuracy",
            "accuracy_standard_error",
            "balanced_accuracy",
            "log_loss",
        )
        return {name: getattr(self, name) for name in names}

    @property
    def recall(self) -> FloatArray:
        """Share of each class predicted correctly; NaN for a class without rows."""
        weights = self.weights.value()
        return _shares(np.diag(weights), weights.sum(axis=1))

    @property
    def precision(self) -> FloatArray:
        """Share of a class's predictions that are correct; NaN if never predicted."""
        weights = self.weights.value()
        return _shares(np.diag(weights), weights.sum(axis=0))

    @property
    def balanced_accuracy(self) -> float:
        """`sklearn.metrics.balanced_accuracy_score`, over classes that have rows."""
        self._total()  # refuses rows without any weight
        return float(np.nanmean(self.recall))

    @property
    def log_loss(self) -> float | None:
        """`sklearn.metrics.log_loss`; None without probabilities."""
        if self.log_loss_sum is None:
            return None
        return float(self.log_loss_sum.value() / self._total())

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
    """Count one block of rows, from the indices of their own and predicted classes.

    Products within a block are rounded. Blocks do not depend on the workers, so the
    sums do not either.
    """
    weights = np.ones(len(codes)) if sample_weight is None else sample_weight
    shape = (n_classes, n_classes)
    pairs = codes * n_classes + predicted
    weight_sums = exact_sums.ExactSum.by_group(weights, pairs, n_classes**2)
    log_loss_sum = None
    if log_probabilities is not None:
        log_of_class = log_probabilities[np.arange(len(codes)), codes]
        # p may be 0 in a row of weight 0, and 0 · ∞ is not a number
        log_loss_sum = exact_sums.ExactSum.of(
            np.asarray(-(weights @ np.where(weights > 0, log_of_class, 0.0)))
        )
    return Confusion(
        np.bincount(pairs, minlength=n_classes**2).reshape(shape).astype(np.int64),
        weight_sums.reshape(*shape),
        exact_sums.ExactSum.of(np.asarray(weights @ weights)),
        log_loss_sum,
    )


def _shares(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.asarray(
        np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    )
