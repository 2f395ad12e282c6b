"""What a trained classifier predicts for rows: labels, probabilities, and how often it is right."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rff_dist.classify.platt_scaling import ScoreCalibration
from rff_dist.data import blocks, grids
from rff_dist.engines import protocol
from rff_dist.errors import DataError, IntegrityError, SolveError
from rff_dist.fitting import evaluation, predicting
from rff_dist.numerics import exact_sums
from rff_dist.recipes import model_rows
from rff_dist.ridge import models
from rff_dist.statistics import inspection
from rff_dist.typing import AnyArray, AnyDType, FloatArray, IndexArray, IntArray, Summary, frozen

SQUARED = "squared"


def calibration_of(model: models.RidgeModel) -> ScoreCalibration | None:
    """Return what turns a classifier's scores into probabilities; None if it has no probabilities."""
    facts = model.card["classifier"]["calibration"]
    return None if facts is None else ScoreCalibration(facts["slope"], tuple(facts["intercepts"]))


def evaluate(dataset: blocks.Dataset, model: models.RidgeModel, *, engine: protocol.Engine) -> Confusion:
    """Count which classes a classifier predicts for the rows of each class; see `evaluate_by_group`."""
    return evaluate_by_group(dataset, model, engine=engine).whole


def evaluate_by_group(
    dataset: blocks.Dataset, model: models.RidgeModel, *, engine: protocol.Engine
) -> evaluation.ByGroup[Confusion]:
    """Count which classes a classifier predicts for the rows of each class, and of each group, in one pass.

    `dataset`: with targets of −1 and +1: a `LabelledDataset` of the model's classes.
    `model`: a classifier; if it has probabilities, they are judged too.
    Raises DataError if the dataset does not fit the model, or a label is not among the classes.
    """
    model_rows.check_dataset(dataset, model)
    judge = partial(judge_rows, calibration=calibration_of(model))
    return inspection.sum_rows(dataset, judge, model.linear, engine=engine, label="evaluate")


def judge_rows(
    rows: blocks.Rows, model: predicting.LinearModel, *, calibration: ScoreCalibration | None
) -> evaluation.ByGroup[Confusion]:
    """Count one block of rows, whose targets are −1 and +1, and each of its groups."""
    y, weights = evaluation.evaluated_targets(rows)
    count = counter(y, predicting.predict_rows(rows, model), weights, calibration)
    return evaluation.by_group(count, rows.groups, weights)


def counter(
    y: FloatArray, scores: FloatArray, weights: FloatArray, calibration: ScoreCalibration | None
) -> Callable[[Any], Confusion]:
    """Return a function that counts the rows at an index of NumPy.

    `y`, `scores`: float64 arrays of shape (n_samples, n_columns). Targets of −1 and +1, and their scores.
    `weights`: float64 array of shape (n_samples,).
    """
    codes, predicted, n_classes = class_of(y), decide(scores, calibration), max(2, y.shape[1])
    logs = None if calibration is None else calibration.log_probabilities(scores)

    def count(at: Any) -> Confusion:
        own = None if logs is None else logs[at]
        return count_classes(
            codes[at], predicted[at], n_classes, sample_weight=weights[at], log_probabilities=own
        )

    return count


def class_of(scores: FloatArray) -> IndexArray:
    """Return the index of each row's class, from scores or targets of shape (n_samples, n_columns).

    With one column: the second class if the value is above 0. Else the column of the largest value, the first
    of equals.
    """
    return (scores[:, 0] > 0).astype(np.intp) if scores.shape[1] == 1 else np.argmax(scores, axis=1)


def decisions(scores: FloatArray, calibration: ScoreCalibration | None) -> FloatArray:
    """Return the numbers by which a classifier decides, from its scores of shape (n_samples, n_columns).

    Log odds for two classes, else log probabilities up to a constant for each row. Without calibration, the
    scores themselves.
    """
    return scores if calibration is None else calibration.logits(scores)


def decide(scores: FloatArray, calibration: ScoreCalibration | None) -> IndexArray:
    """Return the index of each row's predicted class, the one with the largest probability or score."""
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
    """Write the class of every row to a new Zarr group, as the array `labels` of the labels' own type.

    A grid holds numbers, whose words are in CF's `flag_meanings`.

    With `probabilities`, an array of that name, of shape (n_samples, n_classes), holds the probability of
    each class, and the group's attribute `feature_names` lists the classes. The pass is idempotent, and the
    output appears at `url` when it is complete.

    Returns `n_samples`: rows written.
    Raises DataError if the dataset does not fit the model; SolveError if there are no probabilities;
      StorageError if the output exists and `overwrite` is False, or cannot be written.
    """
    model_rows.check_dataset(dataset, model)
    calibration = calibration_of(model)
    if probabilities and calibration is None:
        raise no_probabilities(model)
    classes = read_classes(model)
    plain, names = classes, [str(label) for label in classes.tolist()]
    meanings = {} if classes.dtype.kind in "OU" else {int(label): f"class_{label}" for label in classes}
    if classes.dtype.kind in "OU" and isinstance(dataset, grids.GridDataset):
        plain, meanings = np.arange(len(classes)), dict(enumerate(names))
    elif classes.dtype.kind in "OU":
        plain = classes.astype(str)
    fields: list[tuple[Any, ...]] = [("labels", plain.dtype)]
    if probabilities:
        fields.append(("probabilities", np.float64, (len(classes),)))
    dtype = np.dtype(fields)
    columns, facts = names if probabilities else None, {"model_digest": model.digest()}
    compute = partial(_predict_block, classes=plain, calibration=calibration, dtype=dtype)
    layout = predicting.layout_of(dataset, dtype=dtype, column_names=columns, meanings=meanings)
    output = predicting.write_output(
        dataset, compute, model.linear, layout, url, engine=engine, attributes=facts, overwrite=overwrite
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
    """Return a structured array of labels and, if `dtype` has that field, probabilities."""
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
            f"no probabilities: with alpha={model.alpha:.3g} the leave-one-out scores of the training rows "
            "cannot be computed; fit with a larger alpha, or loss='logistic'"
        )
    return SolveError(
        "no probabilities: the squared hinge has none; fit with loss='logistic' or loss='squared'"
    )


def read_classes(model: models.RidgeModel) -> AnyArray:
    """Return the labels of a classifier's model in their own type; raises IntegrityError for other types."""
    facts = model.card["classifier"]
    dtype = np.dtype(facts["dtype"])
    if dtype.kind not in "biufUO":
        raise IntegrityError(f"the model's classes have dtype {dtype}; expected numbers, booleans or text")
    classes = np.empty(len(facts["classes"]), dtype)
    classes[:] = facts["classes"]
    return classes


def class_names(model: models.RidgeModel) -> list[str]:
    """Return the labels of a classifier's model as people read them: 0 for the number 0.0."""
    labels = read_classes(model).tolist()
    return [str(label).removesuffix(".0") if isinstance(label, float) else str(label) for label in labels]


# -- how often rows of each class are predicted as each class --------------------------------------


@frozen(eq=False)
class Confusion:
    """`sklearn.metrics.confusion_matrix` as exact sums; `+` joins two sets of rows and does not round.

    `counts`: int64 array of shape (n_classes, n_classes). Entry (i, j): rows of class i predicted as class j.
    `weights`: ExactSum of shape (n_classes, n_classes). Sums of the weights of these rows. Accuracy and all
      other measures are computed from them.
    `squared_weight`: ExactSum of shape (). Sum of the rows' squared weights.
    `surprise`: ExactSum of shape (), or None. Sum of -weight · log p, where p is the probability of the row's
      own class; None without probabilities.
    """

    counts: IntArray
    weights: exact_sums.ExactSum
    squared_weight: exact_sums.ExactSum
    surprise: exact_sums.ExactSum | None

    def __add__(self, other: Confusion) -> Confusion:
        surprise = {"surprise": None} if self.surprise is None or other.surprise is None else {}
        return exact_sums.add_fields(self, other, **surprise)

    @property
    def n_samples(self) -> int:
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        """`sklearn.metrics.accuracy_score`; raises DataError if all weights are zero."""
        return float(np.diag(self.weights.value()).sum() / self._total())

    @property
    def accuracy_standard_error(self) -> float:
        """Standard error of the accuracy, a binomial share, as if rows were independent."""
        accuracy = self.accuracy
        return float(np.sqrt(accuracy * (1 - accuracy) * self.squared_weight.value()) / self._total())

    def to_dict(self) -> Summary:
        """Return the figures as JSON-able values."""
        names = ("n_samples", "accuracy", "accuracy_standard_error", "balanced_accuracy", "log_loss")
        return {name: getattr(self, name) for name in names}

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
        """`sklearn.metrics.balanced_accuracy_score`: mean of `recall` over the classes that have rows."""
        self._total()  # refuses rows without any weight
        return float(np.nanmean(self.recall))

    @property
    def log_loss(self) -> float | None:
        """`sklearn.metrics.log_loss`, the mean of -log p of the rows' classes; None without probabilities."""
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
    sums = exact_sums.ExactSum.by_group(weights, pairs, n_classes**2)
    surprise = None
    if log_probabilities is not None:
        log_of_class = log_probabilities[np.arange(len(codes)), codes]
        # p may be 0 in a row of weight 0, and 0 · ∞ is not a number
        surprise = exact_sums.ExactSum.of(np.asarray(-(weights @ np.where(weights > 0, log_of_class, 0.0))))
    return Confusion(
        np.bincount(pairs, minlength=n_classes**2).reshape(shape).astype(np.int64),
        exact_sums.ExactSum(sums.lowest, sums.digits.reshape(-1, *shape)),
        exact_sums.ExactSum.of(np.asarray(weights @ weights)),
        surprise,
    )


def _shares(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.asarray(np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0))
