"""Paths, URLs, folders and patterns → files of rows, and files → tables.

Files may be local or in an object store, packed as ZIP, or without a suffix that says
their format. `find_files` finds them without reading them. `identify` digests a file,
which shows whether a dataset has its rows, and `open_table` reads it.
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import json
import logging
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from itertools import takewhile
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from rff_dist.data.sources import Provenance, is_named
from rff_dist.errors import StorageError
from rff_dist.recipes.arrow import compute, pyarrow
from rff_dist.recipes.reading import CsvOptions
from rff_dist.recipes.tables import Batches, RawTable, Types, opening, with_lists
from rff_dist.storage import locations
from rff_dist.storage.locations import Location
from rff_dist.typing import Facts, PathLike, frozen
from rff_dist.workbench.tables.options import split_sheet

if TYPE_CHECKING:
    from rff_dist.workbench.tables.lakes import Lake

_SUFFIXES = {
    ".csv": (".csv", ".tsv", ".txt"),
    ".parquet": (".parquet", ".pq"),
    ".arrow": (".arrow", ".feather", ".ipc", ".arrows"),
    ".jsonl": (".jsonl", ".ndjson", ".json"),
    ".xlsx": (".xlsx", ".xlsm"),
}
_COMPRESSED = ("", ".gz", ".zst", ".bz2")  # for text formats
#: The kind of a file without a suffix, by its first bytes. Other binary files are
#: refused. A ZIP archive without a suffix is taken for a workbook.
_BEGINNINGS = {
    b"PAR1": ".parquet",
    b"ARROW1": ".arrow",
    b"PK": ".xlsx",
}
# In `day=2020-01-01/` Hive writes this in place of a missing value.
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_log = logging.getLogger(__name__)

#: Values of columns by name, as a file's folders (`day=2020-01-01/`) give them; None is
#: a missing value.
type Partitions = Mapping[str, str | None]


@frozen
class File:
    """A file of rows, or a folder that is one table."""

    location: Location
    #: a key of `_SUFFIXES`; None if the name does not say it
    kind: str | None
    #: size and time, or a store's ETag: it changes when the file does, and is known
    #: without reading the file
    stamp: str
    partitions: Partitions = field(default_factory=dict)
    #: name of a workbook's sheet; None is the first one
    sheet: str | None = None

    @property
    def name(self) -> str:
        url = self.location.url
        return url if self.sheet is None else f"{url}#{self.sheet}"

    def is_known(self, ingested: Sequence[Facts]) -> bool:
        """Return whether the file, by name and stamp, is among a dataset's sources."""
        return any(
            is_named(source, self.name) and source.get("stamp") == self.stamp
            for source in ingested
        )


# -- bytes of files


@contextmanager
def fetch(file: File) -> Iterator[Path]:
    """Yield a local path of a file, which may be a copy that is removed afterwards.

    Files of object stores are fetched, and packed ones unpacked. Raises StorageError if
    the store does not answer, or a ZIP file has not exactly one file in it.
    """
    path = Path(file.location.path)
    is_local = file.location.is_local
    is_packed = path.name.lower().endswith(".zip")
    if is_local and not is_packed:
        yield path
        return

    with TemporaryDirectory(prefix="rff_dist-") as folder:
        if not is_local:
            path = Path(folder) / PurePosixPath(file.location.path).name
            _download(file.location, path)
        if is_packed:
            unpacked = Path(folder) / "unpacked"
            unpacked.mkdir()
            path = _unpack(path, unpacked)
        yield path


def _download(location: Location, path: Path) -> None:
    with (
        locations.reaching(f"{location} cannot be read"),
        open(path, "wb") as stream,
    ):
        objects = locations.open_objects(location.parent)
        stream.writelines(objects.get(location.name).stream())


def _unpack(path: Path, folder: Path) -> Path:
    damaged = (zipfile.BadZipFile, zlib.error, RuntimeError)
    with opening(path, "a packed file", *damaged), zipfile.ZipFile(path) as archive:
        names = [
            name
            for name in archive.namelist()
            if name[-1] != "/" and "__MACOSX" not in name
        ]
        if len(names) != 1:
            raise StorageError(
                f"{path} holds {len(names):,} files; expected one table. Unpack it,"
                " and give its files"
            )
        return Path(archive.extract(names[0], folder))


def identify(file: File, path: Path) -> Provenance:
    """Return a file's name, stamp and digest, which covers folders and sheet too."""
    with open(path, "rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    if file.partitions or file.sheet is not None:
        # the same bytes give other rows in another folder, or for another sheet
        parts = [sha256, json.dumps(dict(file.partitions), sort_keys=True)]
        if file.sheet is not None:
            parts.append(file.sheet)
        sha256 = hashlib.sha256("|".join(parts).encode()).hexdigest()
    return Provenance(file.name, sha256, {"stamp": file.stamp})


# -- finding files


def find_files(
    sources: PathLike | Sequence[PathLike], *, may_be_none: bool
) -> Sequence[File | Lake]:
    """Find files by their paths, URLs, folders and patterns, each once, in the order of
    `sources`.

    A folder stands for all Parquet files in it by name, or all CSV files. Patterns have
    `*`, `?`, `[…]` and, for local files, `**`. A workbook may name one of its sheets
    (`sales.xlsx#May`). A lakehouse table, which must be the only source, is opened: the
    folder of a Delta table, or iceberg://CATALOG/NAMESPACE.TABLE.

    Raises StorageError if there is no such file (a pattern or a folder may be empty if
    `may_be_none`), its type is unknown, or it is one of the files of a Delta or Iceberg
    table.
    """
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    files: dict[str, File] = {}
    for source in sources:
        path, sheet = split_sheet(os.fspath(source))
        location = locations.parse_location(path)
        lake = _open_lake(location)
        if lake is not None:
            if len(sources) > 1:
                raise StorageError(
                    f"{location} is a {lake.format} table; expected it alone, without"
                    " other files"
                )
            return [lake]
        if location.is_local:
            matches = _find_local(location, may_be_none=may_be_none)
        else:
            matches = _find_remote(location)
        if not matches and not may_be_none:
            raise StorageError(
                f"there is no file at {location}; expected one or more files with rows"
            )
        for match in matches:
            file = replace(match, sheet=sheet)
            files[file.name] = file

    folders: dict[Location, None] = {}
    for file in files.values():
        folders |= dict.fromkeys(_folders_above(file.location))
    for folder in folders:
        table_format = _table_format(folder)
        if table_format is not None:
            raise StorageError(
                f"{folder} is a table in {table_format} format, whose files hold"
                " removed rows too; expected files of which every row counts. Give the"
                " folder of a Delta table itself, and an Iceberg table by its catalog:"
                " iceberg://CATALOG/NAMESPACE.TABLE"
            )
    return list(files.values())


def _open_lake(location: Location) -> Lake | None:
    """Open a source that is a lakehouse table; return None if it is none."""
    if location.scheme == locations.ICEBERG:
        from rff_dist.workbench.tables import iceberg_tables

        return iceberg_tables.open_iceberg(location)

    may_be_folder = _may_be_folder(location) and not glob.has_magic(location.path)
    if not may_be_folder or _table_format(location) != "Delta":
        return None
    from rff_dist.workbench.tables import delta_tables

    return delta_tables.open_delta(location)


def _may_be_folder(location: Location) -> bool:
    if location.is_local:
        return Path(location.path).is_dir()
    # an object store has no folders, but a name with a suffix is a file's
    return table_kind(location.path) is None


def _folders_above(location: Location) -> Iterator[Location]:
    """Yield the folders that a file is in, up to the root or the bucket."""
    path = location.path.rpartition("/")[0]
    while path:
        yield Location(location.scheme, path)
        path = path.rpartition("/")[0]


def _table_format(folder: Location) -> str | None:
    """Return "Delta" or "Iceberg" if a folder has such a table's log."""
    try:
        if any(_names_in(folder, "_delta_log")):
            return "Delta"
        metadata = _names_in(folder, "metadata")
        if any(name.endswith(".metadata.json") for name in metadata):
            return "Iceberg"
    except Exception as error:
        # a user may be allowed to read a file, but not to list its folders
        if folder.is_local:
            raise
        _log.info(
            "%s cannot be listed, so whether it is a Delta or Iceberg table is"
            " unknown: %s",
            folder,
            error,
        )
    return None


def _names_in(folder: Location, name: str) -> Iterator[str]:
    """Yield the names of what is in the folder `name` below a folder."""
    if folder.is_local:
        yield from (str(path) for path in (Path(folder.path) / name).glob("*"))
        return
    for page in locations.open_objects(folder).list(name):
        yield from (entry["path"] for entry in page)


def _find_local(location: Location, *, may_be_none: bool) -> list[File]:
    path = Path(location.path)
    if path.is_dir():
        is_zarr = any((path / name).exists() for name in locations.NODE_FILES)
        if is_zarr or locations.is_versioned(location):
            raise StorageError(
                f"{path} is Zarr data already, which needs no ingest; expected files of"
                " rows. Name its arrays where it is read, or give a `holdout` to cut a"
                " dataset in two"
            )
        paths = sorted(path.rglob("*.parquet"))
        if not paths:
            everything = sorted(path.rglob("*"))
            paths = [file for file in everything if table_kind(file.name) == ".csv"]
        if not paths and not may_be_none:
            raise StorageError(
                f"{path} is a folder without Parquet or CSV files; expected some in it"
            )
        return [
            _local_file(file, _partitions(file.relative_to(path).parts[:-1]))
            for file in paths
        ]

    if path.exists():
        return [_local_file(path)]
    if not glob.has_magic(location.path):
        raise StorageError(
            f"there is no file at {path}; expected one with rows, a folder or a pattern"
        )
    folder = path
    while glob.has_magic(str(folder)):
        folder = folder.parent
    if not folder.is_dir():  # an unmounted disk would pass for a night without files
        raise StorageError(
            f"there is no folder {folder}, in which to look for {path}; expected one,"
            " which may be empty"
        )
    paths = [Path(name) for name in sorted(glob.glob(location.path, recursive=True))]
    return [_local_file(path) for path in paths if path.is_file()]


def _local_file(path: Path, partitions: Mapping[str, str | None] = {}) -> File:
    status = path.stat()
    stamp = f"{status.st_size}-{status.st_mtime_ns}"
    location = Location("file", str(path))
    return File(location, table_kind(str(path)), stamp, partitions)


def _partitions(folders: Sequence[str]) -> Partitions:
    """Return the columns of folders that are named as Hive names them, `day=2020`."""
    columns = {}
    for folder in folders:
        name, equals, value = folder.partition("=")
        if equals:
            columns[unquote(name)] = None if value == _NO_VALUE else unquote(value)
    return columns


def _find_remote(location: Location) -> list[File]:
    bucket, _, key = location.path.partition("/")
    parts = key.split("/")
    if any("**" in part for part in parts):
        raise StorageError(
            f"{location}: `**` is not known in object stores; expected `*` within a"
            " folder's name"
        )
    # the folder to list is named by the parts before the first one with a pattern
    plain_parts = list(takewhile(lambda part: not glob.has_magic(part), parts))
    pattern = parts[len(plain_parts) :]
    has_pattern = bool(pattern)
    with locations.reaching(f"{location} cannot be read"):
        if not has_pattern:
            above = locations.open_objects(location.parent)
            with suppress(FileNotFoundError):  # it may be a folder
                entry = above.head(location.name)
                return [_remote_file(location, entry)]
        folder = Location(location.scheme, "/".join([bucket, *plain_parts]))
        entries = {
            entry["path"]: entry
            for page in locations.open_objects(folder).list()
            for entry in page
        }

    if not has_pattern:
        pattern = ["*.parquet"]
    files = []
    for name in sorted(entries):
        names = name.split("/")
        # in a folder named without a pattern, files at any depth count
        compared = names if has_pattern else names[-1:]
        if len(compared) == len(pattern) and all(
            map(fnmatch.fnmatchcase, compared, pattern)
        ):
            entry = entries[name]
            partitions = _partitions(names[:-1])
            files.append(_remote_file(folder.child(name), entry, partitions))
    if not files and not has_pattern:
        raise StorageError(
            f"there is no file at {location}, and no *.parquet in it; expected one with"
            " rows"
        )
    return files


def _remote_file(
    location: Location, entry: Facts, partitions: Mapping[str, str | None] = {}
) -> File:
    stamp = entry["e_tag"] or f"{entry['size']}-{entry['last_modified'].isoformat()}"
    return File(location, table_kind(location.path), str(stamp), partitions)


# -- kinds of files: the keys of `_SUFFIXES`


def table_kind(path: str) -> str | None:
    """Return the kind that a file's name says, or None."""
    name = split_sheet(path)[0].lower().removesuffix(".zip")
    for kind, suffixes in _SUFFIXES.items():
        ends = _COMPRESSED if kind in (".csv", ".jsonl") else ("",)
        if name.endswith(tuple(suffix + end for suffix in suffixes for end in ends)):
            return kind
    return None


def _kind_by_content(path: Path) -> str:
    """Return the kind of a file by its first bytes; text is CSV or JSON lines."""
    with (
        opening(path, "a table"),
        pyarrow.input_stream(str(path), compression="detect") as stream,
    ):
        begin = stream.read(2**12)
    for beginning, kind in _BEGINNINGS.items():
        if begin.startswith(beginning):
            return kind

    if b"\0" in begin:
        raise StorageError(
            f"{path} is of an unknown type; expected text such as CSV or"
            " JSON, .parquet, .arrow, .feather, .xlsx or a folder of Parquet files."
            " Convert it, or give its `format`"
        )
    return ".jsonl" if begin.lstrip()[:1] in (b"[", b"{") else ".csv"


# -- files as tables


def open_table(
    file: File, path: Path, reading: CsvOptions, folder_values: Mapping[str, Any]
) -> RawTable:
    """Open a file as a table, from a local path; its rows are not read yet.

    `folder_values`: the file's entry of `partition_values`. These are the texts of
    `file.partitions` with a type, which depends on the folders of all files.

    Raises StorageError if it cannot be read; DataError if it is no table.
    """
    from rff_dist.workbench.tables import (
        arrow_files,
        csv_files,
        json_files,
        spreadsheets,
    )

    open_kind: Mapping[str, Callable[[Path], RawTable]] = {
        ".csv": lambda path: csv_files.csv_table(path, reading),
        ".parquet": arrow_files.parquet_table,
        ".arrow": arrow_files.arrow_table,
        ".jsonl": json_files.json_table,
        ".xlsx": lambda path: spreadsheets.sheet_table(path, file.sheet, reading),
    }
    # the name of a ZIP file may not say the kind, but the name of the file in it may
    kind_by_name = file.kind or table_kind(path.name)
    kind = reading.kind or kind_by_name or _kind_by_content(path)
    table = with_lists(open_kind[kind](path))
    return _with_partitions(table, folder_values) if folder_values else table


def partition_values(partitions: Sequence[Partitions]) -> list[dict[str, Any]]:
    """Return the columns of each file's folders, as Arrow scalars.

    A column has one type in all files: integer, else float, else date, else text.
    """
    columns = {}
    for name in {name for texts in partitions for name in texts}:
        texts = [of_file.get(name) for of_file in partitions]
        columns[name] = pyarrow.array(texts, pyarrow.string())
        for arrow_type in (pyarrow.int64(), pyarrow.float64(), pyarrow.date32()):
            with suppress(pyarrow.ArrowException):
                columns[name] = compute.cast(columns[name], arrow_type)
                break
    return [
        {name: columns[name][i] for name in of_file}
        for i, of_file in enumerate(partitions)
    ]


def _with_partitions(table: RawTable, partitions: Mapping[str, Any]) -> RawTable:
    """Return a table with a constant column for each partition, which replaces a stored
    column of the same name.
    """
    stored = {
        column.name: column.type
        for column in table.schema
        if column.name not in partitions
    }
    added = {name: value.type for name, value in partitions.items()}

    def batches(types: Types) -> Batches:
        wanted = {name: types[name] for name in types if name in stored}
        if not wanted:  # one column must be read to count the rows
            wanted = dict(list(stored.items())[:1])
        for batch in table.batches(wanted):
            columns = {name: batch.column(name) for name in wanted}
            for name, value in partitions.items():
                column = pyarrow.repeat(value, batch.num_rows)
                columns[name] = column.cast(types.get(name, value.type))
            yield pyarrow.RecordBatch.from_pydict(columns)

    schema = pyarrow.schema({**stored, **added})
    return replace(table, schema=schema, batches=batches)
