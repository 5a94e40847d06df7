"""Requirements of tests: a missing library skips a test, or fails it if it is required.

``DISTEVAL_REQUIRE=torch_cpu,mpi4py,jax`` names the backends and frameworks that must be there; each
nox session names those it installs, so that nothing it should test is skipped without a word.
"""

from __future__ import annotations

import importlib
import shutil
from types import ModuleType
from typing import Any

import pytest
from disteval import LibraryMissingError
from disteval.conformance.plugin import required
from disteval.contract import BaseDistBackend
from disteval.registry import get_backend_class

from suites.helpers.marks import needing

JAX_DEVICES = 8
"""The number of CPU devices that JAX has in the process of the tests."""

markers_of_this_test: set[str] | None = None
"""The markers of the test that runs; None while tests are collected."""


def framework(name: str) -> ModuleType:
    """Import a framework or one of its modules, or skip the test; fail it if it is required."""
    package = name.partition(".")[0]
    try:
        if package in ("jax", "flax"):
            _use_many_devices()
        return importlib.import_module(name)
    except ImportError as error:
        return missing(package, f"{name} can't be imported: {error}")


def _use_many_devices() -> None:
    """Give JAX in this process virtual devices, before any test imports it."""
    jax = importlib.import_module("jax")
    if jax.config.jax_num_cpu_devices != JAX_DEVICES:
        jax.config.update("jax_num_cpu_devices", JAX_DEVICES)


def backend_class(name: str) -> type[BaseDistBackend]:
    """Return a backend's class, or skip the test; fail it if the backend is required."""
    try:
        return get_backend_class(name)
    except LibraryMissingError as error:
        return missing(name, str(error))


def chromium() -> tuple[str, str]:
    """Return the paths of Chromium and its driver, or skip or fail the test without them."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if None in found:
        return missing("chromium", "chromium and chromedriver are not both on the PATH")
    return found


def missing(name: str, reason: str) -> Any:
    """Skip the test, or fail it if what it lacks is required."""
    if name in required():
        pytest.fail(f"DISTEVAL_REQUIRE names {name}, but {reason}")
    markers = {marker.name for marker in needing([name])}
    if markers_of_this_test is not None and not markers <= markers_of_this_test:
        pytest.fail(f"{reason}; mark the test with {', '.join(markers)}, so that a session runs it")
    # Also where a module of tests asks, before its first test.
    pytest.skip(reason, allow_module_level=True)
