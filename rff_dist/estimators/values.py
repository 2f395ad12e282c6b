"""scikit-learn's checks of rows in memory, with errors that name column and row.

X, y and weights go in; what scikit-learn's own checks return comes out. Alone these
would say that there is a NaN or a text, but not where; they ignore masks, and take
dates as nanoseconds.
"""

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from decimal import Decimal
from numbers import Integral
from typing import Any

import numpy as np
import scipy
from sklearn.utils.validation import _check_sample_weight, _check_y, validate_data

from rff_dist.checks import check_unmasked
from rff_dist.data.array_checks import warn_of_long_integers
from rff_dist.data.blocks import check_not_negative
from rff_dist.errors import DataError, NotFiniteError
from rff_dist.recipes import frames
from rff_dist.typing import FloatArray

# float32 stays as it is, and all other dtypes become float64. "order" makes rows
# contiguous: a frame has contiguous columns, which BLAS would sum in another order,
# with other bits.
_CHECKS: dict[str, Any] = {
    "accept_sparse": "csr",
    "dtype": [np.float64, np.float32],
    "order": "C",
}

# Advice on values of X, y and weights.
_MISSING = {
    "X": "fill such values, for example by the column's median, or drop the rows"
}
_TEXT = {
    "X": (
        "Fit to a frame, whose columns of text are categories, or encode texts, for"
        " example by sklearn.preprocessing.OneHotEncoder in a pipeline"
    ),
    "y": "For classes take RFFClassifier",
}
_DATES = (
    "Turn dates into durations first, such as dates - dates.min(), and durations into"
    " numbers, by .dt.total_seconds() of a pandas column"
)


def validated(estimator: Any, X: Any, *, reset: bool, **checks: Any) -> Any:
    """Return X as `sklearn.utils.validation.validate_data` does.

    DataError names the column and row of a value that is no finite number.
    """
    check_masks(X=X)
    _refuse_dates("X", X)
    if reset:
        warn_of_equal_integers("X", X)
    try:
        return validate_data(estimator, X, reset=reset, **{**_CHECKS, **checks})
    except (TypeError, ValueError) as error:
        _refuse_first_non_number("X", X, is_fitted=not reset)
        names = list(getattr(estimator, "feature_names_in_", ()))
        if not reset and names and set(names) <= set(frames.columns_of(X) or ()):
            # of polars and Arrow, whose frames may be lazy
            use = f"X.select({names})" if hasattr(X, "select") else f"X[{names}]"
            raise DataError(f"{error}Use {use}") from None
        raise


def require_values(estimator: Any, y: Any) -> None:
    """Raise DataError if y is None, the name of a column, masked or sparse."""
    check_masks(y=y)
    if y is None:
        raise DataError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is"
            " None"
        )
    _refuse_name("y", y)
    if scipy.sparse.issparse(y):
        raise DataError("y is a sparse matrix; expected an array, as of y.toarray()")


def _refuse_name(parameter: str, values: Any) -> None:
    """Raise DataError for the name of a column in place of its values."""
    if isinstance(values, str):
        raise DataError(
            f"{parameter} is the text {values!r}; expected values, such as"
            f" X[{values!r}], and X without that column"
        )


def validated_targets(estimator: Any, y: Any) -> Any:
    """Return checked targets in float64, without X: a recipe has encoded that."""
    _refuse_dates("y", y)
    warn_of_equal_integers("y", y)
    try:
        return np.asarray(
            _check_y(y, multi_output=True, y_numeric=True, estimator=estimator),
            np.float64,
        )
    except (TypeError, ValueError):
        _refuse_first_non_number("y", y)
        raise


def validated_weights(sample_weight: Any, X: Any) -> Any:
    """Return checked weights of rows in float64."""
    check_masks(sample_weight=sample_weight)
    _refuse_name("sample_weight", sample_weight)
    _refuse_dates("sample_weight", np.atleast_1d(np.asarray(sample_weight)))
    try:
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
    except (TypeError, ValueError):
        _refuse_first_non_number("sample_weight", sample_weight)
        raise
    check_not_negative(weights)
    with np.errstate(over="ignore"):
        if np.isinf(weights.sum()):
            raise DataError(
                f"sample_weight is too large: the largest is {weights.max():.3g}, and"
                " the sum is beyond float64; scale it down"
            )
    return weights


def check_encoded(X: FloatArray, sources: Sequence[str]) -> None:
    """Check inputs that a recipe encoded.

    `sources`: for each column of X, the table's column that it is made from.
    NotFiniteError names the column and row of a value that is no finite number.
    """
    wrong_cells = np.argwhere(~np.isfinite(X))
    if len(wrong_cells):
        row, column = wrong_cells[0]
        _refuse_value("X", X[row, column], int(row), sources[column])


def check_masks(**arrays: Any) -> None:
    """Check that nothing is masked in arrays; scikit-learn's checks ignore masks."""
    for name, values in arrays.items():
        check_unmasked(values, name)


def warn_of_equal_integers(name: str, values: Any) -> None:
    """Warn if integers of a column differ, but become equal in float64."""
    for label, column in _columns(values):
        integers = np.asarray(column)
        if integers.dtype.kind == "O":  # of Python, which may be decimals
            numbers = [x for x in integers.flat if isinstance(x, Integral | Decimal)]
            integers = np.array(numbers, object)
        elif integers.dtype.kind not in "iu":
            continue
        floats = integers.astype(np.float64)
        # float64 holds all integers up to this
        is_long = np.abs(floats) >= 2**53
        n_different = len({*integers[is_long].tolist()})
        if n_different > len({*floats[is_long].tolist()}):
            warn_of_long_integers(name, label)


def _columns(values: Any) -> Iterator[tuple[object, Any]]:
    """Yield each column's name or number, and its values; for a vector, None and its
    values.
    """
    names = frames.columns_of(values)
    if names is None:
        array = np.asarray(values)
        yield from enumerate(array.T) if array.ndim == 2 else [(None, array)]
    elif hasattr(values, "iloc"):  # of pandas, whose columns may share a name
        yield from ((label, values.iloc[:, i]) for i, label in enumerate(names))
    else:
        yield from ((label, values[label]) for label in names)


def _refuse_dates(name: str, values: Any) -> None:
    """Raise DataError for dates, which scikit-learn takes as nanoseconds."""
    if scipy.sparse.issparse(values):
        return
    for label, column in _columns(values):
        # the first value tells: dates after other values cannot be made numbers
        head = np.asarray(column[:1])
        first = next(iter(head), None)
        if head.dtype.kind in "Mm" or isinstance(first, date | timedelta):
            place = "" if label is None else f": column {label!r}"
            raise DataError(
                f"Input {name} contains dates{place}; expected numbers. {_DATES}"
            )


def _refuse_first_non_number(
    name: str, values: Any, *, is_fitted: bool = False
) -> None:
    """Raise DataError for the first value that is no finite number, if there is one.

    `is_fitted`: a fit took these columns as numbers.
    """
    if scipy.sparse.issparse(values):
        cells = values.tocoo()
        for row, column, value in zip(cells.row, cells.col, cells.data, strict=True):
            _refuse_value(name, value, row, column)
        return
    for label, column in _columns(values):
        array = np.asarray(column)
        suspects: Any = range(len(array))
        if array.dtype.kind in "buifc":
            suspects = np.flatnonzero(~np.isfinite(array))
        for row in suspects:
            _refuse_value(name, array[row], int(row), label, is_fitted=is_fitted)


def _refuse_value(
    name: str, value: Any, row: int, column: object, *, is_fitted: bool = False
) -> None:
    """Raise DataError for a missing or infinite value or a text; others pass."""
    where = f"row {row:_}" if column is None else f"row {row:_}, column {column!r}"
    # missing values of Python and of pandas
    is_missing = value is None or type(value).__name__ in ("NAType", "NaTType")
    try:
        number = np.nan if is_missing else float(value)
    except (TypeError, ValueError):
        if not isinstance(value, str):
            return  # scikit-learn's own error says enough about other types
        problem = (
            f"Input {name} contains text: {where} holds {value[:40]!r}; expected"
            " numbers"
        )
        advice = _TEXT.get(name)
        if is_fitted:
            advice = f"Column {column!r} held numbers at the fit; correct row {row:_}"
        raise DataError(". ".join(filter(None, [problem, advice]))) from None
    if not np.isfinite(number):
        what = "NaN" if np.isnan(number) else "infinity"
        advice = _MISSING.get(name, "fill or drop such rows")
        raise NotFiniteError(
            f"Input {name} contains {what}: {where}; {advice}"
        ) from None
