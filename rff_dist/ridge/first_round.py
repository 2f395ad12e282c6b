"""The first round of a fit: candidates compared on a sample of rows, with few components, in this process.

1. **Candidates.** Gaussian and Matérn-3/2 kernels, with one length scale per column, tuned by the evidence,
   or a multiple of the median distance between rows; sums of functions of single columns, pairs and all
   columns, tuned from these. A linear model competes too, so that the choice is not worse than it. Multiples
   other than 1 are left out if the median itself errs clearly more than tuned length scales. The Matérn
   kernel comes first, with columns as they are and mapped (`features.column_maps`): the others take the
   columns that it errs less with.
2. **The first round**, on up to 10,000 rows. The best kernels are tried with the other kind of features too,
   and the best of all with a linear kernel added to it. As many are tried at once as there are cores.
3. **Finalists**: the best candidate, and the best ones with the other kind of features and another kernel.
   They meet on all rows with half of the components, see `ridge.fit.fit`; but if rows are many, on a sample
   here. Only the best is then summed up, in one pass over all rows.

With few rows, errors come from the rows themselves (`selection.row_folds`), in the final too. Alpha is then
chosen by leaving out each row in turn (`selection.row_folds`).

All errors are cross-validated, with the same folds. Length scales are tuned on rows that no fold
validates on (`data.folding.hold_in`). Options that are given are kept; if all are, there is no first round.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rff_dist.data import folding, labelled, memory, samples
from rff_dist.engines import progress
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import DataError, SolveError
from rff_dist.features.maps import FeatureMap
from rff_dist.fields import values_of
from rff_dist.fitting import prepare
from rff_dist.kernels import additive, base, explicit
from rff_dist.kernels.stationary import Stationary
from rff_dist.numerics import machine
from rff_dist.ridge import describe
from rff_dist.ridge.budget import FIRST_SHARE, MIN_COMPONENTS, TUNING_SECONDS, Budget, Pace
from rff_dist.ridge.candidates import Candidate, Draws, TimesMedian
from rff_dist.ridge.choices import EXACT_ROWS, ROUND_ROWS, TRIED_WITH_NYSTROM, Choices, trusted_samples
from rff_dist.selection import cross_validation, row_folds
from rff_dist.statistics import fold_statistics, passes, specs
from rff_dist.storage import columns
from rff_dist.typing import FloatArray, frozen

# Times the best score of the first round. On six real sets no winner of the final was above 1.25 times it.
WITHIN_REACH = 1.3
# Times the best score: other multiples of the median are tried for kernels that err so little with the
# median. Of 86 fits on 24 sets, of 50 to 15,642 rows, two err otherwise (× 0.983, 1.005); CPU seconds × 0.87.
NEAR = 1.05
# Where the last doubling gained less, the next gained at most 0.4 % (energy, elevators, pumadyn,
# keggdirected).
SETTLED = 0.01  # share of the error that the last doubling of components gained, for one more to pay


@frozen
class Chosen:
    """What the final pass compares, and what the first round found.

    `candidates`: finalists, with numbers as length scales.
    `rows`: the results of the first round, the best first; none without one.
    `tables`: finalists' errors, found from few rows themselves; None where sums are needed.
    `widths`: the numbers of components that there is time for.
    """

    candidates: list[Candidate]
    rows: list[describe.Row]
    tables: list[cross_validation.CrossValidation | None]
    widths: list[int]


@frozen
class _Try:
    """A candidate of the first round, and its errors."""

    candidate: Candidate
    row: describe.Row
    table: cross_validation.CrossValidation
    split_scores: FloatArray
    pace: Pace | None


def choose(prepared: prepare.Prepared, draws: Draws, choices: Choices, budget: Budget) -> Chosen:
    """Choose kernels, length scales and kinds of features, so far as the options leave them open."""
    dataset, widths = prepared.dataset, choices.widths
    candidates, chosen = choices.candidates, Chosen([], [], [], widths)
    if choices.choosing:
        assert choices.by is not None
        first = _FirstRound(prepared, draws, choices, choices.by, budget)
        tries = first.run()
        candidates = [tries[0].candidate] if choices.first_is_final else _finalists(tries)
        chosen = Chosen([], [trial.row for trial in tries], [], widths)
        paces = [trial.pace for trial in tries if trial.pace is not None]
        if budget.limit is not None and paces:
            halves = len(choices.finals(len(candidates))) > 1
            pace = Pace.slowest(paces, n_threads=prepared.engine.n_workers * prepared.engine.n_threads)
            rows = (dataset.n_samples, choices.meeting_rows)
            width, kept = budget.final(pace, rows, widths[-1], len(candidates), halves=halves)
            candidates, choices = candidates[:kept], replace(choices, widths=[width])
            first, chosen = replace(first, choices=choices), replace(chosen, widths=choices.widths)
        sampled = choices.meeting_rows < dataset.n_samples and len(candidates) > 1
        here = sampled or dataset.n_samples <= EXACT_ROWS
        if choices.folds is not None and len(choices.widths) == 1 and here:
            chosen = first.meet(candidates, chosen)
            candidates = chosen.candidates
    if choices.folds is None or choices.options.solver == "pcg":
        candidates = candidates[:1]
    fixed = [replace(final, kernel=draws.kernel(final), length_scale=None) for final in candidates]
    return replace(chosen, candidates=fixed, tables=chosen.tables or [None] * len(fixed))


def _finalists(tries: Sequence[_Try]) -> list[Candidate]:
    """Return the best candidate, the best with the other kind of features, and the best other kernel.

    An order of kinds and kernels that holds with few components need not hold with many, so these meet again
    if their scores are close.
    """
    best, *others = tries
    # on airfoil Gaussian beats Matérn-3/2 with 512 Nyström features, and loses with 1,353
    finalists, limit = [best], WITHIN_REACH * float(best.row["score"])
    close = [other for other in others if float(other.row["score"]) <= limit]
    for differs in (_other_features, _other_kernel):
        finalists += [other for other in close if differs(other, best) and other not in finalists][:1]
    return [other.candidate for other in finalists]


def _other_features(other: _Try, best: _Try) -> bool:
    """Return whether a candidate has another kind of features; never for linear ones, which are exact."""
    curved = not isinstance(other.candidate.kernel, explicit.Linear)
    return curved and bool(other.row["features"] != best.row["features"])


def _other_kernel(other: _Try, best: _Try) -> bool:
    """Return whether a candidate differs in its kernel alone, and not only by an added linear kernel."""
    first = [row["kernel"].partition(" + ")[0] for row in (other.row, best.row)]
    alike = other.row["features"] == best.row["features"] and isinstance(other.candidate.kernel, Stationary)
    return alike and first[0] != first[1]


@frozen
class _FirstRound:
    """Compares candidates on a sample of rows, with the folds of the dataset."""

    prepared: prepare.Prepared
    draws: Draws
    choices: Choices
    folds: folding.Folds
    budget: Budget

    def run(self) -> list[_Try]:
        """Cross-validate the candidates, and others made from the best of them; the best comes first."""
        options, sample, width = self.choices.options, self._sample(), self.choices.round_width
        candidates: Sequence[Candidate] = self.choices.candidates
        n_rows = min(ROUND_ROWS, self.prepared.dataset.n_samples)
        self.prepared.say("choose", f"candidates on {n_rows:,} rows with {width:,} components")
        if self.budget.limit is not None:
            candidates = self._in_time(candidates)
        twins = [c for c in candidates if c.mapped or replace(c, mapped=True) in candidates]
        candidates = [candidate for candidate in candidates if candidate not in twins]
        tries = self._try_all(twins, sample)
        if tries and min(tries, key=_score).candidate.mapped:  # the other candidates take mapped columns too
            candidates = [
                c if isinstance(c.kernel, explicit.Linear) else replace(c, mapped=True) for c in candidates
            ]
        sums_of_columns = [c for c in candidates if isinstance(c.kernel, additive.Additive)]
        others = [candidate for candidate in candidates if candidate not in sums_of_columns]
        tries += self._try_dense(others, sample)
        tries += self._try_all(sums_of_columns, sample)  # tuned from the others' length scales
        if len(options.kinds) > 1:
            # At 512 centres sums over pairs of columns take as long as all other candidates, so they must be
            # among the best: 28 fits of seven sets then err by 0.97 times as much, at the same CPU seconds.
            ranked = [trial.candidate for trial in self._best_first(tries)]
            curved = [c for c in ranked if not isinstance(c.kernel, explicit.Linear)]
            again = [replace(c, features=options.kinds[1]) for c in curved[:TRIED_WITH_NYSTROM]]
            tries += self._try_all(again, sample)
        best = self._best_first(tries)[0].candidate
        if options.kernel == "auto" and self._may_add_linear(best):
            kernel = self.draws.kernel(best) + explicit.Linear()
            tries += self._try_all([replace(best, kernel=kernel, length_scale=None)], sample)
        return self._best_first(tries)

    def _try_dense(self, candidates: Sequence[Candidate], sample: samples.FoldSample) -> list[_Try]:
        """Cross-validate candidates, first those with tuned length scales and with the median itself.

        Its other multiples follow for kernels that err at most `NEAR` times the best with the median. If no
        candidate is tuned, all are tried at once.
        """
        tuned = any(candidate.length_scale == "evidence" for candidate in candidates)
        multiples = [c for c in candidates if tuned and isinstance(c.length_scale, TimesMedian)]
        later = [candidate for candidate in multiples if candidate.length_scale != TimesMedian(1.0)]
        tries = self._try_all([c for c in candidates if c not in later], sample, at_least=1)
        limit = NEAR * min((float(trial.row["score"]) for trial in tries), default=0.0)
        little = [trial.candidate for trial in tries if float(trial.row["score"]) <= limit]
        near = {c.kernel for c in little if c.length_scale == TimesMedian(1.0)}
        return tries + self._try_all([candidate for candidate in later if candidate.kernel in near], sample)

    def _try_all(
        self, candidates: Sequence[Candidate], sample: samples.FoldSample, *, at_least: int = 0
    ) -> list[_Try]:
        """Cross-validate candidates, as many at the same time as there are cores, while there is time."""
        tries: list[_Try] = []
        n_threads = min(machine.available_cores(), len(candidates)) or 1
        left, at_once = list(candidates), len(candidates) if self.budget.limit is None else n_threads
        with machine.single_threaded_blas(), machine.executor_of(n_threads) as pool:
            while left:
                if len(tries) >= at_least and self.budget.left(FIRST_SHARE) <= 0:
                    self.budget.n_untried += len(left)
                    break
                some, left = left[:at_once], left[at_once:]
                for trial in pool.map(lambda candidate: self._try(candidate, sample), some):
                    if trial is not None:
                        self.prepared.say("choose", describe.candidate_words(trial.row), progress.Tried)
                        tries.append(trial)
        return tries

    def _in_time(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates to try, first one that needs no tuning; if time is short, only such."""
        quick = [candidate for candidate in candidates if candidate.length_scale != "evidence"]
        quick.sort(key=lambda candidate: candidate.length_scale != TimesMedian(1.0))
        if quick and self.budget.left(FIRST_SHARE) < TUNING_SECONDS:
            self.budget.n_untried += len(candidates) - len(quick)
            return quick
        return [*quick[:1], *(candidate for candidate in candidates if candidate not in quick[:1])]

    def meet(self, finalists: list[Candidate], chosen: Chosen) -> Chosen:
        """Let finalists meet on few rows, or on a sample of many: the best one alone is left.

        Few rows give its table too; of more it is made of all rows.
        """
        sample, n_components = self._sample(self.choices.meeting_rows), self.choices.widths[-1]
        width = n_components if len(finalists) == 1 else self.choices.meeting
        few = self.prepared.dataset.n_samples <= EXACT_ROWS

        def validate(candidate: Candidate, width: int) -> _Try:
            return self._validate(candidate, sample, width, resolved=few)

        n_threads = min(machine.available_cores(), len(finalists))
        with machine.single_threaded_blas(), machine.executor_of(n_threads) as pool:
            tries = list(pool.map(lambda finalist: validate(finalist, width), finalists))
        rows = [{**trial.row, "round": "meeting"} for trial in tries] if len(tries) > 1 else []
        best = min(tries, key=_score)
        if width < n_components:
            automatic = self.choices.options.n_components == "auto"
            half = validate(best.candidate, width // 2) if automatic else None
            if half is None or not is_settled(float(half.row["score"]), float(best.row["score"])):
                width = n_components
                best = validate(best.candidate, width) if few else best
        rows += chosen.rows
        return Chosen([best.candidate], rows, [best.table if few else None], [width])

    def _sample(self, n_rows: int = ROUND_ROWS) -> samples.FoldSample:
        return samples.sample_folds(self.prepared.dataset, self.folds, n_rows=n_rows)

    def _best_first(self, tries: Sequence[_Try]) -> list[_Try]:
        """Sort by error, but put the preferred one of those that may be as good as the best first.

        A difference within one standard error, fold by fold, may be chance. Among such candidates a linear
        model is preferred, as the simplest, and then a sum of functions of one column each. Next come length
        scales tuned on many rows: those rows, which no fold validates on, are evidence for them too. Sums of
        kernels come last.
        """
        ranked = sorted(tries, key=_score)
        as_good = [trial for trial in ranked[1:] if _within_one_standard_error(trial, ranked[0])]
        # least errors alone would take energy from 0.044 to 0.049, and concrete from 0.253 to 0.260
        favourite = min([ranked[0], *as_good], key=self._preference)
        return [favourite, *(trial for trial in ranked if trial is not favourite)]

    def _preference(self, trial: _Try) -> int:
        candidate, dataset = trial.candidate, self.prepared.dataset
        trusted = dataset.n_samples >= trusted_samples(dataset)
        if isinstance(candidate.kernel, explicit.Linear):
            return 0
        if isinstance(candidate.kernel, additive.Additive) and candidate.kernel.weights(2)[0] == 1:
            return 1
        if candidate.length_scale == "evidence" and trusted:
            return 2
        return 3 if isinstance(candidate.kernel, Stationary) else 4

    def _may_add_linear(self, best: Candidate) -> bool:
        """Return whether linear components leave room for others, and the map will not be shortened."""
        room = 2 * self.prepared.dataset.n_features <= self.choices.round_width
        return room and not self.choices.options.several_widths and isinstance(best.kernel, Stationary)

    def _try(self, candidate: Candidate, sample: samples.FoldSample) -> _Try | None:
        """Cross-validate a candidate; None if its length scales cannot be tuned, or another is the same."""
        options = self.choices.options
        try:
            # the dense kernel itself is a candidate too, unless the sum was asked for by name
            if options.kernel == "auto" and _is_dense(self.draws.kernel(candidate)):
                return None
            return self._validate(candidate, sample, self.choices.round_width)
        except (DataError, SolveError) as error:
            if candidate.length_scale != "evidence" or options.length_scale == "evidence":
                raise
            # constant targets, or few rows that are all alike, cannot tune length scales
            self.prepared.say("choose", f"length scales were not tuned: {error}")
            return None

    def _validate(
        self, candidate: Candidate, sample: samples.FoldSample, width: int, *, resolved: bool = False
    ) -> _Try:
        """Cross-validate a candidate.

        `resolved`: only with alphas that sums resolve, since rows themselves resolve smaller ones.
        """
        if not isinstance(candidate.kernel, Stationary):  # linear terms take a component per column
            width = max(width, 2 * self.prepared.dataset.n_features)
        feature_map = self.draws.feature_map(candidate, min(width, self.choices.widths[-1]))
        table, pace = self._table(feature_map, sample)
        if resolved:
            table = table.from_alpha(specs.gram_error_of(self._sums(feature_map, sample).total()))
        best = table.best
        row: describe.Row = {
            "round": "first",
            "n_samples": len(sample.X),
            **describe.describe_features(feature_map),
            "n_components": feature_map.n_components,
            **values_of(best, "alpha", "score"),
            "standard_error": None if np.isnan(best.standard_error) else best.standard_error,
        }
        at = int(np.flatnonzero(table.alphas == best.alpha)[0])
        return _Try(candidate, row, table, table.split_scores()[:, 0, at], pace)

    def _table(
        self, feature_map: FeatureMap, sample: samples.FoldSample
    ) -> tuple[cross_validation.CrossValidation, Pace | None]:
        """Return the errors on a sample, from few rows directly or else from sums of folds, and the pace.

        The pace is None for a linear kernel, whose few columns say little about others.
        """
        D, begun = feature_map.n_components, time.monotonic()
        typical = D >= MIN_COMPONENTS // 2  # the few columns of a linear kernel give no pace of others
        grid, fit_intercept = self.choices.options.penalty.grid, self.choices.options.fit_intercept
        grid = grid if grid is None or np.all(grid > 0) else None
        if len(sample.X) <= EXACT_ROWS:
            Z, repeated = feature_map.transform(sample.X), self.prepared.frequency_weights
            known = row_folds.cross_validate_rows(
                Z, sample, self._sampled_folds, alphas=grid, fit_intercept=fit_intercept, repeated=repeated
            )
            if known is not None:
                return known, Pace(0.0, (time.monotonic() - begun) / D**3) if typical else None
        begun = time.monotonic()
        parts = self._sums(feature_map, sample)
        summed = time.monotonic()
        table = cross_validation.cross_validate(parts, alphas=grid, fit_intercept=fit_intercept)
        pace = Pace((summed - begun) / (len(sample.X) * D**2), (time.monotonic() - summed) / D**3)
        return table, pace if typical else None

    def _sums(self, feature_map: FeatureMap, sample: samples.FoldSample) -> fold_statistics.FoldStatistics:
        serial, assigned = SerialEngine(1), columns.as_column(sample.fold_of_row, name="folds")
        rows = labelled.GroupedDataset(memory.ArrayDataset(sample.X, sample.y, sample.weights), assigned)
        member = replace(self.prepared, dataset=rows, engine=serial).accumulation(feature_map)
        (parts,) = passes.accumulate_folds(rows, [member], folds=self._sampled_folds, engine=serial)
        return parts

    @property
    def _sampled_folds(self) -> folding.Folds:
        return folding.SampledFolds(self.folds.n_folds, self.folds)


def _score(trial: _Try) -> float:
    return float(trial.row["score"])


def _is_dense(kernel: base.Kernel) -> bool:
    """Return whether an additive kernel is the dense one that it adds to."""
    return isinstance(kernel, additive.Additive) and bool(kernel.weights(2)[2] == 1)


def is_settled(half: float, whole: float) -> bool:
    """Return whether half of the components err as little, so that twice as many will gain little."""
    return half <= (1 + SETTLED) * whole


def _within_one_standard_error(other: _Try, best: _Try) -> bool:
    if len(other.split_scores) < 2:
        return False  # one split has no standard error
    # the splits are the same, so that what makes their rows hard to predict cancels
    differences = np.subtract(other.split_scores, best.split_scores)
    return bool(differences.mean() <= differences.std(ddof=1) / np.sqrt(len(differences)))
