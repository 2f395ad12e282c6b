"""Train a classifier: ridge on targets of −1 and +1, then passes of another loss.

Labelled rows and a loss go in; a model comes out. Its card, the facts stored with it,
has the classes and the calibration that turns scores into probabilities. Ridge always
comes first: it chooses alpha, its solution is where the other losses start, and its
Gram is their preconditioner. Each evaluation of a loss is one pass, which makes all
features once.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rff_dist.checks import check_count, check_name, is_number
from rff_dist.classify import platt_scaling, predict
from rff_dist.classify.calibration import calibrate
from rff_dist.classify.losses import LOSSES, Logistic, Loss, sum_loss
from rff_dist.data import blocks, columns, labelled
from rff_dist.engines import events, protocol
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.fields import values_of
from rff_dist.fitting import parameters, predicting
from rff_dist.fitting.options import RidgeOptions, is_one_alpha
from rff_dist.numerics import minimize
from rff_dist.numerics.solution import RidgeSolution
from rff_dist.ridge import fit as ridge_fit
from rff_dist.ridge import models
from rff_dist.ridge.choices import Choices
from rff_dist.ridge.fit_result import FitResult
from rff_dist.ridge.fold_models import FoldModels, predict_held_out
from rff_dist.statistics import (
    accumulate,
    gram_products,
    label_counts,
    row_passes,
    specs,
)
from rff_dist.typing import AnyArray, Do, FloatArray, Summary, call_step, frozen

logger = logging.getLogger(__name__)


LOSS_NAMES = (predict.SQUARED, *LOSSES)
# Limits for the mean second derivative of the logistic loss: its upper bound, and a
# lower limit, since separable classes would give less.
LARGEST_CURVATURE = 0.25
SMALLEST_CURVATURE = 1 / 64
# The logistic loss takes at least this share of ridge's alpha. With less, rare or
# separable classes were fitted worse on 3 of 5 data sets (log loss of new rows 0.225
# against 0.218 with it, 0.552 against 0.548, 0.147 against 0.140), and better on one
# (0.074 against 0.077).
SMALLEST_ALPHA_FACTOR = 1 / 8
# The logistic loss starts from ridge's scores times at most this. Slopes of calibrated
# scores were 1.8 to 4.3 on five data sets. On the digits the curvature alone would
# start from 32 times the scores, which took 72 passes, where this start took 32.
LARGEST_SCALE = 4.0
# the squared hinge's second derivative is 2 within the margin, for about half the rows
HINGE_CURVATURE = 1.0


@dataclass(frozen=True, eq=False)
class LossOptions:
    """Which loss a classifier minimises, and when it stops.

    Raises InvalidParameterError if the loss is unknown, or a number is out of range.
    """

    #: "squared", "logistic" or "squared_hinge".
    loss: str = predict.SQUARED
    #: Factors on the weights of each class's rows, or "balanced"; see `class_weights`.
    class_weight: str | Mapping[Any, float] | None = None
    #: See `minimize_loss`; not used for "squared".
    tol: float = 1e-6
    #: Largest number of steps; there are a few more passes than steps.
    max_iter: int = 100

    def __post_init__(self) -> None:
        check_name(self.loss, LOSS_NAMES, "loss")
        if not is_number(self.tol) or not 0 < self.tol < 1:
            raise InvalidParameterError(
                f"`tol` is {self.tol!r}; expected a number in (0, 1)"
            )
        check_count(self.max_iter, "max_iter")


# -- losses
# --------------------------------------------------------------------------------------


def logistic_curvature(solution: RidgeSolution, sum_of_weights: float) -> float:
    """Estimate the mean of p·(1 − p) from ridge on targets of −1 and +1.

    Ridge estimates f = 2p − 1, and targets vary about it with variance 4·p·(1 − p). So
    the mean is a quarter of the noise variance with the largest evidence,
    (rss + alpha·‖w‖²) / Σw, averaged over columns. It is limited to [1/64, 1/4].
    """
    squared_norms = np.square(solution.coefficients).sum(axis=0)
    residual = solution.residual_sum_of_squares + solution.alpha * squared_norms
    mean = float(residual.mean()) / (4.0 * sum_of_weights)
    return min(LARGEST_CURVATURE, max(SMALLEST_CURVATURE, mean))


def fit_loss(
    dataset: blocks.Dataset,
    model: models.RidgeModel,
    loss_options: LossOptions,
    *,
    alpha: float,
    curvature: float,
    engine: protocol.Engine,
) -> minimize.Minimum:
    """Minimise Σ w·ℓ(f) + penalty·‖W‖² from ridge's solution, in 10 to 30 passes.

    The penalty is `loss.penalty_factor` · alpha. The bits are the same on every engine,
    on one type of machine. The client needs a factor of the Gram, of 8 · n_components²
    bytes.

    Raises DataError if values are not finite, or targets are not −1 and +1.
    """
    statistics = model.summed
    loss = LOSSES[loss_options.loss]
    add_up = partial(sum_loss, loss=loss)
    equations = statistics.normal_equations(fit_intercept=model.fit_intercept)

    def evaluate(
        coefficients: FloatArray, intercept: FloatArray
    ) -> tuple[float, FloatArray, FloatArray]:
        linear = predicting.LinearModel(model.feature_map, coefficients, intercept)
        sums = row_passes.sum_rows(
            dataset, add_up, linear, engine=engine, label=loss.name
        )
        specs.check_counted(sums.n_samples, dataset.n_samples)
        gradient = gram_products.sums_of_z(sums.gradient.value(), model.feature_map)
        return float(sums.loss.value()), gradient, sums.intercept_gradient.value()

    engine.tell(events.Rounds(loss.name, loss_options.max_iter))
    coefficients, intercept = _start(model, loss, curvature)
    # With scores of 0 all classes have the same loss, so one row of the first class
    # stands for all rows.
    one_row = np.full((1, model.n_targets), -1.0)
    one_row[0, 0] = 1.0
    losses_of_no_scores, _ = loss(np.zeros_like(one_row), one_row)
    problem = minimize.PenalizedLoss(
        evaluate,
        equations,
        loss.penalty_factor * alpha,
        curvature,
        reference=statistics.sum_of_weights * float(losses_of_no_scores[0]),
    )
    return minimize.minimize_loss(
        problem,
        coefficients,
        intercept,
        tol=loss_options.tol,
        max_iter=loss_options.max_iter,
    )


def _start(
    model: models.RidgeModel, loss: Loss, curvature: float
) -> tuple[FloatArray, FloatArray]:
    """Return ridge's coefficients and intercept, scaled for the loss."""
    if not isinstance(loss, Logistic):
        return model.coefficients, model.intercept
    # a change of f = 2p − 1 changes the log odds by 1 / (2·p·(1 − p)) times as much
    scale = min(1.0 / (2.0 * curvature), LARGEST_SCALE)
    coefficients = scale * model.coefficients
    intercept = scale * model.intercept
    if model.n_targets == 1:
        return coefficients, intercept
    # Softmax does not change if all scores of a row shift. They add up to 0 at the
    # minimum, and on the way to it if they do at the start.
    return (
        coefficients - coefficients.mean(axis=1, keepdims=True),
        intercept - intercept.mean(),
    )


# -- the whole job
# ---------------------------------------------------------------------------------


@frozen(eq=False)
class FittedModel:
    """A trained model, and ridge's models without each fold.

    The model is a classifier if `fit` here made it, and a regression if the job of a
    regression did.
    """

    #: The result of ridge's fit. Its `model` is the classifier, if there is one, not
    #: ridge's. A classifier's card has under "classifier" the classes, the loss, the
    #: calibration (None without probabilities), how the minimum was reached (None for
    #: "squared") and ridge's alpha.
    trained: FitResult
    #: None if folds were not summed separately.
    folds: FoldModels | None = None
    #: Turns ridge's scores into probabilities of classes, also if the model minimises
    #: another loss; None for a regression, or if there are no probabilities.
    ridge_calibration: platt_scaling.ScoreCalibration | None = None

    @property
    def model(self) -> models.RidgeModel:
        return self.trained.model


def label_rows(
    source: blocks.Dataset,
    labels: columns.Column,
    ridge_options: RidgeOptions,
    loss_options: LossOptions,
    *,
    classes: AnyArray | None = None,
    whole_weights_repeat: bool = False,
    engine: protocol.Engine,
) -> tuple[labelled.LabelledDataset, RidgeOptions]:
    """Count labels of any type in a pass; return rows with targets of −1 and +1.

    The second result are ridge's options for these rows. The source's own targets are
    ignored. `classes` are all labels, sorted, if some may have no rows yet; by default
    the labels of the rows. With `whole_weights_repeat`, weights that are all whole
    numbers repeat their rows, whatever the options say; other weights are precisions.

    Raises DataError if fewer than two classes have rows with a weight above 0.
    """
    counts = label_counts.count_labels(labels, source=source, engine=engine)
    if classes is not None:
        counts = counts.among(classes)
    if whole_weights_repeat:
        kind = "frequency" if counts.whole else "precision"
        ridge_options = replace(ridge_options, sample_weight_kind=kind)
    factors = labelled.class_weights(loss_options.class_weight, counts)
    dataset = labelled.LabelledDataset(source, labels, counts.classes, factors)
    _check_weighted(counts, factors)
    # One alpha for all classes keeps their scores comparable, since the class of the
    # largest score is predicted. The direct solver leaves the Gram, which calibration
    # and the other losses need.
    ridge_options = replace(ridge_options, alpha_per_target=False, solver="direct")
    return dataset, ridge_options


def fit(
    dataset: labelled.LabelledDataset,
    ridge_options: RidgeOptions,
    loss_options: LossOptions,
    *,
    choices: Choices | None = None,
    engine: protocol.Engine,
    do: Do = call_step,
) -> FittedModel:
    """Train ridge on targets of −1 and +1; then probabilities, or another loss.

    A single given alpha is the penalty of the loss. Otherwise alpha is chosen for
    ridge. The squared hinge takes the same alpha. The logistic loss takes it times
    `logistic_curvature`, which gives both as many degrees of freedom, or times 1/8 if
    that is more. `label_rows` returns the dataset and ridge's options; `ridge.fit.fit`
    explains `choices` and `do`.
    """
    # draws and broadcasts W and b, accumulates Z'Z and Z'y, and solves
    trained = ridge_fit.fit(
        dataset, ridge_options, choices=choices, engine=engine, do=do
    )
    model = trained.model
    alpha = model.alpha
    assert isinstance(alpha, float)
    ridge_calibration = do(
        "calibrate",
        calibrate,
        dataset,
        model,
        class_weight=dataset.class_weight,
        seed=ridge_options.seed,
    )
    folds = trained.fold_models
    if folds is not None:
        estimate = do(
            "hold out",
            estimate_by_folds,
            dataset,
            folds,
            ridge_calibration,
            engine=engine,
        )
        model = model.with_card(estimate={"loss": predict.SQUARED, **estimate})
    if loss_options.loss == predict.SQUARED:
        model = _with_card(model, dataset, loss_options, ridge_calibration, None)
        return FittedModel(replace(trained, model=model), folds, ridge_calibration)

    curvature = HINGE_CURVATURE
    calibration = None
    if loss_options.loss == Logistic.name:
        curvature = logistic_curvature(
            trained.solved.solution, model.summed.sum_of_weights
        )
        # a given alpha stays; a chosen one was chosen for ridge
        if not is_one_alpha(ridge_options.alpha):
            alpha *= max(curvature, SMALLEST_ALPHA_FACTOR)
        calibration = platt_scaling.ScoreCalibration(1.0, (0.0,) * model.n_targets)
    minimum = do(
        loss_options.loss,
        fit_loss,
        dataset,
        model,
        loss_options,
        alpha=alpha,
        curvature=curvature,
        engine=engine,
    )
    model = _with_card(model, dataset, loss_options, calibration, minimum)
    model = replace(
        model,
        coefficients=minimum.coefficients,
        intercept=minimum.intercept,
        alpha=alpha,
    )
    return FittedModel(replace(trained, model=model), folds, ridge_calibration)


def _check_weighted(
    counts: labelled.LabelCounts, factors: NDArray[np.float64] | None
) -> None:
    weight = counts.weight.value() * (1.0 if factors is None else factors)
    if (weight > 0).sum() < 2:
        classes = counts.classes[weight > 0].tolist()
        raise DataError(
            f"rows of {len(classes)} class have a weight above 0 ({classes}); a"
            " classifier needs at least 2 classes"
        )


def _with_card(
    model: models.RidgeModel,
    dataset: labelled.LabelledDataset,
    loss_options: LossOptions,
    calibration: platt_scaling.ScoreCalibration | None,
    minimum: minimize.Minimum | None,
) -> models.RidgeModel:
    """Return the model; its card says which labels it has, and how it was fitted."""
    classes = dataset.classes
    weight = cast("Any", loss_options.class_weight)
    facts = None
    if minimum is not None:
        facts = {
            **values_of(minimum, "objective", "excess", "n_iterations"),
            "n_passes": minimum.n_evaluations,
            **values_of(minimum, "converged", "reference"),
        }
    if isinstance(weight, Mapping):
        weight = [float(weight.get(label, 1.0)) for label in classes.tolist()]
    return model.with_card(
        parameters={
            **model.card[parameters.PARAMETERS],
            **parameters.to_card(vars(loss_options)),
        },
        classifier={
            "loss": loss_options.loss,
            "calibration": None if calibration is None else asdict(calibration),
            "minimum": facts,
            "ridge_alpha": model.alpha,
            "classes": classes.tolist(),
            "dtype": classes.dtype.str,
            "class_weight": weight,
        },
    )


# -- errors by cross-validation
# --------------------------------------------------------------------


def estimate_by_folds(
    dataset: blocks.Dataset,
    folds: FoldModels,
    calibration: platt_scaling.ScoreCalibration | None,
    *,
    engine: protocol.Engine,
) -> dict[str, Any]:
    """Estimate accuracy and log loss on new rows in one pass over the training rows.

    Ridge's model without a fold predicts the fold's rows, with the calibration of the
    model of all rows. Standard errors come from the differences between splits, and are
    None with one split. The log loss, in nats, is None without probabilities.
    """
    judge = partial(judge_held_out, calibration=calibration)
    confusions = row_passes.sum_rows(
        dataset,
        judge,
        folds,
        combine=accumulate.add_each,
        engine=engine,
        label="hold out",
    )
    weights = np.array([confusion.weights.value().sum() for confusion in confusions])
    estimate: Summary = {"by": "cv"}
    for name in ("accuracy", "log_loss"):
        of_splits = [getattr(confusion, name) for confusion in confusions]
        mean = None
        error = None
        if None not in of_splits:
            mean = float(np.average(of_splits, weights=weights))
            variance = np.average((np.array(of_splits) - mean) ** 2, weights=weights)
            if len(confusions) > 1:
                error = float(np.sqrt(variance / (len(confusions) - 1)))
        estimate[name] = mean
        estimate[f"{name}_standard_error"] = error
    return estimate


def judge_held_out(
    rows: blocks.Rows,
    state: FoldModels,
    *,
    calibration: platt_scaling.ScoreCalibration | None,
) -> tuple[predict.Confusion, ...]:
    """Count a block's rows, separately for each split that holds them out."""
    held_out = predict_held_out(rows, state)
    assert rows.y is not None
    is_counted = held_out.is_counted
    count = predict.counter(
        rows.y[is_counted],
        held_out.predictions,
        rows.weights[is_counted],
        calibration,
    )
    splits = held_out.splits[is_counted]
    return tuple(count(splits == index) for index in range(len(state.held_out_folds)))
