"""`rff-dist doctor`: what it finds, and what it says to do about it."""

import datetime
import json

import numpy as np
import pytest
import zarr
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rff_dist.workbench.cli import doctor
from tests.command_line import document, run


def test_a_machine_is_looked_at_and_each_line_has_a_state(folder):
    found = document("doctor", folder / "data.zarr")
    states = {one["check"]: one["state"] for one in found["findings"]}
    assert {"versions", "products", "Prefect", "checksums"} == set(states)
    assert (states["checksums"], found["ok"]) == ("ok", True)
    assert all(one["todo"] for one in found["findings"] if one["state"] != "ok")
    [versions] = [
        one["found"] for one in found["findings"] if one["check"] == "versions"
    ]
    assert f"numpy {np.__version__}" in versions


def test_a_failure_exits_1_and_the_lines_are_shown():
    result = run("doctor", "nothing")
    assert result.exit_code == 1
    assert "1 failure" in result.stdout
    assert "nothing is there" in " ".join(result.stdout.split())


def test_arrays_without_checksums_are_warned_of():
    group = zarr.create_group("data")
    group.create_array("X", shape=(100, 4), chunks=(10, 2), dtype="f8")
    result = doctor.check_checksums("data")
    assert result.state == "warn"
    assert "no checksums for X" in result.found


@pytest.mark.parametrize(
    ("url", "known", "state"),
    [
        (None, False, "ok"),
        ("http://127.0.0.1:4200/api", False, "warn"),
        ("http://127.0.0.1:4200/api", True, "ok"),
        ("http://prefect.example.org/api", True, "fail"),
        ("https://prefect.example.org/api", False, "warn"),
        ("https://prefect.example.org/api", True, "ok"),
    ],
)
def test_a_prefect_server_needs_authentication_and_beyond_this_machine_tls(
    url, known, state
):
    assert doctor.check_prefect(url, known).state == state


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
    findings = run_json("doctor", "--scheduler tcp://192.0.2.1:8786")["findings"]
    failed = [one["check"] for one in findings if one["state"] == "fail"]
    assert failed == ["cluster"]
