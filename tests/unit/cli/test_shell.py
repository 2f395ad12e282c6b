"""What all commands share: help, exit codes, one line for an error, JSON."""

import contextvars
import io
import json
import math
import os
import re
import shlex
import signal
import sys
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rff_dist import errors
from rff_dist.numerics import machine
from rff_dist.storage.output_places import hold
from rff_dist.workbench.cli import help as texts
from rff_dist.workbench.cli import messages, shell
from rff_dist.workbench.results import exits
from rff_dist.workbench.results.document import Document
from rff_dist.workbench.results.markdown import to_markdown
from rff_dist.workbench.results.terminal import to_rich
from rff_dist.workbench.results.words import Alert, Table
from tests.command_line import PLAIN, document, refusal, run, shown

COMMANDS = [name for panel in texts.COMMANDS.values() for name in panel]


def test_help_lists_the_commands_in_the_order_of_use():
    result = run("--help")
    assert result.exit_code == 0
    places = [result.stdout.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_what_people_ask_first_and_help_all_each_option_with_its_whole_text(
    name, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    short = run(name, "--help").stdout
    whole = run(name, "--help-all").stdout
    assert short.startswith(f"Usage: rff-dist {name} ")
    if name in shell.GROUPS:  # of commands, each with a help of its own
        return
    lines = [line for line in (short + whole).splitlines() if "$" not in line]
    assert max(map(len, lines)) <= 80
    assert f"$ rff-dist {name}" in short
    assert "--json" in short
    assert len(short) < len(whole)
    words = " ".join(whole.split())
    module, _, function = shell.place_of(name).partition(":")
    for option in getattr(
        import_module(module), function
    ).default_command.command.options:
        assert f"--{option.name.replace('_', '-')}" in words
        assert " ".join(option.declared.help.split()) in words


def test_every_command_is_in_the_help():
    found = set()
    for path in Path(shell.__file__).parent.glob("*.py"):
        names = re.findall(
            r"^@shell\.command\(.*?^def (\w+)\(", path.read_text(), re.M | re.S
        )
        found |= {path.stem} if path.stem in shell.GROUPS else set(names)
    assert found == set(COMMANDS)


def test_tab_completes_commands_options_and_names():
    script = shell.make_app().generate_completion(shell="bash")
    assert all(
        word in script
        for word in ("evaluate", "--register", "--no-statistics", "logistic")
    )


def test_quiet_leaves_standard_error_empty_and_no_next_step(folder):
    arguments = [
        "fit",
        folder / "data.zarr",
        "model",
        *PLAIN,
        "--n-components 8 --serial",
    ]
    result = run(*arguments, "--quiet")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "wrote" in result.stdout
    assert "next:" not in result.stdout


def test_the_version_is_shown():
    assert run("--version").stdout.startswith("rff-dist ")


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["fitt"], "'fit'"),
        (["fit", "data", "model", "--n-component", "8"], "--n-components"),
        (["ingest", "a.csv", "b", "--targett=y"], "--targets"),
    ],
)
def test_an_unknown_command_or_option_exits_2_with_a_suggestion(arguments, suggestion):
    message = refusal(2, *arguments)
    assert suggestion in message
    assert "id you mean" in message
    assert "--help" in message


def test_an_option_of_another_command_is_named_with_it_and_nothing_far_is_suggested():
    message = refusal(2, "auto", "a.csv", "--target y --kernel linear")
    assert "fit" in message.partition(";")[2]
    for words in (message, refusal(2, "predict", "m", "a", "b", "--interval 0.9")):
        assert "id you mean" not in words


@pytest.mark.parametrize(
    "words",
    [
        "ingest table.csv",
        "generate --rows=1e12",
        "fit data.zarr",
        "predict model data.zarr",
    ],
)
def test_a_place_that_takes_no_output_exits_73_before_any_work(
    folder, words, monkeypatch
):
    monkeypatch.setattr("rff_dist.engines.connecting.open_engine", None)
    monkeypatch.chdir(folder)
    message = refusal(73, *words.split(), "/proc/x/m")
    assert "/proc/x/m cannot be written: /proc: " in message
    assert "Choose " in message
    assert "space" not in message


def test_the_next_step_is_quoted_for_the_shell(folder):
    Path("my data").mkdir()
    result = run("generate", "my data/a;b", "--rows 10 --n-components 8")
    command_line = result.stdout.replace("\n", "").partition("next: ")[2]
    assert shlex.split(command_line) == ["rff-dist", "fit", "my data/a;b", "MODEL"]


@pytest.mark.parametrize("command", ["fit", "cluster", "predict"])
def test_an_output_that_another_run_writes_exits_75_before_any_work(
    folder, tmp_path, command
):
    inputs = [folder / "model"] if command == "predict" else []
    more = {"cluster": ["--n-clusters", "2"], "predict": []}.get(
        command, ["--n-components", "8"]
    )
    arguments = [command, *inputs, folder / "data.zarr", "out", *more, "--serial"]
    with hold("out", holder="another run"):
        message = contextvars.Context().run(refusal, 75, *arguments)
    assert (
        f"another run is writing {tmp_path}/out: another run, process {os.getpid()}"
        in message
    )
    assert list(tmp_path.iterdir()) == []


OF_WORK = ["Plan", "Statistics", "Solve", "Block", "Broadcast"]
OF_INPUTS = ["Data", "Storage", "Integrity", "UnsafeModel", "Version", "NoSuchVersion"]
CODES = {
    **dict.fromkeys(OF_WORK, 1),
    "InvalidParameter": 2,
    **dict.fromkeys(OF_INPUTS, 65),
    **dict.fromkeys(["Cluster", "ClusterUnavailable", "MissingDependency"], 69),
    "OutputExists": 73,
    "ClusterLost": 75,
}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        *((getattr(errors, f"{name}Error"), code) for name, code in CODES.items()),
        (ZeroDivisionError, 1),
        (KeyboardInterrupt, 130),
        (exits.TerminationSignal, 143),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error, code):
    assert exits.exit_code(error()) == code


def fail(*_, **__):
    raise ZeroDivisionError("a fault")


def test_an_unexpected_error_is_one_line_and_debug_adds_the_traceback(
    folder, monkeypatch
):
    monkeypatch.setattr("rff_dist.fitting.solver_plan.plan_chosen_solver", fail)
    message = refusal(1, "plan", folder / "data.zarr")
    assert "ZeroDivisionError: a fault" in message
    assert "--debug" in message
    with_debug = run("plan", folder / "data.zarr", "--debug")
    assert with_debug.exit_code == 1
    assert 'raise ZeroDivisionError("a fault")' in with_debug.stderr


def test_a_lost_cluster_is_told_with_the_command_that_goes_on(folder, monkeypatch):
    def fail(*_args, **_options):
        lost = errors.ClusterLostError("the scheduler went away")
        lost.add_note(
            "partial results are kept in .model.ledger (3 B): the same job goes on from"
            " there"
        )
        lost.can_go_on = True
        raise lost

    monkeypatch.setattr("rff_dist.workbench.jobs.fits.Fit.train", fail)
    monkeypatch.setattr("sys.argv", ["rff-dist", "fit", "a file", "model"])
    result = run("fit", folder / "data.zarr", folder / "lost", "--serial")
    assert result.exit_code == 75
    assert "went away (partial results are kept in .model.ledger" in result.stderr
    assert result.stderr.endswith("to go on: rff-dist fit 'a file' model\n")


def test_a_stop_after_the_publication_says_that_the_model_is_there(folder, monkeypatch):
    def stop(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("rff_dist.workbench.jobs.judging.compare", stop)
    place = folder / "compared"
    stopped = run("fit", folder / "data.zarr", place, *PLAIN, "--serial")
    assert stopped.exit_code == 130
    told = stopped.stderr
    assert f"stopped by Ctrl-C; the model is published at {place}, but" in told
    assert "to go on" not in told
    assert shown("info", place)
    assert not list(folder.glob(".compared*"))


@pytest.mark.parametrize("way", ["flag", "environment", "file"])
@pytest.mark.parametrize(
    ("words", "kind", "code"),
    [(["none.zarr", "m"], "storage", 65), (["--worker", "2"], "usage", 2)],
)
def test_an_error_with_json_is_one_document_with_its_kind_and_code(
    words, kind, code, way, monkeypatch, tmp_path
):
    if way == "environment":
        monkeypatch.setenv("RFF_DIST_FIT_JSON", "true")
    (tmp_path / "job.toml").write_text("json = true\n")
    given = {"flag": ["--json"], "environment": [], "file": ["--config", "job.toml"]}
    result = run("fit", *words, *given[way])
    assert result.exit_code == code
    found = json.loads(result.stdout)
    assert found["command"] == "fit"
    assert (found["error"]["kind"], found["error"]["exit_code"]) == (kind, code)
    assert found["error"]["message"] in result.stderr


def test_what_a_library_prints_does_not_reach_the_json(folder, monkeypatch):
    measure = machine.measure_gflops

    def chatty():
        sys.stdout.write("hello\n")
        return measure()

    monkeypatch.setattr("rff_dist.numerics.machine.measure_gflops", chatty)
    assert document("plan", folder / "data.zarr")["n_samples"] == 300


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line_on_standard_error(folder):
    words = ["--serial --n-components 512 --precision high --alpha 0 --json"]
    result = run("fit", folder / "data.zarr", "model", *PLAIN, *words)
    assert result.exit_code == 0
    [warning] = [
        line for line in result.stderr.splitlines() if line.startswith("warning: ")
    ]
    assert "alpha" in warning
    found = json.loads(result.stdout)
    assert found["status"] != "ok"
    assert found["remedies"]


@pytest.mark.filterwarnings("default")
def test_what_zarr_leaves_behind_where_a_store_fails_is_no_warning(capfd):
    async def write():
        raise AssertionError("it is never awaited")

    with messages.show_messages(debug=False):
        write()
        warnings.warn("of something else", RuntimeWarning, stacklevel=1)
    assert capfd.readouterr().err == "warning: of something else\n"


@pytest.mark.parametrize(
    "value", [np.float64(np.nan), math.inf, [np.array([-np.inf])[0]]]
)
def test_numbers_that_json_does_not_have_become_null(value, capsys):
    messages.write_json({"value": value})
    found = json.loads(capsys.readouterr().out)["value"]
    assert found in (None, [None])


@pytest.mark.parametrize(
    ("words", "label"),
    [
        ("plan data.zarr", None),
        ("info model", None),
        ("ingest table.csv {out} --targets=price", None),
        ("generate {out} --rows=300 --n-components=8", None),
        (
            "fit data.zarr {out} --n-components=8 --kernel=gaussian --serial",
            "check rows",
        ),
        ("evaluate model data.zarr --serial", "measure errors"),
        ("predict model data.zarr {out} --serial", "predict"),
    ],
)
def test_tables_for_people_go_to_standard_output_and_progress_does_not(
    folder, tmp_path, words, label, monkeypatch
):
    monkeypatch.chdir(folder)
    result = run(*words.format(out=tmp_path / "out").split())
    assert result.exit_code == 0, result.stderr
    assert "300" in result.stdout
    if label is not None:
        line = f"{label}: 300 rows"
        assert line in result.stderr.splitlines()
        assert line not in result.stdout.splitlines()


def test_a_signal_that_is_sent_twice_at_once_is_one():
    def end():
        with shell._signals():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(exits.TerminationSignal):
        end()


def test_details_that_ask_for_attention_are_always_shown():
    details = [{"solver": Alert("precision is too low"), "digest": "a1b2"}]
    found = Document("wrote m", [{"rows": "3"}], details=details)
    console = Console(file=io.StringIO(), width=80)
    console.print(to_rich(found))
    shown = console.file.getvalue()
    assert "precision is too low" in shown
    assert "digest" not in shown
    assert "digest" in to_markdown(found)


def test_tables_in_a_narrow_terminal_keep_every_digit():
    console = Console(file=io.StringIO(), width=40)
    header = ("model", "RMSE", "R²", "squared error saved (95% interval)")
    table = Table(
        "", header, [("boosted trees", "5.3217", "0.8995", "-56.9% (-109.6% to -4.2%)")]
    )
    console.print(to_rich(Document("a table", [table])))
    shown = console.file.getvalue()
    assert all(
        one in shown
        for one in ("5.3217", "0.8995", "-56.9%", "(-109.6%", "-4.2%)", "boosted")
    )
    assert "…" not in shown
