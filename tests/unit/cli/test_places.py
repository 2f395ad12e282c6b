"""Places that options name: each is checked before the job, and nothing is replaced
that is not ours.
"""

import os
import shutil

import numpy as np
import pandas as pd
import pytest

from rff_dist import load_model, write_dataset
from rff_dist.errors import InvalidParameterError, OutputExistsError, StorageError
from rff_dist.storage.documents import MADE_BY
from rff_dist.workbench.cli import command_context
from tests.command_line import run

#: Commands that write a single file, with the ends of its name and its content when
#: they wrote it themselves.
FIT = "fit {data} {new} --n-components 8 --serial"
FILES = {
    f"{FIT} --report": (".html", MADE_BY),
    f"{FIT} --alpha cv --plot": (".png", MADE_BY),
    f"{FIT} --register --report": (".html", MADE_BY),
    "cluster {data} {new} --n-clusters 2 --report": (".html", MADE_BY),
    "cluster {data} {new} --n-clusters 2 --plot": (".png", MADE_BY),
    "predict {model} {data}": (".csv", "prediction of price,lower of price\n1,2\n"),
    "predict {model} {data} --std": (".tsv", "prediction\n1\n"),
}
#: Others, whose own file and job are not tried.
MORE = {
    "auto {table} --target price --into {new} --report": ".html",
    "update {model} {data} --report": ".html",
    "export {model}": ".onnx",
}


class BegunError(Exception):
    """A job has opened its engine."""


@pytest.fixture
def words(folder, tmp_path, monkeypatch):
    """The words of a command with its places filled in; a job that begins raises
    BegunError.
    """

    def begin(*_):
        raise BegunError

    monkeypatch.setattr(command_context.CommandContext, "open", begin)
    for name in ("data.zarr", "model"):
        shutil.copytree(folder / name, tmp_path / name)
    shutil.copy(folder / "table.csv", tmp_path / "table.csv")
    names = {
        "data": "data.zarr",
        "model": "model",
        "table": "table.csv",
        "new": "new",
        "here": ".",
    }
    places = {name: str(tmp_path / place) for name, place in names.items()}
    return lambda command: [word.format(**places) for word in command.split()]


def digest(folder):
    """All files below a folder, with their times and sizes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}


@pytest.mark.parametrize("command", [*FILES, *MORE])
def test_nothing_is_replaced_that_is_not_ours(words, tmp_path, command):
    end = MORE.get(command) or FILES[command][0]
    (tmp_path / f"theirs{end}").write_text("a,b\n1,2\n")
    (tmp_path / f"folder{end}").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "away")
    before = digest(tmp_path)
    for place in (
        f"theirs{end}",
        f"folder{end}",
        f"table.csv/page{end}",
        f"data.zarr/page{end}",
        "table.csv",
    ):
        for more in ([], ["--overwrite"]):
            result = run(*words(command), tmp_path / place, *more)
            assert result.exit_code == 73, (place, more, result.output)
            assert str(tmp_path / place) in result.stderr
    assert digest(tmp_path) == before


@pytest.mark.parametrize(
    "command", [name for name in FILES if "--register" not in name]
)
def test_our_own_file_is_replaced_only_with_overwrite(words, tmp_path, command):
    end, content = FILES[command]
    ours = tmp_path / f"ours{end}"
    ours.write_text(content)
    assert run(*words(command), ours).exit_code == 73
    for place in (ours, tmp_path / f"new{end}"):
        assert "BegunError" in run(*words(command), place, "--overwrite").stderr
    assert ours.read_text() == content


@pytest.mark.parametrize(
    "command", [name for name in [*FILES, *MORE] if name.endswith(("report", "plot"))]
)
@pytest.mark.parametrize(
    "place",
    ["new.jpeg", "new.csv", "https://h/new.html", "s3:/bucket/new.png", "s3://b/x"],
)
def test_pages_and_pictures_have_their_names_and_are_files_here(
    words, tmp_path, command, place
):
    before = digest(tmp_path)
    assert run(
        *words(command), place if ":" in place else tmp_path / place
    ).exit_code in (2, 73)
    assert digest(tmp_path) == before


@pytest.mark.parametrize(
    "command",
    [
        f"{FIT} --report {{new}}.html --plot {{new}}.html --alpha cv",
        "fit {data} {table}.parquet",
        "ingest {table} {new}.csv",
        "ingest {table} {new} --holdout 10% --test {new}",
        "generate {new}.csv --rows 10",
        "predict {model} {data} {new}.xlsx",
        "predict {model} {data} {new}.jsonl",
        "predict {model} {data} {new}/p.csv",
        "predict {model} {table} {table} --overwrite",
        "export {model} {data} --overwrite",
        "demo --output {data}",
        "auto {here}/t*.csv --target price",
        "auto {here}/[st]able.csv --target price",
    ],
)
def test_places_that_cannot_be_meant_are_refused(words, tmp_path, command):
    before = digest(tmp_path)
    assert run(*words(command)).exit_code in (2, 73)
    assert digest(tmp_path) == before


def test_a_link_to_a_table_is_the_table(words, tmp_path):
    os.symlink(tmp_path / "table.csv", tmp_path / "link.csv")
    assert (
        run(*words("predict {model} {table}"), "link.csv", "--overwrite").exit_code
        == 73
    )


def test_an_estimator_writes_its_page_over_no_file_of_others(tmp_path, folder):
    (tmp_path / "theirs.html").write_text("<html>")
    table = pd.read_csv(folder / "table.csv")
    model = load_model(folder / "model")
    rows = (table[["a", "b", "c"]], table["price"])
    places = {
        tmp_path / "theirs.html": OutputExistsError,
        tmp_path / "p.csv": InvalidParameterError,
    }
    for place, error in {**places, "s3://b/p.html": StorageError}.items():
        with pytest.raises(error):
            model.report(place, *rows)
    assert (tmp_path / "theirs.html").read_text() == "<html>"


def test_an_export_replaces_an_export_only(tmp_path, folder):
    for name in ("reader.py", "notes.txt"):
        (tmp_path / name).write_text("mine")
    assert run("export", folder / "model", tmp_path, "--overwrite").exit_code == 73
    assert (tmp_path / "notes.txt").read_text() == "mine"
    write_dataset("rows", np.ones((3, 3)))
    assert run("export", folder / "model", "export").exit_code == 0
    assert run("export", folder / "model", "export", "--overwrite").exit_code == 0
    result = run("predict", "export", folder / "data.zarr", "p.zarr")
    assert result.exit_code == 65
    assert "export" in result.stderr.partition("expected")[2]
