"""A verdict covers the rules and world sizes that were tried, and never more."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.conformance.runner import check_backend, select_rules
from disteval.report.verdict import judge, name_rules, name_sizes, order
from hypothesis import example, given
from hypothesis import strategies as st

RULES = ["1.1", "1.2", "1.3", "2.1", "2.2", "10.1", "10.2", "10.3", "10.4"]
LEVELS = ["required", "optional", "stochastic"]
OUTCOMES = ["passed", "failed", "unsupported", "error"]
RARELY_WRONG = st.sampled_from(["passed"] * 12 + OUTCOMES)

contracts = st.dictionaries(st.sampled_from(RULES), st.sampled_from(LEVELS), min_size=1)


def result(rule: str, size: int, outcome: str = "passed", examples: int = 1) -> dict[str, Any]:
    return {"id": rule, "world_size": size, "outcome": outcome, "examples": examples}


@st.composite
def checks(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Draw a contract, and the results of a check that may have left out anything."""
    contract = draw(contracts)
    sizes = draw(st.sets(st.sampled_from([1, 2, 3, 5]), min_size=1))
    outcomes = draw(st.sampled_from([RARELY_WRONG, st.sampled_from(OUTCOMES), st.just("passed")]))
    asked = draw(st.sampled_from([st.just(True), st.sampled_from([True] * 8 + [False])]))
    examples = st.sampled_from([1, 1, 1, 7, 0])
    results = [
        result(rule, size, draw(outcomes), draw(examples))
        for rule in contract
        for size in sizes
        if draw(asked)
    ]
    return results, contract


def pairs(text: str, numbers: dict[str, str]) -> set[tuple[str, int]]:
    """Return the rules with their world sizes that a part of a sentence names."""
    found = set()
    for rules, sizes in re.findall(
        r"rules? ([\d., -]+?)(?: \(of \d+\))? at world sizes? ([\d, and]+)", text
    ):
        for part in rules.split(", "):
            first, _, last = part.partition("-")
            between = range(RULES.index(first), RULES.index(last or first) + 1)
            found |= {(RULES[i], int(size)) for i in between for size in re.findall(r"\d+", sizes)}
    assert {rule for rule, _ in found} <= numbers.keys()
    return found


def with_outcome(results: list[dict[str, Any]], outcome: str) -> set[tuple[str, int]]:
    return {
        (r["id"], r["world_size"])
        for r in results
        if r["outcome"] == outcome and (r["examples"] or outcome != "passed")
    }


@given(checks(), st.sampled_from(["", "it is one process"]))
@example(([], {"1.1": "required"}), "")
def test_a_sentence_names_what_was_tried_and_nothing_else(
    check: tuple[list[dict[str, Any]], dict[str, str]], single_rank: str
) -> None:
    results, contract = check
    verdict = judge(results, contract, single_rank)
    passed, failed, error = (with_outcome(results, o) for o in ("passed", "failed", "error"))
    if failed:
        assert verdict.word == "broken"
        assert verdict.exit_code == 1
        assert pairs(verdict.covers.removeprefix("is broken: it breaks "), contract) == failed
        return
    assert verdict.exit_code == (2 if error or not passed else 0)
    whole = [size for size in (1, 2, 3, 5) if holds(size, results, contract)]
    alone = bool(single_rank) and whole == [1]
    required = {rule for rule, level in contract.items() if level != "optional"}
    held = {rule for rule, size in passed if size in whole}
    enough = alone or (len(whole) > 1 and required <= held)
    assert (verdict.word == "conformant") == (enough and not error)
    if verdict.word == "conformant":
        assert f" hold at {name_sizes(whole)}" in verdict.covers
        assert (", the only one that" in verdict.covers) == (len(whole) == 1)
        return
    assert verdict.word == "incomplete"
    assert "conformant" not in verdict.covers + verdict.short
    claim, _, rest = verdict.covers.partition("; not judged: ")
    if passed:
        assert pairs(claim.removeprefix("passes "), contract) == passed
        assert pairs(rest, contract) == error
    elif error:
        assert pairs(claim.removeprefix("could not be judged by "), contract) == error
    else:
        excused = with_outcome(results, "unsupported")
        why = ": no rule that was asked for applies" if excused else ""
        assert verdict.covers == f"was not tried{why}"
        assert verdict.short == "not tried"


def holds(size: int, results: list[dict[str, Any]], contract: dict[str, str]) -> bool:
    """Return whether every required rule was judged at a world size, and one does apply there."""
    passed, excused = with_outcome(results, "passed"), with_outcome(results, "unsupported")
    required = {(rule, size) for rule, level in contract.items() if level != "optional"}
    return required <= passed | excused and bool(required & passed)


@given(checks())
def test_one_result_more_that_is_bad_never_makes_a_verdict_better(
    check: tuple[list[dict[str, Any]], dict[str, str]],
) -> None:
    results, contract = check
    worse = [*results, result("1.1", 2, "error")]
    assert judge(worse, contract).word != "conformant"
    assert judge([*results, result("1.1", 2, "failed")], contract).word == "broken"
    assert judge(results, {}).word != "conformant"  # the contract is not known


@given(st.sets(st.sampled_from(RULES), min_size=1))
def test_a_range_has_every_rule_from_its_first_to_its_last(rules: set[str]) -> None:
    named = name_rules(rules)
    assert {
        rule for rule, _ in pairs(f"{named} at world size 1", dict.fromkeys(RULES, ""))
    } == rules
    assert named.startswith("rules " if len(rules) > 1 else "rule ")


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        (["1.1"], "rule 1.1"),
        (["1.2", "1.1"], "rules 1.1, 1.2"),
        (["1.1", "1.2", "1.3", "2.1"], "rules 1.1-1.3, 2.1"),
        (["1.1", "1.3", "1.4", "1.5"], "rules 1.1, 1.3-1.5"),
        (["9.9", "9.10", "9.11", "10.1"], "rules 9.9-9.11, 10.1"),
        (["1.8", "1.9", "2.10"], "rules 1.8, 1.9, 2.10"),
        (["1.01", "1.1", "1.2"], "rules 1.01, 1.1, 1.2"),
        (["x", "<b>", "", "1." + "9" * 5000, "²"], None),
    ],
)
def test_names_of_rules(rules: list[str], named: str | None) -> None:
    assert name_rules(rules) == (named or f"rules {', '.join(sorted(rules, key=order))}")


def test_the_sentences() -> None:
    contract = dict.fromkeys(["1.1", "1.2", "1.3"], "required") | {"7.1": "optional"}
    said = {
        "passes rules 1.1-1.3 (of 4) at world size 2": [
            result(r, 2) for r in ("1.1", "1.2", "1.3")
        ],
        "is conformant: all 3 required rules hold at world sizes 1, 2 and 5": [
            result(r, size) for r in contract for size in (1, 2, 5)
        ],
        "is conformant: all 3 required rules hold at world sizes 1 and 2; not held against it: "
        "rule 7.1": [
            result(r, size, "unsupported" if r in ("7.1", "9.1") else "passed")
            for r in (*contract, "9.1")
            for size in (1, 2)
        ],
        # A required rule that no world size of a check can try was not judged.
        "passes rules 1.1, 1.2, 7.1 (of 4) at world sizes 4 and 5": [
            result(r, size, "unsupported" if r == "1.3" else "passed")
            for r in contract
            for size in (4, 5)
        ],
        "passes rule 1.1 (of 4) at world size 2; not judged: rule 1.2 at world size 2": [
            result("1.1", 2), result("1.2", 2, "error"),
        ],
        "passes rules 1.1, 1.2 (of 4) at world sizes 2 and 3, and rule 7.1 at world size 3": [
            *(result(r, size) for r in ("1.1", "1.2") for size in (2, 3)), result("7.1", 3),
        ],
        "could not be judged by rule 1.2 (of 4) at world size 2": [result("1.2", 2, "error")],
        "is broken: it breaks rule 1.2 (of 4) at world sizes 2 and 3": [
            result("1.1", 2), result("1.2", 2, "failed"), result("1.2", 3, "failed"),
        ],
        "was not tried: no rule that was asked for applies": [result("1.2", 2, "unsupported")],
    }  # fmt: skip
    assert {judge(results, contract).covers: results for results in said.values()} == said


def test_what_a_check_left_out_is_said() -> None:
    contract = dict.fromkeys(["1.1", "1.2", "1.3"], "required") | {"7.1": "optional"}
    results = [result("1.1", 4), result("1.1", 5), result("1.2", 4, "unsupported")]
    assert judge(results, contract).left_out == "rules 1.2, 1.3"
    assert judge(results[:1], contract).left_out == "rules 1.2, 1.3 and another world size"
    whole = [result(rule, size) for rule in contract for size in (1, 2)]
    assert judge(whole, contract).left_out == ""


def test_a_class_that_is_one_rank_is_judged_alone_and_the_sentence_says_so() -> None:
    report = check_backend("non_dist", (1, 2), examples=2)
    assert report.verdict == "conformant"
    assert " hold at world size 1, the only one that it declares to have; not held" in report.covers
    assert report.judged.short == "conformant at world size 1"
    several = check_backend("threads", (1,), examples=2, rules=select_rules(["1.1", "1.2", "1.3"]))
    # Those of rule 9 are for subclasses of a template.
    of = sum(not rule.number.startswith("9.") for rule in select_rules())
    assert several.covers == f"passes rules 1.1-1.3 (of {of}) at world size 1"
    assert "another world size" in several.judged.left_out
