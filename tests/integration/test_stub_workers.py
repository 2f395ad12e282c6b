"""A real scheduler with workers that only say that tasks are done, and the benchmark
that is made of them.
"""

import io
import re

import pytest
from rich.console import Console

from benchmarks import a_thousand_workers_are_busy, stub_workers
from rff_dist import DaskEngine
from rff_dist.data.blocks import cut_blocks
from rff_dist.engines.events import BlockDone


@pytest.mark.slow
@pytest.mark.distributed
def test_each_block_is_a_task_that_a_stub_says_is_done(tmp_path):
    done = []
    blocks = cut_blocks(50, 1, rows_per_block=1)
    with (
        stub_workers.running(tmp_path, 3) as (address, _),
        DaskEngine(address) as engine,
    ):
        a_thousand_workers_are_busy.wait_for(engine, 3)
        engine.observers = (done.append,)
        assert engine.map_reduce(abs, blocks, 0.01, combine=max) is None
        assert engine.n_workers == 3
    found = [event for event in done if isinstance(event, BlockDone)]
    assert sorted(event.block.index for event in found) == list(range(50))
    assert len({event.worker for event in found}) == 3


@pytest.mark.slow
@pytest.mark.distributed
def test_the_simulation_is_drawn_beside_what_was_measured(tmp_path):
    said = io.StringIO()
    a_thousand_workers_are_busy.run(
        Console(file=said, width=140),
        tmp_path,
        processes=(1, 2),
        n_blocks=4,
        stubs=(4, 40),
        most=4,
    )
    assert (tmp_path / "workers.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"4 stubs, 40 blocks: \d+\.\d\d ms a task where", said.getvalue())
    assert "10,000,000 rows, D = 4,096" in " ".join(said.getvalue().split())
