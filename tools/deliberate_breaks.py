"""Break the code on purpose and see which test notices: `python -m
tools.deliberate_breaks`, or with NAMEs.

Each break is made in a copy of the repository, and the tests of its room are run there
until one fails. Do so before and after the tests themselves change."""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Break:
    """A defect: `old`, which stands once in the file, becomes `new`; `tests` are to
    notice.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


BREAKS = [
    Break(
        "the intercept has the wrong sign",
        "rff_dist/numerics/solution.py",
        "summary.target_means - summary.feature_means @ coefficients",
        "summary.target_means + summary.feature_means @ coefficients",
        ("tests/unit/numerics", "tests/unit/ridge"),
    ),
    Break(
        "alpha grows with the number of rows",
        "rff_dist/ridge/solve.py",
        "solve_cholesky(equations, alpha, overwrite_gram=True)",
        "solve_cholesky(equations, alpha * statistics.n_samples, overwrite_gram=True)",
        ("tests/unit/ridge",),
    ),
    Break(
        "rows that are held out are trained on",
        "rff_dist/selection/cross_validation.py",
        "equations = problem.training.without(fold)",
        "equations = problem.training",
        ("tests/unit/selection",),
    ),
    Break(
        "of centres equally near the last one takes the row",
        "rff_dist/kmeans/nearest.py",
        "best[close] = (exact - self._halves[centres]).argmax(axis=1)",
        "best[close] = self.n_clusters - 1 - (exact - self._halves[centres])[:,"
        " ::-1].argmax(axis=1)",
        ("tests/unit/kmeans",),
    ),
    Break(
        "a merge forgets what it adds to",
        "rff_dist/engines/serial.py",
        "[self.combine(total[0], result[0])]",
        "result",
        ("tests/unit/engines", "tests/unit/statistics"),
    ),
    Break(
        "a run publishes over what another one has published meanwhile",
        "rff_dist/storage/output_places.py",
        "self._tag(name) == tag for name, tag in self._before.items()",
        "tag is not None or self._tag(name) == tag for name, tag in"
        " self._before.items()",
        ("tests/unit/storage/test_output_places.py",),
    ),
    Break(
        "NaN among the inputs is let through",
        "rff_dist/data/blocks.py",
        "if overflows and not np.isfinite(inputs).all():",
        "if overflows and np.isinf(inputs).any():",
        ("tests/unit/data", "tests/unit/statistics"),
    ),
    Break(
        "passwords of URLs are shown",
        "rff_dist/text.py",
        '_CREDENTIALS.sub("://***@", url)',
        "url",
        ("tests/unit/engines", "tests/unit/storage", "tests/unit/tables"),
    ),
    Break(
        "a hook's parameter has a name that Prefect does not pass",
        "rff_dist/flows/stop_reports.py",
        "flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:\n",
        "flow: Flow[..., Any], run: FlowRun, state: State[Any]) -> None:\n"
        "        flow_run = run\n",
        ("tests/flows/test_running.py",),
    ),
    Break(
        "lengths of orthogonal frequencies do not depend on the seed",
        "rff_dist/frequencies/designs.py",
        "radii = _radii(measure, draw)",
        "radii = _radii(measure, Draw(self, *draw.shape, 0, draw.first))",
        ("tests/unit/frequencies",),
    ),
    Break(
        "a kernel's columns are standardised by the variance",
        "rff_dist/features/maps.py",
        "standardized = (inputs - self.mean) / self.scale",
        "standardized = (inputs - self.mean) / self.scale**2",
        ("tests/unit/features",),
    ),
    Break(
        "a Matérn kernel is wider than it says",
        "rff_dist/kernels/stationary.py",
        "scaled = np.sqrt(3.0) * distance",
        "scaled = np.sqrt(2.0) * distance",
        ("tests/unit/kernels",),
    ),
    Break(
        "a way that sums wrongly is taken",
        "rff_dist/products/choice.py",
        "            return label\n    return None",
        "            return None\n    return None",
        ("tests/unit/products",),
    ),
    Break(
        "the gradient of the squared hinge is half of it",
        "rff_dist/classify/losses.py",
        "-2.0 * targets * short",
        "-targets * short",
        ("tests/unit/classify",),
    ),
    Break(
        "explained variances have the divisor n",
        "rff_dist/pca/components.py",
        "divisor=weight * (n - 1) / n,",
        "divisor=weight,",
        ("tests/unit/pca",),
    ),
    Break(
        "a second rollback goes back to where the first one did",
        "rff_dist/models/versions.py",
        "pointer.moved(number, tuple(previous), reason)",
        "pointer.moved(number, pointer.previous, reason)",
        ("tests/unit/models",),
    ),
    Break(
        "passes within a part of a job count twice",
        "rff_dist/engines/clock.py",
        "self._since += event.seconds",
        "self._since += 0.0",
        ("tests/unit/costs",),
    ),
    Break(
        "an exported model forgets the maps of columns",
        "rff_dist/export/reader.py",
        'for part in self.facts["maps"]:',
        'for part in self.facts["maps"][:0]:',
        ("tests/unit/export/test_export.py",),
    ),
    Break(
        "an output with missing chunks is published",
        "rff_dist/storage/outputs.py",
        "if n_written != n_chunks:",
        "if n_written > n_chunks:",
        ("tests/unit/storage/test_outputs.py",),
    ),
    Break(
        "the gate judges the champion by rows that it has seen",
        "rff_dist/living/gate.py",
        "rest = replace(whole - part, n_tiles=whole.n_tiles + part.n_tiles)",
        "rest = replace(whole, n_tiles=whole.n_tiles + part.n_tiles)",
        ("tests/unit/ridge/test_update.py",),
    ),
]


def copied(folder: Path) -> Path:
    """Copy the repository, without what is made from it."""
    unneeded = shutil.ignore_patterns(
        ".*", "__pycache__", "build", "dist", "demo-output"
    )
    return Path(shutil.copytree(ROOT, folder / "copy", ignore=unneeded))


def first_failure(root: Path, tests: tuple[str, ...]) -> str | None:
    """Run tests until one fails, and return its name; None if all pass."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    told = subprocess.run(
        command, cwd=root, capture_output=True, text=True, check=False
    )
    if told.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", told.stdout, re.MULTILINE)
    if told.returncode != 1 or found is None:
        raise SystemExit(f"pytest did not run:\n{told.stdout}\n{told.stderr}")
    return found.group(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="words of the breaks to make; all by default",
    )
    wanted = parser.parse_args().names
    chosen = [
        one for one in BREAKS if not wanted or any(word in one.name for word in wanted)
    ]
    if not chosen:
        parser.error(
            f"no break is named so; expected words of {[one.name for one in BREAKS]}"
        )
    missed = 0
    with tempfile.TemporaryDirectory(prefix="rff_dist-breaks-") as folder:
        root = copied(Path(folder))
        for one in chosen:
            path = root / one.path
            started = time.monotonic()
            source = path.read_text()
            if source.count(one.old) != 1:
                raise SystemExit(
                    f"{one.path} does not hold once: {one.old!r}; say the break anew"
                )
            path.write_text(source.replace(one.old, one.new))
            caught = first_failure(root, one.tests)
            path.write_text(source)
            missed += caught is None
            print(
                f"{one.name}: {caught or 'NOT CAUGHT'}"
                f" ({time.monotonic() - started:.0f} s)",
                flush=True,
            )
    raise SystemExit(min(missed, 1))


if __name__ == "__main__":
    main()
