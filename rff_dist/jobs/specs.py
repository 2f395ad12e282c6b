"""What each job is to do, as frozen specs: the groups of options that it takes, checked together once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rff_dist.errors import InvalidParameterError
from rff_dist.jobs.fields import group, option, values_of
from rff_dist.jobs.options import (
    ClusterFeatures,
    Count,
    Destination,
    Lloyd,
    Names,
    NonNegative,
    Probability,
    RowNumber,
    Seed,
    Share,
    Source,
    SupervisedSource,
    TableEncoding,
    TrainFeatures,
    TrainingSource,
    TuneFeatures,
    WeightedSource,
    version_option,
)
from rff_dist.jobs.ridge_options import (
    Classes,
    FoldOptions,
    PenaltyOptions,
    SolverOptions,
    TrainPenalty,
    TunePenalty,
)

if TYPE_CHECKING:
    from rff_dist.jobs.fits import Fit
    from rff_dist.ridge.options import RidgeOptions

_MODEL = (
    "Path or URL of a model: a regression, a classifier or clusters. Of a registered model the current "
    "version is used."
)
_TEST = "Path or URL of test data to evaluate the model on; if left out, it is not evaluated."


@group
class Train:
    """Train a ridge regression or a classifier, choose what is left open, and publish the model."""

    reason: ClassVar[str] = "fitted"

    source: TrainingSource
    destination: Destination
    features: TrainFeatures
    penalty: TrainPenalty
    folds: FoldOptions
    solving: SolverOptions
    classes: Classes
    test: str | None = option(_TEST, None, face="form")
    statistics: bool = option(
        "Whether the model keeps its exact sums; without them (`--no-statistics`) it cannot be updated.",
        True,
        flag="--no-statistics",
        given=(False,),
    )

    def __post_init__(self) -> None:
        self.folds.check(self.penalty.chosen, self.features.n_components)
        self.to_fit().check()

    @property
    def classify(self) -> bool:
        """Whether there are labels in the place of targets."""
        return self.classes.classify

    def to_fit(self) -> Fit:
        """Return what is trained, as the library takes it."""
        from rff_dist.classify.predict import SQUARED
        from rff_dist.jobs.fits import Fit

        classes = self.classes
        options = ridge_options(self.source, self.features, self.penalty, self.folds, self.solving)
        if classes.classify and options.solver == "auto":
            options = replace(options, solver="direct")  # probabilities come of the sums
        return Fit(
            options=options,
            loss=(classes.loss or SQUARED) if classes.classify else None,
            class_weight=classes.class_weight,
        )


@group
class Tune:
    """Compare kernels, length scales, alphas and D by cross-validation, and publish the best model."""

    reason: ClassVar[str] = "tuned"
    statistics: ClassVar[bool] = True
    classify: ClassVar[bool] = False

    source: TrainingSource
    destination: Destination
    features: TuneFeatures
    penalty: TunePenalty
    folds: FoldOptions
    test: str | None = option(_TEST, None, face="form")

    def __post_init__(self) -> None:
        self.to_fit().check()

    def to_fit(self) -> Fit:
        """Return what is compared, as the library takes it."""
        from rff_dist.jobs.fits import Fit
        from rff_dist.ridge.candidates import make_candidates

        candidates = make_candidates(self.features.kernels, self.features.length_scales)
        return Fit(
            options=ridge_options(self.source, self.features, self.penalty, self.folds),
            candidates=tuple(candidates),
        )


def ridge_options(
    source: TrainingSource,
    features: TrainFeatures | TuneFeatures,
    penalty: PenaltyOptions,
    folds: FoldOptions,
    solving: SolverOptions | None = None,
) -> RidgeOptions:
    """Return the options of a regression as the library takes them."""
    from rff_dist.ridge.options import RidgeOptions

    given: dict[str, Any] = {}
    if isinstance(features, TrainFeatures):
        given = {"kernel": features.given_kernel, "length_scale": features.scale}
    if isinstance(penalty, TrainPenalty):
        given["conformal"] = penalty.conformal
    if solving is not None:
        given["solver"] = solving.solver
    return RidgeOptions(
        features=features.kind,
        alpha=penalty.chosen,
        cv=folds.cv,
        sample_weight_kind=source.sample_weight_kind,
        **values_of(features, "n_components", "design", "map", "precision", "standardize", "seed"),
        **values_of(penalty, "alphas", "fit_intercept", "alpha_per_target"),
        **given,
    )


@group
class Clustering:
    """Cluster rows by k-means in features, write their labels, and publish the centres."""

    source: WeightedSource
    output: str = option(
        "Path or URL where the labels appear, as the Zarr array `labels`.",
        argument=True,
        unit="OUT",
        writes=True,
    )
    model: str | None = option(
        "Path or URL to publish the centres at. Rows can then be labelled later; none if left out.",
        None,
        unit="MODEL",
        writes=True,
    )
    overwrite: bool = option("Whether what is there may be replaced, when the job is done.", False)
    register: bool = option(
        "Whether the centres are published as the next version of a registered model, models/NAME, whose "
        "folder `model` is; versions are never replaced.",
        False,
    )
    lloyd: Lloyd
    labels: str | None = option(
        "Name of an array of known labels to compare with: adjusted Rand index and mutual information.", None
    )
    distances: bool = option(
        "Whether each row's distances to all centres are written with its label, as `distances`.", False
    )
    features: ClusterFeatures

    def __post_init__(self) -> None:
        if self.register and self.model is None:
            raise InvalidParameterError("`register` is given, but it needs a model to publish; give `model`")


@group
class Predict:
    """Write what a model of any kind says of every row of a dataset or a table, to Zarr, Parquet or CSV."""

    model: str = option(_MODEL, argument=True, unit="MODEL")
    source: Source
    output: str = option(
        "Path or URL of the Zarr group that is written: `predictions` or `labels`, and what else is wanted. "
        "Of a name that ends in .parquet, .csv or .csv.gz a table. A job that was stopped goes on when it is "
        "repeated; from tables, and into object stores, it begins again.",
        argument=True,
        unit="OUT",
        writes=True,
    )
    std: bool = option(
        "Whether a regression's standard deviations are written too, as `standard_deviations`, at the cost "
        "of a Cholesky factor.",
        False,
    )
    interval: Probability | None = option(
        "Of a regression: writes the ends of intervals that hold a share so large of new values, 0.9 say, as "
        "`lower` and `upper`: by held-out rows where the model was fitted with `conformal`, else by the "
        "normal law.",
        None,
        unit="C",
        alias="coverage",
    )
    probabilities: bool = option(
        "Whether a classifier's probabilities of the classes are written, as `probabilities`.", False
    )
    distances: bool = option("Whether distances to all clusters are written, as `distances`.", False)
    overwrite: bool = option("Whether an output that is there may be replaced.", False)


@group
class Evaluate:
    """Measure a model's errors on a dataset: per target, per class, or clusters against labels."""

    model: str = option(_MODEL, argument=True, unit="MODEL")
    source: SupervisedSource
    std: bool = option(
        "Whether a regression's standard deviations are judged too: NLPD, and how often intervals cover.",
        False,
    )


@group
class Update:
    """Add rows that were appended since a model was trained, exactly, if the new model is no worse."""

    model: str = option(
        "Path or URL of a model with its statistics, which is replaced, or of a registered one, models/NAME, "
        "whose next version is published.",
        argument=True,
        unit="MODEL",
    )
    source: SupervisedSource
    test: str | None = option(
        "Path or URL of test data to compare the champion, the current model, with the challenger, the "
        "updated one, on; if left out, the newest rows that the champion holds are kept out of both.",
        None,
        unit="DATA",
    )
    tolerance: NonNegative = option(
        "By how much the mean squared error of a target may rise on the held-out rows, as a share of it and "
        "with chance allowed for; else the champion is kept and the new rows are refused.",
        0.05,
        unit="SHARE",
    )
    drift_level: Probability = option(
        "Probability of a drift alarm for rows that have not drifted.", 0.05, unit="P", alias="level"
    )
    backfill: RowNumber | None = option(
        "Number of a row: from there on, rows that were refused before are judged again. If left out, they "
        "are passed over.",
        None,
        unit="ROW",
    )
    window: str | None = option(
        "Which rows of versioned data the model is to hold: those of the last 12 loads, say; 30d, those of "
        "the last 30 days before the newest load; or all. If left out, as before.",
        None,
        unit="12|30d|all",
    )
    half_life: str | None = option(
        "How long rows of versioned data keep their weight, before it halves: 12 loads, say; 30d, from one "
        "span of 30 days to the next, by when rows were loaded; or none. If left out, as before.",
        None,
        unit="12|30d|none",
    )
    force: bool = option("Whether the challenger is published even if it is worse than tolerated.", False)
    dry_run: bool = option("Whether to say only what would be done, and write nothing.", False)

    def __post_init__(self) -> None:
        if self.window is not None or self.half_life is not None:
            from rff_dist.storage.loads import ALL_ROWS, NO_HALF_LIFE, HalfLife, Window

            Window.parse(ALL_ROWS if self.window is None else self.window)
            HalfLife.parse(NO_HALF_LIFE if self.half_life is None else self.half_life)


@group
class Forget:
    """Delete rows of a versioned dataset, take them out of models, and remove the versions before."""

    data: str = option("Path or URL of a versioned dataset.", argument=True, unit="DATA")
    rows: str = option("A file of row numbers from 0, or of values of the column of ids.", unit="FILE")
    id: bool = option("Whether the file has ids of rows, in a column `id`.", False)
    models: list[str] = option(
        "Path or URL of a regression that follows the data, or of a registered one; may be given again.",
        [],
        flag="--model",
    )
    days: NonNegative = option(
        "Days for which the versions before stay readable, and hold the rows.", 0.0, unit="DAYS"
    )
    tags: bool = option("Whether tagged versions go too.", False)
    keep_order: bool = option(
        "Whether later rows move up; else the last rows take the places, which changes fewer chunks.", False
    )
    message: str | None = option("Why; kept with the version.", None, unit="TEXT")


@group
class Refit:
    """Train on other rows with a model's features, offsets, grids and choice of alpha."""

    like: str = option(
        "Path or URL of a regression with its statistics, or of a registered one.",
        argument=True,
        unit="MODEL",
    )
    source: SupervisedSource
    destination: Destination


@group
class Output:
    """Where a merged model is published."""

    model: str = option(
        "Path or URL where the model is published.", flag="--output", unit="MODEL", writes=True
    )
    overwrite: bool = option("Whether what is there may be replaced.", False)
    register: bool = option(
        "Whether the model is published as the next version of a registered one, models/NAME.", False
    )


@group
class Merge:
    """Make one model of several of one spec, trained apart on rows that never meet."""

    models: list[str] = option(
        "Paths or URLs of regressions with their statistics, the first of which says how alpha is chosen.",
        argument=True,
        unit="MODEL …",
    )
    destination: Output


@group
class Ingest:
    """Turn files or a query into a dataset, or into more rows of one."""

    sources: list[str] = option(
        "Files, patterns such as incoming/*.parquet, folders of Parquet files, or Zarr groups of columns; on "
        "disk or in an object store. Files are .csv, .tsv and .jsonl, also compressed, .parquet, .arrow, "
        ".feather, .npy and .npz. Arrays of one axis, such as y.npy beside X.npy, are columns. "
        "Where rows are appended, files that were ingested before are skipped.",
        [],
        argument=True,
        unit="SOURCE",
    )
    data: str = option(
        "Path or URL of the dataset that is written or that rows are appended to.",
        argument=True,
        unit="OUT",
        writes=True,
    )
    targets: Names | None = option(
        "Columns to predict; those of a dataset that is there are known, and found by name.",
        None,
        flag="--target",
        alias="target",
    )
    weight: str | None = option("Column of sample weights, likewise.", None)
    groups: str | None = option("Column of what rows are held out together by, likewise.", None)
    columns: Names | None = option(
        "Columns of the table that X is made of in this order, likewise; all others if left out.",
        None,
        unit="A,B,…",
    )
    drop: Names | None = option("Columns that are left out.", None, unit="A,B,…")
    id: str | None = option(
        "Column of integers or text that says what a row is called: it comes back beside predictions.", None
    )
    encoding_of: TableEncoding
    holdout: Share | None = option(
        "Share of the rows that are kept out, for a test, in a dataset of their own: of data.zarr in "
        "data-test.zarr. Rows of one group stay together.",
        None,
        unit="10%",
        face="command",
    )
    append: bool = option(
        "Whether the rows of files that are new are added to a dataset that may be there.",
        False,
        face="command",
    )
    sql: str | None = option(
        "A query whose rows are ingested, in the place of files: its text, or where that is, env:NAME or "
        "file:PATH, since other users of the machine see options. In it :n_ingested stands for the number of "
        "its rows that the dataset has already: SELECT … ORDER BY id LIMIT 1000000 OFFSET :n_ingested.",
        None,
        unit="QUERY",
    )
    connection: str | None = option(
        "The database, as SQLAlchemy writes it, or where that is: env:NAME or file:PATH; RFF_DIST_SQL in the "
        "environment if left out.",
        None,
        unit="URL",
        face="command",
    )
    dtype: Literal["float32", "float64"] | None = option(
        "Of X; keeps all digits if left out.", None, unit="float32|float64"
    )
    on_nan: Literal["error", "drop"] = option(
        "Whether a row with a missing or infinite value stops the job or is dropped.",
        "error",
        unit="error|drop",
    )
    chunk_rows: Count | None = option(
        "Rows of a chunk of a dataset that is created; chosen by size if left out.", None, unit="ROWS"
    )
    overwrite: bool = option("Whether a dataset that is there may be replaced.", False, face="command")
    plain: bool = option(
        "Whether a dataset that is created is plain Zarr, which all programs read that know Zarr, and which "
        "keeps no versions: rows cannot be added later.",
        False,
        face="command",
    )
    message: str | None = option(
        "Why; kept with the version of the dataset.", None, unit="TEXT", face="command"
    )

    def __post_init__(self) -> None:
        if bool(self.sources) == (self.sql is not None):
            both, alone = ", ".join(self.sources[:3]), f"{self.data} alone"
            wanted = "files or a query" if both else "files and, last, the dataset"
            raise InvalidParameterError(
                f"{both or alone}: expected {wanted}; either `sources`, files, or `sql`, a query"
            )
        if self.append and self.overwrite:
            raise InvalidParameterError(
                "`overwrite` is given, but rows are added to what is there; leave it out"
            )
        if self.append and self.holdout is not None:
            raise InvalidParameterError(
                "`holdout` is given, but rows are added to what is there; leave it out, and ingest rows for "
                "a test into a dataset of their own"
            )


@group
class Split:
    """Cut a dataset into one to train on and one to test on, beside it."""

    data: str = option(
        "Path or URL of the rows: a Zarr group. Of data.zarr are made data-train.zarr and data-test.zarr.",
        argument=True,
        unit="DATA",
    )
    version: str | None = version_option()
    share: Share = option("Share of the rows to test on.", 0.2, flag="--test", unit="20%", alias="holdout")
    by: Literal["random", "group", "time"] = option(
        "Whether hashes of ids or row numbers choose, hashes of groups, or time. group keeps rows of one "
        "group together; time tests on the last rows.",
        "random",
        unit="random|group|time",
    )
    groups: str = option("Name of the array of groups.", "groups")
    time: str | None = option(
        "Name of the column of X by which rows are the last ones; if left out, their order.", None
    )
    seed: Seed = option("Another one chooses other rows.", 0)
    overwrite: bool = option("Whether datasets that are there may be replaced.", False)

    def __post_init__(self) -> None:
        if self.time is not None and self.by != "time":
            raise InvalidParameterError(
                f"`time` is {self.time!r}, but rows are split by {self.by}; give by='time' too, or leave it "
                "out"
            )


@group
class AutoEncoding(TableEncoding):
    """How columns of tables become numbers; missing values are filled in."""

    impute: Literal["none", "median", "mean", "most-frequent"] = option(
        "What missing values become. Missing text is then a level of its own, or the most frequent one.",
        "median",
        unit="median|mean|most-frequent|none",
    )


@group
class Auto:
    """Turn a table into a registered model, with a test and what it compares with."""

    sources: list[str] = option(
        "A table: files, patterns or folders, as ingest takes them.", argument=True, unit="TABLE"
    )
    target: str = option("Column to predict.")
    into: str | None = option(
        "Folder for data and model; called as the table if left out.", None, unit="FOLDER", writes=True
    )
    task: Literal["auto", "regression", "classification"] = option(
        "auto takes text, booleans and numbers of two values for classes, all other numbers for a "
        "regression.",
        "auto",
    )
    holdout: Share = option("Share of the rows that the model is tested on.", 0.2, unit="20%")
    groups: str | None = option(
        "Column of what rows are held out together by, in the test and in folds.", None
    )
    weight: str | None = option("Column of sample weights.", None)
    id: str | None = option("Column that says what a row is called.", None)
    drop: Names | None = option("Columns that are left out.", None, unit="A,B,…")
    encoding_of: AutoEncoding
    n_components: Literal["auto"] | Count = option(
        "D, the number of features; chosen by the number of rows and the memory if left out.",
        "auto",
        flag="--components",
        unit="auto|D",
    )
    seed: Seed = option("Seed of all that is random.", 0)
    overwrite: bool = option(
        "Whether data that are there may be replaced; the model becomes the next version.", False
    )
