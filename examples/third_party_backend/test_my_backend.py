"""Every rule of the contract, and a test of one's own on ranks."""

from disteval.conformance.suite.test_conformance import test_rule  # noqa: F401 - pytest collects it


def total(backend, number):
    return sum(backend.all_gather_object(number))


def test_a_total_is_the_same_on_every_rank(world):
    numbers = range(world.world_size)
    assert world.run(total, *numbers) == [sum(numbers) for _ in numbers]
