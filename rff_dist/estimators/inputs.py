"""What users pass as X and y, turned into a dataset; and the engine that suits it."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, validate_data

from rff_dist.blocks import Dataset
from rff_dist.engines import Engine
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.evidence import check_tunable
from rff_dist.kernels import Kernel, LengthScale, find_kernel, with_length_scale
from rff_dist.storage import ArrayDataset, SparseDataset, ZarrDataset, dataset_from_arrays, open_dataset


def is_dask(value: object) -> bool:
    """Return whether `value` is a Dask collection."""
    return hasattr(value, "__dask_graph__")


def is_in_memory(X: object) -> bool:
    """Return whether scikit-learn's checks apply to X: arrays, frames, sparse matrices, lists."""
    return not (
        isinstance(X, str | os.PathLike)
        or is_dask(X)
        or (hasattr(X, "read") and hasattr(X, "n_samples"))
        or _is_zarr(X)
    )


def _is_zarr(value: object, name: str = "") -> bool:
    kind = type(value)
    return kind.__module__.partition(".")[0] == "zarr" and name in ("", kind.__name__)


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

    Parameters
    ----------
    estimator : estimator
        Whose `n_features_in_` and `feature_names_in_` are set or compared.
    X : array-like, frame, sparse matrix, Dask or Zarr array, dataset, path or URL
    y, sample_weight : array-like, Dask or Zarr array, optional
        Must be left out for a dataset, which has its own.
    reset : bool
        Whether this is a first fit.
    supervised : bool
        Whether targets are looked at.

    Raises
    ------
    DataError
        If the data do not fit, or y is given twice or not at all.
    """
    if is_in_memory(X):
        return _checked_arrays(estimator, X, y, sample_weight, reset=reset, supervised=supervised)
    if isinstance(X, str | os.PathLike) or hasattr(X, "read") or _is_zarr(X, "Group"):
        if y is not None or sample_weight is not None:
            raise DataError("`y` and `sample_weight` belong to the dataset: leave them out, or pass arrays")
        dataset: Dataset = X if hasattr(X, "read") else open_dataset(X)
    elif is_dask(X):
        from rff_dist.engines.dask_arrays import DaskArrayDataset

        dataset = cast("Dataset", DaskArrayDataset(X, y, sample_weight))
    else:
        dataset = dataset_from_arrays(X, y, sample_weight)
    if supervised and dataset.n_targets < 1:
        raise DataError(f"{type(estimator).__name__} requires y to be passed, but the data have none")
    _check_columns(estimator, dataset, reset=reset)
    return dataset


def _check_columns(estimator: Any, dataset: Dataset, *, reset: bool) -> None:
    names = getattr(dataset, "feature_names", None)
    if reset:
        estimator.n_features_in_ = dataset.n_features
        if names is not None:
            estimator.feature_names_in_ = np.asarray(names, object)
        elif hasattr(estimator, "feature_names_in_"):
            del estimator.feature_names_in_
        return
    if dataset.n_features != estimator.n_features_in_:
        raise DataError(
            f"X has {dataset.n_features} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input"
        )
    expected = getattr(estimator, "feature_names_in_", None)
    if names is not None and expected is not None and list(names) != list(expected):
        raise DataError(
            f"The feature names should match those that were passed during fit: the data have {list(names)}, "
            f"expected {list(expected)}"
        )


def _checked_arrays(
    estimator: BaseEstimator, X: Any, y: Any, sample_weight: Any, *, reset: bool, supervised: bool
) -> Dataset:
    # BLAS sums columns in another order where they are contiguous, as in frames: other bits
    options = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "order": "C", "reset": reset}
    if supervised:
        X, y = validate_data(estimator, X, y, multi_output=True, y_numeric=True, **options)
        y = np.asarray(y, np.float64)
    else:
        X = validate_data(estimator, X, **options)
        y = None
    if sample_weight is not None:
        sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if scipy.sparse.issparse(X):
        return SparseDataset(X, y, sample_weight)
    return ArrayDataset(X, y, sample_weight)


@contextlib.contextmanager
def suitable_engine(engine: Engine | None, dataset: Dataset) -> Iterator[Engine]:
    """Yield the engine given; else the current Dask client's for data out of memory; else a serial one.

    An engine that is made here is closed here; a client stays open.

    Raises
    ------
    InvalidParameterError
        If `engine` is not an engine.
    """
    if engine is not None:
        if not hasattr(engine, "map_reduce"):
            raise InvalidParameterError(
                f"`engine` is {engine!r}; expected a SerialEngine, a DaskEngine or None"
            )
        yield engine
        return
    client = _current_dask_client() if _travels(dataset) else None
    if client is None:
        yield SerialEngine()
        return
    from rff_dist.engines.dask import DaskEngine

    with DaskEngine(client=client) as made:
        yield made


def _travels(dataset: Dataset) -> bool:
    """Return whether another process can read the dataset itself, rather than a copy of this one's memory."""
    if isinstance(dataset, ArrayDataset | SparseDataset) or (dataset.url or "").startswith("memory://"):
        return False
    if not isinstance(dataset, ZarrDataset):
        return True
    try:
        pickle.dumps(dataset)
    except StorageError:  # arrays of a store in memory
        return False
    return True


def _current_dask_client() -> Any:
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None  # nobody can have made a client
    try:
        return distributed.get_client()
    except ValueError:
        return None


def choose_kernel(kernel: str | Kernel, length_scale: Any) -> tuple[Kernel, str | LengthScale | None]:
    """Return the kernel and the length scale to draw with; None keeps the kernel's own.

    "evidence" replaces the length scale of a kernel object.

    Raises
    ------
    InvalidParameterError
        If the kernel is unknown, or a kernel object comes with a second length scale.
    """
    found = find_kernel(kernel)
    automatic = isinstance(length_scale, str) and length_scale == "auto"
    tuned = isinstance(length_scale, str) and length_scale == "evidence"
    if tuned:
        check_tunable(found)
    if isinstance(kernel, Kernel) and not tuned:
        if not automatic:
            raise InvalidParameterError(
                f"`length_scale` is {length_scale!r} beside {kernel!r}, which has its own; give one of them"
            )
        return found, None
    if length_scale is None:
        raise InvalidParameterError("`length_scale` is None; expected 'auto', 'evidence' or numbers above 0")
    if not isinstance(length_scale, str):
        with_length_scale(found, length_scale)
    return found, length_scale


def map_for(n_components: int) -> str:
    """Return the map with the least variance that has `n_components` columns: pairs where they are even."""
    return "phases" if n_components % 2 else "pairs"


def map_rows(
    X: Any, function: Callable[[NDArray[Any]], NDArray[Any]], *, width: int | None, dtype: Any
) -> Any:
    """Apply a function of rows to a Dask collection, lazily.

    Parameters
    ----------
    X : dask array or frame of shape (n_samples, n_features)
    function : callable
        From (rows, n_features) to (rows, width), or (rows,) where `width` is None.
    width : int or None
        Columns of the result.
    dtype : dtype
        Of the result.
    """
    rows = X.to_dask_array(lengths=True) if hasattr(X, "to_dask_array") else X
    if rows.numblocks[1] > 1:
        rows = rows.rechunk({1: -1})
    if width is None:
        return rows.map_blocks(function, drop_axis=1, dtype=dtype)
    return rows.map_blocks(function, chunks=(rows.chunks[0], (width,)), dtype=dtype)
