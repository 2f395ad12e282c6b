"""Warnings where alpha was chosen by something that hardly tells of new rows."""

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

MAX_LEVERAGE = 0.95  # mean of the rows', above which they are as good as interpolated
# Below it rows are too many for the features to follow them, so that no penalty is needed.
SMALL_LEVERAGE = 0.1
MAX_UNCERTAINTY = 0.6  # standard error of the error by folds, as a share of it
NEGLIGIBLE = 1e-3  # share of the targets' variance: without noise, nothing is left but rounding
# Share of the error that another alpha may save, by the errors of rows. Draws above it are half of those that
# err by more than 1.1 times the best alpha: of 349 nasty ones of up to 500 rows 53 with 18 of 37, of 280 of
# 50 to 400 rows of nine real tables 37 with 19 of 39, of 240 smooth ones 34 with 17 of 36.
MAX_SAVING = 0.25
# Of one row in the error. Of 16 nasty draws above it that nothing else is said of all have outliers.
MAX_SHARE = 0.9
MATERIAL_ERROR = 0.05  # share of the targets' variance: without noise a row at the edge makes a small error
MAX_CANCELLING = 20.0  # coefficients' norm per row in deviations of the targets
# What rounding features moves predictions by, as a share of the error that folds or GCV know, or else of the
# error at the training rows. Above it errors with 15 bits and with float32 differ by more than half a
# percent: five real sets, alphas from 1e-9 to 0.01, tests/benchmarks/fifteen_bits_lose_nothing.py. Rows that
# are not interpolated stand more.
MAX_ROUNDING_OF_TRAINING = 0.02
MAX_ROUNDING_OF_ERROR = 0.01
MAX_ROUNDING_OF_MANY_ROWS = 0.1
INTERPOLATING = 0.5  # mean leverage
NEGLIGIBLE_ROUNDING = 5e-4  # deviations of the targets


def warn_of_alpha(solved: Solved, *, cancelling: float = 0.0) -> None:
    """Warn where alpha was chosen but what it was chosen by hardly tells of new rows.

    At the lower end of its range a better one may lie below, and near the rounding error of Z'Z rounding has
    a say in the coefficients. Where the mean leverage is near 1 the rows are interpolated. Coefficients that
    cancel one another at the rows, see `how_cancelling`, need not do so elsewhere. Few features of many rows
    want no penalty: folds that found the smallest alpha best have measured that.
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
        f"the error of held-out rows is known to {uncertain:.0%} only, so much do folds differ": uncertain
        > MAX_UNCERTAINTY,
        **_doubts(solved),
        "large coefficients cancel one another at the rows, so that predictions away from them may be far "
        "off": by_folds and leverage > SMALL_LEVERAGE and cancelling > MAX_CANCELLING,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        warnings.warn(
            f"alpha={alpha:.3g} was chosen by {solved.chosen_by}, but {', and '.join(found)}. Without noise "
            "in y this is as it should be. Else look at errors on held-out rows, and give another `alpha` "
            "or other values to choose from, another length scale or number of components, or more rows",
            UserWarning,
            stacklevel=2,
        )


def _doubts(solved: Solved) -> dict[str, bool]:
    """Return in words what speaks against an alpha that rows chose, and whether it does."""
    doubts, table, choice = solved.doubts, solved.cross_validation, solved.choice
    if doubts is None or table is None or choice is None:
        return {}
    return {
        f"errors of rows that are left out one by one do not tell it from {table.alphas[doubts.other]:.3g}, "
        f"by which the error may be {doubts.saving:.0%} less": doubts.saving > MAX_SAVING
        and choice.score > NEGLIGIBLE,
        f"row {doubts.heaviest_row:,} alone makes {doubts.share:.0%} of the held-out error": doubts.share
        > MAX_SHARE
        and choice.score > MATERIAL_ERROR,
    }


def rounding_seen(solved: Solved, spec: StatisticsSpec, deviations: FloatArray) -> float | None:
    """Return what rounding features to 15 bits moves predictions by, where that shows.

    Rounding moves a feature by up to half of 1/16,256, all alike, so that predictions move by the root of its
    variance, (1/16,256)²/12 times the feature's scale, times the norm of the coefficients.

    `deviations`: of the targets.
    Returns `moved`: in standard deviations of the targets; None where the error of the model hides it.
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
    """Warn of what `rounding_seen` found."""
    warnings.warn(
        f"alpha={_least_alpha(solved):.3g} is so small that rounding features to 15 bits moves predictions "
        f"by about {moved:.2g} standard deviations of y; fit with precision='high', or give a larger alpha",
        UserWarning,
        stacklevel=2,
    )


def _uncertainty(solved: Solved) -> float:
    """Return the standard error of the error by folds as a share of it.

    0 where either is next to nothing, or rows left out one by one have chosen.
    """
    choice = solved.choice
    if choice is None or choice.score < NEGLIGIBLE or solved.doubts is not None:
        return 0.0
    return float(np.nan_to_num(choice.standard_error)) / choice.score


def how_cancelling(solved: Solved, statistics: RidgeStatistics) -> float:
    """Return the norm of the coefficients per row, in standard deviations of the targets.

    Features of a shift-invariant kernel have the norm 1, so that no prediction is further from the mean than
    the coefficients' norm. Where that is more than rows times deviations, terms of opposite signs make up the
    predictions.
    """
    norms = np.linalg.norm(solved.solution.coefficients, axis=0)
    deviations = statistics.target_deviations()
    varying = deviations > 0.0
    return float((norms[varying] / deviations[varying]).max(initial=0.0)) / statistics.n_observations


def _least_alpha(solved: Solved) -> float:
    """Return the least alpha of the targets that vary: a constant one is predicted as well by any."""
    found, alphas = solved.cross_validation or solved.leave_one_out, solved.solution.alpha
    varying = alphas if found is None else alphas[found.target_variance > 0.0]
    return float((varying if len(varying) else alphas).min())


def _mean_leverage(solved: Solved, alpha: float) -> tuple[float, str | None]:
    """Return degrees of freedom over rows, and which end of its range alpha is at."""
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
