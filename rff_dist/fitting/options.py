"""What a fit is to use: kernel, features, penalty and folds, each option declared and checked once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

import numpy as np
from annotated_types import Ge, Le, Len

from rff_dist import fields
from rff_dist.checks import check_name, check_positive
from rff_dist.errors import InvalidParameterError
from rff_dist.features import feature_options
from rff_dist.features.feature_options import FeatureKind, FeatureOptions, Scale
from rff_dist.fields import Count, Counts, NonNegative, Positive, Positives
from rff_dist.typing import AnyArray, FloatArray, frozen

if TYPE_CHECKING:
    from rff_dist.data import folding
    from rff_dist.kernels import base
    from rff_dist.selection.grids import PerTarget

type Alpha = float | str | Sequence[float] | AnyArray
type Components = int | str | Sequence[int]
type KernelName = str | base.Kernel
type AlphaPerTarget = PerTarget
type CV = int | folding.Folds | None

SOLVERS = ("auto", "direct", "pcg")
ALPHA_NAMES = ("auto", "gcv", "evidence", "cv", "cv-1se")
CV_NAMES = ("auto", "cv", "cv-1se")  # the names that k-fold cross-validation can serve


MAX_ALPHAS = 10_000
_GRID = f"LOW:HIGH:N with 0 < LOW < HIGH and N from 2 to {MAX_ALPHAS}, such as 1e-6:1e3:30"


def read_grid(text: str) -> list[float]:
    """Read a range LOW:HIGH:N, of N values that are evenly spaced on a logarithmic scale."""
    low, high, count = map(float, text.split(":"))
    if not (0 < low < high < math.inf and count.is_integer() and 2 <= count <= MAX_ALPHAS):
        raise ValueError(text)
    return np.geomspace(low, high, int(count)).tolist()


type Grid = Annotated[list[Positive], Len(1), fields.Reader(read_grid, _GRID)]


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
            f"`alpha` is {alpha!r}; expected 'auto', 'gcv', 'evidence', 'cv', 'cv-1se', a finite "
            "number of at least 0, or a list of such numbers above 0"
        )


def read_widths(n_components: Components, map: str, features: FeatureKind) -> list[int]:
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
        raise InvalidParameterError("`n_components` is empty; expected at least one number of components")
    return sorted({feature_options.check_width(width, map, features) for width in widths})


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


@frozen
class Penalty:
    """How the penalty is found, and whether an intercept is fitted too.

    `alpha`: "cv" takes the alpha with the least k-fold error, and "cv-1se" the largest one within one
      standard error of it; see `solve_folds`. "gcv" (generalised cross-validation) and "evidence" (marginal
      likelihood) need no folds, see `solve`. "auto" is "cv" with as many folds as memory holds, or "gcv" if
      it holds none; few rows are left out one by one. Several numbers: the folds choose among them.
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
        given: object = self.per_target
        if not isinstance(given, bool | np.bool_) and not (isinstance(given, str) and given == "auto"):
            raise InvalidParameterError(f"`alpha_per_target` is {given!r}; expected True, False or 'auto'")
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
    def by_folds(self) -> bool:
        """Whether k-fold cross-validation may choose alpha: by one of its names, or among several numbers."""
        return self.alpha in CV_NAMES if isinstance(self.alpha, str) else not is_one_alpha(self.alpha)

    @property
    def grid(self) -> FloatArray | None:
        """The alphas to choose from, or the given one; None for the whole range."""
        alphas = self.alphas if isinstance(self.alpha, str) else self.alpha
        return None if alphas is None else np.atleast_1d(np.asarray(alphas, np.float64))


@fields.group
class RidgeOptions(FeatureOptions):
    """What a ridge regression is to use; cross-validation chooses what is "auto".

    Raises InvalidParameterError if a value is out of range, or values exclude each other.
    """

    panel: ClassVar[str] = "Regression"

    kernel: KernelName = fields.like(  # type: ignore[assignment]  # a name more, as those below
        FeatureOptions,
        "kernel",
        default="auto",
        more=" auto: cross-validation compares Gaussian, Matérn-3/2 and linear kernels and sums of them. "
        "With kernels that are products over the columns (laplacian, cauchy, sinc) `design` is iid or "
        "quasi-monte-carlo.",
        unit="auto|KERNEL",
    )
    features: FeatureKind = fields.like(
        FeatureOptions,
        "features",
        default="auto",
        more=" auto: cross-validation compares fourier and nystrom; nystrom up to 2,048 rows.",
        takes=Literal["auto", "fourier", "nystrom", "nystrom:k-means++", "nystrom:rpcholesky"],
        unit="auto|NAME",
    )
    n_components: Components = fields.like(  # type: ignore[assignment]
        FeatureOptions,
        "n_components",
        default="auto",
        more=" A regression's cost grows as D². auto: 2048, or fewer if rows are few or memory is short. "
        "Several numbers share one pass, and cross-validation takes the smallest within one standard error "
        "of the best.",
        takes=Literal["auto"] | Count | Counts,
        unit="auto|D|D1,D2,…",
    )
    length_scale: Scale = fields.option(
        f"{feature_options.LENGTH_SCALE}median: the median distance between rows. evidence: one for each "
        "column, tuned on a sample of rows by the marginal likelihood. auto: cross-validation compares both.",
        default="auto",
        unit="auto|median|evidence|L|L1,L2,…",
        takes=Literal["auto", "median", "evidence"] | Positive | Positives,
    )
    precision: str = fields.like(
        FeatureOptions,
        "precision",
        default="auto",
        more=" auto: standard, then another pass with high, in up to 1.4 times the time, if coefficients are "
        "so large that rounding shows.",
        takes=Literal["auto", "standard", "high"],
    )
    standardize: bool | str = fields.like(FeatureOptions, "standardize", default="auto")
    alpha: Alpha = fields.option(
        "Penalty alpha of ‖y − Zw‖² + alpha·‖w‖²: a number, several for cross-validation to choose from, or "
        "the name of a criterion. cv: the least k-fold error. cv-1se: the largest alpha within one standard "
        "error of that. gcv: generalised cross-validation. evidence: the marginal likelihood. auto: cv, or "
        "gcv if memory does not hold the sums of the folds; up to 500 rows, the largest alpha within one "
        "standard error of the least leave-one-out error.",
        default="auto",
        unit="auto|A|A1,A2,…",
        takes=Literal["auto", "cv", "cv-1se", "gcv", "evidence"] | NonNegative | Positives,
    )
    alphas: Sequence[float] | None = fields.option(
        "Values that a criterion chooses alpha from. LOW:HIGH:N: N values, evenly spaced on a logarithmic "
        "scale. By default the whole range.",
        default=None,
        unit="LOW:HIGH:N|A1,A2,…",
        takes=Grid | None,
    )
    fit_intercept: bool = fields.option("Fit an intercept, which is not penalised.", default=True)
    alpha_per_target: AlphaPerTarget = fields.option(
        "Alpha of several targets. auto, the default: one for all, except for targets whose error falls "
        "with an alpha of their own. true: one for each target. false: one for all.",
        default="auto",
        takes=bool | Literal["auto"],
    )
    conformal: bool | str = fields.option(
        "Measure the cross-validated residuals in one more pass, for prediction intervals. normalized: their "
        "width follows the residuals near each row. Uses the default folds if none are given.",
        default=False,
        takes=bool | Literal["normalized"],
    )
    solver: str = fields.option(
        "Solver. direct: sum up Z'Z and factorise it. pcg: conjugate gradients, in passes that never make "
        "Z'Z; the model has no sums. auto: pcg for one given `alpha` if memory does not hold Z'Z or it costs "
        "far more, else direct.",
        default="auto",
        takes=Literal["auto", "direct", "pcg"],
    )
    effort: int = fields.option(
        "How much is tried where options leave a choice. 1: one pass with the median length scale. 5: with "
        "up to 4,096 features and five folds.",
        default=3,
        unit="1-5",
        takes=Annotated[int, Ge(1), Le(5)],
    )
    time_limit: float | None = fields.option(
        "Seconds after which nothing further is tried; the number of features is then what the time that is "
        "left is enough for. Rows are read at least twice. By default there is no limit.",
        default=None,
        unit="SECONDS",
        takes=Positive | None,
    )
    sample_weight_kind: str = fields.option(
        "Meaning of the sample weights. precision: how certain a row's target is. frequency: how many times "
        "the row counts.",
        default="precision",
        takes=Literal["precision", "frequency"],
    )
    #: Folds that choices are made by, each summed separately in the same pass; None takes `default_folds`.
    cv: CV = None

    def __post_init__(self) -> None:
        from rff_dist.frequencies import designs
        from rff_dist.statistics import inspection, passes

        object.__setattr__(self, "length_scale", feature_options.as_length_scale(self.length_scale))
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
        check_name(self.precision, ("auto", *feature_options.PRECISIONS), "precision")
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
            feature_options.find_features(kind)
            if not isinstance(self.n_components, str) or self.n_components != "auto":
                read_widths(self.n_components, "phases", kind)
        if self.design != "auto":
            designs.find_design(self.design)

    @property
    def penalty(self) -> Penalty:
        return Penalty(self.alpha, self.alphas, self.fit_intercept, self.alpha_per_target)

    @property
    def several_widths(self) -> bool:
        """Whether `n_components` are several numbers rather than "auto" or one."""
        return not isinstance(self.n_components, str) and np.ndim(self.n_components) > 0

    @property
    def needs_statistics(self) -> str | None:
        """The reason why the fit needs sums of Z'Z; None if it does not."""
        named = isinstance(self.alpha, str)
        summed = self.alpha not in ("auto", "cv") if named else not np.all(np.asarray(self.alpha) > 0)
        reasons = {
            f"`alpha` is {self.alpha!r}": summed,
            f"`n_components` is {self.n_components!r}": self.several_widths,
            f"`conformal` is {self.conformal!r}": bool(self.conformal),
        }
        return next((words for words, is_so in reasons.items() if is_so), None)

    @property
    def kinds(self) -> list[FeatureKind]:
        from rff_dist.kernels import explicit

        if not isinstance(self.features, str) or self.features != "auto":
            return [self.features]
        # features of a linear kernel are exact
        return ["fourier"] if isinstance(self.kernel, explicit.Linear) else ["fourier", "nystrom"]
