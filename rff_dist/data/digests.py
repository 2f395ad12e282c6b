"""Digests of values, which show whether data are the same or have changed.

Arrays or a dataset go in; a SHA-256 comes out. A hash of NumPy's own buffers would
depend on how rows are cut into batches, and for text on addresses in memory. Digests
are stored with data and models, so their definition must not change.
"""

import hashlib

import numpy as np

from rff_dist.data import blocks
from rff_dist.errors import InvalidParameterError

# the rows that `prefix_digest` reads
N_SEGMENTS = 8
SEGMENT_BYTES = 2**20
MAX_SEGMENT_ROWS = 4096


def digest_array(array: np.ndarray) -> str:
    """Return a digest of dtype, shape and all values, read in pieces of 16 MiB."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    rows = max(1, 2**24 // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        digest.update(as_bytes(array[start : start + rows]))
    return digest.hexdigest()


def prefix_digest(dataset: blocks.Dataset, n_samples: int) -> str:
    """Return a digest of a dataset's first rows, which does not change when others are
    appended.

    It covers `n_samples`, the numbers of columns of X and y, the dtype of X, and the
    values of X, y, weights and groups in up to 8 segments of rows, each of at most 1
    MiB and 4,096 rows. The first and the last of the `n_samples` rows are among them.
    Changes to other rows go unnoticed. Chunks, codecs and the place of the data do not
    matter.

    Raises InvalidParameterError if the dataset has fewer rows; StorageError if rows
    cannot be read.
    """
    if not 0 <= n_samples <= dataset.n_samples:
        raise InvalidParameterError(
            f"a digest of the first {n_samples:_} rows was asked for; the dataset has"
            f" {dataset.n_samples:_}. Were rows removed?"
        )
    facts = (
        n_samples,
        dataset.n_features,
        dataset.n_targets,
        dataset.dtype.newbyteorder("=").str,
    )
    digest = hashlib.sha256(repr(facts).encode())
    row_bytes = dataset.n_features * dataset.dtype.itemsize
    for start, stop in _segments(n_samples, row_bytes):
        rows = dataset.read(blocks.Block(0, start, stop))
        for name in ("X", "y", "sample_weight", "groups"):
            values = getattr(rows, name)
            if values is None:
                continue
            # text of fixed and of variable width gives the same digest
            if values.dtype.kind == "U":
                values = values.astype("T")
            digest.update(name.encode())
            digest.update(as_bytes(values))
    return digest.hexdigest()


def _segments(n_samples: int, row_bytes: int) -> list[tuple[int, int]]:
    """Return the starts and stops of up to `N_SEGMENTS` segments of rows, spread
    evenly over all rows.
    """
    if not n_samples:
        return []
    rows = max(1, min(n_samples, MAX_SEGMENT_ROWS, SEGMENT_BYTES // row_bytes))
    # a set, since several segments of few rows may begin at the same row
    starts = {i * (n_samples - rows) // (N_SEGMENTS - 1) for i in range(N_SEGMENTS)}
    return [(start, start + rows) for start in sorted(starts)]


def as_bytes(values: np.ndarray) -> bytes | np.ndarray:
    """Return values as bytes.

    Text becomes lengths and UTF-8, since arrays of text contain addresses in memory.
    """
    if values.dtype.kind != "T":
        return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    lengths = np.strings.str_len(values).astype("<i8")
    return lengths.tobytes() + "".join(values.tolist()).encode("utf-8", "surrogatepass")


def canonical_bytes(values: np.ndarray) -> bytes | np.ndarray:
    """Return values as bytes that do not depend on how rows are cut into batches."""
    if values.dtype.kind not in "TU":
        return as_bytes(values)
    text = "".join(f"{len(value)}:{value}" for value in values.tolist())
    return text.encode("utf-8", "surrogatepass")
