"""Examples in docstrings print what they say."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import rff_dist

ROOT = Path(rff_dist.__file__).parent
EXAMPLE = re.compile(r"^ *>>> (?!.*# doctest: \+SKIP$)", re.MULTILINE)
WITH_EXAMPLES = sorted(path for path in ROOT.rglob("*.py") if EXAMPLE.search(path.read_text()))
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_print_what_they_say(path):
    module = importlib.import_module(".".join(path.relative_to(ROOT.parent).with_suffix("").parts))
    found = doctest.testmod(module, optionflags=FLAGS)  # what differs is printed
    assert found.attempted > 0
    assert found.failed == 0
