"""Versioned rows and models that follow them, for tests of updates."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from rff_dist import Gaussian, SerialEngine
from rff_dist.data import blocks
from rff_dist.data.blocks import Block
from rff_dist.data.memory import ArrayDataset
from rff_dist.fields import build
from rff_dist.living import update
from rff_dist.statistics import accumulate, passes, specs
from rff_dist.statistics.moments import ColumnMoments, measure_moments
from rff_dist.workbench.jobs import refresh as updating
from rff_dist.workbench.jobs.specs import Update
from rff_dist.workbench.jobs.steps import in_this_process
from tests.plain import fit_ridge
from tests.seen import seen

ENGINE = SerialEngine(1)
CHUNK = 128
TILE = 64
BLOCK = 256


def make_small(patched):
    """Many blocks and tiles of few rows, so that most of them stay."""
    patched.setattr(blocks, "MIN_BLOCK_ROWS", BLOCK)
    for module in (accumulate, update):
        patched.setattr(module, "specs", seen(specs, tile_rows=lambda _: TILE))


def draw(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    return X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(n)


def fit(dataset, *, kernel=None, **options):
    options = {"length_scale": 1.0, "n_components": 8, "alpha": 0.1, **options}
    return fit_ridge(dataset, kernel or Gaussian(), engine=ENGINE, **options)[0]


def sum_like(begun, dataset):
    """Return the sums of one pass over rows, with a model's features and grids."""
    return passes.accumulate(
        dataset, begun.feature_map, engine=ENGINE, spec=begun.statistics.spec
    )


def assert_follows(model, begun, dataset, start=0):
    """One pass over the rows of this version, with the first model's features and
    grids, is the oracle.

    `start`: the first row of a window, whose rows are a dataset of their own.
    """
    rows = dataset.read(Block(0, start, dataset.n_samples))
    held = ArrayDataset(rows.X, rows.y[:, 0], chunk_rows=CHUNK) if start else dataset
    expected = sum_like(begun, held)
    if start % BLOCK == 0:
        assert model.statistics == expected
        assert model.statistics.digest() == expected.digest()
        assert model.statistics.n_tiles == expected.n_tiles
    else:  # rows lie in other tiles, in which Z'y and products without a fixed point are rounded
        assert model.statistics.n_samples == expected.n_samples
        if begun.statistics.spec.fixed_point:
            assert np.array_equal(model.statistics.ZtZ(), expected.ZtZ())
        assert_allclose(model.statistics.ZtZ(), expected.ZtZ(), rtol=1e-9, atol=1e-9)
        assert_allclose(model.statistics.Zty(), expected.Zty(), rtol=1e-9, atol=1e-9)
    assert model.card["data_version"] == dataset.version
    columns = ColumnMoments.of(measure_moments(rows, np.zeros(dataset.n_features + 1)))
    assert model.columns.n_effective == pytest.approx(columns.n_effective)
    # sums of a thousand terms, in another order
    assert_allclose(model.columns.mean, columns.mean, atol=1e-11)
    assert np.all(model.columns.rounding < 1e-3)
    difference = np.abs(model.columns.variance - columns.variance)
    excess = difference - model.columns.rounding**2
    assert np.all(excess <= 1e-9 * columns.variance)


def refresh(model, url, **options):
    job = build(Update, {"model": model, "data": url, **options})
    return updating.update(job, in_this_process(ENGINE)).record


def watch_sums(patched, seen):
    """Return a list to which each sum over ranges of rows is added, as what `seen`
    makes of its arguments.
    """
    summed = []
    original = update.sum_ranges

    def counted(dataset, ranges, state, *, engine):
        summed.append(seen(dataset, ranges, state))
        return original(dataset, ranges, state, engine=engine)

    patched.setattr(update, "sum_ranges", counted)
    return summed


def batch(seed, n_samples=400, *, n_features=3, bad=False, shift=0.0):
    """Return new rows: like all, with another mean of their second column, or with
    targets of other rows.
    """
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, n_features))
    X[:, 1] += shift
    y = np.sin(X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n_samples)
    return X, 4.0 * rng.permutation(y) if bad else y
