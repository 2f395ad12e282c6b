"""Ridge regression on the columns themselves, from Zarr, against scikit-learn's RidgeCV
in memory.

`RFFRidge("linear")` chooses its penalty by five folds, RidgeCV its own from the same 13
by leaving one out. Then a tenth of the rows is added by `partial_fit`, and their sums
are subtracted. Each fit has a process."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measure import in_subprocess, make_data

SIZES = (100_000, 400_000, 1_600_000)
N_FEATURES = 20
TENTH = 10

_COMMON = """
import json, resource, sys, time
import numpy as np
from rff_dist import RFFRidge, open_dataset
from rff_dist.data.blocks import Block
path, later = sys.argv[1:]
alphas, start = np.geomspace(1e-3, 1e3, 13), time.process_time()
def rows_of(url):
    dataset = open_dataset(url)
    rows = dataset.read(Block(0, 0, dataset.n_samples))
    return rows.X.astype(float), rows.y[:, 0]
def report(score, **others):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mib": peak, "score": score, **others}))
"""
_OURS = """
model = RFFRidge("linear", alpha=alphas, cv=5, standardize=False).fit(path)
seconds, before = time.process_time() - start, model.statistics_
X, y = rows_of(later)
score = model.score(X, y)
start = time.process_time()
model.partial_fit(X, y)
added = time.process_time() - start
both = model.statistics_
report(score, added=added, restored=bool(both - (both - before) == before))
"""
_THEIRS = """
from sklearn.linear_model import RidgeCV
model = RidgeCV(alphas).fit(*rows_of(path))
seconds = time.process_time() - start
report(model.score(*rows_of(later)))
"""


def run(console: Console, folder: Path) -> None:
    table = Table(
        "rows",
        "what",
        "seconds",
        "peak MiB",
        "R²",
        "seconds to add a tenth",
        "subtracted: same bits",
    )
    for n_samples in SIZES:
        paths = [
            str(make_data(folder, n, N_FEATURES).url)
            for n in (n_samples, n_samples // TENTH)
        ]
        for name, code in (
            ('RFFRidge("linear"), from Zarr', _OURS),
            ("RidgeCV, in memory", _THEIRS),
        ):
            found = in_subprocess(_COMMON + code, *paths)
            adding = f"{found['added']:.2f}" if "added" in found else "none"
            cells = (
                f"{found['seconds']:.1f}",
                f"{found['peak_mib']:.0f}",
                f"{found['score']:.6f}",
                adding,
            )
            table.add_row(
                f"{n_samples:_}", name, *cells, str(found.get("restored", ""))
            )
    console.print(table)
    console.print(
        "Seconds are of processor time, of all threads together, reading included."
    )
