"""Damage every kind of file that this package writes, and count what is not noticed:
`python -m tools.flips`.

Single bits are flipped, files are cut short, emptied, removed, and put in each other's
place. What is read then is an error, or what was written; anything else is counted, and
makes the program fail."""

import argparse
import itertools
import os
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rff_dist import Gaussian, SerialEngine, open_dataset, replace_rows, write_dataset
from rff_dist.data.blocks import Block
from rff_dist.errors import IntegrityError, RFFDistError
from rff_dist.models.versions import RegisteredModel
from rff_dist.ridge.models import read_model, write_model
from rff_dist.ridge.predict import predict
from rff_dist.storage import repositories
from rff_dist.storage.columns import open_column
from rff_dist.storage.datasets import list_arrays, read_arrays
from rff_dist.storage.ledger import FileLedger, open_ledger
from rff_dist.storage.locations import parse_location
from rff_dist.storage.repositories import read_history
from rff_dist.workbench.jobs.publishing import publish
from tests.plain import fit_ridge

N = 400
CHUNK = 64
NAMES = ("plain", "versioned", "model", "models/m", "predictions", "kept")
KEPT = ("a" * 40, "b" * 40)  # names of passes


class Subject(NamedTuple):
    """Something that was written: its folder, and what reads all of it."""

    folder: Path
    read: Callable[[], Any]


def write_subjects(folder: Path) -> dict[str, Subject]:
    """Write one of each, and return them by name."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 3))
    y = X[:, 0] + 0.1 * rng.standard_normal(N)
    weights = rng.uniform(1, 2, N)
    groups = np.array([f"g{i % 7}" for i in range(N)])
    names = {"feature_names": ["a", "b", "c"], "target_names": ["t"]}
    given = {"sample_weight": weights, "groups": groups, "chunk_rows": CHUNK, **names}
    places = {name: folder / name for name in NAMES}
    for name in ("plain", "versioned"):
        write_dataset(places[name], X, y, versioned=name == "versioned", **given)
    replace_rows(
        places["versioned"],
        [3],
        X[:1],
        y[:1],
        sample_weight=weights[:1],
        groups=groups[:1],
    )
    engine = SerialEngine(1)
    data = open_dataset(places["plain"])
    options = {"length_scale": 1.0, "n_components": 64, "alpha": 0.1}
    model, _ = fit_ridge(data, Gaussian(), engine=engine, **options)
    write_model(model, places["model"])
    for promote in (True, True, False):
        publish(
            model,
            places["models/m"],
            data=str(places["plain"]),
            reason="a test",
            promote=promote,
        )
    predict(data, model, places["predictions"], engine=engine)
    for i, name in enumerate(KEPT):
        open_ledger(parse_location(places["kept"])).put(
            name, range(9), (i, np.arange(40.0), model.statistics)
        )
    readers = {
        "plain": lambda: read_data(places["plain"]),
        "versioned": lambda: [
            read_data(places["versioned"]),
            history_of(places["versioned"]),
        ],
        "model": lambda: model_facts(places["model"]),
        "models/m": lambda: [
            model_facts(places["models/m"]),
            registry_facts(places["models/m"]),
        ],
        "predictions": lambda: read_predictions(places["predictions"]),
        "kept": lambda: read_kept(places["kept"]),
    }
    return {name: Subject(places[name], readers[name]) for name in places}


def read_data(url: Path) -> Any:
    """Return all that users see of a dataset."""
    return [
        *read_group(url, "X", y="y", sample_weight="sample_weight"),
        read_groups(url),
    ]


def read_group(url: Path, x: str, **names: str) -> list[Any]:
    dataset = open_dataset(url, x=x, **({"y": None} | names))
    rows = dataset.read(Block(0, 0, dataset.n_samples))
    values = [
        None if one is None else one.tobytes()
        for one in (rows.X, rows.y, rows.sample_weight)
    ]
    _, stored = list_arrays(url)
    shapes = [
        (name, header.shape, str(header.dtype)) for name, header in stored.items()
    ]
    return [
        dataset.feature_names,
        dataset.target_names,
        str(dataset.dtype),
        shapes,
        values,
    ]


def read_groups(url: Path) -> Any:
    column = open_column(url, "groups")
    return column.read(Block(0, 0, column.n_samples)).tolist()


def read_predictions(url: Path) -> Any:
    attributes, stored = list_arrays(url)
    shapes = [
        (name, header.shape, str(header.dtype)) for name, header in stored.items()
    ]
    rows = [
        part["predictions"].tobytes()
        for part in read_arrays(url, ["predictions"], n_rows=N)
    ]
    return [attributes.get("feature_names"), shapes, rows]


def read_kept(url: Path) -> Any:
    """Return the sums that a ledger keeps; it gives none that are damaged, and says so
    in the log.
    """
    found = [
        FileLedger(parse_location(url), "reader").find(name, range(9)) for name in KEPT
    ]
    if None in found:
        raise IntegrityError("sums are to be made again")
    return [
        (i, sums.tobytes(), statistics.digest())
        for ((i, sums, statistics),) in filter(None, found)
    ]


def history_of(url: Path) -> Any:
    return [one.to_dict() for one in read_history(parse_location(url))]


def model_facts(url: Path) -> Any:
    model = read_model(url)
    assert model.statistics is not None
    return [
        model.digest(),
        model.statistics.digest(),
        dict(model.card),
        model.plain_alpha,
    ]


def registry_facts(url: Path) -> Any:
    registered = RegisteredModel(url)
    current = registered.current()
    return [
        [one.to_dict() for one in registered.versions()],
        current and current.number,
    ]


def kind_of(path: Path) -> str:
    """Return a file's name without what is random or counted in it."""
    return re.sub(r"[0-9A-Z]{20}|[0-9a-f]{32,}|(?<=[/.])\d+(?=[/.]|$)", "*", str(path))


def files_of(subject: Subject) -> dict[str, list[Path]]:
    """Return the files of a subject by kind; locks hold nothing."""
    found = defaultdict(list)
    for path in sorted(subject.folder.rglob("*")):
        if path.is_file() and not path.name.endswith(".lock"):
            found[kind_of(path.relative_to(subject.folder))].append(path)
    return found


def damages(
    paths: list[Path], n_flips: int, rng: np.random.Generator
) -> Iterator[tuple[str, dict[Path, bytes | None]]]:
    """Give ways to damage files of one kind: by name, with the contents of files after
    it (None: removed).
    """
    for _ in range(n_flips):
        path = paths[rng.integers(len(paths))]
        content = bytearray(path.read_bytes())
        if content:
            content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
            yield "flip", {path: bytes(content)}
    for path in paths[:5]:
        content = path.read_bytes()
        yield "cut", {path: content[: len(content) // 2]}
        yield "cut", {path: content[:-1]}
        yield "empty", {path: b""}
        yield "remove", {path: None}
    for one, other in itertools.pairwise(paths[:7]):
        if one.read_bytes() != other.read_bytes():
            yield "swap", {one: other.read_bytes(), other: one.read_bytes()}


def outcome(subject: Subject, expected: Any) -> str:
    """Return "error", "same" or "unnoticed"; an error of another kind than ours is one
    too many.
    """
    repositories.open_pinned.cache_clear()
    try:
        found = subject.read()
    except RFFDistError:
        return "error"
    except Exception as error:
        return f"{type(error).__name__}, which is not ours: {str(error)[:100]}"
    return "same" if found == expected else "unnoticed"


def try_damages(
    name: str, subject: Subject, n_flips: int
) -> Iterator[tuple[str, str, str]]:
    """Give (kind of file, damage, outcome) of every damage to a subject; the files are
    restored.
    """
    expected = subject.read()
    rng = np.random.default_rng(0)
    assert subject.read() == expected
    for kind, paths in files_of(subject).items():
        for damage, contents in damages(paths, n_flips, rng):
            before = {path: path.read_bytes() for path in contents}
            for path, content in contents.items():
                if content is None:
                    os.unlink(path)
                else:
                    path.write_bytes(content)
            yield f"{name}/{kind}", damage, outcome(subject, expected)
            for path, content in before.items():
                path.write_bytes(content)
    repositories.open_pinned.cache_clear()
    assert subject.read() == expected


def main() -> int:
    """Print a line for each kind of file; return how many damages went unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--flips",
        type=int,
        default=300,
        help="bits that are flipped in each kind of file",
    )
    parser.add_argument("--only", choices=NAMES, help="what is damaged")
    given = parser.parse_args()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as folder:
        for name, subject in write_subjects(Path(folder)).items():
            if given.only in (None, name):
                for kind, damage, found in try_damages(name, subject, given.flips):
                    counts[kind][f"{damage}: {found}"] += 1
            for kind, tally in counts.items():
                if kind.startswith(f"{name}/"):
                    print(
                        f"{kind}:"
                        f" {', '.join(f'{n} {one}' for one, n in sorted(tally.items()))}",
                        flush=True,
                    )
    bad = 0
    for tally in counts.values():
        bad += sum(
            n for one, n in tally.items() if not one.endswith((": error", ": same"))
        )
    print(
        f"{sum(sum(one.values()) for one in counts.values())} damages, {bad} unnoticed"
    )
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
