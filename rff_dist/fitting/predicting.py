"""Predict rows in one pass: f(x) = z(x)'·coefficients + intercept.

A dataset and a function of a block of rows go in; one result per row comes out, as an
array in memory or as a new Zarr group. The features Z of all rows are never in memory
at once, and a stopped job keeps the rows that it wrote.
"""

import time
from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from rff_dist.data import labelled
from rff_dist.data.blocks import BlockTask, Dataset, RowParts, Rows
from rff_dist.data.grids import GridDataset
from rff_dist.engines import events, resuming
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError
from rff_dist.features import maps
from rff_dist.numerics import machine
from rff_dist.statistics import row_passes, specs
from rff_dist.storage import columns, grids, outputs
from rff_dist.text import short_repr
from rff_dist.typing import AnyArray, Facts, FloatArray, PathLike, frozen


@frozen(eq=False)
class LinearModel:
    """The state of a predicting pass: f(x) = z(x)'·coefficients + intercept.

    Passes compute raw features u, before scaling and whitening. Both steps are linear,
    so `raw_coefficients` include them: f(x) = u(x)'·raw_coefficients + intercept.
    """

    feature_map: maps.FeatureMap
    coefficients: FloatArray  # shape (n_components, n_targets)
    intercept: FloatArray  # shape (n_targets,)
    raw_coefficients: FloatArray = field(init=False)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        # computed once here and sent to workers, since a whitened map takes D³
        # operations
        object.__setattr__(
            self,
            "raw_coefficients",
            self.feature_map.raw_coefficients(self.coefficients),
        )


def predict_rows(rows: Rows, model: LinearModel) -> FloatArray:
    """Return predictions of shape (n_samples, n_targets).

    O(n_samples · n_components · n_features). Each thread has one stripe of Z (some of
    its components, for a tile of rows) in memory.

    Raises DataError if X has another number of columns, contains NaN or infinity, or is
    so large that features overflow.
    """
    feature_map = model.feature_map
    X = feature_map.inputs_of(replace(rows, y=None, sample_weight=None))
    coefficients = model.raw_coefficients.T
    stripes = feature_map.stripes
    predictions = np.empty((len(X), len(coefficients)))
    height = min(specs.tile_rows(feature_map.n_components), max(1, len(X)))

    def predict(start: int) -> None:
        tile = X[start : start + height]
        stripe = np.empty((max(stop - first for first, stop in stripes), len(tile)))
        # one thread adds the stripes in their order, so that the bits depend on D and
        # the tile's rows alone
        total = np.zeros((len(coefficients), len(tile)))
        for first, stop in stripes:
            with np.errstate(over="ignore", invalid="ignore"):  # reported below
                feature_map.fill(tile, stripe[: stop - first], first, stop)
                total += coefficients[:, first:stop] @ stripe[: stop - first]
        predictions[start : start + height] = total.T + model.intercept

    machine.share_out(predict, range(0, len(X), height))
    check_predictions(predictions, rows.block.start)
    return predictions


def check_predictions(
    values: FloatArray, first_row: int, *, what: str = "prediction"
) -> None:
    """Raise DataError if a prediction is not finite; the message calls it `what`."""
    if not np.isfinite(values).all():
        row = first_row + int(np.argwhere(~np.isfinite(values))[0, 0])
        raise DataError(
            f"the {what} of row {row:_} is not finite: its inputs times the"
            " frequencies, or the model's coefficients, overflow; standardise the"
            " inputs"
        )


#: Rows that a stopped job wrote are kept for another run of the same job if writing
#: them took so many seconds.
WORTH_KEEPING_S = 5.0


def layout_of(dataset: Dataset, **arrays: Any) -> outputs.Layout:
    """Return a layout with a chunk for each block, so that no two tasks share one."""
    return outputs.Layout(
        dataset.n_samples, row_passes.blocks_of(dataset)[0].n_samples, **arrays
    )


def write_output[S](
    dataset: Dataset,
    compute: Callable[[Rows, S], AnyArray],
    state: S,
    layout: outputs.Layout,
    url: PathLike,
    *,
    engine: Engine,
    label: str = "predict",
    attributes: Facts,
    overwrite: bool,
    publish: bool = True,
) -> outputs.StagedOutput:
    """Apply a function to each block's rows, and write the results to a new output.

    If the rows have ids, these are written next to the results as `id`. If the rows are
    cells of a grid, which is read in pieces of whole chunks, the results are variables
    on that grid.

    An error discards the output. If the engine has a ledger, the store of unfinished
    jobs, the written rows stay for another run of the same job: if writing took
    `WORTH_KEEPING_S`, or if this run went on from such rows.

    With `publish` the output is finished, with `attributes`, and appears at `url`.
    Without it the caller finishes or discards it.
    """
    blocks = row_passes.blocks_of(dataset)
    if isinstance(labelled.source_of(dataset), GridDataset):
        # blocks are whole pieces of the grid, however many rows these have, since a
        # piece is written at once
        blocks = row_passes.blocks_of(dataset, max_rows=dataset.n_samples)
        compute = partial(_with_cells, compute=compute, layout=layout)
    task = BlockTask(dataset, compute)
    staged = None
    if engine.ledger is not None:
        name = resuming.name_pass(task, blocks, (state, layout))
        if name is not None:
            staged = engine.ledger.output(name)
    output = _create_output(url, dataset, layout, overwrite=overwrite, staged=staged)
    begun = time.perf_counter()
    n_kept = 0
    try:
        missing = [block for block in blocks if not output.has_block(block)]
        n_kept = dataset.n_samples - sum(block.n_samples for block in missing)
        if n_kept:
            engine.tell(events.PassResumed(label, n_kept, dataset.n_samples))
        if missing:
            engine.map_write(task, missing, state, output, label=label)
        dataset.check_unchanged()
        ids = columns.ids_of(dataset)
        if ids is not None:
            assert isinstance(output, outputs.Output)  # a grid has no ids
            output.add(columns.ID, ids)
        if publish:
            output.finish(attributes)
    except BaseException:  # interrupts too
        took_long = time.perf_counter() - begun >= WORTH_KEEPING_S
        is_worth_keeping = n_kept > 0 or took_long
        if staged is None or not is_worth_keeping:
            output.discard()
        raise
    return output


def _create_output(
    url: PathLike,
    dataset: Dataset,
    layout: outputs.Layout,
    *,
    overwrite: bool,
    staged: Any,
) -> outputs.StagedOutput:
    """Create variables on a dataset's grid, or one array per field of rows."""
    source = labelled.source_of(dataset)
    if isinstance(source, GridDataset):
        return grids.create_grid_output(
            url, source, layout, overwrite=overwrite, staged=staged
        )
    read_urls = [] if dataset.url is None else [dataset.url]
    return outputs.create_output(
        url, layout, inputs=read_urls, overwrite=overwrite, staged=staged
    )


def _with_cells[S](
    rows: Rows,
    state: S,
    *,
    compute: Callable[[Rows, S], AnyArray],
    layout: outputs.Layout,
) -> AnyArray:
    """Return the results of a piece's rows, each with its cell's index in the piece."""
    values = np.empty(rows.block.n_samples, grids.fields_of(layout))
    values["cell"] = rows.cells
    for name, part in layout.split(compute(rows, state)).items():
        values[name] = part
    return values


def rows_in_memory[S](
    dataset: Dataset,
    compute: Callable[[Rows, S], AnyArray],
    state: S,
    *,
    engine: Engine,
    label: str,
) -> AnyArray:
    """Apply a function to each block's rows, and return the results as one array."""
    # `+` of `RowParts` joins them: no numbers are added
    part_of = partial(_part_of, compute=compute)
    return row_passes.sum_rows(
        dataset, part_of, state, engine=engine, label=label
    ).joined()


def _part_of[S](
    rows: Rows, state: S, *, compute: Callable[[Rows, S], AnyArray]
) -> RowParts:
    return RowParts.of(rows.block, compute(rows, state))


def transform_in_memory(
    dataset: Dataset, feature_map: maps.FeatureMap, *, dtype: DTypeLike
) -> AnyArray:
    """Return Z of shape (n_samples, n_components) as one array.

    Raises DataError if a value of X cannot be used.
    """
    Z = np.empty((dataset.n_samples, feature_map.n_components), dtype)
    for block in row_passes.blocks_of(dataset):
        X = dataset.read(block).X
        feature_map.inputs_of(Rows(block, X))  # raises DataError, with the row's number
        Z[block.start : block.stop] = feature_map.transform(X, dtype=dtype)
    return Z
