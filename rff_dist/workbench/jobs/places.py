"""Where the rows of a job are and where its results go: groups of options."""

from dataclasses import astuple
from typing import Any, ClassVar, Literal

from rff_dist import fields
from rff_dist.errors import InvalidParameterError
from rff_dist.recipes.reading import Reading
from rff_dist.workbench.tables.encoding import Encoding


@fields.group
class Source:
    """Where the rows are."""

    panel: ClassVar[str] = "Names in the data"

    data: str = fields.argument("Path or URL of the rows: a Zarr group.", "DATA")
    version: str | None = fields.optional(
        "For versioned data: a tag, or a version from `rff-dist data log`. The current version by default.",
        unit="VERSION",
    )
    x: str = fields.option("Name of the array of inputs.", "X")
    inputs: fields.Names | None = fields.optional(
        "Names of the variables of a grid that are inputs, coordinates such as lat and time among them. Each "
        "cell that has all of them is a row. A model that was trained on a grid knows them.",
        unit="A,B,…",
    )
    missing_chunks: Literal["error", "fill"] = fields.option(
        "Meaning of a chunk that is missing from the store. error: its data are lost, and the job stops. "
        "fill: it holds only the fill value.",
        "error",
    )

    def names(self) -> dict[str, Any]:
        """Return the arguments of `open_dataset` other than the URL."""
        names = ("x", "y", "sample_weight", "missing_chunks", "version")
        given = {"y": None, **{name: getattr(self, name) for name in names if hasattr(self, name)}}
        return given if self.inputs is None else given | {"x": self.inputs}


@fields.group
class WeightedSource(Source):
    """Where the rows are, and their weights."""

    sample_weight: str | None = fields.optional(
        "Name of the array of sample weights. By default all rows weigh the same."
    )


@fields.group
class SupervisedSource(WeightedSource):
    """Where rows with targets are."""

    y: str = fields.option("Name of the array of targets, or of labels.", "y")
    target: str | None = fields.optional(
        "Name of the target of a grid, a variable or a label: another word for `y`."
    )

    def __post_init__(self) -> None:
        if self.target is None:
            return
        if self.y not in ("y", self.target):
            raise InvalidParameterError(
                f"`target` is {self.target!r} and `y` {self.y!r}, which mean the same; leave one out"
            )
        object.__setattr__(self, "y", self.target)


@fields.group
class TableOptions:
    """How tables are read, and how their columns become numbers."""

    panel: ClassVar[str] = "Tables"

    reading: Reading
    encoding: Encoding
    recipe: str | None = fields.optional(
        "Path or URL of a model or a dataset whose recipe makes the inputs, or of a .skops file with a "
        "fitted scikit-learn transformer. Nothing is then learned from the table.",
        unit="PATH",
    )

    def __post_init__(self) -> None:
        if self.recipe is not None and astuple(self.encoding) != astuple(Encoding()):
            raise InvalidParameterError(
                f"`recipe` is {self.recipe!r}, which already says how columns become numbers; leave out "
                "`categories`, `dates`, `impute` and `keep_index`"
            )


@fields.group
class Destination:
    """Where a model is published."""

    model: str = fields.argument("Path or URL where the model is published.", "MODEL", writes=True)
    overwrite: bool = fields.flag("Replace what is there, at the end of the job.")
    register: bool = fields.flag(
        "Publish the model as the next version of a registered model, whose folder `model` then is, such as "
        "models/NAME. Versions are never replaced."
    )

    def __post_init__(self) -> None:
        if self.register and self.overwrite:
            raise InvalidParameterError(
                "`overwrite` is given, but versions of a registered model are never replaced; leave it out"
            )


def part_url(url: str, part: str) -> str:
    """Return the URL of a part of a dataset's rows.

    >>> part_url("data.zarr", "test"), part_url("s3://latest-test/data", "train")
    ('data-test.zarr', 's3://latest-test/data-train')
    """
    stem = url.rstrip("/").removesuffix(".zarr")
    return f"{stem}-{part}{'.zarr' if url.rstrip('/').endswith('.zarr') else ''}"
