"""Warnings if alpha was chosen by errors that hardly hold for new rows."""

from __future__ import annotations

import math
import warnings

import numpy as np

from rff_dist.products.protocol import FIXED_POINT_BITS
from rff_dist.ridge.solve import Solved
from rff_dist.selection.alphas import end_of_grid
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.statistics.spec import StatisticsSpec
from rff_dist.typing import FloatArray

MAX_LEVERAGE = 0.95  # mean over rows; above it rows are as good as interpolated
SMALL_LEVERAGE = 0.1  # below it rows are too many for features to follow: no penalty is needed
MAX_UNCERTAINTY = 0.6  # standard error of the folds' error, as a share of that error
NEGLIGIBLE = 1e-3  # share of the targets' variance: below it there is no noise, and rounding decides
# Share of the error that another alpha may save, by the errors of rows. Above it are half of the draws that
# err by more than 1.1 times the best alpha: 18 of 37, among 53 of 349 nasty draws of up to 500 rows; 19 of
# 39, among 37 of 280 draws of 50 to 400 rows of nine real tables; 17 of 36, among 34 of 240 smooth ones.
MAX_SAVING = 0.25
# Share of one row in the error. Of 16 nasty draws above it without another warning, all have outliers.
MAX_SHARE = 0.9
MATERIAL_ERROR = 0.05  # share of the targets' variance; without noise a row at the edge errs little
MAX_CANCELLING = 20.0  # norm of the coefficients per row, in deviations of the targets
# How far rounding features may move predictions, as a share of the error by folds or GCV, or else of the
# error at the training rows. Above it errors with 15 bits and with float32 differ by more than half a
# percent: five real sets, alphas from 1e-9 to 0.01, tests/benchmarks/fifteen_bits_lose_nothing.py. Rows that
# are not interpolated tolerate more.
MAX_ROUNDING_OF_TRAINING = 0.02
MAX_ROUNDING_OF_ERROR = 0.01
MAX_ROUNDING_OF_MANY_ROWS = 0.1
INTERPOLATING = 0.5  # mean leverage
NEGLIGIBLE_ROUNDING = 5e-4  # deviations of the targets


def warn_of_alpha(solved: Solved, *, cancelling: float = 0.0, classes: bool = False) -> None:
    """Warn if alpha was chosen by errors that hardly hold for new rows.

    At the lower end of the range a better alpha may lie below, and near the rounding error of Z'Z the
    coefficients depend on rounding. With a mean leverage near 1 the rows are interpolated. Coefficients that
    cancel one another at the rows, see `how_cancelling`, need not do so elsewhere. There is no warning if
    folds found the smallest alpha best for few features of many rows: those need no penalty.

    `classes`: whether targets of −1 and +1 stand for classes. How far another alpha may lower their squared
      error shows nothing of classes and probabilities, for which rows are few enough to be interpolated.
    """
    if solved.chosen_by == "given":
        return
    floor, alpha = solved.solution.floor, _least_alpha(solved)
    leverage, at_end = _mean_leverage(solved, alpha)
    uncertain = _uncertainty(solved)
    at_floor = alpha < 3 * floor
    by_folds = solved.cross_validation is not None
    if at_floor and by_folds and leverage < SMALL_LEVERAGE:
        return
    reasons = {
        "it is the smallest that was tried, so that a better one may lie below": at_end == "lower",
        f"it is near {floor:.2g}, the rounding error of Z'Z, below which coefficients are chance": at_floor,
        f"with {leverage:.0%} as many degrees of freedom as rows the model follows each of them": leverage
        > MAX_LEVERAGE,
        f"the cross-validated error is known to {uncertain:.0%} only, so much do folds differ": uncertain
        > MAX_UNCERTAINTY,
        **_doubts(solved, classes=classes),
        "large coefficients cancel one another at the rows, so that predictions away from them may be far "
        "off": by_folds and leverage > SMALL_LEVERAGE and cancelling > MAX_CANCELLING,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        warnings.warn(
            f"alpha={alpha:.3g} was chosen by {solved.chosen_by}, but {', and '.join(found)}. Without noise "
            "in y this is as it should be. Else look at errors on test rows, and give another `alpha` "
            "or other values to choose from, another length scale or number of components, or more rows",
            UserWarning,
            stacklevel=2,
        )


def _doubts(solved: Solved, *, classes: bool) -> dict[str, bool]:
    """Return possible doubts about an alpha that was chosen by rows left out, and which of them hold."""
    doubts, table, choice = solved.doubts, solved.cross_validation, solved.choice
    if doubts is None or table is None or choice is None:
        return {}
    return {
        f"errors of rows that are left out one by one do not tell it from {table.alphas[doubts.other]:.3g}, "
        f"whose error is {doubts.saved:.0%} ± {doubts.saving - doubts.saved:.0%} lower": not classes
        and doubts.saved > 0.0
        and doubts.saving > MAX_SAVING
        and choice.score > NEGLIGIBLE,
        f"row {doubts.heaviest_row:,} alone makes {doubts.share:.0%} of the error": doubts.share > MAX_SHARE
        and choice.score > MATERIAL_ERROR,
    }


def rounding_seen(solved: Solved, spec: StatisticsSpec, deviations: FloatArray) -> float | None:
    """Return how far rounding features to 15 bits moves predictions, in the targets' standard deviations.

    None if the error of the model hides it. Rounding moves a feature by up to half of 1/16,256, uniformly, so
    that its standard deviation is the feature's scale times 1/16,256/√12; predictions move by that times the
    norm of the coefficients.

    `deviations`: of the targets.
    """
    if not spec.fixed_point:
        return None
    spread = 2.0**-FIXED_POINT_BITS * spec.factors[:, np.newaxis] * solved.solution.coefficients
    moved = np.linalg.norm(spread, axis=0) / math.sqrt(12.0)
    varying = deviations > 0.0
    shares = moved[varying] / deviations[varying]
    limits: FloatArray | float = MAX_ROUNDING_OF_TRAINING * np.sqrt(solved.solution.unexplained[varying])
    if solved.choice is not None or solved.selection is not None:
        leverage, _ = _mean_leverage(solved, _least_alpha(solved))
        limits = MAX_ROUNDING_OF_ERROR if leverage > INTERPOLATING else MAX_ROUNDING_OF_MANY_ROWS
        if solved.choice is not None:
            limits *= math.sqrt(solved.choice.score)
        elif solved.selection is not None:
            limits *= np.sqrt(solved.selection.score[varying]) / deviations[varying]
    shares = shares[shares > np.maximum(limits, NEGLIGIBLE_ROUNDING)]
    return float(shares.max()) if len(shares) else None


def warn_of_rounding(solved: Solved, moved: float) -> None:
    """Warn that rounding moves predictions; see `rounding_seen`."""
    warnings.warn(
        f"alpha={_least_alpha(solved):.3g} is so small that rounding features to 15 bits moves predictions "
        f"by about {moved:.2g} standard deviations of y; fit with precision='high', or give a larger alpha",
        UserWarning,
        stacklevel=2,
    )


def _uncertainty(solved: Solved) -> float:
    """Return the standard error of the folds' error as a share of it.

    0 if the error is negligible, or alpha was chosen by leaving out rows one by one.
    """
    choice = solved.choice
    if choice is None or choice.score < NEGLIGIBLE or solved.doubts is not None:
        return 0.0
    return float(np.nan_to_num(choice.standard_error)) / choice.score


def how_cancelling(solved: Solved, statistics: RidgeStatistics) -> float:
    """Return the norm of the coefficients per row, in standard deviations of the targets.

    Features of a shift-invariant kernel have norm 1, so that no prediction is further from the mean than the
    norm of the coefficients. If that norm is much more than the deviations times the number of rows, terms of
    opposite signs cancel in the predictions.
    """
    norms = np.linalg.norm(solved.solution.coefficients, axis=0)
    deviations = statistics.target_deviations()
    varying = deviations > 0.0
    return float((norms[varying] / deviations[varying]).max(initial=0.0)) / statistics.n_observations


def _least_alpha(solved: Solved) -> float:
    """Return the least alpha of the targets that vary: for a constant one any alpha is as good."""
    found, alphas = solved.cross_validation or solved.leave_one_out, solved.solution.alpha
    varying = alphas if found is None else alphas[found.target_variance > 0.0]
    return float((varying if len(varying) else alphas).min())


def _mean_leverage(solved: Solved, alpha: float) -> tuple[float, str | None]:
    """Return degrees of freedom over rows, and the end of its range that alpha is at, if any."""
    table, choice, selection = solved.cross_validation, solved.choice, solved.selection
    if table is not None and choice is not None:
        mean = table.mean_leverage(choice.n_components, alpha)
        return mean, choice.at_end if len(table.alphas) > 1 else None
    if selection is not None:
        degrees = selection.degrees_of_freedom[selection.best_index]
        return float(degrees) / selection.n_samples, selection.at_end
    path = solved.leave_one_out
    if path is None:
        return 0.0, None
    at = int(np.searchsorted(path.alphas, alpha))
    return 0.0, end_of_grid(at, len(path.alphas))
