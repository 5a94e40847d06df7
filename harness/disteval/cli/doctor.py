"""``disteval doctor``: what works on this machine, and how to install the rest.

Each backend is tried in a process of its own: a broken library may crash, hang or print any text.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click

from disteval.cli.backends import Support, support_of
from disteval.cli.options import timeout_option
from disteval.cli.terminal import is_verbose
from disteval.errors import BackendUnavailableError, HarnessError, LibraryMissingError, WorldError
from disteval.extras import DISTRIBUTION, INSTALL_NOTE, how_to_install, installed_version, shortened
from disteval.files import write_atomically
from disteval.host import available_cores
from disteval.judging.report import header
from disteval.registry import add_working_directory, get_backend_class, list_all_backends
from disteval.text import visible
from disteval.world import World
from disteval.world.launchers import MpirunLauncher
from disteval.world.postmortem import exit_text, last_lines
from disteval.world.processes import Processes
from disteval.world.rank import import_code, import_path
from disteval.world.world import refuse_worlds_of_each

_SECONDS = 20.0
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


class Property(NamedTuple):
    """One property of this machine, which some backends need."""

    name: str
    works: bool
    detail: str


class Package(NamedTuple):
    """One package that this library or an extra of it requires.

    ``extra`` is empty if the package is always required, ``version`` if it is not installed.
    """

    extra: str
    name: str
    allowed: str
    version: str


def list_packages() -> list[Package]:
    """List the packages that this library and each extra require, and the installed versions."""
    found = []
    for line in metadata.requires(DISTRIBUTION) or []:
        if match := _REQUIREMENT.match(line):
            name, allowed, extra = match.groups()
            found.append(Package(extra or "", name, allowed, installed_version(name)))
    return found


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


_CODE = (
    import_code("sys.argv[1]", "disteval.cli.doctor import main_of_probe")
    + "main_of_probe(sys.argv[2], sys.argv[3], sys.argv[4] == 'start')"
)
_TERMINATE_SECONDS = 15.0  # an interrupted world terminates its ranks in less


@dataclass(frozen=True)
class ProbeResult(Support):
    """The result of trying one backend, with its description.

    It works if its ranks exchanged an object; or, if no ranks were to be started, if it can be
    imported. It is absent if a package that it needs is not installed. ``output`` is the end of
    the output of a process that ended without a result.
    """

    works: bool = False
    absent: bool = False
    ranks: int = 0
    seconds: float = 0.0
    output: str = ""


def try_backend(name: str, start: bool, seconds: float) -> ProbeResult:
    """Import a backend, and start ranks with it if asked, in a process with a time limit."""
    with tempfile.TemporaryDirectory(prefix="disteval-doctor-") as folder:
        answer, output = Path(folder, "answer.json"), Path(folder, "output")
        todo = "start" if start else "import"
        command = [sys.executable, "-c", _CODE, import_path(), name, str(answer), todo]
        processes = Processes()
        try:
            processes.start(command, dict(os.environ), output)
            status = processes.how_ended(0, seconds)
        finally:
            processes.end(_TERMINATE_SECONDS, signal.SIGINT)  # at which it ends its ranks
            processes.close()
        if answer.exists():
            return ProbeResult(**json.loads(answer.read_text()))
        why_not = f"there was no result within {seconds:g} s"
        if status is not None:
            why_not = f"{exit_text(status)}, without a result"
        return ProbeResult(name, available=False, why_not=why_not, output=last_lines(output))


def main_of_probe(name: str, answer: str, start: bool) -> None:
    """Try a backend in this process, and write the `ProbeResult` to the file ``answer``."""
    # The doctor terminates this process by SIGINT, which shells ignore in background jobs.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    result = json.dumps(asdict(_try_here(name, start)))
    write_atomically(Path(answer), lambda file: file.write(result.encode()))


def _try_here(name: str, start: bool) -> ProbeResult:
    support = support_of(name)
    known = ProbeResult(**vars(support), works=support.available, absent=not support.available)
    if not support.available or not start:
        return known
    if not get_backend_class(name).capabilities.multi_rank:
        return _try_ranks(known, 1)
    result = _try_ranks(known, 2)
    # NCCL needs one GPU for each rank, and there may be only one.
    return _try_ranks(known, 1) if result.absent else result


def _try_ranks(known: ProbeResult, size: int) -> ProbeResult:
    begin = time.monotonic()
    try:
        with World(known.name, size, threads=1) as world:
            gathered = world.run(lambda backend: backend.all_gather_object(backend.rank))
    except HarnessError as error:
        common = error.common if isinstance(error, WorldError) else error
        absent = isinstance(common, LibraryMissingError)
        return replace(known, works=False, absent=absent, why_not=str(common or error))
    seconds = round(time.monotonic() - begin, 2)
    if gathered != [list(range(size))] * size:
        wrong = f"{size} ranks gathered their numbers and received {gathered}"
        return replace(known, works=False, why_not=wrong)
    return replace(known, ranks=size, seconds=seconds)


REQUIRE = "DISTEVAL_REQUIRE"
"""The variable that names required backends and modules, here as in the test suites."""

_SIGNS = {True: "✓", False: "–"}


@click.command("doctor")
@click.argument("names", nargs=-1, metavar="[BACKEND]...")
@click.option("--start/--no-start", default=True, help="Start two ranks with each backend.")
@timeout_option(90.0, "Seconds that one backend may take.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def doctor_command(names: tuple[str, ...], start: bool, timeout: float, as_json: bool) -> None:
    r"""Show what works on this machine, and how to install the rest.

    The command lists the installed packages, MPI and the GPUs. Each backend that can be imported
    starts two ranks, which exchange an object. With BACKEND, a registered name or module:Class,
    only this backend is tried. The exit status is 0; or 1 if a backend or module that is named here
    or in DISTEVAL_REQUIRE does not work.

    \b
    disteval doctor
    disteval doctor --no-start --json
    disteval doctor torch_cpu my_package.backend:MyBackend
    """
    add_working_directory()
    if start:
        refuse_worlds_of_each("Run the doctor once, without that launcher, or with --no-start.")
    required = list(names) or [name for name in os.environ.get(REQUIRE, "").split(",") if name]
    properties, packages = [_mpi(), _gpu()], list_packages()
    host = {
        **header("doctor"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": available_cores(),
    }
    if not as_json:
        python = f"{platform.python_implementation()} {host['python']}"
        click.echo(
            f"{DISTRIBUTION} {host['version']}, {python}, {host['platform']}, {host['cores']} cores"
        )
        _show_machine(properties, packages)
    results = []
    for name in names or list_all_backends():
        result = try_backend(name, start, timeout)
        results.append(result)
        if not as_json:
            _show_result(result)
    works = {result.name: result.works for result in results}
    broken = [name for name in required if not works.get(name, _is_module(name))]
    if as_json:
        rows = {
            "machine": [each._asdict() for each in properties],
            "packages": [each._asdict() for each in packages],
            "backends": [asdict(result) for result in results],
        }
        click.echo(json.dumps({**host, **rows, "required": required, "broken": broken}, indent=2))
    else:
        count = sum(works.values())
        click.echo(f"\n{count} of {len(results)} backends {'work' if start else 'are installed'}.")
        click.echo(INSTALL_NOTE)
    if broken:
        click.echo(f"disteval doctor: required, but not working: {', '.join(broken)}", err=True)
        sys.exit(1)


def _is_module(name: str) -> bool:
    return name.isidentifier() and find_spec(name) is not None


def _show_machine(properties: list[Property], packages: list[Package]) -> None:
    click.echo("\nmachine")
    for each in properties:
        click.echo(visible(f"{_SIGNS[each.works]} {each.name}: {shortened(each.detail)}"))
    click.echo("\npackages")
    for extra in dict.fromkeys(package.extra for package in packages):
        own = [package for package in packages if package.extra == extra]
        told = [f"{p.name} {p.version} ({p.allowed})" for p in own if p.version]
        told = [", ".join(told)] if told else []
        if missing := ", ".join(p.name for p in own if not p.version):
            told.append(f"without {missing}: {shortened(how_to_install(extra))}")
        click.echo(f"{_SIGNS[not missing]} {extra or 'always'}: {'; '.join(told)}")
    click.echo("\nbackends")


def _show_result(result: ProbeResult) -> None:
    library = f"{result.library} {result.version}".strip()
    ranks = f"{result.ranks} rank{'s' * (result.ranks > 1)}, launcher {result.launcher}"
    took = f"{ranks}, in {result.seconds:g} s" if result.ranks else ""
    why_not = result.told if is_verbose() else result.told.partition("\n")[0]
    details = "; ".join(filter(None, [library, took, why_not])) or "installed"
    sign = _SIGNS[result.works] if result.works or result.absent else "✗"
    click.echo(visible(f"{sign} {result.name}: {details}"))
    if result.output:
        click.echo(visible("  " + result.output.replace("\n", "\n  ")))
