"""Append new files, or the rows of a query, to a dataset as a Prefect flow; run twice it adds nothing twice.

A dataset knows the files that it was made of, so a schedule may name a folder's pattern each night, and only
the files that are new since are read::

    from flows.ingest import IngestParameters, ingest

    ingest(IngestParameters(sources=["incoming/*.parquet"], data="data.zarr", targets=["price"]))
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.blocks.system import Secret
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from flows.common import Summary, facts_markdown
from flows.running import check_location, code, job_flow, step
from rff_dist import storage
from rff_dist.errors import InvalidParameterError
from rff_dist.storage import Ingested, Query, redact
from rff_dist.storage.queries import CONNECTION_VARIABLE

__all__ = ["IngestParameters", "ingest"]

#: As many names of files are told as a result and a page hold well.
_SHOWN_FILES = 50

type Names = Annotated[list[str], Field(min_length=1)]


class IngestParameters(BaseModel):
    """Which rows are appended to which dataset; every value is checked before a run starts."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    data: str = Field(
        description="Path or URL of the dataset that rows are appended to; it is created where there is none."
    )
    sources: list[str] = Field(
        default=[],
        description="Files (.csv, .csv.gz, .parquet, .npy, .npz), patterns such as incoming/*.parquet, or "
        "folders of Parquet files, on disk or in an object store. Files that were ingested before are "
        "skipped.",
    )
    sql: str | None = Field(
        default=None,
        description="A query whose rows are appended, in the place of files. In it :n_ingested stands for "
        "the number of its rows that the dataset has already: SELECT … ORDER BY id LIMIT 1000000 OFFSET "
        ":n_ingested.",
    )
    connection_block: str | None = Field(
        default=None,
        description="Name of a Prefect Secret block that holds the database's URL, as SQLAlchemy writes it.",
    )
    connection_variable: str | None = Field(
        default=None,
        description="Name of an environment variable of the worker that holds it, where there is no block; "
        f"{CONNECTION_VARIABLE} if left out.",
    )
    targets: Names | None = Field(
        default=None,
        description="Columns to predict; those of a dataset that is there are known, and found by name.",
    )
    weight: str | None = Field(default=None, description="Column of sample weights, likewise.")
    groups: str | None = Field(
        default=None, description="Column of what rows are held out together by, likewise."
    )
    columns: Names | None = Field(
        default=None, description="Columns of X in this order, likewise; all others if left out."
    )
    dtype: Literal["float32", "float64"] | None = Field(
        default=None, description="Of X; keeps all digits if left out."
    )
    on_nan: Literal["error", "drop"] = Field(
        default="error",
        description="Whether a row with a missing or infinite value stops the run or is dropped.",
    )
    chunk_rows: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Rows of a chunk of a dataset that is created; chosen by size if left out."
    )

    @field_validator("data")
    @classmethod
    def _is_location(cls, url: str) -> str:
        return check_location(url)

    @field_validator("sources")
    @classmethod
    def _are_locations(cls, urls: list[str]) -> list[str]:
        return [check_location(url) for url in urls]

    @model_validator(mode="after")
    def _say_what_to_ingest(self) -> Self:
        if bool(self.sources) == (self.sql is not None):
            raise ValueError("expected either `sources`, files, or `sql`, a query: one of them")
        if self.sql is None and (self.connection_block or self.connection_variable):
            raise ValueError("a connection to a database was given without `sql`; leave it out")
        if self.connection_block and self.connection_variable:
            raise ValueError("`connection_block` and `connection_variable` were both given; give one of them")
        return self

    def to_source(self) -> list[str] | Query:
        """Return what is ingested, as the library takes it; reads the secret.

        Raises
        ------
        InvalidParameterError
            If the block or the variable is not there.
        """
        if self.sql is None:
            return self.sources
        if self.connection_block is not None:
            return Query(self.sql, _read_secret(self.connection_block))
        variable = self.connection_variable or CONNECTION_VARIABLE
        if variable not in os.environ:
            raise InvalidParameterError(
                f"the environment variable {variable} is not set on this worker; expected the database's "
                "URL, or the name of a Secret block by `connection_block`"
            )
        return Query(self.sql, os.environ[variable])


def _read_secret(block: str) -> str:
    try:
        secret: Any = Secret.load(block)
    except ValueError:
        raise InvalidParameterError(
            f"there is no Secret block {block!r} on the Prefect server; make one that holds the database's "
            "URL"
        ) from None
    return str(secret.get())


@step("append", retried=True)
def append(parameters: IngestParameters) -> Summary:
    """Append what is new, all of it or nothing; a second try finds what the first one added."""
    start = time.perf_counter()
    targets = parameters.targets
    found: Ingested = storage.ingest_more(
        parameters.to_source(),
        parameters.data,
        target=targets[0] if targets is not None and len(targets) == 1 else targets,
        weight=parameters.weight,
        groups=parameters.groups,
        columns=parameters.columns,
        dtype=parameters.dtype,
        on_nan=parameters.on_nan,
        chunk_rows=parameters.chunk_rows,
    )
    return {
        "data": redact(parameters.data),
        "n_before": found.n_before,
        "n_after": found.n_after,
        "n_new": found.n_after - found.n_before,
        "n_ingested": len(found.ingested),
        "n_skipped": len(found.skipped),
        "ingested": [redact(name) for name in found.ingested[:_SHOWN_FILES]],
        "dropped_rows": found.dropped_rows,
        "seconds": round(time.perf_counter() - start, 3),
    }


@job_flow(
    "ingest",
    resume="All rows of a run are added at once, by its last write, or none; files whose rows are there "
    "already are skipped.",
)
def ingest(parameters: IngestParameters) -> Summary:
    """Append the rows of new files, or of a query, to a dataset.

    Returns
    -------
    dict
        JSON-able: rows before and after, files ingested (the first 50 by name) and skipped, rows dropped.

    Raises
    ------
    RFFDistError
        If a source cannot be read or does not fit the dataset, which then is as it was.
    """
    log = get_run_logger()
    result = append(parameters)
    if result["n_new"]:
        log.info("%s rows added to %s", f"{result['n_new']:_}", result["data"])
    else:
        log.info("nothing new for %s, which has %s rows", result["data"], f"{result['n_after']:_}")
    if result["dropped_rows"]:
        log.warning("%s rows were dropped for missing or infinite values", f"{result['dropped_rows']:_}")
    create_markdown_artifact(
        _summary(result), key="rff-ingest-summary", description="Which rows were appended to which dataset."
    )
    return result


def _summary(result: Mapping[str, Any]) -> str:
    facts = {
        "dataset": code(result["data"]),
        "rows before": f"{result['n_before']:,}",
        "rows after": f"{result['n_after']:,}",
        "new": f"{result['n_new']:,} rows of {result['n_ingested']:,} sources",
        "skipped": f"{result['n_skipped']:,} sources that were ingested before",
        "dropped": f"{result['dropped_rows']:,} rows with missing or infinite values",
        "seconds": f"{result['seconds']:.1f}",
    }
    names = [f"- {code(name)}" for name in result["ingested"]]
    more = result["n_ingested"] - len(names)
    names += [f"- and {more:,} more"] if more else []
    return facts_markdown("Ingested rows", facts) + "\n".join(["", *names, ""] if names else [])
