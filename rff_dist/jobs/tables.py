"""Tables around models: a table's rows as a model's inputs, and predictions as Parquet or CSV."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rff_dist.errors import DataError, OutputExistsError, StorageError
from rff_dist.ingest.files import table_kind
from rff_dist.ingest.ingest import Preparing, ingest
from rff_dist.ingest.recipe import Recipe
from rff_dist.ingest.roles import Roles
from rff_dist.storage.contents import read_arrays
from rff_dist.storage.locations import Location, discard, parse_location, store_errors
from rff_dist.storage.writing import Writing
from rff_dist.text import redact

_ROWS = 2**16
_ZARR = ("zarr.json", ".zgroup", ".zarray")
#: What a column is called of an array with one value a row.
_NAMES = {
    "id": "id",
    "predictions": "prediction",
    "standard_deviations": "standard_deviation",
    "lower": "lower",
    "upper": "upper",
    "labels": "label",
    "probabilities": "probability",
    "distances": "distance",
}


def is_table(url: str) -> bool:
    """Say whether rows are in files, such as CSV or a folder of Parquet, and not in Zarr."""
    location = parse_location(url)
    if location.is_local and Path(location.path).is_dir():
        folder = Path(location.path)
        named = any((folder / name).exists() for name in _ZARR)
        return not named and any(folder.rglob("*.parquet"))
    return location.scheme != "memory" and table_kind(location.path) is not None


@contextmanager
def table_rows(url: str, recipe: Mapping[str, Any] | None, model: str, output: str) -> Iterator[str]:
    """Make a dataset of a table by a model's recipe, beside the output, and remove it afterwards.

    Raises DataError if the model has no recipe, or the table not the columns that it needs.
    """
    if recipe is None:
        raise DataError(
            f"{redact(url)} is a table, but {redact(model)} was not trained on one that was ingested, so it "
            "holds no recipe; expected a Zarr dataset. Ingest the table first"
        )
    made = Recipe.from_dict(recipe)
    staged = hidden_beside(parse_location(output), "rows")
    try:
        ingest(url, staged.url, Roles(), Writing(), Preparing(reading=made.reading, recipe=made))
        yield staged.url
    finally:
        discard(staged)


def hidden_beside(location: Location, kind: str) -> Location:
    """Return the place of a hidden folder beside an output."""
    parent, slash, name = location.path.rpartition("/")
    return replace(location, path=f"{parent}{slash}.{name}.{kind}-{uuid.uuid4().hex[:12]}")


def file_kind(url: str) -> str | None:
    """Return "parquet" or "csv" where an output is one such file by its name, else None."""
    name = url.lower()
    if name.endswith((".parquet", ".pq")):
        return "parquet"
    return "csv" if name.endswith((".csv", ".csv.gz", ".csv.zst")) else None


def check_file(url: str, source: str, *, overwrite: bool) -> None:
    """Refuse a file to write that cannot be written.

    Raises OutputExistsError if it is there and `overwrite` is False; StorageError if it is the source, is in
      an object store, or its folder is not there.
    """
    location = parse_location(url)
    if not location.is_local:
        raise StorageError(
            f"{redact(url)}: tables are written to this machine alone; expected a path here, or a Zarr group"
        )
    path = Path(location.path)
    if location == parse_location(source):
        raise StorageError(f"{path} is what is read; expected another path for what is written")
    if path.is_dir() or (path.exists() and not overwrite):
        raise OutputExistsError(
            f"{path} exists; give another path, or overwrite=True (--overwrite at the command line)"
        )
    if not path.parent.is_dir():
        raise StorageError(f"{path.parent} does not exist; make the folder first")


def write_file(url: str, group: str, arrays: Sequence[str], *, columns: Sequence[str] | None) -> None:
    """Write arrays of a Zarr group as one table, which appears when it is complete.

    `arrays`: of one axis or two.
    `columns`: what arrays of two axes have columns of: targets, or classes.
    Raises StorageError if it cannot be written.
    """
    import pyarrow
    from pyarrow import csv, parquet

    path = Path(parse_location(url).path)
    partial = path.with_name(f".{path.name}.partial-{uuid.uuid4().hex[:12]}")
    writer: Any = None
    with store_errors(f"{path} cannot be written"):
        try:
            with _sink(partial, path) as sink:
                for part in read_arrays(group, arrays, n_rows=_ROWS):
                    made: dict[str, Any] = {}
                    for name, values in part.items():
                        made |= _as_columns(name, values, columns)
                    table = pyarrow.table(made)
                    if writer is None:
                        kind = parquet.ParquetWriter if file_kind(url) == "parquet" else csv.CSVWriter
                        writer = kind(sink, table.schema)
                    writer.write_table(table)
                writer.close()
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def _sink(partial: Path, path: Path) -> Any:
    """Open a file, compressed as the name that it is going to have says."""
    import pyarrow

    compression = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    return pyarrow.output_stream(str(partial), compression=compression)


def _as_columns(name: str, values: np.ndarray, columns: Sequence[str] | None) -> dict[str, Any]:
    """Return an array as columns of a table, by their names."""
    plain = values.astype(object) if values.dtype.kind in "UT" else values
    if plain.ndim == 1:
        return {_NAMES[name]: plain}
    names = columns or [str(i) for i in range(plain.shape[1])]
    return {f"{_NAMES[name]} of {one}": plain[:, i] for i, one in enumerate(names)}
