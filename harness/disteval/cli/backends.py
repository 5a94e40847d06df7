"""``disteval backends``: the registered backends, and whether each can be used here."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

import click
from rich.table import Table

from disteval.cli.tables import print_line, table_console
from disteval.contract import Capabilities, No
from disteval.errors import LibraryMissingError, describe_error
from disteval.extras import INSTALL_NOTE, installed_version, shortened
from disteval.judging.report import header
from disteval.registry import list_all_backends, load_backend_class


@dataclass(frozen=True)
class Support:
    """A backend's description, and whether its module and library can be imported here.

    ``library`` is a distribution, ``version`` the installed version of it. ``cannot`` has each
    capability that the backend lacks, with the reason.
    """

    name: str
    available: bool = True
    why_not: str = ""
    library: str = ""
    version: str = ""
    devices: str = ""
    launcher: str = ""
    cannot: tuple[tuple[str, str], ...] = ()

    @property
    def told(self) -> str:
        """Why it can't be used, for a list of backends."""
        return shortened(self.why_not.removeprefix(f"backend {self.name!r} can't be used: "))


def support_of(name: str) -> Support:
    """Import one backend and its library, and describe it."""
    try:
        cls = load_backend_class(name)
        cls()  # some need more than their library, such as a GPU
    except LibraryMissingError as error:
        return Support(name, available=False, why_not=str(error))
    except Exception as error:  # a third party's class may raise any exception
        reason = f"backend {name!r} can't be used: {describe_error(error)}"
        return Support(name, available=False, why_not=reason)
    declared = ((f.name, getattr(cls.capabilities, f.name)) for f in fields(Capabilities))
    cannot = tuple((field, no.reason) for field, no in declared if isinstance(no, No))
    return Support(
        name, True, "", cls.library, installed_version(cls.library) if cls.library else "",
        cls.devices, cls.launcher, cannot,
    )  # fmt: skip


@click.command("backends")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def backends_command(as_json: bool) -> None:
    r"""List the backends, and whether each can be used here.

    The command also lists the capabilities that a backend lacks.

    \b
    disteval backends
    disteval backends --json
    """
    found = [support_of(name) for name in list_all_backends()]
    if as_json:
        rows = [vars(support) | {"cannot": dict(support.cannot)} for support in found]
        click.echo(json.dumps(header("backends") | {"backends": rows}, indent=2))
        return
    table = Table("name", "library", "here", "devices", "launcher")
    for support in found:
        library = f"{support.library} {support.version}".strip()
        here = "yes" if support.available else "no"
        table.add_row(support.name, library, here, support.devices, support.launcher)
    console = table_console()
    console.print(table)
    for support in found:
        for capability, reason in support.cannot:
            print_line(console, f"– {support.name} has no {capability}: {reason}")
        if not support.available:
            print_line(console, f"– {support.name}: {support.told}")
    if not all(support.available for support in found):
        print_line(console, INSTALL_NOTE)
