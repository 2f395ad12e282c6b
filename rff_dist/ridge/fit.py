"""From a prepared dataset to a model: accumulate → choose alpha → solve → describe.

`ridge.automatic.fit` is the whole job, `ridge.predict` uses the trained model. Each pass goes through
an engine; the rest is arithmetic on what the passes return.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rff_dist.data.blocks import Block
from rff_dist.data.folds import Folds, folds_to_dict
from rff_dist.features.feature_map import FeatureMap
from rff_dist.features.kernel_of import kernel_of, kind_of
from rff_dist.kernels.stationary import Stationary
from rff_dist.ridge.alpha_warnings import how_cancelling, rounding_seen, warn_of_alpha, warn_of_rounding
from rff_dist.ridge.conformal import FoldModels, fold_models
from rff_dist.ridge.describe import describe_choices, describe_cut, describe_dataset, describe_estimate
from rff_dist.ridge.held_out import hold_out_scores, leave_one_out
from rff_dist.ridge.model import RidgeModel
from rff_dist.ridge.options import Alpha, Penalty
from rff_dist.ridge.pcg import solve_pcg, validate_alphas
from rff_dist.ridge.prepare import Prepared
from rff_dist.ridge.solve import Solved, solve, solve_folds, solve_with
from rff_dist.selection.alphas import PerTarget
from rff_dist.selection.cross_validation import CrossValidation
from rff_dist.selection.leave_one_out import select_by_press
from rff_dist.statistics.fold_statistics import FoldStatistics
from rff_dist.statistics.inspection import check_same_rows
from rff_dist.statistics.moments import ColumnMoments
from rff_dist.statistics.passes import accumulate, accumulate_folds
from rff_dist.statistics.ridge_statistics import RidgeStatistics


@dataclass(frozen=True, slots=True)
class Trained:
    """The best of the models that were compared.

    `compared`: every feature map that was trained, at the number of components chosen for it.
    `best_index`: which of them belongs to the model.
    `parts`: the model's statistics fold by fold; None if folds were not summed separately.
    `rounding_seen`: how far rounding features to 15 bits moves predictions; None if that does not show. See
      `alpha_warnings`.
    """

    model: RidgeModel
    compared: tuple[tuple[FeatureMap, Solved], ...]
    best_index: int = 0
    parts: FoldStatistics | None = None
    rounding_seen: float | None = None

    @property
    def best(self) -> Solved:
        return self.compared[self.best_index][1]

    def warn(self, *, classes: bool) -> None:
        """Warn if alpha was chosen by errors that hardly hold for new rows, or if rounding shows.

        `classes`: whether its targets stand for classes.
        """
        statistics = self.model.statistics
        bounded = isinstance(kernel_of(self.model.feature_map), Stationary)
        cancelling = how_cancelling(self.best, statistics) if bounded and statistics is not None else 0.0
        warn_of_alpha(self.best, cancelling=cancelling, classes=classes)
        if self.rounding_seen is not None:
            warn_of_rounding(self.best, self.rounding_seen)


def train(prepared: Prepared, feature_map: FeatureMap, *, penalty: Penalty, n_parts: int = 1) -> Trained:
    """Accumulate the statistics of all rows, and solve; see `solve` and `leave_one_out`.

    `n_parts`: passes, each of which sums up a part of Z'Z.
    """
    dataset, engine = prepared.dataset, prepared.engine
    member = prepared.accumulation(feature_map)
    statistics = accumulate(dataset, feature_map, engine=engine, spec=member.spec, n_parts=n_parts)
    check_same_rows(prepared.moments, statistics.targets, statistics.spec)
    prepared.say("solve", f"D = {feature_map.n_components:,}")
    if penalty.named == "press":
        path = leave_one_out(
            dataset,
            statistics,
            feature_map,
            alphas=penalty.alphas,
            fit_intercept=penalty.fit_intercept,
            engine=engine,
        )
        alpha = select_by_press(path, per_target=penalty.per_target)
        solved = solve_with(statistics, alpha, fit_intercept=penalty.fit_intercept)
        solved = replace(solved, leave_one_out=path)
    else:
        solved = solve(statistics, penalty)
    facts = describe_cut(dataset, statistics)
    model = _model_of(prepared, feature_map, statistics, solved, penalty, facts)
    seen = rounding_seen(solved, statistics.spec, statistics.target_deviations())
    return Trained(model, ((feature_map, solved),), rounding_seen=seen)


def train_without_sums(
    prepared: Prepared, feature_map: FeatureMap, *, penalty: Penalty, folds: Folds | None = None
) -> Trained:
    """Solve by conjugate gradients; the model has no statistics. See `solve_pcg` and `validate_alphas`.

    `folds`: their last split chooses alpha; None if alpha is one number.
    """
    dataset, fit_intercept = prepared.dataset, penalty.fit_intercept
    chosen = choice = None
    alpha: Any = penalty.alpha
    if folds is not None:
        chosen = validate_alphas(
            prepared, feature_map, folds, alphas=penalty.grid, fit_intercept=fit_intercept
        )
        choice = chosen.table.safest(feature_map.n_components)
        if penalty.per_target is not False:
            choice = chosen.table.with_own_alphas(choice, always=penalty.per_target is True)
        alpha = choice.penalty
    found = solve_pcg(prepared, feature_map, alpha=alpha, fit_intercept=fit_intercept, chosen=chosen)
    solved = Solved(found.solution, None, None if chosen is None else chosen.table, choice)
    card = {"n_samples": dataset.n_samples, **_card_of(prepared, solved, penalty)}
    if folds is not None:
        card["folds"] = folds_to_dict(folds)
    model = RidgeModel.without_sums(
        feature_map, found.solution, card, one_dimensional=dataset.one_dimensional, solver=found.facts()
    )
    seen = rounding_seen(solved, found.spec, found.target_deviations)
    model = replace(model, columns=_columns_of(prepared), selection=solved.path())
    return Trained(model, ((feature_map, solved),), rounding_seen=seen)


@dataclass(frozen=True, slots=True)
class Readings:
    """Feature maps to compare, and how they share readings of the data.

    `maps`: the maps of each reading.
    `n_parts`: passes of a reading, each of which sums up a part of Z'Z.
    """

    maps: Sequence[Sequence[FeatureMap]]
    n_parts: int = 1


def train_folds(
    prepared: Prepared,
    readings: Readings,
    *,
    penalty: Penalty,
    folds: Folds,
    widths: Sequence[int] = (),
    by_rows: bool = False,
    table: CrossValidation | None = None,
) -> Trained:
    """Accumulate each fold's statistics, cross-validate, and return the model with the least error.

    `widths`: numbers of components that each map chooses from; see `solve_folds`.
    `by_rows`: whether rows are so few that alpha is chosen by leaving out each; see `solve_folds`.
    `table`: the errors on the folds, if they are known already and there is one map of one width.
    """
    dataset, engine = prepared.dataset, prepared.engine
    rows = dataset.read(Block(0, 0, dataset.n_samples)) if by_rows else None
    compared: list[tuple[FeatureMap, Solved]] = []
    best: tuple[int, RidgeStatistics, FoldStatistics] | None = None
    least = math.inf
    for reading in readings.maps:
        members = [prepared.accumulation(feature_map) for feature_map in reading]
        summed = deque(
            accumulate_folds(dataset, members, folds=folds, engine=engine, n_parts=readings.n_parts)
        )
        check_same_rows(prepared.moments, summed[0].targets(), members[0].spec)  # all share the pass
        for feature_map in reading:  # frees a map's sums before the next table is made
            parts = summed.popleft()
            prepared.say("solve", _words_of_a_table(feature_map, folds, widths))
            chosen, statistics, solved = solve_folds(
                parts, feature_map, penalty, widths, table=table, rows=rows
            )
            assert solved.cross_validation is not None
            score = solved.cross_validation.best.score
            if best is None or score < least:
                best, least = (len(compared), statistics, parts), score
            compared.append((chosen, solved))
            del parts, statistics
    assert best is not None  # there are maps
    best_index, statistics, parts = best
    feature_map, solved = compared[best_index]
    facts = {"folds": folds_to_dict(folds), **describe_cut(dataset, statistics, folds)}
    model = _model_of(prepared, feature_map, statistics, solved, penalty, facts)
    parts = parts.leading(
        feature_map.n_components, feature_digest=feature_map.digest(), scales=feature_map.scales
    )
    seen = rounding_seen(solved, statistics.spec, statistics.target_deviations())
    return Trained(model, tuple(compared), best_index, parts, seen)


def fold_models_of(trained: Trained) -> FoldModels:
    """Solve the model without each fold, at the alpha of all rows; see `fold_models`."""
    assert trained.parts is not None
    feature_map, solved = trained.compared[trained.best_index]
    fit_intercept = trained.model.card["fit_intercept"]
    return fold_models(trained.parts, feature_map, alpha=solved.solution.alpha, fit_intercept=fit_intercept)


def with_held_out_scores(
    trained: Trained, prepared: Prepared, penalty: Penalty, *, normalized: bool
) -> Trained:
    """Count in one more pass how far off held-out rows are, for conformal intervals; see `hold_out_scores`.

    `trained`: from `train_folds` with the same penalty.
    """
    assert trained.parts is not None
    held_out = hold_out_scores(
        prepared.dataset,
        trained.parts,
        trained.model.feature_map,
        alpha=trained.best.solution.alpha,
        fit_intercept=penalty.fit_intercept,
        normalized=normalized,
        engine=prepared.engine,
    )
    return replace(trained, model=replace(trained.model, held_out=held_out))


def _words_of_a_table(feature_map: FeatureMap, folds: Folds, widths: Sequence[int]) -> str:
    several = ", ".join(f"{width:,}" for width in sorted({*widths, feature_map.n_components}))
    return f"{kind_of(feature_map)} features, D = {several}, {len(folds.splits)} folds"


def _model_of(
    prepared: Prepared,
    feature_map: FeatureMap,
    statistics: RidgeStatistics,
    solved: Solved,
    penalty: Penalty,
    facts: Mapping[str, Any],
) -> RidgeModel:
    model = RidgeModel.from_solution(
        feature_map,
        statistics,
        solved.solution,
        solved.path(),
        {**_card_of(prepared, solved, penalty), **facts},
    )
    return replace(model, columns=_columns_of(prepared))


def _card_of(prepared: Prepared, solved: Solved, penalty: Penalty) -> dict[str, Any]:
    return {
        **describe_dataset(prepared.dataset),
        **describe_choices(penalty),
        **({} if penalty.alphas is None else {"alphas": [float(one) for one in penalty.alphas]}),
        "standardize": prepared.standardize,
        "chosen_by": solved.chosen_by,
        "estimate": describe_estimate(solved),
        "sample_weight_kind": prepared.sample_weight_kind,
    }


def _columns_of(prepared: Prepared) -> ColumnMoments:
    return ColumnMoments.of(prepared.moments, frequency_weights=prepared.frequency_weights)


def refit(
    model: RidgeModel,
    statistics: RidgeStatistics,
    *,
    alpha: Alpha | None,
    alphas: Sequence[float] | None = None,
    fit_intercept: bool = True,
) -> RidgeModel:
    """Solve a model again from changed statistics of the same features; see `solve`.

    None keeps the model's own alpha, or alphas. Held-out scores are kept: they come from fits of fewer rows,
    so that intervals err on the wide side.
    """
    per_target: PerTarget = model.card.get("alpha_per_target", False)
    if alpha is None:
        # a list of alphas, one for each target, would be taken for values to choose from
        given = model.alpha if isinstance(model.alpha, float) else model.card.get("alpha_given", "cv")
        penalty = Penalty(given, None, fit_intercept, per_target)
        solved = solve_with(statistics, model.alpha, fit_intercept=fit_intercept)
    else:
        penalty = Penalty(alpha, alphas, fit_intercept, per_target)
        solved = solve(statistics, penalty)
    names = ("feature_names", "target_names", "folds", "standardize", "chosen_by", "sample_weight_kind")
    kept = {name: model.card[name] for name in names if name in model.card}
    again = RidgeModel.from_solution(
        model.feature_map,
        statistics,
        solved.solution,
        solved.path() or model.selection,
        {**kept, **describe_choices(penalty)},
    )
    return replace(again, held_out=model.held_out)
