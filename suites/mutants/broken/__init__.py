"""Deliberately broken backends, each a few lines over a correct one, and the rule it breaks."""

from suites.mutants.broken import (
    broadcasts,
    copies,
    failures,
    gathered,
    identity,
    objects,
    sequences,
    template,
)
from suites.mutants.broken.base import MUTANTS

__all__ = [
    "MUTANTS",
    "broadcasts",
    "copies",
    "failures",
    "gathered",
    "identity",
    "objects",
    "sequences",
    "template",
]
