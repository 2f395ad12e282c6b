"""What every kind of feature map keeps to: a row's features are its own, and maps
travel and are stored.
"""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from rff_dist import (
    Additive,
    Gaussian,
    Laplacian,
    Linear,
    Matern,
    Min,
    Nystrom,
    Polynomial,
    SerialEngine,
    draw_feature_map,
)
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import BroadcastError, DataError
from rff_dist.features import fourier
from rff_dist.features.feature_options import FeatureOptions
from rff_dist.features.kinds import kernel_of
from rff_dist.features.maps import Standardizer
from rff_dist.features.nystrom import draw_nystrom
from rff_dist.pca import fit as pca
from rff_dist.ridge.models import read_features, record_features
from tests.refusals import refuses

N_FEATURES = 40
X = np.random.default_rng(0).standard_normal((200, N_FEATURES)).astype(np.float32)
STANDARDIZER = Standardizer(
    np.linspace(-1.0, 1.0, N_FEATURES), np.linspace(0.5, 2.0, N_FEATURES)
)


def drawn(kernel, n_components=600, **options):
    return draw_feature_map(
        kernel, n_features=N_FEATURES, n_components=n_components, **options
    )


def nystrom(kernel):
    return draw_nystrom(kernel, X, n_components=90, nystrom=Nystrom(), seed=0)


def principal(normalize=None, **options):
    given = FeatureOptions(
        kernel=Gaussian(6.0), length_scale=None, n_components=64, **options
    )
    return pca.fit_components(
        ArrayDataset(X),
        given,
        n_components=5,
        normalize=normalize,
        engine=SerialEngine(1),
    ).features()


MAPS = {
    "pairs": drawn(Matern(np.linspace(1.0, 3.0, N_FEATURES))),
    "phases": drawn(Gaussian(6.0), 601, map="phases"),
    "independent": drawn(Laplacian(9.0), design="iid"),
    "quasi-Monte Carlo": drawn(Gaussian(6.0), design="quasi-monte-carlo"),
    "given frequencies": replace(drawn(Gaussian(6.0), 601, map="phases"), spec=None),
    "polynomial": drawn(Polynomial(2).on([3, 5, 8])),
    "a sum": drawn(Gaussian(6.0) + 0.5 * Matern(3.0) + Linear()),
    "additive": drawn(Additive(2.0)),
    "Min": drawn(Min((-5.0,) * N_FEATURES, (5.0,) * N_FEATURES)),
    "Nyström": nystrom(Matern(6.0, nu=0.8)),
    "Nyström of another formula": nystrom(Matern(6.0, nu=1.5)),
    "Nyström without a bound": nystrom(Gaussian(6.0) * Linear() + Polynomial(2)),
    "principal components": principal(),
    "principal components of phases": principal(map="phases"),
    "principal components of Nyström features": principal("degree", features="nystrom"),
}


@pytest.fixture(params=MAPS)
def feature_map(request):
    return MAPS[request.param]


def test_a_row_has_the_same_features_in_whatever_company(feature_map):
    inputs = feature_map.prepare(X)
    D = feature_map.n_components
    whole = np.empty((D, 200))
    feature_map.fill(inputs, whole, 0, D)
    for rows in (slice(0, 1), slice(3, 70), slice(64, 65), slice(100, 200)):
        some = np.empty((D, len(inputs[rows])))
        feature_map.fill(inputs[rows], some, 0, D)
        assert_array_equal(some, whole[:, rows])
    stop = 2 + D // 4 * 2  # a cosine stays with its sine
    part = np.empty((stop - 2, 200))
    feature_map.fill(inputs, part, 2, stop)
    assert_array_equal(part, whole[2:stop])


def test_transform_gives_the_dtype_asked_for(feature_map):
    double = feature_map.transform(X)
    single = feature_map.transform(X, dtype=np.float32)
    assert (double.dtype, single.dtype) == (np.float64, np.float32)
    assert_array_equal(double.astype(np.float32), single)
    assert feature_map.transform(X[:0]).shape == (0, feature_map.n_components)


@pytest.mark.parametrize(
    "shape", [(5,), (5, 2), (5, N_FEATURES + 1), (1, 5, N_FEATURES)]
)
def test_inputs_of_another_shape_are_refused(feature_map, shape):
    with refuses(DataError, f"{N_FEATURES} columns"):
        feature_map.transform(np.zeros(shape))


def test_a_standardizer_is_the_same_as_standardised_inputs(feature_map):
    with_it = feature_map.with_standardizer(STANDARDIZER)
    without = feature_map.with_standardizer(None)
    by_hand = (X - STANDARDIZER.mean) / STANDARDIZER.scale
    assert_array_equal(with_it.transform(X), without.transform(by_hand))
    assert with_it.digest() != without.digest()
    assert with_it.with_standardizer(None).digest() == without.digest()


def test_what_is_pickled_or_stored_is_small_and_gives_the_same_features(feature_map):
    feature_map = feature_map.with_standardizer(STANDARDIZER)
    travels = pickle.dumps(feature_map)
    with_rows = {
        "nystrom": 4 * N_FEATURES * 90 + 4_000,
        "principal": 100_000,
        "concatenated": 20_000,
    }
    # these travel as they are
    is_given = feature_map.kind == "fourier" and feature_map.spec is None
    assert is_given or len(travels) < with_rows.get(feature_map.kind, 2_500)
    fourier._draw_matrix.cache_clear()
    for other in (pickle.loads(travels), read_features(*record_features(feature_map))):
        assert type(other) is type(feature_map)
        assert kernel_of(other) == kernel_of(feature_map)
        assert other.digest() == feature_map.digest()
        assert getattr(other, "spec", None) == getattr(feature_map, "spec", None)
        assert_array_equal(other.transform(X), feature_map.transform(X))


def nudged(array):
    copy = array.copy()
    copy.flat[0] = np.nextafter(copy.flat[0], np.array(np.inf, copy.dtype))
    return copy


def test_a_process_that_draws_otherwise_is_refused(monkeypatch):
    pairs = MAPS["pairs"]
    data = pickle.dumps(pairs)
    changed = nudged(pairs.frequencies)
    monkeypatch.setattr(fourier, "_draw_matrix", lambda _: changed)
    with pytest.raises(BroadcastError, match=rf"expected {pairs.digest()[:12]}"):
        pickle.loads(data)


def test_drawn_arrays_cannot_be_written_to():
    """They are shared through a cache, and the digest names them."""
    for array in (MAPS["phases"].frequencies, MAPS["phases"].phases):
        with refuses(ValueError, "read-only"):
            array[0] = 0
