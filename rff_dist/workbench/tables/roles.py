"""The roles of a table's columns, and whether the columns can have them."""

import difflib
import re
from collections.abc import Sequence

import numpy as np
import pyarrow

from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.recipes import tables
from rff_dist.text import clipped
from rff_dist.typing import AnyDType, frozen
from rff_dist.workbench.tables import learn

ADVICE = 'Fill it in, for example with `impute="median"`, or drop such rows with `on_nan="drop"`'


@frozen
class Roles:
    """Which columns of a table become X, y, weights, groups and ids, and how.

    `target`: columns to predict. One name makes y a vector, a list a matrix. One column of text makes y
      labels for a classifier. In an .npz file: the name of the targets' array, by default "y" if it exists.
    `weight`: column (or array) of sample weights.
    `groups`: column (or array) of integers, booleans or text; rows of one group are held out together. It is
      written as "groups".
    `columns`: columns of the table that X is made of, in this order; None takes all without another role.
    `drop`: columns that are left out.
    `id`: column of integers or text that names each row. It is written as "id", and given back with
      predictions.
    `dtype`: {"float32", "float64"}. The dtype of X. None keeps all digits: float32 for columns of float32,
      booleans and integers of at most 16 bits, else float64. Numbers in CSV files are read as float64, and
      64-bit integers above 2^53 are rounded to it. Targets are float64; labels, groups and ids keep their
      type.
    `on_nan`: {"error", "drop"}. What to do with a row that has an empty, NaN or infinite value, or empty
      text. The attribute `dropped_rows` counts dropped rows.
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
        return [self.target] if isinstance(self.target, str) else list(self.target or [])


@frozen
class TablePlan:
    """How a table's columns become arrays.

    `learned`: the recipe of X's columns; None for an .npz file.
    `types`: the types that all columns are read by.
    `text`: whether y holds labels.
    `test_start`: rows with at least this value in the column that orders them are held out; see `Holdout.by`.
    `time`: that column, whose values are stored with the rows, so that models are chosen by later rows too.
    `columns`: all columns of the table.
    `advice`: what to do about a missing value.
    """

    roles: Roles
    learned: learn.Learned | None
    types: tables.Types
    dtype: AnyDType
    text: bool
    test_start: float = np.nan
    time: str | None = None
    columns: Sequence[str] = ()
    advice: str = ADVICE

    @property
    def features(self) -> list[str] | None:
        return None if self.learned is None else self.learned.recipe.names

    @property
    def targets(self) -> list[str] | None:
        return None if self.learned is None else self.roles.targets or None

    def name_column(self, part: int, column: int) -> str:
        """Name a column of X, y, weights, groups or ids (`part` 0 to 4); by its name in the table, if any."""
        sources = None if self.learned is None else self.learned.recipe.sources
        known = (sources, self.targets, None, None, None)[part]
        array = ("X", "y", "the weights", "the groups", "the ids")[part]
        return repr(known[column]) if known else f"{column} of {array}"


def find_index(table: tables.Table, roles: Roles) -> str | None:
    """Return the column that numbers a table's rows, as pandas writes its index; None if there is none.

    It is the first column if that has no name (or pandas' name for none) and holds different integers from 0
    on, or is called "index" and counts from 0 or 1 on. A column with a role, or the only one left, is none.
    """
    taken = {*roles.targets, roles.weight, roles.groups, roles.id, *roles.drop}
    name, *others = table.schema.names
    if roles.columns is not None or name in taken or set(others) <= taken:
        return None
    is_unnamed = re.fullmatch(r"(Unnamed: \d+)?", name) is not None
    if not (is_unnamed or name == "index") or not pyarrow.types.is_integer(table.schema.field(0).type):
        return None
    first = table.first_rows({name: pyarrow.int64()})
    if first is None or first.num_rows < 2 or first.column(name).null_count:
        return None
    rows = tables.to_numbers(first.column(name))
    counts = rows[0] in (0, 1) and (np.diff(rows) == 1).all()
    numbers = is_unnamed and rows.min() >= 0 and len(np.unique(rows)) == len(rows)  # of a shuffled frame, say
    return name if counts or numbers else None


def common_schema(several: Sequence[tables.Table]) -> pyarrow.Schema:
    """Return types that hold the columns of all tables: text if one table has text, else the wider number."""
    kinds = {field.name: field.type for field in several[0].schema}
    for table in several[1:]:
        for field in table.schema:
            if field.name in kinds:
                kinds[field.name] = _common_type(kinds[field.name], field.type)
    return pyarrow.schema(list(kinds.items()))


def _common_type(first: pyarrow.DataType, second: pyarrow.DataType) -> pyarrow.DataType:
    if first == second or pyarrow.types.is_null(second):
        return first
    if pyarrow.types.is_null(first):
        return second
    held = {tables.kind_of(first), tables.kind_of(second)}
    if "text" in held:
        return pyarrow.string()
    if held == {"number"}:
        return pyarrow.from_numpy_dtype(np.result_type(*map(tables.number_dtype, (first, second))))
    return pyarrow.timestamp("us") if held == {"date"} else first


def plan_columns(schema: pyarrow.Schema, roles: Roles, learned: learn.Learned, table: str) -> TablePlan:
    """Return how a table's columns become arrays, if they can.

    Raises InvalidParameterError, DataError as `choose_columns` and `Recipe.check`.
    """
    choose_columns(table, schema, roles)
    for column, role in ((roles.weight, "weight"), (roles.groups, "groups")):
        if column is not None and not roles.targets:
            raise InvalidParameterError(f"`{role}` without `target`; give a target too, or leave it out")
    types = learned.recipe.check(schema, table) if learned.recipe.columns else {}
    text = any(tables.kind_of(schema.field(name).type) == "text" for name in roles.targets)
    wanted = [(name, None if text else "number") for name in roles.targets]
    wanted += [(roles.weight, "number")] if roles.weight is not None else []
    wanted += [(name, None) for name in (roles.groups, roles.id) if name is not None]
    types |= {name: tables.read_type(schema.field(name).type, held) for name, held in wanted}
    dtype = np.dtype(roles.dtype) if roles.dtype is not None else learned.recipe.dtype(schema)
    return TablePlan(roles, learned, types, dtype, text)


def check_column(table: str, schema: pyarrow.Schema, name: str, role: str) -> None:
    """Raise InvalidParameterError, with near names, if a table has no such column."""
    if name not in schema.names:
        near = difflib.get_close_matches(name, schema.names, n=3)
        known = "nearest: " + ", ".join(map(repr, near)) if near else "it has " + tables.listed(schema.names)
        raise InvalidParameterError(f"`{role}`: {table} has no column {name!r}; {known}")


def choose_columns(table: str, schema: pyarrow.Schema, roles: Roles) -> list[str]:
    """Return the names of X's columns, after checking that all given names exist and fit their roles.

    Raises InvalidParameterError if one does not exist, or has two roles; DataError if one holds values that
      do not fit its role.
    """
    kinds = {field.name: tables.kind_of(field.type) for field in schema}
    named = [(name, "target") for name in roles.targets]
    named += [(name, "columns") for name in roles.columns or []]
    others = ((roles.weight, "weight"), (roles.groups, "groups"), (roles.id, "id"))
    named += [(name, role) for name, role in others if name is not None]
    for name, role in [*named, *((name, "drop") for name in roles.drop)]:
        check_column(table, schema, name, role)
    taken = {*roles.targets, roles.weight, roles.groups, roles.id, *roles.drop}
    features = [name for name in kinds if name not in taken] if roles.columns is None else list(roles.columns)
    used = [*features, *(name for name, role in named if role != "columns")]
    if twice := tables.repeated(used):
        raise InvalidParameterError(
            f"columns {tables.listed(twice)} are named twice; expected each once, in one role"
        )
    if not features:
        raise InvalidParameterError(f"no column of {table} is left for X; name some by `columns`")
    labels = {roles.groups, roles.id, *(roles.targets if len(roles.targets) == 1 else [])}
    numbers = {roles.weight, *roles.targets}
    unknown = [name for name in used if kinds[name] is None]
    no_numbers = [name for name in used if name in numbers - labels and kinds[name] != "number"]
    for strange, wanted in ((unknown, "numbers, text or dates"), (no_numbers, "numbers")):
        if strange:
            shown = ", ".join(f"{name!r} ({clipped(str(schema.field(name).type))})" for name in strange[:10])
            raise DataError(
                f"{table}: not {wanted}: {clipped(shown, 300)}; expected {wanted}. Leave these columns out "
                f"with `drop={[clipped(name) for name in strange[:10]]}`, or convert them first"
            )
    dates = [name for name in roles.targets if kinds[name] == "date"]
    if dates:
        raise DataError(
            f"{table}: the target {dates[0]!r} is a date; expected numbers or classes. Convert it first, for "
            "example to days since another date"
        )
    return features
