"""Passes of a trained model over a dataset: evaluate it, predict, write predictions to Zarr.

Estimators, the command line and the flows call these, as they call `ridge.fit.fit` to train.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy

from rff_dist.data.blocks import Dataset, Rows
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError
from rff_dist.fitting import evaluation, plan, predicting
from rff_dist.recipes import model_rows
from rff_dist.ridge import held_out, uncertainty
from rff_dist.ridge.models import RidgeModel
from rff_dist.statistics import inspection
from rff_dist.typing import AnyArray, AnyDType, FloatArray, PathLike, frozen

# Degrees of freedom over rows. Of real sets with 0.03 to 0.44 normal 95 % intervals contained 92 to 94 % of
# new rows, with 0.77 (airfoil) 83 % and with 0.94 (pendulum) 65 %; 8 fits of each of seven.
NARROW_ABOVE = 0.5


def evaluate(dataset: Dataset, model: RidgeModel, *, engine: Engine) -> evaluation.Errors:
    """Measure a model's errors on a dataset in one pass, O(n_samples · n_components · n_features).

    Raises as `evaluate_by_group`.
    """
    return evaluate_by_group(dataset, model, engine=engine).whole


def evaluate_by_group(
    dataset: Dataset, model: RidgeModel, *, engine: Engine
) -> evaluation.ByGroup[evaluation.Errors]:
    """Measure a model's errors as `evaluate`, and those of each group that the dataset has.

    Raises DataError if the dataset does not fit the model, or has no targets.
    """
    _check_targets(dataset, model)
    return inspection.sum_rows(
        dataset, evaluation.evaluate_rows, model.linear, engine=engine, label="evaluate"
    )


def calibrate(dataset: Dataset, model: RidgeModel, *, engine: Engine) -> uncertainty.Calibration:
    """Measure a model's errors as `evaluate`, and judge its standard deviations, at their cost.

    Raises DataError as `evaluate`; StatisticsError, SolveError, PlanError as `predict_in_memory` with `std`.
    """
    _check_targets(dataset, model)
    state = _predictive_state(dataset, model, engine=engine)
    return inspection.sum_rows(dataset, uncertainty.calibrate_rows, state, engine=engine, label="evaluate")


def _check_targets(dataset: Dataset, model: RidgeModel) -> None:
    model_rows.check_dataset(dataset, model)
    if dataset.n_targets != model.n_targets:
        raise DataError(f"y has {dataset.n_targets} targets, but the model predicts {model.n_targets}")


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
    """Write predictions of every row to a new Zarr group, as the array `predictions`.

    `std` adds the array `standard_deviations`, at the cost of `predict_in_memory`. `coverage` adds the
    arrays `lower` and `upper`, the ends of intervals that contain new observations with that probability:
    conformal intervals if the model has held-out scores, else normal ones, at the cost of `std`.

    A block that is written twice holds the same numbers. The output appears at `url` when it is complete.

    Returns `n_samples`: rows written.
    Raises DataError if the dataset does not fit the model; StorageError if the output exists and `overwrite`
      is False, or cannot be written; StatisticsError, SolveError, PlanError with `std`, as
      `predict_in_memory`; InvalidParameterError if `coverage` is not in (0, 1).
    """
    state = _predicting(dataset, model, std=std, coverage=coverage, engine=engine)
    layout = predicting.layout_of(dataset, dtype=state.dtype, column_names=column_names)
    facts = {"model_digest": model.digest()}
    output = predicting.write_output(
        dataset, _predict_arrays, state, layout, url, engine=engine, attributes=facts, overwrite=overwrite
    )
    return output.n_samples


@frozen(eq=False)
class _Predicting:
    """The state of a predicting pass.

    `model`: one with standard deviations if these, or intervals by them, are wanted.
    `dtype`: the arrays to make as fields, `predictions` first.
    `deviations`: half width of normal intervals in standard deviations; 0 if none are wanted.
    `half_width`: float64 array of shape (n_targets,), or None. Half width of conformal intervals; the half
      width over s(x) if the model's scores are normalised.
    `root_deviations`: predicts √s for normalised scores.
    """

    model: predicting.LinearModel | uncertainty.PredictiveModel
    dtype: AnyDType
    deviations: float = 0.0
    half_width: FloatArray | None = None
    root_deviations: held_out.RootDeviations | None = None


def _predicting(
    dataset: Dataset, model: RidgeModel, *, std: bool = False, coverage: float | None = None, engine: Engine
) -> _Predicting:
    model_rows.check_dataset(dataset, model)
    intervals = ["lower", "upper"] if coverage is not None else []
    arrays = ["predictions", *(["standard_deviations"] if std else []), *intervals]
    tail = () if model.one_dimensional else (model.n_targets,)
    state = _Predicting(model.linear, np.dtype([(name, np.float64, tail) for name in arrays]))
    if coverage is not None:
        held_out.check_coverage(coverage)
        model.refuse_classifier("intervals")
        if model.held_out is None:
            state = replace(state, deviations=float(scipy.special.ndtri((1.0 + coverage) / 2.0)))
            _warn_if_narrow(model)
        else:
            half_width = model.held_out.quantile(coverage)
            state = replace(state, half_width=half_width, root_deviations=model.root_deviations)
    if std or state.deviations > 0:
        state = replace(state, model=_predictive_state(dataset, model, engine=engine))
    return state


def _warn_if_narrow(model: RidgeModel) -> None:
    """Warn that normal intervals may be too narrow, if alpha was chosen with many degrees of freedom."""
    table, alpha = model.cross_validation, np.min(model.alpha)
    if table is None or alpha not in table.alphas:
        return
    leverage = table.mean_leverage(model.feature_map.n_components, alpha)
    if leverage > NARROW_ABOVE:
        warnings.warn(
            f"normal intervals may be too narrow: alpha was chosen with {leverage:.0%} as many degrees of "
            "freedom as rows; fit with conformal=True (rff-dist fit --conformal), which takes them from "
            "held-out errors",
            UserWarning,
            stacklevel=2,
        )


def _predict_arrays(rows: Rows, state: _Predicting) -> AnyArray:
    """Return the wanted arrays of a block as fields."""
    if isinstance(state.model, uncertainty.PredictiveModel):
        mean, deviation = uncertainty.predict_rows_with_std(rows, state.model)
    else:
        mean, deviation = predicting.predict_rows(rows, state.model), np.zeros(1)
    half_width = deviation * state.deviations if state.half_width is None else state.half_width
    if state.root_deviations is not None:
        half_width = half_width * state.root_deviations.of_rows(rows)
    values = {"predictions": mean, "standard_deviations": deviation}
    values |= {"lower": mean - half_width, "upper": mean + half_width}
    wanted = np.empty(len(mean), state.dtype)
    for name in state.dtype.names or ():
        wanted[name] = values[name].reshape(wanted[name].shape)
    return wanted


def predict_in_memory(
    dataset: Dataset, model: RidgeModel, *, std: bool = False, coverage: float | None = None, engine: Engine
) -> dict[str, FloatArray]:
    """Return the arrays that `predict` would write, by name: `predictions`, and what else is asked for.

    Each has shape (n_samples,) or (n_samples, n_targets). `std` takes O(n_samples · n_components²), and
    O(n_components³ / 3) at a model's first call; see `rff_dist.ridge.uncertainty` for the formula. The model
    and each worker then hold a triangle of 8 · n_components² bytes.

    Raises DataError if the dataset does not fit the model; InvalidParameterError if `coverage` is not in (0,
      1). With `std`, and with `coverage` without held-out scores: StatisticsError if the model has no
      statistics; SolveError if the statistics do not determine a variance; PlanError if memory does not hold
      the triangle.
    """
    state = _predicting(dataset, model, std=std, coverage=coverage, engine=engine)
    values = predicting.rows_in_memory(dataset, _predict_arrays, state, engine=engine, label="predict")
    return {name: values[name] for name in state.dtype.names or ()}


def _predictive_state(dataset: Dataset, model: RidgeModel, *, engine: Engine) -> uncertainty.PredictiveModel:
    n_targets, n_matrices = model.n_targets, len(np.unique(model.alpha))
    plan.check_matrix_pass(
        dataset, model.feature_map, engine=engine, n_targets=n_targets, n_matrices=n_matrices
    )
    return model.predictive
