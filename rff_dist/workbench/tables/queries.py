"""A database query → a table, whose rows are streamed a thousand at a time.

In go SQL and the URL of a database, out comes a table that can be read once; its first
rows decide the types of its columns. A simple version would hold the whole result in
memory, wait forever for a silent server, and show passwords and the query's text in
messages, although both may be secret.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow

from rff_dist.data.sources import is_named
from rff_dist.errors import (
    DataError,
    InvalidParameterError,
    MissingDependencyError,
    StorageError,
)
from rff_dist.recipes import tables
from rff_dist.storage.locations import explain
from rff_dist.typing import Facts, frozen

CONNECTION_VARIABLE = "RFF_DIST_SQL"
#: URL of the database for queries in this context, instead of the environment's
connection: ContextVar[str | None] = ContextVar("connection", default=None)
_EXAMPLES = "sqlite:///file.db or postgresql://user:password@host/name"
_N_FIRST_ROWS = 1000  # these decide the types of the columns
#: drivers that wait forever for a server, unless they have a limit
_WAITING_DRIVERS = ("psycopg", "psycopg2", "pymysql", "mysqldb")
_CONNECT_S = 30  # their limit
#: errors of Arrow for values that it cannot convert at all, or not to a wanted type
_CANNOT_CONVERT = (pyarrow.ArrowException, TypeError, ValueError, OverflowError)


@frozen
class Query:
    """A database query, whose rows are ingested.

    In its text, `:n_ingested` stands for the number of rows that the dataset already
    has from this query, so that the query can select new rows only: ``SELECT … FROM t
    ORDER BY id LIMIT 100000000 OFFSET :n_ingested``. Without it, all rows of the result
    are appended, unless exactly these rows were ingested before.

    Parameters
    ----------
    sql
        A SELECT, or another statement that returns rows.
    connection
        SQLAlchemy's URL of the database, such as
        `postgresql://user:password@host/name`; None takes the environment variable
        RFF_DIST_SQL. It is neither shown nor stored.
    """

    sql: str
    connection: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The name that a dataset stores: a digest, since the text may name people."""
        text = " ".join(self.sql.split())
        return f"query {hashlib.sha256(text.encode()).hexdigest()[:32]}"

    @property
    def is_incremental(self) -> bool:
        """Whether the query selects rows beyond those that are ingested."""
        return re.search(r"(?<![:\w\\]):n_ingested\b", self.sql) is not None

    def n_ingested(self, sources: Sequence[Facts]) -> int:
        """Return how many rows of this query a dataset has read before, those that were
        left out among them.
        """
        mine = [entry for entry in sources if is_named(entry, self.name)]
        return sum(int(entry.get("n_read", 0)) for entry in mine)


def read_text(sql: str) -> str:
    """Return a query that may be given as ``file:PATH``, where others cannot see it.

    Raises InvalidParameterError if the file cannot be read.
    """
    if not sql.startswith("file:"):
        return sql
    try:
        return Path(sql[5:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameterError(
            f"`sql` is {sql!r}, which cannot be read ({type(error).__name__}); expected"
            " a text file"
        ) from None


@contextmanager
def run_query(query: Query, *, n_ingested: int) -> Iterator[tables.RawTable]:
    """Run a query and yield its result as a table, which can be read once.

    Raises InvalidParameterError if no connection is given, or it is no URL of a
    database; MissingDependencyError if the database's driver is not installed;
    StorageError if the database does not answer or refuses the query.
    """
    import sqlalchemy

    url = _database_url(query)
    arguments = {}
    try:
        # Otherwise a driver waits forever for a database that takes the connection and
        # does not answer. SQLAlchemy has no option for it.
        waits = url.get_driver_name() in _WAITING_DRIVERS
        if waits and "connect_timeout" not in url.query:
            arguments["connect_timeout"] = _CONNECT_S
        engine = sqlalchemy.create_engine(
            url, poolclass=sqlalchemy.NullPool, connect_args=arguments
        )
    except ImportError as error:
        package = "rff_dist[postgresql]" if error.name == "psycopg" else error.name
        raise MissingDependencyError(
            f"{url.drivername} needs the package {error.name}, which is not installed: "
            f"pip install {package}"
        ) from None
    except Exception as error:
        raise InvalidParameterError(
            f"{_address(url)} is no database that SQLAlchemy knows"
            f" ({_explained(error, url)}); expected a URL such as {_EXAMPLES}"
        ) from None

    try:
        with _database_errors(query, url), engine.connect() as connected:
            # otherwise most drivers fetch the whole result before its first row is read
            streaming = connected.execution_options(stream_results=True)
            # The query has no time limit here: an hour of sorting looks like a database
            # that never answers. The database may have a limit (`statement_timeout`), a
            # flow has `timeout_minutes`, and a user can interrupt it.
            parameters = {"n_ingested": n_ingested} if query.is_incremental else {}
            result = streaming.execute(sqlalchemy.text(query.sql), parameters)
            with closing(result):
                yield _as_table(result, query, url)
    finally:
        engine.dispose()


@contextmanager
def _database_errors(query: Query, url: Any) -> Iterator[None]:
    """Turn errors of the database into a StorageError without its cause, which may hold
    the password.
    """
    import sqlalchemy

    try:
        yield
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise StorageError(
            f"the query of {_address(url)} failed"
            f" ({_explained(error, url, query.sql)}). Check the query, the address"
            " and the permissions; a colon in its text is written `\\:`"
        ) from None


def _database_url(query: Query) -> Any:
    import sqlalchemy

    text = query.connection or connection.get() or os.environ.get(CONNECTION_VARIABLE)
    if not text:
        raise InvalidParameterError(
            "no database is given to run the query on; set the environment variable"
            f" {CONNECTION_VARIABLE} to its URL, such as {_EXAMPLES}"
        )
    try:
        url = sqlalchemy.make_url(text)
        # an "@" in the password: its end would be shown as part of the host
        if "@" in (url.host or ""):
            raise ValueError
    except Exception:
        raise InvalidParameterError(
            "the database's URL cannot be read (it is not shown, since it may hold a"
            f" password); expected one such as {_EXAMPLES}, with '@' in a password as"
            " %40"
        ) from None
    if url.drivername == "postgresql":  # SQLAlchemy may take the older psycopg2
        url = url.set(drivername="postgresql+psycopg")
    return url


def _address(url: Any) -> str:
    """Return the address of a database, without user and password."""
    return f"{url.drivername}://{url.host or ''}/{url.database or ''}"


def _explained(error: BaseException, url: Any, sql: str = "") -> str:
    """Return an error's message without the password and the values in the query.

    SQLAlchemy adds the query to the driver's message, and PostgreSQL's driver adds the
    line that failed.
    """
    whole = explain(getattr(error, "orig", None) or error)
    text = re.sub(r" (\[SQL: |LINE \d+:|Query was: ).*", "", whole)
    secrets = [str(url.password or ""), *map(str, url.query.values())]
    secrets += re.findall(r"'((?:[^']|'')+)'", sql)
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _as_table(result: Any, query: Query, url: Any) -> tables.RawTable:
    labels = [str(name) for name in result.keys()]  # noqa: SIM118  # a cursor
    names = tables.numbered(labels)
    parts = result.partitions(
        min(tables.rows_per_batch(8 * len(labels)), _N_FIRST_ROWS)
    )
    first: Sequence[Any] = next(parts, [])
    columns = zip(*first, strict=True) if first else [()] * len(labels)
    schema = pyarrow.schema(zip(names, map(_type, columns), strict=True))

    # The first rows are kept: they can be looked at before all rows are read once.
    def batches(types: tables.Types) -> tables.Batches:
        stored_types = tables.types_to_read(types, schema)
        rows = first
        start = 0
        while rows:
            values = dict(zip(names, zip(*rows, strict=True), strict=True))
            arrays = {}
            for name, kind in stored_types.items():
                arrays[name] = _cast_column(values[name], kind, name, start)
            batch = pyarrow.RecordBatch.from_pydict(arrays)
            yield tables.cast_columns(batch, types, "the query")
            start += len(rows)
            with _database_errors(query, url):
                rows = next(parts, [])

    notes = tables.numbered_note(labels)
    return tables.RawTable(
        "the query",
        schema,
        batches,
        n_samples=None,
        notes=notes,
        is_read_once=True,
    )


def _type(values: Sequence[Any]) -> pyarrow.DataType:
    """Return the type of a column by its first values; float64 if all are missing."""
    try:
        type_ = _infer_column(values).type
    except _CANNOT_CONVERT:
        return pyarrow.binary()  # which `check_roles` refuses, if the column is used
    if not pyarrow.types.is_null(type_):
        return type_
    # all values are missing, or "", which counts as missing but shows a column of text
    is_text = any(isinstance(value, str) for value in values)
    return pyarrow.string() if is_text else pyarrow.float64()


def _infer_column(values: Sequence[Any]) -> pyarrow.Array:
    """Return values as a column of the type that suits all of them."""
    # Arrow's decimals have no NaN, and as many digits as the first rows
    plain = [float(value) if isinstance(value, Decimal) else value for value in values]
    return tables.column_of(plain)


def _cast_column(
    values: Sequence[Any], type_: pyarrow.DataType, name: str, start: int
) -> pyarrow.Array:
    """Return values as a column of a type; DataError names the row that cannot be cast.

    `start` is the number of rows before these.
    """
    may_round = type_ == pyarrow.float64()  # integers above 2^53
    with suppress(*_CANNOT_CONVERT):
        return _infer_column(values).cast(type_, safe=not may_round)

    # Values of several types may be cast one by one, if not together; and the first
    # that cannot is named.
    parts = []
    for row, value in enumerate(values, start + 1):
        try:
            parts.append(_infer_column([value]).cast(type_, safe=not may_round))
        except _CANNOT_CONVERT:
            raise DataError(
                f"the query's column {name!r} is {str(value)[:50]!r}, a"
                f" {type(value).__name__}, in row {row:_}; expected {type_}, as in its"
                " first rows. CAST it, or leave it out"
            ) from None
    return pyarrow.concat_arrays(parts)
