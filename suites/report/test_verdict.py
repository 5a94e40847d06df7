"""A verdict covers the rules and world sizes that were tried, and never more."""

import re
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.conformance.check import check_backend, select_rules
from hypothesis import example, given
from hypothesis import strategies as st

from suites.helpers.reports import judge

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
        assert (verdict.word, verdict.exit_code) == ("broken", 1)
        assert pairs(verdict.covers, contract) == failed
        return
    assert verdict.exit_code == (2 if error or not passed else 0)
    whole = [size for size in (1, 2, 3, 5) if holds(size, results, contract)]
    alone = bool(single_rank) and whole == [1]
    required = {rule for rule, level in contract.items() if level != "optional"}
    held = {rule for rule, size in passed if size in whole}
    enough = alone or (len(whole) > 1 and required <= held)
    assert (verdict.word == "conformant") == (enough and not error)
    if verdict.word == "conformant":
        _, sizes = verdict.covers.partition(";")[0].split(" hold at ")
        assert [int(size) for size in re.findall(r"\d+", sizes)] == whole
        assert ("the only one" in sizes) == (len(whole) == 1)
        return
    assert verdict.word == "incomplete"
    assert "conformant" not in verdict.covers + verdict.short
    claim, _, rest = verdict.covers.partition("; not judged: ")
    if passed:
        assert pairs(claim, contract) == passed
        assert pairs(rest, contract) == error
    elif error:
        assert pairs(claim, contract) == error
    else:
        assert pairs(verdict.covers, contract) == set()
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


def test_what_a_check_left_out_is_said() -> None:
    contract = dict.fromkeys(["1.1", "1.2", "1.3"], "required") | {"7.1": "optional"}
    results = [result("1.1", 4), result("1.1", 5), result("1.2", 4, "unsupported")]
    for tried, sizes in ((results, 2), (results[:1], 1)):
        left_out = judge(tried, contract).left_out
        assert re.findall(r"\d\.\d", left_out) == ["1.2", "1.3"]
        assert ("another" in left_out) == (sizes < 2)
    whole = [result(rule, size) for rule in contract for size in (1, 2)]
    assert judge(whole, contract).left_out == ""


def test_a_class_that_is_one_rank_is_judged_alone_and_the_sentence_says_so() -> None:
    report = check_backend("non_dist", (1, 2), examples=2)
    assert report.verdict == "conformant"
    assert "size 1, the only" in report.judged.covers and "size 1" in report.judged.short
    several = check_backend("threads", (1,), examples=2, rules=select_rules(["1.1", "1.2", "1.3"]))
    # Those of rule 9 are for subclasses of a template.
    of = sum(not rule.number.startswith("9.") for rule in select_rules())
    assert re.search(rf"1\.1-1\.3 \(of {of}\) .* 1$", several.judged.covers)
    assert several.verdict == "incomplete"


def test_rules_are_named_in_the_order_of_their_numbers() -> None:
    numbers = ["10.1", "9.10", "9.9", "1.1", "<b>", "9.11"]
    covers = judge([result(rule, 2) for rule in numbers], dict.fromkeys(numbers, "required")).covers
    assert re.findall(r"<b>|\d+\.\d+", covers) == ["<b>", "1.1", "9.9", "9.11", "10.1"]
