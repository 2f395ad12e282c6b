"""Statistics as they are stored, and the order of their output tiles."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from rff_dist import RidgeStatistics
from rff_dist.errors import StatisticsError
from rff_dist.statistics.accumulate import accumulate_rows
from rff_dist.statistics.layouts import TileLayout
from tests.refusals import refuses
from tests.small_statistics import (
    LIMB_ROWS,
    accumulation,
    by_hand,
    feature_map,
    random_rows,
)


class TestStoring:
    def stored(self, n_components=514):
        state = accumulation(feature_map(n_components), target_offset=(1.0, 0.1))
        statistics = accumulate_rows(random_rows(60), state)
        metadata, arrays = statistics.to_arrays()
        return statistics, json.loads(json.dumps(metadata)), arrays

    def test_stored_statistics_come_back_equal(self):
        statistics, metadata, arrays = self.stored()
        assert arrays["gram_low"].shape == (514 * 515 // 2,)
        again = RidgeStatistics.from_arrays(metadata, arrays)
        assert again == statistics
        assert again.digest() == statistics.digest()
        assert_array_equal(again.ZtZ(), statistics.ZtZ())

    def test_two_limbs_come_back_equal(self):
        total = by_hand([2**62, 7, 7, 2**61], LIMB_ROWS)
        total += total
        metadata, arrays = total.to_arrays()
        assert arrays["gram_high"].shape == (3,)
        assert RidgeStatistics.from_arrays(metadata, arrays) == total
        with refuses(StatisticsError, "digest"):
            RidgeStatistics.from_arrays(
                metadata, {**arrays, "gram_high": arrays["gram_high"] + 1}
            )

    def test_the_digest_has_not_changed(self):
        """Frozen on purpose: a new value means that stored statistics can no longer be
        read.
        """
        total = by_hand([2**62, 7, 7, 2**61], LIMB_ROWS)
        assert total.digest()[:16] == "a7bf3e6dc6c45bf5"
        assert (total + total).digest()[:16] == "a9a7deacf00a91ac"

    @pytest.mark.parametrize(
        "name",
        [
            "gram_low",
            "cross_digits",
            "cross_lowest",
            "targets_digits",
            "targets_lowest",
        ],
    )
    def test_one_changed_number_is_found(self, name):
        _, metadata, arrays = self.stored()
        for place in (0, -1):
            changed = np.array(arrays[name])
            changed.flat[place] += 1
            with refuses(StatisticsError, "digest"):
                RidgeStatistics.from_arrays(metadata, {**arrays, name: changed})

    @pytest.mark.parametrize(
        "change",
        [
            {"n_samples": 61},
            {"digest": "0" * 64},
            {"scales": [[24, 0.5]]},
            {"target_offset": [1.0, 0.2]},
        ],
        ids=str,
    )
    def test_changed_metadata_is_found(self, change):
        _, metadata, arrays = self.stored()
        for key, value in change.items():
            (metadata if key in metadata else metadata["spec"])[key] = value
        with refuses(StatisticsError, "digest"):
            RidgeStatistics.from_arrays(metadata, arrays)


class TestTileLayout:
    @given(st.integers(1, 2_000))
    def test_tiles_cover_the_upper_triangle_once(self, n_components):
        layout = TileLayout(n_components)
        buffer = np.zeros(layout.size, np.int8)
        counts = np.zeros((n_components, n_components), np.int8)
        for place in layout.tiles():
            tile = layout.view(buffer, place)
            tile += 1  # a view: it writes through
            rows = slice(place.row, place.row + tile.shape[0])
            columns = slice(place.column, place.column + tile.shape[1])
            counts[rows, columns] += 1
        assert_array_equal(buffer, 1)
        assert (counts[np.triu_indices(n_components)] == 1).all()
        assert counts.max() == 1

    @given(st.integers(1, 9_000), st.sampled_from([512, 1024, 2048, 4096]))
    def test_regions_hold_each_tile_once_and_are_counted_without_a_list(
        self, n_components, most
    ):
        layout = TileLayout(n_components)
        assert layout.count_regions(most) == len(layout.regions(most))
        held = []
        for left, right, tiles in layout.regions(most):
            for row, column, offset in tiles:
                assert left.start <= row < left.stop <= n_components
                assert right.start <= column < right.stop <= n_components
                held.append((row, column, offset))
        assert sorted(held) == sorted(layout.tiles())
