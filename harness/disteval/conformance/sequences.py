"""The checks of rule 5: many collectives in a row give the results that the checks expect."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from hypothesis.stateful import rule as step

from disteval.conformance import on_ranks
from disteval.conformance.drawing import one_each, play
from disteval.conformance.fingerprint import describe, see
from disteval.conformance.rules import Bench, BrokenRuleError, rule

LATE_SECONDS = (0.01, 0.1, 1.0)
"""The seconds by which ranks are late at a collective in rule 5.2."""

_SLIGHTLY_LATE_SECONDS = 0.002
_WARM_UP_CALLS = 20
_CALLS = 100
# The caches of an interpreter may grow by so many bytes over a few hundred calls.
_SPARE_BYTES = 8 << 20


@rule("5.1", "sequences")
def check_sequences(bench: Bench) -> None:
    """Any interleaving of collectives, objects and sources keeps its pairing and its results."""
    world = bench.world_size
    each = one_each(world)
    ranks = st.integers(0, world - 1)
    failures: list[BrokenRuleError] = []

    class Interleaving(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.sequence = Sequence(bench)
            self.failed = False

        @step(sent=each, late=st.none() | ranks)
        def gather(self, sent: list[Any], late: int | None) -> None:
            self.sequence.gather(sent, _only(late), _SLIGHTLY_LATE_SECONDS)

        @step(sent=each, src=ranks, late=st.none() | ranks)
        def broadcast(self, sent: list[Any], src: int, late: int | None) -> None:
            self.sequence.broadcast(sent, src, _only(late), _SLIGHTLY_LATE_SECONDS)

        @step()
        def carry_out(self) -> None:
            try:
                self.sequence.carry_out()
            except BrokenRuleError as error:
                failures.append(error)
                self.failed = True
                raise

        def teardown(self) -> None:
            if not self.failed:
                self.carry_out()

    play(bench, Interleaving, failures)


@rule("5.2", "late ranks")
def check_late_ranks(bench: Bench) -> None:
    """Ranks that arrive 10 ms, 100 ms or 1 s late at a collective change no result."""
    world = bench.world_size
    last = world - 1
    sent = [("late", rank) for rank in range(world)]
    for seconds in LATE_SECONDS if last else LATE_SECONDS[:1]:  # one rank waits for no other
        # Every rank is late at one of two all-gathers. Of the broadcasts, the source comes late to
        # one and everybody else comes late to the other.
        odd, even = range(1, world, 2), range(0, world, 2)
        for late, src in ((odd, None), (even, None), ((last,), last), (range(1, world), 0)):
            sequence = Sequence(bench)
            if src is None:
                sequence.gather(sent, late, seconds)
            else:
                sequence.broadcast(sent, src, late, seconds)
            sequence.gather(sent)
            sequence.carry_out(seconds)


@rule("5.3", "no leaks", tries=3, process_wide=True)
def check_leaks(bench: Bench) -> None:
    """Hundreds of calls leave no file descriptor, no thread and no memory behind."""
    before = bench.run(on_ranks.resources, [_WARM_UP_CALLS] * bench.world_size)
    after = bench.run(on_ranks.resources, [_CALLS] * bench.world_size)
    for rank, (was, now) in enumerate(zip(before, after, strict=True)):
        # A library's own threads may add a few, but no call may leave one behind.
        if now[0] > was[0] + 5 or now[1] > was[1] + 5 or now[2] > was[2] + _SPARE_BYTES:
            raise BrokenRuleError(
                f"rank {rank} went from {was} to {now} (file descriptors, threads, bytes) "
                f"over {2 * _CALLS} collectives"
            )


@rule("5.4", "several objects")
def check_several_objects(bench: Bench) -> None:
    """Collectives of several objects of one backend class keep their pairing and their results."""
    world = bench.world_size
    for src in range(world):
        expected: list[Any] = []
        for turn in range(4):
            objects = range(2 if turn < 2 else 3)
            expected += [[(turn, index, rank) for rank in range(world)] for index in objects]
            expected += [(turn, index, src) for index in objects]
        seen = [see(result) for result in expected]
        everywhere = [[*seen, see([(rank, world)] * 3)] for rank in range(world)]
        example = (
            f"each rank creates three backend objects; all gather, then all broadcast from {src}"
        )
        bench.expect(on_ranks.use_several_objects, [src] * world, everywhere, example)


class Sequence:
    """The collectives that ranks call next, and the results that all of them must return.

    Args:
        bench: The ranks, which delete the results of an earlier sequence when this one begins.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._described: list[str] = []
        self._expected: list[Any] = []
        self._pending: list[list[on_ranks.Step]] = [[] for _ in range(bench.world_size)]
        self._begins = True

    def gather(self, sent: list[Any], late: Collection[int] = (), delay: float = 0.0) -> None:
        """Add an all-gather; entry r of ``sent`` is rank r's object."""
        self._described.append(f"gather {listed(sent)}{_lateness(late, delay)}")
        self._expected.append([see(obj) for obj in sent])
        self._add("gather", sent, 0, late, delay)

    def broadcast(
        self, sent: list[Any], src: int, late: Collection[int] = (), delay: float = 0.0
    ) -> None:
        """Add a broadcast from ``src``; entry r of ``sent`` is the argument of rank r."""
        self._described.append(f"broadcast {listed(sent)} from {src}{_lateness(late, delay)}")
        self._expected.append(see(sent[src]))
        self._add("broadcast", sent, src, late, delay)

    def _add(
        self, kind: str, sent: list[Any], src: int, late: Collection[int], delay: float
    ) -> None:
        for rank, steps in enumerate(self._pending):
            steps.append((kind, sent[rank], src, delay if rank in late else 0.0))

    def carry_out(self, delay: float = 0.0) -> None:
        """Let the ranks call the added collectives, and compare all results so far.

        Args:
            delay: The seconds that the ranks may take in addition to the timeout of an example.

        Raises:
            BrokenRuleError: A result differs.
        """
        if not self._pending[0]:
            return
        tasks = [(self._begins, steps) for steps in self._pending]
        self._begins, self._pending = False, [[] for _ in self._pending]
        expected = [self._expected] * self._bench.world_size
        example = "; ".join(self._described)
        self._bench.expect(on_ranks.sequence, tasks, expected, example, delay)


def listed(sent: list[Any]) -> str:
    """Describe for people what each rank sends."""
    return "[" + ", ".join(describe(obj) for obj in sent) + "]"


def _only(late: int | None) -> tuple[int, ...]:
    return () if late is None else (late,)


def _lateness(late: Collection[int], delay: float) -> str:
    if not late:
        return ""
    ranks = ", ".join(map(str, late))
    return f" (rank{'s' * (len(late) > 1)} {ranks} late by {delay:g} s)"
