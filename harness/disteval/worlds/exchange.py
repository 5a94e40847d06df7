"""Keys and values that the ranks of a world exchange through its leader."""

from __future__ import annotations

from disteval.errors import UsageError
from disteval.worlds import control

MAX_VALUE_BYTES = 1 << 20
"""The largest value; addresses and identifiers are meant, not data."""

MAX_KEYS = 1_000
"""How many keys one rank may publish in one world."""


class Exchange:
    """What the ranks have published, and who waits for what; lives with the leader."""

    def __init__(self) -> None:
        self._values: dict[str, str | bytes] = {}
        self._waiting: dict[str, list[int]] = {}

    def clear(self) -> None:
        """Forget everything: another world begins."""
        self._values.clear()
        self._waiting.clear()

    def take(
        self, rank: int, message: control.Publication | control.Question
    ) -> list[tuple[int, control.Answer]]:
        """Take a rank's message; the answers that can be given now, and to whom."""
        key = message.key
        if isinstance(message, control.Publication):
            self._values[key] = message.value
            readers = self._waiting.pop(key, [])
        else:
            readers = [rank]
        if key in self._values:
            return [(reader, control.Answer(key, self._values[key])) for reader in readers]
        self._waiting.setdefault(key, []).extend(readers)
        return []


def check_entry(key: str, value: str | bytes) -> None:
    """Refuse a value that the leader would not keep, where it is published.

    Raises:
        UsageError: It is too large, or neither text nor bytes.
    """
    if not isinstance(key, str) or not isinstance(value, (str, bytes)):
        raise UsageError(
            f"a key is text and its value text or bytes, not {type(key).__name__} and "
            f"{type(value).__name__}"
        )
    if len(value) > MAX_VALUE_BYTES:
        raise UsageError(
            f"the value of {key!r} has length {len(value)}; up to {MAX_VALUE_BYTES} can be "
            f"published, for data there is rendezvous.path"
        )
