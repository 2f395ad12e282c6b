"""The rows that models are compared on, and their predictions: test rows, or rows left out of the training.

Without test rows a fit's own sums predict training rows by models that did not see them: those of the folds
that the fit was chosen by, or of each row's own left out. Training rows that a model saw judge nothing.
"""

import logging
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rff_dist import fields
from rff_dist.classify import platt_scaling, predict
from rff_dist.classify.fit import FittedModel
from rff_dist.data import blocks, columns, folding, labelled, memory, samples
from rff_dist.engines import progress, serial
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError, PlanError, SolveError, StatisticsError
from rff_dist.features import kinds
from rff_dist.fitting import predicting
from rff_dist.fitting.options import RidgeOptions
from rff_dist.kernels import explicit
from rff_dist.living import new_rows
from rff_dist.numerics import machine
from rff_dist.ridge import held_out, models, uncertainty
from rff_dist.ridge import predict as ridge_prediction
from rff_dist.storage import columns as stored_columns
from rff_dist.text import redact
from rff_dist.typing import AnyArray, IndexArray, Summary
from rff_dist.workbench.jobs import fits, verdict

logger = logging.getLogger(__name__)

type _Predicted = Mapping[str, verdict.Predictions]

SEED = 0  # of sampled rows: a comparison that is made again is the same
MOST_ROWS, MOST_VALUES = 20_000, 2**24  # of the rows, and of their columns or their predictions by each fold
MOST_LEFT_OUT = 5_000  # rows, each of which takes D² operations
MAX_FACTOR = 4_096  # up to so many components, a Cholesky factor of the Gram is made to leave rows out


def compare(
    fit: fits.Fit, fitted: FittedModel, data: fits.JobData, test: fits.JobData | None, *, engine: Engine
) -> verdict.Comparison | None:
    """Compare a trained model with the mean and with a linear model, on rows that none of them saw.

    The linear model is trained on the same rows, with a penalty by the same folds; of classes it minimises
    the logistic loss. It is left out, and a note says why, if it would take longer than the fit.

    Returns: None without test rows if the model has neither models without each fold, nor sums from which
      rows could be left out.
    """
    progress.Announcer(engine.observers)(progress.Remark("compare", "with a linear model"))
    model = fitted.model
    with machine.using_threads(machine.available_cores()):
        rows = _rows_of(fitted, data, test)
        if rows is None:
            return None
        try:
            ours = _predictions(rows, model, fitted.folds, fitted.calibration)
        except SolveError as error:
            logger.info("nothing was compared: %s", error)
            return None
        others, notes = _linear(fit, fitted, rows, data, engine=engine)
    if rows.by == "cross-validation" and model.card.get("candidates"):
        notes = (*notes, "The same folds chose this model; rows for a test would show more.")
    classifier = model.card.get("classifier")
    if rows.by != "test" and classifier is not None and classifier["loss"] != predict.SQUARED:
        notes = (*notes, "The squared loss was compared, from which its fit starts.")
    return _comparison(rows, model, {verdict.OURS: ours, **others}, notes)


def measure_errors(test: fits.JobData, model: models.RidgeModel, *, engine: Engine) -> Summary:
    """Measure a model's errors on test data in one pass.

    Returns `metrics`: rows; for a classifier accuracy, balanced accuracy (the mean recall of classes) and log
      loss in nats (None without probabilities); else per target mean squared, root mean squared and mean
      absolute error, bias (all in the target's units) and R² (None for a constant target); standard errors
      as if rows were independent. `groups` has the same of each group, if test rows have a few.
    Raises DataError if a value cannot be used, or a label is not one of the classes.
    """
    evaluate: Any = ridge_prediction.evaluate_by_group if test.labels is None else predict.evaluate_by_group
    found = evaluate(test.with_targets(model), model, engine=engine)
    about = {"test_data": redact(test.rows.url or "test data in memory"), **found.whole.to_dict()}
    if test.labels is None:
        about["mse"] = found.whole.mean_squared_error.tolist()
    if found.groups:
        about["groups"] = {name: part.to_dict() for name, part in sorted(found.groups.items())}
    return about


def compare_new(test: fits.JobData, model: models.RidgeModel) -> verdict.Comparison:
    """Compare a model whose fit is over with the mean, on rows that it was not trained on."""
    return _alone(_test_rows(test, model), model)


def compare_left_out(data: fits.JobData, model: models.RidgeModel) -> verdict.Comparison | None:
    """Compare a model whose fit is over with the mean, each row left out; None if its sums forbid it."""
    if new_rows.out_of(model):
        return None  # not all rows of the data are in the sums
    rows = _left_out_rows(data, model)
    try:
        return None if rows is None else _alone(rows, model)
    except SolveError as error:
        logger.info("nothing was compared: %s", error)
        return None


def _alone(rows: verdict.JudgedRows, model: models.RidgeModel) -> verdict.Comparison:
    return _comparison(rows, model, {verdict.OURS: _predictions(rows, model)})


def _comparison(
    rows: verdict.JudgedRows, model: models.RidgeModel, predictions: _Predicted, notes: tuple[str, ...] = ()
) -> verdict.Comparison:
    classes = predict.class_names(model) if "classifier" in model.card else None
    y = rows.y if classes is None else predict.class_of(rows.y).astype(np.int64)
    n_folds = len(rows.X) if rows.folds is None else len(rows.folds.validated)
    return verdict.Comparison(
        **{**vars(rows), "y": y},
        predictions={**predictions, **verdict.with_naive(y, len(classes or ()), rows.weights)},
        classes=classes,
        n_folds=0 if rows.by == "test" else n_folds,
        notes=notes,
    )


# -- rows ------------------------------------------------------------------------------------------


def _rows_of(fitted: FittedModel, data: fits.JobData, test: fits.JobData | None) -> verdict.JudgedRows | None:
    if test is not None:
        return _test_rows(test, fitted.model)
    if fitted.folds is not None:
        return _fold_rows(data, fitted.model, fitted.folds)
    return _left_out_rows(data, fitted.model)


def _n_rows(width: int) -> int:
    return max(1_000, min(MOST_ROWS, MOST_VALUES // width))


def _test_rows(test: fits.JobData, model: models.RidgeModel, most: int = MOST_ROWS) -> verdict.JudgedRows:
    n_samples = test.rows.n_samples
    n_rows = min(n_samples, most, _n_rows(max(test.rows.n_features, model.n_targets)))
    numbers, X, y, weights = test.sample(model, n_rows, SEED)
    n_available = len(X) if n_rows == n_samples else n_samples
    groups, ids = _groups_of(test.rows, numbers), _ids_of(test.rows, numbers)
    return verdict.JudgedRows("test", n_available, numbers, X, y, weights, groups, ids=ids)


def _fold_rows(
    data: fits.JobData, model: models.RidgeModel, folds: held_out.FoldModels
) -> verdict.JudgedRows:
    dataset = data.with_targets(model)
    n_rows = _n_rows(max(dataset.n_features, len(folds.linear.intercept)))
    sample = samples.sample_folds(dataset, folds.folds, n_rows=n_rows)
    split = held_out.split_of_folds(sample.fold_of_row, folds)
    # No split leaves out rows of −1: length scales were tuned on them, or they are the earliest of all.
    counted = np.flatnonzero(split >= 0)
    base = folds.folds.base if isinstance(folds.folds, folding.HeldInFolds) else folds.folds
    n_available = len(counted) if dataset.n_samples <= n_rows else dataset.n_samples
    numbers, X, y = sample.indices[counted], sample.X[counted], sample.y[counted]
    weights = None if sample.weights is None else sample.weights[counted]
    groups = _groups_of(data.rows, numbers) if isinstance(base, folding.GroupFolds) else None
    by, ids = "cross-validation", _ids_of(data.rows, numbers)
    return verdict.JudgedRows(by, n_available, numbers, X, y, weights, groups, folds, split[counted], ids)


def _left_out_rows(data: fits.JobData, model: models.RidgeModel) -> verdict.JudgedRows | None:
    classifier = model.card.get("classifier")
    if model.statistics is None or model.feature_map.n_components > MAX_FACTOR:
        return None
    if classifier and (classifier["loss"], classifier["class_weight"]) != (predict.SQUARED, None):
        return None  # sums of other losses, or of weights that the rows do not have
    return replace(_test_rows(data, model, MOST_LEFT_OUT), by="leave-one-out")


def _groups_of(rows: blocks.Dataset, indices: IndexArray) -> AnyArray | None:
    return rows.groups.take(indices) if isinstance(rows, labelled.GroupedDataset) else None


def _ids_of(rows: blocks.Dataset, indices: IndexArray) -> AnyArray | None:
    while isinstance(rows, labelled.ExtendedDataset):
        rows = rows.source
    ids = stored_columns.ids_of(rows)
    return None if ids is None else ids.take(indices)


# -- predictions -----------------------------------------------------------------------------------


def _predictions(
    rows: verdict.JudgedRows,
    model: models.RidgeModel,
    folds: held_out.FoldModels | None = None,
    calibration: platt_scaling.ScoreCalibration | None = None,
) -> verdict.Predictions:
    """Return what a model predicts for the rows, by the models that did not see them.

    `folds`, `calibration`: of the model, for rows that folds leave out.
    """
    classifier = "classifier" in model.card
    if rows.by == "test" or (rows.by == "leave-one-out" and classifier):
        calibration = predict.calibration_of(model) if classifier else None
    if rows.by == "test":
        scores = predicting.predict_rows(rows.block, model.linear)
    elif rows.split is not None:
        assert folds is not None
        scores = held_out.predict_by_splits(rows.block, rows.split, folds)
    else:
        predictive = uncertainty.predictive_model(
            model.linear, model.summed, alpha=model.alpha, fit_intercept=model.card["fit_intercept"]
        )
        repeated, n = model.summed.spec.frequency_weights, len(rows.X)
        weights = np.ones(n) if repeated or rows.weights is None else rows.weights
        fitted, remainder = platt_scaling.remainders(rows.block, predictive, weights)
        if (remainder < platt_scaling.SMALLEST_REMAINDER).any():
            raise SolveError("a row alone decides its own prediction, so that it cannot be left out")
        # Golub, Heath & Wahba 1979: the residual over 1 − leverage is that of a fit without the row
        scores = rows.y - (rows.y - fitted) / remainder
    if not classifier:
        return verdict.Predictions(scores)
    logs = None if calibration is None else calibration.log_probabilities(scores)
    return verdict.Predictions(predict.decide(scores, calibration).astype(np.int64), logs)


def _linear(
    fit: fits.Fit, fitted: FittedModel, rows: verdict.JudgedRows, data: fits.JobData, *, engine: Engine
) -> tuple[_Predicted, tuple[str, ...]]:
    """Return the predictions of a linear model, or a note that says why there is none."""
    model, n_features = fitted.model, data.rows.n_features
    if isinstance(kinds.kernel_of(model.feature_map), explicit.Linear):
        return {}, ("This model is linear itself.",)
    if n_features > model.feature_map.n_components:
        return {}, (
            "It was not compared with a linear model, since the data have more columns "
            f"({n_features:,}) than the model has features ({model.feature_map.n_components:,}).",
        )
    options = RidgeOptions(
        kernel="linear",
        features="fourier",
        map="phases",
        n_components=n_features,
        # The same folds, so that both models predict a row without having seen it.
        cv=fit.options.cv if rows.folds is None else rows.folds.folds,
        solver="direct",
        **fields.values_of(fit.options, "sample_weight_kind", "fit_intercept", "seed"),
    )
    peer = fits.Fit(options, None if fit.loss is None else "logistic", fit.class_weight)
    try:
        with warnings.catch_warnings(action="ignore"):  # what it warns of is not this model's
            if fit.loss is None or rows.by == "test":
                linear = peer.run(data, engine=engine)
                return {verdict.LINEAR: _predictions(rows, linear.model, linear.folds)}, ()
            # Without sums of its loss each fold takes a fit of its own, which is for few rows, all at hand.
            if rows.folds is None or len(rows.X) < rows.n_available:
                return {}, ("It was not compared with a linear model, which takes rows for a test.",)
            return {verdict.LINEAR: _refitted(peer, rows, model)}, ()
    except (DataError, PlanError, SolveError, StatisticsError) as error:
        return {}, (f"It was not compared with a linear model: {error}.",)


def _refitted(peer: fits.Fit, rows: verdict.JudgedRows, model: models.RidgeModel) -> verdict.Predictions:
    """Return what a linear classifier predicts for each fold if it is trained on the others.

    Its logistic loss has no sums from which folds could be subtracted. `rows` are all rows, and few.
    """
    assert rows.split is not None
    # A class with no row outside a fold keeps the probability 0, whose loss is bounded in `verdict`.
    codes, n_classes = predict.class_of(rows.y), len(predict.read_classes(model))
    values, logs = np.empty(len(codes), np.int64), np.full((len(codes), n_classes), -np.inf)
    alpha: Any = None
    for split in np.unique(rows.split):
        others, left = np.flatnonzero(rows.split != split), np.flatnonzero(rows.split == split)
        weights = None if rows.weights is None else rows.weights[others]
        dataset = memory.ArrayDataset(rows.X[others], None, weights)
        labels = columns.MemoryColumn(codes[others])
        options = replace(peer.options, cv=None, alpha="auto" if alpha is None else alpha)
        fit = replace(peer, options=options)
        linear = fit.run(fits.JobData(dataset, labels), engine=serial.SerialEngine()).model
        alpha = linear.alpha  # chosen without the first fold, and close to what each other fold would choose
        known = predict.read_classes(linear).astype(np.int64)
        targets = labelled.class_targets(codes[left], n_classes)
        part = _predictions(replace(rows, by="test", X=rows.X[left], y=targets, weights=None), linear)
        assert part.log_probabilities is not None  # the logistic loss has them
        values[left] = known[part.values]
        logs[np.ix_(left, known)] = part.log_probabilities
    return verdict.Predictions(values, logs)
