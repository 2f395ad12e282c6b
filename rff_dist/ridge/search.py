"""Which kernel, which length scale, which alpha and how many components: candidates from one reading.

The rows are read and decoded once for all candidates. Each one's fold statistics then hold its whole
cross-validation, and the model of the best is solved from them too: nothing is fitted twice. Where memory
does not hold the statistics of all candidates, they share out among as few readings as do.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rff_dist.checks import check_positive
from rff_dist.data.blocks import Dataset
from rff_dist.data.folds import Folds, HeldInFolds, find_folds
from rff_dist.engines.protocol import Engine
from rff_dist.errors import InvalidParameterError, PlanError
from rff_dist.features import for_dataset, median_heuristic
from rff_dist.features.draw import shortened
from rff_dist.features.evidence import EvidenceSearch, check_tunable
from rff_dist.features.feature_map import FeatureMap
from rff_dist.features.nystrom import Nystrom
from rff_dist.frequencies.designs import Design
from rff_dist.kernels.algebra import Scaled, Sum
from rff_dist.kernels.base import (
    Kernel,
    LengthScale,
    Stationary,
    as_length_scale,
    check_design,
    default_design,
    parts_without_length_scale,
    with_length_scale,
)
from rff_dist.kernels.explicit import Linear
from rff_dist.kernels.find import find_kernel
from rff_dist.ridge import fit as pipeline
from rff_dist.ridge.model import RidgeModel
from rff_dist.selection.alphas import RESOLUTION, PerTarget
from rff_dist.selection.cross_validation import CrossValidation
from rff_dist.typing import FloatArray

__all__ = [
    "DEFAULT_COMPONENTS",
    "DEFAULT_KERNELS",
    "DEFAULT_LENGTH_SCALES",
    "Candidate",
    "Draws",
    "Search",
    "TimesMedian",
    "check_candidates",
    "check_choices",
    "choose",
    "describe_candidate",
    "draw_candidates",
    "kernel_text",
    "make_candidates",
    "plan_readings",
    "read_length_scale",
    "search",
    "shortened_text",
]

logger = logging.getLogger(__name__)

type Width = str | LengthScale | TimesMedian | None
type Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TimesMedian:
    """A length scale as a multiple of the median distance between rows, in the kernel's metric.

    Attributes
    ----------
    factor : float
        Above 0; 1 is the median heuristic.
    """

    factor: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", check_positive(self.factor, "factor"))

    def __str__(self) -> str:
        return f"{self.factor:g}x"


DEFAULT_KERNELS = ("gaussian", "matern:nu=1.5")
DEFAULT_LENGTH_SCALES: tuple[Width, ...] = tuple(TimesMedian(factor) for factor in (0.25, 0.5, 1.0, 2.0, 4.0))
DEFAULT_COMPONENTS = 1024  # of a search, whose candidates each take a pass and a table of n_components³


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel, its length scale and the kind of its features.

    Attributes
    ----------
    kernel : Kernel
    length_scale : TimesMedian, "evidence", number(s) or None
        In the place of a kernel's own. Of a sum or product, `TimesMedian` and numbers are those of its parts
        without one, a multiple of the median in each part's own columns. None keeps the kernel's own; parts
        without one get the median.
    features : "fourier", "nystrom", Nystrom or None
        None is what the search is told.
    """

    kernel: Kernel
    length_scale: Width = TimesMedian(1.0)
    features: str | Nystrom | None = None

    def __post_init__(self) -> None:
        if isinstance(self.length_scale, TimesMedian):
            with_length_scale(self.kernel, 1.0)
        elif isinstance(self.length_scale, str):
            if self.length_scale != "evidence":
                raise InvalidParameterError(
                    f"`length_scale` is {self.length_scale!r}; see `read_length_scale`"
                )
            check_tunable(self.kernel)
        elif self.length_scale is not None:
            with_length_scale(self.kernel, self.length_scale)
            object.__setattr__(self, "length_scale", as_length_scale(self.length_scale))


def read_length_scale(value: Any) -> Width:
    """Return what a length scale among several is, as one types it.

    Parameters
    ----------
    value : number(s), str, TimesMedian or None
        A multiple of the median distance as text: "0.5x"; "median" is "1x". "evidence" tunes one length scale
        per column; None keeps the kernel's own.

    Raises
    ------
    InvalidParameterError
        If it is none of these.
    """
    if value is None or isinstance(value, TimesMedian):
        return value
    if isinstance(value, str):
        if value == "evidence":
            return value
        match = re.fullmatch(r"\s*([0-9.eE+-]+)\s*x\s*", "1x" if value == "median" else value)
        try:
            return TimesMedian(float(match[1] if match else ""))
        except ValueError:
            raise InvalidParameterError(
                f"`length_scales` has {value!r}; expected numbers above 0, multiples of the median distance "
                "such as '0.5x', 'median' or 'evidence'"
            ) from None
    return as_length_scale(value)


def make_candidates(
    kernels: Sequence[str | Kernel], length_scales: Sequence[Any] | None = None
) -> list[Candidate]:
    """Return every kernel with every length scale; a kernel that can take none as it is.

    Parameters
    ----------
    kernels : sequence of str or Kernel
        See `find_kernel`. A kernel's own length scale is replaced; in sums and products, parts keep theirs.
    length_scales : sequence, optional
        See `read_length_scale`. By default ¼, ½, 1, 2 and 4 times the median distance: of six sets of the
        UCI repository with Gaussian, Matérn-3/2 and Matérn-1/2 kernels (6,000 rows, D = 384) the best of a
        grid of factors √2 lay from 0.35 to 4 medians, and the best of these five was within about one
        standard error of it, but for one set, pol, where up to 8 % are left to a finer grid.

    Raises
    ------
    InvalidParameterError
        If there is none, a kernel is unknown, or a length scale none for it.
    """
    widths = DEFAULT_LENGTH_SCALES if length_scales is None else [read_length_scale(w) for w in length_scales]
    found = [find_kernel(kernel) for kernel in kernels]
    if not found or not widths:
        raise InvalidParameterError(
            f"`kernels` are {list(kernels)} and `length_scales` {list(widths)}; expected at least one of each"
        )
    candidates: list[Candidate] = []
    for kernel in found:
        several: Sequence[Width] = widths
        if not isinstance(kernel, Stationary):  # the evidence tunes one kernel, not several together
            own = parts_without_length_scale(kernel)
            several = [width for width in widths if own and width != "evidence"] or [None]
        candidates += [Candidate(kernel, width) for width in several]
    return [one for i, one in enumerate(candidates) if one not in candidates[:i]]


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Candidates compared by exact k-fold cross-validation, and the model of the best.

    Attributes
    ----------
    model : RidgeModel
        Of the best candidate, trained on all rows. Its `selection` holds the best one's whole table, its
        card's `candidates` the rows.
    solved : Solved
        Solver status, the best one's table and the place that was taken in it.
    rows : tuple of dict
        One for each candidate, in their order; see `describe_candidate` and `choose`.
    best_index : int
        The best one's row.
    n_readings : int
        How often the data were read for statistics; 1 where memory holds those of all candidates.
    """

    model: RidgeModel
    solved: pipeline.Solved
    rows: tuple[Row, ...]
    best_index: int
    n_readings: int

    @property
    def best(self) -> Row:
        """The best candidate's row."""
        return self.rows[self.best_index]


def search(
    dataset: Dataset,
    candidates: Sequence[Candidate],
    *,
    engine: Engine,
    n_components: pipeline.Components = DEFAULT_COMPONENTS,
    alpha: pipeline.Alpha = "cv",
    alphas: Sequence[float] | None = None,
    cv: int | Folds = 5,
    design: str | Design | None = None,
    map: str = "pairs",
    standardize: bool | str = "auto",
    fit_intercept: bool = True,
    seed: int = 0,
    features: str | Nystrom = "fourier",
    alpha_per_target: PerTarget = "auto",
    sample_weight_kind: str = "precision",
) -> Search:
    """Cross-validate candidates from one reading of the data, and train the best on all rows.

    O(n_samples · n_components²) for each candidate, and O(n_splits · n_components³) for its table; memory
    for every fold of every candidate, see `plan_readings`.

    Parameters
    ----------
    dataset : Dataset
        With targets, and with groups where the folds are of groups.
    candidates : sequence of Candidate
        Of equal ones the first wins.
    engine : Engine
    n_components : int, "auto" or sequence of int
        Of several, each candidate takes its smallest within one standard error of its best; see
        `ridge.fit.solve_folds`.
    alpha : "auto", "cv", "cv-1se", float or sequence of float
        See `ridge.fit.solve_folds`; "auto" is "cv".
    alphas : sequence of float, optional
        What a named `alpha` searches, in the place of the whole range.
    cv : int or Folds
    design : str, Design or None
        None is each kernel's own, see `default_design`.
    map, standardize, fit_intercept, seed, features, alpha_per_target, sample_weight_kind
        As in `ridge.fit.fit`. All candidates have one seed.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range, or a candidate has no smaller draws for several widths.
    DataError
        If a value cannot be used.
    PlanError
        If memory would not do for a single candidate.
    StatisticsError
        If a fold has no rows.
    """
    check_choices(alpha, alphas, cv=cv, n_components=n_components)
    check_candidates(candidates, dataset, design=design, features=features)
    penalty, folds, widths = pipeline.plan_choices(
        dataset,
        pipeline.Penalty(alpha, alphas, fit_intercept, alpha_per_target),
        cv=cv,
        n_components=n_components,
        map=map,
        features=features,
        n_tuned_on=for_dataset.TUNING_ROWS
        if any(one.length_scale == "evidence" for one in candidates)
        else 0,
        engine=engine,
    )
    assert folds is not None  # `cv` was given
    folds = pipeline.prepare_folds(dataset, folds, engine=engine)
    readings = plan_readings(
        dataset, widths[-1], len(candidates), engine=engine, n_folds=folds.n_folds, features=features
    )
    prepared = pipeline.prepare(
        dataset, standardize=standardize, sample_weight_kind=sample_weight_kind, engine=engine
    )
    maps = draw_candidates(
        prepared,
        candidates,
        widths=widths,
        design=design,
        map=map,
        seed=seed,
        features=features,
        folds=folds,
    )
    trained = pipeline.train_folds(
        prepared,
        [[maps[i] for i in reading] for reading in readings],
        penalty=penalty,
        folds=folds,
        widths=widths,
    )
    rows, best_index = choose([describe_candidate(*one) for one in trained.compared])
    _say_ends(rows[best_index])
    model = trained.model.with_card(candidates=list(rows))
    return Search(model, trained.best, tuple(rows), best_index, len(readings))


# -- before the data are read ----------------------------------------------------------------------


def check_choices(
    alpha: pipeline.Alpha,
    alphas: Sequence[float] | None,
    *,
    cv: int | Folds,
    n_components: pipeline.Components,
) -> Folds:
    """Return the folds, if alpha and the number of components can be chosen by them.

    Raises
    ------
    InvalidParameterError
        Otherwise.
    """
    pipeline.check_alpha(alpha)
    if alphas is not None:
        pipeline.check_alpha(alphas)
        if not isinstance(alpha, str):
            raise InvalidParameterError(f"`alpha` is {alpha!r} beside `alphas`; give one of them")
    folds = find_folds(cv)
    pipeline.folds_for(folds, alpha=alpha, n_components=n_components)
    return folds


def check_candidates(
    candidates: Sequence[Candidate],
    dataset: Dataset,
    *,
    design: str | Design | None,
    features: str | Nystrom,
) -> None:
    """Check that there are candidates, and that each suits the columns and the design.

    Raises
    ------
    InvalidParameterError
        If one does not.
    """
    if not candidates:
        raise InvalidParameterError("there is no candidate to compare; expected at least 1")
    fourier = for_dataset.find_features(features) is None
    if design is not None and not fourier:
        raise InvalidParameterError(f"`design` is {design!r}, but Nyström features have none; leave it out")
    for candidate in candidates:
        candidate.kernel.check_columns(dataset.n_features)
        if isinstance(candidate.length_scale, float | tuple):
            kernel = with_length_scale(candidate.kernel, candidate.length_scale)
            kernel.check_columns(dataset.n_features)
        if fourier:
            check_design(candidate.kernel, design or default_design(candidate.kernel), dataset.n_features)


def plan_readings(
    dataset: Dataset,
    n_components: int,
    n_candidates: int,
    *,
    engine: Engine,
    n_folds: int,
    features: str | Nystrom = "fourier",
) -> list[range]:
    """Share out candidates among as few readings of the data as memory allows.

    Raises
    ------
    PlanError
        If memory would not do for a single candidate.
    """
    for n_readings in range(1, n_candidates + 1):
        at_once = -(-n_candidates // n_readings)
        try:
            pipeline.check_plan(
                dataset,
                n_components,
                engine=engine,
                alpha="cv",
                features=features,
                n_folds=n_folds,
                n_maps=at_once,
            )
        except PlanError:
            if at_once == 1:
                raise
            continue
        readings = [range(i, min(i + at_once, n_candidates)) for i in range(0, n_candidates, at_once)]
        if len(readings) > 1:
            logger.warning(
                "memory holds the statistics of %d of %d candidates at once, so the data are read %d times",
                at_once,
                n_candidates,
                len(readings),
            )
        return readings
    raise AssertionError("unreachable: a single candidate fits, or the plan is refused")


def draw_candidates(
    prepared: pipeline.Prepared,
    candidates: Sequence[Candidate],
    *,
    widths: Sequence[int],
    design: str | Design | None,
    map: str,
    seed: int,
    features: str | Nystrom = "fourier",
    folds: Folds | None = None,
) -> list[FeatureMap]:
    """Draw every candidate's feature map at the largest of `widths`, all with one seed.

    Length scales are tuned by rows that `folds` never validate on.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range, or a map has no smaller draws for the other widths.
    """
    draws = Draws(prepared, design=design, map=map, seed=seed, folds=folds)
    maps = [draws.feature_map(candidate, widths[-1], features=features) for candidate in candidates]
    for one in maps:
        for width in widths:
            if width < one.n_components:
                shortened(one, width)  # refuses what has no smaller draws before the data are read
    return maps


class Draws:
    """Draws candidates' feature maps for one dataset; what several of them need is found once.

    Parameters
    ----------
    prepared : Prepared
    design, map, seed
        As in `search`.
    folds : Folds, or None
        Length scales are tuned by rows that these never validate on.
    **tuning
        Members of `EvidenceSearch`.
    """

    def __init__(
        self,
        prepared: pipeline.Prepared,
        *,
        design: str | Design | None,
        map: str,
        seed: int,
        folds: Folds | None,
        **tuning: Any,
    ) -> None:
        self._prepared, self._folds, self._tuning = prepared, folds, tuning
        self._design, self._map, self._seed = design, map, seed
        self._medians = median_heuristic.MedianDistances(
            prepared.dataset, standardizer=prepared.standardizer, seed=seed
        )
        self._tuned: dict[Kernel, Kernel] = {}

    def feature_map(
        self, candidate: Candidate, n_components: int, *, features: str | Nystrom = "fourier"
    ) -> FeatureMap:
        """Draw the feature map of a candidate; `features` are those of one that says nothing of them."""
        kernel = self.kernel(candidate)
        return self._prepared.draw(
            kernel,
            length_scale=None,
            n_components=n_components,
            design=self._design or default_design(kernel),
            map=self._map,
            seed=self._seed,
            features=candidate.features or features,
        )

    def kernel(self, candidate: Candidate) -> Kernel:
        """Return a candidate's kernel with its length scales in numbers."""
        kernel, given = candidate.kernel, candidate.length_scale
        if isinstance(given, TimesMedian):
            if isinstance(kernel, Stationary):
                kernel = kernel.with_length_scale(None)
            return kernel.with_default_length_scales(
                lambda part, columns: given.factor * self._medians(part, columns)
            )
        if not isinstance(given, str):
            return kernel if given is None else with_length_scale(kernel, given)
        if kernel not in self._tuned:
            self._prepared.say("tune", f"length scales of the {kernel_text(kernel)} kernel")
            self._tuned[kernel] = for_dataset.tune(
                self._prepared.inputs(self._seed),
                kernel,
                EvidenceSearch(**self._tuning),
                folds=self._folds if isinstance(self._folds, HeldInFolds) else None,
            ).kernel
        return self._tuned[kernel]


# -- what candidates are compared by ---------------------------------------------------------------


def describe_candidate(feature_map: FeatureMap, solved: pipeline.Solved) -> Row:
    """Return JSON-able facts of a cross-validated candidate.

    Returns
    -------
    row : dict
        `kernel` and `length_scale` (one number, a list, or None where the kernel has no single one);
        `features`, "fourier" or "nystrom"; `score`, the least error of its table as a share of the targets'
        variance, by which candidates are compared, and its `standard_error` (None for one split);
        `n_components` and `alpha` that were chosen (a list where targets have their own), the end of the
        grid that alpha is at, if any, as `alpha_at_end`; and their root mean squared error for each target,
        `rmse`, in its units.
    """
    table, choice = solved.cross_validation, solved.choice
    assert table is not None
    assert choice is not None
    kernel = pipeline.kernel_of(feature_map)
    length_scale = getattr(kernel, "length_scale", None)
    least = table.best
    if choice.own_alphas is not None:
        least = table.with_own_alphas(least, always=True)
    return {
        "kernel": "given" if kernel is None else kernel_text(kernel),
        "length_scale": list(length_scale) if isinstance(length_scale, tuple) else length_scale,
        "features": pipeline.kind_of(feature_map),
        "n_components": choice.n_components,
        "alpha": choice.alpha if choice.own_alphas is None else list(choice.own_alphas),
        "alpha_at_end": choice.at_end if len(table.alphas) > 1 else None,
        "score": least.score,
        "standard_error": None if np.isnan(least.standard_error) else least.standard_error,
        "rmse": _root_mean_squared_error(table, choice.n_components, solved.solution.alpha),
    }


def choose(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Row], int]:
    """Return the rows with what a comparison adds, and the index of the one with the least score.

    Of equal scores the first. A row's `within_one_standard_error` says whether its score is no more
    than one standard error of the best one's above it; `length_scale_at_end` ("lower", "upper" or None)
    whether its length scale is the least or largest of several that its kernel was tried with.

    Raises
    ------
    InvalidParameterError
        If there are no rows.
    """
    if not rows:
        raise InvalidParameterError("there is no candidate to choose from; expected at least 1")
    scores = np.array([row["score"] for row in rows])
    best_index = int(np.argmin(scores))
    limit = scores[best_index] + max(rows[best_index]["standard_error"] or 0.0, RESOLUTION)
    compared = [
        {
            **row,
            "within_one_standard_error": bool(row["score"] <= limit),
            "length_scale_at_end": _length_scale_at_end(row, rows),
        }
        for row in rows
    ]
    return compared, best_index


def kernel_text(kernel: Kernel) -> str:
    """Return a kernel, or a sum of some, as `find_kernel` reads it, without widths; others as they show.

    >>> from rff_dist.kernels.explicit import Linear
    >>> from rff_dist.kernels.stationary import Matern
    >>> kernel_text(Matern(2.0, nu=1.5) + 0.1 * Linear())
    'matern:nu=1.5 + 0.1 * linear'
    """
    if isinstance(kernel, Sum):
        return " + ".join(map(kernel_text, kernel.kernels))
    if isinstance(kernel, Scaled) and not isinstance(kernel.kernel, Sum):
        return f"{kernel.weight:g} * {kernel_text(kernel.kernel)}"
    if not isinstance(kernel, Stationary | Linear):
        return str(kernel)
    own = {f.name: getattr(kernel, f.name) for f in fields(kernel) if f.name != "length_scale"}
    if not all(isinstance(value, int | float) for value in own.values()):
        return str(kernel)
    parameters = ",".join(f"{name}={value:g}" for name, value in own.items())
    return f"{kernel.name}:{parameters}" if parameters else kernel.name


def shortened_text(text: str) -> str:
    """Return a kernel's text for people: its numbers have three digits.

    >>> shortened_text("Gaussian(length_scale=1.9087707404331382) + Linear()")
    'Gaussian(length_scale=1.91) + Linear()'
    """
    return re.sub(r"\d+\.\d{3,}(e-?\d+)?", lambda number: f"{float(number[0]):.3g}", text)


def _root_mean_squared_error(table: CrossValidation, n_components: int, alphas: FloatArray) -> list[float]:
    width = int(np.flatnonzero(table.n_components == n_components)[0])
    places = np.searchsorted(table.alphas, alphas)
    return list(np.sqrt(table.mean[width, places, np.arange(len(places))]).tolist())


def _length_scale_at_end(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str | None:
    own = row["length_scale"]
    tried = {
        other["length_scale"]
        for other in rows
        if (other["kernel"], other["features"]) == (row["kernel"], row["features"])
        and isinstance(other["length_scale"], float)
    }
    if not isinstance(own, float) or len(tried) < 2:
        return None
    return "lower" if own == min(tried) else "upper" if own == max(tried) else None


def _say_ends(row: Row) -> None:
    for name, end in (("length scale", row["length_scale_at_end"]), ("alpha", row["alpha_at_end"])):
        if end is not None:
            value = row[name.replace(" ", "_")]
            logger.info(
                "the best %s, %.3g, is at the %s end of those tried; a better one may lie beyond",
                name,
                value,
                end,
            )
