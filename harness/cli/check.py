"""``disteval check``: prove a backend right, or show the smallest example that it gets wrong."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from harness.contract import BaseDistBackend
from harness.errors import BackendUnavailableError, HarnessError, LibraryMissingError, UsageError
from harness.registry import get_backend_class

if TYPE_CHECKING:
    from harness.conformance.rules import Rule
    from harness.conformance.runner import Report, Result

_SIGNS = {"passed": "✓", "failed": "✗ broken", "unsupported": "– declared", "error": "? not run"}


def _parse_sizes(_context: object, _option: object, value: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in value.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise click.BadParameter(f"{value!r} is no list of world sizes such as 1,2,3")
    return sizes


@click.command("check")
@click.argument("target", required=False)
@click.option("--world-size", callback=_parse_sizes, default="1,2,3,5", show_default=True)
@click.option("--launcher", help="How to start the ranks.  [default: what the class names]")
@click.option("--examples", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=20.0, show_default=True,
    help="Seconds that one example may take.",
)  # fmt: skip
@click.option("--rules", default="", metavar="2.*,3.1", help="Only these rules.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the report here.")
@click.option("--list", "list_rules", is_flag=True, help="List the rules and exit.")
def check_command(
    target: str | None,
    world_size: tuple[int, ...],
    launcher: str | None,
    examples: int,
    seed: int,
    timeout: float,
    rules: str,
    json_path: Path | None,
    list_rules: bool,
) -> None:
    r"""Hold the backend TARGET to every rule of the contract.

    TARGET is a registered name, or module:Class importable from the working directory. Exits with 0
    when the backend is conformant, 1 when it is broken, and 2 when it could not be judged.

    \b
    disteval check torch_cpu
    disteval check my_package.backend:MyBackend --world-size 3 --rules '2.*'
    """
    try:
        from harness.conformance.runner import check_backend, select_rules
    except ModuleNotFoundError as error:
        _fail(LibraryMissingError(
            f"disteval check needs {error.name}: pip install 'disteval-harness[conformance]'"
        ))  # fmt: skip
    try:
        chosen = select_rules([part for part in rules.split(",") if part])
        if list_rules:
            _list_rules(chosen)
            return
        if target is None:
            raise UsageError("name a backend to check, or give --list")
        cls = _load(target)
        report = check_backend(
            target,
            cls if ":" in target else target,
            cls,
            world_size,
            rules=chosen,
            launcher=launcher,
            examples=examples,
            seed=seed,
            timeout=timeout,
        )
    except HarnessError as error:
        _fail(error)
    _show(report, {rule.number: rule for rule in chosen})
    if json_path is not None:
        json_path.write_text(json.dumps(report.to_json(), indent=2) + "\n")
    sys.exit({"conformant": 0, "broken": 1, "incomplete": 2}[report.verdict])


def _load(target: str) -> type[BaseDistBackend]:
    if ":" not in target:
        return get_backend_class(target)
    module, _, name = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # a user's module may fail in any way
        raise BackendUnavailableError(
            f"{target} can't be imported: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, BaseDistBackend)):
        raise UsageError(f"{target} is {found!r}, which is no subclass of harness.BaseDistBackend")
    return found


def _list_rules(rules: list[Rule]) -> None:
    table = Table("rule", "name", "level", "what a backend has to do")
    for rule in rules:
        table.add_row(rule.number, rule.name, rule.level, rule.sentence)
    Console().print(table)


def _show(report: Report, rules: dict[str, Rule]) -> None:
    console = Console()
    sizes = list(dict.fromkeys(result.world_size for result in report.rules))
    table = Table(
        "rule",
        Column("name", no_wrap=True),
        *(f"W={size}" for size in sizes),
        "examples",
        "seconds",
    )
    for number, rule in rules.items():
        row = {r.world_size: r for r in report.rules if r.id == number}
        table.add_row(
            number,
            rule.name,
            *(_SIGNS[row[size].outcome] for size in sizes),
            str(sum(result.examples for result in row.values())),
            f"{sum(result.seconds for result in row.values()):.1f}",
        )
    console.print(table)
    reported: set[tuple[str, str]] = set()
    for result in report.rules:
        # The same reason at several world sizes is told once.
        if result.outcome != "passed" and (result.id, result.message) not in reported:
            reported.add((result.id, result.message))
            _show_result(console, report, result, rules[result.id])
    total = sum(result.examples for result in report.rules)
    console.print(f"{escape(report.target)} is [bold]{report.verdict}[/bold]: {total} examples")


def _show_result(console: Console, report: Report, result: Result, rule: Rule) -> None:
    title = f"rule {result.id}, world size {result.world_size}: {_SIGNS[result.outcome]}"
    console.print(f"\n[bold]{title}[/bold]\n{escape(rule.sentence)}")
    if result.counterexample:
        console.print(f"example: {escape(result.counterexample)}")
    console.print(escape(result.message))
    if result.outcome == "failed":
        console.print(
            f"again: disteval check {escape(report.target)} --rules {result.id} "
            f"--world-size {result.world_size} --seed {report.seed} --examples {report.examples}"
        )


def _fail(error: HarnessError) -> NoReturn:
    click.echo(f"disteval check: {error}", err=True)
    sys.exit(2)
