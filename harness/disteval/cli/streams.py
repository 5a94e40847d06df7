"""Standard streams on which printing never ends a command, whatever they are connected to."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

NOT_PRINTED = 2
"""The exit status of a command that succeeded, but whose output could not be printed."""


@contextmanager
def printing_safely() -> Iterator[None]:
    """Let the block print on streams that may be full or closed, or whose encoding lacks signs.

    After the first failed write to a stream, what is printed there is dropped. If a command ends
    after output was lost because the place is full, and not because its reader is gone, a sentence
    on standard error says so, and the exit status is not 0.
    """
    if sys.stdout is not sys.__stdout__ or sys.stderr is not sys.__stderr__:
        yield  # the caller has put streams of its own in their place
        return
    _open_closed_descriptors()
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
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        except SystemExit as end:
            out.flush()
            failure = printed.failure
            if failure is None or failure.errno == errno.EPIPE:
                raise
            err.write(
                f"disteval: standard output can't be written ({failure.strerror}), so a part of it "
                f"is missing; send it to another place\n"
            )
            raise SystemExit(end.code or NOT_PRINTED) from None
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
                # Another process may have set the pipe that we share not to wait for its reader.
                while (count := super().write(data)) is None:
                    select.select([], [self], [])
                return count
            except OSError as error:
                self.failure = error
        return memoryview(data).nbytes


def _open_closed_descriptors() -> None:
    """Connect closed standard streams to nothing, so that no other file gets their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
