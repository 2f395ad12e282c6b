"""The table of a cross-validation's errors, and the rules that choose from it.

The errors of every split, number of components, alpha and target go in; a `Choice` of
components and alpha comes out. The smallest entry alone would follow chance: if folds
do not tell errors apart, rules prefer fewer components and larger alphas.
"""

from dataclasses import replace
from typing import Literal, Self

import numpy as np

from rff_dist.data import folding
from rff_dist.errors import InvalidParameterError
from rff_dist.selection import grids, rule
from rff_dist.text import short_repr
from rff_dist.typing import (
    AnyArray,
    Arrays,
    FloatArray,
    IndexArray,
    IntArray,
    frozen,
)

# An error that exceeds the smallest by less than this share of a standard error counts
# as equally good: folds do not tell them apart.
AS_GOOD = 0.1
# Mean leverage of training rows, above which the rows are as good as interpolated.
INTERPOLATING = 0.9

#: Which alpha to take: the one with the smallest error, or a larger one; see
#: `CrossValidation.choose`.
type AlphaRule = Literal["best", "safest", "one_standard_error"]


@frozen
class Choice:
    """A number of components and an alpha, and their validation error."""

    n_components: int
    #: The alpha of the grid that is best for all targets together.
    alpha: float
    #: Validation error as a share of the targets' variance, and its standard error.
    score: float
    standard_error: float
    #: The end of the grid that an alpha is at, if any; better ones may lie beyond.
    at_end: Literal["lower", "upper"] | None
    #: The alpha of each target, if they differ.
    own_alphas: tuple[float, ...] | None = None

    @property
    def penalty(self) -> float | tuple[float, ...]:
        """The alpha in use: one number, or one for each target."""
        return self.alpha if self.own_alphas is None else self.own_alphas


_DERIVED = ("mean", "standard_error")  # stored for other programs
_STORED = ("alphas", "n_components", "errors", *_DERIVED, "weights", "target_variance")


@frozen(eq=False)
class CrossValidation:
    """Validation errors of every split, size, alpha and target.

    A size is a number of components. Methods raise InvalidParameterError if a size is
    not in the table, or if they need standard errors and there is only one split.
    """

    folds: folding.Folds
    #: shape (n_sizes,), ascending
    n_components: IntArray
    #: shape (n_alphas,), ascending
    alphas: FloatArray
    #: Mean squared validation errors in the targets' units squared, shape (n_splits,
    #: n_sizes, n_alphas, n_targets). An error below its rounding error is replaced by
    #: that.
    errors: FloatArray
    #: Sum of the validation rows' weights in each split, shape (n_splits,).
    weights: FloatArray
    #: Each target's variance over all rows, 0 for a constant one; without an intercept
    #: its mean square.
    target_variance: FloatArray
    #: Mean leverage of the rows trained on, shape (n_splits, n_sizes, n_alphas):
    #: degrees of freedom over rows, 1 if they are interpolated. None after conjugate
    #: gradients.
    leverages: FloatArray | None = None

    __repr__ = short_repr

    @property
    def units(self) -> rule.HeldOutUnits:
        """How splits count in means."""
        return rule.HeldOutUnits.of_splits(self.weights)

    @property
    def mean(self) -> FloatArray:
        """Mean squared error over all rows, shape (n_sizes, n_alphas, n_targets)."""
        return self.units.mean(self.errors)

    @property
    def standard_error(self) -> FloatArray:
        """Standard error of `mean`, by how far splits differ; NaN for a single split.

        sqrt(Σ w·(m − mean)² / ((K − 1)·Σ w)) over K splits: with equal weights the
        standard deviation of the splits' errors over √K.
        """
        return self.units.standard_error(self.errors)

    @property
    def scores(self) -> FloatArray:
        """Errors as shares of variance, for choices; shape (n_sizes, n_alphas)."""
        return self.units.mean(self.split_scores())

    @property
    def score_standard_errors(self) -> FloatArray:
        """Standard errors of `scores`, shape (n_sizes, n_alphas)."""
        return self.units.standard_error(self.split_scores())

    @property
    def best(self) -> Choice:
        """The smallest score, with the fewest components and the largest alpha."""
        return self._fewest_within(self.scores.min() + grids.RESOLUTION)

    def fewest_components(self) -> Choice:
        """Return the smallest size within one standard error of the best of all."""
        self._check_has_standard_errors()
        best = self.best
        # even with a standard error of 0 the limit must include the best and its ties
        slack = max(best.standard_error, grids.RESOLUTION)
        return self._fewest_within(best.score + slack)

    def _fewest_within(self, limit: float) -> Choice:
        size_index = int(np.argmax(self.scores.min(axis=1) <= limit))
        return self.choose(int(self.n_components[size_index]))

    def choose(self, n_components: int, by: AlphaRule = "best") -> Choice:
        """Return one size's alpha by a rule; if scores are equal, the largest alpha.

        "safest" is for rows without noise, whose errors barely change down to alphas at
        the rounding error. If rows have a mean leverage above 0.9 at the best alpha,
        the largest alpha within a tenth of a standard error replaces it: nothing is
        lost, and the coefficients depend less on chance. "one_standard_error" takes the
        largest alpha within one standard error.
        """
        if by == "one_standard_error":
            self._check_has_standard_errors()
        size_index = self.index_of(n_components)
        errors = self.split_scores()[:, size_index]
        slack = self._slack(n_components, by)
        return self._choice(size_index, self.units.largest_as_good(errors, slack))

    def _slack(self, n_components: int, by: AlphaRule) -> rule.Slack:
        def slack(errors: FloatArray, best: int) -> float:
            share = 0.0
            if by == "one_standard_error":
                share = 1.0
            elif by == "safest":
                leverage = self.mean_leverage(n_components, self.alphas[best])
                share = AS_GOOD if leverage > INTERPOLATING else 0.0
            standard_error = self.units.standard_error(errors[:, best])
            return share * float(np.nan_to_num(standard_error))

        return slack

    def mean_leverage(self, n_components: int, alpha: float) -> float:
        """Return the mean leverage of the rows trained on; 0 if it is not known."""
        if self.leverages is None:
            return 0.0
        size_index = self.index_of(n_components)
        alpha_index = int(np.searchsorted(self.alphas, alpha))
        return float(self.leverages[:, size_index, alpha_index].mean())

    def at_alphas(
        self, n_components: int, alphas: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return each target's mean squared error at its alpha, and standard errors."""
        size_index = self.index_of(n_components)
        entries = np.searchsorted(self.alphas, alphas), np.arange(len(alphas))
        return self.mean[size_index][entries], self.standard_error[size_index][entries]

    def with_own_alphas(
        self, choice: Choice, *, always: bool, by: AlphaRule = "best"
    ) -> Choice:
        """Return a choice with an alpha for each target; see `rule.HeldOutUnits`."""
        shared = int(np.argmin(np.abs(self.alphas - choice.alpha)))
        varying = np.flatnonzero(self.target_variance > 0.0)
        errors = self.errors[:, self.index_of(choice.n_components)][..., varying]
        indices = np.full(len(self.target_variance), shared)
        indices[varying] = self.units.own_alphas(
            errors / self.target_variance[varying],
            shared,
            self._slack(choice.n_components, by),
            always=always,
        )
        if (indices == shared).all():
            return choice
        return self.choice_at(choice.n_components, indices, shared)

    def choice_at(
        self, n_components: int, indices: IndexArray, shared: int | None = None
    ) -> Choice:
        """Return the choice of one size and of the targets' alphas at `indices`.

        `shared` is the index of the alpha of targets without their own; by default the
        most frequent one.
        """
        size_index = self.index_of(n_components)
        if shared is None:
            shared = int(np.bincount(indices).argmax())
        if (indices == shared).all():
            return self._choice(size_index, shared)
        score, standard_error = self.score_of(size_index, indices)
        ends = [
            grids.end_of_grid(index, len(self.alphas))
            for index in indices[self.target_variance > 0.0].tolist()
        ]
        return Choice(
            n_components=n_components,
            alpha=float(self.alphas[shared]),
            score=score,
            standard_error=standard_error,
            at_end=grids.worst_end(ends),
            own_alphas=tuple(self.alphas[indices].tolist()),
        )

    def score_of(self, size_index: int, indices: IndexArray) -> tuple[float, float]:
        """Return the score of one size with alphas at `indices`, and its std error."""
        errors = self.errors[:, size_index, indices, np.arange(len(indices))]
        shares = grids.shares_of_variance(errors, self.target_variance)
        standard_error = float(self.units.standard_error(shares))
        return float(self.units.mean(shares)), standard_error

    def from_alpha(self, least: float) -> Self:
        """Return the table without alphas below `least`; the largest always stays."""
        first = min(int(np.searchsorted(self.alphas, least)), len(self.alphas) - 1)
        leverages = None if self.leverages is None else self.leverages[:, :, first:]
        return replace(
            self,
            alphas=self.alphas[first:],
            errors=self.errors[:, :, first:],
            leverages=leverages,
        )

    def to_arrays(self) -> dict[str, AnyArray]:
        arrays = {f"cv_{name}": getattr(self, name) for name in _STORED}
        if self.leverages is not None:
            arrays["cv_leverages"] = self.leverages
        return arrays

    @classmethod
    def from_arrays(cls, folds: folding.Folds, arrays: Arrays) -> Self:
        stored = {
            name: np.asarray(arrays[f"cv_{name}"])
            for name in _STORED
            if name not in _DERIVED
        }
        return cls(folds, **stored, leverages=arrays.get("cv_leverages"))

    def split_scores(self) -> FloatArray:
        return grids.shares_of_variance(self.errors, self.target_variance)

    def _choice(self, size_index: int, alpha_index: int) -> Choice:
        n_components = int(self.n_components[size_index])
        end = grids.end_of_grid(alpha_index, len(self.alphas))
        return Choice(
            n_components,
            float(self.alphas[alpha_index]),
            float(self.scores[size_index, alpha_index]),
            float(self.score_standard_errors[size_index, alpha_index]),
            end,
        )

    def index_of(self, n_components: int) -> int:
        indices = np.flatnonzero(self.n_components == n_components)
        if not len(indices):
            raise InvalidParameterError(
                f"`n_components` is {n_components}; expected one of"
                f" {self.n_components.tolist()}"
            )
        return int(indices[0])

    def _check_has_standard_errors(self) -> None:
        if len(self.weights) < 2:
            raise InvalidParameterError(
                f"{self.folds} give one split, whose error has no standard error; use"
                " more folds"
            )
