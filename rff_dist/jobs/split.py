"""The job that cuts a dataset into one to train on and one to test on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.ingest.ingest import PARTS
from rff_dist.ingest.recipe import TargetMeans, recipe_of
from rff_dist.ingest.rows import Holdout
from rff_dist.ingest.tables import listed
from rff_dist.jobs.ingest import part_url
from rff_dist.jobs.specs import Split
from rff_dist.storage.appending import SOURCES
from rff_dist.storage.columns import ID
from rff_dist.storage.contents import StoredArray, list_arrays, read_arrays
from rff_dist.storage.editing import ROLES
from rff_dist.storage.generations import MANIFEST
from rff_dist.storage.groups import find_group
from rff_dist.storage.locations import DATASET_FILES, parse_location
from rff_dist.storage.output_places import check_output
from rff_dist.storage.sources import RowBatch
from rff_dist.storage.writing import Writing, write_batches
from rff_dist.text import redact

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


def split(job: Split) -> Parts:
    """Write each row of a dataset to one of two datasets.

    Raises StorageError if there is no dataset; OutputExistsError if an output is there and `overwrite` is
      False; InvalidParameterError if there are no such groups or columns; DataError if a part has no row.
    """
    urls = {False: part_url(job.data, "train"), True: part_url(job.data, "test")}
    source = parse_location(job.data)
    for url in urls.values():
        check_output(parse_location(url), overwrite=job.overwrite, inputs=[source], marker=DATASET_FILES)
    # Both parts are made from one version, whatever is committed meanwhile.
    version = find_group(job.data, job.version).version
    attributes, stored = list_arrays(job.data, version)
    arrays = {one.name: one for one in stored if one.name in ROLES}
    if "X" not in arrays:
        raise StorageError(f"{redact(job.data)} has no array 'X'; expected a dataset")
    _warn(job, attributes, [one for one in stored if one.name not in ROLES], arrays)
    read = partial(read_arrays, job.data, n_rows=_ROWS, version=version)
    is_test = _rule(job, attributes, arrays, read)
    # All attributes but what holds of the whole dataset only: its manifest, and the files it was made from.
    kept = {key: value for key, value in attributes.items() if key not in (MANIFEST, SOURCES, PARTS)}
    names = kept.pop("feature_names", None), kept.pop("target_names", None)
    lengths = {}
    for wanted in (True, False):
        written = write_batches(
            parse_location(urls[wanted]),
            _rows(job.data, read(list(arrays)), is_test, wanted),
            n_samples=None,
            names=names,
            attributes=kept,
            how=Writing(overwrite=job.overwrite, versioned=version is not None),
            inputs=[source],
        )
        lengths[wanted] = written.n_samples
    return Parts(urls[False], lengths[False], urls[True], lengths[True])


def _warn(
    job: Split,
    attributes: Mapping[str, Any],
    others: list[StoredArray],
    arrays: Mapping[str, StoredArray],
) -> None:
    n_samples = arrays["X"].header.shape[0]
    left = [one.name for one in others if one.header.shape[:1] == (n_samples,)]
    if left:
        _log.warning("other arrays are left out: %s", ", ".join(left))
    times = [name for name in attributes.get("feature_names") or [] if str(name).endswith(": elapsed-days")]
    if times and job.by == "random":
        _log.warning(
            "the rows to test on are chosen at random, although the data have times (%s); to test how later "
            "rows are predicted, split by time: `by` time, and `time` %r",
            listed(times),
            times[0],
        )
    recipe = recipe_of(attributes)
    if recipe is not None and any(isinstance(one, TargetMeans) for one in recipe.columns):
        _log.warning(
            "X holds mean targets that were learned from all rows, so a test on some of them is a little too "
            "good; ingest the table with a holdout, to learn them from the rows to train on only"
        )


def _rows(
    url: str, parts: Iterator[Mapping[str, np.ndarray]], is_test: _IsTest, wanted: bool
) -> Iterator[RowBatch]:
    start, n_rows = 0, 0
    for part in parts:
        rows = np.flatnonzero(is_test(part, start) == wanted)
        start += len(part["X"])
        n_rows += len(rows)
        yield tuple(part[name][rows] if name in part else None for name in ROLES)
    if not n_rows:
        raise DataError(
            f"one part of {redact(url)} has no row; expected some in both. Give another share to test on"
        )


def _rule(
    job: Split, attributes: Mapping[str, Any], arrays: Mapping[str, StoredArray], read: _Read
) -> _IsTest:
    """Return the function that says which rows are to test on."""
    holdout = Holdout(job.share, job.seed)
    if job.by == "group":
        if job.groups not in arrays:
            raise InvalidParameterError(
                f"`groups`: {redact(job.data)} has no array {job.groups!r}; it has {listed(list(arrays))}. "
                "Name its column when the table is ingested"
            )
        return lambda part, _: holdout.holds(part[job.groups])
    if job.by == "time":
        return _by_time(job, attributes, arrays["X"].header.shape[0], read)
    if ID in arrays:
        return lambda part, _: holdout.holds(part[ID])
    return lambda part, start: holdout.holds(np.arange(start, start + len(part["X"])))


def _by_time(job: Split, attributes: Mapping[str, Any], n_samples: int, read: _Read) -> _IsTest:
    if job.time is None:
        n_train = n_samples - round(n_samples * job.share)
        return lambda part, start: np.arange(start, start + len(part["X"])) >= n_train
    names = list(attributes.get("feature_names") or [])
    if job.time not in names:
        raise InvalidParameterError(
            f"`time`: {redact(job.data)} has no column {job.time!r}; it has {listed(names)}"
        )
    at = names.index(job.time)
    values = [part["X"][:, at] for part in read(["X"])]
    first = Holdout(job.share, by=job.time).start(np.concatenate(values))
    return lambda part, _: np.asarray(part["X"][:, at] >= first)
