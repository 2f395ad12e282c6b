"""Sums of Z'Z in parts have the bits of one pass, and fits use them if workers have
little memory.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rff_dist import Gaussian, HashFolds, SerialEngine, accumulate, draw_feature_map
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import StatisticsError
from rff_dist.fitting.plan import plan_fit
from rff_dist.fitting.sizes import Machines, PlannedFit, Sizes, SumOptions
from rff_dist.statistics.accumulate import Accumulation, Accumulations
from rff_dist.statistics.layouts import Part, TileLayout
from rff_dist.statistics.passes import (
    accumulate_folds,
    accumulate_shared,
    statistics_spec,
)
from tests.plain import fit_ridge
from tests.refusals import refuses

RNG = np.random.default_rng(5)
ROWS = ArrayDataset(
    RNG.normal(size=(700, 3)).astype(np.float32), RNG.normal(size=(700, 2))
)


@given(n_components=st.integers(1, 20_000), n_parts=st.integers(1, 70))
@settings(max_examples=60, deadline=None)
def test_each_output_tile_is_in_one_part_and_parts_are_alike(n_components, n_parts):
    whole = TileLayout(n_components)
    parts = [TileLayout(n_components, Part(i, n_parts)) for i in range(n_parts)]
    places = [(row, column) for part in parts for row, column, _ in part.tiles()]
    assert sorted(places) == sorted((row, column) for row, column, _ in whole.tiles())
    assert sum(part.size for part in parts) == whole.size
    assert max(part.size for part in parts) <= whole.size / n_parts + 2048**2
    for part in parts:
        starts = [offset for _, _, offset in part.tiles()]
        assert starts == sorted(starts)
        assert all(start < part.size for start in starts)


# in fixed point, and on a grid
@pytest.mark.parametrize("precision", ["standard", "high"])
@pytest.mark.parametrize(("n_components", "n_parts"), [(300, 3), (1200, 5)])
def test_sums_in_parts_have_the_bits_of_one_pass(precision, n_components, n_parts):
    feature_map = draw_feature_map(
        "gaussian", n_features=3, n_components=n_components, precision=precision
    )
    whole = accumulate(ROWS, feature_map)
    assert accumulate(ROWS, feature_map, n_parts=n_parts).digest() == whole.digest()
    member = Accumulation(feature_map, statistics_spec(ROWS, feature_map))
    folds = HashFolds(3)
    engine = SerialEngine()
    state = Accumulations((member,), folds, ROWS.n_samples).of_part(0, n_parts)
    (apart,) = accumulate_shared(ROWS, engine.broadcast(state), engine=engine)
    (at_once,) = accumulate_folds(ROWS, [member], folds=folds, engine=engine)
    assert apart == at_once


def test_rows_that_change_between_parts_are_noticed():
    class Changing(ArrayDataset):
        n_read = 0

        def read(self, block):
            rows = super().read(block)
            self.n_read += 1
            assert rows.y is not None
            return rows if self.n_read == 1 else replace(rows, y=rows.y + 1.0)

    feature_map = draw_feature_map("gaussian", n_features=3, n_components=1200)
    rows = Changing(ROWS.X, ROWS.y)
    spec = statistics_spec(rows, feature_map)
    with refuses(StatisticsError, "the data changed between them"):
        accumulate(rows, feature_map, spec=spec, n_parts=2)


class SmallWorkers(SerialEngine):
    """A serial engine for which plans assume a client and workers with little
    memory.
    """

    memory = 0

    @property
    def is_in_process(self):
        return False

    @property
    def worker_memory(self):
        return self.memory


@pytest.mark.parametrize("alpha", [1e-3, "cv"])
def test_fit_whose_sums_no_worker_holds_is_the_same_model(alpha):
    rows = ArrayDataset(ROWS.X, ROWS.y[:, 0])
    n_components = 1024
    machines = Machines(has_separate_client=True, client_memory_limit=2**40)
    n_folds = 1 if alpha == 1e-3 else 5
    job = PlannedFit(
        Sizes.of(rows), n_components, machines, SumOptions(n_folds=n_folds)
    )
    whole = plan_fit(job)
    engine = SmallWorkers(n_threads=1)
    engine.memory = whole.worker_bytes - whole.statistics_bytes // 4
    machines = replace(machines, memory_limit=engine.memory)
    plan = plan_fit(
        replace(
            job, machines=machines, sums=SumOptions(n_folds=n_folds, may_use_parts=True)
        )
    )
    assert plan.n_parts > 1
    assert plan.bytes_read > whole.bytes_read
    passes = []
    engine.observers = (passes.append,)
    options = {"n_components": n_components, "alpha": alpha}
    model, _ = fit_ridge(rows, Gaussian(), engine=engine, **options)
    expected, _ = fit_ridge(rows, Gaussian(), engine=SerialEngine(), **options)
    assert model.statistics.digest() == expected.statistics.digest()
    np.testing.assert_array_equal(model.coefficients, expected.coefficients)
    assert (
        sum(getattr(event, "label", "") == "accumulate" for event in passes)
        > plan.n_parts
    )
