"""A pickle of arrays can name nothing else, take much memory, or end the process."""

import codecs
import pickle
import struct
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from disteval import DataError

from suites.data.test_cifar10 import pictures, python_2_pickle
from suites.helpers.data import load_arrays

ADMITTED = [
    ("numpy", "dtype"), ("numpy", "ndarray"), ("_codecs", "encode"),
    ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
]  # fmt: skip
"""What arrays of each version of Python and NumPy name in their pickles."""


@pytest.mark.parametrize("module,name", ADMITTED)
@pytest.mark.parametrize("state", [b"}X\x01\x00\x00\x00xK\x01s", b"N}X\x01\x00\x00\x00xK\x01s\x86"])
def test_a_pickle_changes_nothing_of_what_it_may_name(module: str, name: str, state: bytes) -> None:
    # The instruction b sets attributes: from a dict, or from a pair, as for slots.
    with pytest.raises(DataError):
        load_arrays(b"\x80\x02c" + f"{module}\n{name}\n".encode() + state + b"b.", "a file")
    named = {"dtype": np.dtype, "ndarray": np.ndarray, "encode": codecs.encode}
    assert not hasattr(named.get(name), "x")


def test_a_dtype_made_without_its_check_is_refused() -> None:
    # The instruction \x81 calls __new__ and leaves __init__ out.
    with pytest.raises(DataError):
        load_arrays(b"\x80\x02cnumpy\ndtype\n)\x81.", "a file")
    with pytest.raises(DataError, match="dtype b'i8'"):
        load_arrays(b"\x80\x02cnumpy\ndtype\nU\x02i8\x85\x81.", "a file")


def peak_bytes(data: bytes, message: str) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message):
            load_arrays(data, "a file")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_small_pickle_can_not_ask_for_much_memory() -> None:
    # An unpickler makes room for twice the largest memo index: here, for 128 MiB.
    index = struct.pack("<I", 1 << 23)
    assert peak_bytes(b"\x80\x02}r" + index + b".", "8388608") < 1 << 20
    assert peak_bytes(b"}p8388608\n.", "8388608") < 1 << 20
    # An array that claims a terabyte and brings three bytes.
    claim = python_2_pickle(pictures(1)[0], [1]).replace(
        b"M\x00\x0c", b"\x8a\x06" + bytes(5) + b"\x01"
    )
    assert peak_bytes(claim, "cannot reshape") < 1 << 20


def test_many_small_objects_are_refused_before_they_exist() -> None:
    assert peak_bytes(b"]" * 600_000 + b".", "500000") < 1 << 20
    assert len(load_arrays(b"](" + b"K\x01" * 400_000 + b"e.", "a file")) == 400_000


def test_a_text_is_not_encoded_many_times() -> None:
    text = b"X" + struct.pack("<I", 1 << 16) + b"x" * (1 << 16)
    call = b"c_codecs\nencode\nq\0" + text + b"X\6\0\0\0latin1\x86q\1R"
    assert load_arrays(b"\x80\2" + call + b".", "a file") == b"x" * (1 << 16)
    assert peak_bytes(b"\x80\2" + call + b"h\0h\1R" * 1000 + b".", "encodes more text") < 1 << 20


def test_keys_with_one_hash_are_refused() -> None:
    modulus = sys.hash_info.modulus  # 40,000 multiples of it took a dict 8 s
    keys = ((k * modulus).to_bytes(11, "little") for k in range(1, 40_000))
    data = b"\x80\2}(" + b"".join(b"\x8a\x0b" + key + b"N" for key in keys) + b"u."
    assert peak_bytes(data, "65 bits") < 1 << 20


def test_tuples_in_tuples_do_not_end_the_process() -> None:
    # As a key they are hashed, which overflowed the stack: the child died of it.
    code = (
        "from disteval.data.safe_pickle import load_arrays\n"
        "load_arrays(b'\\x80\\x02})' + b'\\x85' * 1_000_000 + b'K\\x01s.', 'a file')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert "1000 tuples" in done.stderr
    nested: Any = ()
    for _ in range(900):
        nested = (nested,)
    assert load_arrays(pickle.dumps({nested: 1}, 2), "a file") == {nested: 1}
