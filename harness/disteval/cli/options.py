"""Options below headings, and those that several sub-commands share."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from disteval.arguments import check_output_file, check_output_folder
from disteval.errors import UsageError
from disteval.world import detect_outer_world

RANKS, RESULTS, RESNET18 = "The ranks", "The results", "ResNet-18 on CIFAR-10"
"""Headings of shared options."""

_OUTPUTS = "disteval.cli.outputs"

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Option(click.Option):
    """An option that ``--help`` shows below a heading."""

    def __init__(self, *args: Any, heading: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


class Command(click.Command):
    """A command whose ``--help`` shows its options below their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                heading = getattr(parameter, "heading", "Options")
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def option(*names: str, **more: Any) -> Decorator:
    """Return an option, as `click.option` does; ``heading`` is what it stands below."""
    return click.option(*names, cls=Option, **more)


class _Positive(click.FloatRange):
    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        found = super().convert(value, param, ctx)
        return found if math.isfinite(found) else self.fail(f"{value} is not finite.", param, ctx)


POSITIVE = _Positive(min=0, min_open=True)
"""The type of an option that takes a finite number above 0."""

COUNT = click.IntRange(min=1)
"""The type of an option that takes a whole number above 0."""


def counts(most: int | None = None) -> Callable[[object, object, str | None], Any]:
    """Return the callback of an option that takes different whole numbers, such as 1,2,3.

    Args:
        most: The largest number that is allowed; None sets no limit.
    """

    def parsed(_context: object, _option: object, text: str | None) -> tuple[int, ...] | None:
        parts = [] if text is None else text.split(",")
        found = tuple(int(part) for part in parts if part.strip().isdecimal() and len(part) < 10)
        wrong = [n for n in found if n < 1 or (most is not None and n > most)]
        if wrong or len(set(found)) < len(parts):
            limit = "from 1 up" if most is None else f"from 1 to {most}"
            raise click.BadParameter(
                f"{text!r} is not a list of different whole numbers {limit}, such as 1,3"
            )
        return found or None

    return parsed


class OutputPath(click.Path):
    """The path of a file or folder to write, which is checked before the work.

    Args:
        check: A function of the option and the path that raises an error if it can't be written.
    """

    def __init__(self, check: Callable[[str, Path], None] = check_output_file) -> None:
        super().__init__(path_type=Path)
        self._check = check

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the path; UsageError if another option's file would replace this one's."""
        path: Any = super().convert(value, param, ctx)
        option = param.opts[0]
        self._check(option, path)
        outputs = ctx.meta.setdefault(_OUTPUTS, {})
        other, check = outputs.setdefault(os.path.realpath(path), (option, self._check))
        are_folders = check is self._check is check_output_folder
        is_device = path.exists() and not (path.is_file() or path.is_dir())
        if other != option and not are_folders and not is_device:
            raise UsageError(f"{other} and {option} both name {path}; give each a file of its own")
        return path


def _check_page(option: str, path: Path) -> None:
    from disteval.report.page import check_page_path  # not needed without a page

    check_page_path(option, path)


JSON = option(
    "--json", "json_path", type=OutputPath(), metavar="FILE", help="Write the report to this file.",
    heading=RESULTS,
)  # fmt: skip

HTML = option(
    "--html", "html_path", type=OutputPath(_check_page), metavar="FILE",
    help="Write a page to this file.", heading=RESULTS,
)  # fmt: skip

CERTIFICATE = option(
    "--certificate", type=OutputPath(), metavar="FILE", heading=RESULTS,
    help="Write which samples the number is about; see disteval verify.",
)  # fmt: skip

TRACE = option(
    "--trace", type=OutputPath(check_output_folder), metavar="DIR", heading=RESULTS,
    help="Record what each rank does, and when; see disteval trace.",
)  # fmt: skip

DOWNLOAD = option(
    "--download", is_flag=True, help="Download CIFAR-10 into the folder of --data first.",
    heading=RESNET18,
)  # fmt: skip

DATA = option(
    "--data", envvar="CIFAR10_ROOT", default="embedded", metavar="DIR",
    show_default="$CIFAR10_ROOT, else embedded", help="CIFAR-10, or 'embedded'.",
    heading=RESNET18,
)  # fmt: skip


def data_folder(data: str, download: bool) -> Path | None:
    """Return the folder with CIFAR-10, where it was downloaded if asked for; None for 'embedded'.

    Raises:
        UsageError: There is no folder to download to.
        DataError: CIFAR-10 could not be downloaded.
    """
    if data != "embedded":
        if not download:
            return Path(data)
        from disteval.data.cifar10 import download_cifar10  # needed here alone

        return download_cifar10(data)
    if download:
        raise UsageError("--download needs a folder to put CIFAR-10 in: add --data DIR")
    return None


def _with_launcher(_context: object, _option: object, value: str | None) -> str | None:
    if value is not None and detect_outer_world() is None:
        raise UsageError(
            f"--interface {value} is for ranks that mpirun, torchrun or srun has started on "
            f"several hosts, and this process was started alone; leave the option out"
        )
    return value


INTERFACE = option(
    "--interface", callback=_with_launcher, metavar="NAME|ADDRESS",
    help="Rank 0's network interface for ranks of other hosts.", heading=RANKS,
)  # fmt: skip


LAUNCHER = option(
    "--launcher", metavar="NAME", show_default="the backend's", heading=RANKS,
    help="The launcher of the ranks, such as ray.",
)  # fmt: skip


def timeout_option(default: float, what: str, heading: str = RANKS) -> Decorator:
    """Return the option ``--timeout``."""
    return option(
        "--timeout", type=POSITIVE, default=default, metavar="SECONDS", help=what, heading=heading
    )


def judging_options(sizes: str, seconds_of: str) -> Decorator:
    """Return the options of commands that judge ranks: how they are started, and what is written.

    Args:
        sizes: The world sizes that are tried by default.
        seconds_of: What ``--timeout`` limits.
    """
    world_sizes = option(
        "--world-size", callback=counts(), metavar="1,2,3", heading=RANKS,
        show_default=f"{sizes}, or that of mpirun or torchrun", help="The world sizes to try.",
    )  # fmt: skip
    timeout = timeout_option(20.0, f"Seconds that {seconds_of}.")

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in (TRACE, HTML, JSON, timeout, INTERFACE, LAUNCHER, world_sizes):
            command = each(command)
        return command

    return add


def is_given(name: str) -> bool:
    """Return whether an option stands on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE
