"""Warn if alpha was chosen by errors that may not hold for new rows.

A solution and its statistics go in; a warning names what casts doubt on alpha, and what
to do. The smallest error of a table is always there, but says little if rows are
interpolated, folds differ a lot, or rounding decides.
"""

import math

import numpy as np

from rff_dist.errors import warn
from rff_dist.products import protocol
from rff_dist.ridge.solve import SelectedSolution
from rff_dist.statistics import specs
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.typing import BoolArray, FloatArray

# Leverage is the mean over rows: degrees of freedom over rows. Above this the model as
# good as interpolates the rows.
MAX_LEVERAGE = 0.95
# Below this rows are too many for features to follow: no penalty is needed.
SMALL_LEVERAGE = 0.1
MAX_UNCERTAINTY = 0.6  # standard error of the folds' error, as a share of that error
# Error as a share of the targets' variance. Below it there is no noise, and rounding
# decides.
NEGLIGIBLE = 1e-3
# Share of the error that another alpha may save, by leave-one-out errors. A draw of
# data is bad if the chosen alpha errs by more than 1.1 times the best one's error. The
# limit catches about half of the bad draws:
#   349 draws of nasty data, up to 500 rows: 53 above it, with 18 of the 37 bad ones;
#   280 draws of 50 to 400 rows of nine real tables: 37, with 19 of 39;
#   240 draws of smooth data: 34, with 17 of 36.
MAX_SAVING = 0.25
# Share of one row in the error. All of 16 draws of nasty data that are above it, and
# have no other warning, have outliers.
MAX_SHARE = 0.9
# Error as a share of the targets' variance. If it is smaller, there is almost no noise,
# and one row at the edge may make most of a small error.
MATERIAL_ERROR = 0.05
MAX_CANCELLING = 20.0  # of `how_cancelling`
# How far rounding features may move predictions, as a share of the error by folds or
# GCV, or else of the error at the training rows. Above it errors with 15 bits and with
# float32 differ by more than half a percent: five real sets, alphas from 1e-9 to 0.01,
# benchmarks/fifteen_bits_lose_nothing.py. Rows that are not interpolated tolerate more.
MAX_ROUNDING_OF_TRAINING = 0.02
MAX_ROUNDING_OF_ERROR = 0.01
MAX_ROUNDING_OF_MANY_ROWS = 0.1
INTERPOLATING = 0.5  # mean leverage
NEGLIGIBLE_ROUNDING = 5e-4  # deviations of the targets


def warn_of_alpha(
    solved: SelectedSolution, *, cancelling: float, classes: bool
) -> None:
    """Warn if alpha was chosen by errors that may not hold for new rows.

    At the lower end of the range a better alpha may lie below, and near the rounding
    error of Z'Z the coefficients depend on rounding. With a mean leverage near 1 the
    rows are interpolated. Coefficients that cancel one another at the rows, see
    `how_cancelling`, may not cancel elsewhere. There is no warning if folds found the
    smallest alpha best for few features of many rows: those need no penalty.

    With `classes` targets of −1 and +1 stand for classes. That another alpha may lower
    their squared error is then no reason to warn, since it says little about predicted
    classes and probabilities.
    """
    if solved.chosen_by == "given":
        return
    floor = solved.solution.floor
    alpha = solved.smallest_alpha
    leverage = solved.mean_leverage
    uncertainty = _uncertainty(solved)
    is_at_floor = alpha < 3 * floor
    has_folds = solved.cross_validation is not None
    if is_at_floor and has_folds and leverage < SMALL_LEVERAGE:
        return
    reasons = []
    if solved.alpha_at_end == "lower":
        reasons.append("it is the smallest value tried, and the best may be smaller")
    if is_at_floor:
        reasons.append(
            f"it is near {floor:.2g}, the rounding error of Z'Z, below which"
            " coefficients are chance"
        )
    if leverage > MAX_LEVERAGE:
        reasons.append(
            f"the model has {leverage:.0%} as many degrees of freedom as rows, and"
            " follows the noise of each"
        )
    if uncertainty > MAX_UNCERTAINTY:
        reasons.append(
            f"the cross-validated error is known to {uncertainty:.0%} only, so much do"
            " folds differ"
        )
    reasons += _doubts_of_rows(solved, classes=classes)
    if has_folds and leverage > SMALL_LEVERAGE and cancelling > MAX_CANCELLING:
        reasons.append(
            "large coefficients cancel one another at the rows, so that predictions"
            " away from them may be far off"
        )
    if reasons:
        warn(
            f"alpha={alpha:.3g} was chosen by {solved.chosen_by}, but"
            f" {', and '.join(reasons)}. Ignore this if y has no noise. Otherwise check"
            " errors on test rows; another `alpha`, length scale or number of"
            " components may help, and so may more rows",
        )


def _doubts_of_rows(solved: SelectedSolution, *, classes: bool) -> list[str]:
    """Return reasons to doubt an alpha that was chosen by leaving rows out."""
    doubts = solved.doubts
    table = solved.cross_validation
    choice = solved.choice
    if doubts is None or table is None or choice is None:
        return []
    reasons = []
    may_save = doubts.saved > 0.0 and doubts.saved_at_most > MAX_SAVING
    if may_save and choice.score > NEGLIGIBLE and not classes:
        reasons.append(
            "leave-one-out errors do not distinguish it from"
            f" {table.alphas[doubts.other]:.3g}, whose error is {doubts.saved:.0%} ±"
            f" {doubts.saved_at_most - doubts.saved:.0%} lower"
        )
    if doubts.share > MAX_SHARE and choice.score > MATERIAL_ERROR:
        reasons.append(
            f"row {doubts.heaviest_row:,} alone makes {doubts.share:.0%} of the error"
        )
    return reasons


def visible_rounding(
    solved: SelectedSolution, spec: specs.StatisticsSpec, deviations: FloatArray
) -> float | None:
    """Return how far rounding to 15 bits moves predictions, in deviations of targets.

    None if the error of the model hides it. A feature is a multiple of the step 2⁻¹⁴
    times its factor. Rounding moves it uniformly by up to half a step, a standard
    deviation of step/√12. Predictions move by the norm of these deviations times the
    coefficients.
    """
    if not spec.fixed_point:
        return None
    moved_by_feature = (
        2.0**-protocol.FIXED_POINT_BITS
        * spec.factors[:, np.newaxis]
        * solved.solution.coefficients
    )
    moved = np.linalg.norm(moved_by_feature, axis=0) / math.sqrt(12.0)
    varying = deviations > 0.0
    shares = moved[varying] / deviations[varying]
    tolerated = _tolerated_rounding(solved, deviations, varying)
    visible = shares[shares > np.maximum(tolerated, NEGLIGIBLE_ROUNDING)]
    return float(visible.max()) if len(visible) else None


def _tolerated_rounding(
    solved: SelectedSolution, deviations: FloatArray, varying: BoolArray
) -> FloatArray | float:
    """Return how far rounding may move predictions of varying targets unnoticed."""
    if solved.choice is None and solved.selection is None:
        return MAX_ROUNDING_OF_TRAINING * np.sqrt(solved.solution.unexplained[varying])
    share = MAX_ROUNDING_OF_MANY_ROWS
    if solved.mean_leverage > INTERPOLATING:
        share = MAX_ROUNDING_OF_ERROR
    if solved.choice is not None:
        return share * math.sqrt(solved.choice.score)
    assert solved.selection is not None
    errors = np.sqrt(solved.selection.score[varying]) / deviations[varying]
    return share * errors


def warn_of_rounding(solved: SelectedSolution, moved: float) -> None:
    """Warn that rounding moves predictions; see `visible_rounding`."""
    warn(
        f"alpha={solved.smallest_alpha:.3g} is so small that rounding features to 15"
        f" bits moves predictions by about {moved:.2g} standard deviations of y; fit"
        " with precision='high', or give a larger alpha",
    )


def _uncertainty(solved: SelectedSolution) -> float:
    """Return the standard error of the folds' error, as a share of that error.

    It is 0 if the error is negligible, or alpha was chosen by leaving out rows one by
    one.
    """
    choice = solved.choice
    if choice is None or choice.score < NEGLIGIBLE or solved.doubts is not None:
        return 0.0
    return float(np.nan_to_num(choice.standard_error)) / choice.score


def how_cancelling(solved: SelectedSolution, statistics: RidgeStatistics) -> float:
    """Return the norm of the coefficients per row, in deviations of the targets.

    Features of a shift-invariant kernel have norm 1, so that no prediction is further
    from the mean than the norm of the coefficients. If that norm is much more than the
    deviations times the number of rows, terms of opposite signs cancel in the
    predictions.
    """
    norms = np.linalg.norm(solved.solution.coefficients, axis=0)
    deviations = statistics.target_deviations()
    varying = deviations > 0.0
    largest = float((norms[varying] / deviations[varying]).max(initial=0.0))
    return largest / statistics.n_observations
