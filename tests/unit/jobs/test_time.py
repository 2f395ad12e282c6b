"""Rows that were held out by time: whatever trains on the others chooses by later rows
than it trains on.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from rff_dist import Linear, Matern, RFFRidge, SerialEngine, open_dataset
from rff_dist.data.blocks import Block
from rff_dist.errors import InvalidParameterError
from rff_dist.fields import build
from rff_dist.ridge.predict import predict_in_memory
from rff_dist.storage.columns import fold_by_holdout_time
from rff_dist.workbench.jobs import auto, steps, train
from rff_dist.workbench.jobs import ingest as ingest_job
from rff_dist.workbench.jobs.specs import Auto, Ingest, Train
from tests.covering import covering
from tests.refusals import refuses

pandas = pytest.importorskip("pandas")
N = 400


@pytest.fixture
def table(tmp_path):
    """Rows in no order, by a date and by a number that runs against it."""
    rng = np.random.default_rng(0)
    when = pandas.date_range("2020-01-01", periods=N, freq="D")
    frame = pandas.DataFrame(
        {"when": when, "left": -np.arange(N) / 8, "t": np.arange(N)}
    )
    frame["y"] = np.sin(frame["t"] / 50) + rng.normal(size=N)
    frame.sample(frac=1, random_state=1).to_csv("t.csv", index=False)
    return tmp_path / "t.csv"


def trained(table, url, **options):
    job = build(
        Train, {"data": url, "model": str(table.parent / "m"), "effort": 1, **options}
    )
    return train.train(job, steps.in_this_process()).model


def ingested(table, **options):
    url = str(table.parent / "d.zarr")
    ingest_job.ingest(
        build(
            Ingest, {"sources": [str(table)], "data": url, "targets": ["y"], **options}
        )
    )
    return url


def by_auto(table, by):
    into = str(table.parent / "made")
    job = build(
        Auto,
        {
            "sources": [str(table)],
            "target": "y",
            "into": into,
            "holdout_by": by,
            "effort": 1,
        },
    )
    made = auto.prepare_table(job)
    return (
        made.train,
        train.train(auto.training_of(job, made), steps.in_this_process()).model,
    )


def by_fit(table, by):
    url = ingested(table, holdout=0.2, holdout_by=by, drop=[by])
    return url, trained(table, url, n_folds=4)


def by_python(table, by):
    url = ingested(table, holdout=0.2, holdout_by=by)
    return url, RFFRidge(effort=1, random_state=0).fit(url)._fitted


def by_split(table, by):
    time = "when: elapsed-days" if by == "when" else by
    cut = {"sources": [ingested(table)], "holdout": 0.2, "holdout_by": time}
    url = str(table.parent / "cut.zarr")
    ingest_job.ingest(build(Ingest, {**cut, "data": url}))
    return url, trained(table, url)


@pytest.mark.parametrize(
    ("door", "by"),
    covering([by_auto, by_fit, by_python, by_split], ["when", "left"], meet=1),
)
def test_every_door_chooses_by_later_rows_than_it_trains_on(table, door, by):
    url, model = door(table, by)
    folds = model.card["folds"]
    assert "DatedFolds" in (folds["kind"], folds.get("base", {}).get("kind"))
    dataset, _ = fold_by_holdout_time(open_dataset(url))
    rows = dataset.read(Block(0, 0, dataset.n_samples))
    times = rows.X[:, dataset.feature_names.index("t")] * (1 if by == "when" else -1)
    assert dataset.n_samples == 0.8 * N
    assert (np.diff(rows.groups[np.argsort(times)]) >= 0).all()
    assert np.bincount(rows.groups).tolist() == [64] * 5


def test_rows_that_are_appended_later_are_in_the_last_fold(table, tmp_path):
    url = ingested(table, holdout=0.2, holdout_by="when", drop=["when"])
    (tmp_path / "new.csv").write_text(
        "when,left,t,y\n2031-01-01,-60,500,1\n2019-01-01,1,501,1\n"
    )
    ingest_job.ingest(
        build(Ingest, {"sources": ["new.csv"], "data": url, "append": True})
    )
    dataset, _ = fold_by_holdout_time(open_dataset(url))
    assert dataset.read_groups(Block(0, 320, 322)).tolist() == [4, 0]


def test_as_many_folds_as_there_are_times(table):
    frame = pandas.read_csv(table).assign(year=lambda rows: rows["t"] // 100)
    frame.to_csv(table, index=False)
    url = ingested(table, holdout=0.2, holdout_by="year")
    _, folds = fold_by_holdout_time(open_dataset(url))
    assert folds.n_folds == 3
    with refuses(ValueError, "year", "3", "5"):
        trained(table, url, n_folds=5)


def test_groups_and_time_are_not_both_held_out():
    with refuses(InvalidParameterError, "groups", "holdout_by"):
        build(
            Auto,
            {
                "sources": ["t.csv"],
                "target": "y",
                "groups": "site",
                "holdout_by": "when",
            },
        )


@pytest.fixture
def trend():
    """Returns two years of days that rise by 1 a year, and 330 days after these."""
    when = pandas.date_range("2020-01-01", periods=1060, freq="D")
    y = np.arange(1060) / 365
    return pandas.DataFrame({"when": when}), y


class TestTrends:
    """A trend does not fall back to the mean without a word."""

    def test_rows_beyond_the_reach_of_the_kernel_are_told_of(self, trend):
        frame, y = trend
        options = {"length_scale": 1.0, "alpha": 1e-3, "n_components": 64}
        recipe = {"kernel": Matern(), "random_state": 0, **options}
        model = RFFRidge(**recipe).fit(frame[:730], y[:730])
        with pytest.warns(UserWarning, match="when: elapsed-days.*towards the mean"):
            far = model.predict(frame[730:])
        assert far[-1] < y[-1] - 0.4
        with pytest.warns(UserWarning, match="when: elapsed-days"):
            model.predict_interval(frame[730:])
        model.predict(frame[:760])  # within reach: no warning
        # later rows are known from then on
        again = RFFRidge(**recipe).fit(frame, y)
        assert again.predict(frame[730:])[-1] == pytest.approx(y[-1], abs=0.2)

    def test_a_linear_part_carries_a_trend_on(self, trend):
        frame, y = trend
        kernel = Matern(1.0) + Linear()
        options = {"alpha": 1e-3, "n_components": 64, "random_state": 0}
        model = RFFRidge(kernel, **options).fit(frame[:730], y[:730])
        assert_allclose(model.predict(frame[730:]), y[730:], atol=0.2)

    def test_a_column_by_which_later_rows_were_held_out_is_time(self, table):
        url = ingested(table, holdout=0.2, holdout_by="t", drop=["when"])
        how = {"kernel": "gaussian", "length_scale": 0.1, "n_components": 64}
        model = trained(table, url, **how)
        assert model.card["time_column"] == "t"
        assert model.columns.maximum[open_dataset(url).feature_names.index("t")] == 319
        later = open_dataset(url.replace("d.zarr", "d-test.zarr"))
        with pytest.warns(UserWarning, match="of 80 rows are later in 't'"):
            predict_in_memory(later, model, engine=SerialEngine())
