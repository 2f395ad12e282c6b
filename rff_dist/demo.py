"""The two main jobs on pictures: learn the colour of a pixel from its place, and cluster handwritten digits.

The picture flower.jpg comes with scikit-learn. It gives 273,280 rows of two coordinates, in units of the
picture's width, and three colours. The rows are written to Zarr, a model is trained by the Prefect flow on a
local Dask cluster, and the model predicts the whole picture into Zarr.

Then scikit-learn's 1,797 handwritten digits of 8 × 8 pixels are clustered on the same engine by kernel
k-means, with the median heuristic's length scale and without their names, and compared with plain k-means.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from rff_dist.engines.dask import DaskEngine
from rff_dist.engines.progress import RichProgress
from rff_dist.engines.protocol import Engine
from rff_dist.errors import InvalidParameterError
from rff_dist.estimators.kmeans import RFFKMeans
from rff_dist.report import Panel, save_comparison
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.model import read_model
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.writing import write_dataset
from rff_dist.typing import FloatArray

#: Candidates for the length scale, in units of the picture's width: 0.01 is 6.4 pixels.
LENGTH_SCALES = (0.005, 0.0075, 0.01, 0.015, 0.02)

_COLOURS = ["red", "green", "blue"]


def run_demo(
    output: Path,
    *,
    n_components: int = 2048,
    seed: int = 0,
    workers: int | None = None,
    threads: int | None = None,
    stride: int = 1,
    console: Console,
) -> dict[str, Any]:
    """Train on a photograph through the Prefect flow, cluster digits, show the figures and save a picture.

    Takes about a minute on two cores. Prefect's home is a folder below `output`, so that nothing is left in
    the user's home, unless the environment names another.

    `output`: folder for data, model and picture; those of an earlier demo are replaced.
    `n_components`: D.
    `seed`: of the split, the frequencies and the starts of the clusters.
    `workers`, `threads`: size of the local Dask cluster; all CPUs by default.
    `stride`: with n, only every n-th pixel of each row and column is used.
    `console`: rich.console.Console. It shows progress bars and the final table.
    Returns: the table's figures and the files' paths, JSON-able.
    Raises InvalidParameterError if `stride` is below 1.
    """
    if stride < 1:
        raise InvalidParameterError(f"`stride` is {stride}; expected at least 1")
    from sklearn.datasets import load_sample_image

    start = time.perf_counter()
    # Prefect reads these when it is imported: its files stay out of the user's home, its logs off the screen.
    os.environ.setdefault("PREFECT_HOME", str((output / "prefect").resolve()))
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    image = load_sample_image("flower.jpg")[::stride, ::stride] / 255.0
    places, learnt, held_out = _write_pixels(image, output, seed)
    console.print(
        f"[bold]flower.jpg[/bold]: {len(places):,} pixels, half of them to learn from.\n"
        "Starting Dask and Prefect's temporary server takes about 20 s …\n",
        highlight=False,
    )
    with (
        RichProgress(console) as progress,
        DaskEngine(n_workers=workers, threads_per_worker=threads, observers=(progress,)) as engine,
    ):
        trained = _train(output, engine, n_components=n_components, seed=seed)
        predicted = _predict(output, engine).reshape(image.shape)
        digits = _cluster(engine, n_components=n_components, seed=seed)
    linear = _fit_linear(places, image, learnt)

    def psnr_of(picture: FloatArray) -> float:
        return _psnr(np.mean((picture - image).reshape(-1, 3)[held_out] ** 2))

    figures = {
        "rows": trained["n_samples"],
        "test_rows": trained["metrics"]["n_samples"],
        **{name: trained[name] for name in ("n_components", "length_scale", "alpha")},
        "psnr_linear": psnr_of(linear),
        # Of the raw predictions; clipping them to valid colours makes it a little better.
        "psnr": _psnr(np.mean(trained["metrics"]["mse"])),
        "psnr_clipped": psnr_of(predicted.clip(0, 1)),
        "model_digest": trained["digest"],
        "digits": digits,
    }
    _save_picture(output, image, learnt, figures, linear=linear, predicted=predicted)
    names = ("comparison.png", "model", "predictions.zarr", "train.zarr", "test.zarr", "all.zarr")
    folder = Path(os.path.relpath(output)) if output.resolve().is_relative_to(Path.cwd()) else output
    figures["files"] = [str(folder / name) for name in names]
    figures["seconds"] = time.perf_counter() - start
    _show(figures, console)
    return figures


def _write_pixels(
    image: FloatArray, folder: Path, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.intp], NDArray[np.intp]]:
    """Write the pixels as rows: two halves, and all; return their places and which are in either half."""
    height, width = image.shape[:2]
    row, column = np.divmod(np.arange(height * width), width)
    places = ((np.column_stack([column, row]) + 0.5) / width).astype(np.float32)
    shuffled = np.random.Generator(np.random.Philox(seed)).permutation(len(places))
    halves = [np.sort(half) for half in np.split(shuffled, [len(places) // 2])]
    names: dict[str, Any] = {"feature_names": ["x", "y"], "overwrite": True}
    for name, pixels in zip(("train.zarr", "test.zarr"), halves, strict=True):
        colours = image.reshape(-1, 3)[pixels]
        write_dataset(folder / name, places[pixels], colours, target_names=_COLOURS, **names)
    write_dataset(folder / "all.zarr", places, **names)
    return places, halves[0], halves[1]


def _train(folder: Path, engine: Engine, *, n_components: int, seed: int) -> dict[str, Any]:
    # Imported here, since Prefect takes two seconds and reads its settings when it is imported.
    from rff_dist.flows.running import lend_engine
    from rff_dist.flows.tune import tune

    with lend_engine(engine):
        return tune(
            data=str(folder / "train.zarr"),
            test=str(folder / "test.zarr"),
            model=str(folder / "model"),
            kernels=["gaussian"],
            length_scales=list(LENGTH_SCALES),
            n_components=n_components,
            folds=2,  # enough for so many rows; each fold costs a decomposition for every candidate
            standardize=False,
            seed=seed,
            overwrite=True,
        )


def _predict(folder: Path, engine: Engine) -> FloatArray:
    """Predict every pixel into Zarr and read the result, shape (n_pixels, 3)."""
    url, pixels = folder / "predictions.zarr", open_dataset(folder / "all.zarr", y=None)
    model = read_model(folder / "model")
    prediction.predict(pixels, model, url, engine=engine, column_names=_COLOURS, overwrite=True)
    predictions = open_dataset(url, x="predictions", y=None)
    return np.asarray(predictions.take(np.arange(predictions.n_samples))[0], np.float64)


def _fit_linear(places: NDArray[np.float32], image: FloatArray, learnt: NDArray[np.intp]) -> FloatArray:
    from sklearn.linear_model import LinearRegression

    linear = LinearRegression().fit(places[learnt], image.reshape(-1, 3)[learnt])
    return np.asarray(linear.predict(places), np.float64).reshape(image.shape)


def _cluster(engine: Engine, *, n_components: int, seed: int) -> dict[str, Any]:
    """Cluster the digits by kernel k-means and by k-means of their pixels; compare both with their names."""
    from sklearn.cluster import KMeans
    from sklearn.datasets import load_digits
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    start = time.perf_counter()
    pixels, names = load_digits(return_X_y=True)
    pixels = (pixels / 16).astype(np.float32)
    ours = RFFKMeans(
        10, n_components=n_components, n_init=10, standardize=False, random_state=seed, engine=engine
    ).fit(pixels)
    seconds = time.perf_counter() - start
    plain = KMeans(10, n_init=10, random_state=seed).fit(pixels)
    scores = {"ari": adjusted_rand_score, "nmi": normalized_mutual_info_score}
    return {
        "rows": len(pixels),
        "length_scale": ours.length_scale_,
        "passes": len(ours.clusters_.inertias),
        "inertia": ours.inertia_,
        "seconds": seconds,
        **{name: float(score(names, ours.labels_)) for name, score in scores.items()},
        **{f"{name}_plain": float(score(names, plain.labels_)) for name, score in scores.items()},
    }


def _psnr(mean_squared_error: float | np.floating[Any]) -> float:
    """Peak signal-to-noise ratio in decibels, for colours from 0 to 1."""
    return -10 * math.log10(mean_squared_error)


def _save_picture(
    folder: Path,
    image: FloatArray,
    learnt: NDArray[np.intp],
    figures: Mapping[str, Any],
    *,
    linear: FloatArray,
    predicted: FloatArray,
) -> None:
    # At lower levels matplotlib reports on its font cache.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.WARNING)
    height, width = image.shape[:2]
    masked = np.full((height * width, 3), 0.5)
    masked[learnt] = image.reshape(-1, 3)[learnt]
    about = f"a random half of the {width} × {height} pixels; the others are grey"
    ours = f"Kernel ridge regression, {figures['n_components']:,} random Fourier features"
    scale = f"length scale {100 * figures['length_scale']:g} % of the width"
    panels = [
        Panel(masked.reshape(image.shape), "What the models learn from", about),
        Panel(linear, "Linear model", f"{figures['psnr_linear']:.1f} dB on the other half"),
        Panel(predicted, ours, f"{figures['psnr']:.1f} dB on the other half, {scale}"),
    ]
    save_comparison(folder / "comparison.png", panels, "The colour of a pixel, learnt from its place")


def _show(figures: Mapping[str, Any], console: Console) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    digits = figures["digits"]
    lines = {
        "rows": f"{figures['rows']:,} to learn from, {figures['test_rows']:,} to test on",
        "features": f"D = {figures['n_components']:,}",
        "length scale": f"{figures['length_scale']:g} of the width, the best of {len(LENGTH_SCALES)} by "
        "cross-validation",
        "alpha": ", ".join(f"{alpha:.2g}" for alpha in np.atleast_1d(figures["alpha"])),
        "PSNR": f"[bold green]{figures['psnr']:.1f} dB[/] (linear model: {figures['psnr_linear']:.1f} dB)",
        "digits": f"{digits['rows']:,} in 10 clusters, found without their names, in {digits['passes']} "
        f"passes and {digits['seconds']:.0f} s",
        "agreement": f"[bold green]ARI {digits['ari']:.3f}, NMI {digits['nmi']:.3f}[/] "
        f"(k-means of the pixels: {digits['ari_plain']:.3f}, {digits['nmi_plain']:.3f})",
        "seconds": f"{figures['seconds']:.0f} in all",
        "files": f"[cyan]{figures['files'][0]}[/], next to the data and the model",
    }
    for name, value in lines.items():
        table.add_row(name, value)
    console.print()
    console.print(table, highlight=False, soft_wrap=True)
