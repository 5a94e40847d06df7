"""Write the rules into docs/contract.md: what must hold, and what people get wrong and what to do.

Both come from the docstring of the rule's function. The objects that every check sends are written
there, too. ``--check`` writes nothing, and exits with 1 where the page is not as it would be.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from disteval.conformance.check import select_rules
from disteval.conformance.fingerprint import describe
from disteval.conformance.objects import KINDS
from disteval.conformance.rule import Rule
from page import write_or_check

PAGE = Path(__file__).parents[1] / "docs" / "contract.md"
_LISTS = re.compile(
    r"(<!-- rules (\d+), written by tools/write_contract.py -->\n).*?(<!-- end -->)", re.S
)
_OBJECTS = re.compile(
    r"(<!-- objects, written by tools/write_contract.py -->\n).*?(<!-- end -->)", re.S
)


def described(rule: Rule) -> str:
    """Return the item of a rule."""
    level = f"optional: `{rule.capability}`" if rule.capability else rule.level
    usually = textwrap.fill(
        f"*Usually:* {_names_as_code(rule.usually)}",
        116,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"- **{rule.number}** {rule.sentence} *({level})*\\\n{usually}\n"


def _names_as_code(text: str) -> str:
    return re.sub(r"--\w+|\b\w+(?:\.\w+)+\b(?:\(\))?|\b[a-z]+_\w+\b", r"`\g<0>`", text)


def whole(page: str) -> str:
    """Return the page with the rules of each section.

    Raises:
        SystemExit: The page has no list for a section.
    """
    sections: dict[str, str] = {}
    for rule in select_rules():
        section = rule.number.partition(".")[0]
        sections[section] = sections.get(section, "") + described(rule)
    if missing := sections.keys() - {section for _, section, _ in _LISTS.findall(page)}:
        sys.exit(f"{PAGE.name} has no list for the rules of section {', '.join(sorted(missing))}")
    page = _LISTS.sub(lambda found: found[1] + sections.get(found[2], "") + found[3], page)
    told = textwrap.fill(", ".join(map(describe, KINDS)), 116, break_long_words=False)
    return _OBJECTS.sub(lambda found: f"{found[1]}```text\n{told}\n```\n{found[2]}", page)


if __name__ == "__main__":
    write_or_check(PAGE, whole, "rules")
