"""Small JSON documents that name their format and carry a checksum of themselves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from rff_dist.errors import IntegrityError, StorageError, VersionError
from rff_dist.storage.arrays import load_json


def sign_document(document: Mapping[str, Any], *, kind: str, version: int) -> bytes:
    """Return a document as JSON, with its kind, its format version and a SHA-256 of the whole."""
    whole = {"format": f"rff_dist {kind}", "format_version": version, **document}
    return json.dumps({**whole, "sha256": _digest(whole)}, indent=1, allow_nan=False).encode()


def parse_document(content: bytes, *, kind: str, version: int, where: str) -> dict[str, Any]:
    """Return the document that `sign_document` wrote.

    `version`: the newest format version that this release reads.
    `where`: the document's name in errors.
    Raises VersionError if a newer release wrote it; IntegrityError if it is damaged or of another kind.
    """
    try:
        document = load_json(content)
    except StorageError as error:
        raise IntegrityError(f"{where}: {error}. Restore it from a copy, or write it again") from error
    expected, found = f"rff_dist {kind}", document.get("format_version")
    if document.get("format") != expected:
        raise IntegrityError(
            f"{where} has the format {str(document.get('format'))[:80]!r}; expected {expected!r}. Restore it "
            "from a copy"
        )
    if type(found) is int and found > version:
        by = f", written by rff_dist {document['rff_dist_version']}" if "rff_dist_version" in document else ""
        raise VersionError(
            f"{where} has format version {found}{by}; this release reads up to version {version}. Install "
            "the newer release"
        )
    stored = document.pop("sha256", None)
    if stored != _digest(document):
        raise IntegrityError(
            f"{where} is not as it was written (SHA-256 {str(stored)[:16]}… expected); restore it from a copy"
        )
    return document


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, allow_nan=False).encode()).hexdigest()
