"""Lineage events of jobs by OpenLineage: what each job read and wrote, with versions, columns and counts.

They are sent if the environment configures a transport: OPENLINEAGE_URL, OPENLINEAGE_CONFIG or
OPENLINEAGE__TRANSPORT__…. A thread of its own sends them, so that a server that does not answer fails no job.
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

from rff_dist import errors, fields
from rff_dist.data import sources
from rff_dist.models import versions
from rff_dist.recipes import recipes
from rff_dist.storage import datasets, locations, records
from rff_dist.text import redact, without_secrets
from rff_dist.typing import Summary, frozen
from rff_dist.workbench.jobs import places

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

logger = logging.getLogger(__name__)

_VARIABLES = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT")
#: Seconds between two RUNNING events of a job, and those that it waits in the end for its events to be sent.
RUNNING_S, SENT_S = 60.0, 5.0
_MOST_COLUMNS = 1000  # that an event lists


@frozen
class Parent:
    """A run of an orchestrator that a job belongs to."""

    namespace: str
    name: str
    id: str


def is_on() -> bool:
    """Return whether the environment asks for lineage events."""
    disabled = os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true"
    return not disabled and any(name.startswith(_VARIABLES) for name in os.environ)


def events_of(name: str, spec: Any, parent: Parent | None) -> Events | None:
    """Begin the events of a run of a job, see `Events`; None if none are asked for."""
    if not is_on():
        return None
    try:
        return Events(name, spec, parent)
    except ImportError as error:
        logger.warning("no lineage events are sent: %s; pip install rff_dist[openlineage]", error)
        return None


class Events:
    """Send the events of one run of a job.

    `name`: of the job.
    `spec`: its options, which name what it reads and writes.
    `parent`: the run that it belongs to; None if there is none.
    """

    def __init__(self, name: str, spec: Any, parent: Parent | None) -> None:
        from openlineage.client.uuid import generate_new_uuid

        self._name, self._spec, self._parent = name, spec, parent
        self._run = str(generate_new_uuid())
        self._told, self._inputs = -math.inf, list[Any]()
        self._waiting: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send, name="rff-dist-lineage", daemon=True)
        self._sender.start()
        self.tell("START")

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
                    logger.warning("lineage events of %s cannot be sent: %s", self._name, why)
                warned = True
        if client is not None:
            client.close(SENT_S)

    def running(self) -> None:
        """Tell that the job is at work, at most every `RUNNING_S`."""
        if time.monotonic() - self._told > RUNNING_S:
            self._told = time.monotonic()
            self.tell("RUNNING")

    def end(self, error: BaseException | None = None) -> None:
        """Tell how the job ended: done, failed, or stopped from outside."""
        self.tell("COMPLETE" if error is None else "FAIL" if isinstance(error, Exception) else "ABORT", error)
        self._waiting.put(None)
        self._sender.join(SENT_S)
        if self._sender.is_alive():
            logger.warning("lineage events of %s were not all sent within %g s", self._name, SENT_S)

    def tell(self, state: str, error: BaseException | None = None) -> None:
        """Send an event."""
        when = datetime.now(UTC).isoformat()
        self._waiting.put(lambda: self._event(state, when, error))

    def _event(self, state: str, when: str, error: BaseException | None) -> Any:
        from openlineage.client import event_v2, facet_v2

        engine = facet_v2.processing_engine_run.ProcessingEngineRunFacet
        run: dict[str, Any] = {"processing_engine": engine(version_of("rff_dist"), "rff_dist")}
        if self._parent is not None:
            of = facet_v2.parent_run
            job = of.Job(self._parent.namespace, self._parent.name)
            run["parent"] = of.ParentRunFacet(of.Run(self._parent.id), job)
        if error is not None:
            message = without_secrets(f"{errors.kind_of(error)}: {type(error).__name__}: {error}")
            run["errorMessage"] = facet_v2.error_message_run.ErrorMessageRunFacet(message, "PYTHON")
        kind = facet_v2.job_type_job.JobTypeJobFacet("BATCH", "RFF_DIST", "JOB")
        namespace = os.environ.get("OPENLINEAGE_NAMESPACE", "rff_dist")
        read, written = self._places()
        if not self._inputs:  # as they are at the start: a job may replace what it read
            self._inputs = [_place(event_v2.InputDataset, url, names) for url, names in read.items()]
        return event_v2.RunEvent(
            eventTime=when,
            producer=f"urn:rff-dist:{version_of('rff_dist')}",
            run=event_v2.Run(self._run, run),
            job=event_v2.Job(namespace, self._name, {"jobType": kind}),
            eventType=event_v2.RunState(state),
            inputs=self._inputs,
            outputs=[
                _place(event_v2.OutputDataset, url, {} if state == "COMPLETE" else None) for url in written
            ],
        )

    def _places(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Return the URLs of what the job reads, with names of arrays, and of what it writes."""
        read: dict[str, dict[str, Any]] = {}
        written: list[str] = []
        source, holdout, test = (getattr(self._spec, name, None) for name in ("source", "holdout", "test"))
        for name, declared, value in fields.values(self._spec):
            urls = [url for url in (value if isinstance(value, list) else [value]) if isinstance(url, str)]
            if declared.writes or declared.place == "changes":
                written += urls
            if name == "data" and holdout is not None and test is None:  # of split and ingest
                parts = ("test",) if declared.writes else ("train", "test")
                written += [places.part_url(url, part) for url in urls for part in parts]
            if declared.place in ("reads", "changes"):
                names = source.names() if name == "data" and source is not None else {}
                read |= dict.fromkeys(urls, names)
        return read, written


def name_of(url: str) -> tuple[str, str]:
    """Return the namespace and the name of a place, by OpenLineage's rules; no credentials are in them.

    >>> name_of("s3://bucket/models/main"), name_of("/data/prices.zarr")
    (('s3://bucket', 'models/main'), ('file', '/data/prices.zarr'))
    """
    location = locations.parse_location(url)
    if location.is_local:
        return "file", location.path
    bucket, _, path = redact(location.url).partition("://")[2].partition("/")
    return f"{location.scheme}://{bucket}", path or "/"


def _place(kind: Any, url: str, names: Summary | None) -> Any:
    """Return a place as an input or an output; `names`: of its arrays, None if it is not there yet."""
    is_output = kind.__name__ == "OutputDataset"
    own, facets = ({}, {}) if names is None else _facets_of(url, names, is_output=is_output)
    return kind(*name_of(url), own, facets=facets)


def _facets_of(url: str, names: dict[str, Any], *, is_output: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the facets of a place as it is now, and those that it has as an input or as an output.

    `names`: of arrays, if it is a dataset.
    """
    with contextlib.suppress(errors.RFFDistError):
        return {}, _facets_of_model(url)
    with contextlib.suppress(errors.RFFDistError):
        return _facets_of_data(_open(url, names), is_output=is_output)
    return {}, {}  # a table, or nothing yet


def _open(url: str, names: Summary) -> Any:
    """Open a dataset for its metadata, without targets if these are labels."""
    try:
        return datasets.open_dataset(url, **names)
    except errors.DataError:
        return datasets.open_dataset(url, **names | {"y": None})


def _facets_of_model(url: str) -> dict[str, Any]:
    from openlineage.client import facet_v2

    version = versions.RegisteredModel(url).current()
    stored = records.peek_record(url if version is None else version.url).metadata
    digest = str(stored.get("digest"))
    number, parent = (None, None) if version is None else (version.number, version.parent)
    card = stored.get("card", {})
    told: Summary = {"digest": digest, "parent_version": parent}
    told |= {name: card.get(name) for name in ("n_samples", "data_version")}
    metrics = card.get("metrics") or {}
    told |= dict(_numbers({key: value for key, value in metrics.items() if key != "groups"}))
    known = [(key, str(value)) for key, value in told.items() if value is not None]
    tags = facet_v2.tags_dataset
    made = [tags.TagsDatasetFacetFields(key, value, "rff_dist") for key, value in known]
    return {
        "datasetType": facet_v2.dataset_type_dataset.DatasetTypeDatasetFacet("MODEL"),
        "version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet(str(number or digest)),
        "tags": tags.TagsDatasetFacet(made),
    }


def _numbers(metrics: Any, name: str = "metrics") -> Iterator[tuple[str, float]]:
    """Yield the numbers among metrics, by their names."""
    if isinstance(metrics, dict):
        for key, value in metrics.items():
            yield from _numbers(value, f"{name}.{key}")
    elif isinstance(metrics, list) and len(metrics) == 1:  # of one target
        yield from _numbers(metrics[0], name)
    elif isinstance(metrics, int | float):
        yield name, metrics


def _facets_of_data(
    dataset: datasets.ZarrDataset, *, is_output: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    from openlineage.client import facet_v2

    recipe = recipes.recipe_of(dataset.attributes)
    names = dataset.feature_names or [f"X{i}" for i in range(dataset.n_features)]
    targets = dataset.target_names or [f"y{i}" for i in range(dataset.n_targets)]
    types = dict.fromkeys(names, str(dataset.dtype)) | dict.fromkeys(targets, "float64")
    schema, version = facet_v2.schema_dataset, facet_v2.dataset_version_dataset
    columns = [schema.SchemaDatasetFacetFields(*one) for one in list(types.items())[:_MOST_COLUMNS]]
    version_of_it = dataset.version or dataset.fingerprint()
    made: dict[str, Any] = {
        "version": version.DatasetVersionDatasetFacet(version_of_it),
        "schema": schema.SchemaDatasetFacet(columns),
    }
    if recipe is not None and (files := sources.known_sources(dataset.attributes)):
        made["columnLineage"] = _column_lineage(recipe, str(files[-1].get("name")))
    quality: Any = facet_v2.data_quality_metrics_input_dataset
    if is_output:
        quality = facet_v2.data_quality_metrics_dataset
    # values that were missing in the table that the recipe was learned from
    encoders = [] if recipe is None else recipe.columns[:_MOST_COLUMNS]
    numbers = [one for one in encoders if isinstance(one, recipes.Number)]
    metrics = {one.column: quality.ColumnMetrics(nullCount=one.n_missing) for one in numbers}
    n_bytes = dataset.n_samples * (dataset.n_features * dataset.dtype.itemsize + 8 * dataset.n_targets)
    if is_output:
        made["dataQualityMetrics"] = quality.DataQualityMetricsDatasetFacet(metrics, dataset.n_samples)
        counted = facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
        return {"outputStatistics": counted(dataset.n_samples, n_bytes)}, made
    counts = quality.DataQualityMetricsInputDatasetFacet(metrics, dataset.n_samples, n_bytes)
    return {"dataQualityMetrics": counts}, made


def _column_lineage(recipe: recipes.Recipe, table: str) -> Any:
    """Return of which columns of a table the columns of X are made, and how."""
    from openlineage.client import facet_v2

    lineage = facet_v2.column_lineage_dataset
    is_place = "://" in table or table.startswith("/")  # else a query, or a name that was forgotten
    place = name_of(table) if is_place else ("rff_dist", table)
    made: dict[str, Any] = {}
    for encoder in recipe.columns[:_MOST_COLUMNS]:
        kind = "IDENTITY" if isinstance(encoder, recipes.Number) else "TRANSFORMATION"
        how = lineage.Transformation("DIRECT", kind, encoder.words)
        read = [lineage.InputField(*place, column, [how]) for column in recipes.reads(encoder)]
        made |= {name: lineage.Fields(read) for name in encoder.names[:_MOST_COLUMNS]}
    return lineage.ColumnLineageDatasetFacet(made)
