"""What a test needs: one decorator that marks it for sessions, and skips it where that is missing.

``DISTEVAL_REQUIRE=torch_cpu,jax`` names backends and libraries that must be there: what needs one
that is missing fails then. Each nox session names what it installs, so that nothing that it should
test is skipped without a word.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import NoReturn

import pytest
from disteval import LibraryMissingError
from disteval.registry import get_backend_class, list_all_backends

MARKERS = {
    "torch": ("torch", "torch_cpu", "torch_cuda", "torchvision", "tensorboard"),
    "mpi": ("mpi4py",),
    "ray": ("ray", "ray_collective"),
    "jax": ("jax", "flax"),
    "tensorflow": ("tensorflow", "tf_collective"),
    "horovod": ("tf_horovod",),
    "paddle": ("paddle",),
    "mlx": ("mlx",),
    "arrays": (
        "sklearn",
        "pycocotools",
        "torchmetrics",
        "accelerate",
        "datasets",
        "pyarrow",
        "pytorch_lightning",
        "ignite",
        "lightning",
        "mmengine",
        "transformers",
        "trl",
        "lm_eval",
    ),
    "records": ("polars", "lm_eval", "inspect_ai", "lighteval"),
    "eee": ("every_eval_ever",),
    "report": ("jinja2", "matplotlib", "jsonschema"),
    "web": ("chromium", "selenium"),
    "package": ("build", "yaml"),
}
"""Each marker that sessions select tests by, and what a test needs that gets it."""

JAX_DEVICES = 8
"""The number of CPU devices that JAX has in the process of the tests."""

MARKER_OF = {name: marker for marker, names in MARKERS.items() for name in names}
OPTIONAL = frozenset(MARKER_OF)
"""What a test may need."""


def needs(*names: str) -> pytest.MarkDecorator:
    """Mark a test, a parameter or a module of tests with the backends and libraries that it needs.

    Raises:
        ValueError: A name is not in `MARKERS`.
    """
    if unknown := sorted({*names} - OPTIONAL):
        raise ValueError(f"suites/helpers/needs.py has no marker for {', '.join(unknown)}")
    return pytest.mark.needed(*names)


def each(*names: str) -> list[object]:
    """Return parameters, of which each needs what it names; ``threads`` and the like are there."""
    optional = ([needs(name)] if name in OPTIONAL else [] for name in names)
    return [pytest.param(name, marks=marks) for name, marks in zip(names, optional, strict=True)]


def names_needed(item: pytest.Item) -> list[str]:
    """Return what a test needs, by all of its decorators."""
    return [name for marker in item.iter_markers("needed") for name in marker.args]


def world_of(item: pytest.Item) -> tuple[str | None, int]:
    """Return backend and size of the world of the plugin that a test uses, or None and 0."""
    params = getattr(item, "callspec", SimpleNamespace(params={})).params
    return params.get("worlds", (None, 0))


def add_markers(item: pytest.Item) -> None:
    """Give a test that needs anything ``optional`` and the markers of what it needs."""
    # The plugin says itself where the backend of a world is missing.
    found = {MARKER_OF[name] for name in OPTIONAL & {*names_needed(item), world_of(item)[0]}}
    for marker in found | ({"optional"} if found else set()):
        item.add_marker(marker)


def require(name: str) -> None:
    """Skip the test where a backend or library is missing, or fail it if that is required."""
    if reason := _lacks(name):
        missing(name, reason)
    if name in ("jax", "flax"):
        _use_many_devices()


def missing(name: str, reason: str) -> NoReturn:
    """Skip the test, or fail it if what it lacks is required."""
    from disteval.conformance.plugin import required  # which ranks of tests need not import

    if name in required():
        pytest.fail(f"DISTEVAL_REQUIRE names {name}, but {reason}")
    pytest.skip(reason, allow_module_level=True)


def framework(name: str) -> ModuleType:
    """Import a library or a module over one.

    A module of tests that can't import one at its top is skipped, or fails if it is required. A
    test says by `needs` what it imports; without that it fails.
    """
    if "PYTEST_CURRENT_TEST" not in os.environ:
        require(name.partition(".")[0])
    return importlib.import_module(name)


@cache
def _lacks(name: str) -> str:
    """Return why a backend, a library or a program can't be used, or an empty text."""
    if name == "chromium":
        found = shutil.which("chromium") and shutil.which("chromedriver")
        return "" if found else "chromium and chromedriver are not both on the PATH"
    if name not in list_all_backends():
        return "" if importlib.util.find_spec(name) else f"{name} is not installed"
    try:
        get_backend_class(name)
    except LibraryMissingError as error:
        return str(error)
    return ""


def _use_many_devices() -> None:
    """Give JAX in this process virtual devices, before any test uses it."""
    jax = importlib.import_module("jax")
    if jax.config.jax_num_cpu_devices != JAX_DEVICES:
        jax.config.update("jax_num_cpu_devices", JAX_DEVICES)
