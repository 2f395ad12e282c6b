"""Decide by which folds a fit chooses.

Options and the number of rows go in; folds come out, or None if they choose nothing.
Folds that cut groups apart, or that validate on rows that length scales were
tuned on, would make errors look small.
"""

import logging
from dataclasses import replace

import numpy as np

from rff_dist.data import folding
from rff_dist.data.blocks import Block, Dataset
from rff_dist.engines import protocol
from rff_dist.errors import InvalidParameterError
from rff_dist.fitting.options import CV_NAMES, RidgeOptions
from rff_dist.ridge.budget import DEFAULT_EFFORT, EFFORTS, EXACT_ROWS
from rff_dist.statistics import label_counts

logger = logging.getLogger(__name__)

DEFAULT_FOLDS = 5
FOLDS_OF_FEW = 10
FEW_SAMPLES = 200
# Three folds of more than `EXACT_ROWS` rows choose alike: 40 fits of 2,500 and 4,500
# rows took 0.76 of the time, and 39 of them erred by 0.9999 times as much.
FOLDS_OF_MANY = 3


def default_folds(n_samples: int, effort: int = DEFAULT_EFFORT) -> folding.HashFolds:
    """Return folds by a hash of the row: 5, or 3 for many rows, or up to 10 for few."""
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
    no sums of folds.
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


def complete_folds(
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
    """Return folds of groups, balanced by the groups' sizes; other folds unchanged.

    Groups are counted in a pass that reads no X. More than `MAX_BALANCED_GROUPS` are
    assigned by hash. Raises DataError if the folds are of groups, and the dataset has
    none or too few.
    """
    if isinstance(folds, folding.TuningFolds):
        base = prepare_folds(dataset, folds.base, engine=engine)
        n_more = folds.n_folds - folds.base.n_folds
        return replace(folds, base=base, n_folds=base.n_folds + n_more)

    # one row shows whether there are groups; `assign` raises if folds lack them
    first = Block(0, 0, min(1, dataset.n_samples))
    groups = dataset.read(first).groups
    folds.assign(0, first.stop, n_samples=dataset.n_samples, groups=groups)
    if not isinstance(folds, folding.GroupFolds):
        return folds

    folds = replace(folds, table=None)
    counts = label_counts.count_groups(dataset, engine=engine)
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
