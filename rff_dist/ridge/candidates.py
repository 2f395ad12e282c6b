"""Candidates of a fit: kernels, length scales and kinds of features, and their maps.

A user's kernels and length scales go in; candidates come out, without repeats, and
`Draws` draws their feature maps for a dataset. Median distances and tuned length scales
serve several candidates, so `Draws` computes each once.
"""

import re
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

import numpy as np

from rff_dist.checks import check_positive
from rff_dist.data import blocks, folding, samples
from rff_dist.errors import InvalidParameterError
from rff_dist.features import (
    draw,
    feature_options,
    for_dataset,
    median_distances,
    nystrom,
)
from rff_dist.features import length_scales as scale_tuning
from rff_dist.features.maps import FeatureMap
from rff_dist.fitting import prepare
from rff_dist.fitting.options import RidgeOptions
from rff_dist.kernels import base, names, stationary
from rff_dist.kernels.additive import Additive
from rff_dist.typing import frozen

#: A number or numbers, a multiple of the median distance, "evidence", or None.
type ScaleChoice = str | base.LengthScale | TimesMedian | None


@frozen
class TimesMedian:
    """A length scale as a multiple of the median distance between rows."""

    #: Above 0; 1 is the median heuristic. Distances are in the kernel's metric.
    factor: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", check_positive(self.factor, "factor"))

    def __str__(self) -> str:
        return f"{self.factor:g}x"


DEFAULT_KERNELS = ("gaussian", "matern:nu=1.5")
DEFAULT_LENGTH_SCALES: tuple[ScaleChoice, ...] = tuple(
    TimesMedian(factor) for factor in (0.25, 0.5, 1.0, 2.0, 4.0)
)


# Parts whose functions have less than this share of the variance are removed from a
# tuned kernel. Weights would not tell which: a part with a wide length scale may have a
# large weight, but barely varies.
SMALLEST_PART = 0.003
# Parts with less than this share of the weight are removed too. If an almost constant
# part has nearly all of it, the rounding of Z'Z hides small ones: on 600 rows, with a
# part of weight 8e-5, cross-validated squared errors were 0.007 with the exact kernel
# but 0.133 with features.
SMALLEST_WEIGHT = 0.001
ROWS_OF_PARTS = 256  # rows from which these variances are estimated


@frozen
class Candidate:
    """A kernel, its length scale and its kind of features."""

    kernel: base.Kernel
    #: Replaces the length scale of a single kernel, and in a sum or product that of the
    #: parts that have none; a median is that of each part's own columns. None keeps the
    #: kernel as it is; parts without one get the median when features are drawn.
    length_scale: ScaleChoice = TimesMedian(1.0)
    #: None takes the kind of the options.
    features: str | nystrom.Nystrom | None = None
    #: Whether columns are transformed first, by column maps that the evidence tunes
    #: together with the length scales, so only with "evidence"; see
    #: `features.column_maps`.
    mapped: bool = False

    def __post_init__(self) -> None:
        if self.mapped and not self.is_tuned:
            raise InvalidParameterError(
                f"`length_scale` is {self.length_scale!r} with `mapped`; expected"
                " 'evidence', which tunes the column maps too"
            )
        if isinstance(self.length_scale, TimesMedian):
            # raises if the kernel takes no length scale
            stationary.with_length_scale(self.kernel, 1.0)
        elif isinstance(self.length_scale, str):  # the only text is "evidence"
            scale_tuning.check_tunable(self.kernel)
        elif self.length_scale is not None:
            stationary.with_length_scale(self.kernel, self.length_scale)
            object.__setattr__(
                self, "length_scale", stationary.as_length_scale(self.length_scale)
            )

    @property
    def is_tuned(self) -> bool:
        """Whether the evidence tunes the length scales."""
        return self.length_scale == "evidence"


def read_length_scale(value: Any) -> ScaleChoice:
    """Read one of several length scales as a user gives it.

    It is a number, numbers, or a text: "0.5x" is a multiple of the median distance,
    "median" is "1x", and "evidence" tunes one length scale per column. None keeps the
    kernel's own.
    """
    if value is None or isinstance(value, TimesMedian):
        return value
    if isinstance(value, str):
        if value == "evidence":
            return value
        text = "1x" if value == "median" else value
        match = re.fullmatch(r"\s*([0-9.eE+-]+)\s*x\s*", text)
        try:
            if match is None:
                raise ValueError
            return TimesMedian(float(match[1]))
        except ValueError:
            raise InvalidParameterError(
                f"`length_scales` has {value!r}; expected numbers above 0, multiples of"
                " the median distance such as '0.5x', 'median' or 'evidence'"
            ) from None
    return stationary.as_length_scale(value)


def make_candidates(
    kernels: Sequence[str | base.Kernel], length_scales: Sequence[Any] | None = None
) -> list[Candidate]:
    """Combine every kernel with every length scale.

    A kernel that takes no length scale stays as it is. A single kernel's own length
    scale is replaced; parts of sums and products keep theirs. `find_kernel` and
    `read_length_scale` read texts.

    By default length scales are ¼, ½, 1, 2 and 4 times the median distance. On six UCI
    data sets with Gaussian, Matérn-3/2 and Matérn-1/2 kernels (6,000 rows, D = 384) the
    best of a grid of factors √2 lay between 0.35 and 4 medians. The best of these five
    was within about one standard error of it, except on pol, where a finer grid gains
    up to 8 %.

    Raises InvalidParameterError if there is none, a kernel is unknown, or does not take
    a length scale.
    """
    scales: Sequence[ScaleChoice] = DEFAULT_LENGTH_SCALES
    if length_scales is not None:
        scales = [read_length_scale(scale) for scale in length_scales]
    if not kernels or not scales:
        raise InvalidParameterError(
            f"`kernels` are {list(kernels)} and `length_scales` {list(scales)};"
            " expected at least one of each"
        )
    candidates: list[Candidate] = []
    for kernel in map(names.find_kernel, kernels):
        candidates += [Candidate(kernel, item) for item in _scales_for(kernel, scales)]
    return list(dict.fromkeys(candidates))


def _scales_for(
    kernel: base.Kernel, scales: Sequence[ScaleChoice]
) -> Sequence[ScaleChoice]:
    """Return the length scales that a kernel can be tried with."""
    if isinstance(kernel, stationary.Stationary):
        return scales
    if not stationary.parts_without_length_scale(kernel):
        return [None]
    # the evidence tunes single kernels only, no sums or products
    return [scale for scale in scales if scale != "evidence"] or [None]


def check_candidates(
    candidates: Sequence[Candidate], dataset: blocks.Dataset, options: RidgeOptions
) -> None:
    """Check that there are candidates, and that each suits the columns.

    Candidates of Fourier features must suit the design too.

    Raises InvalidParameterError if there is none, or one does not suit them.
    """
    if not candidates:
        raise InvalidParameterError(
            "there is no candidate to compare; expected at least 1"
        )
    for candidate in candidates:
        candidate.kernel.check_columns(dataset.n_features)
        if isinstance(candidate.length_scale, float | tuple):
            kernel = stationary.with_length_scale(
                candidate.kernel, candidate.length_scale
            )
            kernel.check_columns(dataset.n_features)
        kind = candidate.features or options.kinds[0]
        if feature_options.find_nystrom(kind) is None:
            base.check_design(candidate.kernel, options.design, dataset.n_features)


class Draws:
    """Draws candidates' feature maps for one dataset.

    The options decide the design (how frequencies are sampled jointly), `map` (whether
    they give pairs or phases), the seed, and the kind of features for candidates
    without a kind. If the folds set
    rows apart for tuning (`TuningFolds`), length scales are tuned on these rows, which
    no fold validates on; else on any rows.
    """

    def __init__(
        self,
        prepared: prepare.PreparedDataset,
        options: RidgeOptions,
        *,
        folds: folding.Folds | None = None,
        tuning: scale_tuning.EvidenceSearch = scale_tuning.EvidenceSearch(),
    ) -> None:
        self._prepared = prepared
        self._options = options
        self._folds = folds
        self._tuning = tuning
        #: Tuning in other threads then ends at its next step.
        self.is_stopped = False
        self._median = median_distances.MedianDistances(
            prepared.dataset, prepared.standardizer, seed=options.seed
        )
        self._tuned: dict[
            tuple[base.Kernel, bool], tuple[base.Kernel, prepare.PreparedDataset]
        ] = {}

    def feature_map(self, candidate: Candidate, n_components: int) -> FeatureMap:
        kernel, prepared = self._kernel_and_dataset(candidate)
        options = self._options
        kind = candidate.features or options.kinds[0]
        is_fourier = feature_options.find_nystrom(kind) is None
        described = feature_options.KernelFeatures(
            kernel=kernel,
            length_scale=None,
            n_components=n_components,
            features=kind,
            design=options.design if is_fourier else "auto",
            map=options.map,
            precision="standard" if options.precision == "auto" else options.precision,
        )
        return prepared.draw(described, seed=options.seed)

    def _kernel_and_dataset(
        self, candidate: Candidate
    ) -> tuple[base.Kernel, prepare.PreparedDataset]:
        """Return a candidate's kernel with numbers as length scales, and the dataset,
        whose columns are mapped if the candidate is `mapped`.
        """
        if candidate.is_tuned:
            key = candidate.kernel, candidate.mapped
            if key not in self._tuned:
                self._tuned[key] = self._tune(candidate)
            return self._tuned[key]
        return self._kernel(candidate), self._prepared

    def _kernel(self, candidate: Candidate) -> base.Kernel:
        """Return the kernel of a candidate that is not tuned."""
        kernel = candidate.kernel
        category_columns = sorted(self._prepared.levels)
        if category_columns:
            kernel = kernel.with_categories(category_columns)
        length_scale = candidate.length_scale
        if isinstance(length_scale, TimesMedian):
            if isinstance(kernel, stationary.Stationary):
                kernel = kernel.with_length_scale(None)
            return kernel.with_default_length_scales(
                lambda part, columns: length_scale.factor * self._median(part, columns)
            )
        if length_scale is None:
            return kernel  # `draw` sets the median for parts without a length scale
        assert not isinstance(length_scale, str)
        return stationary.with_length_scale(kernel, length_scale)

    def _count_step(self, n_steps: int, limit: int) -> None:
        if self.is_stopped:
            raise CancelledError
        self._prepared.count("tune", n_steps, limit)

    def _tune(
        self, candidate: Candidate
    ) -> tuple[base.Kernel, prepare.PreparedDataset]:
        """Tune length scales by the evidence, and the column maps if `mapped`; return
        as `_kernel_and_dataset`.
        """
        kernel = candidate.kernel
        kernel_text = names.kernel_text(kernel)
        self._prepared.say("tune", f"{kernel_text.partition(':')[0]} kernel")
        # without folds, the tuning draws its sample from all rows
        folds = self._folds if isinstance(self._folds, folding.TuningFolds) else None
        seed = self._options.seed
        prepared = self._prepared
        source = prepared.row_source(seed)
        # The kernel gets no categories here: both functions take them from `source`.
        tuned: base.Kernel
        if candidate.mapped:
            assert isinstance(kernel, stationary.Stationary)
            tuned, standardizer = for_dataset.tune_maps(
                source, kernel, self._tuning, folds=folds, report=self._count_step
            )
            prepared = replace(prepared, standardizer=standardizer)
        else:
            tuned = for_dataset.tune(
                source, kernel, self._tuning, folds=folds, report=self._count_step
            ).kernel
        if isinstance(tuned, Additive):
            # Parts that matter little cost time. And if only parts of one column each
            # stay, the model can show the exact effect of each column. Rows are mapped
            # as the tuning found.
            source = prepared.row_source(seed)
            X, _, _ = samples.sample_rows(source.dataset, seed, n_rows=ROWS_OF_PARTS)
            rows = np.asarray(source.prepare(X), np.float64)
            tuned = tuned.without_parts_below(SMALLEST_PART, SMALLEST_WEIGHT, rows)
        return tuned, prepared


def draw_candidates(
    draws: Draws, candidates: Sequence[Candidate], component_counts: Sequence[int]
) -> list[FeatureMap]:
    """Draw every candidate's feature map, with the last of the ascending numbers of
    components.

    All have the same seed.

    Raises InvalidParameterError if a parameter is out of range, or a map cannot be
    shortened to the other numbers.
    """
    largest = component_counts[-1]
    maps = [draws.feature_map(candidate, largest) for candidate in candidates]
    for feature_map in maps:
        for count in component_counts:
            if count < feature_map.n_components:
                # raises here, before the data are read, if it cannot be
                draw.shortened(feature_map, count)
    return maps
