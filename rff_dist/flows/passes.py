"""Bars on Prefect's page of a run: artifacts that grow as blocks of rows are done.

In go an engine's events, out come progress artifacts. One for each pass would cost more
requests than most passes take time, so only long passes have a bar.
"""

import time
from typing import cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from rff_dist.engines import events
from rff_dist.flows import names

#: Seconds until a pass first shows its progress on the server.
SHOW_AFTER_S = 2.0
#: Seconds between later updates.
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
                wait = SHOW_AFTER_S if self._artifact is None else SHOW_EVERY_S
                if now - self._shown_at >= wait and self._n_done < self._n_samples:
                    self._show(event.label, now)
            case events.PassFinished() | events.PassFailed():
                if self._artifact is not None:
                    self._show(event.label, now)

    def _show(self, label: str, now: float) -> None:
        self._shown_at = now
        # the share of rows, since blocks differ in length
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
        # an awaitable only within an event loop, and there is none here
        self._artifact = cast("UUID", artifact)
