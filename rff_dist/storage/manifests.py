"""The metadata of groups and arrays, and the manifest of a group: a record of what
this package wrote, to notice changes.

Stored metadata go in; checked attributes and headers come out, or the other way round.
Zarr alone would believe metadata that claim more memory than there is. Zarr
checks neither: a chunk ends with its crc32c, which reveals damaged bytes, but not that
two chunks were swapped. The manifest, an attribute of the group, has the checksums of
all chunks in order, a digest of each array's metadata, and a digest of the group's own.
Arrays have a mark, which says that their group must have such a manifest.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from rff_dist.errors import IntegrityError, StorageError, VersionError
from rff_dist.storage.locations import explain, json_digest, load_json
from rff_dist.storage.zarr_access import zarr
from rff_dist.typing import AnyDType, Facts, Summary, frozen

if TYPE_CHECKING:
    from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

FORMAT_VERSION = 1
ENTRY_FILE = "zarr.json"  # of a group, which readers read first
SUM_BYTES = 4
MANIFEST = "rff_dist"  # the attribute of a group that is its manifest
# Members of the manifest:
PARTS = "arrays"  # for each array a digest of its metadata, and its chunks' checksums
COVERS = "covers"  # the names of the group's attributes that `DIGEST` covers
DIGEST = "digest"  # covers the manifest and these attributes
RECORD = "record"  # the kind of a stored model; datasets and outputs have none
LINEAGE = "lineage"  # the provenance of a published version of a registered model
# A digest of all rows. Each commit repeats it among the snapshot's facts, so that an
# old manifest in a new snapshot is noticed.
ROWS_DIGEST = "sha256"
NAME = "id"  # a name that all versions of one dataset share, and no other dataset has
# Pairs [number of rows, digest of these rows]: one for the last version that changed
# old rows, and one for each append since.
PREFIXES = "line"

# An attribute of arrays that this package writes: the group's manifest must have an
# entry for them, see `commit`.
MARK: Summary = {"rff_dist": "bound"}
# Limits of what metadata may claim, checked before memory is taken: Zarr opens an array
# of 10^18 rows without an error.
MAX_ROWS = 2**40
MAX_CHUNK_BYTES = 4 * 2**30
# Codecs that check a checksum of every chunk when it is read.
_CHECKSUMS = (
    *("crc32c", "crc32", "adler32", "fletcher32", "jenkins_lookup3"),
    *("gzip", "zlib", "bz2", "lzma"),
)
# The most bytes of a value, by the kind of dtype: text may be as wide as a chunk.
_WIDEST = {"b": 8, "i": 8, "u": 8, "f": 8, "T": 16, "U": MAX_CHUNK_BYTES}
# "pickle" runs code when it decodes.
_UNSAFE_CODECS = {"pickle"}
# These make arrays of Python objects.
_OBJECT_CODECS = {
    *("json2", "msgpack2", "vlen-utf8", "vlen-bytes", "vlen-array", "categorize")
}

GENERATION = re.compile(r"generation-[0-9a-f]{32}")


def manifest_of(attributes: object) -> Facts:
    """Return the manifest among a group's attributes; empty if there is none."""
    manifest = attributes.get(MANIFEST) if isinstance(attributes, Mapping) else None
    return manifest if isinstance(manifest, Mapping) else {}


def manifest_in(content: bytes) -> Facts:
    """Return the manifest in a group's metadata; empty if they are damaged."""
    with suppress(StorageError):
        return manifest_of(load_json(content, "a group").get("attributes"))
    return {}


def is_generation(name: object) -> TypeGuard[str]:
    """Return whether a folder with this name is a generation, see `commit`."""
    return isinstance(name, str) and GENERATION.fullmatch(name) is not None


def generations_of(content: bytes) -> tuple[str, str | None]:
    """Return the current generation and the previous one that a group's metadata name.

    "" means the first group, which was written in its place; see `commit`. None means
    that there is no previous generation.
    """
    manifest = manifest_in(content)
    current = manifest.get("generation")
    previous = manifest.get("previous")
    if not is_generation(current):
        return "", None
    return current, previous if previous == "" or is_generation(previous) else None


def name_of(attributes: Facts) -> str | None:
    """Return the name that all versions of a dataset share; None for plain Zarr."""
    name = manifest_of(attributes).get(NAME)
    return None if name is None else str(name)


# -- the metadata of a group


def parse_group(content: bytes, where: str, attributes: bytes | None = None) -> Summary:
    """Parse and check a group's metadata, and the separate `attributes` of format 2."""
    try:
        document = load_json(content, where)
        if attributes is not None:
            document["attributes"] = load_json(attributes, where)
        document.setdefault("attributes", {})
        _check_digest(document, where)
        if document["zarr_format"] not in (2, 3):
            raise StorageError(
                f"Zarr format {str(document['zarr_format'])[:20]}; expected 2 or 3"
            )
        return document
    except (IntegrityError, VersionError):
        raise
    except Exception as error:
        raise StorageError(
            f"{where} cannot be opened as a Zarr group: {explain(error)}"
        ) from error


def _check_digest(document: Facts, where: str) -> None:
    """Check a group's metadata against the digest in its manifest, if this package
    completed the group.
    """
    manifest = manifest_of(document.get("attributes"))
    version = manifest.get("format_version")
    if type(version) is int and version > FORMAT_VERSION:
        raise VersionError(
            f"{where} is of format {version}; this release knows format"
            f" {FORMAT_VERSION}. Use a newer one of rff_dist"
        )
    # Metadata that only name a generation are not signed, unless a lineage was added.
    is_signed = manifest.get("state") == "complete" and "generation" not in manifest
    if not is_signed and DIGEST not in manifest:
        return
    if _group_digest(document) != manifest.get(DIGEST):
        raise IntegrityError(
            f"the metadata of {where} ({ENTRY_FILE}) are not as they were written;"
            " restore them from a copy, or write the dataset or save the model again"
        )


def sign_group(document: Facts, attributes: Facts) -> bytes:
    """Return a group's metadata with new attributes, signed by a digest."""
    old = document["attributes"]
    manifest = {**manifest_of(old), **attributes[MANIFEST]}
    manifest["format_version"] = FORMAT_VERSION
    signed = {**document, "attributes": {**old, **attributes, MANIFEST: manifest}}
    manifest[COVERS] = sorted(signed["attributes"])
    manifest[DIGEST] = _group_digest(signed)
    return json.dumps(signed).encode()  # an indent takes 0.1 s with 5,000 columns


def _group_digest(document: Facts) -> str:
    """Return a digest of the manifest and the attributes that it covers; others may be
    added freely, such as xarray's.
    """
    attributes = document["attributes"]
    manifest = {**manifest_of(attributes)}
    manifest.pop(DIGEST, None)
    covered = {key: attributes.get(key) for key in manifest.get(COVERS, ())}
    covered.pop(MANIFEST, None)
    return json_digest(
        [document.get("zarr_format"), document.get("node_type"), covered, manifest]
    )


# -- the metadata of an array


@frozen
class Header:
    """An array's stored metadata, read without opening the array."""

    shape: tuple[int, ...]
    dtype: AnyDType  # in native byte order
    chunks: tuple[int, ...]  # shape of the smallest piece that can be decoded
    shards: tuple[int, ...] | None  # shape of a shard; None without shards
    codecs: tuple[str, ...]  # names of all codecs and filters
    zarr_format: Literal[2, 3]
    #: The metadata that decide how bytes become numbers, as canonical JSON.
    text: str
    digest: str = ""  # of all metadata
    #: Whether the group's manifest must name this digest; see `Publication.complete`.
    is_marked: bool = False

    @property
    def stored_rows(self) -> int:
        """Rows of one stored object: a shard, else a chunk."""
        return max(1, (self.shards or self.chunks)[0])

    @property
    def checksum(self) -> str | None:
        """The codec that notices damage; without one, wrong numbers are read."""
        codecs = _codecs_of(json.loads(self.text))
        # A shard's index always has a checksum, but that does not cover the chunks.
        for name, settings in _walk_codecs(codecs, with_index=False):
            plain = name.removeprefix("numcodecs.")
            if plain in _CHECKSUMS or (plain == "zstd" and settings.get("checksum")):
                return plain
        return None


def parse_header(content: bytes, *, label: str, allows_text: bool) -> Header | None:
    """Parse and check an array's metadata; return None for those of a group.

    Errors call the array `label`. Raises StorageError for metadata that cannot be read,
    and for what this package does not read: other values than numbers (and text, if
    allowed), more than 2^40 rows, chunks above 4 GiB, codecs that run code.
    """
    try:
        metadata = load_json(content, label)
        if metadata.get("node_type") == "group":
            return None
        header = _header_of(metadata, allows_text=allows_text)
    except IntegrityError:
        raise
    except StorageError as error:
        raise StorageError(f"{label}: {error}") from error
    except Exception as error:  # Zarr raises several types
        raise StorageError(
            f"{label} has metadata that cannot be read ({explain(error)});"
            " expected a Zarr array of format 2 or 3. Write the dataset again"
        ) from error
    _check_sizes(header, label)
    return header


def _header_of(document: Facts, *, allows_text: bool) -> Header:
    refused = _UNSAFE_CODECS | _OBJECT_CODECS
    if document.get("data_type", document.get("dtype")) in ("string", "|O"):
        refused -= {"vlen-utf8"}
    codecs = tuple(name for name, _ in _walk_codecs(_codecs_of(document)))
    unsafe = sorted(
        name for name in codecs if name.removeprefix("numcodecs.") in refused
    )
    if unsafe:  # before Zarr makes them
        raise StorageError(
            f"codec {', '.join(unsafe)}, which decodes to Python objects; expected"
            " numbers. Write it again as integers or floats"
        )
    stored: ArrayV2Metadata | ArrayV3Metadata
    if document["zarr_format"] == 2:
        stored = zarr.core.metadata.ArrayV2Metadata.from_dict({**document})
        deciding = ["dtype", "compressor", "filters", "order", "fill_value"]
    elif document["zarr_format"] == 3:
        stored = zarr.core.metadata.ArrayV3Metadata.from_dict({**document})
        deciding = ["data_type", "codecs", "fill_value"]
    else:
        raise StorageError(f"Zarr format {document['zarr_format']!r}; expected 2 or 3")
    dtype = stored.dtype.to_native_dtype()
    is_readable = dtype.kind in ("biufUT" if allows_text else "biuf")
    if not is_readable or dtype.itemsize > _WIDEST[dtype.kind]:
        raise StorageError(
            f"dtype {str(dtype)[:100]}; expected integers or floats of at most 64 bits."
            " Convert it first: a time to a number of seconds, a category to 0/1"
            " columns or codes"
        )
    facts = {
        "shape": stored.shape,
        "chunks": stored.chunks,
        "shards": stored.shards,
        **{name: document.get(name) for name in deciding},
    }
    return Header(
        shape=stored.shape,
        dtype=dtype if dtype.kind == "T" else dtype.newbyteorder("="),
        chunks=stored.chunks,
        shards=stored.shards,
        codecs=codecs,
        zarr_format=stored.zarr_format,
        text=json.dumps(facts, sort_keys=True),
        digest=json_digest(document),
        is_marked=MARK.items() <= stored.attributes.items(),
    )


def _check_sizes(header: Header, label: str) -> None:
    if header.shape and header.shape[0] > MAX_ROWS:
        raise StorageError(
            f"{label} claims {header.shape[0]:_} rows; expected at most 2^40 ="
            f" {MAX_ROWS:_}. Its metadata are damaged or hostile"
        )
    row_bytes = math.prod(header.shape[1:]) * header.dtype.itemsize
    # A block is whole stored objects, so memory contains at least one of them.
    chunk_bytes = math.prod(header.chunks) * header.dtype.itemsize
    largest = max(chunk_bytes, header.stored_rows * row_bytes)
    if largest > MAX_CHUNK_BYTES:
        raise StorageError(
            f"{label} has pieces of {largest / 2**30:.1f} GiB (shape {header.shape},"
            f" chunks {header.chunks}, shards {header.shards}, {header.dtype});"
            f" expected at most {MAX_CHUNK_BYTES // 2**30} GiB. Rechunk it along the"
            " rows"
        )


def _codecs_of(document: Facts) -> list[Any]:
    """Return the codecs in stored metadata, as format 3 describes them."""
    if "codecs" in document:
        return list(document["codecs"])
    stored = [*(document.get("filters") or []), document.get("compressor")]
    return [{"name": codec["id"], "configuration": codec} for codec in stored if codec]


def _walk_codecs(
    codecs: Sequence[Any], *, with_index: bool = True
) -> Iterator[tuple[str, Facts]]:
    """Yield names and settings of codecs, also of nested ones; with `with_index` also
    of those that encode a shard's index.
    """
    for codec in codecs:
        name = codec if isinstance(codec, str) else codec["name"]
        settings: Facts = {}
        if not isinstance(codec, str):
            settings = codec.get("configuration") or {}
        yield name, settings
        yield from _walk_codecs(settings.get("codecs", ()), with_index=with_index)
        if with_index:
            yield from _walk_codecs(settings.get("index_codecs", ()))


# -- checksums of chunks


def unpack_sums(text: str) -> NDArray[np.uint32]:
    """Return chunks' checksums from the manifest's text."""
    return np.frombuffer(base64.b64decode(text), "<u4")


class WrongChunkError(IntegrityError):
    """A chunk is whole, but another one than in the manifest.

    Another program may have written it just now.
    """
