"""Random inputs and a function of them → a dataset whose best possible error is known.

In go a function and the size of a dataset, out comes the dataset. With a single stream
of random numbers, row i would depend on the number of rows. Here it depends only on the
seed and i, so a longer dataset begins with the rows of a shorter one.
"""

from collections.abc import Callable, Iterator

import numpy as np

from rff_dist.storage import datasets, locations, writing
from rff_dist.typing import PathLike, frozen

# Rows that are drawn with one counter. This number decides what is drawn: with another
# one the same seed gives other rows.
TILE_ROWS = 8192
# streams of random numbers, for X and for the noise of y
_INPUTS = 0
_NOISE = 1


@frozen
class RandomRows:
    """Rows of standard normal inputs, and the noise of their targets."""

    n_samples: int
    n_features: int
    #: standard deviation, in units of y
    noise: float
    #: from 0 to 2^64 − 1
    seed: int
    #: number of the first row; test data can begin after the last row of training data
    first_row: int = 0


def generate_dataset(
    url: PathLike,
    function: Callable[[np.ndarray], np.ndarray],
    rows: RandomRows,
    write_options: writing.WriteOptions = writing.WriteOptions(),
) -> datasets.ZarrDataset:
    """Write y = function(X) + noise · ε, where X and ε are standard normal.

    No model can have a root mean squared error below `noise`, which is stored as the
    attribute `best_rmse`. X is float32, and the function sees the stored values: it
    maps float64 (n_rows, n_features) to (n_rows,), row by row.
    """
    stop = rows.first_row + rows.n_samples

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        tile_stop = -(-stop // TILE_ROWS)  # rounded up
        for tile in range(rows.first_row // TILE_ROWS, tile_stop):
            start = tile * TILE_ROWS
            # the part of the tile that lies in the dataset; a stop past its end is cut
            wanted = slice(max(0, rows.first_row - start), stop - start)
            X = _normals(rows.seed, _INPUTS, tile, rows.n_features)[wanted]
            X = X.astype(np.float32)
            noise = _normals(rows.seed, _NOISE, tile, 1)[wanted, 0]
            yield X, function(X.astype(np.float64)) + rows.noise * noise

    return writing.write_batches(
        locations.parse_location(url),
        batches(),
        n_samples=rows.n_samples,
        names=(None, None),  # columns of X and y are not named
        attributes={"best_rmse": float(rows.noise)},
        write_options=write_options,
    )


def _normals(seed: int, stream: int, tile: int, n_columns: int) -> np.ndarray:
    """Draw the normals of one tile by Philox, a counter-based generator.

    The upper words of the counter are the stream and the tile, and the lowest counts
    draws (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
    """
    counter = np.array([0, 0, stream, tile], dtype=np.uint64)
    key = np.array([seed, 0], dtype=np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
    return generator.standard_normal((TILE_ROWS, n_columns))
