"""The rules as tests for ``pytest --pyargs disteval.conformance.suite``."""
