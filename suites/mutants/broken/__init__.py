"""Backends that are broken on purpose; each names the rule that it breaks."""

from suites.mutants.broken import (
    broadcasts,
    callers,
    copies,
    failures,
    gathered,
    groups,
    identity,
    mismatches,
    objects,
    sequences,
    template,
)
from suites.mutants.broken.base import MUTANTS

__all__ = [
    "MUTANTS",
    "broadcasts",
    "callers",
    "copies",
    "failures",
    "gathered",
    "groups",
    "identity",
    "mismatches",
    "objects",
    "sequences",
    "template",
]
