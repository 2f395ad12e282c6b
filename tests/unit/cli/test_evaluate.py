"""`rff-dist evaluate`: errors and deviations."""

import numpy as np
import pandas as pd
import pytest

from rff_dist import load_model, open_dataset
from rff_dist.data.blocks import Block
from tests.command_line import PLAIN, document, refusal, run


def test_evaluate_std_judges_the_standard_deviations(folder):
    arguments = ("evaluate", folder / "model", folder / "data.zarr", "--serial")
    [plain], [target] = (
        document(*arguments, *more)["targets"] for more in ((), ("--std",))
    )
    assert {key: target[key] for key in plain} == plain
    y = open_dataset(folder / "data.zarr").read(Block(0, 0, 300)).y[:, 0]
    assert target["z_nlpd"] == pytest.approx(target["nlpd"] - np.log(y.std()), rel=1e-9)
    shown = run(*arguments, "--std").stdout
    assert f"{target['nlpd']:.4g}" in shown
    assert f"{target['coverage']['0.95']:.1%}" in shown
    assert "normal distribution" in shown
    assert "--coverage" in shown


def test_a_table_is_evaluated_by_the_models_recipe(tmp_path):
    rng = np.random.default_rng(3)
    kind = rng.choice(["a", "b"], 400)
    size = rng.uniform(0, 3, 400)
    price = size + (kind == "a") + 0.1 * rng.standard_normal(400)
    lines = [
        ",".join(map(str, row))
        for row in zip(kind, size, price, price > 2, strict=True)
    ]
    for name, part in (("old", lines[:300]), ("new", lines[300:])):
        (tmp_path / f"{name}.csv").write_text(
            "\n".join(["kind,size,price,dear", *part])
        )
    (tmp_path / "gaps.csv").write_text(
        "\n".join(["kind,size,price,dear", *lines[300:], "a,1.0,,"])
    )
    for target, drop, words in (
        ("price", "dear", []),
        ("dear", "price", ["--classify"]),
    ):
        data = tmp_path / f"{target}.zarr"
        document("ingest", "old.csv", data, "--targets", target, "--drop", drop)
        fit = [
            "fit",
            data,
            tmp_path / target,
            *PLAIN,
            "--n-components",
            32,
            "--alpha",
            1,
            "--serial",
            *words,
        ]
        assert run(*fit).exit_code == 0
    found = document("evaluate", "price", "new.csv", "--serial")
    predicted = load_model("price").predict(pd.read_csv("new.csv"))
    rmse = np.sqrt(np.square(predicted - price[300:]).mean())
    np.testing.assert_allclose(found["targets"][0]["rmse"], rmse, rtol=1e-9)
    assert found["n_samples"] == 100
    found = document("evaluate", "dear", "new.csv", "--serial")
    labels = load_model("dear").predict(pd.read_csv("new.csv"))
    assert found["accuracy"] == pytest.approx((labels == (price[300:] > 2)).mean())
    gaps = run("evaluate", "price", "gaps.csv", "--serial")
    assert gaps.exit_code == 0
    assert "1 of 101 rows dropped" in gaps.stderr
    assert "no column 'cost'" in refusal(
        2, "evaluate", "price", "new.csv", "--serial --y cost"
    )
    words = ["evaluate", "price", "new.csv", "--scheduler tls://far:8786"]
    assert "Ingest the table first" in refusal(2, *words)
