"""Decide which candidates a first round compares: kernels, length scales, features.

Options and a dataset's size go in; candidates come out, the fastest first. What the
options give stays as it is; "auto" stands for kernels and length scales with the
smallest errors on tables of many kinds.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rff_dist.data import labelled
from rff_dist.data.blocks import Dataset
from rff_dist.errors import InvalidParameterError
from rff_dist.features import length_scales
from rff_dist.features.feature_options import FeatureKind
from rff_dist.fitting.options import RidgeOptions
from rff_dist.kernels import base, names, stationary
from rff_dist.kernels.additive import Additive
from rff_dist.kernels.explicit import Linear
from rff_dist.ridge.budget import EFFORTS, EXACT_ROWS
from rff_dist.ridge.candidates import Candidate, TimesMedian

# The kernels that are tried by default: one of smooth functions, and one of rougher.
AUTO_KERNELS = (stationary.Gaussian(), stationary.Matern(nu=1.5))
# With more columns, no functions of single columns are added: they would take longer
# than everything else. pol, with 26 columns, took 49 CPU seconds in place of 25.
ADDITIVE_COLUMNS = 20
# Weight of each single column's function at the start of the search for weights.
FIRST_COLUMN_WEIGHT = 0.05
# Multiples of the median distance between rows that are tried if length scales are not
# tuned.
MULTIPLES = (0.5, 1.0, 2.0, 4.0)
# Half of the rows tune length scales. With fewer rows than this, or fewer tuning rows
# than columns, they are too few. 50 rows gain: with 5 and 20 columns they err by 0.31
# and 0.35 deviations, and by 0.48 and 0.56 without tuning.
MIN_TUNED_SAMPLES = 40
# With fewer rows than these, or fewer tuning rows for each column, tuned length scales
# are not preferred to others whose error is as small.
TRUSTED_SAMPLES = 200
TRUSTED_PER_COLUMN = 10


def kinds_to_compare(options: RidgeOptions, dataset: Dataset) -> list[FeatureKind]:
    """Return the kinds of features that the options give, or that suit the rows."""
    kinds = options.kinds
    if len(kinds) == 1:
        return kinds
    # with few rows Nyström features are the kernel itself
    has_few_rows = dataset.n_samples <= EXACT_ROWS
    fourier, nystrom = kinds
    if options.effort == 1:
        return [nystrom] if has_few_rows else [fourier]
    if has_few_rows and options.chooses_n_components and dataset.n_samples >= 2:
        return [nystrom]
    return kinds


def with_kinds(
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


def candidates_of(
    options: RidgeOptions,
    dataset: Dataset,
    kinds: Sequence[FeatureKind] | None = None,
) -> list[Candidate]:
    """Return the candidates of a first round, the fastest first.

    There is one if there is nothing to choose. Tuned length scales are tried with each
    of `kinds`, by default those of the options.
    """
    if kinds is None:
        kinds = options.kinds
    if options.kernel != "auto":
        kernel = names.find_kernel(options.kernel)
        scales = _length_scales(options, kernel, dataset)
        return with_kinds([Candidate(kernel, scale) for scale in scales], kinds)
    smooth, rough = AUTO_KERNELS
    if not EFFORTS[options.effort].is_tuned:
        (scale,) = _length_scales(options, smooth, dataset)
        return [Candidate(smooth, scale, kinds[0])]

    candidates = []
    if not options.has_several_n_components:
        candidates.append(Candidate(Linear(), None, "fourier"))
    scales = _length_scales(options, rough, dataset)
    untuned = [scale for scale in scales if scale != "evidence"]
    is_tuned = len(untuned) < len(scales)
    # next to tuned kernels one untuned is enough, in case nothing can be tuned
    untuned_kernels = [rough] if is_tuned else AUTO_KERNELS
    for kernel in untuned_kernels:
        for scale in untuned:
            candidates.append(Candidate(kernel, scale, kinds[0]))
    if is_tuned:
        is_mapped = options.standardize == "auto"
        for kernel in AUTO_KERNELS:
            with_columns = _with_columns(kernel, dataset)
            tuned = Candidate(with_columns, "evidence", mapped=is_mapped)
            candidates += with_kinds([tuned], kinds)
    return candidates


def _with_columns(
    kernel: stationary.Gaussian | stationary.Matern, dataset: Dataset
) -> stationary.Stationary:
    """Return the kernel plus a kernel of each single column, with weights of their own.

    For classes, and for one or many columns, it is the kernel alone. Rows left out in
    turn tune the length scales of classes, which takes too long with weights.
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
        # the kernel has a length scale, needs none, or gets the median when it is drawn
        return [None]
    if not EFFORTS[options.effort].is_tuned:
        return [median]

    n_needed = max(MIN_TUNED_SAMPLES, 2 * dataset.n_features)
    if isinstance(dataset, labelled.LabelledDataset):
        # few rows of classes can be separated exactly, and the evidence mistakes that
        # for good length scales
        n_needed = trusted_samples(dataset)
    if is_stationary and dataset.n_samples >= n_needed:
        return [median, "evidence"]
    return [TimesMedian(factor) for factor in MULTIPLES]


def trusted_samples(dataset: Dataset) -> int:
    """Return how many rows a first round needs to prefer tuned length scales."""
    return max(TRUSTED_SAMPLES, 2 * TRUSTED_PER_COLUMN * dataset.n_features)
