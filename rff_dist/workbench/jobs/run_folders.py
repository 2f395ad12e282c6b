"""The folder of a training run: it stands next to the output, and the run's records and
its trained model are in it until the model is published.

In goes the location of an output; `open_run` locks the output, yields a new folder and
removes it at the end. With a temporary folder of the machine instead, a model that took
hours would be lost if publishing fails, and no later run would tell of it.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rff_dist.errors import RFFDistError
from rff_dist.models import versions
from rff_dist.storage import locations, output_places, records
from rff_dist.text import redact

logger = logging.getLogger(__name__)

# `trained_models` finds names that end in "-model"
_TRAINED = "trained-model"
_PLAN = "plan"


@dataclass(slots=True)
class RunFolder:
    """Where a run keeps its records."""

    location: locations.Location
    #: set if publishing failed: the trained model is then only here
    is_kept_after_run: bool = False

    @property
    def trained(self) -> str:
        """The URL of the trained model."""
        return self.location.child(_TRAINED).url

    @property
    def plan(self) -> str:
        """The URL of the plan."""
        return self.location.child(_PLAN).url


@contextmanager
def open_run(output: locations.Location, holder: str) -> Iterator[RunFolder]:
    """Lock an output, and yield a folder for the run's records, removed at the end.

    On a disk no other run can write to the output meanwhile; an object store has no
    lock. `holder`: who runs it, for the error of a second run. Raises OutputBusyError
    if another run writes there.
    """
    with output_places.hold(output, holder=holder):
        _remove_leftovers(output)
        folder = RunFolder(locations.new_hidden_folder(output, "run"))
        try:
            yield folder
        finally:
            # a repeated run goes on from the ledger of sums, and does not need this
            if not folder.is_kept_after_run:
                output_places.discard(folder.location)


def leftover_runs(model_url: str) -> list[locations.Location]:
    """Return the folders of this model's running and interrupted runs."""
    return locations.hidden_folders(locations.parse_location(model_url), "run-")


def trained_models(folder: locations.Location) -> list[locations.Location]:
    """Return the locations of the complete trained models in a run's folder."""
    places = [
        folder.child(name)
        for name in locations.list_names(folder)
        if name.endswith("-model")
    ]
    return [place for place in places if records.is_complete(place)]


def _remove_leftovers(output: locations.Location) -> None:
    """Remove the folders of killed runs, except for unpublished trained models."""
    folders = _folders_of_killed_runs(output)
    if not folders:
        return

    # A run may have been killed after it published, before it removed its folder.
    published = _published_digests(output)
    for folder in folders:
        unpublished = [
            model for model in trained_models(folder) if _digest(model) not in published
        ]
        if unpublished:
            logger.warning(
                "an interrupted run left trained models, which are kept: %s",
                ", ".join(redact(model.url) for model in unpublished),
            )
        else:
            logger.info("removing what an interrupted run left: %s", redact(folder.url))
            output_places.discard(folder)


def _folders_of_killed_runs(output: locations.Location) -> list[locations.Location]:
    """Return the run folders next to an output that no running job needs."""
    folders = locations.hidden_folders(output, "run-")
    if output.is_local:
        # This run has the lock, so no other run is alive.
        return folders

    # An object store has no lock: a young folder may belong to a running job.
    return [folder for folder in folders if locations.is_abandoned(folder)]


def _published_digests(output: locations.Location) -> set[str | None]:
    """Return the digests of the models that are published at an output."""
    if output_places.is_registered_model(output):
        registered = versions.RegisteredModel(output.url)
        return {version.digest for version in registered.versions()}
    return {_digest(output)} - {None}


def _digest(model: locations.Location) -> str | None:
    """Return the digest of a stored model; None if it cannot be read."""
    try:
        return records.peek_record(model.url).metadata.get("digest")
    except RFFDistError:
        return None
