"""The demo on every eighth pixel, through Prefect's temporary server and a Dask
cluster.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_sample_image

from rff_dist import load_model, open_dataset
from rff_dist.engines.cluster import Cluster
from rff_dist.workbench.cli.demo import LENGTH_SCALES, learn_photograph

pytestmark = [
    pytest.mark.documents,
    pytest.mark.flows,
    pytest.mark.distributed,
    pytest.mark.usefixtures("prefect_server"),
]

STRIDE = 8


def run(folder, n_workers):
    where = Cluster(n_workers=n_workers, n_threads=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_LOGGING_LEVEL", "WARNING")
        document = learn_photograph(folder, 512, 0, where, STRIDE)
        assert [command[0] for command in document.next] == ["auto"]
        return document.record


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Run the demo once: its folder and its record."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, run(folder, 2)


def test_psnr_is_measured_on_the_pixels_that_were_not_learnt_from(demo):
    folder, record = demo
    picture = load_sample_image("flower.jpg")[::STRIDE, ::STRIDE] / 255.0
    places = open_dataset(folder / "test.zarr").X[:]
    column, row = np.floor(places * picture.shape[1]).astype(int).T
    predicted = load_model(folder / "model").predict(places)
    squared = (predicted - picture[row, column]) ** 2
    # float32 features
    assert record["psnr"] == pytest.approx(-10 * np.log10(squared.mean()), abs=1e-6)


def test_halves_share_no_pixel_and_miss_none(demo):
    folder, record = demo
    height, width = load_sample_image("flower.jpg")[::STRIDE, ::STRIDE].shape[:2]
    halves = [open_dataset(folder / f"{name}.zarr") for name in ("train", "test")]
    sizes = [half.n_samples for half in halves]
    assert sizes == [record["rows"], record["test_rows"]]
    assert abs(sizes[0] - sizes[1]) <= 1
    both = np.concatenate([half.X[:] for half in halves])
    pixels = np.floor(both * width).astype(int)
    assert {tuple(pixel) for pixel in pixels.tolist()} == {
        (x, y) for x in range(width) for y in range(height)
    }
    assert len(pixels) == width * height


def test_features_beat_the_linear_model_even_with_few_of_them(demo):
    _, record = demo
    assert record["psnr"] > record["psnr_linear"] + 5.0
    assert record["length_scale"] in LENGTH_SCALES


def test_second_demo_replaces_the_first_with_one_worker_as_with_two(demo):
    folder, record = demo
    assert run(folder, 1)["model_digest"] == record["model_digest"]
