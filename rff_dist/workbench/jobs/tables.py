"""Tables for models: the rows of a table as inputs, and predictions as Parquet or CSV.

In goes the path of a table, out comes a temporary dataset, made by the model's recipe:
how the columns of its training table became numbers. And in go arrays of predictions,
out comes a file. With pandas, all rows would be in memory, and levels and dates would
get other numbers than in the training rows.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.recipes import recipes, tables
from rff_dist.storage import datasets, locations, output_places, writing
from rff_dist.storage.columns import ID
from rff_dist.text import redact
from rff_dist.typing import Facts
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.tables import files
from rff_dist.workbench.tables.options import TableOptions, split_sheet
from rff_dist.workbench.tables.roles import Roles

_ROWS = 2**16  # written at a time: 512 KiB per column


def is_table(url: str) -> bool:
    """Return whether rows are in files, such as CSV or a folder of Parquet, and not in
    Zarr.
    """
    location = locations.parse_location(split_sheet(url)[0])
    if location.is_local and Path(location.path).is_dir():
        folder = Path(location.path)
        is_zarr = any((folder / name).exists() for name in locations.NODE_FILES)
        return not is_zarr and any(folder.rglob("*.parquet"))
    is_file = location.is_local and Path(location.path).is_file()
    return is_file or files.table_kind(location.path) is not None


@contextmanager
def table_rows(
    job: specs.Predict | specs.Evaluate,
    card: Facts,
    staged: locations.Location,
    *,
    observer: writing.Progress | None,
    roles: Roles = Roles(),
) -> Iterator[str]:
    """Make a dataset from a job's table by a model's recipe; yield its URL, and remove
    it afterwards.

    `card`: the model's card, which has the recipe. `staged`: where the dataset is made.
    `observer` gets the number of rows so far. Raises DataError if the model has no
    recipe, or the table lacks columns of it; InvalidParameterError if the job names a
    version.
    """
    url = job.source.data
    if job.source.version is not None:
        raise InvalidParameterError(
            f"`version` is {job.source.version!r}, but {redact(url)} is a table, which"
            " keeps no versions; leave it out"
        )
    recipe = recipes.recipe_of(card)
    if recipe is None:
        raise DataError(
            f"{redact(url)} is a table, but {redact(job.model)} has no recipe to read"
            " it with, since it was not trained on an ingested table; expected a Zarr"
            " dataset. Ingest the table first"
        )
    from rff_dist.workbench.tables.ingest import ingest

    try:
        write_options = writing.WriteOptions(observer=observer)
        options = TableOptions(reading=recipe.reading, recipe=recipe)
        ingest(url, staged.url, roles, write_options, options)
        yield staged.url
    finally:
        output_places.discard(staged)


def file_kind(url: str) -> str | None:
    """Return ".parquet" or ".csv" if an output's name ends so, else None: a Zarr group.

    Raises InvalidParameterError for tables of other kinds, which are only read.
    """
    kind = files.table_kind(url)
    if kind not in (None, ".parquet", ".csv"):
        raise InvalidParameterError(
            f"`output` is {redact(url)}, a table of a kind that is not written;"
            " expected .parquet, .csv or .tsv (also .csv.gz), or the name of a Zarr"
            " group"
        )
    return kind


# names of columns as `_as_columns` makes them
_COLUMN = re.compile(
    "(prediction|standard_deviation|lower|upper|label|probability|distance|principal)("
    " of .*)?",
    re.DOTALL,
)


def holds_predictions(location: locations.Location, id_name: str | None) -> bool:
    """Return whether `write_file` wrote a table, by the names of its columns, of which
    `id_name` is that of the ids.
    """
    from pyarrow import ArrowException, csv, parquet

    kind = str(file_kind(location.path))
    if location.is_local and not os.path.isfile(location.path):
        return False
    try:
        with files.fetch(files.File(location, kind, "")) as path:
            if kind == ".parquet":
                names = parquet.read_schema(path).names
            else:
                parse_options = csv.ParseOptions(delimiter=_delimiter(location))
                names = csv.open_csv(path, parse_options=parse_options).schema.names
    except ArrowException:
        return False
    if names[0] in (ID, id_name):
        del names[0]
    return bool(names) and all(map(_COLUMN.fullmatch, names))


def _delimiter(location: locations.Location) -> str:
    return "\t" if ".tsv" in Path(location.path.lower()).suffixes else ","


def write_file(
    url: str,
    group: str,
    arrays: Sequence[str],
    *,
    columns: Sequence[str] | None,
    id_name: str | None,
) -> None:
    """Write arrays of a Zarr group as one table, which appears when it is complete.

    `arrays`: names of arrays with one axis or two. `columns`: names of the columns of
    those with two: targets, or classes. `id_name`: of the ids' column. Raises
    ConflictError if in an object store another run has written the table meanwhile;
    StorageError if it cannot be written.
    """
    import pyarrow

    location = locations.parse_location(url)
    if file_kind(url) == ".csv":
        from pyarrow import csv

        csv_options = csv.WriteOptions(delimiter=_delimiter(location))
        writer_class = partial(csv.CSVWriter, write_options=csv_options)
    else:
        from pyarrow import parquet

        writer_class = parquet.ParquetWriter
    writer: Any = None
    # Told by the final name: pyarrow cannot see it in the name of the unfinished file.
    final = os.path.realpath(location.path) if location.is_local else location.path
    compression = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}.get(
        Path(final).suffix.lower()
    )
    with (
        locations.store_errors(f"{location} cannot be written"),
        output_places.writing_file(location) as unfinished,
        pyarrow.output_stream(str(unfinished), compression=compression) as sink,
    ):
        for part in datasets.read_arrays(group, arrays, n_rows=_ROWS):
            by_name = _as_columns(part, columns)
            # ids come first, and keep their name so that tables can be joined by it
            names = [id_name or name if name == ID else name for name in by_name]
            table = pyarrow.table([*by_name.values()], names)
            if writer is None:
                writer = writer_class(sink, table.schema)
            writer.write_table(table)
        writer.close()


def _as_columns(
    arrays: Mapping[str, np.ndarray], columns: Sequence[str] | None
) -> dict[str, Any]:
    """Return arrays as columns of a table, by name: "prediction", or "prediction of
    TARGET" for each column of an array with two axes.
    """
    by_name: dict[str, Any] = {}
    for array_name, values in arrays.items():
        # the name of the array in the singular
        name = (
            "probability"
            if array_name == "probabilities"
            else array_name.removesuffix("s")
        )
        if values.ndim == 1:
            by_name[name] = tables.to_column(values)
        else:
            names = columns or range(values.shape[1])
            by_name |= {
                f"{name} of {each}": tables.to_column(values[:, i])
                for i, each in enumerate(names)
            }
    return by_name
