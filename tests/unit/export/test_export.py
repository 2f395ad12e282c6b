"""Exported models: the reader, without the package, says what the package says."""

import subprocess
import sys

import numpy as np
import pytest

from rff_dist import load_model, open_dataset
from rff_dist.errors import NotFiniteError
from rff_dist.export import reader
from rff_dist.export import write as exporting
from tests.command_line import document, refusal
from tests.plain import plain_classifier
from tests.unit.export.conftest import FEATURES, fit_classes

CODE = """
import sys
sys.modules["rff_dist"] = None                      # an import of it would fail
import numpy as np
X, *folders = sys.argv[1:]
for folder in folders:
    sys.path.insert(0, folder)
    import reader
    np.save(f"{folder}.npy", reader.Model(folder).predict(np.load(X)))
    del sys.modules["reader"]                       # each folder has its own
assert not {"scipy", "zarr", "dask"} & set(sys.modules)
"""


def read_in_another_process(X, *folders):
    """Return what the readers of exported models predict, of one process for all."""
    place = folders[0].parent
    np.save(place / "X", X)
    words = [sys.executable, "-IB", "-c", CODE, place / "X.npy", *folders]
    subprocess.run(list(map(str, words)), check=True, cwd=place)
    return [np.load(f"{folder}.npy") for folder in folders]


@pytest.fixture(scope="module")
def exported(data, fitted, tmp_path_factory):
    """Return, for each kind of features, where it is exported and what is read there."""
    place = tmp_path_factory.mktemp("exported")
    folders = [place / kind for kind in FEATURES]
    for folder in folders:
        document("export", fitted(*FEATURES[folder.name]), folder)
    found = read_in_another_process(open_dataset(data).X[:], *folders)
    return dict(zip(FEATURES, zip(folders, found, strict=True), strict=True))


@pytest.mark.parametrize("kind", FEATURES)
def test_the_reader_predicts_what_the_model_does_and_needs_numpy_only(
    data, fitted, exported, kind
):
    folder, found = exported[kind]
    files = {"README.md", "model.json", "inner.npy", "outer.npy", "reader.py"}
    assert {path.name for path in folder.iterdir()} == files
    loaded = load_model(fitted(*FEATURES[kind]))
    assert bool(loaded.mapped_columns_) == (kind in ("ranks", "mapped"))
    expected = loaded.predict(open_dataset(data).X[:])
    # a cosine may round to the next of 16,256 steps where float32 angles differ in
    # their last bit
    np.testing.assert_allclose(found, expected, atol=2e-3 * expected.std())
    assert np.abs(found - expected).mean() < 1e-4 * expected.std()


@pytest.mark.parametrize("labels", [["no", "yes"], ["a", "b", "c"]])
def test_the_reader_names_classes(tmp_path, labels):
    X, model = fit_classes(tmp_path, labels, "--alpha", "0.01")
    document("export", model, "slim")
    expected = load_model(model).predict(X)
    [found] = read_in_another_process(X, tmp_path / "slim")
    # rows on the border may fall to either side
    assert (found == expected).mean() > 0.99


@pytest.mark.parametrize("features", ["fourier", "nystrom"])
def test_the_reader_refuses_numbers_that_the_model_refuses(tmp_path, features):
    """Their scores would be NaN, and the first class would be predicted."""
    X = np.random.default_rng(0).standard_normal((60, 2))
    model = plain_classifier(features=features, n_components=16).fit(X, X[:, 0] > 0)
    exporting.export(model.model_, tmp_path / "slim")
    rows = [[1e45, 0.0]]
    with pytest.raises(NotFiniteError):
        model.predict(rows)
    with pytest.raises(ValueError, match="beyond float32"):
        reader.Model(str(tmp_path / "slim")).predict(rows)


def test_a_kernel_that_the_reader_does_not_know_is_refused(fitted, tmp_path):
    model = fitted("--kernel", "polynomial:degree=2", "--features", "nystrom")
    assert "polynomial" in refusal(2, "export", model, "slim")
    assert not (tmp_path / "slim").exists()
