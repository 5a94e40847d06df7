"""Mistakes of people who write a backend get their cause named, and each cause is told once."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.conformance.causes import lists, raised, special, state, values
from disteval.conformance.plugin import failure_text, replay
from disteval.conformance.results import Report
from disteval.conformance.runner import check_backend, select_rules
from disteval.conformance.seen import Seen
from disteval.conformance.world import BackendWorlds
from disteval.contract import BaseDistBackend, Rendezvous
from disteval.errors import WorldError
from disteval.report.model import failures, make_columns, make_rows, rules_of
from disteval.worlds.postmortem import RankStatus, report
from disteval_backends.threads_dist import ThreadsDist

from suites.mutants.broken import MUTANTS
from suites.mutants.causes import TRUE_CAUSES
from suites.mutants.sockets import Sockets

NAME = "suites.mutants.test_causes:LeavesItselfOut"


class LeavesItselfOut(ThreadsDist):
    def all_gather_object(self, obj: Any) -> Any:
        gathered = super().all_gather_object(obj)
        return [item for rank, item in enumerate(gathered) if rank != self.rank]


class ReturnsNothingButOnRank0(ThreadsDist):
    def all_gather_object(self, obj: Any) -> Any:
        gathered = super().all_gather_object(obj)
        return gathered if self.rank == 0 else None


class SwapsRankAndSize(ThreadsDist):
    rank = property(lambda self: super().world_size)
    world_size = property(lambda self: super().rank)


class NobodyJoins(ThreadsDist):
    is_initialized, rank, world_size = False, 0, 1  # type: ignore[assignment]


class RankIsText(ThreadsDist):
    rank = property(lambda self: str(super().rank))


class RankIsAnArray(ThreadsDist):
    rank = property(lambda self: np.array([super().rank] * 2))


class ReturnsTuples(ThreadsDist):
    def all_gather_object(self, obj: Any) -> Any:
        return tuple(super().all_gather_object(obj))


class TuplesOverSockets(Sockets):
    def all_gather_object(self, obj: Any) -> Any:
        return tuple(super().all_gather_object(obj))


class EverybodyIsRank0(ThreadsDist):
    rank = 0  # type: ignore[assignment]


class OverJson(ThreadsDist):
    def all_gather_object(self, obj: Any) -> Any:
        return [json.loads(text) for text in super().all_gather_object(json.dumps(obj))]


class CannotLeave(ThreadsDist):
    @classmethod
    def finalize_process(cls) -> None:
        super().finalize_process()
        raise OSError("a file was closed before")


class NotWritten(ThreadsDist):
    def all_gather_object(self, obj: Any) -> Any:
        raise NotImplementedError

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        return self.all_gather_object(obj)[src]


class RaisesWhatCannotBePickled(NotWritten):
    def all_gather_object(self, obj: Any) -> Any:
        error = NotImplementedError()
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error


class OnAFixedPort(ThreadsDist):
    port: ClassVar[int] = 0

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        super().init_process(rank, world_size, rendezvous)
        if rank == 0:
            socket.create_server((rendezvous.host, cls.port)).close()


def check(cls: type[BaseDistBackend], *rules: str) -> Report:
    return check_backend(cls, (2,), rules=select_rules(rules), examples=5, timeout=5.0)


@pytest.mark.parametrize(
    ("backend", "rule", "cause"),
    [
        (LeavesItselfOut, "2.1", lists.OWN_MISSING),
        (ReturnsNothingButOnRank0, "2.1", lists.ONE_RANK),
        (SwapsRankAndSize, "1.1", special.SWAPPED),
        (NobodyJoins, "1.1", special.ALONE),
        (RankIsText, "1.1", special.NOT_AN_INTEGER),
        (RankIsAnArray, "1.1", special.NOT_AN_INTEGER),
        (ReturnsTuples, "3.4", lists.NOT_A_LIST),
        (ReturnsTuples, "6.1", lists.NOT_A_LIST),
        (TuplesOverSockets, "7.5", ""),  # it is wrong without a rank that comes late
        (EverybodyIsRank0, "1.1", special.SAME_RANK),
        (OverJson, "2.2", values.SERIALISER),
        (CannotLeave, "1.5", state.NOT_LEFT),
    ],
)
def test_a_usual_mistake_gets_its_name(
    backend: type[BaseDistBackend], rule: str, cause: str
) -> None:
    [result] = check(backend, rule).rules
    assert (result.outcome, result.cause) == ("failed", cause), result.message


@pytest.mark.parametrize(
    "name",
    [
        "ReversedOrder",
        "OwnObjectTwice",
        "StaleBuffer",
        "SrcIgnored",
        "LastRankDropped",
        "CutAt64K",
        "SrcOffByOne",
        "LastRankGetsNothing",
        "TupleBecomesList",
    ],
)
def test_a_mistake_that_breaks_many_rules_gets_no_other_cause_by_any_of_them(name: str) -> None:
    [mutant] = [cls for cls in MUTANTS if cls.__name__ == name]
    rules = select_rules(["1.2", "2.[123]", "3.[1234]", "4.*", "5.[14]", "6.*", "8.1"])
    found = check_backend(mutant, (2,), rules=rules, examples=5, timeout=5.0)
    broken = {result.id: result.cause for result in found.rules if result.outcome == "failed"}
    assert len(broken) >= 2
    assert set(broken.values()) <= {TRUE_CAUSES.get(name, ""), ""}, broken


def test_a_fixed_port_is_named_where_the_world_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(OnAFixedPort, "port", taken.getsockname()[1])
        with pytest.raises(WorldError) as error, BackendWorlds(OnAFixedPort, 1) as worlds:
            worlds.get()
    assert str(error.value).endswith(f"likely cause: {raised.ADDRESS_IN_USE}")


@pytest.mark.parametrize("backend", [NotWritten, RaisesWhatCannotBePickled])
def test_one_cause_is_told_once_with_the_other_rules_under_it(backend: type[NotWritten]) -> None:
    found = check(backend, "2.1", "2.3", "3.1", "4.1")
    causes = {result.cause for result in found.rules}
    assert len(causes) == 1
    [cause] = causes
    assert cause.startswith("the backend raises NotImplementedError in all_gather_object (test_")
    [failure] = failures(make_rows(make_columns([("a.json", found.to_json())])))
    assert failure.cell.result is not None
    assert failure.cell.result["id"] == "2.1"
    assert rules_of(failure.alike) == "2.3 (W=2), 3.1 (W=2), 4.1 (W=2)"


def test_a_failure_in_pytest_has_its_cause_and_its_replay_and_tells_a_cause_once() -> None:
    options = {"examples": 25, "world_timeout": 5.0}
    config: Any = SimpleNamespace(stash=pytest.Stash(), getoption=options.__getitem__)
    first, second = check(LeavesItselfOut, "2.1", "2.3").rules
    told = [failure_text(config, NAME, each) for each in (first, second, first)]
    assert all(lists.OWN_MISSING in text for text in told)
    assert [("instead of" in text) for text in told] == [True, False, True]
    assert "the same as of rule 2.1 at world size 2" in told[1]
    assert told[1].endswith("\nthe example is shown by the next command")
    assert replay(config, NAME, second) == (
        f"disteval check {NAME} --rules 2.3 --world-size 2 --seed 0 --examples 25 --timeout 5"
    )


def stacks(*functions: str) -> str:
    """Return the report of a world that hangs, whose ranks are in these functions."""
    other = ["another thread (innermost call first):", '  File "/lib/t.py", line 1 in run', ""]
    calls = ['  File "/lib/sockets.py", line 3 in {}', '  File "/mine.py", line 7 in _exchange']
    statuses = []
    for rank, function in enumerate(functions):
        stack = "\n".join([*other, "main thread (innermost call first):", *calls]).format(function)
        statuses.append(RankStatus(rank, stack=stack))
    return report("no progress for 5 s on all ranks; the order was to run compare", statuses)


def reports() -> Iterator[tuple[str, str]]:
    """Return reports of worlds, and what their causes have to begin with."""
    lost = "rank 1 was lost (killed by {}); the order was to run compare"
    yield lost.format("SIGKILL"), "rank 1 was killed by SIGKILL, as the kernel does"
    yield lost.format("SIGSEGV"), "rank 1 crashed in native code (SIGSEGV)"
    yield (
        report(lost.format("SIGABRT"), [RankStatus(1, output="what(): std::bad_alloc")]),
        ("the memory of this machine does not suffice"),
    )
    yield stacks("sendall", "sendall"), "each rank sends before any receives"
    yield stacks("recv", "recv"), "all ranks wait in _exchange (mine.py, line 7), so that none"
    yield stacks("recv"), ""  # where the other rank is cannot be seen
    yield (
        "the order failed on all 2 ranks: struct.error: 'H' format requires 0 <= n <= 9",
        "a length does not fit",
    )
    yield "the order failed on all 2 ranks: struct.error: required argument is not an integer", ""
    # What a rank that lives has written says nothing about the failure.
    late = "no progress for 5 s on rank 1; the order was to run compare"
    yield report(late, [RankStatus(1, output="warning: Connection refused, trying again")]), ""


@pytest.mark.parametrize(("text", "begin"), list(reports()))
def test_the_ends_and_stacks_of_ranks_are_read(text: str, begin: str) -> None:
    seen = Seen(["/mine.py"], 2, text)
    cause = raised.by_words(seen) or raised.at_one_place(seen)
    assert bool(cause) == bool(begin)
    assert cause.startswith(begin)
