"""Checks of the values of rows; errors name the first row and column that cannot be used."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.data.blocks import Rows
from rff_dist.errors import DataError


def check_finite(rows: Rows, inputs: NDArray[np.floating[Any]]) -> None:
    """Check that inputs and targets are finite, and weights finite and not negative.

    `inputs`: float array of shape (n_samples, n_features). The X of the same rows, prepared for features; so
      values beyond float32 count as infinite.
    Raises DataError, with the first offending row and column.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        # takes a tenth of the time of looking at each number; but sums of finite ones may overflow too
        overflows = not np.isfinite(inputs.sum())
    if overflows and not np.isfinite(inputs).all():
        raise _not_finite(rows, "X", inputs)
    check_targets(rows)


def check_targets(rows: Rows) -> None:
    """Check that targets are finite, and weights finite and not negative.

    Raises DataError, with the first offending row and column.
    """
    for name, values in (("y", rows.y), ("sample_weight", rows.sample_weight)):
        if values is not None and not np.isfinite(values).all():
            raise _not_finite(rows, name, values)
    if rows.sample_weight is not None and (rows.sample_weight < 0).any():
        row = int(np.argmax(rows.sample_weight < 0))
        raise DataError(
            f"sample_weight is {rows.sample_weight[row]} in row {rows.block.start + row:_}; "
            "weights must not be negative"
        )


def _not_finite(rows: Rows, name: str, values: NDArray[Any]) -> DataError:
    position = np.argwhere(~np.isfinite(values))[0]
    stored = getattr(rows, name)[tuple(position)]
    where = f"row {rows.block.start + position[0]:_}"
    if len(position) > 1:
        where += f", column {position[1]}"
    if np.isnan(stored):
        problem = f"Input {name} contains NaN: {where}"
    elif np.isinf(stored):
        problem = f"Input {name} contains infinity: {where}"
    else:
        problem = f"Input {name} contains a value too large for dtype('float32'): {where} holds {stored:g}"
    if name == "X" and rows.chunk_rows is not None:  # y and weights may have other chunks
        problem += f" (chunk {(rows.block.start + position[0]) // rows.chunk_rows})"
    return DataError(f"{problem}; fill or drop such rows first")
