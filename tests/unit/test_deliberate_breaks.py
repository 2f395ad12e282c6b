"""The breaks of tools/deliberate_breaks.py still say what the code is."""

import pytest

from tools.deliberate_breaks import BREAKS


@pytest.mark.parametrize("broken", BREAKS, ids=lambda one: one.name)
def test_the_text_of_a_break_stands_once(project_root, broken):
    assert (project_root / broken.path).read_text().count(broken.old) == 1
    assert broken.new != broken.old
    assert all((project_root / tests).exists() for tests in broken.tests)
