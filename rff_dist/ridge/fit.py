"""Train kernel ridge regression on random features: the library's main job.

A dataset and options go in; a model comes out, with a record of every candidate tried.
Forming the n_samples × D features would not fit into memory. Solving needs only
sums over the rows, so every step is either a pass over the data, run by an engine
(serial or Dask), or arithmetic on what a pass returned.

A *candidate* is a kernel, its length scale and a kind of features. A first round
compares candidates on a sample of rows, and the best one is trained on all rows.

`fit` lists the steps, which follow below in the same order.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rff_dist.data import blocks, folding, labelled
from rff_dist.engines.protocol import Broadcast, Engine
from rff_dist.features import draw, kinds
from rff_dist.features.maps import FeatureMap
from rff_dist.fitting import parameters
from rff_dist.fitting.options import RidgeOptions
from rff_dist.fitting.plan import Plan, plan_readings
from rff_dist.fitting.prepare import PreparedDataset, prepare
from rff_dist.fitting.sizes import Machines
from rff_dist.fitting.solver_plan import plan_regression
from rff_dist.kernels.stationary import Stationary
from rff_dist.ridge import (
    alpha_warnings,
    describe,
    first_round,
    models,
    solve,
)
from rff_dist.ridge.budget import EXACT_ROWS, Budget
from rff_dist.ridge.candidates import (
    Candidate,
    Draws,
    check_candidates,
    draw_candidates,
)
from rff_dist.ridge.choices import Choices, choices_of, doubled
from rff_dist.ridge.fit_intervals import with_fold_models
from rff_dist.ridge.fit_result import FitResult, card_of, columns_of
from rff_dist.ridge.fit_without_sums import fit_without_sums, needs_high_precision
from rff_dist.ridge.fold_choices import has_groups, prepare_folds
from rff_dist.selection.cross_validation import cross_validate
from rff_dist.selection.error_table import CrossValidation
from rff_dist.statistics import fold_statistics, inspection, passes
from rff_dist.statistics.accumulate import Accumulations
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.text import human_bytes
from rff_dist.typing import Do, Summary, call_step, frozen

logger = logging.getLogger(__name__)

# Share of the squared error that the last doubling of components must have gained for
# another one, which takes four to eight times as long.
DOUBLING_PAYS = 0.1


def fit(
    dataset: blocks.Dataset,
    options: RidgeOptions,
    *,
    candidates: Sequence[Candidate] | None = None,
    choices: Choices | None = None,
    engine: Engine,
    do: Do = call_step,
) -> FitResult:
    """Train ridge regression on random features; choose what the options leave open.

    One pass over all rows takes O(n_samples · n_components²) operations, and solving
    takes O(n_components³). Cross-validation makes the choices.

    Parameters
    ----------
    dataset : Dataset
        With targets, and with groups if folds keep groups together.
    options : RidgeOptions
        Values of "auto" are chosen.
    candidates : sequence of Candidate, optional
        Replace the kernel and length scale of the options. All are compared on all rows
        with all components; the first wins if errors are equal. An alpha of "auto" is
        then "cv". If several numbers of components are given, each candidate takes the
        smallest within one standard error of its best.
    choices : Choices, optional
        The result of `choices_of`, if the caller has it already.
    engine : Engine
        Runs the passes.
    do : callable
        Calls each step as `do(name, function, *arguments)`. A Prefect flow passes one
        that runs the step as a task; by default it is a plain call.

    Returns
    -------
    FitResult

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range.
    PlanError
        If memory is too small.
    StatisticsError
        If a fold has no rows.
    """
    if choices is None:
        if candidates is not None:
            check_candidates(candidates, dataset, options)
        choices = choices_of(
            dataset, options, machines=Machines.of(engine), candidates=candidates
        )
    budget = Budget(choices.options.time_limit)

    # mean and standard deviation of each column
    prepared, choices = do("measure", measure, dataset, choices, engine=engine)
    budget.reading_seconds = budget.spent()

    # a kernel and its length scales, from a sample of rows
    draws = Draws(
        prepared,
        choices.options,
        folds=choices.comparison_folds,
        tuning=replace(choices.tuning, deadline=budget.tuning_deadline),
    )
    finalists = do("choose", first_round.choose, prepared, draws, choices, budget)
    choices = replace(choices, component_counts=finalists.component_counts)

    # W and b, such that Z = √(2/D) · cos(X W + b)
    maps = do(
        "draw", draw_candidates, draws, finalists.candidates, choices.component_counts
    )

    plan = plan_solver(prepared, choices, maps)
    if plan.solver == "pcg":
        result = fit_without_sums(prepared, maps[0], choices, plan, do)
        return conclude(result, prepared, choices, finalists, budget)

    shared_passes = plan_shared_passes(prepared, choices, maps, finalists.tables, plan)
    comparison = train_all(prepared, shared_passes, choices, do)
    # twice as many components, as long as the last doubling gained much
    while (more := with_more_components(comparison, prepared, choices)) is not None:
        choices = more
        maps = do(
            "draw",
            draw_candidates,
            draws,
            finalists.candidates,
            choices.component_counts,
        )
        shared_passes = plan_shared_passes(
            prepared, choices, maps, [None], choices.plan
        )
        comparison = train_all(prepared, shared_passes, choices, do)

    result = model_of(comparison, prepared, choices)
    if result.parts is not None:
        result = do("hold out", with_fold_models, result, prepared)
    return conclude(result, prepared, choices, finalists, budget)


def train_all(
    prepared: PreparedDataset,
    shared_passes: Sequence[SharedPass],
    choices: Choices,
    do: Do,
) -> Comparison:
    """Train every map; then the best again in float32 if rounding to 15 bits shows.

    Only the best map keeps its sums, so that memory holds those of few maps at a time.
    """
    results: list[tuple[FeatureMap, solve.SelectedSolution]] = []
    best: TrainedMap | None = None
    best_index = 0
    for shared_pass in shared_passes:
        for trained in train(prepared, shared_pass, choices, do):
            if best is None or trained.score < best.score:
                best = trained
                best_index = len(results)
            results.append((trained.feature_map, trained.solved))
            # unless it is the best, this frees its sums before the next map is solved
            del trained
    assert best is not None  # there is at least one map

    if needs_high_precision(best.visible_rounding(), choices.options):
        precise = draw.in_high_precision(best.drawn)
        # frees its sums before another pass makes new ones
        best = None
        shared_pass = SharedPass([precise], [None], shared_passes[0].n_parts)
        (best,) = train(prepared, shared_pass, choices, do)
        results[best_index] = (best.feature_map, best.solved)
    return Comparison(tuple(results), best, best_index, len(shared_passes))


def train(
    prepared: PreparedDataset, shared_pass: SharedPass, choices: Choices, do: Do
) -> Iterator[TrainedMap]:
    """Sum up all rows for several maps in one pass, then solve map by map."""
    # W and b to every worker
    shared = do("broadcast", broadcast, prepared, shared_pass, choices.folds)
    # Z'Z and Z'y, of each fold
    sums = do("accumulate", accumulate, prepared, shared)
    for feature_map, table in zip(shared_pass.maps, shared_pass.tables, strict=True):
        # alpha by the folds, and w of (Z'Z + alpha·I) w = Z'y
        yield do(
            "solve", solve_sums, prepared, feature_map, sums.popleft(), choices, table
        )


# -- measure
# -------------------------------------------------------------------------------------


def measure(
    dataset: blocks.Dataset, choices: Choices, *, engine: Engine
) -> tuple[PreparedDataset, Choices]:
    """Measure the columns in a cheap pass; balance folds of groups in another.

    Returns the choices with balanced folds.
    """
    folds = choices.comparison_folds
    if folds is not None:
        folds = prepare_folds(dataset, folds, engine=engine)
        choices = replace(choices, comparison_folds=folds)
        if choices.folds is not None:
            choices = replace(choices, folds=folds)

    options = choices.options
    prepared = prepare(
        dataset,
        standardize=options.standardize,
        sample_weight_kind=options.sample_weight_kind,
        engine=engine,
    )
    has_few_rows = dataset.n_samples <= EXACT_ROWS
    if folds is not None and dataset.n_targets and has_few_rows:
        # copies of a row in several folds make errors look small
        cuts_single_rows = not (
            isinstance(options.cv, folding.Folds) or has_groups(dataset)
        )
        inspection.warn_of_few_rows(dataset, checks_copies=cuts_single_rows)
    return prepared, choices


# -- plan the passes
# -------------------------------------------------------------------------------------


def plan_solver(
    prepared: PreparedDataset, choices: Choices, maps: Sequence[FeatureMap]
) -> Plan:
    """Return the plan of the fit for the map's real number of components.

    A linear kernel has a component per column, whatever the options say.
    """
    plan = choices.plan
    n_components = maps[0].n_components
    has_other_size = n_components != plan.n_components
    may_iterate = choices.folds is None or choices.options.solver == "pcg"
    if may_iterate and has_other_size:
        return plan_regression(
            prepared.dataset,
            n_components,
            choices.options,
            machines=Machines.of(prepared.engine),
        )
    return plan


@frozen
class SharedPass:
    """Feature maps whose sums one reading of the data makes."""

    maps: Sequence[FeatureMap]
    #: Each map's errors on the folds if the first round left them; else None.
    tables: Sequence[CrossValidation | None]
    #: How many times the data are read: more than once if each reading sums only a part
    #: of Z'Z.
    n_parts: int = 1


def plan_shared_passes(
    prepared: PreparedDataset,
    choices: Choices,
    maps: Sequence[FeatureMap],
    tables: Sequence[CrossValidation | None],
    plan: Plan,
) -> list[SharedPass]:
    """Divide the maps among as few readings of the data as memory allows."""
    if len(maps) == 1:
        return [SharedPass(maps, tables, plan.n_parts)]

    assert choices.folds is not None  # they compare the maps
    n_maps_at_once, n_parts = plan_readings(
        prepared.dataset,
        choices.component_counts[-1],
        len(maps),
        engine=prepared.engine,
        n_folds=choices.folds.n_folds,
        features=choices.options.kinds[-1],
    )
    batches_of_maps = itertools.batched(maps, n_maps_at_once)
    batches_of_tables = itertools.batched(tables, n_maps_at_once)
    shared_passes = []
    for batch, known in zip(batches_of_maps, batches_of_tables, strict=True):
        shared_passes.append(SharedPass(batch, known, n_parts))
    return shared_passes


# -- broadcast, accumulate, solve
# -------------------------------------------------------------------------------------


def broadcast(
    prepared: PreparedDataset, shared_pass: SharedPass, folds: folding.Folds | None
) -> Broadcast[Accumulations]:
    """Send the feature maps to every worker, and check that each drew the same.

    Features without a bound, such as linear ones, take a pass first, which finds the
    grid that their sums are exact on.
    """
    engine = prepared.engine
    members = tuple(map(prepared.accumulation, shared_pass.maps))
    for feature_map in shared_pass.maps:
        destination = "in this process"
        if not engine.is_in_process:
            import cloudpickle  # type: ignore[import-untyped]  # which Dask has loaded

            # sent are a seed and parameters, or the centres of Nyström features
            size = human_bytes(len(cloudpickle.dumps(feature_map)))
            destination = f"{size} to each of {engine.n_workers} workers"
        contents = {"fourier": "W and b", "nystrom": "centres"}
        # a linear kernel draws nothing
        content = contents.get(feature_map.kind, "features")
        prepared.say(
            "broadcast",
            f"{content} of D = {feature_map.n_components:,},"
            f" digest {feature_map.digest()[:16]}, {destination}",
        )
    state = Accumulations(members, folds, prepared.dataset.n_samples)
    return engine.broadcast(state.of_part(0, shared_pass.n_parts))


def accumulate(
    prepared: PreparedDataset, shared: Broadcast[Accumulations]
) -> deque[passes.Sums]:
    """Sum up Z'Z and Z'y of all rows, or of each fold, for each map that was sent."""
    sums = passes.accumulate_shared(prepared.dataset, shared, engine=prepared.engine)
    # all maps share the pass, so the first map's sums are enough to check
    inspection.check_same_rows(
        prepared.moments, sums[0].targets, shared.state.members[0].spec
    )
    return deque(sums)


@frozen
class TrainedMap:
    """A feature map with its solution, and the sums that gave the solution."""

    #: The map with all components.
    drawn: FeatureMap
    #: The map with the chosen number of components.
    feature_map: FeatureMap
    solved: solve.SelectedSolution
    #: Sums of all rows, in `feature_map`.
    statistics: RidgeStatistics
    #: Sums of each fold, in `drawn`; None without folds.
    parts: fold_statistics.FoldStatistics | None = None

    @property
    def score(self) -> float:
        """The error on the folds; 0 without folds, where nothing is compared."""
        table = self.solved.cross_validation
        if table is None:
            return 0.0
        return table.best.score

    def visible_rounding(self) -> float | None:
        return alpha_warnings.visible_rounding(
            self.solved, self.statistics.spec, self.statistics.target_deviations()
        )


def solve_sums(
    prepared: PreparedDataset,
    feature_map: FeatureMap,
    sums: passes.Sums,
    choices: Choices,
    table: CrossValidation | None = None,
) -> TrainedMap:
    """Choose alpha for a map, and solve; see `solve` and `solve_folds`."""
    penalty = choices.penalty
    if isinstance(sums, RidgeStatistics):
        prepared.say("solve", f"D = {feature_map.n_components:,}")
        return TrainedMap(feature_map, feature_map, solve.solve(sums, penalty), sums)

    component_counts = sorted({*choices.component_counts, feature_map.n_components})
    counts_text = ", ".join(f"{count:,}" for count in component_counts)
    prepared.say(
        "solve",
        f"{kinds.kind_of(feature_map)} features, D = {counts_text},"
        f" {len(sums.folds.splits)} folds",
    )
    rows = None
    if choices.leaves_rows_out:
        dataset = prepared.dataset
        rows = dataset.read(blocks.Block(0, 0, dataset.n_samples))
    shortened, statistics, solved = solve.solve_folds(
        sums, feature_map, penalty, choices.component_counts, table=table, rows=rows
    )
    return TrainedMap(feature_map, shortened, solved, statistics, sums)


# -- compare
# -------------------------------------------------------------------------------------


@frozen(eq=False)
class Comparison:
    """Results of all trained maps, and the sums of the best."""

    results: tuple[tuple[FeatureMap, solve.SelectedSolution], ...]
    best: TrainedMap
    #: Which of `results` is the best.
    best_index: int
    n_readings: int


def error_of_half(comparison: Comparison, choices: Choices) -> float | None:
    """Return the best map's error with half of the components; None if unknown."""
    best = comparison.best
    if best.parts is None or not draw.is_nested(best.drawn):
        return None
    # The leading components are the features of a smaller draw, so this takes no pass.
    # Half of them, rounded down to an even number for pairs.
    half = draw.shortened(best.drawn, best.drawn.n_components // 4 * 2)
    table = cross_validate(
        best.parts,
        alphas=choices.penalty.grid,
        feature_maps=[half],
        fit_intercept=choices.penalty.fit_intercept,
    )
    return table.best.score


def with_more_components(
    comparison: Comparison, prepared: PreparedDataset, choices: Choices
) -> Choices | None:
    """Return choices with twice as many components; None if these would not pay."""
    more = doubled(choices, Machines.of(prepared.engine))
    if more is None:
        return None
    half = error_of_half(comparison, choices)
    if half is None or comparison.best.score > (1 - DOUBLING_PAYS) * half:
        return None
    return more


def model_of(
    comparison: Comparison, prepared: PreparedDataset, choices: Choices
) -> FitResult:
    """Return the model of the best map."""
    best = comparison.best
    feature_map = best.feature_map
    card = card_of(prepared, best.solved, choices.penalty)
    parts = best.parts
    if parts is not None:
        card["folds"] = folding.folds_to_dict(parts.folds)
        parts = parts.leading(feature_map)
    card |= describe.describe_blocks(prepared.dataset, best.statistics, choices.folds)
    model = models.RidgeModel.from_solution(
        feature_map, best.statistics, best.solved.solution, best.solved.path(), card
    )
    return FitResult(
        replace(model, columns=columns_of(prepared)),
        comparison.results,
        comparison.best_index,
        parts,
        visible_rounding=best.visible_rounding(),
        n_readings=comparison.n_readings,
    )


# -- conclude
# -------------------------------------------------------------------------------------


def conclude(
    result: FitResult,
    prepared: PreparedDataset,
    choices: Choices,
    finalists: first_round.Finalists,
    budget: Budget,
) -> FitResult:
    """Put options and candidates on the model's card; warn if alpha is doubtful."""
    card_parameters = parameters.of_options(choices.options)
    if choices.has_given_candidates:
        feature_map = result.model.feature_map
        winner = {
            "kernel": kinds.kernel_of(feature_map),
            "length_scale": "auto",
            "n_components": feature_map.n_components,
        }
        card_parameters |= parameters.to_card(winner)
    facts: Summary = {parameters.PARAMETERS: card_parameters}
    if budget.limit is not None:
        facts |= {"time_limit": budget.limit, "untried": budget.untried}
        for words in budget.untried:
            prepared.say("choose", f"not tried for lack of time: {words}")

    _warn(result, classes=isinstance(prepared.dataset, labelled.LabelledDataset))

    results = _results_of(result, prepared, choices, finalists)
    if results:
        facts["candidates"] = results
    return replace(result, model=result.model.with_card(**facts), rows=tuple(results))


def _warn(result: FitResult, *, classes: bool) -> None:
    model = result.model
    cancelling = 0.0
    # only features of a stationary kernel are bounded
    is_bounded = isinstance(kinds.kernel_of(model.feature_map), Stationary)
    if model.statistics is not None and is_bounded:
        cancelling = alpha_warnings.how_cancelling(result.solved, model.statistics)
    alpha_warnings.warn_of_alpha(result.solved, cancelling=cancelling, classes=classes)
    if result.visible_rounding is not None:
        alpha_warnings.warn_of_rounding(result.solved, result.visible_rounding)


def _results_of(
    result: FitResult,
    prepared: PreparedDataset,
    choices: Choices,
    finalists: first_round.Finalists,
) -> list[describe.CandidateResult]:
    """Return the results of all candidates; none if nothing was chosen."""
    if choices.has_given_candidates:
        results = describe.compare_results(
            [describe.describe_candidate(*trained) for trained in result.compared]
        )
        _log_ends(results[result.best_index])
        return results

    results = finalists.results
    if not results or result.parts is None:
        return results
    shared = {"round": "final", "n_samples": prepared.dataset.n_samples}
    final = [
        {**shared, **describe.describe_candidate(*trained)}
        for trained in result.compared
    ]
    results = [*final, *results]
    prepared.say("choose", str(describe.choice_words(results)))
    return results


def _log_ends(best: describe.CandidateResult) -> None:
    """Log which parameters of the best candidate are at an end of the values tried."""
    for name in ("length_scale", "alpha"):
        end = best[f"{name}_at_end"]
        if end is not None:
            logger.info(
                "the best %s, %.3g, is at the %s end of those tried; a better one may"
                " lie beyond",
                name.replace("_", " "),
                best[name],
                end,
            )
