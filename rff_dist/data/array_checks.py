"""Refuse arrays that are no X, y or weights, in words that say what to do.

Arrays of users go in; the same arrays come out, or an error that names the wrong one.
NumPy would go on with a wrong shape or dtype, and fail elsewhere.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.errors import DataError, InvalidParameterError, StorageError, warn


def require_numbers(name: str, values: np.ndarray) -> None:
    """Refuse values that are not integers or floats of at most 64 bits."""
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        raise DataError(
            f"{name} has dtype {values.dtype}; expected integers or floats of at most"
            " 64 bits. Give values, and encode texts and dates first, as `rff-dist"
            " ingest` does"
        )


def warn_of_long_integers(name: str, column: object) -> None:
    """Warn of integers of which float64 makes several equal."""
    place = "" if column is None else f" in column {column!r}"
    warn(
        f"{name} has integers beyond 2⁵³{place}, of which float64 makes different ones"
        " equal. Subtract the smallest first; if they are names of things, turn them"
        " into text"
    )


def warn_of_other_order(X: Any, **parts: Any) -> None:
    """Warn of parts, by name, that have the pandas index of X in another order."""
    index: Any = getattr(X, "index", None)
    for name, part in parts.items():
        other: Any = getattr(part, "index", None)
        is_pandas = [
            type(one).__module__.startswith("pandas") for one in (index, other)
        ]
        if all(is_pandas) and not other.equals(index) and set(other) == set(index):
            warn(
                f"{name} has the index of X in another order, but rows are matched by"
                f" position. Give {name}.loc[X.index], or reset both indexes"
            )


def require_rows(n_rows: Mapping[str, int]) -> None:
    """Refuse parts of one dataset with different numbers of rows.

    The words are scikit-learn's.
    """
    if len(set(n_rows.values())) > 1:
        raise DataError(
            "Found input variables with inconsistent numbers of samples:"
            f" {[*n_rows.values()]} ({', '.join(n_rows)}); give as many rows of each"
        )


def check_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays of X, y and weights, the last two as float64, or refuse them."""
    checks = {"X": check_inputs, "y": check_targets, "sample_weight": check_weights}
    checked = {name: checks[name](part) for name, part in parts.items()}
    require_rows({name: part.shape[0] for name, part in checked.items()})
    return checked


# The numbers of axes that an array may have, and their meaning, for messages.
_AXES = {
    "X": (
        (2,),
        "2 axes (n_samples, n_features). Reshape your data: np.reshape(X, (len(X), -1))"
        " has a row per sample, np.reshape(X, (1, -1)) is one sample",
    ),
    "y": ((1, 2), "(n_samples,) or (n_samples, n_targets)"),
    "sample_weight": ((1,), "weights of 1 axis"),
}


def check_axes(
    role: str,
    shape: tuple[int, ...],
    label: str,
    error: type[DataError | StorageError] = DataError,
) -> None:
    """Refuse X, y or weights with too many or too few axes, or no column."""
    n_axes, expected = _AXES[role]
    if len(shape) not in n_axes:
        raise error(f"{label} has shape {shape}; expected {expected}")
    if shape[1:] == (0,):  # in scikit-learn's words
        raise DataError(
            f"Found array with 0 feature(s) (shape={shape}) while a minimum of 1 is"
            f" required: {label}. Give {role} a column"
        )


def check_inputs(X: np.ndarray) -> np.ndarray:
    """Return X as it is, or refuse it."""
    require_numbers("X", X)
    check_axes("X", X.shape, "X")
    return X


def check_targets(y: np.ndarray) -> np.ndarray:
    """Return targets as float64, or refuse them."""
    require_numbers("y", y)
    check_axes("y", y.shape, "y")
    return y.astype(np.float64, copy=False)


def check_weights(sample_weight: np.ndarray) -> np.ndarray:
    """Return a copy of weights as float64, or refuse them."""
    require_numbers("sample_weight", sample_weight)
    check_axes("sample_weight", sample_weight.shape, "sample_weight")
    return sample_weight.astype(np.float64)


def native(values: np.ndarray) -> np.ndarray:
    """Return values in the byte order of this machine."""
    if values.dtype.kind == "T":  # text has no byte order
        return values
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def check_rows(row_numbers: ArrayLike, n_samples: int) -> np.ndarray:
    """Return row numbers, or the rows of a boolean mask, as int64; refuse others."""
    rows = np.asarray(row_numbers)
    if rows.dtype == bool and rows.shape == (n_samples,):
        return np.flatnonzero(rows)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise InvalidParameterError(
            f"rows are given as {rows.dtype} of shape {rows.shape}; expected 1-D"
            f" integers, or a boolean for each of {n_samples} rows"
        )
    rows = rows.astype(np.int64)
    if rows.size and not 0 <= rows.min() <= rows.max() < n_samples:
        last = n_samples - 1
        raise InvalidParameterError(
            f"rows are given from {rows.min()} to {rows.max()}; expected 0 to {last}"
        )
    return rows
