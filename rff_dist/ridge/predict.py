"""Evaluate a trained ridge model, or predict with it, in one pass over a dataset.

A dataset and a model go in. Errors come out, or predictions of each row, with standard
deviations and intervals if wanted: as arrays in memory, or written to Zarr if rows do
not fit into memory. A pass runs on any engine, block by block.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy

from rff_dist.data.blocks import Dataset, Rows
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError, warn
from rff_dist.fitting import evaluation, matrix_pass, predicting
from rff_dist.numerics.exact_sums import ExactSum
from rff_dist.recipes import model_rows
from rff_dist.ridge import calibration, held_out, uncertainty
from rff_dist.ridge.models import RidgeModel
from rff_dist.statistics import row_passes
from rff_dist.typing import AnyArray, AnyDType, FloatArray, PathLike, frozen

# Degrees of freedom over rows, above which normal intervals get a warning. On seven
# real sets (8 fits of each) normal 95 % intervals contained 92 to 94 % of new rows with
# a ratio of 0.03 to 0.44, but 83 % with 0.77 (airfoil), and 65 % with 0.94 (pendulum).
NARROW_ABOVE = 0.5


def evaluate(
    dataset: Dataset, model: RidgeModel, *, engine: Engine
) -> evaluation.Errors:
    """Measure a model's errors in O(n_samples · n_components · n_features).

    Raises DataError as `evaluate_by_group`.
    """
    return evaluate_by_group(dataset, model, engine=engine).whole


def evaluate_by_group(
    dataset: Dataset, model: RidgeModel, *, engine: Engine
) -> evaluation.GroupErrors[evaluation.Errors]:
    """Measure a model's errors, and those of each group that the dataset has.

    Raises DataError if the dataset does not fit the model, or has no targets.
    """
    dataset = _rows_with_targets(dataset, model)
    return row_passes.sum_rows(
        dataset, evaluation.evaluate_rows, model.linear, engine=engine, label="evaluate"
    )


def calibrate(
    dataset: Dataset, model: RidgeModel, *, engine: Engine
) -> calibration.Calibration:
    """Measure a model's errors, and how well its standard deviations fit them.

    Raises DataError as `evaluate`; StatisticsError, SolveError, PlanError as
    `predict_in_memory` with `std`.
    """
    dataset = _rows_with_targets(dataset, model)
    state = _predictive_state(dataset, model, engine=engine)
    return row_passes.sum_rows(
        dataset, calibration.calibrate_rows, state, engine=engine, label="evaluate"
    )


def _rows_with_targets(dataset: Dataset, model: RidgeModel) -> Dataset:
    """Return the rows as the model takes them; DataError if targets are others."""
    dataset = model_rows.rows_for(dataset, model)
    if dataset.n_targets != model.n_targets:
        raise DataError(
            f"y has {dataset.n_targets} targets, but the model predicts"
            f" {model.n_targets}"
        )
    return dataset


def predict(
    dataset: Dataset,
    model: RidgeModel,
    url: PathLike,
    *,
    engine: Engine,
    std: bool = False,
    coverage: float | None = None,
    column_names: Sequence[str] | None = None,
    overwrite: bool = False,
) -> int:
    """Write predictions of every row to a new Zarr group, and return how many.

    The group has the array `predictions`. `std` adds `standard_deviations`, at the cost
    of `predict_in_memory`. `coverage` adds `lower` and `upper`, the ends of intervals
    that contain new observations with that probability. They use errors of held-out
    rows if the model has these. Otherwise they are normal ones, at the cost of `std`.

    A block that is written twice holds the same numbers. The output appears at `url`
    when it is complete.

    Raises DataError if the dataset does not fit the model; StorageError if the output
    exists and `overwrite` is False, or cannot be written; StatisticsError, SolveError,
    PlanError with `std`, as `predict_in_memory`; InvalidParameterError if `coverage` is
    not in (0, 1).
    """
    dataset = model_rows.rows_for(dataset, model)
    state = _plan_pass(dataset, model, std=std, coverage=coverage, engine=engine)
    layout = predicting.layout_of(dataset, dtype=state.dtype, column_names=column_names)
    facts = {"model_digest": model.digest()}
    output = predicting.write_output(
        dataset,
        _predict_arrays,
        state,
        layout,
        url,
        engine=engine,
        attributes=facts,
        overwrite=overwrite,
    )
    return output.n_samples


@frozen(eq=False)
class _PredictingPass:
    """The state of a predicting pass, sent to every worker."""

    #: A `PredictiveModel` if standard deviations, or intervals by them, are wanted.
    model: predicting.LinearModel | uncertainty.PredictiveModel
    #: The wanted arrays, as fields of a row; `predictions` first.
    dtype: AnyDType
    #: Half width of normal intervals in standard deviations; 0 if no intervals are
    #: wanted.
    n_deviations: float = 0.0
    #: Predicts s(x), the size of errors near a row; None for normal intervals.
    spread: held_out.SpreadModel | None = None
    #: Half width of intervals over s(x), shape (n_targets,).
    half_width: FloatArray | float = 0.0


def _plan_pass(
    dataset: Dataset,
    model: RidgeModel,
    *,
    std: bool = False,
    coverage: float | None,
    engine: Engine,
) -> _PredictingPass:
    """Check that the model can make the wanted arrays; return the workers' state."""
    names = ["predictions"]
    if std:
        names.append("standard_deviations")
    if coverage is not None:
        names += ["lower", "upper"]
    shape = () if model.one_dimensional else (model.n_targets,)
    dtype = np.dtype([(name, np.float64, shape) for name in names])
    state = _PredictingPass(model.linear, dtype)

    if coverage is not None:
        held_out.check_coverage(coverage)
        model.refuse_classifier("intervals")
        n_deviations = float(scipy.special.ndtri((1.0 + coverage) / 2.0))
        state = replace(state, n_deviations=n_deviations)
        if model.held_out is not None:
            half_width = model.held_out.quantile(coverage)
            state = replace(state, half_width=half_width, spread=model.spread)
        else:
            _warn_if_narrow(model)
    has_normal_intervals = coverage is not None and state.spread is None
    if std or has_normal_intervals:
        state = replace(state, model=_predictive_state(dataset, model, engine=engine))
    return state


def _warn_if_narrow(model: RidgeModel) -> None:
    """Warn of normal intervals if the model has many degrees of freedom."""
    table = model.cross_validation
    alpha = np.min(model.alpha)
    if table is None or alpha not in table.alphas:
        return
    leverage = table.mean_leverage(model.feature_map.n_components, alpha)
    if leverage > NARROW_ABOVE:
        warn(
            f"normal intervals may be too narrow: the model has {leverage:.0%}"
            " as many degrees of freedom as rows; fit again with folds (`cv`), so that"
            " intervals are made from held-out errors",
        )


def _predict_arrays(rows: Rows, state: _PredictingPass) -> AnyArray:
    """Return the wanted arrays of a block as fields."""
    values = {}
    half_width = np.zeros(())
    if isinstance(state.model, uncertainty.PredictiveModel):
        linear = state.model.linear
        mean, deviation = uncertainty.predict_rows_with_std(rows, state.model)
        values["standard_deviations"] = deviation
        half_width = deviation * state.n_deviations
    else:
        linear = state.model
        mean = predicting.predict_rows(rows, linear)
    if state.spread is not None:
        half_width = state.half_width * state.spread.of_rows(rows)
        deviation = np.sqrt(uncertainty.variance_of_unseen_levels(rows.X, linear))
        # Held-out rows had levels that other folds knew, so their errors do not show
        # how far an unseen level is from known ones.
        half_width = np.hypot(half_width, state.n_deviations * deviation)
    values["predictions"] = mean
    values["lower"] = mean - half_width
    values["upper"] = mean + half_width

    arrays = np.empty(len(mean), state.dtype)
    for name in state.dtype.names or ():
        arrays[name] = values[name].reshape(arrays[name].shape)
    return arrays


def predict_in_memory(
    dataset: Dataset,
    model: RidgeModel,
    *,
    std: bool = False,
    coverage: float | None = None,
    engine: Engine,
) -> dict[str, FloatArray]:
    """Return the arrays that `predict` would write, by name.

    Each has shape (n_samples,) or (n_samples, n_targets). `std` takes O(n_samples ·
    n_components²), and O(n_components³ / 3) at a model's first call; see
    `rff_dist.ridge.uncertainty` for the formula. The model and each worker then hold a
    triangle of 8 · n_components² bytes.

    Raises DataError if the dataset does not fit the model; InvalidParameterError if
    `coverage` is not in (0, 1). With `std`, and with `coverage` without held-out
    scores: StatisticsError if the model has no statistics; SolveError if the statistics
    do not determine a variance; PlanError if memory does not hold the triangle.
    """
    dataset = model_rows.rows_for(dataset, model)
    state = _plan_pass(dataset, model, std=std, coverage=coverage, engine=engine)
    values = predicting.rows_in_memory(
        dataset, _predict_arrays, state, engine=engine, label="predict"
    )
    return {name: values[name] for name in state.dtype.names or ()}


def share_inside(
    dataset: Dataset, model: RidgeModel, coverage: float, *, engine: Engine
) -> FloatArray:
    """Return the share of rows, by weight, inside the intervals that `predict` writes,
    per target.

    Raises as `evaluate`, and as `predict` with `coverage`.
    """
    dataset = _rows_with_targets(dataset, model)
    state = _plan_pass(dataset, model, coverage=coverage, engine=engine)
    sums = row_passes.sum_rows(
        dataset, _weights_inside, state, engine=engine, label="intervals"
    )
    *inside, total = sums.value()
    return np.asarray(inside / total)


def _weights_inside(rows: Rows, state: _PredictingPass) -> ExactSum:
    """Return the weight of a block's rows inside intervals, per target; last, of all
    rows.
    """
    y, weights = evaluation.evaluated_targets(rows)
    predicted = _predict_arrays(rows, state)
    y = y.reshape(predicted["lower"].shape)
    is_inside = (predicted["lower"] <= y) & (y <= predicted["upper"])
    return ExactSum.of(np.append(weights @ is_inside, weights.sum()))


def _predictive_state(
    dataset: Dataset, model: RidgeModel, *, engine: Engine
) -> uncertainty.PredictiveModel:
    matrix_pass.check_matrix_pass(
        dataset,
        model.feature_map,
        engine=engine,
        n_targets=model.n_targets,
        n_matrices=len(np.unique(model.alpha)),
    )
    return model.predictive
