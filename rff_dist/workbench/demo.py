"""The main job on a photograph: learn the colour of a pixel from its place.

The picture flower.jpg comes with scikit-learn. It gives 273,280 rows of two coordinates, in units of the
picture's width, and three colours. The rows are written to Zarr, a model is trained by the Prefect flow on a
local Dask cluster, and the model predicts the whole picture into Zarr.
"""

import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from rff_dist.engines.dask import DaskEngine
from rff_dist.engines.progress import RichProgress
from rff_dist.errors import OutputExistsError
from rff_dist.ridge import models
from rff_dist.ridge import predict as prediction
from rff_dist.storage import datasets, writing
from rff_dist.typing import Facts, FloatArray, IndexArray, Summary
from rff_dist.workbench.page import pictures
from rff_dist.workbench.results.words import Lines

#: Candidates for the length scale, in units of the picture's width: 0.01 is 6.4 pixels.
LENGTH_SCALES = (0.005, 0.0075, 0.01, 0.015, 0.02)

_MARK = ".rff-dist-demo"  # a file in the folder of a demo, which a later one may replace
_COLOURS = ["red", "green", "blue"]


def run_demo(
    output: Path,
    *,
    n_components: int = 2048,
    seed: int = 0,
    n_workers: int | None = None,
    n_threads: int | None = None,
    stride: int = 1,
    console: Console,
) -> Summary:
    """Train on a photograph through the Prefect flow, and save a picture.

    Takes about a minute on two cores. Prefect's home is a folder below `output`, so that nothing is left in
    the user's home, unless the environment names another.

    `output`: folder for data, model and picture; those of an earlier demo are replaced.
    `n_components`: D.
    `seed`: of the split and the frequencies.
    `n_workers`, `n_threads`: size of the local Dask cluster; all CPUs by default.
    `stride`: with n, only every n-th pixel of each row and column is used.
    `console`: rich.console.Console. It shows progress bars.
    Returns: the figures for `facts_of`, and the files' paths, JSON-able.
    """
    from sklearn.datasets import load_sample_image
    from sklearn.linear_model import LinearRegression

    start = time.perf_counter()
    mark = output / _MARK
    if output.exists() and not mark.exists() and (not output.is_dir() or os.listdir(output)):
        raise OutputExistsError(f"{output} exists, and holds no earlier demo; expected a new folder")
    home = output / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    mark.touch()
    # Prefect reads these when it is imported: its files stay out of the user's home, its logs off the screen.
    os.environ.setdefault("PREFECT_HOME", str(home.resolve()))
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    from rff_dist.flows import running, server, tune

    server.check_server()
    image = load_sample_image("flower.jpg")[::stride, ::stride] / 255.0
    places, learnt, held_out = _write_pixels(image, output, seed)
    console.print(f"[bold]flower.jpg[/bold]: {len(places):,} pixels, half of them to learn from.")
    console.print("Starting Dask and Prefect's temporary server takes about 20 s …\n")
    with (
        RichProgress(console) as progress,
        DaskEngine(n_workers=n_workers, threads_per_worker=n_threads, observers=(progress,)) as engine,
        running.lend_engine(engine),
    ):
        trained = tune.tune(
            data=str(output / "train.zarr"),
            test=str(output / "test.zarr"),
            model=str(output / "model"),
            kernels=["gaussian"],
            length_scales=list(LENGTH_SCALES),
            n_components=n_components,
            n_folds=2,  # enough for so many rows; each fold costs a decomposition for every candidate
            standardize=False,
            seed=seed,
            overwrite=True,
        )
        pixels = datasets.open_dataset(output / "all.zarr", y=None)
        model = models.read_model(output / "model")
        url = output / "predictions.zarr"
        prediction.predict(pixels, model, url, engine=engine, column_names=_COLOURS, overwrite=True)
    stored = datasets.open_dataset(url, x="predictions", y=None)
    predicted = np.asarray(stored.take(np.arange(stored.n_samples))[0], np.float64).reshape(image.shape)
    fitted = LinearRegression().fit(places[learnt], image.reshape(-1, 3)[learnt])
    linear = np.asarray(fitted.predict(places), np.float64).reshape(image.shape)
    figures = {
        "rows": trained["n_samples"],
        "test_rows": trained["metrics"]["n_samples"],
        **{name: trained[name] for name in ("n_components", "length_scale", "alpha")},
        "psnr_linear": _psnr(np.mean((linear - image).reshape(-1, 3)[held_out] ** 2)),
        "psnr": _psnr(np.mean(trained["metrics"]["mse"])),
        "model_digest": trained["digest"],
    }
    masked = np.full(image.shape, 0.5)
    masked.reshape(-1, 3)[learnt] = image.reshape(-1, 3)[learnt]
    about = f"a random half of the {image.shape[1]} × {image.shape[0]} pixels; the others are grey"
    ours = f"Kernel ridge regression, {n_components:,} random Fourier features"
    scale = f"length scale {100 * figures['length_scale']:g} % of the width"
    panels = [
        (masked, "What the models learn from", about),
        (linear, "Linear model", f"{figures['psnr_linear']:.1f} dB on the other half"),
        (predicted, ours, f"{figures['psnr']:.1f} dB on the other half, {scale}"),
    ]
    figure = pictures.draw_comparison(panels, "The colour of a pixel, learnt from its place")
    pictures.save(figure, output / "comparison.png")
    names = ("comparison.png", "model", "predictions.zarr", "train.zarr", "test.zarr", "all.zarr")
    figures["files"] = [str(output / name) for name in names]
    figures["seconds"] = time.perf_counter() - start
    return figures


def _write_pixels(
    image: FloatArray, folder: Path, seed: int
) -> tuple[NDArray[np.float32], IndexArray, IndexArray]:
    """Write the pixels as rows: two halves, and all; return their places and which are in either half."""
    height, width = image.shape[:2]
    row, column = np.divmod(np.arange(height * width), width)
    places = ((np.column_stack([column, row]) + 0.5) / width).astype(np.float32)
    shuffled = np.random.Generator(np.random.Philox(seed)).permutation(len(places))
    halves = [np.sort(half) for half in np.split(shuffled, [len(places) // 2])]
    names: dict[str, Any] = {"feature_names": ["x", "y"], "overwrite": True}
    for name, pixels in zip(("train.zarr", "test.zarr"), halves, strict=True):
        colours = image.reshape(-1, 3)[pixels]
        writing.write_dataset(folder / name, places[pixels], colours, target_names=_COLOURS, **names)
    writing.write_dataset(folder / "all.zarr", places, **names)
    return places, halves[0], halves[1]


def _psnr(mean_squared_error: float | np.floating[Any]) -> float:
    """Peak signal-to-noise ratio in decibels, for colours from 0 to 1."""
    return -10 * math.log10(mean_squared_error)


def facts_of(figures: Facts) -> Lines:
    """Return the figures in words."""
    scales = f"the best of {len(LENGTH_SCALES)} by cross-validation"
    return {
        "rows": f"{figures['rows']:,} to learn from, {figures['test_rows']:,} to test on",
        "features": f"D = {figures['n_components']:,}",
        "length scale": f"{figures['length_scale']:g} of the width, {scales}",
        "alpha": ", ".join(f"{alpha:.2g}" for alpha in np.atleast_1d(figures["alpha"])),
        "PSNR": f"{figures['psnr']:.1f} dB (linear model: {figures['psnr_linear']:.1f} dB)",
        "seconds": f"{figures['seconds']:.0f} in all",
        "files": f"{figures['files'][0]}, next to the data and the model",
    }
