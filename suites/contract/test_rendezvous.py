"""Ranks find each other by what they publish, through the leader alone."""

import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
from disteval import FrameError, UsageError, WorldError, frames
from disteval.contract import Rendezvous
from disteval.world import World
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.frames import has_key
from suites.mutants.sockets import Sockets


class Keyed(Sockets):
    """Keeps the key of its group."""

    key: ClassVar[bytes] = b""

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        super().init_process(rank, world_size, rendezvous)
        assert str(rendezvous.key) not in repr(rendezvous)
        cls.key = rendezvous.key


class Publishing(ThreadsDist):
    """Each rank publishes its rank, then looks for the next one's."""

    found: ClassVar[dict[int, Any]] = {}

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        super().init_process(rank, world_size, rendezvous)
        if rank:
            rendezvous.publish(f"rank {rank}", bytes([rank]))
        cls.found[rank] = rendezvous.lookup(f"rank {(rank + 1) % world_size}")
        if rank == 0:  # the last rank has been waiting for it
            rendezvous.publish("rank 0", "zero")


class Starving(ThreadsDist):
    """Waits for what nobody publishes."""

    @classmethod
    def init_process(cls, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        rendezvous.lookup("nothing")


def test_values_reach_those_that_wait_and_those_that_come_later() -> None:
    Publishing.found.clear()
    with World(Publishing, 4):
        assert Publishing.found == {0: b"\1", 1: b"\2", 2: b"\3", 3: "zero"}


def test_a_key_that_nobody_publishes_is_an_error_in_time() -> None:
    with pytest.raises(WorldError, match=r"'nothing'.* 0\.2 s"):
        World(Starving, 3, backend_timeout=0.2)


def test_ranks_that_nobody_leads_have_no_exchange() -> None:
    with pytest.raises(UsageError):
        Rendezvous(Path()).publish("key", "value")


def test_a_rank_binds_port_0_and_publishes_it() -> None:
    with World(Sockets, 3) as world:
        assert world.run(gather, "a", "b", "c") == [["a", "b", "c"]] * 3
        # The library has no broadcast, so rank 0, whose object it is, is told as well.
        assert world.run(broadcast_from_0_while_others_gather) == ["refused"] * 3
        assert world.run(gather, "a", "b", "c") == [["a", "b", "c"]] * 3


def test_each_group_has_a_key_of_its_own_which_ends_with_it() -> None:
    keys = []
    with World(None, 2, launcher="local") as world:
        for _ in range(2):
            world.join(Keyed)
            [(key, has_one), other] = world.run(key_of_group)
            assert other == (key, has_one) == (key, True)
            assert len(key) == 32
            keys.append(key)
            # Threads that a rank leads share its key, and do not end its use.
            assert world.run(gather_on_threads_first) == [[0, 1]] * 2
            assert world.run(gather_while_rank_1_has_no_key) == ["refused", "refused"]
        world.leave()
        assert world.run(lambda _: has_key()) == [False] * 2
    assert keys[0] != keys[1]


def key_of_group(backend: Any) -> tuple[bytes, bool]:
    return backend.inner.key, has_key()


def gather_on_threads_first(backend: Any) -> Any:
    with World("threads", 2) as world:
        assert world.run(gather, 1, 2) == [[1, 2]] * 2
    assert has_key()
    return gather(backend, backend.rank)


def gather_while_rank_1_has_no_key(backend: Any) -> str:
    if backend.rank:
        frames.set_key(b"")
    try:
        gather(backend, backend.rank)
    except FrameError as error:
        return "refused" if re.search(r"\bkey\b|\bMAC\b", str(error)) else str(error)
    finally:
        frames.set_key(backend.inner.key)
    return "opened"


def broadcast_from_0_while_others_gather(backend: Any) -> str:
    try:
        backend.broadcast_object("sent") if backend.rank == 0 else gather(backend, "gathered")
    except FrameError:
        return "refused"
    return "not told"


def gather(backend: Any, obj: Any) -> Any:
    return backend.all_gather_object(obj)
