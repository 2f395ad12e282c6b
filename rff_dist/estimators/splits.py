"""The folds of an estimator's `cv`, and the groups that they need.

A number, folds of this package or splits of scikit-learn go in; folds come out, and the
dataset with the groups that they need. scikit-learn's splits are lists of rows, which
passes over blocks cannot use: here each row gets the number of the split that holds it
out.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.data import folding, grids, labelled, xarrays
from rff_dist.data.array_checks import check_rows
from rff_dist.data.blocks import Dataset
from rff_dist.errors import InvalidParameterError
from rff_dist.estimators.inputs import is_in_memory
from rff_dist.estimators.labelled_rows import named_column
from rff_dist.fitting.options import RidgeOptions
from rff_dist.ridge.fold_choices import needs_folds
from rff_dist.storage.columns import as_column, fold_by_holdout_time


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
        by_time = fold_by_holdout_time(dataset, None if cv is None else int(cv))
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
        # scikit-learn's splitters use only the number of rows of X, which may not fit
        # in memory.
        splits = list(cv.split(np.zeros((dataset.n_samples, 1)), targets, group_of_row))
    else:
        splits = list(cv)
    fold_of_row = _fold_of_row(splits, dataset.n_samples, cv)
    return folding.PredefinedFolds(len(splits)), with_groups(dataset, fold_of_row)


def with_groups(dataset: Dataset, groups: Any) -> Dataset:
    """Return a dataset whose rows have groups: values, or the name of a stored array.

    Groups are integers, booleans, text or whole floats, of shape (n_samples,).
    """
    if groups is None:
        return dataset
    if isinstance(dataset, grids.GridDataset) and xarrays.is_xarray(groups):
        return xarrays.group_by(dataset, groups)
    if isinstance(groups, str):
        column = named_column(dataset, groups, "groups")
    else:
        column = as_column(groups, name="groups")
    return labelled.GroupedDataset(dataset, column)


def _gives_splits(cv: Any) -> bool:
    """Return whether `cv` is a splitter of scikit-learn, or an iterable of splits."""
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
        is_held_out[check_rows(test, n_samples)] = True
        is_trained_on = np.zeros(n_samples, bool)
        is_trained_on[check_rows(train, n_samples)] = True
        trains_on_others &= bool((is_trained_on != is_held_out).all())
        fold_of_row[is_held_out] = fold
        n_held_out += is_held_out
    # The sums of a split are the sums of all rows minus those of its held-out rows, so
    # it must train on exactly the other rows.
    if not trains_on_others or (n_held_out != 1).any():
        raise InvalidParameterError(
            f"`cv` is {type(cv).__name__}, whose splits do not hold out each row once"
            " and train on all others; expected such splits, a number of folds,"
            " HashFolds(…), GroupFolds(…) or TimeFolds(…)"
        )
    return fold_of_row
