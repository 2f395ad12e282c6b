"""Agreement of two labelings: scikit-learn's measures, from counts that add up over
blocks.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from rff_dist.errors import DataError
from rff_dist.kmeans.labels import Contingency, count_agreement
from tests.refusals import refuses

LABELINGS = st.integers(2, 60).flatmap(
    lambda n: st.tuples(
        arrays(np.int64, n, elements=st.integers(-3, 3)),
        arrays(np.int32, n, elements=st.integers(0, 4)),
    )
)


@given(LABELINGS)
def test_measures_are_those_of_scikit_learn(labelings):
    known, found = labelings
    table = count_agreement(known, found, 5)
    assert table.adjusted_rand_index == pytest.approx(
        adjusted_rand_score(known, found), abs=1e-12
    )
    expected = normalized_mutual_info_score(known, found)
    # scikit-learn's own logarithms cancel to some 1e-16 of an entropy, which may be as
    # small as 0.1
    assert table.normalized_mutual_information == pytest.approx(expected, abs=1e-12)


@given(LABELINGS, st.integers(0, 60))
def test_counts_add_up_over_blocks(labelings, cut):
    known, found = labelings
    whole = count_agreement(known, found, 5)
    cut = min(cut, len(known))
    parts = count_agreement(known[:cut], found[:cut], 5) + count_agreement(
        known[cut:], found[cut:], 5
    )
    assert_array_equal(parts.labels, whole.labels)
    assert_array_equal(parts.counts, whole.counts)
    assert whole.n_samples == len(known)


def test_a_table_of_very_many_rows_does_not_overflow():
    table = np.array([[6, 1], [2, 5]]) * 10**11
    large, small = (
        Contingency(np.arange(2), one).adjusted_rand_index
        for one in (table, table // 10**7)
    )
    assert large == pytest.approx(small, abs=1e-4)
    assert 0 < large < 1


def test_counts_of_other_clusterings_are_refused():
    with refuses(DataError, "2", "3"):
        count_agreement(np.zeros(1), np.zeros(1, int), 2) + count_agreement(
            np.zeros(1), np.zeros(1, int), 3
        )
