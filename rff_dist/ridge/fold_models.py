"""Models without each fold, solved from the folds' sums, and their predictions.

The sums of each fold go in; a model for each split comes out, which predicts the rows
that it was not trained on. Errors on rows that it was trained on would be too small.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.data import blocks, folding
from rff_dist.errors import StatisticsError
from rff_dist.features import maps
from rff_dist.fitting import evaluation, predicting
from rff_dist.numerics import cholesky
from rff_dist.ridge import uncertainty
from rff_dist.statistics import fold_statistics
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.typing import BoolArray, FloatArray, IntArray, frozen


@frozen(eq=False)
class FoldModels:
    """One model for each split of a cross-validation, all with the same alpha."""

    #: Its n_splits · n_targets columns are the targets of one split after another.
    linear: predicting.LinearModel
    folds: folding.Folds
    #: shape (n_splits,): the fold that each split holds out
    held_out_folds: IntArray
    #: Rows that were cut into folds.
    n_samples: int
    #: Means of the targets that each was trained on; shape (n_splits, n_targets).
    target_means: FloatArray
    #: Of each target over all rows, as in the table of cross-validated errors.
    target_variance: FloatArray
    #: If rows are few, predicts each row without this row alone, rather than without
    #: its fold.
    without_row: uncertainty.PredictiveModel | None = None


def solve_fold_models(
    statistics: fold_statistics.FoldStatistics,
    feature_map: maps.FeatureMap,
    *,
    alpha: ArrayLike,
    fit_intercept: bool = True,
    whole: RidgeStatistics | None = None,
) -> FoldModels:
    """Solve for the coefficients of each split, one Cholesky factorisation per split.

    A split's model is trained on the rows of `whole` without the held-out fold; by
    default on the folds that the split trains on. `alpha` has shape () or (n_targets,).
    Raises StatisticsError if no fold has rows, or a split has no rows to train on;
    InvalidParameterError, SolveError as `solve_cholesky`.
    """
    total = statistics.total()
    solutions = []
    held_out_folds = []
    target_means = []
    for trained_on, held_out in statistics.folds.splits:
        part = statistics.parts[held_out]
        if part is None or not part.n_observations:
            continue  # no row would use this model
        if whole is not None:
            # The part may be cut into other tiles than the whole, so their rounding
            # does not cancel: count the tiles of both.
            n_tiles = whole.n_tiles + part.n_tiles
            training = replace(whole - part, n_tiles=n_tiles)
        elif len(trained_on) == len(statistics.parts) - 1:
            training = total - part
        else:
            training = statistics.sum(trained_on)
        equations = training.normal_equations(fit_intercept=fit_intercept)
        solutions.append(cholesky.solve_cholesky(equations, alpha, overwrite_gram=True))
        held_out_folds.append(held_out)
        target_means.append(training.target_means())
    if not held_out_folds:
        raise StatisticsError(
            f"no fold of {statistics.folds} that is held out has rows; use fewer folds"
        )
    return FoldModels(
        linear=predicting.LinearModel(
            feature_map,
            np.hstack([solved.coefficients for solved in solutions]),
            np.concatenate([solved.intercept for solved in solutions]),
        ),
        folds=statistics.folds,
        held_out_folds=np.array(held_out_folds, np.int64),
        n_samples=statistics.n_samples,
        target_means=np.array(target_means),
        target_variance=total.target_moments.variances(centred=fit_intercept),
    )


@frozen(eq=False)
class HeldOutPredictions:
    """Predictions of the rows of a block that count, by models without their folds.

    Rows of weight 0 do not count, nor those of folds that are never held out, such as
    the first of `TimeFolds`.
    """

    #: Shape (n_counted, n_targets).
    predictions: FloatArray
    #: The split that holds out each row of the block, -1 for none.
    splits: IntArray
    #: Which rows of the block count.
    is_counted: BoolArray


def predict_held_out(rows: blocks.Rows, models: FoldModels) -> HeldOutPredictions:
    """Predict each row of a block by the model that was trained without its fold.

    Raises DataError if the block has no targets, has values that are not finite, or
    lacks the groups that folds are made of.
    """
    _, weights = evaluation.evaluated_targets(rows)
    fold_of_row = models.folds.assign(
        rows.block.start,
        rows.block.stop,
        n_samples=models.n_samples,
        groups=rows.groups,
    )
    splits = split_of_folds(fold_of_row, models)
    is_counted = (splits >= 0) & (weights > 0)
    # Values of rows that do not count may be NaN, and zeros may be far from all rows:
    # the first row that counts takes their place.
    X = np.zeros_like(rows.X)
    if is_counted.any():
        places = np.where(is_counted, np.arange(len(X)), np.argmax(is_counted))
        X = rows.X[places]
    rows = replace(rows, X=X)
    if models.without_row is None:
        predictions = predict_by_splits(rows, splits, models)
    else:
        predictions = uncertainty.leave_one_out(rows, models.without_row, rows.weights)
    return HeldOutPredictions(predictions[is_counted], splits, is_counted)


def split_of_folds(fold_of_row: IntArray, models: FoldModels) -> IntArray:
    """Return the split that holds out each row, from its fold: -1 for none."""
    split_of_fold = np.full(models.folds.n_folds, -1, np.int64)
    n_splits = len(models.held_out_folds)
    split_of_fold[models.held_out_folds] = np.arange(n_splits)
    return split_of_fold[fold_of_row]


def predict_by_splits(
    rows: blocks.Rows, split: IntArray, models: FoldModels
) -> FloatArray:
    """Predict each row by the model of its split: shape (n_samples, n_targets)."""
    n_rows = len(split)
    n_splits = len(models.held_out_folds)
    predictions = predicting.predict_rows(rows, models.linear)
    by_split = predictions.reshape(n_rows, n_splits, predictions.shape[1] // n_splits)
    return by_split[np.arange(n_rows), split]
