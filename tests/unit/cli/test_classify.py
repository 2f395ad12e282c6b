"""`rff-dist fit --classify`, and what `predict`, `evaluate` and `info` make of a
classifier.
"""

import numpy as np
import pytest
from sklearn import metrics

from rff_dist import open_dataset, write_dataset
from rff_dist.ridge.models import read_model, write_model
from rff_dist.storage.columns import open_column
from tests.command_line import PLAIN, document, run, shown
from tests.tables import all_rows


@pytest.mark.parametrize("loss", ["squared", "logistic", "squared_hinge"])
def test_a_classifier_is_judged_as_scikit_learn_judges_its_labels(labelled, loss):
    found = document("evaluate", labelled / loss, labelled / "data", "--serial")
    model = read_model(labelled / loss)
    rows = open_dataset(labelled / "data", y=None)
    Z = model.feature_map.transform(all_rows(rows).X, dtype=np.float64)
    scores = Z @ model.coefficients + model.intercept
    if (calibration := model.card["classifier"]["calibration"]) is not None:
        scores = calibration["slope"] * scores + np.array(calibration["intercepts"])
    classes = np.array(["far", "other", "same"])
    assert [row["label"] for row in found["classes"]] == classes.tolist()
    y = open_column(labelled / "data", "y").array[:].tolist()
    matrix = metrics.confusion_matrix(y, classes[scores.argmax(axis=1)])
    assert found["confusion_matrix"] == matrix.tolist()
    assert found["accuracy"] == pytest.approx(matrix.trace() / 400, rel=1e-12)
    assert (found["log_loss"] is None) == (loss == "squared_hinge")
    told = shown("evaluate", labelled / loss, labelled / "data", "--serial")
    assert f"accuracy {100 * found['accuracy']:.1f}% ± " in told


def test_of_a_classifier_only_accuracy_and_log_loss_are_estimated(labelled):
    model = read_model(labelled / "squared")
    for told in (
        {},
        {"accuracy": 0.9, "accuracy_standard_error": 0.01, "log_loss": 0.3},
    ):
        codes = {"by": "cv", "rmse": [0.5], "rmse_standard_error": [0.1], "r2": [0.7]}
        card = {
            "estimate": {**codes, **told},
            "folds": {"kind": "HashFolds", "n_folds": 5, "seed": 0},
        }
        write_model(model.with_card(**card), "m", overwrite=True)
        about = shown("info", "m")
        assert "RMSE" not in about
        assert document("info", "m")["estimate"] == (
            {"by": "cv", **told} if told else None
        )
    assert (
        "accuracy 90.0% ± 1.0%, log loss 0.300; 5 folds by a hash of the row" in about
    )


def test_a_label_that_is_no_class_is_refused(labelled):
    write_dataset("other", np.ones((4, 2)), np.array(["same", "far", "new", "far"]))
    result = run("evaluate", labelled / "squared", "other", "--serial")
    assert (result.exit_code, "not among the 3 classes" in result.stderr) == (65, True)


def test_alpha_of_a_logistic_loss_is_told_beside_ridges(labelled):
    fit = (
        "fit",
        labelled / "data",
        "m",
        *PLAIN,
        "--serial --n-components 32 --classify",
    )
    words = "--precision high --loss logistic --alpha cv --groups groups --plot"
    found = document(*fit, *words.split(), "p")
    ridge = found["classifier"]["ridge_alpha"]
    assert found["alpha"] < ridge
    table = document("info", "m")["cross_validation"]
    assert table == found["cross_validation"]
    # at the least error; ridge's alpha is the largest that is as good
    [width] = table["widths"]
    assert width["alpha"] <= ridge
    assert (
        width["score"]
        <= table["score"]
        <= width["score"] + 0.1 * width["standard_error"]
    )
    assert f"derived from ridge's {ridge:.4g}" in shown("info", "m", "--details")
