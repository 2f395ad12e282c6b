"""Jobs that go on where they were stopped: the sums of their passes are kept until the result is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rff_dist.engines.protocol import Engine
from rff_dist.storage.ledger import ledger_place, open_ledger
from rff_dist.storage.locations import Location
from rff_dist.text import human_bytes, redact


@contextmanager
def resumable(engine: Engine, output: Location) -> Iterator[None]:
    """Let an engine keep the sums of passes beside a job's output, and use those that a stopped job left.

    They are removed when the job is done. They stay when it ends with an error, or its process dies, and the
    error then says so. The job must hold the lease of its output.
    """
    place = ledger_place(output)
    if place is None:
        yield
        return
    ledger = open_ledger(place)
    try:
        with engine.keeping(ledger):
            yield
    except GeneratorExit:  # its steps were dropped, where an event loop may run and nobody hears of it
        raise
    except BaseException as error:
        ledger.leave()
        if not ledger.is_empty():
            n_bytes = ledger.n_bytes()
            size = "" if n_bytes is None else f" ({human_bytes(n_bytes)})"
            error.add_note(
                f"what it has done is kept in {redact(place.url)}{size}: the same job goes on from there"
            )
        raise
    ledger.drop()
