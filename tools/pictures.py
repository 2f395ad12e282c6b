"""Make the pictures of README and manual, and README's sentence on the defaults: `make
pictures`.

The picture of the page needs Chromium.

`make bench-defaults` makes the manual's defaults.md, of which defaults.svg is drawn, and the
benchmark `a_thousand_workers_are_busy` the picture of workers. others.svg is drawn from
the results next to it, which `less_time_for_the_same_error_than_others` measures in
half an hour, and growth.png is the picture that notebook 06 stores."""

import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from PIL import Image
from sklearn.datasets import load_wine

from benchmarks.defaults.table import draw
from benchmarks.less_time_for_the_same_error_than_others import save_picture
from rff_dist import Gaussian, draw_feature_map
from tests.browser import BROWSER

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "notebooks/manual/pages"


def main() -> None:
    """Make all of them."""
    readme = ROOT / "README.md"
    defaults = (PAGES / "defaults.md").read_text()
    readme.write_text(with_defaults(readme.read_text(), defaults))
    draw(
        PAGES / "defaults.svg",
        [summary(defaults, measure) for measure in ("z-RMSE", "log loss")],
    )
    save_picture(PAGES / "others.svg", PAGES / "others.json")
    _growth()
    _idea()
    with tempfile.TemporaryDirectory() as folder:
        _photograph(Path(folder))
        _page(Path(folder))


def with_defaults(readme: str, table: str) -> str:
    """Return the README with what the table of defaults says today of errors and seconds next to
    boosted trees.
    """
    (sets, wins, equal, losses, _, seconds, _), (*_, error, trees, _) = (
        cells[1:]
        for cells in summary(table, "z-RMSE")
        if cells[0] in ("CatBoost", "LightGBM")
    )
    sentence = (
        f"On {sets} data sets, public and generated, CatBoost's error is higher on"
        f" {wins}, equal on {equal} and lower on {losses}; ours takes"
        f" {1 / float(seconds):.1f} times as long. LightGBM is"
        f" {1 / float(trees):.0f} times as fast as ours, and its error is {error}"
        " times ours."
    )
    filled = textwrap.fill(
        sentence, 118, subsequent_indent="  ", break_on_hyphens=False
    )
    return re.sub(
        r"On \d+ data sets, public.*?times ours\.", filled, readme, flags=re.DOTALL
    )


def summary(text: str, measure: str) -> list[list[str]]:
    """Return the summary of a measure in the table of defaults: its cells, the head first."""
    begin = text.index(f"| {measure}, against |")
    head, _, *lines = text[begin : text.index("\n\n", begin)].splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in (head, *lines)
    ]


def _photograph(folder: Path) -> None:
    _run("demo", "--output", folder / "demo", folder=folder)
    picture = Image.open(folder / "demo/comparison.png").convert("RGB")
    picture.thumbnail((1100, 1100))
    picture.save(ROOT / "notebooks/images/flower.jpg", quality=85, optimize=True)


def _page(folder: Path) -> None:
    """Take a picture of the top of the tutorial's page."""
    if BROWSER is None:
        raise SystemExit("the picture of the page needs Chromium")
    table = load_wine(as_frame=True).frame.drop(columns="target")
    table["grower"] = load_wine().target_names[load_wine().target]
    table.to_csv(folder / "wines.csv", index=False)
    _run(
        "auto",
        "wines.csv",
        "--target",
        "grower",
        "--report",
        "wines.html",
        folder=folder,
    )
    # the picture names no folder of the machine that makes it
    page = folder / "wines.html"
    page.write_text(page.read_text().replace(f"{folder}/", ""))
    shot = folder / "page.png"
    size = ["--window-size=900,760", "--hide-scrollbars", f"--screenshot={shot}"]
    words = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        *size,
        page.as_uri(),
    ]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    Image.open(shot).convert("P", palette=Image.Palette.ADAPTIVE).save(
        PAGES / "page.png", optimize=True
    )


def _growth() -> None:
    """Take the picture of time and memory against rows from the notebook that measures
    them.
    """
    cells = json.loads((ROOT / "notebooks/06-exact-sums.ipynb").read_text())["cells"]
    [cell] = [cell for cell in cells if "tracemalloc" in "".join(cell["source"])]
    [png] = [
        output["data"]["image/png"]
        for output in cell["outputs"]
        if "image/png" in output.get("data", {})
    ]
    (PAGES / "growth.png").write_bytes(base64.b64decode(png))


def _idea() -> None:
    """Draw a kernel, and products of random features for several numbers of
    features.
    """
    plt.style.use(ROOT / "notebooks/rff_dist.mplstyle")
    x = np.linspace(-4, 4, 401)[:, np.newaxis]
    kernel = np.exp(-(x[:, 0] ** 2) / 2)
    figure, panels = plt.subplots(1, 3, figsize=(9, 2.9), sharey=True)
    for axes, D in zip(panels, (8, 64, 512), strict=True):
        features = draw_feature_map(
            Gaussian(1.0), n_features=1, n_components=D, design="iid", random_state=1
        )
        products = features.transform(x) @ features.transform(np.zeros((1, 1)))[0]
        axes.plot(x, kernel, color="0.6", lw=4, label="kernel")
        axes.plot(x, products, color="#0072b2", label="product of features")
        axes.set_title(f"D = {D}: off by at most {np.abs(products - kernel).max():.2f}")
        axes.set_xlabel("x − x′")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2
    )
    figure.savefig(PAGES / "idea.png", dpi=110)


def _run(*words: object, folder: Path) -> None:
    command = [sys.executable, "-m", "rff_dist.workbench.cli", *map(str, words)]
    subprocess.run(
        command,
        cwd=folder,
        check=True,
        timeout=900,
        env={**os.environ, "LOGNAME": "anna"},
    )


if __name__ == "__main__":
    main()
