"""``disteval check``: prove a backend right, or show the smallest example that it gets wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from disteval.cli.completion import complete_backend
from disteval.cli.terminal import print_error
from disteval.errors import HarnessError, LibraryMissingError, UsageError, WorldError
from disteval.registry import add_working_directory, get_backend_class
from disteval.report.files import check_json_path, write_run
from disteval.report.model import SIGNS
from disteval.report.page import check_page_path, write_page
from disteval.worlds import (
    OuterWorld,
    detect_outer_world,
    follow,
    release,
    share_cores,
    why_not_in,
)

if TYPE_CHECKING:
    from disteval.conformance.results import Report, Result
    from disteval.conformance.rules import Rule
    from disteval.conformance.world import JudgedWorld


def _parse_sizes(_context: object, _option: object, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        sizes = tuple(int(part) for part in value.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise click.BadParameter(f"{value!r} is not a list of world sizes such as 1,2,3")
    return sizes


@click.command("check")
@click.argument("target", required=False, shell_complete=complete_backend)
@click.option(
    "--world-size", callback=_parse_sizes, metavar="1,2,3",
    help="World sizes.  [default: 1,2,3,5, or what mpirun or torchrun started]",
)  # fmt: skip
@click.option(
    "--launcher", metavar="NAME",
    help="What starts the ranks, such as ray.  [default: what the class names]",
)  # fmt: skip
@click.option(
    "--examples", type=click.IntRange(min=1), default=100, show_default=True,
    help="Drawn examples a rule and world size.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="What draws the examples.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=20.0, show_default=True,
    help="Seconds that one example may take.",
)  # fmt: skip
@click.option("--rules", default="", metavar="2.*,3.1", help="Only these rules.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the report here.")
@click.option("--html", "html_path", type=click.Path(path_type=Path), help="And here, as a page.")
@click.option("--list", "list_rules", is_flag=True, help="List the rules and exit.")
def check_command(
    target: str | None,
    world_size: tuple[int, ...] | None,
    launcher: str | None,
    examples: int,
    seed: int,
    timeout: float,
    rules: str,
    json_path: Path | None,
    html_path: Path | None,
    list_rules: bool,
) -> None:
    r"""Hold the backend TARGET to every rule of the contract.

    TARGET is a registered name, or module:Class importable from the working directory. Starts the
    ranks itself, or joins them under mpirun or torchrun. Exits with 0 when the backend is
    conformant, 1 when it is broken, and 2 when it could not be judged.

    \b
    disteval check torch_cpu
    disteval check my_package.backend:MyBackend --world-size 3 --rules '2.*'
    """
    try:
        from disteval.conformance.runner import DEFAULT_WORLD_SIZES, check_backend, select_rules
        from disteval.conformance.world import JudgedWorld
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
        check_json_path(json_path)
        if html_path is not None:
            check_page_path(html_path)
        add_working_directory()
        outer = detect_outer_world()
        if outer is not None and outer.rank > 0:
            sys.exit(follow(outer))
        judge = partial(
            check_backend,
            target,
            rules=chosen,
            launcher=launcher,
            examples=examples,
            seed=seed,
            timeout=timeout,
        )
        led = None
        if outer is None:
            report = judge(world_size or DEFAULT_WORLD_SIZES)
        else:
            led = JudgedWorld.lead(outer)
            report = _judge_attached(judge, target, world_size, outer, led)
    except HarnessError as error:
        _fail(error)
    _show(Console(), report, {rule.number: rule for rule in chosen})
    code = {"conformant": 0, "broken": 1, "incomplete": 2}[report.verdict]
    try:
        _write(report, json_path, html_path)
    except HarnessError as error:
        print_error("check", str(error), error)
        code = 2
    if led is not None:
        release(led, code)
    sys.exit(code)


def _judge_attached(
    judge: Callable[..., Report],
    target: str,
    world_size: tuple[int, ...] | None,
    outer: OuterWorld,
    led: JudgedWorld,
) -> Report:
    """Judge a backend on ranks that somebody else has started; there is one world size alone."""
    try:
        share_cores(outer)
        if world_size not in (None, (outer.world_size,)):
            raise UsageError(
                f"--world-size {','.join(map(str, world_size))}, but {outer.launcher} started "
                f"{outer.world_size} ranks; leave the option out"
            )
        led.load(target)
        if reason := why_not_in(outer, target, get_backend_class(target)):
            raise UsageError(reason)
        return judge((outer.world_size,), led=led)
    except HarnessError as error:
        common = error.common if isinstance(error, WorldError) else None
        print_error("check", str(common or error), error)
        release(led, 2)
        sys.exit(2)


def _write(report: Report, json_path: Path | None, html_path: Path | None) -> None:
    found = report.to_json()
    write_run(json_path, found)
    if html_path is not None:
        write_page(html_path, [(report.target, found)])


def _list_rules(rules: list[Rule]) -> None:
    table = Table("rule", "name", "level", "what a backend has to do")
    for rule in rules:
        table.add_row(rule.number, rule.name, rule.level, rule.sentence)
    Console().print(table)


def _show(console: Console, report: Report, rules: dict[str, Rule]) -> None:
    sizes = list(dict.fromkeys(result.world_size for result in report.rules))
    table = Table(
        "rule",
        "name",
        *(Column(f"W={size}", no_wrap=True) for size in sizes),
        Column("examples", justify="right", no_wrap=True),
        Column("seconds", justify="right", no_wrap=True),
        Column("per s", justify="right", no_wrap=True),
    )
    for number, rule in rules.items():
        row = {r.world_size: r for r in report.rules if r.id == number}
        examples = sum(result.examples for result in row.values())
        seconds = sum(result.seconds for result in row.values())
        table.add_row(
            number,
            rule.name,
            *(SIGNS[row[size].outcome].glyph for size in sizes),
            str(examples),
            f"{seconds:.1f}",
            f"{examples / seconds:.0f}" if examples else "",
        )
    console.print(table)
    for outcome in ("unsupported", "error"):
        _show_reasons(console, report, outcome)
    for number, rule in rules.items():
        failed = [r for r in report.rules if (r.id, r.outcome) == (number, "failed")]
        if failed:
            _show_failure(console, report, rule, failed)
    total = sum(result.examples for result in report.rules)
    console.print(
        f"\n{escape(report.target)} is [bold]{report.verdict}[/bold]: "
        f"{total} examples in {report.seconds:.0f} s"
    )


def _show_reasons(console: Console, report: Report, outcome: str) -> None:
    """Why rules were not held against this backend: each reason once."""
    reasons: dict[str, dict[int, list[str]]] = {}
    for result in report.rules:
        if result.outcome == outcome:
            sizes = reasons.setdefault(result.message, {})
            sizes.setdefault(result.world_size, []).append(result.id)
    for reason, sizes in reasons.items():
        where: dict[str, list[str]] = {}
        for size, ids in sizes.items():
            where.setdefault(", ".join(ids), []).append(f"W={size}")
        told = "; ".join(f"{ids} at {', '.join(names)}" for ids, names in where.items())
        console.print(f"{SIGNS[outcome].glyph} {told}: {escape(reason)}", soft_wrap=True)


def _show_failure(console: Console, report: Report, rule: Rule, results: list[Result]) -> None:
    """The failure at the smallest world size, and at which others there is one."""
    first, *others = results
    lines = [f"\n[bold]rule {first.id}, world size {first.world_size}: broken[/bold]"]
    lines.append(escape(rule.sentence))
    if first.counterexample:
        lines.append(f"example: {escape(first.counterexample)}")
    lines.append(escape(first.message))
    if others:
        sizes = ", ".join(str(result.world_size) for result in others)
        lines.append(f"also broken at world size{'s' * (len(others) > 1)} {sizes}")
    lines.append(f"again: {escape(first.replay)}")
    console.print("\n".join(lines), soft_wrap=True)  # commands and paths stay in one piece


def _fail(error: HarnessError) -> NoReturn:
    print_error("check", str(error), error)
    sys.exit(2)
