"""Bars on Prefect's page of a run: artifacts that grow as blocks of rows are done."""

import time
from typing import cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from rff_dist.engines import events
from rff_dist.flows import names

#: Seconds after which a pass first shows its progress on the server, and between later
#: updates.
SHOW_AFTER_S = 2.0
SHOW_EVERY_S = 5.0


class PassProgress:
    """An observer of an engine that shows the progress of long passes as bars."""

    def __init__(self) -> None:
        self._artifact: UUID | None = None
        self._n_samples = 0
        self._n_done = 0
        self._shown_at = 0.0

    def __call__(self, event: events.Event) -> None:
        now = time.monotonic()
        match event:
            case events.PassStarted():
                self._artifact = None
                self._n_samples = event.n_samples
                self._n_done = 0
                self._shown_at = now
            case events.BlockDone(block=block):
                self._n_done += block.n_samples
                # Short passes show nothing: each artifact is a request, and most passes
                # take less than it.
                wait = SHOW_AFTER_S if self._artifact is None else SHOW_EVERY_S
                if now - self._shown_at >= wait and self._n_done < self._n_samples:
                    self._show(event.label, now)
            case events.PassFinished() | events.PassFailed():
                if self._artifact is not None:
                    self._show(event.label, now)

    def _show(self, label: str, now: float) -> None:
        self._shown_at = now
        # of rows, because blocks differ in length
        percent = round(100 * self._n_done / self._n_samples, 1)
        if self._artifact is not None:
            update_progress_artifact(self._artifact, percent)
            return
        what = "".join(c if c.isalnum() else "-" for c in label.lower())
        artifact = create_progress_artifact(
            percent,
            key=names.key(f"{what}-progress"),
            description=f"{label}: {self._n_samples:,} rows",
        )
        # an awaitable in an event loop only
        self._artifact = cast("UUID", artifact)
