"""Passes over the training rows that measure the errors of each row as if it had been held out."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.data import blocks
from rff_dist.engines import protocol
from rff_dist.errors import StatisticsError
from rff_dist.features import maps
from rff_dist.fitting import options, plan
from rff_dist.ridge import conformal
from rff_dist.selection import cross_validation
from rff_dist.selection.leave_one_out import LeaveOneOut, hat_matrix, leave_out_rows
from rff_dist.statistics import accumulate, fold_statistics, inspection, ridge_statistics

MAX_DEFAULT_ALPHAS = 54  # three per decade, over the 16 decades of float64 and two above


def leave_one_out(
    dataset: blocks.Dataset,
    statistics: ridge_statistics.RidgeStatistics,
    feature_map: maps.FeatureMap,
    *,
    alphas: ArrayLike | None = None,
    fit_intercept: bool = True,
    engine: protocol.Engine,
) -> LeaveOneOut:
    """Measure the leave-one-out errors (PRESS) of every alpha in one more pass over the training rows.

    2 · n_samples · n_components² operations, twice those of the statistics, after O(n_components³). Each
    worker holds 8 · n_components² bytes. See `rff_dist.selection.leave_one_out` for the formula, and
    `select_by_press` for the best alpha.

    `dataset`: exactly the rows that `statistics` count.
    `feature_map`: the one that `statistics` were accumulated with.
    `alphas`: float64 array of shape (n_alphas,). Penalties above 0; by default `default_alphas`, three per
      decade.
    Raises InvalidParameterError if an alpha is not positive and finite, or there is none; StatisticsError if
      the statistics are of other rows; PlanError if memory does not hold the matrix.
    """
    if statistics.n_samples != dataset.n_samples or statistics.spec.n_targets != dataset.n_targets:
        raise StatisticsError(
            f"the statistics count {statistics.n_samples:_} rows of {statistics.spec.n_targets} targets, the "
            f"data have {dataset.n_samples:_} of {dataset.n_targets}; expected the rows that were trained "
            "on. Give the same data"
        )
    n_alphas = MAX_DEFAULT_ALPHAS if alphas is None else np.size(alphas)
    # columns: `inverse` and `weights` of the HatMatrix
    plan.check_matrix_pass(
        dataset,
        feature_map,
        engine=engine,
        n_targets=dataset.n_targets,
        n_columns=n_alphas * (dataset.n_targets + 1),
        spectral=True,
    )
    state = hat_matrix(statistics, feature_map, alphas=alphas, fit_intercept=fit_intercept)
    found = inspection.sum_rows(dataset, leave_out_rows, state, engine=engine, label="leave one out")
    trained_on, seen = statistics.sum_of_weights, float(found.weight.value())
    if not math.isclose(seen, trained_on, rel_tol=1e-9):  # the same weights, added in another order
        raise StatisticsError(
            f"the statistics' weights add up to {trained_on:g}, those of the data to {seen:g}; expected "
            "the rows that were trained on. Give the same data"
        )
    return found


def hold_out_scores(
    dataset: blocks.Dataset,
    statistics: fold_statistics.FoldStatistics,
    feature_map: maps.FeatureMap,
    *,
    alpha: ArrayLike,
    fit_intercept: bool = True,
    normalized: bool = False,
    engine: protocol.Engine,
) -> conformal.HeldOutScores:
    """Count in one more pass how far each row is from the model that was trained without its fold.

    A pass of predictions, after n_splits Cholesky factorisations; see `rff_dist.ridge.conformal` for the
    intervals that `quantile` of the scores gives. With `normalized` another such pass and a cross-validation,
    of O(n_splits · n_components³), come first.

    `dataset`: the rows that `statistics` count, in the same order.
    `feature_map`: the one that `statistics` were accumulated with.
    `alpha`: float or array of shape (n_targets,). The penalty of the model of all rows.
    `fit_intercept`: whether that model has an intercept.
    `normalized`: whether a row's error is divided by its predicted deviation, so that intervals are wider
      where errors are larger.
    Raises InvalidParameterError if `normalized` meets folds that are not each held out, such as `TimeFolds`;
      DataError if values are not finite, or targets or groups are missing; StatisticsError if the statistics
      are of other rows, or all folds that are held out (with `normalized`: any of them) have no rows.
    """
    if normalized:
        options.check_conformal("normalized", statistics.folds)
    if statistics.n_samples != dataset.n_samples:
        raise StatisticsError(
            f"the folds' statistics count {statistics.n_samples:_} rows, the data have "
            f"{dataset.n_samples:_}; expected the rows that were cut into folds. Give the same data"
        )
    models, deviations = (
        conformal.fold_models(statistics, feature_map, alpha=alpha, fit_intercept=fit_intercept),
        None,
    )
    if normalized:
        add_up = partial(conformal.sum_root_residuals, exponents=statistics.total().spec.exponents)
        sums = inspection.sum_rows(
            dataset, add_up, models, combine=accumulate.add_each, engine=engine, label="residuals"
        )
        roots = conformal.root_residual_statistics(statistics, models, sums)
        chosen = cross_validation.cross_validate(roots).best
        models, deviations = conformal.with_deviations(models, roots, alpha=chosen.alpha)
    scores = inspection.sum_rows(dataset, conformal.score_rows, models, engine=engine, label="hold out")
    return replace(scores, deviations=deviations)
