"""Extras: the optional packages of this library, and how they are installed."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from disteval.errors import LibraryMissingError

DISTRIBUTION = "disteval-harness"

INSTALL_NOTE = (
    "Run pip install '.[…]' in a clone; with a built wheel, put its file in place of the dot."
)
"""Where the commands of messages that `shortened` returned are to be run."""

_WHERE = " in a clone, or pip install 'WHEEL{}' with a built wheel"


def how_to_install(extra: str = "") -> str:
    """Return the command that installs the packages of an extra, and where to run it.

    The package is on no index yet. When it is published, only this function changes.
    """
    extras = f"[{extra}]" if extra else ""
    return f"pip install '.{extras}'{_WHERE.format(extras)}"


def shortened(text: str) -> str:
    """Return a message without what `INSTALL_NOTE` says, for a list of many such messages."""
    return re.sub(_WHERE.format(r"[^']*"), "", text)


def installed_version(distribution: str) -> str:
    """Return the installed version of a distribution, or nothing if it is not installed."""
    from importlib import metadata  # which imports email, and many commands need no version

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Raise LibraryMissingError with a remedy if a package can't be imported in the block.

    Args:
        what: The feature that needs the package, as the beginning of a sentence.
        extra: The extra that installs the package.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package == "disteval":
            raise
        missing = isinstance(error, ModuleNotFoundError)
        reason = "is not installed" if missing else f"can't be imported ({error})"
        raise LibraryMissingError(
            f"{what} can't be used: the package {package!r} {reason}. "
            f"Install it: {how_to_install(extra)}"
        ) from error


def when_used(module: str) -> Any:
    """Return what stands for a module, and imports it when one of its attributes is asked for.

    Raises:
        ModuleNotFoundError: The package that the module belongs to is not installed.
    """
    package = module.partition(".")[0]
    if find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return _WhenUsed(module)


class _WhenUsed:
    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _module(self) -> ModuleType:
        return importlib.import_module(self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
