"""`rff-dist doctor`: what it finds, and what it says to do about it."""

import datetime
import json
import subprocess
import sys

import numpy as np
import pytest
import zarr
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rff_dist.products import choice
from rff_dist.products.choice import MeasuredWays
from rff_dist.workbench.cli import doctor
from tests.command_line import document, run


def found_by(check):
    return [(one.state, one.found, one.todo) for one in check]


def test_a_machine_is_looked_at_and_each_line_has_a_state(folder):
    found = document("doctor", folder / "data.zarr")
    states = {one["check"]: one["state"] for one in found["findings"]}
    assert {"versions", "BLAS", "products", "disk", "ports", "TLS", "Prefect", "codecs", "chunks"} == set(
        states
    )
    assert (states["codecs"], states["chunks"], found["ok"]) == ("ok", "ok", True)
    assert all(one["todo"] for one in found["findings"] if one["state"] != "ok")
    [versions] = [one["found"] for one in found["findings"] if one["check"] == "versions"]
    assert f"numpy {np.__version__}" in versions


def test_a_failure_exits_1_and_the_lines_are_shown(tmp_path):
    result = run("doctor", tmp_path / "nothing")
    assert result.exit_code == 1
    assert "1 failure" in result.stdout
    assert "nothing is there" in " ".join(result.stdout.split())


def test_arrays_without_checksums_and_chunks_that_cut_rows_are_warned_of(tmp_path):
    group = zarr.create_group(tmp_path / "data")
    group.create_array("X", shape=(100, 4), chunks=(10, 2), dtype="f8")
    states = found_by(doctor.check_dataset(str(tmp_path / "data")))
    assert [state for state, *_ in states] == ["warn", "warn"]
    assert "no checksums for X" in states[0][1]
    assert "rows are split over chunks" in states[1][1]


def test_a_port_of_dask_that_is_open_to_all_is_found_and_one_on_the_loopback_interface_is_none():
    code = (
        "import socket, sys; both = [socket.create_server((host, 0)) for host in ('0.0.0.0', '127.0.0.1')]; "
        "print(*(one.getsockname()[1] for one in both), flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "distributed"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        reachable, loopback = process.stdout.readline().split()
        found = doctor.check_ports().found
        assert f"port {reachable} " in found
        assert f"port {loopback} " not in found
    finally:
        process.communicate("")


@pytest.mark.parametrize(
    ("environment", "state"),
    [
        ({}, "ok"),
        ({"PREFECT_API_URL": "http://127.0.0.1:4200/api"}, "warn"),
        ({"PREFECT_API_URL": "http://127.0.0.1:4200/api", "PREFECT_API_AUTH_STRING": "a:b"}, "ok"),
        ({"PREFECT_API_URL": "http://prefect.example.org/api", "PREFECT_API_AUTH_STRING": "a:b"}, "fail"),
        ({"PREFECT_API_URL": "https://prefect.example.org/api"}, "warn"),
        ({"PREFECT_API_URL": "https://prefect.example.org/api", "PREFECT_API_KEY": "k"}, "ok"),
    ],
)
def test_a_prefect_server_needs_authentication_and_beyond_this_machine_tls(environment, state):
    [(found, words, _)] = found_by([doctor.check_prefect(environment)])
    assert found == state
    assert "a:b" not in words


@pytest.mark.parametrize(
    ("days", "mode", "state"),
    [(90, 0o600, "ok"), (90, 0o644, "warn"), (3, 0o600, "warn"), (-1, 0o600, "fail")],
)
def test_certificates_that_expire_and_keys_that_others_read_are_found(
    tmp_path, monkeypatch, days, mode, state
):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - datetime.timedelta(days=30))
        .not_valid_after(now + datetime.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    for part in ("ca", "cert", "key"):
        path = tmp_path / part
        path.write_bytes(pem)
        path.chmod(mode)
        monkeypatch.setenv(f"RFF_DIST_TLS_{part.upper()}", str(path))
    [tls] = [one for one in run_json("doctor")["findings"] if one["check"] == "TLS"]
    assert tls["state"] == state


def run_json(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def test_a_scheduler_beyond_this_machine_without_tls_fails():
    findings = run_json("doctor", "--scheduler", "tcp://192.0.2.1:8786")["findings"]
    assert {one["check"] for one in findings if one["state"] == "fail"} == {"TLS", "cluster"}


def test_libraries_of_one_kind_are_one_line(monkeypatch):
    pools = [
        {"user_api": "blas", "internal_api": "openblas", "version": version, "num_threads": 64}
        for version in ("0.3.30", "0.3.30", "0.3.31")
    ]
    monkeypatch.setattr("threadpoolctl.threadpool_info", lambda: pools)
    [(state, found, todo)] = found_by([doctor.check_blas()])
    assert (state, found.count("0.3.30"), todo.count("OMP_NUM_THREADS")) == ("warn", 1, 1)


def test_a_processor_without_an_instruction_is_no_warning(monkeypatch):
    wrong = MeasuredWays(choice.measure().rates[:1], {"bytes": "this processor has no instruction …"})
    monkeypatch.setattr(choice, "measure", lambda: wrong)
    [(state, found, todo)] = found_by([doctor.check_products()])
    assert (state, todo) == ("ok", "")
    assert "results are the same, in more time" in found
