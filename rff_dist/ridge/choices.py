"""Which folds, penalty and numbers of components a fit begins with, given the memory there is."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rff_dist.data.blocks import Block, Dataset
from rff_dist.data.folds import (
    MAX_BALANCED_GROUPS,
    Folds,
    GroupFolds,
    HashFolds,
    HeldInFolds,
    find_folds,
    hold_in,
)
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError, InvalidParameterError, PlanError
from rff_dist.features.nystrom import Nystrom
from rff_dist.ridge.options import (
    CV_NAMES,
    Penalty,
    RidgeOptions,
    are_several,
    check_conformal,
    is_one_alpha,
    read_widths,
)
from rff_dist.ridge.plan import check_solver_plan
from rff_dist.statistics.label_counts import count_groups

logger = logging.getLogger(__name__)

# plans a fit with these numbers of components and folds; raises PlanError if memory is too small
type PlanFit = Callable[[int, int], object]

DEFAULT_FOLDS, FOLDS_OF_FEW, FEW_SAMPLES = 5, 10, 200
AUTO_COMPONENTS = 2048  # what `n_components="auto"` takes, if rows and memory allow
MIN_AUTO_COMPONENTS = 256


def default_folds(n_samples: int) -> HashFolds:
    """Return 5 folds by hash; 10 for fewer than 200 rows, but no more than rows."""
    return HashFolds(DEFAULT_FOLDS if n_samples >= FEW_SAMPLES else max(2, min(n_samples, FOLDS_OF_FEW)))


def folds_for(options: RidgeOptions, n_samples: int = FEW_SAMPLES) -> Folds | None:
    """Return the folds that a fit sums separately; None if nothing is chosen by cross-validation.

    Several numbers of components, several alphas, "auto", "cv" and "cv-1se", and conformal intervals need
    folds.

    Raises InvalidParameterError if `cv` is no number of folds, or folds are needed but `alpha` is 0 or chosen
      without them.
    """
    alpha, cv, named = options.alpha, options.cv, isinstance(options.alpha, str)
    several = are_several(options.n_components)
    by_folds = str(alpha) in CV_NAMES if named else not is_one_alpha(alpha)
    if cv is None and not several and not by_folds and not options.conformal:
        return None
    if named and not by_folds:
        asked = {f"`cv` is {cv!r}": cv is not None, f"`n_components` is {options.n_components!r}": several}
        conformal = f"`conformal` is {options.conformal!r}"
        reason = next((words for words, is_so in asked.items() if is_so), conformal)
        raise InvalidParameterError(
            f"{reason}, which takes k-fold cross-validation, but `alpha` is {alpha!r}; expected one of "
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
    """Return the folds that passes over a dataset use: folds of groups are balanced by the groups' sizes.

    Groups are counted in a pass that reads no X. More than `MAX_BALANCED_GROUPS` are assigned by hash.

    Raises DataError if the folds are of groups, and the dataset has none or fewer than folds.
    """
    if isinstance(folds, HeldInFolds):
        return replace(folds, base=prepare_folds(dataset, folds.base, engine=engine))
    check_folds(dataset, folds)
    if not isinstance(folds, GroupFolds):
        return folds
    folds = replace(folds, table=None)
    counts = count_groups(dataset, at_most=MAX_BALANCED_GROUPS, engine=engine)
    if counts is None:
        logger.info("more than %d groups: folds are assigned by their hashes", MAX_BALANCED_GROUPS)
        return folds
    counted = counts.weight.value() > 0
    return folds.balanced(counts.labels[counted], counts.n_samples[counted])


def check_folds(dataset: Dataset, folds: Folds) -> None:
    """Check, before a pass, that a dataset has what its folds are made of.

    Raises DataError if the folds are of groups and there are none.
    """
    first = Block(0, 0, min(1, dataset.n_samples))  # one row shows whether there are groups
    folds.assign(0, first.stop, n_samples=dataset.n_samples, groups=dataset.read(first).groups)


def automatic_components(n_samples: int, fits: Callable[[int], object]) -> int:
    """Return how many components a fit takes by default: 2,048, or fewer for few rows or little memory.

    More components than rows seldom help: up to 1,024 rows, the number of rows is rounded up to a power of
    two, and to at least 256. A pass takes time in proportion to the rows and the square of this number: some
    ten seconds on two cores for 2,048 components of 200,000 rows.

    `fits`: plans a fit with so many components, and raises PlanError if memory is too small.
    Raises PlanError if memory is too small for 256 components.
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


def planner(dataset: Dataset, options: RidgeOptions, *, engine: Engine) -> PlanFit:
    """Return the function that plans a fit on an engine; see `plan_choices`."""
    return lambda n_components, n_folds: check_solver_plan(
        dataset, n_components, options, n_folds, engine=engine
    )


def plan_choices(
    dataset: Dataset, options: RidgeOptions, *, features: str | Nystrom, n_tuned_on: int = 0, plan: PlanFit
) -> tuple[Penalty, Folds | None, list[int]]:
    """Return the penalty, folds and numbers of components of a fit that memory allows.

    If memory does not hold the sums of the default folds, three or two replace them; if it does not hold
    those either, "auto" alpha is chosen by leave-one-out errors in another pass. Folds, alpha or widths that
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

    def honest(folds: Folds | None) -> Folds | None:
        return folds if folds is None or not n_tuned_on else hold_in(folds, dataset.n_samples, n_tuned_on)

    def check(n_components: int, folds: Folds | None) -> None:
        plan(n_components, 1 if folds is None else folds.n_folds)

    folds = honest(folds)
    if isinstance(options.n_components, str) and options.n_components == "auto":
        widths = [automatic_components(dataset.n_samples, lambda wanted: check(wanted, folds))]
    else:
        widths = read_widths(options.n_components, options.map, features)
        choices: list[Folds | None] = [folds]
        if folds is not None and options.cv is None and automatic:
            choices += [honest(HashFolds(3)), honest(HashFolds(2))]
            choices += [] if options.conformal or are_several(options.n_components) else [None]
        folds = _first_that_fits(choices, lambda choice: check(widths[-1], choice))
    if not automatic:
        return penalty, folds, widths
    return replace(penalty, alpha="press" if folds is None else "cv"), folds, widths


def _first_that_fits(
    choices: Sequence[Folds | None], check: Callable[[Folds | None], object]
) -> Folds | None:
    for choice, following in itertools.pairwise(choices):
        try:
            check(choice)
        except PlanError:
            assert choice is not None  # which is the last choice
            logger.warning(
                "memory does not hold the sums of %d folds: %s",
                choice.n_folds,
                "alpha is chosen by leave-one-out errors, in another pass"
                if following is None
                else f"taking {following.n_folds}",
            )
        else:
            return choice
    check(choices[-1])
    return choices[-1]
