"""A map of 18 million cells and 10 inputs, predicted with intervals, in CPU seconds and
peak memory.

The map of 4,500 x 4,100 cells lies in compressed chunks of 512 x 512, and 3 % of its
cells are missing. The model has D = 1,024 and intervals by held-out rows. What is measured is
the command, from its start to the finished map, in a process of its own: on two cores
it takes half of its CPU seconds at best. A tenth of the map comes first."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import zarr
from rich.console import Console
from rich.table import Table

from rff_dist.estimators.persistence import save_model
from rff_dist.estimators.ridge import RFFRidge
from rff_dist.storage.datasets import open_dataset

SHAPE = (4500, 4100)
CHUNK = 512
N_INPUTS = 10
N_COMPONENTS = 1024
INPUTS = [f"b{i}" for i in range(N_INPUTS)]


def make_map(place: Path, shape: tuple[int, int], *, target: bool) -> None:
    """Write smooth inputs with a little noise, as of a satellite, and perhaps a
    target.
    """
    group = zarr.create_group(place)
    rng = np.random.default_rng(0)
    y, x = (np.arange(n) for n in shape)
    sea = (
        np.hypot(y[:, None] - shape[0] / 2, x - shape[1] / 2) < 0.1 * np.mean(shape)
    ).astype(bool)
    total = np.zeros(shape, np.float32)
    for i, name in enumerate(INPUTS):
        values = np.sin((i + 1) * y[:, None] / 300) * np.cos((i + 2) * x / 400)
        values = (values + 0.1 * rng.standard_normal(shape)).round(3).astype("f4")
        values[sea] = np.nan
        total += np.cos(values)
        write(group, name, values)
    if target:
        write(group, "target", (total + 0.1 * rng.standard_normal(shape)).astype("f4"))
    for name, values in (("y", y * 30.0), ("x", x * 30.0)):
        group.create_array(name, data=values, dimension_names=[name])


def write(group: zarr.Group, name: str, values: np.ndarray) -> None:
    chunks = tuple(min(CHUNK, n) for n in values.shape)
    group.create_array(
        name, data=values, chunks=chunks, dimension_names=["y", "x"], fill_value=np.nan
    )


def predict(model: Path, grid: Path, out: Path) -> tuple[float, float]:
    """Return the CPU seconds and the peak GiB of `rff-dist predict`."""
    words = [
        str(model),
        str(grid),
        str(out),
        "--coverage",
        "0.9",
        "--serial",
        "--overwrite",
    ]
    command = subprocess.Popen(
        [sys.executable, "-m", "rff_dist.workbench.cli", "predict", *words],
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(command.pid, 0)
    if status:
        raise RuntimeError(f"rff-dist predict ended with {status}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20


def run(console: Console, folder: Path) -> None:
    """Measure a tenth of the map, and all of it."""
    make_map(folder / "small.zarr", (300, 300), target=True)
    rows = open_dataset(folder / "small.zarr", x=INPUTS, y="target")
    plain = {
        "kernel": "gaussian",
        "length_scale": 3.0,
        "features": "fourier",
        "alpha": 1e-2,
    }
    model = RFFRidge(n_components=N_COMPONENTS, random_state=0, cv=3, **plain).fit(rows)
    save_model(model, folder / "model", overwrite=True)
    table = Table(
        "cells",
        "CPU s",
        "s on 2 cores",
        "GiB",
        title=f"D = {N_COMPONENTS:,}, {N_INPUTS} inputs",
    )
    for rows_of_map in (SHAPE[0] // 10, SHAPE[0]):
        shape = (rows_of_map, SHAPE[1])
        place = folder / f"map-{rows_of_map}.zarr"
        if not place.exists():
            make_map(place, shape, target=False)
        cpu, peak = predict(folder / "model", place, folder / "out.zarr")
        table.add_row(
            f"{np.prod(shape):,}", f"{cpu:.1f}", f"{cpu / 2:.1f}", f"{peak:.2f}"
        )
    console.print(table)
