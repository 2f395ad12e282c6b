"""Bits that are flipped, and files that are cut, emptied, removed and swapped, are
noticed by who reads.
"""

import pytest

from tools import flips


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    return flips.write_subjects(tmp_path_factory.mktemp("flips"))


@pytest.mark.faults("F9")
# has many files
@pytest.mark.parametrize("name", [name for name in flips.NAMES if name != "models/m"])
def test_a_few_damages_of_each_kind_of_file_are_noticed(subjects, name):
    found = list(flips.try_damages(name, subjects[name], 3))
    assert [one for one in found if one[2] not in ("error", "same")] == []
    assert sum(one[2] == "error" for one in found) > len(found) / 4


@pytest.mark.faults("F9")
@pytest.mark.slow
# models have many kinds of files, each of which is damaged 300 times
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", flips.NAMES)
def test_300_flips_in_each_kind_of_file_are_noticed(subjects, name):
    found = flips.try_damages(name, subjects[name], 300)
    assert [one for one in found if one[2] not in ("error", "same")] == []
