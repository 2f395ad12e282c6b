"""Split a dataset into one to train on and one to test on."""

from dataclasses import asdict

from rff_dist.workbench.cli import shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results.document import Document


@shell.command(
    "rff-dist split data.zarr --holdout 20%",
    "rff-dist split data.zarr --by group --groups patient",
    "rff-dist split data.zarr --by time --time 'day: elapsed-days'",
)
def split(job: specs.Split) -> Document:
    """Split a dataset into one to train on and one to test on, by hashes, groups or time."""
    from rff_dist.workbench.jobs.split import split

    halves = split(job)
    share = halves.n_test / (halves.n_test + halves.n_train)
    facts = {
        "train": f"{halves.n_train:,} rows in {halves.train}",
        "test": f"{halves.n_test:,} rows in {halves.test}, {share:.1%}",
    }
    following = [["fit", halves.train, "MODEL"]]
    return Document(f"split {job.data} by {job.by}", [facts], record=asdict(halves), next=following)
