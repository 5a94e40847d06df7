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
        from disteval.conformance.world import BackendWorlds

        self.worlds = BackendWorlds(backend, WORLD_SIZE, timeout=_worlds.SECONDS)

    def teardown(self, *_parameters: object) -> None:
        """End the world; asv calls this after a skipped setup, too."""
        if hasattr(self, "worlds"):
            self.worlds.close()

    def track_example(self, backend: str, number: str) -> float:
        """Return the time of the whole check for each example; the backend must keep the rule."""
        from disteval.conformance.attempts import check_rule
        from disteval.conformance.runner import select_rules

        [rule] = select_rules([number])
        check_rule(rule, self.worlds, examples=1)  # the first drawing builds its strategies
        result = check_rule(rule, self.worlds, examples=EXAMPLES)
        if result.outcome != "passed":
            raise AssertionError(f"rule {number} {result.outcome}: {result.message}")
        return result.seconds / result.examples * 1e3

    track_example.unit = "ms"  # type: ignore[attr-defined]
