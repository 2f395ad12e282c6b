"""Opened inputs → how their rows become the arrays of a new dataset.

Decides which column is X, target or id, how texts write numbers and dates, and how text
and missing values become numbers: the recipe. If a recipe must be learned, all rows are
read here for the first time.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pyarrow

from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.recipes import learn
from rff_dist.recipes.column_notations import (
    find_codes,
    find_notations,
    notation_notes,
    suspicions,
)
from rff_dist.recipes.notations import Notation, with_notations
from rff_dist.recipes.options import Encoding
from rff_dist.recipes.reading import CsvOptions
from rff_dist.recipes.recipes import Recipe
from rff_dist.recipes.tables import (
    RawTable,
    Types,
    kind_of,
    listed,
    read_type,
)
from rff_dist.workbench.tables import arrow_files, holdout, rows
from rff_dist.workbench.tables import roles as column_roles
from rff_dist.workbench.tables.inputs import Input, Journal, with_tables
from rff_dist.workbench.tables.options import TableOptions
from rff_dist.workbench.tables.roles import ColumnPlan, Roles
from rff_dist.workbench.tables.row_monitor import constant_columns


def plan_rows(
    stack: ExitStack,
    opened: list[Input],
    roles: Roles,
    options: TableOptions,
    selection: holdout.RowSelection | None,
) -> tuple[list[Input], ColumnPlan]:
    """Plan how a new dataset is read, learning from the selected rows.

    Returns the inputs as they are to be read, and how their columns become arrays.
    """
    given_recipe: Recipe | None = options.recipe
    # rows are held out by the order of this column, if any
    time = None if selection is None else selection.holdout.by
    stored = tables = [source.table for source in opened]
    if given_recipe is None:
        notations = notations_of(tables, roles, time, options.reading)
        tables = [with_notations(table, notations, is_new=True) for table in tables]
    else:
        notations = dict(given_recipe.notations)
        tables = [given_recipe.read(table) for table in tables]
    first = tables[0]
    schema = column_roles.common_schema(tables)
    _refuse_other_columns(tables, schema)

    index = None
    if given_recipe is not None:
        # raises DataError if the table does not suit the recipe
        given_recipe.types_to_read_by(schema, first.name)
        roles = _roles_by_recipe(given_recipe, roles, schema)
    elif not options.encoding.keep_index:
        index = column_roles.find_index(first, roles)
    if index is not None:
        roles = replace(roles, drop=[*roles.drop, index])
    column_roles.check_roles(first.name, schema, roles)
    features = column_roles.feature_columns(schema, roles)
    _check_categories(first.name, schema, features, options.encoding)

    kinds = learn.kinds_of(schema, features, options.encoding)
    must_learn = given_recipe is None and learn.needs_pass(kinds, options.encoding)
    # what the columns are read by until the recipe is learned
    recipe = given_recipe or learn.plain(kinds, options.encoding)
    plan = column_roles.plan_columns(schema, roles, recipe, first.name)
    time_type = {} if time is None else holdout.order_type(first.name, schema, time)
    plan = replace(plan, types={**time_type, **plan.types})
    if must_learn or selection is not None:
        # Rows are read twice. What can be read only once, such as a query, is the only
        # input; `rereadable` leaves files as they are.
        tables[0] = arrow_files.rereadable(stack, first, plan.types)
    opened = with_tables(opened, tables)
    if selection is not None and time is not None:
        first_test_value = holdout.find_first_test_value(
            opened, time_type, selection.holdout
        )
        plan = replace(plan, first_test_value=first_test_value)
    if must_learn:
        recipe = _learn(opened, plan, kinds, options.encoding, selection)

    notes = {table.name: list(table.notes) for table in tables}
    notes[first.name] += notation_notes(notations, options.reading.missing or [])
    if given_recipe is None:
        used = [*features, *roles.targets]
        unread = [name for name in used if name not in notations]
        notes[first.name] += suspicions(first, unread)
    left_out = dict(recipe.left_out)
    if index is not None:
        left_out = {index: "it numbers the rows; `keep_index` keeps it", **left_out}
    recipe = replace(
        recipe,
        left_out=left_out,
        id=roles.id,
        # other files may have another format
        reading=replace(options.reading, format=None),
        notes={name: lines for name, lines in notes.items() if lines},
        notations=notations,
    )
    if given_recipe is None:
        recipe = recipe.with_meanings(stored[0].schema)
        for table in stored[1:]:
            recipe.read(table)  # raises DataError if meanings differ
    # Planned a second time: X's dtype follows from what was learned.
    final = column_roles.plan_columns(schema, roles, recipe, first.name)
    types = {**time_type, **types_of_constants(schema, recipe), **final.types}
    final = replace(
        final,
        types=types,
        first_test_value=plan.first_test_value,
        time=time,
        columns=schema.names,
    )
    if given_recipe is not None:
        advice = "Fill in the value in the table, or leave the row out of it"
        final = replace(final, advice=advice)
    return opened, final


def _learn(
    opened: Sequence[Input],
    plan: ColumnPlan,
    kinds: Mapping[str, str | None],
    encoding: Encoding,
    selection: holdout.RowSelection | None,
) -> Recipe:
    """Learn the recipe in a pass over the selected rows of all inputs."""
    journal = Journal()
    batches = (
        part.batch
        for source in opened
        for part in rows.read_rows(source, plan, journal, selection)
    )
    return learn.learn(kinds, batches, encoding)


def _check_categories(
    table: str, schema: pyarrow.Schema, features: Sequence[str], encoding: Encoding
) -> None:
    named = encoding.categories or []
    for name in named:
        column_roles.check_column(table, schema, name, "categories")
    if others := sorted(set(named) - set(features)):
        raise InvalidParameterError(
            f"`categories`: {listed(others)} of {table} have other roles; expected"
            " columns of X"
        )


def _refuse_other_columns(tables: Sequence[RawTable], schema: pyarrow.Schema) -> None:
    for table in tables:
        differing = set(table.schema.names) ^ set(schema.names)
        if differing:
            raise DataError(
                f"{table.name} and {tables[0].name} differ in the columns"
                f" {listed(sorted(differing))}"
            )


def notations_of(
    tables: Sequence[RawTable], roles: Roles, time: str | None, reading: CsvOptions
) -> dict[str, Notation]:
    """Find how texts write numbers and dates; ids and groups keep leading zeros.

    Rows are held out by the order of the column `time`, which is read as well.
    """
    names = tables[0].schema.names
    labels = {roles.groups, roles.id, *roles.drop} - {time}
    used = {*(roles.columns or names), *roles.targets, roles.weight, time} - labels
    notations = find_notations(
        tables,
        [name for name in names if name in used],
        reading,
        quantities={*roles.targets, roles.weight} - {time},
    )
    for table in tables:
        notations |= find_codes(
            table, {roles.groups, roles.id} - {time}, are_labels=True
        )
    return notations


def _roles_by_recipe(recipe: Recipe, roles: Roles, schema: pyarrow.Schema) -> Roles:
    if roles.columns is not None:
        raise InvalidParameterError(
            "`columns` is given, but the recipe names the columns; leave it out"
        )
    if roles.id is None and recipe.id in schema.names:
        roles = replace(roles, id=recipe.id)
    return replace(roles, columns=recipe.inputs)


def types_of_constants(schema: pyarrow.Schema, recipe: Recipe) -> Types:
    """Return the types of columns that were left out because they held one value.

    They are read as well: if they vary in later rows, that is reported.
    """
    types = {}
    for name in constant_columns(recipe):
        if name in schema.names:
            stored_type = schema.field(name).type
            types[name] = read_type(stored_type, kind_of(stored_type))
    return types
