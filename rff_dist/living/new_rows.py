"""Find which rows of the data an update adds to a model, and which it takes out.

Input is a ridge model, whose card records which rows of the data its sums contain, and
the data as they are now. The result, `NewRows`, has ranges of row numbers. Counting the
rows would not be enough: rows may have been corrected or deleted since, earlier updates
may have refused some, and a window passes old ones.

A model's *card* is the JSON record that is stored with it. A *window* is the newest
part of the data, if a model is to have only that. The *gate* is the comparison with the
old model that an update must pass. Rows are *left out* of a model if the gate refused
them. Rows before the window and rows left out are *missing* from it.

Versioned data record which of their chunks differ. Other data must begin with the rows
that the model was trained on, which a fingerprint shows; the rows behind are new.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from rff_dist.data import blocks
from rff_dist.data.loads import Load, read_loads
from rff_dist.errors import (
    DataError,
    FingerprintMismatchError,
    InvalidParameterError,
    StatisticsError,
)
from rff_dist.living.differences import Differences, find_differences
from rff_dist.living.ranges import Range, count_rows, merge_ranges, without_rows
from rff_dist.living.windows import ALL_ROWS, Window
from rff_dist.recipes import model_rows
from rff_dist.ridge.models import RidgeModel
from rff_dist.storage import locations, manifests, repositories
from rff_dist.text import redact
from rff_dist.typing import frozen


@frozen
class Refusal:
    """New rows, or a correction of older ones, that the gate refused.

    Refusals are stored next to the model, so their fields' names are part of a format.
    """

    start: int
    #: The row after the last one; corrected rows lie somewhere between the two.
    stop: int
    #: The fingerprint is of the data's first `n_samples` rows. If it differs now, the
    #: refused rows may have changed, and count as new.
    n_samples: int
    fingerprint: str
    reason: str
    #: Time of the refusal, as ISO 8601 in UTC.
    refused: str
    #: The version that the rows were read from; None for data without versions.
    data_version: str | None = None
    #: How many rows a correction replaced or deleted; 0 for new rows.
    n_changed: int = 0

    @property
    def is_correction(self) -> bool:
        """Whether a correction was refused: the model keeps the old rows, and each
        update tries the correction again.
        """
        return self.n_changed > 0

    @property
    def backfill(self) -> int | None:
        """The row from which an update must judge again, None for a correction."""
        return None if self.is_correction else self.start


@frozen
class NewRows:
    """The rows that an update adds to a model, and those that it takes out.

    Ranges are of present row numbers.
    """

    #: How many rows the data had when the model was made, and have now; missing rows
    #: count.
    n_before: int
    n_after: int
    #: Rows to add, without corrected ones.
    added: tuple[Range, ...]
    #: Rows in the window that are left out of the updated model.
    left_out: tuple[Range, ...]
    #: Corrected and deleted rows, of versioned data.
    differences: Differences = Differences()
    #: A text for `Window.parse`.
    window: str = ALL_ROWS
    #: Whether the model has another window so far.
    has_other_window: bool = False
    #: The first row of the window.
    first_row: int = 0
    #: Rows in the model that are now before the window.
    expired: tuple[Range, ...] = ()

    @property
    def missing(self) -> list[Range]:
        """Rows that are missing from the updated model."""
        return merge_ranges([(0, self.first_row), *self.left_out])

    @property
    def n_new(self) -> int:
        """How many rows there are to add, also those that replace others."""
        replacements = self.differences.replacements
        n_replacements = 0 if replacements is None else replacements.n_samples
        return count_rows(self.added) + n_replacements

    @property
    def n_gone(self) -> int:
        """How many rows there are to take out: expired, corrected or deleted ones."""
        removals = self.differences.removals
        n_removals = 0 if removals is None else removals.n_samples
        return count_rows(self.expired) + n_removals

    @property
    def is_empty(self) -> bool:
        """Whether the model has the data as they are now."""
        has_changes = self.n_new or self.differences.changed or self.expired
        return not has_changes and not self.has_other_window

    def shared(self, model: RidgeModel) -> list[Range]:
        """Return the rows that a model has and is to keep, by their present numbers."""
        unchanged = without_rows(
            rows_in(model), [*self.differences.changed, *self.expired]
        )
        return merge_ranges([*unchanged, *self.differences.moved_to])


def find_new_rows(
    model: RidgeModel,
    dataset: blocks.Dataset,
    *,
    refusals: Sequence[Refusal] = (),
    backfill: int | None = None,
    window: str | None = None,
) -> NewRows:
    """Find the rows that came and went since a model was trained on a dataset.

    Rows of `refusals` are left out as long as they have not changed since; from row
    `backfill` on, all left-out rows count as new. `window` is a text for
    `Window.parse`, by default the model's. Raises FingerprintMismatchError if the data
    do not begin with the rows that the model was trained on; StatisticsError if the
    model cannot be updated exactly; DataError if columns or targets differ;
    InvalidParameterError if there is no such window.
    """
    check_updatable(model)
    check_columns(model, dataset)
    n_before = n_seen(model)
    n_after = dataset.n_samples
    old_window, old_first = _window_of(model)
    if window is None:
        window = old_window
    first = Window.parse(window).first_row(_loads_of(dataset, window))
    refused = _refused_rows(model, dataset, refusals)
    differences = _compare(model, dataset, first, refused)
    changed = differences.changed

    passed = (0, first)
    in_model = without_rows(rows_in(model), changed)
    left_out_so_far = without_rows(refused, [*in_model, *differences.moved_to])
    retried = []
    if backfill is not None:
        retried = without_rows(left_out_so_far, [(0, backfill)])
    left_out = without_rows(left_out_so_far, [*retried, passed])
    # A longer window begins earlier, and the rows up to its old beginning enter again.
    # A shorter one makes a range with stop < start, which `without_rows` drops.
    # Changed rows are among the differences already.
    reentering = without_rows([(first, old_first)], changed)
    appended = (n_before, n_after)
    added = without_rows([*retried, *reentering, appended], [*left_out, passed])
    # If the window begins at a new row, this range is empty: all old rows expire.
    in_window = (first, n_before)
    expired = without_rows(rows_in(model), [*changed, in_window])
    return NewRows(
        n_before=n_before,
        n_after=n_after,
        added=tuple(merge_ranges(added)),
        left_out=tuple(left_out),
        differences=differences,
        window=window,
        has_other_window=window != old_window,
        first_row=first,
        expired=tuple(expired),
    )


def _refused_rows(
    model: RidgeModel, dataset: blocks.Dataset, refusals: Sequence[Refusal]
) -> list[Range]:
    """Return the present numbers of rows that are left out of a model, or were refused
    since. The model may have some of the latter after a backfill.
    """
    n_before = n_seen(model)
    fingerprint = model.card["prefix_fingerprint"]
    version = model.card.get("data_version")
    refused = _follow(dataset, _left_out(model), n_before, fingerprint, version)
    for refusal in refusals:
        if not refusal.is_correction and refusal.stop > n_before:
            rows = [(refusal.start, refusal.stop)]
            first_rows = (refusal.n_samples, refusal.fingerprint)
            refused += _follow(dataset, rows, *first_rows, refusal.data_version)
    return merge_ranges(refused)


def _follow(
    dataset: blocks.Dataset,
    rows: list[Range],
    n_samples: int,
    fingerprint: str,
    version: str | None,
) -> list[Range]:
    """Return the present numbers of rows of an earlier version of the data, without
    deleted and corrected ones.

    None of them is known if the data have changed and keep no such version.
    """
    if not rows or fingerprint == dataset.recorded_prefix(n_samples):
        return rows
    others = without_rows([(0, n_samples)], rows)
    differences = find_differences(dataset, version, others)
    if differences is None:
        return rows if _begins_with(dataset, n_samples, fingerprint) else []
    return [*without_rows(rows, differences.changed), *differences.moved_to]


def _compare(
    model: RidgeModel, dataset: blocks.Dataset, first: int, refused: Sequence[Range]
) -> Differences:
    """Return the corrected and deleted rows among a model's data from row `first` on.

    Without a common version the data must begin with the model's rows, unchanged.
    """
    n_before = n_seen(model)
    fingerprint = model.card["prefix_fingerprint"]
    version = model.card.get("data_version")
    differences = find_differences(
        dataset,
        version,
        missing_rows(model),
        start=first,
        refused=refused,
        only_appended=fingerprint == dataset.recorded_prefix(n_before),
    )
    # None: the data keep no versions, or the model's version has expired.
    if differences is not None:
        before = differences.before
        # other arrays of X, y or weights may have been opened than the model's
        if before and not is_trained_on(model, before):
            raise FingerprintMismatchError(_rows_are_others(model, before))
        return differences
    if is_trained_on(model, dataset):
        return Differences()
    are_versions = version is not None and dataset.version is not None
    data_id = manifests.name_of(dataset.attributes)
    if are_versions and model.card.get("data_id") == data_id:
        raise FingerprintMismatchError(_version_is_removed(model, dataset))
    raise FingerprintMismatchError(_rows_are_others(model, dataset))


def _rows_are_others(model: RidgeModel, dataset: blocks.Dataset) -> str:
    """Return the message for data that do not begin with a model's rows."""
    n_before = n_seen(model)
    n_samples = dataset.n_samples
    has = f"has only {n_samples:_}" if n_samples < n_before else "begins with others"
    fingerprint = _prefix(dataset, min(n_before, n_samples))
    expected = str(model.card["prefix_fingerprint"])
    return (
        f"the model was trained on {n_before:_} rows, and {_name(dataset)} {has}"
        f" (fingerprint {fingerprint[:16]}…, expected {expected[:16]}…); expected the"
        " data that it was trained on, with the same arrays of X, y and weights: any"
        " version of that dataset or, without versions, the same rows with new ones at"
        " their end. Give those, or fit again"
    )


def _version_is_removed(model: RidgeModel, dataset: blocks.Dataset) -> str:
    """Return the message for data without the version that a model was trained on."""
    created = datetime.fromisoformat(str(model.card["created"]))
    history = repositories.read_history(
        locations.parse_location(dataset.url or ""), dataset.version
    )
    n_forgotten = 0
    for entry in history:
        if entry.facts.get("change") == "forget" and entry.written >= created:
            n_forgotten += int(entry.facts["n_rows"])
    change = "rows were corrected or deleted since"
    if n_forgotten:
        rows = "1 row was" if n_forgotten == 1 else f"{n_forgotten:,} rows were"
        change = (
            f"{rows} forgotten since; the model still contains those that were in that"
            " version"
        )
    return (
        f"the model was trained on version {model.card['data_version']} of"
        f" {_name(dataset)}, which has been removed, and {change}. Without that version"
        " nothing can be subtracted; fit again on the rows that are left"
    )


def _loads_of(dataset: blocks.Dataset, window: str) -> list[Load]:
    """Return which rows of a dataset were appended together.

    Raises InvalidParameterError if a window needs them and they are not recorded.
    """
    if window != ALL_ROWS and dataset.version is None:
        raise InvalidParameterError(
            f"`window` is {window!r}, but {_name(dataset)} keeps no versions, which"
            " record the rows that came together; expected a versioned dataset."
            " `rff-dist data convert` makes one"
        )
    return read_loads(manifests.manifest_of(dataset.attributes), dataset.n_samples)


def refuse(dataset: blocks.Dataset, rows: NewRows, reason: str) -> list[Refusal]:
    """Return a refusal of each range of new rows, and one of all changes together."""
    n_rows = rows.n_after
    refusal = Refusal(
        start=0,
        stop=n_rows,
        n_samples=n_rows,
        fingerprint=dataset.recorded_prefix(n_rows) or _prefix(dataset, n_rows),
        reason=reason,
        refused=datetime.now(UTC).isoformat(timespec="seconds"),
        data_version=dataset.version,
    )
    refusals = [replace(refusal, start=start, stop=stop) for start, stop in rows.added]
    changed = rows.differences.changed
    if changed:
        start, _ = changed[0]
        _, stop = changed[-1]
        n_changed = count_rows(changed)
        refusals.append(replace(refusal, start=start, stop=stop, n_changed=n_changed))
    return refusals


def check_updatable(model: RidgeModel) -> None:
    """Raise StatisticsError if a model cannot be updated exactly."""
    if "classifier" in model.card:
        why = (
            "it is a classifier, whose probabilities, class weights and losses depend"
            " on all rows"
        )
    elif model.statistics is None:
        why = "it was stored without its statistics (`statistics` was false)"
        if model.card["solver"].get("method") == "pcg":
            why = "conjugate gradients solved it, without statistics (`solver` 'pcg')"
    elif "prefix_fingerprint" not in model.card:
        why = "its card does not say which rows it was trained on"
    else:
        return
    raise StatisticsError(
        f"this model cannot be updated: {why}; train it again on all rows"
    )


def check_columns(model: RidgeModel, dataset: blocks.Dataset) -> None:
    """Raise DataError unless a dataset has the columns and targets of a model."""
    model_rows.check_dataset(dataset, model)
    spec = model.summed.spec
    expected = (spec.n_targets, spec.one_dimensional)
    if (dataset.n_targets, dataset.one_dimensional) != expected:
        raise DataError(
            f"{_name(dataset)} has {dataset.n_targets} targets (vector:"
            f" {dataset.one_dimensional}); the model was trained on {spec.n_targets}"
            f" (vector: {spec.one_dimensional})"
        )


# -- facts about a model's rows, from its card


def n_seen(model: RidgeModel) -> int:
    """Return how many rows the data had when the model was made."""
    return int(model.card.get("n_seen", model.card["n_samples"]))


def missing_rows(model: RidgeModel) -> list[Range]:
    """Return the rows of its data that are missing from a model."""
    _, first_row = _window_of(model)
    return merge_ranges([(0, first_row), *_left_out(model)])


def rows_in(model: RidgeModel) -> list[Range]:
    """Return the rows of its data that a model's sums contain."""
    return without_rows([(0, n_seen(model))], missing_rows(model))


def _left_out(model: RidgeModel) -> list[Range]:
    """Return the rows in its window that are left out of a model."""
    return [(int(start), int(stop)) for start, stop in model.card.get("left_out", ())]


def _window_of(model: RidgeModel) -> tuple[str, int]:
    """Return the text of a model's window, and its first row."""
    window = model.card.get("window", {"of": ALL_ROWS, "start": 0})
    return window["of"], window["start"]


# -- fingerprints of a dataset's first rows


def is_trained_on(model: RidgeModel, dataset: blocks.Dataset) -> bool:
    """Return whether a dataset begins with a model's rows, in the model's arrays."""
    return _begins_with(dataset, n_seen(model), model.card["prefix_fingerprint"])


def _begins_with(dataset: blocks.Dataset, n_samples: int, fingerprint: str) -> bool:
    """Return whether the first `n_samples` rows have this fingerprint."""
    if n_samples > dataset.n_samples:
        return False
    if fingerprint == dataset.recorded_prefix(n_samples):
        return True
    return fingerprint == _prefix(dataset, n_samples)


def _prefix(dataset: blocks.Dataset, n_samples: int) -> str:
    fingerprint = dataset.prefix_fingerprint(n_samples)
    if fingerprint is None:
        raise DataError(
            f"a {type(dataset).__name__} has no fingerprint of its first rows; write"
            " the data to Zarr and open them with open_dataset"
        )
    return fingerprint


def _name(dataset: blocks.Dataset) -> str:
    return "the data" if dataset.url is None else redact(dataset.url)
