"""Time and held-out error by D: RFFRidge from Zarr beside scikit-learn on the same rows in memory.

All have the Gaussian kernel with one length scale and one alpha, given. With `--keep` the picture of time
against error stays in the folder. dask-ml is not shown: its linear models die with SciPy 1.18, which lacks an
argument that dask-glm 0.4 gives.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from rich.console import Console
from rich.table import Table

from benchmarks.measure import in_subprocess, make_arm

ROUNDS = 2
N_SAMPLES, N_TEST = 60_000, 5_000
SIZES = (256, 512, 1024, 2048)
LENGTH_SCALE, ALPHA = 2.0, 1e-3

_COMMON = """
import json, resource, sys, time
import numpy as np
from rff_dist import Gaussian, RFFRidge, open_dataset
from rff_dist.data.blocks import Block
train, test, n_components, length_scale, alpha = *sys.argv[1:3], int(sys.argv[3]), *map(float, sys.argv[4:6])
def read(path, dtype=np.float64):
    dataset = open_dataset(path)
    rows = dataset.read(Block(0, 0, dataset.n_samples))
    return rows.X.astype(dtype), rows.y[:, 0].astype(dtype)
def report(fit, predict, dtype=np.float64):
    X, y = read(test, dtype)
    start = time.perf_counter()
    fit()
    taken = time.perf_counter() - start
    error = np.sqrt(np.mean((np.asarray(predict(X), np.float64) - y) ** 2)) / y.std()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": taken, "peak_mib": peak, "error": float(error)}))
given = {"n_components": n_components, "random_state": 0}
"""

_OURS = (
    _COMMON
    + """
model = RFFRidge(
    Gaussian(length_scale), features=sys.argv[6], alpha=alpha, standardize=False, **given
)
report(lambda: model.fit(train), model.predict)
"""
)

_SCIKIT_LEARN = (
    _COMMON
    + """
import warnings
from scipy.linalg import LinAlgWarning
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
warnings.simplefilter("ignore", LinAlgWarning)  # the error shows what a float32 Gram does
gamma, dtype = 0.5 / length_scale**2, np.dtype(sys.argv[7])
sampler = {"RBFSampler": RBFSampler, "Nystroem": Nystroem}[sys.argv[6]](gamma=gamma, **given)
model = make_pipeline(sampler, Ridge(alpha=alpha))
X, y = read(train, dtype)
report(lambda: model.fit(X, y), model.predict, dtype)
"""
)


@dataclass(frozen=True)
class Rival:
    """Who is measured, by which code and words for it, and how it is drawn."""

    name: str
    code: str
    arguments: tuple[str, ...]
    colour: str
    marker: str


RIVALS = (
    Rival("RFFRidge, Fourier", _OURS, ("fourier",), "#0b6e99", "o"),
    Rival("RFFRidge, Nyström", _OURS, ("nystrom",), "#0b6e99", "s"),
    Rival("RBFSampler + Ridge, float64", _SCIKIT_LEARN, ("RBFSampler", "float64"), "#c2410c", "o"),
    Rival("RBFSampler + Ridge, float32", _SCIKIT_LEARN, ("RBFSampler", "float32"), "#e8a27c", "o"),
    Rival("Nystroem + Ridge, float64", _SCIKIT_LEARN, ("Nystroem", "float64"), "#c2410c", "s"),
)


def run(console: Console, folder: Path) -> None:
    cores = str(len(os.sched_getaffinity(0)))
    train = str(make_arm(folder, N_SAMPLES).url)
    test = str(make_arm(folder, N_TEST, first_row=N_SAMPLES).url)
    found: dict[Rival, list[dict[str, float]]] = {rival: [] for rival in RIVALS}
    for size in SIZES:
        words = (train, test, str(size), str(LENGTH_SCALE), str(ALPHA))
        runs: dict[Rival, list[dict[str, float]]] = {rival: [] for rival in RIVALS}
        for _ in range(ROUNDS):
            for rival in RIVALS:
                runs[rival].append(in_subprocess(rival.code, *words, *rival.arguments, OMP_NUM_THREADS=cores))
        for rival, taken in runs.items():
            found[rival].append(min(taken, key=lambda one: one["seconds"]))
    print_table(console, found)
    path = folder / "time-against-error.png"
    save_picture(path, found)
    console.print(
        f"{N_SAMPLES:_} × 8 of a robot arm; errors of {N_TEST:_} others over their deviation; "
        f"length scale {LENGTH_SCALE:g}, alpha {ALPHA:g}, {cores} threads; best of {ROUNDS}."
    )
    console.print(
        "Random phases have as many frequencies as features, pairs half as many. RFFRidge reads its rows, "
        f"the others start with all in memory. Picture: {path.name} (`--keep FOLDER` keeps it)."
    )


def print_table(console: Console, found: dict[Rival, list[dict[str, float]]]) -> None:
    table = Table("D", "what", "fit s", "× ours", "peak MiB", "× ours", "held-out error")
    for i, size in enumerate(SIZES):
        ours = found[RIVALS[0]][i]
        for rival, runs in found.items():
            one = runs[i]
            table.add_row(
                f"{size:_}",
                rival.name,
                f"{one['seconds']:.2f}",
                f"{one['seconds'] / ours['seconds']:.2f}",
                f"{one['peak_mib']:.0f}",
                f"{one['peak_mib'] / ours['peak_mib']:.2f}",
                f"{one['error']:.4f}",
            )
    console.print(table)


def save_picture(path: Path, found: dict[Rival, list[dict[str, float]]]) -> None:
    """Draw the held-out error against the seconds of a fit: a line for each rival, a point for each D."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for rival, runs in found.items():
        times, errors = ([one[name] for one in runs] for name in ("seconds", "error"))
        axes.plot(times, errors, color=rival.colour, marker=rival.marker, ms=5, lw=1.2, label=rival.name)
        for size, place in zip(SIZES, zip(times, errors, strict=True), strict=True):
            axes.annotate(str(size), place, (4, 4), textcoords="offset points", fontsize=7)
    axes.set(xscale="log", yscale="log", xlabel="seconds to fit", ylabel="held-out error / deviation")
    axes.set_title(f"{N_SAMPLES:,} rows × 8; numbers are D", loc="left")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    axes.grid(True, color="#e6e8eb", lw=0.7)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
