"""What a `Cluster` means, without starting any; tests that start clusters are in
tests/integration.
"""

import json

import pytest

from rff_dist import DaskEngine, SerialEngine
from rff_dist.data.blocks import MIN_BLOCK_ROWS
from rff_dist.engines import connecting
from rff_dist.engines.cluster import (
    SCHEDULER_VARIABLE,
    TLS_VARIABLES,
    Cluster,
    TLSFiles,
)
from rff_dist.engines.connecting import open_engine, read_scheduler_file
from rff_dist.engines.events import log
from rff_dist.errors import (
    ClusterError,
    ClusterUnavailableError,
    InvalidParameterError,
    PlanError,
)
from tests.refusals import refuses

TLS = dict(zip(TLS_VARIABLES, ("ca.pem", "cert.pem", "key.pem"), strict=True))
ADDRESS = "tcp://127.0.0.1:1"


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, "embedded"),
        ({"n_workers": 2, "n_threads": 1, "memory": "1 GiB"}, "embedded"),
        ({"scheduler": "tls://host:8786"}, "address"),
        ({"scheduler": "/shared/scheduler.json"}, "scheduler file"),
        ({"serial": True, "n_threads": 2}, "serial"),
        ({"cluster": "gateway:http://host", "n_workers": 40}, "requested"),
    ],
)
def test_what_is_given_decides_the_kind(given, kind):
    assert Cluster(**given).kind == kind


@pytest.mark.parametrize(
    ("scheduler", "elsewhere"),
    [
        (None, False),
        (ADDRESS, False),
        ("localhost:8786", False),
        ("tls://[::1]:8786", False),
        ("tls://far:8786", True),
        ("10.0.0.7", True),
        ("/shared/scheduler.json", True),
    ],
)
def test_workers_are_elsewhere_unless_the_scheduler_is_on_the_loopback_interface(
    scheduler, elsewhere
):
    assert Cluster(scheduler=scheduler).is_elsewhere == elsewhere


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"scheduler": ADDRESS, "n_workers": 2}, ["n_workers", "scheduler"]),
        ({"scheduler": ADDRESS, "memory": 2**30}, ["memory"]),
        ({"serial": True, "n_workers": 2}, ["n_workers"]),
        ({"serial": True, "scheduler": ADDRESS}, ["scheduler"]),
        ({"serial": True, "cluster": "a.B"}, ["cluster"]),
        ({"scheduler": ADDRESS, "cluster": "a.B"}, ["scheduler", "a.B"]),
        ({"n_threads": 2, "cluster": "a.B"}, ["n_threads", "cluster_config"]),
        ({"cluster_config": "a.toml"}, ["cluster_config", "cluster"]),
        ({"n_workers": 0}, ["n_workers", "0"]),
        ({"n_threads": 1.5}, ["n_threads", "1.5"]),
    ],
)
def test_what_does_not_go_together_is_refused(given, words):
    with refuses(InvalidParameterError, *words):
        Cluster(**given)


# -- the environment
# -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"n_workers": 1},
        {"n_threads": 1},
        {"memory": 2**30},
        {"serial": True},
        {"scheduler": "tcp://127.0.0.1:2"},
    ],
)
def test_the_environments_scheduler_is_taken_only_where_nothing_else_is_said(given):
    environment = {SCHEDULER_VARIABLE: ADDRESS}
    assert Cluster().in_environment(environment).scheduler == ADDRESS
    assert Cluster(**given).in_environment(environment).scheduler == given.get(
        "scheduler"
    )
    assert Cluster().in_environment({SCHEDULER_VARIABLE: ""}) == Cluster()


def test_the_environment_names_three_tls_files_or_none():
    found = Cluster().in_environment(TLS).tls
    assert found == TLSFiles(ca="ca.pem", cert="cert.pem", key="key.pem")
    mine = TLSFiles("a", "b", "c")
    assert Cluster(tls=mine).in_environment(TLS).tls == mine
    assert Cluster(serial=True).in_environment(TLS).tls is None
    for name in TLS_VARIABLES:
        with refuses(InvalidParameterError, name):
            Cluster().in_environment(
                {key: value for key, value in TLS.items() if key != name}
            )


def test_a_tls_file_that_is_not_there_is_named_before_anything_starts(
    tmp_path, monkeypatch
):
    (tmp_path / "ca.pem").touch()
    (tmp_path / "key.pem").touch()
    for name in TLS_VARIABLES:
        monkeypatch.setenv(name, str(tmp_path / TLS[name]))
    with refuses(ClusterError, "TLS"):
        open_engine(Cluster(scheduler="tls://127.0.0.1:1"))


def test_tls_without_certificates_is_refused_before_anything_is_tried(monkeypatch):
    for name in TLS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("distributed.Client", None)
    with refuses(ClusterError, "RFF_DIST_TLS_CA"):
        open_engine(Cluster(scheduler="tls://127.0.0.1:1"))


def test_serial_needs_no_dask_and_gets_the_observers():
    events = []
    with open_engine(
        Cluster(serial=True, n_threads=2), observers=[events.append]
    ) as engine:
        assert isinstance(engine, SerialEngine)
        assert engine.n_threads == 2
        assert engine.observers == (log, events.append)


@pytest.mark.parametrize(
    ("cluster", "n_samples", "kind"),
    [
        (Cluster(), MIN_BLOCK_ROWS, "serial"),
        (Cluster(n_threads=3), 1, "serial"),
        (Cluster(tls=TLSFiles("a", "b", "c")), 1, "serial"),
        (Cluster(), MIN_BLOCK_ROWS + 1, "embedded"),
        (Cluster(n_workers=1), 1, "embedded"),
        (Cluster(memory="1 GiB"), 1, "embedded"),
        (Cluster(scheduler="tcp://127.0.0.1:1"), 1, "address"),
    ],
)
def test_rows_of_one_block_start_no_cluster_unless_one_is_asked_for(
    cluster, n_samples, kind
):
    found = cluster.for_rows(n_samples)
    assert found.kind == kind
    assert found.n_threads == cluster.n_threads


# -- scheduler files
# -------------------------------------------------------------------------------------


def test_the_address_in_a_scheduler_file_is_checked_like_any_other(tmp_path):
    file = tmp_path / "scheduler.json"
    file.write_text(
        json.dumps({"type": "Scheduler", "address": "tcp://192.0.2.1:8786"})
    )
    assert read_scheduler_file(file) == "tcp://192.0.2.1:8786"
    with refuses(ClusterError, "TLS"):
        open_engine(Cluster(scheduler=str(file)))


def test_a_scheduler_file_that_is_not_there_says_how_to_start_a_scheduler(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(connecting, "FILE_S", 0.2)
    with refuses(ClusterUnavailableError, "--scheduler-file"):
        open_engine(Cluster(scheduler=str(tmp_path / "none.json")))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"id": 1}', '{"address": 5}', "[" * 100_000]
)
def test_what_is_no_scheduler_file_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.setattr(connecting, "FILE_S", 0.0)
    file = tmp_path / "scheduler.json"
    file.write_text(text)
    with pytest.raises(ClusterError, match=r"is no scheduler file|is 5"):
        read_scheduler_file(file)


def test_processes_that_could_not_start_in_their_memory_are_refused():
    with refuses(PlanError, "`memory` is 95.4 MiB", "at least 400.0 MiB"):
        DaskEngine(memory_limit="100 MB")
