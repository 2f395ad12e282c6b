import json
import logging
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rff_dist import (
    Gaussian,
    HashFolds,
    Laplacian,
    Matern,
    RFFRidge,
    load_model,
    save_model,
)
from rff_dist.errors import IntegrityError, InvalidParameterError
from rff_dist.fitting import parameters
from rff_dist.frequencies.designs import Orthogonal
from rff_dist.storage.records import read_record, write_record
from tests.plain import plain_ridge
from tests.refusals import refuses


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)) + 4.0
    return X, np.sin(X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=200)


@pytest.fixture(scope="module")
def fitted(rows):
    return plain_ridge().fit(*rows)


@pytest.fixture
def url(fitted, tmp_path):
    save_model(fitted, "model")
    return tmp_path / "model"


def edit_metadata(url, change):
    """Store a record again with other metadata and matching digests."""
    record = read_record(url)
    change(record.metadata)
    write_record(
        url,
        kind=record.kind,
        metadata=record.metadata,
        arrays=record.arrays,
        overwrite=True,
    )


# -- there and back
# ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by cv, but it is the smallest")
@pytest.mark.parametrize(
    ("n_targets", "parameters"),
    [
        (None, {}),
        (1, {"alpha": 0.3}),
        (2, {"n_components": 33}),
        (None, {"kernel": Laplacian(2.0), "design": "iid"}),
        (1, {"kernel": Matern((1.0, 2.0, 3.0), nu=2.5)}),
        (2, {"kernel": "matern", "length_scale": 2.0, "design": Orthogonal()}),
        (None, {"standardize": False}),
        (1, {"standardize": "rank"}),
        (1, {"fit_intercept": False}),
        (2, {"alpha": [0.1, 1.0]}),
        (None, {"precision": "high"}),
        (None, {"design": "quasi-monte-carlo"}),
        (2, {"features": "nystrom"}),
        (None, {"cv": HashFolds(3, seed=2)}),
    ],
    ids=str,
)
def test_a_stored_model_comes_back_with_the_same_bits_and_fits_again_to_them(
    rows, parameters, n_targets, caplog
):
    X, y = rows
    Y = y if n_targets is None else np.column_stack([y, -2 * y + 1][:n_targets])
    model = plain_ridge(**{"n_components": 32, "random_state": 0, **parameters}).fit(
        X, Y
    )
    save_model(model, "model")
    caplog.clear()
    loaded = load_model("model")
    assert not caplog.records
    assert_array_equal(loaded.predict(X), model.predict(X))
    assert_array_equal(loaded.feature_coef_, model.feature_coef_)
    assert_array_equal(loaded.feature_intercept_, model.feature_intercept_)
    assert np.shape(loaded.feature_coef_) == np.shape(model.feature_coef_)
    assert loaded.alpha_ == model.alpha_
    assert loaded.length_scale_ == model.length_scale_
    assert loaded.statistics_ == model.statistics_
    assert loaded.selection_.keys() == model.selection_.keys()
    for name in model.selection_:
        assert_array_equal(loaded.selection_[name], model.selection_[name])
    assert loaded.feature_map_.digest() == model.feature_map_.digest()
    assert loaded.feature_map_.spec == model.feature_map_.spec
    assert loaded.model_.digest() == model.model_.digest()
    assert {**loaded.model_.card, "parameters": None} == {
        **model.model_.card,
        "parameters": None,
    }
    assert loaded.n_features_in_ == 3
    assert loaded.mapped_columns_ == model.mapped_columns_
    assert repr(loaded.get_params()) == repr(model.get_params())
    again = clone(loaded).fit(X, Y)
    assert again.feature_map_.digest() == model.feature_map_.digest()
    assert_array_equal(again.feature_coef_, model.feature_coef_)


def test_a_models_digest_changes_with_anything_that_predictions_depend_on(fitted, rows):
    X, y = rows
    others = [
        fitted,
        plain_ridge(random_state=1).fit(X, y),
        plain_ridge().fit(X * 2.0, y),
        plain_ridge().fit(X, y + 1.0),
        plain_ridge(alpha=3.0).fit(X, y),
    ]
    assert len({model.model_.digest() for model in others}) == 5


# -- what is not there, or not a model
# -----------------------------------------------------------------


def test_only_fitted_ridge_models_are_stored(tmp_path):
    with refuses(NotFittedError, "not fitted"):
        save_model(RFFRidge(), "model")
    with refuses(InvalidParameterError, "RFFRidge"):
        save_model(Gaussian(1.0), "model")
    with refuses(NotFittedError, "not fitted"):
        save_model(make_pipeline(StandardScaler(), RFFRidge()), "model")
    other = make_pipeline(StandardScaler(), Ridge()).fit(np.eye(3), np.ones(3))
    with refuses(
        InvalidParameterError, "cannot store a Ridge", "Pipeline that ends with one"
    ):
        save_model(other, "model")
    assert not (tmp_path / "model").exists()


# -- damage
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["alpha", "feature_map", "card", "one_dimensional"])
def test_a_record_that_lacks_a_field_is_named(url, name):
    edit_metadata(url, lambda metadata: metadata.pop(name))
    with refuses(IntegrityError, f"lacks '{name}'"):
        load_model(url)


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.update(digest="0" * 64),
        lambda values: values["spec"].update(seed=1),
        lambda values: values["spec"]["kernel"].update(length_scale=123.0),
        lambda values: values["spec"].update(design="a design of a later release"),
    ],
    ids=["another digest", "another seed", "another kernel", "an unknown design"],
)
def test_a_spec_that_draws_other_frequencies_gives_way_to_the_stored_ones(
    fitted, url, rows, caplog, change
):
    edit_metadata(url, lambda metadata: change(metadata["feature_map"]))
    with caplog.at_level(logging.WARNING, logger="rff_dist"):
        loaded = load_model(url)
    assert "using the stored features" in caplog.text
    assert loaded.feature_map_.spec is None
    assert_array_equal(loaded.predict(rows[0]), fitted.predict(rows[0]))
    with refuses(InvalidParameterError, "knows no length scale"):
        _ = loaded.length_scale_


def test_parameters_in_lists_and_mappings_come_back_from_a_card():
    values = {
        "kernels": [Gaussian(2.0), [Laplacian(1.0), None]],
        "weights": {"a": Fraction(1, 2), "b": Matern()},
        "left_out": {"a": 1, "b": [object()]},
    }
    card = json.loads(json.dumps({"parameters": parameters.to_card(values)}))
    known = parameters.from_card(card, values)
    assert known == {
        "kernels": [Gaussian(2.0), [Laplacian(1.0), None]],
        "weights": {"a": 0.5, "b": Matern()},
    }
