"""Which kernel, length scale, alpha and D: candidates compared by cross-validation, the best one stored."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rff_dist.cli.display import (
    alpha_number,
    describe_engine,
    engine_words,
    facts_view,
    features_and_targets,
    folds_words,
    next_step,
    passes,
    plural,
    seconds_words,
    some,
    titled_table,
)
from rff_dist.cli.options import (
    DEFAULT_FOLDS,
    FEATURES,
    REGRESSION,
    AlphasText,
    CentresName,
    DataArgument,
    DesignName,
    FeaturesName,
    FoldsOption,
    GroupByName,
    Insecure,
    MapName,
    MissingChunks,
    NoIntercept,
    OneAlpha,
    Overwrite,
    PlotPath,
    Register,
    Scheduler,
    Seed,
    Serial,
    Standardize,
    Threads,
    TimeOrder,
    WeightKind,
    WeightsName,
    Where,
    Workers,
    XName,
    YName,
    read_components,
    read_cv,
    read_features,
    read_selection,
    read_standardize,
)
from rff_dist.cli.registering import check_place, refuse_overwrite, store, version_facts
from rff_dist.cli.shell import Report, command
from rff_dist.errors import DataError

if TYPE_CHECKING:
    from rff_dist.search import Candidate, Search
    from rff_dist.storage import ZarrDataset

_COMMA = re.compile(r",(?!\s*\w+\s*=)")  # not the one between a kernel's parameters


@command(
    "rff-dist tune data.zarr model",
    "rff-dist tune data.zarr model --kernels gaussian,matern:nu=1.5 --length-scales 0.5x,1x,2x "
    "--components 256,512,1024,2048 --plot cv.png",
    "rff-dist tune data.zarr model --folds 10 --group-by patient --alphas 1e-6:1e3:30",
)
def tune(
    data: DataArgument,
    output: Annotated[str, typer.Argument(metavar="MODEL", help="Where to write the best model.")],
    kernels: Annotated[
        str,
        typer.Option(
            "--kernels",
            metavar="K1,K2,…",
            help="Kernels to compare, with parameters as in matern:nu=2.5; see --kernel of `fit`.",
            rich_help_panel=FEATURES,
        ),
    ] = "gaussian,matern:nu=1.5",
    length_scales: Annotated[
        str | None,
        typer.Option(
            "--length-scales",
            metavar="L1,L2,…",
            help="Widths that each kernel is tried with: numbers, multiples of the median distance such as "
            "0.5x, or evidence; 0.25x,0.5x,1x,2x,4x if left out.",
            rich_help_panel=FEATURES,
        ),
    ] = None,
    n_components: Annotated[
        str,
        typer.Option(
            "--components",
            metavar="D|D1,D2,…|auto",
            help="How many; of several the smallest within one standard error of the best; auto is 2048, or "
            "fewer where rows are few or memory is short.",
            rich_help_panel=FEATURES,
        ),
    ] = "1024",
    features: FeaturesName = "fourier",
    centres: CentresName = None,
    design: DesignName = None,
    map: MapName = "pairs",
    standardize: Standardize = "auto",
    n_folds: FoldsOption = None,
    groups: GroupByName = None,
    time: TimeOrder = False,
    alphas: AlphasText = None,
    select: Annotated[
        str,
        typer.Option(
            "--select",
            metavar="cv|cv-1se",
            help="Take the alpha of the least k-fold error, or the largest within one standard error of it.",
            rich_help_panel=REGRESSION,
        ),
    ] = "cv",
    no_intercept: NoIntercept = False,
    one_alpha: OneAlpha = False,
    plot: PlotPath = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    register: Register = False,
    x: XName = "X",
    y: YName = "y",
    sample_weight: WeightsName = None,
    weight_kind: WeightKind = "precision",
    missing_chunks: MissingChunks = "error",
    scheduler: Scheduler = None,
    n_workers: Workers = None,
    n_threads: Threads = None,
    serial: Serial = False,
    insecure: Insecure = False,
) -> Report:
    """Compare kernels, length scales, alphas and D by cross-validation from one reading; train the best."""
    where = Where(scheduler, n_workers, n_threads, serial, insecure)
    from rff_dist import pipeline, storage
    from rff_dist.feature_map import check_map
    from rff_dist.search import check_candidates, check_choices, search
    from rff_dist.storage.columns import column_of
    from rff_dist.storage.labelled import GroupedDataset
    from rff_dist.storage.locations import parse_location

    # All that can be known to be wrong is found before any work starts.
    if select not in ("cv", "cv-1se"):
        raise typer.BadParameter(f"{select!r}; expected cv or cv-1se", param_hint="--select")
    alpha, grid = read_selection("auto", select, alphas)
    components = read_components(n_components)
    cv = read_cv(n_folds, groups, time, alpha=alpha)
    folds = check_choices(alpha, grid, cv=DEFAULT_FOLDS if cv is None else cv, n_components=components)
    check_map(map)
    kind = read_features(features, centres)
    if not isinstance(components, str):
        pipeline.read_widths(components, map, kind)
    candidates = read_candidates(kernels, length_scales)
    refuse_overwrite(register, overwrite)
    check_place(output, register=register, overwrite=overwrite, inputs=[parse_location(data)])
    dataset = storage.open_dataset(data, x=x, y=y, sample_weight=sample_weight, missing_chunks=missing_chunks)
    if dataset.n_targets < 1:
        raise DataError(f"{data} has no y, and training needs targets; name their array with --y")
    rows = dataset if groups is None else GroupedDataset(dataset, column_of(dataset, groups))
    pipeline.check_folds(rows, folds)
    check_candidates(candidates, rows, design=design, features=kind)
    with passes(where, writes=[output]) as (engine, clock):
        found = search(
            rows,
            candidates,
            engine=engine,
            n_components=components,
            alpha=alpha,
            alphas=grid,
            cv=folds,
            design=design,
            map=map,
            standardize=read_standardize(standardize),
            alpha_per_target=False if one_alpha else "auto",
            sample_weight_kind=weight_kind,
            fit_intercept=not no_intercept,
            seed=seed,
            features=kind,
        )
        seconds = clock.seconds()
        stored = store(
            found.model,
            output,
            register=register,
            overwrite=overwrite,
            data=data,
            reason="tuned",
            n_samples=dataset.n_samples,
        )
        document = {
            **stored,
            **_describe_search(found, dataset, seed),
            "plot": plot,
            "engine": describe_engine(engine, where),
            "seconds": seconds,
        }
    if plot is not None:
        _draw(plot, found, data)
    following = next_step("rff-dist", "evaluate", output, "DATA")
    return Report(document, Group(_table(found, data), "", _facts(document), following))


def read_candidates(kernels: str, length_scales: str | None) -> list[Candidate]:
    """Read `--kernels` and `--length-scales`."""
    from rff_dist.search import make_candidates

    widths = None
    if length_scales is not None:
        widths = [_read_width(part) for part in length_scales.split(",")]
    return make_candidates([part.strip() for part in _COMMA.split(kernels)], widths)


def _read_width(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text.strip()  # of which the library says what it may be


def _describe_search(found: Search, dataset: ZarrDataset, seed: int) -> dict[str, Any]:
    model, status = found.model, found.solved.solution.status
    return {
        "n_samples": dataset.n_samples,
        "n_features": dataset.n_features,
        "n_targets": dataset.n_targets,
        "n_readings": found.n_readings,
        "folds": model.card["folds"],
        "seed": seed,
        "best": found.best,
        "candidates": found.rows,
        "status": status.value,
        "causes": status.causes,
        "remedies": status.remedies,
        "statistics_digest": model.card["statistics_digest"],
        "digest": model.digest(),
    }


def _draw(plot: Any, found: Search, data: str) -> None:
    """Draw the best candidate's error against alpha and against D."""
    from rff_dist.report import save_cross_validation

    table, folds = found.solved.cross_validation, folds_words(found.model.card["folds"])
    assert table is not None  # candidates are compared by one
    save_cross_validation(plot, table, title=data, subtitle=f"{_kernel_words(found.best)}, {folds}")


def _kernel_words(row: Mapping[str, Any]) -> str:
    scale = row["length_scale"]
    return row["kernel"] if scale is None else f"{row['kernel']}, length scale {_scale_words(scale)}"


def _scale_words(scale: float | Sequence[float] | None) -> str:
    if scale is None:
        return "–"
    return some(scale) if isinstance(scale, list) else f"{scale:.4g}"


def _table(found: Search, data: str) -> RenderableType:
    view, table = titled_table(
        f"{plural(len(found.rows), 'candidate')} on {data}",
        *("kernel", "width", "D", "alpha", "error", "RMSE", ""),
    )
    for i, row in enumerate(found.rows):
        best = i == found.best_index
        deviation = row["standard_error"]
        table.add_row(
            row["kernel"],
            _scale_words(row["length_scale"]),
            f"{row['n_components']:,}",
            alpha_number(row["alpha"]),
            f"{row['score']:.4g}" + ("" if deviation is None else f" ± {deviation:.2g}"),
            some(row["rmse"]),
            "← best" if best else "as good" if row["within_one_standard_error"] else "",
            style="bold" if best else None,
        )
    note = "error: share of the variance, least over alpha and D; as good: within its standard error"
    return Group(view, Text(note, "dim"))


def _facts(found: Mapping[str, Any]) -> RenderableType:
    best, seconds = found["best"], found["seconds"]
    facts = {
        "best": f"{_kernel_words(best)}, D = {best['n_components']:,}, alpha {alpha_number(best['alpha'])}",
        "rows": f"{found['n_samples']:,}, {features_and_targets(found['n_features'], found['n_targets'])}",
        "compared by": f"{folds_words(found['folds'])}, from {plural(found['n_readings'], 'reading')}",
    }
    ends = [
        f"{name} is the {'least' if end == 'lower' else 'largest'} tried"
        for name, end in (
            ("the length scale", best["length_scale_at_end"]),
            ("alpha", best["alpha_at_end"]),
        )
        if end is not None
    ]
    if ends:
        facts["note"] = f"[yellow]{' and '.join(ends)}[/]: a better one may lie beyond"
    status = found["status"].replace("_", " ")
    facts["solver"] = status if found["status"] == "ok" else f"[yellow]{status}[/]: {found['causes'][0]}"
    if found["remedies"]:
        facts["remedy"] = found["remedies"][0]
    parts = ", ".join(f"{name} {seconds_words(value)}" for name, value in seconds.items() if name != "total")
    facts["seconds"] = f"{seconds_words(seconds['total'])} ({parts})"
    facts["ran on"] = engine_words(found["engine"])
    facts["digest"] = found["digest"][:16]
    facts |= version_facts(found)
    return facts_view(f"wrote {found['model']}", **facts)
