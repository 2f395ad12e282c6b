"""`rff-dist fit`: its options, and what it stores and tells."""

import os
import re
from dataclasses import replace

import numpy as np

from rff_dist import SerialEngine, open_dataset, write_dataset
from rff_dist.fitting.options import RidgeOptions
from rff_dist.ridge import fit as ridge
from rff_dist.ridge.models import read_model, write_model
from tests.command_line import PLAIN, document, run, shown


def test_stored_weights_that_a_fit_leaves_out_are_one_line_on_standard_error(tmp_path):
    X = np.random.default_rng(0).standard_normal((40, 2))
    write_dataset("data", X, X[:, 0], sample_weight=np.ones(40))
    arguments = ["fit", "data", "model", *PLAIN, "--serial --n-components 8"]
    result = run(*arguments)
    [warning] = [
        line for line in result.stderr.splitlines() if "holds sample weights" in line
    ]
    assert warning.startswith(f"warning: {tmp_path / 'data'} holds sample weights")
    assert "--sample-weight sample_weight" in warning
    assert (
        "sample weights"
        not in run(*arguments, "--sample-weight sample_weight --overwrite").stderr
    )


def test_a_fit_without_options_is_that_of_the_library_and_says_what_it_chose(folder):
    small = ["--n-components 48 --n-folds 3 --serial"]
    result = run("fit", folder / "data.zarr", "model", *small, "--details")
    assert result.exit_code == 0, result.stderr
    expected = ridge.fit(
        open_dataset(folder / "data.zarr"),
        RidgeOptions(n_components=48, cv=3),
        engine=SerialEngine(),
    ).model
    found = document("info", "model")
    assert found["digest"] == expected.digest()
    assert found["card"]["candidates"] == expected.card["candidates"]
    n_tried = sum(row["round"] == "first" for row in expected.card["candidates"])
    about = shown("info", "model", "--details")
    for told in (" ".join(result.stdout.split()), about):
        assert f"the best of {n_tried} candidates: " in told
    assert " ←" in about
    progress = result.stderr.splitlines()
    assert {"check rows", "choose kernel", "choose alpha and solve"} <= {
        line.partition(":")[0] for line in progress
    }
    kernels = 4  # whose length scales are tuned
    assert len(progress) <= 12 + 3 * kernels


def test_length_scales_have_the_names_of_their_columns(folder):
    options = ("--kernel gaussian --length-scale 3,1,2", *PLAIN[-2:], "--alpha 1")
    fit = ("fit", folder / "data.zarr", "m", *options, "--n-components 64")
    assert "gaussian (length scale b 1, c 2, a 3), D = 64, alpha 1" in shown(*fit)


def test_a_result_takes_12_lines_and_the_rest_comes_by_details(folder):
    data = os.path.relpath(folder / "data.zarr")
    words = ["fit", data, "m", *PLAIN, "--serial --n-components 64"]
    words += ["--n-folds", "3", "--test", data]
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    short = result.stdout
    assert len(short.splitlines()) <= 12
    assert max(map(len, short.splitlines())) <= 80
    for word in ("wrote m\n", "test ", "cross-validation ", "info m --details"):
        assert word in short
    assert re.search(r"model +gaussian \(length scale \d.*D = 64, alpha", short)
    full = run(*words, "--overwrite --details").stdout
    for word in ("kernel ", "solver ", "digest ", "ran on ", "by part "):
        assert word not in short
        assert word in full
    assert "info m --details" not in full
    stored = run("info", "m").stdout
    assert len(stored.splitlines()) <= 14
    assert "digest " not in stored
    assert "digest " in run("info", "m", "--details").stdout


def test_a_model_without_an_estimate_is_described_all_the_same(folder):
    model = read_model(folder / "model")
    write_model(
        replace(model, card={k: v for k, v in model.card.items() if k != "estimate"}),
        "m",
    )
    assert document("info", "m")["estimate"] is None
    assert "cross-validation  " not in run("info", "m").stdout
