"""What users pass as `cv`: a number of folds, our folds, or scikit-learn's splitters and lists of splits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.data.blocks import Dataset
from rff_dist.data.folds import Folds, PredefinedFolds, find_folds
from rff_dist.errors import InvalidParameterError
from rff_dist.estimators.inputs import is_in_memory, with_groups


def check_cv(cv: Any) -> None:
    """Check that `cv` can be folds, before data are looked at."""
    if cv is not None and not _gives_splits(cv):
        find_folds(cv)


def as_folds(cv: Any, dataset: Dataset, y: Any, groups: Any) -> tuple[int | Folds | None, Dataset]:
    """Return folds, and the dataset whose rows know what those folds go by.

    `y`: as given to the estimator: stratified splitters look at it where it is in memory.
    `groups`: as given to the estimator.
    Raises InvalidParameterError if splits of scikit-learn do not hold out each row once and train on all
      others.
    """
    if cv is None or not _gives_splits(cv):
        return cv, with_groups(dataset, groups)
    if hasattr(cv, "split"):
        targets = np.asarray(y) if y is not None and is_in_memory(y) else None
        given = None if groups is None or isinstance(groups, str) else np.asarray(groups)
        splits = list(cv.split(np.zeros((dataset.n_samples, 1)), targets, given))
    else:
        splits = list(cv)
    fold_of_row = _fold_of_row(splits, dataset.n_samples, cv)
    return PredefinedFolds(len(splits)), with_groups(dataset, fold_of_row)


def _gives_splits(cv: Any) -> bool:
    return not isinstance(cv, str | bytes) and (hasattr(cv, "split") or isinstance(cv, Iterable))


def _fold_of_row(splits: list[Any], n_samples: int, cv: Any) -> NDArray[np.int64]:
    fold_of_row = np.full(n_samples, -1, np.int64)
    for fold, (train, test) in enumerate(splits):
        held_out = np.zeros(n_samples, bool)
        held_out[test] = True
        trained = np.zeros(n_samples, bool)
        trained[train] = True
        if (fold_of_row[held_out] >= 0).any() or (trained == held_out).any():
            raise _not_a_partition(cv)
        fold_of_row[held_out] = fold
    if (fold_of_row < 0).any():
        raise _not_a_partition(cv)
    return fold_of_row


def _not_a_partition(cv: Any) -> InvalidParameterError:
    return InvalidParameterError(
        f"`cv` is {type(cv).__name__}, whose splits do not hold out each row once and train on all others; "
        "expected such splits, a number of folds, HashFolds(…), GroupFolds(…) or TimeFolds(…)"
    )
