"""Options that commands share, and how their texts become values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rff_dist.automatic import RidgeOptions
    from rff_dist.engines import Engine
    from rff_dist.engines.connection import Cluster
    from rff_dist.feature_map import Nystrom
    from rff_dist.folds import Folds
    from rff_dist.kernels import Kernel, LengthScale
    from rff_dist.progress import Observer

DEFAULT_FOLDS = 5
MAX_ALPHAS = 10_000

FEATURES, REGRESSION, NAMES, CLUSTER = "Random features", "Regression", "Names in the data", "Where it runs"
CLASSIFICATION = "Classification"

DataArgument = Annotated[str, typer.Argument(metavar="DATA", help="Dataset: a Zarr group, path or URL.")]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Model that `fit`, `tune` or `cluster` wrote.")
]

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there, when done.")]
Register = Annotated[
    bool,
    typer.Option(
        "--register",
        help="Publish the next version of a registered model, models/NAME; see `rff-dist models`.",
    ),
]
ChunkRows = Annotated[
    str | None,
    typer.Option("--chunk-rows", metavar="ROWS", help="Rows of a chunk; chosen by size if left out."),
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, max=2**64 - 1, help="Of all that is random.")
]

_KERNELS = (
    "gaussian, laplacian (the L1 form), cauchy, sinc, matern, rational_quadratic, linear, polynomial or min, "
    "with parameters as in matern:nu=1.5 or polynomial:degree=3. In sums and products each has its own "
    "width: 'gaussian:length_scale=2 + 0.1 * linear'."
)
KernelName = Annotated[
    str, typer.Option("--kernel", metavar="KERNEL", help=f"One of {_KERNELS}", rich_help_panel=FEATURES)
]
FitKernelName = Annotated[
    str,
    typer.Option(
        "--kernel",
        metavar="auto|KERNEL",
        help="auto compares Gaussian, Matérn-3/2 and linear kernels and sums of them by cross-validation. "
        f"Or one of {_KERNELS}",
        rich_help_panel=FEATURES,
    ),
]
Nu = Annotated[
    float | None,
    typer.Option(
        "--nu",
        metavar="NU",
        help="Smoothness of the Matérn kernel, for --kernel matern; 1.5 if left out.",
        rich_help_panel=FEATURES,
    ),
]
Components = Annotated[
    str,
    typer.Option(
        "--components",
        metavar="auto|D|D1,D2,…",
        help="How many: the error falls as 1/√D, the cost grows as D². auto takes 2048, or fewer where rows "
        "are few or memory is short. Of several, all from one pass, cross-validation takes the smallest "
        "within one standard error of the best.",
        rich_help_panel=FEATURES,
    ),
]
LengthScaleText = Annotated[
    str,
    typer.Option(
        "--length-scale",
        metavar="L|L1,L2,…",
        help="Width of the kernel, or one for each column, in units of the (standardised) inputs; auto and "
        "median take the median distance between rows.",
        rich_help_panel=FEATURES,
    ),
]
FitLengthScaleText = Annotated[
    str,
    typer.Option(
        "--length-scale",
        metavar="auto|median|evidence|L|L1,L2,…",
        help="Width of the kernel, or one for each column, in units of the (standardised) inputs. median "
        "takes the median distance between rows, evidence tunes one for each column on a sample of rows, and "
        "auto compares both by cross-validation.",
        rich_help_panel=FEATURES,
    ),
]
FeaturesName = Annotated[
    str,
    typer.Option(
        "--features",
        metavar="NAME",
        help="fourier, or nystrom: kernel values at rows of the data.",
        rich_help_panel=FEATURES,
    ),
]
FitFeaturesName = Annotated[
    str,
    typer.Option(
        "--features",
        metavar="auto|NAME",
        help="fourier, or nystrom: kernel values at rows of the data. auto compares both by "
        "cross-validation.",
        rich_help_panel=FEATURES,
    ),
]
CentresName = Annotated[
    str | None,
    typer.Option(
        "--centres",
        metavar="NAME",
        help="How Nyström features choose those rows: uniform, k-means++ or rpcholesky; uniform if left out.",
        rich_help_panel=FEATURES,
    ),
]
DesignName = Annotated[
    str | None,
    typer.Option(
        "--design",
        metavar="NAME",
        help="How frequencies are arranged: orthogonal (if left out, where the kernel allows it), iid, "
        "quasi-monte-carlo, which is best for few columns, or structured, which is fast for hundreds.",
        rich_help_panel=FEATURES,
    ),
]
MapName = Annotated[
    str,
    typer.Option(
        "--map",
        metavar="NAME",
        help="pairs of cosines and sines, or cosines with random phases; auto takes the one of lower "
        "variance on a sample.",
        rich_help_panel=FEATURES,
    ),
]
Standardize = Annotated[
    str,
    typer.Option(
        "--standardize",
        metavar="HOW",
        help="What is done to the input columns first: no; yes, means and standard deviations are taken "
        "out; rank, each is mapped to a normal law by the ranks of its values; auto is yes, but rank for "
        "columns with heavy tails.",
        rich_help_panel=FEATURES,
    ),
]
NoStandardize = Annotated[
    bool,
    typer.Option(
        "--no-standardize", help="Do not centre and scale the inputs first.", rich_help_panel=FEATURES
    ),
]
AlphaText = Annotated[
    str,
    typer.Option(
        "--alpha",
        metavar="auto|A|A1,A2,…",
        help="Penalty of ‖y − Zw‖² + α‖w‖²: a number, or several to choose from; auto leaves it to --select.",
        rich_help_panel=REGRESSION,
    ),
]
SelectName = Annotated[
    str | None,
    typer.Option(
        "--select",
        metavar="NAME",
        help="What chooses alpha: cv, the k-fold error; cv-1se, the largest alpha within one standard error "
        "of its best; gcv; evidence; or press, leave-one-out errors, in one more pass. If left out: cv, or "
        "press where memory does not hold the sums of the folds.",
        rich_help_panel=REGRESSION,
    ),
]
AlphasText = Annotated[
    str | None,
    typer.Option(
        "--alphas",
        metavar="LOW:HIGH:N|A1,A2,…",
        help="What it chooses from: N values in equal ratios, or these; the whole range if left out.",
        rich_help_panel=REGRESSION,
    ),
]
Conformal = Annotated[
    bool,
    typer.Option(
        "--conformal",
        help="Count in one more pass how far off held-out rows are, for predict --interval; 5 folds if no "
        "others are asked for.",
        rich_help_panel=REGRESSION,
    ),
]
Normalized = Annotated[
    bool,
    typer.Option(
        "--normalized",
        help="With --conformal: let intervals be as wide as residuals near each row say; one more pass.",
        rich_help_panel=REGRESSION,
    ),
]
OneAlpha = Annotated[
    bool,
    typer.Option(
        "--one-alpha",
        help="Let all targets share one alpha; else those get their own whose errors it lowers.",
        rich_help_panel=REGRESSION,
    ),
]
PlotPath = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="PNG",
        help="Draw the errors that it chooses by against alpha, and against D.",
        rich_help_panel=REGRESSION,
    ),
]
FoldsOption = Annotated[
    int | None,
    typer.Option(
        "--folds",
        metavar="N",
        min=2,
        max=1000,
        help="Choose by errors on N folds of rows, summed apart in the same pass; 5 if left out, or fewer "
        "where memory does not hold them.",
        rich_help_panel=REGRESSION,
    ),
]
GroupByName = Annotated[
    str | None,
    typer.Option(
        "--group-by",
        metavar="NAME",
        help="Array of groups (patient, site, day) whose rows are in one fold.",
        rich_help_panel=REGRESSION,
    ),
]
TimeOrder = Annotated[
    bool,
    typer.Option(
        "--time",
        help="Rows are in the order of time: each fold is predicted from those before it.",
        rich_help_panel=REGRESSION,
    ),
]
NoIntercept = Annotated[
    bool, typer.Option("--no-intercept", help="Fit no intercept.", rich_help_panel=REGRESSION)
]

Classify = Annotated[
    bool,
    typer.Option(
        "--classify",
        help="y holds labels, text or whole numbers: train a classifier.",
        rich_help_panel=CLASSIFICATION,
    ),
]
LossName = Annotated[
    str | None,
    typer.Option(
        "--loss",
        metavar="NAME",
        help="squared: ridge on codes -1 and +1, in one pass (if left out); logistic, or squared_hinge, a "
        "kernel support vector machine without probabilities: 10 to 30 cheap passes more.",
        rich_help_panel=CLASSIFICATION,
    ),
]
ClassWeight = Annotated[
    str | None,
    typer.Option(
        "--class-weight",
        metavar="balanced",
        help="Let all classes weigh alike.",
        rich_help_panel=CLASSIFICATION,
    ),
]

XName = Annotated[str, typer.Option("--x", metavar="NAME", help="Array of inputs.", rich_help_panel=NAMES)]
YName = Annotated[str, typer.Option("--y", metavar="NAME", help="Array of targets.", rich_help_panel=NAMES)]
WeightsName = Annotated[
    str | None,
    typer.Option("--weights", metavar="NAME", help="Array of sample weights.", rich_help_panel=NAMES),
]
WeightKind = Annotated[
    str,
    typer.Option(
        "--weight-kind",
        metavar="NAME",
        help="What weights say: precision, how sure a row is; or frequency, how often it is there.",
        rich_help_panel=NAMES,
    ),
]
MissingChunks = Annotated[
    str,
    typer.Option(
        "--missing-chunks",
        metavar="NAME",
        help="error, or fill where the writer left out chunks that hold the fill value.",
        rich_help_panel=NAMES,
    ),
]

Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="ADDRESS|FILE.json",
        help="An existing Dask cluster, by address or scheduler file; else that of $RFF_DIST_SCHEDULER, else "
        "one starts here. With $RFF_DIST_TLS_CA, _CERT and _KEY: the PEM files for tls://.",
        rich_help_panel=CLUSTER,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, help="Processes of that one.", rich_help_panel=CLUSTER),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", min=1, help="Threads of each process.", rich_help_panel=CLUSTER),
]
Serial = Annotated[
    bool,
    typer.Option("--serial", help="Run in this process, without Dask.", rich_help_panel=CLUSTER),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure-cluster",
        help="Allow a scheduler on the network without TLS.",
        rich_help_panel=CLUSTER,
    ),
]


def read_count(text: str, option: str) -> int:
    """Read a whole number such as 1000, 1_000 or 1e6."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value.is_integer() and 1 <= value <= 2**53):
        raise typer.BadParameter(
            f"{text!r}; expected a whole number of at least 1, such as 4096 or 1e6", param_hint=option
        )
    return int(value)


def read_standardize(text: str) -> bool | str:
    """Read `--standardize`."""
    named: dict[str, bool | str] = {"no": False, "yes": True, "rank": "rank", "auto": "auto"}
    if text not in named:
        raise typer.BadParameter(f"{text!r}; expected one of {', '.join(named)}", param_hint="--standardize")
    return named[text]


def read_numbers(text: str, option: str, else_expected: str = "auto, a number") -> list[float]:
    """Read numbers with commas between them; errors say what else is expected."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}; expected {else_expected}, or numbers with commas between them", param_hint=option
        ) from None


def read_alpha(text: str) -> float | str | list[float]:
    """Read `--alpha`, and check its range."""
    from rff_dist.pipeline import ALPHA_NAMES, check_alpha

    if text in ALPHA_NAMES:
        return text
    values = read_numbers(text, "--alpha")
    alpha = values if len(values) > 1 else values[0]
    check_alpha(alpha)
    return alpha


def read_alphas(text: str) -> list[float]:
    """Read `--alphas`: a range such as 1e-6:1e3:30, in equal ratios, or numbers with commas between them."""
    from rff_dist.pipeline import check_alpha

    if ":" not in text:
        values = read_numbers(text, "--alphas", "LOW:HIGH:N")
    else:
        import numpy as np

        try:
            low, high, count = (float(part) for part in text.split(":"))
        except ValueError:
            low = high = count = math.nan
        if not (0 < low < high < math.inf and count.is_integer() and 2 <= count <= MAX_ALPHAS):
            raise typer.BadParameter(
                f"{text!r}; expected LOW:HIGH:N, 0 < LOW < HIGH and N from 2 to {MAX_ALPHAS}, such as "
                "1e-6:1e3:30",
                param_hint="--alphas",
            )
        values = np.geomspace(low, high, int(count)).tolist()
    check_alpha(values)
    return values


def read_selection(
    alpha: str, select: str | None, alphas: str | None
) -> tuple[float | str | list[float], list[float] | None]:
    """Read `--alpha`, `--select` and `--alphas`: what `pipeline.fit` takes as `alpha` and as `alphas`."""
    from rff_dist.pipeline import ALPHA_NAMES

    penalty, grid = read_alpha(alpha), None if alphas is None else read_alphas(alphas)
    if select is not None:
        names = [name for name in ALPHA_NAMES if name != "auto"]
        if select not in names:
            raise typer.BadParameter(f"{select!r}; expected one of {', '.join(names)}", param_hint="--select")
        if penalty != "auto":
            raise typer.BadParameter(
                f"{select} chooses alpha, and --alpha {alpha} gives it; leave one of them out "
                "(--alphas has values to choose from)",
                param_hint="--select",
            )
        penalty = select
    if grid is not None and not isinstance(penalty, str):
        raise typer.BadParameter(
            f"values to choose from, and --alpha {alpha} gives them too; leave one of them out",
            param_hint="--alphas",
        )
    return penalty, grid


def read_classification(classify: bool, loss: str | None, class_weight: str | None) -> str | None:
    """Read `--classify`, `--loss` and `--class-weight`: the loss of a classifier, or None for regression."""
    from rff_dist.class_prediction import SQUARED
    from rff_dist.classification import check_loss

    given = {"--loss": loss is not None, "--class-weight": class_weight is not None}
    if not classify and any(given.values()):
        raise typer.BadParameter(
            "it is a classifier's; add --classify, or leave it out",
            param_hint=next(option for option, is_given in given.items() if is_given),
        )
    if class_weight not in (None, "balanced"):
        raise typer.BadParameter(f"{class_weight!r}; expected balanced", param_hint="--class-weight")
    if not classify:
        return None
    check_loss(SQUARED if loss is None else loss)
    return loss or SQUARED


def read_components(text: str, *, alpha: float | str | list[float] = "auto") -> int | str | list[int]:
    """Read `--components`: a whole number, several with commas between them, or auto, beside this `alpha`."""
    from rff_dist.pipeline import CV_NAMES

    counts = [] if text == "auto" else [read_count(part, "--components") for part in text.split(",")]
    if len(counts) > 1 and isinstance(alpha, str) and alpha not in CV_NAMES:
        raise typer.BadParameter(
            f"{text!r} is chosen from by cross-validation, not by {alpha}; give one number, or --select cv",
            param_hint="--components",
        )
    return text if not counts else counts if len(counts) > 1 else counts[0]


def read_cv(
    n_folds: int | None, groups: str | None, time: bool, *, alpha: float | str | list[float]
) -> int | Folds | None:
    """Read `--folds`, `--group-by` and `--time`: what `pipeline.fit` takes as `cv` beside this `alpha`."""
    from rff_dist.folds import GroupFolds, TimeFolds
    from rff_dist.pipeline import CV_NAMES

    given = {"--folds": n_folds is not None, "--group-by": groups is not None, "--time": time}
    if any(given.values()) and isinstance(alpha, str) and alpha not in CV_NAMES:
        raise typer.BadParameter(
            f"folds are for --select cv or cv-1se, not {alpha}; leave one of them out",
            param_hint=next(option for option, is_given in given.items() if is_given),
        )
    if groups is not None and time:
        raise typer.BadParameter("folds are of groups or of time; leave one out", param_hint="--group-by")
    if groups is not None:
        return GroupFolds(n_folds or DEFAULT_FOLDS)
    return TimeFolds(n_folds or DEFAULT_FOLDS) if time else n_folds


def read_length_scale(text: str) -> str | LengthScale:
    """Read `--length-scale`; kernels check its range."""
    if text in ("auto", "median", "evidence"):
        return text
    values = read_numbers(text, "--length-scale", "auto, median, evidence, a number")
    return tuple(values) if len(values) > 1 else values[0]


def read_features(name: str, centres: str | None, *, auto: bool = False) -> str | Nystrom:
    """Read `--features` and `--centres`; with `auto` both kinds may be compared."""
    from rff_dist.drawing import find_features
    from rff_dist.feature_map import Nystrom

    if (auto and name == "auto") or find_features(name) is None:
        if centres is not None:
            raise typer.BadParameter("only --features nystrom has them", param_hint="--centres")
        return name
    return Nystrom() if centres is None else Nystrom(centres)


def read_bytes(text: str, option: str) -> int:
    """Read a size in memory such as 512MiB or 2G; all units are powers of 1024."""
    match = re.fullmatch(r"([\d.]+)\s*([KMGT]?)(i?B)?", text.strip(), re.IGNORECASE)
    try:
        number = float(match[1]) if match else math.nan
    except ValueError:
        number = math.nan
    if match is None or not number > 0:
        raise typer.BadParameter(f"{text!r}; expected a size such as 2GiB or 512MiB", param_hint=option)
    return int(number * 1024 ** " KMGT".index(match[2].upper() or " "))


def read_kernel(name: str, nu: float | None) -> str | Kernel:
    """Read `--kernel` and `--nu`; auto stays a name."""
    from rff_dist.kernels import Matern, find_kernel

    if nu is not None and name != Matern.name:
        raise typer.BadParameter(f"only --kernel matern takes it, not {name}", param_hint="--nu")
    return name if name == "auto" else find_kernel(name) if nu is None else Matern(nu=nu)


def make_kernel(name: str, nu: float | None, length_scale: str | LengthScale) -> Kernel:
    """Return the kernel that the options name, where nothing is chosen; a name leaves its length scale."""
    from rff_dist.kernels import find_kernel

    kernel = find_kernel(read_kernel(name, nu))
    if isinstance(length_scale, str):
        if length_scale == "evidence":
            raise typer.BadParameter(
                "evidence needs targets, which nothing is fitted to here; give auto or numbers",
                param_hint="--length-scale",
            )
        return kernel
    from rff_dist.kernels import with_length_scale

    return with_length_scale(kernel, length_scale)


def read_options(
    *,
    kernel: str = "auto",
    nu: float | None = None,
    length_scale: str = "auto",
    features: str = "auto",
    centres: str | None = None,
    n_components: str = "auto",
    alpha: str = "auto",
    select: str | None = None,
    alphas: str | None = None,
    n_folds: int | None = None,
    groups: str | None = None,
    time: bool = False,
    **others: Any,
) -> RidgeOptions:
    """Read what a regression is to use from the texts of the options; `others` are given as they are."""
    from rff_dist.automatic import RidgeOptions

    penalty, grid = read_selection(alpha, select, alphas)
    return RidgeOptions(
        kernel=read_kernel(kernel, nu),
        length_scale=read_length_scale(length_scale),
        features=read_features(features, centres, auto=True),
        n_components=read_components(n_components, alpha=penalty),
        alpha=penalty,
        alphas=grid,
        cv=read_cv(n_folds, groups, time, alpha=penalty),
        **others,
    )


@dataclass(frozen=True, slots=True)
class Where:
    """Where a job is to run, as the options say."""

    scheduler: str | None
    n_workers: int | None
    n_threads: int | None
    serial: bool
    insecure: bool

    def __post_init__(self) -> None:
        given = {"--scheduler": self.scheduler is not None, "--workers": self.n_workers is not None}
        if self.serial and any(given.values()):
            other = next(option for option, is_given in given.items() if is_given)
            raise typer.BadParameter(
                f"runs in this process, without {other}; leave one of them out", param_hint="--serial"
            )
        if self.scheduler is not None and (self.n_workers is not None or self.n_threads is not None):
            raise typer.BadParameter(
                "an existing cluster has its own workers and threads; leave out --workers and --threads",
                param_hint="--scheduler",
            )

    @property
    def cluster(self) -> Cluster:
        """What the options say, and the environment where no option says otherwise."""
        from rff_dist.engines.connection import Cluster

        return Cluster(
            scheduler=self.scheduler,
            n_workers=self.n_workers,
            n_threads=self.n_threads,
            serial=self.serial,
            insecure=self.insecure,
        ).in_environment()

    @property
    def address(self) -> str | None:
        """The scheduler's: of the option, or of the environment where no option says otherwise."""
        return self.cluster.scheduler

    def size(self) -> tuple[int, int]:
        """Return workers and threads of each, for this process or for an embedded cluster."""
        return self.cluster.size()

    def start(self, observers: Sequence[Observer]) -> Engine:
        """Start or join what runs the job."""
        from rff_dist.engines.connection import open_engine

        return open_engine(self.cluster, observers=observers)
