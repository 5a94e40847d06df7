"""``disteval audit`` proves an evaluation loop right, or shows the sample that it got wrong."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from tqdm import tqdm

from disteval.cli.options import POSITIVE, RANKS, Command, is_given, judging_options, option
from disteval.cli.tables import print_findings, print_line, print_verdict
from disteval.cli.terminal import is_quiet, print_failure, tell, write_reports
from disteval.errors import UsageError
from disteval.judging.session import leading
from disteval.registry import add_working_directory
from disteval.world import World

if TYPE_CHECKING:
    from disteval.audit import AuditReport

STARTERS = (
    "plain", "accelerate", "lightning", "transformers", "trl", "lm_eval", "ignite", "torchmetrics",
    "mmengine", "keras", "flax",
)  # fmt: skip
"""The libraries that there is a function to start from for."""

_OF_RANKS = ("tokens", "first", "backend", "launcher", "interface", "timeout", "trace")
"""Options that an audit of a sampler, which has no ranks, does not have."""


@click.command("audit", cls=Command)
@click.argument("target", required=False)
@option(
    "--sampler", is_flag=True,
    help="TARGET is a function of the numbers of samples and ranks and the rank, which returns "
    "indices: try it alone, in all small cases.",
)  # fmt: skip
@option("--tokens", is_flag=True, help="Give each sample tokens, whose number varies.")
@option("--case", metavar="N=5,B=4,W=2", help="Try this case alone.")
@option("--first", is_flag=True, help="Stop at the first case that is wrong.")
@option("--seed", type=click.IntRange(min=0), default=0, metavar="N", help="The seed of the cases.")
@option(
    "--seconds", type=POSITIVE, default=300.0, metavar="SECONDS",
    help="Seconds after which no further case is tried.",
)  # fmt: skip
@option(
    "--write", "starter", type=click.Choice(STARTERS), metavar="LIBRARY",
    help=f"Print a function to start from: {', '.join(STARTERS)}.",
)  # fmt: skip
@option(
    "--backend", default="torch_cpu", metavar="NAME",
    help="The backend whose group the function finds.", heading=RANKS,
)  # fmt: skip
@judging_options("1,2,3", "one call may take; six times as many for the first")
def audit_command(
    target: str | None, backend: str, world_size: tuple[int, ...] | None, interface: str | None,
    sampler: bool, case: str | None, starter: str | None, trace: Path | None,
    json_path: Path | None, html_path: Path | None, **options: Any,
) -> None:  # fmt: skip
    r"""Audit the evaluation function TARGET, a module:function in the working directory.

    The function is called on every rank with a case: samples whose true result is known, in small
    and uneven numbers. It returns what it computed, by name. The audit compares that with the
    truth, and with one rank, and names the first sample that was counted twice, dropped or
    weighted wrongly. The exit status is 0 if the function is sound, 1 if it is wrong, and 2 if it
    could not be judged.

    \b
    disteval audit --write accelerate > my_eval.py
    disteval audit my_eval:evaluate
    disteval audit my_eval:evaluate --case N=5,B=4,W=2
    disteval audit --sampler my_eval:make_sampler
    mpirun -np 3 disteval audit my_eval:evaluate --backend mpi4py
    """
    if starter is not None:
        source = resources.files("disteval.cli").joinpath(f"audit_starters/{starter}.py")
        click.echo(source.read_text(encoding="utf-8"), nl=False)
        return
    if target is None:
        raise UsageError("no function is named; name one as module:function, or give --write")
    from disteval.audit.cases import parse
    from disteval.audit.runner import DEFAULT_WORLD_SIZES, Audit

    add_working_directory()
    only = None if case is None else parse(case)
    if only and world_size and only.world_size not in world_size:
        raise UsageError(
            f"--case has the world size {only.world_size}, and --world-size has "
            f"{', '.join(map(str, world_size))}; leave --world-size out"
        )
    if sampler:
        from disteval.audit.sampler import WORLD_SIZES, audit_sampler

        for name in _OF_RANKS:
            if is_given(name):
                raise UsageError(f"--{name} has no effect on --sampler, which starts no ranks")
        found = audit_sampler(
            target, world_size or WORLD_SIZES, only=only, seed=options["seed"],
            seconds=options["seconds"],
        )  # fmt: skip
        sys.exit(_write(found, json_path, html_path))
    if only:
        both = {name: getattr(only, name) or options[name] for name in ("tokens", "seed")}
        only = replace(only, **both)
    begun = leading(
        (only.world_size,) if only else world_size, DEFAULT_WORLD_SIZES, print_failure,
        world=World, interface=interface, trace=trace,
    )  # fmt: skip
    # A bar is for terminals (disable=None), not for log files.
    with begun as led, tqdm(unit="step", disable=True if is_quiet() else None) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        if reason := led.why_not(backend):
            raise UsageError(reason)
        report = Audit(
            target, led.sizes, backend, only=only, led=led.world, trace=led.trace,
            started_by=led.started_by, on_finding=lambda finding: tell(f"found: {finding}"),
            on_step=show, **options,
        ).run()  # fmt: skip
        bar.close()
        sys.exit(_write(report, json_path, html_path))


def _write(report: AuditReport, json_path: Path | None, html_path: Path | None) -> int:
    """Write and print a report, and return the exit status."""
    console, status = Console(), 0
    if json_path or html_path:
        status = write_reports(report.to_json(), report.target, json_path, html_path)
    print_findings(console, report.findings)
    for warning in report.warnings:
        print_line(console, f"\nnote: {warning}")
    if report.reason:
        print_line(console, f"\n{report.reason}")
        if report.details:
            print_line(console, "  " + report.details.replace("\n", "\n  "))
    print_verdict(console, report.target, report.judged)
    return report.judged.exit_code or status
