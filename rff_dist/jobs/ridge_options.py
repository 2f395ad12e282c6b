"""Options of a regression or a classifier: its penalty, the folds it is chosen by, and its classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rff_dist.errors import InvalidParameterError
from rff_dist.jobs.fields import group, option
from rff_dist.jobs.options import FoldCount, NonNegative, Positive, Positives

if TYPE_CHECKING:
    from rff_dist.data.folds import Folds

DEFAULT_FOLDS = 5


_ALPHA = "Penalty of ‖y − Zw‖² + alpha·‖w‖²: a number, or several to choose from by cross-validation; or "


@group
class PenaltyOptions:
    """The penalty of a regression, and what else is fitted beside it."""

    panel: ClassVar[str] = "Regression"

    alpha: Literal["auto", "cv", "cv-1se", "gcv", "evidence", "press"] | NonNegative | Positives = option(
        _ALPHA + "what chooses it: cv, the least k-fold error; cv-1se, the largest alpha within one standard "
        "error of that; gcv; evidence; or press, leave-one-out errors by one more pass. auto is cv, or press "
        "where memory does not hold the sums of the folds; of up to 500 rows the largest within one "
        "standard error of the least leave-one-out error.",
        "auto",
        unit="auto|A|A1,A2,…",
    )
    select: str | None = option("What chooses alpha, one of the names of `alpha`.", None, face="command")
    alphas: Positives | None = option(
        "What a named alpha chooses from: these, or LOW:HIGH:N, N values in equal ratios; the whole range if "
        "left out.",
        None,
        unit="LOW:HIGH:N|A1,A2,…",
    )
    fit_intercept: bool = option(
        "Whether to fit an intercept, which is not penalised.", True, flag="--no-intercept", given=(False,)
    )
    alpha_per_target: bool | Literal["auto"] = option(
        "Whether each target has an alpha of its own; auto gives one to those whose errors it lowers, and "
        "false (`--one-alpha`) lets all share one.",
        "auto",
        flag="--one-alpha",
        given=(False,),
    )

    def __post_init__(self) -> None:
        if self.select is not None:
            self._check_select(self.select)
        if self.alphas is not None and not isinstance(self.alpha, str):
            raise InvalidParameterError(
                f"`alphas` are values to choose from, and `alpha` is {self.alpha}; give one of them, and "
                "leave one of them out"
            )

    def _check_select(self, select: str) -> None:
        from rff_dist.ridge.options import ALPHA_NAMES

        names = [name for name in ALPHA_NAMES if name != "auto"]
        if select not in names:
            raise InvalidParameterError(f"`select` is {select!r}; expected one of {', '.join(names)}")
        if self.alpha not in ("auto", "cv"):
            raise InvalidParameterError(
                f"`select` is {select!r}, which chooses alpha, and `alpha` gives it; leave one of them out "
                "(`alphas` has values to choose from)"
            )

    @property
    def chosen(self) -> Any:
        """The penalty, or what chooses it."""
        return self.alpha if self.select is None else self.select


@group
class SolverOptions:
    """How the coefficients of a regression are computed."""

    panel: ClassVar[str] = "Regression"

    solver: Literal["auto", "direct", "pcg"] = option(
        "direct sums up Z'Z and factors it; pcg iterates, in passes that never make Z'Z, and its model has "
        "no sums; auto takes pcg for one given `alpha` where memory does not hold Z'Z, or it is far dearer.",
        "auto",
        unit="auto|direct|pcg",
    )


@group
class TrainPenalty(PenaltyOptions):
    """The penalty of a regression, and its intervals."""

    conformal: bool | Literal["normalized"] = option(
        "Whether one more pass counts how far off held-out rows are, for intervals; normalized "
        "(`--normalized`) lets them be as wide as residuals near each row say. With 5 folds if no others are "
        "asked for.",
        False,
        flags=("--conformal", "--normalized"),
        given=(True, "normalized"),
    )


@group
class TunePenalty(PenaltyOptions):
    """The penalty of candidates that are compared by cross-validation."""

    alpha: Literal["cv", "cv-1se"] | Positive | Positives = option(
        _ALPHA
        + "cv takes the one of the least k-fold error, cv-1se the largest within one standard error of "
        "it.",
        "cv",
        face="form",
    )
    select: str | None = option(
        "cv takes the alpha of the least k-fold error, if left out; cv-1se the largest within one standard "
        "error of it.",
        None,
        unit="cv|cv-1se",
        face="command",
    )

    def _check_select(self, select: str) -> None:
        if select not in ("cv", "cv-1se"):
            raise InvalidParameterError(f"`select` is {select!r}; expected cv or cv-1se")


@group
class FoldOptions:
    """Which rows are held out together, to choose by."""

    panel: ClassVar[str] = "Regression"

    folds: FoldCount | None = option(
        "Number of folds of rows to choose by, which are summed apart in the same pass; 5 if left out, or "
        "fewer where memory does not hold them.",
        None,
        alias="n_folds",
    )
    group_by: str | None = option(
        "Name of an array of groups (patient, site, day) whose rows are in one fold; none if left out.",
        None,
        alias="groups",
    )
    time: bool = option(
        "Whether rows are in the order of time: each fold is predicted from those before it.", False
    )

    def __post_init__(self) -> None:
        if self.group_by is not None and self.time:
            raise InvalidParameterError(
                "`group_by` and `time` were both given; folds are of one of them, groups or of time: leave "
                "one out"
            )

    @property
    def cv(self) -> int | Folds | None:
        """The folds; None leaves them to what memory holds."""
        from rff_dist.data.folds import GroupFolds, TimeFolds

        n_folds = self.folds or DEFAULT_FOLDS
        if self.group_by is not None:
            return GroupFolds(n_folds)
        return TimeFolds(n_folds) if self.time else self.folds

    def check(self, alpha: Any, n_components: Any) -> None:
        """Check that what needs cross-validation and what chooses alpha go together."""
        from rff_dist.ridge.options import CV_NAMES

        if not isinstance(alpha, str) or alpha in CV_NAMES:
            return
        for name in ("folds", "group_by", "time"):
            if getattr(self, name):
                raise InvalidParameterError(
                    f"`{name}` takes k-fold cross-validation: `alpha` by cv or cv-1se, not {alpha}; leave "
                    "one of them out"
                )
        if isinstance(n_components, list):
            raise InvalidParameterError(
                f"`n_components` is {n_components}, which is chosen from by cross-validation, not by {alpha};"
                " give one number, or choose `alpha` by cv"
            )


@group
class Classes:
    """A classifier in the place of a regression."""

    panel: ClassVar[str] = "Classification"

    classify: bool = option(
        "Whether y holds labels, text or whole numbers: then a classifier is trained.", False
    )
    loss: Literal["squared", "logistic", "squared_hinge"] | None = option(
        "Of a classifier: squared, ridge on targets -1 and +1, in one pass (if left out); logistic, or "
        "squared_hinge, a kernel support vector machine without probabilities: 10 to 30 cheap passes more.",
        None,
    )
    class_weight: Literal["balanced"] | None = option(
        "Of a classifier: balanced lets all classes weigh alike.", None, unit="balanced"
    )

    def __post_init__(self) -> None:
        from rff_dist.classify.fit import check_loss

        for name in ("loss", "class_weight"):
            if getattr(self, name) is not None and not self.classify:
                raise InvalidParameterError(f"`{name}` is a classifier's; add classify=True, or leave it out")
        if self.class_weight not in (None, "balanced"):
            raise InvalidParameterError(f"`class_weight` is {self.class_weight!r}; expected balanced")
        if self.loss is not None:
            check_loss(self.loss)
