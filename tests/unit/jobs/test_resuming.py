"""Jobs whose steps are dropped before their end."""

from zarr.core.sync import sync

from rff_dist import SerialEngine
from rff_dist.storage.locations import parse_location
from rff_dist.workbench.jobs.steps import resumable


def test_steps_that_are_dropped_in_the_loop_of_storage_raise_nothing():
    def steps():
        with resumable(SerialEngine(), parse_location("model")):
            yield 1

    async def drop():
        left = steps()
        assert next(left) == 1
        left.close()

    sync(drop())  # where the collector may drop them
