"""Weights as NumPy arrays under torchvision's names: the default ones, and a user's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize
from safetensors.numpy import load, save_file

from disteval.errors import WeightsError
from disteval.extras import needs
from disteval.models.digest import check_digest
from disteval.models.resnet18 import NUM_CLASSES, buffer_shapes, parameter_shapes
from disteval.models.torch_files import check_size, check_torch_file, read_torch_file, state_dict_of

Weights = dict[str, npt.NDArray[np.float32]]
"""Every parameter and running statistic by torchvision's name, as float32."""

MAX_FILE_BYTES = 1 << 30
"""The largest weights file that is read; ResNet-18 in float64 takes 90 MB."""

_SEED = 18
_REMEDY = "write one with torch.save(model.state_dict(), path)"
_SIZE_HINT = "; a ResNet-18 takes 45 MB in float32"
_deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = deserialize  # untyped there
_PREFIX = "module."  # what DistributedDataParallel puts before every name


class _Stored(NamedTuple):
    """A tensor of a file, compared with the model before anything is converted or allocated."""

    shape: tuple[int, ...]
    dtype: str
    floats: Callable[[], npt.NDArray[Any]] | None  # None if it does not hold floats


def default_weights() -> Weights:
    """Return the default weights: random ones, and a last layer fitted to the embedded data set.

    Convolutions are drawn uniformly as in He et al., "Delving Deep into Rectifiers" (2015), from a
    bit generator's raw output by exact arithmetic, so their bits are the same on every machine.
    ``tools/fit_default_weights.py`` fitted the last layer in closed form.
    """
    weights = random_trunk()
    packed = resources.files("disteval.models").joinpath("default_head.safetensors").read_bytes()
    return weights | load(packed)


def random_trunk() -> Weights:
    """Return all weights except the last layer's; batch normalisations have no effect."""
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
            be under the key ``state_dict`` and have DistributedDataParallel's prefix ``module.``.

    Raises:
        WeightsError: The file is missing, damaged or too large, or does not fit the model.
        LibraryMissingError: The file needs torch, which is not installed.
    """
    path = Path(path)
    found = _reader(path)(path)
    if all(name.startswith(_PREFIX) for name in found):
        found = {name.removeprefix(_PREFIX): stored for name, stored in found.items()}
    return _checked(path, found)


def check_weights(path: str | Path) -> None:
    """Refuse a file that `load_weights` would, as far as that shows without torch.

    Raises:
        WeightsError: See `load_weights`.
    """
    path = Path(path)
    if _reader(path) is _read_safetensors:
        load_weights(path)
    else:
        check_torch_file(path, f"weights file {path}", MAX_FILE_BYTES, _REMEDY)


def save_weights(path: str | Path, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Write weights as a ``.safetensors`` file."""
    save_file({name: np.ascontiguousarray(array) for name, array in weights.items()}, str(path))


def _reader(path: Path) -> Callable[[Path], dict[str, _Stored]]:
    """Return the function that reads a file, which exists and is not too large."""
    if not path.is_file():
        raise WeightsError(
            f"weights file {path} does not exist or is not a file; give a .safetensors or .pt file"
        )
    readers = {".safetensors": _read_safetensors, ".pt": _read_torch, ".pth": _read_torch}
    if path.suffix not in readers:
        raise WeightsError(
            f"weights file {path} has the suffix {path.suffix!r}; use one of {', '.join(readers)}"
        )
    check_size(f"weights file {path}", path.stat().st_size, MAX_FILE_BYTES, _SIZE_HINT)
    return readers[path.suffix]


def _he_uniform(source: np.random.PCG64, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    count = prod(shape)
    words: npt.NDArray[np.uint64] = source.random_raw(-(-count // 2))
    # A float32 holds 24 bits exactly, so k / 2^23 - 1 is never rounded.
    bits = (words.astype("<u8").view("<u4")[:count] >> 8).astype(np.float32)
    bound = np.float32(np.sqrt(6 / prod(shape[1:])))
    drawn: npt.NDArray[np.float32] = ((bits * np.float32(2**-23) - 1) * bound).reshape(shape)
    return drawn


def _read_safetensors(path: Path) -> dict[str, _Stored]:
    try:
        content = path.read_bytes()
        check_digest(content, f"weights file {path}")
        tensors = _deserialize(content)
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"weights file {path} can't be read as a safetensors file: {error}"
        ) from error
    return {
        name: _Stored(tuple(t["shape"]), t["dtype"], _safetensors_floats(t)) for name, t in tensors
    }


def _safetensors_floats(tensor: Mapping[str, Any]) -> Callable[[], npt.NDArray[Any]] | None:
    data, shape = tensor["data"], tensor["shape"]
    if tensor["dtype"] == "BF16":
        # NumPy has no bfloat16, which is the upper half of a float32.
        return lambda: (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)
    code = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}.get(tensor["dtype"])
    return None if code is None else lambda: np.frombuffer(data, code).reshape(shape)


def _read_torch(path: Path) -> dict[str, _Stored]:
    with needs(f"the file {path}, which is not a .safetensors file,", "torch"):
        import torch
    content = read_torch_file(path, f"weights file {path}", MAX_FILE_BYTES, _REMEDY)
    state = state_dict_of(content)
    if state is None:
        raise WeightsError(
            f"weights file {path} holds {type(content).__name__}, not a state dict; {_REMEDY}"
        )
    return {
        name: _Stored(
            tuple(tensor.shape),
            f"{tensor.dtype} ({tensor.layout}, {tensor.device})",
            _torch_floats(tensor, torch.strided),
        )
        for name, tensor in state.items()
    }


def _torch_floats(tensor: Any, dense: Any) -> Callable[[], npt.NDArray[Any]] | None:
    # A sparse tensor, or one on the meta device, has no array of floats.
    if not tensor.is_floating_point() or tensor.layout != dense or tensor.is_meta:
        return None
    # NumPy has no bfloat16, and all floats become float32 anyway.
    return lambda: tensor.detach().float().numpy()


def _checked(path: Path, found: Mapping[str, _Stored]) -> Weights:
    """Compare a file's tensors with the model, and convert them to float32."""
    expected = parameter_shapes() | buffer_shapes()
    # Evaluation does not use the number of batches behind the statistics.
    names = [name for name in found if not name.endswith("num_batches_tracked")]
    _refuse(path, "lacks", [name for name in expected if name not in found])
    _refuse(path, "has unexpected", [name for name in names if name not in expected])
    weights: Weights = {}
    for name, shape in expected.items():
        stored = found[name]
        if stored.shape != shape:
            raise WeightsError(
                f"weights file {path}: {name} has shape {stored.shape}, not {shape}"
                f"{_other_classes(name, stored.shape)}"
            )
        if stored.floats is None:
            raise WeightsError(
                f"weights file {path}: {name} holds {stored.dtype}, not a dense array of floats; "
                f"store float16, bfloat16, float32 or float64"
            )
        with np.errstate(over="ignore"):  # what float32 can't hold becomes infinite, see below
            array = np.array(stored.floats(), dtype=np.float32, order="C")
        if not np.isfinite(array).all():
            raise WeightsError(
                f"weights file {path}: {name} holds NaN or infinity as float32; "
                f"look at the training that wrote it"
            )
        weights[name] = array
    return weights


def _other_classes(name: str, shape: tuple[int, ...]) -> str:
    if not name.startswith("fc.") or not shape:
        return ""
    return f": it is for {shape[0]} classes; give a model trained for {NUM_CLASSES}"


def _refuse(path: Path, what: str, names: list[str]) -> None:
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise WeightsError(
            f"weights file {path} {what} {', '.join(names[:3])}{more}; "
            f"it must hold a ResNet-18 with torchvision's names"
        )
