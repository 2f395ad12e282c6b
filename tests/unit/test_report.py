import io
import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from numpy.testing import assert_allclose

from rff_dist import HashFolds, TimeFolds
from rff_dist.errors import DataError, StorageError
from rff_dist.models.versions import Version
from rff_dist.selection.error_table import CrossValidation
from rff_dist.workbench.page import pictures
from rff_dist.workbench.results import figures
from tests.refusals import refuses


def panel(red, green, blue, above="a", below=""):
    return np.full((40, 60, 3), [red, green, blue], float), above, below


def seen(figure):
    return imread(io.BytesIO(figures.png_of(figure, figures.FILE_DPI)))


def test_panels_are_side_by_side_in_the_order_given():
    panels = [panel(1, 0, 0), panel(0, 1, 0, "b"), panel(0, 0, 1, "c", "caption")]
    image = seen(pictures.draw_comparison(panels, "title"))
    middle = image[image.shape[0] // 2, :, :3]
    for colour, third in enumerate(np.array_split(middle, 3)):
        assert_allclose(third[len(third) // 2], np.eye(3)[colour], atol=0.01)


def test_colours_beyond_the_range_are_clipped():
    image = seen(pictures.draw_comparison([panel(1.7, -0.4, 0)], "t"))
    assert_allclose(
        image[image.shape[0] // 2, image.shape[1] // 2, :3], [1, 0, 0], atol=0.01
    )


def test_same_picture_has_the_same_bytes_and_replaces_the_old_file(tmp_path):
    def save(*panels):
        return pictures.save(pictures.draw_comparison(panels, "t"), path).read_bytes()

    path = tmp_path / "new" / "p.png"
    first = save(panel(1, 0, 0))
    assert save(panel(0, 0, 1)) != first
    assert save(panel(1, 0, 0)) == first
    assert [entry.name for entry in path.parent.iterdir()] == ["p.png"]


def test_dollar_signs_in_titles_are_text():
    seen(
        pictures.draw_comparison([panel(1, 0, 0, "$\\frac$", "$5 { or $6")], "$\\frac$")
    )


def test_place_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with refuses(StorageError, "cannot be written"):
        pictures.save(
            pictures.draw_comparison([panel(1, 0, 0)], "t"), tmp_path / "file" / "p.png"
        )


def cross_validation(n_splits=4, n_widths=3, n_alphas=6, scale=1.0):
    alphas = np.geomspace(1e-3, 1e2, n_alphas)
    widths = 16 * 2 ** np.arange(n_widths)
    errors = (0.2 + np.log10(alphas) ** 2 / 20 + 4 / widths[:, np.newaxis])[np.newaxis]
    errors = scale * errors * (1 + 0.1 * np.arange(n_splits))[:, np.newaxis, np.newaxis]
    folds = TimeFolds(2) if n_splits == 1 else HashFolds(n_splits)
    return CrossValidation(
        folds,
        widths,
        alphas,
        np.stack([errors, 9 * errors], -1),
        np.ones(n_splits),
        np.array([1.0, 9.0]),
    )


@pytest.mark.parametrize(("n_splits", "n_widths"), [(4, 3), (4, 1), (1, 2)])
def test_cross_validation_is_drawn_with_one_width_and_with_one_split(
    n_splits, n_widths
):
    table = cross_validation(n_splits, n_widths)
    image = seen(pictures.draw_cross_validation(table, title="$t", subtitle="$s"))
    orange = np.abs(image[:, :, :3] - np.array([194, 65, 12]) / 255).max(axis=-1) < 0.15
    half = image.shape[1] * 3 // 5 if n_widths > 1 else image.shape[1]
    height = image.shape[0] * 4 // 5  # without the legend
    assert orange[:height, :half].any()  # the best is marked among alphas
    if n_widths > 1:
        assert orange[:height, half:].any()  # and among numbers of components
    else:  # whose curve has all of the width
        colour = to_rgb(figures.BLUE)
        assert (
            np.abs(image[:height, image.shape[1] * 9 // 10 :, :3] - colour).max(axis=-1)
            < 0.02
        ).any()


def test_a_line_marks_the_alpha_of_the_model_and_none_several_of_them():
    def orange(alpha):
        image = seen(
            pictures.draw_cross_validation(cross_validation(n_widths=1), alpha=alpha)
        )
        curve = image[: image.shape[0] * 4 // 5, :, :3]  # without the legend
        return int(
            (np.abs(curve - np.array([194, 65, 12]) / 255).max(axis=-1) < 0.15).sum()
        )

    assert orange(30.0) > orange(None) + 200
    assert orange([30.0, 1.0]) == orange(None)


def test_errors_that_are_all_0_are_refused():
    with refuses(DataError, "0"):
        pictures.draw_cross_validation(cross_validation(scale=0.0))


def test_a_path_of_alpha_is_drawn_with_its_gaps_and_marks_what_was_chosen():
    alphas = np.geomspace(1e-3, 1e3, 4)
    names = [f"$y{i}" for i in range(12)]
    errors = 1 + np.log10(alphas)[:, np.newaxis] ** 2 + np.arange(12)
    errors[errors > 3] = np.inf
    options = {"labels": names, "title": "$t", "subtitle": "$s"}

    def orange(chosen):
        image = seen(pictures.draw_alpha_path(alphas, errors, chosen=chosen, **options))
        near = np.abs(image[..., :3] - np.array([194, 65, 12]) / 255).max(axis=-1)
        return int((near < 0.15).sum())

    assert orange([1.0, 100.0]) > orange(1.0) > 100


def test_clusters_differ_in_colour_or_shape_and_neighbours_in_colour():
    looks = [pictures._look(i) for i in range(42)]
    assert len(set(looks)) == 42
    assert all(one[0] != other[0] for one, other in itertools.pairwise(looks))


def test_errors_of_versions_are_a_line_from_two_that_are_alike_on():
    def version(number, **errors):
        return Version(number, "", "ridge model", "", "", None, "", {"errors": errors})

    listed = [version(1, rmse=3.0), version(2), version(3, rmse=2.0)]
    figure = pictures.draw_versions(listed, title="of versions")
    (line,) = figure.axes[0].lines
    assert line.get_xydata().tolist() == [[1, 3.0], [3, 2.0]]
    assert figure.axes[0].get_ylabel() == "RMSE"
    assert pictures.draw_versions(listed[:2], title="") is None
    assert (
        pictures.draw_versions([listed[0], version(2, rmse=[1, 2])], title="") is None
    )


def test_errors_of_versions_are_joined_by_a_solid_line_if_their_rows_are_the_same():
    def version(number, judged_on):
        facts = {"errors": {"rmse": [float(number)]}, "judged_on": judged_on}
        return Version(number, "", "ridge model", "", "", None, "", facts)

    digests = [None, None, "a" * 64, "a" * 64, "b" * 64]
    listed = [version(i, digest) for i, digest in enumerate(digests)]
    dotted, solid = pictures.draw_versions(listed, title="").axes[0].lines
    assert (dotted.get_linestyle(), solid.get_linestyle()) == (":", "-")
    assert solid.get_xydata().tolist() == [[2, 2.0], [3, 3.0]]
