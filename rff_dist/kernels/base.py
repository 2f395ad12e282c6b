"""What every kernel can do, its Gram matrix, and kernels made of kernels by +, * and
`on`.
"""

from __future__ import annotations

import itertools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.checks import as_array, check_count, is_number
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.frequencies import designs, measures, uniforms
from rff_dist.typing import Facts, FloatArray, Summary, frozen

type LengthScale = float | tuple[float, ...]
type Columns = tuple[int, ...] | None  # input columns; None means all
type Change = Callable[[Kernel], Kernel]
type LengthScaleFor = Callable[[Any, Columns], LengthScale]  # of a `Stationary` kernel


@frozen
class Term:
    """One summand of a kernel that is written as a sum of products: weight · Π
    factors.
    """

    #: above 0
    weight: float
    #: kernels that are not sums, products or multiples; none for a constant
    factors: tuple[Kernel, ...]


@frozen
class LevelAngles:
    """The distribution of the angles that a level adds, one per frequency.

    The Gaussian kernel of one-hot vectors over ℓ has such features: a level's
    coordinate of a frequency, over ℓ, is its angle. It is drawn by the level's text, so
    that lists of other levels, or in another order, have the same features.
    """

    measure: measures.CoordinateMeasure
    #: the coordinates' factors over the length scale, shape (n_frequencies,)
    scales: FloatArray
    seed: int
    #: tells columns and factors of a product apart
    stream: str

    def angles(self, text: str) -> FloatArray:
        """Return the angles of a level, shape (n_frequencies,)."""
        numbers = uniforms.text_uniforms(self.seed, self.stream, text, len(self.scales))
        return self.scales * self.measure.coordinates(numbers)

    def characteristic(self) -> FloatArray:
        """Return E cos(angle), shape (n_frequencies,)."""
        return self.measure.characteristic(self.scales)


class Kernel(ABC):
    """A positive semi-definite function of two points.

    Call it on two sets of points to get the exact Gram matrix. `k1 + k2`, `k1 * k2`, `c
    * k` and `k + c` are kernels again, and `k.on([0, 3])` is the kernel of input
    columns 0 and 3 only.
    """

    name: ClassVar[str]

    def __call__(self, X: ArrayLike, Y: ArrayLike | None = None) -> FloatArray:
        """Return the Gram matrix k(x_i, y_j), O(n_samples_X * n_samples_Y *
        n_features).

        `X`: array-like of shape (n_samples_X, n_features).
        `Y`: array-like of shape (n_samples_Y, n_features). X by default.
        Returns `gram`, float64 array of shape (n_samples_X, n_samples_Y).
        Raises DataError if X and Y have different numbers of columns.
        """
        left = np.atleast_2d(as_array(X, "X", np.float64))
        right = left if Y is None else np.atleast_2d(as_array(Y, "Y", np.float64))
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
            raise DataError(
                f"X has shape {left.shape} and Y {right.shape}; expected the same"
                " number of columns"
            )
        if not (len(left) and len(right)):
            return np.empty((len(left), len(right)))
        return self.gram(left, right)

    @abstractmethod
    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return k for all pairs of rows of two float64 matrices, which have the same
        number of columns.
        """

    @abstractmethod
    def diagonal(self, X: FloatArray) -> FloatArray:
        """Return k(x_i, x_i), shape (n_samples,)."""

    def terms(self) -> list[Term]:
        """Return the kernel, multiplied out into a sum of weighted products."""
        return [Term(1.0, (self,))]

    def check_columns(self, n_features: int) -> None:  # noqa: B027  most kernels accept any number
        """Raise InvalidParameterError unless the kernel accepts points of `n_features`
        columns.
        """

    def with_categories(self, columns: Sequence[int]) -> Kernel:
        """Return the kernel of points of which these columns are categories: codes that
        are equal or not.

        Raises InvalidParameterError if a part has no form for categories.
        """
        changed = self.with_parts(lambda part: part.with_categories(columns))
        if columns and changed is self:
            raise InvalidParameterError(
                f"the {self.name} kernel has no form for categories, but column"
                f" {columns[0]}, counted from 0, is one; take another kernel, or leave"
                " the column to the others with `on`"
            )
        return changed

    def bind(self, smallest: FloatArray, largest: FloatArray) -> Kernel:
        """Return the kernel, with parameters that depend on the inputs' range filled
        in.

        `smallest`, `largest`: float64 arrays of shape (n_features,), of the values of
          each (standardised) input column.
        """
        return self.with_parts(lambda part: part.bind(smallest, largest))

    @property
    def is_bound(self) -> bool:
        """Whether nothing is left for `bind` to fill in."""
        return True

    def with_default_length_scales(
        self, fill: LengthScaleFor, columns: Columns = None
    ) -> Kernel:
        """Return the kernel with a length scale for each part that was made without
        one.

        `fill`: gives the length scale of such a part, from the part and the input
          columns that it sees.
        `columns`: the input columns that this kernel sees; all by default.
        """
        return self.with_parts(
            lambda part: part.with_default_length_scales(fill, columns)
        )

    def with_parts(self, change: Change) -> Kernel:
        """Return the kernel with the kernels that it is made of changed; itself if
        there are none.
        """
        return self

    def to_dict(self) -> Summary:
        """Return the name and parameters as JSON-able values, for
        `kernel_from_dict`.
        """
        parameters = fields(cast("Any", self))  # kernels are dataclasses
        values = {p.name: getattr(self, p.name) for p in parameters}
        return {
            "name": self.name,
            **{name: as_json(value) for name, value in values.items() if value != ()},
        }

    @classmethod
    def from_parameters(cls, parameters: Facts) -> Kernel:
        """Build the kernel from what `to_dict` returned without the name; parts are
        kernels already.
        """
        return cls(**parameters)

    # -- algebra
    # ----------------------------------------------------------------------------------

    # NumPy's numbers leave `np.float64(2) * kernel` to the kernel
    __array_ufunc__: ClassVar[None] = None

    def __add__(self, other: Kernel | float) -> Kernel:
        if isinstance(other, Kernel):
            return Sum((self, other))
        if not is_number(other):
            return NotImplemented
        return self if other == 0 else Sum((self, Constant(other)))

    def __radd__(self, other: float) -> Kernel:
        if not is_number(other):
            return NotImplemented
        # the built-in `sum` begins with 0
        return self if other == 0 else Sum((Constant(other), self))

    def __mul__(self, other: Kernel | float) -> Kernel:
        if isinstance(other, Kernel):
            return product_of((self, other))
        return Scaled(other, self) if is_number(other) else NotImplemented

    def __rmul__(self, other: float) -> Kernel:
        return self * other

    def on(self, columns: Sequence[int]) -> Kernel:
        """Return the kernel that sees only these input columns; sums of such kernels
        are additive models.
        """
        return OnColumns(self, columns)


class ShiftInvariant(Kernel):
    """A kernel of the difference of two points, with k(x, x) = 1: it has a spectral
    measure.
    """

    #: The design that "auto" takes instead of "orthogonal", if orthogonal frequencies
    #: would not follow the kernel's distribution.
    other_design: ClassVar[str] = "iid"

    def diagonal(self, X: FloatArray) -> FloatArray:
        return np.ones(len(X))

    @abstractmethod
    def draw(self, draw: designs.Draw) -> FloatArray:
        """Return frequencies of the draw's shape, in radians per unit of the inputs."""

    @abstractmethod
    def n_uniforms(self, n_features: int) -> int:
        """Return how many uniform numbers make one frequency."""

    @abstractmethod
    def level_angles(self, column: int, draw: designs.Draw) -> list[LevelAngles]:
        """Return parts that add up to the angles of a level in a column of categories.

        The frequencies of the same draw make the angles of numbers.
        """

    @property
    @abstractmethod
    def isotropic(self) -> bool:
        """Whether rotations of the scaled inputs change nothing, as the orthogonal
        design needs.
        """

    def on(self, columns: Sequence[int]) -> ShiftInvariant:
        return ShiftInvariantOnColumns(self, columns)

    def sample_frequencies(
        self,
        n_features: int,
        n_frequencies: int,
        *,
        design: str | designs.Design = "iid",
        rng: int | np.random.Generator,
    ) -> FloatArray:
        """Draw frequencies from the kernel's spectral measure.

        `n_frequencies`: how many to draw. A longer draw with the same seed begins with
          the same frequencies.
        `design`: how they are arranged, see `rff_dist.frequencies`; independent by
          default.
        `rng`: the seed, or a Generator that draws one.

        Returns `frequencies`, float64 array of shape (n_features, n_frequencies): in
        radians per unit of the inputs.

        Source: Rahimi & Recht (2007), Alg. 1; Yu et al. (2016), Sec. 3.
        """
        check_count(n_features, "n_features")
        check_count(n_frequencies, "n_frequencies")
        self.check_columns(n_features)
        found = design_for(self, design)
        seed = uniforms.seed_of(rng)
        return self.draw(designs.Draw(found, n_features, n_frequencies, seed))


def as_json(value: Any) -> Any:
    """Return a kernel's parameter as a JSON value."""
    if isinstance(value, Kernel):
        return value.to_dict()
    return [as_json(part) for part in value] if isinstance(value, tuple) else value


# -- kernels made of kernels
# ----------------------------------------------------------------------


def _check_weight(value: object, what: str) -> float:
    if not is_number(value) or not 0 < value < np.inf:
        raise InvalidParameterError(
            f"{what} {value!r}: expected a finite number above 0, which keeps a kernel"
            " positive definite"
        )
    return float(value)


def _check_kernels(kernels: object) -> tuple[Kernel, ...]:
    if (
        not isinstance(kernels, Sequence)
        or not kernels
        or not all(isinstance(k, Kernel) for k in kernels)
    ):
        raise InvalidParameterError(
            f"`kernels` is {kernels!r}; expected one kernel or more"
        )
    return tuple(kernels)


def _in_brackets(kernel: Kernel) -> str:
    return (
        f"({kernel!r})" if isinstance(kernel, Sum | Product | Scaled) else repr(kernel)
    )


@dataclass(frozen=True)
class Constant(Kernel):
    """The same value for all pairs of points: the kernel of constant functions."""

    #: above 0
    value: float = 1.0

    name = "constant"

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "value", _check_weight(self.value, "a constant kernel of")
        )

    def with_categories(self, columns: Sequence[int]) -> Kernel:
        return self

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        return np.full((len(left), len(right)), self.value)

    def diagonal(self, X: FloatArray) -> FloatArray:
        return np.full(len(X), self.value)

    def terms(self) -> list[Term]:
        return [Term(self.value, ())]


@dataclass(frozen=True, repr=False)
class Scaled(Kernel):
    """A kernel times a number above 0."""

    weight: float
    kernel: Kernel

    name = "scaled"

    def __post_init__(self) -> None:
        _check_kernels((self.kernel,))
        object.__setattr__(self, "weight", _check_weight(self.weight, "a kernel times"))

    def __repr__(self) -> str:
        return f"{self.weight!r} * {_in_brackets(self.kernel)}"

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        return self.weight * self.kernel.gram(left, right)

    def diagonal(self, X: FloatArray) -> FloatArray:
        return self.weight * self.kernel.diagonal(X)

    def terms(self) -> list[Term]:
        return [
            Term(self.weight * term.weight, term.factors)
            for term in self.kernel.terms()
        ]

    def check_columns(self, n_features: int) -> None:
        self.kernel.check_columns(n_features)

    def with_parts(self, change: Change) -> Kernel:
        return replace(self, kernel=change(self.kernel))

    @property
    def is_bound(self) -> bool:
        return self.kernel.is_bound


@dataclass(frozen=True, repr=False)
class _Several(Kernel):
    """Kernels side by side; (a + b) + c is kept as a + b + c."""

    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        parts: list[Kernel] = []
        for kernel in _check_kernels(self.kernels):
            parts += (
                kernel.kernels
                if isinstance(kernel, _Several) and kernel.name == self.name
                else [kernel]
            )
        object.__setattr__(self, "kernels", tuple(parts))

    def check_columns(self, n_features: int) -> None:
        for kernel in self.kernels:
            kernel.check_columns(n_features)

    def with_parts(self, change: Change) -> Kernel:
        return type(self)(tuple(map(change, self.kernels)))

    @property
    def is_bound(self) -> bool:
        return all(kernel.is_bound for kernel in self.kernels)


@dataclass(frozen=True, repr=False)
class Sum(_Several):
    """k1 + k2 + …: functions that are sums of functions of each."""

    name = "sum"

    def __repr__(self) -> str:
        texts = [
            repr(k.value) if isinstance(k, Constant) else repr(k) for k in self.kernels
        ]
        if all(isinstance(kernel, Constant) for kernel in self.kernels[:2]):
            texts[0] = repr(self.kernels[0])  # Python would add two numbers to a number
        return " + ".join(texts)

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        return reduce(
            operator.add, (kernel.gram(left, right) for kernel in self.kernels)
        )

    def diagonal(self, X: FloatArray) -> FloatArray:
        return np.sum([kernel.diagonal(X) for kernel in self.kernels], axis=0)

    def terms(self) -> list[Term]:
        return [term for kernel in self.kernels for term in kernel.terms()]


def product_of(kernels: Sequence[Kernel]) -> Kernel:
    """Return the product of kernels, with a spectral measure where each has one."""
    if len(kernels) == 1:
        return kernels[0]
    invariant = tuple(
        kernel for kernel in kernels if isinstance(kernel, ShiftInvariant)
    )
    return (
        ShiftInvariantProduct(invariant)
        if len(invariant) == len(kernels)
        else Product(tuple(kernels))
    )


def shift_invariant_term(term: Term) -> ShiftInvariant | None:
    """Return a term's factors as one kernel with a spectral measure; None if one of
    them has none.
    """
    whole = product_of(term.factors) if term.factors else None
    return whole if isinstance(whole, ShiftInvariant) else None


def as_shift_invariant(kernel: Kernel) -> ShiftInvariant | None:
    """Return a kernel with k(0) = 1 and a spectral measure as a `ShiftInvariant`; None
    for other kernels.
    """
    terms = kernel.terms()
    return (
        shift_invariant_term(terms[0])
        if len(terms) == 1 and terms[0].weight == 1.0
        else None
    )


@dataclass(frozen=True, repr=False)
class Product(_Several):
    """k1 · k2 · …: large only for points for which every factor is large."""

    name = "product"

    def __repr__(self) -> str:
        first, *others = self.kernels
        start = repr(first) if isinstance(first, Scaled) else _in_brackets(first)
        return " * ".join([start, *map(_in_brackets, others)])

    @classmethod
    def from_parameters(cls, parameters: Facts) -> Kernel:
        return product_of(parameters["kernels"])

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        return reduce(
            operator.mul, (kernel.gram(left, right) for kernel in self.kernels)
        )

    def diagonal(self, X: FloatArray) -> FloatArray:
        return np.prod([kernel.diagonal(X) for kernel in self.kernels], axis=0)

    def terms(self) -> list[Term]:
        terms = [Term(1.0, ())]
        for kernel in self.kernels:
            # brackets are multiplied out: a product of sums has as many terms as the
            # product of their numbers
            pairs = itertools.product(terms, kernel.terms())
            terms = [
                Term(a.weight * b.weight, (*a.factors, *b.factors)) for a, b in pairs
            ]
        return terms


@dataclass(frozen=True, repr=False)
class ShiftInvariantProduct(Product, ShiftInvariant):
    """A product of shift-invariant kernels: its frequencies are sums of independent
    ones.
    """

    kernels: tuple[ShiftInvariant, ...]

    def n_uniforms(self, n_features: int) -> int:
        return sum(kernel.n_uniforms(n_features) for kernel in self.kernels)

    @property
    def isotropic(self) -> bool:
        return all(kernel.isotropic for kernel in self.kernels)

    def draw(self, draw: designs.Draw) -> FloatArray:
        # the characteristic function of a sum of independent vectors is the product of
        # theirs (Bochner)
        total = np.zeros(draw.shape)
        for kernel, own_draw in self._draws(draw):
            total += kernel.draw(own_draw)
        return total

    def level_angles(self, column: int, draw: designs.Draw) -> list[LevelAngles]:
        parts: list[LevelAngles] = []
        for kernel, own_draw in self._draws(draw):
            parts += kernel.level_angles(column, own_draw)
        return parts

    def _draws(
        self, draw: designs.Draw
    ) -> Iterator[tuple[ShiftInvariant, designs.Draw]]:
        """Yield each factor with a draw of its own: shared uniforms would depend."""
        first = draw.first
        for kernel in self.kernels:
            yield kernel, replace(draw, first=first)
            first += kernel.n_uniforms(draw.n_features)


@dataclass(frozen=True, repr=False)
class OnColumns(Kernel):
    """A kernel that sees only some of the input columns."""

    kernel: Kernel
    #: which columns, each once, counted from 0
    columns: Sequence[int]

    name = "on_columns"

    def __post_init__(self) -> None:
        _check_kernels((self.kernel,))
        columns = np.atleast_1d(np.asarray(self.columns))
        if (
            columns.dtype.kind not in "iu"
            or columns.ndim != 1
            or not len(columns)
            or (columns < 0).any()
        ):
            raise InvalidParameterError(
                f"`columns` is {self.columns!r}; expected at least one whole number,"
                " counted from 0"
            )
        if len(set(columns.tolist())) < len(columns):
            raise InvalidParameterError(
                f"`columns` is {self.columns!r}; expected each column once"
            )
        self.kernel.check_columns(len(columns))
        object.__setattr__(self, "columns", tuple(columns.tolist()))

    def __repr__(self) -> str:
        return f"{_in_brackets(self.kernel)}.on({list(self.columns)})"

    def on(self, columns: Sequence[int]) -> Kernel:
        outer = type(self)(self, columns)  # checks the columns
        return self.kernel.on([outer.columns[column] for column in self.columns])

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        return self.kernel.gram(self._chosen(left), self._chosen(right))

    def diagonal(self, X: FloatArray) -> FloatArray:
        return self.kernel.diagonal(self._chosen(X))

    def _chosen(self, X: FloatArray) -> FloatArray:
        if X.shape[1] <= (last := max(self.columns)):
            raise DataError(
                f"the kernel sees column {last}, counted from 0, but X has {X.shape[1]}"
                " columns"
            )
        return X[:, list(self.columns)]

    def terms(self) -> list[Term]:
        inner = self.kernel.terms()
        return [
            Term(term.weight, tuple(k.on(self.columns) for k in term.factors))
            for term in inner
        ]

    def check_columns(self, n_features: int) -> None:
        if n_features <= (last := max(self.columns)):
            raise InvalidParameterError(
                f"the kernel sees column {last}, counted from 0, but the data have"
                f" {n_features} columns"
            )

    def with_categories(self, columns: Sequence[int]) -> Kernel:
        seen = list(self.columns)
        inner = [seen.index(column) for column in columns if column in seen]
        return self.kernel.with_categories(inner).on(self.columns)

    def bind(self, smallest: FloatArray, largest: FloatArray) -> Kernel:
        chosen = list(self.columns)
        return self.kernel.bind(smallest[chosen], largest[chosen]).on(self.columns)

    def with_default_length_scales(
        self, fill: LengthScaleFor, columns: Columns = None
    ) -> Kernel:
        seen = (
            tuple(self.columns)
            if columns is None
            else tuple(columns[i] for i in self.columns)
        )
        return replace(self, kernel=self.kernel.with_default_length_scales(fill, seen))

    @property
    def is_bound(self) -> bool:
        return self.kernel.is_bound

    @classmethod
    def from_parameters(cls, parameters: Facts) -> Kernel:
        kernel: Kernel = parameters["kernel"]
        return kernel.on(parameters["columns"])


@dataclass(frozen=True, repr=False)
class ShiftInvariantOnColumns(OnColumns, ShiftInvariant):  # type: ignore[misc]  # `on` is narrower there
    """A shift-invariant kernel on some columns: the frequencies of all other columns
    are 0.
    """

    kernel: ShiftInvariant

    def n_uniforms(self, n_features: int) -> int:
        return self.kernel.n_uniforms(len(self.columns))

    @property
    def isotropic(self) -> bool:
        return self.kernel.isotropic

    def draw(self, draw: designs.Draw) -> FloatArray:
        columns = list(self.columns)
        frequencies = np.zeros(draw.shape)
        # cos(ω'Δ) ignores a column whose frequency is 0
        frequencies[columns] = self.kernel.draw(replace(draw, n_features=len(columns)))
        return frequencies

    def level_angles(self, column: int, draw: designs.Draw) -> list[LevelAngles]:
        columns = list(self.columns)
        if column not in columns:
            return []
        inner = replace(draw, n_features=len(columns))
        return self.kernel.level_angles(columns.index(column), inner)


# -- designs
# --------------------------------------------------------------------------------------


def design_for(kernel: Kernel, design: str | designs.Design = "auto") -> designs.Design:
    """Return a design by its name: "auto" is orthogonal, which has less variance, if
    the kernel allows it.

    Otherwise it is "iid", or "quasi-monte-carlo" if a part is additive. A design that
    is named is not replaced, even if drawing from it will fail.

    Raises InvalidParameterError if the design is unknown.
    """
    if design == "auto":
        factors = _with_measures(kernel)
        inner = [
            f.kernel if isinstance(f, ShiftInvariantOnColumns) else f for f in factors
        ]
        names = {
            "orthogonal" if kernel.isotropic else kernel.other_design
            for kernel in inner
        }
        # one design serves all parts: orthogonal only if every part can take it
        design = next(
            (name for name in ("quasi-monte-carlo", "iid") if name in names),
            "orthogonal",
        )
    return designs.find_design(design)


def check_design(kernel: Kernel, design: str | designs.Design, n_features: int) -> None:
    """Draw one frequency; raises InvalidParameterError if the design is unknown or does
    not suit.
    """
    known = design_for(kernel, design)
    for factor in _with_measures(kernel):
        if not isinstance(known, designs.Orthogonal):
            factor.draw(designs.Draw(known, n_features, n_frequencies=1, seed=0))
        elif not factor.isotropic:  # a draw in many columns would take O(n_features³)
            raise designs.not_isotropic()


def _with_measures(kernel: Kernel) -> list[ShiftInvariant]:
    factors = itertools.chain.from_iterable(term.factors for term in kernel.terms())
    return [factor for factor in factors if isinstance(factor, ShiftInvariant)]
