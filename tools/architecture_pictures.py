"""The two pictures of ARCHITECTURE.md: `python -m tools.architecture_pictures`.

The house is drawn from the layers in pyproject.toml, which `make lint` enforces, so
that it shows who may import whom. The main job shows its steps, where each one runs,
and what it hands to the next.
"""

import re
import tomllib
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "notebooks/images"
INK = "#6b7280"  # legible on white and on black
BLUE = "#2f81c4"
ORANGE = "#d2691e"

#: Each line of rooms, by its first one, with what it adds to those below.
ADDS = {
    "workbench": "jobs, tables, pages, the command line; Prefect",
    "estimators": "scikit-learn's conventions; programs without rff_dist",
    "living": "data that change; versions of models",
    "kmeans": "clusters",
    "classify": "classes; principal components",
    "ridge": "a fitted model",
    "fitting": "what a fit takes; columns of tables",
    "selection": "which penalty",
    "statistics": "sums that add up exactly",
    "engines": "processes; the map from inputs to Z; Zarr",
    "data": "rows; k(x, y); ways to multiply",
    "frequencies": "random numbers; matrices",
    "checks": "errors, options, types",
}

#: The steps of a fit: name, where it runs, what it does, what it hands on.
STEPS = (
    ("measure", "workers", "mean and std of each column", "a scale per column"),
    ("choose", "client", "kernel, length scales, from a sample", "candidates"),
    ("draw", "client", "frequencies W and phases b", "feature maps"),
    ("broadcast", "workers", "W, b to each worker, digests checked", "a handle"),
    ("accumulate", "workers", "Z'Z and Z'y, per fold, exactly", "statistics"),
    ("solve", "client", "penalty by the folds, then coefficients", "a model"),
    ("evaluate", "workers", "errors on test rows", "metrics"),
    ("publish", "client", "the model appears at once", "a version"),
)


def main() -> None:
    pictures = {"house.svg": house(), "main-job.svg": main_job()}
    for name, figure in pictures.items():
        figure.savefig(IMAGES / name, transparent=True, metadata={"Date": None})


def layers() -> list[list[str]]:
    """Return the rooms of each line, top to bottom."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    [contract] = [one for one in contracts if one["id"] == "layers"]
    return [re.split(r"\s*[:|]\s*", line) for line in contract["layers"]]


def house() -> Figure:
    """Draw a line of boxes per layer; a room imports only from lines below its own."""
    lines = layers()
    figure = Figure(figsize=(9.6, 0.5 * len(lines) + 0.4))
    axes = _canvas(figure, height=len(lines))
    for i, rooms in enumerate(lines):
        y = len(lines) - 1 - i
        width = 6.0 / len(rooms)
        for j, room in enumerate(rooms):
            color = ORANGE if i == 0 else BLUE
            _box(axes, j * width + 0.04, y + 0.12, width - 0.08, 0.76, color)
            size = 10 if len(rooms) < 5 else 7.5
            axes.text(
                (j + 0.5) * width, y + 0.5, room, ha="center", va="center", size=size
            )
        axes.text(6.15, y + 0.5, ADDS[rooms[0]], va="center", size=9, color=INK)
    axes.axhline(len(lines) - 1, xmax=0.6, color=INK, lw=1.2, ls="--")
    return figure


def main_job() -> Figure:
    """Draw the steps of a fit, top to bottom, on the side where each one runs."""
    figure = Figure(figsize=(9.6, 0.72 * len(STEPS) + 0.5))
    axes = _canvas(figure, height=len(STEPS) + 0.4)
    sides = {"client": 0.1, "workers": 5.1}
    for side, x in sides.items():
        axes.text(x + 2.3, len(STEPS) + 0.2, side, ha="center", weight="bold")
    middles = []
    for i, (name, side, what, _) in enumerate(STEPS):
        x = sides[side]
        y = len(STEPS) - 1 - i
        _box(axes, x, y + 0.14, 4.6, 0.6, BLUE if side == "client" else ORANGE)
        axes.text(x + 0.15, y + 0.44, name, va="center", weight="bold", size=10)
        axes.text(x + 1.35, y + 0.44, what, va="center", size=9)
        middles.append((x + 2.3, y + 0.44))
    for (x0, y0), (x1, y1), (*_, handed_on) in zip(
        middles, middles[1:], STEPS, strict=False
    ):
        arrow = {"arrowstyle": "-|>", "color": INK, "lw": 1.2}
        axes.annotate("", (x1, y1 + 0.3), (x0, y0 - 0.3), arrowprops=arrow)
        x = (x0 + x1) / 2 + 0.15
        y = (y0 + y1) / 2
        if x0 != x1:  # above a line that slants
            y += 0.11
        axes.text(x, y, handed_on, size=8, color=INK, style="italic", va="center")
    return figure


def _canvas(figure: Figure, *, height: float) -> Axes:
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10), ylim=(-0.05, height + 0.1))
    axes.axis("off")
    return axes


def _box(
    axes: Axes, x: float, y: float, width: float, height: float, color: str
) -> None:
    shape = mpl.patches.FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.08",
        facecolor=color + "22",
        edgecolor=color,
        lw=1.2,
    )
    axes.add_patch(shape)


if __name__ == "__main__":
    # text stays text, in a grey that is legible on white and on black
    with mpl.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "rff_dist",
            "text.color": "#7a828c",
            "font.family": "sans-serif",
        }
    ):
        main()
