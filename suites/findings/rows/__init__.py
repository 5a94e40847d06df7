"""The findings, one module for each library, each with a list ``FINDINGS``."""
