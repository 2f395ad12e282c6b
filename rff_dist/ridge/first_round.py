"""The first round of a fit: candidates compared on a sample of rows, with few components, in this process.

1. **Candidates.** Gaussian and Matérn-3/2 kernels with random Fourier features. Each has one length scale
   per column, tuned by the evidence, or a multiple of the median distance between rows. A linear model
   competes too, so that the choice is not worse than it.
2. **The first round**, on up to 10,000 rows. The best kernels are tried with Nyström features too, and the
   best of all with a linear kernel added to it.
3. **Finalists**: the best candidate, and the best ones with the other kind of features and another kernel.
   They meet on all rows with all components, see `ridge.fit.fit`.

With few rows, errors come from the rows themselves (`selection.row_folds`), in the final too, and only the
winner's sums are made. Its alpha is then chosen by leaving out each row in turn (`selection.row_folds`).

All errors are cross-validated, with the same folds. Length scales are tuned on rows that no fold
validates on (`data.folding.hold_in`). Options that are given are kept; if all are, there is no first round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rff_dist.data import folding, labelled, memory, samples
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import DataError, SolveError
from rff_dist.features.maps import FeatureMap
from rff_dist.fitting import prepare
from rff_dist.fitting.options import RidgeOptions, are_several
from rff_dist.kernels import explicit
from rff_dist.kernels.stationary import Stationary
from rff_dist.ridge import describe
from rff_dist.ridge.candidates import Candidate, Draws
from rff_dist.ridge.choices import (
    FEW_ROWS,
    ROUND_ROWS,
    TRIED_WITH_NYSTROM,
    Choices,
    round_components,
    trusted_samples,
)
from rff_dist.selection import cross_validation, row_folds
from rff_dist.statistics import passes
from rff_dist.storage import columns
from rff_dist.typing import FloatArray

# Times the best score of the first round. On six real sets no winner of the final was above 1.25 times it.
WITHIN_REACH = 1.3


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the final pass compares, and what the first round found.

    `candidates`: finalists, with numbers as length scales.
    `rows`: the results of the first round, the best first; none without one.
    `losers`: the results of a final of few rows, except the winner's.
    `table`: the winner's errors in that final; None if finalists are compared by their sums.
    """

    candidates: list[Candidate]
    rows: list[describe.Row]
    losers: list[describe.Row]
    table: cross_validation.CrossValidation | None = None


@dataclass(frozen=True, slots=True)
class _Try:
    """A candidate of the first round, and its errors."""

    candidate: Candidate
    row: describe.Row
    table: cross_validation.CrossValidation
    split_scores: FloatArray


def choose(prepared: prepare.Prepared, draws: Draws, choices: Choices) -> Chosen:
    """Choose kernels, length scales and kinds of features, so far as the options leave them open."""
    dataset, widths = prepared.dataset, choices.widths
    candidates, chosen = choices.candidates, Chosen([], [], [])
    if choices.choosing:
        assert choices.by is not None
        first = _FirstRound(prepared, choices.options, draws, choices.by, widths[-1])
        tries = first.run(candidates)
        candidates = _finalists(tries, n_samples=dataset.n_samples, n_components=widths[-1])
        chosen = Chosen([], [trial.row for trial in tries], [])
        # from few rows a table takes 6 to 13 ms, from sums 55 to 70: only the best map is summed
        if dataset.n_samples <= FEW_ROWS and choices.folds is not None and len(widths) == 1:
            best, *others = first.final(candidates)
            candidates = [best.candidate]
            chosen = replace(chosen, losers=[trial.row for trial in others], table=best.table)
    if choices.folds is None or choices.options.solver == "pcg":
        candidates = candidates[:1]
    fixed = [replace(final, kernel=draws.kernel(final), length_scale=None) for final in candidates]
    return replace(chosen, candidates=fixed)


def _finalists(tries: Sequence[_Try], *, n_samples: int, n_components: int) -> list[Candidate]:
    """Return the best candidate, the best with the other kind of features, and the best other kernel.

    An order of kinds and kernels that holds with few components need not hold with many, so these meet again
    if their scores are close. If the first round had all rows and components, only the best is returned.
    """
    best, *others = tries
    if n_samples <= ROUND_ROWS and n_components <= round_components(n_samples):
        return [best.candidate]
    # on airfoil Gaussian beats Matérn-3/2 with 512 Nyström features, and loses with 1,353
    finalists, limit = [best], WITHIN_REACH * float(best.row["score"])
    close = [other for other in others if float(other.row["score"]) <= limit]
    for differs in (_other_features, _other_kernel):
        finalists += [other for other in close if differs(other, best) and other not in finalists][:1]
    return [other.candidate for other in finalists]


def _other_features(other: _Try, best: _Try) -> bool:
    return bool(other.row["features"] != best.row["features"])


def _other_kernel(other: _Try, best: _Try) -> bool:
    """Return whether a candidate differs in its kernel alone, and not only by an added linear kernel."""
    first = [row["kernel"].partition(" + ")[0] for row in (other.row, best.row)]
    alike = not _other_features(other, best) and isinstance(other.candidate.kernel, Stationary)
    return alike and first[0] != first[1]


@dataclass(frozen=True, slots=True)
class _FirstRound:
    """Compares candidates on a sample of rows, with the folds of the dataset."""

    prepared: prepare.Prepared
    options: RidgeOptions
    draws: Draws
    folds: folding.Folds
    n_components: int

    def run(self, candidates: Sequence[Candidate]) -> list[_Try]:
        """Cross-validate the candidates, and others made from the best of them; the best comes first."""
        options, sample = self.options, self._sample()
        n_samples = self.prepared.dataset.n_samples
        n_rows, width = min(ROUND_ROWS, n_samples), min(round_components(n_samples), self.n_components)
        self.prepared.say("choose", f"candidates on {n_rows:,} rows with {width:,} components")
        tries = []
        for candidate in candidates:
            try:
                tries.append(self._try(candidate, sample))
            except (DataError, SolveError) as error:
                if candidate.length_scale != "evidence":
                    raise
                # constant targets, or few rows that are all alike, cannot tune length scales
                self.prepared.say("choose", f"length scales were not tuned: {error}")
        if len(options.kinds) > 1:
            ranked = self._best_first(tries)
            nonlinear = [trial for trial in ranked if not isinstance(trial.candidate.kernel, explicit.Linear)]
            for trial in nonlinear[:TRIED_WITH_NYSTROM]:
                tries.append(self._try(replace(trial.candidate, features=options.kinds[1]), sample))
        best = self._best_first(tries)[0].candidate
        if options.kernel == "auto" and self._may_add_linear(best):
            kernel = self.draws.kernel(best) + explicit.Linear()
            tries.append(self._try(Candidate(kernel, None, best.features), sample))
        return self._best_first(tries)

    def final(self, finalists: Sequence[Candidate]) -> list[_Try]:
        """Cross-validate finalists of few rows with all components; the least error comes first."""
        sample = self._sample()
        tries = [self._try(candidate, sample, n_components=self.n_components) for candidate in finalists]
        return sorted(tries, key=lambda candidate: float(candidate.row["score"]))

    def _sample(self) -> samples.FoldSample:
        return samples.sample_folds(self.prepared.dataset, self.folds, n_rows=ROUND_ROWS)

    def _best_first(self, tries: Sequence[_Try]) -> list[_Try]:
        """Sort by error, but put the preferred one of those that may be as good as the best first.

        A difference within one standard error, fold by fold, may be chance. Among such candidates a linear
        model is preferred, as the simplest. Next come length scales tuned on many rows: those rows, which no
        fold validates on, are evidence for them too. Sums of kernels come last.
        """
        ranked = sorted(tries, key=lambda trial: float(trial.row["score"]))
        as_good = [trial for trial in ranked[1:] if _within_one_standard_error(trial, ranked[0])]
        # least errors alone would take energy from 0.044 to 0.049, and concrete from 0.253 to 0.260
        favourite = min([ranked[0], *as_good], key=self._preference)
        return [favourite, *(trial for trial in ranked if trial is not favourite)]

    def _preference(self, trial: _Try) -> int:
        candidate, dataset = trial.candidate, self.prepared.dataset
        trusted = dataset.n_samples >= trusted_samples(dataset)
        if isinstance(candidate.kernel, explicit.Linear):
            return 0
        if candidate.length_scale == "evidence" and trusted:
            return 1
        return 2 if isinstance(candidate.kernel, Stationary) else 3

    def _may_add_linear(self, best: Candidate) -> bool:
        """Return whether linear components leave room for others, and the map will not be shortened."""
        width = min(round_components(self.prepared.dataset.n_samples), self.n_components)
        room = 2 * self.prepared.dataset.n_features <= width
        return room and not are_several(self.options.n_components) and isinstance(best.kernel, Stationary)

    def _try(
        self, candidate: Candidate, sample: samples.FoldSample, *, n_components: int | None = None
    ) -> _Try:
        width = round_components(self.prepared.dataset.n_samples)
        if not isinstance(candidate.kernel, Stationary):  # linear terms take a component per column
            width = max(width, 2 * self.prepared.dataset.n_features)
        feature_map = self.draws.feature_map(candidate, n_components or min(width, self.n_components))
        table = self._table(feature_map, sample)
        row = _describe(feature_map, table, len(sample.X), "first" if n_components is None else "final")
        if n_components is None:
            self.prepared.say("choose", describe.candidate_words(row))
        at = int(np.flatnonzero(table.alphas == table.best.alpha)[0])
        return _Try(candidate, row, table, table.split_scores()[:, 0, at])

    def _table(self, feature_map: FeatureMap, sample: samples.FoldSample) -> cross_validation.CrossValidation:
        """Cross-validate on a sample: few rows directly, more by the sums of their folds."""
        options, serial = self.options, SerialEngine()
        grid = options.penalty.grid
        grid = grid if grid is None or np.all(grid > 0) else None
        folds = folding.SampledFolds(self.folds.n_folds, self.folds)
        if len(sample.X) <= FEW_ROWS:
            table = row_folds.cross_validate_rows(
                feature_map.transform(sample.X),
                sample,
                folds,
                alphas=grid,
                fit_intercept=options.fit_intercept,
                repeated=self.prepared.frequency_weights,
            )
            if table is not None:
                return table
        assigned = columns.as_column(sample.fold_of_row, name="folds")
        rows = labelled.GroupedDataset(memory.ArrayDataset(sample.X, sample.y, sample.weights), assigned)
        member = replace(self.prepared, dataset=rows, engine=serial).accumulation(feature_map)
        (parts,) = passes.accumulate_folds(rows, [member], folds=folds, engine=serial)
        return cross_validation.cross_validate(parts, alphas=grid, fit_intercept=options.fit_intercept)


def _within_one_standard_error(other: _Try, best: _Try) -> bool:
    if len(other.split_scores) < 2:
        return False  # one split has no standard error
    # the splits are the same, so that what makes their rows hard to predict cancels
    differences = np.subtract(other.split_scores, best.split_scores)
    return bool(differences.mean() <= differences.std(ddof=1) / np.sqrt(len(differences)))


def _describe(
    feature_map: FeatureMap, table: cross_validation.CrossValidation, n_samples: int, when: str
) -> describe.Row:
    best = table.best
    return {
        "round": when,
        "n_samples": n_samples,
        **describe.describe_features(feature_map),
        "n_components": feature_map.n_components,
        "alpha": best.alpha,
        "score": best.score,
        "standard_error": None if np.isnan(best.standard_error) else best.standard_error,
    }
