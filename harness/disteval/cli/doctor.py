"""``disteval doctor``: what works on this machine, and how to install the rest."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import click

from disteval.cli.completion import complete_backend
from disteval.cli.machine import Package, Property, list_packages, look_at_machine
from disteval.cli.options import timeout_option
from disteval.cli.probe import ProbeResult, try_backend
from disteval.cli.terminal import is_verbose
from disteval.extras import (
    DISTRIBUTION,
    INSTALL_NOTE,
    how_to_install,
    shortened,
)
from disteval.host import available_cores
from disteval.judging.report import header
from disteval.registry import add_working_directory, list_all_backends
from disteval.text import visible
from disteval.world.environment import refuse_worlds_of_each

REQUIRE = "DISTEVAL_REQUIRE"
"""The variable that names required backends and modules, here as in the test suites."""

_SIGNS = {True: "✓", False: "–"}


@click.command("doctor")
@click.argument("names", nargs=-1, metavar="[BACKEND]...", shell_complete=complete_backend)
@click.option("--start/--no-start", default=True, help="Start two ranks with each backend.")
@timeout_option(90.0, "Seconds that one backend may take.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def doctor_command(names: tuple[str, ...], start: bool, timeout: float, as_json: bool) -> None:
    r"""Show what works on this machine, and how to install the rest.

    The command lists the installed packages, MPI and the GPUs. Each backend that can be imported
    starts two ranks, which exchange an object. With BACKEND, a registered name or module:Class,
    only this backend is tried. The exit status is 0; or 1 if ranks can't be started at all, or if a
    backend or module that is named here or in DISTEVAL_REQUIRE does not work.

    \b
    disteval doctor
    disteval doctor --no-start --json
    disteval doctor torch_cpu my_package.backend:MyBackend
    """
    add_working_directory()
    if start:
        refuse_worlds_of_each("Run the doctor once, without that launcher, or with --no-start.")
    required = list(names) or [name for name in os.environ.get(REQUIRE, "").split(",") if name]
    properties, packages = look_at_machine(), list_packages()
    host = {
        **header("doctor"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": available_cores(),
    }
    if not as_json:
        _show_machine(host, properties, packages)
    results = []
    for name in names or list_all_backends():
        result = try_backend(name, start, timeout)
        results.append(result)
        if not as_json:
            _show_result(result)
    broken = _broken(required, properties, results)
    if as_json:
        found: dict[str, list[Any]] = {
            "machine": properties, "packages": packages, "backends": results,
        }  # fmt: skip
        rows = {name: [asdict(row) for row in listed] for name, listed in found.items()}
        report = host | rows | {"required": required, "broken": broken}
        click.echo(json.dumps(report, indent=2))
    else:
        works = sum(result.works for result in results)
        click.echo(f"\n{works} of {len(results)} backends {'work' if start else 'are installed'}.")
        click.echo(INSTALL_NOTE)
    if broken:
        click.echo(f"disteval doctor: required, but not working: {', '.join(broken)}", err=True)
        sys.exit(1)


def _broken(
    required: list[str], properties: list[Property], results: list[ProbeResult]
) -> list[str]:
    """Return the names of properties and backends that are required and do not work."""
    works = {result.name: result.works for result in results}
    missing = [name for name in required if not works.get(name, _is_module(name))]
    return [each.name for each in properties if each.needed and not each.works] + missing


def _is_module(name: str) -> bool:
    return name.isidentifier() and find_spec(name) is not None


def _show_machine(
    host: dict[str, Any], properties: list[Property], packages: list[Package]
) -> None:
    click.echo(
        f"{DISTRIBUTION} {host['version']}, {platform.python_implementation()} {host['python']}, "
        f"{host['platform']}, {host['cores']} cores"
    )
    click.echo("\nmachine")
    for each in properties:
        detail = shortened(each.detail)
        click.echo(visible(f"{_SIGNS[each.works]} {each.name}: {detail}"))
    click.echo("\npackages")
    for extra in dict.fromkeys(package.extra for package in packages):
        _show_extra(extra, [package for package in packages if package.extra == extra])
    click.echo("\nbackends")


def _show_extra(extra: str, packages: list[Package]) -> None:
    there = ", ".join(f"{p.name} {p.version} ({p.allowed})" for p in packages if p.version)
    missing = ", ".join(p.name for p in packages if not p.version)
    absent = f"without {missing}: {shortened(how_to_install(extra))}" if missing else ""
    line = "; ".join(filter(None, [there, absent]))
    click.echo(f"{_SIGNS[not missing]} {extra or 'always'}: {line}")


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
