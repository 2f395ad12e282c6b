"""The job that updates a stored model: it publishes the next model, or keeps the current one.

The arithmetic is in `living.update`. The steps: find the new rows → score them with the champion, the current
model, which has not seen them → hold out rows → sum → test for drift → solve for the challenger → gate →
publish it, or keep the champion and record the reason. Nothing is written before the last step, so a run that
died is simply repeated.

**Refused rows.** Nothing is published. The document `refused.json` next to the model records the range of the
rows, a fingerprint and the reason. Later runs skip these rows, judge later ones on their own, and leave the
refused ones out of the model's statistics. A backfill judges them again, from a given row on. Rows of a
version that was rolled back count as refused too. A refused correction or deletion is recorded likewise, and
each run judges it again. Every run tells which rows the model lacks, why, and how to get them back.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import numpy as np

from rff_dist import fields
from rff_dist.data import blocks, sources
from rff_dist.engines.protocol import Engine
from rff_dist.errors import PlanError, StatisticsError
from rff_dist.features import nystrom
from rff_dist.fitting.plan import Sums, check_plan
from rff_dist.living import differences, new_rows, windows
from rff_dist.living import drift as drifts
from rff_dist.living import gate as gates
from rff_dist.living import update as updates
from rff_dist.living.new_rows import NewRows, Refusal
from rff_dist.models import versions
from rff_dist.ridge import models
from rff_dist.statistics import moments, ridge_statistics
from rff_dist.storage import datasets, documents, locations, output_places, records
from rff_dist.text import human_bytes, redact
from rff_dist.typing import Summary, frozen
from rff_dist.workbench.jobs import publishing, specs, steps, watching

logger = logging.getLogger(__name__)

_REFUSED = "refused.json"
_KIND, _VERSION = "refused rows", 2


# -- refused rows --------------------------------------------------------------------------------------


def read_refusals(location: locations.Location) -> list[Refusal]:
    """Return the rows that updates kept out of the model at a location.

    Raises IntegrityError if the document was damaged; StorageError if it cannot be read.
    """
    content = locations.read_bytes(locations.open_store(location), _REFUSED, where=location)
    if content is None:
        return []
    where = f"{_REFUSED} of {location}"
    document = documents.parse_document(content, kind=_KIND, version=_VERSION, where=where)
    return [Refusal(**row) for row in document["rows"]]


def _write_refusals(location: locations.Location, refusals: Sequence[Refusal]) -> None:
    latest = {(refusal.start, refusal.stop): refusal for refusal in refusals}
    rows = [asdict(latest[key]) for key in sorted(latest)]
    content = documents.sign_document({"rows": rows}, kind=_KIND, version=_VERSION)
    locations.write_bytes(locations.open_store(location, read_only=False), _REFUSED, content)


def _forget_refusals(location: locations.Location, rows: NewRows) -> None:
    """Remove the refusals of rows that the model no longer lacks."""
    refusals = read_refusals(location)
    left = [refusal for refusal in refusals if any(_overlap(refusal, *ends) for ends in rows.left_out)]
    if left != refusals:
        _write_refusals(location, left)


def find_lacking(location: locations.Location) -> list[Refusal]:
    """Return the rows that the model at a location lacks: refused ones, and those of versions rolled back.

    Raises IntegrityError, StorageError as `read_refusals`.
    """
    refusals, registered = read_refusals(location), versions.RegisteredModel(location.url)
    version = registered.current()
    return refusals if version is None else refusals + _rolled_back(registered, version)


def _rolled_back(registered: versions.RegisteredModel, current: versions.Version) -> list[Refusal]:
    """Return the rows that versions made from the current one had added, before they were rolled back."""
    refusals: list[Refusal] = []
    family = {current.number}
    # In ascending order, so a parent is met before its children and one pass finds all descendants.
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


# -- the job -------------------------------------------------------------------------------------------


@frozen
class Updated:
    """What an update found and decided.

    `dataset`: the rows, as the update read them.
    `champion`: the current model before.
    `challenger`: the same model with the new rows; None if there is nothing new.
    `record`: JSON values. Of the rows: their URL `data`, the lakehouse `table` that they follow, `n_before`,
      `n_after`, `n_new`, the ranges of `new` and `left_out` rows, the reason for each of the latter in
      `left_out_because`, the `window` and its `first_row`. `decision`: "published",
      "kept" or "nothing new", in a dry run "would be published" or "would be kept"; `reason`; and of the
      model that is current now its `model`, version, digests and rows. If anything is new also `held_out` (in
      words, and the champion's errors there), `statistics`, `solution` and `gate`; if there are new rows,
      `progressive` (per target `rmse`, `mae`, `bias` and `r2` of the champion on them, None for a constant
      target) and `drift`.
    """

    dataset: blocks.Dataset
    champion: models.RidgeModel
    challenger: models.RidgeModel | None
    record: Summary


@watching.watched
def update(job: specs.Update, do: steps.Runner) -> Updated:
    """Update a model with the rows that its data got since; see `update_from`.

    Raises RFFDistError as `update_from`, or if the data cannot be read.
    """
    names = job.source.names()
    dataset = datasets.open_dataset(job.source.data, **names)
    # `version` is one of the training data; test data are another dataset, read as it is now.
    test = None if job.test is None else datasets.open_dataset(job.test, **names | {"version": None})
    return update_from(job, dataset, do, test=test)


def update_from(
    job: specs.Update,
    dataset: blocks.Dataset,
    do: steps.Runner,
    *,
    test: blocks.Dataset | None = None,
    force_removal: bool = False,
) -> Updated:
    """Update a model, or publish the next version of a registered one; no other run can write it meanwhile.

    `dataset`: the data that it was trained on, perhaps with new rows.
    `test`: rows to compare the models on; None holds out rows that the champion was trained on.
    `force_removal`: whether rows that are gone go whatever that does to the error, if no new ones came.
    Raises OutputBusyError if another run writes the model; StorageError if there is no ridge model;
      FingerprintMismatchError if the data do not begin with the rows that it was trained on; PlanError if
      memory does not suffice; DataError, with row and column, if a value cannot be used.
    """
    location = locations.parse_location(job.model)
    kind = records.peek_record(location.url).kind  # before the model is held
    if kind != models.KIND:
        raise StatisticsError(
            f"{redact(location.url)} holds a {kind!r}, which has no statistics to add rows to; expected a "
            f"{models.KIND!r}. Train it again on all rows"
        )
    with output_places.hold(location, holder=do.holder):
        version = versions.RegisteredModel(location.url).current()
        champion = models.read_model(location.url if version is None else version.url)
        new_rows.check_updatable(champion)
        refusals = find_lacking(location)
        asked = fields.values_of(job, "backfill", "window")
        # In a folder the lock is held from here to the publication, so that no other run takes the same rows.
        rows = do("find new rows", new_rows.find_new_rows, champion, dataset, refusals=refusals, **asked)
        dataset, record = rows.differences.after or dataset, _describe_rows(job, dataset, rows, refusals)
        # No engine is opened: most nights bring nothing, and starting a cluster takes longer than the look.
        if rows.is_nothing:
            record |= {"decision": "nothing new", "reason": _why_nothing(rows, record)}
            record |= publishing.describe_model(location.url, champion, version)
            return Updated(dataset, champion, None, record)
        with (
            do.open_engine(dataset.n_samples) as engine,
            # Published inside: the kept sums go when the model is there, not before.
            # A dry run writes nothing, so it keeps no sums either.
            nullcontext() if job.dry_run else steps.resumable(engine, location),
        ):
            batch = drift = None
            if rows.n_samples:
                _check_memory(champion, dataset, rows, engine)
                batch = do("score", updates.score_new_rows, champion, dataset, rows, engine=engine)
                record["progressive"] = batch.errors.to_dict()
            held_out = do("hold out", gates.hold_out, champion, dataset, rows, engine=engine, test=test)
            record["held_out"] = {"held_out": held_out.words, **held_out.errors.to_dict()}
            start = time.perf_counter()
            sums, gone = do("sum", _sum_rows, champion, dataset, rows, engine)
            seconds = round(time.perf_counter() - start, 3)
            record["statistics"] = {"digest": sums.digest(), "n_samples": sums.n_samples, "seconds": seconds}
            if batch is not None:  # an alarm is reported, but stops nothing
                repeated = sums.spec.frequency_weights
                columns = moments.ColumnMoments.of(batch.moments, frequency_weights=repeated)
                held = drifts.Observed(champion.summed, champion.columns, held_out.errors)
                new = drifts.Observed(batch.statistics, columns, batch.errors)
                drift = do("drift", drifts.judge_drift, held, new, sums, level=job.level)
                record["drift"] = drift.to_dict()
            known: Any = {"statistics": sums, "batch": batch, "gone": gone}
            challenger = do("solve", updates.solve_update, champion, dataset, rows, **known)
            record["solution"] = {
                "alpha_before": champion.plain_alpha,
                "alpha": challenger.plain_alpha,
                **{name: challenger.card["solver"][name] for name in ("status", "causes", "remedies")},
            }
            gate = do("gate", gates.judge, challenger, held_out, tolerance=job.tolerance, engine=engine)
            record["gate"] = {  # JSON has no infinity
                name: None if name in ("ratio", "at_least") and not np.isfinite(value) else value
                for name, value in asdict(gate).items()
            }
            forced = job.force or (force_removal and not rows.n_samples)
            reason = gate.reason + ("; it was forced" if forced and not gate.passed else "")
            # Drift does not decide: it is an alarm for people. Only the errors on held-out rows do.
            decision, current = "published" if gate.passed or forced else "kept", champion
            if job.dry_run:
                decision = f"would be {decision}"
            elif decision == "kept":
                # Refused rows are remembered, so that the next night does not judge them again.
                do.once("publish", keep_champion, location, dataset, rows, reason)
            else:
                current = challenger.with_card(update=_describe_update(record, champion, reason))
                to_publish = (location, version, current, dataset, rows, drift, reason)
                # `once`, because a publication that seemed to fail may have succeeded.
                version = do.once("publish", publish_update, *to_publish)
        described = publishing.describe_model(location.url, current, version)
        record |= {"decision": decision, "reason": reason, **described}
        return Updated(dataset, champion, challenger, record)


def _check_memory(
    champion: models.RidgeModel, dataset: blocks.Dataset, rows: NewRows, engine: Engine
) -> None:
    """Refuse an update that does not fit into memory, before its first pass."""
    feature_map = champion.feature_map
    kind = "nystrom" if isinstance(feature_map, nystrom.NystromFeatureMap) else "fourier"
    sums = Sums(alpha=champion.card["alpha_given"], features=kind)
    plan = check_plan(dataset, feature_map.n_components, sums, engine=engine)
    # next to a fit's: sums of the champion and of held-out rows
    needed, limit = plan.client_bytes + 2 * plan.statistics_bytes, plan.client_memory_limit
    if limit is not None and needed > limit:
        raise PlanError(
            f"an update of n_components={feature_map.n_components:_} needs {human_bytes(needed)} in this "
            f"process, which has {human_bytes(limit)}; give it more memory, or fit with fewer components"
        )


def _sum_rows(
    champion: models.RidgeModel, dataset: blocks.Dataset, rows: NewRows, engine: Engine
) -> tuple[ridge_statistics.RidgeStatistics, moments.Moments | None]:
    """Return the exact statistics of all rows, and the moments of those that are gone."""
    statistics = updates.accumulate_new_rows(champion, dataset, rows, engine=engine)
    return statistics, updates.measure_gone_rows(champion, dataset, rows, engine=engine)


def keep_champion(location: locations.Location, dataset: blocks.Dataset, rows: NewRows, reason: str) -> None:
    """Record that rows were refused."""
    output_places.check_held(location)
    _write_refusals(location, [*read_refusals(location), *new_rows.refuse(dataset, rows, reason)])
    logger.warning("%s is kept: %s", location, reason)


def publish_update(
    location: locations.Location,
    champion: versions.Version | None,
    challenger: models.RidgeModel,
    dataset: blocks.Dataset,
    rows: NewRows,
    drift: drifts.Drift | None,
    reason: str,
) -> versions.Version | None:
    """Publish the challenger in place of the champion, or as the next version after it.

    Raises StorageError if it cannot be written; then the champion stays.
    """
    version = None
    if champion is None:
        models.write_model(challenger, location.url, overwrite=True)
    else:
        lineage: Summary = {
            "added": [list(ends) for ends in rows.ranges],
            "n_seen": rows.n_after,
            **({} if rows.window == windows.ALL_ROWS else {"window": rows.window}),
            "drifted": drift is not None and drift.drifted,
        }
        why = f"updated: {reason}"
        version = publishing.publish(challenger, location.url, data=dataset.url, reason=why, lineage=lineage)
    _forget_refusals(location, rows)
    return version


# -- records -------------------------------------------------------------------------------------------


def _describe_rows(
    job: specs.Update, dataset: blocks.Dataset, rows: NewRows, refusals: Sequence[Refusal]
) -> Summary:
    return {
        "data": redact(str(job.source.data)),
        "table": sources.followed_table(dataset.attributes),
        **fields.values_of(rows, "n_before", "n_after"),
        "n_new": rows.n_samples,
        "n_replaced": 0 if rows.differences.came is None else rows.differences.came.n_samples,
        "n_gone": rows.n_gone,
        "new": [list(ends) for ends in rows.ranges],
        "left_out": [list(ends) for ends in rows.left_out],
        "left_out_because": [_why_left_out(refusals, *ends) for ends in rows.left_out],
        "window": rows.window,
        "first_row": rows.start,
    }


def _overlap(refusal: Refusal, start: int, stop: int) -> bool:
    return not refusal.is_change and refusal.start < stop and start < refusal.stop


def _why_left_out(refusals: Sequence[Refusal], start: int, stop: int) -> str:
    reasons = [refusal.reason for refusal in refusals if _overlap(refusal, start, stop)]
    return "; ".join(dict.fromkeys(reasons)) or "refused by an update before"


def _why_nothing(rows: NewRows, record: Summary) -> str:
    which = "rows of the data" if not rows.start else "rows that count"
    which = which if rows.window == windows.ALL_ROWS else f"rows of the window {rows.window}"
    reason = f"the model holds all {rows.n_after - rows.start:,} {which}"
    if rows.left_out:
        left_out = zip(rows.left_out, record["left_out_because"], strict=True)
        why = "; ".join(f"rows {a:,} to {b - 1:,}: {because}" for (a, b), because in left_out)
        n_rows, first = differences.count_rows(rows.left_out), rows.left_out[0][0]
        reason += f", but {n_rows:,} ({why}). `backfill`={first} has them judged again"
    return reason


def _describe_update(record: Summary, champion: models.RidgeModel, reason: str) -> Summary:
    """Return the facts about an update that the new model's card keeps."""
    facts: Summary = {
        "added": record["new"],
        **{name: record[name] for name in ("n_replaced", "n_gone")},
        "parent_digest": champion.digest(),
        "gate": reason,
    }
    if "drift" in record:
        facts["progressive"] = record["progressive"]
        facts["drift"] = {name: record["drift"][name] for name in ("drifted", "parts", "p_values")}
    return facts
