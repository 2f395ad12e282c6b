"""How a dataset is cut into the blocks of a pass, by the data alone."""

from __future__ import annotations

from rff_dist.data.blocks import whole_chunks
from rff_dist.errors import PlanError

MIN_BLOCK_ROWS = 16_384  # four tiles or more, so that what a block costs beside them is some per cent
MAX_BLOCK_ROWS = 262_144
MAX_BLOCK_BYTES = 2**27  # of inputs, so that reading ahead stays small beside the statistics
FEW_BLOCKS = 16  # enough for a few


def block_rows(
    n_samples: int,
    n_features: int,
    itemsize: int,
    chunk_rows: int,
    *,
    max_rows: int = MAX_BLOCK_ROWS,
    n_folds: int = 1,
) -> int:
    """Return the rows of a block of a pass; depends on the data alone.

    More rows are more blocks, not larger ones: appended rows move no edge of the blocks before them, where
    sums are rounded, so that an update sums only rows that are new.

    Blocks are whole chunks. A chunk far larger than a block is read once for each of its blocks:
    decoding it again costs little beside the products.

    `itemsize`: bytes of one number of X.
    `chunk_rows`: rows that are worth reading together.
    `max_rows`: rows that a block may have at the most.
    `n_folds`: folds whose rows are summed apart: blocks are up to that many times larger, as long as 16 are
      left to share out, so that sending and merging all folds' sums costs no greater share of making them.
    Raises PlanError if a size is below 1.
    """
    if n_samples < 1:
        raise PlanError(f"there are {n_samples} rows; a pass needs at least 1")
    enlarged = MIN_BLOCK_ROWS * max(1, min(n_folds, n_samples // (FEW_BLOCKS * MIN_BLOCK_ROWS)))
    wanted = max(1, min(enlarged, MAX_BLOCK_ROWS, MAX_BLOCK_BYTES // max(1, n_features * itemsize), max_rows))
    pieces = chunk_rows // wanted
    unit = chunk_rows if pieces < 2 else -(-chunk_rows // pieces)
    rows = whole_chunks(unit, wanted)
    if min(rows, n_samples) > max_rows:  # rounded up, or one chunk is too large: cut it into equal parts
        unit = -(-unit // -(-unit // max_rows))
        rows = max_rows // unit * unit
    return rows
