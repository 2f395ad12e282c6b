"""Files to ingest: found here or in an object store, recognised by their digests, opened as tables."""

import fnmatch
import glob
import hashlib
import logging
import lzma
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

import pyarrow
from pyarrow import compute

from rff_dist.data import sources as row_sources
from rff_dist.errors import DataError, StorageError
from rff_dist.recipes import tables
from rff_dist.recipes.reading import Reading
from rff_dist.storage import documents, locations
from rff_dist.typing import Facts, PathLike, frozen
from rff_dist.workbench.tables import (
    array_files,
    csv_files,
    delta_tables,
    iceberg_tables,
    lakes,
    spreadsheets,
)

_KINDS = {
    ".csv": (".csv", ".tsv", ".txt"),
    ".parquet": (".parquet", ".pq"),
    ".arrow": (".arrow", ".feather", ".ipc", ".arrows"),
    ".jsonl": (".jsonl", ".ndjson", ".json"),
    ".npy": (".npy",),
    ".npz": (".npz",),
    ".xlsx": (".xlsx", ".xlsm"),
    ".xls": (".xls", ".xlsb", ".ods"),  # refused, with advice
}
_COMPRESSED = ("", ".gz", ".zst", ".bz2")  # for text formats
_PACKED = (".zip", ".xz")  # unpacked before they are read
#: What files of a kind begin with; all others that are no text are unknown.
_BEGINNINGS = {
    b"PAR1": ".parquet",
    b"ARROW1": ".arrow",
    b"FEA1": ".arrow",
    b"\x93NUMPY": ".npy",
    b"PK": ".xlsx",
}
_OTHERS = {"an ARFF file": rb"(?is)^(%.*?\n|\s)*@relation", "a libsvm file": rb"^\S+( \d+:\S+)+\s*\n"}
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # Hive's name of a folder whose rows have no value
_PIECE = 2**20
_log = logging.getLogger(__name__)


@frozen
class File:
    """A file of rows, or a folder that is a Zarr group; made by `find_files`.

    `kind`: {".csv", ".parquet", ".arrow", ".jsonl", ".xlsx", ".npy", ".npz", ".zarr", ".lake"}. How it is
      read; "" if its name does not say it.
    `stamp`: size and time, or an object store's ETag: changes with the file, and is known without reading it.
    `lake`: the table of a lakehouse that the folder is, at its current version.
    `partitions`: columns that the names of its folders (`day=2020-01-01/`) give all its rows, as text; None
      is a missing value.
    `sheet`: of a workbook; None is the first one.
    """

    location: locations.Location
    kind: str
    stamp: str
    partitions: Mapping[str, str | None] = field(default_factory=dict)
    sheet: str | None = None
    lake: lakes.Lake | None = None

    @property
    def name(self) -> str:
        return self.location.url if self.sheet is None else f"{self.location.url}#{self.sheet}"

    def is_known(self, sources: Sequence[Facts]) -> bool:
        """Say whether a dataset holds it already, by its name and stamp."""
        mine = (source for source in sources if row_sources.is_named(source, self.name))
        return any(source.get("stamp") == self.stamp for source in mine)


@contextmanager
def fetch(file: File) -> Iterator[Path]:
    """Yield a local path of a file: its own, or a temporary copy if it is in an object store or packed.

    Raises StorageError if the store does not answer, or a ZIP file does not hold one file.
    """
    path = Path(file.location.path)
    is_packed = file.location.path.lower().endswith(_PACKED)
    if file.lake is not None or (file.location.is_local and not (is_packed and path.is_file())):
        yield path
        return
    if is_packed:
        with TemporaryDirectory(prefix="rff_dist-") as folder, _fetch_whole(file) as packed:
            yield _unpack(packed, Path(folder))
        return
    with _fetch_whole(file) as path:
        yield path


def _unpack(path: Path, folder: Path) -> Path:
    """Unpack a file into an empty folder."""
    with tables.opening(path, "a packed file", zipfile.BadZipFile, zlib.error, lzma.LZMAError, RuntimeError):
        if path.suffix.lower() == ".xz":
            target = folder / path.stem
            with lzma.open(path) as content, open(target, "wb") as output:
                shutil.copyfileobj(content, output)
            return target
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name[-1] != "/" and "__MACOSX" not in name]
            if len(names) != 1:
                raise StorageError(
                    f"{path} holds {len(names):,} files; expected one table. Unpack it, and give its files"
                )
            return Path(archive.extract(names[0], folder))


@contextmanager
def _fetch_whole(file: File) -> Iterator[Path]:
    if file.location.is_local:
        yield Path(file.location.path)
        return
    with TemporaryDirectory(prefix="rff_dist-") as folder:
        path = Path(folder) / PurePosixPath(file.location.path).name
        with locations.reaching(f"{file.location} cannot be read"), open(path, "wb") as stream:
            import obstore

            above, name = documents.store_above(file.location, read_only=True)
            stream.writelines(obstore.get(above.store, name).stream())
        yield path


def identify(file: File, path: Path, sources: Sequence[Facts]) -> row_sources.Source:
    """Digest a file's bytes.

    `sources`: files that the dataset holds already.
    Raises DataError if the file is one of them and has grown: its first rows would be added twice.
    """
    if file.lake is not None:
        return file.lake.source
    if path.is_dir():
        return _identify_folder(file, path)
    mine = (source for source in sources if row_sources.is_named(source, file.name))
    before = {one["n_bytes"]: one.get("sha256") for one in mine if type(one.get("n_bytes")) is int}
    digest, n_bytes = hashlib.sha256(), 0
    with open(path, "rb") as stream:
        # pieces end where a file of the dataset ended, so that the digests there can be compared
        while piece := stream.read(min([_PIECE, *(end - n_bytes for end in before if end > n_bytes)])):
            digest.update(piece)
            n_bytes += len(piece)
            more = n_bytes < path.stat().st_size
            if more and n_bytes in before and before[n_bytes] == digest.hexdigest():
                raise DataError(
                    f"{file.name} has grown since it was ingested: the first {n_bytes:_} of its "
                    f"{path.stat().st_size:_} bytes are in the dataset already, and would be added twice; "
                    "expected new rows in a file of their own"
                )
    return row_sources.Source(file.name, digest.hexdigest(), {"stamp": file.stamp, "n_bytes": n_bytes})


def _identify_folder(file: File, path: Path) -> row_sources.Source:
    digest = hashlib.sha256()
    for member in sorted(path.rglob("*")):
        if member.is_file():
            with open(member, "rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            digest.update(f"{member.relative_to(path)}|{content}|".encode())
    return row_sources.Source(file.name, digest.hexdigest(), {"stamp": file.stamp})


def find_files(sources: PathLike | Sequence[PathLike], *, may_be_none: bool = False) -> list[File]:
    """Find files by their paths, URLs, folders and patterns, each once, in the order given.

    `sources`: files; folders, which stand for all Parquet files in them by name, or all CSV files; or
      patterns with `*`, `?`, `[…]` and, for local files, `**`. Object stores work alike
      (`s3://bucket/new/*.csv`). A workbook may name one of its sheets (`sales.xlsx#May`). Or one table of a
      lakehouse: the folder of a Delta table, or iceberg://CATALOG/NAMESPACE.TABLE.
    `may_be_none`: whether a pattern or a folder may hold no file (yet).
    Raises StorageError if there is no such file, its type is unknown, or it is one of the files of a Delta or
      Iceberg table.
    """
    found: dict[str, File] = {}
    for source in [sources] if isinstance(sources, str | os.PathLike) else sources:
        place, sheet = spreadsheets.split_sheet(os.fspath(source))
        location = locations.parse_location(place)
        if location.scheme == "memory":
            raise StorageError(f"{location} can only hold Zarr data; expected files of rows")
        lake = _open_lake(location)
        if lake is not None:
            files = [File(location, ".lake", lake.source.sha256, lake=lake)]
        else:
            files = _find_local(location, may_be_none) if location.is_local else _find_remote(location)
        if not files and not may_be_none:
            raise StorageError(f"there is no file at {location}; expected one or more files with rows")
        found.update({file.name: file for file in (replace(file, sheet=sheet) for file in files)})
    for file in found.values():
        if file.lake is not None and len(found) > 1:
            raise StorageError(
                f"{file.name} is a {file.lake.format} table; expected it alone, without other files"
            )
    plain = [file.location for file in found.values() if file.lake is None]
    for folder in dict.fromkeys(folder for location in plain for folder in _folders_of(location)):
        if format_ := _table_format(folder):
            raise StorageError(
                f"{folder} is a table in {format_} format, whose files hold removed rows too; expected "
                "files of which every row counts. Give the folder of a Delta table itself, and an Iceberg "
                "table by its catalog: iceberg://CATALOG/NAMESPACE.TABLE"
            )
    return list(found.values())


def _open_lake(location: locations.Location) -> lakes.Lake | None:
    """Open the table of a lakehouse that a source is; None if it is none."""
    if location.scheme == locations.ICEBERG:
        return iceberg_tables.open_iceberg(location)
    is_folder = Path(location.path).is_dir() if location.is_local else table_kind(location.path) is None
    if not is_folder or glob.has_magic(location.path) or _table_format(location) != "Delta":
        return None
    return delta_tables.open_delta(location)


def _folders_of(location: locations.Location) -> Iterator[locations.Location]:
    """Yield the folders that a file is in, up to the root or the bucket."""
    path = location.path.rpartition("/")[0]
    while path:
        yield locations.Location(location.scheme, path)
        path = path.rpartition("/")[0]


def _table_format(folder: locations.Location) -> str | None:
    """Return "Delta" or "Iceberg" if a folder is such a table: its log says which Parquet files count."""
    if folder.is_local:
        path = Path(folder.path)
        logs, metadata = path.glob("_delta_log/*"), path.glob("metadata/*.metadata.json")
        return "Delta" if any(logs) else "Iceberg" if any(metadata) else None
    import obstore

    store: Any = locations.open_store(folder)
    try:
        if any(obstore.list(store.store, "_delta_log")):
            return "Delta"
        paths = (stored["path"] for page in obstore.list(store.store, "metadata") for stored in page)
        return "Iceberg" if any(path.endswith(".metadata.json") for path in paths) else None
    except Exception as error:  # one may be allowed to read a file, but not to list its folders
        _log.info(
            "%s cannot be listed, so whether it is a Delta or Iceberg table is unknown: %s", folder, error
        )
        return None


def _find_local(location: locations.Location, may_be_none: bool) -> list[File]:
    path = Path(location.path)
    if path.is_dir() and (
        locations.is_versioned(location) or any((path / name).exists() for name in locations.NODE_FILES)
    ):
        parts = [member.stat() for member in path.rglob("*")]
        stamp = f"{len(parts)}-{max(part.st_mtime_ns for part in parts)}"
        return [File(location, ".zarr", stamp)]
    if path.is_dir():
        files = sorted(path.rglob("*.parquet"))
        files = files or sorted(file for file in path.rglob("*") if table_kind(file.name) == ".csv")
        if not files and not may_be_none:
            raise StorageError(f"{path} is a folder without Parquet or CSV files; expected some in it")
        return [_local_file(file, _partitions(file.relative_to(path).parts[:-1])) for file in files]
    if not path.exists() and glob.has_magic(location.path):
        matches = [Path(name) for name in sorted(glob.glob(location.path, recursive=True))]
        return [_local_file(match) for match in matches if match.is_file()]
    if not path.exists():
        raise StorageError(f"there is no file at {path}; expected one with rows, a folder or a pattern")
    return [_local_file(path)]


def _partitions(folders: Sequence[str]) -> dict[str, str | None]:
    """Return the columns that folders name as Hive does, such as `day=2020-01-01`."""
    pairs = [folder.split("=", 1) for folder in folders if "=" in folder]
    return {unquote(name): None if value == _NO_VALUE else unquote(value) for name, value in pairs}


def _local_file(path: Path, partitions: Mapping[str, str | None] = {}) -> File:
    status = path.stat()
    stamp = f"{status.st_size}-{status.st_mtime_ns}"
    return File(locations.Location("file", str(path)), _kind(str(path)), stamp, partitions)


def _find_remote(location: locations.Location) -> list[File]:
    import obstore

    bucket, _, key = location.path.partition("/")
    parts = key.split("/") if key else []
    n_plain = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    has_pattern = n_plain < len(parts)
    if any("**" in part for part in parts):
        raise StorageError(
            f"{location}: `**` is not known in object stores; expected `*` within a folder's name"
        )
    with locations.reaching(f"{location} cannot be read"):
        if not has_pattern and parts:
            above, name = documents.store_above(location, read_only=True)
            try:
                return [_remote_file(location, obstore.head(above.store, name))]
            except FileNotFoundError:
                parts = [*parts, "*.parquet"]  # a folder, perhaps
        folder = locations.Location(location.scheme, "/".join([bucket, *parts[:n_plain]]))
        store: Any = locations.open_store(folder)
        stored = {item["path"]: item for page in obstore.list(store.store) for item in page}
    pattern = parts[n_plain:]
    chosen = [name for name in sorted(stored) if _is_chosen(name.split("/"), pattern, has_pattern)]
    if not chosen and not has_pattern:
        raise StorageError(f"there is no file at {location}, and no *.parquet in it; expected one with rows")
    folders = [_partitions(name.split("/")[:-1]) for name in chosen]
    return [
        _remote_file(folder.child(name), stored[name], of) for name, of in zip(chosen, folders, strict=True)
    ]


def _is_chosen(names: Sequence[str], pattern: Sequence[str], has_pattern: bool) -> bool:
    """Say whether an object matches a pattern, or lies anywhere in a folder."""
    if not has_pattern:
        return fnmatch.fnmatchcase(names[-1], pattern[-1])
    return len(names) == len(pattern) and all(map(fnmatch.fnmatchcase, names, pattern))


def _remote_file(
    location: locations.Location, stored: Facts, partitions: Mapping[str, str | None] = {}
) -> File:
    stamp = stored["e_tag"] or f"{stored['size']}-{stored['last_modified'].isoformat()}"
    return File(location, _kind(location.path), str(stamp), partitions)


def _kind(path: str) -> str:
    kind = table_kind(path)
    if kind == ".xls":
        raise StorageError(f"{path} is a spreadsheet of another form than .xlsx; expected that. Save it so")
    return kind or ""


def _find_kind(path: Path) -> str:
    """Return the kind of a file by how it begins; text is taken for CSV or JSON.

    Raises StorageError if it is neither text nor of a known kind.
    """
    with tables.opening(path, "a table"), pyarrow.input_stream(str(path), compression="detect") as stream:
        begin = stream.read(2**12)
    for beginning, kind in _BEGINNINGS.items():
        if begin.startswith(beginning):
            return kind
    what = next((name for name, pattern in _OTHERS.items() if re.match(pattern, begin)), None)
    if what is not None or b"\0" in begin:
        raise StorageError(
            f"{path} is {what or 'of an unknown type'}; expected text such as CSV or JSON, .parquet, .arrow, "
            ".feather, .xlsx, .npy, .npz or a folder of Parquet files. Convert it, or give its `format`"
        )
    return ".jsonl" if begin.lstrip()[:1] in (b"[", b"{") else ".csv"


def table_kind(path: str) -> str | None:
    """Return the kind of a file by its name, see `File`; None if it is unknown."""
    name = spreadsheets.split_sheet(path)[0].lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    for kind, suffixes in _KINDS.items():
        ends = _COMPRESSED if kind in (".csv", ".jsonl") else ("",)
        if name.endswith(tuple(suffix + end for suffix in suffixes for end in ends)):
            return kind
    return None


# -- as tables -------------------------------------------------------------------------------------


def open_table(file: File, path: Path, reading: Reading, partitions: Mapping[str, Any] = {}) -> tables.Table:
    """Open a file as a table; its rows are not read yet.

    `path`: where it is here.
    `partitions`: columns of one value, which the names of the file's folders give, as Arrow scalars.
    Raises StorageError if it cannot be read; DataError if it is no table.
    """
    open_it: Mapping[str, Callable[[Path], tables.Table]] = {
        ".csv": lambda path: csv_files.csv_table(path, reading),
        ".parquet": array_files.parquet_table,
        ".arrow": array_files.arrow_table,
        ".jsonl": array_files.json_table,
        ".xlsx": lambda path: spreadsheets.sheet_table(path, file.sheet, reading),
        ".npy": lambda path: array_files.array_table([path]),
        ".zarr": array_files.group_table,
    }
    if file.lake is not None:
        return file.lake.rows
    kind = (
        file.kind if path.is_dir() else reading.kind or file.kind or table_kind(path.name) or _find_kind(path)
    )
    if kind not in open_it:
        raise DataError(
            f"{path.name} is an {kind} file, which holds arrays, not columns; expected a table: .csv, "
            ".tsv, .jsonl, .parquet, .arrow, .feather, .xlsx or .npy"
        )
    table = tables.with_lists(open_it[kind](path))
    return _with_partitions(table, partitions) if partitions else table


def partition_values(partitions: Sequence[Mapping[str, str | None]]) -> list[dict[str, Any]]:
    """Return the columns that names of folders give, as Arrow scalars of one type in all files.

    `partitions`: for each file, the texts by the names of columns.
    """
    columns = {}
    for name in {name for texts in partitions for name in texts}:
        columns[name] = pyarrow.array([texts.get(name) for texts in partitions], pyarrow.string())
        # The values of all files at once, so that a column has one type in all of them.
        for kind in (pyarrow.int64(), pyarrow.float64(), pyarrow.date32()):
            with suppress(pyarrow.ArrowException):
                columns[name] = compute.cast(columns[name], kind)
                break
    return [{name: columns[name][i] for name in texts} for i, texts in enumerate(partitions)]


def _with_partitions(table: tables.Table, partitions: Mapping[str, Any]) -> tables.Table:
    """Add columns of one value each, which replace columns of the same names."""
    fields = [field for field in table.schema if field.name not in partitions]
    added = [pyarrow.field(name, value.type) for name, value in partitions.items()]

    def batches(types: tables.Types) -> tables.Batches:
        stored = {name: kind for name, kind in types.items() if name not in partitions}
        if not stored:  # one column must be read to count the rows
            stored = {field.name: field.type for field in fields[:1]}
        for batch in table.batches(stored):
            columns = {name: batch.column(name) for name in stored}
            for name, value in partitions.items():
                column = pyarrow.repeat(value, batch.num_rows)
                columns[name] = column.cast(types.get(name, value.type))
            yield pyarrow.RecordBatch.from_pydict(columns)

    return replace(table, schema=pyarrow.schema([*fields, *added]), batches=batches)
