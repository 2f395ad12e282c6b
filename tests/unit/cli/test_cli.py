import json
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import zarr
from matplotlib.image import imread
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special
from sklearn import metrics
from sklearn.linear_model import Ridge
from typer.testing import CliRunner

from rff_dist import errors, load_model
from rff_dist.cli import shell
from rff_dist.cli.generate import draw_function
from rff_dist.cli.options import read_bytes, read_count
from rff_dist.cli.shell import app
from rff_dist.data.blocks import Block
from rff_dist.data.folds import GroupFolds, HashFolds, TimeFolds
from rff_dist.engines.dask_cluster import spare_children_ctrl_c
from rff_dist.engines.serial import SerialEngine
from rff_dist.features.bounds import better_map, pairwise_components
from rff_dist.features.draw import draw_feature_map
from rff_dist.jobs.options import Where
from rff_dist.kernels.explicit import Linear
from rff_dist.kernels.find import KERNELS
from rff_dist.kernels.stationary import Gaussian, Matern, RationalQuadratic
from rff_dist.ridge import automatic
from rff_dist.ridge import plan as plan_module
from rff_dist.ridge.model import read_model, write_model
from rff_dist.ridge.options import ALPHA_NAMES, RidgeOptions
from rff_dist.ridge.plan import Machines, Sizes, plan_fit
from rff_dist.storage.columns import open_column
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.leases import hold
from rff_dist.storage.writing import write_dataset
from tests.tables import ingest

# choices that are not what a test is about, and would cost a second each
PLAIN = ["--kernel", "gaussian", "--length-scale", "median", "--features", "fourier"]
COMMANDS = [
    "demo", "ingest", "generate", "approximate", "plan", "fit", "evaluate", "predict", "tune", "info"
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a table, a dataset of 3 columns, and a model of it; tests only add to it."""
    path = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3)).round(4)
    y = (np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(300)).round(4)
    lines = ["a,b,c,price", *(",".join(map(str, row)) for row in np.column_stack([X, y]))]
    (path / "table.csv").write_text("\n".join(lines))
    ingest(path / "table.csv", path / "data.zarr", target="price", chunk_rows=64)
    fit = ("fit", path / "data.zarr", path / "model", *PLAIN, "--components", "64", "--serial")
    assert run(*fit, "--select", "gcv").exit_code == 0
    return path


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch):
    monkeypatch.delenv("RFF_DIST_SCHEDULER", raising=False)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="rff-dist")


def document(*arguments):
    """Return what a command with --json shows: one JSON document and nothing else."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refusal(code, *arguments):
    """Return the message of a command that must fail: one line, and at most one for the next step."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2
    assert "Traceback" not in result.stderr
    return result.stderr


# -- help and usage ---------------------------------------------------------------------------------------


def test_help_lists_the_commands_in_the_order_of_use():
    result = run("--help")
    assert result.exit_code == 0
    places = [result.stdout.index(f"│ {name} ") for name in COMMANDS]
    assert places == sorted(places)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_an_example_and_json(name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"$ rff-dist {name}" in result.stdout
    assert "--json" in result.stdout
    assert "--debug" in result.stdout


def test_help_names_all_kernels():
    shown = run("fit", "--help").stdout
    assert [name for name in KERNELS if name not in shown] == []


def test_help_imports_nothing_that_takes_long():
    code = "import rff_dist.cli, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = {"dask", "distributed", "matplotlib", "pandas", "prefect", "pyarrow", "scipy", "sklearn", "zarr"}
    assert heavy & set(loaded.split()) == set()


def test_without_a_command_the_help_is_shown():
    assert run().stdout == run("--help").stdout


def test_the_version_is_shown():
    assert run("--version").stdout.startswith("rff-dist ")


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["fitt"], "'fit'"),
        (["fit", "data", "model", "--component", "8"], "--components"),
        (["ingest", "a.csv", "b", "--targett", "y"], "--target"),
    ],
)
def test_an_unknown_command_or_option_exits_2_with_a_suggestion(arguments, suggestion):
    message = refusal(2, *arguments)
    assert suggestion in message
    assert "id you mean" in message
    assert "--help" in message


BAD_VALUES = [
    (["--components", "0"], "--components", "at least 1"),
    (["--components", "2.5"], "--components", "at least 1"),
    (["--components", "7"], "--components", "take 8, or --map phases"),
    (["--length-scale", "0"], "--length-scale", "above 0"),
    (["--length-scale", "wide"], "--length-scale", "auto"),
    (["--length-scale", "evidence", "--kernel", "linear"], "kernels of one length scale", "length scale"),
    (["--length-scale", "1,2"], "--length-scale", "3 columns"),
    (["--alpha", "-1"], "--alpha", "at least 0"),
    (["--alpha", "1,nan"], "--alpha", "at least 0"),
    (["--alpha", "small"], "--alpha", "auto"),
    (["--select", "best"], "--select", "one of gcv, evidence, cv, cv-1se, press"),
    (["--select", "cv", "--alpha", "1"], "--select", "--alphas has values to choose from"),
    (["--alphas", "1,2", "--alpha", "1"], "--alphas", "leave one of them out"),
    (["--alphas", "1:2"], "--alphas", "LOW:HIGH:N"),
    (["--alphas", "2:1:5"], "--alphas", "LOW < HIGH"),
    (["--alphas", "1:2:1"], "--alphas", "N from 2"),
    (["--alphas", "small"], "--alphas", "'small'; expected LOW:HIGH:N, or numbers"),
    (["--alphas", "1,-2"], "--alpha", "above 0"),
    (["--folds", "1"], "--folds", "2, not '1'"),
    (["--folds", "5", "--select", "gcv"], "--folds", "cv or cv-1se, not gcv"),
    (["--group-by", "site", "--time"], "--group-by", "leave one out"),
    (["--group-by", "site", "--alpha", "evidence"], "--group-by", "not evidence"),
    (["--time", "--folds", "2", "--select", "cv-1se"], "TimeFolds(n_folds=2)", "use more folds"),
    (["--time", "--alpha", "0"], "--alpha", "above 0"),
    (["--components", "64,x"], "--components", "'x'"),
    (["--components", "64,7"], "--components", "take 8"),
    (["--components", "64,128", "--select", "press"], "--components", "not by press"),
    (["--plot", "p.png", "--alpha", "1"], "--plot", "add --select cv"),
    (["--loss", "logistic"], "--loss", "add --classify"),
    (["--class-weight", "balanced"], "--class-weight", "add --classify"),
    (["--classify", "--loss", "hinge"], "--loss", "'squared_hinge'"),
    (["--classify", "--class-weight", "even"], "--class-weight", "expected balanced"),
    (["--kernel", "gausian"], "--kernel", "did you mean 'gaussian'?"),
    (["--design", "orthogonl"], "--design", "did you mean 'orthogonal'?"),
    (["--kernel", "laplacian", "--design", "orthogonal"], "--design iid", "isotropic"),
    (["--map", "pair"], "--map", "pairs"),
    (["--features", "nystroem"], "--features", "nystrom"),
    (["--centres", "uniform"], "--centres", "nystrom"),
    (["--features", "nystrom", "--centres", "best"], "--centres", "uniform"),
    (["--features", "nystrom", "--design", "iid"], "--design", "leave it out"),
    (["--features", "auto", "--centres", "uniform"], "--centres", "nystrom"),
    (["--classify", "--conformal"], "--conformal", "no intervals"),
    (["--nu", "0", "--kernel", "matern"], "--nu", "above 0"),
    (["--nu", "1"], "--nu", "matern"),
    (["--kernel", "matern:nu=2", "--nu", "1"], "--nu", "matern:nu=2"),
    (["--kernel", "matern:mu=2"], "--kernel", "nu"),
    (["--kernel", "gaussian +"], "--kernel", "nothing beside an operator"),
    (["--kernel", "gaussian:length_scale=2"], "--length-scale", "one kernel with a length scale"),
    (
        ["--kernel", "gaussian:length_scale=1 + linear", "--length-scale", "2"],
        "--length-scale",
        "no part without",
    ),
    (["--seed", "-1"], "--seed", "'-1'"),
    (["--seed", "18446744073709551616"], "--seed", "18446744073709551615, not '18446744073709551616'"),
    (["--workers", "0"], "--workers", "1, not '0'"),
    (["--missing-chunks", "skip"], "--missing-chunks", "'fill'"),
    (["--serial", "--workers", "2"], "--serial", "--workers"),
    (["--serial", "--scheduler", "tcp://127.0.0.1:1"], "--serial", "--scheduler"),
    (["--scheduler", "tcp://127.0.0.1:1", "--threads", "2"], "--scheduler", "--threads"),
    (["--scheduler", "file://x"], "--scheduler", "tcp://host:port"),
]


@pytest.mark.parametrize(("options", "option", "expected"), BAD_VALUES)
def test_a_bad_value_exits_2_and_names_the_option_and_the_range(folder, tmp_path, options, option, expected):
    message = refusal(2, "fit", folder / "data.zarr", tmp_path / "model", *options)
    assert option in message
    assert expected in message
    assert not (tmp_path / "model").exists()


def test_negative_noise_is_refused_with_the_value(tmp_path):
    assert "'--noise': Input should be greater than or equal to 0, not '-1'" in refusal(
        2, "generate", tmp_path / "a", "--rows", "4", "--noise", "-1"
    )


def test_only_the_wrong_option_of_ingest_is_named(folder, tmp_path):
    message = refusal(2, "ingest", folder / "table.csv", tmp_path / "a", "--on-nan", "foo")
    assert "--on-nan" in message
    assert "dtype" not in message


def test_a_usage_error_with_json_is_one_document_too():
    result = run("fit", "--json", "--worker", "2")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["exit_code"] == 2


@pytest.mark.parametrize(("text", "value"), [("8", 8), ("1e6", 10**6), ("1_000", 1000), (" 12 ", 12)])
def test_whole_numbers_are_read_as_people_write_them(text, value):
    assert read_count(text, "--rows") == value


@pytest.mark.parametrize(
    ("text", "value"), [("2GiB", 2**31), ("512 MiB", 2**29), ("1.5k", 1536), ("4096", 4096), ("1GB", 2**30)]
)
def test_sizes_are_read_in_powers_of_1024(text, value):
    assert read_bytes(text, "--memory") == value


@pytest.mark.parametrize("text", ["", "-1GiB", "0", "big", "1.2.3G", "5 PiB"])
def test_what_is_no_size_is_a_usage_error(folder, text):
    assert "--memory" in refusal(2, "plan", folder / "data.zarr", f"--memory={text}")


# -- data and places that cannot be used ------------------------------------------------------------------


def write_file(path):
    path.write_text("a,b\n1,2\n")


def write_group_without_x(path):
    zarr.create_group(path).create_array("inputs", data=np.ones((4, 2)))


def write_cube(path):
    zarr.create_group(path).create_array("X", data=np.ones((4, 2, 2)))


def write_uneven(path):
    group = zarr.create_group(path)
    group.create_array("X", data=np.ones((4, 2)))
    group.create_array("y", data=np.ones(3))


def write_without_y(path):
    write_dataset(path, np.ones((4, 2)))


def write_no_columns(path):
    zarr.create_group(path).create_array("X", shape=(4, 0), chunks=(4, 1), dtype="f8")


def write_no_rows(path):
    write_dataset(path, np.ones((0, 2)), np.ones(0))


def write_nan(path):
    X = np.random.default_rng(0).standard_normal((40, 2))
    X[17, 1] = np.nan
    write_dataset(path, X, X[:, 0])


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (None, "nothing is there"),
        (write_file, "rff-dist ingest"),
        (write_group_without_x, "'inputs'"),
        (write_cube, "2 axes"),
        (write_uneven, "rows"),
        (write_without_y, "--y"),
        (write_nan, "17"),
        (write_no_columns, "Found array with 0 feature(s)"),
        (write_no_rows, "Found array with 0 sample(s)"),
    ],
)
def test_data_that_cannot_be_used_exit_65_and_say_what_was_found(tmp_path, write, expected):
    if write is not None:
        write(tmp_path / "data")
    message = refusal_of_fit(tmp_path, 65)
    assert expected in message
    assert not (tmp_path / "model").exists()


def refusal_of_fit(path, code):
    result = run("fit", path / "data", path / "model", *PLAIN, "--serial", "--components", "8")
    assert result.exit_code == code, result.output
    [message] = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in result.stderr
    return message


def test_a_missing_column_is_a_usage_error_with_the_nearest_name(folder, tmp_path):
    message = refusal(2, "ingest", folder / "table.csv", tmp_path / "data", "--target", "prize")
    assert "--target" in message
    assert "'price'" in message


def test_a_column_of_words_exits_65_and_says_which_columns_to_take(tmp_path):
    (tmp_path / "table.csv").write_text("a,b,name\n1,2,x\n3,4,y\n")
    message = refusal(65, "ingest", tmp_path / "table.csv", tmp_path / "data", "--target", "a")
    assert "'name'" in message
    assert "--columns b," in message


def test_data_of_another_width_than_the_model_exit_65(folder, tmp_path):
    write_dataset(tmp_path / "data", np.ones((4, 2)), np.ones(4))
    for name in ("evaluate", "predict"):
        more = [tmp_path / "out"] if name == "predict" else []
        message = refusal(65, name, folder / "model", tmp_path / "data", *more, "--serial")
        assert "X has 2 features" in message
        assert "expecting 3" in message
        assert f"{tmp_path / 'data'} does not fit {folder / 'model'}" in message
        assert "columns that the model was trained on" in message


def test_a_pickle_exits_65_and_is_not_loaded(folder, tmp_path):
    (tmp_path / "model.pkl").write_bytes(b"\x80\x04N.")
    message = refusal(65, "evaluate", tmp_path / "model.pkl", folder / "data.zarr", "--serial")
    assert "is a pickle" in message
    assert "is a pickle" in refusal(65, "info", tmp_path / "model.pkl")


def test_a_damaged_model_exits_65(folder, tmp_path):
    run("fit", folder / "data.zarr", tmp_path / "model", *PLAIN, "--components", "8", "--serial")
    [chunk] = (tmp_path / "model").glob("arrays-*.zarr/coefficients/c/0/0")
    content = bytearray(chunk.read_bytes())
    content[3] ^= 1
    chunk.write_bytes(content)
    assert "coefficients" in refusal(65, "info", tmp_path / "model")


@pytest.mark.parametrize("name", ["ingest", "generate", "fit", "predict"])
def test_an_output_that_exists_exits_73_before_any_work_and_names_overwrite(folder, tmp_path, name):
    arguments = {
        "ingest": [folder / "table.csv", tmp_path, "--target", "price"],
        "generate": [tmp_path, "--rows", "10"],
        "fit": [folder / "data.zarr", tmp_path],
        "predict": [folder / "model", folder / "data.zarr", tmp_path],
    }[name]
    (tmp_path / "precious").touch()
    assert "--overwrite" in refusal(73, name, *arguments)
    assert "not replaced" in refusal(73, name, *arguments, "--overwrite")
    assert (tmp_path / "precious").exists()


def test_an_output_in_its_input_exits_73(folder):
    message = refusal(73, "predict", folder / "model", folder / "data.zarr", folder / "data.zarr" / "p")
    assert "overlap" in message


def test_an_output_that_cannot_be_written_exits_73(tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be written" in refusal(73, "generate", tmp_path / "file" / "data", "--rows", "10")


@pytest.mark.parametrize("name", ["ingest", "generate", "fit", "predict"])
def test_a_place_that_takes_no_output_exits_73_before_any_work(folder, name, monkeypatch):
    monkeypatch.setattr("rff_dist.engines.cluster.open_engine", None)
    arguments = {
        "ingest": [folder / "table.csv", "/proc/x/m"],
        "generate": ["/proc/x/m", "--rows", "1e12"],
        "fit": [folder / "data.zarr", "/proc/x/m"],
        "predict": [folder / "model", folder / "data.zarr", "/proc/x/m"],
    }[name]
    message = refusal(73, name, *arguments)
    assert "/proc/x/m cannot be written: /proc: " in message
    assert "Choose " in message
    assert "space" not in message


def test_the_next_step_is_quoted_for_the_shell(folder, tmp_path):
    (tmp_path / "my data").mkdir()
    result = run("generate", tmp_path / "my data" / "a;b", "--rows", "10", "--components", "8")
    command_line = result.stdout.replace("\n", "").partition("next: ")[2]
    assert shlex.split(command_line) == ["rff-dist", "fit", str(tmp_path / "my data" / "a;b"), "MODEL"]


def test_stored_weights_that_a_fit_leaves_out_are_one_line_on_standard_error(tmp_path):
    X = np.random.default_rng(0).standard_normal((40, 2))
    write_dataset(tmp_path / "data", X, X[:, 0], sample_weight=np.ones(40))
    arguments = ["fit", tmp_path / "data", tmp_path / "model", *PLAIN, "--serial", "--components", "8"]
    result = run(*arguments)
    [warning] = [line for line in result.stderr.splitlines() if "weights" in line]
    assert warning.startswith(f"warning: {tmp_path / 'data'} holds sample weights")
    assert "--weights sample_weight" in warning
    assert "weights" not in run(*arguments, "--weights", "sample_weight", "--overwrite").stderr


def test_an_input_beside_the_output_is_not_taken_for_it(tmp_path):
    # "…/data" begins the name of the input "…/data.zarr", which is the one that is missing.
    refusal(65, "fit", tmp_path / "data.zarr", tmp_path / "data", "--serial")


def test_a_job_that_does_not_fit_exits_1_with_both_numbers(folder):
    size = ("--components", "8192", "--memory", "1GiB")
    message = refusal(1, "plan", folder / "data.zarr", *PLAIN, *size, "--alpha", "gcv")
    assert "1.0 GiB" in message
    assert "needs" in message


def test_a_scheduler_that_does_not_answer_exits_69(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("rff_dist.engines.dask_cluster.CONNECT_S", 0.3)
    monkeypatch.setenv("RFF_DIST_SCHEDULER", "tcp://127.0.0.1:1")
    message = refusal(69, "fit", folder / "data.zarr", tmp_path / "model")
    assert "no scheduler answers at tcp://127.0.0.1:1" in message


def test_a_scheduler_on_the_network_without_tls_exits_69_and_names_the_option(folder, tmp_path):
    message = refusal(69, "evaluate", folder / "model", folder / "data.zarr", "--scheduler", "192.0.2.1:8786")
    assert "--insecure-cluster" in message


@pytest.mark.parametrize("command", ["fit", "tune", "cluster", "predict"])
def test_an_output_that_another_run_writes_exits_75_before_any_work(folder, tmp_path, command):
    inputs = [folder / "model"] if command == "predict" else []
    more = {"cluster": ["--clusters", "2"], "predict": []}.get(command, ["--components", "8"])
    arguments = [command, *inputs, folder / "data.zarr", tmp_path / "out", *more, "--serial"]
    held, done = threading.Event(), threading.Event()

    def write() -> None:
        with hold(tmp_path / "out", holder="another run"):
            held.set()
            done.wait(60)

    thread = threading.Thread(target=write)
    thread.start()
    held.wait(60)
    try:
        message = refusal(75, *arguments)
    finally:
        done.set()
        thread.join()
    assert f"another run is writing {tmp_path}/out: another run, process {os.getpid()}" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("n_workers", "serial"), [(None, True), (1, False)])
def test_options_win_over_the_scheduler_of_the_environment(monkeypatch, n_workers, serial):
    monkeypatch.setenv("RFF_DIST_SCHEDULER", "tcp://127.0.0.1:1")
    assert Where(workers=n_workers, serial=serial).cluster.in_environment().scheduler is None
    assert Where().cluster.in_environment().scheduler == "tcp://127.0.0.1:1"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidParameterError(), 2),
        (errors.DataError(), 65),
        (errors.PlanError(), 1),
        (errors.StatisticsError(), 1),
        (errors.SolveError(), 1),
        (errors.StorageError(), 65),
        (errors.OutputExistsError(), 73),
        (errors.IntegrityError(), 65),
        (errors.UnsafeModelError(), 65),
        (errors.VersionError(), 65),
        (errors.BlockError(), 1),
        (errors.BroadcastError(), 1),
        (errors.ClusterError(), 69),
        (errors.ClusterUnavailableError(), 69),
        (errors.ClusterLostError(), 75),
        (errors.MissingDependencyError(), 69),
        (ZeroDivisionError(), 1),
        (KeyboardInterrupt(), 130),
        (shell.Terminated(), 143),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error, code):
    assert shell.exit_code(error) == code


# -- what is shown ----------------------------------------------------------------------------------------


def fail(*_, **__):
    raise ZeroDivisionError("a fault")


def test_an_unexpected_error_is_one_line_and_debug_adds_the_traceback(folder, monkeypatch):
    monkeypatch.setattr("rff_dist.ridge.plan.plan_fit", fail)
    message = refusal(1, "plan", folder / "data.zarr")
    assert "ZeroDivisionError: a fault" in message
    assert "--debug" in message
    with_debug = run("plan", folder / "data.zarr", "--debug")
    assert with_debug.exit_code == 1
    assert 'raise ZeroDivisionError("a fault")' in with_debug.stderr


def test_an_error_with_json_is_one_document_with_its_type_and_code(tmp_path):
    result = run("fit", tmp_path / "data", tmp_path / "model", "--json")
    assert result.exit_code == 65
    found = json.loads(result.stdout)
    assert found["command"] == "fit"
    assert found["error"]["type"] == "StorageError"
    assert found["error"]["exit_code"] == 65
    assert found["error"]["message"] in result.stderr


def test_what_a_library_prints_does_not_reach_the_json(folder, monkeypatch):
    measure = plan_module.measure_gflops

    def chatty():
        sys.stdout.write("hello\n")
        return measure()

    monkeypatch.setattr("rff_dist.ridge.plan.measure_gflops", chatty)
    assert document("plan", folder / "data.zarr")["n_samples"] == 300


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line_on_standard_error(folder, tmp_path):
    arguments = ["fit", folder / "data.zarr", tmp_path / "model", *PLAIN, "--serial", "--components", "512"]
    result = run(*arguments, "--alpha", "0", "--json")
    assert result.exit_code == 0
    [warning] = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert "alpha" in warning
    found = json.loads(result.stdout)
    assert found["status"] != "ok"
    assert found["remedies"]


def test_a_warning_of_the_log_is_one_line_on_standard_error(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n,4\n5,6\n")
    result = run("ingest", tmp_path / "table.csv", tmp_path / "data", "--target", "b", "--on-nan", "drop")
    assert result.exit_code == 0
    assert "warning: table.csv: 1 of 3 rows dropped" in result.stderr
    assert "1 rows" in result.stdout


def test_an_error_names_the_options_that_it_is_about(folder, tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n,4\n")
    message = refusal(65, "ingest", tmp_path / "table.csv", tmp_path / "data", "--target", "b")
    assert "--on-nan drop" in message
    message = refusal(65, "fit", folder / "data.zarr", tmp_path / "model", "--weights", "w", "--serial")
    assert "--weights" in message


@pytest.mark.parametrize("value", [np.float64(np.nan), math.inf, [np.array([-np.inf])[0]]])
def test_numbers_that_json_does_not_have_become_null(value, capsys):
    shell._write_json({"value": value})
    found = json.loads(capsys.readouterr().out)["value"]
    assert found in (None, [None])


# -- the jobs ---------------------------------------------------------------------------------------------


def test_a_table_becomes_a_dataset(folder, tmp_path):
    found = document(
        "ingest",
        folder / "table.csv",
        tmp_path / "data",
        "--target",
        "price",
        "--columns",
        "c, a",
        "--chunk-rows",
        "1e2",
    )
    assert (found["n_samples"], found["n_features"], found["n_targets"]) == (300, 2, 1)
    assert found["feature_names"] == ["c", "a"]
    assert found["chunk_rows"] == 100
    whole = open_dataset(folder / "data.zarr").read(Block(0, 0, 300))
    part = open_dataset(tmp_path / "data").read(Block(0, 0, 300))
    assert np.array_equal(part.X, whole.X[:, [2, 0]])
    assert np.array_equal(part.y, whole.y)


def test_generated_data_say_their_best_error_and_can_be_made_again(tmp_path):
    arguments = ["--rows", "1e3", "--features", "2", "--noise", "0.25", "--components", "64", "--seed", "3"]
    first = document("generate", tmp_path / "one", *arguments)
    second = document("generate", tmp_path / "two", *arguments)
    assert first["best_rmse"] == 0.25
    assert (first["n_samples"], first["n_features"]) == (1000, 2)
    one, two = (open_dataset(path).read(Block(0, 0, 1000)) for path in (first["path"], second["path"]))
    assert np.array_equal(one.X, two.X)
    assert np.array_equal(one.y, two.y)


def test_a_drawn_function_is_of_the_kernels_prior():
    # Over many draws f(x) has mean 0, variance k(x, x) = 1 and covariance k(x, y).
    X, kernel = np.array([[0.0, 0.0], [1.0, -0.5]]), Gaussian(2.0)
    values = np.array([draw_function(kernel, n_features=2, n_components=256, seed=s)(X) for s in range(2000)])
    assert values.mean(axis=0) == pytest.approx([0, 0], abs=0.1)
    assert np.cov(values.T) == pytest.approx(kernel(X), abs=0.1)


def test_a_drawn_function_has_other_features_than_a_fit_with_the_same_seed():
    # Otherwise a fit would find the very features and its error would be none of the kernel's.
    X = np.random.default_rng(0).standard_normal((200, 3))
    y = draw_function(Gaussian(), n_features=3, n_components=16, seed=0)(X)
    Z = draw_feature_map(Gaussian(), n_features=3, n_components=16, random_state=0).transform(X)
    residual = y - Z @ np.linalg.lstsq(Z, y)[0]
    assert np.std(residual) > 0.1


def test_the_plan_is_the_librarys(folder):
    sizes = ("--components", "512", "--workers", "3", "--threads", "2")
    found = document("plan", folder / "data.zarr", *PLAIN, *sizes)
    itemsize = open_dataset(folder / "data.zarr").dtype.itemsize
    expected = plan_fit(
        Sizes(n_samples=300, n_features=3, n_targets=1, chunk_rows=64, itemsize=itemsize),
        512,
        Machines(
            n_workers=3,
            n_threads=2,
            separate_client=True,
            memory_limit=found["memory_limit"],
            client_memory_limit=found["client_memory_limit"],
        ),
        n_folds=5,
    )
    assert found["memory_limit"] < found["client_memory_limit"]
    assert {name: found[name] for name in expected.to_dict()} == expected.to_dict()
    assert found["statistics_seconds"] == pytest.approx(expected.seconds(found["gflops_per_thread"]))
    assert found["choosing"] is None


def test_the_plan_says_what_choosing_takes(folder):
    choosing = document("plan", folder / "data.zarr")["choosing"]
    given = {name: choosing[name] for name in ("n_candidates", "n_samples", "n_components", "n_finalists")}
    # the final has 512 components: the best, other features and another kernel meet again in it
    assert given == {"n_candidates": 15, "n_samples": 300, "n_components": 128, "n_finalists": 3}
    few = document("plan", folder / "data.zarr", "--components", "128")
    assert few["choosing"]["n_finalists"] == 1  # the first round is the final
    more = document("plan", folder / "data.zarr", "--components", "2048", "--kernel", "gaussian")
    assert (more["choosing"]["n_candidates"], more["choosing"]["n_finalists"]) == (8, 2)
    shown = " ".join(run("plan", folder / "data.zarr").stdout.split())
    assert "up to 15 candidates on 300 rows, D = 128" in shown


def test_a_fit_is_told_and_stored_as_asked(folder, tmp_path):
    found = document(
        *("fit", folder / "data.zarr", tmp_path / "model", "--serial", "--kernel", "matern", "--nu", "2.5"),
        *("--length-scale", "0.5,1,2", "--components", "1e2", "--alpha", "1e-9,1e-2,1", "--map", "phases"),
        *(
            "--features",
            "fourier",
            "--design",
            "iid",
            "--seed",
            "7",
            "--standardize",
            "no",
            "--no-intercept",
            "--no-statistics",
        ),
    )
    model = read_model(tmp_path / "model")
    assert found["digest"] == model.digest()
    assert found["kernel"] == Matern((0.5, 1, 2), nu=2.5).to_dict()
    assert (found["n_components"], found["map"], found["design"], found["seed"]) == (100, "phases", "iid", 7)
    assert found["alpha_chosen_by"] == "cv"
    assert found["alpha"] in (1e-9, 1e-2, 1.0)
    assert model.feature_map.standardizer is None
    assert model.statistics is None
    assert np.array_equal(model.intercept, [0.0])


def test_length_scales_by_evidence_are_told_and_stored(folder, tmp_path):
    given = ("--kernel", "gaussian", "--length-scale", "evidence", "--features", "fourier")
    fit = ("fit", folder / "data.zarr", tmp_path / "model", "--serial", *given, "--components", "64")
    found = document(*fit, "--seed", "5")
    stored = read_model(tmp_path / "model")
    assert found["kernel"] == stored.feature_map.spec.kernel.to_dict()
    tuned = stored.feature_map.spec.kernel.length_scale
    assert len(tuned) == 3
    shown = " ".join(run("info", tmp_path / "model").stdout.split())
    assert f"length scale {', '.join(f'{width:.4g}' for width in tuned)}" in shown
    assert "without the rows that length scales were tuned on" in shown


def test_a_fit_without_options_is_that_of_the_library_and_says_what_it_chose(folder, tmp_path):
    small = ("--components", "32", "--folds", "3", "--serial")
    result = run("fit", folder / "data.zarr", tmp_path / "model", *small)
    assert result.exit_code == 0, result.stderr
    expected = automatic.fit(
        open_dataset(folder / "data.zarr"), RidgeOptions(n_components=32, cv=3), engine=SerialEngine()
    ).model
    found = document("info", tmp_path / "model")
    assert found["digest"] == expected.digest()
    assert found["card"]["candidates"] == expected.card["candidates"]
    n_tried = sum(row["round"] == "first" for row in expected.card["candidates"])
    for shown in (result.stdout, run("info", tmp_path / "model").stdout):
        assert f"the best of {n_tried} candidates: " in " ".join(shown.split())
    assert " ←" in run("info", tmp_path / "model").stdout
    progress = result.stderr.splitlines()
    assert sum(line.startswith("choose: ") for line in progress) == n_tried + 2
    assert sum(line.startswith("solve: ") for line in progress) == 1


def test_what_is_printed_after_a_fit_holds_on_new_rows(tmp_path):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((3000, 6)).round(1)  # inputs with ties, a target with steps, as those of pol
    steps = np.where(X[:, 0] * X[:, 1] > 0, 5.0 * np.round(np.abs(X[:, 2])), 0.0)
    y = steps + np.sin(X[:, 3]) + 0.3 * rng.standard_normal(3000)
    write_dataset(tmp_path / "train", X[:1000], y[:1000])
    write_dataset(tmp_path / "test", X[1000:], y[1000:])
    found = document("fit", tmp_path / "train", tmp_path / "model", "--components", "256", "--serial")
    [target] = document("evaluate", tmp_path / "model", tmp_path / "test", "--serial")["targets"]
    estimate = found["estimate"]
    assert set(estimate) == {"by", "rmse", "rmse_standard_error", "r2"}
    # four standard errors of the folds, and those of 2,000 new rows; the model of all rows is a little better
    assert abs(target["rmse"] - estimate["rmse"][0]) < 4 * estimate["rmse_standard_error"][0]
    assert abs(target["r2"] - estimate["r2"][0]) < 0.1
    assert document("info", tmp_path / "model")["estimate"] == estimate
    shown = " ".join(run("info", tmp_path / "model").stdout.split())
    assert f"RMSE {estimate['rmse'][0]:.2f}"[:-1] in shown
    assert f"R² {estimate['r2'][0]:.4g}" in shown


def test_a_model_without_an_estimate_is_described_all_the_same(folder, tmp_path):
    model = read_model(folder / "model")
    write_model(replace(model, card={k: v for k, v in model.card.items() if k != "estimate"}), tmp_path / "m")
    assert document("info", tmp_path / "m")["estimate"] is None
    assert "held-out" not in run("info", tmp_path / "m").stdout


def test_the_laplacian_gets_independent_frequencies_unless_told_otherwise(folder, tmp_path):
    given = ["--length-scale", "1", "--features", "fourier", "--components", "8", "--serial", "--overwrite"]
    arguments = ["fit", folder / "data.zarr", tmp_path / "model", *given]
    assert document(*arguments, "--kernel", "laplacian")["design"] == "iid"
    assert document(*arguments, "--kernel", "gaussian")["design"] == "orthogonal"


def test_nystrom_features_are_told_stored_and_described(folder, tmp_path):
    fit = (
        "fit",
        folder / "data.zarr",
        tmp_path / "model",
        "--serial",
        "--components",
        "33",
        "--kernel",
        "gaussian",
        "--length-scale",
        "2",
    )
    found = document(*fit, "--features", "nystrom", "--centres", "rpcholesky")
    model = read_model(tmp_path / "model")
    assert found["digest"] == model.digest()
    assert (found["features"], found["n_components"], found["kernel"]) == (
        "nystrom",
        33,
        Gaussian(2.0).to_dict(),
    )
    assert found["jitter"] == model.feature_map.jitter == 1e-5
    info = run("info", tmp_path / "model").stdout
    assert "nystrom, jitter 1e-05" in info
    assert "gaussian" in info
    size = ("plan", folder / "data.zarr", "--components", "1000", "--features")
    more, plain = (document(*size, kind)["client_bytes"] for kind in ("nystrom", "fourier"))
    assert more == plain + 8 * 1000**2


def test_a_job_from_table_to_predictions(folder, tmp_path):
    errors_found = document("evaluate", folder / "model", folder / "data.zarr", "--serial")
    written = document(
        "predict", folder / "model", folder / "data.zarr", tmp_path / "predictions", "--serial"
    )
    predictions = zarr.open_group(tmp_path / "predictions", mode="r")["predictions"][:].ravel()
    y = open_dataset(folder / "data.zarr").read(Block(0, 0, 300)).y[:, 0]
    [target] = errors_found["targets"]
    assert written["n_samples"] == errors_found["n_samples"] == 300
    assert target["name"] == "price"
    assert target["rmse"] == pytest.approx(np.sqrt(np.mean((y - predictions) ** 2)), rel=1e-9)
    assert target["z_rmse"] == pytest.approx(target["rmse"] / y.std(), rel=1e-9)
    assert target["mae"] == pytest.approx(np.abs(y - predictions).mean(), rel=1e-9)
    assert target["r2"] == pytest.approx(1 - target["mse"] / y.var(), rel=1e-9)
    assert target["z_rmse"] < 0.3
    assert written["model_digest"] == document("info", folder / "model")["digest"]


def test_predict_std_writes_standard_deviations_beside_the_predictions(folder, tmp_path):
    arguments = ("predict", folder / "model", folder / "data.zarr")
    plain = document(*arguments, tmp_path / "plain", "--serial")
    written = document(*arguments, tmp_path / "both", "--serial", "--std")
    assert (plain["std_array"], written["std_array"]) == (None, "standard_deviations")
    alone, group = (zarr.open_group(tmp_path / name, mode="r") for name in ("plain", "both"))
    assert set(alone.array_keys()) == {"predictions"}
    mean, std = load_model(folder / "model").predict(folder / "data.zarr", return_std=True)
    assert_array_equal(group["predictions"][:], alone["predictions"][:])
    assert_array_equal(group["predictions"][:], mean)
    assert_array_equal(group["standard_deviations"][:], std)
    assert document("info", tmp_path / "both")["kind"] == "predictions"


def test_predict_interval_writes_ends_by_held_out_rows_or_by_the_normal_law(folder, tmp_path):
    data = folder / "data.zarr"
    small = ("--serial", "--components", "16", "--folds", "3")
    document("fit", data, tmp_path / "model", *PLAIN, *small, "--conformal")
    held_out = document("predict", tmp_path / "model", data, tmp_path / "a", "--serial", "--interval", "0.8")
    normal = document("predict", folder / "model", data, tmp_path / "b", "--serial", "--interval", "0.8")
    assert held_out["interval"] == {"coverage": 0.8, "arrays": ["lower", "upper"], "by": "held-out rows"}
    assert normal["interval"]["by"] == "normal law"
    for model, name in ((tmp_path / "model", "a"), (folder / "model", "b")):
        group = zarr.open_group(tmp_path / name, mode="r")
        lower, upper = load_model(model).predict_interval(data, coverage=0.8)
        assert_allclose(group["lower"][:], lower, rtol=1e-12)
        assert_allclose(group["upper"][:], upper, rtol=1e-12)
    for wrong in ("0", "1", "95"):
        message = refusal(2, "predict", folder / "model", data, tmp_path / "c", "--interval", wrong)
        assert "expected a number in (0, 1)" in message


def test_evaluate_std_judges_the_standard_deviations(folder):
    arguments = ("evaluate", folder / "model", folder / "data.zarr", "--serial")
    [plain], [target] = (document(*arguments, *more)["targets"] for more in ((), ("--std",)))
    assert {key: target[key] for key in plain} == plain
    mean, std = load_model(folder / "model").predict(folder / "data.zarr", return_std=True)
    y = open_dataset(folder / "data.zarr").read(Block(0, 0, 300)).y[:, 0]
    nlpd = np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * ((y - mean) / std) ** 2)
    assert target["nlpd"] == pytest.approx(nlpd, rel=1e-9)
    assert target["z_nlpd"] == pytest.approx(nlpd - np.log(y.std()), rel=1e-9)
    assert target["coverage"]["0.95"] == np.mean(np.abs(y - mean) <= 1.959963984540054 * std)
    shown = run(*arguments, "--std").stdout
    assert f"{target['nlpd']:.4g}" in shown
    assert f"{target['coverage']['0.95']:.1%}" in shown


def test_a_constant_target_has_no_r2(folder, tmp_path):
    write_dataset(tmp_path / "data", np.ones((9, 3)), np.ones(9), feature_names=["a", "b", "c"])
    [target] = document("evaluate", folder / "model", tmp_path / "data", "--serial")["targets"]
    assert target["r2"] is None
    assert target["z_rmse"] is None
    assert target["rmse"] > 0


def test_info_tells_a_dataset_predictions_and_a_model_apart(folder, tmp_path):
    run("predict", folder / "model", folder / "data.zarr", tmp_path / "predictions", "--serial")
    assert document("info", folder / "data.zarr")["kind"] == "dataset"
    assert document("info", tmp_path / "predictions")["kind"] == "predictions"
    model = document("info", folder / "model")
    assert model["kind"] == "ridge model"
    assert model["card"]["n_samples"] == 300
    assert model["arrays"]["coefficients"]["shape"] == [64, 1]


def test_text_to_predict_is_ingested_as_labels_and_shown_by_info(tmp_path):
    (tmp_path / "t.csv").write_text("a,species,site\n1,setosa,4\n2.5,été,5\n")
    arguments = ("ingest", tmp_path / "t.csv", tmp_path / "d.zarr", "--target", "species", "--groups", "site")
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    assert "text, for a classifier" in done.output
    found = json.loads(run("info", tmp_path / "d.zarr", "--json").stdout)
    assert {array["name"]: array["dtype"] for array in found["arrays"]} == {
        "X": "float64",
        "groups": "int64",
        "y": "text",
    }
    assert "fingerprint" in found


def test_info_says_whether_damage_would_be_noticed(folder, tmp_path):
    zarr.create_group(tmp_path / "other").create_array("X", data=np.ones((4, 2)))
    [array] = document("info", tmp_path / "other")["arrays"]
    assert array["checksum"] is None
    assert "undetectable" in run("info", tmp_path / "other").stdout
    assert "undetectable" not in run("info", folder / "data.zarr").stdout
    assert {array["checksum"] for array in document("info", folder / "data.zarr")["arrays"]} == {"crc32c"}


def test_fit_takes_kernels_with_parameters_and_sums_of_them(folder, tmp_path):
    text = "rational_quadratic:shape=2,length_scale=1.5 + 0.1 * linear"
    found = document(
        *("fit", folder / "data.zarr", tmp_path / "model", "--kernel", text, "--components", "64"),
        *("--features", "fourier", "--serial"),
    )
    expected = RationalQuadratic(1.5, shape=2.0) + 0.1 * Linear()
    assert found["kernel"] == expected.to_dict()
    assert read_model(tmp_path / "model").feature_map.spec.kernel == expected


# -- choosing alpha and D ---------------------------------------------------------------------------------


def refitted(model, dataset, folds, alpha, groups=None):
    """Return the k-fold mean squared error, by refits on the explicit features without the fold."""
    rows = dataset.read(Block(0, 0, dataset.n_samples))
    Z, y = model.feature_map.transform(rows.X, dtype=np.float64), rows.y[:, 0]
    fold = folds.assign(0, len(y), n_samples=len(y), groups=groups)
    residuals = [
        y[fold == held_out]
        - Ridge(alpha=alpha)
        .fit(Z[np.isin(fold, trained)], y[np.isin(fold, trained)])
        .predict(Z[fold == held_out])
        for trained, held_out in folds.splits
    ]
    return np.mean(np.square(np.concatenate(residuals)))


@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by")  # these rows have hardly any noise
def test_fit_chooses_alpha_and_d_by_the_error_of_refits(folder, tmp_path):
    found = document(
        *("fit", folder / "data.zarr", tmp_path / "model", *PLAIN, "--serial", "--folds", "3"),
        *("--alphas", "1e-6:1e3:10", "--components", "16,32,64", "--plot", tmp_path / "new" / "cv.png"),
    )
    table, model = found["cross_validation"], read_model(tmp_path / "model")
    assert found["alpha_chosen_by"] == "cv"
    assert_allclose(found["alpha_path"], [1e-6, 1e3], rtol=1e-12)
    assert table["folds"] == {"kind": "HashFolds", "n_folds": 3, "seed": 0}
    assert [width["n_components"] for width in table["widths"]] == [16, 32, 64]
    limits = [width["score"] + width["standard_error"] for width in table["widths"]]
    scores = [width["score"] for width in table["widths"]]
    within = [D for D, score in zip([16, 32, 64], scores, strict=True) if score <= limits[np.argmin(scores)]]
    assert found["n_components"] == model.feature_map.n_components == within[0]
    expected = refitted(model, open_dataset(folder / "data.zarr"), HashFolds(3), found["alpha"])
    estimate = found["estimate"]
    assert_allclose(np.square(estimate["rmse"]), expected, rtol=1e-8)  # as the table itself is held to
    assert imread(tmp_path / "new" / "cv.png").shape[2] == 4
    assert document("info", tmp_path / "model")["cross_validation"] == table
    for shown in (run("info", tmp_path / "model").stdout, run_again(folder, tmp_path)):
        words = " ".join(shown.split())
        assert "chosen by cross-validation" in words
        assert f"RMSE {estimate['rmse'][0]:.2f} ± {estimate['rmse_standard_error'][0]:.2f}" in words
        assert f"{found['n_components']} ←" in words
        assert "3 folds by a hash of the row" in words


def run_again(folder, tmp_path):
    options = ["--folds", "3", "--alphas", "1e-6:1e3:10", "--components", "16,32,64", "--overwrite"]
    return run("fit", folder / "data.zarr", tmp_path / "model", *PLAIN, "--serial", *options).stdout


def test_rows_of_one_group_are_held_out_together(folder, tmp_path):
    dataset = open_dataset(folder / "data.zarr")
    rows, sites = dataset.read(Block(0, 0, 300)), np.repeat(np.arange(30), 10)
    write_dataset(tmp_path / "data", rows.X, rows.y[:, 0], groups=sites)
    fit = ("fit", tmp_path / "data", tmp_path / "model", *PLAIN, "--serial", "--components", "32")
    found = document(*fit, "--group-by", "groups", "--folds", "4")
    table, model = found["cross_validation"], read_model(tmp_path / "model")
    assert table["folds"]["kind"] == "GroupFolds"
    folds = GroupFolds(4).balanced(*np.unique(sites, return_counts=True))
    expected = refitted(model, open_dataset(tmp_path / "data"), folds, found["alpha"], sites)
    assert_allclose(np.square(found["estimate"]["rmse"]), expected, rtol=1e-8)
    assert "'site'" in refusal(65, *fit, "--overwrite", "--group-by", "site")


def test_rows_in_the_order_of_time_are_predicted_from_the_past(folder, tmp_path):
    fit = (
        "fit",
        folder / "data.zarr",
        tmp_path / "model",
        *PLAIN,
        "--serial",
        "--components",
        "32",
        "--time",
    )
    found = document(*fit)
    table, model = found["cross_validation"], read_model(tmp_path / "model")
    assert (table["folds"]["kind"], table["n_splits"]) == ("TimeFolds", 4)
    expected = refitted(model, open_dataset(folder / "data.zarr"), TimeFolds(5), found["alpha"])
    assert_allclose(np.square(found["estimate"]["rmse"]), expected, rtol=1e-8)
    two = document(*fit, "--folds", "2", "--overwrite")
    assert two["cross_validation"]["n_splits"] == 1
    assert two["estimate"]["rmse_standard_error"] == [None]


def test_one_standard_error_takes_a_larger_alpha_and_is_told_apart(folder, tmp_path):
    fit = ("fit", folder / "data.zarr", tmp_path / "model", *PLAIN, "--serial", "--components", "32")
    fit = (*fit, "--overwrite")
    best, safer = (document(*fit, "--select", name) for name in ("cv", "cv-1se"))
    assert safer["alpha"] > best["alpha"]
    assert safer["alpha_chosen_by"] == "cv-1se"
    assert "within one standard error" in " ".join(run("info", tmp_path / "model").stdout.split())


def test_a_given_alpha_with_folds_gets_its_error_alone(folder, tmp_path):
    fit = ("fit", folder / "data.zarr", tmp_path / "model", *PLAIN, "--serial", "--components", "32")
    found = document(*fit, "--alpha", "0.1", "--folds", "3")
    assert (found["alpha"], found["alpha_chosen_by"], found["alpha_at_end_of_path"]) == (0.1, "given", None)
    expected = refitted(read_model(tmp_path / "model"), open_dataset(folder / "data.zarr"), HashFolds(3), 0.1)
    assert_allclose(np.square(found["estimate"]["rmse"]), expected, rtol=1e-8)
    assert "as given" in run("info", tmp_path / "model").stdout


@pytest.mark.filterwarnings("default:alpha=10 was chosen")  # the least of those to choose from
@pytest.mark.parametrize("name", ["gcv", "evidence", "press"])
def test_a_criterion_without_folds_is_told_drawn_and_described(folder, tmp_path, name):
    fit = ("fit", folder / "data.zarr", tmp_path / "model", *PLAIN, "--serial", "--components", "32")
    found = document(*fit, "--select", name, "--alphas", "10:1e3:4", "--plot", tmp_path / "path.png")
    assert found["alpha_chosen_by"] == document("info", tmp_path / "model")["card"]["chosen_by"] == name
    assert (found["alpha"], found["alpha_at_end_of_path"]) == (10.0, "lower")
    assert imread(tmp_path / "path.png").shape[2] == 4
    shown = run(*fit, "--select", name, "--alphas", "10:1e3:4", "--overwrite").stdout
    words = {"gcv": "chosen by GCV", "evidence": "chosen by the evidence", "press": "by leave-one-out errors"}
    assert words[name] in " ".join(shown.split())
    assert "at the lower end of 10 to 1e+03" in " ".join(shown.split())
    if name == "press":
        model = read_model(tmp_path / "model")
        rows = open_dataset(folder / "data.zarr").read(Block(0, 0, 300))
        Z = model.feature_map.transform(rows.X, dtype=np.float64)
        Z = Z - Z.mean(axis=0)
        hat = Z @ np.linalg.solve(Z.T @ Z + 10.0 * np.eye(32), Z.T)
        residual = rows.y[:, 0] - rows.y.mean() - hat @ (rows.y[:, 0] - rows.y.mean())
        expected = np.sqrt(np.mean(np.square(residual / (1 - np.diag(hat) - 1 / 300))))
        assert_allclose(found["estimate"]["rmse"], [expected], rtol=1e-9)
        assert "each left out in turn" in " ".join(shown.split())
    else:
        assert found["estimate"] is None
        assert "RMSE" not in shown


def test_alphas_alone_are_chosen_from_by_cross_validation(folder, tmp_path):
    fit = ("fit", folder / "data.zarr", tmp_path / "model", *PLAIN, "--serial", "--components", "32")
    fit = (*fit, "--overwrite")
    listed, ranged, given = (
        document(*fit, *options)
        for options in (
            ["--alphas", "1e-6,1e-2,100"],
            ["--alphas", "1e-6:1e2:3"],
            ["--alpha", "1e-6,1e-2,100"],
        )
    )
    assert listed["alpha_chosen_by"] == ranged["alpha_chosen_by"] == given["alpha_chosen_by"] == "cv"
    assert listed["digest"] == ranged["digest"] == given["digest"]


def test_the_help_names_all_that_can_choose_alpha():
    shown = run("fit", "--help").stdout
    assert [name for name in ALPHA_NAMES if name not in shown] == []


def test_a_plot_that_cannot_be_written_exits_73_and_the_model_is_there(folder, tmp_path):
    (tmp_path / "file").touch()
    fit = ("fit", folder / "data.zarr", tmp_path / "model", *PLAIN, "--serial", "--components", "8")
    assert run(*fit, "--plot", tmp_path / "file" / "p.png").exit_code == 73
    assert read_model(tmp_path / "model").alpha > 0


def test_the_plan_of_folds_and_widths_is_the_librarys(folder):
    plan = ("plan", folder / "data.zarr", *PLAIN)
    plain = document(*plan, "--components", "64", "--alpha", "gcv")
    found = document(*plan, "--components", "32,64", "--folds", "4")
    assert found["statistics_bytes"] == 4 * plain["statistics_bytes"]
    assert found["flops"] == plain["flops"]
    assert (found["n_folds"], found["widths"], found["n_decompositions"]) == (4, [32, 64], 8)
    assert found["decomposition_flops"] == 4 * 3 * (32**3 + 64**3)
    assert document(*plan, "--components", "64")["n_folds"] == 5
    assert "10 decompositions" in " ".join(run(*plan, "--components", "32,64").stdout.split())
    assert "not gcv" in refusal(2, *plan, "--alpha", "gcv", "--folds", "3")


# -- classification ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """A folder with labels of three classes in text, and a model of each loss; tests only add to it."""
    path = tmp_path_factory.mktemp("labelled")
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (400, 2))
    y = np.where(X[:, 0] * X[:, 1] > 0, "same", np.where(X[:, 0] > 1, "far", "other"))
    y[rng.random(400) < 0.1] = "same"
    write_dataset(path / "data", X, y, groups=np.arange(400) // 4, chunk_rows=100)
    write_dataset(path / "numbers", X, np.where(y == "same", 7, 2))
    for loss in ("squared", "logistic", "squared_hinge"):
        found = document(*fit_labels(path, loss), "--loss", loss)
        assert found["classifier"]["loss"] == loss
    return path


def fit_labels(path, name, data="data"):
    small = (*PLAIN, "--serial", "--components", "32", "--alpha", "0.1")
    return ("fit", path / data, path / name, *small, "--classify")


def labels_and_scores(path, name, data="data"):
    """Return the labels, and the model's calibrated scores of explicit features."""
    model = read_model(path / name)
    rows = open_dataset(path / data, y=None).read(Block(0, 0, 400))
    Z = model.feature_map.transform(rows.X, dtype=np.float64)
    scores = Z @ model.coefficients + model.intercept
    if (calibration := model.card["classifier"]["calibration"]) is not None:
        scores = calibration["slope"] * scores + np.array(calibration["intercepts"])
    return open_column(path / data, "y").read(Block(0, 0, 400)), scores


@pytest.mark.parametrize("loss", ["squared", "logistic", "squared_hinge"])
def test_a_classifier_is_judged_as_scikit_learn_judges_its_labels(labelled, loss):
    found = document("evaluate", labelled / loss, labelled / "data", "--serial")
    y, scores = labels_and_scores(labelled, loss)
    classes = np.array(["far", "other", "same"])
    y, predicted = np.array(y.tolist()), classes[scores.argmax(axis=1)]
    assert [row["label"] for row in found["classes"]] == classes.tolist()
    assert found["confusion_matrix"] == metrics.confusion_matrix(y, predicted).tolist()
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y, predicted), rel=1e-12)
    assert found["balanced_accuracy"] == pytest.approx(
        metrics.balanced_accuracy_score(y, predicted), rel=1e-12
    )
    for name in ("precision", "recall"):
        expected = getattr(metrics, f"{name}_score")(y, predicted, average=None)
        assert_allclose([row[name] for row in found["classes"]], expected, rtol=1e-12)
    if loss != "squared_hinge":
        expected = metrics.log_loss(y, special.softmax(scores, axis=1), labels=classes)
        assert found["log_loss"] == pytest.approx(expected, rel=1e-9)
    assert (found["log_loss"] is None) == (loss == "squared_hinge")
    shown = " ".join(run("evaluate", labelled / loss, labelled / "data", "--serial").stdout.split())
    assert f"accuracy {found['accuracy']:.4g}" in shown


def test_predict_writes_labels_and_probabilities(labelled, tmp_path):
    predict = ("predict", labelled / "squared", labelled / "data")
    plain = document(*predict, tmp_path / "plain", "--serial")
    written = document(*predict, tmp_path / "both", "--serial", "--probabilities")
    assert (plain["array"], plain["probabilities_array"]) == ("labels", None)
    assert written["probabilities_array"] == "probabilities"
    estimator = load_model(labelled / "squared")
    X = open_dataset(labelled / "data", y=None).read(Block(0, 0, 400)).X
    for name in ("plain", "both"):
        labels = zarr.open_group(tmp_path / name, mode="r")["labels"][:]
        assert labels.tolist() == estimator.predict(X).tolist()
    found = open_dataset(tmp_path / "both", x="probabilities")
    assert found.feature_names == ("far", "other", "same")
    p = found.read(Block(0, 0, 400)).X
    assert_allclose(p, estimator.predict_proba(X), rtol=1e-12)
    assert document("info", tmp_path / "both")["kind"] == "predictions"


def test_labels_of_two_whole_numbers_stay_whole_numbers(labelled, tmp_path):
    found = document(*fit_labels(labelled, "two", "numbers"), "--class-weight", "balanced", "--folds", "3")
    assert found["classifier"]["classes"] == [2, 7]
    assert found["cross_validation"]["folds"]["n_folds"] == 3
    run("predict", labelled / "two", labelled / "numbers", tmp_path / "p", "--serial", "--probabilities")
    labels = zarr.open_group(tmp_path / "p", mode="r")["labels"][:]
    y, scores = labels_and_scores(labelled, "two", "numbers")
    assert labels.dtype == y.dtype
    assert_array_equal(labels, np.where(scores[:, 0] > 0, 7, 2))
    judged = document("evaluate", labelled / "two", labelled / "numbers", "--serial")
    assert judged["accuracy"] == np.mean(labels == y)


def test_a_classifier_is_described(labelled):
    shown = " ".join(run("info", labelled / "logistic").stdout.split())
    for words in ("2 features, 3 classes", "classes far, other, same", "loss logistic", "of the loss itself"):
        assert words in shown
    assert "probabilities none" in " ".join(run("info", labelled / "squared_hinge").stdout.split())


def test_of_a_classifier_only_accuracy_and_log_loss_are_estimated(labelled, tmp_path):
    model = read_model(labelled / "squared")
    for told in ({}, {"accuracy": 0.9, "accuracy_standard_error": 0.01, "log_loss": 0.3}):
        codes = {"by": "cv", "rmse": [0.5], "rmse_standard_error": [0.1], "r2": [0.7]}
        card = {"estimate": {**codes, **told}, "folds": {"kind": "HashFolds", "n_folds": 5, "seed": 0}}
        write_model(model.with_card(**card), tmp_path / "m", overwrite=True)
        shown = " ".join(run("info", tmp_path / "m").stdout.split())
        assert "RMSE" not in shown
        assert document("info", tmp_path / "m")["estimate"] == ({"by": "cv", **told} if told else None)
    assert "accuracy 0.900 ± 0.010, log loss 0.3; 5 folds by a hash of the row" in shown


def test_alpha_of_a_logistic_loss_is_told_beside_ridges(labelled, tmp_path):
    fit = ("fit", labelled / "data", tmp_path / "m", *PLAIN, "--serial", "--components", "32", "--classify")
    found = document(
        *fit, "--loss", "logistic", "--select", "cv", "--group-by", "groups", "--plot", tmp_path / "p"
    )
    ridge = found["classifier"]["ridge_alpha"]
    assert found["alpha"] < ridge
    table = document("info", tmp_path / "m")["cross_validation"]
    assert table == found["cross_validation"]
    [width] = table["widths"]  # at the least error; ridge's alpha is the largest that is as good
    assert width["alpha"] <= ridge
    assert width["score"] <= table["score"] <= width["score"] + 0.1 * width["standard_error"]
    assert f"made of ridge's {ridge:.3g}" in " ".join(run("info", tmp_path / "m").stdout.split())


def test_text_to_regress_on_is_refused_with_the_option(labelled, tmp_path):
    message = refusal(65, "fit", labelled / "data", tmp_path / "m", "--serial")
    assert "holds labels (text)" in message
    assert "--classify" in message


@pytest.mark.parametrize(
    ("code", "expected", "arguments"),
    [
        (2, "no standard deviations", ["evaluate", "squared", "data", "--std"]),
        (2, "no standard deviations", ["predict", "squared", "data", "out", "--std"]),
        (1, "squared hinge has none", ["predict", "squared_hinge", "data", "out", "--probabilities"]),
        (65, "not among the 3 classes", ["evaluate", "squared", "other"]),
        (65, "no array 'label'", ["evaluate", "squared", "data", "--y", "label"]),
    ],
)
def test_what_a_classifier_cannot_do_is_refused(labelled, code, expected, arguments):
    if "other" in arguments:
        X = np.random.default_rng(0).uniform(-2, 2, (4, 2))
        write_dataset(labelled / "other", X, np.array(["same", "far", "new", "far"]))
    paths = [word if word.startswith("-") or word == "label" else labelled / word for word in arguments[1:]]
    result = run(arguments[0], *paths, "--serial")
    assert result.exit_code == code, result.output
    assert expected in result.stderr


def test_a_regression_has_no_probabilities(folder, tmp_path):
    predict = ("predict", folder / "model", folder / "data.zarr", tmp_path / "p", "--serial")
    assert "no classifier" in refusal(2, *predict, "--probabilities")


# -- approximate ------------------------------------------------------------------------------------------


def test_approximate_measures_the_errors_beside_theory_and_draws_them(folder, tmp_path):
    options = [
        "--components",
        "256",
        "--rows",
        "30",
        "--samples",
        "5",
        "--error",
        "0.1",
        "--length-scale",
        "2",
    ]
    found = document("approximate", folder / "data.zarr", *options, "--plot", tmp_path / "error.png")
    dataset = open_dataset(folder / "data.zarr")
    mean, largest = found["errors"]["mean"], found["errors"]["max"]
    assert mean["low"] <= mean["value"] <= mean["high"]
    assert (found["n_rows_read"], found["n_samples"], found["n_repeats"]) == (150, 30, 5)
    assert [point["n_components"] for point in found["curve"]] == [16, 32, 64, 128, 256]
    assert found["curve"][-1]["max"] == largest
    wanted = found["wanted"]["n_components"]["max"]
    assert wanted["theory"] == pairwise_components(0.1, n_points=30, delta=0.05)
    assert_allclose(wanted["measured"], 256 * (largest["value"] / 0.1) ** 2, atol=2)
    assert_allclose(wanted["factor"], wanted["theory"] / wanted["measured"])
    for name in ("mean", "max", "relative_operator_norm"):
        assert found["errors"][name]["value"] < found["bounds"][name]
    X = dataset.take(range(300)).X
    expected = better_map(Gaussian(2.0), (X - X.mean(axis=0)) / X.std(axis=0))
    assert_allclose(found["map_variances"]["pairs"], expected.pairs, rtol=0.1)
    assert found["map_variances"]["better"] == "pairs"
    assert imread(tmp_path / "error.png").shape[2] == 4


def test_approximate_shows_a_table_for_people(folder):
    shown = run("approximate", folder / "data.zarr", "--components", "64", "--rows", "30").stdout
    for words in ("by theory", "D for 0.05", "take pairs", "± 95%", "in the box", "Claim 1"):
        assert words in " ".join(shown.split())


@pytest.mark.parametrize(
    ("options", "missing", "reason"),
    [
        (["--kernel", "laplacian"], ["compact_set"], "second moment of the kernel's frequencies is infinite"),
        (["--kernel", "linear"], ["compact_set", "max", "mean", "relative_operator_norm"], "Linear()"),
    ],
)
def test_approximate_says_why_there_is_no_bound(folder, options, missing, reason):
    found = document("approximate", folder / "data.zarr", "--components", "64", "--rows", "30", *options)
    assert sorted(name for name, bound in found["bounds"].items() if bound is None) == missing
    assert sorted(found["no_bounds"]) == missing
    assert all(reason in text for text in found["no_bounds"].values())


def test_approximate_takes_the_better_map_where_it_is_to_choose(tmp_path):
    write_dataset(tmp_path / "far.zarr", np.arange(200.0)[:, np.newaxis])
    options = ["--kernel", "cauchy", "--length-scale", "0.01", "--components", "64", "--map", "auto"]
    found = document("approximate", tmp_path / "far.zarr", *options, "--rows", "20", "--no-standardize")
    assert found["map"] == found["map_variances"]["better"] == "phases"


@pytest.mark.parametrize(
    ("options", "option", "expected"),
    [
        (["--error", "0"], "--error", "above 0"),
        (["--delta", "1"], "--delta", "between 0 and 1"),
        (["--confidence", "0"], "--confidence", "between 0 and 1"),
        (["--map", "complex"], "--map", "auto, pairs or phases"),
        (["--components", "7"], "--components", "take 8"),
        (["--rows", "1"], "--rows", "2"),
        (["--kernel", "laplacian", "--design", "orthogonal"], "--design iid", "isotropic"),
    ],
)
def test_approximate_refuses_a_bad_value_with_2(folder, options, option, expected):
    message = refusal(2, "approximate", folder / "data.zarr", *options)
    assert option in message
    assert expected in message


def test_approximate_refuses_bad_data_with_65_and_a_bad_place_with_73(folder, tmp_path):
    refusal(65, "approximate", tmp_path / "nowhere.zarr")
    message = refusal(65, "approximate", folder / "data.zarr", "--samples", "200", "--rows", "2")
    assert "--samples" in message
    (tmp_path / "file").write_text("")
    refusal(73, "approximate", folder / "data.zarr", "--plot", tmp_path / "file" / "error.png")


@pytest.mark.parametrize("name", ["plan", "evaluate", "info", "fit", "ingest", "generate", "predict"])
def test_tables_for_people_go_to_standard_output_and_progress_does_not(folder, tmp_path, name):
    arguments = {
        "plan": [folder / "data.zarr"],
        "evaluate": [folder / "model", folder / "data.zarr", "--serial"],
        "info": [folder / "model"],
        "fit": [folder / "data.zarr", tmp_path / "out", *PLAIN, "--components", "8", "--serial"],
        "ingest": [folder / "table.csv", tmp_path / "out", "--target", "price"],
        "generate": [tmp_path / "out", "--rows", "300", "--components", "8"],
        "predict": [folder / "model", folder / "data.zarr", tmp_path / "out", "--serial"],
    }[name]
    result = run(name, *arguments)
    assert result.exit_code == 0, result.stderr
    assert "300" in result.stdout
    assert "done after" not in result.stdout
    if name in ("fit", "evaluate", "predict"):
        assert "done after" in result.stderr


def test_demo_hands_its_options_on_and_shows_its_result(tmp_path, monkeypatch):
    demo = pytest.importorskip("rff_dist.demo")
    calls = []

    def run_demo(output, **options):
        options.pop("console").print("a table")
        calls.append((output, options))
        return {"psnr": 25.0}

    monkeypatch.setattr(demo, "run_demo", run_demo)
    found = document("demo", "--output", tmp_path, "--components", "64", "--workers", "1", "--threads", "2")
    assert found == {"command": "demo", "psnr": 25.0}
    assert calls == [(tmp_path, {"n_components": 64, "seed": 0, "workers": 1, "threads": 2})]
    assert run("demo", "--output", tmp_path).stdout == "a table\n"


@pytest.mark.parametrize(
    ("n_workers", "n_threads", "n_cpus", "size"),
    [
        (None, None, 2, (1, 2)),
        (None, None, 16, (4, 4)),
        (2, None, 16, (2, 8)),
        (None, 1, 8, (8, 1)),
        (3, 5, 2, (3, 5)),
        (4, None, 2, (4, 1)),
    ],
)
def test_the_embedded_cluster_uses_the_cpus_there_are(monkeypatch, n_workers, n_threads, n_cpus, size):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(n_cpus)))
    assert Where(workers=n_workers, threads=n_threads).cluster.size() == size


def test_children_ignore_a_ctrl_c_that_is_not_lost_for_this_process():
    told = []

    def start_child_and_interrupt():
        with spare_children_ctrl_c():
            code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
            child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            told.append(child.stdout)

    # a suite that was started in the background ignores SIGINT
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start_child_and_interrupt()
        assert told == ["True\n"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_rows_are_ingested_once_and_both_counts_are_shown(folder, tmp_path):
    ingest_it = ("ingest", folder / "table.csv", tmp_path / "d.zarr", "--append", "--target", "price")
    first, again = document(*ingest_it), document(*ingest_it)
    assert (first["n_before"], again["n_before"], again["n_after"]) == (0, first["n_after"], first["n_after"])
    assert (first["ingested"], again["skipped"]) == (2 * ([str(folder / "table.csv")],))
    shown = " ".join(run(*ingest_it).stdout.split())  # lines end where the path is long
    assert "nothing new" in shown
    assert "there already" in shown


def test_a_query_is_ingested_and_the_password_of_its_database_not_told(tmp_path, monkeypatch):
    monkeypatch.setenv("RFF_DIST_SQL", "sqlite://")
    made = document("ingest", tmp_path / "d", "--target", "y", "--sql", "SELECT 1 AS x, 2 AS y")
    assert (made["n_samples"], made["feature_names"], made["target_names"]) == (1, ["x"], ["y"])
    monkeypatch.setenv("RFF_DIST_SQL", "nothing://me:geheim@host/x")
    result = run("ingest", tmp_path / "e", "--sql", "SELECT 1 AS x", "--debug")
    assert result.exit_code == 2
    assert "geheim" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.csv", "d", "--append", "--overwrite"], "leave it out"),
        (["a.csv", "d", "--sql", "SELECT 1"], "a.csv: expected files or a query"),
        (["d"], "expected files and, last, the dataset"),
    ],
)
def test_sources_that_do_not_go_together_exit_2(arguments, message):
    assert message in refusal(2, "ingest", *arguments)
