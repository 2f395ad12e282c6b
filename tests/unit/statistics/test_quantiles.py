"""Ranks from a sample of rows map columns to a normal distribution; which columns they
map.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import ndtri
from scipy.stats import rankdata
from sklearn.preprocessing import QuantileTransformer

from rff_dist import RFFRidge, SerialEngine
from rff_dist.data.blocks import Block, Rows
from rff_dist.data.memory import ArrayDataset
from rff_dist.features.column_maps import N_CELLS, rank_map
from rff_dist.statistics import inspection, standardizing
from rff_dist.statistics.row_samples import RowSample, sample_block
from tests.refusals import refuses

ENGINE = SerialEngine(1)
# width of a cell for scores of 4,096 rows: interpolation errs by less
CELL = 2 * 3.7 / N_CELLS


def tailed(n_samples, seed=0):
    """Columns: t with 1.5 degrees of freedom, normal, rare 0/1, log-normal of sigma
    2.
    """
    rng = np.random.default_rng(seed)
    rare = rng.random(n_samples) < 0.002
    return np.column_stack(
        [
            rng.standard_t(1.5, n_samples),
            rng.standard_normal(n_samples),
            rare,
            np.exp(2 * rng.standard_normal(n_samples)),
        ]
    )


def standardizer_of(X, standardize, weights=None, engine=ENGINE, chunk_rows=8192):
    dataset = ArrayDataset(X, None, weights, chunk_rows=chunk_rows)
    moments = inspection.inspect(dataset, engine=engine)
    return standardizing.standardizer_for(dataset, moments, standardize, engine=engine)


def test_scores_of_few_rows_are_those_of_scikit_learn():
    X = tailed(3_000)
    ours = standardizer_of(X, "rank")(X)[:, [0, 1, 3]]
    transformer = QuantileTransformer(
        n_quantiles=3_000, output_distribution="normal", subsample=None
    )
    theirs = transformer.fit_transform(X[:, [0, 1, 3]])
    # beyond, the two differ: the rank of the smallest value is ½ here and 0 there
    inner = np.abs(theirs) < 2.5
    # ranks differ by half a row, 2e-4 over the normal density at 2.5, 0.018; and
    # interpolation
    assert_allclose(ours[inner], theirs[inner], rtol=0, atol=0.01 + CELL)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=60))
def test_equal_values_share_the_middle_of_their_ranks(values):
    column = np.asarray(values, np.float64)
    found = rank_map(0, column)
    expected = ndtri((rankdata(column) - 0.5) / len(column))
    scores = np.interp(column, found.inputs, found.outputs)
    step = np.ptp(expected) / N_CELLS
    assert_allclose(scores, expected, rtol=0, atol=step + 1e-12)
    assert (np.diff(found.inputs) > 0).all()
    assert (np.diff(found.outputs) > 0).all()


def test_values_beyond_those_seen_are_clipped_and_what_is_not_finite_stays():
    X = tailed(500)[:, :1]
    standardizer = standardizer_of(X, "rank")
    found = standardizer(np.array([[-1e300], [1e300], [np.inf], [np.nan]]))[:, 0]
    assert_array_equal(found[:2], standardizer(np.array([[X.min()], [X.max()]]))[:, 0])
    assert found[2] == np.inf
    assert np.isnan(found[3])
    model = RFFRidge(
        n_components=16, alpha=1.0, standardize="rank", random_state=0
    ).fit(X, X[:, 0])
    with refuses(ValueError, "infinity"):
        model.predict([[np.inf]])


@given(st.permutations(range(6)), st.integers(0, 2**32))
def test_samples_add_up_to_the_same_in_any_order(order, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((9_001, 2))
    weights = rng.integers(0, 2, 9_001).astype(np.float64)
    edges = [0, 1, 700, 701, 5_003, 8_000, 9_001]
    columns = np.array([1])
    parts = [
        sample_block(Rows(Block(i, a, b), X[a:b], None, weights[a:b]), columns)
        for i, (a, b) in enumerate(itertools.pairwise(edges))
    ]
    whole = sample_block(Rows(Block(0, 0, len(X)), X, None, weights), columns)
    total = parts[order[0]]
    for i in order[1:]:
        total = total + parts[i]
    assert isinstance(total, RowSample)
    assert_array_equal(total.keys, whole.keys)
    assert_array_equal(total.values, whole.values)
    assert len(total.values) == min(4_096, np.count_nonzero(weights))


def test_the_sample_is_as_good_as_random():
    """Its row numbers are uniform, also modulo small numbers: orders in the data do not
    matter.
    """
    n_samples = 200_000
    rows = Rows(
        Block(0, 0, n_samples), np.arange(n_samples, dtype=np.float64)[:, np.newaxis]
    )
    chosen = np.sort(sample_block(rows, np.array([0])).values[:, 0])
    uniform = (np.arange(4_096) + 0.5) / 4_096
    assert np.abs(chosen / n_samples - uniform).max() < 2 / 64  # Kolmogorov, as above
    for modulus in (2, 3, 4, 8):
        counts = np.bincount(chosen.astype(int) % modulus, minlength=modulus)
        expected = 4_096 / modulus
        assert np.square(counts - expected).sum() / expected < modulus + 6 * np.sqrt(
            2 * modulus
        )


def test_rows_without_weight_change_nothing_and_no_one_looks_at_y():
    X = tailed(6_000)
    weights = np.ones(6_000)
    weights[::3] = 0
    wild = X.copy()
    wild[::3] *= 1e3
    first, second = (standardizer_of(rows, "rank", weights) for rows in (X, wild))
    for one, other in zip(first.maps, second.maps, strict=True):
        assert_array_equal(one.inputs, other.inputs)
        assert_array_equal(one.outputs, other.outputs)


def test_auto_takes_columns_with_heavy_tails_and_says_which(caplog):
    X = tailed(5_000)
    with caplog.at_level("INFO", logger="rff_dist"):
        found = standardizer_of(X, "auto")
    # the rare 0/1 column has a large kurtosis too, but ranks would only scale it
    assert found.mapped_columns == (0, 3)
    assert "normal distribution by their ranks: [0, 3]" in caplog.text
    plain = standardizer_of(X, True)
    assert_array_equal(found(X)[:, 1:3], plain(X)[:, 1:3])
    assert standardizer_of(X, "rank").mapped_columns == (0, 1, 2, 3)
    assert standardizer_of(X, False) is None


@pytest.mark.parametrize("law", ["normal", "uniform", "exponential", "logistic"])
def test_auto_is_true_for_ordinary_columns(law):
    X = getattr(np.random.default_rng(0), law)(size=(5_000, 4))
    found = standardizer_of(X, "auto")
    assert found.maps == ()
    assert_array_equal(found(X), standardizer_of(X, True)(X))
