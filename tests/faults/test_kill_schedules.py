"""Jobs whose processes are killed and frozen at random; `make soak` runs hundreds of
them.
"""

import threading
import time

import pytest

from rff_dist import DaskEngine
from tools import kill_schedules


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1, 1, 1], {}),
        ([1, 0, 1], {1: 0}),
        ([1, 2, 1], {1: 2}),
        ([0, 1, 3], {0: 0, 2: 3}),
    ],
)
def test_the_sum_names_blocks_that_were_lost_or_counted_twice(counts, expected):
    total = sum(count * kill_schedules.BASE**i for i, count in enumerate(counts))
    assert kill_schedules.miscounted(total, 3) == expected


def test_a_schedule_is_drawn_alike_again_and_has_fewer_events_than_a_block_may_lose_workers():
    drawn = [kill_schedules.draw_schedule(seed) for seed in range(200)]
    assert drawn == [kill_schedules.draw_schedule(seed) for seed in range(200)]
    assert {len(events) for events in drawn} == {1, 2, 3}
    assert {kill_schedules.kind_of(seed) for seed in range(3)} == set(
        kill_schedules.KINDS
    )
    assert {event.n_workers for events in drawn for event in events} == {1, 2, 3}
    assert (
        sum(event.frozen == float("inf") for events in drawn for event in events) == 10
    )


@pytest.mark.distributed
@pytest.mark.faults("F3")
def test_a_worker_that_is_killed_again_while_it_starts_is_started_again():
    over = threading.Event()
    killed = set()

    def kill_twice():
        while len(killed) < 3 and not over.is_set():
            for process in kill_schedules.worker_processes():
                if len(killed) < 3 and process.pid not in killed:
                    killed.add(process.pid)
                    process.kill()
            time.sleep(0.02)

    with DaskEngine(n_workers=1, threads_per_worker=1) as engine:
        killer = threading.Thread(target=kill_twice)
        killer.start()
        try:
            assert kill_schedules.sum_up(engine) is None
        finally:
            over.set()
            killer.join()
    assert len(killed) == 3


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.faults("F3", "F7")
def test_whatever_happens_to_workers_each_block_counts_once_and_fits_have_the_same_bits():
    assert kill_schedules.run(5, only="workers") == {"ok": 5}


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.faults("F4", "F5")
@pytest.mark.parametrize("kind", ["client", "scheduler"])
def test_whenever_a_client_or_its_scheduler_dies_the_same_command_goes_on_to_the_same_bits(
    kind,
):
    assert kill_schedules.run(2, only=kind) == {"ok": 2}
