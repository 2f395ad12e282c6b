"""What a fitted estimator shows: attributes, repr, box, summary and page; the progress
and log of a fit.
"""

import pickle
import re

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rff_dist import (
    RFFPCA,
    Gaussian,
    KernelKMeans,
    Linear,
    RFFKMeans,
    RFFRidge,
    RFFSampler,
    SerialEngine,
)
from rff_dist.estimators.base import MANUAL_VARIABLE
from rff_dist.estimators.panel import kernel_facts
from tests.plain import plain_classifier, plain_ridge

ALL = [
    plain_ridge(alpha="cv"),
    plain_classifier(alpha="cv"),
    RFFKMeans(3, length_scale="median", n_components=32, random_state=0),
    RFFPCA(2, n_random_features=32, random_state=0),
    KernelKMeans(3, random_state=0),
    RFFSampler(n_components=32, random_state=0),
]


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(-2, 2, (240, 3)), columns=["height", "width", "age"])
    return X, np.sin(2 * X["height"]) + 0.05 * rng.standard_normal(240)


@pytest.fixture(scope="module")
def tuned(frame):
    X, y = frame
    return RFFRidge(n_components=64, features="fourier", random_state=0).fit(
        X[:160], y[:160]
    )


def fitted(estimator, frame, **parameters):
    X, y = frame
    return (
        clone(estimator)
        .set_params(**parameters)
        .fit(X, y > 0 if hasattr(estimator, "loss") else y)
    )


# -- the choice
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ALL, ids=lambda one: type(one).__name__)
def test_the_panel_is_in_repr_box_and_summary_of_a_fitted_estimator_only(
    frame, estimator
):
    assert "Chosen" not in repr(estimator) + estimator._repr_html_()
    with pytest.raises(NotFittedError):
        estimator.summary()
    found = fitted(estimator, frame)
    first, *panel = repr(found).splitlines()
    assert first == repr(estimator).splitlines()[0]
    assert panel[0] == "Chosen"
    assert found.summary().splitlines()[1 : 1 + len(panel)] == panel
    facts = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in panel[1:])
    assert facts["kernel"] == "gaussian"
    assert float(facts["seconds"]) > 0
    box = found._repr_html_()
    for name, value in facts.items():
        assert re.search(f">{name}</th><td[^>]*>{re.escape(value)}</td>", box)
    assert repr(pickle.loads(pickle.dumps(found))) == repr(found)
    assert repr(clone(found)) == repr(estimator)
    assert found.get_params() == estimator.get_params()


def test_a_chosen_model_tells_what_it_was_chosen_by(frame, tuned):
    lines = dict(
        re.split(r"\s{2,}", line.strip(), maxsplit=1)
        for line in repr(tuned).splitlines()[2:]
    )
    assert tuned.kernel_ == tuned.feature_map_.spec.kernel
    assert tuned.features_ == "fourier"
    scales = tuned.kernel_.length_scale
    shown = re.findall(r"(\w+) ([\d.,e+]+)(?:, |$)", lines["length scale"])
    assert shown[0][0] == "height"
    expected = sorted(zip(scales, tuned.feature_names_in_, strict=True))
    assert [name for name, _ in shown] == [name for _, name in expected]
    assert float(shown[0][1]) == pytest.approx(expected[0][0], rel=1e-3)
    assert f"R² {tuned.estimate_['r2'][0]:.4g}" in lines["cross-validation"]
    first = [one for one in tuned.selection_["candidates"] if one["round"] == "first"]
    assert lines["candidates tried"] == str(len(first))
    assert float(lines["alpha"]) == pytest.approx(tuned.alpha_, rel=1e-3)
    assert lines["rows"] == "160"
    assert "Best candidates" in tuned.summary()


def test_each_part_of_a_sum_has_its_length_scales():
    kernel = Gaussian((2.0, 1.0)).on([2, 0]) + 0.5 * Gaussian(3.0) + Linear()
    facts = kernel_facts(kernel, ["a", "b", "c"])
    assert facts["length scale"] == "gaussian: a 1, c 2; gaussian: 3"


def test_rows_that_were_added_are_solved_neither_by_repr_nor_with_an_old_error(frame):
    X, y = frame
    model = plain_ridge(n_components=16, alpha="cv").fit(X, y)
    seconds = model._times.seconds["total"]
    assert model.partial_fit(X, y)._times.seconds["total"] > seconds
    assert model._pending is not None
    assert "Chosen" in repr(model)
    assert model._pending is not None
    assert model.model_.card["n_samples"] == 480
    assert "cross-validation" not in repr(model)


def test_parameters_are_printed_as_scikit_learn_is_configured_to(frame):
    model = fitted(ALL[0], frame)
    with sklearn.config_context(print_changed_only=False):
        assert "fit_intercept=True" in repr(model)
    assert "fit_intercept" not in repr(model)
    pipeline = make_pipeline(StandardScaler(), model)
    assert "Chosen" not in repr(pipeline)
    with sklearn.config_context(display="text"):
        assert not hasattr(model, "_repr_html_")


def test_the_box_links_to_the_manual_if_the_environment_says_where_it_is(
    frame, monkeypatch
):
    model = fitted(ALL[0], frame)
    monkeypatch.delenv(MANUAL_VARIABLE, raising=False)
    assert model._get_doc_link() == ""
    monkeypatch.setenv(MANUAL_VARIABLE, "https://manual.example/")
    address = "https://manual.example/reference/estimators/RFFRidge.html"
    assert model._get_doc_link() == address
    assert address in model._repr_html_()


# -- progress and log
# ----------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ALL, ids=lambda one: type(one).__name__)
def test_a_fit_is_silent_unless_it_is_to_be_verbose(frame, estimator, capsys):
    quiet = fitted(estimator, frame)
    assert capsys.readouterr() == ("", "")
    shown = fitted(estimator, frame, verbose=1)
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) > 1
    assert re.search(
        rf"^{type(estimator).__name__}: fitted in [\d.]+ s$", err.splitlines()[-1]
    )
    for name in ("feature_coef_", "labels_", "feature_components_", "length_scale_"):
        if hasattr(quiet, name):
            np.testing.assert_array_equal(getattr(quiet, name), getattr(shown, name))


def test_an_engine_that_was_given_is_left_as_it_was(frame):
    engine = SerialEngine(1, observers=[print])
    fitted(plain_ridge(n_components=16, alpha=1.0), frame, engine=engine, verbose=1)
    assert engine.observers == (print,)
