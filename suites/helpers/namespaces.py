"""Programs in a private mount and pid namespace, where each process that is left can be seen."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_UNSHARE = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--mount-proc"]
_UNSHARE += ["--fork", "--kill-child"]
_SECONDS = 300  # for a busy machine; programs have shorter waits of their own


def run_alone(program: str, *words: str, folder: Path) -> str:
    """Run a Python program as the first process of a pid namespace, and return what it prints.

    All its temporary files go to ``folder``. What it has started is killed when it ends.
    """
    _skip_without_namespaces()
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder)}
    ended = subprocess.run(
        [*_UNSHARE, sys.executable, "-c", program, *words],
        env=os.environ | paths,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def others() -> list[int]:
    """Return the ids of all processes of this namespace that run, but this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        try:
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if pid != os.getpid() and state not in "ZX":
            found.append(pid)
    return found


@functools.cache
def _skip_without_namespaces() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("not run: there is no unshare, which makes namespaces")
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"not run: no pid namespace can be made here: {tried.stderr.strip()}")
