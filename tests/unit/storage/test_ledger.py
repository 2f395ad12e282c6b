"""Kept sums come back as they were put, or are reported as damaged; never other
sums.
"""

import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rff_dist.data.folding import HashFolds
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.serial import SerialEngine
from rff_dist.features.draw import draw_feature_map
from rff_dist.kmeans.cluster_sums import ClusterSums
from rff_dist.numerics.exact_sums import ExactSum
from rff_dist.statistics.accumulate import Accumulation
from rff_dist.statistics.gram_products import GramProduct
from rff_dist.statistics.passes import accumulate, accumulate_folds, statistics_spec
from rff_dist.storage import documents
from rff_dist.storage import ledger as ledger_module
from rff_dist.storage.ledger import open_ledger
from rff_dist.storage.locations import parse_location

NAME = "0123456789" * 4


@pytest.fixture
def ledger():
    return open_ledger(parse_location(".model.ledger"))


def files(ledger):
    return sorted(Path(ledger.location.path).glob("*.sums"))


def sums_of_rows():
    rng = np.random.default_rng(0)
    dataset = ArrayDataset(rng.standard_normal((300, 2)), rng.standard_normal(300))
    features = draw_feature_map("gaussian", n_features=2, n_components=16)
    member = Accumulation(features, statistics_spec(dataset, features))
    whole = accumulate(dataset, features)
    folds = accumulate_folds(
        dataset, [member, member], folds=HashFolds(3), engine=SerialEngine(1)
    )
    return whole, folds


SUMS = sums_of_rows()


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        2**200,
        True,
        "text",
        0.1,
        float("inf"),
        -0.0,
        np.float64(0.1),
        np.int64(-3),
        (1, [2.5, None], ((),)),
        ExactSum(-3, np.arange(12).reshape(3, 4)),
        ClusterSums(5, np.arange(8).reshape(1, 2, 4), np.ones((1, 2), np.int64), 2**90),
        GramProduct(3, np.arange(6).reshape(3, 2), ExactSum.zeros((2,))),
        *SUMS,
    ],
    ids=lambda value: type(value).__name__,
)
def test_sums_come_back_as_they_were(ledger, value):
    ledger.put(NAME, range(3, 7), value)
    found = ledger.find(NAME, range(3, 7))
    assert found is not None
    assert type(found[0]) is type(value)
    assert repr(found[0]) == repr(value)
    assert ledger.spans(NAME) == [range(3, 7)]


def test_arrays_come_back_in_their_dtype_and_shape_and_can_be_added_to(
    ledger,
):
    arrays = [
        np.zeros((0, 3)),
        np.array(2.5),
        np.arange(6, dtype=np.uint8)[::2],
        np.asfortranarray(np.eye(3)),
    ]
    ledger.put(NAME, range(1), tuple(arrays))
    [found] = ledger.find(NAME, range(1)) or [()]
    for one, other in zip(found, arrays, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.array_equal(one, other)
        one += 1


def test_sums_of_more_blocks_take_the_place_of_those_of_fewer(
    ledger,
):
    other = NAME[::-1]
    for name, span in (
        (NAME, range(3)),
        (NAME, range(5, 6)),
        (other, range(2)),
        (NAME, range(5)),
    ):
        ledger.put(name, span, 1)
    assert sorted(ledger.spans(NAME), key=str) == [range(5), range(5, 6)]
    assert ledger.spans(other) == [range(2)]


def test_nothing_is_kept_of_what_is_made_of_other_things(ledger):
    for value in (object(), {1, 2}, np.array(["text"]), {"a": 1}, np.array([None])):
        assert ledger.seconds(value) == np.inf
        ledger.put(NAME, range(1), value)
    assert ledger.is_empty()


WHOLE = SUMS[0]


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_bit_or_a_missing_end_is_told_and_never_read(data):
    ledger = open_ledger(parse_location(".model.ledger"))
    ledger.put(NAME, range(1), WHOLE)
    [path] = files(ledger)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[at:]
    path.write_bytes(content)
    assert ledger.find(NAME, range(1)) is None


def test_sums_in_the_place_of_others_are_not_read(ledger):
    for span in (range(1), range(1, 2)):
        ledger.put(NAME, span, WHOLE)
    first, second = files(ledger)
    first.write_bytes(second.read_bytes())
    assert ledger.find(NAME, range(1, 2)) is not None
    assert ledger.find(NAME, range(1)) is None


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "rff_dist.storage.ledger:open_ledger",
        "subprocess:Popen",
        "rff_dist.nope:X",
    ],
)
def test_a_file_names_no_class_but_dataclasses_of_this_package(ledger, name):
    key = f"{NAME}-0-1.sums"
    buffers = ledger_module._to_buffers(key, {"class": name, "members": {}}, [])
    path = Path(ledger.location.path, key)
    path.write_bytes(b"".join(buffers))
    assert ledger.find(NAME, range(1)) is None


def test_a_file_that_claims_more_than_it_holds_takes_no_memory(
    ledger,
):
    buffers = ledger_module._to_buffers(f"{NAME}-0-1.sums", {"array": 0}, [np.zeros(4)])
    version = ledger_module.FORMAT_VERSION
    document = documents.parse_document(
        bytes(buffers[1]), kind="sums of a pass", version=version, where="a test"
    )
    document["arrays"] = [{"dtype": "<f8", "shape": [2**40]}]
    for key in ("format", "format_version"):
        del document[key]
    signed = documents.dump_document(document, kind="sums of a pass", version=version)
    path = Path(ledger.location.path, f"{NAME}-0-1.sums")
    path.write_bytes(len(signed).to_bytes(8, "little") + signed + bytes(32))
    assert ledger.find(NAME, range(1)) is None


def test_a_folder_that_a_worker_does_not_share_is_left_alone(ledger, caplog):
    elsewhere = pickle.loads(pickle.dumps(ledger))
    ledger.drop()
    with caplog.at_level(logging.WARNING):
        elsewhere.put(NAME, range(1), 1)
        elsewhere.put(NAME, range(2), 1)
    assert not os.path.lexists(ledger.location.path)
    assert caplog.text.count("this machine does not share the folder") == 1


def test_a_full_disk_ends_keeping_and_not_the_job(
    ledger,
    caplog,
    monkeypatch,
):
    monkeypatch.setattr(ledger_module, "_SHARE_OF_FREE", 0.0)
    with caplog.at_level(logging.WARNING):
        ledger.put(NAME, range(1), WHOLE)
        ledger.put(NAME, range(2), WHOLE)
    assert ledger.is_empty()
    assert caplog.text.count("a quarter of the free disk") == 1
    monkeypatch.undo()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rff_dist.storage.locations.write_file", full)
    with caplog.at_level(logging.WARNING):
        ledger.put(NAME, range(1), WHOLE)
    assert "No space left" in caplog.text
    assert ledger.is_empty()


def test_a_ledger_without_sums_leaves_nothing_behind(ledger):
    ledger.leave()
    assert not os.path.lexists(ledger.location.path)


def test_a_ledger_with_sums_stays_until_it_is_dropped(ledger):
    ledger.put(NAME, range(1), WHOLE)
    ledger.leave()
    again = open_ledger(ledger.location)
    assert again.spans(NAME) == [range(1)]
    assert again.n_bytes() > WHOLE.low.nbytes
    again.drop()
    assert not os.path.lexists(ledger.location.path)
