"""Refits of scikit-learn's Ridge without the rows that a fold holds out: the oracle of what folds choose."""

import numpy as np
from sklearn.linear_model import Ridge


def held_out_residuals(Z, y, fold_of_row, splits, alpha, *, weights=None, fit_intercept=True):
    """Yield which rows each split validates on, and their residuals, shape (n_rows, n_targets)."""
    weights = np.ones(len(Z)) if weights is None else weights
    for trained_on, validated in splits:
        train, test = np.isin(fold_of_row, trained_on), fold_of_row == validated
        ridge = Ridge(alpha, fit_intercept=fit_intercept, solver="cholesky")
        ridge.fit(Z[train], y[train], sample_weight=weights[train])
        yield test, y[test] - ridge.predict(Z[test]).reshape(-1, y.shape[1])


def held_out_errors(Z, y, fold_of_row, splits, alphas, *, weights=None, fit_intercept=True):
    """Return the mean squared errors, shape (n_splits, n_alphas, n_targets)."""
    weights = np.ones(len(Z)) if weights is None else weights
    options = {"weights": weights, "fit_intercept": fit_intercept}
    table = [
        np.average(np.square(residuals), axis=0, weights=weights[rows])
        for alpha in alphas
        for rows, residuals in held_out_residuals(Z, y, fold_of_row, splits, alpha, **options)
    ]
    return np.reshape(table, (len(alphas), len(splits), y.shape[1])).swapaxes(0, 1)
