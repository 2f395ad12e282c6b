"""What can be said of deploy/ without starting it: schemas, linters, and that its files
agree.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FILES = [
    path
    for path in sorted(DEPLOY.rglob("*"))
    if path.is_file() and path.suffix != ".pyc"
]
KUBERNETES = "1.37"


def load(name):
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def load_all(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def program(name):
    """Return a linter of the environment that runs the tests."""
    found = shutil.which(
        name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    assert found is not None, f"{name} is not installed; make setup installs it"
    return found


def check(*command):
    """Run a program that must not complain, and return what it says."""
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names(paths):
    return [str(path.relative_to(DEPLOY)) for path in paths]


# -- all files
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", names([path for path in FILES if path.suffix in (".yaml", ".yml")])
)
def test_yaml_files_can_be_read_and_say_nothing_twice(name):
    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            keys = [
                self.construct_object(key, deep=True)
                for key, _ in node.value
                if key.value != "<<"
            ]
            assert len(keys) == len(set(keys)), f"{name} has a key twice: {keys}"
            return super().construct_mapping(node, deep)

    assert list(yaml.load_all((DEPLOY / name).read_text(encoding="utf-8"), Strict))


@pytest.mark.parametrize("path", FILES, ids=names(FILES))
def test_no_file_has_a_secret_or_listens_to_everybody_or_knows_this_machine(path):
    text = path.read_text(encoding="utf-8")
    # Inside containers the user has a home; any other path is one of the machine that
    # it was written on.
    text = text.replace("/home/rff_dist", "")
    forbidden = {
        "a private key": r"BEGIN [A-Z ]*PRIVATE KEY",
        "a key of Amazon's": r"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
        "a password in a URL": r"://[\w.-]+:(?![\"']?\$)[^\s/@{}\"'$]+@",
        "an open interface": r"\b0\.0\.0\.0\b|\[::\]",
        "a path of a machine": r"(?<![\w.$}])/(home|root|work|Users|mnt|srv|scratch)/",
        "authentication that is off": (
            r"PREFECT_(SERVER_)?API_AUTH_STRING[=:]\s*[\"']?\w+:\w"
        ),
        "TLS that is off": r"RFF_DIST_INSECURE|GF_AUTH_ANONYMOUS_ENABLED",
    }
    found = {what: re.findall(pattern, text) for what, pattern in forbidden.items()}
    assert {what: matches for what, matches in found.items() if matches} == {}


def test_shell_scripts_pass_shellcheck():
    scripts = [
        path for path in FILES if re.match(rb"#!/bin/(ba)?sh\b", path.read_bytes())
    ]
    assert set(names(scripts)) >= {"tls.sh", "slurm/submit.sh", "slurm/workers.sbatch"}
    check(program("shellcheck"), *scripts)
    # sbatch reads those, nobody runs them
    run = [path for path in scripts if path.suffix != ".sbatch"]
    assert [path.name for path in run if not path.stat().st_mode & stat.S_IXUSR] == []


# -- containers
# --------------------------------------------------------------------------------------

DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
STAGES = {
    re.search(r" AS (\S+)", stage).group(1): stage
    for stage in re.split(r"(?m)^(?=FROM )", DOCKERFILE)[1:]
}
SERVICES = ["scheduler", "worker", "prefect-server", "prefect-worker"]


def test_dockerfile_passes_hadolint():
    check(program("hadolint"), DEPLOY / "Dockerfile")


def test_images_run_without_root_and_say_whether_they_are_healthy():
    assert re.search(r"^USER 10001:10001$", STAGES["runtime"], re.M)
    assert "PREFECT_SERVER_ANALYTICS_ENABLED=false" in STAGES["runtime"]
    assert "DO_NOT_TRACK=1" in STAGES["runtime"]
    assert "--constraint constraints.txt" in STAGES["build"]
    for name in SERVICES:
        assert STAGES[name].startswith(f"FROM runtime AS {name}")
        assert "HEALTHCHECK" in STAGES[name]
        assert "USER" not in STAGES[name]


COMPOSE = load("compose.yaml")


def test_compose_file_keeps_to_the_specification():
    schema = files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    jsonschema.validate(COMPOSE, json.loads(schema.read_text(encoding="utf-8")))


def test_compose_publishes_ports_on_the_loopback_interface_only():
    ports = [
        port
        for service in COMPOSE["services"].values()
        for port in service.get("ports", [])
    ]
    assert len(ports) >= 3
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports)


def test_compose_asks_for_every_secret_and_the_example_names_them_without_values():
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    asked = set(re.findall(r"\$\{(\w+)", text))
    assert {
        "PREFECT_AUTH",
        "POSTGRES_PASSWORD",
        "S3_SECRET_KEY",
        "GRAFANA_PASSWORD",
    } <= asked
    lines = (DEPLOY / "env.example").read_text().splitlines()
    example = dict(
        line.split("=", 1) for line in lines if line and not line.startswith("#")
    )
    assert set(example) == asked
    assert set(example.values()) == {""}
    # Without a value nothing starts, but for the message and the digests, which are
    # optional.
    optional = {name for name in asked if re.search(rf"\$\{{{name}(:-|\?)", text)}
    assert optional == {
        "RFF_DIST_NOTIFY_URL",
        *(name for name in asked if name.endswith("_DIGEST")),
    }


def test_every_service_is_hardened_and_none_but_the_one_that_gives_a_volume_away_is_root():
    for name, service in COMPOSE["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        user, _, _ = service["user"].partition(":")
        if name == "s3-folder":
            assert (user, service["cap_add"], service["restart"]) == (
                "0",
                ["CHOWN"],
                "no",
            )
            continue
        assert "cap_add" not in service, name
        assert user != "0", name


def test_only_services_that_publish_a_port_reach_beyond_their_networks():
    outside = {
        name
        for name, how in COMPOSE["networks"].items()
        if not (how or {}).get("internal")
    }
    assert outside == {"outside"}
    for name, service in COMPOSE["services"].items():
        assert ("outside" in service["networks"]) == ("ports" in service), name


IMAGE = re.compile(r"[a-z0-9./_-]+:[\w.-]+\$\{[A-Z]+_DIGEST\?[^}]+\}")


def test_images_that_are_pulled_have_a_tag_and_take_a_digest():
    for name, service in COMPOSE["services"].items():
        if not service["image"].startswith("rff_dist-"):
            assert IMAGE.fullmatch(service["image"]), name
        elif "build" in service:
            assert service["build"]["args"]["PYTHON_DIGEST"].startswith(
                "${PYTHON_DIGEST?"
            ), name
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.M)
    assert set(bases) == {"${PYTHON_IMAGE}${PYTHON_DIGEST}", "runtime"}


def test_compose_mounts_files_that_exist_and_certificates_that_the_script_makes(
    certificates,
):
    mounted = [
        volume.split(":")[0]
        for s in COMPOSE["services"].values()
        for volume in s.get("volumes", [])
    ]
    assert [
        path
        for path in mounted
        if path.startswith("./") and not (DEPLOY / path).is_file()
    ] == []
    secrets = {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()}
    assert secrets <= {path.name for path in certificates.iterdir()}
    assert "ca-key.pem" not in secrets


# -- Kubernetes
# --------------------------------------------------------------------------------------


KUSTOMIZATION = load("kubernetes/kustomization.yaml")
RESOURCES = [
    one for name in KUSTOMIZATION["resources"] for one in load_all(f"kubernetes/{name}")
]
CLUSTER = next(resource for resource in RESOURCES if resource["kind"] == "DaskCluster")
PREFECT_WORKER = next(
    resource for resource in RESOURCES if resource["kind"] == "Deployment"
)
PODS = {
    "scheduler": CLUSTER["spec"]["scheduler"]["spec"],
    "worker": CLUSTER["spec"]["worker"]["spec"],
    "prefect-worker": PREFECT_WORKER["spec"]["template"]["spec"],
}


@pytest.mark.parametrize(
    "resource",
    [*RESOURCES, *load_all("kubernetes/secrets.example.yaml")],
    ids=lambda resource: f"{resource['kind']} {resource['metadata']['name']}",
)
def test_kubernetes_resources_keep_to_their_schemas(resource):
    if resource["apiVersion"] != "kubernetes.dask.org/v1":
        kubernetes_validate.validate(resource, KUBERNETES, strict=True)


def test_dask_cluster_is_made_of_valid_pods_and_what_the_operator_looks_for():
    # The CRD's rules, by hand: dask-kubernetes 2026.3.0, whose package is not installed
    # here.
    assert CLUSTER["apiVersion"] == "kubernetes.dask.org/v1"
    spec = CLUSTER["spec"]
    assert set(spec) <= {"worker", "scheduler", "idleTimeout"}
    assert set(spec["scheduler"]) == {"metadata", "spec", "service"}
    assert set(spec["worker"]) == {"replicas", "metadata", "spec"}
    for part in ("scheduler", "worker"):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": part},
            "spec": PODS[part],
        }
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    service = spec["scheduler"]["service"]
    whole = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "scheduler"},
        "spec": service,
    }
    kubernetes_validate.validate(whole, KUBERNETES, strict=True)
    assert {port["name"] for port in service["ports"]} == {"tcp-comm", "http-dashboard"}
    assert service["type"] == "ClusterIP"
    assert service["selector"] == {
        "dask.org/cluster-name": CLUSTER["metadata"]["name"],
        "dask.org/component": "scheduler",
    }
    autoscaler = next(
        resource for resource in RESOURCES if resource["kind"] == "DaskAutoscaler"
    )
    assert autoscaler["apiVersion"] == "kubernetes.dask.org/v1"
    assert set(autoscaler["spec"]) == {"cluster", "minimum", "maximum"}
    assert autoscaler["spec"]["cluster"] == CLUSTER["metadata"]["name"]
    assert 0 < autoscaler["spec"]["minimum"] < autoscaler["spec"]["maximum"]


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_kubernetes_pods_are_not_root_and_have_limits(pod):
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]["limits"]) == {"cpu", "memory"}
        assert container.get("livenessProbe") or container.get("readinessProbe")


def test_kubernetes_cluster_speaks_tls_only():
    for part in ("scheduler", "worker"):
        (container,) = PODS[part]["containers"]
        assert container["args"][container["args"].index("--protocol") + 1] == "tls"
        environment = {entry["name"]: entry["value"] for entry in container["env"]}
        assert (
            environment["DASK_DISTRIBUTED__COMM__TLS__CA_FILE"]
            == "/etc/dask-tls/ca.crt"
        )
        assert f"DASK_DISTRIBUTED__COMM__TLS__{part.upper()}__KEY" in environment
    (client,) = PODS["prefect-worker"]["containers"]
    addresses = [
        entry["value"]
        for container in (client, PODS["worker"]["containers"][0])
        for entry in container["env"]
        if entry["name"] in ("RFF_DIST_SCHEDULER", "DASK_SCHEDULER_ADDRESS")
    ]
    name = CLUSTER["metadata"]["name"]
    namespace = KUSTOMIZATION["namespace"]
    assert (
        addresses == [f"tls://{name}-scheduler.{namespace}.svc.cluster.local:8786"] * 2
    )


CLUSTER_LABELS = {"dask.org/cluster-name": CLUSTER["metadata"]["name"]}
PLACES = {
    "scheduler": {**CLUSTER_LABELS, "dask.org/component": "scheduler"},
    "worker": {**CLUSTER_LABELS, "dask.org/component": "worker"},
    "prefect-worker": PREFECT_WORKER["spec"]["template"]["metadata"]["labels"],
    "another pod": {"app": "another"},
    # namespaces and hosts
    "operator": {"kubernetes.io/metadata.name": "dask-operator"},
    "monitoring": {"kubernetes.io/metadata.name": "monitoring"},
    "DNS": {"kubernetes.io/metadata.name": "kube-system"},
    "the internet": {},
}
OTHERS = ("operator", "monitoring", "DNS", "the internet")


def selects(selector, labels):
    assert set(selector) <= {"matchLabels", "matchExpressions"}
    expressions = selector.get("matchExpressions", [])
    assert all(one["operator"] == "In" for one in expressions)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(one["key"]) in one["values"] for one in expressions
    )


def allowed(side, pod, other, port):
    """Whether the policies let a pod take (Ingress) or make (Egress) a connection;
    other places have none.
    """
    if pod in OTHERS:
        return True
    policies = [r["spec"] for r in RESOURCES if r["kind"] == "NetworkPolicy"]
    mine = [
        p
        for p in policies
        if side in p["policyTypes"] and selects(p["podSelector"], PLACES[pod])
    ]
    assert mine, f"no policy closes {pod}"
    kind = "namespaceSelector" if other in OTHERS else "podSelector"
    peers = {"Ingress": "from", "Egress": "to"}[side]
    return any(
        port in [one["port"] for one in rule["ports"]]
        and (
            peers not in rule
            or any(
                selects(peer[kind], PLACES[other])
                for peer in rule[peers]
                if kind in peer
            )
        )
        for policy in mine
        for rule in policy.get(side.lower(), [])
    )


def test_network_policies_let_through_what_is_needed_and_nothing_else():
    ports = (53, 80, 443, 4200, 5432, 8080, 8786, 8787, 8788, 8789)
    pods = [place for place in PLACES if place not in OTHERS]
    found = {
        (source, target, port)
        for source in PLACES
        for target in PLACES
        for port in ports
        if source in pods or target in pods
        if allowed("Egress", source, target, port)
        and allowed("Ingress", target, source, port)
    }
    assert found == {
        *((pod, "DNS", 53) for pod in pods),
        ("worker", "scheduler", 8786),
        ("prefect-worker", "scheduler", 8786),
        ("scheduler", "worker", 8789),
        ("worker", "worker", 8789),
        ("prefect-worker", "worker", 8789),
        ("operator", "scheduler", 8787),
        ("monitoring", "scheduler", 8787),
        ("monitoring", "worker", 8788),
        *(
            (pod, place, 443)
            for pod in ("worker", "prefect-worker")
            for place in OTHERS
        ),
    }


def test_example_secrets_are_those_that_pods_ask_for_and_are_empty():
    secrets = {
        secret["metadata"]["name"]: secret
        for secret in load_all("kubernetes/secrets.example.yaml")
    }
    # of variables, and of volumes
    asked = re.findall(
        r"'secret(?:Ref|KeyRef|)': {[^{}]*'(?:secretName|name)': '([\w-]+)'", str(PODS)
    )
    assert set(asked) == set(secrets)
    values = [
        {**one.get("data", {}), **one.get("stringData", {})}.values()
        for one in secrets.values()
    ]
    assert {value for one in values for value in one} == {""}


# -- certificates
# --------------------------------------------------------------------------------------


def make_certificates(folder, *hosts):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    return check("sh", DEPLOY / "tls.sh", folder, *hosts)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder, "scheduler", "10.0.0.7")
    return folder


@pytest.mark.parametrize("role", ["scheduler", "worker", "client"])
def test_certificates_are_signed_for_the_hosts_and_keys_are_private(certificates, role):
    assert "OK" in check(
        "openssl",
        "verify",
        "-CAfile",
        certificates / "ca.pem",
        certificates / f"{role}.pem",
    )
    names = check(
        "openssl",
        "x509",
        "-in",
        certificates / f"{role}.pem",
        "-noout",
        "-ext",
        "subjectAltName",
    )
    for name in (
        "DNS:localhost",
        "IP Address:127.0.0.1",
        "DNS:scheduler",
        "IP Address:10.0.0.7",
    ):
        assert name in names
    for key in (f"{role}-key.pem", "ca-key.pem"):
        assert stat.S_IMODE((certificates / key).stat().st_mode) == 0o600


def test_certificates_are_kept_while_they_are_good_and_replaced_else(
    certificates, tmp_path
):
    folder = tmp_path / "tls"
    shutil.copytree(certificates, folder)
    (folder / "worker-key.pem").unlink()
    said = make_certificates(folder, "scheduler", "10.0.0.7").splitlines()
    assert said == [
        "ca: kept",
        "scheduler: kept",
        "worker: made, for 365 days",
        "client: kept",
    ]
    assert make_certificates(folder, "another").count("made") == 3  # other names
    # what the old authority signed is worth nothing with a new one
    (folder / "ca.pem").unlink()
    assert make_certificates(folder, "another").count("made") == 4
    assert "OK" in check(
        "openssl", "verify", "-CAfile", folder / "ca.pem", folder / "client.pem"
    )


def test_hosts_that_are_none_are_refused(tmp_path):
    with pytest.raises(AssertionError, match="neither a host name nor an IP address"):
        make_certificates(tmp_path / "tls", "a,DNS:b")


# -- Slurm
# --------------------------------------------------------------------------------------

SBATCH = """#!/bin/sh
echo "$*" >> "$JOBS"
wc -l < "$JOBS"
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Make an `sbatch` that writes down what it is asked for, and an environment to be
    found.
    """
    monkeypatch.setenv("JOBS", str(tmp_path / "jobs"))
    for name, content in {"sbatch": SBATCH, "venv/bin/rff-dist": "#!/bin/sh\n"}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RFF_DIST_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("RFF_DIST_VENV", str(tmp_path / "venv"))
    return tmp_path


def submit(*arguments):
    # make's own
    environment = {
        name: value for name, value in os.environ.items() if name != "WORKERS"
    }
    return subprocess.run(
        [DEPLOY / "slurm/submit.sh", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_slurm_jobs_wait_for_the_scheduler_and_end_with_the_client(slurm, certificates):
    shutil.copytree(certificates, slurm / "run/tls")
    done = submit("fit", "data.zarr", "model with a space")
    assert done.returncode == 0, done.stderr
    scheduler, workers, client, end = (slurm / "jobs").read_text().splitlines()
    assert scheduler.endswith("scheduler.sbatch")
    assert "--array=1-4 --dependency=after:1 " in workers
    assert "--dependency=after:1 " in client
    assert client.endswith("client.sbatch fit data.zarr model with a space")
    assert "--dependency=afterany:3 --wrap scancel --quiet 1 2;" in end


def test_slurm_jobs_are_not_submitted_without_certificates(slurm):
    done = submit("fit", "data.zarr", "model")
    assert done.returncode == 69
    assert "tls.sh" in done.stderr
    assert not (slurm / "jobs").exists()


# -- metrics
# --------------------------------------------------------------------------------------


def test_dashboard_asks_only_for_metrics_that_exist():
    import distributed.http.scheduler.prometheus.core
    import distributed.http.scheduler.prometheus.semaphore
    import distributed.http.worker.prometheus.core

    dashboard = json.loads(
        (DEPLOY / "grafana/dashboard.json").read_text(encoding="utf-8")
    )
    expressions = [
        t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", [])
    ]
    asked = set(re.findall(r"\b(?:dask|process)_\w+", " ".join(expressions)))
    dask = {metric for metric in asked if metric.startswith("dask_")}
    assert dask
    for metric in dask:
        namespace, _, name = metric.removeprefix("dask_").partition("_")
        module = getattr(distributed.http, namespace).prometheus.core
        # Its collectors build names of parts, so the part is looked for in their
        # source.
        stem = re.sub(r"(_seconds|_total)+$", "", name)
        assert f'"{stem}' in Path(module.__file__).read_text(encoding="utf-8"), metric
    assert asked - dask == {"process_resident_memory_bytes"}


def test_a_second_start_in_the_folder_names_the_process_that_runs_and_no_other(
    tmp_path,
):
    """A number left by a crash may be another process's."""
    (tmp_path / "price-nightly").mkdir()
    end = {}
    for word in ("nightly", "another"):
        with subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)", word]
        ) as running:
            (tmp_path / "price-nightly/pid").write_text(f"{running.pid}\n")
            end[word] = subprocess.run(
                [DEPLOY / "nightly", "none.csv", "price"],
                cwd=tmp_path,
                env={**os.environ, "PREFECT_SERVER_API_PORT": "x"},
                capture_output=True,
                text=True,
                check=False,
            )
            running.kill()
        message = f"(pid {running.pid}): `kill {running.pid}` stops it"
        assert end[word].returncode != 0
        assert (message in end[word].stderr) == (word == "nightly")
