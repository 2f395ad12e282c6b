"""The spec of statistics: their features, targets and weights, and the grid on which
they add up without rounding.

A feature map and a dataset's weights and targets decide a spec. Z is the matrix of
features, V are the features before they are normalised, and U is V divided by powers of
two, so that it lies in [-1, 1]. Sums are over U, in whole multiples of a power of two
(the grid), so that they are integers; only sums with equal specs can be added. Sums in
float64 would need no spec, but their last digits would depend on the order of the rows.
"""

import numpy as np

from rff_dist.errors import StatisticsError
from rff_dist.numerics import exact_sums
from rff_dist.products import protocol
from rff_dist.statistics import layouts
from rff_dist.typing import FloatArray, frozen

# float64 products of up to 2**13 rows, with entries up to 1, have bits down to 2**-39
FRACTION_BITS = 39
FINE_FRACTION_BITS = 49  # for few rows, whose products are smaller and have finer bits
# products of fixed-point features are exact on this grid
FIXED_FRACTION_BITS = 2 * protocol.FIXED_POINT_BITS
# Bits of a limb, an int64 number in which sums are stored. Of the other two bits, one
# is for the sign and one to spare.
LIMB_BITS = 62


def tile_rows(n_components: int) -> int:
    """Return the rows of a tile.

    They depend on D alone, so that sums have the same bits on all machines. With 4,096
    rows, adding the integers takes below 1 % of the product's time. With many
    components a tile has 2,048, so that its float64 features, `8 * tile_rows *
    n_components` bytes, take 128 MiB for D = 8,192.
    """
    return 4096 if n_components <= 4096 else 2048


@frozen
class StatisticsSpec:
    """Features, targets, weights and grid of statistics; only statistics with equal
    specs can be added.
    """

    n_components: int
    #: Columns of Y; 0 for sums of features only.
    n_targets: int
    #: The digest of the feature map.
    feature_digest: str
    #: Z = scale · V, where V are the unnormalised features.
    scales: exact_sums.Runs
    #: Sample weights are at most 2**weight_exponent.
    weight_exponent: int = 0
    #: Z'Z is counted in multiples of 2**(weight_exponent - fraction_bits).
    fraction_bits: int = FRACTION_BITS
    #: V = 2**exponent · U, where U is in [-1, 1]; empty if V already is.
    exponents: tuple[tuple[int, int], ...] = ()
    #: Subtracted from Y before anything is summed, so that no digits cancel if means
    #: are large.
    target_offset: tuple[float, ...] = ()
    #: Whether Y is a vector; then `Zty` and `yty` drop the target axis.
    one_dimensional: bool = False
    #: Whether weights are whole numbers that repeat their rows, rather than precisions.
    frequency_weights: bool = False
    #: Whether Z is scale · V·T⁻¹ with the feature map's whitener T; then reading the
    #: sums needs T.
    whitened: bool = False
    #: Whether features are whole multiples of 2**-14 and rows have no weights. Then
    #: nothing is rounded.
    fixed_point: bool = False
    #: The part of Z'Z that is summed; see `statistics.passes`.
    part: layouts.Part = layouts.WHOLE

    @property
    def layout(self) -> layouts.TileLayout:
        """Where each output tile of the Gram is stored."""
        return layouts.TileLayout(self.n_components, self.part)

    @property
    def factors(self) -> FloatArray:
        """Z = factors · U, shape (n_components,)."""
        scales = exact_sums.expand(self.scales)
        if not self.exponents:
            return scales
        return np.ldexp(scales, exact_sums.expand(self.exponents).astype(np.int64))

    @property
    def offsets(self) -> FloatArray:
        """`target_offset` as an array of shape (n_targets,), by default zeros."""
        return np.array(self.target_offset or (0.0,) * self.n_targets)

    @property
    def grid_exponent(self) -> int:
        """Z'Z is counted in multiples of 2**grid_exponent."""
        return self.weight_exponent - self.fraction_bits

    @property
    def int64_rows(self) -> int:
        """The most rows whose sums fit in an int64: 2**23, 2**13 on the fine grid.

        In fixed point 2**34.
        """
        return 1 << (LIMB_BITS - self.fraction_bits)


def check_counted(n_samples: int, expected: int) -> None:
    """Raise StatisticsError unless a pass counted each of the expected rows once."""
    if n_samples != expected:
        raise StatisticsError(
            f"a pass counted {n_samples:_} rows, but the data have {expected:_}: some"
            " were lost or counted twice; run it again, and report this if the data"
            " did not change"
        )
