"""What a trained classifier predicts for rows: labels, probabilities, and how often it is right."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.classify.confusion import Confusion, count_classes
from rff_dist.classify.platt_scaling import ScoreCalibration
from rff_dist.data.blocks import Dataset, Rows
from rff_dist.data.checks import check_targets
from rff_dist.engines.protocol import Engine
from rff_dist.errors import IntegrityError, SolveError
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.linear_model import LinearModel, predict_rows
from rff_dist.ridge.model import RidgeModel
from rff_dist.statistics import inspection
from rff_dist.typing import FloatArray

SQUARED = "squared"


def calibration_of(model: RidgeModel) -> ScoreCalibration | None:
    """Return what turns a classifier's scores into probabilities; None if it has no probabilities."""
    facts = model.card["classifier"]["calibration"]
    return None if facts is None else ScoreCalibration(facts["slope"], tuple(facts["intercepts"]))


def evaluate(dataset: Dataset, model: RidgeModel, *, engine: Engine) -> Confusion:
    """Count which classes a classifier predicts for the rows of each class, in one pass.

    `dataset`: with targets of −1 and +1: a `LabelledDataset` of the model's classes.
    `model`: a classifier; if it has probabilities, they are judged too.
    Raises DataError if the dataset does not fit the model, or a label is not among the classes.
    """
    prediction.check_dataset(dataset, model)
    judge = partial(judge_rows, calibration=calibration_of(model))
    return inspection.sum_rows(dataset, judge, model.linear, engine=engine, label="evaluate")


def judge_rows(rows: Rows, model: LinearModel, *, calibration: ScoreCalibration | None) -> Confusion:
    """Count one block of rows, whose targets are −1 and +1."""
    assert rows.y is not None
    check_targets(rows)
    scores = predict_rows(rows, model)
    return count_classes(
        class_of(rows.y),
        decide(scores, calibration),
        max(2, rows.y.shape[1]),
        sample_weight=rows.sample_weight,
        log_probabilities=None if calibration is None else calibration.log_probabilities(scores),
    )


def class_of(scores: FloatArray) -> NDArray[np.intp]:
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


def decide(scores: FloatArray, calibration: ScoreCalibration | None) -> NDArray[np.intp]:
    """Return the index of each row's predicted class, the one with the largest probability or score."""
    return class_of(decisions(scores, calibration))


def predict(
    dataset: Dataset,
    model: RidgeModel,
    url: str | os.PathLike[str],
    *,
    engine: Engine,
    probabilities: bool = False,
    overwrite: bool = False,
) -> int:
    """Write the class of every row to a new Zarr group, as the array `labels` of the labels' own type.

    With `probabilities`, an array of that name, of shape (n_samples, n_classes), holds the probability of
    each class, and the group's attribute `feature_names` lists the classes. The pass is idempotent, and the
    output appears at `url` when it is complete.

    Returns `n_samples`: rows written.
    Raises DataError if the dataset does not fit the model; SolveError if there are no probabilities;
      StorageError if the output exists and `overwrite` is False, or cannot be written.
    """
    prediction.check_dataset(dataset, model)
    calibration = calibration_of(model)
    if probabilities and calibration is None:
        raise no_probabilities(model)
    classes = read_classes(model)
    plain = classes.astype(str) if classes.dtype.kind in "OU" else classes
    fields: list[tuple[Any, ...]] = [("labels", plain.dtype)]
    if probabilities:
        fields.append(("probabilities", np.float64, (len(classes),)))
    dtype = np.dtype(fields)
    output = prediction.write_output(
        dataset,
        partial(_predict_block, classes=plain, calibration=calibration, dtype=dtype),
        model.linear,
        url,
        engine=engine,
        label="predict",
        attributes={"model_digest": model.digest()},
        dtype=dtype,
        column_names=[str(label) for label in classes.tolist()] if probabilities else None,
        overwrite=overwrite,
    )
    return output.n_samples


def _predict_block(
    rows: Rows,
    model: LinearModel,
    *,
    classes: NDArray[Any],
    calibration: ScoreCalibration | None,
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    """Return a structured array of labels and, if `dtype` has that field, probabilities."""
    scores = predict_rows(rows, model)
    values = np.empty(len(scores), dtype)
    values["labels"] = classes[decide(scores, calibration)]
    if calibration is not None and "probabilities" in (dtype.names or ()):
        values["probabilities"] = np.exp(calibration.log_probabilities(scores))
    return values


def no_probabilities(model: RidgeModel) -> SolveError:
    """Return an error that says why a classifier has no probabilities."""
    if model.card["classifier"]["loss"] == SQUARED:
        return SolveError(
            f"no probabilities: with alpha={model.alpha:.3g} the leave-one-out scores of the training rows "
            "cannot be computed; fit with a larger alpha, or loss='logistic'"
        )
    return SolveError(
        "no probabilities: the squared hinge has none; fit with loss='logistic' or loss='squared'"
    )


def read_classes(model: RidgeModel) -> NDArray[Any]:
    """Return the labels of a classifier's model in their own type; raises IntegrityError for other types."""
    facts = model.card["classifier"]
    dtype = np.dtype(facts["dtype"])
    if dtype.kind not in "biufUO":
        raise IntegrityError(f"the model's classes have dtype {dtype}; expected numbers, booleans or text")
    classes = np.empty(len(facts["classes"]), dtype)
    classes[:] = facts["classes"]
    return classes
