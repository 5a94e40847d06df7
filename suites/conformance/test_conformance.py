"""Every rule, over every backend, at every world size: one test each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from harness import list_all_backends
from harness.conformance.rules import Rule
from harness.conformance.runner import check_rule, select_rules
from harness.contract import No
from harness.worlds import World
from suites.requirements import backend_class


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    backends = metafunc.config.getoption("backend") or list_all_backends()
    sizes = [int(size) for size in metafunc.config.getoption("world_size").split(",")]
    groups = [(backend, size) for backend in backends for size in sizes]
    metafunc.parametrize(
        "worlds", groups, ids=[f"{name}-W{size}" for name, size in groups], indirect=True
    )
    metafunc.parametrize("rule", select_rules(), ids=lambda rule: rule.number)


class Worlds:
    """The world that a backend's tests share at one size; a fresh one after it was lost."""

    def __init__(self, backend: str, size: int) -> None:
        self.backend = backend
        self.size = size
        self.cls = backend_class(backend)
        self._world: World | None = None

    def get(self) -> World:
        if self._world is None or not self._world.is_open:
            self._world = World(self.backend, self.size)
        return self._world

    def close(self) -> None:
        if self._world is not None:
            self._world.close()


@pytest.fixture(scope="module")
def worlds(request: pytest.FixtureRequest) -> Iterator[Worlds]:
    backend, size = request.param
    worlds = Worlds(backend, size)
    multi = worlds.cls.capabilities.multi_rank
    if size > 1 and isinstance(multi, No):
        pytest.skip(f"{backend} declares that it can't do world size {size}: {multi.reason}")
    if backend == "torch_cuda":
        _need_gpus(size)
    yield worlds
    worlds.close()


def _need_gpus(count: int) -> None:
    import torch

    if torch.cuda.device_count() < count:
        pytest.skip(f"torch finds {torch.cuda.device_count()} CUDA devices, and {count} are needed")


def test_rule(worlds: Worlds, rule: Rule, request: pytest.FixtureRequest) -> None:
    examples = request.config.getoption("examples")
    result = check_rule(rule, worlds.cls, worlds.get(), examples=examples)
    if result.outcome == "unsupported":
        pytest.skip(f"declared: {result.message}")
    assert result.outcome == "passed", f"{rule.sentence}\n{result.message}\n{result.counterexample}"
    assert result.examples > 0
