"""The interface of every kernel, and kernels made of kernels by +, * and `on`.

Two sets of points go in; the exact Gram matrix of k(x, y) comes out. scikit-learn's
pairwise kernels are just functions of two points. Features need more: the terms that a
kernel is a sum of, and the distribution of their frequencies, the spectral measure.
"""

from __future__ import annotations

import itertools
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
    """One summand, weight · Π factors, of a kernel written as a sum of products."""

    #: Above 0.
    weight: float
    #: Kernels that are not sums, products or multiples; none for a constant.
    factors: tuple[Kernel, ...]


@frozen
class LevelAngles:
    """The distribution of the angles that a level of a category adds to a row's angles.

    There is one angle per frequency. The Gaussian kernel of one-hot vectors over ℓ has
    such features: the angle is the level's coordinate of the frequency, over ℓ. The
    level's text alone decides it, so that a list with other levels, or in another
    order, has the same features.
    """

    measure: measures.CoordinateMeasure
    #: The coordinates' scales over the length scale, shape (n_frequencies,).
    scales: FloatArray
    seed: int
    #: Name of the stream of random numbers: differs by column and factor of a product.
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
        """Return the Gram matrix k(x_i, y_j), O(n_rows² · n_features).

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
        Y : array-like of shape (n_samples_Y, n_features), optional
            X by default.

        Returns
        -------
        gram : float64 array of shape (n_samples_X, n_samples_Y)

        Raises
        ------
        DataError
            If X and Y have different numbers of columns.
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
        """Return k for all pairs of rows of two matrices of equal width."""

    @abstractmethod
    def diagonal(self, X: FloatArray) -> FloatArray:
        """Return k(x_i, x_i), shape (n_samples,)."""

    def terms(self) -> list[Term]:
        """Return the kernel, multiplied out into a sum of weighted products."""
        return [Term(1.0, (self,))]

    def of_columns(self, n_features: int) -> tuple[dict[int, Kernel], bool]:
        """Return each column's own kernel, and whether there are other summands.

        A column's own kernel is the sum of the summands that depend on this column
        alone, as a kernel of all columns.
        """
        return {}, True

    def check_columns(self, n_features: int) -> None:  # noqa: B027  most kernels accept any number
        """Raise InvalidParameterError unless points may have `n_features` columns."""

    def with_categories(self, columns: Sequence[int]) -> Kernel:
        """Return the kernel of points in which these columns are categories.

        It only matters whether codes are equal. Raises InvalidParameterError if
        a part has no form for categories.
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
        """Return the kernel with everything filled in that the inputs' range decides.

        `smallest` and `largest` are the range of each (standardised) column.
        """
        return self.with_parts(lambda part: part.bind(smallest, largest))

    @property
    def is_bound(self) -> bool:
        """Whether nothing is left for `bind` to fill in."""
        return True

    def with_default_length_scales(
        self, fill: LengthScaleFor, columns: Columns = None
    ) -> Kernel:
        """Return the kernel with a length scale for each part that has none.

        `fill` returns a part's length scale, from the part and the columns that it
        takes. This kernel takes `columns`, by default all.
        """
        return self.with_parts(
            lambda part: part.with_default_length_scales(fill, columns)
        )

    def with_parts(self, change: Change) -> Kernel:
        """Return the kernel with its parts changed; itself if it has none."""
        return self

    def to_dict(self) -> Summary:
        """Return the name and parameters as JSON values, for `kernel_from_dict`."""
        parameters = fields(cast("Any", self))  # kernels are dataclasses
        values = {p.name: getattr(self, p.name) for p in parameters}
        return {
            "name": self.name,
            **{name: as_json(value) for name, value in values.items() if value != ()},
        }

    @classmethod
    def from_parameters(cls, parameters: Facts) -> Kernel:
        """Build the kernel from what `to_dict` returned, without the name.

        Parts among the parameters are kernels already.
        """
        return cls(**parameters)

    # -- algebra

    # makes NumPy leave `np.float64(2) * kernel` to the kernel
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
        if not is_number(other):
            return NotImplemented
        return Scaled(other, self)

    def __rmul__(self, other: float) -> Kernel:
        return self * other

    def on(self, columns: Sequence[int]) -> Kernel:
        """Return the kernel on some columns; sums of these give additive models."""
        return OnColumns(self, columns)


class ShiftInvariant(Kernel):
    """A kernel of x - y with k(x, x) = 1, which has a spectral measure."""

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
        """Whether rotating the scaled inputs changes nothing, see `Orthogonal`."""

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

        Parameters
        ----------
        n_features, n_frequencies : int
            A longer draw with the same seed begins with the same frequencies.
        design : name or Design
            How frequencies are arranged, see `rff_dist.frequencies`; independent by
            default.
        rng : int or Generator
            The seed, or a generator that draws one.

        Returns
        -------
        frequencies : float64 array of shape (n_features, n_frequencies)
            In radians per unit of the inputs.

        References
        ----------
        Rahimi & Recht (2007), Alg. 1; Yu et al. (2016), Sec. 3.
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
    if isinstance(value, tuple):
        return [as_json(part) for part in value]
    return value


# -- kernels made of kernels


def _check_weight(value: object, what: str) -> float:
    if not is_number(value) or not 0 < value < np.inf:
        raise InvalidParameterError(
            f"{what} {value!r}: expected a finite number above 0, which keeps a kernel"
            " positive definite"
        )
    return float(value)


def _check_kernels(kernels: object) -> tuple[Kernel, ...]:
    parts = list(kernels) if isinstance(kernels, Sequence) else []
    if not parts or not all(isinstance(part, Kernel) for part in parts):
        raise InvalidParameterError(
            f"`kernels` is {kernels!r}; expected one kernel or more"
        )
    return tuple(parts)


def _in_brackets(kernel: Kernel) -> str:
    if isinstance(kernel, Sum | Product | Scaled):
        return f"({kernel!r})"
    return repr(kernel)


@dataclass(frozen=True)
class Constant(Kernel):
    """The same value for all pairs of points: the kernel of constant functions."""

    #: Above 0.
    value: float = 1.0

    name = "constant"

    def __post_init__(self) -> None:
        value = _check_weight(self.value, "a constant kernel of")
        object.__setattr__(self, "value", value)

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
        terms = self.kernel.terms()
        return [Term(self.weight * term.weight, term.factors) for term in terms]

    def check_columns(self, n_features: int) -> None:
        self.kernel.check_columns(n_features)

    def with_parts(self, change: Change) -> Kernel:
        return replace(self, kernel=change(self.kernel))

    @property
    def is_bound(self) -> bool:
        return self.kernel.is_bound


@dataclass(frozen=True, repr=False)
class _Several(Kernel):
    """Several kernels, of a sum or a product; (a + b) + c is stored as a + b + c."""

    #: How values of the kernels are joined; sums and products set it.
    join: ClassVar[np.ufunc]

    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        parts: list[Kernel] = []
        for kernel in _check_kernels(self.kernels):
            if isinstance(kernel, _Several) and kernel.name == self.name:
                parts += kernel.kernels
            else:
                parts.append(kernel)
        object.__setattr__(self, "kernels", tuple(parts))

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        grams = (kernel.gram(left, right) for kernel in self.kernels)
        return reduce(self.join, grams)

    def diagonal(self, X: FloatArray) -> FloatArray:
        diagonals = [kernel.diagonal(X) for kernel in self.kernels]
        return np.asarray(self.join.reduce(diagonals))

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
    """k1 + k2 + …: its functions are sums of functions of each kernel."""

    name = "sum"
    join = np.add

    def __repr__(self) -> str:
        texts = []
        for kernel in self.kernels:
            number = kernel.value if isinstance(kernel, Constant) else kernel
            texts.append(repr(number))
        if all(isinstance(kernel, Constant) for kernel in self.kernels[:2]):
            # or Python would evaluate the text's two numbers as one
            texts[0] = repr(self.kernels[0])
        return " + ".join(texts)

    def terms(self) -> list[Term]:
        return [term for kernel in self.kernels for term in kernel.terms()]


def product_of(kernels: Sequence[Kernel]) -> Kernel:
    """Return the product of kernels, with a spectral measure if each has one."""
    if len(kernels) == 1:
        return kernels[0]
    invariant = [kernel for kernel in kernels if isinstance(kernel, ShiftInvariant)]
    if len(invariant) == len(kernels):
        return ShiftInvariantProduct(tuple(invariant))
    return Product(tuple(kernels))


def shift_invariant_term(term: Term) -> ShiftInvariant | None:
    """Return a term's factors as one kernel, if all have a spectral measure."""
    if not term.factors:
        return None
    whole = product_of(term.factors)
    return whole if isinstance(whole, ShiftInvariant) else None


def as_shift_invariant(kernel: Kernel) -> ShiftInvariant | None:
    """Return a kernel of one term as a `ShiftInvariant`, if k(0) = 1; else None."""
    terms = kernel.terms()
    if len(terms) > 1 or terms[0].weight != 1.0:
        return None
    return shift_invariant_term(terms[0])


@dataclass(frozen=True, repr=False)
class Product(_Several):
    """k1 · k2 · …: large only for points where every factor is large."""

    name = "product"
    join = np.multiply

    def __repr__(self) -> str:
        first, *others = self.kernels
        start = repr(first) if isinstance(first, Scaled) else _in_brackets(first)
        return " * ".join([start, *map(_in_brackets, others)])

    @classmethod
    def from_parameters(cls, parameters: Facts) -> Kernel:
        return product_of(parameters["kernels"])

    def terms(self) -> list[Term]:
        terms = [Term(1.0, ())]
        for kernel in self.kernels:
            # Brackets are multiplied out: a product of sums of 2 and of 3 terms has 6.
            terms = [
                Term(left.weight * right.weight, left.factors + right.factors)
                for left, right in itertools.product(terms, kernel.terms())
            ]
        return terms


@dataclass(frozen=True, repr=False)
class ShiftInvariantProduct(Product, ShiftInvariant):
    """A product of shift-invariant kernels.

    Its frequencies are sums of independent frequencies, one from each factor.
    """

    kernels: tuple[ShiftInvariant, ...]

    def n_uniforms(self, n_features: int) -> int:
        return sum(kernel.n_uniforms(n_features) for kernel in self.kernels)

    @property
    def isotropic(self) -> bool:
        return all(kernel.isotropic for kernel in self.kernels)

    def draw(self, draw: designs.Draw) -> FloatArray:
        # a sum of independent vectors has the product of their characteristic functions
        # as its own (Bochner)
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
        """Yield each factor with its own draw: shared uniforms would correlate them."""
        first = draw.first
        for kernel in self.kernels:
            yield kernel, replace(draw, first=first)
            first += kernel.n_uniforms(draw.n_features)


@dataclass(frozen=True, repr=False)
class OnColumns(Kernel):
    """A kernel on some of the input columns."""

    kernel: Kernel
    #: Distinct columns, counted from 0.
    columns: Sequence[int]

    name = "on_columns"

    def __post_init__(self) -> None:
        _check_kernels((self.kernel,))
        columns = np.atleast_1d(np.asarray(self.columns))
        are_integers = columns.dtype.kind in "iu" and columns.ndim == 1
        if not are_integers or not len(columns) or (columns < 0).any():
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
        return self.kernel.gram(self._own_columns(left), self._own_columns(right))

    def diagonal(self, X: FloatArray) -> FloatArray:
        return self.kernel.diagonal(self._own_columns(X))

    def _own_columns(self, X: FloatArray) -> FloatArray:
        last = max(self.columns)
        if X.shape[1] <= last:
            raise DataError(
                f"the kernel sees column {last}, counted from 0, but X has {X.shape[1]}"
                " columns"
            )
        return X[:, list(self.columns)]

    def terms(self) -> list[Term]:
        terms = []
        for term in self.kernel.terms():
            factors = tuple(kernel.on(self.columns) for kernel in term.factors)
            terms.append(Term(term.weight, factors))
        return terms

    def check_columns(self, n_features: int) -> None:
        last = max(self.columns)
        if n_features <= last:
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
        seen = tuple(self.columns)
        if columns is not None:
            seen = tuple(columns[i] for i in self.columns)
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
    """A shift-invariant kernel on some columns; frequencies of the others are 0."""

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


def design_for(kernel: Kernel, design: str | designs.Design = "auto") -> designs.Design:
    """Return a design by its name.

    "auto" is orthogonal, which has less variance, if the kernel allows it. Otherwise it
    is "iid", or "quasi-monte-carlo" if a part is additive. A given design is not
    replaced, even if drawing from it will fail. Raises InvalidParameterError if the
    design is unknown.
    """
    if design == "auto":
        suitable = set()
        for factor in _with_measures(kernel):
            if isinstance(factor, ShiftInvariantOnColumns):
                factor = factor.kernel
            suitable.add("orthogonal" if factor.isotropic else factor.other_design)
        # one design serves all parts: orthogonal only if every part can take it
        design = "orthogonal"
        for name in ("iid", "quasi-monte-carlo"):
            if name in suitable:
                design = name
    return designs.find_design(design)


def check_design(kernel: Kernel, design: str | designs.Design, n_features: int) -> None:
    """Raise InvalidParameterError if a design is unknown or does not suit a kernel."""
    chosen = design_for(kernel, design)
    for factor in _with_measures(kernel):
        if not isinstance(chosen, designs.Orthogonal):
            factor.draw(designs.Draw(chosen, n_features, n_frequencies=1, seed=0))
        # a test instead of a draw, which takes O(n_features³)
        elif not factor.isotropic:
            raise designs.not_isotropic()


def _with_measures(kernel: Kernel) -> list[ShiftInvariant]:
    """Return the factors of all terms that have a spectral measure."""
    factors = itertools.chain.from_iterable(term.factors for term in kernel.terms())
    return [factor for factor in factors if isinstance(factor, ShiftInvariant)]
