"""Print the benchmarks' ratios: `make bench`, or `python -m benchmarks NAME …` for some
of them.

Those of `LONG` are run by name only: `make bench ARGS="NAME"`; `defaults` has options
of its own. Each claim is a module with a function `run(console, folder)`. What is
compared is measured side by side in one run, in turns, since absolute times on a shared
machine mean little."""

import argparse
import os
import platform
import sys
import tempfile
from functools import partial
from importlib import import_module
from pathlib import Path

import threadpoolctl
from rich.console import Console

from benchmarks.measure import describe_processor, seconds

CLAIMS = (
    "passes_reach_the_dsyrk_limit",
    "one_row_is_predicted_as_fast_as_by_scikit_learn",
    "blocked_cholesky_keeps_up_with_lapack",
    "nystrom_pass_keeps_near_the_dsyrk_limit",
    "a_table_costs_less_than_three_fits",
    "empty_blocks_cost_the_client_little",
    "each_command_of_a_night_takes_seconds",
)
LONG = (  # minutes to an hour each
    "less_time_for_the_same_error_than_others",
    "a_killed_pass_repeats_little",
    "an_update_takes_what_changed",
    "falkons_errors_in_half_its_time",
    "lloyd_pass_keeps_up_with_stored_features",
    "clusters_are_the_same_on_any_workers",
    "clusters_find_shapes",
    "clusters_of_millions_are_those_of_a_sample",
    "one_pass_beats_grid_search",
    "ridge_of_any_size_keeps_its_memory",
    "a_flow_takes_seconds_beyond_its_passes",
    "pairs_or_phases",
    "no_absurd_models",
    "intervals_beat_normal_ones",
    "fifteen_bits_lose_nothing",
    "lecture_kernel_svm",
    "iterating_costs_less_than_the_sums",
    "a_thousand_workers_are_busy",
    "plans_keep_to_measured_fits",
    "nothing_is_silent_for_two_seconds",
    "a_map_is_predicted_in_two_minutes",
)

DEFAULTS = "defaults"  # a command with options of its own


def main() -> None:
    if sys.argv[1:2] == [DEFAULTS]:
        from benchmarks.defaults import command

        command.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "claims", nargs="*", metavar="NAME", help=f"any of {', '.join(CLAIMS + LONG)}"
    )
    parser.add_argument(
        "--keep",
        metavar="FOLDER",
        type=Path,
        help="where data and pictures are written, and stay",
    )
    arguments = parser.parse_args()
    chosen = arguments.claims or CLAIMS
    unknown = set(chosen) - set(CLAIMS + LONG)
    if unknown:
        parser.error(
            f"unknown benchmark {', '.join(sorted(unknown))}; expected any of"
            f" {', '.join(CLAIMS + LONG)}"
        )
    console = Console(width=None if Console().is_terminal else 110)
    import numpy as np

    blas = {
        f"{b['internal_api']} {b['version']}"
        for b in threadpoolctl.threadpool_info()
        if b["user_api"] == "blas"
    }
    console.print(
        f"{describe_processor()}, {len(os.sched_getaffinity(0))} threads, Python"
        f" {platform.python_version()}, NumPy {np.__version__},"
        f" {', '.join(sorted(blas))},"
        f" OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')}",
        highlight=False,
    )
    for claim in chosen:
        console.rule(claim.replace("_", " "))
        with tempfile.TemporaryDirectory(prefix="rff_dist-bench-") as temporary:
            folder = Path(temporary) if arguments.keep is None else arguments.keep
            folder.mkdir(parents=True, exist_ok=True)
            module = import_module(f"benchmarks.{claim}")
            console.print(
                f"{seconds(partial(module.run, console, folder)):.0f} s", style="dim"
            )


if __name__ == "__main__":
    main()
