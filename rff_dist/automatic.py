"""Fit with what an expert would try: kernel, length scales and kind of features are chosen by the folds.

1. **Candidates.** Gaussian and Matérn-3/2 kernels, with one length scale per column that the evidence tuned,
   and with multiples of the median distance between rows; random Fourier features. A linear model beside
   them, so that nothing is worse than one.
2. **A first round**, on up to 10,000 rows and with few components, in this process. The best kernels are
   tried with Nyström features too, and the best of all with a linear kernel added to it.
3. **The final**: the best, and the best with the other kind of features, on all rows and with all components,
   in one reading. The model comes from the winner's sums: nothing is fitted twice.

All errors are of rows that were held out, from the same folds. Length scales are tuned by rows that no fold
validates on; see `folds.hold_in`. What is given is kept, and where all is given there is no first round.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist import drawing, pipeline
from rff_dist.blocks import Dataset
from rff_dist.cross_validation import CrossValidation, cross_validate
from rff_dist.engines import Engine
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import InvalidParameterError
from rff_dist.evidence import check_tunable
from rff_dist.feature_map import FeatureMap, Nystrom
from rff_dist.folds import Folds, SampledFolds
from rff_dist.frequencies import Design
from rff_dist.kernels import (
    Gaussian,
    Kernel,
    LengthScale,
    Linear,
    Matern,
    Stationary,
    find_design,
    find_kernel,
    with_length_scale,
)
from rff_dist.search import (
    Candidate,
    Draws,
    Row,
    TimesMedian,
    describe_candidate,
    kernel_text,
    plan_readings,
)
from rff_dist.storage import ArrayDataset
from rff_dist.storage.columns import as_column
from rff_dist.storage.labelled import GroupedDataset

__all__ = ["RidgeOptions", "fit"]

logger = logging.getLogger(__name__)

type FloatArray = NDArray[np.float64]

ROUND_ROWS = 10_000
ROUND_COMPONENTS = 512
MULTIPLES = (0.5, 1.0, 2.0, 4.0)  # of the median distance between rows
TRIED_WITH_NYSTROM = 3
TUNED_ON = 2000  # rows by which length scales are tuned, and of which half at most
TUNING_STARTS = 2
MIN_TUNED_SAMPLES = 200  # half of fewer rows are too few to tune a length scale per column by


@dataclass(frozen=True, slots=True, kw_only=True)
class RidgeOptions:
    """What a fit is to use. "auto" leaves a choice to the folds; see `pipeline.fit` for the rest.

    Attributes
    ----------
    kernel : "auto", str or Kernel
        "auto" compares Gaussian and Matérn-3/2 kernels, a linear one, and sums of these.
    length_scale : "auto", "median", "evidence", number(s) or None
        "auto" compares length scales that the evidence tuned, one per column, with multiples of the median
        distance between rows. None keeps the kernel's own.
    features : "auto", "fourier", "nystrom" or Nystrom
        "auto" compares Fourier and Nyström features.
    n_components, alpha, alphas, cv, conformal, map, standardize, fit_intercept, seed
        As in `pipeline.fit`.
    design : str, Design or None
        None is each kernel's own; see `default_design`.
    """

    kernel: str | Kernel = "auto"
    length_scale: str | LengthScale | None = "auto"
    features: str | Nystrom = "auto"
    n_components: pipeline.Components = "auto"
    alpha: pipeline.Alpha = "auto"
    alphas: Sequence[float] | None = None
    cv: int | Folds | None = None
    conformal: bool = False
    design: str | Design | None = None
    map: str = "pairs"
    standardize: bool = True
    fit_intercept: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        _ = self.penalty  # checks itself
        for kind in self.kinds:
            drawing.find_features(kind)
            if not isinstance(self.n_components, str) or self.n_components != "auto":
                pipeline.read_widths(self.n_components, "phases", kind)
        if self.design is not None:
            find_design(self.design)

    @property
    def penalty(self) -> pipeline.Penalty:
        """How alpha is found."""
        return pipeline.Penalty(self.alpha, self.alphas, self.fit_intercept)

    @property
    def kinds(self) -> list[str | Nystrom]:
        """The kinds of features to compare."""
        automatic = isinstance(self.features, str) and self.features == "auto"
        return ["fourier", "nystrom"] if automatic else [self.features]

    def candidates(self, dataset: Dataset) -> list[Candidate]:
        """Return what the first round begins with; one candidate where there is nothing to choose."""
        first = self.kinds[0]
        if isinstance(self.kernel, str) and self.kernel == "auto":
            kernels: list[Kernel] = [Gaussian(), Matern(nu=1.5)]
            linear = not _several(self.n_components)
        else:
            kernels, linear = [find_kernel(self.kernel)], False
        found = [
            Candidate(kernel, length_scale, first)
            for kernel in kernels
            for length_scale in self._length_scales(kernel, dataset)
        ]
        return [*found, *([Candidate(Linear(), None, "fourier")] if linear else [])]

    def _length_scales(self, kernel: Kernel, dataset: Dataset) -> list[Any]:
        """Return the length scales that a kernel is tried with."""
        given = self.length_scale
        if not isinstance(given, str):
            return [given]
        if given == "evidence":
            check_tunable(kernel)
            return [given]
        if given not in ("auto", "median"):
            raise InvalidParameterError(
                f"`length_scale` is {given!r}; expected 'auto', 'median', 'evidence' or numbers above 0"
            )
        if not isinstance(kernel, Stationary):
            return [None]
        if given == "median":
            return [TimesMedian(1.0)]
        tuned = ["evidence"] if dataset.n_samples >= MIN_TUNED_SAMPLES else []
        return [*tuned, *map(TimesMedian, MULTIPLES)]


def fit(dataset: Dataset, options: RidgeOptions, *, engine: Engine) -> pipeline.Trained:
    """Choose what the options leave open by cross-validation, and train the best on all rows.

    Parameters
    ----------
    dataset : Dataset
        With targets, and with groups where folds are of groups.
    options : RidgeOptions
    engine : Engine

    Returns
    -------
    Trained
        The card of its model has all `candidates` that were tried, with their errors.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range.
    DataError
        If values cannot be used.
    PlanError
        If memory does not do.
    """
    candidates = options.candidates(dataset)
    tuned = any(candidate.length_scale == "evidence" for candidate in candidates)
    choosing = len(candidates) > 1 or len(options.kinds) > 1
    # length scales that were asked for by name are tuned with the care that `pipeline.fit` takes
    n_tuned_on = TUNED_ON if choosing else drawing.TUNING_ROWS
    penalty, folds, widths = pipeline.plan_choices(
        dataset,
        options.penalty,
        cv=options.cv,
        n_components=options.n_components,
        map=options.map,
        features=options.kinds[-1],
        conformal=options.conformal,
        n_tuned_on=n_tuned_on if tuned else 0,
        engine=engine,
    )
    if options.kernel == "auto":  # a linear kernel takes a component per column
        fit_in = dataset.n_features <= widths[-1]
        candidates = [one for one in candidates if fit_in or not isinstance(one.kernel, Linear)]
    by = folds
    if choosing and folds is None:  # alpha is given, or chosen by something else: folds choose the rest
        by = pipeline.folds_to_choose_by(dataset.n_samples, n_tuned_on if tuned else 0)
    if by is not None:
        pipeline.check_folds(dataset, by)
    prepared = pipeline.prepare(dataset, standardize=options.standardize, engine=engine)
    draws = Draws(
        prepared,
        design=options.design,
        map=options.map,
        seed=options.seed,
        folds=by,
        **({"n_samples": n_tuned_on, "n_starts": TUNING_STARTS} if choosing else {}),
    )
    tries = []
    if choosing:
        assert by is not None
        tries = _FirstRound(prepared, options, draws, by, widths[-1]).run(candidates)
        candidates = _finalists(tries, n_samples=dataset.n_samples, n_components=widths[-1])
    rows = [one.row for one in tries]
    if folds is None:
        feature_map = draws.feature_map(candidates[0], widths[-1], features=options.kinds[0])
        trained = pipeline.train(prepared, feature_map, penalty=penalty)
        return replace(trained, model=trained.model.with_card(candidates=rows)) if rows else trained
    maps = [draws.feature_map(one, widths[-1], features=options.kinds[0]) for one in candidates]
    readings = plan_readings(
        dataset,
        widths[-1],
        len(maps),
        engine=engine,
        n_folds=folds.n_folds,
        features=options.kinds[-1],
    )
    trained = pipeline.train_folds(
        prepared,
        [[maps[i] for i in reading] for reading in readings],
        penalty=penalty,
        folds=folds,
        widths=widths,
        conformal=options.conformal,
    )
    if not rows:
        return trained
    final = [
        {"round": "final", "n_samples": dataset.n_samples, **describe_candidate(*one)}
        for one in trained.compared
    ]
    prepared.say("choose", f"of {len(rows)} candidates: {_words(final[trained.best_index])}")
    return replace(trained, model=trained.model.with_card(candidates=[*final, *rows]))


def _finalists(tries: Sequence[_Try], *, n_samples: int, n_components: int) -> list[Candidate]:
    """Return the best candidate, the best with the other kind of features, and the best other kernel.

    What few components say of kinds and kernels need not hold for many, so these meet again. Only the best
    remains where the first round had all rows and components: then it was the final.
    """
    best, *others = tries
    if n_samples <= ROUND_ROWS and n_components <= ROUND_COMPONENTS:
        return [best.candidate]
    found = [best]
    for name in ("features", "kernel"):
        found += [one for one in others if one.row[name] != best.row[name] and one not in found][:1]
    return [one.candidate for one in found]


@dataclass(frozen=True, slots=True)
class _Try:
    """A candidate of the first round, and what became of it."""

    candidate: Candidate
    row: Row
    split_scores: FloatArray


@dataclass(frozen=True, slots=True)
class _FirstRound:
    """Candidates on a sample of rows, whose folds are those of the dataset."""

    prepared: pipeline.Prepared
    options: RidgeOptions
    draws: Draws
    folds: Folds
    n_components: int

    def run(self, candidates: Sequence[Candidate]) -> list[_Try]:
        """Cross-validate candidates, and more that follow from the best of them; the best comes first."""
        options = self.options
        sample = drawing.sample_folds(self.prepared.dataset, self.folds, n_rows=ROUND_ROWS)
        tries = [self._try(candidate, sample) for candidate in candidates]
        if len(options.kinds) > 1:
            nonlinear = [one for one in _best_first(tries) if not isinstance(one.candidate.kernel, Linear)]
            for one in nonlinear[:TRIED_WITH_NYSTROM]:
                tries.append(self._try(replace(one.candidate, features=options.kinds[1]), sample))
        best = _best_first(tries)[0].candidate
        if options.kernel == "auto" and self._may_add_linear(best):
            kernel = with_length_scale(best.kernel, self.draws.length_scale(best) or 1.0)
            tries.append(self._try(Candidate(kernel + Linear(), None, best.features), sample))
        return _best_first(tries)

    def _may_add_linear(self, best: Candidate) -> bool:
        """Return whether columns leave room for other components, and these are not to be shortened."""
        room = 2 * self.prepared.dataset.n_features <= min(ROUND_COMPONENTS, self.n_components)
        return room and not _several(self.options.n_components) and isinstance(best.kernel, Stationary)

    def _try(self, candidate: Candidate, sample: drawing.FoldSample) -> _Try:
        options, serial = self.options, SerialEngine()
        width = ROUND_COMPONENTS
        if not isinstance(candidate.kernel, Stationary):  # linear terms take a component per column
            width = max(width, 2 * self.prepared.dataset.n_features)
        width = min(width, self.n_components)
        feature_map = self.draws.feature_map(candidate, width, features=options.kinds[0])
        rows = GroupedDataset(
            ArrayDataset(sample.X, sample.y, sample.weights), as_column(sample.fold_of_row, name="folds")
        )
        member = replace(self.prepared, dataset=rows, engine=serial).accumulation(feature_map)
        folds = SampledFolds(self.folds.n_folds, self.folds)
        (parts,) = pipeline.accumulate_folds(rows, [member], folds=folds, engine=serial)
        alpha = options.alpha
        grid = options.alphas if isinstance(alpha, str) else np.atleast_1d(np.asarray(alpha, np.float64))
        table = cross_validate(parts, alphas=grid, fit_intercept=options.fit_intercept)
        row = _describe(feature_map, table, len(sample.X))
        self.prepared.say("choose", _words(row))
        at = int(np.flatnonzero(table.alphas == table.best.alpha)[0])
        return _Try(candidate, row, table.split_scores()[:, 0, at])


def _best_first(tries: Sequence[_Try]) -> list[_Try]:
    """Sort by error; first comes the best whose length scales were tuned, where it may be as good.

    Errors of the same folds are compared fold by fold. What lies within one standard error of the least may
    be chance, and then the rows that length scales were tuned by, which no fold validates on, have a say.
    """
    ranked = sorted(tries, key=lambda one: float(one.row["score"]))
    tuned = [one for one in ranked if one.candidate.length_scale == "evidence"]
    if tuned and _within_one_standard_error(tuned[0], ranked[0]):
        ranked.remove(tuned[0])
        ranked.insert(0, tuned[0])
    return ranked


def _within_one_standard_error(one: _Try, best: _Try) -> bool:
    if len(one.split_scores) < 2:
        return False  # one split has no standard error
    differences = np.subtract(one.split_scores, best.split_scores)
    return bool(differences.mean() <= differences.std(ddof=1) / np.sqrt(len(differences)))


def _several(n_components: pipeline.Components) -> bool:
    return not isinstance(n_components, str) and not pipeline.is_one_width(n_components)


def _describe(feature_map: FeatureMap, table: CrossValidation, n_samples: int) -> Row:
    kernel, best = pipeline.kernel_of(feature_map), table.best
    assert kernel is not None  # the map was drawn just now
    length_scale = getattr(kernel, "length_scale", None)
    return {
        "round": "first",
        "n_samples": n_samples,
        "kernel": kernel_text(kernel),
        "length_scale": list(length_scale) if isinstance(length_scale, tuple) else length_scale,
        "features": pipeline.kind_of(feature_map),
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
        f"{row['kernel']}{given}, {row['n_components']:,} {row['features']} features: "
        f"error {row['score']:.4g} of the variance"
    )
