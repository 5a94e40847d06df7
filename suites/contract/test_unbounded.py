"""Where a library waits without a limit, the world ends the wait and says who is missing."""

import threading
from typing import Any

import pytest
from disteval import WorldError
from disteval.registry import get_backend_class
from disteval.world import World

from suites.helpers.needs import each


def _wait_for_rank_1(backend: Any) -> None:
    backend.all_gather_object(0)
    if backend.rank == 1:
        threading.Event().wait()
    backend.all_gather_object(1)


@pytest.mark.parametrize("name", each("tf_collective", "mlx"))
def test_a_rank_that_never_comes_is_shown_after_the_worlds_timeout(name: str) -> None:
    assert not get_backend_class(name).capabilities.bounded_waits
    with World(name, 3) as world, pytest.raises(WorldError) as caught:
        world.run(_wait_for_rank_1, timeout=5.0)
    at = [(one.rank, one.position.entered, one.position.inside) for one in caught.value.ranks]
    assert at == [(0, 2, True), (1, 1, False), (2, 2, True)]
