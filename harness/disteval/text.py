"""Text for messages, such as that of ranks and files with every character visible."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

_UNUSUAL = re.compile("[^ -~]")


def visible(text: str, keep: str = "\n\t") -> str:
    r"""Replace invisible characters by Python's escapes: ``\x1b``, ``\u202e``, ``\ud800``.

    Some of these characters are commands to a terminal, some change the direction of the text
    around them, and some can't be written to a file. The characters in ``keep`` stay.
    """

    def shown(found: re.Match[str]) -> str:
        character = found[0]
        if character.isprintable() or character in keep:
            return character
        return character.encode("unicode_escape").decode()

    return _UNUSUAL.sub(shown, text)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function without its arguments, which a `functools.partial` holds."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def with_sections(text: str, sections: Iterable[tuple[str, str]]) -> str:
    """Return a text with titled sections below it, whose lines are indented."""
    lines = [text]
    for title, content in sections:
        lines += [f"{title}:", *(f"  {line}" for line in content.splitlines())]
    return "\n".join(lines)
