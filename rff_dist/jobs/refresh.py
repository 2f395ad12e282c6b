"""The job that updates a stored model: its steps publish the next model, or keep the current one.

The arithmetic is in `ridge.update`. The steps: find the new rows → score them with the champion, the current
model, which has not seen them → hold out rows → sum → test for drift → solve for the challenger → gate →
publish it, or keep the champion and record the reason. Nothing is written before the last step, so a run that
died is simply repeated.

**Refused rows.** Nothing is published. The document `refused.json` beside the model records the range of the
rows, a fingerprint and the reason. Later runs skip these rows, judge later ones on their own, and leave the
refused ones out of the model's statistics. A backfill judges them again, from a given row on. Rows of a
version that was rolled back count as refused too. A refused correction or deletion is recorded likewise, and
each run judges it again. Every run tells which rows the model lacks, why, and how to get them back.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from rff_dist.data.blocks import Dataset
from rff_dist.engines.protocol import Engine
from rff_dist.errors import InvalidParameterError, PlanError, StatisticsError
from rff_dist.features.nystrom import NystromFeatureMap
from rff_dist.jobs.fields import values_of
from rff_dist.jobs.publishing import publish
from rff_dist.jobs.specs import Update
from rff_dist.jobs.steps import Runner, Step, in_this_process, made, resumable, run_steps
from rff_dist.registry.versions import RegisteredModel, Version
from rff_dist.ridge.drift import LEVEL, Batch, Drift, Observed, check_level, judge_drift
from rff_dist.ridge.gate import TOLERANCE, Gate, HeldOut, check_tolerance, hold_out, judge
from rff_dist.ridge.model import KIND, RidgeModel, model_from, write_model
from rff_dist.ridge.new_rows import NewRows, Refusal, check_updatable, find_new_rows, refuse
from rff_dist.ridge.plan import Sums, check_plan
from rff_dist.ridge.row_ranges import count_rows
from rff_dist.ridge.update import accumulate_new_rows, measure_gone_rows, score_new_rows, solve_update
from rff_dist.statistics.moments import ColumnMoments, Moments
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.documents import parse_document, sign_document
from rff_dist.storage.leases import check_lease, hold
from rff_dist.storage.loads import ALL_ROWS
from rff_dist.storage.locations import Location, open_store, parse_location, read_bytes, write_bytes
from rff_dist.storage.records import Record, peek_record, read_record
from rff_dist.text import human_bytes, redact
from rff_dist.typing import Summary

logger = logging.getLogger(__name__)

_REFUSED = "refused.json"
_KIND, _VERSION = "refused rows", 2


# -- refused rows --------------------------------------------------------------------------------------


def read_refusals(location: Location) -> list[Refusal]:
    """Return the rows that updates kept out of the model at a location.

    Raises IntegrityError if the document was damaged; StorageError if it cannot be read.
    """
    content = read_bytes(open_store(location, read_only=True), _REFUSED, where=location)
    if content is None:
        return []
    document = parse_document(content, kind=_KIND, version=_VERSION, where=f"{_REFUSED} of {location}")
    return [Refusal(**one) for one in document["rows"]]


def _write_refusals(location: Location, refusals: Sequence[Refusal]) -> None:
    latest = {(one.start, one.stop): one for one in refusals}
    rows = [asdict(latest[key]) for key in sorted(latest)]
    content = sign_document({"rows": rows}, kind=_KIND, version=_VERSION)
    write_bytes(open_store(location, read_only=False), _REFUSED, content)


def _forget_refusals(location: Location, rows: NewRows) -> None:
    """Remove the refusals of rows that the model no longer lacks."""
    refusals = read_refusals(location)
    left = [
        one
        for one in refusals
        if not one.is_change and any(a < one.stop and one.start < b for a, b in rows.left_out)
    ]
    if left != refusals:
        _write_refusals(location, left)


def find_lacking(location: Location) -> list[Refusal]:
    """Return the rows that the model at a location lacks: refused ones, and those of versions rolled back.

    Raises IntegrityError, StorageError as `read_refusals`.
    """
    refusals, registered = read_refusals(location), RegisteredModel(location.url)
    version = registered.current()
    return refusals if version is None else refusals + _rolled_back(registered, version)


def _rolled_back(registered: RegisteredModel, current: Version) -> list[Refusal]:
    """Return the rows that versions made from the current one had added, before they were rolled back."""
    refusals: list[Refusal] = []
    family = {current.number}
    for version in registered.left_versions():
        if version.parent not in family:
            continue
        family.add(version.number)
        facts = version.lineage
        if "added" in facts:  # by an update
            why, until = f"version {version.number} was rolled back", int(facts["n_seen"])
            fingerprint, when = str(facts["prefix_fingerprint"]), version.created
            data = facts.get("data_version")
            refusals += [Refusal(a, b, until, fingerprint, why, when, data) for a, b in facts["added"]]
    return refusals


# -- a run ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Refresh:
    """A run that updates a model: what to do, and what its steps have found; see `open_refresh`.

    `location`: of the model, or of a registered model.
    `champion`: the current model.
    `version`: the champion's version, if it is a registered model.
    `dataset`: the data that it was trained on, perhaps with new rows.
    `runner`: drives the steps.
    `test`: rows to compare the models on; None holds out rows that the champion was trained on.
    `tolerance`: see `judge`.
    `level`: probability of a drift alarm without drift.
    `backfill`, `window`, `half_life`: see `find_new_rows`.
    `force`: whether to publish the challenger whatever the gate says.
    `dry_run`: whether to write nothing.
    `rows`, `batch`, `held_out`, `statistics`, `gone`, `drift`, `challenger`, `gate`: results of the steps;
      None before.
    """

    location: Location
    champion: RidgeModel
    version: Version | None
    dataset: Dataset
    refusals: list[Refusal]
    runner: Runner
    test: Dataset | None = None
    tolerance: float = TOLERANCE
    level: float = LEVEL
    backfill: int | None = None
    window: str | None = None
    half_life: str | None = None
    force: bool = False
    dry_run: bool = False
    rows: NewRows | None = None
    batch: Batch | None = None
    held_out: HeldOut | None = None
    statistics: RidgeStatistics | None = None
    gone: Moments | None = None
    drift: Drift | None = None
    challenger: RidgeModel | None = None
    gate: Gate | None = None

    def steps(self) -> Iterator[Step]:
        """Yield the steps in their order; the engine is opened only if there are new rows."""
        yield Step("find new rows", partial(find_rows, self), repeatable=True)
        if not made(self.rows).is_nothing:
            with self.runner.open_engine(self.dataset.n_samples) as engine, self._resumable(engine):
                if made(self.rows).n_samples:
                    yield Step("score", partial(score_rows, self, engine), repeatable=True)
                yield Step("hold out", partial(hold_out_rows, self, engine), repeatable=True)
                yield Step("sum", partial(sum_rows, self, engine), repeatable=True)
                if self.batch is not None:
                    yield Step("drift", partial(check_drift, self))
                yield Step("solve", partial(solve_model, self))
                yield Step("gate", partial(judge_model, self, engine), repeatable=True)
                # Inside: the kept sums go when the model is published, not before.
                yield Step("publish", partial(publish_update, self))
        else:
            yield Step("publish", partial(publish_update, self))

    def _resumable(self, engine: Engine) -> AbstractContextManager[None]:
        return nullcontext() if self.dry_run else resumable(engine, self.location)


def open_update(job: Update, runner: Runner) -> AbstractContextManager[Refresh]:
    """Begin the update of a spec; see `open_refresh`.

    Raises RFFDistError as `open_refresh`, or if the data cannot be read.
    """
    names = job.source.names()
    dataset = open_dataset(job.source.data, **names)
    test = None if job.test is None else open_dataset(job.test, **{**names, "version": None})
    asked = values_of(job, "tolerance", "backfill", "window", "half_life", "force", "dry_run")
    return open_refresh(job.model, dataset, test=test, level=job.drift_level, runner=runner, **asked)


@contextmanager
def open_refresh(
    url: str | os.PathLike[str], dataset: Dataset, *, runner: Runner | None = None, **options: Any
) -> Iterator[Refresh]:
    """Begin an update of the model at `url`; until it ends no other run can write there.

    `url`: of a model, or of a registered model, whose next version is published.
    `runner`: drives the steps; by default they run in this process.
    `**options`: `test`, `tolerance`, `level`, `backfill`, `window`, `half_life`, `force` and `dry_run`; see
      `Refresh`.
    Raises OutputBusyError if another run writes the model; StorageError if there is no ridge model.
    """
    runner = in_this_process() if runner is None else runner
    check_tolerance(options.get("tolerance", TOLERANCE))
    check_level(options.get("level", LEVEL))
    backfill = options.get("backfill")
    if backfill is not None and backfill < 0:
        raise InvalidParameterError(f"`backfill` is {backfill}; expected the number of a row, from 0")
    location = parse_location(url)
    _check_kind(peek_record(location.url), location.url)  # before the lease is taken
    with hold(location, holder=runner.holder):
        version = RegisteredModel(location.url).current()
        yield Refresh(
            location=location,
            champion=_read_ridge(location.url if version is None else version.url),
            version=version,
            dataset=dataset,
            refusals=find_lacking(location),
            runner=runner,
            **options,
        )


def _read_ridge(url: str) -> RidgeModel:
    record = read_record(url)
    _check_kind(record, url)
    model = model_from(record, url)
    check_updatable(model)
    return model


def _check_kind(record: Record, url: str) -> None:
    if record.kind != KIND:
        raise StatisticsError(
            f"{redact(url)} holds a {record.kind!r}, which has no statistics to add rows to; expected a "
            f"{KIND!r}. Train it anew on all rows"
        )


def find_rows(job: Refresh) -> Summary:
    """Find the new rows; there may be none.

    Returns `summary`: `n_before`, `n_after`, `n_new`, the ranges of `new` and `left_out` rows, the reason for
      each of the latter in `left_out_because`, the `window` and its `first_row`, and the `half_life`.
    Raises FingerprintMismatchError if the data do not begin with the rows that the model was trained on;
      StatisticsError, DataError as `find_new_rows`.
    """
    job.rows = rows = find_new_rows(
        job.champion,
        job.dataset,
        refusals=job.refusals,
        backfill=job.backfill,
        window=job.window,
        half_life=job.half_life,
    )
    job.dataset = rows.read_once(job.dataset)
    return {
        **values_of(rows, "n_before", "n_after"),
        "n_new": rows.n_samples,
        "n_replaced": 0 if rows.came is None else rows.came.n_samples,
        "n_gone": rows.n_gone,
        "new": [list(one) for one in rows.ranges],
        "left_out": [list(one) for one in rows.left_out],
        "left_out_because": [_why(job, start, stop) for start, stop in rows.left_out],
        "window": rows.window,
        "half_life": rows.fading.half_life,
        "first_row": rows.start,
    }


def _why(job: Refresh, start: int, stop: int) -> str:
    """Return why rows are left out, in words."""
    reasons = [
        one.reason for one in job.refusals if one.start < stop and start < one.stop and not one.is_change
    ]
    return "; ".join(dict.fromkeys(reasons)) or "refused by an update before"


def score_rows(job: Refresh, engine: Engine) -> Summary:
    """Plan the update, and score the new rows with the champion before they are added.

    Returns `summary`: rows, and per target `rmse`, `mae`, `bias` and `r2` (None for a constant target).
    Raises PlanError if memory does not suffice; DataError, with row and column, if a value cannot be used.
    """
    feature_map = job.champion.feature_map
    kind = "nystrom" if isinstance(feature_map, NystromFeatureMap) else "fourier"
    sums = Sums(alpha=job.champion.card["alpha_given"], features=kind)
    plan = check_plan(job.dataset, feature_map.n_components, sums, engine=engine)
    # Beside a fit's: sums of the champion and of held-out rows. Those of fading weights are twice as large.
    n_sums = 5 if made(job.rows).fading.halvings else 2
    needed, limit = plan.client_bytes + n_sums * plan.statistics_bytes, plan.client_memory_limit
    if limit is not None and needed > limit:
        raise PlanError(
            f"an update of n_components={feature_map.n_components:_} needs {human_bytes(needed)} in this "
            f"process, which has {human_bytes(limit)}; give it more memory, or fit with fewer components"
        )
    job.batch = score_new_rows(job.champion, job.dataset, made(job.rows), engine=engine)
    return job.batch.errors.errors.to_dict()


def hold_out_rows(job: Refresh, engine: Engine) -> Summary:
    """Hold out rows, and measure the champion's errors on them.

    Returns `summary`: in words what is held out, and errors as `score_rows`.
    Raises DataError if test data do not fit the champion.
    """
    job.held_out = hold_out(job.champion, job.dataset, made(job.rows), engine=engine, test=job.test)
    return {"held_out": job.held_out.words, **job.held_out.errors.errors.to_dict()}


def sum_rows(job: Refresh, engine: Engine) -> Summary:
    """Update the exact statistics.

    Returns `summary`: their digest, their number of rows, and the seconds.
    Raises DataError, StatisticsError as `accumulate_new_rows`.
    """
    start = time.perf_counter()
    rows = made(job.rows)
    job.statistics = accumulate_new_rows(job.champion, job.dataset, rows, engine=engine)
    job.gone = measure_gone_rows(job.champion, job.dataset, rows, engine=engine)
    seconds = round(time.perf_counter() - start, 3)
    return {"digest": job.statistics.digest(), "n_samples": job.statistics.n_samples, "seconds": seconds}


def check_drift(job: Refresh) -> Summary:
    """Test whether the new rows follow the law of the old ones; an alarm is reported but stops nothing.

    Returns `summary`: see `Drift.to_dict`.
    """
    assert job.champion.statistics is not None
    batch, held_out, statistics = made(job.batch), made(job.held_out), made(job.statistics)
    held = Observed(job.champion.statistics, job.champion.columns, held_out.errors)
    columns = ColumnMoments.of(batch.moments, frequency_weights=statistics.spec.frequency_weights)
    new = Observed(batch.statistics, columns, batch.errors)
    job.drift = judge_drift(held, new, statistics, level=job.level)
    return job.drift.to_dict()


def solve_model(job: Refresh) -> Summary:
    """Solve for the challenger.

    Returns `summary`: alpha before and now, and the solver's status.
    """
    statistics, rows = made(job.statistics), made(job.rows)
    job.challenger = solve_update(
        job.champion, job.dataset, rows, statistics=statistics, batch=job.batch, gone=job.gone
    )
    status = job.challenger.card["solver"]
    return {
        "alpha_before": job.champion.plain_alpha,
        "alpha": job.challenger.plain_alpha,
        **{name: status[name] for name in ("status", "causes", "remedies")},
    }


def judge_model(job: Refresh, engine: Engine) -> Summary:
    """Compare the challenger with the champion on the held-out rows.

    Returns `summary`: the fields of `Gate`.
    """
    job.gate = judge(made(job.challenger), made(job.held_out), tolerance=job.tolerance, engine=engine)
    ratios = {"ratio": job.gate.ratio, "at_least": job.gate.at_least}
    # JSON has no infinity.
    return {**asdict(job.gate), **{name: one if np.isfinite(one) else None for name, one in ratios.items()}}


def publish_update(job: Refresh) -> Summary:
    """Publish the challenger, or record that its rows were refused.

    Returns `summary`: `decision`, "published", "kept" or "nothing new", in a dry run "would be published" or
      "would be kept"; `reason`; and of the model that is current now its `model`, version, digests and rows.
    Raises StorageError if the challenger cannot be written; then the champion stays.
    """
    rows = made(job.rows)
    if rows.is_nothing:
        which = "rows of the data" if not rows.start else "rows that count"
        which = which if rows.window == ALL_ROWS else f"rows of the window {rows.window}"
        reason = f"the model holds all {rows.n_after - rows.start:,} {which}"
        if rows.left_out:
            why = "; ".join(f"rows {a:,} to {b - 1:,}: {_why(job, a, b)}" for a, b in rows.left_out)
            first = rows.left_out[0][0]
            reason += f", but {count_rows(rows.left_out):,} ({why}). `backfill`={first} has them judged again"
        return _outcome(job, job.champion, "nothing new", reason, job.version)
    gate, challenger = made(job.gate), made(job.challenger)
    passed = gate.passed or job.force
    reason = gate.reason + ("" if gate.passed or not job.force else "; it was forced")
    if job.dry_run:
        decision = f"would be {'published' if passed else 'kept'}"
        return _outcome(job, job.champion, decision, reason, job.version)
    if not passed:
        check_lease(job.location)
        _write_refusals(job.location, [*read_refusals(job.location), *refuse(job.dataset, rows, reason)])
        logger.warning("%s is kept: %s", job.location, reason)
        return _outcome(job, job.champion, "kept", reason, job.version)
    challenger = challenger.with_card(update=_describe_update(job, rows, reason))
    version = None
    if job.version is None:
        write_model(challenger, job.location.url, overwrite=True)
    else:
        facts: Summary = {
            "added": [list(one) for one in rows.ranges],
            "n_seen": rows.n_after,
            **({} if rows.window == ALL_ROWS else {"window": rows.window}),
            **({"half_life": rows.fading.half_life} if rows.fading.halvings else {}),
            "drifted": job.drift is not None and job.drift.drifted,
        }
        version = publish(
            challenger, job.location.url, data=job.dataset.url, reason=f"updated: {reason}", lineage=facts
        )
    _forget_refusals(job.location, rows)
    return _outcome(job, challenger, "published", reason, version)


def outcome(records: Mapping[str, Summary | None]) -> Summary:
    """Return the results of all steps as one document.

    Returns `summary`: the members of what `find_rows` and `publish_update` return; if there were new rows,
      also the other records, as `progressive`, `held_out`, `statistics`, `drift`, `solution` and `gate`.
    """
    members = {_MEMBERS[name]: one for name, one in records.items() if name in _MEMBERS}
    return {**made(records["find new rows"]), **members, **made(records["publish"])}


_MEMBERS = {
    "score": "progressive",
    "hold out": "held_out",
    "sum": "statistics",
    "drift": "drift",
    "solve": "solution",
    "gate": "gate",
}


def refresh(job: Update, runner: Runner) -> Summary:
    """Update a model, and return the results; see `outcome`."""
    with open_update(job, runner) as run:
        return outcome(run_steps(run.steps(), runner))


def _describe_update(job: Refresh, rows: NewRows, reason: str) -> Summary:
    """Return the facts about an update that the new model's card keeps."""
    found: Summary = {
        "added": [list(one) for one in rows.ranges],
        "n_replaced": 0 if rows.came is None else rows.came.n_samples,
        "n_gone": rows.n_gone,
        "parent_digest": job.champion.digest(),
        "gate": reason,
    }
    if job.batch is not None and job.drift is not None:
        drift = job.drift
        found["progressive"] = job.batch.errors.errors.to_dict()
        found["drift"] = {"drifted": drift.drifted, "parts": drift.parts, "p_values": dict(drift.p_values)}
    return found


def _outcome(job: Refresh, model: RidgeModel, decision: str, reason: str, version: Version | None) -> Summary:
    assert model.statistics is not None
    return {
        "decision": decision,
        "reason": reason,
        "model": redact(job.location.url),
        "version": None if version is None else version.number,
        "digest": model.digest(),
        "statistics_digest": model.statistics.digest(),
        "n_samples": model.statistics.n_samples,
    }
