"""A guard around a call of the user's function, which must not end the audit or print into it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

_exit = os._exit
_lock = threading.Lock()
_calls = 0
_thread = threading.local()  # with ``process`` while the thread is in a call


class ExitError(RuntimeError):
    """The user's code would have ended its process.

    Args:
        call: The call that would have.
    """

    def __init__(self, call: str) -> None:
        super().__init__(call)
        self.call = call

    def __str__(self) -> str:
        return f"the function called {self.call}; let it return instead"


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Turn an exit of this process into an error, and send what is printed to standard error.

    A process that the function has forked and that comes back from it ends here, for it is no rank.

    Raises:
        ExitError: The block called ``exit``, ``sys.exit`` or ``os._exit``.
    """
    global _calls
    process = _thread.process = os.getpid()
    with _lock:  # ranks that are threads of one process replace things once
        _calls += 1
        os._exit = _refuse
        # A call that hangs never leaves, and others may replace standard output before the next.
        if not isinstance(sys.stdout, _Output):
            sys.stdout = _Output(sys.stdout)
    try:
        yield
    except SystemExit as error:
        status = "" if error.code is None else error.code
        _end_fork(process, status if isinstance(status, int) else int(bool(status)))
        raise ExitError(f"exit({status})").with_traceback(error.__traceback__) from None
    except BaseException:
        if os.getpid() != process:
            traceback.print_exc()
        _end_fork(process, 1)
        raise
    finally:
        _end_fork(process, 0)
        del _thread.process
        with _lock:
            _calls -= 1
            if _calls == 0:
                os._exit = _exit
                if isinstance(sys.stdout, _Output):
                    sys.stdout = sys.stdout.replaced


def _is_in_call() -> bool:
    """Return whether this thread is in a call; the leader's own is not, even if a call hangs."""
    return getattr(_thread, "process", None) == os.getpid()


def _refuse(status: int) -> NoReturn:
    if _is_in_call():
        raise ExitError(f"os._exit({status})")
    _exit(status)


class _Output:
    """Standard output; during a call, standard error in its place.

    Args:
        replaced: The standard output that there was.
    """

    def __init__(self, replaced: Any) -> None:
        self.replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if _is_in_call() else self.replaced, name)


def _end_fork(process: int, status: int) -> None:
    if os.getpid() != process:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        _exit(status)
