"""What every kernel can do: its Gram matrix, its algebra, and its way to JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, cast

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rff_dist.checks import check_count, check_positive, find_by_name, is_number
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.frequencies.counter import seed_of
from rff_dist.frequencies.designs import DESIGNS, Design
from rff_dist.frequencies.measures import GaussianMixture, SpectralMeasure
from rff_dist.typing import FloatArray

type LengthScale = float | tuple[float, ...]
type Columns = tuple[int, ...] | None  # input columns; None means all
type LengthScaleFor = Callable[[Stationary, Columns], LengthScale]

_FAR = 1e100  # larger distances count as this one, whose square does not overflow


def as_length_scale(value: float | Sequence[float] | np.ndarray) -> LengthScale:
    """Return a length scale, or a tuple of them, as floats.

    Raises InvalidParameterError if one of them is not a finite number above 0.
    """
    if np.ndim(value) == 0:
        return check_positive(value.item() if isinstance(value, np.ndarray) else value, "length_scale")
    if np.ndim(value) != 1 or len(value) == 0:  # type: ignore[arg-type]
        raise InvalidParameterError(
            f"`length_scale` has shape {np.shape(value)}; expected one number, or one per input column"
        )
    return tuple(check_positive(v, "length_scale") for v in value)  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of a kernel that is written as a sum of products: weight · Π factors.

    `weight`: above 0.
    `factors`: kernels that are not sums, products or multiples; none for a constant.
    """

    weight: float
    factors: tuple[Kernel, ...]


class Kernel(ABC):
    """A positive semi-definite function of two points.

    Call it on two sets of points to get the exact Gram matrix. `k1 + k2`, `k1 * k2`, `c * k` and `k + c` are
    kernels again, and `k.on([0, 3])` sees these input columns only.
    """

    name: ClassVar[str]

    def __call__(self, X: ArrayLike, Y: ArrayLike | None = None) -> FloatArray:
        """Return the Gram matrix k(x_i, y_j), O(n_samples_X * n_samples_Y * n_features).

        `X`: array-like of shape (n_samples_X, n_features).
        `Y`: array-like of shape (n_samples_Y, n_features). X by default.
        Returns `gram`, float64 array of shape (n_samples_X, n_samples_Y).
        Raises DataError if X and Y have different numbers of columns.
        """
        left = np.atleast_2d(np.asarray(X, np.float64))
        right = left if Y is None else np.atleast_2d(np.asarray(Y, np.float64))
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
            raise DataError(
                f"X has shape {left.shape} and Y {right.shape}; expected the same number of columns"
            )
        return self.gram(left, right)

    @abstractmethod
    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return k for all pairs of rows of two float64 matrices, which have the same number of columns."""

    @abstractmethod
    def diagonal(self, X: FloatArray) -> FloatArray:
        """Return k(x_i, x_i), shape (n_samples,)."""

    def terms(self) -> list[Term]:
        """Return the kernel, multiplied out into a sum of weighted products."""
        return [Term(1.0, (self,))]

    def check_columns(self, n_features: int) -> None:  # noqa: B027  most kernels accept any number
        """Raise InvalidParameterError unless the kernel accepts points of `n_features` columns."""

    def bind(self, lower: FloatArray, upper: FloatArray) -> Kernel:
        """Return the kernel, with parameters that depend on the inputs' range filled in.

        `lower`, `upper`: float64 arrays of shape (n_features,). Least and largest value of each
          (standardised) input column.
        """
        return self

    @property
    def is_bound(self) -> bool:
        """Whether nothing is left for `bind` to fill in."""
        return True

    def with_default_length_scales(self, fill: LengthScaleFor, columns: Columns = None) -> Kernel:
        """Return the kernel with a length scale for each part that was made without one.

        `fill`: gives the length scale of such a part, from the part and the input columns that it sees.
        `columns`: the input columns that this kernel sees; all by default.
        """
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the name and parameters as JSON-able values, for `kernel_from_dict`."""
        own = fields(cast("Any", self))  # kernels are dataclasses
        return {"name": self.name, **{one.name: _as_json(getattr(self, one.name)) for one in own}}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Kernel:
        """Build the kernel from what `to_dict` returned without the name; parts are kernels already."""
        return cls(**parameters)

    # -- algebra ------------------------------------------------------------------------------------

    __array_ufunc__: ClassVar[None] = None  # NumPy's numbers leave `np.float64(2) * kernel` to the kernel

    def __add__(self, other: Kernel | float) -> Kernel:
        # here and below: algebra.py imports this module
        from rff_dist.kernels.algebra import Constant, Sum

        if isinstance(other, Kernel):
            return Sum((self, other))
        if not is_number(other):
            return NotImplemented
        return self if other == 0 else Sum((self, Constant(other)))

    def __radd__(self, other: float) -> Kernel:
        from rff_dist.kernels.algebra import Constant, Sum

        if not is_number(other):
            return NotImplemented
        return self if other == 0 else Sum((Constant(other), self))  # the built-in `sum` begins with 0

    def __mul__(self, other: Kernel | float) -> Kernel:
        from rff_dist.kernels.algebra import Scaled, product_of

        if isinstance(other, Kernel):
            return product_of((self, other))
        return Scaled(other, self) if is_number(other) else NotImplemented

    def __rmul__(self, other: float) -> Kernel:
        return self * other

    def on(self, columns: Sequence[int]) -> Kernel:
        """Return the kernel that sees only these input columns; sums of such kernels are additive models."""
        from rff_dist.kernels.algebra import OnColumns

        return OnColumns(self, columns)


class ShiftInvariant(Kernel):
    """A kernel of the difference of two points, with k(x, x) = 1: it has a spectral measure."""

    def diagonal(self, X: FloatArray) -> FloatArray:
        return np.ones(len(X))

    @abstractmethod
    def draw(
        self, design: Design, n_features: int, n_frequencies: int, seed: int, *, first: int
    ) -> FloatArray:
        """Return frequencies, in radians per unit of the inputs; see `Design.draw` for `first`."""

    @abstractmethod
    def n_uniforms(self, n_features: int) -> int:
        """Return how many uniform numbers make one frequency."""

    @property
    @abstractmethod
    def isotropic(self) -> bool:
        """Whether rotations of the scaled inputs change nothing, as the orthogonal design needs."""

    def on(self, columns: Sequence[int]) -> ShiftInvariant:
        from rff_dist.kernels.algebra import ShiftInvariantOnColumns

        return ShiftInvariantOnColumns(self, columns)

    def sample_frequencies(
        self,
        n_features: int,
        n_frequencies: int,
        *,
        design: str | Design = "iid",
        rng: int | np.random.Generator,
    ) -> FloatArray:
        """Draw frequencies from the kernel's spectral measure.

        `n_frequencies`: how many to draw. A longer draw with the same seed begins with the same frequencies.
        `design`: how they are arranged, see `rff_dist.frequencies`; independent by default.
        `rng`: the seed, or a Generator that draws one.
        Returns `frequencies`, float64 array of shape (n_features, n_frequencies): in radians per unit of the
          inputs.
        Source: Rahimi & Recht (2007), Alg. 1; Yu et al. (2016), Sec. 3.
        """
        n_features = check_count(n_features, "n_features")
        n_frequencies = check_count(n_frequencies, "n_frequencies")
        self.check_columns(n_features)
        return self.draw(find_design(design), n_features, n_frequencies, seed_of(rng), first=0)


@dataclass(frozen=True)
class Stationary(ShiftInvariant):
    """A shift-invariant kernel with a length scale.

    `length_scale`: float or sequence of float of shape (n_features,). The length scale, in the inputs' units;
      a sequence gives one per input column. Without it, estimators, searches and pipelines take one from the
      data; calls on points and draws of features take 1.
    """

    length_scale: float | Sequence[float] | np.ndarray | None = None

    metric: ClassVar[str] = "euclidean"

    def __post_init__(self) -> None:
        if self.length_scale is not None:
            object.__setattr__(self, "length_scale", as_length_scale(self.length_scale))

    def __repr__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in fields(self)]
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in given if v is not None)})"

    @abstractmethod
    def spectral_measure(self) -> SpectralMeasure:
        """Return the law of the frequencies for a unit length scale (Bochner's theorem)."""

    @abstractmethod
    def of_scaled(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return the Gram matrix of points divided by their length scales."""

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        scales = self.length_scales(left.shape[1])
        return self.of_scaled(left / scales, right / scales)

    def length_scales(self, n_features: int) -> FloatArray:
        """Return one length scale per input column, shape (n_features,); ones where none was given.

        Raises InvalidParameterError if the kernel has length scales for another number of columns.
        """
        scales = np.asarray(1.0 if self.length_scale is None else self.length_scale, np.float64)
        if scales.ndim and len(scales) != n_features:
            raise InvalidParameterError(
                f"`length_scale` has {len(scales)} entries but the data have {n_features} columns; "
                "give one number, or one per column"
            )
        return np.broadcast_to(scales, n_features)

    def check_columns(self, n_features: int) -> None:
        self.length_scales(n_features)

    def n_uniforms(self, n_features: int) -> int:
        return self.spectral_measure().n_uniforms(n_features)

    @property
    def isotropic(self) -> bool:
        return isinstance(self.spectral_measure(), GaussianMixture)

    def draw(
        self, design: Design, n_features: int, n_frequencies: int, seed: int, *, first: int
    ) -> FloatArray:
        unit = design.draw(self.spectral_measure(), n_features, n_frequencies, seed, first=first)
        return unit / self.length_scales(n_features)[:, np.newaxis]

    def with_length_scale(self, length_scale: float | Sequence[float] | np.ndarray | None) -> Self:
        """Return the same kernel with another length scale; None leaves it to the data."""
        return replace(self, length_scale=length_scale)

    def with_default_length_scales(self, fill: LengthScaleFor, columns: Columns = None) -> Kernel:
        return self if self.length_scale is not None else self.with_length_scale(fill(self, columns))


class OfDistance(Stationary):
    """A stationary kernel of the distance alone."""

    @abstractmethod
    def of_distance(self, distance: FloatArray) -> FloatArray:
        """Return k for distances, in `metric`, between scaled points."""

    def of_scaled(self, left: FloatArray, right: FloatArray) -> FloatArray:
        distance = scipy.spatial.distance.cdist(left, right, self.metric)
        return self.of_distance(np.minimum(distance, _FAR, out=distance))


class OfCoordinates(Stationary):
    """A stationary kernel that is a product over the coordinates' differences."""

    @abstractmethod
    def of_difference(self, difference: FloatArray) -> FloatArray:
        """Return one coordinate's factor for its scaled differences."""

    def of_scaled(self, left: FloatArray, right: FloatArray) -> FloatArray:
        gram = np.ones((len(left), len(right)))
        for a, b in zip(left.T, right.T, strict=True):
            gram *= self.of_difference(np.clip(np.subtract.outer(a, b), -_FAR, _FAR))
        return gram


def _as_json(value: Any) -> Any:
    if isinstance(value, Kernel):
        return value.to_dict()
    return [_as_json(part) for part in value] if isinstance(value, tuple) else value


def find_design(design: str | Design) -> Design:
    """Return the design of that name, or the object itself; raises InvalidParameterError with near names."""
    if not isinstance(design, str) and hasattr(design, "draw"):
        return design
    return find_by_name(DESIGNS, design, "design")


def with_length_scale(kernel: Kernel, length_scale: LengthScale) -> Kernel:
    """Return the kernel with another length scale. In sums and products, only parts without one get it.

    Raises InvalidParameterError if no part can take it, or it is not a number above 0.
    """
    if isinstance(kernel, Stationary):
        return kernel.with_length_scale(length_scale)
    if not parts_without_length_scale(kernel):
        raise InvalidParameterError(
            f"`length_scale` is {length_scale!r}, but {kernel} has no part without a length scale; "
            "leave it out"
        )
    return kernel.with_default_length_scales(lambda part, columns: length_scale)


def parts_without_length_scale(kernel: Kernel) -> list[Stationary]:
    """Return the parts of a kernel that were made without a length scale."""
    found: list[Stationary] = []

    def note(part: Stationary, columns: Columns) -> LengthScale:
        found.append(part)
        return 1.0

    kernel.with_default_length_scales(note)
    return found


def default_design(kernel: Kernel) -> str:
    """Return "orthogonal", which has less variance, if the kernel's measures allow it, else "iid"."""
    return "orthogonal" if all(factor.isotropic for factor in _with_measures(kernel)) else "iid"


def check_design(kernel: Kernel, design: str | Design, n_features: int) -> None:
    """Draw one frequency; raises InvalidParameterError if the design is unknown or does not suit."""
    found = find_design(design)
    for factor in _with_measures(kernel):
        factor.draw(found, n_features, 1, 0, first=0)


def _with_measures(kernel: Kernel) -> list[ShiftInvariant]:
    factors = [factor for term in kernel.terms() for factor in term.factors]
    return [factor for factor in factors if isinstance(factor, ShiftInvariant)]
