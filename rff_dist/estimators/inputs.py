"""Turn what users pass as X, y and weights into a dataset, and choose its engine.

X may be an array, a frame, a sparse matrix, a Dask or Zarr array, a grid of xarray, a
dataset, or the path or URL of one. Rows in memory go through scikit-learn's own checks;
other rows are checked block by block, as they are read. A frame with text, categories
or dates first becomes numbers by a recipe: a fit learns it, and later rows are encoded
by the model's.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import scipy
from sklearn.base import BaseEstimator

from rff_dist.data import array_checks, dask_collections, grids, memory, xarrays
from rff_dist.data.blocks import Dataset
from rff_dist.engines import protocol, serial
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.estimators import categories
from rff_dist.estimators.values import (
    require_values,
    validated,
    validated_targets,
    validated_weights,
)
from rff_dist.recipes import frames, model_rows, recipes
from rff_dist.storage import arrays, datasets
from rff_dist.typing import AnyArray, Facts


def is_dask(value: object) -> bool:
    """Return whether `value` is a Dask collection."""
    # Dask's own test, without an import; xarray's objects have the attribute too
    return hasattr(value, "__dask_graph__") and not xarrays.is_xarray(value)


def is_in_memory(X: object) -> bool:
    """Return whether X is an array, frame, sparse matrix or list in memory."""
    is_lazy = xarrays.is_xarray(X) or is_dask(X) or _is_zarr(X)
    return not (is_lazy or is_dataset_or_url(X))


def _is_zarr(value: object) -> bool:
    # by its name, since only `storage` imports Zarr
    return type(value).__module__.partition(".")[0] == "zarr"


def is_dataset_or_url(X: object) -> bool:
    """Return whether X is a dataset, or a path or URL of one."""
    return isinstance(X, str | os.PathLike | Dataset)


def as_dataset(
    estimator: BaseEstimator,
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    reset: bool,
    supervised: bool = True,
    adds_levels: bool = False,
) -> Dataset:
    """Return the user's rows as a dataset.

    In a first fit, if `reset` is True, the estimator's columns are set; otherwise rows
    are compared with them. `adds_levels` is True if rows are added to a fit: new levels
    then join the recipe's lists. A dataset has its own y and weights, so these must be
    left out. Raises DataError if they are given twice or not at all, or do not fit.
    """
    X = frames.as_table(X)
    array_checks.warn_of_other_order(X, y=y, sample_weight=sample_weight)
    if supervised and not (is_dataset_or_url(X) or xarrays.is_xarray(X)):
        require_values(estimator, y)
    if is_in_memory(X):
        rows = rows_in_memory(estimator, X, reset=reset, adds_levels=adds_levels)
        targets = validated_targets(estimator, y) if supervised else None
        return completed(rows, targets, sample_weight)

    if reset:
        categories.refuse_categories(estimator, X)
    else:
        X = _encode_lazily(estimator, X)
    if is_dataset_or_url(X):
        dataset = _open_stored(X, supervised=supervised)
        if y is not None or sample_weight is not None:
            raise DataError(
                "`y` and `sample_weight` belong to the dataset: leave them out, give"
                " their names to open_dataset, or give an array as X too, such as"
                " zarr.open(url)['X']"
            )
    elif xarrays.is_xarray(X):
        expected = () if reset else getattr(estimator, "feature_names_in_", ())
        targets = y if supervised else None
        dataset = xarrays.open_xarray(X, targets, sample_weight, expected=expected)
    else:
        from rff_dist.engines.dask_arrays import DaskArrayDataset

        if not is_dask(X):
            X = arrays.as_dask(X)
        client = getattr(getattr(estimator, "engine", None), "client", None)
        dataset = DaskArrayDataset(X, y, sample_weight, client=client)
    if supervised and dataset.n_targets < 1:
        raise DataError(
            f"{type(estimator).__name__} requires y to be passed, but the data have"
            " none. Name its array, as by open_dataset(url, y='price')"
        )
    _check_columns(estimator, dataset, reset=reset)
    return dataset


def _open_stored(X: Any, *, supervised: bool) -> Dataset:
    """Return a dataset, or the one at a path, URL or group."""
    if isinstance(X, Dataset):
        return X
    if supervised:
        return datasets.open_dataset(X)
    # a y of text cannot be read as targets
    return datasets.open_dataset(X, y=None)


def facts_of(estimator: BaseEstimator) -> Facts:
    """Return the card of an estimator's model: facts by name. An estimator without a
    model has only the recipe.
    """
    card: Facts | None = getattr(vars(estimator).get("_fitted"), "card", None)
    if card is None:
        return {recipes.RECIPE: getattr(estimator, "_recipe", None)}
    return card


def rows_in_memory(
    estimator: BaseEstimator, X: Any, *, reset: bool, adds_levels: bool = False
) -> memory.ArrayDataset | memory.SparseDataset:
    """Return rows in memory, dense or sparse, as a dataset without targets.

    A recipe encodes them if they need one, and its checks replace scikit-learn's, which
    refuse text.
    """
    shape = getattr(X, "shape", None) or np.asarray(X).shape
    if not shape:
        raise DataError(
            f"X is a {type(X).__name__}; expected a table or array of 2 axes, such as"
            " pandas.DataFrame(X)"
        )
    array_checks.check_axes("X", shape, "X")
    encoded = _encoded_rows(estimator, X, reset=reset, adds_levels=adds_levels)
    if encoded is not None:
        return encoded
    X = validated(estimator, X, reset=reset)
    if scipy.sparse.issparse(X):
        return memory.SparseDataset(X)
    return memory.ArrayDataset(X)


def _encoded_rows(
    estimator: BaseEstimator, X: Any, *, reset: bool, adds_levels: bool
) -> memory.ArrayDataset | None:
    """Return rows in memory as a recipe encodes them; None if they need no recipe.

    A fit learns the recipe, if X has columns of text, categories or dates; later rows
    are encoded by the model's recipe.
    """
    if reset:
        return categories.learn_rows(estimator, X)
    facts = facts_of(estimator)
    recipe = recipes.recipe_of(facts)
    if recipe is None:
        return None
    names = frames.columns_of(X)
    if not hasattr(estimator, "feature_names_in_"):
        X = categories.table_of_array(estimator, X, reset=False)
    elif _are_encoded(X, names, recipe):
        return None
    if adds_levels:
        recipe = frames.with_levels_of(recipe, X)
    encoded = frames.encode_table(recipe, X)
    facts = recipe.to_dict() if adds_levels else facts[recipes.RECIPE]
    return categories.as_rows(encoded, recipe, facts)


def _encode_lazily(estimator: BaseEstimator, X: Any) -> Any:
    """Return a Dask collection as a model's recipe encodes it, lazily.

    Frames are encoded by the names of their columns; a pipeline's transformer takes
    arrays too. Stored rows and grids are returned as they are: `_check_columns` refuses
    those that need encoding.
    """
    recipe = recipes.recipe_of(facts_of(estimator))
    if recipe is None or is_dataset_or_url(X) or xarrays.is_xarray(X):
        if recipe is not None and isinstance(X, Dataset):
            model_rows.check_encoding(X, recipe)
        return X
    names = frames.columns_of(X)
    if _are_encoded(X, names, recipe):
        return X
    width = len(recipe.names)
    if names is None:
        encode = partial(frames.encode_table, recipe)
        return map_rows(X.rechunk({1: -1}), encode, width=width, dtype=np.float64)
    frame = type(X._meta)
    return X.map_partitions(
        _encode_part, recipe, meta=frame(np.empty((0, width)), columns=recipe.names)
    )


def _are_encoded(X: Any, names: list[str] | None, recipe: recipes.Recipe) -> bool:
    """Return whether rows are encoded already; DataError if that cannot be known."""
    if names is not None:
        return recipe.are_encoded(names)
    if recipe.transformer is not None and not _is_zarr(X):
        return False
    if recipe.transformer is None:
        if recipe.is_plain:
            return True
        # Without names only the number of columns can tell. With levels it is not
        # enough: their codes would be guesses.
        n_columns = X.shape[1] if getattr(X, "ndim", 1) == 2 else None
        is_as_wide_as_table = n_columns == len(recipe.inputs)
        is_as_wide_as_inputs = n_columns == len(recipe.names)
        if is_as_wide_as_inputs and not is_as_wide_as_table and not recipe.levels:
            return True
    raise DataError(
        f"X is a {type(X).__name__}, whose rows {model_rows.refusal_of(recipe)}"
    )


def _encode_part(part: Any, recipe: recipes.Recipe) -> Any:
    """Encode a partition of a Dask frame, to a frame of the same kind."""
    values = np.empty((0, len(recipe.names)))
    if len(part):
        values = frames.encode_table(recipe, part)
    return type(part)(values, columns=recipe.names, index=part.index)


def _check_columns(estimator: Any, dataset: Dataset, *, reset: bool) -> None:
    names = dataset.feature_names
    if not reset:
        facts = facts_of(estimator)
        recipe = recipes.recipe_of(facts)
        width = estimator.n_features_in_
        expected = getattr(estimator, "feature_names_in_", ())
        if recipe is not None:  # X is what it makes of the estimator's columns
            width = len(recipe.names)
            expected = recipe.names
        card = {"feature_names": expected, **facts}
        who = type(estimator).__name__
        model_rows.check_columns(dataset, width, card, who=who)
        return
    estimator.n_features_in_ = dataset.n_features
    if names is not None:
        estimator.feature_names_in_ = np.asarray(names, object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_


def completed(
    rows: memory.ArrayDataset | memory.SparseDataset, y: Any, sample_weight: Any
) -> Dataset:
    """Return rows with checked targets, and with weights, which are checked here."""
    if y is not None:
        array_checks.require_rows({"X": rows.n_samples, "y": len(y)})
    if sample_weight is not None:
        sample_weight = validated_weights(sample_weight, rows.X)
    return replace(rows, y=y, sample_weight=sample_weight)


@contextlib.contextmanager
def suitable_engine(
    engine: protocol.Engine | None, dataset: Dataset | None
) -> Iterator[protocol.Engine]:
    """Yield the user's engine, else one on the current Dask client, else a serial one.

    The client is used only for data that workers can open, and not within a task of
    Dask. An engine that is made here is closed afterwards; a client stays open.
    """
    if engine is not None:
        if not isinstance(engine, protocol.Engine):
            raise InvalidParameterError(
                f"`engine` is {engine!r}; expected a SerialEngine, a DaskEngine or None"
            )
        yield engine
        return
    client = None
    if dataset is not None and dataset.can_travel():
        client = _current_dask_client(dataset)
    if client is None:
        yield serial.SerialEngine()
        return
    from rff_dist.engines.dask import DaskEngine

    with DaskEngine(client=client) as dask_engine:
        yield dask_engine


def _current_dask_client(dataset: Dataset) -> Any:
    """Return the client that holds parts of the data, else the current one, if any."""
    distributed = sys.modules.get("distributed")
    # a task that waits for a pass on its own cluster would block the pass's tasks
    if distributed is None or dask_collections.is_task():
        return None
    if dataset.client is not None:
        return dataset.client
    try:
        return distributed.Client.current()
    except ValueError:
        return None


def on_grid(X: Any, dataset: Dataset, values: Any, name: str) -> Any:
    """Return values of all rows: on the grid of X if that is xarray's, else as they
    are.
    """
    if not xarrays.is_xarray(X):
        return values
    assert isinstance(dataset, grids.GridDataset)
    return xarrays.to_xarray(dataset, values, X, name)


def map_rows(
    rows: Any,
    function: Callable[[AnyArray], AnyArray],
    *,
    width: int | None,
    dtype: Any,
) -> Any:
    """Apply a function of rows to a Dask array in chunks of whole rows, lazily.

    The result has `width` columns; without it, one number per row.
    """
    if width is None:
        return rows.map_blocks(function, drop_axis=1, dtype=dtype)
    return rows.map_blocks(function, chunks=(rows.chunks[0], (width,)), dtype=dtype)
