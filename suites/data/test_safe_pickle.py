"""A pickle of arrays can name nothing else, and change nothing of what it names."""

import codecs

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


def test_an_array_that_claims_more_than_it_brings_takes_no_memory() -> None:
    claim = python_2_pickle(pictures(1)[0], [1]).replace(  # a terabyte, and it brings three bytes
        b"M\x00\x0c", b"\x8a\x06" + bytes(5) + b"\x01"
    )
    with pytest.raises(DataError, match="cannot reshape"):
        load_arrays(claim, "a file")
