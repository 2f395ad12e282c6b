"""Tables to datasets, with the options of all objects side by side, and what datasets
hold.
"""

import sqlite3
from pathlib import Path

import pyarrow as pa
from pyarrow import feather, parquet

from rff_dist import SerialEngine
from rff_dist.data.blocks import Block
from rff_dist.recipes.options import Encoding
from rff_dist.recipes.reading import CsvOptions
from rff_dist.storage.writing import WriteOptions
from rff_dist.workbench.jobs.places import DataSource
from rff_dist.workbench.jobs.predict import predict
from rff_dist.workbench.jobs.specs import Predict
from rff_dist.workbench.jobs.steps import in_this_process
from rff_dist.workbench.tables import append
from rff_dist.workbench.tables import ingest as module
from rff_dist.workbench.tables.holdout import Holdout
from rff_dist.workbench.tables.options import TableOptions
from rff_dist.workbench.tables.queries import Query
from rff_dist.workbench.tables.roles import Roles

_ENCODING = ("categories", "dates", "impute", "keep_index")
_READING = ("format", "header", "delimiter", "encoding", "missing", "date_order")


def _preparing(given, recipe=None):
    encoding = {name: given.pop(name) for name in _ENCODING if name in given}
    reading = {name: given.pop(name) for name in _READING if name in given}
    return TableOptions(
        encoding=Encoding(**encoding), reading=CsvOptions(**reading), recipe=recipe
    )


def ingest(
    source,
    url,
    *,
    chunk_rows=None,
    overwrite=False,
    observer=None,
    versioned=True,
    recipe=None,
    **given,
):
    how = WriteOptions(chunk_rows, overwrite, observer, versioned=versioned)
    preparing = _preparing(given, recipe)
    return module.ingest(source, url, Roles(**given), how, preparing)


def ingest_frame(frame, folder, suffix="feather", **given):
    """Ingest a frame from a file t.… in a folder into d beside it."""
    return ingest(save(frame, folder / f"t.{suffix}"), folder / "d", **given)


def ingest_parts(source, urls, share, *, by=None, **given):
    how = WriteOptions(versioned=True)
    preparing = _preparing(given)
    return module.ingest_parts(
        source, urls, Holdout(share, by=by), Roles(**given), how, preparing
    )


def ingest_more(
    source,
    url,
    *,
    chunk_rows=None,
    observer=None,
    recipe=None,
    replace_ids=False,
    **given,
):
    how = WriteOptions(chunk_rows, observer=observer, versioned=True)
    preparing = _preparing(given, recipe)
    return append.ingest_more(
        source, url, Roles(**given), how, preparing, replace_ids=replace_ids
    )


def save(frame, path, **how):
    """Write a frame, and return what reads it: the path, or a query for a database."""
    path = Path(path)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    match path.suffix:
        case ".csv" | ".gz":
            frame.to_csv(path, index=False, **how)
        case ".parquet":
            parquet.write_table(table, path, row_group_size=700)
        case ".feather":
            feather.write_feather(table, str(path))
        case ".jsonl":
            frame.to_json(path, orient="records", lines=True)
        case ".db":
            with sqlite3.connect(path) as database:
                frame.to_sql("t", database, index=False)
            database.close()
            return Query("SELECT * FROM t", f"sqlite:///{path}")
    return path


def predict_table(model, source, output, **wanted):
    """Predict in this process, and return where: of a source, or of data by their
    place.
    """
    source = source if isinstance(source, DataSource) else DataSource(data=str(source))
    job = Predict(model=str(model), source=source, output=str(output), **wanted)
    predict(job, in_this_process(SerialEngine(1)))
    return output


def all_rows(dataset):
    return dataset.read(Block(0, 0, dataset.n_samples))
