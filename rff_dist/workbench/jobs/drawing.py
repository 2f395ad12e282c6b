"""Which features a job draws, and which clusters it finds in them: groups of options.

A group checks itself when it is made, and raises the library's errors. Slow imports wait until then, so that
`--help` is fast.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Len

from rff_dist import fields
from rff_dist.errors import InvalidParameterError
from rff_dist.fields import Count, Counts, NonNegative, Positive, Positives, Seed

if TYPE_CHECKING:
    from rff_dist.features import nystrom
    from rff_dist.kernels import base
    from rff_dist.kmeans import starts
    from rff_dist.ridge.candidates import Candidate

_COMMA = re.compile(r",(?!\s*\w+\s*=)")  # a comma between kernels, not between the parameters of one


def read_kernels(text: str) -> list[str]:
    """Read kernels with commas between them."""
    return [part.strip() for part in _COMMA.split(text)]


type Kernels = Annotated[list[str], Len(1), fields.Reader(read_kernels)]

_KERNELS = (
    "gaussian, laplacian (the L1 form), cauchy, sinc, matern, rational_quadratic, additive, linear, "
    "polynomial or min, with parameters as in matern:nu=1.5 or polynomial:degree=3. Kernels in a sum or "
    "product have length scales of their own: 'gaussian:length_scale=2 + 0.1 * linear'."
)
_NYSTROM = (
    "Kind of features. fourier: random Fourier features. nystrom: kernel values at some rows of the data, "
    "the centres."
)
type Standardize = bool | Literal["rank", "auto"]


class Kind:
    """The kind of the features that a group of options draws."""

    features: str
    centres: str | None

    def __post_init__(self) -> None:
        if self.centres is not None and self.features != "nystrom":
            raise InvalidParameterError(
                f"`centres` is {self.centres!r}, which only Nyström features have; give features='nystrom'"
            )

    @property
    def kind(self) -> str | nystrom.Nystrom:
        """The kind of features, as the library takes it."""
        from rff_dist.features.nystrom import Nystrom

        if self.features != "nystrom":
            return self.features
        return Nystrom() if self.centres is None else Nystrom(self.centres)


@fields.group
class Drawing(Kind):
    """How features are drawn, whatever the kernel."""

    panel: ClassVar[str] = "Random features"
    last: ClassVar[bool] = True

    centres: Literal["uniform", "k-means++", "rpcholesky"] | None = fields.option(
        "Method that chooses the centres of Nyström features: uniform (the default), k-means++ or "
        "rpcholesky (randomly pivoted Cholesky).",
        None,
    )
    design: Literal["auto", "orthogonal", "iid", "quasi-monte-carlo", "structured"] = fields.option(
        "Arrangement of the frequencies: orthogonal, iid, quasi-monte-carlo (best for few columns) or "
        "structured (fast for hundreds of columns). auto: orthogonal if the kernel allows it, else iid "
        "(quasi-monte-carlo for additive).",
        "auto",
    )
    map: Literal["auto", "pairs", "phases"] = fields.option(
        "Form of Fourier features. pairs: cosines and sines. phases: cosines with random phases. auto: the "
        "form with the lower variance on a sample of rows.",
        "pairs",
    )
    precision: Literal["standard", "high"] = fields.option(
        "Precision of the features. standard: fast; Fourier features have 15 bits, and their sums are exact. "
        "high: float32, for targets with almost no noise; a warning tells when it is needed.",
        "standard",
    )
    standardize: Standardize = fields.option(
        "Scaling of the input columns. true (yes): subtract the mean, divide by the standard deviation. "
        "rank: map the ranks of the values to a normal distribution. auto: rank for columns with heavy "
        "tails, true for the others. false (no): no scaling.",
        "auto",
        unit="HOW",
    )
    seed: Seed = fields.option("Seed of all random numbers.", 0)


@fields.group
class Features(Drawing):
    """Features of one kernel."""

    kernel: str = fields.option(f"Name of the kernel: {_KERNELS}", "gaussian", unit="KERNEL")
    features: Literal["fourier", "nystrom"] = fields.option(_NYSTROM, "fourier")
    n_components: Count = fields.option(
        "Number of features, D. The error falls as 1/√D; the cost grows with D.",
        1024,
        unit="D",
    )
    length_scale: Literal["auto", "median"] | Positive | Positives = fields.option(
        "Length scale of the kernel, or one for each column, in units of the (scaled) inputs. auto and "
        "median: the median distance between rows of a sample.",
        "auto",
        unit="L|L1,L2,…",
    )

    @property
    def scale(self) -> str | base.LengthScale:
        """The length scale, as the library takes it."""
        return tuple(self.length_scale) if isinstance(self.length_scale, list) else self.length_scale

    def make_kernel(self) -> base.Kernel:
        """Return the kernel, with its length scale where that is given in numbers."""
        from rff_dist.kernels.names import find_kernel
        from rff_dist.kernels.stationary import with_length_scale

        kernel = find_kernel(self.kernel)
        return kernel if isinstance(self.scale, str) else with_length_scale(kernel, self.scale)


type LengthScales = Annotated[list[Positive | Positives | str], Len(1)]


@fields.group
class TrainFeatures(Features):
    """Features of a regression. Cross-validation chooses what is "auto"."""

    precision: Literal["auto", "standard", "high"] = fields.option(  # type: ignore[assignment]  # one name more
        "Precision of the features. standard: fast; Fourier features have 15 bits, and their sums are exact. "
        "high: float32, in up to 1.4 times the time, for targets with almost no noise. auto: standard, then "
        "another pass with high if coefficients are so large that rounding shows; otherwise errors are "
        "alike.",
        "auto",
    )

    kernel: str = fields.option(
        "Name of the kernel. auto: cross-validation compares Gaussian, Matérn-3/2 and linear kernels and "
        f"sums of them. Or one of {_KERNELS} With kernels that are products over the columns (laplacian, "
        "cauchy, sinc) `design` is iid or quasi-monte-carlo.",
        "auto",
        unit="auto|KERNEL",
    )
    features: Literal["auto", "fourier", "nystrom"] = fields.option(  # type: ignore[assignment]  # one name more
        f"{_NYSTROM} auto: cross-validation compares both; nystrom up to 2,048 rows.",
        "auto",
        unit="auto|NAME",
    )
    n_components: Literal["auto"] | Count | Counts = fields.option(  # type: ignore[assignment]
        "Number of features, D. The error falls as 1/√D; the cost grows as D². auto: 2048, or fewer if rows "
        "are few or memory is short. Several numbers share one pass, and cross-validation takes the smallest "
        "within one standard error of the best.",
        "auto",
        unit="auto|D|D1,D2,…",
    )
    length_scale: Literal["auto", "median", "evidence"] | Positive | Positives = fields.option(  # type: ignore[assignment]
        "Length scale of the kernel, or one for each column, in units of the (scaled) inputs. median: the "
        "median distance between rows. evidence: one for each column, tuned on a sample of rows. auto: "
        "cross-validation compares both.",
        "auto",
        unit="auto|median|evidence|L|L1,L2,…",
    )
    kernels: Kernels | None = fields.option(
        "Kernels to compare on all rows, instead of one, each one of those of `kernel`.", None, unit="K1,K2,…"
    )
    length_scales: LengthScales | None = fields.option(
        "Length scales to try with each kernel that has one length scale: numbers, lists with one number for "
        "each column, multiples of the median distance between rows such as 0.5x, or evidence. By default "
        "0.25x, 0.5x, 1x, 2x and 4x.",
        None,
        unit="L1,L2,…",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, several in (("kernel", self.kernels), ("length_scale", self.kernels or self.length_scales)):
            if several is not None and getattr(self, name) != "auto":
                raise InvalidParameterError(
                    f"`{name}` is {getattr(self, name)!r}, but `kernels` or `length_scales` give several to "
                    "compare; leave one of them out"
                )

    @property
    def candidates(self) -> list[Candidate] | None:
        """Kernels and length scales to compare, if there are several."""
        if self.kernels is None and self.length_scales is None:
            return None
        from rff_dist.ridge.candidates import DEFAULT_KERNELS, make_candidates

        one = DEFAULT_KERNELS if self.kernel == "auto" else [self.kernel]
        return make_candidates(self.kernels or one, self.length_scales)


@fields.group
class TuneFeatures(Drawing):
    """Features of several kernels and length scales to compare."""

    kernels: Kernels = fields.option(
        f"Kernels to compare, each one of {_KERNELS}", ["gaussian", "matern:nu=1.5"], unit="K1,K2,…"
    )
    length_scales: LengthScales | None = fields.like(TrainFeatures, "length_scales")
    features: Literal["fourier", "nystrom"] = fields.option(_NYSTROM, "fourier")
    n_components: Literal["auto"] | Count | Counts = fields.option(
        "Number of features, D. Of several numbers each candidate takes the smallest within one standard "
        "error of its best. auto: 2048, or fewer if rows are few or memory is short.",
        1024,
        unit="D|D1,D2,…|auto",
    )

    @property
    def candidates(self) -> list[Candidate]:
        """Kernels and length scales to compare."""
        from rff_dist.ridge.candidates import make_candidates

        return make_candidates(self.kernels, self.length_scales)


@fields.group
class ClusterFeatures(Features):
    """Features, or principal components of features, to cluster in."""

    standardize: Standardize = fields.like(Drawing, "standardize", False)
    n_principal: Count | None = fields.option(
        "Number of leading kernel principal components to cluster in. By default rows are clustered in the "
        "features themselves.",
        None,
        unit="M",
    )
    normalize: Literal["degree"] | None = fields.option(
        "Normalisation of the features before the principal components. degree: by their degrees, which is "
        "spectral clustering; set `n_principal` to one less than the number of clusters.",
        None,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.space  # checks itself
        self.check_columns()

    @property
    def space(self) -> starts.ClusterSpace:
        """The options as the library takes them."""
        from rff_dist.kmeans.starts import ClusterSpace

        same = ("n_components", "design", "map", "precision", "standardize", "seed")
        return ClusterSpace(
            self.make_kernel(),
            length_scale=self.scale,
            features=self.kind,
            **fields.values_of(self, *same, "n_principal", "normalize"),
        )

    def check_columns(self, n_features: int | None = None) -> None:
        """Check that kernel and design suit each other and, if it is given, the number of columns."""
        from rff_dist.features.draw import find_features
        from rff_dist.kernels.base import check_design
        from rff_dist.kernels.names import find_kernel

        kernel = self.make_kernel()
        if n_features is None:
            kernel = find_kernel(self.kernel)  # one with length scales accepts only as many columns
        else:
            kernel.check_columns(n_features)
        if find_features(self.kind) is None:
            check_design(kernel, self.design, n_features or 1)
        elif self.design != "auto":
            raise InvalidParameterError(
                f"`design` is {self.design!r}, but Nyström features have none, only features='fourier' has; "
                "leave it out"
            )


@fields.group
class Lloyd:
    """Clusters by k-means."""

    panel: ClassVar[str] = "Clusters"

    n_clusters: Count | Counts = fields.option(
        "Number of clusters. Several numbers share the passes, and that of the largest silhouette is taken.",
        8,
        unit="K|K1,K2,…",
    )
    init: Literal["k-means||", "k-means++"] = fields.option(
        "Source of the candidates for the first centres. k-means||: all rows, in three passes. k-means++: a "
        "sample of 4,096 rows.",
        "k-means||",
    )
    n_init: Count = fields.option(
        "Number of starts, which share each pass. The one of least inertia is kept.", 1
    )
    max_iter: Count = fields.option("Largest number of Lloyd passes.", 300)
    tol: NonNegative = fields.option(
        "Threshold of the centres' squared shifts, as a share of the mean variance of the features: passes "
        "end below it. With 0 they end when no label changes.",
        1e-4,
        unit="SHARE",
    )

    def __post_init__(self) -> None:
        from rff_dist.kmeans import fit

        fit.check_numbers(self.numbers)
        _ = self.to_library(0)  # checks itself

    def to_library(self, seed: int) -> starts.LloydOptions:
        """Return the options as the library takes them."""
        from rff_dist.kmeans.starts import LloydOptions

        given = fields.values_of(self, "init", "n_init", "max_iter", "tol")
        return LloydOptions(self.numbers[-1], seed=seed, **given)

    @property
    def numbers(self) -> list[int]:
        """Numbers of clusters to find, in ascending order."""
        return sorted(self.n_clusters) if isinstance(self.n_clusters, list) else [self.n_clusters]
