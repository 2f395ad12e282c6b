"""A real table and its page: the notebook's numbers are right."""

import re

import pytest
from sklearn.datasets import load_diabetes
from sklearn.metrics import r2_score, root_mean_squared_error

from tests.notebooks import NotebookContract, printed

pytestmark = pytest.mark.documents

PROBE = """{
    "predictions": {name: found.tolist() for name, found in predictions.items()},
    "errors": {name: found.tolist() for name, found in errors.items()},
    "test": [model.predict(X_test).tolist(), y_test.tolist()],
    "page": page,
}"""


class TestNotebook(NotebookContract):
    pass


def test_errors_are_those_of_scikit_learn_and_ours_is_the_linear_models_or_less(values):
    y = load_diabetes(return_X_y=True)[1]
    for name, (value, low, high) in values["errors"].items():
        assert value == pytest.approx(
            root_mean_squared_error(y, values["predictions"][name])
        )
        assert low < value < high
    ours, linear, trees, mean = (value for value, *_ in values["errors"].values())
    assert ours < 1.02 * linear  # the table is nearly linear
    assert ours < trees < mean


def test_the_verdicts_go_by_differences_of_the_same_rows(run):
    said = "".join(printed(cell) for cell in run.fresh.cells)
    verdicts = re.findall(
        r"^(.*\S) +squared error saved +(-?[\d.]+)% \((-?[\d.]+)% to (-?[\d.]+)%\):"
        r" (.*)$",
        said,
        re.M,
    )
    assert [name for name, *_ in verdicts] == [
        "linear model",
        "boosted trees",
        "the mean",
    ]
    for _, share, least, most, verdict in verdicts:
        assert float(least) < float(share) < float(most)
        assert verdict == ("better" if float(least) > 0 else "no clear difference")


def test_the_page_is_about_rows_that_were_held_out(values):
    predicted, observed = values["test"]
    assert f"{root_mean_squared_error(observed, predicted):.4g}" in values["page"]
    assert f"R² {r2_score(observed, predicted):.3f}" in values["page"]
    assert "111 test rows" in values["page"]
    assert "Planning of studies; not treatment of a person" in values["page"]
    assert len(values["page"]) < 1_000_000
