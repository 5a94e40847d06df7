"""What a judgement says: a verdict, and findings that the terminal, pages and pytest all show."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from disteval.extras import DISTRIBUTION

SCHEMA_VERSION = 1
"""The JSON's version; a change that readers of the last version would misunderstand raises it."""


class Sign(NamedTuple):
    """The sign of an outcome, which is never shown by a colour alone."""

    glyph: str
    word: str


SIGNS = {
    "passed": Sign("✓", "pass"),
    "failed": Sign("✗", "FAIL"),
    "unsupported": Sign("–", "n/a"),
    "error": Sign("?", "error"),
}


OUTCOMES = {
    "conformant": "passed",
    "broken": "failed",
    "incomplete": "error",
    "sound": "passed",
    "wrong": "failed",
    "proved": "passed",
    "not proved": "failed",
    "not judged": "error",
}
"""The outcome whose sign stands for a verdict."""


class Verdict(NamedTuple):
    """The verdict of a check or an audit.

    Attributes:
        word: The verdict for programs: ``conformant``, ``broken`` or ``incomplete`` of a check,
            ``sound``, ``wrong`` or ``not judged`` of an audit, and ``proved``, ``not proved`` or
            ``not judged`` of a number.
        covers: The sentence without its subject, which says what was tried: "passes rules 1.1-1.3
            (of 32) at world size 2".
        short: The same in a few words, for a badge.
        exit_code: 0 if all that was tried is right, 1 if something is wrong, 2 if something was not
            judged or nothing was tried.
        left_out: What a conformant backend has to show and this check did not try; empty if that
            is not why the verdict is ``incomplete``.
    """

    word: str
    covers: str
    short: str
    exit_code: int
    left_out: str = ""


class BaseReport:
    """What the reports of checks and audits have in common: the verdict ``judged``."""

    judged: Any  # a `Verdict`, which a subclass computes

    @property
    def verdict(self) -> str:
        """The word of the verdict, see `Verdict`."""
        return str(self.judged.word)

    @property
    def exit_code(self) -> int:
        """The exit status of the command, see `Verdict`."""
        return int(self.judged.exit_code)


class Line(NamedTuple):
    """A part of a finding: its label, and its text, which may have several lines.

    Attributes:
        label: What the text is.
        text: The text.
        folded: Whether a page shows only the label at first: tracebacks, stacks and output.
    """

    label: str
    text: str
    folded: bool = False

    def __str__(self) -> str:
        if not self.folded:
            return f"{self.label}: {self.text}"
        return "\n".join([f"{self.label}:", *(f"  {line}" for line in self.text.splitlines())])


@dataclass(frozen=True)
class Finding:
    """One way in which a backend or a loop is wrong.

    Attributes:
        title: The rule that is broken, or the kind of mistake.
        where: The world size or the case that shows it.
        sentence: What has to hold, or what was found instead of what.
        example: The smallest example found.
        message: What each rank returned, raised or was doing.
        cause: The likely cause and what to do about it, where it was seen.
        usually: What people get wrong who break this rule.
        evidence: The title and the text of each traceback, stack and output of ranks.
        replay: The command that shows it again.
        also: Other findings that show the same mistake.
        others: Where these are, in one line.
        target: What is wrong, on a page about several.
        anchor: What links to it on a page.
    """

    title: str
    where: str
    sentence: str
    example: str = ""
    message: str = ""
    cause: str = ""
    usually: str = ""
    evidence: Sequence[tuple[str, str]] = ()
    replay: str = ""
    also: Sequence[Finding] = ()
    others: str = ""
    target: str = ""
    anchor: str = ""

    def lines(self) -> list[Line]:
        """Return all that is said of it, in order; what is not known is left out."""
        found = [
            Line(self.title, self.sentence),
            Line("smallest case", self.where),
            Line("example", self.example),
            Line("found", self.message),
            Line("likely cause", self.cause),
            Line("usually", self.usually),
            Line("also", self.others),
            *(Line(title, text, folded=True) for title, text in self.evidence),
            Line("again", self.replay),
        ]
        return [line for line in found if line.text]


def replay(
    command: str, target: str, options: Mapping[str, object], started_by: Sequence[str] = ()
) -> str:
    """Return the command that shows a finding again.

    Args:
        command: The sub-command.
        target: What was judged, as it was named.
        options: The values of its options by name; None leaves one out, and True is for a flag.
        started_by: The command that starts the ranks, which stands before it.
    """
    words = [*started_by, "disteval", command, target]
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None:
            words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def header(kind: str) -> dict[str, Any]:
    """Return what the report of a command begins with: the version, the time and the command."""
    program = Path(sys.argv[0]).name
    name = "disteval" if program == "__main__.py" else program
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "version": metadata.version(DISTRIBUTION),
        "created": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": shlex.join([name, *sys.argv[1:]]),
    }
