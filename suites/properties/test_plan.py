"""The plan of `evaluate` is right for every number of samples N, of ranks W and batch size B.

Not for those that were tried: the code of the plan runs on numbers of which nothing is known but
that N is not below 0, and W and B not below 1; see `suites.helpers.whole_numbers`. N samples are
cut into batches, and batches are dealt to ranks in turns. That all batches and all turns are right
follows by induction, of which a test shows the step and the beginning. Proved are batches of
consecutive samples, and how batches of any kind are dealt; not how `by_length` makes batches.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from disteval.data import plan
from disteval.data.plan import Plan, batches_of, dealt, ends_of

from suites.helpers.whole_numbers import Facts, Whole, for_all


def test_batches_follow_one_another_and_only_the_last_may_be_smaller() -> None:
    """Batch 0 begins at sample 0, each one begins where the one before ends, the last ends at N.

    So by induction over the batches each sample is in one batch, and they are in order.
    """

    def check(facts: Facts) -> None:
        size, most = facts.number("N", 0), facts.number("B", 1)
        count = batches_of(size, most)
        assert (count - 1) * most < size <= count * most  # one batch less would not hold all
        if not size:
            return
        assert ends_of(0, most, size)[0] == 0
        begin, end = ends_of(count - 1, most, size)
        assert end == size
        assert 1 <= end - begin <= most
        batch = facts.number("batch", 0, count - 2)  # any one but the last
        facts.know((count - 2) * most - batch * most)  # so it is, multiplied by B
        begin, end = ends_of(batch, most, size)
        assert end == begin + most == ends_of(batch + 1, most, size)[0]

    for_all(check)


def in_turn(turn: Whole, *args: Any, **kwargs: Any) -> tuple[list[tuple[Any, bool]], bool]:
    """Return what a rank gets in one turn, and whether its plan ends there."""
    is_over = False

    def turns() -> Iterator[Whole]:
        nonlocal is_over
        yield turn
        is_over = True  # the code asks for the next turn

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plan, "count", turns)  # which yields 0, 1, 2, …
        found = [*dealt(*args, **kwargs)]
    return found, not is_over


@pytest.mark.parametrize(("even", "by_cost"), [*product([False, True], repeat=2)])
def test_each_turn_deals_the_next_batches_each_to_one_rank(even: bool, by_cost: bool) -> None:
    """Turn t deals the batches from t * W up to (t + 1) * W, as far as there are so many.

    Turn 0 begins at batch 0, and each turn where the one before ends; all ranks stop in the turn
    that finds none left. So by induction over the turns each batch is dealt to one rank, and each
    rank gets its batches in order. In a turn a rank gets one batch, but for the last turn, where
    it may get none; with ``even`` it then repeats the last batch, which does not count. So ranks
    have equally many, or without ``even`` one less at most.
    """
    carried = {"units", "world_size", "rank", "even", "by_cost"}
    # No turn leaves the next one more than these: the others are set anew in each.
    assert {*dealt.__code__.co_varnames} == carried | {"turn", "place", "unit"}

    def check(facts: Facts) -> None:
        count, world = facts.number("batches", 0), facts.number("W", 1)
        rank = facts.number("rank", 0, world - 1)
        turn = facts.number("turn", 0)
        first = turn * world
        facts.know(first)  # neither factor is below 0
        found, ends = in_turn(turn, count, world, rank, even=even, by_cost=by_cost)
        if first >= count:
            assert ends and not found
            return
        assert not ends
        assert len(found) <= 1
        assert found or not (even or first + world <= count)
        for batch, counts in found:
            assert first <= batch < first + world
            assert batch < count
            assert counts or (even and batch == count - 1)
        other = facts.number("other rank", rank + 1, world - 1)
        others, _ = in_turn(turn, count, world, other, even=even, by_cost=by_cost)
        mine, theirs = ([batch for batch, counts in each if counts] for each in (found, others))
        assert not any(one == another for one in mine for another in theirs)

    for_all(check)

    def check_that_none_is_left_out(facts: Facts) -> None:
        count, world = facts.number("batches", 0), facts.number("W", 1)
        turn, place = facts.number("turn", 0), facts.number("place", 0, world - 1)
        batch = turn * world + place  # any batch: t and place are its quotient and rest by W
        if batch >= count:
            return
        rank = world - 1 - place if by_cost and turn % 2 else place
        assert in_turn(turn, count, world, rank, even=even, by_cost=by_cost)[0] == [(batch, True)]

    for_all(check_that_none_is_left_out)


def test_the_plan_is_made_of_what_is_proved() -> None:
    """Its batches are those of the proofs, at sizes and batch sizes on both sides of each other."""
    for size, most in product(range(30), range(1, 9)):
        made = Plan(size, most)
        units = [made.unit(batch).indices.tolist() for batch in range(len(made))]
        assert len(made) == batches_of(size, most)
        assert units == [[*range(*ends_of(batch, most, size))] for batch in range(len(made))]


def test_a_proof_finds_the_one_case_in_which_a_claim_is_wrong() -> None:
    def check(facts: Facts) -> None:
        one, other = facts.number("x", 0), facts.number("y", 0, 7)
        assert one + other != 1000 or one >= 994

    with pytest.raises(AssertionError):
        for_all(check)
