"""The verdict of a check, as one sentence that says which rules and world sizes it covers.

It knows results as the JSON of a check has them, so a page judges a file's results by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from disteval.judging.report import Finding, Verdict


def judge(
    results: Iterable[Mapping[str, Any]], contract: Mapping[str, str], single_rank: str = ""
) -> Verdict:
    """Return the verdict of the results of a check.

    A backend is conformant only if every required rule was judged at two or more world sizes and
    holds at each of them. If its class declares that it can't do more than one rank, world size 1
    is enough. A result without examples proves nothing, so it is left out.

    Args:
        results: The results, as in the JSON of a check.
        contract: The level of each rule that applies to the backend, by the rule's number. Nothing
            is conformant to an empty one, which stands for a contract that is not known.
        single_rank: Why the class declares that it can't do more than one rank, if it does.
    """
    found: dict[str, dict[str, set[int]]] = {
        "passed": {},
        "failed": {},
        "error": {},
        "unsupported": {},
    }
    in_part = set()
    for result in results:
        if result["outcome"] == "passed" and result.get("message"):
            in_part.add(result["id"])
        if result["outcome"] != "passed" or result["examples"]:
            rules = found[result["outcome"]]
            rules.setdefault(result["id"], set()).add(result["world_size"])
    known = len({*contract}.union(*(found[one] for one in ("passed", "failed", "error"))))
    of = f" (of {known})" if contract else ""
    if failed := found["failed"]:
        covers = f"is broken: it breaks {_where(failed, of)}"
        return Verdict("broken", covers, _counted("breaks", failed, known, contract), 1)
    partly = f"; tried in part: {name_rules(in_part)}" if in_part else ""
    passed, excused = found["passed"], found["unsupported"]
    required = [number for number, level in contract.items() if level != "optional"]
    # At these world sizes some required rule holds, and every other one holds or does not apply.
    held = set[int]().union(*(passed.get(number, set()) for number in required))
    sizes = sorted(held.intersection(
        *(passed.get(number, set()) | excused.get(number, set()) for number in required)
    ))  # fmt: skip
    alone = ", the only one that it declares to have" if single_rank and sizes == [1] else ""
    hold = [n for n in required if n in passed and not passed[n].isdisjoint(sizes)]
    if (alone or (len(sizes) > 1 and hold == required)) and not found["error"]:
        # Some rules of templates need another rank.
        apply = " that apply" if hold != required else ""
        covers = f"is conformant: all {len(hold)} required rules{apply} hold at {name_sizes(sizes)}"
        covers += alone
        if spared := contract.keys() & excused.keys() - passed.keys():
            covers += f"; not held against it: {name_rules(spared)}"
        covers += partly
        return Verdict("conformant", covers, f"conformant{alone and ' at world size 1'}", 0)
    error = found["error"]
    if not passed and not error:
        why = ": no rule that was asked for applies" if excused else ""
        return Verdict("incomplete", f"was not tried{why}", "not tried", 2)
    if not passed:
        return Verdict("incomplete", f"could not be judged by {_where(error, of)}", "not judged", 2)
    covers = f"passes {_where(passed, of)}{partly}"
    if error:
        covers += f"; not judged: {_where(error)}"
    rest = {*required}.difference(passed, error)
    left_out = [name_rules(rest)] if rest else []
    if len(_sizes_of(passed) | _sizes_of(error)) < 2 and not single_rank:
        left_out.append("another world size")
    short = _counted("passes", passed, known, contract)
    return Verdict("incomplete", covers, short, 2 if error else 0, " and ".join(left_out))


def _where(rules: Mapping[str, set[int]], of: str = "") -> str:
    """Describe rules with their world sizes: "rules 1.1, 2.1 at world size 2"."""
    by_sizes: dict[tuple[int, ...], list[str]] = {}
    for number in sorted(rules, key=order):
        by_sizes.setdefault(tuple(sorted(rules[number])), []).append(number)
    parts = []
    for sizes, numbers in by_sizes.items():
        parts.append(f"{name_rules(numbers)}{of} at {name_sizes(sizes)}")
        of = ""
    return ", and ".join(parts)


def _counted(
    verb: str, rules: Mapping[str, set[int]], known: int, contract: Mapping[str, str]
) -> str:
    """Count rules in a few words; one world size is named, because it says little."""
    count = f"{len(rules)} of {known} rules" if contract else f"{len(rules)} rules"
    sizes = _sizes_of(rules)
    return f"{verb} {count}" + (f" at {name_sizes(sizes)}" if len(sizes) == 1 else "")


def _sizes_of(rules: Mapping[str, set[int]]) -> set[int]:
    return {size for sizes in rules.values() for size in sizes}


def name_rules(numbers: Iterable[str]) -> str:
    """Name rules in a compact way: "rules 1.1-1.3, 2.1"; a range leaves no number out."""
    wanted = sorted(set(numbers), key=order)
    runs: list[list[str]] = []
    for number in wanted:
        section, dot, last = number.rpartition(".")
        [(value, _)] = order(last)
        if runs and last == str(value) and runs[-1][-1] == f"{section}{dot}{value - 1}":
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [part for run in runs for part in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else run)]
    return f"rule{'s' * (len(wanted) > 1)} {', '.join(parts)}"


def name_sizes(sizes: Iterable[int]) -> str:
    """Name world sizes: "world sizes 1, 2 and 3"."""
    *most, last = map(str, sizes)
    return f"world sizes {', '.join(most)} and {last}" if most else f"world size {last}"


def order(number: str) -> list[tuple[int, str]]:
    """Return a sort key that puts rule 10.1 after rule 9.1, and accepts any other text."""
    # Python refuses to convert thousands of digits.
    return [
        (int(part) if part.isdecimal() and len(part) < 10 else 0, part)
        for part in number.split(".")
    ]


def place_of(result: Mapping[str, Any]) -> str:
    """Return which result it is: "rule 2.1 at world size 2"."""
    return f"{name_rules([result['id']])} at {name_sizes([result['world_size']])}"


def first_of(told: dict[object, str], result: Mapping[str, Any]) -> str:
    """Return the place of the failure that was told first of this one's mistake; it may be this.

    A mistake is a likely cause, or a rule that fails in one way where no cause was seen.

    Args:
        told: What was told of the backend, which is noted there.
        result: The result of a rule that failed; older files name neither cause nor way.
    """
    way = result["id"], result.get("failure", "")
    first = told.setdefault(result.get("cause") or way, place_of(result))
    told.setdefault(way, first)
    return first


def mistakes(results: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """Return the results of one check that failed, those of one mistake together.

    Those whose cause was seen come before those without, which may belong to one of them; of one
    mistake the smallest example comes first.
    """
    failed = [result for result in results if result["outcome"] == "failed"]
    failed.sort(key=lambda one: (not one.get("cause"), order(one["id"]), one["world_size"]))
    told: dict[object, str] = {}
    groups: dict[str, list[Any]] = {}
    for result in failed:
        groups.setdefault(first_of(told, result), []).append(result)
    for some in groups.values():
        some.sort(key=lambda one: (not one.get("cause"), len(one["counterexample"]) or math.inf))
    return list(groups.values())


def findings_of(
    results: Iterable[Mapping[str, Any]], told: Callable[[Any], Finding] | None = None
) -> list[Finding]:
    """Return the failures of one check as findings, one for each mistake.

    Args:
        results: All results.
        told: Returns one failure as a finding; None stands for `finding_of`.
    """
    found = []
    for some in mistakes(results):
        first, *others = map(told or finding_of, some)
        found.append(replace(first, also=others, others=_where_of(some[1:])))
    return found


def finding_of(result: Mapping[str, Any]) -> Finding:
    """Return a result that failed as a finding; older files name no cause."""
    return Finding(
        f"breaks rule {result['id']}, {result['name']}",
        f"W={result['world_size']}",
        result["sentence"],
        result["counterexample"],
        result["message"],
        str(result.get("cause", "")),
        str(result.get("usually", "")),
        result.get("evidence", ()),
        result["replay"],
    )


class Reason(NamedTuple):
    """The reason why a backend was not judged by some rules, or not by all that they try.

    Attributes:
        outcome: ``unsupported`` or ``error``; ``passed`` where a part was left out.
        text: The reason, and the command that tries the rule again.
        where: The rules with their world sizes.
    """

    outcome: str
    text: str
    where: str


def _where_of(results: Iterable[Mapping[str, Any]]) -> str:
    rules: dict[str, set[int]] = {}
    for result in results:
        rules.setdefault(result["id"], set()).add(result["world_size"])
    return _where(rules)


def reasons_of(results: Iterable[Mapping[str, Any]]) -> list[Reason]:
    """Return the reasons why a backend was not judged by some rules, each reason once."""
    untold: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for result in results:
        if result["outcome"] != "failed" and result["message"]:
            again = f"; again: {result['replay']}" if result["replay"] else ""
            untold.setdefault((result["outcome"], result["message"] + again), []).append(result)
    return [Reason(*reason, _where_of(some)) for reason, some in untold.items()]
