"""What people see: progress while a job runs, and its figures in words afterwards."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rff_dist import fields
from rff_dist.text import some
from rff_dist.workbench.cli import messages, settings
from rff_dist.workbench.results import words

if TYPE_CHECKING:
    from rff_dist.engines import protocol
    from rff_dist.engines.cluster import Cluster
    from rff_dist.engines.progress import RichProgress
    from rff_dist.ridge import models
    from rff_dist.storage import datasets
    from rff_dist.typing import PathLike
    from rff_dist.workbench.jobs import fits, steps, verdict

type Part = RenderableType | words.Table

_shown: ContextVar[RichProgress | None] = ContextVar("shown", default=None)


@contextlib.contextmanager
def progress(name: str) -> Iterator[None]:
    """Show the progress of a command on standard error, unless it is to be quiet."""
    if settings.logs_json() or settings.is_quiet():
        yield
        return
    from rff_dist.engines.progress import RichProgress

    with RichProgress(messages.err, name) as shown:
        token = _shown.set(shown)
        try:
            yield
        finally:
            _shown.reset(token)


def count_rows(label: str) -> Callable[[int, int | None], None]:
    """Return a function that shows how many rows are done, out of how many."""
    shown = _shown.get()
    return (lambda *_: None) if shown is None else partial(shown.count, label)


class Passes:
    """What a command runs its job with: an engine, progress on standard error, and a clock."""

    def __init__(self, where: Cluster) -> None:
        from rff_dist.engines.clock import Clock, process_start

        self.where = where
        self.clock = Clock(process_start() if settings.is_program.get() else None)
        self._engine: dict[str, Any] = {}

    @property
    def runner(self) -> steps.Runner:
        """The runner that calls the steps of a job."""
        from rff_dist.workbench.jobs.steps import Runner

        elsewhere = self.where.in_environment().elsewhere
        return Runner(self.open, self._call, "rff-dist", elsewhere, count_rows("read"))

    def write_page(
        self,
        report: PathLike | None,
        data: fits.JobData,
        model: models.RidgeModel,
        place: str,
        *,
        comparison: verdict.Comparison | None = None,
        metrics: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the page about a model, see `model_page`, if a path for it is given."""
        if report is not None:
            from rff_dist.workbench.page import content
            from rff_dist.workbench.page.pages import model_page

            self.at_work("report")
            page = model_page(
                data,
                model,
                place=place,
                times=self.clock.times,
                comparison=comparison,
                metrics=metrics,
                update=update,
            )
            content.write_page(page, report)

    def at_work(self, part: str) -> None:
        """Show what the command is doing from now on, and count its time."""
        from rff_dist.engines.progress import Remark

        if (shown := _shown.get()) is not None:
            shown(Remark(part, ""))
        self.clock.begin(part)

    def facts(self) -> dict[str, Any]:
        """Return what ran the job and where its time went until now, for the JSON document."""
        times = self.clock.times()
        return {"engine": self._engine, "seconds": times.seconds, "products": times.products}

    @contextlib.contextmanager
    def open(self, n_samples: int) -> Iterator[protocol.Engine]:
        """Start an engine for passes over so many rows, with progress on standard error, and close it."""
        from rff_dist.engines.connecting import open_engine
        from rff_dist.engines.progress import Remark

        cluster = self.where.in_environment().for_rows(n_samples)
        self.clock.rest("start")
        shown = _shown.get()  # None also if messages are JSON lines, which report passes themselves
        if shown is not None and cluster.kind in ("embedded", "adaptive"):
            size = " × ".join(map(str, cluster.size()))
            shown(Remark("cluster", f"starting here, workers × threads = {size}"))
        observers = () if shown is None else (shown,)
        with open_engine(cluster, observers=observers) as engine, self.clock.watching(engine):
            if not cluster.serial:
                self.clock.rest("cluster")  # all time since then went into its start
            kind = "serial" if cluster.serial else "dask" if cluster.scheduler else "embedded dask"
            if shown is not None and cluster.scheduler and (address := dashboard_of(engine)):
                messages.err.print(f"dashboard: {address}", highlight=False, soft_wrap=True)
            self._engine = {"kind": kind, "n_workers": engine.n_workers, "n_threads": engine.n_threads}
            yield engine

    def _call(self, name: str, step: Callable[[], Any], _: bool) -> Any:
        if name == "publish":
            self.clock.end()
        return step()


def dashboard_of(engine: protocol.Engine) -> str | None:
    """Return the address of the dashboard of an engine's cluster; None if there is none."""
    client = getattr(engine, "client", None)
    # n_workers=0: nothing about workers is sent along
    if client is None or "dashboard" not in client.scheduler_info(n_workers=0)["services"]:
        return None
    return str(client.dashboard_link)


def run_facts(run: Mapping[str, Any]) -> words.Facts:
    """Return the facts of `Passes.facts` in words."""
    from rff_dist.engines.clock import products_words

    seconds = run["seconds"]
    parts = ", ".join(
        f"{name} {words.seconds_words(value)}" for name, value in seconds.items() if name != "total"
    )
    return {
        "seconds": f"{words.seconds_words(seconds['total'])} ({parts})",
        "products": products_words(run["products"]) or None,
        "ran on": engine_words(run["engine"]),
    }


def describe_published(model: str | None, published: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a model is and which version it is, for the JSON document."""
    version = published["version"]
    numbers = None if version is None else {"number": version, "parent": published["parent"]}
    return {"model": model, "version": numbers}


def facts_view(title: str, /, **facts: str | None) -> RenderableType:
    """Return labels and values as two columns below a title; values of None are left out.

    Underscores of labels become spaces.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in facts.items():
        if value is not None:
            table.add_row(f"  {label.replace('_', ' ')}", _text(value))
    return Group(Text(title, "bold", overflow="fold"), table) if title else table


def next_step(*command: str) -> Text:
    """Return a line that suggests the next command of the program, its words quoted for the shell."""
    return Text.assemble(("\n  next: ", "dim"), shlex.join(["rff-dist", *command]), overflow="fold")


def views(parts: Iterable[Part]) -> RenderableType:
    """Return parts below each other, with an empty line above each table but the first part."""
    shown: list[RenderableType] = []
    for part in parts:
        if isinstance(part, words.Table):
            shown += ["", table_view(part)] if part.caption and shown else [table_view(part)]
        else:
            shown.append(part)
    return Group(*shown)


def describe_dataset(dataset: datasets.ZarrDataset) -> dict[str, Any]:
    """Return a dataset's facts for the JSON document."""
    return {
        "path": dataset.url,
        **fields.values_of(dataset, "n_samples", "n_features", "n_targets"),
        "dtype": dataset.dtype.name,
        **fields.values_of(dataset, "chunk_rows", "feature_names", "target_names", "version"),
        "dropped_rows": dataset.attributes.get("dropped_rows", 0),
    }


def dataset_facts(dataset: datasets.ZarrDataset) -> words.Facts:
    """Return a dataset's facts in words."""
    return {
        "rows": f"{dataset.n_samples:,}, {words.features_and_targets(dataset.n_features, dataset.n_targets)}",
        "stored as": f"{dataset.dtype.name}, {dataset.chunk_rows:,} rows a chunk, checksummed",
        "version": dataset.version,
        "features": words.listed(dataset.feature_names),
        "targets": words.listed(dataset.target_names),
        "dropped": words.dropped_words(dataset.attributes.get("dropped_rows", 0)),
    }


def engine_words(engine: Mapping[str, Any]) -> str:
    """Return in words which engine ran a job, from the entry "engine" of `Passes.facts`."""
    threads = words.plural(engine["n_threads"], "thread")
    if engine["kind"] == "serial":
        return f"this process, {threads}"
    return f"{engine['kind']}, {words.plural(engine['n_workers'], 'worker')} × {threads}"


def titled_table(
    title: str, *columns: str, header: bool = True, numbers: bool = True
) -> tuple[RenderableType, Table]:
    """Return a table below its title, and the table itself to add rows to."""
    table = Table(box=box.SIMPLE_HEAD, show_header=header, show_edge=False, padding=(0, 1, 0, 0))
    for i, column in enumerate(columns):
        # In a narrow terminal the widest columns are wrapped; "…" would stand for a number's digits.
        table.add_column(column, justify="right" if numbers and i else "left", overflow="fold")
    return Group(Text(title, "bold", overflow="fold"), table), table


def table_view(table: words.Table) -> RenderableType:
    """Return a table below its caption; the chosen row stands out."""
    view, rows = titled_table(table.caption, *table.header, numbers=not table.is_facts)
    for i, row in enumerate(table.cells()):
        rows.add_row(*map(_text, row), style="bold" if i == table.chosen else None)
    return view


def _text(value: str) -> Text:
    return Text(value, "yellow" if isinstance(value, words.Alert) else "")


def shape_words(lengths: Sequence[int]) -> str:
    """Return a shape such as 1,000 × 8."""
    return " × ".join(f"{length:,}" for length in lengths)


def short(value: Any) -> str:
    """Return a value's text, cut where it is long."""
    text = some(value) if isinstance(value, list) else str(value)
    return text if len(text) <= 200 else text[:200] + " …"
