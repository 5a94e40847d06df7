"""Ranks that are forked off processes which have imported torch already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from disteval.conformance.forked import ForkServers
from disteval.worlds.launchers import base


@contextmanager
def local_ranks_forked(servers: ForkServers) -> Iterator[None]:
    """Fork the local ranks of the worlds that are started meanwhile.

    It is for tests of what ranks do. How the ranks of a user start is proved where commands run,
    and in worlds of a backend that needs no library.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(base._launchers, "local", servers.launcher)
        yield
