"""Which features of a kernel are drawn: options that all models share.

A user's values go in; a group of options comes out that has checked itself. Each option
is declared once here; flags, TOML files and estimators are made from the declaration.
Kernels and features are imported only when a group is made, because `--help` shows
these options too and must not wait for SciPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rff_dist import fields
from rff_dist.checks import check_count, check_name
from rff_dist.errors import InvalidParameterError
from rff_dist.fields import Count, Positive, Positives, Seed
from rff_dist.kernels import registry

if TYPE_CHECKING:
    from rff_dist.features.nystrom import Nystrom
    from rff_dist.frequencies.designs import Design
    from rff_dist.kernels.base import Kernel, LengthScale

# Help needs none of these aliases' values, so it does not import what they name.
type KernelObject = Kernel
type FeatureKind = str | Nystrom
type Arrangement = str | Design
type Scale = str | LengthScale | None
type Standardize = bool | Literal["rank", "auto"]

FEATURES = ("fourier", "nystrom")
# Pairs are a cosine and a sine of each frequency; phases are one cosine, with a random
# phase. Pairs are the default. In 156 fits on 13 problems they err by 1.005 times as
# much as phases, and win 47 % of the comparisons; phases win by 5 % on sums of 40
# sines. Cosines and sines alternate, so that a shorter draw is a prefix of a longer
# one.
MAPS = ("pairs", "phases")
PRECISIONS = ("standard", "high")
KERNELS = (
    f"{', '.join(registry.KERNELS)}, with parameters as in matern:nu=1.5 or"
    " polynomial:degree=3. laplacian is the L1 form. Kernels in a sum or product have"
    " their own length scales: 'gaussian:length_scale=2 + 0.1 * linear'."
)
LENGTH_SCALE = (
    "Length scale of the kernel, or one for each column, in units of the (scaled)"
    " inputs. "
)


@fields.group
class KernelFeatures:
    """Features of a kernel.

    In a sum or product, the length scale goes to parts without one. "median" also
    replaces the length scale that a single kernel has. Nyström features ignore `map`
    and `precision`, and have no `design`. Raises InvalidParameterError if a value is
    out of range.
    """

    panel: ClassVar[str] = "Random features"

    kernel: KernelObject = fields.option(
        f"Name of the kernel: {KERNELS}",
        default="gaussian",
        placeholder="KERNEL",
        takes=str,
    )
    features: FeatureKind = fields.option(
        "Kind of features. fourier: random Fourier features. nystrom: kernel values at"
        " some rows of the data, the centres, which are drawn uniformly; without"
        " isolated rows by nystrom:dense; or by nystrom:k-means++.",
        default="fourier",
        takes=Literal[
            "fourier",
            "nystrom",
            "nystrom:dense",
            "nystrom:k-means++",
        ],
        placeholder="NAME",
    )
    n_components: int = fields.option(
        "Number of features, D. The error falls as 1/√D; the cost grows at least as D.",
        default=1024,
        placeholder="D",
        takes=Count,
    )
    length_scale: Scale = fields.option(
        f"{LENGTH_SCALE}auto and median: the median distance between rows of a sample.",
        default="auto",
        placeholder="L|L1,L2,…",
        takes=Literal["auto", "median"] | Positive | Positives,
    )
    design: Arrangement = fields.option(
        "Arrangement of the frequencies: orthogonal, iid or quasi-monte-carlo (best for"
        " few columns). auto: orthogonal if the kernel allows it, else iid"
        " (quasi-monte-carlo for additive).",
        default="auto",
        takes=Literal["auto", "orthogonal", "iid", "quasi-monte-carlo"],
    )
    map: str = fields.option(
        "Form of Fourier features. pairs: cosines and sines. phases: cosines with"
        " random phases.",
        default="pairs",
        takes=Literal["pairs", "phases"],
    )
    precision: str = fields.option(
        "Precision of the features. standard: fast; Fourier features have 15 bits, and"
        " their sums are exact. high: float32, for targets with almost no noise; a"
        " warning says if it is needed.",
        default="standard",
        takes=Literal["standard", "high"],
    )

    def __post_init__(self) -> None:
        from rff_dist.kernels import base, names

        object.__setattr__(self, "kernel", names.find_kernel(self.kernel))
        object.__setattr__(self, "length_scale", as_length_scale(self.length_scale))
        check_name(self.map, MAPS, "map")
        check_name(self.precision, PRECISIONS, "precision")
        check_n_components(self.n_components, self.map, self.features)
        refuse_design_of_nystrom(self.design, self.features)
        base.design_for(self.kernel, self.design)

    def check_columns(self, n_features: int) -> None:
        """Raise InvalidParameterError if kernel or design do not suit the columns."""
        from rff_dist.kernels import base, stationary

        kernel = self.kernel
        scale = self.length_scale
        if scale is not None and not isinstance(scale, str):
            kernel = stationary.with_length_scale(kernel, scale)
        kernel.check_columns(n_features)
        if find_nystrom(self.features) is None:
            base.check_design(kernel, self.design, n_features)


@fields.group
class FeatureOptions(KernelFeatures):
    """Features of a kernel, with the scaling of the inputs, and the seed."""

    standardize: bool | str = fields.option(
        "Scaling of the input columns. true (yes): subtract the mean, divide by the"
        " standard deviation. rank: map the ranks of the values to a normal"
        " distribution. auto: rank for columns with heavy tails, true for the others."
        " false (no): no scaling.",
        default=False,
        placeholder="HOW",
        takes=Standardize,
    )
    seed: int = fields.option("Seed of all random numbers.", default=0, takes=Seed)

    def __post_init__(self) -> None:
        from rff_dist.kernels import base, stationary

        super().__post_init__()
        # A user's options are made long before features are drawn, which would refuse a
        # design that the kernel does not allow.
        if self.design == "auto":
            return
        scale = stationary.own_length_scale(self.kernel)
        # the check's result does not depend on the number of columns, so any will do
        n_features = len(scale) if isinstance(scale, tuple) else 1
        base.check_design(self.kernel, self.design, n_features)


def refuse_design_of_nystrom(design: str | Design, features: object) -> None:
    """Raise InvalidParameterError if a design is given to Nyström features."""
    if design != "auto" and find_nystrom(features) is not None:
        raise InvalidParameterError(
            f"`design` is {design!r}, but Nyström features have none, only"
            " features='fourier' has; leave it out"
        )


def as_length_scale(length_scale: Any) -> Any:
    """Return length scales of columns as a tuple; others as they are."""
    return tuple(length_scale) if isinstance(length_scale, list) else length_scale


def find_nystrom(features: object) -> Nystrom | None:
    """Return the options of Nyström features; None for random Fourier features.

    A name may be "fourier", "nystrom", or "nystrom:" with the rule that chooses
    centres. Raises InvalidParameterError for anything but such a name or a `Nystrom`.
    """
    # an array, given by mistake, would be compared by elements
    if isinstance(features, str) and features == "fourier":
        return None
    from rff_dist.features.nystrom import Nystrom

    if isinstance(features, Nystrom):
        return features
    if isinstance(features, str) and features.startswith("nystrom:"):
        return Nystrom(features.removeprefix("nystrom:"))
    check_name(features, FEATURES, "features", also=", or Nystrom(…)")
    return Nystrom()


def check_n_components(
    n_components: object, map_name: str, features: object = "fourier"
) -> int:
    """Return `n_components` as an int.

    Raises InvalidParameterError if it is not an integer of at least 1, or is odd
    although the map has cosines and sines in pairs; and as `find_nystrom`.
    """
    is_fourier = find_nystrom(features) is None
    count = check_count(n_components, "n_components")
    if is_fourier and map_name == "pairs" and count % 2:
        raise InvalidParameterError(
            f"`n_components` is {count}; map='pairs' makes two components of each"
            f" frequency and needs an even number: take {count + 1}, or map='phases'"
        )
    return count


def check_without_targets(length_scale: object) -> None:
    """Raise InvalidParameterError for length scales that need targets."""
    if isinstance(length_scale, str) and length_scale == "evidence":
        raise InvalidParameterError(
            "`length_scale` is 'evidence', which needs targets, and there are none"
            " here; expected 'auto' or numbers above 0"
        )
