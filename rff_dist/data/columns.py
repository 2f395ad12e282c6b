"""Columns next to a dataset: a label or group for each row.

Any array goes in; integers, booleans, whole floats or text come out. Anything else is
refused, with the first wrong row: labels are compared and sorted, and NumPy sorts NaN
and mixed objects in surprising ways. Columns here are in memory; `storage.columns` has
stored ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from rff_dist.data import array_checks, blocks, digests
from rff_dist.errors import DataError
from rff_dist.typing import AnyDType

TEXT = np.dtypes.StringDType()
# the category that recipes and grids give rows whose text is missing
MISSING = "(missing)"


class Column(Protocol):
    """One value for each row of a dataset: a whole number, boolean or text."""

    @property
    def n_samples(self) -> int:
        """Rows."""

    @property
    def dtype(self) -> AnyDType:
        """Integer, bool, float (of whole numbers), fixed-width str or NumPy's
        StringDType.
        """

    @property
    def chunk_rows(self) -> int:
        """The number of rows that are efficient to read together."""

    @property
    def in_memory(self) -> bool:
        """Whether only this process has the values; else all workers can read them."""

    def read(self, block: blocks.Block) -> np.ndarray:
        """Return the values of a block's rows, shape (n_samples,)."""

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Return the values of single rows, in the order of `indices`."""

    def fingerprint(self) -> str:
        """Return a digest that changes when the values change."""


@dataclass(frozen=True, eq=False)
class MemoryColumn:
    """Values in memory; `storage.columns.as_column` makes it."""

    #: Int, bool, str or float array of shape (n_samples,); floats are whole numbers.
    values: np.ndarray

    chunk_rows = 2**16
    in_memory = True

    @property
    def n_samples(self) -> int:
        return len(self.values)

    @property
    def dtype(self) -> AnyDType:
        return self.values.dtype

    def read(self, block: blocks.Block) -> np.ndarray:
        return self.values[block.start : block.stop]

    def take(self, indices: np.ndarray | Sequence[int]) -> np.ndarray:
        return np.asarray(self.values[array_checks.check_rows(indices, self.n_samples)])

    @cached_property
    def _digest(self) -> str:
        return digests.digest_array(self.values)

    def fingerprint(self) -> str:
        return self._digest

    def content_key(self) -> str:
        """Return the key by which `engines.resuming` finds the sums of a stopped pass.

        It must depend on all values, as this fingerprint does; that of a stored column
        reads a few chunks only.
        """
        return self._digest


def is_text(dtype: AnyDType) -> bool:
    """Return whether values of a dtype are text."""
    return dtype.kind in "UT"


def check_values(
    values: np.ndarray,
    name: str,
    rows: np.ndarray,
    place: Callable[[int], str] = "row {:_}".format,
) -> np.ndarray:
    """Return labels as integers, booleans, whole floats or text.

    `rows` are their row numbers in the dataset, which `place` puts into words. Raises
    DataError, with the first wrong row, for any other value.
    """
    if values.ndim != 1:
        raise DataError(
            f"{name} has shape {values.shape}; expected one value per row, shape"
            " (n_samples,)"
        )
    kind = values.dtype.kind
    if kind in "iufU":
        values = array_checks.native(values)
    # a StringDType with an `na_object` may hold missing values
    if kind == "O" or (kind == "T" and hasattr(values.dtype, "na_object")):
        return _from_objects(values.astype(object), name, rows)
    # long doubles are refused below, as other dtypes are
    if kind == "f" and values.dtype.itemsize <= 8:
        good = values == np.rint(values)
        # above 2^53 some whole numbers are the same float64
        good &= np.abs(values) <= 2.0**53
        if not good.all():
            at = int(np.argmin(good))
            what = f"is {values[at]!s}, no whole number up to 2^53,"
            if np.isnan(values[at]):
                what = "is missing (NaN)"
            raise DataError(
                f"{name} {what} in {place(rows[at])}; expected labels: integers,"
                " booleans or text. Fill or drop such rows, round the values, or turn"
                " them into text; to predict numbers, train a regression (RFFRidge, or"
                " fit without --classify)"
            )
        return values
    if kind == "U":
        _as_text(values, name, rows)  # only as a check
    if kind in "biuUT":
        return values
    advice = {
        "M": "Format times as text",
        "m": "Format times as text",
        "S": "Decode the bytes to text",
    }
    raise DataError(
        f"{name} has dtype {values.dtype}; expected labels: integers, booleans or text."
        f" {advice.get(kind, 'Convert them first')}"
    )


def _from_objects(values: np.ndarray, name: str, rows: np.ndarray) -> np.ndarray:
    """Return Python objects as an array, if all have one type of label."""
    label_type = _label_type(values[0] if len(values) else "")
    for row, value in zip(rows.tolist(), values.tolist(), strict=True):
        if label_type is not None and _label_type(value) is label_type:
            continue
        what = f"is {str(value)[:50]!r}, a {type(value).__name__},"
        # Only NaN, also pandas', differs from itself.
        is_missing = value is None or type(value).__name__ in ("NAType", "NaTType")
        if is_missing or value != value:
            what = "is missing"
        raise DataError(
            f"{name} {what} in row {row:_}; expected labels of one type: integers,"
            " booleans or text. Fill or drop such rows, or convert all to text"
        )
    if label_type is str:
        return _as_text(values, name, rows)
    if label_type is bool:
        return values.astype(bool)
    whole = np.array(values.tolist())
    if whole.dtype.kind not in "iu":
        raise DataError(
            f"{name} holds integers beyond 64 bits; expected smaller ones. Convert them"
            " to text"
        )
    return whole


def _label_type(value: object) -> type | None:
    """Return str, bool or int; None if a value cannot be a label."""
    if isinstance(value, str):
        return str
    # a bool is an int too, so this test comes first
    if isinstance(value, bool | np.bool_):
        return bool
    return int if isinstance(value, int | np.integer) else None


def _as_text(values: np.ndarray, name: str, rows: np.ndarray) -> np.ndarray:
    """Return text of variable width; refuse a half of a surrogate pair, which UTF-8
    cannot store.
    """
    try:
        return values.astype(TEXT)
    except (UnicodeEncodeError, TypeError):
        at = next(
            i
            for i, text in enumerate(values.tolist())
            if any("\ud800" <= c <= "\udfff" for c in text)
        )
        raise DataError(
            f"{name} is {str(values[at])[:50]!a} in row {rows[at]:_}, which holds half"
            " of a surrogate pair; expected text that UTF-8 can store. Decode the"
            " original bytes again"
        ) from None
