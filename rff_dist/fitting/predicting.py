"""Predicting passes: f(x) = z(x)'·coefficients + intercept of each row, in memory or to Zarr."""

import time
from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from rff_dist.data.blocks import BlockTask, Dataset, RowParts, Rows
from rff_dist.data.grids import GridDataset
from rff_dist.engines import progress, resuming
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError
from rff_dist.features import maps
from rff_dist.numerics import machine
from rff_dist.statistics import inspection, specs
from rff_dist.storage import columns, grids, outputs
from rff_dist.text import short_repr
from rff_dist.typing import AnyArray, Facts, FloatArray, PathLike, frozen


@frozen(eq=False)
class LinearModel:
    """The state of a predicting pass: f(x) = z(x)'·coefficients + intercept.

    `feature_map`: z.
    `coefficients`: float64 array of shape (n_components, n_targets). Weights of Z's columns.
    `intercept`: float64 array of shape (n_targets,). Added to all rows.
    `raw_coefficients`: float64 array of shape (n_components, n_targets). The same weights for unnormalised
      features.
    """

    feature_map: maps.FeatureMap
    coefficients: FloatArray
    intercept: FloatArray
    raw_coefficients: FloatArray = field(init=False)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        # once, and sent to workers: a whitened map takes D³ operations, which each of them would repeat
        object.__setattr__(self, "raw_coefficients", self.feature_map.raw_coefficients(self.coefficients))


def predict_rows(rows: Rows, model: LinearModel) -> FloatArray:
    """Return predictions of shape (n_samples, n_targets), O(n_samples · n_components · n_features).

    Z is never held: each stripe of features is used and overwritten.

    Raises DataError if X has another number of columns, holds NaN or infinity, or is so large that features
      overflow.
    """
    feature_map = model.feature_map
    inputs = feature_map.inputs_of(replace(rows, y=None, sample_weight=None))
    weights = model.raw_coefficients.T
    stripes = feature_map.stripes
    predictions = np.empty((len(inputs), weights.shape[0]))
    height = min(specs.tile_rows(feature_map.n_components), max(1, len(inputs)))

    def predict(start: int) -> None:
        tile = inputs[start : start + height]
        stripe = np.empty((max(stop - first for first, stop in stripes), len(tile)))
        # stripes are added in their order, within one thread: the bits depend on D and the tile's rows alone
        total = np.zeros((weights.shape[0], len(tile)))
        for first, stop in stripes:
            with np.errstate(over="ignore", invalid="ignore"):  # reported below
                feature_map.fill(tile, stripe[: stop - first], first, stop)
                total += weights[:, first:stop] @ stripe[: stop - first]
        predictions[start : start + height] = total.T + model.intercept

    machine.share_out(predict, range(0, len(inputs), height))
    check_predictions(predictions, rows.block.start)
    return predictions


def check_predictions(values: FloatArray, first_row: int, *, what: str = "prediction") -> None:
    """Raise DataError if a prediction, or `what` it is called, is not finite."""
    if not np.isfinite(values).all():
        row = first_row + int(np.argwhere(~np.isfinite(values))[0, 0])
        raise DataError(
            f"the {what} of row {row:_} is not finite: its inputs times the frequencies, or the model's "
            "coefficients, overflow; standardise the inputs"
        )


#: Seconds of writing, above which the rows that a stopped job wrote are kept for one that does the same.
WORTH_KEEPING_S = 5.0


def layout_of(dataset: Dataset, **arrays: Any) -> outputs.Layout:
    """Return a layout of arrays with a chunk for each block of rows: no two tasks write to one chunk."""
    return outputs.Layout(dataset.n_samples, inspection.blocks_of(dataset)[0].n_samples, **arrays)


def write_output[S](
    dataset: Dataset,
    compute: Callable[[Rows, S], AnyArray],
    state: S,
    layout: outputs.Layout,
    url: PathLike,
    *,
    engine: Engine,
    label: str = "predict",
    attributes: Facts | None,
    overwrite: bool = False,
) -> outputs.StagedOutput:
    """Apply a function to each block's rows, and write the results to a new output.

    If the rows have ids, these are written next to them as `id`. After an error nothing is left of the
    output, unless the engine has a ledger: the rows that were written are then kept for a job that does the
    same. If the rows are cells of a grid, the results are variables on it.

    `layout`: by `layout_of`.
    `attributes`: with these the output is finished and appears at `url`. With None the caller finishes or
      discards it.
    """
    blocks = inspection.blocks_of(dataset)
    if isinstance(dataset, GridDataset):  # whole pieces
        blocks = inspection.blocks_of(dataset, max_rows=dataset.n_samples)
        compute = partial(_with_cells, compute=compute, layout=layout)
    task, place = BlockTask(dataset, compute), None
    if engine.ledger is not None and (name := resuming.name_pass(task, blocks, (state, layout))) is not None:
        place = engine.ledger.output(name)
    output: outputs.StagedOutput
    if isinstance(dataset, GridDataset):
        output = grids.create_grid_output(url, dataset, layout, overwrite=overwrite, place=place)
    else:
        inputs = [] if dataset.url is None else [dataset.url]
        output = outputs.create_output(url, layout, inputs=inputs, overwrite=overwrite, place=place)
    begun, n_kept = time.perf_counter(), 0
    try:
        missing = [block for block in blocks if not output.holds(block)]
        if n_kept := dataset.n_samples - sum(block.n_samples for block in missing):
            progress.Announcer(engine.observers)(progress.PassResumed(label, n_kept, dataset.n_samples))
        if missing:
            engine.map_write(task, missing, state, output, label=label)
        dataset.check_unchanged()
        if isinstance(output, outputs.Output) and (ids := columns.ids_of(dataset)) is not None:
            output.add(columns.ID, ids)
        if attributes is not None:
            output.finish(attributes)
    # rows that took long to write stay in the ledger, for the next run of the same job
    except BaseException:  # interrupts too
        if place is None or (not n_kept and time.perf_counter() - begun < WORTH_KEEPING_S):
            output.discard()
        raise
    return output


def _with_cells[S](
    rows: Rows, state: S, *, compute: Callable[[Rows, S], AnyArray], layout: outputs.Layout
) -> AnyArray:
    """Return the results of a piece's rows, with the cell of each."""
    values = np.empty(rows.block.n_samples, grids.fields_of(layout))
    values["cell"] = rows.cells
    for name, part in zip(layout.parts, layout.split(compute(rows, state)), strict=True):
        values[name] = part
    return values


def rows_in_memory[S](
    dataset: Dataset, compute: Callable[[Rows, S], AnyArray], state: S, *, engine: Engine, label: str
) -> AnyArray:
    """Apply a function to each block's rows, and return the results as one array; see `write_output`."""
    part_of = partial(_part_of, compute=compute)
    return inspection.sum_rows(dataset, part_of, state, engine=engine, label=label).joined()


def _part_of[S](rows: Rows, state: S, *, compute: Callable[[Rows, S], AnyArray]) -> RowParts:
    return RowParts.of(rows.block, compute(rows, state))


def transform_in_memory(dataset: Dataset, feature_map: maps.FeatureMap, *, dtype: DTypeLike) -> AnyArray:
    """Return Z of shape (n_samples, n_components) as one array."""
    Z = np.empty((dataset.n_samples, feature_map.n_components), dtype)
    for block in inspection.blocks_of(dataset):
        X = dataset.read(block).X
        feature_map.inputs_of(Rows(block, X))
        Z[block.start : block.stop] = feature_map.transform(X, dtype=dtype)
    return Z
