"""The manifest of a group: a record of what this package wrote, to notice changes.

A group's metadata go in; its checked attributes come out, or the other way round. Zarr
checks neither: a chunk ends with its crc32c, which reveals damaged bytes, but not that
two chunks were swapped. The manifest, an attribute of the group, has the checksums of
all chunks in order, a digest of each array's metadata, and a digest of the group's own.
Arrays have a mark, which says that their group must have such a manifest.
"""

import base64
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from rff_dist.errors import IntegrityError, StorageError, VersionError
from rff_dist.storage import locations
from rff_dist.storage.locations import json_digest, load_json
from rff_dist.typing import Facts, Summary

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
            f"{where} cannot be opened as a Zarr group: {locations.explain(error)}"
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
            " restore them from a copy, or write the dataset again"
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


# -- checksums of chunks


def unpack_sums(text: str) -> NDArray[np.uint32]:
    """Return chunks' checksums from the manifest's text."""
    return np.frombuffer(base64.b64decode(text), "<u4")


class WrongChunkError(IntegrityError):
    """A chunk is whole, but another one than in the manifest.

    Another program may have written it just now.
    """
