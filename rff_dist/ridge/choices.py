"""What a fit begins with, before any pass: candidates, folds, penalty and numbers of components."""

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from rff_dist.data import folding, labelled
from rff_dist.data.blocks import Block, Dataset
from rff_dist.engines import protocol
from rff_dist.errors import DataError, InvalidParameterError, PlanError
from rff_dist.features import length_scales
from rff_dist.features.nystrom import Nystrom
from rff_dist.fitting.options import CV_NAMES, Penalty, RidgeOptions, check_conformal, read_widths
from rff_dist.fitting.plan import Machines, Plan, check_solver_plan
from rff_dist.kernels import base, names, stationary
from rff_dist.kernels.additive import Additive
from rff_dist.kernels.explicit import Linear
from rff_dist.ridge.budget import EFFORTS, MIN_COMPONENTS, Effort
from rff_dist.ridge.candidates import Candidate, TimesMedian
from rff_dist.statistics import inspection
from rff_dist.typing import frozen

logger = logging.getLogger(__name__)

DEFAULT_FOLDS, FOLDS_OF_FEW, FEW_SAMPLES = 5, 10, 200
# Three folds of more than `EXACT_ROWS` rows choose alike: 40 fits of 2,500 and 4,500 rows took 0.76 of the
# time, and 39 of them erred by 0.9999 times as much.
FOLDS_OF_MANY = 3
AUTO_COMPONENTS = EFFORTS[3].n_components  # what "auto" takes by default, if rows and memory allow
DEFAULT_COMPONENTS = 1024  # of given candidates, each of which takes sums and a table in n_components³

# Up to so many rows Nyström features have all of them as centres, and are the kernel itself. Errors come from
# the rows, and only the best is summed up: of 930 rows a table takes 20 ms in place of 130.
EXACT_ROWS = 2048
ROUND_ROWS = 10_000
# Finalists of more rows meet on so many of them, or so many values of X, in this process: the best of them
# alone then takes a pass over all rows.
MEETING_ROWS, MEETING_VALUES = 65_536, 2**24
ROUND_COMPONENTS = 512
AUTO_KERNELS = (stationary.Gaussian(), stationary.Matern(nu=1.5))
# On six sets and three kernels the best of a finer grid lay at 0.35 to 4 medians, and within about a standard
# error of one of these, but for one set (8 %).
MULTIPLES = (0.5, 1.0, 2.0, 4.0)  # of the median distance between rows
TRIED_WITH_NYSTROM = 3
# Half of the rows tune as well as all on airfoil, concrete and energy.
TUNED_ON = 2000  # rows that tune candidates' length scales; at most half of all rows
# Rows whose exact evidence polishes length scales, unless there are only Fourier features, or these and few
# rows. With 256 of these on 2,000 rows, 22 fits of 8 sets err by 1.014 times as much: pol by 1.12, elevators
# by 0.98. 500 and 1,000 rows gain less. Up to 750 rows a second climb gains nothing: 40 fits of airfoil and
# concrete. Labels say less than numbers: of classes so few rows gave 1.04 times the log loss on 8 fits.
TUNED_EXACTLY = 750
# Up to which alpha is chosen by leaving out each row, and length scales are tuned more quickly. Concrete with
# 927 rows, of which many are alike, would err by 4 % more that way.
# Of 155 nasty draws of 40 to 600 rows, 34 erred by more than 1.1 times what the best alpha gives if folds
# chose it, and 24 if rows did.
FEW_ROWS = 500
# Half of fewer rows are too few to tune length scales, as are fewer tuning rows than columns. 50 rows gain:
# with 5 and 20 columns they err by 0.31 and 0.35 deviations, and by 0.48 and 0.56 without tuning.
MIN_TUNED_SAMPLES = 40
# With fewer rows than these, or fewer tuning rows for each column, tuned length scales are not preferred to
# others whose error is as small.
TRUSTED_SAMPLES = 200
TRUSTED_PER_COLUMN = 10


# -- the whole -------------------------------------------------------------------------------------


@frozen
class Choices:
    """What a fit begins with, before any pass.

    `dataset`: the rows; those of a classifier have targets of −1 and +1.
    `options`: its options, with the kinds of features that are compared.
    `candidates`: those that the first round begins with, or that meet on all rows if they were given; just
      one if nothing is chosen.
    `given`: whether the candidates were given, so that there is no first round.
    `penalty`: how alpha is found, given the memory there is.
    `folds`: the folds of the final pass. Each is summed separately, and alpha is chosen by them.
    `by`: the folds that candidates are compared by: `folds`, or others if alpha is found without any.
    `widths`: numbers of components, ascending.
    `n_tuned_on`: the most rows that length scales are tuned on.
    `plan`: of a pass with the folds and the largest number of components.
    """

    dataset: Dataset
    options: RidgeOptions
    candidates: list[Candidate]
    given: bool
    penalty: Penalty
    folds: folding.Folds | None
    by: folding.Folds | None
    widths: list[int]
    n_tuned_on: int
    plan: Plan

    @property
    def choosing(self) -> bool:
        """Whether there is a first round: to choose, or to see how fast this machine is."""
        several = len(self.candidates) > 1 or len(self.options.kinds) > 1
        return not self.given and (several or self.options.time_limit is not None)

    @property
    def effort(self) -> Effort:
        return EFFORTS[self.options.effort]

    @property
    def kernels(self) -> bool:
        """Whether the first round chooses the kernel."""
        return not self.given and self.options.kernel == "auto"

    @property
    def n_tried(self) -> int:
        """The most candidates that may be tried."""
        if not self.choosing:
            return len(self.candidates) if self.given else 0
        curved = sum(not isinstance(candidate.kernel, Linear) for candidate in self.candidates)
        more = min(curved, TRIED_WITH_NYSTROM) if len(self.options.kinds) > 1 else 0
        return len(self.candidates) + more + self.kernels

    @property
    def round_width(self) -> int:
        """The first round's number of components: 512, or ¼ to ½ of the rows if less; at most the final's."""
        of_rows = max(64, 1 << (self.plan.n_samples // 4 - 1).bit_length())
        return min(ROUND_COMPONENTS, of_rows, self.widths[-1])

    @property
    def first_is_final(self) -> bool:
        """Whether the first round has all rows and components."""
        return self.plan.n_samples <= ROUND_ROWS and self.widths[-1] == self.round_width

    @property
    def n_finalists(self) -> int:
        """How many candidates may meet, at most."""
        if self.given:
            return len(self.candidates)
        if not self.choosing or self.first_is_final or self.folds is None:
            return 1
        return 1 + (len(self.options.kinds) > 1) + self.kernels

    @property
    def meeting_rows(self) -> int:
        """How many rows several finalists meet on: all of them, or a sample if they are many."""
        n_samples = self.plan.n_samples
        most = max(ROUND_ROWS, min(MEETING_ROWS, MEETING_VALUES // self.plan.n_features))
        return min(n_samples, most) if self.choosing and self.options.n_components == "auto" else n_samples

    @property
    def by_rows(self) -> bool:
        """Whether alpha is chosen by leaving out each row: rows are few, and alpha and `cv` are free."""
        few = self.dataset.n_samples <= FEW_ROWS and self.widths[-1] <= AUTO_COMPONENTS
        penalty, free = self.options.penalty, self.options.cv is None
        free = free and penalty.named == "auto" and penalty.grid is None
        return few and free and not has_groups(self.dataset)

    @property
    def tuning(self) -> length_scales.EvidenceSearch:
        """How length scales are tuned: in a first round more quickly than those asked for by name."""
        if not self.choosing:
            return length_scales.EvidenceSearch()
        width, n_starts = 128 if self.plan.n_samples <= FEW_ROWS else 256, self.effort.n_starts
        features, classes = self.options.features, isinstance(self.dataset, labelled.LabelledDataset)
        many = self.plan.n_samples > EXACT_ROWS and features != "fourier" and not classes
        exact = TUNED_EXACTLY if features == "nystrom" or many else 0
        return length_scales.EvidenceSearch(
            n_samples=TUNED_ON, n_components=width, n_starts=n_starts, exact_rows=exact
        )

    def finals(self, n_finalists: int) -> list[Self]:
        """Return the passes of so many finalists: with half of the components; the best goes on with all."""
        if n_finalists == 1 or self.given or self.meeting == self.widths[-1]:
            return [self]
        return [replace(self, widths=[self.meeting]), self]

    @property
    def meeting(self) -> int:
        """The number of components that finalists meet with: half of them, or all of few or several."""
        width = self.widths[-1]
        half = width // 4 * 2  # even, for pairs
        several = len(self.widths) > 1 or not self.effort.halves or self.plan.n_samples <= FEW_ROWS
        return width if several or half < MIN_COMPONENTS else half


def trusted_samples(dataset: Dataset) -> int:
    """Return how many rows there must be for tuned length scales to be preferred in a first round."""
    return max(TRUSTED_SAMPLES, 2 * TRUSTED_PER_COLUMN * dataset.n_features)


def choices_of(
    dataset: Dataset,
    options: RidgeOptions,
    *,
    machines: Machines,
    candidates: Sequence[Candidate] | None = None,
) -> Choices:
    """Return what a fit begins with, as far as memory allows; see `plan_choices`.

    `machines`: what is to run the fit.
    `candidates`: they replace the kernels and length scales of the options.
    Raises PlanError if memory is too small.
    """
    kinds = options.kinds
    if len(kinds) > 1 and options.effort == 1:
        kinds = kinds[:1] if dataset.n_samples > EXACT_ROWS else kinds[1:]
    if len(kinds) > 1 and options.n_components == "auto" and 2 <= dataset.n_samples <= EXACT_ROWS:
        kinds = kinds[1:]
    if candidates is None:
        tried = candidates_of(replace(options, features=kinds[0]), dataset)
        if dataset.n_samples < 2:  # nothing to compare
            tried, kinds = tried[:1], kinds[:1]
    else:
        options = with_folds(options)
        tried = []
        for candidate in candidates:
            # features of a linear kernel are exact
            alone = candidate.features or (kinds[0] if isinstance(candidate.kernel, Linear) else None)
            tried += [replace(candidate, features=kind) for kind in ([alone] if alone else kinds)]
    n_tuned_on = 0
    if any(candidate.length_scale == "evidence" for candidate in tried):
        # asked for by name, it takes more rows
        first = candidates is None and (len(tried) > 1 or len(kinds) > 1)
        n_tuned_on = TUNED_ON if first else length_scales.TUNING_ROWS
    penalty, folds, widths, plan = plan_choices(
        dataset, options, features=kinds[-1], n_tuned_on=n_tuned_on, machines=machines
    )
    if candidates is None and options.kernel == "auto":  # a linear kernel takes a component per column
        fit_in = dataset.n_features <= widths[-1]
        tried = [candidate for candidate in tried if fit_in or not isinstance(candidate.kernel, Linear)]
    options = replace(options, features="auto" if len(kinds) > 1 else kinds[0])
    is_given = candidates is not None
    choices = Choices(dataset, options, tried, is_given, penalty, folds, folds, widths, n_tuned_on, plan)
    if folds is None and choices.choosing:  # alpha is given or chosen otherwise: folds choose only the rest
        by = default_folds(dataset.n_samples, options.effort)
        choices = replace(choices, by=_held_in(by, dataset, options, n_tuned_on))
    return choices


# -- candidates ------------------------------------------------------------------------------------


def candidates_of(options: RidgeOptions, dataset: Dataset) -> list[Candidate]:
    """Return the candidates that the first round begins with; just one if there is nothing to choose."""
    first = options.kinds[0]
    if options.kernel == "auto":
        kernels: list[base.Kernel] = [*(AUTO_KERNELS[:1] if options.effort == 1 else AUTO_KERNELS)]
        linear = not options.several_widths and options.effort > 1
    else:
        kernels, linear = [names.find_kernel(options.kernel)], False
    candidates = [
        Candidate(kernel, length_scale, first)
        for kernel in kernels
        for length_scale in _length_scales(options, kernel, dataset)
    ]
    effort, tuned = EFFORTS[options.effort], Candidate(AUTO_KERNELS[-1], "evidence", first)
    if options.kernel == "auto" and tuned in candidates:
        if effort.mapped and options.standardize == "auto":
            candidates.append(replace(tuned, mapped=True))
        if effort.additive and options.design == "auto" and dataset.n_features > 1:
            kernel = Additive(
                kernel=AUTO_KERNELS[-1]
            )  # sums of this one won on 11 of 12 fits on which a sum did
            alone = replace(kernel, order_2=0, dense=0)  # whose effects of columns are exact
            candidates += [replace(tuned, kernel=kernel), replace(tuned, kernel=alone)]
    return [*candidates, *([Candidate(Linear(), None, "fourier")] if linear else [])]


def _length_scales(options: RidgeOptions, kernel: base.Kernel, dataset: Dataset) -> list[Any]:
    """Return the length scales that a kernel is tried with."""
    wanted = options.length_scale
    if not isinstance(wanted, str):
        return [wanted]
    if wanted == "evidence":
        length_scales.check_tunable(kernel)
        return [wanted]
    if wanted not in ("auto", "median"):
        raise InvalidParameterError(
            f"`length_scale` is {wanted!r}; expected 'auto', 'median', 'evidence' or numbers above 0"
        )
    if wanted == "median" and isinstance(kernel, stationary.Stationary):
        return [TimesMedian(1.0)]
    if wanted == "median" or not stationary.parts_without_length_scale(kernel):
        return [None]  # the kernel has its own, needs none, or gets the median where it is drawn
    # few rows of classes can be separated exactly, which the evidence mistakes for good length scales
    classes = isinstance(dataset, labelled.LabelledDataset)
    least = trusted_samples(dataset) if classes else max(MIN_TUNED_SAMPLES, 2 * dataset.n_features)
    effort = EFFORTS[options.effort]
    tunable = isinstance(kernel, stationary.Stationary) and dataset.n_samples >= least
    tuned = ["evidence"] if tunable and effort.tuned else []
    return [*tuned, *(map(TimesMedian, MULTIPLES) if effort.multiples else [TimesMedian(1.0)])]


# -- folds, penalty and numbers of components --------------------------------------------------------


def default_folds(n_samples: int, effort: int = 3) -> folding.HashFolds:
    """Return 5 folds by hash; 3 of more than 2,048 rows; 10 of fewer than 200, but no more than rows."""
    if n_samples > EXACT_ROWS and not EFFORTS[effort].many_folds:
        return folding.HashFolds(FOLDS_OF_MANY)
    few = max(2, min(n_samples, FOLDS_OF_FEW))
    return folding.HashFolds(DEFAULT_FOLDS if n_samples >= FEW_SAMPLES else few)


def needs_folds(options: RidgeOptions) -> bool:
    """Return whether something is chosen or measured by folds."""
    return bool(options.several_widths or options.penalty.by_folds or options.conformal)


def folds_for(options: RidgeOptions, n_samples: int = FEW_SAMPLES) -> folding.Folds | None:
    """Return the folds that a fit sums separately; None if nothing is chosen by cross-validation.

    Several numbers of components, several alphas, "auto", "cv" and "cv-1se", and conformal intervals need
    folds.

    Raises InvalidParameterError if `cv` is no number of folds, or folds are needed but `alpha` is 0 or chosen
      without them.
    """
    alpha, cv, named = options.alpha, options.cv, isinstance(options.alpha, str)
    several, by_folds = options.several_widths, options.penalty.by_folds
    if cv is None and not needs_folds(options):
        return None
    if named and not by_folds:
        reasons = {f"`cv` is {cv!r}": cv is not None, f"`n_components` is {options.n_components!r}": several}
        conformal = f"`conformal` is {options.conformal!r}"
        reason = next((words for words, is_so in reasons.items() if is_so), conformal)
        raise InvalidParameterError(
            f"{reason}, which takes k-fold cross-validation, but `alpha` is {alpha!r}; expected one of "
            f"{list(CV_NAMES)} or numbers. Leave one of them out"
        )
    if not named and not np.all(np.asarray(alpha) > 0):
        raise InvalidParameterError(f"`alpha` is {alpha!r}; cross-validation needs numbers above 0")
    folds = default_folds(n_samples, options.effort) if cv is None else folding.find_folds(cv)
    if len(folds.splits) < 2 and (several or (named and alpha == "cv-1se")):
        raise InvalidParameterError(
            f"{folds} give one split, whose error has no standard error; use more folds"
        )
    return folds


def with_folds(options: RidgeOptions) -> RidgeOptions:
    """Return the options with folds that can choose among given candidates.

    Raises InvalidParameterError if alpha is chosen without folds, or the solver makes no sums of theirs.
    """
    if options.penalty.named not in (None, *CV_NAMES):
        raise InvalidParameterError(
            f"`alpha` is {options.alpha!r}, but candidates are compared by k-fold cross-validation; expected "
            f"one of {list(CV_NAMES)} or numbers above 0, or give one kernel and length scale"
        )
    if options.solver == "pcg":
        raise InvalidParameterError(
            "`solver` is 'pcg', which keeps no sums of Z'Z, but candidates are compared by the sums of each "
            "fold; leave it out, or give one kernel and length scale"
        )
    return replace(options, cv=DEFAULT_FOLDS if options.cv is None else options.cv)


def prepare_folds(dataset: Dataset, folds: folding.Folds, *, engine: protocol.Engine) -> folding.Folds:
    """Return the folds that passes over a dataset use: folds of groups are balanced by the groups' sizes.

    Groups are counted in a pass that reads no X. More than `MAX_BALANCED_GROUPS` are assigned by hash.

    Raises DataError if the folds are of groups, and the dataset has none or too few.
    """
    if isinstance(folds, folding.HeldInFolds):
        base = prepare_folds(dataset, folds.base, engine=engine)
        return replace(folds, base=base, n_folds=folds.n_folds - folds.base.n_folds + base.n_folds)
    first = Block(0, 0, min(1, dataset.n_samples))  # one row shows whether there are groups
    folds.assign(0, first.stop, n_samples=dataset.n_samples, groups=dataset.read(first).groups)
    if not isinstance(folds, folding.GroupFolds):
        return folds
    folds = replace(folds, table=None)
    counts = inspection.count_groups(dataset, at_most=folding.MAX_BALANCED_GROUPS, engine=engine)
    if counts is None:
        logger.info("more than %d groups: folds are assigned by their hashes", folding.MAX_BALANCED_GROUPS)
        return folds
    counted = counts.weight.value() > 0
    return folds.balanced(counts.labels[counted], counts.n_samples[counted])


def has_groups(dataset: Dataset) -> bool:
    """Return whether rows have groups, as the first one shows."""
    return dataset.n_samples > 0 and dataset.read_groups(Block(0, 0, 1)) is not None


def automatic_components(n_samples: int, fits: Callable[[int], object], most: int = AUTO_COMPONENTS) -> int:
    """Return how many components a fit takes by itself: `most`, or fewer for few rows or little memory.

    More components than rows seldom help: up to 1,024 rows, the number of rows is rounded up to a power of
    two, and to at least 256. A pass takes time in proportion to the rows and the square of this number: some
    ten seconds on two cores for 2,048 components of 200,000 rows.

    `fits`: plans a fit with so many components, and raises PlanError if memory is too small.
    Raises PlanError if memory is too small for 256 components.
    """
    wanted = min(most, max(MIN_COMPONENTS, 1 << (n_samples - 1).bit_length()))
    while True:
        try:
            fits(wanted)
        except PlanError:
            if wanted == MIN_COMPONENTS:
                raise
            logger.warning("memory does not hold the sums of %d components: taking half as many", wanted)
            wanted //= 2
        else:
            return wanted


def plan_choices(
    dataset: Dataset, options: RidgeOptions, *, features: str | Nystrom, n_tuned_on: int, machines: Machines
) -> tuple[Penalty, folding.Folds | None, list[int], Plan]:
    """Return the penalty, folds and numbers of components of a fit that memory allows, and its plan.

    If memory does not hold the sums of the default folds, three or two replace them; if it does not hold
    those either, "auto" alpha is chosen by generalised cross-validation. Folds, alpha or widths that
    were given are kept. If `n_tuned_on` rows tune length scales by the evidence, the folds never validate on
    these.

    Raises InvalidParameterError if parameters do not go together.
    """
    folds = folds_for(options, dataset.n_samples)
    if folds is not None and dataset.n_samples == 1:
        raise DataError(
            "n_samples=1: nothing can be chosen by cross-validation; give one number as `alpha`, or more rows"
        )
    check_conformal(options.conformal, folds)
    penalty = options.penalty
    automatic = penalty.named == "auto"

    def honest(folds: folding.Folds | None) -> folding.Folds | None:
        return None if folds is None else _held_in(folds, dataset, options, n_tuned_on)

    def plan(n_components: int, folds: folding.Folds | None) -> Plan:
        n_folds = 1 if folds is None else folds.n_folds
        return check_solver_plan(dataset, n_components, options, n_folds, machines=machines)

    folds = honest(folds)
    if isinstance(options.n_components, str) and options.n_components == "auto":
        most = EFFORTS[options.effort].n_components
        widths = [automatic_components(dataset.n_samples, lambda wanted: plan(wanted, folds), most)]
    else:
        widths = read_widths(options.n_components, options.map, features)
        choices: list[folding.Folds | None] = [folds]
        if folds is not None and options.cv is None and automatic:
            choices += [honest(folding.HashFolds(3)), honest(folding.HashFolds(2))]
            choices += [] if options.conformal or options.several_widths else [None]
        folds = _first_that_fits(choices, lambda choice: plan(widths[-1], choice))
    if automatic:
        penalty = replace(penalty, alpha="gcv" if folds is None else "cv")
    return penalty, folds, widths, plan(widths[-1], folds)


def _held_in(folds: folding.Folds, dataset: Dataset, options: RidgeOptions, n_tuned_on: int) -> folding.Folds:
    """Return folds that hold groups out together, unless others were given, and tuned rows never."""
    if not isinstance(options.cv, folding.Folds) and has_groups(dataset):
        folds = folding.GroupFolds(folds.n_folds, is_default=options.cv is None)
    return folding.hold_in(folds, dataset.n_samples, n_tuned_on) if n_tuned_on else folds


def _first_that_fits(
    choices: Sequence[folding.Folds | None], check: Callable[[folding.Folds | None], object]
) -> folding.Folds | None:
    for choice, following in itertools.pairwise(choices):
        try:
            check(choice)
        except PlanError:
            assert choice is not None  # which is the last choice
            instead = "alpha is chosen by generalised cross-validation"
            if following is not None:
                instead = f"taking {following.n_folds}"
            logger.warning("memory does not hold the sums of %d folds: %s", choice.n_folds, instead)
        else:
            return choice
    return choices[-1]
