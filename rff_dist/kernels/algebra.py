"""Kernels made of kernels: sums, products, multiples, and kernels on some of the input columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.frequencies import Design
from rff_dist.kernels.base import FloatArray, Kernel, ShiftInvariant, Term, check_positive


@dataclass(frozen=True)
class Constant(Kernel):
    """The same value for all pairs: the kernel of constant functions.

    Parameters
    ----------
    value : float
        Above 0.
    """

    value: float = 1.0

    name = "constant"

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_positive(self.value, "a constant kernel"))

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return the value for all pairs."""
        return np.full((len(left), len(right)), self.value)

    def diagonal(self, X: FloatArray) -> FloatArray:
        """Return the value for all rows."""
        return np.full(len(X), self.value)

    def terms(self) -> list[Term]:
        """Return a term without factors."""
        return [Term(self.value, ())]

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the value."""
        return {"name": self.name, "value": self.value}


@dataclass(frozen=True)
class Scaled(Kernel):
    """A kernel times a number above 0."""

    weight: float
    kernel: Kernel

    name = "scaled"

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", check_positive(self.weight, "the factor of a kernel"))

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return weight · k of all pairs."""
        return self.weight * self.kernel.gram(left, right)

    def diagonal(self, X: FloatArray) -> FloatArray:
        """Return weight · k(x, x)."""
        return self.weight * self.kernel.diagonal(X)

    def terms(self) -> list[Term]:
        """Return the kernel's terms with the weight multiplied in."""
        return [Term(self.weight * term.weight, term.factors) for term in self.kernel.terms()]

    def check_columns(self, n_features: int) -> None:
        """Check the kernel's columns."""
        self.kernel.check_columns(n_features)

    def bind(self, lower: FloatArray, upper: FloatArray) -> Kernel:
        """Return the multiple of the bound kernel."""
        return Scaled(self.weight, self.kernel.bind(lower, upper))

    @property
    def is_bound(self) -> bool:
        """Whether no parameter waits for the range of the inputs."""
        return self.kernel.is_bound

    def to_dict(self) -> dict[str, Any]:
        """Return the name, the weight and the kernel."""
        return {"name": self.name, "weight": self.weight, "kernel": self.kernel.to_dict()}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Kernel:
        """Build the multiple of a kernel."""
        from rff_dist.kernels import kernel_from_dict

        return cls(parameters["weight"], kernel_from_dict(parameters["kernel"]))


@dataclass(frozen=True)
class _Several(Kernel):
    """Kernels side by side."""

    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        # (a + b) + c is kept as a + b + c
        parts: list[Kernel] = []
        for kernel in self.kernels:
            parts += kernel.kernels if type(kernel) is type(self) else [kernel]
        object.__setattr__(self, "kernels", tuple(parts))

    def check_columns(self, n_features: int) -> None:
        """Check the columns of each kernel."""
        for kernel in self.kernels:
            kernel.check_columns(n_features)

    def bind(self, lower: FloatArray, upper: FloatArray) -> Kernel:
        """Return the same of the bound kernels."""
        return type(self)(tuple(kernel.bind(lower, upper) for kernel in self.kernels))

    @property
    def is_bound(self) -> bool:
        """Whether no parameter waits for the range of the inputs."""
        return all(kernel.is_bound for kernel in self.kernels)

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the kernels."""
        return {"name": self.name, "kernels": [kernel.to_dict() for kernel in self.kernels]}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Kernel:
        """Build it from the kernels' dictionaries."""
        from rff_dist.kernels import kernel_from_dict

        return cls(tuple(kernel_from_dict(values) for values in parameters["kernels"]))


@dataclass(frozen=True)
class Sum(_Several):
    """k1 + k2 + …: functions that are sums of functions of each."""

    name = "sum"

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return the sum of the Gram matrices."""
        total = self.kernels[0].gram(left, right)
        for kernel in self.kernels[1:]:
            total = total + kernel.gram(left, right)
        return total

    def diagonal(self, X: FloatArray) -> FloatArray:
        """Return the sum of the diagonals."""
        return np.sum([kernel.diagonal(X) for kernel in self.kernels], axis=0)

    def terms(self) -> list[Term]:
        """Return the terms of all kernels."""
        return [term for kernel in self.kernels for term in kernel.terms()]


@dataclass(frozen=True)
class Product(_Several):
    """k1 · k2 · …: functions that vary as each does."""

    name = "product"

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return the product of the Gram matrices, entry by entry."""
        total = self.kernels[0].gram(left, right)
        for kernel in self.kernels[1:]:
            total = total * kernel.gram(left, right)
        return total

    def diagonal(self, X: FloatArray) -> FloatArray:
        """Return the product of the diagonals."""
        return np.prod([kernel.diagonal(X) for kernel in self.kernels], axis=0)

    def terms(self) -> list[Term]:
        """Return the products of all choices of one term from each kernel."""
        terms = [Term(1.0, ())]
        for kernel in self.kernels:
            terms = [
                Term(a.weight * b.weight, (*a.factors, *b.factors)) for a in terms for b in kernel.terms()
            ]
        return terms


@dataclass(frozen=True)
class Modulated(ShiftInvariant):
    """A product of shift-invariant kernels: its frequencies are sums of independent ones."""

    factors: tuple[ShiftInvariant, ...]

    name = "modulated"

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return the product of the Gram matrices, entry by entry."""
        return Product(self.factors).gram(left, right)

    def check_columns(self, n_features: int) -> None:
        """Check the columns of each factor."""
        for factor in self.factors:
            factor.check_columns(n_features)

    def n_uniforms(self, n_features: int) -> int:
        """Return how many uniform numbers a frequency is made of: those of all factors."""
        return sum(factor.n_uniforms(n_features) for factor in self.factors)

    @property
    def isotropic(self) -> bool:
        """Whether all factors are."""
        return all(factor.isotropic for factor in self.factors)

    def draw(
        self, design: Design, n_features: int, n_frequencies: int, seed: int, *, first: int
    ) -> FloatArray:
        """Return the sums of the factors' frequencies."""
        total = np.zeros((n_features, n_frequencies))
        for factor in self.factors:
            total += factor.draw(design, n_features, n_frequencies, seed, first=first)
            first += factor.n_uniforms(n_features)
        return total

    def to_dict(self) -> dict[str, Any]:
        """Return the product it stands for."""
        return Product(self.factors).to_dict()


@dataclass(frozen=True)
class OnColumns(Kernel):
    """A kernel that sees only some of the input columns.

    Parameters
    ----------
    kernel : Kernel
    columns : sequence of int
        Which columns, each once, counted from 0.
    """

    kernel: Kernel
    columns: Sequence[int]

    name = "on_columns"

    def __post_init__(self) -> None:
        columns = np.atleast_1d(np.asarray(self.columns))
        if columns.dtype.kind not in "iu" or columns.ndim != 1 or not len(columns) or (columns < 0).any():
            raise InvalidParameterError(
                f"`columns` is {self.columns!r}; expected a list of column numbers, counted from 0"
            )
        if len(set(columns.tolist())) < len(columns):
            raise InvalidParameterError(f"`columns` is {self.columns!r}, where a column comes twice")
        self.kernel.check_columns(len(columns))
        object.__setattr__(self, "columns", tuple(int(column) for column in columns))

    def on(self, columns: Sequence[int]) -> Kernel:
        """Return the kernel on columns of these columns."""
        outer = type(self)(self, columns)  # checks them
        return self.kernel.on([outer.columns[column] for column in self.columns])

    def gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return k of the chosen columns."""
        return self.kernel.gram(self._chosen(left), self._chosen(right))

    def diagonal(self, X: FloatArray) -> FloatArray:
        """Return k(x, x) of the chosen columns."""
        return self.kernel.diagonal(self._chosen(X))

    def _chosen(self, X: FloatArray) -> FloatArray:
        if X.shape[1] <= max(self.columns):
            raise DataError(
                f"the data have {X.shape[1]} columns; the kernel looks at column {max(self.columns)}"
            )
        return X[:, list(self.columns)]

    def terms(self) -> list[Term]:
        """Return the kernel's terms on the chosen columns."""
        if self.kernel.terms() == [Term(1.0, (self.kernel,))]:
            return [Term(1.0, (self,))]
        return [
            Term(term.weight, tuple(factor.on(self.columns) for factor in term.factors))
            for term in self.kernel.terms()
        ]

    def check_columns(self, n_features: int) -> None:
        """Check that all chosen columns exist."""
        if n_features <= max(self.columns):
            raise InvalidParameterError(
                f"the kernel looks at column {max(self.columns)}, counted from 0, but the data have "
                f"{n_features} columns"
            )

    def bind(self, lower: FloatArray, upper: FloatArray) -> Kernel:
        """Return the bound kernel on the same columns."""
        chosen = list(self.columns)
        return self.kernel.bind(lower[chosen], upper[chosen]).on(self.columns)

    @property
    def is_bound(self) -> bool:
        """Whether no parameter waits for the range of the inputs."""
        return self.kernel.is_bound

    def to_dict(self) -> dict[str, Any]:
        """Return the name, the kernel and the columns."""
        return {"name": self.name, "kernel": self.kernel.to_dict(), "columns": list(self.columns)}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Kernel:
        """Build the kernel on its columns."""
        from rff_dist.kernels import kernel_from_dict

        return kernel_from_dict(parameters["kernel"]).on(parameters["columns"])


@dataclass(frozen=True)
class ShiftInvariantOnColumns(OnColumns, ShiftInvariant):  # type: ignore[misc]  # `on` is narrower there
    """A shift-invariant kernel on some columns: the frequencies of all other columns are 0."""

    kernel: ShiftInvariant

    def n_uniforms(self, n_features: int) -> int:
        """Return how many uniform numbers a frequency is made of."""
        return self.kernel.n_uniforms(len(self.columns))

    @property
    def isotropic(self) -> bool:
        """Whether the kernel of the chosen columns is."""
        return self.kernel.isotropic

    def draw(
        self, design: Design, n_features: int, n_frequencies: int, seed: int, *, first: int
    ) -> FloatArray:
        """Return frequencies that are 0 for all other columns."""
        frequencies = np.zeros((n_features, n_frequencies))
        drawn = self.kernel.draw(design, len(self.columns), n_frequencies, seed, first=first)
        frequencies[list(self.columns)] = drawn
        return frequencies
