"""What still holds rows that were forgotten, or sums of them.

In go the traces of a dataset and the models that the rows were taken out of, out come
`Remnant`s, each with what removes it. A list of the dataset's versions alone would miss
sums of stopped jobs, and what models and recipes learned from the rows. Models that the
job does not name are not searched for: they may be anywhere.
"""

from collections.abc import Iterator, Sequence

from rff_dist.models import versions
from rff_dist.recipes import recipes
from rff_dist.recipes.encoders import Category, Encoder, Number
from rff_dist.ridge.models import read_model
from rff_dist.storage import datasets, locations, repositories
from rff_dist.storage.ledger import LEDGER
from rff_dist.text import redact
from rff_dist.typing import Facts, frozen
from rff_dist.workbench.jobs import run_folders


@frozen
class Remnant:
    """Something that still holds forgotten rows, or sums of them."""

    where: str
    what: str
    #: what removes it: a command, or something to do or to wait for
    until: str


@frozen
class Traces:
    """What is needed to find a dataset's other versions, and its files."""

    location: locations.Location
    #: the version without the rows
    version: str | None
    #: entries of the files that were ingested before the rows were deleted
    sources: list[Facts]


def find_remnants(traces: Traces, models: Sequence[str]) -> list[Remnant]:
    """Return what still holds the rows or sums of them.

    `models`: URLs of the models that the rows were taken out of. Raises StorageError if
    a model or the dataset is gone or damaged.
    """
    place = traces.location
    remnants = []
    for snapshot in repositories.other_snapshots(place):
        until = "`rff-dist data expire --days 0` removes it"
        if snapshot.tags:
            until += f" with `--tags`: it is tagged {', '.join(snapshot.tags)}"
        where = f"version {snapshot.id} of {place}"
        remnants.append(Remnant(where, "may hold the rows", until))
    # in object stores `expire` spares young objects: a writer may be about to commit
    # them
    if place.is_remote:
        what = "may belong to expired versions, and are younger than a day"
        until = "`rff-dist data expire` removes them from tomorrow on"
        remnants.append(Remnant(f"objects below {place}", what, until))

    for url in models:
        remnants += _remnants_of_model(url, traces)

    attributes = datasets.open_dataset(place.url, y=None).attributes
    recipe = recipes.recipe_of(attributes)
    if recipe is not None and any(map(_learns_from_values, recipe.columns)):
        where = f"the recipe of {place}, and of models by it"
        what = "medians and ranks of its columns were learned from the rows too"
        remnants.append(Remnant(where, what, "ingest the remaining rows again"))
    what = "was ingested, and may hold the rows"
    until = "nothing here removes it"
    remnants += [Remnant(str(file.get("name")), what, until) for file in traces.sources]
    return remnants


def _learns_from_values(encoder: Encoder) -> bool:
    """Return whether an encoder was learned from the values of rows. That of a category
    was too, but the texts of forgotten levels are erased.
    """
    # a column of numbers with defaults is read as it is
    return not isinstance(encoder, Category) and encoder != Number(encoder.column)


def _remnants_of_model(url: str, traces: Traces) -> Iterator[Remnant]:
    """Yield the parts of a model that still hold rows which were taken out of it."""
    model = read_model(url)
    name = redact(url)
    # the job has updated its models to that version, unless a gate refused one
    if model.card.get("data_version") != traces.version:
        until = "its update was refused: `rff-dist update --force`"
        yield Remnant(name, "sums of the rows", until)
    what = (
        "its standardisation, length scale and cross-validated errors were learned"
        " from these rows too"
    )
    _, arrays = model.feature_map.record()
    if any(array.endswith("centres") for array in arrays):
        what += (
            "; these rows, and names of their levels, may be centres of its features"
        )
    yield Remnant(name, what, "fit again")
    leftovers = run_folders.leftover_runs(url)
    ledger = locations.parse_location(url).hidden(LEDGER)
    if locations.exists(ledger):
        leftovers.append(ledger)
    for leftover in leftovers:
        what = "a stopped job keeps sums here"
        yield Remnant(redact(leftover.url), what, "the job is repeated, and ends")

    registered = versions.RegisteredModel(url)
    pointer = registered.pointer()
    if pointer is None:
        return
    for version in registered.versions():
        if version.number != pointer.number:
            yield Remnant(
                f"version {version.number} of {name}",
                "may hold sums of the rows",
                "after the next version is published:"
                f" `rff-dist models prune {name} --keep 1`",
            )
