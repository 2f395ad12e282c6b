"""Turn what users pass as X, y, groups and cv into a dataset and its folds.

X may be an array, a frame, a sparse matrix, a Dask or Zarr array, a grid of xarray, a
dataset, or the path or URL of one. Rows in memory go through scikit-learn's own checks;
for all others the dataset's blocks are checked as they are read. Tables that need a
recipe are turned into inputs by it first: a fit learns it, later rows take the model's.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from rff_dist.data import (
    array_checks,
    columns,
    dask_collections,
    folding,
    grids,
    labelled,
    memory,
    xarrays,
)
from rff_dist.data.blocks import Block, Dataset
from rff_dist.engines import protocol, serial
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.estimators import categories
from rff_dist.estimators.values import (
    CHECKS,
    validated,
    validated_targets,
    validated_weights,
)
from rff_dist.features import length_scales
from rff_dist.fitting.options import RidgeOptions
from rff_dist.kernels import base, stationary
from rff_dist.kernels.names import find_kernel
from rff_dist.recipes import frames, model_rows, recipes
from rff_dist.ridge.choices import needs_folds
from rff_dist.storage import datasets
from rff_dist.storage.columns import StoredColumn, as_column, fold_by_time, open_column
from rff_dist.typing import AnyArray, Facts


def is_dask(value: object) -> bool:
    """Return whether `value` is a Dask collection."""
    # what Dask itself asks, without importing it; xarray's objects always have it
    return hasattr(value, "__dask_graph__") and not xarrays.is_xarray(value)


def is_in_memory(X: object) -> bool:
    """Return whether scikit-learn's checks apply to X: arrays, frames, sparse matrices,
    lists.
    """
    return not (_is_stored(X) or xarrays.is_xarray(X) or is_dask(X) or _is_zarr(X))


def _is_zarr(value: object, name: str = "") -> bool:
    kind = type(value)  # by its name, since only `storage` imports Zarr
    return kind.__module__.partition(".")[0] == "zarr" and name in ("", kind.__name__)


def _is_stored(X: object) -> bool:
    """Return whether X is a dataset, or a path, URL or group of one."""
    return isinstance(X, str | os.PathLike | Dataset) or _is_zarr(X, "Group")


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
    """Return the user's rows as a dataset, and set or compare the estimator's columns.

    `reset` is True in a first fit, `adds_levels` where rows are added to it: levels
    that are new then join the lists. A dataset has its own y and weights, so these must
    be left out; DataError if they are given twice or not at all, or do not fit.
    """
    X = frames.as_table(X)
    encoded = encoded_rows(estimator, X, reset=reset, adds_levels=adds_levels)
    if encoded is not None:
        targets = validated_targets(estimator, y) if supervised else None
        return _completed(encoded, targets, sample_weight)
    if is_in_memory(X):
        if not supervised:
            rows = validated(estimator, X, reset=reset, **CHECKS)
            return _in_memory(rows, None, sample_weight)
        rows, targets = validated(
            estimator, X, y, multi_output=True, y_numeric=True, reset=reset, **CHECKS
        )
        return _in_memory(rows, targets, sample_weight)
    if reset:
        categories.check_absent(estimator, X)
    else:
        X = _encoded_elsewhere(estimator, X)
    if _is_stored(X):
        if y is not None or sample_weight is not None:
            raise DataError(
                "`y` and `sample_weight` belong to the dataset: leave them out, or pass"
                " arrays"
            )
        # a y of text cannot be read as targets
        names: Any = {} if supervised else {"y": None}
        dataset: Dataset = (
            X if isinstance(X, Dataset) else datasets.open_dataset(X, **names)
        )
    elif xarrays.is_xarray(X):
        expected = () if reset else getattr(estimator, "feature_names_in_", ())
        dataset = xarrays.open_xarray(
            X, y if supervised else None, sample_weight, expected=expected
        )
    elif is_dask(X):
        from rff_dist.engines.dask_arrays import DaskArrayDataset

        client = getattr(getattr(estimator, "engine", None), "client", None)
        dataset = DaskArrayDataset(X, y, sample_weight, client=client)
    else:
        dataset = datasets.dataset_from_arrays(X, y, sample_weight)
    if supervised and dataset.n_targets < 1:
        raise DataError(
            f"{type(estimator).__name__} requires y to be passed, but the data have"
            " none"
        )
    _check_columns(estimator, dataset, reset=reset)
    return dataset


def facts_of(estimator: BaseEstimator) -> Facts:
    """Return the card of an estimator's model; of those without one only the recipe."""
    card: Facts | None = getattr(vars(estimator).get("_fitted"), "card", None)
    if card is None:
        return {recipes.RECIPE: getattr(estimator, "_recipe", None)}
    return card


def encoded_rows(
    estimator: BaseEstimator, X: Any, *, reset: bool, adds_levels: bool = False
) -> memory.ArrayDataset | None:
    """Return what a recipe makes of rows in memory; None if they are taken as they are.

    A fit learns the recipe, if X has columns of text, categories or dates; later rows
    are encoded by the model's. It comes before scikit-learn's checks, which refuse the
    text that a recipe encodes.
    """
    if not is_in_memory(X):
        return None
    if reset:
        return categories.learned(estimator, X)
    facts = facts_of(estimator)
    recipe = recipes.recipe_of(facts)
    if recipe is None:
        return None
    names = frames.columns_of(X)
    if not hasattr(estimator, "feature_names_in_"):
        X = categories.table_of_array(estimator, X, reset=False)
    elif _is_taken(X, names, recipe):
        return None
    if adds_levels:
        recipe = frames.with_levels_of(recipe, X)
    encoded = frames.encode_table(recipe, X)
    facts = recipe.to_dict() if adds_levels else facts[recipes.RECIPE]
    return categories.as_rows(encoded, recipe, facts)


def _encoded_elsewhere(estimator: BaseEstimator, X: Any) -> Any:
    """Return what a model's recipe makes of a Dask collection, lazily; others as is.

    Frames are encoded by the names of their columns; a pipeline's transformer takes
    arrays too. Stored rows and grids are not encoded: `_check_columns` refuses those
    that need it.
    """
    recipe = recipes.recipe_of(facts_of(estimator))
    if recipe is None or _is_stored(X) or xarrays.is_xarray(X):
        if recipe is not None and isinstance(X, Dataset):
            model_rows.check_encoding(X, recipe)
        return X
    names = frames.columns_of(X)
    if _is_taken(X, names, recipe):
        return X
    width = len(recipe.names)
    if names is None:
        encode = partial(frames.encode_table, recipe)
        return map_rows(X.rechunk({1: -1}), encode, width=width, dtype=np.float64)
    frame = type(X._meta)
    return X.map_partitions(
        _encode_part, recipe, meta=frame(np.empty((0, width)), columns=recipe.names)
    )


def _is_taken(X: Any, names: list[str] | None, recipe: recipes.Recipe) -> bool:
    """Return whether rows are inputs already; DataError if that cannot be known."""
    if names is not None:
        return recipe.are_inputs(names)
    if recipe.transformer is None:
        width = len(recipe.names)
        n_columns = X.shape[1] if getattr(X, "ndim", 1) == 2 else len(recipe.inputs)
        are_encoded = n_columns == width != len(recipe.inputs)
        if recipe.is_plain or (are_encoded and not recipe.levels):
            return True
    if recipe.transformer is None or _is_zarr(X):
        raise DataError(
            f"X is a {type(X).__name__}, whose rows {model_rows.refusal_of(recipe)}"
        )
    return False


def _encode_part(part: Any, recipe: recipes.Recipe) -> Any:
    """Encode a partition of a Dask frame, to a frame of the same kind."""
    values = (
        frames.encode_table(recipe, part)
        if len(part)
        else np.empty((0, len(recipe.names)))
    )
    return type(part)(values, columns=recipe.names, index=part.index)


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
    is the name of an array in its group, by default "y". DataError if a label is
    missing, a fraction or of another type.
    """
    if y is None and not _is_stored(X):
        raise DataError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is"
            " None"
        )
    if is_in_memory(X):
        y = as_labels(y)
        X = frames.as_table(X)
        encoded = encoded_rows(estimator, X, reset=reset, adds_levels=adds_levels)
        if encoded is None:
            X, y = validated(estimator, X, y, reset=reset, **CHECKS)
        else:
            y = column_or_1d(y, warn=True)
        if y.dtype.kind == "O":
            # says which label is missing, where scikit-learn says that their type is
            # unknown
            as_column(y)
        check_classification_targets(y)
        labels = as_column(y)
        if encoded is not None:
            array_checks.require_rows({"X": encoded.n_samples, "y": labels.n_samples})
            return _completed(encoded, None, sample_weight), labels
        return _in_memory(X, None, sample_weight), labels
    if xarrays.is_xarray(X):
        expected = () if reset else getattr(estimator, "feature_names_in_", ())
        X = xarrays.open_xarray(X, y, sample_weight, expected=expected)
        y = None
        sample_weight = None
    dataset = as_dataset(
        estimator, X, None, sample_weight, reset=reset, supervised=False
    )
    labels = _labels_of(estimator, dataset, y) if _is_stored(X) else as_column(y)
    array_checks.require_rows({"X": dataset.n_samples, "y": labels.n_samples})
    return dataset.without_targets(), labels


def as_labels(y: Any) -> Any:
    """Return labels in memory in a type that scikit-learn takes."""
    if isinstance(y, columns.MemoryColumn | StoredColumn):
        y = y.read(Block(0, 0, y.n_samples))
    # NumPy's text of variable width, which scikit-learn does not know
    if getattr(getattr(y, "dtype", None), "kind", "") == "T":
        return np.asarray(y).astype(object)
    return y


def with_groups(dataset: Dataset, groups: Any) -> Dataset:
    """Return a dataset whose rows have groups: values, or the name of a stored array.

    Groups are integers, booleans, text or whole floats, of shape (n_samples,).
    """
    if groups is None:
        return dataset
    if isinstance(dataset, grids.GridDataset) and xarrays.is_xarray(groups):
        return xarrays.group_by(dataset, groups)
    if isinstance(groups, str):
        column = _named_column(dataset, groups, "groups")
    else:
        column = as_column(groups, name="groups")
    return labelled.GroupedDataset(dataset, column)


def _labels_of(estimator: BaseEstimator, dataset: Dataset, y: Any) -> columns.Column:
    """Return a dataset's labels: y, its targets, or the array "y" of its group."""
    if isinstance(y, str):
        return _named_column(dataset, y, "y")
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
    return _named_column(dataset, "y", "y")


def _named_column(dataset: Dataset, name: str, parameter: str) -> columns.Column:
    if dataset.url is None:
        raise InvalidParameterError(
            f"`{parameter}` is {name!r}, but these data are not stored: no array has a"
            " name. Give the values"
        )
    return open_column(
        dataset.url,
        name,
        missing_chunks=dataset.missing_chunks,
        version=dataset.version,
    )


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


def _completed(
    rows: memory.ArrayDataset, y: Any, sample_weight: Any
) -> memory.ArrayDataset:
    """Return encoded rows with their targets and weights."""
    if sample_weight is not None:
        sample_weight = validated_weights(sample_weight, rows.X)
    return replace(rows, y=y, sample_weight=sample_weight)


def _in_memory(X: Any, y: Any, sample_weight: Any) -> Dataset:
    if sample_weight is not None:
        sample_weight = validated_weights(sample_weight, X)
    if scipy.sparse.issparse(X):
        return memory.SparseDataset(X, y, sample_weight)
    return memory.ArrayDataset(X, y, sample_weight)


@contextlib.contextmanager
def suitable_engine(
    engine: protocol.Engine | None, dataset: Dataset | None
) -> Iterator[protocol.Engine]:
    """Yield the user's engine, else the current Dask client's, else a serial one.

    The client is used for data out of memory only, and not in a task of Dask. An engine
    that is made here is closed afterwards; a client stays open.
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
    # a task that waited for a pass on its own cluster would keep the place of the
    # pass's tasks
    if distributed is None or dask_collections.is_task():
        return None
    if dataset.client is not None:
        return dataset.client
    try:
        return distributed.Client.current()
    except ValueError:
        return None


def check_flag(value: object, name: str) -> bool:
    """Return `value` as a bool; raise InvalidParameterError if it is no truth value."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidParameterError(f"`{name}` is {value!r}; expected True or False")
    return bool(value)


def choose_kernel(
    kernel: str | base.Kernel, length_scale: Any
) -> tuple[base.Kernel, str | base.LengthScale]:
    """Return the kernel and the length scale to draw with, checked.

    "evidence" and "median" replace the length scale of a kernel object; a number does
    not.
    """
    found = find_kernel(kernel)
    if length_scale is None:
        raise InvalidParameterError(
            "`length_scale` is None; expected 'auto', 'median', 'evidence' or numbers"
            " above 0"
        )
    if isinstance(length_scale, str):
        if length_scale == "evidence":
            length_scales.check_tunable(found)
    elif isinstance(found, stationary.Stationary) and found.length_scale is not None:
        raise InvalidParameterError(
            f"`length_scale` is {length_scale!r} together with {kernel!r}, which has"
            " its own; give one of them"
        )
    else:
        stationary.with_length_scale(found, length_scale)  # checks the numbers
    return found, length_scale


def map_for(n_components: Any) -> str:
    """Return "pairs", or "phases" if some number of components is odd."""
    if isinstance(n_components, str):
        return "pairs"  # they have less variance
    # all widths are prefixes of one draw, so one odd number makes all of them phases
    is_odd = any(width % 2 for width in np.atleast_1d(n_components))
    return "phases" if is_odd else "pairs"


def on_grid(X: Any, dataset: Dataset, values: Any, name: str) -> Any:
    """Return a result of each row as it is, or on the grid of an X of xarray."""
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


def check_cv(cv: Any) -> None:
    """Check that `cv` can be folds, before data are read."""
    if cv is not None and not _gives_splits(cv):
        folding.find_folds(cv)


def as_folds(
    options: RidgeOptions, cv: Any, dataset: Dataset, y: Any, groups: Any
) -> tuple[int | folding.Folds | None, Dataset]:
    """Return the folds of `cv`, and the dataset with the groups that they need.

    A dataset whose later rows were held out gets folds of time, unless folds or groups
    are given. Splits of scikit-learn must hold out each row once and train on all
    others; stratified ones use y if it is in memory.
    """
    is_number = isinstance(cv, int | np.integer)
    if (cv is None or is_number) and groups is None and needs_folds(options):
        by_time = fold_by_time(dataset, None if cv is None else int(cv))
        if by_time is not None:
            dataset, cv = by_time
    if cv is None or not _gives_splits(cv):
        return cv, with_groups(dataset, groups)
    if hasattr(cv, "split"):
        targets = None
        if y is not None and is_in_memory(y):
            targets = np.asarray(y)
        group_of_row = None
        if groups is not None and not isinstance(groups, str):
            group_of_row = np.asarray(groups)
        # scikit-learn's splitters use the number of rows of X only, and X may not fit
        # in memory
        splits = list(cv.split(np.zeros((dataset.n_samples, 1)), targets, group_of_row))
    else:
        splits = list(cv)
    fold_of_row = _fold_of_row(splits, dataset.n_samples, cv)
    return folding.PredefinedFolds(len(splits)), with_groups(dataset, fold_of_row)


def _gives_splits(cv: Any) -> bool:
    return not isinstance(cv, str | bytes) and (
        hasattr(cv, "split") or isinstance(cv, Iterable)
    )


def _fold_of_row(splits: list[Any], n_samples: int, cv: Any) -> NDArray[np.int64]:
    """Return the number of the split that holds out each row."""
    fold_of_row = np.full(n_samples, -1, np.int64)
    n_held_out = np.zeros(n_samples, np.int64)
    trains_on_others = True
    for fold, (train, test) in enumerate(splits):
        is_held_out = np.zeros(n_samples, bool)
        is_held_out[test] = True
        is_trained_on = np.zeros(n_samples, bool)
        is_trained_on[train] = True
        trains_on_others &= bool((is_trained_on != is_held_out).all())
        fold_of_row[is_held_out] = fold
        n_held_out += is_held_out
    # a split's sums are those of all rows less the held-out ones, so it must train on
    # exactly the other rows
    if not trains_on_others or (n_held_out != 1).any():
        raise InvalidParameterError(
            f"`cv` is {type(cv).__name__}, whose splits do not hold out each row once"
            " and train on all others; expected such splits, a number of folds,"
            " HashFolds(…), GroupFolds(…) or TimeFolds(…)"
        )
    return fold_of_row
