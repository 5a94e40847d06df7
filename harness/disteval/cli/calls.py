"""``disteval calls``: where ranks parted, from the files of torch's flight recorder."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from disteval.text import visible
from disteval.worlds.torch_calls import describe_parting
from disteval.worlds.torch_dumps import read_dumps


@click.command("calls")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
def calls_command(folder: Path) -> None:
    r"""Name the first collective at which ranks parted, from files of torch's flight recorder.

    DIR holds a file of each rank, as torch writes them after a timeout of NCCL, and a rank of
    disteval after any failure, where TORCH_FR_DUMP_TEMP_FILE says. The exit status is 0 if the
    ranks made the same calls, 1 if they parted, and 2 if there is no such file.

    \b
    TORCH_FR_DUMP_TEMP_FILE=dumps/rank_ disteval audit my_eval:evaluate
    disteval calls dumps
    """
    calls = read_dumps(folder)
    for rank, own in calls.items():
        last = f", the last {own[-1]}" if own else ""
        click.echo(visible(f"rank {rank}: {len(own)} collectives remembered{last}"))
    parting = describe_parting(calls)
    click.echo(visible(f"first parted: {parting}" if parting else "no parting is to be seen"))
    sys.exit(1 if parting else 0)
