"""`rff-dist fit`: its options, and what it stores and tells."""

from dataclasses import replace

import numpy as np
import pytest

from rff_dist import Gaussian, SerialEngine, open_dataset, write_dataset
from rff_dist.fitting.options import RidgeOptions
from rff_dist.ridge import fit as ridge
from rff_dist.ridge.models import read_model, write_model
from tests.command_line import PLAIN, document, run, shown


def test_stored_weights_that_a_fit_leaves_out_are_one_line_on_standard_error(tmp_path):
    X = np.random.default_rng(0).standard_normal((40, 2))
    write_dataset(tmp_path / "data", X, X[:, 0], sample_weight=np.ones(40))
    arguments = ["fit", tmp_path / "data", tmp_path / "model", *PLAIN, "--serial", "--n-components", "8"]
    result = run(*arguments)
    [warning] = [line for line in result.stderr.splitlines() if "holds sample weights" in line]
    assert warning.startswith(f"warning: {tmp_path / 'data'} holds sample weights")
    assert "--sample-weight sample_weight" in warning
    assert "sample weights" not in run(*arguments, "--sample-weight", "sample_weight", "--overwrite").stderr


@pytest.mark.filterwarnings("ignore:.*do not tell it from")
def test_length_scales_by_evidence_are_told_and_stored(folder, tmp_path):
    given = ("--kernel", "gaussian", "--length-scale", "evidence", "--features", "fourier")
    fit = ("fit", folder / "data.zarr", tmp_path / "model", "--serial", *given, "--n-components", "64")
    found = document(*fit, "--seed", "5")
    stored = read_model(tmp_path / "model")
    assert found["kernel"] == stored.feature_map.spec.kernel.to_dict()
    tuned = stored.feature_map.spec.kernel.length_scale
    assert len(tuned) == 3
    about = shown("info", tmp_path / "model")
    assert f"length scale {', '.join(f'{width:.4g}' for width in tuned)}" in about
    assert "excluding rows used for tuning" in about


def test_a_fit_without_options_is_that_of_the_library_and_says_what_it_chose(folder, tmp_path):
    small = ("--n-components", "48", "--n-folds", "3", "--serial")
    result = run("fit", folder / "data.zarr", tmp_path / "model", *small)
    assert result.exit_code == 0, result.stderr
    expected = ridge.fit(
        open_dataset(folder / "data.zarr"), RidgeOptions(n_components=48, cv=3), engine=SerialEngine()
    ).model
    found = document("info", tmp_path / "model")
    assert found["digest"] == expected.digest()
    assert found["card"]["candidates"] == expected.card["candidates"]
    n_tried = sum(row["round"] == "first" for row in expected.card["candidates"])
    about = shown("info", tmp_path / "model")
    for told in (" ".join(result.stdout.split()), about):
        assert f"the best of {n_tried} candidates: " in told
    assert " ←" in about
    progress = result.stderr.splitlines()
    assert {"inspect", "choose", "solve"} <= {line.partition(":")[0] for line in progress}
    kernels = 4  # whose length scales are tuned
    assert len(progress) <= 12 + 3 * kernels


def test_a_model_without_an_estimate_is_described_all_the_same(folder, tmp_path):
    model = read_model(folder / "model")
    write_model(replace(model, card={k: v for k, v in model.card.items() if k != "estimate"}), tmp_path / "m")
    assert document("info", tmp_path / "m")["estimate"] is None
    assert "cross-validation  " not in run("info", tmp_path / "m").stdout


def test_nystrom_features_are_told_stored_and_described(folder, tmp_path):
    words = "--serial --n-components 33 --kernel gaussian --length-scale 2 --features nystrom:rpcholesky"
    found = document("fit", folder / "data.zarr", tmp_path / "model", *words.split())
    model = read_model(tmp_path / "model")
    assert found["digest"] == model.digest()
    assert (found["features"], found["n_components"]) == ("nystrom", 33)
    assert found["kernel"] == Gaussian(2.0).to_dict()
    assert found["jitter"] == model.feature_map.jitter == 1e-5
    about = shown("info", tmp_path / "model")
    assert "nystrom, jitter 1e-05" in about
    assert "gaussian" in about
    size = ("plan", folder / "data.zarr", "--n-components", "1000", "--features")
    more, plain = (document(*size, kind)["client_bytes"] for kind in ("nystrom", "fourier"))
    assert more == plain + 8 * 1000**2
