"""Digests of what twenty small jobs find: `python -m tools.digests > now`, and diff it
with another commit's.

Every job is a pass over three blocks at least, so that merges and their order show.
Give `--workers 2` for a Dask cluster in the place of this process."""

import argparse
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from rff_dist import RFFPCA
from rff_dist.engines.dask import DaskEngine
from rff_dist.engines.protocol import Engine
from rff_dist.engines.serial import SerialEngine
from rff_dist.fields import build
from rff_dist.ridge.models import read_model
from rff_dist.storage.appending import append_dataset
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.writing import write_dataset
from rff_dist.workbench.jobs import predict
from rff_dist.workbench.jobs.cluster import cluster
from rff_dist.workbench.jobs.refresh import update
from rff_dist.workbench.jobs.specs import Clustering, Predict, Train, Update
from rff_dist.workbench.jobs.steps import Runner, in_this_process
from rff_dist.workbench.jobs.train import train

type Digests = dict[str, str]

N_ROWS = 36_000  # three blocks of 16,384 rows, the last one begun
PLAIN = {
    "kernel": "gaussian",
    "length_scale": "median",
    "features": "fourier",
    "n_components": 64,
}

RIDGES: dict[str, dict[str, Any]] = {
    "one kernel and alpha": {"alpha": 0.01},
    "a matern kernel by quasi-Monte Carlo and folds": {
        "kernel": "matern:nu=2.5",
        "design": "quasi-monte-carlo",
        "alpha": "cv",
        "n_folds": 3,
    },
    "frequencies of many columns": {"data": "wide"},
    "phases in high precision": {
        "map": "phases",
        "precision": "high",
        "alpha": "evidence",
    },
    "nystrom features": {"features": "nystrom:k-means++"},
    "a sum and product of kernels": {
        "kernel": "gaussian * laplacian + 0.1 * linear + min + polynomial:degree=2",
        "design": "iid",
    },
    "a polynomial kernel without an intercept": {
        "kernel": "polynomial:degree=2",
        "length_scale": "auto",
        "fit_intercept": False,
    },
    "conjugate gradients": {"alpha": 0.5, "solver": "pcg"},
    "several numbers of features and intervals": {
        "n_components": [32, 64],
        "alpha": "cv-1se",
    },
    "ranks, weights and an alpha a target": {
        "data": "weighted",
        "sample_weight": "sample_weight",
        "standardize": "rank",
        "alpha_per_target": True,
    },
    "kernels and kinds of features that are chosen": {
        "kernel": "auto",
        "features": "auto",
        "alpha": "auto",
    },
    "length scales by the evidence": {"length_scale": "evidence"},
}
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "classes by squares, with probabilities": {},
    "classes by the logistic loss": {
        "loss": "logistic",
        "class_weight": "balanced",
        "alpha": 0.1,
    },
}
CLUSTERS: dict[str, dict[str, Any]] = {
    "clusters of features": {"n_init": 2, "n_clusters": [3, 4]},
    "clusters of principal components": {
        "features": "nystrom",
        "n_principal": 5,
        "normalize": "degree",
        "standardize": True,
    },
}


def write_data(folder: Path) -> None:
    """Write the rows of all jobs: numbers, classes, and some of many columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, 4)) * [1.0, 10.0, 0.1, 3.0] + 5.0
    signal = np.sin(X[:, 0]) + 0.02 * X[:, 1] ** 2
    Y = np.column_stack([signal, X[:, 2] * X[:, 3]]) + 0.1 * rng.normal(
        size=(N_ROWS, 2)
    )
    write_dataset(folder / "numbers", X, Y, chunk_rows=4096)
    write_dataset(
        folder / "weighted", X, Y, sample_weight=rng.random(N_ROWS), chunk_rows=4096
    )
    write_dataset(
        folder / "classes", X, np.digitize(signal, [0.0, 2.0]), chunk_rows=4096
    )
    wide = rng.normal(size=(N_ROWS, 40)).astype(np.float32)
    write_dataset(
        folder / "wide", wide, np.tanh(wide[:, :3].sum(axis=1)), chunk_rows=4096
    )


def of_array(values: Any) -> str:
    values = np.ascontiguousarray(values)
    return hashlib.sha256(
        f"{values.dtype} {values.shape}".encode() + values.tobytes()
    ).hexdigest()


def of_model(folder: Path) -> Digests:
    model = read_model(folder)
    arrays = dict(model.selection)
    if model.held_out is not None:
        arrays["held_out"] = model.held_out.counts
    told = [
        model.card.get("classifier"),
        model.card.get("estimate"),
        *map(of_array, arrays.values()),
    ]
    found = {
        "coefficients": of_array(model.coefficients),
        "model": model.digest(),
        "choice": hashlib.sha256(json.dumps(told).encode()).hexdigest(),
    }
    return found | (
        {} if model.statistics is None else {"statistics": model.statistics.digest()}
    )


def run_train(
    folder: Path, runner: Runner, spec: type, data: str, given: dict[str, Any]
) -> Digests:
    given = {
        "data": str(folder / data),
        "model": str(folder / "model"),
        "overwrite": True,
    } | given
    train(build(spec, given), runner)
    return of_model(folder / "model")


def run_cluster(folder: Path, runner: Runner, given: dict[str, Any]) -> Digests:
    places = {"data": "numbers", "output": "labels", "model": "clusters"}
    given = {
        **PLAIN,
        "n_clusters": 4,
        "max_iter": 5,
        **{k: str(folder / v) for k, v in places.items()},
        **given,
    }
    found = cluster(build(Clustering, given | {"overwrite": True}), runner)
    return {
        "clusters": found.record["digest"],
        "labels": of_array(zarr.open_group(folder / "labels")["labels"][:]),
    }


def run_pca(folder: Path, engine: Engine) -> Digests:
    data = open_dataset(folder / "numbers", y=None)
    model = RFFPCA(
        3, n_random_features=64, normalize="degree", random_state=0, engine=engine
    ).fit(data)
    scores = {
        "scores": of_array(model.transform(data)),
        "projection": model.projection_.digest(),
    }
    return {**scores, "statistics": model.statistics_.digest()}


def run_update_and_predict(folder: Path, runner: Runner) -> Digests:
    """Train on half of the rows, append the others, and predict all by the model that
    was updated.
    """
    data, model, output = (
        str(folder / name) for name in ("growing", "updated", "predictions")
    )
    X, y, _ = open_dataset(folder / "numbers").take(np.arange(N_ROWS))
    write_dataset(
        data,
        X[: N_ROWS // 2],
        y[: N_ROWS // 2],
        chunk_rows=4096,
        overwrite=True,
        versioned=True,
    )
    train(
        build(
            Train,
            {"data": data, "model": model, "overwrite": True, **PLAIN, "alpha": "gcv"},
        ),
        runner,
    )
    append_dataset(data, X[N_ROWS // 2 :], y[N_ROWS // 2 :])
    update(build(Update, {"data": data, "model": model, "force": True}), runner)
    predict.predict(
        build(
            Predict,
            {
                "data": data,
                "model": model,
                "output": output,
                "std": True,
                "overwrite": True,
            },
        ),
        runner,
    )
    written = zarr.open_group(output)
    arrays = ("predictions", "standard_deviations")
    return of_model(folder / "updated") | {
        name: of_array(written[name][:]) for name in arrays
    }


def jobs() -> Iterator[tuple[str, Callable[[Path, Engine], Digests]]]:
    """Yield each job's name, and what runs it with data of a folder by an engine."""

    def by_runner(
        run: Callable[..., Digests], *arguments: Any
    ) -> Callable[[Path, Engine], Digests]:
        return lambda folder, engine: run(folder, in_this_process(engine), *arguments)

    for name, given in RIDGES.items():
        data = given.get("data", "numbers")
        options = {
            "alpha": "gcv",
            **PLAIN,
            **{k: v for k, v in given.items() if k != "data"},
        }
        yield name, by_runner(run_train, Train, data, options)
    for name, given in CLASSIFIERS.items():
        options = {"alpha": "gcv", **PLAIN, "classify": True, **given}
        yield name, by_runner(run_train, Train, "classes", options)
    candidates = {
        "kernels": ["gaussian"],
        "length_scales": ["0.5x", 2.0],
        "features": "fourier",
        "n_components": [32, 64],
        "n_folds": 3,
    }
    yield "candidates", by_runner(run_train, Train, "numbers", candidates)
    for name, given in CLUSTERS.items():
        yield name, by_runner(run_cluster, given)
    yield "principal components", run_pca
    yield "an update, and predictions of it", by_runner(run_update_and_predict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--workers",
        type=int,
        default=0,
        metavar="N",
        help="processes; 0, the default, is this one",
    )
    n_workers = parser.parse_args().workers
    open_engine = (
        partial(DaskEngine, n_workers=n_workers, threads_per_worker=1)
        if n_workers
        else SerialEngine
    )
    with (
        tempfile.TemporaryDirectory(prefix="rff_dist-digests-") as name,
        open_engine() as engine,
    ):
        folder = Path(name)
        write_data(folder)
        for title, run in jobs():
            print(json.dumps({title: run(folder, engine)}, indent=1), flush=True)


if __name__ == "__main__":
    main()
