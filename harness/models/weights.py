"""Weights as NumPy arrays under torchvision's names: the ones that ship, and a user's own file."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from importlib import resources
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, load_file, save_file

from harness.errors import LibraryMissingError, WeightsError
from harness.models.resnet18 import buffer_shapes, parameter_shapes

Weights = dict[str, npt.NDArray[np.float32]]
"""Every parameter and running statistic by torchvision's name, float32."""

MAX_FILE_BYTES = 1 << 30
"""The largest weights file that is read; ResNet-18 in float64 takes 90 MB."""

_SEED = 18


def default_weights() -> Weights:
    """Return the weights that ship: a random trunk, and a last layer fitted to the embedded data.

    Convolutions are drawn uniformly as He et al., "Delving Deep into Rectifiers" (2015), prescribe;
    the numbers come from a bit generator's raw output by exact arithmetic, so they are the same to
    the bit everywhere. ``tools/fit_default_weights.py`` fitted the last layer in closed form.
    """
    weights = random_trunk()
    packed = resources.files("harness.models").joinpath("default_head.safetensors").read_bytes()
    return weights | load(packed)


def random_trunk() -> Weights:
    """Return every weight but the last layer's, with batch normalisations that change nothing."""
    source = np.random.PCG64(_SEED)
    weights: Weights = {}
    for name, shape in (parameter_shapes() | buffer_shapes()).items():
        if len(shape) == 4:
            weights[name] = _he_uniform(source, shape)
        elif not name.startswith("fc."):
            one = name.endswith((".weight", ".running_var"))
            weights[name] = np.full(shape, float(one), dtype=np.float32)
    return weights


def load_weights(path: str | Path) -> Weights:
    """Read a weights file of ResNet-18 with ten classes.

    Args:
        path: A ``.safetensors`` file, or a ``.pt`` or ``.pth`` file with a state dict, which may
            lie under ``state_dict`` and carry the ``module.`` that DistributedDataParallel adds.

    Raises:
        WeightsError: It is missing, damaged or too large, or does not fit the model.
        LibraryMissingError: A torch file is to be read without torch.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"weights file {path} does not exist or is no file")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise WeightsError(f"weights file {path} is larger than {MAX_FILE_BYTES} bytes")
    readers = {".safetensors": _read_safetensors, ".pt": _read_torch, ".pth": _read_torch}
    if path.suffix not in readers:
        raise WeightsError(
            f"weights file {path} has the suffix {path.suffix!r}; known are {', '.join(readers)}"
        )
    found = readers[path.suffix](path)
    return _checked(path, {name.removeprefix("module."): found[name] for name in found})


def save_weights(path: str | Path, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Write weights as a ``.safetensors`` file."""
    save_file({name: np.ascontiguousarray(array) for name, array in weights.items()}, str(path))


def _he_uniform(source: np.random.PCG64, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    count = prod(shape)
    words: npt.NDArray[np.uint64] = source.random_raw(-(-count // 2))
    # 24 bits are what a float32 holds exactly, so k / 2^23 - 1 is rounded nowhere.
    bits = (words.astype("<u8").view("<u4")[:count] >> 8).astype(np.float32)
    bound = np.float32(np.sqrt(6 / prod(shape[1:])))
    drawn: npt.NDArray[np.float32] = ((bits * np.float32(2**-23) - 1) * bound).reshape(shape)
    return drawn


def _read_safetensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        return load_file(str(path))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"weights file {path} is no readable safetensors file: {error}"
        ) from error


def _read_torch(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        import torch
    except ImportError as error:
        raise LibraryMissingError(
            f"reading {path} needs torch: pip install 'disteval-harness[torch]', "
            f"or convert the file to .safetensors"
        ) from error
    try:
        # weights_only: nothing in the file is run.
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError) as error:
        raise WeightsError(f"weights file {path} is no readable state dict: {error}") from error
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    if not isinstance(state, Mapping) or not all(
        isinstance(v, torch.Tensor) for v in state.values()
    ):
        raise WeightsError(f"weights file {path} holds no state dict, but {type(state).__name__}")
    # NumPy has no bfloat16, and every float is to become a float32 anyway.
    return {
        str(name): (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        for name, tensor in state.items()
    }


def _checked(path: Path, found: Mapping[str, npt.NDArray[Any]]) -> Weights:
    """Hold a file's arrays against the model."""
    expected = parameter_shapes() | buffer_shapes()
    # How many batches the statistics were taken over plays no part in evaluation.
    names = [name for name in found if not name.endswith("num_batches_tracked")]
    _refuse(path, "lacks", [name for name in expected if name not in found])
    _refuse(path, "has unexpected", [name for name in names if name not in expected])
    weights: Weights = {}
    for name, shape in expected.items():
        array = found[name]
        if array.shape != shape:
            hint = " (is it a model of other classes?)" if name.startswith("fc.") else ""
            raise WeightsError(
                f"weights file {path}: {name} has shape {array.shape}, not {shape}{hint}"
            )
        if array.dtype.kind != "f":
            raise WeightsError(f"weights file {path}: {name} holds {array.dtype}, not floats")
        if not np.isfinite(array).all():
            raise WeightsError(f"weights file {path}: {name} holds NaN or infinity")
        weights[name] = np.ascontiguousarray(array, dtype=np.float32)
    return weights


def _refuse(path: Path, what: str, names: list[str]) -> None:
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise WeightsError(
            f"weights file {path} {what} {', '.join(names[:3])}{more}; "
            f"it must hold a ResNet-18 with torchvision's names"
        )
