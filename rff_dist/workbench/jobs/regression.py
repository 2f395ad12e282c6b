"""Options of a regression or a classifier: the penalty, the folds that choose it, and the classes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le, Len

from rff_dist import fields
from rff_dist.errors import InvalidParameterError
from rff_dist.fields import NonNegative, Positive, Positives

if TYPE_CHECKING:
    from rff_dist.data import folding

DEFAULT_FOLDS = 5
MAX_ALPHAS = 10_000
_GRID = f"LOW:HIGH:N with 0 < LOW < HIGH and N from 2 to {MAX_ALPHAS}, such as 1e-6:1e3:30"


def read_grid(text: str) -> list[float]:
    """Read a range LOW:HIGH:N, of N values in equal ratios."""
    low, high, count = map(float, text.split(":"))
    if not (0 < low < high < math.inf and count.is_integer() and 2 <= count <= MAX_ALPHAS):
        raise ValueError(text)
    import numpy as np

    return np.geomspace(low, high, int(count)).tolist()


type Grid = Annotated[list[Positive], Len(1), fields.Reader(read_grid, _GRID)]
type Effort = Annotated[int, Ge(1), Le(5)]
type FoldCount = Annotated[int, Ge(2), Le(1000)]  # `data.folding.MAX_FOLDS`, without its import

_ALPHA = (
    "Penalty alpha of ‖y − Zw‖² + alpha·‖w‖²: a number, several for cross-validation to choose from, or the "
    "name of a criterion. "
)


@fields.group
class PenaltyOptions:
    """The penalty of a regression, and its intercept."""

    panel: ClassVar[str] = "Regression"

    alpha: Literal["auto", "cv", "cv-1se", "gcv", "evidence", "press"] | NonNegative | Positives = (
        fields.option(
            _ALPHA
            + "cv: the least k-fold error. cv-1se: the largest alpha within one standard error of that. "
            "gcv: generalised cross-validation. evidence: the marginal likelihood. press: the least "
            "leave-one-out error, by another pass. auto: cv, or press if memory does not hold the sums of "
            "the folds; up to 500 rows, the largest alpha within one standard error of the least "
            "leave-one-out error.",
            "auto",
            unit="auto|A|A1,A2,…",
        )
    )
    alphas: Grid | None = fields.option(
        "Values that a criterion chooses alpha from. LOW:HIGH:N: N values in equal ratios. By default the "
        "whole range.",
        None,
        unit="LOW:HIGH:N|A1,A2,…",
    )
    fit_intercept: bool = fields.option("Fit an intercept, which is not penalised.", True)
    alpha_per_target: bool | Literal["auto"] = fields.option(
        "Alpha of several targets. auto, the default: one for all, except for targets whose error falls "
        "with an alpha of their own. true: one for each target. false: one for all.",
        "auto",
    )


@fields.group
class SolverOptions:
    """How the coefficients of a regression are computed."""

    panel: ClassVar[str] = "Regression"

    solver: Literal["auto", "direct", "pcg"] = fields.option(
        "Solver. direct: sum up Z'Z and factorise it. pcg: conjugate gradients, in passes that never make "
        "Z'Z; the model has no sums. auto: pcg for one given `alpha` if memory does not hold Z'Z or it costs "
        "far more, else direct.",
        "auto",
        unit="auto|direct|pcg",
    )


@fields.group
class EffortOptions:
    """How much is tried where options leave a choice, and for how long."""

    panel: ClassVar[str] = "Regression"

    effort: Effort = fields.option(
        "How much is tried where options leave a choice. 1: one pass with the median length scale. 5: with "
        "up to 4,096 features and five folds.",
        3,
        unit="1-5",
    )
    time_limit: Positive | None = fields.option(
        "Seconds after which nothing further is tried; the number of features is then what the time that is "
        "left is enough for. By default there is no limit.",
        None,
        unit="SECONDS",
    )


@fields.group
class TrainPenalty(PenaltyOptions):
    """The penalty of a regression, and its intervals."""

    conformal: bool | Literal["normalized"] = fields.option(
        "Measure the cross-validated residuals in one more pass, for prediction intervals. normalized: their "
        "width follows the residuals near each row. Uses the default folds unless `n_folds` says otherwise.",
        False,
    )


@fields.group
class TunePenalty(PenaltyOptions):
    """The penalty of candidates that cross-validation compares."""

    alpha: Literal["cv", "cv-1se"] | Positive | Positives = fields.option(
        _ALPHA + "cv: the least k-fold error. cv-1se: the largest alpha within one standard error of that.",
        "cv",
    )


@fields.group
class FoldOptions:
    """The folds of cross-validation."""

    panel: ClassVar[str] = "Regression"

    n_folds: FoldCount | None = fields.option(
        "Number of folds of cross-validation, which share one pass. By default 5; 10 below 200 rows; 3 from "
        "2,049 rows on, or if memory does not hold their sums.",
        None,
    )
    groups: str | None = fields.option(
        "Name of an array of groups, such as patient, site or day. Rows of one group are in one fold. By "
        "default there are no groups.",
        None,
    )
    time: bool = fields.option(
        "Take the rows as ordered by time: each fold is predicted from those before it.", False
    )

    def __post_init__(self) -> None:
        if self.groups is not None and self.time:
            raise InvalidParameterError(
                "`groups` and `time` were both given, but folds are either of groups or of time; leave one "
                "out"
            )

    @property
    def cv(self) -> int | folding.Folds | None:
        """The folds, or their number; None lets memory decide it."""
        from rff_dist.data.folding import GroupFolds, TimeFolds

        n_folds = self.n_folds or DEFAULT_FOLDS
        if self.groups is not None:
            return GroupFolds(n_folds)
        return TimeFolds(n_folds) if self.time else self.n_folds

    def check(self, alpha: Any, n_components: Any) -> None:
        """Check that alpha is chosen by cross-validation where folds or several D ask for it."""
        from rff_dist.fitting.options import CV_NAMES

        if not isinstance(alpha, str) or alpha in CV_NAMES:
            return
        for name in ("n_folds", "groups", "time"):
            if getattr(self, name):
                raise InvalidParameterError(
                    f"`{name}` needs k-fold cross-validation, `alpha` by cv or cv-1se, not {alpha}; leave "
                    "one of them out"
                )
        if isinstance(n_components, list):
            raise InvalidParameterError(
                f"`n_components` is {n_components}, from which cross-validation chooses, not by {alpha}; "
                "give one number, or choose `alpha` by cv"
            )


@fields.group
class Classes:
    """A classifier instead of a regression."""

    panel: ClassVar[str] = "Classification"

    classify: bool = fields.option(
        "Train a classifier: y holds labels, which are text or whole numbers.", False
    )
    loss: Literal["squared", "logistic", "squared_hinge"] | None = fields.option(
        "Loss of a classifier. squared (the default): ridge regression on targets -1 and +1, in one pass. "
        "logistic, and squared_hinge (a kernel support vector machine, without probabilities): 10 to 30 "
        "cheap passes more.",
        None,
    )
    class_weight: Literal["balanced"] | None = fields.option(
        "Weights of a classifier's classes. balanced: all classes weigh the same. By default a class weighs "
        "as much as its rows.",
        None,
        unit="balanced",
    )

    def __post_init__(self) -> None:
        for name in ("loss", "class_weight"):
            if getattr(self, name) is not None and not self.classify:
                raise InvalidParameterError(
                    f"`{name}` is for classifiers only; add classify=True, or leave it out"
                )
