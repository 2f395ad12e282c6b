"""Datasets, outputs and models as Zarr; the only part of the package that imports zarr."""

from rff_dist.storage.appending import Appended, Source, append_dataset
from rff_dist.storage.columns import Column, as_column, open_column
from rff_dist.storage.datasets import (
    ZarrDataset,
    dataset_from_arrays,
    open_dataset,
)
from rff_dist.storage.generate import generate_dataset
from rff_dist.storage.ingest import Ingested, ingest, ingest_more
from rff_dist.storage.labelled import GroupedDataset, LabelledDataset
from rff_dist.storage.locations import redact
from rff_dist.storage.memory import ArrayDataset, Sample, SparseDataset
from rff_dist.storage.models import Record, read_record, write_record
from rff_dist.storage.outputs import Output, create_output
from rff_dist.storage.queries import Query
from rff_dist.storage.writing import choose_chunk_rows, write_dataset

__all__ = [
    "Appended",
    "ArrayDataset",
    "Column",
    "GroupedDataset",
    "Ingested",
    "LabelledDataset",
    "Output",
    "Query",
    "Record",
    "Sample",
    "Source",
    "SparseDataset",
    "ZarrDataset",
    "append_dataset",
    "as_column",
    "choose_chunk_rows",
    "create_output",
    "dataset_from_arrays",
    "generate_dataset",
    "ingest",
    "ingest_more",
    "open_column",
    "open_dataset",
    "read_record",
    "redact",
    "write_dataset",
    "write_record",
]
