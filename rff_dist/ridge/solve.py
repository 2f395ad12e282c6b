"""Coefficients from statistics alone, with the alpha that GCV, the evidence or the folds choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rff_dist.data.blocks import Rows
from rff_dist.errors import InvalidParameterError
from rff_dist.features.draw import shortened
from rff_dist.features.feature_map import FeatureMap
from rff_dist.numerics.cholesky import solve_cholesky
from rff_dist.numerics.eigen import decompose
from rff_dist.numerics.solution import RidgeSolution
from rff_dist.ridge.options import Penalty, is_one_alpha
from rff_dist.selection.cross_validation import AS_GOOD, Choice, CrossValidation, cross_validate
from rff_dist.selection.few_rows import Doubts, choose_by_rows
from rff_dist.selection.gcv import Selection, select_alpha
from rff_dist.selection.leave_one_out import LeaveOneOut
from rff_dist.selection.row_folds import leave_out_each
from rff_dist.statistics.fold_statistics import FoldStatistics
from rff_dist.statistics.reading import gram_error_of
from rff_dist.statistics.ridge_statistics import RidgeStatistics


@dataclass(frozen=True, slots=True)
class Solved:
    """Coefficients, and the errors that alpha was chosen by, if it was chosen.

    `selection`: the path of alpha by GCV or the evidence on all rows.
    `cross_validation`: the table of k-fold errors.
    `choice`: the entry of that table that was taken.
    `leave_one_out`: the path of alpha by PRESS.
    `doubts`: what speaks against an alpha that was chosen by leaving out each of few rows.
    """

    solution: RidgeSolution
    selection: Selection | None
    cross_validation: CrossValidation | None = None
    choice: Choice | None = None
    leave_one_out: LeaveOneOut | None = None
    doubts: Doubts | None = None

    def path(self) -> dict[str, NDArray[Any]]:
        """Return the table of folds, or the path on all rows, that alpha was chosen from, as named arrays."""
        paths = (self.cross_validation, self.leave_one_out, self.selection)
        return next((path.to_arrays() for path in paths if path is not None), {})

    @property
    def chosen_by(self) -> str:
        """How alpha was chosen: "cv", "press", "gcv", "evidence" or "given"."""
        if self.doubts is not None:
            return "press"
        if self.cross_validation is not None:
            return "cv" if len(self.cross_validation.alphas) > 1 else "given"
        if self.leave_one_out is not None:
            return "press"
        return "given" if self.selection is None else self.selection.criterion


def solve_folds(
    statistics: FoldStatistics,
    feature_map: FeatureMap,
    penalty: Penalty,
    n_components: Sequence[int] = (),
    *,
    table: CrossValidation | None = None,
    rows: Rows | None = None,
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
    whole, fit_intercept = feature_map.n_components, penalty.fit_intercept
    widths = sorted({*(n for n in n_components if n < whole), whole})
    maps = [shortened(feature_map, width) for width in widths]
    if table is None:
        table = cross_validate(
            statistics, alphas=penalty.grid, feature_maps=maps, fit_intercept=fit_intercept
        )
    elif penalty.grid is None:  # rows resolve smaller alphas than sums do
        table = table.from_alpha(gram_error_of(statistics.total()))
    table = replace(table, folds=statistics.folds)
    one_standard_error = penalty.named == "cv-1se"
    choice = table.fewest_components() if len(widths) > 1 else table.best
    find = table.one_standard_error if one_standard_error else table.safest
    choice = find(choice.n_components)
    if penalty.per_target is not False and not is_one_alpha(penalty.alpha):
        choice = table.with_own_alphas(
            choice, always=penalty.per_target is True, standard_errors=1.0 if one_standard_error else AS_GOOD
        )
    chosen = maps[widths.index(choice.n_components)]
    total = statistics.total()
    if chosen is not feature_map:
        total = total.leading(chosen.n_components, feature_digest=chosen.digest(), scales=chosen.scales)
    doubts = None
    if rows is not None:
        repeated = total.spec.frequency_weights
        choice, doubts = _leave_out_each(rows, chosen, table, choice, penalty, repeated=repeated)
    solved = solve_with(total, choice.penalty, fit_intercept=fit_intercept)
    return chosen, total, replace(solved, cross_validation=table, choice=choice, doubts=doubts)


def _leave_out_each(
    rows: Rows,
    feature_map: FeatureMap,
    table: CrossValidation,
    choice: Choice,
    penalty: Penalty,
    *,
    repeated: bool,
) -> tuple[Choice, Doubts | None]:
    """Choose again among a table's alphas, by leaving out each row; keep the choice if that cannot tell."""
    assert rows.y is not None
    squares = leave_out_each(
        feature_map.transform(rows.X),
        rows.y,
        rows.sample_weight,
        table.alphas,
        fit_intercept=penalty.fit_intercept,
        repeated=repeated,
    )
    weights = np.ones(rows.block.n_samples) if rows.sample_weight is None else rows.sample_weight
    found = choose_by_rows(
        squares, weights, table.target_variance, per_target=penalty.per_target, repeated=repeated
    )
    if found is None:
        return choice, None
    places, doubts = found
    return table.choice_at(choice.n_components, places), doubts


def solve(statistics: RidgeStatistics, penalty: Penalty) -> Solved:
    """Solve ridge regression from its statistics alone, O(n_components³).

    "gcv" and "evidence" search `alpha_grid`; among several given alphas the least GCV decides. See
    `select_alpha` for targets with alphas of their own.

    Raises InvalidParameterError if alpha is to be chosen by errors that these statistics do not hold.
    """
    if penalty.named not in (None, "gcv", "evidence"):
        raise InvalidParameterError(
            f"`alpha` is {penalty.alpha!r}, which needs more than the sums of all rows: the sums of each "
            "fold (`solve_folds`) or another pass (`leave_one_out`)"
        )
    if is_one_alpha(penalty.alpha):
        return solve_with(statistics, cast("float", penalty.alpha), fit_intercept=penalty.fit_intercept)
    spectrum = decompose(statistics.normal_equations(fit_intercept=penalty.fit_intercept))
    selection = select_alpha(
        spectrum,
        penalty.grid,
        criterion="evidence" if penalty.named == "evidence" else "gcv",
        per_target=penalty.per_target,
    )
    return Solved(spectrum.solve(selection.penalty), selection)


def solve_with(statistics: RidgeStatistics, alpha: ArrayLike, *, fit_intercept: bool) -> Solved:
    """Solve for one alpha, or for one of each target."""
    equations = statistics.normal_equations(fit_intercept=fit_intercept)
    return Solved(solve_cholesky(equations, np.asarray(alpha), overwrite_gram=True), None)
