"""Counters of the work of passes, for Prometheus.

They live in the scheduler's process and appear on its own page `/metrics`, beside Dask's. All have the label
`pass`, the pass's name.

=========================  ============================================================================
rff_dist_blocks_total      blocks that were finished, each once however often it was run
rff_dist_rows_total        rows of these blocks
rff_dist_bytes_total       bytes of these rows, as the data hold them uncompressed
rff_dist_seconds_total     seconds that their functions took where they ran
rff_dist_retries_total     times that a block was given out again, because its worker or its result was lost
=========================  ============================================================================
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cache
from typing import Any

from rff_dist.errors import MissingDependencyError

# Passes whose finished blocks are remembered, so that none counts twice.
_N_PASSES = 64


class PassCounters:
    """Count blocks in this process's Prometheus registry; get the one there is from `pass_counters`.

    Raises MissingDependencyError if prometheus_client is not installed.
    """

    def __init__(self) -> None:
        try:
            from prometheus_client import Counter
        except ImportError as error:
            raise MissingDependencyError(
                "metrics need the package prometheus_client, which is not installed: pip install "
                "rff_dist[metrics], where the scheduler runs"
            ) from error

        def counter(name: str, documentation: str) -> Any:
            return Counter(f"rff_dist_{name}", documentation, ["pass"])

        self._blocks = counter("blocks", "Blocks that were finished")
        self._rows = counter("rows", "Rows of the blocks that were finished")
        self._bytes = counter("bytes", "Bytes of these rows, uncompressed")
        self._seconds = counter("seconds", "Seconds that the blocks' functions took")
        self._retries = counter("retries", "Times that a block was begun again")
        self._done: OrderedDict[str, bytearray] = OrderedDict()

    def count_block(
        self, label: str, number: str, index: int, *, n_samples: int, n_bytes: int, seconds: float
    ) -> None:
        """Count a block that was finished, unless this one of this pass was counted before.

        `label`, `number`: the pass's name, and what tells it apart from all others.
        `n_samples`, `n_bytes`: its rows, and their bytes.
        `seconds`: how long its function took.
        """
        done = self._done.setdefault(number, bytearray())
        self._done.move_to_end(number)
        while len(self._done) > _N_PASSES:
            self._done.popitem(last=False)
        done.extend(bytes(max(0, index + 1 - len(done))))
        if done[index]:
            return
        done[index] = 1
        self._blocks.labels(label).inc()
        self._rows.labels(label).inc(n_samples)
        self._bytes.labels(label).inc(n_bytes)
        self._seconds.labels(label).inc(seconds)
        # A series that is not there cannot be told from one that is 0.
        self._retries.labels(label).inc(0)

    def count_retries(self, label: str, n_blocks: int) -> None:
        """Count that so many blocks were given out again."""
        self._retries.labels(label).inc(n_blocks)


@cache
def pass_counters() -> PassCounters:
    """Return this process's counters; Prometheus has one registry for each process."""
    return PassCounters()
