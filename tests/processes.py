"""What tests need for the processes that they start."""

import os


def environment_of_all_cores() -> dict[str, str]:
    """Return the environment without the suite's limit of BLAS threads, as a user's process has it."""
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
