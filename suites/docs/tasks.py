"""Tasks that pages and examples show, imported from their files and compared to the last bit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np


def load(path: Path) -> ModuleType:
    """Import a file."""
    spec = importlib.util.spec_from_file_location(f"shown_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exactly(found: Any) -> str:
    """Return results as text with every digit, so that equal texts are equal bits."""
    if isinstance(found, dict):
        return str({key: exactly(found[key]) for key in sorted(found)})
    return repr(np.asarray(found).tolist())
