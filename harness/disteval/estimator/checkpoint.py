"""Checkpoint files, which are written whole or not at all, and read without running any code."""

from __future__ import annotations

import copy
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from disteval.contract import BaseDistBackend
from disteval.errors import RankError, UsageError, WeightsError
from disteval.estimator.distributed import inner
from disteval.models.torch_files import check_size, read_torch_file, state_dict_of

MAX_FILE_BYTES = 64 << 30
"""The largest checkpoint that is read."""

FORMAT = "disteval checkpoint 1"
LATEST = "latest.pt"
"""The name of the link to the checkpoint that was written last."""
BEST_WEIGHTS = "best.safetensors"
"""The name of the file with the weights of the best validation so far."""

_PREFIX = "module."
_NAME = re.compile(r"(epoch|iter)_\d+\.pt")
_NEEDED = ("state_dict", "epoch", "iter", "rng", "position")


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    """Return a model's weights and buffers on the CPU, under its own names, without ``module.``."""
    state = inner(model).state_dict()
    return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}


def load_weights(
    model: Any, weights: Mapping[str, torch.Tensor], origin: str, *, strict: bool = False
) -> list[str]:
    """Put weights, whose names may begin with ``module.``, into a model that may be wrapped.

    Returns:
        The names that are missing or unexpected; these are an error if ``strict``.

    Raises:
        WeightsError: The weights of the file ``origin`` do not fit; the model is unchanged.
    """
    module: nn.Module = inner(model)
    own = module.state_dict()
    if not any(name in own for name in weights):
        weights = {name.removeprefix(_PREFIX): tensor for name, tensor in weights.items()}
    missing = [name for name in own if name not in weights]
    wrong = missing + [name for name in weights if name not in own]
    shapes = [
        f"{name} has shape {tuple(weights[name].shape)}, not {tuple(own[name].shape)}"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    if shapes or len(missing) == len(own) > 0 or (strict and wrong):
        reason = shapes[0] if shapes else f"missing or unexpected: {', '.join(wrong[:5])}"
        raise WeightsError(
            f"{origin} does not fit {type(module).__name__}: {reason}; give weights of this model"
        )
    module.load_state_dict(dict(weights), strict=False)
    return wrong


def resume_model(
    model: Any, optimizers: Mapping[str, Any], state: Mapping[str, Any], origin: str
) -> None:
    """Give a model and its optimizers the state of the checkpoint ``origin``, if it fits."""
    lacking = [key for key in _NEEDED if key not in state]
    if lacking:
        raise WeightsError(
            f"{origin} lacks {', '.join(lacking)}, so training can't be resumed from it; "
            f"load_checkpoint takes its weights alone"
        )
    states = state.get("optimizer", {})
    if set(optimizers) - set(states):
        raise WeightsError(
            f"{origin} lacks the state of an optimizer: it has {list(states)}, and the runner "
            f"{list(optimizers)}; resume_optimizer=False continues with a fresh one"
        )
    load_weights(model, state["state_dict"], origin, strict=True)
    for name, each in optimizers.items():
        try:
            each.load_state_dict(copy.deepcopy(states[name]))
        except ValueError as error:
            raise WeightsError(f"{origin} does not fit the optimizer {name!r}: {error}") from error


def name_by_class(hooks: Iterable[Any]) -> dict[str, Any]:
    """Return hooks by the names of their classes, with a number from the second of a class on."""
    named: dict[str, Any] = {}
    for hook in hooks:
        name, turn = type(hook).__name__, 2
        while name in named:
            name, turn = f"{type(hook).__name__}#{turn}", turn + 1
        named[name] = hook
    return named


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under a temporary name and rename it, so that no reader finds a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The name is always the same, so that the next writer replaces the file of a killed one.
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # so that the name survives a power failure
    finally:
        os.close(folder)


def write_on_rank_0(backend: BaseDistBackend, path: Path, write: Callable[[], None]) -> None:
    """Write a file on rank 0; each rank calls this, and gets a RankError if it can't be written."""
    failure, cause = None, None
    if backend.rank == 0:
        try:
            write()
        except Exception as error:  # the other ranks wait for the result, whatever it is
            failure, cause = f"{type(error).__name__}: {error}", error
    failure = backend.broadcast_object(failure, src=0)
    if failure is not None:
        raise RankError(0, f"could not write {path}: {failure}") from cause


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically, unless it could not be read back; point `LATEST` to it."""
    check_plain(state, "checkpoint")
    content = {"format": FORMAT, **state}
    write_atomically(path, lambda file: torch.save(content, file))
    link = path.with_name(f".{LATEST}.part")
    link.unlink(missing_ok=True)
    link.symlink_to(path.name)
    link.replace(path.with_name(LATEST))


def write_safetensors(
    path: Path, weights: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> None:
    """Write weights as a ``.safetensors`` file, atomically."""
    tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
    content = safetensors.torch.save(tensors, dict(metadata))
    write_atomically(path, lambda file: file.write(content))


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint, a file with a state dict, or a ``.safetensors`` file.

    No code in the file is run, and every byte of a checkpoint is compared with its checksum.

    Returns:
        The content; weights alone are returned under ``state_dict``.

    Raises:
        WeightsError: The file is missing, too large or damaged, or holds no weights.
    """
    path = Path(path)
    name = f"checkpoint {path}"
    if not path.is_file():
        raise WeightsError(f"{name} does not exist or is not a file; give one that does")
    check_size(name, path.stat().st_size, MAX_FILE_BYTES)
    remedy = f"use an earlier one: latest_checkpoint({str(path.parent)!r}) skips incomplete files"
    if path.suffix == ".safetensors":
        try:
            return {"state_dict": safetensors.torch.load_file(path)}
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{name} is damaged ({error}); {remedy}") from error
    content = read_torch_file(path, name, MAX_FILE_BYTES, remedy)
    weights = state_dict_of(content)
    if weights is None or not content:
        raise WeightsError(f"{name} holds no weights; write one with save_checkpoint")
    others = content if "state_dict" in content else {}
    return {**others, "state_dict": weights}


def checkpoints(folder: str | Path) -> list[Path]:
    """Return a folder's complete checkpoints, without links, in the order of their writing."""
    found = [
        path for path in Path(folder).glob("[!.]*") if not path.is_symlink() and _is_complete(path)
    ]
    return sorted(found, key=_age)


def latest_checkpoint(folder: str | Path) -> Path | None:
    """Return the complete checkpoint that was written last; None if there is no checkpoint."""
    return next(reversed(checkpoints(folder)), None)


def find_checkpoint(folder: str | Path) -> tuple[Path | None, list[Path]]:
    """Return the checkpoint that was written last and can be read, and later ones that can't.

    Every byte is read. The names of checkpoints are those that runners give them by default.
    """
    damaged: list[Path] = []
    named = [path for path in Path(folder).glob("*_*.pt") if _NAME.fullmatch(path.name)]
    for path in sorted(named, key=_age, reverse=True):
        try:
            content = read_checkpoint(path)
            if all(key in content for key in _NEEDED):
                return path, damaged
        except WeightsError:
            pass
        damaged.append(path)
    return None, damaged


def check_plain(value: Any, name: str) -> None:
    """Refuse an object that ``torch.load(weights_only=True)`` would not read back, by its place."""
    if isinstance(value, Mapping) and type(value).__module__ in ("builtins", "collections"):
        for key, entry in value.items():
            check_plain(key, f"{name} key")
            check_plain(entry, f"{name}[{key!r}]")
    elif type(value) in (list, tuple):
        for at, entry in enumerate(value):
            check_plain(entry, f"{name}[{at}]")
    elif not (
        value is None
        or type(value) in (bool, int, float, str, bytes, torch.device, torch.dtype, torch.Size)
        or isinstance(value, torch.Tensor)
    ):
        raise UsageError(
            f"{name} is of type {type(value).__name__}; a checkpoint holds tensors, numbers, "
            f"strings, lists, tuples and dicts, so convert it"
        )


def _age(path: Path) -> tuple[int, int, str]:
    return path.stat().st_mtime_ns, len(path.name), path.name


def _is_complete(path: Path) -> bool:
    """Return whether a file is a checkpoint with its end, where a zip archive has its index."""
    try:
        with zipfile.ZipFile(path) as archive:
            [content] = [n for n in archive.namelist() if n.endswith("/data.pkl")]
            return FORMAT.encode() in archive.read(content)
    except (OSError, ValueError, zipfile.BadZipFile):
        return False
