"""The distribution that provides a backend's class, which tells the reports of versions apart."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname


@cache
def provider_of(cls: type) -> tuple[str, str]:
    """Return the name and the version of the distribution that provides a class.

    Both are empty if no installed distribution does. The files count, not the names: a package in
    the working directory hides an installed one of the same name, and has its version only if
    every module of the two is the same, as after ``pip install .`` in a clone.
    """
    path = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if path is None:
        return "", ""
    file = Path(path).absolute()
    for found in distributions():
        # If its files are damaged, it provides nothing.
        with suppress(OSError, ValueError, LookupError, AttributeError):
            if _has(found, file, cls.__module__) or _is_editable(found, file, cls.__module__):
                return found.metadata["Name"] or "", found.version or ""
    return "", ""


def _has(found: Distribution, file: Path, module: str) -> bool:
    """Return whether a distribution has installed a module's file, or the same package."""
    root = file.parents[module.count(".") + (file.stem == "__init__")]
    name = file.relative_to(root).as_posix()
    recorded, base = _recorded(found), _base(found)
    if name not in recorded or root == base:
        return name in recorded
    package = f"{module.partition('.')[0]}/"
    modules = [one for one in recorded if one == name or one.startswith(package)]
    same = (one for one in modules if one.endswith(".py") or one == name)
    return all((root / one).read_bytes() == (base / one).read_bytes() for one in same)


def _is_editable(found: Distribution, file: Path, module: str) -> bool:
    """Return whether a distribution is installed as a link to the folder with a module's file."""
    where = json.loads(found.read_text("direct_url.json") or "{}")
    if not where.get("dir_info", {}).get("editable"):
        return False
    source = Path(url2pathname(urlsplit(where["url"]).path))
    top = module.partition(".")[0]
    if top in (found.read_text("top_level.txt") or "").split():
        return file.is_relative_to(source)
    links = [_base(found) / name for name in _recorded(found) if name.endswith(".pth")]
    added = [path for link in links for path in link.read_text(encoding="utf-8").splitlines()]
    names = [Path(root, *module.split(".")) for root in added]
    return file.with_suffix("") in names or file.parent in names


def _recorded(found: Distribution) -> list[str]:
    """Return the names of the files that a distribution has installed."""
    return [line.partition(",")[0] for line in (found.read_text("RECORD") or "").splitlines()]


def _base(found: Distribution) -> Path:
    return Path(str(found.locate_file(""))).absolute()
