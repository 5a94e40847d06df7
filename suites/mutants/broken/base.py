"""What broken backends are made of."""

from __future__ import annotations

from typing import Any, ClassVar

from disteval.contract import BaseDistBackend
from disteval_backends.threads_dist import ThreadsDist

MUTANTS: list[type[BaseDistBackend]] = []
"""Every one, with the rule that it breaks as ``breaks``."""


class Mutant(ThreadsDist):
    """A correct backend, until a subclass breaks it."""

    breaks: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "breaks" in cls.__dict__:
            MUTANTS.append(cls)


class Gathered(Mutant):
    """Changes the list that an all-gather returns."""

    def all_gather_object(self, obj: Any) -> Any:
        return self.change(super().all_gather_object(obj))

    def change(self, gathered: list[Any]) -> Any:
        raise NotImplementedError
