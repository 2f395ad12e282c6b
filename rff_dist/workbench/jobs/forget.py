"""The job that forgets rows: delete them, take them out of models, and remove the earlier versions.

The steps: check the models → delete the rows in one new version → update each model exactly, as if the rows
had never been there → remove the earlier versions → list what still holds the rows.
"""

import logging
import os
from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from rff_dist import fields
from rff_dist.data import sources as row_sources
from rff_dist.errors import InvalidParameterError, NoSuchVersionError, StatisticsError, StorageError
from rff_dist.living import new_rows
from rff_dist.models import versions
from rff_dist.recipes import recipes
from rff_dist.ridge.models import RidgeModel, read_model, write_model
from rff_dist.storage import appending, corrections, datasets, locations, output_places, records, repositories
from rff_dist.storage.columns import ID
from rff_dist.storage.documents import name_of
from rff_dist.storage.groups import require_versions
from rff_dist.text import redact
from rff_dist.typing import Facts, Summary, frozen
from rff_dist.workbench.jobs import refresh, specs, steps, train, watching
from rff_dist.workbench.tables import unlike
from rff_dist.workbench.tables.corrections import read_rows_to_change

logger = logging.getLogger(__name__)

_LOOKED_AT = 1000  # names in a folder


@frozen
class Holder:
    """Something that still holds forgotten rows, or sums of them.

    `what`: a version, a model or a file.
    `why`: what it holds of the rows.
    `until`: what removes it, or when it goes.
    """

    what: str
    why: str
    until: str


@frozen
class Nearby:
    """A model in the folder of the data or one below, with its card, or the error of reading it."""

    url: str
    card: Facts
    error: str | None = None


@frozen
class Forgotten:
    """What a dataset held of the deleted rows.

    `location`: of the dataset.
    `before`: the version that still has the rows.
    `version`: the version without them.
    `X`: their inputs, which Nyström features may hold as centres.
    `data_id`: the name that all versions of the dataset share.
    `sources`: what was ingested before, whose names the dataset forgets too.
    `record`: JSON values: the number of deleted rows, of rows before and after, and the version.
    """

    location: locations.Location
    before: str
    version: str | None
    X: np.ndarray
    data_id: str | None
    sources: list[Facts]
    record: Summary


@watching.watched
def forget(job: specs.Forget, do: steps.Runner) -> Summary:
    """Delete rows of a versioned dataset, take them out of models, and remove the earlier versions.

    Returns `record`: as in `Forgotten`; in `updates` what became of each model; the versions that `expired`,
      and `freed_bytes`; and in `holders` what still holds the rows, or sums of them.
    Raises StorageError if there is no dataset that keeps versions; and as its steps.
    """
    location = locations.parse_location(job.data)
    require_versions(location)
    nearby = do("look", look, job.models, location)
    gone = do.once("delete", delete, job, location)
    # Before versions expire: an update subtracts the rows as the earlier version holds them.
    updates = [take_out(url, location, do) for url in job.models]
    before = datetime.now(UTC) - timedelta(days=job.days)
    expired = do("expire", repositories.expire, location, before, tags=job.tags)
    holders = do("holders", find_holders, gone, job.models, nearby)
    return {
        **gone.record,
        "updates": updates,
        "expired": list(expired.versions),
        "freed_bytes": expired.n_bytes,
        "holders": [asdict(holder) for holder in holders],
    }


def look(urls: Sequence[str], location: locations.Location) -> list[Nearby]:
    """Check the models, and return those that no one named, in the folder of the data and one below.

    Raises StatisticsError if a model cannot be updated; NoSuchVersionError if it was trained on other data,
      or its version has expired.
    """
    for url in urls:
        model = read_model(url)
        new_rows.check_updatable(model)
        version = model.card.get("data_version")
        if version is None:
            raise StatisticsError(
                f"{redact(url)} was trained on data without versions, so rows cannot be taken out of it; "
                "fit it again on the rows that are left"
            )
        try:
            repositories.find_snapshot(location, str(version))
        except NoSuchVersionError as error:
            raise NoSuchVersionError(
                f"{redact(url)} was trained on version {version}, which {location} does not have (any "
                "more); expected one that `rff-dist data log` lists. Fit it again when the rows are deleted"
            ) from error
    return [*_models_nearby(location, {locations.parse_location(url) for url in urls})]


def delete(job: specs.Forget, location: locations.Location) -> Forgotten:
    """Delete the rows that the file names, in one new version."""
    before = repositories.find_snapshot(location)
    with appending.editing(location) as dataset:
        if job.id and ID not in dataset.headers:
            raise InvalidParameterError(
                f"`id` is given, but the rows of {location} have no ids; give numbers of rows, or ingest "
                "the table again with `id`"
            )
        rows = read_rows_to_change(job.rows, dataset, ID if job.id else None)
        # Read before they are deleted, to be looked for among the centres of models at the end.
        X = datasets.open_dataset(location.url, y=None, version=before).take(rows).X
        data_id = name_of(dataset.attributes)
        sources, nameless = row_sources.known_sources(dataset.attributes), dict[str, Any]()
        if sources:
            nameless[row_sources.SOURCES] = [row_sources.without_name(source) for source in sources]
        if unlike.SEEN in dataset.attributes:  # the largest number may have been a forgotten row's
            nameless[unlike.SEEN] = {**dataset.attributes[unlike.SEEN], "ranges": {}}
        if (recipe := recipes.recipe_of(dataset.attributes)) is not None:
            nameless[recipes.RECIPE] = replace(recipe, notes={}).to_dict()  # they name files
        how = fields.values_of(job, "keep_order", "message") | {"what": "forget"}
        deleted = corrections.delete_from(dataset, rows, attributes=nameless, **how)
    return Forgotten(location, before, deleted.version, X, data_id, sources, asdict(deleted))


def take_out(url: str, data: locations.Location, do: steps.Runner) -> Summary:
    """Take the rows out of a model, and remove stored sums that include them.

    The gate decides only if the model also gets rows that it has not seen.
    """
    job = fields.build(specs.Update, {"model": url, "data": data.url})
    with output_places.hold(url, holder=do.holder):
        record = refresh.update_from(job, datasets.open_dataset(data.url), do, force_removal=True).record
        if record["decision"] != "kept":
            if output_places.holds_versions(locations.parse_location(url)):
                versions.RegisteredModel(url).prune(1)  # versions before hold sums of the rows
            else:
                # The replaced arrays stay until the next write, for their readers; this write removes them.
                write_model(read_model(url), url, overwrite=True)
    return {name: record[name] for name in ("model", "decision", "reason", "version", "digest", "n_samples")}


def find_holders(gone: Forgotten, models: Sequence[str], nearby: Sequence[Nearby]) -> list[Holder]:
    """Return what still holds the rows or sums of them."""
    why, until = "was ingested, and may hold the rows", "nothing here removes it"
    files = [Holder(str(file.get("name")), why, until) for file in gone.sources]
    return [*_versions(gone.location), *_models(gone, models, nearby), *_learned(gone.location), *files]


def _versions(location: locations.Location) -> Iterator[Holder]:
    for snapshot in repositories.other_snapshots(location):
        until = "`rff-dist data expire --days 0` removes it"
        if snapshot.tags:
            tags = ", ".join(snapshot.tags)
            until = f"it is tagged {tags}: `rff-dist data expire --days 0 --tags` removes it"
        yield Holder(f"version {snapshot.id} of {location}", "may hold the rows", until)
    if location.is_remote:  # where `expire` spares young objects: a writer may not have committed them
        when = datetime.now(UTC) + timedelta(days=1)
        why = "may belong to expired versions, and are younger than a day"
        until = f"`rff-dist data expire` removes them from {when:%Y-%m-%d %H:%M} UTC on"
        yield Holder(f"objects below {location}", why, until)


def _models(gone: Forgotten, urls: Sequence[str], nearby: Sequence[Nearby]) -> Iterator[Holder]:
    yield from _holders_nearby(gone, nearby)
    for url in urls:
        model, name = read_model(url), redact(url)
        if model.card.get("data_version") != gone.version:
            yield Holder(name, "sums of the rows", "its update was refused: `rff-dist update --force`")
        if n_centres := _count_centres(model, gone.X):
            yield Holder(name, f"{n_centres} of the rows are centres of its features", "fit again")
        why = "its standardisation, length scale and cross-validated errors were learned from these rows too"
        yield Holder(name, why, "fit again")
        for place in train.leftover_runs(url):
            yield Holder(redact(place.url), "a stopped job keeps sums here", "the job is repeated, and ends")
        registered = versions.RegisteredModel(url)
        if (current := registered.current()) is not None:
            for version in registered.versions():
                if version.number != current.number:
                    until = "`rff-dist models prune` removes it when a later version has taken its place"
                    yield Holder(f"version {version.number} of {name}", "may hold sums of the rows", until)


def _models_nearby(data: locations.Location, named: Set[locations.Location]) -> Iterator[Nearby]:
    for place in _models_in(_folder_of(data)):
        if place in named:
            continue
        try:
            urls = [place.url]
            if output_places.holds_versions(place):
                urls = [version.url for version in versions.RegisteredModel(place.url).versions()]
            yield from [Nearby(url, records.peek_record(url).metadata.get("card", {})) for url in urls]
        except StorageError as error:
            yield Nearby(place.url, {}, locations.explain(error))


def _holders_nearby(gone: Forgotten, nearby: Sequence[Nearby]) -> Iterator[Holder]:
    """Find models that no one named by the versions they are of."""
    readable = {snapshot.id for snapshot in repositories.other_snapshots(gone.location)}
    for model in nearby:
        if model.error is not None:
            yield Holder(redact(model.url), f"cannot be read ({model.error})", "look at it yourself")
        version = model.card.get("data_version")
        if model.card.get("data_id") != gone.data_id or version in (None, gone.version):
            continue
        rows = "with the rows" if version == gone.before else "perhaps with the rows"
        until = "fit again: that version is gone, so an update cannot subtract the rows"
        if version in readable:
            until = "`rff-dist update` subtracts the rows, as long as that version is there"
        yield Holder(redact(model.url), f"was trained on version {version}, {rows}", until)
    for name in _names_in(folder := _folder_of(gone.location)):
        if name.startswith(".") and name.endswith(".ledger"):
            why = "a stopped job keeps sums here, perhaps of the rows"
            yield Holder(redact(folder.child(name).url), why, "the job is repeated, and ends")


def _models_in(folder: locations.Location, depth: int = 1) -> Iterator[locations.Location]:
    """Yield the models in a folder, and those in the folders there, such as models/NAME."""
    # A folder may be someone's whole disk: looking at each name takes a request in an object store.
    for name in _names_in(folder):
        place = folder.child(name)
        if name.startswith(".") or (place.is_local and not os.path.isdir(place.path)):
            continue
        if locations.holds(place, locations.RECORD_FILE) or output_places.holds_versions(place):
            yield place
        elif depth and not any(locations.holds(place, file) for file in locations.DATASET_FILES):
            yield from _models_in(place, depth - 1)


def _names_in(folder: locations.Location) -> list[str]:
    """Return what is in a folder; nothing, with a warning, if it may not be looked at."""
    try:
        return locations.list_names(folder)[:_LOOKED_AT]
    except StorageError as error:
        logger.warning("models are not looked for there: %s", error)
        return []


def _folder_of(location: locations.Location) -> locations.Location:
    return locations.Location(location.scheme, location.path.rpartition("/")[0])


def _learned(location: locations.Location) -> Iterator[Holder]:
    """Say what of the dataset itself was learned from the rows."""
    recipe = recipes.recipe_of(datasets.open_dataset(location.url, y=None).attributes)
    if recipe is not None and recipe.columns != recipes.plain_recipe(recipe.inputs).columns:
        what = f"the recipe of {location}, and of models by it"
        why = "levels, medians and ranks of its columns were learned with the rows among others"
        yield Holder(what, why, "ingest what is left again")


def _count_centres(model: RidgeModel, X: np.ndarray) -> int:
    """Return how many of the rows a model stores themselves, as centres of Nyström features."""
    inputs = model.feature_map.prepare(X)
    _, stored = model.feature_map.record()
    stores = np.zeros(len(inputs), bool)
    for name, table in stored.items():
        # A part of a map that sees some of the columns stores their numbers next to its centres.
        columns = stored.get(f"{name.rpartition('_')[0]}_columns")
        rows = inputs if columns is None else inputs[:, columns]
        if table.shape[1:] == rows.shape[1:]:
            held = {row.tobytes() for row in table.astype(rows.dtype)}
            stores |= [row.tobytes() in held for row in rows]
    return int(stores.sum())
