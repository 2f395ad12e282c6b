"""`rff-dist update`: what it tells, for people and as JSON."""

from functools import partial

import pytest

from rff_dist import Gaussian, SerialEngine, append_dataset, open_dataset, write_dataset
from rff_dist.ridge.models import read_model, write_model
from rff_dist.workbench.jobs.publishing import publish
from tests import living_data
from tests.command_line import document, run, shown
from tests.plain import fit_ridge

ENGINE = SerialEngine(1)
batch = partial(living_data.batch, n_features=2)


@pytest.fixture
def job(tmp_path):
    """Return a dataset, and a model of its first rows as a folder and as a registered
    one.
    """
    data, model, registered = (
        str(tmp_path / name) for name in ("data.zarr", "model", "registered")
    )
    write_dataset(
        data,
        *batch(0, 800),
        chunk_rows=200,
        feature_names=["depth", "heat"],
        versioned=True,
    )
    trained, _ = fit_ridge(
        open_dataset(data),
        Gaussian(),
        engine=ENGINE,
        length_scale=2.0,
        n_components=32,
        alpha=0.1,
    )
    write_model(trained, model)
    publish(trained, registered, data=data)
    return data, model, registered


def test_an_update_is_told_and_a_second_one_has_nothing_to_do(job, tmp_path):
    data, model, registered = job
    append_dataset(data, *batch(1, 300, shift=0.5))
    before = read_model(model).card
    dry = document("update", model, data, "--dry-run --serial")
    assert (dry["decision"], read_model(model).card) == ("would be published", before)
    told = " ".join(shown("update", model, data, "--serial").split())
    for expected in (
        "published:",
        "new rows 300",
        "in heat (+0.508 sd)",
        "1,100 rows",
    ):
        assert expected in told
    assert "nothing new" in shown("update", model, data, "--serial")
    page = tmp_path / "page.html"
    assert document("update", model, data, "--serial --report", page)["report"] is None
    assert not page.exists()
    version = document("update", registered, data, "--serial")
    assert (version["command"], version["version"]) == ("update", 2)
    assert (
        version["digest"]
        == read_model(model).digest()
        == read_model(registered).digest()
    )


def test_rows_that_a_registered_model_lacks_are_listed_with_the_reason_and_the_way_back(
    job,
):
    data, _, registered = job
    assert "lacks" not in shown("models", "show", registered)
    append_dataset(data, *batch(1, 300))
    shown("update", registered, data, "--serial")
    assert "`update --backfill ROW` judges them again" in " ".join(
        shown("models", "rollback", registered).split()
    )
    again = shown("update", registered, data, "--serial")
    assert "rows 800 to 1,099: version 2 was rolled back" in again
    assert f"rff-dist update {registered} {data} --backfill 800".replace(
        " ", ""
    ) in again.replace(" ", "")
    append_dataset(data, *batch(2, 300, bad=True))
    assert run("update", registered, data, "--serial").exit_code == 3
    about = shown("models", "show", registered)
    assert "compare each with the one in its brackets" in " ".join(about.split())
    assert "rows 800 to 1,099" in about
    assert "version 2 was rolled back" in about
    assert "rows 1,100 to 1,399" in about
    waiting = shown("update", registered, data, "--serial")
    assert waiting.startswith("nothing new; 600 rows were left out: ")
    for told, row in ((about, 1100), (waiting, 800)):
        judging = f"rff-dist update {registered} {data} --backfill {row}"
        words = "".join(told.split())
        assert judging.replace(" ", "") in words
        assert words.index("tojudgethemagain") < words.index("--force")
    listed = document("models", "show", registered)["refused"]
    assert {(one["start"], one["stop"]) for one in listed} == {
        (800, 1100),
        (1100, 1400),
    }
