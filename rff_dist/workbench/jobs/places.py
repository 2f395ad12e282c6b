"""Where the rows of a job are and where its results go.

In go the paths and URLs that options name, out come errors before a job begins, and the
lists of what it reads and writes. A job that only tried to write would fail after its
work, or replace one of its inputs.
"""

import os
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, ClassVar, Literal

from rff_dist import fields
from rff_dist.errors import InvalidParameterError, StorageError
from rff_dist.text import redact
from rff_dist.typing import Summary
from rff_dist.workbench.tables.options import split_sheet


@fields.group
class DataSource:
    """Where the rows are."""

    panel: ClassVar[str] = "Names in the data"

    data: str = fields.argument(
        "Path or URL of the rows: a Zarr group.", "DATA", access="reads"
    )
    version: str | None = fields.optional(
        "For versioned data: a tag, or a version from `rff-dist data log`. The current"
        " version by default.",
        placeholder="VERSION",
    )
    x: str = fields.option("Name of the array of inputs.", "X")
    inputs: fields.Names | None = fields.optional(
        "Names of the variables of a grid that are inputs, coordinates such as lat and"
        " time among them. Each cell that has all of them is a row. A model that was"
        " trained on a grid knows them.",
        placeholder="A,B,…",
    )
    missing_chunks: Literal["error", "fill"] = fields.option(
        "Meaning of a chunk that is missing from the store. error: its data are lost,"
        " and the job stops. fill: it holds only the fill value.",
        "error",
    )

    @property
    def is_grid(self) -> bool:
        """Whether the rows are the cells of a grid: only a grid has variables, which
        `inputs` names.
        """
        return self.inputs is not None

    def open_arguments(self) -> Summary:
        """Return the arguments of `open_dataset` other than the URL."""
        names = ("x", "y", "sample_weight", "missing_chunks", "version")
        arguments = {
            "y": None,
            **{name: getattr(self, name) for name in names if hasattr(self, name)},
        }
        return arguments if self.inputs is None else arguments | {"x": self.inputs}


@fields.group
class WeightedDataSource(DataSource):
    """Where the rows are, and their weights."""

    sample_weight: str | None = fields.optional(
        "Name of the array of sample weights. By default all rows weigh the same."
    )


@fields.group
class SupervisedDataSource(WeightedDataSource):
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
                f"`target` is {self.target!r} and `y` {self.y!r}, which mean the same;"
                " leave one out"
            )
        object.__setattr__(self, "y", self.target)


@fields.group
class Destination:
    """Where a model is published."""

    model: str = fields.argument(
        "Path or URL where the model is published.", "MODEL", access="writes"
    )
    overwrite: bool = fields.flag(
        "Replace an existing model, page or picture, at the end of the job."
        " Versions of a registered model are never replaced."
    )
    register: bool = fields.flag(
        "Publish the model as the next version of a registered model; `model` is the"
        " folder of its versions, such as models/NAME."
    )


def check(given: Iterable[tuple[str, fields.OptionDeclaration, Any]]) -> None:
    """Check the places that a job's options name, before it begins.

    `given`: each option's name, its declaration and its value. Raises StorageError if a
    place cannot be written, or if one option writes to the place of another option;
    OutputExistsError if a file is there, unless this package wrote it and `overwrite`
    is among the options; InvalidParameterError if the name of a file does not fit.
    """
    # imported here: it loads Zarr, for which `--help` need not wait
    from rff_dist.storage import locations, output_places

    options = list(given)
    overwrite = any(name == "overwrite" and value is True for name, _, value in options)
    # for each place: the first option that names it, and its access
    first_uses = dict[str, tuple[str, str]]()
    for name, declared, value in options:
        if declared.access is None:
            continue
        for url in value if isinstance(value, list) else [value]:
            if url is None:
                continue
            location = locations.parse_location(split_sheet(url)[0])
            place = location.url
            if location.is_local:
                place = os.path.realpath(location.path)
            other, access = first_uses.setdefault(place, (name, declared.access))
            if other != name and "writes" in (access, declared.access):
                raise StorageError(
                    f"`{other}` and `{name}` are both {location}, which one of them"
                    " would replace; give another place"
                )
            if declared.access == "fills":
                output_places.try_writing(location.child("file"))
            if declared.suffixes:
                locations.local_path(url)  # refuses stores, without a request to them
                output_places.check_file(location, overwrite=overwrite)
                _check_suffix(name, url, declared.suffixes)


def _check_suffix(name: str, url: str, suffixes: tuple[str, ...]) -> None:
    """Raise InvalidParameterError unless a file's name ends in a suffix, or has
    none.
    """
    if PurePath(url).suffix.lower() not in ("", *suffixes):
        raise InvalidParameterError(
            f"`{name}` is {redact(url)}; expected a name that ends in"
            f" {' or '.join(suffixes)}"
        )


def part_url(url: str) -> str:
    """Return the URL of the held-out rows of a dataset.

    >>> part_url("data.zarr"), part_url("s3://latest-test/data")
    ('data-test.zarr', 's3://latest-test/data-test')
    """
    stem = url.rstrip("/")
    end = ".zarr" if stem.endswith(".zarr") else ""
    return f"{stem.removesuffix(end)}-test{end}"


def reads_and_writes(spec: Any) -> tuple[dict[str, Summary], list[str]]:
    """Return the URLs that a job reads, with the arguments of `open_dataset` for each,
    and the URLs that it writes.
    """
    reads: dict[str, Summary] = {}
    writes: list[str] = []
    source = getattr(spec, "source", None)
    # ingest writes the held-out rows to a second dataset; `test` names it, else its
    # place follows from `data`
    has_parts = getattr(spec, "holdout", None) is not None
    names_no_part = has_parts and getattr(spec, "test", None) is None
    for name, declared, value in fields.values(spec):
        urls = value if isinstance(value, list) else [value]
        urls = [url for url in urls if isinstance(url, str)]
        if declared.writes or declared.access == "changes":
            writes += urls
        if name == "data" and names_no_part:
            writes += [part_url(url) for url in urls]
        if declared.access in ("reads", "changes"):
            arguments: Summary = {}
            if name == "data" and source is not None:
                arguments = source.open_arguments()
            reads |= dict.fromkeys(urls, arguments)
    return reads, writes
