"""Functions that draw examples and find the smallest one that fails.

Only the leader imports this module: ranks need no Hypothesis.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from disteval.conformance.bench import Bench
from disteval.conformance.objects import ARRAYS, SPECIAL
from disteval.conformance.rule import BrokenRuleError, LostWorld, Trial
from disteval.contract import BaseDistBackend

T = TypeVar("T")

# Of one to four bytes in UTF-8, at the ends of each length, and those that text is cut or joined
# at. Hypothesis would take two seconds to list all characters, in each new working directory.
_CHARACTERS = st.sampled_from(
    "0aZ \0\n\r\"'\\\x7f\x80\u00e9\u07ff\u0800\u0301\u200d\u202e\u6f22\ud7ff\ue000\ufeff\uffff"
    "\U00010000\U0001f600\U0010ffff"
)

_leaves = (
    st.sampled_from(SPECIAL)
    | st.sampled_from(ARRAYS)
    | st.integers()
    | st.floats()
    | st.text(_CHARACTERS, max_size=20)
    | st.binary(max_size=300)
)


# st.recursive would take twice the time, for it draws the number of leaves, too.
OBJECTS: st.SearchStrategy[Any] = st.deferred(
    lambda: (
        _leaves
        | st.lists(OBJECTS, max_size=4)
        | st.tuples(OBJECTS, OBJECTS)
        | st.dictionaries(st.text(_CHARACTERS, max_size=5), OBJECTS, max_size=4)
    )
)
"""Objects of every kind, and containers of them."""

MOST_RANKS = 5
"""Objects are drawn for so many ranks; more ranks send the same again."""

ONE_EACH = st.lists(OBJECTS, min_size=MOST_RANKS, max_size=MOST_RANKS)
"""Objects of any kind for as many ranks as there are by default."""

BROADCASTS = st.tuples(OBJECTS, OBJECTS, st.integers(0, MOST_RANKS - 1))
"""The object of src, that of the other ranks, and src, of which the world size is the modulus."""

_NOBODY_OR_RANK = st.sampled_from([*[None] * MOST_RANKS, *range(MOST_RANKS)])
STEPS = st.lists(
    st.tuples(st.lists(OBJECTS, min_size=1, max_size=2), _NOBODY_OR_RANK, _NOBODY_OR_RANK),
    min_size=2,
    max_size=8,
)
"""Collectives: objects, one for each rank, the source of a broadcast, and who is late."""

DATA_SETS = st.tuples(
    st.integers(0, 40), st.sampled_from(["strided", "contiguous"]), st.booleans(), st.integers(1, 9)
)
"""The size, the way of sharding, whether shards are padded, and the batch size."""

_LONG = (STEPS, DATA_SETS)
"""Examples of many collectives; half as many are drawn, for they take most of the time."""

DEPENDS = "when it was repeated"
"""In what is said of an example that failed, and passed when it was tried again."""

_REPEATS = 40

_one_at_a_time = threading.Lock()
_MOST_DRAWN = 8
_drawn: dict[tuple[st.SearchStrategy[Any], int, int], list[Any]] = {}


def each(
    bench: Bench,
    function: Callable[[BaseDistBackend, Any], list[Any]],
    strategy: st.SearchStrategy[T],
    trial: Callable[[T, int], Trial],
) -> None:
    """Run a function on every rank for drawn examples; if one fails, find the smallest that does.

    Args:
        bench: The ranks, and how many examples to draw.
        function: The function that every rank runs, see `Bench.expect`.
        strategy: The examples, which are the same at every world size.
        trial: Returns the trial of one example at a world size.
    """
    world = bench.world_size
    drawn = bench.share(draw(strategy, bench.examples, bench.random_seed))
    first: BrokenRuleError | LostWorld
    try:
        return bench.expect(function, [trial(example, world) for example in drawn])
    except BrokenRuleError as error:
        first = error
    except LostWorld as error:
        # Ranks that only hang would hang again, for as long.
        if not (error.error.errors and bench.session.can_start):
            raise
        first = error
    failures: list[BrokenRuleError] = []
    failed, tries = 0, 1

    def run(example: T) -> None:
        try:
            bench.expect(function, [trial(example, world)])
        except BrokenRuleError as error:
            failures.append(error)
            raise

    try:
        _call(run, strategy, bench.examples, bench.random_seed)
    except LostWorld as error:
        if failures or not first.doubt:
            error.came_after(failures[0].what if failures else first.what)
        raise
    except Flaky:  # an example failed once and passed once
        first = min(failures, key=lambda failure: len(failure.counterexample))
    except BrokenRuleError as error:  # twice, or by chance
        first, failed = error, 1
    if not first.doubt:
        if first.differences:
            failed, tries = _repeated(bench, function, first.differences[0].trial)
        if tries and not failed:
            first.what += f"\nit depends on the calls before, or on chance: it passed {DEPENDS}"
        elif failed < tries:
            first.what += f"\nit fails at random: {failed} of {tries} times {DEPENDS}"
    raise first


def _repeated(
    bench: Bench, function: Callable[[BaseDistBackend, Any], list[Any]], trial: Trial
) -> tuple[int, int]:
    """Repeat an example that has failed; return how often it fails, and of how many times."""
    failed = 0
    for number in range(_REPEATS):
        try:
            bench.expect(function, [trial])
        except BrokenRuleError:
            failed += 1
        except LostWorld:  # the rest can't be tried
            return failed, number
    return failed, _REPEATS


def draw(strategy: st.SearchStrategy[T], examples: int, random_seed: int) -> list[T]:
    """Return drawn examples, the same for the same arguments; any thread may call it."""
    with _one_at_a_time:  # several world sizes ask for the same
        if (key := (strategy, examples, random_seed)) not in _drawn:
            found: list[T] = []
            _call(found.append, strategy, examples, random_seed)
            if len(_drawn) == _MOST_DRAWN:
                _drawn.clear()
            _drawn[key] = found
        return _drawn[key]


def _call(
    function: Callable[[T], None], strategy: st.SearchStrategy[T], examples: int, random_seed: int
) -> None:
    """Call a function with drawn examples, and with smaller ones once it has raised."""
    long = any(strategy is each for each in _LONG)

    @seed(random_seed)
    @settings(
        max_examples=-(-examples // 2) if long else examples,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        print_blob=False,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(example: T) -> None:
        function(example)

    run()
