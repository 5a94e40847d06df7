"""Which samples a number is about: each one once, or which are not, and what the number is then."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from disteval.errors import DataError, UsageError
from disteval.files import file_digest
from disteval.judging.report import Verdict
from disteval.records.certificate import summary_of
from disteval.records.plain import ids_of
from disteval.records.table import FATES, HARNESSES, NAMED, Records, in_order, keyed, some
from disteval.text import visible

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
        ids: Their ids in order, each once.
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
        name = HARNESSES[self.records.harness]
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
        """The sentence about the stated figure; empty if it is none of the figures."""
        return f"the stated figure is {self.stated}, which is {self.same}" if self.same else ""

    @property
    def judged(self) -> Verdict:
        """The verdict: ``proved``, ``not proved`` or ``not judged``."""
        lacking = ""
        if self.stated is not None and self.same is None:
            lacking = (
                f"{self.stated} is stated, and it is not known here how {self.records.metric!r} is "
                f"computed from scores"
            )
        if self.expected is None:
            lacking = "nobody says how many samples there are; give --data FILE or --data N"
        size = 0 if self.expected is None else self.expected.size
        return _verdict(self.facts, "is not about each sample once", lacking, size)


def _verdict(facts: Iterable[Fact], refuted: str, lacking: str, size: int) -> Verdict:
    """Return what follows of facts, and of what is lacking to judge, if something is."""
    short = ", ".join(f"{fact.count:,} {fact.kind}" for fact in facts if fact.refutes)
    if short:
        return Verdict("not proved", f"{refuted}: {short}", short, 1)
    if lacking:
        return Verdict("not judged", f"could not be judged: {lacking}", "not judged", 2)
    about = f"each of {size:,} samples once"
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
    if expected is None and (records.ids is not None or records.stated is not None):
        source = f"what {HARNESSES[records.harness]} says of its task"
        ids = None if records.ids is None else keyed(records.ids)
        expected = Expected(source, (records.stated or 0) if ids is None else len(ids), ids)
    once = records.frame
    if once["id"].is_duplicated().any():
        once = once.unique("id", keep="first", maintain_order=True)
    ids = in_order(once.select("id"))["id"]
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
    facts += _about_repeated(records) if len(ids) < records.frame.height else []
    facts += _about_fates(once, same) if records.metric else []
    figures = [each for each in figures if each.aggregate == (same or figures[0]).aggregate]
    if stated is not None and same is None and records.aggregates:
        text = f"{stated} is stated, which these scores do not give"
        facts.append(Fact("other figure", 1, text, True))
    known = once.filter(pl.col("content").is_not_null()).select("id", "content")
    copies = known.filter(known["content"].is_duplicated()).sort("content", maintain_order=True)
    words = f"ids have the content of another id, {copies['content'].n_unique():,} contents"
    facts += _named("copies", copies["id"], words, refutes=False)
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
    ids = ids_of(path, field, by_position)
    if isinstance(ids, int):
        return Expected(str(path), ids, None, file_digest(path))
    twice = ids.filter(ids.is_duplicated()).unique(maintain_order=True)
    if len(twice):
        raise DataError(
            f"{path} has {len(twice):,} ids more than once ({some(twice)}); give the field of the "
            f"ids by --data-id, or a file with each sample once"
        )
    return Expected(str(path), len(ids), ids, file_digest(path))


def check_certificate(
    path: Path, found: Mapping[str, Any], expected: Expected | None, results: Sequence[Path]
) -> tuple[Verdict, list[Fact]]:
    """Compare a certificate with data and results.

    Args:
        path: The certificate's file.
        found: The certificate.
        expected: The samples that it should be about; None compares none.
        results: The files that it should be about; nothing compares none.

    Returns:
        The verdict, and what is said of samples and files.
    """
    facts = []
    if found["verdict"] != "proved":
        text = f"{path} says that the number {visible(str(found['says']))}"
        facts.append(Fact("not proved", 1, text, True))
    if expected is not None and not _are_those(found, expected):
        text = (
            f"{path} is about {found['ids']['count']:,} samples, which are not the "
            f"{expected.size:,} of {expected.source}"
        )
        facts.append(Fact("other samples", found["ids"]["count"], text, True))
    known = {each["sha256"]: each["name"] for each in found["files"]}
    digests = {file_digest(each): each for each in results}
    for digest, each in digests.items():
        if digest not in known:
            text = f"{each} is no file that {path} is about, or was changed"
            facts.append(Fact("other file", 1, text, True))
    for digest, name in known.items() if results else ():
        if digest not in digests:
            text = f"{visible(str(name))}, which {path} is about, was not given"
            facts.append(Fact("file missing", 1, text, True))
    lacking = ""
    if expected is None and not results:
        lacking = "there is nothing to compare it with; give --data, the results or both"
    return _verdict(facts, "does not hold", lacking, found["ids"]["count"]), facts


def _are_those(found: Mapping[str, Any], expected: Expected) -> bool:
    """Return whether a certificate is about the expected samples."""
    if expected.digest and expected.digest == found["digests"].get("data"):
        return bool(found["samples"] == expected.size)
    if expected.ids is not None:
        return bool(found["ids"] == summary_of(in_order(expected.ids.to_frame("id"))["id"]))
    size, ranges = expected.size, found["ids"]["ranges"]
    return bool(found["ids"]["count"] == size and ranges in ([[0, size - 1]], [[1, size]], None))


def _about_ids(ids: pl.Series, expected: Expected) -> list[Fact]:
    """Name the samples that are missing or not in the data."""
    size, wanted = expected.size, expected.ids
    if wanted is not None:
        if wanted.dtype != ids.dtype:
            wanted, ids = wanted.cast(pl.String), ids.cast(pl.String)
        more = _without(ids, wanted)
    elif ids.dtype == pl.Int64:
        first = int(len(ids) > 0 and ids[0] > 0 and ids[-1] == size)  # some count from 1
        more = ids.filter(~ids.is_between(first, first + size - 1))
        wanted = pl.int_range(first, first + min(size, len(ids) + NAMED + 1), eager=True)
    else:  # ids are texts, of which only the number is known
        more = ids[size:]
    lost = size - (len(ids) - len(more))
    named = "which ones can't be said of texts; give --data FILE"
    if lost and wanted is not None:
        named = some(_without(wanted, ids))
    facts = [Fact("missing", lost, f"{lost:,} missing: {named}", True)] if lost else []
    return facts + _named("not in the data", more)


def _named(
    kind: str, ids: pl.Series, words: str = "", more: str = "", refutes: bool = True
) -> list[Fact]:
    """Return the fact that names some ids; nothing if there are none."""
    text = f"{len(ids):,} {words or kind}: {some(ids)}{more}"
    return [Fact(kind, len(ids), text, refutes)] if len(ids) else []


def _without(ids: pl.Series, others: pl.Series) -> pl.Series:
    """Return the ids that are not among others, in order."""
    return in_order(ids.to_frame("id").join(others.to_frame("id"), on="id", how="anti"))["id"]


def _about_repeated(records: Records) -> list[Fact]:
    """Name the samples that have several records, and say whether their answers are the same."""
    said = pl.coalesce(pl.col("answer", "score").cast(pl.String))
    twice = in_order(
        records.frame.filter(pl.col("id").is_duplicated())
        .group_by("id")
        .agg(said.n_unique().alias("said"), pl.col("file").unique())
    )
    where = " and ".join(records.files[file] for file in sorted(twice["file"][0])[:2])
    others = twice.filter(pl.col("said") > 1)["id"]
    which = f"; {len(others):,} with another answer: {some(others)}"
    more = f"; {twice['id'][0]!r:.60} in {where}"
    more += which if len(others) else ", with the same answers"
    return _named("repeated", twice["id"], more=more)


def _about_fates(once: pl.DataFrame, same: Figure | None) -> list[Fact]:
    """Say what became of samples, and whether the number leaves them out."""
    words = {"unscored": "without a score", "cut": "cut by a limit"}
    facts = []
    for fate in FATES[1:]:
        mine = in_order(once.filter(fate=fate))
        lost = mine["score"].null_count()
        more = ""
        if fate != "unscored" and lost < mine.height:
            more = f", {'all' if lost == 0 else f'{mine.height - lost:,}'} with a score"
        left_out = lost > 0 and not (same is not None and same.is_whole)
        facts += _named(fate, mine["id"], words.get(fate, ""), more, left_out)
    retried = in_order(once.filter(pl.col("attempts") > 1))
    return facts + _named("retried", retried["id"], refutes=False)


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
            listed = ", ".join(f"{n:05}-of-{count:05}" for n in missing[:NAMED])
            text = f"missing shards of {pattern}: {listed}"
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
            there = f"{once.height:,} that are there, unscored as wrong"
            policies.append((total, once.height, once.height, there, False))
    if repeated.height > scored.height:
        each = f"{repeated.height:,} scored records, repeated ones each time"
        policies.append((*_sums(repeated), repeated.height, each, False))
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
