"""Ray's collectives move objects between actors in a group of the user's own, too."""

from typing import Any

from disteval.world import World

from suites.helpers.needs import needs
from suites.helpers.ray_nodes import joined_ray

pytestmark = needs("ray_collective")


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


def test_a_group_of_the_users_own_has_numbers_of_its_own() -> None:
    with joined_ray(), World("ray_collective", 2) as world:
        assert world.run(use_own_group) == [([0, 1], [0, 1])] * 2
