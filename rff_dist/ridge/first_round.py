"""The first round of a fit: compare candidates on a sample of rows, in this process.

A prepared dataset and candidates (kernel, length scale, kind of features) go in; the
one to train on all rows comes out, with the errors of all candidates. Cross-validating
each on all rows would take many times as long.

1. **Candidates**, see `ridge.candidate_choices`:

   - a smooth and a rougher kernel, which add functions of single columns to a function
     of all columns; the evidence tunes weights, length scales and maps of columns
     together;
   - a kernel with the median distance as its length scale, which needs no tuning;
   - a linear model, so that the choice is not worse than a line.
2. **The first round**, on up to 10,000 rows with half of the components. As many
   candidates are tried at once as there are cores. If rows are few, it takes all
   components, and errors come from the rows themselves (`selection.row_folds`).
3. **The final pass** trains the best candidate on all rows, in `ridge.fit`. If rows are
   few, it reuses the errors of the first round.

D is a feature map's number of components. Z'Z and Z'y, the *sums*, are products of the
features Z and the targets y, summed over rows; a pass over all rows yields only these.
A candidate with the length scale "evidence" is tuned: its length scales are those of
the largest evidence, the probability of the targets under a Gaussian process with the
kernel.

All errors are cross-validated, with the same folds. Length scales are tuned on rows
that no fold validates on (`data.folding.with_tuning_rows`). Given options stay; if all
are given, there is no first round.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rff_dist.data import folding, samples
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import DataError, SolveError
from rff_dist.features import sums as kernel_sums
from rff_dist.features.maps import FeatureMap
from rff_dist.fitting import prepare
from rff_dist.kernels import explicit
from rff_dist.kernels.stationary import Stationary
from rff_dist.numerics import machine
from rff_dist.ridge import describe
from rff_dist.ridge.budget import (
    EXACT_ROWS,
    FIRST_SHARE,
    MIN_COMPONENTS,
    TUNING_SECONDS,
    Budget,
    Pace,
)
from rff_dist.ridge.candidate_choices import trusted_samples
from rff_dist.ridge.candidates import Candidate, Draws
from rff_dist.ridge.choices import ROUND_ROWS, Choices
from rff_dist.selection import cross_validation, row_folds
from rff_dist.selection.error_table import CrossValidation
from rff_dist.statistics import fold_statistics, passes, reading
from rff_dist.typing import FloatArray, frozen

# With fewer components the overhead of calls takes most of the time, so the time says
# little about maps of more components.
LEAST_TIMED_COMPONENTS = MIN_COMPONENTS // 2


@frozen
class Finalists:
    """The candidates that the final pass trains, and the results of the first round."""

    #: The best one, or those that the user gave.
    candidates: list[Candidate]
    #: Results of the first round, the best first; empty without one.
    results: list[describe.CandidateResult]
    #: Each candidate's errors from the rows themselves, if rows are few; else None.
    tables: list[CrossValidation | None]
    #: The numbers of components that the final pass has time for, ascending.
    component_counts: list[int]


@frozen
class _Trial:
    """A candidate of the first round, and its errors."""

    candidate: Candidate
    result: describe.CandidateResult
    feature_map: FeatureMap
    table: CrossValidation
    #: Error of each split at the best alpha.
    split_scores: FloatArray
    #: How long it took; None if it is untypical of other candidates.
    pace: Pace | None


def choose(
    prepared: prepare.PreparedDataset, draws: Draws, choices: Choices, budget: Budget
) -> Finalists:
    """Choose kernels, length scales and kinds of features that the options leave open.

    Without a first round all candidates are returned, or only the first if no sums of
    folds can compare them.
    """
    if choices.has_first_round:
        assert choices.comparison_folds is not None
        first = _FirstRound(prepared, draws, choices, choices.comparison_folds, budget)
        return first.run()
    candidates = choices.candidates
    if choices.folds is None or choices.options.solver == "pcg":
        candidates = candidates[:1]
    return Finalists(candidates, [], [None] * len(candidates), choices.component_counts)


@frozen
class _FirstRound:
    """Compares candidates on a sample of rows, with the folds of the dataset."""

    prepared: prepare.PreparedDataset
    draws: Draws
    choices: Choices
    folds: folding.Folds
    budget: Budget

    def run(self) -> Finalists:
        """Cross-validate the candidates, and return the best one."""
        sample = samples.sample_folds(
            self.prepared.dataset, self.folds, n_rows=ROUND_ROWS
        )
        self.prepared.say(
            "choose",
            f"candidates on {len(sample.X):,} rows,"
            f" D = {self.choices.n_round_components:,}",
        )
        candidates = self._candidates_in_time()
        trials: list[_Trial] = []
        # one kind of features after the other, since kinds share tuned length scales
        for kind in dict.fromkeys(candidate.features for candidate in candidates):
            of_kind = [c for c in candidates if c.features == kind]
            # However late it is, two candidates are tried: the first may be linear, and
            # the only one of its kind.
            trials += self._try_all(of_kind, sample, at_least=2 - len(trials))
        ranked = self._best_first(trials)
        best = ranked[0]

        component_counts = self._components_in_time(trials)
        table = None
        if self._serves_final_pass(component_counts):
            # The table's errors come from the rows. The final pass solves from sums,
            # which are too imprecise for the smallest alphas: drop these.
            total = self._fold_sums(best.feature_map, sample).total()
            table = best.table.from_alpha(reading.gram_error_of(total))
        results = [trial.result for trial in ranked]
        return Finalists([best.candidate], results, [table], component_counts)

    def _serves_final_pass(self, component_counts: Sequence[int]) -> bool:
        """Return whether the best trial's errors are those of the final pass too."""
        choices = self.choices
        has_all_components = [choices.n_round_components] == list(component_counts)
        has_folds = choices.folds is not None
        return choices.has_few_rows and has_folds and has_all_components

    def _components_in_time(self, trials: Sequence[_Trial]) -> list[int]:
        """Return the numbers of components that the final pass has time for."""
        prepared = self.prepared
        paces = [trial.pace for trial in trials if trial.pace is not None]
        if self.budget.limit is None or not paces:
            return self.choices.component_counts
        n_threads = prepared.engine.n_workers * prepared.engine.n_threads
        pace = Pace.slowest(paces, n_threads=n_threads)
        n_components = self.choices.component_counts[-1]
        n_samples = prepared.dataset.n_samples
        return [self.budget.components_in_time(pace, n_samples, n_components)]

    def _try_all(
        self,
        candidates: Sequence[Candidate],
        sample: samples.FoldSample,
        *,
        at_least: int,
    ) -> list[_Trial]:
        """Cross-validate candidates, one per core at a time, while there is time."""
        trials: list[_Trial] = []
        n_threads = min(machine.available_cores(), len(candidates)) or 1
        untried = list(candidates)
        n_at_once = len(candidates) if self.budget.limit is None else n_threads
        with machine.single_threaded_blas(), machine.executor_of(n_threads) as pool:
            try:
                while untried:
                    is_late = self.budget.remaining(FIRST_SHARE) <= 0
                    if is_late and len(trials) >= at_least:
                        self.budget.skip_candidates(len(untried))
                        break
                    batch = untried[:n_at_once]
                    untried = untried[n_at_once:]
                    for trial in pool.map(
                        lambda candidate: self._try(candidate, sample), batch
                    ):
                        if trial is not None:
                            words = describe.candidate_words(trial.result)
                            self.prepared.say("choose", words)
                            trials.append(trial)
            except BaseException:
                # without it, Ctrl-C would wait minutes for the pool's threads
                self.draws.is_stopped = True
                raise
        return trials

    def _candidates_in_time(self) -> list[Candidate]:
        """Return the candidates to try; if time is short, only those without tuning."""
        candidates = self.choices.candidates
        quick = [c for c in candidates if not c.is_tuned]
        if quick and self.budget.remaining(FIRST_SHARE) < TUNING_SECONDS:
            self.budget.skip_candidates(len(candidates) - len(quick))
            return quick
        return candidates

    def _best_first(self, trials: Sequence[_Trial]) -> list[_Trial]:
        """Sort by error, but first put the preferred one of those as good as the best.

        A difference within one standard error, of the differences fold by fold, may be
        chance. Among such candidates a linear model is preferred, as the simplest. Next
        come length scales tuned on many rows: these rows, which no fold validates on,
        are further evidence for them.
        """
        # There is a trial: one candidate needs no tuning, or the user asked for tuned
        # length scales, and a failure has raised.
        best, *others = sorted(trials, key=lambda trial: trial.result["score"])
        as_good = [other for other in others if _within_one_standard_error(other, best)]
        favourite = min([best, *as_good], key=self._preference)
        ranked = [best, *others]
        return [favourite, *(trial for trial in ranked if trial is not favourite)]

    def _preference(self, trial: _Trial) -> int:
        """Return a candidate's rank: the lowest is preferred."""
        dataset = self.prepared.dataset
        if isinstance(trial.candidate.kernel, explicit.Linear):
            return 0
        is_trusted = dataset.n_samples >= trusted_samples(dataset)
        if is_trusted and trial.candidate.is_tuned:
            return 1
        return 2

    def _try(self, candidate: Candidate, sample: samples.FoldSample) -> _Trial | None:
        """Cross-validate a candidate; None if it cannot be tuned."""
        options = self.choices.options
        try:
            return self._validate(candidate, sample)
        except (DataError, SolveError) as error:
            if not candidate.is_tuned or options.length_scale == "evidence":
                raise
            # constant targets, or few rows that are all alike, cannot tune length
            # scales
            self.prepared.say("choose", f"length scales were not tuned: {error}")
            return None

    def _validate(self, candidate: Candidate, sample: samples.FoldSample) -> _Trial:
        """Cross-validate a candidate."""
        n_components = self.choices.n_round_components
        # Kernels that are not stationary may have linear terms, which take a component
        # per column; the others need some too.
        if not isinstance(candidate.kernel, Stationary):
            n_linear = kernel_sums.linear_components(
                self.prepared.dataset.n_features, self.prepared.levels
            )
            n_components = max(n_components, 2 * n_linear)
        n_components = min(n_components, self.choices.component_counts[-1])
        feature_map = self.draws.feature_map(candidate, n_components)
        table, pace = self._table(feature_map, sample)
        best = table.best
        result: describe.CandidateResult = {
            "round": "first",
            "n_samples": len(sample.X),
            **describe.describe_features(feature_map),
            "n_components": feature_map.n_components,
            "alpha": best.alpha,
            **describe.scores(best, best),
        }
        alpha_index = int(np.flatnonzero(table.alphas == best.alpha)[0])
        scores = table.split_scores()  # shape (n_splits, 1, n_alphas): one map
        split_scores = scores[:, 0, alpha_index]
        # few components, as often of a linear kernel, say little about other candidates
        is_typical = feature_map.n_components >= LEAST_TIMED_COMPONENTS
        typical_pace = pace if is_typical else None
        return _Trial(candidate, result, feature_map, table, split_scores, typical_pace)

    def _table(
        self, feature_map: FeatureMap, sample: samples.FoldSample
    ) -> tuple[CrossValidation, Pace]:
        """Return the errors on a sample, and how long they took.

        Errors of few rows come from the rows themselves, others from sums of folds.
        """
        D = feature_map.n_components
        begun = time.monotonic()

        fit_intercept = self.choices.options.fit_intercept
        grid = self.choices.options.penalty.grid
        if grid is not None and not np.all(grid > 0):
            grid = None  # an alpha of 0 was given, and tables need alphas above 0
        # the sample's rows, of which some of the dataset's may be left out
        if len(sample.X) <= EXACT_ROWS:
            table_of_rows = row_folds.cross_validate_rows(
                feature_map.transform(sample.X),
                sample,
                alphas=grid,
                fit_intercept=fit_intercept,
                frequency_weights=self.prepared.frequency_weights,
            )
            # None if a split has no rows to train on
            if table_of_rows is not None:
                # nothing was summed
                seconds = time.monotonic() - begun
                pace = Pace(sum_seconds=0.0, table_seconds=seconds / D**3)
                return table_of_rows, pace
        begun = time.monotonic()
        parts = self._fold_sums(feature_map, sample)
        summed = time.monotonic()
        table = cross_validation.cross_validate(
            parts, alphas=grid, fit_intercept=fit_intercept
        )
        pace = Pace(
            sum_seconds=(summed - begun) / (len(sample.X) * D**2),
            table_seconds=(time.monotonic() - summed) / D**3,
        )
        return table, pace

    def _fold_sums(
        self, feature_map: FeatureMap, sample: samples.FoldSample
    ) -> fold_statistics.FoldStatistics:
        serial = SerialEngine(1)
        rows, folds = sample.dataset()
        sampled = replace(self.prepared, dataset=rows, engine=serial)
        accumulation = sampled.accumulation(feature_map)
        (parts,) = passes.accumulate_folds(
            rows, [accumulation], folds=folds, engine=serial
        )
        return parts


def _within_one_standard_error(other: _Trial, best: _Trial) -> bool:
    if len(other.split_scores) < 2:
        return False  # one split has no standard error
    # both have the same splits, so what makes a split hard to predict cancels
    differences = np.subtract(other.split_scores, best.split_scores)
    return bool(
        differences.mean() <= differences.std(ddof=1) / np.sqrt(len(differences))
    )
