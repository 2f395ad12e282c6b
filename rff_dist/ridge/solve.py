"""Solve ridge regression from sums alone, and choose alpha.

Exact sums of all rows, or of each fold, and a penalty go in; coefficients come out,
with the errors that chose alpha. Alpha is a given number, or chosen by
generalised cross-validation (GCV), the evidence, folds, or few rows left out one by
one. No data are read, except these few rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.data import blocks
from rff_dist.errors import InvalidParameterError, SolveError
from rff_dist.features import draw
from rff_dist.features.maps import FeatureMap
from rff_dist.fitting import options
from rff_dist.numerics import cholesky, eigen
from rff_dist.numerics.solution import RidgeSolution
from rff_dist.selection import gcv, row_folds
from rff_dist.selection.cross_validation import cross_validate
from rff_dist.selection.error_table import AlphaRule, Choice, CrossValidation
from rff_dist.statistics import fold_statistics, specs
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.typing import AnyArray, FloatArray, IndexArray, frozen


@frozen
class SelectedSolution:
    """Coefficients, and the errors that alpha was chosen by, if it was chosen."""

    solution: RidgeSolution
    #: The path of alpha by GCV or the evidence on all rows.
    selection: gcv.Selection | None
    #: The table of k-fold errors, and the entry that was taken.
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

    @property
    def alpha_at_end(self) -> Literal["lower", "upper"] | None:
        """The end of the alphas tried that the chosen one is at, if any."""
        table = self.cross_validation
        if table is not None and self.choice is not None:
            return self.choice.at_end if len(table.alphas) > 1 else None
        return None if self.selection is None else self.selection.at_end

    @property
    def smallest_alpha(self) -> float:
        """The smallest alpha of a target that varies; a constant one takes any."""
        table = self.cross_validation
        alphas = self.solution.alpha
        if table is not None and (table.target_variance > 0.0).any():
            alphas = alphas[table.target_variance > 0.0]
        return float(alphas.min())

    @property
    def mean_leverage(self) -> float:
        """Degrees of freedom over rows at the smallest alpha; 0 if that was given."""
        table = self.cross_validation
        if table is not None and self.choice is not None:
            return table.mean_leverage(self.choice.n_components, self.smallest_alpha)
        if self.selection is not None:
            degrees = self.selection.degrees_of_freedom[self.selection.best_index]
            return float(degrees) / self.selection.n_samples
        return 0.0

    @property
    def gcv_share(self) -> FloatArray:
        """The error of new rows over the variance, if all rows are independent.

        Generalised cross-validation of the solution: Golub, Heath & Wahba (1979), eq.
        1.4.
        """
        unseen = max(1.0 - self.mean_leverage, 1e-3)
        return self.solution.unexplained / unseen**2


def solve_folds(
    statistics: fold_statistics.FoldStatistics,
    feature_map: FeatureMap,
    penalty: options.Penalty,
    n_components: Sequence[int],
    *,
    table: CrossValidation | None,
    rows: blocks.Rows | None,
) -> tuple[FeatureMap, RidgeStatistics, SelectedSolution]:
    """Choose alpha and the number of components by folds, and solve on all rows.

    The table of all folds, alphas, numbers of components and targets takes O(n_splits ·
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
        Numbers to try, with the map's own, which is the largest. The smallest whose
        error is within one standard error of the smallest error is taken.
    table : CrossValidation, optional
        The errors on the folds, if they were computed from the rows themselves.
    rows : Rows, optional
        All rows, if they are so few that leaving out each one chooses alpha; see
        `choose_by_rows`. The folds still choose kernels and estimate errors of new
        rows, because some of the rows left out here have tuned the length scales.

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
    smaller = {count for count in n_components if count < largest}
    component_counts = sorted({largest, *smaller})
    maps = [draw.shortened(feature_map, count) for count in component_counts]
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
    best = table.fewest_components() if len(component_counts) > 1 else table.best
    choice = choose_alpha(table, best.n_components, penalty)
    shortened = maps[component_counts.index(choice.n_components)]
    total = statistics.total()
    if shortened is not feature_map:
        total = total.leading(shortened)
    doubts = None
    if rows is not None:
        by_rows = _choose_by_rows(rows, shortened, table, penalty, total.spec)
        if by_rows is not None:
            alphas, doubts = by_rows
            choice = table.choice_at(choice.n_components, alphas)
    solved = solve_with(total, choice.penalty, fit_intercept=fit_intercept)
    solved = replace(solved, cross_validation=table, choice=choice, doubts=doubts)
    return shortened, total, solved


def _choose_by_rows(
    rows: blocks.Rows,
    feature_map: FeatureMap,
    table: CrossValidation,
    penalty: options.Penalty,
    spec: specs.StatisticsSpec,
) -> tuple[IndexArray, row_folds.Doubts] | None:
    """Choose among the table's alphas by leaving out each row in turn."""
    assert rows.y is not None
    # rows without weight may hold numbers of which no features can be made
    is_counted = rows.weights > 0
    X = np.where(is_counted[:, np.newaxis], rows.X, rows.X[is_counted.argmax()])
    squares = row_folds.leave_out_each(
        feature_map.transform(X),
        rows.y,
        rows.sample_weight,
        table.alphas,
        fit_intercept=penalty.fit_intercept,
        frequency_weights=spec.frequency_weights,
    )
    return row_folds.choose_by_rows(
        squares,
        rows.weights,
        table.target_variance,
        per_target=penalty.per_target,
        frequency_weights=spec.frequency_weights,
    )


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

    Raises InvalidParameterError if alpha is to be chosen by folds, which needs the sums
    of each; and as `solve_with`.
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

    Alpha is one number, or one for each target. Raises StatisticsError if no rows with
    weight were summed; SolveError if sums are not finite, or eigenvalues do not
    converge.
    """
    alpha = np.asarray(alpha)
    equations = statistics.normal_equations(fit_intercept=fit_intercept)
    try:
        solution = cholesky.solve_cholesky(equations, alpha, overwrite_gram=True)
    except SolveError:
        # Extreme weights may make rounding larger than its estimate, the floor. The
        # solution by eigenvalues shows it, and warns.
        equations = statistics.normal_equations(fit_intercept=fit_intercept)
        solution = eigen.decompose(equations).solve(alpha)
    return SelectedSolution(solution, None)
