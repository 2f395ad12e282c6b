"""Tables for models: the rows of a table as inputs, and predictions as Parquet or CSV."""

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rff_dist.errors import DataError, InvalidParameterError, OutputExistsError, StorageError
from rff_dist.recipes import recipes, tables
from rff_dist.storage import datasets, documents, locations, output_places, writing
from rff_dist.text import redact
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.tables import files, ingest, spreadsheets
from rff_dist.workbench.tables.roles import Roles

_ROWS = 2**16


def is_table(url: str) -> bool:
    """Say whether rows are in files, such as CSV or a folder of Parquet, rather than in Zarr."""
    location = locations.parse_location(spreadsheets.split_sheet(url)[0])
    if location.is_local and Path(location.path).is_dir():
        folder = Path(location.path)
        named = any((folder / name).exists() for name in locations.NODE_FILES)
        return not named and any(folder.rglob("*.parquet"))
    return location.scheme != "memory" and files.table_kind(location.path) is not None


@contextmanager
def table_rows(
    job: specs.Predict | specs.Evaluate,
    card: Mapping[str, Any],
    staged: locations.Location,
    *,
    observer: writing.Progress | None,
    roles: Roles = Roles(),
) -> Iterator[str]:
    """Make a dataset from a table by a model's recipe, and remove it afterwards.

    `job`: names the table and the model.
    `card`: of the model, with its recipe.
    `staged`: where to make the dataset.
    `observer`: told how many rows were made.
    Raises DataError if the model has no recipe, or the table lacks columns of it; InvalidParameterError if a
      version is asked for.
    """
    url = job.source.data
    if job.source.version is not None:
        raise InvalidParameterError(
            f"`version` is {job.source.version!r}, but {redact(url)} is a table, which keeps no versions; "
            "leave it out"
        )
    recipe = recipes.recipe_of(card)
    if recipe is None:
        raise DataError(
            f"{redact(url)} is a table, but {redact(job.model)} has no recipe to read it with, since it was "
            "not trained on an ingested table; expected a Zarr dataset. Ingest the table first"
        )
    try:
        how = writing.Writing(observer=observer)
        ingest.ingest(url, staged.url, roles, how, ingest.Preparing(reading=recipe.reading, recipe=recipe))
        yield staged.url
    finally:
        output_places.discard(staged)


def file_kind(url: str) -> str | None:
    """Return "parquet" or "csv" if an output's name says so, else None."""
    name = url.lower()
    if name.endswith((".parquet", ".pq")):
        return "parquet"
    return "csv" if name.endswith((".csv", ".csv.gz", ".csv.zst")) else None


def check_file(url: str, source: str, *, overwrite: bool) -> None:
    """Check that a file can be written.

    Raises OutputExistsError if it is there and `overwrite` is False; StorageError if it is the source, its
      folder does not exist, or the store cannot be written to.
    """
    location = locations.parse_location(url)
    if location == locations.parse_location(source):
        raise StorageError(f"{location} is what is read; expected another path to write to")
    if location.scheme in ("memory", "https"):
        raise StorageError(f"{location}: no file can be written there; expected a path or an object store")
    path = Path(location.path)
    there = path.exists() if location.is_local else documents.find_object(location) is not None
    if (location.is_local and path.is_dir()) or (there and not overwrite):
        raise OutputExistsError(f"{location} exists; give another path, or overwrite=True")
    if location.is_local and not path.parent.is_dir():
        raise StorageError(f"{path.parent} does not exist; make the folder first")


def write_file(url: str, group: str, arrays: Sequence[str], *, columns: Sequence[str] | None) -> None:
    """Write arrays of a Zarr group as one table, which appears when it is complete.

    `arrays`: names of arrays of one axis or two.
    `columns`: names of the columns of arrays of two axes: targets, or classes.
    Raises ConflictError if another run has written the table meanwhile, in an object store; StorageError if
      it cannot be written.
    """
    import pyarrow
    from pyarrow import csv, parquet

    location = locations.parse_location(url)
    path = Path(location.path)
    before = None if location.is_local else documents.find_object(location)
    kind = parquet.ParquetWriter if file_kind(url) == "parquet" else csv.CSVWriter
    writer: Any = None
    with ExitStack() as stack, locations.store_errors(f"{location} cannot be written"):
        # An object store takes whole files only; a local file is renamed when it is whole.
        # Next to the output, since no rename from another file system is done in one step.
        folder = path.parent if location.is_local else Path(stack.enter_context(TemporaryDirectory()))
        partial = folder / f".{path.name}.partial-{uuid.uuid4().hex[:12]}"
        try:
            # By the final name: the partial one ends otherwise, so pyarrow cannot tell the compression.
            compression = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
            with pyarrow.output_stream(str(partial), compression=compression) as sink:
                for part in datasets.read_arrays(group, arrays, n_rows=_ROWS):
                    table = pyarrow.table(_as_columns(part, columns))
                    if writer is None:
                        writer = kind(sink, table.schema)
                    writer.write_table(table)
                writer.close()
            if location.is_local:
                os.replace(partial, path)
            else:
                output_places.check_held(location)
                documents.upload(partial, location, expected=before)
        finally:
            partial.unlink(missing_ok=True)


def _as_columns(arrays: Mapping[str, np.ndarray], columns: Sequence[str] | None) -> dict[str, Any]:
    """Return arrays as columns of a table, by name."""
    by_name: dict[str, Any] = {}
    for several, values in arrays.items():
        # an array of labels becomes the column "label"
        name = "probability" if several == "probabilities" else several.removesuffix("s")
        if values.ndim == 1:
            by_name[name] = tables.to_column(values)
        else:
            names = columns or range(values.shape[1])
            by_name |= {f"{name} of {each}": tables.to_column(values[:, i]) for i, each in enumerate(names)}
    return by_name
