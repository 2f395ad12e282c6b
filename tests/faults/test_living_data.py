"""Data and a registered model that change in any order: no row is lost in silence, or
counted twice.
"""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from numpy.testing import assert_allclose

from rff_dist.data.memory import ArrayDataset
from rff_dist.fields import build
from rff_dist.living.merge import merge, refit_on
from rff_dist.models.versions import RegisteredModel
from rff_dist.ridge.models import read_model
from rff_dist.storage.appending import append_dataset
from rff_dist.storage.corrections import delete_rows, replace_rows
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.locations import parse_location
from rff_dist.storage.repositories import other_snapshots, roll_back
from rff_dist.storage.writing import write_dataset
from rff_dist.workbench.jobs.forget import forget
from rff_dist.workbench.jobs.publishing import publish
from rff_dist.workbench.jobs.refresh import update_from
from rff_dist.workbench.jobs.refusals import refusals_of
from rff_dist.workbench.jobs.specs import Forget, Update
from rff_dist.workbench.jobs.steps import in_this_process
from tests.living_data import CHUNK, ENGINE, draw, fit, make_small, sum_like


class LivingData(RuleBasedStateMachine):
    """Append good and bad rows, correct, delete, forget, roll back, and update and
    merge at times.
    """

    @initialize()
    def begin(self):
        self.patched = pytest.MonkeyPatch()
        make_small(self.patched)
        self.folder = tempfile.TemporaryDirectory()
        self.url = f"{self.folder.name}/data"
        self.model = f"{self.folder.name}/model"
        self.seed = 0
        dataset = write_dataset(
            self.url, *self.draw(1500), chunk_rows=CHUNK, versioned=True
        )
        self.fit_anew()
        self.versions = [dataset.version]
        self.all_are_good = True

    def fit_anew(self):
        self.begun = fit(open_dataset(self.url))
        self.first = publish(self.begun, self.model, data=self.url).number

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()
            self.patched.undo()

    def draw(self, n):
        self.seed += 1
        return draw(n, self.seed)

    @property
    def n_samples(self):
        return open_dataset(self.url).n_samples

    @rule(n=st.sampled_from([1, 60, 400]))
    def append(self, n):
        self.versions.append(append_dataset(self.url, *self.draw(n)).version)

    @rule()
    def append_bad_rows(self):
        X, y = self.draw(400)
        self.versions.append(append_dataset(self.url, X, 20.0 * y[::-1]).version)
        self.all_are_good = False

    @rule(data=st.data())
    def correct(self, data):
        which = data.draw(
            st.lists(
                st.integers(0, self.n_samples - 1), min_size=1, max_size=6, unique=True
            )
        )
        self.versions.append(
            replace_rows(self.url, which, *self.draw(len(which))).version
        )

    @rule(data=st.data(), keep_order=st.booleans())
    def delete(self, data, keep_order):
        which = data.draw(
            st.lists(
                st.integers(0, self.n_samples - 1), min_size=1, max_size=40, unique=True
            )
        )
        self.versions.append(
            delete_rows(self.url, which, keep_order=keep_order).version
        )

    @rule(data=st.data())
    def roll_back_the_data(self, data):
        roll_back(parse_location(self.url), data.draw(st.sampled_from(self.versions)))

    @precondition(
        lambda self: hasattr(self, "model") and self.model_before() >= self.first
    )
    @rule()
    def roll_back_the_model(self):
        RegisteredModel(self.model).rollback()
        self.all_are_good = False

    def model_before(self):
        """Return which version of the model a rollback goes back to; 0 for none."""
        return max((0, *RegisteredModel(self.model).pointer().previous[-1:]))

    @rule(data=st.data())
    def forget(self, data):
        which = data.draw(
            st.lists(
                st.integers(0, self.n_samples - 1), min_size=1, max_size=6, unique=True
            )
        )
        rows = Path(self.folder.name, "rows.csv")
        rows.write_text("\n".join(["row", *map(str, which)]))
        gone = open_dataset(self.url).take(which).X
        job = Forget(data=self.url, rows=str(rows), models=[self.model])
        [found] = forget(job, in_this_process(ENGINE))["updates"]
        assert other_snapshots(parse_location(self.url)) == []
        dataset = open_dataset(self.url)
        left = dataset.take(np.arange(dataset.n_samples)).X
        assert not (left[:, np.newaxis] == gone).all(axis=2).any()
        if found["decision"] == "kept":  # beside rows that the gate refused
            assert not self.all_are_good
            self.fit_anew()
        elif found["n_samples"] == dataset.n_samples:
            assert (
                read_model(self.model).statistics.digest()
                == sum_like(self.begun, dataset).digest()
            )
        else:
            assert not self.all_are_good
        # Other versions of the model are of data that have expired.
        self.first = RegisteredModel(self.model).pointer().number
        self.versions = [dataset.version]

    @rule(n=st.sampled_from([1, 300]))
    def merge(self, n):
        """The rows of another dataset come to those of the model, whatever it has been
        through.
        """
        model = read_model(self.model)
        (X, y) = self.draw(n)
        merged = merge(
            [model, refit_on(model, ArrayDataset(X, y), engine=ENGINE)],
            ["here", "there"],
        )
        before = model.statistics
        after = merged.statistics
        Z = model.feature_map.transform(X)
        assert after.n_samples == before.n_samples + n
        # What float64 keeps of sums of some thousand rows.
        assert_allclose(after.ZtZ() - before.ZtZ(), Z.T @ Z, rtol=1e-9, atol=1e-9)
        assert_allclose(after.Zty() - before.Zty(), Z.T @ y, rtol=1e-9, atol=1e-9)

    def run(self, **options):
        dataset = open_dataset(self.url)
        job = build(Update, {"model": self.model, "data": self.url, **options})
        return dataset, update_from(job, dataset, in_this_process(ENGINE)).record

    @rule()
    def follow(self):
        before = read_model(self.model).digest()
        dataset, found = self.run()
        model = read_model(self.model)
        if found["decision"] == "kept":
            assert not self.all_are_good
            assert model.digest() == before
            assert any(
                one.data_version == dataset.version
                for one in refusals_of(parse_location(self.model))
            )
            return
        assert found["left_out"] == [] or not self.all_are_good
        for because in found["left_out_because"]:
            assert (
                "rolled back" in because
                or "with 99% confidence over 5% higher" in because
            )
        self.assert_holds(model, dataset, found["left_out"])

    @rule()
    def take_all_back(self):
        """What an update leaves out, a backfill brings back."""
        dataset, found = self.run(backfill=0, force=True)
        assert found["left_out"] == []
        assert (
            read_model(self.model).statistics.digest()
            == sum_like(self.begun, dataset).digest()
        )
        self.all_are_good = False  # the champion may be a bad one now

    def assert_holds(self, model, dataset, left_out):
        """A pass in memory over the rows that are said to be held is the oracle."""
        kept = np.ones(dataset.n_samples, bool)
        for start, stop in left_out:
            kept[start:stop] = False
        rows = dataset.take(np.flatnonzero(kept))
        expected = sum_like(self.begun, ArrayDataset(rows.X, rows.y[:, 0]))
        assert model.statistics.n_samples == expected.n_samples == int(kept.sum())
        # Rows lie in other tiles, which are rounded each.
        assert_allclose(model.statistics.ZtZ(), expected.ZtZ(), rtol=1e-9, atol=1e-9)
        assert_allclose(model.statistics.Zty(), expected.Zty(), rtol=1e-9, atol=1e-9)


LivingData.TestCase.settings = settings(
    max_examples=4,
    stateful_step_count=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLivingData = pytest.mark.faults("F16", "F17")(LivingData.TestCase)
