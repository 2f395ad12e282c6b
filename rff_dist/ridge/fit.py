"""The main job: random features of all rows, Z'Z and Z'y, and ridge regression by them.

`fit` is the job line by line; what follows it are its steps. Each pass goes through an engine, the rest is
arithmetic on what the passes return. `ridge.predict` uses the trained model.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rff_dist.data import blocks, folding, labelled
from rff_dist.engines.protocol import Broadcast, Engine
from rff_dist.features import draw, kinds
from rff_dist.features.maps import FeatureMap
from rff_dist.fitting import parameters
from rff_dist.fitting.options import Alpha, Penalty, RidgeOptions
from rff_dist.fitting.plan import Machines, check_solver_plan, plan_readings
from rff_dist.fitting.prepare import Prepared, describe_dataset, prepare
from rff_dist.kernels.stationary import Stationary
from rff_dist.ridge import describe, first_round, models, pcg, solve
from rff_dist.ridge import held_out as conformal
from rff_dist.ridge.budget import Budget
from rff_dist.ridge.candidates import Candidate, Draws, check_candidates, draw_candidates
from rff_dist.ridge.choices import EXACT_ROWS, Choices, choices_of, has_groups, prepare_folds
from rff_dist.selection.cross_validation import CrossValidation, cross_validate
from rff_dist.statistics import fold_statistics, inspection, moments, passes
from rff_dist.statistics.accumulate import Accumulations
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.text import human_bytes, short_repr
from rff_dist.typing import Do, Facts, Summary, frozen, plainly

logger = logging.getLogger(__name__)


def fit(
    dataset: blocks.Dataset,
    options: RidgeOptions,
    *,
    candidates: Sequence[Candidate] | None = None,
    choices: Choices | None = None,
    engine: Engine,
    do: Do = plainly,
) -> Trained:
    """Train ridge regression on random features; cross-validation chooses what the options leave open.

    Takes O(n_samples · n_components²) operations in a pass over all rows, and O(n_components³) to solve.

    `dataset`: with targets, and with groups if the folds are of groups.
    `candidates`: replace the kernel and length scale of the options. All meet on all rows with all
      components, the first of equal ones wins, and "auto" alpha is "cv"; if several numbers of components are
      given, each takes the smallest within one standard error of its best.
    `choices`: those of `choices_of`, if they are made already.
    `do`: calls the steps.
    Raises InvalidParameterError if a parameter is out of range; PlanError if memory is too small;
      StatisticsError if a fold has no rows.
    """
    if choices is None:
        if candidates is not None:
            check_candidates(candidates, dataset, options)
        choices = choices_of(dataset, options, machines=Machines.of(engine), candidates=candidates)
    budget = Budget(choices.options.time_limit)
    # mean and deviation of each column
    prepared, choices = do("measure", measure, dataset, choices, engine=engine)
    budget.reading = budget.spent()
    # a kernel and its length scales, or the best few: from a sample of rows
    draws = Draws(prepared, choices.options, folds=choices.by, tuning=choices.tuning)
    chosen = do("choose", first_round.choose, prepared, draws, choices, budget)
    choices = replace(choices, widths=chosen.widths)
    for final in choices.finals(len(chosen.candidates)):  # several finalists meet with half of the components
        # W and b, such that Z = √(2/D) · cos(X W + b)
        maps = do("draw", draw_candidates, draws, chosen.candidates, final.widths)
        readings = share_out(prepared, final, maps, chosen.tables)
        if readings is None:  # by conjugate gradients, in passes of Z'(Zv)
            trained = fit_without_sums(prepared, maps[0], choices, do)
            return conclude(trained, prepared, choices, chosen, budget)
        compared = Compared(readings)
        while (reading := compared.following(final.options)) is not None:
            # W and b to every worker
            shared = do("broadcast", broadcast, prepared, reading, choices.folds)
            # Z'Z and Z'y, of each fold
            sums = do("accumulate", accumulate, prepared, shared)
            # a map's sums are freed before those of the next are solved
            for feature_map, table in zip(reading.maps, reading.tables, strict=True):
                # alpha by the folds, and w of (Z'Z + alpha·I) w = Z'y
                solved = do("solve", solve_sums, prepared, feature_map, sums.popleft(), final, table)
                compared.add(solved)
        if final is choices or (choices.options.n_components == "auto" and compared.settled(choices.penalty)):
            break
        chosen = compared.best_of(prepared, chosen)
    trained = compared.trained(prepared, choices)
    if choices.options.conformal:
        trained = do("hold out", with_held_out_scores, trained, prepared, choices)
    return conclude(trained, prepared, choices, chosen, budget)


@frozen(eq=False)
class Trained:
    """The best of the models that were compared.

    `model`: trained on all rows. Its card lists all `candidates` that were tried.
    `compared`: every feature map that was trained, at the number of components chosen for it.
    `best_index`: which of them belongs to the model.
    `parts`: the model's statistics fold by fold; None if folds were not summed separately.
    `rounding_seen`: how far rounding features to 15 bits moves predictions; None if negligible. See
      `solve.rounding_seen`.
    `rows`: the results of all candidates that were tried, the trained ones first; none if nothing was chosen.
      Of given candidates see `compare_rows`.
    `n_readings`: how many times the data were read for statistics; 1 if memory holds those of all candidates.
    """

    model: models.RidgeModel
    compared: tuple[tuple[FeatureMap, solve.Solved], ...]
    best_index: int = 0
    parts: fold_statistics.FoldStatistics | None = None
    rounding_seen: float | None = None
    rows: tuple[describe.Row, ...] = ()
    n_readings: int = 1

    __repr__ = short_repr

    @property
    def solved(self) -> solve.Solved:
        """How the model was solved: status, errors, and the alpha taken from them."""
        return self.compared[self.best_index][1]

    @property
    def best(self) -> describe.Row:
        """The result of the best candidate."""
        return self.rows[self.best_index]


# -- its steps -------------------------------------------------------------------------------------


def measure(dataset: blocks.Dataset, choices: Choices, *, engine: Engine) -> tuple[Prepared, Choices]:
    """Measure the columns in a cheap pass, and balance folds of groups in another; see `prepare`."""
    if choices.by is not None:
        by = prepare_folds(dataset, choices.by, engine=engine)
        choices = replace(choices, by=by, folds=None if choices.folds is None else by)
    options = choices.options
    prepared = prepare(
        dataset, standardize=options.standardize, sample_weight_kind=options.sample_weight_kind, engine=engine
    )
    if choices.by is not None and dataset.n_targets and dataset.n_samples <= EXACT_ROWS:
        by_rows = not (isinstance(options.cv, folding.Folds) or has_groups(dataset))
        inspection.warn_of_few_rows(dataset, copies=by_rows)
    return prepared, choices


@frozen
class Reading:
    """Feature maps whose sums one reading of the data makes.

    `n_parts`: passes of the reading, each of which sums up a part of Z'Z.
    `tables`: the maps' errors on the folds, where they are known already.
    """

    maps: Sequence[FeatureMap]
    tables: Sequence[CrossValidation | None]
    n_parts: int = 1


def share_out(
    prepared: Prepared, choices: Choices, maps: Sequence[FeatureMap], tables: Sequence[CrossValidation | None]
) -> list[Reading] | None:
    """Return the readings that memory allows; None if conjugate gradients solve without any sums."""
    dataset, engine, options, folds = prepared.dataset, prepared.engine, choices.options, choices.folds
    plan = choices.plan
    if folds is None or options.solver == "pcg":
        (feature_map,) = maps
        if feature_map.n_components != plan.n_components:  # such as that of a linear kernel
            plan = check_solver_plan(dataset, feature_map.n_components, options, machines=Machines.of(engine))
        if plan.solver == "pcg":
            prepared.say("solve", f"by conjugate gradients: {plan.reason}")
            logger.info("solving by conjugate gradients: %s", plan.reason)
            return None
    if len(maps) == 1:
        return [Reading(maps, tables, plan.n_parts)]
    assert folds is not None  # several are compared by them
    width, kind = choices.widths[-1], options.kinds[-1]
    at_once, n_parts = plan_readings(
        dataset, width, len(maps), engine=engine, n_folds=folds.n_folds, features=kind
    )
    batches = zip(itertools.batched(maps, at_once), itertools.batched(tables, at_once), strict=True)
    return [Reading(batch, known, n_parts) for batch, known in batches]


def broadcast(prepared: Prepared, reading: Reading, folds: folding.Folds | None) -> Broadcast[Accumulations]:
    """Give every worker the features of a reading, and check that each has drawn the same.

    Features without a bound, such as linear ones, take their grid from a first pass.
    """
    engine, members = prepared.engine, tuple(map(prepared.accumulation, reading.maps))
    for feature_map in reading.maps:
        where = "in this process"
        if not engine.in_process:
            import cloudpickle  # type: ignore[import-untyped]  # which Dask has loaded

            # a seed and parameters travel, or the centres of Nyström features
            size = human_bytes(len(cloudpickle.dumps(feature_map)))
            where = f"{size} to each of {engine.n_workers} workers"
        drawn = {"fourier": "W and b", "nystrom": "centres"}
        what = drawn.get(feature_map.kind, "features")  # a linear kernel draws nothing
        digest = feature_map.digest()[:16]
        prepared.say("broadcast", f"{what} of D = {feature_map.n_components:,}, digest {digest}, {where}")
    state = Accumulations(members, folds, prepared.dataset.n_samples)
    return engine.broadcast(state.of_part((0, reading.n_parts)))


def accumulate(prepared: Prepared, shared: Broadcast[Accumulations]) -> deque[passes.Sums]:
    """Sum up Z'Z and Z'y of all rows, or of each fold, for each map that was broadcast."""
    summed = passes.accumulate_shared(prepared.dataset, shared, engine=prepared.engine)
    # all maps share the pass
    inspection.check_same_rows(prepared.moments, summed[0].targets, shared.state.members[0].spec)
    return deque(summed)


@frozen
class Fitted:
    """A feature map with its solution, and the sums that this was solved from.

    `drawn`: the map with all components; `feature_map` has those that were chosen.
    `parts`: the sums of each fold, in the drawn map; None without folds.
    """

    drawn: FeatureMap
    feature_map: FeatureMap
    solved: solve.Solved
    statistics: RidgeStatistics
    parts: fold_statistics.FoldStatistics | None = None

    @property
    def score(self) -> float:
        """The error on the folds; 0 without folds, where nothing is compared."""
        table = self.solved.cross_validation
        return 0.0 if table is None else table.best.score

    def rounding_seen(self) -> float | None:
        return solve.rounding_seen(self.solved, self.statistics.spec, self.statistics.target_deviations())


def solve_sums(
    prepared: Prepared,
    feature_map: FeatureMap,
    sums: passes.Sums,
    choices: Choices,
    table: CrossValidation | None = None,
) -> Fitted:
    """Choose alpha for a map, and solve; see `solve` and `solve_folds`."""
    penalty, dataset = choices.penalty, prepared.dataset
    if isinstance(sums, RidgeStatistics):
        prepared.say("solve", f"D = {feature_map.n_components:,}")
        return Fitted(feature_map, feature_map, solve.solve(sums, penalty), sums)
    several = ", ".join(f"{width:,}" for width in sorted({*choices.widths, feature_map.n_components}))
    n_splits = len(sums.folds.splits)
    prepared.say("solve", f"{kinds.kind_of(feature_map)} features, D = {several}, {n_splits} folds")
    rows = dataset.read(blocks.Block(0, 0, dataset.n_samples)) if choices.by_rows else None
    chosen, statistics, solved = solve.solve_folds(
        sums, feature_map, penalty, choices.widths, table=table, rows=rows
    )
    return Fitted(feature_map, chosen, solved, statistics, sums)


class Compared:
    """The readings that are left, what was trained so far, and the sums of the best."""

    def __init__(self, readings: list[Reading]) -> None:
        self._left, self._n_readings, self._n_parts = readings, len(readings), readings[0].n_parts
        self._all: list[tuple[FeatureMap, solve.Solved]] = []
        self._best: Fitted | None = None
        self._place = 0
        self._again = False

    @property
    def best(self) -> Fitted:
        """The best map so far; there is at least one."""
        assert self._best is not None
        return self._best

    def following(self, options: RidgeOptions) -> Reading | None:
        """Return the next reading; after the last, the best map again with float32 features if need be."""
        if self._left:
            return self._left.pop(0)
        best = self.best
        if self._again or not _wants_high_precision(best.rounding_seen(), options):
            return None
        self._again, self._best = True, None  # frees its sums, before those of another pass are made
        return Reading([draw.in_high_precision(best.drawn)], [None], self._n_parts)

    def add(self, fitted: Fitted) -> None:
        """Compare a map that was trained with the best so far."""
        result = (fitted.feature_map, fitted.solved)
        if self._again:
            self._all[self._place], self._best = result, fitted
            return
        if self._best is None or fitted.score < self._best.score:
            self._place, self._best = len(self._all), fitted
        self._all.append(result)

    def settled(self, penalty: Penalty) -> bool:
        """Return whether half of the components err as little, so that twice as many will gain little."""
        best = self.best
        if best.parts is None or not draw.is_nested(best.drawn):
            return False
        # from the sums at hand, whose leading components are those of a smaller draw: this takes no pass
        half = draw.shortened(best.drawn, best.drawn.n_components // 4 * 2)
        alphas, fit_intercept = penalty.grid, penalty.fit_intercept
        table = cross_validate(best.parts, alphas=alphas, feature_maps=[half], fit_intercept=fit_intercept)
        return first_round.is_settled(table.best.score, best.score)

    def best_of(self, prepared: Prepared, chosen: first_round.Chosen) -> first_round.Chosen:
        """Return the best candidate alone, with the results of all as rows of their meeting."""
        rows = describe.describe_round("meeting", prepared.dataset.n_samples, self._all)
        best = chosen.candidates[self._place]
        return replace(chosen, candidates=[best], rows=[*rows, *chosen.rows], tables=[None])

    def trained(self, prepared: Prepared, choices: Choices) -> Trained:
        """Return the model of the best map."""
        best = self.best
        facts: Facts = describe.describe_cut(prepared.dataset, best.statistics, choices.folds)
        parts, feature_map = best.parts, best.feature_map
        if parts is not None:
            facts = {"folds": folding.folds_to_dict(parts.folds), **facts}
            parts = parts.leading(
                feature_map.n_components, feature_digest=feature_map.digest(), scales=feature_map.scales
            )
        solved, card = best.solved, {**_card_of(prepared, best.solved, choices.penalty), **facts}
        model = models.RidgeModel.from_solution(
            feature_map, best.statistics, solved.solution, solved.path(), card
        )
        model, seen = replace(model, columns=_columns_of(prepared)), best.rounding_seen()
        return Trained(model, tuple(self._all), self._place, parts, seen, n_readings=self._n_readings)


def _wants_high_precision(moved: float | None, options: RidgeOptions) -> bool:
    """Return whether to fit again with float32 features, since rounding to 15 bits shows."""
    if moved is None or options.precision != "auto":
        return False
    logger.info(
        "fitting again with float32 features: rounding them to 15 bits moves predictions by about %.2g "
        "standard deviations of y",
        moved,
    )
    return True


def fit_without_sums(prepared: Prepared, feature_map: FeatureMap, choices: Choices, do: Do) -> Trained:
    """Solve by conjugate gradients, again with float32 features if need be; see `train_without_sums`."""
    trained = do("solve", train_without_sums, prepared, feature_map, choices)
    if _wants_high_precision(trained.rounding_seen, choices.options):
        trained = do("solve", train_without_sums, prepared, draw.in_high_precision(feature_map), choices)
    return trained


def train_without_sums(prepared: Prepared, feature_map: FeatureMap, choices: Choices) -> Trained:
    """Solve by conjugate gradients; the model has no statistics. See `solve_pcg` and `validate_alphas`.

    The last split of the folds chooses alpha; there are no folds if alpha is one number.
    """
    dataset, penalty, folds = prepared.dataset, choices.penalty, choices.folds
    fit_intercept, grid = penalty.fit_intercept, penalty.grid
    chosen = choice = None
    alpha: Any = penalty.alpha
    if folds is not None:
        chosen = pcg.validate_alphas(prepared, feature_map, folds, alphas=grid, fit_intercept=fit_intercept)
        choice = solve.choose_alpha(chosen.table, feature_map.n_components, penalty)
        alpha = choice.penalty
    iterated = pcg.solve_pcg(prepared, feature_map, alpha=alpha, fit_intercept=fit_intercept, chosen=chosen)
    solved = solve.Solved(iterated.solution, None, None if chosen is None else chosen.table, choice)
    card = {"n_samples": dataset.n_samples, **_card_of(prepared, solved, penalty)}
    if folds is not None:
        card["folds"] = folding.folds_to_dict(folds)
    solution, shape, solver = iterated.solution, dataset.one_dimensional, iterated.facts()
    model = models.RidgeModel.from_solution(
        feature_map, None, solution, solved.path(), card, one_dimensional=shape, solver=solver
    )
    seen = solve.rounding_seen(solved, iterated.spec, iterated.target_deviations)
    model = replace(model, columns=_columns_of(prepared))
    return Trained(model, ((feature_map, solved),), rounding_seen=seen)


def with_held_out_scores(trained: Trained, prepared: Prepared, choices: Choices) -> Trained:
    """Measure in one more pass how far off held-out rows are, for intervals; see `hold_out_scores`."""
    parts, models, engine = trained.parts, fold_models_of(trained), prepared.engine
    assert parts is not None
    dataset, normalized = prepared.dataset, isinstance(choices.options.conformal, str)
    held_out = conformal.hold_out_scores(dataset, parts, models, normalized=normalized, engine=engine)
    return replace(trained, model=replace(trained.model, held_out=held_out))


def conclude(
    trained: Trained, prepared: Prepared, choices: Choices, chosen: first_round.Chosen, budget: Budget
) -> Trained:
    """Warn of what may not hold for new rows, and list the candidates that were tried, and left out."""
    solved, dataset = trained.solved, prepared.dataset
    own = parameters.of_options(choices.options)
    if choices.given:
        drawn = trained.model.feature_map
        candidate = {
            "kernel": kinds.kernel_of(drawn),
            "length_scale": "auto",
            "n_components": drawn.n_components,
        }
        own |= parameters.to_card(candidate)
    model = trained.model.with_card(**{parameters.PARAMETERS: own})
    trained = replace(trained, model=model)
    if budget.limit is not None:
        model = model.with_card(time_limit=budget.limit, untried=budget.untried)
        trained = replace(trained, model=model)
        for what in budget.untried:
            prepared.say("choose", f"not tried for want of time: {what}")
    cancelling = 0.0
    if model.statistics is not None and isinstance(kinds.kernel_of(model.feature_map), Stationary):  # bounded
        cancelling = solve.how_cancelling(solved, model.statistics)
    solve.warn_of_alpha(solved, cancelling=cancelling, classes=isinstance(dataset, labelled.LabelledDataset))
    if trained.rounding_seen is not None:
        solve.warn_of_rounding(solved, trained.rounding_seen)
    rows = chosen.rows
    if choices.given:
        rows = describe.compare_rows([describe.describe_candidate(*result) for result in trained.compared])
        _say_ends(rows[trained.best_index])
    elif not rows:
        return trained
    elif trained.parts is not None:
        final = describe.describe_round("final", dataset.n_samples, trained.compared)
        best = describe.candidate_words(final[trained.best_index])
        prepared.say("choose", f"of {describe.n_candidates(rows)} candidates: {best}")
        rows = [*final, *rows]
    return replace(trained, model=model.with_card(candidates=rows), rows=tuple(rows))


def _say_ends(row: describe.Row) -> None:
    message = "the best %s, %.3g, is at the %s end of those tried; a better one may lie beyond"
    for name in ("length_scale", "alpha"):
        if (end := row[f"{name}_at_end"]) is not None:
            logger.info(message, name.replace("_", " "), row[name], end)


def fold_models_of(trained: Trained) -> conformal.FoldModels:
    """Solve the model without each fold, at the alpha of all rows; see `fold_models`."""
    assert trained.parts is not None
    feature_map, solved = trained.compared[trained.best_index]
    alpha, fit_intercept = solved.solution.alpha, trained.model.card["fit_intercept"]
    return conformal.fold_models(trained.parts, feature_map, alpha=alpha, fit_intercept=fit_intercept)


def _card_of(prepared: Prepared, solved: solve.Solved, penalty: Penalty) -> Summary:
    return {
        **describe_dataset(prepared.dataset),
        **describe.describe_choices(penalty),
        **({} if penalty.alphas is None else {"alphas": list(map(float, penalty.alphas))}),
        "standardize": prepared.standardize,
        "chosen_by": solved.chosen_by,
        "estimate": describe.describe_estimate(solved),
        "sample_weight_kind": prepared.sample_weight_kind,
    }


def _columns_of(prepared: Prepared) -> moments.ColumnMoments:
    return moments.ColumnMoments.of(prepared.moments, frequency_weights=prepared.frequency_weights)


#: What a card says of the rows that were summed, their errors and the candidates that met on them: other rows
#: have others. All else on it holds for every model of the same features.
_OF_ROWS = {
    *("data_fingerprint", "data_version", "data_id", "data_table", "prefix_fingerprint"),
    *("rows_per_block", "summed_by_folds", "n_seen", "left_out", "merged", "window", "update"),
    *("estimate", "metrics", "candidates", "untried", "time_limit"),
}  # fmt: skip


def refit(
    model: models.RidgeModel,
    statistics: RidgeStatistics,
    *,
    alpha: Alpha | None,
    alphas: Sequence[float] | None = None,
    fit_intercept: bool = True,
) -> models.RidgeModel:
    """Solve a model again from changed statistics of the same features; see `solve`.

    None keeps the model's own alpha, or alphas. Held-out scores are kept: they come from fits of fewer rows,
    so that intervals err on the wide side.
    """
    card = {name: value for name, value in model.card.items() if name not in _OF_ROWS}
    if alpha is None:
        # nothing is chosen, so that one factorisation per different alpha is all it costs
        solved = solve.solve_with(statistics, model.alpha, fit_intercept=fit_intercept)
        card["fit_intercept"] = bool(fit_intercept)
    else:
        penalty = Penalty(alpha, alphas, fit_intercept, model.card.get("alpha_per_target", False))
        solved = solve.solve(statistics, penalty)
        card |= describe.describe_choices(penalty)
    selection = solved.path() or model.selection
    again = models.RidgeModel.from_solution(model.feature_map, statistics, solved.solution, selection, card)
    return replace(again, held_out=model.held_out)
