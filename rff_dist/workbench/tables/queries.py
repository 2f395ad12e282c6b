"""Rows of a database query, a batch at a time. Messages show neither passwords nor the query's text."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import compute

from rff_dist.data import sources as row_sources
from rff_dist.errors import DataError, InvalidParameterError, MissingDependencyError, StorageError
from rff_dist.lazy import require
from rff_dist.recipes import tables
from rff_dist.storage import locations

CONNECTION_VARIABLE = "RFF_DIST_SQL"
N_INGESTED = "n_ingested"
_PEEKED_ROWS = 1000  # the first rows, which decide the types of the columns
_CONNECT_S = 30
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_800_000_000  # years 1 to 9999

#: Some rows of a result: their number, and their columns.
type _Part = tuple[int, Sequence[Any]]
type _Telling = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Query:
    """A database query, whose rows are ingested.

    In its text, `:n_ingested` stands for the number of rows that the dataset already has from this query, so
    that the query can ask for new rows only:
    ``SELECT … FROM t ORDER BY id LIMIT 100000000 OFFSET :n_ingested``. Without it, all rows of the result are
    appended, unless exactly these rows were ingested before.

    `sql`: a SELECT, or another statement that returns rows.
    `connection`: SQLAlchemy's URL of the database, such as `postgresql://user:password@host/name`; None takes
      the environment variable RFF_DIST_SQL. It is neither shown nor stored.
    """

    sql: str
    connection: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The name that a dataset stores: a digest, since the query's text may name people."""
        return f"query {sha256(' '.join(self.sql.split()).encode()).hexdigest()[:32]}"

    @property
    def is_incremental(self) -> bool:
        """Whether the query asks for rows beyond those that are ingested."""
        return re.search(rf"(?<![:\w\\]):{N_INGESTED}\b", self.sql) is not None

    def n_ingested(self, sources: Sequence[Mapping[str, Any]]) -> int:
        """Return how many rows of this query were read before, by a dataset's `sources`."""
        return sum(int(entry.get("n_read", 0)) for entry in sources if row_sources.is_named(entry, self.name))


def read_secret(text: str, what: str) -> str:
    """Return a text that may be given as ``env:NAME`` or ``file:PATH``, so that no one else sees it.

    `what`: its name in messages.
    Raises InvalidParameterError if there is no such variable or file, or it is empty.
    """
    kind, _, place = text.partition(":")
    if kind == "env":
        found, where = os.environ.get(place, ""), f"the environment variable {place}"
    elif kind == "file":
        where = f"the file {place}"
        try:
            found = Path(place).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidParameterError(
                f"{what} is {text!r}, but {where} cannot be read ({type(error).__name__}); expected a text "
                "file that this process may read"
            ) from None
    else:
        return text
    if not found.strip():
        raise InvalidParameterError(f"{what} is {text!r}, but {where} is empty or not there; expected a text")
    return found.strip()


def holds_password(connection: str) -> bool:
    """Say whether a database's URL has a password, or options, which may hold one."""
    import sqlalchemy

    try:
        url = sqlalchemy.make_url(connection)
    except sqlalchemy.exc.ArgumentError:
        return False
    return bool(url.password or url.query)


@contextmanager
def run_query(query: Query, *, n_ingested: int) -> Iterator[tables.Table]:
    """Run a query and yield its result as a table, which a server-side cursor reads once.

    Raises InvalidParameterError if no connection is given, or it is no URL of a database;
      MissingDependencyError if the database's driver is not installed; StorageError if the database does not
      answer or refuses the query.
    """
    import sqlalchemy

    url = _read_url(query)
    if url.drivername == "postgresql":
        with _copied(query, url, n_ingested) as table:
            yield table
        return
    try:
        # Without it a driver waits for a database that takes the connection and answers nothing; SQLAlchemy
        # has no option for it. SQLite has no server, and waits 5 s for its lock.
        known = url.get_driver_name() in ("psycopg", "psycopg2", "pymysql", "mysqldb")
        bounded = known and "connect_timeout" not in url.query
        arguments = {"connect_timeout": _CONNECT_S} if bounded else {}
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool, connect_args=arguments)
    except ImportError as error:
        raise MissingDependencyError(
            f"{url.drivername} needs the package {error.name}, which is not installed: "
            f"pip install {error.name}"
        ) from None
    except Exception as error:
        raise InvalidParameterError(
            f"{_shown(url)} is no database that SQLAlchemy knows ({_explained(error, url)}); expected a URL "
            "such as sqlite:///file.db or postgresql://user:password@host/name"
        ) from None
    parameters = {N_INGESTED: n_ingested} if query.is_incremental else {}
    try:
        # Errors of the database's driver may hold the password: they are raised without it.
        with _telling(query, url), engine.connect() as connection:
            # otherwise most drivers fetch the whole result before its first row is read
            streaming = connection.execution_options(stream_results=True)
            # No bound: an hour of sorting looks like a database that will never answer. The database may have
            # one (`statement_timeout`), a flow has `timeout_minutes`, and the user can interrupt it.
            result = streaming.execute(sqlalchemy.text(query.sql), parameters)
            yield _as_table(result, partial(_telling, query, url))
    finally:
        engine.dispose()


@contextmanager
def _copied(query: Query, url: Any, n_ingested: int) -> Iterator[tables.Table]:
    """Yield the result of a query of PostgreSQL, which COPY sends as batches of columns."""
    import sqlalchemy

    why = "postgresql:// needs the package adbc-driver-postgresql"
    other = ". Another driver is named as in postgresql+psycopg://"
    dbapi = require("adbc_driver_postgresql.dbapi", why, "postgresql", other)
    telling = partial(_telling, query, url, dbapi.Error, pyarrow.ArrowException, OSError)
    limits = {} if "connect_timeout" in url.query else {"connect_timeout": str(_CONNECT_S)}
    place = url.update_query_dict(limits).render_as_string(hide_password=False)
    with ExitStack() as stack:
        with _telling(query, url, dbapi.Error):
            text = sqlalchemy.text(query.sql)
            if query.is_incremental:
                text = text.bindparams(**{N_INGESTED: n_ingested})
            text.compile().construct_params()  # raises for another name, which below would become NULL
            compiled = text.compile(compile_kwargs={"literal_binds": True})
            connection = stack.enter_context(dbapi.connect(place))
            cursor = stack.enter_context(connection.cursor())
            cursor.execute(f"{compiled}\n")  # a last line that is a comment would hide the end of COPY
            reader = cursor.fetch_record_batch()
        kinds = list(map(_plain_type, reader.schema))
        # each column with its own type, which may be another than it is read by
        parts = ((len(batch), list(zip(batch.columns, kinds, strict=True))) for batch in reader if len(batch))
        with telling():
            first = next(parts, None)
        labels = reader.schema.names
        yield _table(labels, kinds, first, parts, convert=_plain, telling=telling)


def _plain_type(field: pyarrow.Field) -> pyarrow.DataType:
    """Return the type that SQLAlchemy's values of a column of PostgreSQL have; binary for those not read."""
    types, kind = pyarrow.types, field.type
    named = (field.metadata or {}).get(b"POSTGRESQL:type")
    if types.is_integer(kind) and named != b"money":  # which is sent as cents
        return pyarrow.int64()
    if types.is_floating(kind) or named == b"numeric":
        return pyarrow.float64()
    if types.is_date(kind) or types.is_timestamp(kind):
        return pyarrow.timestamp("us")
    return kind if types.is_string(kind) or types.is_boolean(kind) else pyarrow.binary()


def _plain(
    typed: tuple[pyarrow.Array, pyarrow.DataType], _: pyarrow.DataType, name: str, start: int
) -> pyarrow.Array:
    column, kind = getattr(typed[0], "storage", typed[0]), typed[1]  # decimals, as text
    if pyarrow.types.is_float32(column.type):
        # by their digits, as drivers read them: 0.1 is not 0.10000000149
        column = column.cast(pyarrow.string())
    try:
        column = column.cast(kind)
        if kind == pyarrow.timestamp("us"):
            # infinity arrives as another day: years beyond datetime's are none
            ends = compute.min_max(column.cast("int64"))
            if any(end.is_valid and not _FIRST_US <= end.as_py() < _LAST_US for end in ends.values()):
                raise pyarrow.ArrowInvalid
    except pyarrow.ArrowException:
        raise _other_values(name, kind, start, len(column)) from None
    return column


def _read_url(query: Query) -> Any:
    import sqlalchemy

    text = query.connection or os.environ.get(CONNECTION_VARIABLE)
    if not text:
        raise InvalidParameterError(
            f"no database is given to run the query on; set the environment variable {CONNECTION_VARIABLE} "
            f"to its URL, such as sqlite:///file.db or postgresql://user:password@host/name"
        )
    try:
        url = sqlalchemy.make_url(text)
        if "@" in (url.host or ""):  # the end of a password, which drivers would show as a host
            raise ValueError
        return url
    except Exception:
        raise InvalidParameterError(
            "the database's URL cannot be read (it is not shown, since it may hold a password); expected one "
            "such as sqlite:///file.db or postgresql://user:password@host/name, with '@' in a password as %40"
        ) from None


@contextmanager
def _telling(query: Query, url: Any, *others: type[Exception]) -> Iterator[None]:
    """Turn errors of SQLAlchemy and its drivers, and `others`, into StorageError.

    Without passwords and the query.
    """
    import sqlalchemy

    errors: tuple[type[Exception], ...] = (sqlalchemy.exc.SQLAlchemyError, *others)
    try:
        yield
    except errors as error:
        raise StorageError(
            f"the query of {_shown(url)} failed ({_explained(error, url, query.sql)}). Check the query, the "
            "address and the permissions; a colon in its text is written `\\:`"
        ) from None


def _as_table(result: Any, telling: _Telling) -> tables.Table:
    labels = [str(name) for name in result.keys()]  # noqa: SIM118  # a cursor
    rows = result.partitions(min(tables.rows_per_batch(8 * len(labels)), _PEEKED_ROWS))
    parts = ((len(part), list(zip(*part, strict=True))) for part in rows)
    first = next(parts, None)
    kinds = map(_type, [()] * len(labels) if first is None else first[1])
    return _table(labels, kinds, first, parts, convert=_as_column, telling=telling)


def _table(
    labels: Sequence[str],
    kinds: Iterable[pyarrow.DataType],
    first: _Part | None,
    parts: Iterator[_Part],
    *,
    convert: Callable[[Any, pyarrow.DataType, str, int], pyarrow.Array],
    telling: _Telling,
) -> tables.Table:
    """Return the result of a query as a table; `parts` are read once, and `first` was read from them.

    `convert`: makes a column of a type, from its values, its name and the number of its first row.
    `telling`: turns errors of the database.
    """
    names = tables.numbered(labels)
    schema = pyarrow.schema(list(zip(names, kinds, strict=True)))

    def to_batch(part: _Part, types: Mapping[str, pyarrow.DataType], start: int = 0) -> pyarrow.RecordBatch:
        columns = dict(zip(names, part[1], strict=True))
        made = {name: convert(columns[name], kind, name, start) for name, kind in types.items()}
        return tables.cast_columns(pyarrow.RecordBatch.from_pydict(made), types, "the query")

    def batches(types: Mapping[str, pyarrow.DataType]) -> Iterator[pyarrow.RecordBatch]:
        part, start = first, 0
        while part is not None:
            yield to_batch(part, types, start)
            start += part[0]
            with telling():
                part = next(parts, None)

    def head(types: Mapping[str, pyarrow.DataType]) -> pyarrow.RecordBatch | None:
        return None if first is None else to_batch(first, types)

    return tables.Table("the query", schema, batches, None, tables.numbered_note(labels), True, head)


def _type(values: Sequence[Any]) -> pyarrow.DataType:
    """Return the type of a column by its first values: float64 if they are numbers, or all missing."""
    types = {type(value) for value in values if value is not None}
    if types == {bool}:
        return pyarrow.bool_()
    if all(issubclass(kind, int) for kind in types) and types:
        return pyarrow.int64()
    if all(issubclass(kind, int | float | Decimal | np.number) for kind in types):
        return pyarrow.float64()
    if types <= {datetime, date}:
        return pyarrow.timestamp("us")
    return pyarrow.string() if types == {str} else pyarrow.binary()


def _as_column(values: Sequence[Any], kind: pyarrow.DataType, name: str, start: int) -> pyarrow.Array:
    if kind == pyarrow.float64():
        with suppress(pyarrow.ArrowException):  # refuses decimals and large integers, which the loop takes
            return pyarrow.array(values, kind, from_pandas=True)
        return pyarrow.array(_as_numbers(values, name, start), kind, from_pandas=True)
    try:
        if pyarrow.types.is_timestamp(kind):  # Arrow takes no date for a timestamp
            values = [datetime(*value.timetuple()[:3]) if type(value) is date else value for value in values]
        return pyarrow.array(values, kind)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        raise _other_values(name, kind, start, len(values)) from None


def _other_values(name: str, kind: pyarrow.DataType, start: int, n_rows: int) -> DataError:
    return DataError(
        f"the query's column {name!r} holds other values than {kind} in rows {start + 1:_} to "
        f"{start + n_rows:_}; expected values of one type. CAST it, or leave the column out"
    )


def _as_numbers(values: Sequence[Any], name: str, start: int) -> np.ndarray:
    """Return a column as float64, missing values as NaN."""
    numbers = np.empty(len(values))
    for i, value in enumerate(values):
        if value is not None and not isinstance(value, int | float | Decimal | np.number):
            raise DataError(
                f"the query's column {name!r} is {str(value)[:50]!r}, a {type(value).__name__}, in row "
                f"{start + i + 1:_}; expected numbers. CAST it, or leave the column out"
            )
        numbers[i] = np.nan if value is None else float(value)
    return numbers


def _shown(url: Any) -> str:
    """Return the address of a database, without user and password."""
    return f"{url.drivername}://{url.host or ''}/{url.database or ''}"


def _explained(error: BaseException, url: Any, sql: str = "") -> str:
    """Return an error's message without the password and the values in the query.

    SQLAlchemy adds the query to the driver's message, and PostgreSQL's driver adds the line that failed.
    """
    whole = locations.explain(getattr(error, "orig", None) or error)
    text = re.sub(r" (\[SQL: |LINE \d+:|Query was: ).*", "", whole)
    secrets = [str(url.password or ""), *(str(value) for value in url.query.values())]
    secrets += re.findall(r"'((?:[^']|'')+)'", sql)
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
