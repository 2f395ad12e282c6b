"""Solve a model again after rows came or went, or with another alpha.

A model and changed sums of the same features go in; a new model comes out. No row is
read, since the sums are all that ridge regression needs.
"""

from collections.abc import Sequence
from dataclasses import replace

from rff_dist.fitting.options import Alpha, Penalty
from rff_dist.ridge import describe, models, solve
from rff_dist.statistics.ridge_statistics import RidgeStatistics

#: Facts on a card that hold only for the summed rows: about the rows, their errors, and
#: the candidates compared on them. All other facts also hold for changed rows.
_FACTS_OF_ROWS = {
    "data_fingerprint",
    "data_version",
    "data_id",
    "data_table",
    "prefix_fingerprint",
    "rows_per_block",
    "summed_by_folds",
    "n_seen",
    "left_out",
    "merged",
    "window",
    "update",
    "estimate",
    "metrics",
    "candidates",
    "untried",
    "time_limit",
}


def refit(
    model: models.RidgeModel,
    statistics: RidgeStatistics,
    *,
    alpha: Alpha | None,
    alphas: Sequence[float] | None = None,
    fit_intercept: bool = True,
) -> models.RidgeModel:
    """Solve a model again from changed statistics.

    If `alpha` is None, the model keeps its alpha, or its alphas per target. If alpha is
    chosen, `alphas` are the candidates. `fit_intercept` is the caller's, and may differ
    from the model's.

    The model's held-out scores are kept, and the card's `interval_rows`, a text about
    these rows. If rows came, the scores are those of models of fewer rows, so intervals
    err on the wide side; if many rows went, on the narrow side.

    Raises InvalidParameterError if alpha is out of range, or is to be chosen by folds;
    StatisticsError if no rows are left; SolveError if the sums are not finite.
    """
    card = {
        name: value for name, value in model.card.items() if name not in _FACTS_OF_ROWS
    }
    if alpha is None:
        # nothing is chosen, so it costs one factorisation per distinct alpha
        solved = solve.solve_with(statistics, model.alpha, fit_intercept=fit_intercept)
        # kept too, since alpha was chosen by these errors of the old rows
        selection = model.selection
        card["fit_intercept"] = bool(fit_intercept)
    else:
        per_target = model.card.get("alpha_per_target", False)
        penalty = Penalty(alpha, alphas, fit_intercept, per_target)
        solved = solve.solve(statistics, penalty)
        selection = solved.path()
        card |= describe.describe_penalty(penalty)
    refitted = models.RidgeModel.from_solution(
        model.feature_map, statistics, solved.solution, selection, card
    )
    return replace(refitted, held_out=model.held_out)
