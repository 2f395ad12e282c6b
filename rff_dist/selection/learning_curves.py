"""How errors fall with the number of rows and of components, from the sums of folds.

The sums of each fold go in; a `LearningCurve` comes out: errors, on a held-out fold, of
models trained on only some of the other folds, or with only the leading components.
Ordinary fits of fewer rows would read the data again.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.data import folding
from rff_dist.features import maps
from rff_dist.numerics import cholesky
from rff_dist.selection import cross_validation, rule
from rff_dist.statistics import fold_statistics
from rff_dist.typing import FloatArray, frozen

SHARES = (0.25, 0.5, 0.75, 1.0)


@frozen(eq=False)
class LearningCurve:
    """Cross-validated errors of models with more and more rows, or components."""

    #: Numbers of components; or of rows trained on, averaged over splits. Shape
    #: (n_points,).
    numbers: FloatArray
    #: Mean squared errors, shape (n_points, n_splits, n_targets).
    errors: FloatArray
    #: The splits as units of a mean of errors: how much each counts.
    units: rule.HeldOutUnits


def learning_curve(
    statistics: fold_statistics.FoldStatistics,
    *,
    alpha: ArrayLike,
    fit_intercept: bool = True,
    shares: Sequence[float] = SHARES,
) -> LearningCurve | None:
    """Return the errors of models of about these shares of the rows, ascending.

    The last point has the errors of `cross_validate`. A split's folds are added in the
    order of `_nearest_first`. Each model takes a Cholesky factorisation,
    n_components³/3 operations. Returns None if fewer than two splits train on several
    folds: one fold has no smaller share. Raises SolveError if a Gram is not finite or
    not positive semi-definite; InvalidParameterError if alpha is negative.
    """
    n_samples = []
    errors = []
    weights = []
    for folds, held_out in statistics.splits:
        order = _nearest_first(statistics, folds, held_out)
        if len(order) < 2:
            continue
        n_trained = np.cumsum([statistics.fold(fold).n_samples for fold in order])
        # each share as the nearest number of whole folds
        distances = np.abs(n_trained - np.multiply.outer(shares, n_trained[-1:]))
        n_folds = distances.argmin(axis=1) + 1
        validation = statistics.fold(held_out)
        held_out_equations = validation.normal_equations(fit_intercept=fit_intercept)
        # how far rounding may have moved eigenvalues of the held-out rows' Gram
        rounding_floor = held_out_equations.floor()
        split_errors = {}
        for count in set(n_folds.tolist()):
            training = statistics.sum(order[:count])
            equations = training.normal_equations(fit_intercept=fit_intercept)
            solved = cholesky.solve_cholesky(equations, alpha, overwrite_gram=True)
            squares = cross_validation.squared_errors(
                held_out_equations,
                equations,
                solved.coefficients,
                np.arange(len(solved.intercept)),
                weight=validation.sum_of_weights,
                floor=rounding_floor,
            )
            split_errors[count] = squares / validation.sum_of_weights
        n_samples.append(n_trained[n_folds - 1])
        errors.append([split_errors[count] for count in n_folds.tolist()])
        weights.append(validation.sum_of_weights)
    if len(weights) < 2:
        return None
    # Shares that take the same folds in every split are one point, the first of them.
    numbers, first = np.unique(np.mean(n_samples, axis=0), return_index=True)
    return LearningCurve(
        numbers,
        np.moveaxis(np.array(errors), 0, 1)[first],
        rule.HeldOutUnits.of_splits(np.array(weights)),
    )


def component_curve(
    statistics: fold_statistics.FoldStatistics,
    feature_maps: Sequence[maps.FeatureMap],
    *,
    alpha: ArrayLike,
    fit_intercept: bool = True,
) -> LearningCurve | None:
    """Return the errors of models of leading components, from all rows of each split.

    The maps have these components, ascending; see `features.draw.shortened`. Returns
    None, and raises, as `learning_curve`.
    """
    curves = []
    for feature_map in feature_maps:
        curve = learning_curve(
            statistics.leading(feature_map),
            alpha=alpha,
            fit_intercept=fit_intercept,
            shares=(1.0,),
        )
        if curve is None:
            return None
        curves.append(curve)
    return LearningCurve(
        np.array([feature_map.n_components for feature_map in feature_maps], float),
        np.concatenate([curve.errors for curve in curves]),
        curves[0].units,
    )


def _nearest_first(
    statistics: fold_statistics.FoldStatistics, folds: Sequence[int], held_out: int
) -> list[int]:
    """Return the folds with rows, from the one before the held-out one backwards.

    After fold 0 comes the last one. Tuning rows, on which only length scales are tuned,
    come at the end. So models of fewer rows are trained on the latest, if folds are
    times.
    """
    scheme = statistics.folds
    n_folds = len(statistics.parts)

    def order(fold: int) -> tuple[bool, int]:
        is_tuning = False
        if isinstance(scheme, folding.TuningFolds):
            is_tuning = bool(scheme.is_tuning(np.array(fold)))
        return is_tuning, (held_out - fold) % n_folds

    with_rows = [fold for fold in folds if statistics.parts[fold] is not None]
    return sorted(with_rows, key=order)
