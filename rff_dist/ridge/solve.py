"""Coefficients from statistics alone, with the alpha that GCV, the evidence or the folds choose."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.data import blocks
from rff_dist.errors import InvalidParameterError, SolveError
from rff_dist.features import draw
from rff_dist.features.maps import FeatureMap
from rff_dist.fitting import options
from rff_dist.numerics import cholesky, eigen
from rff_dist.numerics.solution import RidgeSolution
from rff_dist.products import protocol
from rff_dist.selection import gcv, row_folds
from rff_dist.selection.cross_validation import AS_GOOD, Choice, CrossValidation, cross_validate
from rff_dist.statistics import fold_statistics, specs
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.typing import AnyArray, FloatArray, frozen


@frozen
class Solved:
    """Coefficients, and the errors that alpha was chosen by, if it was chosen.

    `selection`: the path of alpha by GCV or the evidence on all rows.
    `cross_validation`: the table of k-fold errors.
    `choice`: the entry of that table that was taken.
    `doubts`: reasons to doubt an alpha that was chosen by leaving out each of few rows.
    """

    solution: RidgeSolution
    selection: gcv.Selection | None
    cross_validation: CrossValidation | None = None
    choice: Choice | None = None
    doubts: row_folds.Doubts | None = None

    def path(self) -> dict[str, AnyArray]:
        """Return the table of folds, or the path on all rows, that alpha was chosen from, as named arrays."""
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
) -> tuple[FeatureMap, RidgeStatistics, Solved]:
    """Choose alpha and the number of components by k-fold cross-validation, and solve on all rows.

    O(n_splits · n_components³) for the table of all folds, alphas, widths and targets; no data are read.

    `statistics`: those of `feature_map`.
    `penalty`: "cv" takes the largest alpha that is as good as the best of `alpha_grid`, see
      `CrossValidation.safest`; "cv-1se" the largest within one standard error of it. Targets may have alphas
      of their own, see `CrossValidation.with_own_alphas`.
    `n_components`: widths to look at, besides the map's own, which is the largest. The smallest whose least
      error is within one standard error of the least of all is taken.
    `table`: the errors on the folds, if they were found from the rows themselves.
    `rows`: all rows, if they are so few that alpha is chosen by leaving out each; see `choose_by_rows`. The
      folds still choose kernels and estimate errors of new rows, since some of the rows that are left out
      tuned the length scales.
    Returns `feature_map`: at the width that was chosen; `statistics`: of all rows, in it.
    Raises InvalidParameterError if alpha is not above 0, or the map has no smaller draws; StatisticsError if
      a fold has no rows.
    """
    whole, fit_intercept, grid = feature_map.n_components, penalty.fit_intercept, penalty.grid
    widths = sorted({*(n for n in n_components if n < whole), whole})
    maps = [draw.shortened(feature_map, width) for width in widths]
    if table is None:
        table = cross_validate(statistics, alphas=grid, feature_maps=maps, fit_intercept=fit_intercept)
    elif grid is None:  # rows resolve smaller alphas than sums do
        equations = statistics.total().normal_equations(fit_intercept=fit_intercept)
        table = table.from_alpha(equations.floor())
    table = replace(table, folds=statistics.folds)
    best = table.fewest_components() if len(widths) > 1 else table.best
    choice = choose_alpha(table, best.n_components, penalty)
    chosen = maps[widths.index(choice.n_components)]
    total = statistics.total()
    if chosen is not feature_map:
        total = total.leading(chosen.n_components, feature_digest=chosen.digest(), scales=chosen.scales)
    doubts = None
    if rows is not None:
        assert rows.y is not None
        Z, repeated = chosen.transform(rows.X), total.spec.frequency_weights
        squares = row_folds.leave_out_each(
            Z, rows.y, rows.sample_weight, table.alphas, fit_intercept=fit_intercept, repeated=repeated
        )
        by_rows = row_folds.choose_by_rows(
            squares, rows.weights, table.target_variance, per_target=penalty.per_target, repeated=repeated
        )
        if by_rows is not None:  # leaving out each row decides
            choice, doubts = table.choice_at(choice.n_components, by_rows[0]), by_rows[1]
    solved = solve_with(total, choice.penalty, fit_intercept=fit_intercept)
    return chosen, total, replace(solved, cross_validation=table, choice=choice, doubts=doubts)


def choose_alpha(table: CrossValidation, n_components: int, penalty: options.Penalty) -> Choice:
    """Choose an alpha of one width by the errors of folds, or one for each target; see `solve_folds`."""
    one_standard_error = penalty.named == "cv-1se"
    choice = (table.one_standard_error if one_standard_error else table.safest)(n_components)
    if penalty.per_target is False or options.is_one_alpha(penalty.alpha):
        return choice
    slack = 1.0 if one_standard_error else AS_GOOD
    return table.with_own_alphas(choice, always=penalty.per_target is True, standard_errors=slack)


def solve(statistics: RidgeStatistics, penalty: options.Penalty) -> Solved:
    """Solve ridge regression from its statistics alone, O(n_components³).

    "gcv" and "evidence" search `alpha_grid`; among several given alphas the least GCV decides. See
    `select_alpha` for targets with alphas of their own.

    Raises InvalidParameterError if alpha is to be chosen by errors that these statistics do not hold.
    """
    if penalty.named not in (None, "gcv", "evidence"):
        raise InvalidParameterError(
            f"`alpha` is {penalty.alpha!r}, which needs the sums of each fold: see `solve_folds`"
        )
    if options.is_one_alpha(penalty.alpha):
        return solve_with(statistics, cast("float", penalty.alpha), fit_intercept=penalty.fit_intercept)
    spectrum = eigen.decompose(statistics.normal_equations(fit_intercept=penalty.fit_intercept))
    criterion: gcv.Criterion = "evidence" if penalty.named == "evidence" else "gcv"
    selection = gcv.select_alpha(spectrum, penalty.grid, criterion=criterion, per_target=penalty.per_target)
    return Solved(spectrum.solve(selection.penalty), selection)


def solve_with(statistics: RidgeStatistics, alpha: ArrayLike, *, fit_intercept: bool) -> Solved:
    """`sklearn.linear_model.Ridge(alpha).fit(Z, y)` from statistics; one alpha, or one of each target."""
    equations = statistics.normal_equations(fit_intercept=fit_intercept)
    try:
        return Solved(cholesky.solve_cholesky(equations, np.asarray(alpha), overwrite_gram=True), None)
    except SolveError:
        # Extreme weights may make rounding larger than its estimate; eigenvalues show it, and warn.
        equations = statistics.normal_equations(fit_intercept=fit_intercept)
        return Solved(eigen.decompose(equations).solve(np.asarray(alpha)), None)


# -- warnings if alpha was chosen by errors that may not hold for new rows --------------------------


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
# percent: five real sets, alphas from 1e-9 to 0.01, benchmarks/fifteen_bits_lose_nothing.py. Rows that
# are not interpolated tolerate more.
MAX_ROUNDING_OF_TRAINING = 0.02
MAX_ROUNDING_OF_ERROR = 0.01
MAX_ROUNDING_OF_MANY_ROWS = 0.1
INTERPOLATING = 0.5  # mean leverage
NEGLIGIBLE_ROUNDING = 5e-4  # deviations of the targets


def warn_of_alpha(solved: Solved, *, cancelling: float = 0.0, classes: bool = False) -> None:
    """Warn if alpha was chosen by errors that may not hold for new rows.

    At the lower end of the range a better alpha may lie below, and near the rounding error of Z'Z the
    coefficients depend on rounding. With a mean leverage near 1 the rows are interpolated. Coefficients that
    cancel one another at the rows, see `how_cancelling`, need not do so elsewhere. There is no warning if
    folds found the smallest alpha best for few features of many rows: those need no penalty.

    `classes`: whether targets of −1 and +1 stand for classes. That another alpha may lower their squared
      error is then no reason to warn, since it says little about predicted classes and probabilities.
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
    doubts = [reason for reason, holds in reasons.items() if holds]
    if doubts:
        warnings.warn(
            f"alpha={alpha:.3g} was chosen by {solved.chosen_by}, but {', and '.join(doubts)}. Without noise "
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


def rounding_seen(solved: Solved, spec: specs.StatisticsSpec, deviations: FloatArray) -> float | None:
    """Return how far rounding features to 15 bits moves predictions, in the targets' standard deviations.

    None if the error of the model hides it. Rounding moves a feature by up to half of 1/16,256, uniformly, so
    that its standard deviation is the feature's scale times 1/16,256/√12; predictions move by that times the
    norm of the coefficients.

    `deviations`: of the targets.
    """
    if not spec.fixed_point:
        return None
    spread = 2.0**-protocol.FIXED_POINT_BITS * spec.factors[:, np.newaxis] * solved.solution.coefficients
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
    table, alphas = solved.cross_validation, solved.solution.alpha
    varying = alphas if table is None else alphas[table.target_variance > 0.0]
    return float((varying if len(varying) else alphas).min())


def gcv_share(solved: Solved) -> FloatArray:
    """Return the error of new rows if all rows were independent, as a share of each target's variance.

    Generalised cross-validation of the solution: Golub, Heath & Wahba (1979), eq. 1.4.
    """
    leverage, _ = _mean_leverage(solved, _least_alpha(solved))
    return solved.solution.unexplained / max(1.0 - leverage, 1e-3) ** 2


def _mean_leverage(solved: Solved, alpha: float) -> tuple[float, str | None]:
    """Return degrees of freedom over rows, and the end of its range that alpha is at, if any."""
    table, choice, selection = solved.cross_validation, solved.choice, solved.selection
    if table is not None and choice is not None:
        mean = table.mean_leverage(choice.n_components, alpha)
        return mean, choice.at_end if len(table.alphas) > 1 else None
    if selection is not None:
        degrees = selection.degrees_of_freedom[selection.best_index]
        return float(degrees) / selection.n_samples, selection.at_end
    return 0.0, None
