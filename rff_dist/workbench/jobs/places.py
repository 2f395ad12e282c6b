"""Where the rows of a job are and where its results go: groups of options."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from rff_dist import fields
from rff_dist.errors import InvalidParameterError
from rff_dist.fields import Names

type Impute = Literal["none", "median", "mean", "median-only", "most-frequent"]


@fields.group
class Source:
    """Where the rows are."""

    panel: ClassVar[str] = "Names in the data"

    data: str = fields.option("Path or URL of the rows: a Zarr group.", argument=True, unit="DATA")
    version: str | None = fields.option(
        "For versioned data: a tag, or a version from `rff-dist data log`. The current version by default.",
        None,
        unit="VERSION",
    )
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
    missing: Names | None = fields.option(
        "Texts of a CSV file that mean missing in columns of numbers and dates, such as -999, in addition to "
        "empty cells, NA, NaN, null and ?.",
        None,
        unit="TEXT,…",
    )
    date_order: Literal["dmy", "mdy"] | None = fields.option(
        "Order of day and month in dates such as 03/04/2024, if both orders would do.", None
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
    impute: Impute = fields.option(
        "Value of the column that replaces missing ones; none replaces nothing. With median and mean, "
        "another column marks them by 0 and 1 where more than 1 % (and at least 10) are missing; median-only "
        "leaves it out. "
        "Missing text becomes a level of its own, or with most-frequent the most frequent one.",
        "none",
        unit="median|mean|median-only|most-frequent|none",
    )
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


@fields.group
class Destination:
    """Where a model is published."""

    model: str = fields.option(
        "Path or URL where the model is published.", argument=True, unit="MODEL", writes=True
    )
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
