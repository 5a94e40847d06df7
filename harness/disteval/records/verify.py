"""Which samples a number is about: each one once, or which are not, and what the number is then."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from disteval.errors import DataError, UsageError
from disteval.files import file_digest
from disteval.judging.report import Verdict
from disteval.records.plain import ids_of
from disteval.records.table import FATES, HARNESSES, Records

_NAMED = 5
_SHARD = re.compile(r"(\d+)-of-(\d+)")
_ROUNDING = 1e-9  # of sums in another order, relative to a figure that is written in full

_AGGREGATES: dict[str, Callable[[float, float], float]] = {
    "mean": lambda total, weight: total / weight,
    "sum": lambda total, _: total,
    "perplexity": lambda total, weight: math.exp(-total / weight),
    "bits": lambda total, weight: -total / weight / math.log(2),
}
"""The figures that are computed from the sum of scores and of their weights."""


@dataclass(frozen=True)
class Expected:
    """The samples that a number should be about.

    Attributes:
        source: Who says so, such as the name of the data file.
        size: How many there are.
        ids: Their ids, which are different; None if only their number is known.
        digest: The digest of the data file; empty without one.
    """

    source: str
    size: int
    ids: pl.Series | None = None
    digest: str = ""


@dataclass(frozen=True)
class Fact:
    """What is said of some samples or files.

    Attributes:
        kind: What it is, for programs: ``missing``, ``repeated``, ``unscored`` and so on.
        count: The number of samples or files.
        text: The sentence, which names some of them.
        refutes: Whether a number is not about each sample once then.
    """

    kind: str
    count: int
    text: str
    refutes: bool


class Figure(NamedTuple):
    """What a policy for samples without a score makes of the number.

    Attributes:
        aggregate: How scores become one figure: mean, sum, perplexity or bits.
        value: The figure.
        samples: The number of samples that it is about.
        policy: The policy, as the end of a sentence.
        is_whole: Whether samples without a score are in it, as wrong ones.
    """

    aggregate: str
    value: float
    samples: int
    policy: str
    is_whole: bool

    def __str__(self) -> str:
        name = "" if self.aggregate == "mean" else f"{self.aggregate} "
        return f"{name}{self.value:.4f} of {self.policy}"


@dataclass(frozen=True)
class Verification:
    """What was found out about a number.

    Attributes:
        records: The records.
        ids: Their ids in order, each once: as numbers, if all are.
        expected: The samples that it should be about; None if nobody says how many there are.
        counts: The number of samples by fate, and of those that were retried.
        facts: What is said of samples and files; nothing if each sample is there once.
        figures: The number under each policy; the first one is of the scored samples.
        stated: The figure that was stated, as it was written; None if there is none.
        same: The figure that is the stated one; None if there is none.
    """

    records: Records
    ids: pl.Series
    expected: Expected | None
    counts: dict[str, int]
    facts: tuple[Fact, ...]
    figures: tuple[Figure, ...]
    stated: str | None
    same: Figure | None

    def __str__(self) -> str:
        """The result's name: the harness, the task and the metric."""
        name = HARNESSES.get(self.records.harness, self.records.harness)
        return " ".join(filter(None, [name, self.records.task, self.records.metric]))

    def as_dict(self) -> dict[str, Any]:
        """Return what ``--json`` writes."""
        expected = self.expected
        return {
            "target": str(self), "verdict": self.judged._asdict(),
            "expected": expected and {"size": expected.size, "source": expected.source},
            "counts": self.counts, "facts": [asdict(each) for each in self.facts],
            "figures": [{**each._asdict(), "text": str(each)} for each in self.figures],
            "stated": self.stated, "says": self.says, "notes": self.records.notes,
            "settings": self.records.settings, "files": self.records.files,
        }  # fmt: skip

    @property
    def says(self) -> str:
        """The sentence about the stated figure; empty if none is stated."""
        if self.stated is None:
            return ""
        found = f"which is {self.same}" if self.same else "which is no figure of these scores"
        return f"the stated figure is {self.stated}, {found}"

    @property
    def judged(self) -> Verdict:
        """The verdict: ``proved``, ``not proved`` or ``not judged``."""
        wrong = [fact for fact in self.facts if fact.refutes]
        if wrong:
            short = ", ".join(f"{fact.count:,} {fact.kind}" for fact in wrong)
            return Verdict("not proved", f"is not about each sample once: {short}", short, 1)
        if self.expected is None:
            why = "nobody says how many samples there are; give --data FILE or --data N"
            return Verdict("not judged", f"could not be judged: {why}", "not judged", 2)
        if self.stated is not None and self.same is None:
            why = f"it is not known here how {self.records.metric!r} is computed from scores"
            return Verdict("not judged", f"could not be judged: {why}", "not judged", 2)
        about = f"each of {self.expected.size:,} samples once"
        return Verdict("proved", f"is about {about}", about, 0)


def verify(
    records: Records, expected: Expected | None = None, stated: str | None = None
) -> Verification:
    """Say which samples a number is about, and compute it again.

    Args:
        records: The records.
        expected: The samples that the number should be about; by default, those of the harness.
        stated: The figure that was published, as it was written; by default, the harness's.

    Raises:
        UsageError: The figure is no number, or there are no scores.
    """
    if stated is not None and not records.metric:
        raise UsageError("the figure can't be compared: there are no scores; give --score FIELD")
    expected = expected or _of_harness(records)
    keys = _keys(records.frame["id"])
    ids = keys.unique().sort()
    once = records.frame
    if len(ids) < once.height:
        once = once.unique("id", keep="first", maintain_order=True)
    figures = list(_figures(records, once, None if expected is None else expected.size))
    value, rounding = _read_figure(stated, records.headline)
    same = next((each for each in figures if abs(each.value - value) <= rounding), None)
    if stated is None and records.headline is not None:
        stated = repr(records.headline)
    counts = {fate: once.filter(fate=fate).height for fate in FATES}
    counts["retried"] = once.filter(pl.col("attempts") > 1).height
    facts = [Fact("wrong in files", 1, problem, True) for problem in records.problems]
    facts += _about_files([Path(name) for name in records.files])
    facts += [] if expected is None else _about_ids(ids, expected)
    facts += _about_repeated(records, keys, ids)
    facts += _about_fates(once, same) if records.metric else []
    figures = [each for each in figures if each.aggregate == (same or figures[0]).aggregate]
    if stated is not None and same is None and records.aggregates:
        listed = "; ".join(map(str, figures)) or "of no score"
        facts.append(Fact("other figure", 1, f"{stated} is stated, and it is {listed}", True))
    facts += _about_copies(once)
    return Verification(records, ids, expected, counts, tuple(facts), tuple(figures), stated, same)


def expected_of(data: str, field: str | None, by_position: bool) -> Expected:
    """Return the samples that ``--data`` names.

    Args:
        data: Their number, or a file: a text with an id a line, or JSON lines, CSV or Parquet with
            a record a sample.
        field: The field of the ids; by default ``id``, or the record's number without one.
        by_position: Whether the ids of the results are numbers of records, unless a field is given.

    Raises:
        UsageError: It is neither a number nor a file.
        DataError: The file can't be read, or has an id twice.
    """
    if data.isdecimal():
        return Expected("--data", int(data))
    path = Path(data)
    if not path.is_file():
        raise UsageError(f"--data {data} is neither a number of samples nor a file; give one")
    found = ids_of(path, field, by_position)
    if isinstance(found, int):
        return Expected(str(path), found, None, file_digest(path))
    ids = _keys(found)
    twice = ids.filter(ids.is_duplicated()).unique().sort()
    if len(twice):
        raise DataError(
            f"{path} has {len(twice):,} ids more than once ({_some(twice)}); give the field of the "
            f"ids by --data-id, or a file with each sample once"
        )
    return Expected(str(path), len(ids), ids, file_digest(path))


def _keys(ids: pl.Series) -> pl.Series:
    """Return ids as numbers, if all are whole ones that are written as usual."""
    if ids.dtype != pl.String:
        return ids
    numbers = ids.cast(pl.Int64, strict=False)
    if numbers.null_count() or not (numbers.cast(pl.String) == ids).all():
        return ids
    return numbers


def _of_harness(records: Records) -> Expected | None:
    """Return the samples that the harness says its task has."""
    source = f"what {HARNESSES.get(records.harness, records.harness)} says of its task"
    if records.ids is not None:
        ids = _keys(records.ids).unique().sort()
        return Expected(source, len(ids), ids)
    return None if records.stated is None else Expected(source, records.stated)


def _some(values: pl.Series) -> str:
    """List the first values, and show by an ellipsis that there are more."""
    return ", ".join(map(str, values.head(_NAMED))) + (", …" if len(values) > _NAMED else "")


def _about_ids(ids: pl.Series, expected: Expected) -> list[Fact]:
    """Name the samples that are missing or not in the data."""
    if expected.ids is not None:
        wanted = expected.ids
        if wanted.dtype != ids.dtype:
            wanted, ids = wanted.cast(pl.String), ids.cast(pl.String)
        sides = wanted.to_frame("id"), ids.to_frame("id")
        missing, more = (
            one.join(other, on="id", how="anti")["id"].sort() for one, other in (sides, sides[::-1])
        )
        lost, named = len(missing), _some(missing)
    elif ids.dtype == pl.Int64:
        first = int(len(ids) > 0 and ids[0] > 0 and ids[-1] == expected.size)  # some count from 1
        is_inside = (ids >= first) & (ids < first + expected.size)
        inside, more = ids.filter(is_inside), ids.filter(~is_inside)
        lost = expected.size - len(inside)
        gaps = np.ones(min(expected.size, len(inside) + _NAMED + 1), dtype=bool)
        gaps[inside.filter(inside < first + len(gaps)).to_numpy() - first] = False
        named = _some(pl.Series(np.flatnonzero(gaps) + first))
    else:  # ids are texts, of which only the number is known
        lost, more = max(0, expected.size - len(ids)), ids[expected.size :]
        named = "which ones can't be said of texts; give --data FILE"
    facts = []
    if lost:
        facts.append(Fact("missing", lost, f"{lost:,} missing: {named}", True))
    if len(more):
        text = f"{len(more):,} not in the data: {_some(more)}"
        facts.append(Fact("not in the data", len(more), text, True))
    return facts


def _about_repeated(records: Records, keys: pl.Series, ids: pl.Series) -> list[Fact]:
    """Name the samples that have several records, and say whether their answers are the same."""
    if len(keys) == len(ids):
        return []
    frame = records.frame.with_columns(
        key=keys, said=pl.coalesce("answer", pl.col("score").cast(pl.String))
    )
    twice = frame.filter(keys.is_duplicated()).group_by("key").agg(
        pl.col("said").n_unique(), pl.len(), pl.col("file").unique()
    ).sort("key")  # fmt: skip
    first = twice.row(0, named=True)
    where = " and ".join(records.files[file] for file in sorted(first["file"])[:2])
    text = f"{twice.height:,} repeated: {_some(twice['key'])}; {first['key']} in {where}"
    others = twice.filter(pl.col("said") > 1)
    same = f"with another answer: {_some(others['key'])}" if others.height else "the same answers"
    text += f"; {others.height:,} {same}" if others.height else f", with {same}"
    return [Fact("repeated", twice.height, text, True)]


def _about_fates(once: pl.DataFrame, same: Figure | None) -> list[Fact]:
    """Say what became of samples, and whether the number leaves them out."""
    words = {"unscored": "without a score", "cut": "cut by a limit"}
    facts = []
    for fate in FATES[1:]:
        mine = once.filter(fate=fate)
        lost = mine["score"].null_count()
        if mine.height:
            text = f"{mine.height:,} {words.get(fate, fate)}: {_some(_keys(mine['id']).sort())}"
            if fate != "unscored" and lost < mine.height:
                text += f", {'all' if lost == 0 else f'{mine.height - lost:,}'} with a score"
            left_out = lost > 0 and not (same is not None and same.is_whole)
            facts.append(Fact(fate, mine.height, text, left_out))
    retried = once.filter(pl.col("attempts") > 1)
    if retried.height:
        text = f"{retried.height:,} retried: {_some(_keys(retried['id']).sort())}"
        facts.append(Fact("retried", retried.height, text, False))
    return facts


def _about_copies(once: pl.DataFrame) -> list[Fact]:
    """Name samples of equal content under several ids."""
    known = once.filter(pl.col("content").is_not_null()).select("id", "content")
    copies = known.filter(known["content"].is_duplicated())
    if not copies.height:
        return []
    contents = copies["content"].n_unique()
    some = _some(copies.sort("content", maintain_order=True)["id"])
    text = f"{copies.height:,} ids have the content of another id, {contents:,} contents: {some}"
    return [Fact("copies", copies.height, text, False)]


def _about_files(files: Sequence[Path]) -> list[Fact]:
    """Name files that were given twice, and shards that were not given."""
    facts: list[Fact] = []
    by_size: dict[int, list[Path]] = {}
    shards: dict[tuple[str, int], set[int]] = {}
    for path in files:
        if path.is_file():
            by_size.setdefault(path.stat().st_size, []).append(path)
        if found := _SHARD.search(path.name):
            job = _SHARD.sub("*", path.name), int(found[2])
            shards.setdefault(job, set()).add(int(found[1]))
    for paths in by_size.values():
        first_of: dict[str, Path] = {}
        for path in paths if len(paths) > 1 else ():
            first = first_of.setdefault(file_digest(path), path)
            if first is not path:
                text = f"{path} has the same bytes as {first}: a file was given twice"
                facts.append(Fact("file given twice", 1, text, True))
    for (pattern, count), numbers in shards.items():
        start = 0 if 0 in numbers else 1
        missing = [n for n in range(start, start + count) if n not in numbers]
        if missing:
            some = ", ".join(f"{n:05}-of-{count:05}" for n in missing[:_NAMED])
            text = f"missing shards of {pattern}: {some}"
            facts.append(Fact("shard missing", len(missing), text, True))
    return facts


def _read_figure(stated: str | None, headline: float | None) -> tuple[float, float]:
    """Return the stated figure, and by how much it may be rounded; NaN if there is none."""
    if stated is None:
        value = math.nan if headline is None else headline
        return value, _ROUNDING * max(1.0, abs(value))
    try:
        number = Decimal(stated.strip().removesuffix("%"))
        unit = Decimal(1).scaleb(int(number.as_tuple().exponent))
    except (InvalidOperation, ValueError) as error:
        raise UsageError(
            f"the figure {stated!r:.100} is no number, such as 0.6125 or 61.3%"
        ) from error
    scale = 100 if stated.strip().endswith("%") else 1
    return float(number) / scale, float(unit) / 2 / scale * (1 + _ROUNDING)


def _figures(records: Records, once: pl.DataFrame, size: int | None) -> Iterator[Figure]:
    """Compute the number under each policy for samples without a score, and for repeated ones."""
    if not records.metric:
        return
    scored, repeated = (
        frame.filter(pl.col("score").is_not_null()) for frame in (once, records.frame)
    )
    total, weight = _sums(scored)
    policies = [(total, weight, scored.height, f"{scored.height:,} scored", False)]
    every = max(once.height, size or 0)
    if every > scored.height and once["weight"].null_count() == once.height:
        lost = {"missing": every > once.height, "unscored": once.height > scored.height}
        wrong = " and ".join(word for word, is_so in lost.items() if is_so)
        policies.append((total, every, every, f"all {every:,}, {wrong} as wrong", True))
        if all(lost.values()):
            some = f"{once.height:,} that are there, unscored as wrong"
            policies.append((total, once.height, once.height, some, False))
    if repeated.height > scored.height:
        some = f"{repeated.height:,} scored records, repeated ones each time"
        policies.append((*_sums(repeated), repeated.height, some, False))
    for name in records.aggregates or tuple(_AGGREGATES):
        for total, weight, samples, policy, is_whole in policies:
            with suppress(ArithmeticError):  # there is no mean of nothing
                value = _AGGREGATES[name](total, weight)
                yield Figure(name, value, samples, policy, is_whole)


def _sums(scored: pl.DataFrame) -> tuple[float, float]:
    """Return the sum of scores and of their weights, which are 1 where there are none."""
    weight = pl.col("weight").fill_null(1.0)
    total, weights = scored.select((pl.col("score") * weight).sum(), weight=weight.sum()).row(0)
    return float(total), float(weights)
