"""The options of all jobs, in groups: the only place of each option's name, type, unit, default and help.

The command line, Prefect's forms and the groups' docstrings are made from them. A group checks itself when it
is made, and raises the library's errors. Slow imports wait until then, so that `--help` is fast.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Len, Lt

from rff_dist.errors import InvalidParameterError
from rff_dist.workbench.jobs import fields

if TYPE_CHECKING:
    from rff_dist.engines.cluster import Cluster
    from rff_dist.features import nystrom
    from rff_dist.kernels import base
    from rff_dist.kmeans import starts
    from rff_dist.ridge.candidates import Candidate

MAX_ALPHAS = 10_000
_GRID = f"LOW:HIGH:N with 0 < LOW < HIGH and N from 2 to {MAX_ALPHAS}, such as 1e-6:1e3:30"


def read_share(text: str) -> float:
    """Read a share of rows such as 10%."""
    if not text.endswith("%"):
        raise ValueError(text)
    return float(text.removesuffix("%")) / 100


def read_grid(text: str) -> list[float]:
    """Read a range LOW:HIGH:N, of N values in equal ratios."""
    low, high, count = map(float, text.split(":"))
    if not (0 < low < high < math.inf and count.is_integer() and 2 <= count <= MAX_ALPHAS):
        raise ValueError(text)
    import numpy as np

    return np.geomspace(low, high, int(count)).tolist()


_COMMA = re.compile(r",(?!\s*\w+\s*=)")  # a comma between kernels, not between the parameters of one


def read_kernels(text: str) -> list[str]:
    """Read kernels with commas between them."""
    return [part.strip() for part in _COMMA.split(text)]


type Positive = Annotated[float, Gt(0)]
type NonNegative = Annotated[float, Ge(0)]
type Probability = Annotated[float, Gt(0), Lt(1)]
type Count = Annotated[int, Ge(1)]
type RowNumber = Annotated[int, Ge(0)]
type Positives = Annotated[list[Positive], Len(1)]
type Counts = Annotated[list[Count], Len(1)]
type Names = Annotated[list[str], Len(1)]
type Share = Annotated[float, Gt(0), Lt(1), fields.Reader(read_share, "a share such as 10%")]
type Grid = Annotated[list[Positive], Len(1), fields.Reader(read_grid, _GRID)]
type Kernels = Annotated[list[str], Len(1), fields.Reader(read_kernels)]
type Seed = Annotated[int, Ge(0), Le(2**64 - 1)]  # see `frequencies.uniforms`
type Effort = Annotated[int, Ge(1), Le(5)]
type FoldCount = Annotated[int, Ge(2), Le(1000)]  # `data.folding.MAX_FOLDS`, without its import
type Impute = Literal["none", "median", "mean", "median-only", "most-frequent"]

# -- rows ------------------------------------------------------------------------------------------


def version_option() -> Any:
    """Return the option that names a version of the rows."""
    return fields.option(
        "For versioned data: a tag, or a version from `rff-dist data log`. The current version by default.",
        None,
        unit="VERSION",
    )


def impute_option(default: Impute) -> Any:
    """Return the option that says what replaces missing values."""
    return fields.option(
        "Value of the column that replaces missing ones; none replaces nothing. With median and mean, "
        "another column marks them by 0 and 1 where more than 1 % (and at least 10) are missing; median-only "
        "leaves it out. "
        "Missing text becomes a level of its own, or with most-frequent the most frequent one.",
        default,
        unit="median|mean|median-only|most-frequent|none",
    )


def holdout_by_option() -> Any:
    """Return the option that holds out the latest rows."""
    return fields.option(
        "Column of dates or numbers. The rows of its largest values are held out, so that no row to train on "
        "is later than a row to test on. By default rows are held out at random, or by groups.",
        None,
        unit="COLUMN",
    )


@fields.group
class Source:
    """Where the rows are."""

    panel: ClassVar[str] = "Names in the data"

    data: str = fields.option("Path or URL of the rows: a Zarr group.", argument=True, unit="DATA")
    version: str | None = version_option()
    x: str = fields.option("Name of the array of inputs.", "X")
    missing_chunks: Literal["error", "fill"] = fields.option(
        "Meaning of a chunk that is missing from the store. error: its data are lost, and the job stops. "
        "fill: it holds only the fill value.",
        "error",
    )

    def names(self) -> dict[str, Any]:
        """Return the arguments of `open_dataset` other than the URL."""
        names = ("x", "y", "sample_weight", "missing_chunks", "version")
        return {"y": None, **{name: getattr(self, name) for name in names if hasattr(self, name)}}


@fields.group
class WeightedSource(Source):
    """Where the rows are, and their weights."""

    sample_weight: str | None = fields.option(
        "Name of the array of sample weights. By default all rows weigh the same.", None
    )


@fields.group
class SupervisedSource(WeightedSource):
    """Where rows with targets are."""

    y: str = fields.option("Name of the array of targets, or of labels.", "y")


@fields.group
class TrainingSource(SupervisedSource):
    """Where rows to train on are."""

    sample_weight_kind: Literal["precision", "frequency"] = fields.option(
        "Meaning of the sample weights. precision: how certain a row's target is. frequency: how many times "
        "the row counts.",
        "precision",
    )


@fields.group
class TableEncoding:
    """How tables are read, and how their columns become numbers."""

    panel: ClassVar[str] = "Tables"

    header: bool | None = fields.option(
        "Column names in the first line of a CSV file. Without them (`--no-header`) the columns are called "
        "0, 1, …. Detected by default.",
        None,
    )
    delimiter: str | None = fields.option(
        "Separator of the cells of a CSV file. Detected by default.", None, unit="CHARACTER"
    )
    encoding: str | None = fields.option(
        "Text encoding of a CSV file, such as latin-1. By default utf-8, or cp1252 if the file is not valid "
        "utf-8.",
        None,
    )
    categories: Literal["auto", "one-hot", "target"] = fields.option(
        "How text becomes numbers. one-hot: a column of 0 and 1 for each level. target: the mean target of "
        "the level, from other rows than the row itself. auto: one-hot up to 20 levels, target above.",
        "auto",
        unit="auto|one-hot|target",
    )
    dates: Names | None = fields.option(
        "Parts of a date that become columns: some of elapsed-days, year, month, day-of-year, weekday and "
        "hour. By default all that vary, except year and month.",
        None,
        unit="PART,…",
    )
    impute: Impute = impute_option("none")
    keep_index: bool = fields.option(
        "Keep a first column that only numbers the rows, such as the index that pandas writes. By default it "
        "is left out.",
        False,
    )
    recipe: str | None = fields.option(
        "Path or URL of a model or a dataset whose recipe makes the inputs, or of a .skops file with a "
        "fitted scikit-learn transformer. Nothing is then learned from the table.",
        None,
        unit="PATH",
    )

    def __post_init__(self) -> None:
        how = (self.categories, self.dates, self.impute, self.keep_index)
        if self.recipe is not None and how != ("auto", None, "none", False):
            raise InvalidParameterError(
                f"`recipe` is {self.recipe!r}, which already says how columns become numbers; leave out "
                "`categories`, `dates`, `impute` and `keep_index`"
            )


# -- features --------------------------------------------------------------------------------------

_KERNELS = (
    "gaussian, laplacian (the L1 form), cauchy, sinc, matern, rational_quadratic, additive, linear, "
    "polynomial or min, with parameters as in matern:nu=1.5 or polynomial:degree=3. Kernels in a sum or "
    "product have length scales of their own: 'gaussian:length_scale=2 + 0.1 * linear'."
)
_NYSTROM = (
    "Kind of features. fourier: random Fourier features. nystrom: kernel values at some rows of the data, "
    "the centres."
)
_STANDARDIZE = (
    "Scaling of the input columns. true (yes): subtract the mean, divide by the standard deviation. rank: "
    "map the ranks of the values to a normal law. auto: rank for columns with heavy tails, true for the "
    "others. false (no): no scaling."
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


def _kernels_option(default: Any, what: str) -> Any:
    return fields.option(f"{what}, each one of {_KERNELS}", default, unit="K1,K2,…")


def _length_scales_option() -> Any:
    return fields.option(
        "Length scales to try with each kernel that has one length scale: numbers, lists with one number for "
        "each column, multiples of the median distance between rows such as 0.5x, or evidence. By default "
        "0.25x, 0.5x, 1x, 2x and 4x.",
        None,
        unit="L1,L2,…",
    )


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
    standardize: Standardize = fields.option(_STANDARDIZE, "auto", unit="HOW")
    kernels: Kernels | None = _kernels_option(None, "Kernels to compare on all rows, instead of one")
    length_scales: LengthScales | None = _length_scales_option()

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

    kernels: Kernels = _kernels_option(["gaussian", "matern:nu=1.5"], "Kernels to compare")
    length_scales: LengthScales | None = _length_scales_option()
    features: Literal["fourier", "nystrom"] = fields.option(_NYSTROM, "fourier")
    n_components: Literal["auto"] | Count | Counts = fields.option(
        "Number of features, D. Of several numbers each candidate takes the smallest within one standard "
        "error of its best. auto: 2048, or fewer if rows are few or memory is short.",
        1024,
        unit="D|D1,D2,…|auto",
    )
    standardize: Standardize = fields.option(_STANDARDIZE, "auto", unit="HOW")

    @property
    def candidates(self) -> list[Candidate]:
        """Kernels and length scales to compare."""
        from rff_dist.ridge.candidates import make_candidates

        return make_candidates(self.kernels, self.length_scales)


@fields.group
class ClusterFeatures(Features):
    """Features, or principal components of features, to cluster in."""

    standardize: Standardize = fields.option(_STANDARDIZE, False, unit="HOW")
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


# -- clusters --------------------------------------------------------------------------------------


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


# -- where results go, and where the job runs ------------------------------------------------------


def model_option(*, argument: bool) -> Any:
    """Return the option that says where a model is published."""
    text = "Path or URL where the model is published."
    return fields.option(text, argument=argument, unit="MODEL", writes=True)


@fields.group
class Destination:
    """Where a model is published."""

    model: str = model_option(argument=True)
    overwrite: bool = fields.option("Replace what is there, at the end of the job.", False)
    register: bool = fields.option(
        "Publish the model as the next version of a registered model, whose folder is then given as the "
        "path, such as models/NAME. Versions are never replaced.",
        False,
    )

    def __post_init__(self) -> None:
        if self.register and self.overwrite:
            raise InvalidParameterError(
                "`overwrite` is given, but versions of a registered model are never replaced; leave it out"
            )


@fields.group
class Where:
    """Where a job runs: in this process, in processes of this machine, or on an existing cluster."""

    panel: ClassVar[str] = "Where it runs"

    scheduler: str | None = fields.option(
        "Address of a Dask scheduler, tcp://127.0.0.1:8786 or tls://host:8786, or path of its scheduler file "
        "(*.json). By default RFF_DIST_SCHEDULER in the environment; without it the job starts a cluster on "
        "this machine, or works in its own process on up to 16,384 rows. For tls:// set RFF_DIST_TLS_CA, "
        "_CERT and _KEY in the environment to PEM files.",
        None,
        unit="ADDRESS|FILE.json",
    )
    n_workers: Count | None = fields.option(
        "Number of processes of a cluster on this machine. By default the number of CPUs decides.", None
    )
    min_workers: Count | None = fields.option(
        "Smallest number of processes of a cluster on this machine: it grows and shrinks between this and "
        "`n_workers` with the blocks of rows to work on. By default it always has `n_workers`.",
        None,
    )
    n_threads: Count | None = fields.option(
        "Number of threads of each process. By default the number of CPUs decides.", None
    )
    memory: str | None = fields.option(
        "Memory that each process may use, such as '4 GiB'. Equal shares by default.", None, unit="SIZE"
    )
    serial: bool = fields.option("Run in this process, without Dask.", False)
    insecure: bool = fields.option(
        "Allow a scheduler on another machine without TLS. Anyone who reaches it can run code there and "
        "here.",
        False,
    )

    def __post_init__(self) -> None:
        _ = self.cluster  # checks itself

    @property
    def cluster(self) -> Cluster:
        """The options as the library takes them."""
        from rff_dist.engines.cluster import Cluster

        return Cluster(**{one.name: getattr(self, one.name) for one in fields.options_of(Where)})
