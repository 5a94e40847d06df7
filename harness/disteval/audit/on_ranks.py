"""What each rank does in an audit: it calls the user's function with a case."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from disteval.arguments import check_function
from disteval.audit.answers import Answer, is_close, read_result, roundings_of
from disteval.audit.case import Case, Fetches, Settings
from disteval.audit.cases import check_assumptions
from disteval.audit.guard import ExitError, guarded
from disteval.audit.jobs import is_hit, parts_of, run_again
from disteval.audit.judge import show
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


def prepare(
    _: BaseDistBackend, given: tuple[Target, Mapping[str, str]]
) -> tuple[tuple[str, ...], bool]:
    """Set the variables of a launcher, and import the user's function.

    Returns:
        What it assumes, and whether it is a job that writes a part, and has a merge.

    Raises:
        UsageError: There is no such function, it takes no case, or its merge takes no paths.
    """
    target, variables = given
    os.environ.update(variables)
    function, name = load(target), name_of(target)
    merge = getattr(function, "merge", None)
    _check_call(function, f"{name} can't be called with a case", "def evaluate(case)", None)
    if merge is not None:
        what = f"the merge of {name} can't be called with a case and paths"
        _check_call(merge, what, "def merge(case, paths)", None, None)
    called = [function, type(function).__call__]
    if any(inspect.iscoroutinefunction(f) or inspect.isgeneratorfunction(f) for f in called):
        raise UsageError(
            f"{name} returns a coroutine or a generator; it must return its result, as in "
            f"def evaluate(case) with a return statement"
        )
    return check_assumptions(getattr(function, "assumes", ())), merge is not None


def _check_call(function: Any, what: str, example: str, *arguments: None) -> None:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise UsageError(f"{what} ({error}); write it as {example}") from None
    except ValueError:  # a function of an extension module shows no signature
        pass


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

    A job writes its part. Ranks of this host note what they fetch in the world's folder, which has
    the folder of the case.
    """
    target, settings, planted, folder = given
    function, rank = load(target), backend.rank
    fetches = Fetches(folder.parent, rank)
    case = Case(settings, planted, rank, fetches, folder)
    joined, group = backend.is_initialized, _torch_group()
    try:
        with guarded():
            returned = function(case)
        twice = run_again(function, case) if is_hit(settings, rank, "repeated") else []
    finally:
        fetched = fetches.take()
    left = joined and not backend.is_initialized
    if left or (group is not None and group is not _torch_group()):
        raise RuntimeError(
            "the function left the process group in which it was called, or began another one; "
            "leave the group alone"
        )
    answer = Answer(fetched=fetched, in_training=case.in_training, rounding=case.rounding)
    if not hasattr(function, "merge"):
        return _answered(answer, returned, case)
    try:
        return replace(answer, parts=parts_of([returned, *twice], settings, rank))
    except UsageError as error:
        return replace(answer, refused=str(error))


def merge(
    backend: BaseDistBackend, given: tuple[Target, Settings, Planted, Path, Sequence[Answer]]
) -> Answer:
    """Merge the parts of all jobs on rank 0, and return the answer of this rank.

    Where a job was damaged, the merge should fail; returning None is as good.
    """
    target, settings, planted, folder, answers = given
    answer = answers[backend.rank]
    if backend.rank > 0:
        return answer
    function: Any = load(target)
    fetches = Fetches(folder.parent, 0)
    case = Case(settings, planted, 0, fetches, folder)
    parts = dict.fromkeys(part for each in answers for part in each.parts)
    try:
        with guarded():
            returned = function.merge(case, list(parts))
    except Exception:
        if not settings.damage:
            raise
        returned = None
    finally:
        fetches.take()
    if settings.damage and returned is None:
        return replace(answer, failed=True)
    rounding = max([case.rounding, *(each.rounding for each in answers)])
    return _answered(replace(answer, rounding=rounding), returned, case)


def _answered(answer: Answer, returned: Any, case: Case) -> Answer:
    """Return an answer with what was returned and logged, or why it can't be judged."""
    try:
        result, ordered = read_result(returned)
        logged = read_result(case.logs or None)[0] or {}
    except UsageError as error:
        return replace(answer, refused=str(error))
    roundings = roundings_of(case.logs, answer.rounding) | roundings_of(returned, answer.rounding)
    for name, value in logged.items():
        other = (result or {}).get(name, value)
        if not is_close(value, other, roundings.get(name, 0.0)):
            told = f"{name} is logged as {show(value)} and returned as {show(other)}"
            return replace(answer, refused=f"{told}; give them different names, or one of them")
    return replace(answer, result=result, logged=logged, ordered=ordered, roundings=roundings)


def _torch_group() -> Any:
    """Return the default group of torch.distributed; None without one."""
    distributed = sys.modules.get("torch.distributed")
    there = distributed is not None and distributed.is_available()
    return distributed.group.WORLD if there else None  # type: ignore[union-attr]
