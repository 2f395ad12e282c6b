"""`rff-dist auto` on tables as people have them: a model better than the linear one, or
one clear sentence.

The targets are smooth functions that no linear model fits, with noise of a tenth of
their deviation."""

import numpy as np
import pandas as pd
import pytest

from tests.command_line import document, refusal, run

N = 700


def make_frame(n=N, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({name: rng.uniform(-2, 2, n) for name in "abc"})
    frame["y"] = np.sin(2 * frame["a"]) + frame["b"] ** 2 + 0.1 * rng.standard_normal(n)
    return frame


def auto(tmp_path, source, *options):
    given = [
        "--target",
        "y",
        "--into",
        tmp_path / "made",
        "--serial",
        "--n-components",
        128,
    ]
    return document("auto", source, *given, *options)


def assert_better_than_linear(found):
    scores = found["comparison"]["scores"]
    name = "rmse" if found["task"] == "regression" else "log_loss"
    ours, linear = (np.ravel(scores[one][name])[0] for one in ("this model", "linear"))
    assert ours < 0.9 * linear
    assert found["comparison"]["differences"]["linear"]["relation"] == "better"
    assert "better than a tuned linear model" in found["comparison"]["verdict"]
    assert found["version"] == 1


def write_mixture(frame, path):
    rng = np.random.default_rng(1)
    frame["town"] = rng.choice(["Ulm", "Bonn", "Rom"], len(frame))
    frame["when"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(
        rng.integers(0, 365, len(frame)), "D"
    )
    frame["y"] += (frame["town"] == "Ulm") + np.sin(frame["when"].dt.day_of_year / 58)
    for name in ("c", "town", "when"):
        frame.loc[rng.random(len(frame)) < 0.1, name] = None
    frame.loc[:4, "y"] = np.nan
    frame.to_csv(path / "t.csv", index=False)
    return path / "t.csv", {"dropped": 5}


def write_booleans(frame, path):
    frame["flag"] = pd.array(np.arange(len(frame)) % 3 == 0, "boolean")
    frame.loc[3, "flag"] = pd.NA
    frame["y"] = (frame["y"] > frame["y"].median()).astype(bool)
    frame.to_parquet(path / "t.parquet")
    return path / "t.parquet", {"task": "classification"}


@pytest.mark.parametrize("write", [write_mixture, write_booleans])
def test_auto_is_better_than_a_linear_model(tmp_path, write):
    source, about = write(make_frame(), tmp_path)
    found = auto(tmp_path, source, "--effort", 1)
    assert found["task"] == about.get("task", "regression")
    assert found["dropped_rows"] == about.get("dropped", 0)
    assert_better_than_linear(found)
    again = document(
        "predict", tmp_path / "made" / "model", source, tmp_path / "p.csv", "--serial"
    )
    written = pd.read_csv(tmp_path / "p.csv")
    assert len(written) == again["n_samples"]
    assert written.columns[-1] == ("label" if "task" in about else "prediction")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            ["same"] * N,
            "'y' is same in all rows to train on, so there is nothing to predict",
        ),
        ([f"v{i}" for i in range(N)], "almost no text of the target 'y' comes twice"),
        (pd.date_range("2024-01-01", periods=N), "the target 'y' is a date"),
    ],
)
def test_targets_that_cannot_be_learned_end_with_one_sentence(
    tmp_path, values, message
):
    make_frame().assign(y=values).to_csv(tmp_path / "t.csv", index=False)
    given = ["--target", "y", "--into", tmp_path / "made", "--serial"]
    assert message in refusal(65, "auto", tmp_path / "t.csv", *given)
    assert not (tmp_path / "made").exists()


@pytest.mark.slow
def test_noise_is_called_so_and_what_is_there_is_kept(tmp_path):
    rng = np.random.default_rng(0)
    make_frame().assign(y=rng.standard_normal(N)).to_csv(
        tmp_path / "t.csv", index=False
    )
    given = [
        "auto",
        tmp_path / "t.csv",
        "--target",
        "y",
        "--into",
        tmp_path / "made",
        "--serial",
    ]
    shown = run(*given, "--n-components", 64, "--report", tmp_path / "page.html").stdout
    assert "No signal was found" in shown
    assert "next: rff-dist predict" in shown
    assert "<html" in (tmp_path / "page.html").read_text()
    again = document(*given, "--n-components", 64, "--overwrite")
    assert again["version"] == 2
    assert "did you mean 'a'" in refusal(
        2, "auto", tmp_path / "t.csv", "--target aa --into", tmp_path / "b"
    )


@pytest.mark.slow
def test_a_million_rows(tmp_path):
    frame = make_frame(10**6)
    frame["town"] = np.char.add("town ", (np.arange(10**6) % 50).astype(str))
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = auto(tmp_path, tmp_path / "t.csv")
    assert found["n_train"] + found["n_test"] == 10**6
    assert found["comparison"]["n_rows"] == 20_000
    assert found["comparison"]["differences"].keys() >= {"linear", "boosted trees"}
    assert_better_than_linear(found)
