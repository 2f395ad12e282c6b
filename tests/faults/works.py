"""What is written to a store, each with what readers see of it, and a process that does
it and dies.

`python -m tests.faults.works` reads lines of JSON: how, a number, a place and a work's
name. It does the work in a process of its own and writes its exit code; its errors are
on standard error. `how` is "kill at", which counts the files that are opened and the
names that change, or "full at", which limits the bytes of a file."""

import contextlib
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from rff_dist.engines.serial import SerialEngine
from rff_dist.fields import build
from rff_dist.kernels.stationary import Gaussian
from rff_dist.models.versions import RegisteredModel
from rff_dist.ridge.models import RidgeModel, read_model, write_model
from rff_dist.storage.appending import append_dataset
from rff_dist.storage.corrections import convert_dataset, replace_rows
from rff_dist.storage.datasets import open_dataset, read_arrays
from rff_dist.storage.locations import exists, is_versioned, parse_location
from rff_dist.storage.output_places import is_unfinished
from rff_dist.storage.records import read_record, write_record
from rff_dist.storage.writing import write_dataset
from rff_dist.workbench.jobs import refresh
from rff_dist.workbench.jobs.places import DataSource
from rff_dist.workbench.jobs.predict import predict
from rff_dist.workbench.jobs.publishing import publish as publish_model
from rff_dist.workbench.jobs.specs import Predict, Update
from rff_dist.workbench.jobs.steps import in_this_process
from tests.lake_tables import as_arrow, draw
from tests.living_data import draw as rows
from tests.plain import fit_ridge
from tests.tables import ingest_more
from tests.versions import publish, whole

type Place = str  # a folder, or the beginning of URLs

ENGINE = SerialEngine(1)


@dataclass(frozen=True)
class Work:
    """Something that is written.

    `prepare`: makes what is there before.
    `run`: does the work.
    `state`: what a reader sees; fails where that is not whole.
    `remote`: whether an object store can hold it.
    """

    prepare: Callable[[Place], object]
    run: Callable[[Place], object]
    state: Callable[[Place], Any]
    remote: bool = True


def nothing(place: Place) -> None:
    """Prepare nothing."""


def write(place: Place, seed: int, **options: Any) -> None:
    write_dataset(f"{place}/data", *rows(90, seed), chunk_rows=32, **options)


def write_versions(place: Place) -> None:
    """Prepare versioned data, which in an object store took the place of others: it
    keeps both.
    """
    write(place, 0, versioned=True)
    if "://" in place:
        write(place, 0, versioned=True, overwrite=True)


def read_rows(place: Place, name: str = "data", array: str = "X") -> Any:
    """Return the rows of an array; None where nobody finds any, or a writer did not
    finish them.
    """
    location = parse_location(f"{place}/{name}")
    if not exists(location) or is_unfinished(location):
        return None
    (found,) = read_arrays(location.url, [array], n_rows=10**6)
    return found[array].tolist()


def write_values(place: Place, i: int) -> None:
    values = np.full(64, i)
    write_record(
        f"{place}/model",
        kind="test",
        metadata={"digest": str(i)},
        arrays={"a": values, "b": values},
        overwrite=i > 1,
    )


def read_values(place: Place) -> int | None:
    location = parse_location(f"{place}/model")
    return (
        None
        if not exists(location) or is_unfinished(location)
        else whole(read_record(location.url))
    )


def train(place: Place) -> None:
    """Prepare a model, and a registered one, of data that have got more rows since."""
    write(place, 0, versioned=True)
    data = f"{place}/data"
    model = fit(data, 2.0)
    write_model(model, f"{place}/model")
    publish_model(model, f"{place}/models/m", data=data)
    append_dataset(data, *rows(40, 1))


def fit(data: str, length_scale: float) -> RidgeModel:
    options: dict[str, Any] = {
        "length_scale": length_scale,
        "n_components": 16,
        "alpha": 0.1,
    }
    return fit_ridge(open_dataset(data), Gaussian(), engine=ENGINE, **options)[0]


def predicted_before(place: Place) -> None:
    """Prepare predictions of another model."""
    train(place)
    predict_rows(place)
    write_model(fit(f"{place}/data", 1.0), f"{place}/model", overwrite=True)


def predict_rows(
    place: Place,
    *,
    model: str = "model",
    output: str = "predictions",
    overwrite: bool = False,
) -> None:
    job = Predict(
        model=f"{place}/{model}",
        source=DataSource(data=f"{place}/data"),
        output=f"{place}/{output}",
        overwrite=overwrite,
    )
    predict(job, in_this_process(ENGINE))


def read_predictions(place: Place) -> Any:
    return read_rows(place, "predictions", "predictions")


def update(place: Place, model: str) -> None:
    job = build(
        Update, {"model": f"{place}/{model}", "data": f"{place}/data", "force": True}
    )
    refresh.update(job, in_this_process(ENGINE))


def read_digest(place: Place, model: str) -> str:
    return read_model(f"{place}/{model}").statistics.digest()


def publish_two(place: Place) -> None:
    publish(f"{place}/m", 1)
    publish(f"{place}/m", 2)


def read_current(place: Place) -> int | None:
    model = RegisteredModel(f"{place}/m")
    for version in model.versions():
        whole(read_record(f"{place}/m/versions/{version.number}"))
    return None if model.pointer() is None else whole(read_record(f"{place}/m"))


def change_table(place: Place) -> None:
    """Prepare data of a Delta table, in which rows came, changed and went since."""
    import deltalake

    table = f"{place}/table"
    deltalake.write_deltalake(table, as_arrow(draw(range(90), 0)))
    ingest_more(table, f"{place}/data", target="price", id="key", chunk_rows=32)
    deltalake.write_deltalake(table, as_arrow(draw(range(90, 130), 1)), mode="append")
    deltalake.DeltaTable(table).update(
        updates={"a": "0.5"}, predicate="key = 3 OR key = 80"
    )
    deltalake.DeltaTable(table).delete("key = 7")


def convert(place: Place) -> None:
    if not is_versioned(parse_location(f"{place}/data")):
        convert_dataset(f"{place}/data")


WORKS = {
    "data": Work(nothing, partial(write, seed=1), read_rows),
    "data overwritten": Work(
        partial(write, seed=0), partial(write, seed=1, overwrite=True), read_rows
    ),
    "versioned data": Work(nothing, partial(write, seed=1, versioned=True), read_rows),
    "rows appended": Work(
        write_versions,
        lambda place: append_dataset(f"{place}/data", *rows(40, 1)),
        read_rows,
    ),
    "rows corrected": Work(
        partial(write, seed=0, versioned=True),
        lambda place: replace_rows(f"{place}/data", [3, 80], *rows(2, 1)),
        read_rows,
    ),
    "table followed": Work(
        change_table,
        lambda place: ingest_more(f"{place}/table", f"{place}/data"),
        read_rows,
        remote=False,
    ),
    "data converted": Work(
        partial(write, seed=0),
        convert,
        lambda place: (read_rows(place), is_versioned(parse_location(f"{place}/data"))),
        remote=False,
    ),
    "model": Work(nothing, partial(write_values, i=1), read_values),
    "model overwritten": Work(
        partial(write_values, i=1), partial(write_values, i=2), read_values
    ),
    "first version": Work(
        nothing, lambda place: publish(f"{place}/m", 1), read_current
    ),
    "next version": Work(
        lambda place: publish(f"{place}/m", 1),
        lambda place: publish(f"{place}/m", 2),
        read_current,
    ),
    "version promoted": Work(
        publish_two,
        lambda place: RegisteredModel(f"{place}/m").promote(1),
        read_current,
    ),
    "predictions": Work(train, predict_rows, read_predictions),
    "predictions overwritten": Work(
        predicted_before, partial(predict_rows, overwrite=True), read_predictions
    ),
    "model updated": Work(
        train, partial(update, model="model"), partial(read_digest, model="model")
    ),
    "version updated": Work(
        train, partial(update, model="models/m"), partial(read_digest, model="models/m")
    ),
}


# -- operations on files
# ---------------------------------------------------------------------------------


@dataclass
class Operations:
    """Operations on files below a folder: openings of files, and names that appear or
    change.

    `at`: the number of the one that is hit, from 0 on; -1 hits none.
    `hit`: what happens then; an error that it raises is the operation's.
    `and_later`: whether all later ones are hit too.
    `reads`: whether openings to read count, such as those before a file is synced to
    the disk. `n_seen`, `n_hit`: how many there were."""

    folder: str
    at: int
    hit: Callable[[], object]
    and_later: bool = False
    reads: bool = False
    n_seen: int = 0
    n_hit: int = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "os.mkdir") or not str(
            arguments[0]
        ).startswith(self.folder):
            return
        if (
            event == "open"
            and not self.reads
            and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        ):
            return
        self.n_seen += 1
        if self.n_seen == self.at + 1 or (
            self.and_later and self.n_seen > self.at >= 0
        ):
            self.n_hit += 1
            self.hit()


_active: list[Operations] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    for one in _active:
        one(event, arguments)


@cache
def _listen() -> None:
    sys.addaudithook(_audit)  # for the rest of the process


@contextlib.contextmanager
def watched(operations: Operations) -> Iterator[Operations]:
    """Hit operations as long as the context lasts."""
    _listen()
    _active.append(operations)
    try:
        yield operations
    finally:
        _active.remove(operations)


def moments(n: int, *, most: int) -> list[int]:
    """Return some of so many moments, spread over all, the first and the last among
    them.
    """
    return sorted({round(i) for i in np.linspace(0, n - 1, min(n, most))})


def fail(code: int) -> None:
    """Fail as the operating system does."""
    raise OSError(code, os.strerror(code))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Do works, each in a process of its own, which imports Icechunk: its threads
    outlive no fork.
    """
    for line in sys.stdin:
        how, number, place, name = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if how == "full at":
                    resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))
                    WORKS[name].run(place)
                else:
                    with watched(Operations(place, number, _die, reads=True)):
                        WORKS[name].run(place)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
