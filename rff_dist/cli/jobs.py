"""Jobs on data: plan, fit, evaluate, predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rff_dist.cli.display import (
    alpha_words,
    chosen_by,
    classifier_facts,
    describe_cross_validation,
    describe_engine,
    engine_words,
    estimate_facts,
    facts_view,
    features_and_classes,
    features_and_targets,
    folds_words,
    kernel_words,
    next_step,
    passes,
    plural,
    seconds_words,
    target_names,
    titled_table,
    widths_view,
    widths_words,
)
from rff_dist.cli.options import (
    DEFAULT_FOLDS,
    AlphasText,
    AlphaText,
    CentresName,
    Classify,
    ClassWeight,
    Components,
    Conformal,
    DataArgument,
    DesignName,
    FitFeaturesName,
    FitKernelName,
    FitLengthScaleText,
    FoldsOption,
    GroupByName,
    Insecure,
    LossName,
    MapName,
    MissingChunks,
    ModelArgument,
    NoIntercept,
    Normalized,
    Nu,
    OneAlpha,
    Overwrite,
    PlotPath,
    Register,
    Scheduler,
    Seed,
    SelectName,
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
    read_bytes,
    read_classification,
    read_options,
    read_standardize,
)
from rff_dist.cli.registering import check_place, refuse_overwrite, store, version_facts
from rff_dist.cli.shell import Report, command
from rff_dist.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from rff_dist.automatic import Choices
    from rff_dist.blocks import Dataset
    from rff_dist.feature_map import FeatureMap
    from rff_dist.kmeans_starts import Clusters
    from rff_dist.model import RidgeModel
    from rff_dist.pipeline import Solved
    from rff_dist.plan import Plan
    from rff_dist.storage import ZarrDataset
    from rff_dist.uncertainty import Calibration


@command(
    "rff-dist plan data.zarr",
    "rff-dist plan data.zarr --components 16384 --workers 8 --threads 4 --memory 8GiB",
    "rff-dist plan data.zarr --kernel gaussian --length-scale median --features fourier",
)
def plan(
    data: DataArgument,
    kernel: FitKernelName = "auto",
    nu: Nu = None,
    n_components: Components = "auto",
    length_scale: FitLengthScaleText = "auto",
    alpha: AlphaText = "auto",
    n_folds: FoldsOption = None,
    features: FitFeaturesName = "auto",
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory of each process; what this machine has if left out."),
    ] = None,
    x: XName = "X",
    y: YName = "y",
    n_workers: Workers = None,
    n_threads: Threads = None,
    serial: Serial = False,
) -> Report:
    """Say what a fit would take: bytes, operations, memory and seconds. Nothing runs but a stop-watch."""
    from functools import partial

    from rff_dist import drawing, pipeline, storage
    from rff_dist.automatic import choices_of
    from rff_dist.cross_validation import cross_validation_flops
    from rff_dist.plan import available_memory, human_bytes, measure_gflops, plan_fit
    from rff_dist.training import Fit

    options = read_options(
        kernel=kernel,
        nu=nu,
        length_scale=length_scale,
        features=features,
        n_components=n_components,
        alpha=alpha,
        n_folds=n_folds,
    )
    workers, threads = Where(None, n_workers, n_threads, serial, insecure=False).size()
    here = available_memory()
    limit = (here if serial else here // workers) if memory is None else read_bytes(memory, "--memory")
    solver_limit = here if memory is None else limit
    dataset = storage.open_dataset(data, x=x, y=y)
    Fit(options=options).check(dataset)
    plan_with = partial(
        plan_fit,
        n_samples=dataset.n_samples,
        n_features=dataset.n_features,
        n_targets=max(1, dataset.n_targets),
        chunk_rows=dataset.chunk_rows,
        itemsize=dataset.dtype.itemsize,
        n_workers=workers,
        n_threads=threads,
        separate_client=not serial,
        alpha_path=not pipeline.is_one_alpha(options.alpha),
        whitened=drawing.find_features(options.kinds[-1]) is not None,
        memory_limit=limit,
        client_memory_limit=solver_limit,
    )
    choices = choices_of(
        dataset, options, plan=lambda width, n_folds: plan_with(n_components=width, n_folds=n_folds)
    )
    folds, widths = choices.folds, choices.widths
    found = plan_with(n_components=widths[-1], n_folds=1 if folds is None else folds.n_folds)
    gflops = measure_gflops()
    seconds = found.seconds(gflops)
    splits = 0 if folds is None else len(folds.splits)
    document = {
        **found.to_dict(),
        "gflops_per_thread": gflops,
        "statistics_seconds": seconds,
        "n_folds": 1 if folds is None else folds.n_folds,
        "widths": widths,
        "n_decompositions": splits * len(widths),
        "decomposition_flops": 0 if folds is None else cross_validation_flops(widths, splits),
        "choosing": _plan_choosing(choices, found, n_splits=splits or DEFAULT_FOLDS, gflops=gflops),
    }
    view, table = titled_table(f"a fit of {data}", "", "", header=False)
    table.add_column(style="dim")
    size = f"{features_and_targets(found.n_features, found.n_targets)}, D = {widths_words(widths)}"
    each = "" if folds is None else f", {folds.n_folds} folds apart"
    table_of_folds = (
        "to cross-validate",
        f"{document['decomposition_flops']:.3g}",
        f"{document['n_decompositions']} decompositions, one for each fold and D",
    )
    block_rows = f"{found.rows_per_block:,} rows each, in tiles of {found.tile_rows:,}"
    runs_on = "in this process" if serial else "the solver has a process of its own"
    for row in (
        ("rows", f"{found.n_samples:,}", size),
        ("processes × threads", f"{workers} × {threads}", runs_on),
        ("blocks", f"{found.n_blocks:,}", block_rows),
        ("read", human_bytes(found.bytes_read), "two passes: moments, statistics"),
        ("operations", f"{found.flops:.3g}", f"{gflops:.0f}e9 a second on one thread here"),
        *([] if folds is None else [table_of_folds]),
        ("statistics", human_bytes(found.statistics_bytes), f"of one block, or of all rows{each}"),
        ("peak memory, a worker", human_bytes(found.worker_bytes), f"of {human_bytes(limit)}"),
        ("peak memory, the solver", human_bytes(found.client_bytes), f"of {human_bytes(solver_limit)}"),
        *_choosing_rows(document["choosing"]),
        ("seconds, about", seconds_words(seconds), "for the statistics; reading and solving not counted"),
    ):
        table.add_row(*row)
    return Report(document, view)


def _plan_choosing(choices: Choices, found: Plan, *, n_splits: int, gflops: float) -> dict[str, Any] | None:
    """Return what choosing by folds takes beyond one fit: a first round in this process, and a final."""
    from rff_dist import automatic
    from rff_dist.cross_validation import cross_validation_flops
    from rff_dist.triangular import available_cores

    if not choices.choosing:
        return None
    rows = min(found.n_samples, automatic.ROUND_ROWS)
    width = min(found.n_components, automatic.round_components(found.n_samples))
    tuned = {one.kernel for one in choices.candidates if one.length_scale == "evidence"}
    tuning = len(tuned) * automatic.TUNING_STARTS * _TUNING_STEPS * 4 * automatic.TUNED_ON * _TUNING_WIDTH**2
    one = rows * width * (width + 2 * (found.n_features + 2))
    tables = cross_validation_flops([width], n_splits)
    flops = choices.n_tried * (one + tables) + min(1.0, rows / automatic.TUNED_ON) * tuning
    rate = _SHARE_OF_PEAK * gflops * 1e9 * available_cores()
    final = found.seconds(gflops) + cross_validation_flops(choices.widths, n_splits) / rate
    n_finalists = choices.n_finalists(found.n_samples)
    return {
        "n_candidates": choices.n_tried,
        "n_samples": rows,
        "n_components": width,
        "flops": float(flops),
        "seconds": float(flops / rate),
        "n_finalists": n_finalists,
        "final_seconds": float(n_finalists * final),
    }


# of an estimate to a factor of two: evaluations of the evidence for each start, its components, and the share
# of the rate of one large product that many small ones and decompositions reach
_TUNING_STEPS, _TUNING_WIDTH, _SHARE_OF_PEAK = 50, 256, 0.25


def _choosing_rows(found: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    if found is None:
        return []
    candidates, finalists = (plural(found[name], "candidate") for name in ("n_candidates", "n_finalists"))
    first = f"on {found['n_samples']:,} rows, D = {found['n_components']:,}"
    return [
        ("choosing, first", f"up to {candidates}", f"{first}: about {found['seconds']:.0f} s"),
        (
            "choosing, final",
            f"up to {finalists}",
            f"on all rows with all components: about {found['final_seconds']:.0f} s",
        ),
    ]


@command(
    "rff-dist fit data.zarr model",
    "rff-dist fit data.zarr model --kernel matern --nu 1.5 --length-scale median --features fourier",
    "rff-dist fit data.zarr model --classify --loss logistic",
    "rff-dist fit data.zarr model --folds 10 --alphas 1e-6:1e3:30 --components 512,1024,2048 --plot cv.png",
)
def fit(
    data: DataArgument,
    output: Annotated[str, typer.Argument(metavar="MODEL", help="Where to write the model.")],
    kernel: FitKernelName = "auto",
    nu: Nu = None,
    n_components: Components = "auto",
    length_scale: FitLengthScaleText = "auto",
    alpha: AlphaText = "auto",
    select: SelectName = None,
    alphas: AlphasText = None,
    n_folds: FoldsOption = None,
    groups: GroupByName = None,
    time: TimeOrder = False,
    conformal: Conformal = False,
    normalized: Normalized = False,
    one_alpha: OneAlpha = False,
    plot: PlotPath = None,
    classify: Classify = False,
    loss: LossName = None,
    class_weight: ClassWeight = None,
    features: FitFeaturesName = "auto",
    centres: CentresName = None,
    design: DesignName = None,
    map: MapName = "pairs",
    standardize: Standardize = "auto",
    no_intercept: NoIntercept = False,
    no_statistics: Annotated[
        bool,
        typer.Option("--no-statistics", help="Leave the exact sums out of the model: no updates then."),
    ] = False,
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
    """Train a ridge regression, or a classifier. What is left out is chosen by cross-validation."""
    where = Where(scheduler, n_workers, n_threads, serial, insecure)
    from rff_dist import pipeline
    from rff_dist.storage.locations import parse_location
    from rff_dist.training import Fit, open_job_data

    # All that can be known to be wrong is found before any work starts.
    options = read_options(
        kernel=kernel,
        nu=nu,
        length_scale=length_scale,
        features=features,
        centres=centres,
        n_components=n_components,
        alpha=alpha,
        select=select,
        alphas=alphas,
        n_folds=n_folds,
        groups=groups,
        time=time,
        conformal="normalized" if normalized else conformal,
        alpha_per_target=False if one_alpha else "auto",
        sample_weight_kind=weight_kind,
        design=design,
        map=map,
        standardize=read_standardize(standardize),
        fit_intercept=not no_intercept,
        seed=seed,
    )
    loss_name = read_classification(classify, loss, class_weight)
    job = Fit(options=options, loss=loss_name, class_weight=class_weight)
    job.check()
    several = isinstance(options.n_components, list)
    given = pipeline.is_one_alpha(options.alpha) and options.cv is None and not several
    if plot is not None and given and not options.conformal:
        raise typer.BadParameter(
            "nothing is chosen, so there is no error against alpha to draw; add --select cv",
            param_hint="--plot",
        )
    refuse_overwrite(register, overwrite)
    check_place(output, register=register, overwrite=overwrite, inputs=[parse_location(data)])
    source = open_job_data(
        data,
        x=x,
        y=y,
        sample_weight=sample_weight,
        missing_chunks=missing_chunks,
        group_by=groups,
        classify=classify,
    )
    dataset = source.rows
    job.check(dataset)
    with passes(where, writes=[output]) as (engine, clock):
        model, solved = job.run(source, engine=engine)
        seconds = clock.seconds()
        stored = store(
            model.without_statistics() if no_statistics else model,
            output,
            register=register,
            overwrite=overwrite,
            data=data,
            reason="fitted",
            n_samples=dataset.n_samples,
        )
        document = {
            **stored,
            **_describe_fit(model, solved, dataset, seed),
            "plot": plot,
            "engine": describe_engine(engine, where),
            "seconds": seconds,
        }
    if plot is not None:
        _draw_choice(plot, model, solved, data)
    parts = [_fit_facts(document, model.card), next_step("rff-dist", "evaluate", output, "DATA")]
    table = document["cross_validation"]
    if table is not None and len(table["widths"]) > 1:
        parts[1:1] = ["", widths_view(table, document["n_components"])]
    return Report(document, Group(*parts))


def _draw_choice(plot: Path, model: RidgeModel, solved: Solved, data: str) -> None:
    """Draw the errors that alpha, and the width, were chosen from."""
    import numpy as np

    from rff_dist.report import AlphaPath, save_alpha_paths, save_cross_validation

    kernel = kernel_words(_describe_features(model.feature_map, 0)["kernel"])
    if solved.cross_validation is not None:
        folds = folds_words(model.card["folds"])
        save_cross_validation(plot, solved.cross_validation, title=data, subtitle=f"{kernel}, {folds}")
        return
    names = target_names(model, model.n_targets)
    if solved.leave_one_out is not None:
        path = solved.leave_one_out
        panels = [AlphaPath("leave-one-out RMSE", path.alphas, np.sqrt(path.mean_squared_error))]
    else:
        selection = solved.selection
        assert selection is not None
        panels = [AlphaPath("root of the GCV score", selection.alphas, np.sqrt(selection.scores))]
        if selection.criterion == "evidence":
            panels.append(
                AlphaPath("log evidence", selection.alphas, selection.log_evidences, logarithmic=False)
            )
    subtitle = f"{kernel}, D = {model.feature_map.n_components:,}"
    save_alpha_paths(plot, panels, chosen=solved.solution.alpha, labels=names, title=data, subtitle=subtitle)


def _describe_features(feature_map: FeatureMap, seed: int) -> dict[str, Any]:
    from rff_dist.feature_map import NystromFeatureMap
    from rff_dist.pipeline import kernel_of

    kernel = kernel_of(feature_map)
    assert kernel is not None  # the map was drawn just now
    facts: dict[str, Any] = {
        "kernel": kernel.to_dict(),
        "length_scale": getattr(kernel, "length_scale", None),
        "seed": seed,
    }
    if isinstance(feature_map, NystromFeatureMap):
        return {"features": "nystrom", "jitter": feature_map.jitter, "design": None, "map": None, **facts}
    spec = feature_map.spec
    assert spec is not None
    return {"features": "fourier", "design": spec.design.name, "map": spec.map, **facts}


def _describe_fit(model: RidgeModel, solved: Solved, dataset: Dataset, seed: int) -> dict[str, Any]:
    from rff_dist.training import estimate_of

    feature_map, solution, selection = model.feature_map, solved.solution, solved.selection
    table = solved.cross_validation
    return {
        "n_samples": dataset.n_samples,
        "n_features": dataset.n_features,
        "n_targets": model.n_targets,
        "classifier": model.card.get("classifier"),
        "n_components": feature_map.n_components,
        **_describe_features(feature_map, seed),
        "alpha": model.plain_alpha,
        "alpha_chosen_by": chosen_by(model.card, any_path=bool(model.selection)),
        "alpha_at_end_of_path": _end_of_path(solved),
        "alpha_path": _ends_of_path(solved),
        "gcv": None if selection is None else selection.score,
        "estimate": estimate_of(model.card),
        "candidates": model.card.get("candidates", []),
        "cross_validation": None
        if table is None
        else describe_cross_validation(table, feature_map.n_components, solution.alpha),
        "status": solution.status.value,
        "causes": solution.status.causes,
        "remedies": solution.status.remedies,
        "effective_rank": solution.effective_rank,
        "alpha_floor": solution.floor,
        "statistics_digest": model.card["statistics_digest"],
        "digest": model.digest(),
    }


def _end_of_path(solved: Solved) -> str | None:
    """Say which end of the values looked at alpha is at, if any: a better one may lie beyond it."""
    import numpy as np

    from rff_dist.selection import end_of_grid, worst_end

    table, path = solved.cross_validation, solved.leave_one_out
    if table is not None and solved.choice is not None:
        return solved.choice.at_end if len(table.alphas) > 1 else None
    if path is not None:
        places = np.searchsorted(path.alphas, solved.solution.alpha)
        return worst_end([end_of_grid(int(place), len(path.alphas)) for place in places])
    return None if solved.selection is None else solved.selection.at_end


def _ends_of_path(solved: Solved) -> tuple[float, float] | None:
    found = solved.cross_validation or solved.leave_one_out or solved.selection
    return None if found is None else (float(found.alphas[0]), float(found.alphas[-1]))


def _feature_words(found: Mapping[str, Any]) -> str:
    if found["features"] == "nystrom":
        return f"Nyström with jitter {found['jitter']:.3g}"
    return f"{found['design']}, {found['map']}"


def _fit_facts(found: Mapping[str, Any], card: Mapping[str, Any]) -> RenderableType:
    classifier = found["classifier"]
    outputs = features_and_targets(found["n_features"], found["n_targets"])
    if classifier is not None:
        outputs = features_and_classes(found["n_features"], classifier["classes"])
    facts = {
        "rows": f"{found['n_samples']:,}, {outputs}",
        "features": f"D = {found['n_components']:,}, {_feature_words(found)}, seed {found['seed']}",
        "kernel": kernel_words(found["kernel"]),
        "alpha": alpha_words(found["alpha"], found["alpha_chosen_by"], classifier),
    }
    if (end := found["alpha_at_end_of_path"]) is not None:
        low, high = found["alpha_path"]
        facts["alpha"] += f", [yellow]at the {end} end[/] of {low:.3g} to {high:.3g}"
    facts |= estimate_facts(card)
    if classifier is not None:
        facts |= classifier_facts(classifier)
    status = found["status"].replace("_", " ")
    facts["solver"] = status if found["status"] == "ok" else f"[yellow]{status}[/]: {found['causes'][0]}"
    if found["remedies"]:
        facts["remedy"] = found["remedies"][0]
    engine, seconds = found["engine"], found["seconds"]
    parts = ", ".join(f"{name} {seconds_words(value)}" for name, value in seconds.items() if name != "total")
    facts["seconds"] = f"{seconds_words(seconds['total'])} ({parts})"
    facts["ran on"] = engine_words(engine)
    facts["digest"] = found["digest"][:16]
    facts |= version_facts(found)
    return facts_view(f"wrote {found['model']}", **facts)


@command("rff-dist evaluate model test.zarr", "rff-dist evaluate model test.zarr --std --json")
def evaluate(
    model: ModelArgument,
    data: DataArgument,
    std: Annotated[
        bool,
        typer.Option("--std", help="Judge its standard deviations too: NLPD, and how often intervals cover."),
    ] = False,
    x: XName = "X",
    y: YName = "y",
    sample_weight: WeightsName = None,
    missing_chunks: MissingChunks = "error",
    scheduler: Scheduler = None,
    n_workers: Workers = None,
    n_threads: Threads = None,
    serial: Serial = False,
    insecure: Insecure = False,
) -> Report:
    """Measure a model's errors on a dataset: per target, per class, or clusters against labels (--y)."""
    where = Where(scheduler, n_workers, n_threads, serial, insecure)
    import numpy as np

    from rff_dist import prediction
    from rff_dist.cli import cluster
    from rff_dist.kmeans_starts import Clusters
    from rff_dist.storage.columns import column_of
    from rff_dist.uncertainty import Calibration

    trained, dataset = _open_model_and_data(
        model, data, x=x, y=y, sample_weight=sample_weight, missing_chunks=missing_chunks
    )
    if isinstance(trained, Clusters):
        if std:
            raise typer.BadParameter("clusters have no standard deviations; leave it out", param_hint="--std")
        return cluster.evaluate_clusters(
            trained, dataset, column_of(dataset, y), where, model=model, data=data, y=y
        )
    if "classifier" in trained.card:
        _refuse_std(std)
        return _evaluate_classifier(trained, dataset, where, model=model, data=data, y=y)
    if dataset.n_targets < 1:
        raise DataError(f"{data} has no y to compare predictions with; name its array with --y")
    with passes(where) as (engine, clock):
        found = prediction.evaluate(dataset, trained, engine=engine, std=std)
        seconds = clock.seconds()["total"]
        ran_on = describe_engine(engine, where)
    calibration = found if isinstance(found, Calibration) else None
    errors = found.errors if isinstance(found, Calibration) else found
    rmse, deviation = np.sqrt(errors.mean_squared_error), np.sqrt(errors.target_variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = {
            "rmse": rmse,
            "z_rmse": np.where(deviation > 0, rmse / deviation, np.nan),
            "mse": errors.mean_squared_error,
            "mae": errors.mean_absolute_error,
            "bias": errors.bias,
            "largest": errors.largest,
            "r2": errors.r2,
        }
    names = target_names(trained, dataset.n_targets)
    targets = [
        {"name": name, **{key: float(values[i]) for key, values in columns.items()}}
        for i, name in enumerate(names)
    ]
    if calibration is not None:
        targets = [{**target, **_describe_calibration(calibration, i)} for i, target in enumerate(targets)]
    document = {
        "model": model,
        "data": data,
        "n_samples": errors.n_samples,
        "targets": targets,
        "engine": ran_on,
        "seconds": seconds,
    }
    view, table = titled_table(
        f"{model} on {data}: {errors.n_samples:,} rows, {seconds_words(seconds)} s",
        *("target", "RMSE", "z-RMSE", "MSE", "MAE", "bias", "largest", "R²"),
    )
    for target in targets:
        table.add_row(str(target["name"]), *(f"{target[key]:.4g}" for key in columns))
    parts: list[RenderableType] = [
        view,
        Text("z-RMSE: in units of the target's standard deviation here", "dim"),
    ]
    if calibration is not None:
        parts += _calibration_view(targets)
    return Report(document, Group(*parts))


def _describe_interval(model: RidgeModel, coverage: float | None) -> dict[str, Any] | None:
    if coverage is None:
        return None
    by = "normal law" if model.held_out is None else "held-out rows"
    return {"coverage": coverage, "arrays": ["lower", "upper"], "by": by}


def _refuse_std(std: bool) -> None:
    if std:
        raise typer.BadParameter(
            "a classifier has no standard deviations; leave it out (predict has --probabilities)",
            param_hint="--std",
        )


def _evaluate_classifier(
    trained: RidgeModel, dataset: ZarrDataset, where: Where, *, model: str, data: str, y: str
) -> Report:
    from rff_dist import class_prediction
    from rff_dist.storage.columns import column_of
    from rff_dist.storage.labelled import LabelledDataset

    classes = class_prediction.read_classes(trained)
    rows = LabelledDataset(dataset, column_of(dataset, y), classes)
    with passes(where) as (engine, clock):
        found = class_prediction.evaluate(rows, trained, engine=engine)
        seconds = clock.seconds()["total"]
        ran_on = describe_engine(engine, where)
    columns = {"precision": found.precision, "recall": found.recall}
    per_class = [
        {
            "label": label,
            "n_samples": int(found.counts[i].sum()),
            "n_predicted": int(found.counts[:, i].sum()),
            **{name: float(values[i]) for name, values in columns.items()},
        }
        for i, label in enumerate(classes.tolist())
    ]
    document = {
        "model": model,
        "data": data,
        "n_samples": found.n_samples,
        "accuracy": found.accuracy,
        "balanced_accuracy": found.balanced_accuracy,
        "log_loss": found.log_loss,
        "classes": per_class,
        "confusion_matrix": found.counts,
        "engine": ran_on,
        "seconds": seconds,
    }
    facts = facts_view(
        f"{model} on {data}: {found.n_samples:,} rows, {seconds_words(seconds)} s",
        accuracy=f"{found.accuracy:.4g}",
        balanced_accuracy=f"{found.balanced_accuracy:.4g}, the mean recall of classes",
        log_loss="none: the model has no probabilities"
        if found.log_loss is None
        else f"{found.log_loss:.4g} nats",
    )
    view, table = titled_table("", "class", "rows", "predicted", *columns)
    for row in per_class:
        shares = [f"{row[name]:.4g}" for name in columns]
        table.add_row(str(row["label"]), f"{row['n_samples']:,}", f"{row['n_predicted']:,}", *shares)
    return Report(document, Group(facts, view))


def _describe_calibration(calibration: Calibration, target: int) -> dict[str, Any]:
    from rff_dist.uncertainty import LEVELS

    per_level = {"coverage": calibration.coverage, "mean_width": calibration.mean_widths}
    return {
        "nlpd": float(calibration.nlpd[target]),
        "z_nlpd": float(calibration.standardized_nlpd[target]),
        "mean_squared_score": float(calibration.mean_squared_score[target]),
        "mean_std": float(calibration.mean_standard_deviation[target]),
        **{
            name: {str(level): float(values[i, target]) for i, level in enumerate(LEVELS)}
            for name, values in per_level.items()
        },
    }


def _calibration_view(targets: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    columns = {"NLPD": "nlpd", "z-NLPD": "z_nlpd"}
    levels = [f"{float(level):.0%}" for level in targets[0]["coverage"]]
    view, table = titled_table(
        "density of the targets, and the share of rows inside central intervals",
        *("target", *columns, *levels),
    )
    for target in targets:
        figures = [f"{target[key]:.4g}" for key in columns.values()]
        shares = [f"{share:.1%}" for share in target["coverage"].values()]
        table.add_row(str(target["name"]), *figures, *shares)
    return [
        Text(),
        view,
        Text("z-NLPD: in units of the target's standard deviation on the training rows", "dim"),
    ]


def _open_model_and_data(model: str, data: str, **names: Any) -> tuple[RidgeModel | Clusters, ZarrDataset]:
    from rff_dist import kmeans_labels, kmeans_starts, prediction, storage
    from rff_dist.cluster_model import read_any

    trained = read_any(model)
    if isinstance(trained, kmeans_starts.Clusters) or "classifier" in trained.card:
        names["y"] = None  # its labels are no targets
    dataset = storage.open_dataset(data, **names)
    try:
        if isinstance(trained, kmeans_starts.Clusters):
            kmeans_labels.check_columns(dataset, trained)
        else:
            prediction.check_dataset(dataset, trained)
    except DataError as error:
        raise DataError(
            f"{data} does not fit {model}: {error}. Give data of the columns that the model was trained on, "
            "or another model"
        ) from error
    return trained, dataset


@command(
    "rff-dist predict model new.zarr predictions.zarr",
    "rff-dist predict classifier new.zarr labels.zarr --probabilities",
    "rff-dist predict clusters new.zarr labels.zarr --distances",
)
def predict(
    model: ModelArgument,
    data: DataArgument,
    output: Annotated[str, typer.Argument(metavar="OUT", help="Where to write the predictions.")],
    std: Annotated[
        bool, typer.Option("--std", help="Write their standard deviations too, as `standard_deviations`.")
    ] = False,
    coverage: Annotated[
        float | None,
        typer.Option(
            "--interval",
            metavar="C",
            help="Write the ends of intervals that hold a share C of new values, as `lower` and `upper`: by "
            "held-out rows where the model was fitted with --conformal, else by the normal law.",
        ),
    ] = None,
    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities", help="Of a classifier: write those of each class too, as `probabilities`."
        ),
    ] = False,
    distances: Annotated[
        bool,
        typer.Option("--distances", help="Of clusters: write those to all centres too, as `distances`."),
    ] = False,
    overwrite: Overwrite = False,
    x: XName = "X",
    missing_chunks: MissingChunks = "error",
    scheduler: Scheduler = None,
    n_workers: Workers = None,
    n_threads: Threads = None,
    serial: Serial = False,
    insecure: Insecure = False,
) -> Report:
    """Write a model's predictions for every row of a dataset, as the Zarr array `predictions` or `labels`."""
    where = Where(scheduler, n_workers, n_threads, serial, insecure)
    from rff_dist import class_prediction, prediction
    from rff_dist.cli import cluster
    from rff_dist.kmeans_starts import Clusters
    from rff_dist.storage.locations import check_output, parse_location

    check_output(
        parse_location(output),
        overwrite=overwrite,
        inputs=[parse_location(data), parse_location(model)],
    )
    trained, dataset = _open_model_and_data(model, data, x=x, y=None, missing_chunks=missing_chunks)
    if isinstance(trained, Clusters):
        given = {"--std": std, "--interval": coverage is not None, "--probabilities": probabilities}
        if any(given.values()):
            raise typer.BadParameter(
                f"{model} holds clusters, whose labels have none; leave it out",
                param_hint=next(option for option, is_given in given.items() if is_given),
            )
        return cluster.write_labels(
            trained, dataset, where, model=model, output=output, distances=distances, overwrite=overwrite
        )
    if distances:
        raise typer.BadParameter(f"{model} holds no clusters; leave it out", param_hint="--distances")
    classifier = trained.card.get("classifier")
    if classifier is None and probabilities:
        raise typer.BadParameter(f"{model} is no classifier; leave it out", param_hint="--probabilities")
    if coverage is not None and not 0.0 < coverage < 1.0:
        raise typer.BadParameter(
            f"{coverage:g}; expected a number in (0, 1), such as 0.9", param_hint="--interval"
        )
    if classifier is not None:
        _refuse_std(std)
        if coverage is not None:
            raise typer.BadParameter(
                "a classifier's labels have no intervals; leave it out", param_hint="--interval"
            )
        if probabilities and classifier["calibration"] is None:
            raise class_prediction.no_probabilities(trained)
    with passes(where, writes=[output]) as (engine, clock):
        if classifier is None:
            written = prediction.predict(
                dataset,
                trained,
                output,
                engine=engine,
                std=std,
                coverage=coverage,
                column_names=trained.card.get("target_names"),
                overwrite=overwrite,
            )
        else:
            written = class_prediction.predict(
                dataset, trained, output, engine=engine, probabilities=probabilities, overwrite=overwrite
            )
        seconds = clock.seconds()["total"]
        ran_on = describe_engine(engine, where)
    array = "predictions" if classifier is None else "labels"
    arrays = [array]
    arrays += ["standard_deviations"] if std else []
    arrays += ["lower", "upper"] if coverage is not None else []
    arrays += ["probabilities"] if probabilities else []
    outputs = (
        plural(trained.n_targets, "target")
        if classifier is None
        else plural(len(classifier["classes"]), "class", "classes")
    )
    document = {
        "output": output,
        "array": array,
        "std_array": "standard_deviations" if std else None,
        "interval": _describe_interval(trained, coverage),
        "probabilities_array": "probabilities" if probabilities else None,
        "n_samples": written,
        "n_targets": trained.n_targets,
        "model_digest": trained.digest(),
        "engine": ran_on,
        "seconds": seconds,
    }
    view = facts_view(
        f"wrote {output}",
        rows=f"{written:,}, {outputs}",
        array=", ".join(arrays),
        model=f"{model} ({trained.digest()[:16]})",
        ran_on=engine_words(ran_on),
        seconds=seconds_words(seconds),
    )
    return Report(document, view)
