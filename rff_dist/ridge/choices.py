"""Decide what a fit will try before it reads a row.

A dataset's size, the options and the memory of the machines go in; `Choices` come out:
candidates to compare, folds, penalty and numbers of components. Everything that cannot
work is refused here, before hours of passes. `candidate_choices` and `fold_choices`
know which candidates and folds; here memory is added.

A *candidate* is a kernel, its length scale and a kind of features. A first round
compares candidates on a sample of rows; the final trains the best one on all rows.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from rff_dist.data import folding, labelled
from rff_dist.data.blocks import Dataset
from rff_dist.errors import DataError, PlanError
from rff_dist.features import length_scales
from rff_dist.features.feature_options import FeatureKind
from rff_dist.features.sums import linear_components
from rff_dist.fitting.options import Penalty, RidgeOptions, read_n_components
from rff_dist.fitting.plan import Plan
from rff_dist.fitting.sizes import Machines
from rff_dist.fitting.solver_plan import plan_regression
from rff_dist.kernels.explicit import Linear
from rff_dist.recipes import recipes
from rff_dist.ridge.budget import (
    DEFAULT_EFFORT,
    EFFORTS,
    EXACT_ROWS,
    MIN_COMPONENTS,
    EffortLevel,
)
from rff_dist.ridge.candidate_choices import candidates_of, kinds_to_compare, with_kinds
from rff_dist.ridge.candidates import Candidate
from rff_dist.ridge.fold_choices import (
    complete_folds,
    default_folds,
    folds_for,
    has_groups,
    with_folds,
)
from rff_dist.typing import frozen

logger = logging.getLogger(__name__)

# The number of components of "auto", if rows and memory allow.
AUTO_COMPONENTS = EFFORTS[DEFAULT_EFFORT].n_components
# The same for given candidates: each takes sums and a table in O(n_components³).
DEFAULT_COMPONENTS = 1024
ROUND_ROWS = 10_000  # the most rows of the first round
# The most rows that tune candidates' length scales; at most half of all rows. On
# airfoil, concrete and energy half of the rows tune as well as all.
TUNING_ROWS = 2000
# Rows whose exact evidence polishes length scales, unless only Fourier features are
# compared. With 256 Fourier features on 2,000 rows in its place, 22 fits of 8 sets err
# by 1.014 times as much: pol by 1.12, elevators by 0.98. 500 and 1,000 rows gain less.
# Up to 750 rows a second climb gains nothing: 40 fits of airfoil and concrete.
TUNED_EXACTLY = 750
# From so many rows on, weights of additive kernels are tuned on twice as many rows. On
# splits 4 to 9 houses in California then err by 0.96 (two of them by 0.88), elevators
# by 1.00, keggdirected by 1.01 and pol by the same, in 2 to 10 s more. On 5,000 rows it
# gains nothing.
MANY_ROWS = 8_000
# Up to so many rows alpha is chosen by leaving out each row, and length scales are
# tuned more quickly. Concrete with 927 rows, many of them alike, would err by 4 % more
# that way. Of 155 draws of nasty data of 40 to 600 rows, 34 erred by more than 1.1
# times the best alpha's error if folds chose alpha, and 24 if rows did.
FEW_ROWS = 500


@frozen
class Choices:
    """The decisions that a fit begins with, before any pass."""

    #: The rows; for a classifier with targets of −1 and +1.
    dataset: Dataset
    #: The user's options, with the kinds of features that are compared.
    options: RidgeOptions
    #: What the first round compares, or what the user gave; just one if nothing is
    #: chosen.
    candidates: list[Candidate]
    #: Whether the user gave the candidates. Then all are trained on all rows, without a
    #: first round.
    has_given_candidates: bool
    penalty: Penalty
    #: Each is summed separately in the final, and they choose alpha; None if alpha is
    #: found without folds.
    folds: folding.Folds | None
    #: Folds that compare candidates: `folds`, or others if there are none.
    comparison_folds: folding.Folds | None
    #: Numbers of components to try, ascending.
    component_counts: list[int]
    #: The most rows that tune length scales; 0 if nothing is tuned.
    n_tuning_rows: int
    #: The plan of a pass with the folds and the largest number of components.
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
        """Components of the first round: half of them, or all if rows are few."""
        n_components = self.component_counts[-1]
        half = n_components // 4 * 2  # even, for pairs
        needs_all = self.has_few_rows or half < MIN_COMPONENTS
        if needs_all or not self.effort.compares_with_half:
            return n_components
        return half

    @property
    def leaves_rows_out(self) -> bool:
        """Whether alpha is chosen by leaving out each row in turn, not by folds.

        It is, if rows are few, and neither alpha nor folds were given.
        """
        is_small = (
            self.dataset.n_samples <= FEW_ROWS
            and self.component_counts[-1] <= AUTO_COMPONENTS
        )
        penalty = self.options.penalty
        alpha_is_free = penalty.criterion == "auto" and penalty.grid is None
        is_free = alpha_is_free and self.options.cv is None
        return is_small and is_free and not has_groups(self.dataset)

    @property
    def tuning(self) -> length_scales.EvidenceSearch:
        """How length scales are tuned.

        In a first round this is quicker than for `length_scale="evidence"` alone.
        """
        of_classes = isinstance(self.dataset, labelled.LabelledDataset)
        if not self.has_first_round:
            return length_scales.EvidenceSearch(of_classes=of_classes)
        tunes_exactly = self.options.features != "fourier"
        n_weight_rows = length_scales.ROWS_OF_WEIGHTS
        if self.plan.n_samples >= MANY_ROWS:
            n_weight_rows *= 2
        return length_scales.EvidenceSearch(
            n_samples=TUNING_ROWS,
            n_components=128 if self.plan.n_samples <= FEW_ROWS else 256,
            n_starts=self.effort.n_starts,
            exact_rows=TUNED_EXACTLY if tunes_exactly else 0,
            weight_rows=n_weight_rows,
            of_classes=of_classes,
        )


def choices_of(
    dataset: Dataset,
    options: RidgeOptions,
    *,
    machines: Machines,
    candidates: Sequence[Candidate] | None = None,
) -> Choices:
    """Return the choices that a fit begins with, as far as memory allows.

    Given candidates replace the kernels and length scales of the options. Raises
    PlanError if memory is too small.
    """
    kinds = kinds_to_compare(options, dataset)
    if candidates is None:
        first_candidates = candidates_of(options, dataset, kinds)
        if dataset.n_samples < 2:  # nothing to compare
            first_candidates = first_candidates[:1]
            kinds = kinds[:1]
    else:
        options = with_folds(options)
        first_candidates = with_kinds(candidates, kinds)

    n_tuning_rows = 0
    if any(candidate.is_tuned for candidate in first_candidates):
        # candidates that a user named take more rows than those of a first round
        is_compared = candidates is None and len(first_candidates) > 1
        n_tuning_rows = TUNING_ROWS if is_compared else length_scales.TUNING_ROWS
    final_folds, component_counts, plan = _plan_final(
        dataset,
        options,
        features=kinds[-1],
        n_tuning_rows=n_tuning_rows,
        machines=machines,
    )
    penalty = options.penalty
    if penalty.criterion == "auto":
        penalty = replace(penalty, alpha="gcv" if final_folds is None else "cv")

    # a linear kernel takes a component per column
    levels = recipes.levels_of(dataset.attributes)
    n_linear = linear_components(dataset.n_features, levels)
    is_proposed = options.kernel == "auto" and candidates is None
    if is_proposed and n_linear > component_counts[-1]:
        first_candidates = [
            candidate
            for candidate in first_candidates
            if not isinstance(candidate.kernel, Linear)
        ]

    choices = Choices(
        dataset=dataset,
        options=replace(options, features="auto" if len(kinds) > 1 else kinds[0]),
        candidates=first_candidates,
        has_given_candidates=candidates is not None,
        penalty=penalty,
        folds=final_folds,
        comparison_folds=final_folds,
        component_counts=component_counts,
        n_tuning_rows=n_tuning_rows,
        plan=plan,
    )
    # If alpha is given or found without folds, folds choose everything else.
    if final_folds is None and choices.has_first_round:
        default = default_folds(dataset.n_samples, options.effort)
        folds = complete_folds(default, dataset, options, n_tuning_rows)
        choices = replace(choices, comparison_folds=folds)
    return choices


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


def _plan_final(
    dataset: Dataset,
    options: RidgeOptions,
    *,
    features: FeatureKind,
    n_tuning_rows: int,
    machines: Machines,
) -> tuple[folding.Folds | None, list[int], Plan]:
    """Return the folds, the ascending numbers of components, and the plan of the pass
    over all rows.

    If memory does not hold the sums of the default folds, three or two replace them, or
    none, which leaves alpha to generalised cross-validation. Folds, alpha and numbers
    of components that a user gave stay.
    """
    folds = folds_for(options, dataset.n_samples)
    if folds is not None and dataset.n_samples == 1:
        raise DataError(
            "n_samples=1: nothing can be chosen by cross-validation; give one number as"
            " `alpha`, or more rows"
        )

    def complete(folds: folding.Folds) -> folding.Folds:
        return complete_folds(folds, dataset, options, n_tuning_rows)

    def plan(n_components: int, folds: folding.Folds | None) -> Plan:
        n_folds = 1 if folds is None else folds.n_folds
        return plan_regression(
            dataset, n_components, options, n_folds, machines=machines
        )

    if folds is not None:
        folds = complete(folds)
    if options.chooses_n_components:
        most = EFFORTS[options.effort].n_components
        n_components = automatic_components(
            dataset.n_samples, lambda n: plan(n, folds), most
        )
        return folds, [n_components], plan(n_components, folds)

    component_counts = read_n_components(options.n_components, options.map, features)
    are_default_folds = folds is not None and options.cv is None
    if are_default_folds and options.penalty.criterion == "auto":
        smaller: list[folding.Folds | None] = [
            complete(folding.HashFolds(3)),
            complete(folding.HashFolds(2)),
        ]
        if not options.has_several_n_components:
            smaller.append(None)
        folds = _folds_in_memory(
            folds, smaller, lambda f: plan(component_counts[-1], f)
        )
    return folds, component_counts, plan(component_counts[-1], folds)


def doubled(choices: Choices, machines: Machines) -> Choices | None:
    """Return the choices of twice as many components; None if a fit cannot take them.

    Options, effort, rows and memory decide that here. Whether they pay is decided by
    the fit, from errors.
    """
    n_components = 2 * choices.component_counts[-1]
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
    return replace(choices, component_counts=[n_components], plan=plan)


def _folds_in_memory(
    folds: folding.Folds | None,
    alternatives: Sequence[folding.Folds | None],
    check: Callable[[folding.Folds | None], object],
) -> folding.Folds | None:
    """Return the first folds that pass `check`, or the last alternative."""
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
