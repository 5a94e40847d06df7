"""Text from ranks and files, so that a person sees all of it."""

from __future__ import annotations


def visible(text: str, keep: str = "\n\t") -> str:
    r"""Write characters that can't be seen as Python would: ``\x1b``, ``\u202e``, ``\ud800``.

    Some turn the text around them about, and some can't be written to a file at all.

    Args:
        text: Any text.
        keep: What stays, though it can't be seen.
    """
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )
