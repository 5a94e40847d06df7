"""Checkpoints: files that are written whole or not at all, read without running any code.

Each folder has one index of its checkpoints, ``checkpoints.json``: a file's name, the epoch and
iteration at which it was written, the training that it belongs to, and the SHA-256 of its bytes.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from disteval.arguments import check_path
from disteval.contract import BaseDistBackend
from disteval.errors import UsageError, WeightsError, describe_error
from disteval.estimator.distributed import inner
from disteval.evaluation.agreement import agree, on_rank_0
from disteval.files import file_digest, write_atomically
from disteval.models.digest import check_digest, with_metadata
from disteval.models.torch_files import check_size, read_torch_file, state_dict_of

MAX_FILE_BYTES = 64 << 30
"""The largest checkpoint that is read."""

INDEX = "checkpoints.json"
UNCHANGED = (
    "; files that were there before are unchanged, so remove the cause and resume from the last "
    "checkpoint"
)
"""What an error adds that ends a training when a file can't be written."""

BEST_WEIGHTS = "best.safetensors"
"""The name of the file with the weights of the best validation so far."""

_FORMAT = "disteval checkpoint 4"
_NAME = re.compile(r"(epoch|iter)_\d+\.pt")
_PREFIX = "module."
_CLASS = "class"
_NEEDED = ("state_dict", "epoch", "iter", "hooks", "rng", "position")


class Entry(NamedTuple):
    """A checkpoint in the index of its folder; its training is a `BaseRunner.training`."""

    name: str
    epoch: int
    iter: int
    training: str
    sha256: str


class Checkpoints:
    """The checkpoints of a folder and their index; one process at a time may write."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = check_path("folder", folder)

    def entries(self) -> list[Entry]:
        """Return the entries whose files exist; the last one is that of the newest checkpoint.

        Raises:
            WeightsError: The index is damaged, or is missing beside checkpoints.
        """
        path = self._folder / INDEX
        try:
            found = [Entry(**entry) for entry in json.loads(path.read_bytes())]
            if not found:  # the first checkpoint may be there, and was not entered
                return []
            found.sort(key=lambda entry: (entry.epoch, entry.iter))
            found = [entry for entry in found if (self._folder / entry.name).is_file()]
            reason = "" if found else "it lists no file that is there"
        except FileNotFoundError:
            found, reason = [], "it is missing"
        except (OSError, ValueError, TypeError, RecursionError) as error:
            found, reason = [], describe_error(error)
        files = [] if found else sorted(each.name for each in self._folder.glob("*.pt"))
        if stray := [name for name in files if _NAME.fullmatch(name)]:
            raise WeightsError(
                f"{path} does not say which checkpoints are whole: {reason}, and {stray[-1]} "
                f"is there; name a file to continue from, or give another folder to begin anew"
            )
        return found

    def add(self, name: str, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, unless it could not be read back, and enter it in the index."""
        self._folder.mkdir(parents=True, exist_ok=True)
        others = [entry for entry in self.entries() if entry.name != name]
        if not (self._folder / INDEX).exists():  # the job may end before the entry is made
            self._write([])
        path = self._folder / name
        write_atomically(path, lambda file: save_state(state, file))
        training = str(state.get("meta", {}).get("training", ""))
        own = Entry(name, state["epoch"], state["iter"], training, file_digest(path))
        self._write([*others, own])

    def renew(self, name: str) -> None:
        """Enter the bytes of a file that was replaced, if the index lists it."""
        with suppress(WeightsError):  # a damaged one lists nothing
            entries = {entry.name: entry for entry in self.entries()}
            if name in entries:
                entries[name] = entries[name]._replace(sha256=file_digest(self._folder / name))
                self._write([*entries.values()])

    def keep(self, training: str, until: int, last: int) -> None:
        """Delete a training's checkpoints until an iteration, but for this many of the last."""
        entries = self.entries()
        own = [each for each in entries if each.training == training and each.iter <= until]
        if old := own[:-last]:
            self._write([each for each in entries if each not in old])
        for each in old:
            (self._folder / each.name).unlink(missing_ok=True)

    def newest(
        self, warn: Callable[[str], object], accept: Callable[[Path], bool] | None = None
    ) -> Path | None:
        """Return the newest checkpoint of which every byte is right; None if there is none at all.

        Args:
            warn: Called with one sentence for each newer one that is damaged.
            accept: Says whether a checkpoint is looked for; None stands for all, which must be of
                one training, and one of which must be whole.
        """
        entries, damaged = self.entries(), list[str]()
        others = [entry for entry in entries if entry.training != entries[-1].training]
        if others and accept is None:
            raise UsageError(
                f"{self._folder} has checkpoints of several trainings, such as {entries[-1].name} "
                f"and {others[-1].name}; leave those of one training there, or name a file"
            )
        reason = f"damaged (its bytes do not have the SHA-256 in {INDEX})"
        for entry in reversed(entries):
            path = self._folder / entry.name
            if file_digest(path) != entry.sha256:
                damaged.append(entry.name)
            elif accept is None or accept(path):
                for name in damaged:
                    warn(
                        f"the checkpoint {self._folder / name} is {reason}, so {entry.name} is "
                        f"used instead"
                    )
                return path
        if damaged and accept is None:
            raise WeightsError(
                f"{self._folder} has no whole checkpoint: each of {', '.join(damaged)} is "
                f"{reason}; copy one there, or give another folder to begin anew"
            )
        return None

    def check(self, name: str) -> None:
        """Raise WeightsError if the index has another SHA-256 than that of a file."""
        try:
            known = {entry.name: entry.sha256 for entry in self.entries()}
        except WeightsError:  # torch's own archive has checksums, too
            return
        if name in known and file_digest(self._folder / name) != known[name]:
            raise WeightsError(
                f"checkpoint {self._folder / name} is damaged: its bytes do not have the SHA-256 "
                f"in {INDEX}; give the folder, and its newest whole checkpoint is taken"
            )

    def _write(self, entries: list[Entry]) -> None:
        lines = ",\n".join(json.dumps(entry._asdict()) for entry in entries)
        write_atomically(self._folder / INDEX, lambda file: file.write(f"[{lines}]\n".encode()))


def latest_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest checkpoint of a folder whose bytes have their SHA-256; None without any.

    Raises:
        UsageError: The folder has checkpoints of several trainings.
        WeightsError: It has checkpoints, and no whole one or no index.
    """
    return Checkpoints(folder).newest(lambda line: None)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint, a file with a state dict, or a ``.safetensors`` file.

    No code in the file is run. Every byte is compared with the checksums in the file, and with the
    SHA-256 in the index of its folder, if that has one.

    Returns:
        The content; weights alone are returned under ``state_dict``.

    Raises:
        WeightsError: The file is missing, too large or damaged, can't be read, or holds no weights.
    """
    path = check_path("the path of a checkpoint", path)
    name = f"checkpoint {path}"
    try:
        check_size(name, path.stat().st_size, MAX_FILE_BYTES)
        Checkpoints(path.parent).check(path.name)
        with path.open("rb") as file:
            if path.suffix != ".safetensors":
                return read_state(file, name)
            check_digest(packed := file.read(), name)
        return {"state_dict": safetensors.torch.load(packed)}
    except SafetensorError as error:
        raise WeightsError(f"{name} is damaged ({error}); give another file") from error
    except OSError as error:
        raise WeightsError(f"{name} can't be read: {error.strerror}; give another file") from error


def read_state(file: BinaryIO, name: str) -> dict[str, Any]:
    """Read a checkpoint from an open file, see `read_checkpoint`; messages begin with its name."""
    content = read_torch_file(file, name, MAX_FILE_BYTES, "give another file")
    weights = state_dict_of(content)
    if weights is None or not content:
        raise WeightsError(f"{name} holds no weights; write one with save_checkpoint")
    return {**(content if "state_dict" in content else {}), "state_dict": weights}


def chosen(path: Path, warn: Callable[[str], object]) -> Path:
    """Return the path of a file, or that of the newest whole checkpoint of a folder."""
    found = Checkpoints(path).newest(warn) if path.is_dir() else path
    if found is None:
        raise UsageError(f"{path} has no checkpoint to continue from; give another folder")
    return found


def read_together(
    backend: BaseDistBackend, checkpoint: str | Path, warn: Callable[[str], object]
) -> tuple[dict[str, Any], str]:
    """Return the content and the path of a checkpoint, the same one on every rank, or raise.

    Of a folder, rank 0 chooses the newest whole checkpoint. Every rank must call this.
    """
    path = check_path("checkpoint", checkpoint)
    found = on_rank_0(backend, lambda: chosen(path, warn), f"read {path}")
    path = found if path.is_dir() else path  # which other ranks may call otherwise
    content: dict[str, Any] = {}
    error: Exception | None = None
    try:
        content = read_checkpoint(path)
    except Exception as caught:  # the other ranks wait for this one
        error = caught
    held = {key: content.get(key) for key in ("epoch", "iter", "position", "meta")}
    agree(backend, {"the checkpoint": repr(held)}, error)
    return content, str(path)


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    """Return a model's weights and buffers on the CPU, under its own names, without ``module.``."""
    state = inner(model).state_dict()
    return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}


def load_weights(
    model: Any, weights: Mapping[str, torch.Tensor], origin: str, *, strict: bool = False
) -> list[str]:
    """Put weights of the file ``origin`` into a model, whose names may begin with ``module.``.

    Return the names that are missing or unexpected. If these are refused by ``strict``, or the
    weights do not fit, a WeightsError is raised and the model is unchanged.
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


def state_of(optimizer: Any) -> dict[str, Any]:
    """Copy an optimizer's state, and add the name of its class, which torch does not compare."""
    return {**copy.deepcopy(optimizer.state_dict()), _CLASS: type(optimizer).__name__}


def resume_model(model: Any, optimizer: Any, state: Mapping[str, Any], origin: str) -> None:
    """Give a model and its optimizer the state of the checkpoint ``origin``, if it fits."""
    alone = "load_checkpoint takes its weights alone"
    if lacking := [key for key in _NEEDED if key not in state]:
        raise WeightsError(
            f"{origin} lacks {', '.join(lacking)}, so training can't be resumed from it; {alone}"
        )
    kept = copy.deepcopy(state.get("optimizer", {}))
    kind, own = kept.pop(_CLASS, "no optimizer"), type(optimizer).__name__
    if optimizer is not None and kind != own:
        raise WeightsError(
            f"{origin} has the state of {kind}, and the optimizer of the runner is {own}; {alone}"
        )
    load_weights(model, state["state_dict"], origin, strict=True)
    try:
        if optimizer is not None:
            optimizer.load_state_dict(kept)
    except ValueError as error:
        raise WeightsError(f"{origin} does not fit the optimizer: {error}") from error


def save_state(state: Mapping[str, Any], file: Any) -> None:
    """Write a state to a file, unless it could not be read back."""
    check_plain(state, "checkpoint")
    try:
        torch.save({"format": _FORMAT, **state}, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # such as a full disk, which torch hides
            raise error.__context__ from None
        raise


def write_safetensors(
    path: Path, weights: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> None:
    """Write weights as a ``.safetensors`` file, atomically; the same ones give the same bytes."""
    tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
    content = with_metadata(safetensors.torch.save(tensors), metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(content))


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
