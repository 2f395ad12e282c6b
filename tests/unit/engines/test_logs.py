"""One JSON object per line, with the run, the pass and the block, and without
secrets.
"""

import io
import json
import logging
import math
from datetime import datetime

import numpy as np
import pytest

from rff_dist import SerialEngine, write_dataset
from rff_dist.data.blocks import cut_blocks
from rff_dist.engines import events, logs
from rff_dist.engines.cluster import Cluster
from rff_dist.engines.connecting import open_engine
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.text import without_secrets
from tests.command_line import PLAIN, run
from tests.refusals import refuses

BLOCKS = cut_blocks(100, 10, rows_per_block=30)


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def count(block, _):
    return block.n_samples


def test_a_pass_is_told_in_lines_with_run_pass_block_rows_seconds_and_worker():
    stream = io.StringIO()
    with (
        logs.json_lines(stream),
        logs.of_run("run-7"),
        open_engine(Cluster(serial=True)) as engine,
    ):
        assert (
            engine.map_reduce(count, BLOCKS, None, combine=int.__add__, label="count")
            == 100
        )
    first, *blocks, last = lines_of(stream.getvalue())
    assert {line["run"] for line in (first, *blocks, last)} == {"run-7"}
    assert {line["pass"] for line in (first, *blocks, last)} == {"count"}
    assert (first["event"], first["n_blocks"], first["rows"]) == (
        "pass started",
        len(BLOCKS),
        100,
    )
    told = [
        (line["block"], line["start"], line["stop"], line["rows"]) for line in blocks
    ]
    assert told == [
        (block.index, block.start, block.stop, block.n_samples) for block in BLOCKS
    ]
    assert all(
        line["event"] == "block done" and line["worker"] == "serial" for line in blocks
    )
    assert 0 <= sum(line["seconds"] for line in blocks) <= last["seconds"]
    assert last["event"] == "pass finished"
    assert datetime.fromisoformat(last["time"]).utcoffset().total_seconds() == 0


def test_a_pass_that_fails_says_why_and_warnings_and_errors_are_lines_too():
    stream = io.StringIO()

    def fail(block, _):
        raise DataError("no number: s3://user:word@bucket/x?token=t is bad")

    with logs.json_lines(stream):
        with pytest.raises(DataError), open_engine(Cluster(serial=True)) as engine:
            engine.map_reduce(fail, BLOCKS, None, combine=int.__add__, label="count")
        try:
            raise ValueError("at https://me:secret@host/?q=1")
        except ValueError:
            logging.getLogger("rff_dist.some").exception("it went wrong")
        logging.getLogger("rff_dist.some").info("too much detail")
    _, failed, error = lines_of(stream.getvalue())
    assert failed["event"] == "pass failed"
    assert failed["error"] == "DataError: no number: s3://***@bucket/x?*** is bad"
    assert (error["level"], error["logger"], error["message"]) == (
        "error",
        "rff_dist.some",
        "it went wrong",
    )
    assert error["traceback"].endswith("ValueError: at https://***@host/?***")
    assert "run" not in error


def test_everything_is_as_before_afterwards(caplog):
    logger = logging.getLogger("rff_dist")
    before = list(logger.handlers), logger.level, logger.propagate
    with logs.json_lines(io.StringIO(), debug=True):
        assert list(logger.handlers) != before[0]
    assert (list(logger.handlers), logger.level, logger.propagate) == before
    with open_engine(Cluster(serial=True)) as engine:
        assert isinstance(engine, SerialEngine)
        assert engine.observers == (events.log,)


def test_lines_hold_what_json_can_and_nothing_secret():
    line = json.loads(
        logs.json_line(
            "info", "ä\nb", members={"a": math.nan, "n": 3, "ok": True, "x": None}
        )
    )
    assert line["message"] == "ä\nb"
    assert (line["a"], line["n"], line["ok"]) == ("nan", 3, True)
    assert "x" not in line
    assert "\n" not in logs.json_line("info", "two\nlines")
    text = "from 's3://key:word@bucket/a' to https://host/b?sig=abc#d, and what is it?"
    assert (
        without_secrets(text)
        == "from 's3://***@bucket/a' to https://host/b?*** and what is it?"
    )


def test_the_environment_names_the_format():
    assert logs.log_format({}) == logs.log_format({"RFF_DIST_LOG": ""}) == "text"
    assert logs.log_format({"RFF_DIST_LOG": "json"}) == "json"
    with refuses(InvalidParameterError, "RFF_DIST_LOG", "'xml'"):
        logs.log_format({"RFF_DIST_LOG": "xml"})


@pytest.mark.parametrize("by_environment", [False, True])
def test_a_command_logs_lines_only_of_one_run(tmp_path, by_environment, monkeypatch):
    X = np.random.default_rng(0).normal(size=(3000, 2))
    write_dataset(tmp_path / "data", X, X[:, 0], chunk_rows=1000)
    options = [] if by_environment else ["--log-format", "json"]
    if by_environment:
        monkeypatch.setenv("RFF_DIST_LOG", "json")
    fit = [
        "fit",
        str(tmp_path / "data"),
        str(tmp_path / "model"),
        "--serial",
        "--n-components",
        "8",
        "--json",
    ]
    result = run(*fit, *PLAIN, *options)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["command"] == "fit"
    lines = lines_of(result.stderr)
    assert len({line["run"] for line in lines}) == 1
    blocks = [line for line in lines if line.get("event") == "block done"]
    rows = {line["pass"]: 0 for line in blocks}
    for line in blocks:
        rows[line["pass"]] += line["rows"]
    # of the model and of the linear one that it is compared with, whose features have
    # no fixed point
    assert rows == {
        "inspect": 6000,
        "accumulate": 6000,
        "residuals": 6000,
        "hold out": 6000,
        "measure": 3000,
    }

    again = run(*fit, *options)
    assert again.exit_code == 73
    begun, ended, refused, *_ = lines_of(again.stderr)
    assert (begun["event"], begun["job"]) == ("job started", "train")
    assert (ended["event"], ended["kind"]) == ("job failed", "storage.exists")
    assert (refused["level"], "exists already" in refused["message"]) == ("error", True)
    assert refused["run"] != lines[0]["run"]


def test_an_unknown_format_is_a_mistake_in_the_arguments():
    result = run("info", "x", "--log-format xml")
    assert result.exit_code == 2
    assert "is 'xml'; expected text or json" in result.stderr
