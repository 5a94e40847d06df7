"""Which libraries a test needs, as markers, so that a session selects its tests by them.

A test gets its markers from the folder it is in, from the parameters that name a backend, a
framework or a launcher, and from the names that it and its fixtures pass to `framework` and
`backend_class`. Nobody keeps a list. A marker in the test's own file counts too, and
``needs_nothing`` there says that a parameter only mentions a library.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.mark.expression import Expression

SUITES = Path(__file__).parents[1]
NOTHING = "needs_nothing"

MARKERS = {
    "torch": ("torch", "torch_cpu", "torch_cuda", "torchvision", "torchrun"),
    "mpi": ("mpi4py", "mpirun"),
    "ray": ("ray", "ray_collective"),
    "jax": ("jax", "flax"),
    "tensorflow": ("tensorflow", "tf_collective"),
    "horovod": ("tf_horovod", "horovodrun"),
    "paddle": ("paddle",),
    "mlx": ("mlx",),
    "arrays": ("sklearn", "torchmetrics", "accelerate", "datasets", "pyarrow", "pytorch_lightning"),
    "report": ("jinja2", "matplotlib", "jsonschema"),
    "estimator": ("tensorboard",),
    "web": ("chromium", "selenium"),
    "package": ("build", "yaml"),
}
"""Each marker, and the names of libraries, backends and launchers that stand for it."""

FOLDERS = {
    "docs": "docs",
    "audit": "audit",
    "mutants": "mutants",
    "arrays": "arrays",
    "estimator": "estimator",
    "worlds": "worlds",
    "package": "package",
    "web": "web",
}
"""Each folder of suites, and the marker of every test in it."""

_MARKER_OF = {name: marker for marker, names in MARKERS.items() for name in names}


def needing(names: Iterable[str]) -> list[pytest.MarkDecorator]:
    """Return the markers of what is needed, for a parameter that does not name it itself."""
    return [getattr(pytest.mark, marker) for marker in sorted(_markers(names))]


def mark(items: list[pytest.Item]) -> None:
    """Add its markers to each test."""
    for item in items:
        if item.get_closest_marker(NOTHING) is None:
            found = _markers(_names(item)) | _folder_markers(item)
            for marker in found if found & MARKERS.keys() else found | {NOTHING}:
                item.add_marker(marker)


def check_that_a_session_selects(items: list[pytest.Item], selections: list[str]) -> None:
    """Fail the collection where a test is selected by no session.

    Args:
        items: The tests, with their markers.
        selections: By what each session selects tests, as after ``pytest -m``.
    """
    expressions = [Expression.compile(text) for text in selections]
    for item in items:
        markers = {marker.name for marker in item.iter_markers()}
        if not any(expression.evaluate(markers.__contains__) for expression in expressions):
            mine = ", ".join(sorted(markers & {*MARKERS, NOTHING}))
            raise pytest.UsageError(
                f"{item.nodeid} needs {mine}, and no session in suites/sessions.toml selects such "
                "a test; change what a session selects, or what the test needs"
            )


def _markers(names: Iterable[str]) -> set[str]:
    return {_MARKER_OF[name] for name in names if name in _MARKER_OF}


def _folder_markers(item: pytest.Item) -> set[str]:
    return {
        marker for folder, marker in FOLDERS.items() if item.path.is_relative_to(SUITES / folder)
    }


def _names(item: pytest.Item) -> Iterator[str]:
    """Yield the names of libraries that a test mentions, and some other strings."""
    own = {marker.name for marker in item.iter_markers()}
    yield from (names[0] for marker, names in MARKERS.items() if marker in own)
    if isinstance(item, pytest.Function):
        yield from _strings(item.callspec.params.values() if hasattr(item, "callspec") else ())
        fixtures = item._fixtureinfo.name2fixturedefs.values()
        for function in (item.function, *(one.func for found in fixtures for one in found)):
            yield from _asked_by(function)
        for value in vars(item.module).values():
            if isinstance(value, ModuleType):
                yield value.__name__


def _strings(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple):
            yield from _strings(value)


@cache
def _asked_by(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names that a function passes to `framework` or `backend_class` as they stand."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # written by a program, as those of plugins may be
        return frozenset()
    return frozenset(
        node.args[0].value.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and _last_name(node.func) in ("framework", "backend_class")
        and node.args
        and isinstance(node.args[0], ast.Constant)
    )


def _last_name(called: ast.expr) -> str:
    """Return the name of what is called, without the module that it may be written with."""
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
