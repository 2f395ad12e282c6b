"""Generated datasets of any size, whose best possible error is known."""

from collections.abc import Callable, Iterator

import numpy as np

from rff_dist.errors import DataError
from rff_dist.storage import datasets, locations, writing
from rff_dist.typing import PathLike, frozen

# Rows that share a counter. The number is part of the data's definition: another one gives other rows.
TILE_ROWS = 8192
_INPUTS, _NOISE = 0, 1


@frozen
class RandomRows:
    """Rows of standard normal inputs, and the noise of their targets.

    `noise`: standard deviation of the noise, in units of y.
    `seed`: from 0 to 2^64 − 1.
    `first_row`: number of the first row; test data can begin where the training data end.
    """

    n_samples: int
    n_features: int
    noise: float
    seed: int
    first_row: int = 0


def generate_dataset(
    url: PathLike,
    function: Callable[[np.ndarray], np.ndarray],
    rows: RandomRows,
    how: writing.Writing = writing.Writing(),
) -> datasets.ZarrDataset:
    """Write y = function(X) + noise · ε, with X and ε standard normal, in bounded memory.

    No model can have a root mean squared error below `noise`, which is stored as the attribute `best_rmse`.
    Row i depends on the seed and i only, not on the number of rows or the chunks, so a longer dataset begins
    with the rows of a shorter one. X is float32, and the function sees the stored values.

    `function`: maps float64 (rows, n_features) to real (rows,) or (rows, n_targets), row by row.
    Raises DataError if the function returns another number of rows, or values that are not finite.
    Source: Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3", for Philox, a counter-based
      generator.
    """
    seed, noise, first_row = rows.seed, rows.noise, rows.first_row

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        stop = first_row + rows.n_samples
        for tile in range(first_row // TILE_ROWS, -(-stop // TILE_ROWS)):
            start = tile * TILE_ROWS
            wanted = slice(max(0, first_row - start), min(TILE_ROWS, stop - start))
            X = _normals(seed, _INPUTS, tile, rows.n_features)[wanted].astype(np.float32)
            y = np.asarray(function(X.astype(np.float64)), dtype=np.float64)
            if y.shape[:1] != (len(X),) or y.ndim > 2 or not np.isfinite(y).all():
                raise DataError(
                    f"`function` gave shape {y.shape} for {len(X)} rows (from row {start + wanted.start}); "
                    f"expected finite values of shape ({len(X)},) or ({len(X)}, n_targets)"
                )
            n_targets = y.shape[1] if y.ndim == 2 else 1
            yield X, y + noise * _normals(seed, _NOISE, tile, n_targets)[wanted].reshape(y.shape)

    facts = {"seed": seed, "noise": noise, **({"first_row": first_row} if first_row else {})}
    attributes = {"generated": facts, "best_rmse": float(noise)}
    location, n_samples, names = locations.parse_location(url), rows.n_samples, (None, None)
    return writing.write_batches(
        location, batches(), n_samples=n_samples, names=names, attributes=attributes, how=how
    )


def _normals(seed: int, stream: int, tile: int, n_columns: int) -> np.ndarray:
    """Draw the normals of one tile: the upper words of the counter name the tile, the lowest one counts."""
    counter = np.array([0, 0, stream, tile], dtype=np.uint64)
    key = np.array([seed, 0], dtype=np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
    return generator.standard_normal((TILE_ROWS, n_columns))
