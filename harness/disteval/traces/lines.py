"""The lines of a trace's file: one event each, as JSON."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

_MOST_TEXT = 200  # characters of a name or of the value of an argument


@lru_cache(4096)
def line_of(row: str, category: str, name: str, *names: str) -> str:
    """Return the line of such an event, with places for its begin, its duration and its values.

    Begin and duration are nanoseconds. The format has microseconds, and ``e-3`` makes them so: to
    divide and write floats takes as long as all the rest. Most events have a line that an earlier
    one had, and to fill it in takes a quarter of the time that making it takes.
    """
    fixed = [as_json(text).replace("%", "%%") for text in (name, category, *names)]
    arguments = ",".join([f"{text}:%s" for text in fixed[2:]])
    return (
        f',\n{{"name":{fixed[0]},"cat":{fixed[1]},{row},"ts":%se-3,"dur":%se-3,'
        f'"args":{{{arguments}}}}}'
    )


def as_json(value: Any) -> str:
    """Return a value as JSON; what JSON lacks becomes text."""
    if value is None:
        return "null"
    if isinstance(value, (bool, int)):
        return json.dumps(value)
    if isinstance(value, float) and abs(value) < 1e300:  # JSON has no infinity
        return repr(float(value))
    return in_utf8(str(value)[:_MOST_TEXT]).decode()


def in_utf8(value: Any) -> bytes:
    """Return JSON of which Perfetto reads all: it can't read everything that JSON allows.

    It refuses a file with a character that is escaped as two surrogates, so those are in UTF-8, and
    takes the quote after two backslashes for an escaped one. A surrogate that stands alone, which
    is no character, becomes a question mark.
    """
    text = json.dumps(value, ensure_ascii=False).replace("\\\\", "\\u005c")
    return text.encode(errors="replace")
