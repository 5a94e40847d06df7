"""What each rank does in an audit: it calls the user's function with a case."""

from __future__ import annotations

import inspect
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from disteval.arguments import check_function
from disteval.audit.answers import Answer, read_result, roundings_of
from disteval.audit.case import Case, Fetches, Settings
from disteval.audit.cases import check_assumptions
from disteval.audit.guard import ExitError, guarded
from disteval.audit.planted import Planted
from disteval.contract import BaseDistBackend
from disteval.errors import HarnessError, UsageError, describe_error
from disteval.registry import load_object

Evaluate = Callable[[Case], Any]
Target = str | Evaluate


def name_of(target: Target) -> str:
    """Return ``module:function``; for what has no such name, its representation."""
    if isinstance(target, str):
        return target
    module, name = getattr(target, "__module__", ""), getattr(target, "__qualname__", "")
    return f"{module}:{name}" if module and name else repr(target)


def prepare(_: BaseDistBackend, given: tuple[Target, Mapping[str, str]]) -> tuple[str, ...]:
    """Set the variables of a launcher, import the user's function, and return what it assumes.

    Raises:
        UsageError: There is no such function, or it takes no case.
    """
    target, variables = given
    os.environ.update(variables)
    function = load(target)
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise UsageError(
            f"{name_of(target)} can't be called with a case ({error}); it must take one argument, "
            f"as in def evaluate(case)"
        ) from None
    except ValueError:  # a function of an extension module shows no signature
        pass
    called = [function, type(function).__call__]
    if any(inspect.iscoroutinefunction(f) or inspect.isgeneratorfunction(f) for f in called):
        raise UsageError(
            f"{name_of(target)} returns a coroutine or a generator; it must return its result, as "
            f"in def evaluate(case) with a return statement"
        )
    return check_assumptions(getattr(function, "assumes", ()))


def load(target: Target) -> Evaluate:
    """Return the user's function.

    Raises:
        UsageError: It can't be imported, or is no function.
    """
    if not isinstance(target, str):
        return target
    module = target.partition(":")[0]
    try:
        with guarded():
            function = load_object(target, "function")
    except HarnessError:
        raise
    except ExitError as error:
        raise UsageError(
            f"importing {module} called {error.call}; put what it does on its own behind "
            f"if __name__ == '__main__'"
        ) from error
    except Exception as error:  # a user's module may raise any exception
        raise UsageError(f"importing {module} failed with {describe_error(error)}") from error
    check_function(function)
    return function  # type: ignore[no-any-return]


def call(backend: BaseDistBackend, given: tuple[Target, Settings, Planted, Path]) -> Answer:
    """Call the user's function with a case; the exception that it raises is raised here.

    Ranks of this host note what they fetch in the world's folder.
    """
    target, settings, planted, folder = given
    function = load(target)
    fetches = Fetches(_file_of(folder, backend.rank))
    case = Case(settings, planted, backend.rank, fetches)
    joined, group = backend.is_initialized, _torch_group()
    try:
        with guarded():
            returned = function(case)
    finally:
        fetched = fetches.take()
    left = joined and not backend.is_initialized
    if left or (group is not None and group is not _torch_group()):
        raise RuntimeError(
            "the function left the process group in which it was called, or began another one; "
            "leave the group alone"
        )
    try:
        result, ordered = read_result(returned)
    except UsageError as error:
        return Answer(refused=str(error), fetched=fetched)
    roundings = roundings_of(returned, case.rounding)
    return Answer(result, ordered, roundings, "", fetched, case.in_training)


def _torch_group() -> Any:
    """Return the default group of torch.distributed; None without one."""
    distributed = sys.modules.get("torch.distributed")
    there = distributed is not None and distributed.is_available()
    return distributed.group.WORLD if there else None  # type: ignore[union-attr]


def _file_of(folder: Path, rank: int) -> Path:
    """Return a new path in the world's folder, or among temporary files on a host that lacks it."""
    there = folder if folder.is_dir() else Path(tempfile.gettempdir())
    return there / f"disteval-audit-{rank}-{secrets.token_hex(4)}"
