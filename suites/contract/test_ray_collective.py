"""Ray's collectives move objects between actors, in our group and in one of the user's own."""

from __future__ import annotations

from typing import Any

from disteval.worlds import World

from suites.helpers.needs import needs
from suites.helpers.ray_nodes import joined_ray

pytestmark = needs("ray_collective")

SIZES = (0, 1, 512, 65_537, 1 << 20)


def move(backend: Any, mine: bytes) -> Any:
    gathered = backend.all_gather_object(mine)
    sent = [backend.broadcast_object(mine, src) for src in range(backend.world_size)]
    return backend.rank, backend.world_size, gathered, sent


def use_own_group(backend: Any) -> Any:
    from ray.util import collective

    collective.init_collective_group(backend.world_size, backend.rank, "gloo", "own")
    own = type(backend.inner)("own")
    try:
        # The numbers of one group's collectives do not depend on those of the other.
        backend.all_gather_object(backend.rank)
        return own.all_gather_object(own.rank), backend.all_gather_object(backend.rank)
    finally:
        collective.destroy_collective_group("own")


@needs("ray_collective")
def test_objects_of_any_size_move_also_after_the_group_was_left_and_joined_again() -> None:
    with joined_ray(), World("ray_collective", 3) as world:
        for size in SIZES:
            mine = [b"a" * size, b"b", b"c" * (size // 2)]
            expected = [(rank, 3, mine, mine) for rank in range(3)]
            assert world.run(move, *mine) == expected
        world.join("ray_collective")
        assert world.run(move, *mine) == expected
        assert world.run(use_own_group) == [([0, 1, 2], [0, 1, 2])] * 3
