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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rff_dist.data.blocks import Block
from rff_dist.engines.dask import DaskEngine
from rff_dist.engines.progress import Event, Observer, PassTimings, RichProgress
from rff_dist.engines.protocol import Engine
from rff_dist.errors import InvalidParameterError
from rff_dist.estimators.kmeans import RFFKMeans
from rff_dist.kmeans import labels as kmeans_labels
from rff_dist.kmeans.agreement import Contingency, count_agreement
from rff_dist.numerics.machine import available_cores
from rff_dist.report import Panel, save_comparison
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.model import read_model
from rff_dist.ridge.plan import measure_gflops
from rff_dist.storage.columns import open_column
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.writing import write_dataset
from rff_dist.typing import FloatArray

#: Candidates for the length scale, in units of the picture's width: 0.01 is 6.4 pixels.
LENGTH_SCALES = (0.005, 0.0075, 0.01, 0.015, 0.02)

_FOLDS = 2  # enough for so many rows; each fold costs a decomposition for every candidate
_PICTURE = "flower.jpg"
_DIGITS, _DIGIT_STARTS = 10, 10
_EXAMPLES = 18  # digits shown of each cluster
_UNKNOWN = 0.5  # the grey of held-out pixels
_MISTAKE = (0.90, 0.62, 0.0)  # the background of a digit in a cluster of other digits


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
    """Train on a photograph through the Prefect flow, cluster digits, show the figures and save pictures.

    Takes one to two minutes on two cores. Prefect's home is a folder below `output`, so that nothing is left
    in the user's home, unless the environment names another.

    `output`: folder for data, model and pictures; those of an earlier demo are replaced.
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
    start = time.perf_counter()
    _prepare_prefect(output)
    photo = _load_photo(stride, seed)
    height, width = photo.image.shape[:2]
    console.print(
        f"[bold]{_PICTURE}[/bold]: {height * width:,} pixels, half of them to learn from.\n"
        "Starting Dask and Prefect's temporary server takes about 20 s …\n",
        highlight=False,
    )
    digits = _load_digits()
    _write_data(photo, output)
    write_dataset(output / "digits.zarr", digits.pixels, digits.names, overwrite=True)
    gflops = measure_gflops()
    timings = PassTimings()
    with RichProgress(console) as progress:
        shown = _without_lloyd(progress)
        with DaskEngine(n_workers=workers, threads_per_worker=threads, observers=(shown, timings)) as engine:
            trained = _train(output, engine, n_components=n_components, seed=seed)
            predicted = _predict(output, engine).reshape(height, width, 3)
            clustered = _cluster(digits, output, engine, n_components=n_components, seed=seed)
    gflops = max(gflops, measure_gflops())  # the better of two, since the first may have been disturbed
    linear = _fit_linear(photo).reshape(height, width, 3)
    figures = _figures(photo, trained, linear=linear, predicted=predicted)
    _save_picture(output, photo, figures, linear=linear, predicted=predicted)
    plain = _cluster_pixels(digits, seed=seed)
    _save_digits(output, digits, clustered, plain)
    seconds = timings.seconds("accumulate")
    flops = trained["flops_per_pass"] * len(LENGTH_SCALES)
    n_cores = available_cores()
    figures |= {
        "accumulate_seconds": seconds,
        "gflops_per_core": gflops,
        "share_of_limit": flops / (seconds * gflops * 1e9 * n_cores),
        "n_cores": n_cores,
        "digits": _digit_figures(clustered, plain),
        "seconds": time.perf_counter() - start,
        "files": _files(output),
    }
    _show(figures, console)
    return figures


# -- data ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Photo:
    """The picture as rows, one for each pixel.

    `image`: float64 array of shape (height, width, 3). Colours from 0 to 1.
    `places`: float32 array of shape (n_pixels, 2). Distances of each centre from the left and the top, in
      units of the width.
    `colours`: float64 array of shape (n_pixels, 3).
    `learnt`, `held_out`: int arrays. Indices of the pixels in each half.
    """

    image: FloatArray
    places: NDArray[np.float32]
    colours: FloatArray
    learnt: NDArray[np.intp]
    held_out: NDArray[np.intp]


def _files(folder: Path) -> dict[str, str]:
    """Return the paths of the demo's files, relative to the working folder if they are below it."""
    names = (
        *("comparison.png", "digits.png", "model", "predictions.zarr", "train.zarr", "test.zarr"),
        *("all.zarr", "digits.zarr", "digits-labels.zarr"),
    )
    folder, here = folder.resolve(), Path.cwd()
    shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
    return {name: str(shown / name) for name in names}


def _load_photo(stride: int, seed: int) -> _Photo:
    from sklearn.datasets import load_sample_image

    image = load_sample_image(_PICTURE)[::stride, ::stride] / 255.0
    height, width = image.shape[:2]
    row, column = np.divmod(np.arange(height * width), width)
    places = (np.column_stack([column, row]) + 0.5) / width
    shuffled = np.random.Generator(np.random.Philox(seed)).permutation(height * width)
    half = len(shuffled) // 2
    return _Photo(
        image,
        places.astype(np.float32),
        image.reshape(-1, 3),
        np.sort(shuffled[:half]),
        np.sort(shuffled[half:]),
    )


def _write_data(photo: _Photo, folder: Path) -> None:
    names: dict[str, Any] = {"feature_names": ["x", "y"], "overwrite": True}
    for name, pixels in (("train.zarr", photo.learnt), ("test.zarr", photo.held_out)):
        write_dataset(
            folder / name,
            photo.places[pixels],
            photo.colours[pixels],
            target_names=["red", "green", "blue"],
            **names,
        )
    write_dataset(folder / "all.zarr", photo.places, **names)


# -- the job ---------------------------------------------------------------------------------------


def _prepare_prefect(output: Path) -> None:
    """Keep Prefect's files out of the user's home and its logs off the screen.

    Prefect reads these variables when it is imported, so this comes first.
    """
    os.environ.setdefault("PREFECT_HOME", str((output / "prefect").resolve()))
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")


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
            folds=_FOLDS,
            standardize=False,
            seed=seed,
            overwrite=True,
        )


def _predict(folder: Path, engine: Engine) -> FloatArray:
    """Predict every pixel into Zarr and read the result, shape (n_pixels, 3)."""
    url = folder / "predictions.zarr"
    prediction.predict(
        open_dataset(folder / "all.zarr", y=None),
        read_model(folder / "model"),
        url,
        engine=engine,
        column_names=["red", "green", "blue"],
        overwrite=True,
    )
    predictions = open_dataset(url, x="predictions", y=None)
    return np.asarray(predictions.read(Block(0, 0, predictions.n_samples)).X, np.float64)


def _fit_linear(photo: _Photo) -> FloatArray:
    from sklearn.linear_model import LinearRegression

    linear = LinearRegression().fit(photo.places[photo.learnt], photo.colours[photo.learnt])
    return np.asarray(linear.predict(photo.places), np.float64)


# -- the second act --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Digits:
    """Handwritten digits: pixels from 0 to 1, of shape (n_digits, 64), and the digit that each shows."""

    pixels: NDArray[np.float32]
    names: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Clustered:
    """A clustering of the digits.

    `labels`: int32 array of shape (n_digits,).
    `distances`: float64 array of shape (n_digits, 10). Distances to all centres.
    `agreement`: counts of digits by name and cluster.
    `facts`: how the clustering was found; JSON-able.
    """

    labels: NDArray[np.int32]
    distances: FloatArray
    agreement: Contingency
    facts: Mapping[str, Any]


def _load_digits() -> _Digits:
    from sklearn.datasets import load_digits

    pixels, names = load_digits(return_X_y=True)
    return _Digits((pixels / 16).astype(np.float32), names.astype(np.int64))


def _cluster(digits: _Digits, folder: Path, engine: Engine, *, n_components: int, seed: int) -> _Clustered:
    """Cluster the stored digits, write the labels, and count how well they agree with the digits' names."""
    start = time.perf_counter()
    url, labelled = folder / "digits.zarr", folder / "digits-labels.zarr"
    dataset = open_dataset(url)
    model = RFFKMeans(
        _DIGITS,
        n_components=n_components,
        n_init=_DIGIT_STARTS,
        standardize=False,
        random_state=seed,
        engine=engine,
    ).fit(dataset)
    found = model.clusters_
    kmeans_labels.write_labels(dataset, found, labelled, engine=engine, distances=True, overwrite=True)
    agreement = kmeans_labels.evaluate(dataset, open_column(url, "y"), found, engine=engine)
    everything = Block(0, 0, len(digits.names))
    return _Clustered(
        np.asarray(open_column(labelled, "labels").read(everything), np.int32),
        np.asarray(open_dataset(labelled, x="distances", y=None).read(everything).X, np.float64),
        agreement,
        {
            "rows": agreement.n_samples,
            "n_clusters": found.n_clusters,
            "length_scale": model.length_scale_,
            "starts": _DIGIT_STARTS,
            "passes": len(found.inertias),
            "inertia": found.inertia,
            "seconds": time.perf_counter() - start,
        },
    )


def _cluster_pixels(digits: _Digits, *, seed: int) -> _Clustered:
    from sklearn.cluster import KMeans

    model = KMeans(_DIGITS, n_init=_DIGIT_STARTS, random_state=seed).fit(digits.pixels)
    labels = np.asarray(model.labels_, np.int32)
    return _Clustered(
        labels,
        np.asarray(model.transform(digits.pixels), np.float64),
        count_agreement(digits.names, labels, _DIGITS),
        {},
    )


def _digit_figures(clustered: _Clustered, plain: _Clustered) -> dict[str, Any]:
    return {
        **clustered.facts,
        "ari": clustered.agreement.adjusted_rand_index,
        "nmi": clustered.agreement.normalized_mutual_information,
        "ari_plain": plain.agreement.adjusted_rand_index,
        "nmi_plain": plain.agreement.normalized_mutual_information,
    }


def _save_digits(folder: Path, digits: _Digits, clustered: _Clustered, plain: _Clustered) -> None:
    panels = []
    for title, found in (("k-means of the pixels", plain), ("Kernel k-means", clustered)):
        strangers = len(digits.names) - int(found.agreement.counts.max(axis=0).sum())
        words = f"{strangers:,} of {len(digits.names):,} digits are in a cluster of another digit (orange)"
        index = f"adjusted Rand index {found.agreement.adjusted_rand_index:.3f}"
        panels.append(Panel(_examples(digits, found), title, f"{words}\n{index}"))
    title = f"Each cluster's mean, and {_EXAMPLES} of its digits from its centre to its edge"
    save_comparison(folder / "digits.png", panels, title)


def _examples(digits: _Digits, found: _Clustered) -> FloatArray:
    """Return a picture with a line for each cluster, ordered by the digit that is most common in it.

    A line shows the cluster's mean, then members at even steps of the rank of their distance from the centre.
    Members that show another digit than most have an orange background.
    """
    counts = found.agreement.counts
    order = np.lexsort([-counts.max(axis=0), counts.argmax(axis=0)])
    # digits of 8 × 8 pixels with 2 pixels between them, and 2 more after the mean
    picture = np.ones((10 * len(order) - 2, 10 * (_EXAMPLES + 1), 3))
    for line, cluster in enumerate(order):
        rows = np.flatnonzero(found.labels == cluster)
        if not len(rows):
            continue
        name = found.agreement.labels[counts[:, cluster].argmax()]
        ranked = rows[np.argsort(found.distances[rows, cluster], kind="stable")]
        steps = np.unique(np.linspace(0, len(ranked) - 1, _EXAMPLES).astype(int))
        shown = [(digits.pixels[rows].mean(axis=0), True)]
        shown += [(digits.pixels[row], bool(digits.names[row] == name)) for row in ranked[steps]]
        for place, (pixels, is_one) in enumerate(shown):
            left = 10 * place + 2 * (place > 0)
            ground = np.ones(3) if is_one else np.array(_MISTAKE)
            square = picture[10 * line : 10 * line + 8, left : left + 8]
            square[:] = (1 - pixels.reshape(8, 8, 1)) * ground
    return picture


# -- what is shown ---------------------------------------------------------------------------------


def _without_lloyd(observer: Observer) -> Observer:
    """Keep Lloyd passes from an observer: there are tens of them, and each takes a moment."""

    def tell(event: Event) -> None:
        if event.label != "lloyd":
            observer(event)

    return tell


def _figures(
    photo: _Photo, trained: Mapping[str, Any], *, linear: FloatArray, predicted: FloatArray
) -> dict[str, Any]:
    truth = photo.colours[photo.held_out]

    def psnr_of(image: FloatArray) -> float:
        return _psnr(np.mean((image.reshape(-1, 3)[photo.held_out] - truth) ** 2))

    return {
        "rows": trained["n_samples"],
        "test_rows": trained["metrics"]["n_samples"],
        "n_components": trained["n_components"],
        "length_scale": trained["length_scale"],
        "alpha": trained["alpha"],
        "psnr_linear": psnr_of(linear),
        # Of the raw predictions; clipping them to valid colours makes it a little better.
        "psnr": _psnr(np.mean(trained["metrics"]["mse"])),
        "psnr_clipped": psnr_of(predicted.clip(0, 1)),
        "model_digest": trained["digest"],
    }


def _psnr(mean_squared_error: float | np.floating[Any]) -> float:
    """Peak signal-to-noise ratio in decibels, for colours from 0 to 1."""
    return -10 * math.log10(mean_squared_error)


def _save_picture(
    folder: Path, photo: _Photo, figures: Mapping[str, Any], *, linear: FloatArray, predicted: FloatArray
) -> None:
    # At lower levels matplotlib reports on its font cache.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.WARNING)
    height, width = photo.image.shape[:2]
    masked = np.full_like(photo.colours, _UNKNOWN)
    masked[photo.learnt] = photo.colours[photo.learnt]
    panels = [
        Panel(
            masked.reshape(photo.image.shape),
            "What the models learn from",
            f"a random half of the {width} × {height} pixels; the others are grey",
        ),
        Panel(linear, "Linear model", f"{figures['psnr_linear']:.1f} dB on the other half"),
        Panel(
            predicted,
            f"Kernel ridge regression, {figures['n_components']:,} random Fourier features",
            f"{figures['psnr']:.1f} dB on the other half, "
            f"length scale {100 * figures['length_scale']:g} % of the width",
        ),
    ]
    save_comparison(folder / "comparison.png", panels, "The colour of a pixel, learnt from its place")


def _show(figures: Mapping[str, Any], console: Console) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    digits = figures["digits"]
    lines = {
        "rows": f"{figures['rows']:,} to learn from, {figures['test_rows']:,} to test on",
        "features": f"D = {figures['n_components']:,}",
        "length scale": f"{figures['length_scale']:g} of the width, the best of {len(LENGTH_SCALES)} by "
        "cross-validation",
        "alpha": ", ".join(f"{alpha:.2g}" for alpha in np.atleast_1d(figures["alpha"])),
        "PSNR": f"[bold green]{figures['psnr']:.1f} dB[/] (linear model: {figures['psnr_linear']:.1f} dB)",
        "seconds": f"{figures['seconds']:.0f} in all, {figures['accumulate_seconds']:.0f} of them for the "
        f"statistics of {len(LENGTH_SCALES)} length scales",
        "processor": f"{figures['share_of_limit']:.0%} of what {figures['n_cores']} cores can do "
        f"({figures['gflops_per_core']:.0f} GFLOP/s each in float64 products)",
        "digits": f"{digits['rows']:,} in {digits['n_clusters']} clusters, found without their names, in "
        f"{digits['passes']} passes and {digits['seconds']:.0f} s",
        "agreement": f"[bold green]ARI {digits['ari']:.3f}, NMI {digits['nmi']:.3f}[/] "
        f"(k-means of the pixels: {digits['ari_plain']:.3f}, {digits['nmi_plain']:.3f})",
    }
    for name, value in lines.items():
        table.add_row(name, value)
    for number, path in enumerate(figures["files"].values()):
        table.add_row("files" if number == 0 else "", Text(path, "cyan"))
    console.print()
    console.print(table, highlight=False, soft_wrap=True)
