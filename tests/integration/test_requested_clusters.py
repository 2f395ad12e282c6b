"""Clusters that are requested for a job: of a class of Dask's clusters, and of a Dask
Gateway.
"""

import gc
import os
import sys
from pathlib import Path

import distributed
import numpy as np
import pytest

from rff_dist import SerialEngine, open_dataset, write_dataset
from rff_dist.engines.cluster import Cluster
from rff_dist.engines.connecting import open_engine
from rff_dist.errors import (
    ClusterUnavailableError,
    InvalidParameterError,
    MissingDependencyError,
)
from rff_dist.fitting.options import RidgeOptions
from rff_dist.ridge.fit import fit
from tests.dask_processes import forked_workers
from tests.processes import Process
from tests.refusals import refuses
from tests.system import answers, free_port

pytestmark = pytest.mark.distributed

OPTIONS = RidgeOptions(
    kernel="gaussian", length_scale=1.0, features="fourier", n_components=32, alpha=0.1
)
LOCAL = """n_workers = 0
threads_per_worker = 1
host = "127.0.0.1"
dashboard_address = "127.0.0.1:0"
"""


@pytest.fixture
def data(tmp_path):
    X = np.random.default_rng(0).standard_normal((2000, 3))
    write_dataset(tmp_path / "data.zarr", X, X.sum(axis=1), chunk_rows=200)
    return open_dataset(tmp_path / "data.zarr")


def arguments(tmp_path, text):
    (tmp_path / "arguments.toml").write_text(text)
    return str(tmp_path / "arguments.toml")


def test_a_class_of_clusters_makes_one_that_ends_with_the_job_and_has_the_same_bits(
    data, tmp_path
):
    wanted = Cluster(
        cluster="distributed.LocalCluster",
        cluster_config=arguments(tmp_path, LOCAL),
        n_workers=2,
    )
    assert wanted.is_elsewhere
    with forked_workers(), open_engine(wanted) as engine:
        address = engine.address
        assert 1 <= engine.n_workers <= 2
        assert engine.n_threads == 1
        there = fit(data, OPTIONS, engine=engine).model
    assert there.digest() == fit(data, OPTIONS, engine=SerialEngine(1)).model.digest()
    with pytest.raises(OSError):
        distributed.Client(address, timeout=0.5, set_as_default=False)


@pytest.mark.parametrize(
    ("name", "text", "error", "named"),
    [
        # no cluster: it is not called
        ("subprocess.Popen", "", InvalidParameterError, "subprocess.Popen"),
        ("distributed.NoCluster", "", InvalidParameterError, "distributed.NoCluster"),
        ("LocalCluster", "", InvalidParameterError, "LocalCluster"),
        ("no_such_package.Cluster", "", MissingDependencyError, "no_such_package"),
        (
            "distributed.LocalCluster",
            "n_workers = ",
            InvalidParameterError,
            "cluster_config",
        ),
        (
            "distributed.LocalCluster",
            "no_argument = 1",
            ClusterUnavailableError,
            "cluster_config",
        ),
    ],
)
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
def test_what_is_no_cluster_or_does_not_start_is_refused(
    tmp_path, name, text, error, named
):
    with refuses(error, named):
        open_engine(Cluster(cluster=name, cluster_config=arguments(tmp_path, text)))
    with refuses(InvalidParameterError, "none.toml"):
        open_engine(Cluster(cluster=name, cluster_config="none.toml"))
    # a LocalCluster that does not start leaves its scheduler's sockets open
    gc.collect()


@pytest.fixture
def gateway(tmp_path):
    """Run a Dask Gateway whose clusters are processes of this machine; return its
    address.
    """
    pytest.importorskip("dask_gateway_server")
    api = free_port()
    proxy = free_port()
    dask = str(Path(sys.executable).with_name("dask"))
    (tmp_path / "gateway.py").write_text(
        # The whole environment, since what it says of BLAS decides last digits.
        f"""c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.address, c.Proxy.address = "127.0.0.1:{api}", "127.0.0.1:{proxy}"
c.LocalBackend.clusters_directory = "{tmp_path / "clusters"}"
c.UnsafeLocalBackend.inherited_environment = {[*os.environ]}
c.ClusterConfig.scheduler_cmd, c.ClusterConfig.worker_cmd = ["{dask}", "scheduler"], ["{dask}", "worker"]
"""
    )
    server = Path(sys.executable).with_name("dask-gateway-server")
    command = (str(server), "--config", str(tmp_path / "gateway.py"))
    address = f"http://127.0.0.1:{proxy}"
    with Process.start(
        "gateway", *command, folder=tmp_path, environment=os.environ
    ) as running:
        running.wait_until(lambda: answers(f"{address}/api/health"), "the gateway", 60)
        yield address


@pytest.mark.slow
def test_a_gateways_cluster_grows_for_the_job_and_has_the_same_bits(
    data, gateway, tmp_path
):
    file = arguments(tmp_path, 'auth = "basic"\n')
    wanted = Cluster(cluster=f"gateway:{gateway}", cluster_config=file, n_workers=2)
    with open_engine(wanted) as engine:
        assert engine.address.startswith("gateway://")  # by the gateway's own TLS
        there = fit(data, OPTIONS, engine=engine).model
    assert there.digest() == fit(data, OPTIONS, engine=SerialEngine(1)).model.digest()
    with refuses(ClusterUnavailableError, "nobody_knows"):
        open_engine(
            Cluster(
                cluster=f"gateway:{gateway}",
                cluster_config=arguments(tmp_path, "nobody_knows = 1"),
            )
        )
