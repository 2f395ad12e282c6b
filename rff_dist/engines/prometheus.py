"""Counters of the work of passes, for Prometheus.

They live in the scheduler's process and appear on its page `/metrics`, next to Dask's own. All have the label
`pass`, the name of the pass.

=========================  ============================================================================
rff_dist_blocks_total      blocks that were finished, each once however often it was run
rff_dist_rows_total        rows of these blocks
rff_dist_bytes_total       bytes of these rows, as the data hold them uncompressed
rff_dist_seconds_total     seconds that their functions took where they ran
rff_dist_retries_total     times that a block was given out again, because its worker or its result was lost
=========================  ============================================================================
"""

from collections import OrderedDict
from functools import cache

from rff_dist.lazy import require

# Passes whose finished blocks are remembered, so that none counts twice.
_N_PASSES = 64
_COUNTERS = {
    "blocks": "Blocks that were finished",
    "rows": "Rows of the blocks that were finished",
    "bytes": "Bytes of these rows, uncompressed",
    "seconds": "Seconds that the blocks' functions took",
    "retries": "Times that a block was begun again",
}


class PassCounters:
    """Count blocks in this process's Prometheus registry; `pass_counters` returns the only instance.

    Raises MissingDependencyError if prometheus_client is not installed.
    """

    def __init__(self) -> None:
        why, where = "metrics need the package prometheus_client", ", where the scheduler runs"
        Counter = require("prometheus_client", why, "metrics", where).Counter
        self._counters = {
            name: Counter(f"rff_dist_{name}", text, ["pass"]) for name, text in _COUNTERS.items()
        }
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
        # Without retries=0 a pass without retries would have no series, and not one of 0.
        self.count(label, blocks=1, rows=n_samples, bytes=n_bytes, seconds=seconds, retries=0)

    def count(self, label: str, **numbers: float) -> None:
        """Add to the counters of a pass, by their names."""
        for name, number in numbers.items():
            self._counters[name].labels(label).inc(number)


#: Returns this process's counters: Prometheus has one registry per process.
pass_counters = cache(PassCounters)
