"""What the commands that write a model do: replace it, or publish the next version of a registered one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rff_dist.kmeans_starts import Clusters
    from rff_dist.model import RidgeModel
    from rff_dist.storage.locations import Location


def check_place(output: str, *, register: bool, overwrite: bool, inputs: Sequence[Location]) -> None:
    """Refuse a place where a model, or the next version of a registered one, cannot be written."""
    from rff_dist.storage.locations import check_output, parse_location
    from rff_dist.storage.registry import RegisteredModel

    if register:
        RegisteredModel(output).check(inputs=inputs)
    else:
        check_output(parse_location(output), overwrite=overwrite, inputs=inputs, marker=("model.json",))


def refuse_overwrite(register: bool, overwrite: bool) -> None:
    """Refuse `--register` and `--overwrite` together, where a model is all that is written."""
    if register and overwrite:
        raise typer.BadParameter(
            "versions of a registered model are never replaced; leave it out", param_hint="--overwrite"
        )


def store(
    model: RidgeModel | Clusters,
    output: str,
    *,
    register: bool,
    overwrite: bool,
    data: str,
    reason: str,
    n_samples: int,
) -> dict[str, Any]:
    """Write a model, or publish it as the next version, and return what the JSON document says of that."""
    from rff_dist.publishing import publish, write

    if not register:
        write(model, output, overwrite=overwrite)
        return {"model": output, "version": None}
    version = publish(model, output, data=data, reason=reason, n_samples=n_samples)
    return {"model": output, "version": {"number": version.number, "parent": version.parent}}


def version_facts(document: Mapping[str, Any]) -> dict[str, str]:
    """Return in words which version `store` published; nothing of a model that is not registered."""
    version = document["version"]
    if version is None:
        return {}
    parent = version["parent"]
    after = "the first one" if parent is None else f"after version {parent}"
    return {"version": f"{version['number']}, {after}; the current one from now on"}
