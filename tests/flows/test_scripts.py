"""The scripts in flows/, which run a flow from a shell, on Prefect's temporary server."""

import runpy
import sys

import pytest

from rff_dist import open_dataset

pytestmark = [pytest.mark.flows, pytest.mark.usefixtures("prefect_server")]

FLOWS = ["train", "tune", "cluster", "predict", "ingest", "refresh"]


def run(monkeypatch, project_root, name, *words):
    monkeypatch.setattr(sys, "argv", [name, *words])
    runpy.run_path(str(project_root / "flows" / f"{name}.py"), run_name="__main__")


def test_each_flow_has_a_script(project_root):
    assert {path.stem for path in (project_root / "flows").glob("*.py")} == set(FLOWS)


def test_words_are_parameters_with_values_as_of_flags(monkeypatch, project_root, tmp_path):
    (tmp_path / "1.csv").write_text("a,price\n1,2\n3,4\n")
    run(
        monkeypatch,
        project_root,
        "ingest",
        f"sources={tmp_path / '*.csv'}",
        f"data={tmp_path / 'sales.zarr'}",
        "targets=price",
    )
    assert open_dataset(tmp_path / "sales.zarr").n_samples > 0


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize(("word", "message"), [("nonsense=1", "nonsense"), ("data", "'data' has no '='")])
def test_words_that_are_no_parameters_exit_2_and_name_those_that_are(
    monkeypatch, capsys, project_root, name, word, message
):
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, project_root, name, word)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert "NAME is one of data, " in said
