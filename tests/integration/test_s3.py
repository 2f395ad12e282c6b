"""Data, models and outputs in an object store: every command, overwriting, refusals,
and secrets.

What readers see where any request of an append fails is in
tests/faults/test_s3_operations.py."""

import logging
import pickle

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from rff_dist import (
    SerialEngine,
    accumulate,
    draw_feature_map,
    open_dataset,
    write_dataset,
)
from rff_dist.data.blocks import Block
from rff_dist.engines import resuming
from rff_dist.engines.events import BlockDone, PassResumed
from rff_dist.errors import OutputExistsError, StorageError
from rff_dist.storage.columns import open_column
from rff_dist.storage.datasets import list_arrays
from rff_dist.storage.documents import replace_file
from rff_dist.storage.ledger import LEDGER, open_ledger
from rff_dist.storage.locations import parse_location
from rff_dist.storage.outputs import Layout, create_output
from rff_dist.storage.records import write_record
from tests.command_line import PLAIN, document, refusal, run
from tests.dask_processes import forked_workers
from tests.refusals import refuses
from tests.s3_server import SECRET_KEY
from tests.stopped_jobs import Eager

pytestmark = pytest.mark.s3

X = np.arange(60.0).reshape(30, 2)

SMALL = (*PLAIN, "--n-components 64 --alpha 0.01")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((300, 3)).round(4)
    target = (np.sin(2 * inputs[:, 0]) + inputs[:, 1]).round(4)
    path = tmp_path_factory.mktemp("s3") / "table.csv"
    lines = [
        "a,b,c,price",
        *(",".join(map(str, row)) for row in np.column_stack([inputs, target])),
    ]
    path.write_text("\n".join(lines))
    return path


# -- the commands
# --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(server, table, tmp_path_factory):
    """The same table, fitted here and there; returns the folder here and what `fit`
    said of both.
    """
    folder = tmp_path_factory.mktemp("local")
    found = []
    for place in (str(folder), server.url("cli")):
        document(
            "ingest", table, f"{place}/data.zarr", "--targets price --chunk-rows 64"
        )
        found.append(
            document("fit", f"{place}/data.zarr", f"{place}/model", *SMALL, "--serial")
        )
    return folder, *found


def test_fit_in_an_object_store_has_the_digest_of_one_on_disk(fitted):
    _, here, there = fitted
    assert there["digest"] == here["digest"]
    assert there["statistics_digest"] == here["statistics_digest"]


@pytest.mark.distributed
def test_workers_of_a_cluster_read_and_write_the_object_store(fitted, server):
    _, here, _ = fitted
    arguments = (*SMALL, "--n-workers 1 --n-threads 1")
    with forked_workers(**server.environment()):
        there = document(
            "fit", server.url("cli/data.zarr"), server.url("cli/dask"), *arguments
        )
    assert there["engine"]["kind"] == "embedded dask"
    assert there["digest"] == here["digest"]


def test_evaluate_predict_and_info_say_what_they_say_on_disk(fitted, server):
    folder, *_ = fitted
    said = []
    for place in (str(folder), server.url("cli")):
        data = f"{place}/data.zarr"
        model = f"{place}/model"
        evaluated = document("evaluate", model, data, "--serial")
        document("predict", model, data, f"{place}/predictions", "--serial")
        predicted = open_column(f"{place}/predictions", "predictions").array[:]
        about = document("info", model)["digest"]
        arrays = document("info", data)["arrays"]
        said.append((evaluated["targets"], predicted.tolist(), about, arrays))
    assert said[0] == said[1]


def test_what_is_there_is_not_replaced_unless_asked(fitted, server):
    data = server.url("cli/data.zarr")
    model = server.url("cli/model")
    assert "exists already" in refusal(
        73, "fit", data, model, "--n-components 8 --serial"
    )
    assert "exists already" in refusal(73, "generate", data, "--rows 10 --n-features 2")
    assert "no dataset at s3://" in refusal(
        65, "fit", server.url("none.zarr"), server.url("m"), "--serial"
    )
    assert "no model at s3://" in refusal(
        65, "predict", server.url("none"), data, server.url("p"), "--serial"
    )


# -- overwriting
# --------------------------------------------------------------------------------------


def rows_of(url):
    dataset = open_dataset(url)
    return dataset.take(range(dataset.n_samples)).X


def test_overwritten_dataset_stays_whole_for_its_readers_until_the_next_is_complete(
    server,
):
    url = server.url("replaced")
    write_dataset(url, X, chunk_rows=8)
    opened_before = open_dataset(url)

    def batches():
        yield X + 100
        # half of the next one is written
        assert_array_equal(rows_of(url), X)
        yield X + 200

    write_dataset(url, batches(), chunk_rows=8, overwrite=True)
    assert_array_equal(rows_of(url), np.concatenate([X + 100, X + 200]))
    assert_array_equal(opened_before.take(range(30)).X, X)
    _, arrays = list_arrays(url)
    assert [header.shape for header in arrays.values()] == [(60, 2)]


def test_failed_overwrite_leaves_the_dataset_that_was_there(server):
    url = server.url("kept")
    write_dataset(url, X, chunk_rows=8)
    before = server.names("kept/")

    def batches():
        yield X
        raise ValueError("the source broke off")

    with refuses(ValueError, "broke off"):
        write_dataset(url, batches(), chunk_rows=8, overwrite=True)
    server.fail(10**6, status=403, method="PUT")
    try:
        with refuses(StorageError, "PermissionDeniedError"):
            write_dataset(url, X + 1, overwrite=True)
    finally:
        server.fail(0, status=0)
    assert_array_equal(rows_of(url), X)
    assert server.names("kept/") == before


def test_unfinished_output_is_taken_for_complete_by_nobody(server):
    url = server.url("unfinished")
    create_output(
        url,
        Layout(n_samples=30, n_columns=2, dtype="float64", chunk_rows=30, array="X"),
    )
    with refuses(StorageError, "unfinished"):
        open_dataset(url)
    write_dataset(url, X)  # its writer is dead
    assert_array_equal(open_dataset(url).read(Block(0, 0, len(X))).X, X)
    with refuses(OutputExistsError, "exists already"):
        write_dataset(url, X)


def test_others_objects_survive_a_write_to_their_prefix_that_fails(server):
    server.write("theirs/folder/notes.txt", b"not ours")
    for url in (server.url("theirs"), server.url("theirs/folder")):
        with refuses(StorageError, "holds other things"):
            write_dataset(url, X)
        with refuses(StorageError, "holds other things"):
            write_record(url, kind="thing", metadata={}, arrays={})
        with refuses(StorageError, "holds other things"):
            write_dataset(url, X, overwrite=True)
    assert server.read("theirs/folder/notes.txt") == b"not ours"


# -- appending
# --------------------------------------------------------------------------------------


def test_new_files_of_a_pattern_are_appended_once_and_the_others_not_read(
    server, table, tmp_path
):
    url = server.url("nightly.zarr")
    pattern = server.url("incoming/*.csv")
    lines = table.read_bytes().splitlines(keepends=True)
    server.write("incoming/1.csv", lines[0] + b"".join(lines[1:101]))
    server.write("incoming/deeper/3.csv", lines[0] + lines[1])
    first = document("ingest", pattern, url, "--append --targets price")
    server.write("incoming/2.csv", lines[0] + b"".join(lines[101:]))
    server.requests()
    second = document("ingest", pattern, url, "--append")
    assert not [
        one for one in server.requests() if one.startswith("GET /bucket/incoming/1.csv")
    ]
    third = document("ingest", pattern, url, "--append")
    assert [one["n_after"] for one in (first, second, third)] == [100, 300, 300]
    assert third["skipped"] == [
        server.url("incoming/1.csv"),
        server.url("incoming/2.csv"),
    ]
    whole = document("ingest", table, tmp_path / "here.zarr", "--targets price")
    assert_array_equal(rows_of(url), rows_of(whole["path"]))
    assert "there is no file at" in refusal(
        65, "ingest", server.url("incoming/none.csv"), server.url("new")
    )
    folder = document(
        "ingest", server.url("incoming/deeper/3.csv"), server.url("one.zarr")
    )
    assert folder["n_samples"] == 1
    for log, name in (
        ("_delta_log/0.json", "Delta"),
        ("metadata/v1.metadata.json", "Iceberg"),
    ):
        server.write(f"{name}/day=1/0.csv", lines[0] + lines[1])
        source = server.url(f"{name}/day=1/0.csv")
        assert document("ingest", source, server.url(f"{name}.zarr"))["n_samples"] == 1
        server.write(f"{name}/{log}", b"{}")
        for given in (source, server.url(f"{name}/*/*.csv")):
            assert f"is a table in {name} format" in refusal(
                65, "ingest", given, server.url("new")
            )


# -- requests that fail
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [503, 429, 0, -1])
@pytest.mark.faults("F11")
def test_transient_errors_are_retried_and_change_nothing(server, status):
    url = server.url(f"transient-{status}")
    server.fail(2, status=status)
    write_dataset(url, X, chunk_rows=8)
    server.fail(2, status=status)
    assert_array_equal(rows_of(url), X)
    assert sum(line.endswith(f" {status}") for line in server.requests()) == 2


@pytest.mark.parametrize("status", [403, 404])
def test_refusals_are_not_retried(server, status):
    write_dataset(server.url(f"refused-{status}"), X, chunk_rows=8)
    dataset = open_dataset(server.url(f"refused-{status}"))
    dataset.take([0])  # opens the array
    server.requests()
    server.fail(10**6, status=status, path="X/c/")
    with pytest.raises(
        StorageError, match="missing" if status == 404 else "PermissionDenied"
    ):
        dataset.take([0])
    # One of the read, one of looking which chunk it is.
    assert server.requests() == 2 * [f"GET /bucket/refused-{status}/X/c/0/0 {status}"]
    server.fail(0, status=0)


def test_answer_that_was_lost_is_not_taken_for_another_writers_claim(server):
    claims = parse_location(server.url("claims"))
    for status in (503, 0, -1):
        server.fail(1, status=status, method="PUT")
        assert replace_file(claims, str(status), b"mine", expected=None)
        assert not replace_file(claims, str(status), b"yours", expected=None)
        assert server.read(f"claims/{status}") == b"mine"


def test_store_that_is_away_is_named_with_exit_code_65_and_73(
    monkeypatch, fitted, server
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    folder, *_ = fitted
    message = refusal(65, "info", server.url("cli/model"))
    assert "cannot be read" in message
    assert "Check the address, the network and the permissions" in message
    message = refusal(
        73, "fit", folder / "data.zarr", server.url("m"), "--n-components 8 --serial"
    )
    assert "s3://bucket/m" in message


def test_credentials_that_are_missing_are_named(monkeypatch, server):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "Missing SecretAccessKey" in refusal(65, "info", server.url("cli/model"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    assert "needs AWS_ALLOW_HTTP=true" in refusal(65, "info", server.url("cli/model"))


# -- secrets
# --------------------------------------------------------------------------------------


def test_nothing_that_is_shown_logged_or_stored_holds_the_secret_key(
    fitted, server, monkeypatch, caplog
):
    caplog.set_level(logging.DEBUG)
    shown = []
    for status in (403, 400):
        server.fail(10**6, status=status)
        for arguments in (
            ("info", server.url("cli/model")),
            (
                "fit",
                server.url("cli/data.zarr"),
                server.url("secret-model"),
                "--n-components=8",
                "--serial",
            ),
            ("generate", server.url("secret.zarr"), "--rows 10 --n-features 2"),
        ):
            result = run(*arguments, "--debug --json")
            assert result.exit_code in (65, 73), result.output
            assert "Traceback" in result.stderr
            shown += [result.stdout, result.stderr]
    server.fail(0, status=0)
    stored = [server.read(key) for key in server.names()]
    travels = pickle.dumps(
        (
            open_dataset(server.url("cli/data.zarr")),
            parse_location(server.url("cli/data.zarr")),
        )
    )
    assert not any(SECRET_KEY in text for text in [*shown, caplog.text])
    assert not any(SECRET_KEY.encode() in content for content in [*stored, travels])


# -- what a stopped job goes on from
# -----------------------------------------------------------------------


def test_a_stopped_pass_goes_on_where_its_objects_are_as_they_were(server, monkeypatch):
    monkeypatch.setattr(resuming, "LEAST_SHARE", 0.0)
    url = server.url("stopped")
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((3 * 16_384, 2))
    write_dataset(f"{url}/data.zarr", rows, rows[:, 0], chunk_rows=16_384)
    place = parse_location(f"{url}/model").hidden(LEDGER)

    def sum_up(*observers):
        found = open_ledger(place)
        engine = SerialEngine(observers=observers)
        features = draw_feature_map("gaussian", n_features=2, n_components=32)
        with engine.keeping(Eager(found.location, found.token)):
            return accumulate(
                open_dataset(f"{url}/data.zarr"), features, engine=engine
            ).digest()

    def stop(event):
        if isinstance(event, BlockDone) and event.block.index == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sum_up(stop)
    events = []
    first = sum_up(events.append)
    assert [event.n_kept for event in events if isinstance(event, PassResumed)] == [
        2 * 16_384
    ]
    open_ledger(place).drop()
    assert sum_up() == first
    write_dataset(
        f"{url}/data.zarr", -rows, rows[:, 0], chunk_rows=16_384, overwrite=True
    )
    events.clear()
    assert sum_up(events.append) != first
    assert not any(isinstance(event, PassResumed) for event in events)
    open_ledger(place).drop()
    assert open_ledger(place).is_empty()
