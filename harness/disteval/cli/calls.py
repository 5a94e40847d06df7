"""``disteval calls``: where ranks parted, from the files of torch's flight recorder."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from disteval.errors import UsageError
from disteval.text import visible
from disteval.traces.torch_calls import find_parting, read_dumps


@click.command("calls")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
def calls_command(folder: Path) -> None:
    r"""Name the first collective at which ranks parted, from files of torch's flight recorder.

    DIR holds a file of each rank. torch writes such files after a timeout of NCCL, and the ranks of
    disteval write them after any failure if TORCH_FR_DUMP_TEMP_FILE is set. The exit status is 0 if
    the ranks made the same calls, 1 if they parted, and 2 without files of at least two ranks.

    \b
    TORCH_FR_DUMP_TEMP_FILE=dumps/rank_ disteval audit my_eval:evaluate
    disteval calls dumps
    """
    calls = read_dumps(folder)
    for rank, own in calls.items():
        last = f", the last {own[-1]}" if own else ""
        plural = "s" * (len(own) != 1)
        click.echo(visible(f"rank {rank}: {len(own)} collective{plural} remembered{last}"))
    if len(calls) < 2:
        raise UsageError(f"{folder} has a file of one rank alone; add those of the other ranks")
    parting = find_parting(calls)
    click.echo(
        visible(f"first parted: {parting.sentence}" if parting else "no parting is to be seen")
    )
    sys.exit(1 if parting else 0)
