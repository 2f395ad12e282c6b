"""Solve ridge regression from sums alone, and choose alpha.

Exact sums of all rows, or of each fold, and a penalty go in; coefficients come out,
with the errors that alpha was chosen by. Alpha is a given number, or chosen by
generalised cross-validation (GCV), the evidence, folds, or few rows left out one by
one. No data are read, except these few rows.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.data import blocks
from rff_dist.errors import InvalidParameterError, SolveError, warn
from rff_dist.features import draw
from rff_dist.features.maps import FeatureMap
from rff_dist.fitting import options
from rff_dist.numerics import cholesky, eigen
from rff_dist.numerics.solution import RidgeSolution
from rff_dist.products import protocol
from rff_dist.selection import gcv, row_folds
from rff_dist.selection.cross_validation import (
    AlphaRule,
    Choice,
    CrossValidation,
    cross_validate,
)
from rff_dist.statistics import fold_statistics, specs
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.typing import AnyArray, BoolArray, FloatArray, frozen


@frozen
class SelectedSolution:
    """Coefficients, and the errors that alpha was chosen by, if it was chosen."""

    solution: RidgeSolution
    #: The path of alpha by GCV or the evidence on all rows.
    selection: gcv.Selection | None
    #: The table of k-fold errors, and the entry of it that was taken.
    cross_validation: CrossValidation | None = None
    choice: Choice | None = None
    #: Reasons to doubt an alpha that was chosen by leaving out each of few rows.
    doubts: row_folds.Doubts | None = None

    def path(self) -> dict[str, AnyArray]:
        """Return the errors that alpha was chosen by, as named arrays."""
        path = self.cross_validation or self.selection
        return {} if path is None else path.to_arrays()

    @property
    def chosen_by(self) -> str:
        """How alpha was chosen: "cv", "press", "gcv", "evidence" or "given"."""
        if self.doubts is not None:
            return "press"
        if self.cross_validation is not None:
            return "cv" if len(self.cross_validation.alphas) > 1 else "given"
        return "given" if self.selection is None else self.selection.criterion


def solve_folds(
    statistics: fold_statistics.FoldStatistics,
    feature_map: FeatureMap,
    penalty: options.Penalty,
    n_components: Sequence[int] = (),
    *,
    table: CrossValidation | None = None,
    rows: blocks.Rows | None = None,
) -> tuple[FeatureMap, RidgeStatistics, SelectedSolution]:
    """Choose alpha and the number of components by folds, and solve on all rows.

    The table of all folds, alphas, widths and targets takes O(n_splits ·
    n_components³).

    Parameters
    ----------
    statistics : FoldStatistics
        Sums of each fold, in the components of `feature_map`.
    feature_map : FeatureMap
    penalty : Penalty
        "cv" takes the largest alpha that is as good as the best of `alpha_grid`, see
        `CrossValidation.choose`; "cv-1se" the largest within one standard error of it.
        Targets may have their own alphas, see `CrossValidation.with_own_alphas`.
    n_components : sequence of int
        Widths to try, besides the map's own, which is the largest. The smallest whose
        error is within one standard error of the smallest error is taken.
    table : CrossValidation, optional
        The errors on the folds, if they were computed from the rows themselves.
    rows : Rows, optional
        All rows, if they are so few that alpha is chosen by leaving out each; see
        `choose_by_rows`. The folds still choose kernels and estimate errors of new
        rows, since some of the rows that are left out tuned the length scales.

    Returns
    -------
    feature_map, statistics, solution
        The map with the components that were chosen, and sums of all rows in it.

    Raises
    ------
    InvalidParameterError
        If alpha is not above 0, or the map has no smaller draws.
    StatisticsError
        If a fold has no rows.
    """
    fit_intercept = penalty.fit_intercept
    grid = penalty.grid
    largest = feature_map.n_components
    widths = sorted({largest, *(width for width in n_components if width < largest)})
    maps = [draw.shortened(feature_map, width) for width in widths]
    if table is None:
        table = cross_validate(
            statistics, alphas=grid, feature_maps=maps, fit_intercept=fit_intercept
        )
    elif grid is None:
        # The table's own alphas reach lower than sums can resolve, because rows resolve
        # smaller ones. Alphas that a user gave all stay.
        equations = statistics.total().normal_equations(fit_intercept=fit_intercept)
        table = table.from_alpha(equations.floor())
    table = replace(table, folds=statistics.folds)
    best = table.fewest_components() if len(widths) > 1 else table.best
    choice = choose_alpha(table, best.n_components, penalty)
    shortened = maps[widths.index(choice.n_components)]
    total = statistics.total()
    if shortened is not feature_map:
        total = total.leading(
            shortened.n_components,
            feature_digest=shortened.digest(),
            scales=shortened.scales,
        )
    doubts = None
    if rows is not None:
        assert rows.y is not None
        frequency_weights = total.spec.frequency_weights
        squares = row_folds.leave_out_each(
            shortened.transform(rows.X),
            rows.y,
            rows.sample_weight,
            table.alphas,
            fit_intercept=fit_intercept,
            frequency_weights=frequency_weights,
        )
        by_rows = row_folds.choose_by_rows(
            squares,
            rows.weights,
            table.target_variance,
            per_target=penalty.per_target,
            frequency_weights=frequency_weights,
        )
        if by_rows is not None:
            alphas, doubts = by_rows
            choice = table.choice_at(choice.n_components, alphas)
    solved = solve_with(total, choice.penalty, fit_intercept=fit_intercept)
    solved = replace(solved, cross_validation=table, choice=choice, doubts=doubts)
    return shortened, total, solved


def choose_alpha(
    table: CrossValidation, n_components: int, penalty: options.Penalty
) -> Choice:
    """Choose an alpha by the errors of folds, or one for each target."""
    by: AlphaRule = "one_standard_error" if penalty.criterion == "cv-1se" else "safest"
    choice = table.choose(n_components, by)
    if penalty.per_target is False or options.is_one_alpha(penalty.alpha):
        return choice
    return table.with_own_alphas(choice, always=penalty.per_target is True, by=by)


def solve(statistics: RidgeStatistics, penalty: options.Penalty) -> SelectedSolution:
    """Solve ridge regression from its statistics alone, O(n_components³).

    "gcv" and "evidence" search `alpha_grid`; among several given alphas the smallest
    GCV decides. See `select_alpha` for targets with alphas of their own.

    Raises InvalidParameterError if alpha is to be chosen by errors that these
    statistics do not hold.
    """
    if penalty.criterion not in (None, "gcv", "evidence"):
        raise InvalidParameterError(
            f"`alpha` is {penalty.alpha!r}, which needs the sums of each fold: see"
            " `solve_folds`"
        )
    if options.is_one_alpha(penalty.alpha):
        return solve_with(
            statistics,
            cast("float", penalty.alpha),
            fit_intercept=penalty.fit_intercept,
        )
    spectrum = eigen.decompose(
        statistics.normal_equations(fit_intercept=penalty.fit_intercept)
    )
    criterion: gcv.Criterion = "evidence" if penalty.criterion == "evidence" else "gcv"
    selection = gcv.select_alpha(
        spectrum, penalty.grid, criterion=criterion, per_target=penalty.per_target
    )
    return SelectedSolution(spectrum.solve(selection.penalty), selection)


def solve_with(
    statistics: RidgeStatistics, alpha: ArrayLike, *, fit_intercept: bool
) -> SelectedSolution:
    """Return the solution of `sklearn.linear_model.Ridge(alpha).fit(Z, y)`, from sums.

    Alpha is one number, or one for each target.
    """
    alpha = np.asarray(alpha)
    equations = statistics.normal_equations(fit_intercept=fit_intercept)
    try:
        solution = cholesky.solve_cholesky(equations, alpha, overwrite_gram=True)
    except SolveError:
        # Extreme weights may make rounding larger than its estimate; eigenvalues show
        # it, and warn.
        equations = statistics.normal_equations(fit_intercept=fit_intercept)
        solution = eigen.decompose(equations).solve(alpha)
    return SelectedSolution(solution, None)


# -- warnings if alpha was chosen by errors that may not hold for new rows
# --------------------------


MAX_LEVERAGE = 0.95  # mean over rows; above it rows are as good as interpolated
# below it rows are too many for features to follow: no penalty is needed
SMALL_LEVERAGE = 0.1
MAX_UNCERTAINTY = 0.6  # standard error of the folds' error, as a share of that error
# share of the targets' variance: below it there is no noise, and rounding decides
NEGLIGIBLE = 1e-3
# Share of the error that another alpha may save, by the errors of rows. A draw is bad
# if it errs by more than 1.1 times the best alpha; half of these are above the limit.
# Of 349 nasty draws of up to 500 rows 53 are above it, with 18 of 37 bad ones; of 280
# draws of 50 to 400 rows of nine real tables 37, with 19 of 39; of 240 smooth ones 34,
# with 17 of 36.
MAX_SAVING = 0.25
# Share of one row in the error. Of 16 nasty draws above it without another warning, all
# have outliers.
MAX_SHARE = 0.9
# share of the targets' variance; without noise a row at the edge errs little
MATERIAL_ERROR = 0.05
MAX_CANCELLING = 20.0  # norm of the coefficients per row, in deviations of the targets
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
    solved: SelectedSolution, *, cancelling: float = 0.0, classes: bool = False
) -> None:
    """Warn if alpha was chosen by errors that may not hold for new rows.

    At the lower end of the range a better alpha may lie below, and near the rounding
    error of Z'Z the coefficients depend on rounding. With a mean leverage near 1 the
    rows are interpolated. Coefficients that cancel one another at the rows, see
    `how_cancelling`, need not do so elsewhere. There is no warning if folds found the
    smallest alpha best for few features of many rows: those need no penalty.

    With `classes` targets of −1 and +1 stand for classes. That another alpha may lower
    their squared error is then no reason to warn, since it says little about predicted
    classes and probabilities.
    """
    if solved.chosen_by == "given":
        return
    floor = solved.solution.floor
    alpha = _smallest_alpha(solved)
    leverage = _mean_leverage(solved, alpha)
    uncertainty = _uncertainty(solved)
    is_at_floor = alpha < 3 * floor
    has_folds = solved.cross_validation is not None
    if is_at_floor and has_folds and leverage < SMALL_LEVERAGE:
        return
    reasons = {
        "it is the smallest value tried, and the best may be smaller": (
            _end_of_grid(solved) == "lower"
        ),
        f"it is near {floor:.2g}, the rounding error of Z'Z, below which coefficients"
        " are chance": is_at_floor,
        f"with {leverage:.0%} as many degrees of freedom as rows the model follows"
        " each of them": leverage > MAX_LEVERAGE,
        f"the cross-validated error is known to {uncertainty:.0%} only, so much do"
        " folds differ": uncertainty > MAX_UNCERTAINTY,
        **_doubts(solved, classes=classes),
        "large coefficients cancel one another at the rows, so that predictions away"
        " from them may be far off": (
            has_folds and leverage > SMALL_LEVERAGE and cancelling > MAX_CANCELLING
        ),
    }
    doubts = [reason for reason, holds in reasons.items() if holds]
    if doubts:
        warn(
            f"alpha={alpha:.3g} was chosen by {solved.chosen_by}, but"
            f" {', and '.join(doubts)}. Ignore this if y has no noise. Otherwise check"
            f" errors on test rows, and give another `alpha` or other"
            " values to choose from, another length scale or number of components, or"
            " more rows",
        )


def _doubts(solved: SelectedSolution, *, classes: bool) -> dict[str, bool]:
    """Return possible doubts about an alpha chosen by leaving rows out: which hold."""
    doubts = solved.doubts
    table = solved.cross_validation
    choice = solved.choice
    if doubts is None or table is None or choice is None:
        return {}
    return {
        "leave-one-out errors do not distinguish it from"
        f" {table.alphas[doubts.other]:.3g}, whose error is {doubts.saved:.0%} ±"
        f" {doubts.saved_at_most - doubts.saved:.0%} lower": (
            not classes
            and doubts.saved > 0.0
            and doubts.saved_at_most > MAX_SAVING
            and choice.score > NEGLIGIBLE
        ),
        f"row {doubts.heaviest_row:,} alone makes {doubts.share:.0%} of the error": (
            doubts.share > MAX_SHARE and choice.score > MATERIAL_ERROR
        ),
    }


def visible_rounding(
    solved: SelectedSolution, spec: specs.StatisticsSpec, deviations: FloatArray
) -> float | None:
    """Return how far rounding to 15 bits moves predictions, in deviations of targets.

    None if the error of the model hides it. A feature is a multiple of 2⁻¹⁴ times its
    factor. Rounding moves it by up to half of that, uniformly, so with a standard
    deviation of that over √12; predictions move by the norm of these deviations times
    the coefficients.
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
    if _mean_leverage(solved, _smallest_alpha(solved)) > INTERPOLATING:
        share = MAX_ROUNDING_OF_ERROR
    if solved.choice is not None:
        return share * math.sqrt(solved.choice.score)
    assert solved.selection is not None
    errors = np.sqrt(solved.selection.score[varying]) / deviations[varying]
    return np.asarray(share * errors)


def warn_of_rounding(solved: SelectedSolution, moved: float) -> None:
    """Warn that rounding moves predictions; see `visible_rounding`."""
    warn(
        f"alpha={_smallest_alpha(solved):.3g} is so small that rounding features to 15"
        f" bits moves predictions by about {moved:.2g} standard deviations of y; fit"
        " with precision='high', or give a larger alpha",
    )


def _uncertainty(solved: SelectedSolution) -> float:
    """Return the standard error of the folds' error as a share of it.

    0 if the error is negligible, or alpha was chosen by leaving out rows one by one.
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


def _smallest_alpha(solved: SelectedSolution) -> float:
    """Return the smallest alpha, but of a constant target, for which any will do."""
    table = solved.cross_validation
    alphas = solved.solution.alpha
    if table is not None and (table.target_variance > 0.0).any():
        alphas = alphas[table.target_variance > 0.0]
    return float(alphas.min())


def gcv_share(solved: SelectedSolution) -> FloatArray:
    """Return the error of new rows over the variance, if all rows are independent.

    Generalised cross-validation of the solution: Golub, Heath & Wahba (1979), eq. 1.4.
    """
    leverage = _mean_leverage(solved, _smallest_alpha(solved))
    return solved.solution.unexplained / max(1.0 - leverage, 1e-3) ** 2


def _mean_leverage(solved: SelectedSolution, alpha: float) -> float:
    """Return degrees of freedom over rows; 0 if alpha was given."""
    table = solved.cross_validation
    choice = solved.choice
    selection = solved.selection
    if table is not None and choice is not None:
        return table.mean_leverage(choice.n_components, alpha)
    if selection is not None:
        degrees = selection.degrees_of_freedom[selection.best_index]
        return float(degrees) / selection.n_samples
    return 0.0


def _end_of_grid(solved: SelectedSolution) -> str | None:
    """Return the end of the alphas tried that the chosen one is at, if any."""
    table = solved.cross_validation
    if table is not None and solved.choice is not None:
        return solved.choice.at_end if len(table.alphas) > 1 else None
    return None if solved.selection is None else solved.selection.at_end
