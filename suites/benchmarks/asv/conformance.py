"""How long does the conformance suite take for an example?"""

from __future__ import annotations

from . import _worlds

EXAMPLES = 30
WORLD_SIZE = 2


class Conformance:
    """The time of an example of some rules of the contract, on two ranks."""

    params = (["threads", "torch_cpu", "mpi4py"], ["2.1", "3.1", "8.1"])
    param_names = ("backend", "rule")
    timeout = 300.0

    def setup(self, backend: str, _rule: str) -> None:
        _worlds.require_module("hypothesis")
        _worlds.require_backend(backend, WORLD_SIZE)

    def track_example(self, backend: str, number: str) -> float:
        """Return the time of a further example of a rule, which the backend must keep."""
        from disteval.conformance.check import check_backend, select_rules

        found = []
        for examples in (1, 1, EXAMPLES):  # the first drawing builds its strategies
            [result] = check_backend(
                backend, (WORLD_SIZE,), rules=select_rules([number]), examples=examples,
                timeout=_worlds.SECONDS,
            ).rules  # fmt: skip
            if result.outcome != "passed":
                raise AssertionError(f"rule {number} {result.outcome}: {result.message}")
            found.append(result)
        _, one, all_of_them = found
        seconds = all_of_them.seconds - one.seconds
        return seconds / (all_of_them.examples - one.examples) * 1e3

    track_example.unit = "ms"  # type: ignore[attr-defined]
