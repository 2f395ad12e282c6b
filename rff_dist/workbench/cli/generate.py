"""Generate data whose best possible error is known.

In go a number of rows, a length scale and the noise's standard deviation, out comes a
dataset. Data from elsewhere would leave open whether an error is the model's or the
noise's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from rff_dist import fields
from rff_dist.features.feature_options import FeatureOptions
from rff_dist.fields import Count, NonNegative, Positive, WholeNumber
from rff_dist.workbench.cli import command_context, shell
from rff_dist.workbench.results.document import Document

if TYPE_CHECKING:
    import numpy as np

    from rff_dist.kernels import base


@shell.command("data.zarr --rows 1e6 --n-features 8 --length-scale 2 --noise 0.1")
def generate(
    *,
    output: str = fields.argument(
        "Where to write the dataset.", "OUT", access="writes"
    ),
    rows: Count = fields.option("Number of rows, such as 1e6."),
    n_features: Count = fields.option("Number of columns of X.", 8),
    length_scale: Positive = fields.option(
        "Length scale of the function: the larger, the smoother.", 2.0, placeholder="L"
    ),
    features: Annotated[FeatureOptions, "n_components", "seed"],
    noise: NonNegative = fields.option(
        "The noise's standard deviation; the function's is 1.", 0.1
    ),
    first_row: WholeNumber = fields.option(
        "Number of the first row; test data continue the count.", 0
    ),
    overwrite: bool = shell.OVERWRITE,
) -> Document:
    """Write a dataset of any size whose best possible error is known: a random function
    plus noise.

    The inputs x are standard normal. The function f(x) = z(x)'w has standard normal
    weights w on random features of the Gaussian kernel. No model can have a smaller
    RMSE than the noise.
    """
    from rff_dist.kernels.stationary import Gaussian
    from rff_dist.numerics.machine import available_cores, using_threads
    from rff_dist.storage.writing import WriteOptions
    from rff_dist.workbench.results.rows import dataset_facts, describe_dataset
    from rff_dist.workbench.tables.generate import RandomRows, generate_dataset

    seed = features.seed
    function = draw_function(
        Gaussian(length_scale), n_features, features.n_components, seed
    )
    # Threads share whole tiles, so that no bit of the data depends on their number.
    with using_threads(available_cores()):
        dataset = generate_dataset(
            output,
            function,
            RandomRows(rows, n_features, noise, seed, first_row),
            WriteOptions(None, overwrite, command_context.row_counter("generate")),
        )
    record = {**describe_dataset(dataset), "seed": seed, "best_rmse": noise}
    facts = {**dataset_facts(dataset), "best possible RMSE": f"{noise:g}"}
    return Document(
        f"wrote {output}", [facts], record=record, next=[["fit", output, "MODEL"]]
    )


def draw_function(
    kernel: base.Kernel, n_features: int, n_components: int, seed: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Draw f(x) = z(x)'w with random features z and w ~ N(0, I); its variance is 1.

    A model fitted with the same seed has other features, which come from another
    stream.
    """
    import numpy as np

    from rff_dist.data.blocks import Rows
    from rff_dist.features.draw import draw_feature_map
    from rff_dist.fitting.predicting import LinearModel, predict_rows

    seeds = np.random.SeedSequence([seed, 1]).generate_state(2, np.uint64).tolist()
    feature_map = draw_feature_map(
        kernel,
        n_features=n_features,
        n_components=n_components,
        random_state=seeds[0],
    )
    generator = np.random.Generator(np.random.Philox(seeds[1]))
    weights = generator.standard_normal((n_components, 1))
    model = LinearModel(feature_map, weights, np.zeros(1))
    return lambda X: predict_rows(Rows.in_memory(X), model)[:, 0]
