"""Backends by name: the ones that come with this library, and third parties'.

Names come from the entry-point group ``disteval.backends`` and from `register_backend`. An entry
point is imported when its backend is asked for, not before, so that a broken one, or one whose
library is missing, does not affect the others.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disteval.arguments import did_you_mean, found_value
from disteval.contract import BaseDistBackend, Capabilities
from disteval.errors import (
    BackendUnavailableError,
    LibraryMissingError,
    UnknownBackendError,
    UsageError,
    describe_error,
)
from disteval.extras import how_to_install, when_used

if TYPE_CHECKING:
    from importlib import metadata
else:
    metadata = when_used("importlib.metadata")  # which imports email

ENTRY_POINT_GROUP = "disteval.backends"

_ORDER = ("non_dist", "mpi4py", "tf_horovod", "torch_cpu", "torch_cuda")
# The extra that installs a missing module.
_EXTRAS = {name: name for name in ("torch", "horovod", "tensorflow", "jax", "paddle", "mlx", "ray")}
_EXTRAS["mpi4py"] = "mpi"

_registered: dict[str, type[BaseDistBackend]] = {}


def list_all_backends() -> list[str]:
    """Return every registered name, installed or not, the most used ones first."""
    known = [*_entries(), *_registered]
    return list(dict.fromkeys([name for name in _ORDER if name in known] + known))


def register_backend(name: str, backend: type[BaseDistBackend]) -> None:
    """Register a backend class under ``name``, in this process.

    Args:
        name: The name for `disteval.get_dist_backend`.
        backend: A subclass of `BaseDistBackend` that can be created without arguments.

    Raises:
        UsageError: The name belongs to another class, or ``backend`` is not such a class.
    """
    _check_class(backend, f"register_backend({name!r}, …)")
    if not name or not isinstance(name, str):
        raise UsageError(f"a backend's name must be a non-empty string, not {name!r}")
    if _registered.get(name, backend) is not backend or name in _entries():
        raise UsageError(f"the backend name {name!r} is taken; choose another")
    _registered[name] = backend


def get_backend_class(name: str | type[BaseDistBackend]) -> type[BaseDistBackend]:
    """Import a backend's class and return it, without creating an instance.

    Args:
        name: A name of `list_all_backends`, or ``module:Class``. A class is returned as it is.

    Raises:
        UsageError: ``name`` is neither a name nor the class of a backend.
        UnknownBackendError: No backend is registered under ``name``.
        BackendUnavailableError: The backend's library is missing, or its module can't be imported.
            Some libraries are imported only when the class is used, see `load_backend_class`.
    """
    if isinstance(name, type) and issubclass(name, BaseDistBackend):
        return name
    if not isinstance(name, str):
        raise UsageError(
            f"expected a backend's name, or a subclass of disteval.BaseDistBackend, not {name!r}"
        )
    if name in _registered:
        return _registered[name]
    entry = _entries().get(name)
    if entry is None and ":" in name:
        if not is_reference(name):
            raise UsageError(f"{name!r} names no class; write it as module:Class")
        entry = metadata.EntryPoint(name, name, ENTRY_POINT_GROUP)
    if entry is None:
        raise unknown_backend(name)
    try:
        backend = entry.load()
    except (Exception, SystemExit) as error:  # a third party's module may raise any exception
        raise BackendUnavailableError(_unavailable(entry, error)) from error
    origin = entry.name if ":" in entry.name else f"the entry point {entry.name} = {entry.value}"
    _check_class(backend, origin)
    return backend  # type: ignore[no-any-return]


def load_backend_class(name: str | type[BaseDistBackend]) -> type[BaseDistBackend]:
    """Import a backend's class and the modules of its library, as far as it names them.

    Args:
        name: As for `get_backend_class`.

    Raises:
        UsageError: See `get_backend_class`.
        UnknownBackendError: See `get_backend_class`.
        BackendUnavailableError: See `get_backend_class`; or the library can't be imported.
    """
    cls = get_backend_class(name)
    try:
        for module in cls.preload:
            importlib.import_module(module)
    except Exception as error:  # a broken library may raise any exception
        entry = metadata.EntryPoint(name if isinstance(name, str) else cls.__name__, module, "")
        raise BackendUnavailableError(_unavailable(entry, error)) from error
    return cls


def is_reference(name: str) -> bool:
    """Return whether a text has the form ``module:name``, so that it can be imported."""
    return ":" in name and all(p.isidentifier() for p in name.replace(":", ".", 1).split("."))


def check_reference(name: str, kind: str) -> None:
    """Refuse a text that can't name an object of the user, without importing anything.

    Args:
        name: The text, which should be ``module:name``.
        kind: The word for the object, such as ``task``.

    Raises:
        UsageError: It is not of that form, or there is no such module.
    """
    module, _, path = name.partition(":")
    what = f"the {kind} {name!r} names"
    if "/" in module or module.endswith(".py"):
        raise UsageError(
            f"{what} a file; write it as module:function, such as {Path(module).stem}:"
            f"{path or kind}, in the folder of the file"
        )
    if not is_reference(name):
        example = f"{name}:{kind}" if module.isidentifier() and not path else f"my_{kind}:{kind}"
        raise UsageError(f"{what} no function; write it as module:function, such as {example}")
    top = module.partition(".")[0]
    if top not in sys.modules and find_spec(top) is None:
        raise _no_module(top)


def load_object(name: str, kind: str) -> Any:
    """Import an object of the user, see `check_reference`.

    Raises:
        UsageError: There is no such module, or it has nothing of that name.
        LibraryMissingError: The module imports one that is not installed.
        Exception: The error that the module raised.
    """
    check_reference(name, kind)
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise _no_module(error.name) from error
        raise LibraryMissingError(
            f"{module} can't be imported: {describe_error(error)}{hint_of_import(error)}. "
            f"Install what is missing, or correct the import"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            known = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
            hint = did_you_mean(part, known) or f" It has {', '.join(known) or 'no functions'}."
            raise UsageError(f"{module} has no {path!r}.{hint}")
        found = getattr(found, part)
    return found


def _no_module(name: str) -> UsageError:
    hint = did_you_mean(name, (path.stem for path in Path.cwd().glob("*.py")))
    return UsageError(
        f"there is no module {name!r} in the working directory or among the installed "
        f"packages.{hint} Write the name as module:function, for a module that can be imported"
    )


def add_working_directory() -> None:
    """Let ``module:Class`` name a module in the working directory, as ``python -m`` does."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _entries() -> dict[str, metadata.EntryPoint]:
    # The first distribution that claims a name keeps it, ours before a third party's.
    entries = sorted(
        metadata.entry_points(group=ENTRY_POINT_GROUP),
        key=lambda e: not e.value.startswith("disteval_backends."),
    )
    return {entry.name: entry for entry in reversed(entries)}


def _check_class(backend: object, origin: str) -> None:
    if not (isinstance(backend, type) and issubclass(backend, BaseDistBackend)):
        raise UsageError(
            f"{origin} gives {backend!r}, which is not a subclass of disteval.BaseDistBackend"
        )
    if missing := sorted(getattr(backend, "__abstractmethods__", ())):
        raise UsageError(
            f"{origin} gives {backend.__name__}, which lacks {', '.join(missing)}; a backend "
            f"defines all five members of the contract, or inherits them from a template"
        )
    if not isinstance(backend.capabilities, Capabilities):
        raise UsageError(
            f"{origin} gives {backend.__name__}, whose capabilities are "
            f"{found_value(backend.capabilities)}; set them to a disteval.contract.Capabilities"
        )
    if isinstance(backend.preload, str):
        raise UsageError(
            f"{origin} gives {backend.__name__}, whose preload is {backend.preload!r}; give the "
            f"names of modules in a tuple: ({backend.preload!r},)"
        )


def unknown_backend(name: object) -> UnknownBackendError:
    """Return the error of a name under which no backend is registered."""
    known = list_all_backends()
    hint = did_you_mean(name, known)
    module, dot, last = str(name).rpartition(".")
    # Looking for a module does not import it.
    if dot or (not hint and PathFinder.find_spec(last) is not None):
        path = f"{module}:{last}" if dot and last[:1].isupper() else f"{name}:Class"
        hint = f" Give a class of your own as module:Class, such as {path!r}."
    hint = hint or " Install the package that declares it, or give its class as module:Class."
    return UnknownBackendError(
        f"there is no backend {name!r}.{hint} The known ones are: {', '.join(known)}."
    )


def _unavailable(entry: metadata.EntryPoint, error: BaseException) -> str:
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing in _EXTRAS:
        reason, extra = f"the package {missing!r} is not installed", _EXTRAS[missing]
    elif entry.name == "mpi4py":
        reason, extra = f"mpi4py finds no MPI library ({error})", "mpi"
    else:
        reason = f"importing {entry.value} failed with {describe_error(error)}"
        reason += hint_of_import(error)
        return f"backend {entry.name!r} can't be used: {reason}"
    return f"backend {entry.name!r} can't be used: {reason}. Install it: {how_to_install(extra)}"


def hint_of_import(error: BaseException) -> str:
    """Return where a package without the missing module lies, since it may hide another package."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    package, dot, _ = (name or "").partition(".")
    if not dot or package not in sys.modules:
        return ""
    found = sys.modules[package]
    where = found.__file__ or ", ".join(found.__path__)
    return (
        f"; {package} was imported from {where}: if that hides the package that you mean, rename "
        f"it or start Python elsewhere"
    )
