"""The options that several sub-commands share."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from disteval.arguments import check_output_file, check_output_folder
from disteval.errors import UsageError
from disteval.traces import TraceFolder
from disteval.world import detect_outer_world

Command = Callable[..., Any]

_OUTPUTS = "disteval.cli.outputs"
_INTERFACE = "disteval.cli.interface"


class _Positive(click.FloatRange):
    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        found = super().convert(value, param, ctx)
        return found if math.isfinite(found) else self.fail(f"{value} is not finite.", param, ctx)


POSITIVE = _Positive(min=0, min_open=True)
"""The type of an option that takes a finite number above 0."""


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


json_option = click.option(
    "--json", "json_path", type=OutputPath(), help="Write the report to this file."
)


def interface_option(command: Command) -> Command:
    """Add ``--interface``, which `chosen_interface` returns."""

    def remember(context: click.Context, _option: object, value: str | None) -> None:
        if value is not None and detect_outer_world() is None:
            raise UsageError(
                f"--interface {value} is for ranks that mpirun, torchrun or srun has started on "
                f"several hosts, and this process was started alone; leave the option out"
            )
        context.meta[_INTERFACE] = value

    return click.option(
        "--interface", expose_value=False, callback=remember, metavar="NAME|ADDRESS",
        help="The network interface of rank 0's host on which it leads ranks of other hosts.",
    )(command)  # fmt: skip


def chosen_interface() -> str | None:
    """Return the value of ``--interface``; None if it was not given."""
    chosen: str | None = click.get_current_context().meta.get(_INTERFACE)
    return chosen


def _check_page(option: str, path: Path) -> None:
    from disteval.report.page import check_page_path  # not needed without a page

    check_page_path(option, path)


def html_option(**more: Any) -> Command:
    """Return the option ``--html``."""
    what = "Write a page to this file."
    return click.option("--html", "html_path", type=OutputPath(_check_page), help=what, **more)


def data_options(command: Command) -> Command:
    """Add ``--data`` and ``--download``, which `data_folder` takes."""
    command = click.option(
        "--download", is_flag=True, help="Download CIFAR-10 into the folder of --data first."
    )(command)
    return click.option(
        "--data", envvar="CIFAR10_ROOT", default="embedded",
        show_default="$CIFAR10_ROOT, else embedded", help="A folder with CIFAR-10, or 'embedded'.",
    )(command)  # fmt: skip


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


trace_option = click.option(
    "--trace", type=OutputPath(check_output_folder), metavar="DIR",
    help="Record what each rank does, and when, in this new folder; see disteval trace.",
)  # fmt: skip


def trace_folder(path: Path | None) -> TraceFolder | None:
    """Return the folder of ``--trace``, which only the leader makes; None if there is none.

    Raises:
        UsageError: It holds a trace already.
    """
    return None if path is None else TraceFolder(path, "--trace")


def device_option(what: str) -> Command:
    """Return the option ``--device``."""
    return click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help=what)


def batch_size_option(default: int | None, what: str, **more: Any) -> Command:
    """Return the option ``--batch-size``."""
    size = click.IntRange(min=1)
    return click.option("--batch-size", type=size, default=default, help=what, **more)


def timeout_option(default: float, what: str) -> Command:
    """Return the option ``--timeout``."""
    return click.option("--timeout", type=POSITIVE, default=default, help=what)
