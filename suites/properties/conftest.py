"""What every property takes: a world of ranks, a kind of arrays, and examples for all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval import WorldError
from disteval.conformance.bench import Bench
from disteval.conformance.plugin import required
from disteval.world import World, report_progress
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from suites.helpers import needs
from suites.properties.cases import ARRAYS, array, bits

Each = Callable[..., None]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `arrays` with each kind that is installed, or has to be.

    Ranks that are processes get those of a framework alone, where one is installed: all properties
    that take no `arrays` are tried with NumPy's.
    """
    if "arrays" in metafunc.fixturenames:
        kinds = [kind for kind in ARRAYS if find_spec(kind) or kind in required()]
        if len(kinds) > 1 and {"threads", "non_dist"}.isdisjoint(metafunc.config.option.backend):
            kinds.remove("numpy")
        metafunc.parametrize("arrays", needs.each(*kinds), indirect=True)


@pytest.fixture
def arrays(request: pytest.FixtureRequest, world: World) -> str:
    """The framework whose arrays the samples are, by its name, which travels to the ranks."""
    # A busy machine imports for longer than an order may take.
    world.run(_import, *[request.param] * world.world_size, timeout=180.0)
    return str(request.param)


@pytest.fixture
def without_canary(world: World) -> Iterator[None]:
    """Have `predict` called only for what is counted, in a test that counts its calls."""
    world.run(switch_canary, *["off"] * world.world_size)
    yield
    with suppress(WorldError):  # of a test that has lost the world
        world.run(switch_canary, *["on"] * world.world_size)


def counts(arrays: str, least: int, most: int) -> st.SearchStrategy[int]:
    """Draw the length of an array: one of three of JAX, which compiles anew for each shape."""
    if arrays == "jax":
        return st.sampled_from([least, (least + most) // 2, most])
    return st.integers(least, most)


def switch_canary(backend: Any, value: str) -> None:
    """Switch calls of `predict` that are not counted on or off, on one rank."""
    os.environ["DISTEVAL_CANARY"] = value


def _import(backend: Any, arrays: str) -> None:
    """Import a framework on one rank."""
    array(arrays, np.zeros(1, np.float32))


@pytest.fixture
def each(world: World, worlds: Bench, request: pytest.FixtureRequest) -> Each:
    """A function that holds a property to drawn examples on every rank of the world.

    ``each(strategy, on_rank, expected)`` runs ``on_rank(backend, example)`` on every rank; each
    must return ``expected(example)``, to the last bit.

    Ranks that are processes get the examples of ``--examples`` in one order, which costs one round
    trip. Threads get four times as many at each size, one by one, so that Hypothesis finds the
    smallest that fails. A test that is split, as by metrics, draws so many in all, but a few of
    each part: the first is mostly the smallest that there is. One that is expected to fail draws
    all, for not each example may show it.
    """
    is_cheap = worlds.cls.launcher == "threads"
    count = request.config.getoption("examples")
    is_expected = request.node.get_closest_marker("xfail") is not None  # and wants no smaller one
    unhurried = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

    def hold(
        strategy: st.SearchStrategy[Any],
        on_rank: Callable[..., Any],
        expected: Callable[[Any], Any],
        split: int = 1,
    ) -> None:
        def tried(examples: Sequence[Any]) -> None:
            found = world.run(partial(_all, on_rank), *[examples] * world.world_size)
            for example, results in zip(examples, zip(*found, strict=True), strict=True):
                right = bits(expected(example))
                for rank, result in enumerate(results):
                    assert bits(result) == right, f"rank {rank} of {example!r}"

        if is_cheap:

            @settings(
                max_examples=max(4, 4 * count // split), suppress_health_check=unhurried,
                phases=list(Phase)[: 3 if is_expected else None],
            )  # fmt: skip
            @given(strategy)
            def one(example: Any) -> None:
                tried([example])

            one()
            return
        drawn: list[Any] = []

        @settings(
            max_examples=count if is_expected else max(3, count // split),
            phases=[Phase.generate], database=None, suppress_health_check=unhurried,
        )  # fmt: skip
        @given(strategy)
        def draw(example: Any) -> None:
            drawn.append(example)

        draw()
        tried(drawn)

    return hold


def _all(on_rank: Callable[..., Any], backend: Any, examples: Sequence[Any]) -> list[Any]:
    """Run a function for each example, on one rank."""
    found = []
    for done, example in enumerate(examples):
        found.append(on_rank(backend, example))
        report_progress(done, len(examples))
    return found
