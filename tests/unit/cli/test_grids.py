"""The commands take a grid and write one."""

import icechunk
import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_rgb
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist import RFFPCA
from rff_dist.storage.locations import parse_location
from rff_dist.storage.zarr_access import open_store
from tests.command_line import PLAIN, document, refusal, run
from tests.grids import NOISE, write_cube

FEW = "--n-components 64 --serial"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grids")
    cube = write_cube(folder / "cube.zarr")
    # 0, 1, 2 by the size of the rain, missing in some cells
    cube["kind"] = np.abs(cube.rain).round().clip(0, 2).fillna(-1).astype("int16")
    write_cube(folder / "kinds.zarr", cube, kind={"_FillValue": -1})
    words = ["--inputs rain,elevation,lat,time", *PLAIN, "--n-components 512"]
    document(
        "fit",
        folder / "cube.zarr",
        folder / "model",
        "--target temperature",
        *words,
        "--serial",
    )
    return folder


def opened(url):
    return xr.open_zarr(url, consolidated=False, chunks=None)


def test_a_model_of_a_grid_predicts_a_grid_and_its_errors_are_those_of_the_map(folder):
    words = ["--coverage 90% --std"]
    found = document(
        "predict",
        folder / "model",
        folder / "cube.zarr",
        folder / "map.zarr",
        *words,
        "--serial",
    )
    assert found["arrays"] == ["prediction", "std", "lower", "upper"]
    out = opened(folder / "map.zarr")
    cube = opened(folder / "cube.zarr")
    assert out.prediction.attrs["units"] == "K"
    assert out.prediction.dims == cube.rain.dims
    assert_array_equal(out.prediction.isnull(), cube.rain.isnull())
    inside = ((cube.temperature >= out.lower) & (cube.temperature <= out.upper)).where(
        cube.temperature.notnull() & out.prediction.notnull()
    )
    # five standard errors of a share of 11,350 cells; and these cells, which the model
    # was trained on, err less than others
    error = 5 * np.sqrt(0.9 * 0.1 / 11_350)
    assert 0.9 - error < float(inside.mean()) < 0.9 + error + 0.02

    [target] = document("evaluate", folder / "model", folder / "cube.zarr", "--serial")[
        "targets"
    ]
    errors = out.prediction - cube.temperature
    # predictions are stored as the inputs are, and xarray decodes the target in float32
    assert target["rmse"] == pytest.approx(float((errors**2).mean() ** 0.5), rel=1e-4)
    assert target["rmse"] < 1.3 * NOISE


def test_clusters_and_principal_components_of_a_grid_are_a_grid(folder):
    words = [
        "--inputs rain,elevation --n-clusters 3 --length-scale 1",
        FEW,
        "--seed 0",
    ]
    place = folder / "components.zarr"
    model = folder / "spaces"
    wanted = ["--n-principal 2 --principal"]
    found = document(
        "cluster", folder / "cube.zarr", place, "--model", model, *wanted, *words
    )
    assert found["arrays"] == ["labels", "principal"]
    out = opened(place)
    cube = opened(folder / "cube.zarr")
    labels = out.labels
    assert_array_equal(labels.isnull(), cube.rain.isnull())
    assert set(np.unique(labels.values[labels.notnull()])) == {0, 1, 2}
    assert labels.attrs["flag_values"] == [0, 1, 2]
    assert labels.attrs["flag_meanings"].split()[2] == "cluster_2"
    assert len({to_rgb(colour) for colour in labels.attrs["flag_colors"].split()}) == 3
    how = {"length_scale": 1.0, "features": "fourier", "random_state": 0}
    scores = RFFPCA(2, n_random_features=64, **how).fit_transform(
        cube[["rain", "elevation"]]
    )
    for i in range(2):
        # stored as float32
        assert_allclose(out[f"principal_{i}"], scores[..., i], atol=1e-6)
    document(
        "predict",
        model,
        folder / "cube.zarr",
        folder / "later.zarr",
        "--principal --serial",
    )
    xr.testing.assert_identical(opened(folder / "later.zarr"), out)
    document(
        "cluster",
        folder / "cube.zarr",
        folder / "l.zarr",
        "--model",
        folder / "plain",
        *words,
    )
    predict = [
        "predict",
        folder / "plain",
        folder / "cube.zarr",
        folder / "none.zarr",
        "--principal",
    ]
    assert "`n_principal`" in refusal(2, *predict, "--serial")


@pytest.mark.s3
def test_a_grid_in_an_object_store_or_with_versions_gives_the_same_map(
    folder, server, tmp_path
):
    cube = (
        opened(folder / "cube.zarr")
        .isel(time=slice(12), lat=slice(8), lon=slice(10))
        .load()
        .drop_encoding()
    )
    # consolidated metadata are no part of Zarr 3, which warns of them
    cube.to_zarr(
        open_store(parse_location(server.url("cube.zarr")), read_only=False),
        consolidated=False,
    )
    storage = icechunk.local_filesystem_storage("versions")
    session = icechunk.Repository.create(storage).writable_session("main")
    cube.to_zarr(session.store, consolidated=False)
    session.commit("a cube")
    cube.to_zarr("plain.zarr", consolidated=False)
    words = [
        "--target temperature --inputs rain,elevation,time",
        *PLAIN,
        FEW,
        "--alpha 0.01",
    ]
    maps = []
    digests = set()
    for data, place in (
        ("plain.zarr", str(tmp_path)),
        (server.url("cube.zarr"), server.url("maps")),
        ("versions", "v"),
    ):
        digests.add(document("fit", data, f"{place}/m", *words)["digest"])
        document("predict", f"{place}/m", data, f"{place}/map.zarr", "--std --serial")
        store = open_store(parse_location(f"{place}/map.zarr"))
        maps.append(xr.open_zarr(store, consolidated=False, chunks=None).load())
    assert len(digests) == 1
    for other in maps[1:]:
        xr.testing.assert_equal(other, maps[0])


@pytest.fixture(scope="module")
def patches(tmp_path_factory):
    """Write a map whose target has an offset in each block of 2 x 2 degrees, and return
    its place.
    """
    rng = np.random.default_rng(0)
    lat = np.arange(0, 40, 0.5)
    lon = np.arange(0, 40, 0.5)
    offset = np.kron(rng.normal(size=(20, 20)), np.ones((4, 4)))
    a = rng.normal(size=offset.shape)
    cube = xr.Dataset(
        {
            "a": (("lat", "lon"), a),
            "y": (("lat", "lon"), a + offset + 0.1 * rng.normal(size=a.shape)),
        },
        {"lat": lat, "lon": lon},
    )
    place = tmp_path_factory.mktemp("patches") / "map.zarr"
    cube.to_zarr(place, zarr_format=3, consolidated=False)
    return place


SHORT = "--kernel gaussian --length-scale 0.1 --features fourier --alpha cv"


def test_blocks_of_space_are_held_out_together_and_random_folds_flatter(patches):
    words = ["--inputs a,lat,lon --target y", SHORT, "--n-components 512 --serial"]
    ours = document("fit", patches, "m", *words, "--group-by-block lat=2,lon=2")[
        "estimate"
    ]
    random = document("fit", patches, "r", *words)["estimate"]
    assert "random_rmse" not in random
    # nothing is known of the offset of a block, whose variance is 1; neighbours next to
    # it tell it
    assert ours["rmse"][0] > 0.9
    assert ours["random_rmse"][0] == pytest.approx(random["rmse"][0], rel=0.15)
    assert "random folds" in run("info", "m", "--details").stdout


def test_what_does_not_suit_a_grid_is_refused(folder, patches):
    cube = folder / "cube.zarr"
    new = folder / "new"
    clusters = (
        "cluster",
        folder / "kinds.zarr",
        new,
        "--inputs rain --n-clusters 3 --serial",
    )
    fit = ("fit", cube, new, "--target temperature --inputs rain", *PLAIN, FEW)
    for words, *named in (
        (
            ("predict", folder / "model", cube, folder / "map.csv", "--serial"),
            "--output",
        ),
        ((*clusters, "--labels kind"), "kind"),
        ((*clusters, "--principal"), "--n-principal"),
        ((*fit, "--y rain"), "--target", "--y"),
        ((*fit, "--group-by-block lat=0"), "lat=0"),
        ((*fit, "--time --group-by-block lat=2"), "--group-by-block"),
        (("fit", patches, new, "--target y --inputs a", FEW, "--time"), "--time"),
    ):
        said = refusal(2, *words)
        assert all(one in said for one in named), said
