"""Loops over other libraries that are right: an audit that finds anything in them is wrong itself.

``nox -s sound`` installs what requirements.txt pins, and audits each loop in all cases. What loops
of these libraries get wrong stands in findings/, whose pages take from here what they share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Loop = Callable[..., Any]

LOOPS: dict[str, str] = {}
"""The library of each loop, by its name as ``disteval audit`` takes it."""


def sound(library: str, *assumes: str) -> Callable[[Loop], Loop]:
    """Say that a loop is right with a library, where that is assumed."""

    def noted(loop: Loop) -> Loop:
        loop.assumes = assumes  # type: ignore[attr-defined]
        LOOPS[f"{loop.__module__}:{loop.__name__}"] = library
        return loop

    return noted
