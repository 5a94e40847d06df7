"""A report has a result for every rule, whatever the backend does."""

import errno
import os
import re
import socket
from typing import Any, ClassVar

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval import RankError
from disteval.conformance.check import check_backend, select_rules
from disteval.conformance.rule import Rule
from disteval.contract import Rendezvous
from disteval.errors import LibraryMissingError, WorldError
from disteval_backends.threads_dist import ThreadsDist

from suites.mutants.broken.groups import MeetsAtOnePlace
from suites.mutants.sockets import Sockets


class SlowToJoin(Sockets):
    """A backend that needs longer to join than the time in which it must notice lost ranks."""

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        if rendezvous.timeout < 60:
            raise TimeoutError(f"{rendezvous.timeout:g} s are too few")
        super().init_process(rank, world_size, rendezvous)


class Lenient(Sockets):
    """A backend that returns None instead of an object over the cap."""

    def all_gather_object(self, obj: Any) -> list[Any]:
        try:
            return super().all_gather_object(obj)
        except RankError as error:
            if error.rank == self.rank:
                raise
            return [b""] * self.world_size


def test_the_cap_that_a_rule_sets_does_not_outlive_it() -> None:
    # Rule 8.1 sends more than the cap of rule 6.3, over the same ranks.
    report = check_backend(Lenient, (2,), rules=select_rules(["6.3", "8.1"]), examples=2)
    assert [result.outcome for result in report.rules] == ["failed", "passed"]


class CannotReadLists(ThreadsDist):
    """A backend whose rank 1 raises alone, so that the other ranks go on to their next example."""

    def all_gather_object(self, obj: Any) -> list[Any]:
        gathered = super().all_gather_object(obj)
        if self.rank == 1 and any(type(item) is list for item in gathered):
            raise LookupError("what is a list?")
        return gathered


def test_the_smallest_example_is_found_also_after_an_order_of_many_that_lost_the_world() -> None:
    report = check_backend(CannotReadLists, (2,), rules=select_rules(["2.1"]), timeout=10)
    [result] = report.rules
    assert result.outcome == "failed"
    assert "LookupError" in result.message
    # Which rank sends None, and which special list is found, depends on Hypothesis's release.
    smallest = [
        "gather [None, []]",
        "gather [[], None]",
        "gather [None, [[]]]",
        "gather [[[]], None]",
    ]
    assert result.counterexample in smallest


def test_a_rule_that_tries_no_example_is_not_kept() -> None:
    rule = Rule("1.0", "nothing", "Nothing is tried.", lambda bench: None)
    [result] = check_backend("threads", (1,), rules=[rule]).rules
    assert result.outcome == "error"


class Forgetful(ThreadsDist):
    """A backend that returns an object that nobody sent at its 30th call, and never again."""

    calls = 0

    def all_gather_object(self, obj: Any) -> list[Any]:
        self.calls += 1
        gathered = super().all_gather_object(obj)
        return ["not sent"] * len(gathered) if self.calls == 30 else gathered


def test_an_example_that_fails_only_once_is_reported_as_it_was_seen() -> None:
    report = check_backend(Forgetful, (1,), rules=select_rules(["2.1"]))
    [result] = report.rules
    assert result.outcome == "failed"
    assert "['not sent']" in result.message
    assert 30 <= result.examples <= 250


def test_a_world_to_be_lost_that_cannot_start_costs_no_other_rule_its_verdict() -> None:
    report = check_backend(SlowToJoin, (2,), rules=select_rules(["1.1", "7.1", "8.1"]), examples=2)
    assert [result.outcome for result in report.rules] == ["passed", "error", "passed"]
    assert "3 s are too few" in report.rules[1].message
    assert report.verdict == "incomplete"


class FewPlaces(ThreadsDist):
    """A backend that has places for four ranks."""

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        if world_size > 4:
            raise LibraryMissingError("there are 4 GPUs")
        super().init_process(rank, world_size, rendezvous)


def test_a_check_says_what_it_left_out_where_there_is_no_room_for_many_ranks() -> None:
    report = check_backend(FewPlaces, (2, 3), rules=select_rules(["2.1"]), examples=2)
    assert re.search("16 ranks: .*4 GPUs", report.rules[0].message)
    assert re.search("passes .* at world sizes 2 and 3; .*in part: rule 2.1", report.judged.covers)


class CannotJoinThree(Sockets):
    """Joins groups of one and two."""

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        if world_size == 3:
            raise LookupError("three are too many")
        super().init_process(rank, world_size, rendezvous)


def test_a_world_that_cannot_start_leaves_no_verdict() -> None:
    with pytest.raises(WorldError, match="LookupError"):
        check_backend(CannotJoinThree, (1, 2, 3), rules=select_rules(["1.1", "5.1"]), examples=2)


PORT = "DISTEVAL_TEST_PORT"


class FixedPort(Sockets):
    """A backend whose rank 0 listens on the same port in every group, as long as it is in one."""

    launcher = "local"
    _server: ClassVar[socket.socket | None] = None

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        if rank == 0:
            cls._server = socket.create_server(("127.0.0.1", int(os.environ[PORT])))
        super().init_process(rank, world_size, rendezvous)

    @classmethod
    def finalize_process(cls) -> None:
        super().finalize_process()
        if cls._server is not None:
            cls._server.close()


def test_a_fixed_port_is_a_broken_rule_also_where_worlds_of_several_sizes_do_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        monkeypatch.setenv(PORT, str(probe.getsockname()[1]))
    report = check_backend(FixedPort, (1, 2), rules=select_rules(["1.1", "1.4"]))
    found = {(result.id, result.world_size): result for result in report.rules}
    assert [found["1.1", size].outcome for size in (1, 2)] == ["passed"] * 2
    assert [found["1.4", size].outcome for size in (1, 2)] == ["failed"] * 2
    assert os.strerror(errno.EADDRINUSE) in found["1.4", 2].message
    assert "fixed port" in found["1.4", 2].cause


@pytest.mark.parametrize(
    ("backend", "outcome"), [("threads", "passed"), (MeetsAtOnePlace, "failed")]
)
def test_worlds_side_by_side_are_tried_at_the_smallest_of_large_sizes(
    backend: str | type[ThreadsDist], outcome: str
) -> None:
    report = check_backend(backend, (5, 4), rules=select_rules(["1.4"]))
    found = {result.world_size: result.outcome for result in report.rules}
    assert (found[4], found[5]) == (outcome, "unsupported")


def test_no_rule_is_broken_by_the_end_of_a_check() -> None:
    seen = []

    def interrupt(result: Any) -> None:
        seen.append(result.outcome)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_backend(Sockets, (2, 3), rules=select_rules(["5.*", "7.*"]), on_result=interrupt)
    assert set(seen) == {"passed"}
