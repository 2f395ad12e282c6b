import numpy as np
import pytest

from rff_dist import Gaussian, Matern, RFFSampler, tune_length_scales, write_dataset
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError
from rff_dist.features import for_dataset
from rff_dist.features.length_scales import EvidenceSearch, maximize_evidence
from tests.places import scratch
from tests.plain import plain_ridge
from tests.refusals import for_each_refusal, once, refuses

QUICK = {"n_components": 64, "n_starts": 2}


def rows(n_samples=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n_samples, 3)) * [1.0, 10.0, 0.1] + [5.0, 0.0, 0.0]
    return X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(n_samples)


def test_arrays_are_standardised_as_the_estimator_does():
    X, y = rows()
    tuned = tune_length_scales("matern", X, y, **QUICK)
    direct = maximize_evidence(
        Matern(),
        (X - X.mean(axis=0)) / X.std(axis=0),
        y[:, np.newaxis],
        search=EvidenceSearch(**QUICK),
    )
    assert tuned.length_scale == pytest.approx(direct.length_scale, rel=1e-4)
    assert tuned.alpha == pytest.approx(direct.alpha, rel=1e-4)


def test_a_dataset_gives_what_its_arrays_give():
    X, y = rows()
    weight = np.tile([1.0, 2.0, 0.0], 100)
    dataset = write_dataset(
        scratch("tuning-test"), X, y, sample_weight=weight, overwrite=True
    )
    stored = tune_length_scales("gaussian", dataset, **QUICK)
    assert stored == tune_length_scales("gaussian", X, y, weight, **QUICK)
    assert stored.n_samples == 200


def test_the_result_does_not_depend_on_the_kernels_own_length_scale():
    X, y = rows()
    assert tune_length_scales(Gaussian(7.0), X, y, **QUICK) == tune_length_scales(
        "gaussian", X, y, **QUICK
    )


@pytest.mark.parametrize("column", ["X", "y"])
def test_values_that_are_not_finite_are_named(column):
    X, y = rows()
    (X[7] if column == "X" else y[7:8])[:] = np.nan
    with refuses(DataError, column, "row 7"):
        for_dataset.tune(for_dataset.RowSource(ArrayDataset(X, y)), Gaussian())


ROWS = rows()


def tuned(X=ROWS[0], y=ROWS[1], kernel="gaussian", **given):
    return tune_length_scales(kernel, X, y, **given)


@for_each_refusal(
    once(lambda: tuned(n_samples=0), "n_samples"),
    once(lambda: tuned(per_feature="yes"), "per_feature"),
    once(lambda: tuned(random_state="zero"), "random_state"),
    once(lambda: tuned(y=None), "y", error=ValueError),
    once(lambda: tuned(ArrayDataset(*ROWS)), "belong to the dataset", error=DataError),
    once(lambda: RFFSampler(length_scale="evidence").fit(*ROWS), "tune_length_scales"),
)
def test_what_cannot_be_tuned_is_refused(call, error, names):
    with refuses(error, *names):
        call()


def test_the_estimator_tunes_as_the_function_does():
    X, y = rows()
    model = plain_ridge(
        "matern", length_scale="evidence", n_components=64, random_state=3
    ).fit(X, y)
    tuned = tune_length_scales("matern", X, y, random_state=3)
    assert model.length_scale_ == tuned.length_scale
    assert model.feature_map_.spec.kernel == tuned.kernel
