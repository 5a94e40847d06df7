"""Sequences of collectives, as a state machine against a list: what was sent, in order."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from disteval.conformance import on_ranks
from disteval.conformance.fingerprint import describe, see
from disteval.conformance.objects import one_each
from disteval.conformance.rules import Bench, BrokenRuleError

LATE_SECONDS = 0.02
_SLIGHTLY_LATE_SECONDS = 0.002


class Sequence:
    """What the ranks are to do next, what they did, and the list of what must have come of it.

    Args:
        bench: Whose ranks; they forget the sequence before this one.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._told: list[str] = []
        self._model: list[Any] = []
        self._pending: list[list[on_ranks.Step]] = [[] for _ in range(bench.world_size)]
        bench.run(on_ranks.forget)

    def gather(self, sent: list[Any], late: int | None = None, delay: float = LATE_SECONDS) -> None:
        """Let every rank gather; entry r of ``sent`` is rank r's object."""
        self._told.append(f"gather {listed(sent)}{_lateness(late)}")
        self._model.append([see(obj) for obj in sent])
        self._add("gather", sent, 0, late, delay)

    def broadcast(
        self, sent: list[Any], src: int, late: int | None = None, delay: float = LATE_SECONDS
    ) -> None:
        """Let every rank broadcast from ``src``; entry r of ``sent`` is what rank r passes."""
        self._told.append(f"broadcast {listed(sent)} from {src}{_lateness(late)}")
        self._model.append(see(sent[src]))
        self._add("broadcast", sent, src, late, delay)

    def _add(self, kind: str, sent: list[Any], src: int, late: int | None, delay: float) -> None:
        for rank, steps in enumerate(self._pending):
            steps.append((kind, sent[rank], src, delay if rank == late else 0.0))

    def carry_out(self) -> None:
        """Have the ranks do what is pending, and hold all results so far against the list.

        Raises:
            BrokenRuleError: Some result is not what it should be.
        """
        tasks, self._pending = self._pending, [[] for _ in self._pending]
        expected = [self._model] * self._bench.world_size
        self._bench.expect(on_ranks.sequence, tasks, expected, "; ".join(self._told))


def check_interleavings(bench: Bench) -> None:
    """Draw sequences, and find the shortest that goes wrong.

    Raises:
        BrokenRuleError: Of that one.
    """
    world = bench.world_size
    each = one_each(world)
    ranks = st.integers(0, world - 1)
    failures: list[BrokenRuleError] = []

    class Interleaving(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.sequence = Sequence(bench)
            self.failed = False

        @rule(sent=each, late=st.none() | ranks)
        def gather(self, sent: list[Any], late: int | None) -> None:
            self.sequence.gather(sent, late, _SLIGHTLY_LATE_SECONDS)

        @rule(sent=each, src=ranks, late=st.none() | ranks)
        def broadcast(self, sent: list[Any], src: int, late: int | None) -> None:
            self.sequence.broadcast(sent, src, late, _SLIGHTLY_LATE_SECONDS)

        @rule()
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

    bench.play(Interleaving, failures)


def listed(sent: list[Any]) -> str:
    """What each rank sends, for people."""
    return "[" + ", ".join(describe(obj) for obj in sent) + "]"


def _lateness(late: int | None) -> str:
    return "" if late is None else f" (rank {late} late)"
