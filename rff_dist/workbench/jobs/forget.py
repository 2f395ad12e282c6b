"""Forget rows: delete them, take them out of models, and remove the earlier versions.

In goes a file that names rows of a versioned dataset, out comes a summary of what was
done, with a list of what still holds the rows (`remnants.py`). Deleting alone would
leave them in earlier versions of the data, in models' sums, and in names of files and
of levels that only they had.

The steps: check the models → delete the rows in one new version → update each model
exactly, as if the rows had never been there → remove the earlier versions → list what
still holds the rows.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from rff_dist import fields
from rff_dist.data import blocks
from rff_dist.data import sources as row_sources
from rff_dist.errors import (
    InvalidParameterError,
    NoSuchVersionError,
    StatisticsError,
    StorageError,
)
from rff_dist.features.levels import Levels
from rff_dist.living import new_rows, ranges
from rff_dist.models import versions
from rff_dist.recipes import recipes
from rff_dist.ridge.models import RidgeModel, read_model, write_model
from rff_dist.statistics import row_passes
from rff_dist.storage import (
    corrections,
    datasets,
    editing,
    locations,
    output_places,
    repositories,
)
from rff_dist.storage.columns import ID
from rff_dist.storage.groups import require_versions
from rff_dist.text import redact
from rff_dist.typing import AnyArray, IntArray, Summary
from rff_dist.workbench.jobs import refresh, remnants, specs, steps, watching
from rff_dist.workbench.tables import row_monitor
from rff_dist.workbench.tables.corrections import read_rows_to_change


@watching.watched
def forget(job: specs.Forget, do: steps.Runner) -> Summary:
    """Delete rows of a versioned dataset and take them out of models.

    Versions older than the job's `days` are removed. Returns the record of the
    deletion, with four further entries: the decision about each model in `updates`, the
    removed versions in `expired`, `freed_bytes`, and in `holders` what still holds the
    rows, or sums of them. Raises StorageError if there is no dataset that keeps
    versions;
    StatisticsError or NoSuchVersionError if a model cannot be updated;
    InvalidParameterError or DataError if the file does not name rows.

    If an update fails, the rows are deleted, and other rows may have their numbers, so
    the same file must not be used again. Earlier versions of the data still hold the
    rows, and models that were not updated still have them in their sums. To go on,
    update these models with `force`, and remove the earlier versions of models and
    data.
    """
    location = locations.parse_location(job.data)
    require_versions(location)
    do("check models", check_models, job.models, location)
    # Never tried again: if the first try had deleted rows, other rows would now have
    # their numbers.
    deleted, traces = do.once("delete", delete, job, location)
    # Models are updated before versions expire: an update reads the rows to subtract
    # from the earlier version.
    updates = [take_out(url, location, do) for url in job.models]
    oldest = datetime.now(UTC) - timedelta(days=job.days)
    expired = do("expire", repositories.expire, location, oldest, tags=job.tags)
    remnant_list = do("holders", remnants.find_remnants, traces, job.models)
    return {
        **deleted,
        "updates": updates,
        "expired": list(expired.versions),
        "freed_bytes": expired.n_bytes,
        "holders": [asdict(remnant) for remnant in remnant_list],
    }


def check_models(urls: Sequence[str], location: locations.Location) -> None:
    """Check that rows can be taken out of models.

    Raises StatisticsError if a model cannot be updated; NoSuchVersionError if it was
    trained on other data, or its version has expired.
    """
    for url in urls:
        model = read_model(url)
        new_rows.check_updatable(model)
        version = model.card.get("data_version")
        if version is None:
            raise StatisticsError(
                f"{redact(url)} was trained on data without versions, so rows cannot be"
                " taken out of it; fit it again on the rows that are left"
            )
        try:
            repositories.find_snapshot(location, str(version))
        except NoSuchVersionError as error:
            error.add_note(
                f"{redact(url)} was trained on it; fit it again when the rows are"
                " deleted"
            )
            raise
        open_for(model, location)


def open_for(model: RidgeModel, location: locations.Location) -> blocks.Dataset:
    """Open data, with weights if a model of an earlier version was trained with them.

    Raises StatisticsError if it was trained on other arrays.
    """
    for weight in ("sample_weight", None):
        try:
            before = datasets.open_dataset(
                location.url, sample_weight=weight, version=model.card["data_version"]
            )
        except StorageError:
            continue  # there are no weights
        if new_rows.is_trained_on(model, before):
            return datasets.open_dataset(location.url, sample_weight=weight)
    raise StatisticsError(
        f"a model was trained on other arrays of {location} than X, y and"
        " sample_weight, so rows cannot be taken out of it; fit it again on the rows"
        " that are left"
    )


def delete(
    job: specs.Forget, location: locations.Location
) -> tuple[Summary, remnants.Traces]:
    """Delete the rows that the file names, in one new version.

    Returns the record of the deletion, and what `remnants.find_remnants` needs to find
    what still holds the rows.
    """
    old_version = repositories.find_snapshot(location)
    with editing.editing(location) as dataset:
        if job.id and ID not in dataset.headers:
            raise InvalidParameterError(
                f"`id` is given, but the rows of {location} have no ids; give numbers"
                " of rows, or ingest the table again with `id`"
            )
        rows = read_rows_to_change(job.rows, dataset, ID if job.id else None)
        sources = row_sources.known_sources(dataset.attributes)

        # these attributes take the places of the old ones, all others stay
        attributes = dict[str, Any]()
        # Names of ingested files may identify people, so the new version has none.
        if sources:
            attributes[row_sources.SOURCES] = [
                row_sources.without_name(source) for source in sources
            ]
        # the minimum or maximum of a column may be a forgotten row's value
        if row_monitor.SEEN_VALUES in dataset.attributes:
            attributes[row_monitor.SEEN_VALUES] = {
                **dataset.attributes[row_monitor.SEEN_VALUES],
                "ranges": {},
            }
        if (recipe := recipes.recipe_of(dataset.attributes)) is not None:
            old = datasets.open_dataset(location.url, y=None, version=old_version)
            levels = recipes.levels_of(dataset.attributes)
            codes = _codes_of_no_other(old, rows, old.take(rows).X, levels)
            # notes have names of files
            recipe = replace(recipe.without_levels(codes), notes={})
            attributes[recipes.RECIPE] = recipe.to_dict()
        deleted = corrections.delete_from(
            dataset,
            rows,
            keep_order=job.keep_order,
            message=job.message,
            change_kind="forget",
            attributes=attributes,
        )
    traces = remnants.Traces(location, deleted.version, sources)
    return asdict(deleted), traces


def _codes_of_no_other(
    dataset: blocks.Dataset, rows: IntArray, X: AnyArray, levels: Levels
) -> dict[int, set[int]]:
    """Return the codes of levels that only these rows of a dataset have, by column."""
    codes = {
        j: {
            code
            for code in np.unique(X[:, j]).astype(int).tolist()
            if code < len(texts)
        }
        for j, texts in levels.items()
    }
    for block in row_passes.blocks_of(dataset):
        if not any(codes.values()):
            break
        is_gone = np.isin(np.arange(block.start, block.stop), rows)
        others = dataset.read(block).X[~is_gone]
        for j, codes_of_column in codes.items():
            codes_of_column.difference_update(
                np.unique(others[:, j]).astype(int).tolist()
            )
    return codes


def take_out(url: str, data: locations.Location, do: steps.Runner) -> Summary:
    """Take the rows out of a model, and remove stored sums that include them.

    The update also adds rows that are newer than the model. Without such rows the new
    model is always published. With some, the gate may keep the old model, which still
    has the forgotten rows.
    """
    job = fields.build(specs.Update, {"model": url, "data": data.url})
    with output_places.hold(url, holder=do.holder):
        dataset = open_for(read_model(url), data)
        record = refresh.update_from(job, dataset, do, forces_removal=True).record
        if record["decision"] != "kept":
            if output_places.is_registered_model(locations.parse_location(url)):
                # earlier versions have the rows in their sums
                versions.RegisteredModel(url).prune(1)
            else:
                # The replaced arrays stay until the next write, for their readers; this
                # write removes them.
                write_model(read_model(url), url, overwrite=True)
    names = ("model", "decision", "reason", "version", "digest", "n_samples", "n_gone")
    n_left_out = ranges.count_rows(record["left_out"])
    return {**{name: record[name] for name in names}, "n_left_out": n_left_out}
