"""Options of training that are not the library's: kernels to compare, folds, classes.

In go values by name, out come checked groups of options, and the candidates and folds
that the library takes in their place. They stand apart from `specs.py` since several
specs share them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le, Len

from rff_dist import fields
from rff_dist.errors import InvalidParameterError
from rff_dist.features import feature_options

if TYPE_CHECKING:
    from rff_dist.data import folding
    from rff_dist.fitting.options import RidgeOptions
    from rff_dist.ridge.candidates import Candidate

DEFAULT_FOLDS = 5
# a comma between kernels; a comma before "name=" is between parameters of one kernel
_COMMA = re.compile(r",(?!\s*\w+\s*=)")


def read_kernels(text: str) -> list[str]:
    """Read kernels with commas between them."""
    return [part.strip() for part in _COMMA.split(text)]


# 1000 is `data.folding.MAX_FOLDS`, whose import would take time
type FoldCount = Annotated[int, Ge(2), Le(1000)]
type Kernels = Annotated[list[str], Len(1), fields.Reader(read_kernels)]
type LengthScales = Annotated[list[fields.Positive | fields.Positives | str], Len(1)]


@fields.group
class ComparisonOptions:
    """Kernels and length scales that cross-validation compares on all rows."""

    panel: ClassVar[str] = feature_options.KernelFeatures.panel

    kernels: Kernels | None = fields.optional(
        "Kernels to compare on all rows, each given as for `kernel`.",
        placeholder="K1,K2,…",
    )
    length_scales: LengthScales | None = fields.optional(
        "Length scales to try with each kernel that has one length scale: numbers,"
        " lists with one number for each column, multiples of the median distance"
        " between rows such as 0.5x, or evidence. By default 0.25x, 0.5x, 1x, 2x"
        " and 4x.",
        placeholder="L1,L2,…",
    )

    def candidates(self, options: RidgeOptions) -> list[Candidate] | None:
        """Return what is compared, if several kernels or length scales are given.

        Raises InvalidParameterError if `options` have a kernel or a length scale too.
        """
        if self.kernels is None and self.length_scales is None:
            return None
        from rff_dist.ridge.candidates import DEFAULT_KERNELS, make_candidates

        for name, several in (
            ("kernel", self.kernels),
            ("length_scale", self.kernels or self.length_scales),
        ):
            if several is not None and getattr(options, name) != "auto":
                raise InvalidParameterError(
                    f"`{name}` is {getattr(options, name)!r}, but `kernels` or"
                    " `length_scales` give several to compare; leave one of them out"
                )
        default = DEFAULT_KERNELS if options.kernel == "auto" else [options.kernel]
        return make_candidates(self.kernels or default, self.length_scales)


@fields.group
class FoldOptions:
    """The folds of cross-validation."""

    panel: ClassVar[str] = "Regression"

    n_folds: FoldCount | None = fields.optional(
        "Number of folds of cross-validation, which share one pass. By default 5; 10"
        " below 200 rows; 3 from 2,049 rows on, or if memory does not hold their sums."
    )
    groups: str | None = fields.optional(
        "Name of an array of groups, such as patient, site or day. Rows of one group"
        " are in one fold. By default there are no groups."
    )
    time: bool = fields.flag(
        "Take the rows as ordered by time: each fold is predicted from those before it."
        " A grid needs a dimension with times."
    )

    group_by_block: fields.Names | None = fields.optional(
        "Sizes of blocks of a grid, in the units of coordinates or in days. Cells of"
        " one block are in one fold, as are rows of a group.",
        placeholder="lat=2,lon=2",
    )

    def __post_init__(self) -> None:
        names = [
            name for name in ("groups", "time", "group_by_block") if getattr(self, name)
        ]
        if len(names) > 1:
            raise InvalidParameterError(
                f"`{names[0]}` and `{names[1]}` were both given, but folds are of one"
                " kind; leave one out"
            )

    def cv_of(self, *, is_grid: bool) -> int | folding.Folds | None:
        """Return the folds, or their number; None lets memory decide it.

        `is_grid`: whether rows are cells of a grid, which are not in the order of time.
        """
        from rff_dist.data.folding import DatedFolds, GroupFolds, TimeFolds

        n_folds = self.n_folds or DEFAULT_FOLDS
        if self.groups is not None or self.group_by_block is not None:
            return GroupFolds(n_folds, is_default=self.n_folds is None)
        if self.time:
            return DatedFolds(n_folds) if is_grid else TimeFolds(n_folds)
        return self.n_folds

    def check(self, alpha: Any) -> None:
        """Check that alpha is chosen by cross-validation where folds ask for it."""
        from rff_dist.fitting.options import CV_NAMES

        if not isinstance(alpha, str) or alpha in CV_NAMES:
            return
        for name in ("n_folds", "groups", "time", "group_by_block"):
            if getattr(self, name):
                raise InvalidParameterError(
                    f"`{name}` needs k-fold cross-validation, `alpha` by cv or cv-1se,"
                    f" not {alpha}; leave one of them out"
                )


@fields.group
class Classes:
    """A classifier instead of a regression."""

    panel: ClassVar[str] = "Classification"

    classify: bool = fields.flag(
        "Train a classifier: y holds labels, which are text or whole numbers."
    )
    loss: Literal["squared", "logistic", "squared_hinge"] | None = fields.optional(
        "Loss of a classifier. squared (the default): ridge regression on targets -1"
        " and +1, in one pass. logistic, and squared_hinge (a kernel support vector"
        " machine, without probabilities): 10 to 30 cheap passes more."
    )
    class_weight: Literal["balanced"] | None = fields.optional(
        "Weights of a classifier's classes. balanced: all classes weigh the same. By"
        " default a class weighs as much as its rows."
    )

    def __post_init__(self) -> None:
        for name in ("loss", "class_weight"):
            if getattr(self, name) is not None and not self.classify:
                raise InvalidParameterError(
                    f"`{name}` is for classifiers only; add classify=True, or leave"
                    " it out"
                )
