"""Rows that are forgotten: no byte of theirs is left, and models are as if they had
never been there.
"""

import re
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numcodecs import Zstd
from numpy.testing import assert_allclose

from rff_dist import (
    Gaussian,
    SerialEngine,
    append_dataset,
    open_dataset,
    replace_rows,
    write_dataset,
)
from rff_dist.data.blocks import Block
from rff_dist.models.versions import RegisteredModel
from rff_dist.recipes.encoders import level_texts
from rff_dist.recipes.recipes import levels_of
from rff_dist.ridge.models import read_model, write_model
from rff_dist.statistics import passes
from rff_dist.storage.locations import parse_location
from rff_dist.storage.repositories import tag_snapshot
from tests.command_line import PLAIN, document, refusal, run, shown
from tests.plain import fit_ridge
from tests.stopped_jobs import sum_up

N = 1000
ROWS = [3, 500, 998]


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 3))
    write_dataset(
        "d", X, X[:, 0] + 0.1 * rng.standard_normal(N), chunk_rows=128, versioned=True
    )
    Path("rows.csv").write_text("row\n" + "\n".join(map(str, ROWS)) + "\n")
    return open_dataset("d")


def fit(dataset, **options):
    options = {"length_scale": 1.0, "n_components": 16, "alpha": 0.1, **options}
    return fit_ridge(dataset, Gaussian(), engine=SerialEngine(1), **options)[0]


def values_of(dataset, rows):
    X, y, _ = dataset.take(np.array(rows))
    return [value.tobytes() for value in np.concatenate([X.ravel(), y.ravel()])]


def files_with(folder, values):
    """The oracle: which files below a folder have the bytes of one of the values."""
    contents = {
        path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
    }
    return sorted(
        str(path)
        for path, content in contents.items()
        if any(one in content for one in values)
    )


def test_no_byte_of_the_rows_is_left_and_the_model_is_as_if_they_had_never_been_there(
    data,
):
    begun = fit(data)
    write_model(begun, "model")
    X, y, _ = data.take(np.array([7]))
    replace_rows("d", [3], X, y[:, 0])
    values = values_of(data, ROWS)
    assert files_with("d", values)
    before = {path.name for path in Path("model").iterdir()}
    found = document("forget", "d", "--rows rows.csv --models model --serial")
    assert (found["n_rows"], found["n_after"], len(found["expired"])) == (3, N - 3, 2)
    assert files_with(".", values) == []
    assert {path.name for path in Path("model").iterdir()} == before
    model = read_model("model")
    left = open_dataset("d")
    expected = passes.accumulate(
        left, begun.feature_map, engine=SerialEngine(1), spec=begun.statistics.spec
    )
    assert model.statistics.digest() == expected.digest()
    assert model.card["data_version"] == found["version"] == left.version
    # its standardisation, which is said
    assert [one["where"] for one in found["holders"]] == ["model"]
    assert "standardisation" in found["holders"][0]["what"]


def test_a_model_with_weights_forgets_rows_by_their_weights(data):
    weights = np.random.default_rng(1).random(N)
    others = np.arange(N)
    rows = data.read(Block(0, 0, N))
    parts = {"sample_weight": weights, "groups": others}
    write_dataset("w", rows.X, rows.y[:, 0], **parts, chunk_rows=128, versioned=True)
    for name in parts:
        write_model(fit(open_dataset("w", sample_weight=name)), name)
    words = "--rows rows.csv --serial --models"
    result = run("forget", "w", words, "groups")
    assert "other arrays" in result.stderr
    assert open_dataset("w").n_samples == N
    document("forget", "w", words, "sample_weight")
    found = read_model("sample_weight").statistics.sum_of_weights
    # sums of a thousand numbers, in another order
    assert_allclose(found, np.delete(weights, ROWS).sum(), rtol=1e-12)


def models_of_towns(dataset):
    for features, n_components in (("fourier", 16), ("nystrom", 300)):
        how = {"features": features, "n_components": n_components, "alpha": 0.1}
        yield fit_ridge(dataset, Gaussian(), engine=SerialEngine(1), **how)[0]


def test_names_of_levels_are_erased_and_their_places_stay():
    rng = np.random.default_rng(0)
    towns = rng.choice(np.array(["Bonn", "Köln", "Rom"], object), 600)
    towns[[30, 500]] = "Hallig Nordmarsch"
    towns[7] = "Rom"
    x = rng.standard_normal(600).round(6)
    lines = [f"{x[i]};{towns[i]};{np.sin(x[i]):.6f}" for i in range(600)]
    Path("t.csv").write_text("\n".join(["x;town;y", *lines]) + "\n")
    document("ingest", "t.csv", "d", "--targets y")
    Path("t.csv").unlink()
    begun = list(models_of_towns(open_dataset("d")))
    for name, model in zip(("fourier", "nystrom"), begun, strict=True):
        write_model(model, name)
    rows = [7, 30, 500]
    Path("rows.csv").write_text("row\n" + "\n".join(map(str, rows)) + "\n")
    told = document(
        "forget", "d", "--rows rows.csv --serial --models fourier --models nystrom",
    )  # fmt: skip
    left = open_dataset("d")
    (levels,) = levels_of(left.attributes).values()
    assert [levels[i] for i in (0, 2, 3)] == ["Bonn", "Köln", "Rom"]
    # no text becomes the level in the place of the erased one
    (again,) = level_texts(pa.array([levels[1]])).to_pylist()
    assert again not in levels
    for name, first in zip(("fourier", "nystrom"), begun, strict=True):
        model = read_model(name)
        expected = passes.accumulate(
            left, first.feature_map, engine=SerialEngine(1), spec=first.statistics.spec
        )
        assert model.statistics.digest() == expected.digest()
        assert model.card["data_version"] == told["version"]
        assert levels_of(model.card) == model.feature_map.levels
    assert levels_of(read_model("fourier").card)[1] == levels
    with_text = {
        path.relative_to(".").parts[0]
        for path, content in everything_in(".")
        if b"Nordmarsch" in content
    }
    # half of the rows are centres of the second, which is said
    assert with_text == {"nystrom"}
    whys = {one["where"]: one["what"] for one in told["holders"]}
    assert "names of their levels" in whys["nystrom"]
    assert "centres" not in whys["fourier"]
    # it may come back, at the end
    Path("more.csv").write_text(f"x;town;y\n1;Hallig Nordmarsch;2\n2;{levels[1]};1\n")
    document("ingest", "more.csv", "d", "--append")
    (grown,) = levels_of(open_dataset("d").attributes).values()
    assert grown == (*levels, again, "Hallig Nordmarsch")


SMALL = ("--n-components", "16", "--alpha", "0.1")
SECRETS = ["c0417", "anna_smith", "Anna complained", "13.5792468", "86.4213579"]


def everything_in(folder):
    """The oracle: the bytes of all files below a folder, and what their compressed
    parts decode to.
    """
    for path in sorted(Path(folder).rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        yield path, content
        for start in (
            one.start() for one in re.finditer(re.escape(b"\x28\xb5\x2f\xfd"), content)
        ):
            with suppress(RuntimeError):  # these four bytes of something else
                yield path, Zstd().decode(content[start:])


def found_in(folder):
    """Return which secrets are in which files, as text or as the bytes of numbers."""
    as_bytes = {secret: [secret.encode()] for secret in SECRETS}
    for secret in SECRETS[3:]:
        value = float(secret)
        as_bytes[secret] += [
            np.float64(value).tobytes(),
            np.float32(value).tobytes(),
            repr(value).encode(),
        ]
    return {
        (secret, path.relative_to(folder).parts[0])
        for path, content in everything_in(folder)
        for secret, forms in as_bytes.items()
        if any(form in content for form in forms)
    }


def test_no_byte_of_data_models_ledgers_and_pages_tells_of_who_was_forgotten():
    Path("files").mkdir()
    lines = [f"c{i:04d};{i % 91 * 0.37:.5f};{i % 83 * 1.1:.5f}" for i in range(600)]
    lines[417] = "c0417;13.5792468;86.4213579"
    # A file that is read in another way than others, of which the recipe takes notes.
    Path("files/anna_smith.csv").write_text(
        "customer;x;prix en €\n" + "\n".join(lines), "cp1252"
    )
    Path("files/more.csv").write_text(
        "customer;x;prix en €\nc0600;1;2\nc0601;2;1\n", "cp1252"
    )
    Path("who.csv").write_text("customer\nc0417\n")
    words = (
        "--targets",
        "prix en €",
        "--id",
        "customer",
        "--message",
        "Anna complained",
    )
    Path("out").mkdir()
    document("ingest", "files/anna_smith.csv", "out/data.zarr", *words)
    for place in (("out/models/price", "--register"), ("out/model",)):
        document("fit", "out/data.zarr", *place, *PLAIN, *SMALL, "--serial")
    shutil.copytree("out/model", "unnamed")  # which still holds the rows, but no name
    sum_up(Path("out"), SerialEngine(1))
    assert {secret for secret, _ in found_in("out")} == set(SECRETS)
    assert {secret for secret, _ in found_in("unnamed")}.isdisjoint(SECRETS[:3])
    models = ("--models", "out/models/price", "--models", "out/model")
    told = document(
        "forget", "out/data.zarr", "--rows who.csv --id", *models, "--serial"
    )
    assert any(one["where"].endswith("files/anna_smith.csv") for one in told["holders"])
    document("models", "prune", "out/models/price", "--keep 1")
    assert list(Path("out/ledger").glob("*.sums"))
    assert found_in("out") == set()

    # The dataset still knows the files that it has, and what it writes from now on
    # tells nothing.
    again = document("ingest", "files/*.csv", "out/data.zarr", "--append")
    assert [Path(one).name for one in again["skipped"]] == ["anna_smith.csv"]
    assert again["n_after"] == 601
    document(
        "update",
        "out/model",
        "out/data.zarr",
        "--force --report out/update.html --serial",
    )
    document(
        "fit",
        "out/data.zarr",
        "out/new",
        *PLAIN,
        *SMALL,
        "--report out/fit.html --serial",
    )
    assert {path.suffix for path in Path("out").iterdir()} >= {".html"}
    assert found_in("out") == set()
    with open("files/anna_smith.csv", "a") as file:
        file.write("\nc0700;1;1")
    assert "was ingested already" in refusal(
        65, "ingest", "files/*.csv", "out/data.zarr", "--append"
    )
    assert found_in("out") == set()


def test_models_that_were_not_named_are_refused_by_updates_that_say_why(data):
    document("fit", "d", "models/m", "--register", *PLAIN, *SMALL, "--serial")
    write_model(fit(data), "elsewhere")
    write_dataset("other", np.ones((9, 2)), np.ones(9), versioned=True)
    write_model(fit(open_dataset("other"), length_scale=2.0), "of-others")
    found = document("forget", "d", "--rows rows.csv --serial")
    assert found["holders"] == []
    for model in ("models/m", "elsewhere"):
        message = refusal(65, "update", model, "d", "--serial")
        assert data.version in message
        assert "3 rows were forgotten since" in message
    assert "forgotten" not in refusal(65, "update", "of-others", "d", "--serial")


def test_models_that_were_not_named_are_updated_while_their_version_is_there(data):
    write_model(fit(data), "model")
    document("forget", "d", "--rows rows.csv --days 30 --serial")
    assert document("update", "model", "d", "--serial")["n_samples"] == N - 3


def test_what_still_holds_rows_is_named_with_what_removes_it(data):
    tag_snapshot(parse_location("d"), "audited")
    values = values_of(data, ROWS)
    found = document("forget", "d", "--rows rows.csv --serial")
    [holder] = found["holders"]
    assert data.version in holder["where"]
    assert "audited" in holder["until"]
    assert files_with("d", values)
    document("data", "expire", "d", "--days 0 --tags")
    assert files_with("d", values) == []


@pytest.mark.parametrize("rolled_back", [(), (2, 3)])
def test_a_registered_model_names_the_versions_that_hold_sums(data, rolled_back):
    document("fit", "d", "models/m", "--register", *PLAIN, *SMALL, "--serial")
    for _ in (2, 3):
        append_dataset("d", np.ones((2, 3)), np.ones(2))
        document("update", "models/m", "d", "--force", "--serial")
    for _ in rolled_back:
        document("models", "rollback", "models/m")
    found = document("forget", "d", "--rows rows.csv --models models/m --serial")
    model = RegisteredModel("models/m")
    assert model.current().number == 4
    [until] = [
        one["until"] for one in found["holders"] if one["where"].startswith("version ")
    ]
    append_dataset("d", np.ones((1, 3)), np.ones(1))
    document("update", "models/m", "d", "--force", "--serial")
    document(*until.partition("rff-dist ")[2].rstrip("`").split())
    assert [one.number for one in model.versions()] == [4, 5]


def test_centres_of_nystrom_features_are_rows_and_are_found(data):
    write_model(fit(data, features="nystrom", n_components=900), "model")
    found = document("forget", "d", "--rows rows.csv --models model --serial")
    assert any("centres" in one["what"] for one in found["holders"])


def test_rows_that_the_model_has_not_seen_are_judged_and_forgotten_ones_are_not(data):
    write_model(fit(data), "model")
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 3))
    append_dataset("d", X, 100 * rng.standard_normal(300))
    found = document("forget", "d", "--rows rows.csv --models model --serial")
    assert found["updates"][0]["decision"] == "kept"
    assert any("was refused" in one["until"] for one in found["holders"])


def test_nothing_is_deleted_where_something_is_wrong(data):
    before = data.version
    document("fit", "d", "plain", "--no-statistics", *PLAIN, *SMALL, "--serial")
    refused = [
        (1, ("--models", "plain"), "cannot be updated"),
        (65, ("--models", "nowhere"), "nothing is there"),
        (2, ("--id",), "have no ids"),
    ]
    for code, words, text in refused:
        assert text in refusal(code, "forget", "d", "--rows rows.csv --serial", *words)
    assert "there is no file at" in refusal(
        65, "forget", "d", "--rows missing.csv --serial"
    )
    Path("bad.csv").write_text("row\n5000\n")
    assert "is no row of" in refusal(65, "forget", "d", "--rows bad.csv --serial")
    write_dataset("p", np.ones((9, 2)), np.ones(9))
    assert "rff-dist data convert" in refusal(
        65, "forget", "p", "--rows rows.csv --serial"
    )
    assert open_dataset("d").version == before


@pytest.mark.parametrize("rolls_back", [True, False])
def test_rows_that_the_model_lacks_stay_out_when_others_are_forgotten(data, rolls_back):
    document("fit", "d", "models/m", "--register", *PLAIN, *SMALL, "--serial")
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 3))
    append_dataset("d", X, 100 * rng.standard_normal(300))
    update = ("update", "models/m", "d", "--serial")
    run(*update, *["--force"] * rolls_back)
    if rolls_back:
        document("models", "rollback", "models/m")
    assert document(*update)["left_out"] == [[N, N + 300]]
    # rows 3 and 500 of the model, and two rows that it lacks, which move to 3 and 500
    for rows, n_gone, n_left_out in (([3, N + 5], 1, 299), ([500], 1, 299)):
        Path("rows.csv").write_text("row\n" + "\n".join(map(str, rows)) + "\n")
        words = "--rows rows.csv --models models/m --serial"
        [found] = document("forget", "d", words)["updates"]
        assert (found["n_gone"], found["n_left_out"]) == (n_gone, n_left_out)
        assert found["decision"] == "published"
    assert found["n_samples"] == N - 2
    assert document("models", "show", "models/m")["refused"]
    again = document(*update)
    assert (again["decision"], again["n_samples"]) == ("nothing new", N - 2)
    if rolls_back:
        reasons = set(again["left_out_because"])
        assert reasons == {"version 2 was rolled back", "left out before"}
    info = shown("info", "models/m")
    assert "left out rows" in info
    assert "refused" not in info
    back = document(*update, "--backfill 0 --force")
    assert (back["n_new"], back["n_samples"]) == (299, N + 297)
    left = open_dataset("d")
    model = read_model("models/m")
    expected = passes.accumulate(
        left, model.feature_map, engine=SerialEngine(1), spec=model.statistics.spec
    )
    assert model.statistics.digest() == expected.digest()
