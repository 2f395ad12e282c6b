"""Passes of a trained model over a dataset: evaluate it, predict, write predictions to Zarr.

Estimators, the command line and the flows call these, as they call `ridge.fit.fit` to train.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, overload

import numpy as np
import scipy
from numpy.typing import DTypeLike, NDArray

from rff_dist.data.blocks import BlockTask, Dataset, Rows
from rff_dist.data.checks import check_finite
from rff_dist.data.row_parts import RowParts
from rff_dist.engines.kept import name_pass
from rff_dist.engines.progress import Announcer, PassResumed
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError
from rff_dist.features.feature_map import FeatureMap
from rff_dist.ridge.conformal import RootDeviations, check_coverage
from rff_dist.ridge.evaluation import Errors, evaluate_rows
from rff_dist.ridge.linear_model import LinearModel, predict_rows
from rff_dist.ridge.model import RidgeModel
from rff_dist.ridge.plan import check_matrix_pass
from rff_dist.ridge.uncertainty import Calibration, PredictiveModel, calibrate_rows, predict_rows_with_std
from rff_dist.statistics.inspection import blocks_of, sum_rows
from rff_dist.storage.columns import ID, ids_of
from rff_dist.storage.outputs import Layout, Output, create_output
from rff_dist.typing import FloatArray

#: Seconds of writing, above which the rows that a stopped job wrote are kept for one that does the same.
WORTH_KEEPING_S = 5.0


@overload
def evaluate(
    dataset: Dataset, model: RidgeModel, *, engine: Engine, std: Literal[False] = False
) -> Errors: ...


@overload
def evaluate(dataset: Dataset, model: RidgeModel, *, engine: Engine, std: bool) -> Errors | Calibration: ...


def evaluate(
    dataset: Dataset, model: RidgeModel, *, engine: Engine, std: bool = False
) -> Errors | Calibration:
    """Measure a model's errors on a dataset in one pass, O(n_samples · n_components · n_features).

    With `std` its standard deviations are judged too, at the cost of `predict_with_std_in_memory`.

    Raises DataError if the dataset does not fit the model, or has no targets; StatisticsError, SolveError,
      PlanError with `std`, as `predict_with_std_in_memory`.
    """
    check_dataset(dataset, model)
    if dataset.n_targets != model.n_targets:
        raise DataError(f"y has {dataset.n_targets} targets, but the model predicts {model.n_targets}")
    if not std:
        return sum_rows(dataset, evaluate_rows, model.linear, engine=engine, label="evaluate")
    state = _predictive_state(dataset, model, engine=engine)
    return sum_rows(dataset, calibrate_rows, state, engine=engine, label="evaluate")


def predict(
    dataset: Dataset,
    model: RidgeModel,
    url: str | os.PathLike[str],
    *,
    engine: Engine,
    std: bool = False,
    coverage: float | None = None,
    column_names: Sequence[str] | None = None,
    overwrite: bool = False,
) -> int:
    """Write predictions of every row to a new Zarr group, as the array `predictions`.

    `std` adds the array `standard_deviations`, at the cost of `predict_with_std_in_memory`. `coverage` adds
    the arrays `lower` and `upper`, the ends of intervals that contain new observations with that probability:
    conformal intervals if the model has held-out scores, else normal ones, at the cost of `std`.

    A block that is written twice holds the same numbers. The output appears at `url` when it is complete.

    Returns `n_samples`: rows written.
    Raises DataError if the dataset does not fit the model; StorageError if the output exists and `overwrite`
      is False, or cannot be written; StatisticsError, SolveError, PlanError with `std`, as
      `predict_with_std_in_memory`; InvalidParameterError if `coverage` is not in (0, 1).
    """
    state = _predicting(dataset, model, std=std, coverage=coverage, engine=engine)
    output = write_output(
        dataset,
        _predict_arrays,
        state,
        url,
        engine=engine,
        label="predict",
        attributes={"model_digest": model.digest()},
        n_columns=None if model.one_dimensional else model.n_targets,
        array=state.arrays if len(state.arrays) > 1 else state.arrays[0],
        column_names=column_names,
        overwrite=overwrite,
    )
    return output.n_samples


def write_output[S](
    dataset: Dataset,
    compute: Callable[[Rows, S], NDArray[Any]],
    state: S,
    url: str | os.PathLike[str],
    *,
    engine: Engine,
    label: str,
    attributes: Mapping[str, Any] | None,
    overwrite: bool = False,
    **options: Any,
) -> Output:
    """Apply a function to each block's rows, and write the results to a new output.

    If the rows have ids, these are written beside them as `id`. After an error nothing is left of the output,
    unless the engine has a ledger: the rows that were written are then kept for a job that does the same.

    `attributes`: with these the output is finished and appears at `url`. With None the caller finishes or
      discards it.
    `options`: those of `Layout`.
    """
    blocks = blocks_of(dataset)
    layout = Layout(dataset.n_samples, blocks[0].n_samples, **options)  # no two tasks write to one chunk
    inputs = [] if dataset.url is None else [dataset.url]
    task, place = BlockTask(dataset, compute), None
    if engine.ledger is not None and (name := name_pass(task, blocks, (state, layout))) is not None:
        place = engine.ledger.output(name)
    output = create_output(url, layout, inputs=inputs, overwrite=overwrite, place=place)
    begun, n_kept = time.perf_counter(), 0
    try:
        missing = [block for block in blocks if not output.holds(block)]
        if n_kept := dataset.n_samples - sum(block.n_samples for block in missing):
            Announcer(engine.observers)(PassResumed(label, n_kept, dataset.n_samples))
        if missing:
            engine.map_write(task, missing, state, output, label=label)
        dataset.check_unchanged()
        if (ids := ids_of(dataset)) is not None:
            output.add(ID, ids)
        if attributes is not None:
            output.finish(attributes)
    except BaseException:  # interrupts too
        if place is None or (not n_kept and time.perf_counter() - begun < WORTH_KEEPING_S):
            output.discard()
        raise
    return output


def rows_in_memory[S](
    dataset: Dataset, compute: Callable[[Rows, S], NDArray[Any]], state: S, *, engine: Engine, label: str
) -> NDArray[Any]:
    """Apply a function to each block's rows, and return the results as one array; see `write_output`."""
    return sum_rows(dataset, partial(_part_of, compute=compute), state, engine=engine, label=label).joined()


def _part_of[S](rows: Rows, state: S, *, compute: Callable[[Rows, S], NDArray[Any]]) -> RowParts:
    return RowParts.of(rows.block, compute(rows, state))


@dataclass(frozen=True, slots=True, eq=False)
class _Predicting:
    """The state of a predicting pass.

    `model`: one with standard deviations if these, or intervals by them, are wanted.
    `arrays`: names of the arrays to make, `predictions` first.
    `one_dimensional`: whether arrays drop the target axis.
    `deviations`: half width of normal intervals in standard deviations; 0 if none are wanted.
    `half_width`: float64 array of shape (n_targets,), or None. Half width of conformal intervals; the half
      width over s(x) if the model's scores are normalised.
    `root_deviations`: predicts √s for normalised scores.
    """

    model: LinearModel | PredictiveModel
    arrays: list[str]
    one_dimensional: bool
    deviations: float = 0.0
    half_width: FloatArray | None = None
    root_deviations: RootDeviations | None = None


def _predicting(
    dataset: Dataset, model: RidgeModel, *, std: bool = False, coverage: float | None = None, engine: Engine
) -> _Predicting:
    check_dataset(dataset, model)
    intervals = ["lower", "upper"] if coverage is not None else []
    arrays = ["predictions", *(["standard_deviations"] if std else []), *intervals]
    found = _Predicting(model.linear, arrays, model.one_dimensional)
    if coverage is not None:
        check_coverage(coverage)
        model.refuse_classifier("intervals")
        if model.held_out is None:
            found = replace(found, deviations=float(scipy.special.ndtri((1.0 + coverage) / 2.0)))
        else:
            half_width = model.held_out.quantile(coverage)
            found = replace(found, half_width=half_width, root_deviations=model.root_deviations)
    if std or found.deviations > 0:
        found = replace(found, model=_predictive_state(dataset, model, engine=engine))
    return found


def _predict_arrays(rows: Rows, state: _Predicting) -> FloatArray:
    """Return the wanted arrays of a block, stacked along the last axis if there are several."""
    if isinstance(state.model, PredictiveModel):
        mean, deviation = predict_rows_with_std(rows, state.model)
    else:
        mean, deviation = predict_rows(rows, state.model), np.zeros(1)
    half_width = deviation * state.deviations if state.half_width is None else state.half_width
    if state.root_deviations is not None:
        half_width = half_width * state.root_deviations.of_rows(rows)
    found = {"predictions": mean, "standard_deviations": deviation}
    found |= {"lower": mean - half_width, "upper": mean + half_width}
    made = [found[name][:, 0] if state.one_dimensional else found[name] for name in state.arrays]
    return made[0] if len(made) == 1 else np.stack(made, axis=-1)


def predict_intervals_in_memory(
    dataset: Dataset, model: RidgeModel, *, coverage: float, engine: Engine
) -> tuple[FloatArray, FloatArray]:
    """Return the lower and upper ends of intervals, in the shape of `predict_in_memory`; see `predict`.

    Raises DataError if the dataset does not fit the model; InvalidParameterError if `coverage` is not in (0,
      1); StatisticsError, SolveError without held-out scores, as `predict_with_std_in_memory`.
    """
    ends = _arrays_in_memory(dataset, model, coverage=coverage, engine=engine)
    return ends[..., 1], ends[..., 2]


def predict_in_memory(dataset: Dataset, model: RidgeModel, *, engine: Engine) -> FloatArray:
    """Return predictions of shape (n_samples,) or (n_samples, n_targets) as one array."""
    return _arrays_in_memory(dataset, model, engine=engine)


def _arrays_in_memory(dataset: Dataset, model: RidgeModel, *, engine: Engine, **wanted: Any) -> NDArray[Any]:
    state = _predicting(dataset, model, **wanted, engine=engine)
    return rows_in_memory(dataset, _predict_arrays, state, engine=engine, label="predict")


def predict_with_std_in_memory(
    dataset: Dataset, model: RidgeModel, *, engine: Engine
) -> tuple[FloatArray, FloatArray]:
    """Return predictions and their standard deviations, in the shape of `predict_in_memory`.

    O(n_samples · n_components²), and O(n_components³ / 3) at a model's first call; see
    `rff_dist.ridge.uncertainty` for the formula. The model and each worker hold a triangle of
    8 · n_components² bytes.

    Raises DataError if the dataset does not fit the model; StatisticsError if the model has no statistics;
      SolveError if the statistics do not determine a variance; PlanError if memory does not hold the
      triangle.
    """
    found = _arrays_in_memory(dataset, model, std=True, engine=engine)
    return found[..., 0], found[..., 1]


def _predictive_state(dataset: Dataset, model: RidgeModel, *, engine: Engine) -> PredictiveModel:
    check_matrix_pass(
        dataset,
        model.feature_map,
        engine=engine,
        n_targets=model.n_targets,
        n_matrices=len(np.unique(model.alpha)),
    )
    return model.predictive


class ModelOfColumns(Protocol):
    """A model that knows the columns that it was trained on: a regression, a classifier or clusters."""

    @property
    def feature_map(self) -> FeatureMap: ...

    @property
    def card(self) -> Mapping[str, Any]: ...


def check_dataset(dataset: Dataset, model: ModelOfColumns) -> None:
    """Check that a dataset has the columns that a model was trained on.

    Raises DataError if it has another number of columns, or other names.
    """
    n_features = model.feature_map.n_features
    if dataset.n_features != n_features:
        raise DataError(
            f"X has {dataset.n_features} features, but the model is expecting {n_features} features"
        )
    expected = model.card.get("feature_names")
    names = dataset.feature_names
    if expected and names and list(names) != list(expected):
        raise DataError(
            f"the columns of X are {list(names)}, but the model was trained on {list(expected)}; "
            "give the same columns in the same order"
        )


def transform_in_memory(dataset: Dataset, feature_map: FeatureMap, *, dtype: DTypeLike) -> NDArray[Any]:
    """Return Z of shape (n_samples, n_components) as one array."""
    Z = np.empty((dataset.n_samples, feature_map.n_components), dtype)
    for block in blocks_of(dataset):
        X = dataset.read(block).X
        check_finite(Rows(block, X), feature_map.prepare(X))
        Z[block.start : block.stop] = feature_map.transform(X, dtype=dtype)
    return Z
