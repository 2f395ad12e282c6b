"""Facts and tables as terminal, Markdown, HTML and JSON show them: values in words.

In go numbers, times and records, out come words. If each output form rounded numbers
in its own way, the same figure would look like two.
"""

from collections.abc import Sequence
from typing import Any

from rff_dist.checks import is_number
from rff_dist.text import first_few, number, score_words
from rff_dist.typing import Facts, frozen

#: How far features are from the kernel that they approximate.
APPROXIMATION = {
    "mean": "mean, of an entry",
    "max": "largest, of an entry",
    "relative_operator_norm": "operator norm, as a share of the kernel's",
}

#: Names and values in words; a value of None is not shown.
type Lines = dict[str, str | None]


class Alert(str):
    """Words of a fact that ask for attention: yellow in a terminal, bold in
    Markdown.
    """

    __slots__ = ()


@frozen
class Table:
    """Rows whose first cell names them.

    `chosen`: the row that stands out; None for none.
    `is_text`: whether the cells are words, not figures.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    chosen: int | None = None
    is_text: bool = False

    def cells(self) -> list[list[str]]:
        """Return the rows in words; an arrow marks the chosen one."""
        cells = [[str(first), *map(value_words, rest)] for first, *rest in self.rows]
        if self.chosen is not None:
            cells[self.chosen][0] += " ←"
        return cells


def value_words(value: Any) -> str:
    """Return a number in four digits, the first eight of several values, or a text.

    >>> value_words(1 / 3), value_words([1.0, None])
    ('0.3333', '1, –')
    >>> value_words("cv"), value_words(None)
    ('cv', '–')
    """
    if isinstance(value, list | tuple):
        return first_few(["–" if member is None else member for member in value])
    if value is None or is_number(value):
        return number(value)
    return value if isinstance(value, str) else str(value)


def score_cell(name: str, value: Any) -> Any:
    """Return an error in its own format, if it has one; others as they are."""
    return score_words(name, value) if name in ("rmse", "r2") else value


def plural(count: int, noun: str, several: str | None = None) -> str:
    """Return a number and its noun, in the plural unless the number is 1."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def listed(names: Sequence[Any] | None) -> str | None:
    """Return the first eight of some names; None if there are none."""
    return first_few(names) if names else None


def seconds_words(seconds: float) -> str:
    """Return seconds with one decimal; with two below 1 s."""
    return f"{seconds:.2f}" if seconds < 1 else f"{seconds:.1f}"


def time_words(when: str) -> str:
    """Return a time in ISO 8601 to the minute.

    >>> time_words("2026-11-22T02:00:17+00:00")
    '2026-11-22 02:00'
    """
    return when[:16].replace("T", " ")


def table_words(table: Facts | None) -> str | None:
    """Return the lakehouse table and version that rows are of; None without one."""
    if table is None:
        return None
    return f"version {table['version']} of the {table['format']} table {table['id']}"


def change_words(n_before: int, n_after: int) -> str:
    """Return how many rows there were before a change, and after it."""
    return f"{n_before:,} before, {n_after:,} after"


def ranges_words(ranges: Sequence[Sequence[int]]) -> str:
    """Return ranges of rows, given as start and stop, in words."""
    return ", ".join(f"rows {start:,} to {stop - 1:,}" for start, stop in ranges)


def dropped_words(n_rows: int) -> str | None:
    """Return how many unusable rows were left out; None if there were none."""
    return Alert(f"{n_rows:,} rows with missing or infinite values") if n_rows else None


def left_out_words(n_rows: int) -> str:
    """Return how many rows were left out, as the end of a sentence; "" if none."""
    return f"; {plural(n_rows, 'row was', 'rows were')} left out" if n_rows else ""


def place_words(published: Facts) -> str:
    """Return where a model is and, if it is registered, which version."""
    version = published["version"]
    return str(published["model"]) + ("" if version is None else f", version {version}")


def kernel_words(kernel: Facts) -> str:
    """Return a kernel, in the form of `Kernel.to_dict`, in words.

    >>> from rff_dist.kernels.additive import Additive
    >>> kernel_words(Additive(2.0, order_1=0, order_2=0).to_dict())
    'additive (100.0% all columns) of matern, length scale 2, ν = 1.5'
    """
    match kernel:
        case {"name": "sum", "kernels": terms}:
            return " + ".join(map(kernel_words, terms))
        case {"name": "product", "kernels": factors}:
            return " × ".join(f"({kernel_words(factor)})" for factor in factors)
        case {"name": "scaled", "weight": weight, "kernel": inner}:
            return f"{number(weight)} × ({kernel_words(inner)})"
        case {"name": "on_columns", "kernel": inner, "columns": columns}:
            return f"{kernel_words(inner)} on columns {first_few(columns)}"
        case {"name": "additive", "kernel": inner, "length_scale": scale}:
            # imported late: kernels load SciPy, for which `--help` need not wait
            from rff_dist.kernels.names import weights_words

            order_1 = kernel["order_1"]
            of_columns = sum(order_1) if isinstance(order_1, Sequence) else order_1
            weights = [of_columns, kernel["order_2"], kernel["dense"]]
            shape = kernel_words({**inner, "length_scale": scale})
            return f"additive ({weights_words(weights)}) of {shape}"
    parameters = [
        f"{'ν =' if name == 'nu' else name.replace('_', ' ')} {value_words(value)}"
        for name, value in kernel.items()
        if name not in ("name", "categories") and value is not None
    ]
    return ", ".join([kernel["name"].replace("_", " "), *parameters])


def features_words(features: Facts, n_components: int, seed: int | None = None) -> str:
    """Return a feature map, in the form of `FeatureMap.record`, in words."""
    words = f"D = {n_components:,}, {features['kind']}"
    if (spec := features.get("spec")) is not None:
        words = f"{words}, {spec['design']}, {spec['map']}"
        seed = spec["seed"]
    elif "jitter" in features:
        words += f", jitter {features['jitter']:.3g}"
    return words if seed is None else f"{words}, seed {seed}"


def kernel_of_features(features: Facts) -> str | None:
    """Return the kernel of a feature map, as in `features_words`; None if its
    frequencies were given.
    """
    kernel = (features.get("spec") or features).get("kernel")
    return None if kernel is None else kernel_words(kernel)


def features_and_targets(
    n_features: int, n_targets: int, classifier: Facts | None = None
) -> str:
    """Return "8 features, 1 target", or "8 features, 2 classes" with the facts of a
    classifier.
    """
    outputs = plural(n_targets, "target")
    if classifier is not None:
        outputs = plural(len(classifier["classes"]), "class", "classes")
    return f"{plural(n_features, 'feature')}, {outputs}"


def solver_facts(status: Facts) -> Lines:
    """Return the solver's status in words, and what to do about it."""
    solver = status["status"].replace("_", " ")
    solver = solver if solver == "ok" else Alert(f"{solver}: {status['causes'][0]}")
    return {"solver": solver, "remedy": next(iter(status["remedies"]), None)}


def run_facts(run: Facts) -> Lines:
    """Return in words how long a job took, and what was drawn and written about it.

    `run` has "seconds" and "products" (how matrix products were computed; see
    `engines.clock.Times`) and "engine", which is empty if not known. A "plot" and a
    "report", if it has them, are paths.
    """
    return {
        "seconds": seconds_words(run["seconds"]["total"]),
        "picture": run.get("plot"),
        "page": run.get("report"),
    }


def run_details(run: Facts) -> Lines:
    """Return in words where a job's time went, and what ran it; see `run_facts`."""
    from rff_dist.engines.clock import products_words

    parts = ", ".join(
        f"{name} {seconds_words(value)}"
        for name, value in run["seconds"].items()
        if name != "total"
    )
    return {
        "seconds by part": parts,
        "products": products_words(run["products"]) or None,
        "ran on": engine_words(run["engine"]) if run["engine"] else None,
    }


def engine_words(engine: Facts) -> str:
    """Return in words which engine ran a job, from its kind and sizes."""
    threads = plural(engine["n_threads"], "thread")
    if engine["kind"] == "serial":
        return f"this process, {threads}"
    return f"{engine['kind']}, {plural(engine['n_workers'], 'worker')} × {threads}"
