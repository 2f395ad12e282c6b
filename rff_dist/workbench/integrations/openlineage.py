"""Lineage events of jobs by OpenLineage: what each job read and wrote, with versions,
columns and counts.

In go a job's events and the places that it reads and writes; out go OpenLineage's
events, whose facets are facts about a run, a job or a dataset. They are sent if the
environment configures a transport: OPENLINEAGE_URL, OPENLINEAGE_CONFIG or
OPENLINEAGE__TRANSPORT__…. A separate thread sends them, so that a server that does not
answer fails no job.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any

from rff_dist import errors
from rff_dist.data import sources
from rff_dist.engines import events
from rff_dist.models import versions
from rff_dist.recipes import encoders, recipes
from rff_dist.storage import datasets, locations, records
from rff_dist.text import redact, without_secrets
from rff_dist.typing import Summary
from rff_dist.workbench.integrations import runs

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

logger = logging.getLogger(__name__)

_VARIABLES = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT")
RUNNING_S = 60.0  # seconds between two RUNNING events of a job
SENT_S = 5.0  # seconds that a job waits at its end for its events to be sent
_MOST_COLUMNS = 1000  # listed in an event


def is_on() -> bool:
    """Return whether the environment asks for lineage events."""
    disabled = os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true"
    return not disabled and any(name.startswith(_VARIABLES) for name in os.environ)


class LineageEvents:
    """An observer that sends the events of one run of a job."""

    def __init__(
        self,
        job: str,
        find_places: runs.FindPlaces,
        parent: runs.ParentRun | None,
    ) -> None:
        from openlineage.client.uuid import generate_new_uuid

        self._job = job
        self._find_places = find_places
        self._parent = parent
        self._run = str(generate_new_uuid())
        self._reported_at = -math.inf
        self._inputs = list[Any]()
        self._waiting: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._sender = threading.Thread(
            target=self._send, name="rff-dist-lineage", daemon=True
        )
        self._sender.start()

    def _send(self) -> None:
        client: OpenLineageClient | None = None
        warned = False
        for make in iter(self._waiting.get, None):
            try:
                event = make()
                if client is None:
                    from openlineage.client import OpenLineageClient

                    client = OpenLineageClient()
                client.emit(event)
            except Exception as error:
                if not warned:
                    why = without_secrets(f"{type(error).__name__}: {error}")
                    logger.warning(
                        "lineage events of %s cannot be sent: %s", self._job, why
                    )
                warned = True
        if client is not None:
            client.close(SENT_S)

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.JobStarted(label=self._job):
                self._report("START")
            case events.StepStarted():
                # a sign that the job is still running
                if time.monotonic() - self._reported_at > RUNNING_S:
                    self._reported_at = time.monotonic()
                    self._report("RUNNING")
            case events.JobFinished(label=self._job):
                self._report("COMPLETE")
                self._end()
            case events.JobFailed(label=self._job, error=error):
                # failed, or stopped from outside
                state = "FAIL" if isinstance(error, Exception) else "ABORT"
                self._report(state, error)
                self._end()

    def _end(self) -> None:
        """Wait until all events are sent, but not for long."""
        self._waiting.put(None)
        self._sender.join(SENT_S)
        if self._sender.is_alive():
            logger.warning(
                "lineage events of %s were not all sent within %g s",
                self._job,
                SENT_S,
            )

    def _report(self, state: str, error: BaseException | None = None) -> None:
        when = datetime.now(UTC).isoformat()
        # the other thread makes the event, since it opens what the job reads and writes
        self._waiting.put(lambda: self._event(state, when, error))

    def _event(self, state: str, when: str, error: BaseException | None) -> Any:
        from openlineage.client import event_v2
        from openlineage.client.facet_v2 import (
            error_message_run,
            job_type_job,
            parent_run,
            processing_engine_run,
        )

        run: dict[str, Any] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                version_of("rff_dist"), "rff_dist"
            )
        }
        if (parent := self._parent) is not None:
            run["parent"] = parent_run.ParentRunFacet(
                parent_run.Run(parent.id),
                parent_run.Job(parent.namespace, parent.name),
            )
        if error is not None:
            message = without_secrets(
                f"{errors.kind_of(error)}: {type(error).__name__}: {error}"
            )
            run["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                message, "PYTHON"
            )
        kind = job_type_job.JobTypeJobFacet("BATCH", "RFF_DIST", "JOB")
        namespace = os.environ.get("OPENLINEAGE_NAMESPACE", "rff_dist")
        reads, writes = self._find_places()
        # only the first event, START, describes them: a job may replace what it reads
        if not self._inputs:
            self._inputs = [
                _place(url, open_arguments, is_output=False)
                for url, open_arguments in reads.items()
            ]
        # Only a finished job's output can be opened. {} stands for the default names of
        # arrays, None for no opening.
        output_arguments: Summary | None = {} if state == "COMPLETE" else None
        return event_v2.RunEvent(
            eventTime=when,
            producer=f"urn:rff-dist:{version_of('rff_dist')}",
            run=event_v2.Run(self._run, run),
            job=event_v2.Job(namespace, self._job, {"jobType": kind}),
            eventType=event_v2.RunState(state),
            inputs=self._inputs,
            outputs=[_place(url, output_arguments, is_output=True) for url in writes],
        )


def name_of(url: str) -> tuple[str, str]:
    """Return the namespace and the name of a place by OpenLineage's rules, without
    credentials.

    >>> name_of("s3://bucket/models/main"), name_of("/data/prices.zarr")
    (('s3://bucket', 'models/main'), ('file', '/data/prices.zarr'))
    """
    location = locations.parse_location(url)
    if location.is_local:
        return "file", location.path
    bucket, _, path = redact(location.url).partition("://")[2].partition("/")
    return f"{location.scheme}://{bucket}", path or "/"


def _place(url: str, open_arguments: Summary | None, *, is_output: bool) -> Any:
    """Return an input or output dataset of an event.

    `open_arguments`: the arguments of `open_dataset`; None if nothing is there yet.
    """
    from openlineage.client import event_v2

    own: dict[str, Any] = {}
    facets: dict[str, Any] = {}
    if open_arguments is not None:
        own, facets = _facets_of(url, open_arguments, is_output=is_output)
    dataset = event_v2.OutputDataset if is_output else event_v2.InputDataset
    return dataset(*name_of(url), own, facets=facets)


def _facets_of(
    url: str, open_arguments: Summary, *, is_output: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the facets that a place has as an input or output, and its other facets.

    They describe its present state. `open_arguments`: the arguments of `open_dataset`.
    """
    with contextlib.suppress(errors.RFFDistError):
        return {}, _facets_of_model(url)
    with contextlib.suppress(errors.RFFDistError):
        return _facets_of_data(_open(url, open_arguments), is_output=is_output)
    return {}, {}  # the place holds a table, or nothing yet


def _open(url: str, open_arguments: Summary) -> Any:
    """Open a dataset for its metadata; without y if that holds labels."""
    try:
        return datasets.open_dataset(url, **open_arguments)
    except errors.DataError:  # targets may not be text, as labels are
        return datasets.open_dataset(url, **open_arguments | {"y": None})


def _facets_of_model(url: str) -> dict[str, Any]:
    from openlineage.client import facet_v2

    version = versions.RegisteredModel(url).current()
    stored = records.peek_record(url if version is None else version.url).metadata
    digest = str(stored.get("digest"))
    number = None if version is None else version.number
    parent = None if version is None else version.parent
    card = stored.get("card", {})
    facts: Summary = {"digest": digest, "parent_version": parent}
    facts |= {name: card.get(name) for name in ("n_samples", "data_version")}
    metrics = card.get("metrics") or {}
    facts |= dict(
        _numbers({key: value for key, value in metrics.items() if key != "groups"})
    )
    tags = facet_v2.tags_dataset
    fields = [
        tags.TagsDatasetFacetFields(key, str(value), "rff_dist")
        for key, value in facts.items()
        if value is not None
    ]
    return {
        "datasetType": facet_v2.dataset_type_dataset.DatasetTypeDatasetFacet("MODEL"),
        "version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet(
            str(number or digest)
        ),
        "tags": tags.TagsDatasetFacet(fields),
    }


def _numbers(metrics: Any, name: str = "metrics") -> Iterator[tuple[str, float]]:
    """Yield the numbers among metrics, by their names."""
    if isinstance(metrics, dict):
        for key, value in metrics.items():
            yield from _numbers(value, f"{name}.{key}")
    elif isinstance(metrics, list) and len(metrics) == 1:  # a single target
        yield from _numbers(metrics[0], name)
    elif isinstance(metrics, int | float):
        yield name, metrics


def _facets_of_data(
    dataset: datasets.ZarrDataset, *, is_output: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    from openlineage.client.facet_v2 import (
        dataset_version_dataset,
        input_statistics_input_dataset,
        output_statistics_output_dataset,
        schema_dataset,
    )

    recipe = recipes.recipe_of(dataset.attributes)
    names = dataset.feature_names or [f"X{i}" for i in range(dataset.n_features)]
    targets = dataset.target_names or [f"y{i}" for i in range(dataset.n_targets)]
    types = dict.fromkeys(names, str(dataset.dtype)) | dict.fromkeys(targets, "float64")
    columns = [
        schema_dataset.SchemaDatasetFacetFields(*column)
        for column in list(types.items())[:_MOST_COLUMNS]
    ]
    version = dataset.version or dataset.fingerprint()
    facets: dict[str, Any] = {
        "version": dataset_version_dataset.DatasetVersionDatasetFacet(version),
        "schema": schema_dataset.SchemaDatasetFacet(columns),
    }
    if recipe is not None and (files := sources.known_sources(dataset.attributes)):
        facets["columnLineage"] = _column_lineage(recipe, str(files[-1].get("name")))
    n_bytes = dataset.n_samples * (
        dataset.n_features * dataset.dtype.itemsize + 8 * dataset.n_targets
    )
    if is_output:
        size_written = (
            output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                dataset.n_samples, n_bytes
            )
        )
        return {"outputStatistics": size_written}, facets
    size_read = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
        dataset.n_samples, n_bytes
    )
    return {"inputStatistics": size_read}, facets


def _column_lineage(recipe: recipes.Recipe, table: str) -> Any:
    """Return the facet that says from which columns of a table each column of X is
    made, and how.
    """
    from openlineage.client import facet_v2

    lineage = facet_v2.column_lineage_dataset
    # a query's name is a digest, and so is the name of a file whose rows were forgotten
    is_place = "://" in table or table.startswith("/")
    place = name_of(table) if is_place else ("rff_dist", table)
    columns: dict[str, Any] = {}
    for encoder in recipe.columns[:_MOST_COLUMNS]:
        kind = "IDENTITY" if isinstance(encoder, encoders.Number) else "TRANSFORMATION"
        how = lineage.Transformation("DIRECT", kind, encoder.words)
        inputs = [lineage.InputField(*place, column, [how]) for column in encoder.reads]
        columns |= {
            name: lineage.Fields(inputs) for name in encoder.names[:_MOST_COLUMNS]
        }
    return lineage.ColumnLineageDatasetFacet(columns)
