"""What a run chose alpha from can be drawn, whatever it was."""

from collections.abc import Callable

import numpy as np
import pytest

from rff_dist import Gaussian, SerialEngine
from rff_dist.data.memory import ArrayDataset
from rff_dist.ridge.models import RidgeModel
from rff_dist.workbench.page.pictures import save_choice
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
def test_the_errors_of_every_way_to_choose_are_drawn(tmp_path, options):
    model = fit(lambda X: X + 0.1, **options)
    picture = save_choice(model, tmp_path / "errors.png", title="data", about="gaussian")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_where_alpha_was_given_there_is_no_picture(tmp_path):
    model = fit(lambda X: X[:, 0], alpha=0.1)
    assert save_choice(model, tmp_path / "errors.png", title="data", about="gaussian") is None
    assert list(tmp_path.iterdir()) == []
