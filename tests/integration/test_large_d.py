"""Fit and predict with 16,384 components and all threads, where threaded BLAS kills
naive code.
"""

import pytest

from tests.processes import run_script

# In a process of its own, so that a crash (numpy issue 19685) is a failed test and not
# the end of all tests.
SCRIPT = """
import json, time
import numpy as np
from rff_dist import Gaussian, RFFRidge, SerialEngine
from rff_dist.fitting.plan import SumOptions, plan_on_engine
from rff_dist.data.memory import ArrayDataset

n, n_components, alpha = 6_000, 16_384, 1e-2
rng = np.random.default_rng(0)
X = rng.standard_normal((n, 8)).astype(np.float32)
y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(n)
engine = SerialEngine()
model = RFFRidge(
    Gaussian(3.0), features="fourier", n_components=n_components, alpha=alpha, standardize=False,
    random_state=0, engine=engine
)
started = time.perf_counter()
model.fit(X, y)
fitted = time.perf_counter()
predictions = model.predict(X)
predicted = time.perf_counter()
held = peak()
planned = plan_on_engine(ArrayDataset(X, y), n_components, SumOptions(alpha=alpha), engine=engine).client_bytes

# The normal equations of 64 components, Z'(y - f) = alpha w with centred columns, and f by hand
sample = rng.choice(n_components, 64, replace=False)
columns, by_hand = np.empty((n, 64)), np.empty(n)
for start in range(0, n, 1_000):
    Z = model.feature_map_.transform(X[start : start + 1_000])
    columns[start : start + 1_000] = Z[:, sample]
    by_hand[start : start + 1_000] = Z @ model.feature_coef_ + model.feature_intercept_
columns -= columns.mean(axis=0)
broken = columns.T @ (y - predictions) - alpha * model.feature_coef_[sample]
print(json.dumps({
    "finite": bool(np.isfinite(model.feature_coef_).all() and np.isfinite(predictions).all()),
    "normal equations": np.abs(broken).max() / np.abs(columns.T @ y).max(),
    "mean residual": abs((y - predictions).mean()),
    "predictions": np.abs(predictions - by_hand).max(),
    "status": model.model_.card["solver"]["status"],
    "n_threads": engine.n_threads,
    "peak": held,
    "planned": planned,
    "fit s": fitted - started,
    "predict s": predicted - fitted,
}))
"""


@pytest.mark.slow
# 3.1e12 operations: 35 s on two free cores, more than a minute on busy ones
@pytest.mark.timeout(900)
def test_16_384_components_and_all_threads_fit_and_predict_within_the_plan():
    result = run_script(SCRIPT)
    assert result["finite"]
    assert result["status"] == "ok"
    assert result["normal equations"] < 1e-9, result
    assert result["mean residual"] < 1e-9, result
    assert result["predictions"] < 1e-9, result
    assert result["peak"] <= result["planned"], result


WORKERS = """
import json, sys
import numpy as np
from rff_dist import DaskEngine, Gaussian, accumulate, draw_feature_map, write_dataset
from rff_dist.fitting.plan import SumOptions, plan_on_engine

X = np.random.default_rng(0).standard_normal((65_536, 8)).astype(np.float32)
dataset = write_dataset(sys.argv[1], X, X[:, 0])
with DaskEngine(n_workers=2, threads_per_worker=1, memory_limit="8 GiB") as engine:
    plan = plan_on_engine(dataset, 16_384, SumOptions(alpha=1.0), engine=engine)
    feature_map = draw_feature_map(Gaussian(1.0), n_features=8, n_components=16_384, random_state=0)
    statistics = accumulate(dataset, feature_map, engine=engine)
    peaks = sorted(engine.client.run(peak).values())
print(json.dumps({
    "rows": statistics.n_samples, "blocks": plan.n_blocks, "peaks": peaks, "planned": plan.worker_bytes,
    "partial": plan.statistics_bytes, "limit": plan.memory_limit,
}))
"""


@pytest.mark.slow
@pytest.mark.distributed
# 1.8e13 operations: 2 minutes by bytes on two free cores, more on busy ones
@pytest.mark.timeout(900)
def test_two_workers_of_8_gib_sum_16_384_components_within_the_plan(tmp_path):
    result = run_script(WORKERS, tmp_path / "x.zarr")
    assert (result["rows"], result["blocks"], result["limit"]) == (65_536, 4, 2**33), (
        result
    )
    # Both held their total and a block's; one added the other's to it.
    assert (
        result["partial"]
        < result["peaks"][0]
        <= result["peaks"][1]
        <= result["planned"]
        < 2**33
    ), result
