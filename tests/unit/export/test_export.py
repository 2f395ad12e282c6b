"""Exported models: the reader, without the package, says what the package says."""

import subprocess
import sys

import numpy as np
import pytest

from rff_dist import load_model, open_dataset
from tests.command_line import document, refusal
from tests.unit.export.conftest import FEATURES, fit_classes

CODE = """
import sys
sys.modules["rff_dist"] = None                      # an import of it would fail
sys.path.insert(0, sys.argv[1])
import numpy as np, reader
np.save(sys.argv[3], reader.Model(sys.argv[1]).predict(np.load(sys.argv[2])))
assert not {"scipy", "zarr", "dask"} & set(sys.modules)
"""


def read_in_another_process(folder, X, path):
    np.save(path / "X.npy", X)
    words = [
        sys.executable,
        "-I",
        "-c",
        CODE,
        folder,
        path / "X.npy",
        path / "found.npy",
    ]
    subprocess.run(list(map(str, words)), check=True, cwd=path)
    return np.load(path / "found.npy")


@pytest.mark.parametrize("kind", FEATURES)
def test_the_reader_predicts_what_the_model_does_and_needs_numpy_only(
    data, fitted, tmp_path, kind
):
    model = fitted(*FEATURES[kind])
    document("export", model, "slim")
    files = {"README.md", "model.json", "inner.npy", "outer.npy", "reader.py"}
    assert {path.name for path in (tmp_path / "slim").iterdir()} == files
    X = open_dataset(data).X[:]
    loaded = load_model(model)
    assert bool(loaded.mapped_columns_) == (kind in ("ranks", "mapped"))
    expected = loaded.predict(X)
    found = read_in_another_process(tmp_path / "slim", X, tmp_path)
    # a cosine may round to the next of 16,256 steps where float32 angles differ in
    # their last bit
    np.testing.assert_allclose(found, expected, atol=2e-3 * expected.std())
    assert np.abs(found - expected).mean() < 1e-4 * expected.std()


@pytest.mark.parametrize("labels", [["no", "yes"], ["a", "b", "c"]])
def test_the_reader_names_classes(tmp_path, labels):
    X, model = fit_classes(tmp_path, labels, "--alpha", "0.01")
    document("export", model, "slim")
    expected = load_model(model).predict(X)
    found = read_in_another_process(tmp_path / "slim", X, tmp_path)
    # rows on the border may fall to either side
    assert (found == expected).mean() > 0.99


def test_a_kernel_that_the_reader_does_not_know_is_refused(fitted, tmp_path):
    model = fitted("--kernel", "polynomial:degree=2", "--features", "nystrom")
    assert "polynomial" in refusal(2, "export", model, "slim")
    assert not (tmp_path / "slim").exists()
