"""The base classes of broken backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from disteval.contract import BaseDistBackend
from disteval_backends.threads_dist import ThreadsDist

MUTANTS: list[type[BaseDistBackend]] = []
"""All broken backends; ``breaks`` is the number of the rule that each breaks.

Some have a word of the likely cause, ``cause``, that the rule has to name.
"""


class Mutant(ThreadsDist):
    """A correct backend, which subclasses break."""

    breaks: ClassVar[str]
    change: Callable[..., Any]  # what it does otherwise

    def __init_subclass__(cls) -> None:
        if "breaks" in cls.__dict__:
            MUTANTS.append(cls)


class Gathered(Mutant):
    """A backend that changes the list that an all-gather returns."""

    def all_gather_object(self, obj: Any) -> Any:
        return self.change(super().all_gather_object(obj))


def add(
    module: dict[str, Any],
    base: type[Mutant],
    breaks: str,
    cause: str = "",
    **changes: Callable[..., Any],
) -> None:
    """Add a broken backend to a module for each name: the base with that function as `change`."""
    for name, change in changes.items():
        own = {"__module__": module["__name__"], "breaks": breaks, "cause": cause, "change": change}
        module[name] = type(name, (base,), own)
