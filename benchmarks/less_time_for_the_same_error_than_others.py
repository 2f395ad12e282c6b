"""Time and error next to others: ridge in features, exact kernels, trees, nearest
neighbours, and k-means.

All of the Gaussian kernel have one length scale and one alpha, given; `RFFRidge()`,
CatBoost, LightGBM and xRFM have nothing given. Each runs on one core, in a process of
its own, and its seconds are of processor time, so that other work on the machine counts
little. RFFRidge and RFFKMeans read their rows from Zarr, the others start with all in
memory. With `--keep` the results, others.json, and the picture made of them stay in the
folder; `make pictures` draws the manual's from the results that stand next to it.

FALKON is not on PyPI, so its algorithm stands here in NumPy: conjugate gradients on
Nyström features, with Cholesky factors of the centres' kernel as preconditioner (Rudi,
Carratino & Rosasco 2017, Alg. 1). dask-ml is not shown: its linear models die with
SciPy 1.18, which lacks an argument that dask-glm 0.4 gives. Who is not installed is
left out: `pip install 'rff_dist[bench]'`, and `xrfm`."""

import importlib.util
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from rich.console import Console
from rich.table import Table

from benchmarks.measure import describe_processor, in_subprocess, make_arm

ROUNDS = 2
N_SAMPLES = 40_000
N_TEST = 5_000
SIZES = (256, 512, 1024, 2048)
LENGTH_SCALE = 2.0
ALPHA = 1e-3
N_CLUSTERS = 100

_COMMON = """
import json, os, resource, sys, time
os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])  # one core for every library
import numpy as np
from rff_dist import Gaussian, RFFKMeans, RFFRidge, SerialEngine, open_dataset
from rff_dist.data.blocks import Block
train, test, size, length_scale, alpha = *sys.argv[1:3], int(sys.argv[3]), *map(float, sys.argv[4:6])
words, gamma, engine = sys.argv[6:], 0.5 / length_scale**2, SerialEngine(n_threads=1)
def read(path, dtype=np.float64):
    dataset = open_dataset(path)
    rows = dataset.read(Block(0, 0, dataset.n_samples))
    return rows.X.astype(dtype), rows.y[:, 0].astype(dtype)
def report(fit, predict, dtype=np.float64):
    X, y = read(test, dtype)
    start = time.process_time()
    fit()
    predicted = np.asarray(predict(X), np.float64).reshape(len(X))
    taken = time.process_time() - start
    error = np.sqrt(np.mean((predicted - y) ** 2)) / y.std()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": taken, "peak_mib": peak, "error": float(error)}))
def report_clusters(find):
    X, _ = read(train, np.float32)
    found = []
    for seed in range(5):
        start = time.process_time()
        centres = np.asarray(find(X, seed), np.float64)
        taken = time.process_time() - start
        nearest = ((X.astype(float)[:, None, :] - centres) ** 2).sum(axis=2).min(axis=1)
        found.append((taken, float(nearest.mean())))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds, error = np.mean(found, axis=0)
    print(json.dumps({"seconds": seconds, "peak_mib": peak, "error": error}))
"""

_OURS = """
given = {} if not words else {"kernel": Gaussian(length_scale), "features": words[0], "alpha": alpha,
    "n_components": size, "standardize": False}
model = RFFRidge(random_state=0, engine=engine, **given)
report(lambda: model.fit(train), model.predict)
"""

_IN_FEATURES = """
import warnings
from scipy.linalg import LinAlgWarning
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.pipeline import make_pipeline
if words[2] == "sklearnex":
    from sklearnex.linear_model import Ridge
else:
    from sklearn.linear_model import Ridge
warnings.simplefilter("ignore", LinAlgWarning)  # the error shows what a float32 Gram does
sampler = {"RBFSampler": RBFSampler, "Nystroem": Nystroem}[words[0]](
    gamma=gamma, n_components=size, random_state=0
)
model, dtype = make_pipeline(sampler, Ridge(alpha=alpha)), np.dtype(words[1])
X, y = read(train, dtype)
report(lambda: model.fit(X, y), model.predict, dtype)
"""

_FALKON = """
from scipy.linalg import cholesky, solve_triangular
from sklearn.metrics.pairwise import rbf_kernel
X, y = read(train)
centres = X[np.random.default_rng(0).permutation(len(X))[:size]]
def products(v, residual=None):
    total = np.zeros(size)
    for start in range(0, len(X), 8192):
        K = rbf_kernel(X[start : start + 8192], centres, gamma)
        total += K.T @ (K @ v if residual is None else residual[start : start + 8192])
    return total
def fit(n_steps=20):
    global weights
    K = rbf_kernel(centres, gamma=gamma)
    T = cholesky(K + 1e-10 * size * np.eye(size))
    A = cholesky(T @ T.T / size + alpha / len(X) * np.eye(size))
    up = lambda v: solve_triangular(T, solve_triangular(A, v))
    down = lambda v: solve_triangular(A, solve_triangular(T, v, trans=1), trans=1)
    apply = lambda v: down(products(up(v)) / len(X) + alpha / len(X) * (K @ up(v)))
    b = np.zeros(size)
    r = p = down(products(None, y - y.mean()) / len(X))
    for _ in range(n_steps):
        Ap = apply(p)
        step = (r @ r) / (p @ Ap)
        b, before, r = b + step * p, r @ r, r - step * Ap
        p = r + (r @ r) / before * p
    weights = up(b)
report(fit, lambda rows: rbf_kernel(rows, centres, gamma) @ weights + y.mean())
"""

_EXACT = """
from sklearn.kernel_ridge import KernelRidge
X, y = read(train)
model = KernelRidge(alpha=alpha, kernel="rbf", gamma=gamma)
report(lambda: model.fit(X[:size], y[:size] - y.mean()), lambda rows: model.predict(rows) + y.mean())
"""

_TREES = """
from sklearn.ensemble import HistGradientBoostingRegressor
X, y = read(train)
model = HistGradientBoostingRegressor(random_state=0, max_iter=size)
report(lambda: model.fit(X, y), model.predict)
"""

_BY_DEFAULT = """
from benchmarks.defaults.models import MODELS
X, y = read(train)
fit = MODELS[words[0]].build(False, 1)
def keep():
    global model
    model = fit(X, y)
report(keep, lambda rows: model.predict(rows))
"""

_NEIGHBOURS = """
import faiss
X, y = read(train, np.float32)
index = faiss.IndexFlatL2(X.shape[1])
report(lambda: index.add(X), lambda rows: y[index.search(rows, size)[1]].mean(axis=1), np.float32)
"""

_CLUSTERS = """
def ours(X, seed):
    model = RFFKMeans(size, kernel="linear", n_components=X.shape[1], standardize=False, n_init=1,
        random_state=seed, engine=engine).fit(train)
    labels = model.predict(X)
    return [X[labels == label].mean(axis=0) for label in range(size)]
def faiss(X, seed):
    import faiss
    model = faiss.Kmeans(X.shape[1], size, niter=25, seed=seed, max_points_per_centroid=len(X))
    model.train(X)
    return model.centroids
def sklearn(X, seed, package="sklearn"):
    KMeans = __import__(package + ".cluster", fromlist=["KMeans"]).KMeans
    return KMeans(size, n_init=1, random_state=seed).fit(X).cluster_centers_
def sklearnex(X, seed):
    return sklearn(X, seed, "sklearnex")
report_clusters(globals()[words[0]])
"""

OURS = "#2f81c4"
SKLEARN = "#e0752d"
SKLEARNEX = "#7a5bab"
FALKON = "#2e9678"
FAISS = "#c23f4d"
TREES = "#a67c1a"
XRFM = "#b8509c"
INK = "#7a828c"  # legible on white and on black


@dataclass(frozen=True)
class Rival:
    """Who is measured, by which code and words for it, and how it is drawn.

    `sizes`: D, rows, trees, neighbours or clusters, by what it is.
    `package`: it needs, beyond those that rff_dist brings.
    """

    name: str
    code: str
    arguments: tuple[str, ...]
    colour: str
    marker: str = "o"
    sizes: tuple[int, ...] = SIZES
    package: str = "sklearn"

    @property
    def is_there(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


REGRESSIONS = (
    Rival("RFFRidge, Fourier", _OURS, ("fourier",), OURS),
    Rival("RFFRidge, Nyström", _OURS, ("nystrom",), OURS, "s"),
    Rival("RFFRidge(), all by default", _OURS, (), OURS, "*", (0,)),
    Rival(
        "RBFSampler + Ridge, float64",
        _IN_FEATURES,
        ("RBFSampler", "float64", "sklearn"),
        SKLEARN,
    ),
    Rival(
        "RBFSampler + Ridge, float32",
        _IN_FEATURES,
        ("RBFSampler", "float32", "sklearn"),
        SKLEARN,
        "v",
    ),
    Rival(
        "Nystroem + Ridge, float64",
        _IN_FEATURES,
        ("Nystroem", "float64", "sklearn"),
        SKLEARN,
        "s",
    ),
    Rival(
        "KernelRidge on 2,000 and 5,000 rows", _EXACT, (), SKLEARN, "*", (2_000, 5_000)
    ),
    Rival(
        "scikit-learn's boosted trees, 100 and 1,000",
        _TREES,
        (),
        TREES,
        "D",
        (100, 1_000),
    ),
    Rival(
        "CatBoost, all by default",
        _BY_DEFAULT,
        ("catboost",),
        TREES,
        "^",
        (0,),
        "catboost",
    ),
    Rival(
        "LightGBM, all by default",
        _BY_DEFAULT,
        ("lightgbm",),
        TREES,
        "P",
        (0,),
        "lightgbm",
    ),
    Rival("xRFM, all by default", _BY_DEFAULT, ("xrfm",), XRFM, "X", (0,), "xrfm"),
    Rival(
        *(
            "RBFSampler + sklearnex's Ridge, float64",
            _IN_FEATURES,
            ("RBFSampler", "float64", "sklearnex"),
        ),
        *(SKLEARNEX, "o", SIZES, "sklearnex"),
    ),
    Rival("FALKON's algorithm, in NumPy", _FALKON, (), FALKON, "s"),
    Rival("FAISS, 5 nearest neighbours", _NEIGHBOURS, (), FAISS, "*", (5,), "faiss"),
)
CLUSTERINGS = (
    Rival("RFFKMeans, linear kernel", _CLUSTERS, ("ours",), OURS, "o", (N_CLUSTERS,)),
    Rival(
        "scikit-learn's KMeans", _CLUSTERS, ("sklearn",), SKLEARN, "o", (N_CLUSTERS,)
    ),
    Rival(
        "sklearnex's KMeans",
        _CLUSTERS,
        ("sklearnex",),
        SKLEARNEX,
        "o",
        (N_CLUSTERS,),
        "sklearnex",
    ),
    Rival("FAISS's Kmeans", _CLUSTERS, ("faiss",), FAISS, "o", (N_CLUSTERS,), "faiss"),
)

# by the rival's name, a run for each of its sizes
type Found = dict[str, list[dict[str, float]]]


def run(console: Console, folder: Path) -> None:
    train = str(make_arm(folder, N_SAMPLES).url)
    test = str(make_arm(folder, N_TEST, first_row=N_SAMPLES).url)
    found = measure(REGRESSIONS + CLUSTERINGS, train, test)
    print_table(console, REGRESSIONS, found, "held-out error / standard deviation")
    print_table(console, CLUSTERINGS, found, "mean squared distance to the centre")
    results = folder / "others.json"
    path = folder / "others.svg"
    circumstances = {
        "date": time.strftime("%Y-%m-%d"),
        "processor": describe_processor(),
        "rounds": ROUNDS,
    }
    results.write_text(json.dumps({**circumstances, "found": found}, indent=1) + "\n")
    save_picture(path, results)
    console.print(
        f"{N_SAMPLES:_} × 8 of a robot arm, errors of {N_TEST:_} others; length scale"
        f" {LENGTH_SCALE:g}, alpha {ALPHA:g}; one core, seconds of processor time to"
        f" fit and to predict, best of {ROUNDS}. Clusters: mean of five seeds. Written:"
        f" {results.name}, {path.name} (`--keep FOLDER` keeps them)."
    )
    missing = sorted(
        {one.package for one in REGRESSIONS + CLUSTERINGS if not one.is_there}
    )
    if missing:
        console.print(f"Not installed, and left out: {', '.join(missing)}.")


def measure(rivals: Iterable[Rival], train: str, test: str) -> Found:
    """Return what each found at each of its sizes, measured in turns."""
    here = [rival for rival in rivals if rival.is_there]
    taken: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(ROUNDS):
        for rival in here:
            for size in rival.sizes:
                words = (
                    train,
                    test,
                    str(size),
                    str(LENGTH_SCALE),
                    str(ALPHA),
                    *rival.arguments,
                )
                found = in_subprocess(_COMMON + rival.code, *words, OMP_NUM_THREADS="1")
                taken.setdefault((rival.name, size), []).append(found)
    best = {
        key: min(runs, key=lambda one: one["seconds"]) for key, runs in taken.items()
    }
    return {
        rival.name: [best[rival.name, size] for size in rival.sizes] for rival in here
    }


def print_table(
    console: Console, rivals: Iterable[Rival], found: Found, error: str
) -> None:
    table = Table("what", "size", "seconds", "peak MiB", error)
    for rival in rivals:
        for size, one in zip(rival.sizes, found.get(rival.name, ()), strict=False):
            numbers = (
                f"{one['seconds']:.2f}",
                f"{one['peak_mib']:.0f}",
                f"{one['error']:.4f}",
            )
            table.add_row(rival.name, f"{size:_}" if size else "", *numbers)
    console.print(table)


def save_picture(path: Path, results: Path) -> None:
    """Draw errors against seconds from a file of results: a line for each rival, a
    point for each size.
    """
    run = json.loads(results.read_text())
    figure = Figure(figsize=(10.6, 5.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
    title = f"Regression: {N_SAMPLES:,} rows × 8; D from {SIZES[0]} to {SIZES[-1]:,}"
    draw(left, REGRESSIONS, run["found"], title)
    left.set(yscale="log", ylabel="error on new rows / standard deviation")
    left.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
    draw(
        right,
        CLUSTERINGS,
        run["found"],
        f"k-means: the same rows, {N_CLUSTERS} clusters",
    )
    right.set(ylabel="mean squared distance to the centre")
    right.margins(0.25)
    for axes in (left, right):
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    figure.text(
        0.0, -0.03, f"{run['date']}, one core of: {run['processor']}", size=8, color=INK
    )
    with mpl.rc_context({"svg.hashsalt": "others"}):  # the same results, the same bytes
        figure.savefig(
            path, transparent=True, bbox_inches="tight", metadata={"Date": None}
        )


def draw(axes: Axes, rivals: Iterable[Rival], found: Found, title: str) -> None:
    for rival in rivals:
        if rival.name not in found:
            continue
        times, errors = (
            [one[name] for one in found[rival.name]] for name in ("seconds", "error")
        )
        size = 9 if rival.marker == "*" else 5
        axes.plot(
            *(times, errors),
            color=rival.colour,
            marker=rival.marker,
            ms=size,
            lw=1.3,
            label=rival.name,
        )
    axes.set_title(title, loc="left", size=11, color=INK)
    axes.set(xscale="log")
    axes.set_xlabel("seconds of processor time", color=INK)
    axes.yaxis.label.set_color(INK)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(which="both", colors=INK)
    axes.spines[:].set_visible(False)
    axes.grid(color=INK, alpha=0.3, lw=0.7)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
        ncols=2,
        frameon=False,
        labelcolor=INK,
        fontsize=8,
    )
