"""Text from ranks and files, with every character visible."""

from __future__ import annotations


def visible(text: str, keep: str = "\n\t") -> str:
    r"""Replace invisible characters by Python's escapes: ``\x1b``, ``\u202e``, ``\ud800``.

    Some of these characters change the direction of the text around them, and some can't be written
    to a file. The characters in ``keep`` stay.
    """
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )
