"""Naming the likely cause of one failure."""

from __future__ import annotations

from contextlib import suppress

from disteval.conformance.causes import raised
from disteval.conformance.rules import Bench, BrokenRuleError, LostWorld, Rule
from disteval.conformance.seen import Seen, source_files


def likely_cause(rule: Rule, bench: Bench, error: BrokenRuleError | LostWorld) -> str:
    """Return the likely cause of a failure and what to do about it, or nothing."""
    seen = Seen(
        source_files(bench.cls),
        bench.world_size,
        error.error,
        error.differences,
        bench.wrong,
        error.facts,
    )
    for cause in (raised.by_words, *rule.causes, raised.at_one_place):
        # What a broken backend returned may not even be comparable.
        with suppress(Exception):
            if found := cause(seen):
                return found
    return ""
