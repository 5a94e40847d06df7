"""Two ranks ask JAX whether they have the same number; ``python -m suites.findings.equal``."""

from __future__ import annotations

from disteval.contract import BaseDistBackend
from disteval.world import World


def is_equal(backend: BaseDistBackend, number: float) -> bool:
    """Return whether JAX finds the number of this rank equal to that of the others."""
    from jax.experimental import multihost_utils

    try:
        multihost_utils.assert_equal(number)
    except AssertionError:
        return False
    return True


if __name__ == "__main__":
    with World("jax", 2) as world:
        for number in (0.5, 0.1):
            answers = world.run(is_equal, number, number)
            print(f"{number} and {number} are {'equal' if all(answers) else 'not equal'}")
