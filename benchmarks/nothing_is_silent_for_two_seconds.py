"""How long a terminal shows nothing new while a command works on a large table: the
longest pause of each.
"""

import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console

LARGE = 1_000_000
MIDDLE = 200_000
WANTED = 2.0
COMMANDS = (
    "ingest large.csv large.zarr --targets y --id id",
    "ingest middle.csv middle.zarr --targets y --holdout 10%",
    "fit middle.zarr model --report fit.html",
    "auto middle.csv --target y --report auto.html",
    "fit middle.zarr tuned --kernels gaussian --n-components 256,512 --plot tune.png --report tune.html",
    (
        "cluster middle.zarr labels.zarr --n-clusters 10,20 --n-components 256 --plot"
        " map.png --report map.html"
    ),
    "predict model large.csv predictions.csv --coverage 0.9",
    "evaluate model large.csv --std",
    "ingest more.csv middle.zarr --append",
    "update model middle.zarr --report update.html",
)


def run(console: Console, folder: Path) -> None:
    for name, n_samples, seed in (
        ("large", LARGE, 0),
        ("middle", MIDDLE, 1),
        ("more", MIDDLE // 10, 2),
    ):
        write_table(folder / f"{name}.csv", n_samples, seed)
    for command in COMMANDS:  # told one by one: together they take a quarter of an hour
        seconds, silent, after = watch(command, folder)
        quiet = (
            ""
            if command.startswith("ingest more")
            else f"; --quiet: {told_in_quiet(command, folder)}"
        )
        console.print(
            f"{silent:.1f} s silent (≤ {WANTED:g} wanted) of {seconds:.0f}:"
            f" {command}{quiet}",
            soft_wrap=True,
        )
        console.print(f"    after {after!r}", soft_wrap=True)


def write_table(path: Path, n_samples: int, seed: int) -> None:
    """Write a smooth target of 8 columns, one of them text, and ids."""
    rng = np.random.Generator(np.random.Philox(seed))
    X = rng.standard_normal((n_samples, 7))
    kinds = rng.choice(["red", "green", "blue"], n_samples)
    y = (
        np.sin(2 * X[:, 0])
        + X[:, 1] * X[:, 2]
        + (kinds == "red")
        + 0.1 * rng.standard_normal(n_samples)
    )
    with path.open("w") as file:
        file.write("id,a,b,c,d,e,f,g,kind,y\n")
        for i, (row, kind, target) in enumerate(
            zip(X.tolist(), kinds.tolist(), y.tolist(), strict=True)
        ):
            file.write(
                f"{i},{','.join(f'{value:.5f}' for value in row)},{kind},{target:.5f}\n"
            )


def watch(command: str, folder: Path) -> tuple[float, float, str]:
    """Run a command in a terminal; return its seconds, the longest pause, and what was
    shown before that.
    """
    terminal, inside = pty.openpty()
    start = last = time.monotonic()
    process = subprocess.Popen(
        words_of(command),
        cwd=folder,
        stdout=inside,
        stderr=inside,
        env={**os.environ, "COLUMNS": "100"},
    )
    os.close(inside)
    longest = 0.0
    before = ""
    shown = ""
    while process.poll() is None or select.select([terminal], [], [], 0)[0]:
        ready, _, _ = select.select([terminal], [], [], 0.05)
        try:
            told = os.read(terminal, 65536).decode(errors="replace") if ready else ""
        except OSError:  # the terminal is closed
            break
        now = time.monotonic()
        if told and now - last > longest:
            longest = now - last
            before = shown
        if told:
            last = now
            shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", told).strip()[:40]
    os.close(terminal)
    if process.wait():
        raise RuntimeError(
            f"rff-dist {command} ended with {process.returncode}: {shown}"
        )
    return time.monotonic() - start, longest, before.partition("\n")[0]


def told_in_quiet(command: str, folder: Path) -> str:
    """Return how many characters a command writes to standard error with `--quiet`."""
    again = re.sub(r"^auto (\S+)", r"auto \1 --into again", command)
    again = (
        again
        if again.startswith(("auto", "evaluate", "update"))
        else f"{again} --overwrite"
    )
    done = subprocess.run(
        [*words_of(again), "--quiet"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return f"{len(done.stderr):,} characters"


def words_of(command: str) -> list[str]:
    """Return what the system is to run."""
    return [sys.executable, "-m", "rff_dist.workbench.cli", *shlex.split(command)]
