"""Whether more rows or more features would lower the error of a model.

In go the sums of each fold that a fit left, out come sentences and a chart of the error
against the number of rows and of features. One error alone would not tell which of the
two are too few.
"""

import warnings

import numpy as np
from scipy.linalg import LinAlgWarning

from rff_dist.errors import SolveError
from rff_dist.features import draw, kinds
from rff_dist.ridge import fit_result
from rff_dist.selection import learning_curves
from rff_dist.text import share
from rff_dist.typing import AnyArray, FloatArray
from rff_dist.workbench.jobs import judging
from rff_dist.workbench.page import pictures
from rff_dist.workbench.results import document, figures

CLEAR = 2.0  # standard errors of a difference
#: From this fall of the error on, what is said of more rows.
HELP = {0.05: "would help", 0.01: "would help a little", 0.0: "would barely help"}


def show_learning(
    page: document.Document, trained: fit_result.FitResult, X: AnyArray | None
) -> None:
    """Say whether more rows and features would help; nothing without sums of folds.

    `X` has all training rows, if they are few.
    """
    table = trained.solved.cross_validation
    curves = curves_of(trained)
    if not curves or table is None:
        return
    what = "RMSE in std of the targets −1 and +1"
    unit = np.where(table.target_variance > 0, table.target_variance, 1.0)
    if "classifier" not in trained.model.card:
        what = "RMSE in std"
        if len(unit) == 1:
            what = "RMSE"
            unit = np.ones(1)

    feature_map = trained.model.feature_map
    is_exact = False
    if X is not None and kinds.kind_of(feature_map) == "nystrom":
        is_exact = feature_map.n_components >= len(np.unique(X, axis=0))
    figure = pictures.figure_of(3.2 * len(curves), 2.4)
    panels = np.atleast_1d(figure.subplots(1, len(curves), sharey=True))
    for axes, (name, curve) in zip(panels, curves.items(), strict=True):
        errors = (curve.errors / unit).mean(axis=-1)
        if name == "rows" or not is_exact:
            page.say(help_words(name, curve, errors))
        else:
            page.say(
                "More kernel features are impossible here, and unnecessary: each"
                " distinct training row is one."
            )
        heights = np.sqrt([curve.units.mean(of_splits) for of_splits in errors])
        axes.plot(curve.numbers, heights, "o-", color=figures.BLUE, lw=2.0)
        pictures.plain_axes(axes, name)
        pictures.round_ticks(axes)
    # what the targets of classes are would be longer than a panel
    pictures.plain_axes(panels[0], up=what.partition(" of the ")[0])
    page.picture(
        figure,
        f"{what} by the number of {' and of '.join(curves)}, as said above.",
        f"{what[0].upper()}{what[1:]} by cross-validation, of models with fewer"
        f" {' or '.join(curves)}, and the same penalty. Smaller is better.",
        shrinks=True,
    )


def curves_of(
    trained: fit_result.FitResult,
) -> dict[str, learning_curves.LearningCurve]:
    """Return the curves by what is on their axis; none if the sums do not give them."""
    parts = trained.parts
    feature_map = trained.model.feature_map
    n_components = feature_map.n_components
    if parts is None or n_components > judging.MAX_FACTOR:
        return {}
    alpha = trained.solved.solution.alpha
    fit_intercept = trained.model.card["fit_intercept"]
    maps = [feature_map]
    if draw.is_nested(feature_map) and n_components >= 8:
        quarter = n_components // 8 * 2  # pairs need an even number
        half = n_components // 4 * 2
        maps = [*(draw.shortened(feature_map, n) for n in (quarter, half)), feature_map]
    try:
        with warnings.catch_warnings(action="error", category=LinAlgWarning):
            curves = {
                "rows": learning_curves.learning_curve(
                    parts, alpha=alpha, fit_intercept=fit_intercept
                ),
                "kernel features": learning_curves.component_curve(
                    parts, maps, alpha=alpha, fit_intercept=fit_intercept
                ),
            }
    except (SolveError, LinAlgWarning):  # so few rows do not determine a model
        return {}
    return {
        name: curve
        for name, curve in curves.items()
        if curve is not None and len(curve.numbers) > 1
    }


def help_words(
    what: str, curve: learning_curves.LearningCurve, errors: FloatArray
) -> str:
    """Say how the error changed from about half of the rows to all, and whether more
    would help. `errors` are mean squares, shape (n_points, n_splits).
    """
    shares = curve.numbers / curve.numbers[-1]
    half = int(np.abs(shares[:-1] - 0.5).argmin())
    saved = errors[half] - errors[-1]
    before = curve.units.mean(errors[half])
    ratio = float(np.sqrt(curve.units.mean(errors[-1]) / before))
    fall = 1.0 - ratio
    # d√r = dr / (2√r)
    deviation = float(curve.units.standard_error(saved) / (2 * ratio * before))
    ends = (
        f"By cross-validation, with {curve.numbers[-1]:,.0f} instead of"
        f" {curve.numbers[half]:,.0f} {what}"
    )
    side = "smaller" if fall > 0 else "larger"
    size = f"{share(abs(fall))} ± {share(deviation)} {side}"
    if fall > CLEAR * deviation:
        judgement = next(words for least, words in HELP.items() if fall >= least)
        return f"{ends} the error is {size}: more {what} {judgement}."
    if fall + CLEAR * deviation <= max(HELP):
        return f"{ends} the error is about the same ({size}): more would barely help."
    return f"{ends} the error is {size}: more {what} may help; it is not certain."
