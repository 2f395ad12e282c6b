"""A training run in steps, each of which leaves what the next one needs in a folder.

`pipeline.fit` is the same job in one call. Cut into steps it can be driven by an orchestrator: a step
takes and returns small JSON-able summaries, and everything larger (sums, models) lies beside the
output as checksummed records until the run has published its model. Of several length scales each
takes one pass, and the one with the least cross-validated error is published.

Candidates of `rff_dist.search` share a pass: see `draw_candidates`, `accumulate_candidates` and
`validate_candidate`. Their folds' sums stay in memory from one step to the next: they are many times one
model's, and nothing but the next step reads them.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rff_dist import drawing, pipeline, prediction, search
from rff_dist.blocks import Accumulation, Dataset
from rff_dist.drift import ColumnMoments
from rff_dist.engines import Broadcast, Engine
from rff_dist.errors import BroadcastError, DataError, InvalidParameterError
from rff_dist.feature_map import FeatureMap, Nystrom, NystromFeatureMap, Standardizer, draw_feature_map
from rff_dist.folds import Folds, FoldStatistics
from rff_dist.kernels import Kernel, LengthScale, default_design, kernel_from_dict
from rff_dist.model import RidgeModel, read_model, write_model
from rff_dist.plan import human_bytes
from rff_dist.publishing import publish
from rff_dist.statistics import RidgeStatistics
from rff_dist.storage import read_record, redact, write_record
from rff_dist.storage.leases import Lease, hold
from rff_dist.storage.locations import Location, beside, check_output, children, discard, parse_location
from rff_dist.storage.registry import RegisteredModel

__all__ = [
    "Job",
    "Summary",
    "accumulate_candidates",
    "accumulate_statistics",
    "broadcast_features",
    "check_place",
    "choose_candidate",
    "draw_candidates",
    "draw_features",
    "evaluate_model",
    "inspect_data",
    "leftover_runs",
    "open_job",
    "plan_readings",
    "publish_model",
    "read_candidate",
    "solve_ridge",
    "trained_models",
    "validate_candidate",
]

logger = logging.getLogger(__name__)

type Summary = dict[str, Any]

_MODEL_FILES = ("model.json",)


@dataclass(frozen=True, slots=True)
class Job:
    """What a run is to do, with which engine and where; see `pipeline.fit` for the parameters.

    Attributes
    ----------
    dataset : Dataset
        With targets.
    engine : Engine
        Runs all passes.
    output : Location
        Where the model is published.
    folder : Location
        Where the run keeps its records.
    test : Dataset, or None
        What the chosen model is evaluated on.
    kernel : Kernel
        Of `draw_features`; the candidates of `draw_candidates` have their own.
    n_components, alpha, alphas, map, standardize, fit_intercept, seed, features
        As in `pipeline.fit`.
    design : str or None
        None is each kernel's own, see `default_design`.
    folds : Folds or None
        By which the candidates of `draw_candidates` are compared.
    widths : tuple of int
        Numbers of components that each of those chooses from, ascending; the last is `n_components`.
    choosing : bool
        Whether several length scales compete, so that each solution needs a GCV score.
    overwrite : bool
        Whether a model at `output` may be replaced.
    register : bool
        Whether the model is published as the next version of a registered one.
    on_workers : dict of str to Broadcast
        The feature map that the workers hold now, by its candidate's name.
    sums : dict of str to FoldStatistics
        Of candidates that were accumulated and not yet validated, by their names.
    best : dict of str to float
        The score of the best candidate so far, whose model and sums are kept as records, by its name.
    kept : list of str
        Where a trained model is that could not be published: the run's folder then stays.
    lease : Lease or None
        The right to write to `output`, which is looked at again before the model is published.
    """

    dataset: Dataset
    engine: Engine
    output: Location
    folder: Location
    test: Dataset | None
    kernel: Kernel
    n_components: int
    alpha: pipeline.Alpha
    design: str | None
    map: str
    standardize: bool | str
    fit_intercept: bool
    seed: int
    choosing: bool
    overwrite: bool
    register: bool = False
    features: str | Nystrom = "fourier"
    alphas: Sequence[float] | None = None
    folds: Folds | None = None
    widths: tuple[int, ...] = ()
    on_workers: dict[str, Broadcast[Accumulation]] = field(default_factory=dict)
    sums: dict[str, FoldStatistics] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    lease: Lease | None = None

    def place(self, name: str) -> str:
        """Return the URL of one of the run's records."""
        return self.folder.child(name).url


def check_place(
    model_url: str, dataset: Dataset, *, overwrite: bool = False, register: bool = False
) -> Location:
    """Return where a model is to be published, if it can be; before a cluster starts, say.

    Raises
    ------
    OutputExistsError
        If there is something at `model_url` and `overwrite` is False; with `register`, something else than a
        registered model.
    StorageError
        If a model cannot be written there.
    """
    output = parse_location(model_url)
    inputs = [] if dataset.url is None else [parse_location(dataset.url)]
    if register:
        RegisteredModel(model_url).check(inputs=inputs)
    else:
        check_output(output, overwrite=overwrite, inputs=inputs, marker=_MODEL_FILES)
    return output


@contextmanager
def open_job(
    dataset: Dataset,
    kernel: Kernel,
    model_url: str,
    *,
    engine: Engine,
    test: Dataset | None = None,
    n_components: int = 2048,
    alpha: pipeline.Alpha = "auto",
    design: str | None = "orthogonal",
    map: str = "pairs",
    standardize: bool | str = "auto",
    fit_intercept: bool = True,
    seed: int = 0,
    choosing: bool = False,
    overwrite: bool = False,
    register: bool = False,
    features: str | Nystrom = "fourier",
    alphas: Sequence[float] | None = None,
    folds: Folds | None = None,
    widths: Sequence[int] = (),
    holder: str = "a training run",
) -> Iterator[Job]:
    """Begin a run, and remove its folder at the end, unless a trained model could not be published.

    No other run can begin for the same model meanwhile. What runs left that were killed is removed, but for
    models that were trained.

    Parameters
    ----------
    model_url : str
        Where the model is to be published.
    test : Dataset, optional
        What the chosen model is to be evaluated on.
    choosing : bool
        Whether several length scales compete; then a single `alpha` must be above 0.
    overwrite : bool
        Whether a model that is there may be replaced.
    register : bool
        Whether the model is published as the next version of a registered one; then nothing is replaced.
    folds, widths
        Of a run that compares candidates, see `Job`.
    holder : str
        What a second run is told of this one.

    Raises
    ------
    OutputBusyError
        If another run writes there.
    OutputExistsError
        If there is something at `model_url` and `overwrite` is False.
    StorageError
        If a model cannot be written there.
    """
    output = check_place(model_url, dataset, overwrite=overwrite, register=register)
    parent, _, name = output.path.rpartition("/")
    hidden = f"{parent}/.{name}" if parent else f".{name}"
    with hold(output, holder=holder) as lease:
        _remove_leftovers(output)
        job = Job(
            dataset=dataset,
            engine=engine,
            output=output,
            folder=replace(output, path=f"{hidden}.run-{uuid.uuid4().hex[:12]}"),
            test=test,
            kernel=kernel,
            n_components=n_components,
            alpha=alpha,
            design=design,
            map=map,
            standardize=pipeline.check_standardize(standardize),
            fit_intercept=fit_intercept,
            seed=seed,
            choosing=choosing,
            overwrite=overwrite,
            register=register,
            features=features,
            alphas=alphas,
            folds=folds,
            widths=tuple(widths),
            lease=lease,
        )
        try:
            yield job
        finally:
            if not job.kept:
                # Nothing resumes from a failed run, and its sums may be gigabytes.
                discard(job.folder)


def _remove_leftovers(output: Location) -> None:
    """Remove the folders of runs that were killed: whoever holds the lease knows that none of them lives."""
    for folder in beside(output, "run-"):
        trained = trained_models(folder)
        if trained:
            logger.warning(
                "a run that did not end left trained models, which stay: %s",
                ", ".join(redact(model.url) for model in trained),
            )
        else:
            logger.info("removing what a run left that did not end: %s", redact(folder.url))
            discard(folder)


def leftover_runs(model_url: str) -> list[Location]:
    """Return the folders of runs for this model that go on, or did not end."""
    return beside(parse_location(model_url), "run-")


def trained_models(folder: Location) -> list[Location]:
    """Return where trained models are in a run's folder, that were not published."""
    return [folder.child(name) for name in children(folder) if name.endswith("-model")]


def inspect_data(job: Job) -> Summary:
    """Plan the fit, check every value and keep the moments that later steps need; one cheap pass.

    Returns
    -------
    summary : dict
        Sizes, the data's fingerprint and the plan's figures.

    Raises
    ------
    PlanError
        If memory would not do.
    DataError
        If a value cannot be used, naming row and column, or the test data have other columns.
    """
    dataset = job.dataset
    _check_test(job)
    plan = pipeline.check_plan(
        dataset,
        job.n_components,
        engine=job.engine,
        alpha=_alphas(job),
        features=job.features,
        n_folds=1 if job.folds is None else job.folds.n_folds,
    )
    moments = pipeline.inspect(dataset, engine=job.engine)
    if not job.standardize:
        pipeline.warn_of_lost_digits(moments)
    standardizer = pipeline.standardizer_for(dataset, moments, job.standardize, engine=job.engine)
    targets = moments.standard_deviations[len(moments.pivot) - moments.n_targets :]
    lower, upper = pipeline.input_range(moments, standardizer)
    arrays = {"target_variance": targets**2, "input_lower": lower, "input_upper": upper}
    columns = ColumnMoments.of(moments).to_arrays()
    arrays |= {f"columns_{name}": array for name, array in columns.items()}
    if standardizer is not None:
        arrays |= standardizer.to_arrays()
    write_record(
        job.place("moments"),
        kind="moments",
        metadata={
            "target_offset": list(pipeline.target_offset_from(moments)),
            "grid": {
                "fraction_bits": pipeline.fraction_bits_for(dataset.n_samples),
                **pipeline.weight_grid(moments),
            },
        },
        arrays=arrays,
        overwrite=True,
    )
    return {
        "data": redact(dataset.url or "in memory"),
        "fingerprint": dataset.fingerprint(),
        "n_samples": dataset.n_samples,
        "n_features": dataset.n_features,
        "n_targets": dataset.n_targets,
        "n_blocks": plan.n_blocks,
        "n_workers": plan.n_workers,
        "n_threads": plan.n_threads,
        "flops_per_pass": plan.flops,
        "peak_memory": human_bytes(plan.peak_bytes),
    }


def draw_features(job: Job, length_scale: str | LengthScale, *, name: str = "candidate-1") -> Summary:
    """Draw the feature map of one length scale.

    Returns
    -------
    candidate : dict
        Its name, its kernel with the length scale resolved, the map (None of Nyström features, which are
        kept as a record), and the digest of the features.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range.
    """
    kept = _read_moments(job)
    feature_map = drawing.draw(
        job.dataset,
        job.kernel,
        length_scale=length_scale,
        n_components=job.n_components,
        design=job.design or default_design(job.kernel),
        map=job.map,
        seed=job.seed,
        standardizer=kept.standardizer,
        ranges=kept.input_range,
        features=job.features,
    )
    return _describe_features(job, name, feature_map)


def draw_candidates(job: Job, candidates: Sequence[search.Candidate]) -> list[Summary]:
    """Draw the feature maps of several kernels and length scales.

    Returns
    -------
    candidates : list of dict
        As `draw_features` returns, with the names candidate-1, candidate-2, ….

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range, or a candidate has no smaller draws for the job's widths.
    """
    kept = _read_moments(job)
    maps = search.draw_candidates(
        job.dataset,
        candidates,
        widths=job.widths,
        design=job.design,
        map=job.map,
        seed=job.seed,
        standardizer=kept.standardizer,
        ranges=kept.input_range,
        features=job.features,
    )
    return [_describe_features(job, f"candidate-{i}", one) for i, one in enumerate(maps, start=1)]


def _describe_features(job: Job, name: str, feature_map: FeatureMap) -> Summary:
    """Return a candidate, and keep what cannot be drawn again from it as a record."""
    if isinstance(feature_map, NystromFeatureMap):
        facts, arrays = feature_map.record()
        write_record(
            job.place(f"{name}-features"), kind="feature map", metadata=facts, arrays=arrays, overwrite=True
        )
        kernel, drawn, design = feature_map.kernel.to_dict(), None, None
    elif feature_map.spec is None:
        raise InvalidParameterError("the feature map has no spec to draw it from again; give a named kernel")
    else:
        spec = feature_map.spec
        kernel, drawn, design = spec.kernel.to_dict(), spec.map, spec.design.name
    return {
        "name": name,
        "kernel": kernel,
        "length_scale": kernel.get("length_scale"),
        "map": drawn,
        "design": design,
        "feature_map": feature_map.digest(),
    }


def broadcast_features(job: Job, candidate: Mapping[str, Any]) -> Summary:
    """Give a candidate's feature map to every worker and check that each drew the same.

    Returns
    -------
    summary : dict
        The digest that all workers agree on, and how many they are.

    Raises
    ------
    BroadcastError
        If a worker's features differ.
    """
    member = _member(job, candidate, _read_moments(job))
    job.on_workers.clear()  # one feature map at a time: a wide one is large
    job.on_workers[candidate["name"]] = pipeline.broadcast(member.feature_map, member.spec, engine=job.engine)
    return {"feature_map": member.feature_map.digest(), "n_workers": job.engine.n_workers}


def accumulate_statistics(job: Job, candidate: Mapping[str, Any]) -> Summary:
    """Accumulate a candidate's exact statistics in one pass and keep them as a record.

    Returns
    -------
    summary : dict
        The statistics' digest, the rows they count and the seconds of the pass.

    Raises
    ------
    DataError
        If a value cannot be used.
    StatisticsError
        If a row is missing or was counted twice.
    """
    start = time.perf_counter()
    statistics = pipeline.accumulate_broadcast(
        job.dataset, job.on_workers[candidate["name"]], engine=job.engine
    )
    seconds = time.perf_counter() - start
    digest = _write_statistics(job, candidate["name"], statistics)
    return {"digest": digest, "n_samples": statistics.n_samples, "seconds": round(seconds, 3)}


def solve_ridge(job: Job, candidate: Mapping[str, Any]) -> Summary:
    """Solve a candidate's ridge regression from its statistics and keep the model as a record.

    Returns
    -------
    summary : dict
        Name, length scale, alpha, solver status, and the GCV error: `gcv` per target in its units
        squared, and `score`, its mean share of the targets' variance, by which candidates compete
        (both None for one candidate with a given alpha).
    """
    moments = _read_moments(job)
    feature_map = _redraw(job, candidate, moments.standardizer)
    statistics = _read_statistics(job, candidate).with_whitener(feature_map.whitener)
    solved = pipeline.solve(statistics, alpha=_alphas(job), fit_intercept=job.fit_intercept)
    model = RidgeModel.from_solution(
        feature_map,
        statistics,
        solved.solution,
        solved.path(),
        {
            **pipeline.describe_dataset(job.dataset),
            **pipeline.describe_choices(job.alpha, job.fit_intercept),
            **pipeline.describe_cut(job.dataset, statistics),
            "standardize": job.standardize,
            "chosen_by": solved.chosen_by,
        },
    )
    model = replace(model, columns=moments.columns)
    write_model(model.without_statistics(), job.place(f"{candidate['name']}-model"), overwrite=True)
    status = model.card["solver"]
    summary: Summary = {
        "name": candidate["name"],
        "length_scale": candidate["length_scale"],
        "alpha": model.alpha,
        "gcv": None,
        "score": None,
        "degrees_of_freedom": None,
        "status": status["status"],
        "causes": status["causes"],
        "remedies": status["remedies"],
    }
    if solved.selection is not None:
        selection = solved.selection
        varying = moments.target_variance > 0
        shares = selection.score[varying] / moments.target_variance[varying]
        summary["gcv"] = selection.score.tolist()
        summary["score"] = float(shares.mean()) if varying.any() else 0.0
        summary["degrees_of_freedom"] = float(selection.degrees_of_freedom[selection.best_index])
    return summary


def plan_readings(job: Job, candidates: Sequence[Summary]) -> list[list[Summary]]:
    """Share out candidates among as few readings of the data as memory allows.

    Raises
    ------
    PlanError
        If memory would not do for a single one.
    """
    readings = search.plan_readings(
        job.dataset,
        job.n_components,
        len(candidates),
        engine=job.engine,
        n_folds=_folds(job).n_folds,
        features=job.features,
    )
    return [[candidates[i] for i in reading] for reading in readings]


def accumulate_candidates(job: Job, candidates: Sequence[Summary]) -> Summary:
    """Accumulate each fold's exact statistics of several candidates in one pass, and hold them in memory.

    Returns
    -------
    summary : dict
        The candidates' names, the rows that were counted and the seconds of the pass.

    Raises
    ------
    BroadcastError
        If a worker's features differ.
    DataError
        If a value cannot be used.
    StatisticsError
        If a row is missing or was counted twice.
    """
    moments, folds = _read_moments(job), _folds(job)
    members = [_member(job, candidate, moments) for candidate in candidates]
    start = time.perf_counter()
    found = pipeline.accumulate_folds(job.dataset, members, folds=folds, engine=job.engine)
    seconds = time.perf_counter() - start
    names = [candidate["name"] for candidate in candidates]
    job.sums.update(zip(names, found, strict=True))
    return {"candidates": names, "n_samples": found[0].n_samples, "seconds": round(seconds, 3)}


def validate_candidate(job: Job, candidate: Mapping[str, Any]) -> Summary:
    """Cross-validate a candidate, and keep its model and sums as records if it is the best so far.

    Lets its folds' sums go.

    Returns
    -------
    summary : dict
        Its name, what `search.describe_candidate` says, and the solver's status.

    Raises
    ------
    StatisticsError
        If a fold has no rows.
    """
    name = candidate["name"]
    feature_map, statistics, solved = pipeline.solve_folds(
        job.sums.pop(name),
        _redraw(job, candidate, _read_moments(job).standardizer),
        alpha="cv" if isinstance(job.alpha, str) and job.alpha == "auto" else job.alpha,
        alphas=job.alphas,
        n_components=job.widths,
        fit_intercept=job.fit_intercept,
    )
    row = search.describe_candidate(feature_map, solved)
    if all(row["score"] < score for score in job.best.values()):
        facts = search.describe_search([], job.alpha, job.fit_intercept, _folds(job), solved)
        card = {**pipeline.describe_dataset(job.dataset), **facts, "standardize": job.standardize}
        model = RidgeModel.from_solution(feature_map, statistics, solved.solution, solved.path(), card)
        model = replace(model, columns=_read_moments(job).columns)
        write_model(model.without_statistics(), job.place(f"{name}-model"), overwrite=True)
        _write_statistics(job, name, statistics)
        for beaten in job.best:
            for record in ("model", "statistics"):
                discard(job.folder.child(f"{beaten}-{record}"))
        job.best.clear()
        job.best[name] = row["score"]
    status = solved.solution.status
    return {
        "name": name,
        **row,
        "status": status.value,
        "causes": list(status.causes),
        "remedies": list(status.remedies),
    }


def choose_candidate(solved: Sequence[Summary]) -> Summary:
    """Return the candidate with the least score; of equal ones the first.

    Raises
    ------
    InvalidParameterError
        If there is none, or several without a score.
    """
    if not solved:
        raise InvalidParameterError("there is no candidate to choose from; expected at least 1 length scale")
    if len(solved) == 1:
        return solved[0]
    if any(candidate["score"] is None for candidate in solved):
        raise InvalidParameterError(
            f"{len(solved)} candidates without a GCV score cannot be compared; open the job with `choosing`"
        )
    return min(solved, key=lambda candidate: candidate["score"])


def evaluate_model(job: Job, candidate: Mapping[str, Any]) -> Summary:
    """Measure a candidate's errors on the job's test data in one pass.

    Returns
    -------
    metrics : dict
        Rows, and per target mean squared, root mean squared and mean absolute error, bias (all in the
        target's units) and R² (None for a constant target).

    Raises
    ------
    InvalidParameterError
        If the job has no test data.
    DataError
        If a value cannot be used.
    """
    test = job.test
    if test is None:
        raise InvalidParameterError("the job has no test data to evaluate on; open it with `test`")
    model = read_model(job.place(f"{candidate['name']}-model"))
    errors = prediction.evaluate(test, model, engine=job.engine)
    return {
        "test_data": redact(test.url or "in memory"),
        "n_samples": errors.n_samples,
        "mse": errors.mean_squared_error.tolist(),
        "rmse": np.sqrt(errors.mean_squared_error).tolist(),
        "mae": errors.mean_absolute_error.tolist(),
        "bias": errors.bias.tolist(),
        "r2": [None if np.isnan(value) else value for value in errors.r2.tolist()],
    }


def read_candidate(job: Job, candidate: Mapping[str, Any]) -> RidgeModel:
    """Return the model of a candidate that was solved, without its sums."""
    return read_model(job.place(f"{candidate['name']}-model"))


def publish_model(
    job: Job,
    candidate: Mapping[str, Any],
    *,
    compared: Sequence[Summary] = (),
    metrics: Mapping[str, Any] | None = None,
) -> Summary:
    """Write a candidate's model with its statistics to the output; a reader sees it whole or not at all.

    Where it cannot be written there, the run's folder stays with the trained model, and the error says where.

    Parameters
    ----------
    compared : sequence of dict
        What `solve_ridge` or `validate_candidate` returned of all candidates, kept on the model's card.
    metrics : dict, optional
        What `evaluate_model` returned, kept likewise.

    Returns
    -------
    summary : dict
        Where the model is, its digest, and the version's number where it is registered.
    """
    place = job.place(f"{candidate['name']}-model")
    model = replace(read_candidate(job, candidate), statistics=_read_statistics(job, candidate))
    if job.folds is not None:
        model = model.with_card(candidates=[_without_status(one) for one in compared])
    elif len(compared) > 1:
        kept = ("length_scale", "alpha", "score")
        model = model.with_card(length_scales=[{key: one[key] for key in kept} for one in compared])
    if metrics is not None:
        model = model.with_card(metrics=dict(metrics))
    try:
        version = _publish(job, model)
    except Exception as error:
        job.kept.append(place)  # what was trained for hours is not lost with it
        error.add_note(f"the trained model is kept at {redact(place)}, without its exact sums")
        logger.warning("the model was not published; it is kept at %s", redact(place))
        raise
    return {
        "model": redact(job.output.url),
        "version": version,
        "digest": model.digest(),
        "statistics": model.card["statistics_digest"],
    }


def _publish(job: Job, model: RidgeModel) -> int | None:
    """Write the model to the output, and return its version's number where it is registered."""
    if job.lease is not None:
        job.lease.check()
    if job.register:
        return publish(model, job.output.url, data=job.dataset.url, reason="trained").number
    write_model(model, job.output.url, overwrite=job.overwrite)
    return None


@dataclass(frozen=True, slots=True)
class _Kept:
    """What later steps need of the moments."""

    standardizer: Standardizer | None
    target_offset: tuple[float, ...]
    target_variance: pipeline.FloatArray
    grid: Mapping[str, Any]
    input_range: tuple[pipeline.FloatArray, pipeline.FloatArray]
    columns: ColumnMoments


def _check_test(job: Job) -> None:
    """Compare the columns of training and test data before hours of work, not after."""
    if job.test is None:
        return
    for what in ("n_features", "n_targets"):
        here, there = getattr(job.dataset, what), getattr(job.test, what)
        if here != there:
            raise DataError(
                f"the test data have {what}={there} but the training data {here}; "
                "give data of the same columns"
            )


def _read_moments(job: Job) -> _Kept:
    record = read_record(job.place("moments"), kind="moments")
    arrays = record.arrays
    return _Kept(
        Standardizer.from_arrays(arrays),
        tuple(record.metadata["target_offset"]),
        arrays["target_variance"],
        record.metadata["grid"],
        (arrays["input_lower"], arrays["input_upper"]),
        ColumnMoments.from_arrays({name: arrays[f"columns_{name}"] for name in ("weights", "moments")}),
    )


def _without_status(row: Summary) -> Summary:
    return {key: value for key, value in row.items() if key not in ("name", "status", "causes", "remedies")}


def _folds(job: Job) -> Folds:
    if job.folds is None:
        raise InvalidParameterError("the job has no folds to compare candidates by; open it with `folds`")
    return job.folds


def _member(job: Job, candidate: Mapping[str, Any], moments: _Kept) -> Accumulation:
    """Return a candidate's feature map and what its statistics are about."""
    feature_map = _redraw(job, candidate, moments.standardizer)
    spec = pipeline.statistics_spec(
        job.dataset, feature_map, target_offset=moments.target_offset, engine=job.engine, **moments.grid
    )
    return Accumulation(feature_map, spec)


def _write_statistics(job: Job, name: str, statistics: RidgeStatistics) -> str:
    metadata, arrays = statistics.to_arrays()
    write_record(
        job.place(f"{name}-statistics"),
        kind="ridge statistics",
        metadata=metadata,
        arrays=arrays,
        overwrite=True,
    )
    return str(metadata["digest"])


def _read_statistics(job: Job, candidate: Mapping[str, Any]) -> RidgeStatistics:
    record = read_record(job.place(f"{candidate['name']}-statistics"), kind="ridge statistics")
    return RidgeStatistics.from_arrays(record.metadata, record.arrays)


def _redraw(job: Job, candidate: Mapping[str, Any], standardizer: Standardizer | None) -> FeatureMap:
    """Draw a candidate's features again: they travel between steps as a few numbers and a digest."""
    feature_map: FeatureMap
    if candidate["map"] is None:
        record = read_record(job.place(f"{candidate['name']}-features"), kind="feature map")
        return NystromFeatureMap.from_record(record.metadata, record.arrays, standardizer)
    feature_map = draw_feature_map(
        kernel_from_dict(candidate["kernel"]),
        n_features=job.dataset.n_features,
        n_components=job.n_components,
        design=candidate["design"],
        map=candidate["map"],
        random_state=job.seed,
        standardizer=standardizer,
    )
    if feature_map.digest() != candidate["feature_map"]:
        raise BroadcastError(
            f"{candidate['name']} was drawn with the digest {candidate['feature_map'][:16]}… and now has "
            f"{feature_map.digest()[:16]}…; run all steps with the same packages and processor"
        )
    return feature_map


def _alphas(job: Job) -> pipeline.Alpha:
    """Return a list where one alpha was given but candidates compete: its GCV is then computed."""
    if job.choosing and pipeline.is_one_alpha(job.alpha):
        pipeline.check_alpha(job.alpha)
        return [float(job.alpha)]  # type: ignore[arg-type]
    return job.alpha
