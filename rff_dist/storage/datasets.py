"""Datasets in Zarr: X, y and weights, read by block.

A URL goes in; a dataset comes out, of a Zarr group with `X` (n_samples, n_features)
and, for training, `y`. Arrays that Zarr opens would not do: what workers read could
change during a pass, and shapes and names would not be checked. Datasets that this
package wrote are chunked along the rows only, checksummed (crc32c), complete or absent,
and have a manifest. Data of other writers are read as they are: Zarr format 2 or 3,
sharded or not, with or without checksums.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, TypedDict, Unpack, overload

from rff_dist.data import array_checks, memory, xarrays
from rff_dist.data.grid_attributes import marks_of
from rff_dist.data.grids import GridDataset
from rff_dist.errors import NoSuchVersionError, StorageError
from rff_dist.storage import grids as stored_grids
from rff_dist.storage import manifests, repositories
from rff_dist.storage.groups import StoredArray, StoredGroup, find_group
from rff_dist.storage.locations import json_digest, parse_location
from rff_dist.storage.manifests import RECORD, Header
from rff_dist.typing import AnyArray, Facts, PathLike

_ROLES = ("X", "y", "sample_weight")  # the arrays' names where this package writes them
_log = logging.getLogger(__name__)

#: Names of the arrays X, y and sample_weight in a group; None for an array that is not
#: read.
type ArrayNames = tuple[str, str | None, str | None]


@dataclass(frozen=True, eq=False)
class ZarrDataset(memory.IndexedDataset):
    """Rows in Zarr, made by `open_dataset`, which checks shapes and dtypes.

    It pickles as its URL and options, and unpickling opens it again. So a task carries
    no store and no credentials.
    """

    X: StoredArray  # shape (n_samples, n_features)
    #: Shape (n_samples,) or (n_samples, n_targets).
    y: StoredArray | None = None
    #: Shape (n_samples,); None means 1 for each row.
    sample_weight: StoredArray | None = None
    attributes: Facts = field(default_factory=dict)  # of the group
    feature_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    missing_chunks: str = "error"  # or "fill", as in `open_dataset`
    version: str | None = None  # the snapshot of a versioned dataset
    _array_names: ArrayNames = _ROLES

    @property
    def url(self) -> str:  # type: ignore[override]  # read-only
        return self._group.url

    @property
    def _group(self) -> StoredGroup:
        return self.X.group

    @property
    def chunk_rows(self) -> int:
        return self.X.header.stored_rows

    # for messages; rows in memory have none, though blocks are cut by `chunk_rows`
    @property
    def stored_chunk_rows(self) -> int:
        return self.chunk_rows

    @property
    def _parts(self) -> dict[str, StoredArray]:
        arrays = zip(_ROLES, (self.X, self.y, self.sample_weight), strict=True)
        return {role: array for role, array in arrays if array is not None}

    def without_targets(self) -> Self:
        x, _, weight = self._array_names
        return replace(self, y=None, target_names=None, _array_names=(x, None, weight))

    def fingerprint(self) -> str:
        """Return a digest of the data, which is the same for a copy elsewhere.

        It covers shapes, dtypes, chunks and codecs. For datasets that this package
        wrote it covers the manifest's digest of all values, and for plain Zarr the
        values of up to 8 chunks of each array, the first and the last among them. So it
        notices other data, appended rows and a rewritten dataset. It does not notice
        that another program changed a chunk of plain Zarr in place, outside the sample.
        """
        rows_digest = self._group.manifest.get(manifests.ROWS_DIGEST)
        facts = {}
        for role, part in self._parts.items():
            if self.version is not None and rows_digest is not None:
                # A snapshot never changes, so its manifest is enough, and no chunk is
                # read.
                facts[role] = part.header.text
            else:
                # Chunks without versions, of plain Zarr or of this package, may be
                # changed by any program, so some of them are read each time.
                facts[role] = part.fingerprint()
        return json_digest([rows_digest, self._array_names, facts])

    @cached_property  # For plain Zarr in an object store it lists all objects.
    def _content_key(self) -> str | None:
        return self._group.content_key(self._array_names, self.missing_chunks)

    def content_key(self) -> str | None:
        """Return a key of the rows, if stored for good; see `engines.resuming`."""
        return self._content_key

    def recorded_prefix(self, n_samples: int) -> str | None:
        """Return the manifest's digest of the first rows, if a version ended there."""
        if self.version is None:
            return None
        # Pairs of a number of rows and their digest, oldest first. An append that only
        # changes attributes adds a pair with the same number: the first one counts.
        prefixes = self._group.manifest.get(manifests.PREFIXES, ())
        for n_rows, digest in prefixes:
            if n_rows == n_samples:
                return json_digest([n_samples, digest, self._array_names])
        return None

    def check_unchanged(self) -> None:
        self._group.check_unchanged()

    def can_travel(self) -> bool:
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, (self._group, self._array_names, self.missing_chunks)

    def __repr__(self) -> str:
        return (
            f"ZarrDataset({self.X.label}: {self.n_samples:_} rows,"
            f" {self.n_features} features, {self.n_targets} targets, {self.dtype})"
        )


class _OpenOptions(TypedDict, total=False):
    y: str | None
    sample_weight: str | None
    missing_chunks: str
    version: str | None


@overload
def open_dataset(
    url: PathLike, *, x: str = "X", **options: Unpack[_OpenOptions]
) -> ZarrDataset: ...


@overload
def open_dataset(
    url: Any, *, x: Sequence[str], **options: Unpack[_OpenOptions]
) -> GridDataset: ...


def open_dataset(
    url: Any,
    *,
    x: str | Sequence[str] = "X",
    y: str | None = "y",
    sample_weight: str | None = None,
    missing_chunks: str = "error",
    version: str | None = None,
) -> ZarrDataset | GridDataset:
    """Open a dataset for reading; metadata are checked, no rows are read.

    Parameters
    ----------
    url : str or Path
        A local path, or a URL of an object store (`s3://`, `gs://`, `az://`,
        `https://`). For a grid also a Dataset of xarray.
    x, y : str, default="X", "y"
        Names of the arrays in the group. A group without "y" has no targets, which is
        enough to predict for; a `y` of another name must exist, except in a Dataset of
        xarray. None reads no targets.
        If `x` is a list of names, these are variables and coordinates of a grid, which
        has named dimensions, and a row is a cell that has all of them; variables that
        may miss some are read once for that. A time becomes three columns: its days
        since 1970, and sine and cosine of the day of the year. A variable with the
        attributes `flag_values` and `flag_meanings` is a category, by its meanings.
    sample_weight : str, optional
        Name of the weights' array. None gives all rows the same weight, and logs a
        warning if there is an array "sample_weight".
    missing_chunks : {"error", "fill"}, default="error"
        Meaning of a chunk that is not in the store: lost data ("error"), or a chunk
        that held only the fill value ("fill"), which Zarr does not write by default.
        Inside a shard that exists, Zarr always reads missing chunks as the fill value.
    version : str, optional
        For versioned data: a tag or a snapshot's name. None opens the current version;
        later commits do not change what the opened dataset reads.

    Raises
    ------
    NoSuchVersionError
        If the dataset has no such version.
    StorageError
        If there is no such dataset, or its arrays are not numbers, X not 2-D, y not 1-D
        or 2-D, or their numbers of rows differ.
    DataError
        If X has no column, or a variable has the attribute `flag_masks`.
    MissingDependencyError
        If the scheme needs a package that is not installed.
    """
    if not isinstance(x, str) and xarrays.is_xarray(url):
        return xarrays.open_xarray(
            url, y if y in url.variables else None, sample_weight, inputs=x
        )
    group = find_group(url, version)
    if not isinstance(x, str):
        target = None if y == "y" and y not in group.list_arrays() else y
        return stored_grids.open_grid(
            group, x, target, sample_weight, missing_chunks=missing_chunks
        )
    return _open(group, (x, y, sample_weight), missing_chunks, warns=True)


def _open(
    group: StoredGroup, names: ArrayNames, missing_chunks: str, warns: bool = False
) -> ZarrDataset:
    """Open a group's arrays; with `warns`, log stored weights and marks that are not
    used.

    Workers, and whoever compares versions, open them without `warns`: a warning comes
    once.
    """
    arrays = dict[str, StoredArray]()
    for role, name in zip(_ROLES, names, strict=True):
        if name is None:
            continue
        # Text is accepted for y here, so that it is refused in words about labels.
        array = group.find_array(name, missing_chunks, allows_text=role == "y")
        if array is None and (role, name) == ("y", "y"):
            continue
        if array is None and RECORD in group.manifest:
            raise StorageError(
                f"{group.url} is a model; expected a dataset. In Python load_model"
                " opens it"
            )
        if array is None:
            advice = ""
            if role == "y":
                advice = ". A column of a table is y if it was ingested as a target"
            raise StorageError(
                f"{group.url} has no array {name!r}; it holds"
                f" {group.describe_arrays()}. Expected {role} there; name it by"
                f" `{role if role != 'X' else 'x'}`, in Python as"
                f" open_dataset({group.url!r}, x=…, y=…){advice}"
            )
        if array.header.dtype.kind in "UT":
            raise StorageError(
                f"{array.label} holds labels (text); expected numbers to regress on."
                " Train a classifier on it (RFFClassifier, or `rff-dist fit"
                " --classify`); in Python, y = None leaves it out"
            )
        arrays[role] = array
    if warns:
        _warn(group, names, arrays)
    _check_shapes(arrays)
    target_names = None
    if "y" in arrays:
        n_targets = math.prod(arrays["y"].shape[1:])  # 1 for a vector
        target_names = _column_names(group, "target_names", n_targets)
    return ZarrDataset(
        **arrays,
        attributes=group.attributes,
        feature_names=_column_names(group, "feature_names", arrays["X"].shape[1]),
        target_names=target_names,
        missing_chunks=missing_chunks,
        version=group.version,
        _array_names=names,
    )


def _warn(
    group: StoredGroup, names: ArrayNames, arrays: Mapping[str, StoredArray]
) -> None:
    """Log stored weights that are not read, and marks of missing values that are read
    as numbers.
    """
    may_need_weights = "y" in arrays and names[2] is None
    if may_need_weights and group.read_header("sample_weight", allows_text=True):
        _log.warning(
            "%s holds sample weights, which are not used; give"
            ' sample_weight="sample_weight" to use them',
            group.url,
        )
    for array in arrays.values():
        if array.header.is_marked:  # this package wrote it
            continue
        marks = marks_of(dict(array.array.attrs), array.header.dtype)
        if marks.size:
            _log.warning(
                "%s is read as it is, though its attributes say that %s means a missing"
                " value. Drop such rows, or name the variables of a grid by a list:"
                " x=[…]",
                array.label,
                marks.tolist(),
            )


def compare_versions(
    dataset: ZarrDataset, version: str
) -> tuple[ZarrDataset, ZarrDataset, list[tuple[int, int]]]:
    """Return another version of a dataset, the dataset again, and where they differ.

    The two share a cache, so that common chunks are read once. They may differ in rows
    of the other version that lie in changed chunks, or beyond the dataset's last row:
    these are ascending ranges (start, stop).

    Raises NoSuchVersionError if the version has expired or belongs to another dataset,
    or if the dataset's arrays were written again since.
    """
    group = dataset._group
    names = dataset._array_names
    if dataset.version is None:
        raise NoSuchVersionError(f"{dataset!r} keeps no versions")
    location = parse_location(group.url)
    other_snapshot = repositories.find_snapshot(location, version)
    snapshots = (other_snapshot, dataset.version)
    stores = repositories.open_together(location, *snapshots)
    # `sha256` of `group` is the digest of one version only
    other, same = (
        _open(
            replace(group, version=snapshot, snapshot=store, sha256=None),
            names,
            dataset.missing_chunks,
        )
        for snapshot, store in zip(snapshots, stores, strict=True)
    )
    rows = dataset.chunk_rows
    # Icechunk lists no chunk that only `other` has. So the chunks of `other` beyond the
    # dataset's rows come first, with the dataset's last chunk if that is partial.
    numbers = {*range(dataset.n_samples // rows, -(-other.n_samples // rows))}
    is_rewritten = other.chunk_rows != rows
    changed = repositories.changed_chunks(location, *snapshots)
    for name, chunks in changed.items():
        if name not in names:
            continue
        if chunks is None:  # the array was made or deleted, so all of them differ
            is_rewritten = True
        else:
            numbers.update(chunk[0] for chunk in chunks)
    if is_rewritten:
        raise NoSuchVersionError(
            f"all rows of {location} were written again since version {other_snapshot}"
        )
    spans = []
    for start in (number * rows for number in sorted(numbers)):
        if start < other.n_samples:  # it may be shorter
            spans.append((start, min(start + rows, other.n_samples)))
    return other, same, spans


def _check_shapes(arrays: Mapping[str, StoredArray]) -> None:
    X = arrays["X"]
    for role, array in arrays.items():
        array_checks.check_axes(role, array.shape, array.label, StorageError)
        if array.shape[0] != X.shape[0]:
            raise StorageError(
                f"{X.label} has {X.shape[0]:_} rows and {array.label}"
                f" {array.shape[0]:_}; expected as many. Write both again"
            )


def _column_names(
    group: StoredGroup, key: str, n_columns: int
) -> tuple[str, ...] | None:
    names = group.attributes.get(key)
    if names is None:
        return None
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not is_list or len(names) != n_columns:
        raise StorageError(
            f"attribute {key!r} of {group.url} is {str(names)[:100]}; expected a list"
            f" of {n_columns} names"
        )
    return tuple(names)


# -- read any arrays of a group


def list_arrays(
    url: PathLike, version: str | None = None
) -> tuple[dict[str, Any], dict[str, Header]]:
    """Return the attributes of a group, complete or not, and its arrays' headers by
    name, sorted; no rows are read.
    """
    group = find_group(url, version, may_be_unfinished=True)
    # First the arrays in the manifest: one that is gone raises here, and would only be
    # absent from the listing below.
    headers = {name: group.read_header(name, allows_text=True) for name in group.parts}
    for name in group.list_arrays():
        headers[name] = group.read_header(name, allows_text=True)
    return group.attributes, {
        name: header for name, header in sorted(headers.items()) if header
    }


def read_arrays(
    url: PathLike, names: Sequence[str], *, n_rows: int, version: str | None = None
) -> Iterator[dict[str, AnyArray]]:
    """Yield the rows of arrays of a complete group, `n_rows` at a time.

    Any group may be read: if its arrays differ in length, the shortest one decides.
    """
    group = find_group(url, version)
    arrays = {name: group.open_array(name) for name in names}
    n_samples = min(array.header.shape[0] for array in arrays.values())
    for start in range(0, n_samples, n_rows):
        stop = min(start + n_rows, n_samples)
        yield {name: array.read(start, stop) for name, array in arrays.items()}
