"""Pickles of functions and classes by value, with the names of the files that hold their code."""

from __future__ import annotations

import io
from collections import ChainMap
from collections.abc import Callable
from types import CodeType
from typing import Any, ClassVar

import cloudpickle


def _restored(make: Callable[..., CodeType], arguments: Any, filename: str) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


def _reduced(code: CodeType) -> Any:
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _restored, (make, arguments, code.co_filename)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Keeps the file of a function, so that tracebacks name it and quote its lines.

    cloudpickle leaves it out from release 3.1.3 on, so that equal functions have equal bytes.
    """

    dispatch_table: ClassVar = ChainMap({CodeType: _reduced}, cloudpickle.Pickler.dispatch_table)


def dumps(value: Any) -> bytes:
    """Pickle a value; functions and classes that can't be imported elsewhere are pickled whole."""
    stream = io.BytesIO()
    Pickler(stream).dump(value)
    return stream.getvalue()
