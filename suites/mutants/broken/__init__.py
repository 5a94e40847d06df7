"""Backends that are broken on purpose; each names the rule that it breaks."""

from importlib import import_module
from pkgutil import iter_modules

from suites.mutants.broken.base import MUTANTS

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["MUTANTS"]
