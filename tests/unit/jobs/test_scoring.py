"""One call writes what a model of any kind says of every row."""

import numpy as np
import pytest

from rff_dist import Gaussian, SerialEngine, save_model, write_dataset
from rff_dist.errors import InvalidParameterError, SolveError, StorageError
from rff_dist.fields import build
from rff_dist.kmeans import fit as kmeans
from rff_dist.kmeans.cluster_options import ClusterSpace, LloydOptions
from rff_dist.models import kinds as cluster_model
from rff_dist.ridge.models import write_model
from rff_dist.storage.columns import open_column
from rff_dist.workbench.jobs import predict as scoring
from rff_dist.workbench.jobs.specs import Predict
from rff_dist.workbench.jobs.steps import in_this_process
from tests.plain import fit_ridge, plain_classifier
from tests.refusals import refuses

ENGINE = SerialEngine(1)
rng = np.random.default_rng(0)
X = np.vstack([rng.normal(size=(40, 2)) - 3, rng.normal(size=(40, 2)) + 3])
y = np.repeat([0.0, 1.0], 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scoring")
    data = write_dataset(folder / "data", X, y, chunk_rows=32)
    model, _ = fit_ridge(data, Gaussian(), engine=ENGINE, n_components=16, alpha=1e-3)
    write_model(model, folder / "regression")
    for name, loss in (("classifier", "squared"), ("hinge", "squared_hinge")):
        save_model(
            plain_classifier(n_components=16, loss=loss, alpha=1e-3).fit(X, np.where(y > 0, "up", "down")),
            folder / name,
        )
    space = ClusterSpace(kernel=Gaussian(), n_components=16)
    clusters = kmeans.fit(data, space, LloydOptions(n_clusters=2), engine=ENGINE)
    cluster_model.write_clusters(clusters, folder / "clusters")
    return folder


def write(folder, name, output, **wanted):
    given = {"model": str(folder / name), "data": str(folder / "data"), "output": str(output), **wanted}
    return scoring.predict(build(Predict, given), in_this_process(ENGINE)).record


@pytest.mark.parametrize(
    ("name", "wanted", "arrays"),
    [
        ("regression", {}, ["predictions"]),
        (
            "regression",
            {"std": True, "coverage": 0.5},
            ["predictions", "standard_deviations", "lower", "upper"],
        ),
        ("classifier", {}, ["labels"]),
        ("classifier", {"probabilities": True}, ["labels", "probabilities"]),
        ("clusters", {"distances": True}, ["labels", "distances"]),
    ],
)
def test_what_is_wanted_of_each_kind_is_written(folder, tmp_path, name, wanted, arrays):
    assert scoring.open_model(folder / name).kind == name
    found = write(folder, name, tmp_path / "out", **wanted)
    assert (found["arrays"], found["n_samples"]) == (arrays, 80)
    import zarr

    assert sorted(zarr.open_group(tmp_path / "out", mode="r").array_keys()) == sorted(arrays)
    if name != "regression":
        labels = open_column(tmp_path / "out", "labels").take(range(80))
        assert len({(label, truth) for label, truth in zip(labels.tolist(), y, strict=True)}) == 2


@pytest.mark.parametrize(
    ("name", "wanted", "error", "said"),
    [
        ("regression", {"probabilities": True}, InvalidParameterError, "no probabilities"),
        ("regression", {"coverage": 1.5}, InvalidParameterError, "`coverage` is 1.5"),
        ("classifier", {"std": True}, InvalidParameterError, "no standard deviations"),
        ("hinge", {"probabilities": True}, SolveError, "the squared hinge has none"),
        ("clusters", {"coverage": 0.9}, InvalidParameterError, "no intervals"),
        ("clusters", {"probabilities": True}, InvalidParameterError, "no probabilities"),
        ("nothing", {}, StorageError, "no model"),
    ],
)
def test_what_a_kind_does_not_have_is_refused_before_a_pass(folder, tmp_path, name, wanted, error, said):
    with refuses(error, said):
        write(folder, name, tmp_path / "out", **wanted)
    assert not (tmp_path / "out").exists()
