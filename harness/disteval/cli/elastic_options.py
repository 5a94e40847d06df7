"""The options of ``disteval eval --elastic``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from disteval.arguments import check_output_folder
from disteval.cli.options import OutputPath
from disteval.errors import UsageError
from disteval.world.bootstrap import has_named_leader


@dataclass(frozen=True)
class Elastic:
    """The options of an elastic evaluation.

    Attributes:
        ledger: The folder of the ledger; None keeps it in memory.
        join: Whether a leader is there already.
        ranks_per_lease: The number of ranks that hold a lease together.
    """

    ledger: Path | None
    join: bool
    ranks_per_lease: int

    def check_groups(self, world_size: int) -> None:
        """Refuse ranks that can't be divided into groups.

        Raises:
            UsageError: Says which numbers are possible.
        """
        if world_size % self.ranks_per_lease:
            raise UsageError(
                f"{world_size} ranks are not whole groups of --ranks-per-lease "
                f"{self.ranks_per_lease}; use a multiple of it as --world-size"
            )


def elastic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--elastic`` and its options, which `check_elastic` takes."""
    groups = "The number of consecutive ranks that evaluate a lease together."
    command = click.option(
        "--ranks-per-lease", type=click.IntRange(min=1), default=1, metavar="G", help=groups
    )(command)
    command = click.option(
        "--join",
        is_flag=True,
        help="Help the evaluation that runs with the same --ledger or DISTEVAL_LEADER.",
    )(command)
    command = click.option(
        "--ledger", type=OutputPath(check_output_folder), metavar="DIR",
        help="Keep in this folder what ranks have finished; the next run goes on from there. "
        "Implies --elastic.",
    )(command)  # fmt: skip
    return click.option(
        "--elastic", is_flag=True,
        help="Lend batches to ranks, which need no backend, and go on when some are lost.",
    )(command)  # fmt: skip


def check_elastic(ledger: Path | None, join: bool, ranks_per_lease: int) -> Elastic:
    """Return the options of an elastic evaluation.

    Raises:
        UsageError: Options contradict each other.
    """
    source = click.get_current_context().get_parameter_source("backend")
    if source is ParameterSource.COMMANDLINE:
        raise UsageError(
            "--backend with --elastic: leases need no backend; leave it out, and say with "
            "--launcher how the ranks are started"
        )
    if join and ledger is None and not has_named_leader():
        raise UsageError(
            "--join needs the evaluation to help: add its --ledger DIR, or set DISTEVAL_LEADER and "
            "DISTEVAL_KEY_FILE as there"
        )
    return Elastic(ledger, join, ranks_per_lease)
