"""Each job's options by flags, file, environment, Python and Prefect: the same names,
values and refusals.
"""

import json
import tomllib
from dataclasses import dataclass, field
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema

from rff_dist.errors import InvalidParameterError
from rff_dist.fields import build, options_of
from rff_dist.flows.cluster import cluster
from rff_dist.flows.ingest import ingest
from rff_dist.flows.predict import predict
from rff_dist.flows.refresh import refresh
from rff_dist.flows.running import parameters_of
from rff_dist.flows.train import train
from rff_dist.workbench.jobs import specs
from tests.command_line import run
from tests.refusals import refuses


@dataclass(frozen=True)
class Job:
    """A job: its command, its spec, its flow if it has one, and values of
    options.
    """

    command: str
    spec: type
    flow: Any
    given: dict[str, Any]
    wrong: dict[str, Any] = field(default_factory=dict)


TRAINED = {"data": "d.zarr", "model": "m"}
JOBS = [
    Job("fit", specs.Train, train, TRAINED, {"n_components": "many"}),
    Job(
        "fit",
        specs.Train,
        train,
        TRAINED
        | {
            "n_components": [64, 100],
            "length_scale": [1.0, 2.0],
            "alpha": [0.1, 1.0],
            "seed": 2**64 - 1,
        }
        | {
            "fit_intercept": False,
            "alpha_per_target": False,
            "kernel": "matern:nu=2.5",
            "time": True,
        },
        {"alpha": -1.0},
    ),
    Job(
        "fit",
        specs.Train,
        train,
        TRAINED
        | {
            "standardize": False,
            "n_folds": 4,
            "sample_weight": "w",
        }
        | {
            "statistics": False,
            "register": True,
            "classify": False,
            "target": "y",
            "inputs": ["a", "b"],
        }
        | {"group_by_block": ["lat=2"], "alphas": [0.1]},
        {"alphas": [0.0]},
    ),
    Job(
        "fit",
        specs.Train,
        train,
        TRAINED
        | {
            "kernels": ["gaussian", "additive:kernel=matern,dense=2"],
            "length_scales": ["0.5x", 2.0],
        }
        | {"register": True, "groups": "g", "alpha": "cv-1se"},
        {"n_folds": 1},
    ),
    Job(
        "cluster",
        specs.Clustering,
        cluster,
        {
            "data": "d",
            "output": "o",
            "n_clusters": [2, 4],
            "n_init": 3,
            "tol": 0.0,
            "features": "nystrom",
        },
        {"init": "k-means"},
    ),
    Job(
        "predict",
        specs.Predict,
        predict,
        {"model": "m", "data": "d", "output": "o", "coverage": 0.9, "std": True},
        {"coverage": 1.5},
    ),
    Job(
        "evaluate",
        specs.Evaluate,
        None,
        {"model": "m", "data": "d", "std": True},
        {"std": "maybe"},
    ),
    Job(
        "update",
        specs.Update,
        refresh,
        {"model": "m", "data": "d", "level": 0.01, "backfill": 7, "window": "30d"},
        {"level": 1.0},
    ),
    Job(
        "forget",
        specs.Forget,
        None,
        {"data": "d", "rows": "r.csv", "models": ["m", "n"], "days": 30.0},
        {"days": -1.0},
    ),
    Job(
        "refit",
        specs.Refit,
        None,
        {"like": "m", "data": "d", "model": "n"},
        {"missing_chunks": "skip"},
    ),
    Job(
        "merge",
        specs.Merge,
        None,
        {"models": ["m", "n"], "model": "o"},
        {"register": "maybe"},
    ),
    Job(
        "ingest",
        specs.Ingest,
        ingest,
        {
            "sources": ["1.csv"],
            "data": "d",
            "targets": ["a", "b"],
            "recipe": "r.skops",
            "header": False,
        },
        {"chunk_rows": 0},
    ),
    Job(
        "auto",
        specs.Auto,
        None,
        {
            "sources": ["t.csv"],
            "target": "y",
            "holdout": 0.1,
            "effort": 2,
            "time_limit": 1.5,
        },
        {"effort": 6},
    ),
]


def text_of(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def toml(value):
    return str(value).lower() if isinstance(value, bool) else repr(value)


def words_of(spec, given):
    """Return options as flags of a command."""
    options = {option.name: option for option in options_of(spec)}
    words = []
    for name, value in given.items():
        flag = name.replace("_", "-")
        is_flag = name in options and options[name].kinds == {bool}
        if is_flag and not options[name].literals and isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words.append(f"--{flag}={value if is_flag else text_of(value)}")
    return words


def by_flags(job, given, *_):
    return printed(job, *words_of(job.spec, given))


def by_environment(job, given, monkeypatch, _):
    for name, value in given.items():
        monkeypatch.setenv(f"RFF_DIST_{job.command}_{name}".upper(), text_of(value))
    return printed(job)


def by_file(job, given, _, folder):
    lines = [f"{name} = {toml(value)}" for name, value in given.items()]
    (folder / "job.toml").write_text("\n".join(lines))
    return printed(job, "--config", folder / "job.toml")


def printed(job, *words):
    """Return the job of what --print-config shows, which is TOML."""
    result = run(job.command, *words, "--print-config")
    if result.exit_code:
        assert result.exit_code == 2
        raise InvalidParameterError(result.stderr)
    values = tomllib.loads(result.stdout)
    names = [option.name for option in options_of(job.spec)]
    return build(job.spec, {name: values[name] for name in names if name in values})


def by_python(job, given, *_):
    return build(job.spec, given)


def by_prefect(job, given, *_):
    return parameters_of(job.flow).read(given)[job.spec]


WAYS = [by_flags, by_environment, by_file, by_python, by_prefect]
TABLE = [
    pytest.param(job, way, id=f"{job.command}-{i}-{way.__name__[3:]}")
    for i, job in enumerate(JOBS)
    for way in WAYS
    if way is not by_prefect or job.flow is not None
]
# one check refuses the options of all jobs
SOME = [case for case in TABLE if case.values[0].command in ("fit", "predict")]


@pytest.mark.parametrize(("job", "way"), TABLE)
def test_a_job_is_the_same_whichever_way_its_options_are_given(
    job, way, monkeypatch, tmp_path
):
    assert way(job, job.given, monkeypatch, tmp_path) == build(job.spec, job.given)


@pytest.mark.parametrize(("job", "way"), SOME)
def test_an_unknown_option_is_refused_with_the_nearest_name(
    job, way, monkeypatch, tmp_path
):
    name = list(job.given)[-1]
    given = {
        (f"{name}x" if one == name else one): value for one, value in job.given.items()
    }
    with pytest.raises(
        ValueError, match=rf"(?i)did you mean '?(--)?{name.replace('_', '[-_]')}\b"
    ):
        way(job, given, monkeypatch, tmp_path)


@pytest.mark.parametrize(("job", "way"), SOME)
def test_a_value_that_does_not_fit_is_refused_with_what_is_expected(
    job, way, monkeypatch, tmp_path
):
    [name] = job.wrong
    called = f"--{name.replace('_', '-')}" if way is by_flags else f"`{name}`"
    with pytest.raises(ValueError, match=rf"{called} is .*; expected "):
        way(job, job.given | job.wrong, monkeypatch, tmp_path)


@pytest.mark.parametrize("way", [by_file, by_python, by_prefect])
@pytest.mark.parametrize(
    "wrong",
    [{"n_components": "64"}, {"seed": True}, {"classify": "yes"}, {"alpha": "1"}],
)
def test_only_flags_and_the_environment_read_values_from_text(
    way, wrong, monkeypatch, tmp_path
):
    with refuses(ValueError, "expected"):
        way(JOBS[0], JOBS[0].given | wrong, monkeypatch, tmp_path)


def test_flags_count_more_than_the_environment_and_that_more_than_the_file(
    monkeypatch, tmp_path
):
    (tmp_path / "job.toml").write_text(
        "data = 'd'\nmodel = 'm'\nseed = 1\neffort = 1\nn_folds = 3"
    )
    monkeypatch.setenv("RFF_DIST_FIT_SEED", "2")
    monkeypatch.setenv("RFF_DIST_FIT_EFFORT", "2")
    words = ["fit", "--config", tmp_path / "job.toml", "--seed", "3", "--print-config"]
    lines = run(*words).stdout.splitlines()
    assert {
        "seed = 3  # flag",
        "effort = 2  # RFF_DIST_FIT_EFFORT",
        f"n_folds = 3  # {tmp_path}/job.toml",
        'alpha = "auto"  # default',
        "# groups: none  # default",
    } < set(lines)


def test_what_print_config_shows_is_a_file_that_says_the_same(tmp_path):
    words = [
        "--kernel",
        "matern:nu=2.5",
        "--alphas",
        "1e-3:1:4",
        "--quiet",
        "--print-config",
    ]
    shown = run("fit", "d", "m", *words).stdout
    (tmp_path / "job.toml").write_text(shown)
    again = run("fit", "--config", tmp_path / "job.toml", "--print-config").stdout
    assert tomllib.loads(again) == tomllib.loads(shown)


@pytest.mark.parametrize("text", [None, "n_components = ", "[fit]\nseed = 1"])
def test_a_file_that_holds_no_options_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "job.toml").write_text(text)
    result = run("fit", "d", "m", "--config", tmp_path / "job.toml")
    assert result.exit_code == 2
    assert "job.toml" in result.stderr


@pytest.mark.parametrize(
    ("text", "value"), [("8", 8), ("1e6", 10**6), ("1_000", 1000), (" 12 ", 12)]
)
def test_whole_numbers_are_read_as_people_write_them(text, value):
    [option] = [one for one in options_of(specs.Train) if one.name == "n_components"]
    assert option.read(text) == value


@pytest.mark.parametrize(
    "job", [job for job in JOBS if job.flow], ids=lambda job: job.command
)
def test_a_form_begins_with_data_and_ends_with_where_it_runs(job):
    names = list(parameters_of(job.flow).options)
    assert names[0] == "data"
    places = [
        names.index(name)
        for name in ("data", "model", "output", "n_components")
        if name in names
    ]
    assert places == list(range(len(places)))
    if "scheduler" in names:
        assert set(names[names.index("scheduler") :]).isdisjoint(
            one.name for one in options_of(job.spec)
        )


# -- Prefect's forms
# -----------------------------------------------------------------------------------

FLOWS = {
    train: TRAINED,
    cluster: TRAINED | {"output": "o", "n_clusters": 3},
    predict: TRAINED | {"output": "o"},
    refresh: TRAINED,
    ingest: {"data": "d"},
}
NOT_ISOTROPIC = {"kernel": "laplacian", "design": "orthogonal"}
# Each value is wrong, and named with its parameter.
WRONG = {
    train: {
        "n_components": [9, [8, 0]],
        "kernels": [[]],
        "length_scales": [[0.0]],
        "length_scale": ["automatic", []],
        "kernel": ["matern:mu=1.5"],
        "features": ["nystrom:best"],
        "seed": [-1],
        "n_workers": [0],
        "timeout_minutes": [0.0, float("inf")],
    },
    cluster: {
        "n_clusters": [0, [], [3, 3]],
        "normalize": ["degree"],
        "n_components": [9],
        "length_scale": ["evidence"],
    },
    refresh: {
        "tolerance": [-0.1, float("nan")],
        "backfill": [-1, "all"],
        "window": ["2 weeks"],
    },
    predict: {"std": [1]},
}
TOGETHER = [
    (
        train,
        {"n_workers": 2, "scheduler": "tcp://127.0.0.1:8786"},
        "n_workers",
        "scheduler",
    ),
    (
        train,
        {"scheduler": "127.0.0.1", "memory": "1 GiB"},
        "memory",
        "scheduler",
    ),
    (train, {"data": "ftp://host/data.zarr"}, "ftp"),
    (
        train,
        {"model": "s3://key:secret@bucket/model"},
        "credentials",
        "s3://***@bucket/model",
    ),
    (train, {"kernel": "gaussian", "kernels": ["gaussian"]}, "kernel", "kernels"),
    (cluster, NOT_ISOTROPIC, "orthogonal", "design='iid'"),
    (cluster, {"output": ""}, "location", "''"),
    (
        refresh,
        {"test": "s3://key:secret@bucket/test"},
        "credentials",
        "s3://***@bucket/test",
    ),
    (refresh, {"overwrite": True}, "overwrite"),
    (ingest, {}, "sources", "sql"),
    (ingest, {"sources": ["a.csv"], "sql": "SELECT 1"}, "sources", "sql"),
    (ingest, {"sources": ["a.csv"], "connection_block": "db"}, "sql"),
    (ingest, {"sources": ["a.csv"], "on_nan": "fill"}, "on_nan", "'fill'"),
]
REFUSED = [
    *(
        (flow, {name: value}, [name, repr(value)])
        for flow in WRONG
        for name, all_ in WRONG[flow].items()
        for value in all_
    ),
    *((flow, bad, named) for flow, bad, *named in TOGETHER),
]


@pytest.mark.parametrize(("flow", "bad", "named"), REFUSED)
def test_bad_parameters_are_refused_before_a_run(flow, bad, named):
    with refuses(InvalidParameterError, *named) as refusal:
        flow.fn(**(FLOWS[flow] | bad))
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_every_option_is_a_parameter_of_its_own_with_a_description_in_the_deployment_schema(
    flow,
):
    schema = json.loads(json.dumps(parameter_schema(flow).model_dump()))
    options = parameters_of(flow).options.values()
    assert set(schema["properties"]) == {option.name for option in options}
    assert (
        set(schema["required"])
        == {option.name for option in options if option.is_required}
        <= set(FLOWS[flow])
    )
    assert all(
        len(entry["description"]) > 18 for entry in schema["properties"].values()
    )


@pytest.mark.parametrize(
    "job", [job for job in JOBS if job.flow], ids=lambda job: job.command
)
def test_parameters_as_json_are_the_same_parameters(job):
    parameters = parameters_of(job.flow)
    again = json.loads(json.dumps(job.given))
    assert parameters.read(again) == parameters.read(job.given)
