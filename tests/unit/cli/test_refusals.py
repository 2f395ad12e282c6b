"""What commands refuse: the exit code, and what the line says."""

import re
import shlex
from importlib import import_module

import pytest

from rff_dist.contexts import setting
from rff_dist.workbench.cli import messages, settings, shell
from tests.command_line import run

# What only words of a command can be; values that any way to give options refuses:
# tests/flows/test_ways.py.
FIT = [
    (2, "--n-components 7", "--n-components", "take 8, or --map phases"),
    (2, "--length-scale evidence --kernel linear", "kernels of one length scale"),
    (2, "--alpha small", "--alpha", "auto"),
    (2, "--alpha best", "--alpha", "cv-1se, gcv, evidence"),
    (2, "--alphas 1:2", "--alphas", "LOW:HIGH:N"),
    (2, "--alphas 2:1:5", "--alphas", "LOW < HIGH"),
    (2, "--alphas 1,-2", "--alpha", "above 0"),
    (2, "--n-components 64,x", "--n-components", "'64,x'"),
    (2, "--plot p.png --alpha 1", "--plot", "give --alpha cv"),
    (2, "--class-weight balanced", "--class-weight", "add --classify"),
    (2, "--kernels gaussian,matern --solver pcg", "by the sums of each fold"),
    (65, "--sample-weight w", "--sample-weight"),
]
OTHERS = [
    (2, "fit {data} new --scheduler file://x", "--scheduler", "tcp://host:port"),
    (73, "fit {data} {model} --register --serial", "something else than versions"),
    (
        65,
        "fit {labels} new --serial",
        "holds labels (text)",
        "fit --classify`); in Python",
    ),
    (2, "cluster {blobs} new --labels a --serial", "--labels", "an input", "such as y"),
    (65, "predict {table} {model} new.csv", "rff-dist predict MODEL DATA"),
    (65, "evaluate m/1 {data}", "did you mean m/versions/1?"),
    (2, "fit {data} new --length-scales=-1x --serial", "above 0"),
    (65, "fit {data} new --groups nothing --serial", "nothing"),
    (2, "cluster {data} new --register", "needs a model to publish; give --model"),
    (2, "cluster {blobs} new --n-clusters two --serial", "a whole number"),
    (
        65,
        "cluster {blobs} new --n-clusters 600 --n-components 16 --serial",
        "n_samples=500",
    ),
    (73, "cluster {blobs} new --model new --serial", "new"),
    (73, "cluster {blobs} {clustered} --serial", "exists already"),
    (73, "cluster {blobs} new --model {clusters} --serial", "exists already"),
    (2, "approximate {data} --error 0", "--error", "above 0"),
    (2, "approximate {data} --n-samples 1", "--n-samples", "2"),
    (
        2,
        "approximate {data} --kernel laplacian --design orthogonal",
        "--design iid",
        "isotropic",
    ),
    (65, "approximate nowhere.zarr", "nothing is there"),
    (
        1,
        "plan {data} --n-components 8192 --memory 1GiB --alpha gcv",
        "1.0 GiB",
        "needs",
    ),
    (1, "plan {data} --n-components 256 --memory 1MiB --alpha gcv", "MiB of --memory"),
    (
        65,
        "ingest gaps.csv new --targets y",
        "--impute median",
        "--on-nan drop",
        "in 'y'",
    ),
    *(
        (2, f"plan {{data}} --memory={size}", "--memory")
        for size in ("-1GiB", "0", "big", "1.2.3G")
    ),
    (2, "ingest {table} new --on-nan foo", "--on-nan"),
    *(
        (2, f"ingest {{table}} {output} {options}", *said)
        for output in ("new", "{data}")
        for options, *said in (
            ("--targets prize", "--targets", "'price'"),
            ("--targets price --drop sizes", "--drop", "no column 'sizes'"),
            ("--targets price --holdout 0.5 --holdout-by day", "--holdout-by", "'day'"),
        )
    ),
    (2, "ingest {blobs} {data} --holdout 0.5 --holdout-by x", "no column of X `x`"),
    (73, "ingest {table} {data} --targets price", "exists already"),
    (2, "ingest {table} new --targets price --holdout all", "a share such as 10%"),
    (
        2,
        "ingest {table} new --targets price --test other",
        "no rows are held out; give a share",
    ),
    (65, "ingest lists.jsonl new --targets a", "'names' (list", "--drop names"),
    (2, "ingest a.csv new --append --overwrite", "leave it out"),
    (2, "ingest a.csv new --sql 'SELECT 1'", "a.csv: expected files or a query"),
    (2, "ingest new", "expected files and, last, the dataset"),
    (
        2,
        "generate new --rows 4 --noise -1",
        "--noise is '-1'; expected a number of at least 0",
    ),
    (
        2,
        "generate new --rows 4 --noise nan",
        "--noise is 'nan'; expected a number of at least 0",
    ),
    (
        2,
        "generate new --rows 4 --seed -1",
        "--seed is '-1'; expected a whole number of at least 0",
    ),
    (
        2,
        "generate new --rows 4 --n-features 0",
        "--n-features is '0'; expected a whole number",
    ),
    (
        2,
        "generate new --rows 4 --first-row -1",
        "--first-row is '-1'; expected a whole number",
    ),
    (73, "generate {table}/data --rows 10", "cannot be written"),
    (73, "predict {model} {data} {data}/p", "overlap"),
    (
        2,
        "predict {model} {data} new --coverage 95",
        "expected a share such as 10% or a number above 0",
    ),
    (2, "predict {model} {data} new --probabilities", "no probabilities"),
    (2, "predict {classifier} {labels} new --std", "no standard deviations"),
    (1, "predict {hinge} {labels} new --probabilities", "the squared hinge has none"),
    (2, "predict {clusters} {blobs} new --coverage 0.9", "no intervals"),
    (2, "predict {clusters} {blobs} new --probabilities", "no probabilities"),
    (65, "evaluate pickled.pkl {data} --serial", "it is a file"),
    (2, "evaluate {classifier} {labels} --std --serial", "no standard deviations"),
    (2, "evaluate {classifier} {labels} --coverage 0.9", "no intervals"),
    (65, "evaluate {classifier} {labels} --y label --serial", "no array 'label'"),
    (65, "fit {blobs} new --y a --serial", "no array 'a'", "ingested as a target"),
    (
        2,
        "evaluate {clusters} {blobs} --std --serial",
        "clusters have no standard deviations",
    ),
    (69, "evaluate {model} {data} --scheduler 192.0.2.1:8786", "--insecure"),
    (2, "ingest {data} new --holdout 120%", "a share such as 10%"),
    (2, "models promot", "id you mean"),
    (2, "ingest", "OUT is missing; expected rff-dist ingest [SOURCE] OUT"),
    (65, "ingest b1n.csv new --targets y", "did you mean bin.csv?"),
    (2, "fit {data}", "MODEL is missing; expected rff-dist fit DATA MODEL"),
    (
        2,
        "fit {data} new extra words",
        "no place for extra words; expected rff-dist fit DATA MODEL",
    ),
    (
        2,
        "fit {data} new --n-components",
        "--n-components needs a value; expected auto or a whole number",
    ),
    (2, "fit {data} new --config tables.toml", "--config tables.toml", "table [fit]"),
    (2, "fit {data} new --config a.toml --config b.toml", "--config", "more than once"),
    (
        2,
        "evaluate {model} {data} --std=maybe",
        "--std is 'maybe'; expected true or false",
    ),
    (65, "models show nothing", "no registered model"),
    (65, "refit {model} missing.csv v", "missing.csv"),
    (
        2,
        "export {model} out --format xml",
        "--format is 'xml'; expected numpy, onnx or mlflow\n",
    ),
]
REFUSED = [
    (code, f"fit {{data}} new {words} --serial", *said) for code, words, *said in FIT
] + OTHERS


@pytest.fixture
def places(folder, labelled, clustered, tmp_path):
    """Begin in a folder with files that no command reads, and name what there is
    elsewhere.
    """
    (tmp_path / "pickled.pkl").write_bytes(b"\x80\x04N.")
    (tmp_path / "lists.jsonl").write_text(
        '{"a": 1, "names": ["x"]}\n{"a": 2, "names": []}\n'
    )
    (tmp_path / "gaps.csv").write_text("x,y\n1,2\n,3\n4,\n")
    (tmp_path / "m" / "versions" / "1").mkdir(parents=True)
    (tmp_path / "bin.csv").touch()  # no input that is missing
    (tmp_path / "tables.toml").write_text("[fit]\nn_folds = 3\n")
    names = {
        "data": folder / "data.zarr",
        "model": folder / "model",
        "table": folder / "table.csv",
    }
    names |= {"labels": labelled / "data", "classifier": labelled / "squared"}
    names |= {"hinge": labelled / "squared_hinge", "blobs": clustered["data"]}
    return names | {"clusters": clustered["model"], "clustered": clustered["output"]}


def flags_of(name):
    """Return the flags of a command."""
    module, _, function = shell.place_of(name).partition(":")
    options = getattr(import_module(module), function).default_command.command.options
    return {"help", *(option.name.replace("_", "-") for option in options)}


@pytest.mark.parametrize(
    ("code", "words", "said"), [(code, words, said) for code, words, *said in REFUSED]
)
def test_what_cannot_be_is_refused_in_one_line_before_any_work(
    places, tmp_path, code, words, said
):
    result = run(*(word.format(**places) for word in shlex.split(words)))
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = [
        line for line in result.stderr.splitlines() if not line.startswith("warning: ")
    ]
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2
    assert all(one in result.stderr for one in said), result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "new").exists()
    name = shlex.split(words)[0]
    if name not in shell.GROUPS:
        known = flags_of(name)
        named = set(re.findall(r"(?<![\w-])--(?:no-)?([a-z][a-z-]+)", result.stderr))
        assert named <= known
        with setting(settings.options, {flag.replace("-", "_") for flag in known}):
            # nothing is named as in Python
            assert messages.in_flags(result.stderr) == result.stderr
