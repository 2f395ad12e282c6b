"""The main job as plain functions: inspect → draw → broadcast → accumulate → choose → solve.

`ridge.predict` goes on with the trained model: evaluate, predict, write.

Estimators, the command line and the Prefect flows are thin faces of these. Each pass goes through
an engine; everything else is arithmetic on what the passes return.
"""

from __future__ import annotations

import logging
import math
import operator
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rff_dist.data.blocks import Block, BlockTask, Dataset
from rff_dist.data.folds import (
    MAX_BALANCED_GROUPS,
    Folds,
    GroupFolds,
    HashFolds,
    HeldInFolds,
    find_folds,
    folds_to_dict,
    hold_in,
)
from rff_dist.engines.progress import Announcer, Remark
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError, InvalidParameterError, PlanError, StatisticsError
from rff_dist.features.draw import shortened
from rff_dist.features.feature_map import FeatureMap, Standardizer
from rff_dist.features.for_dataset import TUNING_ROWS, Inputs, Recipe, check_width, draw, find_features
from rff_dist.features.nystrom import Nystrom, NystromFeatureMap
from rff_dist.features.principal import PrincipalFeatureMap
from rff_dist.frequencies.designs import Design
from rff_dist.kernels.base import Kernel, LengthScale, Stationary
from rff_dist.numerics.cholesky import solve_cholesky
from rff_dist.numerics.eigen import decompose
from rff_dist.numerics.machine import available_memory
from rff_dist.numerics.solution import RidgeSolution
from rff_dist.ridge.conformal import (
    HeldOutScores,
    fold_models,
    root_residual_statistics,
    score_rows,
    sum_root_residuals,
    with_deviations,
)
from rff_dist.ridge.model import RidgeModel
from rff_dist.ridge.plan import Plan, plan_fit, plan_matrix_pass
from rff_dist.selection.alphas import PerTarget, check_per_target, end_of_grid
from rff_dist.selection.cross_validation import AS_GOOD, Choice, CrossValidation, cross_validate
from rff_dist.selection.gcv import Selection, select_alpha
from rff_dist.selection.leave_one_out import LeaveOneOut, hat_matrix, leave_out_rows, select_by_press
from rff_dist.statistics.accumulate import Accumulation, add_each
from rff_dist.statistics.fold_statistics import FoldStatistics
from rff_dist.statistics.inspection import (
    blocks_of,
    check_standardize,
    input_range,
    inspect,
    standardizer_for,
    target_offset_from,
    warn_of_lost_digits,
)
from rff_dist.statistics.label_counts import count_groups
from rff_dist.statistics.moments import ColumnMoments, Moments
from rff_dist.statistics.passes import (
    accumulate,
    accumulate_folds,
    check_weight_kind,
    fraction_bits_for,
    statistics_spec,
    weight_grid,
)
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.text import human_bytes

logger = logging.getLogger(__name__)

type Alpha = float | str | Sequence[float] | NDArray[Any]
type Components = int | str | Sequence[int]

MAX_LEVERAGE = 0.95  # mean of the rows', above which they are as good as interpolated
# Below it rows are too many for the features to follow them, so that no penalty is needed.
SMALL_LEVERAGE = 0.1
MAX_UNCERTAINTY = 0.6  # standard error of the error by folds, as a share of it
MAX_CANCELLING = 20.0  # coefficients' norm per row in deviations of the targets
MAX_DEFAULT_ALPHAS = 48  # three a decade, over the sixteen of float64
ALPHA_NAMES = ("auto", "gcv", "evidence", "cv", "cv-1se", "press")
CV_NAMES = ("auto", "cv", "cv-1se")  # of those, what k-fold cross-validation can stand for
DEFAULT_FOLDS, FOLDS_OF_FEW, FEW_SAMPLES = 5, 10, 200
AUTO_COMPONENTS = 2048  # what `n_components="auto"` takes, if rows and memory allow
MIN_AUTO_COMPONENTS = 256


def check_plan(
    dataset: Dataset,
    n_components: int,
    *,
    engine: Engine,
    alpha: Alpha = "auto",
    features: str | Nystrom = "fourier",
    n_folds: int = 1,
    n_maps: int = 1,
) -> Plan:
    """Plan a fit on an engine, and refuse it where this machine's memory would not do.

    With `n_folds` above 1 each fold is summed apart, for each of `n_maps` feature maps in one reading.

    Raises
    ------
    PlanError
        With the memory needed and the memory there is.
    """
    blocks_of(dataset)  # refuses a dataset without rows
    here = available_memory()
    return plan_fit(
        n_samples=dataset.n_samples,
        n_features=dataset.n_features,
        n_targets=max(1, dataset.n_targets),
        n_components=n_components,
        chunk_rows=dataset.chunk_rows,
        itemsize=dataset.dtype.itemsize,
        n_workers=max(1, engine.n_workers),  # a cluster may still wait for its first worker
        n_threads=engine.n_threads,
        separate_client=not engine.in_process,
        alpha_path=not is_one_alpha(alpha),
        whitened=find_features(features) is not None,
        n_folds=n_folds,
        n_maps=n_maps,
        memory_limit=engine.worker_memory or here,
        client_memory_limit=here,
    )


def check_matrix_pass(
    dataset: Dataset,
    feature_map: FeatureMap,
    *,
    engine: Engine,
    n_targets: int,
    n_columns: int = 0,
    n_matrices: int = 1,
    spectral: bool = False,
) -> None:
    """Refuse a pass that carries D x D matrices where memory would not do; see `plan_matrix_pass`.

    Raises
    ------
    PlanError
        With the memory needed and the memory there is.
    """
    blocks_of(dataset)  # refuses a dataset without rows
    here = available_memory()
    needed = plan_matrix_pass(
        n_samples=dataset.n_samples,
        n_features=dataset.n_features,
        n_targets=n_targets,
        n_components=feature_map.n_components,
        chunk_rows=dataset.chunk_rows,
        itemsize=dataset.dtype.itemsize,
        n_threads=engine.n_threads,
        n_columns=n_columns,
        n_matrices=n_matrices,
        spectral=spectral,
        whitened=feature_map.whitener is not None,
        separate_client=not engine.in_process,
    )
    limits = (engine.worker_memory or here, here)
    for who, wanted, limit in zip(("a worker", "this process"), needed, limits, strict=True):
        if wanted > limit:
            raise PlanError(
                f"{who} needs {human_bytes(wanted)} for a pass that carries a matrix of n_components="
                f"{feature_map.n_components:_} squared, but has {human_bytes(limit)}; give it more "
                "memory, or fit fewer components"
            )


def is_one_alpha(alpha: Alpha) -> bool:
    """Return whether `alpha` is one number, so that one Cholesky factorisation solves the job."""
    return not isinstance(alpha, str) and np.ndim(alpha) == 0


# -- inspect ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    """A dataset that was looked at once: what every fit of it begins with.

    Attributes
    ----------
    dataset : Dataset
    moments : Moments
        Of its columns.
    standardizer : Standardizer, or None
        What is done to the inputs first.
    engine : Engine
        Runs the passes.
    standardize : True, False, "rank" or "auto"
        What the standardizer was made by.
    sample_weight_kind : "precision" or "frequency"
        What weights say of their rows; see `fit`.
    """

    dataset: Dataset
    moments: Moments
    standardizer: Standardizer | None
    engine: Engine
    standardize: bool | str = True
    sample_weight_kind: str = "precision"

    @property
    def frequency_weights(self) -> bool:
        """Whether weights say how often a row is there."""
        return self.sample_weight_kind == "frequency"

    def inputs(self, seed: int) -> Inputs:
        """Return the dataset as features see it, with the seed of samples and features."""
        ranges = input_range(self.moments, self.standardizer)
        return Inputs(self.dataset, self.standardizer, seed, ranges, self.frequency_weights)

    def draw(self, kernel: Kernel, *, seed: int, **options: Any) -> FeatureMap:
        """Draw the feature map of a kernel for the dataset; see `Recipe` for the options."""
        return draw(self.inputs(seed), kernel, Recipe(**options))

    def say(self, label: str, text: str) -> None:
        """Tell those who watch the engine what happens between its passes."""
        Announcer(self.engine.observers)(Remark(label, text))

    def accumulation(self, feature_map: FeatureMap) -> Accumulation:
        """Return what a pass over the dataset sums up in a feature map."""
        spec = statistics_spec(
            self.dataset,
            feature_map,
            target_offset=target_offset_from(self.moments),
            fraction_bits=fraction_bits_for(self.dataset.n_samples),
            engine=self.engine,
            **weight_grid(self.moments, self.sample_weight_kind),
        )
        return Accumulation(feature_map, spec)


def prepare(
    dataset: Dataset,
    *,
    standardize: bool | str,
    sample_weight_kind: str = "precision",
    moments: Moments | None = None,
    engine: Engine,
) -> Prepared:
    """Check all values of a dataset, and measure what features and sums need of it.

    One cheap pass, unless its `moments` are known, and another where columns are mapped by their ranks; see
    `inspect` and `standardizer_for`.
    """
    standardize = check_standardize(standardize)
    check_weight_kind(sample_weight_kind)
    moments = inspect(dataset, engine=engine) if moments is None else moments
    if standardize is False:
        warn_of_lost_digits(moments)
    standardizer = standardizer_for(dataset, moments, standardize, engine=engine)
    return Prepared(dataset, moments, standardizer, engine, standardize, sample_weight_kind)


# -- solve -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Solved:
    """Coefficients, and what alpha was chosen from where it was chosen.

    Attributes
    ----------
    solution : RidgeSolution
    selection : Selection or None
        The path of alpha on all rows, by GCV or the evidence.
    cross_validation : CrossValidation or None
        The table of k-fold errors.
    choice : Choice or None
        The place of that table that was taken.
    leave_one_out : LeaveOneOut or None
        The path of alpha by PRESS.
    """

    solution: RidgeSolution
    selection: Selection | None
    cross_validation: CrossValidation | None = None
    choice: Choice | None = None
    leave_one_out: LeaveOneOut | None = None

    def path(self) -> dict[str, NDArray[Any]]:
        """Return what alpha was chosen from as named arrays: the table of folds, or the path on all rows."""
        if self.cross_validation is not None:
            return self.cross_validation.to_arrays()
        if self.leave_one_out is not None:
            return self.leave_one_out.to_arrays()
        return {} if self.selection is None else self.selection.to_arrays()

    @property
    def chosen_by(self) -> str:
        """What alpha was chosen by: "cv", "press", "gcv", "evidence" or "given"."""
        if self.cross_validation is not None:
            return "cv" if len(self.cross_validation.alphas) > 1 else "given"
        if self.leave_one_out is not None:
            return "press"
        return "given" if self.selection is None else self.selection.criterion


def solve_folds(
    statistics: FoldStatistics,
    feature_map: FeatureMap,
    *,
    alpha: Alpha = "cv",
    alphas: Sequence[float] | None = None,
    n_components: Sequence[int] = (),
    fit_intercept: bool = True,
    alpha_per_target: PerTarget = False,
) -> tuple[FeatureMap, RidgeStatistics, Solved]:
    """Choose alpha and the number of components by k-fold cross-validation, and solve on all rows.

    O(n_splits · n_components³) for the table of all folds, alphas, widths and targets; no data are read.

    Parameters
    ----------
    statistics : FoldStatistics
        In `feature_map`.
    feature_map : FeatureMap
    alpha : "cv", "cv-1se", float or sequence of float
        "cv" searches from the rounding floor to the largest eigenvalue for the least error, and takes the
        largest alpha that is as good, see `CrossValidation.safest`; "cv-1se" takes the largest within one
        standard error of the least.
    alphas : sequence of float, optional
        What "cv" and "cv-1se" search instead.
    n_components : sequence of int
        Widths to look at, at most the map's own, which they are completed by. Of several, the smallest is
        taken whose least error lies within one standard error of the least of all.
    fit_intercept : bool
    alpha_per_target : bool or "auto"
        Whether each target has the alpha that its own errors choose; "auto" gives one to those alone for
        which it saves more than noise, see `CrossValidation.with_own_alphas`.

    Returns
    -------
    feature_map : FeatureMap
        Of the width that was chosen.
    statistics : RidgeStatistics
        Of all rows, in it.
    solved : Solved

    Raises
    ------
    InvalidParameterError
        If alpha is not above 0, or the map has no smaller draws.
    StatisticsError
        If a fold has no rows.
    """
    whole = feature_map.n_components
    widths = sorted({*(n for n in n_components if n < whole), whole})
    maps = [shortened(feature_map, width) for width in widths]
    grid = alphas if isinstance(alpha, str) else alpha
    table = cross_validate(
        statistics,
        alphas=None if grid is None else np.atleast_1d(np.asarray(grid, np.float64)),
        feature_maps=maps,
        fit_intercept=fit_intercept,
    )
    choice = table.fewest_components() if len(widths) > 1 else table.best
    find = table.one_standard_error if isinstance(alpha, str) and alpha == "cv-1se" else table.safest
    choice = find(choice.n_components)
    if alpha_per_target is not False and not is_one_alpha(alpha):
        choice = table.with_own_alphas(
            choice,
            always=alpha_per_target is True,
            standard_errors=1.0 if isinstance(alpha, str) and alpha == "cv-1se" else AS_GOOD,
        )
    chosen = maps[widths.index(choice.n_components)]
    total = statistics.total()
    if chosen is not feature_map:
        total = total.leading(chosen.n_components, feature_digest=chosen.digest(), scales=chosen.scales)
    equations = total.normal_equations(fit_intercept=fit_intercept)
    solution = solve_cholesky(equations, np.asarray(choice.penalty), overwrite_gram=True)
    return chosen, total, Solved(solution, None, table, choice)


def solve(
    statistics: RidgeStatistics,
    *,
    alpha: Alpha = "gcv",
    alphas: Sequence[float] | None = None,
    fit_intercept: bool = True,
    alpha_per_target: PerTarget = False,
) -> Solved:
    """Solve ridge regression from its statistics alone, O(n_components³).

    Parameters
    ----------
    statistics : RidgeStatistics
    alpha : "gcv", "evidence", float or sequence of float
        The penalty; of a sequence the one with the least GCV; "gcv" and "evidence" search from the
        rounding floor to the largest eigenvalue.
    alphas : sequence of float, optional
        What "gcv" and "evidence" search instead.
    fit_intercept : bool
        Whether to fit an intercept, which is not penalised.
    alpha_per_target : bool or "auto"
        Whether an alpha is chosen for each target; see `select_alpha`.

    Raises
    ------
    InvalidParameterError
        If alpha is negative or not a number.
    SolveError
        If the statistics are not finite.
    """
    check_alpha(alpha)
    if isinstance(alpha, str) and alpha not in ("gcv", "evidence"):
        raise InvalidParameterError(
            f"`alpha` is {alpha!r}, which needs more than the sums of all rows: those of each fold, see "
            "`solve_folds`, or another pass, see `leave_one_out`"
        )
    if is_one_alpha(alpha):
        return _solve_with(statistics, cast("float", alpha), fit_intercept=fit_intercept)
    spectrum = decompose(statistics.normal_equations(fit_intercept=fit_intercept))
    grid = alphas if isinstance(alpha, str) else alpha
    selection = select_alpha(
        spectrum,
        None if grid is None else np.asarray(grid, np.float64),
        criterion="evidence" if isinstance(alpha, str) and alpha == "evidence" else "gcv",
        per_target=alpha_per_target,
    )
    return Solved(spectrum.solve(selection.penalty), selection)


def check_alpha(alpha: Any) -> None:
    """Check that alpha is "auto", "gcv", "evidence", a finite number of at least 0, or several.

    Raises
    ------
    InvalidParameterError
        Otherwise.
    """
    if isinstance(alpha, str) and alpha in ALPHA_NAMES:
        return
    values = np.asarray(alpha)
    numbers = values.dtype.kind in "iuf" and values.ndim <= 1 and values.size > 0
    if not numbers or not ((values >= 0) & (values < math.inf)).all() or (values.ndim and not values.all()):
        raise InvalidParameterError(
            f"`alpha` is {alpha!r}; expected 'auto', 'gcv', 'evidence', 'cv', 'cv-1se', 'press', a finite "
            "number of at least 0, or a list of such numbers above 0"
        )


def default_folds(n_samples: int) -> HashFolds:
    """Return 5 folds by hash; 10 for fewer than 200 rows, and of fewer than 10 rows one for each."""
    return HashFolds(DEFAULT_FOLDS if n_samples >= FEW_SAMPLES else max(2, min(n_samples, FOLDS_OF_FEW)))


def folds_for(
    cv: int | Folds | None,
    *,
    alpha: Alpha,
    n_components: Components,
    conformal: bool = False,
    n_samples: int = FEW_SAMPLES,
) -> Folds | None:
    """Return the folds that a fit sums apart; None where nothing is chosen by cross-validation.

    Parameters
    ----------
    cv : int, Folds or None
        None is `default_folds` where anything asks for some.
    alpha : Alpha
        All do but a single number, "gcv", "evidence" and "press".
    n_components : int, "auto" or sequence of int
        Several do.
    conformal : bool
        Whether rows are held out for intervals, which asks for some.
    n_samples : int
        Rows of the dataset.

    Raises
    ------
    InvalidParameterError
        If `cv` is no number of folds, or `alpha` is chosen by something else, or 0.
    """
    named = isinstance(alpha, str)
    several = not isinstance(n_components, str) and not is_one_width(n_components)
    by_folds = str(alpha) in CV_NAMES if named else not is_one_alpha(alpha)
    if cv is None and not several and not by_folds and not conformal:
        return None
    if named and not by_folds:
        asked = {f"`cv` is {cv!r}": cv is not None, f"`n_components` is {n_components!r}": several}
        reason = next((words for words, is_so in asked.items() if is_so), "`conformal` is True")
        raise InvalidParameterError(
            f"{reason}, which takes k-fold cross-validation, and `alpha` is {alpha!r}; expected one of "
            f"{list(CV_NAMES)} or numbers. Leave one of them out"
        )
    if not named and not np.all(np.asarray(alpha) > 0):
        raise InvalidParameterError(f"`alpha` is {alpha!r}; cross-validation needs numbers above 0")
    folds = default_folds(n_samples) if cv is None else find_folds(cv)
    if len(folds.splits) < 2 and (several or (named and alpha == "cv-1se")):
        raise InvalidParameterError(
            f"{folds} give one split, whose error has no standard error; use more folds"
        )
    return folds


def prepare_folds(dataset: Dataset, folds: Folds, *, engine: Engine) -> Folds:
    """Return the folds that passes over a dataset cut its rows by: of groups, those balanced by their sizes.

    Groups are counted in a pass that reads no X. Above `MAX_BALANCED_GROUPS` their hashes cut the folds.

    Raises
    ------
    DataError
        If the folds are of groups and there are none, or fewer than folds.
    """
    if isinstance(folds, HeldInFolds):
        return replace(folds, base=prepare_folds(dataset, folds.base, engine=engine))
    check_folds(dataset, folds)
    if not isinstance(folds, GroupFolds):
        return folds
    folds = replace(folds, table=None)
    counts = count_groups(dataset, at_most=MAX_BALANCED_GROUPS, engine=engine)
    if counts is None:
        logger.info("more than %d groups: their hashes say which folds they are in", MAX_BALANCED_GROUPS)
        return folds
    counted = counts.weight.value() > 0
    return folds.balanced(counts.labels[counted], counts.n_samples[counted])


def check_folds(dataset: Dataset, folds: Folds) -> None:
    """Check that a dataset's rows know what the folds go by, before a pass over them.

    Raises
    ------
    DataError
        If the folds are of groups and there are none.
    """
    first = Block(0, 0, min(1, dataset.n_samples))
    folds.assign(0, first.stop, n_samples=dataset.n_samples, groups=dataset.read(first).groups)


def is_one_width(n_components: Components) -> bool:
    """Return whether `n_components` is one number rather than "auto" or several."""
    return not isinstance(n_components, str) and np.ndim(n_components) == 0


def read_widths(n_components: Components, map: str, features: str | Nystrom) -> list[int]:
    """Return the widths that a fit looks at, ascending: one, unless several are given.

    Raises
    ------
    InvalidParameterError
        If there is none, or one is no integer of at least 1, or odd for Fourier features in pairs.
    """
    if isinstance(n_components, str):
        raise InvalidParameterError(
            f"`n_components` is {n_components!r}; expected 'auto', an integer, or several"
        )
    given = [n_components] if np.ndim(n_components) == 0 else list(cast("Sequence[int]", n_components))
    if not given:
        raise InvalidParameterError("`n_components` is empty; expected at least one width")
    return sorted({check_width(width, map, features) for width in given})


def automatic_components(n_samples: int, fits: Callable[[int], object]) -> int:
    """Return how many components a fit takes by default: 2,048, or fewer for few rows or little memory.

    More components than rows seldom help: below 1,024 rows as many are taken as there are rows, rounded up
    to a power of two, and at least 256. A pass takes time in proportion to rows and the square of this, so
    that 2,048 components of 200,000 rows take some ten seconds of two cores.

    Parameters
    ----------
    n_samples : int
        Rows.
    fits : callable
        Plans a fit of so many components, and raises a PlanError where memory would not do.

    Raises
    ------
    PlanError
        If memory does not do for 256 components either.
    """
    wanted = min(AUTO_COMPONENTS, max(MIN_AUTO_COMPONENTS, 1 << (n_samples - 1).bit_length()))
    while True:
        try:
            fits(wanted)
        except PlanError:
            if wanted == MIN_AUTO_COMPONENTS:
                raise
            logger.warning("memory does not hold the sums of %d components: taking half as many", wanted)
            wanted //= 2
        else:
            return wanted


def refit(
    model: RidgeModel,
    statistics: RidgeStatistics,
    *,
    alpha: Alpha | None,
    alphas: Sequence[float] | None = None,
    fit_intercept: bool = True,
) -> RidgeModel:
    """Solve a model again from changed statistics of the same features; see `solve`.

    None keeps the model's own alpha, or alphas. Held-out scores stay: they are of fits of fewer rows, and so
    err on the wide side.
    """
    per_target: PerTarget = model.card.get("alpha_per_target", False)
    given: Alpha = "cv" if alpha is None else alpha
    if alpha is None:
        # several would read as values to choose from
        given = model.alpha if isinstance(model.alpha, float) else model.card.get("alpha_given", "cv")
        solved = _solve_with(statistics, model.alpha, fit_intercept=fit_intercept)
    else:
        solved = solve(
            statistics,
            alpha=alpha,
            alphas=alphas,
            fit_intercept=fit_intercept,
            alpha_per_target=per_target,
        )
    names = ("feature_names", "target_names", "folds", "standardize", "chosen_by", "sample_weight_kind")
    kept = {name: model.card[name] for name in names if name in model.card}
    again = RidgeModel.from_solution(
        model.feature_map,
        statistics,
        solved.solution,
        solved.path() or model.selection,
        {**kept, **describe_choices(given, fit_intercept, alpha_per_target=per_target)},
    )
    return replace(again, held_out=model.held_out)


def _solve_with(statistics: RidgeStatistics, alpha: ArrayLike, *, fit_intercept: bool) -> Solved:
    """Solve for one alpha, or one for each target."""
    equations = statistics.normal_equations(fit_intercept=fit_intercept)
    return Solved(solve_cholesky(equations, np.asarray(alpha), overwrite_gram=True), None)


# -- errors of rows that were held out -------------------------------------------------------------


def leave_one_out(
    dataset: Dataset,
    statistics: RidgeStatistics,
    feature_map: FeatureMap,
    *,
    alphas: ArrayLike | None = None,
    fit_intercept: bool = True,
    engine: Engine,
) -> LeaveOneOut:
    """Measure the leave-one-out errors (PRESS) of every alpha in one more pass over the training rows.

    2 · n_samples · n_components² operations, twice those of the statistics, and O(n_components³) before
    them. Each worker holds 8 · n_components² bytes; see `rff_dist.selection.leave_one_out` for the formula,
    and `select_by_press` for the best alpha.

    Parameters
    ----------
    dataset : Dataset
        The rows that `statistics` count, no others.
    statistics : RidgeStatistics
    feature_map : FeatureMap
        They were accumulated with.
    alphas : float64 array of shape (n_alphas,), optional
        Penalties above 0; three a decade by default, see `default_alphas`.
    fit_intercept : bool
        Whether an intercept is fitted.
    engine : Engine

    Raises
    ------
    InvalidParameterError
        If an alpha is not positive and finite, or there is none.
    DataError
        If values are not finite.
    StatisticsError
        If the statistics are of other rows.
    PlanError
        If the matrix does not fit into the memory there is.
    """
    if statistics.n_samples != dataset.n_samples or statistics.spec.n_targets != dataset.n_targets:
        raise StatisticsError(
            f"the statistics count {statistics.n_samples:_} rows of {statistics.spec.n_targets} targets, the "
            f"data have {dataset.n_samples:_} of {dataset.n_targets}; rows are left out of those that were "
            "trained on: give the same data"
        )
    n_alphas = MAX_DEFAULT_ALPHAS if alphas is None else np.size(alphas)
    check_matrix_pass(
        dataset,
        feature_map,
        engine=engine,
        n_targets=dataset.n_targets,
        n_columns=n_alphas * (dataset.n_targets + 1),
        spectral=True,
    )
    state = hat_matrix(statistics, feature_map, alphas=alphas, fit_intercept=fit_intercept)
    found: LeaveOneOut = engine.map_reduce(
        BlockTask(dataset, leave_out_rows),
        blocks_of(dataset),
        state,
        combine=operator.add,
        label="leave one out",
    )
    trained_on, seen = statistics.sum_of_weights, float(found.weight.value())
    if not math.isclose(seen, trained_on, rel_tol=1e-9):  # the same weights, added in other groups
        raise StatisticsError(
            f"the statistics' weights add up to {trained_on:g}, those of the data to {seen:g}; rows are left "
            "out of those that were trained on: give the same data"
        )
    return found


def hold_out_scores(
    dataset: Dataset,
    statistics: FoldStatistics,
    feature_map: FeatureMap,
    *,
    alpha: ArrayLike,
    fit_intercept: bool = True,
    normalized: bool = False,
    engine: Engine,
) -> HeldOutScores:
    """Count how far off each row is from the model that was trained without its fold, in one more pass.

    A pass of predictions, after n_splits Cholesky factorisations; see `rff_dist.ridge.conformal` for the
    intervals that `quantile` of the scores gives. With `normalized` another such pass and a cross-validation,
    of O(n_splits · n_components³), come before it.

    Parameters
    ----------
    dataset : Dataset
        The rows that `statistics` count, in the same order.
    statistics : FoldStatistics
    feature_map : FeatureMap
        They were accumulated with.
    alpha : float or array of shape (n_targets,)
        The penalty of the model of all rows.
    fit_intercept : bool
        Whether it has an intercept.
    normalized : bool
        Whether scores are counted in predicted deviations of their rows, so that intervals are wider where
        rows are farther off.
    engine : Engine

    Raises
    ------
    InvalidParameterError
        If `normalized` is asked for with folds that are not each held out, such as `TimeFolds`.
    DataError
        If values are not finite, or targets or groups are missing.
    StatisticsError
        If the statistics are of other rows, or no fold that is held out has any; with `normalized` also
        where any has none.
    """
    if normalized:
        check_conformal("normalized", statistics.folds)
    if statistics.n_samples != dataset.n_samples:
        raise StatisticsError(
            f"the folds' statistics count {statistics.n_samples:_} rows, the data have "
            f"{dataset.n_samples:_}; scores are of the rows cut into folds: give the same data"
        )
    models, deviations = fold_models(statistics, feature_map, alpha=alpha, fit_intercept=fit_intercept), None
    if normalized:
        sums = engine.map_reduce(
            BlockTask(dataset, partial(sum_root_residuals, exponents=statistics.total().spec.exponents)),
            blocks_of(dataset),
            models,
            combine=add_each,
            label="residuals",
        )
        roots = root_residual_statistics(statistics, models, sums)
        chosen = cross_validate(roots).best
        models, deviations = with_deviations(models, roots, alpha=chosen.alpha)
    scores: HeldOutScores = engine.map_reduce(
        BlockTask(dataset, score_rows), blocks_of(dataset), models, combine=operator.add, label="hold out"
    )
    return replace(scores, deviations=deviations)


def check_conformal(conformal: bool | str, folds: Folds | None) -> None:
    """Check that intervals of a kind can be made, before a pass over the data.

    Raises
    ------
    InvalidParameterError
        If `conformal` is neither a bool nor "normalized", or the latter with folds of which a split trains
        on none that is held out: there are then no residuals to fit its deviations by.
    """
    if not isinstance(conformal, str) and np.asarray(conformal).dtype == bool:
        return
    if conformal != "normalized":
        raise InvalidParameterError(f"`conformal` is {conformal!r}; expected True, False or 'normalized'")
    if folds is None:
        return
    held_out = {fold for _, fold in folds.splits}
    if not all(held_out & set(trained) for trained, _ in folds.splits):
        raise InvalidParameterError(
            f"`conformal` is 'normalized', but a split of {folds} trains on rows that are never held out; "
            "take HashFolds or GroupFolds, or conformal=True"
        )


# -- the whole job ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Penalty:
    """How the penalty is found, and whether an intercept is fitted beside it; see `fit`.

    Raises
    ------
    InvalidParameterError
        If a number is out of range, or `alphas` are given beside numbers.
    """

    alpha: Alpha = "auto"
    alphas: Sequence[float] | None = None
    fit_intercept: bool = True
    per_target: PerTarget = "auto"

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_per_target(self.per_target)
        if self.alphas is not None:
            check_alpha(self.alphas)
            if not isinstance(self.alpha, str):
                raise InvalidParameterError(f"`alpha` is {self.alpha!r} beside `alphas`; give one of them")


def plan_choices(
    dataset: Dataset,
    penalty: Penalty,
    *,
    cv: int | Folds | None,
    n_components: Components,
    map: str,
    features: str | Nystrom,
    conformal: bool | str = False,
    n_tuned_on: int = 0,
    engine: Engine | None = None,
    plan: Callable[[int, int], object] | None = None,
) -> tuple[Penalty, Folds | None, list[int]]:
    """Return the penalty, folds and numbers of components of a fit that memory allows.

    Where `cv` is left out and memory does not hold the sums of five folds, three or two take their place.
    Where it does not hold those either, "auto" alpha is chosen by leave-one-out errors in another pass. What
    was asked for by name is kept. Where `n_tuned_on` rows are to tune length scales by the evidence, the
    folds are never validated on these.

    Whether memory allows it says `check_plan` on `engine`, or `plan`, a function of the numbers of components
    and folds that raises a PlanError where it does not.

    Raises
    ------
    InvalidParameterError
        If parameters do not go together.
    PlanError
        With the memory needed and the memory there is.
    """
    folds = folds_for(
        cv,
        alpha=penalty.alpha,
        n_components=n_components,
        conformal=bool(conformal),
        n_samples=dataset.n_samples,
    )
    if folds is not None and dataset.n_samples == 1:
        raise DataError(
            "n_samples=1: nothing can be chosen by errors on held-out rows; give one number as `alpha`, or "
            "more rows"
        )
    check_conformal(conformal, folds)
    automatic = isinstance(penalty.alpha, str) and penalty.alpha == "auto"
    several = not isinstance(n_components, str) and not is_one_width(n_components)

    def honest(folds: Folds | None) -> Folds | None:
        return folds if folds is None or not n_tuned_on else hold_in(folds, dataset.n_samples, n_tuned_on)

    def check(n_components: int, folds: Folds | None) -> None:
        n_folds = 1 if folds is None else folds.n_folds
        if plan is not None:
            plan(n_components, n_folds)
            return
        assert engine is not None  # one of them is given
        check_plan(
            dataset, n_components, engine=engine, alpha=penalty.alpha, features=features, n_folds=n_folds
        )

    folds = honest(folds)
    if isinstance(n_components, str) and n_components == "auto":
        widths = [automatic_components(dataset.n_samples, lambda wanted: check(wanted, folds))]
    else:
        widths = read_widths(n_components, map, features)
        choices: list[Folds | None] = [folds]
        if folds is not None and cv is None and automatic:
            choices += [honest(HashFolds(3)), honest(HashFolds(2))]
            choices += [] if conformal or several else [None]
        folds = _first_that_fits(choices, lambda choice: check(widths[-1], choice))
    if not automatic:
        return penalty, folds, widths
    return replace(penalty, alpha="press" if folds is None else "cv"), folds, widths


def _first_that_fits(
    choices: Sequence[Folds | None], check: Callable[[Folds | None], object]
) -> Folds | None:
    for i, choice in enumerate(choices):
        try:
            check(choice)
        except PlanError:
            if i == len(choices) - 1:
                raise
            following = choices[i + 1]
            logger.warning(
                "memory does not hold the sums of %d folds: %s",
                choice.n_folds if choice is not None else 0,
                "alpha is chosen by leave-one-out errors, in another pass"
                if following is None
                else f"taking {following.n_folds}",
            )
        else:
            return choice
    raise AssertionError("unreachable: the last choice fits, or its plan is refused")


def fit(
    dataset: Dataset,
    kernel: Kernel,
    *,
    engine: Engine,
    length_scale: str | LengthScale | None = "median",
    n_components: Components = 2048,
    alpha: Alpha = "auto",
    design: str | Design = "orthogonal",
    map: str = "pairs",
    standardize: bool | str = "auto",
    fit_intercept: bool = True,
    seed: int = 0,
    features: str | Nystrom = "fourier",
    cv: int | Folds | None = None,
    alphas: Sequence[float] | None = None,
    conformal: bool | str = False,
    alpha_per_target: PerTarget = "auto",
    sample_weight_kind: str = "precision",
) -> tuple[RidgeModel, Solved]:
    """Train a ridge regression on random or Nyström features: two passes over the data and one solve.

    Parameters
    ----------
    dataset : Dataset
        With targets.
    kernel : Kernel
    engine : Engine
    length_scale : "median", "evidence", number(s) or None
        See `draw`. "evidence" tunes on rows that no fold validates on.
    n_components : int, "auto" or sequence of int
        D: cost grows with its square, error falls as 1/√D. "auto" is `automatic_components`. Of several,
        cross-validation takes the smallest within one standard error of the best, from the same pass; see
        `solve_folds`.
    alpha : "auto", "cv", "cv-1se", "gcv", "evidence", "press", float or sequence of float
        "cv" is the alpha of the least k-fold error, from the same pass, and "cv-1se" the largest within one
        standard error of it; see `solve_folds`. "auto" is "cv", with fewer folds, or "press", where memory
        does not hold the sums of the folds. "gcv" and "evidence" are generalised cross-validation and the
        marginal likelihood, see `solve`; "press" is the least leave-one-out error, at the cost of another
        pass, see `leave_one_out`. Of several numbers the folds choose.
    design, map : str
        See `draw_feature_map`; map="auto" takes the real map of lower variance, see `choose_map`.
    standardize : {"auto", "rank"} or bool
        What is done to the input columns first, see `standardizer_for`.
    fit_intercept : bool
        Whether to fit an intercept.
    seed : int
        Of frequencies and samples.
    features : "fourier", "nystrom" or Nystrom
        See `draw`.
    cv : int, Folds or None
        Folds to choose by, 5 by default; see `folds_for`. Each fold is summed apart in the same pass.
    alphas : sequence of float, optional
        What a named `alpha` searches, in the place of the whole range.
    conformal : bool or "normalized"
        Whether a third pass counts how far off held-out rows are, for intervals; see `hold_out_scores`. It
        needs folds, 5 by hash unless `cv` says otherwise. With "normalized" a fourth pass makes their width
        follow the row.
    alpha_per_target : bool or "auto"
        Whether an alpha that is chosen is chosen for each target by its own errors. "auto" gives targets an
        alpha of their own for which it saves more than 1 % of the error, and more than its standard error
        where there are folds; the others share one, which costs less.
    sample_weight_kind : "precision" or "frequency"
        Whether weights say how precise a row is, each being one observation whatever its weight above 0, or
        are whole numbers that say how often it is there.

    Returns
    -------
    model : RidgeModel
    solved : Solved
        Solver status, and what alpha was chosen from.
    """
    penalty = Penalty(alpha, alphas, fit_intercept, alpha_per_target)
    penalty, folds, widths = plan_choices(
        dataset,
        penalty,
        cv=cv,
        n_components=n_components,
        map=map,
        features=features,
        conformal=conformal,
        n_tuned_on=TUNING_ROWS if isinstance(length_scale, str) and length_scale == "evidence" else 0,
        engine=engine,
    )
    if folds is not None:
        folds = prepare_folds(dataset, folds, engine=engine)
    prepared = prepare(dataset, standardize=standardize, sample_weight_kind=sample_weight_kind, engine=engine)
    feature_map = prepared.draw(
        kernel,
        length_scale=length_scale,
        n_components=widths[-1],
        design=design,
        map=map,
        seed=seed,
        features=features,
        tuned_on=folds if isinstance(folds, HeldInFolds) else None,
    )
    if folds is None:
        trained = train(prepared, feature_map, penalty=penalty)
    else:
        trained = train_folds(
            prepared, [[feature_map]], penalty=penalty, folds=folds, widths=widths, conformal=conformal
        )
    return trained.model, trained.best


@dataclass(frozen=True, slots=True)
class Trained:
    """The best of the models that were compared.

    Attributes
    ----------
    model : RidgeModel
    compared : tuple of (FeatureMap, Solved)
        Every feature map that was trained, in the width that was chosen for it.
    best_index : int
        Which of them the model is.
    parts : FoldStatistics, or None
        The model's statistics fold by fold; None where no folds were summed apart.
    """

    model: RidgeModel
    compared: tuple[tuple[FeatureMap, Solved], ...]
    best_index: int = 0
    parts: FoldStatistics | None = None

    @property
    def best(self) -> Solved:
        """How the model was solved."""
        return self.compared[self.best_index][1]


def train(prepared: Prepared, feature_map: FeatureMap, *, penalty: Penalty) -> Trained:
    """Accumulate the statistics of all rows in one pass, and solve; see `solve` and `leave_one_out`."""
    dataset, engine = prepared.dataset, prepared.engine
    member = prepared.accumulation(feature_map)
    statistics = accumulate(dataset, feature_map, engine=engine, spec=member.spec)
    prepared.say("solve", f"D = {feature_map.n_components:,}")
    if isinstance(penalty.alpha, str) and penalty.alpha == "press":
        solved = _solve_by_press(
            dataset,
            statistics,
            feature_map,
            alphas=penalty.alphas,
            fit_intercept=penalty.fit_intercept,
            alpha_per_target=penalty.per_target,
            engine=engine,
        )
    else:
        solved = solve(
            statistics,
            alpha=penalty.alpha,
            alphas=penalty.alphas,
            fit_intercept=penalty.fit_intercept,
            alpha_per_target=penalty.per_target,
        )
    facts = describe_cut(dataset, statistics)
    model = _model_of(prepared, feature_map, statistics, solved, penalty, facts)
    return Trained(model, ((feature_map, solved),))


def train_folds(
    prepared: Prepared,
    readings: Sequence[Sequence[FeatureMap]],
    *,
    penalty: Penalty,
    folds: Folds,
    widths: Sequence[int] = (),
    conformal: bool | str = False,
) -> Trained:
    """Accumulate each fold's statistics, cross-validate, and return the model of the least error.

    Parameters
    ----------
    prepared : Prepared
    readings : sequence of sequence of FeatureMap
        The feature maps to compare. Those of one reading share a pass over the data.
    penalty : Penalty
    folds : Folds
    widths : sequence of int
        Numbers of components that each map chooses from; see `solve_folds`.
    conformal : bool or "normalized"
        Whether one more pass counts how far off held-out rows are; see `hold_out_scores`.
    """
    dataset, engine = prepared.dataset, prepared.engine
    compared: list[tuple[FeatureMap, Solved]] = []
    best: tuple[int, RidgeStatistics, FoldStatistics] | None = None
    least = math.inf
    for reading in readings:
        members = [prepared.accumulation(feature_map) for feature_map in reading]
        summed = deque(accumulate_folds(dataset, members, folds=folds, engine=engine))
        for feature_map in reading:  # folds' sums are let go before the next table is made
            parts = summed.popleft()
            prepared.say("solve", _words_of_a_table(feature_map, folds, widths))
            chosen, statistics, solved = solve_folds(
                parts,
                feature_map,
                alpha=penalty.alpha,
                alphas=penalty.alphas,
                n_components=[width for width in widths if width < feature_map.n_components],
                fit_intercept=penalty.fit_intercept,
                alpha_per_target=penalty.per_target,
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
    if conformal:
        held_out = hold_out_scores(
            dataset,
            parts,
            feature_map,
            alpha=solved.solution.alpha,
            fit_intercept=penalty.fit_intercept,
            normalized=isinstance(conformal, str),
            engine=engine,
        )
        model = replace(model, held_out=held_out)
    return Trained(model, tuple(compared), best_index, parts)


def _words_of_a_table(feature_map: FeatureMap, folds: Folds, widths: Sequence[int]) -> str:
    several = ", ".join(f"{width:,}" for width in sorted({*widths, feature_map.n_components}))
    return f"{kind_of(feature_map)} features, D = {several}, {len(folds.splits)} folds held out"


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
        {
            **describe_dataset(prepared.dataset),
            **describe_choices(penalty.alpha, penalty.fit_intercept, alpha_per_target=penalty.per_target),
            **facts,
            **({} if penalty.alphas is None else {"alphas": [float(one) for one in penalty.alphas]}),
            "standardize": prepared.standardize,
            "chosen_by": solved.chosen_by,
            "estimate": describe_estimate(solved),
            "sample_weight_kind": prepared.sample_weight_kind,
        },
    )
    bounded = isinstance(kernel_of(feature_map), Stationary)
    warn_of_alpha(solved, cancelling=_cancelling(solved, statistics) if bounded else 0.0)
    columns = ColumnMoments.of(prepared.moments, frequency_weights=prepared.frequency_weights)
    return replace(model, columns=columns)


def describe_estimate(solved: Solved) -> dict[str, Any] | None:
    """Return what errors on new rows are estimated to be, by rows that were held out; None without any.

    Returns
    -------
    estimate : dict
        `by`, "cv" or "press"; for each target `rmse` in its units, its `rmse_standard_error` and `r2`, None
        where they are not determined: one split has no standard error, a constant target no R².
    """
    table, path = solved.cross_validation, solved.leave_one_out
    if table is not None and solved.choice is not None:
        width = int(np.flatnonzero(table.n_components == solved.choice.n_components)[0])
        places = np.searchsorted(table.alphas, solved.solution.alpha), np.arange(len(solved.solution.alpha))
        errors, deviations = table.mean[width][places], table.standard_error[width][places]
        variance = table.target_variance
    elif path is not None:
        places = np.searchsorted(path.alphas, solved.solution.alpha), np.arange(len(solved.solution.alpha))
        errors, variance = path.mean_squared_error[places], path.target_variance
        deviations = np.full(len(errors), np.nan)
    else:
        return None
    rmse = np.sqrt(errors)
    with np.errstate(divide="ignore", invalid="ignore"):
        figures = {
            "rmse": rmse,
            "rmse_standard_error": np.where(rmse > 0, deviations / (2 * rmse), 0.0),  # by the derivative
            "r2": np.where(variance > 0, 1 - errors / variance, np.nan),
        }
    found = {
        name: [value if math.isfinite(value) else None for value in values.tolist()]
        for name, values in figures.items()
    }
    return {"by": "press" if path is not None else "cv", **found}


def warn_of_alpha(solved: Solved, *, cancelling: float = 0.0) -> None:
    """Warn where alpha was chosen but what it was chosen by hardly tells of new rows.

    At the lower end of its range a better one may lie below, and near the rounding error of Z'Z rounding has
    a say in the coefficients. Where the mean leverage is near 1 the rows are interpolated. Coefficients that
    cancel one another at the rows, see `_cancelling`, need not do so elsewhere. Few features of many rows
    want no penalty: folds that found the smallest alpha best have measured that.
    """
    if solved.chosen_by == "given":
        return
    floor, alpha = solved.solution.floor, _least_alpha(solved)
    leverage, at_end = _mean_leverage(solved, alpha)
    uncertain = _uncertainty(solved)
    at_floor = alpha < 3 * floor
    by_folds = solved.cross_validation is not None
    if at_floor and by_folds and leverage < SMALL_LEVERAGE:
        return
    reasons = {
        "it is the smallest that was tried, so that a better one may lie below": at_end == "lower",
        f"it is near {floor:.2g}, the rounding error of Z'Z, below which coefficients are chance": at_floor,
        f"with {leverage:.0%} as many degrees of freedom as rows the model follows each of them": leverage
        > MAX_LEVERAGE,
        f"the error of held-out rows is known to {uncertain:.0%} only, so much do folds differ": uncertain
        > MAX_UNCERTAINTY,
        "large coefficients cancel one another at the rows, so that predictions away from them may be far "
        "off": by_folds and leverage > SMALL_LEVERAGE and cancelling > MAX_CANCELLING,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        warnings.warn(
            f"alpha={alpha:.3g} was chosen by {solved.chosen_by}, but {', and '.join(found)}. Without noise "
            "in y this is as it should be. Else look at errors on held-out rows, and give a larger `alpha` "
            "or other values to choose from, another length scale or number of components, or more rows",
            UserWarning,
            stacklevel=2,
        )


def _uncertainty(solved: Solved) -> float:
    """Return the standard error of the error by folds as a share of it; 0 where it is not known."""
    choice = solved.choice
    if choice is None or not choice.score > 0.0:
        return 0.0
    return float(np.nan_to_num(choice.standard_error)) / choice.score


def _cancelling(solved: Solved, statistics: RidgeStatistics) -> float:
    """Return the norm of the coefficients per row, in standard deviations of the targets.

    Features of a shift-invariant kernel have the norm 1, so that no prediction is further from the mean than
    the coefficients' norm. Where that is more than rows times deviations, terms of opposite signs make up the
    predictions.
    """
    norms = np.linalg.norm(solved.solution.coefficients, axis=0)
    deviations = statistics.target_deviations()
    varying = deviations > 0.0
    return float((norms[varying] / deviations[varying]).max(initial=0.0)) / statistics.n_observations


def _least_alpha(solved: Solved) -> float:
    """Return the least alpha of the targets that vary: a constant one is predicted as well by any."""
    found, alphas = solved.cross_validation or solved.leave_one_out, solved.solution.alpha
    varying = alphas if found is None else alphas[found.target_variance > 0.0]
    return float((varying if len(varying) else alphas).min())


def _mean_leverage(solved: Solved, alpha: float) -> tuple[float, str | None]:
    """Return degrees of freedom over rows, and which end of its range alpha is at."""
    table, choice, selection = solved.cross_validation, solved.choice, solved.selection
    if table is not None and choice is not None:
        width = int(np.flatnonzero(table.n_components == choice.n_components)[0])
        at = int(np.searchsorted(table.alphas, alpha))
        leverages = table.leverages
        mean = 0.0 if leverages is None else float(np.average(leverages[:, width, at]))
        return mean, choice.at_end if len(table.alphas) > 1 else None
    if selection is not None:
        degrees = selection.degrees_of_freedom[selection.best_index]
        return float(degrees) / selection.n_samples, selection.at_end
    path = solved.leave_one_out
    if path is None:
        return 0.0, None
    at = int(np.searchsorted(path.alphas, alpha))
    return 0.0, end_of_grid(at, len(path.alphas))


def _solve_by_press(
    dataset: Dataset,
    statistics: RidgeStatistics,
    feature_map: FeatureMap,
    *,
    alphas: Sequence[float] | None,
    fit_intercept: bool,
    alpha_per_target: PerTarget,
    engine: Engine,
) -> Solved:
    path = leave_one_out(
        dataset, statistics, feature_map, alphas=alphas, fit_intercept=fit_intercept, engine=engine
    )
    alpha = select_by_press(path, per_target=alpha_per_target)
    solved = _solve_with(statistics, alpha, fit_intercept=fit_intercept)
    return replace(solved, leave_one_out=path)


def describe_dataset(dataset: Dataset) -> Mapping[str, Any]:
    """Return the facts of a dataset that a model's card keeps."""
    facts: dict[str, Any] = {"data_fingerprint": dataset.fingerprint()}
    if (prefix := dataset.prefix_fingerprint(dataset.n_samples)) is not None:
        # Of all rows now, of the first ones when more were appended: what an update compares.
        facts["prefix_fingerprint"] = prefix
    for name, names in {"feature_names": dataset.feature_names, "target_names": dataset.target_names}.items():
        if names is not None:
            facts[name] = list(names)
    return facts


def describe_cut(
    dataset: Dataset, statistics: RidgeStatistics, folds: Folds | None = None
) -> Mapping[str, Any]:
    """Return what a model's card keeps of the blocks that were summed: only the last one is shorter."""
    blocks = blocks_of(
        dataset, max_rows=statistics.spec.limb_rows, n_folds=1 if folds is None else folds.n_folds
    )
    return {"rows_per_block": blocks[0].n_samples, "summed_by_folds": folds is not None}


def describe_choices(
    alpha: Alpha, fit_intercept: bool, *, alpha_per_target: PerTarget = False
) -> Mapping[str, Any]:
    """Return the facts of a model's card by which later fits choose as this one did."""
    given = alpha if isinstance(alpha, str) else np.asarray(alpha, np.float64).tolist()
    apart = alpha_per_target if isinstance(alpha_per_target, str) else bool(alpha_per_target)
    return {"alpha_given": given, "alpha_per_target": apart, "fit_intercept": bool(fit_intercept)}


def length_scale_of(feature_map: FeatureMap) -> LengthScale | None:
    """Return the kernel's length scale that a feature map was drawn with; None where it has no single one.

    Raises
    ------
    InvalidParameterError
        If its frequencies were given rather than drawn.
    """
    kernel = kernel_of(feature_map)
    if kernel is None:
        raise InvalidParameterError(
            "this feature map was made of given frequencies; it knows no length scale"
        )
    return cast("LengthScale | None", getattr(kernel, "length_scale", None))


def kind_of(feature_map: FeatureMap) -> str:
    """Return "nystrom" or "fourier", as parameters name the kinds of features."""
    inner = feature_map.base if isinstance(feature_map, PrincipalFeatureMap) else feature_map
    return "nystrom" if isinstance(inner, NystromFeatureMap) else "fourier"


def kernel_of(feature_map: FeatureMap) -> Kernel | None:
    """Return the kernel that a feature map stands for; None where its frequencies were given."""
    if isinstance(feature_map, PrincipalFeatureMap):
        return kernel_of(feature_map.base)
    if isinstance(feature_map, NystromFeatureMap):
        return feature_map.kernel
    return None if feature_map.spec is None else feature_map.spec.kernel
