"""The specs of all jobs: frozen groups of the options that a job takes.

In go values of options from any source, out comes a spec that is checked once, as a
whole. Arguments of functions would be declared again for flags, files, the environment
and Prefect's forms.

`access` says what a job does at the path or URL that an option names; `placeholder`
stands for the option's value in help. `fields.like` declares an option as another spec
has it.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from rff_dist import fields
from rff_dist.errors import InvalidParameterError
from rff_dist.fitting.options import RidgeOptions
from rff_dist.kmeans.cluster_options import ClusterSpace, LloydOptions
from rff_dist.living.windows import Window
from rff_dist.recipes import options as recipe_options
from rff_dist.workbench.jobs import places, training
from rff_dist.workbench.tables import options as table_options

if TYPE_CHECKING:
    from rff_dist.workbench.jobs import fits

_MODEL = (
    "Path or URL of a model: a regression, a classifier or clusters. A registered model"
    " is used in its current version."
)
_TEST = (
    "Path or URL of test data to evaluate the model on. By default cross-validation"
    " judges it."
)


@fields.group
class Train:
    """Train a ridge regression or a classifier, choose what is left open, and publish
    the model.
    """

    source: places.SupervisedDataSource
    destination: places.Destination
    options: RidgeOptions
    compared: training.ComparisonOptions
    folds: training.FoldOptions
    classes: training.Classes
    test: str | None = fields.optional(_TEST, placeholder="DATA", access="reads")
    statistics: bool = fields.option(
        "Keep the exact sums in the model. Without them it is smaller, and cannot be"
        " updated or merged.",
        True,
    )
    card: str | None = fields.optional(
        "TOML file with texts that are kept with the model, and shown on its page and"
        " model card: intended_use, limits (what it is not for) and data (where its"
        " rows come from).",
        placeholder="TOML",
        access="reads",
    )

    def __post_init__(self) -> None:
        self.folds.check(self.options.alpha)
        self.fit.check()

    @cached_property
    def fit(self) -> fits.Fit:
        """What to train, as the library takes it."""
        # imported late: they load SciPy, for which `--help` need not wait
        from rff_dist.classify.fit import LossOptions
        from rff_dist.workbench.jobs.fits import Fit

        classes = self.classes
        losses = None
        if classes.classify:
            losses = LossOptions(classes.loss or LossOptions.loss, classes.class_weight)
        cv = self.folds.cv_of(is_grid=self.source.is_grid)
        with_folds = dataclasses.replace(self.options, cv=cv)
        return Fit(with_folds, losses, self.compared.candidates(with_folds))


@fields.group
class Clustering:
    """Cluster rows by k-means in features, write their labels, and publish the
    centres.
    """

    source: places.WeightedDataSource
    output: str = fields.argument(
        "Path or URL where the labels are written: a Zarr group, with the array"
        " 'labels'.",
        "OUT",
        access="writes",
    )
    model: str | None = fields.optional(
        "Path or URL where the centres are published. Other rows can then be labelled"
        " later. By default they are not kept.",
        placeholder="MODEL",
        access="writes",
    )
    overwrite: bool = fields.flag("Replace an existing output, at the end of the job.")
    register: bool = fields.like(places.Destination, "register")
    lloyd: LloydOptions
    labels: str | None = fields.optional(
        "Name of an array of known labels to compare the clusters with, by the adjusted"
        " Rand index and mutual information. A column that `ingest` takes as target is"
        " 'y'."
    )
    distances: bool = fields.flag(
        "Write each row's distances to all centres too, as 'distances'."
    )
    principal: bool = fields.flag(
        "Write each row's kernel principal components too, `n_principal` of them, as"
        " 'principal'."
    )
    space: ClusterSpace
    card: str | None = fields.like(Train, "card")

    def __post_init__(self) -> None:
        if self.register and self.model is None:
            raise InvalidParameterError(
                "`register` is given, but it needs a model to publish; give `model`"
            )
        if self.principal and self.space.n_principal is None:
            raise InvalidParameterError(
                "`principal` needs a number of components; give `n_principal`"
            )


@fields.group
class Predict:
    """Write a model's predictions or labels of every row of a dataset or a table, to
    Zarr, Parquet or CSV.
    """

    model: str = fields.argument(_MODEL, "MODEL", access="reads")
    source: places.DataSource
    output: str = fields.argument(
        "Path or URL of the Zarr group to write, with the array 'predictions' or"
        " 'labels'; for a grid, a grid with the variable 'prediction' or 'labels'. A"
        " name that ends in .parquet, .csv or .csv.gz writes a table. A stopped job"
        " goes on when it is repeated; from tables and into object stores it begins"
        " again.",
        "OUT",
        access="writes",
    )
    std: bool = fields.flag(
        "Write standard deviations too, as 'standard_deviations', on a grid 'std', at"
        " the cost of a Cholesky factorisation. For a regression."
    )
    coverage: fields.Share | None = fields.optional(
        "Coverage of prediction intervals, such as 0.9. Writes their ends as 'lower'"
        " and 'upper': from cross-validated residuals if the model was fitted with"
        " folds, else from the normal distribution. For a regression.",
        placeholder="C",
    )
    probabilities: bool = fields.flag(
        "Write the probabilities of all classes too, as 'probabilities'. For a"
        " classifier."
    )
    distances: bool = fields.like(Clustering, "distances", more=" For clusters.")
    principal: bool = fields.flag(
        "Write the principal components too, as 'principal'. For clusters that were"
        " found in them."
    )
    overwrite: bool = fields.flag("Replace an existing output.")


@fields.group
class Evaluate:
    """Measure a model's errors on a dataset: per target, per class, or clusters against
    labels.
    """

    model: str = fields.argument(_MODEL, "MODEL", access="reads")
    source: places.SupervisedDataSource
    std: bool = fields.flag(
        "Judge the standard deviations too, by NLPD and by the share of targets inside"
        " intervals. For a regression."
    )
    coverage: fields.Share | None = fields.optional(
        "Say which share of the targets is inside the intervals that `predict` writes"
        " with this coverage, such as 0.9. For a regression.",
        placeholder="C",
    )


@fields.group
class Update:
    """Add the rows that were appended since a model was trained, exactly, unless that
    makes it worse.
    """

    model: str = fields.argument(
        "Path or URL of a model with its statistics, which is replaced, or of a"
        " registered model, models/NAME, whose next version is published.",
        "MODEL",
        access="changes",
    )
    source: places.SupervisedDataSource
    test: str | None = fields.optional(
        "Path or URL of test data for the comparison of the champion, the current"
        " model, with the challenger, the updated one. By default the newest rows of"
        " the champion are held out of both.",
        placeholder="DATA",
        access="reads",
    )
    tolerance: fields.NonNegative = fields.option(
        "Largest tolerated rise of a target's mean squared error on those rows, as a"
        " share of it: 0.05 is 5 %. If the rise is larger with 99 % confidence, the"
        " champion is kept and the new rows are refused.",
        0.05,
        placeholder="SHARE",
    )
    level: fields.Probability = fields.option(
        "Probability of a drift alarm if the new rows have not drifted.",
        0.05,
        placeholder="P",
    )
    backfill: fields.WholeNumber | None = fields.optional(
        "Number of the first row from which refused rows are judged again. By default"
        " they are skipped.",
        placeholder="ROW",
    )
    window: str | None = fields.optional(
        "Rows of versioned data that the model holds. 12: the last 12 loads. 30d: the"
        " loads of the last 30 days before the newest one. all: every row. By default"
        " unchanged.",
        placeholder="12|30d|all",
    )
    force: bool = fields.flag(
        "Publish the challenger even if it is worse than `tolerance` allows."
    )
    dry_run: bool = fields.flag("Only say what would be done, and write nothing.")

    def __post_init__(self) -> None:
        if self.window is not None:
            Window.parse(self.window)


@fields.group
class Forget:
    """Delete rows of a versioned dataset, take them out of models, and remove the
    earlier versions.
    """

    data: str = fields.argument(
        "Path or URL of a versioned dataset.", "DATA", access="changes"
    )
    rows: str = fields.option(
        "Path of a file with the rows' ids, or their numbers in the dataset: 0 is the"
        " first, whatever its line in a table was.",
        placeholder="FILE",
        access="reads",
    )
    id: bool = fields.flag("The file has ids of rows, in a column 'id'.")
    models: list[str] = fields.option(
        "Path or URL of a regression, or a registered model, that was trained on the"
        " data. May be repeated.",
        [],
        access="changes",
    )
    days: fields.NonNegative = fields.option(
        "Number of days for which earlier versions stay readable, and hold the rows.",
        0.0,
        placeholder="DAYS",
    )
    tags: bool = fields.flag("Remove tagged versions too.")
    keep_order: bool = fields.flag(
        "Keep the order of the rows: later ones move up. By default the last rows fill"
        " the gaps, which changes fewer chunks."
    )
    message: str | None = fields.optional(
        "Reason, which is kept with the version.", placeholder="TEXT"
    )


@fields.group
class Refit:
    """Train on other rows with the features, offsets, grids and choice of alpha of a
    given model.
    """

    like: str = fields.argument(
        "Path or URL of a regression with its statistics, or of a registered model,"
        " whose features and alpha are used.",
        "LIKE",
        access="reads",
    )
    source: places.SupervisedDataSource
    destination: places.Destination


@fields.group
class MergeOutput(places.Destination):
    """Where a merged model is published."""

    model: str = fields.like(places.Destination, "model", is_argument=False)


@fields.group
class Merge:
    """Merge models of one spec that were trained apart, on different rows, into one
    model.
    """

    models: list[str] = fields.argument(
        "Paths or URLs of regressions with their statistics. The first one says how"
        " alpha is chosen.",
        "MODEL …",
        access="reads",
    )
    destination: MergeOutput


@fields.group
class Ingest:
    """Turn files or a query into a dataset, or append their rows to one."""

    sources: list[str] = fields.argument(
        "Files, patterns such as incoming/*.parquet, folders of Parquet files, or a"
        " table of Delta Lake (its folder) or Iceberg"
        " (iceberg://CATALOG/NAMESPACE.TABLE). Files are .csv, .tsv and .jsonl, also"
        " compressed, .parquet, .arrow, .feather and .xlsx (sales.xlsx#May is its sheet"
        " May), on disk or in an object store.",
        "SOURCE",
        [],
        access="reads",
    )
    data: str = fields.argument(
        "Path or URL of the dataset to write, or to append rows to.",
        "OUT",
        access="writes",
    )
    targets: fields.Names | None = fields.optional(
        "Columns to predict. A dataset that rows are appended to knows its own columns"
        " by name."
    )
    weight: str | None = fields.optional("Column of sample weights.")
    groups: str | None = fields.optional(
        "Column of groups. Rows of one group are held out together."
    )
    columns: fields.Names | None = fields.optional(
        "Columns of X, in this order. By default all columns without another role.",
        placeholder="A,B,…",
    )
    drop: fields.Names | None = fields.optional(
        "Columns to leave out.", placeholder="A,B,…"
    )
    id: str | None = fields.optional(
        "Column of ids of the rows, integers or text, which are written next to"
        " predictions."
    )
    tables: table_options.TableOptions
    holdout: fields.Share | None = fields.optional(
        "Share of the rows to hold out for a test, in a separate dataset:"
        " data-test.zarr next to data.zarr. Rows of one group stay together. With a"
        " share, the source may be a dataset that is to be cut in two.",
        placeholder="10%",
    )
    holdout_by: str | None = fields.optional(
        "Column of dates or numbers. The rows of its largest values are held out, so"
        " that no training row is later than a test row. The dataset keeps the"
        " order, so that models are chosen by folds of time too. By default rows are"
        " held out at random, or by groups.",
        placeholder="COLUMN",
    )
    test: str | None = fields.optional(
        "Path or URL of the dataset of held-out rows, if it is to be another one.",
        access="writes",
    )
    seed: fields.Seed = fields.option("Seed of the choice of held-out rows.", 0)
    append: bool = fields.flag(
        "Append the rows of files that were not ingested before, or follow what changed"
        " in a Delta or Iceberg table: rows are added, replaced and deleted. A dataset"
        " that is not there is created."
    )
    replace_ids: bool = fields.flag(
        "Replace rows that the dataset has, found by their ids, if appended ones have"
        " other values. By default such a row stops the job. Rows with the same values"
        " are skipped in any case."
    )
    sql: str | None = fields.optional(
        "Query whose rows are ingested instead of files: its text, or file:PATH, since"
        " other users of the machine can see options. RFF_DIST_SQL in the environment"
        " is the database's URL, as SQLAlchemy writes it. :n_ingested in the query"
        " stands for the number of its rows that the dataset has already: SELECT …"
        " ORDER BY id LIMIT 1000000 OFFSET :n_ingested.",
        placeholder="QUERY",
    )
    dtype: Literal["float32", "float64"] | None = fields.optional(
        "Type of X's numbers. By default the smaller one that keeps all digits.",
        placeholder="float32|float64",
    )
    on_nan: Literal["error", "drop"] = fields.option(
        "Effect of a row with a missing or infinite value. error: it stops the job."
        " drop: it is left out.",
        "error",
    )
    chunk_rows: fields.Count | None = fields.optional(
        "Number of rows of a chunk, in a new dataset. By default chosen by size.",
        placeholder="ROWS",
    )
    overwrite: bool = fields.flag("Replace an existing dataset.")
    plain: bool = fields.flag(
        "Create the dataset as plain Zarr, which any program for Zarr can read. It"
        " keeps no versions, and rows cannot be appended later."
    )
    message: str | None = fields.like(Forget, "message")

    def __post_init__(self) -> None:
        if self.sources and self.sql is not None:
            raise InvalidParameterError(
                f"{', '.join(self.sources[:3])}: expected files or a query; give either"
                " `sources`, files, or `sql`, a query"
            )
        if not self.sources and self.sql is None:
            raise InvalidParameterError(
                f"{self.data} alone: expected files and, last, the dataset; give either"
                " `sources`, files, or `sql`, a query"
            )
        if self.replace_ids and not self.append:
            raise InvalidParameterError(
                "`replace_ids` is given, but no rows are appended; add `append=True`,"
                " or leave it out"
            )
        if self.append and self.overwrite:
            raise InvalidParameterError(
                "`overwrite` is given, but rows are appended to an existing dataset;"
                " leave it out"
            )
        if self.append and self.holdout is not None:
            raise InvalidParameterError(
                "`holdout` is given, but rows are appended to an existing dataset;"
                " leave it out, and ingest rows for a test into a separate dataset"
            )
        for name, default in (("holdout_by", None), ("test", None), ("seed", 0)):
            if (value := getattr(self, name)) != default and self.holdout is None:
                raise InvalidParameterError(
                    f"`{name}` is {value!r}, but no rows are held out; give a share as"
                    " `holdout` too, or leave it out"
                )


@fields.group
class AutoEncoding(recipe_options.Encoding):
    """How columns become numbers; by default medians replace missing values."""

    impute: recipe_options.Impute = fields.like(
        recipe_options.Encoding, "impute", default="median"
    )


@fields.group
class AutoTables(table_options.TableOptions):
    """How tables are read and become numbers, by default with medians for missing
    values.
    """

    encoding: AutoEncoding = AutoEncoding()


@fields.group
class Auto:
    """Turn a table into a registered model, tested on rows that it was not trained
    on.
    """

    sources: list[str] = fields.argument(
        "Table to learn from: files, patterns or folders, as for ingest.",
        "TABLE",
        access="reads",
    )
    target: str = fields.option("Column to predict.")
    into: str | None = fields.optional(
        "Folder for data and model. By default it is named after the table.",
        placeholder="FOLDER",
        access="fills",
    )
    task: Literal["auto", "regression", "classification"] = fields.option(
        "Kind of model. auto: classification if the target is text, boolean or has two"
        " whole values, else regression.",
        "auto",
    )
    holdout: fields.Share = fields.option(
        "Share of the rows to test the model on.", 0.2, placeholder="20%"
    )
    holdout_by: str | None = fields.like(Ingest, "holdout_by")
    groups: str | None = fields.optional(
        "Column of groups. Rows of one group stay together in a fold and in a part."
    )
    weight: str | None = fields.optional("Column of sample weights.")
    id: str | None = fields.optional("Column of ids of the rows.")
    drop: fields.Names | None = fields.optional(
        "Columns to leave out.", placeholder="A,B,…"
    )
    tables: AutoTables
    n_components: Literal["auto"] | fields.Count = fields.option(
        "Number of features, D. auto: by the number of rows and the memory.",
        "auto",
        placeholder="auto|D",
    )
    effort: int = fields.like(RidgeOptions, "effort")
    time_limit: float | None = fields.like(RidgeOptions, "time_limit")
    seed: int = fields.like(RidgeOptions, "seed")
    card: str | None = fields.like(Train, "card")
    overwrite: bool = fields.flag(
        "Replace the data of an earlier run, and an existing page. The model"
        " becomes the next version in any case."
    )

    def __post_init__(self) -> None:
        if self.groups is not None and self.holdout_by is not None:
            raise InvalidParameterError(
                f"`groups` is {self.groups!r} and `holdout_by` {self.holdout_by!r}, but"
                " rows are held out by group or by time, not by both; leave one out"
            )
