"""Every public noun prints as a few lines, however many rows, columns and features it
has.
"""

import inspect

import numpy as np
import pytest

import rff_dist
from rff_dist import (
    RFFPCA,
    FeatureMap,
    Gaussian,
    KernelKMeans,
    RFFKMeans,
    RFFSampler,
    SerialEngine,
    draw_feature_map,
)
from rff_dist.features.kinds import _CLASSES
from tests.plain import plain_classifier, plain_ridge

KERNELS = [
    "gaussian",
    "linear",
    "min:lower=0,upper=1",
    "polynomial",
    "gaussian + 0.5 * linear",
]


def nouns():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(200, 40))
    y = np.sin(3 * X[:, 0]) + X[:, 1]
    ridge = plain_ridge(Gaussian(np.linspace(1, 5, 40)), n_components=64).fit(X, y)
    classifier = plain_classifier(n_components=64).fit(X, y > 1)
    clusters = RFFKMeans(3, n_components=64, random_state=0).fit(X)
    components = RFFPCA(2, n_random_features=64, random_state=0).fit(X)
    sampler = RFFSampler(n_components=64, random_state=0).fit(X)
    for one in (
        ridge,
        classifier,
        clusters,
        components,
        sampler,
        KernelKMeans(3, random_state=0).fit(X),
    ):
        yield f"{type(one).__name__} object", one
        for name, value in inspect.getmembers(one):
            public = name.endswith("_") and not name.startswith("_")
            if public and not isinstance(value, np.ndarray | dict):
                yield f"{type(one).__name__}.{name}", value
    for value in (
        ridge.model_.linear,
        ridge.model_.predictive,
        ridge.model_.columns,
        SerialEngine(2),
    ):
        yield type(value).__name__, value
    yield (
        "search",
        rff_dist.tune_kernels(
            X, y, length_scales=["1x"], n_components=32, random_state=0
        )[1],
    )
    yield (
        "tuned",
        rff_dist.tune_length_scales("gaussian", X, y, n_components=32, n_starts=1),
    )
    yield "error", rff_dist.approximation_error("gaussian", sampler.feature_map_, X)
    for kernel in KERNELS:
        yield kernel, draw_feature_map(kernel, n_features=40, n_components=1_024)


def test_a_noun_prints_as_a_few_lines():
    texts = {name: repr(noun) for name, noun in nouns()}
    most = {name: 14 if name.endswith("object") else 3 for name in texts}
    assert {
        name: text
        for name, text in texts.items()
        if len(text.splitlines()) > most[name]
    } == {}
    assert {name: text for name, text in texts.items() if len(text) > 1000} == {}


@pytest.mark.parametrize("kind", _CLASSES.values())
def test_kinds_of_feature_maps_share_one_repr(kind):
    assert kind.__repr__ is FeatureMap.__repr__
