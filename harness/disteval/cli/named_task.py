"""A user's own task, which ``disteval eval my_module:task`` names."""

from __future__ import annotations

import importlib
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.machinery import PathFinder
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from disteval.arguments import did_you_mean, found_value
from disteval.cli.job import AloneRank
from disteval.contract import BaseDistBackend
from disteval.errors import HarnessError, LibraryMissingError, UsageError, describe_error
from disteval.evaluation import Evaluation, Task
from disteval.evaluation.agreement import Failure, gathered
from disteval.registry import hint_of_import, is_reference
from disteval.report.values import plain

_making = threading.Lock()
_EXAMPLE = "such as my_task:task; disteval new writes a file to start from"


@dataclass(frozen=True)
class NamedTask:
    """A task by its name.

    Attributes:
        name: ``module:function``, or ``module:name`` of a `Task`.
        device: The device that ``--device`` named; None if the option was left out.
    """

    name: str
    device: str | None = None

    def make(self, backend: BaseDistBackend) -> Task:
        """Import the module and call its function; every rank of a group must call it.

        Raises:
            HarnessError: On every rank, when it failed on any rank.
        """
        if isinstance(backend, AloneRank):
            return self._task(backend)
        task, error = None, None
        try:
            task = self._task(backend)
        except Exception as raised:  # the other ranks would wait for this one
            error = raised
        failure = None if error is None else Failure(self._told(error), error)
        gathered(backend, None, failure, own=isinstance(error, HarnessError))
        assert task is not None
        return task

    def name_of(self, task: Task) -> str:
        """Return the name under which interrupted predictions go on."""
        return f"{self.name} {task.name}".rstrip()

    def describe(self, task: Task, result: Evaluation) -> dict[str, Any]:
        """Return the part of the report that other tasks do not have."""
        return {
            "task": self.name,
            "metrics": {str(name): plain(value) for name, value in result.metrics.items()},
            "limit": task.limit,
            "device": self.device or _device_of(task.predict),
            "samples_per_second": result.samples_per_second,
        }

    def _task(self, backend: BaseDistBackend) -> Task:
        try:
            return self._made(load(self.name), backend)
        except SystemExit as error:
            raise UsageError(
                f"{self.name} ends the process with status {error.code}; put what is meant for a "
                f"program under if __name__ == '__main__'"
            ) from error

    def _made(self, found: Any, backend: BaseDistBackend) -> Task:
        if isinstance(found, Task):
            self._refuse_device("a Task")
            return found
        if not callable(found):
            raise UsageError(
                f"{self.name} is {found_value(found)}; it must be a function that returns a "
                f"disteval.Task, or a Task"
            )
        arguments = self._arguments(found, backend)
        # Ranks that are threads have one generator of random numbers, so a seed holds for one task
        # only while no other is made. With a backend, ranks may wait for each other in there.
        with nullcontext() if "backend" in arguments else _making:
            made = found(**arguments)
        if not isinstance(made, Task):
            raise UsageError(
                f"{self.name} returned {found_value(made)}; it must return a disteval.Task"
            )
        return made

    def _arguments(self, function: Callable[..., Any], backend: BaseDistBackend) -> dict[str, Any]:
        """Return the arguments that a task's function asks for by the names of its parameters."""
        given = {"backend": backend, "device": self.device or "cpu"}
        try:
            parameters = dict(signature(function).parameters)
        except ValueError:  # that of some functions of C can't be known
            parameters = {}
        for name, parameter in parameters.items():
            known = name in given and parameter.kind is not Parameter.POSITIONAL_ONLY
            variable = parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
            if not known and not variable and parameter.default is Parameter.empty:
                raise UsageError(
                    f"{self.name} needs the argument {name!r}, which nothing gives; a task's "
                    f"function has no parameters, or some of {' and '.join(given)}"
                )
        if "device" not in parameters:
            self._refuse_device("a function without the parameter device")
        return {name: value for name, value in given.items() if name in parameters}

    def _refuse_device(self, what: str) -> None:
        if self.device is not None:
            raise UsageError(
                f"--device {self.device}: {self.name} is {what}; leave the option out, or write a "
                f"function that has this parameter"
            )

    def _told(self, error: Exception) -> str:
        """Return what other ranks are told of an error, and where the task's module raised it."""
        what = f"could not make the task {self.name}: {describe_error(error)}"
        if isinstance(error, (HarnessError, SyntaxError)):  # which say where it is
            return what
        file, line = _place(error, sys.modules.get(self.name.partition(":")[0]))
        return f"{what} ({file}, line {line})"


def _device_of(predict: Any) -> str:
    """Return the kind of device on which a model computes, where no option has named one."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    held = [predict, getattr(predict, "__self__", None)]
    held += [*getattr(predict, "args", ()), *getattr(predict, "keywords", {}).values()]
    held += [cell.cell_contents for cell in getattr(predict, "__closure__", None) or ()]
    held += [*getattr(predict, "__dict__", {}).values()]
    if torch is not None:
        models = [each for each in held if isinstance(each, torch.nn.Module)]
        tensors = [part for model in models for part in model.parameters()]
        tensors += [each for each in held if isinstance(each, torch.Tensor)]
        if tensors:
            return str(tensors[0].device.type)
    return "cpu" if jax is None else str(jax.default_backend())


def check_name(name: str) -> None:
    """Refuse the name of a task that can't be one, before ranks are started.

    Raises:
        UsageError: It is not of the form ``module:function``, or there is no such module.
    """
    module, colon, function = name.partition(":")
    if "/" in module or module.endswith(".py"):
        stem = Path(module).stem
        raise UsageError(
            f"the task {name!r} names a file; write it as module:function, such as "
            f"{stem}:{function or 'task'}, in the folder of the file"
        )
    if not colon:
        raise UsageError(
            f"the task {name!r} names no function; write it as module:function, such as {name}:task"
        )
    if not is_reference(name):
        raise UsageError(f"{name!r} names no task; write it as module:function, {_EXAMPLE}")
    top = module.partition(".")[0]
    if top not in sys.modules and PathFinder.find_spec(top) is None:
        raise _no_module(top)


def load(name: str) -> Any:
    """Import the object ``module:name``.

    Raises:
        UsageError: There is no such module, or it has nothing of that name.
        LibraryMissingError: The module imports one that is not installed.
        Exception: The error that the module raised.
    """
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise _no_module(error.name) from error
        raise LibraryMissingError(
            f"{module_name} can't be imported: {describe_error(error)}{hint_of_import(error)}. "
            f"Install what is missing, or correct the import"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            near = [key for key, value in vars(found).items() if callable(value)]
            hint = did_you_mean(part, near)
            raise UsageError(
                f"{module_name} has no {path!r}.{hint} Name a function of it, or a Task"
            )
        found = getattr(found, part)
    return found


def _no_module(name: str) -> UsageError:
    hint = did_you_mean(name, (path.stem for path in Path.cwd().glob("*.py")))
    return UsageError(
        f"there is no module {name!r} in the working directory or among the installed packages."
        f"{hint} Write a task as module:function, {_EXAMPLE}"
    )


def _place(error: Exception, module: Any) -> tuple[str, int]:
    """Return the file and line where an error was raised, in the module where that is known."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == getattr(module, "__file__", None)]
    frame = (own or list(frames))[-1]
    return Path(frame.filename).name, frame.lineno or 0
