"""Find Zarr groups, and open them and their arrays for reading, also in another
process.

A URL goes in; a StoredGroup in one state comes out. Zarr alone would mix the rows of
two states if someone writes meanwhile, and would not notice chunks that were swapped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.data.array_checks import check_rows
from rff_dist.errors import (
    ConflictError,
    IntegrityError,
    InvalidParameterError,
    NoSuchVersionError,
    StorageError,
)
from rff_dist.storage import arrays, locations, manifests, repositories
from rff_dist.storage.arrays import ZarrArray
from rff_dist.storage.locations import Location, parse_location
from rff_dist.storage.manifests import MANIFEST, Header, WrongChunkError, manifest_of
from rff_dist.storage.zarr_access import open_store, read_key, zarr
from rff_dist.text import first_few
from rff_dist.typing import AnyArray, AnyDType, Facts, PathLike, Summary

if TYPE_CHECKING:
    from zarr.abc.store import Store


@dataclass(frozen=True, eq=False)
class StoredGroup:
    """A Zarr group for reading, in one state of its place; its metadata are read and
    checked when first used.

    It pickles as the facts that another process needs to open the same state.
    """

    url: str
    #: In an object store: the URL of the folder with the group's arrays. It is either
    #: `url`, or the folder below it of a generation, which replaced the first group.
    generation: str | None = None
    version: str | None = None  # the snapshot of a versioned dataset
    #: Of plain Zarr in a folder: a text that changes when one of its files does, made
    #: by `describe_files`.
    files_state: str | None = None
    sha256: str | None = None  # the digest that its manifest must have, if known
    may_be_unfinished: bool = False  # whether to accept an unfinished group
    #: The store of a versioned dataset; any other is opened when an array is.
    snapshot: Store | None = None

    @cached_property
    def store(self) -> Store:
        """The Zarr store of the group."""
        return open_store(self._folder) if self.snapshot is None else self.snapshot

    @property
    def _folder(self) -> Location:
        return parse_location(self.generation or self.url)

    def _read_file(self, name: str) -> bytes | None:
        if self.snapshot is not None:
            return read_key(self.snapshot, name, where=self.url)
        return locations.read_file(self._folder, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.url, self.generation, self.version, self.files_state)

    def check_unchanged(self) -> None:
        """Raise ConflictError if plain Zarr in a local folder has changed since it was
        opened; versions and generations never change.
        """
        if self.files_state is None:
            return
        state = locations.describe_files(self.url)
        if state != self.files_state:
            raise ConflictError(
                f"{self.url} was changed while it was read, or is another folder on"
                f" another machine: now {state}, when it was opened {self.files_state}."
                " A result could mix old and new rows: nothing was published. Repeat"
                " this when no one writes there; versioned data may be changed"
                " meanwhile (`rff-dist data convert`)"
            )

    def content_key(self, *options: Any) -> str | None:
        """Return a key of rows opened with some options, for the names of kept sums;
        None if the rows may change.

        For plain Zarr in an object store it covers the objects' names, sizes and entity
        tags at this moment. See `engines.resuming`.
        """
        state = self.version or self.files_state
        if self.generation is not None:
            state = locations.digest_objects(parse_location(self.generation))
        if state is None:
            return None
        return f"{self.url} {state} {[*options]!r}"

    @cached_property
    def attributes(self) -> Summary:
        """The group's attributes; StorageError if there is no group, or an unfinished
        one, IntegrityError if it is damaged.
        """
        attributes = _read_attributes(self._read_file, self.url)
        manifest = manifest_of(attributes)
        if self.may_be_unfinished:
            return attributes
        # An empty manifest means an unfinished group; no manifest at all means plain
        # Zarr of another writer.
        is_ours = isinstance(attributes.get(MANIFEST), Mapping)
        if is_ours and manifest.get("state") != "complete":
            raise StorageError(
                f"{self.url} is unfinished: its writer stopped before the end. Write"
                " it again"
            )
        rows_digest = manifest.get(manifests.ROWS_DIGEST)
        if self.sha256 is not None and rows_digest != self.sha256:
            raise IntegrityError(
                f"version {self.version} of {self.url} has the manifest of another"
                " version; restore it from a copy"
            )
        return attributes

    @cached_property
    def manifest(self) -> Facts:
        """The group's attribute `rff_dist`; empty for plain Zarr of another writer."""
        return manifest_of(self.attributes)

    @cached_property
    def parts(self) -> dict[str, tuple[str, NDArray[np.uint32]]]:
        """The manifest's entry for each array, by name: the digest of the array's
        metadata, and the checksums of its chunks.
        """
        try:
            return {
                name: (part["metadata"], manifests.unpack_sums(part["crc32c"]))
                for name, part in self.manifest.get(manifests.PARTS, {}).items()
            }
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise IntegrityError(
                f"the manifest of {self.url} is not as it was written; restore it"
                " from a copy"
            ) from error

    @cached_property
    def bound_store(self) -> Store:
        """A store that compares each chunk with its checksum in the manifest."""
        if not self.parts:
            return self.store
        # Its class is made of Zarr's, which is not imported before arrays are read.
        from rff_dist.storage.checked_store import CheckedStore

        sums = {f"{name}/c/": sums for name, (_, sums) in self.parts.items()}
        return CheckedStore(self.store, sums)

    def label(self, name: str) -> str:
        """Return an array's name in errors."""
        return f"array {name!r} of {self.url}"

    def read_header(self, name: str, *, allows_text: bool = False) -> Header | None:
        """Read the header of an array and check it against the manifest; None if there
        is no array.
        """
        label = self.label(name)
        manifest = self.manifest  # first, since an unfinished group raises here
        header = None
        # Format 3 first, which this package writes: each name is a request to an object
        # store.
        for file in (manifests.ENTRY_FILE, ".zarray"):
            content = self._read_file(f"{name}/{file}")
            if content is not None:
                header = manifests.parse_header(
                    content, label=label, allows_text=allows_text
                )
                break
        # A newer generation replaced this group's manifest after the group was found.
        # The arrays stay where they are for now, but nothing is left to compare with.
        if "generation" in manifest:
            return header
        expected, _ = self.parts.get(name, (None, None))
        # This package marks its arrays (`manifests.MARK`) and enters them in the
        # manifest. An array with neither is another program's, and is not checked.
        is_ours = expected is not None or (header is not None and header.is_marked)
        if is_ours and (header is None or header.digest != expected):
            raise IntegrityError(
                f"the metadata of {label} or of its group are not as they were written;"
                " restore them from a copy, or write the dataset or save the model"
                " again"
            )
        return header

    def find_array(
        self, name: str, missing_chunks: str = "error", *, allows_text: bool
    ) -> StoredArray | None:
        """Open an array; None if there is none."""
        header = self.read_header(name, allows_text=allows_text)
        if header is None:
            return None
        array = StoredArray(header, self, name, missing_chunks)
        # Other programs' arrays may have codecs that Zarr lacks, which must be known
        # before the work begins.
        if name not in self.parts:
            array.array  # noqa: B018
        return array

    def open_array(
        self, name: str, missing_chunks: str = "error", *, allows_text: bool = True
    ) -> StoredArray:
        """Open an array that must exist.

        Text is allowed by default: most callers copy values, labels among them.
        """
        array = self.find_array(name, missing_chunks, allows_text=allows_text)
        if array is None:
            raise StorageError(
                f"{self.url} has no array {name!r}; it holds {self.describe_arrays()}"
            )
        return array

    def list_arrays(self) -> list[str]:
        """Return the sorted names of all arrays."""
        with locations.reaching(f"the arrays of {self.url} cannot be listed"):
            return sorted(zarr.open_group(self.store, mode="r").array_keys())

    def describe_arrays(self) -> str:
        """Return the arrays' names, as words for an error."""
        names = self.list_arrays()
        return f"the arrays {first_few([*map(repr, names)])}" if names else "no arrays"


@dataclass(frozen=True, eq=False)
class StoredArray:
    """An array that is open for reading; it pickles as its group and name."""

    header: Header
    group: StoredGroup
    name: str
    missing_chunks: str  # as in `open_dataset`

    def __post_init__(self) -> None:
        if self.missing_chunks not in ("error", "fill"):
            raise InvalidParameterError(
                f"`missing_chunks`={self.missing_chunks!r}; expected 'error' or 'fill'"
            )

    @cached_property
    def array(self) -> ZarrArray:
        """The Zarr array itself."""
        try:
            array = zarr.open_array(
                self.group.bound_store,
                path=self.name,
                mode="r",
                zarr_format=self.header.zarr_format,
            )
        except IntegrityError:
            raise
        except Exception as error:
            why = locations.explain(error)
            raise StorageError(f"{self.label} cannot be opened: {why}") from error
        return arrays.require_chunks(array, self.missing_chunks)

    @property
    def label(self) -> str:
        """Its name in errors."""
        return self.group.label(self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.header.shape

    @property
    def ndim(self) -> int:
        return len(self.header.shape)

    @property
    def dtype(self) -> AnyDType:
        return self.header.dtype

    def __getitem__(self, key: Any) -> AnyArray:
        """Read rows by a slice or by their numbers, and then choose among columns."""
        rows, *columns = key if isinstance(key, tuple) else (key,)
        if isinstance(rows, slice):
            # Not clipped, unlike a list's slice. A slice beyond the end raises in
            # `read`: its rows would be of other data.
            stop = self.shape[0] if rows.stop is None else rows.stop
            values = self.read(rows.start or 0, stop)[:: rows.step]
        else:
            values = self.take(rows)
        return values[(slice(None), *columns)]

    def read(self, start: int, stop: int) -> AnyArray:
        """Equivalent to `array[start:stop]`.

        Raises IntegrityError for damaged bytes; ConflictError if plain Zarr was changed
        meanwhile; any other StorageError if a chunk is missing, the store does not
        answer, or there are no such rows.
        """
        with self._checking():
            return arrays.read_rows(self.array, start, stop, label=self.label)

    def take(self, indices: Any) -> AnyArray:
        """Read single rows in any order; each stored object is read once."""
        wanted = check_rows(indices, self.header.shape[0])
        rows, places = np.unique(wanted, return_inverse=True)
        with self._checking():
            return arrays.gather_rows(self.array, rows, label=self.label)[places]

    @contextmanager
    def _checking(self) -> Iterator[None]:
        """Raise ConflictError for a failure that a change meanwhile has caused."""
        try:
            yield
        except StorageError as error:
            # Damaged bytes are reported as such; a whole chunk that is not the one
            # expected may come from a change.
            is_damage = isinstance(error, IntegrityError)
            is_other_chunk = isinstance(error.__cause__, WrongChunkError)
            if not is_damage or is_other_chunk:
                self.group.check_unchanged()
            raise

    def fingerprint(self) -> str:
        """Return a digest of the metadata and of up to 8 chunks."""
        return arrays.sample_digest(self.array, self.header, label=self.label)

    def content_key(self) -> str | None:
        """Return a key of the values; None if they may change."""
        return self.group.content_key(self.name, self.missing_chunks)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredGroup.open_array, (self.group, self.name, self.missing_chunks)


# -- find groups


def _reopen(
    url: str,
    generation: str | None,
    version: str | None,
    files_state: str | None,
) -> StoredGroup:
    """Return the group in the state in which it was pickled."""
    location = parse_location(url)
    group = StoredGroup(url, generation, version, files_state)
    if version is not None:
        group = replace(group, snapshot=repositories.open_pinned(location, version))
    group.check_unchanged()
    return group


def find_group(
    url: PathLike,
    version: str | None = None,
    *,
    may_be_unfinished: bool = False,
) -> StoredGroup:
    """Find a group, or a version of it; its metadata are not read yet.

    Raises StorageError if nothing is there, or a file; NoSuchVersionError if there is
    no such version.
    """
    location = _require_data(url)
    group_in = partial(
        StoredGroup, url=location.url, may_be_unfinished=may_be_unfinished
    )
    if locations.is_versioned(location):
        store, snapshot, digest = repositories.open_snapshot(location, version)
        return group_in(snapshot=store, version=snapshot, sha256=digest)
    if version is not None:
        raise NoSuchVersionError(
            f"{location} keeps no versions, and version {version!r} was asked for;"
            " `rff-dist data convert` makes a versioned dataset of it"
        )
    if location.is_local:
        return group_in(files_state=locations.describe_files(location.path))
    # The metadata of an overwritten group only name its generation.
    content = locations.read_file(location, manifests.ENTRY_FILE) or b""
    current, _ = manifests.generations_of(content)
    folder = location.child(current) if current else location
    return group_in(generation=folder.url)


def _require_data(url: PathLike) -> Location:
    """Return the location of a URL; if that is no dataset, say what is there."""
    location = parse_location(url)
    if location.is_remote and not locations.exists(location):
        raise StorageError(f"no dataset at {location}: expected a Zarr group")
    if not location.is_local:
        return location
    path = Path(location.path)
    if not os.path.lexists(path):
        begun = locations.hidden_folders(location, "partial-")
        parent = path.parent
        near = "" if parent.is_dir() else f"; {parent} does not exist either"
        hint = ""
        if begun:
            hint = f" An unfinished output of it is at {begun[-1]}; write it again."
        raise StorageError(
            f"no dataset at {path}: nothing is there{near}; expected a Zarr"
            f" group.{hint}"
        )
    if not path.is_dir():
        stem = path.name.partition(".")[0]
        advice = (
            f"Make one of a table: rff-dist ingest {path} {path.parent / stem}.zarr,"
            " for a fit with --targets NAME; or add its rows to the dataset of the rows"
            f" before: rff-dist ingest {path} DATASET --append"
        )
        if path.suffix == ".npy":
            advice = f"Load it: np.load({str(path)!r})"
        if ".zarr" in path.suffixes:
            advice = "Unpack it"
        raise StorageError(
            f"{path} is a file; expected a Zarr group, which is a folder. {advice}"
        )
    return location


def require_versions(location: Location) -> None:
    """Refuse what is not a versioned dataset, and say what is there."""
    if not locations.is_versioned(location):
        _require_data(location.url)
        raise StorageError(
            f"{location} is plain Zarr, which keeps no versions and is written once;"
            " expected a versioned dataset. Convert it with `rff-dist data convert"
            f" {location}`, and repeat this"
        )


def _read_attributes(read_file: Callable[[str], bytes | None], url: str) -> Summary:
    """Read and check a group's attributes; if there is none, say what is there."""
    # Each name is a request to an object store, so the search ends with the first file.
    for name in locations.NODE_FILES:
        content = read_file(name)
        if content is not None:
            break
    else:
        raise StorageError(
            f"{url} has no Zarr metadata (zarr.json or .zgroup) at its top;"
            " expected a Zarr group with an array X"
        )
    others = None
    if name == ".zgroup":  # format 2
        others = read_file(".zattrs") or b"{}"
    document = manifests.parse_group(content, url, others)
    if name == ".zarray" or document.get("node_type") == "array":
        parent, _, name = url.rstrip("/").rpartition("/")
        raise StorageError(
            f"{url} is a Zarr array; expected its group. For an array give"
            f" zarr.open({url!r}), and y; or open {parent} with x={name!r} and its y"
        )
    return dict(document["attributes"])
