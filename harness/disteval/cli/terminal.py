"""The output options and the error handling that all sub-commands share."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from disteval.errors import HarnessError, UsageError, WorldError, exit_code_of
from disteval.host import RANK_THREAD, exit_now, rank_threads_left
from disteval.launched import LaunchedJob, launched_job
from disteval.text import visible

INTERRUPTED = 130
"""The exit status after Ctrl-C, the same as a shell's for SIGINT."""

NOT_WRITTEN = 2
"""The exit status of a command that succeeded, but whose result could not be written or printed."""

_LAST_SECONDS = 3.0  # in which ranks that are threads end their batch, and keep what they have
_LOGGER = logging.getLogger("disteval")
_RANK_0_SECONDS = 5.0  # in which it tells what is wrong on every rank of a host


class Commands(click.Group):
    """A group whose commands share ``--quiet``, ``--verbose`` and the handling of errors.

    Its help has an example of each command, and no other list of them.

    Args:
        names: The names of commands that are imported when they are asked for. That of ``eval`` is
            ``eval_command`` of the module `disteval.cli.eval`.
    """

    def __init__(self, *args: Any, names: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._names = names
        self._share_with(self)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, and give it the shared options."""
        self._share_with(cmd)
        super().add_command(cmd, name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*self._names, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command and return it; None if no command has that name."""
        if cmd_name in self._names and cmd_name not in self.commands:
            module = import_module(f"disteval.cli.{cmd_name}")
            self.add_command(getattr(module, f"{cmd_name}_command"))
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing, for which no command has to be imported."""

    def _share_with(self, command: click.Command) -> None:
        helps = {
            "quiet": "Print only errors; the exit status tells the result.",
            "verbose": "Print the output of ranks and tracebacks, too.",
        }
        command.params += [
            click.Option(
                [f"-{name[0]}", f"--{name}"], is_flag=True, expose_value=False, callback=_set,
                help=text,
            )
            for name, text in helps.items()
        ]  # fmt: skip
        # Docstrings are raw strings, but click marks unwrapped lines by the one character \b.
        command.help = (command.help or "").replace("\\b", "\b")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line as a program that ends with it."""
        try:
            return super().__call__(*args, **kwargs)
        except SystemExit as end:
            # Python ends threads as it ends, and one that computes in C++ aborts the process.
            if rank_threads_left(_LAST_SECONDS if end.code == INTERRUPTED else 0.0):
                exit_now(end.code if isinstance(end.code, int) else 1)
            raise
        finally:
            # Libraries that Ctrl-C interrupts in their exit handlers would print a traceback.
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                with contextlib.suppress(ValueError):  # this is not the main thread
                    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line on streams that may be full or closed."""
        with _printing_safely():
            level, handler = _LOGGER.level, logging.StreamHandler(sys.stderr)
            handler.setLevel(logging.WARNING)
            # What ranks log is hidden in threads as in processes.
            handler.addFilter(lambda record: record.threadName != RANK_THREAD)
            _LOGGER.addHandler(handler)
            try:
                return super().main(*args, obj=handler, **kwargs)
            finally:
                _LOGGER.removeHandler(handler)
                _LOGGER.setLevel(level)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an exception becomes a paragraph and an exit status."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            # The worlds have ended. Another Ctrl-C could only change the exit status.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            print_error("interrupted", error)
            ctx.exit(INTERRUPTED)
        except HarnessError as error:
            _fail(ctx, error)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise  # click handles these
        except Exception as error:
            what, code = _unexpected(error)
            print_error(what, error)
            ctx.exit(code)


def _unexpected(error: Exception) -> tuple[str, int]:
    """Return what is said of an exception that is not of this library, and the exit status."""
    if isinstance(error, PermissionError) and error.filename:  # of some file or folder
        return f"{error.filename}: permission denied; correct its mode, or name another", 2
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}no space is left; free some, or name a folder on another disk", 1
    hint = "" if is_verbose() else " Add --verbose to see where it was raised."
    reason = f"unexpected {type(error).__name__}: {error}".rstrip(".")
    return f"{reason}.{hint}", 1


def _fail(ctx: click.Context, error: HarnessError) -> None:
    """End with a paragraph, or with a world's whole report where ranks did different things."""
    code, job = exit_code_of(error), _job()
    lost = isinstance(error, WorldError) and not error.in_step
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        # torchrun's own long report then ends with the error.
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps({"message": _common(error).partition("\n")[0]}))
    # Wrong usage is wrong on every rank of a host, but a file may be missing on another host.
    if code != 1 and job is not None and job.rank > 0 and job.ranks_on_host == job.world_size:
        time.sleep(_RANK_0_SECONDS)  # rank 0 tells it; a launcher may end it when this one ends
    else:
        print_failure(error)
    if job is not None and lost:
        exit_now(code)
    ctx.exit(code)


def _asked(name: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(f"disteval.cli.{name}"))


is_quiet, is_verbose = partial(_asked, "quiet"), partial(_asked, "verbose")
"""Functions that return whether the user gave ``--quiet``, and ``--verbose``."""


def print_error(what: str, error: BaseException) -> None:
    """Print one paragraph on standard error; with ``--verbose``, also the error's traceback."""
    if is_verbose():
        click.echo(visible("".join(traceback.format_exception(error)).rstrip()), err=True)
    job, context = _job(), click.get_current_context()
    rank = f"[rank {job.rank}] " if job is not None and job.rank > 0 else ""
    name = " ".join(filter(None, [context.command_path, context.invoked_subcommand]))
    click.echo(visible(f"{rank}{name}: {what}"), err=True)


def tell(what: str) -> None:
    """Print one line on standard error, above a bar; nothing with ``--quiet``."""
    from tqdm import tqdm  # not needed by other commands

    if not is_quiet():
        tqdm.write(visible(what.replace("\n", " ")), file=sys.stderr)


def print_failure(error: HarnessError) -> None:
    """Print an error of this library."""
    print_error(_common(error), error)


def _common(error: HarnessError) -> str:
    """Return what is said of an error, which may be the same on every rank."""
    common = error.common if isinstance(error, WorldError) else None
    return str(common or error)


def _job() -> LaunchedJob | None:
    with contextlib.suppress(UsageError):  # that is the error to print, then
        return launched_job()
    return None


def _set(context: click.Context, option: click.Parameter, value: bool) -> None:
    key, root = f"disteval.cli.{option.name}", context.find_root()
    if not value or context.meta.get(key):
        return
    context.meta[key] = True
    if option.name == "quiet":
        _LOGGER.setLevel(logging.ERROR)
        # What is dropped has to be encoded all the same.
        nothing = click.open_file(os.devnull, "w", "utf-8", "backslashreplace")
        root.with_resource(contextlib.redirect_stdout(root.with_resource(nothing)))
    else:
        from tqdm.contrib.logging import logging_redirect_tqdm  # which imports asyncio

        _LOGGER.setLevel(logging.INFO)
        root.obj.setLevel(logging.INFO)
        root.obj.filters.clear()
        root.with_resource(logging_redirect_tqdm([_LOGGER]))  # lines stay above progress bars


def write_reports(
    run: dict[str, Any], title: str, json_path: Path | None, html_path: Path | None = None
) -> int:
    """Write the files that were asked for, and say of each that can't be written why.

    Args:
        run: The report.
        title: What it is about, for a page.
        json_path: The file of ``--json``, or None.
        html_path: The file of ``--html``, or None.

    Returns:
        The exit status of a command that has nothing else to say: 0, or `NOT_WRITTEN`.
    """
    from disteval.report.files import write_run  # not needed by other commands

    writers = [partial(write_run, json_path, run)]
    if html_path is not None:
        from disteval.report.page import write_page  # not needed without a page

        writers.append(partial(write_page, html_path, [(title, run)]))
    return write_each(writers)


def write_each(writers: Iterable[Callable[[], object]]) -> int:
    """Call functions that write a file each; the return value is that of `write_reports`."""
    code = 0
    for write in writers:
        try:
            write()
        except HarnessError as error:
            print_error(str(error), error)
            code = NOT_WRITTEN
    return code


@contextlib.contextmanager
def _printing_safely() -> Iterator[None]:
    """Let the block print on streams that may be full or closed, or whose encoding lacks signs.

    After the first failed write to a stream, what is printed there is dropped. If a command ends
    after output was lost because the place is full, and not because its reader is gone, a sentence
    on standard error says so, and the exit status is not 0.
    """
    if sys.stdout is not sys.__stdout__ or sys.stderr is not sys.__stderr__:
        yield  # the caller has put streams of its own in their place
        return
    # Closed standard streams are connected to nothing, so that no other file gets their numbers.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    printed = _Descriptor(1)
    out, err = (
        io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=getattr(replaced, "encoding", "utf-8"),
            errors="backslashreplace",  # for what an encoding lacks
            line_buffering=True,
        )
        for raw, replaced in ((printed, sys.stdout), (_Descriptor(2), sys.stderr))
    )
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            yield
        except SystemExit as end:
            out.flush()
            failure = printed.failure
            if failure is None or failure.errno == errno.EPIPE:  # whose reader is gone
                raise
            err.write(
                f"disteval: standard output can't be written ({failure.strerror}), so a part of it "
                f"is missing; send it to another place\n"
            )
            raise SystemExit(end.code or NOT_WRITTEN) from None
        finally:
            out.flush()
            err.flush()


class _Descriptor(io.FileIO):
    """A file descriptor that accepts everything, and drops it after the first failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "wb", closefd=False)
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        if self.failure is None:
            try:
                # None: it would have to wait, for another process has set the pipe not to block.
                while (count := super().write(data)) is None:
                    select.select([], [self], [])
                return count
            except OSError as error:
                self.failure = error
        return memoryview(data).nbytes
