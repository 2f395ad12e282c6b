"""The table of defaults and its picture, made of the results of fits and of nothing
else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from matplotlib.transforms import Bbox

from benchmarks.defaults.fits import COVERAGE, Result, Task
from benchmarks.defaults.models import MODELS, NAMED, OURS
from benchmarks.defaults.sets import IN_PARTS, NOT_COUNTED, PUBLISHED
from benchmarks.defaults.tables import HELD_OUT

SHAPED_ON = range(4)  # the splits that the defaults were chosen by
# legible on white and on black
INK = "#7a828c"
BLUE = "#2f81c4"
WORDS = ("win", "tie", "lose")
PICTURE = (
    "![Errors and seconds of other models with their defaults, as multiples of ours;"
    " filled dots are beaten in both by none](defaults.svg)"
)

type Table = list[list[str]]  # the head first


@dataclass(frozen=True)
class Measure:
    """What is compared: the results' `key`, an error; `shown` makes of its mean what
    the title says.
    """

    title: str
    key: str
    shown: Callable[[float], float] = float


REGRESSION = (Measure("z-RMSE", "error"),)
CLASSIFICATION = (
    Measure("accuracy", "error", lambda error: 1.0 - error),
    Measure("log loss", "log_loss"),
)
TABLES = (Measure("error", "error"),)


@dataclass(frozen=True)
class Row:
    """One set: the results of each model on the same splits, in the same order."""

    name: str
    splits: list[int]
    results: dict[str, list[Result]]

    @property
    def known(self) -> Result:
        """A result that tells what is the same in all; empty if all models failed."""
        return next(
            (one for found in self.results.values() for one in found if "n" in one), {}
        )

    @property
    def title(self) -> str:
        if self.is_table:
            return f"{self.name}, {self.known['measure']}"
        return self.name if self in _counted([self]) else f"{self.name}, not counted"

    @property
    def is_table(self) -> bool:
        """Whether it has texts, dates and gaps, and one error by a measure of its own."""
        return "measure" in self.known

    def values(self, model: str, key: str) -> np.ndarray | None:
        """Split by split, infinite where the model failed; None where it was left
        out.
        """
        found = self.results.get(model, [{"skipped": ""}])
        if any("skipped" in one for one in found):
            return None
        return np.array([np.inf if "failed" in one else one[key] for one in found])

    def typical(self, model: str, key: str) -> float:
        """Return the mean of an error; of seconds the median, since other work may
        disturb a fit.
        """
        values = self.values(model, key)
        return (
            np.nan
            if values is None
            else float((np.median if key in ("wall", "cpu") else np.mean)(values))
        )


def arrange(results: dict[Task, Result]) -> list[Row]:
    """Return a row for each set, of the splits that all of its models were fitted to.

    Raises ValueError if models were fitted to different rows.
    """
    rows = []
    for name in dict.fromkeys(task.set for task in results):
        splits, models = (
            {task[i]: None for task in results if task.set == name} for i in (1, 2)
        )
        splits = [
            split
            for split in sorted(splits)
            if {Task(name, split, m) for m in models} <= {*results}
        ]
        if not splits or OURS not in models:
            continue
        row = Row(
            name,
            splits,
            {m: [results[Task(name, split, m)] for split in splits] for m in models},
        )
        for split, found in zip(
            splits, zip(*row.results.values(), strict=True), strict=True
        ):
            if len({one["digest"] for one in found if "digest" in one}) > 1:
                raise ValueError(
                    f"{name}, split {split}: models were fitted to different rows"
                )
        rows.append(row)
    return rows


def compare(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, str]:
    """Return by how much their error is larger, the standard error of that over the
    splits, and who wins.

    Ours wins or loses beyond two standard errors; one split tells none, and is a tie.
    Who fails more loses."""
    failures = int(np.isinf(theirs).sum()) - int(np.isinf(ours).sum())
    if np.isinf([ours, theirs]).any():
        return np.nan, np.nan, WORDS[1 - np.sign(failures)]
    difference = float(np.mean(theirs - ours))
    error = (
        float(np.std(theirs - ours, ddof=1) / np.sqrt(len(ours)))
        if len(ours) > 1
        else np.inf
    )
    return (
        difference,
        error,
        WORDS[1 - int(np.sign(difference) * (abs(difference) > 2.0 * error))],
    )


def geometric_mean(values: list[float]) -> float:
    """NaN of none."""
    return float(np.exp(np.mean(np.log(values)))) if values else np.nan


def ratios(
    rows: list[Row], model: str, key: str, shown: Callable[[float], float] = float
) -> list[float]:
    """Return theirs / ours on the sets that count and on which neither failed or was
    left out.
    """
    both = [
        (shown(row.typical(model, key)), shown(row.typical(OURS, key)))
        for row in _counted(rows)
    ]
    return [theirs / ours for theirs, ours in both if np.isfinite([theirs, ours]).all()]


def write(
    results: dict[Task, Result],
    splits: list[int],
    folder: Path,
    sets: Iterable[str] = (),
) -> Path:
    """Write the manual's page and defaults.svg into the folder; return the former's path.

    `sets`: those of them that have no results are named.
    """
    rows = arrange(
        {task: one for task, one in results.items() if task.model not in NAMED}
    )
    named = arrange(
        {task: one for task, one in results.items() if task.model in (OURS, *NAMED)}
    )
    named = [row for row in named if len(row.results) > 1]
    tables = [row for row in rows if row.is_table]
    numbers = [row for row in rows if not row.is_table]
    regression = [row for row in numbers if row.known.get("classes") is False]
    classification = [row for row in numbers if row.known.get("classes") is True]
    parts = [
        part
        for part in ((regression, REGRESSION), (classification, CLASSIFICATION))
        if part[0]
    ]
    summaries = [
        _summary(part, measure) for part, measures in parts for measure in measures
    ]
    blocks = ["# What the defaults give"]
    if parts:
        blocks += [
            PICTURE,
            # the manual's comparison includes this part
            "<!-- --8<-- [start:summary] -->",
            *map(_markdown, summaries),
            "<!-- --8<-- [end:summary] -->",
            *_introduction(numbers, splits),
            *(_markdown(_sets(part, measures)) for part, measures in parts),
        ]
    blocks += _regrets(named) if named else ()
    blocks += _remarks(numbers)
    if tables:
        blocks += [*_about_tables(tables, splits), *_remarks(tables)]
    if left := [name for name in sets if name not in {row.name for row in rows}]:
        blocks.append(f"Not fitted: {', '.join(left)}.")
    path = folder / "defaults.md"
    path.write_text("\n\n".join(blocks) + "\n")
    compared = [part for part in parts if _counted(part[0]) and _peers(part[0])]
    if drawn := [_summary(part, measures[-1]) for part, measures in compared]:
        draw(folder / "defaults.svg", drawn)
    return path


def _introduction(rows: list[Row], splits: list[int]) -> Iterator[str]:
    yield (
        "`RFFRidge(random_state=0)` and `RFFClassifier(random_state=0)` without"
        " another argument, against"
        f" {', '.join(f'{MODELS[model].title} ({MODELS[model].how})' for model in _peers(rows))}."
        " Errors are on held-out rows: in standard deviations of the target (z-RMSE),"
        " or accuracy and log loss."
    )
    yield _splits(rows, splits)
    if any(row.name.endswith(IN_PARTS) for row in rows):
        yield (
            f"Sets{IN_PARTS} are cut as TALENT cuts, though not into its very rows. All"
            " models here are fitted to the 64 % and the 16 % for validation together,"
            " since ours validates by itself."
        )
    yield _machines(rows)


def _about_tables(rows: list[Row], splits: list[int]) -> Iterator[str]:
    """Yield the part of the page about tables with texts, dates and gaps."""
    titles = " and ".join(MODELS[model].title for model in _peers(rows))
    yield "## Tables with text, dates and gaps"
    yield _markdown(_summary(rows, TABLES[0]))
    yield (
        "Ours gets the CSV file, as `rff-dist auto` does: each column of text is a"
        " column of categories, and its seconds include reading the file."
        f" {titles}, by default, get numbers with their gaps, days, weekday and hour of"
        " dates, and texts as their own categories."
        f" {HELD_OUT:.0%} of the rows are held out. Errors are z-RMSE of numbers, the"
        " Brier score of two classes, and log loss of more."
    )
    yield _splits(rows, splits)
    yield _machines(rows)
    yield _markdown(_sets(rows, TABLES))


def _splits(rows: list[Row], splits: list[int]) -> str:
    held_back = (
        "on which they were shaped"
        if splits[0] in SHAPED_ON
        else "which did not shape them"
    )
    short = [
        f"{row.name} {_listed(row.splits)}" for row in rows if row.splits != splits
    ]
    fewer = f" (only these were fitted: {'; '.join(short)})" if short else ""
    return (
        f"Means of splits {_listed(splits)} of the rows, {held_back}{fewer}. In"
        " brackets: theirs less ours, ± the standard error of this difference over the"
        " splits. Ours wins or loses beyond two of them. Seconds are medians over the"
        " splits, of the first fit in a fresh process. Ratios are geometric means."
    )


def _machines(rows: list[Row]) -> str:
    results = [one for row in rows for found in row.results.values() for one in found]
    fitted = [one for one in results if "skipped" not in one]
    machine = "{processor}, {threads} threads, Python {python}, NumPy {numpy}"
    machines = sorted({machine.format(**one) for one in fitted})
    versions = sorted(
        {f"{MODELS[one['model']].package} {one['version']}" for one in fitted}
    )
    commits = sorted({one["commit"] for one in fitted if one["model"] == OURS})
    most = max(one.get("at_once", 1) for one in fitted)
    at_once = (
        "One fit at a time"
        if most == 1
        else f"Up to {most} fits at a time, each on cores of its own"
    )
    dates = sorted({one["date"] for one in fitted})
    loads = [one["load"] for one in fitted]
    return (
        f"{'; '.join(machines)}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}."
        f" {at_once}; load average before a fit {np.median(loads):.1f} (median),"
        f" {max(loads):.1f} (max), earlier fits included. {', '.join(versions)}; ours"
        f" at commit {', '.join(commits)}."
    )


def _summary(rows: list[Row], measure: Measure) -> Table:
    """Return a line for each peer: on how many sets ours wins, and the ratios."""
    what = [measure.title, "seconds", "CPU seconds"]
    table = [
        [
            f"{what[0]}, against",
            "sets",
            *WORDS,
            *(f"{title}, theirs / ours" for title in what),
        ]
    ]
    for model in _peers(rows):
        pairs = [
            (row.values(OURS, measure.key), row.values(model, measure.key))
            for row in _counted(rows)
        ]
        words = [
            compare(ours, theirs)[2]
            for ours, theirs in pairs
            if ours is not None and theirs is not None
        ]
        found = [ratios(rows, model, measure.key, measure.shown)]
        found += [ratios(rows, model, key) for key in ("wall", "cpu")]
        counts = [len(words), *(words.count(word) for word in WORDS)]
        means = [_number(geometric_mean(values)) for values in found]
        table.append([MODELS[model].title, *map(str, counts), *means])
    return table


def _sets(rows: list[Row], measures: tuple[Measure, ...]) -> Table:
    """Return a line for each set: of each model its errors and seconds, below each
    other.
    """
    models = [OURS, *_peers(rows)]
    title = "<br>".join([*(measure.title for measure in measures), "seconds (CPU)"])
    table = [[title, "n × d", *(MODELS[model].title for model in models)]]
    for row in rows:
        shape = f"{row.known['n']:,} × {row.known['d']}"
        table.append(
            [row.title, shape, *(_cell(row, model, measures) for model in models)]
        )
    covered = [_coverage(row) for row in rows]
    if any(covered):
        table[0].append(f"coverage of our {COVERAGE:.0%} intervals")
        for line, words in zip(table[1:], covered, strict=True):
            line.append(words)
    return table


def _coverage(row: Row) -> str:
    """Return the share of new rows in our intervals; empty for classes."""
    shares = [one["coverage"] for one in row.results[OURS] if "coverage" in one]
    return _number(float(np.mean(shares))) if shares else ""


def _regrets(rows: list[Row]) -> Iterator[str]:
    """Yield what the choice costs: the default's error over that of the best kernel
    asked for by name.
    """
    models = [
        model
        for model in NAMED
        if any(row.values(model, "error") is not None for row in rows)
    ]
    head = [
        "z-RMSE",
        "splits",
        "by default",
        *(f"`{MODELS[model].title}`" for model in models),
        "regret",
    ]
    lines = []
    regrets = []
    for row in rows:
        ours, *theirs = (row.typical(model, "error") for model in (OURS, *models))
        regrets.append(ours / np.nanmin(theirs) - 1.0)
        errors = map(_number, (ours, *theirs))
        lines.append([row.name, _listed(row.splits), *errors, f"{regrets[-1]:+.1%}"])
    lines.append(["mean", "", "", *([""] * len(models)), f"{np.mean(regrets):+.1%}"])
    yield (
        "**Regret.** The default chooses from these kernels and kinds of features; here"
        " each is given by name, and everything else is left at its default, the number"
        " of components too. Regret is how much larger the default's error is than that"
        " of the best of them on the held-out rows, which only hindsight could choose."
        " It is below 0 if mapped columns, which only the default tries, are better."
    )
    yield _markdown([head, *lines])


def _cell(row: Row, model: str, measures: tuple[Measure, ...]) -> str:
    lines = []
    for measure in measures:
        ours = row.values(OURS, measure.key)
        theirs = row.values(model, measure.key)
        if ours is None or theirs is None:
            return ""
        mean = float(theirs.mean())
        lines.append(_number(measure.shown(mean)) if np.isfinite(mean) else "failed")
        if model != OURS:
            difference, error, word = compare(ours, theirs)
            difference = measure.shown(difference) - measure.shown(0.0)
            lines[-1] += (
                f" ({difference:+.2g} ± {error:.2g}) {word}"
                if np.isfinite(difference)
                else f" {word}"
            )
    seconds = [_seconds(row.typical(model, key)) for key in ("wall", "cpu")]
    return "<br>".join([*lines, "{} s ({})".format(*seconds)])


def _remarks(rows: list[Row]) -> Iterator[str]:
    """Yield what failed, and on which sets ours warned of what."""
    for row in rows:
        if row.name in PUBLISHED:
            yield (
                f"- Published for {row.name}: z-RMSE {PUBLISHED[row.name]} (TALENT,"
                " arXiv:2407.00956)"
            )
        for model, found in row.results.items():
            for split, one in zip(row.splits, found, strict=True):
                if "failed" in one:
                    yield (
                        f"- {MODELS[model].title} failed on {row.name}, split {split}:"
                        f" {one['failed']}"
                    )
        warned = [one["warned"] for one in row.results[OURS] if "warned" in one]
        if warned:
            texts = "; ".join(sorted({text for each in warned for text in each}))
            yield (
                f"- Ours warned on {len(warned)} of {len(row.splits)} splits of"
                f" {row.name}: {texts}"
            )


def draw(path: Path, tables: list[Table]) -> None:
    """Draw errors against seconds over ours, of `_summary`'s tables; dots that none
    beats are filled.
    """
    figure = Figure(figsize=(5.4 * len(tables), 3.8), layout="constrained")
    for axes, (head, *lines) in zip(
        figure.subplots(1, len(tables), squeeze=False)[0], tables, strict=True
    ):
        n_sets = max(int(line[1]) for line in lines)
        points = [(1.0, 1.0, OURS)]
        for model, n, *_, error, seconds, _ in lines:
            if error:
                label = model + (f" ({n} sets)" if int(n) < n_sets else "")
                points.append((float(seconds), float(error), label))
        axes.set_title(
            f"{head[0].removesuffix(', against')} / ours, {n_sets} sets",
            loc="left",
            color=INK,
        )
        axes.set_xlabel(
            "seconds of a fit / ours; filled: none beats it in both", color=INK
        )
        axes.set(xscale="log", yscale="log")
        axes.margins(0.15)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.2, 1.5, 2.0, 3.0, 4.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
        axes.tick_params(which="both", colors=INK)
        axes.spines[:].set_visible(False)
        axes.grid(color=INK, alpha=0.3, lw=0.7)
        for seconds, error, label in points:
            colour = BLUE if label == OURS else INK
            beaten = any(
                s <= seconds and e <= error and (s, e) != (seconds, error)
                for s, e, _ in points
            )
            axes.scatter(
                seconds, error, color=colour, fc="none" if beaten else colour, zorder=3
            )
        figure.draw_without_rendering()
        taken = [
            Bbox.from_bounds(*axes.transData.transform(p[:2]) - 5.0, 10.0, 10.0)
            for p in points
        ]
        for seconds, error, label in sorted(points):
            style = {"color": BLUE if label == OURS else INK, "size": 9, "va": "center"}
            for rise, side in itertools.product((0, 9, -9, 18, -18), ("left", "right")):
                offset = (6 if side == "left" else -6, rise)
                text = axes.annotate(
                    label,
                    (seconds, error),
                    xytext=offset,
                    ha=side,
                    textcoords="offset points",
                    **style,
                )
                box = text.get_window_extent()
                inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
                if inside and not any(box.overlaps(other) for other in taken):
                    break
                text.remove()
            else:
                raise ValueError(f"no room for the label of {label}")
            taken.append(box)
    # the same results, the same bytes
    with mpl.rc_context({"svg.hashsalt": "defaults"}):
        figure.savefig(
            path,
            transparent=True,
            metadata={"Date": None} if path.suffix == ".svg" else None,
        )


def _counted(rows: list[Row]) -> list[Row]:
    return [
        row
        for row in rows
        if row.name not in NOT_COUNTED and not row.name.endswith(IN_PARTS)
    ]


def _peers(rows: list[Row]) -> list[str]:
    there = {
        model
        for row in rows
        for model in row.results
        if row.values(model, "error") is not None
    }
    return [model for model in MODELS if model in there - {OURS}]


def _listed(splits: list[int]) -> str:
    return ", ".join(map(str, splits))


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.3g}"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 10.0 else f"{value:.2g}"


def _markdown(table: Table) -> str:
    rule = ["---", *["---:"] * (len(table[0]) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (table[0], rule, *table[1:]))
