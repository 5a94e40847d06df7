"""Templates number the collectives of each group, and move small and large objects."""

from collections.abc import Sequence
from typing import Any

import pytest
from disteval import FrameError, RankError
from disteval.frames import BLOCK_BYTES, Buffer
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.thread_world import assert_each_raised, run_ranks, same_group, values
from suites.mutants.correct import TensorTemplate


class Moves(ThreadsDist):
    """Notes the sizes of each move of bytes; a broadcast is the template's own."""

    def _all_gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
        self.__dict__.setdefault("moves", []).append(list(sizes))
        assert len(mine) in (sizes[self.rank], 0)
        return super()._all_gather_bytes(mine, sizes)


def test_a_small_object_takes_one_move_and_a_large_one_two() -> None:
    def rank(backend: ThreadsDist) -> Any:
        own = same_group(backend, Moves)
        own.all_gather_object("small")
        own.broadcast_object("small", 1)
        own.all_gather_object(b"x" * 1000 if own.rank else 0)
        own.broadcast_object(b"x" * 1000, 1)
        return own.moves  # type: ignore[attr-defined]

    [found, other] = values(run_ranks(2, rank))
    assert found == other
    assert [sizes for sizes in found if sizes != found[3]] == [[BLOCK_BYTES] * 2] * 4
    assert found[3] == found[5] == [0, found[3][1]]
    assert 1000 < found[3][1] < 1100


def test_what_comes_in_another_length_than_announced_is_refused() -> None:
    class Short(ThreadsDist):
        def _all_gather_bytes(self, mine: Buffer, sizes: Sequence[int]) -> Sequence[Buffer]:
            return [bytes(data)[:-1] for data in super()._all_gather_bytes(mine, sizes)]

    def rank(backend: ThreadsDist) -> Any:
        own = same_group(backend, Short)
        return own.all_gather_object(1)

    assert_each_raised(run_ranks(2, rank), FrameError, str(BLOCK_BYTES - 1))


@pytest.mark.parametrize("of", ["bytes", "tensor"])
@pytest.mark.parametrize(
    ("collective", "change", "what"),
    [("all_gather", lambda found: None, "None on"), ("all_gather", iter, "a list_iterator"),
     ("all_gather", lambda found: found[:1], "1 entries"), ("broadcast", lambda _: None, "None on"),
     ("all_gather", lambda found: [None, found[1]], "None for ranks [0]")],
)  # fmt: skip
def test_what_is_not_an_entry_for_each_rank_is_refused_by_the_name_of_the_method(
    of: str, collective: str, change: Any, what: str
) -> None:
    method = f"_{collective}_{of}"
    right = getattr(TensorTemplate, method)
    wrong = type("Wrong", (TensorTemplate,), {method: lambda *args: change(right(*args))})

    def rank(backend: ThreadsDist) -> Any:
        return getattr(same_group(backend, wrong), f"{collective}_object")("x" * 1000)

    assert_each_raised(run_ranks(2, rank), FrameError, f"Wrong.{method} returned {what}")


def test_a_collective_in_a_collective_of_the_same_thread_is_refused_by_that_name() -> None:
    class Calls:
        def __init__(self, backend: ThreadsDist) -> None:
            self.backend = backend

        def __reduce__(self) -> Any:
            self.backend.all_gather_object(0)
            raise AssertionError

    def rank(backend: ThreadsDist) -> Any:
        with pytest.raises(RankError, match="this thread"):
            backend.all_gather_object(Calls(backend) if backend.rank else 0)
        return backend.all_gather_object(backend.rank)

    assert values(run_ranks(2, rank)) == [[0, 1]] * 2
