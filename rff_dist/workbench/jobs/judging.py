"""Compare models on rows that none of them was trained on.

In go a fitted model and its data, out comes a `ModelComparison` with the mean and a
linear model. The errors of rows that a model was trained on would be too small, so the
rows are test rows, if there are any; otherwise the fit's sums give models without some
of the training rows: without each fold of the cross-validation, or a single row.
"""

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rff_dist import fields
from rff_dist.classify import platt_scaling, predict
from rff_dist.classify.fit import FittedModel
from rff_dist.data import blocks, folding, labelled, samples
from rff_dist.data import sources as row_sources
from rff_dist.engines import events
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError, PlanError, SolveError, StatisticsError
from rff_dist.features import kinds
from rff_dist.features.sums import linear_components
from rff_dist.fitting import predicting
from rff_dist.fitting.options import RidgeOptions
from rff_dist.kernels import explicit
from rff_dist.living import new_rows
from rff_dist.living.ranges import Range, count_rows
from rff_dist.numerics import machine
from rff_dist.recipes import recipes
from rff_dist.ridge import models, uncertainty
from rff_dist.ridge import predict as ridge_prediction
from rff_dist.ridge.fold_models import FoldModels, predict_by_splits, split_of_folds
from rff_dist.storage import columns as stored_columns
from rff_dist.text import redact
from rff_dist.typing import AnyArray, FloatArray, IndexArray, Summary
from rff_dist.workbench.jobs import comparison, fits

logger = logging.getLogger(__name__)

#: by the model's name
type _Predictions = Mapping[str, comparison.Predictions]

SEED = 0  # of sampled rows, fixed so that a repeated comparison has the same rows
# Rows to compare on, in memory. An interval's width falls with the root of their
# number: ten times as many rows would make it a third.
MOST_ROWS = 20_000
# of these rows' columns, or of their predictions by each fold: 128 MiB of float64
MOST_VALUES = 2**24
MIN_ROWS = 1_000  # however many values they have
# Rows to leave out. Each takes D² operations: in all 8e10 for the largest D.
MOST_LEFT_OUT = 5_000
# The largest D at which rows are left out, which takes a Cholesky factor of the Gram:
# D³/3 operations (2e10), and 8·D² bytes (128 MiB).
MAX_FACTOR = 4_096


def compare(
    fit: fits.Fit,
    fitted_model: FittedModel,
    data: fits.JobData,
    test: fits.JobData | None,
    *,
    engine: Engine,
) -> comparison.ModelComparison | None:
    """Compare a trained model with the mean and with a linear model.

    The linear model is trained on the same rows, and its penalty is chosen by the same
    folds. For classes it minimises the logistic loss if there are test rows; otherwise
    both models are compared by the squared loss. It is left out, and a note says why,
    if it would take longer than the fit.

    Returns None if there are no rows to compare on: no test rows, no models without
    each fold, and no sums from which single rows could be left out. Returns None too,
    and logs the reason, if a row alone decides its own prediction.
    """
    engine.tell(events.Remark("compare", "with a linear model"))
    model = fitted_model.model
    with machine.using_threads(machine.available_cores()):
        rows = _rows_of(fitted_model, data, test)
        if rows is None:
            return None
        try:
            ours = _predict(rows, fitted_model)
        except SolveError as error:
            logger.info("nothing was compared: %s", error)
            return None
        others, notes = _predict_by_linear_model(
            fit, fitted_model, rows, data, engine=engine
        )
    notes = (*notes, *_caveats(rows, model))
    return _comparison(rows, model, {comparison.OURS: ours, **others}, notes)


def measure_errors(
    test: fits.JobData, model: models.RidgeModel, *, engine: Engine
) -> Summary:
    """Measure a model's errors on test data in one pass.

    Returns JSON values: the number of rows and the errors, with standard errors as if
    rows were independent. A classifier has accuracy, balanced accuracy (the mean recall
    of classes) and log loss in nats (None without probabilities). A regression has, per
    target, mean squared, root mean squared and mean absolute error, bias (all in the
    target's units) and R² (None for a constant target). `groups` has the same for each
    group, if test rows have a few. Raises DataError if a value cannot be used, or a
    label is not one of the classes.
    """
    evaluate: Any = ridge_prediction.evaluate_by_group
    if test.labels is not None:
        evaluate = predict.evaluate_by_group
    errors = evaluate(test.with_targets(model), model, engine=engine)
    metrics = {
        "test_data": redact(test.rows.url or "test data in memory"),
        "fingerprint": test.rows.fingerprint(),
        **errors.whole.to_dict(),
    }
    if test.labels is None:
        metrics["mse"] = errors.whole.mean_squared_error.tolist()
    if errors.groups:
        metrics["groups"] = {
            name: part.to_dict() for name, part in sorted(errors.groups.items())
        }
    return metrics


def compare_new(
    test: fits.JobData, model: models.RidgeModel
) -> comparison.ModelComparison:
    """Compare a stored model with the mean, on rows that it was not trained on."""
    rows = _test_rows(test, model)
    return _comparison(rows, model, {comparison.OURS: _predict_test_rows(rows, model)})


def compare_left_out(
    data: fits.JobData, model: models.RidgeModel
) -> comparison.ModelComparison | None:
    """Compare a stored model with the mean, leaving out one row at a time.

    Returns None if the model's sums do not allow it; also, with the reason in the log,
    if a row alone decides its own prediction.
    """
    rows = _left_out_rows(data, model)
    if rows is None:
        return None
    try:
        ours = _predict_left_out(rows, model)
    except SolveError as error:
        logger.info("nothing was compared: %s", error)
        return None
    return _comparison(rows, model, {comparison.OURS: ours})


def _caveats(rows: comparison.ComparisonRows, model: models.RidgeModel) -> list[str]:
    """Return sentences on what the rows cannot show of this model."""
    notes = []
    if rows.origin == "cross-validation" and model.card.get("candidates"):
        notes.append(
            "The same folds chose this model; rows for a test would show more."
        )
    classifier = model.card.get("classifier")
    has_other_loss = classifier is not None and classifier["loss"] != predict.SQUARED
    # only sums of the squared loss give models without some of the rows
    if rows.origin != "test" and has_other_loss:
        notes.append("The squared loss was compared, from which its fit starts.")
    return notes


def _comparison(
    rows: comparison.ComparisonRows,
    model: models.RidgeModel,
    predictions: _Predictions,
    notes: tuple[str, ...] = (),
) -> comparison.ModelComparison:
    classes = None
    observed = rows.targets
    if "classifier" in model.card:
        classes = predict.class_names(model)
        observed = predict.class_of(observed).astype(np.int64)
    means = np.broadcast_to(_training_means(rows, model), rows.targets.shape)
    naive = comparison.naive_predictions(means, len(classes or ()))
    target = None
    targets = model.card.get("target_names") or []
    if classes is None and len(targets) == 1:
        target = str(targets[0])
    return comparison.ModelComparison(
        rows, observed, {**predictions, **naive}, classes, notes, target
    )


def _training_means(
    rows: comparison.ComparisonRows, model: models.RidgeModel
) -> FloatArray:
    """Return the means of the targets that a model without inputs has learned: of the
    training rows, without a row's fold or the row itself if it is one of them.
    """
    has_class_weights = model.card.get("classifier", {}).get("class_weight") is not None
    if rows.fold_models is not None and not has_class_weights:
        return rows.fold_models.target_means[rows.split]
    # sums with weights of classes do not have the classes' shares
    if model.statistics is None or has_class_weights:
        return np.average(rows.targets, axis=0, weights=rows.weights)
    means = model.statistics.target_means()
    if rows.origin == "test":
        return means
    weights = rows.block.weights
    rest = model.statistics.sum_of_weights - weights
    return np.asarray(means + (means - rows.targets) * (weights / rest)[:, np.newaxis])


# -- rows
# --------------------------------------------------------------------------------------


def _rows_of(
    fitted_model: FittedModel, data: fits.JobData, test: fits.JobData | None
) -> comparison.ComparisonRows | None:
    if test is not None:
        return _test_rows(test, fitted_model.model)
    if fitted_model.folds is not None:
        return _fold_rows(data, fitted_model.model, fitted_model.folds)
    return _left_out_rows(data, fitted_model.model)


def _most_rows(width: int) -> int:
    """Return how many rows to compare on, if each takes `width` values."""
    return max(MIN_ROWS, min(MOST_ROWS, MOST_VALUES // width))


def _test_rows(
    test: fits.JobData,
    model: models.RidgeModel,
    most: int = MOST_ROWS,
    held: Sequence[Range] | None = None,
) -> comparison.ComparisonRows:
    """Return up to `most` rows, of those in the ranges `held` if these are given."""
    n_available = test.rows.n_samples if held is None else count_rows(held)
    n_rows = min(
        n_available, most, _most_rows(max(test.rows.n_features, model.n_targets))
    )
    numbers, X, y, weights = test.sample(model, n_rows, SEED, held)
    # `sample` leaves out rows of weight 0. How many others there are is known only if
    # it had all rows.
    if n_rows == n_available:
        n_available = len(X)
    groups = _groups_of(test.rows, numbers)
    names, named = _names_of(test.rows, numbers)
    return comparison.ComparisonRows(
        "test",
        n_available,
        numbers,
        X,
        y,
        weights,
        groups,
        names=names,
        named=named,
        n_dropped=test.rows.attributes.get("dropped_rows", 0),
    )


def _fold_rows(
    data: fits.JobData, model: models.RidgeModel, fold_models: FoldModels
) -> comparison.ComparisonRows:
    dataset = data.with_targets(model)
    folds = fold_models.folds
    # the intercept has an entry for each target of each fold, as a row's predictions do
    n_predictions = len(fold_models.linear.intercept)
    n_rows = _most_rows(max(dataset.n_features, n_predictions))
    sample = samples.sample_folds(dataset, folds, n_rows=n_rows)
    # The split of a row is the number of the fold model that was not trained on it. It
    # is −1 if all fold models were trained on the row: length scales were tuned on it,
    # or it is among the earliest, which every split by time trains on.
    split = split_of_folds(sample.fold_of_row, fold_models)
    left_out = np.flatnonzero(split >= 0)
    if isinstance(folds, folding.TuningFolds):
        folds = folds.base  # the folds before some rows were held in for tuning
    # known only if all rows are in the sample, as in `_test_rows`
    n_available = len(left_out) if dataset.n_samples <= n_rows else dataset.n_samples
    numbers = sample.indices[left_out]
    X = sample.X[left_out]
    y = sample.y[left_out]
    weights = None if sample.weights is None else sample.weights[left_out]
    groups = None
    if isinstance(folds, folding.GroupFolds):
        groups = _groups_of(data.rows, numbers)
    return comparison.ComparisonRows(
        "cross-validation",
        n_available,
        numbers,
        X,
        y,
        weights,
        groups,
        fold_models,
        split[left_out],
        *_names_of(data.rows, numbers),
    )


def _left_out_rows(
    data: fits.JobData, model: models.RidgeModel
) -> comparison.ComparisonRows | None:
    classifier = model.card.get("classifier")
    if model.statistics is None or model.feature_map.n_components > MAX_FACTOR:
        return None
    if classifier and (
        classifier["loss"] != predict.SQUARED or classifier["class_weight"] is not None
    ):
        # Left-out rows need sums of the squared loss, with the weights of the rows.
        return None
    # rows that an update refused, or before a window, are not in the sums
    rows = _test_rows(data, model, MOST_LEFT_OUT, new_rows.rows_in(model))
    return replace(rows, origin="leave-one-out")


def _groups_of(rows: blocks.Dataset, indices: IndexArray) -> AnyArray | None:
    if not isinstance(rows, labelled.GroupedDataset):
        return None
    return rows.groups.take(indices)


def _names_of(rows: blocks.Dataset, indices: IndexArray) -> tuple[AnyArray | None, str]:
    """Return what people find rows by, and what that is."""
    ids = stored_columns.ids_of(rows)
    if ids is not None:
        return ids.take(indices), str(stored_columns.id_column(rows.attributes))
    places = row_sources.find_rows(rows.attributes, rows.n_samples, indices)
    if places is None:
        return None, ""
    title = "source"
    if any(place.startswith("row") for place in places):
        title = "source (rows from 1, without a header)"
    return np.array(places), title


# -- predictions
# -----------------------------------------------------------------------------------


def _predict(
    rows: comparison.ComparisonRows, fitted_model: FittedModel
) -> comparison.Predictions:
    """Predict each row by a model that was not trained on it."""
    if rows.origin == "test":
        return _predict_test_rows(rows, fitted_model.model)
    if rows.origin == "cross-validation":
        # each row by the model that was trained without the row's fold
        assert rows.split is not None
        assert fitted_model.folds is not None
        scores = predict_by_splits(rows.block, rows.split, fitted_model.folds)
        return _predictions_of(
            scores, fitted_model.model, fitted_model.ridge_calibration
        )
    return _predict_left_out(rows, fitted_model.model)


def _predict_test_rows(
    rows: comparison.ComparisonRows, model: models.RidgeModel
) -> comparison.Predictions:
    scores = predicting.predict_rows(rows.block, model.linear)
    return _predictions_of(scores, model, _calibration_of(model))


def _predict_left_out(
    rows: comparison.ComparisonRows, model: models.RidgeModel
) -> comparison.Predictions:
    """Predict each row by the model of all other rows.

    Raises SolveError if a row decides its own prediction.
    """
    weights = rows.weights
    # a frequency weight counts copies: only one copy is left out, so its weight is 1
    if weights is None or model.summed.spec.frequency_weights:
        weights = np.ones(len(rows.X))
    fitted_values, remainder = uncertainty.remainders(
        rows.block, model.with_variances(), weights
    )
    if (remainder < uncertainty.SMALLEST_REMAINDER).any():
        raise SolveError(
            "a row alone decides its own prediction, so that it cannot be left out"
        )
    # Golub, Heath & Wahba 1979: a fit without the row has the row's residual divided by
    # 1 − leverage
    scores = rows.targets - (rows.targets - fitted_values) / remainder
    return _predictions_of(scores, model, _calibration_of(model))


def _calibration_of(
    model: models.RidgeModel,
) -> platt_scaling.ScoreCalibration | None:
    """Return what makes scores probabilities; None for a regression."""
    return predict.calibration_of(model) if "classifier" in model.card else None


def _predictions_of(
    scores: FloatArray,
    model: models.RidgeModel,
    calibration: platt_scaling.ScoreCalibration | None,
) -> comparison.Predictions:
    """Return a classifier's classes and log probabilities; a regression's scores."""
    if "classifier" not in model.card:
        return comparison.Predictions(scores)
    logs = None if calibration is None else calibration.log_probabilities(scores)
    classes = predict.decide(scores, calibration).astype(np.int64)
    return comparison.Predictions(classes, logs)


def _predict_by_linear_model(
    fit: fits.Fit,
    fitted_model: FittedModel,
    rows: comparison.ComparisonRows,
    data: fits.JobData,
    *,
    engine: Engine,
) -> tuple[_Predictions, tuple[str, ...]]:
    """Return a linear model's predictions, or a note on why there are none."""
    model = fitted_model.model
    levels = recipes.levels_of(data.rows.attributes)
    n_components = linear_components(data.rows.n_features, levels)
    if isinstance(kinds.kernel_of(model.feature_map), explicit.Linear):
        return {}, (
            "The chosen model is linear, so no linear one is listed for comparison.",
        )
    if n_components > model.feature_map.n_components:
        note = (
            "It was not compared with a linear model, since the data have more columns"
            f" and levels ({n_components:,}) than the model has features"
            f" ({model.feature_map.n_components:,})."
        )
        return {}, (note,)
    options = RidgeOptions(
        kernel="linear",
        features="fourier",
        map="phases",
        n_components=n_components,
        # The same folds, so that both models predict a row without having seen it.
        cv=fit.options.cv if rows.fold_models is None else rows.fold_models.folds,
        solver="direct",
        **fields.values_of(fit.options, "sample_weight_kind", "fit_intercept", "seed"),
    )
    losses = fit.losses
    if losses is not None:
        # only the squared loss has sums from which folds and rows can be subtracted
        loss = "logistic" if rows.origin == "test" else predict.SQUARED
        losses = replace(losses, loss=loss)
    linear_fit = fits.Fit(options, losses)
    try:
        # its warnings are not about the model that the user fits
        with warnings.catch_warnings(action="ignore"):
            linear = linear_fit.run(data, engine=engine)
            return {comparison.LINEAR: _predict(rows, linear)}, ()
    except (DataError, PlanError, SolveError, StatisticsError) as error:
        return {}, (f"It was not compared with a linear model: {error}.",)
