"""The options of a regression: kernel, features, penalty and folds.

A user's values go in, as Python objects or texts; a `RidgeOptions` whose values are in
range and fit together comes out, before any data are opened. Each option is declared
once here: command line, configuration files, Prefect's forms and estimators read its
type, default and help from this declaration.
"""

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

# Options' annotations are evaluated, but an alias of `type` is not: what it stands for
# is imported for type checkers only.
type Alpha = float | str | Sequence[float] | AnyArray
type Components = int | str | Sequence[int]
type KernelName = str | base.Kernel
type AlphaPerTarget = PerTarget
type CV = int | folding.Folds | None

SOLVERS = ("auto", "direct", "pcg")
#: Criteria by which alpha is chosen, and those of them that k-fold cross-validation
#: can serve.
ALPHA_NAMES = ("auto", "gcv", "evidence", "cv", "cv-1se")
CV_NAMES = ("auto", "cv", "cv-1se")

MAX_ALPHAS = 10_000
_GRID = (
    f"LOW:HIGH:N with 0 < LOW < HIGH and N from 2 to {MAX_ALPHAS}, such as 1e-6:1e3:30"
)


def read_grid(text: str) -> list[float]:
    """Read a range LOW:HIGH:N of N values, evenly spaced on a logarithmic scale."""
    low, high, count = map(float, text.split(":"))
    is_range = 0 < low < high < math.inf
    is_count = count.is_integer() and 2 <= count <= MAX_ALPHAS
    if not (is_range and is_count):
        raise ValueError(text)
    return np.geomspace(low, high, int(count)).tolist()


type Grid = Annotated[list[Positive], Len(1), fields.Reader(read_grid, _GRID)]


def is_one_alpha(alpha: Alpha) -> bool:
    """Return whether one number is given, so that one factorisation solves the job."""
    return not isinstance(alpha, str) and np.ndim(alpha) == 0


def check_alpha(alpha: Any) -> None:
    """Check that alpha is a name, a finite number of at least 0, or several above 0."""
    if isinstance(alpha, str) and alpha in ALPHA_NAMES:
        return
    values = np.asarray(alpha)
    are_numbers = values.dtype.kind in "iuf" and values.ndim <= 1 and values.size > 0
    is_valid = are_numbers and bool(((values >= 0) & (values < math.inf)).all())
    has_zero_among_several = values.ndim > 0 and not values.all()
    if not is_valid or has_zero_among_several:
        raise InvalidParameterError(
            f"`alpha` is {alpha!r}; expected 'auto', 'gcv', 'evidence', 'cv', 'cv-1se',"
            " a finite number of at least 0, or a list of such numbers above 0"
        )


def read_n_components(
    n_components: Components, map_name: str, features: FeatureKind
) -> list[int]:
    """Return the numbers of components that a fit tries, ascending.

    Raises InvalidParameterError if there is none, or one is no integer of at least 1,
    or odd for Fourier features in pairs.
    """
    if isinstance(n_components, str):
        raise InvalidParameterError(
            f"`n_components` is {n_components!r}; expected 'auto', an integer, or"
            " several"
        )
    if np.ndim(n_components) == 0:
        n_components = [cast("int", n_components)]
    numbers = {
        feature_options.check_n_components(number, map_name, features)
        for number in cast("Sequence[int]", n_components)
    }
    if not numbers:
        raise InvalidParameterError(
            "`n_components` is empty; expected at least one number of components"
        )
    return sorted(numbers)


def check_penalty(
    alpha: Any, alphas: Sequence[float] | None, per_target: object
) -> None:
    """Check the options that make a `Penalty`."""
    check_alpha(alpha)
    is_auto = isinstance(per_target, str) and per_target == "auto"
    if not is_auto and not isinstance(per_target, bool | np.bool_):
        raise InvalidParameterError(
            f"`alpha_per_target` is {per_target!r}; expected True, False or 'auto'"
        )
    if alphas is not None:
        check_alpha(alphas)
        if not isinstance(alpha, str):
            raise InvalidParameterError(
                f"`alpha` is {alpha!r} together with `alphas`; give one of them"
            )


@frozen
class Penalty:
    """How the penalty alpha is found, and whether an intercept is fitted."""

    #: A number; several, among which the folds choose; or a criterion, as in the help
    #: of `RidgeOptions.alpha`. "gcv" and "evidence" need no folds.
    alpha: Alpha = "auto"
    #: The values that a criterion searches; by default the whole range.
    alphas: Sequence[float] | None = None
    #: The intercept is not penalised.
    fit_intercept: bool = True
    #: Whether each target has its own alpha. "auto": if that saves more than 1 % of a
    #: target's error and, with folds, more than the standard error of that saving; the
    #: other targets share one, which costs less.
    per_target: PerTarget = "auto"

    def __post_init__(self) -> None:
        check_penalty(self.alpha, self.alphas, self.per_target)

    @property
    def criterion(self) -> str | None:
        """The name of the method that chooses alpha; None if numbers are given."""
        return self.alpha if isinstance(self.alpha, str) else None

    @property
    def may_use_folds(self) -> bool:
        """Whether k-fold cross-validation may choose alpha."""
        if isinstance(self.alpha, str):
            return self.alpha in CV_NAMES
        return not is_one_alpha(self.alpha)

    @property
    def grid(self) -> FloatArray | None:
        """The alphas to choose from, or the given one; None for the whole range."""
        alphas = self.alphas if isinstance(self.alpha, str) else self.alpha
        return None if alphas is None else np.atleast_1d(np.asarray(alphas, np.float64))


@fields.group
class RidgeOptions(FeatureOptions):
    """The options of a ridge regression; cross-validation chooses what is "auto".

    Raises InvalidParameterError if a value is out of range, or values exclude each
    other.
    """

    panel: ClassVar[str] = "Regression"

    kernel: KernelName = fields.like(  # type: ignore[assignment]  # also takes "auto", as those below
        FeatureOptions,
        "kernel",
        default="auto",
        more=(
            " auto: cross-validation compares Gaussian, Matérn-3/2 and linear kernels"
            " and sums of them. With kernels that are products over the columns"
            " (laplacian, cauchy, sinc) `design` is iid or quasi-monte-carlo."
        ),
        placeholder="auto|KERNEL",
    )
    features: FeatureKind = fields.like(
        FeatureOptions,
        "features",
        default="auto",
        more=(
            " auto: cross-validation compares fourier and nystrom; nystrom up to 2,048"
            " rows."
        ),
        takes=Literal["auto", "fourier", "nystrom", "nystrom:k-means++"],
        placeholder="auto|NAME",
    )
    n_components: Components = fields.like(  # type: ignore[assignment]
        FeatureOptions,
        "n_components",
        default="auto",
        more=(
            " A regression's cost grows as D². auto: 2048, or fewer if rows are few or"
            " memory is short. Several numbers share one pass, and cross-validation"
            " takes the smallest within one standard error of the best."
        ),
        takes=Literal["auto"] | Count | Counts,
        placeholder="auto|D|D1,D2,…",
    )
    length_scale: Scale = fields.option(
        f"{feature_options.LENGTH_SCALE}median: the median distance between rows."
        " evidence: one for each column, tuned on a sample of rows by the marginal"
        " likelihood. auto: cross-validation compares both.",
        default="auto",
        placeholder="auto|median|evidence|L|L1,L2,…",
        takes=Literal["auto", "median", "evidence"] | Positive | Positives,
    )
    precision: str = fields.like(
        FeatureOptions,
        "precision",
        default="auto",
        more=(
            " auto: standard, then another pass with high, in up to 1.4 times the time,"
            " if coefficients are so large that rounding shows."
        ),
        takes=Literal["auto", "standard", "high"],
    )
    standardize: bool | str = fields.like(FeatureOptions, "standardize", default="auto")
    alpha: Alpha = fields.option(
        "Penalty alpha of ‖y − Zw‖² + alpha·‖w‖²: a number, several for"
        " cross-validation to choose from, or the name of a criterion. cv: the smallest"
        " k-fold error. cv-1se: the largest alpha within one standard error of that."
        " gcv: generalised cross-validation. evidence: the marginal likelihood. auto:"
        " cv, or gcv if memory does not hold the sums of the folds; up to 500 rows, the"
        " largest alpha within one standard error of the smallest leave-one-out error.",
        default="auto",
        placeholder="auto|A|A1,A2,…",
        takes=Literal["auto", "cv", "cv-1se", "gcv", "evidence"]
        | NonNegative
        | Positives,
    )
    alphas: Sequence[float] | None = fields.option(
        "Values that a criterion chooses alpha from. LOW:HIGH:N: N values, evenly"
        " spaced on a logarithmic scale. By default the whole range.",
        default=None,
        placeholder="LOW:HIGH:N|A1,A2,…",
        takes=Grid | None,
    )
    fit_intercept: bool = fields.option(
        "Fit an intercept, which is not penalised.", default=True
    )
    alpha_per_target: AlphaPerTarget = fields.option(
        "Alpha of several targets. auto, the default: one for all, except for targets"
        " whose error falls with their own alpha. true: one for each target."
        " false: one for all.",
        default="auto",
        takes=bool | Literal["auto"],
    )
    solver: str = fields.option(
        "Solver. direct: sum up Z'Z and factorise it. pcg: conjugate gradients, in"
        " passes that never make Z'Z; the model has no sums. auto: pcg for one given"
        " `alpha` if memory does not hold Z'Z or it costs far more, else direct.",
        default="auto",
        takes=Literal["auto", "direct", "pcg"],
    )
    effort: int = fields.option(
        "How much is tried where options leave a choice. 1: one pass with the median"
        " length scale. 2: kernels tuned by the evidence are compared. 3: with 4,096 to"
        " 8,192 features and five folds.",
        default=2,
        placeholder="1-3",
        takes=Annotated[int, Ge(1), Le(3)],
    )
    time_limit: float | None = fields.option(
        "Seconds after which nothing further is tried; the number of features is then"
        " chosen to fit the remaining time. Rows are read at least twice. By"
        " default there is no limit.",
        default=None,
        placeholder="SECONDS",
        takes=Positive | None,
    )
    sample_weight_kind: str = fields.option(
        "Meaning of the sample weights. precision: how certain a row's target is."
        " frequency: how many times the row counts.",
        default="precision",
        takes=Literal["precision", "frequency"],
    )
    #: Folds of cross-validation, each summed separately in the same pass; by default
    #: `default_folds`.
    cv: CV = None

    def __post_init__(self) -> None:
        from rff_dist.frequencies import designs
        from rff_dist.statistics import passes, standardizing

        object.__setattr__(
            self, "length_scale", feature_options.as_length_scale(self.length_scale)
        )
        if isinstance(self.effort, bool) or self.effort not in range(1, 4):
            raise InvalidParameterError(
                f"`effort` is {self.effort!r}; expected a whole number from 1 to 3"
            )
        if self.time_limit is not None:
            check_positive(self.time_limit, "time_limit")
            if not self.chooses_n_components:
                raise InvalidParameterError(
                    f"`time_limit` is {self.time_limit!r}, but `n_components` is"
                    f" {self.n_components!r}: only 'auto' can take fewer; leave one of"
                    " them out"
                )
        check_penalty(self.alpha, self.alphas, self.alpha_per_target)
        check_name(self.precision, ("auto", *feature_options.PRECISIONS), "precision")
        standardizing.check_standardize(self.standardize)
        passes.check_weight_kind(self.sample_weight_kind)
        check_name(self.solver, SOLVERS, "solver")
        if self.solver == "pcg" and self.reason_for_sums is not None:
            raise InvalidParameterError(
                "`solver` is 'pcg', which keeps no sums of Z'Z, but"
                f" {self.reason_for_sums} needs"
                " them; expected 'auto', 'cv' or numbers above 0 as `alpha`, and one"
                " `n_components`. Or take solver='direct'"
            )
        for kind in self.kinds:
            feature_options.find_nystrom(kind)  # raises for an unknown name
            if not self.chooses_n_components:
                read_n_components(self.n_components, "phases", kind)
        if self.design != "auto":
            designs.find_design(self.design)  # raises for an unknown name
        feature_options.refuse_design_of_nystrom(self.design, self.kinds[0])

    @property
    def penalty(self) -> Penalty:
        return Penalty(
            self.alpha, self.alphas, self.fit_intercept, self.alpha_per_target
        )

    @property
    def chooses_n_components(self) -> bool:
        """Whether the number of components is chosen by rows, memory and errors."""
        return isinstance(self.n_components, str) and self.n_components == "auto"

    @property
    def has_several_n_components(self) -> bool:
        """Whether several numbers of components are given to choose from."""
        return not isinstance(self.n_components, str) and np.ndim(self.n_components) > 0

    @property
    def reason_for_sums(self) -> str | None:
        """The option that makes the fit need sums of Z'Z; None if it does not."""
        if isinstance(self.alpha, str):
            alpha_needs_sums = self.alpha not in ("auto", "cv")
        else:
            alpha_needs_sums = not np.all(np.asarray(self.alpha) > 0)
        if alpha_needs_sums:
            return f"`alpha` is {self.alpha!r}"
        if self.has_several_n_components:
            return f"`n_components` is {self.n_components!r}"
        return None

    @property
    def kinds(self) -> list[FeatureKind]:
        """The kinds of features to compare, the cheapest first; a given kind alone."""
        from rff_dist.kernels import explicit

        is_auto = isinstance(self.features, str) and self.features == "auto"
        if not is_auto:
            return [self.features]
        if isinstance(self.kernel, explicit.Linear):  # exact, so that kinds are alike
            return ["fourier"]
        return ["fourier", "nystrom"]
