"""Hostile files: they run no code, claim no memory, and name nothing outside their
folder.
"""

import contextlib
import json
import resource
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rff_dist.errors import IntegrityError, RFFDistError, StorageError
from rff_dist.storage import locations, manifests, repositories
from rff_dist.storage.locations import parse_location
from rff_dist.storage.records import read_record, write_record
from tools import flips


def test_a_model_that_claims_more_than_it_has_takes_no_memory(tmp_path):
    write_record("m", kind="test", metadata={}, arrays={"a": np.ones(1000)})
    header = tmp_path / "m/a/zarr.json"
    claim = 2**34
    header.write_text(header.read_text().replace("1000", str(claim // 8)))
    document = json.loads((tmp_path / "m/zarr.json").read_text())
    manifest = document["attributes"]["rff_dist"]
    manifest["arrays"]["a"]["metadata"] = locations.json_digest(
        json.loads(header.read_text())
    )
    (tmp_path / "m/zarr.json").write_bytes(
        manifests.sign_group(document, {"rff_dist": manifest})
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((IntegrityError, StorageError), match=r"claims|pieces of"):
        read_record("m")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    return flips.write_subjects(tmp_path_factory.mktemp("hostile"))


def test_no_pickle_is_loaded(subjects):
    """An audit hook cannot be removed, so it is set in another process."""
    code = """
import sys
found = []
sys.addaudithook(lambda event, _: found.append(event) if event.startswith(("pickle.", "os.system")) else None)
from pathlib import Path
from rff_dist.storage.datasets import read_arrays
from rff_dist.ridge.models import read_model
from rff_dist.models.versions import RegisteredModel
from tools import flips
folder = Path(sys.argv[1])
for name in ("plain", "versioned"):
    flips.read_data(folder / name)
flips.read_predictions(folder / "predictions")
for name in ("model", "models/m"):
    flips.model_facts(folder / name)
RegisteredModel(folder / "models/m").versions()
print(found)
import pickle
pickle.loads(pickle.dumps(print))
print(found)
"""
    folder = subjects["plain"].folder.parent
    found = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.splitlines() == ["[]", "['pickle.find_class']"]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value, at=()):
    yield at
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from places(inner, (*at, key))


@pytest.mark.parametrize("name", ["plain", "model", "models/m", "predictions"])
@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_documents_with_anything_in_them_are_read_or_refused(subjects, name, data):
    """Any value of a JSON document is replaced, and the document signed again, as an
    attacker could.
    """
    subject = subjects[name]
    path = data.draw(st.sampled_from(sorted(subject.folder.rglob("*.json"))))
    before = path.read_bytes()
    document = json.loads(before)
    at = data.draw(st.sampled_from(list(places(document))))
    value = data.draw(json_values)
    if at:
        inner = document
        for key in at[:-1]:
            inner = inner[key]
        inner[at[-1]] = value
    else:
        document = value
    if isinstance(document, dict) and str(document.get("format", "")).startswith(
        "rff_dist "
    ):
        document.pop("sha256", None)
        with contextlib.suppress(ValueError):  # NaN
            document["sha256"] = locations.json_digest(document)
    with contextlib.suppress(Exception):  # it is no group of ours any more
        attributes = {"rff_dist": document["attributes"]["rff_dist"]}
        document = json.loads(manifests.sign_group(document, attributes))
    repositories.open_pinned.cache_clear()
    path.write_text(json.dumps(document))
    try:
        with contextlib.suppress(RFFDistError):
            subject.read()
    finally:
        path.write_bytes(before)


@given(
    st.text(max_size=40)
    | st.from_regex(r"[a-z0-9+]{0,6}:{0,2}/{0,3}[\x00-\x7f]{0,20}", fullmatch=True)
)
def test_urls_are_read_or_refused(text):
    try:
        location = parse_location(text)
    except RFFDistError:
        return
    assert location.scheme in ("file", "s3", "gs", "az", "https")
    assert "::" not in text
