"""The pytest entry point, which does nothing until a command line asks for the plugin.

pytest imports this wherever the harness is installed. The plugin's options, such as ``--backend``,
are short, and other plugins may have them too; so it is loaded by a command line that has
``--disteval-backend``, or names ``disteval``, and by those that ask for it with ``-p`` or in a
conftest. A conftest in an installed package comes too late to add options.
"""

from __future__ import annotations

import pytest

_PLUGIN = "disteval.conformance.plugin"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Load the plugin if the command line uses it."""
    asked = any(arg.partition("=")[0] == "--disteval-backend" for arg in args)
    ours = "--pyargs" in args and any(arg.partition(".")[0] == "disteval" for arg in args)
    if asked or ours:
        early_config.pluginmanager.import_plugin(_PLUGIN)
