"""The job that cuts a dataset into one to train on and one to test on."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np

from rff_dist.data import row_batches
from rff_dist.data import sources as row_sources
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.recipes import recipes, tables
from rff_dist.storage import appending, datasets, documents, groups, locations, output_places, writing
from rff_dist.storage.arrays import Header
from rff_dist.storage.columns import ID, TIME_COLUMN
from rff_dist.text import redact
from rff_dist.typing import Facts, frozen
from rff_dist.workbench.jobs import places, specs, watching
from rff_dist.workbench.tables.ingest import PARTS
from rff_dist.workbench.tables.rows import Holdout

_log = logging.getLogger(__name__)
_ROWS = 2**16


@frozen
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
    inputs = [locations.parse_location(job.data)]
    urls = {part: places.part_url(job.data, part) for part in ("test", "train")}
    outputs = {part: locations.parse_location(url) for part, url in urls.items()}
    for output in outputs.values():
        marker = locations.DATASET_FILES
        output_places.check_output(output, overwrite=job.overwrite, inputs=inputs, marker=marker)
    # Both parts are made from one version, whatever is committed meanwhile.
    version = groups.find_group(job.data, job.version).version
    attributes, stored = datasets.list_arrays(job.data, version)
    arrays = [name for name in appending.ROLES if name in stored]
    if "X" not in arrays:
        raise StorageError(f"{redact(job.data)} has no array 'X'; expected a dataset")
    _warn(job, attributes, stored)
    # All attributes but what holds of the whole dataset only: its manifest, and the files it was made from.
    of_all = (documents.MANIFEST, row_sources.SOURCES, PARTS)
    kept = {key: value for key, value in attributes.items() if key not in of_all}
    names = kept.pop("feature_names", None), kept.pop("target_names", None)
    time = None
    if job.time is not None:  # kept, so that models are chosen by folds of time too
        _require(job, "time", "column", names[0] or ())
        kept[TIME_COLUMN], time = job.time, names[0].index(job.time)
    read = partial(datasets.read_arrays, job.data, n_rows=_ROWS, version=version)
    is_test = _choose(job, stored, time, read)
    if is_test.all() or not is_test.any():
        raise DataError(
            f"one part of {redact(job.data)} has no row; expected some in both. Give another share to test on"
        )
    how, lengths = writing.Writing(overwrite=job.overwrite, versioned=version is not None), {}
    for part, output in outputs.items():
        rows = _rows(read(arrays), is_test == (part == "test"), time)
        written = writing.write_batches(
            output, rows, n_samples=None, names=names, attributes=kept, how=how, inputs=inputs
        )
        lengths[part] = written.n_samples
    return Parts(urls["train"], lengths["train"], urls["test"], lengths["test"])


def _warn(job: specs.Split, attributes: Facts, stored: Mapping[str, Header]) -> None:
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


def _require(job: specs.Split, option: str, what: str, known: Iterable[str]) -> None:
    """Raise InvalidParameterError unless an option names one of the known arrays or columns."""
    if (name := getattr(job, option)) not in known:
        raise InvalidParameterError(
            f"`{option}`: {redact(job.data)} has no {what} {name!r}; it has {tables.listed([*known])}"
        )


def _choose(
    job: specs.Split,
    stored: Mapping[str, Header],
    time: int | None,
    read: Callable[[list[str]], Iterator[dict[str, np.ndarray]]],
) -> np.ndarray:
    """Return for each row whether it is to test on; `time` is the column of X that orders them, if any."""
    numbers = np.arange(stored["X"].shape[0])
    holdout = Holdout(job.holdout, job.seed, job.time or "the number of a row")
    if job.by == "time":
        values = numbers if time is None else np.concatenate([part["X"][:, time] for part in read(["X"])])
        return np.asarray(values >= holdout.start(values))
    if job.by == "group":
        _require(job, "groups", "array", stored)
    key = job.groups if job.by == "group" else ID
    if key not in stored:
        return holdout.holds(numbers)
    return np.concatenate([holdout.holds(part[key]) for part in read([key])])


def _rows(
    parts: Iterator[dict[str, np.ndarray]], wanted: np.ndarray, time: int | None
) -> Iterator[row_batches.RowBatch]:
    start = 0
    for part in parts:
        if time is not None:
            part[row_batches.TIME] = part["X"][:, time]
        rows = wanted[start : start + len(part["X"])]
        start += len(part["X"])
        yield tuple(part[name][rows] if name in part else None for name in appending.ROLES)
