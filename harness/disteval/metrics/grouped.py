"""Any metric that follows from sums, for each group of samples."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from disteval.arguments import check_count
from disteval.errors import UsageError
from disteval.metrics.arrays import kind_of, to_numpy
from disteval.metrics.base import Rows, SummableMetric, Sums
from disteval.metrics.wrapper import Wrapper

Key = str | int


class Grouped(Wrapper):
    """A metric for each group of samples, such as a class or a language, and over all samples.

    Groups need not be known before, and ranks may have different ones. The result is a dict:

    - ``overall``: the metric's result over all samples;
    - ``groups``: a dict of the metric's result for each group; first numbers, then texts, sorted;
    - ``sizes``: a dict of the number of rows of each group.

    Each rank sends the metric's sums for each of its groups.

    Args:
        metric: The metric, such as ``Accuracy()`` or ``Bootstrap(Weighted(Accuracy()))``; it must
            be a `SummableMetric`, and is copied.
        max_groups: The most groups that all ranks together may have, from 1 up.
    """

    _order = 3
    _seen: set[Key]

    def __init__(self, metric: SummableMetric, *, max_groups: int = 1000) -> None:
        self.max_groups = check_count("max_groups", max_groups)
        super().__init__(metric)

    def add(self, *args: Any, groups: Any, ids: Any = None, **kwargs: Any) -> None:
        """Add a batch.

        Args:
            *args: The arguments of the metric's ``add``.
            groups: The group of each sample, N texts or whole numbers: a list, or an array of any
                framework. Truth values count as 0 and 1. With `SampleRows` as ids, one for each of
                these samples.
            ids: The samples' global numbers, see `BaseMetric.add`.
            **kwargs: More arguments of the metric's ``add``.
        """
        keys = _keys(groups)
        new = set(keys) - self._seen
        self._check_number(len(self._seen) + len(new), "this rank has")
        self._add_with("groups", keys, ids, args, kwargs)
        self._seen = self._seen | new

    def reset(self) -> None:
        """Remove every entry, and forget the groups."""
        super().reset()
        self._seen = set()

    def sums_of(self, column: Rows) -> Sums:
        """Sum the rows of each group exactly: one `GroupSums`, shape (1,)."""
        places: dict[Key, list[int]] = {}
        for at, key in enumerate(column["value"].tolist()):
            places.setdefault(key, []).append(at)
        rows = column["row"]
        parts = {key: (len(at), self.metric.sums_of(rows[at])) for key, at in places.items()}
        return np.array([GroupSums(parts)], dtype=object)

    def from_sums(self, sums: Sums, size: int) -> dict[str, Any]:
        """Compute the metric's result for each group, and from the sums of all groups."""
        parts = sums[0].parts
        self._check_number(len(parts), "all ranks together have")
        found: dict[Key, Any] = {}
        for key in sorted(parts, key=lambda key: (isinstance(key, str), key)):
            count, part = parts[key]
            try:
                found[key] = self.metric.from_sums(part, count)
            except UsageError as error:
                raise UsageError(f"group {key!r}: {error}") from error
        first, *others = (part for _, part in parts.values())
        return {
            "overall": self.metric.from_sums(sum(others, start=first), size),
            "groups": found,
            "sizes": {key: parts[key][0] for key in found},
        }

    def _check_number(self, number: int, who: str) -> None:
        if number > self.max_groups:
            raise UsageError(
                f"{who} {number} groups, and max_groups is {self.max_groups}; group by a key with "
                f"fewer values, or give Grouped a larger max_groups"
            )


class GroupSums:
    """The number of rows and the sums of each group, which can be added."""

    def __init__(self, parts: dict[Key, tuple[int, Sums]]) -> None:
        self.parts = parts

    def __add__(self, other: GroupSums) -> GroupSums:
        found = dict(self.parts)
        for key, (count, sums) in other.parts.items():
            mine = found.get(key)
            found[key] = (count, sums) if mine is None else (mine[0] + count, mine[1] + sums)
        return GroupSums(found)


def _keys(groups: Any) -> Rows:
    if isinstance(groups, list | tuple):
        listed: Any = list(groups)
    else:
        listed = (to_numpy if kind_of(groups) == "torch" else np.asarray)(groups).tolist()
    if not isinstance(listed, list):
        raise UsageError(
            f"groups must be a list or an array with one group for each sample, not {groups!r:.100}"
        )
    known: dict[Key, Key] = {}  # so that equal keys are one object, which takes less memory
    found = map(_key, listed)
    return np.array([known.setdefault(key, key) for key in found], dtype=object)


def _key(key: Any) -> Key:
    if isinstance(key, bytes):  # as TensorFlow has texts
        try:
            return key.decode()
        except UnicodeDecodeError:
            raise UsageError(f"a group must be a text, and {key!r:.100} is not UTF-8") from None
    if isinstance(key, str):
        return str(key)
    if isinstance(key, Integral | np.bool_):
        return int(key)
    raise UsageError(
        f"a group must be a text or a whole number, not {key!r:.100}; join several keys into one "
        f"text, and cut real numbers into ranges"
    )
