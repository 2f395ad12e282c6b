import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import pdist
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

from rff_dist import Gaussian, RFFSampler
from tests.plain import plain_ridge


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).normal(size=(200, 3))


def test_the_length_scale_is_the_median_distance_by_default(X):
    # up to 1,000 rows: all of them
    automatic = RFFSampler(n_components=64, random_state=0).fit(X)
    assert automatic.length_scale_ == pytest.approx(np.median(pdist(X)), rel=1e-12)


def test_inputs_are_not_standardised(X):
    one = RFFSampler(Gaussian(1.0), n_components=64, random_state=0).fit_transform(X)
    ten = RFFSampler(Gaussian(10.0), n_components=64, random_state=0).fit_transform(
        10 * X
    )
    assert_allclose(one, ten, atol=1e-4)


def test_it_makes_the_features_that_ridge_uses(X):
    y = X[:, 0]
    sampler = RFFSampler(Gaussian(2.0), n_components=64, random_state=0)
    explicit = make_pipeline(sampler, Ridge(alpha=0.1)).fit(X, y)
    ours = plain_ridge(
        Gaussian(2.0), n_components=64, alpha=0.1, standardize=False
    ).fit(X, y)
    assert_allclose(ours.predict(X), explicit.predict(X), rtol=0, atol=1e-9)


def test_output_follows_the_inputs_precision(X):
    sampler = RFFSampler(n_components=32, random_state=0).fit(X)
    wide = sampler.transform(X)
    narrow = sampler.transform(X.astype(np.float32))
    assert (wide.dtype, narrow.dtype) == (np.float64, np.float32)
    assert_allclose(narrow, wide, atol=1e-6)


def test_pandas_output_names_its_columns(X):
    sampler = RFFSampler(n_components=3, random_state=0).set_output(transform="pandas")
    frame = sampler.fit_transform(pd.DataFrame(X, columns=list("abc")))
    assert list(frame.columns) == ["rffsampler0", "rffsampler1", "rffsampler2"]
