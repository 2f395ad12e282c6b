"""No result depends on how many threads BLAS has, on what a process did before, or on
its other threads.
"""

import numpy as np
import pytest

from rff_dist import save_model
from tests.plain import plain_ridge
from tests.processes import run_script

# Prints digests of many jobs, in the order that is asked for, and how many threads BLAS
# has in the end.
SCRIPT = """
import hashlib, json, sys, warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import rff_dist
from rff_dist.data.memory import ArrayDataset
from rff_dist.fitting.options import RidgeOptions
from rff_dist.ridge.fit import fit

warnings.simplefilter("ignore")
url, order, n_threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = np.random.default_rng(0)
X = rng.normal(size=(600, 3))
y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.normal(size=len(X))
KINDS = {
    "fourier": {"kernel": "gaussian", "features": "fourier"},
    "nystrom": {"kernel": "gaussian", "features": "nystrom"},
    "additive": {"kernel": "additive", "features": "fourier"},
}


def digest(*arrays):
    hasher = hashlib.sha256()
    for array in arrays:
        hasher.update(np.ascontiguousarray(array, np.float64).tobytes())
    return hasher.hexdigest()


def stored():
    return digest(rff_dist.load_model(url).predict(X))


def library(kind):
    options = RidgeOptions(**KINDS[kind], length_scale=1.5, n_components=520, alpha=1.0)
    return fit(ArrayDataset(X, y), options, engine=rff_dist.SerialEngine(2)).model.digest()


def ridge(kind, **options):
    plain = {"length_scale": 1.5, "n_components": 300, "random_state": 0, "alpha": "gcv"}
    model = rff_dist.RFFRidge(**plain | KINDS[kind] | options).fit(X, y)
    return digest(model.predict(X), model.score(X, y))


def classes(kind):
    model = rff_dist.RFFClassifier(**KINDS[kind], length_scale=1.5, n_components=300, random_state=0)
    return digest(model.fit(X, y > 0).predict_proba(X))


def clusters(kind):
    model = rff_dist.RFFKMeans(3, **KINDS[kind], length_scale=1.5, n_components=300, random_state=0).fit(X)
    return digest(model.inertia_, model.predict(X), model.transform(X))


def components(kind):
    options = {"length_scale": 1.5, "n_random_features": 300, "random_state": 0}
    return digest(rff_dist.RFFPCA(3, **KINDS[kind], **options).fit(X).transform(X))


def scales():
    return digest(rff_dist.tune_length_scales("gaussian", X, y, random_state=0).length_scale)


# the library comes first, since estimators load SciPy's BLAS
JOBS = {"library": lambda: library("nystrom"), "stored": stored, "scales": scales}
JOBS["classes"] = lambda: classes("nystrom")
JOBS["clusters"] = lambda: clusters("nystrom")
JOBS["components"] = lambda: components("additive")
for kind in KINDS:
    JOBS[f"ridge, {kind}"] = lambda kind=kind: ridge(kind)
for alpha in ("cv", "evidence"):
    JOBS[f"alpha by {alpha}"] = lambda alpha=alpha: ridge("nystrom", alpha=alpha)
JOBS["pcg"] = lambda: ridge("nystrom", alpha=1.0, solver="pcg")


def all_jobs(_=None):
    names = list(JOBS) if order == "forwards" else list(JOBS)[::-1]
    return {name: JOBS[name]() for name in names}


with ThreadPoolExecutor(n_threads) as pool:
    found = list(pool.map(all_jobs, range(n_threads)))
from threadpoolctl import threadpool_info

left = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
print(json.dumps([found, left]))
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Return where a Nyström model is stored, whose whitener each process makes
    again.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3))
    options = {
        "features": "nystrom",
        "length_scale": 1.5,
        "n_components": 520,
        "alpha": 1.0,
    }
    url = tmp_path_factory.mktemp("models") / "nystrom"
    save_model(plain_ridge(**options).fit(X, np.sin(X[:, 0])), url)
    return url


def run(url, order, *, blas_threads, threads):
    return run_script(
        SCRIPT, url, order, threads, OPENBLAS_NUM_THREADS=str(blas_threads)
    )


def test_no_bit_depends_on_threads_of_blas_on_earlier_jobs_or_on_concurrent_ones(url):
    [expected], _ = run(url, "forwards", blas_threads=1, threads=1)
    found, left = run(url, "backwards", blas_threads=4, threads=2)
    for results in found:
        assert {name for name in expected if results[name] != expected[name]} == set()
    assert min(left) > 1  # as the environment said
