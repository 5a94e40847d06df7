"""The properties of this machine and the installed packages that this library depends on."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from disteval.errors import BackendUnavailableError, WorldError
from disteval.extras import DISTRIBUTION, how_to_install, installed_version
from disteval.world import control_directory
from disteval.world.launchers import MpirunLauncher

_SECONDS = 20.0
_ROOM = 1 << 16  # bytes: a full disk still takes an empty file
_LIBRARY_CODE = (
    "import mpi4py; mpi4py.rc.initialize = False; "
    "from mpi4py import MPI; print(MPI.Get_library_version())"
)
_MPI = {
    "Open MPI": r"Open MPI\)? v?(\d[\w.]*)",
    "Intel MPI": r"Intel\(R\) MPI Library.*?(\d{4}[\d.]*)",
    "MPICH": r"(?:HYDRA build details:|MPICH) *\s*Version:\s+(\d[\w.]*)",
}
_REQUIREMENT = re.compile(r"([\w.-]+)\s*([^;]*?)\s*(?:;.*\bextra == ['\"]([\w.-]+)['\"].*)?$")


@dataclass(frozen=True)
class Property:
    """One property of this machine, which every world of ranks may need."""

    name: str
    works: bool
    detail: str
    needed: bool = False


@dataclass(frozen=True)
class Package:
    """One package that this library or an extra of it requires.

    ``extra`` is empty if the package is always required, ``version`` if it is not installed.
    """

    extra: str
    name: str
    allowed: str
    version: str


def look_at_machine() -> list[Property]:
    """Examine what all worlds and some backends need of this machine."""
    return [_loopback(), _temporary_folder(), _mpi(), _gpu()]


def list_packages() -> list[Package]:
    """List the packages that this library and each extra require, and the installed versions."""
    found = []
    for line in metadata.requires(DISTRIBUTION) or []:
        if match := _REQUIREMENT.match(line):
            name, allowed, extra = match.groups()
            found.append(Package(extra or "", name, allowed, installed_version(name)))
    return found


def _loopback() -> Property:
    """Examine the loopback interface, over which the ranks of a host communicate."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), _SECONDS),
        ):
            server.settimeout(_SECONDS)
            server.accept()[0].close()
    except OSError as error:
        return Property("loopback", False, f"127.0.0.1 takes no connection: {error}", True)
    return Property("loopback", True, "127.0.0.1 takes connections", True)


def _temporary_folder() -> Property:
    """Examine the folder in which each world has its control directory, by making one."""
    try:
        made = control_directory.create()
        try:
            (made.path / "file").write_bytes(bytes(_ROOM))
        finally:
            made.remove()
    except OSError as error:
        return Property("temporary folder", False, f"{error}; set TMPDIR to another", True)
    except WorldError as error:
        return Property("temporary folder", False, str(error), True)
    return Property("temporary folder", True, str(control_directory.folder().parent), True)


def _mpi() -> Property:
    """Examine whether mpirun and mpi4py belong to the same MPI library."""
    try:
        [command] = MpirunLauncher().commands(Path(), 1)
    except BackendUnavailableError as error:
        return Property("MPI", False, str(error))
    mpirun = _implementation(_printed([command[0], "--version"]))
    detail = f"{command[0]} is {mpirun}"
    if not installed_version("mpi4py"):
        missing = f"mpi4py is not installed: {how_to_install('mpi')}"
        return Property("MPI", False, f"{detail}; {missing}")
    library = _implementation(_printed([sys.executable, "-c", _LIBRARY_CODE]))
    detail += f", and mpi4py uses {library}"
    if mpirun.partition(" ")[0] != library.partition(" ")[0]:
        return Property("MPI", False, f"{detail}: ranks would not find each other")
    return Property("MPI", True, detail)


def _implementation(text: str) -> str:
    for name, pattern in _MPI.items():
        if match := re.search(pattern, text, re.DOTALL):
            return f"{name} {match[1]}"
    first = text.strip().partition("\n")[0]
    return f"something else ({first[:80]})" if first else "an unknown MPI"


def _gpu() -> Property:
    command = shutil.which("nvidia-smi")
    if command is None:
        return Property("GPU", False, "nvidia-smi, a part of NVIDIA's driver, was not found")
    query = "--query-gpu=name,memory.total,driver_version"
    listed = _printed([command, query, "--format=csv,noheader"]).strip()
    return Property(
        "GPU", bool(listed), "; ".join(listed.splitlines()) or "nvidia-smi lists no GPU"
    )


def _printed(command: Sequence[str]) -> str:
    """Return the output of a command, or nothing if it fails or takes too long."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace",
            stdin=subprocess.DEVNULL, timeout=_SECONDS, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
