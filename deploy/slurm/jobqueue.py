"""Train on four workers that dask-jobqueue submits as Slurm jobs.

The scheduler runs in this process, on the node where it is started, and ends with it.
Beside rff_dist it
needs `pip install dask-jobqueue`, and the certificates of deploy/tls.sh on a shared
disk::

    python deploy/slurm/jobqueue.py $HOME/rff_dist-run/tls data.zarr model
"""

import socket
import sys
from pathlib import Path

from dask_jobqueue import SLURMCluster
from distributed import Client, Security

from rff_dist import DaskEngine, open_dataset
from rff_dist.fitting.options import RidgeOptions
from rff_dist.ridge.fit import fit
from rff_dist.ridge.models import write_model


def cluster_of_jobs(tls: Path) -> SLURMCluster:
    """Start a scheduler here, whose workers will be jobs of four CPUs and 8 GB each."""
    security = Security(
        require_encryption=True,
        tls_ca_file=str(tls / "ca.pem"),
        tls_scheduler_cert=str(tls / "scheduler.pem"),
        tls_scheduler_key=str(tls / "scheduler-key.pem"),
        tls_worker_cert=str(tls / "worker.pem"),
        tls_worker_key=str(tls / "worker-key.pem"),
        tls_client_cert=str(tls / "client.pem"),
        tls_client_key=str(tls / "client-key.pem"),
    )
    return SLURMCluster(
        cores=4,
        processes=1,  # one block at a time, with all threads
        memory="8GB",
        walltime="01:00:00",
        security=security,
        protocol="tls://",
        scheduler_options={
            "host": socket.gethostname(),
            "dashboard_address": "127.0.0.1:0",
        },
        job_extra_directives=[],  # an account or partition: ["--account=…"]
    )


def main() -> None:
    """Fit, and save the model."""
    tls = Path(sys.argv[1])
    data = sys.argv[2]
    model = sys.argv[3]
    with cluster_of_jobs(tls) as cluster, Client(cluster) as client:
        # Not `adapt`: it counts tasks per thread, and an engine gives a worker of four
        # threads two blocks.
        cluster.scale(jobs=4)
        client.wait_for_workers(1)
        with DaskEngine(client=client) as engine:
            options = RidgeOptions(
                kernel="gaussian",
                length_scale="median",
                features="fourier",
                n_components=2048,
            )
            write_model(fit(open_dataset(data), options, engine=engine).model, model)


if __name__ == "__main__":
    main()
