"""A user's creators, which the estimator checks and the ranks call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from disteval.errors import HarnessError, UsageError

Creator = Callable[[dict[str, Any]], Any]
"""A function that makes a runner or a loader from the estimator's ``config``."""


@dataclass(frozen=True)
class Source:
    """A creator, its name in messages, and a key that it keeps as long as the estimator lives."""

    name: str
    creator: Creator
    key: int = 0

    def __post_init__(self) -> None:
        if not callable(self.creator):
            raise UsageError(f"{self.name} must be a function of a config, not {self.creator!r}")
        try:
            cloudpickle.dumps(self.creator)
        except Exception as error:  # pickling runs code of the objects that the creator holds
            raise UsageError(
                f"{self.name} can't be sent to ranks ({type(error).__name__}: {error}); have it "
                f"create its objects from the config, when it is called"
            ) from error

    def call(self, config: dict[str, Any]) -> Any:
        """Return the creator's result for a copy of the config; UsageError if it has none."""
        try:
            made = self.creator(dict(config))
        except HarnessError:
            raise
        except Exception as error:  # the creator is the user's code
            raise UsageError(f"{self.name} raised {type(error).__name__}: {error}") from error
        if made is None:
            raise UsageError(f"{self.name} returned None; does it lack a return statement?")
        return made


def loader_sources(creators: Any, known: list[Creator]) -> list[Source]:
    """Return a source for each creator of a loader, and add new creators to the known ones."""
    if not isinstance(creators, Sequence):
        raise UsageError(f"loader creators are given as a list, not as {creators!r}")
    sources = []
    for at, creator in enumerate(creators):
        name = f"loader creator {at} ({getattr(creator, '__name__', 'without a name')})"
        if creator not in known:
            known.append(creator)
        sources.append(Source(name, creator, known.index(creator)))
    return sources
