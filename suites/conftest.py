"""The suites use worlds of ranks by the plugin that third parties load too."""

from __future__ import annotations

import pytest
from disteval.worlds import detect_outer_world

# The table is a plugin, since xdist leaves conftest.py of folders to its workers.
pytest_plugins = ["disteval.conformance.plugin", "suites.mutants.table"]

try:
    from hypothesis import settings
except ImportError:  # what needs it says so
    pass
else:
    # A test says whether an answer is right; how long it took says how busy the machine is.
    settings.register_profile("untimed", settings(), deadline=None)
    settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run only what uses the ranks that are there, where this process is one of them."""
    outer = detect_outer_world()
    if outer is None:
        return
    reason = f"not run: it does not use the ranks of this job; run it without {outer.launcher}"
    for item in items:
        if "worlds" not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=reason))
