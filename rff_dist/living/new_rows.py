"""Which rows came and went since a model was trained."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rff_dist.data import blocks
from rff_dist.data.loads import Load, read_loads
from rff_dist.errors import DataError, FingerprintMismatchError, InvalidParameterError, StatisticsError
from rff_dist.living.differences import (
    NO_DIFFERENCES,
    Differences,
    Range,
    count_rows,
    find_differences,
    has_rows_of,
    merge_ranges,
    without_rows,
)
from rff_dist.living.windows import ALL_ROWS, Window
from rff_dist.recipes import model_rows
from rff_dist.ridge.models import RidgeModel
from rff_dist.storage import documents, locations, repositories
from rff_dist.text import redact
from rff_dist.typing import frozen

# -- which rows came and went since a model was trained --------------------------------------------
#
# Versioned data say which of their chunks differ. Other data must begin with the same rows, by their
# fingerprint; the rows behind these are new.


@frozen
class Refusal:
    """Rows that were kept out of a model, or a change of rows that it holds.

    `start`, `stop`: the rows; a change lies between these two.
    `n_samples`: how many rows, from the first on, the fingerprint covers.
    `fingerprint`: if it is different now, the rows may be others, and count as new.
    `refused`: time of the refusal, as ISO 8601 in UTC.
    `data_version`: the version that the rows were read from; None for data without versions.
    `n_changed`: how many rows a change replaced or deleted; 0 if this is no change.
    """

    start: int
    stop: int
    n_samples: int
    fingerprint: str
    reason: str
    refused: str
    data_version: str | None = None
    n_changed: int = 0

    @property
    def is_change(self) -> bool:
        """Whether the model holds these rows as they were before. Each update judges such a change again."""
        return self.n_changed > 0


@frozen
class NewRows:
    """The rows of a dataset that an update adds to a model, and those that it takes out.

    `n_before`: rows of the data when the model was made, including those that it does not hold.
    `n_after`: rows of the data now.
    `ranges`: rows to add.
    `left_out`: rows that stay out.
    `differences`: how versioned data differ from those that the model was made of; `NO_DIFFERENCES` for other
      data.
    `window`: which rows the model is to hold, as text for `Window.parse`.
    `is_other_choice`: whether the model had another window.
    `start`: the first row that the model is to hold.
    `left`: rows that the model holds and that lie before `start`.
    """

    n_before: int
    n_after: int
    ranges: tuple[Range, ...]
    left_out: tuple[Range, ...]
    differences: Differences = NO_DIFFERENCES
    window: str = ALL_ROWS
    is_other_choice: bool = False
    start: int = 0
    left: tuple[Range, ...] = ()

    @property
    def out(self) -> list[Range]:
        """All rows of the data that the model is not to hold."""
        return merge_ranges([(0, self.start), *self.left_out])

    def shared(self, model: RidgeModel) -> list[Range]:
        """Return the rows, by their present numbers, that a model holds and is to keep."""
        stay = without_rows(held_ranges(model), [*self.differences.changed, *self.left])
        return merge_ranges([*stay, *((row, row + 1) for row in self.differences.moved[:, 0].tolist())])

    @property
    def n_samples(self) -> int:
        """How many rows there are to add, including those that replace others."""
        came = self.differences.came
        return count_rows(self.ranges) + (0 if came is None else came.n_samples)

    @property
    def n_gone(self) -> int:
        gone = self.differences.gone
        return count_rows(self.left) + (0 if gone is None else gone.n_samples)

    @property
    def is_nothing(self) -> bool:
        """Whether the model holds the data as they are now."""
        return not (self.n_samples or self.differences.changed or self.left or self.is_other_choice)


def find_new_rows(
    model: RidgeModel,
    dataset: blocks.Dataset,
    *,
    refusals: Sequence[Refusal] = (),
    backfill: int | None = None,
    window: str | None = None,
) -> NewRows:
    """Find the rows that came, and those that went, since a model was trained on the data.

    `model`: with its statistics.
    `dataset`: the data that it was trained on: versioned data, or others with more rows at their end.
    `refusals`: rows to pass over.
    `backfill`: from this row on, rows that were left out or refused before are new again.
    `window`: which rows the model is to hold, see `Window.parse`; as before by default.
    Raises FingerprintMismatchError if the data do not begin with the rows that the model was trained on;
      StatisticsError if the model cannot be updated exactly; DataError if columns or targets differ;
      InvalidParameterError if there is no such window.
    """
    check_updatable(model)
    check_columns(model, dataset)
    seen, n_samples = n_seen(model), dataset.n_samples
    window_before, start_before = _window(model)
    window = window_before if window is None else window
    start = Window.parse(window).first_row(_loads_of(dataset, window))
    version = model.card.get("data_version")
    missing = without_rows([(0, seen)], held_ranges(model))
    fingerprint = model.card["prefix_fingerprint"]
    is_longer = fingerprint == dataset.recorded_prefix(seen)
    differences = find_differences(dataset, version, missing, start=start, only_appended=is_longer)
    if differences is None and not _begins_with(dataset, seen, fingerprint):
        raise FingerprintMismatchError(_why_not(model, dataset, seen))
    differences = differences or NO_DIFFERENCES
    changed = differences.changed

    def holds(refusal: Refusal) -> bool:  # as long as its rows are still those that were refused
        if changed:
            return has_rows_of(dataset, refusal.data_version, refusal.start, refusal.stop)
        return _begins_with(dataset, refusal.n_samples, refusal.fingerprint)

    refused = [refusal for refusal in refusals if not refusal.is_change and seen < refusal.stop]
    held_back = [(refusal.start, refusal.stop) for refusal in refused if holds(refusal)]
    # rows that stay out: those left out before, unless they changed since, and refused new ones
    out = merge_ranges([*without_rows(_left_out(model), changed), *without_rows(held_back, [(0, seen)])])
    again = [] if backfill is None else without_rows(out, [(0, backfill)])
    out = without_rows(out, [*again, (0, start)])
    # changed rows come by `differences` instead
    again += without_rows([(start, start_before)], changed)  # by a longer window
    added = without_rows([*again, (seen, max(seen, n_samples))], [*out, (0, start)])
    # rows that the window has passed; changed ones are subtracted as they were, by `differences`
    left = tuple(without_rows(held_ranges(model), [*changed, (start, max(start, seen))]))
    come = tuple(merge_ranges(added))
    is_other = window != window_before
    return NewRows(seen, n_samples, come, tuple(out), differences, window, is_other, start, left)


def _why_not(model: RidgeModel, dataset: blocks.Dataset, seen: int) -> str:
    """Return why a model cannot follow data that do not begin with the rows that it was trained on."""
    version, n_samples = model.card.get("data_version"), dataset.n_samples
    has = f"has only {n_samples:_}" if n_samples < seen else "begins with others"
    data_id = documents.name_of(dataset.attributes)
    if version is None or dataset.version is None or model.card.get("data_id") != data_id:
        return (
            f"the model was trained on {seen:_} rows, and {_name(dataset)} {has} (fingerprint "
            f"{_prefix(dataset, min(seen, n_samples))[:16]}…, expected "
            f"{str(model.card['prefix_fingerprint'])[:16]}…); expected the data that it was trained on, with "
            "the same arrays of X, y and weights: any version of that dataset or, without versions, the same "
            "rows with new ones at their end. Give those, or fit again"
        )
    created = datetime.fromisoformat(str(model.card["created"]))
    history = repositories.read_history(locations.parse_location(dataset.url or ""), dataset.version)
    later = [entry for entry in history if entry.facts.get("change") == "forget" and entry.written >= created]
    n_forgotten = sum(int(entry.facts["n_rows"]) for entry in later)
    changed = "rows were corrected or deleted since"
    if n_forgotten:
        rows = "1 row was" if n_forgotten == 1 else f"{n_forgotten:,} rows were"
        changed = f"{rows} forgotten since; the model still contains those that were in that version"
    return (
        f"the model was trained on version {version} of {_name(dataset)}, which has been removed, and "
        f"{changed}. Without that version nothing can be subtracted; fit again on the rows that are left"
    )


def _loads_of(dataset: blocks.Dataset, window: str) -> list[Load]:
    """Return the loads of a dataset; raise InvalidParameterError if a window needs unknown ones."""
    if window != ALL_ROWS and dataset.version is None:
        raise InvalidParameterError(
            f"`window` is {window!r}, but {_name(dataset)} keeps no versions, which record the rows that "
            "came together; expected a versioned dataset. `rff-dist data convert` makes one"
        )
    return read_loads(documents.manifest_of(dataset.attributes), dataset.n_samples)


def refuse(dataset: blocks.Dataset, rows: NewRows, reason: str) -> list[Refusal]:
    """Return refusals of new rows, and one of all changes of rows that the model holds."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    fingerprint = dataset.recorded_prefix(rows.n_after) or _prefix(dataset, rows.n_after)
    facts = rows.n_after, fingerprint, reason, now, dataset.version
    refusals = [Refusal(start, stop, *facts) for start, stop in rows.ranges]
    if changed := rows.differences.changed:
        refusals.append(Refusal(changed[0][0], changed[-1][1], *facts, count_rows(changed)))
    return refusals


def check_updatable(model: RidgeModel) -> None:
    """Raise StatisticsError if a model cannot be updated exactly."""
    if "classifier" in model.card:
        why = "it is a classifier, whose probabilities, class weights and losses depend on all rows"
    elif model.statistics is None:
        if model.card["solver"].get("method") == "pcg":
            why = "conjugate gradients solved it, without statistics (`solver` 'pcg')"
        else:
            why = "it was stored without its statistics (`statistics` was false)"
    elif "prefix_fingerprint" not in model.card:
        why = "its card does not say which rows it was trained on"
    else:
        return
    raise StatisticsError(f"this model cannot be updated: {why}; train it again on all rows")


def check_columns(model: RidgeModel, dataset: blocks.Dataset) -> None:
    """Raise DataError unless a dataset has the columns and targets of a model."""
    model_rows.check_dataset(dataset, model)
    spec = model.summed.spec
    if (dataset.n_targets, dataset.one_dimensional) != (spec.n_targets, spec.one_dimensional):
        raise DataError(
            f"{_name(dataset)} has {dataset.n_targets} targets (vector: {dataset.one_dimensional}); "
            f"the model was trained on {spec.n_targets} (vector: {spec.one_dimensional})"
        )


def n_seen(model: RidgeModel) -> int:
    """Return how many rows the data had when a model was made of them."""
    return int(model.card.get("n_seen", model.card["n_samples"]))


def _left_out(model: RidgeModel) -> list[Range]:
    return [(int(start), int(stop)) for start, stop in model.card.get("left_out", ())]


def _window(model: RidgeModel) -> tuple[str, int]:
    """Return the window of a model, and its first row; see `NewRows`."""
    kept = model.card.get("window", {"of": ALL_ROWS, "start": 0})
    return kept["of"], kept["start"]


def held_ranges(model: RidgeModel) -> list[Range]:
    """Return the rows that a model holds."""
    return without_rows([(0, n_seen(model))], out_of(model))


def out_of(model: RidgeModel) -> list[Range]:
    """Return the rows of its data that a model does not hold, including those before its window."""
    return merge_ranges([(0, _window(model)[1]), *_left_out(model)])


def _begins_with(dataset: blocks.Dataset, n_samples: int, fingerprint: str) -> bool:
    """Return whether the first rows have a fingerprint."""
    if n_samples > dataset.n_samples:
        return False
    return fingerprint == dataset.recorded_prefix(n_samples) or fingerprint == _prefix(dataset, n_samples)


def _prefix(dataset: blocks.Dataset, n_samples: int) -> str:
    fingerprint = dataset.prefix_fingerprint(n_samples)
    if fingerprint is None:
        raise DataError(
            f"a {type(dataset).__name__} has no fingerprint of its first rows; write the data to Zarr and "
            "open them with open_dataset"
        )
    return fingerprint


def _name(dataset: blocks.Dataset) -> str:
    return "the data" if dataset.url is None else redact(dataset.url)
