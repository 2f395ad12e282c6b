"""Stored models: one JSON file and one Zarr group of checksummed arrays; no pickle is ever loaded.

::

    model/
    ├── model.json             kind, versions, metadata, and each array's shape, dtype and SHA-256
    └── generation-<token>/    the arrays

`model.json` names the folder of its arrays. A reader that finds none there reads the newer `model.json`.
"""

import hashlib
import json
import re
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import numpy as np
import zarr
from zarr.abc.store import Store

from rff_dist import __version__
from rff_dist.data import memory
from rff_dist.errors import IntegrityError, InvalidParameterError, StorageError, UnsafeModelError
from rff_dist.storage import arrays, documents, locations, output_places
from rff_dist.typing import Arrays, Facts, PathLike, Summary, frozen

FORMAT_VERSION = 1
MAX_ARRAY_BYTES = 2**37
_KIND = "record"
_ENTRY = {"shape", "dtype", "sha256"}  # what the document says of each array
_SAFE_CODECS = {"bytes", "crc32c"}
_PICKLE_SUFFIXES = (".pkl", ".pickle", ".joblib", ".dill", ".cloudpickle")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Record:
    """A stored model: metadata and named arrays.

    `kind`: the kind of model, such as "ridge model".
    `arrays`: the arrays, each checked against its SHA-256.
    """

    kind: str
    metadata: Summary
    arrays: dict[str, np.ndarray]
    format_version: int
    rff_dist_version: str


def write_record(
    url: PathLike, *, kind: str, metadata: Facts, arrays: Arrays, overwrite: bool = False
) -> None:
    """Write a record; until it is complete, readers see the one before, or none.

    `url`: a local path, `memory://name` or a URL of an object store.
    `kind`: the kind of model, which `read_record` compares.
    `metadata`: JSON values: no NaN, no arrays, keys are strings.
    `arrays`: integers, floats and booleans, of any shape. Strings belong in the metadata.
    `overwrite`: whether a record at `url` may be replaced.
    Raises OutputExistsError if there is something at `url` and `overwrite` is False; ConflictError if another
      run has written a record there meanwhile; OutputBusyError if another one is writing there;
      InvalidParameterError if the metadata are not JSON, or an array is not numbers; StorageError if it
      cannot be written. After an error what was there stays.
    """
    values = {name: _checked_array(name, array) for name, array in arrays.items()}
    body = _checked_metadata(metadata)
    location, file = locations.parse_location(url), locations.RECORD_FILE

    def document(generation: str, previous: str | None) -> bytes:
        about = {"rff_dist_version": __version__, "kind": kind, "metadata": body, "generation": generation}
        entries = {name: _describe(array) for name, array in values.items()}
        facts = {**about, "previous": previous, "arrays": entries}
        return documents.sign_document(facts, kind=_KIND, version=FORMAT_VERSION)

    output_places.check_output(location, overwrite=overwrite, marker=(file,))
    with (
        locations.store_errors(f"{location} could not be written", "; what was there before is unchanged"),
        output_places.hold(location, holder="a writer"),
    ):
        # under the lock, or in an object store after the look at what is there
        place = output_places.Place.choose(location, file, overwrite=overwrite)
        try:
            _write_arrays(place, values)
            place.publish(document)
        except BaseException:
            place.discard()
            raise


def read_record(url: PathLike, *, kind: str | None = None) -> Record:
    """Read a record and check every byte of it.

    `url`: the record's place, or a registered model (`models/NAME`), whose current version is then read.
    Raises UnsafeModelError if there is a pickle, or an array's codecs could run code; VersionError if a newer
      release wrote it; IntegrityError, with the array's name, if bytes are damaged; StorageError if there is
      no record, or one of another kind.
    """
    location = locations.parse_location(url)
    while True:
        place = find_record(location)
        _refuse_pickles(place)
        document = _parse_document(content := _read_document(place), place)
        if kind is not None and document["kind"] != kind:
            raise StorageError(f"{place} holds a {document['kind']!r}; expected a {kind!r}")
        store, folder = locations.open_store(place), document["generation"]
        try:
            values = {
                name: _read_array(store, f"{folder}/{name}", entry, f"array {name!r} of {place}")
                for name, entry in document["arrays"].items()
            }
            return _record_of(document, values)
        except StorageError:
            # An overwrite, or another version that became current, may have removed the arrays meanwhile.
            if find_record(location) == place and _read_document(place) == content:
                raise


def find_record(location: locations.Location) -> locations.Location:
    """Return the place of the record at `location`; for a registered model, of its current version."""
    _refuse_pickles(location)
    if locations.read_file(location, locations.RECORD_FILE) is not None:
        return location
    pointer, _ = read_pointer(location)
    if pointer is not None:
        return version_place(location, pointer.number)
    if not locations.exists(location):
        raise StorageError(
            f"no model at {location}: nothing is there; expected a folder with {locations.RECORD_FILE}"
        )
    return location


def peek_record(url: PathLike) -> Record:
    """Read a record's kind and metadata, without its arrays; raises as `read_record`."""
    location = find_record(locations.parse_location(url))
    document = _parse_document(_read_document(location), location)
    return _record_of(document, {})


def read_lineage(location: locations.Location) -> Facts | None:
    """Return what `add_lineage` added to the record at `location`; None if there is none, or no record.

    Raises IntegrityError if the document is damaged; VersionError if a newer release wrote it.
    """
    content = locations.read_file(location, locations.RECORD_FILE)
    return None if content is None else _parse_document(content, location).get("lineage")


def add_lineage(location: locations.Location, lineage: Facts) -> None:
    """Add JSON values to the record at `location` in one step, which makes it a published version.

    Raises ConflictError if the record was replaced meanwhile; StorageError if it cannot be written.
    """
    store = locations.open_store(location, read_only=False)
    # The arrays stay as they are; only the document is replaced, on condition that it is this one.
    found = documents.read_tagged(store, locations.RECORD_FILE, where=location)
    document = _parse_document(b"" if found is None else found.content, location)
    content = documents.sign_document({**document, "lineage": lineage}, kind=_KIND, version=FORMAT_VERSION)
    output_places.publish_bytes(location, store, locations.RECORD_FILE, content, expected=found)


def plain_json(values: Facts, what: str) -> Summary:
    """Return a copy of JSON values, such as lists for tuples.

    Raises InvalidParameterError, which says that `what` is not JSON, if they are anything else.
    """
    try:
        copy: Summary = json.loads(json.dumps(dict(values), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParameterError(
            f"{what} not JSON: {locations.explain(error)}; expected numbers, text, lists or dictionaries"
        ) from error
    return copy


def _record_of(document: Facts, arrays: dict[str, np.ndarray]) -> Record:
    """Return the record of a document and its arrays; the document's keys are the record's fields."""
    versions = document["format_version"], document["rff_dist_version"]
    return Record(document["kind"], document["metadata"], arrays, *versions)


def _checked_array(name: str, array: np.ndarray) -> np.ndarray:
    values = np.asarray(array)
    if not _NAME.fullmatch(name):
        raise InvalidParameterError(f"array name {name!r}; expected letters, digits and underscores")
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        raise InvalidParameterError(
            f"array {name!r} has dtype {values.dtype}; expected integers, floats or booleans of at most 64 "
            "bits. Put strings into the metadata"
        )
    return np.asarray(values, dtype=values.dtype.newbyteorder("="), order="C")


def _checked_metadata(metadata: Facts) -> Summary:
    # A copy, because the caller's metadata may change while arrays are written.
    copy = plain_json(metadata, "the metadata are")
    # half, to leave room for the rest of the document
    if (n_bytes := len(json.dumps(copy))) > documents.MAX_METADATA_BYTES // 2:
        raise InvalidParameterError(f"{n_bytes:_} bytes of metadata; put large data into arrays")
    return copy


def _write_arrays(place: output_places.Place, values: Arrays) -> None:
    # To a store of its own where folders are stores: Zarr makes all parents in a store groups.
    folder, path = place.staged, ""
    if folder.is_local:
        folder = folder.child(place.generation)
        Path(folder.path).mkdir(parents=True)
    elif not folder.is_remote:
        path = place.generation
    group = zarr.create_group(locations.open_store(folder, read_only=False), path=path, zarr_format=3)
    for name, value in values.items():
        rows = np.atleast_1d(value)
        row_bytes = rows[:1].nbytes
        chunk = max(1, min(len(rows), arrays.CHUNK_TARGET_BYTES // max(1, row_bytes)))
        array = arrays.create_array(group, name, shape=rows.shape, dtype=rows.dtype, chunk_rows=chunk)
        for start in range(0, len(rows) if row_bytes else 0, chunk):
            array[start : start + chunk] = rows[start : start + chunk]
    if path:
        locations.delete_bytes(group.store, "zarr.json")


def _refuse_pickles(location: locations.Location) -> None:
    if not location.is_local:
        return
    path = Path(location.path)
    if path.is_file():
        with open(path, "rb") as file:
            start = file.read(2)
        # Protocols 2 to 5 begin with 0x80 and their number.
        pickled = start in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
        if pickled or path.suffix.lower() in _PICKLE_SUFFIXES:
            raise UnsafeModelError(
                f"{path} is a pickle, which runs code when it is loaded; expected a model folder with "
                f"{locations.RECORD_FILE}. Fit the model again and save it with save_model"
            )
        raise StorageError(f"{path} is a file; expected a model folder with {locations.RECORD_FILE}")
    pickles = [name for name in locations.list_names(location) if name.lower().endswith(_PICKLE_SUFFIXES)]
    if pickles:
        raise UnsafeModelError(
            f"{path} holds {', '.join(pickles[:5])}: pickles run code when they are loaded, and no model of "
            f"rff_dist has one; expected {locations.RECORD_FILE} and its arrays. Remove them if you know "
            "what they are"
        )


def _read_document(location: locations.Location) -> bytes:
    content = locations.read_file(location, locations.RECORD_FILE)
    if content is None:
        raise StorageError(
            f"{location} is not a model: it has no {locations.RECORD_FILE}. Expected a folder that "
            "save_model wrote, or a registered model of which a version is current"
        )
    return content


def _parse_document(content: bytes, location: locations.Location) -> Summary:
    where = f"{locations.RECORD_FILE} of {location}"
    document = documents.parse_document(content, kind=_KIND, version=FORMAT_VERSION, where=where)
    if not _is_record(document):
        raise StorageError(f"{where} does not have the fields of a record; restore it from a copy")
    generation = document.get("generation")
    unsafe = [name for name in document["arrays"] if not _NAME.fullmatch(name)]
    # The digest guards against accidents, not against malicious authors: names must not leave the folder.
    if unsafe or not documents.is_generation(generation):
        raise UnsafeModelError(f"{where} names arrays outside the model: {generation!r} {unsafe[:3]}")
    return document


def _is_record(document: Facts) -> bool:
    text = all(isinstance(document.get(key), str) for key in ("kind", "rff_dist_version"))
    entries = document.get("arrays")
    if not text or not isinstance(document.get("metadata"), dict) or not isinstance(entries, dict):
        return False
    if not all(isinstance(entry, dict) and entry.keys() >= _ENTRY for entry in entries.values()):
        return False
    shapes = [entry["shape"] for entry in entries.values()]
    return all(isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape) for shape in shapes)


def _read_array(store: Store, path: str, entry: Facts, label: str) -> np.ndarray:
    header = arrays.read_header(store, path, label=label)
    if header is None:
        raise IntegrityError(f"{label} is missing; restore the model from a copy or save it again")
    strange = sorted(set(header.codecs) - _SAFE_CODECS)
    if strange or header.zarr_format != 3:
        raise UnsafeModelError(
            f"{label} is stored as Zarr format {header.zarr_format} with the codecs "
            f"{', '.join(header.codecs)}; expected format 3 with {', '.join(sorted(_SAFE_CODECS))}, as "
            "save_model writes"
        )
    shape = tuple(entry["shape"])
    if (header.shape or (1,)) != (shape or (1,)) or header.dtype.name != entry["dtype"]:
        raise IntegrityError(
            f"{label} is {header.dtype} of shape {header.shape}; {locations.RECORD_FILE} says "
            f"{entry['dtype']} of shape {shape}"
        )
    # As floats, since the product of claimed lengths may overflow NumPy's integers.
    n_bytes = int(np.prod([float(length) for length in shape])) * header.dtype.itemsize
    if n_bytes > MAX_ARRAY_BYTES:
        raise StorageError(
            f"{label} claims {n_bytes / 2**30:.0f} GiB; expected at most {MAX_ARRAY_BYTES // 2**30} GiB"
        )
    array = arrays.open_array(store, path, header, label=label)
    # Arrays are not compressed, so fewer stored bytes than claimed are damage, found before memory is taken.
    if n_bytes > (stored := locations.stored_bytes(store, path, label)):
        raise IntegrityError(f"{label} claims {n_bytes:_} bytes, and its files have {stored:_}; restore them")
    values = np.empty(shape, header.dtype)
    if n_bytes:
        values = arrays.read_rows(array, 0, header.shape[0], label=label)
    values = np.ascontiguousarray(values).reshape(shape)  # Scalars are stored with shape (1,).
    if _sha256(values) != entry["sha256"]:
        raise IntegrityError(
            f"{label} is not as it was written: SHA-256 {_sha256(values)[:16]}…, expected "
            f"{str(entry['sha256'])[:16]}…. Restore the model from a copy or save it again"
        )
    return values


def _describe(values: np.ndarray) -> Summary:
    return {"shape": values.shape, "dtype": values.dtype.name, "sha256": _sha256(values)}


def _sha256(values: np.ndarray) -> str:
    return hashlib.sha256(memory.as_bytes(values)).hexdigest()


# -- which version of a registered model is the current one ----------------------------------------


_POINTER, _POINTER_VERSION = "pointer", 1


@frozen
class Pointer:
    """Which version is current, and which versions were current before.

    `number`: the current version.
    `previous`: earlier current versions, the latest one last; a rollback goes back to it.
    `promoted`: when the version became current, as ISO 8601 in UTC.
    `removing`: versions that are being removed and must not become current again.
    `left`: versions that a rollback left.
    """

    number: int
    previous: tuple[int, ...]
    promoted: str
    reason: str
    removing: tuple[int, ...] = ()
    left: tuple[int, ...] = ()

    def moved(self, number: int, previous: tuple[int, ...], reason: str) -> Self:
        """Return a pointer to another version, promoted now."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return replace(self, number=number, previous=previous, promoted=now, reason=reason)


def version_place(location: locations.Location, number: int) -> locations.Location:
    """Return the folder of a version of a registered model."""
    return location.child(f"versions/{number}")


def read_pointer(location: locations.Location) -> tuple[Pointer | None, documents.Tagged | None]:
    """Return the pointer of a registered model, and its bytes for `swap_pointer`; None if there are none.

    Raises IntegrityError if it is damaged; VersionError if a newer release wrote it; StorageError if it
      cannot be read.
    """
    if not locations.may_hold(location):
        return None, None
    store = locations.open_store(location)
    tagged = documents.read_tagged(store, locations.POINTER_FILE, where=location)
    return None if tagged is None else _parse_pointer(tagged.content, location), tagged


def swap_pointer(
    location: locations.Location, pointer: Pointer, *, expected: documents.Tagged | None
) -> None:
    """Replace the pointer that was read, in one step: readers see the old pointer or the new one.

    Raises ConflictError if it was changed meanwhile; OutputBusyError if this context held the model, and
      another run has published since; StorageError if it cannot be written.
    """
    # The token makes these bytes unlike every other writer's, as `replace_bytes` needs.
    document = {**asdict(pointer), "token": uuid.uuid4().hex}
    content = documents.sign_document(document, kind=_POINTER, version=_POINTER_VERSION)
    store = locations.open_store(location, read_only=False)
    output_places.publish_bytes(location, store, locations.POINTER_FILE, content, expected=expected)


def _parse_pointer(content: bytes, location: locations.Location) -> Pointer:
    where = f"{locations.POINTER_FILE} of {location}"
    document = documents.parse_document(content, kind=_POINTER, version=_POINTER_VERSION, where=where)
    number = document["number"]
    previous, removing, left = (tuple(document[name]) for name in ("previous", "removing", "left"))
    # The digest guards against accidents, not against malicious authors, so the types are checked too.
    if not all(type(n) is int and n >= 1 for n in (number, *previous, *removing, *left)):
        raise IntegrityError(
            f"{where} names the versions {number!r} and {previous!r}; expected whole numbers"
        )
    return Pointer(number, previous, document["promoted"], document["reason"], removing, left)
