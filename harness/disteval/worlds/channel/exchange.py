"""Keys and values that the ranks of a world exchange through its leader."""

from __future__ import annotations

from disteval.errors import UsageError
from disteval.worlds.channel.messages import Answer, Publication, Question

MAX_VALUE_BYTES = 1 << 20
"""The largest value; values are addresses and identifiers, not data."""

MAX_KEYS = 1_000
"""How many keys one rank may publish in one world."""


class Exchange:
    """The values that ranks have published, and the ranks that wait for one; the leader has it."""

    def __init__(self) -> None:
        self._values: dict[str, str | bytes] = {}
        self._waiting: dict[str, list[int]] = {}

    def clear(self) -> None:
        """Forget all keys, because the ranks are about to join another group."""
        self._values.clear()
        self._waiting.clear()

    def take(self, rank: int, message: Publication | Question) -> list[tuple[int, Answer]]:
        """Process a rank's message; return the answers that are known now, each with its rank."""
        key = message.key
        if isinstance(message, Publication):
            self._values[key] = message.value
            readers = self._waiting.pop(key, [])
        else:
            readers = [rank]
        if key in self._values:
            return [(reader, Answer(key, self._values[key])) for reader in readers]
        self._waiting.setdefault(key, []).extend(readers)
        return []


def check_entry(key: str, value: str | bytes) -> None:
    """Refuse a value that can't be published, on the rank that publishes it.

    Raises:
        UsageError: The value is too large, or neither text nor bytes.
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
