"""Datasets: rows of X, y and weights, read by block.

A dataset is a Zarr group with `X` (n_samples, n_features) and, for training, `y`. What this package writes is
chunked along the rows only, checksummed (crc32c), complete or absent, and says so in the attribute
`rff_dist`. What others wrote is read as it is: Zarr format 2 or 3, sharded or not, with or without checksums.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import zarr

from rff_dist.data.blocks import Block, Rows
from rff_dist.data.memory import (
    ArraysDataset,
    Sample,
    as_targets,
    check_indices,
    digest_array,
    require_columns,
    require_numbers,
)
from rff_dist.errors import (
    DataError,
    IntegrityError,
    InvalidParameterError,
    NoSuchVersionError,
    StorageError,
)
from rff_dist.storage.arrays import (
    Header,
    gather_rows,
    open_array,
    read_header,
    read_rows,
    require_chunks,
    sample_digest,
    stored_rows,
    with_shape,
)
from rff_dist.storage.binding import WrongChunkError
from rff_dist.storage.generations import LINE, MANIFEST
from rff_dist.storage.groups import (
    Address,
    Reopening,
    StoredGroup,
    array_names,
    committed_rows,
    content_key_of,
    find_group,
    is_array,
    local_root,
    reopen_group,
)
from rff_dist.storage.locations import parse_location
from rff_dist.storage.repositories import changed_chunks, find_snapshot, open_together

_WEIGHTS = "sample_weight"  # the array's name where this package writes one
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class ZarrDataset(ArraysDataset):
    """Rows stored in Zarr: `open_dataset` and `dataset_from_arrays` make it, shapes and dtypes checked.

    It pickles as its URL and options and is opened again where it is unpickled, so that a task carries no
    store and no credentials.

    `X`: zarr.Array of shape (n_samples, n_features). Inputs.
    `y`: zarr.Array or ndarray of shape (n_samples,) or (n_samples, n_targets), or None. Targets.
    `sample_weight`: zarr.Array or ndarray of shape (n_samples,), or None. Weights; None means 1 for each row.
    `url`: where it is stored; None for arrays that were handed over open.
    `version`: the snapshot that is read, of a versioned dataset.
    `feature_names`, `target_names`: column names, where the group's attributes hold them.
    `missing_chunks`: {"error", "fill"}. What a chunk that is not in the store means.
    """

    X: zarr.Array[Any]
    y: zarr.Array[Any] | np.ndarray | None
    sample_weight: zarr.Array[Any] | np.ndarray | None
    url: str | None
    attributes: Mapping[str, Any]
    feature_names: tuple[str, ...] | None
    target_names: tuple[str, ...] | None
    missing_chunks: str
    version: str | None
    _headers: Mapping[str, Header]
    _labels: Mapping[str, str]
    _reopen: Reopening[ZarrDataset] | None

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._headers["X"].dtype

    @property
    def chunk_rows(self) -> int:
        return stored_rows(self.X)

    def read(self, block: Block) -> Rows:
        """Read the rows of one block.

        X is in its stored dtype, y float64 of shape (rows, n_targets).

        Raises StorageError if there are no such rows, a chunk is missing (unless `missing_chunks="fill"`) or
          the store does not answer; IntegrityError if a chunk's bytes are damaged.
        """
        rows = slice(block.start, block.stop)
        y, weight = self._part("y", rows), self._part("sample_weight", rows)
        return Rows(
            block,
            cast("np.ndarray", self._part("X", rows)),
            None if y is None else as_targets(y),
            None if weight is None else weight.astype(np.float64),
            chunk_rows=self.chunk_rows,
        )

    def read_weight(self, block: Block) -> np.ndarray | None:
        weight = self._part("sample_weight", slice(block.start, block.stop))
        return None if weight is None else weight.astype(np.float64)

    def without_targets(self) -> ZarrDataset:
        reopen = self._reopen
        if reopen is not None and reopen[0] is _reopen_stored:
            address, (x, _, weight), missing_chunks = reopen[1]
            reopen = (_reopen_stored, (address, (x, None, weight), missing_chunks))
        elif reopen is not None:
            X, _, *options = reopen[1]
            reopen = (_reopen_arrays, (X, None, *options))
        return replace(self, y=None, target_names=None, _reopen=reopen)

    def take(self, indices: np.ndarray | Sequence[int]) -> Sample:
        """Read single rows, in the order asked; each stored chunk that holds one is read once.

        `indices`: int array of shape (n_indices,). Row numbers, repeats allowed.
        Raises InvalidParameterError if a row number lies outside the dataset.
        """
        wanted = check_indices(indices, self.n_samples)
        rows, places = np.unique(wanted, return_inverse=True)
        X, y, weight = (
            None if (values := self._part(name, rows)) is None else values[places]
            for name in ("X", "y", "sample_weight")
        )
        return Sample(
            cast("np.ndarray", X),
            None if y is None else as_targets(y),
            None if weight is None else weight.astype(np.float64, copy=False),
        )

    def fingerprint(self) -> str:
        """Digest of what the data are, the same for a copy elsewhere.

        It covers shapes, dtypes, chunks and codecs; for datasets written by this package the digest of all
        values as they were written and changed; and of plain Zarr the values of up to 8 chunks of each array,
        the first and the last among them. It therefore notices other data, appended rows and a rewritten
        dataset; it does not notice a change that another program makes in place to a chunk of plain Zarr
        outside the sample.
        """
        digest, manifest = hashlib.sha256(), self.attributes.get(MANIFEST)
        if self.version is not None and isinstance(manifest, Mapping) and "sha256" in manifest:
            told = [self._identity(), {name: header.text for name, header in self._headers.items()}]
            return hashlib.sha256(json.dumps([manifest["sha256"], *told]).encode()).hexdigest()
        for name in ("X", "y", "sample_weight"):
            array = getattr(self, name)
            digest.update(f"{name}:".encode())
            if isinstance(array, np.ndarray):
                digest.update(digest_array(array).encode())
            elif array is not None:
                digest.update(sample_digest(array, self._headers[name], label=self._labels[name]).encode())
        if isinstance(manifest, Mapping):
            digest.update(str(manifest.get("sha256")).encode())
        return digest.hexdigest()

    @cached_property
    def _content_key(self) -> str | None:
        return content_key_of(self._reopen)

    def content_key(self) -> str | None:
        """Return what a pass over the rows is named by, see `engines.kept`; None if they may change."""
        return self._content_key

    def recorded_prefix(self, n_samples: int) -> str | None:
        manifest = self.attributes.get(MANIFEST)
        line = manifest.get(LINE, ()) if isinstance(manifest, Mapping) and self.version is not None else ()
        found = next((digest for n, digest in line if n == n_samples), None)
        told = json.dumps([n_samples, found, self._identity()])
        return None if found is None else hashlib.sha256(told.encode()).hexdigest()

    def _identity(self) -> list[str]:
        """Return which of the group's arrays these are."""
        arrays = (self.X, self.y, self.sample_weight)
        return ["" if array is None else getattr(array, "path", "") for array in arrays]

    def check_unchanged(self) -> None:
        if self._reopen is not None and self._reopen[0] is _reopen_stored:
            address: Address = self._reopen[1][0]
            address.check()

    def can_travel(self) -> bool:
        return self._reopen is not None and not (self.url or "").startswith("memory://")

    def __reduce__(self) -> Reopening[ZarrDataset]:
        if self._reopen is None:
            raise StorageError(
                f"{self._labels['X']} cannot be sent to another process: its store "
                f"({type(self.X.store).__name__}) "
                "is not a local folder. Open the data with open_dataset(url) instead"
            )
        return self._reopen

    def __repr__(self) -> str:
        return (
            f"ZarrDataset({self._labels['X']}: {self.n_samples:_} rows, {self.n_features} features, "
            f"{self.n_targets} targets, {self.dtype})"
        )

    def _part(self, name: str, rows: slice | np.ndarray) -> np.ndarray | None:
        """Return some rows of X, y or the weights: a stretch of them, or single ones that ascend."""
        array = getattr(self, name)
        if array is None or isinstance(array, np.ndarray):
            return None if array is None else array[rows]
        with self._blamed_on_changes():
            if isinstance(rows, slice):
                return read_rows(array, rows.start, rows.stop, label=self._labels[name])
            return gather_rows(array, rows, label=self._labels[name])

    @contextmanager
    def _blamed_on_changes(self) -> Iterator[None]:
        """Of rows that cannot be read, say first if they were changed since they were opened."""
        try:
            yield
        except StorageError as error:
            # Damaged bytes are named; a chunk that is whole and another one may have been written just now.
            if not isinstance(error, IntegrityError) or isinstance(error.__cause__, WrongChunkError):
                self.check_unchanged()
            raise


def open_dataset(
    url: str | os.PathLike[str] | zarr.Group,
    *,
    x: str = "X",
    y: str | None = "y",
    sample_weight: str | None = None,
    missing_chunks: str = "error",
    version: str | None = None,
) -> ZarrDataset:
    """Open a dataset for reading, its metadata checked, no rows read.

    Parameters
    ----------
    url : str, Path or zarr.Group
        A local path, `memory://name`, or a URL of an object store (`s3://`, `gs://`, `az://`, `https://`).
    x, y : str, default="X", "y"
        Names of the arrays in the group. A group without "y" is data to predict for; a `y` of another name
        must be there. None reads no targets.
    sample_weight : str, optional
        Name of the weights' array; None weighs all rows alike, and logs a warning where there is an array of
        the name "sample_weight".
    missing_chunks : {"error", "fill"}, default="error"
        What a chunk that is not in the store means: lost data, or (Zarr's default when writing) a chunk that
        held only the fill value. In a shard that is there, Zarr reads left-out inner chunks as the fill value
        always.
    version : str, optional
        Of a versioned dataset: a tag, or the name of a snapshot or how it begins. None opens the current one,
        which the dataset then stays, whatever is committed meanwhile.

    Raises
    ------
    NoSuchVersionError
        If the dataset has no such version.
    StorageError
        If there is no such dataset, or its arrays are not 2-D X and 1-D or 2-D y of numbers with as many
        rows.
    DataError
        If X has no column.
    MissingDependencyError
        If the scheme needs a package that is not installed.
    """
    if missing_chunks not in ("error", "fill"):
        raise InvalidParameterError(f"`missing_chunks`={missing_chunks!r}; expected 'error' or 'fill'")
    names = (x, y, sample_weight)
    stored = find_group(url, version)
    dataset = _open(stored, names, missing_chunks)
    if dataset.n_targets and sample_weight is None:
        folder, slash, _ = dataset.X.path.rpartition("/")
        if is_array(stored.store, f"{folder}{slash}{_WEIGHTS}"):
            _log.warning(
                '%s holds sample weights, which are not used; give sample_weight="%s" to use them',
                stored.place,
                _WEIGHTS,
            )
    return dataset


def dataset_from_arrays(
    X: zarr.Array[Any],
    y: zarr.Array[Any] | np.ndarray | None = None,
    sample_weight: zarr.Array[Any] | np.ndarray | None = None,
    *,
    missing_chunks: str = "error",
) -> ZarrDataset:
    """Make a dataset of Zarr arrays that are open already, from one group or several.

    It can be sent to other processes when the arrays lie in local folders.

    `X`: zarr.Array of shape (n_samples, n_features). Inputs.
    `y`: zarr.Array or ndarray of shape (n_samples,) or (n_samples, n_targets). Targets.
    `sample_weight`: zarr.Array or ndarray of shape (n_samples,). Weights.
    `missing_chunks`: {"error", "fill"}. As in `open_dataset`.
    Raises StorageError if the arrays are not numbers of the expected shapes; DataError if they differ in
      their numbers of rows, or X has no column.
    """
    given = {"X": X, "y": y, "sample_weight": sample_weight}
    stores = [array.store for array in given.values() if isinstance(array, zarr.Array)]
    movable = all(local_root(store, "") is not None for store in stores)
    arrays: dict[str, zarr.Array[Any] | np.ndarray | None] = {}
    headers, labels = {}, {}
    for name, array in given.items():
        arrays[name] = array
        if isinstance(array, zarr.Array):
            labels[name] = f"array {array.path or name!r} of {local_root(array.store, '') or array.store}"
            header = read_header(array.store, array.path, label=labels[name])
            if header is None:
                raise StorageError(f"{labels[name]} is no longer there")
            headers[name] = header
            arrays[name] = require_chunks(array, fill_missing=missing_chunks == "fill")
        elif array is not None:
            require_numbers(name, np.asarray(array))
            arrays[name], labels[name] = np.asarray(array), f"array {name!r} in memory"
    shapes = {name: array.shape for name, array in arrays.items() if array is not None}
    lengths = [shape[0] if shape else 0 for shape in shapes.values()]
    if len(set(lengths)) > 1:
        raise DataError(
            f"Found input variables with inconsistent numbers of samples: {lengths} ({', '.join(shapes)}); "
            "give as many rows of each"
        )
    _check_shapes(shapes, labels)
    return ZarrDataset(
        cast("zarr.Array[Any]", arrays["X"]),
        arrays["y"],
        arrays["sample_weight"],
        None,
        {},
        None,
        None,
        missing_chunks,
        None,
        headers,
        labels,
        (_reopen_arrays, (*arrays.values(), missing_chunks)) if movable else None,
    )


def _open(stored: StoredGroup, names: tuple[str, str | None, str | None], missing_chunks: str) -> ZarrDataset:
    group, place = stored.open(), stored.place
    attributes = dict(group.attrs)
    store = stored.bound_store(attributes)
    n_samples = committed_rows(attributes, place)
    labels: dict[str, str] = {}
    headers: dict[str, Header] = {}
    arrays: dict[str, zarr.Array[Any] | None] = {}
    for role, name in zip(("X", "y", "sample_weight"), names, strict=True):
        label = f"array {name!r} of {place}"
        header = None if name is None else stored.read_header(name, attributes, text=role == "y")
        if header is not None and header.dtype.kind in "UT":
            raise StorageError(
                f"{label} holds labels (text); expected numbers to regress on. Train a classifier on it "
                "(RFFClassifier, or `rff-dist fit --classify`), or leave it out with y=None"
            )
        if name is not None and header is None and not (role == "y" and name == "y"):
            raise StorageError(
                f"{place} has no array {name!r}; it holds {array_names(group)}. "
                f"Expected {role} there; name it by `{role if role != 'X' else 'x'}`"
            )
        arrays[role] = None
        if header is not None:
            labels[role], headers[role] = label, header.first_rows(n_samples)
    _check_shapes({role: header.shape for role, header in headers.items()}, labels)
    for role, name in zip(("X", "y", "sample_weight"), names, strict=True):
        if role in headers:
            fill = missing_chunks == "fill"
            array = open_array(
                store, f"{stored.prefix}{name}", label=labels[role], fill_missing=fill, like=headers[role]
            )
            arrays[role] = with_shape(array, headers[role].shape)
    X = arrays["X"]
    assert X is not None
    n_targets = (headers["y"].shape[1:] or (1,))[0] if "y" in headers else 0
    return ZarrDataset(
        X,
        arrays["y"],
        arrays["sample_weight"],
        stored.url,
        attributes,
        _names(attributes, "feature_names", headers["X"].shape[1], place),
        _names(attributes, "target_names", n_targets, place) if n_targets else None,
        missing_chunks,
        stored.version,
        headers,
        labels,
        None if stored.address is None else (_reopen_stored, (stored.address, names, missing_chunks)),
    )


def changed_rows(
    dataset: ZarrDataset, version: str
) -> tuple[ZarrDataset, ZarrDataset, list[tuple[int, int]]]:
    """Return another version of a dataset, and which of its rows lie in chunks that differ.

    Returns `other`: with the same arrays and options; `same`: the dataset, which with `other` reads a chunk
      once; `ranges`: row numbers of `other`, ascending: of chunks that differ, and beyond the dataset's last
      row.
    Raises NoSuchVersionError if the version has expired or is of another dataset, or if the dataset's arrays
      were made anew since.
    """
    if dataset._reopen is None or dataset.version is None:
        raise NoSuchVersionError(f"{dataset!r} keeps no versions")
    address, names, missing_chunks = dataset._reopen[1]
    location = parse_location(address.url)
    before = find_snapshot(location, version)
    stores = open_together(location, before, dataset.version)
    other, same = (
        _open(replace(reopen_group(replace(address, version=name)), store=store), names, missing_chunks)
        for name, store in zip((before, dataset.version), stores, strict=True)
    )
    found = changed_chunks(location, before, dataset.version)
    chunks = [found.get(name, set()) for name in names if name is not None]
    numbers = {place[0] for one in chunks if one is not None for place in one}
    if None in chunks or other.chunk_rows != dataset.chunk_rows:
        raise NoSuchVersionError(f"all rows of {location} were written anew since version {before}")
    rows = dataset.chunk_rows
    beyond = range(dataset.n_samples // rows, -(-other.n_samples // rows))
    spans = [(i * rows, min((i + 1) * rows, other.n_samples)) for i in sorted(numbers.union(beyond))]
    return other, same, [span for span in spans if span[0] < span[1]]


def _check_shapes(shapes: Mapping[str, tuple[int, ...]], labels: Mapping[str, str]) -> None:
    X = shapes["X"]
    if len(X) != 2:
        advice = (
            "Reshape it: one feature is (n_samples, 1)" if len(X) == 1 else "Flatten each sample to one row"
        )
        raise StorageError(f"{labels['X']} has shape {X}; expected 2 axes (n_samples, n_features). {advice}")
    require_columns(X, labels["X"])
    y, weight = shapes.get("y"), shapes.get("sample_weight")
    if y is not None and (len(y) not in (1, 2) or y[1:] == (0,)):
        raise StorageError(f"{labels['y']} has shape {y}; expected (n_samples,) or (n_samples, n_targets)")
    if y is not None and y[0] != X[0]:
        raise StorageError(
            f"{labels['X']} has {X[0]:_} rows and {labels['y']} {y[0]:_}; expected as many. Write both again"
        )
    if weight is not None and weight != (X[0],):
        raise StorageError(f"{labels['sample_weight']} has shape {weight}; expected ({X[0]},)")


def _names(attributes: Mapping[str, Any], key: str, width: int, place: str) -> tuple[str, ...] | None:
    names = attributes.get(key)
    if names is None:
        return None
    if not isinstance(names, list) or len(names) != width or not all(isinstance(n, str) for n in names):
        raise StorageError(
            f"attribute {key!r} of {place} is {str(names)[:100]}; expected a list of {width} names"
        )
    return tuple(names)


def _reopen_stored(
    address: Address,
    names: tuple[str, str | None, str | None],
    missing_chunks: str,
) -> ZarrDataset:
    return _open(reopen_group(address), names, missing_chunks)


def _reopen_arrays(X: Any, y: Any, sample_weight: Any, missing_chunks: str) -> ZarrDataset:
    return dataset_from_arrays(X, y, sample_weight, missing_chunks=missing_chunks)
