"""Checks of arguments accept valid values and refuse others with a clear message."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from disteval import UsageError
from disteval.arguments import check_choice, check_count, did_you_mean


@pytest.mark.parametrize(
    ("value", "least", "most"), [(1, 1, None), (0, 0, 0), (np.int32(7), 1, 7), (2**70, 1, None)]
)
def test_a_whole_number_in_range_comes_back_as_an_int(value: Any, least: int, most: Any) -> None:
    found = check_count("n", value, least, most)
    assert (type(found), found) == (int, int(value))


@pytest.mark.parametrize(
    ("value", "limits", "range_"),
    [
        (0, (1,), "from 1 up"),
        (True, (0,), "from 0 up"),
        (2.0, (1,), "from 1 up"),
        ("2", (1,), "from 1 up"),
        (None, (1,), "from 1 up"),
        (8, (0, 7), "from 0 to 7"),
    ],
)
def test_anything_else_is_refused_with_the_range(value: Any, limits: Any, range_: str) -> None:
    told = f"n must be a whole number {range_}, not {value!r}"
    with pytest.raises(UsageError, match=f"^{re.escape(told)}$"):
        check_count("n", value, *limits)


def test_a_choice_that_is_not_known_is_told_the_known_ones() -> None:
    assert check_choice("mode", "cat", ("unzip", "cat")) == "cat"
    with pytest.raises(UsageError, match=r"^mode 'dog' is not known; use 'a', 'b' or 'cat'$"):
        check_choice("mode", "dog", ("a", "b", "cat"))
    with pytest.raises(UsageError, match=r"^mode \['cat'\] is not known; use 'cat'$"):
        check_choice("mode", ["cat"], ("cat",))


def test_the_nearest_known_name_is_suggested() -> None:
    assert did_you_mean("torch_cup", ["mpi4py", "torch_cpu"]) == " Did you mean 'torch_cpu'?"
    assert did_you_mean("qqq", ["mpi4py", "torch_cpu"]) == ""
