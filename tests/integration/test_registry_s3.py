"""Registered models in an object store whose writes have conditions; lost answers and refusals."""

import pytest

from rff_dist.errors import StorageError
from rff_dist.models.versions import RegisteredModel
from rff_dist.storage.records import read_record
from tests.versions import publish, whole

pytestmark = pytest.mark.s3


def numbers(url):
    return [version.number for version in RegisteredModel(url).versions()]


@pytest.mark.parametrize("path", ["versions/2/model.json", "current.json"])
def test_a_write_whose_answer_was_lost_is_done_once(server, path):
    url = server.url(f"models/lost-{path[:4]}")
    publish(url, 1)
    server.fail(1, status=-1, method="PUT", path=path)
    assert publish(url, 2).number == 2
    assert (numbers(url), RegisteredModel(url).pointer().previous) == ([1, 2], (1,))


@pytest.mark.parametrize(
    ("path", "left"),
    [("generation-", [1]), ("model.json", [1]), ("current.json", [1, 2])],
)
def test_a_refused_write_leaves_the_old_version_current_and_can_be_repeated(server, path, left):
    url = server.url(f"models/refused-{path[:4]}")
    publish(url, 1)
    server.fail(1, status=403, method="PUT", path=path)
    with pytest.raises(StorageError, match=r"403|Forbidden|Permission"):
        publish(url, 2)
    assert (numbers(url), whole(read_record(url))) == (left, 1)
    assert publish(url, 3).parent == 1
    assert whole(read_record(url)) == 3
