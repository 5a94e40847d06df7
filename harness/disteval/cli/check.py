"""``disteval check`` proves that a backend is right, or shows the smallest example that fails."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Column, Table

from disteval.cli.options import COUNT, Command, judging_options, option
from disteval.cli.tables import print_findings, print_line, print_verdict, table_console
from disteval.cli.terminal import is_quiet, print_failure, write_reports
from disteval.conformance.verdict import findings_of, first_of, place_of, reasons_of
from disteval.errors import UsageError
from disteval.extras import needs
from disteval.judging.report import SIGNS
from disteval.judging.session import leading
from disteval.registry import add_working_directory
from disteval.text import visible

if TYPE_CHECKING:
    from disteval.conformance.results import CheckReport, RuleResult
    from disteval.conformance.rule import Rule

_MESSAGE_LENGTH = 160


@click.command("check", cls=Command)
@click.argument("target", required=False)
@option("--rules", default="", show_default=False, metavar="2.*,3.1", help="Check only these.")
@option(
    "--examples", type=COUNT, default=100, metavar="N",
    help="Drawn examples of a rule; of larger worlds an eighth.",
)  # fmt: skip
@option("--seed", type=int, default=0, metavar="N", help="The seed of drawing.")
@option("--list", "list_rules", is_flag=True, help="List the rules and exit.")
@judging_options("1,2,3,4,5", "one example may take")
def check_command(
    target: str | None, world_size: tuple[int, ...] | None, interface: str | None, rules: str,
    trace: Path | None, json_path: Path | None, html_path: Path | None, list_rules: bool,
    **options: Any,
) -> None:  # fmt: skip
    r"""Check the backend TARGET against every rule of the contract.

    TARGET is a registered name, or a module:Class that can be imported from the working directory.
    The command starts the ranks, or joins them under mpirun or torchrun. It prints the first
    failure of each mistake at once, and at the end a table of all rules and a sentence that says
    what the check covers. A backend is conformant only if it keeps every required rule at two or
    more world sizes, so a check with --rules, or at one world size, does not prove that. The exit
    status is 0 if every rule that was asked for holds or does not apply, 1 if one is broken, and 2
    if one could not be judged or nothing was tried.

    \b
    disteval check torch_cpu
    disteval check my_package.backend:MyBackend --world-size 3 --rules '2.*'
    """
    with needs("disteval check", "conformance"):
        from disteval.conformance.check import DEFAULT_WORLD_SIZES, check_backend, select_rules
        from disteval.conformance.world import JudgedWorld
    chosen = select_rules([part for part in rules.split(",") if part])
    if list_rules:
        table = Table("rule", "name", "level", "what a backend has to do")
        for rule in chosen:
            table.add_row(rule.number, rule.name, rule.level, rule.sentence)
        table_console().print(table)
        return
    if target is None:
        raise UsageError("no backend is named; name one, or give --list")
    add_working_directory()
    begun = leading(
        world_size, DEFAULT_WORLD_SIZES, print_failure,
        world=JudgedWorld, interface=interface, trace=trace,
    )  # fmt: skip
    with begun as led:
        if reason := led.why_not(target):
            raise UsageError(reason)
        report = check_backend(
            target, led.sizes, rules=chosen, led=led.world, trace=led.trace,
            on_result=None if is_quiet() else _print_first_failures(), **options,
        )  # fmt: skip
        status = 0
        if json_path or html_path:
            status = write_reports(report.to_json(), report.target, json_path, html_path)
        _show(table_console(), report, {rule.number: rule for rule in chosen})
        sys.exit(report.judged.exit_code or status)


def _print_first_failures() -> Callable[[RuleResult], None]:
    """Return a function that prints on standard error the first failure of each mistake.

    Several threads may call it.
    """
    told: dict[object, str] = {}

    def print_failure(result: RuleResult) -> None:
        if result.outcome != "failed":
            return
        place = place_of(vars(result))
        # What is tried again at the end comes twice.
        if place in [*told.values()] or first_of(told, vars(result)) != place:
            return
        # Ranks may have been lost for another reason, or were only too slow.
        note = "" if result.replay else " (it is tried again at the end)"
        message = result.message.replace("\n  ", " ").replace("\n", "; ")
        message = textwrap.shorten(message, _MESSAGE_LENGTH, placeholder=" …")
        line = f"rule {result.id}, {result.name}, fails at world size {result.world_size}{note}"
        click.echo(visible(f"{line}: {message}"), err=True)

    return print_failure


def _show(console: Console, report: CheckReport, rules: dict[str, Rule]) -> None:
    sizes = list(dict.fromkeys(result.world_size for result in report.rules))
    numbers = ("examples", "seconds", "per s")
    columns = [Column(f"W={size}", no_wrap=True) for size in sizes]
    columns += [Column(name, justify="right", no_wrap=True) for name in numbers]
    table = Table("rule", "name", *columns)
    for number, rule in rules.items():
        row = {r.world_size: r for r in report.rules if r.id == number}
        examples = sum(result.examples for result in row.values())
        seconds = sum(result.seconds for result in row.values())
        signs = (SIGNS[row[size].outcome].glyph for size in sizes)
        rate = f"{examples / seconds:.0f}" if examples else ""
        table.add_row(number, rule.name, *signs, str(examples), f"{seconds:.1f}", rate)
    console.print(table)
    for reason in reasons_of(map(vars, report.rules)):
        print_line(console, f"{SIGNS[reason.outcome].glyph} {reason.where}: {reason.text}")
    print_findings(console, findings_of(map(vars, report.rules)))
    total = sum(result.examples for result in report.rules)
    print_verdict(console, report.target, report.judged)
    console.print(f"{total} examples in {report.seconds:.0f} s")
    if report.judged.left_out:
        needed = "A conformant backend keeps every required rule at two or more world sizes"
        print_line(console, f"{needed}. Left out of this check: {report.judged.left_out}")
