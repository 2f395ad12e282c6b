"""The parameters of a flow: the options of its job, of its cluster and of its limits.

A spec is a class of options. A flow takes each option as a separate parameter, since a
deployment can override a parameter only as a whole. Prefect makes its form and its
schema from `signature`, and `read` turns the values into the specs that the job takes.
"""

import inspect
from collections.abc import Sequence
from typing import Any

from rff_dist import errors, fields
from rff_dist.typing import Facts
from rff_dist.workbench.jobs import places

#: Options that come first in a form. The job's other options follow, and then those of
#: the cluster and the limits.
_FIRST = ("data", "model", "output", "n_components", "n_clusters")


class Parameters:
    """The options of several specs by name, without those that the flow decides."""

    def __init__(self, spec_types: Sequence[type], without: Sequence[str] = ()) -> None:
        self.spec_types = spec_types
        options = [
            option
            for spec_type in spec_types
            for option in fields.options_of(spec_type)
            if option.name not in without
        ]
        first = [option for name in _FIRST for option in options if option.name == name]
        rest = [option for option in options if option.name not in _FIRST]
        self.options = {option.name: option for option in first + rest}

    def read(self, values: Facts) -> dict[type, Any]:
        """Return the specs with these values, by type, after checks.

        Raises InvalidParameterError for an unknown name or a value that does not fit.
        """
        fields.check_names(values, self.options, what="parameter")
        checked = {
            name: self.options[name].check(value) for name, value in values.items()
        }
        # A place that cannot be written, or that two options name and one replaces,
        # is a StorageError; in a flow's form it is a wrong parameter like any other.
        try:
            places.check(
                (name, option.declared, checked.get(name))
                for name, option in self.options.items()
            )
        except errors.StorageError as error:
            raise errors.InvalidParameterError(str(error)) from error
        specs: dict[type, Any] = {}
        for spec_type in self.spec_types:
            names = {option.name for option in fields.options_of(spec_type)}
            values_of_spec = {name: checked[name] for name in checked if name in names}
            specs[spec_type] = fields.build(spec_type, values_of_spec)
        return specs

    def signature(self) -> inspect.Signature:
        """Return the signature of a function that takes each option by its name."""
        parameters = []
        for option in self.options.values():
            default = inspect.Parameter.empty if option.is_required else option.default
            parameters.append(
                inspect.Parameter(
                    option.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    annotation=option.type,
                    default=default,
                )
            )
        return inspect.Signature(parameters)

    def describe(self) -> str:
        """Return the lines of a docstring from which Prefect describes its form."""
        lines = [
            f"    {name}: {option.declared.help}"
            for name, option in self.options.items()
        ]
        return "\n".join(["Args:", *lines])
