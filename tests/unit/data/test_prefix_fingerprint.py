"""The digest of a dataset's first rows, which an update compares before it adds later
rows.
"""

import numpy as np
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from rff_dist import open_dataset, write_dataset
from rff_dist.data.labelled import GroupedDataset, LabelledDataset
from rff_dist.data.memory import ArrayDataset, SparseDataset
from rff_dist.errors import InvalidParameterError
from rff_dist.fitting.prepare import describe_dataset
from rff_dist.storage.columns import as_column
from tests.places import scratch
from tests.refusals import refuses

DTYPES = st.sampled_from(["float32", "float64", "int16"])


def rows(n_samples, dtype, *, seed=0):
    rng = np.random.default_rng(seed)
    X = (100 * rng.normal(size=(n_samples, 3))).astype(dtype)
    return X, rng.normal(size=n_samples), rng.uniform(size=n_samples)


@settings(max_examples=10, deadline=None)
@given(
    n_samples=st.integers(0, 60),
    more=st.integers(0, 40),
    chunks=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    dtype=DTYPES,
)
def test_the_first_rows_keep_their_digest_when_rows_are_added_and_chunks_change(
    n_samples, more, chunks, dtype
):
    X, y, weight = rows(n_samples + more, dtype)
    first = (X[:n_samples], y[:n_samples])
    for i, (arrays, w) in enumerate(((first, weight[:n_samples]), ((X, y), weight))):
        write_dataset(
            scratch(f"prefix-{i}"),
            *arrays,
            sample_weight=w,
            chunk_rows=chunks[i],
            overwrite=True,
        )
    short, long = (
        open_dataset(scratch(f"prefix-{i}"), sample_weight="sample_weight")
        for i in range(2)
    )
    assert short.prefix_fingerprint(n_samples) == long.prefix_fingerprint(n_samples)
    assert ArrayDataset(X, y, weight).prefix_fingerprint(
        n_samples
    ) == long.prefix_fingerprint(n_samples)
    if more:
        assert long.prefix_fingerprint(n_samples) != long.prefix_fingerprint(
            n_samples + more
        )


@settings(max_examples=25, deadline=None)
@given(row=st.integers(0, 39), what=st.sampled_from(["X", "y", "sample_weight"]))
def test_any_other_value_among_few_rows_changes_the_digest(row, what):
    X, y, weight = rows(50, "float64")
    before = ArrayDataset(X, y, weight).prefix_fingerprint(40)
    changed = {"X": X.copy(), "y": y.copy(), "sample_weight": weight.copy()}
    changed[what][row] += 1
    assert ArrayDataset(**changed).prefix_fingerprint(40) != before


def test_of_many_rows_eight_stretches_from_the_first_to_the_last_are_read():
    X = np.zeros((100_000, 4))
    before = ArrayDataset(X).prefix_fingerprint(90_000)
    noticed = []
    for row in (0, 89_999, 45_000, 90_000, 6_000):
        changed = X.copy()
        changed[row] = 1
        noticed.append(ArrayDataset(changed).prefix_fingerprint(90_000) != before)
    # The stretches have 4,096 rows; the second begins in row 12,272.
    assert noticed == [True, True, False, False, False]


def test_dtype_and_number_of_columns_enter_the_digest():
    X = np.zeros((6, 2))
    digests = {
        ArrayDataset(Z).prefix_fingerprint(6)
        for Z in (X, X.astype("f4"), np.zeros((6, 3)))
    }
    assert len(digests) == 3


def test_what_belongs_to_the_rows_enters_the_digest():
    X, y, _ = rows(30, "float64")
    plain = ArrayDataset(X, y)
    groups = np.arange(30) % 4
    assert SparseDataset(scipy.sparse.csr_matrix(X), y).prefix_fingerprint(
        20
    ) == plain.prefix_fingerprint(20)
    grouped = GroupedDataset(plain, as_column(groups))
    later = np.where(np.arange(30) < 25, groups, 9)
    assert grouped.prefix_fingerprint(25) == GroupedDataset(
        plain, as_column(later)
    ).prefix_fingerprint(25)
    assert grouped.prefix_fingerprint(30) != GroupedDataset(
        plain, as_column(later)
    ).prefix_fingerprint(30)
    labels = np.where(y > 0, "up", "down")
    labelled = LabelledDataset(
        plain.without_targets(), as_column(labels), np.array(["down", "up"], object)
    )
    other = LabelledDataset(
        plain.without_targets(), as_column(labels[::-1]), labelled.classes
    )
    assert labelled.prefix_fingerprint(30) != other.prefix_fingerprint(30)


def test_more_rows_than_there_are_have_no_digest():
    with refuses(InvalidParameterError, "7 rows", "6"):
        ArrayDataset(np.zeros((6, 2))).prefix_fingerprint(7)


def test_a_models_card_tells_the_digest_of_all_rows():
    data = ArrayDataset(np.eye(5), np.arange(5.0))
    assert describe_dataset(data)["prefix_fingerprint"] == data.prefix_fingerprint(5)
