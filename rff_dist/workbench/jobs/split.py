"""The job that cuts a dataset into one to train on and one to test on."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rff_dist.data import row_batches
from rff_dist.data import sources as row_sources
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.recipes import recipes, tables
from rff_dist.storage import appending, datasets, documents, groups, locations, output_places, writing
from rff_dist.storage.arrays import Header
from rff_dist.storage.columns import ID, TIME_COLUMN
from rff_dist.text import redact
from rff_dist.workbench.jobs import places, specs, watching
from rff_dist.workbench.tables.ingest import PARTS
from rff_dist.workbench.tables.rows import Holdout

_log = logging.getLogger(__name__)
_ROWS = 2**16

type _IsTest = Callable[[Mapping[str, np.ndarray], int], np.ndarray]
type _Read = Callable[[list[str]], Iterator[dict[str, np.ndarray]]]


@dataclass(frozen=True, slots=True)
class Parts:
    """The two datasets that a dataset was split into."""

    train: str
    n_train: int
    test: str
    n_test: int


@watching.watched
def split(job: specs.Split) -> Parts:
    """Write each row of a dataset to one of two datasets.

    Raises StorageError if there is no dataset; OutputExistsError if an output is there and `overwrite` is
      False; InvalidParameterError if there are no such groups or columns; DataError if a part has no row.
    """
    urls = {False: places.part_url(job.data, "train"), True: places.part_url(job.data, "test")}
    inputs = [locations.parse_location(job.data)]
    outputs = {wanted: locations.parse_location(url) for wanted, url in urls.items()}
    for output in outputs.values():
        marker = locations.DATASET_FILES
        output_places.check_output(output, overwrite=job.overwrite, inputs=inputs, marker=marker)
    # Both parts are made from one version, whatever is committed meanwhile.
    version = groups.find_group(job.data, job.version).version
    attributes, stored = datasets.list_arrays(job.data, version)
    arrays = {name: header for name, header in stored.items() if name in appending.ROLES}
    if "X" not in arrays:
        raise StorageError(f"{redact(job.data)} has no array 'X'; expected a dataset")
    _warn(job, attributes, stored)
    read = partial(datasets.read_arrays, job.data, n_rows=_ROWS, version=version)
    is_test = _rule(job, attributes, arrays, read)
    # All attributes but what holds of the whole dataset only: its manifest, and the files it was made from.
    of_all = (documents.MANIFEST, row_sources.SOURCES, PARTS)
    kept = {key: value for key, value in attributes.items() if key not in of_all}
    names = kept.pop("feature_names", None), kept.pop("target_names", None)
    how, lengths = writing.Writing(overwrite=job.overwrite, versioned=version is not None), {}
    time = None
    if job.time is not None:  # kept, so that models are chosen by folds of time too
        kept[TIME_COLUMN], time = job.time, names[0].index(job.time)
    for wanted in (True, False):
        rows = _rows(job.data, read(list(arrays)), is_test, wanted, time)
        written = writing.write_batches(
            outputs[wanted], rows, n_samples=None, names=names, attributes=kept, how=how, inputs=inputs
        )
        lengths[wanted] = written.n_samples
    return Parts(urls[False], lengths[False], urls[True], lengths[True])


def _warn(job: specs.Split, attributes: Mapping[str, Any], stored: Mapping[str, Header]) -> None:
    rows = stored["X"].shape[:1]
    left = [
        name for name, header in stored.items() if name not in appending.ROLES and header.shape[:1] == rows
    ]
    if left:
        _log.warning("other arrays are left out: %s", ", ".join(left))
    times = [name for name in attributes.get("feature_names") or [] if str(name).endswith(": elapsed-days")]
    if times and job.by == "random":
        _log.warning(
            "the rows to test on are chosen at random, although the data have times (%s); to test how later "
            "rows are predicted, split by time: `by` time, and `time` %r",
            tables.listed(times),
            times[0],
        )
    recipe = recipes.recipe_of(attributes)
    if recipe is not None and any(isinstance(column, recipes.TargetMeans) for column in recipe.columns):
        _log.warning(
            "X holds mean targets that were learned from all rows, so a test on some of them is a little too "
            "good; ingest the table with a holdout, to learn them from the rows to train on only"
        )


def _rows(
    url: str, parts: Iterator[dict[str, np.ndarray]], is_test: _IsTest, wanted: bool, time: int | None
) -> Iterator[row_batches.RowBatch]:
    """Yield the rows of one part; `time` is the column of X that orders them, if they are split by one."""
    start, n_rows = 0, 0
    for part in parts:
        if time is not None:
            part[row_batches.TIME] = part["X"][:, time]
        rows = np.flatnonzero(is_test(part, start) == wanted)
        start += len(part["X"])
        n_rows += len(rows)
        yield tuple(part[name][rows] if name in part else None for name in appending.ROLES)
    if not n_rows:
        raise DataError(
            f"one part of {redact(url)} has no row; expected some in both. Give another share to test on"
        )


def _rule(
    job: specs.Split, attributes: Mapping[str, Any], arrays: Mapping[str, Header], read: _Read
) -> _IsTest:
    """Return the function that says which rows are to test on."""
    holdout = Holdout(job.holdout, job.seed)
    if job.by == "group":
        if job.groups not in arrays:
            raise InvalidParameterError(
                f"`groups`: {redact(job.data)} has no array {job.groups!r}; it has "
                f"{tables.listed(list(arrays))}. Name its column when the table is ingested"
            )
        return lambda part, _: holdout.holds(part[job.groups])
    if job.by == "time" and job.time is None:
        n_samples = arrays["X"].shape[0]
        n_train = n_samples - round(n_samples * job.holdout)
        return lambda part, start: np.arange(start, start + len(part["X"])) >= n_train
    if job.time is not None:
        names = list(attributes.get("feature_names") or [])
        if job.time not in names:
            raise InvalidParameterError(
                f"`time`: {redact(job.data)} has no column {job.time!r}; it has {tables.listed(names)}"
            )
        at = names.index(job.time)
        values = [part["X"][:, at] for part in read(["X"])]
        first = Holdout(job.holdout, by=job.time).start(np.concatenate(values))
        return lambda part, _: np.asarray(part["X"][:, at] >= first)
    if ID in arrays:
        return lambda part, _: holdout.holds(part[ID])
    return lambda part, start: holdout.holds(np.arange(start, start + len(part["X"])))
