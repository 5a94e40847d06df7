"""Checkpoint files, which are written whole or not at all, and read without running any code."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from disteval.arguments import check_path
from disteval.errors import UsageError, WeightsError
from disteval.estimator.distributed import inner
from disteval.estimator.files import SealedFile, problem_of, read_seal
from disteval.files import sync_folder, write_atomically
from disteval.models.digest import check_digest, with_metadata
from disteval.models.torch_files import check_size, read_torch_file, state_dict_of

MAX_FILE_BYTES = 64 << 30
"""The largest checkpoint that is read."""

FORMAT = "disteval checkpoint 2"
LATEST = "latest.pt"
"""The name of the link to the checkpoint that was written last."""
BEST_WEIGHTS = "best.safetensors"
"""The name of the file with the weights of the best validation so far."""

_PREFIX = "module."
_CLASS = "class"
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
    for name, each in optimizers.items():
        kind = states[name].get(_CLASS, type(each).__name__)
        if kind != type(each).__name__:
            raise WeightsError(
                f"{origin} has the state of {kind}, and the optimizer {name!r} of the runner is "
                f"{type(each).__name__}; resume_optimizer=False continues with a fresh one"
            )
    load_weights(model, state["state_dict"], origin, strict=True)
    for name, each in optimizers.items():
        own = {key: part for key, part in states[name].items() if key != _CLASS}
        try:
            each.load_state_dict(copy.deepcopy(own))
        except ValueError as error:
            raise WeightsError(f"{origin} does not fit the optimizer {name!r}: {error}") from error


def state_of(optimizer: Any) -> dict[str, Any]:
    """Copy an optimizer's state, and add the name of its class, which torch does not compare."""
    return {**copy.deepcopy(optimizer.state_dict()), _CLASS: type(optimizer).__name__}


def name_by_class(hooks: Iterable[Any]) -> dict[str, Any]:
    """Return hooks by the names of their classes, with a number from the second of a class on."""
    named: dict[str, Any] = {}
    for hook in hooks:
        name, turn = type(hook).__name__, 2
        while name in named:
            name, turn = f"{type(hook).__name__}#{turn}", turn + 1
        named[name] = hook
    return named


def save_state(state: Mapping[str, Any], file: BinaryIO) -> None:
    """Write a state and its seal to a file, unless it could not be read back."""
    check_plain(state, "checkpoint")
    sealed = SealedFile(file)
    try:
        torch.save({"format": FORMAT, **state}, sealed)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # such as a full disk, which torch hides
            raise error.__context__ from None
        raise
    training = str(state.get("meta", {}).get("training", ""))
    sealed.seal(state.get("epoch", 0), state.get("iter", 0), training)


def name_template(template: Any, by_epoch: bool) -> str:
    """Return a template of checkpoints' names; UsageError if such files would not be found again.

    Args:
        template: A file name, in which ``{}`` stands for a number; None for the default.
        by_epoch: Whether the number is that of epochs, or else of iterations.
    """
    if template is None:
        return "epoch_{}.pt" if by_epoch else "iter_{}.pt"
    name = template.replace("{}", "0", 1) if isinstance(template, str) else ""
    plain = Path(name).name == name and not name.startswith(".") and not {*"{}"} & {*name}
    if not plain or Path(name).suffix not in (".pt", ".pth") or name == LATEST:
        raise UsageError(
            f"filename_tmpl {template!r:.200} can't be used; give a file name that ends in .pt or "
            f".pth, with {{}} once for the number, such as 'epoch_{{}}.pt'; {LATEST} is the link"
        )
    return str(template)


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically, unless it could not be read back; point `LATEST` to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: save_state(state, file))
    link_to(path)


def link_to(path: Path) -> None:
    """Point the link `LATEST` in a checkpoint's folder to the checkpoint."""
    link = path.with_name(f".{LATEST}.part")
    link.unlink(missing_ok=True)
    link.symlink_to(path.name)
    link.replace(path.with_name(LATEST))
    sync_folder(path.parent)


def write_safetensors(
    path: Path, weights: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> None:
    """Write weights as a ``.safetensors`` file, atomically; the same ones give the same bytes."""
    tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
    content = with_metadata(safetensors.torch.save(tensors), metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(content))


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint, a file with a state dict, or a ``.safetensors`` file.

    No code in the file is run, and every byte of a file that this library has written is compared
    with its checksum before it is opened.

    Returns:
        The content; weights alone are returned under ``state_dict``.

    Raises:
        WeightsError: The file is missing, too large or damaged, can't be read, or holds no weights.
    """
    path = check_path("the path of a checkpoint", path)
    name = f"checkpoint {path}"
    if not path.is_file():
        raise WeightsError(f"{name} does not exist or is not a file; give one that does")
    try:
        check_size(name, path.stat().st_size, MAX_FILE_BYTES)
        if path.suffix == ".safetensors":
            packed = path.read_bytes()
            check_digest(packed, name)
            return {"state_dict": safetensors.torch.load(packed)}
        with path.open("rb") as file:
            return read_state(file, name, _remedy(path))
    except SafetensorError as error:
        raise WeightsError(f"{name} is damaged ({error}); {_remedy(path)}") from error
    except OSError as error:
        raise WeightsError(f"{name} can't be read ({error.strerror}); {_remedy(path)}") from error


def read_state(file: BinaryIO, name: str, remedy: str) -> dict[str, Any]:
    """Read a checkpoint, or a file with a state dict, from an open file.

    Args:
        file: The file.
        name: The beginning of each message.
        remedy: What the user can do if the file is damaged.

    Raises:
        WeightsError: The file is too large or damaged, or holds no weights.
    """
    problem = problem_of(file)
    if problem is not None and read_seal(file) is not None:
        raise WeightsError(f"{name} is damaged: {problem}; {remedy}")
    content = read_torch_file(file, name, MAX_FILE_BYTES, remedy)
    weights = state_dict_of(content)
    if weights is None or not content:
        raise WeightsError(f"{name} holds no weights; write one with save_checkpoint")
    others = content if "state_dict" in content else {}
    if problem is not None and str(others.get("format")).startswith("disteval checkpoint"):
        raise WeightsError(f"{name} is damaged: {problem}; {remedy}")
    return {**others, "state_dict": weights}


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


def _remedy(path: Path) -> str:
    """Return what the user can do about a damaged checkpoint."""
    folder = str(path.parent)
    return f"use the newest one whose bytes are right: latest_checkpoint({folder!r}) returns it"
