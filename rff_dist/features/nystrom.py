"""Nyström features: kernel values at centres, whitened by the centres' own Gram matrix.

A sample of rows and a kernel go in; a feature map comes out. z(x) = T⁻ᵀ·k(C, x) with
T'T = k(C, C) + jitter·I, so that z(x)'z(y) = k(x, C)·k(C, C)⁻¹·k(C, y), the projection
of the kernel on the span of its centres. Any kernel will do, since only k(x, y) is
needed. scikit-learn's `Nystroem` multiplies each row by T⁻ᵀ. Here k(C, x) itself is
summed, and T, the whitener, is applied when the sums are read.
"""

import json
import logging
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from rff_dist.checks import check_count, check_share, find_by_name
from rff_dist.errors import InvalidParameterError, SolveError
from rff_dist.features import centres, maps
from rff_dist.features import levels as levels_of
from rff_dist.features.levels import NO_LEVELS, Levels
from rff_dist.kernels import base, explicit, names, stationary
from rff_dist.numerics import exact_sums, machine, triangular
from rff_dist.typing import (
    Arrays,
    Facts,
    Float32Array,
    FloatArray,
    Summary,
    frozen,
)

logger = logging.getLogger(__name__)

# Added to the diagonal of k(C, C), as a share of its mean. With a wide Gaussian kernel
# 1e-7 left an error of 0.39, and this 0.36; see `Nystrom`.
RELATIVE_JITTER = 1e-5
SAMPLE_ROWS = 10_000
# Largest and, inverted, smallest k(x, x): with 1e-200 predictions were the mean, with
# 1e150 sums overflowed.
LARGEST_SCALE = 1e50
_PANEL_ROWS = 64
# With 64 rows these make 128 KiB of kernel values, which caches hold and the allocator
# reuses.
_PANEL_CENTRES = 256


@frozen
class Nystrom:
    """The options of Nyström features.

    Parameters
    ----------
    centres : {"uniform", "dense", "k-means++"}
        How centres are chosen among distinct rows: with equal probabilities; the same
        without isolated rows, which would be separate clusters; or by k-means++ in the
        kernel's distance. With 2,000 centres that lowered the errors on two real data
        sets from 0.392 to 0.388 and from 0.097 to 0.093, and took about a second more.
    jitter : float
        Added to the diagonal of the centres' Gram matrix, as a share of its mean. If
        the kernel barely tells centres apart, rounding errors are divided by the
        jitter. With a Gaussian kernel of length scale 10 on 36,000 rows of eight
        columns, 1e-7 left an error of 0.39, but 1e-5 and 1e-4 one of 0.36. With centres
        far apart, 1e-11 and 1e-5 gave the same errors to four digits.
    sample_rows : int, optional
        How many rows centres are chosen from. By default 10,000, or twice the number of
        centres if that is more.

    References
    ----------
    Williams & Seeger (2001); Rudi, Carratino & Rosasco (2017), FALKON, for ridge
    regression.
    """

    centres: str = "uniform"
    jitter: float = RELATIVE_JITTER
    sample_rows: int | None = None

    def __post_init__(self) -> None:
        find_by_name(centres.RULES, self.centres, "centres")
        check_share(self.jitter, "jitter")
        if self.sample_rows is not None:
            check_count(self.sample_rows, "sample_rows")

    def rows_to_sample(self, n_components: int) -> int:
        """Return how many rows the centres are chosen from."""
        if self.sample_rows is None:
            return max(SAMPLE_ROWS, 2 * n_components)
        return self.sample_rows


@dataclass(frozen=True, eq=False, repr=False)
class NystromFeatureMap(maps.FeatureMap):
    """Kernel values at centres, in float64.

    Pickles without T, which is computed when it is needed.
    """

    kind = "nystrom"

    kernel: base.Kernel
    #: Rows of (standardised) inputs, of shape (n_components, n_features).
    centres: Float32Array
    #: What was added to the diagonal of k(C, C), in units of the kernel.
    jitter: float
    standardizer: maps.Standardizer | None = None
    #: The levels of each column of categories; no centre has an unseen level.
    level_texts: Levels = field(default_factory=dict)

    @property
    def n_features(self) -> int:
        return int(self.centres.shape[1])

    @property
    def n_components(self) -> int:
        return int(self.centres.shape[0])

    @property
    def scales(self) -> exact_sums.Runs:
        return ((self.n_components, self._scale),)

    @property
    def bounded(self) -> bool:
        return largest_value(self.kernel) is not None

    @property
    def _scale(self) -> float:
        # a power of two: dividing by it brings values into [-1, 1] without rounding
        largest = largest_value(self.kernel)
        if largest is None:
            return 1.0
        return 2.0 ** math.ceil(math.log2(largest))

    @cached_property
    def whitener(self) -> FloatArray:
        factor = _factor(self)
        if factor is None:
            raise SolveError(
                f"the centres' Gram matrix with the jitter {self.jitter:.3g} is not"
                " positive definite here; the model was made on another kind of"
                " machine, or the kernel is not positive definite: fit again"
            )
        return factor

    def fill(
        self, inputs: Float32Array, out: FloatArray, start: int, stop: int
    ) -> None:
        # Matrix products round by the shape of their factors: all panels have 64 rows,
        # the last one padded, so that a row's features do not depend on the rows next
        # to it. Distances are computed pair by pair.
        padded = not isinstance(self.kernel, stationary.DistanceKernel)
        for first in range(0, len(inputs), _PANEL_ROWS):
            panel = inputs[first : first + _PANEL_ROWS].astype(np.float64)
            n_rows = len(panel)
            if padded and n_rows < _PANEL_ROWS:
                panel = np.concatenate(
                    [panel, np.repeat(panel[:1], _PANEL_ROWS - n_rows, axis=0)]
                )
            for a in range(start, stop, _PANEL_CENTRES):
                b = min(a + _PANEL_CENTRES, stop)
                values = levels_of.gram_of(
                    self.kernel, self._points[a:b], panel, self.levels
                )
                out[a - start : b - start, first : first + n_rows] = values[:, :n_rows]
        if self._scale != 1.0:
            out /= self._scale

    @cached_property
    def _points(self) -> FloatArray:
        return self.centres.astype(np.float64)

    def raw_coefficients(self, coefficients: FloatArray) -> FloatArray:
        # Zw = V·(T⁻¹w)
        raw = np.array(coefficients, np.float64, order="C")
        with machine.single_threaded_blas():
            triangular.solve_upper(self.whitener, raw)
        return self._scale * raw

    def with_part(self, kernel: base.Kernel) -> Self:
        """Return the map with a part of the kernel.

        With the same coefficients it predicts what this part adds to predictions.
        """
        part = replace(self, kernel=kernel)
        part.__dict__["whitener"] = self.whitener
        return part

    @property
    def levels(self) -> Levels:
        return self.level_texts

    @property
    def learns_levels(self) -> bool:
        return not self.levels

    def with_levels(self, levels: Levels) -> Self:
        if self.levels == levels:
            return self
        union = levels_of.joined(levels, self._texts_of_centres())
        codes = levels_of.code_changes(self.levels, union)
        recoded = levels_of.recoded(self.centres, codes)
        return replace(self, centres=recoded, level_texts=union)

    def _texts_of_centres(self) -> Levels:
        texts_of_centres = {}
        for column, texts in sorted(self.levels.items()):
            codes = np.unique(self.centres[:, column]).astype(int)
            texts_of_centres[column] = tuple(sorted(texts[code] for code in codes))
        return texts_of_centres

    def digest(self) -> str:
        kernel = json.dumps(self.kernel.to_dict(), sort_keys=True)
        label = f"{self.kind} {kernel} {self.centres.shape} {self.jitter!r}"
        # codes depend on the list of levels, texts do not
        texts_of_centres = self._texts_of_centres()
        for column, texts in texts_of_centres.items():
            label += f" {column} {texts}"
        recoding = levels_of.code_changes(self.levels, texts_of_centres)
        recoded = levels_of.recoded(self.centres, recoding)
        return maps.arrays_digest(label, [recoded], self.standardizer)

    def record(self) -> maps.Record:
        facts: Summary = {"kernel": self.kernel.to_dict(), "jitter": self.jitter}
        if self.levels:
            facts["levels"] = levels_of.to_json(self.levels)
        return facts, {"centres": self.centres}

    @classmethod
    def from_record(
        cls, facts: Facts, arrays: Arrays, standardizer: maps.Standardizer | None
    ) -> Self:
        return cls(
            names.kernel_from_dict(facts["kernel"]),
            arrays["centres"],
            facts["jitter"],
            standardizer,
            levels_of.from_json(facts.get("levels", {})),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return NystromFeatureMap, (
            self.kernel,
            self.centres,
            self.jitter,
            self.standardizer,
            self.levels,
        )


def largest_value(kernel: base.Kernel) -> float | None:
    """Return the largest k(x, x), which no |k(x, y)| exceeds; None if unknown."""
    match kernel:
        case base.ShiftInvariant():
            return 1.0
        case base.Constant():
            return kernel.value
        case base.OnColumns():
            return largest_value(kernel.kernel)
        case base.Scaled():
            inner = largest_value(kernel.kernel)
            return None if inner is None else kernel.weight * inner
        case base.Sum() | base.Product():
            # |k(x, y)|² ≤ k(x, x)·k(y, y), and bounds of parts add up or multiply as
            # the parts do
            bounds = []
            for part in kernel.kernels:
                bound = largest_value(part)
                if bound is None:
                    return None
                bounds.append(bound)
            return math.fsum(bounds) if kernel.name == "sum" else math.prod(bounds)
        # single numbers as ends are for each column, whose number is not known here
        case explicit.Min() if isinstance(kernel.lower, tuple) and isinstance(
            kernel.upper, tuple
        ):
            return math.fsum(kernel.upper) - math.fsum(kernel.lower)
    return None


def check_scale(scale: float, what: str) -> None:
    """Check that squares of sums of features of this scale stay in float64's range."""
    if not 1.0 / LARGEST_SCALE <= scale <= LARGEST_SCALE:
        raise InvalidParameterError(
            f"{what} is {scale:.3g}; expected {1.0 / LARGEST_SCALE:g} to"
            f" {LARGEST_SCALE:g}. Scale the kernel, or the inputs; alpha scales with"
            " them"
        )


def draw_nystrom(
    kernel: base.Kernel,
    sample: Float32Array,
    *,
    n_components: int,
    nystrom: Nystrom,
    seed: int,
    standardizer: maps.Standardizer | None = None,
    levels: Levels = NO_LEVELS,
) -> NystromFeatureMap:
    """Choose centres among the distinct rows of a sample, and factor their Gram matrix.

    The sample has prepared inputs, of shape (n_sampled, n_features). If fewer centres
    explain the kernel on it, fewer than `n_components` are taken. If the factorisation
    breaks down, the jitter is raised tenfold until it does not. Both are logged. Parts
    of the kernel without a length scale have 1.

    Raises InvalidParameterError if the kernel does not suit such rows, or k(x, x) is 0
    or extreme; SolveError if the Gram matrix is not positive definite with a jitter as
    large as its entries.
    """
    kernel = kernel.with_default_length_scales(lambda part, columns: 1.0)
    kernel.check_columns(sample.shape[1])
    levels_of.check_levels(kernel, levels)
    # Centres are chosen by their places in sorted order, which must not depend on the
    # order of a list of levels.
    in_order = {column: tuple(sorted(texts)) for column, texts in levels.items()}
    sample = levels_of.recoded(sample, levels_of.code_changes(levels, in_order))
    # two equal centres would make the Gram singular
    points = np.unique(sample, axis=0)
    choose = centres.RULES[nystrom.centres]
    n_wanted = min(n_components, len(points))
    chosen = choose(points.astype(np.float64), kernel, n_wanted, seed)
    if len(chosen) < n_components:
        message = (
            "%d centres instead of %d: they explain the kernel on all %d distinct rows"
            " of the sample"
        )
        logger.info(message, len(chosen), n_components, len(points))
    chosen_points = np.ascontiguousarray(points[chosen])
    to_given_order = levels_of.code_changes(in_order, levels)
    chosen_points = levels_of.recoded(chosen_points, to_given_order)
    with np.errstate(over="ignore"):
        mean = float(kernel.diagonal(chosen_points.astype(np.float64)).mean())
    check_scale(mean, f"k(x, x) of {kernel}, on average over the centres,")
    share = nystrom.jitter
    while share < 1:
        feature_map = NystromFeatureMap(
            kernel, chosen_points, share * mean, standardizer, levels
        )
        factor = _factor(feature_map)
        if factor is not None:
            # fills the cached property, so that T is not factored twice
            feature_map.__dict__["whitener"] = factor
            return feature_map
        message = (
            "%d centres have no positive definite Gram matrix with jitter %.3g; trying"
            " ten times that"
        )
        logger.warning(message, len(chosen), feature_map.jitter)
        share *= 10
    raise SolveError(
        f"the Gram matrix of {len(chosen)} centres is not positive definite even with a"
        f" jitter as large as its entries; is {kernel} a positive semi-definite kernel?"
    )


def _factor(feature_map: NystromFeatureMap) -> FloatArray | None:
    """Return the upper triangular T of T'T = k(C, C) + jitter·I.

    None if the factorisation breaks down.
    """
    size = feature_map.n_components
    gram = np.empty((size, size))

    def fill(stripe: tuple[int, int]) -> None:
        feature_map.fill(feature_map.centres, gram[slice(*stripe)], *stripe)

    with machine.tile_pool() as pool:
        list(pool.map(fill, feature_map.stripes))
        [(_, scale)] = feature_map.scales
        gram *= scale
        gram.flat[:: size + 1] += feature_map.jitter
        if triangular.cholesky_in_place(gram, pool) is not None:
            return None
    for tile in triangular.tiles_of(size):
        # the factorisation leaves old numbers below the diagonal
        gram[tile, : tile.start] = 0.0
        gram[tile, tile] = np.triu(gram[tile, tile])
    gram.setflags(write=False)
    return gram
