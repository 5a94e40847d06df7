"""What a metric gets of a batch, and the rows of what ``predict`` returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

from disteval.arguments import did_you_mean
from disteval.by_sample import takes_ids
from disteval.data.plan import Indices
from disteval.errors import UsageError
from disteval.metrics.arrays import naming
from disteval.metrics.base import BaseMetric
from disteval.metrics.wrapper import Wrapper

Update = Callable[[Any, Any], Any]
"""A function of the outputs and the batch; it returns the arguments of a metric's ``add``."""

LABELS = ("label", "labels", "target", "targets", "y")
"""The keys under which a batch that is a dict may hold its labels."""

OPTIONAL = ("mask", "byte_counts")
"""The keys of a batch that is a dict whose fields are for metrics that take them."""

WRAPPED = ("weights", "groups")
"""The keys of a batch that is a dict whose fields are for `Weighted` and `Grouped`."""


class Updates:
    """Adds batches to metrics.

    Args:
        metrics: The metrics by name.
        update: A function for all metrics, or a dict of functions by the metrics' names. Metrics
            without a function get the default.

    Raises:
        UsageError: ``update`` is of another kind, or names a metric that does not exist.
    """

    def __init__(
        self, metrics: Mapping[str, BaseMetric], update: Update | Mapping[str, Update] | None
    ) -> None:
        by_name = update if isinstance(update, Mapping) else dict.fromkeys(metrics, update)
        for name, function in by_name.items():
            if name not in metrics:
                raise UsageError(
                    f"update names the metric {name!r}, and the metrics are {list(metrics)}."
                    f"{did_you_mean(name, map(str, metrics))}"
                )
            if function is not None and not callable(function):
                raise UsageError(f"update must be a function or a dict of them, not {function!r}")
        self._adders = [
            (name, metric, by_name.get(name) or default_update(name, metric))
            for name, metric in metrics.items()
        ]
        by_ids = {name: metric for name, metric in metrics.items() if metric.uses_ids}
        self._take_ids = {name: takes_ids(metric.add) for name, metric in by_ids.items()}
        self.doing = ""

    def add(self, outputs: Any, batch: Any, ids: Indices) -> None:
        """Add a batch to every metric."""
        made: dict[int, Any] = {}  # one function for all metrics is called once
        for name, metric, update in self._adders:
            if id(update) not in made:
                self.doing = "update"
                made[id(update)] = update(outputs, batch)
            given, named = made[id(update)], dict[str, Any]()
            if isinstance(given, Mapping):
                given, named = (), dict(given)
            elif not isinstance(given, tuple):
                raise UsageError(
                    f"update returned a value of type {type(given).__name__}; it must return the "
                    f"arguments of the metric's add, as a tuple such as (predictions, labels), or "
                    f"as a dict by name"
                )
            with_ids = self._take_ids.get(name)
            if with_ids:
                named.setdefault("ids", ids)
            self.doing = f"the metric {name!r}"
            with naming(ids=ids):
                if with_ids is False:
                    metric.add_numbered(ids, *given, **named)
                else:
                    metric.add(*given, **named)


def default_update(name: str, metric: BaseMetric) -> Update:
    """Return the update of a metric for which the user gave none.

    A tuple's second field, or the one field of a dict that is called as labels are, holds the
    labels. A metric with one argument gets the outputs alone. The fields mask, byte_counts, weights
    and groups of a dict are for the metrics, and the wrappers around them, with such a parameter.
    """
    inner, needed = metric, set[str]()
    while isinstance(inner, Wrapper):
        needed |= set(WRAPPED) & set(signature(inner.add).parameters)
        inner = inner.metric
    parameters = list(signature(inner.add).parameters.values())
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    places = [p for p in parameters if p.kind in kinds]
    alone = len(places) == 1 and all(p.kind is not Parameter.VAR_POSITIONAL for p in parameters)
    needs_labels = len([p for p in places if p.default is Parameter.empty]) > 1
    optional = {p.name for p in parameters if p.name in OPTIONAL}

    def update(outputs: Any, batch: Any) -> Any:
        given = (outputs,) if alone else (outputs, *_labels(name, batch, needs_labels))
        fields = batch if isinstance(batch, Mapping) else {}
        missing = needed - set(fields)
        if missing:
            raise UsageError(
                f"the metric {name!r} needs {' and '.join(sorted(missing))}, and the batch has no "
                f"fields of that name; give samples that are dicts with them, or give update, a "
                f"function of the outputs and the batch that returns the arguments of the "
                f"metric's add"
            )
        names = needed | optional & set(fields)
        if not names:
            return given
        if len(given) > len(places):
            raise UsageError(
                f"the metric {name!r} takes {' and '.join(sorted(names))}, but its other arguments "
                f"have no names; give update, which returns a dict of the arguments of its add"
            )
        by_name = {p.name: value for p, value in zip(places, given, strict=False)}
        return by_name | {key: fields[key] for key in sorted(names)}

    return update


def _labels(name: str, batch: Any, are_needed: bool) -> tuple[Any, ...]:
    """Return the labels of a batch, in a tuple that is empty if it has none that can be known."""
    found = [key for key in LABELS if key in batch] if isinstance(batch, Mapping) else []
    if isinstance(batch, tuple) and len(batch) > 1:
        return (batch[1],)
    if len(found) == 1:
        return (batch[found[0]],)
    if not found and not are_needed:
        return ()
    has, give = (
        f"is a {type(batch).__name__}",
        "samples that are tuples of inputs and labels, or dicts",
    )
    if isinstance(batch, Mapping):
        has, give = f"has the keys {list(batch)}", f"one of them the name {', '.join(LABELS)}"
    raise UsageError(
        f"the metric {name!r} needs labels, and the batch {has}; give {give}, or give update, a "
        f"function of the outputs and the batch that returns the arguments of the metric's add"
    )


def check_rows(outputs: Any, rows: int, where: str = "") -> None:
    """Raise UsageError unless every array in the outputs has one row for each sample.

    Args:
        outputs: What ``predict`` returned.
        rows: The number of samples.
        where: Which part of the outputs this is, for the message.
    """
    if isinstance(outputs, tuple) and outputs:
        for place, part in enumerate(outputs):
            check_rows(part, rows, f" at position {place}{where}")
    elif not hasattr(outputs, "shape") and isinstance(outputs, Mapping) and outputs:
        for key, part in outputs.items():
            check_rows(part, rows, f" under {key!r}{where}")
    else:
        shape = (len(outputs),) if isinstance(outputs, list) else getattr(outputs, "shape", None)
        if shape is not None and tuple(shape[:1]) == (rows,):
            return
        found = "None" if outputs is None else f"a value of type {type(outputs).__name__}"
        if isinstance(outputs, list):
            found = f"a list of {len(outputs)} entries"
        elif shape is not None:
            found = f"{shape[0]} rows" if len(shape) else "a single number"
        raise UsageError(
            f"predict got {rows} samples and returned {found}{where}; it must return one row for "
            f"each sample, as an array or a list, or as a tuple or dict of them"
        )
