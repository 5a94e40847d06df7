"""Whether the files that a run has left are whole, and what is in them."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

OLD = '{"old": true}\n'
"""What stands in the report before a run, where there is an older one."""

FOREIGN = ("torchelastic_", "pymp-", "torchinductor_", "hydra", "mpich", "ompi.", "prte.", "filler")
"""How names begin that other libraries leave in TMPDIR when their processes are killed."""


def read_report(path: Path) -> tuple[str, Any]:
    """Return ``absent``, ``old``, ``whole`` or ``damaged``, and the values of a whole report."""
    if not path.exists():
        return "absent", None
    text = path.read_text(errors="replace")
    if text == OLD:
        return "old", None
    try:
        return "whole", json.loads(text)
    except ValueError:
        return "damaged", None


def damaged_outputs(out: Path) -> list[str]:
    """Return what is half-written in the output folder, or does not belong there."""
    found = []
    for path in sorted(out.rglob("*")):
        if path.is_dir() or path.name == "filler":
            continue
        name = str(path.relative_to(out))
        if path.is_symlink() and not path.exists():
            found.append(f"{name} points nowhere")
        elif path.name == "report.json":
            if read_report(path)[0] == "damaged":
                found.append(f"{name} is half-written: {path.read_text(errors='replace')[-80:]!r}")
        elif path.suffix == ".html":
            text = path.read_text(errors="replace")
            if text != OLD and not text.rstrip().endswith("</html>"):
                found.append(f"{name} is half-written: it ends with {text[-80:]!r}")
        elif path.suffix == ".pt":
            found += [f"{name} is damaged: {why}" for why in _damage_of_zip(path)]
        elif path.suffix == ".safetensors":
            if tensors_of(path) is None:
                found.append(f"{name} is half-written: {path.stat().st_size} bytes")
        elif not path.name.endswith((".lock", ".sha256")):
            found.append(f"{name} was left ({path.stat().st_size} bytes)")
    return found


def _damage_of_zip(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        return [str(error)]
    return [f"{bad} has a wrong checksum"] if bad else []


def tensors_of(path: Path) -> str | None:
    """Return a digest of the tensors in a safetensors file; None where it is not whole."""
    data = path.read_bytes()
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        end = max(entry["data_offsets"][1] for entry in header.values())
    except (ValueError, KeyError):
        return None
    if len(data) != 8 + length + end:
        return None
    names = json.dumps(header, sort_keys=True).encode()
    return hashlib.sha256(names + data[8 + length :]).hexdigest()


def storages_of(path: Path) -> str | None:
    """Return a digest of the tensors in a checkpoint; None where there is none."""
    if not path.exists():
        return None
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if "/data/" in name)
        parts = [hashlib.sha256(archive.read(name)).digest() for name in names]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def weights_of(work: Path) -> dict[str, str | None]:
    """Return digests of what a whole training leaves: its best and its last weights."""
    best = work / "best.safetensors"
    return {
        "best": tensors_of(best) if best.exists() else None,
        "last": storages_of(work / "epoch_2.pt"),
    }


def left_in(*folders: Path) -> list[str]:
    """Return the files and folders of ours that were left in folders for temporary files."""
    found = []
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.name.startswith(FOREIGN):
                continue
            inside = list(path.rglob("*")) if path.is_dir() else []
            names = ", ".join(each.name for each in inside[:6])
            found.append(f"{folder.name}/{path.name} ({names})")
    return found
