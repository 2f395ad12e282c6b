"""Models as ONNX graphs: ONNX Runtime says what the model says."""

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose

from rff_dist import load_model
from tests.command_line import document, refusal
from tests.unit.export.conftest import FEATURES, fit_classes

pytest.importorskip("onnx", reason="needs the extra onnx")

KINDS = {
    **FEATURES,
    "laplacian": ["--kernel", "laplacian", "--features", "nystrom"],
    "rational quadratic": ["--kernel", "rational_quadratic", "--features", "nystrom"],
    "product": ["--kernel", "gaussian * matern:nu=0.5", "--features", "nystrom"],
}


def compute(path, X):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(
        zip(names, session.run(None, {"X": np.asarray(X, np.float64)}), strict=True)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_predicts_what_the_model_does(fitted, tmp_path, kind):
    model = fitted(*KINDS[kind])
    document("export", model, tmp_path / "m.onnx")
    X = np.random.default_rng(1).standard_normal((70, 3)) * [1, 10, 100]
    expected = load_model(model).predict(X)
    found = compute(tmp_path / "m.onnx", X)["predictions"]
    # a cosine may round to the next of 16,256 steps where float32 angles differ in
    # their last bit
    assert_allclose(found, expected, atol=2e-3 * expected.std())
    # most rows have none of these; rounding down instead would be 5e-5 off
    assert np.median(np.abs(found - expected)) < 1e-6 * expected.std()


# these labels have no noise
@pytest.mark.filterwarnings("ignore:.*do not distinguish it from")
@pytest.mark.parametrize("labels", [["no", "yes"], ["a", "b", "c"], [3, 7]])
def test_the_graph_names_classes_with_their_probabilities(tmp_path, labels):
    X, place = fit_classes(tmp_path, labels)
    document("export", place, tmp_path / "m.onnx")
    model = load_model(place)
    found = compute(tmp_path / "m.onnx", X)
    assert_allclose(found["probabilities"], model.predict_proba(X), atol=2e-3)
    # rows on the border may fall to either side
    assert (found["labels"] == model.predict(X)).mean() > 0.99


def test_a_graph_is_replaced_on_demand_only(fitted, tmp_path):
    words = ["export", fitted(*FEATURES["pairs"]), tmp_path / "m.onnx"]
    document(*words)
    assert "overwrite" in refusal(73, *words)
    document(*words, "--overwrite")
