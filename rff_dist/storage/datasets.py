"""Datasets in Zarr: X, y and weights, read by block.

A dataset is a Zarr group with `X` (n_samples, n_features) and, for training, `y`. Datasets that this package
wrote are chunked along the rows only, checksummed (crc32c), complete or absent, and have a manifest in the
attribute `rff_dist`. Data of other writers are read as they are: Zarr format 2 or 3, sharded or not, with or
without checksums.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Self, TypedDict, Unpack, overload

import numpy as np
import zarr

from rff_dist.data import blocks, grids, memory, xarrays
from rff_dist.errors import IntegrityError, NoSuchVersionError, StorageError
from rff_dist.storage import documents, groups, locations, repositories
from rff_dist.storage import grids as stored_grids
from rff_dist.storage.arrays import Header, ZarrArray, gather_rows, read_rows, require_chunks, sample_digest
from rff_dist.typing import AnyDType, Facts, PathLike

_ROLES = ("X", "y", "sample_weight")  # the arrays' names where this package writes them
_log = logging.getLogger(__name__)

#: Names of the arrays X, y and sample_weight in a group; None for an array that is not read.
type ArrayNames = tuple[str, str | None, str | None]


@dataclass(frozen=True, eq=False)
class ZarrDataset(memory.ArraysDataset):
    """Rows in Zarr, made by `open_dataset` or `dataset_from_arrays`, which check shapes and dtypes.

    It pickles as its URL and options, and unpickling opens it again. So a task carries no store and no
    credentials.

    `X`: zarr.Array of shape (n_samples, n_features). Inputs.
    `y`: zarr.Array or ndarray of shape (n_samples,) or (n_samples, n_targets), or None. Targets.
    `sample_weight`: zarr.Array or ndarray of shape (n_samples,), or None. Weights; None means 1 for each row.
    `url`: where it is stored; None for arrays that were handed over open.
    `version`: the snapshot of a versioned dataset.
    `feature_names`, `target_names`: column names, if the group's attributes hold them.
    `missing_chunks`: {"error", "fill"}. As in `open_dataset`.

    >>> from rff_dist.storage.writing import write_dataset
    >>> write_dataset("memory://small", np.eye(3), [1.0, 2.0, 3.0])
    ZarrDataset(array 'X' of memory://small: 3 rows, 3 features, 1 targets, float64)
    >>> open_dataset("memory://small").take([2, 0]).y.tolist()
    [[3.0], [1.0]]
    """

    X: ZarrArray
    y: ZarrArray | np.ndarray | None = None
    sample_weight: ZarrArray | np.ndarray | None = None
    url: str | None = None
    attributes: Facts = field(default_factory=dict)
    feature_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    missing_chunks: str = "error"
    version: str | None = None
    _headers: Mapping[str, Header] = field(default_factory=dict)
    _labels: Mapping[str, str] = field(default_factory=dict)
    _group: groups.StoredGroup | None = None  # None for arrays that were handed over open
    _array_names: ArrayNames = _ROLES

    @property
    def dtype(self) -> AnyDType:
        return self._headers["X"].dtype

    @property
    def chunk_rows(self) -> int:
        return self._headers["X"].stored_rows

    def read(self, block: blocks.Block) -> blocks.Rows:
        """Read the rows of one block.

        X is in its stored dtype, y float64 of shape (rows, n_targets).

        Raises StorageError if there are no such rows, a chunk is missing (unless `missing_chunks="fill"`) or
          the store does not answer; IntegrityError if a chunk's bytes are damaged.
        """
        return blocks.Rows(block, *self._select(slice(block.start, block.stop)), chunk_rows=self.chunk_rows)

    def read_weight(self, block: blocks.Block) -> np.ndarray | None:
        weight = self._part("sample_weight", slice(block.start, block.stop))
        return None if weight is None else weight.astype(np.float64)

    def without_targets(self) -> Self:
        x, _, weight = self._array_names
        return replace(self, y=None, target_names=None, _array_names=(x, None, weight))

    def take(self, indices: np.ndarray | Sequence[int]) -> memory.Sample:
        """Read single rows, in the order of `indices`; each stored chunk is read at most once.

        `indices`: int array of shape (n_indices,). Row numbers, repeats allowed.
        Raises InvalidParameterError if a row number lies outside the dataset.
        """
        # Ascending and without repeats for the store, then in the order that was asked for.
        wanted = memory.check_indices(indices, self.n_samples)
        rows, places = np.unique(wanted, return_inverse=True)
        X, *others = self._select(rows)
        return memory.Sample(X[places], *(None if part is None else part[places] for part in others))

    def fingerprint(self) -> str:
        """Return a digest of the data, which is the same for a copy elsewhere.

        It covers shapes, dtypes, chunks and codecs. For datasets that this package wrote it covers the
        manifest's digest of all values, and for plain Zarr the values of up to 8 chunks of each array, the
        first and the last among them. So it notices other data, appended rows and a rewritten dataset. It
        does not notice that another program changed a chunk of plain Zarr in place, outside the sample.
        """
        # Chunks of plain Zarr may be changed by any program, so some of them are read each time.
        digest, manifest = hashlib.sha256(), documents.manifest_of(self.attributes)
        # A snapshot never changes, so its manifest is enough, and no chunk is read.
        if self.version is not None and "sha256" in manifest:
            metadata = {name: header.text for name, header in self._headers.items()}
            identity = json.dumps([manifest["sha256"], self._identity(), metadata])
            return hashlib.sha256(identity.encode()).hexdigest()
        for name in _ROLES:
            array = getattr(self, name)
            digest.update(f"{name}:".encode())
            if isinstance(array, np.ndarray):
                digest.update(memory.digest_array(array).encode())
            elif array is not None:
                digest.update(sample_digest(array, self._headers[name], label=self._labels[name]).encode())
        if manifest:
            digest.update(str(manifest.get("sha256")).encode())
        return digest.hexdigest()

    @cached_property  # For plain Zarr in an object store it lists all objects.
    def _content_key(self) -> str | None:
        group = self._group
        return None if group is None else group.content_key(self._array_names, self.missing_chunks)

    def content_key(self) -> str | None:
        """Return a key of the stored rows, for the names of kept sums; None if the rows may change.

        See `engines.resuming`.
        """
        return self._content_key

    def recorded_prefix(self, n_samples: int) -> str | None:
        if self.version is None:
            return None
        line = documents.manifest_of(self.attributes).get(documents.LINE, ())
        digest = next((digest for n, digest in line if n == n_samples), None)
        identity = json.dumps([n_samples, digest, self._identity()])
        return None if digest is None else hashlib.sha256(identity.encode()).hexdigest()

    def _identity(self) -> list[str]:
        """Return the arrays' paths in the group."""
        arrays = (self.X, self.y, self.sample_weight)
        return ["" if array is None else getattr(array, "path", "") for array in arrays]

    def check_unchanged(self) -> None:
        if self._group is not None:
            self._group.check_unchanged()

    def can_travel(self) -> bool:
        if self._group is not None:
            return self._group.process is None
        arrays = (self.X, self.y, self.sample_weight)
        stores = [array.store for array in arrays if isinstance(array, zarr.Array)]
        return all(groups.local_root(store, "") is not None for store in stores)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._group is not None:
            return _open, (self._group, self._array_names, self.missing_chunks)
        if not self.can_travel():
            raise groups.cannot_travel(self._labels["X"], self.X.store, "the data with open_dataset(url)")
        reopen = partial(dataset_from_arrays, missing_chunks=self.missing_chunks)
        return reopen, (self.X, self.y, self.sample_weight)

    def __repr__(self) -> str:
        return (
            f"ZarrDataset({self._labels['X']}: {self.n_samples:_} rows, {self.n_features} features, "
            f"{self.n_targets} targets, {self.dtype})"
        )

    def _select(self, rows: slice | np.ndarray) -> tuple[Any, np.ndarray | None, np.ndarray | None]:
        X, y, weight = (self._part(name, rows) for name in _ROLES)
        y = None if y is None else memory.as_targets(y)
        return X, y, None if weight is None else weight.astype(np.float64)

    def _part(self, name: str, rows: slice | np.ndarray) -> np.ndarray | None:
        """Return rows of X, y or the weights: a slice, or ascending row numbers without repeats."""
        array = getattr(self, name)
        if array is None or isinstance(array, np.ndarray):
            return None if array is None else array[rows]
        try:
            if isinstance(rows, slice):
                return read_rows(array, rows.start, rows.stop, label=self._labels[name])
            return gather_rows(array, rows, label=self._labels[name])
        except StorageError as error:
            # Damaged bytes are reported as such. Any other failure may come from a change meanwhile, and so
            # may a whole chunk that is not the one expected: `check_unchanged` then raises ConflictError.
            if not isinstance(error, IntegrityError) or isinstance(error.__cause__, groups.WrongChunkError):
                self.check_unchanged()
            raise


class _Names(TypedDict, total=False):
    y: str | None
    sample_weight: str | None
    missing_chunks: str
    version: str | None


@overload
def open_dataset(url: PathLike | zarr.Group, *, x: str = "X", **names: Unpack[_Names]) -> ZarrDataset: ...


@overload
def open_dataset(url: Any, *, x: Sequence[str], **names: Unpack[_Names]) -> grids.GridDataset: ...


def open_dataset(
    url: Any,
    *,
    x: str | Sequence[str] = "X",
    y: str | None = "y",
    sample_weight: str | None = None,
    missing_chunks: str = "error",
    version: str | None = None,
) -> ZarrDataset | grids.GridDataset:
    """Open a dataset for reading; metadata are checked, no rows are read.

    Parameters
    ----------
    url : str, Path or zarr.Group
        A local path (a folder or a ZIP), `memory://name`, or a URL of an object store (`s3://`, `gs://`,
        `az://`, `https://`). For a grid also a Dataset of xarray.
    x, y : str, default="X", "y"
        Names of the arrays in the group. A group without "y" has no targets, which is enough to predict for;
        a `y` of another name must exist. None reads no targets. If `x` is a list of names, these are
        variables and coordinates of a grid, which has named dimensions, and a row is a cell that has all of
        them; variables that may miss some are read once for that. A time becomes three columns: its days
        since 1970, and sine and cosine of the day of the year.
    sample_weight : str, optional
        Name of the weights' array. None weighs all rows alike, and logs a warning if there is an array
        "sample_weight".
    missing_chunks : {"error", "fill"}, default="error"
        What a chunk that is not in the store means: lost data ("error"), or a chunk that held only the fill
        value ("fill"), which Zarr does not write by default. Inside a shard that exists, Zarr always reads
        missing chunks as the fill value.
    version : str, optional
        For versioned data: a tag, a branch, or a snapshot's name or its first characters. None opens the
        current version; later commits do not change what the opened dataset reads.

    Raises
    ------
    NoSuchVersionError
        If the dataset has no such version.
    StorageError
        If there is no such dataset, or its arrays are not numbers, X not 2-D, y not 1-D or 2-D, or their
        numbers of rows differ.
    DataError
        If X has no column.
    MissingDependencyError
        If the scheme needs a package that is not installed.
    """
    if not isinstance(x, str) and xarrays.is_xarray(url):
        return xarrays.open_xarray(url, y if y in url.variables else None, sample_weight, inputs=x)
    group = groups.find_group(url, version)
    if not isinstance(x, str):
        target = None if y == "y" and y not in group.list_arrays() else y
        return stored_grids.open_grid(group, x, target, sample_weight, missing_chunks=missing_chunks)
    return _open(group, (x, y, sample_weight), missing_chunks, is_first=True)


def dataset_from_arrays(
    X: ZarrArray,
    y: ZarrArray | np.ndarray | None = None,
    sample_weight: ZarrArray | np.ndarray | None = None,
    *,
    missing_chunks: str = "error",
) -> ZarrDataset:
    """Make a dataset of open Zarr arrays, from one group or several.

    It can be sent to other processes if the arrays lie in local folders.

    `X`: zarr.Array of shape (n_samples, n_features). Inputs.
    `y`: zarr.Array or ndarray of shape (n_samples,) or (n_samples, n_targets). Targets.
    `sample_weight`: zarr.Array or ndarray of shape (n_samples,). Weights.
    `missing_chunks`: {"error", "fill"}. As in `open_dataset`.
    Raises StorageError if the arrays are not numbers or have other shapes; DataError if their numbers of rows
      differ, or X has no column.
    """
    arrays: dict[str, Any] = {"X": X, "y": y, "sample_weight": sample_weight}
    headers, labels = {}, {}
    for name, array in arrays.items():
        if isinstance(array, zarr.Array):
            headers[name], labels[name], opened = groups.take_open(array, name)
            arrays[name] = require_chunks(opened, missing_chunks)
        elif array is not None:
            memory.require_numbers(name, np.asarray(array))
            arrays[name], labels[name] = np.asarray(array), f"array {name!r} in memory"
    shapes = {name: array.shape for name, array in arrays.items() if array is not None}
    memory.require_rows({name: shape[0] if shape else 0 for name, shape in shapes.items()})
    _check_shapes(shapes, labels)
    return ZarrDataset(**arrays, missing_chunks=missing_chunks, _headers=headers, _labels=labels)


def _open(group: groups.StoredGroup, names: ArrayNames, missing: str, is_first: bool = False) -> ZarrDataset:
    """Open a group's arrays; if it `is_first`, log that weights are not used: once, not on each worker."""
    place = group.place
    name_of = {role: name for role, name in zip(_ROLES, names, strict=True) if name is not None}
    headers, arrays = dict[str, Header](), dict[str, Any]()
    # Text is accepted for y only to tell the user what to do with labels.
    for role, name in name_of.items():
        found = group.open_array(name, text=role == "y", missing_chunks=missing)
        if found is not None and found[0].dtype.kind in "UT":
            raise StorageError(
                f"{group.label(name)} holds labels (text); expected numbers to regress on. Train a "
                "classifier on it (RFFClassifier, or `rff-dist fit --classify`), or leave it out with y=None"
            )
        if found is not None:
            headers[role], arrays[role] = found
        elif (role, name) != ("y", "y"):
            raise StorageError(
                f"{place} has no array {name!r}; it holds {group.array_names()}. "
                f"Expected {role} there; name it by `{role if role != 'X' else 'x'}`"
            )
    is_unused = is_first and "y" in headers and names[2] is None
    if is_unused and group.read_header("sample_weight", text=True):
        _log.warning(
            '%s holds sample weights, which are not used; give sample_weight="sample_weight" to use them',
            place,
        )
    labels = {role: group.label(name_of[role]) for role in headers}
    for role, array in arrays.items() if is_first else ():
        if (marks := grids.marks_of(dict(array.attrs), headers[role].dtype)).size:
            _log.warning(
                "%s is read as it is, though its attributes say that %s means a missing value. Drop such "
                "rows, or name the variables of a grid by a list: x=[…]",
                labels[role],
                marks.tolist(),
            )
    _check_shapes({role: header.shape for role, header in headers.items()}, labels)
    n_targets = (headers["y"].shape[1:] or (1,))[0] if "y" in headers else 0
    return ZarrDataset(
        **arrays,
        url=group.url,
        attributes=group.attributes,
        feature_names=_names(group.attributes, "feature_names", headers["X"].shape[1], place),
        target_names=_names(group.attributes, "target_names", n_targets, place) if n_targets else None,
        missing_chunks=missing,
        version=group.version,
        _headers=headers,
        _labels=labels,
        _group=group if group.url is not None else None,
        _array_names=names,
    )


def changed_rows(
    dataset: ZarrDataset, version: str
) -> tuple[ZarrDataset, ZarrDataset, list[tuple[int, int]]]:
    """Return another version of a dataset, and which of its rows lie in chunks that differ.

    Returns `other`: the other version, with the same arrays and options; `same`: the dataset again, sharing
      a cache with `other`, so that common chunks are read once; `ranges`: ascending (start, stop) rows of
      `other` in chunks that differ or beyond the dataset's last row.
    Raises NoSuchVersionError if the version has expired or belongs to another dataset, or if the dataset's
      arrays were written again since.
    """
    group, names = dataset._group, dataset._array_names
    if group is None or dataset.version is None:
        raise NoSuchVersionError(f"{dataset!r} keeps no versions")
    location = locations.parse_location(str(group.url))
    before = repositories.find_snapshot(location, version)
    # One cache for both: a chunk that did not change is the same object, and is read once.
    stores = repositories.open_together(location, before, dataset.version)
    other, same = (
        _open(replace(group, version=name, store=store, sha256=None), names, dataset.missing_chunks)
        for name, store in zip((before, dataset.version), stores, strict=True)
    )
    changed = repositories.changed_chunks(location, before, dataset.version)
    chunks = [changed.get(name, set()) for name in names if name is not None]
    numbers = {place[0] for places in chunks if places is not None for place in places}
    if None in chunks or other.chunk_rows != dataset.chunk_rows:
        raise NoSuchVersionError(f"all rows of {location} were written again since version {before}")
    rows = dataset.chunk_rows
    # Chunks that only `other` has are in no list of changes.
    beyond = range(dataset.n_samples // rows, -(-other.n_samples // rows))
    left = [i for i in sorted(numbers.union(beyond)) if i * rows < other.n_samples]  # `other` may be shorter
    return other, same, [(i * rows, min((i + 1) * rows, other.n_samples)) for i in left]


def _check_shapes(shapes: Mapping[str, tuple[int, ...]], labels: Mapping[str, str]) -> None:
    X = shapes["X"]
    if len(X) != 2:
        advice = (
            "Reshape it: one feature is (n_samples, 1)" if len(X) == 1 else "Flatten each sample to one row"
        )
        raise StorageError(f"{labels['X']} has shape {X}; expected 2 axes (n_samples, n_features). {advice}")
    memory.require_columns(X, labels["X"])
    y, weight = shapes.get("y"), shapes.get("sample_weight")
    if y is not None and (len(y) not in (1, 2) or y[1:] == (0,)):
        raise StorageError(f"{labels['y']} has shape {y}; expected (n_samples,) or (n_samples, n_targets)")
    if y is not None and y[0] != X[0]:
        raise StorageError(
            f"{labels['X']} has {X[0]:_} rows and {labels['y']} {y[0]:_}; expected as many. Write both again"
        )
    if weight is not None and weight != (X[0],):
        raise StorageError(f"{labels['sample_weight']} has shape {weight}; expected ({X[0]},)")


def _names(attributes: Facts, key: str, width: int, place: str) -> tuple[str, ...] | None:
    names = attributes.get(key)
    if names is None:
        return None
    if not isinstance(names, list) or len(names) != width or not all(isinstance(n, str) for n in names):
        raise StorageError(
            f"attribute {key!r} of {place} is {str(names)[:100]}; expected a list of {width} names"
        )
    return tuple(names)


# -- read any arrays of a group -------------------------------------------------------------------


def list_arrays(url: PathLike, version: str | None = None) -> tuple[dict[str, Any], dict[str, Header]]:
    """Return the attributes of the group at `url` and its arrays' headers by name, sorted; no rows are read.

    `version`: a version of a versioned dataset; None: the current one.
    Raises StorageError if there is no Zarr group, or an array's metadata cannot be read.
    """
    group = groups.find_group(url, version, unfinished=True)
    # Arrays that the manifest binds may be missing from the listing; reading their headers then raises.
    # First what the manifest binds: an array that is gone is missed here, before the listing hides it.
    headers = {name: group.read_header(name, text=True) for name in group.parts}
    headers |= {name: group.read_header(name, text=True) for name in group.list_arrays()}
    return group.attributes, {name: header for name, header in sorted(headers.items()) if header}


def read_arrays(
    url: PathLike, names: Sequence[str], *, n_rows: int, version: str | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the rows of arrays of the group at `url`, `n_rows` at a time.

    `version`: a version of a versioned dataset; None: the current one.
    Raises StorageError if there is no complete group, or a chunk cannot be read.
    """
    group = groups.find_group(url, version)
    arrays = {name: group.require_array(name)[1] for name in names}
    n_samples = min(array.shape[0] for array in arrays.values())
    for start in range(0, n_samples, n_rows):
        stop = min(start + n_rows, n_samples)
        yield {name: read_rows(array, start, stop, label=f"array {name!r}") for name, array in arrays.items()}
