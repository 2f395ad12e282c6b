"""Ledgers: sums of passes in files, kept until the job that made them has published its
result.

Exact sums of blocks go in, and come out again in a later process: without them, a job
that was killed after nine hours of ten would begin again. Each file has the sums of
consecutive blocks of one pass; its name says which::

    .model.ledger/
    ├── holder-<token>                made by the job at work: only workers that see
    │                                 this file write sums
    ├── <pass>-<start>-<stop>.sums    a JSON document with its digest, followed by the
    │                                 arrays' bytes
    └── output-<pass>                 an output that is written block by block

The name of a pass, `<pass>`, is a digest of what it sums. A file appears whole, and its
checksum is compared when it is read; damaged sums are logged and computed again. No
code is stored: the document names dataclasses of this package and the values of their
fields.
"""

import functools
import io
import logging
import math
import os
import re
import shutil
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np

from rff_dist.data import digests, packing
from rff_dist.errors import IntegrityError, RFFDistError
from rff_dist.storage import documents, locations, output_places
from rff_dist.storage.locations import Location

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2  # version 1 stored the arrays' SHA-256
_KIND = "sums of a pass"
_NAME = re.compile(
    r"(?P<pass_name>[0-9a-f]{40})-(?P<start>\d{1,12})-(?P<stop>\d{1,12})\.sums"
)
_OUTPUT = re.compile(r"output-[0-9a-f]{40}")
_LENGTH = 8  # bytes, of the document's length
#: The share of the free disk that a ledger may fill.
_SHARE_OF_FREE = 0.25
#: Seconds to write a file of sums: for the file itself, and, until measured, for each
#: byte in a folder and in an object store.
_SECONDS_OF_FILE = 0.005
_SECONDS_OF_BYTE = 1.5e-9
_SECONDS_OF_FAR_BYTE = 1e-8


@dataclass(slots=True)
class FileLedger:
    """The sums that jobs for one output keep, made by `open_ledger`. It pickles.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = open_ledger(locations.parse_location(folder))
    ...     ledger.put('c0de5' * 8, range(0, 4), 400)
    ...     ledger.spans('c0de5' * 8), ledger.find('c0de5' * 8, range(0, 4))
    ([range(0, 4)], (400,))
    """

    location: Location  # the ledger's folder
    token: str  # names the job that is at work
    _seconds_per_byte: float = _SECONDS_OF_BYTE
    _warnings: set[str] = field(default_factory=set)

    # -- what passes use, see `rff_dist.engines.resuming.Ledger`

    def spans(self, pass_name: str) -> list[range]:
        """Return the ranges of a pass's blocks, by position, whose sums are kept."""
        try:
            files = locations.list_names(self.location)
        except RFFDistError as error:
            self._warn_once(f"kept sums are not used: {locations.explain(error)}")
            return []
        spans = []
        for file in files:
            match = _NAME.fullmatch(file)
            if match is not None and match["pass_name"] == pass_name:
                spans.append(range(int(match["start"]), int(match["stop"])))
        return spans

    def find(self, pass_name: str, span: range) -> tuple[Any] | None:
        """Return the sums of a range of blocks; None if there are none, or damaged
        ones.

        They are in a tuple, because sums may be None themselves.
        """
        key = _key(pass_name, span)
        try:
            if self.location.is_local:
                # read straight into arrays, because sums may take gigabytes
                with open(Path(self.location.path, key), "rb") as file:
                    return (_read(file, os.fstat(file.fileno()).st_size, key),)
            content = locations.read_file(self.location, key)
            if content is None:
                return None
            return (_read(io.BytesIO(content), len(content), key),)
        except FileNotFoundError:
            return None
        except (OSError, RFFDistError) as error:
            logger.warning(
                "%s; these rows are summed up again", locations.explain(error)
            )
            return None

    def put(self, pass_name: str, span: range, total: Any) -> None:
        """Keep the sums of a range of blocks, if there is room, and remove the sums of
        ranges within it.

        A failure is logged once, and the job goes on.
        """
        packed = packing.pack(total)
        if packed is None or not self._is_in_reach():
            return
        began = time.perf_counter()
        key = _key(pass_name, span)
        buffers = _to_buffers(key, *packed)
        n_bytes = sum(len(buffer) for buffer in buffers)
        try:
            if not self._has_room(n_bytes):
                return
            # No wait for the disk: damage by a power cut is noticed, and the rows are
            # summed again.
            locations.write_file(self.location, key, *buffers, is_durable=False)
            # Sums of ranges within are removed only now, so that a kill in between
            # loses nothing.
            for other in self.spans(pass_name):
                is_within = span.start <= other.start and other.stop <= span.stop
                if is_within and other != span:
                    locations.delete_file(self.location, _key(pass_name, other))
        except (OSError, RFFDistError) as error:
            self._warn_once(
                f"sums could not be kept in {self.location}: {locations.explain(error)}"
            )
            return
        seconds = time.perf_counter() - began - _SECONDS_OF_FILE
        # Half the weight is on the last file: a disk that slows down is noticed soon.
        mean = (self._seconds_per_byte + seconds / n_bytes) / 2
        self._seconds_per_byte = max(0.0, mean)

    def seconds(self, total: Any) -> float:
        """Estimate the seconds to keep sums; infinite if they cannot be kept."""
        packed = packing.pack(total)
        if packed is None:
            return math.inf
        n_bytes = sum(array.nbytes for array in packed[1])
        return _SECONDS_OF_FILE + self._seconds_per_byte * n_bytes

    # -- what jobs use

    def n_bytes(self) -> int | None:
        """Return the bytes of all files in the ledger; None in an object store."""
        if not self.location.is_local:
            return None
        sizes = []
        for place, _, names in os.walk(self.location.path):
            for name in names:
                # A file may be replaced at this moment.
                with suppress(FileNotFoundError):
                    sizes.append(os.stat(os.path.join(place, name)).st_size)
        return sum(sizes)

    def is_empty(self) -> bool:
        """Return whether nothing is kept."""
        names = locations.list_names(self.location)
        return not any(
            _NAME.fullmatch(name) or _OUTPUT.fullmatch(name) for name in names
        )

    def output(self, pass_name: str) -> Location | None:
        """Return where to write an unfinished output; None in an object store."""
        if not self.location.is_local:
            return None
        return self.location.child(f"output-{pass_name}")

    def drop(self) -> None:
        """Remove the ledger."""
        output_places.discard(self.location)

    def leave(self) -> None:
        """End this job's use of the ledger; kept sums stay for the next job."""
        # An empty folder would look like a job to go on with.
        if self.is_empty():
            self.drop()
        else:
            with suppress(OSError, RFFDistError):
                locations.delete_file(self.location, _holder(self.token))

    def _is_in_reach(self) -> bool:
        """Return whether this process sees the folder that the job's process made."""
        if not self.location.is_local:
            return True
        if Path(self.location.path, _holder(self.token)).exists():
            return True
        self._warn_once(
            f"sums are not kept: this machine does not share the folder {self.location}"
        )
        return False

    def _has_room(self, n_bytes: int) -> bool:
        kept = self.n_bytes()
        if kept is None:
            return True
        # The room that would be free without the ledger: a limit that does not shrink
        # while the ledger fills.
        free = shutil.disk_usage(self.location.path).free + kept
        if kept + n_bytes <= _SHARE_OF_FREE * free:
            return True
        self._warn_once(
            f"no more sums are kept in {self.location}: they fill a quarter of the free"
            " disk"
        )
        return False

    def _warn_once(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            logger.warning(
                "%s; if this job is stopped, more of it must be repeated", text
            )


LEDGER = "ledger"  # the kind of its hidden folder, next to an output


def open_ledger(location: Location) -> FileLedger:
    """Begin a job's use of the ledger at `location`, and create its folder if missing.

    Raises StorageError if it cannot be written.
    """
    rate = _SECONDS_OF_BYTE if location.is_local else _SECONDS_OF_FAR_BYTE
    ledger = FileLedger(location, uuid.uuid4().hex, rate)
    if location.is_local:
        with locations.store_errors(f"{location} cannot be written"):
            locations.write_file(location, _holder(ledger.token), b"")
    return ledger


def _holder(token: str) -> str:
    return f"holder-{token}"


def _key(pass_name: str, span: range) -> str:
    return f"{pass_name}-{span.start}-{span.stop}.sums"


# -- files


def _to_buffers(
    key: str, tree: Any, arrays: Sequence[np.ndarray]
) -> list[bytes | memoryview]:
    entries = [{"dtype": array.dtype.str, "shape": array.shape} for array in arrays]
    document = {
        "key": key,
        "value": tree,
        "arrays": entries,
        "crc32c": _checksum(arrays),
    }
    header = documents.dump_document(document, kind=_KIND, version=FORMAT_VERSION)
    contents = (memoryview(digests.as_bytes(array)) for array in arrays)
    return [len(header).to_bytes(_LENGTH, "little"), header, *contents]


def _checksum(arrays: Sequence[np.ndarray]) -> int:
    """Return the CRC-32C of all bytes; SHA-256 took four times as long, which was most
    of the time of `put`.
    """
    return functools.reduce(google_crc32c.extend, map(digests.as_bytes, arrays), 0)


def _read(file: BinaryIO, size: int, key: str) -> Any:
    """Read sums and check every byte; raises IntegrityError if they are damaged."""
    where = f"{key} of a ledger"
    length = int.from_bytes(file.read(_LENGTH), "little")
    if length > min(size, locations.MAX_METADATA_BYTES):
        raise IntegrityError(
            f"{where} is damaged: its document has {length:_} bytes of {size:_}"
        )
    document = documents.parse_document(
        file.read(length), kind=_KIND, version=FORMAT_VERSION, where=where
    )
    # A renamed file has right checksums, and the sums of other rows.
    if document["key"] != key:
        raise IntegrityError(f"{where} holds the sums of {document['key']}")
    try:
        entries = [
            (np.dtype(entry["dtype"]), tuple(entry["shape"]))
            for entry in document["arrays"]
        ]
        if any(dtype.kind not in packing.KINDS for dtype, _ in entries):
            raise IntegrityError(f"{where} is damaged: its arrays are not numbers")
        sizes = [dtype.itemsize * math.prod(shape) for dtype, shape in entries]
        expected = _LENGTH + length + sum(sizes)
        if expected != size:
            raise IntegrityError(
                f"{where} is damaged: it has {size:_} bytes; expected {expected:_}"
            )
        arrays = [np.empty(shape, dtype) for dtype, shape in entries]
        for array in arrays:
            target = memoryview(digests.as_bytes(array))
            file.readinto(target)  # type: ignore[attr-defined]
        if _checksum(arrays) != document["crc32c"]:
            raise IntegrityError(
                f"{where} is damaged: its arrays are not as they were written"
            )
        return packing.unpack(document["value"], arrays)
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise IntegrityError(
            f"{where} cannot be read: {locations.explain(error)}"
        ) from error
