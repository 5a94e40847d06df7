"""The causes of wrong results, for rules whose ranks call collectives one after another."""

from disteval.conformance.causes.calls import CALLS
from disteval.conformance.causes.lengths import LENGTHS
from disteval.conformance.causes.lists import LISTS
from disteval.conformance.causes.values import VALUES

RESULTS = (*LISTS, *VALUES, *LENGTHS, *CALLS)
"""The most special ones first."""
