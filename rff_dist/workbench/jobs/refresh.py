"""Update a stored model with rows that are new in its data, or keep it.

In go a model with its exact sums and its data, out comes the next version of the model,
or a record of the refused rows; and an `UpdateResult` that all reports are made from.
The simple version would add the new rows' sums and solve again. After one bad night it
would publish a clearly worse model, and no one would know which rows made it worse.

The arithmetic is in `living.update`. The steps: find the new rows → score them with the
champion, the current model, which has not seen them → hold out rows → sum → test for
drift → solve for the challenger → gate → publish it, or keep the champion and record
the reason. Nothing is written before the last step, so a run that died is simply
repeated.

Later runs skip refused rows (`refusals.py`): they judge newer rows without them, and
leave them out of the model's sums. A backfill judges refused rows again, from a given
row on. A refused correction or deletion is recorded too, but each run judges it again.
Every run tells which rows the model lacks, why, and how to get them back.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict

import numpy as np

from rff_dist import fields
from rff_dist.data import blocks, sources
from rff_dist.engines import events
from rff_dist.engines.protocol import Engine
from rff_dist.errors import PlanError, StatisticsError
from rff_dist.features import nystrom
from rff_dist.fitting.plan import plan_on_engine
from rff_dist.fitting.sizes import SumOptions
from rff_dist.living import drift as drifts
from rff_dist.living import gate as gates
from rff_dist.living import interval_updates, new_rows, ranges, windows
from rff_dist.living import update as updates
from rff_dist.living.new_rows import NewRows, Refusal
from rff_dist.models import versions
from rff_dist.ridge import models
from rff_dist.statistics import moments, ridge_statistics
from rff_dist.storage import (
    columns,
    datasets,
    editing,
    locations,
    output_places,
    records,
)
from rff_dist.text import human_bytes, redact
from rff_dist.typing import Summary, frozen
from rff_dist.workbench.jobs import (
    fits,
    judging,
    publishing,
    refusals,
    specs,
    steps,
    watching,
)

logger = logging.getLogger(__name__)


@frozen
class UpdateResult:
    """What an update found and decided.

    `dataset`: the rows, as the update read them.
    `champion`: the current model before the update.
    `challenger`: the same model with the new rows; None if there is nothing new.
    `record`: JSON values, always with:
      about the rows: their URL `data`, the lakehouse `table` that they follow, the
      column of their `id`, `n_before`, `n_after`, `n_new`, the ranges of `new` and
      `left_out` rows, for each range its rows in their source (`new_rows` and
      `left_out_rows`, in words) and for each left-out one the reason
      (`left_out_because`), the `window` and its `first_row`;
      the `decision`: "published", "kept" or "nothing new", in a dry run "would be
      published" or "would be kept"; and its `reason`;
      about the model that is now current: `model` (its URL), version, digests and rows.
      If anything is new, also `held_out` (in words, and the champion's errors there),
      `statistics`, `solution` and `gate`. If rows are new, also `progressive` (per
      target `rmse`, `mae`, `bias` and `r2` of the champion on them, None for a constant
      target) and `drift`. If an update with test rows is published, also `metrics`:
      its errors on them.
    """

    dataset: blocks.Dataset
    champion: models.RidgeModel
    challenger: models.RidgeModel | None
    record: Summary


@watching.watched
def update(job: specs.Update, do: steps.Runner) -> UpdateResult:
    """Update a model with rows that are new in its data; see `update_from`.

    Raises RFFDistError as `update_from`, or if the data cannot be read.
    """
    arguments = job.source.open_arguments()
    dataset = datasets.open_dataset(job.source.data, **arguments)
    # `version` names a version of the training data; test data are read as they are now
    test = None
    if job.test is not None:
        test = datasets.open_dataset(job.test, **arguments | {"version": None})
    held_out = None
    place = locations.parse_location(job.source.data)
    part = editing.other_part(place, dataset.attributes)
    if part is not None:
        held_out = datasets.open_dataset(part.url, **arguments | {"version": None})
    return update_from(job, dataset, do, test=test, held_out=held_out)


def update_from(
    job: specs.Update,
    dataset: blocks.Dataset,
    do: steps.Runner,
    *,
    test: blocks.Dataset | None = None,
    held_out: blocks.Dataset | None = None,
    forces_removal: bool = False,
) -> UpdateResult:
    """Replace a model by its update, or publish the next version of a registered model;
    no other run can write it meanwhile.

    `dataset`: the data that it was trained on, perhaps with new rows.
    `test`: rows to compare the models on; None holds out rows that the champion was
      trained on.
    `held_out`: rows of the same table, on which each published version is scored, so
      that errors of all versions compare.
    `forces_removal`: whether deleted rows are taken out however much the error rises,
      if no rows are new.

    Raises OutputBusyError if another run writes the model; StorageError if there is no
    ridge model; FingerprintMismatchError if the data do not begin with the rows that it
    was trained on; PlanError if memory does not suffice; DataError, with row and
    column, if a value cannot be used.
    """
    location = locations.parse_location(job.model)
    kind = records.peek_record(location.url).kind  # checked before the model is locked
    if kind != models.KIND:
        raise StatisticsError(
            f"{redact(location.url)} holds a {kind!r}, which has no statistics to add"
            f" rows to; expected a {models.KIND!r}. Train it again on all rows"
        )
    with output_places.hold(location, holder=do.holder):
        version = versions.RegisteredModel(location.url).current()
        champion = models.read_model(location.url if version is None else version.url)
        known_refusals = refusals.refusals_of(location)
        # In a folder the lock is held from here to the publication, so that no other
        # run takes the same rows.
        rows = do(
            "find new rows",
            new_rows.find_new_rows,
            champion,
            dataset,
            refusals=known_refusals,
            **fields.values_of(job, "backfill", "window"),
        )
        if rows.n_new:
            events.tell(events.Remark("find new rows", f"{rows.n_new:_} new rows"))
        record = _describe_rows(job, dataset, rows, known_refusals)
        dataset = rows.differences.after or dataset
        # No engine is opened: most nights bring nothing, and a cluster takes longer to
        # start than this took.
        if rows.is_empty:
            record |= {"decision": "nothing new", "reason": _why_nothing(rows)}
            record |= publishing.describe_model(location.url, champion, version)
            return UpdateResult(dataset, champion, None, record)

        with (
            do.open_engine(dataset.n_samples) as engine,
            # The model is published within this context, so kept sums are removed only
            # after that. A dry run writes nothing, so it keeps no sums either.
            nullcontext() if job.dry_run else steps.resumable(engine, location),
        ):
            contest = _challenge(job, champion, dataset, rows, test, do, engine)
            record |= contest.facts
            challenger = contest.challenger

            # Drift does not decide: it is an alarm for people. Only the errors on
            # held-out rows do.
            is_accepted = contest.gate.passed
            reason = contest.gate.reason
            is_forced = job.force or (forces_removal and not rows.n_new)
            if is_forced and not is_accepted:
                is_accepted = True
                reason = f"forced, although {reason}"

            decision = "published" if is_accepted else "kept"
            current = champion
            if job.dry_run:
                decision = f"would be {decision}"
            elif is_accepted:
                facts = _describe_update(record, champion, reason)
                challenger = do(
                    "hold out",
                    interval_updates.hold_out_newest,
                    challenger,
                    champion,
                    dataset,
                    ranges.without_rows([(0, rows.n_after)], rows.missing),
                    engine=engine,
                )
                current = challenger.with_card(update=facts)
                if held_out is not None:
                    rows_of_test = fits.JobData(held_out)
                    metrics = do(
                        "evaluate",
                        judging.measure_errors,
                        rows_of_test,
                        current,
                        engine=engine,
                    )
                    current = current.with_card(metrics=metrics)
                    record["metrics"] = metrics
                # `once`, because a publication that seemed to fail may have succeeded.
                version = do.once(
                    "publish",
                    publish_update,
                    location,
                    version,
                    current,
                    dataset,
                    rows,
                    known_refusals,
                    contest.has_drifted,
                    contest.gate,
                )
            else:
                # Refused rows are remembered, so that the next night does not judge
                # them again.
                do.once(
                    "record refusal", keep_champion, location, dataset, rows, reason
                )
        record |= {"decision": decision, "reason": reason}
        record |= publishing.describe_model(location.url, current, version)
        return UpdateResult(dataset, champion, challenger, record)


@frozen
class Contest:
    """A challenger, and how it does against the champion.

    `facts`: JSON values: `held_out`, `statistics`, `solution` and `gate`; if there are
    new rows also `progressive` and `drift`.
    """

    challenger: models.RidgeModel
    gate: gates.Gate
    facts: Summary

    @property
    def has_drifted(self) -> bool:
        return bool(self.facts.get("drift", {}).get("drifted"))


def _challenge(
    job: specs.Update,
    champion: models.RidgeModel,
    dataset: blocks.Dataset,
    rows: NewRows,
    test: blocks.Dataset | None,
    do: steps.Runner,
    engine: Engine,
) -> Contest:
    """Make the challenger, and judge both models on rows that neither was trained
    on.
    """
    facts: Summary = {}
    scored = None
    if rows.n_new:
        _check_memory(champion, dataset, engine)
        scored = do(
            "score", updates.score_new_rows, champion, dataset, rows, engine=engine
        )
        facts["progressive"] = scored.errors.to_dict()
    held_out = do(
        "hold out", gates.hold_out, champion, dataset, rows, engine=engine, test=test
    )
    facts["held_out"] = {"held_out": held_out.words, **held_out.errors.to_dict()}

    start = time.perf_counter()
    sums, gone_moments = do("sum", sum_rows, champion, dataset, rows, engine)
    facts["statistics"] = {
        "digest": sums.digest(),
        "n_samples": sums.n_samples,
        "seconds": round(time.perf_counter() - start, 3),
    }

    if scored is not None:
        facts["drift"] = do(
            "drift",
            drifts.judge_drift,
            champion,
            held_out.errors,
            scored,
            sums,
            significance=job.level,
        )

    challenger = do(
        "solve",
        updates.solve_update,
        champion,
        dataset,
        rows,
        statistics=sums,
        new=scored,
        gone=gone_moments,
    )
    solver = challenger.card["solver"]
    facts["solution"] = {
        "alpha_before": champion.plain_alpha,
        "alpha": challenger.plain_alpha,
        **{name: solver[name] for name in ("status", "causes", "remedies")},
    }

    gate = do(
        "gate",
        gates.judge,
        challenger,
        held_out,
        tolerance=job.tolerance,
        engine=engine,
    )
    facts["gate"] = asdict(gate)
    for name in ("ratio", "at_least"):
        if not np.isfinite(facts["gate"][name]):
            facts["gate"][name] = None  # JSON has no infinity
    return Contest(challenger, gate, facts)


def _check_memory(
    champion: models.RidgeModel, dataset: blocks.Dataset, engine: Engine
) -> None:
    """Refuse an update that does not fit into memory, before its first pass."""
    feature_map = champion.feature_map
    is_nystrom = isinstance(feature_map, nystrom.NystromFeatureMap)
    kind = "nystrom" if is_nystrom else "fourier"
    sums = SumOptions(alpha=champion.card["alpha_given"], features=kind)
    plan = plan_on_engine(dataset, feature_map.n_components, sums, engine=engine)
    # what a fit needs, and the sums of the champion and of held-out rows
    needed = plan.client_bytes + 2 * plan.statistics_bytes
    limit = plan.client_memory_limit
    if limit is not None and needed > limit:
        raise PlanError(
            f"an update of n_components={feature_map.n_components:_} needs"
            f" {human_bytes(needed)} in this process, which has {human_bytes(limit)};"
            " give it more memory, or fit with fewer components"
        )


def sum_rows(
    champion: models.RidgeModel, dataset: blocks.Dataset, rows: NewRows, engine: Engine
) -> tuple[ridge_statistics.RidgeStatistics, moments.Moments | None]:
    """Return the exact statistics of all rows, and the moments of removed rows; None if
    no rows were removed.
    """
    statistics = updates.accumulate_new_rows(champion, dataset, rows, engine=engine)
    return statistics, updates.measure_gone_rows(champion, dataset, rows, engine=engine)


def keep_champion(
    location: locations.Location, dataset: blocks.Dataset, rows: NewRows, reason: str
) -> None:
    """Record that rows were refused."""
    output_places.check_held(location)
    earlier = refusals.read_refusals(location)
    newest = new_rows.refuse(dataset, rows, reason)
    refusals.write_refusals(location, [*earlier, *newest])
    logger.warning("%s is kept: %s", location, reason)


def publish_update(
    location: locations.Location,
    champion: versions.Version | None,
    challenger: models.RidgeModel,
    dataset: blocks.Dataset,
    rows: NewRows,
    known_refusals: Sequence[Refusal],
    has_drifted: bool,
    gate: gates.Gate,
) -> versions.Version | None:
    """Publish the challenger in place of the champion, or as the next version after it.

    `champion`: the current version of a registered model, else None. `gate` has the
    challenger's errors. Raises StorageError if it cannot be written; then the champion
    stays.
    """
    version = None
    if champion is None:
        models.write_model(challenger, location.url, overwrite=True)
    else:
        lineage: Summary = {
            "added": [list(ends) for ends in rows.added],
            "n_seen": rows.n_after,
            "drifted": has_drifted,
        }
        if "metrics" not in challenger.card:
            lineage |= {
                "errors": {"rmse": list(gate.challenger)},
                "errors_before": {"rmse": list(gate.champion)},
                "judged_on": gate.fingerprint,
            }
        if rows.window != windows.ALL_ROWS:
            lineage["window"] = rows.window
        why = "updated"
        if not gate.passed:
            why = "updated by force, although it is worse"
        version = publishing.publish(
            challenger, location.url, data=dataset.url, reason=why, lineage=lineage
        )
    refusals.keep_refusals(location, known_refusals, rows)
    return version


def _describe_rows(
    job: specs.Update,
    dataset: blocks.Dataset,
    rows: NewRows,
    known_refusals: Sequence[Refusal],
) -> Summary:
    replacements = rows.differences.replacements
    return {
        "data": redact(str(job.source.data)),
        "table": sources.followed_table(dataset.attributes),
        **fields.values_of(rows, "n_before", "n_after"),
        "n_new": rows.n_new,
        "n_replaced": 0 if replacements is None else replacements.n_samples,
        "n_gone": rows.n_gone,
        "new": [list(ends) for ends in rows.added],
        "new_rows": [refusals.source_words(dataset, *ends) for ends in rows.added],
        "id": columns.id_column(dataset.attributes),
        "left_out": [list(ends) for ends in rows.left_out],
        "left_out_rows": [
            refusals.source_words(dataset, *ends) for ends in rows.left_out
        ],
        "left_out_because": [
            refusals.why_left_out(known_refusals, *ends) for ends in rows.left_out
        ],
        "window": rows.window,
        "first_row": rows.first_row,
    }


def _why_nothing(rows: NewRows) -> str:
    rows_words = "rows of the dataset"
    if rows.window != windows.ALL_ROWS:
        rows_words = f"rows of the window {rows.window}"
    elif rows.first_row:
        rows_words = "rows that count"
    n_rows = rows.n_after - rows.first_row
    if not rows.left_out:
        return f"the model holds all {n_rows:,} {rows_words}"
    n_held = n_rows - ranges.count_rows(rows.left_out)
    return f"the model holds {n_held:,} of {n_rows:,} {rows_words}"


def _describe_update(
    record: Summary, champion: models.RidgeModel, reason: str
) -> Summary:
    """Return the facts about an update that the new model's card keeps."""
    facts: Summary = {
        "added": record["new"],
        **{name: record[name] for name in ("n_replaced", "n_gone")},
        "parent_digest": champion.digest(),
        "gate": reason,
    }
    if "drift" in record:
        facts["progressive"] = record["progressive"]
        facts["drift"] = {
            name: record["drift"][name] for name in ("drifted", "parts", "p_values")
        }
    return facts
