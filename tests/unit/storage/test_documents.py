import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from rff_dist.errors import OutputBusyError, StorageError
from rff_dist.storage import documents, locations
from rff_dist.storage.documents import read_tagged, replace_file
from rff_dist.storage.locations import parse_location

FAR = parse_location("s3://bucket/here")


@pytest.fixture
def objects(monkeypatch):
    """Let an object store in memory stand for `FAR`."""
    obstore = pytest.importorskip("obstore.store", reason="needs the extra s3")
    objects = obstore.MemoryStore()
    for module in (locations, documents):
        monkeypatch.setattr(module, "open_objects", lambda _: objects)


@pytest.fixture
def folder_as_objects(monkeypatch, tmp_path):
    """Let a folder stand for `FAR`, which can create on a condition, but not
    replace.
    """
    obstore = pytest.importorskip("obstore.store", reason="needs the extra s3")
    for module in (locations, documents):
        monkeypatch.setattr(
            module, "open_objects", lambda _: obstore.LocalStore(tmp_path)
        )


STORES = {
    "folder": None,
    "object store": "objects",
    "object store without If-Match": "folder_as_objects",
}
that_replace = pytest.mark.parametrize("store", list(STORES)[:2], indirect=True)


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    if STORES[request.param] is None:
        return parse_location(tmp_path)
    request.getfixturevalue(STORES[request.param])
    return FAR


def create(store, content):
    return replace_file(store, "a/key", content, expected=None)


def replace(store, content, expected):
    return replace_file(store, "a/key", content, expected=expected)


def read(store):
    return read_tagged(store, "a/key")


def test_only_the_first_creates(store):
    assert [create(store, content) for content in (b"1", b"2")] == [True, False]
    assert read(store).content == b"1"


def test_one_of_many_at_once_creates(store):
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda i: create(store, str(i).encode()), range(32)))
    assert sum(told) == 1
    assert read(store).content == str(told.index(True)).encode()


@that_replace
def test_only_what_was_read_is_replaced(store):
    assert replace(store, b"1", None)
    assert not replace(store, b"2", None)
    first = read(store)
    assert replace(store, b"3", first)
    assert not replace(store, b"4", first)
    assert read(store).content == b"3"
    locations.delete_file(store, "a/key")
    assert not replace(store, b"5", first)
    assert read(store) is None


@that_replace
def test_of_many_that_replace_at_once_each_follows_the_one_before(store):
    def append(i):
        while True:
            found = read(store)
            before = b"" if found is None else found.content + b" "
            if replace(store, before + str(i).encode(), found):
                return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(append, range(24)))
    assert sorted(map(int, read(store).content.split())) == list(range(24))


@pytest.mark.usefixtures("folder_as_objects")
def test_a_store_without_conditions_is_refused():
    create(FAR, b"1")
    with pytest.raises(StorageError, match="no conditional writes"):
        replace(FAR, b"2", read(FAR))
    assert read(FAR).content == b"1"


@pytest.mark.usefixtures("objects")
def test_a_request_whose_answer_was_lost_is_told_from_anothers(monkeypatch):
    import obstore
    from obstore.exceptions import AlreadyExistsError

    put = obstore.put

    def put_and_lose_the_answer(*arguments, **options):
        put(*arguments, **options)
        raise AlreadyExistsError("as a repeated request is answered")

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", put_and_lose_the_answer)
        assert create(FAR, b"mine")
    assert not create(FAR, b"yours")


def test_a_lock_that_nobody_releases_is_not_waited_for_without_end(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(documents, "_PATIENCE_S", 0.1)
    (tmp_path / "a").mkdir()
    with (
        documents.lock_file(tmp_path / "a" / ".key.lock"),
        pytest.raises(OutputBusyError, match="has been locked"),
    ):
        create(parse_location(tmp_path), b"1")
    assert create(parse_location(tmp_path), b"1")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["key"]


def test_a_file_system_without_locks_is_told_of(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(documents.fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING):
        assert create(parse_location(tmp_path), b"1")
    assert "has no locks (Function not implemented)" in caplog.text


@pytest.mark.usefixtures("objects")
def test_a_store_that_is_away_is_named(monkeypatch):
    import obstore

    def refuse(*_, **__):
        raise PermissionError("403 at https://user:secret@host/?token=secret")

    monkeypatch.setattr(obstore, "put", refuse)
    monkeypatch.setattr(obstore, "get", refuse)
    for call in (lambda: create(FAR, b"1"), lambda: read(FAR)):
        with pytest.raises(
            StorageError, match=r"here cannot be .* PermissionError: 403"
        ) as caught:
            call()
        assert "secret" not in str(caught.value)
