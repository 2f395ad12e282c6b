"""Decide what a fit will try before it reads a row.

A dataset's size, the options and the memory of the machines go in; `Choices` come out:
candidates to compare, folds, penalty and numbers of components. Everything that cannot
work is refused here, before hours of passes.

A *candidate* is a kernel, its length scale and a kind of features. A first round
compares candidates on a sample of rows; the final trains the best one on all rows.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rff_dist.data import folding, labelled
from rff_dist.data.blocks import Block, Dataset
from rff_dist.engines import protocol
from rff_dist.errors import DataError, InvalidParameterError, PlanError
from rff_dist.features import length_scales
from rff_dist.features.feature_options import FeatureKind
from rff_dist.features.nystrom import Nystrom
from rff_dist.features.sums import linear_components
from rff_dist.fitting.options import (
    CV_NAMES,
    Penalty,
    RidgeOptions,
    read_n_components,
)
from rff_dist.fitting.plan import Machines, Plan, plan_regression
from rff_dist.kernels import base, names, stationary
from rff_dist.kernels.additive import Additive
from rff_dist.kernels.explicit import Linear
from rff_dist.recipes import recipes
from rff_dist.ridge.budget import (
    DEFAULT_EFFORT,
    EFFORTS,
    MIN_COMPONENTS,
    EffortLevel,
)
from rff_dist.ridge.candidates import Candidate, TimesMedian
from rff_dist.statistics import label_counts
from rff_dist.typing import frozen

logger = logging.getLogger(__name__)

DEFAULT_FOLDS = 5
FOLDS_OF_FEW = 10
FEW_SAMPLES = 200
# Three folds of more than `EXACT_ROWS` rows choose alike: 40 fits of 2,500 and 4,500
# rows took 0.76 of the time, and 39 of them erred by 0.9999 times as much.
FOLDS_OF_MANY = 3
# what "auto" takes by default, if rows and memory allow
AUTO_COMPONENTS = EFFORTS[DEFAULT_EFFORT].n_components
# of given candidates, each of which takes sums and a table in n_components³
DEFAULT_COMPONENTS = 1024

# Up to so many rows Nyström features have all of them as centres, and are the kernel
# itself. Errors come from the rows, and only the best is summed up: of 930 rows a table
# takes 20 ms in place of 130.
EXACT_ROWS = 2048
ROUND_ROWS = 10_000
# Parts of the kernel that is tried by default: smooth functions, and rougher ones.
AUTO_KERNELS = (stationary.Gaussian(), stationary.Matern(nu=1.5))
# Of more columns, functions of single columns take longer than everything else: pol,
# with 26, took 49 CPU seconds in place of 25.
ADDITIVE_COLUMNS = 20
# where a search for the kernel's weights begins
FIRST_COLUMN_WEIGHT = 0.05
# of the median distance between rows, if length scales are not tuned
MULTIPLES = (0.5, 1.0, 2.0, 4.0)
# Half of the rows tune as well as all on airfoil, concrete and energy.
TUNING_ROWS = 2000  # rows that tune candidates' length scales; at most half of all rows
# Rows whose exact evidence polishes length scales, unless there are only Fourier
# features, or these and few rows. With 256 of these on 2,000 rows, 22 fits of 8 sets
# err by 1.014 times as much: pol by 1.12, elevators by 0.98. 500 and 1,000 rows gain
# less. Up to 750 rows a second climb gains nothing: 40 fits of airfoil and concrete.
TUNED_EXACTLY = 750
# Up to which alpha is chosen by leaving out each row, and length scales are tuned more
# quickly. Concrete with 927 rows, of which many are alike, would err by 4 % more that
# way. Of 155 nasty draws of 40 to 600 rows, 34 erred by more than 1.1 times what the
# best alpha gives if folds chose it, and 24 if rows did.
FEW_ROWS = 500
# Half of fewer rows are too few to tune length scales, as are fewer tuning rows than
# columns. 50 rows gain: with 5 and 20 columns they err by 0.31 and 0.35 deviations, and
# by 0.48 and 0.56 without tuning.
MIN_TUNED_SAMPLES = 40
# With fewer rows than these, or fewer tuning rows for each column, tuned length scales
# are not preferred to others whose error is as small.
TRUSTED_SAMPLES = 200
TRUSTED_PER_COLUMN = 10


# -- the whole
# -------------------------------------------------------------------------------------


@frozen
class Choices:
    """What a fit begins with, before any pass."""

    #: A classifier's has targets of −1 and +1.
    dataset: Dataset
    #: The user's, with the kinds of features that are compared.
    options: RidgeOptions
    #: Those that the first round compares, or those that the user gave; just one if
    #: nothing is chosen.
    candidates: list[Candidate]
    #: The user gave the candidates, so that all are trained on all rows, without a
    #: first round.
    has_given_candidates: bool
    penalty: Penalty
    #: Each is summed separately in the final, and they choose alpha; None if alpha is
    #: found without folds.
    folds: folding.Folds | None
    #: Candidates are compared by these: `folds`, or others if there are none.
    comparison_folds: folding.Folds | None
    #: Numbers of components to try, ascending.
    widths: list[int]
    #: At most so many rows tune length scales.
    n_tuning_rows: int
    #: Of a pass with the folds and the largest number of components.
    plan: Plan

    @property
    def has_first_round(self) -> bool:
        """Whether candidates are compared on a sample, or timed there for a limit."""
        if self.has_given_candidates:
            return False
        return len(self.candidates) > 1 or self.options.time_limit is not None

    @property
    def effort(self) -> EffortLevel:
        return EFFORTS[self.options.effort]

    @property
    def has_few_rows(self) -> bool:
        """Whether errors come from the rows themselves."""
        return self.plan.n_samples <= EXACT_ROWS

    @property
    def n_round_components(self) -> int:
        """The components of the first round: half of them, or of few rows all."""
        width = self.widths[-1]
        half = width // 4 * 2  # even, for pairs
        needs_all = self.has_few_rows or half < MIN_COMPONENTS
        if needs_all or not self.effort.compares_with_half:
            return width
        return half

    @property
    def leaves_rows_out(self) -> bool:
        """Whether alpha is chosen by leaving out each row in turn, not by folds.

        If rows are few, and neither alpha nor folds were given.
        """
        is_small = (
            self.dataset.n_samples <= FEW_ROWS and self.widths[-1] <= AUTO_COMPONENTS
        )
        penalty = self.options.penalty
        alpha_is_free = penalty.criterion == "auto" and penalty.grid is None
        is_free = alpha_is_free and self.options.cv is None
        return is_small and is_free and not has_groups(self.dataset)

    @property
    def tuning(self) -> length_scales.EvidenceSearch:
        """How length scales are tuned: more quickly in a first round than by name."""
        of_classes = isinstance(self.dataset, labelled.LabelledDataset)
        if not self.has_first_round:
            return length_scales.EvidenceSearch(of_classes=of_classes)
        tunes_exactly = self.options.features != "fourier"
        return length_scales.EvidenceSearch(
            n_samples=TUNING_ROWS,
            n_components=128 if self.plan.n_samples <= FEW_ROWS else 256,
            n_starts=self.effort.n_starts,
            exact_rows=TUNED_EXACTLY if tunes_exactly else 0,
            of_classes=of_classes,
        )


def choices_of(
    dataset: Dataset,
    options: RidgeOptions,
    *,
    machines: Machines,
    candidates: Sequence[Candidate] | None = None,
) -> Choices:
    """Return what a fit begins with, as far as memory allows.

    Given candidates replace the kernels and length scales of the options. Raises
    PlanError if memory is too small.
    """
    kinds = _kinds_to_compare(options, dataset)
    if candidates is None:
        first_candidates = candidates_of(options, dataset, kinds)
        if dataset.n_samples < 2:  # nothing to compare
            first_candidates = first_candidates[:1]
            kinds = kinds[:1]
    else:
        options = with_folds(options)
        first_candidates = _with_kinds(candidates, kinds)

    n_tuning_rows = 0
    if any(candidate.length_scale == "evidence" for candidate in first_candidates):
        # asked for by name, it takes more rows
        is_compared = candidates is None and len(first_candidates) > 1
        n_tuning_rows = TUNING_ROWS if is_compared else length_scales.TUNING_ROWS
    penalty, folds, widths, plan = plan_choices(
        dataset,
        options,
        features=kinds[-1],
        n_tuning_rows=n_tuning_rows,
        machines=machines,
    )
    # a linear kernel takes a component per column
    levels = recipes.levels_of(dataset.attributes)
    has_room_for_linear = linear_components(dataset.n_features, levels) <= widths[-1]
    if options.kernel == "auto" and candidates is None and not has_room_for_linear:
        first_candidates = [
            c for c in first_candidates if not isinstance(c.kernel, Linear)
        ]

    choices = Choices(
        dataset=dataset,
        options=replace(options, features="auto" if len(kinds) > 1 else kinds[0]),
        candidates=first_candidates,
        has_given_candidates=candidates is not None,
        penalty=penalty,
        folds=folds,
        comparison_folds=folds,
        widths=widths,
        n_tuning_rows=n_tuning_rows,
        plan=plan,
    )
    # alpha is given or found without folds, which then choose only the rest
    if folds is None and choices.has_first_round:
        others = _fit_for(
            default_folds(dataset.n_samples, options.effort),
            dataset,
            options,
            n_tuning_rows,
        )
        choices = replace(choices, comparison_folds=others)
    return choices


def _kinds_to_compare(options: RidgeOptions, dataset: Dataset) -> list[FeatureKind]:
    kinds = options.kinds
    if len(kinds) == 1:
        return kinds
    fourier = kinds[:1]
    # of few rows these are the kernel itself
    nystrom = kinds[1:]
    has_few_rows = dataset.n_samples <= EXACT_ROWS
    if options.effort == 1:
        return nystrom if has_few_rows else fourier
    if has_few_rows and options.chooses_n_components and dataset.n_samples >= 2:
        return nystrom
    return kinds


def _with_kinds(
    candidates: Sequence[Candidate], kinds: Sequence[FeatureKind]
) -> list[Candidate]:
    """Return each candidate with each kind of features, unless it has one."""
    completed = []
    for candidate in candidates:
        if candidate.features is not None:
            candidate_kinds = [candidate.features]
        elif isinstance(candidate.kernel, Linear):  # exact, so that kinds do not differ
            candidate_kinds = [kinds[0]]
        else:
            candidate_kinds = list(kinds)
        completed += [replace(candidate, features=kind) for kind in candidate_kinds]
    return completed


# -- candidates
# ------------------------------------------------------------------------------------


def candidates_of(
    options: RidgeOptions,
    dataset: Dataset,
    kinds: Sequence[FeatureKind] | None = None,
) -> list[Candidate]:
    """Return the candidates of a first round, the fastest first; one if
    there is nothing to choose. Those of several kinds of features are tried with each.
    """
    kinds = options.kinds if kinds is None else kinds
    if options.kernel != "auto":
        kernel = names.find_kernel(options.kernel)
        scales = _length_scales(options, kernel, dataset)
        return _with_kinds([Candidate(kernel, scale) for scale in scales], kinds)
    if not EFFORTS[options.effort].is_tuned:
        (scale,) = _length_scales(options, AUTO_KERNELS[0], dataset)
        return [Candidate(AUTO_KERNELS[0], scale, kinds[0])]

    candidates = []
    if not options.has_several_n_components:
        candidates.append(Candidate(Linear(), None, "fourier"))
    *untuned, last = _length_scales(options, AUTO_KERNELS[-1], dataset)
    if last != "evidence":
        for kernel in AUTO_KERNELS:
            for scale in [*untuned, last]:
                candidates.append(Candidate(kernel, scale, kinds[0]))
        return candidates
    for scale in untuned:  # in case that nothing can be tuned
        candidates.append(Candidate(AUTO_KERNELS[-1], scale, kinds[0]))
    is_mapped = options.standardize == "auto"
    for kernel in AUTO_KERNELS:
        tuned = Candidate(_with_columns(kernel, dataset), last, mapped=is_mapped)
        candidates += _with_kinds([tuned], kinds)
    return candidates


def _with_columns(
    kernel: stationary.Gaussian | stationary.Matern, dataset: Dataset
) -> stationary.Stationary:
    """Return the kernel plus those of single columns, each with a weight of its own.

    Of classes it is the kernel: rows left out in turn tune their length scales, which
    takes too long with weights.
    """
    n_features = dataset.n_features
    of_classes = isinstance(dataset, labelled.LabelledDataset)
    if of_classes or not 1 < n_features <= ADDITIVE_COLUMNS:
        return kernel
    weights = (FIRST_COLUMN_WEIGHT,) * n_features
    return Additive(kernel=kernel, order_1=weights, order_2=0.0, dense=1.0)


def _length_scales(
    options: RidgeOptions, kernel: base.Kernel, dataset: Dataset
) -> list[Any]:
    """Return the length scales that a kernel is tried with."""
    length_scale = options.length_scale
    if not isinstance(length_scale, str):
        return [length_scale]
    if length_scale == "evidence":
        length_scales.check_tunable(kernel)
        return [length_scale]
    if length_scale not in ("auto", "median"):
        raise InvalidParameterError(
            f"`length_scale` is {length_scale!r}; expected 'auto', 'median', 'evidence'"
            " or numbers above 0"
        )
    median = TimesMedian(1.0)
    is_stationary = isinstance(kernel, stationary.Stationary)
    if length_scale == "median" and is_stationary:
        return [median]
    if length_scale == "median" or not stationary.parts_without_length_scale(kernel):
        # the kernel has its own, needs none, or gets the median where it is drawn
        return [None]
    if not EFFORTS[options.effort].is_tuned:
        return [median]

    n_needed = max(MIN_TUNED_SAMPLES, 2 * dataset.n_features)
    if isinstance(dataset, labelled.LabelledDataset):
        # few rows of classes can be separated exactly, which the evidence mistakes for
        # good length scales
        n_needed = trusted_samples(dataset)
    if is_stationary and dataset.n_samples >= n_needed:
        return [median, "evidence"]
    return [TimesMedian(factor) for factor in MULTIPLES]


def trusted_samples(dataset: Dataset) -> int:
    """Return the rows above which a first round prefers tuned length scales."""
    return max(TRUSTED_SAMPLES, 2 * TRUSTED_PER_COLUMN * dataset.n_features)


# -- folds
# -------------------------------------------------------------------------------------


def default_folds(n_samples: int, effort: int = DEFAULT_EFFORT) -> folding.HashFolds:
    """Return 5 folds by a hash of the row; 3 of many rows, up to 10 of few."""
    if n_samples > EXACT_ROWS and not EFFORTS[effort].many_folds:
        return folding.HashFolds(FOLDS_OF_MANY)
    if n_samples >= FEW_SAMPLES:
        return folding.HashFolds(DEFAULT_FOLDS)
    return folding.HashFolds(max(2, min(n_samples, FOLDS_OF_FEW)))


def needs_folds(options: RidgeOptions) -> bool:
    """Return whether something is chosen by folds."""
    return options.has_several_n_components or options.penalty.may_use_folds


def folds_for(
    options: RidgeOptions, n_samples: int = FEW_SAMPLES
) -> folding.Folds | None:
    """Return the folds that a fit sums separately; None if it needs none.

    Raises InvalidParameterError if `cv` is no number of folds, or folds are needed but
    `alpha` is 0 or chosen without them.
    """
    alpha = options.alpha
    cv = options.cv
    if cv is None and not needs_folds(options):
        return None
    criterion = options.penalty.criterion
    if criterion is not None and not options.penalty.may_use_folds:
        reason = f"`cv` is {cv!r}"
        if cv is None:
            reason = f"`n_components` is {options.n_components!r}"
        raise InvalidParameterError(
            f"{reason}, which takes k-fold cross-validation, but `alpha` is {alpha!r};"
            f" expected one of {list(CV_NAMES)} or numbers. Leave one of them out"
        )
    if criterion is None and not np.all(np.asarray(alpha) > 0):
        raise InvalidParameterError(
            f"`alpha` is {alpha!r}; cross-validation needs numbers above 0"
        )

    if cv is None:
        folds: folding.Folds = default_folds(n_samples, options.effort)
    else:
        folds = folding.find_folds(cv)
    needs_standard_error = options.has_several_n_components or criterion == "cv-1se"
    if needs_standard_error and len(folds.splits) < 2:
        raise InvalidParameterError(
            f"{folds} give one split, whose error has no standard error; use more folds"
        )
    return folds


def with_folds(options: RidgeOptions) -> RidgeOptions:
    """Return the options with folds that can choose among given candidates.

    Raises InvalidParameterError if alpha is chosen without folds, or the solver makes
    no sums of theirs.
    """
    if options.penalty.criterion not in (None, *CV_NAMES):
        raise InvalidParameterError(
            f"`alpha` is {options.alpha!r}, but candidates are compared by k-fold"
            f" cross-validation; expected one of {list(CV_NAMES)} or numbers above 0,"
            " or give one kernel and length scale"
        )
    if options.solver == "pcg":
        raise InvalidParameterError(
            "`solver` is 'pcg', which keeps no sums of Z'Z, but candidates are compared"
            " by the sums of each fold; leave it out, or give one kernel and length"
            " scale"
        )
    return replace(options, cv=DEFAULT_FOLDS if options.cv is None else options.cv)


def _fit_for(
    folds: folding.Folds, dataset: Dataset, options: RidgeOptions, n_tuning_rows: int
) -> folding.Folds:
    """Return folds that keep groups together and never validate on tuning rows."""
    has_own_folds = isinstance(options.cv, folding.Folds)
    if has_groups(dataset) and not has_own_folds:
        folds = folding.GroupFolds(folds.n_folds, is_default=options.cv is None)
    if n_tuning_rows == 0:
        return folds
    return folding.with_tuning_rows(folds, dataset.n_samples, n_tuning_rows)


def prepare_folds(
    dataset: Dataset, folds: folding.Folds, *, engine: protocol.Engine
) -> folding.Folds:
    """Return folds of groups balanced by the groups' sizes, and others as they are.

    Groups are counted in a pass that reads no X. More than `MAX_BALANCED_GROUPS` are
    assigned by hash. Raises DataError if the folds are of groups, and the dataset has
    none or too few.
    """
    if isinstance(folds, folding.TuningFolds):
        base = prepare_folds(dataset, folds.base, engine=engine)
        n_more = folds.n_folds - folds.base.n_folds
        return replace(folds, base=base, n_folds=base.n_folds + n_more)

    # one row shows whether there are groups; folds of groups raise an error without
    first = Block(0, 0, min(1, dataset.n_samples))
    groups = dataset.read(first).groups
    folds.assign(0, first.stop, n_samples=dataset.n_samples, groups=groups)
    if not isinstance(folds, folding.GroupFolds):
        return folds

    folds = replace(folds, table=None)
    counts = label_counts.count_groups(
        dataset, at_most=folding.MAX_BALANCED_GROUPS, engine=engine
    )
    if counts is None:
        logger.info(
            "more than %d groups: folds are assigned by their hashes",
            folding.MAX_BALANCED_GROUPS,
        )
        return folds
    has_weight = counts.weight.value() > 0
    return folds.balanced(counts.labels[has_weight], counts.n_samples[has_weight])


def has_groups(dataset: Dataset) -> bool:
    """Return whether rows have groups, as the first one shows."""
    return dataset.n_samples > 0 and dataset.read_groups(Block(0, 0, 1)) is not None


# -- what memory allows
# -------------------------------------------------------------------------------------


def automatic_components(
    n_samples: int, check: Callable[[int], object], most: int = AUTO_COMPONENTS
) -> int:
    """Return how many components "auto" takes: `most`, or fewer for few rows or memory.

    More components than rows seldom help: up to 1,024 rows, the number of rows is
    rounded up to a power of two, and to at least 256. A pass takes time in proportion
    to the rows and the square of this number: some ten seconds on two cores for 2,048
    components of 200,000 rows.

    `check` raises PlanError if memory is too small for so many components, and this
    raises it if memory is too small for 256.
    """
    power_of_two = 1 << (n_samples - 1).bit_length()
    n_components = min(most, max(MIN_COMPONENTS, power_of_two))
    while True:
        try:
            check(n_components)
        except PlanError:
            if n_components == MIN_COMPONENTS:
                raise
            logger.warning(
                "memory does not hold the sums of %d components: taking half as many",
                n_components,
            )
            n_components //= 2
        else:
            return n_components


def plan_choices(
    dataset: Dataset,
    options: RidgeOptions,
    *,
    features: str | Nystrom,
    n_tuning_rows: int,
    machines: Machines,
) -> tuple[Penalty, folding.Folds | None, list[int], Plan]:
    """Return the penalty, folds, numbers of components and plan that memory allows.

    If memory does not hold the sums of the default folds, three or two replace them; if
    it does not hold those either, "auto" alpha is chosen by generalised
    cross-validation. Folds, alpha and numbers of components that a user gave stay.

    Raises InvalidParameterError if parameters do not go together.
    """
    folds = folds_for(options, dataset.n_samples)
    if folds is not None and dataset.n_samples == 1:
        raise DataError(
            "n_samples=1: nothing can be chosen by cross-validation; give one number as"
            " `alpha`, or more rows"
        )

    def complete(folds: folding.Folds) -> folding.Folds:
        return _fit_for(folds, dataset, options, n_tuning_rows)

    def plan(n_components: int, folds: folding.Folds | None) -> Plan:
        n_folds = 1 if folds is None else folds.n_folds
        return plan_regression(
            dataset, n_components, options, n_folds, machines=machines
        )

    penalty = options.penalty
    alpha_is_auto = penalty.criterion == "auto"
    if folds is not None:
        folds = complete(folds)
    if options.chooses_n_components:
        most = EFFORTS[options.effort].n_components
        widths = [
            automatic_components(dataset.n_samples, lambda n: plan(n, folds), most)
        ]
    else:
        widths = read_n_components(options.n_components, options.map, features)
        if folds is not None and alpha_is_auto and options.cv is None:
            smaller: list[folding.Folds | None] = [
                complete(folding.HashFolds(3)),
                complete(folding.HashFolds(2)),
            ]
            if not options.has_several_n_components:
                smaller.append(None)
            folds = _folds_in_memory(folds, smaller, lambda f: plan(widths[-1], f))
    if alpha_is_auto:
        penalty = replace(penalty, alpha="gcv" if folds is None else "cv")
    return penalty, folds, widths, plan(widths[-1], folds)


def doubled(choices: Choices, machines: Machines) -> Choices | None:
    """Return the choices of twice as many components; None if a fit cannot take them.

    Options, effort, rows and memory decide; whether they pay, the fit does.
    """
    n_components = 2 * choices.widths[-1]
    may_grow = (
        choices.options.chooses_n_components
        and not choices.has_given_candidates
        and choices.options.time_limit is None
        and n_components <= choices.effort.n_components_that_pay
        and n_components < 2 * choices.dataset.n_samples
    )
    if choices.folds is None or not may_grow:
        return None
    try:
        plan = plan_regression(
            choices.dataset,
            n_components,
            choices.options,
            choices.folds.n_folds,
            machines=machines,
        )
    except PlanError as error:
        logger.info("not trying %d components: %s", n_components, error)
        return None
    return replace(choices, widths=[n_components], plan=plan)


def _folds_in_memory(
    folds: folding.Folds | None,
    alternatives: Sequence[folding.Folds | None],
    check: Callable[[folding.Folds | None], object],
) -> folding.Folds | None:
    """Return the first folds that `check` lets pass, or the last alternative."""
    for alternative in alternatives:
        try:
            check(folds)
        except PlanError:
            assert folds is not None  # None is the last alternative
            instead = "alpha is chosen by generalised cross-validation"
            if alternative is not None:
                instead = f"taking {alternative.n_folds}"
            logger.warning(
                "memory does not hold the sums of %d folds: %s", folds.n_folds, instead
            )
            folds = alternative
        else:
            break
    return folds
