"""What a fit is to use: kernel, features, penalty and folds, each option checked once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rff_dist.checks import check_name, check_positive
from rff_dist.data import folding
from rff_dist.errors import InvalidParameterError
from rff_dist.features import draw, nystrom
from rff_dist.frequencies import designs
from rff_dist.kernels import base, explicit
from rff_dist.selection.grids import PerTarget, check_per_target
from rff_dist.statistics import inspection, passes
from rff_dist.typing import FloatArray

type Alpha = float | str | Sequence[float] | NDArray[Any]
type Components = int | str | Sequence[int]

SOLVERS = ("auto", "direct", "pcg")
ALPHA_NAMES = ("auto", "gcv", "evidence", "cv", "cv-1se", "press")
CV_NAMES = ("auto", "cv", "cv-1se")  # the names that k-fold cross-validation can serve


def is_one_alpha(alpha: Alpha) -> bool:
    """Return whether `alpha` is one number, so that one Cholesky factorisation solves the job."""
    return not isinstance(alpha, str) and np.ndim(alpha) == 0


def check_alpha(alpha: Any) -> None:
    """Check that alpha is "auto", "gcv", "evidence", a finite number of at least 0, or several."""
    if isinstance(alpha, str) and alpha in ALPHA_NAMES:
        return
    values = np.asarray(alpha)
    numbers = values.dtype.kind in "iuf" and values.ndim <= 1 and values.size > 0
    if not numbers or not ((values >= 0) & (values < math.inf)).all() or (values.ndim and not values.all()):
        raise InvalidParameterError(
            f"`alpha` is {alpha!r}; expected 'auto', 'gcv', 'evidence', 'cv', 'cv-1se', 'press', a finite "
            "number of at least 0, or a list of such numbers above 0"
        )


def are_several(n_components: Components) -> bool:
    """Return whether `n_components` are several numbers rather than "auto" or one."""
    return not isinstance(n_components, str) and np.ndim(n_components) > 0


def read_widths(n_components: Components, map: str, features: str | nystrom.Nystrom) -> list[int]:
    """Return the numbers of components that a fit looks at, ascending.

    Raises InvalidParameterError if there is none, or one is no integer of at least 1, or odd for Fourier
      features in pairs.
    """
    if isinstance(n_components, str):
        raise InvalidParameterError(
            f"`n_components` is {n_components!r}; expected 'auto', an integer, or several"
        )
    widths = [n_components] if np.ndim(n_components) == 0 else list(cast("Sequence[int]", n_components))
    if not widths:
        raise InvalidParameterError("`n_components` is empty; expected at least one width")
    return sorted({draw.check_width(width, map, features) for width in widths})


def check_conformal(conformal: bool | str, folds: folding.Folds | None) -> None:
    """Check that intervals of this kind can be made, before a pass over the data.

    Raises InvalidParameterError if `conformal` is neither a bool nor "normalized", or if it is "normalized"
      and a split trains only on folds that are never held out: its deviations would have no residuals.
    """
    if not isinstance(conformal, str) and np.asarray(conformal).dtype == bool:
        return
    if conformal != "normalized":
        raise InvalidParameterError(f"`conformal` is {conformal!r}; expected True, False or 'normalized'")
    if folds is None:
        return
    held_out = {fold for _, fold in folds.splits}
    if not all(held_out & set(trained) for trained, _ in folds.splits):
        raise InvalidParameterError(
            f"`conformal` is 'normalized', but a split of {folds} trains on rows that are never held out; "
            "take HashFolds or GroupFolds, or conformal=True"
        )


@dataclass(frozen=True, slots=True)
class Penalty:
    """How the penalty is found, and whether an intercept is fitted too.

    `alpha`: "cv" takes the alpha with the least k-fold error, and "cv-1se" the largest one within one
      standard error of it; see `solve_folds`. "gcv" (generalised cross-validation) and "evidence" (marginal
      likelihood) need no folds, see `solve`. "press" takes the least leave-one-out error, by another pass.
      "auto" is "cv" with as many folds as memory holds, or "press" if it holds none; few rows are left out
      one by one. Several numbers: the folds choose among them.
    `alphas`: the values that a named `alpha` searches; the whole range by default.
    `fit_intercept`: the intercept is not penalised.
    `per_target`: whether each target gets an alpha of its own, chosen by its errors. "auto" does so where it
      saves more than 1 % of a target's error and, with folds, more than the standard error of that saving;
      the other targets share one, which costs less.
    Raises InvalidParameterError if a number is out of range, or `alphas` are given together with numbers.
    """

    alpha: Alpha = "auto"
    alphas: Sequence[float] | None = None
    fit_intercept: bool = True
    per_target: PerTarget = "auto"

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_per_target(self.per_target)
        if self.alphas is not None:
            check_alpha(self.alphas)
            if not isinstance(self.alpha, str):
                raise InvalidParameterError(
                    f"`alpha` is {self.alpha!r} together with `alphas`; give one of them"
                )

    @property
    def named(self) -> str | None:
        """The name of the method that chooses alpha; None if numbers are given."""
        return self.alpha if isinstance(self.alpha, str) else None

    @property
    def grid(self) -> FloatArray | None:
        """The alphas to choose from, or the given one; None for the whole range."""
        alphas = self.alphas if isinstance(self.alpha, str) else self.alpha
        return None if alphas is None else np.atleast_1d(np.asarray(alphas, np.float64))


@dataclass(frozen=True, slots=True, kw_only=True)
class RidgeOptions:
    """What a fit is to use; "auto" leaves a choice to the folds.

    `kernel`: "auto" compares Gaussian and Matérn-3/2 kernels, a linear one, and sums of these.
    `length_scale`: "auto" compares length scales tuned by the evidence, one per column, with multiples of the
      median distance between rows. None keeps the kernel's own.
    `features`: "auto" compares Fourier and Nyström features.
    `n_components`: D. Cost grows with its square, error falls as 1/√D. If several are given, the folds take
      the smallest within one standard error of the best, from the same pass; see `solve_folds`.
    `alpha`, `alphas`, `fit_intercept`, `alpha_per_target`: see `Penalty`.
    `cv`: the folds that choices are made by. Each is summed separately, in the same pass. None takes
      `default_folds` if folds are needed.
    `conformal`: whether one more pass counts how far off held-out rows are, for intervals; see
      `hold_out_scores`.
    `solver`: "direct" sums up Z'Z and factors it. "pcg" solves by passes of Z'(Zv), keeps no statistics, and
      chooses alpha by the rows of one fold. "auto" goes by `fitting.plan.choose_solver`.
    `sample_weight_kind`: "precision" if weights say how precise a row is, "frequency" if they are whole
      numbers that say how many times it occurs.
    `design`: "auto" is each kernel's own; see `design_for`.
    `map`: see `draw_feature_map`; "auto" takes the real map of lower variance.
    `precision`: {"auto", "standard", "high"}, of Fourier features; see `draw_feature_map`. "auto" begins with
      "standard", and takes "high" in another pass if coefficients are so large that rounding features to 15
      bits shows.
    `standardize`: {"auto", "rank"} or bool. How input columns are transformed first; see `standardizer_for`.
    `seed`: seed of frequencies and samples, the same for all candidates.
    `effort`: 1 to 5, how much is tried where the options leave a choice; see `ridge.budget`.
    `time_limit`: seconds after which nothing further is tried; fewer components then end the fit in time.
      Rows are read at least twice whatever it is.
    """

    kernel: str | base.Kernel = "auto"
    length_scale: str | base.LengthScale | None = "auto"
    features: str | nystrom.Nystrom = "auto"
    n_components: Components = "auto"
    alpha: Alpha = "auto"
    alphas: Sequence[float] | None = None
    cv: int | folding.Folds | None = None
    conformal: bool | str = False
    alpha_per_target: PerTarget = "auto"
    solver: str = "auto"
    sample_weight_kind: str = "precision"
    design: str | designs.Design = "auto"
    map: str = "pairs"
    precision: str = "auto"
    standardize: bool | str = "auto"
    fit_intercept: bool = True
    seed: int = 0
    effort: int = 3
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.effort, bool) or self.effort not in range(1, 6):
            raise InvalidParameterError(f"`effort` is {self.effort!r}; expected a whole number from 1 to 5")
        if self.time_limit is not None:
            check_positive(self.time_limit, "time_limit")
            if self.n_components != "auto":
                raise InvalidParameterError(
                    f"`time_limit` is {self.time_limit!r}, but `n_components` is {self.n_components!r}: only "
                    "'auto' can take fewer; leave one of them out"
                )
        _ = self.penalty  # checks itself
        check_name(self.precision, ("auto", *draw.PRECISIONS), "precision")
        inspection.check_standardize(self.standardize)
        passes.check_weight_kind(self.sample_weight_kind)
        check_name(self.solver, SOLVERS, "solver")
        if self.solver == "pcg" and (reason := self.needs_statistics) is not None:
            raise InvalidParameterError(
                f"`solver` is 'pcg', which keeps no sums of Z'Z, but {reason} needs them; expected 'auto', "
                "'cv' or numbers above 0 as `alpha`, one `n_components` and no `conformal`. Or take "
                "solver='direct'"
            )
        for kind in self.kinds:
            draw.find_features(kind)
            if not isinstance(self.n_components, str) or self.n_components != "auto":
                read_widths(self.n_components, "phases", kind)
        if self.design != "auto":
            designs.find_design(self.design)

    @property
    def penalty(self) -> Penalty:
        return Penalty(self.alpha, self.alphas, self.fit_intercept, self.alpha_per_target)

    @property
    def needs_statistics(self) -> str | None:
        """The reason why the fit needs sums of Z'Z; None if it does not."""
        named = isinstance(self.alpha, str)
        if self.alpha not in ("auto", "cv") if named else not np.all(np.asarray(self.alpha) > 0):
            return f"`alpha` is {self.alpha!r}"
        asked = {
            f"`n_components` is {self.n_components!r}": are_several(self.n_components),
            f"`conformal` is {self.conformal!r}": bool(self.conformal),
        }
        return next((words for words, is_so in asked.items() if is_so), None)

    @property
    def kinds(self) -> list[str | nystrom.Nystrom]:
        if not isinstance(self.features, str) or self.features != "auto":
            return [self.features]
        # features of a linear kernel are exact
        return ["fourier"] if isinstance(self.kernel, explicit.Linear) else ["fourier", "nystrom"]
