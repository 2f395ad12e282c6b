"""Open the rows that a training job trains on, and those that it is tested on.

In goes a `Train` spec, out come one or two `JobData`. `datasets.open_dataset` alone
would leave out the labels of a classifier and the groups, blocks or times by which rows
are folded.
"""

import logging

from rff_dist.data import blocks, labelled
from rff_dist.data.grids import GridDataset
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.ridge import fold_choices
from rff_dist.storage import datasets, grids
from rff_dist.storage.columns import column_of, fold_by_holdout_time, open_labelled
from rff_dist.text import redact
from rff_dist.workbench.jobs import fits, specs, training

logger = logging.getLogger(__name__)

#: the data to train on, and test data if there are any
type TrainingRows = tuple[fits.JobData, fits.JobData | None]
type _StoredRows = datasets.ZarrDataset | GridDataset


def open_rows(job: specs.Train) -> TrainingRows:
    """Open the data to train on, and test data if the job names any.

    Raises DataError if there are no targets.
    """
    group_by = job.folds.groups
    data = _open(job, job.source.data, group_by)
    if job.test is None:
        return data, None
    try:
        return data, _open(job, job.test, group_by)
    except StorageError as error:
        if group_by is None:
            raise
        test = _open(job, job.test, None)
        logger.warning("test rows count as independent, for lack of groups: %s", error)
        return data, test


def check_same_columns(data: fits.JobData, test: fits.JobData | None) -> None:
    """Raise DataError if training and test data differ in columns."""
    if test is None:
        return
    for what in ("n_features", "n_targets"):
        n_trained = getattr(data.rows, what)
        n_tested = getattr(test.rows, what)
        if n_trained != n_tested:
            raise DataError(
                f"the test data have {what}={n_tested}, but the training data have"
                f" {n_trained}; give data with the same columns"
            )


def _open(job: specs.Train, url: str, group_by: str | None) -> fits.JobData:
    """Open data to train on or to test on.

    `group_by`: the name of the array of groups, if any.
    """
    arguments = job.source.open_arguments()
    if url != job.source.data:
        arguments["version"] = None  # the job's version is one of the training data

    dataset: _StoredRows
    labels = None
    if job.classes.classify:
        dataset, labels = open_labelled(url, job.source.y, arguments)
    else:
        dataset = datasets.open_dataset(url, **arguments)
        if dataset.n_targets < 1:
            raise DataError(
                f"{redact(url)} has no targets to train on; make it again by"
                " rff-dist ingest TABLE OUT --targets NAME. If the group has an array"
                " of targets, name it with `y`"
            )

    rows = _grouped(job.folds, dataset, group_by)
    # Groups are folds already, and only data to train on are cut into folds.
    may_be_cut = group_by is None and url == job.source.data
    needs_folds = job.fit.candidates or fold_choices.needs_folds(job.fit.options)
    if may_be_cut and needs_folds:
        by_time = fold_by_holdout_time(dataset, job.folds.n_folds)
        if by_time is not None:
            rows_cut_by_time, folds = by_time
            return fits.JobData(rows_cut_by_time, labels, folds)
    return fits.JobData(rows, labels)


def _grouped(
    folds: training.FoldOptions, dataset: _StoredRows, group_by: str | None
) -> blocks.Dataset:
    """Return rows with the groups that folds need, if they need any."""
    if group_by is not None:
        return labelled.GroupedDataset(dataset, column_of(dataset, group_by))
    if isinstance(dataset, GridDataset):
        if folds.group_by_block is not None:
            return grids.group_by_blocks(dataset, folds.group_by_block)
        if folds.time:
            n_folds = folds.n_folds or training.DEFAULT_FOLDS
            return grids.fold_by_time(dataset, n_folds)
    elif folds.group_by_block is not None:
        raise InvalidParameterError(
            f"`group_by_block` is {folds.group_by_block}, but the rows are no cells of"
            " a grid; give `inputs`, or `groups`"
        )
    return dataset
