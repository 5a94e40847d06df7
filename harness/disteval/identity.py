"""The record of what is evaluated, as names and texts: ranks compare it, and so do later runs.

A function is described by its code, and by the values that it holds: its defaults, the variables
that it closes over or takes from its module, and the arguments of a partial. Functions of the same
package that it holds are described as well. Of large arrays some values are compared, evenly
spread, so that a description takes bounded time.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import dis
import fractions
import math
import pickle
import re
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from disteval.errors import UsageError
from disteval.outputs import OUTPUTS, Outputs, gap, told

INCOMPARABLE = "can't be compared"
"""The end of the text of a value that is taken to be the same."""

HELD = "the value of "
"""Begins the name of what a model holds."""

_MISSING = "missing"
_FRAMEWORKS = ("torch", "jax", "flax", "keras", "tensorflow")  # whose code is not taken apart
_SHORT = 100  # characters of a value that a message shows
_ARRAY_BYTES = 256 << 10  # of an array that are compared
_FEW = 8  # numbers of an array that are told as they are
_PARTS = 100_000  # of a value
_ENTRIES = 512  # of a function
_NAMED = 5  # settings in one message
_EXACT = bool | int | float | complex | str | bytes | None | type(...) | range | slice
_KNOWN = datetime.date, datetime.timedelta, decimal.Decimal, fractions.Fraction, re.Pattern
_DEVICE = re.compile(r"'(cpu|cuda|gpu|hpu|meta|mps|npu|tpu|xpu)(:\d+)?'")
_MUTATORS = {
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popleft", "put", "remove",
    "setdefault", "update",
}  # fmt: skip
_OURS = __name__.partition(".")[0]


def digest_of(settings: Mapping[str, Any]) -> bytes:
    """Return 16 bytes that differ if settings do: a small message, at any number of settings.

    Equal settings may have other pickles, so `check_same` has the last word.
    """
    return blake2b(pickle.dumps(settings), digest_size=16).digest()


def check_same(settings: Sequence[Mapping[str, Any]]) -> None:
    """Raise UsageError that names the settings in which a rank differs from rank 0.

    Args:
        settings: Those of each rank, by rank.
    """
    first = settings[0]
    told = []
    for name in _differing(settings):
        others: dict[str, list[int]] = {}
        for rank, each in enumerate(settings):
            if each.get(name, _MISSING) != first.get(name, _MISSING):
                others.setdefault(_shown(each, name), []).append(rank)
        found = [f"{value} on {_ranks(ranks)}" for value, ranks in others.items()]
        told.append(f"{_is(name)} {_shown(first, name)} on rank 0 and {', '.join(found)}")
    if told:
        raise UsageError(
            f"ranks do not evaluate the same thing: {_some(told)}; give every rank the same"
        )


def differences(
    there: Mapping[str, Any], here: Mapping[str, Any], old: str = "there", new: str = "here"
) -> str:
    """Say in which settings an earlier run and this one differ; nothing if they are equal.

    What a model holds is left out of a record where ranks differ in it, so it may be missing. Its
    outputs may differ a little.
    """
    said = [
        f"{_is(name)} {_shown(there, name)} {old} and {_shown(here, name)} {new}"
        for name in _differing([there, here])
        if not (name.startswith(HELD) and (name not in there or name not in here))
        and name != OUTPUTS
    ]
    found = gap(*(Outputs.of(str(each.get(OUTPUTS, ""))) for each in (there, here)))
    if found.largest is not None and not found.is_near:
        said.append(f"{OUTPUTS} are others {old} and {new}: {told(found.largest)}")
    return _some(said)


def _is(name: str) -> str:
    """Return the name of a setting and the verb that it takes."""
    return f"{name} {'are' if name.startswith('the weights ') else 'is'}"


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of settings that are not the same everywhere, without parts of others."""
    names = dict.fromkeys(name for each in settings for name in each)
    found = [
        name
        for name in names
        if any(each.get(name, _MISSING) != settings[0].get(name, _MISSING) for each in settings)
    ]
    wholes = {f" of {name}" for name in found}
    return [name for name in found if not any(name.endswith(whole) for whole in wholes)]


def incomparable(record: Mapping[str, str]) -> list[str]:
    """Return the names of values that a record does not compare."""
    return [name for name, value in record.items() if value.endswith(INCOMPARABLE)]


def describe(name: str, value: Any) -> dict[str, str]:
    """Return the record of a function, a metric, or a dict of them: what it is and holds, by name.

    Args:
        name: What it is called in messages, such as ``update``.
        value: The function.
    """
    if isinstance(value, Mapping):
        return {
            name_: found
            for key, each in value.items()
            for name_, found in describe(f"{name} of {key!r}", each).items()
        }
    found = Description(name, value)
    return found.code | found.values


def short(text: str) -> str:
    """Return 16 characters that are equal for equal texts; nothing for an empty one."""
    data = text.encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=8).hexdigest() if data else ""


def text(value: Any) -> str | None:
    """Return a text that is the same for equal values in every process; None for other kinds.

    Numbers, strings, and arrays of any framework have one, and containers of these.
    """
    try:
        found = _text(value, [_PARTS])
    except Exception:  # it is too large, or an object that raises when it is asked for a shape
        return None
    if len(found) > _SHORT:
        found = f"{found[:_SHORT]}… (digest {short(found)})"
    return found


class Description:
    """What a function, or an object such as a model, is and holds.

    Args:
        name: What it is called in messages.
        root: The function or object.
        is_model: Whether it is a model: ranks may hold other values, such as a device, and of the
            attributes of an object only arrays and models are looked at.
        has_digests: False leaves out what arrays hold, and lists them.

    Attributes:
        code: The text of each function and class, by name.
        values: The text of each value that it holds.
        weights: Those of the models of torch and Keras that a rank has whole.
        models: The models of torch.
        arrays: What has a shape, where it is not described.
    """

    def __init__(
        self, name: str, root: Any, *, is_model: bool = False, has_digests: bool = True
    ) -> None:
        self.weights: dict[str, str] = {}
        self.models: list[Any] = []
        self.arrays: list[Any] = []
        self.code: dict[str, str] = {}
        self.values: dict[str, str] = {}
        self._rest = f"the rest of {name}"
        self._is_model, self._has_digests = is_model, has_digests
        self._known: dict[int, Any] = {}  # kept, so that no other object has its identity
        self._root = root
        while isinstance(self._root, partial):
            self._root = self._root.func
        is_function = isinstance(self._root, FunctionType | MethodType)
        home = _home(self._root if is_function else type(self._root))
        self._home = "" if home in _FRAMEWORKS else home
        self._look(name, root)

    def _look(self, name: str, value: Any) -> None:
        """Describe a value, and what it holds."""
        if isinstance(value, ModuleType):
            return
        if len(self.code) + len(self.values) >= _ENTRIES:
            self.values[self._rest] = f"more than {_ENTRIES} values, which {INCOMPARABLE}"
            return
        if not self._has_digests and _has(value, "shape"):
            self.arrays.append(value)
            self.values[name] = ""  # which counts
            return
        found = text(value)
        if found is not None:
            if not _DEVICE.fullmatch(found):
                self.values[name] = found
            return
        if id(value) in self._known:
            return
        self._known[id(value)] = value
        wrapped = value.__wrapped__ if _has(value, "__wrapped__") else None
        if isinstance(value, FunctionType):
            self._function(name, value)
        elif isinstance(value, MethodType):
            self._look(name, value.__func__)
            self._look(f"self of {name}", value.__self__)
        elif isinstance(value, partial):
            self._look(name, value.func)
            for place, argument in [*enumerate(value.args), *value.keywords.items()]:
                self._look(f"argument {place} of {name}", argument)
        elif callable(wrapped):  # as what jax.jit returns, whose own code is not Python
            self._look(name, wrapped)
        elif (arrays := _arrays_of(value)) is not None:
            self._class(name, type(value))
            weights = _weights(arrays) if self._has_digests else ""
            self.values[f"the weights of {name}"] = weights
            if hasattr(value, "modules"):
                self.models.append(value)
            if is_whole(value):
                self.weights[f"the weights of {name}"] = weights
        elif isinstance(value, type):
            self._class(name, value)
        elif isinstance(value, BuiltinFunctionType | np.ufunc):
            self.code[name] = f"{getattr(value, '__module__', '')}.{value.__name__}"
        elif isinstance(value, Mapping) and len(value) <= _ENTRIES:
            for key, each in value.items():
                self._look(f"{key!r} of {name}", each)
        elif isinstance(value, list | tuple) and len(value) <= _ENTRIES:
            for place, each in enumerate(value):
                self._look(f"entry {place} of {name}", each)
        elif self._home == _OURS != _home(type(value)):  # a metric of one's own in a wrapper
            self.values |= describe(name, value)
        elif _home(type(value)) in (self._home, _OURS) and (
            callable(value) or value is getattr(self._root, "__self__", None)
        ):
            self._object(name, value)
        elif type(value).__name__ not in ("device", "Device"):
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            self.values[name] = f"an object of type {kind}, which {INCOMPARABLE}"

    def _function(self, name: str, function: FunctionType) -> None:
        if _home(function) != self._home:
            self.code[name] = f"{function.__module__}.{function.__qualname__}"
            return
        code = function.__code__
        version = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        self.code[name] = f"{function.__name__} (code {_code(code)} of {version})"
        places = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        held = dict(zip(places[len(places) - len(defaults) :], defaults, strict=True))
        held |= function.__kwdefaults__ or {}
        names, bound, changed = _variables(code)
        held |= {key: function.__globals__[key] for key in names if key in function.__globals__}
        for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                held[key] = cell.cell_contents
            except ValueError:  # it has no value yet
                continue
        for key, value in held.items():
            is_state = key in changed and not isinstance(value, (_EXACT, ModuleType, FunctionType))
            if key in bound or is_state:
                self.values[f"{key} of {name}"] = f"what it changes itself, which {INCOMPARABLE}"
            elif key != "__class__":  # the cell of super()
                self._look(f"{key} of {name}", value)

    def _class(self, name: str, kind: type) -> None:
        self.code[name] = f"{kind.__module__}.{kind.__qualname__}"
        if _home(kind) != self._home or self._home == _OURS:
            return
        for each in reversed(kind.__mro__):
            if _home(each) != self._home:
                continue
            for key, value in vars(each).items():
                inner = getattr(value, "fget", getattr(value, "__func__", value))
                if isinstance(inner, FunctionType) or (key[0] != "_" and text(inner) is not None):
                    self._look(f"{key} of {name}", inner)

    def _object(self, name: str, value: Any) -> None:
        kind = type(value)
        self._class(name, kind)
        made, changed = set[str](), set[str]()  # what a user's class sets at first, and later
        for each in (each for each in kind.__mro__ if _home(each) == self._home != _OURS):
            for key, function in vars(each).items():
                if isinstance(function, FunctionType):
                    stored = made if key in ("__init__", "__post_init__") else changed
                    steps = dis.get_instructions(function)
                    stored |= {step.argval for step in steps if step.opname == "STORE_ATTR"}
        settings = made - changed
        for key, each in _attributes(value).items():
            is_setting = key[0] != "_" or (key in settings and isinstance(each, (_EXACT, tuple)))
            if is_setting and (
                not self._is_model or _has(each, "shape") or _arrays_of(each) is not None
            ):
                self._look(f"{key} of {name}", each)


def _has(value: Any, name: str) -> bool:
    """Return whether an object has an attribute; one that raises another error has none."""
    try:
        return hasattr(value, name)
    except Exception:  # a lazy object of the user's, or of a library
        return False


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, also those in slots."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name[:2] != "__" and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _home(value: Any) -> str:
    """Return the package of a function or class."""
    return str(getattr(value, "__module__", "")).partition(".")[0]


def _variables(code: CodeType) -> tuple[set[str], set[str], set[str]]:
    """Return the outer variables that a function uses, those it binds, and those it changes.

    A counter or a list of calls, which the function changes, is not a setting of it.
    """
    used, bound, changed = set[str](), set[str](), set[str]()
    loaded: list[str] = []  # by the last steps, among them the container of an assignment
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR"):
            changed.update(loaded)
        elif step.opname in ("STORE_DEREF", "STORE_GLOBAL", "DELETE_DEREF", "DELETE_GLOBAL"):
            bound.add(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval in _MUTATORS:
            changed.update(loaded[-1:])
        is_outer = step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
        loaded = [*loaded[-9:], step.argval if is_outer else ""]
        if is_outer:
            used.add(step.argval)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            for mine, inner in zip((used, bound, changed), _variables(each), strict=True):
                mine |= inner
    return used, bound, changed


def _code(code: CodeType) -> str:
    """Return a digest of bytecode, constants and names, without files and lines."""
    found = [code.co_code.hex(), repr((code.co_argcount, code.co_kwonlyargcount, code.co_flags))]
    found += [" ".join(each) for each in (code.co_names, code.co_varnames, code.co_freevars)]
    for each in code.co_consts:
        found.append(_code(each) if isinstance(each, CodeType) else _text(each, [_PARTS]))
    return short("\n".join(found))


def _text(value: Any, left: list[int]) -> str:
    """Return the text of a value.

    Raises:
        ValueError: It is of another kind, or too large.
    """
    left[0] -= 1
    if left[0] < 0:
        raise ValueError("too large")
    kind = type(value)
    if isinstance(value, Enum):
        return f"{kind.__qualname__}.{value.name}"
    if isinstance(value, (_EXACT, *_KNOWN)):
        return repr(value)
    if isinstance(value, np.dtype) or (kind.__name__ == "dtype" and kind.__module__ == "torch"):
        return str(value)
    if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type):
        return _array_text(value)
    if kind in (list, tuple):
        inside = ", ".join(_text(each, left) for each in value)
        return f"[{inside}]" if kind is list else f"({inside}{',' * (len(value) == 1)})"
    if kind in (set, frozenset):
        return f"{{{', '.join(sorted(_text(each, left) for each in value))}}}"
    if isinstance(value, Mapping):
        pairs = sorted(f"{_text(key, left)}: {_text(each, left)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not callable(value):
        return kind.__qualname__ + _text(_attributes(value), left)
    raise ValueError("of another kind")


def _array_text(array: Any) -> str:
    try:
        is_plain = not hasattr(array, "to_local") and not getattr(array.dtype, "hasobject", False)
        if is_plain and math.prod(array.shape) <= _FEW:
            listed = (array if hasattr(array, "tolist") else np.asarray(array)).tolist()
            return f"{array.dtype} array {listed!r}"
        return f"{array.dtype} array of shape {tuple(array.shape)}, digest {_array(array)}"
    except Exception as error:  # as of sparse tensors and those without memory
        raise ValueError("the array can't be read") from error


def _array(array: Any) -> str:
    """Return a digest of an array, or of values that are evenly spread over a large one."""
    if hasattr(array, "to_local"):  # of a tensor in pieces, that of this rank
        array = array.to_local()
    size, width = math.prod(array.shape), getattr(array.dtype, "itemsize", 8)
    if size * width > _ARRAY_BYTES:
        if not hasattr(array, "reshape"):  # TensorFlow's
            array = np.asarray(array)
        array = array.reshape(-1)[:: -(-size * width // _ARRAY_BYTES) | 1]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        array = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    found = np.asarray(array)
    if found.dtype.hasobject:
        return short(_text(found.tolist(), [_PARTS]))
    return blake2b(without_gaps(found).tobytes(), digest_size=8).hexdigest()


def without_gaps(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array of equal bytes for equal values: long doubles of x86 have unset ones."""
    if array.dtype.char not in "gG":
        return array
    info = np.finfo(array.dtype)
    used = -(-(info.nexp + info.nmant + 2) // 8)  # with the sign, and the digit before the point
    numbers = np.ascontiguousarray(array).view(np.uint8).reshape(*array.shape, -1, info.bits // 8)
    return np.ascontiguousarray(numbers[..., :used])


def _arrays_of(value: Any) -> list[tuple[str, Any]] | None:
    """Return the weights of a model of torch or Keras by name; None for other objects."""
    torch, keras = sys.modules.get("torch"), sys.modules.get("keras")
    if torch is not None and isinstance(value, torch.nn.Module):
        return [*value.named_parameters(), *value.named_buffers()]
    if keras is not None and isinstance(value, keras.Model):
        return [(str(place), each) for place, each in enumerate(value.weights)]
    return None


def _weights(named: Sequence[tuple[str, Any]]) -> str:
    """Return a digest of the weights of a model."""
    try:
        return short("\n".join(f"{name} {_array_text(each)}" for name, each in named))
    except ValueError:
        return f"weights of {len(named)} arrays, which {INCOMPARABLE}"


def is_whole(model: Any) -> bool:
    """Return whether a rank has all weights of a model, and not its shards of them."""
    if not hasattr(model, "parameters"):  # Keras's
        return True
    return not any(
        hasattr(each, "to_local") or type(each).__name__ == "FlatParameter"
        for each in model.parameters()
    )


def _shown(settings: Mapping[str, Any], name: str) -> str:
    value = settings.get(name, _MISSING)
    shown = value if isinstance(value, str) else repr(value)
    return f"{shown:.300}" if shown else "''"


def _some(told: Sequence[str]) -> str:
    more = f"; and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    return "; ".join(told[:_NAMED]) + more


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
