"""The demo on every eighth pixel, through Prefect's temporary server and a Dask cluster."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from sklearn.datasets import load_sample_image

from rff_dist.storage.datasets import open_dataset
from rff_dist.workbench.demo import LENGTH_SCALES, run_demo

pytestmark = [
    pytest.mark.documents,
    pytest.mark.flows,
    pytest.mark.distributed,
    pytest.mark.usefixtures("prefect_server"),
]

STRIDE = 8
N_COMPONENTS = 512


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """Run the demo once: its folder, what it returned and what it showed."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_LOGGING_LEVEL", "WARNING")  # the demo would leave it set
        shown = Console(file=text, width=100)
        figures = run_demo(
            folder, n_components=N_COMPONENTS, n_workers=2, n_threads=1, stride=STRIDE, console=shown
        )
    return folder, figures, text.getvalue()


def test_psnr_is_measured_on_the_pixels_that_were_not_learnt_from(demo):
    folder, figures, _ = demo
    picture = load_sample_image("flower.jpg")[::STRIDE, ::STRIDE] / 255.0
    predicted = open_dataset(folder / "predictions.zarr", x="predictions", y=None).X[:].reshape(picture.shape)
    places = open_dataset(folder / "test.zarr").X[:] * picture.shape[1]
    column, row = np.floor(places).astype(int).T
    squared = (predicted[row, column] - picture[row, column]) ** 2
    assert figures["psnr"] == pytest.approx(-10 * np.log10(squared.mean()), abs=1e-6)  # float32 features


def test_halves_share_no_pixel_and_miss_none(demo):
    folder, figures, _ = demo
    learnt, held_out, everything = (
        open_dataset(folder / f"{name}.zarr") for name in ("train", "test", "all")
    )
    both = np.concatenate([learnt.X[:], held_out.X[:]])
    assert abs(learnt.n_samples - held_out.n_samples) <= 1
    np.testing.assert_array_equal(np.unique(both, axis=0), np.unique(everything.X[:], axis=0))
    assert len(np.unique(both, axis=0)) == figures["rows"] + figures["test_rows"] == everything.n_samples


def test_features_beat_the_linear_model_even_with_few_of_them(demo):
    _, figures, _ = demo
    assert figures["psnr"] > figures["psnr_linear"] + 5.0
    assert figures["length_scale"] in LENGTH_SCALES


def test_second_demo_replaces_the_first(demo, tmp_path, monkeypatch):
    folder, figures, _ = demo
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "WARNING")
    home = os.environ["PREFECT_HOME"]
    shown = Console(file=io.StringIO())
    again = run_demo(
        folder, n_components=N_COMPONENTS, n_workers=1, n_threads=1, stride=STRIDE, console=shown
    )
    assert again["model_digest"] == figures["model_digest"]  # with one worker as with two
    assert os.environ["PREFECT_HOME"] == home  # what the user has set stays
