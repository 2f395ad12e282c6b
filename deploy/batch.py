"""A model in the batches of Spark, Ray or any other program that hands frames to a
function.

Spark:
    predict = partial(predict_batches, model="models/prices")
    frame.mapInPandas(predict, "id string, prediction double")

Ray:
    rows.map_batches(Predictor, fn_constructor_args=["models/prices"],
    batch_format="pandas", concurrency=4)

Each worker reads the model once. The model must lie where all workers read it: a shared
folder or s3://.
"""

from collections.abc import Iterator

import pandas as pd

from rff_dist import load_model


class Predictor:
    """What predicts batches; make it once for each worker.

    `id`: a column that comes back beside the predictions, if the frames have it.
    """

    def __init__(self, model: str, id: str = "id") -> None:
        self.model = load_model(model)
        self.id = id

    def __call__(self, batch: pd.DataFrame) -> pd.DataFrame:
        """Return the predictions of a batch's rows in their order."""
        kept = batch[[self.id]] if self.id in batch else pd.DataFrame(index=batch.index)
        return kept.assign(prediction=self.model.predict(batch))


def predict_batches(
    batches: Iterator[pd.DataFrame], model: str, id: str = "id"
) -> Iterator[pd.DataFrame]:
    """Predict one batch after the other, with a model that is read once."""
    predict = Predictor(model, id)
    yield from map(predict, batches)
