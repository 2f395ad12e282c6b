"""How many rows a block of a pass has; this depends on the data alone."""

from __future__ import annotations

from rff_dist.data.blocks import whole_chunks
from rff_dist.errors import PlanError

# At least four tiles, so that a block costs only a few per cent more than they do. At D = 4,096, blocks of
# half a tile took 1.17 and blocks of a tile 1.05 times the CPU time.
MIN_BLOCK_ROWS = 16_384
MAX_BLOCK_ROWS = 262_144
MAX_BLOCK_BYTES = 2**27  # of inputs, so that blocks that are read ahead stay small beside the statistics
FEW_BLOCKS = 16  # blocks that are left when folds enlarge them: enough for a few workers to share


def block_rows(
    n_samples: int,
    n_features: int,
    itemsize: int,
    chunk_rows: int,
    *,
    max_rows: int = MAX_BLOCK_ROWS,
    n_folds: int = 1,
) -> int:
    """Return the number of rows of a block.

    More rows make more blocks, not larger ones. Sums are rounded at the edges of blocks, and appended rows
    move none of the edges before them, so an update sums only new rows.

    Blocks are whole chunks. A chunk far larger than a block is read once for each of its blocks:
    decoding it again costs little beside the products.

    `itemsize`: bytes of one number of X.
    `chunk_rows`: rows that are worth reading together.
    `max_rows`: the most rows that a block may have.
    `n_folds`: folds that are summed separately. Blocks are up to that many times larger, as long as 16 are
      left, so that sending and merging the sums of all folds costs no greater share of the time.
    Raises PlanError if a size is below 1.
    """
    if n_samples < 1:
        raise PlanError(f"there are {n_samples} rows; a pass needs at least 1")
    enlarged = MIN_BLOCK_ROWS * max(1, min(n_folds, n_samples // (FEW_BLOCKS * MIN_BLOCK_ROWS)))
    wanted = max(1, min(enlarged, MAX_BLOCK_ROWS, MAX_BLOCK_BYTES // max(1, n_features * itemsize), max_rows))
    pieces = chunk_rows // wanted
    # equal parts of a chunk that is larger than two blocks, else whole chunks
    unit = chunk_rows if pieces < 2 else -(-chunk_rows // pieces)
    rows = whole_chunks(unit, wanted)
    if min(rows, n_samples) > max_rows:  # by rounding up, or since one chunk is too large: cut that equally
        unit = -(-unit // -(-unit // max_rows))
        rows = max_rows // unit * unit
    return rows
