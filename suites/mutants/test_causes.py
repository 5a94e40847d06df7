"""Mistakes of people who write a backend get their cause named, and each cause is told once."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.conformance.runner import check_backend, select_rules
from disteval.contract import BaseDistBackend
from disteval_backends.threads_dist import ThreadsDist

from suites.mutants.sockets import Sockets


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


def causes(cls: type[BaseDistBackend], *rules: str) -> dict[str, str]:
    """Return the causes by the rules that a backend breaks."""
    found = check_backend(cls, (2,), rules=select_rules(rules), examples=5, timeout=5.0)
    return {result.id: result.cause for result in found.rules if result.outcome == "failed"}


@pytest.mark.parametrize(
    ("backend", "rule", "word"),
    [
        (LeavesItselfOut, "2.1", "own"),
        (ReturnsNothingButOnRank0, "2.1", "only one rank"),
        (SwapsRankAndSize, "1.1", "swapped"),
        (NobodyJoins, "1.1", "init_process"),
        (RankIsText, "1.1", "int"),
        (ReturnsTuples, "3.4", "list"),
        (EverybodyIsRank0, "1.1", "rank"),
        (OverJson, "2.2", "pickle"),
        (CannotLeave, "1.5", "finalize_process"),
        (NotWritten, "2.1", "NotImplementedError"),
    ],
)
def test_a_usual_mistake_gets_its_name(
    backend: type[BaseDistBackend], rule: str, word: str
) -> None:
    assert word in causes(backend, rule)[rule]


def test_a_cause_that_was_not_seen_is_not_named() -> None:
    # It is wrong without a rank that comes late, which rule 7.5 is about.
    assert causes(TuplesOverSockets, "7.5") == {"7.5": ""}


@pytest.mark.parametrize("backend", [NotWritten, RaisesWhatCannotBePickled])
def test_one_mistake_has_one_cause_whichever_rule_finds_it(backend: type[NotWritten]) -> None:
    found = causes(backend, "2.1", "2.3", "3.1", "4.1")
    assert len(found) == 4
    assert len(set(found.values())) == 1
