"""A classifier's rows, and the label of each row.

What users pass as X and y goes in; a dataset without targets and a column of labels
come out. scikit-learn's `column_or_1d` alone takes neither stored rows nor Dask's, and
says of a missing label that the type is unknown.
"""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import column_or_1d

from rff_dist.data import array_checks, columns, xarrays
from rff_dist.data.blocks import Block, Dataset
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.estimators import inputs
from rff_dist.estimators.values import require_values
from rff_dist.recipes import frames
from rff_dist.storage.columns import StoredColumn, as_column, open_column
from rff_dist.typing import AnyArray


def as_labelled(
    estimator: BaseEstimator,
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    reset: bool,
    adds_levels: bool = False,
) -> tuple[Dataset, columns.Column]:
    """Return a classifier's rows without targets, and the label of each row.

    Labels are integers, booleans, text or whole floats. For a dataset, path or URL, `y`
    is the name of an array in its group, or holds the labels themselves. By default the
    labels are the dataset's own targets, else the array "y" of its group. `reset` is
    True in a first fit; `adds_levels` if new levels of categories may join the recipe's
    lists. Raises DataError if a label is missing, a fraction or of another type.
    """
    if not (inputs.is_dataset_or_url(X) or xarrays.is_xarray(X)):
        require_values(estimator, y)
    if inputs.is_in_memory(X):
        array_checks.warn_of_other_order(X, y=y, sample_weight=sample_weight)
        rows = inputs.rows_in_memory(
            estimator, frames.as_table(X), reset=reset, adds_levels=adds_levels
        )
        labels = _checked_labels(column_or_1d(as_labels(y), warn=True))
        array_checks.require_rows({"X": rows.n_samples, "y": labels.n_samples})
        return inputs.completed(rows, None, sample_weight), labels
    if xarrays.is_xarray(X):
        expected = () if reset else getattr(estimator, "feature_names_in_", ())
        grid = xarrays.open_xarray(X, y, sample_weight, expected=expected)
        # the grid is a dataset, which has its own labels and weights
        return as_labelled(estimator, grid, reset=reset)

    dataset = inputs.as_dataset(
        estimator, X, None, sample_weight, reset=reset, supervised=False
    )
    if inputs.is_dataset_or_url(X):
        labels = _labels_of(estimator, dataset, y)
    else:  # Dask's collections and open arrays have no labels of their own
        labels = as_column(y)
    array_checks.require_rows({"X": dataset.n_samples, "y": labels.n_samples})
    return dataset.without_targets(), labels


def _checked_labels(y: AnyArray) -> columns.Column:
    """Return labels in memory as a column; DataError names the first wrong row."""
    try:
        return as_column(y)
    except DataError as error:
        # scikit-learn's conformance tests look for these words
        raise DataError(f"Unknown label type: {error}") from error


def as_labels(y: Any) -> Any:
    """Return labels in memory in a type that scikit-learn takes."""
    if isinstance(y, columns.MemoryColumn | StoredColumn):
        y = y.read(Block(0, 0, y.n_samples))
    # NumPy's text of variable width, which scikit-learn does not know
    if getattr(getattr(y, "dtype", None), "kind", "") == "T":
        return np.asarray(y).astype(object)
    return y


def _labels_of(estimator: BaseEstimator, dataset: Dataset, y: Any) -> columns.Column:
    """Return a dataset's labels: y, its targets, or the array "y" of its group."""
    if isinstance(y, str):
        return named_column(dataset, y, "y")
    if y is not None and dataset.n_targets:
        raise DataError(
            "`y` belongs to the dataset: leave it out, or open the dataset with y=None"
        )
    if y is not None:
        return as_column(y)
    if dataset.n_targets:
        if not dataset.one_dimensional:
            raise DataError(
                f"the dataset has {dataset.n_targets} targets; expected one label"
                " per row"
            )
        return as_column(dataset.read_targets())
    if dataset.url is None:
        raise DataError(
            f"{type(estimator).__name__} requires y to be passed, but the data have"
            " none"
        )
    return named_column(dataset, "y", "y")


def named_column(dataset: Dataset, name: str, parameter: str) -> columns.Column:
    """Return a stored array of a dataset's group, which `parameter` names."""
    if dataset.url is None:
        raise InvalidParameterError(
            f"`{parameter}` is {name!r}, but these data are not stored: no array has a"
            f" name. Give the values, such as X[{name!r}]"
        )
    return open_column(
        dataset.url,
        name,
        missing_chunks=dataset.missing_chunks,
        version=dataset.version,
    )
