"""What people write about a model: kept with it, and written as a model card."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from rff_dist import load_model, write_dataset
from rff_dist.text import score_words
from tests.command_line import PLAIN, document, refusal

TEXTS = """
intended_use = "Sums of *two* numbers"
limits = "Not for three"
data = '''
Drawn
by NumPy'''
"""


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name, n_samples in (("data", 300), ("test", 100)):
        X = rng.standard_normal((n_samples, 2))
        write_dataset(
            tmp_path / name,
            X,
            X.sum(axis=1) + rng.standard_normal(n_samples),
            versioned=True,
        )
    (tmp_path / "card.toml").write_text(TEXTS)
    return tmp_path


def fit(*flags):
    plain = "--kernel linear --alpha 1 --serial --card card.toml"
    return document("fit", "data", "models/sums", plain, *flags)


def card_of(model):
    """Export a model, and return the YAML and the Markdown of its card."""
    document("export", model, "out")
    before, header, text = Path("out/README.md").read_text("utf-8").split("---\n", 2)
    assert before == ""
    return yaml.safe_load(header), text


def test_an_exported_model_has_a_card_with_its_texts_and_its_errors(folder):
    found = fit("--test", "test", "--register")
    header, text = card_of("models/sums")
    assert header["library_name"] == "rff_dist"
    assert header["pipeline_tag"] == "tabular-regression"
    sections = dict(part.split("\n\n", 1) for part in text.split("\n## ")[1:])
    assert sections["Intended use"].strip() == r"Sums of \*two\* numbers"
    assert sections["Training data"].strip() == "Drawn\nby NumPy"
    made = sections["Evaluation and making"] + sections["Details"]
    assert found["digest"][:16] in made
    errors = (found["metrics"][name][0] for name in ("rmse", "rmse_standard_error"))
    assert score_words("rmse", *errors) in made


def test_the_card_has_standard_errors_and_the_errors_of_each_group(folder):
    rng = np.random.default_rng(3)
    for name, n_samples in (("train.csv", 400), ("exam.csv", 300)):
        X = rng.standard_normal((n_samples, 2))
        region = rng.integers(0, 4, n_samples)
        y = X.sum(axis=1) + rng.standard_normal(n_samples) * (1 + region)
        rows = [
            f"{a},{b},{'NESW'[at]},{value}"
            for (a, b), at, value in zip(X, region, y, strict=True)
        ]
        (folder / name).write_text("\n".join(["a,b,region,y", *rows]))
        document("ingest", name, name[:-4], "--targets y --groups region")
    words = "--groups groups --n-folds 2 --test exam --serial --alpha 1"
    document("fit", "train", "m", words, *PLAIN)
    metrics = document("info", "m")["card"]["metrics"]
    test = pd.read_csv("exam.csv")
    errors = test["y"] - load_model("m").predict(test[["a", "b"]])
    assert metrics["groups"].keys() == {*"NESW"}
    for region, found in metrics["groups"].items():
        own = errors[test["region"] == region] ** 2
        assert found["n_samples"] == len(own)
        assert found["rmse"] == pytest.approx([np.sqrt(own.mean())])
        expected = own.std(ddof=1) / np.sqrt(len(own)) / (2 * np.sqrt(own.mean()))
        assert found["rmse_standard_error"] == pytest.approx([expected])
    _, text = card_of("m")
    for one in (metrics, *metrics["groups"].values()):
        assert (
            score_words("rmse", one["rmse"][0], one["rmse_standard_error"][0]) in text
        )


def test_classifiers_have_a_task_and_models_without_texts_say_so(folder):
    X = np.random.default_rng(2).standard_normal((300, 2))
    write_dataset(folder / "classes", X, (X[:, 0] > 0).astype(int))
    flags = "--kernel linear --n-folds 3 --classify --serial"
    document("fit", "classes", "m", flags)
    header, text = card_of("m")
    assert header["pipeline_tag"] == "tabular-classification"
    assert text.count("Nothing was written about it.") == 3


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "gone.toml"),
        ("use = 'all'", "'use'"),
        ("limits = 3", "'limits'"),
        ("", "nothing"),
        ("=", "TOML"),
    ],
)
def test_a_file_of_other_things_is_refused_before_any_work(folder, text, named):
    place = folder / ("gone.toml" if text is None else "other.toml")
    if text is not None:
        place.write_text(text)
    words = ["fit", "data", "m", "--card", place.name]
    message = refusal(2, *words)
    assert "--card" in message
    assert named in message
    assert not (folder / "m").exists()
