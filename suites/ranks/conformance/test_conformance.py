"""The suite that third parties run passes for the backends that are installed here."""

from disteval.conformance.suite.test_conformance import test_rule  # noqa: F401 - pytest collects it
