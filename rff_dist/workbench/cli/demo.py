"""Run the main job on a photograph."""

from pathlib import Path
from typing import Annotated

from rff_dist import fields
from rff_dist.engines.cluster import Cluster
from rff_dist.features.feature_options import FeatureOptions
from rff_dist.workbench.cli import shell
from rff_dist.workbench.results.document import Document


@shell.command("", "--n-components 1024 --output /tmp/demo", progress=False)
def demo(
    *,
    output: str = fields.option(
        "Folder for data, model and picture.", "demo-output", unit="DIR", place="fills"
    ),
    n_components: fields.Count = fields.option("D, the number of features.", 2048, unit="D"),
    features: Annotated[FeatureOptions, "seed"],
    where: Annotated[Cluster, "n_workers", "n_threads"],
) -> Document:
    """Learn a photograph from half of its pixels, in about a minute."""
    from rff_dist.workbench.demo import facts_of, run_demo

    record = run_demo(
        Path(output),
        n_components=n_components,
        seed=features.seed,
        **fields.values_of(where, "n_workers", "n_threads"),
        console=shell.out,
    )
    return Document(f"wrote {record['files'][0]}", [facts_of(record)], record=record)
