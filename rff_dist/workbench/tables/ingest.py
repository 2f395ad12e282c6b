"""Files, a query or a lakehouse table → a new dataset, or one to train and one to test.

Tables are read a few batches at a time, so they may be larger than memory. How columns
become numbers is their recipe. If there is text or a date, or missing values are to be
filled in, rows are read twice: the first pass learns the recipe.
"""

import logging
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

import numpy as np

from rff_dist.data import sources as row_sources
from rff_dist.data.columns import TEXT
from rff_dist.data.row_batches import RowArrays
from rff_dist.errors import DataError, OutputExistsError
from rff_dist.recipes import learn
from rff_dist.recipes.recipes import RECIPE
from rff_dist.recipes.tables import listed
from rff_dist.storage import datasets, editing, locations, output_places, writing
from rff_dist.storage.columns import TIME_COLUMN
from rff_dist.typing import PathLike, Summary
from rff_dist.workbench.tables import attributes, files, row_monitor
from rff_dist.workbench.tables import roles as column_roles
from rff_dist.workbench.tables.holdout import Holdout, RowSelection, warn_of_chance
from rff_dist.workbench.tables.inputs import (
    Input,
    Journal,
    Sources,
    find_sources,
    open_inputs,
)
from rff_dist.workbench.tables.lakes import Lake
from rff_dist.workbench.tables.options import TableOptions, split_sheet
from rff_dist.workbench.tables.planning import plan_rows
from rff_dist.workbench.tables.queries import Query
from rff_dist.workbench.tables.roles import ColumnPlan, Roles
from rff_dist.workbench.tables.rows import read_tables

#: Levels of a target of text. They become classes, and a model has coefficients for
#: each class.
MAX_CLASSES = 10_000
_log = logging.getLogger(__name__)


def ingest(
    sources: Sources,
    url: PathLike,
    roles: Roles = Roles(),
    write_options: writing.WriteOptions = writing.WriteOptions(),
    options: TableOptions = TableOptions(),
) -> datasets.ZarrDataset:
    """Turn tables into a dataset, in memory that does not grow with them.

    Numbers stay as they are, text becomes categories, and dates become numbers; see
    `Encoding`. The dataset's attribute `recipe` says what was done, and `sources` holds
    name, digest and number of rows of each file.

    Parameters
    ----------
    sources
        Files here or in an object store, which are read in the order of their names
        and must have the same columns: CSV (.csv, .tsv, .txt) and JSON lines (.jsonl),
        also compressed (.gz, .zst, .bz2), Parquet, Arrow and Feather, Excel (.xlsx;
        "sales.xlsx#May" is its sheet May). Also a pattern such as "new/*.csv"; or a
        folder of Parquet files, where folders such as `day=2020-01-01` give columns.
        Or one lakehouse table, of which the current version is read: the folder of a
        Delta table, or iceberg://CATALOG/NAMESPACE.TABLE. Or a `Query`.

    Returns
    -------
    ZarrDataset
        If y is text, the dataset has no y: `open_column(url, "y")` opens it.

    Raises
    ------
    StorageError
        If a source cannot be read, its type is unknown, or the output cannot be
        written.
    InvalidParameterError
        If a named column is not there.
    DataError
        With column and row, if a column cannot become numbers, or a value is missing.
    """
    (dataset,) = _ingest(sources, [(url, None)], roles, write_options, options)
    return dataset


def ingest_parts(
    sources: Sources,
    urls: tuple[PathLike, PathLike],
    holdout: Holdout,
    roles: Roles = Roles(),
    write_options: writing.WriteOptions = writing.WriteOptions(),
    options: TableOptions = TableOptions(),
) -> tuple[datasets.ZarrDataset, datasets.ZarrDataset]:
    """Turn tables into two datasets: one to train on, and one of held-out rows.

    The recipe is learned only from the rows to train on. Unless the latest rows are
    held out, rows of one group stay together, or rows of one id if there are no groups.
    The attribute `parts` of both datasets says how rows were held out and read.

    Raises
    ------
    RFFDistError
        As `ingest`; also DataError if a part has no row, or the rows have no order by
        `holdout.by`.
    """
    # The rows to train on come last: the recipe is learned from the last part.
    parts = [
        (urls[1], RowSelection(holdout, is_held_out=True)),
        (urls[0], RowSelection(holdout, is_held_out=False)),
    ]
    test, train = _ingest(sources, parts, roles, write_options, options)

    warn_of_chance(train.attributes, holdout, has_groups=roles.groups is not None)
    return train, test


def _describe_parts(holdout: Holdout, roles: Roles, options: TableOptions) -> Summary:
    """Return JSON values that decide how a table is split: equal ones, equal parts."""
    recipe = options.recipe
    return {
        "holdout": asdict(holdout),
        "roles": asdict(roles),
        "recipe": {"recipe": None if recipe is None else recipe.digest()},
        "encoding": asdict(options.encoding),
        "reading": asdict(options.reading),
    }


def _ingest(
    sources: Sources,
    parts: Sequence[tuple[PathLike, RowSelection | None]],
    roles: Roles,
    write_options: writing.WriteOptions,
    options: TableOptions,
) -> list[datasets.ZarrDataset]:
    """Write one dataset for each part; the recipe is learned from the last part."""
    found = find_sources(sources)
    inputs = [source.location for source in found if isinstance(source, files.File)]
    if not isinstance(sources, Query):
        paths = [sources] if isinstance(sources, str | os.PathLike) else sources
        for path in paths:
            inputs.append(locations.parse_location(split_sheet(os.fspath(path))[0]))
    outputs = [locations.parse_location(url) for url, _ in parts]
    _, last_selection = parts[-1]
    with ExitStack() as stack:
        # Checked first, since finding a table's columns and types may take a while.
        try:
            for i, output in enumerate(outputs):
                output_places.check_output(
                    output,
                    overwrite=write_options.overwrite,
                    inputs=[*inputs, *outputs[i + 1 :]],
                    markers=locations.DATASET_FILES,
                )
        except OutputExistsError:
            # A misspelt column is told first, unless that takes a query or a download.
            if inputs and inputs[0].is_local:
                (first,), _ = open_inputs(stack, found[:1], options.reading)
                time = None if last_selection is None else last_selection.holdout.by
                column_roles.check_names(
                    first.table.name, first.table.schema, roles, time
                )
            raise
        opened, _ = open_inputs(stack, found, options.reading)
        for source in found:
            if isinstance(source, Lake):
                message = write_options.message or f"write {source.words}"
                write_options = replace(write_options, message=message)
        opened, plan = plan_rows(stack, opened, roles, options, last_selection)
        n_samples: int | None = None
        lengths = [source.table.n_samples for source in opened]
        if last_selection is None and None not in lengths:
            n_samples = sum(filter(None, lengths))
        written: list[datasets.ZarrDataset] = []
        new_outputs: list[locations.Location] = []
        try:
            others = reversed(outputs)
            for output, other, (_, selection) in zip(
                outputs, others, parts, strict=True
            ):
                is_new = not locations.exists(output)
                # `write_batches` stores these attributes after the last batch. By then
                # `_selected_rows` has added those that depend on all rows.
                stored: Summary = {
                    attributes.SHARED_OPTIONS: attributes.shared_options(roles, options)
                }
                if selection is not None:
                    stored[row_sources.PARTS] = _describe_parts(
                        selection.holdout, roles, options
                    )
                    stored |= editing.describe_other_part(output, other)
                dataset = writing.write_batches(
                    output,
                    _selected_rows(opened, plan, selection, options, stored),
                    n_samples=n_samples,
                    names=(plan.features, plan.targets),
                    attributes=stored,
                    write_options=write_options,
                    inputs=inputs,
                )
                written.append(dataset)
                if is_new:
                    new_outputs.append(output)
        except BaseException:
            # One part without the other is of no use. But a part that replaced a
            # dataset stays, since the older dataset cannot be brought back.
            for output in new_outputs:
                output_places.discard(output)
            raise
    return written


def _selected_rows(
    opened: Sequence[Input],
    columns: ColumnPlan,
    selection: RowSelection | None,
    options: TableOptions,
    stored: Summary,
) -> Iterator[RowArrays]:
    """Yield the selected rows, and after the last one add attributes to `stored`.

    Raises DataError if there are no rows, or a class or an id cannot be used.
    """
    roles = columns.roles
    recipe = columns.recipe
    targets = [] if columns.has_labels else roles.targets
    monitor = row_monitor.RowMonitor(recipe, targets, {})
    monitor.see_columns(columns.columns)
    journal = Journal()
    batches = read_tables(opened, columns, journal, selection, monitor)
    # Read before the dataset is begun, so that an empty source leaves nothing behind.
    first = next(batches, None)
    if first is None:
        raise DataError(
            f"{', '.join(source.table.name for source in opened[:10])}: no rows;"
            " expected some to begin with"
        )

    classes: set[str] = set()
    ids: list[Any] = []
    for batch in chain([first], batches):
        if columns.has_labels and batch.y is not None:
            classes.update(batch.y.tolist())
            # checked after each batch: a column of names is refused after a few rows
            _check_classes(roles.targets[0], classes)
        if roles.id is not None:
            ids.append(batch.ids)
        yield batch

    if ids:
        _refuse_repeated(roles.id, np.concatenate(ids))
    n_usable = journal.n_read - journal.n_dropped
    is_held_out = selection is not None and selection.is_held_out
    if columns.has_labels and not is_held_out:
        _check_classes(roles.targets[0], classes, n_usable)
    if selection is not None and not n_usable:
        key = roles.groups or roles.id
        together = "" if key is None else f" (rows of one {key!r} stay together)"
        part = "held out" if is_held_out else "left to train on"
        raise DataError(
            f"no row is {part}{together}; expected some. Change the share `holdout`"
        )

    # The writer takes `stored` when this generator has ended.
    stored.update(attributes.attributes_after(roles, journal, {}))
    stored[row_monitor.SEEN_VALUES] = monitor.summary()
    if columns.time is not None:
        stored[TIME_COLUMN] = columns.time
    stored[RECIPE] = (journal.recipe or recipe).to_dict()
    if options.recipe is None:
        return
    # The recipe was learned from other rows: report the levels and values that it does
    # not know.
    for finding in monitor.findings():
        examples = ", ".join(finding["examples"])
        _log.warning(
            "%s: column %r: %s in %d rows%s",
            opened[0].table.name,
            finding["column"],
            finding["what"],
            finding["n_rows"],
            f": {examples}" if examples else "",
        )


def _check_classes(
    target: str, classes: Collection[str], n_rows: int | None = None
) -> None:
    """Raise DataError if a target has too many different texts.

    With `n_rows`, the number of all rows, it also raises if few texts come twice.
    """
    n_classes = len(classes)
    if n_classes > MAX_CLASSES:
        raise DataError(
            f"the target {target!r} has more than {MAX_CLASSES:,} levels; expected"
            " numbers, or text with fewer levels, which are classes"
        )
    if n_rows is not None and n_classes > max(learn.FEW_LEVELS, n_rows // 2):
        raise DataError(
            f"almost no text of the target {target!r} comes twice ({n_classes:,} levels"
            f" in {n_rows:,} rows); expected classes, or numbers"
        )


def _refuse_repeated(column: str | None, ids: np.ndarray) -> None:
    """Refuse ids that name several rows; they take 8 bytes per row, or their text."""
    if ids.dtype == object:
        ids = ids.astype(TEXT)
    values, counts = np.unique(ids, return_counts=True)
    repeated = values[counts > 1].tolist()
    if repeated:
        raise DataError(
            f"{len(repeated):,} ids of the column {column!r} name several rows:"
            f" {listed(repeated)}; expected each id once. Leave out repeated rows, or"
            " give the column as `groups`"
        )
