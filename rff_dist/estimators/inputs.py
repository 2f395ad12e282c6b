"""Turn what users pass as X, y and cv into a dataset and folds, and choose the engine."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from rff_dist.data import columns, dask_collections, folding, grids, labelled, memory, xarrays
from rff_dist.data.blocks import Block, Dataset
from rff_dist.engines import protocol, serial
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.estimators.values import validated, validated_targets, validated_weights
from rff_dist.features import length_scales
from rff_dist.fitting.options import RidgeOptions
from rff_dist.kernels import base, stationary
from rff_dist.kernels.names import find_kernel
from rff_dist.recipes import model_rows, recipes
from rff_dist.ridge.choices import needs_folds
from rff_dist.storage import datasets
from rff_dist.storage.columns import StoredColumn, as_column, fold_by_time, open_column
from rff_dist.typing import AnyArray, Facts

# Of the dtypes, float32 stays as it is and all others become the first. Frames have contiguous columns, which
# BLAS would sum in another order, with other bits.
_CHECKS: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "order": "C"}


def is_dask(value: object) -> bool:
    """Return whether `value` is a Dask collection."""
    # what Dask itself asks, without importing it; xarray's objects always have it
    return hasattr(value, "__dask_graph__") and not xarrays.is_xarray(value)


def is_in_memory(X: object) -> bool:
    """Return whether scikit-learn's checks apply to X: arrays, frames, sparse matrices, lists."""
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
) -> Dataset:
    """Turn what the user passed into a dataset, with the estimator's checks.

    `estimator`: its `n_features_in_` and `feature_names_in_` are set or compared.
    `y`, `sample_weight`: must be left out for a dataset, which has its own.
    `reset`: whether this is a first fit.
    `supervised`: whether targets are needed.
    Raises DataError if the data do not fit, or y is given twice or not at all.
    """
    given = X = recipes.as_table(X)
    # before scikit-learn's checks, which refuse the text columns that a recipe encodes
    X = X if reset else encoded(estimator, X)
    if is_in_memory(X):
        if X is not given:  # an array, whose columns the recipe has checked
            return _in_memory(X, validated_targets(estimator, y) if supervised else None, sample_weight)
        if supervised:
            X, y = validated(estimator, X, y, multi_output=True, y_numeric=True, reset=reset, **_CHECKS)
            return _in_memory(X, y, sample_weight)
        return _in_memory(validated(estimator, X, reset=reset, **_CHECKS), None, sample_weight)
    if _is_stored(X):
        if y is not None or sample_weight is not None:
            raise DataError("`y` and `sample_weight` belong to the dataset: leave them out, or pass arrays")
        names: Any = {} if supervised else {"y": None}  # a y of text cannot be read as targets
        dataset: Dataset = X if isinstance(X, Dataset) else datasets.open_dataset(X, **names)
    elif xarrays.is_xarray(X):
        expected = () if reset else getattr(estimator, "feature_names_in_", ())
        dataset = xarrays.open_xarray(X, y if supervised else None, sample_weight, expected=expected)
    elif is_dask(X):
        from rff_dist.engines.dask_arrays import DaskArrayDataset

        client = getattr(getattr(estimator, "engine", None), "client", None)
        dataset = DaskArrayDataset(X, y, sample_weight, client=client)
    else:
        dataset = datasets.dataset_from_arrays(X, y, sample_weight)
    if supervised and dataset.n_targets < 1:
        raise DataError(f"{type(estimator).__name__} requires y to be passed, but the data have none")
    _check_columns(estimator, dataset, reset=reset)
    return dataset


def _card_of(estimator: BaseEstimator) -> Facts:
    # principal components have no card
    return getattr(vars(estimator).get("_fitted"), "card", {})


def encoded(estimator: BaseEstimator, X: Any) -> Any:
    """Return what the recipe of a loaded model makes of X; X itself if it holds inputs already.

    Frames and tables with the columns that the recipe reads are encoded, whatever the names of its inputs. A
    pipeline's transformer takes arrays too, as it did in the pipeline. Stored rows and grids are not encoded:
    `_check_columns` refuses those that need it.

    Raises DataError if X lacks columns, they hold other types of values, or X does not say what it holds.
    """
    recipe = recipes.recipe_of(_card_of(estimator))
    if recipe is None or _is_stored(X) or xarrays.is_xarray(X):
        if recipe is not None and isinstance(X, Dataset):
            model_rows.check_encoding(X, recipe)
        return X
    # tables of Arrow call their values columns
    names = getattr(X, "column_names", getattr(X, "columns", None))
    if recipe.are_inputs(names):
        return X
    width = len(recipe.names)
    if names is None and recipe.transformer is None:
        n_columns = X.shape[1] if getattr(X, "ndim", 1) == 2 else len(recipe.inputs)
        if recipe.is_plain or n_columns == width != len(recipe.inputs):
            return X
    if names is None and (recipe.transformer is None or _is_zarr(X)):
        raise DataError(f"X is a {type(X).__name__}, whose rows {model_rows.refusal_of(recipe)}")
    if not is_dask(X):
        return recipes.encode_table(recipe, X)
    if names is None:
        encode = partial(recipes.encode_table, recipe)
        return map_rows(X.rechunk({1: -1}), encode, width=width, dtype=np.float64)
    frame = type(X._meta)
    return X.map_partitions(_encode_part, recipe, meta=frame(np.empty((0, width)), columns=recipe.names))


def _encode_part(part: Any, recipe: recipes.Recipe) -> Any:
    """Encode a partition of a Dask frame, to a frame of the same kind."""
    values = recipes.encode_table(recipe, part) if len(part) else np.empty((0, len(recipe.names)))
    return type(part)(values, columns=recipe.names, index=part.index)


def as_labelled(
    estimator: BaseEstimator, X: Any, y: Any = None, sample_weight: Any = None, *, reset: bool
) -> tuple[Dataset, columns.Column]:
    """Turn what the user passed to a classifier into rows without targets, and their labels.

    `estimator`: its `n_features_in_` and `feature_names_in_` are set or compared.
    `y`: labels: integers, booleans, text or whole floats. For a dataset, path or URL: the name of an array in
      its group, by default "y"; if it has no targets, also the labels themselves.
    `sample_weight`: must be left out for a dataset, which has its own.
    `reset`: whether this is a first fit.
    Returns `source`, the rows and their weights, and `labels`, one for each row.
    Raises DataError if the data do not fit, or a label is missing, a fraction or of another type;
      StorageError if there is no array of that name.
    """
    if y is None and not _is_stored(X):
        raise DataError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    if is_in_memory(X):
        y = as_labels(y)
        given = X = recipes.as_table(X)
        X = X if reset else encoded(estimator, X)
        if X is given:
            X, y = validated(estimator, X, y, reset=reset, **_CHECKS)
        else:
            y = column_or_1d(y, warn=True)
        if y.dtype.kind == "O":
            as_column(y)  # says which label is missing, where scikit-learn says that their type is unknown
        check_classification_targets(y)
        return _in_memory(X, None, sample_weight), as_column(y)
    if xarrays.is_xarray(X):
        expected = () if reset else getattr(estimator, "feature_names_in_", ())
        X, y, sample_weight = xarrays.open_xarray(X, y, sample_weight, expected=expected), None, None
    dataset = as_dataset(estimator, X, None, sample_weight, reset=reset, supervised=False)
    labels = _labels_of(estimator, dataset, y) if _is_stored(X) else as_column(y)
    memory.require_rows({"X": dataset.n_samples, "y": labels.n_samples})
    return dataset.without_targets(), labels


def as_labels(y: Any) -> Any:
    """Return labels in memory as scikit-learn takes them, which lacks NumPy's text of variable width."""
    if isinstance(y, columns.MemoryColumn | StoredColumn):
        y = y.read(Block(0, 0, y.n_samples))
    return np.asarray(y).astype(object) if getattr(getattr(y, "dtype", None), "kind", "") == "T" else y


def with_groups(dataset: Dataset, groups: Any) -> Dataset:
    """Return a dataset whose rows have groups; None leaves it as it is.

    `groups`: array-like, series, Dask or Zarr array or Column of shape (n_samples,), str, or None. Integers,
      booleans, text or whole floats; or the name of an array in the dataset's group.
    Raises DataError if there are more or fewer groups than rows, or a group is missing or of another type;
      InvalidParameterError if it is a name and the dataset is not stored.
    """
    if groups is None:
        return dataset
    if isinstance(dataset, grids.GridDataset) and xarrays.is_xarray(groups):
        return xarrays.group_by(dataset, groups)
    column = _named_column(dataset, groups, "groups") if isinstance(groups, str) else None
    return labelled.GroupedDataset(dataset, as_column(groups, name="groups") if column is None else column)


def _labels_of(estimator: BaseEstimator, dataset: Dataset, y: Any) -> columns.Column:
    """Return a dataset's labels: the given or named ones, its targets, or the array "y" of its group."""
    if isinstance(y, str):
        return _named_column(dataset, y, "y")
    if y is not None and dataset.n_targets:
        raise DataError("`y` belongs to the dataset: leave it out, or open the dataset with y=None")
    if y is not None:
        return as_column(y)
    if dataset.n_targets:
        if not dataset.one_dimensional:
            raise DataError(f"the dataset has {dataset.n_targets} targets; expected one label per row")
        return as_column(dataset.read_targets())
    if dataset.url is None:
        raise DataError(f"{type(estimator).__name__} requires y to be passed, but the data have none")
    return _named_column(dataset, "y", "y")


def _named_column(dataset: Dataset, name: str, parameter: str) -> columns.Column:
    if dataset.url is None:
        raise InvalidParameterError(
            f"`{parameter}` is {name!r}, but these data are not stored: no array has a name. Give the values"
        )
    return open_column(dataset.url, name, missing_chunks=dataset.missing_chunks, version=dataset.version)


def _check_columns(estimator: Any, dataset: Dataset, *, reset: bool) -> None:
    names = dataset.feature_names
    if not reset:
        card = {"feature_names": getattr(estimator, "feature_names_in_", ()), **_card_of(estimator)}
        who = type(estimator).__name__
        model_rows.check_columns(dataset, estimator.n_features_in_, card, who=who)
        return
    estimator.n_features_in_ = dataset.n_features
    if names is not None:
        estimator.feature_names_in_ = np.asarray(names, object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_


def _in_memory(X: Any, y: Any, sample_weight: Any) -> Dataset:
    if sample_weight is not None:
        sample_weight = validated_weights(sample_weight, X)
    if scipy.sparse.issparse(X):
        return memory.SparseDataset(X, y, sample_weight)
    return memory.ArrayDataset(X, y, sample_weight)


@contextlib.contextmanager
def suitable_engine(engine: protocol.Engine | None, dataset: Dataset | None) -> Iterator[protocol.Engine]:
    """Yield the given engine; else the current Dask client's for data out of memory; else a serial one.

    An engine that is made here is closed afterwards; a client stays open. Without a dataset, and in a task of
    Dask, it is serial.

    Raises InvalidParameterError if `engine` is not an engine.
    """
    if engine is not None:
        if not isinstance(engine, protocol.Engine):
            raise InvalidParameterError(
                f"`engine` is {engine!r}; expected a SerialEngine, a DaskEngine or None"
            )
        yield engine
        return
    client = _current_dask_client(dataset) if dataset is not None and dataset.can_travel() else None
    if client is None:
        yield serial.SerialEngine()
        return
    from rff_dist.engines.dask import DaskEngine

    with DaskEngine(client=client) as dask_engine:
        yield dask_engine


def _current_dask_client(dataset: Dataset) -> Any:
    """Return the client that holds parts of the data, else the current one; None without, and in a task.

    A task that waited for a pass on its own cluster would keep the place of the pass's tasks.
    """
    distributed = sys.modules.get("distributed")
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


def choose_kernel(kernel: str | base.Kernel, length_scale: Any) -> tuple[base.Kernel, str | base.LengthScale]:
    """Return the kernel and the length scale to draw with, see `features.draw.draw`.

    "evidence" and "median" replace the length scale of a kernel object.

    Raises InvalidParameterError if the kernel is unknown, or has its own length scale and is given a second.
    """
    chosen = find_kernel(kernel)
    if length_scale is None:
        raise InvalidParameterError(
            "`length_scale` is None; expected 'auto', 'median', 'evidence' or numbers above 0"
        )
    if isinstance(length_scale, str):
        if length_scale == "evidence":
            length_scales.check_tunable(chosen)
    elif isinstance(chosen, stationary.Stationary) and chosen.length_scale is not None:
        raise InvalidParameterError(
            f"`length_scale` is {length_scale!r} together with {kernel!r}, which has its own; give one of "
            "them"
        )
    else:
        stationary.with_length_scale(chosen, length_scale)  # checks the numbers
    return chosen, length_scale


def map_for(n_components: Any) -> str:
    """Return "pairs", which have less variance, or "phases" if a number of components is odd."""
    if isinstance(n_components, str):
        return "pairs"
    # all widths are prefixes of one draw, so one odd number makes all of them phases
    return "phases" if any(width % 2 for width in np.atleast_1d(n_components)) else "pairs"


def on_grid(X: Any, dataset: Dataset, values: Any, name: str) -> Any:
    """Return a result of each row as it is, or on the grid of an X of xarray."""
    if not xarrays.is_xarray(X):
        return values
    assert isinstance(dataset, grids.GridDataset)
    return xarrays.to_xarray(dataset, values, X, name)


def map_rows(rows: Any, function: Callable[[AnyArray], AnyArray], *, width: int | None, dtype: Any) -> Any:
    """Apply a function of rows to a Dask array, lazily.

    `rows`: of shape (n_samples, n_features), in chunks of whole rows.
    `function`: from (rows, n_features) to (rows, width), or to (rows,) if `width` is None.
    `width`, `dtype`: columns and dtype of the result.
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
    """Return folds, and the dataset with the groups that the folds need.

    A dataset whose later rows were held out gets folds of time, unless folds or groups are given.

    `options`: whether anything is chosen by folds.
    `y`, `groups`: as given to the estimator. Stratified splitters use y if it is in memory.
    Raises InvalidParameterError if splits of scikit-learn do not hold out each row once and train on all
      others.
    """
    if cv is None or isinstance(cv, int | np.integer):
        n_folds = None if cv is None else int(cv)
        by_time = fold_by_time(dataset, n_folds) if groups is None and needs_folds(options) else None
        dataset, cv = (dataset, cv) if by_time is None else by_time
    if cv is None or not _gives_splits(cv):
        return cv, with_groups(dataset, groups)
    if hasattr(cv, "split"):
        targets = np.asarray(y) if y is not None and is_in_memory(y) else None
        group_of_row = None if groups is None or isinstance(groups, str) else np.asarray(groups)
        # scikit-learn's splitters use the number of rows of X only, and X may not fit in memory
        splits = list(cv.split(np.zeros((dataset.n_samples, 1)), targets, group_of_row))
    else:
        splits = list(cv)
    fold_of_row = _fold_of_row(splits, dataset.n_samples, cv)
    return folding.PredefinedFolds(len(splits)), with_groups(dataset, fold_of_row)


def _gives_splits(cv: Any) -> bool:
    return not isinstance(cv, str | bytes) and (hasattr(cv, "split") or isinstance(cv, Iterable))


def _fold_of_row(splits: list[Any], n_samples: int, cv: Any) -> NDArray[np.int64]:
    fold_of_row, n_held_out = np.full(n_samples, -1, np.int64), np.zeros(n_samples, np.int64)
    trains_on_others = True
    for fold, (train, test) in enumerate(splits):
        held_out, trained = np.zeros((2, n_samples), bool)
        held_out[test] = trained[train] = True
        trains_on_others &= bool((trained != held_out).all())
        fold_of_row[held_out] = fold
        n_held_out += held_out
    # a split's sums are those of all rows less the held-out ones, so it must train on exactly the other rows
    if not trains_on_others or (n_held_out != 1).any():
        raise InvalidParameterError(
            f"`cv` is {type(cv).__name__}, whose splits do not hold out each row once and train on all "
            "others; expected such splits, a number of folds, HashFolds(…), GroupFolds(…) or TimeFolds(…)"
        )
    return fold_of_row
