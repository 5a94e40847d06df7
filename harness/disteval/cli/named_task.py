"""A user's own task, which ``disteval eval my_module:task`` names."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Container
from contextlib import nullcontext
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from disteval.arguments import found_value
from disteval.contract import BaseDistBackend
from disteval.errors import HarnessError, RankError, UsageError, describe_error
from disteval.evaluation import Task
from disteval.identity import Description
from disteval.registry import check_reference, load_object

_making = threading.Lock()


@dataclass(frozen=True)
class NamedTask:
    """A task by its name.

    Attributes:
        name: ``module:function``, or ``module:name`` of a `Task`.
        device: The device that ``--device`` named; None if the option was left out.
        arguments: The words that follow the name, which its function reads as it likes.
    """

    name: str
    device: str | None = None
    arguments: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse a name that can't be one; only the ranks import the module."""
        check_reference(self.name, "task")

    def make(self, backend: BaseDistBackend) -> Task:
        """Import the module, and call its function.

        Raises:
            RankError: The module or the function raised an exception that is not of this library.
        """
        try:
            task = self._made(load_object(self.name, "task"), backend)
        except SystemExit as error:
            raise UsageError(
                f"{self.name} ends the process with status {error.code}; put what is meant for a "
                f"program under if __name__ == '__main__'"
            ) from error
        except HarnessError:
            raise
        except Exception as error:
            what = f"could not make the task {self.name}: {describe_error(error)}"
            if not isinstance(error, SyntaxError):  # which says where it is
                frames = traceback.extract_tb(error.__traceback__)
                file = getattr(sys.modules.get(self.name.partition(":")[0]), "__file__", None)
                frame = ([each for each in frames if each.filename == file] or list(frames))[-1]
                what += f" ({Path(frame.filename).name}, line {frame.lineno or 0})"
            raise RankError(backend.rank, what) from error
        return replace(task, name=f"{self.name} {task.name}".rstrip())

    def describe(self, task: Task) -> dict[str, Any]:
        """Return what a report says of the task."""
        return {"task": self.name, "device": self.device or _device_of(task.predict)}

    def _made(self, found: Any, backend: BaseDistBackend) -> Task:
        if isinstance(found, Task):
            self._refuse_what_is_not_in((), "a Task")
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
        given: dict[str, Any] = {"backend": backend, "device": self.device or "cpu"}
        given["arguments"] = list(self.arguments)
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
                    f"function has no parameters, or some of {', '.join(given)}"
                )
        self._refuse_what_is_not_in(parameters, "a function without the parameter {}")
        return {name: value for name, value in given.items() if name in parameters}

    def _refuse_what_is_not_in(self, parameters: Container[str], what: str) -> None:
        """Refuse a device or words on the command line that nothing takes."""
        device = self.device and f"--device {self.device}"
        words = self.arguments and f"{' '.join(self.arguments)!r:.100}"
        for name, given in (("device", device), ("arguments", words)):
            if given and name not in parameters:
                raise UsageError(
                    f"{given}: {self.name} is {what.format(name)}; leave it out, or write a "
                    f"function that has the parameter {name}"
                )


def _device_of(predict: Any) -> str:
    """Return the kind of device on which a model computes, where no option has named one."""
    if (torch := sys.modules.get("torch")) is not None:
        found = Description("predict", predict, is_model=True, has_digests=False)
        weights = (each for model in found.models for each in model.parameters())
        for each in [*weights, *found.arrays]:
            if isinstance(each, torch.Tensor):
                return str(each.device.type)
    jax = sys.modules.get("jax")
    return "cpu" if jax is None else str(jax.default_backend())
