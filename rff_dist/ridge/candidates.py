"""Kernels, length scales and kinds of features that are compared, and how their feature maps are drawn."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rff_dist.checks import check_positive
from rff_dist.data import blocks, folding
from rff_dist.errors import InvalidParameterError
from rff_dist.features import draw, feature_options, nystrom
from rff_dist.features import length_scales as median_heuristic
from rff_dist.features.maps import FeatureMap
from rff_dist.fitting import prepare
from rff_dist.fitting.options import RidgeOptions
from rff_dist.kernels import base, names, stationary
from rff_dist.kernels.additive import Additive
from rff_dist.typing import frozen

type Width = str | base.LengthScale | TimesMedian | None


@frozen
class TimesMedian:
    """A length scale as a multiple of the median distance between rows, in the kernel's metric.

    `factor`: above 0; 1 is the median heuristic.
    """

    factor: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", check_positive(self.factor, "factor"))

    def __str__(self) -> str:
        return f"{self.factor:g}x"


DEFAULT_KERNELS = ("gaussian", "matern:nu=1.5")
DEFAULT_LENGTH_SCALES: tuple[Width, ...] = tuple(TimesMedian(factor) for factor in (0.25, 0.5, 1.0, 2.0, 4.0))


@frozen
class Candidate:
    """A kernel, its length scale and its kind of features.

    `length_scale`: replaces a kernel's own. In a sum or product, `TimesMedian` and numbers go to the parts
      that have none; the median is that of each part's own columns. None keeps the kernel's own, and parts
      without one get the median.
    `features`: None takes the kind of the options.
    `mapped`: whether columns are mapped first, as the evidence has them; see `features.column_maps`.
    """

    kernel: base.Kernel
    length_scale: Width = TimesMedian(1.0)
    features: str | nystrom.Nystrom | None = None
    mapped: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.length_scale, TimesMedian):
            stationary.with_length_scale(self.kernel, 1.0)
        elif isinstance(self.length_scale, str):
            if self.length_scale != "evidence":
                raise InvalidParameterError(
                    f"`length_scale` is {self.length_scale!r}; expected 'evidence', a multiple of the "
                    "median, numbers or None"
                )
            median_heuristic.check_tunable(self.kernel)
        elif self.length_scale is not None:
            stationary.with_length_scale(self.kernel, self.length_scale)
            object.__setattr__(self, "length_scale", stationary.as_length_scale(self.length_scale))


def read_length_scale(value: Any) -> Width:
    """Read one of several length scales as a user gives it.

    `value`: numbers, or text: "0.5x" is a multiple of the median distance, "median" is "1x", and "evidence"
      tunes one length scale per column. None keeps the kernel's own.
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
    return stationary.as_length_scale(value)


def make_candidates(
    kernels: Sequence[str | base.Kernel], length_scales: Sequence[Any] | None = None
) -> list[Candidate]:
    """Combine every kernel with every length scale; a kernel that takes none stays as it is.

    `kernels`: see `find_kernel`. A kernel's own length scale is replaced; in sums and products, parts keep
      theirs.
    `length_scales`: see `read_length_scale`. By default ¼, ½, 1, 2 and 4 times the median distance. On six
      UCI data sets with Gaussian, Matérn-3/2 and Matérn-1/2 kernels (6,000 rows, D = 384) the best of a grid
      of factors √2 lay between 0.35 and 4 medians. The best of these five was within about one standard error
      of it, except on pol, where a finer grid gains up to 8 %.
    Raises InvalidParameterError if there is none, a kernel is unknown, or does not take a length scale.
    """
    widths = DEFAULT_LENGTH_SCALES if length_scales is None else [read_length_scale(w) for w in length_scales]
    chosen = [names.find_kernel(kernel) for kernel in kernels]
    if not chosen or not widths:
        raise InvalidParameterError(
            f"`kernels` are {list(kernels)} and `length_scales` {list(widths)}; expected at least one of each"
        )
    candidates: list[Candidate] = []
    for kernel in chosen:
        several: Sequence[Width] = widths
        if not isinstance(kernel, stationary.Stationary):  # the evidence tunes one kernel alone
            open_parts = stationary.parts_without_length_scale(kernel)
            several = [width for width in widths if open_parts and width != "evidence"] or [None]
        candidates += [Candidate(kernel, width) for width in several]
    return list(dict.fromkeys(candidates))


def check_candidates(candidates: Sequence[Candidate], dataset: blocks.Dataset, options: RidgeOptions) -> None:
    """Check that there are candidates, and that each suits the columns and the design.

    Raises InvalidParameterError if there is none, or one does not.
    """
    if not candidates:
        raise InvalidParameterError("there is no candidate to compare; expected at least 1")
    design, fourier = options.design, feature_options.find_features(options.kinds[0]) is None
    if design != "auto" and not fourier:
        raise InvalidParameterError(f"`design` is {design!r}, but Nyström features have none; leave it out")
    for candidate in candidates:
        candidate.kernel.check_columns(dataset.n_features)
        if isinstance(candidate.length_scale, float | tuple):
            kernel = stationary.with_length_scale(candidate.kernel, candidate.length_scale)
            kernel.check_columns(dataset.n_features)
        if fourier:
            base.check_design(candidate.kernel, design, dataset.n_features)


class Draws:
    """Draws candidates' feature maps for one dataset, and computes only once what several of them need.

    `options`: give design, map and seed, and the kind of features of candidates that leave it open.
    `folds`: length scales are tuned on rows that these never validate on.
    `tuning`: how length scales are tuned.
    """

    def __init__(
        self,
        prepared: prepare.Prepared,
        options: RidgeOptions,
        *,
        folds: folding.Folds | None = None,
        tuning: median_heuristic.EvidenceSearch = median_heuristic.EvidenceSearch(),
    ) -> None:
        self._prepared, self._options, self._folds, self._tuning = prepared, options, folds, tuning
        self._medians: dict[bool, median_heuristic.MedianDistances] = {}
        self._tuned: dict[tuple[base.Kernel, bool], base.Kernel] = {}
        self._mapped: prepare.Prepared | None = None  # whose standardizer maps columns as the evidence does

    def feature_map(self, candidate: Candidate, n_components: int) -> FeatureMap:
        kernel, options = self.kernel(candidate), self._options
        described = feature_options.KernelFeatures(
            kernel=kernel,
            length_scale=None,
            n_components=n_components,
            features=candidate.features or options.kinds[0],
            design=options.design,
            map=options.map,
            precision="standard" if options.precision == "auto" else options.precision,
        )
        return self._prepared_for(candidate).draw(described, seed=options.seed)

    def _prepared_for(self, candidate: Candidate) -> prepare.Prepared:
        """Return the dataset with what standardises its columns, or maps them; the maps were tuned before."""
        prepared = self._mapped if candidate.mapped else self._prepared
        assert prepared is not None
        return prepared

    def kernel(self, candidate: Candidate) -> base.Kernel:
        """Return a candidate's kernel with numbers as length scales."""
        kernel, length_scale = candidate.kernel, candidate.length_scale
        if isinstance(length_scale, TimesMedian):
            if isinstance(kernel, stationary.Stationary):
                kernel = kernel.with_length_scale(None)
            medians, prepared = self._medians, self._prepared_for(candidate)
            if candidate.mapped not in medians:
                medians[candidate.mapped] = median_heuristic.MedianDistances(
                    prepared.dataset, standardizer=prepared.standardizer, seed=self._options.seed
                )
            of_rows = medians[candidate.mapped]
            return kernel.with_default_length_scales(
                lambda part, columns: length_scale.factor * of_rows(part, columns)
            )
        if not isinstance(length_scale, str):
            return kernel if length_scale is None else stationary.with_length_scale(kernel, length_scale)
        key = kernel, candidate.mapped
        if key not in self._tuned:
            self._prepared.say("tune", f"length scales of the {names.kernel_text(kernel)} kernel")
            folds = self._folds if isinstance(self._folds, folding.HeldInFolds) else None
            told, seed = partial(self._prepared.count, "tune"), self._options.seed
            tuned: base.Kernel
            if candidate.mapped and self._mapped is None:
                assert isinstance(kernel, stationary.OfDistance)
                inputs, search = self._prepared.inputs(seed), self._tuning
                tuned, standardizer = draw.tune_maps(inputs, kernel, search, folds=folds, told=told)
                self._mapped = replace(self._prepared, standardizer=standardizer)
            else:
                dense = self._tuned.get((kernel.kernel, key[1])) if isinstance(kernel, Additive) else None
                start = stationary.own_length_scale(dense)  # of the kernel that it adds to, if that is tuned
                inputs = self._prepared_for(candidate).inputs(seed)
                tuned = draw.tune(inputs, kernel, self._tuning, folds=folds, start=start, told=told).kernel
            # single columns alone have exact effects, and a dense part alone is no other candidate
            self._tuned[key] = tuned.without_parts_below(0.01) if isinstance(tuned, Additive) else tuned
        return self._tuned[key]


def draw_candidates(draws: Draws, candidates: Sequence[Candidate], widths: Sequence[int]) -> list[FeatureMap]:
    """Draw every candidate's feature map at the largest of `widths`, all with one seed.

    Raises InvalidParameterError if a parameter is out of range, or a map has no smaller draws for the other
      widths.
    """
    maps = [draws.feature_map(candidate, widths[-1]) for candidate in candidates]
    for feature_map in maps:
        for width in widths:
            if width < feature_map.n_components:
                # fails here, before the data are read, if it has no smaller draws
                draw.shortened(feature_map, width)
    return maps
