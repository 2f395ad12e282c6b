"""Print the benchmarks' ratios: `make bench`, or `python -m tests.benchmarks NAME …` for some of them.

Each claim is a module with a function `run(console, folder)`. What is compared is measured side by
side in one run, in turns, since absolute times on a shared machine mean little.
"""

import argparse
import os
import platform
import tempfile
from importlib import import_module
from pathlib import Path

import threadpoolctl
from rich.console import Console

CLAIMS = (
    "serial_pass_reaches_the_dsyrk_limit",
    "dask_pass_reaches_the_all_core_limit",
    "less_time_and_memory_than_a_scikit_learn_pipeline",
    "one_row_is_predicted_as_fast_as_by_scikit_learn",
    "blocked_cholesky_keeps_up_with_lapack",
    "structured_features_beat_dense",
    "nystrom_pass_keeps_near_the_dsyrk_limit",
    "lloyd_pass_keeps_up_with_stored_features",
    "pairs_or_phases",
    "one_pass_beats_grid_search",
    "a_table_costs_less_than_three_fits",
    "a_flow_takes_seconds_beyond_its_passes",
    "defaults_against_scikit_learn",
    "no_absurd_models",
    "fifteen_bits_lose_nothing",
    "lecture_kernel_svm",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("claims", nargs="*", metavar="NAME", help=f"any of {', '.join(CLAIMS)}")
    parser.add_argument(
        "--keep", metavar="FOLDER", type=Path, help="where data and pictures are written, and stay"
    )
    arguments = parser.parse_args()
    chosen = arguments.claims or CLAIMS
    unknown = set(chosen) - set(CLAIMS)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; expected any of {', '.join(CLAIMS)}")
    console = Console(width=None if Console().is_terminal else 110)
    import numpy as np

    blas = {
        f"{b['internal_api']} {b['version']}"
        for b in threadpoolctl.threadpool_info()
        if b["user_api"] == "blas"
    }
    console.print(
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, {', '.join(sorted(blas))}, "
        f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')}",
        highlight=False,
    )
    for claim in chosen:
        console.rule(claim.replace("_", " "))
        with tempfile.TemporaryDirectory(prefix="rff_dist-bench-") as temporary:
            folder = Path(temporary) if arguments.keep is None else arguments.keep
            folder.mkdir(parents=True, exist_ok=True)
            import_module(f"tests.benchmarks.{claim}").run(console, folder)


if __name__ == "__main__":
    main()
