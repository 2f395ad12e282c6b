"""The parameter `categorical_features`: which columns of a fit's rows are categories.

Frames and arrays in memory go in; encoded rows come out, with their recipe among the
attributes. A recipe says how columns become numbers; columns of plain numbers need
none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rff_dist.data import memory
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.estimators import values
from rff_dist.recipes import frames
from rff_dist.recipes.arrow import pyarrow
from rff_dist.recipes.recipes import RECIPE, Recipe
from rff_dist.recipes.tables import listed
from rff_dist.typing import Facts, FloatArray

#: the default: columns of text, and columns whose type is a category
FROM_DTYPE = "from_dtype"
_EXPECTED = (
    f"expected {FROM_DTYPE!r}, None, names or positions of columns, or a boolean for"
    " each column"
)


def learn_rows(estimator: Any, X: Any) -> memory.ArrayDataset | None:
    """Learn a recipe from the rows of a fit, and return the rows encoded by it.

    Then it also sets the estimator's `n_features_in_`, and for a frame
    `feature_names_in_`. Returns None for plain numbers, which need no recipe.
    Raises InvalidParameterError if `categorical_features` names a column that X does
    not have; DataError if a value is missing, or cannot be encoded.
    """
    listed_columns = _listed_columns(estimator.categorical_features)
    names = frames.columns_of(X)
    is_plain = names is None or frames.is_plain(X)
    if is_plain and not listed_columns:
        return None
    if names is None:
        table = table_of_array(estimator, X, reset=True)
    else:
        table = frames.as_arrow(X)
    categories = None  # the columns' types decide
    if not _is_from_dtype(estimator.categorical_features):
        categories = _named(
            listed_columns, table.column_names, has_names=names is not None
        )
    recipe = frames.learn_table(table, categories)
    values.warn_of_equal_integers("X", table.drop_columns(categories or []))
    rows = as_rows(
        frames.encode_table(recipe, table).astype(recipe.dtype(table.schema)),
        recipe,
        recipe.to_dict(),
    )
    estimator.n_features_in_ = table.num_columns
    if names is None:
        return replace(rows, feature_names=None)
    estimator.feature_names_in_ = np.asarray(table.column_names, object)
    return rows


def as_rows(X: FloatArray, recipe: Recipe, recipe_json: Facts) -> memory.ArrayDataset:
    """Return encoded inputs as a dataset with their recipe.

    `recipe_json` is `recipe` as JSON values, which an estimator keeps. Raises
    DataError, which names the table's column, if a value is missing.
    """
    values.check_encoded(X, recipe.sources)
    names = tuple(recipe.names)
    attributes = {RECIPE: recipe_json}
    return memory.ArrayDataset(X, feature_names=names, attributes=attributes)


def refuse_categories(estimator: Any, X: Any) -> None:
    """Refuse categories in rows that are not in memory: no recipe is learned from them.

    Raises InvalidParameterError if `categorical_features` names columns; DataError for
    a frame of Dask with columns other than numbers.
    """
    if hasattr(X, "_meta") and frames.columns_of(X) and not frames.is_plain(X._meta):
        others = [name for name in X if not frames.is_plain(X._meta[[name]])]
        raise DataError(
            f"X is a Dask {type(X).__name__} with text, categories or dates:"
            f" {listed([f'{n} ({X.dtypes[n]})' for n in others])}; expected numbers."
            " Compute it first, or read its files with `rff-dist ingest`"
        )
    if _listed_columns(estimator.categorical_features):
        raise InvalidParameterError(
            f"`categorical_features` is {estimator.categorical_features!r}, but X is a"
            f" {type(X).__name__}; expected rows in memory. Stored rows record which"
            f" columns are categories: name them with `categories` when you ingest the"
            f" table"
        )


def table_of_array(estimator: Any, X: Any, *, reset: bool) -> pyarrow.Table:
    """Return an array as a table with columns x0, x1, …; checks the array."""
    rows = values.validated(estimator, X, reset=reset, accept_sparse=False)
    return frames.table_of_array(rows)


def _is_from_dtype(categorical: object) -> bool:
    """Return whether the columns' types decide."""
    return isinstance(categorical, str) and categorical == FROM_DTYPE


def _listed_columns(categorical: object) -> list[Any]:
    """Return the columns that are listed one by one; [] for None and `FROM_DTYPE`."""
    if categorical is None or _is_from_dtype(categorical):
        return []
    if isinstance(categorical, str) or not isinstance(categorical, Iterable):
        raise InvalidParameterError(
            f"`categorical_features` is {categorical!r}; {_EXPECTED}"
        )
    return list(categorical)


def _named(
    categorical: list[Any], names: Sequence[str], *, has_names: bool
) -> list[str]:
    """Return the names of the columns that are given by names, positions or a mask."""
    # a bool is an int too, so this test comes first
    if categorical and _are_all(categorical, bool | np.bool_):
        if len(categorical) != len(names):
            raise InvalidParameterError(
                f"`categorical_features` has {len(categorical)} booleans; expected"
                f" {len(names)}, one for each column of X"
            )
        mask = zip(names, categorical, strict=True)
        return [name for name, is_category in mask if is_category]
    # an empty list too
    if _are_all(categorical, int | np.integer):
        unknown = [place for place in categorical if not 0 <= place < len(names)]
        category_names = [names[place] for place in categorical if place not in unknown]
    elif not _are_all(categorical, str):
        raise InvalidParameterError(
            f"`categorical_features` is {categorical!r}; {_EXPECTED}"
        )
    elif not has_names:
        raise InvalidParameterError(
            f"`categorical_features` names {listed(categorical)}, but X has no names;"
            " expected positions of columns, or a frame"
        )
    else:
        unknown = [name for name in categorical if name not in names]
        category_names = categorical
    if unknown:
        raise InvalidParameterError(
            f"`categorical_features`: X has no column {listed(unknown)}; it has"
            f" {len(names)}: {listed(names)}"
        )
    return category_names


def _are_all(items: list[Any], kind: Any) -> bool:
    return all(isinstance(item, kind) for item in items)
