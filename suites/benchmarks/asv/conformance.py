"""How fast does the conformance suite try examples?"""

from __future__ import annotations

from . import _worlds

EXAMPLES = 30
WORLD_SIZE = 2


class Conformance(_worlds.InWorld):
    """The speed of some rules of the contract, with a few examples each, on two ranks."""

    params = (["threads", "torch_cpu", "mpi4py"], ["2.1", "3.1", "8.1"])
    param_names = ("backend", "rule")

    def setup(self, backend: str, _rule: str) -> None:
        _worlds.require_module("hypothesis")
        self.start(backend, WORLD_SIZE)

    def track_examples(self, backend: str, number: str) -> float:
        """Return the examples per second of the whole check; the backend must keep the rule."""
        from disteval.conformance.runner import check_rule, select_rules
        from disteval.registry import get_backend_class

        assert self.world is not None, "setup starts the world"
        [rule] = select_rules([number])
        cls = get_backend_class(backend)
        check_rule(rule, cls, self.world, examples=1)  # the first drawing builds its strategies
        result = check_rule(rule, cls, self.world, examples=EXAMPLES)
        if result.outcome != "passed":
            raise AssertionError(f"rule {number} {result.outcome}: {result.message}")
        return result.examples / result.seconds

    track_examples.unit = "examples/s"  # type: ignore[attr-defined]
