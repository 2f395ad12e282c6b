"""Registered models in an object store whose writes have conditions; lost answers and refusals."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rff_dist.errors import NoSuchVersionError, OutputExistsError, StorageError
from rff_dist.models.versions import RegisteredModel, Registry
from rff_dist.storage.records import read_record, write_record
from tests.refusals import refuses
from tests.s3_server import serve_s3
from tests.versions import publish, whole

pytest.importorskip("obstore", reason="needs the extra s3")
pytest.importorskip("moto", reason="needs moto, of the extra dev")
pytestmark = pytest.mark.s3


@pytest.fixture(scope="module")
def server():
    with serve_s3() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running


def numbers(url):
    return [version.number for version in RegisteredModel(url).versions()]


def test_versions_are_published_promoted_rolled_back_and_pruned(server):
    url = server.url("models/prices")
    for i in (1, 2, 3, 4):
        assert publish(url, i).number == i
        assert whole(read_record(url)) == i
    model = RegisteredModel(url)
    assert [version.parent for version in model.versions()] == [None, 1, 2, 3]
    assert model.rollback().number == 3
    assert whole(read_record(url)) == 3
    assert whole(read_record(f"{url}/versions/1")) == 1
    assert model.prune(1) == [1]
    assert numbers(url) == [2, 3, 4]
    assert server.names("models/prices/versions/1/") == []
    with refuses(NoSuchVersionError, "version 1", "2", "3", "4"):
        model.promote(1)
    publish(server.url("models/another"), 1)
    assert Registry(server.url("models")).names() == ["another", "prices"]


@pytest.mark.slow
def test_publishers_at_once_get_a_number_each_and_no_promotion_is_lost(server):
    url = server.url("models/busy")
    with ThreadPoolExecutor(6) as pool:
        found = [version.number for version in pool.map(lambda i: publish(url, i), range(12))]
    assert sorted(found) == numbers(url) == list(range(1, 13))
    pointer = RegisteredModel(url).pointer()
    assert sorted([*pointer.previous, pointer.number]) == list(range(1, 13))


@pytest.mark.parametrize("path", ["claims/2.json", "current.json"])
def test_a_write_whose_answer_was_lost_is_done_once(server, path):
    url = server.url(f"models/lost-{path[:4]}")
    publish(url, 1)
    server.fail(1, status=-1, method="PUT", path=path)
    assert publish(url, 2).number == 2
    assert (numbers(url), RegisteredModel(url).pointer().previous) == ([1, 2], (1,))


@pytest.mark.parametrize(
    ("path", "left"),
    [("claims/2.json", [1]), ("model.json", [1]), ("lineage.json", [1]), ("current.json", [1, 2])],
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


def test_what_is_there_already_is_not_replaced(server):
    url = server.url("models/kept")
    publish(url, 1)
    for place in (url, f"{url}/versions/1"):
        with pytest.raises(OutputExistsError):
            write_record(place, kind="test", metadata={}, arrays={}, overwrite=True)
    plain = server.url("models/plain")
    write_record(plain, kind="test", metadata={}, arrays={})
    with pytest.raises(OutputExistsError, match="something else"):
        publish(plain, 1)
    assert whole(read_record(url)) == 1
