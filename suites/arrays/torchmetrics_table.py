"""The page docs/torchmetrics.md, which says what `from_torchmetrics` gives for each class.

``python -m suites.arrays.torchmetrics_table`` writes it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from disteval import UsageError
from disteval.metrics import from_torchmetrics
from disteval.metrics.tensors import to_tensors
from disteval_backends.threads_dist import ThreadsDist

from suites.arrays.torchmetrics_columns import SAMPLES
from suites.arrays.torchmetrics_rows import NOT_TRIED, ROWS, VARIANTS, Row
from suites.helpers.thread_world import run_ranks, values

PAGE = Path(__file__).parents[2] / "docs" / "torchmetrics.md"
COMMAND = f"python -m {__name__ if __name__ != '__main__' else __spec__.name}"
WORLDS = ([[1, 4], [1, 1, 7]], [[], [5, 6, 3]], [[2, 4], [], [5, 1, 2]])
"""The lengths of the batches of each rank, for worlds of two ranks and of three."""

YES, BATCHES, NO = "yes", "yes, for the same batches", "NO"
_TOP = f"""\
# Classes of torchmetrics

<!-- {COMMAND} writes this page. -->

`from_torchmetrics` was tried with these classes of torchmetrics {{version}}, on worlds of two and
three ranks whose batches have unequal lengths; in two of three worlds one rank has no samples.
{{tried}} classes were tried, and {{same}} of them have the result of one process on every rank.

- *yes*: every rank has the result that one process has for the same batches, but for the last bits
  where a class adds floats.
- *yes, for the same batches*: so it is here, too, but one process itself has another result when
  the same samples come in other batches.
- *refused*: `from_torchmetrics` or `compute` raises `UsageError` with this reason, because the
  result would not be that of one process.

A result that holds one value for each sample has them rank by rank. With strided shards, which are
the default, that is not the order of the data set.
"""
_DISPATCHERS = """\
Classes like `classification.Accuracy`, which take a `task`, make one of these classes.
"""


def outcome(row: Row) -> str:
    """Return what the page says of a class: whether it has the result of one process, or why not.

    The samples come in an order of their own, so that no rank has those of a whole batch.
    """
    torch = importlib.import_module("torch")
    columns = row.columns(np.random.default_rng(0))
    order = np.random.default_rng(1).permutation(SAMPLES)
    whole = _alone(row, columns, [order])
    verdicts = []
    for world in WORLDS:
        cuts = np.cumsum([length for rank in world for length in rank])[:-1]
        batches = iter(np.split(order, cuts))
        shares = [[next(batches) for _ in rank] for rank in world]

        def rank(backend: ThreadsDist, shares: Any = shares) -> Any:
            metric = from_torchmetrics(row.make(), backend)
            for batch in shares[backend.rank]:
                metric.add(*_taken(columns, batch))
            return metric.compute(SAMPLES)

        try:
            found = values(run_ranks(len(world), rank))
        except UsageError as error:
            return f"refused: {str(error).partition(';')[0]}"
        alone = _alone(row, columns, [batch for share in shares for batch in share])
        same = all(_close(torch, each, alone) for each in found)
        verdicts.append((YES if _close(torch, alone, whole) else BATCHES) if same else NO)
    return min(verdicts, key=[NO, BATCHES, YES].index)


def page(outcomes: dict[str, str]) -> str:
    """Return the page, given the outcome of each row."""
    version = importlib.import_module("torchmetrics").__version__
    outcomes = outcomes | {name: f"not tried: {reason}" for name, reason in NOT_TRIED.items()}
    same = sum(outcomes[str(row)] in (YES, BATCHES) for row in ROWS)
    parts = [_TOP.format(version=version, tried=len(ROWS), same=same)]
    classes = [*map(str, ROWS), *NOT_TRIED]
    parts += _tables(sorted(classes), outcomes)
    parts += [_DISPATCHERS, "## Settings that change the states\n"]
    parts.append("\n".join(_table(sorted(map(str, VARIANTS)), outcomes)))
    return "\n".join(parts) + "\n"


def public_classes() -> set[str]:
    """Return the classes of metrics that this torchmetrics has, as ``module.Class``."""
    torchmetrics = importlib.import_module("torchmetrics")
    modules = {name.partition(".")[0] for name in [*map(str, ROWS), *NOT_TRIED]}
    found = set()
    for module in modules:
        members = vars(importlib.import_module(f"torchmetrics.{module}"))
        found |= {
            f"{module}.{name}"
            for name, member in members.items()
            if isinstance(member, type)
            and issubclass(member, torchmetrics.Metric)
            and not any(base.__name__ == "_ClassificationTaskWrapper" for base in member.__bases__)
        }
    return found - {
        "aggregation.BaseAggregator",
        "aggregation.Metric",
        "aggregation.Running",
        "wrappers.MetricInputTransformer",
    }


def _tables(names: Iterable[str], outcomes: dict[str, str]) -> Iterator[str]:
    for module, members in groupby(names, lambda name: name.partition(".")[0]):
        yield f"## {module}\n"
        yield "\n".join([*_table(members, outcomes), ""])


def _table(names: Iterable[str], outcomes: dict[str, str]) -> list[str]:
    rows = [f"| `{name.partition('.')[2]}` | {outcomes[name]} |" for name in names]
    return ["| class | the result of one process |", "|---|---|", *rows]


def _alone(row: Row, columns: tuple[Any, ...], batches: list[Any]) -> Any:
    metric = row.make()
    for batch in batches:
        metric.update(*(to_tensors(part, "cpu") for part in _taken(columns, batch)))
    return metric.compute()


def _taken(columns: tuple[Any, ...], batch: Any) -> list[Any]:
    def take(column: Any) -> Any:
        if isinstance(column, dict):
            return {key: take(part) for key, part in column.items()}
        return [column[i] for i in batch] if isinstance(column, list) else column[batch]

    return [take(column) for column in columns]


def _close(torch: Any, one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_close(torch, one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_close, [torch] * len(one), one, other))
    one, other = torch.as_tensor(one), torch.as_tensor(other)
    return bool(
        one.shape == other.shape
        and torch.allclose(one, other.to(one.dtype), rtol=1e-4, atol=1e-6, equal_nan=True)
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    PAGE.write_text(page({str(row): outcome(row) for row in [*ROWS, *VARIANTS]}))
