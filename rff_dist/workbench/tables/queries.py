"""Rows of a database query, a batch at a time. Messages show neither passwords nor the query's text."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import field
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from rff_dist.data import sources as row_sources
from rff_dist.errors import DataError, InvalidParameterError, MissingDependencyError, StorageError
from rff_dist.recipes import tables
from rff_dist.storage import locations
from rff_dist.typing import Facts, frozen

CONNECTION_VARIABLE = "RFF_DIST_SQL"
N_INGESTED = "n_ingested"
_PEEKED_ROWS = 1000  # the first rows, which decide the types of the columns
_CONNECT_S = 30

type _Telling = Callable[[], AbstractContextManager[None]]


@frozen
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

    def n_ingested(self, sources: Sequence[Facts]) -> int:
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
    if url.drivername == "postgresql":  # SQLAlchemy's default is the driver before
        url = url.set(drivername="postgresql+psycopg")
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
            with closing(streaming.execute(sqlalchemy.text(query.sql), parameters)) as result:
                yield _as_table(result, partial(_telling, query, url))
    finally:
        engine.dispose()


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
def _telling(query: Query, url: Any) -> Iterator[None]:
    """Turn errors of SQLAlchemy and its drivers into StorageError, without passwords and the query."""
    import sqlalchemy

    try:
        yield
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise StorageError(
            f"the query of {_shown(url)} failed ({_explained(error, url, query.sql)}). Check the query, the "
            "address and the permissions; a colon in its text is written `\\:`"
        ) from None


def _as_table(result: Any, telling: _Telling) -> tables.Table:
    """Return the result of a query as a table, which is read once; `telling` turns errors of the database."""
    labels = [str(name) for name in result.keys()]  # noqa: SIM118  # a cursor
    names = tables.numbered(labels)
    parts = result.partitions(min(tables.rows_per_batch(8 * len(labels)), _PEEKED_ROWS))
    first = next(parts, None)
    columns = [()] * len(labels) if first is None else list(zip(*first, strict=True))
    schema = pyarrow.schema(list(zip(names, map(_type, columns), strict=True)))

    def to_batch(rows: Any, types: tables.Types, start: int = 0) -> pyarrow.RecordBatch:
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        made = {name: _as_column(columns[name], kind, name, start) for name, kind in types.items()}
        return tables.cast_columns(pyarrow.RecordBatch.from_pydict(made), types, "the query")

    def batches(types: tables.Types) -> tables.Batches:
        rows, start = first, 0
        while rows is not None:
            yield to_batch(rows, types, start)
            start += len(rows)
            with telling():
                rows = next(parts, None)

    def head(types: tables.Types) -> pyarrow.RecordBatch | None:
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
    is_float = kind == pyarrow.float64()
    refusals = (pyarrow.ArrowException, TypeError, ValueError, OverflowError)
    with suppress(*refusals):
        return pyarrow.array(values, kind, from_pandas=is_float)
    plain = []
    for row, value in enumerate(values, start + 1):
        number = is_float and isinstance(
            value, int | Decimal | np.number
        )  # Arrow takes no decimal for a float
        is_day = pyarrow.types.is_timestamp(kind) and type(value) is date  # nor a date for a timestamp
        try:
            plain.append(float(value) if number else datetime(*value.timetuple()[:3]) if is_day else value)
            pyarrow.scalar(plain[-1], kind)
        except refusals:
            raise DataError(
                f"the query's column {name!r} is {str(value)[:50]!r}, a {type(value).__name__}, in row "
                f"{row:_}; expected {kind}, as in its first rows. CAST it, or leave it out"
            ) from None
    return pyarrow.array(plain, kind, from_pandas=is_float)


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
