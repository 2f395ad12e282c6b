"""Whatever request to a store fails, readers see the old or the new, and the same work
then succeeds.
"""

import pytest

from rff_dist.errors import StorageError
from tests.faults.works import WORKS, moments

FAST = {"predictions", "rows appended", "model overwritten"}
EVERY = [
    pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
    for name, work in WORKS.items()
    if work.remote
]
EVER = 10**9
MOST = 5  # requests of a work that are tried, each with all that it needs before


@pytest.mark.s3
# Zarr writes several chunks at once, and forgets those that were not begun when one
# fails.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <coroutine")
@pytest.mark.faults("F12")
@pytest.mark.parametrize("times", [1, EVER], ids=["one", "all later ones"])
@pytest.mark.parametrize("name", EVERY)
def test_whatever_request_is_refused_the_same_work_succeeds_afterwards(
    name, times, server
):
    work = WORKS[name]
    begin = f"{name}-{times}/begin"
    whole = server.url(f"{name}-{times}/whole")
    work.prepare(server.url(begin))
    server.copy(begin, f"{name}-{times}/whole")
    before = work.state(whole)
    server.requests()
    work.run(whole)
    n_requests = len(server.requests())
    after = work.state(whole)
    for n in moments(n_requests, most=MOST):
        place = server.url(f"{name}-{times}/{n}")
        server.copy(begin, f"{name}-{times}/{n}")
        server.fail(times, status=403, after=n)
        failed = False
        try:
            work.run(place)
        except StorageError:
            failed = True
        assert any(one.endswith(" 403") for one in server.requests())
        server.fail(0, status=0)
        found = work.state(place)
        assert found in ((before, after) if failed else (after,))
        if found == before:
            work.run(place)
        assert work.state(place) == after
