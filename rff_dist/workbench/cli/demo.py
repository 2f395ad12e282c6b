"""Run the main job on a photograph: learn the colour of a pixel from its place.

In goes flower.jpg, which comes with scikit-learn: 273,280 rows of two coordinates, in
units of the picture's width, and three colours. Half of them are written to Zarr and
trained on by the Prefect flow. Out comes a picture: what the models learn from, and
what each of them predicts.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rff_dist import fields
from rff_dist.engines import events
from rff_dist.engines.cluster import Cluster
from rff_dist.errors import OutputExistsError
from rff_dist.features.feature_options import FeatureOptions
from rff_dist.workbench.cli import shell
from rff_dist.workbench.results.document import Document

if TYPE_CHECKING:
    from rff_dist.typing import FloatArray

#: Candidates for the length scale, in units of the picture's width: 0.01 is 6.4 pixels.
LENGTH_SCALES = [0.005, 0.0075, 0.01, 0.015, 0.02]


@shell.command("", "--n-components 1024 --output /tmp/demo")
def demo(
    *,
    output: str = fields.option(
        "Folder for data, model and picture.",
        "demo-output",
        placeholder="DIR",
        access="fills",
    ),
    n_components: fields.Count = fields.option(
        "D, the number of features.", 2048, placeholder="D"
    ),
    features: Annotated[FeatureOptions, "seed"],
    cluster: Annotated[Cluster, "n_workers", "n_threads"],
) -> Document:
    """Learn a photograph from half of its pixels, in about a minute."""
    folder = Path(output)
    prefect = folder / "prefect"
    if folder.exists() and not prefect.exists() and any(folder.iterdir()):
        raise OutputExistsError(
            f"{output} exists, and holds no earlier demo; expected a new folder"
        )
    prefect.mkdir(parents=True, exist_ok=True)
    # Prefect reads these when it is imported: its files stay out of the user's home,
    # its logs off the screen.
    os.environ.setdefault("PREFECT_HOME", str(prefect.resolve()))
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    return learn_photograph(folder, n_components, features.seed, cluster)


def learn_photograph(
    folder: Path, n_components: int, seed: int, cluster: Cluster, stride: int = 1
) -> Document:
    """Take every `stride`-th pixel of each row and column, train on half of these, and
    draw the result.
    """
    import numpy as np
    from sklearn.datasets import load_sample_image

    from rff_dist.estimators.persistence import load_model
    from rff_dist.flows import server
    from rff_dist.flows.train import train
    from rff_dist.storage.writing import write_dataset
    from rff_dist.workbench.page import pictures

    start = time.perf_counter()
    events.tell(events.Remark("starting Dask and Prefect", "about 20 s"))
    server.check_server()
    image = load_sample_image("flower.jpg")[::stride, ::stride] / 255.0
    height, width = image.shape[:2]
    colours = image.reshape(-1, 3)
    row, column = np.divmod(np.arange(height * width), width)
    places = ((np.column_stack([column, row]) + 0.5) / width).astype(np.float32)
    shuffled = np.random.Generator(np.random.Philox(seed)).permutation(len(places))
    learnt, test = (np.sort(half) for half in np.split(shuffled, [len(places) // 2]))
    paths = {name: str(folder / name) for name in ("train.zarr", "test.zarr", "model")}
    for name, pixels in (("train.zarr", learnt), ("test.zarr", test)):
        write_dataset(paths[name], places[pixels], colours[pixels], overwrite=True)

    trained = train(
        data=paths["train.zarr"],
        test=paths["test.zarr"],
        model=paths["model"],
        kernels=["gaussian"],
        length_scales=LENGTH_SCALES,
        features="fourier",
        n_components=n_components,
        # enough for so many rows; each fold costs a decomposition per candidate
        n_folds=2,
        standardize=False,
        seed=seed,
        overwrite=True,
        **fields.values_of(cluster, "n_workers", "n_threads"),
    )

    learnt_image = np.full_like(colours, 0.5)
    learnt_image[learnt] = colours[learnt]
    inputs = np.column_stack([places, np.ones(len(places))])
    linear = inputs @ np.linalg.lstsq(inputs[learnt], colours[learnt])[0]
    predicted = load_model(paths["model"]).predict(places)

    def psnr_of(predictions: FloatArray) -> float:
        """Return the peak signal-to-noise ratio in decibels, on pixels not learnt."""
        return -10 * math.log10(np.square(predictions - colours)[test].mean())

    psnr = psnr_of(predicted)
    psnr_linear = psnr_of(linear)
    half = f"half of the {width} × {height} pixels; the others are grey"
    shape = image.shape
    panels = [
        (learnt_image.reshape(shape), "What the models learn from", half),
        (
            linear.reshape(shape),
            "Linear model",
            f"{psnr_linear:.1f} dB on the other half",
        ),
        (
            predicted.reshape(shape),
            f"{n_components:,} random features",
            f"{psnr:.1f} dB",
        ),
    ]
    picture = str(folder / "comparison.png")
    figure = pictures.draw_comparison(
        panels, "The colour of a pixel, learnt from its place"
    )
    pictures.save(figure, picture)
    record = {
        "rows": len(learnt),
        "test_rows": len(test),
        **{name: trained[name] for name in ("n_components", "length_scale", "alpha")},
        "psnr_linear": psnr_linear,
        "psnr": psnr,
        "model_digest": trained["digest"],
        "files": [picture, *paths.values()],
        "seconds": time.perf_counter() - start,
    }
    facts = {
        "rows": f"{len(learnt):,} pixels of flower.jpg",
        "length scale": f"{trained['length_scale']:g} of the picture's width",
        "PSNR": f"{psnr:.1f} dB (linear model: {psnr_linear:.1f} dB)",
        "seconds": f"{record['seconds']:.0f} in all",
    }
    following = [["auto", "YOUR.csv", "--target", "COLUMN"]]
    return Document(f"wrote {picture}", [facts], record=record, next=following)
