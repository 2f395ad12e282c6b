"""Scores as features: against the projection that writes them, and in k-means against spectral clustering."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from rff_dist import Gaussian, SerialEngine
from rff_dist.data.memory import ArrayDataset
from rff_dist.features.feature_options import FeatureOptions
from rff_dist.fitting.predicting import rows_in_memory
from rff_dist.pca import fit as pca
from rff_dist.pca.components import project_rows

X = np.random.default_rng(0).normal([5.0, 0.0, -2.0], size=(1_000, 3))
ENGINE = SerialEngine(1)


@pytest.fixture(
    scope="module",
    params=[
        {},
        {"map": "phases", "n_components": 65},
        {"features": "nystrom"},
        {"features": "nystrom", "normalize": "degree"},
    ],
    ids=["pairs", "phases", "Nyström", "Nyström by degree"],
)
def found(request):
    parameters = {"n_components": 64, "standardize": True, **request.param}
    normalize = parameters.pop("normalize", None)
    options = FeatureOptions(kernel=Gaussian(1.5), length_scale=None, **parameters)
    return pca.fit_components(ArrayDataset(X), options, n_components=5, normalize=normalize, engine=ENGINE)


def test_features_are_the_scores_that_a_pass_writes(found):
    features = found.features()
    expected = rows_in_memory(
        ArrayDataset(X), project_rows, found.projection(), engine=ENGINE, label="project"
    )
    assert features.n_components == 5
    assert_allclose(features.transform(X), expected, rtol=0, atol=1e-12 * np.abs(expected).max())
