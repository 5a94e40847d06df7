"""Whether one run is better than another: records paired by id, and tests of paired data.

Nothing here depends on the order of files or of records: pairs are sorted by id. A difference is
that of the second run from the first, so it is above 0 where the second has the higher scores.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from disteval.errors import UsageError
from disteval.metrics import Bootstrap, Mean, SampleRows
from disteval.metrics.arrays import Floats, Numbers
from disteval.records.table import DIGESTED, TEXTS, Choice, Records, in_order, read, some

MOST_RESAMPLED = 20_000
"""The most pairs of which a bootstrap is made, which takes 1 s; of more, the interval follows from
the standard error."""

CLOSE = 2.0**-7
"""How far two numbers in answers may differ, relative to the larger, and differ by rounding alone:
one step of bfloat16."""

POLICIES = ("left out", "as 0")
"""What becomes of pairs of which a record has no score."""

OUTCOMES = ("loss", "win", "unscored", "tie")
"""What a pair can be, in the order in which the page shows them."""


@dataclass
class Difference:
    """The scores of the second run against those of the first, over some of the pairs.

    Attributes:
        group: The group of the pairs; None for all.
        policy: What became of pairs without two scores, one of `POLICIES`.
        pairs: The number of pairs that were compared.
        of: The number of pairs that there are.
        first: The first run's mean score; None, as all that follow, where no pair was compared.
        second: The second run's mean score.
        difference: The mean difference.
        low: The lower end of its interval at 95 %.
        high: The upper end.
        error: The standard error of the difference, within clusters where there are any; None if
            there is but one pair or cluster.
        wins: In how many pairs the second run's score is higher.
        losses: In how many it is lower.
        ties: In how many it is equal, up to 12 digits of the largest score.
        test: The test that gave ``p``.
        p: The probability of such a difference or a larger one between equal runs.
        holm: ``p`` after Holm's correction; None if there is one comparison.
        detectable: The smallest difference that this many pairs show, see `measure`.
    """

    group: str | None
    policy: str
    pairs: int
    of: int
    first: float | None = None
    second: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    error: float | None = None
    wins: int = 0
    losses: int = 0
    ties: int = 0
    test: str = ""
    p: float | None = None
    holm: float | None = None
    detectable: float | None = None


@dataclass(frozen=True)
class Comparison:
    """One run against the first.

    Attributes:
        names: What the two runs are called.
        frame: The pairs in the order of ids: the columns of `Records` of the first run, those of
            the second with ``_b`` behind their names, and ``outcome``: ``win``, ``loss``, ``tie``,
            or ``unscored`` where a score is missing.
        only: The ids that only the first has, and those that only the second has.
        outcomes: First those of all pairs, then those by group; empty if there are no scores.
        same_model: Whether both runs name the same model.
        notes: What else makes the runs differ, in sentences.
    """

    names: tuple[str, str]
    frame: pl.DataFrame
    only: tuple[list[int | str], list[int | str]]
    outcomes: list[Difference]
    same_model: bool
    notes: list[str]

    def changed(self, runs: Sequence[Path], choice: Choice) -> pl.DataFrame:
        """Return the pairs whose score, fate or answer differs, with whole texts.

        Args:
            runs: The two runs, which are read again.
            choice: As they were read.
        """
        columns = ("score", "fate", "answer")
        changed = self.frame.filter(
            pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_b")) for name in columns)
        ).with_columns(pl.col("id").cast(pl.String).alias("key"))
        for path, run in zip(runs, ("", "_b"), strict=True):
            again = read([path], replace(choice, only=changed["key"])).frame
            texts = again.select(
                pl.col("id").cast(pl.String).alias("key"),
                *(pl.col(name).alias(f"{name}{run}") for name in DIGESTED),
            )
            changed = changed.drop(f"{name}{run}" for name in DIGESTED)
            changed = changed.join(texts, on="key", how="left", maintain_order="left")
        return changed

    def to_json(self) -> dict[str, Any]:
        """Return what is found, with the ids of all pairs that have other scores."""
        ids = self.frame.select("id", "outcome")
        return {
            "first": self.names[0], "second": self.names[1], "pairs": len(self.frame),
            "only_first": self.only[0], "only_second": self.only[1], "notes": self.notes,
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
            **{
                name: ids.filter(outcome=outcome)["id"].to_list()
                for name, outcome in (("wins", "win"), ("losses", "loss"), ("unscored", "unscored"))
            },
            "same_model": self.same_model,
        }  # fmt: skip


def compare(
    runs: Sequence[tuple[str, Records]],
    *,
    by_group: bool = False,
    by_cluster: bool = False,
    answers: bool = False,
) -> list[Comparison]:
    """Compare each run with the first.

    Holm's correction is made among the comparisons of all pairs, and among all those of groups.

    Args:
        runs: The name of each run and its records.
        by_group: Whether each group is compared as well.
        by_cluster: Whether pairs of one cluster depend on each other.
        answers: Whether runs without scores, which have no outcomes, are compared as well.

    Raises:
        UsageError: A run has an id more than once, two runs have no id in common, no pair has two
            scores, or a record has no cluster.
    """
    first, *others = runs
    found = [_compared(first, other, by_group, by_cluster, answers) for other in others]
    families: dict[tuple[str, bool], list[Difference]] = defaultdict(list)
    for each in (outcome for comparison in found for outcome in comparison.outcomes):
        if each.p is not None:
            families[each.policy, each.group is None].append(each)
    for family in families.values():
        for each, p in zip(family, holm([each.p or 0.0 for each in family]), strict=True):
            each.holm = p if len(family) > 1 else None
    return found


def _compared(
    first: tuple[str, Records],
    second: tuple[str, Records],
    by_group: bool,
    by_cluster: bool,
    answers: bool,
) -> Comparison:
    """Pair the records of two runs by id and measure them, see `compare`."""
    (name, one), (other_name, other) = first, second
    frame, only = _paired(_once(*first), _once(*second))
    if frame.is_empty():
        raise UsageError(
            f"{name} and {other_name} have no id in common: the first has {some(only[0])}, and "
            f"the second has {some(only[1])}; give results of the same data, or the field that "
            f"both have as --id"
        )
    steps = pl.lit(pl.Series(_steps(frame["score"].to_numpy(), frame["score_b"].to_numpy())))
    unscored, win, loss, tie = (
        pl.lit(each, pl.Enum(OUTCOMES)) for each in ("unscored", "win", "loss", "tie")
    )
    outcome = pl.when(steps.is_nan()).then(unscored).when(steps > 0).then(win)
    frame = frame.with_columns(
        pl.coalesce("group", "group_b").alias("group"),
        pl.coalesce("cluster", "cluster_b").alias("cluster"),
        outcome.when(steps < 0).then(loss).otherwise(tie).alias("outcome"),
    )
    if by_cluster and (lacking := frame.filter(pl.col("cluster").is_null())["id"]).len():
        raise UsageError(
            f"{len(lacking)} of {len(frame)} pairs have no cluster: {some(lacking)}; give a field "
            f"that every record has as --cluster"
        )
    parts: list[tuple[str | None, pl.DataFrame]] = [(None, frame)]
    if by_group:
        grouped = frame.with_columns(pl.col("group").fill_null(""))
        groups = grouped.partition_by("group", as_dict=True)
        parts += [(str(key), groups[key,]) for (key,) in sorted(groups)]
    model = one.settings.get("model")
    return Comparison(
        (name, other_name), frame, only,
        [each for key, pairs in parts for each in _outcomes(key, pairs, by_cluster, answers)],
        bool(model) and model == other.settings.get("model"),
        [*_notes((first, second), frame, only)],
    )  # fmt: skip


def _steps(first: Floats, second: Floats) -> Floats:
    """Return differences in steps of which the largest score has 1e12; NaN where a score is.

    Equal steps, as those from 0.1 to 0.3 and from 0.5 to 0.7, must not get ranks by rounding, and
    0.1 + 0.2 is not above 0.3: that is a tie.
    """
    steps = np.subtract(second, first)
    largest = max(float(np.nanmax(abs(scores), initial=0.0)) for scores in (first, second))
    steps /= largest or 1.0
    steps *= 1e12
    return np.rint(steps, out=steps)


def _once(name: str, records: Records) -> pl.DataFrame:
    """Return the records in the order of ids, or raise UsageError if an id is there twice."""
    frame = in_order(records.frame)
    twice = frame.filter(frame["id"] == frame["id"].shift())
    if not twice.is_empty():
        twice = frame.filter(frame["id"].is_in(twice["id"].implode()))
        rows = twice.filter(id=twice["id"][0]).head(2).iter_rows(named=True)
        places = " and ".join(f"{records.files[row['file']]}:{row['line']}" for row in rows)
        raise UsageError(
            f"{name} has {twice['id'].n_unique()} ids more than once, such as {twice['id'][0]!r} "
            f"in {places}; run disteval verify {name}, which says what they are"
        )
    return frame


def _paired(
    a: pl.DataFrame, b: pl.DataFrame
) -> tuple[pl.DataFrame, tuple[list[int | str], list[int | str]]]:
    """Return the pairs of two frames that are in order, and the ids that only one of them has.

    Columns without a value in both are made at the end: each would take 16 bytes a record.
    """
    if a.schema["id"] != b.schema["id"]:  # texts have another order than numbers
        a, b = (in_order(each.with_columns(pl.col("id").cast(pl.String))) for each in (a, b))
    columns = ["id", "score", "fate", "weight", *TEXTS]
    used = [each for each in columns if a[each].count() or b[each].count()]
    nothing = {f"{each}{run}": pl.lit(None, a.schema[each])
               for each in columns if each not in used for run in ("", "_b")}  # fmt: skip
    a, b = a.select(used), b.select(used)
    only: list[list[int | str]] = [[], []]
    if not a["id"].equals(b["id"]):
        only = [list(one.join(other, on="id", how="anti", maintain_order="left")["id"])
                for one, other in ((a, b), (b, a))]  # fmt: skip
        a, b = (one.join(other.select("id"), on="id", how="semi", maintain_order="left")
                for one, other in ((a, b), (b, a)))  # fmt: skip
    frame = a.hstack([each.rename(f"{each.name}_b") for each in b.drop("id")])
    return frame.with_columns(**nothing), (only[0], only[1])


def _notes(
    runs: Sequence[tuple[str, Records]], frame: pl.DataFrame, only: Sequence[list[int | str]]
) -> Iterator[str]:
    """Yield in which ways two runs differ beside their answers."""
    (_, one), (other_name, other) = runs
    for (whose, _), ids in zip(runs, only, strict=True):
        if ids:
            yield f"{len(ids)} ids are in {whose} alone: {some(ids)}"
    for whose, records in runs:
        yield from (f"{whose}: {each}" for each in (*records.problems, *records.notes))
    settings = {"harness": (one.harness, other.harness), "task": (one.task, other.task)}
    settings |= {"score": (one.metric, other.metric)}
    for key in sorted({*one.settings, *other.settings} - {"model"}):
        settings[key] = (one.settings.get(key, ""), other.settings.get(key, ""))
    for key, (value, its) in settings.items():
        if value != its:
            yield f"{key} differs: {value or 'not stated'!r:.200} and {its or 'not stated'!r:.200}"
    if frame["weight"].count():
        yield "each sample counts once here, without the weight that it has in the harness's number"
    told = frame["id"][:0]
    for column in TEXTS[1:]:
        odd = frame.filter(pl.col(column) != pl.col(f"{column}_b"))["id"]
        is_news = len(odd) and not odd.equals(told)
        if is_news and (column != "content" or one.harness == other.harness):
            what = f"another {column} in {other_name}: {some(odd)}"
            yield f"{len(odd)} of {len(frame)} pairs have {what}"
        told = odd if column == "prompt" else told[:0]


def _outcomes(
    group: str | None, frame: pl.DataFrame, by_cluster: bool, answers: bool
) -> Iterator[Difference]:
    """Yield what each policy makes of some pairs; where scores are below 0, 0 is not the worst."""
    columns = ["score", "score_b"]
    is_of_answers = answers and frame["answer"].count() and frame["answer_b"].count()
    frame = frame.select(*columns, "cluster")
    scored = frame.drop_nulls(columns)
    if group is None and scored.is_empty():
        if is_of_answers:
            return
        raise UsageError(
            f"not one of {len(frame)} pairs has two scores; name the field or the metric by "
            f"--score, give --same to compare answers alone, or run disteval verify, which says "
            f"why records have no score"
        )
    for policy, pairs in zip(POLICIES, (scored, frame), strict=True):
        if pairs.is_empty():
            yield Difference(group, policy, 0, len(frame))
            continue
        first, second = (pairs[name].fill_null(0.0).to_numpy() for name in columns)
        if policy == POLICIES[1] and min(first.min(), second.min()) < 0:
            return
        if policy == POLICIES[0] or len(scored) < len(frame):
            clusters = pairs["cluster"].rank("dense").to_numpy() - 1 if by_cluster else None
            measured = measure(first, second, clusters)
        yield replace(measured, group=group, policy=policy, of=len(frame))


def measure(first: Floats, second: Floats, clusters: Numbers | None = None) -> Difference:
    r"""Measure how the scores of two runs for the same samples differ.

    The interval is that of `Bootstrap` over the paired differences, in which a cluster is drawn as
    a whole. The standard error is that of E. Miller, "Adding Error Bars to Evals" (2024,
    arXiv:2411.00640), section 2.2, with the usual correction for a finite number of clusters:
    differences from the mean are summed within each of G clusters, and the error is
    ``sqrt(G / (G - 1) * sum(squares of sums)) / n``. Where each pair is a cluster of its own, this
    is the standard deviation over ``sqrt(n)``.

    Scores of 0 and 1 without clusters are tested by McNemar's exact test, which is a binomial test
    of wins against losses; all others by Wilcoxon's signed-rank test of the differences, or of
    their sums within clusters. Both are SciPy's.

    The smallest difference that would show is ``(z(0.975) + z(0.8)) * error``, 2.8 standard errors:
    with 80 % probability, a true difference of that size is found at the 5 % level (H. Bloom,
    "Minimum detectable effects", 1995; Miller, section 5). It is None where no two differences are
    unequal, because nothing is known of their variance then.

    Args:
        first: The scores of the first run, shape (n,) with n of 1 or more.
        second: Those of the second, for the same samples.
        clusters: The number of each pair's cluster, from 0 up without gaps.
    """
    difference = second - first
    n, mean = len(difference), float(difference.mean())
    numbers = np.arange(n) if clusters is None else clusters.astype(np.int64)
    count = int(numbers.max()) + 1
    sums = np.bincount(numbers, weights=difference - mean)
    error = math.sqrt(count / (count - 1) * float(sums @ sums)) / n if count > 1 else None
    steps = _steps(first, second)
    wins, losses = int((steps > 0).sum()), int((steps < 0).sum())
    if clusters is None and np.isin([first, second], (0.0, 1.0)).all():
        test = "McNemar, exact"
        p = float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
    else:
        test = "Wilcoxon" if clusters is None else f"Wilcoxon, {count} clusters"
        total = np.bincount(numbers, weights=steps)
        total = total[total != 0]
        p = float(stats.wilcoxon(total).pvalue) if len(total) else 1.0
    if n <= MOST_RESAMPLED:
        metric = Bootstrap(Mean(dist_backend="non_dist"))
        rows = SampleRows(np.arange(count), np.bincount(numbers))
        metric.add(difference[np.argsort(numbers, kind="stable")], ids=rows)
        mean_of = metric.compute()["mean"]
        low, high = mean_of["low"], mean_of["high"]
    else:
        half = NormalDist().inv_cdf(0.975) * (error or 0.0)
        low, high = mean - half, mean + half
    factor = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)
    return Difference(
        group=None, policy=POLICIES[0], pairs=n, of=n,
        first=float(first.mean()), second=float(second.mean()), difference=mean,
        low=low, high=high, error=error, wins=wins, losses=losses, ties=n - wins - losses,
        test=test, p=p, detectable=factor * error if error else None,
    )  # fmt: skip


def holm(values: Sequence[float]) -> list[float]:
    """Correct p-values for their number.

    The k-th smallest of m is multiplied by m - k + 1, and is no smaller than those before it
    (S. Holm, "A simple sequentially rejective multiple test procedure", 1979).
    """
    order = np.argsort(values, kind="stable")
    found = np.empty(len(values))
    times = np.arange(len(values), 0, -1)
    found[order] = np.minimum(1.0, np.maximum.accumulate(np.array(values)[order] * times))
    return [float(each) for each in found]


_NUMBER = r"(?:(?<!\w)[-+])?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_TOKEN = re.compile(rf"{_NUMBER}|\w+|[^\w\s]")
_DECIMAL = re.compile(r"[-+]?\d+(?=[.eE])[\d.eE+-]*")


def parting_of(row: dict[str, Any]) -> dict[str, str]:
    """Return of which ``kind`` the difference of two records is, and ``where`` it begins.

    They differ by ``rounding`` if the answers are the same but for decimal numbers that are
    `CLOSE`; in ``order`` if they have the same tokens in another order; by ``score`` if they are
    equal, and the scores differ; else by ``content``.

    Args:
        row: A row of what `Comparison.changed` returns.
    """
    first, second = row["answer"], row["answer_b"]
    if first == second:
        if row["fate"] != row["fate_b"]:
            return {"kind": "content", "where": f"one is {row['fate']}, the other {row['fate_b']}"}
        scores = row["score"], row["score_b"]
        near = None not in scores and math.isclose(*scores, rel_tol=CLOSE)
        return {
            "kind": "rounding" if near else "score",
            "where": f"score {scores[0]} / {scores[1]}",
        }
    if first is None or second is None:
        return {"kind": "content", "where": "one of them has no answer"}
    at = _equal_up_to(first, second)
    tokens, others = _TOKEN.findall(first), _TOKEN.findall(second)
    place = _equal_up_to(tokens, others)
    if tokens == others:
        return {"kind": "content", "where": f"character {at + 1}: other white space"}
    word, its = (some[place] if place < len(some) else "the end" for some in (tokens, others))
    where = f"character {at + 1}, token {place + 1}: {word!r:.60} / {its!r:.60}"
    if _is_number(word) and _is_number(its):
        same = word[: _equal_up_to(word, its)]
        where += f", digit {sum(map(str.isdigit, same)) + 1}"
    if len(tokens) == len(others) and all(map(_are_close, tokens, others)):
        return {"kind": "rounding", "where": where}
    return {"kind": "order" if Counter(tokens) == Counter(others) else "content", "where": where}


def _equal_up_to(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many of the first characters or tokens are equal."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))


def _is_number(token: str) -> bool:
    return re.fullmatch(_NUMBER, token) is not None


def _are_close(first: str, second: str) -> bool:
    if first == second:
        return True
    are_numbers = _is_number(first) and _is_number(second)
    is_decimal = _DECIMAL.fullmatch(first) or _DECIMAL.fullmatch(second)
    return bool(are_numbers and is_decimal) and math.isclose(
        float(first), float(second), rel_tol=CLOSE, abs_tol=1e-6
    )
