"""Queries of PostgreSQL, from a server of our own."""

import logging
import resource
import time
import traceback
from pathlib import Path

import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal

from rff_dist import open_dataset
from rff_dist.data.blocks import Block
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.workbench.tables.queries import Query, run_query
from tests import postgres_server
from tests.refusals import refuses
from tests.tables import ingest, ingest_more

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.skipif(
    not postgres_server.find_programs(), reason="PostgreSQL is not installed"
)
N = 1500  # SQLAlchemy reads 1,000 rows at a time

COLUMNS = {
    "small": "(i % 100)::smallint",
    "whole": "CASE WHEN i > 1200 THEN NULL ELSE i END",
    "big": "9007199254740993::bigint + i",
    "single": "(i / 10.0)::real",
    "double": "CASE i WHEN 7 THEN 'NaN' ELSE sqrt(i) END::double precision",
    "exact": "(i / 8.0)::numeric(12, 4)",
    "odd": "CASE i WHEN 7 THEN 'NaN' WHEN 8 THEN NULL ELSE i + 0.1 END::numeric",
    "is_new": "i % 3 = 0",
    "day": "date '2020-02-01' + i",
    "moment": "timestamp '2020-02-01 06:00:01.5' + i * interval '1 hour'",
    "zoned": "timestamptz '2020-02-01 06:00+02' + i * interval '1 minute'",
    "mood": "(array['sad', 'ok'])[i % 2 + 1]::mood",
    "padded": "(array['a', 'b'])[i % 2 + 1]::char(3)",
    "town": "(array['Ulm', 'Köln', NULL])[i % 3 + 1]",
    "price": "'1,' || 200 + i || '.50 €'",
}


@pytest.fixture(scope="module")
def server():
    with postgres_server.serve_postgres() as place:
        with psycopg.connect(f"postgresql://{place}") as connection:
            connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
            columns = ", ".join(f"{text} AS {name}" for name, text in COLUMNS.items())
            connection.execute(
                f"CREATE TABLE sale AS SELECT i, {columns} FROM generate_series(1, {N})"
                " AS i"
            )
        yield place


def read(sql, url):
    with run_query(Query(sql, url), n_ingested=0) as table:
        return pa.Table.from_batches(
            table.batches(
                dict(zip(table.schema.names, table.schema.types, strict=True))
            )
        )


def test_values_and_types_are_those_of_the_table(server):
    table = read("SELECT * FROM sale ORDER BY i -- all", f"postgresql://{server}")
    kinds = {name: str(table.schema.field(name).type) for name in table.column_names}
    for kind, names in {
        "int64": "i small whole big",
        "double": "single double exact odd",
        "bool": "is_new",
    }.items():
        assert {kinds.pop(name) for name in names.split()} == {kind}
    assert kinds.pop("day") == kinds.pop("moment") == "timestamp[us]"
    assert kinds.pop("zoned") == "timestamp[us, tz=UTC]"
    assert set(kinds.values()) == {"string"}
    query = Query(
        "SELECT * FROM sale WHERE i <> 7 ORDER BY i", f"postgresql://{server}"
    )
    with pytest.warns(UserWarning, match="beyond 2⁵³ in column 'big'"):
        dataset = ingest(query, "d", target="exact", impute="median")
    assert_array_equal(dataset.read(Block(0, 0, 3)).y[:, 0], [0.125, 0.25, 0.375])


def test_new_rows_alone_are_asked_for(server):
    sql = (
        r"SELECT i::float AS x, '1\:2' AS t FROM sale WHERE i % 5 <> 0 ORDER BY i"
        r" LIMIT 900"
    )
    query = Query(f"{sql} OFFSET :n_ingested", f"postgresql://{server}")
    sizes = [ingest_more(query, "d", columns=["x"]).n_after for _ in range(3)]
    assert sizes == [900, 1200, 1200]
    expected = [i for i in range(1, N + 1) if i % 5]
    assert_array_equal(open_dataset("d").read(Block(0, 0, 1200)).X[:, 0], expected)


def test_rows_stream_and_a_reader_that_stops_ends_the_query(server):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.monotonic()
    with run_query(
        Query(
            "SELECT generate_series(1, 1000000000000) AS x", f"postgresql://{server}"
        ),
        n_ingested=0,
    ) as table:
        batches = table.batches({"x": pa.float64()})
        assert sum(len(next(batches)) for _ in range(3)) == 3000
    assert time.monotonic() - start < 60
    # KiB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 2**10


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("'infinity'::date", "date"),
        ("'-infinity'::timestamptz", "timestamp"),
        ("array[1, 2]", "list"),
        ("'{}'::jsonb", "struct"),
    ],
)
def test_what_is_no_number_text_or_date_is_refused(server, value, named):
    with refuses((DataError, StorageError), named):
        ingest(
            Query(f"SELECT i, {value} AS v FROM sale", f"postgresql://{server}"),
            "d",
            target="i",
        )
    assert not Path("d").exists()


@pytest.mark.parametrize(
    ("sql", "error", "named"),
    [
        (
            "SELECT nope FROM sale WHERE town = 'geheim'",
            StorageError,
            ['column "nope" does not exist'],
        ),
        ("SELECT i / (i - 1400) AS x FROM sale", StorageError, ["division by zero"]),
        (
            "SELECT i / (i - 300000) AS x FROM generate_series(1, 400000) AS i",
            StorageError,
            ["division by zero"],
        ),
        ("SELECT i FROM sale WHERE town = ':x'", StorageError, ["a colon in its text"]),
        ("SELECT i FROM sale WHERE i < 0", DataError, ["the query: no rows"]),
        ("SHOW ALL", StorageError, ["syntax error"]),
    ],
)
def test_bad_queries_are_refused(server, sql, error, named):
    with refuses(error, *named) as caught:
        ingest(Query(sql, f"postgresql://{server}"), "d")
    assert not any(word in str(caught.value) for word in ("geheim", "SELECT", "me:"))


@pytest.mark.parametrize(
    "change",
    [
        ("me:", "you:"),
        ("geheim", "geheim-7"),
        ("/postgres", "/nope"),
        ("/postgres", "/postgres?key=geheim"),
        ("127.0.0.1", "geheim-host.invalid"),
    ],
)
def test_passwords_are_in_no_error_or_log(server, change, caplog):
    caplog.set_level(logging.DEBUG)
    url = f"postgresql://{server.replace(*change)}"
    with pytest.raises((StorageError, InvalidParameterError)) as caught:
        ingest(Query("SELECT 1 AS a", url), "d")
    shown = (
        "".join(traceback.format_exception(caught.value))
        + caplog.text
        + repr(Query("SELECT 1", url))
    )
    assert "geheim" not in shown.replace("geheim-host.invalid", "")
