"""`rff-dist update`: what it tells, for people and as JSON."""

import json
from functools import partial

import pytest

from rff_dist import Gaussian, SerialEngine, append_dataset, open_dataset, write_dataset
from rff_dist.ridge.models import read_model, write_model
from rff_dist.workbench.jobs.publishing import publish
from tests import command_line, living_data
from tests.plain import fit_ridge

ENGINE = SerialEngine(1)
batch = partial(living_data.batch, n_features=2)


@pytest.fixture
def job(tmp_path):
    """Return a dataset, and a model of its first rows as a folder and as a registered one."""
    data, model, registered = (str(tmp_path / name) for name in ("data.zarr", "model", "registered"))
    write_dataset(data, *batch(0, 800), chunk_rows=200, feature_names=["depth", "heat"], versioned=True)
    trained, _ = fit_ridge(
        open_dataset(data), Gaussian(), engine=ENGINE, length_scale=2.0, n_components=32, alpha=0.1
    )
    write_model(trained, model)
    publish(trained, registered, data=data)
    return data, model, registered


def run(*arguments):
    return command_line.run("update", *arguments, "--serial")


def test_an_update_is_told_and_a_second_one_has_nothing_to_do(job):
    data, model, registered = job
    append_dataset(data, *batch(1, 300, shift=0.5))
    before = read_model(model).card
    dry = json.loads(run(model, data, "--dry-run", "--json").stdout)
    assert (dry["decision"], read_model(model).card) == ("would be published", before)
    shown = run(model, data)
    assert shown.exit_code == 0
    words = " ".join(shown.stdout.split())
    for expected in ("published:", "300, of 300 appended", "embedding, columns", "heat", "1,100 rows"):
        assert expected in words
    second = run(model, data)
    assert second.exit_code == 0
    assert "nothing new" in second.stdout
    version = json.loads(run(registered, data, "--json").stdout)
    assert (version["command"], version["version"]) == ("update", 2)
    assert version["digest"] == read_model(model).digest() == read_model(registered).digest()


def test_a_model_of_the_last_loads_keeps_its_window(job, tmp_path):
    data, model, _ = job
    append_dataset(data, *batch(1, 300))
    shown = run(model, data, "--window", "2")
    assert shown.exit_code == 0, shown.output
    assert "1,100 rows, of the window 2: from row 0 on" in " ".join(shown.stdout.split())
    described = command_line.run("info", model).stdout
    assert "2: from row 0 of the data on" in " ".join(described.split())
    append_dataset(data, *batch(2, 400))
    (tmp_path / "rows.csv").write_text("row\n3\n1200\n")
    words = ("--rows", tmp_path / "rows.csv", "--keep-order", "--models", model, "--json", "--serial")
    forgot = command_line.run("forget", data, *words)
    assert json.loads(forgot.stdout)["updates"][0]["n_samples"] == 300 + 399
    assert read_model(model).card["window"] == {"of": "2", "start": 799}


def test_a_half_life_is_kept_told_and_followed(job):
    data, model, _ = job
    append_dataset(data, *batch(1, 300))
    shown = run(model, data, "--half-life", "1")
    assert "half-life  1" in " ".join(shown.stdout.split(" ")).replace("   ", "  ")
    held = read_model(model)
    assert held.statistics.sum_of_weights == 300 + 800 / 2
    assert held.card["fading"] == {"half_life": "1", "spans": [[800, 0], [1100, 1]]}
    append_dataset(data, *batch(2, 300))
    assert run(model, data).exit_code == 0
    assert read_model(model).statistics.sum_of_weights == 300 + 300 / 2 + 800 / 4
    described = command_line.run("info", model).stdout
    assert "half-life" in described


def test_a_bad_batch_is_kept_out_and_listed(job):
    data, model, _ = job
    append_dataset(data, *batch(1, 300, bad=True))
    shown = run(model, data)
    assert shown.exit_code == 3
    assert "kept:" in shown.stdout
    again = run(model, data)
    words = " ".join(again.stdout.split())
    assert again.exit_code == 0
    assert "rows 800 to 1,099: on the newest 160 rows" in words
    assert f"rff-dist update {model} {data} --backfill 800".replace(" ", "") in words.replace(" ", "")
    append_dataset(data, *batch(2, 300))
    assert run(model, data).exit_code == 0
    described = command_line.run("info", model).stdout
    assert "rows 800 to 1,099, which updates refused" in " ".join(described.split())
    forced = json.loads(run(model, data, "--backfill", "0", "--force", "--json").stdout)
    assert (forced["decision"], forced["n_new"]) == ("published", 300)


def test_rows_that_a_registered_model_lacks_are_listed_with_the_reason_and_the_way_back(job):
    data, _, registered = job
    shown = command_line.run("models", "show", registered).stdout
    assert "lacks" not in shown
    append_dataset(data, *batch(1, 300))
    assert run(registered, data).exit_code == 0
    command_line.run("models", "rollback", registered)
    words = " ".join(run(registered, data).stdout.split())
    assert "rows 800 to 1,099: version 2 was rolled back" in words
    assert f"rff-dist update {registered} {data} --backfill 800".replace(" ", "") in words.replace(" ", "")
    append_dataset(data, *batch(2, 300, bad=True))
    assert json.loads(run(registered, data, "--json").stdout)["decision"] == "kept"
    shown = " ".join(command_line.run("models", "show", registered).stdout.split())
    assert "rows 800 to 1,099" in shown
    assert "version 2 was rolled back" in shown
    assert "rows 1,100 to 1,399" in shown
    listed = json.loads(command_line.run("models", "show", registered, "--json").stdout)["refused"]
    assert {(one["start"], one["stop"]) for one in listed} == {(800, 1100), (1100, 1400)}
