"""A report has a result for every rule, whatever the backend does."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval import RankError, frames
from disteval.conformance.runner import check_backend, check_rule, select_rules
from disteval.contract import Rendezvous
from disteval.worlds import World

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


def cap(backend: Any) -> int:
    return frames.max_object_bytes()


def test_the_cap_that_a_rule_sets_does_not_outlive_it() -> None:
    [rule] = select_rules(["6.3"])
    with World(Lenient, 2) as world:
        assert check_rule(rule, Lenient, world).outcome == "failed"
        assert world.run(cap) == [frames.max_object_bytes()] * 2


def test_a_world_to_be_lost_that_cannot_start_costs_no_other_rule_its_verdict() -> None:
    report = check_backend(SlowToJoin, (2,), rules=select_rules(["1.1", "7.1", "8.1"]), examples=2)
    assert [result.outcome for result in report.rules] == ["passed", "error", "passed"]
    assert "TimeoutError: 3 s are too few" in report.rules[1].message
    assert report.verdict == "incomplete"
