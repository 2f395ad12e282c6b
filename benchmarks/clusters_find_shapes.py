"""K-means finds shapes by default as well as the best of five spectral clusterings.

Fifteen shapes in two or three columns, generated with fixed seeds: the adjusted Rand
index of the default, of k-means, of the best of five settings of scikit-learn's
SpectralClustering by hindsight, and of the default again with 0.2 % of far rows; and
the number of clusters that it finds if none is given. Then data without shapes, where
it must not be worse than k-means."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import adjusted_rand_score

from rff_dist import RFFKMeans

FAR_SHARE = 0.002


def blob(rng, centre, spread, n_rows):
    centre = np.asarray(centre, float)
    return centre + spread * rng.standard_normal((n_rows, len(centre)))


def circle(rng, radius, n_rows, noise, centre=(0, 0)):
    angles = rng.uniform(0, 2 * np.pi, n_rows)
    points = radius * np.column_stack([np.cos(angles), np.sin(angles)])
    return points + noise * rng.standard_normal(points.shape) + centre


def line(rng, start, stop, n_rows, noise):
    share = rng.random(n_rows)[:, np.newaxis]
    points = np.asarray(start) * (1 - share) + np.asarray(stop) * share
    return points + noise * rng.standard_normal(points.shape)


def sphere(rng, radius, n_rows, noise):
    points = rng.standard_normal((n_rows, 3))
    points *= radius / np.linalg.norm(points, axis=1, keepdims=True)
    return points + noise * rng.standard_normal(points.shape)


def rings(rng):
    sizes = ((1, 300), (2.2, 500), (3.4, 700))
    return [circle(rng, radius, n, 0.07) for radius, n in sizes]


def moons(rng):
    angles = rng.uniform(0, np.pi, 500)
    upper = np.column_stack([np.cos(angles), np.sin(angles)])
    lower = np.array([1, 0.5]) - upper
    return [each + 0.08 * rng.standard_normal((500, 2)) for each in (upper, lower)]


def spirals(rng):
    arms = []
    for turn in (0, np.pi):
        radius = 0.6 + 3 * np.pi * np.sqrt(rng.random(500))
        angle = radius + turn
        arm = radius[:, np.newaxis] * np.column_stack([np.cos(angle), np.sin(angle)])
        arms.append(arm + 0.25 * rng.standard_normal(arm.shape))
    return arms


def chains(rng):
    first = np.column_stack([circle(rng, 1, 400, 0.07), 0.07 * rng.normal(size=400)])
    second = np.column_stack([circle(rng, 1, 400, 0.07), 0.07 * rng.normal(size=400)])
    return [first, second[:, [0, 2, 1]] + [1, 0, 0]]


def zigzags(rng):
    found = []
    for row in range(3):
        x = 6 * rng.random(250)
        y = 1.5 * np.abs(x % 2 - 1) + 1.1 * row
        found.append(np.column_stack([x, y]) + 0.06 * rng.standard_normal((250, 2)))
    return found


def lines_of_unequal_density(rng):
    sizes = enumerate((600, 200, 80))
    return [line(rng, (0, 1.2 * i), (6, 1.2 * i), n, 0.1) for i, n in sizes]


def unequal_blobs(rng):
    return [
        blob(rng, (0, 0), 1.5, 600),
        blob(rng, (7, 0), 0.4, 150),
        blob(rng, (5, 4.5), 0.8, 50),
        blob(rng, (-5, 5), 0.3, 300),
    ]


def blob_in_a_ring(rng):
    return [blob(rng, (0, 0), 0.5, 300), circle(rng, 3, 500, 0.3)]


def letters(rng):
    c = circle(rng, 1, 400, 0.06, (3.6, 1))
    strokes = (
        [((0, 2), (2, 2)), ((1, 0), (1, 2))],
        [((5.2, 0), (5.2, 2)), ((5.2, 0), (6.6, 0))],
        [((7.3, 0), (8.7, 2)), ((7.3, 2), (8.7, 0))],
    )
    found = [
        np.vstack([line(rng, start, stop, 100, 0.06) for start, stop in letter])
        for letter in strokes
    ]
    return [*found, c[c[:, 0] < 4.1]]


def touching_blobs(rng):
    return [blob(rng, (0, 0), 1, 500), blob(rng, (3.6, 0), 1, 500)]


def blobs_under_an_arc(rng):
    arc = circle(rng, 3, 600, 0.15)
    return [
        arc[arc[:, 1] > 0],
        blob(rng, (0, 0.8), 0.3, 150),
        blob(rng, (0, -1.5), 0.4, 150),
    ]


def ball_in_a_shell(rng):
    return [blob(rng, (0, 0, 0), 0.4, 400), sphere(rng, 3, 600, 0.15)]


def fifteen_blobs(rng):
    angles = np.arange(7) * 2 * np.pi / 7
    around = np.column_stack([np.cos(angles), np.sin(angles)])
    centres = np.vstack([np.zeros((1, 2)), 5 * around, 11 * around])
    return [blob(rng, centre, 0.8, 60) for centre in centres]


def squares_of_unequal_density(rng):
    corners = (
        ((0, 0), (2, 2), 700),
        ((2.4, 0), (4.4, 2), 120),
        ((0, 2.4), (4.4, 3), 200),
    )
    return [rng.uniform(low, high, (n, 2)) for low, high, n in corners]


def slanted_ellipses(rng):
    slant = np.array([[0.81, 0.59], [-0.59, 0.81]])
    offsets = ((0, 300), (2.6, 200), (-2.6, 200))
    return [
        (rng.standard_normal((n, 2)) * (3, 0.35) + (0, offset)) @ slant
        for offset, n in offsets
    ]


SHAPES: tuple[Callable, ...] = (
    rings,
    moons,
    spirals,
    chains,
    zigzags,
    lines_of_unequal_density,
    unequal_blobs,
    blob_in_a_ring,
    letters,
    touching_blobs,
    blobs_under_an_arc,
    ball_in_a_shell,
    fifteen_blobs,
    squares_of_unequal_density,
    slanted_ellipses,
)
# the others have blobs that touch, or that are too sparse to be told from tails
HAVE_CLEAR_NUMBER = frozenset(
    {
        rings,
        moons,
        spirals,
        chains,
        lines_of_unequal_density,
        blob_in_a_ring,
        letters,
        blobs_under_an_arc,
        ball_in_a_shell,
        fifteen_blobs,
        squares_of_unequal_density,
        slanted_ellipses,
    }
)


def labelled(shape: Callable, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a shape in random order, and which part each belongs to."""
    rng = np.random.default_rng(seed)
    parts = shape(rng)
    X = np.vstack(parts)
    known = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = rng.permutation(len(X))
    return X[order], known[order]


def with_far_rows(X: np.ndarray) -> np.ndarray:
    """Return the rows and, after them, a few two to five times as far out."""
    rng = np.random.default_rng(1)
    n_far = max(1, round(FAR_SHARE * len(X)))
    directions = rng.standard_normal((n_far, X.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    middle = X.mean(axis=0)
    reach = np.abs(X - middle).max() * rng.uniform(2, 5, (n_far, 1))
    return np.vstack([X, middle + directions * reach])


def default_labels(X: np.ndarray, n_clusters: int) -> np.ndarray:
    return RFFKMeans(n_clusters, random_state=0).fit_predict(X)


def round_labels(X: np.ndarray, n_clusters: int) -> np.ndarray:
    return KMeans(n_clusters, n_init=10, random_state=0).fit_predict(X)


def best_spectral(X: np.ndarray, known: np.ndarray) -> float:
    """Return the best index of five settings, by hindsight."""
    n_clusters = known.max() + 1
    scaled = (X - X.mean(axis=0)) / X.std()
    settings = [
        {"affinity": "nearest_neighbors", "n_neighbors": number}
        for number in (5, 10, 20)
    ]
    settings += [{"gamma": gamma} for gamma in (1.0, 10.0)]
    indices = []
    for setting in settings:
        model = SpectralClustering(n_clusters, random_state=0, **setting)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # graphs that are not connected
            indices.append(adjusted_rand_score(known, model.fit_predict(scaled)))
    return max(indices)


def without_shapes() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    X, known = make_blobs(3_000, 20, centers=8, cluster_std=3.0, random_state=1)
    noise = 5 * rng.standard_normal((3_000, 10))
    chances = rng.random((6, 30))
    kinds = rng.integers(6, size=2_000)
    return {
        "blobs in 20 columns, 10 of noise": (np.hstack([X, noise]), known),
        "digits": load_digits(return_X_y=True),
        "30 columns of 0 and 1": (
            (rng.random((2_000, 30)) < chances[kinds]).astype(float),
            kinds,
        ),
    }


def run(console: Console, folder: Path) -> None:
    table = Table(
        "shape", "default", "with far rows", "k-means", "best spectral", "number", "of"
    )
    indices = []
    n_right = 0
    for seed, shape in enumerate(SHAPES):
        X, known = labelled(shape, seed)
        n_clusters = known.max() + 1
        far = default_labels(with_far_rows(X), n_clusters)[: len(X)]
        row = [
            adjusted_rand_score(known, default_labels(X, n_clusters)),
            adjusted_rand_score(known, far),
            adjusted_rand_score(known, round_labels(X, n_clusters)),
            best_spectral(X, known),
        ]
        indices.append(row)
        number = RFFKMeans("auto", random_state=0).fit(X).clusters_.n_clusters
        n_right += shape in HAVE_CLEAR_NUMBER and number == n_clusters
        table.add_row(
            shape.__name__.replace("_", " "),
            *(f"{index:.2f}" for index in row),
            str(number),
            str(n_clusters),
        )
    means = np.mean(indices, axis=0)
    right = f"{n_right} of {len(HAVE_CLEAR_NUMBER)}"
    table.add_row("mean", *(f"{index:.3f}" for index in means), right, "clear ones")
    for name, (X, known) in without_shapes().items():
        n_clusters = known.max() + 1
        ours = adjusted_rand_score(known, default_labels(X, n_clusters))
        theirs = adjusted_rand_score(known, round_labels(X, n_clusters))
        table.add_row(name, f"{ours:.2f}", "", f"{theirs:.2f}", "", "", str(n_clusters))
    console.print(table)
