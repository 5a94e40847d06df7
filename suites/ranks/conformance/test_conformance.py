"""The suite that third parties run, over the backends that are here."""

from disteval.conformance.suite.test_conformance import test_rule  # noqa: F401 - pytest collects it
