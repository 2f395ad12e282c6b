"""The rows that models are compared on, and their predictions: test rows, or rows left out of the training.

Without test rows a fit's own sums predict training rows by models that did not see them: those of the folds
that the fit was chosen by, or of each row's own left out. Training rows that a model saw judge nothing.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.classify.fit import FittedModel
from rff_dist.classify.platt_scaling import SMALLEST_REMAINDER, ScoreCalibration, remainders
from rff_dist.classify.predict import SQUARED, calibration_of, class_of, decide, read_classes
from rff_dist.data.blocks import Block, Dataset, Rows
from rff_dist.data.columns import MemoryColumn
from rff_dist.data.folds import GroupFolds, HeldInFolds
from rff_dist.data.labelled import GroupedDataset, LabelledDataset, class_targets
from rff_dist.data.memory import ArrayDataset
from rff_dist.data.samples import sample_folds, sample_indices
from rff_dist.engines.progress import Announcer, Remark
from rff_dist.engines.protocol import Engine
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import DataError, PlanError, SolveError, StatisticsError
from rff_dist.features.kernel_of import kernel_of
from rff_dist.jobs.fits import Fit, JobData
from rff_dist.jobs.verdict import LINEAR, OURS, Comparison, Predictions, with_naive
from rff_dist.kernels.explicit import Linear
from rff_dist.numerics.machine import available_cores
from rff_dist.numerics.threads import using_threads
from rff_dist.ridge.conformal import FoldModels, predict_by_splits, split_of_folds
from rff_dist.ridge.linear_model import predict_rows
from rff_dist.ridge.model import RidgeModel
from rff_dist.ridge.new_rows import out_of
from rff_dist.ridge.options import RidgeOptions
from rff_dist.ridge.uncertainty import predictive_model
from rff_dist.typing import FloatArray, IntArray

logger = logging.getLogger(__name__)

SEED = 0  # of sampled rows: a comparison that is made again is the same
MOST_ROWS, MOST_VALUES = 20_000, 2**24  # of the rows, and of their columns or their predictions by each fold
MOST_LEFT_OUT = 5_000  # rows, each of which takes D² operations
MAX_FACTOR = 4_096  # up to so many components, a Cholesky factor of the Gram is made to leave rows out


@dataclass(frozen=True, slots=True, eq=False)
class JudgedRows:
    """Rows to compare models on.

    `y`: float64 array of shape (n_rows, n_targets). Targets; −1 and +1 for classes.
    `weights`: float64 array of shape (n_rows,), or None.
    `folds`: the folds that leave them out; None for test rows, or if each is left out by itself.
    `split`: int64 array of shape (n_rows,). Which split leaves each row out.
    """

    by: str
    n_available: int
    X: NDArray[Any]
    y: FloatArray
    weights: FloatArray | None = None
    groups: NDArray[Any] | None = None
    folds: FoldModels | None = None
    split: IntArray | None = None

    @property
    def rows(self) -> Rows:
        return Rows(Block(0, 0, len(self.X)), self.X, self.y, self.weights)


def compare(
    fit: Fit, fitted: FittedModel, data: JobData, test: JobData | None, *, engine: Engine
) -> Comparison | None:
    """Compare a trained model with the mean and with a linear model, on rows that none of them saw.

    The linear model is trained on the same rows, with a penalty by the same folds; of classes it minimises
    the logistic loss. It is left out, and a note says why, if it would take longer than the fit.

    Returns: None without test rows if the model has neither models without each fold, nor sums from which
      rows could be left out.
    """
    Announcer(engine.observers)(Remark("compare", "with a linear model"))
    model = fitted.model
    with using_threads(available_cores()):
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
    if "classifier" in model.card and rows.by != "test" and model.card["classifier"]["loss"] != SQUARED:
        notes = (*notes, "The squared loss was compared, from which its fit starts.")
    return _comparison(rows, model, {OURS: ours, **others}, notes)


def compare_new(test: JobData, model: RidgeModel) -> Comparison:
    """Compare a model whose fit is over with the mean, on rows that it was not trained on."""
    rows = _test_rows(test, model)
    return _comparison(rows, model, {OURS: _predictions(rows, model, None, None)}, ())


def compare_left_out(data: JobData, model: RidgeModel) -> Comparison | None:
    """Compare a model whose fit is over with the mean, each row left out; None if its sums forbid it."""
    if "fading" in model.card or out_of(model):
        return None  # not all rows of the data are in the sums, or not with their weights
    rows = _left_out_rows(data, model)
    try:
        ours = None if rows is None else _predictions(rows, model, None, None)
    except SolveError as error:
        logger.info("nothing was compared: %s", error)
        return None
    return None if rows is None or ours is None else _comparison(rows, model, {OURS: ours}, ())


def _comparison(
    rows: JudgedRows, model: RidgeModel, predictions: Mapping[str, Predictions], notes: tuple[str, ...]
) -> Comparison:
    classes = [str(one) for one in read_classes(model)] if "classifier" in model.card else None
    y = rows.y if classes is None else class_of(rows.y).astype(np.int64)
    return Comparison(
        by=rows.by,
        n_available=rows.n_available,
        X=rows.X,
        y=y,
        predictions={**predictions, **with_naive(y, len(classes or ()), rows.weights)},
        classes=classes,
        weights=rows.weights,
        groups=rows.groups,
        n_folds=0 if rows.by == "test" else len(rows.X) if rows.folds is None else len(rows.folds.validated),
        notes=notes,
    )


# -- rows ------------------------------------------------------------------------------------------


def _rows_of(fitted: FittedModel, data: JobData, test: JobData | None) -> JudgedRows | None:
    if test is not None:
        return _test_rows(test, fitted.model)
    if fitted.folds is not None:
        return _fold_rows(data, fitted.model, fitted.folds)
    return _left_out_rows(data, fitted.model)


def _with_targets(data: JobData, model: RidgeModel) -> Dataset:
    if data.labels is None:
        return data.rows
    return LabelledDataset(data.rows, data.labels, read_classes(model))


def _n_rows(width: int) -> int:
    return max(1_000, min(MOST_ROWS, MOST_VALUES // width))


def _test_rows(test: JobData, model: RidgeModel, most: int = MOST_ROWS) -> JudgedRows:
    dataset = _with_targets(test, model)
    n_rows = min(dataset.n_samples, most, _n_rows(max(dataset.n_features, model.n_targets)))
    indices = sample_indices(dataset, np.random.Generator(np.random.Philox(SEED)), n_rows)
    X, y, weights = dataset.take(indices)
    assert y is not None  # they were evaluated
    counted = np.arange(len(X)) if weights is None else np.flatnonzero(weights > 0)
    return JudgedRows(
        "test",
        len(counted) if n_rows == dataset.n_samples else dataset.n_samples,
        X[counted],
        y[counted],
        None if weights is None else weights[counted],
        _groups_of(test.rows, indices[counted]),
    )


def _fold_rows(data: JobData, model: RidgeModel, folds: FoldModels) -> JudgedRows:
    dataset = _with_targets(data, model)
    n_rows = _n_rows(max(dataset.n_features, len(folds.linear.intercept)))
    sample = sample_folds(dataset, folds.folds, n_rows=n_rows)
    split = split_of_folds(sample.fold_of_row, folds)
    counted = np.flatnonzero(split >= 0)
    base = folds.folds.base if isinstance(folds.folds, HeldInFolds) else folds.folds
    return JudgedRows(
        "cross-validation",
        len(counted) if dataset.n_samples <= n_rows else dataset.n_samples,
        sample.X[counted],
        sample.y[counted],
        None if sample.weights is None else sample.weights[counted],
        _groups_of(data.rows, sample.indices[counted]) if isinstance(base, GroupFolds) else None,
        folds,
        split[counted],
    )


def _left_out_rows(data: JobData, model: RidgeModel) -> JudgedRows | None:
    classifier = model.card.get("classifier")
    small = model.feature_map.n_components <= MAX_FACTOR
    if model.statistics is None or not small:
        return None
    if classifier is not None and (classifier["loss"] != SQUARED or classifier["class_weight"] is not None):
        return None  # sums of other losses, or of weights that the rows do not have
    return replace(_test_rows(data, model, MOST_LEFT_OUT), by="leave-one-out")


def _groups_of(rows: Dataset, indices: NDArray[np.intp]) -> NDArray[Any] | None:
    return rows.groups.take(indices) if isinstance(rows, GroupedDataset) else None


# -- predictions -----------------------------------------------------------------------------------


def _predictions(
    rows: JudgedRows, model: RidgeModel, folds: FoldModels | None, calibration: ScoreCalibration | None
) -> Predictions:
    """Return what a model predicts for the rows, by the models that did not see them.

    `folds`, `calibration`: of the model, for rows that folds leave out.
    """
    classifier = "classifier" in model.card
    if rows.by == "test" or (rows.by == "leave-one-out" and classifier):
        calibration = calibration_of(model) if classifier else None
    if rows.by == "test":
        scores = predict_rows(rows.rows, model.linear)
    elif rows.split is not None:
        assert folds is not None
        scores = predict_by_splits(rows.rows, rows.split, folds)
    else:
        predictive = predictive_model(
            model.linear, model.summed, alpha=model.alpha, fit_intercept=model.card["fit_intercept"]
        )
        repeated, n = model.summed.spec.frequency_weights, len(rows.X)
        weights = np.ones(n) if repeated or rows.weights is None else rows.weights
        fitted, remainder = remainders(rows.rows, predictive, weights)
        if (remainder < SMALLEST_REMAINDER).any():
            raise SolveError("a row alone decides its own prediction, so that it cannot be left out")
        # Golub, Heath & Wahba 1979: the residual over 1 − leverage is that of a fit without the row
        scores = rows.y - (rows.y - fitted) / remainder
    if not classifier:
        return Predictions(scores)
    logs = None if calibration is None else calibration.log_probabilities(scores)
    return Predictions(decide(scores, calibration).astype(np.int64), logs)


def _linear(
    fit: Fit, fitted: FittedModel, rows: JudgedRows, data: JobData, *, engine: Engine
) -> tuple[Mapping[str, Predictions], tuple[str, ...]]:
    """Return the predictions of a linear model, or a note that says why there is none."""
    model, n_features = fitted.model, data.rows.n_features
    if isinstance(kernel_of(model.feature_map), Linear):
        return {}, ("This model is linear itself.",)
    if n_features > model.feature_map.n_components:
        return {}, (
            "It was not compared with a linear model, since the data have more columns "
            f"({n_features:,}) than the model has features ({model.feature_map.n_components:,}).",
        )
    given = fit.options
    options = RidgeOptions(
        kernel="linear",
        features="fourier",
        map="phases",
        n_components=n_features,
        cv=given.cv if rows.folds is None else rows.folds.folds,
        sample_weight_kind=given.sample_weight_kind,
        fit_intercept=given.fit_intercept,
        solver="direct",
        seed=given.seed,
    )
    peer = Fit(options=options, loss=None if fit.loss is None else "logistic", class_weight=fit.class_weight)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it warns of is not this model's
            if fit.loss is None or rows.by == "test":
                linear = peer.run(data, engine=engine)
                return {LINEAR: _predictions(rows, linear.model, linear.folds, None)}, ()
            if rows.folds is None or len(rows.X) < rows.n_available:
                return {}, ("It was not compared with a linear model, which takes rows for a test.",)
            return {LINEAR: _refitted(peer, rows, model)}, ()
    except (DataError, PlanError, SolveError, StatisticsError) as error:
        return {}, (f"It was not compared with a linear model: {error}.",)


def _refitted(peer: Fit, rows: JudgedRows, model: RidgeModel) -> Predictions:
    """Return what a linear classifier predicts for each fold if it is trained on the others.

    Its logistic loss has no sums from which folds could be subtracted. `rows` are all rows, and few.
    """
    assert rows.split is not None
    codes, n_classes = class_of(rows.y), len(read_classes(model))
    values, logs = np.empty(len(codes), np.int64), np.full((len(codes), n_classes), -np.inf)
    alpha: Any = None
    for split in np.unique(rows.split):
        others, left = np.flatnonzero(rows.split != split), np.flatnonzero(rows.split == split)
        weights = None if rows.weights is None else rows.weights[others]
        some = JobData(ArrayDataset(rows.X[others], None, weights), MemoryColumn(codes[others]))
        options = replace(peer.options, cv=None, alpha="auto" if alpha is None else alpha)
        found = replace(peer, options=options).run(some, engine=SerialEngine()).model
        alpha = found.alpha  # chosen without the first fold, and close to what each other fold would choose
        known = read_classes(found).astype(np.int64)
        targets = class_targets(codes[left], n_classes)
        part = _predictions(
            replace(rows, by="test", X=rows.X[left], y=targets, weights=None), found, None, None
        )
        assert part.log_probabilities is not None  # the logistic loss has them
        values[left] = known[part.values]
        logs[np.ix_(left, known)] = part.log_probabilities
    return Predictions(values, logs)
