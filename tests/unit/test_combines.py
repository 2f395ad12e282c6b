"""The results of blocks are combined to the same bits in any order and grouping, in
every pass there is.
"""

import operator
import random

import numpy as np
import pytest

from rff_dist import (
    RFFPCA,
    Gaussian,
    Linear,
    RFFClassifier,
    RFFKMeans,
    RFFRidge,
    SerialEngine,
)
from rff_dist.data import blocks as cut
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.protocol import Broadcast
from rff_dist.numerics.machine import using_threads
from rff_dist.ridge.predict import calibrate, evaluate
from tests.bits import bits_of
from tests.plain import update_model


class AnyOrderEngine(SerialEngine):
    """Combines results by two random trees and in order, and looks whether they
    change.
    """

    def __init__(self):
        super().__init__(n_threads=1)
        self.labels = set()
        self._random = random.Random(0)

    def map_reduce(
        self, function, blocks, state, *, combine=operator.add, label="pass"
    ):
        shared = state.state if isinstance(state, Broadcast) else state
        # of BLAS too, as an engine does: predictions round by their number
        with using_threads(1):
            parts = [function(block, shared) for block in blocks]
        found = [self._merge(list(parts), combine) for _ in range(2)]
        in_order = super().map_reduce(
            function, blocks, state, combine=combine, label=label
        )
        assert bits_of(found[0]) == bits_of(found[1]) == bits_of(in_order), label
        if len(blocks) > 3:
            self.labels.add(label)
        return found[0]

    def _merge(self, left, combine):
        while len(left) > 1:
            a, b = (left.pop(self._random.randrange(len(left))) for _ in range(2))
            before = bits_of([a, b])
            left.append(combine(a, b))
            assert bits_of([a, b]) == before
        return left[0]


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(cut, "MIN_BLOCK_ROWS", 64)
    return AnyOrderEngine()


RNG = np.random.default_rng(0)
X = RNG.standard_t(2.0, (500, 3))
Y = np.stack([np.sin(X[:, 0]) + 0.1 * RNG.normal(size=500), X[:, 1]], axis=1)
WEIGHTS = RNG.uniform(0.5, 2.0, 500)
PLAIN = {"length_scale": 2.0, "n_components": 32, "random_state": 0}


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize(
    "kernel", [Gaussian(), Gaussian() + Linear()], ids=["fixed point", "on a grid"]
)
def test_ridge(engine, kernel, weights):
    options = {**PLAIN, "features": "fourier", "engine": engine}
    if isinstance(kernel, Gaussian):
        options["standardize"] = "rank"
    model = RFFRidge(kernel, alpha="auto", cv=3, **options)
    model.fit(X, Y, sample_weight=weights)
    model.predict(X)
    model.predict(X, return_std=True)
    data = ArrayDataset(X, Y, weights)
    calibrate(data, model.model_, engine=engine)
    evaluate(data, model.model_, engine=engine)
    RFFRidge(kernel, alpha=0.1, solver="pcg", **options).fit(
        X, Y, sample_weight=weights
    )
    first = RFFRidge(kernel, alpha=0.1, **options).fit(X[:300], Y[:300])
    update_model(first.model_, ArrayDataset(X, Y), engine=engine)
    assert engine.labels >= {
        "inspect", "accumulate", "residuals", "hold out", "predict", "evaluate", "targets", "iterate",
    }  # fmt: skip


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
def test_classification(engine, loss):
    labels = np.array(["a", "b", "c"])[np.digitize(X[:, 0], [-1, 1])]
    model = RFFClassifier(
        Gaussian(), loss=loss, alpha=1.0, engine=engine, features="fourier", **PLAIN
    )
    model.fit(X, labels)
    model.predict(X)
    assert engine.labels >= {"accumulate", loss}


def test_components(engine):
    options = {
        "length_scale": 2.0,
        "n_random_features": 32,
        "random_state": 0,
        "features": "fourier",
    }
    for normalize in (None, "degree"):
        model = RFFPCA(
            3, kernel=Gaussian(), normalize=normalize, engine=engine, **options
        )
        model.fit(X, sample_weight=WEIGHTS).transform(X)
    assert engine.labels >= {"accumulate", "degrees", "project"}


def test_clusters(engine):
    options = {"length_scale": 2.0, "n_components": 32, "random_state": 0}
    for features in ("fourier", "nystrom"):
        model = RFFKMeans(
            3, kernel=Gaussian(), features=features, engine=engine, **options
        )
        model.fit(X, sample_weight=WEIGHTS)
        model.predict(X)
        model.transform(X)
    assert engine.labels >= {"lloyd", "norms", "label", "distances", "measure"}
