"""A model behind HTTP, by FastAPI: rows in, predictions out.

MODEL=models/prices uvicorn serve:app --app-dir deploy --host 127.0.0.1 --port 8000
curl -s localhost:8000/predict -H 'Content-Type: application/json' -d '{"rows":
[{"city": "Bonn"}]}'

A model that was trained on an ingested table takes the table's columns, text and dates
included; another one takes `"rows": [[1.0, 2.0], …]`. Put what terminates TLS and knows
your users in front of it.
"""

import io
import json
import os
from typing import Any

import pyarrow
import pyarrow.json
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from rff_dist import load_model
from rff_dist.errors import RFFDistError

app = FastAPI(title="rff_dist")
model = load_model(os.environ["MODEL"])


class Request(BaseModel):
    """Rows to predict, by the names of their columns or in the order of the model's."""

    rows: list[dict[str, Any]] | list[list[float]] = Field(
        min_length=1, max_length=10_000
    )


@app.post("/predict")
def predict(request: Request) -> dict[str, Any]:
    """Return a prediction, or a label, for each row."""
    try:
        return {"predictions": model.predict(_inputs(request.rows)).tolist()}
    except (RFFDistError, pyarrow.ArrowException) as error:
        raise HTTPException(422, str(error)) from error


def _inputs(rows: list[Any]) -> Any:
    if isinstance(rows[0], list):
        return rows
    # in which Arrow finds dates, as in files of JSON lines
    lines = "\n".join(map(json.dumps, rows))
    return pyarrow.json.read_json(io.BytesIO(lines.encode()))
