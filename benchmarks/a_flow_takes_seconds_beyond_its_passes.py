"""A training flow on a running Prefect server, beside the same training without
Prefect: at most 5 s more.
"""

import os
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measure import in_subprocess, make_data
from tests.processes import Process
from tests.system import answers, free_port

N_SAMPLES = 50_000
N_FEATURES = 8
N_COMPONENTS = 512

# Each in a process of its own, as a worker starts flows; the flow takes the steps of
# `ridge.fit.fit`.
PLAIN = """
import json, sys, time
start = time.time()
from tests.plain import fit_ridge
from rff_dist.engines.serial import SerialEngine
from rff_dist.kernels.stationary import Gaussian
from rff_dist.ridge.models import write_model
from rff_dist.storage.datasets import open_dataset
imported = time.time()
data, output, n_components = open_dataset(sys.argv[1]), sys.argv[2], int(sys.argv[3])
model, _ = fit_ridge(data, Gaussian(), engine=SerialEngine(1), n_components=n_components)
write_model(model, output, overwrite=True)
print(json.dumps({"imports": imported - start, "run": time.time() - imported}))
"""
FLOW = """
import json, sys, time
start = time.time()
from rff_dist.flows.train import train
imported = time.time()
data, output, n_components = sys.argv[1], sys.argv[2], int(sys.argv[3])
train(
    data=data,
    model=output,
    kernel="gaussian",
    length_scale="median",
    features="fourier",
    n_components=n_components,
    overwrite=True,
    serial=True,
    n_threads=1,
)
print(json.dumps({"imports": imported - start, "run": time.time() - imported}))
"""


def run(console: Console, folder: Path) -> None:
    data = make_data(folder, N_SAMPLES, N_FEATURES).url
    assert data is not None
    port = free_port()
    authentication = "user:benchmark"
    environment = {
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_API_AUTH_STRING": authentication,
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    server = Process.start(
        "prefect-server", sys.executable, "-m", "prefect", "server", "start",
        "--host", "127.0.0.1", "--port", str(port),
        folder=folder, environment={
            **os.environ, **environment, "PREFECT_SERVER_API_AUTH_STRING": authentication
        },
    )  # fmt: skip
    try:
        server.wait_until(
            lambda: answers(f"{environment['PREFECT_API_URL']}/health"),
            "Prefect's server",
        )
        table = Table(
            "run",
            "plain: imports",
            "fit",
            "flow: imports",
            "fit",
            "the flow's share",
            "of imports",
        )
        for i in range(4):
            plain, flow = (
                in_subprocess(
                    code, data, str(folder / name), str(N_COMPONENTS), **environment
                )
                for code, name in ((PLAIN, "plain"), (FLOW, "flow"))
            )
            more = (flow["run"] - plain["run"], flow["imports"] - plain["imports"])
            cells = (
                plain["imports"],
                plain["run"],
                flow["imports"],
                flow["run"],
                *more,
            )
            # The first run writes bytecode and registers the flow.
            table.add_row(
                "first" if i == 0 else str(i + 1),
                *(f"{seconds:.2f} s" for seconds in cells),
            )
        console.print(table)
    finally:
        server.stop()
