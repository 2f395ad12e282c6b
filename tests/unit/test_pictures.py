"""What a run chose alpha from can be drawn, whatever it was."""

from collections.abc import Callable

import numpy as np
import pytest

from rff_dist import Gaussian, SerialEngine
from rff_dist.data.memory import ArrayDataset
from rff_dist.ridge.models import RidgeModel
from rff_dist.workbench.page import pictures
from tests.plain import fit_ridge


def fit(y: Callable[[np.ndarray], np.ndarray], **options: object) -> RidgeModel:
    X = np.random.default_rng(0).normal(size=(300, 2))
    dataset = ArrayDataset(X, y(X), chunk_rows=100)
    model, _ = fit_ridge(dataset, Gaussian(1.0), engine=SerialEngine(1), n_components=8, **options)
    return model.without_statistics()


@pytest.mark.filterwarnings("ignore:alpha=0.1 was chosen")  # the least of the list
@pytest.mark.parametrize(
    "options",
    [
        {"alpha": "gcv"},
        {"alpha": "evidence"},
        {"alpha": "press"},
        {"alpha": "cv", "cv": 3},
        {"alpha": [0.1, 1.0]},
    ],
    ids=["gcv", "evidence", "press", "cv", "a list"],
)
def test_the_errors_of_every_way_to_choose_are_drawn(options):
    model = fit(lambda X: X + 0.1, **options)
    figure = pictures.draw_choice(model, title="data", about="gaussian")
    assert pictures.png_of(figure).startswith(b"\x89PNG")


def test_where_alpha_was_given_there_is_no_picture():
    model = fit(lambda X: X[:, 0], alpha=0.1)
    assert pictures.draw_choice(model, title="data", about="gaussian") is None
