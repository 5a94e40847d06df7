"""Functions that draw examples and find the smallest one that fails.

Only the leader imports this module: ranks need no Hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from disteval.conformance.objects import ARRAYS, SPECIAL
from disteval.conformance.rules import Bench, BrokenRuleError

T = TypeVar("T")

_leaves = (
    st.sampled_from(SPECIAL)
    | st.sampled_from(ARRAYS)
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=300)
)


def objects() -> st.SearchStrategy[Any]:
    """Return a strategy of objects of every kind and of containers of them."""
    return st.recursive(
        _leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        ),
        max_leaves=8,
    )


def one_each(world_size: int) -> st.SearchStrategy[list[Any]]:
    """Return a strategy of lists that have one object of any kind for each rank."""
    return st.lists(objects(), min_size=world_size, max_size=world_size)


def each(bench: Bench, strategy: st.SearchStrategy[T], body: Callable[[T], None]) -> None:
    """Call ``body`` on drawn examples, and find the smallest that fails.

    Raises:
        BrokenRuleError: The error of the smallest failing example.
        LostWorld: An example ended in a lost world.
    """
    failures: list[BrokenRuleError] = []

    @seed(bench.random_seed)
    @_settings(bench)
    @given(strategy)
    def run(example: T) -> None:
        try:
            body(example)
        except BrokenRuleError as error:
            failures.append(error)
            raise

    _smallest(run, failures)


def play(
    bench: Bench, machine: type[RuleBasedStateMachine], failures: list[BrokenRuleError]
) -> None:
    """Run a state machine with drawn steps, and find the shortest run that fails.

    Args:
        bench: The world, and how many examples to draw.
        machine: A machine that appends what it raises to ``failures``.
        failures: An empty list.

    Raises:
        BrokenRuleError: The error of the shortest failing run.
        LostWorld: A run ended in a lost world.
    """
    seeded = seed(bench.random_seed)(machine)
    _smallest(lambda: run_state_machine_as_test(seeded, settings=_settings(bench)), failures)


def _settings(bench: Bench) -> settings:
    return settings(
        max_examples=bench.examples,
        stateful_step_count=8,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        print_blob=False,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def _smallest(run: Callable[[], None], failures: list[BrokenRuleError]) -> None:
    try:
        run()
    except Flaky:
        # An example failed once and passed once: the result depends on the calls before, and every
        # example adds calls.
        first = min(failures, key=lambda failure: len(failure.counterexample))
        what = f"{first.what}\nthis example fails only after some other calls"
        raise BrokenRuleError(what, first.counterexample) from None
