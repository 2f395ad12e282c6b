"""Fit with what an expert would try: kernel, length scales and kind of features are chosen by the folds.

1. **Candidates.** Gaussian and Matérn-3/2 kernels with random Fourier features. Each has one length scale
   per column, tuned by the evidence, or a multiple of the median distance between rows. A linear model
   competes too, so that the choice is not worse than it.
2. **A first round**, on up to 10,000 rows and with few components, in this process. The best kernels are
   tried with Nyström features too, and the best of all with a linear kernel added to it.
3. **The final**: the best candidate, and the best ones with the other kind of features and another kernel,
   meet on all rows with all components, in one reading. The model comes from the winner's sums: nothing is
   fitted twice.

With few rows, errors come from the rows themselves (`selection.row_folds`), in the final too, and only the
winner's sums are made. Its alpha is then chosen by leaving out each row in turn (`selection.few_rows`).

All errors are cross-validated, with the same folds. Length scales are tuned on rows that no fold
validates on (`data.folds.hold_in`). Options that are given are kept; if all are, there is no first round.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rff_dist.data import samples
from rff_dist.data.blocks import Dataset
from rff_dist.data.folds import Folds, SampledFolds, hold_in
from rff_dist.data.labelled import GroupedDataset, LabelledDataset
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.protocol import Engine
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import DataError, InvalidParameterError, SolveError
from rff_dist.features.draw import in_high_precision
from rff_dist.features.evidence import TUNING_ROWS, check_tunable
from rff_dist.features.feature_map import FeatureMap
from rff_dist.features.nystrom import Nystrom
from rff_dist.kernels.base import Kernel
from rff_dist.kernels.explicit import Linear
from rff_dist.kernels.find import find_kernel
from rff_dist.kernels.stationary import Gaussian, Matern, Stationary, parts_without_length_scale
from rff_dist.kernels.text import shortened_text
from rff_dist.ridge.candidates import Candidate, Draws, TimesMedian
from rff_dist.ridge.choices import (
    AUTO_COMPONENTS,
    PlanFit,
    default_folds,
    plan_choices,
    planner,
    prepare_folds,
)
from rff_dist.ridge.describe import Row, describe_candidate, describe_features
from rff_dist.ridge.fit import Readings, Trained, train, train_folds, train_without_sums, with_held_out_scores
from rff_dist.ridge.options import Penalty, RidgeOptions, are_several
from rff_dist.ridge.plan import check_solver_plan, plan_readings
from rff_dist.ridge.prepare import Prepared, prepare
from rff_dist.selection.cross_validation import CrossValidation, cross_validate
from rff_dist.selection.row_folds import cross_validate_rows
from rff_dist.statistics import passes
from rff_dist.storage.columns import as_column
from rff_dist.typing import FloatArray

logger = logging.getLogger(__name__)


ROUND_ROWS = 10_000
ROUND_COMPONENTS = 512
MULTIPLES = (0.5, 1.0, 2.0, 4.0)  # of the median distance between rows
TRIED_WITH_NYSTROM = 3
# Times the best score of the first round. On six real sets no winner of the final was above 1.25 times it.
WITHIN_REACH = 1.3
TUNED_ON = 2000  # rows that tune candidates' length scales; at most half of all rows
TUNING_STARTS = 4
# Up to which alpha is chosen by leaving out each row, and length scales are tuned more quickly. Concrete with
# 927 rows, of which many are alike, would err by 4 % more that way.
FEW_ROWS = 500
# Half of fewer rows are too few to tune length scales, as are fewer tuning rows than columns. 50 rows gain:
# with 5 and 20 columns they err by 0.31 and 0.35 deviations, and by 0.48 and 0.56 without tuning.
MIN_TUNED_SAMPLES = 40
# With fewer rows than these, or fewer tuning rows for each column, tuned length scales are not preferred to
# others whose error is as small.
TRUSTED_SAMPLES = 200
TRUSTED_PER_COLUMN = 10


def candidates_of(options: RidgeOptions, dataset: Dataset) -> list[Candidate]:
    """Return the candidates that the first round begins with; just one if there is nothing to choose."""
    first = options.kinds[0]
    if options.kernel == "auto":
        kernels: list[Kernel] = [Gaussian(), Matern(nu=1.5)]
        linear = not are_several(options.n_components)
    else:
        kernels, linear = [find_kernel(options.kernel)], False
    found = [
        Candidate(kernel, length_scale, first)
        for kernel in kernels
        for length_scale in _length_scales(options, kernel, dataset)
    ]
    return [*found, *([Candidate(Linear(), None, "fourier")] if linear else [])]


def _length_scales(options: RidgeOptions, kernel: Kernel, dataset: Dataset) -> list[Any]:
    """Return the length scales that a kernel is tried with."""
    given = options.length_scale
    if not isinstance(given, str):
        return [given]
    if given == "evidence":
        check_tunable(kernel)
        return [given]
    if given not in ("auto", "median"):
        raise InvalidParameterError(
            f"`length_scale` is {given!r}; expected 'auto', 'median', 'evidence' or numbers above 0"
        )
    if given == "median" and isinstance(kernel, Stationary):
        return [TimesMedian(1.0)]
    if given == "median" or not parts_without_length_scale(kernel):
        return [None]  # the kernel has its own, needs none, or gets the median where it is drawn
    # few rows of classes can be separated exactly, which the evidence mistakes for good length scales
    classes = isinstance(dataset, LabelledDataset)
    least = _trusted_samples(dataset) if classes else max(MIN_TUNED_SAMPLES, 2 * dataset.n_features)
    tunable = isinstance(kernel, Stationary) and dataset.n_samples >= least
    return [*(["evidence"] if tunable else []), *map(TimesMedian, MULTIPLES)]


@dataclass(frozen=True, slots=True)
class Choices:
    """What a fit begins with, before any pass.

    `candidates`: those that the first round begins with; just one if nothing is chosen.
    `kinds`: the kinds of features to compare.
    `kernels`: whether the kernel is chosen.
    `penalty`: how alpha is found, given the memory there is.
    `folds`: the folds of the final pass. Each is summed separately, and alpha is chosen by them.
    `widths`: numbers of components, ascending.
    `n_tuned_on`: the most rows that length scales are tuned on.
    """

    candidates: list[Candidate]
    kinds: list[str | Nystrom]
    kernels: bool
    penalty: Penalty
    folds: Folds | None
    widths: list[int]
    n_tuned_on: int

    @property
    def choosing(self) -> bool:
        return len(self.candidates) > 1 or len(self.kinds) > 1

    @property
    def n_tried(self) -> int:
        """The most candidates that the first round may try."""
        if not self.choosing:
            return 0
        curved = sum(not isinstance(one.kernel, Linear) for one in self.candidates)
        more = min(curved, TRIED_WITH_NYSTROM) if len(self.kinds) > 1 else 0
        return len(self.candidates) + more + self.kernels

    def n_finalists(self, n_samples: int) -> int:
        """Return how many candidates may meet again on all rows, at most."""
        first_is_final = n_samples <= ROUND_ROWS and self.widths[-1] <= round_components(n_samples)
        if not self.choosing or first_is_final or self.folds is None:
            return 1
        return 1 + (len(self.kinds) > 1) + self.kernels


def choices_of(
    dataset: Dataset, options: RidgeOptions, *, plan: PlanFit, candidates: Sequence[Candidate] | None = None
) -> Choices:
    """Return what a fit begins with, as far as memory allows; see `plan_choices`.

    `candidates` replace the kernels and length scales of the options.
    """
    found, kinds = list(candidates or candidates_of(options, dataset)), options.kinds
    if dataset.n_samples < 2:  # nothing to compare
        found, kinds = found[:1], kinds[:1]
    n_tuned_on = 0
    if any(one.length_scale == "evidence" for one in found):  # asked for by name, it takes more rows
        n_tuned_on = TUNED_ON if len(found) > 1 or len(kinds) > 1 else TUNING_ROWS
    penalty, folds, widths = plan_choices(
        dataset, options, features=kinds[-1], n_tuned_on=n_tuned_on, plan=plan
    )
    by_name = candidates is not None or options.kernel != "auto"
    if not by_name:  # a linear kernel takes a component per column
        fit_in = dataset.n_features <= widths[-1]
        found = [one for one in found if fit_in or not isinstance(one.kernel, Linear)]
    return Choices(found, kinds, not by_name, penalty, folds, widths, n_tuned_on)


def fit(dataset: Dataset, options: RidgeOptions, *, engine: Engine) -> Trained:
    """Choose what the options leave open by cross-validation, and train the best on all rows.

    `dataset`: with targets, and with groups if the folds are of groups.
    Returns Trained: the model's card lists all `candidates` that were tried, with their errors.
    """
    choices = choices_of(dataset, options, plan=planner(dataset, options, engine=engine))
    candidates, penalty, folds, widths = choices.candidates, choices.penalty, choices.folds, choices.widths
    choosing, n_tuned_on = choices.choosing, choices.n_tuned_on
    options = replace(options, features="auto" if len(choices.kinds) > 1 else choices.kinds[0])
    by = folds
    if choosing and folds is None:  # alpha is given or chosen otherwise: folds choose only the rest
        by = default_folds(dataset.n_samples)
        by = hold_in(by, dataset.n_samples, n_tuned_on) if n_tuned_on else by
    if by is not None:
        by = prepare_folds(dataset, by, engine=engine)
        folds = None if folds is None else by
    prepared = prepare(
        dataset, standardize=options.standardize, sample_weight_kind=options.sample_weight_kind, engine=engine
    )
    draws = Draws(prepared, options, folds=by, **(_tuning(dataset.n_samples) if choosing else {}))
    rows: list[Row] = []
    losers: list[Row] = []
    table = None
    if choosing:
        assert by is not None
        first = _FirstRound(prepared, options, draws, by, widths[-1])
        tries = first.run(candidates)
        rows = [one.row for one in tries]
        candidates = _finalists(tries, n_samples=dataset.n_samples, n_components=widths[-1])
        # from few rows a table takes 6 to 13 ms, from sums 55 to 70: only the best map is summed
        if dataset.n_samples <= FEW_ROWS and folds is not None and len(widths) == 1:
            best, *others = first.final(candidates)
            candidates, table, losers = [best.candidate], best.table, [one.row for one in others]
    if folds is None or options.solver == "pcg":
        feature_map = draws.feature_map(candidates[0], widths[-1])
        trained = _train_one(prepared, feature_map, options, penalty=penalty, folds=folds)
        trained.warn(classes=isinstance(dataset, LabelledDataset))
        return replace(trained, model=trained.model.with_card(candidates=rows)) if rows else trained
    maps = [draws.feature_map(one, widths[-1]) for one in candidates]
    trained = _train_best(prepared, maps, options, penalty=penalty, folds=folds, widths=widths, table=table)
    if options.conformal:
        trained = with_held_out_scores(
            trained, prepared, penalty, normalized=isinstance(options.conformal, str)
        )
    trained.warn(classes=isinstance(dataset, LabelledDataset))
    if not rows:
        return trained
    final = [
        {"round": "final", "n_samples": dataset.n_samples, **describe_candidate(*one)}
        for one in trained.compared
    ]
    prepared.say("choose", f"of {len(rows)} candidates: {_words(final[trained.best_index])}")
    final += losers
    return replace(trained, model=trained.model.with_card(candidates=[*final, *rows]))


def _train_one(
    prepared: Prepared,
    feature_map: FeatureMap,
    options: RidgeOptions,
    *,
    penalty: Penalty,
    folds: Folds | None,
) -> Trained:
    """Train one map without statistics of folds, by the solver that the plan takes."""
    planned = check_solver_plan(prepared.dataset, feature_map.n_components, options, engine=prepared.engine)
    make = partial(train, n_parts=planned.n_parts)
    if planned.solver == "pcg":
        prepared.say("solve", f"by conjugate gradients: {planned.reason}")
        logger.info("solving by conjugate gradients: %s", planned.reason)
        make = partial(train_without_sums, folds=folds)
    trained = make(prepared, feature_map, penalty=penalty)
    if _wants_high_precision(trained, options):
        del trained  # its sums, before those of another pass are made
        trained = make(prepared, in_high_precision(feature_map), penalty=penalty)
    return trained


def _train_best(
    prepared: Prepared,
    maps: Sequence[FeatureMap],
    options: RidgeOptions,
    *,
    penalty: Penalty,
    folds: Folds,
    widths: Sequence[int],
    table: CrossValidation | None,
) -> Trained:
    """Compare maps by the folds on all rows, and train the best; see `train_folds`."""
    at_once, n_parts = plan_readings(
        prepared.dataset,
        widths[-1],
        len(maps),
        engine=prepared.engine,
        n_folds=folds.n_folds,
        features=options.kinds[-1],
    )
    by_rows = _chooses_by_rows(options, prepared.dataset, widths[-1])
    make = partial(train_folds, prepared, penalty=penalty, folds=folds, widths=widths, by_rows=by_rows)
    trained = make(Readings(list(itertools.batched(maps, at_once)), n_parts), table=table)
    if _wants_high_precision(trained, options):
        best_index, compared = trained.best_index, list(trained.compared)
        del trained  # its sums, before those of another pass are made
        again = make(Readings([[in_high_precision(maps[best_index])]], n_parts))
        compared[best_index] = again.compared[0]
        trained = replace(again, compared=tuple(compared), best_index=best_index)
    return trained


def _chooses_by_rows(options: RidgeOptions, dataset: Dataset, n_components: int) -> bool:
    """Return whether alpha is chosen by leaving out each row: they are few, and nothing else is asked for."""
    free = options.penalty.named == "auto" and options.penalty.grid is None and options.cv is None
    return free and dataset.n_samples <= FEW_ROWS and n_components <= AUTO_COMPONENTS


def _wants_high_precision(trained: Trained, options: RidgeOptions) -> bool:
    """Return whether to fit again with float32 features, since rounding to 15 bits shows."""
    moved = trained.rounding_seen if options.precision == "auto" else None
    if moved is not None:
        logger.info(
            "fitting again with float32 features: rounding them to 15 bits moves predictions by about %.2g "
            "standard deviations of y",
            moved,
        )
    return moved is not None


def _trusted_samples(dataset: Dataset) -> int:
    """Return how many rows there must be for tuned length scales to be preferred; see `_best_first`."""
    return max(TRUSTED_SAMPLES, 2 * TRUSTED_PER_COLUMN * dataset.n_features)


def _tuning(n_samples: int) -> dict[str, int]:
    """Return the `EvidenceSearch` of candidates, quicker than that of `length_scale="evidence"`."""
    n_components = 128 if n_samples <= FEW_ROWS else 256
    return {"n_samples": TUNED_ON, "n_starts": TUNING_STARTS, "n_components": n_components}


def round_components(n_samples: int) -> int:
    """Return the first round's number of components: 512, or ¼ to ½ of the rows if less."""
    return min(ROUND_COMPONENTS, max(64, 1 << (n_samples // 4 - 1).bit_length()))


def _finalists(tries: Sequence[_Try], *, n_samples: int, n_components: int) -> list[Candidate]:
    """Return the best candidate, the best with the other kind of features, and the best other kernel.

    An order of kinds and kernels that holds with few components need not hold with many, so these meet again
    if their scores are close. If the first round had all rows and components, only the best is returned.
    """
    best, *others = tries
    if n_samples <= ROUND_ROWS and n_components <= round_components(n_samples):
        return [best.candidate]
    # on airfoil Gaussian beats Matérn-3/2 with 512 Nyström features, and loses with 1,353
    found, limit = [best], WITHIN_REACH * float(best.row["score"])
    close = [one for one in others if float(one.row["score"]) <= limit]
    for differs in (_other_features, _other_kernel):
        found += [one for one in close if differs(one, best) and one not in found][:1]
    return [one.candidate for one in found]


def _other_features(one: _Try, best: _Try) -> bool:
    return bool(one.row["features"] != best.row["features"])


def _other_kernel(one: _Try, best: _Try) -> bool:
    """Return whether a candidate differs in its kernel alone, and not only by an added linear kernel."""
    first = [row["kernel"].partition(" + ")[0] for row in (one.row, best.row)]
    alike = not _other_features(one, best) and isinstance(one.candidate.kernel, Stationary)
    return alike and first[0] != first[1]


@dataclass(frozen=True, slots=True)
class _Try:
    """A candidate of the first round, and its errors."""

    candidate: Candidate
    row: Row
    table: CrossValidation
    split_scores: FloatArray


@dataclass(frozen=True, slots=True)
class _FirstRound:
    """Compares candidates on a sample of rows, with the folds of the dataset."""

    prepared: Prepared
    options: RidgeOptions
    draws: Draws
    folds: Folds
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
            nonlinear = [one for one in ranked if not isinstance(one.candidate.kernel, Linear)]
            for one in nonlinear[:TRIED_WITH_NYSTROM]:
                tries.append(self._try(replace(one.candidate, features=options.kinds[1]), sample))
        best = self._best_first(tries)[0].candidate
        if options.kernel == "auto" and self._may_add_linear(best):
            kernel = self.draws.kernel(best) + Linear()
            tries.append(self._try(Candidate(kernel, None, best.features), sample))
        return self._best_first(tries)

    def final(self, finalists: Sequence[Candidate]) -> list[_Try]:
        """Cross-validate finalists of few rows with all components; the least error comes first."""
        sample = self._sample()
        tries = [self._try(one, sample, n_components=self.n_components) for one in finalists]
        return sorted(tries, key=lambda one: float(one.row["score"]))

    def _sample(self) -> samples.FoldSample:
        return samples.sample_folds(self.prepared.dataset, self.folds, n_rows=ROUND_ROWS)

    def _best_first(self, tries: Sequence[_Try]) -> list[_Try]:
        """Sort by error, but put the preferred one of those that may be as good as the best first.

        A difference within one standard error, fold by fold, may be chance. Among such candidates a linear
        model is preferred, as the simplest. Next come length scales tuned on many rows: those rows, which no
        fold validates on, are evidence for them too. Sums of kernels come last.
        """
        ranked = sorted(tries, key=lambda one: float(one.row["score"]))
        as_good = [one for one in ranked[1:] if _within_one_standard_error(one, ranked[0])]
        # least errors alone would take energy from 0.044 to 0.049, and concrete from 0.253 to 0.260
        favourite = min([ranked[0], *as_good], key=self._preference)
        return [favourite, *(one for one in ranked if one is not favourite)]

    def _preference(self, one: _Try) -> int:
        candidate, dataset = one.candidate, self.prepared.dataset
        trusted = dataset.n_samples >= _trusted_samples(dataset)
        if isinstance(candidate.kernel, Linear):
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
            self.prepared.say("choose", _words(row))
        at = int(np.flatnonzero(table.alphas == table.best.alpha)[0])
        return _Try(candidate, row, table, table.split_scores()[:, 0, at])

    def _table(self, feature_map: FeatureMap, sample: samples.FoldSample) -> CrossValidation:
        """Cross-validate on a sample: few rows directly, more by the sums of their folds."""
        options, serial = self.options, SerialEngine()
        grid = options.penalty.grid
        grid = grid if grid is None or np.all(grid > 0) else None
        folds = SampledFolds(self.folds.n_folds, self.folds)
        if len(sample.X) <= FEW_ROWS:
            table = cross_validate_rows(
                feature_map.transform(sample.X),
                sample,
                folds,
                alphas=grid,
                fit_intercept=options.fit_intercept,
                repeated=self.prepared.frequency_weights,
            )
            if table is not None:
                return table
        rows = GroupedDataset(
            ArrayDataset(sample.X, sample.y, sample.weights), as_column(sample.fold_of_row, name="folds")
        )
        member = replace(self.prepared, dataset=rows, engine=serial).accumulation(feature_map)
        (parts,) = passes.accumulate_folds(rows, [member], folds=folds, engine=serial)
        return cross_validate(parts, alphas=grid, fit_intercept=options.fit_intercept)


def _within_one_standard_error(one: _Try, best: _Try) -> bool:
    if len(one.split_scores) < 2:
        return False  # one split has no standard error
    # the splits are the same, so that what makes their rows hard to predict cancels
    differences = np.subtract(one.split_scores, best.split_scores)
    return bool(differences.mean() <= differences.std(ddof=1) / np.sqrt(len(differences)))


def _describe(feature_map: FeatureMap, table: CrossValidation, n_samples: int, when: str) -> Row:
    best = table.best
    return {
        "round": when,
        "n_samples": n_samples,
        **describe_features(feature_map),
        "n_components": feature_map.n_components,
        "alpha": best.alpha,
        "score": best.score,
        "standard_error": None if np.isnan(best.standard_error) else best.standard_error,
    }


def _words(row: Row) -> str:
    scale = row["length_scale"]
    given = "" if scale is None else ", a length scale per column"
    given = f", length scale {scale:.3g}" if isinstance(scale, float) else given
    return (
        f"{shortened_text(row['kernel'])}{given}, {row['n_components']:,} {row['features']} features: "
        f"error {row['score']:.4g} of the variance"
    )
