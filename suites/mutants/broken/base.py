"""The base classes of broken backends."""

from __future__ import annotations

from typing import Any, ClassVar

from disteval.contract import BaseDistBackend
from disteval_backends.threads_dist import ThreadsDist

MUTANTS: list[type[BaseDistBackend]] = []
"""All broken backends; ``breaks`` is the number of the rule that each breaks."""


class Mutant(ThreadsDist):
    """A correct backend, which subclasses break."""

    breaks: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "breaks" in cls.__dict__:
            MUTANTS.append(cls)


class Gathered(Mutant):
    """A backend that changes the list that an all-gather returns."""

    def all_gather_object(self, obj: Any) -> Any:
        return self.change(super().all_gather_object(obj))

    def change(self, gathered: list[Any]) -> Any:
        raise NotImplementedError
