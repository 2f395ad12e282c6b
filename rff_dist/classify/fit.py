"""Classifiers on the engine: ridge on targets of −1 and +1, then passes of a loss, or probabilities.

Ridge comes first in any case: it chooses alpha, its solution is the start of the other losses, and its Gram
their preconditioner. Each evaluation of a loss is one pass, which makes all features once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.checks import check_count, check_name, is_number
from rff_dist.classify.confusion import Confusion, count_classes
from rff_dist.classify.losses import LOSSES, Logistic, Loss, LossState, sum_loss
from rff_dist.classify.platt_scaling import ScoreCalibration, fit_calibration, leave_one_out_scores
from rff_dist.classify.predict import SQUARED, class_of, decide
from rff_dist.data.blocks import Block, Dataset, Rows
from rff_dist.data.columns import Column
from rff_dist.data.labelled import LabelCounts, LabelledDataset, class_weights
from rff_dist.data.samples import sample_rows
from rff_dist.engines.progress import Announcer, Rounds
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError, InvalidParameterError, SolveError
from rff_dist.numerics.machine import available_cores
from rff_dist.numerics.minimize import Minimum, PenalizedLoss, minimize_loss
from rff_dist.numerics.solution import RidgeSolution
from rff_dist.numerics.threads import using_threads
from rff_dist.ridge import automatic
from rff_dist.ridge.conformal import FoldModels, fold_models, predict_held_out
from rff_dist.ridge.fit import Trained
from rff_dist.ridge.linear_model import LinearModel
from rff_dist.ridge.model import RidgeModel
from rff_dist.ridge.options import RidgeOptions, is_one_alpha
from rff_dist.ridge.solve import Solved
from rff_dist.ridge.uncertainty import predictive_model
from rff_dist.statistics import inspection
from rff_dist.statistics.accumulate import add_each
from rff_dist.statistics.gram_products import sums_of_z
from rff_dist.statistics.label_counts import count_labels
from rff_dist.typing import FloatArray

logger = logging.getLogger(__name__)


LOSS_NAMES = (SQUARED, *LOSSES)
CALIBRATION_ROWS = 10_000  # of the seeded sample whose leave-one-out scores are calibrated
# mean second derivatives of the logistic loss: its bound, and less than which separable classes would give
LARGEST_CURVATURE, SMALLEST_CURVATURE = 0.25, 1 / 64
# of ridge's alpha, at least: with less, rare or separable classes were fitted worse than with more on 3 of 5
# data sets (log loss of new rows 0.225 for 0.218, 0.552 for 0.548, 0.147 for 0.140; 0.074 for 0.077 on one)
SMALLEST_ALPHA_FACTOR = 1 / 8
# of ridge's scores, where the logistic loss's passes start. Slopes of calibrated scores were 1.8 to 4.3 on
# five data sets; from 32 times, which the curvature of the digits asks for, it took 72 passes for 32
LARGEST_SCALE = 4.0
HINGE_CURVATURE = 1.0  # of the squared hinge: 2 for the rows within the margin, about half of all


def check_loss(loss: object) -> None:
    """Check that there is a loss of that name.

    Raises InvalidParameterError otherwise.
    """
    check_name(loss, LOSS_NAMES, "loss")


@dataclass(frozen=True, eq=False)
class LossOptions:
    """What a classifier minimises, and how far.

    `loss`: "squared", "logistic" or "squared_hinge".
    `class_weight`: "balanced", mapping of label to float, or None. What the weights of each class's rows are
      multiplied by; see `class_weights`.
    `tol`: see `minimize_loss`; not for "squared".
    `max_iter`: steps, at most; there are a few more passes.
    Raises InvalidParameterError if there is no such loss, or a number is out of range.
    """

    loss: str = SQUARED
    class_weight: str | Mapping[Any, float] | None = None
    tol: float = 1e-6
    max_iter: int = 100

    def __post_init__(self) -> None:
        check_loss(self.loss)
        if not is_number(self.tol) or not 0 < self.tol < 1:
            raise InvalidParameterError(f"`tol` is {self.tol!r}; expected a number in (0, 1)")
        check_count(self.max_iter, "max_iter")


# -- losses ----------------------------------------------------------------------------------------


def logistic_curvature(solution: RidgeSolution, sum_of_weights: float) -> float:
    """Return the mean of p·(1 − p) that ridge on targets expects, in [1/64, 1/4].

    Ridge estimates f = 2p − 1, about which targets vary by 4·p·(1 − p): a quarter of the noise variance of
    greatest evidence, (rss + alpha·‖w‖²) / Σw, averaged over columns.

    `solution`: on targets −1 and +1.
    `sum_of_weights`: of the rows.
    """
    squared_norms = np.square(solution.coefficients).sum(axis=0)
    residual = solution.residual_sum_of_squares + solution.alpha * squared_norms
    mean = float(residual.mean()) / (4.0 * sum_of_weights)
    return min(LARGEST_CURVATURE, max(SMALLEST_CURVATURE, mean))


def fit_loss(
    dataset: Dataset,
    model: RidgeModel,
    options: LossOptions,
    *,
    alpha: float,
    curvature: float,
    engine: Engine,
) -> Minimum:
    """Minimise Σ w·ℓ(f) + penalty·‖W‖² from ridge's solution, in 10 to 30 passes over the data.

    The bits are the same on every engine, on one type of machine. The client holds the Gram's factor of
    8 · n_components² bytes.

    `dataset`: with targets of −1 and +1.
    `model`: ridge on this dataset, with its statistics.
    `alpha`: the penalty is `loss.penalty_factor` · alpha.
    `curvature`: see `minimize_loss`.
    Raises DataError if values are not finite or others than −1 and +1.
    """
    statistics, loss = model.summed, LOSSES[options.loss]
    equations = statistics.normal_equations(fit_intercept=model.card["fit_intercept"])

    def evaluate(coefficients: FloatArray, intercept: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        state = LossState(LinearModel(model.feature_map, coefficients, intercept), loss)
        sums = inspection.sum_rows(dataset, sum_loss, state, engine=engine, label=loss.name)
        if sums.n_samples != dataset.n_samples:
            raise DataError(f"a pass counted {sums.n_samples:_} of {dataset.n_samples:_} rows; run it again")
        gradient = sums_of_z(sums.gradient.value(), model.feature_map)
        return float(sums.loss.value()), gradient, sums.intercept_gradient.value()

    Announcer(engine.observers)(Rounds(loss.name, options.max_iter))
    coefficients, intercept = _start(model, loss, curvature)
    reference = statistics.sum_of_weights * _loss_of_no_scores(loss, model.n_targets)
    problem = PenalizedLoss(evaluate, equations, loss.penalty_factor * alpha, curvature, reference)
    return minimize_loss(problem, coefficients, intercept, tol=options.tol, max_iter=options.max_iter)


def _start(model: RidgeModel, loss: Loss, curvature: float) -> tuple[FloatArray, FloatArray]:
    """Return ridge's coefficients and intercept on the loss's scale."""
    if not isinstance(loss, Logistic):
        return model.coefficients, model.intercept
    # f = 2p − 1 changes the log odds by 1 / (2·p·(1 − p))
    scale = min(1.0 / (2.0 * curvature), LARGEST_SCALE)
    coefficients, intercept = scale * model.coefficients, scale * model.intercept
    if model.n_targets == 1:
        return coefficients, intercept
    # softmax does not see a shift of all scores: theirs adds up to 0 at the minimum, and on the way to it
    return coefficients - coefficients.mean(axis=1, keepdims=True), intercept - intercept.mean()


def _loss_of_no_scores(loss: Loss, n_columns: int) -> float:
    """Return the loss of a row whose scores are 0, whatever its class."""
    targets = np.full((1, n_columns), -1.0)
    targets[0, 0] = 1.0
    return float(loss(np.zeros_like(targets), targets)[0][0])


# -- probabilities ---------------------------------------------------------------------------------


def calibrate(
    dataset: Dataset, model: RidgeModel, *, class_weight: FloatArray | None, seed: int
) -> ScoreCalibration | None:
    """Fit probabilities to the leave-one-out scores of a seeded sample of the training rows.

    O(n_components³ / 3), and O(n_components²) for each of up to 10,000 rows, in this process. Rows count by
    their full weights, those of their classes included, so that class weights move probabilities, and the
    decisions made by them. Of rows that weights repeat one is left out.

    `dataset`: with targets of −1 and +1, whose weights hold those of classes.
    `model`: ridge on this dataset, with its statistics.
    `class_weight`: float64 array of shape (n_classes,), or None. What the weights of each class's rows were
      multiplied by.
    `seed`: of the sample.
    Returns: None, with the reason in the log, where alpha is so small that Z'Z is singular.
    """
    X, targets, weights = sample_rows(dataset, seed, n_rows=CALIBRATION_ROWS)
    assert targets is not None
    weights = np.ones(len(targets)) if weights is None else weights
    factors = np.ones(len(targets)) if class_weight is None else class_weight[class_of(targets)]
    own = np.divide(weights, factors, out=np.zeros(len(targets)), where=factors > 0)
    repeated = model.summed.spec.frequency_weights
    try:
        alpha, fit_intercept = model.alpha, model.card["fit_intercept"]
        predictive = predictive_model(model.linear, model.summed, alpha=alpha, fit_intercept=fit_intercept)
    except SolveError as error:
        logger.warning("no probabilities: %s", error)
        return None
    rows = Rows(Block(0, 0, len(targets)), X, targets)
    with using_threads(available_cores()):
        scores = leave_one_out_scores(rows, predictive, factors if repeated else weights)
    return fit_calibration(scores, targets, weights, float(own.sum()) if repeated else None)


# -- the whole job ---------------------------------------------------------------------------------


def fit(
    dataset: Dataset,
    options: RidgeOptions,
    losses: LossOptions,
    *,
    factors: FloatArray | None = None,
    engine: Engine,
) -> tuple[RidgeModel, Solved]:
    """Train a classifier: ridge on targets of −1 and +1, and then probabilities or passes of another loss.

    `dataset`: with targets of −1 and +1, see `LabelledDataset`.
    `options`: of ridge on the targets. One alpha given is the loss's own. An alpha that is chosen is chosen
      for ridge: it is the squared hinge's too, and the logistic loss's times `logistic_curvature`, by which
      both have as many degrees of freedom, and at least 1/8.
    `factors`: float64 array of shape (n_classes,), or None. What the dataset multiplied the weights of each
      class's rows by.
    Returns `model`: its statistics are ridge's. Its card has under "classifier" the loss, its calibration
      (None where it has no probabilities), how its minimum was reached (None for "squared") and ridge's
      alpha.
    Returns `solved`: of ridge.
    """
    loss = losses.loss
    # classes are compared by their scores, which one penalty keeps alike
    trained = automatic.fit(dataset, replace(options, alpha_per_target=False, solver="direct"), engine=engine)
    model, solved, ridge_alpha = trained.model, trained.best, trained.model.alpha
    assert isinstance(ridge_alpha, float)
    ridge = calibrate(dataset, model, class_weight=factors, seed=options.seed)
    if trained.parts is not None:
        estimate = estimate_by_folds(dataset, trained, ridge, engine=engine)
        model = model.with_card(estimate={"loss": SQUARED, **estimate})
    if loss == SQUARED:
        return _described(model, loss, ridge, None, ridge_alpha=ridge_alpha), solved
    logistic = loss == Logistic.name
    curvature = HINGE_CURVATURE
    alpha = ridge_alpha
    if logistic:
        curvature = logistic_curvature(solved.solution, model.summed.sum_of_weights)
        given = is_one_alpha(options.alpha)
        alpha *= 1.0 if given else max(curvature, SMALLEST_ALPHA_FACTOR)
    minimum = fit_loss(dataset, model, losses, alpha=alpha, curvature=curvature, engine=engine)
    own = ScoreCalibration(1.0, (0.0,) * model.n_targets) if logistic else None
    model = replace(model, coefficients=minimum.coefficients, intercept=minimum.intercept, alpha=alpha)
    return _described(model, loss, own, minimum, ridge_alpha=ridge_alpha), solved


def fit_labels(
    source: Dataset, labels: Column, options: RidgeOptions, losses: LossOptions, *, engine: Engine
) -> tuple[RidgeModel, Solved]:
    """Train a classifier on labels of any type: a pass that counts them, and then `fit`.

    `source`: the rows; targets of its own are not used.
    `labels`: the label of each row.
    Returns `model`: with its classes on its card; see `read_classes`.
    Returns `solved`: of ridge.
    Raises DataError if there are not two classes with weight.
    """
    counts = count_labels(labels, source=source, engine=engine)
    factors = class_weights(losses.class_weight, counts)
    dataset = LabelledDataset(source, labels, counts.classes, factors)
    _check_weighted(counts, factors)
    model, solved = fit(dataset, options, losses, factors=factors, engine=engine)
    told = {"tol": losses.tol, "max_iter": losses.max_iter}
    return with_classes(model, counts.classes, losses.class_weight, **told), solved


def _check_weighted(counts: LabelCounts, factors: NDArray[np.float64] | None) -> None:
    weight = counts.weight.value() * (1.0 if factors is None else factors)
    if (weight > 0).sum() < 2:
        counted = counts.classes[weight > 0].tolist()
        raise DataError(
            f"rows of {len(counted)} class have a weight above 0 ({counted}); a classifier needs at least 2 "
            "classes"
        )


def _described(
    model: RidgeModel,
    loss: str,
    calibration: ScoreCalibration | None,
    minimum: Minimum | None,
    *,
    ridge_alpha: float,
) -> RidgeModel:
    facts = None
    if minimum is not None:
        facts = {
            "objective": minimum.objective,
            "excess": minimum.excess,
            "n_iterations": minimum.n_iterations,
            "n_passes": minimum.n_evaluations,
            "converged": minimum.converged,
            "reference": minimum.reference,
        }
    own = None if calibration is None else asdict(calibration)
    return model.with_card(
        classifier={"loss": loss, "calibration": own, "minimum": facts, "ridge_alpha": ridge_alpha}
    )


# -- errors of rows that were held out -------------------------------------------------------------


def estimate_by_folds(
    dataset: Dataset, trained: Trained, calibration: ScoreCalibration | None, *, engine: Engine
) -> dict[str, Any]:
    """Estimate accuracy and log loss on new rows: each row is judged by ridge without its fold, in one pass.

    `dataset`: with targets of −1 and +1: the rows that were trained on.
    `trained`: with the statistics of its folds.
    `calibration`: of the model of all rows.
    Returns `estimate`: `by`, "cv"; `accuracy` and `log_loss`, in nats, with their `…_standard_error`, by how
      far the splits differ. None where there is one split, or no probabilities.
    """
    assert trained.parts is not None
    feature_map, solved = trained.compared[trained.best_index]
    fit_intercept = trained.model.card["fit_intercept"]
    state = fold_models(trained.parts, feature_map, alpha=solved.solution.alpha, fit_intercept=fit_intercept)
    judge = partial(judge_held_out, calibration=calibration)
    found = inspection.sum_rows(dataset, judge, state, combine=add_each, engine=engine, label="hold out")
    weights = np.array([one.weights.value().sum() for one in found])
    figures: dict[str, list[Any]] = {
        "accuracy": [one.accuracy for one in found],
        "log_loss": [one.log_loss for one in found],
    }
    estimate: dict[str, Any] = {"by": "cv"}
    for name, values in figures.items():
        known = None not in values
        of_splits = np.array(values, np.float64) if known else np.full(len(found), np.nan)
        mean = float(np.average(of_splits, weights=weights))
        variance = np.average((of_splits - mean) ** 2, weights=weights) / max(1, len(found) - 1)
        estimate[name] = mean if known else None
        estimate[f"{name}_standard_error"] = float(np.sqrt(variance)) if known and len(found) > 1 else None
    return estimate


def judge_held_out(
    rows: Rows, state: FoldModels, *, calibration: ScoreCalibration | None
) -> tuple[Confusion, ...]:
    """Count one block of rows, whose targets are −1 and +1, apart for each split that holds rows out."""
    scores, split, counted = predict_held_out(rows, state)
    assert rows.y is not None
    n_classes = max(2, rows.y.shape[1])
    weight = None if rows.sample_weight is None else rows.sample_weight[counted]
    actual, predicted = class_of(rows.y[counted]), decide(scores, calibration)
    logs = None if calibration is None else calibration.log_probabilities(scores)

    def of_split(index: int) -> Confusion:
        own = split[counted] == index
        return count_classes(
            actual[own],
            predicted[own],
            n_classes,
            sample_weight=None if weight is None else weight[own],
            log_probabilities=None if logs is None else logs[own],
        )

    return tuple(of_split(index) for index in range(len(state.validated)))


# -- what a stored model says of its classes -------------------------------------------------------


def with_classes(model: RidgeModel, classes: NDArray[Any], class_weight: Any, **facts: Any) -> RidgeModel:
    """Return a classifier's model with its labels on its card, as JSON has them."""
    weight = class_weight
    if isinstance(weight, Mapping):
        weight = [float(weight.get(label, 1.0)) for label in classes.tolist()]
    about = {"classes": classes.tolist(), "dtype": classes.dtype.str, "class_weight": weight, **facts}
    return model.with_card(classifier={**model.card["classifier"], **about})
