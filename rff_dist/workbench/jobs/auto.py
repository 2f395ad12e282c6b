"""Turn a table into data to train on and data to test on, and decide what to train.

In goes a table and the name of its target, out come an `AutoData` and the `Train` spec
for it; the command `auto` runs that job. Ingesting and training one after the other
would do, but leave behind the rows of a table from which nothing can be learned, and
the user would have to say whether the target holds classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from rff_dist import fields
from rff_dist.errors import (
    DataError,
    InvalidParameterError,
    OutputExistsError,
    RFFDistError,
)
from rff_dist.models import versions
from rff_dist.recipes import recipes
from rff_dist.storage import datasets, locations, output_places, writing
from rff_dist.typing import frozen
from rff_dist.workbench.jobs import cards, ingest, specs

#: Options of `auto` that it hands to `ingest`.
_SHARED_OPTIONS = (
    "sources",
    "weight",
    "groups",
    "id",
    "drop",
    "tables",
    "holdout",
    "holdout_by",
    "seed",
)
#: Values of the target that are read at a time: 2 MiB of numbers.
_ROWS = 2**18


@frozen
class AutoData:
    """A table that was ingested as data to train on and data to test on.

    `train`, `test`, `model`: URLs of the two datasets, and of the model to be trained.
    `classify`: whether the target holds classes.
    `why`: the reason for `classify`, in words.
    `held_out`: how the rows to test on were chosen, in words.
    """

    train: str
    test: str
    model: str
    n_train: int
    n_test: int
    recipe: recipes.Recipe | None
    dropped_rows: int
    classify: bool
    why: str
    held_out: str


def folder_of(job: specs.Auto) -> str:
    """Return the folder for data and model."""
    if job.into is not None:
        return job.into.rstrip("/")
    path = PurePosixPath(locations.parse_location(job.sources[0]).path)
    name, _, _ = path.name.partition(".")
    if len(job.sources) > 1 or set("*?[]") & {*name}:
        raise InvalidParameterError(
            "there are several files; give the folder for data and model by `into`"
        )
    return f"{name}-auto"


def prepare_table(
    job: specs.Auto, *, observer: writing.Progress | None = None
) -> AutoData:
    """Ingest a table in two parts, and decide between classification and regression.

    Rows that miss the target, or cannot be used for another reason, are dropped and
    counted.

    Raises RFFDistError as `jobs.ingest.ingest` does; OutputExistsError if there are
    rows already, and `overwrite` is False; DataError if there is nothing to learn,
    since the target has one value only. After an error the ingested data are removed,
    unless they replaced something.
    """
    # read here only to refuse a wrong file before hours of ingestion
    cards.read_about(job.card)
    folder = folder_of(job)
    train_url = f"{folder}/train.zarr"
    test_url = f"{folder}/test.zarr"
    model = f"{folder}/model"
    # refuses a folder in which no version could be published
    versions.RegisteredModel(model).check()
    to_ingest = specs.Ingest(
        data=train_url,
        test=test_url,
        targets=[job.target],
        on_nan="drop",
        overwrite=job.overwrite,
        **fields.values_of(job, *_SHARED_OPTIONS),
    )

    # A failure removes nothing that was there before this run: the folder if it is new,
    # and the two datasets from when they are ingested, unless they replaced others.
    new_folder = [] if locations.exists(locations.parse_location(folder)) else [folder]
    new_datasets = [] if job.overwrite else [train_url, test_url]
    with _discarding_on_error(new_folder):
        try:
            parts: Any = ingest.ingest(to_ingest, observer=observer)
        except OutputExistsError as error:
            error.add_note("for another target, `into` takes another folder")
            raise
        with _discarding_on_error(new_datasets):
            classify, why = choose_task(train_url, job)

    train, test = parts
    held_out = "at random"
    if job.holdout_by is not None:
        held_out = f"as the latest by {job.holdout_by}"
    elif job.groups is not None:
        held_out = f"by groups of {job.groups}"
    n_dropped = sum(int(part.attributes.get("dropped_rows", 0)) for part in parts)
    return AutoData(
        train=train_url,
        test=test_url,
        model=model,
        n_train=train.n_samples,
        n_test=test.n_samples,
        recipe=recipes.recipe_of(train.attributes),
        dropped_rows=n_dropped,
        classify=classify,
        why=why,
        held_out=held_out,
    )


@contextmanager
def _discarding_on_error(urls: list[str]) -> Iterator[None]:
    try:
        yield
    except RFFDistError:
        for url in urls:
            output_places.discard(locations.parse_location(url))
        raise


def choose_task(url: str, job: specs.Auto) -> tuple[bool, str]:
    """Return whether a dataset's target holds classes, and why.

    Raises DataError if there is nothing to learn; InvalidParameterError if a regression
    is asked for and the target is text.
    """
    values: Any = None
    is_text = False
    for part in datasets.read_arrays(url, ["y"], n_rows=_ROWS):
        is_text = part["y"].dtype.kind in "TU"
        new = np.unique(part["y"])
        values = new if values is None else np.unique(np.concatenate([values, new]))
        # a third number settles that it is a regression
        if not is_text and len(values) > 2:
            break
    n_values = len(values)
    if n_values == 1:
        raise DataError(
            f"the target {job.target!r} is {values[0]!s} in all rows to train on, so"
            " there is nothing to predict; expected at least two values"
        )
    if is_text and job.task == "regression":
        raise InvalidParameterError(
            f"`task` is 'regression', but the target {job.target!r} holds text;"
            " expected numbers. Leave it out"
        )
    if job.task != "auto":
        return job.task == "classification", "as given"
    if is_text:
        return True, f"the target is text, {n_values} classes"
    # codes of classes are whole numbers, such as 0 and 1; fractions are measurements
    if n_values == 2 and np.all(values == np.rint(values)):
        return True, "the target has two values"
    return False, "the target is a number"


def training_of(job: specs.Auto, prepared: AutoData) -> specs.Train:
    """Return the job that trains on a prepared table; cross-validation makes all
    choices.
    """
    options = {
        "data": prepared.train,
        "register": True,
        **fields.values_of(prepared, "model", "test", "classify"),
        **fields.values_of(job, "n_components", "seed", "effort", "time_limit", "card"),
        "groups": None if job.groups is None else "groups",
        "sample_weight": None if job.weight is None else "sample_weight",
    }
    return fields.build(specs.Train, options)
