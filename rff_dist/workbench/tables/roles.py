"""Which column of a table is X, target, weight, group or id, and whether it can be.

In go a table's schema and the user's `Roles`, out comes a `ColumnPlan`: what each
column is read as. Names and types are checked before the data are read: a wrong name
must not cost a pass. Only `find_index` reads the first rows of a table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.recipes.arrow import pyarrow
from rff_dist.recipes.recipes import Recipe
from rff_dist.recipes.tables import (
    RawTable,
    Types,
    kind_of,
    listed,
    number_dtype,
    read_type,
    repeated,
    to_numbers,
)
from rff_dist.text import clipped, nearest
from rff_dist.typing import AnyDType, frozen

ADVICE = 'Fill it in, or drop such rows with `on_nan="drop"`'


@frozen
class Roles:
    """Which columns of a table become X, y, weights, groups and ids, and how.

    Parameters
    ----------
    target
        Column to predict. One name makes y a vector, a list a matrix. One column of
        text makes y labels for a classifier.
    weight
        Column (or array) of sample weights.
    groups
        Column (or array) of integers, booleans or text; rows of one group are held out
        together. It is written as "groups".
    columns
        Columns that X is made of, in this order; None takes all without another role.
    drop
        Columns that are left out.
    id
        Column of integers or text that names each row. It is written as "id", and
        returned with predictions.
    dtype : {"float32", "float64"}
        Of X. None keeps all digits: float32 for columns of float32, booleans and
        integers of at most 16 bits, else float64. Numbers in CSV files are read as
        float64, and 64-bit integers above 2^53 are rounded to it. Targets are float64;
        labels, groups and ids keep their type.
    on_nan : {"error", "drop"}
        What to do with a row that has an empty, NaN or infinite value, or empty text.
        The dataset's attribute `dropped_rows` counts dropped rows.
    """

    target: str | Sequence[str] | None = None
    weight: str | None = None
    groups: str | None = None
    columns: Sequence[str] | None = None
    drop: Sequence[str] = ()
    id: str | None = None
    dtype: str | None = None
    on_nan: str = "error"

    @property
    def targets(self) -> list[str]:
        if isinstance(self.target, str):
            return [self.target]
        return list(self.target or [])

    @property
    def not_in_x(self) -> set[str | None]:
        """The columns that are not in X unless `columns` names them."""
        return {*self.targets, self.weight, self.groups, self.id, *self.drop}


@frozen
class ColumnPlan:
    """How a table's columns become arrays."""

    roles: Roles
    #: how X is made
    recipe: Recipe
    #: the types that all columns are read by
    types: Types
    dtype: AnyDType
    #: whether y holds classes as text
    has_labels: bool
    # `plan_columns` sees one table; those below are set by `planning`, which sees all

    #: rows with at least this value of `time` are held out; see `Holdout.by`
    first_test_value: float = np.nan
    #: column whose values are stored too, so that folds can be cut by time
    time: str | None = None
    #: all columns of the table
    columns: Sequence[str] = ()
    #: what to do about a missing value
    advice: str = ADVICE

    @property
    def features(self) -> list[str]:
        return self.recipe.names

    @property
    def targets(self) -> list[str] | None:
        return self.roles.targets or None


def find_index(table: RawTable, roles: Roles) -> str | None:
    """Return the column that numbers a table's rows, as pandas writes its index; None
    if there is no such column.

    It can only be the first column. Its name is empty (or what pandas writes for an
    empty name), and it holds different integers from 0 on; or its name is "index", and
    it counts up from 0 or 1. A column with a role, or the only one without a role, is
    no index.
    """
    name, *others = table.schema.names
    other_roles = roles.not_in_x
    has_role = roles.columns is not None or name in other_roles
    if has_role or set(others) <= other_roles:
        return None

    is_unnamed = re.fullmatch(r"(Unnamed: \d+)?", name) is not None
    is_integer = pyarrow.types.is_integer(table.schema.field(0).type)
    if not is_integer or not (is_unnamed or name == "index"):
        return None
    first = table.first_rows({name: pyarrow.int64()})
    if first is None or first.num_rows < 2 or first.column(name).null_count:
        return None

    numbers = to_numbers(first.column(name))
    counts_up = numbers[0] in (0, 1) and (np.diff(numbers) == 1).all()
    # a shuffled frame has its numbers in any order
    all_differ = len(np.unique(numbers)) == len(numbers)
    is_shuffled = is_unnamed and numbers.min() >= 0 and all_differ
    return name if counts_up or is_shuffled else None


def common_schema(tables: Sequence[RawTable]) -> pyarrow.Schema:
    """Return types for the first table's columns that hold the values of all tables:
    text if one table has text.

    If one table has numbers and another dates, there is no such type: the first table's
    stays, and the other table is refused when it is read.
    """
    types = {field.name: field.type for field in tables[0].schema}
    for table in tables[1:]:
        for field in table.schema:
            if field.name in types:
                types[field.name] = _common_type(types[field.name], field.type)
    return pyarrow.schema(types)


def _common_type(first: pyarrow.DataType, second: pyarrow.DataType) -> pyarrow.DataType:
    if first == second or pyarrow.types.is_null(second):
        return first
    if pyarrow.types.is_null(first):
        return second
    kinds = {kind_of(first), kind_of(second)}
    if "text" in kinds:
        return pyarrow.string()
    if kinds == {"number"}:
        wider = np.result_type(number_dtype(first), number_dtype(second))
        return pyarrow.from_numpy_dtype(wider)
    return pyarrow.timestamp("us") if kinds == {"date"} else first


def plan_columns(
    schema: pyarrow.Schema, roles: Roles, recipe: Recipe, table: str
) -> ColumnPlan:
    """Return how a table's columns become arrays, if they can.

    Raises InvalidParameterError or DataError as `check_roles`; InvalidParameterError if
    weights or groups are given without a target.
    """
    check_roles(table, schema, roles)
    for column, role in ((roles.weight, "weight"), (roles.groups, "groups")):
        if column is not None and not roles.targets:
            raise InvalidParameterError(
                f"`{role}` without `target`; give a target too, or leave it out"
            )

    stored_types = {field.name: field.type for field in schema}
    has_labels = any(kind_of(stored_types[name]) == "text" for name in roles.targets)
    types = recipe.types_to_read_by(schema, table) if recipe.columns else {}
    target_kind = None if has_labels else "number"  # None: read as they are
    for name in roles.targets:
        types[name] = read_type(stored_types[name], target_kind)
    if roles.weight is not None:
        types[roles.weight] = read_type(stored_types[roles.weight], "number")
    for column in (roles.groups, roles.id):
        if column is not None:
            types[column] = read_type(stored_types[column], None)
    dtype = recipe.dtype(schema) if roles.dtype is None else np.dtype(roles.dtype)
    return ColumnPlan(roles, recipe, types, dtype, has_labels)


def check_column(table: str, schema: pyarrow.Schema, name: str, role: str) -> None:
    """Raise InvalidParameterError, with near names, if a table has no such column."""
    if name in schema.names:
        return
    near = nearest(name, schema.names)
    hint = f"did you mean {near!r}?" if near else f"it has {listed(schema.names)}"
    raise InvalidParameterError(f"`{role}`: {table} has no column {name!r}; {hint}")


def feature_columns(schema: pyarrow.Schema, roles: Roles) -> list[str]:
    """Return the names of X's columns: the named ones, else all without another
    role.
    """
    if roles.columns is not None:
        return list(roles.columns)
    return [name for name in schema.names if name not in roles.not_in_x]


def check_names(
    table: str, schema: pyarrow.Schema, roles: Roles, time: str | None = None
) -> None:
    """Raise InvalidParameterError if a table lacks a column with a role, or the one by
    which rows are held out.
    """
    for role in ("target", "weight", "groups", "id", "columns", "drop"):
        value = getattr(roles, role) or ()
        for name in [value] if isinstance(value, str) else value:
            check_column(table, schema, name, role)
    if time is not None:
        check_column(table, schema, time, "holdout_by")


def check_roles(table: str, schema: pyarrow.Schema, roles: Roles) -> None:
    """Check that a table has the columns that are named, each in one role.

    Raises InvalidParameterError if a column does not exist, or has two roles; DataError
    if it holds values that do not fit its role.
    """
    check_names(table, schema, roles)
    features = feature_columns(schema, roles)
    others = (roles.weight, roles.groups, roles.id)
    used = [*features, *roles.targets, *filter(None, others)]
    if twice := repeated(used):
        raise InvalidParameterError(
            f"columns {listed(twice)} are named twice; expected each once, in one role"
        )
    if not features:
        raise InvalidParameterError(
            f"no column of {table} is left for X; name some by `columns`"
        )

    kinds = {name: kind_of(schema.field(name).type) for name in used}
    unknown = [name for name in used if kinds[name] is None]
    _refuse_columns(table, schema, unknown, "numbers, text or dates")
    must_be_numbers = {roles.weight}
    if len(roles.targets) > 1:  # a single target may hold classes
        must_be_numbers |= {*roles.targets}
    no_numbers = [
        name for name in used if name in must_be_numbers and kinds[name] != "number"
    ]
    _refuse_columns(table, schema, no_numbers, "numbers")
    for name in roles.targets:
        if kinds[name] == "date":
            raise DataError(
                f"{table}: the target {name!r} is a date; expected numbers or classes."
                " Convert it first, for example to days since another date"
            )


def _refuse_columns(
    table: str, schema: pyarrow.Schema, names: Sequence[str], wanted: str
) -> None:
    """Raise DataError, with the columns' types, if `names` has any; the columns were
    expected to hold `wanted`.
    """
    if not names:
        return
    types = [f"{name!r} ({clipped(str(schema.field(name).type))})" for name in names]
    raise DataError(
        f"{table}: not {wanted}: {clipped(', '.join(types[:10]), 300)}; expected"
        f" {wanted}. Leave these columns out with"
        f" `drop={[clipped(name) for name in names[:10]]}`, or convert them first"
    )
