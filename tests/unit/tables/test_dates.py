"""Dates as programs write them: read to the moment, asked about, or refused by column
and row.
"""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from rff_dist.errors import DataError
from rff_dist.recipes.frames import encode_table
from rff_dist.recipes.recipes import recipe_of
from tests.refusals import refuses
from tests.tables import all_rows, ingest, ingest_frame, save

DAYS = pd.Series(np.repeat(pd.date_range("2001-01-01", periods=60, freq="13D"), 2))
MONTHS = DAYS.dt.to_period("M").dt.to_timestamp()
MOMENTS = (
    DAYS + pd.to_timedelta(np.arange(len(DAYS)) * 61, unit="s") + pd.Timedelta(hours=11)
)
MINUTES = MOMENTS.dt.floor("min")

FORMS = {
    "%Y-%m-%d|%d.%m.%Y|%d.%m.%y|%B %d, %Y|%d-%m-%Y|%Y.%m.%d|%Y/%m/%d|%b %d %Y|%m/%d/%Y|%d/%m/%y": (
        DAYS
    ),
    "%d %B %Y|%d-%b-%y|%Y%m%d|%m-%d-%Y|%d %b, %Y|%d. %B %Y|%A, %d %B %Y|%m.%d.%Y": DAYS,
    "%Y-%m|%m/%Y|%b %Y|%b-%y|%B %Y|%Y/%m|%Y %b": MONTHS,
    "%a %b %d %H:%M:%S %Y|%a %b %d %H:%M:%S UTC %Y|%Y%m%d%H%M%S": MOMENTS,
    "%d/%m/%Y %H:%M:%S|%a, %d %b %Y %H:%M:%S GMT|%m/%d/%Y %I:%M:%S %p": MOMENTS,
    "%m/%d/%y %I:%M %p|%d.%m.%Y %H:%M|%d-%b-%Y %H:%M|%m/%d/%Y %I:%M%p": MINUTES,
}
CASES = [
    (form, moments) for forms, moments in FORMS.items() for form in forms.split("|")
]


@pytest.mark.parametrize(("form", "moments"), CASES, ids=[form for form, _ in CASES])
def test_every_usual_form_is_read_to_the_moment(tmp_path, form, moments):
    frame = pd.DataFrame({"when": moments.dt.strftime(form), "x": 1.0})
    suffix = "csv" if form in ("%Y%m%d", "%d.%m.%Y") else "parquet"
    dataset = ingest_frame(
        frame, tmp_path, suffix, columns=["when"], dates=["elapsed-days"]
    )
    days = (moments - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    assert_allclose(all_rows(dataset).X[:, 0], days, rtol=1e-14)
    found = encode_table(recipe_of(dataset.attributes), frame[5:7])
    assert_allclose(found[:, 0], days[5:7], rtol=1e-14)


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        (["01/02/2003", "03/04/2003"], ["01/02/2003", "date_order", "dmy", "mdy"]),
        (["01-02-03", "03-04-03"], ["01-02-03", "date_order"]),
        (
            ["2001-01-01T00:00:00", "2001-01-02T00:00:00Z"] * 3,
            ["2001-01-01T00:00:00", "line 2"],
        ),
        (["2001-01-01", "2001-01-02", "soon", "2002-05-06"], ["'soon'", "line 4"]),
        (["01.02.2003", "31.02.2003", "05.02.2003"], ["31.02.2003", "line 3"]),
        (
            ["26. Dezember 2005", "27. Dezember 2005"],
            ["26. Dezember 2005", "2024-02-29"],
        ),
        (["2005Q1", "2005Q2"], ["2005Q1", "2024-02-29"]),
        (
            ["12/26/2005 10:00:00.5 +01", "12/27/2005 10:00:00.5 +01"],
            ["12/26/2005 10:00:00.5 +01"],
        ),
    ],
)
def test_what_is_not_read_is_refused_by_its_column_and_row(tmp_path, texts, named):
    frame = pd.DataFrame({"when": texts * 5, "x": 1.0, "y": range(5 * len(texts))})
    with refuses(DataError, "'when'", *named):
        ingest_frame(frame, tmp_path, "csv", target="y")


@pytest.mark.parametrize(("order", "month"), [("dmy", 2), ("mdy", 1)])
def test_the_order_that_is_given_is_followed(tmp_path, order, month):
    frame = pd.DataFrame({"when": ["01/02/2003", "11/12/2003"], "x": [1.0, 2.0]})
    dataset = ingest_frame(
        frame, tmp_path, "csv", columns=["when"], dates=["month"], date_order=order
    )
    assert all_rows(dataset).X[0, 0] == month
    with refuses(DataError, "date_order", "'when'", "mdy"):
        save(frame.assign(when=["12/26/2003", "11/12/2003"]), "u.csv")
        ingest("u.csv", "e", columns=["when"], date_order="dmy")


def test_numbers_that_are_not_all_days_stay_numbers(tmp_path):
    frame = pd.DataFrame(
        {"a": [20240229, 20250229], "b": [20240229, 3], "y": [20240101, 20240102]}
    )
    dataset = ingest_frame(frame, tmp_path, "csv", target="y")
    assert dataset.feature_names == ("a", "b")
    assert all_rows(dataset).y[:, 0].tolist() == [20240101, 20240102]
