"""Refits of scikit-learn's Ridge without the rows that a fold holds out: the oracle of
what folds choose.
"""

import numpy as np
from sklearn.linear_model import Ridge

from rff_dist.ridge.held_out import REACH


def held_out_residuals(
    Z, y, fold_of_row, splits, alpha, *, weights=None, fit_intercept=True
):
    """Yield which rows each split validates on, and their residuals, shape (n_rows,
    n_targets).
    """
    weights = np.ones(len(Z)) if weights is None else weights
    for trained_on, validated in splits:
        train = np.isin(fold_of_row, trained_on)
        test = fold_of_row == validated
        ridge = Ridge(alpha, fit_intercept=fit_intercept, solver="cholesky")
        ridge.fit(Z[train], y[train], sample_weight=weights[train])
        yield test, y[test] - ridge.predict(Z[test]).reshape(-1, y.shape[1])


def held_out_errors(
    Z, y, fold_of_row, splits, alphas, *, weights=None, fit_intercept=True
):
    """Return the mean squared errors, shape (n_splits, n_alphas, n_targets)."""
    weights = np.ones(len(Z)) if weights is None else weights
    options = {"weights": weights, "fit_intercept": fit_intercept}
    table = [
        np.average(np.square(residuals), axis=0, weights=weights[rows])
        for alpha in alphas
        for rows, residuals in held_out_residuals(
            Z, y, fold_of_row, splits, alpha, **options
        )
    ]
    return np.reshape(table, (len(alphas), len(splits), y.shape[1])).swapaxes(0, 1)


def scores_of_refits(Z, residuals, fold_of_row, *, weights=None):
    """Return held-out errors over their size near the row, which is fitted without the
    errors of the row's fold; and the roots of that size by all rows.

    `residuals` are NaN for rows that no split holds out.
    """
    weights = np.ones(len(Z)) if weights is None else weights
    is_scored = np.isfinite(residuals[:, 0]) & (weights > 0)
    roots = np.sqrt(np.abs(residuals))
    means = np.average(roots[is_scored], axis=0, weights=weights[is_scored])

    centred = Z - np.average(Z[is_scored], axis=0, weights=weights[is_scored])
    scored = centred[is_scored]
    gram = (scored * weights[is_scored, np.newaxis]).T @ scored
    # of a prior as wide as the noise
    gram += np.trace(gram) / is_scored.sum() * np.eye(len(gram))

    def refit(rows):
        """Fit the roots of some rows with the Gram of all."""
        mean = np.average(roots[rows], axis=0, weights=weights[rows])
        weighted = weights[rows, np.newaxis] * (roots[rows] - mean)
        right = centred[rows].T @ weighted / weights[rows].sum()
        return centred @ np.linalg.solve(gram, right * weights[is_scored].sum()) + mean

    scores = np.empty_like(residuals)
    for fold in np.unique(fold_of_row[is_scored]):
        held = fold_of_row == fold
        predicted = refit(is_scored & (fold_of_row != fold))[held]
        sizes = np.clip(predicted, means / REACH, means * REACH) ** 2
        scores[held] = np.abs(residuals[held]) / sizes
    return scores[is_scored], refit(is_scored)
