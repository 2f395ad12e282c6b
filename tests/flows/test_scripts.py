"""The scripts in flows/, which run a flow from a shell, on Prefect's temporary
server.
"""

import contextlib
import contextvars
import runpy
import sys
from functools import partial

import numpy as np
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from rff_dist import open_dataset, write_dataset
from rff_dist.storage.output_places import hold

pytestmark = [pytest.mark.flows, pytest.mark.usefixtures("prefect_server")]

FLOWS = ["train", "cluster", "predict", "ingest", "refresh"]


def run(monkeypatch, project_root, name, *words):
    monkeypatch.setattr(sys, "argv", [name, *words])
    runpy.run_path(str(project_root / "flows" / f"{name}.py"), run_name="__main__")


def test_each_flow_has_a_script(project_root):
    assert {path.stem for path in (project_root / "flows").glob("*.py")} == set(FLOWS)


def test_words_are_parameters_with_values_as_of_flags(
    monkeypatch, project_root, tmp_path
):
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
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense=1"], "nonsense"),
        (["data"], "'data' has no '='"),
        (["data=a", "data=b"], "`data` is given twice"),
    ],
)
def test_words_that_are_no_parameters_exit_2_and_say_why(
    monkeypatch, capsys, project_root, name, words, message
):
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, project_root, name, *words)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    run(monkeypatch, project_root, name, "--help")
    assert "  data: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ending", "code"), [("busy", 75), ("exists", 73), ("missing", 65), ("server", 69)]
)
def test_a_script_ends_with_the_codes_of_the_command_line(
    monkeypatch, capsys, project_root, tmp_path, ending, code
):
    data = tmp_path / "data.zarr"
    model = tmp_path / "model"
    if ending != "missing":
        write_dataset(data, np.ones((50, 2)), np.arange(50.0))
    if ending == "exists":
        write_dataset(model, np.ones((5, 2)))
    unreachable = (
        {PREFECT_API_URL: "http://127.0.0.1:9/api"} if ending == "server" else {}
    )
    busy = (
        hold(model, holder="another run")
        if ending == "busy"
        else contextlib.nullcontext()
    )
    words = [
        monkeypatch,
        project_root,
        "train",
        f"data={data}",
        f"model={model}",
        "n_components=8",
    ]
    start = partial(run, *words)
    # the context of another run holds nothing
    call = partial(contextvars.Context().run, start) if ending == "busy" else start
    with temporary_settings(unreachable), busy, pytest.raises(SystemExit) as stop:
        call()
    assert stop.value.code == code
    assert "error: " in capsys.readouterr().err
