"""New inputs → batches for the arrays of a dataset that exists.

Columns are found by the names that the dataset remembers, and its recipe encodes them.
The recipe learns nothing from later rows but new levels of categories. A file may have
further columns, which are left out.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rff_dist.data.columns import is_text
from rff_dist.data.row_batches import RowArrays
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.recipes.recipes import Recipe, plain_recipe, recipe_of
from rff_dist.storage.columns import TIME_COLUMN
from rff_dist.storage.editing import DatasetEditor
from rff_dist.typing import Facts, frozen
from rff_dist.workbench.tables import attributes, rows
from rff_dist.workbench.tables.holdout import order_type
from rff_dist.workbench.tables.inputs import Input, Journal, with_tables
from rff_dist.workbench.tables.planning import types_of_constants
from rff_dist.workbench.tables.roles import Roles, common_schema, plan_columns
from rff_dist.workbench.tables.row_monitor import SEEN_VALUES, RowMonitor


@frozen
class IngestResult:
    """What an append, or an update by a lakehouse table, did to a dataset."""

    n_before: int
    n_after: int
    #: names of the files, or of the query, whose rows were added
    ingested: tuple[str, ...]
    #: names of those whose rows were there already
    skipped: tuple[str, ...]
    #: rows that were left out for missing or infinite values
    dropped_rows: int
    #: of the dataset, with the new rows; None if nothing was added
    version: str | None = None
    #: rows that were replaced by their ids, or updated in a lakehouse table
    n_replaced: int = 0
    n_deleted: int = 0
    #: `format`, `id` and `version` of the lakehouse table that the dataset follows
    table: Facts | None = None
    #: rows that were skipped, since the dataset has their ids with the same values
    n_known: int = 0
    #: rows that were left out, since the table was split to train and to test, and
    #: their ids are in the other dataset
    n_of_other_part: int = 0
    #: how the new rows differ from those before; see `RowMonitor.findings`
    unlike: tuple[Facts, ...] = ()


def read_onto(
    dataset: DatasetEditor,
    opened: list[Input],
    roles: Roles,
    journal: Journal,
    monitor: RowMonitor,
) -> Iterator[RowArrays]:
    """Return batches for a dataset's arrays, read by the dataset's recipe.

    There is at least one opened input. The journal and the monitor are filled while the
    batches are read.

    Raises InvalidParameterError if roles differ from the dataset's; DataError if a
    table lacks a column, or X cannot keep the digits of one.
    """
    X = dataset.headers["X"]
    if roles.dtype not in (None, X.dtype.name):
        raise InvalidParameterError(
            f"`dtype` is {roles.dtype!r}, but X of {dataset.location} is {X.dtype};"
            " expected that, or None"
        )
    recipe = recipe_of(dataset.attributes)
    roles = _known_roles(dataset, roles, recipe)
    recipe = recipe or plain_recipe(roles.columns or [])
    # texts are converted when batches are read
    tables = [recipe.read(source.table) for source in opened]
    opened = with_tables(opened, tables)
    for table in tables:
        try:
            dtype = plan_columns(table.schema, roles, recipe, table.name).dtype
        except InvalidParameterError as error:
            # the dataset has these columns, so the table is at fault
            raise DataError(
                f"{error}; expected a value for each column of {dataset.location}"
            ) from error
        if roles.dtype is None and not np.can_cast(dtype, X.dtype, "safe"):
            raise DataError(
                f"{table.name} has columns of {dtype}, which X of"
                f" {dataset.location} ({X.dtype}) cannot"
                f' hold without rounding; give dtype="{X.dtype.name}" to round them'
            )
        monitor.see_columns(table.schema.names)

    schema = common_schema(tables)
    name = tables[0].name
    plan = plan_columns(schema, roles, recipe, name)
    # columns left out as constant are read too: the user hears if they vary now
    types = {**types_of_constants(schema, recipe), **plan.types}
    time_column = dataset.attributes.get(TIME_COLUMN)
    # rows may have been held out by a column of X, which the table does not have
    is_in_X_only = time_column in recipe.names and time_column not in schema.names
    if time_column is not None and not is_in_X_only:
        types = {**order_type(name, schema, time_column), **types}
    y = dataset.headers.get("y")
    plan = replace(
        plan,
        dtype=X.dtype,
        has_labels=y is not None and is_text(y.dtype),
        types=types,
        time=time_column,
    )
    return rows.read_tables(opened, plan, journal, selection=None, monitor=monitor)


def _known_roles(dataset: DatasetEditor, roles: Roles, recipe: Recipe | None) -> Roles:
    """Return roles completed by the columns that a dataset knows; refuse others."""
    features = dataset.names("feature_names")
    if recipe is not None:  # the table's columns, of which one may make several of X
        features = tuple(recipe.inputs)
    targets = dataset.names("target_names")
    for key, names, known in (
        ("columns", roles.columns, features),
        ("target", roles.targets or None, targets),
    ):
        # None: the user, or the dataset, has no names to compare
        if names is not None and known is not None and tuple(names) != known:
            raise InvalidParameterError(
                f"`{key}` is {list(names)}, but {dataset.location} has {list(known)},"
                " which are found by name; leave it out"
            )
    if features is None and roles.columns is None:
        raise InvalidParameterError(
            f"{dataset.location} holds no names of columns; give them as `columns`, in"
            " the order of X"
        )

    y = dataset.headers.get("y")
    targets = targets or tuple(roles.targets)
    if y is not None and not targets:
        raise InvalidParameterError(
            f"{dataset.location} holds no names of targets; give the columns of y as"
            " `target`"
        )
    # without y, or if y has one axis, there is one target at most
    target: str | tuple[str, ...] | None = targets or None
    if targets and (y is None or len(y.shape) == 1):
        target = targets[0]
    remembered = dataset.attributes
    return replace(
        roles,
        target=target,
        weight=roles.weight or remembered.get(attributes.WEIGHT_COLUMN),
        groups=roles.groups or remembered.get(attributes.GROUPS_COLUMN),
        columns=features or roles.columns,
        id=roles.id or (recipe.id if recipe is not None else None),
    )


def monitor_of(dataset: DatasetEditor) -> RowMonitor:
    """Return a monitor that compares new rows with the rows of a dataset."""
    recipe = recipe_of(dataset.attributes)
    if recipe is None:
        recipe = plain_recipe(dataset.names("feature_names") or ())
    targets = dataset.names("target_names") or ()
    return RowMonitor(recipe, targets, dataset.attributes.get(SEEN_VALUES, {}))
