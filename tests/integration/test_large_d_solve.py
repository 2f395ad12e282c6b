"""A solve at D = 16,384 with two threads, where threaded OpenBLAS kills the process (numpy issue 19685)."""

import json
import subprocess
import sys

import pytest

from tests.processes import environment_of_all_cores

# In a process of its own, so that a crash is a failed test and not the end of all tests. The Gram is
# d·I + VV', whose inverse is known in closed form (Woodbury), and it is factored in place: 2 GiB.
SCRIPT = """
import json, os, time
os.sched_getaffinity = lambda _: {0, 1}
import numpy as np
from rff_dist.numerics.cholesky import solve_cholesky
from rff_dist.numerics.solution import NormalEquations

n, rank, alpha = 16_384, 32, 3.0
rng = np.random.default_rng(0)
V = rng.normal(size=(n, rank))
gram = np.empty((n, n))
for start in range(0, n, 1_024):
    gram[start : start + 1_024] = V[start : start + 1_024] @ V.T
gram.flat[:: n + 1] += 100.0
moments = rng.normal(size=(n, 3))
equations = NormalEquations(
    gram=gram, moments=moments, total_sum_of_squares=np.full(3, 1e6), feature_means=np.zeros(n),
    target_means=np.zeros(3), n_samples=10**6, sum_of_weights=1e6, fit_intercept=False,
)
started = time.perf_counter()
solution = solve_cholesky(equations, alpha, overwrite_gram=True)
seconds = time.perf_counter() - started
d = 100.0 + alpha
expected = (moments - V @ np.linalg.solve(d * np.eye(rank) + V.T @ V, V.T @ moments)) / d
error = np.abs(solution.coefficients - expected).max() / np.abs(expected).max()
print(json.dumps({"error": error, "seconds": seconds, "status": solution.status}))
"""


@pytest.mark.slow  # most of a minute of both cores, and 2 GiB
def test_a_solve_with_16_384_components_and_two_threads_survives_and_is_right():
    command, environment = [sys.executable, "-c", SCRIPT], environment_of_all_cores()
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["status"] == "ok"
    # condition number about 200
    assert result["error"] < 1e-11
