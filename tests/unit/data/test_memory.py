import numpy as np
import pytest
import scipy.sparse

from rff_dist import write_dataset
from rff_dist.data.blocks import Block
from rff_dist.data.memory import ArrayDataset, SparseDataset
from rff_dist.errors import InvalidParameterError
from tests.refusals import refuses

RNG = np.random.default_rng(0)
SPARSE = scipy.sparse.random(60, 5, density=0.3, format="csr", rng=RNG)
TARGETS = RNG.standard_normal((60, 2))
WEIGHTS = RNG.random(60)


@pytest.mark.parametrize("y", [None, TARGETS[:, 0], TARGETS])
def test_rows_sizes_and_samples_are_the_same_dense_sparse_and_stored(tmp_path, y):
    weight = None if y is None else WEIGHTS
    X = SPARSE.toarray()
    stored = write_dataset(tmp_path / "a", X, y, sample_weight=weight)
    sizes = (
        "n_samples",
        "n_features",
        "n_targets",
        "one_dimensional",
        "weighted",
        "dtype",
    )
    for dataset in (ArrayDataset(X, y, weight), SparseDataset(SPARSE, y, weight)):
        assert [getattr(dataset, name) for name in sizes] == [
            getattr(stored, name) for name in sizes
        ]
        for name in ("X", "y", "sample_weight"):
            for found, expected in (
                (dataset.read(Block(0, 7, 31)), stored.read(Block(0, 7, 31))),
                (dataset.take([9, 2, 9]), stored.take([9, 2, 9])),
            ):
                np.testing.assert_array_equal(
                    getattr(found, name), getattr(expected, name)
                )


def test_a_sparse_fingerprint_follows_the_values():
    assert (
        SparseDataset(SPARSE).fingerprint()
        == SparseDataset(SPARSE.copy()).fingerprint()
    )
    assert (
        SparseDataset(SPARSE).fingerprint() != SparseDataset(SPARSE * 2).fingerprint()
    )
    assert (
        SparseDataset(SPARSE, TARGETS).fingerprint()
        != SparseDataset(SPARSE, TARGETS + 1).fingerprint()
    )


def test_sparse_rows_that_do_not_exist_are_refused():
    with refuses(InvalidParameterError, "60", "0 to 59"):
        SparseDataset(SPARSE).take([60])
