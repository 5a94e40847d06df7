"""One world after another, for work that goes on when a world is lost."""

from __future__ import annotations

from collections.abc import Callable

from disteval.worlds.world import World


class Worlds:
    """The present world of one size; another one after it was lost.

    Args:
        start: Starts one; takes ``backend_timeout``.
        patience: How many may be lost in a row before there is a reason to give up.
    """

    def __init__(self, start: Callable[..., World], patience: int = 2) -> None:
        self._start = start
        self._patience = patience
        self._world: World | None = None
        self._lost_in_a_row = 0

    def get(self) -> World:
        """The world, in step."""
        if self._world is None or not self._world.is_open:
            self._world = self._start()
        return self._world

    def fresh(self, backend_timeout: float) -> World:
        """One more, to lose ranks of."""
        return self._start(backend_timeout=backend_timeout)

    def reason_to_give_up(self, size: int) -> str:
        """Why no more rules are to be tried; empty while there is hope."""
        lost = self._world is not None and not self._world.is_open
        self._lost_in_a_row = self._lost_in_a_row + 1 if lost else 0
        if self._lost_in_a_row < self._patience:
            return ""
        rules = "one rule" if self._patience == 1 else f"{self._patience} rules in a row"
        return f"not run: {rules} ended in a lost world or a timeout at world size {size}"

    def __enter__(self) -> Worlds:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        if self._world is not None:
            self._world.close()
