"""Counters of the work of passes, for Prometheus.

They live in the scheduler's process and appear on its page `/metrics`, beside Dask's own. All have the label
`pass`, the name of the pass.

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
    """Count blocks in this process's Prometheus registry; `pass_counters` returns the only instance.

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
        """Count a finished block, unless it was counted before.

        `label`, `number`: the name of the pass, and a text that is unique to it.
        `index`: position of the block in the pass.
        `n_samples`, `n_bytes`: the block's rows, and their bytes.
        `seconds`: how long the block's function took.
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
        # Without this a pass without retries would have no series, and not one of 0.
        self._retries.labels(label).inc(0)

    def count_retries(self, label: str, n_blocks: int) -> None:
        """Count blocks that were given out again."""
        self._retries.labels(label).inc(n_blocks)


@cache
def pass_counters() -> PassCounters:
    """Return this process's counters: Prometheus has one registry per process."""
    return PassCounters()
