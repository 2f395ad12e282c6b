"""Files and queries → a dataset, or further rows of one, in one pass that holds a few batches at a time."""

from __future__ import annotations

import difflib
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rff_dist.data.columns import is_text
from rff_dist.data.memory import canonical_bytes
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.ingest.files import File, fetch, find_files, identify
from rff_dist.ingest.queries import Query, run_query
from rff_dist.ingest.tables import Table, feature_dtype, listed, open_table, read_npz, repeated
from rff_dist.storage.appending import SOURCES, Source, append_batches, known_digests, known_sources
from rff_dist.storage.corrections import Corrected, find_rows, replace_batches
from rff_dist.storage.datasets import ZarrDataset
from rff_dist.storage.editing import Editing, editing
from rff_dist.storage.locations import DATASET_FILES, Location, check_output, exists, parse_location
from rff_dist.storage.sources import RowBatch
from rff_dist.storage.writing import Writing, write_batches
from rff_dist.typing import IntArray, PathLike

# The attributes that tell which columns the weights and groups came from, for those who append.
_WEIGHT_COLUMN, _GROUPS_COLUMN, _DROPPED = "weight_column", "groups_column", "dropped_rows"
_log = logging.getLogger(__name__)

type _Parts = tuple[np.ndarray | None, ...]


@dataclass(frozen=True, slots=True)
class Ingested:
    """What `ingest_more` did.

    `n_before`, `n_after`: rows of the dataset before and after.
    `ingested`, `skipped`: names of the files (or the query) whose rows were added, and of those that were
      there already.
    `dropped_rows`: rows that were left out for missing or infinite values.
    `version`: the snapshot of a versioned dataset that holds them; None where nothing was added.
    """

    n_before: int
    n_after: int
    ingested: tuple[str, ...]
    skipped: tuple[str, ...]
    dropped_rows: int
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Roles:
    """Which columns of a table become what, and how.

    `target`: columns to predict; one name makes y a vector, a list a matrix. One column of text makes y
      labels for a classifier. In an .npz file the name of the targets' array, "y" if it is there.
    `weight`: column (or array) of sample weights.
    `groups`: column (or array) of integers, booleans or text that says which rows are held out together; it
      is written as "groups".
    `columns`: columns of X in this order; None takes all that have no other role.
    `dtype`: {"float32", "float64"}. Of X. None keeps all digits: float32 for columns of float32, booleans and
      integers of at most 16 bits, else float64, to which the numbers of a CSV file are read and 64-bit
      integers above 2^53 are rounded. Targets are float64; labels and groups keep their type.
    `on_nan`: {"error", "drop"}. What to do with a row that has an empty, NaN or infinite value; empty text is
      one. Dropped rows are counted in the attribute `dropped_rows`.
    """

    target: str | Sequence[str] | None = None
    weight: str | None = None
    groups: str | None = None
    columns: Sequence[str] | None = None
    dtype: str | None = None
    on_nan: str = "error"

    def __post_init__(self) -> None:
        if self.dtype not in (None, "float32", "float64"):
            raise InvalidParameterError(f"`dtype`={self.dtype!r}; expected 'float32', 'float64' or None")
        if self.on_nan not in ("error", "drop"):
            raise InvalidParameterError(f"`on_nan`={self.on_nan!r}; expected 'error' or 'drop'")

    @property
    def targets(self) -> list[str]:
        return [self.target] if isinstance(self.target, str) else list(self.target or [])


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a table's columns become arrays.

    `features`, `targets`: names of the columns of X and y; None where they have none.
    """

    features: list[str] | None
    targets: list[str] | None
    dtype: np.dtype[Any]
    text: bool

    def used(self, roles: Roles) -> set[str]:
        others = (roles.weight, roles.groups)
        return {*(self.features or []), *(self.targets or []), *(name for name in others if name)}


@dataclass(frozen=True, slots=True)
class _Input:
    """Something that rows are read from: a table of a file or of a query, or an .npz file's arrays.

    `source`: what the dataset remembers it by; of a query, what its digest begins with.
    """

    source: Source
    table: Table | None
    path: Path | None

    @property
    def is_query(self) -> bool:
        return self.path is None

    @property
    def name(self) -> str:
        return "the query" if self.path is None else self.path.name


@dataclass(slots=True)
class _Journal:
    """What was read until now: an entry of `sources` for each input that is finished."""

    entries: list[Mapping[str, Any]] = field(default_factory=list)
    n_read: int = 0
    dropped: int = 0

    @property
    def digests(self) -> set[str]:
        return {str(entry["sha256"]) for entry in self.entries}


def ingest(
    source: PathLike | Sequence[PathLike] | Query,
    url: PathLike,
    roles: Roles = Roles(),
    how: Writing = Writing(),
) -> ZarrDataset:
    """Turn tables into a dataset, in memory that does not grow with them.

    `source`: a .csv, .csv.gz, .parquet, .npy or .npz file, here or in an object store, a pattern such as
      "new/*.csv", or a folder of Parquet files, which are read in the order of their names. Several files
      have the same columns. The columns of an .npy file are named "0", "1", …; an .npz file, which comes
      alone, holds the arrays "X" and, optionally, "y".
    Returns the dataset, opened; without y where that is text, which `open_column(url, "y")` opens. Its
      attribute `sources` holds name, digest and rows of each file.
    Raises StorageError if the source cannot be read, its type is unknown, or the output cannot be written;
      InvalidParameterError if a column that is named is not there; DataError if a column is not numbers, or a
      value is missing; names the column and the row.
    """
    files = [] if isinstance(source, Query) else find_files(source)
    given = [source] if isinstance(source, str | os.PathLike) else [] if isinstance(source, Query) else source
    inputs = [*(parse_location(one) for one in given), *(file.location for file in files)]
    # Looking for a table's columns and types may take a while.
    check_output(parse_location(url), overwrite=how.overwrite, inputs=inputs, marker=DATASET_FILES)
    journal, attributes = _Journal(), dict[str, Any]()
    with ExitStack() as stack:
        opened, _ = _open_inputs(stack, source, files, [])
        plan, n_samples, batches = _read(opened, roles, journal)
        return write_batches(
            parse_location(url),
            _then(batches, opened, lambda: attributes.update(_facts(roles, journal, {}))),
            n_samples=n_samples,
            names=(plan.features, plan.targets),
            attributes=attributes,
            how=how,
            inputs=inputs,
        )


def ingest_more(
    source: PathLike | Sequence[PathLike] | Query,
    url: PathLike,
    roles: Roles = Roles(),
    how: Writing = Writing(),
) -> Ingested:
    """Append the rows of files that are new to a dataset, or create it; run twice it does nothing more.

    Columns are found by their names, which the dataset holds; a file may have others beside them. All rows of
    all new files are added, or none.

    `source`: as `ingest` takes them, except that a folder or pattern may hold no file. Files that were
      ingested before are skipped: they have the name, size and time of then, or the same bytes. One that has
      grown since is refused.
    `url`: the dataset. Where there is none, it is created as by `ingest`, if `target` or `columns` say of
      what.
    `roles`: of a dataset that is there, the columns are known, and need not be given; the dtype of X is the
      dataset's, and giving it allows to round to it.
    `how`: chunks are chosen where the dataset is created; nothing is overwritten.
    Raises DataError, InvalidParameterError, StorageError as `ingest`, and as `append_dataset`; then the
      dataset is as it was.
    """
    location = parse_location(url)
    if not exists(location):
        _refuse_to_guess(source, location, roles)
        created = ingest(source, url, roles, replace(how, overwrite=False))
        names = tuple(str(one["name"]) for one in known_sources(created.attributes))
        dropped = int(created.attributes.get(_DROPPED, 0))
        return Ingested(0, created.n_samples, names, (), dropped, created.version)
    files = [] if isinstance(source, Query) else find_files(source, may_be_none=True)
    with ExitStack() as stack:
        dataset = stack.enter_context(editing(location))
        opened, skipped = _open_inputs(stack, source, files, known_sources(dataset.attributes))
        if not opened:
            return Ingested(dataset.n_before, dataset.n_before, (), tuple(skipped), 0)
        journal = _Journal()
        batches = _read_onto(dataset, opened, roles, journal)

        def change(attributes: Mapping[str, Any], n_new: int) -> Mapping[str, Any] | None:
            known = opened[0].is_query and (not journal.n_read or journal.digests & known_digests(attributes))
            return None if known else _facts(roles, journal, attributes)

        found = append_batches(dataset, batches, change=change, observer=how.observer, message=how.message)
        names = tuple(one.source.name for one in opened)
        if opened[0].is_query and found.n_after == found.n_before:
            return Ingested(found.n_before, found.n_after, (), names, journal.dropped)
        return Ingested(found.n_before, found.n_after, names, tuple(skipped), journal.dropped, found.version)


# -- what is read ----------------------------------------------------------------------------------


def _open_inputs(
    stack: ExitStack,
    source: PathLike | Sequence[PathLike] | Query,
    files: Sequence[File],
    known: Sequence[Mapping[str, Any]],
) -> tuple[list[_Input], list[str]]:
    """Open what is not among the known sources; returns the names of the rest too."""
    if isinstance(source, Query):
        n_ingested = source.n_ingested(known)
        result = stack.enter_context(run_query(source, n_ingested=n_ingested))
        # An increment with the values of the one before is new all the same.
        begin = str(n_ingested) if source.is_incremental else ""
        return [_Input(Source(source.name, begin), result, None)], []
    opened: list[_Input] = []
    skipped: list[str] = []
    digests = {str(one.get("sha256")) for one in known}
    for file in files:
        if file.is_known(known):
            skipped.append(file.name)
            continue
        path = stack.enter_context(fetch(file))
        found = identify(file, path, known)
        if found.sha256 in digests:
            skipped.append(file.name)
            _log.info("%s holds rows that are there already", file.name)
            continue
        digests.add(found.sha256)
        table = None if file.kind == ".npz" else open_table(path, file.kind)
        opened.append(_Input(found, table, path))
    if len(opened) > 1 and any(one.table is None for one in opened):
        raise InvalidParameterError(
            f"{listed([one.name for one in opened])}: an .npz file holds X as one array, without names of "
            "columns; expected it alone. Ingest one after the other with append (--append)"
        )
    return opened, skipped


def _read(
    opened: Sequence[_Input], roles: Roles, journal: _Journal
) -> tuple[_Plan, int | None, Iterator[RowBatch]]:
    """Plan how the rows of a new dataset are read; returns their number where it is known, and batches."""
    first = opened[0]
    if first.table is None:
        assert first.path is not None
        if roles.columns is not None:
            raise InvalidParameterError(
                "`columns` names columns of a table; an .npz file holds X as one array"
            )
        n_samples, batches = read_npz(first.path, roles.target, roles.weight, roles.groups, roles.dtype)
        plan = _Plan(None, None, np.dtype(np.float64), False)
        return plan, n_samples, _check_rows(batches, first, plan, roles, journal)
    tables = [one.table for one in opened if one.table is not None]
    for table in tables:
        if set(table.kinds) != set(tables[0].kinds):
            differing = sorted(set(table.kinds) ^ set(tables[0].kinds))
            raise DataError(f"{table.name} and {tables[0].name} differ in the columns {listed(differing)}")
    plan = _plan_columns(tables, roles)
    lengths = [table.n_samples for table in tables]
    n_samples = None if None in lengths else sum(n for n in lengths if n is not None)
    return plan, n_samples, _read_tables(opened, plan, roles, journal)


def _read_onto(
    dataset: Editing, opened: Sequence[_Input], roles: Roles, journal: _Journal
) -> Iterator[RowBatch]:
    """Return batches that a dataset's arrays can hold, their columns chosen by the dataset's names."""
    X, y = dataset.headers["X"], dataset.headers.get("y")
    if roles.dtype not in (None, X.dtype.name):
        raise InvalidParameterError(
            f"`dtype` is {roles.dtype!r}, but X of {dataset.location} is {X.dtype}; expected that, or None"
        )
    first = opened[0]
    if first.table is None:
        _, _, batches = _read(opened, roles, journal)
        return batches
    roles = _known_roles(dataset, roles, one_dimensional=y is None or len(y.shape) == 1)
    tables = [one.table for one in opened if one.table is not None]
    for table in tables:
        plan = _plan_columns([table], roles)
        if roles.dtype is None and not np.can_cast(plan.dtype, X.dtype, "safe"):
            raise DataError(
                f"{table.name} has columns of {plan.dtype}, which X of {dataset.location}, {X.dtype}, does "
                f'not hold without rounding; give dtype="{X.dtype.name}" (--dtype) to round them'
            )
        others = sorted(set(table.kinds) - set(plan.used(roles)))
        if others:
            _log.info(
                "%s: columns that the dataset does not have are left out: %s", table.name, listed(others)
            )
    plan = replace(_plan_columns(tables, roles), dtype=X.dtype, text=y is not None and is_text(y.dtype))
    return _read_tables(opened, plan, roles, journal)


def _known_roles(dataset: Editing, roles: Roles, *, one_dimensional: bool) -> Roles:
    """Complete roles by what a dataset knows of its columns, or refuse others."""
    features, targets = dataset.names("feature_names"), dataset.names("target_names")
    for key, given, known in (
        ("columns", roles.columns, features),
        ("target", roles.targets or None, targets),
    ):
        if given is not None and known is not None and tuple(given) != known:
            raise InvalidParameterError(
                f"`{key}` is {list(given)}, but {dataset.location} has {list(known)}; leave it out, they are "
                "found by name"
            )
    if features is None and roles.columns is None:
        raise InvalidParameterError(
            f"{dataset.location} holds no names of columns; name those of X by `columns` in its order"
        )
    targets = targets or tuple(roles.targets)
    if "y" in dataset.headers and not targets:
        raise InvalidParameterError(
            f"{dataset.location} holds no names of targets; name the columns of y by `target`"
        )
    return replace(
        roles,
        target=targets[0] if targets and one_dimensional else targets or None,
        weight=roles.weight or dataset.attributes.get(_WEIGHT_COLUMN),
        groups=roles.groups or dataset.attributes.get(_GROUPS_COLUMN),
        columns=features or roles.columns,
    )


def _plan_columns(tables: Sequence[Table], roles: Roles) -> _Plan:
    kinds = dict(tables[0].kinds)
    for table in tables[1:]:
        for name in kinds.keys() & table.kinds.keys():
            both = (kinds[name], table.kinds[name])
            text = [kind for kind in both if isinstance(kind, str)]
            kinds[name] = text[0] if text else np.result_type(*both)
    features = _choose_columns(tables[0].name, kinds, roles)
    for column, role in ((roles.weight, "weight"), (roles.groups, "groups")):
        if column is not None and not roles.targets:
            raise InvalidParameterError(f"`{role}` without `target`; expected those of training rows")
    return _Plan(
        features,
        roles.targets or None,
        feature_dtype([kinds[name] for name in features], roles.dtype),
        any(kinds[name] == "string" for name in roles.targets),
    )


def _choose_columns(table: str, kinds: Mapping[str, np.dtype[Any] | str], roles: Roles) -> list[str]:
    """Names of X's columns, once all names that were given are known to exist and to hold what they must."""
    named = [(name, "target") for name in roles.targets]
    named += [(name, "columns") for name in roles.columns or []]
    others = ((roles.weight, "weight"), (roles.groups, "groups"))
    named += [(name, role) for name, role in others if name is not None]
    for name, role in named:
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=3)
            known = "nearest: " + ", ".join(map(repr, near)) if near else "it has " + listed(list(kinds))
            raise InvalidParameterError(f"`{role}`: {table} has no column {name!r}; {known}")
    taken = {*roles.targets, roles.weight, roles.groups}
    features = [name for name in kinds if name not in taken] if roles.columns is None else list(roles.columns)
    used = [*features, *(name for name, role in named if role != "columns")]
    twice = repeated(used)
    if twice:
        raise InvalidParameterError(
            f"columns {listed(twice)} are named twice; expected each once, in one role"
        )
    if not features:
        raise InvalidParameterError(f"no column of {table} is left for X; name some by `columns`")
    may_be_text = {roles.groups, *(roles.targets if len(roles.targets) == 1 else [])}
    strange = {
        name: kind
        for name in used
        if isinstance(kind := kinds[name], str) and not (kind == "string" and name in may_be_text)
    }
    if strange:
        numeric = [name for name in features if name not in strange]
        shown = ", ".join(f"{name!r} ({kind})" for name, kind in list(strange.items())[:10])
        raise DataError(
            f"{table}: not numbers: {shown}; expected numeric columns. Leave them out with "
            f"columns={numeric[:10]}{' …' if len(numeric) > 10 else ''}, or convert them first: a time to a "
            "number of seconds, a category to 0/1 columns"
        )
    return features


def _read_tables(
    opened: Sequence[_Input], plan: _Plan, roles: Roles, journal: _Journal
) -> Iterator[RowBatch]:
    for one in opened:
        assert one.table is not None
        yield from _check_rows(_split_columns(one.table, plan, roles), one, plan, roles, journal)


def _split_columns(table: Table, plan: _Plan, roles: Roles) -> Iterator[_Parts]:
    features, targets = plan.features or [], roles.targets
    n_features = len(features)
    text = targets if plan.text else []
    numbers = [*features, *([] if text else targets), *([] if roles.weight is None else [roles.weight])]
    for values, *labels in table.batches(numbers, [*text, *([] if roles.groups is None else [roles.groups])]):
        y = values[:, n_features : n_features + len(targets)]
        yield (
            values[:, :n_features].astype(plan.dtype, copy=False),
            None if not targets else labels[0] if text else y[:, 0] if isinstance(roles.target, str) else y,
            None if roles.weight is None else values[:, -1],
            None if roles.groups is None else labels[-1],
        )


def _check_rows(
    batches: Iterator[_Parts], one: _Input, plan: _Plan, roles: Roles, journal: _Journal
) -> Iterator[_Parts]:
    """Refuse or drop rows with values that are missing or infinite; enters what was read in the journal."""
    first, dropped = 0, 0
    digest = hashlib.sha256(one.source.sha256.encode())
    for parts in batches:
        good: np.ndarray | None = None
        for i, part in enumerate(parts):
            if part is None:
                continue
            usable = _is_usable(part if part.ndim == 2 else part[:, np.newaxis])
            good = usable.all(axis=1) if good is None else good & usable.all(axis=1)
            if roles.on_nan == "error" and not usable.all():
                row, column = np.argwhere(~usable)[0].tolist()
                known = (plan.features, plan.targets)[i] if i < 2 else None
                where = ("X", "y", "the weights", "the groups")[i]
                place = repr(known[column]) if known else f"{column} of {where}"
                expected = "a number" if part.dtype.kind in "biuf" else "text"
                raise DataError(
                    f"{one.name}: row {first + row + 1}, column {place} is missing or not finite (rows "
                    f"count from 1, without a header); expected {expected}. Fill it in, or drop such rows "
                    'with on_nan="drop"'
                )
        assert good is not None  # X is never missing
        dropped += int(len(good) - good.sum())
        first += len(good)
        kept = parts if good.all() else tuple(None if part is None else part[good] for part in parts)
        if one.is_query:
            for part in kept:
                if part is not None:
                    digest.update(canonical_bytes(part.astype("T") if part.dtype == object else part))
        yield kept
    if dropped:
        _log.warning("%s: %d of %d rows dropped for missing or infinite values", one.name, dropped, first)
    source = one.source
    if one.is_query:
        source = Source(source.name, digest.hexdigest(), {"n_read": first})
    journal.entries.append(source.to_dict(first - dropped))
    journal.n_read += first
    journal.dropped += dropped


def _is_usable(values: np.ndarray) -> np.ndarray:
    """Say of each value whether it is there: a finite number, or text that is not empty."""
    if values.dtype.kind in "biuf":
        return np.isfinite(values)
    return np.asarray((values != "") & (values != None))  # noqa: E711 - of each element


# -- what is remembered ----------------------------------------------------------------------------


def _refuse_to_guess(source: PathLike | Sequence[PathLike] | Query, location: Location, roles: Roles) -> None:
    """Refuse to create a dataset whose targets nobody named: its name may be a mistake."""
    arrays = not isinstance(source, Query) and all(file.kind == ".npz" for file in find_files(source))
    if not arrays and not roles.targets and roles.columns is None:
        raise InvalidParameterError(
            f"there is no dataset at {location} to append to; to create it, name the columns to predict by "
            "`target`, or those of X by `columns` where there are none"
        )


def _facts(roles: Roles, journal: _Journal, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a dataset that change with what was read."""
    facts: dict[str, Any] = {SOURCES: [*known_sources(before), *journal.entries]}
    for key, name in ((_WEIGHT_COLUMN, roles.weight), (_GROUPS_COLUMN, roles.groups)):
        if name is not None and key not in before:
            facts[key] = name
    if roles.on_nan == "drop":
        facts[_DROPPED] = int(before.get(_DROPPED, 0)) + journal.dropped
    return facts


def _then(
    batches: Iterator[RowBatch], opened: Sequence[_Input], finish: Callable[[], None]
) -> Iterator[RowBatch]:
    """Hand batches on, of which there is at least one, and call `finish` after the last."""
    n_batches = 0
    for batch in batches:
        n_batches += 1
        yield batch
    if not n_batches:
        raise DataError(f"{', '.join(one.name for one in opened[:10])}: no rows; expected some to begin with")
    finish()


# -- corrections -----------------------------------------------------------------------------------


def correct(source: PathLike, url: PathLike, *, by: str, message: str | None = None) -> Corrected:
    """Replace rows of a versioned dataset by those of a table, in one commit.

    `source`: one file, as `ingest` takes it, with the dataset's columns by their names.
    `by`: the column that tells which row each replaces: a column of the dataset, a value of which one row
      has, or else numbers of rows, counted from 0.
    Raises DataError if a value is missing, or no row or several have it; InvalidParameterError if there is no
      such column; and as `replace_rows`.
    """
    (file,) = find_files(source)
    with fetch(file) as path, editing(parse_location(url)) as dataset:
        table = open_table(path, file.kind)
        rows = _rows_of(dataset, by, [one for batch in _column(table, by) for one in batch])
        opened = [_Input(identify(file, path, []), open_table(path, file.kind), path)]
        batches = _read_onto(dataset, opened, Roles(), _Journal())
        return replace_batches(dataset, rows, batches, message=message)


def read_rows_to_change(source: PathLike, dataset: Editing, by: str | None) -> IntArray:
    """Return the numbers of rows that a file names.

    `by`: a column of the file and of the dataset: all rows that have one of its values. None takes the file's
      first column as numbers of rows, counted from 0.
    Raises DataError if no row has a value, or a number is no row's.
    """
    (file,) = find_files(source)
    with fetch(file) as path:
        table = open_table(path, file.kind)
        values = [one for batch in _column(table, by or next(iter(table.kinds))) for one in batch]
    if by is None:
        return _row_numbers(dataset, values)
    found = find_rows(dataset, by, values)
    missing = [value for value, rows in zip(values, found, strict=True) if not len(rows)]
    if missing:
        raise DataError(
            f"no row of {dataset.location} has {by!r} = {listed([str(one) for one in missing])}; leave such "
            "values out"
        )
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


def _rows_of(dataset: Editing, by: str, values: Sequence[Any]) -> IntArray:
    known = {*(dataset.names("feature_names") or ()), *(dataset.names("target_names") or ())}
    if by not in {*known, "groups", dataset.attributes.get(_GROUPS_COLUMN)}:
        return _row_numbers(dataset, values)
    found = find_rows(dataset, by, values)
    for value, rows in zip(values, found, strict=True):
        if len(rows) != 1:
            raise DataError(
                f"{len(rows):_} rows of {dataset.location} have {by!r} = {value!r}; expected one, that is "
                "replaced. Name the rows by their numbers, in a column that the dataset does not have"
            )
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _row_numbers(dataset: Editing, values: Sequence[Any]) -> IntArray:
    for value in values:
        if isinstance(value, str) or value != int(value) or not 0 <= value < dataset.n_before:
            raise DataError(
                f"{value!r} is no row of {dataset.location}; expected numbers from 0 to "
                f"{dataset.n_before - 1:_}"
            )
    return np.array([int(value) for value in values], np.int64)


def _column(table: Table, name: str) -> Iterator[Sequence[Any]]:
    """Yield the values of one column: numbers, or text."""
    if name not in table.kinds:
        known = listed(list(table.kinds))
        raise InvalidParameterError(f"{table.name} has no column {name!r}; it has {known}")
    text = table.kinds[name] == "string"
    for values, *labels in table.batches([] if text else [name], [name] if text else []):
        yield labels[0].tolist() if text else values[:, 0].tolist()
