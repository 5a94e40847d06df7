"""Comparisons of runs in words, and their page, which shows the samples that changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from disteval.report.files import write_file
from disteval.report.page import as_is, fill
from disteval.text import visible

MAX_BYTES = 48 << 20
"""The most text of samples on a page, of which 10,000 have 5 KB each; a browser filters it in less
than 0.2 s."""

_MAX_TEXT = 20_000  # characters of one prompt or answer
_LEVEL = 0.05

GROUP_COLUMNS = ("pairs", "A", "B", "B - A", "won, lost", "p", "Holm")
"""The heads of a table of groups, where A is the first run and B the second."""

COLUMNS = ("id", "group", "outcome", "prompt", "prompt_b", "target", "answer", "answer_b", "score",
           "score_b", "fate", "fate_b")  # fmt: skip
"""What the page has of each sample; ``_b`` is the second run's, and without it the first's."""


def of_policies(comparison: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the outcomes of all pairs; one, where every policy comes to the same."""
    found = [each for each in comparison["outcomes"] if each["group"] is None]
    return found[:1] if found and found[0]["pairs"] == found[0]["of"] else found


def _p(outcome: Mapping[str, Any]) -> float:
    """Return the probability by which it is judged: after Holm's correction, where there is one."""
    return float(outcome["p"] if outcome["holm"] is None else outcome["holm"])


def groups(comparison: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the name of each group, and its texts for `GROUP_COLUMNS`; unscored left out."""
    found = []
    for each in comparison["outcomes"]:
        if each["group"] is not None and each["policy"] == "left out":
            texts = [f"{each['pairs']} of {each['of']}"]
            if each["pairs"]:
                texts += [
                    f"{each['first']:.4g}", f"{each['second']:.4g}", f"{each['difference']:+.3g}",
                    f"{each['wins']}, {each['losses']}", f"{each['p']:.3g}", f"{_p(each):.3g}",
                ]  # fmt: skip
            found.append((each["group"] or "(no group)", texts))
    return found


def facts(comparison: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return what is said of all pairs: the name of each fact, and its text for each policy."""
    first, second = comparison["first"], comparison["second"]
    columns = [_facts(each, first, second) for each in of_policies(comparison)]
    return [(cells[0][0], [text for _, text in cells]) for cells in zip(*columns, strict=True)]


def _facts(outcome: Mapping[str, Any], first: str, second: str) -> list[tuple[str, str]]:
    error, shows, p = outcome["error"], outcome["detectable"], f"{outcome['p']:.4g}"
    if outcome["holm"] is not None:
        p += f", after Holm {outcome['holm']:.4g}"
    return [
        ("pairs compared", f"{outcome['pairs']} of {outcome['of']}"),
        (first, f"{outcome['first']:.6g}"),
        (second, f"{outcome['second']:.6g}"),
        ("difference", f"{outcome['difference']:+.4g}"),
        ("95 % interval", f"{outcome['low']:+.4g} to {outcome['high']:+.4g}"),
        ("standard error", "unknown, of one alone" if error is None else f"{error:.4g}"),
        ("wins, losses, ties", f"{outcome['wins']}, {outcome['losses']}, {outcome['ties']}"),
        (f"p ({outcome['test']})", p),
        ("would show (80 %)", f"{shows:.4g}" if shows else "unknown: all differ alike"),
    ]


def verdict(comparison: Mapping[str, Any]) -> str:
    """Return the answer to the question which run is better, for each policy."""
    first, second = comparison["first"], comparison["second"]
    outcomes, said = of_policies(comparison), []
    for each in outcomes:
        p = _p(each)
        better, worse = (second, first) if each["difference"] > 0 else (first, second)
        sentence = f"{better} is better than {worse} (p = {p:.2g})"
        if p >= _LEVEL:
            shows = each["detectable"]
            would = f"; {each['pairs']} samples would show {shows:.2g}" if shows else ""
            sentence = f"no difference is shown (p = {p:.2g}){would}"
        said.append(f"unscored {each['policy']}: {sentence}" if len(outcomes) > 1 else sentence)
    return "; ".join(said) or "the records have no scores: answers alone were compared"


def write_comparisons(
    path: Path,
    comparisons: Sequence[Mapping[str, Any]],
    samples: Sequence[Iterable[Mapping[str, Any]]],
) -> None:
    """Write the page of comparisons.

    Args:
        path: The file.
        comparisons: The comparisons of a report of ``disteval compare``.
        samples: The samples of each that changed, with values for `COLUMNS`; those that are not
            wanted first, where they are more than `MAX_BYTES`, come last.

    Raises:
        UsageError: The file can't be written.
        LibraryMissingError: Jinja2 is not installed.
    """
    left, parts = MAX_BYTES, []
    for comparison, rows in zip(comparisons, samples, strict=True):
        texts, total = [], 0
        for row in rows:
            total += 1
            if left > 0:
                texts.append(json.dumps([*_cells(row)], ensure_ascii=False))
                left -= len(texts[-1].encode())
        head = json.dumps({"names": [visible(comparison[name]) for name in ("first", "second")]})
        parts.append(f'{head[:-1]}, "total": {total}, "rows": [{",".join(texts)}]}}')
    # Only "<" could end the element that holds the data.
    data = f"[{','.join(parts)}]".replace("<", r"\u003c")
    page = fill(
        "compared.html",
        scripts=["compared.js"],
        comparisons=[
            {
                **each,
                "policies": [outcome["policy"] for outcome in of_policies(each)],
                "facts": facts(each),
                "verdict": verdict(each),
                "groups": groups(each),
            }
            for each in comparisons
        ],
        group_columns=GROUP_COLUMNS,
        data=as_is(data),
    )
    write_file("--html", path, page)


def _cells(row: Mapping[str, Any]) -> Iterator[str | float | None]:
    for name in COLUMNS:
        value = row[name]
        if name == "prompt_b" and value == row["prompt"]:
            value = None
        if isinstance(value, str):
            more = len(value) - _MAX_TEXT
            value = visible(value[:_MAX_TEXT]) + (
                f" … ({more} more characters)" if more > 0 else ""
            )
        yield value
