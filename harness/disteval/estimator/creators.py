"""A user's creators: checked by the estimator, called on the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from disteval.errors import HarnessError, UsageError

Creator = Callable[[dict[str, Any]], Any]
"""Makes a runner or a loader of the estimator's ``config``."""


@dataclass(frozen=True)
class Source:
    """A creator, and what it is called.

    Args:
        name: For messages.
        creator: What the user gave.
        key: The same for the same creator, as long as the estimator lives.

    Raises:
        UsageError: It can't be called, or can't be sent to workers.
    """

    name: str
    creator: Creator
    key: int = 0

    def __post_init__(self) -> None:
        if not callable(self.creator):
            raise UsageError(f"{self.name} must be a function of a config, not {self.creator!r}")
        try:
            cloudpickle.dumps(self.creator)
        except Exception as error:  # whatever it holds decides what is raised
            raise UsageError(
                f"{self.name} can't be sent to workers ({type(error).__name__}: {error}); have it "
                f"create what it needs when it is called, from the config"
            ) from error

    def call(self, config: dict[str, Any]) -> Any:
        """Return what it makes of a copy of the config.

        Raises:
            UsageError: It raised, or returned None.
        """
        try:
            made = self.creator(dict(config))
        except HarnessError:
            raise
        except Exception as error:  # whatever it is, it is the creator's
            raise UsageError(f"{self.name} raised {type(error).__name__}: {error}") from error
        if made is None:
            raise UsageError(f"{self.name} returned None; does it lack a return statement?")
        return made


class LoaderSources:
    """Names creators of loaders, and knows again those that it was given before."""

    def __init__(self) -> None:
        self._known: list[Creator] = []

    def of(self, creators: Any) -> list[Source]:
        """Return a source for each creator.

        Raises:
            UsageError: They are no list, or one of them can't be called, or not be sent.
        """
        if not isinstance(creators, Sequence):
            raise UsageError(f"loader creators are given as a list, not as {creators!r}")
        sources = []
        for at, creator in enumerate(creators):
            name = f"loader creator {at} ({getattr(creator, '__name__', 'without a name')})"
            if creator not in self._known:
                self._known.append(creator)
            sources.append(Source(name, creator, self._known.index(creator)))
        return sources
