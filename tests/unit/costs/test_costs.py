"""Laws that the simulation of a pass keeps."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation import Job, simulate


@settings(deadline=None, max_examples=60)
@given(
    n_blocks=st.integers(1, 200),
    n_workers=st.integers(1, 30),
    deaths=st.sampled_from([0.0, 20.0, 100.0]),
    spread=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 10),
)
def test_every_block_is_in_the_result_once_whoever_dies(
    n_blocks, n_workers, deaths, spread, seed
):
    job = Job(
        n_blocks=n_blocks,
        block_seconds=1.0,
        n_workers=n_workers,
        task_seconds=0.01,
        merge_seconds=0.5,
        run_seconds=5.0,
        spread=spread,
        slow_share=0.1,
        deaths_per_hour=deaths / max(1, n_blocks // n_workers // 10),
    )
    found = simulate(job, seed=seed)
    assert np.array_equal(found.counts, np.ones(n_blocks, int))
    assert found.efficiency <= 1.0 + 3 * spread
    assert (found.n_deaths > 0) >= (found.n_again > 0)
