"""The options of all jobs in groups: each one's name, type, unit, default and help stand here, once.

The command line makes its options of them, Prefect its form, and Python the docstrings. A group checks itself
when it is made, with the library's errors; until then nothing is imported that takes long, for `--help`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Len, Lt

from rff_dist.errors import InvalidParameterError
from rff_dist.jobs.fields import group, option, values_of

if TYPE_CHECKING:
    from rff_dist.engines.cluster import Cluster
    from rff_dist.features.nystrom import Nystrom
    from rff_dist.kernels.base import Kernel, LengthScale
    from rff_dist.kmeans.options import ClusterSpace, LloydOptions

type Positive = Annotated[float, Gt(0)]
type NonNegative = Annotated[float, Ge(0)]
type Probability = Annotated[float, Gt(0), Lt(1)]
type Count = Annotated[int, Ge(1)]
type RowNumber = Annotated[int, Ge(0)]
type Positives = Annotated[list[Positive], Len(1)]
type Counts = Annotated[list[Count], Len(1)]
type Names = Annotated[list[str], Len(1)]
type Seed = Annotated[int, Ge(0), Le(2**64 - 1)]
type Share = Annotated[float, Gt(0), Lt(1)]
type FoldCount = Annotated[int, Ge(2), Le(1000)]

# -- rows ------------------------------------------------------------------------------------------


def version_option() -> Any:
    """Return the option that names a version of the rows."""
    return option(
        "Of a dataset that keeps versions: a tag, or a version as `rff-dist data log` names it; the current "
        "one if left out.",
        None,
        flag="--data-version",
        unit="VERSION",
    )


@group
class Source:
    """Where the rows are."""

    panel: ClassVar[str] = "Names in the data"

    data: str = option("Path or URL of the rows: a Zarr group.", argument=True, unit="DATA")
    version: str | None = version_option()
    x: str = option("Name of the array of inputs.", "X")
    missing_chunks: Literal["error", "fill"] = option(
        "What a chunk that is not in the store means: error, lost data; or fill, one that held only the fill "
        "value.",
        "error",
    )

    def names(self) -> dict[str, Any]:
        """Return what `open_dataset` takes beside the URL."""
        names = ("x", "y", "sample_weight", "missing_chunks", "version")
        return {"y": None, **{name: getattr(self, name) for name in names if hasattr(self, name)}}


@group
class WeightedSource(Source):
    """Where the rows are, and what each weighs."""

    sample_weight: str | None = option(
        "Name of the array of sample weights; all rows weigh alike if left out.", None, flag="--weights"
    )


@group
class SupervisedSource(WeightedSource):
    """Where rows with targets are."""

    y: str = option("Name of the array of targets, or of labels.", "y")


@group
class TrainingSource(SupervisedSource):
    """Where rows to train on are."""

    sample_weight_kind: Literal["precision", "frequency"] = option(
        "What weights say of a row: precision, how sure it is; or frequency, how often it is there.",
        "precision",
        flag="--weight-kind",
    )


@group
class TableEncoding:
    """How tables are read, and their columns become numbers."""

    panel: ClassVar[str] = "Tables"

    header: bool | None = option(
        "Whether the first line of a CSV file names the columns, else they are called 0, 1, …; found out if "
        "left out.",
        None,
        flags=("--header", "--no-header"),
        given=(True, False),
    )
    delimiter: str | None = option(
        "What is between the cells of a CSV file; found out if left out.", None, unit="CHARACTER"
    )
    encoding: str | None = option(
        "How a CSV file writes text, latin-1 say; if left out utf-8, or cp1252 where it is not that.", None
    )
    categories: Literal["auto", "one-hot", "target"] = option(
        "What text becomes: one-hot, 0 and 1 for each level; or target, the level's mean target, of other "
        "rows than its own. auto takes that above 20 levels.",
        "auto",
        unit="auto|one-hot|target",
    )
    dates: Names | None = option(
        "What dates become: some of elapsed-days, year, month, day-of-year, weekday and hour; if left out, "
        "those but year and month that vary.",
        None,
        unit="PART,…",
    )
    impute: Literal["none", "median", "mean", "most-frequent"] = option(
        "What missing values become. Missing text is then a level of its own, or the most frequent one.",
        "none",
        unit="median|mean|most-frequent|none",
    )
    recipe: str | None = option(
        "A model or a dataset whose recipe makes the inputs; or a .skops file of a fitted transformer of "
        "scikit-learn. Nothing is learned then.",
        None,
        unit="PATH",
    )

    def __post_init__(self) -> None:
        given = (self.categories, self.dates, self.impute) != ("auto", None, "none")
        if self.recipe is not None and given:
            raise InvalidParameterError(
                f"`recipe` is {self.recipe!r}, which says what becomes of the columns; leave out "
                "`categories`, `dates` and `impute`"
            )


# -- features --------------------------------------------------------------------------------------

_KERNELS = (
    "gaussian, laplacian (the L1 form), cauchy, sinc, matern, rational_quadratic, linear, polynomial or min, "
    "with parameters as in matern:nu=1.5 or polynomial:degree=3. In sums and products each has its own "
    "length scale: 'gaussian:length_scale=2 + 0.1 * linear'."
)
_NYSTROM = "fourier, random Fourier features; or nystrom, kernel values at rows of the data"
_STANDARDIZE = (
    "What is done to the input columns first: nothing (false, no); means and standard deviations are taken "
    "out (true, yes); each is mapped to a normal law by the ranks of its values (rank); auto is true, but "
    "rank for columns with heavy tails."
)
type Standardize = bool | Literal["rank", "auto"]


@group
class Drawing:
    """How features are drawn, whatever the kernel."""

    panel: ClassVar[str] = "Random features"
    last: ClassVar[bool] = True

    centres: Literal["uniform", "k-means++", "rpcholesky"] | None = option(
        "How Nyström features choose their rows of the data: uniform (if left out), k-means++ or rpcholesky.",
        None,
    )
    design: Literal["orthogonal", "iid", "quasi-monte-carlo", "structured"] | None = option(
        "How frequencies are arranged: orthogonal (if left out, where the kernel allows it), iid, "
        "quasi-monte-carlo, which is best for few columns, or structured, which is fast for hundreds.",
        None,
    )
    map: Literal["auto", "pairs", "phases"] = option(
        "pairs of cosines and sines, or cosines with random phases; auto takes the one of lower variance on "
        "a sample.",
        "pairs",
    )
    precision: Literal["standard", "high"] = option(
        "standard: the fast one; Fourier features have 15 bits, whose sums are exact. high: float32, for "
        "targets with next to no noise; a warning asks for it.",
        "standard",
    )
    seed: Seed = option("Seed of all that is random.", 0)


@group
class Features(Drawing):
    """Features of one kernel."""

    kernel: str = option(f"The kernel: {_KERNELS}", "gaussian", unit="KERNEL")
    nu: Positive | None = option(
        "Smoothness of the Matérn kernel, for matern; 1.5 if left out.", None, unit="NU"
    )
    features: Literal["fourier", "nystrom"] = option(f"The kind: {_NYSTROM}.", "fourier")
    n_components: Count = option(
        "D, the number of features: the error falls as 1/√D, the cost grows with D.",
        1024,
        flag="--components",
        unit="D",
    )
    length_scale: Literal["auto", "median"] | Positive | Positives = option(
        "The kernel's length scale, or one for each column, in units of the (standardised) inputs; auto and "
        "median take the median distance between rows of a sample.",
        "auto",
        unit="L|L1,L2,…",
    )

    def __post_init__(self) -> None:
        if self.nu is not None and self.kernel != "matern":
            raise InvalidParameterError(
                f"`nu` is {self.nu}, but the {self.kernel} kernel has none beside its text, only matern; "
                "leave it out"
            )
        _check_centres(self.centres, self.features)

    @property
    def kind(self) -> str | Nystrom:
        """The kind of features, as the library takes it."""
        return _kind(self.features, self.centres)

    @property
    def scale(self) -> str | LengthScale:
        """The length scale, as the library takes it."""
        given = self.length_scale
        return tuple(given) if isinstance(given, list) else given

    def make_kernel(self) -> Kernel:
        """Return the kernel, with its length scale where that is given in numbers."""
        from rff_dist.kernels.base import with_length_scale

        kernel = self._bare_kernel()
        return kernel if isinstance(self.scale, str) else with_length_scale(kernel, self.scale)

    def _bare_kernel(self) -> Kernel:
        from rff_dist.kernels.find import find_kernel
        from rff_dist.kernels.stationary import Matern

        return find_kernel(self.kernel) if self.nu is None else Matern(nu=self.nu)


@group
class TrainFeatures(Features):
    """Features of a regression; what is "auto" is chosen by cross-validation."""

    precision: Literal["auto", "standard", "high"] = option(  # type: ignore[assignment]  # one name more
        "standard: the fast one; Fourier features have 15 bits, whose sums are exact. high: float32, in up "
        "to 1.4 times the time, for targets with next to no noise. auto takes high, by another pass, where "
        "coefficients are so large that rounding shows; elsewhere the errors are alike.",
        "auto",
    )

    kernel: str = option(
        "auto compares Gaussian, Matérn-3/2 and linear kernels and sums of them by cross-validation. Or one "
        f"of {_KERNELS} Kernels that are products over the columns (laplacian, cauchy, sinc) need the "
        "`design` iid or quasi-monte-carlo.",
        "auto",
        unit="auto|KERNEL",
    )
    features: Literal["auto", "fourier", "nystrom"] = option(  # type: ignore[assignment]  # one name more
        f"The kind: {_NYSTROM}; auto compares both by cross-validation.", "auto", unit="auto|NAME"
    )
    n_components: Literal["auto"] | Count | Counts = option(  # type: ignore[assignment]
        "D, the number of features: the error falls as 1/√D, the cost grows as D². auto takes 2048, or fewer "
        "where rows are few or memory is short. Of several, all from one pass, cross-validation takes the "
        "smallest within one standard error of the best.",
        "auto",
        flag="--components",
        unit="auto|D|D1,D2,…",
    )
    length_scale: Literal["auto", "median", "evidence"] | Positive | Positives = option(  # type: ignore[assignment]
        "The kernel's length scale, or one for each column, in units of the (standardised) inputs. median "
        "takes the median distance between rows, evidence tunes one for each column on a sample of rows, and "
        "auto compares both by cross-validation.",
        "auto",
        unit="auto|median|evidence|L|L1,L2,…",
    )
    standardize: Standardize = option(_STANDARDIZE, "auto", unit="HOW")

    @property
    def given_kernel(self) -> str | Kernel:
        """The kernel as `RidgeOptions` takes it: auto stays a name, and so does a length scale."""
        from rff_dist.kernels.stationary import Matern

        return self.kernel if self.nu is None else Matern(nu=self.nu)


@group
class TuneFeatures(Drawing):
    """Features of several kernels and length scales, which are compared."""

    kernels: Names = option(
        f"Kernels to compare, each one of {_KERNELS}", ["gaussian", "matern:nu=1.5"], unit="K1,K2,…"
    )
    length_scales: Annotated[list[Positive | Positives | str], Len(1)] | None = option(
        "What each kernel of one length scale is tried with: numbers, lists with one for each column, "
        "multiples of the median distance between rows such as 0.5x, or evidence; 0.25x, 0.5x, 1x, 2x and 4x "
        "if left out.",
        None,
        unit="L1,L2,…",
    )
    features: Literal["fourier", "nystrom"] = option(f"The kind: {_NYSTROM}.", "fourier")
    n_components: Literal["auto"] | Count | Counts = option(
        "D, the number of features; of several each candidate takes its smallest within one standard error "
        "of its best; auto is 2048, or fewer where rows are few or memory is short.",
        1024,
        flag="--components",
        unit="D|D1,D2,…|auto",
    )
    standardize: Standardize = option(_STANDARDIZE, "auto", unit="HOW")

    def __post_init__(self) -> None:
        _check_centres(self.centres, self.features)

    @property
    def kind(self) -> str | Nystrom:
        """The kind of features, as the library takes it."""
        return _kind(self.features, self.centres)


@group
class ClusterFeatures(Features):
    """Features to cluster in, or their principal components."""

    standardize: Standardize = option(_STANDARDIZE, False, unit="HOW")
    n_principal: Count | None = option(
        "Cluster in that many leading kernel principal components; if left out, in the features themselves.",
        None,
        flag="--principal",
        unit="M",
    )
    normalize: Literal["degree"] | None = option(
        "degree takes components of degree-normalised features, which is spectral clustering, with "
        "`n_principal` of one less than the number of clusters.",
        None,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.space  # checks itself
        self.check_columns()

    @property
    def space(self) -> ClusterSpace:
        """What the options say, as the library takes it."""
        from rff_dist.kernels.base import default_design
        from rff_dist.kmeans.options import ClusterSpace

        kernel = self.make_kernel()
        same = ("n_components", "map", "precision", "standardize", "seed", "n_principal", "normalize")
        return ClusterSpace(
            kernel,
            length_scale=self.scale,
            features=self.kind,
            design=self.design or default_design(kernel),
            **values_of(self, *same),
        )

    def check_columns(self, n_features: int | None = None) -> None:
        """Check that kernel and design suit each other, and so many columns."""
        from rff_dist.features.options import find_features
        from rff_dist.kernels.base import check_design, default_design

        kernel = self.make_kernel()
        if n_features is None:
            kernel = self._bare_kernel()  # with length scales it knows of how many columns they are
        else:
            kernel.check_columns(n_features)
        if find_features(self.kind) is None:
            check_design(kernel, self.design or default_design(kernel), n_features or 1)
        elif self.design is not None:
            raise InvalidParameterError(
                f"`design` is {self.design!r}, but Nyström features have none, only features='fourier'; "
                "leave it out"
            )


def _kind(features: str, centres: str | None) -> str | Nystrom:
    from rff_dist.features.nystrom import Nystrom

    return features if features != "nystrom" else Nystrom() if centres is None else Nystrom(centres)


def _check_centres(centres: str | None, features: str) -> None:
    if centres is not None and features != "nystrom":
        raise InvalidParameterError(
            f"`centres` is {centres!r}, which only Nyström features have; give features='nystrom'"
        )


# -- clusters --------------------------------------------------------------------------------------


@group
class Lloyd:
    """Clusters by k-means."""

    panel: ClassVar[str] = "Clusters"

    n_clusters: Count | Counts = option(
        "How many; of several the best by `choose`, all found in the same passes.",
        8,
        flag="--clusters",
        unit="K|K1,K2,…",
    )
    choose: Literal["silhouette", "gap", "stability"] | None = option(
        "What takes one of several numbers: the largest silhouette (if left out); gap, the least number "
        "whose gap statistic the next does not beat by a standard error; or stability, the largest under "
        "resampling.",
        None,
        alias="criterion",
    )
    init: Literal["k-means||", "k-means++"] = option(
        "k-means|| draws candidates for the centres from all rows in six passes, k-means++ takes a sample of "
        "4,096 rows.",
        "k-means||",
    )
    n_init: Count = option(
        "Starts, which share each pass; the one of least inertia is kept.", 1, flag="--starts"
    )
    max_iter: Count = option("Lloyd passes, at most.", 300, flag="--max-passes")
    tol: NonNegative = option(
        "Stop when the centres' squared shifts are below this share of the mean variance of the features; 0: "
        "when no label changes.",
        1e-4,
        unit="SHARE",
    )
    algorithm: Literal["lloyd", "minibatch", "progressive"] = option(
        "lloyd passes over all rows; for very many rows in no order that matters minibatch takes up to 100 "
        "steps on few rows before, and progressive passes over 1/64, 1/16 and 1/4 of the blocks.",
        "lloyd",
    )

    def __post_init__(self) -> None:
        from rff_dist.kmeans import choosing_k

        if self.choose is not None and len(self.numbers) == 1:
            raise InvalidParameterError(
                f"`choose` is {self.choose!r}, but one number of clusters is not chosen; give several in "
                "`n_clusters`"
            )
        choosing_k.check_numbers(self.numbers, self.criterion)
        _ = self.to_library(0)  # checks itself

    def to_library(self, seed: int) -> LloydOptions:
        """Return what the options say, as the library takes it."""
        from rff_dist.kmeans.options import LloydOptions

        given = values_of(self, "init", "n_init", "max_iter", "tol", "algorithm")
        return LloydOptions(self.numbers[-1], seed=seed, **given)

    @property
    def numbers(self) -> list[int]:
        """Numbers of clusters to be found, in ascending order."""
        given = self.n_clusters
        return sorted(given) if isinstance(given, list) else [given]

    @property
    def criterion(self) -> str:
        """What takes one of several numbers."""
        return self.choose or "silhouette"


# -- where results go, and where the job runs ------------------------------------------------------


@group
class Destination:
    """Where a model is published."""

    model: str = option("Path or URL where the model is published.", argument=True, unit="MODEL", writes=True)
    overwrite: bool = option("Whether what is there may be replaced, when the job is done.", False)
    register: bool = option(
        "Whether the model is published as the next version of a registered one, models/NAME, whose folder "
        "`model` is; versions are never replaced.",
        False,
    )

    def __post_init__(self) -> None:
        if self.register and self.overwrite:
            raise InvalidParameterError(
                "`overwrite` is given, but versions of a registered model are never replaced; leave it out"
            )


@group
class Where:
    """Where a job runs: in this process, in processes of this machine, or on an existing cluster."""

    panel: ClassVar[str] = "Where it runs"

    scheduler: str | None = option(
        "A Dask scheduler: its address, tcp://127.0.0.1:8786 or tls://host:8786, or its scheduler file "
        "(*.json). If left out, that of RFF_DIST_SCHEDULER in the environment, else a cluster starts here "
        "and ends with the job; up to 16,384 rows need none. With RFF_DIST_TLS_CA, _CERT and _KEY: the PEM "
        "files for tls://.",
        None,
        unit="ADDRESS|FILE.json",
    )
    workers: Count | None = option(
        "Processes of the cluster that starts here; by the number of CPUs if left out.",
        None,
        alias="n_workers",
    )
    threads: Count | None = option(
        "Threads of each process; by the number of CPUs if left out.", None, alias="n_threads"
    )
    min_workers: Count | None = option(
        "Lets the cluster that starts here have as many processes as there are blocks of rows to work on, "
        "from so many to `workers`; if left out, it always has `workers`.",
        None,
        face="form",
    )
    worker_memory: str | None = option(
        "Memory that each process may use, '4 GiB' say; equal shares if left out.", None, face="form"
    )
    serial: bool = option("Whether to run in this process, without Dask.", False, face="command")
    insecure_cluster: bool = option(
        "Whether a scheduler beyond this machine may be used without TLS: anyone who reaches it can run code "
        "there and here.",
        False,
        alias="insecure",
    )

    def __post_init__(self) -> None:
        sizes = ("workers", "min_workers", "threads", "worker_memory")
        given = [f"`{name}`" for name in sizes if getattr(self, name) is not None]
        if self.scheduler is not None and given:
            raise InvalidParameterError(
                f"{', '.join(given)} size a cluster that starts here, but `scheduler` names an existing one, "
                "with workers and threads of its own; leave one of them out"
            )
        _ = self.cluster  # checks itself

    @property
    def cluster(self) -> Cluster:
        """What the options say."""
        from rff_dist.engines.cluster import Cluster

        return Cluster(
            scheduler=self.scheduler,
            n_workers=self.workers,
            min_workers=self.min_workers,
            n_threads=self.threads,
            memory=self.worker_memory,
            serial=self.serial,
            insecure=self.insecure_cluster,
        )
