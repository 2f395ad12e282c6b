"""The observers of a job's events that the environment asks for, such as OpenLineage.

The log and the display hear the events in any case. Spans of OpenTelemetry are made by
`engines/tracing.py`, since workers and the library send them too.
"""

import logging

from rff_dist.engines.events import Observer
from rff_dist.workbench.integrations import runs

logger = logging.getLogger(__name__)


def observers_of(job: str, find_places: runs.FindPlaces) -> list[Observer]:
    """Return the observers that the environment configures, for one run of a job."""
    from rff_dist.workbench.integrations import openlineage

    if not openlineage.is_on():
        return []
    try:
        return [openlineage.LineageEvents(job, find_places, runs.parent.get())]
    except ImportError as error:
        logger.warning(
            "no lineage events are sent: %s; pip install rff_dist[openlineage]", error
        )
        return []
